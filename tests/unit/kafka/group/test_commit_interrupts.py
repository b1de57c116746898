"""Commits that an interrupt of the caller's thread meets at each step, in the standard library, too."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest
from support.brokers.scripted_group import ScriptedGroup
from support.group.committing import PARTITIONS, WITHIN_S, Committing
from support.group.parts import parts_of
from support.interrupts.signal_steps import interrupted_at

from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0, A1, A2 = PARTITIONS


def test_an_interrupt_at_any_step_of_a_first_commit_holds_up_no_later_one(group: ScriptedGroup) -> None:
    """Not while the thread that sends is being started, nor while its outcome is waited for."""
    for step in itertools.count():
        member = Committing(group)
        # The standard library's own clean-up may fail with a RuntimeError on the way.
        with contextlib.suppress(RuntimeError), interrupted_at(step, below=True) as came:
            member.commit({A0: 1})
        member.queue.drain(Deadline.after_ms(WITHIN_S * 1000))
        member.queue.submit({A0: 2, A1: 3}).result(WITHIN_S)
        member.queue.stop()
        member.router.close()
        assert member.sent[-2:] == [(1, A0, 2), (1, A1, 3)]
        if not came:
            break
    assert step > 40


def test_an_interrupt_at_any_step_of_an_automatic_commit_leaves_it_to_the_next(group: ScriptedGroup) -> None:
    group.cluster.logs[A0].append([b"one", b"two", b"three"])
    for step in itertools.count():
        group.committed.clear()
        servers = group.cluster.bootstrap_servers
        with GroupConsumer(servers, "a", "g", auto_commit_interval_ms=600_000) as consumer:
            for offset in range(3):
                record = consumer.fetch_record(WITHIN_S)
                assert record is not None
                assert record.offset == offset
            consumer.fetch_record(0)
            commits = parts_of(consumer).commits
            commits.due = 0.0
            with interrupted_at(step) as came:
                commits.caller_is_back()
        assert group.committed[A0] == 3, step
        if not came:
            break
    assert step > 10


def test_a_commit_that_an_interrupt_left_without_a_thread_is_sent_before_the_end(
    group: ScriptedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` drains the queue: it would wait in vain, and the offsets would not be committed."""
    member = Committing(group)
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr("threading.Thread.start", interrupt)
        member.queue.submit({A0: 1})
    member.queue.drain(Deadline.after_ms(WITHIN_S * 1000))
    assert member.sent == [(1, A0, 1)]
    member.queue.stop()
    member.router.close()


def test_a_callback_of_a_commit_may_ask_for_its_outcome(group: ScriptedGroup) -> None:
    member = Committing(group)
    gate, seen = threading.Event(), list[object]()
    member.during(1, lambda: gate.wait(WITHIN_S))
    done = member.queue.submit({A0: 1})
    done.add_done_callback(lambda future: seen.append((future.result(0), future.exception(0))))
    gate.set()
    done.result(WITHIN_S)
    member.queue.stop()
    member.router.close()
    assert seen == [(None, None)]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
