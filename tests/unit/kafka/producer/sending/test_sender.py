"""The sender's thread and its callers: nothing that they ask for is missed."""

import contextlib
import threading
import time
from collections import deque
from types import SimpleNamespace

import pyarrow as pa
import pytest
from support.brokers.produce_cluster import ProduceCluster
from support.brokers.scripted_broker import Silence, properties
from support.interrupts.held_lock import held_by_another_thread
from support.producer.sending_batches import SendingHalf, batch

from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.errors import DeadlineExceededError
from spark_kafka_native.kafka.model import Acks, TopicPartition
from spark_kafka_native.kafka.producer.errors import DeliveryStatus
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.producer.sending.sender import Linger, Sender
from spark_kafka_native.kafka.protocol.api.api_versions import ApiVersionsRequest
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline

TP = TopicPartition("t", 0)


@pytest.fixture
def producer():
    with ProduceCluster() as cluster:
        cluster.create("t", 1)
        client = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
        with Producer(client, ProducerConfig(linger_ms=600_000, delivery_timeout_ms=600_000)) as running:
            running.cluster = cluster
            yield running


def wait_until(ended):
    deadline = time.monotonic() + 60
    while not ended() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert ended()


def hurry(delivery):
    """Wait for it, but not for long."""
    with contextlib.suppress(TimeoutError):
        delivery.result(0)


def test_a_topic_that_is_busy_when_somebody_hurries_is_sent_a_moment_later(producer):
    delivery = producer.send("t", value=b"a")
    buffer, tried = producer._buffers["t"], threading.Event()
    close_waiting = buffer.close_waiting

    def close(*arguments):
        closed = close_waiting(*arguments)
        if closed is None:
            tried.set()
        return closed

    buffer.close_waiting = close
    with buffer.lock:
        hurry(delivery)
        assert tried.wait(60)
    wait_until(delivery.done)
    assert producer.cluster.values(TP) == [b"a"]


def test_each_hurry_counts(producer):
    for i in range(5):
        delivery = producer.send("t", value=b"%d" % i)
        hurry(delivery)
        wait_until(delivery.done)


def test_a_batch_is_incomplete_before_it_leaves_the_inbox(producer):
    expect, seen = producer._completion.expect, []

    def expected(batches):
        seen.extend(batch in producer._sender.inbox for batch in batches)
        expect(batches)

    producer._completion.expect = expected
    producer.send("t", value=b"a")
    producer.flush(60)
    assert seen == [True]


def test_a_flush_waits_for_a_batch_that_is_taken_in_while_it_looks(producer, monkeypatch):
    # The sender takes it in between the two looks, whichever comes first.
    monkeypatch.setattr(Sender, "start", lambda _sender: None)
    client = ClientConfig.from_properties(properties(producer.cluster.bootstrap_servers))
    still = Producer(client, ProducerConfig())
    sender, completion = still._sender, still._completion
    delivery = still.send("t", value=b"a")
    assert still._buffers["t"].close_waiting(lambda _queue: True, 0.0) is not None

    class Inbox(deque):
        def copy(self):
            seen = deque(self)
            sender.loop._take_in()
            return seen

    class Incomplete(dict):
        def __iter__(self):
            seen = list(self.keys())
            sender.loop._take_in()
            return iter(seen)

    (batch,) = sender.inbox
    sender.loop.inbox, completion.incomplete = Inbox(sender.inbox), Incomplete()
    with pytest.raises(DeadlineExceededError, match="1 records are still under way"):
        still.flush(0.05)
    assert not sender.inbox
    assert list(completion.incomplete) == [batch]
    monkeypatch.undo()
    sender.start()
    still.flush(60)
    assert delivery.exception(0) is None
    still.close()
    assert producer.cluster.values(TP) == [b"a"]


def test_a_batch_that_is_handed_over_behind_the_last_turn_of_a_closing_sender_is_delivered(
    producer, monkeypatch
):
    monkeypatch.setattr(Sender, "start", lambda _sender: None)
    client = ClientConfig.from_properties(properties(producer.cluster.bootstrap_servers))
    still = Producer(client, ProducerConfig(linger_ms=0))
    monkeypatch.undo()
    sender, deliveries = still._sender, [still.send("t", value=b"first")]
    turn = sender.loop.turn

    def turn_and_hand_over(*arguments):
        turn(*arguments)
        if deliveries[-1].done() and len(deliveries) == 1:
            deliveries.append(still.send("t", value=b"late"))
            assert still._buffers["t"].close_waiting(lambda _rows: True, 0.0) is not None
            assert sender.inbox

    sender.loop.turn = turn_and_hand_over
    sender._closing = Deadline.after_ms(60_000)
    sender.start()
    wait_until(lambda: not sender.running)
    still.close()
    assert [delivery.exception(0) for delivery in deliveries] == [None, None]
    assert producer.cluster.values(TP) == [b"first", b"late"]


def test_a_sender_that_waits_for_a_connection_ends_when_the_time_of_close_is_over():
    with ProduceCluster() as cluster:
        cluster.create("t", 1)
        settings = properties(
            cluster.bootstrap_servers,
            request_timeout_ms=600_000,
            socket_connection_setup_timeout_ms=600_000,
            socket_connection_setup_timeout_max_ms=600_000,
        )
        config = ProducerConfig(
            linger_ms=600_000, delivery_timeout_ms=1_200_000, acks=Acks.LEADER, enable_idempotence=False
        )
        unconnected = Producer(ClientConfig.from_properties(settings), config)
        delivery = unconnected.send("t", value=b"a")
        cluster[1].on(ApiVersionsRequest, lambda _request, _version: Silence)
        unconnected.close(0.1)
        assert not unconnected._sender.running
        assert delivery.exception(0).status is DeliveryStatus.NOT_PERSISTED
        assert not cluster[1].requests(ProduceRequest)


@pytest.mark.parametrize("allowed_ms", [(0, 600_000), (600_000, 0)])
def test_of_two_that_close_the_earlier_deadline_counts_whichever_comes_first(allowed_ms):
    loop = SimpleNamespace(
        linger=SimpleNamespace(hurry=lambda: None), failures=SimpleNamespace(fatal=None), empty=False
    )
    waiters, wakeup = SimpleNamespace(wait_for=lambda *_given: False), SimpleNamespace(set=lambda: None)
    sender = Sender(loop, wakeup, None, waiters, None)
    for one in allowed_ms:
        sender.stop(Deadline.after_ms(one))
    assert sender._finished()


class AlwaysBusy:
    """A lock that callers hold at each moment at which the sender tries it."""

    def __init__(self, lock):
        self._lock = lock
        self.tried = threading.Event()

    def acquire(self, blocking=True):
        if not blocking and threading.current_thread().name == "kafka-producer-sender":
            self.tried.set()
            return False
        return self._lock.acquire(blocking)

    def release(self):
        self._lock.release()

    def __enter__(self):
        return self._lock.__enter__()

    def __exit__(self, *error):
        return self._lock.__exit__(*error)


@pytest.mark.parametrize("columns", [False, True])
def test_a_flush_ends_though_others_never_leave_the_topic_alone(producer, columns):
    first = producer.send("t", value=b"first")
    busy = producer._buffers["t"].lock = AlwaysBusy(producer._buffers["t"].lock)
    stop = threading.Event()

    def send():
        busy.tried.wait(60)
        while not stop.wait(0.001):
            if columns:
                producer.send_columns(pa.record_batch({"value": [b"more"]}), "t")
            else:
                producer.send("t", value=b"more")

    other = threading.Thread(target=send)
    other.start()
    try:
        producer.flush(20)
        assert first.done()

        def is_over():
            before, sent = len(producer.cluster.batches(TP)), producer.stats().buffered_records
            wait_until(lambda: producer.stats().buffered_records > sent + 10)
            return len(producer.cluster.batches(TP)) == before

        wait_until(is_over)  # records after the flush linger again
    finally:
        stop.set()
        other.join(60)
        producer._buffers["t"].lock = busy._lock


def test_what_has_lingered_is_sent_though_others_never_leave_the_topic_alone(producer):
    client = ClientConfig.from_properties(properties(producer.cluster.bootstrap_servers))
    with Producer(client, ProducerConfig(linger_ms=50)) as prompt:
        prompt.send("t", value=b"0").result(60)
        busy = prompt._buffers["t"].lock = AlwaysBusy(prompt._buffers["t"].lock)
        sent = []

        def is_delivered():
            sent.append(prompt.send("t", value=b"more"))
            return sent[0].done()

        wait_until(is_delivered)
        assert sum(delivery.done() for delivery in sent) < len(sent)  # those after it may linger
        prompt._buffers["t"].lock = busy._lock


def test_a_caller_closes_once_what_the_sender_asked_for(producer):
    delivery = producer.send("t", value=b"0")
    buffer, own = producer._buffers["t"], []
    due = lambda _queue: own.append(1) is None  # noqa: E731
    with held_by_another_thread(buffer.lock):
        assert buffer.close_waiting(due, 1.0, "a flush") is None
    for _ in range(3):
        producer.send("t", value=b"more")
    assert len(own) == 1
    with held_by_another_thread(buffer.lock):
        assert buffer.close_waiting(due, 2.0, "a flush") == 1.0
        assert buffer.close_waiting(due, 3.0, "another") is None
        assert buffer.close_waiting(due, 4.0, "a third") is None
    assert buffer.close_waiting(due, 5.0, "a third") == 5.0
    producer.send("t", value=b"more")
    assert len(own) == 2
    with held_by_another_thread(buffer.lock):
        assert buffer.close_waiting(due, 6.0, "a fourth") is None
    producer.send("t", value=b"more")
    assert len(own) == 3
    assert buffer.close_waiting(due, 7.0, "a fifth") == 7.0
    assert len(own) == 4, "what a caller has closed for another reason was closed too early for this one"
    wait_until(delivery.done)


def waiting_rows(found, since=10.0):
    """Topics with rows that wait since then; each look at them adds to ``found`` if they are due."""
    rows = SimpleNamespace(topic_partition=TP, opened_at=10.0)

    def close_waiting(due, now, _reason):
        found.append(due(rows))
        return now

    buffer = SimpleNamespace(topic="t", waiting_since=since, close_waiting=close_waiting)
    return SimpleNamespace(all=lambda: [buffer])


@pytest.mark.parametrize(
    ("waits", "spilling", "closed"),
    [(False, False, True), (True, False, False), (True, True, True), (False, True, True)],
)
def test_what_has_lingered_is_closed_unless_a_batch_before_it_is_to_be_sent(waits, spilling, closed):
    """Where that batch is in the spill folder, these records have to go there too, and not stay in memory."""
    half, found = SendingHalf(), []
    queue = half.queues.of(TP)
    if waits:
        half.queues.add(batch(1))
    if spilling:
        queue.spilled()
    topics, memory = waiting_rows(found), SimpleNamespace(waiting=False)
    config = ProducerConfig(linger_ms=5)
    Linger(config, topics, half.queues, memory, None, half.timer).close_due(11.0, closing=False)
    assert found == [closed]


@pytest.mark.parametrize(
    ("since", "room_wanted", "closed"),
    [(10.0, False, []), (10.0, True, [True]), (None, False, []), (None, True, [True])],
)
def test_a_caller_without_room_gets_what_every_topic_has(since, room_wanted, closed):
    """A topic without waiting records may keep room for some that do not come."""
    half, found = SendingHalf(), []
    topics, memory = waiting_rows(found, since), SimpleNamespace(waiting=room_wanted)
    waiters = SimpleNamespace(notify_all=lambda: None)
    linger = Linger(ProducerConfig(linger_ms=60_000), topics, half.queues, memory, waiters, half.timer)
    linger.close_due(11.0, closing=False)
    assert found == closed


def test_what_has_not_lingered_yet_is_looked_at_again_after_another_batch_of_its_topic_was_closed():
    """That one may go nowhere: to the spill folder, of which no answer comes that would wake the sender."""
    half = SendingHalf()
    buffer = SimpleNamespace(topic="t", waiting_since=10.0)

    def close_waiting(_due, now, _reason):
        buffer.waiting_since = 12.0  # of a batch of another partition
        return now

    buffer.close_waiting = close_waiting
    topics, memory = SimpleNamespace(all=lambda: [buffer]), SimpleNamespace(waiting=False)
    linger = Linger(ProducerConfig(linger_ms=5_000), topics, half.queues, memory, None, half.timer)
    half.timer.start_turn()
    linger.close_due(15.5, closing=False)
    assert half.timer.next_at == 17.0


def test_a_flush_that_begins_while_another_is_served_is_served_next():
    half, closed = SendingHalf(), []
    buffer = SimpleNamespace(topic="t", waiting_since=10.0)

    def close_waiting(_due, now, _reason):
        closed.append(now)
        if len(closed) == 1:
            linger.hurry()  # of a caller: its records came behind the look at this topic
        return now

    buffer.close_waiting = close_waiting
    topics, memory = SimpleNamespace(all=lambda: [buffer]), SimpleNamespace(waiting=False)
    waiters = SimpleNamespace(notify_all=lambda: None)
    linger = Linger(ProducerConfig(linger_ms=60_000), topics, half.queues, memory, waiters, half.timer)
    linger.hurry()
    for now in (11.0, 11.1, 11.2):
        linger.close_due(now, closing=False)
    assert closed == [11.0, 11.1]


def test_a_closing_producer_lets_nothing_linger_that_a_caller_appends_behind_its_hurry():
    half, found = SendingHalf(), []
    topics, memory = waiting_rows(found), SimpleNamespace(waiting=False)
    waiters = SimpleNamespace(notify_all=lambda: None)
    linger = Linger(ProducerConfig(linger_ms=60_000), topics, half.queues, memory, waiters, half.timer)
    linger.hurry()
    for now in (11.0, 11.1):
        linger.close_due(now, closing=True)
    assert found == [True, True]


@pytest.mark.parametrize("busy", ["a", "b"])
def test_a_hurry_lasts_until_each_topic_has_seen_it_whichever_was_busy(busy):
    half, left_alone, found = SendingHalf(), {busy}, []
    rows = SimpleNamespace(topic_partition=TP, opened_at=10.0)

    def topic_buffer(topic):
        def close_waiting(due, now, _reason):
            if topic in left_alone:
                return None
            found.append((topic, due(rows)))
            return now

        return SimpleNamespace(topic=topic, waiting_since=10.0, close_waiting=close_waiting)

    buffers = [topic_buffer("a"), topic_buffer("b")]
    topics, memory = SimpleNamespace(all=lambda: buffers), SimpleNamespace(waiting=False)
    waiters = SimpleNamespace(notify_all=lambda: None)
    linger = Linger(ProducerConfig(linger_ms=60_000), topics, half.queues, memory, waiters, half.timer)
    linger.hurry()
    linger.close_due(11.0, closing=False)
    assert found == [({"a": "b", "b": "a"}[busy], True)]
    left_alone.clear()
    linger.close_due(11.1, closing=False)
    assert (busy, True) in found
    found.clear()
    linger.close_due(11.2, closing=False)
    assert found == [], "it has had its effect"
