"""Offsets that the driver asks the cluster for: a subscription -> its partitions, an `OffsetLimit` -> bounds.

The connector's ``KafkaOffsetReader``. What a stream asks in addition is in ``stream_logs.py``.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, assert_never

from ....kafka.cluster.router import Router
from ....kafka.consumer.offsets import list_offsets
from ....kafka.error_code import ErrorCode
from ....kafka.errors import BrokerError, ConfigError, KafkaError
from ....kafka.model import IsolationLevel, OffsetAt, TopicPartition
from ....kafka.runtime.deadline import Deadline
from ....kafka.runtime.retry import Backoff, is_retriable, retry
from ...conditions import KafkaConditionError
from ..offset_limits import (
    AtTimestamp,
    AtTimestamps,
    Committed,
    LatestMinus,
    PartitionOffset,
    Specific,
    format_topic_partitions,
)
from ..offset_range import At, Earliest, EndBound, FirstAtOrAfter, Latest, StartBound, fixed_offset
from ..read_options import ReadOptions
from ..subscription import Assign, Subscribe, SubscribePattern

_OFFSETS_MISMATCH: Final = "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"

_TIMES_MISMATCH: Final = "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"


class AssignedPartition(NamedTuple):
    """What the metadata say of a partition that is read."""

    leader: int
    """Node id; -1 while there is none."""
    topic_id: str | None
    """Hex; None where brokers give no topic ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffsets:
    """The first offset of each partition and its end (read_committed: its last stable offset), as of now."""

    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]


def find_partitions(router: Router, options: ReadOptions) -> dict[TopicPartition, AssignedPartition]:
    """The partitions that the subscription is about now, in order.

    A topic that was named and does not exist is asked for again (``fetchOffset.numRetries``), then an error
    with the nearest name. Partitions that were assigned and don't exist are left out, as in Spark's
    connector.
    """
    if options.fetch_offset_retries == 0:
        return _find_once(router, options)
    interval_ms = options.fetch_offset_retry_interval_ms
    return retry(
        lambda: _find_once(router, options),
        what=f"finding the partitions of {options.subscription}",
        # Half an interval more, so that jitter does not cost the last attempt.
        deadline=Deadline.after_ms((options.fetch_offset_retries + 0.5) * interval_ms),
        backoff=Backoff(first_ms=interval_ms, max_ms=interval_ms),
        # An error of the network has been retried below, for longer than here.
        retriable=lambda error: isinstance(error, BrokerError) and is_retriable(error),
    )


def list_earliest_and_latest(
    router: Router, topic_partitions: Collection[TopicPartition], isolation_level: IsolationLevel
) -> ListedOffsets:
    """Both ends of each partition: two requests to each leader."""
    earliest = list_offsets_at(router, dict.fromkeys(topic_partitions, OffsetAt.EARLIEST), isolation_level)
    return ListedOffsets(
        earliest={topic_partition: offset or 0 for topic_partition, offset in earliest.items()},
        latest=list_latest(router, topic_partitions, isolation_level),
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
    found = list_offsets(router, places, isolation_level=isolation_level, deadline=router.deadline())
    return {topic_partition: place.offset for topic_partition, place in found.items()}


def resolve_start(
    router: Router, options: ReadOptions, topic_partitions: Collection[TopicPartition], bounds: ListedOffsets
) -> dict[TopicPartition, StartBound]:
    """Where each partition starts; only `Earliest` stays to be looked up when the job runs.

    Of ``bounds`` those that were listed *before*: a start that falls back to latest then misses nothing.
    """
    limit = options.starting
    match limit:
        case Earliest():
            return dict.fromkeys(topic_partitions, Earliest())
        case Latest():
            return {tp: At(bounds.latest[tp]) for tp in topic_partitions}
        case LatestMinus(count):
            return {tp: At(max(bounds.latest[tp] - count, bounds.earliest[tp])) for tp in topic_partitions}
        case Specific(offsets):
            _check_assigned(offsets, topic_partitions, _OFFSETS_MISMATCH, "start")
            return {
                tp: At(bounds.latest[tp]) if isinstance(bound, Latest) else bound
                for tp, bound in offsets.items()
            }
        case Committed():
            return _resolve_committed(router, options, topic_partitions, bounds)
        case AtTimestamp() | AtTimestamps():
            return _resolve_starting_times(router, options, limit, topic_partitions, bounds)
        case _:
            assert_never(limit)


def resolve_end(
    router: Router, options: ReadOptions, topic_partitions: Collection[TopicPartition]
) -> dict[TopicPartition, EndBound]:
    """Where each partition ends. `Latest` stays to be looked up when the job runs, and so does a time that no
    record has reached yet: one that is too late may arrive after the planning, and must not be read then.
    """
    limit = options.ending
    match limit:
        case Specific(offsets):
            _check_assigned(offsets, topic_partitions, _OFFSETS_MISMATCH, "end")
            return {tp: _end_of(bound) for tp, bound in offsets.items()}
        case AtTimestamp() | AtTimestamps():
            found = _look_up_times(router, options, limit, topic_partitions, "end")
            return {
                tp: FirstAtOrAfter(_time_of(limit, tp)) if offset is None else At(offset)
                for tp, offset in found.items()
            }
        case Latest() | Earliest() | LatestMinus() | Committed():
            return dict.fromkeys(topic_partitions, Latest())
        case _:
            assert_never(limit)


def _end_of(bound: PartitionOffset) -> EndBound:
    if isinstance(bound, Earliest):
        raise ConfigError("an ending offset can't be earliest")  # refused with Spark's words before
    return bound


def _find_once(router: Router, options: ReadOptions) -> dict[TopicPartition, AssignedPartition]:
    subscription = options.subscription
    match subscription:
        case Assign(wanted):
            found = _describe(router, {tp.topic for tp in wanted})
            return {tp: found[tp] for tp in wanted if tp in found}
        case Subscribe(topics):
            return _describe(router, set(topics))
        case SubscribePattern():
            names = router.metadata(None, refresh=True).topics.values()
            matching = {
                topic.name for topic in names if not topic.internal and subscription.matches(topic.name)
            }
            return _describe(router, matching) if matching else {}
        case _:
            assert_never(subscription)


def _describe(router: Router, topics: set[str]) -> dict[TopicPartition, AssignedPartition]:
    metadata = router.metadata(topics, refresh=True)
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


def _resolve_committed(
    router: Router, options: ReadOptions, topic_partitions: Collection[TopicPartition], bounds: ListedOffsets
) -> dict[TopicPartition, StartBound]:
    # Late: each worker and each query would load it.
    from ....kafka.group.committed_offsets import committed_offsets

    found = committed_offsets(router, options.group_id, topic_partitions)
    missing = [topic_partition for topic_partition, offset in found.items() if offset is None]
    if missing and options.committed_fallback == "error":
        raise ConfigError(
            f"Group {options.group_id} has committed no offset for {format_topic_partitions(missing)}; "
            "set committedOffsetsFallback to earliest or latest to start there instead"
        )
    from_latest = options.committed_fallback == "latest"
    return {
        tp: At(offset) if offset is not None else At(bounds.latest[tp]) if from_latest else Earliest()
        for tp, offset in found.items()
    }


def _resolve_starting_times(
    router: Router,
    options: ReadOptions,
    limit: AtTimestamp | AtTimestamps,
    topic_partitions: Collection[TopicPartition],
    bounds: ListedOffsets,
) -> dict[TopicPartition, StartBound]:
    found = _look_up_times(router, options, limit, topic_partitions, "start")
    for topic_partition, offset in found.items():
        if offset is None and options.timestamp_strategy == "error":
            time_ms = _time_of(limit, topic_partition)
            raise ConfigError(
                f"No offset matched from request of topic-partition {topic_partition} and timestamp "
                f"{time_ms}."
            )
    return {tp: At(bounds.latest[tp] if offset is None else offset) for tp, offset in found.items()}


def _look_up_times(
    router: Router,
    options: ReadOptions,
    limit: AtTimestamp | AtTimestamps,
    topic_partitions: Collection[TopicPartition],
    position: str,
) -> dict[TopicPartition, int | None]:
    if isinstance(limit, AtTimestamps):
        _check_assigned(limit.timestamps_ms, topic_partitions, _TIMES_MISMATCH, position)
    places = {tp: OffsetAt.timestamp(_time_of(limit, tp)) for tp in topic_partitions}
    return list_offsets_at(router, places, options.consumer.isolation_level)


def _time_of(limit: AtTimestamp | AtTimestamps, topic_partition: TopicPartition) -> int:
    return limit.timestamp_ms if isinstance(limit, AtTimestamp) else limit.timestamps_ms[topic_partition]


def _check_assigned(
    specified: Mapping[TopicPartition, object],
    assigned: Collection[TopicPartition],
    condition: str,
    position: str,
) -> None:
    if set(specified) != set(assigned):
        raise KafkaConditionError(
            condition,
            {
                "position": position,
                "specifiedPartitions": format_topic_partitions(specified),
                "assignedPartitions": format_topic_partitions(assigned),
            },
        )


def offset_now(bound: StartBound | EndBound, topic_partition: TopicPartition, bounds: ListedOffsets) -> int:
    """The offset that ``bound`` is now."""
    if (offset := fixed_offset(bound)) is not None:
        return offset
    return (bounds.earliest if isinstance(bound, Earliest) else bounds.latest)[topic_partition]
