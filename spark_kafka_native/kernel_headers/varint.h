/* Zigzag varints: 32 bits in at most 5 bytes, 64 bits in at most 10 (see varint.py). */

#ifndef KERNEL_VARINT_H
#define KERNEL_VARINT_H

#include <stddef.h>
#include <stdint.h>

static int64_t unzigzag(uint64_t raw)
{
    return (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
}

static uint64_t zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (value < 0 ? UINT64_MAX : 0);
}

/* Read a zigzag number of at most `max_bytes` whose last possible byte is at most `last`; NULL where there is none. */
static const uint8_t *read_long(const uint8_t *p, const uint8_t *end, int max_bytes, uint8_t last, int64_t *value)
{
    uint64_t raw = 0;
    int i;
    for (i = 0; i < max_bytes && p < end; i++) {
        uint8_t byte = *p++;
        if (i == max_bytes - 1 && byte > last)
            return NULL;
        raw |= (uint64_t)(byte & 0x7F) << (7 * i);
        if (byte < 0x80) {
            *value = unzigzag(raw);
            return p;
        }
    }
    return NULL;
}

static inline const uint8_t *read_varint(const uint8_t *p, const uint8_t *end, int64_t *value)
{
    if (end - p >= 2) {
        if (p[0] < 0x80) {
            *value = unzigzag(p[0]);
            return p + 1;
        }
        if (p[1] < 0x80) {
            *value = unzigzag((uint64_t)(p[0] & 0x7F) | (uint64_t)p[1] << 7);
            return p + 2;
        }
    }
    return read_long(p, end, 5, 0x0F, value);
}

static inline const uint8_t *read_varlong(const uint8_t *p, const uint8_t *end, int64_t *value)
{
    if (p < end && p[0] < 0x80) {
        *value = unzigzag(p[0]);
        return p + 1;
    }
    return read_long(p, end, 10, 0x01, value);
}

static inline int varint_size(int64_t value)
{
    uint64_t raw = zigzag(value);
    int size = 1;
    while (raw >= 0x80) {
        raw >>= 7;
        size++;
    }
    return size;
}

static inline uint8_t *write_varint(uint8_t *p, int64_t value)
{
    uint64_t raw = zigzag(value);
    while (raw >= 0x80) {
        *p++ = (uint8_t)(raw | 0x80);
        raw >>= 7;
    }
    *p++ = (uint8_t)raw;
    return p;
}

#endif
