"""`Admin` against a real broker: topics, configs and groups."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import Producer as LibrdkafkaProducer
from support.consumer.reading import wait_until

from spark_kafka_native.kafka import (
    Admin,
    BrokerError,
    ClientConfig,
    ConfigResource,
    ConfigSource,
    Deadline,
    ErrorCode,
    NewTopic,
    OffsetAt,
    OffsetOutOfRangeError,
    Producer,
    TopicPartition,
)

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def admin(kafka: Any) -> Iterator[Admin]:
    with Admin(kafka.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def name() -> str:
    return f"admin-{uuid.uuid4().hex[:8]}"


def fill(kafka: Any, topic: str, counts: dict[int, int], timestamp_ms: int | None = None) -> None:
    with Producer(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,))) as producer:
        for partition, count in counts.items():
            for number in range(count):
                at = None if timestamp_ms is None else timestamp_ms + number
                producer.send(topic, value=str(number), partition=partition, timestamp_ms=at)


def refusal(raised: pytest.ExceptionInfo[BrokerError]) -> tuple[ErrorCode, str]:
    return raised.value.error_code, str(raised.value)


def test_topics_are_created_described_grown_and_deleted(admin: Admin, name: str) -> None:
    admin.create_topics([NewTopic(name=name, partitions=2, configs={"retention.ms": "-1"}), f"{name}-plain"])

    assert {name, f"{name}-plain"} <= set(admin.list_topics())
    topic = admin.describe_topics([name])[name]
    assert (len(topic.partitions), topic.partitions[1].replica_nodes) == (2, (1,))
    assert admin.describe_topic_configs([name])[name]["retention.ms"] == "-1"

    admin.create_partitions({name: 3})
    wait_until("it has grown", lambda: len(admin.describe_topics([name])[name].partitions) == 3, 60)

    admin.delete_topics([name, f"{name}-plain"])
    admin.delete_topics([name], missing_ok=True)


def test_one_refused_topic_is_named_and_the_others_are_made(admin: Admin, name: str) -> None:
    admin.create_topics([name])

    with pytest.raises(BrokerError) as raised:
        admin.create_topics([name, f"{name}-other", "no/such/name"])

    code, text = refusal(raised)
    assert code in (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_TOPIC_EXCEPTION)
    assert "creating topic " in text
    wait_until("the other is there", lambda: f"{name}-other" in admin.list_topics(), 60)
    admin.create_topics([name, f"{name}-new"], exist_ok=True)
    assert f"{name}-new" in admin.list_topics()


def test_only_checking_creates_nothing(admin: Admin, name: str) -> None:
    admin.create_topics([name], validate_only=True)
    with pytest.raises(BrokerError, match="INVALID_REPLICATION_FACTOR"):
        admin.create_topics([NewTopic(name=name, replication_factor=7)], validate_only=True)
    assert name not in admin.list_topics()


def test_replicas_are_those_that_were_asked_for(admin: Admin, name: str) -> None:
    admin.create_topics([NewTopic(name=name, replicas=[[1], [1], [1]])])
    assert len(admin.describe_topics([name])[name].partitions) == 3
    with pytest.raises(BrokerError) as raised:
        admin.create_partitions({name: 4}, replicas={name: [[77]]})
    assert name in refusal(raised)[1]


@pytest.mark.parametrize("call", ["delete_topics", "describe_topics", "describe_groups", "delete_groups"])
def test_a_text_is_no_collection_of_its_letters(admin: Admin, call: str) -> None:
    with pytest.raises(ValueError, match=r"as \['ab'\], not 'ab'"):
        getattr(admin, call)("ab")
    with pytest.raises(ValueError, match="as \\['ab'\\]"):
        admin.create_topics("ab")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"partitions": 0}, {"partitions": "3"}, {"replicas": [[1]], "partitions": 1}, {"name": ""}]
)
def test_a_topic_that_can_not_be_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="topic"):
        NewTopic(**{"name": "orders"} | wrong)


def test_counts_come_by_position_as_in_other_clients() -> None:
    assert NewTopic("orders", 3, 2) == NewTopic(name="orders", partitions=3, replication_factor=2)
    with pytest.raises(TypeError, match="positional"):
        NewTopic("orders", 3, 2, {"retention.ms": "1"})  # type: ignore[misc]


def test_a_missing_topic_is_named_at_once(admin: Admin, name: str) -> None:
    limit = Deadline.after_ms(60_000)
    for call in (
        lambda: admin.delete_topics([name], limit),
        lambda: admin.describe_topics([name], limit),
        lambda: admin.create_partitions({name: 9}, limit),
        lambda: admin.alter_configs(ConfigResource.topic(name), {"retention.ms": "1"}, limit),
    ):
        with pytest.raises(BrokerError) as raised:
            call()
        assert (refusal(raised)[0], name in refusal(raised)[1]) == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            True,
        )


def test_settings_are_changed_one_by_one(admin: Admin, name: str) -> None:
    admin.create_topics([NewTopic(name=name, configs={"max.message.bytes": "9999"})])
    topic = ConfigResource.topic(name)

    def values() -> dict[str, str | None]:
        names = ["retention.ms", "cleanup.policy", "max.message.bytes"]
        found = admin.describe_configs(topic, names=names).values()
        return {entry.name: entry.value for entry in found if entry.source is ConfigSource.TOPIC}

    def become(wanted: dict[str, str]) -> None:
        wait_until(f"the settings are {wanted}", lambda: values() == wanted, 60)  # brokers hear of them later

    admin.alter_configs(topic, {"retention.ms": "1000"}, append={"cleanup.policy": "compact"})
    become({"retention.ms": "1000", "cleanup.policy": "delete,compact", "max.message.bytes": "9999"})
    admin.alter_configs(topic, {"retention.ms": "77"}, validate_only=True)
    admin.alter_configs(topic, {"max.message.bytes": None}, subtract={"cleanup.policy": "delete"})
    become({"retention.ms": "1000", "cleanup.policy": "compact"})
    found = admin.describe_configs(topic, documentation=True)
    assert found["max.message.bytes"].is_default
    assert "compact" in (found["cleanup.policy"].documentation or "")

    with pytest.raises(BrokerError, match=f"altering configs of topic {name}"):
        admin.alter_configs(topic, {"retention.ms": "soon"})
    with pytest.raises(ValueError, match="texts"):
        admin.alter_configs(topic, {"retention.ms": 1000})  # type: ignore[dict-item]


def test_a_broker_tells_its_own_settings(admin: Admin) -> None:
    settings = admin.describe_configs(ConfigResource.broker(1), names=["log.retention.ms", "node.id"])
    assert settings["node.id"].value == "1"
    assert settings["node.id"].read_only
    assert admin.describe_configs(ConfigResource.all_brokers()) is not None


def test_records_are_deleted_from_the_front(kafka: Any, admin: Admin, name: str) -> None:
    admin.create_topics([NewTopic(name=name, partitions=2)])
    fill(kafka, name, {0: 10, 1: 5})
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)

    assert admin.delete_records({first: 4, second: -1}) == {first: 4, second: 5}
    with pytest.raises(BrokerError, match=f"deleting records of {name}-0 before offset 99"):
        admin.delete_records({first: 99})
    with pytest.raises(BrokerError, match=f"deleting records of {name}-[01] before offset 99") as raised:
        admin.delete_records({first: 99, second: 99})
    (other,) = raised.value.__notes__  # the broker's answer is in an order of its own
    said = (str(raised.value), other.removeprefix("not deleted: "))
    assert [text.split(" before")[0] for text in sorted(said)] == [
        f"deleting records of {name}-0",
        f"deleting records of {name}-1",
    ]


@pytest.mark.parametrize("place", ["earliest", 1.0, True, None])
def test_a_group_is_only_placed_where_a_place_can_be(admin: Admin, name: str, place: Any) -> None:
    with pytest.raises(ValueError, match="a place is an offset"):
        admin.reset_offsets(name, {TopicPartition(name, 0): place}, dry_run=True)


def test_a_group_is_placed_described_and_deleted(kafka: Any, admin: Admin, name: str) -> None:
    admin.create_topics([NewTopic(name=name, partitions=3)])
    fill(kafka, name, {0: 10, 1: 10}, timestamp_ms=1_700_000_000_000)
    one, two, three = (TopicPartition(name, partition) for partition in range(3))
    places = {one: 3, two: OffsetAt.timestamp(1_700_000_000_004), three: OffsetAt.LATEST}

    assert admin.reset_offsets(name, places, dry_run=True) == {one: 3, two: 4, three: 0}
    assert admin.group_offsets(name) == {}
    admin.reset_offsets(name, places)

    assert {tp: at.offset for tp, at in admin.group_offsets(name).items()} == {one: 3, two: 4, three: 0}
    assert {tp: at.lag for tp, at in admin.group_lag(name).items()} == {one: 7, two: 6, three: 0}
    (listed,) = [group for group in admin.list_groups(states=["Empty"]) if group.group_id == name]
    assert listed.type == "classic"
    assert admin.describe_groups([name])[name].members == ()
    after_the_last = {one: OffsetAt.timestamp(1_900_000_000_000)}
    assert admin.reset_offsets(name, after_the_last) == {one: 10}
    with pytest.raises(OffsetOutOfRangeError):
        admin.reset_offsets(name, {one: 11})

    admin.delete_group_offsets(name, [two])
    assert set(admin.group_offsets(name)) == {one, three}
    admin.delete_groups([name])
    for call in (admin.describe_groups, admin.delete_groups):
        with pytest.raises(BrokerError) as raised:
            call([name])  # type: ignore[operator]
        assert (refusal(raised)[0], name in refusal(raised)[1]) == (ErrorCode.GROUP_ID_NOT_FOUND, True)


def test_a_group_reads_of_a_topic_that_is_gone(kafka: Any, admin: Admin, name: str) -> None:
    admin.create_topics([name])
    tp = TopicPartition(name, 0)
    admin.reset_offsets(name, {tp: 0})
    admin.delete_topics([name])
    # The coordinator drops the offsets of a deleted topic when it hears of it.
    assert all(at.end_offset is None for at in admin.group_lag(name).values())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_and_what_they_read(kafka: Any, admin: Admin, name: str, protocol: str) -> None:
    admin.create_topics([NewTopic(name=name, partitions=2)])
    fill(kafka, name, {0: 1, 1: 1})
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": name,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "client.id": "watched",
    }
    consumer = Consumer(settings)
    consumer.subscribe([name])
    try:
        limit = Deadline.after_ms(60_000)
        while consumer.poll(0.2) is None:
            assert not limit.expired
        described = admin.describe_groups([name])[name]
        (member,) = described.members
        assert (described.type, described.state, member.client_id) == (protocol, "Stable", "watched")
        assert member.assignment == (TopicPartition(name, 0), TopicPartition(name, 1))
        assert (member.target is None) == (protocol == "classic")
        with pytest.raises(BrokerError, match="stop them first"):
            admin.reset_offsets(name, {TopicPartition(name, 0): 0})
        with pytest.raises(BrokerError, match=f"deleting group {name}: NON_EMPTY_GROUP"):
            admin.delete_groups([name])
    finally:
        consumer.close()


def test_transactions_are_seen_and_a_hanging_one_is_aborted(kafka: Any, admin: Admin, name: str) -> None:
    admin.create_topics([name])
    tp = TopicPartition(name, 0)
    fill(kafka, name, {0: 2})
    writing = LibrdkafkaProducer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    writing.init_transactions(60)
    writing.begin_transaction()
    writing.produce(name, b"open", partition=0)
    assert writing.flush(60) == 0

    (listed,) = [one for one in admin.list_transactions() if one.transactional_id == name]
    assert listed.state == "Ongoing"
    assert listed in admin.list_transactions(states=["Ongoing"], producer_ids=[listed.producer_id])
    told = admin.describe_transactions([name])[name]
    assert (told.producer_id, told.topic_partitions) == (listed.producer_id, (tp,))
    assert told.started_ms is not None
    producers = admin.describe_producers([tp])[tp]
    (producer,) = [one for one in producers if one.producer_id == listed.producer_id]
    assert producer.transaction_start_offset == 2
    assert admin.hanging_transactions([name], open_for_ms=0) == []  # its coordinator knows it

    with pytest.raises(ValueError, match="no transaction is open"):
        admin.abort_hanging(tp, 1)
    admin.abort_hanging(tp, 2)
    producers = admin.describe_producers([tp])[tp]
    assert [one.transaction_start_offset for one in producers] == [None] * len(producers)
    with pytest.raises(ValueError, match="there is no state Sleeping"):
        admin.list_transactions(states=["Sleeping"])
    with pytest.raises(BrokerError, match=f"the transaction of {name}-never: TRANSACTIONAL_ID_NOT_FOUND"):
        admin.describe_transactions([f"{name}-never"])


def test_the_cluster_and_its_disks(kafka: Any, admin: Admin, name: str) -> None:
    admin.create_topics([name])
    fill(kafka, name, {0: 3})
    cluster = admin.describe_cluster()
    assert [str(broker).split(" ")[0] for broker in cluster.brokers] == [kafka.bootstrap_servers]
    assert cluster.cluster_id
    (disk,) = [disk for disk in admin.describe_log_dirs() if TopicPartition(name, 0) in disk.replicas]
    assert (disk.node_id, disk.error_code) == (1, ErrorCode.NONE)
    assert disk.replicas[TopicPartition(name, 0)].size_bytes > 0
    assert (disk.total_bytes or 0) > 0


def test_leaders_are_elected_and_nothing_is_being_moved(admin: Admin, name: str) -> None:
    admin.create_topics([name])
    assert admin.elect_leaders([TopicPartition(name, 0)]) == set()  # it is the preferred one already
    assert admin.elect_leaders() == set()
    assert admin.list_reassignments() == {}
    with pytest.raises(BrokerError, match=f"reassigning {name}-0: NO_REASSIGNMENT_IN_PROGRESS"):
        admin.reassign({TopicPartition(name, 0): None})
    with pytest.raises(BrokerError, match=f"reassigning {name}-0: INVALID_REPLICA_ASSIGNMENT"):
        admin.reassign({TopicPartition(name, 0): [1, 99]})
