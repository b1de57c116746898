/* Texts of JSON: strings with escapes, Base64, dates and times. */

#ifndef JSON_WRITE_TEXTS_H
#define JSON_WRITE_TEXTS_H

#include "_write_numbers.h"

#define EACH(byte) (0x0101010101010101ull * (byte))
#define TOP_BITS EACH(0x80)

/* Whether any of eight bytes is a quote, a backslash or a control character. */
static inline int any_special(uint64_t word)
{
    uint64_t quote = word ^ EACH('"'), backslash = word ^ EACH('\\');
    uint64_t found = ((word - EACH(0x20)) & ~word) | ((quote - EACH(1)) & ~quote) | ((backslash - EACH(1)) & ~backslash);
    return (found & TOP_BITS) != 0;
}

/* At most six bytes. */
static uint8_t *put_escaped(uint8_t *p, uint8_t byte)
{
    static const char letters[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    const char *one;
    *p++ = '\\';
    for (one = letters; *one; one += 2)
        if ((uint8_t)*one == byte) {
            *p++ = (uint8_t)one[1];
            return p;
        }
    memcpy(p, "u00", 3);
    p[3] = (uint8_t)('0' + (byte >> 4));
    p[4] = (uint8_t)"0123456789abcdef"[byte & 15];
    return p + 5;
}

/* A quoted string; NULL where it would pass `limit`. */
static uint8_t *put_string(uint8_t *p, const uint8_t *limit, const uint8_t *from, int64_t size)
{
    const uint8_t *end = from + size, *stop;
    if (limit - p < size + 2)
        return NULL;
    *p++ = '"';
    while (from < end) {
        if (end - from >= 8) {
            uint64_t word;
            memcpy(&word, from, 8);
            memcpy(p, &word, 8);
            if (!any_special(word)) {
                p += 8;
                from += 8;
                continue;
            }
        }
        for (stop = end - from > 8 ? from + 8 : end; from < stop; from++) {
            if (*from >= 0x20 && *from != '"' && *from != '\\') {
                *p++ = *from;
                continue;
            }
            if (limit - p < end - from + 6)
                return NULL;
            p = put_escaped(p, *from);
        }
    }
    *p++ = '"';
    return p;
}

/* Quoted, with padding; NULL where it would pass `limit`. */
static uint8_t *put_base64(uint8_t *p, const uint8_t *limit, const uint8_t *from, int64_t size)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    int64_t i;
    if (limit - p < (size + 2) / 3 * 4 + 2)
        return NULL;
    *p++ = '"';
    for (i = 0; i < size; i += 3) {
        int64_t left = size - i;
        uint32_t bits = (uint32_t)from[i] << 16 | (left > 1 ? from[i + 1] << 8 : 0) | (left > 2 ? from[i + 2] : 0);
        *p++ = (uint8_t)letters[bits >> 18];
        *p++ = (uint8_t)letters[bits >> 12 & 63];
        *p++ = (uint8_t)(left > 1 ? letters[bits >> 6 & 63] : '=');
        *p++ = (uint8_t)(left > 2 ? letters[bits & 63] : '=');
    }
    *p++ = '"';
    return p;
}

/* `days` since 1970-01-01 in the proleptic Gregorian calendar; a year has four digits or more, and may be negative. */
static uint8_t *put_day(uint8_t *p, int64_t days)
{
    /* Years begin in March here, so that a leap day is the last of its year; 400 of them have 146,097 days. */
    int64_t shifted = days + 719468, era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
    int day = (int)(shifted - era * 146097);
    int year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    int day_of_year = day - (365 * year + year / 4 - year / 100), month = (5 * day_of_year + 2) / 153;
    int64_t named = year + era * 400 + (month >= 10);
    uint64_t size = named < 0 ? 0 - (uint64_t)named : (uint64_t)named;
    if (named < 0)
        *p++ = '-';
    p = put_digits(p, size, size < 10000 ? 4 : digits_of(size));
    *p++ = '-';
    p = put_digits(p, (uint64_t)(month < 10 ? month + 3 : month - 9), 2);
    *p++ = '-';
    return put_digits(p, (uint64_t)(day_of_year - (153 * month + 2) / 5 + 1), 2);
}

static uint8_t *put_date(uint8_t *p, int64_t days)
{
    *p++ = '"';
    p = put_day(p, days);
    *p++ = '"';
    return p;
}

static uint8_t *put_time(uint8_t *p, int64_t micros, int has_zone)
{
    const int64_t day = 86400000000;
    int64_t days = micros / day, rest = micros % day;
    uint64_t seconds;
    if (rest < 0) {
        rest += day;
        days--;
    }
    seconds = (uint64_t)rest / 1000000;
    *p++ = '"';
    p = put_day(p, days);
    *p++ = 'T';
    p = put_digits(p, seconds / 3600, 2);
    *p++ = ':';
    p = put_digits(p, seconds / 60 % 60, 2);
    *p++ = ':';
    p = put_digits(p, seconds % 60, 2);
    *p++ = '.';
    p = put_digits(p, (uint64_t)rest % 1000000, 6);
    if (has_zone)
        *p++ = 'Z';
    *p++ = '"';
    return p;
}

#endif
