"""Lookups that fail, come late, or find no thread."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from support.brokers.produce_cluster import (
    refused,
)
from support.brokers.scripted_broker import properties
from support.producer.producing import TP, producing, send, wait_until
from support.producer.sending_batches import SendingHalf, batch

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    DeadlineExceededError,
    KafkaError,
    NetworkError,
    SecurityError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.accumulating.batch import ProducerIdentity
from spark_kafka_native.kafka.producer.errors import ProducerClosedError, TransactionAbortableError
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.producer.sending import background_lookups, sender
from spark_kafka_native.kafka.producer.sending.background_lookups import TransactionPartitions
from spark_kafka_native.kafka.producer.sending.idempotence import MAX_EPOCH
from spark_kafka_native.kafka.producer.sending.produce_requests import BrokerConnection
from spark_kafka_native.kafka.producer.sending.transaction import State, Transaction, TransactionEvent
from spark_kafka_native.kafka.protocol.api.configs import DescribeConfigsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_native.kafka.runtime import background

pytestmark = pytest.mark.timed(0.1)


@pytest.mark.parametrize("question", ["connection", "ask_any", "refresh"])
def test_a_question_that_fails_unexpectedly_is_asked_again(cluster, monkeypatch, question):
    real, failed = getattr(Router, question), []

    def ask(*args, **kwargs):
        if not failed and threading.current_thread().name.startswith("kafka-producer-"):
            failed.append(question)
            raise ZeroDivisionError(question)
        return real(*args, **kwargs)

    monkeypatch.setattr(Router, question, ask)
    cluster.script(TP, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    with producing(cluster) as producer:
        assert send(producer, 1)[0].exception(60) is None
        wait_until(lambda: failed and not producer._sender.loop.lookups._asking_metadata)


def passing(error: KafkaError) -> KafkaError:
    """As a connection raises it where others were possible before."""
    error.may_pass = True
    return error


@pytest.mark.parametrize(
    "error",
    [passing(SecurityError("an old certificate")), passing(ConfigError("ssl.ca.location is no file"))],
    ids=str,
)
@pytest.mark.parametrize("question", ["connection", "refresh"])
def test_a_producer_that_has_connected_waits_for_what_may_pass(cluster, monkeypatch, question, error):
    """One broker with an old certificate, or a file that was being replaced, ended it for all brokers."""
    real, failed = getattr(Router, question), []

    def ask(*args, **kwargs):
        if len(failed) < 3 and threading.current_thread().name.startswith("kafka-producer-"):
            failed.append(question)
            raise error
        return real(*args, **kwargs)

    with producing(cluster) as producer:
        assert send(producer, 1)[0].exception(60) is None
        monkeypatch.setattr(Router, question, ask)
        if question == "connection":
            for broker in producer._sender.loop.connections:
                broker.connection.close()
        else:
            cluster.script(TP, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert send(producer, 1, start=1)[0].exception(60) is None
        wait_until(lambda: failed)
        assert send(producer, 1, start=2)[0].exception(60) is None


@pytest.mark.parametrize("error", [SecurityError("an old certificate"), AuthenticationError("no")], ids=str)
def test_before_a_producer_has_connected_nothing_passes(cluster, monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(Router, "connection", refuse)
    monkeypatch.setattr(Router, "refresh", refuse)
    monkeypatch.setattr(Router, "ask_any", refuse)
    with producing(cluster) as producer, pytest.raises(KafkaError, match=str(error)):
        producer.send(TP.topic, value=b"x").result(60)


def test_credentials_that_are_refused_later_end_a_producer(cluster, monkeypatch):
    """Trying them again would lock the account."""
    asked = []

    def refuse(*_, **__):
        asked.append(1)
        raise AuthenticationError("the password has changed")

    with producing(cluster) as producer:
        assert send(producer, 1)[0].exception(60) is None
        monkeypatch.setattr(Router, "connection", refuse)
        for broker in producer._sender.loop.connections:
            broker.connection.close()
        with pytest.raises(KafkaError, match="the password has changed"):
            producer.send(TP.topic, value=b"x").result(60)
        assert len(asked) == 1


def test_where_no_thread_can_be_started_questions_are_asked_all_the_same(cluster, monkeypatch):
    def start():
        raise RuntimeError("can't create new thread at interpreter shutdown")

    no_thread = SimpleNamespace(Thread=lambda **_: SimpleNamespace(start=start))
    monkeypatch.setattr(background, "threading", no_thread)
    with producing(cluster) as producer:
        assert send(producer, 1)[0].exception(60) is None


def test_a_connection_in_use_is_not_replaced(cluster):
    # The metadata named another address for a moment; the one that was in use is right again.
    closed = []
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.delay_s = 0.3
        (broker,) = [b for b in producer._sender.loop.connections if b.connection]
        delivery = send(producer, 1, start=1)[0]
        wait_until(lambda: broker.in_flight)
        other = SimpleNamespace(close=lambda: closed.append(1))
        lookups = producer._sender.loop.lookups
        lookups.finished.append(lambda: lookups._connected(broker, other))
        producer._sender.wake()
        assert delivery.exception(60) is None
    assert closed


class Asking:
    """Two batches of a partition wait for a producer id; `ask` asks `answer`, in this thread."""

    def __init__(self, answer, monkeypatch, retry_backoff_ms=1_000):
        monkeypatch.setattr(background_lookups, "start_thread", lambda work, _name: work())
        self.now, self.answer, self.asked = 100.0, answer, 0
        self.ends = []
        self.half = half = SendingHalf(
            ask_any=self.ask_any, clock=lambda: self.now, retry_backoff_ms=retry_backoff_ms
        )
        self.partition = half.queues.of(TP)
        for order in (1, 2):
            half.wait_in(batch(order), self.ends)

    def ask_any(self, _request, _deadline):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def ask(self):
        self.half.timer.next_at = 1e9
        self.half.lookups.ask_producer_id()
        self.half.finish_lookups()


def identity_response(code, producer_id=-1):
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=3
    )


@pytest.mark.parametrize(
    "final",
    [
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        SecurityError("certificate verify failed"),
        AuthenticationError("the password is wrong"),
        ConfigError("ssl.ca.location is no file"),
    ],
    ids=lambda error: getattr(error, "name", type(error).__name__),
)
def test_a_final_refusal_of_a_producer_id_ends_what_waits_with_that_error(final, monkeypatch):
    by_code = isinstance(final, ErrorCode)
    asking = Asking(identity_response(final) if by_code else final, monkeypatch)
    asking.ask()
    cause = asking.half.failures.fatal
    if by_code:
        assert (type(cause), cause.error_code) == (BrokerError, final)
        assert "InitProducerId (enable.idempotence=false does without a producer id)" in str(cause)
        assert cause.operation == "Write on a topic, or IdempotentWrite"
    else:
        assert cause is final
    with pytest.raises(ProducerClosedError) as closed:
        asking.half.topics.raise_if_closed()
    assert closed.value.__cause__ is cause
    assert [one.order for one, _ in asking.ends] == [(1,), (2,)]
    for _, outcome in asking.ends:
        assert outcome.error.__cause__ is cause
        assert outcome.error.reason == f"the producer can't go on: {cause}"
    assert not asking.partition.waiting
    assert not asking.half.completion.incomplete


@pytest.mark.parametrize(
    "passing",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        NetworkError("the connection was lost"),
        KafkaError("none of the brokers"),
    ],
    ids=lambda error: getattr(error, "name", type(error).__name__),
)
def test_a_passing_refusal_of_a_producer_id_is_asked_about_again_after_a_while(passing, monkeypatch):
    by_code = isinstance(passing, ErrorCode)
    asking = Asking(identity_response(passing) if by_code else passing, monkeypatch)
    asking.ask()
    assert asking.half.failures.fatal is None
    assert not asking.half.topics.closed
    assert asking.ends == []
    blamed = asking.partition.waiting[0].sending.last_error
    assert blamed.error_code is passing if by_code else blamed is passing
    again_at = asking.half.timer.next_at
    assert 100 < again_at < 102
    asking.now = again_at - 0.01
    asking.ask()
    assert (asking.asked, asking.half.timer.next_at) == (1, again_at)
    asking.now, asking.answer = again_at, identity_response(ErrorCode.NONE, 7)
    asking.ask()
    assert asking.asked == 2
    assert asking.half.queues.producer_id.current == ProducerIdentity(7, 3)


def test_each_refusal_of_a_producer_id_doubles_the_wait_until_one_is_given(monkeypatch):
    refused = identity_response(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    asking, waits = Asking(refused, monkeypatch, retry_backoff_ms=100), []

    def ask_again():
        asking.ask()
        waits.append(asking.half.timer.next_at - asking.now)
        asking.now = asking.half.timer.next_at

    for _ in range(3):
        ask_again()
    asking.answer = identity_response(ErrorCode.NONE, 7)
    asking.ask()
    asking.answer = refused
    ask_again()
    assert asking.asked == 5
    assert waits == [pytest.approx(wait, rel=0.25) for wait in (0.1, 0.2, 0.4, 0.1)]


def test_a_question_for_a_producer_id_does_not_outlive_its_producer(cluster, monkeypatch):
    """With a router that others use, too, it looked for a broker that was gone for another minute."""
    real, asked = Router.ask_any, []

    def ask(router, request, deadline):
        if isinstance(request, InitProducerIdRequest):
            asked.append(request)
            raise NetworkError("no broker can be connected to")
        return real(router, request, deadline)

    monkeypatch.setattr(Router, "ask_any", ask)
    settings = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
    router = Router(settings)
    producer = Producer(settings, ProducerConfig(batch_records=1), router=router)
    send(producer, 1)
    wait_until(lambda: len(asked) > 1)
    producer.close(0)
    wait_until(lambda: all(one.name != "kafka-producer-identity" for one in threading.enumerate()), 20)
    router.close()


def test_one_thread_asks_for_a_producer_id_and_another_when_its_epochs_are_used_up(monkeypatch):
    asking, threads = Asking(identity_response(ErrorCode.NONE, 7), monkeypatch), []
    monkeypatch.setattr(background_lookups, "start_thread", lambda work, _name: threads.append(work))
    producer_id = asking.half.queues.producer_id
    asking.ask()
    asking.ask()
    assert len(threads) == 1
    assert asking.half.timer.next_at > asking.now  # the sender does not spin until the answer comes
    threads.pop()()
    asking.half.finish_lookups()
    assert producer_id.current == ProducerIdentity(7, 3)
    producer_id.received(ProducerIdentity(7, MAX_EPOCH))
    assert producer_id.bump_epoch() is None
    asking.answer = identity_response(ErrorCode.NONE, 8)
    asking.ask()
    threads.pop()()
    asking.half.finish_lookups()
    assert producer_id.current == ProducerIdentity(8, 3)


def looking_up(asked, failure=None):
    """A router's `refresh` that notes its topics in ``asked``, and raises ``failure``, if there is one."""

    def refresh(topics, _deadline):
        asked.append(sorted(topics))
        if failure is not None:
            raise failure

    return refresh


class Connecting:
    """Broker 1 leads ``t``, and broker 2 ``u``; a connection is there when the test says so. A lookup of
    metadata raises ``failure``, if there is one."""

    def __init__(self, monkeypatch, failure=None):
        self.threads, self.now, self.asked = [], 100.0, []
        self.half = half = SendingHalf(clock=lambda: self.now, retry_backoff_ms=100)
        half.router.config.connection_setup_timeout_ms = 1_000
        half.router.connection = lambda *_: self.found
        half.router.refresh = looking_up(self.asked, failure)
        topics = {
            topic: SimpleNamespace(
                error_code=ErrorCode.NONE, partitions={0: SimpleNamespace(leader=leader, leader_epoch=0)}
            )
            for topic, leader in (("t", 1), ("u", 2))
        }
        half.router.snapshot = SimpleNamespace(topics=topics, brokers={})
        monkeypatch.setattr(background_lookups, "start_thread", lambda work, _name: self.threads.append(work))
        self.broker = BrokerConnection(1)
        self.found = self.connection()

    @staticmethod
    def connection(closed=False):
        connection = SimpleNamespace(closed=closed)
        connection.close = lambda: setattr(connection, "closed", True)
        return connection

    def connect(self):
        self.half.lookups.connect(self.broker, self.now)

    def answer(self):
        self.threads.pop()()
        self.half.finish_lookups()


def test_one_thread_at_a_time_connects_to_a_broker(monkeypatch):
    connecting = Connecting(monkeypatch)
    connecting.connect()
    connecting.connect()
    assert len(connecting.threads) == 1
    connecting.answer()
    assert connecting.broker.connection is connecting.found
    connecting.found = connecting.connection()
    connecting.connect()
    connecting.answer()
    assert connecting.broker.connection is connecting.found


@pytest.mark.parametrize(
    ("in_flight", "closed", "is_replaced"),
    [(0, False, True), (0, True, True), (1, False, False), (1, True, True)],
)
def test_another_connection_replaces_one_on_which_no_answer_can_come(
    monkeypatch, in_flight, closed, is_replaced
):
    connecting = Connecting(monkeypatch)
    former = connecting.broker.connection = connecting.connection(closed)
    connecting.broker.in_flight.extend([None] * in_flight)
    connecting.connect()
    connecting.answer()
    assert connecting.broker.connection is (connecting.found if is_replaced else former)
    assert connecting.found.closed is not is_replaced


def test_the_failures_to_reach_a_broker_before_a_connection_do_not_count(monkeypatch):
    connecting, waits = Connecting(monkeypatch), []

    def fail():
        connecting.half.lookups.unreachable(connecting.broker, NetworkError("refused"))
        waits.append(connecting.broker.not_before - connecting.now)
        connecting.now = connecting.broker.not_before

    for _ in range(3):
        fail()
    connecting.connect()
    connecting.answer()
    fail()
    assert waits == [pytest.approx(wait, rel=0.25) for wait in (0.1, 0.2, 0.4, 0.1)]


def test_the_leaders_of_the_partitions_of_a_broker_that_is_not_reached_are_looked_for(monkeypatch):
    """What waits for another broker says nothing of it, in the same topic or in another."""
    connecting, lost = Connecting(monkeypatch), NetworkError("refused")
    connecting.half.router.snapshot.topics["t"].partitions |= {
        1: SimpleNamespace(leader=2, leader_epoch=0),
        2: SimpleNamespace(leader=None, leader_epoch=0),
        3: SimpleNamespace(leader=1, leader_epoch=0),
    }
    batches = {
        TopicPartition(*where): batch(1) for where in (*(("t", index) for index in range(4)), ("u", 0))
    }
    for where, each in batches.items():
        each.topic_partition = where
        connecting.half.queues.add(each)
    waits = []
    for _ in range(2):
        connecting.half.lookups.unreachable(connecting.broker, lost)
        waits.append(connecting.broker.not_before - connecting.now)
    assert [each.sending.last_error for each in batches.values()] == [lost, None, None, lost, None]
    assert 0.07 < waits[0] < 0.13 < waits[1]
    connecting.connect()
    assert not connecting.threads
    connecting.half.lookups.ask_metadata(connecting.now)
    connecting.answer()
    assert connecting.asked == [["t"]]


@pytest.mark.parametrize("leaders", [[1], [1, 2], [2, 1], [None, 2, 1]], ids=str)
@pytest.mark.parametrize("failure", [None, NetworkError("refused")], ids=["answered", "failed"])
def test_a_broker_without_answers_that_hangs_up_makes_the_topics_that_it_leads_unsure(
    monkeypatch, failure, leaders
):
    """One partition of a topic is enough. Of a topic that has just been opened nothing is known yet. A lookup
    that fails ends it too, as nothing asks for another one before the topic is sent to."""
    connecting = Connecting(monkeypatch, failure)
    for topic, led_by in (("t", leaders), ("u", [2, None])):
        partitions = {index: SimpleNamespace(leader=leader) for index, leader in enumerate(led_by)}
        connecting.half.router.snapshot.topics[topic].partitions = partitions
    opened = [SimpleNamespace(topic=topic) for topic in ("new", "t", "u")]
    monkeypatch.setattr(connecting.half.topics, "all", lambda: opened)
    connecting.broker.connection = connecting.found
    connecting.half.lookups.closed_by(connecting.broker)
    assert connecting.broker.connection is None
    assert connecting.half.lookups.unsure == {"t"}
    connecting.half.lookups.ask_metadata(connecting.now)
    connecting.answer()
    assert (connecting.asked, connecting.half.lookups.unsure) == ([["t"]], set())


def adding(monkeypatch, fails=None):
    """A transaction of version 1, its partitions to be added, and what its coordinator was asked for."""
    threads, asked = [], []

    def add(_router, _transaction, wanted, _deadline):
        asked.append(wanted)
        if fails is not None:
            raise fails

    monkeypatch.setattr(background_lookups, "start_thread", lambda work, _name: threads.append(work))
    monkeypatch.setattr(background_lookups, "add_partitions", add)
    half, transaction = SendingHalf(), Transaction("orders")
    half.router.deadline = lambda: None
    transaction.producer_id.received(ProducerIdentity(7, 0))
    transaction.move(TransactionEvent.INITIALIZED)
    transaction.begin(1)
    return half, transaction, TransactionPartitions(transaction, half.router, half.lookups), threads, asked


def test_partitions_are_added_to_a_transaction_by_one_request_at_a_time(monkeypatch):
    half, transaction, partitions, threads, asked = adding(monkeypatch)
    wanted = [TopicPartition("t", index) for index in range(3)]
    for known in (wanted[:1], wanted):
        assert not any(transaction.admits(one) for one in known)
        partitions.add_wanted()
    assert len(threads) == 1
    for admitted in (wanted[:1], wanted):
        threads.pop()()
        half.finish_lookups()
        assert [one for one in wanted if transaction.admits(one)] == admitted
        partitions.add_wanted()
    assert (asked, threads) == ([wanted[:1], wanted[1:]], [])


@pytest.mark.parametrize("ends", ["failed", "aborted"])
def test_a_transaction_that_can_only_be_aborted_gets_no_more_partitions(monkeypatch, ends):
    """After the coordinator has aborted it they would begin another, which is in the way of readers."""
    _, transaction, partitions, threads, _ = adding(monkeypatch)
    assert not transaction.admits(TopicPartition("t", 0))
    if ends == "failed":
        transaction.failed(KafkaError("a batch was refused"))
    else:
        transaction.move(TransactionEvent.ABORT)
    partitions.add_wanted()
    assert (threads, partitions.adding, transaction.touched) == ([], False, False)


@pytest.mark.parametrize(
    ("error", "state", "uncertain"),
    [
        (TransactionAbortableError("refused"), State.ABORTABLE, False),
        (DeadlineExceededError("no answer"), State.ABORTABLE, True),
        (passing(SecurityError("an old certificate")), State.ABORTABLE, True),
        (AuthenticationError("the password has changed"), State.FATAL, False),
        (BrokerError(ErrorCode.PRODUCER_FENCED, "AddPartitionsToTxn"), State.FATAL, False),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else None,
)
def test_a_transaction_has_failed_before_an_abort_may_go_on(monkeypatch, error, state, uncertain):
    """An abort waits until nothing is being added, and acts by the state that it finds then."""
    half, transaction, partitions, threads, _ = adding(monkeypatch, error)
    assert not transaction.admits(TP)
    partitions.add_wanted()
    threads.pop()()
    (act,) = half.lookups.finished
    final = act()
    assert (transaction.state, transaction.uncertain, partitions.adding) == (state, uncertain, False)
    assert final is (error if state is State.FATAL else None)


class Refreshing:
    """Looks for metadata in this thread, at a clock of its own; `asked` holds the topics of each lookup. A
    lookup raises ``failure``, if there is one."""

    def __init__(self, monkeypatch, error_code=ErrorCode.NONE, failure=None):
        self.threads = []
        self.now, self.asked = 100.0, []
        self.half = SendingHalf(clock=lambda: self.now, retry_backoff_ms=100)
        router = self.half.router
        router.snapshot = SimpleNamespace(topics={"t": SimpleNamespace(error_code=error_code)})
        router.refresh = looking_up(self.asked, failure)
        monkeypatch.setattr(background_lookups, "start_thread", lambda work, _name: self.threads.append(work))

    def answer(self):
        self.threads.pop()()
        self.half.finish_lookups()

    def want(self, *topics):
        for topic in topics:
            self.half.lookups.refresh(topic)
        self.half.lookups.ask_metadata(self.now)


def test_all_topics_are_refreshed_by_one_thread_with_one_request(monkeypatch):
    refreshing = Refreshing(monkeypatch)
    names = [f"t{i:03d}" for i in range(600)]
    refreshing.want(*names)
    refreshing.want(*names, "late")
    assert len(refreshing.threads) == 1
    refreshing.answer()
    assert refreshing.asked == [names]
    refreshing.want()
    refreshing.answer()
    assert refreshing.asked == [names, ["late"]]


def test_topics_whose_metadata_are_old_are_asked_about_together(cluster, monkeypatch):
    monkeypatch.setattr(background_lookups, "LEAST_AGE_S", 0.3)
    names = [f"t{i:02d}" for i in range(40)]
    for name in names:
        cluster.create(name)
    with producing(cluster, client={"metadata_max_age_ms": 300}) as producer:
        rows = pa.record_batch({"topic": names, "value": [b"x"] * len(names)})
        assert len(producer.send_columns(rows).result(60).topics) == len(names)
        asked = lambda: cluster[1].requests(MetadataRequest)  # noqa: E731
        already = len(asked())
        wait_until(lambda: sum(len(one.topics) for one in asked()[already:]) >= 4 * len(names))
        configs = cluster[1].requests(DescribeConfigsRequest)
    # Where this thread or the sender's had to wait, some were due a moment before the others.
    assert np.mean([len(one.topics) for one in asked()[already:]]) > len(names) / 3
    assert np.mean([len(one.resources) for one in configs]) > len(names) / 3


@pytest.mark.parametrize(
    ("code", "most"), [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 45), (ErrorCode.NONE, 400)]
)
def test_the_partitions_of_a_topic_share_its_backoff(monkeypatch, code, most):
    refreshing = Refreshing(monkeypatch, code)
    for _ in range(3_000):  # a caller wants it each 10 ms, for 30 s
        refreshing.want("t")
        while refreshing.threads:
            refreshing.answer()
        refreshing.now += 0.01
    assert 20 < len(refreshing.asked) < most


@pytest.mark.parametrize(
    ("told", "gone"), [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True), (ErrorCode.NONE, False)]
)
def test_metadata_without_the_topic_are_no_news_of_it(monkeypatch, told, gone):
    refreshing = Refreshing(monkeypatch, told)
    queue = refreshing.half.queues.add(batch(1))
    assert not queue.denied(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0.0)
    refreshing.want("t")
    refreshing.answer()
    assert queue.denied(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 31.0) is gone


def test_metadata_that_do_not_come_are_no_news_and_the_reason_why_their_topics_wait(monkeypatch):
    """The metadata of before still have the topic."""
    lost = NetworkError("refused")
    refreshing = Refreshing(monkeypatch, failure=lost)
    waiting, other = batch(1), batch(1)
    other.topic_partition = TopicPartition("u", 0)
    queue = refreshing.half.queues.add(waiting)
    refreshing.half.queues.add(other)
    assert not queue.denied(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0.0)
    refreshing.want("t")
    refreshing.answer()
    assert (waiting.sending.last_error, other.sending.last_error) == (lost, None)
    assert queue.denied(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 31.0)


def test_an_answer_is_as_old_as_its_question(monkeypatch):
    refreshing = Refreshing(monkeypatch, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert refreshing.half.lookups.asked_at("t") < 0
    refreshing.want("t")
    refreshing.now = 105.0
    refreshing.answer()
    assert refreshing.half.lookups.asked_at("t") == 100.0


def test_each_lookup_of_metadata_that_fails_doubles_the_wait_for_the_next(monkeypatch):
    refreshing = Refreshing(monkeypatch, failure=NetworkError("refused"))
    waits = []
    for _ in range(3):
        asked_at = refreshing.now
        refreshing.want("t")
        refreshing.answer()
        refreshing.half.timer.next_at = 1e9
        refreshing.want("t")
        assert not refreshing.threads
        refreshing.now = refreshing.half.timer.next_at
        waits.append(refreshing.now - asked_at)
    assert waits == [pytest.approx(wait, rel=0.25) for wait in (0.2, 0.4, 0.8)]


def test_a_topic_that_is_in_its_backoff_is_asked_about_when_that_is_over(monkeypatch):
    refreshing = Refreshing(monkeypatch)
    refreshing.want("t")
    refreshing.answer()
    refreshing.half.timer.next_at = 1e9
    refreshing.want("t")
    assert not refreshing.threads
    assert 100.07 < refreshing.half.timer.next_at < 100.13
    refreshing.now = refreshing.half.timer.next_at
    refreshing.want()
    refreshing.answer()
    assert refreshing.asked == [["t"], ["t"]]


@pytest.mark.parametrize(
    ("max_age_ms", "turns", "expected"),
    [
        (300_000, (100.0, 399.0, 400.0, 401.0, 699.0, 700.0), [400.0, 700.0]),
        (1, (100.0, 100.5, 101.0, 101.5, 102.0), [101.0, 102.0]),  # not more often than each second
    ],
)
def test_a_topic_is_asked_about_when_its_metadata_have_reached_their_age(
    monkeypatch, max_age_ms, turns, expected
):
    refreshing = Refreshing(monkeypatch)
    refreshing.half.router.config.metadata_max_age_ms = max_age_ms
    described = SimpleNamespace(topic="t", described_at=100.0)
    monkeypatch.setattr(refreshing.half.topics, "all", lambda: [described])
    asked_at = []
    for now in turns:
        refreshing.now = now
        refreshing.half.lookups.refresh_old(now)
        refreshing.want()
        if refreshing.threads:
            asked_at.append(now)
            refreshing.answer()
    assert asked_at == expected


def test_the_sender_waits_for_old_metadata_that_do_not_come(cluster, monkeypatch):
    """It has asked: until the answer it looks for them at their age again, and not all the time."""
    monkeypatch.setattr(background_lookups, "LEAST_AGE_S", 0.2)
    asked, answered, waits = threading.Event(), threading.Event(), []
    refresh, wait = Router.refresh, sender.wait_for_streams

    def late(*arguments):
        asked.set()
        assert answered.wait(60)
        return refresh(*arguments)

    def counted(*arguments):
        waits.append(1)
        return wait(*arguments)

    with producing(cluster, client={"metadata_max_age_ms": 200}) as producer:
        send(producer, 1)
        producer.flush(60)
        monkeypatch.setattr(Router, "refresh", late)
        monkeypatch.setattr(sender, "wait_for_streams", counted)
        try:
            assert asked.wait(60)
            before = len(waits)
            time.sleep(0.6)
            turns = len(waits) - before
        finally:
            answered.set()
    assert turns < 30
