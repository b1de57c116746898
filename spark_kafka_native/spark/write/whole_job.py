"""`WholeJob`: a batch write that readers with read_committed see as a whole, or not at all.

Kafka ends one transaction atomically, never several. So the whole job is one transaction, and a single task
writes it: that task leaves it open, and the driver commits it once Spark says that the job is done. Whatever
dies before leaves a transaction that nobody commits.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from ...kafka.admin import Admin
from ...kafka.cluster.router import Router, router_for
from ...kafka.config.client_config import TransactionConfig
from ...kafka.errors import ConfigError, IncompleteResponseError, KafkaError
from ...kafka.producer.errors import TransactionAbortableError, TransactionFatalError
from ...kafka.producer.sending.transaction_requests import (
    OpenTransaction,
    end_transaction,
    find_version,
    init_producer_id,
)
from ...kafka.producer.transactional_producer import TransactionalProducer
from ..worker import settle_worker
from .commit_message import KafkaCommitMessage
from .exactly_once import close_producer, refuse_speculation
from .rows import RowColumns
from .transaction_ends import CommitFailedError
from .write_options import ExactlyOnce, WriteOptions
from .write_task import WriteTask

_LOG: Final = logging.getLogger("spark_kafka_native")
_ABORT_MS: Final = 15_000
_VISIBLE_MS: Final = 30_000
"""So long a job that is committed waits for its readers: a coordinator answers before they can see it."""


class CommitInDoubtError(KafkaError):
    """Nobody has said whether the job is committed. Its rows are all there or none is; says how to find
    out."""


@dataclass(frozen=True, kw_only=True)
class WholeJob:
    """One batch write. Plain data: it goes to the workers, and to the process that commits."""

    transactional_id: str
    transaction_timeout_ms: int

    @classmethod
    def begin(cls, router: Router, options: WriteOptions, once: ExactlyOnce) -> WholeJob:
        """On the driver, before the job runs: take the transactional id. What an earlier run with the same
        ``transactionalIdPrefix`` has left is aborted, and whatever of it still runs is fenced.

        Raises `ConfigError` (a timeout over the broker's maximum), `UnsupportedVersionError` (a broker that
        is too old), `TransactionFatalError` (ACLs).
        """
        # With a name of its own nobody can find what it leaves: that waits for its timeout.
        own = f"{once.transactional_id_prefix}-batch" + ("" if once.is_prefix_given else f"-{uuid.uuid4()}")
        deadline = router.deadline(options.producer.max_block_ms)
        find_version(router, own, 2, deadline)
        init_producer_id(router, own, once.transaction_timeout_ms, None, deadline)
        return cls(transactional_id=own, transaction_timeout_ms=once.transaction_timeout_ms)

    def write(
        self, batches: Iterator[pa.RecordBatch], columns: RowColumns, options: WriteOptions, partition: int
    ) -> KafkaCommitMessage:
        """On a worker: write all rows of a task; nobody sees them before `commit`.

        Only partition 0 of the DataFrame may have rows. That is a rule of the plan, and not of what happens
        to be empty today. Raises `ConfigError` for a row elsewhere, and as `write_rows`.
        """
        settle_worker()
        if partition:
            _refuse_rows(batches, partition)
            return KafkaCommitMessage.skipped_rows("", 0)
        router = router_for(options.client)
        settings = TransactionConfig(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.transaction_timeout_ms
        )
        producer = TransactionalProducer(options.client, settings, options.producer, router=router)
        try:
            # Fences an earlier attempt of this task, and aborts what it wrote, also where there are no rows.
            producer.begin()
            task = WriteTask(producer, router, columns, options)
            for batch in batches:
                task.write(batch)
            task.finish()
            return KafkaCommitMessage.of(producer.stats(), producer.detach())
        finally:
            close_producer(producer)

    def commit(self, messages: Sequence[object], options: WriteOptions) -> None:
        """On the driver: make all of it visible.

        Raises `CommitFailedError` where nothing of it will ever be seen, `CommitInDoubtError` where that is
        not known.
        """
        open_ = self._only_transaction(messages)
        if open_ is None:
            return
        router = router_for(options.client)
        # When it has passed, the coordinator has aborted it, unless it has committed it before.
        deadline = router.deadline(self.transaction_timeout_ms)
        try:
            end_transaction(router, open_, commit=True, deadline=deadline)
        except KafkaError as error:
            if _is_definite(error):
                raise self._failed(str(error)) from error
            raise CommitInDoubtError(
                f"it is not known whether the job is committed: {error}. {_how_to_find_out(open_, messages)}"
            ) from error
        await_readers(router, open_)

    def abort(self, messages: Sequence[object], options: WriteOptions) -> None:
        """On the driver: end what the tasks have left, as well as can be. Spark calls this after a commit
        that failed, too: what is committed stays so."""
        router = router_for(options.client)
        deadline = router.deadline(_ABORT_MS)
        try:
            for one in _transactions(messages):
                # Not by InitProducerId: the coordinator would forget how this one has ended.
                end_transaction(router, one, commit=False, deadline=deadline)
            if not _transactions(messages):
                timeout_ms = self.transaction_timeout_ms
                init_producer_id(router, self.transactional_id, timeout_ms, None, deadline)
        except KafkaError as error:
            _LOG.warning(
                "%s was not aborted; it is when its timeout of %d ms is over: %s",
                self.transactional_id, self.transaction_timeout_ms, error,
            )  # fmt: skip

    def _only_transaction(self, messages: Sequence[object]) -> OpenTransaction | None:
        """The one to commit; None for a job without rows."""
        open_ = _transactions(messages)
        lacking = sum(not isinstance(message, KafkaCommitMessage) for message in messages)
        if lacking or len(open_) > 1:
            raise self._failed(f"{len(open_)} tasks have a transaction, and {lacking} have said nothing")
        return open_[0] if open_ else None

    def _failed(self, why: str) -> CommitFailedError:
        return CommitFailedError(
            f"the job could not be committed, and nothing of it will be seen by readers with read_committed: "
            f"{why}. Run it again. Where that repeats itself, either it takes longer from its first row to "
            f"its end than transactionTimeout ({self.transaction_timeout_ms} ms), or another job with the "
            "same transactionalIdPrefix runs at the same time"
        )


def current_partition() -> int:
    """Of the DataFrame, which the task that this worker runs writes. Raises `ConfigError` where Spark does
    not say, and where speculation is on."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise ConfigError("deliveryGuarantee=exactly-once: Spark does not say which task this is")
    refuse_speculation(context)
    return int(context.partitionId())


def _refuse_rows(batches: Iterator[pa.RecordBatch], partition: int) -> None:
    for batch in batches:
        if batch.num_rows:
            raise ConfigError(
                f"deliveryGuarantee=exactly-once: partition {partition} of the DataFrame has rows, and a "
                "batch write is all or nothing only where one task writes it, as Kafka can't commit the "
                "transactions of several at once. Nothing of it was written. Write df.repartition(1), which "
                "leaves what comes before parallel, or df.coalesce(1); or set writeId, with which many tasks "
                "write each row once, however often the job is run"
            )


def _transactions(messages: Sequence[object]) -> list[OpenTransaction]:
    told = [message for message in messages if isinstance(message, KafkaCommitMessage)]
    return [message.transaction for message in told if message.transaction is not None]


def _is_definite(error: KafkaError) -> bool:
    """Whether a coordinator has said that the transaction is not committed."""
    if isinstance(error, TransactionFatalError):
        return not error.possibly_committed
    return isinstance(error, TransactionAbortableError)


def _how_to_find_out(transaction: OpenTransaction, messages: Sequence[object]) -> str:
    name = transaction.transactional_id
    told = [message for message in messages if isinstance(message, KafkaCommitMessage)]
    places = sorted(row for message in told for row in message.partitions if row[4] >= 0)
    reads = f" Or read {places[0][0]}-{places[0][1]} from offset {places[0][4]}" if places else ""
    return (
        "All of its rows are there, or none is: find out before you run it again. Ask the coordinator "
        f"(kafka-transactions.sh describe --transactional-id {name}, or Admin.describe_transactions): "
        "CompleteCommit says that it is committed, CompleteAbort that it is not, and Ongoing that it is not "
        f"decided yet.{reads} with read_committed: if it is committed, its first record is there"
    )


def await_readers(router: Router, transaction: OpenTransaction) -> None:
    """The job is committed; its readers see that when each partition has been told."""
    name = transaction.transactional_id
    deadline = router.deadline(_VISIBLE_MS)

    def look() -> None:
        state = Admin(router).describe_transactions([name], deadline)[name].state
        if state == "PrepareCommit":
            raise IncompleteResponseError(f"{name} is being committed")

    try:
        router.retry(look, what=f"waiting until {name} is committed", deadline=deadline)
    except KafkaError as error:  # a broker before Kafka 3.0 can't say
        _LOG.info("%s is committed; readers may see that a moment later: %s", name, error)
