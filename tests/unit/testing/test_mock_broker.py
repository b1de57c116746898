"""`MockBroker` as its users see it: with our client, with others, and each of its faults."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import confluent_kafka
import kafka as kafka_python
import pytest
from support.brokers.framed_client import Peer

from spark_kafka_native.kafka import (
    Admin,
    BrokerError,
    ClientConfig,
    Connection,
    Consumer,
    CorruptRecordError,
    Deadline,
    DeliveryError,
    GroupConsumer,
    NetworkError,
    NewTopic,
    OffsetAt,
    Producer,
    ProtocolError,
    Record,
    TopicPartition,
)
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest
from spark_kafka_native.kafka.protocol.api.groups import ListGroupsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.testing import MockBroker
from spark_kafka_native.testing.errors import JarsUnavailableError

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
VALUES = [f"value {number}".encode() for number in range(10)]
WITHIN_S = 120
"""For records that come at once, unless the machine is busy."""


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker() as broker:
        broker.create_topic("orders", partitions=2)
        yield broker


@pytest.fixture
def cluster() -> Iterator[MockBroker]:
    with MockBroker(3) as cluster:
        cluster.create_topic("orders", partitions=3)
        yield cluster


def write(broker: MockBroker, **config: Any) -> list[Any]:
    """Ten records into partition 0, one batch each; their places."""
    with Producer(broker.bootstrap_servers, partitioner="explicit", **config) as producer:
        return [
            producer.send("orders", value=value, partition=0).result(timeout=WITHIN_S) for value in VALUES
        ]


def values(broker: MockBroker, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in broker.records("orders", partition)]


def read(broker: MockBroker, count: int, **config: Any) -> list[bytes | None]:
    deadline, found = time.monotonic() + WITHIN_S, []
    with Consumer(broker.bootstrap_servers, "orders", start="earliest", **config) as consumer:
        while len(found) < count and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(timeout=5)]
    return found


# --- it is a broker ---------------------------------------------------------------------------------------


def test_topics_are_created_listed_grown_and_deleted(cluster: MockBroker) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="bills", partitions=2, configs={"retention.ms": "5"})])
        admin.create_partitions({"bills": 4})

        assert sorted(admin.list_topics()) == ["bills", "orders"]
        described = admin.describe_topics(["bills"])["bills"]
        assert [described.partitions[index].leader for index in range(4)] == [1, 2, 3, 1]
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
            admin.create_topics(["bills"])
        admin.delete_topics(["bills"])
        assert admin.list_topics() == ["orders"]


def test_topics_are_as_they_were_asked_for(broker: MockBroker) -> None:
    topics = broker.cluster.topics
    with closing(Peer(broker.bootstrap_servers)) as peer:
        places = [{"partition_index": index, "broker_ids": [1]} for index in range(3)]
        given = {"configs": [{"name": "retention.ms", "value": "5"}], "assignments": places}
        new = {"topics": [{"name": "new", "num_partitions": -1, "replication_factor": -1} | given]}
        peer.ask("CreateTopics", new | {"validate_only": True}, 5)
        assert "new" not in topics
        peer.ask("CreateTopics", new, 5)
        assert len(topics["new"].partitions) == 3

        def grow(count: int, *, validate_only: bool = False) -> tuple[int, int]:
            asked = {"topics": [{"name": "new", "count": count, "assignments": None}]}
            told = peer.ask("CreatePartitions", asked | {"validate_only": validate_only}, 3)
            return told["results"][0]["error_code"], len(topics["new"].partitions)

        assert grow(3) == (ErrorCode.INVALID_PARTITIONS, 3)
        assert grow(4, validate_only=True) == (ErrorCode.NONE, 3)
        assert grow(4) == (ErrorCode.NONE, 4)

        def configs(keys: list[str] | None) -> dict[str, tuple[str, int]]:
            one = {"resource_type": 2, "resource_name": "new", "configuration_keys": keys}
            (told,) = peer.ask("DescribeConfigs", {"resources": [one]}, 4)["results"]
            return {found["name"]: (found["value"], found["config_source"]) for found in told["configs"]}

        own = {"retention.ms": ("5", 1)}
        assert configs(["retention.ms"]) == own
        defaults = {"cleanup.policy": ("delete", 5), "max.message.bytes": ("1048588", 5)}
        assert configs(None) == configs([]) == own | defaults

        for version, names in ((0, {"new", "orders"}), (1, set())):
            told = peer.ask("Metadata", {"topics": []}, version)
            assert {topic["name"] for topic in told["topics"]} == names


def test_what_is_produced_is_consumed_and_committed(cluster: MockBroker) -> None:
    with Producer(cluster.bootstrap_servers, compression_type="zstd") as producer:
        for number in range(60):
            producer.send("orders", key=str(number), value=f"{number}", headers=[("source", b"shop")])

    seen = []
    with GroupConsumer(cluster.bootstrap_servers, "orders", group="billing") as consumer:
        while len(seen) < 60:
            record = consumer.fetch_record(timeout=WITHIN_S)
            assert record is not None
            seen.append(int(record.value or b"-1"))
            consumer.commit(record)

    stored = [record for partition in range(3) for record in cluster.records("orders", partition)]
    assert sorted(seen) == sorted(int(record.value or b"-1") for record in stored) == list(range(60))
    assert stored[0].headers == (("source", b"shop"),)
    ends = {TopicPartition("orders", index): len(cluster.records("orders", index)) for index in range(3)}
    assert cluster.committed("billing") == ends


def test_two_members_share_and_one_takes_over(broker: MockBroker) -> None:
    owned: dict[str, set[TopicPartition]] = {}

    def member(name: str, until: threading.Event) -> None:
        with GroupConsumer(
            broker.bootstrap_servers, "orders", group="shared", heartbeat_interval_ms=100
        ) as consumer:
            while not until.is_set():
                consumer.read(timeout=0.1)
                owned[name] = set(consumer.assignment)

    ends = {"one": threading.Event(), "two": threading.Event()}
    threads = {name: threading.Thread(target=member, args=(name, end)) for name, end in ends.items()}
    for thread in threads.values():
        thread.start()
    try:
        await_true(lambda: sorted(map(len, owned.values())) == [1, 1])
        assert not owned["one"] & owned["two"]

        ends["two"].set()
        threads["two"].join(WITHIN_S)
        await_true(lambda: len(owned["one"]) == 2)
    finally:
        for name, end in ends.items():
            end.set()
            threads[name].join(WITHIN_S)


def connect(broker: MockBroker) -> Connection:
    config = ClientConfig(bootstrap_servers=(broker.bootstrap_servers,), client_id="me")
    return Connection.open(broker.bootstrap_servers, config=config, deadline=Deadline.after_ms(60_000))


def await_true(condition: Any) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def test_offsets_by_place_and_time(broker: MockBroker) -> None:
    records = [Record("", -1, -1, None, value, (), 1000 + 10 * at) for at, value in enumerate(VALUES)]
    broker.append("orders", records[:5])
    assert broker.append("orders", records[5:]) == 5
    broker.delete_records("orders", 0, 2)

    with Consumer(broker.bootstrap_servers, "orders", partitions=[0]) as consumer:
        found = []
        for place in ("earliest", "latest", OffsetAt.MAX_TIMESTAMP):
            consumer.seek(place)
            found.append(consumer.position(0))
    assert found == [2, 10, 9]
    assert [record.value for record in broker.records("orders")] == VALUES[2:]


def test_all_records_of_a_partition_can_be_deleted(broker: MockBroker) -> None:
    broker.append("orders", VALUES)
    broker.delete_records("orders", 0, len(VALUES))
    assert broker.records("orders") == []
    assert broker.append("orders", [b"next"]) == len(VALUES)
    assert values(broker) == [b"next"]


@pytest.mark.parametrize("version", range(ProduceRequest.versions[0], ProduceRequest.versions[1] + 1))
def test_each_version_of_produce(version: int) -> None:
    with MockBroker(versions={"Produce": (version, version)}) as broker:
        broker.create_topic("orders")
        write(broker)

        assert values(broker) == VALUES
        assert {request.version for request in broker.asked("Produce")} == {version}


@pytest.mark.parametrize("version", range(FetchRequest.versions[0], FetchRequest.versions[1] + 1))
def test_each_version_of_fetch(version: int) -> None:
    with MockBroker(versions={"Fetch": (version, version)}) as broker:
        broker.create_topic("orders")
        broker.append("orders", VALUES)

        assert read(broker, len(VALUES)) == VALUES
        assert {request.version for request in broker.asked("Fetch")} == {version}


def test_kafka_python_takes_it_for_a_broker(broker: MockBroker) -> None:
    producer = kafka_python.KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for value in VALUES:
        producer.send("orders", value, partition=0).get(WITHIN_S)
    producer.close()
    consumer = kafka_python.KafkaConsumer(
        "orders", bootstrap_servers=broker.bootstrap_servers, group_id="python", auto_offset_reset="earliest"
    )
    found = [next(consumer).value for _ in VALUES]
    consumer.commit()
    consumer.close()

    assert found == VALUES
    assert broker.committed("python")[TopicPartition("orders", 0)] == len(VALUES)


def test_librdkafka_takes_it_for_a_broker(broker: MockBroker) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "gzip",
        }
    )
    for value in VALUES:
        producer.produce("orders", value, partition=1)
    assert producer.flush(WITHIN_S) == 0
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "rdkafka",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    found: list[Any] = []
    deadline = time.monotonic() + WITHIN_S
    while len(found) < len(VALUES) and time.monotonic() < deadline:
        found += consumer.consume(len(VALUES), timeout=1)
    consumer.commit(asynchronous=False)
    consumer.close()

    assert [message.value() for message in found] == VALUES == values(broker, 1)
    assert broker.committed("rdkafka")[TopicPartition("orders", 1)] == len(VALUES)


def test_its_batches_are_what_another_client_reads(broker: MockBroker) -> None:
    broker.append("orders", [Record("", -1, -1, b"key", b"value", (("h", None),), 1234), None, ""])

    batch = aiokafka_records.DefaultRecordBatch(broker.batches("orders")[0])

    assert batch.validate_crc()
    assert [(one.key, one.value, one.headers) for one in batch] == [
        (b"key", b"value", [("h", None)]),
        (None, None, []),
        (None, b"", []),
    ]


# --- it does what the script says -------------------------------------------------------------------------


def test_a_refused_batch_is_sent_again(broker: MockBroker) -> None:
    fault = broker.on("Produce", partition=0, times=2).fail("NOT_LEADER_OR_FOLLOWER")

    write(broker)

    assert fault.used == 2
    assert values(broker) == VALUES
    assert len(broker.asked("Produce")) == len(VALUES) + 2


def test_a_fault_of_one_partition_leaves_the_other_alone(broker: MockBroker) -> None:
    broker.on("Fetch", topic="orders", partition=1, times=None).fail("KAFKA_STORAGE_ERROR")
    broker.append("orders", VALUES, partition=0)
    broker.append("orders", VALUES, partition=1)

    assert read(broker, len(VALUES), partitions=[0, 1]) == VALUES


@pytest.mark.parametrize("how", ["applied", "cut", "cut within", "applied with an error"])
def test_a_lost_answer_neither_loses_nor_doubles(broker: MockBroker, how: str) -> None:
    """The batch is in the log, the producer does not know: what idempotence is for."""
    fault = broker.on("Produce", after=3)
    match how:
        case "applied":
            fault.drop_reply()
        case "cut":
            fault.cut()
        case "cut within":
            fault.cut(after_bytes=9)
        case _:
            fault.fail("NOT_ENOUGH_REPLICAS_AFTER_APPEND", applied=True)

    places = write(broker, request_timeout_ms=2_000)

    assert fault.used == 1
    assert values(broker) == VALUES
    assert [place.offset for place in places] == list(range(len(VALUES)))


def test_a_refusal_for_good_is_told(broker: MockBroker) -> None:
    broker.on("Produce", times=None).fail("TOPIC_AUTHORIZATION_FAILED")

    with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
        write(broker)
    assert values(broker) == []


def test_a_corrupt_record_is_not_read(broker: MockBroker) -> None:
    broker.append("orders", VALUES)
    broker.on("Fetch", partition=0, times=None).corrupt_records()

    with (
        pytest.raises(CorruptRecordError),
        Consumer(broker.bootstrap_servers, "orders", partitions=[0], start=0) as consumer,
    ):
        consumer.poll(timeout=WITHIN_S)


def test_a_corrupt_frame_ends_the_connection(broker: MockBroker) -> None:
    broker.on("Metadata").corrupt(byte=0)
    connection = connect(broker)

    with pytest.raises(ProtocolError):
        connection.send(MetadataRequest(topics=[]))
    connection.close()


def test_a_broker_hangs_up(broker: MockBroker) -> None:
    broker.on("Metadata").hang_up()
    connection = connect(broker)

    with pytest.raises(NetworkError):
        connection.send(MetadataRequest(topics=[]))
    connection.close()


def test_a_gate_holds_an_answer_until_it_is_opened(broker: MockBroker) -> None:
    gate = threading.Event()
    broker.on("Produce").hold(gate)

    with Producer(broker.bootstrap_servers) as producer:
        delivery = producer.send("orders", value="late", partition=0)
        broker.wait_for("Produce", timeout=WITHIN_S)
        assert not delivery.done()
        gate.set()
        assert delivery.result(timeout=WITHIN_S).offset == 0


def test_a_delay_delays(broker: MockBroker) -> None:
    broker.on("Metadata").delay(0.2)
    connection = connect(broker)

    began = time.monotonic()
    connection.send(MetadataRequest(topics=[]))

    assert time.monotonic() - began >= 0.2
    connection.close()


def test_answers_of_ones_own(broker: MockBroker) -> None:
    broker.on("ListGroups").reply({"groups": [{"group_id": "mine", "protocol_type": "consumer"}]})
    broker.on("ListGroups").reply(lambda request: {"groups": [{"group_id": request.client_id}]})
    broker.on("ListGroups").change(lambda fields: fields["groups"].append({"group_id": "added"}))
    broker.on("ListGroups").reply(b"no list of groups")
    connection = connect(broker)
    found = [connection.send(ListGroupsRequest()).groups[0].group_id for _ in range(3)]
    assert found == ["mine", "me", "added"]

    with pytest.raises(ProtocolError):
        connection.send(ListGroupsRequest())
    connection.close()


def test_an_api_that_only_the_script_knows(broker: MockBroker) -> None:
    full = {"log_dir": "/full", "topics": [], "total_bytes": 9, "usable_bytes": 0}
    of_old = {"log_dir": "/data", "topics": [], "total_bytes": -1, "usable_bytes": -1}
    broker.on("DescribeLogDirs").reply({"results": [full, of_old]})

    with Admin(broker.bootstrap_servers) as admin:
        found = [(one.path, one.total_bytes, one.usable_bytes) for one in admin.describe_log_dirs()]
    assert found == [("/full", 9, 0), ("/data", None, None)]


def test_an_api_that_is_not_known_ends_the_connection(
    broker: MockBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(broker.bootstrap_servers.split(":")) as sock:
        sock.settimeout(WITHIN_S)
        header = struct.pack(">hhih", 35, 1, 7, -1)  # DescribeLogDirs
        with caplog.at_level(logging.WARNING):
            sock.sendall(struct.pack(">i", len(header) + 4) + header + b"\xff\xff\xff\xff")
            assert sock.recv(1) == b""

    assert "broker 1 was asked for DescribeLogDirs, version 1, which the mock does not speak" in caplog.text
    assert broker.asked("DescribeLogDirs")[0].fields == {"topics": None}


@pytest.mark.parametrize("codec", ["snappy", "gzip", "lz4", "zstd"])
def test_what_is_compressed_is_looked_into(broker: MockBroker, codec: str) -> None:
    with Producer(broker.bootstrap_servers, compression_type=codec, partitioner="explicit") as producer:
        for at in range(3):
            producer.send("orders", value=b"a" * 100_000, timestamp_ms=1000 + at, partition=0)

    assert {batch[22] & 7 for batch in broker.batches("orders")} == {CODECS.index(codec)}
    assert values(broker) == [b"a" * 100_000] * 3
    with Consumer(broker.bootstrap_servers, "orders", partitions=[0]) as consumer:
        consumer.seek(OffsetAt.MAX_TIMESTAMP)
        assert consumer.position(0) == 2


def test_snappy_as_other_clients_write_it(broker: MockBroker) -> None:
    """The streams of snappy-java, in blocks of 32 KiB."""
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, compression_type="snappy", max_request_size=2_000_000
    )
    producer.send("orders", b"ab" * 50_000, partition=0).get(WITHIN_S)
    producer.close()

    assert b"\x82SNAPPY\0" in broker.batches("orders")[0]
    assert values(broker) == [b"ab" * 50_000]


def test_leaders_move_and_brokers_stop(cluster: MockBroker) -> None:
    gone = cluster.leader("orders", 0)
    with Producer(cluster.bootstrap_servers, partitioner="explicit") as producer:
        producer.send("orders", value="a", partition=0).result(timeout=WITHIN_S)
        cluster.move_leader("orders", 0, 1 + gone % 3)
        producer.send("orders", value="b", partition=0).result(timeout=WITHIN_S)
        cluster.stop(cluster.leader("orders", 0))
        producer.send("orders", value="c", partition=0).result(timeout=WITHIN_S)
        cluster.hang_up()
        producer.send("orders", value="d", partition=0).result(timeout=WITHIN_S)

    assert values(cluster) == [b"a", b"b", b"c", b"d"]


def test_partitions_of_the_brokers_that_run_stay_where_they_are(cluster: MockBroker) -> None:
    cluster.stop(2)
    logs = cluster.cluster.topics["orders"].partitions
    assert [(log.leader, log.leader_epoch) for log in logs] == [(1, 0), (1, 1), (3, 0)]
    assert [cluster.cluster.log("orders", index) for index in (-1, 3)] == [None, None]


def test_a_coordinator_that_stops_is_found_again(cluster: MockBroker) -> None:
    cluster.append("orders", VALUES)
    with GroupConsumer(
        cluster.bootstrap_servers, "orders", group="moved", enable_auto_commit=False
    ) as consumer:
        record = consumer.fetch_record(timeout=WITHIN_S)
        cluster.stop(1)
        consumer.commit(record)

        assert cluster.committed("moved") == {TopicPartition("orders", 0): 1}


def test_a_fault_happens_no_negative_number_of_times(broker: MockBroker) -> None:
    for times, after in ((-1, 0), (1, -1)):
        with pytest.raises(ValueError, match="neither may be negative"):
            broker.on("Produce", times=times, after=after)


def test_names_are_checked(broker: MockBroker) -> None:
    with pytest.raises(ValueError, match="Kafka has no API 'produce'"):
        broker.on("produce")
    with pytest.raises(KeyError):
        broker.on("Produce").fail("NO_SUCH_ERROR")
    with pytest.raises(ValueError, match="there is no partition 9 of a topic orders"):
        broker.records("orders", 9)
    with closing(Peer(broker.bootstrap_servers)) as peer:
        peer.ask("ListGroups", {}, 4)
    with pytest.raises(TimeoutError, match="0 of 1 requests of Heartbeat came within 0 s"):
        broker.wait_for("Heartbeat", timeout=0)


def test_a_jar_without_messages_is_refused(tmp_path: Any) -> None:
    empty = tmp_path / "kafka-clients-0.jar"
    empty.write_bytes(b"no zip")
    with pytest.raises(JarsUnavailableError, match="can't be read as a jar"):
        MockBroker(jar=empty)
