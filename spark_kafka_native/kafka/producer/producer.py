"""`Producer`: records in, one by one or as columns; record batches out, buffered, pipelined and retried.

Encoding happens in the caller's thread, the network in one background thread; both release the GIL where it
counts.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from time import time as _now_s
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..cluster.router import Router, check_shared
from ..config.client_config import Bootstrap, ClientConfig, ProducerConfig, configs_from
from ..errors import ConfigError, DeadlineExceededError, KafkaError, own_copy
from ..observe import catalogue as metric
from ..observe.events import EventStream
from ..observe.metrics import MetricsSnapshot, Observed
from ..records.columns import RecordColumns
from ..runtime.deadline import Deadline, Timeout, Wakeup
from ..runtime.fork import in_forked_child
from ..runtime.waiting import released
from .accumulating.batch import Batch, BatchEncoder
from .accumulating.encoded_columns import ColumnEncoding, FormatLike
from .accumulating.memory import BufferMemory, Room
from .accumulating.open_batches import SingleRecord
from .accumulating.partitioner import ExplicitPartitioner, PartitionFunction, build_partitioner
from .accumulating.records_in import (
    Columns,
    RecordHeaders,
    Sendable,
    TopicColumns,
    as_bytes,
    check_timestamp,
    checked_headers,
    columns_by_topic,
    columns_of,
)
from .accumulating.topic_buffer import BufferParts, TopicBuffer
from .accumulating.topics import CheckedColumns, RecordChecks, Topics, TopicSlice, slice_rows
from .completion import Acknowledgement, BatchCompletion, OnError, Undelivered
from .delivery import ColumnsDelivery, Delivery, DeliveryBlock, PartlyTakenError, Waiters, words_of
from .errors import ProducerClosedError, RecordError
from .live_producers import LIVE
from .oversized import OverLimit
from .sending.sender import Sender, SenderLoop
from .sending.transaction import Transaction
from .spill_folder import SpillFolder
from .spilling import Replay, Spilling
from .stats import AcknowledgedOffsets, ProducerStats, StatsRecorder

RECORD_OVERHEAD = 24
"""Bytes that a single record is counted with beyond its key, value and headers; the rest is settled in
its batch."""
GRANT_BYTES = 64 * 1024
GRANT_RECORDS = 1024
"""Room for single records is reserved in portions of this size: a lock per record would cost more than the
record."""

EXPIRES_MS = 1_000
"""Records that a `close` waits for in vain shall say that their own time is over, not that it was called."""


class Producer:
    """A buffered producer. Thread-safe; a context manager that waits for everything on the way out.

    ``bootstrap`` says how to reach the cluster: ``"host:port"`` of some brokers (`Bootstrap`), a
    `ClientConfig`, or a mapping of Kafka's property names. ``producer`` says how to produce; keywords are the
    fields of `ProducerConfig`, `ClientConfig` and `SecurityConfig`, and take precedence. ``partitioner`` may
    be a name, or a function over whole key columns; ``on_error(topic_partition, records, error, retriable)``
    is called for every batch that could not be delivered, in the sender's thread. A ``router`` that is given
    is shared and stays open.
    """

    _transaction: Transaction | None = None
    """Of a transactional producer, which sets it first of all."""

    def __init__(
        self,
        bootstrap: Bootstrap | None = None,
        producer: ProducerConfig | None = None,
        *,
        partitioner: str | PartitionFunction | None = None,
        on_error: OnError | None = None,
        router: Router | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(partitioner, str):
            settings["partitioner"] = partitioner
            partitioner = None
        given = router.config if bootstrap is None and router is not None else bootstrap
        config, self._config = _configs(given, settings, producer)
        check_shared(router, config)
        self._owns_router = router is None
        self._router = router or Router(config)
        self._encoder = BatchEncoder(self._config, transactional=self._transaction is not None)
        chosen: str | PartitionFunction = partitioner or self._config.partitioner
        # A wrong name fails here, not at the first record.
        self._explicit = isinstance(build_partitioner(chosen, 1), ExplicitPartitioner)
        self._stats = StatsRecorder()
        self._memory = BufferMemory(
            self._config.buffer_memory, self._config.max_buffered_records, self._stats.metrics
        )
        self._waiters = Waiters(self._stats.metrics)
        self._buffers: dict[str, TopicBuffer] = {}
        self._column_encoding = ColumnEncoding()
        spilling = Spilling(SpillFolder(self._config.spill_dir) if self._config.spill_dir else None)
        try:
            self._start(chosen, spilling, on_error)
        except BaseException:
            spilling.close()
            raise

    def _start(
        self, partitioner: str | PartitionFunction, spilling: Spilling, on_error: OnError | None
    ) -> None:
        self._completion = BatchCompletion(
            self._memory, self._stats, spilling, on_error, self._config.keep_undelivered, self._waiters
        )
        if self._transaction is not None:
            self._completion.says_losses = False  # its commit does
        self._over_limit = OverLimit(
            self._config, self._buffers, self._encoder, self._memory, self._completion, self._stats
        )
        # Appending to it is the one step in which a batch becomes the sender's: an interrupt in a caller
        # leaves it on one side or on the other.
        inbox: deque[Batch] = deque()
        wakeup = Wakeup()
        self._replay = Replay(spilling.left_over, inbox.extend, self._waiters)
        parts = BufferParts(
            config=self._config,
            partitioner=partitioner,
            encoder=self._encoder,
            memory=self._memory,
            new_block=self._new_block,
            post=inbox.extend,
            wake=wakeup.set,
        )
        self._topics = Topics(self._buffers, self._router, parts, self._replay.post)
        self._sender = self._build_sender(inbox, wakeup, spilling)
        self._checks = RecordChecks(
            self._topics,
            self._config.buffer_memory,
            explicit=self._explicit,
            sets_apart=self._over_limit.applies,
            dead_letter_topic=self._config.dead_letter_topic,
        )
        self._sender.start()
        LIVE.add(self)
        self._replay.start(self._open_for_replay)

    def _build_sender(self, inbox: deque[Batch], wakeup: Wakeup, spilling: Spilling) -> Sender:
        loop = SenderLoop(
            self._router,
            self._config,
            topics=self._topics,
            memory=self._memory,
            completion=self._completion,
            spilling=spilling,
            over_limit=self._over_limit,
            replay=self._replay,
            stats=self._stats,
            transaction=self._transaction,
            inbox=inbox,
            wake=wakeup.set,
        )
        return Sender(loop, wakeup, self._topics, self._waiters, self._release)

    def send(  # noqa: C901, PLR0913 - a call per record costs more than the record; a record has six parts
        self,
        topic: str,
        value: bytes | str | None = None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: RecordHeaders | None = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """Send one record; `Delivery.result` says where it is in the log. Strings are sent as UTF-8.

        ``on_delivery(delivery)`` is called once the record has ended, well or not, in the sender's thread: it
        must not take long, nor wait for a delivery.

        Without ``timestamp_ms`` the record has the time of the call. Records of one partition are written in
        the order of the calls. Raises `RecordError` (too large, no
        such partition), `BufferFullError`, `BrokerError` for a topic that can't be written,
        `ProducerClosedError`.
        """
        try:
            buffer = self._buffers[topic]
        except KeyError:
            if timestamp_ms is None:
                timestamp_ms = int(_now_s() * 1000)  # of the call: the topic may be waited for
            buffer = self._buffer(topic)
        size = RECORD_OVERHEAD
        if key is not None:
            key = key if key.__class__ is bytes else as_bytes(key, "key")
            size += len(key)
        if value is not None:
            value = value if value.__class__ is bytes else as_bytes(value, "value")
            size += len(value)
        if headers:
            headers = checked_headers(headers)
            size += sum(10 + len(name) * 4 + len(content or b"") for name, content in headers)
        # A bad record fails here: later it would hold up others.
        # A whole number costs more than the rest of this line: `SingleRecords` makes one, of all at once.
        stamp = _now_s() * 1000.0 if timestamp_ms is None else check_timestamp(timestamp_ms)
        if partition is None:
            if self._explicit:
                self._checks.partition(buffer, None)
        elif partition.__class__ is not int or not 0 <= partition < buffer.targets.count:
            partition = self._checks.partition(buffer, partition)
        record = (key, value, partition, stamp, headers or None)
        if size <= buffer.limits.small_bytes:
            while (delivery := buffer.append_record(record, size)) is None:
                self._grant(buffer, size)
        else:
            delivery = self._send_large(buffer, record, size)
        if on_delivery is not None:
            delivery.add_done_callback(on_delivery)
        return delivery

    def send_columns(
        self,
        columns: Columns,
        topic: str | None = None,
        partition: int | npt.NDArray[Any] | pa.Array | None = None,
        *,
        value_format: FormatLike | None = None,
        key_format: FormatLike | None = None,
    ) -> ColumnsDelivery:
        """Send ``n`` records as columns; far faster than one by one.

        A RecordBatch, Table, or data frame of pandas or polars has columns ``value`` and ``key`` (binary or
        string) and, if wanted,
        ``headers``, ``timestamp`` (a timestamp, or int64 milliseconds), ``partition`` (whole numbers;
        null: the partitioner's choice) and ``topic``; the arguments ``topic`` and ``partition`` take
        precedence over those. Others are ignored. With a format (its name, or a `ColumnFormat`) the values or
        keys are of the format's type, such as a struct, and encoded here; a null stays null.

        Rows of one partition are written in their order. Raises as `send`, a `RecordError` with the row, and
        then nothing of these columns was taken; `PartlyTakenError` where something was. An interrupt leaves
        the first rows taken and the others not, in slices of up to 8 MiB.
        """
        stamped_ms = self._encoder.clock_ms()  # of the call, however long it has to wait
        if value_format is not None or key_format is not None:
            formats = {"key": key_format, "value": value_format}
            columns = self._column_encoding.encode(columns, topic, formats)
        parts = columns_by_topic(columns, topic, partition)
        self._prepare(self._topics.open(part.topic for part in parts))
        block = self._new_block(sum(part.columns.length for part in parts))
        block.stamped_ms = stamped_ms
        checked = [self._checks.columns(self._buffers[part.topic], part) for part in parts]
        if len(parts) == 1:
            block.timestamps = parts[0].columns.timestamp_ms
        self._take(checked, block)
        return ColumnsDelivery(block)

    def send_many(
        self, topic: str, records: Iterable[Sendable], *, partition: int | None = None
    ) -> ColumnsDelivery:
        """Send `Record`s, mappings with `send`'s names (``{"key": "42", "value": b"..."}``: value, key,
        headers, timestamp_ms), or values alone, in their order; several times as fast as `send` for each.

        A Record keeps its key, value, headers and timestamp, and goes where ``topic`` and ``partition``
        (None: the partitioner's choice) say. A tuple is refused: it does not say which part is the key.
        All of them are checked before any is taken; raises as `send_columns`.
        """
        return self.send_columns(columns_of(records, self._encoder.clock_ms()), topic, partition)

    def flush(self, timeout: Timeout = None) -> None:
        """Wait until everything sent before has ended, well or not (its `Delivery` and ``on_error`` say
        which); records replayed from the spill folder included.

        Raises `DeadlineExceededError` when ``timeout`` (seconds, or a `Deadline`; None: no limit) runs out
        first, `KafkaError` where records from the spill folder can't be sent, `ProducerClosedError` in a
        process forked from the producer's.
        """
        self._check_caller("flush()")
        with self._stats.metrics.timed(metric.PRODUCER_WAIT, "flush"):
            flushed = self._flush(None if timeout is None else Deadline.of(timeout, 0))
        if not flushed:
            # Those from the folder take no room in the buffer.
            again = [one.records for one in list(self._completion.incomplete) if one.spilled is not None]
            spilled = self._replay.left_records + sum(again)
            records = self.stats().buffered_records + spilled
            over = "at the deadline" if isinstance(timeout, Deadline) else f"after {timeout:g} s"
            folder = f", {spilled} of them from the spill folder" if spilled else ""
            raise DeadlineExceededError(f"flush: {records} records are still under way {over}{folder}")
        self._replay.raise_if_left()

    def close(self, timeout: Timeout = None) -> None:
        """Deliver what there is, for at most ``timeout`` seconds (or until a `Deadline`; None: the delivery
        timeout), and end.

        The rest is given up then: its deliveries fail, and with a spill folder it is kept. Harmless
        when closed; of several that close at the same time, the earliest deadline counts for all.
        """
        if self._waiters.forked:
            return  # the parent closes it
        self._topics.close(ProducerClosedError("close() was called"))
        allowed_ms = self._config.delivery_timeout_ms + EXPIRES_MS
        if self._sender.is_current_thread:
            self._end_open_work(timeout)
            self._sender.stop(Deadline.of(timeout, allowed_ms))
            return
        with self._released():
            self._end_open_work(timeout)
            deadline = Deadline.of(timeout, allowed_ms)
            self._replay.wait(deadline)
            self._sender.stop(deadline)

    def stats(self) -> ProducerStats:
        """The counts so far."""
        return self._stats.snapshot(*self._buffered())

    def metrics(self) -> MetricsSnapshot:
        """All counts and measurements so far: `MetricsSnapshot.since` an earlier one gives those of the
        time in between. A ``router`` that is shared counts ``kafka.client.*`` for all its clients."""
        records, size = self._buffered()
        batches = len(self._sender.inbox) + len(self._completion.incomplete)
        own = [
            *self._stats.observed(),
            Observed(metric.BUFFERED_RECORDS, records),
            Observed(metric.BUFFERED_BYTES, size),
            Observed(metric.QUEUED_BATCHES, batches),
        ]
        return self._stats.metrics.snapshot([*own, *self._router.observed()], [self._router.metrics])

    def acknowledgements(self, capacity: int = 1_000) -> EventStream[Acknowledgement]:
        """How each batch ends, from now on. At most ``capacity`` wait to be read, and the oldest
        are dropped for newer ones."""
        return self._completion.acknowledgements.subscribe(capacity)

    def _buffered(self) -> tuple[int, int]:
        """Records, and bytes, that were accepted and have not ended."""
        size, records = self._memory.used
        granted = [buffer.granted for buffer in list(self._buffers.values())]
        return max(0, records - sum(g[1] for g in granted)), max(0, size - sum(g[0] for g in granted))

    def offset(self) -> AcknowledgedOffsets:
        """How far the brokers have acknowledged: per partition the offset behind its last acknowledged
        record, and the sum of these. Without acknowledgements (acks=0) there is nothing in it."""
        return self._stats.offsets()

    @property
    def closed(self) -> bool:
        """True if no more records are taken: `close` was called, the producer failed for good, or the process
        was forked from its own."""
        return self._waiters.forked or self._topics.closed or not self._sender.running

    def undelivered(self) -> list[Undelivered]:
        """The records that could not be delivered since the last call, with ``keep_undelivered``; in order by
        partition.
        """
        left = self._completion.undelivered
        return [left.popleft() for _ in range(len(left))]

    def disown(self) -> None:
        """In a forked child: refuse everything; the parent's threads, locks and connections are not there."""
        cause = ProducerClosedError(
            "the producer was made in another process (before a fork); make one in this process"
        )
        self._memory = BufferMemory(0, 0)
        self._memory.close(cause)
        self._topics.disown(cause, self._memory)
        self._stats = StatsRecorder()
        self._completion.disown()

    def __repr__(self) -> str:
        stats = self.stats()
        state = "running" if self._sender.running else "ended"
        return (
            f"<Producer to {','.join(self._router.config.bootstrap_servers)}, {state}: {stats.records} "
            f"records delivered, {stats.failed_records} failed, {stats.buffered_records} under way>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Taking records in.

    def _prepare(self, opened: list[str]) -> None:
        """Have the sender connect to the brokers it will need, while the first batches are encoded."""
        for topic in opened:
            self._sender.prepare(topic)

    def _buffer(self, topic: str) -> TopicBuffer:
        self._prepare(self._topics.open((topic,)))
        return self._buffers[topic]

    def _grant(self, buffer: TopicBuffer, size: int) -> None:
        """Reserve room for single records: for one of ``size`` bytes, or for many where there is plenty. Only
        of bytes or of records, if there is room for the other: the rest would pile up.
        """
        self._topics.raise_if_closed()
        ample = not self._memory.waiting
        large = ample and self._config.buffer_memory >= 64 * GRANT_BYTES
        many = ample and self._config.max_buffered_records >= 64 * GRANT_RECORDS
        bytes_left, records_left = buffer.granted
        portion = max(size, GRANT_BYTES) if large else size
        records = GRANT_RECORDS if many else 1
        room = Room()
        try:
            self._reserve(room, 0 if bytes_left >= size else portion, 0 if records_left else records)
            buffer.grant(room)
        finally:
            self._memory.give_back(room)

    def _reserve(self, room: Room, size: int, records: int) -> None:
        waits = self._config.block_on_buffer_full and not self._sender.is_current_thread
        if self._memory.lacks(size, records):
            self._sender.hurry()
        self._memory.reserve(room, size, records, self._config.max_block_ms if waits else 0)

    def _send_large(self, buffer: TopicBuffer, record: SingleRecord, size: int) -> Delivery:
        """A single record that may be over a limit."""
        apart = self._checks.single(buffer, record)
        if apart is None:
            size = min(size, self._config.buffer_memory)  # an estimate, and its real size is no larger
            while (delivery := buffer.append_record(record, size)) is None:
                self._grant(buffer, size)
            return delivery
        nothing = TopicColumns(topic=apart.part.topic, columns=RecordColumns(length=0))
        block = self._new_block(1)
        self._take([CheckedColumns(nothing, np.zeros(0, np.int64), apart)], block)
        return Delivery(block, 0)

    def _take(self, checked: list[CheckedColumns], block: DeliveryBlock) -> None:
        self._topics.raise_if_closed()  # nothing may be left of them to append, which would notice
        slices = [
            piece
            for one in checked
            for piece in slice_rows(self._buffers[one.part.topic], one.part, one.sizes, block, self._config)
        ]
        letters = self._over_limit.write_letters(checked, block)
        try:
            self._take_slices([*slices, *letters], block)
        except PartlyTakenError:
            self._over_limit.skip(checked, block)
            raise
        self._over_limit.skip(checked, block)

    def _take_slices(self, slices: list[TopicSlice], block: DeliveryBlock) -> None:
        for number, one in enumerate(slices):
            try:
                self._append_slice(one)
            except Exception as error:
                if not number:
                    raise
                left = sum(len(refused.sizes) for refused in slices[number:])
                for refused in slices[number:]:
                    own = refused.origin.block  # of a dead letter it is another
                    self._completion.refuse(refused.buffer.topic, own, refused.rows, error)
                delivery = ColumnsDelivery(block)
                raise PartlyTakenError(
                    words_of(error), block.length - left, block.length, delivery
                ) from error

    def _append_slice(self, one: TopicSlice) -> None:
        self._topics.raise_if_closed()
        room = Room()
        try:
            self._reserve(room, one.size, len(one.sizes))
            one.buffer.append_columns(one.columns, one.sizes, one.partition, one.origin, room)
        except RecordError as error:
            raise one.located(error) from error.__cause__
        finally:
            self._memory.give_back(room)

    def _new_block(self, length: int) -> DeliveryBlock:
        return DeliveryBlock(length, self._waiters, self._hurry)

    # Waiting and ending.

    def _released(self) -> AbstractContextManager[None]:
        """Without the locks that the sender needs, while this thread waits for it: in a signal's handler it
        may hold any of them."""
        buffers = [buffer.lock for buffer in list(self._buffers.values())]
        inner = [self._memory.lock, self._waiters.lock, self._sender.wakeup.lock]
        transaction = [] if self._transaction is None else [self._transaction.lock]
        counts = [self._stats.metrics.lock, self._router.metrics.lock]
        events = self._completion.acknowledgements.locks
        connections = self._router.leave()
        return released([self._topics.lock, *buffers, *transaction, *inner, *connections, *events, *counts])

    def _hurry(self) -> None:
        self._check_caller("waiting for a delivery")
        self._sender.hurry()

    def _flush(self, deadline: Deadline | None) -> bool:
        """True once all records that were there at first have ended; False if ``deadline`` passed before."""
        if not self._replay.wait(deadline):
            return False
        self._replay.retry()  # a topic that failed then may have recovered
        if not self._replay.wait(deadline):
            return False
        now, buffers = time.monotonic(), list(self._buffers.values())
        self._sender.hurry()

        def held() -> bool:
            return any(buffer.holds_since(now) for buffer in buffers)

        if not self._waiters.wait_for(lambda: not (held() and self._sender.running), deadline):
            return False
        if held() and not self._sender.running:  # by a sender that has failed: they never end
            self._topics.raise_if_closed()
        # In this order: a batch is incomplete before it leaves the inbox.
        awaited = [*self._sender.inbox.copy(), *list(self._completion.incomplete)]

        def ended() -> bool:
            while awaited and awaited[-1].complete:
                awaited.pop()
            return not awaited or not self._sender.running

        return self._waiters.wait_for(ended, deadline)

    def _open_for_replay(self, topic: str) -> None:
        self._prepare(self._topics.open((topic,), for_replay=True))

    def _release(self) -> None:
        """Called by the sender's thread at its end: nothing uses these any more."""
        self._completion.close()
        if self._owns_router:
            self._close_router()
        LIVE.discard(self)

    def _close_router(self) -> None:
        """For good: a call that was interrupted to close it may still use it."""
        error: KafkaError = ProducerClosedError("the producer is closed")
        try:
            self._topics.raise_if_closed()
        except ProducerClosedError as refusal:  # with the failure that ended it, if one did
            error = own_copy(refusal)
        self._router.end(error)

    # What a producer with transactions needs besides.

    @property
    def _delivered_records(self) -> int:
        return self._stats.delivered_records

    def _end_open_work(self, timeout: Timeout) -> None:
        """Called by `close` first, also in a callback."""

    def _wait_until_quiet(self, deadline: Deadline) -> bool:
        """After a flush: wait until nothing that was sent can be answered any more; False if ``deadline``
        passed first."""
        return self._waiters.wait_for(lambda: self._sender.quiet, deadline)

    def _fail(self, error: KafkaError) -> None:
        """End for good: a transaction's coordinator said so."""
        self._sender.fail(error)
        self._topics.close(error)

    def _raise_if_closed(self) -> None:
        self._topics.raise_if_closed()

    def _check_caller(self, what: str) -> None:
        """Before any lock: its holder may be waiting for the thread of the callback that calls, or be in
        another process."""
        self._waiters.check_process()
        self._raise_if_callback(what)

    def _raise_if_callback(self, what: str) -> None:
        if self._sender.is_current_thread:
            raise RuntimeError(f"{what} in a callback would wait for the thread that it runs in: for ever")


_LOCK = threading.Lock()
_SHARED: dict[tuple[Any, ...], Producer] = {}


def producer_for(
    bootstrap: Bootstrap | None = None,
    name: str = "",
    *,
    producer: ProducerConfig | None = None,
    **settings: Any,
) -> Producer:
    """The producer of this process for these settings (as `Producer` takes them) and this ``name``; made when
    it is first asked for, or when the last one was closed. After a fork each process has its own.

    It does not have to be closed: all records are delivered when the process ends. Closing it closes it
    for all callers; use `Producer.flush`.
    """
    configs = _configs(bootstrap, settings, producer)
    key = (os.getpid(), name, *configs)
    with _LOCK:
        found = _SHARED.get(key)
        if found is None or found.closed:
            for other in [other for other, shared in _SHARED.items() if other[0] != key[0] or shared.closed]:
                del _SHARED[other]
            found = _SHARED[key] = Producer(*configs)
        return found


def _configs(
    bootstrap: Bootstrap | None, settings: dict[str, Any], producer: ProducerConfig | None
) -> tuple[ClientConfig, ProducerConfig]:
    # To ignore it would write outside of transactions what belongs into one.
    if isinstance(bootstrap, Mapping) and bootstrap.get("transactional.id"):
        raise ConfigError(
            "transactional.id: a Producer has no transactions, and each of its records counts at once. Use "
            "TransactionalProducer, or leave the property out"
        )
    return configs_from(bootstrap, settings, producer or ProducerConfig)


def _renew_lock() -> None:
    global _LOCK
    _LOCK = threading.Lock()


in_forked_child(_renew_lock)
