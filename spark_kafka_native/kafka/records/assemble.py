"""From scanned positions to Arrow columns: the one place where keys, values and headers are copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import CorruptRecordError
from ..model import HeaderKeys
from .columns import HEADERS_AS_BYTES_TYPE, HEADERS_TYPE, RecordColumns
from .diagnose import explain_headers, explain_record
from .header_keys import HeaderKeyError, read_header_keys
from .kernel import chosen as kernel
from .scanned import SAME_TIMESTAMP, BadRecord, Scan, ScannedRecords, Source

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Batches = npt.NDArray[np.void]


def assemble_columns(
    scan: Scan, wanted: frozenset[str], timestamp_types: npt.NDArray[np.int8], header_keys: HeaderKeys
) -> RecordColumns:
    """Build the ``wanted`` columns of the rows that the reader asked for.

    ``timestamp_types`` has one entry per batch. `CorruptRecordError` where headers break the format.
    """
    sources, batches, scanned, low, high, _ = scan
    ends = (batches["count"].cumsum() - low).clip(0, high - low)
    owners = np.ascontiguousarray(batches["source"])
    picked = scanned.rows(low, high)
    key = value = headers = types = None
    if picked.key_start is not None:
        key = kernel.gather_binary(sources, ends, owners, picked.key_start, picked.key_length)
    if picked.value_start is not None:
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
    """Raise `CorruptRecordError` that says what is wrong with the record that a kernel refused."""
    batch = batches[bad.batch]
    base_offset, count, end = (int(batch[name]) for name in ("base_offset", "count", "end"))
    if bad.record == count:
        message = f"{end - bad.position} bytes are left over behind the {count} records of the batch"
        raise CorruptRecordError(message, base_offset)
    previous_delta = -1
    if bad.record:
        row = int(batches["count"][: bad.batch].sum()) + bad.record - 1
        previous_delta = int(scanned.offset[row]) - base_offset
    reason = explain_record(
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
    # Headers are rare: mostly this is all.
    if not has_headers.any():
        return pa.nulls(len(counts), kind)
    found = kernel.scan_headers(sources, ends, owners, starts, limits, counts)
    if isinstance(found, int):
        source = sources[int(owners[np.searchsorted(ends, found, side="right")])]
        reason = explain_headers(
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
