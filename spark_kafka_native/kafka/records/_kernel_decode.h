/* Decoding: the scan of the record chain, and the copy of keys, values and headers to their final place. */

#ifndef KERNEL_DECODE_H
#define KERNEL_DECODE_H

#include "../../kernel_headers/buffers.h"
#include "../../kernel_headers/varint.h"

/* scan.BATCH */
typedef struct {
    int64_t source, start, end, count, base_offset, last_offset_delta, timestamp, flags;
} Batch;

enum { SAME_TIMESTAMP = 1, DENSE = 2 };

/* scan.ScannedRecords; NULL if not wanted */
typedef struct {
    int64_t *offset, *timestamp, *key_start, *value_start, *headers_start, *headers_end;
    int32_t *key_length, *value_length, *headers_count;
} Scanned;

static int add_overflows(int64_t a, int64_t b)
{
    return b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b;
}

/* Read a length and skip as many bytes; `start` and `length` return their position. */
static inline const uint8_t *read_span(
    const uint8_t *p, const uint8_t *end, int64_t least, const uint8_t **start, int64_t *length)
{
    p = read_varint(p, end, length);
    if (!p || *length < least || *length > end - p)
        return NULL;
    *start = p;
    return *length > 0 ? p + *length : p;
}

/* Scan one record; returns its end, or NULL if it breaks the format. */
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

/* Returns 1 on success; else 0, with the batch, the record and its position in `bad`. */
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

/* Returns -1 on success, else the first row with headers that break the format. */
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

#endif
