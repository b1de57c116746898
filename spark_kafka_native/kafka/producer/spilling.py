"""`Spilling`: undelivered batches go to the spill folder, where there is one. They are sent again from there:
`Replay` sends those that an earlier producer left, before anything else; `Healing` those of this producer,
once their partition takes records again.

The sender's thread owns all of this but `Replay`.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError
from ..model import TopicPartition
from ..runtime.background import start_thread
from ..runtime.deadline import Deadline, LoopTimer
from ..runtime.retry import Backoff
from .accumulating.batch import Batch
from .accumulating.topic_buffer import TopicBuffer
from .delivery import Waiters
from .errors import RecordError
from .sending.idempotence import read_numbers
from .sending.partition_queue import PartitionQueues
from .spill_folder import NewEntry, SpilledBatch, SpillError, SpillFolder

_LOG = logging.getLogger("spark_kafka_native")

MAX_INTERVAL_MS = 30_000
"""Between two tries of a partition: a try is one small request, and a healed one should not wait for long."""

_REFUSED_FOR_CONTENT = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""The same bytes would be refused again for ever: not worth spilling."""


@dataclass(eq=False)
class SpillBacklog:
    """The batches of one partition in the folder that this producer will send again."""

    batches: list[Batch] = field(default_factory=list)
    """In order, without ``probe``."""
    probe: Batch | None = None
    """The first of them, while it is being tried."""
    refused: bool = False
    """True if the probe, or a part of it, is in ``batches`` again."""
    failures: int = 0
    not_before: float | None = None
    """Monotonic seconds of the next try; None until a try has been scheduled."""


class Spilling:
    """The stage between a batch that is given up and its end. Without a ``folder`` it does nothing."""

    def __init__(self, folder: SpillFolder | None) -> None:
        self._folder = folder
        self._owns_folder = folder is not None
        """False once it was closed, and in a forked child."""
        self.backlogs: dict[TopicPartition, SpillBacklog] = {}
        """What this producer has put into the folder and will send again."""

    @property
    def enabled(self) -> bool:
        """True if there is a folder."""
        return self._folder is not None

    @property
    def left_over(self) -> list[SpilledBatch]:
        """The batches that an earlier producer left in the folder, in order."""
        return [] if self._folder is None else self._folder.entries

    def close(self) -> None:
        """Release the folder; harmless when repeated."""
        if self._folder is None:
            return
        if self._owns_folder:
            self._owns_folder = False
            older = [b for one in self.backlogs.values() for b in one.batches if b.has_older_entry]
            for batch in older:
                self._bring_up_to_date(batch)
        self._folder.close()

    def _bring_up_to_date(self, batch: Batch) -> None:
        """The last chance for the numbers of ``batch``, which waits for its next try."""
        assert batch.spilled is not None
        try:
            batch.data = memoryview(batch.spilled.read())
        except (SpillError, OSError) as error:
            _LOG.warning("%s: may be written twice: %s", batch.topic_partition, error)
            return
        read_numbers(batch)
        self.keep_numbers(batch)
        batch.data = b""

    def disown(self) -> None:
        """In a forked child: the folder is the parent's."""
        self._owns_folder = False
        if self._folder is not None:
            self._folder.forget()

    def keeps(self, cause: BaseException | None, *, once_more: bool = False) -> bool:
        """True if batches that are given up for ``cause`` go to the folder, or, ``once_more``, stay there to
        be sent again by this producer.
        """
        if self._folder is None or isinstance(cause, RecordError):
            return False
        if once_more and isinstance(cause, FileNotFoundError):  # it has been deleted, and its batch with it
            return False
        error_code = cause.error_code if isinstance(cause, BrokerError) else None
        # Damage on the way passes. Else it would hold up its partition for ever: brokers before 2.4 refuse
        # records without keys in compacted topics with this code (KIP-467).
        if once_more and error_code is ErrorCode.CORRUPT_MESSAGE:
            return False
        return error_code not in _REFUSED_FOR_CONTENT

    def keep(
        self, batches: list[Batch], reason: str, cause: BaseException | None, topic_id: UUID | None
    ) -> dict[Batch, SpilledBatch]:
        """Write those of ``batches`` that are not in the folder yet; returns their entries.

        Where that fails, their records are lost, and the log says so.
        """
        new = [batch for batch in batches if batch.spilled is None]
        if self._folder is None or not self.keeps(cause) or not new:
            return {}
        entries = [
            NewEntry(b.topic_partition, topic_id, b.records, b.sending.indefinite, reason, b.data)
            for b in new
        ]
        try:
            kept = self._folder.keep(entries)
        except SpillError as error:
            _LOG.error("%s: undelivered records are lost", error)
            return {}
        return dict(zip(new, kept, strict=True))

    def add(self, given_up: Batch, entry: SpilledBatch) -> None:
        """``given_up`` is ``entry`` of the folder now, and will be sent again."""
        if given_up.has_older_entry and given_up.data:
            self.keep_numbers(given_up)  # there may be room by now
            entry = given_up.spilled or entry
        backlog = self.backlogs.setdefault(given_up.topic_partition, SpillBacklog())
        insort(backlog.batches, given_up.sent_again_from(entry), key=lambda batch: batch.order)
        backlog.refused = backlog.refused or given_up.reported_before

    def replace(self, batch: Batch, into: Iterable[Batch]) -> None:
        """``into`` (its halves, or itself under new numbers) takes the place of ``batch`` in the folder, if
        that is there. Raises `SpillError`: the folder is then unchanged.

        Before any of them is sent: a later replay must send them as they were sent now.
        """
        old, batches = batch.spilled, list(into)
        if old is None or self._folder is None:
            return
        entries = [NewEntry(old[0], old.topic_id, b.records, True, old.reason, b.data) for b in batches]
        for one, spilled in zip(batches, self._folder.replace(old, entries), strict=True):
            one.spilled = spilled

    def keep_numbers(self, batch: Batch) -> None:
        """`replace` by itself: if its answer is lost, the next to replay it must send these numbers."""
        try:
            self.replace(batch, [batch])
        except SpillError as error:
            batch.has_older_entry = True
            _LOG.warning("%s: may be written twice after this producer: %s", batch.topic_partition, error)
        else:
            batch.has_older_entry = False

    def replace_by_letter(self, batch: Batch, letter: Batch, topic_id: UUID | None) -> None:
        """``letter``, a dead letter, takes the place of ``batch``, a single record in the folder. Raises
        `SpillError`: nothing has changed then.
        """
        old = batch.spilled
        assert old is not None
        assert self._folder is not None
        entry = NewEntry(letter.topic_partition, topic_id, 1, False, old.reason, letter.data)
        letter.spilled = self._folder.replace(old, [entry])[0]

    def ended(self, batch: Batch) -> None:
        """``batch`` is delivered, or ended by choice: if it is in the folder, it is not sent again."""
        if batch.spilled is not None and self._folder is not None:
            self._folder.delivered(batch.spilled)

    def delivered_late(self, given_up: Batch) -> SpilledBatch | None:
        """``given_up`` is in the log after all, as a late answer says: returns the entry that goes, if it was
        still to be sent again."""
        backlog = self.backlogs.get(given_up.topic_partition)
        again = [] if backlog is None else [b for b in backlog.batches if b.order == given_up.order]
        if backlog is None or not again:
            return None
        backlog.batches.remove(again[0])
        self.ended(again[0])
        return again[0].spilled


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
                "close the producer and take the folder away if they are not wanted any more"
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
        expect: Callable[[Iterable[Batch]], None],
        spilling: Spilling,
        timer: LoopTimer,
        replay: Replay,
        first_ms: int,
    ) -> None:
        """``expect`` gets the batches that a flush waits for from now on."""
        self._queues = queues
        self._expect = expect
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

    def _try(self, backlog: SpillBacklog, now: float) -> None:
        if backlog.not_before is None:
            backlog.not_before = now + self._interval_s(backlog.failures)
        if now < backlog.not_before:
            self._timer.by(backlog.not_before)
            return
        backlog.probe = backlog.batches.pop(0)
        backlog.refused = False
        self._send(backlog.probe, now)

    def _judge(self, backlog: SpillBacklog, probe: Batch, now: float) -> None:
        if not probe.complete:
            return
        backlog.probe = None
        if backlog.refused:
            backlog.failures += 1
            backlog.not_before = None
            self._timer.by(now)
        else:
            self._resume(backlog, probe.topic_partition, now)

    def _resume(self, backlog: SpillBacklog, where: TopicPartition, now: float) -> None:
        """The rest of the backlog is sent, and new batches wait behind it."""
        del self._spilling.backlogs[where]
        _LOG.info("spill folder: %s takes records again, %d batches follow", where, len(backlog.batches))
        self._expect(backlog.batches)
        for batch in backlog.batches:
            self._send(batch, now)
        self._queues.of(where).resumed()

    def _send(self, batch: Batch, now: float) -> None:
        self._queues.add(batch).restart_timeout(batch, now)

    def _interval_s(self, failures: int) -> float:
        return self._backoff.delay_ms(failures) / 1000
