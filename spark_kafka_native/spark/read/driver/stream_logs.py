"""`StreamLogs`: what the cluster reports about the logs of a stream. It asks, and decides nothing.

`SizeSampler` asks brokers how many bytes an offset has on average, for ``maxBytesPerTrigger``.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import closing
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import numpy as np
import numpy.typing as npt

from ....kafka.cluster.recreated_topics import find_recreated
from ....kafka.cluster.router import Router
from ....kafka.config.client_config import ConsumerConfig
from ....kafka.consumer.fetched_records import FetchedRecords
from ....kafka.consumer.fetcher import Fetcher
from ....kafka.errors import (
    BrokerError,
    ConfigError,
    CorruptRecordError,
    DeadlineExceededError,
    EndOfLogError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    is_about_missing_partition,
)
from ....kafka.model import IsolationLevel, OffsetAt, TopicPartition
from ..offset_range import OffsetRangeLimit, Specific, format_topic_partitions
from ..read_options import ReadOptions
from .admission_control import SizeEstimate
from .batch_plan import offset_now, resolve_start
from .cluster_view import find_partitions, list_latest, list_offsets_at, view_start
from .micro_batch import LogEnds, Positions, StreamOffset

T = TypeVar("T")

_LOG: Final = logging.getLogger("spark_kafka_native")


class _DoubtfulError(KafkaError):
    """Partitions are missing, or shorter than they were. A broker that has just started, or lags behind, may
    say so, too."""

    def __init__(self, answer: Any) -> None:
        super().__init__("partitions are missing, or end before an offset that was read already")
        self.answer = answer


class StreamLogs:
    """The logs that a stream reads. Owned by the one thread of its process."""

    def __init__(self, router: Router, options: ReadOptions) -> None:
        self._router = router
        self._options = options
        self._sizes = SizeSampler(router, options.consumer)

    def find_start(self) -> StreamOffset:
        """Where the options say that a new stream starts."""
        return _again_if_deleted(self._find_start)

    def _find_start(self) -> StreamOffset:
        assigned = find_partitions(self._router, self._options)
        # First: a partition that the options leave out may have no leader to ask for its offsets.
        _check_all_specified(self._options.starting, assigned)
        view = view_start(self._router, self._options, assigned)
        starts = resolve_start(view, self._options)
        positions = {tp: offset_now(start, tp, view) for tp, start in starts.items()}
        ids = {tp.topic: one.topic_id for tp, one in view.partitions.items() if one.topic_id is not None}
        return StreamOffset(positions=positions, topic_ids=ids, start=positions)

    def find_ends(self, start: StreamOffset, held: Positions = MappingProxyType({})) -> LogEnds:
        """Where the logs end; asked for again (``fetchOffset.numRetries``) while that is behind ``start``, of
        which the positions ``held`` are known to be ahead.
        """
        return self._once_sure(
            lambda: self._find_ends_once(start), lambda ends: not ends.are_behind(start, held)
        )

    def find_beginnings(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offsets of those partitions that exist; asked for again (``fetchOffset.numRetries``)
        while any is missing.
        """
        if not topic_partitions:
            return {}
        wanted = set(topic_partitions)
        return self._once_sure(
            lambda: self._find_beginnings(topic_partitions), lambda found: wanted <= found.keys()
        )

    def _once_sure(self, ask: Callable[[], T], is_sure: Callable[[T], bool]) -> T:
        """The first answer of ``ask`` that ``is_sure``, or the last one."""

        def attempt() -> T:
            answer = _again_if_deleted(ask)
            if not is_sure(answer):
                raise _DoubtfulError(answer)
            return answer

        try:
            return self._options.offset_retries.run(attempt, lambda error: isinstance(error, _DoubtfulError))
        except _DoubtfulError as error:
            return cast("T", error.answer)

    def _find_beginnings(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        there = self._router.metadata({tp.topic for tp in topic_partitions}, refresh=True).topics
        wanted = [
            tp for tp in topic_partitions if tp.topic in there and tp.partition in there[tp.topic].partitions
        ]
        return self._list(wanted, OffsetAt.EARLIEST)

    def sample_sizes(self, begin: Positions, latest: Positions, topic_ids: Mapping[str, str]) -> SizeEstimate:
        """Bytes of the offsets that are to be read, as `SizeSampler` estimates them."""
        ids = {topic: UUID(hex=topic_id) for topic, topic_id in topic_ids.items()}
        return self._sizes.estimate(begin, latest, ids)

    def _find_ends_once(self, start: StreamOffset) -> LogEnds:
        assigned = find_partitions(self._router, self._options)
        ids = {tp.topic: one.topic_id for tp, one in assigned.items() if one.topic_id is not None}
        ids |= self._ids_to_keep(start, ids)
        ends = LogEnds(latest=self._list(assigned, OffsetAt.LATEST), topic_ids=ids)
        return self._past_open_transactions(ends, start)

    def _past_open_transactions(self, ends: LogEnds, start: StreamOffset) -> LogEnds:
        """``ends``, but none before a position that its log has. An earlier run with read_uncommitted may
        have read records of open transactions: with read_committed, the stream waits there for them to
        end.
        """
        shorter = ends.shorter_than(start)
        if not shorter or self._options.consumer.isolation_level is not IsolationLevel.READ_COMMITTED:
            return ends
        log_ends = list_latest(self._router, shorter, IsolationLevel.READ_UNCOMMITTED)
        there = {tp: position for tp, position in shorter.items() if position <= log_ends[tp]}
        return replace(ends, latest={**ends.latest, **there})

    def _ids_to_keep(self, start: StreamOffset, ids: Mapping[str, str]) -> dict[str, str]:
        """The ids of ``start`` that another one was given for by a single broker that lags behind."""
        suspects = {
            topic: UUID(hex=start.topic_ids[topic])
            for topic, topic_id in ids.items()
            if start.is_other_topic(topic, topic_id)
        }
        others = find_recreated(self._router, suspects)
        return {topic: topic_id.hex for topic, topic_id in suspects.items() if topic not in others}

    def _list(self, topic_partitions: Collection[TopicPartition], at: OffsetAt) -> dict[TopicPartition, int]:
        places = dict.fromkeys(topic_partitions, at)
        found = list_offsets_at(self._router, places, self._options.consumer.isolation_level)
        return {tp: offset or 0 for tp, offset in found.items()}


SAMPLED_PARTITIONS: Final = 8
"""Sampled for each batch: one fetch of at most half a megabyte from all of them together."""

SAMPLED_RECORDS: Final = 500
"""At most, of each."""

SAMPLED_PARTS: Final = 4
"""In each of which records are counted for themselves: a gap is in one of them."""

SAMPLED_GAPS: Final = 4
"""Pieces of a log without a record, mostly of aborted transactions, before its sample is given up."""

SAMPLED_BYTES: Final = 64 * 1024

SAMPLE_TIMEOUT_MS: Final = 5_000

_COLUMNS: Final = frozenset(("offset", "key", "value", "headers"))

_OF_ONE_PARTITION: Final = (CorruptRecordError, EndOfLogError, LogTruncatedError, OffsetOutOfRangeError)


class SizeSampler:
    """The last known size per offset of each partition. Owned by the one thread of its process."""

    def __init__(self, router: Router, config: ConsumerConfig) -> None:
        small = replace(
            config,
            max_partition_fetch_bytes=SAMPLED_BYTES,
            fetch_max_bytes=SAMPLED_PARTITIONS * SAMPLED_BYTES,
            poll_timeout_ms=SAMPLE_TIMEOUT_MS,
            end_of_log_wait_ms=0,
        )
        self._fetcher = Fetcher(router, small)
        self._known: dict[TopicPartition, float] = {}

    def estimate(self, begin: Positions, latest: Positions, topic_ids: Mapping[str, UUID]) -> SizeEstimate:
        """Bytes of keys, values and headers for each offset of the partitions that have something to read.

        Those that are not sampled now count as they were last seen, else as the average of their topic; a
        topic of which nothing is known is left out.
        """
        sizes = {tp: latest[tp] - begin[tp] for tp in latest if latest[tp] > begin[tp]}
        longest = sorted(sizes, key=lambda tp: (-sizes[tp], tp))[:SAMPLED_PARTITIONS]
        first: dict[TopicPartition, int] = {}
        try:
            self._sample({tp: (begin[tp], latest[tp]) for tp in longest}, topic_ids, first)
        except KafkaError as error:
            _LOG.warning("The sizes of records could not be sampled; earlier estimates hold. %s", error)
        means = _mean_by_topic(self._known)
        known = {tp: self._known.get(tp, means.get(tp.topic)) for tp in sizes}
        return SizeEstimate(
            bytes_per_offset={tp: size for tp, size in known.items() if size is not None}, first=first
        )

    def _sample(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        topic_ids: Mapping[str, UUID],
        first: dict[TopicPartition, int],
    ) -> None:
        """One fetch of all, and further ones of those that begin with a gap; an error of one partition does
        not stop the others from being sampled."""
        left, moved = dict(ranges), set[TopicPartition]()
        gaps = SAMPLED_GAPS
        while left and gaps:
            try:
                self._fetch(left, topic_ids, first)
                gaps -= 1
            except _OF_ONE_PARTITION as error:
                tp = error.topic_partition
                if tp not in left:
                    raise
                _, until_offset = left.pop(tp)
                start = error.log_start_offset if isinstance(error, OffsetOutOfRangeError) else None
                if start is not None and start < until_offset and tp not in moved:
                    left[tp] = (start, until_offset)
                    moved.add(tp)

    def _fetch(
        self,
        left: dict[TopicPartition, tuple[int, int]],
        topic_ids: Mapping[str, UUID],
        first: dict[TopicPartition, int],
    ) -> None:
        """Sample the ranges in ``left``, and take those out of it that are done. Of a range that begins with
        a gap, the rest remains; ``first`` has where it is."""
        waiting = set(left)
        fetching = cast(
            "Generator[FetchedRecords, None, None]", self._fetcher.fetch(dict(left), _COLUMNS, topic_ids)
        )
        with closing(fetching):
            for one in fetching:
                tp = one.topic_partition
                if tp in waiting and one.next_offset > one.from_offset:
                    waiting.remove(tp)
                    _, until_offset = left.pop(tp)
                    offsets = one.columns.offset
                    if offsets is not None and len(offsets):
                        first[tp] = int(offsets[0])
                        self._known[tp] = _bytes_per_offset(one, offsets)
                    else:
                        first[tp] = one.next_offset
                        if one.next_offset < until_offset:
                            left[tp] = (one.next_offset, until_offset)
                if not waiting:
                    return


def _bytes_per_offset(fetched: FetchedRecords, offsets: npt.NDArray[np.int64]) -> float:
    """Of the part in which the most offsets have a record: with a gap in the average, all that follows it
    would seem to be next to nothing."""
    count = min(len(offsets), SAMPLED_RECORDS)
    until = fetched.next_offset if count == len(offsets) else int(offsets[count])
    parts = min(SAMPLED_PARTS, max(count // 4, 2), count)
    bounds = np.arange(parts + 1) * count // parts
    density = np.max(np.diff(bounds) / np.diff(np.append(offsets[:count], until)[bounds]))
    columns = (fetched.columns.key, fetched.columns.value, fetched.columns.headers)
    size: int = sum(column[:count].nbytes for column in columns if column is not None)
    return float(density) * size / count


def _mean_by_topic(known: Mapping[TopicPartition, float]) -> dict[str, float]:
    by_topic: dict[str, list[float]] = defaultdict(list)
    for tp, size in known.items():
        by_topic[tp.topic].append(size)
    return {topic: sum(sizes) / len(sizes) for topic, sizes in by_topic.items()}


def _check_all_specified(starting: OffsetRangeLimit, assigned: Collection[TopicPartition]) -> None:
    """Check that ``startingOffsets`` with offsets names exactly the existing partitions. Raises
    `ConfigError` in the words of Spark's own connector for streams, which differ from those for batch
    reads.
    """
    if isinstance(starting, Specific) and set(starting.offsets) != set(assigned):
        raise ConfigError(
            "If startingOffsets contains specific offsets, you must specify all TopicPartitions.\n"
            "Use -1 for latest, -2 for earliest, if you don't care.\n"
            f"Specified: {format_topic_partitions(starting.offsets)} "
            f"Assigned: {format_topic_partitions(assigned)}"
        )


def _again_if_deleted(ask: Callable[[], T]) -> T:
    """The answer of ``ask``; asked again if a partition was deleted between its requests, so that the second
    answer lacks it."""
    try:
        return ask()
    except (BrokerError, DeadlineExceededError) as error:
        if not is_about_missing_partition(error):
            raise
        return ask()
