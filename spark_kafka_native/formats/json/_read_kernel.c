/* The compiled reader of JSON: payloads into columns, in plain C on CPython's stable ABI.

   read_kernel.py wraps it. It decides what it is sure of, and names the other payloads. Programs are ours, and checked once
   per call; the bytes of a payload are untrusted: every read is bounded by the end of its payload, and a value takes a
   byte at least. The loop runs without the GIL. */

#include "../../kernel_headers/buffers.h"
#include "_read_values.h"

static int check_node(const Node *nodes, int64_t at, int64_t count, int64_t names_size)
{
    const Node *node = &nodes[at];
    const int is_whole = node->op == J_STRUCT || node->op == J_LIST || node->op == J_MAP;
    return node->op < J_BOOL || node->op > J_MAP || node->name < 0 || node->name_size < 0 ||
           node->name + (int64_t)node->name_size > names_size ||
           (is_whole ? node->first <= at || node->count < 1 || node->first + (int64_t)node->count > count
                     : node->count != 0) ||
           (node->op == J_LIST && node->count != 1) ||
           (node->op == J_MAP && (node->count != 2 || nodes[node->first].op != J_STRING)) ||
           (node->op == J_INTEGER && node->a != 1 && node->a != 2 && node->a != 4 && node->a != 8) ||
           (node->op == J_DECIMAL && (node->a < 1 || node->a > 38 || node->b < 0 || node->b > 38));
}

static void set_builder(Builder *b, const Node *node)
{
    static const int32_t kinds[] = {B_BOOL,  B_FIXED, B_FIXED, B_FIXED,  B_BYTES, B_FIXED,
                                    B_FIXED, B_FIXED, B_LIST,  B_STRUCT, B_BYTES, B_LIST};
    static const int32_t widths[] = {0, 0, 4, 8, 0, 16, 4, 8, 0, 0, 0, 0};
    b->kind = kinds[node->op];
    b->width = node->op == J_INTEGER ? node->a : widths[node->op];
    b->child = node->first;
    b->count = node->count;
}

typedef struct {
    const int32_t *offsets;
    const uint8_t *valid, *data;
    int64_t bit_offset, rows;
} Payloads;

static int is_ascii(const uint8_t *p, const uint8_t *end)
{
    uint64_t all = 0, eight;
    for (; end - p >= 8; p += 8) {
        memcpy(&eight, p, 8);
        all |= eight;
    }
    for (; p < end; p++)
        all |= (uint64_t)*p << 56;
    return !(all & 0x8080808080808080ULL);
}

static int read_row(Reading *r, const Payloads *in, int64_t row)
{
    const uint8_t *p = in->data + in->offsets[row], *end = in->data + in->offsets[row + 1];
    const int64_t bit = in->bit_offset + row;
    int bad;
    if (in->valid && !(in->valid[bit >> 3] >> (bit & 7) & 1))
        return append_null(r->builders, r->links, &r->builders[0]);
    if (!is_ascii(p, end) && !is_utf8(p, end - p))
        return UNSURE;
    p = skip_space(p, end);
    if (p == end)
        return append_null(r->builders, r->links, &r->builders[0]);
    /* A text that is no object is a bad payload, even if it is null. */
    bad = read_struct(r, 0, &p, end);
    return bad ? bad : skip_space(p, end) == end ? 0 : UNSURE;
}

/* Fills the builders; returns 0 or an error, and the rows that it is not sure of, which are null. */
static int read_rows(Reading *r, const Payloads *in, int64_t **unsure, int64_t *unsure_count)
{
    int64_t row, room = 0;
    for (row = 0; row < in->rows; row++) {
        int failed = read_row(r, in, row);
        if (!failed)
            continue;
        if (failed < 0)
            return failed;
        if (*unsure_count == room) {
            room = 2 * room + 64;
            if (resize(unsure, room * (int64_t)sizeof(int64_t)))
                return NO_MEMORY;
        }
        (*unsure)[(*unsure_count)++] = row;
        truncate_to(r->builders, r->links, &r->builders[0], row);
        if (append_null(r->builders, r->links, &r->builders[0]))
            return NO_MEMORY;
    }
    return 0;
}

static PyObject *give_columns(Builder *builders, int64_t count, const int64_t *unsure, int64_t unsure_count)
{
    PyObject *columns = PyList_New((Py_ssize_t)count);
    int64_t i;
    for (i = 0; columns && i < count; i++) {
        PyObject *column = finish(&builders[i]);
        if (!column || PyList_SetItem(columns, (Py_ssize_t)i, column) < 0) {
            Py_DECREF(columns);
            return NULL;
        }
    }
    return columns ? Py_BuildValue("Ny#", columns, unsure_count ? (const char *)unsure : "",
                                   (Py_ssize_t)(unsure_count * (int64_t)sizeof(int64_t)))
                   : NULL;
}

static int check_payloads(const Payloads *in, int64_t size)
{
    int64_t row;
    for (row = 0; row <= in->rows; row++)
        if (in->offsets[row] < (row ? in->offsets[row - 1] : 0) || in->offsets[row] > size)
            return -1;
    return 0;
}

static PyObject *decode(PyObject *self, PyObject *args)
{
    PyObject *nodes, *names, *powers, *offsets, *valid, *data, *result = NULL;
    long long count, bit_offset, rows;
    static const uint8_t nothing[1];
    Held held = {.count = 0};
    Reading r = {0};
    Payloads in = {0};
    int32_t *links = NULL;
    int64_t *unsure = NULL, unsure_count = 0, i, data_size, names_size;
    int failed = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OLOOOOLOL", &nodes, &count, &names, &powers, &offsets, &valid, &bit_offset, &data,
                          &rows))
        return NULL;
    if (count < 1 || count > INT32_MAX || rows < 0 || bit_offset < 0)
        return PyErr_Format(PyExc_ValueError, "an empty program");
    r.nodes = hold(&held, nodes, 0, count, sizeof(Node), NULL);
    r.names = hold(&held, names, 0, 0, 1, NULL);
    names_size = r.names ? held.views[held.count - 1].len : 0;
    r.powers = hold(&held, powers, 0, 2 * (MOST_POWER - LEAST_POWER + 1), 8, NULL);
    in.offsets = hold(&held, offsets, 0, rows + 1, 4, NULL);
    in.valid = hold(&held, valid, 0, (bit_offset + rows + 7) / 8, 1, (void *)nothing);
    in.data = hold(&held, data, 0, 0, 1, NULL);
    data_size = in.data ? held.views[held.count - 1].len : 0;
    if (PyErr_Occurred())
        goto done;
    in.valid = in.valid == nothing ? NULL : in.valid;
    in.bit_offset = bit_offset;
    in.rows = rows;
    r.limit = in.data + data_size;
    r.builders = calloc((size_t)count, sizeof(Builder));
    r.orders = calloc((size_t)count, sizeof(Order));
    r.links = links = calloc((size_t)count, sizeof(int32_t));
    if (!r.builders || !r.orders || !links) {
        PyErr_NoMemory();
        goto done;
    }
    for (i = 0; i < count && !failed; i++) {
        failed = check_node(r.nodes, i, count, names_size);
        if (!failed)
            set_builder(&r.builders[i], &r.nodes[i]);
        links[i] = (int32_t)i;
    }
    if (failed || r.nodes[0].op != J_STRUCT || check_payloads(&in, data_size)) {
        PyErr_SetString(PyExc_ValueError, "a broken program, or payloads that leave their data");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    failed = read_rows(&r, &in, &unsure, &unsure_count);
    Py_END_ALLOW_THREADS
    if (failed == NO_MEMORY)
        PyErr_NoMemory();
    else if (failed)
        PyErr_SetString(PyExc_OverflowError, "a column has more than 2 GiB");
    else
        result = give_columns(r.builders, count, unsure, unsure_count);
done:
    for (i = 0; r.builders && i < count; i++) {
        free(r.builders[i].valid);
        free(r.builders[i].data);
        free(r.builders[i].offsets);
    }
    free(r.builders);
    free(r.orders);
    free(links);
    free(unsure);
    release(&held);
    return result;
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, "See read_kernel.load_reader."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_read_kernel",
    .m_doc = "The compiled loop over JSON payloads.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__read_kernel(void)
{
    return PyModuleDef_Init(&module);
}
