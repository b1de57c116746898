/* Where the values of a JSON text end. A function returns NULL for whatever it is not sure of: malformed text and odd
   text alike, which the caller leaves to the reader in Python. `limit` ends the memory that may be looked at, `end`
   the payload. */

#ifndef READ_SCAN_H
#define READ_SCAN_H

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define MAX_SKIPPED_DEPTH 64

static inline const uint8_t *skip_space(const uint8_t *p, const uint8_t *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

/* The first byte of a string from `p` on that does not stand for itself: a quote, a backslash, a control character; or
   `end`. */
static inline const uint8_t *plain_end(const uint8_t *p, const uint8_t *end, const uint8_t *limit)
{
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1F);
    while (p < end && limit - p >= 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
        const __m128i odd =
            _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash)),
                         _mm_cmpeq_epi8(_mm_max_epu8(bytes, control), control));
        const int found = _mm_movemask_epi8(odd);
        if (found) {
            p += __builtin_ctz((unsigned)found);
            return p < end ? p : end;
        }
        p += 16;
    }
#elif defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = 0x0101010101010101ULL, tops = 0x8080808080808080ULL;
    while (p < end && limit - p >= 8) {
        uint64_t bytes, quotes, backslashes, found;
        memcpy(&bytes, p, 8);
        quotes = bytes ^ (ones * '"');
        backslashes = bytes ^ (ones * '\\');
        /* A borrow can only mark bytes above one that is rightly marked: the lowest mark is right. */
        found = (((quotes - ones) & ~quotes) | ((backslashes - ones) & ~backslashes) | ((bytes - ones * 0x20) & ~bytes)) &
                tops;
        if (found) {
            p += __builtin_ctzll(found) >> 3;
            return p < end ? p : end;
        }
        p += 8;
    }
#endif
    while (p < end && *p != '"' && *p != '\\' && *p >= 0x20)
        p++;
    return p < end ? p : end;
}

static inline int hex_digit(uint8_t c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* The code unit that four hexadecimal digits at `p` name; -1 if they don't. */
static inline int32_t read_unit(const uint8_t *p, const uint8_t *end)
{
    int32_t unit = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0)
            return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

/* The byte that the escape of the letter `c` stands for; 0 if it is none of one letter. */
static inline uint8_t unescaped(uint8_t c)
{
    switch (c) {
    case '"':
    case '\\':
    case '/':
        return c;
    case 'b':
        return '\b';
    case 'f':
        return '\f';
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    }
    return 0;
}

/* Behind the string whose first character, after the quote, is at `p`. */
static inline const uint8_t *skip_string(const uint8_t *p, const uint8_t *end, const uint8_t *limit)
{
    for (;;) {
        p = plain_end(p, end, limit);
        if (p == end)
            return NULL;
        if (*p == '"')
            return p + 1;
        if (*p != '\\' || end - p < 2)
            return NULL;
        if (p[1] == 'u') {
            if (read_unit(p + 2, end) < 0)
                return NULL;
            p += 6;
        } else if (unescaped(p[1]))
            p += 2;
        else
            return NULL;
    }
}

static inline int is_digit(const uint8_t *p, const uint8_t *end)
{
    return p < end && *p >= '0' && *p <= '9';
}

/* A number by JSON's grammar: its first 19 digits, leading zeros aside. */
typedef struct {
    uint64_t mantissa;
    int64_t exponent; /* of ten */
    int32_t digits;   /* of the mantissa; more than 19: it is not whole */
    int32_t is_negative, is_whole;
} Number;

static inline const uint8_t *read_digits(const uint8_t *p, const uint8_t *end, Number *number)
{
    for (; is_digit(p, end); p++) {
        if (number->digits < 19)
            number->mantissa = number->mantissa * 10 + (uint64_t)(*p - '0');
        number->digits += number->digits > 0 || *p != '0';
    }
    return p;
}

static inline const uint8_t *read_number(const uint8_t *p, const uint8_t *end, Number *number)
{
    const uint8_t *start;
    *number = (Number){0, 0, 0, *p == '-', 1};
    p += *p == '-';
    start = p;
    p = read_digits(p, end, number);
    if (p == start || (*start == '0' && p - start > 1))
        return NULL;
    if (p < end && *p == '.') {
        start = p + 1;
        p = read_digits(start, end, number);
        if (p == start)
            return NULL;
        number->exponent = start - p;
        number->is_whole = 0;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        int64_t exponent = 0;
        int is_negative;
        p++;
        is_negative = p < end && *p == '-';
        p += p < end && (*p == '-' || *p == '+');
        start = p;
        /* Counted up to where no digits of a payload, of 2^31 bytes at most, can make up for it. */
        for (; is_digit(p, end); p++)
            exponent = exponent < 10000000000 ? exponent * 10 + (*p - '0') : exponent;
        if (p == start)
            return NULL;
        number->exponent += is_negative ? -exponent : exponent;
        number->is_whole = 0;
    }
    return p;
}

static inline const uint8_t *skip_literal(const uint8_t *p, const uint8_t *end)
{
    if (end - p >= 4 && (!memcmp(p, "null", 4) || !memcmp(p, "true", 4)))
        return p + 4;
    return end - p >= 5 && !memcmp(p, "false", 5) ? p + 5 : NULL;
}

static inline const uint8_t *skip_scalar(const uint8_t *p, const uint8_t *end, const uint8_t *limit)
{
    Number number;
    if (*p == '"')
        return skip_string(p + 1, end, limit);
    return *p == '-' || is_digit(p, end) ? read_number(p, end, &number) : skip_literal(p, end);
}

/* Behind the member's name, the colon and white space, at the value. */
static inline const uint8_t *skip_name(const uint8_t *p, const uint8_t *end, const uint8_t *limit)
{
    if (p == end || *p != '"' || !(p = skip_string(p + 1, end, limit)))
        return NULL;
    p = skip_space(p, end);
    return p < end && *p == ':' ? skip_space(p + 1, end) : NULL;
}

/* Behind the object or the array at `p`. */
static const uint8_t *skip_nested(const uint8_t *p, const uint8_t *end, const uint8_t *limit)
{
    uint64_t objects = 0; /* one bit for each level that is open, the innermost lowest */
    int depth = 0;
    for (;;) {
        if (p == end)
            return NULL;
        if (*p == '{' || *p == '[') {
            if (++depth > MAX_SKIPPED_DEPTH)
                return NULL;
            objects = objects << 1 | (*p == '{');
            p = skip_space(p + 1, end);
            if (p == end)
                return NULL;
            if (*p != (objects & 1 ? '}' : ']')) {
                if (objects & 1 && !(p = skip_name(p, end, limit)))
                    return NULL;
                continue;
            }
            p++;
            depth--;
            objects >>= 1;
        } else if (!(p = skip_scalar(p, end, limit)))
            return NULL;
        for (;;) {
            if (!depth)
                return p;
            p = skip_space(p, end);
            if (p == end)
                return NULL;
            if (*p == ',')
                break;
            if (*p != (objects & 1 ? '}' : ']'))
                return NULL;
            p++;
            depth--;
            objects >>= 1;
        }
        p = skip_space(p + 1, end);
        if (objects & 1 && !(p = skip_name(p, end, limit)))
            return NULL;
    }
}

/* Behind the value at `p`, which is before `end`. */
static inline const uint8_t *skip_value(const uint8_t *p, const uint8_t *end, const uint8_t *limit)
{
    return *p == '{' || *p == '[' ? skip_nested(p, end, limit) : skip_scalar(p, end, limit);
}

#endif
