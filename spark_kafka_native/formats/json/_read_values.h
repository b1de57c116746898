/* Payloads into columns: `read_value` runs the program of read_program.py. The bytes are untrusted. */

#ifndef READ_VALUES_H
#define READ_VALUES_H

#include "../_utf8.h"
#include "../_builders.h"
#include "_read_double.h"
#include "_read_scan.h"

/* See read_program.py. */
enum { J_BOOL, J_INTEGER, J_FLOAT, J_DOUBLE, J_STRING, J_DECIMAL, J_DATE, J_TIMESTAMP, J_LIST, J_STRUCT, J_BINARY, J_MAP };

/* The payload is left to the reader in Python. */
#define UNSURE 1

#define MAX_DECIMAL 100 /* characters */
#define MAX_ESCAPED_NAME 256
#define MAX_KEYS 64 /* of a map: each is compared with those before it */
#define EXPECTED 64 /* members of an object */
#define LOOK_AHEAD 4

/* What node i reads goes to builder i; its parts are nodes from `first` on. `name`: where that of a field is. */
typedef struct {
    int32_t op, first, count, name, name_size, a, b;
} Node;

/* A member that an earlier object had, and the node of its field, or -1. */
typedef struct {
    const uint8_t *name;
    int64_t size;
    int32_t field;
} Member;

/* The members in the order in which the last objects had them. */
typedef struct {
    Member members[EXPECTED];
    int32_t count;
} Order;

typedef struct {
    const Node *nodes;
    const int32_t *links; /* the number of each node: what builders want */
    const uint8_t *names, *limit;
    const uint64_t *powers;
    Builder *builders;
    Order *orders;
} Reading;

static int read_value(Reading *r, int32_t at, const uint8_t **place, const uint8_t *end);

static inline int put_signed(Builder *b, int64_t value)
{
    return append_integer(b, value, UNSURE);
}

static int read_bool(Builder *b, const uint8_t **place, const uint8_t *end)
{
    const uint8_t *p = *place, *after = skip_literal(p, end);
    if (!after || *p == 'n')
        return UNSURE;
    if (append(b))
        return NO_MEMORY;
    b->data[b->length - 1] = *p == 't';
    *place = after;
    return 0;
}

/* The whole number at `place`. */
static int read_whole(const uint8_t **place, const uint8_t *end, int64_t *value)
{
    Number number;
    const uint8_t *after;
    if (**place != '-' && !is_digit(*place, end))
        return UNSURE;
    after = read_number(*place, end, &number);
    if (!after || !number.is_whole || number.digits > 19 || number.mantissa > (uint64_t)INT64_MAX + (uint64_t)number.is_negative)
        return UNSURE;
    *value = number.is_negative ? (int64_t)(0 - number.mantissa) : (int64_t)number.mantissa;
    *place = after;
    return 0;
}

static int read_integer(Builder *b, const uint8_t **place, const uint8_t *end)
{
    int64_t value;
    return read_whole(place, end, &value) ? UNSURE : put_signed(b, value);
}

static int read_real(Reading *r, const Node *node, Builder *b, const uint8_t **place, const uint8_t *end)
{
    Number number;
    double wide;
    float single = 0;
    if ((**place != '-' && !is_digit(*place, end)) || !(*place = read_number(*place, end, &number)) ||
        !to_double(&number, r->powers, &wide) || (node->op == J_FLOAT && !to_float(wide, &single)))
        return UNSURE;
    if (append(b))
        return NO_MEMORY;
    if (node->op == J_FLOAT)
        ((float *)b->data)[b->length - 1] = single;
    else
        ((double *)b->data)[b->length - 1] = wide;
    return 0;
}

/* The escaped character at `*from`, as UTF-8 at `to`, where there is room for it: it takes no more bytes than its
   escape. Returns behind what it wrote; NULL if it is odd. */
static uint8_t *unescape(const uint8_t **from, const uint8_t *end, uint8_t *to)
{
    const uint8_t *p = *from;
    int32_t code;
    if (end - p < 2)
        return NULL;
    if (p[1] != 'u') {
        *from = p + 2;
        *to = unescaped(p[1]);
        return *to ? to + 1 : NULL;
    }
    code = read_unit(p + 2, end);
    p += 6;
    if (code < 0 || (code >= 0xDC00 && code < 0xE000))
        return NULL;
    if (code >= 0xD800 && code < 0xDC00) {
        int32_t second = end - p >= 6 && p[0] == '\\' && p[1] == 'u' ? read_unit(p + 2, end) : -1;
        if (second < 0xDC00 || second >= 0xE000)
            return NULL;
        code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00);
        p += 6;
    }
    *from = p;
    if (code < 0x80)
        *to++ = (uint8_t)code;
    else if (code < 0x800) {
        *to++ = (uint8_t)(0xC0 | code >> 6);
        *to++ = (uint8_t)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *to++ = (uint8_t)(0xE0 | code >> 12);
        *to++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        *to++ = (uint8_t)(0xF0 | code >> 18);
        *to++ = (uint8_t)(0x80 | (code >> 12 & 0x3F));
        *to++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return to;
}

/* The text of a string from `p` to `end`, whose escapes are well-formed, to `to`, where there is room for as many bytes:
   its size, or -1 if it is odd. */
static int64_t unescape_text(const uint8_t *p, const uint8_t *end, const uint8_t *limit, uint8_t *to)
{
    const uint8_t *start = to;
    for (;;) {
        const uint8_t *odd = plain_end(p, end, limit);
        memcpy(to, p, (size_t)(odd - p));
        to += odd - p;
        p = odd;
        if (p == end)
            return to - start;
        if (!(to = unescape(&p, end, to)))
            return -1;
    }
}

/* The string whose first character is at `p`, where `odd` is its first one that does not stand for itself. */
static int read_escaped(Builder *b, const uint8_t *p, const uint8_t *odd, const uint8_t **place, const uint8_t *end,
                        const uint8_t *limit)
{
    const uint8_t *after = skip_string(odd, end, limit);
    uint8_t *to;
    int64_t room, size;
    int failed = 0;
    if (!after)
        return UNSURE;
    room = after - 1 - p;
    if (!(to = append_bytes(b, room, &failed)))
        return failed;
    if ((size = unescape_text(p, after - 1, limit, to)) < 0)
        return UNSURE;
    b->data_length -= room - size;
    b->offsets[b->length] = (int32_t)b->data_length;
    *place = after;
    return 0;
}

static int put_text(Builder *b, const uint8_t *p, int64_t size)
{
    int failed = 0;
    uint8_t *to = append_bytes(b, size, &failed);
    if (!to)
        return failed;
    memcpy(to, p, (size_t)size);
    return 0;
}

/* A string as it is, anything else as its JSON text. */
static int read_string(Reading *r, Builder *b, const uint8_t **place, const uint8_t *end)
{
    const uint8_t *p = *place, *after;
    if (*p != '"') {
        if (!(after = skip_value(p, end, r->limit)))
            return UNSURE;
        *place = after;
        return put_text(b, p, after - p);
    }
    p++;
    after = plain_end(p, end, r->limit);
    if (after == end || (*after != '"' && *after != '\\'))
        return UNSURE;
    if (*after == '\\')
        return read_escaped(b, p, after, place, end, r->limit);
    *place = after + 1;
    return put_text(b, p, after - p);
}

/* What a character of Base64 stands for; -1 if it is none. */
static inline int32_t six_bits(uint8_t c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* Base64, filled up with `=` to groups of four; without bits that are lost. */
static int read_binary(Builder *b, const uint8_t **place, const uint8_t *end, const uint8_t *limit)
{
    const uint8_t *p = *place + 1, *after;
    uint8_t *to;
    int64_t size;
    int failed = 0, filled;
    if (**place != '"')
        return UNSURE;
    after = plain_end(p, end, limit);
    if (after == end || *after != '"' || (after - p) % 4)
        return UNSURE;
    filled = after > p ? (after[-1] == '=') + (after[-1] == '=' && after[-2] == '=') : 0;
    size = (after - p) / 4 * 3 - filled;
    if (!(to = append_bytes(b, size, &failed)))
        return failed;
    for (; p < after; p += 4) {
        const int left = p + 4 == after ? filled : 0;
        const int32_t third = left > 1 ? 0 : six_bits(p[2]), fourth = left > 0 ? 0 : six_bits(p[3]);
        const int32_t first = six_bits(p[0]), second = six_bits(p[1]);
        int32_t all;
        if ((first | second | third | fourth) < 0)
            return UNSURE;
        all = first << 18 | second << 12 | third << 6 | fourth;
        if (left && all & (left > 1 ? 0xFFFF : 0xFF))
            return UNSURE;
        *to++ = (uint8_t)(all >> 16);
        if (left < 2)
            *to++ = (uint8_t)(all >> 8);
        if (left < 1)
            *to++ = (uint8_t)all;
    }
    *place = after + 1;
    return 0;
}

/* A number, quoted or not, of up to 38 digits, rounded half up to `scale` digits. */
static int read_decimal(const Node *node, Builder *b, const uint8_t **place, const uint8_t *end)
{
    const int is_quoted = **place == '"';
    const uint8_t *start = *place + is_quoted, *p = start;
    int64_t more;
    Number number;
    unsigned __int128 value = 0, limit = 1;
    if (p == end || (*p != '-' && !is_digit(p, end)) || !(p = read_number(p, end, &number)) || number.digits > 38 ||
        number.exponent > 38 || number.exponent < -MAX_DECIMAL || p - start > MAX_DECIMAL ||
        (is_quoted && (p == end || *p != '"')))
        return UNSURE;
    for (; start < p && *start != 'e' && *start != 'E'; start++)
        if (is_digit(start, end))
            value = value * 10 + (uint64_t)(*start - '0');
    for (more = node->b + number.exponent; more > 0; more--) {
        if (value > (~(unsigned __int128)0 >> 1) / 10)
            return UNSURE;
        value *= 10;
    }
    if (more < 0) {
        for (; more < -1; more++)
            value /= 10;
        value = value / 10 + (value % 10 >= 5);
    }
    for (int i = 0; i < node->a; i++)
        limit *= 10;
    if (value >= limit)
        return UNSURE;
    if (append(b))
        return NO_MEMORY;
    value = number.is_negative ? 0 - value : value;
    memcpy(b->data + (b->length - 1) * 16, &value, 16);
    *place = p + is_quoted;
    return 0;
}

/* The number of `count` digits at `p`; -1 if they are none. */
static inline int32_t read_fixed(const uint8_t *p, int count)
{
    int32_t value = 0;
    for (int i = 0; i < count; i++) {
        if (p[i] < '0' || p[i] > '9')
            return -1;
        value = value * 10 + (p[i] - '0');
    }
    return value;
}

/* The days from 1970-01-01 to the date of the ten bytes at `p` (2024-02-29), and its year. */
static int read_days(const uint8_t *p, int64_t *days, int32_t *year)
{
    static const uint8_t lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const int32_t y = read_fixed(p, 4), m = read_fixed(p + 5, 2), d = read_fixed(p + 8, 2);
    const int is_leap = y % 4 == 0 && (y % 100 || y % 400 == 0);
    int32_t shifted, of_year;
    if (y < 1 || m < 1 || m > 12 || d < 1 || d > lengths[m - 1] + (m == 2 && is_leap) || p[4] != '-' || p[7] != '-')
        return UNSURE;
    /* Years that begin with March end with the day that not all of them have. */
    shifted = y - (m < 3);
    of_year = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    *days = (int64_t)shifted * 365 + shifted / 4 - shifted / 100 + shifted / 400 + of_year - 719468;
    *year = y;
    return 0;
}

static int read_date(Builder *b, const uint8_t **place, const uint8_t *end)
{
    const uint8_t *p = *place;
    int64_t days;
    int32_t year;
    if (end - p < 12 || *p != '"' || p[11] != '"' || read_days(p + 1, &days, &year))
        return UNSURE;
    *place = p + 12;
    return put_signed(b, days);
}

/* `T12:30:00`, up to six digits after a point: the microseconds of the day. */
static int read_clock(const uint8_t **place, const uint8_t *end, int64_t *micros)
{
    const uint8_t *p = *place;
    int32_t hour, minute, second, unit = 100000;
    if (end - p < 10 || (*p != 'T' && *p != ' ') || p[3] != ':' || p[6] != ':')
        return UNSURE;
    hour = read_fixed(p + 1, 2);
    minute = read_fixed(p + 4, 2);
    second = read_fixed(p + 7, 2);
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59)
        return UNSURE;
    *micros = (hour * 3600 + minute * 60 + second) * 1000000LL;
    p += 9;
    if (*p == '.') {
        const uint8_t *start = ++p;
        for (; is_digit(p, end) && unit; p++, unit /= 10)
            *micros += (*p - '0') * unit;
        if (p == start)
            return UNSURE;
    }
    *place = p;
    return 0;
}

/* `a`: whether the type has a time zone; a text without one is in UTC then. */
static int read_timestamp(const Node *node, Builder *b, const uint8_t **place, const uint8_t *end)
{
    const uint8_t *p = *place + 1;
    int64_t value, micros;
    int32_t year;
    if (**place != '"') {
        if (!node->a || read_whole(place, end, &value) || value < -62135596800LL || value > 253402300799LL)
            return UNSURE;
        return put_signed(b, value * 1000000);
    }
    if (end - p < 11 || read_days(p, &value, &year))
        return UNSURE;
    value *= 86400000000LL;
    p += 10;
    if (*p != '"') {
        if (read_clock(&p, end, &micros))
            return UNSURE;
        value += micros;
        if (node->a && p < end && *p == 'Z')
            p++;
        else if (node->a && end - p > 6 && (*p == '+' || *p == '-') && p[3] == ':') {
            const int32_t hours = read_fixed(p + 1, 2), minutes = read_fixed(p + 4, 2);
            /* No offset leads out of the years that Python knows. */
            if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59 || year == 1 || year == 9999)
                return UNSURE;
            value -= (*p == '+' ? 1 : -1) * (hours * 60 + minutes) * 60000000LL;
            p += 6;
        }
        if (p == end || *p != '"')
            return UNSURE;
    }
    *place = p + 1;
    return put_signed(b, value);
}

static int read_list(Reading *r, int32_t at, const uint8_t **place, const uint8_t *end)
{
    Builder *b = &r->builders[at];
    const int32_t item = r->nodes[at].first;
    const uint8_t *p = *place;
    int bad;
    if (*p != '[')
        return UNSURE;
    p = skip_space(p + 1, end);
    if (p < end && *p == ']')
        p++;
    else
        for (;;) {
            if (p == end)
                return UNSURE;
            if ((bad = read_value(r, item, &p, end)))
                return bad;
            p = skip_space(p, end);
            if (p == end || (*p != ',' && *p != ']'))
                return UNSURE;
            if (*p++ == ']')
                break;
            p = skip_space(p, end);
        }
    if (r->builders[item].length > INT32_MAX)
        return TOO_LARGE;
    if (append(b))
        return NO_MEMORY;
    b->offsets[b->length] = (int32_t)r->builders[item].length;
    *place = p;
    return 0;
}

static int is_new_key(const Builder *keys, int64_t first)
{
    const int64_t last = keys->length - 1, size = keys->offsets[last + 1] - keys->offsets[last];
    const uint8_t *key = keys->data + keys->offsets[last];
    if (last - first >= MAX_KEYS)
        return 0;
    for (int64_t i = first; i < last; i++)
        if (keys->offsets[i + 1] - keys->offsets[i] == size && !memcmp(keys->data + keys->offsets[i], key, (size_t)size))
            return 0;
    return 1;
}

static int read_map(Reading *r, int32_t at, const uint8_t **place, const uint8_t *end)
{
    const int32_t item = r->nodes[at].first + 1;
    Builder *b = &r->builders[at], *keys = &r->builders[item - 1];
    const int64_t first = keys->length;
    const uint8_t *p = *place;
    int bad;
    if (*p != '{')
        return UNSURE;
    p = skip_space(p + 1, end);
    if (p < end && *p == '}')
        p++;
    else
        for (;;) {
            if (p == end || *p != '"')
                return UNSURE;
            if ((bad = read_string(r, keys, &p, end)))
                return bad;
            p = skip_space(p, end);
            if (!is_new_key(keys, first) || p == end || *p != ':')
                return UNSURE;
            p = skip_space(p + 1, end);
            if (p == end)
                return UNSURE;
            if ((bad = read_value(r, item, &p, end)))
                return bad;
            p = skip_space(p, end);
            if (p == end || (*p != ',' && *p != '}'))
                return UNSURE;
            if (*p++ == '}')
                break;
            p = skip_space(p, end);
        }
    if (keys->length > INT32_MAX)
        return TOO_LARGE;
    if (append(b))
        return NO_MEMORY;
    b->offsets[b->length] = (int32_t)keys->length;
    *place = p;
    return 0;
}

/* The field that is named from `p` to `end`: its node; -1 if there is none, -2 if the name is odd. */
static int32_t look_up_field(const Reading *r, const Node *node, const uint8_t *p, const uint8_t *end)
{
    uint8_t plain[MAX_ESCAPED_NAME];
    int64_t size = end - p;
    if (plain_end(p, end, r->limit) != end) {
        if (size > MAX_ESCAPED_NAME || (size = unescape_text(p, end, r->limit, plain)) < 0)
            return -2;
        p = plain;
    }
    for (int32_t i = node->first; i < node->first + node->count; i++)
        if (r->nodes[i].name_size == size && !memcmp(p, r->names + r->nodes[i].name, (size_t)size))
            return i;
    return -1;
}

/* As `look_up_field`, of the name at `*place`, behind the quote. Objects of a topic mostly have the same members in the
   same order: one comparison finds the name and its end. */
static inline int32_t find_field(Reading *r, int32_t at, int32_t *next, const uint8_t **place, const uint8_t *end)
{
    Order *order = &r->orders[at];
    const uint8_t *p = *place, *after;
    int32_t i, found;
    for (i = *next; i < order->count && i < *next + LOOK_AHEAD; i++) {
        const Member *one = &order->members[i];
        if (end - p > one->size && p[one->size] == '"' && !memcmp(p, one->name, (size_t)one->size)) {
            *place = p + one->size + 1;
            *next = i + 1;
            return one->field;
        }
    }
    if (!(after = skip_string(p, end, r->limit)))
        return -2;
    found = look_up_field(r, &r->nodes[at], p, after - 1);
    if (found > -2 && *next < EXPECTED) {
        order->members[*next] = (Member){p, after - 1 - p, found};
        if (*next == order->count)
            order->count++;
        ++*next;
    }
    *place = after;
    return found;
}

static int read_members(Reading *r, int32_t at, int64_t row, const uint8_t **place, const uint8_t *end)
{
    const uint8_t *p = *place;
    int32_t next = 0, field;
    int bad;
    for (;;) {
        if (p == end || *p++ != '"' || (field = find_field(r, at, &next, &p, end)) == -2)
            return UNSURE;
        p = skip_space(p, end);
        if (p == end || *p != ':')
            return UNSURE;
        p = skip_space(p + 1, end);
        if (p == end)
            return UNSURE;
        if (field < 0) {
            if (!(p = skip_value(p, end, r->limit)))
                return UNSURE;
        } else if (r->builders[field].length > row) /* a second member of the name */
            return UNSURE;
        else if ((bad = read_value(r, field, &p, end)))
            return bad;
        p = skip_space(p, end);
        if (p == end || (*p != ',' && *p != '}'))
            return UNSURE;
        if (*p++ == '}')
            break;
        p = skip_space(p, end);
    }
    *place = p;
    return 0;
}

static int read_struct(Reading *r, int32_t at, const uint8_t **place, const uint8_t *end)
{
    Builder *b = &r->builders[at];
    const Node *node = &r->nodes[at];
    const int64_t row = b->length;
    const uint8_t *p = *place;
    int bad;
    if (*p != '{')
        return UNSURE;
    p = skip_space(p + 1, end);
    if (p < end && *p == '}')
        p++;
    else if ((bad = read_members(r, at, row, &p, end)))
        return bad;
    if (append(b))
        return NO_MEMORY;
    for (int32_t i = node->first; i < node->first + node->count; i++)
        if (r->builders[i].length == row && append_null(r->builders, r->links, &r->builders[i]))
            return NO_MEMORY;
    *place = p;
    return 0;
}

/* The value at `*place`, before `end`, into the builder of its node. After a failure the row is to be taken back. */
static int read_value(Reading *r, int32_t at, const uint8_t **place, const uint8_t *end)
{
    const Node *node = &r->nodes[at];
    Builder *b = &r->builders[at];
    if (**place == 'n') {
        if (end - *place < 4 || memcmp(*place, "null", 4))
            return UNSURE;
        *place += 4;
        return append_null(r->builders, r->links, b);
    }
    switch (node->op) {
    case J_BOOL:
        return read_bool(b, place, end);
    case J_INTEGER:
        return read_integer(b, place, end);
    case J_FLOAT:
    case J_DOUBLE:
        return read_real(r, node, b, place, end);
    case J_STRING:
        return read_string(r, b, place, end);
    case J_DECIMAL:
        return read_decimal(node, b, place, end);
    case J_DATE:
        return read_date(b, place, end);
    case J_TIMESTAMP:
        return read_timestamp(node, b, place, end);
    case J_LIST:
        return read_list(r, at, place, end);
    case J_BINARY:
        return read_binary(b, place, end, r->limit);
    case J_MAP:
        return read_map(r, at, place, end);
    }
    return read_struct(r, at, place, end);
}

#endif
