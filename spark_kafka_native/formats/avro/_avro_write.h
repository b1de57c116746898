/* Columns into payloads: `write_value` runs the program of write_program.py over Arrow's buffers. */

#ifndef AVRO_WRITE_H
#define AVRO_WRITE_H

#include "../../kernel_headers/buffers.h"
#include "../../kernel_headers/varint.h"
#include "../_builders.h"

/* See program.py. */
enum { W_NOTHING, W_BOOL, W_INTEGER, W_RAW, W_BYTES, W_FIXED, W_DECIMAL, W_RECORD, W_ARRAY, W_MAP, W_OPTIONAL,
       W_MEMBERS, W_CONSTANT };
enum { BAD_NULL = 1, BAD_SIZE, BAD_DIGITS, BAD_MEMBERS, BAD_COLUMN, BAD_LARGE };

typedef struct {
    int32_t op, column, child, count, a, b;
} Step;

typedef struct {
    int64_t length, first, data_size;
    const uint8_t *valid, *data;
    const int32_t *offsets;
} Column;

typedef struct {
    const Step *steps;
    const int32_t *links;
    const uint8_t *constants;
    const Column *columns;
    uint8_t *out;
    int64_t size, room;
    int32_t failed; /* the step */
} Writing;

/* Room for `size` more bytes, at `place`. */
static inline int claim(Writing *w, int64_t size, uint8_t **place)
{
    if (w->size + size > INT32_MAX)
        return TOO_LARGE;
    if (w->size + size > w->room) {
        int64_t room = 2 * w->room + size + 4096;
        if (resize(&w->out, room))
            return NO_MEMORY;
        w->room = room;
    }
    *place = w->out + w->size;
    w->size += size;
    return 0;
}

static inline int put_number(Writing *w, int64_t value)
{
    uint8_t *place;
    int failed = claim(w, 10, &place);
    if (failed)
        return failed;
    w->size -= 10 - (write_varint(place, value) - place);
    return 0;
}

static inline int put_copy(Writing *w, const uint8_t *from, int64_t size)
{
    uint8_t *place;
    int failed;
    if (!size)
        return 0; /* there may be no memory yet */
    if ((failed = claim(w, size, &place)))
        return failed;
    memcpy(place, from, (size_t)size);
    return 0;
}

static inline int is_null(const Column *c, int64_t row)
{
    int64_t bit = c->first + row;
    return c->valid && !(c->valid[bit >> 3] >> (bit & 7) & 1);
}

static int64_t integer_at(const uint8_t *data, int width, int64_t i)
{
    switch (width) {
    case 1:
        return ((const int8_t *)data)[i];
    case 2:
        return ((const int16_t *)data)[i];
    case 4:
        return ((const int32_t *)data)[i];
    }
    return ((const int64_t *)data)[i];
}

/* `factor`: to multiply by, or if negative, to divide by. */
static int put_scaled(Writing *w, int64_t value, int64_t factor)
{
    if (factor > 1) {
        if (value > INT64_MAX / factor || value < INT64_MIN / factor)
            return BAD_LARGE;
        value *= factor;
    } else if (factor < -1)
        value = value / -factor - (value % -factor < 0);
    return put_number(w, value);
}

/* The edges of a value between offsets; 0 if they leave `limit`. */
static int edges(const Column *c, int64_t row, int64_t limit, int64_t *from, int64_t *to)
{
    *from = c->offsets[c->first + row];
    *to = c->offsets[c->first + row + 1];
    return 0 <= *from && *from <= *to && *to <= limit;
}

/* `width`: of the value, 16 or 32 bytes. */
static inline int put_decimal_of(Writing *w, const Step *step, const uint8_t *from, int width)
{
    uint8_t bytes[32], fill = from[width - 1] & 0x80 ? 0xFF : 0;
    int64_t used = width, size = step->a;
    int i, failed;
    uint8_t *place;
    for (i = 0; i < width; i++)
        bytes[i] = from[width - 1 - i];
    while (used > 1 && bytes[width - used] == fill && (bytes[width + 1 - used] & 0x80) == (fill & 0x80))
        used--;
    if (size < 0) {
        if ((failed = put_number(w, used)))
            return failed;
        size = used;
    }
    if (used > size)
        return BAD_DIGITS;
    if ((failed = claim(w, size, &place)))
        return failed;
    memset(place, fill, (size_t)(size - used));
    memcpy(place + size - used, bytes + width - used, (size_t)used);
    return 0;
}

static int write_value(Writing *w, int32_t at, int64_t row);

static int write_items(Writing *w, const Step *step, int64_t row)
{
    const Column *c = &w->columns[step->column];
    int64_t from, to, item;
    int failed;
    if (!edges(c, row, c->data_size, &from, &to))
        return BAD_COLUMN;
    if (from < to && (failed = put_number(w, to - from)))
        return failed;
    for (item = from; item < to; item++)
        for (int32_t i = 0; i < step->count; i++) {
            int bad = write_value(w, w->links[step->child + i], item);
            if (bad)
                return bad;
        }
    return put_number(w, 0);
}

static int write_members(Writing *w, const Step *step, int64_t row)
{
    int32_t i, found = -1;
    for (i = 0; i < step->count; i++) {
        const Step *member = &w->steps[w->links[step->child + i]];
        if (is_null(&w->columns[member->column], row))
            continue;
        if (found >= 0)
            return BAD_MEMBERS;
        found = i;
    }
    if (found < 0)
        return step->a < 0 ? BAD_MEMBERS : put_number(w, step->a);
    return write_value(w, w->links[step->child + found], row);
}

/* `a`: the branch of null in a union, -1 if null is not allowed; `b`: the branch of the value, -1 if no union. */
static int write_optional(Writing *w, const Step *step, int64_t row)
{
    int failed;
    if (is_null(&w->columns[step->column], row))
        return step->a < 0 ? BAD_NULL : put_number(w, step->a);
    if (step->b >= 0 && (failed = put_number(w, step->b)))
        return failed;
    return write_value(w, w->links[step->child], row);
}

static int write_block(Writing *w, const Step *step, int64_t row)
{
    const Column *c = &w->columns[step->column];
    int64_t from, to;
    int failed;
    if (!edges(c, row, c->data_size, &from, &to))
        return BAD_COLUMN;
    if (step->op == W_FIXED && to - from != step->a)
        return BAD_SIZE;
    if (step->op == W_BYTES && (failed = put_number(w, to - from)))
        return failed;
    return put_copy(w, c->data + from, to - from);
}

static int write_step(Writing *w, const Step *step, int64_t row)
{
    /* A constant has no column. */
    const Column *c = &w->columns[step->column < 0 ? 0 : step->column];
    int64_t i = c->first + row;
    uint8_t bit;
    switch (step->op) {
    case W_BOOL:
        bit = c->data[i >> 3] >> (i & 7) & 1;
        return put_copy(w, &bit, 1);
    case W_INTEGER:
        return put_scaled(w, integer_at(c->data, step->a, i), step->b);
    case W_RAW:
        return put_copy(w, c->data + i * step->a, step->a);
    case W_BYTES:
    case W_FIXED:
        return write_block(w, step, row);
    case W_DECIMAL:
        if (step->b == 32)
            return put_decimal_of(w, step, c->data + i * 32, 32);
        return put_decimal_of(w, step, c->data + i * 16, 16);
    case W_ARRAY:
    case W_MAP:
        return write_items(w, step, row);
    case W_OPTIONAL:
        return write_optional(w, step, row);
    case W_MEMBERS:
        return write_members(w, step, row);
    case W_CONSTANT:
        return put_copy(w, w->constants + step->a, step->b);
    case W_RECORD:
        for (int32_t part = 0; part < step->count; part++) {
            int bad = write_value(w, w->links[step->child + part], row);
            if (bad)
                return bad;
        }
    }
    return 0; /* W_NOTHING */
}

/* Returns 0, why the row can't be written (> 0), or NO_MEMORY or TOO_LARGE. */
static int write_value(Writing *w, int32_t at, int64_t row)
{
    int bad = write_step(w, &w->steps[at], row);
    if (bad > 0 && w->failed < 0)
        w->failed = at;
    return bad;
}

#endif
