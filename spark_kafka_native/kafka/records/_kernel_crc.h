/* CRC-32C without reading the data again: the effect of the zero bytes behind a part on its checksum. */

#ifndef KERNEL_CRC_H
#define KERNEL_CRC_H

#include <Python.h>
#include <stdint.h>

/* A CRC is a polynomial over GF(2) modulo this one, bits reflected: the highest bit is x^0. */
#define CRC32C_POLYNOMIAL UINT32_C(0x82F63B78)
#define CRC32C_ONE (UINT32_C(1) << 31)
#define CRC32C_ZERO_BYTE (UINT32_C(1) << 23) /* x^8 */

static uint32_t crc_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0, bit;
    for (bit = CRC32C_ONE; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ CRC32C_POLYNOMIAL : b >> 1;
    }
    return product;
}

static PyObject *shift_crc32c(PyObject *self, PyObject *args)
{
    unsigned long long zeros;
    unsigned int crc;
    uint32_t power = CRC32C_ZERO_BYTE, factor = CRC32C_ONE;
    (void)self;
    if (!PyArg_ParseTuple(args, "IK", &crc, &zeros))
        return NULL;
    for (; zeros; zeros >>= 1) {
        if (zeros & 1)
            factor = crc_multiply(factor, power);
        power = crc_multiply(power, power);
    }
    return PyLong_FromUnsignedLong(crc_multiply(crc, factor));
}

#endif
