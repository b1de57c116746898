"""The requests of `Admin`: each has the arguments of the call, and goes to the broker that it concerns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.scripted_broker import Answer, ScriptedCluster

from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.admin.configs import ConfigResource
from spark_kafka_native.kafka.admin.topics import NewTopic
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, OffsetOutOfRangeError
from spark_kafka_native.kafka.model import OffsetAt, TopicPartition
from spark_kafka_native.kafka.protocol.api.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from spark_kafka_native.kafka.protocol.api.configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from spark_kafka_native.kafka.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from spark_kafka_native.kafka.protocol.api.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from spark_kafka_native.kafka.protocol.message import Request

NONE = ErrorCode.NONE
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2) as running:
        running.create("a", partitions=2, leader=1)
        yield running


@pytest.fixture
def admin(cluster: ScriptedCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers, retry_backoff_ms=5) as admin:
        yield admin


def answer_all(cluster: ScriptedCluster, request: type[Request[Any]], answer: Answer) -> None:
    for broker in cluster.brokers.values():
        broker.on(request, answer)


def asked(cluster: ScriptedCluster, request: type[Request[Any]]) -> list[Any]:
    return [one for broker in cluster.brokers.values() for one in broker.requests(request)]


def altered(request: IncrementalAlterConfigsRequest, _version: int) -> IncrementalAlterConfigsResponse:
    [one] = request.resources
    done = AlterConfigsResourceResponse(
        error_code=NONE,
        error_message=None,
        resource_type=one.resource_type,
        resource_name=one.resource_name,
    )
    return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=[done])


@pytest.mark.parametrize("resource", [ConfigResource.broker, ConfigResource.broker_loggers])
@pytest.mark.parametrize("node_id", [1, 2])
def test_the_broker_itself_alters_its_configs(
    cluster: ScriptedCluster, admin: Admin, resource: Callable[[int], ConfigResource], node_id: int
) -> None:
    answer_all(cluster, IncrementalAlterConfigsRequest, altered)
    for _ in range(5):  # any broker would be asked at random
        admin.alter_configs(resource(node_id), {"x": "y"})
    assert len(cluster[node_id].requests(IncrementalAlterConfigsRequest)) == 5


@pytest.mark.parametrize("validate_only", [False, True])
def test_configs_are_altered_as_the_caller_says(
    cluster: ScriptedCluster, admin: Admin, validate_only: bool
) -> None:
    answer_all(cluster, IncrementalAlterConfigsRequest, altered)
    admin.alter_configs(
        ConfigResource.topic("a"),
        {"s": "1", "d": None},
        append={"a": "2"},
        subtract={"r": "3"},
        validate_only=validate_only,
    )
    [request] = asked(cluster, IncrementalAlterConfigsRequest)
    assert request.validate_only is validate_only
    assert [(one.name, one.config_operation, one.value) for one in request.resources[0].configs] == [
        ("s", SET, "1"),
        ("d", DELETE, None),
        ("a", APPEND, "2"),
        ("r", SUBTRACT, "3"),
    ]


@pytest.mark.parametrize("validate_only", [False, True])
def test_a_check_of_topics_and_partitions_changes_nothing(
    cluster: ScriptedCluster, admin: Admin, validate_only: bool
) -> None:
    created = CreatableTopicResult(name="a", error_code=NONE, error_message=None)
    grown = CreatePartitionsTopicResult(name="a", error_code=NONE)
    answer_all(cluster, CreateTopicsRequest, CreateTopicsResponse(topics=[created]))
    answer_all(
        cluster, CreatePartitionsRequest, CreatePartitionsResponse(throttle_time_ms=0, results=[grown])
    )
    admin.create_topics([NewTopic(name="a")], validate_only=validate_only)
    admin.create_partitions({"a": 3}, validate_only=validate_only)
    for kind in (CreateTopicsRequest, CreatePartitionsRequest):
        [request] = asked(cluster, kind)
        assert request.validate_only is validate_only


def test_a_reassignment_is_cancelled_or_has_its_replicas(cluster: ScriptedCluster, admin: Admin) -> None:
    done = [
        ReassignablePartitionResponse(partition_index=index, error_code=NONE, error_message=None)
        for index in (0, 1)
    ]
    response = AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=NONE,
        error_message=None,
        responses=[ReassignableTopicResponse(name="a", partitions=done)],
    )
    answer_all(cluster, AlterPartitionReassignmentsRequest, response)
    admin.reassign({A0: None, A1: [2, 1]})
    [request] = asked(cluster, AlterPartitionReassignmentsRequest)
    [topic] = request.topics
    assert {one.partition_index: one.replicas for one in topic.partitions} == {0: None, 1: [2, 1]}


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("wanted", [None, [A0, A1]])
def test_an_election_is_unclean_only_on_request(
    cluster: ScriptedCluster, admin: Admin, wanted: list[TopicPartition] | None, unclean: bool
) -> None:
    results = [
        PartitionResult(partition_id=0, error_code=NONE, error_message=None),
        PartitionResult(partition_id=1, error_code=ErrorCode.ELECTION_NOT_NEEDED, error_message="no"),
    ]
    response = ElectLeadersResponse(
        throttle_time_ms=0,
        replica_election_results=[ReplicaElectionResult(topic="a", partition_result=results)],
    )
    answer_all(cluster, ElectLeadersRequest, response)
    assert admin.elect_leaders(wanted, unclean=unclean) == {A0}
    [request] = asked(cluster, ElectLeadersRequest)
    assert request.election_type == int(unclean)
    topics = [(one.topic, one.partitions) for one in request.topic_partitions or ()]
    assert topics == ([] if wanted is None else [("a", [0, 1])])


def test_a_refusal_for_good_is_raised_though_another_partition_is_to_be_asked_again(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    def refused(request: DeleteRecordsRequest, _version: int) -> DeleteRecordsResponse:
        codes = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE)
        results = [
            DeleteRecordsPartitionResult(
                partition_index=one.partition_index, low_watermark=-1, error_code=codes[one.partition_index]
            )
            for one in request.topics[0].partitions
        ]
        return DeleteRecordsResponse(
            throttle_time_ms=0, topics=[DeleteRecordsTopicResult(name="a", partitions=results)]
        )

    cluster[1].on(DeleteRecordsRequest, refused)
    with pytest.raises(BrokerError, match="a-1 before offset 9: OFFSET_OUT_OF_RANGE") as raised:
        admin.delete_records({A0: 1, A1: 9})
    assert "a-0 before offset 1: NOT_LEADER_OR_FOLLOWER" in raised.value.__notes__[0]


def test_offsets_are_reset_to_any_place_of_the_partition(cluster: ScriptedCluster, admin: Admin) -> None:
    cluster.logs[A0].append([b"0", b"1", b"2"])
    for offset in (0, 3):
        assert admin.reset_offsets("g", {A0: offset}, dry_run=True) == {A0: offset}
    assert admin.group_offsets("g") == {}
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRangeError):
            admin.reset_offsets("g", {A0: offset})
    assert admin.reset_offsets("g", {A0: OffsetAt.LATEST}) == {A0: 3}
    assert {tp: one.offset for tp, one in admin.group_offsets("g").items()} == {A0: 3}
    assert {tp: one.lag for tp, one in admin.group_lag("g").items()} == {A0: 0}


@pytest.mark.parametrize(
    ("code", "match"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, "resetting offsets of group g: .*stop them first"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "GROUP_AUTHORIZATION_FAILED"),
    ],
)
def test_a_refused_reset_is_raised(
    cluster: ScriptedCluster, admin: Admin, code: ErrorCode, match: str
) -> None:
    cluster.logs[A0].append([b"0"])
    part = OffsetCommitResponsePartition(partition_index=0, error_code=code)
    response = OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="a", partitions=[part])])
    answer_all(cluster, OffsetCommitRequest, response)
    with pytest.raises(BrokerError, match=match) as raised:
        admin.reset_offsets("g", {A0: 1})
    assert raised.value.error_code is code


def test_a_partition_that_is_gone_has_neither_an_end_nor_an_error(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    cluster.logs[A0].append([b"0"])
    admin.reset_offsets("g", {A0: 0, A1: 0})
    del cluster.logs[A1]
    lag = admin.group_lag("g")
    assert {tp: (one.lag, one.end_offset, one.error) for tp, one in lag.items()} == {
        A0: (1, 1, None),
        A1: (None, None, None),
    }
