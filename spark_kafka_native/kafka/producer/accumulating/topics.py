"""`Topics`: the buffers of the topics that a producer writes to. Asks the cluster about each topic before its
first record, for its partitions and for the largest record batch that it accepts.

Any thread may open topics. Opening many costs as many requests as opening one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from uuid import UUID

import numpy as np

from ...cluster.describe_configs import describe_topic_configs
from ...cluster.metadata import ClusterMetadata, Topic
from ...cluster.router import Router
from ...error_code import ErrorCode
from ...errors import BrokerError, KafkaError
from ...model import TopicPartition
from ...runtime.deadline import Deadline
from ..errors import ProducerClosedError
from .memory import BufferMemory
from .open_batches import PartitionOutsideError
from .partitioner import ExplicitPartitioner, Targets
from .records_in import check_topic
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
        self._router.refresh((buffer.topic,), Deadline.after_ms(self._config.max_block_ms))
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

        self._router.retry(ask, what=f"asking for {_list(names)}", deadline=deadline, topics=names)
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


def _list(names: Collection[str]) -> str:
    first = sorted(names)[:3]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return f"topic{'s' if len(names) > 1 else ''} {', '.join(first)}{more}"


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
        if value.isascii() and value.isdigit() and int(value) >= _MIN_LIMIT:
            limits[topic] = int(value)
    return limits
