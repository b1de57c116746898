"""Errors between the caller and a batch: reported to the affected caller, and in the way of no other."""

import pickle
import time
from asyncio import CancelledError

import numpy as np
import pyarrow as pa
import pytest
from support.brokers.produce_cluster import ProduceCluster, refused
from support.brokers.scripted_broker import properties

from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.accumulating import open_batches
from spark_kafka_native.kafka.producer.accumulating.batch import Batch, BatchEncoder
from spark_kafka_native.kafka.producer.accumulating.records_in import columns_by_topic
from spark_kafka_native.kafka.producer.accumulating.topic_buffer import TopicBuffer
from spark_kafka_native.kafka.producer.delivery import PartlyTakenError
from spark_kafka_native.kafka.producer.errors import (
    BufferFullError,
    DeliveryError,
    DeliveryStatus,
    ProducerClosedError,
    RecordError,
)
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.records import compression
from spark_kafka_native.kafka.records.columns import HEADERS_TYPE

pytestmark = pytest.mark.timed(0.1)

TP = TopicPartition("t", 0)


@pytest.fixture
def cluster():
    with ProduceCluster() as running:
        running.create("t", 2)
        yield running


@pytest.fixture
def produce(cluster):
    """A producer with these settings that lets records wait for each other."""
    made = []

    def make(on_error=None, partitioner=None, **config):
        config = {"batch_records": 100, "linger_ms": 10_000, "delivery_timeout_ms": 10_000} | config
        client = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
        made.append(Producer(client, ProducerConfig(**config), on_error=on_error, partitioner=partitioner))
        return made[-1]

    yield make
    for producer in made:
        producer.close(60)


def columns(values, **others):
    return pa.record_batch({"value": values, **others})


def numbers(start, stop):
    return [b"%d" % i for i in range(start, stop)]


@pytest.mark.parametrize("singly", [True, False])
def test_records_that_cannot_be_encoded_are_said_to_be_lost(cluster, produce, monkeypatch, singly):
    def no_memory(*_arguments):
        monkeypatch.undo()
        raise MemoryError

    told = []
    producer = produce(on_error=lambda *arguments: told.append(arguments))
    monkeypatch.setattr(BatchEncoder, "encode", no_memory)
    if singly:
        lost = producer.send("t", value=b"lost", partition=0)
    else:
        lost = producer.send_columns(columns([b"lost"]), "t", 0)
    producer.flush(60)
    with pytest.raises(DeliveryError, match="could not be encoded: MemoryError") as error:
        lost.result(60)
    assert error.value.status is DeliveryStatus.NOT_PERSISTED
    assert [(where, retriable) for where, _, _, retriable in told] == [(TP, False)]
    producer.send("t", value=b"next", partition=0).result(60)
    assert cluster.values(TP) == [b"next"]
    assert producer.stats().buffered_records == 0


def test_strings_and_binary_meet_in_one_batch(cluster, produce):
    producer = produce()
    producer.send_columns(columns(["a"], key=pa.array(["k"], pa.large_string())), "t", 0)
    producer.send_columns(columns([b"\xff"], key=pa.array([b"\xfe"])), "t", 0)
    producer.send("t", value=b"\xfd", partition=0)
    producer.flush(60)
    assert cluster.values(TP) == [b"a", b"\xff", b"\xfd"]


@pytest.mark.parametrize(
    ("record", "error", "message"),
    [
        ({"timestamp_ms": 2**63}, RecordError, "timestamp"),
        ({"timestamp_ms": -2}, RecordError, "timestamp"),
        ({"timestamp_ms": "now"}, TypeError, "milliseconds, not str"),
        ({"headers": [("\ud800", b"")]}, RecordError, "header key"),
    ],
)
def test_a_record_that_nothing_can_carry_is_refused_at_once(cluster, produce, record, error, message):
    producer = produce()
    producer.send("t", value=b"before", partition=0)
    with pytest.raises(error, match=message):
        producer.send("t", value=b"x", partition=0, **record)
    producer.send("t", value=b"after", partition=0, timestamp_ms=np.int64(5))
    producer.flush(60)
    assert cluster.values(TP) == [b"before", b"after"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"value": b"x" * 3_000}, "takes 30.. bytes"), ({"partition": 7}, "there is no partition 7")],
    ids=["too large", "no such partition"],
)
def test_a_row_that_is_refused_has_its_number_in_the_columns_of_all_topics(
    cluster, produce, changed, message
):
    cluster.create("u", 2)
    cluster.max_message_bytes = 2_000
    rows = [{"topic": topic, "value": b"%d" % i, "partition": 0} for i, topic in enumerate("uttuu")]
    rows[3] |= changed
    producer = produce()
    with pytest.raises(RecordError, match=f"row 3 for topic u: .*{message}") as error:
        producer.send_columns(pa.RecordBatch.from_pylist(rows))
    assert error.value.row == 3


@pytest.mark.parametrize("bad", [{"value": b"x" * 3_000}, {"partition": 7}], ids=["too large", "partition"])
@pytest.mark.parametrize("place", [0, 1])
def test_no_row_of_any_topic_is_taken_where_one_is_refused(cluster, produce, bad, place):
    """The caller mends the row and sends all of them again: none is there twice."""
    cluster.create("u", 2)
    cluster.max_message_bytes = 2_000
    rows = [{"topic": topic, "value": topic.encode(), "partition": 0} for topic in ("t", "u")]
    producer = produce()
    refused_rows = [row | bad if number == place else row for number, row in enumerate(rows)]
    with pytest.raises(RecordError, match=f"row {place} for topic {rows[place]['topic']}"):
        producer.send_columns(pa.RecordBatch.from_pylist(refused_rows))
    assert producer.stats().buffered_records == 0
    producer.send_columns(pa.RecordBatch.from_pylist(rows))
    producer.flush(60)
    assert cluster.values(TP) == [b"t"]
    assert cluster.values(TopicPartition("u", 0)) == [b"u"]


def test_the_explicit_partitioner_wants_a_partition_at_once(cluster, produce):
    producer = produce(partitioner="explicit")
    producer.send("t", value=b"0", partition=0)
    with pytest.raises(RecordError, match="no partition is given"):
        producer.send("t", value=b"1")
    producer.flush(60)
    assert cluster.values(TP) == [b"0"]


def test_records_without_a_partition_are_said_to_be_lost(cluster, produce):
    def fail_once(_keys, sizes, _targets):
        if not failed:
            failed.append(True)
            raise ZeroDivisionError("mine")
        return np.zeros(len(sizes), np.int32)

    failed, reported = [], []
    producer = produce(partitioner=fail_once, on_error=lambda *arguments: reported.append(arguments))
    lost = [producer.send("t", value=value) for value in numbers(0, 3)]
    producer.flush(60)
    assert ["ZeroDivisionError('mine')" in str(one.exception(60)) for one in lost] == [True] * 3
    assert {one.exception(60).topic_partition for one in lost} == {TopicPartition("t", -1)}
    assert [topic_partition for topic_partition, *_ in reported] == [TopicPartition("t", -1)]
    producer.send("t", value=b"next").result(60)
    assert cluster.values(TP) == [b"next"]


def test_rows_that_wait_are_sent_where_single_records_behind_them_find_no_memory(
    cluster, produce, monkeypatch
):
    def no_memory(*_arguments):
        monkeypatch.undo()
        raise MemoryError

    producer = produce(batch_records=3)
    waiting = producer.send_columns(columns([b"0"]), "t", 0)
    lost = [producer.send("t", value=b"lost", partition=0) for _ in range(3)]
    monkeypatch.setattr(open_batches, "_hold", no_memory)  # when a batch of the first three is closed
    producer.flush(60)
    assert waiting.result(0).offset.tolist() == [0]
    assert ["MemoryError" in str(one.exception(0)) for one in lost] == [True] * 3
    assert cluster.values(TP) == [b"0"]
    assert producer.stats().buffered_records == 0


def test_a_partitioner_that_sends_is_refused_and_takes_no_record_away(cluster, produce):
    def send(_topic, keys, _count):
        with pytest.raises(RuntimeError, match=r"only close\(\) is possible there"):
            producer.send("t", value=b"inner", partition=0)
        return np.zeros(len(keys), np.int32)

    producer = produce(partitioner=send)
    single = producer.send("t", value=b"0", partition=0)
    assert producer.send_columns(columns([b"1"]), "t").result(60).offset.tolist() == [1]
    assert single.result(60).offset == 0
    assert cluster.values(TP) == [b"0", b"1"]


class Panic(BaseException):
    """As that of an extension in Rust."""


@pytest.mark.parametrize("where", ["partitioner", "codec"])
@pytest.mark.parametrize("kind", [Panic, SystemExit, CancelledError])
def test_what_a_callers_code_raises_in_the_senders_thread_fails_its_own_records(
    cluster, produce, monkeypatch, kind, where
):
    def place(_topic, keys, _count):
        if where == "partitioner" and b"bad" in keys.to_pylist():
            raise kind("mine")
        return np.zeros(len(keys), np.int32)

    def pack(data, _level):
        if where == "codec" and b"bad" in bytes(data):
            raise kind("mine")
        return bytes(data)

    monkeypatch.setattr(compression, "_REGISTERED", {})
    compression.register_codec("zstd", pack, lambda data, _max_bytes: data)
    cluster.create("u")
    told = []
    producer = produce(
        partitioner=place,
        compression_type="zstd",
        on_error=lambda where, *_: told.append(where.topic),
    )
    lost = producer.send("t", key=b"bad")
    kept = producer.send("u", value=b"kept")
    producer.flush(60)
    assert repr(kind("mine")) in str(lost.exception(60))
    assert lost.status is DeliveryStatus.NOT_PERSISTED
    assert told == ["t"]
    assert producer.stats().failed_records == 1
    assert kept.result(60).offset == 0
    assert producer.send("t", value=b"next").result(60).offset == 0
    assert producer.stats().buffered_records == 0


@pytest.mark.parametrize("kind", [Panic, SystemExit, KeyboardInterrupt])
def test_what_a_callers_code_raises_in_its_own_thread_is_the_callers(cluster, produce, kind):
    def fail_once(_topic, keys, _count):
        if not failed:
            failed.append(True)
            raise kind("mine")
        return np.zeros(len(keys), np.int32)

    failed = []
    producer = produce(partitioner=fail_once)
    single = producer.send("t", value=b"single")
    with pytest.raises(kind, match="mine"):
        producer.send_columns(columns([b"not taken"]), "t")
    assert single.result(60).offset == 0
    producer.flush(60)
    assert cluster.values(TP) == [b"single"]


def test_nothing_is_sent_once_the_producer_cannot_go_on(cluster, produce):
    producer = produce(batch_records=10, linger_ms=400)
    producer.send("t", value=b"0", partition=0).result(60)
    cluster.delay_s = 0.1
    cluster.script(TP, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    first = producer.send_columns(columns(numbers(1, 11)), "t", 0)
    waiting = producer.send_columns(columns([b"11"]), "t", 0)
    while not first.done():  # waiting for it would hurry the other
        time.sleep(0.01)
    assert waiting.exceptions(5)
    assert cluster.values(TP) == [b"0"]


def test_rows_of_a_call_that_close_overtakes_are_refused(produce, monkeypatch):
    producer = produce()
    append = TopicBuffer.append_columns

    def close_first(self, *arguments):
        producer.close(2)
        append(self, *arguments)

    monkeypatch.setattr(TopicBuffer, "append_columns", close_first)
    with pytest.raises(ProducerClosedError):
        producer.send_columns(columns([b"1"]), "t", 0)
    assert producer.stats().buffered_records == 0


def test_what_waits_ends_with_the_thread_that_would_send_it(produce, monkeypatch):
    producer = produce()
    waiting = producer.send_columns(columns([b"1"]), "t", 0)

    def fail(*_arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(producer._sender.loop.failures, "expire", fail)
    producer._sender.wake()
    producer._sender._thread.join(60)
    (error,) = waiting.exceptions(5)
    assert "ZeroDivisionError" in str(error)


def test_rooms_of_idle_topics_are_given_back(cluster, produce):
    producer = produce(buffer_memory=4 << 20, max_block_ms=500)
    for number in range(70):
        cluster.create(f"many-{number}")
        producer.send(f"many-{number}", value=b"x").result(60)


def test_waiting_in_a_callback_is_refused(cluster, produce):
    def wait(*_arguments):
        sent = producer.send("t", value=b"1", partition=1)
        for doing in (producer.flush, lambda: sent.result(1)):
            try:
                doing()
            except RuntimeError as error:
                told.append(str(error))

    told = []
    producer = produce(on_error=wait)
    cluster.script(TP, refused(ErrorCode.INVALID_RECORD))
    producer.send_columns(columns([b"0"] * 100), "t", 0)
    producer.flush(60)
    assert ["in a callback" in one for one in told] == [True, True]


def test_a_flush_returns_once_everybody_was_told(produce, monkeypatch):
    report = Batch.report

    def report_slowly(self, outcome):
        time.sleep(0.2)
        report(self, outcome)

    monkeypatch.setattr(Batch, "report", report_slowly)
    producer = produce()
    delivery = producer.send_columns(columns([b"1"]), "t", 0)
    producer.flush(60)
    assert delivery.done()


def test_a_call_that_was_taken_in_part_says_so(cluster, produce):
    producer = produce(max_buffered_records=10, max_block_ms=100, batch_records=10)
    producer.send("t", value=b"first", partition=0).result(60)
    cluster.delay_s = 1
    with pytest.raises(PartlyTakenError, match="10 of 25 rows were taken") as error:
        producer.send_columns(columns(numbers(0, 25)), "t", 0)
    assert isinstance(error.value.__cause__, BufferFullError)
    assert pickle.loads(pickle.dumps(error.value)).taken == 10
    assert sum(one.records for one in error.value.delivery.exceptions(5)) == 15
    assert cluster.values(TP) == [b"first", *numbers(0, 10)]


def test_a_topic_twice_in_a_dictionary_is_one_topic():
    topics = pa.DictionaryArray.from_arrays([0, 1, 0, 1], pa.array(["t", "t"]))
    (part,) = columns_by_topic(columns(numbers(0, 4), topic=topics), None)
    assert part.columns.value.to_pylist() == numbers(0, 4)


def test_headers_are_taken_by_their_place_whatever_their_fields_are_called():
    def headers(key, value):
        return pa.array(
            [[{key: "k", value: b"v"}], None], pa.list_(pa.struct({key: pa.string(), value: pa.binary()}))
        )

    for names in (("key", "value"), ("key", "val"), ("a", "b")):
        (part,) = columns_by_topic(columns(numbers(0, 2), headers=headers(*names)), "t")
        assert part.columns.headers.type == HEADERS_TYPE
        assert [one or [] for one in part.columns.headers.to_pylist()] == [[{"key": "k", "value": b"v"}], []]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_a_header_key_that_is_not_utf8_is_refused(kind):
    keys = pa.array([b"\xff"], pa.binary()).view(kind)
    structs = pa.StructArray.from_arrays([keys, pa.array([b"v"])], names=["key", "value"])
    given = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), structs)
    with pytest.raises(RecordError, match="not UTF-8"):
        columns_by_topic(columns([b"x"], headers=given), "t")
