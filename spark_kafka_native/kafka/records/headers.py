"""Record headers in Arrow columns: `HeaderLists` for the encoder, and how the decoder reads header keys that
are not UTF-8.

Kafka's specification says that header keys are text, and no broker checks it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model import HeaderKeys

MAX_KEYS_BYTES = 2**31 - 1
"""The int32 offsets of a string column reach no further; a malformed byte becomes the three of U+FFFD."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""A UTF-16 surrogate encoded as if it were a character, possibly truncated: Java counts it as one malformed
sequence, Python as two or three."""


class HeaderError(ValueError):
    """A header that no record can carry; ``row`` is the row of its record."""

    def __init__(self, reason: str, row: int) -> None:
        super().__init__(reason, row)
        self.reason = reason
        self.row = row

    def __str__(self) -> str:
        return f"row {self.row} has a header {self.reason}"


class HeaderLists(NamedTuple):
    """The headers of ``n`` records, without Arrow's slices, nulls and type variants: the headers of record i
    are rows offsets[i] to offsets[i + 1] of ``key`` and ``value``.
    """

    offsets: npt.NDArray[np.int64]
    key: pa.Array
    """Never null."""
    value: pa.Array

    @classmethod
    def from_arrow(cls, headers: pa.Array) -> HeaderLists:
        """Convert a list of structs of two fields: ``key`` and ``value`` in any order, or fields of other
        names, the key first.

        A null list counts as empty. ValueError for another type, `HeaderError` for a null header and for a
        header with a key that is null or not UTF-8.
        """
        import pyarrow.compute as pc  # late: a process that only reads does not need it

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
    """Return which of the two fields is the key: by name if the names are known, else the first."""
    names = [struct.field(0).name, struct.field(1).name]
    return names.index("key") if set(names) == {"key", "value"} else 0


def _row_of(header: int, offsets: npt.NDArray[np.int64]) -> int:
    return int(np.searchsorted(offsets, header, side="right")) - 1


def _check_utf8(keys: pa.Array, offsets: npt.NDArray[np.int64]) -> None:
    """Refuse keys that are not UTF-8: they could be written, but readers (ours too, see `HeaderKeys`) replace
    such bytes or fail. Arrow does not validate a string column by itself, so its bytes are checked, too.
    """
    large = pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type)
    contents = keys.cast(pa.large_binary() if large else pa.binary())
    try:
        contents.cast(pa.large_string() if large else pa.string())  # checks, and copies nothing
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
    """Return True if ``kind`` is binary, string or one of their large_ kinds."""
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


class HeaderKeyError(ValueError):
    """A header key that does not fit the requested form; ``index`` counts keys."""

    def __init__(self, reason: str, index: int) -> None:
        super().__init__(reason, index)
        self.reason = reason
        self.index = index


def read_header_keys(keys: pa.Array, form: HeaderKeys) -> pa.Array:
    """Convert ``keys`` (binary, no nulls) to ``form``: strings, or the bytes unchanged.

    `HeaderKeyError` for the first key that is not UTF-8 if ``form`` is strict, and if the keys exceed
    `MAX_KEYS_BYTES` once their malformed bytes are replaced.
    """
    if form is HeaderKeys.BYTES:
        return keys
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        if form is HeaderKeys.STRICT:
            raise _find_malformed(keys) from None
    return _replace_malformed(keys)


def replace_malformed(key: bytes) -> bytes:
    """Return ``key`` as UTF-8 with U+FFFD for each malformed sequence, as many as Java's
    ``new String(bytes, UTF_8)`` gives.
    """
    return _SURROGATE.sub(_REPLACEMENT, key).decode(errors="replace").encode()


def _replace_malformed(keys: pa.Array) -> pa.Array:
    # A Python object per distinct key, and only if one of them is malformed.
    encoded = keys.dictionary_encode()
    distinct = [replace_malformed(key) for key in encoded.dictionary.to_pylist()]
    lengths = np.array([len(key) for key in distinct], np.int64)
    if int(lengths[np.asarray(encoded.indices)].sum()) > MAX_KEYS_BYTES:
        raise HeaderKeyError("not UTF-8, and more than 2 GiB with U+FFFD for what is malformed", 0)
    edges = np.zeros(len(distinct) + 1, np.int32)
    np.cumsum(lengths, out=edges[1:])
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(b"".join(distinct))]
    return pa.Array.from_buffers(pa.string(), len(distinct), buffers).take(encoded.indices)


def _find_malformed(keys: pa.Array) -> HeaderKeyError:
    for index, key in enumerate(keys.to_pylist()):
        try:
            key.decode()
        except UnicodeDecodeError as error:
            return HeaderKeyError(f"not UTF-8: {key[:64]!r} ({error.reason})", index)
    raise AssertionError("Arrow refused keys that are UTF-8")
