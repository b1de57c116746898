"""What became of records that were handed over: `Delivery` for one, `ColumnsDelivery` for a column of them.

Both look into a `DeliveryBlock`, to which the sender reports whole batches: nothing is done per record
until somebody asks for one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..model import TopicPartition
from ..network.deadline import Deadline
from .errors import DeliveryError, DeliveryStatus

_LOG = logging.getLogger("spark_kafka_native")
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMetadata:
    """Where a record is in the log."""

    topic_partition: TopicPartition
    offset: int | None
    """None where the broker did not tell: acks=0, or a batch that it recognised as one it had."""
    timestamp_ms: int
    """The record's own (CreateTime) or the broker's (LogAppendTime)."""
    status: DeliveryStatus
    """PERSISTED; with acks=0 POSSIBLY_PERSISTED, as nobody confirms anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a batch ended. Shared by all of its records."""

    topic_partition: TopicPartition
    status: DeliveryStatus
    base_offset: int | None = None
    log_append_time_ms: int | None = None
    encoded_at_ms: int = -1
    """The timestamp of the batch's records that came without one."""
    error: DeliveryError | None = None


class DeliveryBlock:
    """``length`` records handed over together. The sender reports batches to it; any thread asks."""

    __slots__ = ("_changed", "_left", "_segments", "callbacks", "length", "timestamps", "urgent", "wake")

    def __init__(self, length: int, changed: threading.Condition, wake: Callable[[], None]) -> None:
        self.length = length
        self.timestamps: npt.NDArray[np.int64] | None = None
        self.urgent = False
        """Somebody waits: the records must not linger."""
        self.wake = wake
        self.callbacks: dict[int, list[Callable[[Delivery], None]]] = {}
        self._changed = changed
        self._left = length
        self._segments: list[tuple[Rows, int, Outcome]] = []

    def start(self, length: int, timestamps: npt.NDArray[np.int64] | None) -> None:
        """Single records have become ``length`` rows; none was reported before."""
        with self._changed:
            self.length = self._left = length
            self.timestamps = timestamps

    def report(self, rows: Rows, first: int, outcome: Outcome) -> None:
        """``rows`` (ascending) are the records ``first``, ``first + 1``, ... of the batch that ended so."""
        with self._changed:
            self._segments.append((rows, first, outcome))
            self._left -= len(rows)
            if self._left == 0 or self.callbacks or self.urgent:
                self._changed.notify_all()
            waiting = [row for row in rows.tolist() if row in self.callbacks] if self.callbacks else []
            called = [(row, self.callbacks.pop(row)) for row in waiting]
        for row, callbacks in called:
            for callback in callbacks:
                _call(callback, Delivery(self, row))

    @property
    def done(self) -> bool:
        """Whether every record has ended."""
        return self._left == 0

    @property
    def segments(self) -> list[tuple[Rows, int, Outcome]]:
        """What was reported so far: rows, their first place in the batch, and how it ended."""
        with self._changed:
            return list(self._segments)

    def find(self, row: int) -> tuple[int, Outcome] | None:
        """The place of ``row`` in its batch and how that ended; None while it is under way."""
        for rows, first, outcome in self._segments:
            place = _find(rows, row)
            if place >= 0:
                return first + place, outcome
        return None

    def wait(self, ended: Callable[[], bool], timeout_ms: float | None) -> bool:
        """Wait until ``ended``; False when the time ran out first. Whoever waits wants the records sent at
        once."""
        if ended():
            return True
        self.urgent = True
        self.wake()
        deadline = None if timeout_ms is None else Deadline.after_ms(timeout_ms)
        with self._changed:
            while not ended():
                if deadline is None:
                    self._changed.wait()
                elif deadline.expired or not self._changed.wait(deadline.remaining_ms / 1000):
                    return ended()
        return True


class Delivery:
    """One record's delivery, in the manner of a `concurrent.futures.Future`."""

    __slots__ = ("_block", "_row")

    def __init__(self, block: DeliveryBlock, row: int) -> None:
        self._block = block
        self._row = row

    @property
    def is_first(self) -> bool:
        """Whether no record of its block came before."""
        return self._row == 0

    def done(self) -> bool:
        """Whether the record has ended, well or not."""
        return self._block.find(self._row) is not None

    @property
    def status(self) -> DeliveryStatus | None:
        """What is known about the record; None while it is under way."""
        found = self._block.find(self._row)
        return None if found is None else found[1].status

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait (``timeout`` in seconds, as a Future's) for where the record is.

        Raises `DeliveryError` if it was not delivered, TimeoutError if it is still under way.
        """
        place, outcome = self._wait(timeout)
        if outcome.error is not None:
            raise outcome.error
        return self._metadata(place, outcome)

    def exception(self, timeout: float | None = None) -> DeliveryError | None:
        """As `result`, but returns the error, or None when the record was delivered."""
        return self._wait(timeout)[1].error

    def add_done_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Call ``callback(self)`` once the record has ended, in the sender's thread (or now, if it has)."""
        with self._block._changed:
            if self._block.find(self._row) is None:
                self._block.callbacks.setdefault(self._row, []).append(callback)
                return
        _call(callback, self)

    def _wait(self, timeout: float | None) -> tuple[int, Outcome]:
        self._block.wait(self.done, None if timeout is None else timeout * 1000)
        found = self._block.find(self._row)
        if found is None:
            raise TimeoutError(f"the record is still under way after {timeout} s")
        return found

    def _metadata(self, place: int, outcome: Outcome) -> RecordMetadata:
        timestamp_ms = outcome.log_append_time_ms
        if timestamp_ms is None:
            given = self._block.timestamps
            timestamp_ms = outcome.encoded_at_ms if given is None else int(given[self._row])
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
    """int64[n]; -1 where the broker did not tell."""


class ColumnsDelivery:
    """The delivery of the records of one `Producer.send_columns`."""

    __slots__ = ("_block",)

    def __init__(self, block: DeliveryBlock) -> None:
        self._block = block

    def __len__(self) -> int:
        return self._block.length

    def done(self) -> bool:
        """Whether every record has ended, well or not."""
        return self._block.done

    def result(self, timeout: float | None = None) -> DeliveredColumns:
        """Wait (seconds) for where the records are.

        Raises the `DeliveryError` of the first batch that was not delivered, TimeoutError if some are
        under way.
        """
        errors = self.exceptions(timeout)
        if errors:
            raise errors[0]
        return self._columns()

    def exceptions(self, timeout: float | None = None) -> list[DeliveryError]:
        """As `result`, but returns the errors, one for each batch that was not delivered."""
        if not self._block.wait(lambda: self._block.done, None if timeout is None else timeout * 1000):
            raise TimeoutError(f"records are still under way after {timeout} s")
        found = [outcome.error for _, _, outcome in self._block.segments if outcome.error is not None]
        return list({id(error): error for error in found}.values())

    def first_failure(self) -> tuple[int, DeliveryError] | None:
        """The first row that is known not to have been delivered, and why; None while there is none."""
        failed = [(int(rows[0]), o.error) for rows, _, o in self._block.segments if o.error is not None]
        return min(failed, key=lambda one: one[0]) if failed else None

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


def _find(rows: Rows, row: int) -> int:
    place = int(np.searchsorted(rows, row))
    return place if place < len(rows) and rows[place] == row else -1


def _call(callback: Callable[[Delivery], None], delivery: Delivery) -> None:
    try:
        callback(delivery)
    except Exception:  # noqa: BLE001 - a callback's bug must not end the thread that delivers everybody's records
        _LOG.exception("a delivery callback failed")
