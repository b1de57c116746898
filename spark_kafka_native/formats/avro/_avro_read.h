/* Payloads into columns: `read_value` runs the program of read_program.py. The bytes are untrusted. */

#ifndef AVRO_READ_H
#define AVRO_READ_H

#include "../../kernel_headers/buffers.h"
#include "../../kernel_headers/varint.h"
#include "../_utf8.h"
#include "../_builders.h"

/* See program.py. */
enum { R_NULL, R_BOOL, R_INT, R_LONG, R_FLOAT, R_DOUBLE, R_BYTES, R_FIXED, R_DECIMAL, R_DECIMAL_FIXED, R_UUID,
       R_ENUM, R_RECORD, R_ARRAY, R_MAP, R_UNION, R_MEMBER, R_DEFAULT, R_FAIL };
enum { BAD_END = 1, BAD_LEFT_OVER, BAD_VARINT, BAD_LENGTH, BAD_UTF8, BAD_BOOL, BAD_SYMBOL, BAD_BRANCH, BAD_DECIMAL,
       BAD_COUNT, BAD_EXPANSION, BAD_RANGE, BAD_UNKNOWN_SYMBOL, BAD_RESOLUTION, BAD_BLOCK, BAD_KEY_TWICE };
enum { AS_INTEGER, AS_FLOAT, AS_DOUBLE, AS_TIME_MICROS, AS_TIME_NANOS };

#define MAX_STEPS 16 /* in the table of a map's keys, for each key; two are usual */

typedef struct {
    int32_t op, target, child, count, a, b;
} Node;

typedef struct {
    const Node *nodes;
    const int32_t *links;
    const uint8_t *constants;
    Builder *builders;
    int64_t credit; /* values that the payload may still give without a byte of its own */
    int32_t failed; /* the node */
} Reading;

static int read_value(Reading *r, int32_t at, const uint8_t **p, const uint8_t *end);

/* Any builder where there is none: it is not touched. */
static inline Builder *target_of(Reading *r, int32_t target)
{
    return &r->builders[target < 0 ? 0 : target];
}

static int read_number(const uint8_t **p, const uint8_t *end, int bytes, int64_t *value)
{
    const uint8_t *after = bytes == 5 ? read_varint(*p, end, value) : read_varlong(*p, end, value);
    if (!after) {
        const uint8_t *q = *p;
        while (q < end && q - *p < bytes && *q >= 0x80)
            q++;
        return q == end && q - *p < bytes ? BAD_END : BAD_VARINT;
    }
    *p = after;
    return 0;
}

static int read_length(const uint8_t **p, const uint8_t *end, int64_t *length)
{
    int bad = read_number(p, end, 10, length);
    if (bad)
        return bad;
    return *length < 0 ? BAD_LENGTH : *length > end - *p ? BAD_END : 0;
}

static inline int put_integer(Builder *b, int64_t value)
{
    return append_integer(b, value, BAD_RANGE);
}

static int put_float(Builder *b, float value)
{
    if (append(b))
        return NO_MEMORY;
    ((float *)b->data)[b->length - 1] = value;
    return 0;
}

static int put_double(Builder *b, double value)
{
    if (append(b))
        return NO_MEMORY;
    ((double *)b->data)[b->length - 1] = value;
    return 0;
}

static int read_integer(Reading *r, const Node *node, const uint8_t **p, const uint8_t *end)
{
    int64_t value;
    int bad = read_number(p, end, node->op == R_INT ? 5 : 10, &value);
    Builder *b = target_of(r, node->target);
    if (bad || node->target < 0)
        return bad;
    if (node->a == AS_FLOAT)
        return put_float(b, (float)value);
    if (node->a == AS_DOUBLE)
        return put_double(b, (double)value);
    if (node->b > 1) {
        if (value > INT64_MAX / node->b || value < INT64_MIN / node->b)
            return BAD_RANGE;
        value *= node->b;
    } else if (node->b < -1) {
        int64_t divisor = -(int64_t)node->b;
        value = value / divisor - (value % divisor < 0);
    }
    if (node->a != AS_INTEGER && (value < 0 || value / (node->a == AS_TIME_MICROS ? 1000000 : 1000000000) >= 86400))
        return BAD_RANGE;
    return put_integer(b, value);
}

static int read_real(Reading *r, const Node *node, const uint8_t **p, const uint8_t *end)
{
    float single;
    double wide;
    int size = node->op == R_FLOAT ? 4 : 8;
    Builder *b = target_of(r, node->target);
    if (end - *p < size)
        return BAD_END;
    if (size == 4)
        memcpy(&single, *p, 4);
    else
        memcpy(&wide, *p, 8);
    *p += size;
    if (node->target < 0)
        return 0;
    if (size == 8)
        return put_double(b, wide);
    return b->width == 8 ? put_double(b, (double)single) : put_float(b, single);
}

/* `left`: the bytes that can be read from `from` on. */
static inline int put_bytes(Builder *b, const uint8_t *from, int64_t size, int64_t left)
{
    int failed = 0;
    uint8_t *place = append_bytes(b, size, &failed);
    if (!place)
        return failed;
    copy_bytes(place, b->data_room - b->data_length + size, from, left, size);
    return 0;
}

static int put_uuid(Builder *b, const uint8_t *from)
{
    static const char digits[] = "0123456789abcdef";
    int failed = 0, i;
    uint8_t *place = append_bytes(b, 36, &failed);
    if (!place)
        return failed;
    for (i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *place++ = '-';
        *place++ = (uint8_t)digits[from[i] >> 4];
        *place++ = (uint8_t)digits[from[i] & 15];
    }
    return 0;
}

/* A big-endian number of any size as 16 bytes, little-endian, of at most `digits` digits. */
static int put_decimal(Builder *b, const uint8_t *from, int64_t size, int digits)
{
    uint8_t fill = size && (from[0] & 0x80) ? 0xFF : 0, *place;
    unsigned __int128 number = fill ? ~(unsigned __int128)0 : 0, limit = 1, amount;
    int i;
    if (!size)
        return BAD_DECIMAL;
    while (size > 16) {
        if (*from != fill)
            return BAD_DECIMAL;
        from++;
        size--;
    }
    if (size == 16 && (from[0] & 0x80) != (fill & 0x80))
        return BAD_DECIMAL;
    for (i = 0; i < size; i++)
        number = number << 8 | from[i];
    amount = fill ? ~number + 1 : number;
    for (i = 0; i < digits; i++)
        limit *= 10;
    if (amount >= limit)
        return BAD_DECIMAL;
    if (append(b))
        return NO_MEMORY;
    place = b->data + (b->length - 1) * 16;
    for (i = 0; i < 16; i++, number >>= 8)
        place[i] = (uint8_t)number;
    return 0;
}

static int read_block(Reading *r, const Node *node, const uint8_t **p, const uint8_t *end)
{
    int64_t size = node->b;
    int bad;
    Builder *b = target_of(r, node->target);
    const uint8_t *from;
    if (node->op == R_BYTES || node->op == R_DECIMAL) {
        if ((bad = read_length(p, end, &size)))
            return bad;
    } else if (size > end - *p)
        return BAD_END;
    from = *p;
    *p += size;
    if (node->target < 0)
        return 0;
    if (node->op == R_UUID)
        return put_uuid(b, from);
    if (node->op == R_DECIMAL || node->op == R_DECIMAL_FIXED)
        return put_decimal(b, from, size, node->a);
    if (node->a && !is_utf8(from, size))
        return BAD_UTF8;
    return put_bytes(b, from, size, end - from);
}

static int read_enum(Reading *r, const Node *node, const uint8_t **p, const uint8_t *end)
{
    int64_t symbol;
    int bad = read_number(p, end, 5, &symbol);
    if (bad)
        return bad;
    if (symbol < 0 || symbol >= node->count)
        return BAD_SYMBOL;
    if (node->target < 0)
        return 0;
    if (r->links[node->child + symbol] < 0)
        return BAD_UNKNOWN_SYMBOL;
    return put_integer(&r->builders[node->target], r->links[node->child + symbol]);
}

static uint64_t hash_bytes(const uint8_t *p, int64_t size)
{
    uint64_t hash = 0xCBF29CE484222325ULL;
    while (size--)
        hash = (hash ^ *p++) * 0x100000001B3ULL;
    return hash ^ hash >> 29;
}

typedef struct {
    const uint8_t *bytes;
    int64_t size;
} Key;

static int compare_keys(const void *one, const void *other)
{
    const Key *a = one, *b = other;
    if (a->size != b->size)
        return a->size < b->size ? -1 : 1;
    return memcmp(a->bytes, b->bytes, (size_t)a->size);
}

/* As `key_twice`, by sorting. */
static int key_twice_in_order(const Builder *keys, int64_t first)
{
    const int64_t count = keys->length - first;
    Key *sorted = malloc((size_t)count * sizeof(Key));
    int found = 0;
    if (!sorted)
        return NO_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        const int32_t *edges = keys->offsets + first + i;
        sorted[i] = (Key){keys->data + edges[0], edges[1] - edges[0]};
    }
    qsort(sorted, (size_t)count, sizeof(Key), compare_keys);
    for (int64_t i = 1; i < count && !found; i++)
        found = !compare_keys(sorted + i - 1, sorted + i);
    free(sorted);
    return found ? BAD_KEY_TWICE : 0;
}

/* Whether two of the keys from `first` on are the same. The hash is no secret: keys may be chosen to meet in one slot,
   so the steps to free slots are limited. */
static int key_twice(const Builder *keys, int64_t first)
{
    int64_t count = keys->length - first, slots = 16, steps = MAX_STEPS * count, i;
    int32_t *table, small[64];
    int found = 0;
    if (count < 2)
        return 0;
    while (slots < 2 * count)
        slots *= 2;
    table = slots <= 64 ? small : malloc((size_t)slots * 4);
    if (!table)
        return NO_MEMORY;
    memset(table, 0xFF, (size_t)slots * 4);
    for (i = 0; i < count && !found && steps >= 0; i++) {
        const int32_t *mine = keys->offsets + first + i;
        int64_t size = mine[1] - mine[0], slot = (int64_t)(hash_bytes(keys->data + mine[0], size) & (slots - 1));
        for (; table[slot] >= 0 && !found; slot = (slot + 1) & (slots - 1), steps--) {
            const int32_t *other = keys->offsets + first + table[slot];
            found = other[1] - other[0] == size && !memcmp(keys->data + other[0], keys->data + mine[0], (size_t)size);
        }
        table[slot] = (int32_t)i;
    }
    if (table != small)
        free(table);
    return found ? BAD_KEY_TWICE : steps < 0 ? key_twice_in_order(keys, first) : 0;
}

/* Arrays, and maps: blocks of `count` items, in a block of negative count with the size of the block in bytes.
   `a` is the least number of bytes of an item; of none, each pays for all values that it may have. */
static int read_items(Reading *r, const Node *node, const uint8_t **p, const uint8_t *end)
{
    int bad, width = node->op == R_MAP ? 2 : 1;
    const int32_t *parts = r->links + node->child;
    Builder *b = node->target < 0 ? NULL : &r->builders[node->target];
    Builder *items = b ? &r->builders[r->links[b->child]] : NULL;
    int64_t first = items ? items->length : 0, weight = items ? items->weight : 1;
    for (;;) {
        int64_t count, size = -1;
        const uint8_t *start;
        if ((bad = read_number(p, end, 10, &count)))
            return bad;
        if (!count)
            break;
        if (count < 0) {
            if (count == INT64_MIN)
                return BAD_COUNT;
            count = -count;
            if ((bad = read_length(p, end, &size)))
                return bad;
        }
        if (node->a ? count > (end - *p) / node->a : count > r->credit / weight)
            return node->a ? BAD_COUNT : BAD_EXPANSION;
        if (!node->a)
            r->credit -= count * weight;
        for (start = *p; count; count--)
            for (int i = 0; i < width; i++)
                if ((bad = read_value(r, parts[i], p, end)))
                    return bad;
        if (size >= 0 && *p - start != size)
            return BAD_BLOCK;
    }
    if (!b)
        return 0;
    if (items->length > INT32_MAX)
        return TOO_LARGE;
    if (node->op == R_MAP && (bad = key_twice(items, first)))
        return bad;
    if (append(b))
        return NO_MEMORY;
    b->offsets[b->length] = (int32_t)items->length;
    return 0;
}

static int put_null(Reading *r, int32_t target)
{
    Builder *b = target_of(r, target);
    if (target < 0)
        return 0;
    r->credit -= b->weight - 1;
    if (r->credit < 0)
        return BAD_EXPANSION;
    return append_null(r->builders, r->links, b);
}

static int read_record(Reading *r, const Node *node, const uint8_t **p, const uint8_t *end)
{
    int32_t i;
    for (i = 0; i < node->count; i++) {
        int bad = read_value(r, r->links[node->child + i], p, end);
        if (bad)
            return bad;
    }
    return node->target < 0 ? 0 : append(&r->builders[node->target]);
}

/* One of a struct's members, of number `a`; the others are null. */
static int read_member(Reading *r, const Node *node, const uint8_t **p, const uint8_t *end)
{
    Builder *b = target_of(r, node->target);
    int bad = read_value(r, r->links[node->child], p, end);
    int32_t i;
    for (i = 0; i < b->count && !bad; i++)
        if (i != node->a)
            bad = put_null(r, r->links[b->child + i]);
    return bad ? bad : append(b);
}

static int read_bool(Reading *r, const Node *node, const uint8_t **p, const uint8_t *end)
{
    Builder *b = target_of(r, node->target);
    if (*p == end)
        return BAD_END;
    if (**p > 1)
        return BAD_BOOL;
    if (node->target >= 0) {
        if (append(b))
            return NO_MEMORY;
        b->data[b->length - 1] = **p;
    }
    ++*p;
    return 0;
}

static int read_nested(Reading *r, const Node *node, const uint8_t **p, const uint8_t *end)
{
    const uint8_t *constant = r->constants + node->a;
    int64_t branch;
    int bad;
    switch (node->op) {
    case R_RECORD:
        return read_record(r, node, p, end);
    case R_ARRAY:
    case R_MAP:
        return read_items(r, node, p, end);
    case R_UNION:
        if ((bad = read_number(p, end, 10, &branch)))
            return bad;
        if (branch < 0 || branch >= node->count)
            return BAD_BRANCH;
        return read_value(r, r->links[node->child + branch], p, end);
    case R_MEMBER:
        return read_member(r, node, p, end);
    case R_DEFAULT:
        r->credit -= node->b + 1;
        if (r->credit < 0)
            return BAD_EXPANSION;
        return read_value(r, r->links[node->child], &constant, constant + node->b);
    }
    return BAD_RESOLUTION;
}

/* Returns 0, why the payload is bad (> 0), or NO_MEMORY or TOO_LARGE. */
static int read_value(Reading *r, int32_t at, const uint8_t **p, const uint8_t *end)
{
    const Node *node = &r->nodes[at];
    int bad;
    switch (node->op) {
    case R_NULL:
        bad = put_null(r, node->target);
        break;
    case R_BOOL:
        bad = read_bool(r, node, p, end);
        break;
    case R_INT:
    case R_LONG:
        bad = read_integer(r, node, p, end);
        break;
    case R_FLOAT:
    case R_DOUBLE:
        bad = read_real(r, node, p, end);
        break;
    case R_BYTES:
    case R_FIXED:
    case R_DECIMAL:
    case R_DECIMAL_FIXED:
    case R_UUID:
        bad = read_block(r, node, p, end);
        break;
    case R_ENUM:
        bad = read_enum(r, node, p, end);
        break;
    default:
        bad = read_nested(r, node, p, end);
    }
    if (bad > 0 && r->failed < 0)
        r->failed = at;
    return bad;
}

#endif
