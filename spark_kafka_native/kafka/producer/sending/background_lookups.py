"""`BackgroundLookups`: what may take long - connecting, metadata, producer ids - in threads of its own.

A thread asks and returns what to do with the answer; the sender's thread does that. No such thread touches
what the sender's thread owns.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection

from ...cluster.metadata import ClusterMetadata
from ...cluster.router import Router
from ...errors import BrokerError, ConfigError, DeadlineExceededError, KafkaError, SecurityError
from ...model import TopicPartition
from ...network.connection import Connection
from ...protocol.api.transactions import InitProducerIdRequest
from ...runtime.background import start_thread
from ...runtime.deadline import Deadline, LoopTimer
from ...runtime.retry import Backoff
from ..accumulating.batch import ProducerIdentity
from ..accumulating.topics import Topics
from ..errors import TransactionAbortableError
from .idempotence import ProducerId
from .partition_queue import PartitionQueues
from .produce_requests import CHANNEL, BrokerConnection
from .transaction import Transaction
from .transaction_requests import OpenTransaction, add_partitions

_LOG = logging.getLogger("spark_kafka_native")

LEAST_AGE_S = 1.0
"""Without a reason, metadata is not requested more often than this, even with a lower metadata.max.age.ms."""
TOGETHER = 0.75
"""When a topic's metadata are old, those that have reached this part of that age are asked for with them."""

Answer = Callable[[], KafkaError | None]
"""What the sender's thread does with an answer. An error that it returns ends the producer."""


class BackgroundLookups:
    """The lookups of one producer that are under way."""

    def __init__(
        self,
        router: Router,
        topics: Topics,
        queues: PartitionQueues,
        timer: LoopTimer,
        wake: Callable[[], None],
    ) -> None:
        client = router.config
        self._router = router
        self._topics = topics
        self._queues = queues
        self._timer = timer
        self._wake = wake
        self._backoff = Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms)
        self.finished: deque[Answer] = deque()
        """What the sender's thread is to do next."""
        self.unsure: set[str] = set()
        """Topics that get nothing before they have been asked about."""
        self._wanted: dict[str, None] = {}
        self._refreshed_at: dict[str, float] = {}
        """When a topic was last asked about because of its age."""
        self._asked_at: dict[str, float] = {}
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
            self._timer.by(broker.not_before)
            return
        broker.connecting = True
        router = self._router

        def ask() -> Answer:
            deadline = Deadline.after_ms(2 * router.config.connection_setup_timeout_ms)
            try:
                connection = router.connection(broker.node_id, deadline, f"{CHANNEL}-{broker.number}")
            except Exception as error:  # noqa: BLE001 - else it would count as being connected for good
                failure = as_kafka_error(error)
                return lambda: self._not_connected(broker, failure)
            return lambda: self._connected(broker, connection)

        self.start(ask, f"connect-{broker.node_id}")

    def unreachable(self, broker: BrokerConnection, error: KafkaError) -> None:
        """``broker`` can't be used: wait, then look up the leaders of its partitions."""
        broker.not_before = self._timer.clock() + self._delay_s(broker.failures)
        broker.failures += 1
        self._timer.by(broker.not_before)
        _LOG.debug("broker %s: %s", broker.node_id, error)
        for queue in self._queues.active:
            if queue.waiting and self._topics.leader(queue.topic_partition) == broker.node_id:
                queue.held_up(error)
                self.refresh(queue.topic_partition.topic)

    def closed_by(self, broker: BrokerConnection) -> None:
        """With acks=0 that is all that a broker says of an error: look up the leaders before it gets more."""
        broker.connection = None
        topics = self._topics.metadata.topics
        for topic in (one.topic for one in self._topics.all() if one.topic in topics):
            if any(partition.leader == broker.node_id for partition in topics[topic].partitions.values()):
                self.unsure.add(topic)
                self.refresh(topic)

    def refresh(self, topic: str) -> None:
        """Ask for the topic's partitions and their leaders, at the next `ask_metadata`."""
        if topic not in self._asking_metadata:
            self._wanted[topic] = None

    def asked_at(self, topic: str) -> float:
        """When the last question about the topic that was answered was asked."""
        return self._asked_at.get(topic, -math.inf)

    def refresh_old(self, now: float) -> None:
        """Ask again about topics that were described long ago: partitions may have been added."""
        age_s = max(LEAST_AGE_S, self._router.config.metadata_max_age_ms / 1000)
        asked = self._refreshed_at
        known = {one.topic: max(one.described_at, asked.get(one.topic, 0.0)) for one in self._topics.all()}
        if any(at + age_s <= now for at in known.values()):
            for topic, at in known.items():  # also those that would be due in a moment: one request for all
                if at + age_s * TOGETHER <= now:
                    known[topic] = asked[topic] = now
                    self.refresh(topic)
        self._timer.by(min(known.values(), default=now) + age_s)

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
            self._timer.by(not_before[topic])
        if not topics:
            return
        self._asking_metadata = topics
        router = self._router

        def ask() -> Answer:
            error: KafkaError | None = None
            try:
                router.refresh(topics, Deadline.after_ms(router.config.request_timeout_ms))
                self._topics.refreshed(topics)
            except Exception as failure:  # noqa: BLE001 - else these topics would never be asked about again
                error = as_kafka_error(failure)
            return lambda: self._refreshed(topics, error, now)

        self.start(ask, "metadata")

    def ask_producer_id(self) -> None:
        """Ask for a producer id. A transactional producer gets its own when a transaction begins."""
        producer_id = self._queues.producer_id
        assert producer_id is not None
        if producer_id.transactional_id is not None:
            return
        now = self._timer.clock()
        if self._asking_producer_id or self._producer_id_not_before > now:
            self._timer.by(
                max(now, self._producer_id_not_before) if not self._asking_producer_id else now + 1
            )
            return
        self._asking_producer_id = True
        router = self._router

        def ask() -> Answer:
            request = InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=0, producer_epoch=-1
            )
            try:
                # One attempt, as `ask_producer_id` comes again: retries in here would outlive the producer.
                response = router.ask_any(request, Deadline.after_ms(router.config.request_timeout_ms))
                if response.error_code:
                    # Since Kafka 2.8 the permission to write to any topic is enough (KIP-679).
                    needed = "Write on a topic, or IdempotentWrite"
                    raise BrokerError(response.error_code, "InitProducerId", operation=needed)
            except Exception as error:  # noqa: BLE001 - else an identity would never be asked for again
                failure = as_kafka_error(error)
                return lambda: self._not_identified(failure)
            identity = ProducerIdentity(response.producer_id, response.producer_epoch)
            return lambda: self._identified(producer_id, identity)

        self.start(ask, "identity")

    def start(self, ask: Callable[[], Answer], name: str) -> None:
        """Have a thread ask, and the sender's thread do what ``ask`` returns."""

        def run() -> None:
            self.finished.append(ask())
            self._wake()

        start_thread(run, f"kafka-producer-{name}")

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

    def _not_connected(self, broker: BrokerConnection, error: KafkaError) -> KafkaError | None:
        broker.connecting = False
        if self._is_final(error):
            return error
        self.unreachable(broker, error)
        return None

    def _refreshed(
        self, topics: Collection[str], error: KafkaError | None, asked_at: float
    ) -> KafkaError | None:
        self._asking_metadata = frozenset()
        if error is None:
            self._asked_at.update(dict.fromkeys(topics, asked_at))
        self.unsure -= set(topics)
        if error is not None and self._is_final(error):
            return error
        metadata, now = self._topics.metadata, self._timer.clock()
        known = {name for name in topics if error is None and is_known(metadata, name)}
        for topic in topics:
            failures = 0 if topic in known else self._metadata_failures.get(topic, 0) + 1
            self._metadata_failures[topic] = failures
            self._metadata_not_before[topic] = now + self._delay_s(failures)
        if error is not None:
            self._queues.held_up(error, topics)
        for queue in self._queues.active:
            if queue.topic_partition.topic in known:
                queue.refreshed()
        return None

    def _identified(self, producer_id: ProducerId, identity: ProducerIdentity) -> None:
        self._asking_producer_id = False
        self._producer_id_failures = 0
        producer_id.received(identity)

    def _not_identified(self, error: KafkaError) -> KafkaError | None:
        self._asking_producer_id = False
        if isinstance(error, BrokerError) and not (
            error.error_code.retriable or error.error_code.stale_metadata
        ):
            where = f"{error.where} (enable.idempotence=false does without a producer id)"
            return BrokerError(error.error_code, where, error.message, error.operation)
        if self._is_final(error):
            return error
        self._producer_id_not_before = self._timer.clock() + self._delay_s(self._producer_id_failures)
        self._producer_id_failures += 1
        self._timer.by(self._producer_id_not_before)
        self._queues.held_up(error)
        return None

    def _is_final(self, error: KafkaError) -> bool:
        """True if ``error`` ends the producer: credentials that were refused once must not be tried for
        minutes, which locks accounts; other settings must be right at first contact."""
        return isinstance(error, SecurityError | ConfigError) and not error.may_pass

    def _delay_s(self, failures: int) -> float:
        return self._backoff.delay_ms(failures) / 1000


class TransactionPartitions:
    """Adds partitions to a transaction of version 1 before they are written to. The sender's thread calls it;
    there is one request at a time, for all that are wanted by then."""

    def __init__(self, transaction: Transaction, router: Router, lookups: BackgroundLookups) -> None:
        self._transaction = transaction
        self._router = router
        self._lookups = lookups
        self.adding = False
        """True while a request is under way."""

    def add_wanted(self) -> None:
        """Ask the coordinator to add what `Transaction.admits` has noted."""
        transaction, router = self._transaction, self._router
        if self.adding or not transaction.sending:
            return
        wanted = transaction.take_wanted()
        if not wanted:
            return
        self.adding = transaction.touched = True
        asked = OpenTransaction.of(transaction)

        def ask() -> Answer:
            try:
                add_partitions(router, asked, wanted, router.deadline())
            except Exception as error:  # noqa: BLE001 - else the partitions would be waited for in vain
                failure = as_kafka_error(error)
                return lambda: self._not_added(failure)
            return lambda: self._added(wanted)

        self._lookups.start(ask, "transaction")

    def _added(self, wanted: list[TopicPartition]) -> None:
        self._transaction.added(wanted)
        self.adding = False

    def _not_added(self, error: KafkaError) -> KafkaError | None:
        # A producer with a transaction has connected.
        uncertain = isinstance(error, DeadlineExceededError) or error.may_pass
        abortable = uncertain or isinstance(error, TransactionAbortableError)
        # Before `adding` is reset: an abort waits for that, and then asks for the uncertain partitions.
        if abortable:
            self._transaction.failed(error, uncertain=uncertain)
        else:
            self._transaction.fatal(error)
        self.adding = False
        return None if abortable else error


def is_known(metadata: ClusterMetadata, topic: str) -> bool:
    """True if ``metadata`` describe the topic, without an error."""
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
