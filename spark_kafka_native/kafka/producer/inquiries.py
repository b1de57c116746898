"""`Inquiries`: what may take its time - connecting, metadata, producer ids - in threads of its own.

A thread asks and returns what to do with the answer; the sender's thread does it. None of them touches the
sender's state.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from ..errors import BrokerError, KafkaError
from ..network.connection import Connection
from ..network.deadline import Deadline
from ..protocol.api.init_producer_id import InitProducerIdRequest
from .give_up import GiveUp
from .idempotence import ProducerIdentity
from .lane import Lane
from .partition_queue import PartitionQueue
from .sender_state import SenderState
from .topic_buffer import TopicBuffer
from .verdict import UNKNOWN_TOPIC

_LOG = logging.getLogger("spark_kafka_native")

CHANNEL = "produce"
"""Produce requests have connections of their own: behind a long fetch they would wait for it."""


class Inquiries:
    """Questions under way."""

    def __init__(
        self,
        state: SenderState,
        give_up: GiveUp,
        describe: Callable[[TopicBuffer], None],
        wake: Callable[[], None],
    ) -> None:
        self._state = state
        self._give_up = give_up
        self._describe = describe
        self._wake = wake
        self.answered: deque[Callable[[], None]] = deque()
        """What the sender's thread is to do next."""
        self._refreshing: set[str] = set()
        self._asking_identity = False
        self._identity_not_before = 0.0
        self._identity_failures = 0

    def connect(self, lane: Lane, now: float) -> None:
        """Connect ``lane``, unless that is under way or was tried a moment ago."""
        if lane.connecting:
            return
        if lane.not_before > now:
            self._state.by(lane.not_before)
            return
        lane.connecting = True
        router = self._state.router

        def ask() -> Callable[[], None]:
            deadline = Deadline.after_ms(2 * router.config.connection_setup_timeout_ms)
            try:
                connection = router.connection(lane.node_id, deadline, f"{CHANNEL}-{lane.number}")
            except Exception as error:  # noqa: BLE001 - else the lane would count as being connected for good
                failure = _as_kafka_error(error)
                return lambda: self._not_connected(lane, failure)
            return lambda: self._connected(lane, connection)

        self._start(ask, f"connect-{lane.node_id}")

    def stumble(self, lane: Lane, error: KafkaError) -> None:
        """``lane`` can't be used: wait, and ask who leads its partitions now."""
        now = self._state.clock()
        lane.not_before = now + self._state.delay_s(lane.failures)
        lane.failures += 1
        self._state.by(lane.not_before)
        _LOG.debug("broker %s: %s", lane.node_id, error)
        for queue in self._state.active:
            if queue.batches and self._leads(lane, queue):
                queue.batches[0].last_error = error
                self.refresh(queue.topic_partition.topic)

    def refresh(self, topic: str) -> None:
        """Ask how many partitions the topic has and who leads them."""
        if topic in self._refreshing:
            return
        self._refreshing.add(topic)
        router, buffer = self._state.router, self._state.topics.get(topic)

        def ask() -> Callable[[], None]:
            error: KafkaError | None = None
            try:
                router.refresh((topic,), Deadline.after_ms(router.config.request_timeout_ms))
                if buffer is not None:
                    self._describe(buffer)
            except Exception as failure:  # noqa: BLE001 - else nobody would ask about the topic again
                error = _as_kafka_error(failure)
            return lambda: self._refreshed(topic, error)

        self._start(ask, "metadata")

    def ask_identity(self) -> None:
        """Ask for a producer id."""
        now = self._state.clock()
        if self._asking_identity or self._identity_not_before > now:
            self._state.by(max(now, self._identity_not_before) if not self._asking_identity else now + 1)
            return
        self._asking_identity = True
        router = self._state.router

        def ask() -> Callable[[], None]:
            request = InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=0, producer_epoch=-1
            )
            try:
                response = router.send_any(request)
                if response.error_code:
                    raise BrokerError(response.error_code, "InitProducerId")
            except Exception as error:  # noqa: BLE001 - else nobody would ask for an identity again
                failure = _as_kafka_error(error)
                return lambda: self._not_identified(failure)
            identity = ProducerIdentity(response.producer_id, response.producer_epoch)
            return lambda: self._identified(identity)

        self._start(ask, "identity")

    def _start(self, ask: Callable[[], Callable[[], None]], name: str) -> None:
        def run() -> None:
            self.answered.append(ask())
            self._wake()

        try:
            threading.Thread(target=run, name=f"kafka-producer-{name}", daemon=True).start()
        except RuntimeError:
            # None can be started while the interpreter ends (3.12 on), or where there are too many.
            run()

    def _connected(self, lane: Lane, connection: Connection) -> None:
        lane.connecting = False
        lane.failures = 0
        if lane.sent and lane.connection is not None and not lane.connection.closed:
            # The broker's address changed to and fro: the one in use is right again, and answers come on it.
            if connection is not lane.connection:
                connection.close()
            return
        lane.connection = connection

    def _not_connected(self, lane: Lane, error: KafkaError) -> None:
        lane.connecting = False
        self.stumble(lane, error)

    def _leads(self, lane: Lane, queue: PartitionQueue) -> bool:
        name, index = queue.topic_partition
        topic = self._state.router.snapshot.topics.get(name)
        partition = None if topic is None else topic.partitions.get(index)
        return partition is not None and partition.leader == lane.node_id

    def _refreshed(self, topic: str, error: KafkaError | None) -> None:
        self._refreshing.discard(topic)
        if error is not None:
            self._blame(error, topic)
            return
        told = self._state.router.snapshot.topics.get(topic)
        if told is not None and not told.error_code:
            for queue in self._state.active:
                if queue.topic_partition.topic == topic and not _denied(queue):
                    queue.unknown_since = None

    def _identified(self, identity: ProducerIdentity) -> None:
        self._asking_identity = False
        self._identity_failures = 0
        if self._state.idempotence is not None:
            self._state.idempotence.identity = identity

    def _not_identified(self, error: KafkaError) -> None:
        self._asking_identity = False
        if isinstance(error, BrokerError) and not (
            error.error_code.retriable or error.error_code.stale_metadata
        ):
            hint = f"{error.error_code.description}; enable.idempotence=false does without a producer id"
            self._give_up.for_good(BrokerError(error.error_code, error.where, hint))
            return
        self._identity_not_before = self._state.clock() + self._state.delay_s(self._identity_failures)
        self._identity_failures += 1
        self._state.by(self._identity_not_before)
        self._blame(error)

    def _blame(self, error: KafkaError, topic: str | None = None) -> None:
        """Whoever waits should say, if it is given up, what it has waited for."""
        for queue in self._state.active:
            if queue.batches and topic in (None, queue.topic_partition.topic):
                queue.batches[0].last_error = error


def _denied(queue: PartitionQueue) -> bool:
    """Whether the last that was heard of its first batch is that there is no such topic: then metadata that
    know the topic may be old ones.
    """
    error = next((batch.last_error for batch in [*queue.in_flight, *queue.batches]), None)
    return isinstance(error, BrokerError) and error.error_code in UNKNOWN_TOPIC


def _as_kafka_error(error: Exception) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    _LOG.error("a question of the producer's failed unexpectedly", exc_info=error)
    unexpected = KafkaError(f"unexpected: {error!r}")
    unexpected.__cause__ = error
    return unexpected
