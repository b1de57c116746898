"""`GroupAdmin`: list and describe groups of both protocols, their committed offsets and lag, and change
them.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..cluster import offsets
from ..cluster.coordinators import ask_coordinator, find_coordinator, send_to_coordinator
from ..cluster.fan_out import ask_every_broker
from ..cluster.offsets import list_bounds, list_offsets_of_each, resolve_offsets
from ..cluster.router import CoordinatorKey, Router
from ..cluster.split_commit import split_commit
from ..error_code import ErrorCode
from ..errors import (
    BrokerError,
    IncompleteResponseError,
    KafkaError,
    NetworkError,
    OffsetOutOfRangeError,
    ProtocolError,
    UnsupportedVersionError,
    with_notes,
    with_refused,
)
from ..group.committed_offsets import all_committed_offsets, commit_offsets
from ..model import OffsetAt, OffsetToCommit, TopicPartition
from ..protocol.api.group_offsets import OffsetCommitRequest, OffsetCommitResponse
from ..protocol.api.groups import (
    ConsumerGroupAssignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMember,
    DeleteGroupsRequest,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ..protocol.consumer_protocol import PROTOCOL_TYPE, ConsumerProtocolAssignment, read_versioned
from ..runtime.deadline import Deadline, Timeout
from .family import (
    AdminFamily,
    ItemResult,
    Task,
    before_sending,
    names_of,
    noting_lost,
    refuse,
    with_lost,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list."""

    group_id: str
    protocol_type: str
    """``consumer``; empty if offsets are committed from outside; Kafka Connect uses another one."""
    state: str
    """The name of the state: Stable, Empty, PreparingRebalance ...; empty with brokers before 2.6."""
    type: str
    """``classic``, ``consumer`` (KIP-848), ``share`` or ``streams``; empty with brokers before 3.8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group."""

    member_id: str
    instance_id: str | None
    """The instance id of a static member (KIP-345)."""
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    """Its assignment; empty also if it is not a group of consumers."""
    target: tuple[TopicPartition, ...] | None = None
    """Its assignment after all members have given up their revoked partitions (KIP-848)."""
    member_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group and its members."""

    group_id: str
    type: str
    """``classic`` or ``consumer``."""
    state: str
    assignor: str
    members: tuple[GroupMember, ...]
    group_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """The committed offset of a group in a partition, and the partition's end offset."""

    committed_offset: int
    end_offset: int | None
    """None if the partition is gone, or did not answer."""
    error: KafkaError | None = None
    """Why the partition did not answer."""

    @property
    def lag(self) -> int | None:
        """The number of offsets left to read; never below 0."""
        return None if self.end_offset is None else max(0, self.end_offset - self.committed_offset)


def read_consumer_group(response: ConsumerGroupDescribeResponse, group_id: str) -> GroupDescription:
    """The description of a group of the consumer protocol. Raises `BrokerError`."""
    for group in response.groups:
        if group.group_id == group_id:
            if group.error_code:
                raise _refusal(group.error_code, group_id, group.error_message)
            return GroupDescription(
                group_id=group_id,
                type="consumer",
                state=group.group_state,
                assignor=group.assignor_name,
                members=tuple(_consumer_member(member) for member in group.members),
                group_epoch=group.group_epoch,
            )
    raise IncompleteResponseError(f"describing group {group_id}: the response lacks it")


def read_classic_group(response: DescribeGroupsResponse, group_id: str) -> GroupDescription:
    """The description of a group of the classic protocol. Raises `BrokerError`."""
    for group in response.groups:
        if group.group_id == group_id:
            if group.error_code:
                raise _refusal(group.error_code, group_id, group.error_message)
            if group.group_state == "Dead":  # brokers before 4.0 say so of a group that never existed
                raise _refusal(ErrorCode.GROUP_ID_NOT_FOUND, group_id, None)
            consumers = group.protocol_type == PROTOCOL_TYPE
            return GroupDescription(
                group_id=group_id,
                type="classic",
                state=group.group_state,
                assignor=group.protocol_data,
                members=tuple(_classic_member(member, consumers) for member in group.members),
            )
    raise IncompleteResponseError(f"describing group {group_id}: the response lacks it")


def _refusal(error_code: ErrorCode, group_id: str, message: str | None) -> BrokerError:
    return BrokerError(error_code, f"describing group {group_id}", message or None, "Describe")


def _consumer_member(member: ConsumerGroupMember) -> GroupMember:
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=_partitions(member.assignment),
        target=_partitions(member.target_assignment),
        member_epoch=member.member_epoch,
    )


def _partitions(assignment: ConsumerGroupAssignment) -> tuple[TopicPartition, ...]:
    return _flat((topic.topic_name, topic.partitions) for topic in assignment.topic_partitions)


def _classic_member(member: DescribedGroupMember, consumers: bool) -> GroupMember:
    assignment: tuple[TopicPartition, ...] = ()
    if consumers and member.member_assignment:
        # A member may use a format of its own: the rest of the group is described nevertheless.
        with contextlib.suppress(ProtocolError):
            told = read_versioned(ConsumerProtocolAssignment, member.member_assignment)
            assignment = _flat((topic.topic, topic.partitions) for topic in told.assigned_partitions)
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=assignment,
    )


def _flat(topics: Iterable[tuple[str, Iterable[int]]]) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(TopicPartition(topic, partition) for topic, partitions in topics for partition in partitions)
    )


def list_groups_of_each_broker(
    router: Router, deadline: Deadline
) -> tuple[list[GroupListing], dict[int, KafkaError]]:
    """As `GroupAdmin.list_groups`, but return the groups that were found and the other brokers' failures.

    A broker that does not answer is asked again for `MISSING_MS`. Raises as `list_groups` if none answers.
    """
    return _list_groups(router, ListGroupsRequest(), deadline, give_up_after_ms=offsets.MISSING_MS)


def _list_groups(
    router: Router, request: ListGroupsRequest, deadline: Deadline, give_up_after_ms: float = float("inf")
) -> tuple[list[GroupListing], dict[int, KafkaError]]:
    def read(node_id: int, response: ListGroupsResponse) -> list[GroupListing]:
        refuse(ItemResult(f"broker {node_id}", response.error_code), "listing groups of", "Describe")
        return [
            GroupListing(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                state=group.group_state,
                type=group.group_type.lower(),
            )
            for group in response.groups
        ]

    listed, failed = ask_every_broker(
        router, request, read, what="listing groups", deadline=deadline, give_up_after_ms=give_up_after_ms
    )
    # By name: if a coordinator moves while the brokers are asked, two of them list its groups.
    found = {group.group_id: group for group in listed}
    return [group for _, group in sorted(found.items())], failed


_HAS_MEMBERS = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
    )
)


class GroupAdmin(AdminFamily):
    """Groups, from outside."""

    def list_groups(
        self,
        timeout: Timeout = None,
        *,
        states: Collection[str] = (),
        types: Collection[str] = (),
    ) -> list[GroupListing]:
        """All groups of the cluster (of these states and types), by name.

        States and types as Kafka names them: Stable, Empty, Dead ...; classic, consumer, share, streams. Asks
        every broker; raises `BrokerError` or `DeadlineExceededError` if one does not answer.
        """
        limit = self._limit(timeout)
        request = ListGroupsRequest(
            states_filter=names_of(states, "states"), types_filter=names_of(types, "types")
        )

        return _list_groups(self._router, request, limit)[0]

    def describe_groups(
        self, group_ids: Collection[str], timeout: Timeout = None
    ) -> dict[str, GroupDescription]:
        """State, members and assignments of groups of the classic and the consumer protocol.

        Raises `BrokerError`: GROUP_ID_NOT_FOUND, GROUP_AUTHORIZATION_FAILED.
        """
        limit = self._limit(timeout)
        return {name: self._describe(name, limit) for name in names_of(group_ids, "groups")}

    def group_offsets(self, group_id: str, timeout: Timeout = None) -> dict[TopicPartition, OffsetToCommit]:
        """All committed offsets of ``group_id``. A group that does not exist has committed nothing.

        Waits for open transactions that commit offsets. Raises `BrokerError`.
        """
        return all_committed_offsets(self._router, group_id, self._limit(timeout))

    def group_lag(self, group_id: str, timeout: Timeout = None) -> dict[TopicPartition, PartitionLag]:
        """For all partitions in which ``group_id`` has committed: the end offset and the lag.

        A partition that is gone has no end offset; nor has one that does not answer (without a leader, for
        example), which has an ``error``. Raises if none answers.
        """
        limit = self._limit(timeout)
        committed = self.group_offsets(group_id, limit)
        metadata = self._router.metadata({tp.topic for tp in committed}, refresh=True, deadline=limit)
        there = [
            tp
            for tp in committed
            if (topic := metadata.topics.get(tp.topic)) is not None  # None: the response lacks it
            and not topic.error_code
            and tp.partition in topic.partitions
        ]
        latest = dict.fromkeys(there, OffsetAt.LATEST)
        ends, failed = list_offsets_of_each(self._router, latest, deadline=limit)
        return {
            tp: PartitionLag(
                committed_offset=offset.offset,
                end_offset=ends[tp].offset if tp in ends else None,
                error=failed.get(tp),
            )
            for tp, offset in sorted(committed.items())
        }

    def reset_offsets(
        self,
        group_id: str,
        places: Mapping[TopicPartition, OffsetAt | int],
        timeout: Timeout = None,
        *,
        dry_run: bool = False,
    ) -> dict[TopicPartition, int]:
        """Commit another offset for each partition: an existing one, or the current offset of an `OffsetAt`.

        A time after the last record means the end. With ``dry_run`` nothing is changed. Returns the offsets.
        Raises `OffsetOutOfRangeError` for an offset that the partition does not have, `BrokerError` for a
        group with members: they commit for themselves, and would continue at their positions.
        """
        limit = self._limit(timeout)
        offsets = self._resolve(places, limit)
        if dry_run:
            return offsets
        lost: list[NetworkError] = []

        def ask(
            router: Router, key: CoordinatorKey, request: OffsetCommitRequest, limit: Deadline
        ) -> OffsetCommitResponse:
            with noting_lost(lost):
                self._reach_coordinator(key, limit)
                return ask_coordinator(router, key, request, limit)

        try:
            commit_offsets(self._router, group_id, offsets, limit, ask)
        except KafkaError as error:
            with_lost(error, lost)
            if not isinstance(error, BrokerError) or error.error_code not in _HAS_MEMBERS:
                raise
            says = "the group has members, which commit for themselves: stop them first"
            where = f"resetting offsets of group {group_id}"
            raise with_notes(BrokerError(error.error_code, where, says), error) from error
        return offsets

    def delete_group_offsets(
        self, group_id: str, topic_partitions: Iterable[TopicPartition], timeout: Timeout = None
    ) -> None:
        """Delete the committed offsets of ``group_id`` for these partitions.

        Raises `BrokerError` for the first that is refused: GROUP_SUBSCRIBED_TO_TOPIC while a member reads it.
        """
        limit = self._limit(timeout)
        key = CoordinatorKey.group(group_id)
        names = {TopicPartition(*tp) for tp in topic_partitions}

        def ask(pending: list[Any]) -> Iterator[ItemResult]:
            self._reach_coordinator(key, limit)
            for part in split_commit(group_id, dict.fromkeys(pending, 0)):
                response = ask_coordinator(self._router, key, _offset_delete(group_id, part), limit)
                if response.error_code:
                    yield from (ItemResult(tp, response.error_code) for tp in part)
                for topic in response.topics:
                    for one in topic.partitions:
                        yield ItemResult(TopicPartition(topic.name, one.partition_index), one.error_code)

        task = Task(f"deleting what group {group_id} has committed for", "Delete")
        self._settle(
            sorted(names), ask, task, limit, lambda error: self._router.coordinators.learn(key, error)
        )

    def delete_groups(self, group_ids: Collection[str], timeout: Timeout = None) -> None:
        """Delete groups and their committed offsets; they must have no members (NON_EMPTY_GROUP).

        Raises `BrokerError` for the first that is refused, after the others were deleted; another error ends
        it, and its notes name those that were refused before. A group with the
        offsets of more than some ten thousand partitions is refused with UNKNOWN_SERVER_ERROR, as its end
        would not fit into one batch: call `delete_group_offsets` before.
        """
        limit = self._limit(timeout)
        failures: list[KafkaError] = []
        for name in names_of(group_ids, "groups"):
            try:
                self._delete_group(name, limit)
            except BrokerError as error:
                failures.append(error)
            except KafkaError as error:
                raise with_refused(error, failures)  # noqa: B904 - it is the same one
        if failures:
            raise with_refused(failures[0], failures[1:])

    def _reach_coordinator(self, key: CoordinatorKey, limit: Deadline) -> None:
        with before_sending():
            self._router.connection(find_coordinator(self._router, key, limit), limit)

    def _delete_group(self, group_id: str, limit: Deadline) -> None:
        key = CoordinatorKey.group(group_id)

        def ask(pending: list[Any]) -> Iterable[ItemResult]:
            self._reach_coordinator(key, limit)
            response = ask_coordinator(self._router, key, DeleteGroupsRequest(groups_names=pending), limit)
            return [ItemResult(result.group_id, result.error_code) for result in response.results]

        task = Task("deleting group", "Delete", ErrorCode.GROUP_ID_NOT_FOUND)
        self._settle([group_id], ask, task, limit, lambda error: self._router.coordinators.learn(key, error))

    def _describe(self, group_id: str, limit: Deadline) -> GroupDescription:
        key = CoordinatorKey.group(group_id)
        consumer = ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=False)
        try:
            return send_to_coordinator(
                self._router, key, consumer, lambda response: read_consumer_group(response, group_id), limit
            )
        except UnsupportedVersionError:
            pass  # a broker before KIP-848
        except BrokerError as error:
            if error.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                raise
        classic = DescribeGroupsRequest(groups=[group_id])
        return send_to_coordinator(
            self._router, key, classic, lambda response: read_classic_group(response, group_id), limit
        )

    def _resolve(
        self, places: Mapping[TopicPartition, OffsetAt | int], limit: Deadline
    ) -> dict[TopicPartition, int]:
        wanted = {TopicPartition(*tp): place for tp, place in places.items()}
        for place in wanted.values():
            if not isinstance(place, OffsetAt) and type(place) is not int:
                raise ValueError(f"a place is an offset, a number, or an OffsetAt, not {place!r}")
        given = {tp: place for tp, place in wanted.items() if isinstance(place, int)}
        for tp, (first, end) in list_bounds(self._router, given, deadline=limit).items():
            if not first <= given[tp] <= end:
                raise OffsetOutOfRangeError(tp, given[tp], first, end)
        named = {tp: place for tp, place in wanted.items() if isinstance(place, OffsetAt)}
        found = resolve_offsets(self._router, named, deadline=limit)
        return {tp: found[tp] if tp in found else given[tp] for tp in wanted}


def _offset_delete(group_id: str, topic_partitions: Iterable[TopicPartition]) -> OffsetDeleteRequest:
    topics: dict[str, list[OffsetDeleteRequestPartition]] = defaultdict(list)
    for tp in topic_partitions:
        topics[tp.topic].append(OffsetDeleteRequestPartition(partition_index=tp.partition))
    return OffsetDeleteRequest(
        group_id=group_id,
        topics=[OffsetDeleteRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
    )
