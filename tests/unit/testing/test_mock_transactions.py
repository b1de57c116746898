"""Transactions of a `MockBroker`: with our client and with others, and what a coordinator refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest
from support.brokers.framed_client import WITHIN_S, Peer

from spark_kafka_native.kafka import (
    Consumer,
    GroupConsumer,
    KafkaError,
    TopicPartition,
    TransactionalProducer,
)
from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.offsets import list_offsets
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import IsolationLevel, OffsetAt, Record
from spark_kafka_native.testing import MockBroker
from spark_kafka_native.testing.mock.partition_log import BatchHeader


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker(2) as broker:
        broker.create_topic("orders", partitions=2)
        yield broker


def with_ours(servers: str) -> None:
    with TransactionalProducer(servers, "id", partitioner="explicit") as producer:
        for value, ends in ((b"1", producer.commit), (b"2", producer.abort), (b"3", producer.commit)):
            producer.begin()
            producer.send("orders", value=value, partition=0).result(timeout=WITHIN_S)
            ends()


def with_librdkafka(servers: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": "id"})
    producer.init_transactions(WITHIN_S)
    ends: Any
    for value, ends in (
        (b"1", producer.commit_transaction),
        (b"2", producer.abort_transaction),
        (b"3", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce("orders", value, partition=0)
        producer.flush(WITHIN_S)
        ends(WITHIN_S)


def with_kafka_python(servers: str) -> None:
    producer = kafka_python.KafkaProducer(bootstrap_servers=servers, transactional_id="id")
    producer.init_transactions()
    ends: Any
    for value, ends in (
        (b"1", producer.commit_transaction),
        (b"2", producer.abort_transaction),
        (b"3", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.send("orders", value, partition=0).get(WITHIN_S)
        ends()
    producer.close()


def with_aiokafka(servers: str) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="id")
        await producer.start()
        for value, ends in (
            (b"1", producer.commit_transaction),
            (b"2", producer.abort_transaction),
            (b"3", producer.commit_transaction),
        ):
            await producer.begin_transaction()
            await producer.send_and_wait("orders", value, partition=0)
            await ends()
        await producer.stop()

    asyncio.run(produce())


def read(broker: MockBroker, isolation_level: str, until: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer(
        broker.bootstrap_servers, "orders", partitions=[0], start=0, isolation_level=isolation_level
    ) as consumer:
        while until not in found:
            records = consumer.poll(timeout=WITHIN_S)
            assert records, f"{until!r} did not come"
            found += [record.value for record in records]
    return found


@pytest.mark.parametrize("produce", [with_ours, with_librdkafka, with_kafka_python, with_aiokafka])
def test_readers_of_what_is_committed_see_that_alone(
    broker: MockBroker, produce: Callable[[str], None]
) -> None:
    produce(broker.bootstrap_servers)
    broker.append("orders", [b"end"])

    assert read(broker, "read_committed", b"end") == [b"1", b"3", b"end"]
    assert read(broker, "read_uncommitted", b"end") == [b"1", b"2", b"3", b"end"]
    assert [record.value for record in broker.records("orders", committed=True)] == [b"1", b"3", b"end"]
    assert [record.value for record in broker.records("orders")] == [b"1", b"2", b"3", b"end"]
    assert read_by_librdkafka(broker) == [b"1", b"3", b"end"]


def read_by_librdkafka(broker: MockBroker) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "r", "isolation.level": "read_committed"}
    )
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    found = []
    while b"end" not in found:
        (message,) = consumer.consume(1, WITHIN_S)
        found.append(message.value())
    consumer.close()
    return found


def test_what_is_open_is_not_read_and_not_counted(broker: MockBroker) -> None:
    broker.append("orders", [b"before"])
    with TransactionalProducer(broker.bootstrap_servers, "id", partitioner="explicit") as producer:
        producer.begin()
        producer.send("orders", value=b"inside", partition=0).result(timeout=WITHIN_S)
        broker.append("orders", [b"behind"])

        with Consumer(
            broker.bootstrap_servers, "orders", partitions=[0], isolation_level="read_committed"
        ) as consumer:
            consumer.seek("latest")
            assert consumer.position(0) == 1
            consumer.seek("earliest")
            assert [record.value for record in consumer.poll(timeout=WITHIN_S)] == [b"before"]
            assert [record.value for record in broker.records("orders", committed=True)] == [b"before"]

            producer.commit()
            found: list[bytes | None] = []
            while len(found) < 2:
                found += [record.value for record in consumer.poll(timeout=WITHIN_S)]
            assert found == [b"inside", b"behind"]


def test_offsets_are_committed_with_the_transaction(broker: MockBroker) -> None:
    broker.append("orders", [b"1", b"2"])
    place = TopicPartition("orders", 0)
    with (
        GroupConsumer(broker.bootstrap_servers, "orders", group="g", enable_auto_commit=False) as consumer,
        TransactionalProducer(broker.bootstrap_servers, "id") as producer,
    ):
        for _ in range(2):
            assert consumer.fetch_record(timeout=WITHIN_S) is not None
        producer.begin()
        producer.send_offsets({place: 1}, consumer.group_metadata())
        assert broker.committed("g") == {}
        producer.abort()
        assert broker.committed("g") == {}

        with producer.transaction():
            producer.send_offsets({place: 2}, consumer.group_metadata())
        assert broker.committed("g") == {place: 2}


def test_a_lost_answer_of_the_end_ends_it_once(broker: MockBroker) -> None:
    lost = broker.on("EndTxn").cut()
    with_ours(broker.bootstrap_servers)
    assert lost.used == 1
    assert [record.value for record in broker.records("orders", committed=True)] == [b"1", b"3"]
    markers = [batch for batch in broker.batches("orders") if BatchHeader.read(batch).attributes & 0x20]
    assert len(markers) == 3


def test_a_new_producer_fences_the_old_one_and_aborts(broker: MockBroker) -> None:
    with TransactionalProducer(broker.bootstrap_servers, "id", partitioner="explicit") as old:
        old.begin()
        old.send("orders", value=b"old", partition=0).result(timeout=WITHIN_S)
        with TransactionalProducer(broker.bootstrap_servers, "id", partitioner="explicit") as new:
            with new.transaction():
                new.send("orders", value=b"new", partition=0)
            with pytest.raises(KafkaError):
                old.commit()
    assert [record.value for record in broker.records("orders", committed=True)] == [b"new"]


# --- what a coordinator answers, frame by frame -----------------------------------------------------------


@pytest.fixture
def peer(broker: MockBroker) -> Iterator[Peer]:
    with closing(Peer(broker.bootstrap_servers.split(",")[0])) as peer:
        yield peer


def initialize(peer: Peer, version: int = 4, **known: Any) -> dict[str, int]:
    told = peer.ask("InitProducerId", {"transactional_id": "id", **known}, version)
    return {key: told[key] for key in ("error_code", "producer_id", "producer_epoch")}


def begin(peer: Peer, *topics: str, **who: Any) -> list[int]:
    asked = {"transactional_id": "id", "topics": [{"name": one, "partitions": [0]} for one in topics], **who}
    version = asked.pop("version", 3)
    told = peer.ask("AddPartitionsToTxn", {f"v3_and_below_{key}": asked[key] for key in asked}, version)
    results = told["results_by_topic_v3_and_below"]
    return [topic["results_by_partition"][0]["partition_error_code"] for topic in results]


def end(peer: Peer, committed: bool = True, version: int = 4, **who: Any) -> int:
    asked = {"transactional_id": "id", "committed": committed, **who}
    return int(peer.ask("EndTxn", asked, version)["error_code"])


def test_epochs_and_who_is_fenced(broker: MockBroker, peer: Peer) -> None:
    first = initialize(peer)
    assert (first["error_code"], first["producer_epoch"]) == (0, 0)
    me = {"producer_id": first["producer_id"], "producer_epoch": 0}
    assert initialize(peer, **me) == {**first, "producer_epoch": 1}
    assert initialize(peer, **me) == {**first, "producer_epoch": 1}, "asked again, as the answer was lost"
    assert initialize(peer) == {**first, "producer_epoch": 2}
    assert initialize(peer, **me)["error_code"] == ErrorCode.PRODUCER_FENCED
    assert initialize(peer, 3, **me)["error_code"] == ErrorCode.INVALID_PRODUCER_EPOCH

    assert begin(peer, "orders", **me) == [ErrorCode.PRODUCER_FENCED]
    assert begin(peer, "orders", **me, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert end(peer, **me) == ErrorCode.PRODUCER_FENCED
    assert end(peer, **me, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(peer, producer_id=5, producer_epoch=2) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(peer, transactional_id="none", producer_id=-1) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    with closing(Peer(broker.bootstrap_servers.split(",")[1])) as other:
        assert initialize(other)["error_code"] == ErrorCode.NOT_COORDINATOR
        assert end(other, **{**me, "producer_epoch": 2}) == ErrorCode.NOT_COORDINATOR


def test_an_old_producer_gets_no_epoch_once_the_new_one_is_at_work(peer: Peer) -> None:
    first = initialize(peer)
    me = {"producer_id": first["producer_id"], "producer_epoch": 0}
    assert begin(peer, "orders", **me) == [0]
    assert end(peer, **me) == 0
    new = initialize(peer, **me)
    assert new["producer_epoch"] == 1
    at_work = {"producer_id": new["producer_id"], "producer_epoch": 1}
    assert end(peer, **at_work) == ErrorCode.INVALID_TXN_STATE, "the former one has ended its own"
    assert begin(peer, "orders", **at_work) == [0]
    assert initialize(peer, **me)["error_code"] == ErrorCode.PRODUCER_FENCED
    assert end(peer, **at_work) == 0


def test_a_producer_without_transactions_has_another_id_each_time(peer: Peer) -> None:
    """Also one that names the id that it has: Kafka knows epochs of transactional ids alone."""
    first = initialize(peer, transactional_id=None)
    known = {"producer_id": first["producer_id"], "producer_epoch": 7}
    again = initialize(peer, transactional_id=None, **known)
    assert again["producer_id"] != first["producer_id"]
    assert first["producer_epoch"] == again["producer_epoch"] == 0


def test_epochs_that_are_used_up_give_another_producer_id(broker: MockBroker, peer: Peer) -> None:
    first = initialize(peer)
    broker.transactions.by_id["id"].epoch = 32765
    assert initialize(peer) == {**first, "producer_epoch": 32766}
    after = initialize(peer)
    assert after["producer_epoch"] == 0
    assert after["producer_id"] != first["producer_id"]


def test_partitions_are_added_all_or_none(broker: MockBroker, peer: Peer) -> None:
    me = {key: value for key, value in initialize(peer).items() if key != "error_code"}
    unknown, other = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert begin(peer, "orders", "none", **me) == [other, unknown]
    broker.on("AddPartitionsToTxn", topic="orders").fail("CONCURRENT_TRANSACTIONS")
    assert begin(peer, "orders", **me) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert end(peer, **me) == ErrorCode.INVALID_TXN_STATE, "nothing is open"

    broker.on("AddPartitionsToTxn").fail("CONCURRENT_TRANSACTIONS", applied=True)
    assert begin(peer, "orders", **me) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert [end(peer, **me), end(peer, **me)] == [0, 0]
    assert end(peer, committed=False, **me) == ErrorCode.INVALID_TXN_STATE


def test_batches_outside_a_transaction_are_refused(broker: MockBroker, peer: Peer) -> None:
    me = {key: value for key, value in initialize(peer).items() if key != "error_code"}

    def produce(epoch: int) -> int:
        batch = confined(me["producer_id"], epoch)
        fields = {"acks": -1, "transactional_id": "id", "timeout_ms": 1}
        topic = {"name": "orders", "partition_data": [{"index": 0, "records": batch}]}
        told = peer.ask("Produce", {**fields, "topic_data": [topic]}, 9)
        return int(told["responses"][0]["partition_responses"][0]["error_code"])

    assert produce(0) == ErrorCode.INVALID_TXN_STATE
    assert begin(peer, "orders", **me) == [0]
    assert produce(1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert produce(0) == 0
    assert initialize(peer)["producer_epoch"] == 2, "1 is that of the marker"
    assert produce(0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.records("orders", committed=True) == []


def test_batches_in_a_partition_that_the_transaction_lacks_are_refused(
    broker: MockBroker, peer: Peer
) -> None:
    """They would get no marker, and hold up readers of committed records."""
    me = {key: value for key, value in initialize(peer).items() if key != "error_code"}
    assert begin(peer, "orders", **me) == [0]

    batch = confined(me["producer_id"], me["producer_epoch"])
    parts = [{"index": 1, "records": batch}]
    fields = {
        "acks": -1,
        "transactional_id": "id",
        "topic_data": [{"name": "orders", "partition_data": parts}],
    }
    with closing(Peer(broker.bootstrap_servers.split(",")[broker.leader("orders", 1) - 1])) as leader:
        (topic,) = leader.ask("Produce", fields, 9)["responses"]
    assert topic["partition_responses"][0]["error_code"] == ErrorCode.INVALID_TXN_STATE
    assert broker.records("orders", partition=1) == []


def confined(producer_id: int, epoch: int) -> bytes:
    """A batch of a transaction, by another client's encoder."""
    builder = aiokafka.record.default_records.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        batch_size=999,
    )
    builder.append(0, 1234, None, b"value", [])
    return bytes(builder.build())


def test_offsets_that_are_pending_are_unstable(broker: MockBroker, peer: Peer) -> None:
    me = {key: value for key, value in initialize(peer).items() if key != "error_code"}
    topic = {"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 5}]}
    commit = {"transactional_id": "id", "group_id": "g", **me, "topics": [topic]}

    def commit_code(**other: Any) -> int:
        told = peer.ask("TxnOffsetCommit", {**commit, **other}, 3)
        return int(told["topics"][0]["partitions"][0]["error_code"])

    def committed(stable: bool) -> tuple[int, int]:
        asked = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}
        told = peer.ask("OffsetFetch", {**asked, "require_stable": stable}, 7)["topics"][0]["partitions"][0]
        return told["committed_offset"], told["error_code"]

    assert commit_code() == ErrorCode.INVALID_TXN_STATE
    added = {"transactional_id": "id", "group_id": "g", **me}
    assert peer.ask("AddOffsetsToTxn", added, 3)["error_code"] == 0
    assert commit_code(producer_epoch=7) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert commit_code(member_id="nobody", generation_id=1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_code() == 0
    assert (committed(stable=False), committed(stable=True)) == (
        (-1, 0),
        (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT),
    )
    assert end(peer, **me) == 0
    assert committed(stable=True) == (5, 0)


@pytest.mark.parametrize("refused", ["of a group that was not added", "of a fenced producer"])
def test_a_member_of_the_group_does_not_make_up_for_a_producer_that_is_refused(
    broker: MockBroker, peer: Peer, refused: str
) -> None:
    broker.append("orders", [b"1"])
    me = {key: value for key, value in initialize(peer).items() if key != "error_code"}
    with GroupConsumer(broker.bootstrap_servers, "orders", group="g", enable_auto_commit=False) as consumer:
        assert consumer.fetch_record(timeout=WITHIN_S) is not None
        member = consumer.group_metadata()
        expected = ErrorCode.INVALID_TXN_STATE
        if refused == "of a fenced producer":
            added = {"transactional_id": "id", "group_id": "g", **me}
            assert peer.ask("AddOffsetsToTxn", added, 3)["error_code"] == 0
            initialize(peer)
            expected = ErrorCode.INVALID_PRODUCER_EPOCH
        topic = {"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 5}]}
        commit = {"transactional_id": "id", "group_id": "g", **me, "topics": [topic]}
        of_member = {"member_id": member.member_id, "generation_id": member.generation_id}
        told = peer.ask("TxnOffsetCommit", {**commit, **of_member}, 3)
    assert told["topics"][0]["partitions"][0]["error_code"] == expected


def test_the_last_stable_offset_bounds_look_ups_by_time_and_is_in_the_log(
    broker: MockBroker,
) -> None:
    """As in `Partition.fetchOffsetForTimestamp` and `UnifiedLog` of a real broker."""
    tp = TopicPartition("orders", 0)
    with (
        TransactionalProducer(broker.bootstrap_servers, "id", partitioner="explicit") as producer,
        Admin(broker.bootstrap_servers) as admin,
    ):

        def find(at: OffsetAt, level: IsolationLevel = IsolationLevel.READ_COMMITTED) -> int | None:
            return list_offsets(admin.router, {tp: at}, isolation_level=level)[tp].offset

        broker.append("orders", [Record("orders", 0, 0, None, b"before", timestamp_ms=1_000)])
        producer.begin()
        producer.send("orders", value=b"inside", partition=0, timestamp_ms=2_000).result(timeout=WITHIN_S)
        broker.append("orders", [Record("orders", 0, 0, None, b"behind", timestamp_ms=3_000)])
        assert [find(OffsetAt.timestamp(at)) for at in (0, 1_500, 2_500)] == [0, None, None]
        assert find(OffsetAt.timestamp(1_500), IsolationLevel.READ_UNCOMMITTED) == 1
        assert find(OffsetAt.LATEST) == 1
        assert find(OffsetAt.LATEST, IsolationLevel.READ_UNCOMMITTED) == 3
        assert find(OffsetAt.timestamp(2_500), IsolationLevel.READ_UNCOMMITTED) == 2
        admin.delete_records({tp: 2})
        assert find(OffsetAt.LATEST) == 2
        producer.commit()
        assert find(OffsetAt.timestamp(2_500)) == 2
