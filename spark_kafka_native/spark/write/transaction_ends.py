"""`commit_transactions`: the driver ends what the tasks of a micro-batch have left open, all at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ...kafka.cluster.router import Router, router_for
from ...kafka.errors import KafkaError
from ...kafka.model import TopicPartition
from ...kafka.network.deadline import Deadline
from ...kafka.producer.sending.transaction_requests import (
    OpenTransaction,
    end_transaction,
    init_producer_id,
)
from .commit_marker import BatchIntent, CommitMarker, ReplayError
from .commit_message import KafkaCommitMessage
from .markers import find_markers
from .write_options import ExactlyOnce, WriteOptions

_LOG: Final = logging.getLogger("spark_kafka_native")
_AT_ONCE: Final = 16
_ABORT_MS: Final = 15_000


class CommitFailedError(KafkaError):
    """Not all transactions of a micro-batch could be committed: the query stops, and its restart writes what
    is missing. Of a batch write: nothing is committed."""


def commit_transactions(
    messages: Sequence[object], batch_id: int, options: WriteOptions, once: ExactlyOnce
) -> None:
    """Commit them all. Raises `CommitFailedError` where one could not be, `ReplayError` where the batch was
    partly committed with more tasks before."""
    told = [message for message in messages if isinstance(message, KafkaCommitMessage)]
    if not told:
        return
    open_ = [message.transaction for message in told if message.transaction is not None]
    router = router_for(options.client)
    # When it has passed, the coordinator has aborted them, and says so.
    deadline = router.deadline(once.transaction_timeout_ms)
    intent = BatchIntent(batch_id=batch_id, tasks=len(messages))
    _keep_intent(router, told, intent, options, once.transaction_timeout_ms, deadline)
    failures = _end_all(open_, lambda one: end_transaction(router, one, commit=True, deadline=deadline))
    if failures:
        transaction, error = failures[0]
        raise CommitFailedError(
            f"micro-batch {batch_id}: {len(failures)} of {len(open_)} transactions could not be committed; "
            f"{transaction.transactional_id}: {error}. Start the query again: it writes the micro-batch "
            "again, without what is committed. Where that repeats itself, its tasks and commit take longer "
            f"than transactionTimeout ({once.transaction_timeout_ms} ms): raise it, or make smaller batches"
        ) from error


def abort_transactions(messages: Sequence[object], options: WriteOptions) -> None:
    """Abort what can be: Spark calls this after a commit that failed, too, and what is committed stays so."""
    told = [message for message in messages if isinstance(message, KafkaCommitMessage)]
    open_ = [message.transaction for message in told if message.transaction is not None]
    router = router_for(options.client)
    deadline = router.deadline(_ABORT_MS)
    for transaction, error in _end_all(
        open_, lambda one: end_transaction(router, one, commit=False, deadline=deadline)
    ):
        _LOG.info("%s was not aborted: %s", transaction.transactional_id, error)


def _keep_intent(
    router: Router,
    told: Sequence[KafkaCommitMessage],
    intent: BatchIntent,
    options: WriteOptions,
    timeout_ms: int,
    deadline: Deadline,
) -> None:
    """With fewer tasks a replay has the rows of those that are gone in others, which would write them once
    more: nobody would look at the markers of the former."""
    job, markers = told[0].job, find_markers(router, options)
    before = markers.last_intent(job, deadline)
    if before == intent:
        return
    if before is not None and before.batch_id > intent.batch_id:
        raise ReplayError(
            f"micro-batch {intent.batch_id} can't be committed: {job} has begun to commit micro-batch "
            f"{before.batch_id}. The checkpoint was rolled back or copied, or another query runs on it"
        )
    where = _where(told, options)
    if before is not None and before.batch_id == intent.batch_id:
        for partition in range(intent.tasks, before.tasks):
            name = f"{job}-{partition}"
            # Ends what the task may have left open, so that nobody commits it any more.
            init_producer_id(router, name, timeout_ms, None, deadline)
            _check_gone(markers.last(name, where, deadline), name, before, intent)
    if where is not None and any(message.transaction is not None for message in told):
        markers.keep_intent(job, intent, where, deadline)


def _where(told: Sequence[KafkaCommitMessage], options: WriteOptions) -> TopicPartition | None:
    """A partition of a topic that was written to; None where that is not known: nothing was."""
    topics = {row[0] for message in told for row in message.partitions}
    topic = min(topics) if topics else options.topic
    return None if topic is None else TopicPartition(topic, 0)


def _check_gone(marker: CommitMarker | None, name: str, before: BatchIntent, intent: BatchIntent) -> None:
    """Refuse where the rows of a task are committed that a replay has no more."""
    if marker is not None and marker.batch_id == intent.batch_id:
        raise ReplayError(
            f"micro-batch {intent.batch_id} has {intent.tasks} tasks, and before the restart it had "
            f"{before.tasks}, of which {name} is committed: run the query with as many partitions as then "
            "(minPartitions, maxPartitions, repartition, spark.sql.shuffle.partitions)"
        )


def _end_all(
    transactions: Sequence[OpenTransaction], end: Callable[[OpenTransaction], object]
) -> list[tuple[OpenTransaction, KafkaError]]:
    """``end`` each of them, whatever becomes of the others; those that failed, and why."""

    def attempt(transaction: OpenTransaction) -> KafkaError | None:
        try:
            end(transaction)
        except KafkaError as error:
            return error
        return None

    if not transactions:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(transactions))) as pool:
        ended = list(pool.map(attempt, transactions))
    return [(one, error) for one, error in zip(transactions, ended, strict=True) if error is not None]
