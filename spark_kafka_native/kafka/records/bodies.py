"""Which batches of a record set are read, and their records as plain bytes: decompressed, within a budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import CorruptRecordError
from .batch import HEADER_BYTES, LOG_APPEND_TIME, MIN_RECORD_BYTES, BatchHeaders
from .compression import Codec, CompressionError, decompress
from .scanned import BATCH, DENSE, SAME_TIMESTAMP, Source

MAX_COLUMN_BYTES = 2**31 - 1
"""What the int32 offsets of one Arrow binary column can hold; bodies of one record set stay below it
together."""

_PLAUSIBLE_RATIO = 16
"""A compressed batch may claim this many times the records its bytes would hold plain, and be believed
without a look."""

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bodies:
    """The batches of a record set that are to be scanned."""

    sources: list[Source]
    """The record set itself, then what each compressed batch holds."""
    batches: npt.NDArray[np.void]
    """dtype `BATCH`."""
    chosen: I64
    """Which of the record set's batches these are (fewer than asked for where the budget ran out)."""


def load_bodies(
    data: memoryview,
    headers: BatchHeaders,
    chosen: I64,
    columns: frozenset[str],
    max_batch_bytes: int,
    max_bytes: int,
) -> Bodies:
    """Decompress what needs it of the ``chosen`` batches (indexes, increasing) for reading ``columns``.

    Stops before the bodies exceed ``max_bytes`` in all (by no more than one batch where that is compressed),
    though never before the first batch. No body may exceed ``max_batch_bytes``.
    """
    dense = _needs_no_body(headers, chosen, columns)
    batches = _build_table(headers, chosen, dense)
    packed = (headers.codec[chosen] != Codec.NONE) & ~dense
    budget = min(max_bytes, MAX_COLUMN_BYTES)
    if not packed.any() and len(data) <= budget:
        return Bodies(sources=[data], batches=batches, chosen=chosen)
    sources: list[Source] = [data]
    # What the batches up to each one take that need no decompressing.
    plain = np.where(packed | dense, 0, batches["end"] - batches["start"]).cumsum()
    fits = int(np.searchsorted(plain, budget, side="right"))
    unpacked = 0
    # A loop over compressed batches only; decompressing one costs far more than the step.
    for place in packed.nonzero()[0].tolist():
        before = unpacked + int(plain[place])
        start, end = int(batches["start"][place]), int(batches["end"][place])
        if place >= fits or (place and before + end - start > budget):
            fits = min(fits, place)
            break
        body = read_body(data, headers, int(chosen[place]), max_batch_bytes)
        if before + len(body) > MAX_COLUMN_BYTES and place:
            fits = place
            break
        batches["source"][place], batches["start"][place], batches["end"][place] = len(sources), 0, len(body)
        sources.append(body)
        unpacked += len(body)
        fits = min(fits, max(place + 1, int(np.searchsorted(plain, budget - unpacked, side="right"))))
    fits = max(fits, min(1, len(chosen)))
    return Bodies(sources=sources, batches=batches[:fits], chosen=chosen[:fits])


def read_body(data: memoryview, headers: BatchHeaders, index: int, max_batch_bytes: int) -> memoryview:
    """Return the records of one batch, decompressed; `CorruptRecordError` where that fails or exceeds the
    cap."""
    packed = data[int(headers.start[index]) + HEADER_BYTES : int(headers.end[index])]
    codec = Codec(int(headers.codec[index]))
    base_offset = int(headers.base_offset[index])
    try:
        body = memoryview(decompress(codec, packed, min(max_batch_bytes, MAX_COLUMN_BYTES)))
    except CompressionError as error:
        raise CorruptRecordError(
            f"a batch compressed with {codec.name.lower()}: {error}", base_offset
        ) from error
    count = int(headers.count[index])
    if count * MIN_RECORD_BYTES > len(body):
        raise CorruptRecordError(f"a batch of {count} records in {len(body)} decompressed bytes", base_offset)
    return body


def _build_table(headers: BatchHeaders, chosen: I64, dense: Flags) -> npt.NDArray[np.void]:
    """Return what a kernel needs to know of the ``chosen`` batches, all of them in source 0."""
    all_of_them = len(chosen) == len(headers.start)
    which: I64 | slice = slice(None) if all_of_them else chosen
    batches = np.zeros(len(chosen), BATCH)
    batches["start"] = headers.start[which] + HEADER_BYTES
    batches["end"] = headers.end[which]
    batches["count"] = headers.count[which]
    batches["base_offset"] = headers.base_offset[which]
    batches["last_offset_delta"] = headers.last_offset_delta[which]
    batches["timestamp"] = headers.base_timestamp[which]
    log_append_time = headers.has(LOG_APPEND_TIME)[which]
    if log_append_time.any():
        batches["timestamp"][log_append_time] = headers.max_timestamp[which][log_append_time]
    batches["flags"] = log_append_time * SAME_TIMESTAMP + dense * DENSE
    return batches


def _needs_no_body(headers: BatchHeaders, chosen: I64, columns: frozenset[str]) -> Flags:
    """Say for which batches the header tells everything: no gap among the offsets, nothing else wanted."""
    if columns & {"key", "value", "headers"}:
        return np.zeros(len(chosen), np.bool_)
    count = headers.count[chosen]
    dense: Flags = count == headers.last_offset_delta[chosen] + 1
    if "timestamp_ms" in columns:
        dense &= headers.has(LOG_APPEND_TIME)[chosen]
    dense &= count * MIN_RECORD_BYTES <= (headers.end - headers.start)[chosen] * _PLAUSIBLE_RATIO
    return dense
