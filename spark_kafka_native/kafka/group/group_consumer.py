"""`GroupConsumer`: one of several consumers that share the partitions of some topics between them.

Two threads help: `Member` keeps it in the group, `PartitionReader`'s fetches ahead. What changes the
partitions happens in the caller's thread, when it comes back for more: then everything that it was given is
done, so that it can be committed before others go on from there.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterable
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import Any, Self, TypeVar

from ..cluster.router import Router
from ..config.client_config import Bootstrap, configs_from
from ..consumer.consumer_events import WorkUnit
from ..consumer.fetched_records import FetchedRecords
from ..consumer.partition_reader import PartitionReader, single_reader
from ..errors import ConfigError, ConsumerClosedError
from ..model import Record, TopicPartition
from ..observe import catalogue as metric
from ..observe.events import EventStream
from ..observe.metrics import MetricsSnapshot, Observed
from ..runtime.deadline import Deadline
from .callbacks import Callbacks, OnPartitions
from .commits import AutoCommit, Commits, Progress
from .group_config import GroupConfig
from .group_positions import Taken
from .group_transactions import GroupTransactions
from .late_close import closed_late, within_handler
from .member import new_member
from .membership import Change
from .start_offsets import StartOffsets
from .subscription import Subscription, Topics

SLICE_MS = 50
"""A read that waits for records looks up so often, to see whether the group wants something."""
LEAVE_MS = 5_000
"""So long `close` waits for the last commit and for the coordinator to hear that we leave."""

T = TypeVar("T", Record, FetchedRecords, list[Record])


class GroupConsumer(GroupTransactions):
    """Reads its share of some topics, together with the other members of its group.

    ``bootstrap`` says how to reach the cluster, ``topics`` is a name, several, or a compiled pattern that
    whole names match; without ``topics`` it joins the group at the first `subscribe`. ``group`` is the id of
    the group or a `GroupConfig`. Keywords are the fields of `GroupConfig`, `ClientConfig` and
    `SecurityConfig`. For one thread at a time: a read while another thread is in one raises `RuntimeError`.

    **At least once.** With ``enable_auto_commit`` whatever was handed out, however it was read, is committed
    once the caller is back for more (in the background every ``auto_commit_interval_ms``, before anything
    else with 0), and before its partitions go to another member. Without it, only `commit` commits. A
    consumer that dies leaves what it did not commit to others, who read it again.

    ``on_assigned``, ``on_revoked`` and ``on_lost`` are called from within a read, or `close`. In
    ``on_revoked`` the partitions are still this consumer's: what is done can be committed. Of those in
    ``on_lost`` others may have read on already.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None = None,
        topics: Topics = (),
        group: str | GroupConfig | None = None,
        *,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(group, str):
            settings["group_id"] = group
        own = group if isinstance(group, GroupConfig) else GroupConfig
        client, self._config = configs_from(bootstrap, settings, own)
        super().__init__()
        self._subscription = Subscription(topics)
        self._router = Router(client)
        self._progress = Progress()
        self._reader = PartitionReader(self._router, self._config)
        self._member = new_member(self._router, self._config, self._subscription)
        group_id = self._config.group_id
        self._callbacks = Callbacks(group_id, assigned=on_assigned, revoked=on_revoked, lost=on_lost)
        self._commits = Commits(
            self._router, group_id, self._member.identity, self._progress, self._member.doubt
        )
        self._metrics = self._commits.metrics = self._reader.registry
        self._commits.work_units = self._reader.work_units
        self._auto = AutoCommit(self._config, self._commits, self._reader, self._progress)
        self._starts = StartOffsets(self._router, self._config, self._reader, self._progress, self._auto)
        self._taken: Taken | None = None
        self._read_by: dict[str, int] = {}
        self._closing = False
        self._closed = False
        self._process_id = os.getpid()
        weakref.finalize(self, self._member.abandon).atexit = False
        weakref.finalize(self, self._commits.abandon).atexit = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else repr(self._member.membership)
        return f"<GroupConsumer of {self._subscription} in {self._config.group_id}: {state}>"

    # Reading.

    def read(self, timeout: float | None = None) -> FetchedRecords | None:
        """The next records of any partition as columns; None after ``timeout`` seconds (None: never).

        Raises what the group or a partition can't go on with: `BrokerError` (not authorized, fenced),
        `OffsetOutOfRangeError` with ``auto_offset_reset="none"``, and as `PartitionReader`.
        """
        return self._polled(timeout, self._reader.read_columns)

    def __iter__(self) -> Self:
        """The records one by one, for ever."""
        return self

    def __next__(self) -> Record:
        record = self._polled(None, self._reader.next_record)
        assert record is not None  # it waits for ever
        return record

    def fetch_record(self, timeout: float | None = None) -> Record | None:
        """The next record; None after ``timeout`` seconds (None: never). Raises as `read`."""
        return self._polled(timeout, self._reader.next_record)

    def poll(self, timeout: float | None = None, max_records: int | None = None) -> list[Record]:
        """The next records: waits for the first, for ``timeout`` seconds (None: for ever), and takes those
        that are there, up to ``max_records`` (None: ``max_poll_records``). An empty list after the timeout.
        Raises as `read`.
        """
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records must be at least 1, not {max_records}")
        return self._polled(timeout, lambda deadline: self._reader.poll(max_records, deadline) or None) or []

    # Where it is.

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member has just now."""
        return self._member.membership.owned

    @property
    def topics(self) -> frozenset[str]:
        """The topics that it is subscribed to; of a pattern, those that match so far."""
        return self._member.membership.topics

    def metrics(self) -> MetricsSnapshot:
        """What was counted and measured so far: `MetricsSnapshot.since` an earlier one tells the time in
        between."""
        return self._reader.metrics(
            [
                Observed(metric.REBALANCES, self._member.membership.rebalances),
                Observed(metric.ASSIGNED_PARTITIONS, len(self.assignment)),
            ]
        )

    def work_units(self, capacity: int = 1_000) -> EventStream[WorkUnit]:
        """As `Consumer.work_units`; what was committed is told, too."""
        return self._reader.work_units.subscribe(capacity)

    # The subscription.

    @closed_late
    def subscribe(self, topics: Topics) -> None:
        """Read these topics instead; the group rebalances, and what is not among them is given up. Nothing of
        that is handed out any more, though it may have been fetched.
        """
        self._subscription.change(topics)
        self._withhold_unwanted()
        self._member.look()

    def add_topics(self, *topics: str) -> None:
        """Read these topics too. Not with a pattern."""
        self.subscribe(self._subscription.named().union(topics))

    def remove_topics(self, *topics: str) -> None:
        """Read these topics no more. Not with a pattern."""
        self.subscribe(self._subscription.named().difference(topics))

    def _withhold_unwanted(self) -> None:
        """Partitions stay this member's until the group has rebalanced."""
        self._starts.withhold(tp for tp in self.assignment if not self._subscription.includes(tp.topic))

    # The end.

    def close(self) -> None:
        """Commit what is done, leave the group, end. A static member stays in it for its session timeout.

        While an exception is on its way (``finally: consumer.close()``), what was handed out last counts as
        not done, and is read again. So it does where the handler of a signal closes the consumer; within one
        of its calls, it is closed as that call ends, and a read raises `ConsumerClosedError`.
        """
        if threading.get_ident() in self._callers and not self._callbacks.running:
            self._close_asked = True
        else:
            self._close(done=sys.exception() is None and not within_handler())

    def _close_late(self) -> None:
        self._close(done=False)

    def _close(self, *, done: bool) -> None:
        if self._closed or self._closing:  # a callback may say it, too
            return
        if self._process_id != os.getpid():  # the membership is the parent's
            self._closed = True
            return
        self._closing = True
        deadline = Deadline.after_ms(LEAVE_MS)
        try:
            self._give_up_all(done=done)
        finally:
            self._closed = True
            try:
                self._starts.stop_looking()
                self._reader.close()
                self._member.stop(deadline)
            finally:  # also after an interrupt: a second `close` does nothing
                self._commits.stop()
                self._router.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What happens within a read.

    def _polled(self, timeout: float | None, take: Callable[[Deadline], T | None]) -> T | None:
        self._check_open()
        taken = self._read_on(timeout, take)
        if self._close_asked:  # what was taken is given back
            raise ConsumerClosedError("the consumer was closed by a signal's handler")
        return taken

    @single_reader
    @closed_late
    def _read_on(self, timeout: float | None, take: Callable[[Deadline], T | None]) -> T | None:
        if self._callbacks.running:
            raise RuntimeError("a read within a callback of the same consumer: return from it first")
        if self._subscription.empty:
            raise ConfigError(f"{self!r} has nothing to read: call subscribe() first, or give topics")
        self._taken = None
        try:
            self._member.poll_begins()
            deadline = Deadline(float("inf")) if timeout is None else Deadline.after_ms(timeout * 1000)
            while True:
                self._follow(deadline)
                taken = self._taken = take(deadline.within_ms(SLICE_MS))
                if taken is not None and not self._member.membership.losing:
                    self._note(taken)
                    self._member.poll_ends()
                    return taken
                if deadline.expired or self._close_asked:
                    self._member.poll_ends()
                    return None
        except BaseException:
            self._give_back()
            self._member.poll_ends()
            raise

    def _note(self, taken: Taken) -> None:
        for tp, from_offset, next_offset in _spans(taken):
            if self._progress.handed_out(tp, from_offset, next_offset):
                self._auto.forget([tp])
            self._auto.handed_out(tp, from_offset)

    def _give_back(self) -> None:
        """An interrupt, say: what the caller does not get, or is not done with, is handed out again."""
        if self._taken is None:
            return
        for tp, from_offset, _ in _spans(self._taken):
            if tp in self._reader.partitions:
                self._reader.seek(tp, from_offset)
                self._progress.given_back(tp, from_offset)

    def _follow(self, deadline: Deadline) -> None:
        """Do what the group wants; the caller is done with everything that it was given."""
        self._auto.caller_is_back()
        while self._member.attention:
            if (failure := self._member.membership.failure) is not None:
                if (change := self._member.begin()) is not None:
                    self._lose(change)
                raise failure
            change = self._member.begin()
            if change is None:
                return
            self._carry_out(change)
        if self._starts.missing:
            self._starts.find(deadline)

    def _carry_out(self, change: Change) -> None:
        if change.lost:
            self._lose(change)
            return
        try:
            if change.revoked:
                self._settle(change.revoked)
        finally:
            self._remove(change.revoked)
            self._starts.add(change.assigned)
            self._member.applied(change)
            self._withhold_unwanted()
            self._metrics.count(metric.PARTITION_CHANGES, len(change.revoked), "revoked")
            self._metrics.count(metric.PARTITION_CHANGES, len(change.assigned), "assigned")
            if change.assigned and not self._closing:  # also where the other callback raised
                self._callbacks.tell(self, "assigned", change.assigned)

    def _settle(self, revoked: Collection[TopicPartition]) -> None:
        """Before others have them: commit, and let the caller do so."""
        self._auto.commit_now(self._settling(), all_done=True)
        self._callbacks.tell(self, "revoked", revoked)
        self._commits.drain(self._settling())

    def _lose(self, change: Change) -> None:
        self._remove(change.lost)
        self._metrics.count(metric.PARTITION_CHANGES, len(change.lost), "lost")
        self._member.applied(change)
        self._callbacks.tell(self, "lost", change.lost)

    def _remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            self._starts.remove(topic_partition)
        self._auto.forget(topic_partitions)
        self._progress.drop(topic_partitions)

    def _give_up_all(self, *, done: bool) -> None:
        """Before leaving: as if all were revoked, or lost where they are."""
        owned = self.assignment
        if not done:  # so that `commit` in on_revoked does not commit it either
            self._commits.drain(Deadline.after_ms(LEAVE_MS))
            self._give_back()
        if self._member.identity() is None:
            self._remove(owned)
            if owned:
                self._callbacks.tell(self, "lost", owned)
            return
        try:
            self._auto.commit_now(Deadline.after_ms(LEAVE_MS), all_done=done)
            if rest := owned - self._callbacks.revoking:  # of the others, it is on_revoked that closes
                self._callbacks.tell(self, "revoked", rest)
            self._commits.drain(Deadline.after_ms(LEAVE_MS))
        finally:
            self._remove(owned)

    def _check_open(self) -> None:
        if self._process_id != os.getpid():  # its threads and its place in the group are the parent's
            raise ConsumerClosedError(
                "the consumer was made in another process (before a fork); make one in this process"
            )
        if self._closed:
            raise ConsumerClosedError("the consumer is closed")


def _spans(taken: Taken) -> Iterable[tuple[TopicPartition, int, int]]:
    """Of each partition where what was taken begins, and what comes next."""
    if isinstance(taken, Record):
        return ((taken.topic_partition, taken.offset, taken.offset + 1),)
    if isinstance(taken, FetchedRecords):
        return ((taken.topic_partition, taken.from_offset, taken.next_offset),)
    found: dict[TopicPartition, tuple[int, int]] = {}
    for place, run in groupby(taken, key=itemgetter(0, 1)):  # topic and partition
        topic_partition, offsets = TopicPartition(*place), [record.offset for record in run]
        first, _ = found.get(topic_partition, (offsets[0], None))
        found[topic_partition] = first, offsets[-1] + 1
    return [(topic_partition, *span) for topic_partition, span in found.items()]
