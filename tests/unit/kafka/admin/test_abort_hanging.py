"""A hanging transaction that is aborted, though the response to that is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.brokers.scripted_broker import HangUp, ScriptedCluster

from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, KafkaError, NetworkError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from spark_kafka_native.testing import MockBroker

A0 = TopicPartition("a", 0)


def marker(producer_id: int, partition: int) -> WritableTxnMarkerResult:
    result = WritableTxnMarkerPartitionResult(partition_index=partition, error_code=ErrorCode.NONE)
    topic = WritableTxnMarkerTopicResult(name="a", partitions=[result])
    return WritableTxnMarkerResult(producer_id=producer_id, topics=[topic])


@pytest.mark.parametrize(("known", "sent"), [(-1, 0), (5, 5)])
def test_an_abort_with_a_lost_response_is_found_to_be_done(known: int, sent: int) -> None:
    """The second attempt finds no transaction: that was the first one's work. The marker has the epoch of the
    coordinator, if there was one: an older one would be refused."""
    open_ = [
        ProducerState(
            producer_id=7,
            producer_epoch=3,
            last_timestamp=0,
            coordinator_epoch=known,
            current_txn_start_offset=1,
        )
    ]

    def producers(_request: Any, _version: int) -> DescribeProducersResponse:
        there = PartitionResponse(partition_index=0, error_code=ErrorCode.NONE, active_producers=list(open_))
        return DescribeProducersResponse(
            throttle_time_ms=0, topics=[TopicResponse(name="a", partitions=[there])]
        )

    def abort(*_: Any) -> type[HangUp]:
        open_.clear()
        return HangUp

    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster[1].on(DescribeProducersRequest, producers)
        cluster[1].on(WriteTxnMarkersRequest, abort)
        with Admin(cluster.bootstrap_servers, retry_backoff_ms=5) as admin:
            assert admin.abort_hanging(A0, 1) is False
            [request] = cluster[1].requests(WriteTxnMarkersRequest)
            [marker] = request.markers
            assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 3, sent)
            assert not marker.transaction_result
            with pytest.raises(ValueError, match="no transaction is open in a-0 that begins at offset 1"):
                admin.abort_hanging(A0, 1)


@contextmanager
def hanging() -> Iterator[tuple[MockBroker, Admin]]:
    """A broker with an open transaction in a-0, and little time for requests to it."""
    state = {"producer_id": 7, "current_txn_start_offset": 1}
    with (
        MockBroker() as broker,
        Admin(broker.bootstrap_servers, default_api_timeout_ms=1_000, retry_backoff_ms=5) as admin,
    ):
        broker.create_topic("a")
        there = {"partition_index": 0, "active_producers": [state]}
        broker.on("DescribeProducers", times=None).reply({"topics": [{"name": "a", "partitions": [there]}]})
        yield broker, admin


@pytest.mark.parametrize("lost", ["Metadata", "WriteTxnMarkers"])
def test_an_abort_of_which_no_response_came_may_have_been_carried_out(lost: str) -> None:
    with hanging() as (broker, admin):
        broker.on(lost, times=None).hang_up()
        with pytest.raises(KafkaError) as raised:
            admin.abort_hanging(A0, 1)
    is_said = "may have been carried out" in "".join(getattr(raised.value, "__notes__", ()))
    assert is_said is (lost == "WriteTxnMarkers")


def test_an_abort_for_which_the_leader_could_not_be_reached_was_not_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with hanging() as (_, admin):
        leader = Router.leader

        def leader_that_ends(router: Router, *given: Any) -> Any:
            def refuse(*_: object) -> None:
                raise NetworkError("refused")

            monkeypatch.setattr(Router, "connection", refuse)
            return leader(router, *given)

        monkeypatch.setattr(Router, "leader", leader_that_ends)
        with pytest.raises(KafkaError, match="refused") as raised:
            admin.abort_hanging(A0, 1)
    assert "may have been carried out" not in "".join(getattr(raised.value, "__notes__", ()))


def test_an_abort_ends_the_transaction_at_its_offset_and_no_other() -> None:
    """A partition has the transactions of several producers at a time; those of the others continue."""
    states = [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=0,
            last_timestamp=0,
            coordinator_epoch=0,
            current_txn_start_offset=start,
        )
        for producer_id, start in ((7, -1), (8, 1), (9, 4), (10, 9))
    ]
    there = PartitionResponse(partition_index=0, error_code=ErrorCode.NONE, active_producers=states)
    producers = DescribeProducersResponse(
        throttle_time_ms=0, topics=[TopicResponse(name="a", partitions=[there])]
    )
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster[1].on(DescribeProducersRequest, producers)
        answers = [[], [marker(9, 1)], [marker(9, 0)]]
        cluster[1].on(WriteTxnMarkersRequest, lambda *_: WriteTxnMarkersResponse(markers=answers.pop(0)))
        with Admin(cluster.bootstrap_servers, retry_backoff_ms=5) as admin:
            assert admin.abort_hanging(A0, 4) is True  # a response without it does not count
        assert answers == []
        request = cluster[1].requests(WriteTxnMarkersRequest)[-1]
        assert [one.producer_id for one in request.markers] == [9]


@pytest.mark.parametrize("start", [0, 1])
def test_an_abort_that_is_refused_is_not_done(start: int) -> None:
    state = {"producer_id": 7, "current_txn_start_offset": start}
    refused = {"partition_index": 0, "error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("a")
        there = {"partition_index": 0, "active_producers": [state]}
        broker.on("DescribeProducers", times=None).reply({"topics": [{"name": "a", "partitions": [there]}]})
        topics = [{"name": "a", "partitions": [refused]}]
        broker.on("WriteTxnMarkers").reply({"markers": [{"producer_id": 7, "topics": topics}]})
        with pytest.raises(
            BrokerError, match=f"transaction in a-0 from offset {start}: CLUSTER_AUTHORIZATION_FAILED"
        ):
            admin.abort_hanging(A0, start)
