"""`TransactionalSends`: how records get into a transaction, and only into an open one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from ..config.client_config import TransactionConfig
from ..errors import KafkaError
from .accumulating.records_in import Columns, RecordHeaders, Sendable
from .delivery import ColumnsDelivery, Delivery
from .errors import TransactionAbortableError, TransactionFatalError, TransactionStateError
from .producer import Producer
from .sending.transaction import State, Transaction


class TransactionalSends(Producer):
    """Part of `TransactionalProducer`, which sets what is declared here."""

    _transaction: Transaction
    _settings: TransactionConfig
    _gate: threading.RLock
    """A commit and an append must not cross."""
    _taken: int
    """Records of this transaction."""

    def send(  # noqa: PLR0913 - as Producer's
        self,
        topic: str,
        value: bytes | str | None = None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: RecordHeaders | None = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """As `Producer.send`, in a transaction. One that raises makes the transaction abortable."""
        self._raise_if_callback("send() in a transaction")
        with self._gate:
            if self._transaction.state is not State.OPEN:
                self._require_open("send")
            try:
                delivery = super().send(
                    topic,
                    value,
                    key=key,
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                    headers=headers,
                    on_delivery=on_delivery,
                )
            except BaseException as error:
                self._transaction.failed(as_kafka_error(error))
                raise
            self._taken += 1
            return delivery

    def send_columns(
        self,
        columns: Columns,
        topic: str | None = None,
        partition: int | npt.NDArray[Any] | pa.Array | None = None,
    ) -> ColumnsDelivery:
        """As `Producer.send_columns`, in a transaction. One that raises makes the transaction abortable."""
        self._raise_if_callback("send_columns() in a transaction")
        with self._gate:
            self._require_open("send_columns")
            try:
                delivery = super().send_columns(columns, topic, partition)
            except BaseException as error:
                self._transaction.failed(as_kafka_error(error))
                raise
            self._taken += len(delivery)
            return delivery

    def send_many(
        self, topic: str, records: Iterable[Sendable], *, partition: int | None = None
    ) -> ColumnsDelivery:
        """As `Producer.send_many`, in a transaction. One that raises makes the transaction abortable."""
        self._raise_if_callback("send_many() in a transaction")
        self._require_open("send_many")
        try:
            return super().send_many(topic, records, partition=partition)
        except BaseException as error:
            with self._gate:  # a commit that has begun meanwhile never had these records
                if self._transaction.state is State.OPEN:
                    self._transaction.failed(as_kafka_error(error))
            raise

    def _require_open(self, what: str) -> None:
        state = self._transaction.state
        if state is State.OPEN:
            return
        self._raise_failure(what)
        self._topics.raise_if_closed()
        raise TransactionStateError(
            f"transactional id {self._settings.transactional_id}: can't {what}; the producer is {state.value}"
        )

    def _raise_failure(self, what: str) -> None:
        """Raise what has gone wrong, if anything has."""
        state, failure = self._transaction.state, self._transaction.failure
        name = f"transactional id {self._settings.transactional_id}"
        if state is State.ABORTABLE:
            raise TransactionAbortableError(f"{name}: can't {what}, only abort: {failure}") from failure
        if state is State.FATAL:
            possibly = self._transaction.commit_asked
            if isinstance(failure, TransactionFatalError):
                possibly = failure.possibly_committed
            raise TransactionFatalError(f"{name}: can't {what}: {failure}", possibly) from failure


def as_kafka_error(error: BaseException) -> KafkaError:
    """What a transaction is told that failed."""
    return error if isinstance(error, KafkaError) else KafkaError(repr(error))
