"""`ArrowIpcFormat`: payloads that are Arrow IPC streams: https://arrow.apache.org/docs/format/Columnar.html

A payload is a whole stream, most often with many rows; a record is one row here, so its value is an array of
structs. `arrow_ipc_sizes` looks at the sizes that a stream claims before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from .arrays import binaries, bitmap, boolean, hide, numbers, offsets_and_data, validity, wrap
from .arrow_ipc_sizes import TooLargeError, check_sizes
from .errors import EncodeError, FormatError
from .format import BadRows, Decoded
from .plain_types import as_payloads, check_distinct

_FAMILIES: Final = (
    (pa.types.is_integer,),
    (pa.types.is_floating,),
    (pa.types.is_string, pa.types.is_large_string),
    (pa.types.is_binary, pa.types.is_large_binary),
    (pa.types.is_decimal,),
    (pa.types.is_boolean,),
    (pa.types.is_date,),
    (pa.types.is_duration,),
)
"""Types that are read as one another, as far as the values fit."""


class ArrowIpcFormat:
    """One Arrow IPC stream in each payload. The type is an array of structs, the rows of the stream; or a
    struct, for streams of one row."""

    def decoder(self, type: pa.DataType, settings: Mapping[str, str]) -> ArrowIpcDecoder:  # noqa: ARG002
        """A decoder into ``type``. Raises `FormatError`."""
        return ArrowIpcDecoder(type, _row_type(type))

    def encoder(self, type: pa.DataType, settings: Mapping[str, str]) -> ArrowIpcEncoder:  # noqa: ARG002
        """An encoder of ``type``. Raises `FormatError`."""
        return ArrowIpcEncoder(_row_type(type))


def _row_type(kind: pa.DataType) -> pa.DataType:
    row = kind.value_type if pa.types.is_list(kind) else kind
    if not pa.types.is_struct(row) or not row.num_fields:
        raise FormatError(
            f"arrow-ipc has the type array<struct<...>>, or struct<...> for one row, not {kind}"
        )
    check_distinct([one.name for one in row])
    return row


class _BadStreamError(Exception):
    """A payload that can't be read, and why."""


@dataclass(frozen=True)
class ArrowIpcDecoder:
    """Decodes streams into one type."""

    type: pa.DataType
    row: pa.DataType
    """The struct of one row of a stream."""

    def decode(self, payloads: pa.Array) -> Decoded:
        """As `Decoder.decode`; a stream that can't be read is null."""
        payloads = as_payloads(payloads)
        parts: list[pa.Array] = []
        lengths = np.zeros(len(payloads), np.int64)
        bad: dict[int, str] = {}
        # Each is copied to memory of its own, where its buffers are aligned.
        for row, payload in enumerate(payloads.to_pylist()):
            if payload is None:
                continue
            try:
                parts.append(self._rows(payload))
                lengths[row] = len(parts[-1])
            except _BadStreamError as error:
                bad[row] = str(error)
        rows = pa.concat_arrays(parts) if parts else pa.nulls(0, self.row)
        present = validity(payloads)
        present[list(bad)] = False
        return Decoded(self._column(rows, lengths, present), BadRows(tuple(bad), tuple(bad.values())))

    def _column(self, rows: pa.Array, lengths: Any, present: Any) -> pa.Array:
        if pa.types.is_struct(self.type):
            return rows.take(wrap(np.cumsum(present) - 1, pa.int64(), present))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if offsets[-1] >= 2**31:
            raise FormatError("These records have more than 2^31 rows together: read fewer at a time")
        buffers = [bitmap(present), _memory(offsets.astype(np.int32))]
        return pa.Array.from_buffers(self.type, len(lengths), buffers, children=[rows])

    def _rows(self, payload: bytes) -> pa.Array:
        """The rows of one stream. Raises `_BadStreamError`."""
        try:
            limit = check_sizes(payload, self.row.num_fields)
            batches = self._batches(payload)
            size = 0
            for batch in batches:
                batch.validate(full=True)
                size += sum(map(_size, batch.columns))
                if size > limit:
                    raise TooLargeError(size, limit)
            parts = [_converted(batch, self.row) for batch in batches]
        except TooLargeError as error:
            raise _BadStreamError(str(error)) from None
        except MemoryError:  # Arrow's is an ArrowException, too, and says nothing about the stream
            raise
        except (pa.ArrowException, OSError, EOFError, ValueError, KeyError, TypeError, struct.error) as error:
            reason = str(error).splitlines()[0][:150] if str(error) else type(error).__name__
            raise _BadStreamError(f"no Arrow IPC stream: {reason}") from None
        rows = pa.concat_arrays(parts) if parts else pa.nulls(0, self.row)
        if pa.types.is_struct(self.type) and len(rows) != 1:
            raise _BadStreamError(f"a stream of {len(rows)} rows, where the type is that of a single one")
        return rows

    def _batches(self, payload: bytes) -> list[pa.RecordBatch]:
        names = pa.ipc.read_schema(pa.BufferReader(payload)).names
        wanted = [one.name for one in self.row]
        if any(names.count(name) > 1 for name in wanted):
            raise _BadStreamError("two columns of the stream have the same name")
        included = [index for index, name in enumerate(names) if name in wanted]
        # No field at all would mean all of them.
        options = pa.ipc.IpcReadOptions(included_fields=included or [0] * bool(names), use_threads=False)
        source = pa.BufferReader(payload)
        with pa.ipc.open_stream(source, options=options) as reader:
            batches = list(reader)
        if source.tell() != len(payload):
            raise _BadStreamError("bytes follow the end of the stream")
        return batches


def _memory(values: Any) -> Any:
    return pa.py_buffer(np.ascontiguousarray(values))


def _is_of_words(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) and kind.value_type in (pa.string(), pa.binary())


def _size(column: pa.Array) -> int:
    """The bytes of a column once it is read: columns may share theirs in the payload, words of a dictionary
    stand for many values, and nulls without a type have no bytes at all there.

    Arrow's `nbytes` would follow the offsets of no lists at all, which nothing has validated, out of memory.
    """
    types, kind = pa.types, column.type
    if types.is_null(kind):
        return len(column)
    if types.is_struct(kind):
        return sum(_size(column.field(index)) for index in range(kind.num_fields))
    if types.is_list(kind) or types.is_map(kind):
        return 4 * len(column) + sum(map(_size, _elements(column))) if len(column) else 0
    return _size_of_words(column) if _is_of_words(kind) else int(column.get_total_buffer_size())


def _size_of_words(column: pa.Array) -> int:
    lengths = np.diff(offsets_and_data(column.dictionary)[0]).astype(np.int64)
    return 4 * len(column) + int(lengths[column.indices.drop_null().to_numpy()].sum())


def _elements(lists: pa.Array) -> list[pa.Array]:
    """Those of lists, of which there is one at least; or the keys and the items of maps."""
    offsets = numbers(lists.offsets)
    parts = [lists.keys, lists.items] if pa.types.is_map(lists.type) else [lists.values]
    return [part.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) for part in parts]


def _converted(batch: pa.RecordBatch, row: pa.DataType) -> pa.Array:
    """The rows of a batch as structs of type ``row``; a column that is not there is null."""
    columns = []
    for field in row:
        index = batch.schema.get_field_index(field.name)
        columns.append(
            pa.nulls(batch.num_rows, field.type)
            if index < 0
            else _as_type(batch.column(index), field.type, field.name)
        )
    return pa.Array.from_buffers(row, batch.num_rows, [None], children=columns)


def _as_type(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    if column.type == kind:
        return column
    if _is_of_words(column.type):
        column = column.dictionary_decode()
    if not _is_related(column.type, kind):
        raise _BadStreamError(f"`{name}` is {column.type} in the stream, not {kind}"[:150])
    try:
        return _cast(column, kind)
    except pa.ArrowException as error:
        raise _BadStreamError(f"`{name}`: {str(error).splitlines()[0][:150]}") from None


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """``column`` as the related type ``kind``, value by value: Arrow's casts let some numbers pass, and check
    values under a null list or struct. Raises `pa.ArrowException`."""
    types = pa.types
    if column.type == kind:
        return column
    if types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if types.is_struct(kind):
        return _cast_struct(column, kind)
    if types.is_list(kind) or types.is_map(kind):
        return _cast_lists(column, kind)
    if types.is_decimal(kind):
        return _cast_decimals(column, kind)
    converted = column.cast(kind)
    if types.is_floating(kind) and np.any(_infinite(converted) & ~_infinite(column)):
        raise pa.ArrowInvalid(f"a number is too large for {kind}")
    return converted


def _cast_struct(column: pa.Array, kind: pa.DataType) -> pa.Array:
    # They are null where the struct is.
    children = [_cast(child, one.type) for child, one in zip(column.flatten(), kind, strict=True)]
    for child, one in zip(children, kind, strict=True):
        if not one.nullable and child.null_count > column.null_count:
            raise pa.ArrowInvalid(f"a null in {one.name}, which has none")
    return pa.Array.from_buffers(kind, len(column), [bitmap(validity(column))], children=children)


def _cast_lists(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Lists or maps."""
    if not len(column):
        return pa.nulls(0, kind)
    present, lengths = validity(column), np.diff(numbers(column.offsets))
    parts = _elements(column)
    if not present.all():  # A null may have elements, which count for nothing.
        used = boolean(np.repeat(present, lengths))
        parts = [part.filter(used) for part in parts]
    if pa.types.is_map(kind):
        children = [_cast(parts[0], kind.key_type), _cast(parts[1], kind.item_type)]
        entry = pa.struct([kind.key_field, kind.item_field])
        values = pa.Array.from_buffers(entry, len(parts[0]), [None], children=children)
    else:
        values = _cast(parts[0], kind.value_type)
    ends = np.concatenate([[0], np.cumsum(lengths * present)]).astype(np.int32)
    return pa.Array.from_buffers(kind, len(column), [bitmap(present), _memory(ends)], children=[values])


def _cast_decimals(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Arrow adds decimal places without a look at the bits that it has, where a large number wraps around: so
    the digits are counted first, and get as many bits as they need. Nor does it look at the scale, of which a
    stream may claim any, and reads behind its table of the powers of ten."""
    have = column.type
    added = kind.scale - have.scale
    if abs(added) > 76:
        raise pa.ArrowInvalid(f"{have} has a scale too far from that of {kind}")
    # Where none remains, a type still has one; 6 * 10^76 wraps around, but not to a number that fits.
    digits = max(1, min(have.precision, kind.precision - added))
    is_small = max(digits, digits + added, -added) <= 38
    wide, most = (pa.decimal128, 38) if is_small else (pa.decimal256, 76)
    try:
        counted = column.cast(wide(digits, have.scale))
    except pa.ArrowInvalid:
        raise pa.ArrowInvalid(f"a number is too large for {kind}") from None
    # Fewer bits would cut the number before its digits are counted.
    return counted.cast(wide(min(kind.precision, most), kind.scale)).cast(kind)


def _infinite(column: pa.Array) -> Any:
    return np.isinf(numbers(column)) & validity(column)


def _is_related(have: pa.DataType, want: pa.DataType) -> bool:
    """True if values of ``have`` mean the same as ``want``, if they fit."""
    types = pa.types
    if have == want or types.is_null(have):
        return True
    if types.is_timestamp(have) and types.is_timestamp(want):
        return (have.tz is None) == (want.tz is None)
    if types.is_list(have) and types.is_list(want):
        return _is_related(have.value_type, want.value_type)
    if types.is_map(have) and types.is_map(want):
        return _is_related(have.key_type, want.key_type) and _is_related(have.item_type, want.item_type)
    if types.is_struct(have) and types.is_struct(want):
        names = [one.name for one in have]
        return names == [one.name for one in want] and all(
            _is_related(one.type, other.type) for one, other in zip(have, want, strict=True)
        )
    return any(_is_of(have, family) and _is_of(want, family) for family in _FAMILIES)


def _is_of(kind: pa.DataType, family: tuple[Any, ...]) -> bool:
    return any(is_one(kind) for is_one in family)


@dataclass(frozen=True)
class ArrowIpcEncoder:
    """Encodes rows as streams."""

    row: pa.DataType

    def encode(self, rows: pa.Array) -> pa.Array:
        """As `Encoder.encode`: a stream for each array, or for each struct."""
        present = validity(rows)
        streams = [
            self._stream(rows, index) if there else None for index, there in enumerate(present.tolist())
        ]
        return hide(binaries([one or b"" for one in streams]), ~present)

    def _stream(self, rows: pa.Array, index: int) -> bytes:
        if pa.types.is_struct(rows.type):
            part = rows.slice(index, 1)
        else:
            part = rows.slice(index, 1).flatten()
            if part.null_count:
                raise EncodeError(index, "a row of the stream is null")
        # A slice ends in the middle of its buffers, which are written up to the next eight bytes: the next
        # row's would be in the payload, and equal rows (keys!) would have different bytes.
        part = part.take(wrap(np.arange(len(part)), pa.int64()))
        batch = pa.RecordBatch.from_struct_array(part)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema(list(self.row))) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(list(self.row))))
        return bytes(sink.getvalue())
