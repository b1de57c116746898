"""`RecordColumns`: the in-memory form of records that the read path and the write path share; functions that
build Arrow arrays from Python lists and NumPy arrays; and record headers in Arrow columns (`HeaderLists`).

A `RecordColumns` knows no topic and no partition: it holds records of *some* partition, in order. It owns its
memory (no column points into a network buffer that will be reused). The arrays are built buffer by buffer:
`pa.array` would import pandas when it is first called.

Kafka's specification says that header keys are text, and no broker checks it: `read_header_keys` decides
what becomes of keys that are not UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model import NO_TIMESTAMP_MS, HeaderKeys, Record, TimestampType

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
"""Kafka's record headers as an Arrow type: ordered, duplicates allowed, a value may be null, a key may
not."""

HEADERS_AS_BYTES_TYPE = pa.list_(pa.struct([pa.field("key", pa.binary()), pa.field("value", pa.binary())]))
"""`HEADERS_TYPE` with the keys as bytes, unchanged (`HeaderKeys.BYTES`)."""

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """``n`` records as columns.

    A column that was not requested (read) or not given (write) is None, with the defaults named below.
    """

    length: int
    """n; every column that is present has this length."""
    offset: npt.NDArray[np.int64] | None = None
    """Absolute offsets, strictly increasing. Write: ignored (the broker assigns them)."""
    timestamp_ms: npt.NDArray[np.int64] | None = None
    """Milliseconds since the epoch; -1 is "no timestamp". Write: None means now, at encoding."""
    timestamp_type: npt.NDArray[np.int8] | None = None
    """`TimestampType` of each record. Write: ignored (the topic decides)."""
    key: pa.Array | None = None
    """binary (write: also string and their ``large_`` kinds), nullable. Write: None means all null."""
    value: pa.Array | None = None
    """As ``key``."""
    headers: pa.Array | None = None
    """`HEADERS_TYPE` (or `HEADERS_AS_BYTES_TYPE`, if requested); null where a record has none (as in Spark's
    connector). Write: null and empty both mean none."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records, see `records`; their topic is empty."""
        return self.records()

    def records(self, topic: str = "", partition: int = -1) -> Iterator[Record]:
        """Iterate over the records, with the topic and partition that the caller gives.

        Whole columns become lists first, about 0.3 us per record: slice columns that are too large for that.
        """
        n = self.length
        rows = zip(
            repeat(topic, n),
            repeat(partition),
            repeat(-1) if self.offset is None else self.offset.tolist(),
            repeat(None) if self.key is None else _list_of(self.key),
            repeat(None) if self.value is None else _list_of(self.value),
            repeat(()) if self.headers is None else _header_tuples(self.headers),
            repeat(NO_TIMESTAMP_MS) if self.timestamp_ms is None else self.timestamp_ms.tolist(),
            repeat(TimestampType.CREATE_TIME)
            if self.timestamp_type is None
            else self.timestamp_type.tolist(),
        )
        return map(tuple.__new__, repeat(Record), rows)  # as Record._make, without its Python frame

    def to_arrow(self, topic: str | None = None, partition: int | None = None) -> pa.RecordBatch:
        """Return the columns that are present as one RecordBatch, without a copy: ``key``, ``value``,
        ``headers``, ``offset`` (int64), ``timestamp`` (UTC, in ms; null for none), ``timestamp_type`` (int8).

        ``topic`` and ``partition`` (int32) are added as columns if they are given. `Producer.send_columns`
        accepts the batch unchanged. ValueError if there are more rows than `max_topic_rows`: `slice` them.
        """
        if topic is not None and self.length > (most := max_topic_rows(topic)):
            raise ValueError(
                f"{self.length} rows with the topic {topic!r} do not fit in one column: at most {most} do. "
                "Leave the topic out, or slice the columns"
            )
        columns: dict[str, Any] = {
            "key": self.key,
            "value": self.value,
            "headers": self.headers,
            "topic": None if topic is None else pa.repeat(topic, self.length),
            "partition": None
            if partition is None
            else pa.repeat(pa.scalar(partition, pa.int32()), self.length),
            "offset": self.offset,
            "timestamp": None if self.timestamp_ms is None else _timestamps(self.timestamp_ms),
            "timestamp_type": self.timestamp_type,
        }
        present = {name: column for name, column in columns.items() if column is not None}
        arrays = [pa.array(column) for column in present.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(present))

    @classmethod
    def concatenate(cls, pieces: Sequence[RecordColumns]) -> RecordColumns:
        """Return a copy of the rows of ``pieces`` (at least one, all with the same columns), in order."""
        if len(pieces) == 1:
            return pieces[0]

        def join(name: str) -> Any:
            parts = [getattr(piece, name) for piece in pieces]
            if parts[0] is None:
                return None
            return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)

        return cls(
            length=sum(piece.length for piece in pieces),
            offset=join("offset"),
            timestamp_ms=join("timestamp_ms"),
            timestamp_type=join("timestamp_type"),
            key=join("key"),
            value=join("value"),
            headers=join("headers"),
        )

    def slice(self, start: int, stop: int) -> RecordColumns:
        """Return rows ``[start, stop)`` as views, or ``self`` if these are all rows."""
        if start == 0 and stop == self.length:
            return self

        def cut(column: Any) -> Any:
            return None if column is None else column[start:stop]

        return RecordColumns(
            length=stop - start,
            offset=cut(self.offset),
            timestamp_ms=cut(self.timestamp_ms),
            timestamp_type=cut(self.timestamp_type),
            key=cut(self.key),
            value=cut(self.value),
            headers=cut(self.headers),
        )


def max_topic_rows(topic: str) -> int:
    """How many times the name of a topic fits in a string column: `pyarrow.repeat` would wrap its offsets."""
    return _INT32_MAX // max(1, len(topic.encode()))


def _list_of(column: pa.Array) -> list[Any]:
    return list(column.to_numpy(zero_copy_only=False))


def _header_tuples(headers: pa.Array) -> Iterable[tuple[Any, ...]]:
    """Return the headers of each record as a tuple of pairs."""
    if headers.null_count == len(headers):
        return repeat(())
    import pyarrow.compute as pc  # late: importing it takes half the time of importing pyarrow

    structs = headers.flatten()
    pairs = list(zip(_list_of(structs.field(0)), _list_of(structs.field(1)), strict=True))
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(headers), 0)).to_pylist()
    return (tuple(pairs[start:end]) if start < end else () for start, end in pairwise([0, *ends]))


def _timestamps(timestamp_ms: npt.NDArray[np.int64]) -> pa.Array:
    missing = timestamp_ms == NO_TIMESTAMP_MS
    return pa.array(timestamp_ms, pa.timestamp("ms", "UTC"), mask=missing if missing.any() else None)


def wrap_numpy(values: npt.NDArray[Any], kind: Any) -> pa.Array:
    """Return ``values`` as an array of Arrow type ``kind``, over the same memory where that is contiguous.

    Raises TypeError if ``kind`` has another width or byte order: Arrow would read beyond the values.
    """
    if values.dtype.itemsize * 8 != kind.bit_width or not values.dtype.isnative or values.ndim != 1:
        raise TypeError(f"{values.ndim}-dimensional {values.dtype.str} is no array of {kind}")
    contiguous = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(contiguous), [None, pa.py_buffer(contiguous)])


def build_index(rows: npt.NDArray[np.int64], nulls: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return ``rows`` as an int64 array for `take`, over the same memory; null where ``nulls`` is true."""
    if nulls is None or not nulls.any():
        return wrap_numpy(np.asarray(rows, np.int64), pa.int64())
    validity = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(rows), [validity, pa.py_buffer(rows)])


def build_binary(values: Sequence[bytes | None]) -> pa.Array:
    """Return ``values`` as a binary array, large_binary if they exceed 2 GiB."""
    n, nulls, validity = len(values), 0, None
    try:
        content = b"".join(values)  # type: ignore[arg-type] # looking for None first would take longer
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
    """Return the headers of each record as `HEADERS_TYPE`; None becomes an empty list."""
    pairs = [pair for headers in records if headers for pair in headers]
    keys = build_binary([name.encode() for name, _ in pairs]).cast(pa.string())
    values = build_binary([value for _, value in pairs])
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    offsets = np.zeros(len(records) + 1, np.int32)
    np.cumsum(
        np.fromiter((len(headers or ()) for headers in records), np.int32, len(records)), out=offsets[1:]
    )
    return pa.ListArray.from_arrays(wrap_numpy(offsets, pa.int32()), structs, type=HEADERS_TYPE)


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
        names, the key first. They have types that `to_binary` takes.

        A null list counts as empty. ValueError for another type, `HeaderError` for a null header and for a
        header with a key that is null or not UTF-8.
        """
        import pyarrow.compute as pc  # late: a process that only reads does not need it

        kind = headers.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not _is_pair(kind.value_type):
            raise ValueError(f"headers must be list<struct<key: string, value: binary>>, not {kind}")
        counts = pc.fill_null(pc.list_value_length(headers), 0)
        offsets = np.zeros(len(headers) + 1, np.int64)
        np.cumsum(np.asarray(counts, np.int64), out=offsets[1:])
        structs = headers.flatten()
        key_at = _key_place(kind.value_type)
        key, value = _plain(structs.field(key_at)), _plain(structs.field(1 - key_at))
        if key is None or value is None:
            raise ValueError(f"headers must be list<struct<key: string, value: binary>>, not {kind}")
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


def to_binary(column: pa.Array) -> pa.Array | None:
    """Return ``column`` as binary or large_binary, text as UTF-8: binary, strings, their ``large_`` and view
    kinds, bytes of fixed size, dictionaries of those, and nulls. None if it has another type.
    """
    types, kind = pa.types, column.type
    if types.is_binary(kind) or types.is_large_binary(kind):
        return column
    if types.is_string(kind):
        return column.cast(pa.binary())  # copies nothing
    if types.is_large_string(kind):
        return column.cast(pa.large_binary())
    if types.is_null(kind):
        return pa.nulls(len(column), pa.binary())
    if types.is_dictionary(kind):
        words = to_binary(column.dictionary)
        return None if words is None else _take_words(words, column.indices)
    if types.is_fixed_size_binary(kind):
        is_large = (column.offset + len(column)) * kind.byte_width > _INT32_MAX
        return column.cast(pa.large_binary() if is_large else pa.binary())
    if str(kind) in ("string_view", "binary_view"):
        # Arrow's cast to 32-bit offsets does not see that views have more than 2 GiB.
        return column.cast(pa.large_binary())
    return None


def _take_words(words: pa.Array, indices: pa.Array) -> pa.Array:
    try:
        return words.take(indices)
    except pa.ArrowInvalid:  # more than 2 GiB
        return words.cast(pa.large_binary()).take(indices)


def _plain(column: pa.Array) -> pa.Array | None:
    return column if is_binary(column.type) else to_binary(column)


def _is_pair(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and kind.num_fields == 2)


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
