"""How many requests a driver needs for many transactions, and how many of them it has in flight at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafka_native.kafka.cluster.router import Router, router_for
from spark_kafka_native.kafka.errors import AuthenticationError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import TransactionFatalError
from spark_kafka_native.kafka.producer.sending.transaction_requests import (
    OpenTransaction,
    add_partitions,
    init_producer_id,
)
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.driver import stream_commit
from spark_kafka_native.spark.write.driver.many_transactions import AT_ONCE, ask_for_each
from spark_kafka_native.spark.write.driver.stream_commit import abort_transactions, commit_transactions
from spark_kafka_native.spark.write.write_options import ExactlyOnce, WriteOptions
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage
from spark_kafka_native.testing import MockBroker

TASKS = 40


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker() as running:
        running.create_topic("t")
        yield running


class Driver:
    """The driver of a query, in a process that knows no coordinator yet."""

    def __init__(self, broker: MockBroker) -> None:
        given = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "topic": "t",
            "deliveryGuarantee": "exactly-once",
            "kafka.retry.backoff.ms": "5",
        }
        self.options = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))
        assert self.options.exactly_once is not None
        self.once: ExactlyOnce = self.options.exactly_once

    def commit(self, messages: list[KafkaCommitMessage], batch_id: int) -> None:
        commit_transactions(messages, batch_id, self.options, self.once, is_first=False)


def open_transactions(broker: MockBroker, count: int) -> list[KafkaCommitMessage]:
    """The reports of ``count`` tasks with an open transaction each, from other processes."""
    driver = Driver(broker)
    router, messages = Router(driver.options.client), []
    deadline = router.deadline()
    for task in range(count):
        identity = init_producer_id(router, f"q-{task}", 60_000, None, deadline)
        one = OpenTransaction(
            transactional_id=f"q-{task}",
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            version=1,
        )
        add_partitions(router, one, [TopicPartition("t", 0)], deadline)
        rows = (("t", 0, 1, 1, 0, 0),)
        messages.append(KafkaCommitMessage(1, 1, 1, 0, rows, one, "q", rows_hash=1, task=task))
    router.close()
    return messages


def open_names(broker: MockBroker) -> list[str]:
    with broker.cluster.changed:
        return [name for name, one in broker.transactions.by_id.items() if one.is_open]


def test_the_coordinators_of_all_transactions_are_one_request(broker: MockBroker) -> None:
    messages = open_transactions(broker, TASKS)
    assert len(open_names(broker)) == TASKS
    before = len(broker.asked("FindCoordinator"))
    Driver(broker).commit(messages, 0)
    assert not open_names(broker)
    assert len(broker.asked("EndTxn")) == TASKS + 1, "each of them, and that of the intent"
    asked = [one.fields["coordinator_keys"] for one in broker.asked("FindCoordinator")[before:]]
    assert len(asked) == 3, "the driver's transactional id, its group, and all transactions"
    assert sorted(asked[-1]) == sorted(f"q-{task}" for task in range(TASKS))


def test_a_broker_that_finds_one_coordinator_at_a_time_is_asked_for_each() -> None:
    with MockBroker(versions={"FindCoordinator": (0, 3)}) as broker:
        broker.create_topic("t")
        messages = open_transactions(broker, TASKS)
        before = len(broker.asked("FindCoordinator"))
        Driver(broker).commit(messages, 0)
        assert not open_names(broker)
        assert len(broker.asked("FindCoordinator")) - before == TASKS + 2


def test_a_coordinator_that_is_not_found_with_the_others_is_looked_up_alone(broker: MockBroker) -> None:
    messages = open_transactions(broker, TASKS)

    def refuse(fields: dict[str, Any]) -> None:
        for one in fields["coordinators"][3:5]:
            one |= {"error_code": 15, "node_id": -1}

    broker.on(
        "FindCoordinator", when=lambda one: len(one.fields["coordinator_keys"]) == TASKS, times=None
    ).change(refuse)
    before = len(broker.asked("FindCoordinator"))
    Driver(broker).commit(messages, 0)
    assert not open_names(broker)
    assert len(broker.asked("FindCoordinator")) - before == 3 + 2


def test_a_lookup_that_fails_is_no_error_of_its_own(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abort says of each transaction why it is still open, and raises nothing: Spark is at an error that
    its user has to see."""
    messages = open_transactions(broker, TASKS)
    look_up = Router.look_up

    def refused(router: Router, request: Any, deadline: Any) -> Any:
        if len(getattr(request, "coordinator_keys", ())) > 1:
            raise AuthenticationError("the password was changed")
        return look_up(router, request, deadline)

    monkeypatch.setattr(Router, "look_up", refused)
    abort_transactions(messages, Driver(broker).options)
    assert not open_names(broker)


def test_a_replay_with_other_tasks_checks_them_side_by_side(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_transactions(broker, TASKS)
    driver = Driver(broker)
    with monkeypatch.context() as patch:

        def die(*_: Any, **__: Any) -> None:
            raise RuntimeError

        patch.setattr(stream_commit, "_end_all", die)
        with pytest.raises(RuntimeError):
            driver.commit(first, 0)
    together = threading.Barrier(TASKS - 1)
    asked = stream_commit.init_producer_id

    def asked_together(*arguments: Any) -> Any:
        together.wait(60)
        return asked(*arguments)

    again = open_transactions(broker, 1)
    monkeypatch.setattr(stream_commit, "init_producer_id", asked_together)
    driver.commit(again, 0)
    assert together.n_waiting == 0
    assert not together.broken
    assert not open_names(broker)


def test_the_answers_come_in_order_and_of_several_errors_the_first(broker: MockBroker) -> None:
    router = router_for(Driver(broker).options.client)
    names = [f"q-{task}" for task in range(2 * AT_ONCE)]

    def ask(name: str) -> str:
        if name in refused:
            raise TransactionFatalError(name)
        return name.upper()

    refused: set[str] = set()
    assert ask_for_each(router, names, str, ask, router.deadline()) == [name.upper() for name in names]
    refused = {"q-5", "q-9"}
    with pytest.raises(TransactionFatalError, match="q-5"):
        ask_for_each(router, names, str, ask, router.deadline())
    assert ask_for_each(router, [], str, ask, router.deadline()) == []


class Submitted(list[str]):
    """Names; sets `all` when they are iterated over a second time: once for their coordinators, then once to
    ask for each."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.all = threading.Event()
        self._times = 0

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        self._times += 1
        if self._times == 2:
            self.all.set()


def test_no_more_than_so_many_are_asked_at_once(broker: MockBroker) -> None:
    router = router_for(Driver(broker).options.client)
    names = Submitted([f"q-{task}" for task in range(4 * AT_ONCE)])
    lock, now, most = threading.Lock(), 0, 0
    full = threading.Event()

    def ask(_name: str) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            if now == AT_ONCE:
                full.set()
        assert names.all.wait(60)
        assert full.wait(60)
        with lock:
            now -= 1

    ask_for_each(router, names, str, ask, router.deadline())
    assert most == AT_ONCE


def test_nothing_is_looked_up_for_one_transaction(broker: MockBroker) -> None:
    messages = open_transactions(broker, 1)
    before = len(broker.asked("FindCoordinator"))
    Driver(broker).commit(messages, 0)
    assert all(len(one.fields["coordinator_keys"]) == 1 for one in broker.asked("FindCoordinator")[before:])
