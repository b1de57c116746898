"""`Progress`: what of each partition was handed out in this assignment, and what the group has of it.

It decides what a commit may say; it does no I/O. Any thread may use it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from ..cluster.coordinators import ask_coordinator
from ..cluster.router import CoordinatorKey, Router
from ..consumer.consumer_events import WorkStatus, WorkUnit
from ..consumer.partition_reader import PartitionReader
from ..error_code import ErrorCode
from ..errors import BrokerError, CommitFailedError, KafkaError
from ..model import TopicPartition
from ..observe import catalogue as metric
from ..observe.events import EventSource
from ..observe.metrics import MetricsRegistry, error_tag
from ..runtime.deadline import Deadline
from ..runtime.retry import Backoff, is_retriable, retry
from ..runtime.waiting import LocklessCondition
from .committed_offsets import build_offset_commit, read_offset_commit
from .group_config import GroupConfig
from .membership import Identity


@dataclass(slots=True)
class _Partition:
    start: int
    """Where reading began, with this assignment or the last `seek`."""
    handed_out: int
    """The offset behind the last record that the caller was given."""
    committed: int | None
    """What the group has; None where that is not to be compared with (nothing, or the caller sought)."""
    told: int = 0
    """What was told for a transaction: whether it was committed, only the caller knows."""

    @property
    def open(self) -> bool:
        """Whether the caller was given records that it neither committed nor asked to commit."""
        return self.handed_out > max(self.start, self.committed or 0, self.told)


class Progress:
    """One for each consumer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._dropped_open: set[TopicPartition] = set()

    def begin(self, topic_partition: TopicPartition, start: int, committed: int | None) -> None:
        """A partition is read from ``start`` on."""
        with self._lock:
            self._partitions[topic_partition] = _Partition(start, start, committed)

    def handed_out(self, topic_partition: TopicPartition, from_offset: int, next_offset: int) -> bool:
        """The caller was given everything in ``[from_offset, next_offset)``.

        Returns whether reading has gone back, as ``auto.offset.reset`` says where the log lacks what was
        committed or read. Commits go back with it: others would go on from where the log was, and skip what
        has come up to there since.
        """
        with self._lock:
            partition = self._partitions.get(topic_partition)
            if partition is None:
                return False
            if back := from_offset < partition.handed_out:
                self._partitions[topic_partition] = _Partition(from_offset, next_offset, None)
            else:
                partition.handed_out = max(partition.handed_out, next_offset)
            return back

    def given_back(self, topic_partition: TopicPartition, offset: int) -> None:
        """The caller was not given what begins at ``offset`` after all, and gets it again."""
        with self._lock:
            partition = self._partitions.get(topic_partition)
            if partition is not None:
                partition.handed_out = max(partition.start, min(partition.handed_out, offset))

    def sought(self, topic_partition: TopicPartition, offset: int) -> None:
        """The caller goes on from ``offset``, and may commit what lies before the last commit."""
        with self._lock:
            if topic_partition in self._partitions:
                self._partitions[topic_partition] = _Partition(offset, offset, None)

    def restart(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They will be begun anew where the group has come to; until then nothing of them can be committed.

        What was made of their records counts no more, nor of others' that were dropped.
        """
        with self._lock:
            for topic_partition in topic_partitions:
                self._partitions.pop(topic_partition, None)
            self._dropped_open.clear()

    def drop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are read no more."""
        with self._lock:
            for topic_partition in topic_partitions:
                partition = self._partitions.pop(topic_partition, None)
                if partition is not None and partition.open:
                    self._dropped_open.add(topic_partition)

    def dropped_open(self) -> frozenset[TopicPartition]:
        """What was dropped, since this was asked last, after records that were handed out and not committed:
        others read them again.
        """
        with self._lock:
            found, self._dropped_open = self._dropped_open, set()
            return frozenset(found)

    def told(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A transaction is to commit them."""
        with self._lock:
            for topic_partition, offset in offsets.items():
                if (partition := self._partitions.get(topic_partition)) is not None:
                    partition.told = offset

    def check(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises `CommitFailedError` where an offset is not behind records that were handed out since the
        partition was assigned: they belong to an older generation, or were never read.
        """
        with self._lock:
            for topic_partition, offset in offsets.items():
                partition = self._partitions.get(topic_partition)
                if partition is None:
                    raise CommitFailedError(
                        f"{topic_partition} is not assigned to this consumer (any more): offset {offset} was "
                        "not committed, and another one may read the records before it again"
                    )
                if not partition.start <= offset <= partition.handed_out:
                    raise CommitFailedError(
                        f"{topic_partition}: offset {offset} was not committed, as since the partition was "
                        f"assigned only offsets {partition.start} to {partition.handed_out} were read; the "
                        "record is of an earlier assignment, and others may have gone on since"
                    )

    def ahead(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those that are ahead of what the group has: a commit never goes back."""
        with self._lock:
            found = {}
            for topic_partition, offset in offsets.items():
                partition = self._partitions.get(topic_partition)
                if partition is None or partition.committed is None or offset > partition.committed:
                    found[topic_partition] = offset
            return found

    def spans(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """What committing ``offsets`` adds to what the group has, or to where reading began."""
        with self._lock:
            found = {}
            for topic_partition, offset in offsets.items():
                if (partition := self._partitions.get(topic_partition)) is not None:
                    begin = partition.start if partition.committed is None else partition.committed
                    found[topic_partition] = (min(begin, offset), offset)
            return found

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group has them. What was on its way when the caller sought says nothing of what comes after."""
        with self._lock:
            for topic_partition, offset in offsets.items():
                partition = self._partitions.get(topic_partition)
                if partition is not None and partition.start <= offset <= partition.handed_out:
                    partition.committed = offset


_LOG = logging.getLogger("spark_kafka_native.group")

Offsets = Mapping[TopicPartition, int]

UNKNOWN_TOPIC_MS = 3_000
"""A coordinator that does not know a topic for so long: it was deleted, and the others' commits wait."""

_AGAIN = frozenset((ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH))
"""The generation changes just now, and the partitions are still ours: again, as a member of the new one."""

_TOO_LATE = frozenset(
    (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    )
)


@dataclass(frozen=True, slots=True)
class _Wanted:
    offsets: dict[TopicPartition, int]
    done: Future[None]


class Commits:
    """Ask from any thread."""

    def __init__(
        self,
        router: Router,
        group_id: str,
        identity: Callable[[], Identity | None],
        progress: Progress,
        doubt: Callable[[Identity], None],
    ) -> None:
        """``identity`` says as whom to commit; ``doubt`` hears of one that the coordinator has refused."""
        self._router = router
        self._group_id = group_id
        self._key = CoordinatorKey.group(group_id)
        self._identity = identity
        self._progress = progress
        self._doubt = doubt
        self.metrics = MetricsRegistry()
        """Where commits are counted."""
        self.work_units: EventSource[WorkUnit] = EventSource()
        """Where they are told."""
        self._wanted: deque[_Wanted] = deque()
        self._last: Future[None] | None = None
        self._condition = LocklessCondition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def ask(self, offsets: Offsets) -> Future[None]:
        """Commit ``offsets`` in the background; the future ends with what came of it."""
        wanted = _Wanted(dict(offsets), Future())
        wanted.done.set_running_or_notify_cancel()
        if not offsets:
            wanted.done.set_result(None)
            return wanted.done
        self._last = wanted.done
        self._wanted.append(wanted)
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="kafka-group-commits", daemon=True)
                self._thread.start()
        self._condition.notify_all()
        return wanted.done

    def drain(self, deadline: Deadline) -> None:
        """Wait until everything that was asked for has ended, or for ``deadline``."""
        last = self._last
        if last is not None:
            concurrent.futures.wait([last], deadline.remaining_ms / 1000)

    def abandon(self) -> None:
        """End, once what was asked for has ended."""
        self._stopping = True
        self._condition.notify_all()

    def stop(self) -> None:
        """End; what is tried again is not any more."""
        self.abandon()
        if self._thread is not None:
            self._thread.join(1.0)

    def _work(self) -> None:
        while True:
            self._condition.wait_for(lambda: bool(self._wanted) or self._stopping, None)
            if self._stopping and not self._wanted:
                return
            wanted = self._wanted.popleft()
            began, failure = time.monotonic(), None
            try:
                self._commit(wanted.offsets)
            except KafkaError as error:
                failure = error
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear of a bug
                failure = KafkaError(f"committing failed: {error!r}")
            self._count(failure, time.monotonic() - began)
            if failure is None:
                wanted.done.set_result(None)
            else:
                wanted.done.set_exception(failure)

    def _count(self, failure: KafkaError | None, seconds: float) -> None:
        outcome = "committed" if failure is None else error_tag(failure)
        self.metrics.count(metric.COMMITS, 1, outcome)
        self.metrics.measure(metric.COMMIT_DURATION, seconds, outcome)

    def _commit(self, offsets: Offsets) -> None:
        limit = self._router.deadline()
        client = self._router.config
        in_doubt = Deadline.after_ms(UNKNOWN_TOPIC_MS)

        def again(error: KafkaError) -> bool:
            if isinstance(error, BrokerError) and error.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return not in_doubt.expired
            return not self._stopping and _again(error)

        retry(
            lambda: self._attempt(offsets, limit),
            what=f"committing offsets in group {self._group_id}",
            deadline=limit,
            backoff=Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms),
            retriable=again,
            between=lambda error: self._router.coordinators.learn(self._key, error),
        )

    def _attempt(self, offsets: Offsets, deadline: Deadline) -> None:
        """One attempt, as who this consumer is now: each looks anew whether the partitions are still its."""
        # First of all: as a member of a later generation, it might commit what was checked for this one.
        identity = self._identity()
        self._progress.check(offsets)
        ahead = self._progress.ahead(offsets)
        if not ahead:
            return
        if identity is None:
            raise CommitFailedError(
                f"this consumer is not in group {self._group_id} just now (it was too slow, or not heard of, "
                f"and its partitions may be others' by now): {_shown(ahead)} were not committed"
            )
        request = build_offset_commit(self._group_id, ahead, identity)
        try:
            response = ask_coordinator(self._router, self._key, request, deadline)
            read_offset_commit(response, self._group_id, ahead)
        except BrokerError as error:
            if error.error_code not in _TOO_LATE:
                raise
            if self._identity() not in (identity, None):
                raise _OutdatedError(str(error)) from error
            self._doubt(identity)
            raise CommitFailedError(
                f"the group has gone on without this consumer: {_shown(ahead)} were not committed, and the "
                f"records before are read again by whoever has their partitions now ({error})"
            ) from error
        spans = self._progress.spans(ahead) if self.work_units.listening else {}
        self._progress.committed(ahead)
        for tp, (from_offset, until_offset) in spans.items():
            self.work_units.emit(
                WorkUnit(
                    topic_partition=tp,
                    status=WorkStatus.COMMITTED,
                    from_offset=from_offset,
                    until_offset=until_offset,
                    records=None,
                )
            )


class _OutdatedError(KafkaError):
    """The commit was refused as a generation's that has ended, and this consumer is in the next already."""


def _again(error: KafkaError) -> bool:
    if isinstance(error, BrokerError) and error.error_code in _AGAIN:
        return True
    return isinstance(error, _OutdatedError) or is_retriable(error)


def _shown(offsets: Offsets) -> str:
    first = sorted(offsets.items())[:3]
    more = f" and {len(offsets) - 3} more" if len(offsets) > 3 else ""
    return "the offsets " + ", ".join(f"{tp}: {offset}" for tp, offset in first) + more


class AutoCommit:
    """Knows of what it was told is to be committed without being asked; nothing of it where that is off."""

    def __init__(
        self, config: GroupConfig, commits: Commits, reader: PartitionReader, progress: Progress
    ) -> None:
        self._enabled = config.enable_auto_commit
        self._interval_s = config.auto_commit_interval_ms / 1000
        self._commits = commits
        self._reader = reader
        self._progress = progress
        self._touched: set[TopicPartition] = set()
        self._starts: dict[TopicPartition, int] = {}
        self._asked: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, int] = {}
        self._due = time.monotonic() + self._interval_s

    def handed_out(self, topic_partition: TopicPartition, from_offset: int) -> None:
        """The caller is given what begins at ``from_offset``."""
        if self._enabled:
            self._touched.add(topic_partition)
            self._last[topic_partition] = from_offset

    def reached(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each partition the offset behind what was handed out and what is hidden after it (markers,
        aborted transactions, compaction): from now on a commit may say it.
        """
        found = {tp: self._reader.position(tp) for tp in topic_partitions}
        for topic_partition, offset in found.items():
            if self._progress.handed_out(topic_partition, offset, offset):
                self.forget([topic_partition])
        return found

    def started(self, topic_partition: TopicPartition, offset: int) -> None:
        """Reading begins at ``offset``, and nothing was committed: if the group is not told, whoever has the
        partition next may begin later, and skip what came in between.
        """
        if self._enabled:
            self._starts[topic_partition] = offset

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are read no more, or from elsewhere."""
        for topic_partition in topic_partitions:
            self._starts.pop(topic_partition, None)
        self.forget_handed_out(topic_partitions)

    def forget_handed_out(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """What was handed out of them is not done."""
        for topic_partition in topic_partitions:
            self._touched.discard(topic_partition)
            self._asked.pop(topic_partition, None)
            self._last.pop(topic_partition, None)

    def caller_is_back(self) -> None:
        """Everything that was handed out is done: commit it if it is time to."""
        self._last.clear()
        if not (self._touched or self._starts) or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._interval_s
        done = self._ask(all_done=True)
        if self._interval_s == 0 and done is not None:
            with contextlib.suppress(CommitFailedError):  # logged; what is not ours any more is taken away
                done.result()  # nothing else is handed out before

    def commit_now(self, deadline: Deadline, *, all_done: bool) -> None:
        """Commit what is done, and wait for it. A failure is logged: the records are read again.

        ``all_done``: also what was handed out last.
        """
        done = self._ask(all_done=all_done)
        if done is not None:
            with contextlib.suppress(KafkaError, TimeoutError):
                done.result(deadline.remaining_ms / 1000)

    def _ask(self, *, all_done: bool) -> Future[None] | None:
        read = self._reader.partitions.keys() - self._reader.recreated
        offsets = {tp: offset for tp, offset in self._starts.items() if tp in read}
        offsets |= self.reached(self._touched & read)
        if not all_done:
            offsets |= {tp: offset for tp, offset in self._last.items() if tp in offsets}
        wanted = {tp: offset for tp, offset in offsets.items() if offset > self._asked.get(tp, -1)}
        if not wanted:
            return None
        self._asked.update(wanted)
        done = self._commits.ask(wanted)
        done.add_done_callback(self._ended)
        return done

    def _ended(self, done: Future[None]) -> None:
        if (error := done.exception()) is not None:
            self._asked = {}  # the next one asks for it again
            _LOG.warning("committing what was read failed: %s", error)
