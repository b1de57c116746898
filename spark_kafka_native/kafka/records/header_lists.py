"""`HeaderLists`: record headers on their way to the encoder, without Arrow's slices, nulls and type
variants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class HeaderError(ValueError):
    """A header that no record can carry; ``row`` is its record's."""

    def __init__(self, reason: str, row: int) -> None:
        super().__init__(reason, row)
        self.reason = reason
        self.row = row

    def __str__(self) -> str:
        return f"row {self.row} has a header {self.reason}"


class HeaderLists(NamedTuple):
    """The headers of ``n`` records: those of record i are rows offsets[i] to offsets[i + 1] of ``key`` and
    ``value``."""

    offsets: npt.NDArray[np.int64]
    key: pa.Array
    """Never null."""
    value: pa.Array

    @classmethod
    def from_arrow(cls, headers: pa.Array) -> HeaderLists:
        """Take apart a list of structs of two fields: ``key`` and ``value`` in any order, or of other names
        and then in this order.

        Null lists are empty ones. ValueError for another type, `HeaderError` for a null header and for one
        whose key is null or not UTF-8.
        """
        import pyarrow.compute as pc  # who only reads does not wait for its import

        kind = headers.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not _is_header(kind.value_type):
            raise ValueError(f"headers must be list<struct<key: string, value: binary>>, not {kind}")
        counts = pc.fill_null(pc.list_value_length(headers), 0)
        offsets = np.zeros(len(headers) + 1, np.int64)
        np.cumsum(np.asarray(counts, np.int64), out=offsets[1:])
        structs = headers.flatten()
        key_at = _key_place(kind.value_type)
        key, value = structs.field(key_at), structs.field(1 - key_at)
        if structs.null_count or key.null_count:
            missing = np.asarray(pc.or_(structs.is_null(), key.is_null()))
            row = _row_of(int(np.argmax(missing)), offsets)
            raise HeaderError("with a null key: a key is needed, a value is not", row)
        _check_utf8(key, offsets)
        return cls(offsets, key, value)


def _key_place(struct: pa.DataType) -> int:
    """Which of the two fields is the key: names that say so go before the order."""
    names = [struct.field(0).name, struct.field(1).name]
    return names.index("key") if set(names) == {"key", "value"} else 0


def _row_of(header: int, offsets: npt.NDArray[np.int64]) -> int:
    return int(np.searchsorted(offsets, header, side="right")) - 1


def _check_utf8(keys: pa.Array, offsets: npt.NDArray[np.int64]) -> None:
    """Refuse what readers in other languages replace or fail at, as our own does (`HeaderKeys`): it could be
    written, but would not be read as what it was. Arrow believes a string column unseen, so its bytes are
    looked at, too.
    """
    large = pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type)
    contents = keys.cast(pa.large_binary() if large else pa.binary())
    try:
        contents.cast(pa.large_string() if large else pa.string())  # no copy, but a check
    except pa.ArrowInvalid as invalid:
        for header, content in enumerate(contents):
            key = content.as_py()
            try:
                key.decode()
            except UnicodeDecodeError:
                row = _row_of(header, offsets)
                raise HeaderError(f"whose key {key[:64]!r} is not UTF-8", row) from invalid
        raise


def is_binary(kind: pa.DataType) -> bool:
    """Whether ``kind`` is binary, string or one of their large_ kinds."""
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_string(kind)
        or types.is_large_binary(kind)
        or types.is_large_string(kind)
    )


def _is_header(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_struct(kind)
        and kind.num_fields == 2
        and is_binary(kind.field(0).type)
        and is_binary(kind.field(1).type)
    )
