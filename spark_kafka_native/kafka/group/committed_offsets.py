"""OffsetFetch and OffsetCommit: the committed offsets of a group, read and written without being a member."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from ..cluster.coordinators import ask_coordinator, retry_at_coordinator, send_to_coordinator
from ..cluster.router import CoordinatorKey, Router
from ..cluster.split_commit import split_commit
from ..error_code import ErrorCode
from ..errors import BrokerError, IncompleteResponseError, KafkaError, with_refused
from ..model import OffsetToCommit, TopicPartition
from ..protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ..runtime.deadline import Deadline
from ..runtime.retry import is_retriable
from .membership import Identity


def committed_offsets(
    router: Router,
    group_id: str,
    topic_partitions: Collection[TopicPartition],
    deadline: Deadline | None = None,
) -> dict[TopicPartition, int | None]:
    """The offset that ``group_id`` has committed for each partition; None if it has committed none.

    Waits for open transactions that commit offsets (KIP-447), until ``deadline``. A group that does not exist
    has committed nothing. Raises `BrokerError` (not authorized), `DeadlineExceededError`.

    A coordinator with commits that are not replicated yet holds back its response for its own
    ``offsets.commit.timeout.ms`` (5 s by default), then answers NOT_COORDINATOR, and is asked again. With a
    shorter ``request.timeout.ms`` the request times out instead.
    """
    return _offsets(committed_positions(router, group_id, topic_partitions, deadline))


def committed_positions(
    router: Router,
    group_id: str,
    topic_partitions: Collection[TopicPartition],
    deadline: Deadline | None = None,
) -> dict[TopicPartition, OffsetToCommit | None]:
    """As `committed_offsets`, with the leader epochs."""
    return send_to_coordinator(
        router,
        CoordinatorKey.group(group_id),
        build_offset_fetch(group_id, topic_partitions),
        lambda response: _read_positions(response, group_id, topic_partitions),
        deadline,
    )


def _offsets(positions: Mapping[TopicPartition, OffsetToCommit | None]) -> dict[TopicPartition, int | None]:
    return {tp: None if one is None else one.offset for tp, one in positions.items()}


def all_committed_offsets(
    router: Router, group_id: str, deadline: Deadline | None = None, *, stable: bool = True
) -> dict[TopicPartition, OffsetToCommit]:
    """All committed offsets of ``group_id``, with their metadata; raises as `committed_offsets`.

    With ``stable`` it waits for open transactions in partitions with a committed offset. The coordinator does
    not mention open transactions in other partitions: ask `committed_offsets` for these. Without ``stable``,
    offsets in open transactions are left out.
    """
    group = OffsetFetchRequestGroup(group_id=group_id, topics=None)
    return send_to_coordinator(
        router,
        CoordinatorKey.group(group_id),
        OffsetFetchRequest(groups=[group], require_stable=stable),
        lambda response: read_all_offsets(response, group_id),
        deadline,
    )


def read_all_offsets(response: OffsetFetchResponse, group_id: str) -> dict[TopicPartition, OffsetToCommit]:
    """All committed offsets in the response. Raises as `read_offset_fetch`."""
    committed: dict[TopicPartition, OffsetToCommit] = {}
    named = False
    for group in response.groups:
        named = named or group.group_id == group_id
        _check(group.error_code, f"committed offsets of group {group_id}")
        for topic in group.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                _check(partition.error_code, f"committed offset of {tp} in group {group_id}")
                if partition.committed_offset >= 0:
                    committed[tp] = OffsetToCommit(
                        offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata or "",
                    )
    if not named:
        raise IncompleteResponseError(f"committed offsets of group {group_id}: the response does not name it")
    return committed


def _check(code: ErrorCode, where: str) -> None:
    if code:
        raise BrokerError(code, where, operation="Describe")


def build_offset_fetch(group_id: str, topic_partitions: Collection[TopicPartition]) -> OffsetFetchRequest:
    """The request for the group's coordinator."""
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in topic_partitions:
        topics[topic].append(partition)
    group = OffsetFetchRequestGroup(
        group_id=group_id,
        topics=[
            OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics.items()
        ],
    )
    return OffsetFetchRequest(groups=[group], require_stable=True)


def read_offset_fetch(
    response: OffsetFetchResponse, group_id: str, topic_partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """The committed offsets in the response. Raises `BrokerError` for the first error in it,
    `IncompleteResponseError` if a partition is missing: that does not mean that nothing is committed.
    """
    return _offsets(_read_positions(response, group_id, topic_partitions))


def _read_positions(
    response: OffsetFetchResponse, group_id: str, topic_partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetToCommit | None]:
    committed: dict[TopicPartition, OffsetToCommit | None] = {}
    for group in response.groups:
        _check(group.error_code, f"committed offsets of group {group_id}")
        for topic in group.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                _check(partition.error_code, f"committed offset of {tp} in group {group_id}")
                offset, epoch = partition.committed_offset, partition.committed_leader_epoch
                committed[tp] = OffsetToCommit(offset=offset, leader_epoch=epoch) if offset >= 0 else None
    for tp in topic_partitions:
        if tp not in committed:
            raise IncompleteResponseError(
                f"committed offset of {tp} in group {group_id}: the response lacks it"
            )
    return {tp: committed[tp] for tp in topic_partitions}


def commit_offsets(
    router: Router,
    group_id: str,
    positions: Mapping[TopicPartition, int | OffsetToCommit],
    deadline: Deadline | None = None,
    ask: Callable[
        [Router, CoordinatorKey, OffsetCommitRequest, Deadline], OffsetCommitResponse
    ] = ask_coordinator,
) -> None:
    """Commit the offset of the next record to read for each partition. Many thousands of them take several
    requests: after an error, those of earlier requests are committed, and its notes name them. ``ask`` makes
    one attempt.

    The group must have no members: they commit for themselves, and the coordinator refuses commits of others
    (UNKNOWN_MEMBER_ID). Raises `BrokerError`, `DeadlineExceededError`.
    """
    limit, key = deadline or router.deadline(), CoordinatorKey.group(group_id)
    earlier: list[TopicPartition] = []
    for some in split_commit(group_id, positions):

        def attempt(some: Mapping[TopicPartition, int | OffsetToCommit] = some) -> None:
            response = ask(router, key, build_offset_commit(group_id, some), limit)
            read_offset_commit(response, group_id, some)

        try:
            retry_at_coordinator(router, key, attempt, f"OffsetCommit to the coordinator of {key}", limit)
        except KafkaError as error:
            _add_stored(error, earlier)
            raise
        earlier += some


def build_offset_commit(
    group_id: str, positions: Mapping[TopicPartition, int | OffsetToCommit], identity: Identity | None = None
) -> OffsetCommitRequest:
    """The request for the group's coordinator, by a member or (None) from outside the group."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for tp, position in positions.items():
        one = OffsetToCommit(offset=position) if isinstance(position, int) else position
        topics[tp.topic].append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=one.offset,
                committed_leader_epoch=one.leader_epoch,
                committed_metadata=one.metadata,
            )
        )
    member = Identity("", -1, None) if identity is None else identity
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(name=name, partitions=partitions) for name, partitions in topics.items()
        ],
    )


def refusals(
    response: OffsetCommitResponse, group_id: str, positions: Collection[TopicPartition]
) -> dict[TopicPartition, KafkaError]:
    """Those of ``positions`` that the coordinator has not stored, each with the reason: `BrokerError`, or
    `IncompleteResponseError` if the response leaves it out. The coordinator may have stored the others.
    """
    codes = {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }
    found: dict[TopicPartition, KafkaError] = {}
    for tp in positions:
        where = f"committing the offset of {tp} in group {group_id}"
        if tp not in codes:
            found[tp] = IncompleteResponseError(f"{where}: the response lacks it")
        elif codes[tp]:
            found[tp] = BrokerError(codes[tp], where, operation="Read")
    return found


def read_offset_commit(
    response: OffsetCommitResponse, group_id: str, positions: Collection[TopicPartition]
) -> None:
    """Raises the first of the `refusals`, of those that are retriable if there are any: the others would
    keep them from being tried again, and from a coordinator that has moved. Its notes name the others, and
    the partitions with stored offsets.
    """
    refused = refusals(response, group_id, positions)
    if not refused:
        return
    raised = next(filter(is_retriable, refused.values()), next(iter(refused.values())))
    with_refused(raised, (other for other in refused.values() if other is not raised))
    _add_stored(raised, [tp for tp in positions if tp not in refused])
    raise raised


def _add_stored(error: KafkaError, stored: Collection[TopicPartition]) -> None:
    names = sorted(map(str, stored))
    if names:
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        error.add_note(f"committed nevertheless: {', '.join(names[:10])}{more}")
