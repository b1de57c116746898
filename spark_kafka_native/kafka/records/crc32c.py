"""CRC-32C (Castagnoli), the checksum of a record batch: computed by fastcrc if its wheel is installed, else
by crcmod if it has its C extension, else in NumPy.

A cluster that got this package as a zip has neither wheel; it still reads and writes correct bytes.

A checksum processes its bytes one after the other; but it is linear. So the NumPy implementation cuts the
data into rows of one length, computes the checksums of all rows side by side, 8 bytes per step, and then
combines them, each shifted by the bytes behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import cast

import numpy as np
import numpy.typing as npt

Checksum = Callable[[bytes | bytearray | memoryview], int]
U32 = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reflected."""
_STEP = 8
"""Bytes processed per step."""
_ROW_STEPS = 16
"""Steps per row: each costs a pass over all rows; the bytes that fill no row are processed one by one."""
_ROW_BYTES = _ROW_STEPS * _STEP
_FEW_ROWS = 12
"""Up to this many rows are processed byte by byte, too: a pass costs 10 us or more, a byte 0.1 us."""


def load_native() -> Checksum:
    """Return fastcrc's CRC-32C (under its other name, iSCSI); ImportError if fastcrc is not installed."""
    import fastcrc

    return cast(Checksum, fastcrc.crc32.iscsi)


def load_portable() -> Checksum:
    """Return crcmod's CRC-32C; ImportError if it is not installed, or has no C extension: its Python takes
    0.3 us per byte, NumPy a fraction of that.
    """
    import crcmod.predefined
    from crcmod import _crcfunext  # noqa: F401 - ImportError if there is no C extension

    compute = cast(Checksum, crcmod.predefined.mkPredefinedCrcFun("crc-32c"))
    return lambda data: compute(bytes(data))


def numpy_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C of a contiguous buffer (RFC 3720, appendix B.4), in [0, 2**32)."""
    content = np.frombuffer(data, np.uint8)
    rows = len(content) // _ROW_BYTES
    head = len(content) if rows <= _FEW_ROWS else len(content) - rows * _ROW_BYTES
    crc = _take_bytes(0xFFFFFFFF, content[:head])
    if head < len(content):
        crc = _take_rows(crc, content[head:].reshape(rows, _ROW_STEPS, _STEP))
    return crc ^ 0xFFFFFFFF


def _take_bytes(crc: int, content: npt.NDArray[np.uint8]) -> int:
    table = _byte_table()
    # A loop over bytes, 0.1 us each: those that fill no row.
    for byte in content.tolist():
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


def _take_rows(crc: int, content: npt.NDArray[np.uint8]) -> int:
    """Continue from ``crc`` with rows of steps: uint8[rows, _ROW_STEPS, _STEP]."""
    rows = len(content)
    tables = _step_tables()
    crcs = np.zeros(rows, np.uint32)
    crcs[0] = crc
    for column in range(_ROW_STEPS):
        step = content[:, column].copy()
        step[:, :4] ^= crcs.astype("<u4").view(np.uint8).reshape(rows, 4)
        crcs = tables[0][step[:, 0]]
        for place in range(1, _STEP):
            crcs ^= tables[place][step[:, place]]
    # Zeros in front change nothing, and a power of two can be combined in pairs.
    crcs = np.concatenate([np.zeros((1 << (rows - 1).bit_length()) - rows, np.uint32), crcs])
    behind = _ROW_BYTES
    while len(crcs) > 1:
        crcs = _shift(crcs[0::2], behind) ^ crcs[1::2]
        behind *= 2
    return int(crcs[0])


def _shift(crcs: U32, zeros: int) -> U32:
    """Shift checksums by ``zeros`` zero bytes."""
    tables = _shift_tables(zeros)
    moved: U32 = tables[0][crcs & np.uint32(0xFF)]
    for place in range(1, 4):
        moved = moved ^ tables[place][crcs >> np.uint32(8 * place) & np.uint32(0xFF)]
    return moved


@cache
def _byte_table() -> list[int]:
    """Return the effect of each byte on a checksum."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> np.uint32(1) ^ np.uint32(_POLYNOMIAL), crc >> np.uint32(1))
    numbers: list[int] = crc.tolist()
    return numbers


@cache
def _step_tables() -> tuple[U32, ...]:
    """Return the effect of each byte of a step on the checksum at its end: uint32[256] for each place."""
    table = np.array(_byte_table(), np.uint32)
    tables = [table]
    for _ in range(_STEP - 1):
        last = tables[-1]
        tables.append(table[last & np.uint32(0xFF)] ^ last >> np.uint32(8))
    return tuple(reversed(tables))


@cache
def _shift_tables(zeros: int) -> tuple[U32, ...]:
    """Return the effect of ``zeros`` zero bytes on the four bytes of a checksum: uint32[256] for each."""
    factor = _power_of_x(8 * zeros)
    numbers = np.arange(256, dtype=np.uint32)
    return tuple(_multiply(numbers << np.uint32(8 * place), factor) for place in range(4))


def _power_of_x(exponent: int) -> int:
    """Return x^exponent modulo the polynomial; its highest bit is x^0."""
    factor, power = 1 << 31, 1 << 30
    while exponent:
        if exponent & 1:
            factor = int(_multiply(np.array([factor], np.uint32), power)[0])
        power = int(_multiply(np.array([power], np.uint32), power)[0])
        exponent >>= 1
    return factor


def _multiply(numbers: U32, factor: int) -> U32:
    """Multiply polynomials modulo the polynomial of the checksum."""
    product = np.zeros(len(numbers), np.uint32)
    for bit in range(31, -1, -1):
        product ^= np.where(numbers >> np.uint32(bit) & np.uint32(1), np.uint32(factor), np.uint32(0))
        factor = factor >> 1 ^ _POLYNOMIAL if factor & 1 else factor >> 1
    return product


def _choose() -> Checksum:
    for load in (load_native, load_portable):
        try:
            return load()
        except ImportError:
            continue
    return numpy_crc32c


crc32c: Checksum = _choose()
"""``crc32c(data) -> int`` in [0, 2**32): the CRC-32C of a contiguous buffer (RFC 3720, appendix B.4)."""
