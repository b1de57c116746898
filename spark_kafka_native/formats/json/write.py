"""`JsonEncoder`: rows as JSON objects. A writer does it: compiled where the build had a C compiler, else made
of Arrow's text kernels.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from ..arrays import text_scalar
from ..plain_types import nulls_as_text
from .write_kernel import Writer, choose_writer

_WRITER: Final = choose_writer()
_NULL: Final = text_scalar("null")


class JsonEncoder:
    """Writes what Spark's ``to_json`` writes: members that are null are left out, binary values are Base64.

    Timestamps keep their microseconds (``2020-01-01T00:00:00.000000Z``).
    """

    def __init__(self, writer: Writer = _WRITER, *, has_nulls: bool = False) -> None:
        """``has_nulls``: rows have fields of the type null."""
        self._writer = writer
        self._has_nulls = has_nulls

    def encode(self, rows: pa.Array) -> pa.Array:
        """As `Encoder.encode`; ``rows`` are structs. Raises `EncodeError` for more than 2 GiB."""
        return self._writer.write(nulls_as_text(rows) if self._has_nulls else rows)


def json_texts(array: pa.Array) -> pa.Array:
    """The JSON text (string) of each element of any type that `JsonEncoder` writes, ``null`` for a null."""
    return scalar_texts(array).fill_null(_NULL)


def scalar_texts(array: pa.Array) -> pa.Array:
    """As `json_texts`, and null for a null."""
    return _WRITER.write(array).view(pa.string())
