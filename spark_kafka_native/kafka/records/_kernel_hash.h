/* Key hashes and the grouping of rows by partition, over whole columns.

   Every length is checked before a byte is read: an Arrow array may have been built with wrong offsets. */

#ifndef KERNEL_HASH_H
#define KERNEL_HASH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { MURMUR2 = 0, CRC32 = 1, FNV1A = 2 };

static uint32_t crc_table[8][256];

static void build_crc_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
        crc_table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int slice = 1; slice < 8; slice++)
            crc_table[slice][i] = (crc_table[slice - 1][i] >> 8) ^ crc_table[0][crc_table[slice - 1][i] & 0xFF];
}

static inline uint32_t load_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Kafka's murmur2 (org.apache.kafka.common.utils.Utils): the seed is fixed, and the length takes part in it. */
static inline uint32_t murmur2(const uint8_t *data, int64_t length) {
    const uint32_t m = 0x5bd1e995u;
    uint32_t h = 0x9747b28cu ^ (uint32_t)length;
    int64_t left = length;
    for (; left >= 4; data += 4, left -= 4) {
        uint32_t k = load_le32(data) * m;
        k = (k ^ (k >> 24)) * m;
        h = (h * m) ^ k;
    }
    switch (left) {
        case 3: h ^= (uint32_t)data[2] << 16; /* fall through */
        case 2: h ^= (uint32_t)data[1] << 8;  /* fall through */
        case 1: h = (h ^ data[0]) * m;
    }
    h = (h ^ (h >> 13)) * m;
    return h ^ (h >> 15);
}

static inline uint32_t crc32(const uint8_t *data, int64_t length) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; length >= 8; data += 8, length -= 8) {
        uint32_t low = crc ^ load_le32(data), high = load_le32(data + 4);
        crc = crc_table[7][low & 0xFF] ^ crc_table[6][(low >> 8) & 0xFF] ^ crc_table[5][(low >> 16) & 0xFF] ^
              crc_table[4][low >> 24] ^ crc_table[3][high & 0xFF] ^ crc_table[2][(high >> 8) & 0xFF] ^
              crc_table[1][(high >> 16) & 0xFF] ^ crc_table[0][high >> 24];
    }
    while (length-- > 0) crc = crc_table[0][(crc ^ *data++) & 0xFF] ^ (crc >> 8);
    return ~crc;
}

static inline uint32_t fnv1a(const uint8_t *data, int64_t length) {
    uint32_t h = 0x811C9DC5u;
    while (length-- > 0) h = (h ^ *data++) * 0x01000193u;
    return h;
}

static inline int64_t offset_at(const void *offsets, int wide, int64_t i) {
    return wide ? ((const int64_t *)offsets)[i] : (int64_t)((const int32_t *)offsets)[i];
}

/* The row at which the offsets go backwards or leave the data; -1 when all is well. */
static int64_t hash_rows(int kind, const void *offsets, int wide, int64_t first, int64_t length, const uint8_t *data,
                         int64_t data_length, uint32_t *out) {
    int64_t start = offset_at(offsets, wide, first);
    if (start < 0) return 0;
    for (int64_t i = 0; i < length; i++) {
        int64_t end = offset_at(offsets, wide, first + i + 1);
        if (end < start || end > data_length) return i;
        const uint8_t *key = data + start;
        switch (kind) {
            case MURMUR2: out[i] = murmur2(key, end - start); break;
            case CRC32: out[i] = crc32(key, end - start); break;
            default: out[i] = fnv1a(key, end - start);
        }
        start = end;
    }
    return -1;
}

/* hash_keys(kind, offsets, wide, first, length, data, out): out[i] = hash of key i, as uint32. */
static PyObject *hash_keys(PyObject *self, PyObject *args) {
    int kind, wide;
    long long first, length;
    Py_buffer offsets, data, out;
    (void)self;
    if (!PyArg_ParseTuple(args, "iy*pLLy*w*", &kind, &offsets, &wide, &first, &length, &data, &out)) return NULL;
    PyObject *result = NULL;
    int64_t slots = offsets.len / (wide ? 8 : 4);
    if (kind < MURMUR2 || kind > FNV1A)
        PyErr_Format(PyExc_ValueError, "no such hash: %d", kind);
    else if (first < 0 || length < 0 || first >= slots || length > slots - first - 1)
        PyErr_SetString(PyExc_ValueError, "the key column's offsets are shorter than the column");
    else if (out.len / 4 < length)
        PyErr_SetString(PyExc_ValueError, "the output is shorter than the column");
    else {
        int64_t bad;
        static const uint8_t nothing[1] = {0};
        const uint8_t *bytes = data.len ? (const uint8_t *)data.buf : nothing;
        Py_BEGIN_ALLOW_THREADS
        bad = hash_rows(kind, offsets.buf, wide, first, length, bytes, data.len, (uint32_t *)out.buf);
        Py_END_ALLOW_THREADS
        if (bad >= 0)
            PyErr_Format(PyExc_ValueError, "the key column's offsets leave its data at row %lld", (long long)bad);
        else
            result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    return result;
}

/* A counting sort: stable, one pass to count and one to place. -1, or the row whose partition is out of range. */
static int64_t place_rows(const int32_t *partition, int64_t length, int64_t count, int64_t *order, int64_t *bounds,
                          int64_t *next) {
    memset(bounds, 0, (size_t)(count + 1) * sizeof(int64_t));
    for (int64_t i = 0; i < length; i++) {
        if (partition[i] < 0 || partition[i] >= count) return i;
        bounds[partition[i] + 1]++;
    }
    for (int64_t p = 0; p < count; p++) bounds[p + 1] += bounds[p];
    memcpy(next, bounds, (size_t)count * sizeof(int64_t));
    for (int64_t i = 0; i < length; i++) order[next[partition[i]]++] = i;
    return -1;
}

/* group_rows(partition int32[n], count, order int64[n], bounds int64[count + 1]):
 * order[bounds[p]:bounds[p + 1]] are the rows of partition p, ascending. */
static PyObject *group_rows(PyObject *self, PyObject *args) {
    long long count;
    Py_buffer partition, order, bounds;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*Lw*w*", &partition, &count, &order, &bounds)) return NULL;
    PyObject *result = NULL;
    int64_t length = partition.len / 4;
    if (count < 1 || bounds.len / 8 < count + 1 || order.len / 8 < length)
        PyErr_SetString(PyExc_ValueError, "order or bounds is too short");
    else {
        int64_t *next = (int64_t *)PyMem_Malloc((size_t)count * sizeof(int64_t));
        if (next == NULL)
            PyErr_NoMemory();
        else {
            int64_t bad;
            Py_BEGIN_ALLOW_THREADS
            bad = place_rows((const int32_t *)partition.buf, length, count, (int64_t *)order.buf,
                             (int64_t *)bounds.buf, next);
            Py_END_ALLOW_THREADS
            PyMem_Free(next);
            if (bad >= 0)
                PyErr_Format(PyExc_ValueError, "row %lld: partition %d is not in [0, %lld)", (long long)bad,
                             (int)((const int32_t *)partition.buf)[bad], count);
            else
                result = Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&partition);
    PyBuffer_Release(&order);
    PyBuffer_Release(&bounds);
    return result;
}

#endif
