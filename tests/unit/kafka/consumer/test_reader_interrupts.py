"""Interrupts, signal handlers and forks in the middle of reading."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.consumer.partition_reading import (
    Start,
    eventually,
    fill,
    offsets_in,
    prefetched,
    readers_of,
    soon,
    take,
)
from support.forked_child import holds_in_forked_child
from support.interrupts.held_lock import held_by_another_thread
from support.interrupts.signal_steps import interrupted_at, run_at

from spark_kafka_native.kafka.consumer import partition_reader
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.consumer.partition_reader import PartitionReader, single_reader
from spark_kafka_native.kafka.errors import (
    ConsumerClosedError,
)
from spark_kafka_native.kafka.model import TopicPartition

pytestmark = [
    pytest.mark.timed(0.1),
    # An interrupt in a destructor.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2) as running:
        yield running


@pytest.fixture
def start(cluster: ScriptedCluster) -> Iterator[Start]:
    with readers_of(cluster) as begin:
        yield begin


def test_an_interrupt_while_it_waits_or_unpacks_loses_nothing(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 20))
    main = threading.main_thread().ident
    assert main is not None
    # Tests that are started in the background have SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        reader.next_record(soon())
    timer.join()
    signal.signal(signal.SIGINT, before)
    reader.seek(tp, 0)
    prefetched(reader, tp, 20)
    taken = reader.buffer._take_first

    def interrupted(*args: Any) -> None:
        taken(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(reader.buffer, "_take_first", interrupted)
    for read in (reader.read_columns, reader.next_record, lambda: reader.poll(50, soon())):
        with pytest.raises(KeyboardInterrupt):
            read()  # type: ignore[operator]
        assert reader.position(tp) == 0
    monkeypatch.undo()
    assert take(reader, 3) == [0, 1, 2]
    monkeypatch.setattr(partition_reader, "islice", lambda *_: _interrupting(reader))
    with pytest.raises(KeyboardInterrupt):
        reader.poll(50, soon())
    monkeypatch.undo()
    assert take(reader, 17) == list(range(3, 20))


def _interrupting(reader: PartitionReader) -> Iterator[Any]:
    yield from [next(reader.rows), next(reader.rows)]
    raise KeyboardInterrupt


def test_interrupts_at_any_moment_lose_and_double_nothing(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of the reading thread is one where an interrupt may come."""
    [tp] = fill(cluster, batches=3)
    monkeypatch.setattr(partition_reader, "ROWS", 4)
    reader = start((tp, 0))
    calls: list[Callable[[], Any]] = [
        lambda: reader.poll(3, soon(0)),
        lambda: reader.next_record(soon(0)),
        lambda: reader.read_columns(soon(0)),
        lambda: reader.pause(tp) or reader.resume(tp),
        lambda: reader.seek(tp, reader.position(tp)),
    ]
    for call in calls:
        for moment in itertools.count():
            reader.resume(tp)
            reader.seek(tp, 0)
            prefetched(reader, tp, 15)
            found = offsets_in(reader.poll(3, soon()))
            with interrupted_at(moment) as was_interrupted:
                found += offsets_in(call())
            reader.resume(tp)
            while more := reader.poll(4, soon(0 if len(found) >= 15 else 10)):
                found += offsets_in(more)
            assert found == list(range(15)), (calls.index(call), moment)
            assert reader.position(tp) == 15
            assert reader.buffer.nbytes == 0
            if not was_interrupted:
                break


def test_a_thread_that_iterates_gets_each_record_once_while_another_one_pauses(
    cluster: ScriptedCluster, start: Start
) -> None:
    """Iteration takes rows without the lock: some were given back, and handed out all the same."""
    (tp,) = fill(cluster)
    reader = start((tp, 0))
    for moment in itertools.count():
        reader.seek(tp, 0)
        prefetched(reader, tp, 20)
        found = take(reader, 3)
        came_so_far = run_at(
            moment,
            lambda found=found: found.extend(record.offset for record in itertools.islice(reader.rows, 2)),
            lambda: reader.pause(tp),
        )
        reader.resume(tp)
        found += take(reader, 20 - len(found))
        assert found == list(range(20)), moment
        if not came_so_far:
            break
    assert moment


def test_nothing_is_handed_out_after_a_close_at_any_step_of_a_read(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read had filled the rows meanwhile, and iteration went on."""
    (tp,) = fill(cluster)
    monkeypatch.setattr(partition_reader, "ROWS", 4)
    for given_back in (False, True):
        for moment in itertools.count():
            reader = start((tp, 0))
            prefetched(reader, tp, 20)
            assert take(reader, 1) == [0]
            if given_back:  # as by an interrupt before they were
                reader.rows = iter(())
            else:
                take(reader, 3)

            def read(reader: PartitionReader = reader) -> None:
                with contextlib.suppress(ConsumerClosedError):
                    reader.next_record(soon(0))

            came_so_far = run_at(moment, reader.close, read)
            if not came_so_far:
                break
            assert list(reader.rows) == [], moment
        assert moment


def test_metrics_in_the_handler_of_a_signal_wait_for_no_lock(cluster: ScriptedCluster, start: Start) -> None:
    (tp,) = fill(cluster)
    reader = start((tp, 0))
    assert take(reader, 3) == [0, 1, 2]
    found: list[Any] = []

    def interrupted() -> None:
        """As the handler finds it: the locks are those of the very thread that it runs in."""
        with reader.lock, reader.buffer.lock, reader.registry.lock, reader._router.metrics.lock:
            found.append(reader.metrics())

    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(60)
    assert [found[0].value("kafka.consumer.lag", topic="orders", partition="0")] == [17]


def test_metrics_wait_for_no_thread_that_waits_for_the_interrupted_one(
    cluster: ScriptedCluster, start: Start
) -> None:
    (tp,) = fill(cluster)
    reader = start((tp, 0))
    assert take(reader, 1) == [0]
    found: list[Any] = []
    with held_by_another_thread(reader.lock), held_by_another_thread(reader.buffer.lock):
        thread = threading.Thread(target=lambda: found.append(reader.metrics()), daemon=True)
        thread.start()
        thread.join(60)
        assert found


def test_a_close_in_a_handler_does_not_wait_for_a_lock_of_the_interrupted_call(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    [tp] = fill(cluster)
    before = threading.enumerate()  # threads of readers that have closed may still end
    reader = start((tp, 0))
    assert take(reader, 1) == [0]
    started = [one for one in threading.enumerate() if one not in before]
    [fetching] = [one for one in started if one.name == "kafka-reader"]
    with contextlib.ExitStack() as interrupted:
        for lock in (reader.buffer.lock, reader.registry.lock):
            interrupted.enter_context(lock)
        reader.seek(tp, 5)  # the fetching thread follows, and needs the lock
        frames: set[str] = set()
        until = time.monotonic() + 60
        while not frames & {"changes", "confirm", "put"}:  # what it may be about to do, each with the lock
            assert time.monotonic() < until, frames
            frames = {frame.name for frame in traceback.extract_stack(sys._current_frames()[fetching.ident])}
        reader.close()
        assert reader.buffer.ended


def test_a_forked_child_is_told_to_make_its_own(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 0))
    reader.inherited = True
    for call in (
        lambda: reader.poll(5, soon()),
        lambda: reader.add(TopicPartition("orders", 1), 0),
        lambda: reader.remove(tp),
        lambda: reader.seek(tp, 0),
        lambda: reader.drop(tp),
        lambda: reader.drop_lost(tp),
        lambda: reader.give_back(tp, 0),
        lambda: reader.pause(tp),
        lambda: reader.resume(tp),
    ):
        with pytest.raises(ConsumerClosedError, match="another process"):
            call()
    assert reader.partitions == {tp: False}


def test_a_forked_child_reads_nothing_and_is_told_why(cluster: ScriptedCluster) -> None:
    fill(cluster)
    with Consumer(cluster.bootstrap_servers, "orders", fetch_max_wait_ms=20) as consumer:
        assert next(consumer).offset == 0

        def reads_nothing() -> bool:
            for read in (consumer.__next__, consumer.poll, consumer.pause, lambda: consumer.seek(0)):
                with pytest.raises(ConsumerClosedError, match="another process"):
                    read()
            return consumer.position() == 1

        locks = (consumer._lock, consumer.reader.lock, consumer.reader.buffer.lock)
        with contextlib.ExitStack() as held:
            for lock in locks:
                held.enter_context(held_by_another_thread(lock))
            assert holds_in_forked_child(reads_nothing)
        assert next(consumer).offset == 1


def test_a_fork_while_another_thread_reads(cluster: ScriptedCluster) -> None:
    """The child has no such thread: it hears of the fork, not of two readers."""
    fill(cluster)
    with Consumer(cluster.bootstrap_servers, "orders", start="latest", fetch_max_wait_ms=20) as consumer:
        thread = threading.Thread(target=consumer.poll)
        thread.start()

        def refusal() -> str:
            try:
                consumer.poll(0)
            except (RuntimeError, ConsumerClosedError) as error:
                return str(error)
            return ""

        eventually(lambda: "is reading from this consumer" in refusal())
        assert holds_in_forked_child(lambda: "another process" in refusal())
        cluster.logs[TopicPartition("orders", 0)].append([b"last"])
        thread.join()


@pytest.mark.parametrize("read", ["poll", "next_record"])
@pytest.mark.parametrize(("moved_to", "goes_on_at"), [(None, 2), (12, 12)])
def test_an_interrupted_read_takes_records_back_unless_another_thread_has_moved_the_partition(
    cluster: ScriptedCluster, start: Start, read: str, moved_to: int | None, goes_on_at: int
) -> None:
    (tp,) = fill(cluster)
    reader = start((tp, 0))
    assert take(reader, 2) == [0, 1]

    @single_reader
    def interrupted(reader: PartitionReader) -> None:
        found = reader.poll(3, soon()) if read == "poll" else reader._wait_for_record(soon())
        assert found
        if moved_to is not None:
            thread = threading.Thread(target=reader.seek, args=(tp, moved_to))
            thread.start()
            thread.join()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(reader)
    assert reader.position(tp) == goes_on_at
    assert take(reader, 2) == [goes_on_at, goes_on_at + 1]


def test_an_interrupted_read_leaves_a_partition_alone_that_another_thread_has_removed(
    cluster: ScriptedCluster, start: Start
) -> None:
    (tp,) = fill(cluster)
    reader = start((tp, 0))

    @single_reader
    def interrupted(reader: PartitionReader) -> None:
        assert reader.poll(3, soon())
        thread = threading.Thread(target=reader.remove, args=(tp,))
        thread.start()
        thread.join()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(reader)
    assert not reader.partitions
