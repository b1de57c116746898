"""Requests to several brokers, or about several partitions: each has a response or an error."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafka_native.kafka.cluster.fan_out import ask_each_broker, ask_each_partition
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    ClientClosedError,
    KafkaError,
    NetworkError,
    SecurityError,
)
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


class RetryingRouter(FakeRouter):
    """Makes at most ``attempts`` of an operation; the last error ends it."""

    def __init__(self, attempts: int) -> None:
        super().__init__()
        self.attempts = attempts
        self.topics: set[str] = set()

    def retry(self, attempt: Any, *, topics: set[str] = frozenset(), **_named: Any) -> Any:  # type: ignore[assignment]
        self.topics = topics
        for left in reversed(range(self.attempts)):
            try:
                return attempt()
            except KafkaError as error:
                if not left or isinstance(error, ClientClosedError):
                    raise
        raise AssertionError("there is one attempt at least")


Outcome = dict[TopicPartition, int | str] | KafkaError
"""Of one attempt: offsets and failures, or an error of the whole attempt."""


def ask_in_turn(
    outcomes: list[Outcome], **settings: float
) -> tuple[Any, list[list[TopicPartition]], RetryingRouter]:
    """The result of `ask_each_partition`, the partitions that each attempt asked for, and the router."""
    asked: list[list[TopicPartition]] = []
    router = RetryingRouter(len(outcomes))

    def ask(
        missing: list[TopicPartition], found: dict[TopicPartition, int]
    ) -> dict[TopicPartition, KafkaError]:
        asked.append(missing)
        outcome = outcomes[len(asked) - 1]
        if isinstance(outcome, KafkaError):
            raise outcome
        found.update({tp: one for tp, one in outcome.items() if isinstance(one, int)})
        return {tp: NetworkError(one) for tp, one in outcome.items() if isinstance(one, str)}

    common: Any = {"what": "asking", "deadline": Deadline.after_ms(SOON_MS)}
    try:
        found, failures = ask_each_partition(router, [A0, A1, A2], ask, **common, **settings)  # type: ignore[arg-type]
    except KafkaError as error:
        return error, asked, router
    return (found, {tp: str(error) for tp, error in failures.items()}), asked, router


def test_each_attempt_asks_for_the_partitions_that_are_still_missing() -> None:
    outcomes: list[Outcome] = [{A0: 1, A1: "lost", A2: "lost"}, {A1: 2, A2: "lost"}, {A2: 3}]
    result, asked, router = ask_in_turn(outcomes)
    assert result == ({A0: 1, A1: 2, A2: 3}, {})
    assert asked == [[A0, A1, A2], [A1, A2], [A2]]
    assert router.topics == {"a"}, "their metadata are asked for again between the attempts"


def test_a_refused_login_ends_it_whichever_broker_fails_first() -> None:
    """Each further attempt logs in again, and may lock the account."""
    seen: list[int] = []

    def ask(missing: list[TopicPartition], found: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        seen.append(len(missing))
        certificate = SecurityError("expired")  # also retried, once the cluster was reached
        return {A0: certificate, A1: AuthenticationError("refused"), A2: NetworkError("lost")}

    def retry(attempt: Any, **_: Any) -> None:
        for _attempt in range(3):
            try:
                attempt()
            except AuthenticationError:
                raise
            except KafkaError:
                continue

    router: Any = SimpleNamespace(retry=retry)
    with pytest.raises(AuthenticationError, match="refused"):
        ask_each_partition(router, [A0, A1, A2], ask, what="asking", deadline=Deadline.after_ms(60_000))
    assert seen == [3]


def test_patience_ends_only_once_any_partition_has_an_answer() -> None:
    none: Outcome = {A0: "lost", A1: "lost", A2: "lost"}
    later: list[Outcome] = [{A0: 1, A1: "no leader", A2: 3}, {A1: 2}]
    result, asked, _ = ask_in_turn([none, *later], give_up_after_ms=0)
    assert result == ({A0: 1, A2: 3}, {A1: "no leader"})
    assert len(asked) == 2
    result, asked, _ = ask_in_turn([none, none], give_up_after_ms=0)
    assert isinstance(result, NetworkError)
    assert len(asked) == 2


def test_a_failure_of_all_does_not_hide_the_one_that_a_partition_had_before() -> None:
    first: Outcome = {A0: 1, A1: "no leader"}
    result, _, _ = ask_in_turn([first, NetworkError("lost")], give_up_after_ms=SOON_MS)
    assert result == ({A0: 1}, {A1: "no leader", A2: "lost"})


def test_a_client_that_is_closed_meanwhile_has_no_answer() -> None:
    """Else a reader would go on with the partitions that were found."""
    first: Outcome = {A0: 1, A1: "no leader", A2: "no leader"}
    result, _, _ = ask_in_turn([first, ClientClosedError("closed"), {}], give_up_after_ms=SOON_MS)
    assert isinstance(result, ClientClosedError)
