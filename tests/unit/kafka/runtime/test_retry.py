"""The retry loop: which errors it retries, its waits, and its final error."""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    ConfigError,
    DeadlineExceededError,
    KafkaError,
    NetworkError,
    ProtocolError,
    SecurityError,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.runtime.retry import Backoff, is_retriable, retry

BACKOFF = Backoff(first_ms=100, max_ms=1_000)


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds * 1000))
        self.now += seconds


def failing(times: int, error: KafkaError) -> object:
    left = [times]

    def operation() -> str:
        if left[0]:
            left[0] -= 1
            raise error
        return "done"

    return operation


def run(operation: object, clock: Clock, timeout_ms: float = 10_000, **options: object) -> object:
    return retry(
        operation,  # type: ignore[arg-type]
        what="the work",
        deadline=Deadline.after_ms(timeout_ms, clock),
        backoff=BACKOFF,
        sleep=clock.sleep,
        uniform=lambda low, high: (low + high) / 2,
        **options,  # type: ignore[arg-type]
    )


def test_backoff_doubles_up_to_its_cap() -> None:
    clock = Clock()
    assert run(failing(6, NetworkError("gone")), clock) == "done"
    assert clock.slept == [100, 200, 400, 800, 1_000, 1_000]


def test_jitter_is_a_fifth() -> None:
    delays = {round(BACKOFF.delay_ms(attempt)) for attempt in [1] * 200}
    assert 160 <= min(delays) < max(delays) <= 240
    assert BACKOFF.delay_ms(10_000) <= 1_200


def test_a_backoff_of_0_is_no_loop_without_a_pause() -> None:
    """A broker that is down was connected to a thousand times a second."""

    def delays(first_ms: int, max_ms: int) -> list[float]:
        backoff = Backoff(first_ms=first_ms, max_ms=max_ms)
        return [backoff.delay_ms(attempt, lambda low, high: (low + high) / 2) for attempt in range(8)]

    assert delays(0, 100) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert delays(0, 0) == delays(1, 0) == [1, 2, 4, 8, 16, 32, 50, 50]


def test_an_error_of_time_has_the_notes_of_its_cause() -> None:
    failure = NetworkError("gone")
    failure.add_note("a-1 was committed")
    with pytest.raises(DeadlineExceededError) as late:
        run(failing(1_000, failure), Clock())
    assert late.value.__notes__ == ["a-1 was committed"]


def test_the_deadline_ends_it_with_the_last_failure() -> None:
    clock = Clock()
    with pytest.raises(
        DeadlineExceededError, match=r"the work did not succeed in time \(4 attempts\).*gone"
    ) as raised:
        run(failing(99, NetworkError("gone")), clock, 1_000)
    assert isinstance(raised.value.__cause__, NetworkError)
    assert clock.now < 1


def test_the_last_failure_is_the_reason_if_the_deadline_did_not_cut_it_short() -> None:
    """A broker that was away at first may refuse connections by now."""
    failures = [NetworkError(f"failure {number}") for number in range(4)]
    left = list(failures)

    def operation() -> str:
        raise left.pop(0)

    with pytest.raises(DeadlineExceededError, match="the last: failure 3") as raised:
        run(operation, Clock(), 1_000)
    assert raised.value.__cause__ is failures[3]


@pytest.mark.parametrize(
    "error",
    [
        ProtocolError("bad bytes"),
        SecurityError("no"),
        ConfigError("no"),
        DeadlineExceededError("inner"),
        BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "x"),
        BrokerError(ErrorCode.of(999), "x"),
    ],
)
def test_errors_that_are_not_retriable_are_raised_at_once(error: KafkaError) -> None:
    clock = Clock()
    with pytest.raises(type(error)):
        run(failing(1, error), clock)
    assert not clock.slept
    assert not is_retriable(error)


def test_a_failure_between_attempts_counts_as_one() -> None:
    clock = Clock()
    told: list[KafkaError] = []

    def between(error: KafkaError) -> None:
        told.append(error)
        if len(told) == 1:
            raise NetworkError("no metadata")

    stale = BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "x")
    assert run(failing(2, stale), clock, between=between) == "done"
    assert told == [stale, stale]

    def fatal(error: KafkaError) -> None:
        raise ProtocolError("worse") from error

    with pytest.raises(ProtocolError, match="worse"):
        run(failing(1, stale), clock, between=fatal)


def test_the_last_failure_may_be_one_between_attempts() -> None:
    reason = SecurityError("no broker takes the certificate")
    reason.may_pass = True

    def between(_: KafkaError) -> None:
        raise reason

    stale = BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "x")
    with pytest.raises(DeadlineExceededError, match="the last: no broker takes the certificate") as caught:
        run(failing(99, stale), Clock(), between=between)
    assert caught.value.__cause__ is reason


@pytest.mark.parametrize("cut_short", ["the attempt", "what is done between"])
def test_an_attempt_cut_short_by_the_deadline_does_not_hide_the_reason(cut_short: str) -> None:
    clock = Clock()
    reason = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "partition t-0")
    attempts = 0

    def run_out(last: int) -> None:
        if attempts == last:
            clock.now = 10.0
            raise NetworkError("no time was left")

    def operation() -> str:
        nonlocal attempts
        attempts += 1
        if cut_short == "the attempt":
            run_out(2)
        raise reason

    def between(_: KafkaError) -> None:
        if cut_short != "the attempt":
            run_out(1)

    with pytest.raises(DeadlineExceededError, match="UNKNOWN_TOPIC_OR_PARTITION") as caught:
        run(operation, clock, timeout_ms=10_000, between=between)
    assert caught.value.__cause__ is reason


def test_an_attempt_that_took_all_the_time_is_the_reason_if_it_is_the_first() -> None:
    clock = Clock()

    def operation() -> str:
        clock.now = 10.0
        raise NetworkError("timed out")

    with pytest.raises(DeadlineExceededError, match="timed out"):
        run(operation, clock)


def test_deadlines_nest() -> None:
    clock = Clock()
    outer = Deadline.after_ms(1_000, clock)
    assert outer.within_ms(5_000).remaining_ms == 1_000
    assert outer.within_ms(300).remaining_ms == pytest.approx(300)
    clock.now = 2
    assert outer.expired
    assert outer.remaining_ms == 0
