/* The compiled kernel: the loops over records that NumPy cannot express, in plain C on CPython's stable ABI.

   It knows buffers of bytes and of native integers, nothing of NumPy or Arrow; kernel.py wraps it and
   numpy_kernel.py is its twin: same results, same refusals. Bytes of a broker are untrusted: every read is bounded
   by the end of its record, every write by the size of its buffer, and no arithmetic on either can wrap. All loops
   run without the GIL. */

#include "_kernel_crc.h"
#include "_kernel_decode.h"
#include "_kernel_encode.h"
#include "_kernel_hash.h"

static PyMethodDef methods[] = {
    {"scan_records", scan_records, METH_VARARGS, "See Kernel.scan_records."},
    {"gather", gather, METH_VARARGS, "See Kernel.gather_binary."},
    {"scan_headers", scan_headers, METH_VARARGS, "See Kernel.scan_headers."},
    {"shift_crc32c", shift_crc32c, METH_VARARGS, "See Kernel.renew_crc32c."},
    {"encode", encode, METH_VARARGS, "See Kernel.encode_records."},
    {"hash_keys", hash_keys, METH_VARARGS, "See Kernel.hash_keys."},
    {"group_rows", group_rows, METH_VARARGS, "See Kernel.group_rows."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_kernel",
    .m_doc = "The compiled loops over records and keys.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    build_crc_table();
    return PyModuleDef_Init(&module);
}
