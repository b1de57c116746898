/* Encoding: from Arrow columns to the bytes of records, measured first and then written. */

#ifndef KERNEL_ENCODE_H
#define KERNEL_ENCODE_H

#include "../../kernel_headers/buffers.h"
#include "../../kernel_headers/varint.h"

#define MAX_ENCODED_BYTES INT64_C(0x7FFFFFFF) /* batch_length is an int32 */

/* An Arrow column of a binary kind; `offsets` is NULL if the column is absent: all null. */
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

/* Write the headers of a row; NULL if they differ from the measured ones. The owner of the columns may write to them
   meanwhile: this is a second reading, and only `record_end` limits how much of it fits. */
static uint8_t *write_headers(const Records *records, int64_t row, uint8_t *p, const uint8_t *record_end, uint8_t *end)
{
    const Column *key = &records->header_key, *value = &records->header_value;
    int64_t header, first, stop, length;
    const uint8_t *bytes;
    if (!records->header_offsets)
        return write_varint(p, 0);
    first = records->header_offsets[row];
    stop = records->header_offsets[row + 1];
    if (varint_size(stop - first) > record_end - p)
        return NULL;
    p = write_varint(p, stop - first);
    for (header = first; header < stop; header++) {
        if (!read_cell(key, header, &length, &bytes) || span_size(length) > record_end - p)
            return NULL;
        p = write_span(p, end, length, bytes, key->data + key->data_bytes);
        if (!read_cell(value, header, &length, &bytes) || span_size(length) > record_end - p)
            return NULL;
        p = write_span(p, end, length, bytes, value->data + value->data_bytes);
    }
    return p;
}

/* The size of a record, and its parts. */
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

/* Write the records to `out` (NULL: only measure); returns their size or an error. */
static int64_t encode_rows(const Records *records, uint8_t *out, int64_t capacity, int64_t limit)
{
    const Column *key = &records->key, *value = &records->value;
    uint8_t *p = out, *end = out ? out + capacity : NULL;
    int64_t i, total = 0, base_timestamp = 0;
    if (records->timestamps && records->count)
        base_timestamp = records->timestamps[records->rows ? records->rows[0] : 0];
    for (i = 0; i < records->count; i++) {
        int64_t row = records->rows ? records->rows[i] : i, size;
        const uint8_t *record_end;
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
        record_end = p + size;
        *p++ = 0; /* attributes: none is defined */
        p = write_varint(p, m.timestamp_delta);
        p = write_varint(p, i);
        p = write_span(p, end, m.key_length, m.key, key->data + key->data_bytes);
        p = write_span(p, end, m.value_length, m.value, value->data + value->data_bytes);
        if ((p = write_headers(records, row, p, record_end, end)) != record_end)
            return ENCODE_BAD_COLUMN;
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
    case ENCODE_NO_ROOM:
        Py_RETURN_NONE;
    case ENCODE_BAD_COLUMN:
        PyErr_SetString(PyExc_ValueError, "a column's offsets lie outside its data, or were changed meanwhile");
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

#endif
