"""The requests of `Admin`: each has the arguments of the call, and goes to the broker that it concerns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from support.brokers.scripted_broker import Answer, HangUp, ScriptedCluster, Silence

from spark_kafka_native.kafka.admin import transactions
from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.admin.cluster import Reassignment, Replica
from spark_kafka_native.kafka.admin.configs import ConfigResource
from spark_kafka_native.kafka.admin.groups import read_classic_group, read_consumer_group
from spark_kafka_native.kafka.admin.topics import NewTopic
from spark_kafka_native.kafka.cluster import offsets, split_commit
from spark_kafka_native.kafka.cluster.coordinators import ask_controller
from spark_kafka_native.kafka.cluster.describe_configs import describe_broker_configs
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    IncompleteResponseError,
    KafkaError,
    OffsetOutOfRangeError,
    PartialAnswerError,
)
from spark_kafka_native.kafka.model import OffsetAt, TopicPartition
from spark_kafka_native.kafka.protocol.api.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from spark_kafka_native.kafka.protocol.api.configs import (
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from spark_kafka_native.kafka.protocol.api.find_coordinator import FindCoordinatorRequest
from spark_kafka_native.kafka.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from spark_kafka_native.kafka.protocol.api.groups import (
    ConsumerGroupAssignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMember,
    ConsumerGroupTopicPartitions,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.protocol.api.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from spark_kafka_native.kafka.protocol.api.transaction_admin import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from spark_kafka_native.kafka.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ProtocolTopicPartitions,
    write_versioned,
)
from spark_kafka_native.kafka.protocol.message import Request
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import Effect, MockBroker, MockRequest

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


@pytest.mark.parametrize("resource", [ConfigResource.broker, ConfigResource.broker_loggers])
def test_a_broker_with_the_id_0_is_asked_itself(
    cluster: ScriptedCluster, admin: Admin, resource: Callable[[int], ConfigResource]
) -> None:
    def counted_from_0(request: MetadataRequest, version: int) -> MetadataResponse:
        response = cluster.metadata(request, version)
        return replace(response, brokers=[replace(one, node_id=one.node_id - 1) for one in response.brokers])

    answer_all(cluster, MetadataRequest, counted_from_0)
    answer_all(cluster, IncrementalAlterConfigsRequest, altered)
    described = DescribeConfigsResult(
        error_code=ErrorCode.NONE, error_message=None, resource_type=4, resource_name="0", configs=[]
    )
    answer_all(
        cluster, DescribeConfigsRequest, DescribeConfigsResponse(throttle_time_ms=0, results=[described])
    )
    for _ in range(10):  # any broker would be asked at random
        admin.alter_configs(resource(0), {"x": "y"})
        admin.describe_configs(resource(0))
    for request in (IncrementalAlterConfigsRequest, DescribeConfigsRequest):
        assert len(cluster[1].requests(request)) == 10


@pytest.mark.parametrize("validate_only", [False, True])
def test_configs_are_altered_as_the_caller_says(
    cluster: ScriptedCluster, admin: Admin, validate_only: bool
) -> None:
    answer_all(cluster, IncrementalAlterConfigsRequest, altered)
    admin.alter_configs(
        ConfigResource.topic("a"),
        {"s": "1", "d": None, "e": ""},
        append={"a": "2"},
        subtract={"r": "3"},
        validate_only=validate_only,
    )
    [request] = asked(cluster, IncrementalAlterConfigsRequest)
    assert request.validate_only is validate_only
    assert [(one.name, one.config_operation, one.value) for one in request.resources[0].configs] == [
        ("s", SET, "1"),
        ("d", DELETE, None),
        ("e", SET, ""),
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


def reassigned(*codes: ErrorCode) -> AlterPartitionReassignmentsResponse:
    """The response about partitions 0, 1, ... of topic a."""
    results = [
        ReassignablePartitionResponse(partition_index=index, error_code=code, error_message=None)
        for index, code in enumerate(codes)
    ]
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=NONE,
        error_message=None,
        responses=[ReassignableTopicResponse(name="a", partitions=results)],
    )


def test_a_reassignment_is_cancelled_or_has_its_replicas(cluster: ScriptedCluster, admin: Admin) -> None:
    answer_all(cluster, AlterPartitionReassignmentsRequest, reassigned(NONE, NONE))
    admin.reassign({A0: None, A1: [2, 1]})
    admin.reassign({A0: [2], A1: []})  # no brokers at all cancel nothing: Kafka refuses them
    sent = [
        {one.partition_index: one.replicas for topic in request.topics for one in topic.partitions}
        for request in asked(cluster, AlterPartitionReassignmentsRequest)
    ]
    assert sent == [{0: None, 1: [2, 1]}, {0: [2], 1: []}]


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
    topics = request.topic_partitions and [(one.topic, one.partitions) for one in request.topic_partitions]
    assert topics == (None if wanted is None else [("a", [0, 1])])  # an empty list would be no partition


def test_an_election_is_asked_for_again_only_where_it_was_put_off(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    """An unclean one that is done again may lose records again."""

    def put_off(request: ElectLeadersRequest, _version: int) -> ElectLeadersResponse:
        asked_for = [(one.topic, one.partitions) for one in request.topic_partitions or ()]
        later = ErrorCode.NOT_CONTROLLER if asked_for == [("a", [0, 1])] else NONE
        results = [
            PartitionResult(partition_id=number, error_code=later if number else NONE, error_message=None)
            for number in asked_for[0][1]
        ]
        elected = [ReplicaElectionResult(topic="a", partition_result=results)]
        return ElectLeadersResponse(throttle_time_ms=0, replica_election_results=elected)

    answer_all(cluster, ElectLeadersRequest, put_off)
    assert admin.elect_leaders([A0, A1], unclean=True, timeout=10) == {A0, A1}
    sent = [one.topic_partitions[0].partitions for one in asked(cluster, ElectLeadersRequest)]
    assert sorted(sent) == [[0, 1], [1]]


@pytest.mark.parametrize("unclean", [False, True])
def test_an_election_in_no_partition_is_none_in_all(
    cluster: ScriptedCluster, admin: Admin, unclean: bool
) -> None:
    assert admin.elect_leaders([], unclean=unclean) == set()
    assert asked(cluster, ElectLeadersRequest) == []


def test_a_refusal_for_good_is_raised_though_another_partition_is_to_be_asked_again(
    cluster: ScriptedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "MISSING_MS", 100)

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


def records_deleted(request: MockRequest) -> dict[str, object]:
    topics = [
        {
            "name": topic["name"],
            "partitions": [
                {"partition_index": one["partition_index"], "low_watermark": one["offset"]}
                for one in topic["partitions"]
            ],
        }
        for topic in request.fields["topics"]
    ]
    return {"topics": topics}


@pytest.mark.parametrize("why", ["no leader", "silence", "refused"])
@pytest.mark.parametrize("offset", [1, -1])
def test_records_are_deleted_in_all_partitions_but_the_one_that_can_not(why: str, offset: int) -> None:
    with MockBroker(3) as broker:
        broker.create_topic("a", partitions=3)
        for partition in range(3):
            broker.append("a", ["0"], partition=partition)
        bad = broker.leader("a", 0)
        broker.on("DeleteRecords", times=None).reply(records_deleted)
        if why == "no leader":
            with broker.cluster.changed:
                broker.cluster.topics["a"].partitions[0].leader = -1
        elif why == "silence":
            broker.on("DeleteRecords", node_id=bad, times=None).ignore()
        else:
            refused = [{"partition_index": 0, "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}]
            broker.on("DeleteRecords", node_id=bad, times=None).reply(
                {"topics": [{"name": "a", "partitions": refused}]}
            )
        limits = {
            "no leader": {"default_api_timeout_ms": 2_000},
            "silence": {"default_api_timeout_ms": 4_000, "request_timeout_ms": 1_000},
        }
        with Admin(broker.bootstrap_servers, **limits.get(why, {})) as admin:
            admin.describe_topics(["a"], 60)  # a slow machine may need longer to connect than is waited below
            with pytest.raises(PartialAnswerError) as raised:
                admin.delete_records({TopicPartition("a", index): offset for index in range(3)})
        assert raised.value.found == {TopicPartition("a", index): 1 for index in (1, 2)}
        assert list(raised.value.failed) == [A0]
        sent = [
            (one["partition_index"], one["offset"])
            for request in broker.asked("DeleteRecords")
            if request.node_id != bad
            for one in request.fields["topics"][0]["partitions"]
        ]
        assert sorted(sent) == [(1, 1), (2, 1)]


def test_partitions_of_which_nothing_is_known_are_not_said_to_be_done(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call ended in the middle: the others have its error."""
    ended = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "asking")

    def delete(_admin: Admin, _wanted: Any, _ends: Any, first: dict[TopicPartition, int], *_: Any) -> None:
        first[A0] = 5
        raise ended

    monkeypatch.setattr(Admin, "_delete_before", delete)
    with pytest.raises(PartialAnswerError) as raised:
        admin.delete_records({A0: 5, A1: 5})
    assert (raised.value.found, raised.value.failed) == ({A0: 5}, {A1: ended})


def test_of_no_topics_none_is_described(cluster: ScriptedCluster, admin: Admin) -> None:
    assert list(admin.describe_topics()) == ["a"]
    assert admin.describe_topics([]) == {}


def test_only_topics_that_were_put_off_are_asked_for_again(cluster: ScriptedCluster, admin: Admin) -> None:
    cluster.create("b", leader=1)

    def code(name: str, names: list[str]) -> ErrorCode:
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED if name == "b" and len(names) > 1 else NONE

    def create(request: CreateTopicsRequest, _version: int) -> CreateTopicsResponse:
        names = [one.name for one in request.topics]
        results = [
            CreatableTopicResult(name=name, error_code=code(name, names), error_message=None)
            for name in names
        ]
        return CreateTopicsResponse(topics=results)

    def grow(request: CreatePartitionsRequest, _version: int) -> CreatePartitionsResponse:
        names = [one.name for one in request.topics]
        results = [CreatePartitionsTopicResult(name=name, error_code=code(name, names)) for name in names]
        return CreatePartitionsResponse(throttle_time_ms=0, results=results)

    answer_all(cluster, CreateTopicsRequest, create)
    answer_all(cluster, CreatePartitionsRequest, grow)
    admin.create_topics(["a", "b"], timeout=10)
    admin.create_partitions({"a": 3, "b": 3}, timeout=10)
    for kind in (CreateTopicsRequest, CreatePartitionsRequest):
        sent = [[one.name for one in request.topics] for request in asked(cluster, kind)]
        assert sorted(sent) == [["a", "b"], ["b"]]


def test_a_negative_offset_does_not_delete_all_records(cluster: ScriptedCluster, admin: Admin) -> None:
    """Only -1 does; any other is the broker's to refuse."""

    def refused(request: DeleteRecordsRequest, _version: int) -> DeleteRecordsResponse:
        assert [one.offset for one in request.topics[0].partitions] == [-2]
        result = DeleteRecordsPartitionResult(
            partition_index=0, low_watermark=-1, error_code=ErrorCode.OFFSET_OUT_OF_RANGE
        )
        topics = [DeleteRecordsTopicResult(name="a", partitions=[result])]
        return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)

    cluster[1].on(DeleteRecordsRequest, refused)
    with pytest.raises(BrokerError, match="a-0 before offset -2: OFFSET_OUT_OF_RANGE"):
        admin.delete_records({A0: -2}, timeout=10)
    assert asked(cluster, ListOffsetsRequest) == []


@pytest.mark.parametrize(
    ("is_silent", "says"), [(False, "a-0: TOPIC_AUTHORIZATION_FAILED"), (True, "ListOffsets v")]
)
def test_a_partition_without_an_end_fails_with_the_reason(is_silent: bool, says: str) -> None:
    """By the answer about its end: records up to the end can't be deleted without it."""
    with MockBroker(2) as broker:
        broker.create_topic("a", partitions=2)
        bad = broker.leader("a", 0)
        broker.on("DeleteRecords", times=None).reply(records_deleted)
        if is_silent:
            broker.on("ListOffsets", node_id=bad, times=None).ignore()
        else:
            refused = [{"partition_index": 0, "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}]
            broker.on("ListOffsets", node_id=bad, times=None).reply(
                {"topics": [{"name": "a", "partitions": refused}]}
            )
        limits = {"default_api_timeout_ms": 4_000, "request_timeout_ms": 1_000} if is_silent else {}
        with Admin(broker.bootstrap_servers, **limits) as admin:
            admin.describe_topics(["a"], 60)  # a slow machine may need longer to connect than is waited below
            with pytest.raises(PartialAnswerError) as raised:
                admin.delete_records({A0: -1, A1: -1})
        assert raised.value.found == {A1: 0}
        assert list(raised.value.failed) == [A0]
        assert says in str(raised.value.failed[A0])
        if not is_silent:
            assert len([one for one in broker.asked("ListOffsets") if one.node_id == bad]) == 1


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_partition_that_its_leader_has_left_is_asked_again(
    is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside one that is refused, and after the time for which its leader is waited for then."""
    if not is_refused:
        monkeypatch.setattr(offsets, "MISSING_MS", 0)
    with MockBroker() as broker:
        broker.create_topic("a", partitions=2)
        codes = [ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_refused else ErrorCode.NONE]
        codes.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        first = [
            {"partition_index": index, "error_code": code, "low_watermark": 0}
            for index, code in enumerate(codes)
        ]
        broker.on("DeleteRecords", times=1).reply({"topics": [{"name": "a", "partitions": first}]})
        broker.on("DeleteRecords", times=None).reply(records_deleted)
        with Admin(broker.bootstrap_servers, retry_backoff_ms=5) as admin:
            expected = pytest.raises(PartialAnswerError, match="a-0") if is_refused else nullcontext()
            with expected as caught:
                admin.delete_records({TopicPartition("a", index): 0 for index in range(2)})
        sent = [one.fields["topics"][0]["partitions"] for one in broker.asked("DeleteRecords")]
        assert [[one["partition_index"] for one in partitions] for partitions in sent] == [[0, 1], [1]]
        assert caught is None or not getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize("is_partial", [False, True])
def test_the_error_of_a_leader_is_said_once_with_its_partitions(is_partial: bool) -> None:
    with MockBroker(2) as broker:
        broker.create_topic("a", partitions=4)
        bad = broker.leader("a", 0)
        broker.on("DeleteRecords", times=None).reply(records_deleted)
        broker.on("DeleteRecords", node_id=bad, times=None).corrupt(0)
        wanted = [
            tp
            for tp in (TopicPartition("a", index) for index in range(4))
            if is_partial or broker.leader("a", tp.partition) == bad
        ]
        with (
            Admin(broker.bootstrap_servers, default_api_timeout_ms=1500, request_timeout_ms=400) as admin,
            pytest.raises(KafkaError) as raised,
        ):
            admin.delete_records(dict.fromkeys(wanted, 0))
    said = [str(raised.value), *getattr(raised.value, "__notes__", ())]
    assert len([text for text in said if "a-0, a-2: " in text]) == 1
    assert (len(said), isinstance(raised.value, PartialAnswerError)) == (2 if is_partial else 3, is_partial)


@pytest.mark.parametrize("is_partial", [False, True])
@pytest.mark.parametrize("then", ["lost", "lost, then not to be reached", "timed out"])
def test_records_of_which_the_answer_was_lost_are_not_said_to_be_there(is_partial: bool, then: str) -> None:
    """It may be the answer of an earlier attempt. Those of the partition that refuses are."""
    with MockBroker(2) as broker:
        broker.create_topic("a", partitions=4)
        bad, good = broker.leader("a", 0), broker.leader("a", 1)

        def refused(code: ErrorCode) -> dict[str, object]:
            codes = {0: code, 2: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            results = [{"partition_index": number, "error_code": one} for number, one in codes.items()]
            return {"topics": [{"name": "a", "partitions": results}]}

        broker.on("DeleteRecords", node_id=good).reply(records_deleted)
        broker.on("DeleteRecords", node_id=bad).reply(refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        fault = broker.on("DeleteRecords", node_id=bad)
        if then == "lost":
            fault.cut()
        elif then == "lost, then not to be reached":
            fault.reply(lambda _: broker.stop(bad, is_noticed=False))
        else:
            fault.reply(refused(ErrorCode.REQUEST_TIMED_OUT))
        broker.on("DeleteRecords", node_id=bad).reply(refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        with (
            Admin(broker.bootstrap_servers, default_api_timeout_ms=3000, retry_backoff_ms=5) as admin,
            pytest.raises(KafkaError) as raised,
        ):
            admin.delete_records({TopicPartition("a", number): 0 for number in (0, 2, *[1][:is_partial])})
    assert isinstance(raised.value, PartialAnswerError) is is_partial
    said = [str(raised.value), *raised.value.__notes__]
    assert said[-1] == "records may have been deleted nevertheless: a-0"
    kept = [text for text in said if text.startswith("not deleted: ")]
    assert not any("a-0" in text for text in kept)
    assert is_partial or any("records of a-2 " in text for text in (said[0], *kept))


def test_records_of_which_a_later_answer_came_are_not_said_to_be_lost() -> None:
    """The answer about both partitions was lost; of the second try's, one is refused."""
    with MockBroker() as broker:
        broker.create_topic("a", partitions=2)
        codes = {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1: ErrorCode.NONE}
        results = [{"partition_index": number, "error_code": code} for number, code in codes.items()]
        broker.on("DeleteRecords", times=1).hang_up()
        broker.on("DeleteRecords").reply({"topics": [{"name": "a", "partitions": results}]})
        with Admin(broker.bootstrap_servers) as admin, pytest.raises(PartialAnswerError) as raised:
            admin.delete_records({A0: 0, A1: 0})
    assert (raised.value.found.keys(), raised.value.failed.keys()) == ({A1}, {A0})
    assert raised.value.__notes__ == ["records may have been deleted nevertheless: a-0"]


def test_what_is_written_after_a_lost_answer_is_not_deleted() -> None:
    """-1 would be the end at the time of the second request."""
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["0", "1"])
        asked: list[int] = []

        def answer(request: MockRequest) -> Effect:
            asked.append(request.fields["topics"][0]["partitions"][0]["offset"])
            if len(asked) == 1:
                broker.append("a", ["later"])
                return Effect().hang_up()
            return Effect().reply(records_deleted)

        broker.on("DeleteRecords", times=None).choose(answer)
        with Admin(broker.bootstrap_servers) as admin:
            assert admin.delete_records({A0: -1}) == {A0: 2}
        assert asked == [2, 2]


@pytest.mark.parametrize("offset", [1, -1])
def test_records_are_deleted_after_a_lost_answer_about_the_topics(offset: int) -> None:
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["0"])
        broker.on("DeleteRecords", times=None).reply(records_deleted)
        broker.on("Metadata", times=1).ignore()
        with Admin(broker.bootstrap_servers, request_timeout_ms=2_000) as admin:
            assert admin.delete_records({A0: offset}) == {A0: 1}


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
        (ErrorCode.ILLEGAL_GENERATION, "resetting offsets of group g: .*stop them first"),
        (ErrorCode.STALE_MEMBER_EPOCH, "resetting offsets of group g: .*stop them first"),
        (ErrorCode.REBALANCE_IN_PROGRESS, "resetting offsets of group g: .*stop them first"),
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


def test_a_reset_that_is_refused_until_its_time_is_over_says_what_has_moved(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    for tp in (A0, A1):
        cluster.logs[tp].append([b"0"])
    codes = [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    parts = [
        OffsetCommitResponsePartition(partition_index=i, error_code=code) for i, code in enumerate(codes)
    ]
    response = OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="a", partitions=parts)])
    admin.reset_offsets("g", {A0: 1})  # a slow machine may need longer to connect than is waited below
    answer_all(cluster, OffsetCommitRequest, response)
    with pytest.raises(DeadlineExceededError, match="a-1 in group g: UNKNOWN_TOPIC_OR_PARTITION") as late:
        admin.reset_offsets("g", {A0: 1, A1: 1}, 1)
    # Its last attempt may have been under way: then there is another note.
    assert late.value.__notes__[0] == "committed nevertheless: a-0"
    parts[1] = replace(parts[1], error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    answer_all(cluster, OffsetCommitRequest, response)
    with pytest.raises(BrokerError, match="stop them first") as refused:
        admin.reset_offsets("g", {A0: 1, A1: 1})
    assert refused.value.__notes__ == ["committed nevertheless: a-0"]


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


def test_topics_are_created_as_described(cluster: ScriptedCluster, admin: Admin) -> None:
    answer_all(cluster, CreateTopicsRequest, every_topic_created)
    wanted = [
        NewTopic(name="n", partitions=3, replication_factor=2, configs={"k": "v"}),
        NewTopic(name="r", replicas=[[1, 2], [2, 1]]),
        "d",
    ]
    admin.create_topics(wanted, validate_only=True)
    [request] = asked(cluster, CreateTopicsRequest)
    assert [
        (
            one.name,
            one.num_partitions,
            one.replication_factor,
            {part.partition_index: part.broker_ids for part in one.assignments},
            {config.name: config.value for config in one.configs},
        )
        for one in request.topics
    ] == [("n", 3, 2, {}, {"k": "v"}), ("r", -1, -1, {0: [1, 2], 1: [2, 1]}, {}), ("d", -1, -1, {}, {})]


@pytest.mark.parametrize(
    "counts",
    [{"partitions": 5}, {"replication_factor": 1}, {"partitions": 2, "replication_factor": 1}],
)
def test_counts_beside_the_brokers_of_each_partition_are_refused(counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="topic t: replicas say how many partitions and replicas"):
        NewTopic("t", replicas=[[1], [2]], **counts)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "3"])
@pytest.mark.parametrize("name", ["partitions", "replication_factor"])
def test_counts_that_are_no_numbers_from_1_on_are_refused(name: str, count: Any) -> None:
    """-1 is the broker's default on the wire."""
    with pytest.raises(ValueError, match=f"topic t: {name} must be a number from 1 on, not {count!r}"):
        NewTopic("t", **{name: count})


@pytest.mark.parametrize("place", [True, 1.0, "earliest", None])
def test_a_place_that_is_no_offset_is_refused(cluster: ScriptedCluster, admin: Admin, place: Any) -> None:
    with pytest.raises(ValueError, match="a place is an offset, a number, or an OffsetAt, not "):
        admin.reset_offsets("g", {A0: 0, A1: place})
    assert asked(cluster, OffsetCommitRequest) == []


@pytest.mark.parametrize("configs", [{"retention.ms": 5}, {5: "a"}, {"retention.ms": None}, None])
def test_configs_of_a_new_topic_that_are_no_texts_are_refused(configs: Any) -> None:
    with pytest.raises(
        ValueError, match=r"topic t: (configs must be a dict|names and values of configs are texts), not "
    ):
        NewTopic("t", configs=configs)


def every_topic_created(request: CreateTopicsRequest, _version: int) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=one.name, error_code=NONE, error_message=None) for one in request.topics
        ]
    )


def test_a_new_topic_is_waited_for_until_its_partitions_have_leaders(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    answers = 0

    def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
        nonlocal answers
        if request.topics:
            answers += 1
            cluster.logs[A1].leader = 2 if answers > 3 else -1
        return cluster.metadata(request, version)

    answer_all(cluster, CreateTopicsRequest, every_topic_created)
    answer_all(cluster, MetadataRequest, metadata)
    admin.create_topics(["a"])
    assert answers > 3
    assert {tp.partition: leader.node_id for tp, leader in admin.router.leaders([A0, A1]).items()} == {
        0: 1,
        1: 2,
    }


def test_new_partitions_are_created_where_the_caller_says(cluster: ScriptedCluster, admin: Admin) -> None:
    grown = [CreatePartitionsTopicResult(name=name, error_code=NONE) for name in ("a", "b")]
    answer_all(cluster, CreatePartitionsRequest, CreatePartitionsResponse(throttle_time_ms=0, results=grown))
    admin.create_partitions({"a": 4, "b": 2}, replicas={"a": [[2, 1], [1, 2]]})
    [request] = asked(cluster, CreatePartitionsRequest)
    assert [
        (one.name, one.count, one.assignments and [new.broker_ids for new in one.assignments])
        for one in request.topics
    ] == [("a", 4, [[2, 1], [1, 2]]), ("b", 2, None)]


def test_a_missing_topic_is_an_error_unless_the_caller_accepts_it(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    gone = DeletableTopicResult(name="b", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    answer_all(cluster, DeleteTopicsRequest, DeleteTopicsResponse(responses=[gone]))
    admin.delete_topics(["b"], missing_ok=True)
    with pytest.raises(BrokerError, match="deleting topic b: UNKNOWN_TOPIC_OR_PARTITION"):
        admin.delete_topics(["b"])


def test_only_the_refusal_that_the_caller_accepts_is_accepted(cluster: ScriptedCluster, admin: Admin) -> None:
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    stays = DeletableTopicResult(name="b", error_code=denied)
    answer_all(cluster, DeleteTopicsRequest, DeleteTopicsResponse(responses=[stays]))
    with pytest.raises(BrokerError, match="deleting topic b: TOPIC_AUTHORIZATION_FAILED"):
        admin.delete_topics(["b"], missing_ok=True)
    absent = CreatableTopicResult(name="b", error_code=denied, error_message=None)
    answer_all(cluster, CreateTopicsRequest, CreateTopicsResponse(topics=[absent]))
    with pytest.raises(BrokerError, match="creating topic b: TOPIC_AUTHORIZATION_FAILED"):
        admin.create_topics(["b"], exist_ok=True, timeout=10)


def test_a_topic_that_is_deleted_already_is_not_deleted_again_with_one_that_was_put_off(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    """Another process may have created it anew meanwhile."""

    def put_off_b(_request: DeleteTopicsRequest, _version: int) -> DeleteTopicsResponse:
        code = NONE if len(asked(cluster, DeleteTopicsRequest)) > 1 else ErrorCode.THROTTLING_QUOTA_EXCEEDED
        results = [("a", NONE), ("b", code)]
        return DeleteTopicsResponse(
            responses=[DeletableTopicResult(name=name, error_code=code) for name, code in results]
        )

    answer_all(cluster, DeleteTopicsRequest, put_off_b)
    admin.delete_topics(["a", "b", "a"])
    requests = asked(cluster, DeleteTopicsRequest)
    assert [[one.name for one in request.topics] for request in requests] == [["a", "b"], ["b"]]


def test_internal_topics_are_listed_only_on_request(cluster: ScriptedCluster, admin: Admin) -> None:
    cluster.create("__consumer_offsets")

    def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
        response = cluster.metadata(request, version)
        topics = [replace(one, is_internal=(one.name or "").startswith("__")) for one in response.topics]
        return replace(response, topics=topics)

    answer_all(cluster, MetadataRequest, metadata)
    assert admin.list_topics() == ["a"]
    assert admin.list_topics(internal=True) == ["__consumer_offsets", "a"]


def test_every_group_that_is_not_deleted_is_named(cluster: ScriptedCluster, admin: Admin) -> None:
    codes = {"g": ErrorCode.NON_EMPTY_GROUP, "h": NONE, "i": ErrorCode.GROUP_AUTHORIZATION_FAILED}

    def delete(request: DeleteGroupsRequest, _version: int) -> DeleteGroupsResponse:
        results = [
            DeletableGroupResult(group_id=name, error_code=codes[name]) for name in request.groups_names
        ]
        return DeleteGroupsResponse(throttle_time_ms=0, results=results)

    answer_all(cluster, DeleteGroupsRequest, delete)
    with pytest.raises(BrokerError, match="deleting group g: NON_EMPTY_GROUP") as raised:
        admin.delete_groups(["g", "h", "i"])
    [note] = raised.value.__notes__
    assert note.startswith("also refused: deleting group i: GROUP_AUTHORIZATION_FAILED")
    assert [one.groups_names for one in asked(cluster, DeleteGroupsRequest)] == [["g"], ["h"], ["i"]]


def test_a_group_that_refuses_to_forget_offsets_is_named_at_once(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    refused = OffsetDeleteResponse(
        error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, throttle_time_ms=0, topics=[]
    )
    answer_all(cluster, OffsetDeleteRequest, refused)
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        admin.delete_group_offsets("g", [A0, A1])
    assert len(asked(cluster, OffsetDeleteRequest)) == 1


@pytest.mark.parametrize("lost", ["FindCoordinator", "the request"])
@pytest.mark.parametrize(
    ("api", "act"),
    [
        ("OffsetDelete", lambda admin: admin.delete_group_offsets("g", [A0])),
        ("OffsetCommit", lambda admin: admin.reset_offsets("g", {A0: 0})),
    ],
)
def test_offsets_may_be_changed_only_if_the_request_was_sent(
    api: str, act: Callable[[Admin], object], lost: str
) -> None:
    with (
        MockBroker() as broker,
        Admin(broker.bootstrap_servers, default_api_timeout_ms=1_000, retry_backoff_ms=5) as admin,
    ):
        broker.create_topic("a")
        broker.on(api if lost == "the request" else lost, times=None).hang_up()
        with pytest.raises(KafkaError) as raised:
            act(admin)
    is_said = "may have been carried out" in "".join(getattr(raised.value, "__notes__", ()))
    assert is_said is (lost == "the request")


def test_a_group_that_has_members_after_a_lost_attempt_may_have_been_reset() -> None:
    with MockBroker() as broker, Admin(broker.bootstrap_servers, retry_backoff_ms=5) as admin:
        broker.create_topic("a")
        broker.on("OffsetCommit").hang_up()
        refused = {"partition_index": 0, "error_code": ErrorCode.UNKNOWN_MEMBER_ID}
        broker.on("OffsetCommit").reply({"topics": [{"name": "a", "partitions": [refused]}]})
        with pytest.raises(BrokerError, match="the group has members") as raised:
            admin.reset_offsets("g", {A0: 0})
    assert any("may have been carried out" in note for note in raised.value.__notes__)


def forgotten(*codes: ErrorCode) -> OffsetDeleteResponse:
    """What became of the first partitions of a."""
    partitions = [
        OffsetDeleteResponsePartition(partition_index=index, error_code=code)
        for index, code in enumerate(codes)
    ]
    topics = [OffsetDeleteResponseTopic(name="a", partitions=partitions)]
    return OffsetDeleteResponse(error_code=NONE, throttle_time_ms=0, topics=topics)


def test_offsets_that_a_group_does_not_forget_are_named_alone(cluster: ScriptedCluster, admin: Admin) -> None:
    answer_all(cluster, OffsetDeleteRequest, forgotten(NONE, NONE))
    admin.delete_group_offsets("g", [A1, A0])
    answer_all(cluster, OffsetDeleteRequest, forgotten(NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC))
    with pytest.raises(BrokerError, match="for a-1: GROUP_SUBSCRIBED_TO_TOPIC") as raised:
        admin.delete_group_offsets("g", [A1, A0])
    assert not hasattr(raised.value, "__notes__")


def test_a_coordinator_that_has_moved_is_looked_up_again(cluster: ScriptedCluster, admin: Admin) -> None:
    """The one before would be asked until the time is over."""
    moved = replace(forgotten(), error_code=ErrorCode.NOT_COORDINATOR, topics=[])
    answers: list[Any] = [moved, forgotten(NONE)]
    answer_all(cluster, OffsetDeleteRequest, lambda *_: answers.pop(0))
    admin.delete_group_offsets("g", [A0])
    assert len(asked(cluster, FindCoordinatorRequest)) == 2
    codes = [ErrorCode.NOT_COORDINATOR, NONE]

    def delete(request: DeleteGroupsRequest, _version: int) -> DeleteGroupsResponse:
        [name] = request.groups_names
        result = DeletableGroupResult(group_id=name, error_code=codes.pop(0))
        return DeleteGroupsResponse(throttle_time_ms=0, results=[result])

    answer_all(cluster, DeleteGroupsRequest, delete)
    admin.delete_groups(["g"])
    assert len(asked(cluster, FindCoordinatorRequest)) == 3


def test_groups_that_were_refused_are_named_by_the_error_that_ends_the_call(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    codes = {"full": ErrorCode.NON_EMPTY_GROUP, "late": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}

    def delete(request: DeleteGroupsRequest, _version: int) -> DeleteGroupsResponse:
        results = [
            DeletableGroupResult(group_id=name, error_code=codes[name]) for name in request.groups_names
        ]
        return DeleteGroupsResponse(throttle_time_ms=0, results=results)

    answer_all(cluster, DeleteGroupsRequest, delete)
    with pytest.raises(DeadlineExceededError, match="deleting group late") as caught:
        admin.delete_groups(["full", "late"], 0.3)
    (note,) = caught.value.__notes__
    assert note.startswith("also refused: deleting group full: NON_EMPTY_GROUP")


def only_broker_1(cluster: ScriptedCluster) -> set[int]:
    """The ids of the brokers that metadata name from now on: more may be added."""
    there = {1}

    def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
        response = cluster.metadata(request, version)
        return replace(response, brokers=[one for one in response.brokers if one.node_id in there])

    answer_all(cluster, MetadataRequest, metadata)
    return there


def test_a_broker_that_has_just_started_is_asked_for_its_configs(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    there = only_broker_1(cluster)
    answer_all(cluster, IncrementalAlterConfigsRequest, altered)
    with pytest.raises(BrokerError, match=r"no such broker just now; there are 1\)$"):
        admin.alter_configs(ConfigResource.broker(2), {"x": "y"})
    there.add(2)
    admin.alter_configs(ConfigResource.broker(2), {"x": "y"})
    assert len(cluster[2].requests(IncrementalAlterConfigsRequest)) == 1


def test_a_refused_part_of_the_offsets_does_not_count_for_the_rest(
    cluster: ScriptedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_commit, "MAX_COMMIT_BYTES", 1)  # each partition is a part of its own

    def delete(request: OffsetDeleteRequest, _version: int) -> OffsetDeleteResponse:
        if request.topics[0].partitions[0].partition_index == 0:
            return replace(forgotten(), error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, topics=[])
        return forgotten(NONE, NONE)

    answer_all(cluster, OffsetDeleteRequest, delete)
    with pytest.raises(BrokerError, match="for a-0: GROUP_AUTHORIZATION_FAILED") as raised:
        admin.delete_group_offsets("g", [A0, A1])
    assert not hasattr(raised.value, "__notes__")
    asked_for = [
        [part.partition_index for topic in one.topics for part in topic.partitions]
        for one in asked(cluster, OffsetDeleteRequest)
    ]
    assert asked_for == [[0], [1]]


def test_directories_that_a_broker_does_not_show_are_an_error(cluster: ScriptedCluster, admin: Admin) -> None:
    """Brokers before Kafka 3.2 refuse with a response that has neither an error nor a directory."""
    there = DescribeLogDirsResult(
        error_code=NONE, log_dir="/there", topics=[], total_bytes=-1, usable_bytes=-1
    )
    shown = DescribeLogDirsResponse(throttle_time_ms=0, error_code=NONE, results=[there])
    answer_all(cluster, DescribeLogDirsRequest, shown)
    assert [(one.node_id, one.path) for one in admin.describe_log_dirs()] == [(1, "/there"), (2, "/there")]
    for code in (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NONE):
        cluster[2].on(DescribeLogDirsRequest, replace(shown, error_code=code, results=[]))
        with pytest.raises(BrokerError, match="directories of broker 2: CLUSTER_AUTHORIZATION_FAILED"):
            admin.describe_log_dirs()


def test_a_reassignment_that_a_lost_request_has_cancelled_is_cancelled(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    """And one that was not in progress before is an error."""
    response = reassigned(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    answers: list[Any] = [HangUp, response, response]
    answer_all(cluster, AlterPartitionReassignmentsRequest, lambda *_: answers.pop(0))
    admin.reassign({A0: None})
    assert len(answers) == 1
    with pytest.raises(BrokerError, match="reassigning a-0: NO_REASSIGNMENT_IN_PROGRESS"):
        admin.reassign({A0: None})


def test_a_reassignment_that_is_refused_is_named_and_not_the_others(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    response = reassigned(NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    answer_all(cluster, AlterPartitionReassignmentsRequest, response)
    with pytest.raises(BrokerError, match="reassigning a-1: INVALID_REPLICA_ASSIGNMENT") as raised:
        admin.reassign({A0: [1], A1: [9]})
    assert not hasattr(raised.value, "__notes__")
    whole = replace(response, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, responses=[])
    answer_all(cluster, AlterPartitionReassignmentsRequest, whole)
    with pytest.raises(BrokerError, match="reassigning a-0: CLUSTER_AUTHORIZATION_FAILED") as raised:
        admin.reassign({A0: [1], A1: [9]})
    assert len(raised.value.__notes__) == 1


def test_a_refused_change_of_configs_is_raised(cluster: ScriptedCluster, admin: Admin) -> None:
    def refused(request: IncrementalAlterConfigsRequest, version: int) -> IncrementalAlterConfigsResponse:
        response = altered(request, version)
        [one] = response.responses
        code = ErrorCode.POLICY_VIOLATION
        return replace(response, responses=[replace(one, error_code=code, error_message="not so long")])

    answer_all(cluster, IncrementalAlterConfigsRequest, refused)
    for resource in (ConfigResource.topic("a"), ConfigResource.broker(2)):
        with pytest.raises(BrokerError, match=r"POLICY_VIOLATION.*not so long") as raised:
            admin.alter_configs(resource, {"x": "y"})
        assert str(resource) in str(raised.value)


def test_configs_are_altered_only_once_a_response_says_so(cluster: ScriptedCluster, admin: Admin) -> None:
    """Not by a response without the resource, nor by a broker from which the controller has moved."""

    def answer(request: IncrementalAlterConfigsRequest, version: int) -> IncrementalAlterConfigsResponse:
        response = altered(request, version)
        asked = len(cluster[1].requests(IncrementalAlterConfigsRequest)) + len(
            cluster[2].requests(IncrementalAlterConfigsRequest)
        )
        if asked == 1:
            return replace(response, responses=[])
        code = ErrorCode.NOT_CONTROLLER if asked == 2 else NONE
        return replace(response, responses=[replace(response.responses[0], error_code=code)])

    answer_all(cluster, IncrementalAlterConfigsRequest, answer)
    admin.alter_configs(ConfigResource.topic("a"), {"x": "y"})
    assert len(asked(cluster, IncrementalAlterConfigsRequest)) == 3


def test_a_refusal_of_an_election_everywhere_is_raised_also_after_another_attempt(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    def elected(code: ErrorCode) -> ElectLeadersResponse:
        results = [
            PartitionResult(partition_id=0, error_code=code, error_message=None),
            PartitionResult(partition_id=1, error_code=NONE, error_message=None),
        ]
        return ElectLeadersResponse(
            throttle_time_ms=0,
            replica_election_results=[ReplicaElectionResult(topic="a", partition_result=results)],
        )

    answers = [elected(ErrorCode.NOT_CONTROLLER), elected(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    answer_all(cluster, ElectLeadersRequest, lambda *_: answers.pop(0))
    with pytest.raises(BrokerError, match="PREFERRED_LEADER_NOT_AVAILABLE"):
        admin.elect_leaders()
    assert answers == []


@pytest.mark.parametrize("wanted", [None, [A0, A1]])
def test_an_election_that_is_refused_as_a_whole_is_not_done(
    cluster: ScriptedCluster, admin: Admin, wanted: list[TopicPartition] | None
) -> None:
    refused = ElectLeadersResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        replica_election_results=[],
    )
    answer_all(cluster, ElectLeadersRequest, refused)
    with pytest.raises(BrokerError, match=r"the leader of (all|a-0): CLUSTER_AUTHORIZATION_FAILED"):
        admin.elect_leaders(wanted)
    assert len(asked(cluster, ElectLeadersRequest)) == 1


@pytest.mark.parametrize("how", ["values", "append", "subtract"])
@pytest.mark.parametrize("value", [5, True, b"5"])
def test_a_value_of_a_config_that_is_no_text_is_refused(
    cluster: ScriptedCluster, admin: Admin, value: Any, how: str
) -> None:
    change: dict[str, Any] = {how: {"s": value}}
    with pytest.raises(ValueError, match=r"are texts, not 's'"):
        admin.alter_configs(ConfigResource.topic("a"), **change)
    assert asked(cluster, IncrementalAlterConfigsRequest) == []


def test_a_refusal_of_reassignments_is_not_taken_for_none(cluster: ScriptedCluster, admin: Admin) -> None:
    refused = ListPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        error_message=None,
        topics=[],
    )
    answer_all(cluster, ListPartitionReassignmentsRequest, refused)
    with pytest.raises(BrokerError, match="listing reassignments: CLUSTER_AUTHORIZATION_FAILED"):
        admin.list_reassignments()


def test_transactions_are_filtered_by_the_brokers(cluster: ScriptedCluster, admin: Admin) -> None:
    nothing = ListTransactionsResponse(
        throttle_time_ms=0, error_code=NONE, unknown_state_filters=[], transaction_states=[]
    )
    answer_all(cluster, ListTransactionsRequest, nothing)
    assert admin.list_transactions(states=["Ongoing"], producer_ids={7}) == []
    assert [
        (one.state_filters, one.producer_id_filters) for one in asked(cluster, ListTransactionsRequest)
    ] == [(["Ongoing"], [7])] * 2


def test_a_broker_that_lists_no_transactions_for_now_or_for_good_is_not_one_without_any(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    one = ListedTransaction(transactional_id="x", producer_id=7, transaction_state="Ongoing")
    nothing = ListTransactionsResponse(
        throttle_time_ms=0, error_code=NONE, unknown_state_filters=[], transaction_states=[]
    )
    answer_all(cluster, ListTransactionsRequest, nothing)
    cluster[2].on(ListTransactionsRequest, replace(nothing, transaction_states=[one]))
    loading = replace(nothing, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    cluster[2].push(ListTransactionsRequest, loading)
    assert [found.transactional_id for found in admin.list_transactions()] == ["x"]
    refused = replace(nothing, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    cluster[2].on(ListTransactionsRequest, refused)
    with pytest.raises(BrokerError, match="transactions of broker 2: CLUSTER_AUTHORIZATION_FAILED"):
        admin.list_transactions()


def test_a_broker_that_lists_no_groups_for_now_or_for_good_is_not_one_without_any(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    nothing = ListGroupsResponse(error_code=NONE, groups=[])
    answer_all(cluster, ListGroupsRequest, nothing)
    one = ListedGroup(group_id="g", protocol_type="consumer")
    cluster[2].on(ListGroupsRequest, replace(nothing, groups=[one]))
    cluster[2].push(ListGroupsRequest, replace(nothing, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    assert [found.group_id for found in admin.list_groups()] == ["g"]
    cluster[2].on(ListGroupsRequest, replace(nothing, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="groups of broker 2: CLUSTER_AUTHORIZATION_FAILED"):
        admin.list_groups()


def test_a_transactional_id_that_moves_meanwhile_is_listed_once() -> None:
    state = {"transactional_id": "t", "producer_id": 7, "transaction_state": "Ongoing"}
    with MockBroker(2) as broker, Admin(broker.bootstrap_servers) as admin:
        broker.on("ListTransactions", times=None).reply({"transaction_states": [state]})
        assert [one.transactional_id for one in admin.list_transactions()] == ["t"]


@pytest.mark.parametrize(
    ("api", "answer", "names"),
    [
        (
            "ListGroups",
            lambda name: {"groups": [{"group_id": name}]},
            lambda admin: [one.group_id for one in admin.list_groups()],
        ),
        (
            "ListTransactions",
            lambda name: {"transaction_states": [{"transactional_id": name}]},
            lambda admin: [one.transactional_id for one in admin.list_transactions()],
        ),
        (
            "DescribeLogDirs",
            lambda name: {"results": [{"log_dir": name}]},
            lambda admin: [one.path for one in admin.describe_log_dirs()],
        ),
    ],
    ids=["groups", "transactions", "log directories"],
)
def test_a_broker_that_has_just_started_is_one_of_all_brokers(
    cluster: ScriptedCluster,
    admin: Admin,
    api: str,
    answer: Callable[[str], dict[str, object]],
    names: Callable[[Admin], list[str]],
) -> None:
    """Else its groups would be missing, and live transactions of its coordinator would seem to hang."""
    there = only_broker_1(cluster)
    cluster.mock.on(api, times=None).reply(lambda request: answer(f"of broker {request.node_id}"))
    assert names(admin) == ["of broker 1"]
    there.add(2)
    assert names(admin) == ["of broker 1", "of broker 2"]


def test_a_broker_that_leaves_the_cluster_meanwhile_is_not_waited_for(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    """Its groups are on another broker then, which had answered without them."""
    there, groups = only_broker_1(cluster), list[dict[str, object]]()
    there.add(2)
    has_answered = threading.Event()

    def first(_: MockRequest) -> dict[str, object]:
        try:
            return {"groups": list(groups)}
        finally:
            has_answered.set()

    def second(_: MockRequest) -> dict[str, object]:
        assert has_answered.wait(60)
        groups.append({"group_id": "g"})
        there.discard(2)
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}

    cluster.mock.on("ListGroups", node_id=1, times=None).reply(first)
    cluster.mock.on("ListGroups", node_id=2, times=None).reply(second)
    assert [one.group_id for one in admin.list_groups()] == ["g"]
    assert len(cluster[2].requests(ListGroupsRequest)) == 1


def test_the_controller_and_the_brokers_are_those_of_now(cluster: ScriptedCluster, admin: Admin) -> None:
    before = admin.describe_cluster()
    assert ([one.node_id for one in before.brokers], before.controller_id) == ([1, 2], 1)

    def after_failover(request: MetadataRequest, version: int) -> MetadataResponse:
        response = cluster.metadata(request, version)
        brokers = [one for one in response.brokers if one.node_id == 2]
        return replace(response, brokers=brokers, controller_id=2)

    answer_all(cluster, MetadataRequest, after_failover)
    after = admin.describe_cluster()
    assert ([one.node_id for one in after.brokers], after.controller_id) == ([2], 2)


def test_topics_and_their_leaders_are_those_of_now(cluster: ScriptedCluster, admin: Admin) -> None:
    def leader(names: list[str] | None) -> int | None:
        return admin.describe_topics(names)["a"].partitions[0].leader

    assert admin.list_topics() == ["a"]
    cluster.create("b")
    assert admin.list_topics() == ["a", "b"]
    assert leader(["a"]) == 1
    cluster.logs[A0].leader = 2
    assert leader(["a"]) == 2
    cluster.logs[A0].leader = 1
    assert leader(None) == 1


def test_a_classic_group_that_never_existed_is_not_described() -> None:
    """Brokers before 4.0 describe it as a dead one."""
    group = DescribedGroup(
        error_code=NONE, group_id="g", group_state="Dead", protocol_type="", protocol_data="", members=[]
    )
    with pytest.raises(BrokerError, match="describing group g") as raised:
        read_classic_group(DescribeGroupsResponse(groups=[group]), "g")
    assert raised.value.error_code is ErrorCode.GROUP_ID_NOT_FOUND
    empty = replace(group, group_state="Empty")
    assert read_classic_group(DescribeGroupsResponse(groups=[empty]), "g").state == "Empty"


def test_a_group_that_is_not_of_the_new_protocol_is_described_as_a_classic_one(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    def as_consumer_group(code: ErrorCode) -> ConsumerGroupDescribeResponse:
        group = DescribedConsumerGroup(
            error_code=code,
            error_message=None,
            group_id="g",
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=[],
        )
        return ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=[group])

    classic = DescribedGroup(
        error_code=NONE, group_id="g", group_state="Empty", protocol_type="", protocol_data="", members=[]
    )
    answer_all(cluster, DescribeGroupsRequest, DescribeGroupsResponse(groups=[classic]))
    for code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        answer_all(cluster, ConsumerGroupDescribeRequest, as_consumer_group(code))
        assert admin.describe_groups(["g"])["g"].type == "classic"
    answer_all(cluster, ConsumerGroupDescribeRequest, as_consumer_group(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        admin.describe_groups(["g"])
    assert len(asked(cluster, DescribeGroupsRequest)) == 2
    for broker in cluster.brokers.values():
        del broker.versions[ConsumerGroupDescribeRequest.api_key]
    with Admin(cluster.bootstrap_servers, retry_backoff_ms=5) as older:
        assert older.describe_groups(["g"])["g"].type == "classic"


def test_a_member_has_an_assignment_and_a_target() -> None:
    def assigned(*partitions: int) -> ConsumerGroupAssignment:
        topic = ConsumerGroupTopicPartitions(
            topic_id=UUID(int=1), topic_name="a", partitions=list(partitions)
        )
        return ConsumerGroupAssignment(topic_partitions=[topic])

    member = ConsumerGroupMember(
        member_id="m",
        member_epoch=4,
        client_id="c",
        client_host="h",
        subscribed_topic_names=["a"],
        assignment=assigned(1, 0),
        target_assignment=assigned(1),
    )
    group = DescribedConsumerGroup(
        error_code=NONE,
        group_id="g",
        group_state="Reconciling",
        group_epoch=5,
        assignment_epoch=5,
        assignor_name="uniform",
        members=[member],
    )
    found = read_consumer_group(ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=[group]), "g")
    [one] = found.members
    assert (found.group_epoch, one.member_epoch) == (5, 4)
    assert (one.assignment, one.target) == ((A0, A1), (A1,))


def test_a_transaction_is_described_by_the_coordinator_of_transactions(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    """A group of the same name may have another coordinator."""
    state = TransactionState(
        transactional_id="x", transaction_state="Ongoing", transaction_timeout_ms=1,
        transaction_start_time_ms=2, error_code=NONE, producer_id=3, producer_epoch=4, topics=[],
    )  # fmt: skip
    answer = DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=[state])
    answer_all(cluster, DescribeTransactionsRequest, answer)
    described = admin.describe_transactions(["x"])["x"]
    assert (described.producer_id, described.producer_epoch, described.timeout_ms) == (3, 4, 1)
    assert described.started_ms == 2
    assert [one.key_type for one in asked(cluster, FindCoordinatorRequest)] == [1]
    idle = replace(answer, transaction_states=[replace(state, transaction_start_time_ms=-1)])
    answer_all(cluster, DescribeTransactionsRequest, idle)
    assert admin.describe_transactions(["x"])["x"].started_ms is None


def test_the_letters_of_a_name_are_not_taken_for_topics(cluster: ScriptedCluster, admin: Admin) -> None:
    with pytest.raises(ValueError, match="must be a collection"):
        admin.create_topics("logs")
    assert asked(cluster, CreateTopicsRequest) == []


def test_the_controller_is_asked_within_the_time_of_the_call(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    with closing(Router(ClientConfig(bootstrap_servers=(cluster[1].address,)))) as router:
        monkeypatch.setattr(router, "send_to", lambda *given: found.append(given))
        request, limit = MetadataRequest(topics=[]), Deadline.after_ms(50_000)
        ask_controller(router, request, limit)
    assert found == [(1, request, limit)]


def test_configs_that_may_not_be_described_are_not_taken_for_none(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    refused = DescribeConfigsResult(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=None, resource_type=2,
        resource_name="a", configs=[],
    )  # fmt: skip
    answer_all(
        cluster, DescribeConfigsRequest, DescribeConfigsResponse(throttle_time_ms=0, results=[refused])
    )
    with pytest.raises(BrokerError, match="describing configs of topic a: TOPIC_AUTHORIZATION_FAILED"):
        admin.describe_configs(ConfigResource.topic("a"))


def test_configs_are_waited_for_as_long_as_the_caller_says(cluster: ScriptedCluster) -> None:
    answer_all(cluster, DescribeConfigsRequest, Silence)
    with (
        Admin(
            cluster.bootstrap_servers, default_api_timeout_ms=3_600_000, request_timeout_ms=3_600_000
        ) as admin,
        pytest.raises(DeadlineExceededError),
    ):
        admin.describe_configs(ConfigResource.topic("a"), timeout=0.1)


def test_a_reassignment_says_which_replicas_come_and_go() -> None:
    moved = {
        "partition_index": 1,
        "replicas": [1, 2, 3],
        "adding_replicas": [3],
        "removing_replicas": [1, 2],
    }
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.on("ListPartitionReassignments").reply({"topics": [{"name": "a", "partitions": [moved]}]})
        expected = Reassignment(replicas=(1, 2, 3), adding=(3,), removing=(1, 2))
        assert admin.list_reassignments() == {A1: expected}


def test_a_directory_has_its_replicas_and_the_sizes_that_its_broker_knows() -> None:
    partitions = [
        {"partition_index": 0, "partition_size": 7, "offset_lag": 3, "is_future_key": True},
        {"partition_index": 1, "partition_size": 8, "offset_lag": 0, "is_future_key": False},
    ]
    directories = [
        {"log_dir": "/new", "total_bytes": 9, "usable_bytes": 0, "topics": []},
        {"log_dir": "/old", "total_bytes": -1, "usable_bytes": -1, "topics": []},
    ]
    directories[0]["topics"] = [{"name": "a", "partitions": partitions}]
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.on("DescribeLogDirs").reply({"results": directories})
        new, old = admin.describe_log_dirs()
    assert (new.node_id, new.path, new.total_bytes, new.usable_bytes) == (1, "/new", 9, 0)
    assert (old.path, old.total_bytes, old.usable_bytes) == ("/old", None, None)
    assert new.replicas == {
        A0: Replica(size_bytes=7, offset_lag=3, future=True),
        A1: Replica(size_bytes=8, offset_lag=0, future=False),
    }


def test_groups_are_filtered_by_the_brokers_and_have_their_types_in_lower_case() -> None:
    """Brokers write ``Share``, and commands leave out the type ``share``."""
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.on("ListGroups").reply({"groups": [{"group_id": "g", "group_type": "Share"}]})
        found = admin.list_groups(states=["Empty"], types=["share"])
        [fields] = [one.fields for one in broker.asked("ListGroups")]
    assert [(one.group_id, one.type) for one in found] == [("g", "share")]
    assert (fields["states_filter"], fields["types_filter"]) == (["Empty"], ["share"])


def test_a_member_with_an_assignment_in_a_format_of_its_own_hides_no_other() -> None:
    assigned = [ProtocolTopicPartitions(topic="a", partitions=[1, 0])]
    usual = ConsumerProtocolAssignment(assigned_partitions=assigned)
    members = [
        DescribedGroupMember(
            member_id=name, client_id="c", client_host="h", member_metadata=b"", member_assignment=assignment
        )
        for name, assignment in (("own", b"\x00"), ("none", b""), ("usual", write_versioned(usual)))
    ]
    group = DescribedGroup(
        error_code=NONE, group_id="g", group_state="Stable", protocol_type="consumer", protocol_data="range",
        members=members,
    )  # fmt: skip

    def found(protocol_type: str) -> dict[str, tuple[TopicPartition, ...]]:
        response = DescribeGroupsResponse(groups=[replace(group, protocol_type=protocol_type)])
        return {one.member_id: one.assignment for one in read_classic_group(response, "g").members}

    assert found("consumer") == {"own": (), "none": (), "usual": (A0, A1)}
    assert found("connect") == {"own": (), "none": (), "usual": ()}


def test_a_topic_that_is_there_is_an_error_unless_the_caller_accepts_it() -> None:
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("a", partitions=2)
        admin.create_topics(["a", "b"], exist_ok=True)
        assert len(admin.describe_topics(["a"])["a"].partitions) == 2
        with pytest.raises(BrokerError, match="creating topic b: TOPIC_ALREADY_EXISTS"):
            admin.create_topics(["b"])


@pytest.mark.parametrize(("hidden", "leader"), [(0, -1), (29, 1)], ids=["no leader", "no permission"])
def test_a_topic_that_is_there_already_or_is_hidden_is_not_waited_for(hidden: int, leader: int) -> None:
    """One without a leader held up the call until its timeout; to create takes no permission to describe."""
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("a")

        def hide(fields: dict[str, Any]) -> None:
            for topic in fields["topics"]:
                if topic["name"] in ("a", "b" if hidden else "a"):
                    topic["error_code"] = hidden
                    topic["partitions"] = [] if hidden else topic["partitions"]
                for one in topic["partitions"]:
                    one["leader_id"] = leader if topic["name"] == "a" else one["leader_id"]

        broker.on("Metadata", times=None).change(hide)
        admin.create_topics(["a", "b"], timeout=20, exist_ok=True)
        assert len(broker.asked("CreateTopics")) == 1


def test_a_topic_that_an_attempt_without_an_answer_has_created_is_waited_for() -> None:
    with MockBroker() as broker, Admin(broker.bootstrap_servers, retry_backoff_ms=5) as admin:
        broker.on("CreateTopics", times=1).hang_up()
        exists = {"topics": [{"name": "a", "topic_id": UUID(int=5), "error_code": 36, "error_message": None}]}
        broker.on("CreateTopics").reply(exists)
        admin.list_topics()  # a slow machine may need longer to connect than is waited below
        with pytest.raises(DeadlineExceededError, match="waiting for new topics a"):
            admin.create_topics(["a"], timeout=2, exist_ok=True)


def test_a_topic_is_not_created_twice_in_one_call(cluster: ScriptedCluster, admin: Admin) -> None:
    """Only one of the two descriptions could count."""
    with pytest.raises(ValueError, match="a topic is to be created twice: b, b"):
        admin.create_topics([NewTopic("b", 1), NewTopic("b", 5)])
    assert asked(cluster, CreateTopicsRequest) == []


def test_records_of_an_open_transaction_are_among_all_that_are_deleted(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    cluster.logs[A0].append([b"0", b"1", b"2"])
    cluster.logs[A0].last_stable_offset = 1
    done = DeleteRecordsPartitionResult(partition_index=0, low_watermark=3, error_code=NONE)
    topics = [DeleteRecordsTopicResult(name="a", partitions=[done])]
    cluster[1].on(DeleteRecordsRequest, DeleteRecordsResponse(throttle_time_ms=0, topics=topics))
    assert admin.delete_records({A0: -1}) == {A0: 3}
    [request] = asked(cluster, DeleteRecordsRequest)
    assert [one.offset for one in request.topics[0].partitions] == [3]


@pytest.mark.parametrize("names", [None, ["newer", "hidden", "other"], []])
@pytest.mark.parametrize("documentation", [False, True])
def test_configs_are_described_as_their_broker_has_them(names: list[str] | None, documentation: bool) -> None:
    configs = [
        {"name": "hidden", "value": None, "read_only": False, "is_sensitive": True, "config_source": 1},
        {"name": "fixed", "value": "1", "read_only": True, "is_sensitive": False, "config_source": 5},
        {"name": "newer", "value": "", "read_only": False, "is_sensitive": False, "config_source": 99},
    ]
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.on("DescribeConfigs").reply({"results": [{"resource_name": "a", "configs": configs}]})
        found = admin.describe_configs(ConfigResource.topic("a"), names=names, documentation=documentation)
        [fields] = [one.fields for one in broker.asked("DescribeConfigs")]
    [resource] = fields["resources"]
    assert (resource["resource_type"], resource["resource_name"]) == (2, "a")
    assert resource["configuration_keys"] == names
    assert fields["include_documentation"] is documentation
    assert [
        (name, one.value, one.source.name, one.read_only, one.sensitive, one.is_default)
        for name, one in found.items()
    ] == [
        (name, *rest)
        for name, *rest in (
            ("hidden", None, "TOPIC", False, True, False),
            ("fixed", "1", "DEFAULT", True, False, True),
            ("newer", "", "UNKNOWN", False, False, False),
        )
        if names is None or name in names  # a broker describes all for an empty list
    ]


@pytest.mark.parametrize(
    ("resource", "kind", "name", "node_id", "shown"),
    [
        (ConfigResource.topic("7"), 2, "7", None, "topic 7"),
        (ConfigResource.group("7"), 32, "7", None, "group 7"),
        (ConfigResource.broker(7), 4, "7", 7, "broker 7"),
        (ConfigResource.all_brokers(), 4, "", None, "all brokers"),
        (ConfigResource.broker_loggers(7), 8, "7", 7, "loggers of broker 7"),
    ],
)
def test_configs_of_things_of_the_same_name_are_not_confused(
    resource: ConfigResource, kind: int, name: str, node_id: int | None, shown: str
) -> None:
    assert (resource.kind, resource.name, resource.node_id, str(resource)) == (kind, name, node_id, shown)


ON_A0 = [{"name": "a", "partitions": [{"partition_index": 0}]}]


@pytest.mark.parametrize(
    ("api", "reply", "call"),
    [
        ("CreateTopics", {"topics": [{"name": "a"}]}, lambda admin, s: admin.create_topics(["a"], s)),
        ("DeleteTopics", {"responses": [{"name": "a"}]}, lambda admin, s: admin.delete_topics(["a"], s)),
        (
            "CreatePartitions",
            {"results": [{"name": "a"}]},
            lambda admin, s: admin.create_partitions({"a": 3}, s),
        ),
        ("DeleteRecords", {"topics": ON_A0}, lambda admin, s: admin.delete_records({A0: 1}, s)),
        ("AlterPartitionReassignments", {"responses": ON_A0}, lambda admin, s: admin.reassign({A0: [1]}, s)),
        ("ListPartitionReassignments", {"topics": []}, lambda admin, s: admin.list_reassignments(s)),
        ("ElectLeaders", {"replica_election_results": []}, lambda admin, s: admin.elect_leaders(None, s)),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_broker_has_most_of_the_time_that_the_caller_gives(
    api: str, reply: dict[str, object], call: Callable[[Admin, float], object]
) -> None:
    """With less it would answer REQUEST_TIMED_OUT for a change that it makes a moment later."""
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("a")
        broker.on(api).reply(reply)
        call(admin, 1_000)
        [request] = broker.asked(api)
    assert 700_000 < request.fields["timeout_ms"] < 900_000


@pytest.mark.parametrize("resource", [ConfigResource.topic("a"), ConfigResource.broker(1)], ids=str)
def test_a_description_of_configs_that_gets_lost_is_requested_again(resource: ConfigResource) -> None:
    with MockBroker() as broker, Admin(broker.bootstrap_servers, retry_backoff_ms=5) as admin:
        broker.on("DescribeConfigs", times=1).hang_up()
        broker.on("DescribeConfigs").reply({"results": [{"configs": [{"name": "x", "value": "y"}]}]})
        assert admin.describe_configs(resource)["x"].value == "y"
        assert len(broker.asked("DescribeConfigs")) == 2


def test_the_configs_of_a_broker_are_requested_again_and_have_to_be_there() -> None:
    with MockBroker() as broker, Admin(broker.bootstrap_servers, retry_backoff_ms=5) as admin:
        broker.on("DescribeConfigs", times=1).hang_up()
        broker.on("DescribeConfigs", times=1).reply({"results": [{"configs": [{"name": "x", "value": "y"}]}]})
        assert admin.describe_broker_configs(1) == {"x": "y"}
        broker.on("DescribeConfigs", times=None).reply({"results": []})
        with pytest.raises(IncompleteResponseError, match="describing configs of broker 1"):
            admin.describe_broker_configs(1)
        with pytest.raises(IncompleteResponseError, match="describing configs of broker 1"):
            describe_broker_configs(admin.router, 1)
        with pytest.raises(BrokerError, match="no such broker just now; there are 1"):
            admin.describe_broker_configs(9)


@pytest.mark.parametrize(
    ("api", "answer", "delete"),
    [
        (
            "DeleteTopics",
            lambda code: {"responses": [{"name": "a", "error_code": code}]},
            lambda admin: admin.delete_topics(["a"]),
        ),
        (
            "DeleteGroups",
            lambda code: {"results": [{"group_id": "g", "error_code": code}]},
            lambda admin: admin.delete_groups(["g"]),
        ),
    ],
    ids=["topic", "group"],
)
def test_a_deletion_with_a_lost_response_is_found_to_be_done(
    api: str, answer: Callable[[ErrorCode], dict[str, object]], delete: Callable[[Admin], object]
) -> None:
    """And something that was not there before is an error."""
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if api == "DeleteTopics" else ErrorCode.GROUP_ID_NOT_FOUND
    with MockBroker() as broker, Admin(broker.bootstrap_servers, retry_backoff_ms=5) as admin:
        broker.on(api, times=1).hang_up()
        broker.on(api, times=None).reply(answer(gone))
        delete(admin)
        assert len(broker.asked(api)) == 2
        with pytest.raises(BrokerError, match=f": {gone.name}"):
            delete(admin)


def test_a_member_is_described_under_the_names_that_it_gave() -> None:
    """A static member is known by its instance id."""
    classic = DescribedGroupMember(
        member_id="m", group_instance_id="i", client_id="c", client_host="/h", member_metadata=b"",
        member_assignment=b"",
    )  # fmt: skip
    of_classic = DescribedGroup(
        error_code=NONE, group_id="g", group_state="Stable", protocol_type="consumer", protocol_data="range",
        members=[classic],
    )  # fmt: skip
    nothing = ConsumerGroupAssignment(topic_partitions=[])
    consumer = ConsumerGroupMember(
        member_id="m", instance_id="i", client_id="c", client_host="/h", member_epoch=1,
        subscribed_topic_names=[], assignment=nothing, target_assignment=nothing,
    )  # fmt: skip
    of_consumer = DescribedConsumerGroup(
        error_code=NONE, group_id="g", group_state="Stable", group_epoch=1, assignment_epoch=1,
        assignor_name="range", members=[consumer],
    )  # fmt: skip
    found = [
        read_classic_group(DescribeGroupsResponse(groups=[of_classic]), "g"),
        read_consumer_group(ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=[of_consumer]), "g"),
    ]
    assert [one.type for one in found] == ["classic", "consumer"]
    for group in found:
        [one] = group.members
        assert (group.state, group.assignor) == ("Stable", "range")
        assert (one.member_id, one.instance_id, one.client_id, one.host) == ("m", "i", "c", "/h")


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.group_lag("g", timeout=0.2),
        lambda admin: admin.reset_offsets("g", {A0: 0}, timeout=0.2),
        lambda admin: admin.reset_offsets("g", {A0: OffsetAt.LATEST}, timeout=0.2),
    ],
    ids=["lag", "offset", "place"],
)
def test_offsets_of_partitions_are_waited_for_as_long_as_the_caller_says(
    call: Callable[[Admin], object],
) -> None:
    patient = {"default_api_timeout_ms": 3_600_000, "request_timeout_ms": 3_600_000}
    with MockBroker() as broker, Admin(broker.bootstrap_servers, **patient) as admin:
        broker.create_topic("a")
        admin.reset_offsets("g", {A0: 0})
        broker.on("ListOffsets", times=None).ignore()
        with pytest.raises(DeadlineExceededError):
            call(admin)


def test_hanging_transactions_are_waited_for_no_longer_than_the_caller_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in the pause in which a coordinator that moves begins to load its transactions."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr(transactions, "MOVING_S", 3_600.0)
    open_one = {"producer_id": 7, "current_txn_start_offset": 1}
    with MockBroker() as broker, Admin(broker.bootstrap_servers) as admin:
        broker.create_topic("a")
        there = {"partition_index": 0, "active_producers": [open_one]}
        broker.on("DescribeProducers", times=None).reply({"topics": [{"name": "a", "partitions": [there]}]})
        broker.on("ListTransactions", times=None).reply({"transaction_states": []})
        assert len(admin.hanging_transactions(["a"], timeout=60)) == 1
    assert 0 < max(waited) <= 60


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_new_topic_has_a_name(name: Any) -> None:
    with pytest.raises(ValueError, match="a topic's name must be a str that is not empty"):
        NewTopic(name)


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    ("api", "act"),
    [
        ("CreateTopics", lambda admin, dry: admin.create_topics(["new"], validate_only=dry)),
        ("CreatePartitions", lambda admin, dry: admin.create_partitions({"a": 5}, validate_only=dry)),
        (
            "IncrementalAlterConfigs",
            lambda admin, dry: admin.alter_configs(ConfigResource.topic("a"), {"x": "y"}, validate_only=dry),
        ),
        (
            "AlterClientQuotas",
            lambda admin, dry: admin.alter_quotas({"user": "u"}, {"x": 1.0}, validate_only=dry),
        ),
        (
            "ListPartitionReassignments",
            lambda admin, dry: admin.list_reassignments() if dry else admin.reassign({A0: [1]}),
        ),
    ],
)
def test_a_lost_attempt_is_a_possible_change_unless_it_was_a_question(
    api: str, act: Callable[[Admin, bool], object], dry: bool
) -> None:
    """An error after it says that it may have been carried out."""
    with (
        MockBroker() as broker,
        Admin(broker.bootstrap_servers, retry_backoff_ms=5, default_api_timeout_ms=1_000) as admin,
    ):
        broker.create_topic("a")
        for one in {api, "AlterPartitionReassignments"}:
            broker.on(one, times=None).hang_up()
        with pytest.raises(DeadlineExceededError) as raised:
            act(admin, dry)
    said = getattr(raised.value, "__notes__", [])
    assert any("may have been carried out" in note for note in said) is not dry
