"""Every API at every version that a real broker and this client share: both sides understand each other."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from support.admin_messages import ADMIN_REFUSALS, admin_requests

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.protocol.api import all_requests
from spark_kafka_native.kafka.protocol.api.acls import AclCreation, CreateAclsRequest
from spark_kafka_native.kafka.protocol.api.api_versions import ApiVersionsRequest
from spark_kafka_native.kafka.protocol.api.cluster import DescribeClusterRequest
from spark_kafka_native.kafka.protocol.api.configs import (
    TOPIC_RESOURCE,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from spark_kafka_native.kafka.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_native.kafka.protocol.api.find_coordinator import (
    TRANSACTION_KEY_TYPE,
    FindCoordinatorRequest,
)
from spark_kafka_native.kafka.protocol.api.group_membership import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from spark_kafka_native.kafka.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from spark_kafka_native.kafka.protocol.api.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_native.kafka.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from spark_kafka_native.kafka.protocol.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_native.kafka.protocol.api.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from spark_kafka_native.kafka.protocol.api.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from spark_kafka_native.kafka.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from spark_kafka_native.kafka.protocol.framing import Framing
from spark_kafka_native.kafka.protocol.message import Request
from spark_kafka_native.kafka.protocol.versions import read_version_ranges
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.encode import encode_record_batch

pytestmark = pytest.mark.broker


class Wire:
    """A socket and a session, and nothing else of the client."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.split(",")[0].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.session = Framing("test")

    def send(self, request: Request[Any], version: int) -> Any:
        _, buffers = self.session.send(request, version)
        self.socket.sendall(b"".join(buffers))
        frame = self.receive(self.session.frame_length(self.receive(4)))
        return self.session.receive(memoryview(frame))[1]

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            received = self.socket.recv(size - len(data))
            assert received, "the broker hung up: it did not understand the request"
            data += received
        return data


@dataclass(frozen=True)
class Topic:
    name: str
    topic_id: uuid.UUID
    batch: bytes


@pytest.fixture(scope="module")
def wire(kafka: Any) -> Iterator[Wire]:
    wire = Wire(kafka.bootstrap_servers)
    yield wire
    wire.socket.close()


@pytest.fixture(scope="module")
def ranges(wire: Wire) -> dict[int, tuple[int, int]]:
    return read_version_ranges(wire.send(ApiVersionsRequest(), 0))


@pytest.fixture(scope="module")
def topic(wire: Wire) -> Topic:
    name = f"messages-{uuid.uuid4().hex[:8]}"
    created = wire.send(create_topic(name), 7).topics[0]
    assert created.error_code is ErrorCode.NONE
    columns = RecordColumns(length=1, value=pa.array([b"value"], pa.binary()))
    topic = Topic(
        name, created.topic_id, bytes(encode_record_batch(columns, now_ms=time.time_ns() // 1_000_000))
    )
    await_none(lambda: wire.send(produce(topic), 12).responses[0].partition_responses[0].error_code)
    return topic


@pytest.fixture(scope="module")
def committed(wire: Wire, topic: Topic) -> None:
    """A fresh broker first has to make the topic of all committed offsets, and to get producer ids."""
    find = FindCoordinatorRequest(coordinator_keys=[GROUP])
    await_none(lambda: wire.send(find, 4).coordinators[0].error_code)
    await_none(lambda: wire.send(commit(topic), 9).topics[0].partitions[0].error_code)
    init = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    await_none(lambda: wire.send(init, 4).error_code)
    find = FindCoordinatorRequest(key_type=TRANSACTION_KEY_TYPE, coordinator_keys=[TRANSACTION])
    await_none(lambda: wire.send(find, 4).coordinators[0].error_code)
    init = InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=60_000)
    await_none(lambda: wire.send(init, 4).error_code)


def await_none(ask: Callable[[], ErrorCode]) -> None:
    """Wait until the new group is known everywhere, and its coordinator is there."""
    deadline = time.monotonic() + 60
    while (error_code := ask()) is not ErrorCode.NONE:
        assert error_code.retriable, error_code.name
        assert time.monotonic() < deadline, error_code.name
        time.sleep(0.1)


def create_topic(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=2, replication_factor=1)])


def produce(topic: Topic) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=memoryview(topic.batch))
    return ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[data])],
    )


def offsets(topic: Topic) -> list[OffsetFetchRequestTopics]:
    return [OffsetFetchRequestTopics(name=topic.name, partition_indexes=[0, 1])]


def fetch(topic: Topic) -> FetchRequest:
    partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    return FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        topics=[FetchTopic(topic=topic.name, topic_id=topic.topic_id, partitions=partitions)],
    )


def commit(topic: Topic) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="note")
    topics = [OffsetCommitRequestTopic(name=topic.name, partitions=[partition])]
    return OffsetCommitRequest(group_id=GROUP, topics=topics)


def offset_for_leader_epoch(topic: Topic) -> OffsetForLeaderEpochRequest:
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic.name, partitions=[asked])]
    )


def list_offsets(topic: Topic) -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=0, timestamp=EARLIEST_TIMESTAMP)
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic.name, partitions=[partition])]
    )


def delete_records(topic: Topic) -> DeleteRecordsRequest:
    partition = DeleteRecordsPartition(partition_index=1, offset=0)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic.name, partitions=[partition])], timeout_ms=10_000
    )


def acl(topic: Topic) -> AclCreation:
    """An ACL by which every user may read the topic."""
    return AclCreation(
        resource_type=2,
        resource_name=topic.name,
        principal="User:*",
        host="*",
        operation=3,
        permission_type=3,
    )


def describe_configs(topic: Topic) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic.name, configuration_keys=["retention.ms"]
    )
    return DescribeConfigsRequest(resources=[resource])


def txn_offset_commit(topic: Topic) -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata="note"
    )
    topics = [TxnOffsetCommitRequestTopic(name=topic.name, partitions=[partition])]
    return TxnOffsetCommitRequest(group_id=TRANSACTION, topics=topics, **NOBODY)


TRANSACTION = f"transaction-{uuid.uuid4().hex[:8]}"
NOBODY: dict[str, Any] = {"transactional_id": TRANSACTION, "producer_id": 123_456_789, "producer_epoch": 3}
"""A producer that no coordinator has heard of."""
GROUP = f"group-{uuid.uuid4().hex[:8]}"
STRANGER: dict[str, Any] = {"group_id": f"members-{uuid.uuid4().hex[:8]}", "member_id": str(uuid.uuid4())}
"""A member that no coordinator has heard of."""
REQUESTS: dict[type[Request[Any]], Callable[[Topic], Request[Any]]] = {
    AddOffsetsToTxnRequest: lambda _: AddOffsetsToTxnRequest(group_id=GROUP, **NOBODY),
    AddPartitionsToTxnRequest: lambda topic: AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TRANSACTION,
        v3_and_below_producer_id=123_456_789,
        v3_and_below_producer_epoch=3,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic.name, partitions=[0, 1])],
    ),
    EndTxnRequest: lambda _: EndTxnRequest(committed=True, **NOBODY),
    TxnOffsetCommitRequest: txn_offset_commit,
    ApiVersionsRequest: lambda _: ApiVersionsRequest(
        client_software_name="test", client_software_version="1"
    ),
    CreateAclsRequest: lambda topic: CreateAclsRequest(creations=[acl(topic)]),
    CreatePartitionsRequest: lambda topic: CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic.name, count=3, assignments=None)],
        timeout_ms=10_000,
        validate_only=True,
    ),
    CreateTopicsRequest: lambda _: create_topic(f"messages-{uuid.uuid4().hex[:8]}"),
    DeleteRecordsRequest: delete_records,
    DeleteTopicsRequest: lambda topic: DeleteTopicsRequest(
        topics=[DeleteTopicState(name=f"{topic.name}-never")], timeout_ms=10_000
    ),
    ConsumerGroupHeartbeatRequest: lambda _: ConsumerGroupHeartbeatRequest(member_epoch=3, **STRANGER),
    DescribeClusterRequest: lambda _: DescribeClusterRequest(),
    DescribeConfigsRequest: describe_configs,
    FetchRequest: fetch,
    FindCoordinatorRequest: lambda _: FindCoordinatorRequest(coordinator_keys=[GROUP]),
    HeartbeatRequest: lambda _: HeartbeatRequest(generation_id=3, **STRANGER),
    InitProducerIdRequest: lambda _: InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000
    ),
    JoinGroupRequest: lambda _: JoinGroupRequest(
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        **STRANGER,
    ),
    LeaveGroupRequest: lambda _: LeaveGroupRequest(
        group_id=STRANGER["group_id"], members=[MemberIdentity(member_id=STRANGER["member_id"])]
    ),
    ListOffsetsRequest: list_offsets,
    MetadataRequest: lambda topic: MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)]),
    OffsetCommitRequest: commit,
    OffsetForLeaderEpochRequest: offset_for_leader_epoch,
    OffsetFetchRequest: lambda topic: OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=offsets(topic))]
    ),
    ProduceRequest: produce,
    SaslAuthenticateRequest: lambda _: SaslAuthenticateRequest(auth_bytes=b"who"),
    SaslHandshakeRequest: lambda _: SaslHandshakeRequest(mechanism="PLAIN"),
    SyncGroupRequest: lambda _: SyncGroupRequest(
        generation_id=3, protocol_type="consumer", protocol_name="range", assignments=[], **STRANGER
    ),
} | {
    kind: lambda topic, kind=kind: admin_requests(topic.name, GROUP)[kind] for kind in admin_requests("", "")
}


def check_metadata(response: Any, topic: Topic, version: int) -> None:
    (described,) = response.topics
    assert (described.name, len(described.partitions)) == (topic.name, 2)
    assert version < 10 or described.topic_id == topic.topic_id
    assert {partition.leader_id for partition in described.partitions} == {response.brokers[0].node_id}


def check_fetch(response: Any, topic: Topic, version: int) -> None:
    (partition,) = response.responses[0].partitions
    assert partition.high_watermark > 0
    assert bytes(partition.records)[8 : len(topic.batch)].endswith(topic.batch[61:])
    assert (response.responses[0].topic_id == topic.topic_id) == (version >= 13)


def check_offsets(response: Any, topic: Topic, version: int) -> None:
    del version
    (group,) = response.groups
    partitions = {partition.partition_index: partition for partition in group.topics[0].partitions}
    assert (group.group_id, group.topics[0].name) == (GROUP, topic.name)
    assert (partitions[0].committed_offset, partitions[0].metadata) == (7, "note")
    assert partitions[1].committed_offset == -1


def check_configs(response: Any, topic: Topic, version: int) -> None:
    del version
    (result,) = response.results
    assert (result.resource_name, [config.name for config in result.configs]) == (
        topic.name,
        ["retention.ms"],
    )


def check_coordinator(response: Any, topic: Topic, version: int) -> None:
    del topic, version
    (coordinator,) = response.coordinators
    assert (coordinator.key, coordinator.port > 0) == (GROUP, True)


CHECKS: dict[type[Request[Any]], Callable[[Any, Topic, int], None]] = {
    MetadataRequest: check_metadata,
    FetchRequest: check_fetch,
    OffsetFetchRequest: check_offsets,
    DescribeConfigsRequest: check_configs,
    FindCoordinatorRequest: check_coordinator,
}
EXPECTED = {
    AddOffsetsToTxnRequest: {ErrorCode.INVALID_PRODUCER_ID_MAPPING},
    AddPartitionsToTxnRequest: {ErrorCode.INVALID_PRODUCER_ID_MAPPING},
    EndTxnRequest: {ErrorCode.INVALID_PRODUCER_ID_MAPPING},
    TxnOffsetCommitRequest: {ErrorCode.INVALID_PRODUCER_ID_MAPPING},
    ConsumerGroupHeartbeatRequest: {ErrorCode.GROUP_ID_NOT_FOUND},
    HeartbeatRequest: {ErrorCode.UNKNOWN_MEMBER_ID},
    JoinGroupRequest: {ErrorCode.UNKNOWN_MEMBER_ID},
    LeaveGroupRequest: {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE},  # since version 3 of each member
    SyncGroupRequest: {ErrorCode.UNKNOWN_MEMBER_ID},
    CreateAclsRequest: {ErrorCode.SECURITY_DISABLED},  # the broker has no authorizer
    DeleteTopicsRequest: {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    SaslAuthenticateRequest: {ErrorCode.ILLEGAL_SASL_STATE},  # nor SASL on this listener
    SaslHandshakeRequest: {ErrorCode.ILLEGAL_SASL_STATE},
    **ADMIN_REFUSALS,
}
EACH_VERSION = [
    pytest.param(request_class, version, id=f"{request_class.api_name()}-v{version}")
    for request_class in all_requests().values()
    for version in range(request_class.versions[0], request_class.versions[1] + 1)
]


def error_codes(value: Any) -> set[ErrorCode]:
    """All error codes in a response, wherever they are."""
    if isinstance(value, ErrorCode):
        return {value}
    inside = value if isinstance(value, list) else vars(value).values() if hasattr(value, "__dict__") else ()
    return set().union(*map(error_codes, inside))


def test_there_is_a_request_of_every_api() -> None:
    assert set(REQUESTS) == set(all_requests().values())


@pytest.mark.parametrize(("request_class", "version"), EACH_VERSION)
def test_exchange(
    request_class: type[Request[Any]],
    version: int,
    wire: Wire,
    topic: Topic,
    ranges: dict[int, tuple[int, int]],
    committed: None,
) -> None:
    lowest, highest = ranges[request_class.api_key]
    if not lowest <= version <= highest:
        pytest.skip(f"the broker speaks versions {lowest} to {highest}")

    response = wire.send(REQUESTS[request_class](topic), version)

    assert error_codes(response) <= EXPECTED.get(request_class, {ErrorCode.NONE})
    if request_class in CHECKS:
        CHECKS[request_class](response, topic, version)


def test_a_version_of_api_versions_that_the_broker_lacks_is_answered_in_version_0(wire: Wire) -> None:
    """KIP-511: the range comes with the refusal. No broker is that old or new, so the header
    says 99.
    """
    _, buffers = wire.session.send(ApiVersionsRequest(), 4)
    frame = bytearray(b"".join(buffers))
    struct.pack_into(">h", frame, 6, 99)
    wire.socket.sendall(frame)

    _, response = wire.session.receive(memoryview(wire.receive(wire.session.frame_length(wire.receive(4)))))

    assert response.error_code is ErrorCode.UNSUPPORTED_VERSION  # type: ignore[attr-defined]
    assert read_version_ranges(response)[ApiVersionsRequest.api_key][0] == 0  # type: ignore[arg-type]
