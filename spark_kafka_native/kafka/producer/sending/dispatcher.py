"""`Dispatcher`: batches that may be sent now -> produce requests to the leaders of their partitions."""

from __future__ import annotations

import logging
from uuid import UUID

from ...cluster.metadata import Topic
from ...error_code import ErrorCode
from ...errors import BrokerError, KafkaError, NetworkError
from ...runtime.deadline import LoopTimer
from ...runtime.log_throttle import LogThrottle
from ..accumulating.batch import Batch
from ..accumulating.topics import Topics
from ..spill_folder import SpillError
from ..spilling import Spilling
from .background_lookups import BackgroundLookups
from .partition_queue import GiveUp, Load, NeedProducerId, PartitionQueue, PartitionQueues, Send
from .produce_requests import BrokerConnection, ProduceConnections

_LOG = logging.getLogger("spark_kafka_native")
_THROTTLED_LOG = LogThrottle(logging.getLogger("spark_kafka_native.producer"))

SHARED_WRITE_S = 0.02
"""Another producer of the same router may be writing to a connection on which we wait for nothing. Its end
does not wake us: look again then."""


class Dispatcher:
    """Called by the sender's thread. It owns the turns of the partitions, and nothing else."""

    def __init__(
        self,
        topics: Topics,
        queues: PartitionQueues,
        connections: ProduceConnections,
        lookups: BackgroundLookups,
        spilling: Spilling,
        timer: LoopTimer,
    ) -> None:
        self._topics = topics
        self._queues = queues
        self._connections = connections
        self._lookups = lookups
        self._spilling = spilling
        self._timer = timer
        self._requests = 0
        self._last_request: dict[PartitionQueue, int] = {}
        """The number of the last request that had a batch of this partition."""

    def prepare(self, topic: str, now: float) -> None:
        """Look up what the first batch of ``topic`` will need, while its caller still encodes it."""
        producer_id = self._queues.producer_id
        if producer_id is not None and producer_id.current is None:
            self._lookups.ask_producer_id()
        metadata = self._topics.metadata
        known = metadata.topics.get(topic)
        for index, partition in ({} if known is None else known.partitions).items():
            if partition.leader is not None and partition.leader in metadata.brokers:
                self._is_usable(self._connections.of(partition.leader, index), now)

    def send(self, now: float) -> list[GiveUp]:
        """Send every batch that may be sent now. Returns what can't be sent and is to be given up."""
        given_up: list[GiveUp] = []
        ready: dict[BrokerConnection, list[PartitionQueue]] = {}
        due, next_at = self._queues.due(now)
        self._timer.by(next_at)
        for queue in due:
            if queue.topic_partition.topic in self._lookups.unsure:
                continue  # the answer wakes us
            found = self._leader(queue, now)
            if isinstance(found, GiveUp):
                given_up.append(found)
            elif found is not None:
                broker = self._connections.of(found, queue.topic_partition.partition)
                ready.setdefault(broker, []).append(queue)
        for broker, queues in ready.items():
            if self._is_usable(broker, now):
                given_up += self._fill(broker, queues, now)
            elif broker.connection is not None and broker.connection.muted_ms:
                self._note_quota(broker.connection.address, queues)
        return given_up

    def _leader(self, queue: PartitionQueue, now: float) -> int | GiveUp | None:
        topic, index = queue.topic_partition
        metadata = self._topics.metadata
        known = metadata.topics.get(topic)
        if known is not None and known.error_code:
            gone = queue.denied(known.error_code, now)
            # Of one that is older than the record, which may be allowed by now, another is waited for.
            of_now = self._lookups.asked_at(topic) >= queue.waiting[0].sending.since
            if gone or (of_now and not known.error_code.retriable):
                # Later records must not fail for this answer, too: the topic may be back by then.
                self._lookups.refresh(topic)
                if queue.in_flight_unnumbered:
                    return None  # their answers wake us
                cause = BrokerError(known.error_code, f"topic {topic}", operation="Describe")
                return GiveUp(list(queue.waiting), str(cause), cause, retriable=False)
        found = None if known is None else known.partitions.get(index)
        if found is not None and found.leader is not None and found.leader in metadata.brokers:
            return found.leader
        if queue.waiting[0].sending.last_error is None:
            queue.held_up(_why_no_leader(queue, known))
        self._timer.by(queue.without_leader(now))
        self._lookups.refresh(topic)
        return None

    def _note_quota(self, address: str, queues: list[PartitionQueue]) -> None:
        cause = NetworkError(f"{address}: the broker enforces a quota, and takes no records for now")
        for queue in queues:
            if queue.waiting[0].sending.last_error is None:
                queue.held_up(cause)

    def _is_usable(self, broker: BrokerConnection, now: float) -> bool:
        """True if requests can be sent on ``broker`` now; starts connecting if not."""
        connection = broker.connection
        if connection is not None and not connection.closed:
            if connection.muted_ms:
                self._timer.by(now + connection.muted_ms / 1000)
                return False
            known = self._topics.metadata.brokers.get(broker.node_id)
            moved = known is not None and connection.address != f"{known.host}:{known.port}"
            # A SASL session that ends: answers first, then another connection (KIP-368).
            leaving = moved or connection.renewal_due
            if not leaving and (broker.in_flight or connection.alive()):
                return True
        if not broker.in_flight:
            if connection is not None and self._connections.unanswered and not connection.alive():
                self._lookups.closed_by(broker)
            self._lookups.connect(broker, now)
        return False

    def _fill(self, broker: BrokerConnection, queues: list[PartitionQueue], now: float) -> list[GiveUp]:
        given_up: list[GiveUp] = []
        max_in_flight, max_bytes = self._connections.max_in_flight, self._connections.max_bytes
        if broker.connection is not None and not broker.in_flight and not broker.has_room(max_in_flight):
            # Another thread's request waits to be written; a signal handler that waits for us may be in its
            # way.
            broker.connection.poll()
            self._timer.by(now + SHARED_WRITE_S)
        while broker.has_room(max_in_flight):
            batches: list[Batch] = []
            topic_ids: dict[str, UUID | None] = {}
            size = 0
            # In turn: a busy partition that fills each request would let others expire. Not by waiting time:
            # that is longest in its backlog.
            for queue in sorted(queues, key=lambda queue: self._last_request.get(queue, 0)):
                step = self._next_batch(queue, broker.node_id, topic_ids, now)
                if isinstance(step, GiveUp):
                    given_up.append(step)
                    queues.remove(queue)  # its next batch is not asked for before this one has ended
                elif step is not None and (not batches or size + len(step.data) <= max_bytes):
                    batches.append(step)
                    size += len(step.data)
            if not batches or not self._post(broker, batches, topic_ids, now):
                break
        return given_up

    def _next_batch(
        self, queue: PartitionQueue, leader: int, topic_ids: dict[str, UUID | None], now: float
    ) -> Batch | GiveUp | None:
        """The batch that may be sent now, numbered; it stays in its queue until it is sent.

        ``topic_ids`` are those of its request. Each is read once: with another one, which a thread may bring
        at any moment, the batch would be in a topic that was created again before those in flight to the
        former.
        """
        topic = queue.topic_partition.topic
        if topic not in topic_ids:
            topic_ids[topic] = self._topics.topic_id(topic)
        topic_id = topic_ids[topic]
        if not self._queues.may_write(topic, topic_id):
            self._timer.at_once()  # the next turn gives up all that waits
            return None
        step = queue.next(now, leader, topic_id)
        if isinstance(step, Load):
            unreadable = _load(queue, step.batch, now)
            if unreadable is not None:
                return unreadable
            step = queue.next(now, leader, topic_id)
        match step:
            case Send(batch, numbered):
                if numbered:
                    self._spilling.keep_numbers(batch)
                return batch
            case NeedProducerId():
                self._lookups.ask_producer_id()
        return None

    def _post(
        self,
        broker: BrokerConnection,
        batches: list[Batch],
        topic_ids: dict[str, UUID | None],
        now: float,
    ) -> bool:
        topics = {batch.topic_partition.topic for batch in batches}
        known = {topic: found for topic in topics if (found := topic_ids[topic]) is not None}
        # Before the first byte: after any failure from here on, the batches may be in the log.
        for batch in batches:
            self._queues.of(batch.topic_partition).sent(batch, broker.node_id)
        _log_retries(broker, batches)
        try:
            self._connections.post(broker, batches, known, now)
        except KafkaError as error:
            # Nothing was written.
            for batch in batches:
                self._queues.of(batch.topic_partition).not_sent(batch)
            self._lookups.unreachable(broker, error)
            return False
        self._requests += 1
        for batch in batches:
            self._last_request[self._queues.of(batch.topic_partition)] = self._requests
        return True


def _why_no_leader(queue: PartitionQueue, known: Topic | None) -> BrokerError:
    """What a record that expires now names: a refusal of its topic, though it is older than the record."""
    code = None if known is None else known.error_code
    if code and not code.retriable:
        return BrokerError(code, f"topic {queue.topic_partition.topic}", operation="Describe")
    return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, str(queue.topic_partition))


def _load(queue: PartitionQueue, batch: Batch, now: float) -> GiveUp | None:
    """Load a spilled batch; one that can't be read is given up."""
    assert batch.spilled is not None
    try:
        queue.loaded(batch, batch.spilled.read())
    except (SpillError, OSError) as error:
        queue.unreadable(now)
        return GiveUp([batch], f"it can't be read from the spill folder: {error}", error)
    return None


def _log_retries(broker: BrokerConnection, batches: list[Batch]) -> None:
    again = [batch for batch in batches if batch.sending.attempts > 1]
    if again:
        where, cause = again[0].topic_partition, again[0].sending.last_error or "no answer"
        text = "%s: %d batches are sent again, to broker %d: %s"
        _THROTTLED_LOG.info(broker.node_id, text, where, len(again), broker.node_id, cause)
