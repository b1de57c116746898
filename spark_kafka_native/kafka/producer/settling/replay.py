"""`Replay`: the batches that an earlier producer left in the spill folder, sent before anything else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ...errors import KafkaError
from ...runtime.deadline import Deadline
from ..accumulating.batch import Batch
from ..accumulating.topic_buffer import TopicBuffer
from ..delivery import Waiters
from ..spill_folder import SpilledBatch, SpillError

_LOG = logging.getLogger("spark_kafka_native")


class Replay:
    """The spilled batches of an earlier producer, on their way to the sender.

    A topic's buffer takes its own when it is made, and those of a partition when that appears (`post`), so
    that nothing new can get in front of them; `start` has the buffers of all topics concerned made, in a
    thread of its own, as brokers may be down.
    """

    def __init__(
        self, entries: list[SpilledBatch], post: Callable[[list[Batch]], None], waiters: Waiters
    ) -> None:
        self._left: dict[str, list[tuple[int, SpilledBatch]]] = {}
        for place, entry in enumerate(entries):
            self._left.setdefault(entry.topic_partition.topic, []).append((place, entry))
        self._failures: dict[str, str] = {}
        # One step for an interrupt: `deque.extend`, not a function around it.
        self._post = post
        self._waiters = waiters
        self._running = False

    def start(self, open_topic: Callable[[str], object]) -> None:
        """Open every topic that has spilled batches which were not sent yet; harmless while that is under
        way."""
        topics = [topic for topic, left in self._left.items() if left]
        if not topics or self._running:
            return
        records = sum(entry.records for topic in topics for _, entry in self._left[topic])
        _LOG.info("spill folder: sending %d records of %d topics first", records, len(topics))
        self._running = True
        thread = threading.Thread(
            target=self._open, args=(topics, open_topic), name="kafka-producer-replay", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no thread can be started while the interpreter ends
            self._open(topics, open_topic)

    @property
    def left(self) -> bool:
        """Whether there are batches that were not handed over."""
        return any(self._left.values())

    @property
    def left_records(self) -> int:
        """How many records there are in these."""
        return sum(entry.records for entries in list(self._left.values()) for _, entry in entries)

    def wait(self, deadline: Deadline | None) -> bool:
        """Wait until all topics were opened, or could not be; False when ``deadline`` came first."""
        return self._waiters.wait_for(lambda: not self._running, deadline)

    def raise_if_left(self) -> None:
        """Raise `SpillError` for batches that can't be sent as things are."""
        left = {topic: entries for topic, entries in self._left.items() if entries}
        if left:
            reasons = "; ".join(
                f"{sum(one.records for _, one in entries)} records of topic {topic}: "
                f"{self._failures.get(topic)}"
                for topic, entries in left.items()
            )
            raise SpillError(
                f"records from the spill folder can't be sent, and stay there: {reasons}. Mend the topic, or "
                "take the folder away if they are not wanted any more"
            )

    def post(self, buffer: TopicBuffer) -> None:
        """Hand the batches of ``buffer``'s partitions over, before any others of theirs; its lock is held."""
        left = self._left.get(buffer.topic)
        if not left:
            return
        count = len(buffer.queues)
        batches, rest = [], []
        for place, entry in left:
            index = entry.topic_partition.partition
            if index >= count:
                rest.append((place, entry))
                continue
            batch = Batch(entry.topic_partition, b"", entry.records, 0, [], time.monotonic(), -1, (0, place))
            batch.spilled = entry
            batches.append(batch)
        if rest:
            self._fail(buffer.topic, f"the topic has {count} partitions only", rest)
        # Nothing is called between these two: the batches are here or there.
        self._left[buffer.topic] = rest
        self._post(batches)

    def _open(self, topics: list[str], open_topic: Callable[[str], object]) -> None:
        try:
            for topic in topics:
                try:
                    open_topic(topic)
                except KafkaError as error:
                    self._fail(topic, str(error), self._left[topic])
        finally:
            self._running = False
            self._waiters.notify_all()

    def _fail(self, topic: str, reason: str, left: list[tuple[int, SpilledBatch]]) -> None:
        if self._failures.get(topic) != reason:
            self._failures[topic] = reason
            partitions = sorted({entry.topic_partition.partition for _, entry in left})
            records = sum(entry.records for _, entry in left)
            _LOG.error(
                "spill folder: %d records of topic %s, partitions %s, stay where they are: %s",
                records, topic, partitions, reason,
            )  # fmt: skip
