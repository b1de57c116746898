"""Requests to several brokers, or about several partitions: each has a response or an error."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from spark_kafka_native.kafka.cluster.fan_out import ask_each_broker, ask_each_partition
from spark_kafka_native.kafka.errors import KafkaError, NetworkError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0, A1, A2 = (TopicPartition("a", partition) for partition in range(3))
SOON_MS = 60_000


class FakeRouter:
    """Connected to some brokers; each connection is the node id."""

    def __init__(self, *connected: int, unreachable: int | None = None) -> None:
        self.connected, self.unreachable = connected, unreachable

    def ready(self, node_id: int) -> Any:
        return node_id if node_id in self.connected else None

    def connection(self, node_id: int, _deadline: Deadline) -> Any:
        if node_id == self.unreachable:
            raise NetworkError(f"broker {node_id} is down")
        return node_id

    def retry(self, attempt: Any, **_named: Any) -> Any:
        return attempt()


def ask_all(router: Any, ask: Any) -> tuple[dict[int, Any], dict[int, KafkaError]]:
    found: dict[int, Any] = {}
    failures = ask_each_broker(router, (1, 2, 3), ask, found.__setitem__, Deadline.after_ms(SOON_MS))
    return found, failures


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "no threads"])
def test_each_broker_has_a_response_or_an_error(threads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    if not threads:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    router = FakeRouter(1, unreachable=2)
    found, failures = ask_all(router, lambda node_id, connection: (node_id, connection))
    assert found == {1: (1, 1), 3: (3, 3)}
    assert [(node_id, str(error)) for node_id, error in failures.items()] == [(2, "broker 2 is down")]


@pytest.mark.parametrize("step", ["ask", "read"])
@pytest.mark.parametrize("connected", [(), (1, 2), (1, 2, 3)])
def test_a_broker_that_fails_takes_no_answer_of_another_along(connected: tuple[int, ...], step: str) -> None:
    """Neither where its request can't be sent nor where its response does not come."""
    found: dict[int, int] = {}

    def ask(node_id: int, _: object) -> int:
        if (step, node_id) == ("ask", 1):
            raise NetworkError("lost")
        return node_id * 10

    def read(node_id: int, pending: int) -> None:
        if (step, node_id) == ("read", 1):
            raise NetworkError("lost")
        found[node_id] = pending

    router: Any = FakeRouter(*connected)
    failures = ask_each_broker(router, (1, 2, 3), ask, read, Deadline.after_ms(SOON_MS))
    assert {node_id: str(error) for node_id, error in failures.items()} == {1: "lost"}
    assert found == {2: 20, 3: 30}


@pytest.mark.parametrize("connected", [(), (3,)], ids=["in a thread", "here"])
def test_a_bug_is_raised_and_not_taken_for_an_answer_without_partitions(connected: tuple[int, ...]) -> None:
    def ask(node_id: int, _: object) -> int:
        if node_id == 3:
            raise ZeroDivisionError
        return node_id

    with pytest.raises(ZeroDivisionError):
        ask_all(FakeRouter(*connected), ask)


def test_with_some_found_each_other_partition_has_an_error() -> None:
    """A partition with neither would never be read, and nothing would say so."""

    def ask(
        missing: list[TopicPartition], found: dict[TopicPartition, int]
    ) -> dict[TopicPartition, KafkaError]:
        assert missing == [A0, A1, A2]
        found[A0] = 7
        raise NetworkError("lost")

    router: Any = FakeRouter()
    settings: Any = {"what": "asking", "deadline": Deadline.after_ms(SOON_MS)}
    found, failures = ask_each_partition(router, [A0, A1, A2], ask, give_up_after_ms=0, **settings)
    assert found == {A0: 7}
    assert {tp: str(error) for tp, error in failures.items()} == {A1: "lost", A2: "lost"}
    with pytest.raises(NetworkError, match="lost"):
        ask_each_partition(router, [A0, A1, A2], ask, **settings)
