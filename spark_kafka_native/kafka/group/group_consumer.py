"""`GroupConsumer`: one of several consumers that share the partitions of some topics.

Two threads assist it: that of `MembershipThread` keeps it in the group, that of `PartitionReader` fetches
ahead. Partitions come and go only in the caller's thread, when it comes back for more (`Rebalance`).
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from ..cluster.offsets import list_offsets
from ..cluster.router import Router
from ..config.client_config import Bootstrap, configs_from
from ..consumer.fetched_records import FetchedRecords, WorkUnit
from ..consumer.partition_reader import PartitionReader, single_reader
from ..consumer.typed_records import FormatLike, TypedRecords
from ..errors import CommitFailedError, ConfigError, ConsumerClosedError, DeadlineExceededError, KafkaError
from ..model import GroupMembership, OffsetAt, Record, TopicPartition, checked_offset
from ..observe import catalogue as metric
from ..observe.events import EventStream
from ..observe.metrics import MetricsSnapshot, Observed
from ..runtime.deadline import Deadline
from ..runtime.signal_safe_close import closed_late, within_handler
from .commits import CommitQueue, Commits, partitions_named
from .committed_offsets import committed_offsets
from .group_config import GroupConfig, Subscription, Topics
from .membership_thread import new_member
from .progress import Progress
from .rebalance import OnChange, Rebalance, RebalanceCallbacks
from .start_offsets import StartOffsets

if TYPE_CHECKING:
    from ..producer.transactional_producer import TransactionalProducer

SLICE_MS = 50
"""How often a read that waits for records looks for a change that the group demands."""
AWAIT_S = 0.001
"""How often `close` looks for the end of a read, or of another `close`, in another thread."""

Taken = Record | FetchedRecords | TypedRecords | list[Record]
T = TypeVar("T", Record, FetchedRecords, TypedRecords, list[Record])

OnPartitions = Callable[["GroupConsumer", list[TopicPartition]], object]
"""Called with the consumer and the partitions concerned, in the caller's thread, from within a read."""


class GroupConsumer:
    """Reads its share of some topics, together with the other members of its group.

    ``bootstrap`` says how to reach the cluster, ``topics`` is a name, several, or a compiled pattern that
    whole names match; without ``topics`` it joins the group at the first `subscribe`. ``group`` is the id of
    the group or a `GroupConfig`. Keywords are the fields of `GroupConfig`, `ClientConfig` and
    `SecurityConfig`. For one thread at a time: a read while another thread is in one raises `RuntimeError`.

    **At least once.** With ``enable_auto_commit`` everything that was handed out is committed once the caller
    comes back for more (in the background every ``auto_commit_interval_ms``; with 0, before anything else is
    handed out: a read that times out first returns nothing), and before its partitions go to another
    member. Without it, only `commit` commits. If a consumer dies, other members read again what it did not
    commit.

    ``on_assigned``, ``on_revoked`` and ``on_lost`` are called from within a read, or `close`. In
    ``on_revoked`` the partitions are still assigned to this consumer: finished records can be committed. The
    partitions in ``on_lost`` may already be read by other members.
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
        self._callers: set[int] = set()
        self._close_asked: set[int] = set()
        self._subscription = Subscription(topics)
        self._router = Router(client)
        self._reader = PartitionReader(self._router, self._config)
        self._member = new_member(self._router, self._config, self._subscription)
        self._commits = self._new_commits()
        self._starts = StartOffsets(self._router, self._config, self._reader, self._commits)
        callbacks = RebalanceCallbacks(
            self._config.group_id,
            assigned=_weakly_bound(self, on_assigned),
            revoked=_weakly_bound(self, on_revoked),
            lost=_weakly_bound(self, on_lost),
        )
        self._rebalance = Rebalance(
            self._member, self._subscription, self._commits, self._starts, callbacks, self._reader.registry
        )
        self._taken: Taken | None = None
        self._counted = 0
        """`Progress.counted` before these records."""
        self._read_by: dict[str, int] = {}
        self._undelivered: Taken | None = None
        self._last_reader: threading.Thread | None = None
        self._handled: BaseException | None = None
        """Of a read within an ``except``: the exception of that, which says nothing about the records."""
        self._closed = False
        self._closer: threading.Thread | None = None
        """The one that is closing this consumer."""
        weakref.finalize(self, self._member.abandon).atexit = False
        weakref.finalize(self, self._commits.queue.abandon).atexit = False
        self._commits.queue.start()
        self._member.thread.start()  # last: an interrupt before would leave a member that nothing ends

    def _new_commits(self) -> Commits:
        progress = Progress()
        queue = CommitQueue(self._router, self._config, self._member.identity, progress, self._member.doubt)
        queue.metrics = self._reader.registry
        queue.work_units = self._reader.work_units
        reader = self._reader
        queue.topic_ids = lambda: reader.topic_ids  # no reference to the consumer, which would not be freed
        queue.leader_epochs = reader.leader_epochs
        return Commits(self._config, queue, self._reader, progress)

    def __repr__(self) -> str:
        state = "closed" if self._closed else repr(self._member.membership)
        return f"<GroupConsumer of {self._subscription} in {self._config.group_id}: {state}>"

    # Reading.

    @overload
    def read(self, timeout: float | None = None) -> FetchedRecords | None: ...

    @overload
    def read(
        self,
        timeout: float | None = None,
        *,
        value_format: FormatLike,
        key_format: FormatLike | None = None,
        mode: str = "failfast",
    ) -> TypedRecords | None: ...

    @overload
    def read(
        self, timeout: float | None = None, *, key_format: FormatLike, mode: str = "failfast"
    ) -> TypedRecords | None: ...

    def read(
        self,
        timeout: float | None = None,
        *,
        value_format: FormatLike | None = None,
        key_format: FormatLike | None = None,
        mode: str = "failfast",
    ) -> FetchedRecords | TypedRecords | None:
        """The next records of any partition as columns; None after ``timeout`` seconds (None: never).

        With a format, decoded, as `Consumer.read_columns`; records left out with ``mode="dropmalformed"``
        count as handed out.

        Raises errors after which the group or a partition cannot continue: `BrokerError` (not authorized,
        fenced), `OffsetOutOfRangeError` with ``auto_offset_reset="none"``, and as `PartitionReader`.
        """
        if value_format is None is key_format:
            return self._polled(timeout, self._reader.read_columns)
        formats = {"key": key_format, "value": value_format}
        # No `partial`: an interrupt may come between the return of a call out of C and its caller.
        return self._polled(timeout, lambda deadline: self._reader.read_typed(formats, mode, deadline))

    def __iter__(self) -> Iterator[Record]:
        """The records one by one, without end. The iterator has no `close`, which Python calls at the end of
        a generator with ``yield from consumer`` (PEP 380): the record that it was left with would be done.
        """
        return iter(self.__next__, None)

    def __next__(self) -> Record:
        record = self._polled(None, self._reader.next_record)
        assert record is not None  # it waits without a limit
        return record

    def fetch_record(self, timeout: float | None = None) -> Record | None:
        """The next record; None after ``timeout`` seconds (None: never). Raises as `read`."""
        return self._polled(timeout, self._reader.next_record)

    def poll(self, timeout: float | None = None, max_records: int | None = None) -> list[Record]:
        """The next records: waits for the first, for ``timeout`` seconds (None: without a limit), and takes
        those that are available, up to ``max_records`` (None: ``max_poll_records``). An empty list after the
        timeout. Raises as `read`.
        """
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records must be at least 1, not {max_records}")
        return self._polled(timeout, lambda deadline: self._reader.poll(max_records, deadline) or None) or []

    # Assignment and positions.

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned to this member now; none once it is closed."""
        return frozenset() if self._closed else self._member.membership.owned

    @property
    def topics(self) -> frozenset[str]:
        """The topics that it is subscribed to; of a pattern, those that match so far."""
        return self._member.membership.topics

    @closed_late
    def position(self, topic_partition: TopicPartition) -> int | None:
        """The offset that is handed out next; None while it is not known where to start."""
        self._check_open()
        self._check_assigned(topic_partition)
        if topic_partition in self._starts.missing:
            return None
        return self._reader.position(topic_partition)

    @closed_late
    def committed(
        self, *topic_partitions: TopicPartition, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """The group's committed offsets of these partitions (none: of those of this member): the offset of
        the next record to read, None where the group has committed nothing.

        Asks the coordinator, which waits for transactions that are still ending. Raises
        `DeadlineExceededError` after ``timeout`` seconds (default: ``default_api_timeout_ms``).
        """
        self._check_open()
        wanted = topic_partitions or tuple(self.assignment)
        if not wanted:
            return {}
        deadline = self._router.deadline(None if timeout is None else timeout * 1000)
        return committed_offsets(self._router, self._config.group_id, wanted, deadline)

    @closed_late
    def lag(self) -> dict[TopicPartition, int]:
        """The number of offsets between `position` and the end, for each partition of this member only; not
        for those without a `position`.

        The other members have their own. `Admin` returns the lag of the whole group, from committed offsets.
        """
        self._check_open()
        positions = self._reader.positions(self._reader.partitions)
        places = dict.fromkeys(positions, OffsetAt.LATEST)
        ends = list_offsets(self._router, places, isolation_level=self._config.isolation_level)
        return {tp: max(0, (ends[tp].offset or 0) - position) for tp, position in positions.items()}

    @closed_late
    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAt) -> None:
        """Continue at ``offset`` in a partition of this member, as long as the partition is assigned to it.
        The group's committed offset does not change until the next commit: seek and commit to move the group.
        With automatic commits, the records that were handed out before ``offset`` count as done.
        """
        self._check_open()
        self._check_assigned(topic_partition)
        if isinstance(offset, OffsetAt):
            offset = self._starts.offset_of(topic_partition, offset)
        offset = checked_offset(offset)
        kept = self._commits.sought(topic_partition, offset)
        self._starts.seek(topic_partition, offset, kept)

    @closed_late
    def seek_to_committed(self) -> None:
        """Go back to the committed offsets, in all partitions of this member: records that were handed out
        and not committed are handed out again. For use after a transaction was aborted, before the next read.

        Nothing that was read before is handed out any more. The next read asks for the committed offsets; it
        waits for transactions that are still ending, and first follows a rebalance: `position` is None until
        then. Where nothing is committed, reading continues where it began with this assignment, or with the
        last `seek`. A partition with a `TopicRecreatedError` stays where it is, and the error is raised until
        `seek`; so is a `LogTruncatedError` of a log that was cut back before the place to go back to. Commits
        in flight are waited for; raises `RuntimeError` in a callback of one.
        """
        self._check_open()
        self._commits.queue.raise_if_callback("seek_to_committed()")
        recreated = self._reader.recreated
        partitions = self.assignment - recreated
        self._starts.add(partitions)  # first: wherever an interrupt comes, the next read goes back
        self._commits.queue.drain(self._commits.queue.settle_deadline())
        self._taken = None
        self._starts.drop_missing()  # before their progress is forgotten: their resets count
        self._commits.restart(partitions)
        for topic_partition in recreated & self._reader.partitions.keys():
            self._reader.drop(topic_partition)

    @closed_late
    def pause(self, *topic_partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`, or until they are assigned anew."""
        self._check_open()
        for topic_partition in topic_partitions:
            self._check_assigned(topic_partition)
            self._starts.pause(topic_partition)

    @closed_late
    def resume(self, *topic_partitions: TopicPartition) -> None:
        """Continue with partitions that were paused."""
        self._check_open()
        for topic_partition in topic_partitions:
            self._check_assigned(topic_partition)
            self._starts.resume(topic_partition)

    def metrics(self) -> MetricsSnapshot:
        """All counts and measurements so far; `MetricsSnapshot.since` an earlier snapshot returns those in
        between."""
        return self._reader.metrics(
            [
                Observed(metric.REBALANCES, self._member.membership.rebalances),
                Observed(metric.ASSIGNED_PARTITIONS, len(self.assignment)),
            ]
        )

    def work_units(self, capacity: int = 1_000) -> EventStream[WorkUnit]:
        """As `Consumer.work_units`, with an event for each commit, too."""
        return self._reader.work_units.subscribe(capacity)

    # The subscription.

    @closed_late
    def subscribe(self, topics: Topics) -> None:
        """Read these topics instead. The group rebalances, and partitions of other topics are given up; their
        records are not handed out any more, even if they have been fetched.
        """
        self._check_open()
        self._subscription.change(topics)
        self._rebalance.withhold_unsubscribed()
        self._member.look()

    def add_topics(self, *topics: str) -> None:
        """Subscribe to these topics, too. Not with a pattern."""
        self.subscribe(self._subscription.named().union(topics))

    def remove_topics(self, *topics: str) -> None:
        """Unsubscribe from these topics. Not with a pattern."""
        self.subscribe(self._subscription.named().difference(topics))

    # Commits.

    @closed_late
    def commit(
        self,
        *records: Record | Collection[Record],
        offsets: Mapping[TopicPartition, int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit ``records`` (or a list of them, which may be empty) and all before them in their partitions,
        ``offsets`` (of the next record to read), or, without either, everything that was handed out.

        Offsets before the last commit are ignored: a commit never goes back, unless reading did, after `seek`
        or by ``auto_offset_reset``. Many thousands of partitions take several requests: after an error, some
        of them may be committed.
        Raises `CommitFailedError` if a partition is not assigned to this consumer any more, or was assigned
        to another one since the record was read; `DeadlineExceededError` after ``timeout`` seconds (default:
        ``default_api_timeout_ms``).
        """
        self._commits.queue.raise_if_callback("commit()")
        done = self.commit_async(*records, offsets=offsets)
        limit_ms = self._router.config.default_api_timeout_ms
        try:
            done.result(limit_ms / 1000 + 1.0 if timeout is None else timeout)
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            raise DeadlineExceededError(
                f"committing in group {self._config.group_id} did not end in time; it goes on"
            ) from None

    @closed_late
    def commit_async(
        self, *records: Record | Collection[Record], offsets: Mapping[TopicPartition, int] | None = None
    ) -> Future[None]:
        """As `commit`, in the background: the future completes with the outcome. Commits keep their order.

        The thread that sends commits calls the future's callbacks, which may not wait for it: `commit`,
        `close` and `seek_to_committed` raise `RuntimeError` there.
        """
        self._check_open()
        given, offsets = _named(records, offsets)
        return self._commits.queue.submit(self._commits.wanted(given, offsets, self._in_work()))

    # Transactions.

    @contextmanager
    def transaction(self, producer: TransactionalProducer) -> Iterator[None]:
        """A transaction of ``producer`` around a block, which also commits what this consumer handed out::

            fetched = consumer.read()
            with consumer.transaction(producer):
                producer.send("bills", value=...)

        If anything raises, including the commit, the transaction is aborted, and the consumer goes back to
        the committed offsets (`seek_to_committed`): the next read hands out the same records again. Raises
        what the block raises, and as `TransactionalProducer.begin`, `offsets_to_commit`, `group_metadata`,
        `TransactionalProducer.send_offsets` and ``commit``.
        """
        self._check_manual()
        try:
            with producer.transaction():
                yield
                producer.send_offsets(self.offsets_to_commit(), self.group_metadata())
            self._taken = None  # they are done, and an exception after that does not give them back
        except BaseException:
            with suppress(ConsumerClosedError):
                self.seek_to_committed()
            raise

    @closed_late
    def offsets_to_commit(
        self, *records: Record | Collection[Record], offsets: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets that `commit` would commit, for `TransactionalProducer.send_offsets`: of each partition
        the offset of the next record to read.

        Raises `CommitFailedError` as `commit`, and where the log was cut back before records that were handed
        out and not committed; in ``on_revoked``, without arguments or with none in them (``[]``), while the
        records of the last read count as not done (`close`). Also, once, if a partition was taken away after
        its records were handed out, and before they were committed or returned here: another member reads
        them again, and what this transaction made of them would count twice. The transaction must be aborted
        then. That does not move the consumer: the records of the transaction are handed out again only after
        `seek_to_committed`.
        """
        self._check_open()
        given, offsets = _named(records, offsets)
        return self._commits.for_transaction(given, offsets, self._in_work)

    @closed_late
    def group_metadata(self) -> GroupMembership:
        """The member id and generation of this consumer now, for `TransactionalProducer.send_offsets`: the
        coordinator refuses the offsets of a member that was replaced since (KIP-447). Offsets that are sent
        with it are checked as by `offsets_to_commit`, because the coordinator does not check the assignment.

        Raises `CommitFailedError` while it is no member: its partitions may be assigned to others by now;
        `ConfigError` with automatic commits, which would commit what the transaction may still abort.
        """
        self._check_open()
        self._check_manual()
        identity = self._member.identity()
        group_id = self._config.group_id
        if identity is None:
            raise CommitFailedError(
                f"this consumer is not in group {group_id} just now: it has not joined yet, or was too slow "
                "or not heard of, and its partitions may be others' by now. What it read must not count: "
                "abort the transaction, call seek_to_committed(), and read on"
            )
        return CheckedMembership(
            checked_by=lambda offsets: self.offsets_to_commit(offsets=offsets),
            epochs_by=self._reader.leader_epochs,
            group_id=group_id,
            generation_id=identity.generation_id,
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
        )

    # The end.

    def close(self) -> None:
        """Commit the records that are done, leave the group, end. A static member remains in it for its
        session timeout.

        While an exception propagates (``finally: consumer.close()``), the records that were handed out last
        count as not done, and are read again. The same applies if a signal handler closes the consumer, or
        another thread than the one that has read them, which does not know of an exception there; in
        ``on_revoked``, `commit` with records or offsets may commit them then. A read in another thread
        ends first, and later ones raise `ConsumerClosedError`. While another thread than the main one closes
        it, waits for the end of that: 30 s at most, 5 s if that is in a callback (not in a handler, nor in a
        callback). A handler that interrupts a call of the consumer closes it at the end of that call, and a
        read raises `ConsumerClosedError`. Raises `RuntimeError` in a callback of `commit_async`.
        """
        error = sys.exception()
        self._close_now_or_late(done=error is None or error is self._handled)

    def _close_now_or_late(self, *, done: bool) -> None:
        self._commits.queue.raise_if_callback("close()")
        here, in_handler = threading.get_ident(), within_handler()
        in_call = here in self._callers
        # A callback holds no lock as it closes the consumer; a call within it that a handler interrupts may.
        if in_call and (in_handler or self._rebalance.callbacks.runs_in != here):
            self._close_asked.add(here)
            return
        self._close(done=done and not in_handler)
        if not in_call and not in_handler:  # the other thread may wait for that call
            self._await_other_close()

    def _close_late(self) -> None:
        self._close(done=False)

    def _close(self, *, done: bool) -> None:
        if self._closed or self._rebalance.leaving:  # a callback may call it, too
            return
        if self._reader.inherited:  # the membership is the parent's
            self._closed = True
            return
        self._closer, self._rebalance.leaving = threading.current_thread(), True
        try:
            self._give_up_all(done=done)
        finally:
            self._closed, self._handled = True, None
            try:
                self._starts.stop_looking()
                self._reader.close()
                self._member.stop(self._rebalance.leave_deadline())
            finally:  # also after an interrupt: a second `close` does nothing
                self._member.abandon()
                self._commits.queue.stop()
                self._router.end(ConsumerClosedError("the consumer is closed"))
                self._closer = None

    def _give_up_all(self, *, done: bool) -> None:
        self._await_other_reader()
        owned, is_reader = self.assignment, self._last_reader in (None, threading.current_thread())
        # An error here says nothing about another thread's records, which may be in a transaction by now.
        if not done if is_reader else self._config.enable_auto_commit:
            # So that neither the last commit nor one in on_revoked contains the records.
            self._commits.queue.drain(self._rebalance.leave_deadline())
            self._last_reader = None  # first: a transaction without their offsets may contain their results
            self._give_back(had=True)
        self._rebalance.give_up(owned)

    def _await_other_reader(self) -> None:
        """Wait until no other thread is in a read, which might still take records and change partitions, and
        commit. Once this consumer is leaving, none begins.
        """
        here, limit = threading.get_ident(), self._rebalance.leave_deadline()
        while self._read_by.get("thread", here) != here and not limit.expired:
            time.sleep(AWAIT_S)

    def _await_other_close(self) -> None:
        """Wait until no other thread is closing this consumer: the program may end then, unless that is its
        main thread. Its ``on_revoked`` may wait for this thread.
        """
        done = None, threading.current_thread(), threading.main_thread()
        limit, in_callback = self._rebalance.close_deadline(), self._rebalance.leave_deadline()
        while self._closer not in done and not self._reader.inherited and not limit.expired:
            if self._rebalance.callbacks.runs_in is not None and in_callback.expired:
                return
            time.sleep(AWAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_now_or_late(done=error is None)

    def _in_work(self) -> dict[TopicPartition, tuple[int, int]]:
        """The records that another thread may be working on, if this one closes the consumer; or this thread,
        if an exception or a signal handler closes it.
        """
        taken = self._taken
        if not self._rebalance.leaving or taken is None or self._last_reader is threading.current_thread():
            return {}
        return {tp: (from_offset, next_offset) for tp, from_offset, next_offset in _spans(taken)}

    # Within a read.

    def _polled(self, timeout: float | None, take: Callable[[Deadline], T | None]) -> T | None:
        self._check_open()
        taken = self._read_on(timeout, take)
        # No call, unless a handler has closed it: an interrupt would lose the records.
        if self._close_asked and threading.get_ident() in self._close_asked:  # they are given back
            raise ConsumerClosedError("the consumer was closed by a signal's handler")
        return taken

    @single_reader
    @closed_late
    def _read_on(self, timeout: float | None, take: Callable[[Deadline], T | None]) -> T | None:
        self._check_staying()
        if self._rebalance.callbacks.runs_in is not None:
            raise RuntimeError("a read within a callback of the same consumer: return from it first")
        if self._subscription.empty:
            raise ConfigError(f"{self!r} has nothing to read: call subscribe() first, or give topics")
        self._taken, self._handled, self._last_reader = None, sys.exception(), threading.current_thread()
        try:
            self._member.poll_begins()
            deadline = Deadline(float("inf")) if timeout is None else Deadline.after_ms(timeout * 1000)
            while True:
                self._rebalance.follow(deadline)
                self._counted = self._commits.progress.counted
                may_go_on = self._commits.may_go_on(deadline.within_ms(SLICE_MS))
                self._check_staying()  # before: a commit in another thread would contain the records
                taken = self._taken = self._undelivered = (
                    take(deadline.within_ms(SLICE_MS)) if may_go_on else None
                )
                self._check_staying()
                if taken is not None and not self._member.membership.losing:
                    for tp, from_offset, next_offset in _spans(taken):
                        self._commits.handed_out(tp, from_offset, next_offset)
                    self._member.poll_ends()
                    return taken
                self._taken = None  # lost with its partitions, which may come again at another offset
                if deadline.expired or threading.get_ident() in self._close_asked:
                    self._member.poll_ends()
                    return None
        except BaseException:
            self._give_back()
            self._member.poll_ends()
            raise

    def _take_back(self) -> None:
        if self._undelivered is not None:
            self._give_back()

    def _give_back(self, *, had: bool = False) -> None:
        """Hand out again what the caller did not get, or ``had`` and is not done with, for example after an
        interrupt. Not where the caller has moved the partition itself."""
        taken = self._taken  # another thread may end a transaction with them
        if taken is None:
            return
        progress = self._commits.progress
        counted = progress.counted - self._counted  # an interrupt may have come before the rest
        for at, (tp, from_offset, _) in enumerate(_spans(taken)):
            if self._reader.give_back(tp, from_offset) and at < counted:
                progress.given_back(tp, from_offset, had=had)

    def _check_open(self) -> None:
        self._reader.check_process()
        if self._closed:
            raise ConsumerClosedError("the consumer is closed")

    def _check_staying(self) -> None:
        if self._rebalance.leaving:  # also once it is closed
            raise ConsumerClosedError("the consumer is closed")

    def _check_assigned(self, topic_partition: TopicPartition) -> None:
        if topic_partition not in self.assignment:
            assigned = partitions_named(self.assignment)
            raise ValueError(f"{topic_partition} is not assigned to this consumer: {assigned} are")

    def _check_manual(self) -> None:
        if self._config.enable_auto_commit:
            raise ConfigError("offsets in transactions take enable_auto_commit=False: both would commit them")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMembership(GroupMembership):
    """The membership of a consumer in this process, which checks offsets against what it has handed out."""

    checked_by: Callable[[Mapping[TopicPartition, int]], object] = field(compare=False, repr=False)
    epochs_by: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]] = field(
        compare=False, repr=False
    )

    def check(self, offsets: Mapping[TopicPartition, int]) -> None:
        """As `GroupMembership.check`: raises `CommitFailedError` as `GroupConsumer.offsets_to_commit`."""
        self.checked_by(offsets)

    def leader_epochs(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """As `GroupMembership.leader_epochs`: those of the records that were read."""
        return self.epochs_by(offsets)

    def __reduce__(self) -> tuple[Callable[[], GroupMembership], tuple[()]]:
        """In another process, where there is no such consumer, it is a plain membership."""
        plain = partial(
            GroupMembership,
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
        )
        return plain, ()


def _named(
    given: tuple[Record | Collection[Record], ...], offsets: Mapping[TopicPartition, int] | None
) -> tuple[list[Record], Mapping[TopicPartition, int] | None]:
    """The records that a caller of `commit` named, one by one or as lists, and the offsets: an empty list
    names none, where no argument stands for all that was handed out. Raises `TypeError`.
    """
    records: list[Record] = []
    for one in given:
        if isinstance(one, Record):
            records.append(one)
            continue
        if isinstance(one, Mapping):
            raise TypeError("offsets are given by name: commit(offsets={TopicPartition(...): 42})")
        records += one
        offsets = offsets or {}
    if odd := [one for one in records if not isinstance(one, Record)]:
        raise TypeError(f"commit() takes records that were read, not {odd[0]!r}")
    return records, offsets


def _weakly_bound(consumer: GroupConsumer, callback: OnPartitions | None) -> OnChange | None:
    """``callback`` with the consumer as its first argument. The reference is weak: in a cycle, a consumer
    that the caller has dropped would remain in its group until the garbage collector runs.
    """
    if callback is None:
        return None
    reference = weakref.ref(consumer)

    def call(topic_partitions: list[TopicPartition]) -> None:
        if (alive := reference()) is not None:
            callback(alive, topic_partitions)

    return call


def _spans(taken: Taken) -> Iterable[tuple[TopicPartition, int, int]]:
    """For each partition, the offset where the taken records begin, and the next offset after them."""
    if isinstance(taken, Record):
        return ((taken.topic_partition, taken.offset, taken.offset + 1),)
    if isinstance(taken, FetchedRecords | TypedRecords):
        return ((taken.topic_partition, taken.from_offset, taken.next_offset),)
    found: dict[TopicPartition, tuple[int, int]] = {}
    for place, run in groupby(taken, key=itemgetter(0, 1)):  # topic and partition
        topic_partition, offsets = TopicPartition(*place), [record.offset for record in run]
        first, _ = found.get(topic_partition, (offsets[0], None))
        found[topic_partition] = first, offsets[-1] + 1
    return [(topic_partition, *span) for topic_partition, span in found.items()]
