"""A `Consumer` or a `Producer` that was closed opens no connection again: not even for a call that the
handler of a signal has interrupted to close it."""

import contextlib

import pytest
from support.interrupts.signal_steps import run_at, steps_of

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.consumer import consumer as consumer_module
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, ClientClosedError, ConsumerClosedError, KafkaError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import ProducerClosedError
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

RECORDS = 5
OPEN = "kafka.client.connections"


@pytest.fixture(scope="module")
def broker():
    with MockBroker() as broker:
        broker.create_topic("t", partitions=1)
        with Producer(broker.bootstrap_servers) as producer:
            producer.send_many("t", [b"%d" % i for i in range(RECORDS)])
        yield broker


def look(consumer):
    consumer.lag()
    assert consumer.at_end in (True, False)


def test_a_consumer_that_is_closed_within_a_call(broker):
    def consuming():
        return Consumer(broker.bootstrap_servers, "t", fetch_max_wait_ms=20)

    with consuming() as consumer:
        look(consumer)
        steps = steps_of(lambda: look(consumer))
    for step in range(0, steps, max(1, steps // 60)):
        consumer = consuming()
        with contextlib.suppress(ConsumerClosedError):
            run_at(step, consumer.close, lambda consumer=consumer: look(consumer))
        assert consumer.metrics().value(OPEN) == 0


def test_a_consumer_that_is_closed(broker):
    consumer = Consumer(broker.bootstrap_servers, "t")
    consumer.close()
    with pytest.raises(ConsumerClosedError, match="the consumer is closed"):
        consumer.lag()
    assert consumer.metrics().value(OPEN) == 0


def test_a_consumer_that_could_not_be_made_leaves_no_connection(broker, monkeypatch):
    made = []

    def make(config):
        made.append(Router(config))
        return made[-1]

    monkeypatch.setattr(consumer_module, "Router", make)
    with pytest.raises(ValueError, match="start names partitions that are not read"):
        Consumer(broker.bootstrap_servers, "t", start={9: 0})
    [router] = made
    assert [(one.metric.name, one.value) for one in router.observed()] == [(OPEN, 0)]
    with pytest.raises(ConsumerClosedError):
        router.metadata(("t",))
    given = Router(router.config)
    with pytest.raises(ValueError, match="start names partitions that are not read"):
        Consumer(topic="t", router=given, start={9: 0})
    assert given.metadata(("t",)).topics.keys() == {"t"}
    given.close()


def test_a_producer_that_is_closed_within_its_first_send(broker):
    with Producer(broker.bootstrap_servers) as producer:
        steps = steps_of(lambda: producer.send("t", b"x"))
    for step in range(0, steps, max(1, steps // 60)):
        producer = Producer(broker.bootstrap_servers)
        with contextlib.suppress(ProducerClosedError):
            run_at(step, producer.close, lambda producer=producer: producer.send("t", b"x"))
        producer.close()
        assert producer.metrics().value(OPEN) == 0


def test_a_producer_that_is_closed_while_it_looks_for_a_partition(broker):
    with Producer(broker.bootstrap_servers) as producer:
        producer.send("t", b"x")
        steps = steps_of(lambda: send_to_no_partition(producer))
    for step in range(0, steps, max(1, steps // 60)):
        producer = Producer(broker.bootstrap_servers)
        producer.send("t", b"x")
        with contextlib.suppress(ProducerClosedError):
            run_at(step, producer.close, lambda producer=producer: send_to_no_partition(producer))
        producer.close()
        assert producer.metrics().value(OPEN) == 0


def send_to_no_partition(producer):
    with contextlib.suppress(ValueError):
        producer.send("t", b"x", partition=9)


def test_a_router_that_was_given_stays_open(broker):
    config = ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers})
    router = Router(config)
    for _ in range(2):
        with Producer(config, router=router) as producer:
            producer.send("t", b"x").result(60)
        with Consumer(config, "t", router=router) as consumer:
            assert consumer.lag().keys() == {TopicPartition("t", 0)}
    router.close()


def test_a_router_that_has_ended_gives_no_metadata_although_it_knows_them(broker):
    router = Router(ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers}))
    router.metadata(("t",))
    router.end()
    with pytest.raises(ClientClosedError, match="the client was closed"):
        router.metadata(("t",))


def test_a_producer_that_has_failed_says_why_where_it_would_connect_again(broker):
    producer = Producer(broker.bootstrap_servers)
    failure = KafkaError("credentials refused")
    producer.send("t", b"x").result(60)
    producer._sender.fail(failure)
    assert producer._waiters.wait_for(lambda: producer.closed, None)
    producer.close()
    with pytest.raises(ClientClosedError, match="credentials refused") as raised:
        producer._router.metadata(("t",), refresh=True)
    assert isinstance(raised.value, ProducerClosedError)
    assert raised.value.__cause__ is failure


def test_an_operation_that_asks_no_broker_ends_with_its_router(broker):
    """It would be tried again until its deadline: no connection that is refused ends it."""
    router = Router(ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers}))
    tried = []

    def lead():
        tried.append(1)
        router.end()
        raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "partition t-0")

    for _ in range(2):
        with pytest.raises(ClientClosedError, match="the client was closed"):
            router.retry(lead, what="looking for a leader", deadline=Deadline.after_ms(20_000))
    assert len(tried) == 1
