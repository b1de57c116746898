"""`TopicBuffer`: records of one topic on their way from the caller into batches, in the order of the calls.

There are two ways in: columns, and single records, which wait until there are enough for a column. One lock
keeps the order; it is held while batches are encoded, and never while a caller waits for room in the buffer.

An interrupt (Ctrl-C) may end any call of the main thread between any two steps. So each move of rows is a
`Move`: it notes the state of everything before it touches it, collects the batches that it makes, and hands
them to the sender in one step at its end. The next thread that takes the lock after an unfinished move first
puts everything back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self
from uuid import UUID

import numpy as np

from ...config.client_config import ProducerConfig
from ...records.columns import RecordColumns
from ...records.encode import BATCH_OVERHEAD_BYTES
from ..delivery import Delivery, DeliveryBlock, Rows, fails_records_only
from ..errors import ProducerClosedError, RecordTooLargeError
from .batch import Batch, BatchEncoder, Origin, Part, max_record_sizes
from .known_topic_id import KnownTopicId
from .memory import BufferMemory, Room
from .open_batches import BatchLimits, Incoming, Move, OpenBatches, SingleRecord, SingleRecords, WaitingRows
from .partitioner import PartitionFunction, Partitions, Targets, build_partitioner

MAX_SINGLE_BYTES = 4 * 1024 * 1024
"""Single records become columns at this size at the latest: it takes their caller some milliseconds."""


@dataclass(frozen=True, kw_only=True)
class BufferParts:
    """What the buffers of one producer have in common."""

    config: ProducerConfig
    partitioner: str | PartitionFunction
    """Of which each topic has its own."""
    encoder: BatchEncoder
    memory: BufferMemory
    new_block: Callable[[int], DeliveryBlock]
    post: Callable[[list[Batch]], None]
    """Hands batches to the sender. One step for an interrupt: `deque.extend`, not a function around it."""
    wake: Callable[[], None]
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """How large the records and batches of a topic may be."""

    topic: str
    max_bytes: int
    """Of a batch, once compressed: max.message.bytes. 0 while it is not known."""
    small_bytes: int
    """A record up to this size is certain to fit a batch."""
    max_request_size: int | None
    batches: BatchLimits
    encoder: BatchEncoder
    read_at: float
    """Monotonic seconds when the cluster was asked for ``max_bytes``."""

    @classmethod
    def of(cls, topic: str, max_bytes: int, parts: BufferParts) -> Self:
        """As the cluster has just said."""
        config, encoder = parts.config, parts.encoder
        cap = None if encoder.compresses else max_bytes
        return cls(
            topic=topic,
            max_bytes=max_bytes,
            small_bytes=min(min(max_bytes, config.max_request_size or max_bytes) // 2, config.buffer_memory),
            max_request_size=config.max_request_size,
            batches=BatchLimits.of(config.batch_size, config.batch_records, cap),
            encoder=encoder,
            read_at=parts.clock(),
        )

    def may_exceed(self, sizes: Rows) -> bool:
        """True if a record may be over the topic's limit; ``sizes`` are those of `max_record_sizes`. What
        can't be compressed grows a little."""
        largest = (
            self.max_bytes - BATCH_OVERHEAD_BYTES - (self.max_bytes // 64 if self.encoder.compresses else 0)
        )
        return bool(len(sizes)) and int(sizes.max()) > largest

    def too_large(self, columns: RecordColumns, sizes: Rows) -> Iterator[RecordTooLargeError]:
        """An error for each record that can never be sent, in order."""
        own, compresses = self.max_request_size, self.encoder.compresses
        limit = self.max_bytes if own is None else own if compresses else min(own, self.max_bytes)
        if own is None and compresses:
            return  # only the encoded batch can tell
        for row in np.flatnonzero(sizes > limit - BATCH_OVERHEAD_BYTES).tolist():
            size = int(sizes[row]) + BATCH_OVERHEAD_BYTES
            if not compresses:
                # The sizes are upper bounds, a few bytes too high: look closer at those near the limit.
                size = len(self.encoder.encode(columns, np.array([row]), 0))
            if size > limit:
                name = "max.request.size" if limit == own else "the topic's max.message.bytes"
                yield RecordTooLargeError.of(self.topic, row, size, limit, name)


class Closing:
    """What the sender wants closed: the queues that are ``due``, as of ``at``."""

    __slots__ = ("at", "done", "due", "reason")

    def __init__(self, due: Callable[[WaitingRows], bool], reason: object, at: float) -> None:
        self.due = due
        self.reason = reason
        self.at = at
        self.done = False


class TopicBuffer:
    """The buffer of one topic."""

    def __init__(self, topic: str, parts: BufferParts) -> None:
        self.topic = topic
        self.lock = threading.RLock()
        self.closed = False
        self._id = KnownTopicId()
        self.targets = Targets.all(topic, 0)
        self.described_at = parts.clock()
        self.limits = TopicLimits.of(topic, 0, parts)
        self._waiting_since: float | None = None
        """Monotonic seconds since which the oldest record has waited for its batch to fill, or None."""
        self._parts = parts
        self._room = Room()
        self._single: SingleRecords | None = None
        partitioner = build_partitioner(parts.partitioner, parts.config.batch_size)
        self._open = OpenBatches(topic, parts.encoder, partitioner)
        self._move: _BufferMove | None = None
        self._closing: Closing | None = None
        """For the next thread that takes the lock."""
        self._asked: Closing | None = None
        """The sender's own note of it."""

    # What the cluster says.

    def describe(self, topic_id: UUID | None, targets: Targets, max_message_bytes: int) -> None:
        """What the cluster says about the topic; the lock is held. Partitions are only ever added: the open
        batch of a partition outlives it."""
        before, now = self._id.current, self._parts.clock()
        if not self._id.learn(topic_id, now):
            return  # a broker that lags behind: its answer is about another topic
        is_same = before is not None and self._id.current == before
        if is_same and targets.count < self.targets.count:
            # A broker that lags behind. With fewer partitions, records would leave that of their key.
            targets = replace(targets, count=self.targets.count)
        self.described_at = now
        self._open.grow(targets.count)
        self.targets = targets
        if max_message_bytes != self.limits.max_bytes:
            self.limit_batches(max_message_bytes)

    @property
    def topic_id(self) -> UUID | None:
        """The topic's id; None where brokers have none."""
        return self._id.current

    @property
    def partitions(self) -> int:
        """How many partitions there are open batches for."""
        return len(self._open.partitions)

    @property
    def limit_age_s(self) -> float:
        """Seconds since the cluster was asked for the limit of a batch."""
        return self._parts.clock() - self.limits.read_at

    def limit_batches(self, max_message_bytes: int) -> None:
        """No batch may be larger, once compressed: the cluster has just said so."""
        self.limits = TopicLimits.of(self.topic, max_message_bytes, self._parts)

    # Records in.

    def append_record(self, record: SingleRecord, size: int) -> Delivery | None:
        """Append one record; None when no room was granted for it (then `grant` and call again)."""
        with self.lock:
            if self._move is not None:
                self._put_in_order()
            if self._closing is not None:
                self._close_for_sender()
            if self._single is None and self._room.records and not self.closed:
                self._open_single()
            # From here up to the append nothing is called: the record is taken in, room and all, or it is
            # not, and all that a signal's handler does (it may close the producer) is before or after it.
            single, room = self._single, self._room
            if single is None or room.size < size or not room.records or self.closed:
                return None
            row = single.count
            room.size -= size
            room.records -= 1
            single.size += size
            single.count = row + 1
            try:
                single.fields.extend(record)
            except MemoryError:
                room.size += size
                room.records += 1
                single.size -= size
                single.count = row
                raise
            if single.size >= single.full_bytes:
                self._close_full_single()
            return Delivery(single.block, row)

    def _close_full_single(self) -> None:
        move = self._begin()
        try:
            self._close_single(move)
            self._commit(move)
        finally:
            move.live = False
        self._parts.wake()

    def grant(self, room: Room) -> None:
        """``room`` is for single records to come."""
        with self.lock:
            if self._move is not None:
                self._put_in_order()
            own = self._room
            own.size += room.size
            own.records += room.records
            room.size = room.records = 0

    @property
    def granted(self) -> tuple[int, int]:
        """Bytes and records of buffer memory that no single record has used yet."""
        return max(0, self._room.size), self._room.records

    def append_columns(
        self,
        columns: RecordColumns,
        sizes: Rows,
        partition: Partitions | None,
        origin: Origin,
        room: Room,
        *,
        by_sender: bool = False,
    ) -> None:
        """Take columns in, and the ``room`` that was reserved for them with them.

        Raises `RecordError`, any error of a partitioner, or `ProducerClosedError`; then, as after an
        interrupt, none of them were taken. The sender's thread still appends while the producer closes.
        """
        with self.lock:
            if self._move is not None:
                self._put_in_order()
            if self._closing is not None:
                self._close_for_sender()
            if self.closed and not by_sender:
                raise ProducerClosedError("the producer takes no more records")
            move = self._begin()
            try:
                self._close_single(move)
                self._append(move, Incoming(columns, sizes, partition, origin), self._parts.clock())
                taken = self._commit(move, room, refused=not by_sender)
            except BaseException:
                if self._move is move:
                    self._undo()
                raise
            finally:
                move.live = False
            if not taken:
                self._undo()
                raise ProducerClosedError("the producer was closed by a signal's handler meanwhile")
            self._parts.wake()

    def append_alone(
        self, columns: RecordColumns, partition: int, origin: Origin, keep: Callable[[Batch], None]
    ) -> None:
        """Called by the sender's thread: make a batch of ``columns``, show it to ``keep`` and hand it over.

        What ``keep`` raises leaves everything as it was.
        """
        with self.lock:
            if self._move is not None:
                self._put_in_order()
            batch = self._open.partitions[partition].close_alone(columns, origin, self._parts.clock())
            keep(batch)
            self._parts.post([batch])

    # Records out.

    def shut(self) -> None:
        """Accept nothing more, and close the waiting rows into batches."""
        with self.lock:
            self.closed = True
            self._close_all(lambda _queue: True)

    def close_waiting(
        self, due: Callable[[WaitingRows], bool], now: float, reason: object = None
    ) -> float | None:
        """Called by the sender's thread: close the single records, and the chunks of the queues that are
        ``due``. Returns ``now``.

        None while a caller appends: the sender must not queue up behind a busy caller, and where many append
        it might never find the lock free. The next caller that appends closes them first, and the next call
        with the same ``reason`` returns the ``now`` of this one.
        """
        asked, self._asked = self._asked, None
        if asked is not None and asked.reason != reason:
            asked = None
        if asked is not None and asked.done:
            return asked.at
        if not self.lock.acquire(blocking=False):
            self._asked = self._closing = asked or Closing(due, reason, now)
            return None
        try:
            self._closing = None
            self._close_all(due)
        finally:
            self.lock.release()
        return now

    @property
    def waiting_since(self) -> float | None:
        """Since when the oldest record waits for its batch to fill; None where none waits.

        Records on the move are waiting still, until their batches are handed over: a flush looks here first,
        and then for those.
        """
        move = self._move
        return self._waiting_since if move is None else move.waiting_since

    def holds_since(self, moment: float) -> bool:
        """True if a record that came up to ``moment`` still waits for its batch to fill."""
        since = self.waiting_since
        return since is not None and since <= moment

    def _close_for_sender(self) -> None:
        closing = self._closing
        if closing is not None:
            self._close_all(closing.due)
            closing.done = True
            self._closing = None  # if it is another by now, the sender asks for that again
            self._parts.wake()

    def _close_all(self, due: Callable[[WaitingRows], bool]) -> None:
        if self._move is not None:
            self._put_in_order()
        move = self._begin()
        try:
            self._close_single(move)
            self._open.close(move, due, self._parts.clock())
            self._waiting_since = self._open.oldest
            self._commit(move)
        finally:
            move.live = False
        self._parts.memory.give_back(self._room)

    # Moves. All of it under the lock.

    def _begin(self) -> _BufferMove:
        move = _BufferMove(self._single, self._room.size, self._waiting_since)
        self._move = move
        return move

    def _commit(self, move: _BufferMove, room: Room | None = None, *, refused: bool = False) -> bool:
        """False where a signal's handler has closed the producer meanwhile, so that it was undone, or is
        ``refused``."""
        if self._move is not move or (self.closed and refused):
            return False
        # Nothing is called before the last line: the rows and their room are handed over together, or not at
        # all.
        if room is not None:
            room.size = room.records = 0
        self._move = None
        self._parts.post(move.closed)
        return True

    def _put_in_order(self) -> None:
        """Undo a move that an interrupt has ended, or one that goes on only after the signal's handler which
        closes the producer."""
        if self._move is not None and self._move.live and not self.closed:
            raise RuntimeError(
                f"topic {self.topic}: a partitioner, or the handler of a signal that has interrupted send(), "
                "can't send records or flush: only close() is possible there"
            )
        self._undo()

    def _undo(self) -> None:
        """Put everything back to where it was before the move; if this is interrupted, the next caller starts
        over."""
        move = self._move
        if move is not None:
            move.put_back()
            self._single, self._room.size, self._waiting_since = (
                move.single,
                move.room_size,
                move.waiting_since,
            )
            self._move = None

    def _open_single(self) -> None:
        # Divided among the partitions, they shall fill a batch of each: small ones cost the sender and the
        # broker as much as large ones.
        config = self._parts.config
        several = min(config.batch_size * self.targets.count, MAX_SINGLE_BYTES, config.buffer_memory // 8)
        full_bytes = max(config.batch_size, several)
        single = SingleRecords(self._parts.new_block(0), self._parts.clock(), full_bytes)
        if self._single is None:  # a signal's handler may have sent a record
            self._single = single
        if self._waiting_since is None:
            self._waiting_since = single.opened_at
        self._parts.wake()  # the sender has to notice when the batch has lingered long enough

    def _close_single(self, move: _BufferMove) -> None:
        single, self._single = self._single, None
        if single is None or not single.count:
            return
        count = single.count
        single.block.start(count, None)
        try:
            columns, partition = single.columns()
            sizes = max_record_sizes(columns)
            rows = Incoming(columns, sizes, partition, Origin(single.block))
            self._append(move, rows, single.opened_at)
        except BaseException as error:  # a partitioner may raise anything, and `send` has returned long ago
            if not fails_records_only(error):
                raise
            move.put_back()  # a move closes the single records before anything else
            parts = [Part(single.block, np.arange(count), 0)]
            move.closed = [self._open.failed(parts, single.size, single.opened_at, error)]
            return
        single.block.start(count, columns.timestamp_ms)
        # `send` sized each record's size before it knew its neighbours; the grant makes up the difference.
        self._room.size += single.size - int(sizes.sum())

    def _append(self, move: Move, rows: Incoming, since: float) -> None:
        held = self._open.append(move, rows, self.targets, self.limits.batches, since)
        if held and self._waiting_since is None:
            self._waiting_since = since


class _BufferMove(Move):
    """A move, and the state of the buffer before."""

    __slots__ = ("live", "room_size", "single", "waiting_since")

    def __init__(self, single: SingleRecords | None, room_size: int, waiting_since: float | None) -> None:
        super().__init__()
        self.single = single
        self.room_size = room_size
        self.waiting_since = waiting_since
        self.live = True
        """True if the call that began it has not ended."""
