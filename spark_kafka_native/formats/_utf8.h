/* Whether bytes are UTF-8. */

#ifndef FORMATS_UTF8_H
#define FORMATS_UTF8_H

#include <stdint.h>
#include <string.h>

static int is_utf8(const uint8_t *p, int64_t size)
{
    const uint8_t *end = p + size;
    while (p < end) {
        uint64_t eight;
        if (end - p >= 8 && (memcpy(&eight, p, 8), !(eight & 0x8080808080808080ULL))) {
            p += 8;
            continue;
        }
        if (*p < 0x80) {
            p++;
            continue;
        }
        int more = *p >= 0xC2 && *p < 0xE0 ? 1 : *p >= 0xE0 && *p < 0xF0 ? 2 : *p >= 0xF0 && *p < 0xF5 ? 3 : 0;
        if (!more || end - p <= more)
            return 0;
        /* No overlong form, no half of a surrogate pair, nothing above U+10FFFF. */
        if ((*p == 0xE0 && p[1] < 0xA0) || (*p == 0xED && p[1] > 0x9F) || (*p == 0xF0 && p[1] < 0x90) ||
            (*p == 0xF4 && p[1] > 0x8F))
            return 0;
        for (p++; more; more--, p++)
            if ((*p & 0xC0) != 0x80)
                return 0;
    }
    return 1;
}

#endif
