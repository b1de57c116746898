"""The rounds of a fetch, one by one, with literals."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest
from support.brokers.scripted_broker import offsets_of
from support.consumer.simulated_fetch import (
    ID,
    ONE,
    THREE,
    TWO,
    FakePending,
    World,
    asked,
    records,
    round_of,
    start,
    told,
)

from spark_kafka_native.kafka.cluster.router import Leader
from spark_kafka_native.kafka.config.client_config import ConsumerConfig
from spark_kafka_native.kafka.consumer import fetch_responses as fetch_answers
from spark_kafka_native.kafka.consumer import fetcher
from spark_kafka_native.kafka.consumer.fetch_responses import FRAME_OVERHEAD
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
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
