"""What one metadata answer says that the one before did not."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_native.kafka.cluster.metadata import (
    NO_TOPIC_ID,
    ClusterMetadata,
    Partition,
    Topic,
    leader_changes,
)
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import Broker
from spark_kafka_native.kafka.protocol.api.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ONE, OTHER = UUID(int=1), UUID(int=2)


def metadata(**leaders: tuple[int | None, ...]) -> ClusterMetadata:
    """Topics with the leaders of their partitions 0, 1, ..."""
    return ClusterMetadata(
        topics={
            name: Topic(
                name=name,
                topic_id=None,
                partitions={
                    index: Partition(index, leader, 0, (), (), ErrorCode.NONE)
                    for index, leader in enumerate(nodes)
                },
                error_code=ErrorCode.NONE,
                internal=False,
            )
            for name, nodes in leaders.items()
        }
    )


def test_leader_changes_are_those_of_partitions_that_were_known() -> None:
    before = metadata(orders=(1, 2, None, 3), gone=(1,))
    after = metadata(orders=(2, 2, 1, None, 5), new=(1,))
    assert list(leader_changes(before, after)) == [
        "orders-0: led by broker 2, before by broker 1",
        "orders-2: led by broker 1, before by nobody",
        "orders-3: led by nobody, before by broker 3",
    ]
    assert not list(leader_changes(after, after))


def test_an_answer_replaces_all_brokers() -> None:
    def answer(*nodes: int) -> MetadataResponse:
        brokers = [MetadataResponseBroker(node_id=node, host="h", port=node, rack=None) for node in nodes]
        return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=1, topics=[])

    known = ClusterMetadata().updated(answer(1, 2), None)
    assert known.brokers == {node: Broker(node_id=node, host="h", port=node, rack=None) for node in (1, 2)}
    assert set(known.updated(answer(2, 3), None).brokers) == {2, 3}


@pytest.mark.parametrize(
    ("topic_id", "epoch", "believed"),
    [
        (ONE, 6, True),
        (ONE, 5, True),
        (ONE, 4, False),
        (ONE, -1, True),  # a broker that knows no epochs
        (OTHER, 0, True),  # the topic was created again
        (NO_TOPIC_ID, 4, True),
    ],
)
def test_a_leader_of_an_older_epoch_of_the_same_topic_is_not_believed(
    topic_id: UUID, epoch: int, believed: bool
) -> None:
    def answer(topic_id: UUID, leader: int, epoch: int) -> MetadataResponse:
        partition = MetadataResponsePartition(
            error_code=ErrorCode.NONE,
            partition_index=0,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=[],
            isr_nodes=[],
        )
        topic = MetadataResponseTopic(
            error_code=ErrorCode.NONE, name="t", topic_id=topic_id, partitions=[partition]
        )
        return MetadataResponse(brokers=[], cluster_id="c", controller_id=1, topics=[topic])

    known = ClusterMetadata().updated(answer(ONE, 1, 5), None)
    partition = known.updated(answer(topic_id, 2, epoch), ["t"]).topics["t"].partitions[0]
    assert (partition.leader, partition.leader_epoch) == ((2, epoch) if believed else (1, 5))


@pytest.mark.parametrize(("node_id", "found"), [(0, 0), (7, 7), (-1, None)])
def test_only_a_negative_node_is_none(node_id: int, found: int | None) -> None:
    """The first broker of a cluster may have the number 0."""
    partition = MetadataResponsePartition(
        error_code=ErrorCode.NONE,
        partition_index=0,
        leader_id=node_id,
        leader_epoch=0,
        replica_nodes=[],
        isr_nodes=[],
    )
    topic = MetadataResponseTopic(
        error_code=ErrorCode.NONE, name="t", topic_id=NO_TOPIC_ID, partitions=[partition]
    )
    answer = MetadataResponse(brokers=[], cluster_id="c", controller_id=node_id, topics=[topic])
    made = ClusterMetadata().updated(answer, ["t"])
    assert (made.controller_id, made.topics["t"].partitions[0].leader) == (found, found)
    assert made.topics["t"].topic_id is None


def test_an_answer_about_some_topics_leaves_the_others_and_forgets_those_it_leaves_out() -> None:
    def answer(*names: str) -> MetadataResponse:
        topics = [
            MetadataResponseTopic(error_code=ErrorCode.NONE, name=name, topic_id=ONE, partitions=[])
            for name in names
        ]
        return MetadataResponse(brokers=[], cluster_id="c", controller_id=1, topics=topics)

    known = ClusterMetadata().updated(answer("a", "b"), None)
    assert set(known.updated(answer("c"), ["c"]).topics) == {"a", "b", "c"}
    assert set(known.updated(answer("c"), ["b", "c"]).topics) == {"a", "c"}
    assert set(known.updated(answer("c"), None).topics) == {"c"}
