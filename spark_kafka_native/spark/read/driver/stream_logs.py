"""`StreamLogs`: what the cluster reports about the logs of a stream. It asks, and decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from ....kafka.cluster.recreated_topics import find_recreated
from ....kafka.cluster.router import Router
from ....kafka.errors import BrokerError, ConfigError, DeadlineExceededError, KafkaError
from ....kafka.model import IsolationLevel, OffsetAt, TopicPartition
from ....kafka.runtime.retry import retry
from ..data_loss import is_about_missing_partition
from ..offset_range_limit import OffsetRangeLimit, Specific, format_topic_partitions
from ..read_options import ReadOptions
from .admission_control import SizeSampler
from .batch_plan import offset_now, resolve_start
from .cluster_view import find_partitions, list_latest, list_offsets_at, view_start
from .micro_batch import Positions, StreamOffset

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """Where the logs of all partitions end, and which topics they are of."""

    latest: Positions
    """With read_committed, the last stable offsets."""
    topic_ids: Mapping[str, str]
    """In hex, where brokers have them."""

    def are_behind(self, start: StreamOffset) -> bool:
        """True if partitions of ``start`` are missing, or end before it. Topics known to have been created
        again are left out.
        """
        return any(self.latest.get(tp, -1) < offset for tp, offset in self._same_topics(start).items())

    def shorter_than(self, start: StreamOffset) -> dict[TopicPartition, int]:
        """The positions of ``start`` that are behind the end of their log. Topics known to have been created
        again are left out."""
        return {
            tp: offset
            for tp, offset in self._same_topics(start).items()
            if self.latest.get(tp, offset) < offset
        }

    def _same_topics(self, start: StreamOffset) -> Positions:
        others = {name for name, topic_id in self.topic_ids.items() if start.is_other_topic(name, topic_id)}
        if not others:
            return start.positions
        return {tp: offset for tp, offset in start.positions.items() if tp.topic not in others}


class _BehindError(KafkaError):
    """Partitions are missing or shorter than they were: a broker that has just started may say so, too."""

    def __init__(self, ends: LogEnds) -> None:
        super().__init__("partitions are missing, or end before an offset that was read already")
        self.ends = ends


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

    def find_ends(self, start: StreamOffset) -> LogEnds:
        """Where the logs end; asked for again (``fetchOffset.numRetries``) while that is behind ``start``."""

        def attempt() -> LogEnds:
            ends = _again_if_deleted(lambda: self._find_ends_once(start))
            if ends.are_behind(start):
                raise _BehindError(ends)
            return ends

        try:
            return retry(
                attempt,
                what="finding the ends of the partitions",
                deadline=self._options.offset_retries.deadline(),
                backoff=self._options.offset_retries.backoff(),
                retriable=lambda error: isinstance(error, _BehindError),
            )
        except DeadlineExceededError as error:
            if isinstance(error.__cause__, _BehindError):
                return error.__cause__.ends
            raise

    def find_beginnings(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offsets of those partitions that there are."""
        return _again_if_deleted(lambda: self._find_beginnings(topic_partitions)) if topic_partitions else {}

    def _find_beginnings(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        there = self._router.metadata({tp.topic for tp in topic_partitions}, refresh=True).topics
        wanted = [
            tp for tp in topic_partitions if tp.topic in there and tp.partition in there[tp.topic].partitions
        ]
        return self._list(wanted, OffsetAt.EARLIEST)

    def sample_sizes(
        self, begin: Positions, latest: Positions, topic_ids: Mapping[str, str]
    ) -> Mapping[TopicPartition, float]:
        """Bytes for each offset that is to be read, as `SizeSampler` estimates it."""
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
