"""What one metadata answer says that the one before did not."""

from __future__ import annotations

from spark_kafka_native.kafka.cluster.metadata import ClusterMetadata, Partition, Topic, leader_changes
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import Broker
from spark_kafka_native.kafka.protocol.api.metadata import MetadataResponse, MetadataResponseBroker


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


def test_an_answer_without_brokers_forgets_none_and_one_with_some_replaces_all() -> None:
    def answer(*nodes: int) -> MetadataResponse:
        brokers = [MetadataResponseBroker(node_id=node, host="h", port=node, rack=None) for node in nodes]
        return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=1, topics=[])

    known = ClusterMetadata().updated(answer(1, 2), None)
    assert known.brokers == {node: Broker(node_id=node, host="h", port=node, rack=None) for node in (1, 2)}
    assert known.updated(answer(), None).brokers == known.brokers
    assert set(known.updated(answer(2, 3), None).brokers) == {2, 3}
