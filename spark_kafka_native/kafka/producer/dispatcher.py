"""`Dispatcher`: batches that may be sent now -> produce requests to the brokers that lead their
partitions."""

from __future__ import annotations

import logging

from ..errors import BrokerError, KafkaError
from ..model import Acks
from .answers import Answers
from .batch import Batch
from .give_up import GiveUp
from .idempotence import Idempotence, PartitionSequence, clear_numbering, read_numbering
from .inquiries import Inquiries
from .lane import LAST_VERSION_BY_NAME, Lane, LaneKey, SentRequest, build_produce, choose_version
from .partition_queue import PartitionQueue
from .sender_state import SenderState
from .spill import SpillError

_LOG = logging.getLogger("spark_kafka_native")

MOST_REQUEST_BYTES = 8 * 1024 * 1024
"""One request, where max.request.size does not say; brokers take up to 100 MiB (socket.request.max.bytes)."""


class Dispatcher:
    """Called by the sender's thread."""

    def __init__(self, state: SenderState, give_up: GiveUp, inquiries: Inquiries, answers: Answers) -> None:
        self._state = state
        self._give_up = give_up
        self._inquiries = inquiries
        self._answers = answers
        self._brokers = 0
        self._most_bytes = state.config.max_request_size or MOST_REQUEST_BYTES

    def send(self, now: float) -> None:
        """Send whatever may be sent."""
        by_lane: dict[Lane, list[PartitionQueue]] = {}
        for queue in self._state.active:
            if not queue.batches or (queue.draining and queue.in_flight):
                continue
            if queue.not_before > now:
                self._state.by(queue.not_before)
                continue
            leader = self._leader(queue, now)
            if leader is not None and (not queue.in_flight or queue.sent_to == leader):
                by_lane.setdefault(self._lane(leader, queue.topic_partition.partition), []).append(queue)
        for lane, queues in by_lane.items():
            if self._reach(lane, now):
                self._fill(lane, queues, now)

    def prepare(self, topic: str, now: float) -> None:
        """Ask for what the first batch of ``topic`` will need, while its caller still encodes it."""
        if self._state.idempotence is not None and self._state.idempotence.identity is None:
            self._inquiries.ask_identity()
        metadata = self._state.router.snapshot
        known = metadata.topics.get(topic)
        for index, partition in ({} if known is None else known.partitions).items():
            if partition.leader is not None and partition.leader in metadata.brokers:
                self._reach(self._lane(partition.leader, index), now)

    def _lane(self, node_id: int, partition: int) -> Lane:
        # Brokers lead partitions in turn: of two, one leads the even ones, and by the partition's number
        # alone all of them would take one connection. Counted once: a partition must keep to its own.
        self._brokers = self._brokers or max(1, len(self._state.router.snapshot.brokers))
        key = LaneKey(node_id, partition // self._brokers % self._state.config.connections_per_broker)
        return self._state.lanes.setdefault(key, Lane(*key))

    def _leader(self, queue: PartitionQueue, now: float) -> int | None:
        topic, index = queue.topic_partition
        metadata = self._state.router.snapshot
        known = metadata.topics.get(topic)
        if known is not None and known.error_code:
            gone = self._answers.unknown_for_long(queue, known.error_code, now)
            if gone or not known.error_code.retriable:
                cause = BrokerError(known.error_code, f"topic {topic}")
                self._give_up.batches(list(queue.batches), str(cause), cause, retriable=False)
                return None
        partition = None if known is None else known.partitions.get(index)
        if partition is not None and partition.leader is not None and partition.leader in metadata.brokers:
            return partition.leader
        queue.not_before = now + self._state.delay_s(queue.failures)
        queue.failures += 1
        self._state.by(queue.not_before)
        self._inquiries.refresh(queue.topic_partition.topic)
        return None

    def _reach(self, lane: Lane, now: float) -> bool:
        """Whether requests can be sent on ``lane`` now; starts connecting if not."""
        connection = lane.connection
        if connection is not None and not connection.closed:
            if connection.muted_ms:
                self._state.by(now + connection.muted_ms / 1000)
                return False
            broker = self._state.router.snapshot.brokers.get(lane.node_id)
            moved = broker is not None and connection.address != f"{broker.host}:{broker.port}"
            if not moved and (lane.sent or connection.alive()):
                return True
        if not lane.sent:
            self._inquiries.connect(lane, now)
        return False

    def _fill(self, lane: Lane, queues: list[PartitionQueue], now: float) -> None:
        while len(lane.sent) < self._state.config.max_in_flight:
            batches: list[Batch] = []
            size = 0
            for queue in queues:
                batch = self._next_batch(queue)
                if batch is not None and (not batches or size + len(batch.data) <= self._most_bytes):
                    batches.append(batch)
                    size += len(batch.data)
            if not batches or not self._submit(lane, batches, now):
                return

    def _next_batch(self, queue: PartitionQueue) -> Batch | None:
        """The batch that may be sent now, numbered; it stays in its queue until it is sent."""
        if not queue.batches or (queue.draining and queue.in_flight):
            return None
        batch = queue.batches[0]
        if self._state.idempotence is None:
            if not self._load(batch):
                return None
            if queue.renumber:
                clear_numbering(memoryview(batch.data))
                batch.identity, queue.renumber = None, False
            # Without sequence numbers a retry could overtake: one at a time, unless nothing is ever retried.
            alone = self._state.config.acks is not Acks.NONE and self._state.config.retries > 0
            return None if alone and queue.in_flight else batch
        sequence = self._state.sequence(queue)
        if sequence is None:
            self._inquiries.ask_identity()
            return None
        if queue.in_flight and not _may_follow(queue, batch, sequence):
            return None
        return batch if self._load(batch) and self._number(batch, sequence, self._state.idempotence) else None

    def _load(self, batch: Batch) -> bool:
        """Read a spilled batch, with the numbers it had: if it is in the log after all, the broker recognises
        it. False if that can't be done, and it was given up.
        """
        if batch.spilled is None or batch.data:
            return True
        try:
            batch.data = memoryview(batch.spilled.read())
        except (SpillError, OSError) as error:
            self._give_up.batches([batch], f"it can't be read from the spill folder: {error}", error)
            return False
        batch.indefinite = batch.spilled.possibly_persisted
        if batch.attempts == 0:
            batch.identity, batch.base_sequence = read_numbering(batch.data)
        return True

    def _number(self, batch: Batch, sequence: PartitionSequence, idempotence: Idempotence) -> bool:
        """Give the first batch of its queue sequence numbers, if it has none; False while that is not
        possible."""
        queue = batch.queue
        fresh = sequence.gap and not queue.in_flight and all(b.identity is None for b in queue.batches)
        if fresh or queue.renumber:
            if not idempotence.restart(sequence):
                self._inquiries.ask_identity()
                return False
            queue.renumber = False
            for waiting in queue.batches:
                # Another spilled batch may be in the log, and has to come with the numbers that it had.
                if waiting is batch or waiting.spilled is None:
                    waiting.identity = None
        if batch.identity is None:
            idempotence.number(batch, sequence)
            self._keep_numbers(batch)
        return True

    def _keep_numbers(self, batch: Batch) -> None:
        """If its answer is lost, the next to replay a batch must do so with its new numbers."""
        try:
            self._state.settlement.respill(batch, [batch])
        except SpillError as error:
            _LOG.warning(
                "%s: may be written twice if this producer dies: %s", batch.queue.topic_partition, error
            )

    def _submit(self, lane: Lane, batches: list[Batch], now: float) -> bool:
        connection = lane.connection
        assert connection is not None
        topic_ids = {}
        for batch in batches:
            topic_id = self._state.topic_id(batch.queue)
            if topic_id is not None:
                topic_ids[batch.queue.topic_partition.topic] = topic_id
        try:
            version = choose_version(connection, batches, topic_ids)
            timeout_ms = self._state.router.config.request_timeout_ms
            request = build_produce(batches, topic_ids, self._state.config.acks, timeout_ms)
            pending = connection.submit(request, version)
        except KafkaError as error:
            # Nothing was written: the batches are as if never tried.
            self._inquiries.stumble(lane, error)
            return False
        by_id = version > LAST_VERSION_BY_NAME
        lane.sent.append(
            SentRequest(pending=pending, batches=batches, by_id=by_id, topic_ids=topic_ids, sent_at=now)
        )
        self._note_sent(lane, batches, now)
        if pending.done:
            self._state.by(now)
        return True

    def _note_sent(self, lane: Lane, batches: list[Batch], now: float) -> None:
        self._state.stats.count(requests=1, retries=sum(batch.attempts > 0 for batch in batches))
        for batch in batches:
            batch.queue.batches.popleft()
            batch.queue.in_flight.append(batch)
            batch.queue.sent_to = lane.node_id
            if not batch.attempts:
                self._state.stats.measure(queue_ms=max(0.0, now - batch.created_at) * 1000)
            batch.attempts += 1


def _may_follow(queue: PartitionQueue, batch: Batch, sequence: PartitionSequence) -> bool:
    """Whether ``batch`` may be sent while others of its partition are in flight.

    Not while one is sent again, and not to be sent again itself: a broker remembers the last five batches
    only, and if new ones got in front of one that it may have, it would take that one's next retry for out
    of order. Not behind a replayed one with the numbers of another producer either: if the broker refuses
    that one, the numbers of these hold it back from nothing.
    """
    again = batch.attempts > 0 or queue.in_flight[0].attempts > 1
    own = all(other.identity == sequence.identity for other in queue.in_flight)
    return own and sequence.confirmed and not again and batch.spilled is None
