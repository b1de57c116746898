/* The compiled kernel: the loops over records that NumPy cannot express, in plain C on CPython's stable ABI.

   It knows buffers of bytes and of native integers, nothing of NumPy or Arrow; compiled_kernel.py wraps it and
   numpy_kernel.py is its twin: same results, same refusals. Bytes of a broker are untrusted: every read is bounded
   by the end of its record, every write by the size of its buffer, and no arithmetic on either can wrap. All loops
   run without the GIL. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAX_ENCODED_BYTES INT64_C(0x7FFFFFFF) /* batch_length is an int32 */

/* ---- buffers ------------------------------------------------------------------------------------------------ */

#define MAX_HELD 16

typedef struct {
    Py_buffer views[MAX_HELD];
    int count;
} Held;

typedef struct {
    Py_buffer *views;
    Py_ssize_t count;
} Sources;

static void release(Held *held)
{
    while (held->count)
        PyBuffer_Release(&held->views[--held->count]);
}

/* Return the memory of `object`, at least `items` of `size` bytes; NULL with an exception set. None is `absent`. */
static void *hold(Held *held, PyObject *object, int writable, int64_t items, int64_t size, void *absent)
{
    Py_buffer *view;
    if (object == Py_None)
        return absent;
    if (held->count == MAX_HELD) {
        PyErr_SetString(PyExc_SystemError, "too many buffers");
        return NULL;
    }
    view = &held->views[held->count];
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return NULL;
    held->count++;
    if (items < 0 || view->len / size < items) {
        PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes is too small", view->len);
        return NULL;
    }
    /* An empty buffer may have no address; NULL means failure here. */
    return view->buf ? view->buf : (void *)held;
}

static void release_sources(Sources *sources)
{
    while (sources->count)
        PyBuffer_Release(&sources->views[--sources->count]);
    PyMem_Free(sources->views);
    sources->views = NULL;
}

static int hold_sources(Sources *sources, PyObject *sequence)
{
    Py_ssize_t i, count = PySequence_Size(sequence);
    sources->views = NULL;
    sources->count = 0;
    if (count < 0)
        return -1;
    sources->views = PyMem_Calloc((size_t)count + 1, sizeof(Py_buffer));
    if (!sources->views) {
        PyErr_NoMemory();
        return -1;
    }
    for (i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        int failed = !item || PyObject_GetBuffer(item, &sources->views[i], PyBUF_SIMPLE) < 0;
        Py_XDECREF(item);
        if (failed) {
            release_sources(sources);
            return -1;
        }
        sources->count++;
    }
    return 0;
}

/* ---- varints ------------------------------------------------------------------------------------------------ */

static int64_t unzigzag(uint64_t raw)
{
    return (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
}

static uint64_t zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (value < 0 ? UINT64_MAX : 0);
}

/* Read a zigzag number of at most `max_bytes` whose last possible byte is at most `last`; NULL where there is none. */
static const uint8_t *read_long(const uint8_t *p, const uint8_t *end, int max_bytes, uint8_t last, int64_t *value)
{
    uint64_t raw = 0;
    int i;
    for (i = 0; i < max_bytes && p < end; i++) {
        uint8_t byte = *p++;
        if (i == max_bytes - 1 && byte > last)
            return NULL;
        raw |= (uint64_t)(byte & 0x7F) << (7 * i);
        if (byte < 0x80) {
            *value = unzigzag(raw);
            return p;
        }
    }
    return NULL;
}

static inline const uint8_t *read_varint(const uint8_t *p, const uint8_t *end, int64_t *value)
{
    if (end - p >= 2) {
        if (p[0] < 0x80) {
            *value = unzigzag(p[0]);
            return p + 1;
        }
        if (p[1] < 0x80) {
            *value = unzigzag((uint64_t)(p[0] & 0x7F) | (uint64_t)p[1] << 7);
            return p + 2;
        }
    }
    return read_long(p, end, 5, 0x0F, value);
}

static inline const uint8_t *read_varlong(const uint8_t *p, const uint8_t *end, int64_t *value)
{
    if (p < end && p[0] < 0x80) {
        *value = unzigzag(p[0]);
        return p + 1;
    }
    return read_long(p, end, 10, 0x01, value);
}

static inline int varint_size(int64_t value)
{
    uint64_t raw = zigzag(value);
    int size = 1;
    while (raw >= 0x80) {
        raw >>= 7;
        size++;
    }
    return size;
}

static inline uint8_t *write_varint(uint8_t *p, int64_t value)
{
    uint64_t raw = zigzag(value);
    while (raw >= 0x80) {
        *p++ = (uint8_t)(raw | 0x80);
        raw >>= 7;
    }
    *p++ = (uint8_t)raw;
    return p;
}

static int add_overflows(int64_t a, int64_t b)
{
    return b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b;
}

/* ---- decoding ----------------------------------------------------------------------------------------------- */

/* scanned.BATCH */
typedef struct {
    int64_t source, start, end, count, base_offset, last_offset_delta, timestamp, flags;
} Batch;

enum { SAME_TIMESTAMP = 1, DENSE = 2 };

/* scanned.ScannedRecords; NULL where not wanted */
typedef struct {
    int64_t *offset, *timestamp, *key_start, *value_start, *headers_start, *headers_end;
    int32_t *key_length, *value_length, *headers_count;
} Scanned;

/* Read a length and step over what it measures; `start` and `length` say where that lies. */
static inline const uint8_t *read_span(
    const uint8_t *p, const uint8_t *end, int64_t least, const uint8_t **start, int64_t *length)
{
    p = read_varint(p, end, length);
    if (!p || *length < least || *length > end - p)
        return NULL;
    *start = p;
    return *length > 0 ? p + *length : p;
}

/* Scan one record; returns where it ends, or NULL where it breaks the format. */
static inline const uint8_t *scan_record(
    const uint8_t *p, const uint8_t *end, const uint8_t *base, const Batch *batch, int64_t *previous_delta,
    const Scanned *out, int64_t row)
{
    const uint8_t *key, *value;
    int64_t length, timestamp_delta, delta, key_length, value_length, headers_count;
    if (!(p = read_varint(p, end, &length)) || length < 0 || length > end - p)
        return NULL;
    end = p + length;
#if defined(__GNUC__)
    __builtin_prefetch(end);
#endif
    if (p == end)
        return NULL;
    p++; /* attributes: none is defined */
    if (!(p = read_varlong(p, end, &timestamp_delta)) || !(p = read_varint(p, end, &delta)))
        return NULL;
    if (delta <= *previous_delta || delta > batch->last_offset_delta)
        return NULL;
    if (!(batch->flags & SAME_TIMESTAMP)) {
        if (add_overflows(batch->timestamp, timestamp_delta))
            return NULL;
    } else
        timestamp_delta = 0;
    if (!(p = read_span(p, end, -1, &key, &key_length)) || !(p = read_span(p, end, -1, &value, &value_length)))
        return NULL;
    if (!(p = read_varint(p, end, &headers_count)) || headers_count < 0 || headers_count > (end - p) / 2)
        return NULL;
    if (!headers_count && p != end)
        return NULL;
    *previous_delta = delta;
    out->offset[row] = batch->base_offset + delta;
    if (out->timestamp)
        out->timestamp[row] = batch->timestamp + timestamp_delta;
    if (out->key_start) {
        out->key_start[row] = key - base;
        out->key_length[row] = (int32_t)key_length;
    }
    if (out->value_start) {
        out->value_start[row] = value - base;
        out->value_length[row] = (int32_t)value_length;
    }
    if (out->headers_start) {
        out->headers_start[row] = p - base;
        out->headers_end[row] = end - base;
        out->headers_count[row] = (int32_t)headers_count;
    }
    return end;
}

static void fill_dense(const Batch *batch, const Scanned *out, int64_t row)
{
    int64_t i;
    for (i = 0; i < batch->count; i++) {
        out->offset[row + i] = batch->base_offset + i;
        if (out->timestamp)
            out->timestamp[row + i] = batch->timestamp;
    }
}

/* Returns 1 where all is well; else 0, with the batch, the record and its position in `bad`. */
static int scan_batches(const Sources *sources, const Batch *batches, int64_t count, const Scanned *out, int64_t *bad)
{
    int64_t b, i, row = 0;
    for (b = 0; b < count; b++) {
        const Batch *batch = &batches[b];
        const uint8_t *base, *p, *end, *next;
        int64_t previous_delta = -1;
        if (batch->flags & DENSE) {
            fill_dense(batch, out, row);
            row += batch->count;
            continue;
        }
        base = sources->views[batch->source].buf;
        p = base + batch->start;
        end = base + batch->end;
        for (i = 0; i < batch->count; i++, p = next)
            if (!(next = scan_record(p, end, base, batch, &previous_delta, out, row + i)))
                break;
        if (i < batch->count || p != end) {
            bad[0] = b;
            bad[1] = i;
            bad[2] = p - base;
            return 0;
        }
        row += batch->count;
    }
    return 1;
}

/* Check that the batches lie in their sources and that `rows` is the sum of their counts. */
static int check_batches(const Sources *sources, const Batch *batches, int64_t count, int64_t rows)
{
    int64_t b;
    for (b = 0; b < count; b++) {
        const Batch *batch = &batches[b];
        if (batch->count < 0 || batch->count > rows || batch->source < 0 || batch->source >= sources->count ||
            batch->start < 0 || batch->start > batch->end || batch->end > sources->views[batch->source].len)
            return 0;
        rows -= batch->count;
    }
    return 1;
}

static PyObject *scan_records(PyObject *self, PyObject *args)
{
    PyObject *sequence, *batch_table, *columns[9];
    Held held = {.count = 0};
    Sources sources;
    Scanned out;
    const Batch *batches;
    int64_t n, rows, bad[3];
    int good, i;
    void *memory[9];
    static const int sizes[9] = {8, 8, 8, 4, 8, 4, 8, 8, 4};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOO", &sequence, &batch_table, &columns[0], &columns[1], &columns[2],
                          &columns[3], &columns[4], &columns[5], &columns[6], &columns[7], &columns[8]))
        return NULL;
    if (hold_sources(&sources, sequence) < 0)
        return NULL;
    if (!(batches = hold(&held, batch_table, 0, 0, sizeof(Batch), NULL)) ||
        !hold(&held, columns[0], 1, 0, 8, NULL)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "batches and offset must be buffers");
        goto failed;
    }
    n = held.views[0].len / (int64_t)sizeof(Batch);
    rows = held.views[1].len / 8;
    memory[0] = held.views[1].buf;
    for (i = 1; i < 9; i++)
        if (!(memory[i] = hold(&held, columns[i], 1, rows, sizes[i], &bad)))
            goto failed;
        else if (memory[i] == &bad)
            memory[i] = NULL;
    if (!check_batches(&sources, batches, n, rows) || !memory[2] != !memory[3] || !memory[4] != !memory[5] ||
        !memory[6] != !memory[7] || !memory[6] != !memory[8]) {
        PyErr_SetString(PyExc_ValueError, "batches and buffers do not fit each other");
        goto failed;
    }
    out = (Scanned){.offset = memory[0], .timestamp = memory[1], .key_start = memory[2], .key_length = memory[3],
                    .value_start = memory[4], .value_length = memory[5], .headers_start = memory[6],
                    .headers_end = memory[7], .headers_count = memory[8]};
    Py_BEGIN_ALLOW_THREADS
    good = scan_batches(&sources, batches, n, &out, bad);
    Py_END_ALLOW_THREADS
    release(&held);
    release_sources(&sources);
    if (good)
        Py_RETURN_NONE;
    return Py_BuildValue("LLL", (long long)bad[0], (long long)bad[1], (long long)bad[2]);
failed:
    release(&held);
    release_sources(&sources);
    return NULL;
}

/* Rows that lie in one source after the other: rows up to ends[i] lie in source owners[i]. */
typedef struct {
    const int64_t *ends, *owners;
    int64_t count;
} Runs;

static int check_runs(const Runs *runs, const Sources *sources, int64_t rows)
{
    int64_t i, before = 0;
    for (i = 0; i < runs->count; i++) {
        if (runs->ends[i] < before || runs->owners[i] < 0 || runs->owners[i] >= sources->count)
            return 0;
        before = runs->ends[i];
    }
    return before == rows;
}

static inline void copy_bytes(uint8_t *to, int64_t room, const uint8_t *from, int64_t left, int64_t length)
{
    /* A copy of fixed size is one or two instructions; it may touch what lies behind as long as that is there. */
    if (length <= 16 && room >= 16 && left >= 16)
        memcpy(to, from, 16);
    else
        memcpy(to, from, (size_t)length);
}

static int gather_rows(const Sources *sources, const Runs *runs, const int64_t *starts, const int32_t *lengths,
                       int32_t *offsets, uint8_t *validity, uint8_t *data, int64_t capacity)
{
    int64_t run, row = 0, at = 0;
    offsets[0] = 0;
    for (run = 0; run < runs->count; run++) {
        const Py_buffer *view = &sources->views[runs->owners[run]];
        const uint8_t *base = view->buf;
        for (; row < runs->ends[run]; row++) {
            int64_t start = starts[row], length = lengths[row];
            if (length < 0) {
                if (validity)
                    validity[row >> 3] &= (uint8_t)~(1u << (row & 7));
            } else {
                if (start < 0 || start > view->len || length > view->len - start || length > capacity - at)
                    return 0;
                copy_bytes(data + at, capacity - at, base + start, view->len - start, length);
                at += length;
            }
            offsets[row + 1] = (int32_t)at;
        }
    }
    return at == capacity;
}

static PyObject *gather(PyObject *self, PyObject *args)
{
    PyObject *sequence, *o_ends, *o_owners, *o_starts, *o_lengths, *o_offsets, *o_validity, *o_data;
    Held held = {.count = 0};
    Sources sources;
    Runs runs;
    const int64_t *starts;
    const int32_t *lengths;
    int32_t *offsets;
    uint8_t *validity, *data, absent;
    int64_t rows, capacity;
    int good;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOOOO", &sequence, &o_ends, &o_owners, &o_starts, &o_lengths, &o_offsets,
                          &o_validity, &o_data))
        return NULL;
    if (hold_sources(&sources, sequence) < 0)
        return NULL;
    if (!(runs.ends = hold(&held, o_ends, 0, 0, 8, NULL)))
        goto failed;
    runs.count = held.views[0].len / 8;
    if (!(runs.owners = hold(&held, o_owners, 0, runs.count, 8, NULL)) ||
        !(starts = hold(&held, o_starts, 0, 0, 8, NULL)))
        goto failed;
    rows = held.views[2].len / 8;
    if (!(lengths = hold(&held, o_lengths, 0, rows, 4, NULL)) ||
        !(offsets = hold(&held, o_offsets, 1, rows + 1, 4, NULL)) || !(data = hold(&held, o_data, 1, 0, 1, NULL)))
        goto failed;
    capacity = held.views[5].len;
    if (!(validity = hold(&held, o_validity, 1, (rows + 7) / 8, 1, &absent)))
        goto failed;
    if (validity == &absent)
        validity = NULL;
    if (capacity > INT32_MAX || !check_runs(&runs, &sources, rows)) {
        PyErr_SetString(PyExc_ValueError, "rows and buffers do not fit each other");
        goto failed;
    }
    Py_BEGIN_ALLOW_THREADS
    good = gather_rows(&sources, &runs, starts, lengths, offsets, validity, data, capacity);
    Py_END_ALLOW_THREADS
    if (!good) {
        PyErr_SetString(PyExc_ValueError, "the slices do not fit their sources or the output");
        goto failed;
    }
    release(&held);
    release_sources(&sources);
    Py_RETURN_NONE;
failed:
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a buffer is missing");
    release(&held);
    release_sources(&sources);
    return NULL;
}

typedef struct {
    int64_t *key_start, *value_start;
    int32_t *key_length, *value_length;
} Headers;

/* Returns -1 where all is well, else the first row whose headers break the format. */
static int64_t scan_header_rows(const Sources *sources, const Runs *runs, const int64_t *starts, const int64_t *limits,
                                const int32_t *counts, const Headers *out, int64_t capacity)
{
    int64_t run, row = 0, at = 0;
    int32_t i;
    for (run = 0; run < runs->count; run++) {
        const Py_buffer *view = &sources->views[runs->owners[run]];
        const uint8_t *base = view->buf;
        for (; row < runs->ends[run]; row++) {
            const uint8_t *p, *end;
            if (starts[row] < 0 || starts[row] > limits[row] || limits[row] > view->len)
                return row;
            p = base + starts[row];
            end = base + limits[row];
            for (i = 0; i < counts[row]; i++, at++) {
                const uint8_t *key, *value;
                int64_t key_length, value_length;
                if (at == capacity || !(p = read_span(p, end, 0, &key, &key_length)) ||
                    !(p = read_span(p, end, -1, &value, &value_length)))
                    return row;
                out->key_start[at] = key - base;
                out->key_length[at] = (int32_t)key_length;
                out->value_start[at] = value - base;
                out->value_length[at] = (int32_t)value_length;
            }
            if (p != end)
                return row;
        }
    }
    return -1;
}

static PyObject *scan_headers(PyObject *self, PyObject *args)
{
    PyObject *sequence, *o_ends, *o_owners, *o_starts, *o_limits, *o_counts, *o[4];
    Held held = {.count = 0};
    Sources sources;
    Runs runs;
    Headers out;
    const int64_t *starts, *limits;
    const int32_t *counts;
    int64_t rows, capacity, bad;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOO", &sequence, &o_ends, &o_owners, &o_starts, &o_limits, &o_counts, &o[0],
                          &o[1], &o[2], &o[3]))
        return NULL;
    if (hold_sources(&sources, sequence) < 0)
        return NULL;
    if (!(runs.ends = hold(&held, o_ends, 0, 0, 8, NULL)))
        goto failed;
    runs.count = held.views[0].len / 8;
    if (!(runs.owners = hold(&held, o_owners, 0, runs.count, 8, NULL)) ||
        !(starts = hold(&held, o_starts, 0, 0, 8, NULL)))
        goto failed;
    rows = held.views[2].len / 8;
    if (!(limits = hold(&held, o_limits, 0, rows, 8, NULL)) || !(counts = hold(&held, o_counts, 0, rows, 4, NULL)) ||
        !(out.key_start = hold(&held, o[0], 1, 0, 8, NULL)))
        goto failed;
    capacity = held.views[5].len / 8;
    if (!(out.key_length = hold(&held, o[1], 1, capacity, 4, NULL)) ||
        !(out.value_start = hold(&held, o[2], 1, capacity, 8, NULL)) ||
        !(out.value_length = hold(&held, o[3], 1, capacity, 4, NULL)))
        goto failed;
    if (!check_runs(&runs, &sources, rows)) {
        PyErr_SetString(PyExc_ValueError, "rows and buffers do not fit each other");
        goto failed;
    }
    Py_BEGIN_ALLOW_THREADS
    bad = scan_header_rows(&sources, &runs, starts, limits, counts, &out, capacity);
    Py_END_ALLOW_THREADS
    release(&held);
    release_sources(&sources);
    return PyLong_FromLongLong((long long)bad);
failed:
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a buffer is missing");
    release(&held);
    release_sources(&sources);
    return NULL;
}

/* ---- encoding ----------------------------------------------------------------------------------------------- */

/* An Arrow column of a binary kind; `offsets` is NULL where the column is absent: all null. */
typedef struct {
    const uint8_t *offsets, *data, *validity;
    int64_t data_bytes, rows, bit_offset;
    int wide;
} Column;

typedef struct {
    const int64_t *rows, *timestamps, *header_offsets;
    int64_t count;
    Column key, value, header_key, header_value;
} Records;

enum { ENCODE_BAD_COLUMN = -1, ENCODE_TIMESTAMP = -2, ENCODE_TOO_LARGE = -3, ENCODE_NO_ROOM = -4 };

/* (offsets, wide, data, validity or None, bit_offset), or None */
static int hold_column(Held *held, PyObject *tuple, Column *column)
{
    PyObject *offsets, *data, *validity;
    long long bit_offset;
    int wide;
    *column = (Column){.offsets = NULL};
    if (tuple == Py_None)
        return 0;
    if (!PyArg_ParseTuple(tuple, "OpOOL", &offsets, &wide, &data, &validity, &bit_offset))
        return -1;
    if (!(column->offsets = hold(held, offsets, 0, 1, wide ? 8 : 4, NULL)))
        return -1;
    column->rows = held->views[held->count - 1].len / (wide ? 8 : 4) - 1;
    if (!(column->data = hold(held, data, 0, 0, 1, NULL)))
        return -1;
    column->data_bytes = held->views[held->count - 1].len;
    column->wide = wide;
    column->bit_offset = bit_offset;
    if (validity != Py_None) {
        if (bit_offset < 0 || bit_offset > INT64_MAX - column->rows - 7)
            return -1;
        if (!(column->validity = hold(held, validity, 0, (bit_offset + column->rows + 7) / 8, 1, NULL)))
            return -1;
    }
    return 0;
}

/* Find a cell: its length (-1 is null) and its bytes; 0 where the column is malformed or has no such row. */
static inline int read_cell(const Column *column, int64_t row, int64_t *length, const uint8_t **bytes)
{
    int64_t start, end;
    *length = -1;
    *bytes = NULL;
    if (!column->offsets)
        return 1;
    if (row < 0 || row >= column->rows)
        return 0;
    if (column->validity) {
        int64_t bit = column->bit_offset + row;
        if (!(column->validity[bit >> 3] >> (bit & 7) & 1))
            return 1;
    }
    if (column->wide) {
        int64_t edges[2];
        memcpy(edges, column->offsets + 8 * row, sizeof edges);
        start = edges[0];
        end = edges[1];
    } else {
        int32_t edges[2];
        memcpy(edges, column->offsets + 4 * row, sizeof edges);
        start = edges[0];
        end = edges[1];
    }
    if (start < 0 || end < start || end > column->data_bytes)
        return 0;
    *length = end - start;
    *bytes = column->data + start;
    return 1;
}

static inline int64_t span_size(int64_t length)
{
    return varint_size(length) + (length > 0 ? length : 0);
}

static inline uint8_t *write_span(uint8_t *p, uint8_t *end, int64_t length, const uint8_t *bytes, const uint8_t *bytes_end)
{
    p = write_varint(p, length);
    if (length <= 0)
        return p;
    copy_bytes(p, end - p, bytes, bytes_end - bytes, length);
    return p + length;
}

/* Size of the headers of a row with their count; negative on failure. */
static int64_t headers_size(const Records *records, int64_t row)
{
    int64_t size, header, length;
    const uint8_t *bytes;
    if (!records->header_offsets)
        return 1;
    size = varint_size(records->header_offsets[row + 1] - records->header_offsets[row]);
    for (header = records->header_offsets[row]; header < records->header_offsets[row + 1]; header++) {
        if (!read_cell(&records->header_key, header, &length, &bytes) || length < 0)
            return ENCODE_BAD_COLUMN;
        size += span_size(length);
        if (!read_cell(&records->header_value, header, &length, &bytes))
            return ENCODE_BAD_COLUMN;
        size += span_size(length);
        if (size > MAX_ENCODED_BYTES)
            return ENCODE_TOO_LARGE;
    }
    return size;
}

static uint8_t *write_headers(const Records *records, int64_t row, uint8_t *p, uint8_t *end)
{
    const Column *key = &records->header_key, *value = &records->header_value;
    int64_t header, length;
    const uint8_t *bytes;
    if (!records->header_offsets)
        return write_varint(p, 0);
    p = write_varint(p, records->header_offsets[row + 1] - records->header_offsets[row]);
    for (header = records->header_offsets[row]; header < records->header_offsets[row + 1]; header++) {
        read_cell(key, header, &length, &bytes);
        p = write_span(p, end, length, bytes, key->data + key->data_bytes);
        read_cell(value, header, &length, &bytes);
        p = write_span(p, end, length, bytes, value->data + value->data_bytes);
    }
    return p;
}

/* What a record takes, and its parts. */
typedef struct {
    int64_t body, timestamp_delta, key_length, value_length;
    const uint8_t *key, *value;
} Measured;

static inline int64_t measure(const Records *records, int64_t i, int64_t row, int64_t base_timestamp, Measured *out)
{
    int64_t headers;
    if (!read_cell(&records->key, row, &out->key_length, &out->key) ||
        !read_cell(&records->value, row, &out->value_length, &out->value))
        return ENCODE_BAD_COLUMN;
    out->timestamp_delta = 0;
    if (records->timestamps) {
        int64_t timestamp = records->timestamps[row];
        if (base_timestamp < 0 ? timestamp > INT64_MAX + base_timestamp : timestamp < INT64_MIN + base_timestamp)
            return ENCODE_TIMESTAMP;
        out->timestamp_delta = timestamp - base_timestamp;
    }
    if ((headers = headers_size(records, row)) < 0)
        return headers;
    if (out->key_length > MAX_ENCODED_BYTES || out->value_length > MAX_ENCODED_BYTES)
        return ENCODE_TOO_LARGE;
    out->body = 1 + varint_size(out->timestamp_delta) + varint_size(i) + span_size(out->key_length) +
                span_size(out->value_length) + headers;
    return out->body;
}

/* Write the records to `out` (NULL: only measure); returns their size or what went wrong. */
static int64_t encode_rows(const Records *records, uint8_t *out, int64_t capacity, int64_t limit)
{
    const Column *key = &records->key, *value = &records->value;
    uint8_t *p = out, *end = out ? out + capacity : NULL;
    int64_t i, total = 0, base_timestamp = 0;
    if (records->timestamps && records->count)
        base_timestamp = records->timestamps[records->rows ? records->rows[0] : 0];
    for (i = 0; i < records->count; i++) {
        int64_t row = records->rows ? records->rows[i] : i, size;
        Measured m;
        if ((size = measure(records, i, row, base_timestamp, &m)) < 0)
            return size;
        total += size + varint_size(size);
        if (total >= limit)
            return ENCODE_TOO_LARGE;
        if (!out)
            continue;
        if (total > capacity)
            return ENCODE_NO_ROOM;
        p = write_varint(p, size);
        *p++ = 0; /* attributes: none is defined */
        p = write_varint(p, m.timestamp_delta);
        p = write_varint(p, i);
        p = write_span(p, end, m.key_length, m.key, key->data + key->data_bytes);
        p = write_span(p, end, m.value_length, m.value, value->data + value->data_bytes);
        p = write_headers(records, row, p, end);
    }
    return total;
}

/* Check that every row exists wherever it is looked up. */
static int check_rows(const Records *records, int64_t n, int64_t header_rows)
{
    int64_t i;
    if (records->rows)
        for (i = 0; i < records->count; i++)
            if (records->rows[i] < 0 || records->rows[i] >= n)
                return 0;
    if (!records->rows && records->count > n)
        return 0;
    if (records->header_offsets)
        for (i = 0; i < n; i++)
            if (records->header_offsets[i] < 0 || records->header_offsets[i] > records->header_offsets[i + 1] ||
                records->header_offsets[i + 1] > header_rows)
                return 0;
    return 1;
}

static PyObject *encode(PyObject *self, PyObject *args)
{
    PyObject *o_rows, *o_timestamps, *o_key, *o_value, *o_header_offsets, *o_header_key, *o_header_value, *o_out;
    Held held = {.count = 0};
    Records records;
    long long n, reserve;
    int64_t size, capacity = 0;
    uint8_t *out, absent;
    (void)self;
    if (!PyArg_ParseTuple(args, "LOOOOOOOOL", &n, &o_rows, &o_timestamps, &o_key, &o_value, &o_header_offsets,
                          &o_header_key, &o_header_value, &o_out, &reserve))
        return NULL;
    if (!(out = hold(&held, o_out, 1, 0, 1, &absent)))
        goto failed;
    if (out != &absent)
        capacity = held.views[0].len - reserve;
    records.count = n;
    if (o_rows != Py_None) {
        if (!(records.rows = hold(&held, o_rows, 0, 0, 8, NULL)))
            goto failed;
        records.count = held.views[held.count - 1].len / 8;
    } else
        records.rows = NULL;
    if (!(records.timestamps = hold(&held, o_timestamps, 0, n, 8, &absent)) ||
        !(records.header_offsets = hold(&held, o_header_offsets, 0, n + 1, 8, &absent)) ||
        hold_column(&held, o_key, &records.key) < 0 || hold_column(&held, o_value, &records.value) < 0 ||
        hold_column(&held, o_header_key, &records.header_key) < 0 ||
        hold_column(&held, o_header_value, &records.header_value) < 0)
        goto failed;
    if ((const void *)records.timestamps == &absent)
        records.timestamps = NULL;
    if ((const void *)records.header_offsets == &absent)
        records.header_offsets = NULL;
    if (n < 0 || reserve < 0 || capacity < 0 || !check_rows(&records, n, records.header_key.rows)) {
        PyErr_SetString(PyExc_ValueError, "rows and buffers do not fit each other");
        goto failed;
    }
    Py_BEGIN_ALLOW_THREADS
    size = encode_rows(&records, out == &absent ? NULL : out + reserve, capacity, MAX_ENCODED_BYTES - reserve);
    Py_END_ALLOW_THREADS
    release(&held);
    switch (size) {
    case ENCODE_TIMESTAMP:
        PyErr_SetString(PyExc_OverflowError, "two timestamps of one batch are more than 64 bits apart");
        return NULL;
    case ENCODE_TOO_LARGE:
        PyErr_SetString(PyExc_OverflowError, "the records do not fit one batch");
        return NULL;
    case ENCODE_BAD_COLUMN:
    case ENCODE_NO_ROOM:
        PyErr_SetString(PyExc_ValueError, "a column's offsets lie outside its data, or the output is too small");
        return NULL;
    default:
        return PyLong_FromLongLong((long long)size);
    }
failed:
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a buffer is missing");
    release(&held);
    return NULL;
}

/* ---- module ------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"scan_records", scan_records, METH_VARARGS, "See compiled_kernel.scan_records."},
    {"gather", gather, METH_VARARGS, "See compiled_kernel.gather_binary."},
    {"scan_headers", scan_headers, METH_VARARGS, "See compiled_kernel.scan_headers."},
    {"encode", encode, METH_VARARGS, "See compiled_kernel.encode_records."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_kernel",
    .m_doc = "The compiled loops over records.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&module);
}
