"""`Replay`: the batches that an earlier producer left in the spill folder, sent before anything else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..errors import KafkaError
from .batch import Batch
from .spill import SpilledBatch
from .topic_buffer import TopicBuffer

_LOG = logging.getLogger("spark_kafka_native")


class Replay:
    """Spilled batches on their way into their topics' queues.

    A topic's buffer takes its own when it is made (`post`), so that nothing new can get in front of them;
    `start` makes the buffers of all topics concerned, in a thread of its own, as brokers may be away.
    """

    def __init__(self, entries: list[SpilledBatch]) -> None:
        self._entries = entries
        self._thread: threading.Thread | None = None

    def start(self, open_topic: Callable[[str], object]) -> None:
        """Open every topic that has spilled batches."""
        topics = dict.fromkeys(entry.topic_partition.topic for entry in self._entries)
        if not topics:
            return
        records = sum(entry.records for entry in self._entries)
        _LOG.info("spill folder: sending %d records of %d topics first", records, len(topics))

        def open_all() -> None:
            for topic in topics:
                try:
                    open_topic(topic)
                except KafkaError as error:
                    _LOG.error("spill folder: the batches of topic %s stay where they are: %s", topic, error)

        self._thread = threading.Thread(target=open_all, name="kafka-producer-replay", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None) -> None:
        """Wait until all topics were opened, or could not be."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def post(self, buffer: TopicBuffer, post: Callable[[list[Batch]], None]) -> None:
        """Put the batches of ``buffer``'s topic into its queues, which are still empty."""
        for i, entry in enumerate(self._entries):
            topic, index = entry.topic_partition
            if topic == buffer.topic and index < len(buffer.queues):
                batch = Batch(buffer.queues[index], b"", entry.records, 0, [], time.monotonic(), -1, (0, i))
                batch.spilled = entry
                post([batch])
