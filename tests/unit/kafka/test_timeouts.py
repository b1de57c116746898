"""Calls of `Cluster` and `Admin` end with their timeout, also while no broker answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster, Silence

from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.cluster_client import Cluster
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import DeadlineExceededError, RequestTimedOutError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.topics import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
NEVER_MS = 3_600_000
"""A call that takes it instead of its own timeout is ended by the limit of the test."""
OLD_AT_ONCE: dict[str, Any] = {
    "default_api_timeout_ms": NEVER_MS,
    "request_timeout_ms": NEVER_MS,
    "metadata_max_age_ms": 0,
}


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(1) as running:
        running.create("a", partitions=2)
        yield running


@pytest.mark.parametrize(
    "call",
    [
        lambda view: view.fetch("a", 0, 0, timeout=0.2),
        lambda view: view.connection(1, timeout=0.2),
        lambda view: view.topic("a", timeout=0.2),
        lambda view: view.send(MetadataRequest(topics=[]), 1, timeout=0.2),
        lambda view: Admin(view.router).delete_records({A0: 1}, timeout=0.2),
    ],
    ids=["fetch", "connection", "topic", "send", "delete_records"],
)
def test_the_timeout_counts_for_metadata_that_have_become_old(
    cluster: ScriptedCluster, call: Callable[[Cluster], object]
) -> None:
    with Cluster.connect(cluster.bootstrap_servers, **OLD_AT_ONCE) as view:
        view.topic("a")
        cluster[1].on(MetadataRequest, Silence)
        with pytest.raises(DeadlineExceededError):
            call(view)


def test_a_request_of_the_caller_ends_in_time(cluster: ScriptedCluster) -> None:
    with Cluster.connect(
        cluster.bootstrap_servers, default_api_timeout_ms=NEVER_MS, request_timeout_ms=NEVER_MS
    ) as view:
        view.connection(1)
        cluster[1].on(MetadataRequest, Silence)
        with pytest.raises(RequestTimedOutError):
            view.send(MetadataRequest(topics=[]), 1, timeout=0.2)


def test_metadata_and_connection_share_one_timeout(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster.connect(cluster.bootstrap_servers, **OLD_AT_ONCE) as view:
        made, deadline = [], view.router.deadline
        monkeypatch.setattr(view.router, "deadline", lambda *given: made.append(given) or deadline(*given))
        for call in (
            lambda: view.connection(1, timeout=60),
            lambda: view.send(MetadataRequest(topics=[]), 1, timeout=60),
        ):
            made.clear()
            call()
            assert made == [(60_000,)]


def test_records_are_deleted_once_though_another_partition_is_asked_again(cluster: ScriptedCluster) -> None:
    """Those that were written after the first attempt are not to be deleted."""
    asked: list[dict[int, int]] = []

    def delete(request: DeleteRecordsRequest, _version: int) -> DeleteRecordsResponse:
        [topic] = request.topics
        asked.append({one.partition_index: one.offset for one in topic.partitions})
        refused = ErrorCode.NOT_LEADER_OR_FOLLOWER if len(asked) == 1 else ErrorCode.NONE
        results = [
            DeleteRecordsPartitionResult(
                partition_index=one.partition_index,
                low_watermark=5,
                error_code=refused if one.partition_index else ErrorCode.NONE,
            )
            for one in topic.partitions
        ]
        return DeleteRecordsResponse(
            throttle_time_ms=0, topics=[DeleteRecordsTopicResult(name="a", partitions=results)]
        )

    cluster[1].on(DeleteRecordsRequest, delete)
    with Admin(cluster.bootstrap_servers, retry_backoff_ms=5) as admin:
        assert admin.delete_records({A0: -1, A1: -1}) == {A0: 5, A1: 5}
    assert asked == [{0: 0, 1: 0}, {1: 0}]
