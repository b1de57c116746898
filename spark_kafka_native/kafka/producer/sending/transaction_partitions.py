"""`TransactionPartitions`: adds partitions to a transaction of version 1 before they are written to."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import DeadlineExceededError, KafkaError
from ...model import TopicPartition
from ..errors import TransactionAbortableError
from ..settling.failed_batches import FailedBatches
from .background_lookups import BackgroundLookups, as_kafka_error
from .sender_state import SenderState
from .transaction_requests import OpenTransaction, add_partitions


class TransactionPartitions:
    """Called by the sender's thread; one request at a time, for all that are wanted by then."""

    def __init__(self, state: SenderState, failed: FailedBatches, lookups: BackgroundLookups) -> None:
        self._state = state
        self._failed = failed
        self._lookups = lookups
        self.adding = False
        """Whether a request is under way."""

    def add_wanted(self) -> None:
        """Ask the coordinator to add what `Transaction.admits` has noted."""
        transaction = self._state.transaction
        if transaction is None or self.adding or not transaction.sending:
            return
        producer_id = self._state.producer_id
        assert producer_id is not None
        assert producer_id.current is not None, "it has one before it begins"
        wanted = transaction.take_wanted()
        if not wanted:
            return
        self.adding = transaction.touched = True
        router = self._state.router
        asked = OpenTransaction(
            transactional_id=transaction.transactional_id,
            producer_id=producer_id.current.producer_id,
            producer_epoch=producer_id.current.producer_epoch,
            version=transaction.version,
        )

        def ask() -> Callable[[], None]:
            try:
                add_partitions(router, asked, wanted, router.deadline())
            except Exception as error:  # noqa: BLE001 - else nobody would hear that they can't be added
                failure = as_kafka_error(error)
                return lambda: self._not_added(failure)
            return lambda: self._added(wanted)

        self._lookups.start(ask, "transaction")

    def _added(self, wanted: list[TopicPartition]) -> None:
        assert self._state.transaction is not None
        self._state.transaction.added(wanted)
        self.adding = False

    def _not_added(self, error: KafkaError) -> None:
        assert self._state.transaction is not None
        if isinstance(error, TransactionAbortableError | DeadlineExceededError):
            uncertain = isinstance(error, DeadlineExceededError)
            self._state.transaction.failed(error, uncertain=uncertain)
        else:
            self._failed.fail_for_good(error)
        self.adding = False
