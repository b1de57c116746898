"""A fetch that runs: moved, paused and extended meanwhile, and brokers that answer without any use."""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.brokers.scripted_broker import (
    HangUp,
    ScriptedCluster,
    offsets_of,
    properties,
    refusal,
    values_of,
)

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.consumer import fetcher
from spark_kafka_native.kafka.consumer.fetcher import FetchClock, FetchRun
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    DeadlineExceededError,
    EndOfLogError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    ProtocolError,
)
from spark_kafka_native.kafka.model import IsolationLevel, TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline

pytestmark = [
    pytest.mark.timed(0.1),
    # An interrupt in a destructor.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_RUNS: list[FetchRun] = []
"""Those that are to be closed at the end of a test."""
Change = Callable[[PartitionData], PartitionData]
LIMIT_MS, LONGER_S = 20_000, 25.0
"""A poll timeout that no machine is too slow for, and a time beyond it, which passes on the run's clock
alone: no request is given up within it."""


class MovableClock:
    """The time of day, and what a test adds."""

    def __init__(self) -> None:
        self.added_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.added_s


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(3) as running:
        yield running
        while _RUNS:
            _RUNS.pop().close()


def start(
    cluster: ScriptedCluster,
    *,
    shares_memory: bool = False,
    clock: Callable[[], float] = time.monotonic,
    **changed: Any,
) -> FetchRun:
    names = ("client_rack", "receive_message_max_bytes", "retry_backoff_ms", "retry_backoff_max_ms")
    client = {name: changed.pop(name) for name in list(changed) if name in names}
    client |= {"request_timeout_ms": 60_000}
    quick = {
        "fetch_max_wait_ms": 10,
        "end_of_log_wait_ms": 100,
        "poll_timeout_ms": 60_000,
        "max_partition_fetch_bytes": 1,
    } | changed
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers, **client)))
    run = FetchRun(router, ConsumerConfig(**quick), shares_memory=shares_memory, clock=FetchClock(clock))
    _RUNS.append(run)
    return run


def fill(cluster: ScriptedCluster, partitions: int = 1, batches: int = 4) -> list[TopicPartition]:
    tps = cluster.create("orders", partitions, leader=1)
    for tp in tps:
        for batch in range(batches):
            cluster.logs[tp].append([b"%d" % (batch * 5 + i) for i in range(5)])
    return tps


def drain(run: FetchRun, seconds: float = 600) -> dict[TopicPartition, list[int]]:
    """The offsets that come until nothing is left or the time is over; values must be theirs."""
    found: dict[TopicPartition, list[int]] = {}
    deadline = Deadline.after_ms(seconds * 1000)
    while (fetched := run.next(deadline)) is not None:
        offsets = offsets_of(fetched.columns)
        assert values_of(fetched.columns) == [b"%d" % offset for offset in offsets]
        found.setdefault(fetched.topic_partition, []).extend(offsets)
    return found


def take(run: FetchRun, count: int) -> dict[TopicPartition, list[int]]:
    """The offsets of the next ``count`` records, which are there or about to come."""
    found: dict[TopicPartition, list[int]] = {}
    while sum(map(len, found.values())) < count:
        fetched = run.next(Deadline.after_ms(60_000))
        assert fetched is not None
        found.setdefault(fetched.topic_partition, []).extend(offsets_of(fetched.columns))
    return found


def read_in_vain(run: FetchRun, until: Callable[[], object]) -> None:
    """Read on; no record comes before that is true."""
    limit = Deadline.after_ms(60_000)
    while not until():
        assert not limit.expired
        assert run.next(Deadline.after_ms(10)) is None


def changed(cluster: ScriptedCluster, node_id: int, change: Change, **response: Any) -> Any:
    """What the broker answers, with each partition changed."""
    serve = cluster.fetcher(node_id)

    def answer(request: FetchRequest, version: int) -> FetchResponse:
        told = serve(request, version)
        topics = [
            replace(topic, partitions=[change(p) for p in topic.partitions]) for topic in told.responses
        ]
        return replace(told, responses=topics, **response)

    return answer


def nothing(request: FetchRequest, version: int) -> FetchResponse:
    """As a broker over its quota answers: no partition at all."""
    return FetchResponse(responses=[])


def test_partitions_are_added_and_removed_while_it_runs(cluster: ScriptedCluster) -> None:
    one, two, three = fill(cluster, 3)
    run = start(cluster)
    run.add(one, 0, 20)
    assert offsets_of(run.next().columns) == [0, 1, 2, 3, 4]  # type: ignore[union-attr]
    run.add(two, 10, 20)
    run.add(three, 0, 20)
    run.remove(three)
    assert drain(run) == {one: list(range(5, 20)), two: list(range(10, 20))}
    assert not run.unfinished
    with pytest.raises(ValueError, match="orders-0 is being fetched already"):
        run.add(one, 0)


def test_a_partition_that_is_removed_and_added_again_is_another_one(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster)
    run = start(cluster)
    run.add(tp, 0, 20)
    run.next()
    run.remove(tp)
    run.add(tp, 5, 15)
    assert drain(run) == {tp: list(range(5, 15))}


def test_seek_goes_back_and_forth_and_moves_the_end(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster)
    run = start(cluster)
    run.add(tp, 0, 20)
    run.next()
    run.seek(tp, 12)
    assert drain(run) == {tp: list(range(12, 20))}
    assert run.position(tp) == 20
    run.seek(tp, 3, 7)
    assert drain(run) == {tp: [3, 4, 5, 6]}


def test_seek_in_the_middle_of_an_answer_drops_the_rest_of_it(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kafka_native.kafka.consumer.fetched_records.DECODED_BYTES", 1)
    one, two = fill(cluster, 2)
    run = start(cluster, max_partition_fetch_bytes=1 << 20)
    run.add(one, 0, 20)
    run.add(two, 0, 20)
    first = run.next()
    assert first is not None
    assert (first.topic_partition, first.next_offset) == (one, 5)
    run.seek(one, 15)
    run.seek(two, 17)
    assert drain(run) == {one: list(range(15, 20)), two: [17, 18, 19]}


def test_a_paused_partition_is_not_asked_for_and_goes_on_at_its_position(cluster: ScriptedCluster) -> None:
    one, two = fill(cluster, 2)
    run = start(cluster, poll_timeout_ms=LIMIT_MS)
    run.add(one, 0, 20)
    run.add(two, 0, 20)
    first = run.next()
    assert first is not None
    if first.topic_partition == two:  # its leader was found sooner
        one, two = two, one
    run.pause(one)
    assert drain(run) == {two: list(range(20))}
    asked = len(cluster[1].requests(FetchRequest))
    run._clock.elapsed_s += LONGER_S
    assert run.next(Deadline.after_ms(200)) is None
    assert len(cluster[1].requests(FetchRequest)) == asked
    run.resume(one)
    assert drain(run) == {one: list(range(5, 20))}


def test_an_endless_partition_waits_at_the_end_for_what_comes(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster)
    run = start(cluster, poll_timeout_ms=50)
    run.add(tp, 18)
    assert take(run, 2) == {tp: [18, 19]}
    assert drain(run, 0.4) == {}  # far longer than the poll timeout and the wait at the end
    cluster.logs[tp].append([b"20"])
    assert take(run, 1) == {tp: [20]}


def test_an_error_about_one_partition_leaves_the_others_and_can_be_mended(cluster: ScriptedCluster) -> None:
    one, two = fill(cluster, 2)
    cluster.logs[one].log_start_offset = 10
    run = start(cluster)
    run.add(one, 3, 20)
    run.add(two, 0, 20)
    found: list[int] = []
    out_of_range, said = 0, ""
    while out_of_range < 2:
        try:
            fetched = run.next()
        except OffsetOutOfRangeError as error:
            out_of_range += 1
            said = str(error)
        else:
            assert fetched is not None
            found += offsets_of(fetched.columns)
    assert said == "orders-0 at offset 3: OFFSET_OUT_OF_RANGE (it has [10, 20))"
    run.seek(one, 10)
    left = drain(run)
    assert left[one] == list(range(10, 20))
    assert found + left.get(two, []) == list(range(20))  # all were read if the bounds came late


def test_partitions_that_wait_for_their_turn_are_not_late(cluster: ScriptedCluster) -> None:
    """Each answer has records of one partition, and takes a good part of the poll timeout."""
    tps = fill(cluster, 20, batches=2)
    serve, clock = cluster.fetcher(1), MovableClock()

    def slow(request: FetchRequest, version: int) -> FetchResponse:
        time.sleep(0.01)  # so that the run is waiting
        clock.added_s += LIMIT_MS / 1000 / 8
        return serve(request, version)

    cluster[1].on(FetchRequest, slow)
    run = start(cluster, clock=clock, fetch_max_bytes=1, poll_timeout_ms=LIMIT_MS)
    for tp in tps:
        run.add(tp, 0, 10)
    assert drain(run) == {tp: list(range(10)) for tp in tps}


def test_throttle_time_is_nobodys_failure(cluster: ScriptedCluster) -> None:
    """A broker over its quota names no partition, and asks to be left alone (KIP-219)."""
    tps = fill(cluster, 2)
    throttled = FetchResponse(responses=[], throttle_time_ms=150)
    serve = cluster.fetcher(1)
    cluster[1].push(FetchRequest, *[throttled] * 4, serve, throttled, throttled)
    run = start(cluster, poll_timeout_ms=LIMIT_MS)
    for tp in tps:
        run.add(tp, 0, 20)
    for left in (5, 4):
        read_in_vain(run, lambda left=left: cluster[1].pushed(FetchRequest) <= left and run._muted_ms)  # type: ignore[misc]
        run._clock.elapsed_s += LONGER_S
    assert drain(run) == {tp: list(range(20)) for tp in tps}
    at = [asked.at for asked in cluster[1].asked if isinstance(asked.request, FetchRequest)]
    assert all(later - earlier > 0.14 for earlier, later in itertools.pairwise(at[:5]))


USELESS = {
    "a partition left out": (nothing, "the response of broker 1 lacks it"),
    "empty below the end": (
        lambda data: replace(data, records=memoryview(b"")),
        "although the log goes on to 20",
    ),
    "old records": (None, "only records before it"),
}


@pytest.mark.parametrize("case", USELESS)
def test_answers_without_use_are_asked_for_with_backoff_and_named_in_the_end(
    cluster: ScriptedCluster, case: str
) -> None:
    [tp] = fill(cluster)
    answer, says = USELESS[case]
    if case == "old records":
        old = memoryview(cluster.logs[tp].batches[0])
        answer = changed(cluster, 1, lambda data: replace(data, records=old))
    elif answer is not nothing:
        answer = changed(cluster, 1, answer)  # type: ignore[arg-type]
    cluster[1].on(FetchRequest, answer)
    run = start(cluster, poll_timeout_ms=LIMIT_MS, retry_backoff_ms=100, retry_backoff_max_ms=100)
    run.add(tp, 5, 20)
    read_in_vain(run, lambda: len(cluster[1].requests(FetchRequest)) >= 4)
    at = [asked.at for asked in cluster[1].asked if isinstance(asked.request, FetchRequest)]
    assert all(later - earlier > 0.07 for earlier, later in itertools.pairwise(at))
    run._clock.elapsed_s += LONGER_S
    with pytest.raises(DeadlineExceededError, match=rf"orders-0 at offset 5 \(until 20\).*{says}"):
        drain(run)
    cluster[1].on(FetchRequest, cluster.fetcher(1))
    run.seek(tp, 5)
    assert drain(run) == {tp: list(range(5, 20))}


def test_a_replica_that_always_refuses_is_left_for_the_leader(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster)
    serve = cluster.fetcher(1)

    def near(request: FetchRequest, version: int) -> FetchResponse:
        if not request.rack_id:
            return serve(request, version)
        prefer = changed(cluster, 1, lambda data: replace(data, preferred_read_replica=2, records=None))
        return prefer(request, version)  # type: ignore[no-any-return]

    cluster[1].on(FetchRequest, near)
    cluster[2].on(FetchRequest, changed(cluster, 2, lambda _: refusal(0, ErrorCode.OFFSET_OUT_OF_RANGE)))
    run = start(cluster, client_rack="a")
    run.add(tp, 0, 20)
    assert drain(run) == {tp: list(range(20))}
    assert len(cluster[2].requests(FetchRequest)) == 1


def test_an_end_that_vanishes_while_a_follower_is_read_is_noticed(cluster: ScriptedCluster) -> None:
    """The follower has no more, and the leader sends everybody to it: only the leader's word counts."""
    [tp] = fill(cluster)
    prefer = changed(cluster, 1, lambda data: replace(data, preferred_read_replica=2, records=None))
    cluster[1].on(FetchRequest, prefer)
    cluster[2].on(FetchRequest, cluster.fetcher(1))
    run = start(cluster, client_rack="a", poll_timeout_ms=60_000)
    run.add(tp, 0, 30)
    with pytest.raises(EndOfLogError, match=r"offsets \[20, 30\)"):
        drain(run, 30)
    assert run.position(tp) == 20


def test_newer_metadata_are_followed_though_the_former_leader_answers(cluster: ScriptedCluster) -> None:
    """It may be cut off from the controller, and not have heard of its successor: nothing came any more."""
    [tp] = fill(cluster)
    run = start(cluster)
    run.add(tp, 0)
    assert take(run, 20)[tp][-1] == 19
    empty = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        high_watermark=20,
        last_stable_offset=20,
        aborted_transactions=None,
        records=None,
    )

    def go_on(request: FetchRequest, _version: int) -> FetchResponse:
        (topic,) = request.topics
        found = FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[empty])
        return FetchResponse(responses=[found])

    cluster[1].on(FetchRequest, go_on)
    before = len(cluster[1].requests(FetchRequest))
    # Earlier requests are answered.
    read_in_vain(run, lambda: len(cluster[1].requests(FetchRequest)) >= before + 2)
    log = cluster.logs[tp]
    log.leader, log.leader_epoch = 2, 3
    log.append([b"20"])
    assert drain(run, 0.3) == {}
    run._router.refresh((tp.topic,), Deadline.after_ms(60_000))
    assert take(run, 1) == {tp: [20]}
    assert cluster[2].requests(FetchRequest)


def test_a_log_cut_back_with_a_change_of_its_leader_is_noticed(cluster: ScriptedCluster) -> None:
    """The failure that comes with a change of leaders must not make it forget its last offset."""
    [tp] = fill(cluster)
    run = start(cluster)
    run.add(tp, 0, 20)
    run.next()
    log = cluster.logs[tp]
    log.leader, log.leader_epoch = 2, 3
    drain_one = [run.next()]
    assert drain_one
    drain(run)
    told = [r.topics[0].partitions[0] for r in cluster[2].requests(FetchRequest)]
    assert told[0].fetch_offset > 0
    assert told[0].last_fetched_epoch == 0


def test_an_old_broker_is_asked_where_the_epoch_ends_before_a_new_leader_is_read(
    cluster: ScriptedCluster,
) -> None:
    [tp] = fill(cluster, batches=12)
    for broker in cluster.brokers.values():
        broker.versions[FetchRequest.api_key] = (4, 11)

    def epoch_ends(offset: int) -> OffsetForLeaderEpochResponse:
        told = EpochEndOffset(error_code=ErrorCode.NONE, partition=0, leader_epoch=0, end_offset=offset)
        return OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(topic="orders", partitions=[told])]
        )

    run = start(cluster)
    run.add(tp, 0, 60)
    run.next()
    log = cluster.logs[tp]
    log.leader, log.leader_epoch = 2, 3
    cluster[2].on(OffsetForLeaderEpochRequest, epoch_ends(60))
    run.next()
    assert run.next() is not None
    [asked] = cluster[2].requests(OffsetForLeaderEpochRequest)
    told = asked.topics[0].partitions[0]
    assert (told.leader_epoch, told.current_leader_epoch) == (0, 3)
    assert not cluster[1].requests(OffsetForLeaderEpochRequest)
    log.leader, log.leader_epoch = 3, 4
    cluster[3].on(OffsetForLeaderEpochRequest, epoch_ends(2))
    with pytest.raises(LogTruncatedError, match=r"orders-0: .*cut back to offset 2 .*read up to \d+"):
        drain(run)


def test_a_frame_over_the_cap_names_the_partition_and_the_setting(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster)
    cluster.logs[tp].append([b"x" * 200_000])
    run = start(cluster, receive_message_max_bytes=100_000)
    run.add(tp, 20, 21)
    says = r"fetching orders-0 at offset 20 from broker 1: .*raise receive\.message\.max\.bytes"
    with pytest.raises(ProtocolError, match=says):
        drain(run)


def test_a_header_that_lies_about_the_last_offset_skips_nothing(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster)

    def lie(data: PartitionData) -> PartitionData:
        records = bytearray(data.records or b"")
        struct.pack_into(">i", records, 23, 9)
        return replace(data, records=memoryview(records))

    cluster[1].push(FetchRequest, changed(cluster, 1, lie))
    run = start(cluster)
    run.add(tp, 0, 20)
    assert drain(run) == {tp: list(range(20))}


def test_connecting_slowly_is_no_waiting_in_vain(cluster: ScriptedCluster) -> None:
    """``poll.timeout.ms`` is about a partition's records, not about the way there."""
    [tp] = fill(cluster)
    serve, clock = cluster.metadata, MovableClock()

    def slow(request: Any, version: int) -> Any:
        time.sleep(0.1)  # so that the run is waiting
        clock.added_s += LONGER_S
        return serve(request, version)

    for broker in cluster.brokers.values():
        broker.on(MetadataRequest, slow)
    run = start(cluster, clock=clock, poll_timeout_ms=LIMIT_MS)
    run.add(tp, 0, 20)
    assert drain(run) == {tp: list(range(20))}


def test_a_run_prints_for_people(cluster: ScriptedCluster) -> None:
    one, two = fill(cluster, 2)
    run = start(cluster)
    run.add(one, 0, 20)
    run.add(two, 20, 20)
    assert repr(run) == "<FetchRun over 2 partitions, 1 unfinished>"


def test_a_caller_that_never_waits_gets_records_all_the_same(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster)
    run = start(cluster)
    run.add(tp, 0, 20)
    found: list[int] = []
    until = Deadline.after_ms(60_000)
    while run.unfinished and not until.expired:
        if (fetched := run.next(Deadline.after_ms(0))) is not None:
            found += offsets_of(fetched.columns)
    assert found == list(range(20))


def test_an_interrupt_while_records_are_decoded_loses_none(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the other partitions in the answer, which nothing is asked of any more."""
    one, two = fill(cluster, 2)
    run = start(cluster, max_partition_fetch_bytes=1 << 20)
    run.add(one, 0, 20)
    run.add(two, 0, 20)
    decode = fetcher.decode_fetched
    interrupted = iter([True])

    def interrupt(*args: Any) -> Any:
        if next(interrupted, False):
            raise KeyboardInterrupt
        return decode(*args)

    monkeypatch.setattr(fetcher, "decode_fetched", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.next()
    assert drain(run) == {one: list(range(20)), two: list(range(20))}


def test_what_was_decoded_with_others_is_dropped_by_a_seek_a_pause_and_a_removal(
    cluster: ScriptedCluster,
) -> None:
    tps = one, two, three, four = fill(cluster, 4)
    run = start(cluster, shares_memory=True, max_partition_fetch_bytes=1 << 20)
    for tp in tps:
        run.add(tp, 0, 20)
    first = run.next()
    assert first is not None
    assert first.topic_partition == one
    run.seek(two, 12)
    run.pause(three)
    run.remove(four)
    assert drain(run) == {two: list(range(12, 20))}
    run.resume(three)
    assert drain(run) == {three: list(range(20))}


def test_a_pause_during_which_a_broker_fails_is_no_waiting_in_vain(cluster: ScriptedCluster) -> None:
    one, two = fill(cluster, 2)
    cluster.logs[two].leader = 2
    run = start(cluster, poll_timeout_ms=LIMIT_MS)
    run.add(one, 0, 20)
    run.add(two, 20)
    paused = threading.Event()

    def hang_up(_request: FetchRequest, _version: int) -> type[HangUp]:
        assert paused.wait(60)
        return HangUp

    cluster[1].push(FetchRequest, hang_up)
    read_in_vain(run, lambda: cluster[1].requests(FetchRequest))
    run.pause(one)
    paused.set()
    read_in_vain(run, lambda: run.state(one).progress.failures)  # another is waited for meanwhile
    run._clock.elapsed_s += LONGER_S
    run.resume(one)
    assert take(run, 20) == {one: list(range(20))}


def compacted(cluster: ScriptedCluster) -> Any:
    """Committed readers see nothing although their records go on to 15; the next batch is at 15."""
    serve = cluster.fetcher(1)

    def answer(request: FetchRequest, version: int) -> FetchResponse:
        [asked] = request.topics[0].partitions
        response = serve(request, version)
        [topic] = response.responses
        data = replace(topic.partitions[0], last_stable_offset=15)
        if request.isolation_level == IsolationLevel.READ_COMMITTED:
            data = replace(data, records=memoryview(b""))
        elif asked.fetch_offset < 15:
            data = replace(data, records=memoryview(cluster.logs[ORDERS].batches[3]))
        return replace(response, responses=[replace(topic, partitions=[data])])

    return answer


ORDERS = TopicPartition("orders", 0)
COMMITTED: dict[str, Any] = {"isolation_level": IsolationLevel.READ_COMMITTED}


def test_a_compacted_tail_before_an_open_transaction_is_passed_once_the_next_batch_proves_it(
    cluster: ScriptedCluster,
) -> None:
    [tp] = fill(cluster)
    cluster[1].on(FetchRequest, compacted(cluster))
    run = start(cluster, **COMMITTED, client_rack="a", fetch_max_wait_ms=400)
    run.add(tp, 5, 12)
    fetched = run.next()
    assert fetched is not None
    assert (fetched.columns.length, fetched.from_offset, fetched.next_offset) == (0, 5, 12)
    assert fetched.columns.value is not None
    assert run.next() is None
    asked = cluster[1].requests(FetchRequest)
    levels = [request.isolation_level for request in asked]
    assert levels == [IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED]
    assert [(request.max_wait_ms, request.rack_id) for request in asked] == [(400, "a"), (0, "")]


def test_a_reader_without_an_end_gets_to_the_open_transaction(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster)
    cluster[1].on(FetchRequest, compacted(cluster))
    run = start(cluster, **COMMITTED, poll_timeout_ms=300)
    run.add(tp, 5)
    assert run.next(Deadline.after_ms(60_000)) is not None
    assert run.position(tp) == 15
    assert run.next(Deadline.after_ms(600)) is None
    last = cluster[1].requests(FetchRequest)[-1].topics[0].partitions[0]
    assert (last.fetch_offset, last.last_fetched_epoch) == (15, -1)


@pytest.mark.parametrize("shown", ["a batch at the position", "nothing"])
def test_nothing_is_passed_without_a_proof(cluster: ScriptedCluster, shown: str) -> None:
    [tp] = fill(cluster)
    answer = compacted(cluster)
    records = memoryview(cluster.logs[tp].batches[1] if shown != "nothing" else b"")

    def changed_answer(request: FetchRequest, version: int) -> FetchResponse:
        response: FetchResponse = answer(request, version)
        if request.isolation_level == IsolationLevel.READ_UNCOMMITTED:
            [topic] = response.responses
            data = replace(topic.partitions[0], records=records)
            return replace(response, responses=[replace(topic, partitions=[data])])
        return response

    cluster[1].on(FetchRequest, changed_answer)
    backoff: dict[str, Any] = {"retry_backoff_ms": 100, "retry_backoff_max_ms": 100}
    run = start(cluster, **COMMITTED, **backoff, poll_timeout_ms=LIMIT_MS)
    run.add(tp, 5, 12)

    def probes() -> list[float]:
        """When they came."""
        return [
            asked.at
            for asked in cluster[1].asked
            if isinstance(asked.request, FetchRequest)
            and asked.request.isolation_level == IsolationLevel.READ_UNCOMMITTED
        ]

    read_in_vain(run, lambda: len(probes()) >= 3 and run.state(tp).progress.last_failure)
    assert all(later - earlier > 0.07 for earlier, later in itertools.pairwise(probes()))
    run._clock.elapsed_s += LONGER_S
    with pytest.raises(DeadlineExceededError, match="no records, although the log goes on to 15"):
        run.next()
    assert run.position(tp) == 5


def in_need_of_a_probe(cluster: ScriptedCluster, hidden: TopicPartition) -> Any:
    """What the broker answers: only a probe, of that partition alone, finds a batch of ``hidden``."""
    serve = cluster.fetcher(1)

    def answer(request: FetchRequest, version: int) -> FetchResponse:
        response = serve(request, version)
        [topic] = response.responses
        probe = request.isolation_level == IsolationLevel.READ_UNCOMMITTED
        assert probe == ([p.partition_index for p in topic.partitions] == [hidden.partition]) or not probe
        records = memoryview(cluster.logs[hidden].batches[3] if probe else b"")
        partitions = [
            replace(data, records=records) if data.partition_index == hidden.partition else data
            for data in topic.partitions
        ]
        return replace(response, responses=[replace(topic, partitions=partitions)])

    return answer


def test_a_probe_asks_for_its_partition_alone_and_the_others_come_all_the_same(
    cluster: ScriptedCluster,
) -> None:
    one, two = fill(cluster, 2)
    cluster[1].on(FetchRequest, in_need_of_a_probe(cluster, one))
    run = start(cluster, **COMMITTED)
    run.add(one, 5, 12)
    run.add(two, 0, 20)
    assert drain(run)[two] == list(range(20))
    assert run.position(one) == 12


def test_a_probe_does_not_wait_until_other_partitions_have_no_more_records(cluster: ScriptedCluster) -> None:
    one, two = fill(cluster, 2)
    answer = in_need_of_a_probe(cluster, one)

    def batch_by_batch(request: FetchRequest, version: int) -> FetchResponse:
        response: FetchResponse = answer(request, version)
        [topic] = response.responses
        offsets = {asked.partition: asked.fetch_offset for asked in request.topics[0].partitions}
        partitions = [
            replace(data, records=memoryview(cluster.logs[two].batches[offsets[two.partition] // 5]))
            if data.partition_index == two.partition
            else data
            for data in topic.partitions
        ]
        return replace(response, responses=[replace(topic, partitions=partitions)])

    cluster[1].on(FetchRequest, batch_by_batch)
    run = start(cluster, **COMMITTED)
    run.add(one, 5, 12)
    run.add(two, 0, 20)
    while run.position(one) < 12:
        assert run.next() is not None
    assert run.position(two) < 20
    assert drain(run)[two][-1] == 19


def test_a_probe_does_not_wait_for_a_partition_that_is_read_without_an_end(cluster: ScriptedCluster) -> None:
    """A broker that holds each response for the whole wait gets one request for both, again and again."""
    one, two = fill(cluster, 2)
    cluster[1].on(FetchRequest, in_need_of_a_probe(cluster, one))
    run = start(cluster, **COMMITTED, fetch_max_wait_ms=0, poll_timeout_ms=5_000)
    run.add(one, 5, 12)
    run.add(two, 20)
    assert run.next() is not None
    assert (run.position(one), run.position(two)) == (12, 20)


def test_a_range_is_not_held_back_for_more_than_it_has(cluster: ScriptedCluster) -> None:
    one, two = fill(cluster, 2)
    run = start(cluster, fetch_min_bytes=10_000)
    run.add(one, 0, 20)
    assert drain(run) == {one: list(range(20))}
    assert {request.min_bytes for request in cluster[1].requests(FetchRequest)} == {1}
    before = len(cluster[1].requests(FetchRequest))
    run.add(two, 20)
    read_in_vain(run, lambda: len(cluster[1].requests(FetchRequest)) > before)
    assert {request.min_bytes for request in cluster[1].requests(FetchRequest)[before:]} == {10_000}
