"""`GroupAdmin`: list and describe groups of both protocols; where they stand, and moving them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..cluster.coordinator_requests import ask_coordinator, send_to_coordinator
from ..cluster.coordinators import CoordinatorKey
from ..consumer.offsets import list_bounds, list_offsets_of_each, resolve_offsets
from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError, OffsetOutOfRangeError, UnsupportedVersionError
from ..group.committed import all_committed_offsets
from ..group.committing import commit_offsets
from ..model import OffsetAt, OffsetToCommit, TopicPartition
from ..protocol.api.consumer_group_describe import ConsumerGroupDescribeRequest
from ..protocol.api.describe_groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ..runtime.deadline import Deadline, Timeout
from .family import AdminFamily, Outcome, Task, names_of, refuse, with_refused
from .group_descriptions import (
    GroupDescription,
    GroupListing,
    PartitionLag,
    read_classic_group,
    read_consumer_group,
)

_HAS_MEMBERS = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
    )
)


class GroupAdmin(AdminFamily):
    """Groups, seen and moved from outside."""

    def list_groups(
        self,
        timeout: Timeout = None,
        *,
        states: Collection[str] = (),
        types: Collection[str] = (),
    ) -> list[GroupListing]:
        """All groups of the cluster (of these states and types), by name.

        States and types are Kafka's words: Stable, Empty, Dead ...; classic, consumer, share, streams. Every
        broker is asked; raises `BrokerError` or `DeadlineExceededError` where one does not tell.
        """
        limit = self._limit(timeout)
        request = ListGroupsRequest(
            states_filter=names_of(states, "states"), types_filter=names_of(types, "types")
        )

        def ask(node_id: int) -> list[GroupListing]:
            response = self._router.send_to(node_id, request, limit)
            refuse(Outcome(f"broker {node_id}", response.error_code), "listing groups of", "Describe")
            return [
                GroupListing(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    state=group.group_state,
                    type=group.group_type.lower(),
                )
                for group in response.groups
            ]

        return sorted(self._ask_every_broker(ask, "listing groups", limit), key=lambda group: group.group_id)

    def describe_groups(
        self, group_ids: Collection[str], timeout: Timeout = None
    ) -> dict[str, GroupDescription]:
        """State, members and what each of them reads, for groups of the classic and the consumer protocol.

        Raises `BrokerError`: GROUP_ID_NOT_FOUND, GROUP_AUTHORIZATION_FAILED.
        """
        limit = self._limit(timeout)
        return {name: self._describe(name, limit) for name in names_of(group_ids, "groups")}

    def group_offsets(self, group_id: str, timeout: Timeout = None) -> dict[TopicPartition, OffsetToCommit]:
        """Everything that ``group_id`` has committed. A group that does not exist has committed nothing.

        Offsets of a transaction that is still open are waited for. Raises `BrokerError`.
        """
        return all_committed_offsets(self._router, group_id, self._limit(timeout))

    def group_lag(self, group_id: str, timeout: Timeout = None) -> dict[TopicPartition, PartitionLag]:
        """For everything that ``group_id`` has committed: the end of the log, and how far it is ahead.

        A partition that is gone has no end; nor has one that does not answer (it has no leader, say), which
        has an ``error``. Raises where none answers.
        """
        limit = self._limit(timeout)
        committed = self.group_offsets(group_id, limit)
        metadata = self._router.metadata({tp.topic for tp in committed}, refresh=True, deadline=limit)
        there = [
            tp
            for tp in committed
            if not metadata.topics[tp.topic].error_code
            and tp.partition in metadata.topics[tp.topic].partitions
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
        """Commit another offset for each partition: one that is there, or where a place in the log is now.

        A time after the last record means the end. With ``dry_run`` nothing is changed. Returns the offsets.
        Raises `OffsetOutOfRangeError` for one that the partition does not have, `BrokerError` for a group
        with members: those commit for themselves, and would go on from where they are.
        """
        limit = self._limit(timeout)
        offsets = self._resolve(places, limit)
        if dry_run:
            return offsets
        try:
            commit_offsets(self._router, group_id, offsets, limit)
        except BrokerError as error:
            if error.error_code not in _HAS_MEMBERS:
                raise
            says = "the group has members, which commit for themselves: stop them first"
            raise BrokerError(error.error_code, f"resetting offsets of group {group_id}", says) from error
        return offsets

    def delete_group_offsets(
        self, group_id: str, topic_partitions: Iterable[TopicPartition], timeout: Timeout = None
    ) -> None:
        """Forget what ``group_id`` has committed for these partitions.

        Raises `BrokerError` for the first that is refused: GROUP_SUBSCRIBED_TO_TOPIC while a member reads it.
        """
        limit = self._limit(timeout)
        key = CoordinatorKey.group(group_id)
        names = {TopicPartition(*tp) for tp in topic_partitions}

        def ask(pending: list[Any]) -> Iterable[Outcome]:
            response = ask_coordinator(self._router, key, _offset_delete(group_id, pending), limit)
            if response.error_code:
                return [Outcome(tp, response.error_code) for tp in pending]
            return [
                Outcome(TopicPartition(topic.name, one.partition_index), one.error_code)
                for topic in response.topics
                for one in topic.partitions
            ]

        task = Task(f"deleting what group {group_id} has committed for", "Delete")
        self._settle(
            sorted(names), ask, task, limit, lambda error: self._router.coordinators.learn(key, error)
        )

    def delete_groups(self, group_ids: Collection[str], timeout: Timeout = None) -> None:
        """Delete groups with everything they have committed; they must have no members (NON_EMPTY_GROUP).

        Raises `BrokerError` for the first that is refused, after the others were deleted.
        """
        limit = self._limit(timeout)
        failures: list[KafkaError] = []
        for name in names_of(group_ids, "groups"):
            try:
                self._delete_group(name, limit)
            except BrokerError as error:
                failures.append(error)
        if failures:
            raise with_refused(failures[0], failures[1:])

    def _delete_group(self, group_id: str, limit: Deadline) -> None:
        key = CoordinatorKey.group(group_id)

        def ask(pending: list[Any]) -> Iterable[Outcome]:
            response = ask_coordinator(self._router, key, DeleteGroupsRequest(groups_names=pending), limit)
            return [Outcome(result.group_id, result.error_code) for result in response.results]

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
