/* The compiled writer of JSON: the loop over rows, in plain C on CPython's stable ABI.

   write_kernel.py wraps it, and twin_write.py is its twin: the same bytes. It runs without the GIL and allocates
   nothing: where the output has no room for a row, it stops before that row, and goes on when it is called again. */

#include "../../kernel_headers/buffers.h"
#include "_write_numbers.h"
#include "_write_texts.h"

/* See write_kernel.py. */
enum { J_BOOL, J_INT8, J_INT16, J_INT32, J_INT64, J_FLOAT, J_DOUBLE, J_STRING, J_BINARY, J_DATE, J_TIME, J_DECIMAL,
       J_STRUCT, J_LIST, J_MAP };
enum { NO_ROOM = 1, BROKEN };

/* A column; those of its parts follow it, up to `end`. */
typedef struct {
    int64_t op, end, length, first, a, b, name, name_size;
} Node;

typedef struct {
    const Node *nodes;
    const Py_buffer *buffers; /* three for each node: validity, offsets, data; an empty one is absent */
    const uint8_t *names, *names_end;
    const uint64_t *powers;
    uint8_t *p, *limit;
} Writing;

static inline int is_null(const Writing *w, int64_t at, int64_t row)
{
    const uint8_t *valid = w->buffers[3 * at].buf;
    int64_t bit = w->nodes[at].first + row;
    return w->buffers[3 * at].len && !(valid[bit >> 3] >> (bit & 7) & 1);
}

/* The edges of a value between offsets; 0 if they leave `limit`. */
static inline int edges(const Writing *w, int64_t at, int64_t row, int64_t limit, int64_t *from, int64_t *to)
{
    const int32_t *offsets = w->buffers[3 * at + 1].buf;
    *from = offsets[w->nodes[at].first + row];
    *to = offsets[w->nodes[at].first + row + 1];
    return 0 <= *from && *from <= *to && *to <= limit;
}

static int write_value(Writing *w, int64_t at, int64_t row);

static int write_value_or_null(Writing *w, int64_t at, int64_t row)
{
    if (!is_null(w, at, row))
        return write_value(w, at, row);
    if (w->limit - w->p < 4)
        return NO_ROOM;
    memcpy(w->p, "null", 4);
    w->p += 4;
    return 0;
}

/* Parts have been written behind commas: the first comma becomes the opening bracket. */
static int write_brackets(Writing *w, uint8_t *start, const char *brackets)
{
    if (w->limit - w->p < 2)
        return NO_ROOM;
    if (w->p == start)
        w->p++;
    *start = (uint8_t)brackets[0];
    *w->p++ = (uint8_t)brackets[1];
    return 0;
}

static int write_struct(Writing *w, int64_t at, int64_t row)
{
    uint8_t *start = w->p;
    int64_t part;
    for (part = at + 1; part < w->nodes[at].end; part = w->nodes[part].end) {
        const uint8_t *name = w->names + w->nodes[part].name;
        int64_t size = w->nodes[part].name_size;
        int failed;
        if (is_null(w, part, row))
            continue;
        if (w->limit - w->p < size)
            return NO_ROOM;
        copy_bytes(w->p, w->limit - w->p, name, w->names_end - name, size);
        w->p += size;
        failed = write_value(w, part, row);
        if (failed)
            return failed;
    }
    return write_brackets(w, start, "{}");
}

static int write_list(Writing *w, int64_t at, int64_t row)
{
    uint8_t *start = w->p;
    int64_t from, to;
    if (!edges(w, at, row, w->nodes[at + 1].length, &from, &to))
        return BROKEN;
    for (; from < to; from++) {
        int failed;
        if (w->p == w->limit)
            return NO_ROOM;
        *w->p++ = ',';
        failed = write_value_or_null(w, at + 1, from);
        if (failed)
            return failed;
    }
    return write_brackets(w, start, "[]");
}

/* What is no text becomes one. */
static int write_key(Writing *w, int64_t at, int64_t row)
{
    uint8_t *start = w->p;
    int failed = write_value_or_null(w, at, row);
    if (failed || *start == '"')
        return failed;
    if (w->limit - w->p < 2)
        return NO_ROOM;
    memmove(start + 1, start, (size_t)(w->p - start));
    *start = '"';
    w->p[1] = '"';
    w->p += 2;
    return 0;
}

static int write_map(Writing *w, int64_t at, int64_t row)
{
    uint8_t *start = w->p;
    int64_t key = at + 1, item = w->nodes[key].end, from, to;
    int64_t entries = w->nodes[key].length < w->nodes[item].length ? w->nodes[key].length : w->nodes[item].length;
    if (!edges(w, at, row, entries, &from, &to))
        return BROKEN;
    for (; from < to; from++) {
        int failed;
        if (w->p == w->limit)
            return NO_ROOM;
        *w->p++ = ',';
        failed = write_key(w, key, from);
        if (failed)
            return failed;
        if (w->p == w->limit)
            return NO_ROOM;
        *w->p++ = ':';
        failed = write_value_or_null(w, item, from);
        if (failed)
            return failed;
    }
    return write_brackets(w, start, "{}");
}

static int write_text(Writing *w, int64_t at, int64_t row)
{
    const Py_buffer *data = &w->buffers[3 * at + 2];
    int64_t from, to;
    uint8_t *end;
    if (!edges(w, at, row, data->len, &from, &to))
        return BROKEN;
    if (w->nodes[at].op == J_STRING)
        end = put_string(w->p, w->limit, (const uint8_t *)data->buf + from, to - from);
    else
        end = put_base64(w->p, w->limit, (const uint8_t *)data->buf + from, to - from);
    if (!end)
        return NO_ROOM;
    w->p = end;
    return 0;
}

/* Returns 0, NO_ROOM, or BROKEN for offsets that leave what they point into. */
static int write_value(Writing *w, int64_t at, int64_t row)
{
    const Node *node = &w->nodes[at];
    const uint8_t *data = w->buffers[3 * at + 2].buf;
    int64_t i = node->first + row;
    switch (node->op) {
    case J_STRUCT:
        return write_struct(w, at, row);
    case J_LIST:
        return write_list(w, at, row);
    case J_MAP:
        return write_map(w, at, row);
    case J_STRING:
    case J_BINARY:
        return write_text(w, at, row);
    }
    if (w->limit - w->p < WIDEST)
        return NO_ROOM;
    switch (node->op) {
    case J_BOOL:
        memcpy(w->p, "false", 5);
        if (data[i >> 3] >> (i & 7) & 1)
            memcpy(w->p, "true", 4);
        w->p += data[i >> 3] >> (i & 7) & 1 ? 4 : 5;
        break;
    case J_INT8:
        w->p = put_integer(w->p, ((const int8_t *)data)[i]);
        break;
    case J_INT16:
        w->p = put_integer(w->p, ((const int16_t *)data)[i]);
        break;
    case J_INT32:
        w->p = put_integer(w->p, ((const int32_t *)data)[i]);
        break;
    case J_INT64:
        w->p = put_integer(w->p, ((const int64_t *)data)[i]);
        break;
    case J_FLOAT:
        w->p = put_float(w->p, w->powers, data + 4 * i);
        break;
    case J_DOUBLE:
        w->p = put_double(w->p, w->powers, data + 8 * i);
        break;
    case J_DATE:
        w->p = put_date(w->p, ((const int32_t *)data)[i]);
        break;
    case J_TIME:
        w->p = put_time(w->p, ((const int64_t *)data)[i], node->b != 0);
        break;
    case J_DECIMAL:
        w->p = put_decimal(w->p, data + node->a / 8 * i, (int)(node->a / 8), (int)node->b);
    }
    return 0;
}

/* The parts of a node lie within it, one after the other, with as many values as it points at. */
static int check_parts(const Node *nodes, int64_t at)
{
    const Node *node = &nodes[at];
    int64_t part, count = 0;
    for (part = at + 1; part < node->end; part = nodes[part].end) {
        if (nodes[part].end <= part || nodes[part].end > node->end ||
            (node->op == J_STRUCT && nodes[part].length < node->length))
            return -1;
        count++;
    }
    return node->op == J_STRUCT || count == (node->op == J_LIST) + 2 * (node->op == J_MAP) ? 0 : -1;
}

static int has_offsets(const Node *node)
{
    return node->op == J_STRING || node->op == J_BINARY || node->op == J_LIST || node->op == J_MAP;
}

/* `a`: the bits of a value in `data`. */
static int check_nodes(const Node *nodes, int64_t count, const Sources *sources, int64_t names)
{
    static const uint8_t bits[] = {1, 8, 16, 32, 64, 32, 64, 0, 0, 32, 64, 0, 0, 0, 0};
    int64_t at;
    if (count < 1 || sources->count != 3 * count || nodes[0].end != count)
        return -1;
    for (at = 0; at < count; at++) {
        const Node *node = &nodes[at];
        const Py_buffer *views = sources->views + 3 * at;
        int64_t values;
        if (node->op < J_BOOL || node->op > J_MAP || node->end <= at || node->end > count || node->length < 0 ||
            node->first < 0 || node->length > INT32_MAX || node->first > INT64_MAX / 512 || node->name < 0 ||
            node->name_size < 0 || node->name_size > names || node->name > names - node->name_size)
            return -1;
        if (node->op == J_DECIMAL ? node->a != 128 && node->a != 256 : node->a != bits[node->op])
            return -1;
        values = node->first + node->length;
        if ((views[0].len && views[0].len < (values + 7) / 8) || views[2].len < (values * node->a + 7) / 8 ||
            (has_offsets(node) && views[1].len / 4 < values + 1) || check_parts(nodes, at))
            return -1;
    }
    return 0;
}

static int write_rows(Writing *w, uint8_t *out, int32_t *ends, int64_t *row, int64_t rows)
{
    for (; *row < rows; ++*row) {
        int failed = is_null(w, 0, *row) ? 0 : write_value(w, 0, *row);
        if (failed)
            return failed;
        ends[*row + 1] = (int32_t)(w->p - out);
    }
    return 0;
}

static PyObject *write_columns(PyObject *self, PyObject *args)
{
    PyObject *nodes, *names, *buffers, *powers, *out, *ends, *result = NULL;
    long long count, first;
    int64_t row, rows, names_size, room;
    Held held = {.count = 0};
    Sources sources = {NULL, 0};
    Writing w = {0};
    uint8_t *start;
    int32_t *end;
    int failed;
    (void)self;
    if (!PyArg_ParseTuple(args, "OLOOOOOL", &nodes, &count, &names, &buffers, &powers, &out, &ends, &first))
        return NULL;
    if (first < 0)
        return PyErr_Format(PyExc_ValueError, "no such row");
    w.nodes = hold(&held, nodes, 0, count, sizeof(Node), NULL);
    w.names = hold(&held, names, 0, 0, 1, NULL);
    names_size = w.names ? held.views[held.count - 1].len : 0;
    w.powers = hold(&held, powers, 0, 2 * POWERS, 8, NULL);
    start = hold(&held, out, 1, 0, 1, NULL);
    room = start ? held.views[held.count - 1].len : 0;
    end = hold(&held, ends, 1, first + 1, 4, NULL);
    rows = end ? held.views[held.count - 1].len / 4 - 1 : 0;
    if (PyErr_Occurred() || hold_sources(&sources, buffers))
        goto done;
    room = room < INT32_MAX ? room : INT32_MAX;
    if (check_nodes(w.nodes, count, &sources, names_size) || w.nodes[0].length != rows || end[first] < 0 ||
        end[first] > room) {
        PyErr_SetString(PyExc_ValueError, "columns that leave their data");
        goto done;
    }
    w.buffers = sources.views;
    w.names_end = w.names + names_size;
    w.p = start + end[first];
    w.limit = start + room;
    row = first;
    Py_BEGIN_ALLOW_THREADS
    failed = write_rows(&w, start, end, &row, rows);
    Py_END_ALLOW_THREADS
    if (failed == BROKEN)
        PyErr_SetString(PyExc_ValueError, "offsets that leave their data");
    else
        result = PyLong_FromLongLong(row);
done:
    release_sources(&sources);
    release(&held);
    return result;
}

static PyMethodDef methods[] = {
    {"write_columns", write_columns, METH_VARARGS, "See write_kernel.CompiledWriter."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_write_kernel",
    .m_doc = "The compiled loop over rows to be written as JSON.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__write_kernel(void)
{
    return PyModuleDef_Init(&module);
}
