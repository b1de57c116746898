"""`PrefetchBuffer`: records that were fetched and not handed out, and the position that the reader wants.

It lies between the thread that fetches and the thread that reads. It does no I/O, and no thread waits while
it holds the lock: a request of the caller is in effect when the call returns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from ..errors import (
    CorruptRecordError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
    own_copy,
)
from ..model import TopicPartition
from ..observe import catalogue as metric
from ..observe.events import EventSource
from ..observe.metrics import MetricsRegistry, Observed
from ..records.batch import EpochRanges, epoch_before, joined_ranges
from ..records.columns import RecordColumns
from ..runtime.deadline import Wakeup
from ..runtime.waiting import LocklessCondition
from .fetched_records import FetchedRecords, WorkStatus, WorkUnit

_NEED_SEEK = (OffsetOutOfRangeError, LogTruncatedError, TopicRecreatedError, CorruptRecordError)
"""Errors that no retry resolves: they are raised until the caller moves, pauses or removes the partition.
After any other error fetching continues by itself once the error was raised.
"""


class AppliedReset(NamedTuple):
    """A position that ``auto.offset.reset`` has moved, as the log does not have it."""

    former: int
    offset: int
    """Where reading goes on."""
    start: int
    """The first offset of the log then."""
    end: int
    """The end of the log then, of what can be read."""
    lacked: bool = False
    """True if the caller has asked for ``former``, and no broker had confirmed that the log reaches to it."""
    reached: bool = True
    """False if records that were fetched before wait to be handed out."""

    @property
    def forward(self) -> bool:
        """True if the log has lost all the records that were read. Where reading goes on says little: a log
        that was cut back may have grown past the position meanwhile.
        """
        return self.start > self.former


class Begun(NamedTuple):
    """Where a read began in a partition."""

    offset: int
    epoch: int
    """The leader epoch of the record before; -1 if it is not known."""
    resets: int
    """`FetchedRecords.resets` of its first records."""


@dataclass(slots=True, eq=False, kw_only=True)
class BufferedPartition:
    """The records of one partition that wait for the reader, and what it wants of the partition. Guarded by
    the lock of its `PrefetchBuffer`.
    """

    topic_partition: TopicPartition
    position: int
    """Everything before it was handed out."""
    start: int
    """The offset from which fetching was last requested to start."""
    topic_id: UUID | None
    """The id that its offsets belong to; None until one is known."""
    start_epoch: int = -1
    """The leader epoch of the record before ``start``; -1 if it is not known."""
    end_epoch: tuple[int, int] = (-1, -1)
    """The end of the records that were taken, and the leader epoch of the record before it."""
    epoch_ranges: EpochRanges = ()
    """For the offsets before that, since the partition was moved."""
    epoch_resets: int = 0
    """`FetchedRecords.resets` of the records in ``epoch_ranges``."""
    reset: AppliedReset | None = None
    """The last one since the caller has moved the partition."""
    shortened_to: int | None = None
    """The end of the log at the last reset, also if the caller has moved the partition since."""
    resets: int = 0
    """Counts resets."""
    moves: int = 0
    """Counts changes of ``start``: records fetched before a change are not handed out."""
    seeks: int = 0
    """Counts those that the caller asked for: records taken before one are not given back. A pause that frees
    memory is none."""
    confirmed: bool = False
    """True if a broker, or the reset policy, has confirmed that the log reaches to the offset that the caller
    asked for."""
    tries: int = 0
    """Counts requests to continue after an error."""
    paused: bool = False
    error: KafkaError | None = None
    raised: bool = False
    """True if ``error`` was raised already."""
    waiting: deque[FetchedRecords] = field(default_factory=deque)
    """Fetched and not handed out."""
    nbytes: int = 0
    """Size of ``waiting``."""
    put_back: RecordColumns | None = None
    """Those of ``waiting`` that were handed out, and then not after all."""
    log_end: tuple[int, int] | None = None
    """High watermark and last stable offset (-1: not reported) according to the last records."""

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record before ``offset``; -1 if it is not known."""
        end, epoch = self.end_epoch
        return epoch if offset == end else epoch_before(offset, self.epoch_ranges) if offset < end else -1

    def epochs_until(self, offset: int, resets: int) -> EpochRanges:
        """The leader epochs that are known up to ``offset``, where reading goes on after ``resets``: a caller
        that reads row by row may commit any of these. The log may have been cut behind it meanwhile.
        """
        if resets != self.epoch_resets:
            return ()
        end, epoch = self.end_epoch
        known = (*self.epoch_ranges, (end - 1, end, epoch))
        return tuple((start, min(end, offset), epoch) for start, end, epoch in known if start < offset)

    @property
    def raisable(self) -> bool:
        """True if it has no records left to hand out, so that its error is due."""
        return not self.waiting and not self.paused


class PrefetchBuffer:
    """Bounded to ``max_bytes``, plus the records that one call of the fetching thread adds."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # Re-entrant: a signal handler may close the consumer in the midst of a call.
        self.lock = threading.RLock()
        self._wanted: dict[TopicPartition, BufferedPartition] = {}
        self._order: deque[BufferedPartition] = deque()
        """One entry for each element of ``waiting`` of the partitions that are not paused, in arrival
        order."""
        self.nbytes = 0
        """Size of the records in ``_order``."""
        self._broken: list[BufferedPartition] = []
        """The partitions with an error."""
        self._refusals: Mapping[TopicPartition, KafkaError] = {}
        """Why partitions cannot be read yet, until a read raises one of these errors."""
        self._changed: set[TopicPartition] = set()
        self.wakeup = Wakeup()
        """Set when the fetching thread has changes to follow."""
        self.condition = LocklessCondition()
        """Readers that wait for records."""
        self.metrics = MetricsRegistry()
        """The consumer's metrics, of both threads."""
        self.work_units: EventSource[WorkUnit] = EventSource()
        self.listener: Callable[[], None] | None = None
        """Called, in any thread, when `has_news` may have become true."""
        self.closed = False
        self.ended = False
        """True once the fetching thread has ended."""
        self.failure: BaseException | None = None
        """The unexpected error that ended the fetching thread."""

    def disown(self) -> None:
        """In a forked child: the lock may be held by a thread that does not exist here."""
        self.lock = threading.RLock()

    @property
    def locks(self) -> list[threading.RLock]:
        """The locks that the fetching thread needs, from the outermost to the innermost."""
        return [self.lock, *self.work_units.locks, self.metrics.lock]

    def wake_readers(self) -> None:
        """Wake the waiting readers."""
        self.condition.notify_all()
        if self.listener is not None:
            self.listener()

    # The reader's side.

    def add(
        self,
        topic_partition: TopicPartition,
        offset: int,
        topic_id: UUID | None,
        leader_epoch: int = -1,
        *,
        paused: bool = False,
        error: KafkaError | None = None,
    ) -> None:
        """Fetch a partition too; with an ``error``, once that is resolved. Raises `ValueError` if it is being
        read already.
        """
        with self.lock:
            if topic_partition in self._wanted:
                raise ValueError(f"{topic_partition} is being read already; seek moves it")
            wanted = self._wanted[topic_partition] = BufferedPartition(
                topic_partition=topic_partition,
                position=offset,
                start=offset,
                topic_id=topic_id,
                start_epoch=leader_epoch,
                end_epoch=(offset, leader_epoch),
                paused=paused,
                error=error,
            )
            if error is not None:
                self._broken.append(wanted)
            self._change(topic_partition)

    def remove(self, topic_partition: TopicPartition) -> int:
        """Drop a partition and its records; return its position."""
        with self.lock:
            wanted = self.partition(topic_partition)
            self._change(topic_partition)
            self._drop_waiting(wanted)
            self._clear_error(wanted)
            del self._wanted[topic_partition]
            return wanted.position

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Continue from ``offset``; drops the records that wait."""
        with self.lock:
            wanted = self.partition(topic_partition)
            wanted.seeks, wanted.confirmed = wanted.seeks + 1, False
            self._seek(wanted, offset)
        self.wake_readers()

    def pause(self, topic_partition: TopicPartition) -> None:
        """Hand out no records of a partition, and fetch no more of it, until `resume`.

        Its records are kept while those of all paused partitions take no more than ``max_bytes``; those that
        cannot be fetched again, in any case.
        """
        with self.lock:
            wanted = self.partition(topic_partition)
            if not wanted.paused:
                self._change(topic_partition)
                self._leave_order(wanted)
                wanted.paused = True
                kept = sum(one.nbytes for one in self._wanted.values() if one.paused)
                if kept > self._max_bytes and wanted.error is None:
                    self._free(wanted)

    def resume(self, topic_partition: TopicPartition) -> None:
        """Continue with a partition that was paused, at its position."""
        with self.lock:
            wanted = self.partition(topic_partition)
            if wanted.paused:
                self._change(topic_partition)
                order = self._order + deque([wanted] * len(wanted.waiting))
                self._order, self.nbytes = order, self.nbytes + wanted.nbytes
                wanted.paused = False
        self.wake_readers()

    def position(self, topic_partition: TopicPartition) -> int:
        """The offset before which everything was handed out."""
        return self.partition(topic_partition).position

    def partition(self, topic_partition: TopicPartition) -> BufferedPartition:
        """The records of a partition that wait. Raises `ValueError` if it is not being read."""
        try:
            return self._wanted[topic_partition]
        except KeyError:
            raise ValueError(f"{topic_partition} is not being read") from None

    @property
    def broken(self) -> list[TopicPartition]:
        """The partitions that have an error."""
        return [one.topic_partition for one in self._broken]

    def partitions(self) -> dict[TopicPartition, bool]:
        """The partitions that are read; True for each that is paused."""
        return {tp: wanted.paused for tp, wanted in list(self._wanted.items())}

    def topic_ids(self) -> dict[TopicPartition, UUID]:
        """The ids of the topics that the positions belong to, as far as they are known."""
        read = list(self._wanted.items())
        return {tp: topic_id for tp, wanted in read if (topic_id := wanted.topic_id) is not None}

    def leader_epochs(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The leader epochs of the records before ``offsets``, as far as they are known."""
        found = {tp: one.epoch_at(offset) for tp, offset in offsets.items() if (one := self._wanted.get(tp))}
        return {tp: epoch for tp, epoch in found.items() if epoch >= 0}

    def recreated(self) -> frozenset[TopicPartition]:
        """The partitions that cannot be read on because their topic was recreated."""
        return frozenset(
            one.topic_partition for one in self._broken if isinstance(one.error, TopicRecreatedError)
        )

    def truncated(self) -> dict[TopicPartition, LogTruncatedError]:
        """The partitions with a log that was cut back before their position, and the error that says so."""
        broken = [(one.topic_partition, one.error) for one in self._broken]
        return {tp: error for tp, error in broken if isinstance(error, LogTruncatedError)}

    def drop(self, topic_partition: TopicPartition) -> None:
        """Drop the records that wait: an error of the partition is raised next."""
        with self.lock:
            self._drop_waiting(self.partition(topic_partition))

    def observed(self) -> list[Observed]:
        """The current values of gauges. Without the lock, as `progress`: a thread that was interrupted may
        hold it.
        """
        known = self._read_now()
        paused = sum(one.paused for one in known)
        return [
            Observed(metric.PREFETCHED_BYTES, sum(one.nbytes for one in known)),
            Observed(metric.PREFETCHED_BATCHES, sum(len(one.waiting) for one in known)),
            Observed(metric.PARTITIONS, len(known) - paused, ("reading",)),
            Observed(metric.PARTITIONS, paused, ("paused",)),
        ]

    def progress(self, *, read_committed: bool) -> list[tuple[TopicPartition, int, int]]:
        """Each partition that has got records, with its position and the end of its log: the last stable
        offset if only committed records are read.
        """
        found = []
        for one in self._read_now():
            if (log_end := one.log_end) is not None:
                end, stable = log_end
                end = min(end, stable) if read_committed and stable >= 0 else end
                found.append((one.topic_partition, one.position, end))
        return found

    def _read_now(self) -> list[BufferedPartition]:
        """No partitions once closed: another consumer may have the lag of the same ones."""
        return [] if self.closed else list(self._wanted.values())

    def take(self) -> FetchedRecords | None:
        """The next records, which count as handed out; None if none are waiting."""
        wanted = None
        try:
            with self.lock:
                if not self._order:
                    return None
                wanted = self._order[0]
                fetched, position = wanted.waiting[0], wanted.position
                self._take_first(wanted, fetched)
            self._emit(fetched, WorkStatus.HANDED_OUT)
        except BaseException:
            if wanted is not None:  # an interrupt: no caller has got them
                with self.lock:
                    self._put_back(wanted, fetched, position)
            raise
        return fetched

    def place(self, topic_partition: TopicPartition) -> tuple[BufferedPartition, int]:
        """The partition as it is read now, and how often the caller has moved it."""
        wanted = self.partition(topic_partition)
        return wanted, wanted.seeks

    def is_at(self, topic_partition: TopicPartition, taken_at: tuple[BufferedPartition, int] | None) -> bool:
        """True if the caller has neither moved nor removed the partition since it was ``taken_at`` that
        `place` (None: an unknown one)."""
        return topic_partition in self._wanted and taken_at in (None, self.place(topic_partition))

    def give_back(
        self, fetched: FetchedRecords, taken_at: tuple[BufferedPartition, int] | None = None
    ) -> None:
        """The records that were taken last, or the rest of them, are not handed out after all. Idempotent.

        Given the `place` that they were ``taken_at``, they are dropped if the caller has moved or removed the
        partition since; after a close they count, as the position is still asked for.
        """
        with self.lock:
            tp = fetched.topic_partition
            if taken_at is not None and not self.is_at(tp, taken_at):
                return
            wanted = self.partition(tp)
            self._put_back(wanted, fetched, fetched.from_offset)
            rest = wanted.waiting[0]
        self._emit(rest, WorkStatus.GIVEN_BACK)
        self.wake_readers()

    def fetch_again(self, topic_partition: TopicPartition, offset: int, begun: Begun) -> None:
        """The records that were taken from ``offset`` on are not handed out after all. It is no seek of the
        caller: where the log has lost them meanwhile, the error stays, or reading goes on where the reset
        policy does.
        """
        with self.lock:
            wanted = self.partition(topic_partition)
            epoch = max(wanted.epoch_at(offset), begun.epoch if offset == begun.offset else -1)
            known = joined_ranges(wanted.epochs_until(offset, begun.resets), ())
            if wanted.reset is not None and begun.resets < wanted.resets:
                # What the log still has of them comes again, and what waits since an earlier reset; not a
                # second reset, which may skip records.
                since = [one.from_offset for one in wanted.waiting if one.resets > begun.resets]
                reset, epoch, known = wanted.reset, -1, ()
                offset = reset.offset if reset.forward else min(offset, reset.offset, *since)
            error = wanted.error
            is_cut = isinstance(error, LogTruncatedError) and offset > error.end_offset
            if is_cut or isinstance(error, (OffsetOutOfRangeError, TopicRecreatedError)):
                self._drop_waiting(wanted)
                self._change(topic_partition)
                wanted.position = offset
            else:
                self._seek(wanted, offset, epoch, known)
            wanted.seeks += 1  # last: an interrupt before it lets them be given back again
        self.wake_readers()

    def drop_lost(self, topic_partition: TopicPartition) -> None:
        """If the log has lost the records that were read, drop those that wait from before that reset: no
        caller will get them, and a commit is to contain where reading goes on.
        """
        with self.lock:
            wanted = self.partition(topic_partition)
            reset, waits = wanted.reset, any(one.resets < wanted.resets for one in wanted.waiting)
            if (
                reset is None
                or not waits
                or isinstance(wanted.error, (LogTruncatedError, TopicRecreatedError))
            ):
                return
            if reset.forward or reset.offset < wanted.position:
                self._seek(wanted, reset.offset)

    def check(self, *, again: bool, but: TopicPartition | None = None) -> None:
        """Raise the error of a partition that has no records left to hand out, unless it was raised already
        and this is not ``again``. If a retry may resolve it, fetching the partition continues. Skips
        ``but``, of which the caller has records left. An error of partitions that are not among these
        (`refuse`) comes first.
        """
        if self._refusals:
            self._check_refusals()
        if not self._broken:
            return
        with self.lock:
            for wanted in self._broken:
                error = wanted.error
                if error is None or not wanted.raisable or (wanted.raised and not again):
                    continue
                if wanted.topic_partition == but:
                    continue
                wanted.raised = True
                if not isinstance(error, _NEED_SEEK):
                    self._clear_error(wanted)
                    wanted.tries += 1
                    self._change(wanted.topic_partition)
                raise own_copy(error)

    def _check_refusals(self) -> None:
        refusals, self._refusals = self._refusals, {}
        for topic_partition, error in refusals.items():
            if topic_partition not in self._wanted:  # it has not begun meanwhile
                raise own_copy(error)

    @property
    def has_news(self) -> bool:
        """True if there are records to hand out or an error to raise, or both threads end."""
        with self.lock:
            broken = any(wanted.raisable for wanted in self._broken)
            return bool(self._order) or broken or bool(self._refusals) or self.closed

    def close(self) -> None:
        """End both threads."""
        self.closed = True
        self.wakeup.set()
        self.wake_readers()

    # The fetching thread's side.

    @property
    def full(self) -> bool:
        """True if nothing more is to be fetched for now."""
        return self.nbytes >= self._max_bytes

    def changes(self) -> Iterator[tuple[TopicPartition, BufferedPartition | None]]:
        """The partitions that were added, removed or changed since the last call; None for removed ones."""
        while self._changed:
            with self.lock:
                topic_partition = self._changed.pop()
                wanted = self._wanted.get(topic_partition)
            yield topic_partition, wanted

    def wish(self, wanted: BufferedPartition) -> tuple[int, int, int, int, bool]:
        """The wanted start of a partition and the leader epoch before it, the counts of its moves and tries,
        and True if it is to be fetched."""
        with self.lock:
            held = wanted.paused or wanted.error is not None
            return wanted.start, wanted.start_epoch, wanted.moves, wanted.tries, not held

    def put(self, wanted: BufferedPartition, moves: int, fetched: FetchedRecords) -> None:
        """Add records of a partition, fetched since its ``moves``-th move; drops them if it was moved or
        removed meanwhile.
        """
        if not fetched.columns.length:  # nothing would bound the number of these
            self.skip(wanted, moves, fetched.next_offset, fetched.leader_epoch)
            return
        with self.lock:
            if not self._is_current(wanted, moves):
                return
            wanted.log_end = fetched.high_watermark, fetched.last_stable_offset
            if wanted.resets:
                fetched = replace(fetched, resets=wanted.resets)
            wanted.waiting.append(fetched)
            wanted.nbytes += fetched.nbytes
            # Before it can be handed out: events come in the order of what happened.
            self._emit(fetched, WorkStatus.FETCHED)
            if not wanted.paused:
                self._order.append(wanted)
                self.nbytes += fetched.nbytes
        self.wake_readers()

    def skip(self, wanted: BufferedPartition, moves: int, offset: int, leader_epoch: int = -1) -> None:
        """There are no records between those that were put last and ``offset``; ``leader_epoch`` is that of
        the batch before it, if it is known."""
        with self.lock:
            if not self._is_current(wanted, moves):
                return
            wanted.confirmed = True
            if wanted.waiting:
                wanted.waiting[-1] = replace(
                    wanted.waiting[-1], next_offset=offset, leader_epoch=leader_epoch
                )
            else:
                known = wanted.epochs_until(wanted.position, wanted.resets)
                wanted.epoch_ranges, wanted.epoch_resets = joined_ranges(known, ()), wanted.resets
                wanted.position, wanted.end_epoch = offset, (offset, leader_epoch)

    def refuse(self, errors: Mapping[TopicPartition, KafkaError]) -> None:
        """Let the next read raise one of the ``errors`` of partitions that cannot be read yet, not an earlier
        one.
        """
        self._refusals = errors
        self.wake_readers()

    def confirm(self, wanted: BufferedPartition, moves: int) -> None:
        """The offset to which the partition was moved last is not out of range."""
        with self.lock:
            if self._is_current(wanted, moves):
                wanted.confirmed = True

    def reset(self, wanted: BufferedPartition, moves: int, reset: AppliedReset) -> None:
        """The log lacks the position, and the reset policy goes on elsewhere."""
        with self.lock:
            if self._is_current(wanted, moves):
                wanted.reset = reset._replace(lacked=not wanted.confirmed)
                wanted.resets, wanted.shortened_to = wanted.resets + 1, reset.end
                self.skip(wanted, moves, reset.offset)

    def reset_of(self, topic_partition: TopicPartition) -> AppliedReset | None:
        """The last reset of a partition since the caller has moved it."""
        wanted = self._wanted.get(topic_partition)
        if wanted is None or wanted.reset is None:
            return None
        return wanted.reset._replace(reached=all(one.resets == wanted.resets for one in list(wanted.waiting)))

    def broke(self, wanted: BufferedPartition, moves: int, error: KafkaError) -> None:
        """Nothing more can be read of a partition until its error is resolved."""
        with self.lock:
            if self._is_current(wanted, moves):
                self._clear_error(wanted)
                wanted.error, wanted.raised = error, False
                self._broken.append(wanted)
        self.wake_readers()

    def fail(self, error: BaseException) -> None:
        """The fetching thread ends."""
        self.failure = error
        self.close()

    def _emit(self, fetched: FetchedRecords, status: WorkStatus) -> None:
        if self.work_units.listening:
            self.work_units.emit(WorkUnit.of(fetched, status))

    def _take_first(self, wanted: BufferedPartition, fetched: FetchedRecords) -> None:
        was_full = self.full
        known = wanted.epochs_until(fetched.from_offset, fetched.resets)
        wanted.epoch_ranges = joined_ranges(known, fetched.epoch_ranges)
        wanted.end_epoch = fetched.next_offset, fetched.leader_epoch
        wanted.epoch_resets = fetched.resets
        wanted.position = fetched.next_offset
        wanted.nbytes -= fetched.nbytes
        self.nbytes -= fetched.nbytes
        wanted.waiting.popleft()
        wanted.put_back = None
        self._order.popleft()
        if was_full and not self.full:
            self.wakeup.set()

    def _put_back(self, wanted: BufferedPartition, fetched: FetchedRecords, position: int) -> None:
        """Make ``fetched`` the next records to hand out, in any state that an interrupt has left."""
        behind, end, epoch = deque(wanted.waiting), wanted.position, wanted.epoch_at(wanted.position)
        # These, or the last of them, may be there already. Not by offsets: those behind them may have lower
        # ones, after an automatic reset.
        if behind and (behind[0].columns is fetched.columns or behind[0].columns is wanted.put_back):
            first = behind.popleft()
            end, epoch = first.next_offset, first.leader_epoch
        if fetched.next_offset != end:  # hidden offsets follow, or it was reset
            columns = fetched.columns
            if fetched.resets == wanted.resets and columns.offset is not None:
                # A pause may have freed the last of them, and they are fetched again.
                columns = columns.slice(0, int(columns.offset.searchsorted(end)))
            fetched = replace(fetched, columns=columns, next_offset=end, leader_epoch=epoch)
        behind.appendleft(fetched)
        wanted.waiting, wanted.position, wanted.put_back = behind, position, fetched.columns
        wanted.nbytes = sum(one.nbytes for one in wanted.waiting)
        others = [one for one in self._order if one is not wanted]
        mine = [] if wanted.paused else [wanted] * len(wanted.waiting)
        self._order = deque([*mine, *others])
        self.nbytes = sum(one.nbytes for one in self._wanted.values() if not one.paused)

    def _is_current(self, wanted: BufferedPartition, moves: int) -> bool:
        """False once closed: a close in a signal handler gives away the locks of the call that it interrupts,
        and that call may be in the middle of a change."""
        if self.closed:
            return False
        return wanted.moves == moves and self._wanted.get(wanted.topic_partition) is wanted

    def _seek(self, wanted: BufferedPartition, offset: int, epoch: int = -1, known: EpochRanges = ()) -> None:
        """``epoch`` is that of the record before ``offset``; the ranges before it are ``known``."""
        topic_id = None if isinstance(wanted.error, TopicRecreatedError) else wanted.topic_id
        self._change(wanted.topic_partition)
        self._drop_waiting(wanted)
        wanted.topic_id, wanted.start_epoch = topic_id, epoch
        wanted.end_epoch, wanted.epoch_ranges, wanted.epoch_resets = (offset, epoch), known, wanted.resets
        wanted.position = wanted.start = offset
        wanted.moves += 1
        self._clear_error(wanted)

    def _free(self, wanted: BufferedPartition) -> None:
        """Free the memory of the records that wait. It is no move of the caller: the topic id and the epoch
        stay known, so that a log that was cut back meanwhile is noticed."""
        # Those of before a reset stay: the log has others at their offsets now.
        kept = [one for one in wanted.waiting if one.resets < wanted.resets]
        if len(kept) == len(wanted.waiting):
            return
        start, epoch = wanted.position, wanted.epoch_at(wanted.position)
        if kept:
            start, epoch = kept[-1].next_offset, kept[-1].leader_epoch
        self._change(wanted.topic_partition)
        self._drop_waiting(wanted, kept)
        wanted.start, wanted.start_epoch = start, epoch
        wanted.moves += 1

    def _clear_error(self, wanted: BufferedPartition) -> None:
        wanted.error = None
        self._broken = [one for one in self._broken if one is not wanted]

    def _drop_waiting(self, wanted: BufferedPartition, kept: Sequence[FetchedRecords] = ()) -> None:
        """Drop the records that wait; of a paused partition, the first ones may be ``kept``."""
        for fetched in islice(wanted.waiting, len(kept), None):
            self._emit(fetched, WorkStatus.DROPPED)
        left, nbytes = deque(kept), sum(one.nbytes for one in kept)
        if not wanted.paused:
            self._leave_order(wanted)
        # No call from here on: an interrupt leaves no records out of the order.
        put_back = wanted.put_back if kept else None
        wanted.waiting, wanted.nbytes, wanted.put_back = left, nbytes, put_back

    def _leave_order(self, wanted: BufferedPartition) -> None:
        if wanted.waiting:
            order = deque(one for one in self._order if one is not wanted)
            self._order, self.nbytes = order, self.nbytes - wanted.nbytes

    def _change(self, topic_partition: TopicPartition) -> None:
        self._changed.add(topic_partition)
        self.wakeup.set()
