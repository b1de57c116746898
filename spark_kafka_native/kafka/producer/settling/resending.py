"""Spilled batches are sent again: `Replay` sends those that an earlier producer left, before anything else;
`Healing` those of this producer, once their partition takes records again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from ...errors import KafkaError
from ...model import TopicPartition
from ...runtime.background import start_thread
from ...runtime.deadline import Deadline
from ...runtime.retry import Backoff
from ..accumulating.batch import Batch
from ..accumulating.topic_buffer import TopicBuffer
from ..delivery import Waiters
from ..sending.loop_timer import LoopTimer
from ..sending.partition_queue import PartitionQueues
from ..spill_folder import SpilledBatch, SpillError
from .completion import BatchCompletion
from .spilling import Backlog, Spilling

_LOG = logging.getLogger("spark_kafka_native")
MAX_INTERVAL_MS = 30_000
"""Between two tries of a partition: a try is one small request, and a healed one should not wait for long."""


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
        self._open_topic: Callable[[str], object] | None = None

    def start(self, open_topic: Callable[[str], object]) -> None:
        """Have ``open_topic`` open every topic that has spilled batches which were not sent yet."""
        self._open_topic = open_topic
        self.retry()

    def retry(self) -> bool:
        """Try again to open the topics that have spilled batches left; harmless while that is under way.
        False if there are none."""
        open_topic = self._open_topic
        if open_topic is not None and self.left:
            self._start(open_topic)
            return True
        return False

    def _start(self, open_topic: Callable[[str], object]) -> None:
        topics = [topic for topic, left in self._left.items() if left]
        if not topics or self._running:
            return
        records = sum(entry.records for topic in topics for _, entry in self._left[topic])
        _LOG.info("spill folder: sending %d records of %d topics first", records, len(topics))
        self._running = True
        start_thread(partial(self._open, topics, open_topic), "kafka-producer-replay")

    @property
    def left(self) -> bool:
        """True if there are batches that were not handed over."""
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
        count = buffer.partitions
        batches, rest = [], []
        for place, entry in left:
            index = entry.topic_partition.partition
            if index >= count:
                rest.append((place, entry))
                continue
            batches.append(Batch.from_folder(entry, (0, place)))
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


class Healing:
    """A living producer sends again what it has put into the spill folder. Called by the sender's thread.

    Of each such partition the first batch is tried, at growing intervals, while new records are spilled
    behind it. Once a broker has taken that one in, the others follow in order and new records wait behind
    them in memory: from then on the partition is as any other.
    """

    def __init__(
        self,
        queues: PartitionQueues,
        completion: BatchCompletion,
        spilling: Spilling,
        timer: LoopTimer,
        replay: Replay,
        first_ms: int,
    ) -> None:
        self._queues = queues
        self._completion = completion
        self._spilling = spilling
        self._timer = timer
        self._replay = replay
        self._backoff = Backoff(first_ms=first_ms, max_ms=max(first_ms, MAX_INTERVAL_MS))
        self._replay_failures = 0
        self._replay_at = timer.clock() + self._interval_s(0)

    @property
    def in_flight(self) -> bool:
        """True if a try has been sent and not answered: a producer that ends waits for it, as without
        sequence numbers no broker would recognise the next one."""
        return any(
            backlog.probe is not None and backlog.probe in self._queues.of(where).in_flight
            for where, backlog in self._spilling.backlogs.items()
        )

    def turn(self, now: float) -> None:
        """Try the batches that are due, and look at the outcome of those that were tried."""
        if not self._spilling.enabled:
            return
        self._retry_replay(now)
        for where, backlog in list(self._spilling.backlogs.items()):
            queue = self._queues.of(where)
            if backlog.probe is not None:
                self._judge(backlog, backlog.probe, now)
            elif not backlog.batches:  # late answers have said that all of it is in the log
                if queue.idle:
                    self._resume(backlog, where, now)
            elif queue.idle:  # else late answers are to come, or what stands in front is still sent
                self._try(backlog, now)

    def _retry_replay(self, now: float) -> None:
        if now < self._replay_at:
            if self._replay_failures:
                self._timer.by(self._replay_at)
            return
        self._replay_failures = self._replay_failures + 1 if self._replay.retry() else 0
        self._replay_at = now + self._interval_s(self._replay_failures)
        if self._replay_failures:
            self._timer.by(self._replay_at)

    def _try(self, backlog: Backlog, now: float) -> None:
        if backlog.not_before is None:
            backlog.not_before = now + self._interval_s(backlog.failures)
        if now < backlog.not_before:
            self._timer.by(backlog.not_before)
            return
        backlog.probe = backlog.batches.pop(0)
        backlog.refused = False
        self._send(backlog.probe, now)

    def _judge(self, backlog: Backlog, probe: Batch, now: float) -> None:
        if not probe.complete:
            return
        backlog.probe = None
        if backlog.refused:
            backlog.failures += 1
            backlog.not_before = None
            self._timer.by(now)
        else:
            self._resume(backlog, probe.topic_partition, now)

    def _resume(self, backlog: Backlog, where: TopicPartition, now: float) -> None:
        """The rest of the backlog is sent, and new batches wait behind it."""
        del self._spilling.backlogs[where]
        _LOG.info("spill folder: %s takes records again, %d batches follow", where, len(backlog.batches))
        self._completion.expect(backlog.batches)
        for batch in backlog.batches:
            self._send(batch, now)
        self._queues.of(where).resumed()

    def _send(self, batch: Batch, now: float) -> None:
        self._queues.add(batch).restart_timeout(batch, now)

    def _interval_s(self, failures: int) -> float:
        return self._backoff.delay_ms(failures) / 1000
