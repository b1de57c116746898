"""`BufferMemory`: how much a producer may hold. It counts bytes and records; it allocates nothing."""

from __future__ import annotations

import threading

from ..network.deadline import Deadline
from .errors import BufferFullError, ProducerClosedError


class BufferMemory:
    """Two counters with caps. Any thread reserves; whoever ends a batch releases."""

    def __init__(self, most_bytes: int, most_records: int) -> None:
        self.most_bytes = most_bytes
        self.most_records = most_records
        self._free = threading.Condition(threading.Lock())
        self._bytes = 0
        self._records = 0
        self._waiting = 0
        self._closed: BaseException | None = None

    @property
    def used(self) -> tuple[int, int]:
        """Bytes and records reserved now."""
        return self._bytes, self._records

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for room: then batches should go out as they are."""
        return self._waiting > 0

    def full_for(self, size: int, records: int) -> bool:
        """Whether there is no room for so much at this moment."""
        return not self._fits(size, records)

    def reserve(self, size: int, records: int, wait_ms: float) -> None:
        """Take room for ``records`` of ``size`` bytes together, neither above its cap.

        Waits up to ``wait_ms`` (0: not at all). Raises `BufferFullError`, or `ProducerClosedError` when
        the producer is closed before or meanwhile.
        """
        with self._free:
            if not self._fits(size, records):
                self._wait(size, records, wait_ms)
            if self._closed is not None:
                raise ProducerClosedError("the producer is closed") from self._closed
            self._bytes += size
            self._records += records

    def release(self, size: int, records: int) -> None:
        """Give room back."""
        with self._free:
            self._bytes -= size
            self._records -= records
            if self._waiting:
                self._free.notify_all()

    def close(self, cause: BaseException | None = None) -> None:
        """Refuse every further `reserve`, also those that wait; ``cause`` is what they are told."""
        with self._free:
            self._closed = cause or ProducerClosedError("close() was called")
            self._free.notify_all()

    def _fits(self, size: int, records: int) -> bool:
        if self._closed is not None:
            return True
        return self._bytes + size <= self.most_bytes and self._records + records <= self.most_records

    def _wait(self, size: int, records: int, wait_ms: float) -> None:
        deadline = Deadline.after_ms(wait_ms)
        self._waiting += 1
        try:
            while not self._fits(size, records):
                if deadline.expired or not self._free.wait(deadline.remaining_ms / 1000):
                    if self._fits(size, records):
                        return
                    raise BufferFullError(
                        f"no room for {records} more records of {size} bytes within {wait_ms:.0f} ms: "
                        f"{self._records} records and {self._bytes} bytes wait for the brokers; send slower, "
                        f"or raise buffer.memory ({self.most_bytes}), queue.buffering.max.messages "
                        f"({self.most_records}) or max.block.ms"
                    )
        finally:
            self._waiting -= 1
