"""`commit_transactions`: the driver ends what the tasks of a micro-batch have left open, all at once.

A task of a stream ends what an earlier attempt of the same number has left. With fewer tasks, or none, no
task does so before `transactionTimeout`, and readers with read_committed wait for that: so the driver does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ....kafka.cluster.router import Router, router_for
from ....kafka.errors import KafkaError, UnsupportedVersionError
from ....kafka.model import TopicPartition
from ....kafka.producer.errors import TransactionAbortableError, TransactionFatalError
from ....kafka.producer.sending.transaction_requests import (
    OpenTransaction,
    add_partitions,
    end_transaction,
    init_producer_id,
)
from ....kafka.runtime.deadline import Deadline
from ..commit_markers import BatchIntent, ReplayError
from ..marker_store import Markers, find_markers
from ..write_options import ExactlyOnce, WriteOptions
from ..write_task import KafkaCommitMessage, hash_of_tasks

_LOG: Final = logging.getLogger("spark_kafka_native")

_AT_ONCE: Final = 16

_ABORT_MS: Final = 15_000

_TOO_OLD: Final = 0.5
"""The share of its timeout after which a transaction is a reason to warn."""


class CommitFailedError(KafkaError):
    """Not all transactions of a micro-batch could be committed: the query stops, and its restart writes the
    missing rows. Of a batch write: nothing is committed."""


def commit_transactions(
    messages: Sequence[object],
    batch_id: int,
    options: WriteOptions,
    once: ExactlyOnce,
    *,
    is_first: bool = True,
) -> None:
    """Commit them all; with the first micro-batch of a run, abort what earlier runs have left open.

    Raises `CommitFailedError` where one could not be, `ReplayError` where the batch was partly committed with
    another number of tasks before.
    """
    told = [message for message in messages if isinstance(message, KafkaCommitMessage)]
    if not told:
        return
    open_ = [message.transaction for message in told if message.transaction is not None]
    router = router_for(options.client)
    # When it has passed, the coordinator has aborted them, and says so.
    deadline = router.deadline(once.transaction_timeout_ms)
    intent = BatchIntent(batch_id=batch_id, tasks=len(messages), hash=hash_of_tasks(told))
    before = _Replacing(router, told, options, once.transaction_timeout_ms, deadline).keep(intent)
    failures = _end_all(open_, lambda one: end_transaction(router, one, commit=True, deadline=deadline))
    if failures:
        transaction, error = failures[0]
        raise CommitFailedError(
            f"micro-batch {batch_id}: {len(failures)} of {len(open_)} transactions could not be committed; "
            f"{transaction.transactional_id}: {error}. Start the query again: it writes the micro-batch "
            "again, without what is committed. Where that repeats itself, its tasks and commit take longer "
            f"than transactionTimeout ({once.transaction_timeout_ms} ms): raise it (and the broker's "
            "transaction.max.timeout.ms, where that is lower), or give the query more cores. The offsets of "
            "this micro-batch are in the checkpoint and stay as they are: maxOffsetsPerTrigger and "
            "maxBytesPerTrigger make those after it smaller"
        ) from error
    _warn_of_age(batch_id, told, once.transaction_timeout_ms / 1_000)
    if is_first:
        known = 0 if before is None else before.tasks
        abort_abandoned(router, told[0].job, once, tasks=intent.tasks, known=known)


def abort_transactions(messages: Sequence[object], options: WriteOptions) -> None:
    """Abort all open transactions. Spark calls this after a failed commit, too: committed ones stay
    committed.
    """
    told = [message for message in messages if isinstance(message, KafkaCommitMessage)]
    open_ = [message.transaction for message in told if message.transaction is not None]
    router = router_for(options.client)
    deadline = router.deadline(_ABORT_MS)
    for transaction, error in _end_all(
        open_, lambda one: end_transaction(router, one, commit=False, deadline=deadline)
    ):
        _LOG.info("%s was not aborted: %s", transaction.transactional_id, error)
    once = options.exactly_once
    if told and len(told) < len(messages) and once is not None:
        # The query was stopped, or failed: of tasks that were killed nothing is known but their names.
        abort_abandoned(router, told[0].job, once, tasks=0, known=len(messages))


def _warn_of_age(batch_id: int, told: Sequence[KafkaCommitMessage], timeout_s: float) -> None:
    """A micro-batch that outlives its transactions can't be committed, and has the same offsets again."""
    began_s = [one.began_s for one in told if one.transaction is not None and one.began_s is not None]
    age_s = time.time() - min(began_s, default=time.time())
    if age_s > timeout_s * _TOO_OLD:
        _LOG.warning(
            "micro-batch %d: its first transaction was open for %.0f of the %.0f seconds that "
            "transactionTimeout allows. A micro-batch that takes longer can't be committed, however often it "
            "runs. Limit what one reads (maxOffsetsPerTrigger, maxBytesPerTrigger), or raise "
            "transactionTimeout",
            batch_id, age_s, timeout_s,
        )  # fmt: skip


@dataclass(frozen=True)
class _Replacing:
    """The intent of a driver takes the place of the last one.

    The same rows may be in other tasks: with another number of them, or with another version of the query. So
    where a micro-batch was about to be committed otherwise, nothing of that may be committed any more, nor be
    committed already unless this replay has found the same rows in the same task.
    """

    router: Router
    told: Sequence[KafkaCommitMessage]
    options: WriteOptions
    timeout_ms: int
    deadline: Deadline

    def keep(self, intent: BatchIntent) -> BatchIntent | None:
        """The last one. Raises `ReplayError` where it can't be replaced, `CommitFailedError` where another
        driver has come between."""
        markers = find_markers(self.router, self.options)
        where = _where(self.told, self.options)
        try:
            intents = markers.take_intents(self.told[0].job, self.timeout_ms, self.deadline)
            try:
                before = intents.last(where)
                if before is not None:
                    self._check(markers, before, intent, where)
                if where is not None and any(one.transaction is not None for one in self.told):
                    intents.replace(before, intent.follows(before), where)
                return before
            finally:
                intents.close()
        except (TransactionAbortableError, TransactionFatalError) as error:
            raise CommitFailedError(
                f"micro-batch {intent.batch_id}: this driver has committed nothing: {error}. Another "
                "driver of the same query (the same checkpoint) runs; if there should be none, start the "
                "query again"
            ) from error

    def _check(
        self, markers: Markers, before: BatchIntent, intent: BatchIntent, where: TopicPartition | None
    ) -> None:
        if before.batch_id > intent.batch_id:
            raise ReplayError(
                f"micro-batch {intent.batch_id} can't be committed: {self.told[0].job} has begun to commit "
                f"micro-batch {before.batch_id}. The checkpoint was rolled back or copied, or another query "
                "runs on it"
            )
        if before.batch_id < intent.batch_id or before.is_like(intent):
            return
        ours = {one.task: one for one in self.told if one.transaction is not None}
        skipped = {one.task for one in self.told if one.skipped}
        for task in sorted({*range(max(before.tasks, intent.tasks))} - skipped):
            if task in ours:
                self._check_ours(ours[task])
            else:
                self._end_others(markers, task, before, intent, where)

    def _check_ours(self, message: KafkaCommitMessage) -> None:
        """Check that no later task has taken the transactional id: its InitProducerId would have ended ours.

        The coordinator says so when a partition is added to the transaction that is in it already.
        """
        assert message.transaction is not None
        topic, partition, *_ = message.partitions[0]
        add_partitions(self.router, message.transaction, [TopicPartition(topic, partition)], self.deadline)

    def _end_others(
        self,
        markers: Markers,
        task: int,
        before: BatchIntent,
        intent: BatchIntent,
        where: TopicPartition | None,
    ) -> None:
        """Of a task that has nothing to commit now: refuse where its rows are committed."""
        name = f"{self.told[0].job}-{task}"
        # Ends a transaction that the task may have left open, so that no other driver commits it.
        init_producer_id(self.router, name, self.timeout_ms, None, self.deadline)
        marker = markers.last(name, where, self.deadline)
        if marker is not None and marker.batch_id == intent.batch_id:
            otherwise = " with other rows" if before.tasks == intent.tasks else ""
            raise ReplayError(
                f"micro-batch {intent.batch_id} has {intent.tasks} tasks, and before the restart it had "
                f"{before.tasks}{otherwise}, of which {name} is committed: run the query with as many "
                "partitions as then (minPartitions, maxPartitions, repartition, "
                "spark.sql.shuffle.partitions; where Spark chooses, by "
                "spark.sql.adaptive.streaming.stateless.enabled, as many cores)"
            )


def _where(told: Sequence[KafkaCommitMessage], options: WriteOptions) -> TopicPartition | None:
    """A partition of a topic that was written to; None where that is not known: nothing was."""
    topics = {row[0] for message in told for row in message.partitions}
    topic = min(topics) if topics else options.topic
    return None if topic is None else TopicPartition(topic, 0)


def _end_all(
    transactions: Sequence[OpenTransaction], end: Callable[[OpenTransaction], object]
) -> list[tuple[OpenTransaction, KafkaError]]:
    """``end`` each of them, also if others fail; returns those that failed, and why."""

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


_END_MS: Final = 15_000
"""Nothing waits for it but readers, and those no longer than for the transactions' timeout."""


def abort_abandoned(router: Router, job: str, once: ExactlyOnce, *, tasks: int, known: int) -> None:
    """Abort open transactions of the tasks of ``job`` from number ``tasks`` on: those that the brokers list,
    or all below ``known`` where they can't (before Kafka 3.0).

    A failure is a warning: no row depends on it.
    """
    deadline = router.deadline(_END_MS)
    try:
        names = _open_names(router, job, tasks, known, deadline)
        if not names:
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
            list(
                pool.map(
                    lambda name: init_producer_id(router, name, once.transaction_timeout_ms, None, deadline),
                    names,
                )
            )
    except KafkaError as error:
        _LOG.warning(
            "transactions that an earlier run of the query may have left open could not be aborted; readers "
            "with read_committed wait for them until transactionTimeout: %s",
            error,
        )
        return
    _LOG.info("aborted what was left open: %s", ", ".join(names))


def _open_names(router: Router, job: str, tasks: int, known: int, deadline: Deadline) -> list[str]:
    """The transactional ids of tasks with an open transaction."""
    # Late: the driver commits each micro-batch in a process of its own, and this is for the first of a run.
    from ....kafka.admin import Admin

    try:
        found = Admin(router).list_transactions(deadline, states=["Ongoing"])
    except UnsupportedVersionError:
        return [f"{job}-{task}" for task in range(tasks, known)]
    lead = f"{job}-"
    numbers = [
        one.transactional_id.removeprefix(lead) for one in found if one.transactional_id.startswith(lead)
    ]
    return [
        f"{lead}{task}" for task in sorted(int(one) for one in numbers if one.isdecimal()) if task >= tasks
    ]
