"""Produce requests: built from batches, in flight on connections to brokers, and answered batch by batch.

What may be sent is decided in `partition_queue.py`, what an answer means in `verdict.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ...cluster.router import Router
from ...config.client_config import ProducerConfig
from ...errors import BrokerError, KafkaError, ProtocolError, UnsupportedVersionError
from ...model import Acks
from ...network.connection import Connection
from ...network.pending_response import PendingResponse
from ...observe import catalogue as metric
from ...protocol.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ...protocol.wire import ZERO_UUID
from ...runtime.deadline import LoopTimer
from ..accumulating.batch import Batch
from ..errors import RecordsRefusedError
from ..stats import StatsRecorder
from .transaction import Transaction
from .verdict import CONFIRMED

CHANNEL = "produce"
"""Produce requests have connections of their own: they would have to wait behind a long fetch."""
MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""One request, where max.request.size does not say; brokers take up to 100 MiB (socket.request.max.bytes)."""
HELD_UP_S = 1.0
"""Where bytes waited to be written, an answer that is missed later than this is late because the client was
held up, as a stopped process is."""
LAST_VERSION_OF_TRANSACTIONS_1 = 11
"""From version 12 on Produce adds its partitions to the transaction by itself (KIP-890): never in one that
adds partitions in the old way."""
LAST_VERSION_BY_NAME = 12
"""From version 13 on Produce names topics by id (KIP-516); to a cluster without ids they name topics by
name."""


@dataclass(kw_only=True)
class InFlightRequest:
    """A produce request without its answer."""

    pending: PendingResponse[ProduceResponse]
    batches: list[Batch]
    by_id: bool
    topic_ids: dict[str, UUID]
    sent_at: float
    waits_again: bool = False
    """True once it has all of its time again, because this client was held up."""

    def match(self, response: ProduceResponse) -> dict[Batch, PartitionProduceResponse]:
        """What ``response`` says of each batch; one that it does not mention is missing."""
        answers: dict[tuple[object, int], PartitionProduceResponse] = {}
        for topic in response.responses:
            for partition in topic.partition_responses:
                # The first entry counts: an answer that names a partition twice must not settle it twice.
                answers.setdefault((topic.topic_id if self.by_id else topic.name, partition.index), partition)
        matched = {}
        for batch in self.batches:
            name, index = batch.topic_partition
            found = answers.get((self.topic_ids[name] if self.by_id else name, index))
            if found is not None:
                matched[batch] = found
        return matched


class ConnectionKey(NamedTuple):
    """Which connection to which broker: a partition always takes the same one, so that nothing overtakes."""

    node_id: int
    number: int


class BrokerConnection:
    """The sender's thread owns it. The connection may be replaced; the requests in flight go with it."""

    def __init__(self, node_id: int, number: int = 0) -> None:
        self.node_id = node_id
        self.number = number
        self.connection: Connection | None = None
        self.connecting = False
        self.not_before = 0.0
        self.failures = 0
        self.in_flight: deque[InFlightRequest] = deque()
        self.last_answer_at = 0.0

    def has_room(self, max_in_flight: int) -> bool:
        """True if one more request may be sent while fewer than ``max_in_flight`` are unanswered.

        Not while one waits for room in the socket: a broker that does not read holds up its own records only,
        and one request at most is kept for it.
        """
        return (
            len(self.in_flight) < max_in_flight
            and self.connection is not None
            and not self.connection.has_unwritten
        )


def build_produce(
    batches: list[Batch],
    topic_ids: dict[str, UUID],
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """One request for ``batches``, at most one of each partition (the protocol allows no more)."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for batch in batches:
        topic, index = batch.topic_partition
        topics.setdefault(topic, []).append(PartitionProduceData(index=index, records=memoryview(batch.data)))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(name=topic, topic_id=topic_ids.get(topic, ZERO_UUID), partition_data=data)
            for topic, data in topics.items()
        ],
    )


def choose_version(
    connection: Connection,
    batches: list[Batch],
    topic_ids: dict[str, UUID],
    transaction_version: int | None = None,
) -> int:
    """The version to speak: by topic id only where the ids of all topics are known, and in a transaction
    only those of its protocol. Raises `UnsupportedVersionError`."""
    if transaction_version == 1:
        return connection.version_of(ProduceRequest, LAST_VERSION_OF_TRANSACTIONS_1)
    version = connection.version_of(ProduceRequest)
    if transaction_version == 2 and version <= LAST_VERSION_OF_TRANSACTIONS_1:
        raise UnsupportedVersionError(
            f"{connection.address} speaks Produce up to version {version}, while the cluster has "
            "transaction.version=2: is it being downgraded? Begin the transaction again"
        )
    known = all(batch.topic_partition.topic in topic_ids for batch in batches)
    return version if known else min(version, LAST_VERSION_BY_NAME)


@dataclass(frozen=True)
class Written:
    """With acks=0: the batch was written, and no more will be heard of it."""

    batch: Batch


@dataclass(frozen=True)
class Answered:
    """What a broker says of a batch."""

    batch: Batch
    response: PartitionProduceResponse
    cause: BrokerError
    """Its error, with the broker's own words."""
    by_id: bool
    """The request named its topic by id: the answer is about no topic that was created again."""


@dataclass(frozen=True)
class Unanswered:
    """No answer for a batch will come; it may be in the log."""

    batch: Batch
    cause: KafkaError


ProduceAnswer = Written | Answered | Unanswered


class ProduceConnections:
    """The connections of one producer to the brokers that it writes to, and the requests in flight on them.
    The sender's thread owns them."""

    def __init__(
        self,
        router: Router,
        config: ProducerConfig,
        stats: StatsRecorder,
        timer: LoopTimer,
        transaction: Transaction | None,
    ) -> None:
        self.max_in_flight = config.max_in_flight
        """Requests on one connection."""
        self.unanswered = config.acks is Acks.NONE
        """True if brokers do not answer."""
        self.max_bytes = config.max_request_size or MAX_REQUEST_BYTES
        """Of one request."""
        self._router = router
        self._config = config
        self._stats = stats
        self._timer = timer
        self._transaction = transaction
        self._brokers = 0
        self._connections: dict[ConnectionKey, BrokerConnection] = {}

    def __iter__(self) -> Iterator[BrokerConnection]:
        return iter(self._connections.values())

    def of(self, node_id: int, partition: int) -> BrokerConnection:
        """The connection for the records of ``partition`` to a broker: always the same."""
        # Brokers lead partitions in turn: with two of them, one leads the even partitions, and by the
        # partition's number alone all of these would share one connection. Counted once: a partition must
        # keep its own.
        self._brokers = self._brokers or max(1, len(self._router.snapshot.brokers))
        key = ConnectionKey(node_id, partition // self._brokers % self._config.connections_per_broker)
        return self._connections.setdefault(key, BrokerConnection(*key))

    def post(
        self, broker: BrokerConnection, batches: list[Batch], topic_ids: dict[str, UUID], now: float
    ) -> None:
        """Send one request. Raises `KafkaError`: nothing was written then."""
        connection = broker.connection
        assert connection is not None
        transaction = self._transaction
        of_version = transactional_id = None
        if transaction is not None:
            of_version, transactional_id = transaction.version, transaction.transactional_id
            transaction.touched = True
        version = choose_version(connection, batches, topic_ids, of_version)
        timeout_ms = self._router.config.request_timeout_ms
        request = build_produce(batches, topic_ids, self._config.acks, timeout_ms, transactional_id)
        pending = connection.post(request, version)
        by_id = version > LAST_VERSION_BY_NAME
        if transaction is not None and not by_id:
            transaction.wrote(topic_ids)
        broker.in_flight.append(
            InFlightRequest(
                pending=pending,
                batches=batches,
                by_id=by_id,
                topic_ids=topic_ids,
                sent_at=self._timer.clock(),  # a callback of this turn may have taken long
            )
        )
        first_tries = [batch for batch in batches if batch.sending.attempts == 1]
        self._stats.sent(retries=len(batches) - len(first_tries))
        for batch in first_tries:
            self._stats.metrics.measure(metric.QUEUE_DURATION, now - batch.sending.since)
        if pending.done:
            self._timer.by(now)

    def read(self, now: float) -> Iterator[ProduceAnswer]:
        """The answers that have arrived, in the order of sending; closes a connection with an overdue one.

        One by one: an answer that was read and is not acted on would be lost with an error of the next read.
        """
        for broker in list(self._connections.values()):
            yield from self._read(broker, now)

    def _read(self, broker: BrokerConnection, now: float) -> Iterator[ProduceAnswer]:
        if not broker.in_flight or broker.connection is None:
            return
        was_unwritten = broker.connection.has_unwritten
        broker.connection.poll()
        while broker.in_flight and broker.in_flight[0].pending.done:
            broker.last_answer_at = now
            request = broker.in_flight.popleft()
            self._stats.metrics.measure(metric.PRODUCE_DURATION, now - request.sent_at)
            yield from self._answers(request)
        if not broker.in_flight:
            return
        # The clock of a request starts when the one before it is answered, also that of another client of the
        # same router: brokers handle them in order.
        timeout_ms = self._router.config.request_timeout_ms
        answered_at = max(broker.last_answer_at, broker.connection.answered_at)
        due = max(broker.in_flight[0].sent_at, answered_at) + timeout_ms / 1000
        if was_unwritten and now - due > HELD_UP_S and not broker.in_flight[0].waits_again:
            # The broker did not even have the whole request.
            broker.in_flight[0].waits_again = True
            broker.last_answer_at = now
            due = now + timeout_ms / 1000
        elif due <= now:
            broker.connection.give_up(broker.in_flight[0].pending, timeout_ms, is_overdue=True)
            due = now
        self._timer.by(due)

    def _answers(self, request: InFlightRequest) -> list[ProduceAnswer]:
        try:
            response = request.pending.result(0)
        except KafkaError as error:
            return [Unanswered(batch, error) for batch in request.batches]
        if self.unanswered:
            return [Written(batch) for batch in request.batches]
        matched = request.match(response)
        request.pending.release()
        return [self._answer(request, batch, matched.get(batch)) for batch in request.batches]

    def _answer(
        self, request: InFlightRequest, batch: Batch, found: PartitionProduceResponse | None
    ) -> ProduceAnswer:
        if found is None:
            what = f"{request.pending.what}: the answer does not mention {batch.topic_partition}"
            return Unanswered(batch, ProtocolError(what))
        if self._transaction is not None and request.by_id and found.error_code in CONFIRMED:
            topic = batch.topic_partition.topic
            self._transaction.wrote({topic: request.topic_ids[topic]})
        where = f"Produce to {batch.topic_partition}"
        return Answered(batch, found, error_of(found, where), request.by_id)


def error_of(response: PartitionProduceResponse, where: str) -> BrokerError:
    """The error in ``response``, also if its code is NONE."""
    if not response.record_errors:
        return BrokerError(response.error_code, where, error_words(response), operation="Write")
    refused = RecordsRefusedError(response.error_code, where, error_words(response), operation="Write")
    refused.places = tuple(one.batch_index for one in response.record_errors)
    return refused


def error_words(response: PartitionProduceResponse) -> str | None:
    """The broker's own words, with the records that it names (KIP-467)."""
    named = [
        f"record {one.batch_index}"
        + (f": {words}" if (words := one.batch_index_error_message) else " refused")
        for one in response.record_errors[:3]
    ]
    return "; ".join([*([response.error_message] if response.error_message else []), *named]) or None
