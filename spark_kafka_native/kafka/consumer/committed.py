"""`committed_offsets`: where a consumer group stands, without joining it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from ..cluster.router import Router
from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError
from ..model import TopicPartition
from ..network.deadline import Deadline
from ..protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)


def committed_offsets(
    router: Router,
    group_id: str,
    topic_partitions: Collection[TopicPartition],
    deadline: Deadline | None = None,
) -> dict[TopicPartition, int | None]:
    """The offset that ``group_id`` has committed for each partition; None where it has committed none.

    Offsets of a transaction that is still open are waited for (KIP-447), up to ``deadline``. A group that
    does not exist has committed nothing. Raises `BrokerError` (not authorized), `DeadlineExceededError`.
    """
    request = build_offset_fetch(group_id, topic_partitions)
    limit = deadline or router.deadline()

    def attempt() -> dict[TopicPartition, int | None]:
        node_id = router.coordinator(group_id, deadline=limit)
        return read_offset_fetch(router.send_to(node_id, request, limit), group_id, topic_partitions)

    def ask_again(error: KafkaError) -> None:
        # UNSTABLE_OFFSET_COMMIT aside, every failure may mean that the group has moved to another broker.
        if not (isinstance(error, BrokerError) and error.error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT):
            router.forget_coordinator(group_id)

    what = f"asking for the committed offsets of group {group_id}"
    return router.retry(attempt, what=what, deadline=limit, between=ask_again)


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
    """The committed offsets in the response. Raises `BrokerError` for the first error in it."""
    committed: dict[TopicPartition, int | None] = dict.fromkeys(topic_partitions)
    for group in response.groups:
        if group.error_code:
            raise BrokerError(group.error_code, f"committed offsets of group {group_id}")
        for topic in group.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                if partition.error_code:
                    raise BrokerError(partition.error_code, f"committed offset of {tp} in group {group_id}")
                if tp in committed and partition.committed_offset >= 0:
                    committed[tp] = partition.committed_offset
    return committed
