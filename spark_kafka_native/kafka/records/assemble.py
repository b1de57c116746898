"""Scanned positions become Arrow columns, or an error that explains the fault of a record.

This is the only place where keys, values and headers are copied. The errors come from a second reader, slow
and simple, which reads a single record that a kernel refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import CorruptRecordError
from ..model import HeaderKeys
from .columns import HEADERS_AS_BYTES_TYPE, HEADERS_TYPE, RecordColumns
from .headers import HeaderKeyError, read_header_keys
from .kernel import chosen as kernel
from .scan import SAME_TIMESTAMP, BadRecord, Scan, ScannedRecords, Source
from .varint import VARINT_BYTES, VARLONG_BYTES, read_varint

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Batches = npt.NDArray[np.void]

_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)


def assemble_columns(
    scan: Scan, wanted: frozenset[str], timestamp_types: npt.NDArray[np.int8], header_keys: HeaderKeys
) -> RecordColumns:
    """Build the ``wanted`` columns of the rows that the reader requested.

    ``timestamp_types`` has one entry per batch. `CorruptRecordError` if headers break the format.
    """
    sources, batches, scanned, low, high, _ = scan
    ends = (batches["count"].cumsum() - low).clip(0, high - low)
    owners = np.ascontiguousarray(batches["source"])
    picked = scanned.rows(low, high)
    key = value = headers = types = None
    if picked.key_start is not None and picked.key_length is not None:
        key = kernel.gather_binary(sources, ends, owners, picked.key_start, picked.key_length)
    if picked.value_start is not None and picked.value_length is not None:
        value = kernel.gather_binary(sources, ends, owners, picked.value_start, picked.value_length)
    if picked.headers_start is not None:
        headers = _build_headers(sources, ends, owners, picked, header_keys)
    if "timestamp_type" in wanted:
        types = np.repeat(timestamp_types, batches["count"])[low:high]
    return RecordColumns(
        length=high - low,
        offset=picked.offset if "offset" in wanted else None,
        timestamp_ms=picked.timestamp_ms,
        timestamp_type=types,
        key=key,
        value=value,
        headers=headers,
    )


def raise_bad_record(
    sources: Sequence[Source], batches: Batches, scanned: ScannedRecords, bad: BadRecord
) -> NoReturn:
    """Raise a `CorruptRecordError` that explains the fault of the record that a kernel refused."""
    batch = batches[bad.batch]
    base_offset, count, end = (int(batch[name]) for name in ("base_offset", "count", "end"))
    if bad.record == count:
        message = f"{end - bad.position} bytes are left over behind the {count} records of the batch"
        raise CorruptRecordError(message, base_offset)
    previous_delta = -1
    if bad.record:
        row = int(batches["count"][: bad.batch].sum()) + bad.record - 1
        previous_delta = int(scanned.offset[row]) - base_offset
    reason = _explain_record(
        memoryview(sources[int(batch["source"])]),
        bad.position,
        end,
        timestamp=None if int(batch["flags"]) & SAME_TIMESTAMP else int(batch["timestamp"]),
        previous_delta=previous_delta,
        last_offset_delta=int(batch["last_offset_delta"]),
    )
    raise CorruptRecordError(f"record {bad.record} of the batch is malformed: {reason}", base_offset)


def _build_headers(
    sources: Sequence[Source], ends: I64, owners: I64, rows: ScannedRecords, header_keys: HeaderKeys
) -> pa.Array:
    starts, limits, counts = rows.headers_start, rows.headers_end, rows.headers_count
    assert starts is not None
    assert limits is not None
    assert counts is not None
    has_headers = counts > 0
    kind = HEADERS_AS_BYTES_TYPE if header_keys is HeaderKeys.BYTES else HEADERS_TYPE
    # Headers are rare: this is the usual case.
    if not has_headers.any():
        return pa.nulls(len(counts), kind)
    found = kernel.scan_headers(sources, ends, owners, starts, limits, counts)
    if isinstance(found, int):
        source = sources[int(owners[np.searchsorted(ends, found, side="right")])]
        reason = _explain_headers(
            memoryview(source), int(starts[found]), int(limits[found]), int(counts[found])
        )
        raise CorruptRecordError(
            f"the headers of the record are malformed: {reason}", int(rows.offset[found])
        )
    key_start, key_length, value_start, value_length = found
    edges = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=edges[1:])
    header_ends = edges[ends].astype(np.int64)
    key = kernel.gather_binary(sources, header_ends, owners, key_start, key_length)
    value = kernel.gather_binary(sources, header_ends, owners, value_start, value_length)
    try:
        key = read_header_keys(key, header_keys)
    except HeaderKeyError as error:
        row = int(np.searchsorted(edges, error.index, side="right")) - 1
        raise CorruptRecordError(
            f"a header key of the record is {error.reason}", int(rows.offset[row])
        ) from None
    structs = pa.StructArray.from_arrays([key, value], fields=list(kind.value_type))
    validity = None if has_headers.all() else pa.py_buffer(np.packbits(has_headers, bitorder="little"))
    return pa.Array.from_buffers(kind, len(counts), [validity, pa.py_buffer(edges)], children=[structs])


class _Reader:
    def __init__(self, data: memoryview, position: int, end: int) -> None:
        self.data, self.position, self.end = data, position, end

    def varint(self, name: str, max_bytes: int = VARINT_BYTES) -> int:
        try:
            value, self.position = read_varint(self.data[: self.end], self.position, max_bytes)
        except ValueError as error:
            raise ValueError(f"its {name} {error}") from None
        return value

    def span(self, name: str, min_length: int) -> int:
        """Read a length and skip as many bytes; ``min_length`` is -1 where null is allowed."""
        length = self.varint(f"{name} length")
        if length < min_length:
            raise ValueError(f"its {name} length is {length}")
        if length > self.end - self.position:
            raise ValueError(f"its {name} length is {length}, {self.end - self.position} bytes are left")
        self.position += max(length, 0)
        return length


def _explain_record(
    data: memoryview,
    position: int,
    end: int,
    *,
    timestamp: int | None,
    previous_delta: int,
    last_offset_delta: int,
) -> str:
    """Return the fault of the record at ``position`` of a batch with records up to ``end``.

    ``timestamp`` is the batch's base timestamp, None if the timestamps of the records do not count.
    """
    try:
        reader = _Reader(data, position, end)
        length = reader.varint("length")
        if not 0 <= length <= end - reader.position:
            return f"its length is {length}, {end - reader.position} bytes are left in the batch"
        reader.end = reader.position + length
        reader.position += 1
        delta = reader.varint("timestamp delta", VARLONG_BYTES)
        if timestamp is not None and not _INT64_MIN <= timestamp + delta <= _INT64_MAX:
            return f"its timestamp {timestamp} + {delta} does not fit 64 bits"
        delta = reader.varint("offset delta")
        if not previous_delta < delta <= last_offset_delta:
            return f"its offset delta is {delta}, expected {previous_delta + 1} to {last_offset_delta}"
        reader.span("key", -1)
        reader.span("value", -1)
        headers_count = reader.varint("headers count")
        if not 0 <= headers_count <= (reader.end - reader.position) // 2:
            return f"it claims {headers_count} headers, {reader.end - reader.position} bytes are left"
        return _skip_headers(reader, headers_count)
    except ValueError as error:
        return str(error)


def _explain_headers(data: memoryview, position: int, end: int, headers_count: int) -> str:
    """Return the fault of the headers of a record, which begin at ``position`` and end at ``end``."""
    try:
        return _skip_headers(_Reader(data, position, end), headers_count)
    except ValueError as error:
        return str(error)


def _skip_headers(reader: _Reader, headers_count: int) -> str:
    for _ in range(headers_count):
        reader.span("header key", 0)
        reader.span("header value", -1)
    return f"{reader.end - reader.position} bytes are left over behind its {headers_count} headers"
