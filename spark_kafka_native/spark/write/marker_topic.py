"""`MarkerTopic`: commit markers and intents as records of a compacted topic, where they never expire.

The key of a marker is the transactional id, that of an intent the job's name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...kafka.cluster.configs import describe_topic_configs
from ...kafka.cluster.router import Router
from ...kafka.config.client_config import ClientConfig, TransactionConfig
from ...kafka.consumer.last_committed_value import last_committed_value
from ...kafka.error_code import ErrorCode
from ...kafka.errors import BrokerError, ConfigError, DeadlineExceededError, KafkaError
from ...kafka.model import TopicPartition
from ...kafka.producer.errors import DeliveryError, TransactionAbortableError
from ...kafka.runtime.deadline import Deadline
from .batch_intent import BatchIntent, Intents, drivers_name, replaced
from .commit_marker import CommitMarker, ReplayError
from .write_options import WriteOptions

if TYPE_CHECKING:
    from ...kafka.producer.transactional_producer import TransactionalProducer

_LOG: Final = logging.getLogger("spark_kafka_native")
M = TypeVar("M")

_PARTITION: Final = 0
"""Of a marker topic. Not by the key: it would be another one as soon as the topic has more partitions."""
_CLOSE_S: Final = 5.0
_checked: set[tuple[ClientConfig, str]] = set()
"""Of this process."""


class MarkerTopic:
    """`Markers` in partition 0 of a compacted topic."""

    needs_place = False

    def __init__(self, router: Router, topic: str, options: WriteOptions) -> None:
        self._router = router
        self._options = options
        self._place = TopicPartition(topic, _PARTITION)
        once = options.exactly_once
        self._scan_ms = None if once is None else once.transaction_timeout_ms

    def check(self) -> None:
        """Raises `ConfigError` where the topic does not exist, or does not keep its records; asked once in a
        process."""
        topic = self._place.topic
        if (self._router.config, topic) in _checked:
            return
        create = "create it with cleanup.policy=compact; one partition is enough"
        deadline = self._router.deadline(self._options.producer.max_block_ms)
        try:
            policy = describe_topic_configs(self._router, [topic], deadline, names=["cleanup.policy"])
        except BrokerError as error:
            if error.error_code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise ConfigError(f"transactionMarkerTopic: topic {topic} does not exist: {create}") from error
        found = (policy[topic].get("cleanup.policy") or "unknown").replace(" ", "")
        if found != "compact":
            raise ConfigError(
                f"transactionMarkerTopic: topic {topic} has cleanup.policy={found}, so that markers would be "
                "deleted that are still needed: set cleanup.policy=compact, without delete"
            )
        _checked.add((self._router.config, topic))

    def last(
        self,
        name: str,
        where: TopicPartition | None,  # noqa: ARG002 - all have one place
        deadline: Deadline | None = None,
    ) -> CommitMarker | None:
        """As `Markers.last`."""
        # A key without a marker is looked for in the whole topic.
        return self._last(name, _read_marker, deadline or self._router.deadline(self._scan_ms))

    def add(
        self,
        producer: TransactionalProducer,
        name: str,
        marker: CommitMarker,
        where: TopicPartition,  # noqa: ARG002
    ) -> CommitMarker | None:
        """As `Markers.add`."""
        told = {"batch": marker.batch_id} | marker.told()
        deadline = self._router.deadline(self._scan_ms)
        offset = self._write(producer, name, told, deadline)
        return self._last(name, _read_marker, deadline, offset)

    def take_intents(self, job: str, timeout_ms: int, deadline: Deadline) -> Intents:
        """As `Markers.take_intents`."""
        return TopicIntents(self, job, timeout_ms, deadline)

    def last_intent(self, job: str, deadline: Deadline, until: int | None = None) -> BatchIntent | None:
        """As `Intents.last`; with ``until``, the last one before this offset."""
        return self._last(job, lambda told: BatchIntent.of(int(told["batch"]), told), deadline, until)

    def write_intent(
        self, producer: TransactionalProducer, job: str, intent: BatchIntent, deadline: Deadline
    ) -> int:
        """In a transaction that stays open. Returns its offset."""
        told = {"batch": intent.batch_id} | intent.told()
        producer.begin(timeout=deadline)
        return self._write(producer, job, told, deadline)

    def producer(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        """One that writes there."""
        from ...kafka.producer.transactional_producer import TransactionalProducer

        settings = TransactionConfig(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        return TransactionalProducer(
            self._router.config, settings, self._options.producer, router=self._router
        )

    def _write(
        self, producer: TransactionalProducer, key: str, told: dict[str, Any], deadline: Deadline
    ) -> int:
        """A record; its offset, once it is in the log."""
        sent = producer.send(self._place.topic, json.dumps(told), key=key, partition=_PARTITION)
        producer.flush(timeout=deadline)
        try:
            offset = sent.result(0).offset
        except DeliveryError as error:
            raise TransactionAbortableError(f"abort the transaction and begin another: {error}") from error
        except TimeoutError as error:
            raise DeadlineExceededError(f"{self._place}: the record of {key} is not confirmed") from error
        if offset is None:
            raise KafkaError(f"{self._place}: the leader did not say which offset the record of {key} has")
        return offset

    def _last(
        self,
        key: str,
        of: Callable[[dict[str, Any]], M],
        deadline: Deadline,
        until: int | None = None,
    ) -> M | None:
        found = last_committed_value(self._router, self._place, key.encode(), deadline, until=until)
        if found is None:
            return None
        try:
            return of(json.loads(found))
        except (ValueError, KeyError, TypeError) as error:
            raise ReplayError(
                f"topic {self._place.topic} has a record with the key {key} that is no commit marker "
                f"({found[:100]!r}): somebody else writes there; choose another transactionMarkerTopic"
            ) from error


def _read_marker(told: dict[str, Any]) -> CommitMarker:
    return CommitMarker.from_told(int(told["batch"]), told)


class TopicIntents:
    """`Intents` that are records of a marker topic."""

    def __init__(self, markers: MarkerTopic, job: str, timeout_ms: int, deadline: Deadline) -> None:
        self._markers = markers
        self._job = job
        self._deadline = deadline
        self._producer = markers.producer(drivers_name(job), timeout_ms)
        try:
            self._producer.initialize(timeout=deadline)
        except BaseException:
            self.close()
            raise

    def last(self, where: TopicPartition | None) -> BatchIntent | None:  # noqa: ARG002 - all have one place
        """As `Intents.last`."""
        return self._markers.last_intent(self._job, self._deadline)

    def replace(
        self,
        before: BatchIntent | None,
        intent: BatchIntent,
        where: TopicPartition,  # noqa: ARG002
    ) -> None:
        """As `Intents.replace`."""
        offset = self._markers.write_intent(self._producer, self._job, intent, self._deadline)
        if (now := self._markers.last_intent(self._job, self._deadline, offset)) != before:
            raise replaced(before, now)  # `close` aborts
        self._producer.commit(timeout=self._deadline)

    def close(self) -> None:
        """End the producer."""
        try:
            self._producer.close(timeout=_CLOSE_S)
        except KafkaError as error:
            _LOG.warning("%r could not be closed: %s", self._producer, error)
