"""Ctrl-C at any moment: accepted records are delivered or reported as failed, and nothing is locked or
counted wrong."""

import contextlib
import itertools
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from support.brokers.produce_cluster import ProduceCluster
from support.brokers.scripted_broker import properties
from support.interrupts.keyboard_interrupts import repeat_until_interrupted
from support.interrupts.signal_steps import run_at, steps_of
from support.producer.producing import buffered

from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.accumulating import open_batches, topic_buffer
from spark_kafka_native.kafka.producer.producer import Producer

# One in a destructor.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PARTITIONS = [TopicPartition("t", i) for i in range(3)]


@pytest.fixture
def cluster():
    with ProduceCluster() as running:
        running.create("t", len(PARTITIONS))
        yield running


@pytest.fixture(autouse=True)
def imported():
    pa.array([b""])  # its first use imports what must not be interrupted


def open_producer(cluster, on_error=None, **config):
    client = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
    config = {"linger_ms": 1, "batch_size": 2_000, "delivery_timeout_ms": 30_000} | config
    return Producer(client, ProducerConfig(**config), on_error=on_error)


def in_log(cluster):
    return [value for tp in PARTITIONS for value in cluster.values(tp)]


def use_somehow(producer, rng, numbers, accepted, begun):
    """Send this way or that, or flush; ``begun`` are the records of the call that is under way."""
    match rng.randrange(10):
        case 0:
            producer.flush(60)
        case 1 | 2 | 3:
            begun[:] = [b"%08d" % next(numbers) for _ in range(rng.choice([1, 20, 300]))]
            producer.send_columns(pa.record_batch({"value": pa.array(begun, pa.binary())}), "t")
            accepted += begun
            begun.clear()
        case _:
            for _ in range(50):
                begun[:] = [b"%08d" % next(numbers)]
                producer.send("t", value=begun[0], key=None if rng.random() < 0.5 else begun[0])
                accepted += begun
                begun.clear()


@pytest.mark.parametrize("seed", range(3))
def test_interrupts_lose_nothing(cluster, seed):
    rng = random.Random(seed)
    numbers, accepted, maybe, failed = itertools.count(), [], [], []
    producer = open_producer(
        cluster, lambda _tp, records, _error, _retriable: failed.extend(records.value.to_pylist())
    )
    producer.send("t", value=b"first")
    for _ in range(40):
        begun = []
        use = partial(use_somehow, producer, rng, numbers, accepted, begun)
        repeat_until_interrupted(rng.uniform(0.0005, 0.03), use)
        maybe += begun
    producer.flush(60)
    found = in_log(cluster)
    assert len(found) == len(set(found)), "written twice"
    missing = set(accepted) - set(found) - set(failed)
    assert not missing, f"{len(missing)} of {len(accepted)} records are lost"
    assert set(found) <= {*accepted, *maybe, b"first"}
    assert buffered(producer) == (0, 0)
    assert producer.stats().buffered_records == 0
    producer.close(60)
    assert ", ended: " in repr(producer)


@pytest.mark.parametrize("seed", range(8))
def test_an_interrupted_close_can_be_finished(cluster, tmp_path, seed):
    rng = random.Random(seed)
    producer = open_producer(cluster, spill_dir=str(tmp_path))
    sent = [b"%d" % i for i in range(200)]
    for value in sent:
        producer.send("t", value=value)
    cluster.delay_s = 0.01
    repeat_until_interrupted(rng.uniform(0.0001, 0.02), lambda: producer.close(60))
    producer.close(60)
    assert ", ended: " in repr(producer)
    assert sorted(in_log(cluster)) == sorted(sent)
    open_producer(cluster, spill_dir=str(tmp_path)).close()


@pytest.mark.parametrize(("where", "batch_size"), [("cut", 400), ("hold", 8_000), ("_close", 400)])
def test_rows_that_were_on_the_move_are_where_they_were(cluster, monkeypatch, where, batch_size):
    """An interrupt between any two steps: after what each of them has done, and nothing more."""
    producer = open_producer(cluster, linger_ms=30_000, batch_size=batch_size)
    waiting = producer.send_columns(pa.record_batch({"value": [b"%d" % i for i in range(3)]}), "t", 0)
    single = [producer.send("t", value=b"single %d" % i, partition=0) for i in range(3)]
    done = getattr(open_batches.WaitingRows, where)

    def interrupt(self, *arguments):
        done(self, *arguments)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(open_batches.WaitingRows, where, interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.send_columns(pa.record_batch({"value": [b"not taken" * 9] * 3}), "t", 0)
    producer.flush(60)
    assert [d.result(1).offset for d in single] == [3, 4, 5]
    assert waiting.result(1).offset.tolist() == [0, 1, 2]
    assert cluster.values(PARTITIONS[0]) == [b"0", b"1", b"2", b"single 0", b"single 1", b"single 2"]
    assert buffered(producer) == (0, 0)
    producer.close()


def test_rows_that_are_put_back_have_waited_as_long_as_before(cluster, monkeypatch):
    """Else their linger would never be over."""
    producer = open_producer(cluster, linger_ms=30_000)
    producer.send("t", value=b"0", partition=0)
    buffer = producer._buffers["t"]
    since = buffer.waiting_since

    def interrupt(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(topic_buffer.TopicBuffer, "_commit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        buffer.close_waiting(lambda _rows: True, 0.0)
    producer.send("t", value=b"1", partition=0)
    assert buffer.waiting_since == since
    producer.close()
    assert cluster.values(PARTITIONS[0]) == [b"0", b"1"]


def test_a_second_interrupt_may_come_while_rows_are_put_back(cluster, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    def interrupt_again(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    producer = open_producer(cluster, linger_ms=30_000)
    producer.send("t", value=b"0", partition=0)
    monkeypatch.setattr(topic_buffer.TopicBuffer, "_append", interrupt)
    monkeypatch.setattr(open_batches.Move, "put_back", interrupt_again)
    with pytest.raises(KeyboardInterrupt):
        producer.send_columns(pa.record_batch({"value": [b"not taken"]}), "t", 0)
    producer.send("t", value=b"1", partition=0)
    producer.flush(60)
    assert cluster.values(PARTITIONS[0]) == [b"0", b"1"]
    assert buffered(producer) == (0, 0)
    producer.close()


def test_a_record_that_fills_the_batch_is_not_taken_twice(cluster, monkeypatch):
    producer = open_producer(cluster, linger_ms=30_000, batch_size=200)
    group = open_batches.group_rows

    def interrupt(*arguments):
        monkeypatch.undo()
        group(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(open_batches, "group_rows", interrupt)
    values = [b"%d" % i + b"x" * 30 for i in range(20)]
    interrupted = 0
    for value in values:
        try:
            producer.send("t", value=value, partition=0)
        except KeyboardInterrupt:
            interrupted += 1
    producer.flush(60)
    assert interrupted == 1
    assert cluster.values(PARTITIONS[0]) == values
    assert buffered(producer) == (0, 0)
    producer.close()


def test_a_partitioner_may_be_interrupted(cluster):
    def interrupt_once(_topic, _keys, _count):
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return np.zeros(len(_keys), np.int32)

    interrupted = []
    client = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
    producer = Producer(client, ProducerConfig(), partitioner=interrupt_once)
    columns = pa.record_batch({"value": [b"0"]})
    with pytest.raises(KeyboardInterrupt):
        producer.send_columns(columns, "t")
    assert buffered(producer) == (0, 0)
    producer.send_columns(columns, "t").result(60)
    producer.close()
    assert cluster.values(PARTITIONS[0]) == [b"0"]


@pytest.mark.parametrize("handler_does", ["send", "raise"])
def test_no_record_is_lost_from_sight_where_a_call_closes_batches_for_the_sender(cluster, handler_does):
    """It finds a note of the sender's, which had found the buffer in use. A handler that interrupts it
    anywhere may send or raise: a flush waits for all records that were accepted nevertheless."""
    accepted, begun = [], iter(range(100_000))
    with (
        open_producer(cluster, linger_ms=20_000, batch_records=100) as producer,
        ThreadPoolExecutor(1) as pool,
    ):

        def send():
            accepted.append(producer.send("t", value=b"%d" % next(begun), partition=0))

        def interrupt():
            if handler_does == "raise":
                raise KeyboardInterrupt
            send()

        def leave_note():
            send()
            buffer = producer._topics.buffers["t"]
            with buffer.lock:
                asked = pool.submit(buffer.close_waiting, lambda _: True, time.monotonic(), object())
                assert asked.result(60) is None

        leave_note()
        steps = steps_of(send)
        assert steps > 50
        for step in range(steps):
            leave_note()
            with contextlib.suppress(KeyboardInterrupt, RuntimeError):  # in the middle of it none can be sent
                run_at(step, interrupt, send)
            producer.flush(60)
            assert all(one.done() for one in accepted), step
