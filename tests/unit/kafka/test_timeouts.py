"""Calls of `Cluster` and `Admin` end with their timeout, also while no broker answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster, Silence

from spark_kafka_native.kafka.admin.acls import Acl, AclFilter
from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.admin.configs import ConfigResource
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
from spark_kafka_native.testing import MockBroker

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


TOKEN = "eA=="
READS = AclFilter(principal="User:a")
MAY_READ = Acl(resource="topic", name="a", principal="User:a", operation="read")
REQUESTS: list[tuple[str, Callable[[Admin, float], object]]] = [
    ("Metadata", lambda admin, s: admin.describe_cluster(s)),
    ("Metadata", lambda admin, s: admin.list_topics(s)),
    ("Metadata", lambda admin, s: admin.describe_topics(["a"], s)),
    ("CreateTopics", lambda admin, s: admin.create_topics(["b"], s)),
    ("DeleteTopics", lambda admin, s: admin.delete_topics(["a"], s)),
    ("CreatePartitions", lambda admin, s: admin.create_partitions({"a": 3}, s)),
    ("DeleteRecords", lambda admin, s: admin.delete_records({A0: 1}, s)),
    ("DescribeConfigs", lambda admin, s: admin.describe_topic_configs(["a"], s)),
    ("DescribeConfigs", lambda admin, s: admin.describe_broker_configs(1, s)),
    ("DescribeConfigs", lambda admin, s: admin.describe_configs(ConfigResource.broker(1), s)),
    (
        "IncrementalAlterConfigs",
        lambda admin, s: admin.alter_configs(ConfigResource.topic("a"), {"x": "y"}, s),
    ),
    (
        "IncrementalAlterConfigs",
        lambda admin, s: admin.alter_configs(ConfigResource.broker(1), {"x": "y"}, s),
    ),
    ("ListGroups", lambda admin, s: admin.list_groups(s)),
    ("ConsumerGroupDescribe", lambda admin, s: admin.describe_groups(["g"], s)),
    ("OffsetFetch", lambda admin, s: admin.group_offsets("g", s)),
    ("OffsetDelete", lambda admin, s: admin.delete_group_offsets("g", [A0], s)),
    ("OffsetCommit", lambda admin, s: admin.reset_offsets("g", {A0: 0}, s)),
    ("DeleteGroups", lambda admin, s: admin.delete_groups(["g"], s)),
    ("DescribeLogDirs", lambda admin, s: admin.describe_log_dirs(s)),
    ("AlterPartitionReassignments", lambda admin, s: admin.reassign({A0: [1]}, s)),
    ("ListPartitionReassignments", lambda admin, s: admin.list_reassignments(s)),
    ("ElectLeaders", lambda admin, s: admin.elect_leaders([A0], s)),
    ("DescribeAcls", lambda admin, s: admin.describe_acls(READS, s)),
    ("CreateAcls", lambda admin, s: admin.create_acls([MAY_READ], s)),
    ("DeleteAcls", lambda admin, s: admin.delete_acls(READS, s)),
    ("DescribeClientQuotas", lambda admin, s: admin.describe_quotas(None, s)),
    ("AlterClientQuotas", lambda admin, s: admin.alter_quotas({"user": "a"}, {"x": 1.0}, s)),
    ("DescribeUserScramCredentials", lambda admin, s: admin.describe_scram_users(None, s)),
    ("AlterUserScramCredentials", lambda admin, s: admin.set_scram_user("a", "b", s, iterations=4_096)),
    ("AlterUserScramCredentials", lambda admin, s: admin.delete_scram_user("a", s)),
    ("CreateDelegationToken", lambda admin, s: admin.create_delegation_token(s)),
    ("RenewDelegationToken", lambda admin, s: admin.renew_delegation_token(TOKEN, s)),
    ("ExpireDelegationToken", lambda admin, s: admin.expire_delegation_token(TOKEN, s)),
    ("DescribeDelegationToken", lambda admin, s: admin.describe_delegation_tokens(None, s)),
    ("ListTransactions", lambda admin, s: admin.list_transactions(s)),
    ("DescribeTransactions", lambda admin, s: admin.describe_transactions(["x"], s)),
    ("DescribeProducers", lambda admin, s: admin.describe_producers([A0], s)),
    ("WriteTxnMarkers", lambda admin, s: admin.abort_hanging(A0, 1, s)),
]


@pytest.mark.parametrize(("api", "call"), REQUESTS, ids=[api for api, _ in REQUESTS])
def test_each_request_of_an_admin_ends_with_the_timeout_of_the_call(
    api: str, call: Callable[[Admin, float], object]
) -> None:
    patient = {"default_api_timeout_ms": NEVER_MS, "request_timeout_ms": NEVER_MS}
    with MockBroker() as broker, Admin(broker.bootstrap_servers, **patient) as admin:
        broker.create_topic("a")
        if api == "Metadata":
            admin.describe_topics(["a"])
        open_one = {"partition_index": 0, "active_producers": [{"current_txn_start_offset": 1}]}
        if api == "WriteTxnMarkers":
            broker.on("DescribeProducers").reply({"topics": [{"name": "a", "partitions": [open_one]}]})
        broker.on(api, times=None).ignore()  # offered from now on
        with pytest.raises((DeadlineExceededError, RequestTimedOutError)):
            call(admin, 0.3)
        assert broker.asked(api)


def test_a_new_topic_is_waited_for_no_longer_than_the_timeout_of_the_call() -> None:
    patient = {"default_api_timeout_ms": NEVER_MS, "request_timeout_ms": NEVER_MS}
    with MockBroker() as broker, Admin(broker.bootstrap_servers, **patient) as admin:
        admin.describe_cluster()
        broker.on("Metadata", times=None).ignore()
        with pytest.raises(DeadlineExceededError):
            admin.create_topics(["a"], 1)
        assert len(broker.asked("CreateTopics")) == 1
