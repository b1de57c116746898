"""`close` in a signal handler that interrupts a call of a reading or administrating client: no call waits for
its own thread, and records that were handed out and not processed are read again.
"""

import contextlib
import signal

import pytest
from support.interrupts.signal_steps import run_at, steps_of

from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.errors import ConsumerClosedError, KafkaError
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.testing import MockBroker

RECORDS = 50


@pytest.fixture(scope="module")
def broker():
    with MockBroker() as broker:
        broker.create_topic("t", partitions=1)
        with Producer(broker.bootstrap_servers) as producer:
            producer.send_many("t", [b"%d" % i for i in range(RECORDS)])
        yield broker


def read(consumer):
    consumer.poll(10, 3)
    consumer.seek(0)
    next(consumer)
    consumer.pause()
    consumer.resume()
    consumer.lag()


@pytest.mark.parametrize("at_once", ["close", "__repr__"])
def test_a_consumer(broker, at_once):
    def open_consumer():
        return Consumer(broker.bootstrap_servers, "t", fetch_max_wait_ms=20)

    with open_consumer() as consumer:
        steps = steps_of(lambda: read(consumer))
    for step in range(0, steps, max(1, steps // 40)):
        with open_consumer() as consumer:
            with contextlib.suppress(KafkaError, StopIteration):
                run_at(step, getattr(consumer, at_once), lambda consumer=consumer: read(consumer))
            assert str(consumer)
            consumer.close()
            with pytest.raises(ConsumerClosedError):
                consumer.poll(0)


def ask(admin):
    admin.list_topics()
    admin.describe_topics(["t"])


def test_an_admin(broker):
    with Admin(broker.bootstrap_servers) as admin:
        steps = steps_of(lambda: ask(admin))
    for step in range(0, steps, max(1, steps // 40)):
        with Admin(broker.bootstrap_servers) as admin, contextlib.suppress(KafkaError):
            run_at(step, admin.close, lambda admin=admin: ask(admin))


def work(consumer, done):
    for _ in range(3):
        for record in consumer.poll(30, 4):
            done.append(record.offset)
    consumer.commit()


def test_a_group_consumer_commits_what_is_done_and_no_more(broker):
    def open_consumer(group):
        return GroupConsumer(
            broker.bootstrap_servers, "t", group, fetch_max_wait_ms=20, auto_offset_reset="earliest"
        )

    steps, missed = None, 0
    for number in range(25):
        consumer, done, last = open_consumer(f"g{number}"), [], []
        consumer.poll(30, 1)  # it has joined
        if steps is None:
            steps = steps_of(lambda consumer=consumer, done=done: work(consumer, done))
            consumer.close()
            continue
        ran = True
        with contextlib.suppress(ConsumerClosedError):
            ran = run_at(
                number * steps // 25,
                consumer.close,
                lambda consumer=consumer, done=done: work(consumer, done),
            )
        if not ran:  # it has fewer steps where it need not wait for the commit
            consumer.close()
            missed += 1
            continue
        with pytest.raises(ConsumerClosedError):
            consumer.poll(0)
        with open_consumer(f"g{number}") as after:
            last = after.poll(30, 1)
        # Nothing is skipped, and a group that did not see the close would let it wait.
        assert last[0].offset <= (done[-1] + 1 if done else 1)
    assert missed <= 5


@pytest.mark.parametrize("shape", ["two arguments", "any arguments", "a method"])
def test_what_a_signal_has_interrupted_is_not_done(broker, shape):
    settings = {"fetch_max_wait_ms": 20, "auto_offset_reset": "earliest", "auto_commit_interval_ms": 0}
    consumer = GroupConsumer(broker.bootstrap_servers, "t", f"interrupted {shape}", **settings)

    class Service:
        def stop(self, _number, _frame):
            consumer.close()

    handlers = {
        "two arguments": lambda _number, _frame: consumer.close(),
        "any arguments": lambda *_: consumer.close(),
        "a method": Service().stop,
    }
    assert [record.offset for record in consumer.poll(30, 1)] == [0]
    before = signal.signal(signal.SIGUSR1, handlers[shape])
    try:
        for _ in consumer.poll(30, 3):
            signal.raise_signal(signal.SIGUSR1)  # while the caller works on the first of three
            break
    finally:
        signal.signal(signal.SIGUSR1, before)
    with GroupConsumer(broker.bootstrap_servers, "t", f"interrupted {shape}", **settings) as after:
        assert after.poll(30, 1)[0].offset == 1
