"""`Topics`: the buffers of the topics that a producer writes to. Asks the cluster about each topic before its
first record, for its partitions and for the largest record batch that it accepts. `RecordChecks` refuses
records that a topic can't take before any is taken, while the caller can still act.

Any thread may open topics. Opening many costs as many requests as opening one.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from ...cluster.describe_configs import describe_topic_configs
from ...cluster.metadata import ClusterMetadata, Topic, topics_named
from ...cluster.router import Router
from ...config.client_config import ProducerConfig
from ...error_code import ErrorCode
from ...errors import BrokerError, KafkaError
from ...model import TopicPartition
from ...records.columns import RecordColumns
from ...runtime.deadline import Deadline
from ..delivery import DeliveryBlock, Rows
from ..errors import ProducerClosedError, RecordError, RecordTooLargeError
from .batch import Origin, max_record_sizes
from .memory import BufferMemory
from .open_batches import PartitionOutsideError, SingleRecord
from .partitioner import ExplicitPartitioner, Partitions, Targets
from .records_in import TopicColumns, check_partition, check_topic, first_wrong_partition, one_row
from .topic_buffer import BufferParts, TopicBuffer

_LOG = logging.getLogger("spark_kafka_native")

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default: 1 MiB of records and the 12 bytes in front of a batch's length."""
_LIMIT = "max.message.bytes"
_MIN_LIMIT = 1_000
"""No topic can work with a limit below this: take the default instead and let the broker decide."""
MAX_TOPICS_PER_REQUEST = 1_000
"""Brokers accept larger requests, but answer no sooner."""
LIMIT_AGE_S = 1.0
"""A limit that is older is read again before a record is refused for it."""
LIMIT_PATIENCE_MS = 5_000
"""How long a record that is refused waits for that: without an answer the limit that is known counts."""
SLICE_BYTES = 8 * 1024 * 1024
"""Columns are taken in slices of about this size, so that sending starts before the last row is encoded."""
SLICES_IN_MEMORY = 4
"""A slice is at most this part of the buffer: while one is sent, the next must find room."""


class Topics:
    """Guarded by a lock of its own; ``buffers`` is only ever added to, and any thread may read it."""

    def __init__(
        self,
        buffers: dict[str, TopicBuffer],
        router: Router,
        parts: BufferParts,
        grown: Callable[[TopicBuffer], None],
    ) -> None:
        """``grown`` is called with the lock of a buffer held, when that is made and whenever it gets
        partitions: before any record can be appended to these."""
        self.buffers = buffers
        self._router = router
        self._parts = parts
        self._config = parts.config
        self._memory = parts.memory
        self._grown = grown
        self.lock = threading.RLock()
        self._closed: BaseException | None = None
        self._reading_limits = False

    # The topics as they are known. None of this waits.

    def all(self) -> list[TopicBuffer]:
        """All of them, as of now: another thread may add one at any moment."""
        return list(self.buffers.values())

    @property
    def metadata(self) -> ClusterMetadata:
        """What the brokers last said of the cluster."""
        return self._router.snapshot

    def max_bytes(self, topic: str) -> int:
        """The largest batch that the topic accepts; 0 when that is not known."""
        buffer = self.buffers.get(topic)
        return 0 if buffer is None else buffer.limits.max_bytes

    def topic_id(self, topic: str) -> UUID | None:
        """The topic's id as it was last described.

        Not from the metadata of the moment: a restarting broker may deny the topic, and its numbering must
        go on.
        """
        buffer = self.buffers.get(topic)
        return None if buffer is None else buffer.topic_id

    def leader(self, topic_partition: TopicPartition) -> int | None:
        """The broker that leads a partition, as far as this is known."""
        topic = self.metadata.topics.get(topic_partition.topic)
        found = None if topic is None else topic.partitions.get(topic_partition.partition)
        return None if found is None else found.leader

    def outage(self, topic_partition: TopicPartition) -> KafkaError | None:
        """Why the leader of a partition can't be reached, where that is so."""
        leader = self.leader(topic_partition)
        return None if leader is None else self._router.outage(leader)

    # Requests to the cluster.

    def open(self, names: Iterable[str], *, for_replay: bool = False) -> list[str]:
        """Open the buffers of those ``names`` that have none yet; returns these.

        Waits up to ``max.block.ms`` for topics that are missing and brokers that are away. Raises
        `RecordError` for an invalid topic name, `BrokerError` or `DeadlineExceededError` for a topic that
        can't be described, `ProducerClosedError`.
        """
        missing = [name for name in dict.fromkeys(names) if name not in self.buffers]
        letters = self._config.dead_letter_topic
        if missing and letters and letters not in self.buffers:
            # Before any record that may need it, and by a caller, which may wait: the sender's thread may
            # not.
            missing = [letters, *(name for name in missing if name != letters)]
        if not for_replay:
            self.raise_if_closed()
        for name in missing:
            check_topic(name)
        deadline = Deadline.after_ms(self._config.max_block_ms)
        opened: list[str] = []
        for start in range(0, len(missing), MAX_TOPICS_PER_REQUEST):
            some = missing[start : start + MAX_TOPICS_PER_REQUEST]
            found = self._ask(some, deadline)
            limits = read_max_message_bytes(self._router, some, deadline)
            opened += self._add(
                [(found[name], limits.get(name, DEFAULT_MAX_MESSAGE_BYTES)) for name in some], for_replay
            )
        return opened

    def close(self, cause: BaseException) -> None:
        """No topic accepts records any more, and no caller gets room for any; the first ``cause`` counts."""
        with self.lock:
            self._closed = self._closed or cause
            for buffer in self.buffers.values():
                buffer.closed = True
        self._memory.close(cause)

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._closed is not None

    def raise_if_closed(self) -> None:
        """Raise `ProducerClosedError` once `close` was called."""
        if self._closed is not None:
            raise ProducerClosedError(f"the producer takes no more records: {self._closed}") from self._closed

    def describe(self, buffer: TopicBuffer) -> None:
        """Apply newer metadata; never waits."""
        found = self._router.snapshot.topics.get(buffer.topic)
        if found is None or found.error_code or not found.partitions:
            return
        with buffer.lock:
            buffer.describe(found.topic_id, _targets_of(found), buffer.limits.max_bytes)
            self._grown(buffer)

    def refreshed(self, names: Collection[str]) -> None:
        """Apply newer metadata of the topics; their limits are read again where they are as old as metadata
        may be (or half as old: they were read a moment after the metadata)."""
        for name in names:
            if name in self.buffers:
                self.describe(self.buffers[name])
        age_s = self._router.config.metadata_max_age_ms / 2_000
        old = [name for name in names if name in self.buffers and self.buffers[name].limit_age_s >= age_s]
        if not old or self._reading_limits:
            return
        self._reading_limits = True

        def read() -> None:
            try:
                self.read_limits(old, age_s)
            finally:
                self._reading_limits = False

        # In a thread of its own: the leaders of partitions must not wait for a broker that does not answer
        # this.
        try:
            threading.Thread(target=read, name="kafka-producer-limits", daemon=True).start()
        except RuntimeError:  # none can be started while the interpreter ends
            self._reading_limits = False

    def read_limits(self, names: Iterable[str], max_age_s: float = LIMIT_AGE_S) -> None:
        """Ask again for the limits of those ``names`` that were read longer ago: they may have been raised.
        What the brokers do not say stays as it is."""
        buffers = [self.buffers[name] for name in dict.fromkeys(names) if name in self.buffers]
        old = {buffer.topic: buffer for buffer in buffers if buffer.limit_age_s >= max_age_s}
        if not old:
            return
        deadline = Deadline.after_ms(min(self._config.max_block_ms, LIMIT_PATIENCE_MS))
        limits = read_max_message_bytes(self._router, old, deadline)
        for name, buffer in old.items():
            with buffer.lock:
                buffer.limit_batches(limits.get(name, buffer.limits.max_bytes))

    def check_partition(self, buffer: TopicBuffer, partition: int | None) -> None:
        """Raise `RecordError` for a ``partition`` that the topic does not have, or None with the explicit
        partitioner. It may be a new one: look again before refusing it."""
        if partition is None:
            raise ExplicitPartitioner.refusal(buffer.topic)
        try:
            self._router.refresh((buffer.topic,), Deadline.after_ms(self._config.max_block_ms))
        except KafkaError:
            self.raise_if_closed()  # by a signal's handler meanwhile: then that is the reason
            raise
        self.describe(buffer)
        count = buffer.targets.count
        if not 0 <= partition < count:
            raise PartitionOutsideError.of(buffer.topic, partition, count, None)

    def disown(self, cause: BaseException, memory: BufferMemory) -> None:
        """In a forked child: nothing here is its own. ``memory`` is: a thread of the parent may have held the
        lock of the parent's at the fork.
        """
        self._closed = cause
        self.buffers.clear()
        self.lock = threading.RLock()
        self._memory = memory

    def _ask(self, names: Collection[str], deadline: Deadline) -> dict[str, Topic]:
        found: dict[str, Topic] = {}
        create = self._config.allow_auto_create_topics

        def ask() -> None:
            left = [name for name in names if name not in found]
            metadata = self._router.metadata(left, refresh=create, deadline=deadline, create=create)
            described = {name for name in left if _is_described(metadata.topics.get(name))}
            found.update({name: metadata.topics[name] for name in described})
            for name in left:
                if not metadata.topic(name).partitions:
                    raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name}")

        self._router.retry(ask, what=f"asking for {topics_named(names)}", deadline=deadline, topics=names)
        return found

    def _add(self, described: list[tuple[Topic, int]], for_replay: bool) -> Iterator[str]:
        for topic, limit in described:
            with self.lock:
                if topic.name in self.buffers:
                    continue
                if not for_replay:
                    self.raise_if_closed()  # `close` looks at the topics that there are then
                buffer = TopicBuffer(topic.name, self._parts)
                with buffer.lock:
                    buffer.closed = self._closed is not None
                    buffer.describe(topic.topic_id, _targets_of(topic), limit)
                    # Under its lock from here on: no record may get in front of replayed ones.
                    self.buffers[topic.name] = buffer
                    self._grown(buffer)
            yield topic.name


def _is_described(topic: Topic | None) -> bool:
    return topic is not None and not topic.error_code and bool(topic.partitions)


def _targets_of(topic: Topic) -> Targets:
    count = len(topic.partitions)
    led = [p for p in range(count) if p in topic.partitions and topic.partitions[p].leader is not None]
    return Targets(topic=topic.name, count=count, available=np.array(led or range(count), np.int32))


def read_max_message_bytes(router: Router, topics: Collection[str], deadline: Deadline) -> dict[str, int]:
    """Ask for the ``max.message.bytes`` of ``topics``, all in one request; without those of which the broker
    does not say.

    Describing configs needs a right that writing does not: without it, the broker's MESSAGE_TOO_LARGE has to
    serve.
    """
    try:
        configs = describe_topic_configs(router, topics, deadline, names=[_LIMIT], leave_out_refused=True)
    except KafkaError as error:
        _LOG.debug("%s of %d topics is not known: %s", _LIMIT, len(topics), error)
        return {}
    limits = {}
    for topic in topics:
        value = configs.get(topic, {}).get(_LIMIT) or ""
        if re.fullmatch("[0-9]{1,10}", value) and int(value) >= _MIN_LIMIT:
            limits[topic] = int(value)
    return limits


class Apart(NamedTuple):
    """Records over a limit that are not to fail."""

    part: TopicColumns
    errors: list[RecordTooLargeError]
    """Of each of them, in order; the row is that of the columns that were handed over."""


class CheckedColumns(NamedTuple):
    """What may be sent of some columns."""

    part: TopicColumns
    sizes: Rows
    """Bytes of each record, at most."""
    apart: Apart | None = None
    """What may not."""


class RecordChecks:
    """Checks of the sizes and partitions of records. With an ``explicit`` partitioner, each record must name
    its partition. Records over a limit are refused, but for topics that ``sets_apart`` says; before that the
    limits are read again, that of the ``dead_letter_topic`` too.
    """

    def __init__(
        self,
        topics: Topics,
        buffer_memory: int,
        *,
        explicit: bool,
        sets_apart: Callable[[str], bool] = lambda _topic: False,
        dead_letter_topic: str | None = None,
    ) -> None:
        self._topics = topics
        self._buffer_memory = buffer_memory
        self._explicit = explicit
        self._sets_apart = sets_apart
        self._dead_letter_topic = dead_letter_topic

    def columns(self, buffer: TopicBuffer, part: TopicColumns) -> CheckedColumns:
        """What may be sent of ``part``. Raises `RecordError` with the row."""
        sizes = max_record_sizes(part.columns)
        try:
            errors = self._too_large(buffer, part, sizes)
            self._check_partitions(buffer, part)
        except RecordError as error:
            raise part.located(error) from None
        return self._without(part, sizes, errors) if errors else CheckedColumns(part, sizes)

    def single(self, buffer: TopicBuffer, record: SingleRecord) -> Apart | None:
        """``record`` set apart if it fits no batch of its topic; where such records fail,
        `RecordTooLargeError`."""
        key, value, partition, timestamp_ms, headers = record
        columns = one_row(key, value, headers or (), int(timestamp_ms))
        chosen = None if partition is None else np.array([partition], np.int32)
        part = TopicColumns(topic=buffer.topic, columns=columns, partition=chosen)
        try:
            errors = self._too_large(buffer, part, max_record_sizes(columns))
        except RecordTooLargeError as error:
            raise error.at(None) from None
        return Apart(part, [one.at(None) for one in errors]) if errors else None

    def partition(self, buffer: TopicBuffer, partition: Any) -> int | None:
        """``partition`` as an int; None is the partitioner's choice. Raises `RecordError` for one that the
        topic does not have, TypeError if it is no whole number.
        """
        chosen = None if partition is None else check_partition(partition)
        if chosen is None or not 0 <= chosen < buffer.targets.count:
            self._topics.check_partition(buffer, chosen)
        return chosen

    def _too_large(self, buffer: TopicBuffer, part: TopicColumns, sizes: Rows) -> list[RecordTooLargeError]:
        if buffer.limits.may_exceed(sizes):
            letters = [self._dead_letter_topic] if self._dead_letter_topic else []
            self._topics.read_limits([buffer.topic, *letters])
        found = buffer.limits.too_large(part.columns, sizes)
        if not self._sets_apart(buffer.topic):
            for error in (*islice(found, 1), *self._beyond_memory(buffer, sizes)):
                raise error
            return []
        errors = {error.row: error for error in (*self._beyond_memory(buffer, sizes), *found)}
        return sorted(errors.values(), key=lambda error: error.row or 0)

    def _beyond_memory(self, buffer: TopicBuffer, sizes: Rows) -> Iterator[RecordTooLargeError]:
        limit = self._buffer_memory
        for row in np.flatnonzero(sizes > limit).tolist():
            yield RecordTooLargeError.of(buffer.topic, row, int(sizes[row]), limit, "buffer.memory")

    def _without(self, part: TopicColumns, sizes: Rows, errors: list[RecordTooLargeError]) -> CheckedColumns:
        over = np.array([error.row for error in errors], np.int64)
        left = np.delete(np.arange(len(sizes)), over)
        apart = Apart(part.take(over), [part.located(error) for error in errors])
        return CheckedColumns(part.take(left), sizes[left], apart)

    def _check_partitions(self, buffer: TopicBuffer, part: TopicColumns) -> None:
        row = first_wrong_partition(part, buffer.targets.count, explicit=self._explicit)
        if row is None:
            return
        partition = None if part.partition is None else int(part.partition[row])
        try:
            self._topics.check_partition(buffer, None if partition is None or partition < 0 else partition)
        except RecordError as error:
            raise error.at(row) from None
        # The topic has got more partitions; there may be others that are still too many.
        self._check_partitions(buffer, part)


class TopicSlice(NamedTuple):
    """Rows of one topic that follow each other."""

    buffer: TopicBuffer
    part: TopicColumns
    """What they are a slice of."""
    start: int
    columns: RecordColumns
    sizes: Rows
    """Bytes of each record, at most."""
    partition: Partitions | None
    origin: Origin
    size: int

    @property
    def rows(self) -> Rows:
        """Their numbers in the columns that were handed over."""
        numbers = np.arange(self.start, self.start + len(self.sizes))
        return numbers if self.part.rows is None else self.part.rows[numbers]

    def located(self, error: RecordError) -> RecordError:
        """``error`` with the row's number in the columns that were handed over."""
        return self.part.located(error.moved(self.start))


def slice_rows(
    buffer: TopicBuffer, part: TopicColumns, sizes: Rows, block: DeliveryBlock, config: ProducerConfig
) -> Iterator[TopicSlice]:
    """All rows of ``part`` in order, in slices that the buffer memory can hold several of."""
    ends = np.cumsum(sizes)
    max_bytes = min(SLICE_BYTES, config.buffer_memory // SLICES_IN_MEMORY)
    max_rows = max(1, config.max_buffered_records // SLICES_IN_MEMORY)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + max_bytes, side="right"))
        stop = min(max(stop, start + 1), start + max_rows)
        yield TopicSlice(
            buffer,
            part,
            start,
            part.columns.slice(start, stop),
            sizes[start:stop],
            None if part.partition is None else part.partition[start:stop],
            part.origin(block, start, stop),
            int(ends[stop - 1]) - before,
        )
        start = stop
