"""`BackgroundLookups`: what may take long - connecting, metadata, producer ids - in threads of its own.

A thread asks and returns what to do with the answer; the sender's thread does it. None of them touches the
sender's state.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection

from ...cluster.metadata import ClusterMetadata
from ...errors import BrokerError, ConfigError, KafkaError, SecurityError
from ...network.connection import Connection
from ...protocol.api.init_producer_id import InitProducerIdRequest
from ...runtime.deadline import Deadline
from ..settling.failed_batches import FailedBatches
from .idempotence import ProducerIdentity
from .partition_queue import PartitionQueue
from .produce_request import BrokerConnection
from .sender_state import SenderState

_LOG = logging.getLogger("spark_kafka_native")

CHANNEL = "produce"
"""Produce requests have connections of their own: they would have to wait behind a long fetch."""


class BackgroundLookups:
    """Those under way."""

    def __init__(
        self,
        state: SenderState,
        failed: FailedBatches,
        refreshed: Callable[[Collection[str]], None],
        wake: Callable[[], None],
    ) -> None:
        self._state = state
        self._failed = failed
        self._tell_refreshed = refreshed
        self._wake = wake
        self.finished: deque[Callable[[], None]] = deque()
        """What the sender's thread is to do next."""
        self._wanted: dict[str, None] = {}
        self._asking_metadata: frozenset[str] = frozenset()
        self._metadata_not_before: dict[str, float] = {}
        self._metadata_failures: dict[str, int] = {}
        self._asking_producer_id = False
        self._producer_id_not_before = 0.0
        self._producer_id_failures = 0

    def connect(self, broker: BrokerConnection, now: float) -> None:
        """Connect to ``broker``, unless that is under way or was tried a moment ago."""
        if broker.connecting:
            return
        if broker.not_before > now:
            self._state.by(broker.not_before)
            return
        broker.connecting = True
        router = self._state.router

        def ask() -> Callable[[], None]:
            deadline = Deadline.after_ms(2 * router.config.connection_setup_timeout_ms)
            try:
                connection = router.connection(broker.node_id, deadline, f"{CHANNEL}-{broker.number}")
            except Exception as error:  # noqa: BLE001 - else it would count as being connected for good
                failure = as_kafka_error(error)
                return lambda: self._not_connected(broker, failure)
            return lambda: self._connected(broker, connection)

        self.start(ask, f"connect-{broker.node_id}")

    def unreachable(self, broker: BrokerConnection, error: KafkaError) -> None:
        """``broker`` can't be used: wait, then look up who leads its partitions now."""
        now = self._state.clock()
        broker.not_before = now + self._state.delay_s(broker.failures)
        broker.failures += 1
        self._state.by(broker.not_before)
        _LOG.debug("broker %s: %s", broker.node_id, error)
        for partition in self._state.active:
            if partition.waiting and self._leads(broker, partition):
                partition.held_up(error)
                self.refresh(partition.topic_partition.topic)

    def refresh(self, topic: str) -> None:
        """Ask how many partitions the topic has and who leads them, at the next `ask_metadata`."""
        if topic not in self._asking_metadata:
            self._wanted[topic] = None

    def ask_metadata(self, now: float) -> None:
        """Ask about all topics that are to be refreshed, in one request, once there is no other under way.

        Each partition of a topic asks for itself: no topic is asked about again before its backoff is over.
        """
        if self._asking_metadata:
            return
        not_before = self._metadata_not_before
        topics = frozenset(topic for topic in self._wanted if not_before.get(topic, now) <= now)
        for topic in topics:
            del self._wanted[topic]
        for topic in self._wanted:
            self._state.by(not_before[topic])
        if not topics:
            return
        self._asking_metadata = topics
        router = self._state.router

        def ask() -> Callable[[], None]:
            error: KafkaError | None = None
            try:
                router.refresh(topics, Deadline.after_ms(router.config.request_timeout_ms))
                self._tell_refreshed(topics)
            except Exception as failure:  # noqa: BLE001 - else nobody would ask about these topics again
                error = as_kafka_error(failure)
            return lambda: self._refreshed(topics, error)

        self.start(ask, "metadata")

    def ask_producer_id(self) -> None:
        """Ask for a producer id. Whoever begins a transaction asks for that of a transactional producer."""
        if self._state.transaction is not None:
            return
        now = self._state.clock()
        if self._asking_producer_id or self._producer_id_not_before > now:
            self._state.by(
                max(now, self._producer_id_not_before) if not self._asking_producer_id else now + 1
            )
            return
        self._asking_producer_id = True
        router, producer_id = self._state.router, self._state.producer_id
        assert producer_id is not None

        def ask() -> Callable[[], None]:
            request = InitProducerIdRequest(
                transactional_id=producer_id.transactional_id, transaction_timeout_ms=0, producer_epoch=-1
            )
            try:
                response = router.send_any(request)
                if response.error_code:
                    raise BrokerError(response.error_code, "InitProducerId", operation="IdempotentWrite")
            except Exception as error:  # noqa: BLE001 - else nobody would ask for an identity again
                failure = as_kafka_error(error)
                return lambda: self._not_identified(failure)
            identity = ProducerIdentity(response.producer_id, response.producer_epoch)
            return lambda: self._identified(identity)

        self.start(ask, "identity")

    def start(self, ask: Callable[[], Callable[[], None]], name: str) -> None:
        """Have a thread ask, and the sender's thread do what ``ask`` returns."""

        def run() -> None:
            self.finished.append(ask())
            self._wake()

        try:
            threading.Thread(target=run, name=f"kafka-producer-{name}", daemon=True).start()
        except RuntimeError:
            # None can be started while the interpreter ends (3.12 on), or where there are too many.
            run()

    def _connected(self, broker: BrokerConnection, connection: Connection) -> None:
        broker.connecting = False
        broker.failures = 0
        if broker.in_flight and broker.connection is not None and not broker.connection.closed:
            # The broker's address changed back and forth: the connection in use is right again, and answers
            # come on it.
            if connection is not broker.connection:
                connection.close()
            return
        broker.connection = connection

    def _not_connected(self, broker: BrokerConnection, error: KafkaError) -> None:
        broker.connecting = False
        if not self._is_final(error):
            self.unreachable(broker, error)

    def _is_final(self, error: KafkaError) -> bool:
        """Whether ``error`` ends the producer: credentials that were refused once must not be tried for
        minutes, which locks accounts.
        """
        if not isinstance(error, SecurityError | ConfigError):
            return False
        self._failed.fail_for_good(error)
        return True

    def _leads(self, broker: BrokerConnection, partition: PartitionQueue) -> bool:
        return self._state.leader(partition.topic_partition) == broker.node_id

    def _refreshed(self, topics: Collection[str], error: KafkaError | None) -> None:
        self._asking_metadata = frozenset()
        if error is not None and self._is_final(error):
            return
        metadata, now = self._state.router.snapshot, self._state.clock()
        known = {name for name in topics if error is None and is_known(metadata, name)}
        for topic in topics:
            failures = 0 if topic in known else self._metadata_failures.get(topic, 0) + 1
            self._metadata_failures[topic] = failures
            self._metadata_not_before[topic] = now + self._state.delay_s(failures)
        if error is not None:
            self._blame(error, topics)
        for partition in self._state.active:
            if partition.topic_partition.topic in known:
                partition.refreshed()

    def _identified(self, identity: ProducerIdentity) -> None:
        self._asking_producer_id = False
        self._producer_id_failures = 0
        if self._state.producer_id is not None:
            self._state.producer_id.received(identity)

    def _not_identified(self, error: KafkaError) -> None:
        self._asking_producer_id = False
        if isinstance(error, BrokerError) and not (
            error.error_code.retriable or error.error_code.stale_metadata
        ):
            where = f"{error.where} (enable.idempotence=false does without a producer id)"
            self._failed.fail_for_good(BrokerError(error.error_code, where, error.message, error.operation))
            return
        if self._is_final(error):
            return
        self._producer_id_not_before = self._state.clock() + self._state.delay_s(self._producer_id_failures)
        self._producer_id_failures += 1
        self._state.by(self._producer_id_not_before)
        self._blame(error)

    def _blame(self, error: KafkaError, topics: Collection[str] | None = None) -> None:
        """A batch that is given up should say what it was waiting for."""
        for partition in self._state.active:
            if topics is None or partition.topic_partition.topic in topics:
                partition.held_up(error)


def is_known(metadata: ClusterMetadata, topic: str) -> bool:
    """Whether ``metadata`` describe the topic, without an error."""
    found = metadata.topics.get(topic)
    return found is not None and not found.error_code


def as_kafka_error(error: Exception) -> KafkaError:
    """``error`` of a lookup, which only a bug makes anything else."""
    if isinstance(error, KafkaError):
        return error
    _LOG.error("a background lookup of the producer failed unexpectedly", exc_info=error)
    unexpected = KafkaError(f"unexpected: {error!r}")
    unexpected.__cause__ = error
    return unexpected
