"""What waits in the producer: room, lingering, flush, close, callers and callbacks."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa
import pytest
from support.brokers.produce_cluster import (
    NO_ANSWER_NOT_APPLIED,
    refused,
)
from support.producer.producing import TP, numbers, producing, send, wait_until

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    DeadlineExceededError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.accumulating.memory import BufferMemory
from spark_kafka_native.kafka.producer.accumulating.topic_buffer import TopicBuffer
from spark_kafka_native.kafka.producer.errors import (
    BufferFullError,
    DeliveryStatus,
    ProducerClosedError,
    RecordError,
)
from spark_kafka_native.kafka.records.columns import RecordColumns

pytestmark = pytest.mark.timed(0.1)


def test_a_full_buffer_blocks_and_then_raises(cluster):
    cluster.delay_s = 0.5
    with producing(cluster, max_buffered_records=10, max_block_ms=200) as producer:
        send(producer, 10)
        started = time.monotonic()
        with pytest.raises(
            BufferFullError,
            match=r"another record .*: 10 records wait .*queue\.buffering\.max\.messages \(10\) or max",
        ):
            send(producer, 2, start=10)
        assert 0.15 < time.monotonic() - started < 30  # and not 60 s, the default
        cluster.delay_s = 0
        producer.flush(60)


def test_the_error_of_a_full_buffer_counts_no_portions(cluster):
    cluster.delay_s = 0.3
    memory = {"buffer_memory": 5_000_000, "block_on_buffer_full": False}
    with producing(cluster, **memory) as producer:
        with pytest.raises(BufferFullError) as error:
            [producer.send("t", value=bytes(900_000)) for _ in range(10)]
        assert " records" not in str(error.value)  # 1,024 are reserved for each
        assert str(error.value).endswith("raise buffer.memory (5000000)")  # it does not wait for max.block.ms
        cluster.delay_s = 0
        producer.flush(60)


@pytest.mark.parametrize(
    ("limits", "records"),
    [
        ({"max_buffered_records": 1_500, "buffer_memory": 1_000_000}, 1_500),
        ({"max_buffered_records": 1_500}, 1_500),
        ({"max_buffered_records": 65_536, "buffer_memory": 1_000_000}, 1_500),
    ],
    ids=["few of both", "few records", "few bytes"],
)
def test_single_records_fill_the_buffer_to_its_last_place(cluster, limits, records):
    """Room is reserved in portions: of two portions of 1,024 records the second would not fit. The rest of
    one measure does not pile up where the other is used up first.
    """
    settings = {"batch_records": 10_000, "linger_ms": 60_000, "block_on_buffer_full": False}
    with producing(cluster, **limits, **settings) as producer:
        send(producer, records)
        assert producer.stats().buffered_records >= records
        producer.flush(60)
    assert cluster.values(TP) == numbers(1_500)


@pytest.mark.parametrize("batch_size", [1, 100_000])
def test_single_records_take_no_more_bytes_than_the_buffer_has(cluster, batch_size):
    """There is room for many more records, and one that finds no bytes leaves nothing behind."""
    settings = {"buffer_memory": 10_000, "batch_records": 10_000, "linger_ms": 60_000}
    failed, values = [], []

    def fill(producer):
        for number in range(1_000):
            producer.send("t", value=b"%0100d" % number, partition=0)
            values.append(b"%0100d" % number)

    with producing(
        cluster,
        on_error=lambda *error: failed.append(error),
        batch_size=batch_size,
        block_on_buffer_full=False,
        **settings,
    ) as producer:
        producer.send("t", value=b"", partition=0).result(60)
        with cluster.lock, pytest.raises(BufferFullError, match=r"buffer\.memory \(10000\)"):
            fill(producer)  # no broker answers
        producer.flush(60)
        assert (producer.stats().errors, producer.stats().buffered_bytes) == (0, 0)
    assert cluster.values(TP) == [b"", *values]
    assert 50 < len(values) < 100
    assert not failed


def test_a_full_buffer_may_raise_at_once(cluster, monkeypatch):
    cluster.delay_s = 0.3
    with producing(cluster, max_buffered_records=10, block_on_buffer_full=False) as producer:
        send(producer, 10)
        waits = []
        reserve = BufferMemory.reserve
        monkeypatch.setattr(
            BufferMemory,
            "reserve",
            lambda self, room, size, records, wait_ms: (
                waits.append(wait_ms) or reserve(self, room, size, records, wait_ms)
            ),
        )
        with pytest.raises(BufferFullError):
            send(producer, 2, start=10)
        assert set(waits) == {0}
        cluster.delay_s = 0
        producer.flush(60)


def test_a_small_buffer_passes_everything(cluster):
    with producing(cluster, buffer_memory=2_000, batch_records=1_000) as producer:
        for i in range(500):
            producer.send("t", value=b"%d" % i, partition=0)
        producer.flush(60)
        stats = producer.stats()
        assert (stats.records, stats.buffered_records) == (500, 0)
    assert cluster.values(TP) == numbers(500)


def test_flush_has_a_deadline_and_close_gives_up_what_is_left(cluster):
    cluster.script(TP, *[NO_ANSWER_NOT_APPLIED] * 50)
    with producing(cluster) as producer:
        deliveries = send(producer, 3)
        with pytest.raises(DeadlineExceededError, match="3 records are still under way"):
            producer.flush(0.2)
        started = time.monotonic()
        producer.close(0.2)
        assert time.monotonic() - started < 30
        errors = [d.exception(0) for d in deliveries]
    assert [e.status for e in errors] == [
        DeliveryStatus.POSSIBLY_PERSISTED,
        *[DeliveryStatus.NOT_PERSISTED] * 2,
    ]
    assert "closed before" in str(errors[0])
    with pytest.raises(ProducerClosedError):
        producer.send("t", value=b"x")


def test_rows_that_keep_coming_do_not_put_off_those_that_linger(cluster):
    rows = pa.record_batch({"value": [b"x"], "partition": pa.array([0], pa.int32())})
    with producing(cluster, linger_ms=300, batch_records=1_000_000, batch_size=1_000_000) as producer:
        until = time.monotonic() + 60
        while not cluster.values(TP):
            assert time.monotonic() < until
            producer.send_columns(rows, "t")
            time.sleep(0.02)


@pytest.mark.parametrize("partition", [4, -1, 2**31])
def test_a_partition_that_the_topic_does_not_have_is_refused_at_once(cluster, partition):
    cluster.create("four", 4)
    with producing(cluster) as producer:
        producer.send("four", value=b"1", partition=3)
        with pytest.raises(RecordError, match="four"):
            producer.send("four", value=b"2", partition=partition)


def test_rows_without_a_partition_leave_the_others_where_they_were_sent(cluster):
    cluster.create("four", 4)
    given = [3, None, 0, None, 1] * 20
    values = [b"%d" % row for row in range(len(given))]
    rows = pa.record_batch({"value": values, "key": values, "partition": pa.array(given, pa.int32())})
    with producing(cluster) as producer:
        producer.send_columns(rows, "four").result(60)
    written = {tp.partition: set(cluster.values(tp)) for tp in (TopicPartition("four", p) for p in range(4))}
    for partition in (0, 1, 3):
        assert {values[row] for row, one in enumerate(given) if one == partition} <= written[partition]
    assert sum(map(len, written.values())) == len(given)
    assert written[2], "the partitioner spreads the others"


def test_close_delivers_what_lingers(cluster):
    with producing(cluster, linger_ms=60_000, batch_records=1_000) as producer:
        send(producer, 5)
        started = time.monotonic()
    assert cluster.values(TP) == numbers(5)
    assert time.monotonic() - started < 30


def test_whoever_waits_does_not_wait_for_the_linger(cluster):
    with producing(cluster, linger_ms=60_000, batch_records=1_000) as producer:
        assert send(producer, 1)[0].result(60).offset == 0


def test_linger_fills_batches(cluster):
    with producing(cluster, linger_ms=100, batch_records=1_000) as producer:
        send(producer, 50)
        wait_until(lambda: cluster.values(TP) == numbers(50))
    assert len(cluster.batches(TP)) <= 2


def test_single_records_fill_a_batch_of_each_of_several_partitions(cluster):
    cluster.create("four", 4)
    settings = {"linger_ms": 60_000, "batch_records": 1_000, "batch_size": 10_000}
    with producing(cluster, **settings) as producer:
        for i in range(1_200):
            producer.send("four", value=b"%04d" % i + b"x" * 96, partition=i % 4)
        producer.flush(60)
    for partition in range(4):
        where = TopicPartition("four", partition)
        assert [int(value[:4]) for value in cluster.values(where)] == list(range(partition, 1_200, 4))
        # 3 or 4 full ones and the rest of each; divided by four, it would be a dozen
        assert len(cluster.batches(where)) <= 7


def test_threads_keep_their_own_order(cluster):
    def send_some(name):
        for i in range(200):
            producer.send("t", value=b"%s-%d" % (name, i), partition=0)

    with producing(cluster, batch_records=50) as producer:
        threads = [threading.Thread(target=send_some, args=(name,)) for name in (b"a", b"b", b"c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(60)
    values = cluster.values(TP)
    assert len(values) == 600
    for name in (b"a", b"b", b"c"):
        mine = [int(v.split(b"-")[1]) for v in values if v.startswith(name)]
        assert mine == list(range(200))


def test_a_callback_may_send_again(cluster):
    with producing(cluster, max_buffered_records=3) as producer:
        cluster.script(TP, refused(ErrorCode.INVALID_RECORD))
        first = send(producer, 1)[0]
        again = []
        first.add_done_callback(lambda _: again.append(producer.send("t", value=b"again", partition=0)))
        wait_until(lambda: again)
        assert again[0].result(60).offset == 0
    assert cluster.values(TP) == [b"again"]


def test_a_callback_that_finds_no_room_does_not_wait_for_it(cluster):
    """Only its own thread can make room."""
    refused_with = []

    def send_many(_):
        with pytest.raises(BufferFullError) as full:
            send(producer, 10, start=1)
        refused_with.append(str(full.value))

    with producing(cluster, max_buffered_records=3, max_block_ms=2_000) as producer:
        producer.send("t", value=b"0", partition=0, on_delivery=send_many)
        wait_until(lambda: refused_with)
        producer.flush(60)
    assert refused_with[0].startswith("no room for another record within 0 ms: 3 records wait")
    assert cluster.values(TP) == numbers(4)


@pytest.mark.parametrize(
    ("topic", "value", "error"),
    [
        ("", b"", ValueError),
        ("a b", b"", ValueError),
        ("..", b"", ValueError),
        ("x" * 250, b"", ValueError),
        ("t", 5, TypeError),
    ],
)
def test_misuse_is_named_at_once(cluster, topic, value, error):
    with producing(cluster) as producer, pytest.raises(error, match=r"topic name|a record's value is bytes"):
        producer.send(topic, value=value)


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "x" * 249])
def test_each_name_that_kafka_allows_is_taken(cluster, topic):
    cluster.create(topic)
    with producing(cluster) as producer:
        assert producer.send(topic, value=b"1").result(60).topic_partition == TopicPartition(topic, 0)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_contents_are_bytes_of_any_kind(cluster, kind):
    record = {"key": kind(b"k"), "value": kind(b"v"), "headers": {"h": kind(b"x")}}
    with producing(cluster) as producer:
        producer.send("t", **record, partition=0)
        producer.send_many("t", [record, kind(b"alone")], partition=0)
        producer.flush(60)
    found = [(one.key, one.value, one.headers) for one in cluster.records(TP)]
    assert found == [(b"k", b"v", (("h", b"x"),))] * 2 + [(None, b"alone", ())]


@pytest.mark.parametrize(
    "use", [lambda producer: producer.send("t", value=b"from the child"), lambda producer: producer.flush()]
)
def test_a_forked_child_is_told_to_make_its_own(cluster, use):
    with producing(cluster, batch_records=1000, linger_ms=60_000) as producer:
        send(producer, 1)
        child = os.fork()
        if not child:
            try:
                use(producer)
            except ProducerClosedError as error:
                os._exit(42 if "another process" in str(error) else 43)
            finally:
                os._exit(44)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        send(producer, 1, start=1)
    assert cluster.values(TP) == numbers(2)


def test_a_producer_that_a_callback_closes_ends(cluster):
    with producing(cluster) as producer:
        sent = producer.send("t", value=b"0", partition=0, on_delivery=lambda _: producer.close(60))
        wait_until(lambda: not producer._sender.running)
        assert sent.result(0).offset == 0


def test_a_forked_child_waits_for_no_lock_that_a_thread_of_its_parent_had(cluster):
    """That thread is not there: the child would wait for ever."""

    def is_refused(call, *arguments):
        try:
            call(*arguments)
        except ProducerClosedError:
            return True
        return False

    def hold(locks):
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            forked.wait(60)

    held, forked, ends = threading.Event(), threading.Event(), []
    rows = pa.record_batch({"value": [b"1"]})
    with producing(cluster, batch_records=1_000, linger_ms=60_000) as producer:
        send(producer, 1)
        locks = [producer._topics.lock, producer._buffers["t"].lock, producer._memory.lock]
        holder = threading.Thread(target=hold, args=(locks,))
        holder.start()
        assert held.wait(60)
        child = os.fork()
        if not child:
            calls = [(producer.send, "t"), (producer.send_columns, rows, "t"), (producer.flush,)]
            ended = [is_refused(*call) for call in calls]
            producer.close()
            os._exit(42 if all(ended) and producer.stats().buffered_records == 0 else 43)

        def has_ended():
            pid, status = os.waitpid(child, os.WNOHANG)
            ends.extend([status] * bool(pid))
            return ends

        forked.set()
        holder.join(60)
        try:
            wait_until(has_ended)
        finally:
            if not ends:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(ends[0]) == 42
    assert cluster.values(TP) == numbers(1)


def test_the_sender_wakes_for_a_batch_that_single_records_have_filled(cluster):
    """Asleep until the batch has lingered, it would send it only then."""
    with producing(cluster, linger_ms=60_000, batch_records=100, batch_size=1_000) as producer:
        producer.send("t", value=b"1", partition=0)
        buffer, woken = producer._topics.buffers["t"], []
        buffer._parts = replace(buffer._parts, wake=lambda: woken.append(True))
        producer.send("t", value=b"2", partition=0)
        assert woken == []
        producer.send("t", value=bytes(2_000), partition=0)
        assert len(woken) == 1
        producer._sender.wake()


def test_the_sender_wakes_for_the_first_record_that_lingers_and_for_columns(cluster):
    """Asleep, it would not see when they have lingered, nor a batch that they fill."""
    rows, woken = pa.record_batch({"value": [b"2"]}), []
    with producing(cluster, linger_ms=60_000, batch_records=100) as producer:
        (name,) = producer._topics.open(["t"])
        buffer = producer._topics.buffers[name]
        buffer._parts = replace(buffer._parts, wake=lambda: woken.append(True))
        producer.send("t", value=b"1", partition=0)
        assert len(woken) == 1
        producer.send_columns(rows, "t", 0)
        assert len(woken) == 2
        producer._sender.wake()
    assert cluster.values(TP) == [b"1", b"2"]


def test_a_batch_that_single_records_have_filled_is_sent_before_it_has_lingered(cluster):
    settings = {"linger_ms": 600_000, "delivery_timeout_ms": 600_000, "batch_records": 100}
    with producing(cluster, batch_size=1_000, **settings) as producer:
        for size in (1, 2_000):
            producer.send("t", value=bytes(size), partition=0)
        wait_until(lambda: cluster.values(TP) == [bytes(1), bytes(2_000)])


def test_a_flush_of_a_closed_producer_has_nothing_to_wait_for(cluster):
    with producing(cluster) as producer:
        send(producer, 1)
        producer.close(60)
        producer.flush(60)
        assert producer.stats().records == 1


def test_a_flush_says_that_the_producer_has_ended_where_records_never_will(cluster, monkeypatch):
    def fail(*_arguments):
        raise MemoryError

    with producing(cluster, linger_ms=60_000, batch_records=100) as producer:
        send(producer, 1)
        monkeypatch.setattr(TopicBuffer, "shut", fail)
        monkeypatch.setattr(TopicBuffer, "close_waiting", fail)
        producer._sender.hurry()
        wait_until(lambda: not producer._sender.running)
        with pytest.raises(ProducerClosedError, match="MemoryError"):
            producer.flush(1)
    assert cluster.values(TP) == []


def test_a_flush_waits_for_what_came_up_to_its_beginning(cluster):
    with producing(cluster, linger_ms=60_000, batch_records=100) as producer:
        producer.send("t", value=b"1", partition=0)
        buffer = producer._topics.buffers["t"]
        came = buffer.waiting_since
        assert [buffer.holds_since(came + later_s) for later_s in (-1, 0, 1)] == [False, True, True]


def test_a_record_that_comes_later_does_not_renew_the_time_of_those_that_wait(cluster):
    with producing(cluster, linger_ms=60_000, batch_records=100) as producer:
        producer.send_columns(RecordColumns(length=1, value=pa.array([b"1"])), "t", 0)
        buffer = producer._topics.buffers["t"]
        came = buffer.waiting_since
        producer.send("t", value=b"2", partition=0)
        assert buffer.waiting_since == came
    assert cluster.values(TP) == [b"1", b"2"]


def test_a_caller_that_waits_for_room_hears_of_a_close_before_that_has_ended(cluster):
    settings = {"max_buffered_records": 1, "max_block_ms": 600_000, "linger_ms": 60_000}
    with producing(cluster, **settings) as producer, ThreadPoolExecutor(2) as pool:
        producer.send("t", value=b"0", partition=0).result(60)
        with cluster.lock:  # no broker answers
            producer.send("t", value=b"1", partition=0)
            waiting = pool.submit(producer.send, "t", value=b"2", partition=0)
            wait_until(lambda: producer._memory.waiting)
            closing = pool.submit(producer.close, 60)
            with pytest.raises(ProducerClosedError):
                waiting.result(30)
            assert not closing.done()
        closing.result(60)
    assert cluster.values(TP) == numbers(2)


def test_a_topic_may_be_described_and_the_rest_closed_while_their_lock_is_held(cluster):
    """As by a signal's handler that comes while its thread looks the topics over."""
    with producing(cluster) as producer:

        def handle():
            with producer._topics.lock:
                send(producer, 1)
                producer._topics.close(ProducerClosedError("in a handler"))

        handler = threading.Thread(target=handle, daemon=True)
        handler.start()
        handler.join(60)
        assert not handler.is_alive()
        with pytest.raises(ProducerClosedError, match="in a handler"):
            send(producer, 1, start=1)
    assert cluster.values(TP) == numbers(1)


def test_a_record_for_which_there_is_no_memory_takes_no_room(cluster):
    """One place of the buffer was lost with each."""

    class Fields(tuple):
        __slots__ = ()

        def __iter__(self):
            raise MemoryError

    with producing(cluster, linger_ms=60_000) as producer:
        producer.send("t", value=b"first", partition=0)
        buffer = producer._topics.buffers["t"]
        granted = buffer.granted
        for _ in range(20):
            with pytest.raises(MemoryError):
                buffer.append_record(Fields(), 1)
        assert buffer.granted == granted
        producer.flush(60)
        assert producer._memory.used == (0, 0)  # nor is more given back than was taken
    assert cluster.values(TP) == [b"first"]


@pytest.mark.parametrize("closed_by", ["the sender", "a caller", "the end"])
def test_records_wait_in_their_buffer_until_their_batch_is_handed_over(cluster, monkeypatch, closed_by):
    """A flush, as a close, looks there first and then for batches: where neither had a record, it returned
    while the record was on its way from the one to the other."""
    hand_over, waited = TopicBuffer._commit, []

    def handing_over(self, move, *args, **how):
        waited.append(self.holds_since(time.monotonic()) or not move.closed)
        return hand_over(self, move, *args, **how)

    monkeypatch.setattr(TopicBuffer, "_commit", handing_over)
    with producing(cluster, linger_ms=60_000, batch_records=100) as producer:
        first = producer.send("t", value=b"0", partition=0)
        buffer = producer._topics.buffers["t"]
        if closed_by == "the sender":
            assert first.result(60)
        elif closed_by == "a caller":
            with ThreadPoolExecutor(1) as pool:
                with buffer.lock:
                    sender = pool.submit(buffer.close_waiting, lambda _: True, time.monotonic())
                    assert sender.result(60) is None
                producer.send("t", value=b"1", partition=0)
        else:
            buffer.shut()
        assert waited.count(True) == len(waited) >= 1
    assert cluster.values(TP)[0] == b"0"
