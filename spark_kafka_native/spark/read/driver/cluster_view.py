"""`ClusterView`: everything that a plan asks the cluster for, asked once and in the order that keeps it safe.

The connector's ``KafkaOffsetReader``. `plan_batch` makes a plan of it without asking anything. What a stream
asks in addition is in ``stream_logs.py``.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

from ....kafka.cluster.metadata import ClusterMetadata
from ....kafka.cluster.offsets import list_offsets
from ....kafka.cluster.router import Router
from ....kafka.error_code import ErrorCode
from ....kafka.errors import BrokerError, KafkaError
from ....kafka.model import IsolationLevel, OffsetAt, TopicPartition
from ....kafka.runtime.retry import is_retriable
from ..offset_range import AtTimestamp, AtTimestamps, Committed, Earliest, OffsetRangeLimit
from ..read_options import ReadOptions
from ..subscription import Assign, Subscribe, SubscribePattern
from .pushed_filters import PushedFilters

Found = Mapping[TopicPartition, int | None]
"""An offset for each partition; None where there is none: nothing committed, no record that late."""


class AssignedPartition(NamedTuple):
    """What the metadata say of a partition that is read."""

    leader: int
    """Node id; -1 while there is none."""
    topic_id: str | None
    """Hex; None where brokers give no topic ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The answers of the cluster. Of lookups that the options do not need, there are none."""

    partitions: Mapping[TopicPartition, AssignedPartition]
    earliest: Mapping[TopicPartition, int]
    latest_before: Mapping[TopicPartition, int]
    """Listed *before* the start and the end were looked up: a start that falls back to it misses nothing.
    With read_committed, the last stable offsets."""
    latest: Mapping[TopicPartition, int]
    """Listed *after* the start was looked up, which may lie behind `latest_before` if records arrive; and
    *before* the end was: where no record is at or after the ending time, all before this are earlier."""
    committed: Found = field(default_factory=dict)
    """The offsets of ``kafka.group.id``, for ``startingOffsets=committed``."""
    starting: Found = field(default_factory=dict)
    """The first record at or after the starting time."""
    ending: Found = field(default_factory=dict)
    """The first record at or after the ending time."""
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """With read_committed, the ends of logs in which the group is ahead of the last stable offset."""
    filtered: Found = field(default_factory=dict)
    """The first record at or after the earliest time that the filters allow, listed after `latest`."""
    filtered_from: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the logs begin, listed after `filtered`, which covers no record before that; only where the start
    may be a fixed offset."""


def view_start(
    router: Router, options: ReadOptions, partitions: Mapping[TopicPartition, AssignedPartition]
) -> ClusterView:
    """Both ends of the logs of ``partitions``, and the lookups of the start. Raises the client's errors."""
    level = options.consumer.isolation_level
    earliest = list_offsets_at(router, dict.fromkeys(partitions, OffsetAt.EARLIEST), level)
    latest = list_latest(router, partitions, level)
    return ClusterView(
        partitions=partitions,
        earliest={topic_partition: offset or 0 for topic_partition, offset in earliest.items()},
        latest_before=latest,
        latest=latest,
        committed=_list_committed(router, options, partitions),
        starting=list_offsets_at(router, _places(options.starting, partitions), level),
    )


def view_cluster(router: Router, options: ReadOptions, filters: PushedFilters) -> ClusterView:
    """Everything that `plan_batch` needs. Raises the client's errors."""
    view = view_start(router, options, find_partitions(router, options))
    level = options.consumer.isolation_level
    latest = view.latest_before
    if isinstance(options.starting, Committed | AtTimestamp | AtTimestamps):
        latest = list_latest(router, view.partitions, level)
    ending = list_offsets_at(router, _places(options.ending, view.partitions), level)
    log_ends: Mapping[TopicPartition, int] = {}
    if level is IsolationLevel.READ_COMMITTED:
        ahead = [tp for tp, offset in view.committed.items() if offset is not None and offset > latest[tp]]
        log_ends = list_latest(router, ahead, IsolationLevel.READ_UNCOMMITTED)
    filtered: Found = {}
    filtered_from: Found = {}
    if (earliest_ms := filters.from_timestamp_ms) is not None and earliest_ms > 0:
        wanted = [tp for tp in view.partitions if filters.allows(tp)]
        filtered = list_offsets_at(router, dict.fromkeys(wanted, OffsetAt.timestamp(earliest_ms)), level)
        if not isinstance(options.starting, Earliest):
            filtered_from = list_offsets_at(router, dict.fromkeys(wanted, OffsetAt.EARLIEST), level)
    return replace(
        view,
        latest=latest,
        ending=ending,
        log_ends=log_ends,
        filtered=filtered,
        filtered_from={tp: offset or 0 for tp, offset in filtered_from.items()},
    )


def time_of(limit: AtTimestamp | AtTimestamps, topic_partition: TopicPartition) -> int:
    """The time that ``limit`` gives for a partition that it has."""
    return limit.timestamp_ms if isinstance(limit, AtTimestamp) else limit.timestamps_ms[topic_partition]


def find_partitions(router: Router, options: ReadOptions) -> dict[TopicPartition, AssignedPartition]:
    """The partitions that the subscription is about now, in order.

    A topic that was named and does not exist is asked for again (``fetchOffset.numRetries``), then an error
    with the nearest name. Partitions that were assigned and don't exist are left out, as in Spark's
    connector.
    """
    return options.offset_retries.run(
        lambda: _find_once(router, options),
        # An error of the network has been retried below, for longer than here.
        again=lambda error: isinstance(error, BrokerError) and is_retriable(error),
    )


def list_latest(
    router: Router, topic_partitions: Collection[TopicPartition], isolation_level: IsolationLevel
) -> dict[TopicPartition, int]:
    """The end of each partition (read_committed: its last stable offset)."""
    latest = list_offsets_at(router, dict.fromkeys(topic_partitions, OffsetAt.LATEST), isolation_level)
    return {topic_partition: offset or 0 for topic_partition, offset in latest.items()}


def list_offsets_at(
    router: Router, places: Mapping[TopicPartition, OffsetAt], isolation_level: IsolationLevel
) -> dict[TopicPartition, int | None]:
    """The offset at each place; None where no record is at or after a timestamp."""
    if not places:
        return {}
    found = list_offsets(router, places, isolation_level=isolation_level)
    return {topic_partition: place.offset for topic_partition, place in found.items()}


def _places(
    limit: OffsetRangeLimit, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetAt]:
    """The times of ``limit``; `plan_batch` refuses a limit that has other partitions than these."""
    if not isinstance(limit, AtTimestamp | AtTimestamps):
        return {}
    wanted = [tp for tp in partitions if isinstance(limit, AtTimestamp) or tp in limit.timestamps_ms]
    return {tp: OffsetAt.timestamp(time_of(limit, tp)) for tp in wanted}


def _list_committed(
    router: Router, options: ReadOptions, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int | None]:
    if not isinstance(options.starting, Committed):
        return {}
    # Late: each query would load it.
    from ....kafka.group.committed_offsets import committed_offsets

    return dict(committed_offsets(router, options.group_id, partitions))


def _find_once(router: Router, options: ReadOptions) -> dict[TopicPartition, AssignedPartition]:
    subscription = options.subscription
    match subscription:
        case Assign(wanted):
            topics = {tp.topic for tp in wanted}
            found = _describe(router, router.metadata(topics, refresh=True), topics)
            return {tp: found[tp] for tp in wanted if tp in found}
        case Subscribe(names):
            return _describe(router, router.metadata(names, refresh=True), set(names))
        case SubscribePattern():
            metadata = router.metadata(None, refresh=True)
            every = metadata.topics.values()
            matching = {one.name for one in every if not one.internal and subscription.matches(one.name)}
            return _describe(router, metadata, matching)
        case _:
            assert_never(subscription)


def _describe(
    router: Router, metadata: ClusterMetadata, topics: set[str]
) -> dict[TopicPartition, AssignedPartition]:
    found: dict[TopicPartition, AssignedPartition] = {}
    for name in sorted(topics):
        try:
            topic = metadata.topic(name)
        except BrokerError as error:
            raise _with_nearest(router, error, name) from error
        topic_id = None if topic.topic_id is None else topic.topic_id.hex
        for index in sorted(topic.partitions):
            leader = topic.partitions[index].leader
            found[TopicPartition(name, index)] = AssignedPartition(
                leader=-1 if leader is None else leader, topic_id=topic_id
            )
    return found


def _with_nearest(router: Router, error: BrokerError, name: str) -> KafkaError:
    if error.error_code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return error
    # Asked anew: the topic that is meant may be a new one. A missing one is listed too, as an error.
    topics = router.metadata(None, refresh=True).topics.values()
    known = [topic.name for topic in topics if not topic.internal and not topic.error_code]
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
    return BrokerError(error.error_code, f"topic {name}", f"the topic does not exist{hint}")
