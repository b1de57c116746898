"""The events for which the sender waits when it can't send at once."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from support.brokers.produce_cluster import ProduceCluster
from support.brokers.scripted_broker import properties
from support.producer.sending_batches import TP, SendingHalf, batch, numbers, spilled

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import NetworkError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.producer.accumulating.batch import Batch, ProducerIdentity
from spark_kafka_native.kafka.producer.errors import DeliveryStatus
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.producer.sending.dispatcher import SHARED_WRITE_S, Dispatcher
from spark_kafka_native.kafka.producer.sending.partition_queue import PartitionQueues, SendingRules
from spark_kafka_native.kafka.producer.sending.produce_requests import BrokerConnection
from spark_kafka_native.kafka.producer.spill_folder import NewEntry, SpillFolder
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline


@pytest.fixture
def cluster():
    with ProduceCluster() as running:
        running.create("t", 2)
        yield running


def client(cluster, **changed):
    return ClientConfig.from_properties(properties(cluster.bootstrap_servers, **changed))


def test_a_connection_that_another_producer_writes_to_is_looked_at_again(cluster, monkeypatch):
    router = Router(client(cluster))
    looked, written = threading.Event(), threading.Event()

    def has_unwritten(_connection):
        looked.set()
        return not written.is_set()

    with Producer(client(cluster), ProducerConfig(linger_ms=0), router=router) as producer:
        producer.send("t", value=b"first", partition=0).result(60)
        monkeypatch.setattr(Connection, "has_unwritten", property(has_unwritten))
        delivery = producer.send("t", value=b"second", partition=0)
        assert looked.wait(60)
        time.sleep(0.05)  # nothing else may wake the sender: not even a caller that waits for the delivery
        written.set()
        deadline = time.monotonic() + 60
        while not delivery.done() and time.monotonic() < deadline:
            time.sleep(0.005)
        assert delivery.done()
    router.close()
    assert cluster.values(TopicPartition("t", 0)) == [b"first", b"second"]


def test_a_partition_that_is_gone_is_named_as_the_reason(cluster):
    config = ProducerConfig(linger_ms=0, delivery_timeout_ms=800)
    with Producer(client(cluster, retry_backoff_ms=20), config) as producer:
        producer.send("t", value=b"kept", partition=1).result(60)
        del cluster.logs[TopicPartition("t", 1)]
        producer._router.refresh(("t",), Deadline.after_ms(10_000))
        error = producer.send("t", value=b"lost", partition=1).exception(60)
    assert error.status is DeliveryStatus.NOT_PERSISTED
    assert "LEADER_NOT_AVAILABLE" in str(error)


def test_a_request_is_no_larger_than_max_request_size(cluster):
    cluster.create("many", 5)
    config = ProducerConfig(linger_ms=600_000, delivery_timeout_ms=600_000, max_request_size=100_000)
    with Producer(client(cluster), config) as producer:
        for partition in range(5):
            producer.send("many", value=bytes(45_000), partition=partition)
        producer.flush(60)
    sizes = [
        sum(len(part.records) for topic in request.topic_data for part in topic.partition_data)
        for request in cluster[1].requests(ProduceRequest)
    ]
    assert sum(sizes) > 5 * 45_000
    assert max(sizes) <= 100_000
    assert len(sizes) < 5, "several partitions share a request"


@pytest.mark.parametrize(
    ("told", "closed", "renewal_due", "alive", "in_flight", "expected"),
    [
        (("h", 1), False, False, True, 0, "use"),
        (("h", 1), False, False, True, 1, "use"),
        (None, False, False, True, 0, "use"),
        (("h", 2), False, False, True, 0, "connect"),
        (("g", 1), False, False, True, 0, "connect"),
        (("h", 2), False, False, True, 1, "wait"),
        (("h", 1), False, True, True, 0, "connect"),
        (("h", 1), False, True, True, 1, "wait"),
        (("h", 1), False, False, False, 0, "connect"),
        (("h", 1), True, False, True, 0, "connect"),
        (("h", 1), True, False, True, 1, "wait"),
    ],
)
def test_when_a_connection_is_used_and_when_another_is_wanted(
    told, closed, renewal_due, alive, in_flight, expected
):
    """Answers come first: a partition's next batch must not overtake them on another connection."""
    known = {} if told is None else {1: SimpleNamespace(host=told[0], port=told[1])}
    topics = SimpleNamespace(metadata=SimpleNamespace(brokers=known))
    connected = []
    lookups = SimpleNamespace(connect=lambda broker, _now: connected.append(broker))
    broker = BrokerConnection(1)
    broker.in_flight.extend([None] * in_flight)
    broker.connection = SimpleNamespace(
        closed=closed, muted_ms=0.0, address="h:1", renewal_due=renewal_due, alive=lambda: alive
    )
    connections = SimpleNamespace(unanswered=False)
    reached = Dispatcher(topics, None, connections, lookups, None, None)._is_usable(broker, 0.0)
    assert (reached, connected) == (expected == "use", [broker] if expected == "connect" else [])


@pytest.mark.parametrize(
    ("unanswered", "address", "alive", "is_an_error"),
    [
        (True, "h:1", False, True),
        (False, "h:1", False, False),
        (True, "h:1", True, False),
        (True, "h:2", True, False),
    ],
)
def test_a_connection_that_its_broker_closed_is_an_error_where_it_does_not_answer(
    unanswered, address, alive, is_an_error
):
    topics = SimpleNamespace(metadata=SimpleNamespace(brokers={1: SimpleNamespace(host="h", port=1)}))
    seen = []
    lookups = SimpleNamespace(connect=lambda *_: None, closed_by=seen.append)
    broker = BrokerConnection(1)
    broker.connection = SimpleNamespace(
        closed=False, muted_ms=0.0, address=address, renewal_due=False, alive=lambda: alive
    )
    connections = SimpleNamespace(unanswered=unanswered)
    Dispatcher(topics, None, connections, lookups, None, None)._is_usable(broker, 0.0)
    assert seen == ([broker] if is_an_error else [])


@pytest.mark.parametrize("unanswered", [True, False])
def test_a_broker_without_a_connection_is_connected_to(unanswered):
    topics = SimpleNamespace(metadata=SimpleNamespace(brokers={1: SimpleNamespace(host="h", port=1)}))
    connected, broker = [], BrokerConnection(1)
    lookups = SimpleNamespace(connect=lambda broker, _now: connected.append(broker))
    connections = SimpleNamespace(unanswered=unanswered)
    assert not Dispatcher(topics, None, connections, lookups, None, None)._is_usable(broker, 0.0)
    assert connected == [broker]


def test_a_topic_that_is_being_asked_about_gets_nothing():
    half, one = SendingHalf(), OneBroker()
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    half.queues.add(batch(1))
    lookups = SimpleNamespace(unsure={"t"})
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    assert (dispatcher.send(0.0), one.requests) == ([], [])
    lookups.unsure.clear()
    dispatcher.send(0.0)
    assert len(one.requests) == 1


def test_records_that_wait_for_a_quota_say_so():
    """Of those that expired the error was silent about it."""
    half, one = SendingHalf(), OneBroker()
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    waiting = batch(1)
    half.queues.add(waiting)
    one.broker.connection.muted_ms = 500.0
    dispatcher = Dispatcher(
        one.topics, half.queues, one.connections, SimpleNamespace(unsure=()), half.spilling, half.timer
    )
    assert (dispatcher.send(0.0), one.requests) == ([], [])
    assert "h:1: the broker enforces a quota" in str(waiting.sending.last_error)
    waiting.sending.last_error = cause = ValueError("a graver one")
    dispatcher.send(0.0)
    assert waiting.sending.last_error is cause


class OneBroker:
    """A broker that leads all partitions of ``t``, and takes every request."""

    def __init__(self):
        self.broker = BrokerConnection(1)
        self.broker.connection = SimpleNamespace(
            closed=False,
            muted_ms=0.0,
            address="h:1",
            renewal_due=False,
            alive=lambda: True,
            has_unwritten=False,
        )
        leads = SimpleNamespace(leader=1)
        topic = SimpleNamespace(error_code=ErrorCode.NONE, partitions={0: leads, 1: leads})
        brokers = {1: SimpleNamespace(host="h", port=1)}
        self.topics = SimpleNamespace(
            metadata=SimpleNamespace(topics={"t": topic}, brokers=brokers), topic_id=lambda _topic: None
        )
        self.requests, self.topic_ids = [], []
        self.connections = SimpleNamespace(
            of=lambda _node_id, _partition: self.broker,
            post=self.post,
            max_in_flight=5,
            max_bytes=1 << 20,
            unanswered=False,
        )

    def post(self, broker, batches, topic_ids, _now):
        self.requests.append(batches)
        self.topic_ids.append(topic_ids)
        broker.in_flight.append(batches)


def test_a_busy_partition_does_not_fill_each_request():
    """The batches of another one expired, although its leader took records all the time. Those of the busy
    one have always waited for longer."""
    half, one = SendingHalf(), OneBroker()
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    one.connections.max_in_flight = 1
    busy, waiting = [batch(order) for order in range(3)], batch(1)
    one.connections.max_bytes = 2 * len(busy[0].data) - 1
    waiting.topic_partition = TopicPartition("t", 1)
    for since, each in enumerate([*busy, waiting]):
        each.sending.since = float(since)
        half.queues.add(each)
    lookups = SimpleNamespace(unsure=())
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    for _ in range(4):
        dispatcher.send(5.0)
        (sent,) = one.broker.in_flight.pop()
        half.queues.of(sent.topic_partition).answered(sent, ErrorCode.NONE, None, 5.0)
    assert one.requests == [[busy[0]], [waiting], [busy[1]], [busy[2]]]


def test_a_request_goes_to_the_topic_for_which_its_batches_were_numbered():
    """Or it would be in a topic that was created again before the batches in flight to the former."""
    half, one = SendingHalf(), OneBroker()
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    ids = iter(UUID(int=number) for number in range(1, 9))  # a thread brings another whenever it is asked for
    one.topics.topic_id = lambda _topic: next(ids)
    first, second = batch(1), batch(1)
    second.topic_partition = TopicPartition("t", 1)
    for each in (first, second):
        half.queues.add(each)
    lookups = SimpleNamespace(unsure=())
    Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer).send(0.0)
    assert one.requests == [[first, second]]
    assert one.topic_ids == [{"t": UUID(int=1)}]


def test_partitions_that_are_all_busy_take_turns():
    half, one = SendingHalf(), OneBroker()
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    one.connections.max_in_flight = 1
    batches = [batch(order) for order in range(6)]
    one.connections.max_bytes = 2 * len(batches[0].data) - 1
    for place, each in enumerate(batches):
        each.topic_partition = TopicPartition("t", place % 2)
        half.queues.add(each)
    lookups = SimpleNamespace(unsure=())
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    for _ in batches:
        dispatcher.send(5.0)
        (sent,) = one.broker.in_flight.pop()
        half.queues.of(sent.topic_partition).answered(sent, ErrorCode.NONE, None, 5.0)
    assert one.requests == [[each] for each in batches]


def test_batches_that_fail_again_and_again_do_not_fill_each_request():
    half, one = SendingHalf(), OneBroker()
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    one.connections.max_in_flight = 1
    failing, waiting = batch(1), batch(1)
    one.connections.max_bytes = 2 * len(failing.data) - 1
    waiting.topic_partition, waiting.sending.since = TopicPartition("t", 1), 1.0
    for each in (failing, waiting):
        half.queues.add(each)
    lookups = SimpleNamespace(unsure=())
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    dispatcher.send(5.0)
    one.broker.in_flight.clear()
    half.queues.of(TP).answered(failing, ErrorCode.NOT_ENOUGH_REPLICAS, None, 5.0)
    dispatcher.send(10.0)  # both could be sent
    assert one.requests == [[failing], [waiting]]


@pytest.mark.parametrize(
    ("code", "given_up_at"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 31.0),
        (ErrorCode.UNKNOWN_TOPIC_ID, 31.0),
        (ErrorCode.LEADER_NOT_AVAILABLE, None),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0.0),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, 0.0),
    ],
)
def test_when_the_records_of_a_topic_with_an_error_are_given_up(code, given_up_at):
    """A broker that starts up may deny a topic for a while."""
    half, one, asked = SendingHalf(), OneBroker(), []
    one.topics.metadata.topics["t"] = SimpleNamespace(error_code=code, partitions={})
    waiting = [batch(1), batch(2)]
    for each in waiting:
        half.queues.add(each)
    lookups = SimpleNamespace(refresh=asked.append, unsure=(), asked_at=lambda _topic: 0.0)
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    for now in (0.0, 29.0, 31.0):
        given_up = dispatcher.send(now)
        if now == given_up_at:
            assert [(each.batches, each.retriable) for each in given_up] == [(waiting, False)]
            assert given_up[0].cause.error_code is code
            assert asked == ["t"]  # the next records must not fail for the same answer
            return
        assert given_up == []
        assert asked.pop() == "t"
    assert given_up_at is None


def test_a_record_does_not_fail_for_an_answer_that_is_older_than_it():
    """The topic may have been created again since."""
    half, one, asked = SendingHalf(), OneBroker(), []
    denied = SimpleNamespace(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partitions={})
    one.topics.metadata.topics["t"] = denied
    lookups = SimpleNamespace(refresh=asked.append, unsure=(), asked_at=lambda _topic: 0.0)
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    for order, (at, gone_at) in enumerate([(0.0, 31.0), (60.0, 91.0)]):
        waiting = half.wait_in(batch(order), [])
        assert dispatcher.send(at) == []
        assert asked.pop() == "t"
        (given_up,) = dispatcher.send(gone_at)
        assert given_up.batches == [waiting]
        half.failures.fail(given_up.batches, given_up.reason, given_up.cause, retriable=False)


def test_a_record_does_not_fail_for_a_refusal_that_is_older_than_it():
    """The permission may have been given since."""
    half, one, asked = SendingHalf(), OneBroker(), []
    denied = SimpleNamespace(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, partitions={})
    one.topics.metadata.topics["t"] = denied
    answered = [1.0, 3.0]
    lookups = SimpleNamespace(refresh=asked.append, unsure=(), asked_at=lambda _topic: answered.pop(0))
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    waiting = half.wait_in(batch(1), [])
    waiting.sending.since = 2.0
    assert dispatcher.send(2.0) == []
    assert asked.pop() == "t"
    # If it expires before a younger answer comes, it names this one.
    assert waiting.sending.last_error.error_code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    (given_up,) = dispatcher.send(20.0)
    assert (given_up.batches, given_up.retriable) == ([waiting], False)


@pytest.mark.parametrize("in_flight", [False, True])
def test_what_another_thread_began_to_write_is_written_on_where_no_answer_is_awaited(in_flight):
    """The handler of a signal that waits for the sender may have interrupted that thread."""
    half, one, polled = SendingHalf(), OneBroker(), []
    one.broker.connection.has_unwritten = True
    one.broker.connection.poll = lambda: polled.append(True)
    if in_flight:  # the next look at its answers writes on
        one.broker.in_flight.append([batch(0)])
    half.queues.add(batch(1))
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    lookups = SimpleNamespace(unsure=())
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    half.timer.start_turn()
    assert dispatcher.send(0.0) == []
    assert one.requests == []
    assert polled == ([] if in_flight else [True])
    assert (half.timer.next_at <= SHARED_WRITE_S) == (not in_flight)


@pytest.mark.parametrize("missing", ["topic", "partition", "leader", "broker"])
@pytest.mark.parametrize("earlier", [None, NetworkError("the connection was lost")])
def test_a_batch_without_a_leader_waits_and_keeps_the_error_that_it_had(missing, earlier):
    half, one, asked = SendingHalf(), OneBroker(), []
    metadata = one.topics.metadata
    place = {"topic": metadata.topics, "broker": metadata.brokers}
    if missing == "leader":
        metadata.topics["t"].partitions[0] = SimpleNamespace(leader=None)
    elif missing == "partition":
        del metadata.topics["t"].partitions[0]
    else:
        place[missing].clear()
    waiting = batch(1)
    half.queues.add(waiting)
    waiting.sending.last_error = earlier
    lookups = SimpleNamespace(refresh=asked.append, unsure=(), asked_at=lambda _topic: 0.0)
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    half.timer.start_turn()
    assert dispatcher.send(0.0) == []
    assert (one.requests, asked) == ([], ["t"])
    assert half.timer.next_at <= 1.2, "it is tried again though no answer may come"
    said = waiting.sending.last_error
    assert said is earlier if earlier else said.error_code is ErrorCode.LEADER_NOT_AVAILABLE


def test_what_waits_behind_a_batch_in_flight_without_numbers_is_not_given_up_before_it():
    """In the spill folder it would stand before that one, and be written first."""
    half, one = SendingHalf(), OneBroker()
    queues = PartitionQueues(SendingRules.of(ProducerConfig(), half.router.config), None)
    first, second = batch(1), batch(2)
    for each in (first, second):
        queue = queues.add(each)
    queue.sent(first, 1)
    denied = SimpleNamespace(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, partitions={})
    one.topics.metadata.topics["t"] = denied
    asked = []
    lookups = SimpleNamespace(refresh=asked.append, unsure=(), asked_at=lambda _topic: 0.0)
    dispatcher = Dispatcher(one.topics, queues, one.connections, lookups, half.spilling, half.timer)
    assert dispatcher.send(0.0) == []
    assert asked == ["t"]  # the topic may be back by then
    queue.lost(first, NetworkError("no answer"), 0.0)
    assert [each.batches for each in dispatcher.send(60.0)] == [[first, second]]


@pytest.mark.parametrize("spoil", [Path.unlink, lambda file: file.write_bytes(b"")], ids=["gone", "empty"])
def test_a_spilled_batch_that_is_unreadable_is_given_up_once_and_holds_up_no_other_partition(tmp_path, spoil):
    half, one = SendingHalf(), OneBroker()
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    folder = SpillFolder(str(tmp_path))
    (entry,) = folder.keep([NewEntry(TopicPartition("t", 0), None, 1, False, "why", batch(1).data)])
    spoil(entry.file)
    lost, follows, other = Batch.from_folder(entry, (0, 1)), batch(2), batch(1)
    other.topic_partition = TopicPartition("t", 1)
    for waiting in (lost, follows, other):
        half.queues.add(waiting)
    lookups = SimpleNamespace(unsure=())
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    (given_up,) = dispatcher.send(0.0)
    assert (given_up.batches, given_up.retriable) == ([lost], True)
    assert "it can't be read from the spill folder" in given_up.reason
    assert one.requests == [[other]]
    # The next of its partition is sent once the loop has ended that one, and not before.
    half.failures.fail(given_up.batches, given_up.reason, given_up.cause)
    one.broker.in_flight.clear()
    assert dispatcher.send(0.0) == []
    assert one.requests == [[other], [follows]]
    folder.close()


def test_the_time_of_a_batch_from_the_folder_begins_when_the_one_in_front_is_unreadable(tmp_path):
    half, one = SendingHalf(), OneBroker()
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    lost, follows = spilled(1, (7, 0, 0))[0], spilled(2, (7, 0, 1))[0]
    lost.spilled = lost.spilled._replace(file=tmp_path / "deleted")
    for waiting in (lost, follows):
        waiting.sending.since = 0.0
        half.queues.add(waiting)
    lookups = SimpleNamespace(unsure=())
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    (given_up,) = dispatcher.send(119.0)
    assert given_up.batches == [lost]
    assert follows.sending.since == 119.0


def test_the_folder_has_the_numbers_of_a_batch_once_it_is_sent(tmp_path):
    """If its answer is lost, the next producer must send it under the same."""
    half, one = SendingHalf(SpillFolder(str(tmp_path))), OneBroker()
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    (entry,) = half.spilling._folder.keep([NewEntry(TP, None, 1, False, "why", batch(1).data)])
    half.queues.add(Batch.from_folder(entry, (0, 1)))
    lookups = SimpleNamespace(unsure=())
    Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer).send(0.0)
    half.spilling.close()
    again = SpillFolder(str(tmp_path))
    (left,) = again.entries
    assert numbers(SimpleNamespace(data=left.read())) == numbers(one.requests[0][0]) == (7, 0, 0)
    assert left.possibly_persisted
    again.close()


def test_a_batch_larger_than_a_request_is_sent_in_one_of_its_own():
    """As one of the spill folder may be, where the producer that left it had another limit."""
    half, one = SendingHalf(), OneBroker()
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    first, second = batch(1), batch(1)
    second.topic_partition = TopicPartition("t", 1)
    for waiting in (first, second):
        half.queues.add(waiting)
    one.connections.max_bytes = len(first.data) - 1
    lookups = SimpleNamespace(unsure=())
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    assert dispatcher.send(0.0) == []
    assert one.requests == [[first], [second]]


def test_a_topic_that_the_metadata_do_not_have_any_more_is_not_prepared():
    """Others may have refreshed them since it was opened."""
    half, one = SendingHalf(), OneBroker()
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    used = []
    one.connections.of = lambda node_id, partition: used.append((node_id, partition)) or one.broker
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, None, half.spilling, half.timer)
    dispatcher.prepare("gone", 0.0)
    assert used == []
    dispatcher.prepare("t", 0.0)
    assert used == [(1, 0), (1, 1)]


def test_batches_of_which_nothing_was_written_keep_their_places_and_their_broker_is_left_alone():
    half, one, failed = SendingHalf(), OneBroker(), []
    half.queues.producer_id.received(ProducerIdentity(7, 0))
    waiting = [batch(1), batch(2)]
    for each in waiting:
        queue = half.queues.add(each)
    other = batch(1)
    other.topic_partition = TopicPartition("t", 1)
    queue_of_other = half.queues.add(other)
    error = NetworkError("the connection is closed")

    def refuse(*_request):
        raise error

    one.connections.post = refuse
    lookups = SimpleNamespace(unreachable=lambda *told: failed.append(told), unsure=())
    dispatcher = Dispatcher(one.topics, half.queues, one.connections, lookups, half.spilling, half.timer)
    assert dispatcher.send(0.0) == []
    assert failed == [(one.broker, error)]
    assert (list(queue.waiting), list(queue.in_flight)) == (waiting, [])
    assert (list(queue_of_other.waiting), list(queue_of_other.in_flight)) == ([other], [])
    assert [(each.sending.attempts, each.sending.indefinite) for each in (*waiting, other)] == [
        (0, False)
    ] * 3
    one.connections.post = one.post
    dispatcher.send(0.0)
    assert one.requests == [[waiting[0], other]]
