"""`infer_schemas`: schemas for keys and values out of the newest records (``value.schema=infer``).

The client reads them in the process of ``load()``, before any query runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from ....kafka.cluster.router import Router, router_for
from ....kafka.consumer.fetcher import Fetcher
from ....kafka.errors import (
    ConfigError,
    CorruptRecordError,
    EndOfLogError,
    LogTruncatedError,
    OffsetOutOfRangeError,
)
from ....kafka.model import OffsetAt, TopicPartition
from ....kafka.runtime.deadline import Deadline
from ...payload_formats import PayloadFormat, ReadFormats
from ...user_messages import inform
from .cluster_view import find_partitions, list_latest, list_offsets_at

if TYPE_CHECKING:
    from collections.abc import Generator

    from ....kafka.consumer.fetched_records import FetchedRecords
    from ..read_options import ReadOptions

MAX_BYTES: Final = 16 * 1024 * 1024
"""Of the payloads of a sample; the first piece may be larger."""

MAX_PARTITIONS: Final = 64

TIMEOUT_MS: Final = 30_000
"""Without any answer."""
SAMPLE_MS: Final = 60_000
"""Records without the payload may be many; none are looked at after this time."""

_OF_ONE_PARTITION: Final = (CorruptRecordError, EndOfLogError, LogTruncatedError, OffsetOutOfRangeError)
"""The others have records, too."""

Ranges = Mapping[TopicPartition, tuple[int, int]]


def infer_schemas(options: ReadOptions) -> ReadFormats:
    """The formats of ``options`` with the schemas that they ask to infer.

    Raises `ConfigError` where there is nothing to infer from, and the client's errors.
    """
    formats = options.formats
    sample = _Sample(router_for(options.client), options)
    return replace(
        formats,
        key=None if formats.key is None else _inferred(formats.key, sample),
        value=None if formats.value is None else _inferred(formats.value, sample),
    )


def _inferred(payload: PayloadFormat, sample: _Sample) -> PayloadFormat:
    if not payload.sampled_records:
        return payload
    payloads = sample.newest(payload.payload, payload.sampled_records)
    known = payload.infer(payloads)
    inform(
        f"{payload.payload}.schema=infer: the {len(payloads):,} newest {payload.payload}s that were sampled "
        f"are {known.schema}. Other records give another schema at the next load(): set "
        f"{payload.payload}.schema to keep this one"
    )
    return known


class _Sample:
    """The ends of the logs at this moment, and records from there."""

    def __init__(self, router: Router, options: ReadOptions) -> None:
        self._options = options
        level = options.consumer.isolation_level
        partitions = list(find_partitions(router, options))
        earliest = list_offsets_at(router, dict.fromkeys(partitions, OffsetAt.EARLIEST), level)
        latest = list_latest(router, partitions, level)
        logs = {tp: (earliest[tp] or 0, latest[tp]) for tp in partitions if latest[tp] > (earliest[tp] or 0)}
        longest = sorted(logs, key=lambda tp: (logs[tp][0] - logs[tp][1], tp))[:MAX_PARTITIONS]
        self._logs = {tp: logs[tp] for tp in longest}
        consumer = replace(options.consumer, poll_timeout_ms=TIMEOUT_MS, end_of_log_wait_ms=0)
        self._fetcher = Fetcher(router, consumer)

    def newest(self, payload: str, count: int) -> pa.Array:
        """About ``count`` keys or values (binary, not null, at least one), `MAX_BYTES` of them at most.
        Raises `ConfigError` if there is none."""
        span = max(-(-count // max(len(self._logs), 1)), 1)
        limit = Deadline.after_ms(SAMPLE_MS)
        unread = dict(self._logs)
        while unread:
            ranges = {
                tp: (max(start, self._logs[tp][1] - span), until) for tp, (start, until) in unread.items()
            }
            found = self._read(payload, ranges, limit)
            if len(found):
                return found
            unread = {
                tp: (start, ranges[tp][0]) for tp, (start, _) in unread.items() if ranges[tp][0] > start
            }
            if limit.expired:
                raise ConfigError(
                    f"{payload}.schema=infer: the newest records of {self._options.subscription} have no "
                    f"{payload}, as far as they were read in {SAMPLE_MS // 1000} s. Give {payload}.schema"
                )
            # What compaction and transactions leave of a log may have no record in that many offsets.
            span *= 100
        raise ConfigError(
            f"{payload}.schema=infer: {self._options.subscription} has no record with a {payload} to "
            f"infer a schema from. Give {payload}.schema, or write a record first"
        )

    def _read(self, payload: str, ranges: Ranges, limit: Deadline) -> pa.Array:
        parts: list[pa.Array] = []
        left = dict(ranges)
        size = 0
        columns = frozenset([payload])
        while left:
            fetching = cast("Generator[FetchedRecords, None, None]", self._fetcher.fetch(left, columns))
            try:
                with closing(fetching):
                    for one in fetching:
                        array: Any = getattr(one.columns, payload)
                        parts.append(array.drop_null())
                        size += parts[-1].nbytes
                        left[one.topic_partition] = (one.next_offset, left[one.topic_partition][1])
                        if size > MAX_BYTES or limit.expired:
                            break
                break
            except _OF_ONE_PARTITION as error:
                if error.topic_partition not in left:
                    raise
                position, until = left.pop(error.topic_partition)
                start = error.log_start_offset if isinstance(error, OffsetOutOfRangeError) else None
                if start is not None and position < start < until:
                    left[error.topic_partition] = (start, until)  # Retention has gone on since the look-up.
        return pa.concat_arrays(parts) if parts else pa.nulls(0, pa.binary())
