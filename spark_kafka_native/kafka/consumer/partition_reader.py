"""`PartitionReader`: reads partitions continuously; they can be added, moved and paused at any time."""

from __future__ import annotations

import functools
import operator
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import UUID

from ..cluster.router import Router
from ..config.reader_config import ReaderConfig
from ..errors import ConsumerClosedError, KafkaError, LogTruncatedError
from ..model import IsolationLevel, Record, TopicPartition
from ..observe import catalogue as metric
from ..observe.events import EventSource
from ..observe.metrics import MetricsRegistry, MetricsSnapshot, Observed
from ..runtime.deadline import Deadline
from ..runtime.fork import in_forked_child
from ..runtime.waiting import released
from .fetched_records import FetchedRecords, WorkUnit
from .prefetch_buffer import AppliedReset, Begun, BufferedPartition, PrefetchBuffer
from .prefetch_thread import PrefetchThread
from .typed_records import FormatLike, RecordTyping, TypedRecords

ROWS = 1_024
"""How many records become Python objects at a time: few enough to stay in the CPU's cache until used."""
CLOSE_MS = 1_000
"""How long `close` waits for the fetching thread: if it is waiting for a broker, it ends by itself later."""
_NOWHERE = Begun(-1, -1, 0)
"""Where no read has begun."""


class SingleReader(Protocol):
    """An object with reads that `single_reader` decorates."""

    _read_by: dict[str, int]
    """The thread that is reading, if any: one entry, set atomically without a lock, so that an interrupt
    leaves nothing locked."""
    _undelivered: Any
    """The records that the running read is about to return; None between reads."""

    def _take_back(self) -> None:
        """Hand `_undelivered` out again with the next read."""


S = TypeVar("S", bound=SingleReader)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def single_reader(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make ``call`` raise `RuntimeError` while another thread is in such a call of the same object, and take
    back the records that it was about to return when an error or an interrupt ended it.

    Two readers would each get a part of every partition's records, and a group member would take part in
    the group twice. ``call`` itself can't take records back: an interrupt may come after its last step, and
    before its caller has the result.
    """

    @functools.wraps(call)
    def called(self: S, /, *args: P.args, **settings: P.kwargs) -> R:
        here, read_by = threading.get_ident(), self._read_by
        outermost = read_by.get("thread") != here
        reading = False
        try:
            if (reader := read_by.setdefault("thread", here)) != here:
                raise RuntimeError(
                    f"thread {_name(reader)!r} is reading from this consumer, and {_name(here)!r} may not at "
                    "the same time: read in one thread, or give each thread a consumer of its own"
                )
            if outermost:
                self._undelivered = None
                reading = True
            return call(self, *args, **settings)
        except BaseException:
            if reading:
                self._take_back()
            raise
        finally:
            # Without a call: nothing here can be interrupted.
            if reading:
                self._undelivered = None
            if outermost and "thread" in read_by and read_by["thread"] == here:
                del read_by["thread"]

    return called


def _name(thread_id: int) -> str:
    return next((one.name for one in threading.enumerate() if one.ident == thread_id), str(thread_id))


class PartitionReader:
    """The base of `Consumer` and `GroupConsumer`. It knows no group, and asks for no start offset.

    Records are fetched ahead in a thread of its own (`PrefetchThread`), bounded to
    `ReaderConfig.prefetch_max_bytes`; each partition comes in order, without loss or duplicate. **Any thread
    may call any method, also while another one waits in a read.** Only the reads wait (`read_columns`,
    `poll`, `next_record`), until their deadline at most. Reading itself is for one thread at a time: a
    second thread that reads meanwhile gets a `RuntimeError`.

    Guarantees from the moment a call returns:

    - `remove`, `seek`: no read that begins afterwards returns a record that was fetched for the partition
      before. A read that another thread is in at that moment took its records either before or after.
    - `pause`: the same, but the fetched records are kept for `resume`.
    - `position`: the offset after the record that was handed out last (or after hidden ones that follow it:
      markers, aborted transactions, compaction). It is the offset to commit once everything that was read so
      far is processed: with `poll` and iteration it includes the records that the caller got last.

    An error about one partition is raised once no records of that partition are left to hand out. An error
    that no retry resolves (`OffsetOutOfRangeError` without ``auto.offset.reset``, `LogTruncatedError`,
    `TopicRecreatedError`, `CorruptRecordError`) is raised again, whenever the others have nothing to hand
    out, until that partition is moved, paused or removed; after other errors fetching continues by itself.
    The other partitions are read on in any case.

    ``columns`` names the fields of `RecordColumns` to fill besides ``offset`` (None: all).
    ``watch`` is called beside the fetching thread once per ``metadata.max.age.ms``, to look for new
    partitions; `SOON_S` later if it returns that one is missing (``watch_soon``: from the start) or
    raises a `KafkaError`.
    """

    def __init__(
        self,
        router: Router,
        config: ReaderConfig,
        columns: frozenset[str] | None = None,
        watch: Callable[[], bool] | None = None,
        *,
        watch_soon: bool = False,
    ) -> None:
        self.inherited = False
        """True in a process that was forked from the one that made the reader."""
        self._config = config
        self.buffer = PrefetchBuffer(config.prefetch_max_bytes)
        """The records that were fetched ahead; shared with the fetching thread."""
        self._waited_s = 0.0
        """How long the reader has waited since it got records last."""
        self.lock = threading.Lock()
        self._read_by: dict[str, int] = {}
        self._undelivered: FetchedRecords | list[Record] | None = None
        self._taken_at: dict[TopicPartition, tuple[BufferedPartition, int]] = {}
        """The places at which the records in `_undelivered` and `rows` were taken."""
        self._begun: dict[TopicPartition, Begun] = {}
        """Where the last read began."""
        self._typing: tuple[object, RecordTyping] | None = None
        """How `read_typed` decoded last, with its arguments: schemas are looked up once."""
        self._fetched: FetchedRecords | None = None
        """The records that are being handed out row by row."""
        self._unpacked = 0
        """How many of their rows have been in `rows`."""
        self.rows: Iterator[Record] = iter(())
        """The rows that iteration takes from; empty once the reader is closed."""
        self._unpacked_rows = self.rows
        """The same, also after `close`: the position follows from the rows that are left in it."""
        columns = None if columns is None else columns | {"offset"}  # positions are counted by it
        prefetching = PrefetchThread(router, config, columns, self.buffer, watch)
        self._prefetching = prefetching
        prefetching.watch_soon(watch_soon)
        self._router, self._brokers = router, prefetching.brokers
        # No more than this: a finalizer may run anywhere, also while locks are held.
        weakref.finalize(self, setattr, self.buffer, "closed", True).atexit = False
        in_forked_child(self._disown)
        prefetching.thread.start()

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<PartitionReader of {len(self.buffer.partitions())} partitions{state}>"

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return self.buffer.closed

    @property
    def partitions(self) -> dict[TopicPartition, bool]:
        """The partitions that are read; True for each that is paused."""
        return self.buffer.partitions()

    @property
    def recreated(self) -> frozenset[TopicPartition]:
        """Partitions of recreated topics: their positions are offsets of the former topic, until a `seek`."""
        return self.buffer.recreated()

    @property
    def truncated(self) -> dict[TopicPartition, LogTruncatedError]:
        """Partitions with a log that was cut back before their position, until a `seek`, and their errors."""
        return self.buffer.truncated()

    @property
    def topic_ids(self) -> dict[TopicPartition, UUID]:
        """The ids of the topics that the positions belong to, as far as they are known."""
        return self.buffer.topic_ids()

    def add(
        self,
        topic_partition: TopicPartition,
        offset: int,
        topic_id: UUID | None = None,
        leader_epoch: int = -1,
        *,
        paused: bool = False,
        error: KafkaError | None = None,
    ) -> None:
        """Read a partition too, from ``offset`` on (``paused``: after `resume`; with an ``error``, which is
        raised first, as one that came while it was read).

        ``topic_id`` is the id that the offset belongs to (`TopicRecreatedError` if the topic has another);
        without it, that of the first response. ``leader_epoch`` is that of the record before it, if it is
        known (`LogTruncatedError` if the log does not have it there). Raises `ValueError` if the partition is
        being read already.
        """
        self.check_process()
        self.buffer.add(topic_partition, offset, topic_id, leader_epoch, paused=paused, error=error)

    def remove(self, topic_partition: TopicPartition) -> int:
        """Drop a partition and its fetched records; returns its `position`."""
        self.check_process()
        with self.lock:
            self._give_back_rows(topic_partition)
            return self.buffer.remove(topic_partition)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Continue from ``offset``; also after an error about the partition."""
        self.check_process()
        with self.lock:
            # Not dropped here: an interrupt before the seek must not let them be skipped.
            self._give_back_rows(topic_partition)
            self.buffer.seek(topic_partition, offset)
            self.buffer.partition(topic_partition).reset = None

    def watch_soon(self) -> None:
        """Call ``watch`` again soon: what it was refused before is out of date."""
        self.buffer.refuse({})
        self._prefetching.watch_soon(True)

    def reset_of(self, topic_partition: TopicPartition) -> AppliedReset | None:
        """The last reset of a partition since the caller has moved it."""
        found, fetched = self.buffer.reset_of(topic_partition), self._fetched
        if found is None or fetched is None or topic_partition != self._half_read:
            return found
        is_before = fetched.resets < self.buffer.partition(topic_partition).resets
        return found._replace(reached=False) if is_before else found

    def leader_epochs(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The leader epochs of the records before ``offsets``, as far as they are known."""
        return self.buffer.leader_epochs(offsets)

    def drop(self, topic_partition: TopicPartition) -> None:
        """Drop the fetched records of a partition with an error, which is raised next."""
        self.check_process()
        with self.lock:
            self._give_back_rows(topic_partition)
            self.buffer.drop(topic_partition)

    def drop_lost(self, topic_partition: TopicPartition) -> None:
        """If the log has lost the records that were read, drop those that were fetched before that reset."""
        self.check_process()
        with self.lock:
            self._give_back_rows(topic_partition)
            self.buffer.drop_lost(topic_partition)

    def give_back(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Hand out again what the last read returned of a partition, from ``offset`` on; False if the
        partition was moved or removed since, which counts."""
        self.check_process()
        with self.lock:
            if not self.buffer.is_at(topic_partition, self._taken_at.get(topic_partition)):
                return False
            self._give_back_rows(topic_partition)
            self.buffer.fetch_again(topic_partition, offset, self._begun.get(topic_partition, _NOWHERE))
            return True

    def pause(self, topic_partition: TopicPartition) -> None:
        """Hand out no records of a partition until `resume`. Fetched records are kept, up to
        ``prefetch_max_bytes`` for all paused partitions.
        """
        self.check_process()
        with self.lock:
            self._give_back_rows(topic_partition)
            self.buffer.pause(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        """Continue with a partition that was paused, at its position."""
        self.check_process()
        self.buffer.resume(topic_partition)

    def position(self, topic_partition: TopicPartition) -> int:
        """The offset before which everything was handed out."""
        with self.lock:
            return self._position(topic_partition, self.buffer.position(topic_partition))

    def positions(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """As `position`, of those that are being read: another thread may have closed it meanwhile. Records
        that a read of another thread has taken, and not returned yet, are not handed out.
        """
        with self.lock:
            read = self.buffer.partitions()
            found = {
                tp: self._position(tp, self.buffer.position(tp)) for tp in topic_partitions if tp in read
            }
            if self._undelivered is not None and self._read_by.get("thread") != threading.get_ident():
                found |= {tp: min(found[tp], at.offset) for tp, at in self._begun.items() if tp in found}
            return found

    def shown_position(self, topic_partition: TopicPartition) -> int:
        """As `position`, but without the lock, as `metrics`: within the records being handed out."""
        return self._position(topic_partition, self.buffer.position(topic_partition))

    def has_read(self, topic_partition: TopicPartition, end: int) -> bool:
        """True if a partition was read to ``end``; where the reset policy was applied, to the end of then if
        that is lower. A place beyond it may be one that the log does not have, which is an error or reset:
        that shows when it is fetched from.
        """
        reset = self.reset_of(topic_partition)
        shortened_to = self.buffer.partition(topic_partition).shortened_to
        if shortened_to is not None and shortened_to < end:
            if reset is not None and not reset.reached:
                return False
            end = shortened_to
        position = self.position(topic_partition)
        return position == end or (position > end and self.buffer.partition(topic_partition).confirmed)

    @single_reader
    def read_columns(self, deadline: Deadline | None = None) -> FetchedRecords | None:
        """The next records of any partition as columns; None when ``deadline`` (None: never) comes first.

        Raises `ConsumerClosedError`, also when it is closed meanwhile, and errors as described above.
        """
        return self._read(deadline, lambda fetched: (fetched, None))

    @single_reader
    def read_typed(
        self, formats: Mapping[str, FormatLike | None], mode: str, deadline: Deadline | None = None
    ) -> TypedRecords | None:
        """As `read_columns`, decoded. Raises as `RecordTyping`; the records are read again then."""
        wanted = (tuple(formats.items()), mode)
        if self._typing is None or self._typing[0] != wanted:
            self._typing = wanted, RecordTyping(formats, mode)
        return self._read(deadline, self._typing[1].decode)

    def _read(
        self, deadline: Deadline | None, make: Callable[[FetchedRecords], tuple[T, FetchedRecords | None]]
    ) -> T | None:
        """The next records as ``make`` returns them, with those of them that are not handed out yet."""
        self._taken_at.clear()
        while True:
            with self.lock:
                self._give_back_rows()
                self._check_open()
                self.buffer.check(again=False)
                fetched = self._undelivered = self.buffer.take()
                if fetched is not None:
                    self._taken_at[fetched.topic_partition] = self.buffer.place(fetched.topic_partition)
                    self._begun = {fetched.topic_partition: self._where(fetched, fetched.from_offset)}
            if fetched is not None:
                made, rest = make(fetched)
                if rest is not None:
                    self.buffer.give_back(rest, self._taken_at[fetched.topic_partition])
                return made
            if not self._wait(deadline):
                return None

    @single_reader
    def poll(self, max_records: int | None = None, deadline: Deadline | None = None) -> list[Record]:
        """The next records of any partitions: waits for the first, and takes those that are available, up to
        ``max_records`` (None: ``max.poll.records``). Empty when ``deadline`` comes first.
        """
        limit = self._config.max_poll_records if max_records is None else max_records
        found: list[Record] = []
        self._undelivered = found
        self._begin()
        ends: dict[TopicPartition, int] = {}
        while True:
            self.buffer.check(again=False, but=self._half_read)
            with self.lock:
                while len(found) < limit and self._unpack() and not self._steps_back(ends):
                    found.extend(islice(self.rows, limit - len(found)))
            if found or limit < 1 or not self._wait(deadline):
                return found

    def next_record(self, deadline: Deadline | None = None) -> Record | None:
        """The next record of any partition; None when ``deadline`` (None: never) comes first."""
        for record in self.rows:
            return record
        return self._wait_for_record(deadline)

    @single_reader
    def _wait_for_record(self, deadline: Deadline | None) -> Record | None:
        self._begin()
        while True:
            for record in self.rows:
                self._undelivered = [record]
                return record
            self.buffer.check(again=False, but=self._half_read)
            with self.lock:
                more = self._unpack()
            if not more and not self._wait(deadline):
                return None

    @property
    def registry(self) -> MetricsRegistry:
        """The registry of the consumer's metrics, for the metrics of its owner too."""
        return self.buffer.metrics

    @property
    def work_units(self) -> EventSource[WorkUnit]:
        """Events about the offset ranges that are fetched."""
        return self.buffer.work_units

    def metrics(self, observed: Iterable[Observed] = ()) -> MetricsSnapshot:
        """The metrics so far, with values ``observed`` elsewhere.

        Takes no locks but those of the registry, which are reentrant: it may be called in a signal handler
        while the interrupted thread holds the others.
        """
        seen = [*observed, *self.buffer.observed()]
        committed = self._config.isolation_level is IsolationLevel.READ_COMMITTED
        for tp, position, end in self.buffer.progress(read_committed=committed):
            lag = max(0, end - self._position(tp, position))
            seen.append(Observed(metric.LAG, lag, (tp.topic, str(tp.partition))))
        for brokers in (self._brokers, self._router):
            seen += brokers.observed()
        return self.buffer.metrics.snapshot(seen, [self._router.metrics])

    @property
    def has_news(self) -> bool:
        """True if a read would not have to wait."""
        return self.buffer.has_news

    def tell(self, listener: Callable[[], None] | None) -> None:
        """Call ``listener``, in any thread, whenever `has_news` may have become true."""
        self.buffer.listener = listener

    def close(self) -> None:
        """Stop fetching; a read in another thread raises `ConsumerClosedError`. May be called twice."""
        self.buffer.closed = True  # first: a read in another thread fills `rows` until then
        self.rows = iter(())
        if not self.inherited:  # else the thread is the parent's, and so may be its locks
            self.buffer.close()
            with released(self.buffer.locks):  # a signal handler may have interrupted their holder
                self.buffer.condition.wait_for(lambda: self.buffer.ended, Deadline.after_ms(CLOSE_MS))

    def _wait(self, deadline: Deadline | None) -> bool:
        """Wait for records or an error; False when ``deadline`` comes first."""
        self._check_open()
        self.buffer.check(again=True)
        began = time.monotonic()
        found = self.buffer.condition.wait_for(lambda: self.buffer.has_news, deadline)
        self._waited_s += time.monotonic() - began
        if found:  # the wait of reads that timed out before counts too
            self.buffer.metrics.measure(metric.CONSUMER_WAIT, self._waited_s)
            self._waited_s = 0.0
        return found

    def _check_open(self) -> None:
        self.check_process()
        failure = self.buffer.failure
        if failure is not None:
            raise ConsumerClosedError(f"the thread that fetches failed: {failure!r}") from failure
        if self.buffer.closed:
            raise ConsumerClosedError("the consumer is closed")

    def check_process(self) -> None:
        """Raise `ConsumerClosedError` if it is `inherited`."""
        if self.inherited:
            raise ConsumerClosedError(
                "the consumer was made in another process (before a fork); make one in this process"
            )

    def _disown(self) -> None:
        # The parent continues with the fetched records.
        self.inherited = True
        self.lock = threading.Lock()
        self._read_by = {}
        self.rows = iter(())
        self.buffer.disown()

    # Rows of one `FetchedRecords`, a part of them as Python objects; changed with `lock` held. An interrupt
    # comes at a call, never between plain assignments: no record is lost only because of that.

    def _begin(self) -> None:
        """A read of rows begins."""
        with self.lock:
            tp, fetched = self._half_read, self._fetched
            self._begun = {}
            if tp is not None and fetched is not None:
                self._begun[tp] = self._where(fetched, _offset_before(fetched, self._row()))

    def _where(self, fetched: FetchedRecords, offset: int) -> Begun:
        epoch = self.buffer.partition(fetched.topic_partition).epoch_at(offset)
        return Begun(offset, epoch, fetched.resets)

    def _unpack(self) -> bool:
        """Fill `rows` if it is empty; False if no records are waiting."""
        if operator.length_hint(self.rows):
            return True
        self._check_open()
        if operator.length_hint(self._unpacked_rows):  # an interrupt came before they were given back
            self.rows = self._unpacked_rows
            self._empty_if_closed()
            return True
        if self._fetched is None or self._unpacked == self._fetched.columns.length:
            self._fetched = None
            self._fetched, self._unpacked = self.buffer.take(), 0
        if self._fetched is None:
            return False
        end = min(self._unpacked + ROWS, self._fetched.columns.length)
        columns = self._fetched.columns.slice(self._unpacked, end)
        rows = iter(list(columns.records(*self._fetched.topic_partition)))
        self._taken_at[self._fetched.topic_partition] = self.buffer.place(self._fetched.topic_partition)
        at = _offset_before(self._fetched, self._unpacked)
        self._begun.setdefault(self._fetched.topic_partition, self._where(self._fetched, at))
        self.rows, self._unpacked_rows, self._unpacked = rows, rows, end
        self._empty_if_closed()
        return True

    def _empty_if_closed(self) -> None:
        """After `rows` was filled: raises `ConsumerClosedError` if another thread has closed the reader."""
        if self.buffer.closed:
            self.rows = iter(())
            self._check_open()

    def _steps_back(self, ends: dict[TopicPartition, int]) -> bool:
        """True if the next rows are before those that ``ends`` has of their partition, because
        ``auto.offset.reset`` applied: they are for the next poll. Otherwise notes where they end.
        """
        assert self._fetched is not None
        topic_partition, row = self._fetched.topic_partition, self._row()
        back = _offset_before(self._fetched, row) < ends.get(topic_partition, 0)
        if not back:
            ends[topic_partition] = _offset_before(self._fetched, self._unpacked)
        return back

    def _row(self) -> int:
        """The index of the row that is handed out next."""
        return self._unpacked - operator.length_hint(self._unpacked_rows)

    @property
    def _half_read(self) -> TopicPartition | None:
        """The partition that has rows left to hand out."""
        fetched = self._fetched
        if fetched is None or self._row() == fetched.columns.length:
            return None
        return fetched.topic_partition

    def _position(self, topic_partition: TopicPartition, taken_until: int) -> int:
        """The position of a partition after its records were taken up to ``taken_until``. Without the lock
        the rows may be those of another partition by now: then it is an offset within the records taken last.
        """
        fetched, row = self._fetched, self._row()
        if fetched is None or fetched.topic_partition != topic_partition:
            return taken_until
        return taken_until if row >= fetched.columns.length else _offset_before(fetched, max(0, row))

    def _give_back_rows(self, topic_partition: TopicPartition | None = None) -> None:
        """Return the rest of the rows to the buffer, if they are of that partition (None: of any)."""
        fetched, none = self._fetched, iter(())
        if fetched is None or topic_partition not in (None, fetched.topic_partition):
            return
        # First: a thread that iterates takes rows without the lock, and is to get none that are returned.
        self.rows = none
        row = self._row()
        if row < (length := fetched.columns.length):
            columns = fetched.columns.slice(row, length)
            rest = replace(fetched, columns=columns, from_offset=_offset_before(fetched, row))
            try:
                self.buffer.give_back(rest)
            except BaseException:  # an interrupt: before, during or after the call
                self.buffer.give_back(rest)
                self.rows, self._unpacked_rows, self._fetched = none, none, None
                raise
        self.rows, self._unpacked_rows, self._fetched = none, none, None

    def _take_back(self) -> None:
        undelivered = self._undelivered
        if isinstance(undelivered, FetchedRecords):
            self.buffer.give_back(undelivered, self._taken_at.get(undelivered.topic_partition))
            return
        first = {record.topic_partition: record.offset for record in reversed(undelivered or [])}
        for topic_partition, offset in first.items():
            self.give_back(topic_partition, offset)


def _offset_before(fetched: FetchedRecords, row: int) -> int:
    """The offset before which everything was handed out, once the first ``row`` rows were."""
    offsets = fetched.columns.offset
    if not row or offsets is None:
        return fetched.from_offset
    return int(offsets[row - 1]) + 1
