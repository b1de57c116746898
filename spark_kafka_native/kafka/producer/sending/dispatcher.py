"""`Dispatcher`: batches that may be sent now -> produce requests to the leaders of their partitions."""

from __future__ import annotations

import logging

from ...error_code import ErrorCode
from ...errors import BrokerError, KafkaError
from ...observe import catalogue as metric
from ...runtime.log_throttle import LogThrottle
from ..accumulating.batch import Batch
from ..settling.failed_batches import FailedBatches
from ..spill_folder import SpillError
from .background_lookups import BackgroundLookups
from .partition_queue import Load, NeedProducerId, PartitionQueue, Send
from .produce_request import (
    LAST_VERSION_BY_NAME,
    BrokerConnection,
    ConnectionKey,
    InFlightRequest,
    build_produce,
    choose_version,
)
from .sender_state import SenderState
from .transaction_partitions import TransactionPartitions

_LOG = logging.getLogger("spark_kafka_native")
_THROTTLED_LOG = LogThrottle(logging.getLogger("spark_kafka_native.producer"))

MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""One request, where max.request.size does not say; brokers take up to 100 MiB (socket.request.max.bytes)."""


SHARED_WRITE_S = 0.02
"""Another producer of the same router may be writing to a connection on which we wait for nothing: nobody
tells us when it is done. Look again then."""


class Dispatcher:
    """Called by the sender's thread."""

    def __init__(
        self,
        state: SenderState,
        failed: FailedBatches,
        lookups: BackgroundLookups,
        partitions: TransactionPartitions,
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._failed = failed
        self._lookups = lookups
        self._brokers = 0
        self._max_bytes = state.config.max_request_size or MAX_REQUEST_BYTES

    def send(self, now: float) -> None:
        """Send every batch that may be sent now."""
        ready: dict[BrokerConnection, list[PartitionQueue]] = {}
        for partition in self._state.active:
            if not self._is_due(partition, now):
                continue
            leader = self._leader(partition, now)
            if leader is not None:
                ready.setdefault(self._connection(leader, partition.topic_partition.partition), []).append(
                    partition
                )
        self._partitions.add_wanted()
        for broker, partitions in ready.items():
            if self._reach(broker, now):
                self._fill(broker, partitions, now)

    def _is_due(self, partition: PartitionQueue, now: float) -> bool:
        at = partition.ready_at()
        if at is None:
            return False
        if at > now:
            self._state.by(at)
            return False
        transaction = self._state.transaction
        return transaction is None or transaction.admits(partition.topic_partition)

    def prepare(self, topic: str, now: float) -> None:
        """Look up what the first batch of ``topic`` will need, while its caller still encodes it."""
        if self._state.producer_id is not None and self._state.producer_id.current is None:
            self._lookups.ask_producer_id()
        metadata = self._state.router.snapshot
        known = metadata.topics.get(topic)
        for index, partition in ({} if known is None else known.partitions).items():
            if partition.leader is not None and partition.leader in metadata.brokers:
                self._reach(self._connection(partition.leader, index), now)

    def _connection(self, node_id: int, partition: int) -> BrokerConnection:
        # Brokers lead partitions in turn: with two of them, one leads the even partitions, and by the
        # partition's number alone all of these would share one connection. Counted once: a partition must
        # keep its own.
        self._brokers = self._brokers or max(1, len(self._state.router.snapshot.brokers))
        key = ConnectionKey(node_id, partition // self._brokers % self._state.config.connections_per_broker)
        return self._state.connections.setdefault(key, BrokerConnection(*key))

    def _leader(self, partition: PartitionQueue, now: float) -> int | None:
        topic, index = partition.topic_partition
        metadata = self._state.router.snapshot
        known = metadata.topics.get(topic)
        if known is not None and known.error_code:
            gone = partition.denied(known.error_code, now)
            if gone or not known.error_code.retriable:
                cause = BrokerError(known.error_code, f"topic {topic}", operation="Describe")
                self._failed.fail(list(partition.waiting), str(cause), cause, retriable=False)
                return None
        found = None if known is None else known.partitions.get(index)
        if found is not None and found.leader is not None and found.leader in metadata.brokers:
            return found.leader
        if partition.waiting[0].last_error is None:
            partition.held_up(BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, str(partition.topic_partition)))
        self._state.by(partition.without_leader(now))
        self._lookups.refresh(topic)
        return None

    def _reach(self, broker: BrokerConnection, now: float) -> bool:
        """Whether requests can be sent on ``broker`` now; starts connecting if not."""
        connection = broker.connection
        if connection is not None and not connection.closed:
            if connection.muted_ms:
                self._state.by(now + connection.muted_ms / 1000)
                return False
            known = self._state.router.snapshot.brokers.get(broker.node_id)
            moved = known is not None and connection.address != f"{known.host}:{known.port}"
            # A SASL session that ends: answers first, then another connection (KIP-368).
            leaving = moved or connection.renewal_due
            if not leaving and (broker.in_flight or connection.alive()):
                return True
        if not broker.in_flight:
            self._lookups.connect(broker, now)
        return False

    def _fill(self, broker: BrokerConnection, partitions: list[PartitionQueue], now: float) -> None:
        most = self._state.config.max_in_flight
        if not broker.in_flight and not broker.has_room(most):
            self._state.by(now + SHARED_WRITE_S)
        while broker.has_room(most):
            batches: list[Batch] = []
            size = 0
            for partition in partitions:
                batch = self._next_batch(partition, broker.node_id, now)
                if batch is not None and (not batches or size + len(batch.data) <= self._max_bytes):
                    batches.append(batch)
                    size += len(batch.data)
            if not batches or not self._post(broker, batches, now):
                return

    def _next_batch(self, partition: PartitionQueue, leader: int, now: float) -> Batch | None:
        """The batch that may be sent now, numbered; it stays in its partition until it is sent."""
        topic_id = self._state.topic_id(partition.topic_partition.topic)
        step = partition.next(now, leader, topic_id)
        if isinstance(step, Load) and self._load(partition, step.batch):
            step = partition.next(now, leader, topic_id)
        match step:
            case Send(batch, numbered):
                if numbered:
                    self._keep_numbers(batch)
                return batch
            case NeedProducerId():
                self._lookups.ask_producer_id()
        return None

    def _load(self, partition: PartitionQueue, batch: Batch) -> bool:
        """Load a spilled batch. False if it could not be read and was given up."""
        assert batch.spilled is not None
        try:
            partition.loaded(batch, batch.spilled.read())
        except (SpillError, OSError) as error:
            self._failed.fail([batch], f"it can't be read from the spill folder: {error}", error)
            return False
        return True

    def _keep_numbers(self, batch: Batch) -> None:
        """If its answer is lost, the next to replay a spilled batch must do so with its new numbers."""
        try:
            self._state.completion.respill(batch, [batch])
        except SpillError as error:
            _LOG.warning("%s: may be written twice if this producer dies: %s", batch.topic_partition, error)

    def _post(self, broker: BrokerConnection, batches: list[Batch], now: float) -> bool:
        connection = broker.connection
        assert connection is not None
        topic_ids = {}
        for topic in {batch.topic_partition.topic for batch in batches}:
            topic_id = self._state.topic_id(topic)
            if topic_id is not None:
                topic_ids[topic] = topic_id
        # Before the first byte: whatever goes wrong from here on, the batches may be in the log.
        first_tries = self._note_sent(broker, batches)
        try:
            transaction = self._state.transaction
            of_version = transactional_id = None
            if transaction is not None:
                of_version, transactional_id = transaction.version, transaction.transactional_id
                transaction.touched = True
            version = choose_version(connection, batches, topic_ids, of_version)
            timeout_ms = self._state.router.config.request_timeout_ms
            request = build_produce(batches, topic_ids, self._state.config.acks, timeout_ms, transactional_id)
            pending = connection.post(request, version)
        except KafkaError as error:
            # Nothing was written.
            for batch in batches:
                self._state.partition(batch.topic_partition).not_sent(batch)
            self._lookups.unreachable(broker, error)
            return False
        by_id = version > LAST_VERSION_BY_NAME
        broker.in_flight.append(
            InFlightRequest(pending=pending, batches=batches, by_id=by_id, topic_ids=topic_ids, sent_at=now)
        )
        self._state.stats.sent(retries=len(batches) - len(first_tries))
        for batch in first_tries:
            self._state.stats.metrics.measure(metric.QUEUE_DURATION, now - batch.created_at)
        if pending.done:
            self._state.by(now)
        return True

    def _note_sent(self, broker: BrokerConnection, batches: list[Batch]) -> list[Batch]:
        """Report it to the partitions; returns the batches that are sent for the first time."""
        first_tries = [batch for batch in batches if not batch.attempts]
        for batch in batches:
            self._state.partition(batch.topic_partition).sent(batch, broker.node_id)
        if again := len(batches) - len(first_tries):
            one = next(batch for batch in batches if batch.attempts > 1)
            told = (one.topic_partition, again, broker.node_id, one.last_error or "no answer")
            _THROTTLED_LOG.info(broker.node_id, "%s: %d batches are sent again, to broker %d: %s", *told)
        return first_tries
