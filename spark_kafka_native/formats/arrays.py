"""Arrow arrays out of NumPy's and bytes, without `pyarrow`'s own conversions.

``pa.array`` and ``pa.scalar`` import pandas, and so does a kernel that is given a Python value: 0.7 s of a
new process, which reads of good payloads do without.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def wrap(values: npt.NDArray[Any], kind: pa.DataType, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """The memory of ``values``, one number for each element, as an array of ``kind``; null where not
    ``valid``."""
    return pa.Array.from_buffers(
        kind, len(values), [_bits(valid), pa.py_buffer(np.ascontiguousarray(values))]
    )


def boolean(values: npt.NDArray[np.bool_]) -> pa.Array:
    """An array of boolean."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def text_scalar(text: str) -> pa.Scalar:
    """A string."""
    data = text.encode()
    ends = pa.py_buffer(np.array([0, len(data)], np.int32))
    return pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(data)])[0]


def offsets_and_data(array: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Of a binary or string array: its n + 1 offsets, and the bytes that they point into."""
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    places = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
    return places, np.frombuffer(data or b"", np.uint8)


def validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Where ``array`` is not null."""
    bits = array.buffers()[0]
    if bits is None:
        return np.ones(len(array), np.bool_)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return unpacked[array.offset : array.offset + len(array)].astype(np.bool_)


def _bits(values: npt.NDArray[np.bool_] | None) -> Any:
    return None if values is None else pa.py_buffer(np.packbits(values, bitorder="little"))
