/* The double nearest to a decimal number, exactly, or no answer: Clinger's fast path (1990), else the algorithm of
   Eisel and Lemire ("Number Parsing at a Gigabyte per Second", 2021), without its slow paths. */

#ifndef READ_DOUBLE_H
#define READ_DOUBLE_H

#include <stdint.h>
#include <string.h>

#include "_read_scan.h"

#define LEAST_POWER (-325)
#define MOST_POWER 308

/* The double nearest to `w` times a power of ten. `powers`: the upper and the lower 64 bits of each power of five from LEAST_POWER to MOST_POWER; see
   read_program.py. Returns whether it is sure: of zero and of normal doubles. */
static int to_double_of(uint64_t w, int64_t power, int is_negative, const uint64_t *powers, double *value)
{
    static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                  1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    uint64_t high, low, mantissa;
    unsigned __int128 product;
    const uint64_t *five;
    int leading, upper, shift;
    int64_t exponent;
    if (w == 0) {
        *value = is_negative ? -0.0 : 0.0;
        return 1;
    }
    if (w <= 1ULL << 53 && power >= -22 && power <= 22) {
        double whole = (double)w;
        whole = power < 0 ? whole / tens[-power] : whole * tens[power];
        *value = is_negative ? -whole : whole;
        return 1;
    }
    if (power < LEAST_POWER || power > MOST_POWER)
        return 0;
    leading = __builtin_clzll(w);
    w <<= leading;
    five = powers + 2 * (power - LEAST_POWER);
    product = (unsigned __int128)w * five[0];
    high = (uint64_t)(product >> 64);
    low = (uint64_t)product;
    if ((high & 0x1FF) == 0x1FF) {
        const uint64_t more = (uint64_t)(((unsigned __int128)w * five[1]) >> 64);
        low += more;
        high += low < more;
    }
    if (low == UINT64_MAX && (power < -27 || power > 55))
        return 0;
    upper = (int)(high >> 63);
    shift = upper + 9;
    mantissa = high >> shift;
    exponent = ((217706 * power) >> 16) + 63 + upper - leading + 1023;
    if (exponent <= 0)
        return 0;
    /* Half-way between two doubles: to the even one. */
    if (low <= 1 && power >= -4 && power <= 23 && (mantissa & 3) == 1 && mantissa << shift == high)
        mantissa &= ~1ULL;
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    if (mantissa >= 1ULL << 53) {
        mantissa = 1ULL << 52;
        exponent++;
    }
    if (exponent >= 0x7FF)
        return 0;
    mantissa = (mantissa & ((1ULL << 52) - 1)) | (uint64_t)exponent << 52 | (uint64_t)is_negative << 63;
    memcpy(value, &mantissa, 8);
    return 1;
}

/* The double nearest to `number`, if it is sure. Of more than 19 digits, the number is between the one that the first 19
   make and the next. */
static int to_double(const Number *number, const uint64_t *powers, double *value)
{
    const int64_t more = number->digits > 19 ? number->digits - 19 : 0, power = number->exponent + more;
    double above;
    if (!to_double_of(number->mantissa, power, number->is_negative, powers, value))
        return 0;
    return !more || (to_double_of(number->mantissa + 1, power, number->is_negative, powers, &above) && above == *value);
}

/* The float nearest to the number whose nearest double is `wide`: none where the double is half-way between two floats,
   since the number may be on either side of it, nor outside of the normal floats. */
static inline int to_float(double wide, float *value)
{
    uint64_t bits;
    double size;
    memcpy(&bits, &wide, 8);
    size = wide < 0 ? -wide : wide;
    if (size != 0 && (size < 1.2e-38 || size > 3.4e38 || (bits & 0x1FFFFFFF) == 0x10000000))
        return 0;
    *value = (float)wide;
    return 1;
}

#endif
