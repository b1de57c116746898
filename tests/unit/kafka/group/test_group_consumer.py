"""`GroupConsumer` without a broker: what it calls back and commits, in which order."""

from __future__ import annotations

import _thread
import gc
import itertools
import re
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup
from support.consumer.reading import wait_until
from support.forked_child import holds_in_forked_child
from support.group.parts import lose, parts_of
from support.interrupts.signal_steps import interrupted_at, run_at

from spark_kafka_native.kafka.consumer.fetched_records import FetchedRecords
from spark_kafka_native.kafka.consumer.prefetch_buffer import AppliedReset
from spark_kafka_native.kafka.consumer.typed_records import RecordTyping
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    CommitFailedError,
    ConsumerClosedError,
    KafkaError,
    LogTruncatedError,
    TopicRecreatedError,
)
from spark_kafka_native.kafka.group import group_consumer as module
from spark_kafka_native.kafka.group import rebalance, start_offsets
from spark_kafka_native.kafka.group.classic_membership import ClassicMembership, MemberState
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.group.membership import Change
from spark_kafka_native.kafka.group.pending_commit import PendingCommit, Then
from spark_kafka_native.kafka.group.progress import Offsets
from spark_kafka_native.kafka.group.rebalance import Rebalance, RebalanceCallbacks
from spark_kafka_native.kafka.model import OffsetAt, Record, TopicPartition
from spark_kafka_native.kafka.observe import catalogue
from spark_kafka_native.kafka.observe.catalogue import Kind
from spark_kafka_native.kafka.protocol.api.group_membership import LeaveGroupRequest
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
B0, C0 = TopicPartition("b", 0), TopicPartition("c", 0)

Make = Callable[..., GroupConsumer]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A consumer that has read the records 0 to 2 of a-0 and gets no answers; closed in the end."""
    made: list[GroupConsumer] = []

    def new(*owned: TopicPartition, **settings: Any) -> GroupConsumer:
        consumer = GroupConsumer("127.0.0.1:1", "a", "g", **settings)
        made.append(consumer)
        parts = parts_of(consumer)
        with parts.member.changing() as membership:
            assert isinstance(membership, ClassicMembership)
            membership.state, membership.generation_id, membership.member_id = MemberState.STABLE, 1, "me"
            membership.owned = frozenset(owned)
        for tp in owned:
            parts.starts.begin(tp, 0, None)
        return consumer

    yield new
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)  # no coordinator hears of it
    for consumer in made:
        parts = parts_of(consumer)
        parts.rebalance.callbacks = RebalanceCallbacks("g", assigned=None, revoked=None, lost=None)
        parts.commits.queue.stop()
        with parts.member.changing() as membership:
            membership.member_id = ""  # no broker hears of it
        consumer.close()


def record(offset: int) -> Record:
    return Record(topic="a", partition=0, offset=offset, key=None, value=None)


def hand_out(consumer: GroupConsumer, offset: int) -> None:
    """As if a read returned it."""

    reader = parts_of(consumer).reader

    def take(_: object) -> Record:
        reader.seek(A0, offset + 1)
        return record(offset)

    take_instead(consumer, take)
    assert consumer.fetch_record(5.0) is not None
    del reader.next_record


def take_instead(consumer: GroupConsumer, take: Callable[[object], Record]) -> None:
    """Let `fetch_record` take its record from ``take``."""
    parts_of(consumer).reader.next_record = take  # type: ignore[method-assign,assignment]


def prefetch(consumer: GroupConsumer, *tps: TopicPartition, start: int = 0, epoch: int = -1) -> None:
    """As if three records of each, from ``start`` on, had been fetched ahead, in this order."""
    for tp in tps:
        fetched = FetchedRecords(
            topic_partition=tp,
            columns=RecordColumns(
                length=3,
                offset=np.arange(start, start + 3, dtype=np.int64),
                timestamp_ms=np.zeros(3, np.int64),
                key=pa.nulls(3, pa.binary()),
                value=pa.nulls(3, pa.binary()),
            ),
            from_offset=start,
            next_offset=start + 3,
            log_start_offset=0,
            high_watermark=start + 3,
            last_stable_offset=start + 3,
            leader_epoch=epoch,
        )
        shared = parts_of(consumer).reader.buffer
        shared.put(shared._wanted[tp], shared._wanted[tp].moves, fetched)


def places(found: list[Record | None]) -> list[tuple[str, int] | None]:
    return [None if one is None else (one.topic, one.offset) for one in found]


def committed(consumer: GroupConsumer, offsets: Offsets) -> None:
    """As if the coordinator had stored them."""
    progress = parts_of(consumer).commits.progress
    progress.committed(offsets, progress.places(offsets))


def asked(consumer: GroupConsumer) -> list[dict[TopicPartition, int]]:
    """The offsets that are committed from now on, at once."""
    found: list[dict[TopicPartition, int]] = []

    def submit(offsets: Offsets, then: Then | None = None) -> PendingCommit:
        found.append(dict(offsets))
        commit = PendingCommit(dict(offsets), then)
        commit.end(None)
        return commit

    parts_of(consumer).commits.queue.submit = submit  # type: ignore[method-assign]
    return found


def test_partitions_are_told_of_though_on_revoked_raises(make: Make) -> None:
    calls: list[tuple[str, list[TopicPartition]]] = []

    def revoked(_: GroupConsumer, partitions: list[TopicPartition]) -> None:
        calls.append(("revoked", partitions))
        raise ZeroDivisionError

    consumer = make(A0, on_revoked=revoked, on_assigned=lambda _, found: calls.append(("assigned", found)))
    with pytest.raises(ZeroDivisionError):
        parts_of(consumer).rebalance.carry_out(Change(revoked=frozenset([A0]), assigned=frozenset([A1])))
    assert calls == [("revoked", [A0]), ("assigned", [A1])]
    assert consumer.assignment == {A1}


def test_partitions_that_an_interrupt_keeps_from_being_committed_are_revoked_by_the_next_read(
    make: Make,
) -> None:
    """Else the callback would never name them, and they would be given up all the same."""
    calls: list[tuple[str, list[TopicPartition]]] = []

    def commit(*_: object) -> None:
        parts.commits.commit_now = commit_now  # type: ignore[method-assign]
        raise KeyboardInterrupt

    consumer = make(
        A0,
        on_revoked=lambda _, found: calls.append(("revoked", found)),
        on_lost=lambda _, found: calls.append(("lost", found)),
    )
    parts, found = parts_of(consumer), asked(consumer)
    commit_now, parts.commits.commit_now = parts.commits.commit_now, commit  # type: ignore[method-assign]
    hand_out(consumer, 0)
    with parts.member.changing() as membership:
        membership.subscribe(["b"])
    with pytest.raises(KeyboardInterrupt):
        consumer.read(60)
    assert (calls, consumer.assignment) == ([], {A0})
    assert consumer.read(0) is None
    assert (calls, consumer.assignment) == ([("revoked", [A0])], frozenset())
    assert found == [{A0: 1}]


def test_what_ends_a_membership_takes_the_partitions(make: Make) -> None:
    calls: list[list[TopicPartition]] = []
    consumer = make(A0, A1, on_lost=lambda _, found: calls.append(found))
    with parts_of(consumer).member.changing() as membership:
        membership.failed(KafkaError("fenced"), False, 0.0)
    for _ in range(2):
        with pytest.raises(KafkaError, match="fenced"):
            consumer.read(0.1)
    assert calls == [[A0, A1]]


def test_a_record_that_raised_is_not_committed_in_on_revoked_either(make: Make) -> None:
    consumer = make(A0, on_revoked=lambda consumer, _: consumer.commit())
    found = asked(consumer)

    def work() -> None:
        with consumer:
            hand_out(consumer, 0)
            hand_out(consumer, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert {offsets[A0] for offsets in found} == {1}


def test_close_in_on_revoked_ends_it(make: Make) -> None:
    calls: list[list[TopicPartition]] = []

    def revoked(consumer: GroupConsumer, partitions: list[TopicPartition]) -> None:
        calls.append(partitions)
        consumer.close()

    consumer = make(A0, on_revoked=revoked)
    consumer.close()
    assert calls == [[A0]]
    other = make(A0, A1, on_revoked=revoked)
    with parts_of(other).member.changing() as membership:
        membership.subscribe(["b"])
    with pytest.raises(ConsumerClosedError):
        other.read(5.0)
    assert calls == [[A0], [A0, A1]]


def test_close_in_a_callback_of_a_read_has_ended_when_it_returns(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read, which goes on, neither takes further partitions nor hands out records."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    calls: list[object] = []

    def revoked(consumer: GroupConsumer, partitions: list[TopicPartition]) -> None:
        calls.append(partitions)
        consumer.close()
        with pytest.raises(ConsumerClosedError):
            consumer.commit()
        calls.append("closed")

    consumer = make(A0, on_revoked=revoked)
    with parts_of(consumer).member.changing() as membership:
        membership.subscribe(["b"])
    with pytest.raises(ConsumerClosedError):
        consumer.read(5.0)
    assert calls == [[A0], "closed"]


def test_close_in_on_lost_does_nothing_while_the_consumer_is_being_closed(make: Make) -> None:
    calls: list[list[TopicPartition]] = []

    def on_lost(consumer: GroupConsumer, partitions: list[TopicPartition]) -> None:
        assert not calls
        calls.append(partitions)
        consumer.close()

    consumer = make(A0, on_lost=on_lost)
    lose(consumer)
    consumer.close()
    assert calls == [[A0]]


def test_a_consumer_that_is_closed_in_on_revoked_is_assigned_nothing(make: Make) -> None:
    calls: list[list[TopicPartition]] = []
    consumer = make(
        A0, on_revoked=lambda consumer, _: consumer.close(), on_assigned=lambda _, found: calls.append(found)
    )
    parts_of(consumer).rebalance.carry_out(Change(revoked=frozenset([A0]), assigned=frozenset([A1])))
    assert calls == []


def test_a_read_that_a_callback_closed_does_not_look_up_where_to_begin(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would end the thread of the look-up."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    begun: list[object] = []
    consumer = make(A0, on_revoked=lambda consumer, _: consumer.close())
    parts = parts_of(consumer)
    with parts.member.changing() as membership:
        assert isinstance(membership, ClassicMembership)
        membership.state, membership._target = MemberState.TAKING, frozenset([A1])
    parts.starts.find = begun.append  # type: ignore[method-assign]
    with pytest.raises(ConsumerClosedError):
        consumer.read(60)
    assert (parts.starts.missing, begun) == ({A1}, [])


def test_a_partition_that_comes_back_is_revoked_once_more_at_the_end(make: Make) -> None:
    """`close` leaves out only the partitions of an ``on_revoked`` that runs just then."""
    calls: list[list[TopicPartition]] = []
    consumer = make(A0, on_revoked=lambda _, found: calls.append(found))
    asked(consumer)
    parts = parts_of(consumer)
    parts.rebalance.carry_out(Change(revoked=frozenset([A0])))
    parts.rebalance.carry_out(Change(assigned=frozenset([A0])))
    parts.starts.begin(A0, 0, None)
    consumer.close()
    assert calls == [[A0], [A0]]


def test_a_partition_that_comes_back_is_committed_though_its_offset_was_committed_before(make: Make) -> None:
    """Another member may have gone back in between."""
    consumer = make(A0)
    parts, found = parts_of(consumer), asked(consumer)
    for _ in range(2):
        hand_out(consumer, 0)
        parts.commits.commit_now(Deadline.after_ms(0))
        parts.rebalance.carry_out(Change(revoked=frozenset([A0])))
        parts.rebalance.carry_out(Change(assigned=frozenset([A0])))
        parts.starts.begin(A0, 0, None)
    assert found == [{A0: 1}, {A0: 1}]


@pytest.mark.parametrize("taken", [None, record(0)], ids=["nothing", "a record"])
def test_a_read_without_a_limit_ends_when_a_handler_closes_the_consumer(
    make: Make, monkeypatch: pytest.MonkeyPatch, taken: Record | None
) -> None:
    """A record is not handed out then: it does not count as done."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    consumer, calls = make(A0), itertools.count()

    def take(_: object) -> Record | None:
        assert next(calls) == 0, "it reads on"
        consumer.close()
        return taken

    take_instead(consumer, take)  # type: ignore[arg-type]
    with pytest.raises(ConsumerClosedError):
        consumer.fetch_record()
    assert "closed" in repr(consumer)


def test_a_handler_that_interrupts_a_call_in_a_callback_closes_the_consumer_at_the_end_of_the_read(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call may hold a lock that closing takes."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    closed: list[bool] = []

    def revoked(consumer: GroupConsumer, _: object) -> None:
        if not closed:
            closed.append(consumer._closed)
            assert run_at(0, consumer.close, consumer.commit)
            closed.append(consumer._closed)

    consumer = make(A0, on_revoked=revoked, enable_auto_commit=False)
    asked(consumer)
    with parts_of(consumer).member.changing() as membership:
        membership.subscribe(["b"])
    with pytest.raises(ConsumerClosedError, match="by a signal's handler"):
        consumer.read(60)
    assert (closed, consumer._closed) == ([False, False], True)


@pytest.mark.parametrize("in_vain", [0, 2])
def test_a_handler_that_interrupts_a_call_leaves_another_thread_what_it_reads(
    make: Make, monkeypatch: pytest.MonkeyPatch, in_vain: int
) -> None:
    """Its read waits for the records and returns them; a commit that was interrupted may contain them."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    consumer = make(A0, enable_auto_commit=False)
    read, closed = list[Record | None](), list[bool]()
    answers = iter([None] * in_vain + [record(0)])

    def wanted(*_: object) -> dict[TopicPartition, int]:
        consumer.close()
        with ThreadPoolExecutor(1) as pool:
            read.append(pool.submit(consumer.fetch_record, 60).result(60))
        closed.append(consumer._closed)
        return {}

    monkeypatch.setattr(parts_of(consumer).reader, "next_record", lambda _: next(answers))
    parts_of(consumer).commits.wanted = wanted  # type: ignore[method-assign]
    consumer.commit()
    assert (places(read), closed, consumer._closed) == ([("a", 0)], [False], True)


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "unseen"])
def test_a_handler_closes_the_consumer_at_the_end_of_the_call_though_another_thread_is_in_a_callback(
    make: Make, is_seen: bool
) -> None:
    """Also one that is not seen to be a handler."""
    begun, go_on = threading.Event(), threading.Event()

    def revoked(*_: object) -> None:
        begun.set()
        assert go_on.wait(60)

    def wanted(*_: object) -> dict[TopicPartition, int]:
        if is_seen:
            assert run_at(0, consumer.close, lambda: None)
        else:
            consumer.close()
        closed.append(consumer._closed)
        go_on.set()
        return {}

    consumer, closed = make(A0, on_revoked=revoked, enable_auto_commit=False), list[bool]()
    parts_of(consumer).commits.wanted = wanted  # type: ignore[method-assign]
    parts_of(consumer).member.stop = lambda _: None  # type: ignore[method-assign]
    with parts_of(consumer).member.changing() as membership:
        membership.subscribe(["b"])
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(consumer.read, 60)
        assert begun.wait(60)
        consumer.commit()
        assert isinstance(reading.exception(60), ConsumerClosedError)
    assert (closed, consumer._closed) == ([False], True)


@pytest.mark.parametrize("end", ["a record", "nothing", "an error"])
def test_the_max_poll_interval_begins_with_the_end_of_a_read(make: Make, end: str) -> None:
    """Else a caller that never comes back would keep its partitions for ever."""
    consumer = make(A0, max_poll_interval_ms=200_000)

    def take(_: object) -> Record | None:
        if end == "an error":
            raise KafkaError(end)
        return record(0) if end == "a record" else None

    take_instead(consumer, take)  # type: ignore[arg-type]
    with suppress(KafkaError):
        consumer.fetch_record(0.0)
    with parts_of(consumer).member.changing() as membership:
        membership.next(time.monotonic() + 201.0)
        assert membership.too_slow


def test_a_read_within_a_callback_is_refused(make: Make) -> None:
    consumer = make(A0, on_revoked=lambda consumer, _: consumer.read(0.1))
    with parts_of(consumer).member.changing() as membership:
        membership.subscribe(["b"])
    with pytest.raises(RuntimeError, match="within a callback"):
        consumer.read(5.0)


def test_a_second_thread_that_reads_meanwhile_is_refused_in_words(make: Make) -> None:
    """It would follow the group at the same time, and commit what the first one works on."""
    consumer = make(A0)
    reading, done = threading.Event(), threading.Event()

    def take(_: object) -> Record:
        reading.set()
        assert done.wait(60)
        return record(0)

    take_instead(consumer, take)
    first = threading.Thread(target=consumer.fetch_record, name="the first")
    first.start()
    assert reading.wait(60)
    with pytest.raises(RuntimeError, match="thread 'the first' is reading from this consumer"):
        consumer.poll(0)
    done.set()
    first.join(60)
    assert consumer.poll(0) == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_call_in_another_thread_ends_when_the_consumer_is_closed(make: Make) -> None:
    consumer = make(A0)
    ended: Future[Any] = Future()

    def ask() -> None:
        try:
            ended.set_result(consumer.committed(A0, timeout=3_600))
        except BaseException as error:
            ended.set_exception(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    until = time.monotonic() + 60
    while not any(frame.name == "retry" for frame in stack_of(asking)):
        assert time.monotonic() < until
    parts_of(consumer).rebalance.callbacks = RebalanceCallbacks("g", assigned=None, revoked=None, lost=None)
    consumer.close()
    with pytest.raises(ConsumerClosedError, match="the consumer is closed"):
        ended.result(60)


def stack_of(thread: threading.Thread) -> list[traceback.FrameSummary]:
    assert thread.ident is not None
    return list(traceback.extract_stack(sys._current_frames()[thread.ident]))


CALLS: dict[str, Callable[[GroupConsumer], object]] = {
    "read": lambda consumer: consumer.read(0.0),
    "next": next,
    "poll": lambda consumer: consumer.poll(0.0),
    "position": lambda consumer: consumer.position(A0),
    "committed": lambda consumer: consumer.committed(timeout=0.0),
    "lag": GroupConsumer.lag,
    "seek": lambda consumer: consumer.seek(A0, 0),
    "seek_to_committed": GroupConsumer.seek_to_committed,
    "pause": lambda consumer: consumer.pause(A0),
    "resume": lambda consumer: consumer.resume(A0),
    "subscribe": lambda consumer: consumer.subscribe(["b"]),
    "add_topics": lambda consumer: consumer.add_topics("b"),
    "remove_topics": lambda consumer: consumer.remove_topics("a"),
    "commit": GroupConsumer.commit,
    "commit_async": GroupConsumer.commit_async,
    "offsets_to_commit": GroupConsumer.offsets_to_commit,
    "group_metadata": GroupConsumer.group_metadata,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_consumer_that_is_closed_refuses_a_call(
    make: Make, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions are others' by now: an offset of it, in a transaction or a commit, would count twice."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    consumer = make(A0, enable_auto_commit=False)
    hand_out(consumer, 0)
    consumer.close()
    found = asked(consumer)
    with pytest.raises(ConsumerClosedError, match="the consumer is closed"):
        CALLS[call](consumer)
    assert (found, consumer.assignment, consumer.topics) == ([], frozenset(), {"a"})


def test_a_forked_child_hears_that_the_consumer_is_the_parents(make: Make) -> None:
    consumer = make(A0, auto_commit_interval_ms=0)
    asked(consumer)
    hand_out(consumer, 0)
    parts_of(consumer).commits.queue.submit = lambda *_: PendingCommit({})  # type: ignore[method-assign]

    def is_refused() -> bool:
        for call in CALLS.values():
            with pytest.raises(ConsumerClosedError, match="was made in another process"):
                call(consumer)
        return True

    with parts_of(consumer).member.changing():
        assert holds_in_forked_child(is_refused)


def test_a_forked_child_that_closes_the_consumer_leaves_the_membership_to_the_parent() -> None:
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"0", b"1"])
        group = ScriptedGroup(cluster, [A0])
        with GroupConsumer(cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            assert consumer.fetch_record(120) is not None

            def closes() -> bool:
                consumer.close()
                return "closed" in repr(consumer)

            assert holds_in_forked_child(closes)
            assert cluster[1].requests(LeaveGroupRequest) == []
            assert consumer.fetch_record(120) is not None
            consumer.commit()
        assert group.committed == {A0: 2}
        assert len(cluster[1].requests(LeaveGroupRequest)) == 1


def test_a_reader_that_goes_back_takes_the_commits_back(make: Make) -> None:
    """The committed offset was out of range, and auto.offset.reset says where it goes on."""
    consumer = make()
    parts = parts_of(consumer)
    with parts.member.changing() as membership:
        membership.owned = frozenset([A0])
    parts.starts.begin(A0, 100, 100)
    found = asked(consumer)
    hand_out(consumer, 0)
    hand_out(consumer, 1)
    parts.commits.due = 0.0
    parts.commits.caller_is_back()
    assert found == [{A0: 2}]
    parts_of(consumer).commits.progress.check({A0: 2})
    assert parts_of(consumer).commits.progress.ahead({A0: 2}) == {A0: 2}


@pytest.mark.parametrize("change", [Change(revoked=frozenset([A0])), Change(lost=frozenset([A0]))])
def test_a_transaction_does_not_leave_out_what_was_taken_away(make: Make, change: Change) -> None:
    consumer = make(A0, A1, enable_auto_commit=False)
    hand_out(consumer, 0)
    parts_of(consumer).rebalance.carry_out(change)
    # Without an offset of a-0 it would commit the outcome of a record that another member reads again.
    with pytest.raises(CommitFailedError, match="a-0 went to others"):
        consumer.offsets_to_commit()
    assert consumer.offsets_to_commit() == {A1: 0}  # the next transaction knows nothing of it
    # Nor where it comes back: both readings would be in the transaction.
    parts_of(consumer).rebalance.carry_out(Change(assigned=frozenset([A0])))
    parts_of(consumer).starts.begin(A0, 0, None)
    hand_out(consumer, 0)
    parts_of(consumer).rebalance.carry_out(change)
    parts_of(consumer).rebalance.carry_out(Change(assigned=frozenset([A0])))
    parts_of(consumer).starts.begin(A0, 0, None)
    hand_out(consumer, 0)
    with pytest.raises(CommitFailedError, match="a-0 went to others"):
        consumer.offsets_to_commit(offsets={A0: 1})


@pytest.mark.parametrize("offset", [2, OffsetAt.LATEST])
def test_a_transaction_does_not_leave_out_what_was_taken_away_after_a_seek(
    make: Make, monkeypatch: pytest.MonkeyPatch, offset: int | OffsetAt
) -> None:
    """It moved the partition for the rest of the transaction, which had begun with other records of it."""
    consumer = make(A0, A1, enable_auto_commit=False)
    monkeypatch.setattr(parts_of(consumer).starts, "offset_of", lambda *_: 50)
    for at in range(3):
        hand_out(consumer, at)
    consumer.seek(A0, offset)
    parts_of(consumer).rebalance.carry_out(Change(revoked=frozenset([A0])))
    with pytest.raises(CommitFailedError, match="a-0 went to others"):
        consumer.offsets_to_commit()


def test_a_transaction_beside_close_does_not_leave_out_what_was_just_taken_away(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread closes the consumer, and takes the partitions away one by one."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    consumer = make(A0, A1, enable_auto_commit=False)
    prefetch(consumer, A0, A1)
    starts, ended = parts_of(consumer).starts, list[BaseException | None]()
    remove = starts.remove
    with ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(consumer.poll, 60).result()) == 6

        def remove_one(tp: TopicPartition) -> None:
            remove(tp)
            ended.append(pool.submit(consumer.offsets_to_commit).exception(60))

        monkeypatch.setattr(starts, "remove", remove_one)
        consumer.close()
    assert isinstance(ended[0], CommitFailedError)


def test_a_transaction_does_not_leave_out_what_is_taken_away_while_its_offsets_are_looked_up(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make(A0, A1, enable_auto_commit=False)
    hand_out(consumer, 0)
    commits = parts_of(consumer).commits
    wanted = commits.wanted

    def look_up(*given: Any) -> dict[TopicPartition, int]:
        parts_of(consumer).rebalance.carry_out(Change(lost=frozenset([A0])))  # as `close` in another thread
        return wanted(*given)

    monkeypatch.setattr(commits, "wanted", look_up)
    with pytest.raises(CommitFailedError, match="a-0 went to others"):
        consumer.offsets_to_commit()


def test_the_error_that_ends_a_transaction_is_raised_though_the_consumer_was_closed_in_it(make: Make) -> None:
    consumer = make(A0, enable_auto_commit=False)
    producer: Any = SimpleNamespace(transaction=nullcontext)

    def work() -> None:
        with consumer.transaction(producer):
            consumer.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_a_transaction_that_was_aborted_does_not_fail_the_next_one_for_what_was_taken_away(
    make: Make,
) -> None:
    consumer = make(A0, A1, enable_auto_commit=False)
    hand_out(consumer, 0)
    parts_of(consumer).rebalance.carry_out(Change(revoked=frozenset([A0])))
    consumer.seek_to_committed()
    assert consumer.offsets_to_commit() == {}


def test_what_was_told_or_committed_or_sought_may_be_taken_away(make: Make) -> None:
    consumer = make(A0, A1, enable_auto_commit=False)
    found = asked(consumer)
    gone, back = Change(revoked=frozenset([A0])), Change(assigned=frozenset([A0]))
    for settle in (
        lambda: consumer.offsets_to_commit(record(0)),
        lambda: committed(consumer, {A0: 1}),
        lambda: consumer.seek(A0, 0),  # after an aborted transaction
    ):
        hand_out(consumer, 0)
        settle()
        parts_of(consumer).rebalance.carry_out(gone)
        assert consumer.offsets_to_commit() == {A1: 0}
        parts_of(consumer).rebalance.carry_out(back)
        parts_of(consumer).starts.begin(A0, 0, None)
    hand_out(consumer, 0)
    parts_of(consumer).rebalance.carry_out(gone)
    consumer.commit()  # in no transaction nothing was made of it that could count
    assert found == [{A1: 0}]


def test_a_topic_that_was_removed_is_not_heard_of_again_though_it_was_fetched(make: Make) -> None:
    consumer = make(A0, B0)
    consumer.add_topics("b")
    prefetch(consumer, B0, A0)
    assert places([consumer.fetch_record(60)]) == [("b", 0)]
    consumer.remove_topics("b")
    assert places([consumer.fetch_record(60) for _ in range(3)]) == [("a", 0), ("a", 1), ("a", 2)]
    consumer.resume(B0)  # in spite of the caller's words
    assert consumer.fetch_record(0) is None
    # It is this member's until the group has rebalanced: what it commits is what it was given.
    assert (consumer.position(A0), consumer.position(B0)) == (3, 1)


@pytest.mark.parametrize("raises", [False, True])
def test_a_poll_hands_out_of_several_partitions_what_is_there(make: Make, raises: bool) -> None:
    consumer = make(A0, B0)
    consumer.add_topics("b")
    found = asked(consumer)
    prefetch(consumer, B0, A0)
    assert places(list(consumer.poll(60, max_records=2))) == [("b", 0), ("b", 1)]
    assert places(list(consumer.poll(60))) == [("b", 2), ("a", 0), ("a", 1), ("a", 2)]
    if raises:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            consumer.close()
        assert found == [{A0: 0, B0: 2}]  # it worked on four of them
        return
    assert consumer.poll(0.0) == []
    with pytest.raises(ValueError, match="at least 1"):
        consumer.poll(0.0, max_records=0)
    consumer.close()
    assert found == [{A0: 3, B0: 3}]


def test_nothing_that_was_fetched_of_a_paused_partition_is_handed_out_until_it_is_resumed(make: Make) -> None:
    consumer = make(A0, B0)
    consumer.add_topics("b")
    asked(consumer)
    prefetch(consumer, B0, A0)
    consumer.pause(B0)
    assert places(list(consumer.poll(60))) == [("a", 0), ("a", 1), ("a", 2)]
    assert consumer.poll(0.0) == []
    consumer.resume(B0)
    assert places(list(consumer.poll(60))) == [("b", 0), ("b", 1), ("b", 2)]


def test_a_pause_ends_with_the_assignment(make: Make) -> None:
    """Otherwise the partition is assigned again later, and nothing of it is read, without an error."""
    consumer = make(A0)
    consumer.pause(A0)
    parts_of(consumer).rebalance.carry_out(Change(lost=frozenset([A0])))
    parts_of(consumer).rebalance.carry_out(Change(assigned=frozenset([A0])))
    parts_of(consumer).starts.begin(A0, 0, None)
    prefetch(consumer, A0)
    assert places(list(consumer.poll(60))) == [("a", 0), ("a", 1), ("a", 2)]


def test_a_seek_in_a_log_that_was_cut_back_counts_while_the_committed_offsets_are_looked_up(
    make: Make,
) -> None:
    """The log may have grown since. An error about the former position would come again and again."""
    consumer = make(A0)
    shared = parts_of(consumer).reader.buffer
    shared.broke(shared.partition(A0), 0, LogTruncatedError(A0, 9, 5))
    consumer.seek_to_committed()
    consumer.seek(A0, 7)
    assert (consumer.position(A0), parts_of(consumer).reader.truncated) == (7, {})


def test_a_seek_in_a_topic_that_was_recreated_forgets_the_former_topic_for_good(make: Make) -> None:
    consumer = make(A0)
    parts = parts_of(consumer)
    shared = parts.reader.buffer
    shared.partition(A0).topic_id = former = UUID(int=1)
    consumer.seek_to_committed()
    parts.starts.begin(A0, 0, None)
    assert parts.reader.topic_ids == {A0: former}
    shared.broke(shared.partition(A0), 0, TopicRecreatedError("a", str(former), "present"))
    consumer.seek(A0, 0)
    consumer.seek_to_committed()
    parts.starts.begin(A0, 0, None)
    assert parts.reader.topic_ids == {}


def test_a_cut_of_the_log_is_over_once_reading_has_gone_on_before_it(make: Make) -> None:
    """The log has grown, and the committed offset is that of a new record."""
    consumer = make(A0)
    parts = parts_of(consumer)
    parts.reader.buffer.broke(parts.reader.buffer.partition(A0), 0, LogTruncatedError(A0, 9, 5))
    for committed in (3, 8):
        consumer.seek_to_committed()
        parts.starts.begin(A0, committed, committed)
        assert (consumer.position(A0), parts.reader.truncated) == (committed, {})


def test_going_back_remembers_a_reset_that_no_read_has_reached(make: Make) -> None:
    """The committed offset is one of the log that was lost, and the records up to it would be skipped."""
    consumer = make(A0)
    parts = parts_of(consumer)
    prefetch(consumer, A0)
    assert len(consumer.poll(60)) == 3
    committed(consumer, {A0: 3})
    shared = parts.reader.buffer
    shared.reset(shared.partition(A0), 0, AppliedReset(former=3, offset=0, start=0, end=1))
    consumer.seek_to_committed()
    assert parts.commits.progress.place(A0, 3, committed=True) == 0


def test_going_back_twice_keeps_the_topic_that_the_position_belongs_to(make: Make) -> None:
    """Otherwise the offsets would be taken for those of a topic that was created again meanwhile."""
    consumer = make(A0)
    parts = parts_of(consumer)
    parts.reader.buffer.partition(A0).topic_id = known = UUID(int=1)
    for _ in range(2):
        consumer.seek_to_committed()
    parts.starts.begin(A0, 0, None)
    assert parts.reader.topic_ids == {A0: known}


@pytest.mark.parametrize("committed", [None, 2])
def test_only_a_committed_offset_belongs_to_the_topic_of_the_look_up(
    make: Make, committed: int | None
) -> None:
    """In a new group, a broker that lags behind may give a former id, and each record would be refused."""
    consumer = make(A0)
    parts, known = parts_of(consumer), UUID(int=1)
    consumer.seek_to_committed()
    places = start_offsets._Places(
        OffsetAt.EARLIEST, committed={A0: committed}, topic_ids={"a": known}, epochs={A0: 4}
    )
    parts.starts._looked(places)
    assert consumer.position(A0) == (committed or 0)
    assert parts.reader.topic_ids == ({} if committed is None else {A0: known})
    assert parts.reader.leader_epochs({A0: committed or 0}) == ({} if committed is None else {A0: 4})


def test_a_poll_that_raised_is_handed_out_again(make: Make) -> None:
    consumer = make(A0, B0)
    consumer.add_topics("b")
    prefetch(consumer, B0, A0)
    assert len(consumer.poll(60)) == 6
    consumer._give_back()
    assert (consumer.position(A0), consumer.position(B0)) == (0, 0)
    for tp in (A0, B0):
        with pytest.raises(CommitFailedError, match="only offsets 0 to 0 were read"):
            parts_of(consumer).commits.progress.check({tp: 3})


def test_a_read_that_fails_gives_back_nothing_of_the_read_before_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is done with those records, and would get them once more."""
    consumer = make(A0)
    asked(consumer)
    prefetch(consumer, A0)
    assert len(consumer.poll(60)) == 3

    def fail(_: object) -> None:
        raise KafkaError("no group")

    monkeypatch.setattr(parts_of(consumer).rebalance, "follow", fail)
    with pytest.raises(KafkaError, match="no group"):
        consumer.poll(60)
    assert consumer.position(A0) == 3


@pytest.mark.parametrize("ready", [False, True])
def test_a_read_without_a_limit_looks_at_the_group_while_it_waits(
    make: Make, monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    """For a commit, or (``ready``) for records: a rebalance does not wait for these."""
    consumer = make(A0)
    parts, waits = parts_of(consumer), itertools.count(1)

    def wait(deadline: Deadline) -> bool:
        assert deadline.remaining_ms <= module.SLICE_MS
        if next(waits) == 3:
            raise ZeroDivisionError
        return False

    if ready:
        monkeypatch.setattr(parts.reader, "next_record", lambda deadline: wait(deadline) or None)
    else:
        monkeypatch.setattr(parts.commits, "may_go_on", wait)
    with pytest.raises(ZeroDivisionError):
        consumer.fetch_record()


@pytest.mark.parametrize("epoch", [-1, 4])
@pytest.mark.parametrize(
    "read",
    [lambda consumer: consumer.poll(60), lambda consumer: consumer.read(60)],
    ids=["poll", "read"],
)
def test_records_that_are_handed_out_again_are_fetched_with_the_epoch_before_them(
    make: Make, read: Callable[[GroupConsumer], object], epoch: int
) -> None:
    """With that of the records themselves, a broker would take the log for another one."""
    consumer = make(A0)
    parts = parts_of(consumer)
    parts.starts.remove(A0)
    parts.starts.begin(A0, 0, 0, leader_epoch=epoch)
    prefetch(consumer, A0, epoch=5)
    assert read(consumer)
    assert parts.reader.leader_epochs({A0: 3}) == {A0: 5}
    consumer._give_back()
    assert parts.reader.buffer.wish(parts.reader.buffer.partition(A0))[:2] == (0, epoch)


@pytest.mark.parametrize(
    "read",
    [lambda consumer: consumer.poll(60), lambda consumer: consumer.read(60)],
    ids=["poll", "read"],
)
def test_records_that_the_log_lost_before_they_were_handed_out_cause_no_second_reset(
    make: Make, read: Callable[[GroupConsumer], object]
) -> None:
    """It would skip the records that were written since."""
    consumer = make(A0)
    prefetch(consumer, A0)
    shared = parts_of(consumer).reader.buffer
    shared.reset(shared.partition(A0), 0, AppliedReset(former=3, offset=40, start=30, end=50))
    assert read(consumer)
    consumer._give_back()
    assert consumer.position(A0) == 40


def test_a_partition_that_comes_twice_in_a_poll_is_handed_out_again_from_its_first_record(make: Make) -> None:
    consumer = make(A0, B0)
    consumer.add_topics("b")
    prefetch(consumer, A0, B0)
    prefetch(consumer, A0, start=3)
    found = places(list(consumer.poll(60)))
    assert [topic for topic, run in itertools.groupby(found, lambda one: one and one[0])] == ["a", "b", "a"]
    consumer._give_back()
    assert (consumer.position(A0), consumer.position(B0)) == (0, 0)


def test_all_records_of_a_poll_can_be_committed_by_name(make: Make) -> None:
    consumer = make(A0, B0, enable_auto_commit=False)
    consumer.add_topics("b")
    found = asked(consumer)
    prefetch(consumer, A0, B0)
    prefetch(consumer, A0, start=3)
    records = consumer.poll(60)
    consumer.commit([])
    consumer.commit_async([]).result(60)
    assert found == [{}, {}], "done with none of them is not done with all"
    assert consumer.offsets_to_commit([]) == {}
    consumer.commit(records[:1], records[1], *records[2:])
    assert found[2:] == [{A0: 6, B0: 3}]
    with pytest.raises(TypeError, match="commit\\(offsets="):
        consumer.commit({A0: 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="records that were read, not 5"):
        consumer.commit([5])  # type: ignore[list-item]


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "given back"])
def test_a_seek_of_one_partition_leaves_the_records_of_another_not_done(make: Make, closes: bool) -> None:
    consumer = make(A0, B0, enable_auto_commit=False, on_revoked=lambda consumer, _: consumer.commit())
    consumer.add_topics("b")
    found = asked(consumer)
    prefetch(consumer, B0, A0)
    assert len(consumer.poll(60)) == 6
    consumer.seek(A0, 2)
    if closes:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            consumer.close()
        assert found[-1] == {A0: 2, B0: 0}
    else:
        consumer._give_back()
        # The caller's own seek counts.
        assert (consumer.position(A0), consumer.position(B0)) == (2, 0)


def read_and_close(consumer: GroupConsumer, case: str) -> None:
    """In an ``except`` of another exception, as a program does that reads after a failure."""
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as before:
        if case.startswith("with"):
            with consumer:
                assert len(consumer.poll(60)) == 3
                if case == "with, raised again":
                    raise before
        else:
            try:
                assert len(consumer.poll(60)) == 3
                if case == "close, another":
                    raise LookupError from before
            finally:
                if case != "close, later":
                    consumer.close()
    consumer.close()


@pytest.mark.parametrize(
    ("case", "done"),
    [("with", 3), ("close", 3), ("close, later", 3), ("with, raised again", 0), ("close, another", 0)],
)
def test_an_exception_that_is_older_than_the_read_does_not_undo_it(make: Make, case: str, done: int) -> None:
    consumer = make(A0, enable_auto_commit=False, on_revoked=lambda consumer, _: consumer.commit())
    found = asked(consumer)
    prefetch(consumer, A0)
    with nullcontext() if done else pytest.raises((ZeroDivisionError, LookupError)):
        read_and_close(consumer, case)
    assert found[-1:] in ([{A0: done}], [{}] if not done else [])
    assert consumer._handled is None


@pytest.mark.parametrize("ends", [GroupConsumer.close, lambda consumer: consumer.__exit__(None, None, None)])
@pytest.mark.parametrize(
    ("automatic", "committed", "done"), [(True, None, 1), (False, {"offsets": {A0: 2}}, 2), (False, {}, 1)]
)
def test_records_that_another_thread_has_read_are_done_only_if_a_commit_names_them(
    make: Make, ends: Callable[[GroupConsumer], None], automatic: bool, committed: Any, done: int
) -> None:
    """It may be in the middle of one, or have failed; a caller that names offsets knows."""

    def commit(consumer: GroupConsumer, _: object) -> None:
        if committed is not None:
            consumer.commit(**committed)

    consumer = make(A0, enable_auto_commit=automatic, on_revoked=commit)
    found = asked(consumer)
    prefetch(consumer, A0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(consumer.fetch_record, 60).result() is not None
        assert len(pool.submit(consumer.poll, 60).result()) == 2
    ends(consumer)
    assert found[-1:] == [{A0: done}]


@pytest.mark.parametrize("automatic", [True, False])
def test_records_that_another_thread_is_about_to_get_are_not_done(
    make: Make, monkeypatch: pytest.MonkeyPatch, automatic: bool
) -> None:
    """They are being decoded, which takes longer than `close` waits, and the read may still fail."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    consumer = make(A0, enable_auto_commit=automatic, on_revoked=lambda consumer, _: consumer.commit())
    found = asked(consumer)
    prefetch(consumer, A0)
    decoding, closed = threading.Event(), threading.Event()
    decode = RecordTyping.decode

    def slow(typing: RecordTyping, fetched: FetchedRecords) -> Any:
        decoding.set()
        assert closed.wait(60)
        return decode(typing, fetched)

    monkeypatch.setattr(RecordTyping, "decode", slow)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: consumer.read(60, value_format="string"))
        assert decoding.wait(60)
        consumer.close()
        closed.set()
        reading.exception(60)
    assert all(offsets.get(A0, 0) == 0 for offsets in found)


def test_no_read_takes_records_while_another_thread_closes_the_consumer(make: Make) -> None:
    """They would be in work as the closing thread commits, and count as done."""
    ended: list[object] = []

    def revoked(consumer: GroupConsumer, _: object) -> None:
        ended.extend((reading.exception(60), pool.submit(consumer.poll, 60).exception(60)))
        ended.append(consumer.position(A0))

    consumer = make(A0, on_revoked=revoked)
    found = asked(consumer)
    prefetch(consumer, A0)
    parts, begun = parts_of(consumer), threading.Event()
    next_record = parts.reader.next_record

    def take(deadline: Any) -> Any:
        begun.set()
        while not parts.rebalance.leaving:
            time.sleep(0.001)
        return next_record(deadline)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(consumer.fetch_record, 60).result() is not None
        take_instead(consumer, take)
        reading = pool.submit(consumer.fetch_record, 60)
        assert begun.wait(60)
        consumer.close()
    assert [type(one) for one in ended] == [ConsumerClosedError, ConsumerClosedError, int]
    assert (ended[-1], found) == (1, [{A0: 1}])


@pytest.mark.parametrize("is_lost", [False, True])
def test_callbacks_of_close_do_not_name_partitions_that_on_assigned_has_not_named(
    make: Make, is_lost: bool
) -> None:
    """A read in another thread gets them in the change that it carries out as `close` begins."""
    calls: list[tuple[str, list[TopicPartition]]] = []
    begun = threading.Event()

    def revoked(_: GroupConsumer, found: list[TopicPartition]) -> None:
        calls.append(("revoked", found))
        if not begun.is_set():
            begun.set()
            wait_until("it is being closed", lambda: parts.rebalance.leaving)
            if is_lost:
                lose(consumer)

    consumer = make(
        A0,
        B0,
        on_assigned=lambda _, found: calls.append(("assigned", found)),
        on_revoked=revoked,
        on_lost=lambda _, found: calls.append(("lost", found)),
    )
    asked(consumer)
    parts = parts_of(consumer)
    with parts.member.changing() as membership:
        membership.state, membership._target = MemberState.TAKING, frozenset([A1, B0])
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(consumer.fetch_record, 60)
        assert begun.wait(60)
        consumer.close()
        assert isinstance(reading.exception(60), ConsumerClosedError)
    assert calls == [("revoked", [A0]), ("lost" if is_lost else "revoked", [B0])]


def test_a_read_takes_no_records_after_a_callback_that_was_longer_than_close_waits(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last commit would contain them, though the read does not return them."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    taken: list[object] = []

    def revoked(consumer: GroupConsumer, _: object) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(consumer.close).result(60)

    consumer = make(A0, on_revoked=revoked)
    with parts_of(consumer).member.changing() as membership:
        membership.subscribe(["b"])
    take_instead(consumer, taken.append)  # type: ignore[arg-type]
    with pytest.raises(ConsumerClosedError):
        consumer.fetch_record(60)
    assert taken == []


@pytest.mark.parametrize("ends", [GroupConsumer.close, lambda consumer: consumer.__exit__(None, None, None)])
def test_close_in_a_second_thread_waits_for_the_end_of_the_first(
    make: Make, ends: Callable[[GroupConsumer], None]
) -> None:
    """The program may end then, before the first one has committed and left the group."""
    steps: list[str] = []

    def close() -> None:
        ends(consumer)
        steps.append("closed")

    def waits() -> bool:
        return any(frame.name == "_await_other_close" for frame in stack_of(second))

    second = threading.Thread(target=close, daemon=True)

    def revoked(*_: object) -> None:
        second.start()
        wait_until("it waits", lambda: not second.is_alive() or waits())

    consumer = make(A0, on_revoked=revoked)
    parts_of(consumer).member.stop = lambda _: steps.append("left")  # type: ignore[method-assign,assignment]
    with ThreadPoolExecutor(1) as pool:  # the program does not end before the main thread
        pool.submit(consumer.close).result(60)
    second.join(60)
    assert steps == ["left", "closed"]


def test_close_in_a_second_thread_waits_for_more_than_one_step_of_the_first(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only in a callback, which may wait for the second thread, the wait is that short."""
    monkeypatch.setattr(Rebalance, "leave_deadline", lambda _: Deadline.after_ms(0))
    steps: list[str] = []

    def close() -> None:
        consumer.close()
        steps.append("closed")

    def waits() -> bool:
        return any(frame.line == "time.sleep(AWAIT_S)" for frame in stack_of(second))

    second = threading.Thread(target=close, daemon=True)

    def leave(_: object) -> None:
        second.start()
        wait_until("it waits", lambda: not second.is_alive() or waits())
        steps.append("left")

    consumer = make(A0)
    parts_of(consumer).member.stop = leave  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(consumer.close).result(60)
    second.join(60)
    assert steps == ["left", "closed"]


@pytest.mark.parametrize("closer", ["the main thread", "another one"])
def test_on_revoked_may_wait_for_another_thread_that_closes_the_consumer(
    make: Make, monkeypatch: pytest.MonkeyPatch, closer: str
) -> None:
    limit_ms = 0 if closer == "another one" else 3_600_000
    monkeypatch.setattr(Rebalance, "leave_deadline", lambda _: Deadline.after_ms(limit_ms))
    waited: list[object] = []

    def revoked(consumer: GroupConsumer, _: object) -> None:
        with ThreadPoolExecutor(1) as pool:
            waited.append(pool.submit(consumer.close).result(60))

    consumer = make(A0, on_revoked=revoked)
    if closer == "the main thread":
        consumer.close()
    else:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(consumer.close).result(60)
    assert waited == [None]


def test_a_handler_does_not_wait_for_another_thread_that_closes_the_consumer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have interrupted a call that this one needs the end of."""
    for limit in ("leave_deadline", "close_deadline"):
        monkeypatch.setattr(Rebalance, limit, lambda _: Deadline.after_ms(3_600_000))
    closed: list[bool] = []

    def revoked(consumer: GroupConsumer, _: object) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        wait_until("the handler has ended", lambda: bool(closed), 60)

    consumer = make(A0, on_revoked=revoked)

    def handle(*_: object) -> None:
        consumer.close()
        closed.append(consumer._closed)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(consumer.close).result(60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert closed == [False]


def test_close_waits_for_a_close_in_another_thread_longer_than_for_a_callback_of_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rebalance, "leave_deadline", lambda _: Deadline.after_ms(0))
    consumer = make(A0)
    leaving, gate = threading.Event(), threading.Event()

    def stop(_: Deadline) -> None:
        leaving.set()
        assert gate.wait(60)

    parts_of(consumer).member.stop = stop  # type: ignore[method-assign,assignment]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(consumer.close)
        assert leaving.wait(60)
        second = pool.submit(consumer.close)
        try:
            with pytest.raises(TimeoutError):
                second.result(0.3)
        finally:
            gate.set()
        first.result(60)
        second.result(60)


def test_a_callback_does_not_wait_for_another_thread_that_closes_the_consumer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one waits for the end of the read that has called it."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 3_600_000)
    begun, returned = threading.Event(), threading.Event()

    def revoked(consumer: GroupConsumer, _: object) -> None:
        if not begun.is_set():
            begun.set()
            wait_until("it is being closed", lambda: parts.rebalance.leaving)
            consumer.close()
            returned.set()

    consumer = make(A0, B0, on_revoked=revoked)
    asked(consumer)
    parts = parts_of(consumer)
    with parts.member.changing() as membership:
        membership.state, membership._target = MemberState.TAKING, frozenset([A1, B0])
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(consumer.fetch_record, 60)
        assert begun.wait(60)
        closing = pool.submit(consumer.close)
        try:
            assert returned.wait(60)
        finally:
            consumer._closer = None  # no thread waits on after a failure
        assert isinstance(reading.exception(60), ConsumerClosedError)
        closing.result(60)


def test_a_commit_that_ends_nothing_contains_the_records_that_another_thread_has_read(make: Make) -> None:
    consumer = make(A0, enable_auto_commit=False)
    found = asked(consumer)
    prefetch(consumer, A0)
    with ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(consumer.poll, 60).result()) == 3
    consumer.commit()
    assert (found, consumer.offsets_to_commit()) == ([{A0: 3}], {A0: 3})


def test_a_transaction_names_the_records_that_another_thread_has_read(make: Make) -> None:
    """Their results may be in it, or not."""
    found: list[object] = []

    def commit(consumer: GroupConsumer, _: object) -> None:
        with pytest.raises(CommitFailedError, match="a-0: the last records may be in work"):
            consumer.offsets_to_commit()
        found.append(consumer.offsets_to_commit(offsets={A0: 2}))

    consumer = make(A0, enable_auto_commit=False, on_revoked=commit)
    prefetch(consumer, A0)
    with ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(consumer.poll, 60).result()) == 3
    consumer.close()
    assert found == [{A0: 2}]


@pytest.mark.parametrize("reader", ["this thread", "another thread"])
def test_a_commit_does_not_go_back_before_a_transaction_with_the_records_in_work(
    make: Make, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """The transaction was begun by hand: it may be committed, and its results would be made again."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    consumer = make(
        A0, A1, enable_auto_commit=False, on_revoked=lambda consumer, _: consumer.commit_async().result(60)
    )
    committed = asked(consumer)
    prefetch(consumer, A0, A1)
    with ThreadPoolExecutor(1) as pool:
        records = consumer.poll(60) if reader == "this thread" else pool.submit(consumer.poll, 60).result()
        assert len(records) == 6
        assert consumer.offsets_to_commit(offsets={A0: 3}) == {A0: 3}
        close_by(consumer, "an exception")
    assert committed == [{A1: 0}]


@pytest.mark.parametrize("reader", ["this thread", "another thread"])
@pytest.mark.parametrize(("sought", "commits"), [(40, {A1: 0}), (3, {A1: 0}), (2, {A0: 2, A1: 0})])
def test_a_commit_does_not_pass_records_in_work_that_a_seek_has_passed(
    make: Make, monkeypatch: pytest.MonkeyPatch, reader: str, sought: int, commits: Offsets
) -> None:
    """The caller skips the rest of a backlog, and then works on what it has read. One that goes back to a
    record, to do it again, has done those before.
    """
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    consumer = make(
        A0, A1, enable_auto_commit=False, on_revoked=lambda consumer, _: consumer.commit_async().result(60)
    )
    found = asked(consumer)
    prefetch(consumer, A0)
    with ThreadPoolExecutor(1) as pool:
        records = consumer.poll(60) if reader == "this thread" else pool.submit(consumer.poll, 60).result()
        assert len(records) == 3
        consumer.seek(A0, sought)
        close_by(consumer, "an exception")
    assert found == [commits]


def close_by(consumer: GroupConsumer, closer: str) -> None:
    """Close it by an exception at the end of its block, or in a signal's handler."""
    if closer == "an exception":
        with pytest.raises(ZeroDivisionError), consumer:
            raise ZeroDivisionError
        return
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("closer", ["an exception", "a handler"])
def test_a_transaction_does_not_leave_out_the_records_in_work_when_an_interrupt_closes_the_consumer(
    make: Make, monkeypatch: pytest.MonkeyPatch, closer: str
) -> None:
    """It may have results of some of them, and they are read again."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    found: list[object] = []

    def revoked(consumer: GroupConsumer, _: object) -> None:
        with pytest.raises(CommitFailedError, match="a-0: the last records may be in work"):
            consumer.offsets_to_commit()
        with pytest.raises(CommitFailedError, match="a-0: the last records may be in work"):
            consumer.group_metadata().check({})
        found.append(consumer.offsets_to_commit(offsets={A0: 3}))  # of an earlier read

    consumer = make(A0, enable_auto_commit=False, on_revoked=revoked)
    prefetch(consumer, A0)
    assert len(consumer.poll(60)) == 3
    hand_out(consumer, 3)
    close_by(consumer, closer)
    assert found == [{A0: 3}]


@pytest.mark.parametrize("closer", ["an exception", "a handler"])
@pytest.mark.parametrize("auto", [False, True])
def test_records_that_are_done_may_be_named_in_on_revoked_when_an_interrupt_closes_the_consumer(
    make: Make, monkeypatch: pytest.MonkeyPatch, closer: str, auto: bool
) -> None:
    """The others are given back; `commit` without arguments contains none of them."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    records: list[Record] = []
    refusal = "since the partition was assigned only offsets 0 to 3 were read"

    def revoked(consumer: GroupConsumer, _: object) -> None:
        consumer.commit_async()
        consumer.commit_async(records[0])
        consumer.commit_async(records[:2])
        consumer.commit_async(offsets={A0: 3})
        with pytest.raises(CommitFailedError, match=refusal):
            consumer.commit_async(offsets={A0: 4})
        if not auto:
            assert consumer.offsets_to_commit(*records[:2]) == {A0: 2}

    consumer = make(A0, enable_auto_commit=auto, auto_commit_interval_ms=600_000, on_revoked=revoked)
    found = asked(consumer)
    prefetch(consumer, A0)
    records += consumer.poll(60)
    assert len(records) == 3
    close_by(consumer, closer)
    assert found[-4:] == [{A0: 0}, {A0: 1}, {A0: 2}, {A0: 3}]
    assert len(found) == 4 or found[0] == {A0: 0}


@pytest.mark.parametrize("closer", ["an exception", "a handler"])
def test_a_transaction_that_was_committed_leaves_nothing_in_work(
    make: Make, monkeypatch: pytest.MonkeyPatch, closer: str
) -> None:
    """What ends the consumer after that is no reason to refuse another one, nor to commit less."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    found: list[object] = []

    def revoked(consumer: GroupConsumer, _: object) -> None:
        consumer.commit_async()
        found.append(consumer.offsets_to_commit())

    consumer = make(A0, enable_auto_commit=False, on_revoked=revoked)
    committed = asked(consumer)
    producer: Any = SimpleNamespace(transaction=nullcontext, send_offsets=lambda *_: None)
    with consumer.transaction(producer):
        hand_out(consumer, 0)
    close_by(consumer, closer)
    assert (committed, found) == ([{A0: 1}], [{A0: 1}])


@pytest.mark.parametrize("closer", ["an exception", "a handler"])
def test_a_transaction_of_another_thread_has_the_offsets_of_its_records_when_an_interrupt_closes_it(
    make: Make, closer: str
) -> None:
    """It is committed while on_revoked waits for it."""
    found: list[object] = []

    def revoked(consumer: GroupConsumer, _: object) -> None:
        with pytest.raises(CommitFailedError, match="a-0: the last records may be in work"):
            consumer.offsets_to_commit()
        found.append(pool.submit(consumer.offsets_to_commit).result(60))
        found.append(pool.submit(consumer.offsets_to_commit, record(1)).result(60))

    consumer = make(A0, enable_auto_commit=False, on_revoked=revoked)
    prefetch(consumer, A0)
    with ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(consumer.poll, 60).result()) == 3
        close_by(consumer, closer)
    assert found == [{A0: 3}, {A0: 2}]


def test_a_transaction_of_another_thread_does_not_go_back_where_an_interrupt_closes_the_consumer_within_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads gives the records back just before the offsets are looked up."""
    ended = threading.Event()
    consumer = make(A0, enable_auto_commit=False, on_revoked=lambda *_: ended.wait(60))
    prefetch(consumer, A0)
    commits = parts_of(consumer).commits
    wanted, looks, is_back = commits.wanted, threading.Event(), threading.Event()

    def look_up(*given: Any) -> dict[TopicPartition, int]:
        looks.set()
        assert is_back.wait(60)
        return wanted(*given)

    monkeypatch.setattr(commits, "wanted", look_up)
    give_up = parts_of(consumer).rebalance.give_up

    def then_give_up(owned: frozenset[TopicPartition]) -> None:
        is_back.set()
        give_up(owned)

    monkeypatch.setattr(parts_of(consumer).rebalance, "give_up", then_give_up)
    with ThreadPoolExecutor(1) as pool:
        assert len(consumer.poll(60)) == 3
        ending = pool.submit(consumer.offsets_to_commit)
        ending.add_done_callback(lambda _: ended.set())
        assert looks.wait(60)
        close_by(consumer, "an exception")
        assert isinstance(ending.exception(60), CommitFailedError)


def test_another_thread_does_not_work_on_records_that_it_has_gone_back_before(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction was aborted. The thread that closes the consumer may commit all others."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    found: list[object] = []
    consumer = make(
        A0,
        enable_auto_commit=False,
        on_revoked=lambda consumer, _: found.append(consumer.offsets_to_commit()),
    )
    prefetch(consumer, A0)
    with ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(consumer.poll, 60).result()) == 3
        pool.submit(consumer.seek_to_committed).result()
    consumer.close()
    assert found == [{}]


def test_a_read_beside_close_in_another_thread_says_that_the_consumer_is_closed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partitions are given up when the read, which is about to commit, has just listed them: it takes
    longer than `close` waits.
    """
    monkeypatch.setattr(rebalance, "LEAVE_MS", 0)
    consumer = make(A0, auto_commit_interval_ms=0)
    asked(consumer)
    prefetch(consumer, A0)
    assert len(consumer.poll(60)) == 3
    buffer = parts_of(consumer).reader.buffer
    partitions = buffer.partitions

    def then_close() -> dict[TopicPartition, bool]:
        found = partitions()
        monkeypatch.setattr(buffer, "partitions", partitions)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(consumer.close).result(60)
        return found

    monkeypatch.setattr(buffer, "partitions", then_close)
    with pytest.raises(ConsumerClosedError):
        consumer.poll(60)


def test_a_generator_that_yields_from_a_consumer_does_not_close_it(make: Make) -> None:
    """Python closes the iterator after the exception: a record was done of which the work had failed."""

    def records() -> Iterator[Record]:
        yield from consumer

    consumer = make(A0)
    prefetch(consumer, A0)
    reading = records()
    assert next(reading).offset == 0
    reading.close()
    assert [next(iter(consumer)).offset, next(consumer).offset] == [1, 2]


def test_what_was_lost_is_not_given_back_to_a_partition_that_came_again(make: Make) -> None:
    """In one read: its position would overtake records that were not committed."""
    consumer = make(A0)

    def take(_: object) -> Record:
        if not parts_of(consumer).starts.missing and consumer.position(A0) == 5:
            lose(consumer)
            return record(5)
        raise ZeroDivisionError

    def lost(*_: object) -> None:
        # The group has it again before the read goes on, at the committed offset.
        parts_of(consumer).rebalance.carry_out(Change(assigned=frozenset([A0])))
        parts_of(consumer).starts.begin(A0, 2, 2)

    parts_of(consumer).rebalance.callbacks._callbacks["lost"] = lost
    parts_of(consumer).reader.seek(A0, 5)
    take_instead(consumer, take)
    with pytest.raises(ZeroDivisionError):
        consumer.fetch_record(60)
    assert consumer.position(A0) == 2


def test_a_topic_that_was_removed_and_added_again_goes_on_where_it_was(make: Make) -> None:
    consumer = make(A0, B0, C0)
    consumer.subscribe(["a", "b", "c"])
    prefetch(consumer, B0, A0, C0)
    assert places([consumer.fetch_record(60)]) == [("b", 0)]
    consumer.pause(C0)
    consumer.subscribe(re.compile("a|x"))
    assert places([consumer.fetch_record(60)]) == [("a", 0)]
    consumer.subscribe(re.compile("[a-c]"))
    found = places([consumer.fetch_record(60) for _ in range(4)])
    assert [one for one in found if one and one[0] == "a"] == [("a", 1), ("a", 2)]
    assert [one for one in found if one and one[0] == "b"] == [("b", 1), ("b", 2)]
    assert consumer.fetch_record(0) is None  # the caller has paused the third
    consumer.resume(C0)
    assert places([consumer.fetch_record(60) for _ in range(3)]) == [("c", 0), ("c", 1), ("c", 2)]


def test_what_is_assigned_of_a_topic_that_was_removed_meanwhile_is_not_read(make: Make) -> None:
    consumer = make(A0)
    asked(consumer)
    parts_of(consumer).rebalance.carry_out(Change(assigned=frozenset([B0])))
    parts_of(consumer).starts.begin(B0, 0, None)
    prefetch(consumer, B0, A0)
    assert places([consumer.fetch_record(60) for _ in range(3)]) == [("a", 0), ("a", 1), ("a", 2)]
    assert consumer.fetch_record(0) is None
    parts_of(consumer).rebalance.carry_out(Change(revoked=frozenset([B0])))
    assert parts_of(consumer).reader.partitions == {A0: False}


@pytest.mark.parametrize("entered", ["__enter__", "__exit__"])
def test_an_interrupt_leaves_nothing_locked(make: Make, entered: str) -> None:
    """`close` follows while the interrupt is on its way, and takes the same lock."""
    consumer = make(A0)
    member = parts_of(consumer).member
    interrupted = False

    def interrupt(frame: Any, event: str, _: object) -> None:
        nonlocal interrupted
        if not interrupted and event == "call" and frame.f_code.co_name == entered:
            interrupted = True
            raise KeyboardInterrupt

    change = Change(revoked=frozenset([A0]))
    before = sys.gettrace()
    gc.disable()  # the interrupt must not fall into a destructor
    try:
        sys.settrace(interrupt)
        try:
            for call in (member.begin, lambda: member.applied(change)):
                call()
        finally:
            sys.settrace(before)
    except KeyboardInterrupt:
        assert not member._lock.locked()
    finally:
        gc.enable()
    assert interrupted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one in a destructor
@pytest.mark.parametrize("read", ["fetch_record", "__next__", "poll", "read"])
def test_an_interrupt_of_a_read_at_any_step_takes_nothing_from_the_caller(make: Make, read: str) -> None:
    consumer = make(A0)
    committed = asked(consumer)
    for step in itertools.count():
        consumer.seek(A0, 0)
        prefetch(consumer, A0)
        got: list[Any] = []
        with interrupted_at(step) as came:
            got = [getattr(consumer, read)()]
        expected = {"fetch_record": 1, "__next__": 1}.get(read, 3) if got else 0
        assert consumer.position(A0) == expected, step
        committed.clear()
        consumer.commit()
        assert all(offsets == {A0: expected} for offsets in committed), step
        if not came:
            break
    assert got
    assert committed
    assert step > 50


class Interrupt:
    """``-Interrupt()`` is SIGINT, which CPython handles after a later step: a sign is none."""

    __neg__ = staticmethod(partial(_thread.interrupt_main, signal.SIGINT))


def test_an_interrupt_as_decoded_records_are_returned_takes_nothing_from_the_caller(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make(A0)
    prefetch(consumer, A0)
    reader = parts_of(consumer).reader
    read = reader.read_typed

    def interrupted(*given: Any) -> Any:
        found = read(*given)
        _ = -Interrupt()
        return found

    monkeypatch.setattr(reader, "read_typed", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            consumer.read(60, value_format="string")
    finally:
        signal.signal(signal.SIGINT, before)
    assert consumer.position(A0) == 0


@pytest.mark.parametrize("of_reader", [False, True], ids=["member", "reader"])
def test_an_interrupt_of_close_leaves_no_thread_and_no_connection(make: Make, of_reader: bool) -> None:
    """Where it waits for one of its threads."""
    consumer = make(A0)
    committed(consumer, {A0: 0})
    consumer.commit(offsets={A0: 0})  # nothing to do, but its thread is there
    parts = parts_of(consumer)
    member, queue = parts.member, parts.commits.queue
    join, close = member.thread.join, parts.reader.close

    def interrupted(*_: object) -> None:
        if of_reader:
            close()
        member.thread.join = join  # type: ignore[method-assign]
        raise KeyboardInterrupt

    if of_reader:
        parts.reader.close = interrupted  # type: ignore[method-assign]
    else:
        member.thread.join = interrupted  # type: ignore[method-assign,assignment]
    parts.commits.commit_now = lambda *_, **__: None  # type: ignore[method-assign]
    queue.drain = lambda _: None  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    for thread in (member.thread, queue.thread):
        assert thread is not None
        thread.join(30)
        assert not thread.is_alive()


def test_what_is_lost_while_it_is_taken_is_not_handed_out(make: Make) -> None:
    consumer = make(A0)

    def take(_: object) -> Record:
        lose(consumer)
        return record(0)

    take_instead(consumer, take)
    assert consumer.fetch_record(0.0) is None


def test_what_an_interrupt_took_back_can_not_be_committed(make: Make) -> None:
    consumer = make(A0)
    hand_out(consumer, 0)
    committed(consumer, {A0: 1})
    hand_out(consumer, 1)
    consumer._give_back()
    with pytest.raises(CommitFailedError, match="only offsets 0 to 1 were read"):
        parts_of(consumer).commits.progress.check({A0: 2})
    assert consumer.position(A0) == 1
    assert parts_of(consumer).commits.progress.ahead({A0: 1}) == {}


def test_who_is_no_member_any_more_loses_its_partitions_at_the_end(make: Make) -> None:
    calls: list[str] = []
    consumer = make(
        A0,
        on_revoked=lambda *_: calls.append("revoked"),
        on_lost=lambda *_: calls.append("lost"),
    )
    hand_out(consumer, 0)
    found = asked(consumer)
    lose(consumer)
    consumer.close()
    assert (calls, found) == (["lost"], [])


@pytest.mark.parametrize("leaves", [False, True])
def test_commits_of_on_revoked_have_ended_before_partitions_are_given_up(make: Make, leaves: bool) -> None:
    calls: list[str] = []
    limits: list[Deadline | None] = []
    consumer = make(A0, enable_auto_commit=False, on_revoked=lambda *_: calls.append("revoked"))
    parts = parts_of(consumer)

    def commit(limit: Deadline | None, leaving: Collection[TopicPartition] = ()) -> None:
        limits.append(limit)
        calls.append(f"committed {sorted(map(str, leaving))}")

    def drain(limit: Deadline | None) -> None:
        limits.append(limit)
        calls.append("drained")

    parts.commits.commit_now = commit  # type: ignore[method-assign,assignment]
    parts.commits.queue.drain = drain  # type: ignore[method-assign,assignment]
    drop = parts.commits.drop
    parts.commits.drop = lambda given: (calls.append("given up"), drop(given))[1]  # type: ignore[func-returns-value,method-assign]
    if leaves:
        parts.rebalance.give_up(frozenset([A0]))
    else:
        parts.rebalance.carry_out(Change(revoked=frozenset([A0])))
    assert calls == ["committed ['a-0']", "revoked", "drained", "given up"]
    # A coordinator that is away keeps neither the group nor the caller waiting for good.
    assert all(limit is not None and limit.remaining_ms <= 60_000 for limit in limits)


@pytest.mark.parametrize("leaves", [False, True])
def test_time_in_on_revoked_leaves_later_steps_their_own(
    make: Make, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback may work for minutes before it commits in the background, and leaves the group."""
    now, left = [0.0], list[float]()

    def work(*_: object) -> None:
        now[0] += 3_600

    def limited(limit: Deadline, _leaving: Collection[TopicPartition] = ()) -> None:
        left.append(limit.remaining_ms)

    consumer = make(A0, enable_auto_commit=False, on_revoked=work)
    parts = parts_of(consumer)
    for made_by, name in ((parts.commits.queue, "settle_deadline"), (parts.rebalance, "leave_deadline")):
        monkeypatch.setattr(made_by, name, lambda: Deadline.after_ms(5_000, lambda: now[0]))
    monkeypatch.setattr(parts.commits, "commit_now", limited)
    monkeypatch.setattr(parts.commits.queue, "drain", limited)
    monkeypatch.setattr(parts.member, "stop", limited)
    if leaves:
        consumer.close()
    else:
        parts.rebalance.carry_out(Change(revoked=frozenset([A0])))
    assert left == [5_000] * (3 if leaves else 2)


@pytest.mark.parametrize(("max_poll_s", "limit_s"), [(10, 5), (1_000, 20)])
def test_a_wait_for_commits_leaves_half_of_the_max_poll_interval(
    make: Make, max_poll_s: int, limit_s: int
) -> None:
    """The caller is in a poll meanwhile, and must not be away for too long for a commit without an answer."""
    consumer = make(A0, max_poll_interval_ms=max_poll_s * 1_000, default_api_timeout_ms=20_000)
    limit = parts_of(consumer).commits.queue.settle_deadline()
    assert 0 < limit.remaining_ms <= limit_s * 1_000


@pytest.mark.parametrize(
    "read",
    [
        lambda consumer: consumer.read(0.0),
        lambda consumer: consumer.read(0.0, value_format="string"),
        lambda consumer: consumer.fetch_record(0.0),
        lambda consumer: consumer.poll(0.0),
    ],
    ids=["read", "decoded", "fetch_record", "poll"],
)
def test_each_read_ends_with_its_timeout(make: Make, read: Callable[[GroupConsumer], object]) -> None:
    limits: list[Deadline | None] = []
    consumer = make(A0)

    def wait(limit: Deadline | None) -> bool:
        limits.append(limit)
        return False

    parts_of(consumer).reader._wait = wait  # type: ignore[method-assign,assignment]
    assert not read(consumer)
    assert limits
    assert all(limit is not None and limit.expired for limit in limits)


def test_a_consumer_that_is_dropped_after_what_ended_its_membership_is_freed() -> None:
    """The error that the member keeps would keep the frames that raised it, and they the consumer."""
    consumer = GroupConsumer("127.0.0.1:1", "a", "g")
    thread, freed = parts_of(consumer).member.thread, weakref.ref(consumer)
    with parts_of(consumer).member.changing() as membership:
        membership.failure = BrokerError(ErrorCode.INVALID_GROUP_ID, "JoinGroup of group g")
    for _ in range(2):
        with pytest.raises(BrokerError, match="INVALID_GROUP_ID"):
            consumer.read(0.0)
    del consumer
    gc.collect()
    assert freed() is None
    thread.join(120)
    assert not thread.is_alive()


def test_a_consumer_that_is_dropped_is_freed_at_once() -> None:
    """A cycle would keep it in its group until the garbage collector runs."""
    consumer = GroupConsumer("127.0.0.1:1", "a", "g", on_assigned=lambda *_: None, on_lost=lambda *_: None)
    thread, freed = parts_of(consumer).member.thread, weakref.ref(consumer)
    gc.disable()
    try:
        del consumer
        assert freed() is None
    finally:
        gc.enable()
    thread.join(120)
    assert not thread.is_alive()


def test_a_consumer_whose_making_was_interrupted_leaves_no_member_behind() -> None:
    """It would hold partitions of the group that nothing reads."""
    before = set(threading.enumerate())
    GroupConsumer("127.0.0.1:1", "a", "g").close()  # what a process does once is done
    for step in itertools.count(0, 5):
        with interrupted_at(step) as came:
            consumer = GroupConsumer("127.0.0.1:1", "a", "g")
        if not came:
            consumer.close()
            break
    assert step > 50
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(120)
        assert not thread.is_alive()


def test_committed_offsets_are_asked_for_of_the_named_partitions_until_the_timeout(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In seconds; without one, as long as for any other call."""
    asked: list[set[TopicPartition]] = []
    limits_ms: list[float] = []

    def look_up(
        _router: object, group_id: str, wanted: Collection[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, int | None]:
        assert group_id == "g"
        asked.append(set(wanted))
        limits_ms.append(deadline.remaining_ms)
        return dict.fromkeys(wanted, 7)

    monkeypatch.setattr(module, "committed_offsets", look_up)
    consumer = make(A0, A1, default_api_timeout_ms=1_000_000)
    assert consumer.committed(timeout=10_000) == {A0: 7, A1: 7}
    assert consumer.committed(B0) == {B0: 7}
    assert asked == [{A0, A1}, {B0}]
    assert 1_000_000 < limits_ms[0] <= 10_000_000
    assert 10_000 < limits_ms[1] <= 1_000_000
    assert make().committed() == {}
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, "columns"),
        ({"mode": "permissive"}, "columns"),
        ({"value_format": "json"}, ({"key": None, "value": "json"}, "failfast")),
        ({"key_format": "string"}, ({"key": "string", "value": None}, "failfast")),
        (
            {"key_format": "string", "value_format": "json", "mode": "dropmalformed"},
            ({"key": "string", "value": "json"}, "dropmalformed"),
        ),
        ({"key_format": "string", "mode": "permissive"}, ({"key": "string", "value": None}, "permissive")),
    ],
)
def test_records_are_read_with_the_formats_and_the_mode_of_the_caller(
    make: Make, settings: dict[str, Any], asked: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make(A0)
    reader, found = parts_of(consumer).reader, list[object]()
    monkeypatch.setattr(reader, "read_columns", lambda _deadline: found.append("columns"))
    monkeypatch.setattr(reader, "read_typed", lambda formats, mode, _deadline: found.append((formats, mode)))
    assert consumer.read(0, **settings) is None
    assert found == [asked]


def test_commits_are_among_the_events_and_the_metrics_of_their_consumer(make: Make) -> None:
    parts = parts_of(make(A0))
    assert parts.commits.queue.work_units is parts.reader.work_units
    assert parts.commits.queue.metrics is parts.reader.registry


def test_a_closed_consumer_has_neither_partitions_nor_a_lag(make: Make) -> None:
    """As long as the object was kept, it counted along with the one in its place."""
    consumer = make(A0)
    prefetch(consumer, A0)
    before = consumer.metrics()
    assert (before.value("kafka.group.partitions"), before.value("kafka.consumer.lag")) == (1, 3)
    parts_of(consumer).reader.registry.count(catalogue.COMMITS, 1, "committed")
    consumer.close()
    after = consumer.metrics()
    assert {str(key): value for key, value in after if after.kinds[key.name].kind is Kind.GAUGE} == {
        "kafka.client.connections": 0,
        "kafka.consumer.partitions{state=paused}": 0,
        "kafka.consumer.partitions{state=reading}": 0,
        "kafka.consumer.queue.batches": 0,
        "kafka.consumer.queue.bytes": 0,
        "kafka.group.partitions": 0,
    }
    assert after.value("kafka.group.commits", outcome="committed") == 1


def test_as_many_events_wait_as_the_caller_asks_for(make: Make) -> None:
    consumer = make(A0)
    few, many = consumer.work_units(2), consumer.work_units()
    for start in range(0, 9, 3):
        prefetch(consumer, A0, start=start)
    assert [one.from_offset for one in few.drain()] == [3, 6]
    assert [one.from_offset for one in many.drain()] == [0, 3, 6]
