"""The outcome of records that were handed over: `Delivery` for one, `ColumnsDelivery` for a column of them.

Both look into a `DeliveryBlock`, to which the sender reports whole batches: nothing is done per record until
a caller asks for one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import KafkaError, own_copy
from ..model import NO_TIMESTAMP_MS, TopicPartition
from ..observe import catalogue as metric
from ..observe.metrics import MetricsRegistry
from ..runtime.deadline import Deadline
from ..runtime.waiting import LocklessCondition
from .errors import DeliveryError, DeliveryStatus, ProducerClosedError, RecordsRefusedError

_LOG = logging.getLogger("spark_kafka_native")
Rows = npt.NDArray[np.int64]
_NO_ROWS: Rows = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMetadata:
    """Where a record is in the log."""

    topic_partition: TopicPartition
    offset: int | None
    """None where the broker did not say: acks=0, or a batch that it recognised as a duplicate."""
    timestamp_ms: int
    """The record's own (CreateTime) or the broker's (LogAppendTime)."""
    status: DeliveryStatus
    """PERSISTED; with acks=0 POSSIBLY_PERSISTED, as no broker confirms anything."""

    @property
    def topic(self) -> str:
        """That of `topic_partition`."""
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        """That of `topic_partition`."""
        return self.topic_partition.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a batch ended. Shared by all of its records."""

    topic_partition: TopicPartition
    status: DeliveryStatus
    base_offset: int | None = None
    log_append_time_ms: int | None = None
    error: DeliveryError | None = None


class DeliveryBlock:
    """``length`` records handed over together. The sender reports batches to it; any thread may ask."""

    __slots__ = (
        "_callbacks",
        "_hurry",
        "_left",
        "_lock",
        "_places",
        "_segment_of",
        "_segments",
        "_segments_indexed",
        "_waiters",
        "length",
        "stamped_ms",
        "timestamps",
    )

    def __init__(self, length: int, waiters: Waiters, hurry: Callable[[], None]) -> None:
        self.length = length
        self.timestamps: npt.NDArray[np.int64] | None = None
        self.stamped_ms = NO_TIMESTAMP_MS
        """The time of the call: the timestamp of the records that came without one."""
        self._hurry = hurry
        self._callbacks: dict[int, list[Callable[[Delivery], None]]] = {}
        self._lock = waiters.lock
        self._waiters = waiters
        self._left = length
        self._segments: list[tuple[Rows, int, Outcome]] = []
        # Of each row, made when a caller asks for one: as many partitions are as many segments.
        self._segments_indexed = 0
        self._segment_of = self._places = _NO_ROWS

    def start(self, length: int, timestamps: npt.NDArray[np.int64] | None) -> None:
        """Single records have become ``length`` rows; none was reported before."""
        self.length = self._left = length
        self.timestamps = timestamps

    def report(self, rows: Rows, first: int, outcome: Outcome) -> None:
        """``rows`` (ascending) are the records ``first``, ``first + 1``, ... of the batch that ended so."""
        with self._lock:
            self._segments.append((rows, first, outcome))
            self._left -= len(rows)
            called = []
            if self._callbacks:
                waiting = [row for row in rows.tolist() if row in self._callbacks]
                called = [(row, self._callbacks.pop(row)) for row in waiting]
        self._waiters.notify_all()
        for row, callbacks in called:
            for callback in callbacks:
                _call_from_sender(callback, Delivery(self, row))

    def call_back(self, row: int, callback: Callable[[Delivery], None]) -> None:
        """Call ``callback`` once ``row`` has ended: now, if it has."""
        self._waiters.check_process()
        with self._lock:
            mine = self._callbacks.setdefault(row, [])
            mine.append(callback)
            if self.find(row) is None:
                return
            if self._callbacks.pop(row, None) is not mine:  # reported meanwhile, and called
                return
        try:
            callback(Delivery(self, row))
        except Exception:  # noqa: BLE001 - the same as if it were called later
            _LOG.exception("a delivery callback failed")

    @property
    def is_heard(self) -> bool:
        """True if a callback waits for the end of any record."""
        return bool(self._callbacks)

    @property
    def done(self) -> bool:
        """True if every record has ended."""
        return self._left == 0

    @property
    def segments(self) -> list[tuple[Rows, int, Outcome]]:
        """The reports so far: rows, their first place in the batch, and its outcome."""
        return list(self._segments)

    def find(self, row: int) -> tuple[int, Outcome] | None:
        """The place of ``row`` in its batch and how that ended; None while it is under way."""
        if len(self._segments) != self._segments_indexed:
            with self._lock:
                self._index_segments()
        return self._look_up(row)

    def _look_up(self, row: int) -> tuple[int, Outcome] | None:
        segment = self._segment_of.item(row) if self._segments_indexed else -1
        return None if segment < 0 else (self._places.item(row), self._segments[segment][2])

    def _index_segments(self) -> None:
        """Take in the reports since the last time; the lock is held, but other threads look rows up."""
        # Read first: a signal's handler that waits for the sender lets it report more meanwhile.
        indexed, known = self._segments_indexed, len(self._segments)
        if not indexed:
            self._segment_of, self._places = np.full(self.length, -1), np.zeros(self.length, np.int64)
        for number in range(indexed, known):
            rows, first, _ = self._segments[number]
            self._places[rows] = np.arange(first, first + len(rows))
            self._segment_of[rows] = number
        self._segments_indexed = known

    def hurry(self) -> None:
        """Have the records sent at once, without waiting for batches to fill."""
        self._hurry()

    def wait(self, ended: Callable[[], bool], timeout_ms: float | None) -> bool:
        """Wait until ``ended``; False when the timeout expired first. A thread that waits wants the records
        sent at once.

        Raises `ProducerClosedError` in a process forked from the producer's, where nothing will end any more.
        """
        if ended():
            return True
        self._hurry()
        with self._waiters.metrics.timed(metric.PRODUCER_WAIT, "delivery"):
            return self._waiters.wait_for(
                ended, None if timeout_ms is None else Deadline.after_ms(timeout_ms)
            )


class Delivery:
    """One record's delivery, in the manner of a `concurrent.futures.Future`."""

    __slots__ = ("_block", "_row")

    def __init__(self, block: DeliveryBlock, row: int) -> None:
        self._block = block
        self._row = row

    def done(self) -> bool:
        """True if the record has ended, well or not."""
        return self._block.find(self._row) is not None

    @property
    def status(self) -> DeliveryStatus | None:
        """The outcome of the record; None while it is under way."""
        found = self._block.find(self._row)
        return None if found is None else found[1].status

    def __repr__(self) -> str:
        found = self._block.find(self._row)
        if found is None:
            return "<Delivery under way>"
        place, outcome = found
        where, offset = outcome.topic_partition, outcome.base_offset
        if outcome.error is not None:
            return f"<Delivery failed: {outcome.error}>"
        return (
            f"<Delivery {outcome.status.name} {where}"
            + ("" if offset is None else f" offset {offset + place}")
            + ">"
        )

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait (``timeout`` in seconds, as a Future's) for where the record is.

        Raises `DeliveryError` if it was not delivered, TimeoutError if it is still under way.
        """
        place, outcome = self._wait(timeout)
        if outcome.error is not None:
            raise own_copy(outcome.error)  # all records of the batch have the same
        return self._metadata(place, outcome)

    def exception(self, timeout: float | None = None) -> DeliveryError | None:
        """As `result`, but returns the error, or None when the record was delivered."""
        return self._wait(timeout)[1].error

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """As `result`, in asyncio: ``where = await producer.send(...)``. It does not hold up the event loop,
        and cancelling it cancels no record."""
        from asyncio import get_running_loop  # late: most programs have none, and it takes long to import

        loop = get_running_loop()
        ended = loop.create_future()

        def end() -> None:
            if not ended.done():  # cancelled
                ended.set_result(None)

        def tell(_: Delivery) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
                loop.call_soon_threadsafe(end)

        self.add_done_callback(tell)
        if not self.done():
            self._block.hurry()
        yield from ended
        return self.result(0)

    def add_done_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Call ``callback(self)`` once the record has ended, in the sender's thread (or now, if it has)."""
        self._block.call_back(self._row, callback)

    def _wait(self, timeout: float | None) -> tuple[int, Outcome]:
        found = self._block.find(self._row)
        if found is not None:
            return found
        self._block.wait(self.done, None if timeout is None else timeout * 1000)
        found = self._block.find(self._row)
        if found is None:
            raise TimeoutError(f"the record is still under way after {timeout} s")
        return found

    def _metadata(self, place: int, outcome: Outcome) -> RecordMetadata:
        timestamp_ms = outcome.log_append_time_ms
        if timestamp_ms is None:
            given = self._block.timestamps
            timestamp_ms = self._block.stamped_ms if given is None else int(given[self._row])
        return RecordMetadata(
            topic_partition=outcome.topic_partition,
            offset=None if outcome.base_offset is None else outcome.base_offset + place,
            timestamp_ms=timestamp_ms,
            status=outcome.status,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredColumns:
    """Where ``n`` records are in the log, as columns in the order in which they were handed over."""

    topics: tuple[str, ...]
    """The topics' names; ``topic`` counts in them."""
    topic: npt.NDArray[np.int32]
    """int32[n]"""
    partition: npt.NDArray[np.int32]
    """int32[n]"""
    offset: npt.NDArray[np.int64]
    """int64[n]; -1 where the broker did not say."""


class ColumnsDelivery:
    """The delivery of the records of one `Producer.send_columns`."""

    __slots__ = ("_block",)

    def __init__(self, block: DeliveryBlock) -> None:
        self._block = block

    def __len__(self) -> int:
        return self._block.length

    def __repr__(self) -> str:
        status = self.status()
        left = int((status < 0).sum())
        failed = sum(len(rows) for rows, _, outcome in self._block.segments if outcome.error is not None)
        return f"<ColumnsDelivery {len(status)} records, {left} under way, {failed} failed>"

    def done(self) -> bool:
        """True if every record has ended, well or not."""
        return self._block.done

    def result(self, timeout: float | None = None) -> DeliveredColumns:
        """Wait (seconds) for where the records are.

        Raises the `DeliveryError` of the first batch that was not delivered (failed ones come before those
        skipped or dead-lettered by choice), TimeoutError if some are under way.
        """
        errors = self.exceptions(timeout)
        if errors:
            raise own_copy(min(errors, key=lambda error: error.by_choice))
        return self._columns()

    def exceptions(self, timeout: float | None = None) -> list[DeliveryError]:
        """As `result`, but returns the errors, one for each batch that was not delivered."""
        if not self._block.wait(lambda: self._block.done, None if timeout is None else timeout * 1000):
            raise TimeoutError(f"records are still under way after {timeout} s")
        found = [outcome.error for _, _, outcome in self._block.segments if outcome.error is not None]
        return list({id(error): error for error in found}.values())

    def first_failure(self) -> tuple[int, DeliveryError] | None:
        """The first row that is known not to have been delivered, and why; None while there is none. Of a
        batch with records that the broker named it is the first of these.

        Records that were skipped or dead-lettered, as configured, are no failure.
        """
        failed = [
            (int(rows[_first_refused(outcome.error, first, len(rows)) or 0]), outcome.error)
            for rows, first, outcome in self._block.segments
            if outcome.error is not None and not outcome.error.by_choice
        ]
        return min(failed, key=lambda one: one[0]) if failed else None

    def refused_row(self, error: DeliveryError) -> int | None:
        """The first row that the broker named in ``error``, the failure of a batch that may have rows of
        other deliveries, too; None if it named no row of this one.
        """
        named = [
            int(rows[place])
            for rows, first, outcome in self._block.segments
            if outcome.error is error and (place := _first_refused(error, first, len(rows))) is not None
        ]
        return min(named, default=None)

    def status(self) -> npt.NDArray[np.int8]:
        """`DeliveryStatus` of each record, int8[n]; -1 for those under way."""
        status = np.full(self._block.length, -1, np.int8)
        for rows, _, outcome in self._block.segments:
            status[rows] = outcome.status
        return status

    def _columns(self) -> DeliveredColumns:
        n = self._block.length
        topics: dict[str, int] = {}
        topic, partition, offset = np.zeros(n, np.int32), np.zeros(n, np.int32), np.full(n, -1, np.int64)
        for rows, first, outcome in self._block.segments:
            topic[rows] = topics.setdefault(outcome.topic_partition.topic, len(topics))
            partition[rows] = outcome.topic_partition.partition
            if outcome.base_offset is not None:
                offset[rows] = outcome.base_offset + first + np.arange(len(rows))
        return DeliveredColumns(topics=tuple(topics), topic=topic, partition=partition, offset=offset)


def _first_refused(error: DeliveryError, first: int, records: int) -> int | None:
    """The place among the ``records`` from ``first`` of a batch on; None if the broker names none of them."""
    cause = error.__cause__
    named = cause.places if isinstance(cause, RecordsRefusedError) else ()
    return min((place - first for place in named if first <= place < first + records), default=None)


class PartlyTakenError(KafkaError):
    """Columns of which some rows were taken when the rest could not be; ``__cause__`` is why.

    The ``taken`` rows are being delivered: sending all of them again would duplicate these. ``delivery`` (a
    `ColumnsDelivery`; None after pickling) says what became of each row.
    """

    def __init__(self, reason: str, taken: int, rows: int, delivery: ColumnsDelivery | None = None) -> None:
        super().__init__(reason, taken, rows)
        self.reason = reason
        self.taken = taken
        self.rows = rows
        self.delivery = delivery

    def __reduce__(self) -> tuple[type[PartlyTakenError], tuple[str, int, int]]:
        return type(self), (self.reason, self.taken, self.rows)

    def __str__(self) -> str:
        return (
            f"{self.taken:,} of {self.rows:,} rows were taken and are being delivered, the others were not: "
            f"{self.reason}"
        )


def _call_from_sender(callback: Callable[[Delivery], None], delivery: Delivery) -> None:
    try:
        callback(delivery)
    except BaseException:  # noqa: BLE001 - nor its sys.exit() may end the thread that delivers everybody's records
        _LOG.exception("a delivery callback failed")


class SenderThread(threading.Thread):
    """The thread of a producer that delivers the records of all callers."""


def fails_records_only(error: BaseException) -> bool:
    """True if ``error``, of a partitioner or a codec, ends the records at hand and nothing else. In the
    sender's thread any does: an extension's panic, or a sys.exit(), must not end the thread that delivers
    everybody's records. A caller's thread may be interrupted."""
    return isinstance(error, Exception) or isinstance(threading.current_thread(), SenderThread)


def words_of(error: Exception) -> str:
    """What to say of ``error``: of a partitioner's, say, its kind too."""
    return str(error) if isinstance(error, KafkaError) else repr(error)


class Waiters(LocklessCondition):
    """The threads that wait for the sender; in a forked child they raise, as it is not there."""

    def __init__(self, metrics: MetricsRegistry | None = None) -> None:
        super().__init__()
        self.metrics = metrics or MetricsRegistry()
        self.lock = threading.RLock()
        """Guards the state of all deliveries: it is never held for long."""
        self._process_id = os.getpid()

    @property
    def forked(self) -> bool:
        """True if this is a process forked from the producer's: nothing ends there any more."""
        return os.getpid() != self._process_id

    def check_process(self) -> None:
        """Raise `ProducerClosedError` where the process is `forked`."""
        if self.forked:
            raise ProducerClosedError(
                "the producer was made in another process (before a fork); make one in this process"
            )

    def wait_for(
        self, predicate: Callable[[], bool], deadline: Deadline | None, awaited: object = None
    ) -> bool:
        """Wait until ``predicate`` is true; False if ``deadline`` passed first. Raises as `check_process`."""

        def look() -> bool:
            if predicate():
                return True
            self.check_process()
            return False

        return super().wait_for(look, deadline, awaited)
