"""Kafka's zigzag varints (those of Protocol Buffers), a whole column at a time.

A varint holds 32 bits in at most 5 bytes, a varlong 64 bits in at most 10; longer ones overflow and are
refused. An overlong encoding of a small number (``80 00`` for 0) is accepted, as by the readers of Java and
Protocol Buffers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

VARINT_BYTES = 5
VARLONG_BYTES = 10

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_LAST_BYTE = {VARINT_BYTES: 0x0F, VARLONG_BYTES: 0x01}
"""The highest last byte before the number leaves 32 or 64 bits."""


class Varints(NamedTuple):
    """The result of `read_varints` for each position."""

    value: I64
    end: I64
    """The end of the varint: the caller checks that it is within bounds."""
    too_long: I64
    """The indexes of varints with too many bytes or bits (mostly none); their value and end are undefined."""


def read_varints(data: U8, positions: I64, *, max_bytes: int) -> Varints:
    """Read one zigzag varint at each of ``positions``; a position outside the data gives an undefined result.

    ``max_bytes`` is `VARINT_BYTES` or `VARLONG_BYTES`.
    """
    # Clipping makes an unchecked read harmless: the returned end shows if it was out of bounds.
    byte = data.take(positions, mode="clip")
    raw = byte.astype(np.uint64)
    end = positions + 1
    more = (byte >= 0x80).nonzero()[0]
    too_long = more[:0]
    if more.size:
        raw &= np.uint64(0x7F)
    for index in range(1, max_bytes):
        if not more.size:
            break
        everywhere = 2 * more.size > len(positions)
        if everywhere:
            goes_on = _spread(more, len(positions))
            byte = data.take(end, mode="clip") * goes_on
            raw |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
            end += goes_on
        else:
            byte = data.take(end[more], mode="clip")
            raw[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
            end[more] += 1
        if index == max_bytes - 1:
            last = byte > _LAST_BYTE[max_bytes]
            too_long = last.nonzero()[0] if everywhere else more[last]
        more = (byte >= 0x80).nonzero()[0] if everywhere else more[byte >= 0x80]
    value = (raw >> np.uint64(1)).view(np.int64)
    value ^= -(raw & np.uint64(1)).view(np.int64)
    return Varints(value, end, too_long)


def _spread(indexes: I64, length: int) -> npt.NDArray[np.bool_]:
    flags = np.zeros(length, np.bool_)
    flags[indexes] = True
    return flags


def varint_sizes(values: I64) -> I64:
    """Return the size of each of ``values`` as a zigzag varint: 1 to 10 bytes."""
    raw = _zigzag(values)
    sizes = np.ones(len(values), np.int64)
    if not len(values):
        return sizes
    highest = int(raw.max())
    for index in range(1, VARLONG_BYTES):
        if highest >> (7 * index) == 0:
            break
        sizes += raw >= np.uint64(1 << (7 * index))
    return sizes


def write_varints(out: U8, positions: I64, values: I64) -> I64:
    """Write each of ``values`` at its position in ``out`` and return the position after it.

    The caller has reserved the space (`varint_sizes`), and the spans do not overlap.
    """
    raw = _zigzag(values)
    cursor = positions.copy()
    active = np.arange(len(values))
    while active.size:
        more = raw >= np.uint64(0x80)
        out[cursor[active]] = (raw & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        cursor[active] += 1
        active, raw = active[more], raw[more] >> np.uint64(7)
    return cursor


def read_varint(data: memoryview, position: int, max_bytes: int = VARINT_BYTES) -> tuple[int, int]:
    """Read one zigzag varint and return it with the position behind it; ValueError if it is malformed."""
    raw = 0
    for index in range(max_bytes):
        if position >= len(data):
            raise ValueError("is cut off")
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    else:
        raise ValueError(f"has more than {max_bytes} bytes")
    bits = 32 if max_bytes == VARINT_BYTES else 64
    if raw >> bits:
        raise ValueError(f"does not fit {bits} bits")
    return (raw >> 1) ^ -(raw & 1), position


def varint_size(value: int) -> int:
    """Return the size of one number as a zigzag varint (bytes)."""
    raw = value << 1 if value >= 0 else ~(value << 1)
    return max(1, -(-raw.bit_length() // 7))


def _zigzag(values: I64) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)
