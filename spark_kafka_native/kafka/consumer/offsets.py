"""`list_offsets`: from places in partitions (earliest, latest, a timestamp) to offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ..cluster.each_broker import ask_each_broker
from ..cluster.each_partition import ask_each_partition
from ..cluster.router import Leader, Router
from ..error_code import ErrorCode
from ..errors import (
    BrokerError,
    IncompleteResponseError,
    KafkaError,
    OffsetOutOfRangeError,
    ProtocolError,
    UnsupportedVersionError,
)
from ..model import IsolationLevel, OffsetAt, TopicPartition
from ..network.connection import Connection
from ..network.pending import Pending
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

MAX_TIMESTAMP_SINCE = 7
MISSING_MS = 5_000
"""Whoever asks about several partitions waits so long for one that nobody leads: an election takes less."""
_SENTINELS = {
    OffsetAt.EARLIEST: EARLIEST_TIMESTAMP,
    OffsetAt.LATEST: LATEST_TIMESTAMP,
    OffsetAt.MAX_TIMESTAMP: MAX_TIMESTAMP,
}


class FoundOffset(NamedTuple):
    """Where a place in a partition is; a tuple, as there are thousands of them in each poll of a stream."""

    offset: int | None
    """None where no record matches (a timestamp after the last one, `OffsetAt.MAX_TIMESTAMP` of nothing)."""
    timestamp_ms: int | None = None
    """The record's timestamp, where the place was found by one."""
    leader_epoch: int | None = None


def list_offsets(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    *,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """Ask the leaders of all ``places`` at once; leaders that have moved are asked again, only for what is
    missing.

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
    """As `list_offsets`, with an answer for each partition: what was found, and why the rest was not.

    What is missing is asked for again for `MISSING_MS`, beside what was found. Raises as `list_offsets` where
    nothing was found.
    """
    limit = deadline or router.deadline()
    return _list_offsets(router, places, isolation_level, limit, give_up_after_ms=MISSING_MS)


def try_offsets(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
) -> tuple[dict[TopicPartition, FoundOffset], dict[TopicPartition, KafkaError]]:
    """One attempt at `list_offsets`: what was found, and why the rest was not."""
    found: dict[TopicPartition, FoundOffset] = {}
    return found, _ask_leaders(router, places, isolation_level, deadline, found)


def _list_offsets(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
    give_up_after_ms: float = float("inf"),
) -> tuple[dict[TopicPartition, FoundOffset], dict[TopicPartition, KafkaError]]:
    def ask(
        missing: list[TopicPartition], found: dict[TopicPartition, FoundOffset]
    ) -> dict[TopicPartition, KafkaError]:
        return _ask_leaders(router, {tp: places[tp] for tp in missing}, isolation_level, deadline, found)

    return ask_each_partition(
        router, places, ask, what=_what(places), deadline=deadline, give_up_after_ms=give_up_after_ms
    )


class LogBounds(NamedTuple):
    """The first offset that a partition has, and the end of its log: the offset that the next record gets."""

    first: int
    end: int


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


def list_places(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, int]:
    """The offset at each place; the log's end where no record is as late as its timestamp.

    That end is asked for first: a record that is written between two look-ups is behind it, and not skipped.
    """
    limit = deadline or router.deadline()
    ends, found = (
        list_offsets(router, asked, isolation_level=isolation_level, deadline=limit) if asked else {}
        for asked in (_unsure(places), places)
    )
    return _offsets_of(found, ends)


def list_places_of_each(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KafkaError]]:
    """As `list_places`, with an answer for each partition, as `list_offsets_of_each`."""
    ends, failures = list_offsets_of_each(
        router, _unsure(places), isolation_level=isolation_level, deadline=deadline
    )
    asked = {tp: place for tp, place in places.items() if tp not in failures}
    found, failed = list_offsets_of_each(router, asked, isolation_level=isolation_level, deadline=deadline)
    return _offsets_of(found, ends), failures | failed


def try_places(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KafkaError]]:
    """One attempt at `list_places`: the offsets that were found, and why the others were not."""
    ends, failures = try_offsets(router, _unsure(places), isolation_level, deadline)
    asked = {tp: place for tp, place in places.items() if tp not in failures}
    found, failed = try_offsets(router, asked, isolation_level, deadline)
    return _offsets_of(found, ends), failures | failed


def with_bounds(
    router: Router, error: OffsetOutOfRangeError, deadline: Deadline | None = None
) -> OffsetOutOfRangeError:
    """The error with the range that the leader has now, which its refusal does not say."""
    tp = error.topic_partition
    first, end = (
        list_offsets(router, {tp: at}, deadline=deadline)[tp].offset
        for at in (OffsetAt.EARLIEST, OffsetAt.LATEST)
    )
    return OffsetOutOfRangeError(tp, error.offset, first, end)


def _unsure(places: Mapping[TopicPartition, OffsetAt]) -> dict[TopicPartition, OffsetAt]:
    """The ends of those of which there may be no record to find."""
    sure = (OffsetAt.EARLIEST, OffsetAt.LATEST)
    return dict.fromkeys((tp for tp, place in places.items() if place not in sure), OffsetAt.LATEST)


def _offsets_of(
    found: Mapping[TopicPartition, FoundOffset], ends: Mapping[TopicPartition, FoundOffset]
) -> dict[TopicPartition, int]:
    return {tp: (ends[tp].offset if one.offset is None else one.offset) or 0 for tp, one in found.items()}


def _what(places: Mapping[TopicPartition, OffsetAt]) -> str:
    first = next(iter(places.items()), None)
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return "listing no offsets" if first is None else f"listing offsets ({first[1]} of {first[0]}{more})"


def _ask_leaders(
    router: Router,
    places: Mapping[TopicPartition, OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
    found: dict[TopicPartition, FoundOffset],
) -> dict[TopicPartition, KafkaError]:
    """One round: every leader gets its request before the first answer is awaited. What is found goes into
    ``found``; returns why the rest is not.
    """
    if not places:
        return {}
    failures: dict[TopicPartition, KafkaError] = {}
    by_node: dict[int, dict[TopicPartition, Leader]] = defaultdict(dict)
    router.metadata({tp.topic for tp in places}, deadline=deadline)
    for tp, leader in router.known_leaders(places).items():
        if isinstance(leader, KafkaError):
            failures[tp] = leader
        else:
            by_node[leader.node_id][tp] = leader
    asked = {node: {tp: places[tp] for tp in led} for node, led in by_node.items()}

    def ask(node_id: int, connection: Connection) -> Pending[ListOffsetsResponse]:
        request = build_list_offsets(asked[node_id], by_node[node_id], isolation_level, deadline)
        version = connection.version_of(ListOffsetsRequest)
        if version < MAX_TIMESTAMP_SINCE and OffsetAt.MAX_TIMESTAMP in asked[node_id].values():
            raise UnsupportedVersionError(f"{connection.address} can't find the highest timestamp (KIP-734)")
        return connection.submit(request, version, deadline)

    def read(node_id: int, pending: Pending[ListOffsetsResponse]) -> None:
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
    """Put what the response says about ``places``, which were asked for, into ``found``; the failures of
    the other partitions.
    """
    failures: dict[TopicPartition, KafkaError] = {}
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
        failures[tp] = IncompleteResponseError(f"{place} offset of {tp}: the leader's answer lacks it")
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
