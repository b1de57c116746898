"""Callbacks of commits, which the thread that sends all of them calls, and commits that a seek overtakes."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup
from support.consumer.reading import wait_until
from support.group.committing import WITHIN_S, Committing
from support.group.parts import parts_of
from support.interrupts.signal_steps import interrupted_at

from spark_kafka_native.kafka.errors import CommitFailedError, KafkaError
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.group.pending_commit import PendingCommit
from spark_kafka_native.kafka.model import Record, TopicPartition
from spark_kafka_native.kafka.protocol.api.group_offsets import OffsetCommitRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0 = TopicPartition("a", 0)


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    with ScriptedCluster(1) as cluster:
        cluster.create("a", partitions=3)
        cluster.logs[A0].append([b"one", b"two", b"three"])
        yield ScriptedGroup(cluster, [A0])


@pytest.fixture
def gate(group: ScriptedGroup) -> threading.Event:
    """The first commit is answered once it is set."""
    opened = threading.Event()

    def late(request: OffsetCommitRequest, version: int) -> Any:
        assert opened.wait(WITHIN_S)
        return group.commit(request, version)

    group.cluster[1].push(OffsetCommitRequest, late)
    return opened


def read_all(consumer: GroupConsumer) -> list[Record]:
    found = [record for _ in range(3) if (record := consumer.fetch_record(WITHIN_S)) is not None]
    assert [record.offset for record in found] == [0, 1, 2]
    return found


def test_no_callback_ends_the_thread_that_sends_or_keeps_others_from_being_called(
    group: ScriptedGroup, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    member, called = Committing(group), list[int]()
    first = member.queue.submit({A0: 1})
    first.add_done_callback(lambda _: 1 // 0)
    first.add_done_callback(lambda _: sys.exit(3))
    for number in range(3):
        first.add_done_callback(lambda _, number=number: called.append(number))  # type: ignore[misc]
    gate.set()
    second = member.queue.submit({A0: 2})
    second.result(WITHIN_S)
    assert called == [0, 1, 2]
    assert caplog.text.count("a callback of a commit") == 2
    second.add_done_callback(lambda _: called.append(3))
    assert called == [0, 1, 2, 3]
    with pytest.raises(SystemExit):  # in this thread, as it comes from a callback called by this one
        second.add_done_callback(lambda _: sys.exit(3))
    member.queue.stop()
    member.router.close()
    assert [offset for *_, offset in member.sent] == [1, 2]


@pytest.mark.parametrize("failure", [None, KafkaError("refused")], ids=["committed", "failed"])
def test_an_outcome_is_noted_before_a_waiter_has_it(failure: KafkaError | None) -> None:
    """The next automatic commit contains the offsets that have failed: it must not begin before."""
    steps = list[object]()

    def note(outcome: KafkaError | None) -> None:
        steps.append((outcome, commit.done(), commit.wait(Deadline.after_ms(0))))

    commit = PendingCommit({A0: 1}, note)
    commit.add_done_callback(lambda ended: steps.append((ended.exception(), ended.done())))
    commit.end(failure)
    assert steps == [(failure, False, False), (failure, True)]
    assert commit.wait(Deadline.after_ms(0))


def test_an_interrupt_at_any_step_of_adding_a_callback_holds_up_no_commit(group: ScriptedGroup) -> None:
    for step in itertools.count():
        commit = PendingCommit({A0: 1})
        with interrupted_at(step, below=True) as came:
            commit.add_done_callback(lambda _: None)
        ending = threading.Thread(target=commit.end, args=(None,), daemon=True)
        ending.start()
        ending.join(WITHIN_S)
        assert not ending.is_alive()
        if not came:
            break
    assert step > 1


@pytest.mark.parametrize("what", ["commit", "result", "close", "seek_to_committed"])
def test_a_callback_that_would_wait_for_its_own_thread_fails_at_once(
    group: ScriptedGroup, gate: threading.Event, what: str
) -> None:
    refused = list[Exception]()
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
        records = read_all(consumer)

        def wait(_: Future[None]) -> None:
            try:
                match what:
                    case "commit":
                        consumer.commit(records[1])
                    case "result":
                        consumer.commit_async(records[1]).result()
                    case "close":
                        consumer.close()
                    case _:
                        consumer.seek_to_committed()
            except RuntimeError as error:
                refused.append(error)

        asked = consumer.commit_async(records[0])
        asked.add_done_callback(wait)
        gate.set()
        consumer.commit(records[2])
        assert consumer.assignment
        assert consumer.position(A0) == 3
    assert "would wait for the thread that it runs in" in str(refused[0])
    assert group.committed == {A0: 3}


def overtake(
    consumer: GroupConsumer, asked: list[Future[None]], group: ScriptedGroup, gate: threading.Event
) -> None:
    """Seek while the first of the commits is on its way, and wait for all."""
    wait_until("one is on its way", lambda: group.cluster[1].requests(OffsetCommitRequest))
    consumer.seek(A0, 1)
    gate.set()
    for commit in asked:
        commit.result(WITHIN_S)


def test_a_commit_that_a_seek_overtakes_is_sent(group: ScriptedGroup, gate: threading.Event) -> None:
    """It contains the records that were handed out before it was asked for."""
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
        records = read_all(consumer)
        asked = [consumer.commit_async(records[0]), consumer.commit_async()]
        overtake(consumer, asked, group, gate)
        assert group.committed == {A0: 3}
        with pytest.raises(CommitFailedError, match="since the last seek only offsets 1 to 1 were read"):
            consumer.commit(records[2])


def test_a_commit_that_a_seek_overtakes_does_not_go_back(group: ScriptedGroup, gate: threading.Event) -> None:
    """The first of the two has completed."""
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
        records = read_all(consumer)
        asked = [consumer.commit_async(records[at]) for at in (0, 2, 1)]
        overtake(consumer, asked, group, gate)
        assert group.committed == {A0: 3}


def test_a_commit_that_a_seek_overtakes_does_not_stand_for_later_ones(
    group: ScriptedGroup, gate: threading.Event
) -> None:
    """Else nothing would be sent for the record after the seek, and the ones behind it would not be read
    again.
    """
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
        read_all(consumer)
        asked = [consumer.commit_async() for _ in range(2)]
        wait_until("one is on its way", lambda: group.cluster[1].requests(OffsetCommitRequest))
        consumer.seek(A0, 0)
        again = read_all(consumer)
        gate.set()
        for commit in asked:
            commit.result(WITHIN_S)
        assert group.committed == {A0: 3}
        consumer.commit(again[0])
        assert group.committed == {A0: 1}


def test_a_commit_under_way_outlasts_a_consumer_that_is_dropped_and_its_thread_does_not(
    group: ScriptedGroup, gate: threading.Event
) -> None:
    consumer = GroupConsumer(group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False)
    read_all(consumer)
    asked = consumer.commit_async()
    queue = parts_of(consumer).commits.queue
    wait_until("sent", lambda: group.cluster[1].requests(OffsetCommitRequest))
    del consumer
    gate.set()
    asked.result(WITHIN_S)
    assert group.committed == {A0: 3}
    assert queue.thread is not None
    queue.thread.join(WITHIN_S)
    assert not queue.thread.is_alive()
