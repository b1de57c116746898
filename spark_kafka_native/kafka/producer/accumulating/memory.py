"""`BufferMemory`: how much a producer may hold. It counts bytes and records; it allocates nothing.

Room that was reserved belongs to a `Room` until a batch takes it over: when any exception interrupts its
owner, the account of the memory and that of the room change in one step. (CPython looks for signals where
something is called or a loop begins anew, never between plain assignments.)
"""

from __future__ import annotations

import threading

from ...observe import catalogue as metric
from ...observe.metrics import MetricsRegistry
from ...runtime.deadline import Deadline
from ..errors import BufferFullError, ProducerClosedError

MAX_NAP_S = 0.5
"""An interrupt may keep a thread from waking the next in line: all of them look again after this long."""


class Room:
    """Room that was reserved and not used yet. Its owner takes from it as it goes."""

    __slots__ = ("records", "size")

    def __init__(self) -> None:
        self.size = 0
        self.records = 0


class _Waiter:
    """A thread in line for room."""

    __slots__ = ("nap",)

    def __init__(self) -> None:
        self.nap = threading.Lock()


class BufferMemory:
    """Two counters with caps. Any thread reserves, first come first served; the end of a batch releases."""

    def __init__(self, max_bytes: int, max_records: int, metrics: MetricsRegistry | None = None) -> None:
        self._metrics = metrics or MetricsRegistry()
        self.max_bytes = max_bytes
        self.max_records = max_records
        self.lock = threading.RLock()
        """Reentrant, as all of a producer's: the handler of a signal may close it."""
        self._bytes = 0
        self._records = 0
        self._line: dict[_Waiter, None] = {}
        """The waiting threads, first come first served: a large request would never get room if small ones
        could overtake it."""
        self._closed: BaseException | None = None

    @property
    def used(self) -> tuple[int, int]:
        """Bytes and records reserved now."""
        return self._bytes, self._records

    @property
    def waiting(self) -> bool:
        """True if any thread is waiting for room: batches should then go out as they are."""
        return bool(self._line)

    def lacks(self, size: int, records: int) -> bool:
        """True if a reservation of this size would have to wait at this moment."""
        return bool(self._line) or not self._fits(size, records)

    def reserve(self, room: Room, size: int, records: int, wait_ms: float) -> None:
        """Reserve room for ``records`` of ``size`` bytes in total, neither above its cap, and add it to
        ``room``.

        Waits up to ``wait_ms`` (0: not at all), behind earlier requests. Raises `BufferFullError`, or
        `ProducerClosedError` when the producer is closed before or meanwhile.
        """
        if not self._take(room, size, records, None):
            with self._metrics.timed(metric.PRODUCER_WAIT, "room"):
                self._wait(room, size, records, wait_ms)

    def overdraw(self, room: Room, size: int, records: int) -> None:
        """As `reserve`, but at once and beyond the caps: for the sender's thread, which must never wait for
        room that only it can free."""
        with self.lock:
            self._bytes += size
            self._records += records
            room.size += size
            room.records += records

    def release(self, size: int, records: int) -> None:
        """Give back the room that a batch had."""
        with self.lock:
            self._bytes -= size
            self._records -= records
        if self._line:
            self._wake_first()

    def give_back(self, room: Room) -> None:
        """Give back the rest of ``room``; harmless when it is empty."""
        with self.lock:
            self._bytes -= room.size
            self._records -= room.records
            room.size = room.records = 0
        if self._line:
            self._wake_first()

    def close(self, cause: BaseException | None = None) -> None:
        """Refuse every further `reserve`, also those that wait; ``cause`` is what they raise."""
        with self.lock:
            self._closed = cause or ProducerClosedError("close() was called")
        for waiter in list(self._line):
            _wake(waiter)

    def _take(self, room: Room, size: int, records: int, waiter: _Waiter | None) -> bool:
        with self.lock:
            if self._closed is not None:
                raise ProducerClosedError("the producer is closed") from self._closed
            if next(iter(self._line), None) is not waiter or not self._fits(size, records):
                return False
            self._bytes += size
            self._records += records
            room.size += size
            room.records += records
            return True

    def _fits(self, size: int, records: int) -> bool:
        return self._bytes + size <= self.max_bytes and self._records + records <= self.max_records

    def _wait(self, room: Room, size: int, records: int, wait_ms: float) -> None:
        deadline = Deadline.after_ms(wait_ms)
        waiter = _Waiter()
        waiter.nap.acquire()
        try:
            self._line[waiter] = None
            while not self._take(room, size, records, waiter):
                if deadline.expired:
                    raise self._full(size, records, wait_ms)
                waiter.nap.acquire(timeout=min(MAX_NAP_S, deadline.remaining_ms / 1000))
        finally:
            self._line.pop(waiter, None)
            self._wake_first()

    def _wake_first(self) -> None:
        """There may be room for the next in line now."""
        for waiter in list(self._line)[:1]:
            _wake(waiter)

    def _full(self, size: int, records: int, wait_ms: float) -> BufferFullError:
        """Names only the cap that is in the way: room for single records is reserved in portions, which would
        make the other figure a riddle."""
        if self._records + records > self.max_records:
            lacks = "another record" if records == 1 else f"{records} more records"
            waits = f"{self._records} records"
            cap = f"queue.buffering.max.messages ({self.max_records})"
        else:
            lacks, waits = f"{size} more bytes", f"{self._bytes} bytes"
            cap = f"buffer.memory ({self.max_bytes})"
        longer = " or max.block.ms" if wait_ms else ""
        return BufferFullError(
            f"no room for {lacks} within {wait_ms:.0f} ms: {waits} wait for the brokers; send slower, or "
            f"raise {cap}{longer}"
        )


def _wake(waiter: _Waiter) -> None:
    try:
        waiter.nap.release()
    except RuntimeError:
        return  # it is awake
