/* The compiled kernel of Avro: the loops over payloads and rows, in plain C on CPython's stable ABI.

   kernel.py wraps it, and twin.py is its twin: same results, same refusals. Programs are ours, and checked once per
   call; the bytes of a payload are untrusted: every read is bounded by the end of its payload, every count by the
   bytes that are left, and what needs no bytes by a credit. All loops run without the GIL. */

#include "_avro_read.h"
#include "_avro_write.h"

/* Links point forward only, so that no program runs in a circle; `columns` and `constants` bound what nodes name. */
static int check_program(const int32_t *nodes, int64_t count, const int32_t *links, int64_t link_count,
                         int64_t targets, int op_of_links)
{
    int64_t at;
    for (at = 0; at < count; at++) {
        const int32_t *node = nodes + at * 6;
        if (node[1] < -1 || node[1] >= targets || node[3] < 0 || node[2] < 0 || node[2] + (int64_t)node[3] > link_count)
            return -1;
        if (node[0] == op_of_links)
            continue;
        for (int32_t i = 0; i < node[3]; i++)
            if (links[node[2] + i] <= at || links[node[2] + i] >= count)
                return -1;
    }
    return 0;
}

static int check_builders(const int32_t *described, int64_t count, const int32_t *links, int64_t link_count,
                          Builder *builders)
{
    int64_t at;
    for (at = count - 1; at >= 0; at--) {
        const int32_t *one = described + at * 4;
        Builder *b = &builders[at];
        if (one[2] < 0 || one[3] < 0 || one[2] + (int64_t)one[3] > link_count)
            return -1;
        b->kind = one[0];
        b->width = one[1];
        b->child = one[2];
        b->count = one[3];
        b->weight = 1;
        for (int32_t i = 0; i < b->count; i++) {
            int32_t part = links[b->child + i];
            if (part <= at || part >= count)
                return -1;
            b->weight += builders[part].weight;
        }
    }
    return 0;
}

typedef struct {
    int64_t row;
    int32_t reason, node;
} Bad;

typedef struct {
    const int32_t *offsets;
    const uint8_t *valid, *data, *prefix;
    int64_t bit_offset, rows, prefix_size;
} Payloads;

static int read_row(Reading *r, const Payloads *in, int64_t row)
{
    const uint8_t *p = in->data + in->offsets[row], *end = in->data + in->offsets[row + 1];
    int bad;
    if (in->prefix_size && end - p >= in->prefix_size && *p == *in->prefix && !memcmp(p, in->prefix, (size_t)in->prefix_size))
        p += in->prefix_size;
    r->failed = -1;
    r->credit += 1024 * (end - p);
    bad = read_value(r, 0, &p, end);
    return bad ? bad : p == end ? 0 : BAD_LEFT_OVER;
}

/* Fills the builders; returns 0 or an error, and the bad rows. */
static int read_rows(Reading *r, const Payloads *in, int64_t builders, Bad **bad, int64_t *bad_count)
{
    int64_t row, room = 0;
    for (row = 0; row < in->rows; row++) {
        int64_t bit = in->bit_offset + row;
        int failed;
        if (in->valid && !(in->valid[bit >> 3] >> (bit & 7) & 1)) {
            if (append_null(r->builders, r->links, &r->builders[0]))
                return NO_MEMORY;
            continue;
        }
        r->credit = 4096 + 4 * builders;
        failed = read_row(r, in, row);
        if (!failed)
            continue;
        if (failed < 0)
            return failed;
        if (*bad_count == room) {
            room = 2 * room + 64;
            if (resize(bad, room * (int64_t)sizeof(Bad)))
                return NO_MEMORY;
        }
        (*bad)[(*bad_count)++] = (Bad){row, failed, r->failed};
        truncate_to(r->builders, r->links, &r->builders[0], row);
        if (append_null(r->builders, r->links, &r->builders[0]))
            return NO_MEMORY;
    }
    return 0;
}

static PyObject *give_columns(Builder *builders, int64_t count, const Bad *bad, int64_t bad_count)
{
    PyObject *columns = PyList_New(count);
    int64_t i;
    for (i = 0; columns && i < count; i++) {
        PyObject *column = finish(&builders[i]);
        if (!column || PyList_SetItem(columns, i, column) < 0) {
            Py_DECREF(columns);
            return NULL;
        }
    }
    return columns ? Py_BuildValue("Ny#", columns, (const char *)(bad ? bad : (const Bad *)""),
                                   (Py_ssize_t)(bad_count * (int64_t)sizeof(Bad)))
                   : NULL;
}

static int raise_for(int failed, const char *too_large)
{
    if (failed == NO_MEMORY)
        PyErr_NoMemory();
    else if (failed == TOO_LARGE)
        PyErr_SetString(PyExc_OverflowError, too_large);
    return failed ? -1 : 0;
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
    PyObject *nodes, *links, *described, *constants, *offsets, *valid, *data, *prefix, *result = NULL;
    long long node_count, link_count, builder_count, bit_offset, rows;
    static const uint8_t nothing[1];
    Held held = {.count = 0};
    Reading r = {0};
    Payloads in = {0};
    Bad *bad = NULL;
    const int32_t *shapes;
    int64_t bad_count = 0, i, data_size;
    int failed;
    (void)self;
    if (!PyArg_ParseTuple(args, "OLOLOLOOOLOLO", &nodes, &node_count, &links, &link_count, &described, &builder_count,
                          &constants, &offsets, &valid, &bit_offset, &data, &rows, &prefix))
        return NULL;
    if (node_count < 1 || builder_count < 1 || rows < 0 || bit_offset < 0)
        return PyErr_Format(PyExc_ValueError, "an empty program");
    r.nodes = hold(&held, nodes, 0, node_count, sizeof(Node), NULL);
    r.links = hold(&held, links, 0, link_count, 4, NULL);
    shapes = hold(&held, described, 0, builder_count, 16, NULL);
    r.constants = hold(&held, constants, 0, 0, 1, NULL);
    in.offsets = hold(&held, offsets, 0, rows + 1, 4, NULL);
    in.data = hold(&held, data, 0, 0, 1, NULL);
    data_size = in.data ? held.views[held.count - 1].len : 0;
    in.prefix = hold(&held, prefix, 0, 0, 1, NULL);
    in.prefix_size = in.prefix ? held.views[held.count - 1].len : 0;
    in.valid = hold(&held, valid, 0, (bit_offset + rows + 7) / 8, 1, (void *)nothing);
    if (PyErr_Occurred())
        goto done;
    in.valid = in.valid == nothing ? NULL : in.valid;
    in.bit_offset = bit_offset;
    in.rows = rows;
    r.builders = calloc((size_t)builder_count, sizeof(Builder));
    if (!r.builders) {
        PyErr_NoMemory();
        goto done;
    }
    if (check_program((const int32_t *)r.nodes, node_count, r.links, link_count, builder_count, R_ENUM) ||
        check_builders(shapes, builder_count, r.links, link_count, r.builders) || check_payloads(&in, data_size)) {
        PyErr_SetString(PyExc_ValueError, "a broken program, or payloads that leave their data");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    failed = read_rows(&r, &in, builder_count, &bad, &bad_count);
    Py_END_ALLOW_THREADS
    if (!raise_for(failed, "a column has more than 2 GiB"))
        result = give_columns(r.builders, builder_count, bad, bad_count);
done:
    for (i = 0; r.builders && i < builder_count; i++) {
        free(r.builders[i].valid);
        free(r.builders[i].data);
        free(r.builders[i].offsets);
    }
    free(r.builders);
    free(bad);
    release(&held);
    return result;
}

/* `described`: for each column (length, first, width of a value in bits, size of its child or -1). Its buffers are
   three of `sources`: validity, offsets and data; an empty one is absent. */
static int hold_columns(const int64_t *described, int64_t count, const Sources *sources, Column *columns)
{
    int64_t at;
    for (at = 0; at < count; at++) {
        const int64_t *one = described + at * 4;
        const Py_buffer *views = sources->views + at * 3;
        int64_t values = one[0] + one[1];
        if (one[0] < 0 || one[1] < 0 || (views[0].len && views[0].len < (values + 7) / 8) ||
            (views[1].len && views[1].len / 4 < values + 1) || views[2].len < (values * one[2] + 7) / 8 ||
            (one[3] >= 0 && !views[1].len))
            return -1;
        columns[at] = (Column){
            .length = one[0],
            .first = one[1],
            .data_size = one[3] >= 0 ? one[3] : views[2].len,
            .valid = views[0].len ? views[0].buf : NULL,
            .offsets = views[1].len ? views[1].buf : NULL,
            .data = views[2].buf,
        };
    }
    return 0;
}

static int check_steps(const Step *steps, int64_t count, const Column *columns)
{
    for (int64_t at = 0; at < count; at++) {
        int op = steps[at].op;
        int needs = op != W_NOTHING && op != W_RECORD && op != W_CONSTANT;
        if (needs && steps[at].column < 0)
            return -1;
        if ((op == W_BYTES || op == W_FIXED || op == W_ARRAY || op == W_MAP) && !columns[steps[at].column].offsets)
            return -1;
    }
    return 0;
}

static PyObject *encode(PyObject *self, PyObject *args)
{
    PyObject *steps, *links, *constants, *described, *buffers, *skipped, *ends, *result = NULL;
    long long step_count, link_count, column_count, rows;
    Held held = {.count = 0};
    Sources sources = {NULL, 0};
    Writing w = {0};
    Column *columns = NULL;
    const int64_t *shapes;
    const uint8_t *skip;
    int32_t *end;
    int64_t row;
    int failed = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OLOLOOLOOLO", &steps, &step_count, &links, &link_count, &constants, &described,
                          &column_count, &buffers, &skipped, &rows, &ends))
        return NULL;
    w.steps = hold(&held, steps, 0, step_count, sizeof(Step), NULL);
    w.links = hold(&held, links, 0, link_count, 4, NULL);
    w.constants = hold(&held, constants, 0, 0, 1, NULL);
    shapes = hold(&held, described, 0, column_count * 4, 8, NULL);
    skip = hold(&held, skipped, 0, rows, 1, NULL);
    end = hold(&held, ends, 1, rows + 1, 4, NULL);
    if (PyErr_Occurred() || hold_sources(&sources, buffers))
        goto done;
    columns = calloc((size_t)column_count + 1, sizeof(Column));
    w.columns = columns;
    if (!columns) {
        PyErr_NoMemory();
        goto done;
    }
    if (sources.count != column_count * 3 || hold_columns(shapes, column_count, &sources, columns) ||
        check_program((const int32_t *)w.steps, step_count, w.links, link_count, column_count, -1) ||
        check_steps(w.steps, step_count, columns) || step_count < 1) {
        PyErr_SetString(PyExc_ValueError, "a broken program, or columns that leave their data");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    w.failed = -1;
    end[0] = 0;
    for (row = 0; row < rows; row++) {
        if (!skip[row] && (failed = write_value(&w, 0, row)))
            break;
        end[row + 1] = (int32_t)w.size;
    }
    Py_END_ALLOW_THREADS
    if (failed < 0)
        raise_for(failed, "the rows have more than 2 GiB as Avro");
    else if (failed)
        result = Py_BuildValue("Lii", (long long)row, failed, w.failed);
    else
        result = PyBytes_FromStringAndSize((const char *)w.out, (Py_ssize_t)w.size);
done:
    free(w.out);
    free(columns);
    release_sources(&sources);
    release(&held);
    return result;
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, "See kernel.AvroKernel.decode."},
    {"encode", encode, METH_VARARGS, "See kernel.AvroKernel.encode."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_kernel",
    .m_doc = "The compiled loops over Avro's payloads and over rows to be written as such.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&module);
}
