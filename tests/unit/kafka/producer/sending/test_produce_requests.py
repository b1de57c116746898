"""How a broker's answers are judged: late ones, ones that leave something out, and its own words."""

from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import pytest
from support.brokers.produce_cluster import ProduceCluster
from support.brokers.scripted_broker import properties
from support.producer.sending_batches import batch

from spark_kafka_native.kafka.cluster.metadata import NO_TOPIC_ID
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, NetworkError, UnsupportedVersionError
from spark_kafka_native.kafka.model import Acks, TopicPartition
from spark_kafka_native.kafka.producer.errors import RecordsRefusedError
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.producer.sending.produce_requests import (
    LAST_VERSION_BY_NAME,
    LAST_VERSION_OF_TRANSACTIONS_1,
    BrokerConnection,
    InFlightRequest,
    ProduceConnections,
    Unanswered,
    choose_version,
    error_of,
    error_words,
)
from spark_kafka_native.kafka.producer.sending.transaction import State, Transaction, TransactionEvent
from spark_kafka_native.kafka.producer.stats import StatsRecorder
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

TP = TopicPartition("t", 0)
T_ID = UUID(int=5)


def speaking(last_version):
    """A connection to a broker that knows Produce up to ``last_version``."""
    version_of = lambda _request, at_most=99: min(last_version, at_most)  # noqa: E731
    return SimpleNamespace(version_of=version_of, address="h:1")


def connections_to(*node_ids, config=None, by=lambda _when: None):
    """To brokers of which nothing else is known."""
    router = SimpleNamespace(
        config=SimpleNamespace(request_timeout_ms=10_000),
        snapshot=SimpleNamespace(brokers=dict.fromkeys(node_ids)),
    )
    timer = SimpleNamespace(by=by)
    return ProduceConnections(router, config or ProducerConfig(), StatsRecorder(), timer, None)


class NeverAnswering:
    """A connection with requests that stay unanswered; says whether it was given up."""

    def __init__(self, has_unwritten=False, answered_at=0.0):
        self.given_up = []
        self.answered_at = answered_at
        self.has_unwritten = has_unwritten

    def poll(self):
        pass

    def give_up(self, pending, waited_ms, *, is_overdue):
        assert is_overdue
        self.given_up.append((pending, waited_ms))


@pytest.mark.parametrize(
    ("sent_at", "last_answer_at", "now", "late"),
    [
        (0.0, 0.0, 9.9, False),
        (0.0, 0.0, 10.0, True),
        (0.0, 5.0, 10.0, False),
        (0.0, 5.0, 15.0, True),
        (7.0, 5.0, 15.0, False),
    ],
)
@pytest.mark.parametrize("is_others", [False, True], ids=["ours", "of another client"])
def test_the_clock_of_a_request_starts_when_the_one_before_is_answered(
    sent_at, last_answer_at, now, late, is_others
):
    answered_at = last_answer_at
    if is_others:
        last_answer_at = 0.0
    due = []
    connections = connections_to(1, by=due.append)
    broker, connection = connections.of(1, 0), NeverAnswering(answered_at=answered_at)
    pending = SimpleNamespace(done=False)
    broker.connection, broker.last_answer_at = connection, last_answer_at
    broker.in_flight.append(SimpleNamespace(pending=pending, sent_at=sent_at))
    assert list(connections.read(now)) == []
    assert connection.given_up == ([(pending, 10_000.0)] if late else [])
    assert due == [now if late else max(sent_at, answered_at) + 10]


def test_the_clock_of_the_next_request_starts_with_an_answer():
    """Not with its sending: a broker handles the requests of a connection one after the other."""
    due = []
    connections = connections_to(1, by=due.append)
    broker, connection = connections.of(1, 0), NeverAnswering()
    broker.connection = connection
    for pending in (Lost(), SimpleNamespace(done=False)):
        broker.in_flight.append(SimpleNamespace(pending=pending, sent_at=0.0, batches=[]))
    for now in (9.0, 18.9):
        assert list(connections.read(now)) == []
    assert (connection.given_up, due) == ([], [19.0, 19.0])
    list(connections.read(19.0))
    assert len(connection.given_up) == 1


@pytest.mark.parametrize("late", [21.5, 40.0])
def test_a_client_that_was_held_up_before_all_was_written_waits_once_more(late):
    """Its process was stopped: the batch was cut as soon as its rest was sent, and written twice."""
    due = []
    connections = connections_to(1, by=due.append)
    broker, connection = connections.of(1, 0), NeverAnswering(has_unwritten=True)
    pending = SimpleNamespace(done=False)
    broker.connection = connection
    broker.in_flight.append(
        InFlightRequest(pending=pending, batches=[], by_id=True, topic_ids={}, sent_at=0.0)
    )
    for now in (11.5, 21.4):
        assert list(connections.read(now)) == []
    assert (connection.given_up, due) == ([], [21.5, 21.5])
    # Once only: a client that is always late would wait for a dead broker for ever.
    assert list(connections.read(late)) == []
    assert connection.given_up == [(pending, 10_000.0)]


def test_a_client_that_was_held_up_after_all_was_written_waits_no_longer():
    """The broker had its time: each slow callback would cost the records a request timeout more."""
    connections = connections_to(1)
    broker, connection = connections.of(1, 0), NeverAnswering()
    pending = SimpleNamespace(done=False)
    broker.connection = connection
    broker.in_flight.append(SimpleNamespace(pending=pending, sent_at=0.0))
    assert list(connections.read(11.5)) == []
    assert connection.given_up == [(pending, 10_000.0)]


def test_the_clock_of_a_request_starts_when_it_is_posted():
    """Not with the turn of the loop, in which a callback may have taken long."""
    connections = connections_to(1)
    connections._timer.clock = lambda: 12.0
    broker = connections.of(1, 0)
    posted = SimpleNamespace(done=False)
    broker.connection = SimpleNamespace(**vars(speaking(9)), post=lambda _request, _version: posted)
    connections.post(broker, [batch(1)], {}, 1.0)
    (request,) = broker.in_flight
    assert (request.pending, request.sent_at) == (posted, 12.0)


@pytest.mark.parametrize(
    ("last_version", "transaction_version", "answer", "counts"),
    [
        (13, 2, None, False),
        (13, 2, ErrorCode.UNKNOWN_TOPIC_ID, False),
        (13, 2, ErrorCode.NONE, True),
        (13, 2, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, True),
        (LAST_VERSION_BY_NAME, 2, None, True),
        (13, 1, None, True),
    ],
)
def test_when_the_id_of_a_topic_counts_for_a_transaction(last_version, transaction_version, answer, counts):
    """By id only a leader's word for it: the one that a broker gave while it lagged behind fails nothing."""
    transaction = Transaction("id")
    transaction.move(TransactionEvent.INITIALIZED)
    transaction.begin(transaction_version)
    connections = connections_to(1)
    connections._transaction, connections._timer.clock = transaction, lambda: 0.0
    broker = connections.of(1, 0)
    pending = SimpleNamespace(done=False, what="Produce", release=lambda: None)
    broker.connection = SimpleNamespace(
        **vars(speaking(last_version)), post=lambda *_request: pending, poll=lambda: None, has_unwritten=False
    )
    connections.post(broker, [batch(1)], {"t": T_ID}, 0.0)
    assert transaction.touched
    if answer is not None:
        told = PartitionProduceResponse(index=0, error_code=answer, base_offset=-1)
        topic = TopicProduceResponse(topic_id=T_ID, partition_responses=[told])
        pending.done, pending.result = True, lambda _timeout_ms: ProduceResponse(responses=[topic])
        (answered,) = connections.read(1.0)
        assert answered.response is told
    transaction.check_topics(lambda _topic: UUID(int=6))
    assert transaction.state is (State.ABORTABLE if counts else State.OPEN)


@pytest.mark.parametrize("brokers", [1, 2, 3])
def test_the_partitions_that_a_broker_leads_in_turn_are_spread_over_its_connections(brokers):
    connections = connections_to(*range(brokers), config=ProducerConfig(connections_per_broker=2))
    for node_id in range(brokers):
        led = range(node_id, 4 * brokers, brokers)
        assert sorted(connections.of(node_id, partition).number for partition in led) == [0, 0, 1, 1]


def test_a_partition_keeps_its_connection_when_brokers_join_or_leave():
    router = SimpleNamespace(
        config=SimpleNamespace(request_timeout_ms=10_000), snapshot=SimpleNamespace(brokers={1: 0, 2: 0})
    )
    timer = SimpleNamespace(by=lambda _when: None)
    config = ProducerConfig(connections_per_broker=3)
    connections = ProduceConnections(router, config, StatsRecorder(), timer, None)
    before = [connections.of(1, partition) for partition in range(12)]
    assert len(set(map(id, before))) == 3
    for brokers in ({1: 0}, {1: 0, 2: 0, 3: 0, 4: 0, 5: 0}):
        router.snapshot = SimpleNamespace(brokers=brokers)
        assert all(connections.of(1, partition) is one for partition, one in enumerate(before))


@pytest.mark.parametrize(
    ("in_flight", "connection", "expected"),
    [
        (0, NeverAnswering(), True),
        (1, NeverAnswering(), True),
        (2, NeverAnswering(), False),
        (0, NeverAnswering(has_unwritten=True), False),
        (1, NeverAnswering(has_unwritten=True), False),
        (0, None, False),
    ],
)
def test_one_request_at_most_is_kept_for_a_broker_that_does_not_read(in_flight, connection, expected):
    broker = BrokerConnection(1)
    broker.connection = connection
    broker.in_flight.extend([None] * in_flight)
    assert broker.has_room(2) is expected


class Lost:
    """A request without an answer."""

    done = True

    def result(self, timeout_ms):
        raise NetworkError(f"lost ({timeout_ms})")


class Broken(NeverAnswering):
    def poll(self):
        raise MemoryError


def test_answers_of_a_broker_are_acted_on_before_another_broker_is_read():
    """Answers that were read and not acted on would be lost with the error of the next read."""
    connections = connections_to(1, 2)
    for node_id, connection in ((1, NeverAnswering()), (2, Broken())):
        broker = connections.of(node_id, 0)
        broker.connection = connection
        broker.in_flight.append(SimpleNamespace(pending=Lost(), sent_at=0.0, batches=[f"batch of {node_id}"]))
    answers = connections.read(1.0)
    assert next(answers).batch == "batch of 1"
    with pytest.raises(MemoryError):
        next(answers)


@pytest.fixture
def cluster():
    with ProduceCluster() as running:
        running.create("t", 1)
        yield running


def open_producer(cluster, **config):
    client = ClientConfig.from_properties(properties(cluster.bootstrap_servers, retry_backoff_ms=10))
    return Producer(client, ProducerConfig(**({"linger_ms": 0} | config)))


def changed(cluster, change):
    """The brokers' answers with ``change`` made to what they say of each partition."""
    produce = cluster.producer(1)

    def answer(request, version):
        told = produce(request, version)
        for topic in told.responses:
            topic.partition_responses[:] = [
                new for old in topic.partition_responses if (new := change(old)) is not None
            ]
        return told

    return answer


def test_what_an_answer_does_not_mention_is_sent_again_and_written_once(cluster):
    cluster[1].push(ProduceRequest, changed(cluster, lambda _told: None))
    with open_producer(cluster) as producer:
        producer.send("t", value=b"once").result(60)
        assert producer.stats().retries == 1
    assert cluster.values(TP) == [b"once"]


def test_an_offset_that_the_broker_does_not_name_is_not_known(cluster):
    cluster[1].push(ProduceRequest, changed(cluster, lambda told: replace(told, base_offset=-1)))
    with open_producer(cluster) as producer:
        assert producer.send("t", value=b"somewhere").result(60).offset is None
        assert producer.send("t", value=b"behind it").result(60).offset == 1


@pytest.mark.parametrize("by_id", [False, True])
def test_of_a_partition_that_an_answer_names_twice_the_first_entry_counts(by_id):
    told = [
        PartitionProduceResponse(index=0, error_code=ErrorCode.NONE, base_offset=7),
        PartitionProduceResponse(index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, base_offset=-1),
    ]
    topics = [TopicProduceResponse(name="t", topic_id=T_ID, partition_responses=[one]) for one in told]
    sent = batch(1)
    request = InFlightRequest(pending=None, batches=[sent], by_id=by_id, topic_ids={"t": T_ID}, sent_at=0.0)
    for responses in (topics, [replace(topics[0], partition_responses=told)]):
        assert request.match(ProduceResponse(responses=responses)) == {sent: told[0]}


@pytest.mark.parametrize(
    ("with_ids", "transaction_version", "expected"),
    [
        ("tu", None, 13),
        ("t", None, LAST_VERSION_BY_NAME),
        ("", None, LAST_VERSION_BY_NAME),
        ("tu", 2, 13),
        ("u", 2, LAST_VERSION_BY_NAME),
        ("tu", 1, LAST_VERSION_OF_TRANSACTIONS_1),
    ],
)
def test_topics_are_named_by_id_where_all_of_a_request_have_one(with_ids, transaction_version, expected):
    first, second = batch(1), batch(2)
    second.topic_partition = TopicPartition("u", 0)
    version = choose_version(
        speaking(13), [first, second], dict.fromkeys(with_ids, T_ID), transaction_version
    )
    assert version == expected


def test_a_broker_that_adds_no_partition_to_a_transaction_is_refused_by_version_2():
    with pytest.raises(UnsupportedVersionError, match="Begin the transaction again"):
        choose_version(speaking(LAST_VERSION_OF_TRANSACTIONS_1), [batch(1)], {}, 2)
    assert choose_version(speaking(LAST_VERSION_OF_TRANSACTIONS_1), [batch(1)], {}) == 11


def test_the_brokers_words_and_the_first_records_that_it_names_are_told():
    named = [SimpleNamespace(batch_index=i, batch_index_error_message=f"bad {i}") for i in range(4)]
    assert (
        error_words(SimpleNamespace(error_message="no key", record_errors=named))
        == "no key; record 0: bad 0; record 1: bad 1; record 2: bad 2"
    )
    assert error_words(SimpleNamespace(error_message=None, record_errors=[])) is None


def test_the_records_that_the_broker_names_are_kept():
    named = [SimpleNamespace(batch_index=i, batch_index_error_message=None) for i in (7, 2)]
    answer = {"error_code": ErrorCode.INVALID_RECORD, "error_message": "no key"}
    refused = error_of(SimpleNamespace(**answer, record_errors=named), "here")
    assert isinstance(refused, RecordsRefusedError)
    assert refused.places == (7, 2)
    assert str(refused) == "here: INVALID_RECORD (no key; record 7 refused; record 2 refused)"
    assert type(error_of(SimpleNamespace(**answer, record_errors=[]), "here")) is BrokerError


def test_a_records_own_timestamp_is_told_where_the_broker_names_none(cluster):
    with open_producer(cluster) as producer:
        assert producer.send("t", value=b"a", timestamp_ms=5).result(60).timestamp_ms == 5
        assert producer.send("t", value=b"b").result(60).timestamp_ms > 5


def test_a_cluster_without_topic_ids_is_written_to_by_name():
    """Although its brokers know the versions that name topics by id: as while it is upgraded."""
    with ProduceCluster() as cluster:
        cluster.create("t", 1)
        metadata = cluster.metadata

        def without_ids(request, version):
            told = metadata(request, version)
            return replace(told, topics=[replace(one, topic_id=NO_TOPIC_ID) for one in told.topics])

        cluster[1].on(MetadataRequest, without_ids)
        with open_producer(cluster) as producer:
            assert producer.send("t", value=b"by name").result(60).offset == 0
        (asked,) = [one for one in cluster[1].asked if isinstance(one.request, ProduceRequest)]
        assert asked.version == LAST_VERSION_BY_NAME
        assert [topic.name for topic in asked.request.topic_data] == ["t"]
        assert cluster.values(TP) == [b"by name"]


@pytest.mark.parametrize("acks", list(Acks))
def test_records_of_a_request_that_was_not_written_are_not_delivered(acks):
    """With acks=0 too: nothing but the failed request says so."""
    connections = connections_to(1, config=ProducerConfig(acks=acks, enable_idempotence=None))
    broker = connections.of(1, 0)
    broker.connection = NeverAnswering()
    broker.in_flight.append(SimpleNamespace(pending=Lost(), sent_at=0.0, batches=["batch"]))
    (answer,) = connections.read(1.0)
    assert isinstance(answer, Unanswered)
