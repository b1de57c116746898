/* Arrow's arrays while they grow: bytes for validity until the end, the rest in Arrow's own layouts. */

#ifndef BUILDERS_H
#define BUILDERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* See avro/program.py. */
enum { B_NULL, B_BOOL, B_FIXED, B_BYTES, B_LIST, B_STRUCT };

typedef struct {
    int32_t kind, width, child, count; /* `count` builders of its parts, from links[child] on */
    int64_t weight;                    /* builders in it, itself included */
    int64_t length, room, nulls;
    int64_t data_length, data_room; /* of B_BYTES */
    uint8_t *valid;                 /* one byte for each value; NULL while there is no null */
    uint8_t *data;
    int32_t *offsets;
} Builder;

#define NO_MEMORY (-1)
#define TOO_LARGE (-2)

static int resize(void *place, int64_t size)
{
    void **memory = place, *moved = realloc(*memory, (size_t)(size ? size : 1));
    if (!moved)
        return NO_MEMORY;
    *memory = moved;
    return 0;
}

static int has_offsets(const Builder *b)
{
    return b->kind == B_BYTES || b->kind == B_LIST;
}

static int64_t value_width(const Builder *b)
{
    return b->kind == B_FIXED ? b->width : b->kind == B_BOOL;
}

static int widen(Builder *b)
{
    int64_t room = b->room ? 2 * b->room : 64;
    if (b->valid && resize(&b->valid, room))
        return NO_MEMORY;
    if (value_width(b) && resize(&b->data, room * value_width(b)))
        return NO_MEMORY;
    if (has_offsets(b)) {
        if (resize(&b->offsets, (room + 1) * 4))
            return NO_MEMORY;
        if (!b->room)
            b->offsets[0] = 0;
    }
    b->room = room;
    return 0;
}

/* Room for one more value, which is valid; its data is for the caller to write, at `length` - 1. */
static inline int append(Builder *b)
{
    if (b->length == b->room && widen(b))
        return NO_MEMORY;
    if (b->valid)
        b->valid[b->length] = 1;
    b->length++;
    return 0;
}

/* An integer of the builder's width; `too_large` is returned for one that has no place in it. */
static inline int append_integer(Builder *b, int64_t value, int too_large)
{
    if (b->width < 8 && (value < -(1LL << (8 * b->width - 1)) || value >= 1LL << (8 * b->width - 1)))
        return too_large;
    if (append(b))
        return NO_MEMORY;
    switch (b->width) {
    case 1:
        ((int8_t *)b->data)[b->length - 1] = (int8_t)value;
        return 0;
    case 2:
        ((int16_t *)b->data)[b->length - 1] = (int16_t)value;
        return 0;
    case 4:
        ((int32_t *)b->data)[b->length - 1] = (int32_t)value;
        return 0;
    }
    ((int64_t *)b->data)[b->length - 1] = value;
    return 0;
}

static int append_null(Builder *all, const int32_t *links, Builder *b)
{
    int32_t i;
    if (append(b))
        return NO_MEMORY;
    if (!b->valid && b->kind != B_NULL) {
        if (resize(&b->valid, b->room))
            return NO_MEMORY;
        memset(b->valid, 1, (size_t)b->length);
    }
    b->nulls++;
    if (b->valid)
        b->valid[b->length - 1] = 0;
    if (has_offsets(b))
        b->offsets[b->length] = b->offsets[b->length - 1];
    if (value_width(b))
        memset(b->data + (b->length - 1) * value_width(b), 0, (size_t)value_width(b));
    if (b->kind == B_STRUCT)
        for (i = 0; i < b->count; i++)
            if (append_null(all, links, &all[links[b->child + i]]))
                return NO_MEMORY;
    return 0;
}

static inline uint8_t *append_bytes(Builder *b, int64_t size, int *failed)
{
    uint8_t *place;
    if (b->data_length + size > INT32_MAX) {
        *failed = TOO_LARGE;
        return NULL;
    }
    if (!b->data || b->data_length + size > b->data_room) {
        int64_t room = 2 * b->data_room + size + 1024;
        if (resize(&b->data, room)) {
            *failed = NO_MEMORY;
            return NULL;
        }
        b->data_room = room;
    }
    if (append(b)) {
        *failed = NO_MEMORY;
        return NULL;
    }
    place = b->data + b->data_length;
    b->data_length += size;
    b->offsets[b->length] = (int32_t)b->data_length;
    return place;
}

/* Take back all values but the first `length`. */
static void truncate_to(Builder *all, const int32_t *links, Builder *b, int64_t length)
{
    int32_t i;
    if (b->length > length) {
        if (b->valid)
            for (int64_t row = length; row < b->length; row++)
                b->nulls -= !b->valid[row];
        else if (b->kind == B_NULL)
            b->nulls = length;
        b->length = length;
    }
    if (b->kind == B_BYTES)
        b->data_length = b->offsets && length ? b->offsets[length] : 0;
    /* The parts may be longer than their whole says: that of a list ends where its last value ends. */
    for (i = 0; i < b->count; i++)
        truncate_to(all, links, &all[links[b->child + i]],
                    b->kind == B_STRUCT ? length : b->offsets && length ? b->offsets[length] : 0);
}

static PyObject *pack(const uint8_t *values, int64_t length)
{
    PyObject *packed = PyBytes_FromStringAndSize(NULL, (length + 7) / 8);
    uint8_t *bits;
    int64_t i;
    if (!packed)
        return NULL;
    bits = (uint8_t *)PyBytes_AsString(packed);
    memset(bits, 0, (size_t)((length + 7) / 8));
    for (i = 0; i < length; i++)
        bits[i >> 3] |= (uint8_t)(values[i] << (i & 7));
    return packed;
}

static PyObject *none(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

/* (length, nulls, validity, offsets, data), as Python objects; the memory is given up on the way. */
static PyObject *finish(Builder *b)
{
    static const int32_t zero = 0;
    int64_t size = b->kind == B_BYTES ? b->data_length : b->length * value_width(b);
    PyObject *valid, *offsets, *data;
    valid = b->nulls && b->valid ? pack(b->valid, b->length) : none();
    free(b->valid);
    b->valid = NULL;
    offsets = !has_offsets(b) ? none()
                              : PyBytes_FromStringAndSize((const char *)(b->length ? b->offsets : &zero),
                                                          (Py_ssize_t)(b->length + 1) * 4);
    free(b->offsets);
    b->offsets = NULL;
    data = b->kind == B_BOOL                       ? pack(b->data, b->length)
           : b->kind == B_FIXED || b->kind == B_BYTES ? PyBytes_FromStringAndSize((const char *)b->data, size)
                                                      : none();
    free(b->data);
    b->data = NULL;
    if (!valid || !offsets || !data) {
        Py_XDECREF(valid);
        Py_XDECREF(offsets);
        Py_XDECREF(data);
        return NULL;
    }
    return Py_BuildValue("LLNNN", (long long)b->length, (long long)b->nulls, valid, offsets, data);
}

#endif
