/* Numbers as texts: integers, decimals as Java's BigDecimal writes them, and the shortest text of a float or double.

   Each function writes at `p` and returns the end; WIDEST bytes are enough for any of them. */

#ifndef JSON_WRITE_NUMBERS_H
#define JSON_WRITE_NUMBERS_H

#include <stdint.h>
#include <string.h>

#define WIDEST 128

static const char PAIRS[] = "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748"
                            "49505152535455565758596061626364656667686970717273747576777879808182838485868788899091929394959697"
                            "9899";

static inline int digits_of(uint64_t value)
{
    int count = 1;
    for (; value >= 10000; value /= 10000)
        count += 4;
    return count + (value >= 10) + (value >= 100) + (value >= 1000);
}

/* `value` with exactly `count` digits, zeros in front. */
static inline uint8_t *put_digits(uint8_t *p, uint64_t value, int count)
{
    int left = count;
    while (left >= 2) {
        left -= 2;
        memcpy(p + left, PAIRS + 2 * (value % 100), 2);
        value /= 100;
    }
    if (left)
        *p = (uint8_t)('0' + value % 10);
    return p + count;
}

static inline uint8_t *put_integer(uint8_t *p, int64_t value)
{
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0)
        *p++ = '-';
    return put_digits(p, size, digits_of(size));
}

/* --- floats and doubles ---

   The shortest decimal that is rounded to the number, and of several the closest: Schubfach (Raffaello Giulietti, "The
   Schubfach way to render doubles"). `powers` has 10^-k for k from -324 to 292, two words for each: 126 bits, rounded
   down, plus one. */

#define FIRST_POWER (-324)
#define POWERS 617
#define LOW_63 0x7FFFFFFFFFFFFFFFull

typedef struct {
    uint64_t digits;
    int exponent; /* of the last digit */
} Decimal;

static inline uint64_t high_product(uint64_t a, uint64_t b)
{
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (uint32_t)middle;
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

/* `power` times `c`, rounded to odd. */
static inline uint64_t scaled(const uint64_t *power, uint64_t c)
{
    uint64_t middle = (power[0] * c >> 1) + high_product(power[1], c);
    uint64_t whole = high_product(power[0], c) + (middle >> 63);
    return whole | ((middle & LOW_63) + LOW_63) >> 63;
}

/* Of c * 2^q; `is_edge`: its neighbour below is half as far away as the one above. */
static Decimal shortest(const uint64_t *powers, uint64_t c, int q, int is_edge)
{
    uint64_t odd = c & 1, middle = 4 * c, s, below, above, ten, low, high;
    /* The logarithms of 2^q, 3/4 * 2^q and 10^-k, rounded down. */
    int k = (int)((q * 661971961083ll - (is_edge ? 274743187321ll : 0)) >> 41);
    int shift = q + (int)((-k * 913124641741ll) >> 38) + 2;
    const uint64_t *power = powers + 2 * (k - FIRST_POWER);
    int is_low, is_high;
    s = scaled(power, middle << shift);
    low = scaled(power, (middle - (is_edge ? 1 : 2)) << shift) + odd;
    high = scaled(power, (middle + 2) << shift) - odd;
    ten = s / 40 * 10;
    is_low = low <= 4 * ten;
    is_high = 4 * (ten + 10) <= high;
    if (is_low != is_high)
        return (Decimal){ten + (is_low ? 0 : 10), k};
    below = s >> 2;
    above = below + 1;
    is_low = low <= 4 * below;
    is_high = 4 * above <= high;
    if (is_low == is_high)
        is_low = s < 2 * (below + above) || (s == 2 * (below + above) && !(below & 1));
    return (Decimal){is_low ? below : above, k};
}

/* As C++'s and Python's shortest forms, but for where exponents begin: 1e+10 and 1e-7. */
static uint8_t *put_decimal_form(uint8_t *p, Decimal of)
{
    uint8_t digits[24];
    int count, point;
    if (of.digits % 100000000 == 0) { /* 12.5 comes as 12500000000000000 */
        of.digits /= 100000000;
        of.exponent += 8;
    }
    while (of.digits % 10 == 0) {
        of.digits /= 10;
        of.exponent++;
    }
    count = digits_of(of.digits);
    put_digits(digits, of.digits, count);
    point = count - 1 + of.exponent; /* the exponent of the first digit */
    if (point < -6 || point >= 10) {
        *p++ = digits[0];
        if (count > 1) {
            *p++ = '.';
            memcpy(p, digits + 1, 23);
            p += count - 1;
        }
        *p++ = 'e';
        *p++ = point < 0 ? '-' : '+';
        return put_integer(p, point < 0 ? -point : point);
    }
    if (point < 0) {
        memcpy(p, "0.000000", 8);
        p += 1 - point;
        memcpy(p, digits, 24);
        return p + count;
    }
    if (count <= point + 1) {
        memset(p, '0', 10);
        memcpy(p, digits, (size_t)count);
        p += point + 1;
        *p++ = '.';
        *p++ = '0';
        return p;
    }
    memcpy(p, digits, 24);
    memcpy(p + point + 2, digits + point + 1, 23 - point);
    p[point + 1] = '.';
    return p + count + 1;
}

/* `exponent` and `fraction` are the bits of the number; its exponent is less by `bias` for a whole fraction. */
static uint8_t *put_floating(uint8_t *p, const uint64_t *powers, int negative, int exponent, uint64_t fraction,
                             int fraction_bits, int bias)
{
    const uint64_t one = 1ull << fraction_bits;
    uint64_t c = exponent ? fraction | one : fraction;
    int q = (exponent ? exponent : 1) - bias;
    if (negative)
        *p++ = '-';
    if (!c) {
        memcpy(p, "0.0", 3);
        return p + 3;
    }
    if (q <= 0 && q >= -fraction_bits && !(c & ((1ull << -q) - 1)))
        return put_decimal_form(p, (Decimal){c >> -q, 0}); /* an integer */
    return put_decimal_form(p, shortest(powers, c, q, !fraction && exponent > 1));
}

static uint8_t *put_not_finite(uint8_t *p, int is_nan, int negative)
{
    const char *name = is_nan ? "\"NaN\"" : negative ? "\"-Infinity\"" : "\"Infinity\"";
    size_t size = strlen(name);
    memcpy(p, name, size);
    return p + size;
}

static uint8_t *put_double(uint8_t *p, const uint64_t *powers, const uint8_t *from)
{
    uint64_t bits, fraction;
    int exponent;
    memcpy(&bits, from, 8);
    fraction = bits & ((1ull << 52) - 1);
    exponent = (int)(bits >> 52) & 0x7FF;
    if (exponent == 0x7FF)
        return put_not_finite(p, fraction != 0, (int)(bits >> 63));
    return put_floating(p, powers, (int)(bits >> 63), exponent, fraction, 52, 1075);
}

static uint8_t *put_float(uint8_t *p, const uint64_t *powers, const uint8_t *from)
{
    uint32_t bits, fraction;
    int exponent;
    memcpy(&bits, from, 4);
    fraction = bits & ((1u << 23) - 1);
    exponent = (int)(bits >> 23) & 0xFF;
    if (exponent == 0xFF)
        return put_not_finite(p, fraction != 0, (int)(bits >> 31));
    return put_floating(p, powers, (int)(bits >> 31), exponent, fraction, 23, 150);
}

/* --- decimals --- */

#define MAX_DECIMAL_DIGITS 81

/* The digits of a number of `width` bytes, 16 or 32, without its sign; how many. */
static int decimal_digits(const uint8_t *from, int width, int negative, uint8_t *digits)
{
    uint32_t words[8];
    int used = width / 4, i, count;
    uint8_t groups[MAX_DECIMAL_DIGITS], *p = groups + MAX_DECIMAL_DIGITS;
    uint64_t carry = (uint64_t)negative;
    memcpy(words, from, (size_t)width);
    for (i = 0; negative && i < used; i++) {
        carry += (uint32_t)~words[i];
        words[i] = (uint32_t)carry;
        carry >>= 32;
    }
    for (;;) {
        while (used > 2 && !words[used - 1])
            used--;
        if (used == 2)
            break;
        for (carry = 0, i = used - 1; i >= 0; i--) {
            carry = carry << 32 | words[i];
            words[i] = (uint32_t)(carry / 1000000000);
            carry %= 1000000000;
        }
        p -= 9;
        put_digits(p, carry, 9);
    }
    carry = (uint64_t)words[1] << 32 | words[0];
    count = digits_of(carry);
    put_digits(digits, carry, count);
    memcpy(digits + count, p, (size_t)(groups + MAX_DECIMAL_DIGITS - p));
    return count + (int)(groups + MAX_DECIMAL_DIGITS - p);
}

static uint8_t *put_decimal(uint8_t *p, const uint8_t *from, int width, int scale)
{
    uint8_t digits[MAX_DECIMAL_DIGITS + 20];
    int negative = from[width - 1] >> 7;
    int count = decimal_digits(from, width, negative, digits);
    int64_t point = (int64_t)count - 1 - scale; /* the exponent of the first digit */
    if (negative)
        *p++ = '-';
    if (scale < 0 || point < -6) {
        *p++ = digits[0];
        if (count > 1) {
            *p++ = '.';
            memcpy(p, digits + 1, (size_t)count - 1);
            p += count - 1;
        }
        *p++ = 'E';
        if (point >= 0)
            *p++ = '+';
        return put_integer(p, point);
    }
    if (point < 0) {
        memcpy(p, "0.000000", 8);
        p += 1 - point;
        memcpy(p, digits, (size_t)count);
        return p + count;
    }
    memcpy(p, digits, (size_t)point + 1);
    p += point + 1;
    if (scale) {
        *p++ = '.';
        memcpy(p, digits + point + 1, (size_t)scale);
        p += scale;
    }
    return p;
}

#endif
