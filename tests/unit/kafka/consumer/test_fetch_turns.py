"""Which brokers a fetch asks, when it waits, and what it makes of partitions that fail: with literals."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from support.consumer.simulated_fetch import ID, ONE, THREE, TWO, World, asked, records, round_of, start, told

from spark_kafka_native.kafka.cluster.router import Leader
from spark_kafka_native.kafka.consumer import fetcher
from spark_kafka_native.kafka.consumer.fetcher import MAX_WAIT_MS
from spark_kafka_native.kafka.errors import (
    CorruptRecordError,
    DeadlineExceededError,
    EndOfLogError,
    LogTruncatedError,
    NetworkError,
    ProtocolError,
    SecurityError,
)
from spark_kafka_native.kafka.model import IsolationLevel
from spark_kafka_native.kafka.runtime.deadline import Deadline


def test_a_broker_that_asked_to_be_left_alone_is(world: World) -> None:
    run = start(world, ONE)
    world.brokers[1].muted_ms = 700.0
    round_of(run)
    assert not world.brokers[1].requests
    assert run.max_wait_ms == 700
    world.brokers[1].muted_ms = 0.0
    round_of(run)
    assert len(world.brokers[1].requests) == 1
    assert run.max_wait_ms == MAX_WAIT_MS


def test_it_waits_no_longer_than_until_the_first_is_due(world: World) -> None:
    run = start(world, ONE, TWO)
    round_of(run)
    run.state(ONE).progress.retry_at = run.state(TWO).progress.retry_at = 50.0
    assert run.max_wait_ms == MAX_WAIT_MS  # both are asked for
    run.state(ONE).in_flight = run.state(TWO).in_flight = False
    run.state(ONE).progress.retry_at, run.state(TWO).progress.retry_at = 0.25, 0.5
    assert run.max_wait_ms == 250
    world.clock.elapsed_s = 0.375
    assert run.max_wait_ms == 125
    run.state(TWO).progress.retry_at = 0.0
    assert run.max_wait_ms == MAX_WAIT_MS
    run.state(TWO).broker.leader = None
    assert run.max_wait_ms == 0


@pytest.mark.parametrize("state", ["paused", "finished", "broken"])
def test_a_partition_that_is_not_read_shortens_no_wait(world: World, state: str) -> None:
    """It has no leader, as none is looked for: the fetch would go round and round."""
    run = start(world, ONE)
    run.add(TWO, 10, 10 if state == "finished" else 20)
    if state == "paused":
        run.pause(TWO)
    elif state == "broken":
        run.state(TWO).break_off(NetworkError("broken"))
    run._submit()
    assert run.state(TWO).broker.leader is None
    assert run.max_wait_ms == MAX_WAIT_MS


def test_waiting_in_vain_ends_with_what_and_why(world: World) -> None:
    run = start(world, ONE, poll_timeout_ms=10_000)
    round_of(run)
    world.clock.elapsed_s = 3.0
    assert round_of(run) is None  # another round sends nothing, and the time counts on
    world.clock.elapsed_s = 10.0
    run._check_progress()
    assert run.state(ONE).error is None
    world.clock.elapsed_s = 10.001
    why = r"cannot fetch t-0 at offset 10 \(until 20\) in 10000 ms; .* none, broker 1 has not answered"
    with pytest.raises(DeadlineExceededError, match=why):
        round_of(run)
    run.seek(ONE, 10)
    run.state(ONE).progress.last_failure = lost = NetworkError("lost")
    run.state(ONE).requested(0.0)
    with pytest.raises(DeadlineExceededError, match="the last failure: lost") as caught:
        round_of(run)
    assert caught.value.__cause__ is lost


def test_an_old_broker_is_asked_about_the_epoch_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def find_truncated(connection: Any, states: Any, timeout_ms: float) -> Any:
        calls.append((connection.node_id, [s.topic_partition for s in states], timeout_ms))
        return [
            (state, LogTruncatedError(ONE, 10, 5) if state.topic_partition == ONE else NetworkError("lost"))
            for state in states
            if state.topic_partition != THREE
        ] + [(state, None) for state in states if state.topic_partition == THREE]

    monkeypatch.setattr(fetcher, "find_truncated", find_truncated)
    world.brokers[1].version = 11
    run = start(world, ONE, TWO, THREE)
    assert round_of(run) is None
    assert calls == [(1, [ONE, TWO, THREE], 3_000)]
    assert asked(world.brokers[1].requests[0]) == {2: 10}
    assert [run.state(tp).broker.epoch_checked for tp in (ONE, TWO, THREE)] == [-1, -1, 5]
    assert run.state(TWO).broker.leader is None
    assert run.state(TWO).error is None
    assert run.state(TWO).progress.retry_at > 0
    with pytest.raises(LogTruncatedError):
        round_of(run)


def test_all_in_doubt_ask_for_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_truncated(_connection: Any, states: Any, _timeout_ms: float) -> Any:
        return [(state, NetworkError("lost")) for state in states]

    monkeypatch.setattr(fetcher, "find_truncated", find_truncated)
    world.brokers[1].version = 11
    run = start(world, ONE)
    round_of(run)
    assert not world.brokers[1].requests


def test_a_close_leaves_nothing_behind(world: World) -> None:
    world.leaders[TWO] = Leader(2, 5, ID)
    run = start(world, ONE, TWO)
    round_of(run)
    [first], [second] = world.brokers[1].requests, world.brokers[2].requests
    first.answer = told(p0=records(10))
    run._wait(Deadline.after_ms(0))
    assert [fetch.pending for fetch in run._answered] == [first]
    run.close()
    assert (first.abandoned, second.abandoned) == (1, 1)
    assert [broker.trimmed for broker in world.brokers.values()] == [1, 1]
    assert (list(run._records), run._in_flight, list(run._answered)) == ([], {}, [])
    run.close()
    assert (first.abandoned, world.brokers[1].trimmed) == (1, 1)


def test_it_prints_how_many_are_left(world: World) -> None:
    run = start(world, ONE, TWO)
    run.add(THREE, 20, 20)
    assert repr(run) == "<FetchRun over 3 partitions, 2 unfinished>"


@pytest.mark.parametrize(
    ("topic_ids", "version", "spoken"),
    [((ID, ID), 13, 13), ((ID, None), 13, 12), ((None, None), 13, 12), ((ID, ID), 12, 12), ((None,), 11, 11)],
)
def test_partitions_without_a_topic_id_are_asked_for_by_name(
    world: World, topic_ids: tuple[UUID | None, ...], version: int, spoken: int
) -> None:
    world.brokers[1].version = version
    run = start(world)
    for topic_partition, topic_id in zip((ONE, TWO), topic_ids, strict=False):
        world.leaders[topic_partition] = Leader(1, 5, topic_id)
        run.add(topic_partition, 10, 20)
    round_of(run)
    assert world.brokers[1].versions == [spoken]


@pytest.mark.parametrize(("version", "times"), [(11, 1), (12, 0), (13, 0)])
def test_only_brokers_that_do_not_compare_epochs_in_a_fetch_are_asked_about_them(
    world: World, monkeypatch: pytest.MonkeyPatch, version: int, times: int
) -> None:
    calls = []
    monkeypatch.setattr(fetcher, "find_truncated", lambda *how: calls.append(how) or [])
    world.brokers[1].version = version
    round_of(start(world, ONE))
    assert len(calls) == times
    assert len(world.brokers[1].requests) == 1


def test_the_rules_are_those_of_the_config(world: World) -> None:
    run = start(world, isolation_level=IsolationLevel.READ_COMMITTED, end_of_log_wait_ms=7_000)
    assert run.rules.read_committed
    assert run.rules.end_of_log_wait_s == 7
    assert run.rules.replica_s == world.config.metadata_max_age_ms / 1000
    loose = start(world, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    assert not loose.rules.read_committed


def test_who_does_not_want_the_follower_asks_without_a_rack(world: World) -> None:
    run = start(world, ONE, TWO)
    run.state(TWO).leave_replica(0.0, 300.0)
    round_of(run)
    assert world.brokers[1].requests[0].request.rack_id == ""


def test_corrupt_records_are_asked_for_once_more_and_hold_up_nobody(world: World) -> None:
    run = start(world, ONE, TWO)
    round_of(run)
    bad = bytearray(records(10))
    bad[-1] ^= 1
    world.brokers[1].requests[0].answer = told(p0=bytes(bad), p1=records(10))
    assert round_of(run).topic_partition == TWO
    assert run.position(ONE) == 10
    # The records that were asked for ahead do not fit any more.
    world.brokers[1].requests[1].answer = told(p0=records(12))
    assert round_of(run) is None
    assert asked(world.brokers[1].requests[2])[0] == 10
    world.brokers[1].requests[2].answer = told(p0=bytes(bad))
    with pytest.raises(CorruptRecordError, match=r"t-0 at offset 10"):
        round_of(run)
    assert run.position(ONE) == 10


def test_one_that_was_moved_is_left_out_and_the_next_is_not(world: World) -> None:
    run = start(world, ONE, TWO, THREE)
    round_of(run)
    world.brokers[1].requests[0].answer = told(p0=records(10), p1=records(10), p2=records(10))
    assert round_of(run).topic_partition == ONE
    run.seek(TWO, 15)
    assert round_of(run).topic_partition == THREE
    assert (run.position(TWO), run.position(THREE)) == (15, 12)


def test_each_partition_is_late_by_itself(world: World) -> None:
    run = start(world, ONE, TWO, THREE)
    end = EndOfLogError(TWO, 10, 20, 15)
    for tp in (ONE, TWO, THREE):
        run.state(tp).requested(0.0)
    run.state(ONE).pause(0.0)
    run.state(TWO).progress.last_failure = end
    world.clock.elapsed_s = 11.0
    run._check_progress()
    errors = [run.state(one).error for one in (ONE, TWO, THREE)]
    assert errors[:2] == [None, end]
    assert isinstance(errors[2], DeadlineExceededError)
    run._check_progress()
    assert [run.state(one).error for one in (ONE, TWO, THREE)] == errors


def test_the_error_of_a_paused_partition_is_not_raised_that_of_the_next_is(world: World) -> None:
    run = start(world, ONE, TWO, THREE)
    run.state(ONE).break_off(SecurityError("first"))
    run.state(THREE).break_off(SecurityError("third"))
    run.pause(ONE)
    with pytest.raises(SecurityError, match="third"):
        round_of(run)
    run.resume(ONE)
    with pytest.raises(SecurityError, match="first"):
        round_of(run)


def test_a_broker_that_can_not_be_connected_to_is_the_failure_of_its_own_partitions(world: World) -> None:
    lost = NetworkError("cannot connect")
    world.leaders[TWO] = Leader(2, 5, ID)
    world.brokers[1] = lost
    run = start(world, ONE, TWO)
    round_of(run)
    assert run.state(ONE).progress.last_failure is lost
    assert run.state(TWO).progress.last_failure is None
    assert asked(world.brokers[2].requests[0]) == {1: 10}


def test_a_broker_that_is_busy_keeps_no_other_waiting(world: World) -> None:
    run = start(world, ONE)
    round_of(run)
    run.add(TWO, 10, 20)
    world.leaders[THREE] = Leader(2, 5, ID)
    run.add(THREE, 10, 20)
    round_of(run)
    assert len(world.brokers[1].requests) == 1
    assert asked(world.brokers[2].requests[0]) == {2: 10}
    world.clock.elapsed_s = 5.0
    assert run.state(TWO).progress.waited_s(5.0) == 0  # it is not the broker's fault


@pytest.mark.parametrize("why", ["busy", "muted"])
def test_time_in_which_a_broker_takes_no_request_is_not_waited_in_vain(world: World, why: str) -> None:
    """The partition has failed before, so that its time counted."""
    run = start(world, poll_timeout_ms=1_000)
    if why == "busy":
        run.add(ONE, 10)  # without an end: it may wait
        round_of(run)
    else:
        world.brokers[1].muted_ms = 5_000.0
    run.add(TWO, 10, 20)
    run.state(TWO).stall(NetworkError("lost"), 0.0, 0.0)
    for now in (0.0, 0.75, 1.5):
        world.clock.elapsed_s = now
        assert round_of(run) is None
    assert run.broken() == {}
    world.brokers[1].muted_ms = 0.0
    if why == "busy":
        world.brokers[1].requests[0].answer = told(p0=b"")
        round_of(run)
    round_of(run)
    assert asked(world.brokers[1].requests[-1])[1] == 10


def test_a_failure_of_an_answer_says_where(world: World) -> None:
    run = start(world, ONE)
    round_of(run)
    world.brokers[1].requests[0].answer = ProtocolError("a frame of 5 bytes")
    with pytest.raises(ProtocolError, match="fetching t-0 at offset 10 from broker 1: a frame of 5 bytes"):
        round_of(run)


def test_a_partition_that_waits_for_the_probe_of_another_loses_no_time(world: World) -> None:
    """It has failed before, and a broker is asked for a probe alone."""
    run = start(world, ONE, TWO, poll_timeout_ms=1_000)
    run.state(ONE).position.probe(20)
    run.state(TWO).stall(NetworkError("lost"), 0.0, 0.0)
    world.clock.elapsed_s = 0.75
    round_of(run)
    [probe] = world.brokers[1].requests
    assert asked(probe) == {0: 10}
    probe.answer = told(p0=records(20))
    world.clock.elapsed_s = 1.5
    round_of(run)
    assert run.state(TWO).error is None
    assert asked(world.brokers[1].requests[-1]) == {1: 10}
    world.clock.elapsed_s = 1.875
    with pytest.raises(DeadlineExceededError, match="cannot fetch t-1 at offset 10"):
        round_of(run)


def test_a_partition_that_waits_for_its_turn_after_an_unreadable_response_loses_no_time(world: World) -> None:
    """All in the request wait for half of them, and so on, until the one is found that makes it so. The
    broker takes no request for long."""
    run = start(world, ONE, TWO, poll_timeout_ms=1_000)
    round_of(run)
    [both] = world.brokers[1].requests
    both.answer = ProtocolError("a frame of 5 bytes")
    world.brokers[1].muted_ms = 5_000.0
    for now in (0.5, 1.0, 5.5):
        world.clock.elapsed_s = now
        assert round_of(run) is None
    assert world.brokers[1].requests == [both]
    world.brokers[1].muted_ms = 0.0
    round_of(run)
    half = world.brokers[1].requests[-1]
    assert asked(half) == {0: 10}
    half.answer = told(p0=records(10))
    world.clock.elapsed_s = 5.75
    assert round_of(run).next_offset == 12
    assert asked(world.brokers[1].requests[-1]) == {1: 10}
    world.clock.elapsed_s = 6.125
    assert round_of(run) is None
    world.clock.elapsed_s = 6.5
    with pytest.raises(DeadlineExceededError, match="cannot fetch t-1 at offset 10"):
        round_of(run)


@pytest.mark.parametrize("meanwhile", ["seek", "pause"])
def test_a_probe_that_is_forgotten_hands_out_none_of_its_uncommitted_records(
    world: World, meanwhile: str
) -> None:
    """No record is left below the end, which a request with read_uncommitted is to prove. Its answer comes
    after a seek to the same offset, or a pause."""
    run = start(world, ONE, isolation_level=IsolationLevel.READ_COMMITTED)
    round_of(run)
    [first] = world.brokers[1].requests
    first.answer = told(p0=b"")
    round_of(run)
    round_of(run)
    probe = world.brokers[1].requests[-1]
    assert probe.request.isolation_level is IsolationLevel.READ_UNCOMMITTED
    if meanwhile == "seek":
        run.seek(ONE, 10)
    else:
        run.pause(ONE)
        run.resume(ONE)
    probe.answer = told(p0=records(10, 2))
    assert round_of(run) is None
    assert round_of(run) is None
    after = world.brokers[1].requests[-1]
    assert after is not probe
    assert after.request.isolation_level is IsolationLevel.READ_COMMITTED
    assert asked(after) == {0: 10}
