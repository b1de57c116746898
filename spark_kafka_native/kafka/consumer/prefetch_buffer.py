"""`PrefetchBuffer`: what was fetched and not yet handed out, and where the reader wants each partition to be.

It lies between two threads, the one that fetches and the one that reads. It does no I/O, and nobody waits
while holding its lock: whatever a caller asks for holds from the moment its call returns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from uuid import UUID

from ..errors import (
    CorruptRecordError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from ..model import TopicPartition
from ..observe import catalogue as metric
from ..observe.events import EventSource
from ..observe.metrics import MetricsRegistry, Observed
from ..runtime.deadline import Wakeup
from ..runtime.waiting import LocklessCondition
from .consumer_events import WorkStatus, WorkUnit
from .fetched_records import FetchedRecords

_NEED_SEEK = (OffsetOutOfRangeError, LogTruncatedError, TopicRecreatedError, CorruptRecordError)
"""Errors that no other attempt mends: they are raised until the caller moves, pauses or removes the
partition. After any other one, fetching goes on by itself once the caller has been told.
"""


@dataclass(slots=True, eq=False, kw_only=True)
class BufferedPartition:
    """A partition as the reader wants it. Guarded by the lock of the `PrefetchBuffer` that it is in."""

    topic_partition: TopicPartition
    position: int
    """Everything before it was handed out."""
    start: int
    """Where fetching was asked to start, last."""
    topic_id: UUID | None
    moves: int = 0
    """Counts how often ``start`` was set: what was fetched before is not handed out."""
    tries: int = 0
    """Counts how often it is to go on after an error."""
    paused: bool = False
    error: KafkaError | None = None
    told: bool = False
    """Whether ``error`` was raised already."""
    waiting: deque[FetchedRecords] = field(default_factory=deque)
    """Fetched and not handed out."""
    nbytes: int = 0
    """Of ``waiting``."""
    end: int | None = None
    """Where the log ended, as the last records told it: of what is committed, where only that is read."""

    @property
    def raisable(self) -> bool:
        """Whether its error is the next thing that a reader is to hear of it."""
        return not self.waiting and not self.paused


class PrefetchBuffer:
    """Bounded to ``max_bytes`` and what one call of the fetching thread adds."""

    def __init__(self, max_bytes: int, *, read_committed: bool = False) -> None:
        self._max_bytes = max_bytes
        self.read_committed = read_committed
        self._lock = threading.Lock()
        self._wanted: dict[TopicPartition, BufferedPartition] = {}
        self._order: deque[BufferedPartition] = deque()
        """One entry for each in ``waiting`` of a partition that is not paused, in the order they came."""
        self._nbytes = 0
        """Of those in ``_order``."""
        self._broken: list[BufferedPartition] = []
        """Those that have an error."""
        self._changed: set[TopicPartition] = set()
        self.wakeup = Wakeup()
        """Set when the fetching thread has something new to look at."""
        self.condition = LocklessCondition()
        """Readers that wait for records."""
        self.metrics = MetricsRegistry()
        """What the consumer counts, on both sides."""
        self.work_units: EventSource[WorkUnit] = EventSource()
        self.listener: Callable[[], None] | None = None
        """Called, in any thread, whenever a reader may have something to do."""
        self.closed = False
        self.ended = False
        """Whether the fetching thread has ended."""
        self.failure: BaseException | None = None
        """What ended the fetching thread, if it was a mistake of ours."""

    def disown(self) -> None:
        """This is a forked child: the lock may be held by a thread that is not here."""
        self._lock = threading.Lock()

    def wake_readers(self) -> None:
        """Let those that wait look again."""
        self.condition.notify_all()
        if self.listener is not None:
            self.listener()

    # The reader's side.

    def add(self, topic_partition: TopicPartition, offset: int, topic_id: UUID | None) -> None:
        """Fetch a partition too. Raises `ValueError` where it is there already."""
        with self._lock:
            if topic_partition in self._wanted:
                raise ValueError(f"{topic_partition} is being read already; seek moves it")
            self._wanted[topic_partition] = BufferedPartition(
                topic_partition=topic_partition, position=offset, start=offset, topic_id=topic_id
            )
            self._change(topic_partition)

    def remove(self, topic_partition: TopicPartition) -> int:
        """Drop a partition and what was fetched of it; its position."""
        with self._lock:
            wanted = self._find(topic_partition)
            self._change(topic_partition)
            self._drop_waiting(wanted)
            self._mend(wanted)
            del self._wanted[topic_partition]
            return wanted.position

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Go on from ``offset``; drops what was fetched."""
        with self._lock:
            self._seek(self._find(topic_partition), offset)
        self.wake_readers()

    def pause(self, topic_partition: TopicPartition) -> None:
        """Hand out nothing of a partition, and fetch no more of it, until `resume`.

        What was fetched is kept where all that is kept so is no more than ``max_bytes``.
        """
        with self._lock:
            wanted = self._find(topic_partition)
            if not wanted.paused:
                self._change(topic_partition)
                kept = sum(one.nbytes for one in self._wanted.values() if one.paused)
                if kept + wanted.nbytes > self._max_bytes and wanted.error is None:
                    self._seek(wanted, wanted.position)
                self._leave_order(wanted)
                wanted.paused = True

    def resume(self, topic_partition: TopicPartition) -> None:
        """Go on with a partition that was paused, at its position."""
        with self._lock:
            wanted = self._find(topic_partition)
            if wanted.paused:
                self._change(topic_partition)
                order = self._order + deque([wanted] * len(wanted.waiting))
                self._order, self._nbytes = order, self._nbytes + wanted.nbytes
                wanted.paused = False
        self.wake_readers()

    def position(self, topic_partition: TopicPartition) -> int:
        """The offset before which everything was handed out."""
        return self._find(topic_partition).position

    def partitions(self) -> dict[TopicPartition, bool]:
        """Those that are read, and whether each is paused."""
        return {tp: wanted.paused for tp, wanted in list(self._wanted.items())}

    def recreated(self) -> frozenset[TopicPartition]:
        """Those that can't be read on because their topic is another one now."""
        return frozenset(
            one.topic_partition for one in self._broken if isinstance(one.error, TopicRecreatedError)
        )

    def observed(self) -> list[Observed]:
        """What its metrics do not count, but show. Without the lock, as `progress`: a thread that was
        interrupted may hold it.
        """
        known = list(self._wanted.values())
        paused = sum(one.paused for one in known)
        return [
            Observed(metric.PREFETCHED_BYTES, sum(one.nbytes for one in known)),
            Observed(metric.PREFETCHED_BATCHES, sum(len(one.waiting) for one in known)),
            Observed(metric.PARTITIONS, len(known) - paused, ("reading",)),
            Observed(metric.PARTITIONS, paused, ("paused",)),
        ]

    def progress(self) -> list[tuple[TopicPartition, int, int]]:
        """Of each partition its position, and where its log ends, as far as records told it: of what is
        committed, where only that is read.
        """
        known = [(one, one.end) for one in list(self._wanted.values())]
        return [(one.topic_partition, one.position, end) for one, end in known if end is not None]

    def take(self) -> FetchedRecords | None:
        """The next records, which count as handed out; None where there are none just now."""
        wanted = None
        try:
            with self._lock:
                if not self._order:
                    return None
                wanted = self._order[0]
                fetched, position = wanted.waiting[0], wanted.position
                self._take_first(wanted, fetched)
            self._tell(fetched, WorkStatus.HANDED_OUT)
        except BaseException:
            if wanted is not None:  # an interrupt: nobody has got them
                with self._lock:
                    self._put_back(wanted, fetched, position)
            raise
        return fetched

    def give_back(self, fetched: FetchedRecords) -> None:
        """The last ones taken, or the rest of them, are not handed out after all. To do it once more changes
        nothing.
        """
        with self._lock:
            wanted = self._find(fetched.topic_partition)
            rest = replace(fetched, next_offset=max(wanted.position, fetched.next_offset))
            self._put_back(wanted, rest, fetched.from_offset)
        self._tell(rest, WorkStatus.GIVEN_BACK)
        self.wake_readers()

    def check(self, *, again: bool, but: TopicPartition | None = None) -> None:
        """Raise what is wrong with a partition of which nothing is left to hand out, unless that was told
        already and this is not ``again``. What another attempt may mend goes on then. Nothing is said of
        ``but``, of which the caller has records left.
        """
        if not self._broken:
            return
        with self._lock:
            for wanted in self._broken:
                error = wanted.error
                if error is None or not wanted.raisable or (wanted.told and not again):
                    continue
                if wanted.topic_partition == but:
                    continue
                wanted.told = True
                if not isinstance(error, _NEED_SEEK):
                    self._mend(wanted)
                    wanted.tries += 1
                    self._change(wanted.topic_partition)
                raise error

    @property
    def has_news(self) -> bool:
        """Whether there is something to hand out or to raise, or both sides end."""
        with self._lock:
            broken = any(wanted.raisable for wanted in self._broken)
            return bool(self._order) or broken or self.closed

    def close(self) -> None:
        """End both sides."""
        self.closed = True
        self.wakeup.set()
        self.wake_readers()

    # The fetching thread's side.

    @property
    def full(self) -> bool:
        """Whether so much waits that nothing more is to be fetched."""
        return self._nbytes >= self._max_bytes

    def changes(self) -> Iterator[tuple[TopicPartition, BufferedPartition | None]]:
        """The partitions that were added, removed or changed since the last call; None for those that are
        gone.
        """
        while self._changed:
            with self._lock:
                topic_partition = self._changed.pop()
                wanted = self._wanted.get(topic_partition)
            yield topic_partition, wanted

    def wish(self, wanted: BufferedPartition) -> tuple[int, int, int, bool]:
        """Where a partition is to start, the counts of its moves and tries, whether it is to be fetched."""
        with self._lock:
            held = wanted.paused or wanted.error is not None
            return wanted.start, wanted.moves, wanted.tries, not held

    def put(self, wanted: BufferedPartition, moves: int, fetched: FetchedRecords) -> None:
        """Add records of a partition, fetched since it was moved the ``moves``-th time; nothing where it was
        moved or removed meanwhile.
        """
        if not fetched.columns.length:  # nothing bounds the number of those
            self.skip(wanted, moves, fetched.next_offset)
            return
        with self._lock:
            if not self._is_current(wanted, moves):
                return
            wanted.end = fetched.high_watermark
            if self.read_committed and fetched.last_stable_offset >= 0:
                wanted.end = min(wanted.end, fetched.last_stable_offset)
            wanted.waiting.append(fetched)
            wanted.nbytes += fetched.nbytes
            # While it can't be handed out yet: events come in the order of what they tell.
            self._tell(fetched, WorkStatus.FETCHED)
            if not wanted.paused:
                self._order.append(wanted)
                self._nbytes += fetched.nbytes
        self.wake_readers()

    def skip(self, wanted: BufferedPartition, moves: int, offset: int) -> None:
        """There is nothing to hand out between what was put last and ``offset``."""
        with self._lock:
            if not self._is_current(wanted, moves):
                return
            if wanted.waiting:
                wanted.waiting[-1] = replace(wanted.waiting[-1], next_offset=offset)
            else:
                wanted.position = offset

    def broke(self, wanted: BufferedPartition, moves: int, error: KafkaError) -> None:
        """Nothing more can be read of a partition as it stands."""
        with self._lock:
            if self._is_current(wanted, moves):
                self._mend(wanted)
                wanted.error, wanted.told = error, False
                self._broken.append(wanted)
        self.wake_readers()

    def fail(self, error: BaseException) -> None:
        """The fetching thread ends."""
        self.failure = error
        self.close()

    def _tell(self, fetched: FetchedRecords, status: WorkStatus) -> None:
        if self.work_units.listening:
            self.work_units.emit(WorkUnit.of(fetched, status))

    def _take_first(self, wanted: BufferedPartition, fetched: FetchedRecords) -> None:
        was_full = self.full
        wanted.position = fetched.next_offset
        wanted.nbytes -= fetched.nbytes
        self._nbytes -= fetched.nbytes
        wanted.waiting.popleft()
        self._order.popleft()
        if was_full and not self.full:
            self.wakeup.set()

    def _put_back(self, wanted: BufferedPartition, fetched: FetchedRecords, position: int) -> None:
        """Whatever state an interrupt has left it in, ``fetched`` is what is handed out next."""
        if wanted.waiting and wanted.waiting[0].from_offset == fetched.from_offset:
            wanted.waiting.popleft()
        wanted.waiting.appendleft(fetched)
        wanted.position = position
        wanted.nbytes = sum(one.nbytes for one in wanted.waiting)
        others = [one for one in self._order if one is not wanted]
        mine = [] if wanted.paused else [wanted] * len(wanted.waiting)
        self._order = deque([*mine, *others])
        self._nbytes = sum(one.nbytes for one in self._wanted.values() if not one.paused)

    def _is_current(self, wanted: BufferedPartition, moves: int) -> bool:
        return wanted.moves == moves and self._wanted.get(wanted.topic_partition) is wanted

    def _find(self, topic_partition: TopicPartition) -> BufferedPartition:
        try:
            return self._wanted[topic_partition]
        except KeyError:
            raise ValueError(f"{topic_partition} is not being read") from None

    def _seek(self, wanted: BufferedPartition, offset: int) -> None:
        self._change(wanted.topic_partition)
        self._drop_waiting(wanted)
        wanted.position = wanted.start = offset
        wanted.moves += 1
        self._mend(wanted)

    def _mend(self, wanted: BufferedPartition) -> None:
        wanted.error = None
        self._broken = [one for one in self._broken if one is not wanted]

    def _drop_waiting(self, wanted: BufferedPartition) -> None:
        for fetched in wanted.waiting:
            self._tell(fetched, WorkStatus.DROPPED)
        nothing: deque[FetchedRecords] = deque()
        if not wanted.paused:
            self._leave_order(wanted)
        wanted.waiting, wanted.nbytes = nothing, 0

    def _leave_order(self, wanted: BufferedPartition) -> None:
        if wanted.waiting:
            order = deque(one for one in self._order if one is not wanted)
            self._order, self._nbytes = order, self._nbytes - wanted.nbytes

    def _change(self, topic_partition: TopicPartition) -> None:
        self._changed.add(topic_partition)
        self.wakeup.set()
