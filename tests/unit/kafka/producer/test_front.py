"""The front of the producer: which calls wait, which records are refused first, which memory is freed."""

import logging
import os
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from support.brokers.produce_cluster import NO_ANSWER, ProduceCluster, refused
from support.brokers.scripted_broker import Silence, properties
from support.producer.producing import buffered, wait_until

from spark_kafka_native.kafka import (
    BrokerError,
    BufferFullError,
    ClientConfig,
    ConfigError,
    DeadlineExceededError,
    KafkaError,
    PartlyTakenError,
    Producer,
    ProducerClosedError,
    ProducerConfig,
    RecordError,
    TopicPartition,
)
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.producer.accumulating.topic_buffer import TopicBuffer
from spark_kafka_native.kafka.producer.spill_folder import NewEntry, SpillError, SpillFolder
from spark_kafka_native.kafka.protocol.api.configs import DescribeConfigsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.encode import encode_record_batch

pytestmark = pytest.mark.timed(0.1)

TP = TopicPartition("t", 0)


@pytest.fixture
def cluster():
    with ProduceCluster() as running:
        running.create("t", 2)
        yield running


@pytest.fixture
def produce(cluster):
    made = []

    def make(on_error=None, partitioner=None, client=None, **config):
        config = {"linger_ms": 10_000, "delivery_timeout_ms": 10_000} | config
        settings = ClientConfig.from_properties(properties(cluster.bootstrap_servers, **(client or {})))
        made.append(Producer(settings, ProducerConfig(**config), on_error=on_error, partitioner=partitioner))
        return made[-1]

    yield make
    for producer in made:
        producer.close(1)


def numbers(start, stop):
    return [b"%d" % i for i in range(start, stop)]


def columns(values, **others):
    return pa.record_batch({"value": pa.array(values, pa.binary()), **others})


class TestMaxBlock:
    def test_a_missing_topic_costs_max_block_ms(self, produce):
        producer = produce(max_block_ms=300)
        for _ in range(3):  # the second is asked for as the first: it was never there
            began = time.monotonic()
            with pytest.raises(KafkaError):  # on a busy machine the time may be over before the first answer
                producer.send("missing", value=b"x")
            assert time.monotonic() - began < 20

    def test_a_topic_that_was_only_asked_for_gets_no_long_patience(self, produce, monkeypatch):
        monkeypatch.setattr("spark_kafka_native.kafka.cluster.retry_policy.NEW_TOPIC_WAIT_MS", 100)
        producer = produce()
        for _ in range(2):
            with pytest.raises(BrokerError, match="missing") as error:
                producer.send("missing", value=b"x")
            assert error.value.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_a_broker_that_does_not_answer_costs_max_block_ms(self, cluster, produce):
        cluster[1].on(MetadataRequest, Silence)
        producer = produce(max_block_ms=300, client={"request_timeout_ms": 20_000})
        began = time.monotonic()
        with pytest.raises(KafkaError):
            producer.send("t", value=b"x")
        assert time.monotonic() - began < 10


class TestManyTopics:
    def test_many_new_topics_are_looked_up_at_once(self, cluster, produce):
        names = [f"many-{i}" for i in range(60)]
        for name in names:
            cluster.create(name)
        producer = produce()
        delivery = producer.send_columns(columns(numbers(0, 60), topic=names))
        assert delivery.result(60).offset.tolist() == [0] * 60
        assert len(cluster[1].requests(MetadataRequest)) <= 3
        assert len(cluster[1].requests(DescribeConfigsRequest)) == 1

    def test_one_that_is_missing_is_named_and_nothing_is_taken(self, produce):
        producer = produce(max_block_ms=3_000)
        with pytest.raises(KafkaError, match="nowhere"):
            producer.send_columns(columns(numbers(0, 2), topic=["t", "nowhere"]))
        assert producer.stats().buffered_records == 0
        assert buffered(producer) == (0, 0)


class TestSlices:
    def test_a_partitioner_that_raises_in_a_later_slice(self, cluster, produce):
        def fail_later(_topic, keys, _count):
            calls.append(len(keys))
            if len(calls) > 2:
                raise ZeroDivisionError("mine")
            return np.zeros(len(keys), np.int32)

        calls = []
        producer = produce(partitioner=fail_later, max_buffered_records=40)
        with pytest.raises(PartlyTakenError, match="20 of 35 rows were taken") as error:
            producer.send_columns(columns(numbers(0, 35)), "t")
        assert isinstance(error.value.__cause__, ZeroDivisionError)
        assert "mine" in str(error.value)
        producer.flush(60)
        status = error.value.delivery.status().tolist()
        assert status == [2] * 20 + [0] * 15
        assert cluster.values(TP) == numbers(0, 20)
        assert buffered(producer) == (0, 0)

    def test_rows_are_told_by_their_number_in_what_was_handed_over(self, cluster, produce):
        def refuse(_topic, keys, count):
            wanted = [int(key.as_py()) for key in keys]
            return np.array([count if key == 25 else 0 for key in wanted], np.int32)

        cluster.create("u")
        producer = produce(partitioner=refuse, max_buffered_records=40)
        topics = ["u", "t"] * 20
        keys = pa.array([b"25" if i == 31 else b"0" for i in range(40)], pa.binary())
        with pytest.raises(PartlyTakenError, match="row 31 for topic t: the partitioner function") as error:
            producer.send_columns(columns(numbers(0, 40), topic=topics, key=keys))
        assert error.value.__cause__.row == 31
        producer.flush(60)
        taken = [i for i in range(40) if error.value.delivery.status()[i] == 2]
        assert taken == sorted([*range(0, 40, 2), *range(1, 20, 2)])

    def test_a_missing_partition_is_refused_before_anything_is_taken(self, cluster, produce):
        producer = produce(partitioner="explicit", max_buffered_records=40)
        partition = pa.array([0] * 30 + [None], pa.int32())
        with pytest.raises(RecordError, match="row 30 for topic t: no partition is given"):
            producer.send_columns(columns(numbers(0, 31), partition=partition), "t")
        with pytest.raises(RecordError, match="row 30 for topic t: there is no partition 7"):
            producer.send_columns(columns(numbers(0, 31)), "t", np.array([0] * 30 + [7]))
        with pytest.raises(RecordError, match="no partition is given"):
            producer.send_columns(columns(numbers(0, 2)), "t")
        producer.flush(60)
        assert cluster.values(TP) == []

    def test_rows_of_several_topics_know_where_they_are(self, cluster, produce):
        cluster.create("u")
        producer = produce(max_buffered_records=16)
        sent = columns(numbers(0, 30), topic=["t", "u", "u"] * 10, partition=pa.array([0] * 30))
        found = producer.send_columns(sent).result(60)
        for row, (topic, offset) in enumerate(zip(found.topic, found.offset, strict=True)):
            where = TopicPartition(found.topics[topic], 0)
            assert cluster.values(where)[offset] == b"%d" % row

    @pytest.mark.parametrize("records", [True, False])
    def test_columns_get_their_turn_while_others_send(self, produce, records):
        limits = {"max_buffered_records": 50} if records else {"buffer_memory": 20_000}
        producer = produce(linger_ms=1, max_block_ms=20_000, batch_size=2_000, **limits)
        producer.send("t", value=b"first").result(60)
        stop = threading.Event()

        def send():
            while not stop.is_set():
                producer.send("t", value=b"x" * 200, partition=1)

        threads = [threading.Thread(target=send, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            sent = producer.send_columns(columns([b"%d" % i + b"y" * 200 for i in range(200)]), "t", 0)
        finally:
            stop.set()
        assert len(sent.result(60).offset) == 200
        for thread in threads:
            thread.join(60)
        producer.flush(60)
        assert buffered(producer) == (0, 0)

    def test_a_full_buffer_is_told(self, cluster, produce):
        producer = produce(linger_ms=0, buffer_memory=4_000, max_block_ms=200)
        producer.send("t", value=b"0").result(60)
        cluster.delay_s = 2
        with pytest.raises(KafkaError) as error:
            producer.send_columns(columns([b"x" * 900] * 20), "t", 0)
        assert isinstance(error.value.__cause__ or error.value, BufferFullError)


class TestFlush:
    def test_flush_is_not_held_up_by_somebody_who_partitions(self, produce):
        entered, go_on = threading.Event(), threading.Event()

        def slow(_topic, keys, _count):
            entered.set()
            go_on.wait(20)
            return np.zeros(len(keys), np.int32)

        producer = produce(partitioner=slow)
        thread = threading.Thread(target=producer.send_columns, args=(columns([b"0"]), "t"), daemon=True)
        thread.start()
        entered.wait(10)
        producer.flush(60)  # no call waits for records that are not taken yet
        assert thread.is_alive()
        go_on.set()
        thread.join(60)

    def test_flush_ends_in_time_where_records_wait_behind_somebody_who_partitions(self, produce, monkeypatch):
        entered, go_on = threading.Event(), threading.Event()

        def slow(_topic, keys, _count):
            entered.set()
            go_on.wait(20)
            return np.zeros(len(keys), np.int32)

        producer = produce(partitioner=slow)
        early = producer.send("t", value=b"early", partition=1)
        thread = threading.Thread(target=producer.send_columns, args=(columns([b"0"]), "t"), daemon=True)
        thread.start()
        entered.wait(10)
        looks = []
        holds_since = TopicBuffer.holds_since
        monkeypatch.setattr(
            TopicBuffer, "holds_since", lambda self, moment: looks.append(1) or holds_since(self, moment)
        )
        with pytest.raises(DeadlineExceededError):
            producer.flush(0.3)
        assert thread.is_alive()
        assert 0 < len(looks) < 5_000  # it sleeps between two looks: without that they are 100,000 or more
        go_on.set()
        thread.join(60)
        assert early.result(60).offset == 0

    def test_what_is_to_be_replayed_is_part_of_it(self, cluster, produce, tmp_path):
        keep(tmp_path, cluster, 0, b"kept")
        cluster[1].on(MetadataRequest, Silence)
        producer = produce(spill_dir=str(tmp_path), client={"request_timeout_ms": 1_000})
        with pytest.raises(DeadlineExceededError):
            producer.flush(0.2)
        cluster[1].on(MetadataRequest, cluster.metadata)
        producer.flush(60)
        assert cluster.values(TP) == [b"kept"]

    def test_what_is_to_be_replayed_is_sent_by_a_producer_that_is_closed_meanwhile(
        self, cluster, produce, tmp_path
    ):
        keep(tmp_path, cluster, 0, b"kept")
        asked, go_on = threading.Event(), threading.Event()

        def metadata(request, version):
            if request.topics:
                asked.set()
                go_on.wait(60)
            return cluster.metadata(request, version)

        cluster[1].on(MetadataRequest, metadata)
        producer = produce(spill_dir=str(tmp_path))
        assert asked.wait(60)
        closing = threading.Thread(target=producer.close, args=(60,))
        closing.start()
        wait_until(lambda: producer.closed)
        topics, open_for_records = producer._topics, []
        grown = topics._grown
        topics._grown = lambda buffer: open_for_records.append(not buffer.closed) or grown(buffer)
        go_on.set()
        closing.join(60)
        assert not closing.is_alive()
        assert open_for_records == [False]
        assert cluster.values(TP) == [b"kept"]
        assert not list(tmp_path.glob("*.batches"))

    def test_spilled_records_of_a_partition_that_is_not_there(self, cluster, produce, tmp_path, caplog):
        keep(tmp_path, cluster, 5, b"kept")
        producer = produce(spill_dir=str(tmp_path))
        with pytest.raises(SpillError, match="1 records of topic t: the topic has 2 partitions only"):
            producer.flush(60)
        assert "partitions [5], stay where they are" in caplog.text
        assert producer.send("t", value=b"other", partition=0).result(60).offset == 0
        producer.close()
        assert list(tmp_path.glob("*.batches"))

    def test_it_is_sent_when_the_partition_appears(self, cluster, produce, tmp_path):
        keep(tmp_path, cluster, 5, b"kept")
        producer = produce(spill_dir=str(tmp_path), client={"metadata_max_age_ms": 1_000})
        with pytest.raises(SpillError):
            producer.flush(60)
        for index in range(2, 6):
            cluster.logs[TopicPartition("t", index)] = type(cluster.logs[TP])(leader=1)
        assert producer.send("t", value=b"new", partition=5).result(60).offset == 1
        producer.flush(60)
        assert cluster.values(TopicPartition("t", 5)) == [b"kept", b"new"]


def keep(folder, cluster, partition, value):
    data = encode_record_batch(RecordColumns(length=1, value=pa.array([value])), now_ms=1)
    spill = SpillFolder(str(folder))
    spill.keep(
        [NewEntry(TopicPartition("t", partition), cluster.topic_ids["t"], 1, False, "why", bytes(data))]
    )
    spill.close()


class TestLettingGo:
    def test_after_a_fatal_failure(self, cluster, produce, tmp_path):
        producer = produce(linger_ms=0, batch_records=1, spill_dir=str(tmp_path))
        producer.send("t", value=b"0", partition=0).result(60)
        cluster.script(TP, refused(ErrorCode.INVALID_PRODUCER_EPOCH), refused(ErrorCode.PRODUCER_FENCED))
        producer.send("t", value=b"1", partition=0).exception(60)
        refusal = None
        while refusal is None:
            try:
                producer.send("t", value=b"2", partition=0).exception(60)
            except ProducerClosedError as error:
                refusal = error
        producer.close()
        SpillFolder(str(tmp_path)).close()
        assert not producer._router._brokers.live()

    def test_of_two_that_close_the_earlier_deadline_counts(self, cluster, produce):
        producer = produce()
        producer.send("t", value=b"0", partition=0).result(60)
        cluster.script(TP, NO_ANSWER)
        late = producer.send("t", value=b"1", partition=0)
        patient = threading.Thread(target=producer.close, args=(60,), daemon=True)
        patient.start()
        began = time.monotonic()
        producer.close(0.3)
        patient.join(60)
        assert not patient.is_alive()
        assert time.monotonic() - began < 10
        assert late.exception(0) is not None

    def test_a_forked_child_does_not_keep_the_folder(self, produce, tmp_path):
        producer = produce(spill_dir=str(tmp_path))
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.read(read, 1)
            os._exit(0)
        try:
            producer.close()
            SpillFolder(str(tmp_path)).close()
        finally:
            os.write(write, b"\0")
            os.waitpid(child, 0)

    def test_a_child_of_a_parent_that_died_does_not_keep_the_folder(self, produce, tmp_path):
        """As `fork` and then SIGKILL of the parent: only what the child has counts."""
        producer = produce(spill_dir=str(tmp_path))
        producer.disown()
        SpillFolder(str(tmp_path)).close()

    def test_waiting_in_a_forked_child_ends(self, produce):
        producer = produce()
        delivery = producer.send("t", value=b"0")
        child = os.fork()
        if not child:
            told = 0
            for wait in (delivery.result, delivery.exception, producer.flush):
                try:
                    wait()
                except ProducerClosedError:
                    told += 1
            try:
                delivery.add_done_callback(print)
            except ProducerClosedError:
                told += 1
            producer.close()
            os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        assert delivery.result(60).offset == 0


class TestCallbacks:
    @pytest.mark.parametrize("wrong", [lambda: sys.exit(1), lambda: 1 / 0])
    def test_the_sender_outlives_them(self, cluster, produce, wrong, caplog):
        caplog.set_level(logging.ERROR)
        producer = produce(on_error=lambda *_: wrong())
        producer.send("t", value=b"0", partition=0).add_done_callback(lambda _: wrong())
        producer.flush(60)
        cluster.script(TP, refused(ErrorCode.INVALID_RECORD))
        producer.send("t", value=b"1", partition=0).exception(60)
        assert producer.send("t", value=b"2", partition=0).result(60).offset == 1
        assert "a delivery callback failed" in caplog.text
        assert "on_error failed" in caplog.text


def test_a_compression_level_that_is_none_is_refused_at_once(produce):
    for codec, level in (("zstd", 99), ("gzip", 10), ("snappy", 1), ("none", 1)):
        with pytest.raises(ConfigError, match=f"compression.level={level}"):
            produce(compression_type=codec, compression_level=level)


@pytest.mark.parametrize("partition", [1.7, "1", np.float64(1)])
def test_a_partition_that_is_no_whole_number_is_refused(cluster, produce, partition):
    producer = produce()
    with pytest.raises(TypeError, match="whole number"):
        producer.send("t", value=b"x", partition=partition)
    producer.send("t", value=b"x", partition=np.int64(1)).result(60)
    assert cluster.values(TopicPartition("t", 1)) == [b"x"]


def test_they_say_what_they_are(cluster, produce):
    producer = produce()
    delivery = producer.send("t", value=b"x", partition=0)
    assert repr(delivery) == "<Delivery under way>"
    assert "1 under way" in repr(producer)
    delivery.result(60)
    assert repr(delivery) == "<Delivery PERSISTED t-0 offset 0>"
    sent = producer.send_columns(columns([b"a", b"b"]), "t", 0)
    assert repr(sent) == "<ColumnsDelivery 2 records, 2 under way, 0 failed>"
    sent.result(60)
    assert repr(sent) == "<ColumnsDelivery 2 records, 0 under way, 0 failed>"
    cluster.script(TP, refused(ErrorCode.INVALID_RECORD))
    failed = producer.send("t", value=b"x", partition=0)
    failed.exception(60)
    assert repr(failed).startswith("<Delivery failed: t-0: 1 record not written: ")
    producer.close()
    assert repr(producer).endswith("ended: 3 records delivered, 1 failed, 0 under way>")
