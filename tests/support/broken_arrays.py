"""Arrays as pyarrow would not make them, as those of another process may come."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def with_offsets(kind: pa.DataType, edges: list[int]) -> pa.Array:
    """Two strings, bytes or lists of ``kind`` over four bytes or items, with these offsets."""
    offsets = np.array([0, 1, 2], np.int32)
    held = [None, pa.py_buffer(offsets)]
    if pa.types.is_list(kind):
        column = pa.Array.from_buffers(kind, 2, held, children=[pa.array([1] * 4, pa.int8())])
    else:
        column = pa.Array.from_buffers(kind, 2, [*held, pa.py_buffer(b"abcd")])
    offsets[:] = edges  # pyarrow would refuse them at once
    return column
