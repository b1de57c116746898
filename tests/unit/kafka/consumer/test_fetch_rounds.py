"""The rounds of a fetch, one by one, with literals."""

from __future__ import annotations

import gzip
import logging
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.brokers.scripted_broker import offsets_of
from support.consumer.simulated_fetch import (
    ID,
    ONE,
    THREE,
    TWO,
    AtOnce,
    FakePending,
    World,
    asked,
    records,
    round_of,
    start,
    told,
)
from support.record_batches import batch, record

from spark_kafka_native.kafka.cluster.router import Leader
from spark_kafka_native.kafka.config.client_config import ConsumerConfig
from spark_kafka_native.kafka.consumer import fetch_responses as fetch_answers
from spark_kafka_native.kafka.consumer import fetcher
from spark_kafka_native.kafka.consumer.fetch_lookups import FetchLookups
from spark_kafka_native.kafka.consumer.fetch_responses import FRAME_OVERHEAD
from spark_kafka_native.kafka.consumer.fetcher import Fetcher
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    CorruptRecordError,
    DeadlineExceededError,
    KafkaError,
    NetworkError,
    SecurityError,
    TopicRecreatedError,
)
from spark_kafka_native.kafka.protocol.api.fetch import (
    FetchResponse,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.runtime.log_throttle import LogThrottle


def test_each_round_asks_from_behind_what_came_before_it_is_handed_out(world: World) -> None:
    run = start(world, ONE, TWO)
    assert round_of(run) is None
    [first] = world.brokers[1].requests
    assert asked(first) == {0: 10, 1: 10}
    assert first.request.rack_id == "r1"
    assert first.request.max_bytes == min(
        ConsumerConfig().fetch_max_bytes, world.config.max_response_bytes - FRAME_OVERHEAD
    )
    first.answer = told(p0=records(10), p1=records(10, 3))
    fetched = round_of(run)
    assert (fetched.topic_partition, offsets_of(fetched.columns)) == (ONE, [10, 11])
    assert asked(world.brokers[1].requests[1]) == {0: 12, 1: 13}
    assert (run.position(ONE), run.position(TWO)) == (12, 10)
    assert offsets_of(round_of(run).columns) == [10, 11, 12]
    assert first.released == 0
    assert round_of(run) is None
    assert first.released == 1
    assert len(world.brokers[1].requests) == 2  # one request of a broker at a time


@pytest.mark.parametrize(
    "failure",
    [NetworkError("no broker answers"), DeadlineExceededError("asking for metadata did not succeed in time")],
    ids=["network", "deadline"],
)
def test_a_partition_without_an_end_outlives_an_outage(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: KafkaError
) -> None:
    """However much longer than ``poll.timeout.ms``, which an end that is not reached is limited by."""

    def wait_a_second(pendings: list[FakePending], until: Deadline, wakeup: object) -> list[FakePending]:
        world.now += 1
        return world.wait_for_any(pendings, until, wakeup)

    monkeypatch.setattr(fetcher, "wait_for_any", wait_a_second)
    monkeypatch.setattr(fetch_answers, "_THROTTLED_LOG", LogThrottle(logging.getLogger()))
    run = start(world)
    run.add(ONE, 10)
    assert round_of(run) is None
    world.failure = failure
    world.brokers[1].requests[0].answer = NetworkError("the connection was lost")
    for _ in range(40):  # 10 s are the limit
        assert round_of(run) is None
    [said, *_] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert said.startswith("cannot fetch t-0 at offset 10 in 10000 ms; the last failure: ")
    assert run.broken() == {}
    world.failure = None
    while len(world.brokers[1].requests) < 2:  # the backoff ends
        assert round_of(run) is None
    world.brokers[1].requests[1].answer = told(p0=records(10))
    assert offsets_of(round_of(run).columns) == [10, 11]


def test_what_nobody_asked_for_is_not_looked_at(world: World) -> None:
    run = start(world, ONE)
    round_of(run)
    world.brokers[1].requests[0].answer = told(p7=records(10), p1=records(10), p0=records(10))
    assert round_of(run).topic_partition == ONE
    assert round_of(run) is None


def test_what_was_removed_paused_or_moved_meanwhile_is_dropped(world: World) -> None:
    run = start(world, ONE, TWO, THREE)
    round_of(run)
    run.remove(ONE)
    run.pause(TWO)
    run.seek(THREE, 15)
    world.brokers[1].requests[0].answer = told(p0=records(10), p1=records(10), p2=records(10))
    assert round_of(run) is None
    assert asked(world.brokers[1].requests[1]) == {2: 15}
    run.resume(TWO)
    world.brokers[1].requests[1].answer = told(p2=records(15, 5))
    assert offsets_of(round_of(run).columns) == [15, 16, 17, 18, 19]
    assert asked(world.brokers[1].requests[2]) == {1: 10}


def test_an_answer_counts_where_the_partition_stands_again(world: World) -> None:
    run = start(world, ONE)
    round_of(run)
    run.seek(ONE, 14)
    run.seek(ONE, 10)
    world.brokers[1].requests[0].answer = told(p0=records(10))
    assert offsets_of(round_of(run).columns) == [10, 11]


def test_a_broker_is_given_up_when_it_is_late_and_not_before(world: World) -> None:
    world.now = 100.0
    run = start(world, ONE)
    round_of(run)
    [pending] = world.brokers[1].requests
    assert run.rules.late_after_ms == 3_500
    world.clock.elapsed_s = 3.5
    assert round_of(run) is None
    assert pending.answer is None
    world.clock.elapsed_s = 3.501
    assert round_of(run) is None
    assert str(pending.answer) == "no answer within 3500 ms"
    assert run.position(ONE) == 10


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE])
def test_an_answer_under_way_is_not_taken_for_that_of_a_leader_that_newer_metadata_name(
    world: World, code: ErrorCode
) -> None:
    """As that of the leader, the refusal of a follower would be final."""
    run = start(world, ONE)
    run.state(ONE).prefer(2, 1_000.0)
    round_of(run)
    run.state(ONE).broker.led_by(Leader(1, 5, ID), 0.0)
    run.state(ONE).prefer(2, 1_000.0)
    round_of(run)
    pending = world.brokers[2].requests[-1]
    world.leaders[ONE] = Leader(1, 6, ID)
    world.snapshot = SimpleNamespace(brokers=world.brokers)
    round_of(run)
    assert run.state(ONE).broker.node_id == 2
    pending.answer = told(p0=code)
    for _ in range(2):
        round_of(run)
    assert (run.state(ONE).error, run.state(ONE).broker.leader) == (None, Leader(1, 6, ID))
    assert asked(world.brokers[1].requests[-1]) == {0: 10}


def test_metadata_that_come_while_a_leader_is_looked_up_are_followed_once_it_is_known(world: World) -> None:
    """The look-up was answered from those before."""
    run = start(world, ONE)
    round_of(run)
    run.state(ONE).broker.lose_leader()
    run.state(ONE).answered()
    world.snapshot = SimpleNamespace(brokers=world.brokers)
    run._follow_metadata()
    run.state(ONE).led_by(Leader(1, 5, ID), 0.0)
    world.leaders[ONE] = Leader(2, 6, ID)
    run._follow_metadata()
    assert run.state(ONE).broker.leader == Leader(2, 6, ID)


def test_a_failure_moves_nothing_and_asks_anew_after_a_while(world: World) -> None:
    run = start(world, ONE)
    round_of(run)
    world.brokers[1].requests[0].answer = NetworkError("lost")
    round_of(run)
    assert round_of(run) is None
    assert (world.looked_up, len(world.brokers[1].requests)) == (["known"], 1)
    world.leaders[ONE] = Leader(2, 6, ID)
    world.clock.elapsed_s = 10.0
    round_of(run)
    assert world.looked_up == ["known", "anew"]
    assert asked(world.brokers[2].requests[0]) == {0: 10}
    assert (run.position(ONE), run.unfinished) == (10, True)


def test_an_error_of_the_whole_answer_is_one_of_each_partition(world: World) -> None:
    run = start(world, ONE, TWO)
    round_of(run)
    world.brokers[1].requests[0].answer = FetchResponse(
        error_code=ErrorCode.UNKNOWN_SERVER_ERROR, responses=[]
    )
    round_of(run)
    for progress, state in [(one.progress, one) for one in map(run.state, (ONE, TWO))]:
        assert isinstance(progress.last_failure or state.error, BrokerError)
        assert "Fetch from broker 1" in str(progress.last_failure or state.error)


def test_a_final_failure_of_the_look_up_is_raised(world: World) -> None:
    world.failure = SecurityError("the password is wrong")
    run = start(world, ONE)
    round_of(run)
    with pytest.raises(SecurityError):
        round_of(run)


def test_a_leader_that_one_partition_lacks_holds_up_no_other(world: World) -> None:
    world.leaders[ONE] = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "partition t-0")
    run = start(world, ONE, TWO)
    round_of(run)
    assert asked(world.brokers[1].requests[0]) == {1: 10}


def test_another_topic_id_is_a_recreated_topic_only_when_it_stays(world: World) -> None:
    run = start(world)
    run.add(ONE, 10, 20, UUID(int=9))
    for times in range(3):
        world.clock.elapsed_s = 10.0 * times
        assert round_of(run) is None
        assert run.state(ONE).progress.failures == times + 1
        run.state(ONE).progress.forget_waiting()
    world.clock.elapsed_s = 40.0
    round_of(run)
    with pytest.raises(TopicRecreatedError) as caught:
        round_of(run)
    assert caught.value.args == ("t", str(UUID(int=9)), str(ID))
    assert not world.brokers[1].requests


def test_a_run_with_nothing_but_paused_partitions_waits_for_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: object) -> Any:
        raise AssertionError("no response can come")

    monkeypatch.setattr(fetcher, "wait_for_any", wait)
    run = start(world, ONE, TWO)
    run.pause(ONE)
    run.pause(TWO)
    assert run.next() is None
    assert run.unfinished


def test_a_response_that_came_late_counts(world: World) -> None:
    run = start(world, ONE)
    round_of(run)
    world.clock.elapsed_s = run.rules.late_after_ms / 1000 + 1
    world.brokers[1].requests[0].answer = told(p0=records(10))
    assert offsets_of(round_of(run).columns) == [10, 11]


def test_after_an_error_the_next_request_waits_for_as_long_as_the_caller_says(world: World) -> None:
    run = start(world, ONE, TWO)
    for tp in (ONE, TWO):
        run.state(tp).break_off(BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "refused"))
    run.try_again(ONE, 250)
    run.try_again(TWO)
    assert round_of(run) is None
    assert [asked(one) for one in world.brokers[1].requests] == [{1: 10}]
    assert run.max_wait_ms == 250
    world.brokers[1].requests[0].answer = told(p1=records(10, 10))
    assert round_of(run).topic_partition == TWO
    world.clock.elapsed_s = 0.25
    assert round_of(run) is None
    assert [asked(one) for one in world.brokers[1].requests] == [{1: 10}, {0: 10}]


def test_a_caller_learns_once_that_a_broker_has_accepted_an_offset(world: World) -> None:
    accepted: list[object] = []
    run = start(world, run_with={"accepted": accepted.append})
    run.add(ONE, 10)
    requests = world.brokers[1].requests
    round_of(run)
    requests[-1].answer = told(p0=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    round_of(run)
    assert accepted == []
    world.clock.elapsed_s = 10.0
    for offset in (10, 12):
        round_of(run)
        requests[-1].answer = told(p0=records(offset))
        assert round_of(run) is not None
        assert accepted == [ONE]
    run.seek(ONE, 50)
    requests[-1].answer = told(p0=records(14))
    round_of(run)
    assert accepted == [ONE]
    requests[-1].answer = told(p0=records(50))
    round_of(run)
    assert accepted == [ONE, ONE]


@pytest.mark.parametrize("others", [(), (TWO,)], ids=["alone", "with others"])
def test_a_batch_does_not_decompress_to_more_than_the_setting_allows(world: World, others: Any) -> None:
    body = gzip.compress(record(0, bytes(100_000)))
    large = batch(body=body, count=1, attributes=1, base_offset=10)
    run = start(world, ONE, *others, run_with={"shares_memory": True}, max_batch_bytes=50_000)

    def read() -> None:
        for _ in range(4):  # corrupt records are requested twice, and others ahead of them
            while (fetched := round_of(run)) is not None:
                assert fetched.topic_partition == TWO
            world.brokers[1].requests[-1].answer = told(p0=large, p1=records(10, 10))

    with pytest.raises(CorruptRecordError, match=r"t-0 at offset 10: .*the 50000 bytes allowed"):
        read()


@pytest.mark.parametrize("others", [(), (TWO,)], ids=["alone", "with others"])
def test_records_with_another_checksum_come_where_none_is_checked(world: World, others: Any) -> None:
    damaged = batch([record(0), record(1)], base_offset=10, crc=1)
    run = start(world, ONE, *others, run_with={"shares_memory": True}, check_crcs=False)
    round_of(run)
    world.brokers[1].requests[0].answer = told(p0=damaged, p1=records(10))
    fetched = round_of(run)
    assert (fetched.topic_partition, offsets_of(fetched.columns)) == (ONE, [10, 11])


def test_a_fetch_that_its_caller_ends_early_abandons_its_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its response would stay in memory, and its look-ups go on."""

    def respond(pendings: list[FakePending], until: Deadline, wakeup: object) -> list[FakePending]:
        world.brokers[1].requests[0].answer = told(p0=records(10))
        return world.wait_for_any(pendings, until, wakeup)

    monkeypatch.setattr(fetcher, "wait_for_any", respond)
    background = AtOnce("kafka-fetch")
    monkeypatch.setattr(fetcher, "FetchLookups", lambda router: FetchLookups(router, background=background))
    router: Any = world
    found = Fetcher(router, ConsumerConfig()).fetch({ONE: (10, 20)})
    assert offsets_of(next(found).columns) == [10, 11]
    [_, ahead] = world.brokers[1].requests
    assert (ahead.abandoned, world.brokers[1].trimmed) == (0, 0)
    found.close()  # type: ignore[attr-defined]
    assert (ahead.abandoned, world.brokers[1].trimmed) == (1, 1)
