"""Arrow arrays out of Python lists and NumPy arrays, put together buffer by buffer: `pa.array` would import
pandas when it is first called, for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .columns import HEADERS_TYPE

_INT32_MAX = 2**31 - 1


def wrap_numpy(values: npt.NDArray[Any], kind: Any) -> pa.Array:
    """``values`` as an array of a type of their width, over the same memory where that is contiguous. Raises
    TypeError for another width or byte order: Arrow would read what is behind them."""
    if values.dtype.itemsize * 8 != kind.bit_width or not values.dtype.isnative or values.ndim != 1:
        raise TypeError(f"{values.ndim}-dimensional {values.dtype.str} is no array of {kind}")
    contiguous = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(contiguous), [None, pa.py_buffer(contiguous)])


def build_index(rows: npt.NDArray[np.int64]) -> pa.Array:
    """``rows`` as an int64 array that shares their memory, for `take`."""
    return wrap_numpy(np.asarray(rows, np.int64), pa.int64())


def build_binary(values: Sequence[bytes | None]) -> pa.Array:
    """``values`` as a binary array; large_binary beyond 2 GiB."""
    n, nulls, validity = len(values), 0, None
    try:
        content = b"".join(values)  # type: ignore[arg-type] # to look for None first would take longer than this
        filled: Sequence[bytes] = values  # type: ignore[assignment]
    except TypeError:
        present = np.fromiter((value is not None for value in values), np.bool_, n)
        nulls, validity = n - int(present.sum()), pa.py_buffer(np.packbits(present, bitorder="little"))
        filled = [b"" if value is None else value for value in values]
        content = b"".join(filled)
    ends = np.zeros(n + 1, np.int64)
    np.cumsum(np.fromiter(map(len, filled), np.int64, n), out=ends[1:])
    kind, offsets = (
        (pa.large_binary(), ends) if ends[-1] > _INT32_MAX else (pa.binary(), ends.astype(np.int32))
    )
    return pa.Array.from_buffers(kind, n, [validity, pa.py_buffer(offsets), pa.py_buffer(content)], nulls)


def build_headers(records: Sequence[Sequence[tuple[str, bytes | None]] | None]) -> pa.Array:
    """The headers of each record as `HEADERS_TYPE`; none and no list are both an empty list."""
    pairs = [pair for headers in records if headers for pair in headers]
    keys = build_binary([name.encode() for name, _ in pairs]).cast(pa.string())
    values = build_binary([value for _, value in pairs])
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    offsets = np.zeros(len(records) + 1, np.int32)
    np.cumsum(
        np.fromiter((len(headers or ()) for headers in records), np.int32, len(records)), out=offsets[1:]
    )
    return pa.ListArray.from_arrays(wrap_numpy(offsets, pa.int32()), structs, type=HEADERS_TYPE)
