"""Arrow arrays out of NumPy's and bytes, without `pyarrow`'s own conversions.

``pa.array`` and ``pa.scalar`` import pandas, and so does a kernel that is given a Python value: 0.7 s of a
new process, which reads of good payloads do without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def wrap(values: npt.NDArray[Any], kind: pa.DataType, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """The memory of ``values``, one number for each element, as an array of ``kind``; null where not
    ``valid``."""
    return pa.Array.from_buffers(
        kind, len(values), [bitmap(valid), pa.py_buffer(np.ascontiguousarray(values))]
    )


def boolean(values: npt.NDArray[np.bool_]) -> pa.Array:
    """An array of boolean."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bitmap(values)])


def strings(texts: Sequence[str]) -> pa.Array:
    """An array of strings."""
    return binaries([text.encode() for text in texts]).cast(pa.string())


def binaries(values: Sequence[bytes]) -> pa.Array:
    """An array of binary."""
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(one) for one in values], out=ends[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    )


def text_scalar(text: str) -> pa.Scalar:
    """A string."""
    return strings([text])[0]


_FLOATS: Final = {"halffloat": "f2", "float": "f4", "double": "f8"}


def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """NumPy's type for numbers of ``kind``. `to_pandas_dtype` imports pandas; without it pyarrow 18 fails."""
    name = str(kind)
    return np.dtype(_FLOATS.get(name, name))


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """The numbers of ``array``, without a copy; anything where it is null."""
    data = array.buffers()[1]
    kind = numpy_type(array.type)
    if data is None or not len(array):
        return np.zeros(len(array), kind)
    return np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)


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


def hide(values: pa.Array, where: npt.NDArray[np.bool_]) -> pa.Array:
    """Scalars ``values``, null where ``where`` is true; without a copy of them."""
    if not where.any():
        return values
    valid = np.concatenate([np.zeros(values.offset, np.bool_), validity(values) & ~where])
    buffers = [bitmap(valid), *values.buffers()[1:]]
    return pa.Array.from_buffers(values.type, len(values), buffers, offset=values.offset)


def bitmap(values: npt.NDArray[np.bool_] | None) -> Any:
    """``values`` as the validity of an array, or as booleans; None for None."""
    return None if values is None else pa.py_buffer(np.packbits(values, bitorder="little"))


_NEWLINE: Final = text_scalar("\n")


def join_lines(texts: pa.Array) -> Any:
    """``texts`` with a line feed between each two of them: one buffer."""
    ends = wrap(np.array([0, len(texts)], np.int32), pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(ends, texts), _NEWLINE)[0].as_buffer()


def spread(array: pa.Array, present: npt.NDArray[np.bool_]) -> pa.Array:
    """``array``'s rows where ``present`` is true, nulls where it is not."""
    return array.take(wrap(np.cumsum(present) - 1, pa.int64(), present))


_MIN_DAYS, _MAX_DAYS = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, the first and the last day that Python knows."""
_DAY_US: Final = 86_400_000_000


def check_values(array: pa.Array) -> None:
    """Raise `pa.ArrowInvalid` for values that Arrow's readers let pass: decimals with more digits than their
    type, and years before 1 or after 9999."""
    types = pa.types
    kind = array.type
    if types.is_struct(kind):
        for child in array.flatten():
            check_values(child)
    elif types.is_list(kind):
        check_values(array.flatten())
    elif types.is_decimal(kind):
        array.validate(full=True)
    elif types.is_timestamp(kind):
        _check_range(array.view(pa.int64()), _MIN_DAYS * _DAY_US, (_MAX_DAYS + 1) * _DAY_US - 1)
    elif types.is_date32(kind):
        _check_range(array.view(pa.int32()), _MIN_DAYS, _MAX_DAYS)


def _check_range(array: pa.Array, least: int, most: int) -> None:
    values = np.frombuffer(array.buffers()[1], numpy_type(array.type))[array.offset :][: len(array)]
    outside = ((values < least) | (values > most)) & validity(array)
    if outside.any():
        raise pa.ArrowInvalid("a year before 1 or after 9999")
