"""Resolve a place in a partition (earliest, latest, a timestamp, a `datetime`) to an offset, by ListOffsets.

The one place that asks a leader for an offset. `list_offsets` returns the leader's responses;
`resolve_offsets` returns an offset for everything that a user may give as a start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from ..error_code import ErrorCode
from ..errors import (
    BrokerError,
    IncompleteResponseError,
    KafkaError,
    OffsetOutOfRangeError,
    ProtocolError,
    UnsupportedVersionError,
)
from ..model import IsolationLevel, OffsetAt, TopicPartition, checked_offset
from ..network.connection import Connection
from ..network.pending_response import PendingResponse
from ..protocol.api.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ..runtime.deadline import Deadline
from .fan_out import ask_each_broker, ask_each_partition
from .router import Leader, Router

MAX_TIMESTAMP_SINCE = 7
MISSING_MS = 5_000
"""How long a look-up of several partitions waits for one without a leader: an election takes less."""
_SENTINELS = {
    OffsetAt.EARLIEST: EARLIEST_TIMESTAMP,
    OffsetAt.LATEST: LATEST_TIMESTAMP,
    OffsetAt.MAX_TIMESTAMP: MAX_TIMESTAMP,
}

OffsetLike = int | str | OffsetAt | datetime | timedelta
"""An offset; ``"earliest"`` or ``"latest"``; an `OffsetAt`; a time (the first record at or after it), or a
duration before now. A time after the last record is the log's end."""
Whence = Literal["offset", "start", "end", "current"]
"""The base of a number: ``offset`` is absolute; else the first offset, the log's end or the position."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WORDS = {
    "earliest": OffsetAt.EARLIEST,
    "beginning": OffsetAt.EARLIEST,
    "latest": OffsetAt.LATEST,
    "end": OffsetAt.LATEST,
    "max_timestamp": OffsetAt.MAX_TIMESTAMP,
}


class FoundOffset(NamedTuple):
    """The response for one partition; a tuple, as each poll of a stream creates thousands of them."""

    offset: int | None
    """None if no record matches (a timestamp after the last one, or `MAX_TIMESTAMP` of an empty log)."""
    timestamp_ms: int | None = None
    """The record's timestamp, if it was found by timestamp."""
    leader_epoch: int | None = None


class LogBounds(NamedTuple):
    """The first offset of a partition, and the end of its log: the offset that the next record gets."""

    first: int
    end: int


_Found = dict[TopicPartition, FoundOffset]
_Failures = dict[TopicPartition, KafkaError]


# The leader's responses.


def list_offsets(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    *,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """Ask the leaders of all ``places`` at once. Partitions with a new leader are asked for again.

    With READ_COMMITTED, latest is the last stable offset: the first offset of the earliest open transaction.
    Raises `BrokerError` (no such partition, not authorized), `DeadlineExceededError`.
    """
    found, failures = _list_offsets(router, places, isolation_level, deadline or router.deadline())
    assert not failures, "it gave up on none"
    return {tp: found[tp] for tp in places}


def list_offsets_of_each(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    *,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    deadline: Deadline | None = None,
) -> tuple[dict[TopicPartition, FoundOffset], dict[TopicPartition, KafkaError]]:
    """As `list_offsets`, but return the offsets that were found and the failures of the other partitions.

    A missing partition is asked for again for `MISSING_MS`. Raises as `list_offsets` if nothing was found.
    """
    limit = deadline or router.deadline()
    return _list_offsets(router, places, isolation_level, limit, give_up_after_ms=MISSING_MS)


def try_offsets(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
) -> tuple[dict[TopicPartition, FoundOffset], dict[TopicPartition, KafkaError]]:
    """One attempt at `list_offsets`: the offsets that were found, and the other partitions' failures."""
    found: _Found = {}
    return found, _ask_leaders(router, places, isolation_level, deadline, found)


def list_bounds(
    router: Router,
    topic_partitions: Collection[TopicPartition],
    *,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, LogBounds]:
    """Both ends of each partition, by two rounds of requests. Raises as `list_offsets`."""
    first, end = (
        list_offsets(
            router, dict.fromkeys(topic_partitions, at), isolation_level=isolation_level, deadline=deadline
        )
        for at in (OffsetAt.EARLIEST, OffsetAt.LATEST)
    )
    return {tp: LogBounds(first[tp].offset or 0, end[tp].offset or 0) for tp in topic_partitions}


def with_bounds(
    router: Router, error: OffsetOutOfRangeError, deadline: Deadline | None = None
) -> OffsetOutOfRangeError:
    """The error with the range that the leader has now, which its refusal does not contain."""
    tp = error.topic_partition
    first, end = (
        list_offsets(router, {tp: at}, deadline=deadline)[tp].offset
        for at in (OffsetAt.EARLIEST, OffsetAt.LATEST)
    )
    return OffsetOutOfRangeError(tp, error.offset, first, end)


# Offsets to start from: each partition gets one, if need be the log's end.


def offset_or_at(place: OffsetLike, now: datetime | None = None) -> int | OffsetAt:
    """``place`` as an offset, or as a question to the leader. Raises `ValueError`, `TypeError`."""
    match place:
        case OffsetAt():
            return place
        case str():
            return _named(place)
        case datetime():
            return _at(place)
        case timedelta():
            return _ago(place, now or datetime.now(UTC))
    if isinstance(place, bool) or not hasattr(place, "__index__"):
        raise TypeError(f"a place in a partition is an offset, a word or a time, not {place!r}")
    if place < 0:
        raise ValueError(f"an offset must not be negative: {place}; relative ones take whence=")
    return checked_offset(place)


def resolve_offsets(
    router: Router,
    places: Mapping[TopicPartition, int | OffsetAt],
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, int]:
    """The offset at each place; the log's end if no record is as late as its timestamp.

    That end is asked for first: a record that is written between the two requests lies behind it, and is not
    skipped.
    """
    return _resolve_each(router, places, isolation_level, deadline or router.deadline())[0]


def resolve_offsets_of_each(
    router: Router,
    places: Mapping[TopicPartition, int | OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KafkaError]]:
    """As `resolve_offsets`, but return failures by partition too, as `list_offsets_of_each`."""
    return _resolve_each(router, places, isolation_level, deadline, give_up_after_ms=MISSING_MS)


def try_resolve_offsets(
    router: Router,
    places: Mapping[TopicPartition, int | OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KafkaError]]:
    """One attempt at `resolve_offsets`: the offsets, and the failures of the other partitions."""
    wanted = _questions(places)
    # There may be no record at a timestamp; there is always a first offset and an end.
    sure = (OffsetAt.EARLIEST, OffsetAt.LATEST)
    unsure = dict.fromkeys((tp for tp, place in wanted.items() if place not in sure), OffsetAt.LATEST)
    # Half the time: a leader that does not answer must leave the others enough for the second question.
    half = deadline.within_ms(deadline.remaining_ms / 2)
    ends, failures = try_offsets(router, unsure, isolation_level, half)
    asked = {tp: place for tp, place in wanted.items() if tp not in failures}
    found, failed = try_offsets(router, asked, isolation_level, deadline)
    offsets = {tp: place for tp, place in places.items() if isinstance(place, int)}
    for tp, one in found.items():
        offsets[tp] = (ends[tp].offset if one.offset is None else one.offset) or 0
    return {tp: offsets[tp] for tp in places if tp in offsets}, failures | failed


def _resolve_each(
    router: Router,
    places: Mapping[TopicPartition, int | OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
    give_up_after_ms: float = float("inf"),
) -> tuple[dict[TopicPartition, int], _Failures]:
    def ask(missing: list[TopicPartition], offsets: dict[TopicPartition, int]) -> _Failures:
        asked = {tp: places[tp] for tp in missing}
        found, failures = try_resolve_offsets(router, asked, isolation_level, deadline)
        offsets.update(found)
        return failures

    what = _what(_questions(places))
    return ask_each_partition(
        router, places, ask, what=what, deadline=deadline, give_up_after_ms=give_up_after_ms
    )


def _questions(places: Mapping[TopicPartition, int | OffsetAt]) -> dict[TopicPartition, OffsetAt]:
    return {tp: place for tp, place in places.items() if isinstance(place, OffsetAt)}


def _named(word: str) -> OffsetAt:
    found = _WORDS.get(word.strip().lower())
    if found is None:
        raise ValueError(f"no such place in a partition: {word!r}; there are earliest and latest")
    return found


def _ago(duration: timedelta, now: datetime) -> OffsetAt:
    if duration < timedelta():
        raise ValueError(f"{duration!r} is how long ago: it must not be negative")
    try:
        return _at(now - duration)
    except OverflowError:
        raise ValueError(f"{duration!r} ago is before the first year of a datetime") from None


def _at(time: datetime) -> OffsetAt:
    if time.tzinfo is None:
        raise ValueError(f"{time!r} has no time zone; write datetime(..., tzinfo=UTC)")
    # Rounded up, and not by way of a float: a record of the millisecond before is not at or after it.
    return OffsetAt.timestamp(-((_EPOCH - time) // timedelta(milliseconds=1)))


# ListOffsets: build, send, read.


def _list_offsets(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
    give_up_after_ms: float = float("inf"),
) -> tuple[_Found, _Failures]:
    def ask(missing: list[TopicPartition], found: _Found) -> _Failures:
        return _ask_leaders(router, {tp: places[tp] for tp in missing}, isolation_level, deadline, found)

    return ask_each_partition(
        router, places, ask, what=_what(places), deadline=deadline, give_up_after_ms=give_up_after_ms
    )


def _what(places: Mapping[TopicPartition, OffsetAt]) -> str:
    first = next(iter(places.items()), None)
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return "listing no offsets" if first is None else f"listing offsets ({first[1]} of {first[0]}{more})"


def _ask_leaders(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
    found: _Found,
) -> _Failures:
    """One round: every leader gets its request before the first response is awaited. Adds the offsets to
    ``found``; returns the failures of the other partitions.
    """
    if not places:
        return {}
    failures: _Failures = {}
    by_node: dict[int, dict[TopicPartition, Leader]] = defaultdict(dict)
    router.metadata({tp.topic for tp in places}, deadline=deadline)
    for tp, leader in router.known_leaders(places).items():
        if isinstance(leader, KafkaError):
            failures[tp] = leader
        else:
            by_node[leader.node_id][tp] = leader
    asked = {node: {tp: places[tp] for tp in led} for node, led in by_node.items()}

    def ask(node_id: int, connection: Connection) -> PendingResponse[ListOffsetsResponse]:
        request = build_list_offsets(asked[node_id], by_node[node_id], isolation_level, deadline)
        version = connection.version_of(ListOffsetsRequest)
        if version < MAX_TIMESTAMP_SINCE and OffsetAt.MAX_TIMESTAMP in asked[node_id].values():
            raise UnsupportedVersionError(f"{connection.address} can't find the highest timestamp (KIP-734)")
        return connection.submit(request, version, deadline)

    def read(node_id: int, pending: PendingResponse[ListOffsetsResponse]) -> None:
        response = pending.result(router.config.request_timeout_ms, deadline)
        failures.update(read_list_offsets(response, asked[node_id], found))

    for node_id, error in ask_each_broker(router, asked, ask, read, deadline).items():
        failures.update(dict.fromkeys(asked[node_id], error))
    return {tp: failures[tp] for tp in places if tp in failures}


def build_list_offsets(
    places: Mapping[TopicPartition, OffsetAt],
    leaders: Mapping[TopicPartition, Leader],
    isolation_level: IsolationLevel,
    deadline: Deadline,
) -> ListOffsetsRequest:
    """The request for one leader's partitions."""
    topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for tp, place in places.items():
        at = place.timestamp_ms if place.timestamp_ms is not None else _SENTINELS[place]
        topics[tp.topic].append(
            ListOffsetsPartition(
                partition_index=tp.partition, current_leader_epoch=leaders[tp].leader_epoch, timestamp=at
            )
        )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        timeout_ms=int(deadline.remaining_ms),
    )


def read_list_offsets(
    response: ListOffsetsResponse,
    places: Mapping[TopicPartition, OffsetAt],
    found: dict[TopicPartition, FoundOffset],
) -> dict[TopicPartition, KafkaError]:
    """Add the offsets of ``places`` to ``found``; return the failures of the other partitions."""
    failures: _Failures = {}
    missing = dict(places)
    for topic in response.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            if missing.pop(tp, None) is None:  # not asked for, or reported twice
                continue
            if partition.error_code:
                failures[tp] = _refusal(partition.error_code, places[tp], tp)
            else:
                found[tp] = _found(partition, places[tp], tp)
    for tp, place in missing.items():
        failures[tp] = IncompleteResponseError(f"{place} offset of {tp}: the leader's response lacks it")
    return failures


def _refusal(error_code: ErrorCode, place: OffsetAt, topic_partition: TopicPartition) -> BrokerError:
    return BrokerError(error_code, f"{place} offset of {topic_partition}", operation="Describe")


def _found(
    partition: ListOffsetsPartitionResponse, place: OffsetAt, topic_partition: TopicPartition
) -> FoundOffset:
    offset = partition.offset
    by_timestamp = place not in (OffsetAt.EARLIEST, OffsetAt.LATEST)
    if offset < 0 and not (by_timestamp and offset == -1):
        raise ProtocolError(f"the leader of {topic_partition} answered with offset {offset} for {place}")
    return FoundOffset(
        offset=offset if offset >= 0 else None,
        timestamp_ms=partition.timestamp if by_timestamp and offset >= 0 else None,
        leader_epoch=partition.leader_epoch if partition.leader_epoch >= 0 else None,
    )
