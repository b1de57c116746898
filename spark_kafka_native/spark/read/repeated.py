"""`repeat`: arrays of one value, kept and sliced, so that a constant column costs next to nothing."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from ...kafka.records.columns import build_binary, wrap_numpy

MAX_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Of all that a process keeps: a million rows of a topic's name can take 249 MB."""
_MIN_LENGTH: Final = 1024

_kept: dict[tuple[object, Any], tuple[pa.Array, int]] = {}
"""With its bytes, by value and type; what was used last is at the end."""
_kept_bytes = 0
"""Of all of them. Counted along: to ask each array took most of the time of a task over many partitions."""


def repeat(value: str | int, kind: Any, length: int) -> pa.Array:
    """``length`` times ``value``, as an array of type ``kind`` (string or int32)."""
    global _kept_bytes
    array, nbytes = _kept.pop((value, kind), (None, 0))
    _kept_bytes -= nbytes
    if array is None or len(array) < length:
        array = pa.repeat(_array_of(value, kind)[0], max(length, _MIN_LENGTH))
        nbytes = array.nbytes
    if nbytes <= MAX_KEPT_BYTES:
        _kept[value, kind] = array, nbytes
        _kept_bytes += nbytes
        _drop_oldest()
    return array.slice(0, length)


def kept_bytes() -> int:
    """What the arrays that are kept take."""
    return _kept_bytes


def _array_of(value: str | int, kind: Any) -> pa.Array:
    # `pa.scalar` imports pandas: 0.7 s of each new worker's first task.
    if isinstance(value, int):
        return wrap_numpy(np.array([value], np.int32), kind)
    return build_binary([value.encode()]).view(kind)


def _drop_oldest() -> None:
    global _kept_bytes
    while _kept_bytes > MAX_KEPT_BYTES:
        _, nbytes = _kept.pop(next(iter(_kept)))
        _kept_bytes -= nbytes
