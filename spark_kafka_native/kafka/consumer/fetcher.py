"""`Fetcher`: records of explicit offset ranges as columns, several partitions at once, the next fetch
always in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from ..cluster.router import Router
from ..config.client_config import ConsumerConfig
from ..model import TopicPartition
from .fetch_run import FetchRun
from .fetched_records import FetchedRecords

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""For each partition the first offset to fetch, and the one before which to stop."""


class Fetcher:
    """Fetches from the leaders (or followers in ``client_rack``). Use from one thread at a time."""

    def __init__(self, router: Router, config: ConsumerConfig) -> None:
        self._router = router
        self._config = config

    def fetch(
        self,
        ranges: Ranges,
        columns: frozenset[str] | None = None,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> Iterator[FetchedRecords]:
        """Yield every record of ``ranges`` once, each partition in order; ends when all are at their
        until_offset.

        ``columns`` names the fields of `RecordColumns` to fill (None: all). ``topic_ids`` are the ids that
        the offsets belong to; without them, those of the first answer. Leaders that move and brokers that
        restart are followed without loss or duplicate. Small pieces of several partitions share memory, which
        lives as long as any of them. What was yielded stays valid after an error, and the
        caller may go on from there:

        - `OffsetOutOfRangeError`: retention took the offset, or it never was; with what the leader has.
        - `EndOfLogError`: the log ends before the range does (after ``end.of.log.wait.ms``), or an open
        transaction holds it back (after ``poll.timeout.ms``).
        - `LogTruncatedError`: what was read is not in the log any more.
        - `TopicRecreatedError`: the topic is another one than the offsets are of.
        - `CorruptRecordError`: twice in a row, with partition and offset.
        - `BrokerError` (not authorized, unknown topic, ...), `DeadlineExceededError` (no progress),
        `ProtocolError`.
        """
        run = FetchRun(self._router, self._config, columns, shares_memory=True)
        for tp, (from_offset, until_offset) in ranges.items():
            run.add(tp, from_offset, until_offset, (topic_ids or {}).get(tp.topic))
        try:
            while (fetched := run.next()) is not None:
                yield fetched
        finally:
            run.close()
