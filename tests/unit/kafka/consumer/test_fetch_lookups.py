"""A broker that can't be reached holds up its own partitions alone: with gates, and with a silent broker."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster, offsets_of, properties
from support.brokers.silent_listener import silent_listener
from support.consumer.simulated_fetch import ID, AtOnce, FakeConnection, World
from support.consumer.simulated_fetch import start as start_in
from support.interrupts.keyboard_interrupts import repeat_until_interrupted

from spark_kafka_native.kafka.cluster.router import Leader, Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.config.reader_config import OffsetReset, ReaderConfig
from spark_kafka_native.kafka.consumer.fetch_lookups import FetchLookups, TopicBackoff
from spark_kafka_native.kafka.consumer.fetcher import FetchRun
from spark_kafka_native.kafka.consumer.partition_reader import PartitionReader
from spark_kafka_native.kafka.consumer.partition_state import PartitionState
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    NetworkError,
    OffsetOutOfRangeError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline

AWAY = "away.example"
SOON_S = 60.0
FOR_EVER_MS = 3_600_000
PATIENT = {
    "request_timeout_ms": FOR_EVER_MS,
    "default_api_timeout_ms": FOR_EVER_MS,
    "socket_connection_setup_timeout_ms": FOR_EVER_MS,
}
"""A caller that waits for a silent broker waits for an hour."""


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """Partitions 0 and 2 are led by broker 1, partition 1 by broker 2."""
    with ScriptedCluster(2) as running:
        for tp in running.create("t", 3):
            for batch in range(4):
                running.logs[tp].append([b"%d" % (batch * 5 + i) for i in range(5)])
        yield running


ONE, TWO, THREE = (TopicPartition("t", partition) for partition in range(3))


class Gate:
    """Until it is opened, a thread waits at it; ``reached`` shows that one does."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def wait(self) -> None:
        self.reached.set()
        assert self._opened.wait(10 * SOON_S)

    def before(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        """``answer``, once it is opened."""

        def later(*how: Any) -> Any:
            self.wait()
            return answer(*how)

        return later


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    with silent_listener() as sock:
        yield sock.getsockname()


@pytest.fixture
def start(cluster: ScriptedCluster) -> Iterator[Callable[..., FetchRun]]:
    runs: list[tuple[FetchRun, Router]] = []

    def begin(
        resolver: Any = None, socket_factory: Any = None, poll_timeout_ms: int = 60_000, **changed: Any
    ) -> FetchRun:
        given = properties(cluster[1].address, **PATIENT | changed)
        config = replace(
            ClientConfig.from_properties(given), resolver=resolver, socket_factory=socket_factory
        )
        router = Router(config)
        runs.append(
            (FetchRun(router, ConsumerConfig(fetch_max_wait_ms=20, poll_timeout_ms=poll_timeout_ms)), router)
        )
        return runs[-1][0]

    yield begin
    for run, router in runs:
        run.close()
        router.close()


@contextlib.contextmanager
def reading(cluster: ScriptedCluster, resolver: Any = None, **config: Any) -> Iterator[PartitionReader]:
    given = ClientConfig.from_properties(properties(cluster[1].address, **PATIENT))
    router = Router(replace(given, resolver=resolver))
    reader = PartitionReader(router, ReaderConfig(**{"fetch_max_wait_ms": 20} | config))
    try:
        yield reader
    finally:
        reader.close()
        router.close()


def only_two_waits(reader: PartitionReader, gate: Gate) -> None:
    """While the gate holds up what TWO needs, ONE is read."""
    assert gate.reached.wait(SOON_S)
    reader.add(ONE, 0)
    assert records(reader) == [(0, offset) for offset in ALL]
    gate.open()
    assert records(reader) == [(1, offset) for offset in ALL]


def records(reader: PartitionReader) -> list[tuple[int, int]]:
    """Partition and offset of the next 20."""
    until = Deadline.after_ms(SOON_S * 1000)
    found = [reader.next_record(until) for _ in ALL]
    return [(one.partition, one.offset) for one in found if one is not None]


def resolving(gate: Gate) -> Callable[[str, int], list[Any]]:
    def resolve(host: str, port: int) -> list[Any]:
        if host == AWAY:
            gate.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    return resolve


def in_time(work: Callable[[], Any]) -> Any:
    """What ``work`` returns, or raises, within a time that has nothing to do with that of a broker."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SOON_S)
    assert found, "it waits for the broker that does not answer"
    return found[0]


def take(run: FetchRun, *topic_partitions: TopicPartition) -> dict[TopicPartition, list[int]]:
    """All records of these, while the others are held up."""
    found: dict[TopicPartition, list[int]] = {tp: [] for tp in topic_partitions}

    def read() -> None:
        until = Deadline.after_ms(SOON_S * 1000)
        while any(len(offsets) < 20 for offsets in found.values()):
            fetched = run.next(until)
            assert fetched is not None
            found[fetched.topic_partition] += offsets_of(fetched.columns)

    assert in_time(read) is None
    return found


def eventually(holds: Callable[[], bool]) -> None:
    until = Deadline.after_ms(SOON_S * 1000)
    while not holds():
        assert not until.expired
        time.sleep(0.005)


def looking_up() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("kafka-fetch")]


ALL = list(range(20))


def test_a_leader_that_cannot_be_reached_holds_up_its_own_partitions_alone(
    cluster: ScriptedCluster, start: Callable[..., FetchRun], gate: Gate
) -> None:
    cluster[2].host = AWAY
    run = start(resolving(gate))
    for tp in (TWO, ONE, THREE):
        run.add(tp, 0, 20)
    assert take(run, ONE, THREE) == {ONE: ALL, THREE: ALL}
    assert gate.reached.wait(SOON_S)
    assert run.unfinished
    gate.open()
    assert take(run, TWO) == {TWO: ALL}
    assert not run.unfinished


def test_a_reader_reads_on_while_a_leader_cannot_be_reached(cluster: ScriptedCluster, gate: Gate) -> None:
    cluster[2].host = AWAY
    with reading(cluster, resolving(gate)) as reader:
        reader.add(TWO, 0)
        only_two_waits(reader, gate)


def test_a_look_for_leaders_holds_up_only_those_that_need_it(cluster: ScriptedCluster, gate: Gate) -> None:
    with reading(cluster) as reader:
        cluster.logs[TWO].leader = 1
        reader._router.metadata(("t",))
        cluster.logs[TWO].leader = 2  # broker 1 refuses, and the new leader has to be looked up
        for broker in cluster.brokers.values():
            broker.on(MetadataRequest, gate.before(cluster.metadata))
        reader.add(TWO, 0)
        only_two_waits(reader, gate)


def test_bounds_that_are_asked_for_hold_up_only_their_partition(
    cluster: ScriptedCluster, start: Callable[..., FetchRun], gate: Gate
) -> None:
    cluster[2].on(ListOffsetsRequest, gate.before(cluster.list_offsets))
    run = start()
    run.add(TWO, 99, 100)
    run.add(ONE, 0, 20)
    in_time(lambda: run.next(Deadline.after_ms(50)))  # it is refused, perhaps
    while not gate.reached.is_set():
        run.next(Deadline.after_ms(1))
    run.seek(ONE, 0)
    assert take(run, ONE) == {ONE: ALL}
    assert run.broken() == {}
    gate.open()
    error = in_time(run.next)
    assert isinstance(error, OffsetOutOfRangeError)
    assert error.args == (TWO, 99, 0, 20)
    assert run.broken() == {TWO: error}
    run.seek(TWO, 0, 20)
    assert take(run, TWO) == {TWO: ALL}


def test_where_to_go_on_is_asked_for_while_others_are_read(cluster: ScriptedCluster, gate: Gate) -> None:
    cluster[2].on(ListOffsetsRequest, gate.before(cluster.list_offsets))
    with reading(cluster, auto_offset_reset=OffsetReset.EARLIEST) as reader:
        reader.add(TWO, 99)
        only_two_waits(reader, gate)


def test_why_a_leader_cannot_be_reached_is_told_in_the_end(
    cluster: ScriptedCluster, start: Callable[..., FetchRun]
) -> None:
    cluster[2].stop()
    run = start(poll_timeout_ms=100)
    run.add(TWO, 0, 20)
    error = in_time(run.next)
    assert isinstance(error, DeadlineExceededError)
    assert (
        "cannot fetch t-1 at offset 0 (until 20) in 100 ms; the last failure: broker 2: cannot connect to"
        in (str(error))
    )


def test_a_close_ends_what_is_being_dialled(
    cluster: ScriptedCluster, start: Callable[..., FetchRun], silent: tuple[str, int]
) -> None:
    made: list[socket.socket] = []

    def create(info: Any) -> socket.socket:
        made.append(socket.socket(*info[:3]))
        return made[-1]

    cluster[2].host, cluster[2].port = silent
    run = start(socket_factory=create)
    run.add(TWO, 0, 20)
    before = set(looking_up())
    eventually(lambda: run.next(Deadline.after_ms(1)) is None and len(made) > 1)
    run.close()
    eventually(lambda: set(looking_up()) <= before)
    run._router.close()
    assert [one.fileno() for one in made] == [-1] * len(made)


def test_a_closed_reader_leaves_no_thread(cluster: ScriptedCluster, silent: tuple[str, int]) -> None:
    cluster[2].host, cluster[2].port = silent
    before = set(looking_up())
    with reading(cluster) as reader:
        reader.add(TWO, 0)
        eventually(lambda: any("connection" in name for name in looking_up()))
        in_time(reader.close)
    eventually(lambda: set(looking_up()) <= before)


def test_an_interrupt_comes_through_while_a_leader_is_dialled(
    cluster: ScriptedCluster, start: Callable[..., FetchRun], silent: tuple[str, int]
) -> None:
    cluster[2].host, cluster[2].port = silent
    run = start()
    run.add(TWO, 0, 20)
    repeat_until_interrupted(0.2, run.next)
    run.remove(TWO)
    run.add(ONE, 0, 20)
    assert take(run, ONE) == {ONE: ALL}


def test_a_partition_that_was_moved_hears_nothing_of_what_was_asked_before(
    cluster: ScriptedCluster, start: Callable[..., FetchRun], gate: Gate
) -> None:
    cluster[2].on(ListOffsetsRequest, gate.before(cluster.list_offsets))
    run = start()
    run.add(TWO, 99, 120)
    while not gate.reached.is_set():
        assert run.next(Deadline.after_ms(1)) is None
    run.seek(TWO, 0, 20)
    gate.open()
    assert take(run, TWO) == {TWO: ALL}


def test_a_topic_that_stays_away_is_looked_up_less_and_less_often() -> None:
    backoff = TopicBackoff(first_ms=1_000, max_ms=100_000)
    missing = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t")
    waits = []
    for _ in range(6):
        backoff.learn({ONE: missing}, now=0.0)
        waits.append(backoff.not_before("t", 0.0))
    assert waits[-1] > 4 * waits[0]
    backoff.learn({ONE: Leader(1, 5, ID)}, now=0.0)
    backoff.learn({ONE: missing}, now=0.0)
    assert backoff.not_before("t", 0.0) < 4 * waits[0]


@pytest.mark.parametrize("reason", ["paused", "broken off", "finished", "tried again later"])
def test_the_leader_of_a_partition_that_is_not_read_is_not_looked_up(world: World, reason: str) -> None:
    """Its outcome would not be kept: each round would ask again."""
    router: Any = world
    lookups = FetchLookups(router, background=AtOnce("kafka-fetch"))
    lost = PartitionState(ONE, 20 if reason == "finished" else 10, 20, 1)
    lost.broker.lose_leader()
    if reason == "paused":
        lost.pause(0.0)
    elif reason == "broken off":
        lost.break_off(BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t"))
    elif reason == "tried again later":
        lost.lose_leader(NetworkError("lost"), 0.0, 0.5)
    assert lookups.find_leaders([lost], 0.4) == []
    assert world.looked_up == []


def test_a_partition_that_is_added_waits_for_the_next_look_up_of_its_topic(world: World) -> None:
    """The fetch would go round and round meanwhile."""
    world.leaders[ONE] = world.leaders[TWO] = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "t")
    run = start_in(world, ONE)
    run.next(Deadline.after_ms(0))
    assert world.looked_up == ["known"]
    run.add(TWO, 10, 20)
    run.next(Deadline.after_ms(0))
    assert world.looked_up == ["known"]
    assert run.max_wait_ms > 0
    world.leaders[ONE] = world.leaders[TWO] = Leader(1, 5, ID)
    world.clock.elapsed_s = 1.0
    run.next(Deadline.after_ms(0))
    assert [run.state(tp).broker.leader for tp in (ONE, TWO)] == [Leader(1, 5, ID)] * 2


def test_a_connection_that_has_ended_at_once_is_a_failure(world: World) -> None:
    """Its broker hangs up after the handshake: once that is known, no caller gets the connection any more."""
    dialled = []

    def connection(node_id: int, deadline: Deadline) -> FakeConnection:
        dialled.append(node_id)
        return World.connection(world, node_id, deadline)

    world.ready = lambda _: None  # type: ignore[method-assign, assignment]
    world.connection = connection  # type: ignore[method-assign]
    world.brokers[1].submit = hang_up
    run = start_in(world, ONE, poll_timeout_ms=60_000)
    run.next(Deadline.after_ms(0))
    state = run.state(ONE)
    assert (dialled, state.progress.failures, str(state.progress.last_failure)) == (
        [1],
        1,
        "the broker hung up",
    )
    run.next(Deadline.after_ms(0))
    assert dialled == [1]  # not before the pause is over
    state.progress.retry_at = 0.0
    del world.brokers[1].submit
    run.next(Deadline.after_ms(0))
    assert dialled == [1, 1]
    assert len(world.brokers[1].requests) == 1


def hang_up(*_: object) -> None:
    raise NetworkError("the broker hung up")


class Held(AtOnce):
    """Does its work when the test says so, in the run's own thread."""

    def __init__(self) -> None:
        super().__init__("kafka-fetch")
        self.work: dict[Hashable, tuple[Callable[[], Any], Callable[[Any], None]]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self.work

    def start(self, key: Hashable, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.work.setdefault(key, (work, then))

    def finish(self, key: Hashable, outcome: Any = None) -> None:
        work, then = self.work.pop(key)
        then(work() if outcome is None else outcome)


def held_up(world: World) -> tuple[FetchRun, Held]:
    held = Held()
    return start_in(world, background=held), held


def test_a_new_partition_does_not_hide_that_the_leader_of_another_is_stale(world: World) -> None:
    """The metadata at hand name the leader that has just refused."""
    world.connected |= {1, 2}
    run = start_in(world, ONE)
    run.next(Deadline.after_ms(0))
    run.state(ONE).broker.lose_leader()
    run.add(TWO, 0, 20)
    world.looked_up.clear()
    run.next(Deadline.after_ms(0))
    assert world.looked_up == ["anew"]


def test_a_broker_that_does_not_say_its_bounds_holds_up_no_reset_at_another(world: World) -> None:
    """Each is asked about one partition at a time."""
    world.leaders[TWO] = Leader(2, 5, ID)
    run, held = held_up(world)
    for tp in (ONE, TWO, THREE):
        run.add(tp, 99, 120)
        run.state(tp).broker.led_by(world.leaders[tp], 0.0)
        run.state(tp).break_off(OffsetOutOfRangeError(tp, 99))
    assert run.next(Deadline.after_ms(0)) is None
    assert held.work.keys() == {("bounds", 1), ("bounds", 2)}
    held.finish(("bounds", 2), OffsetOutOfRangeError(TWO, 99, 0, 20))
    run.settle()
    assert run.broken().keys() == {TWO}


def test_bounds_are_not_told_to_a_partition_that_was_moved_meanwhile(world: World) -> None:
    run, held = held_up(world)
    run.add(ONE, 99, 120)
    error = OffsetOutOfRangeError(ONE, 99)
    run.state(ONE).break_off(error)
    assert run.next(Deadline.after_ms(0)) is None
    run.seek(ONE, 0, 20)
    held.finish(("bounds", None), OffsetOutOfRangeError(ONE, 99, 0, 20))
    run.settle()
    assert run.broken() == {}
    assert run.position(ONE) == 0


def test_what_is_wrong_with_a_leader_is_not_told_to_a_partition_that_was_paused_meanwhile(
    world: World,
) -> None:
    run, held = held_up(world)
    run.add(ONE, 0, 20)
    assert run.next(Deadline.after_ms(0)) is None
    run.pause(ONE)
    held.finish("leaders", BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t"))
    run.settle()
    run.resume(ONE)
    assert run.broken() == {}
    assert run.state(ONE).progress.failures == 0
    assert run.next(Deadline.after_ms(0)) is None
    assert "leaders" in held


def test_a_failed_dial_is_not_told_once_nobody_waited_for_it(world: World) -> None:
    run, held = held_up(world)
    world.leaders[TWO] = Leader(2, 5, ID)
    world.connected.add(2)
    run.add(ONE, 0, 20)
    run.add(TWO, 0, 20)
    run.next(Deadline.after_ms(0))
    held.finish("leaders")
    run.next(Deadline.after_ms(0))
    run.pause(ONE)
    held.finish(("connection", 1), NetworkError("gone"))
    run.next(Deadline.after_ms(0))
    run.resume(ONE)
    run.next(Deadline.after_ms(0))
    assert run.state(ONE).progress.failures == 0
    assert ("connection", 1) in held


@pytest.mark.parametrize("stale", [True, False])
def test_a_close_ends_a_look_for_leaders(
    cluster: ScriptedCluster, start: Callable[..., FetchRun], gate: Gate, *, stale: bool
) -> None:
    for broker in cluster.brokers.values():
        broker.on(MetadataRequest, gate.before(cluster.metadata))
    before = set(looking_up())
    run = start()
    run.add(ONE, 0, 20)
    run.state(ONE).broker.leader_is_stale = stale
    while not gate.reached.is_set():
        assert run.next(Deadline.after_ms(1)) is None
    run.close()
    eventually(lambda: set(looking_up()) <= before)
