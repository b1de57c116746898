"""`commit_transactions`: the driver ends what the tasks of a micro-batch have left open, all at once.

A task of a stream ends what an earlier attempt of the same number has left. With fewer tasks, or none, no
task does so before `transactionTimeout`, and readers with read_committed wait for that: so the driver does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
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
from ..commit_markers import BatchIntent, CommitMarker, ReplayError
from ..marker_store import Intents, Markers, decided_offsets, find_markers, is_by_another
from ..topics import check_written_topics
from ..write_options import ExactlyOnce, WriteOptions
from ..write_task import (
    KafkaCommitMessage,
    hash_of_tasks,
    places_in,
    places_of,
    reports_of,
    task_numbers,
    transactions_of,
    written_topics,
)
from .many_transactions import ask_for_each

_LOG: Final = logging.getLogger("spark_kafka_native")

ABORT_MS: Final = 15_000

_TOO_OLD: Final = 0.5
"""The share of its timeout after which a transaction is a reason to warn."""


class WriteCommitFailedError(KafkaError):
    """Not all transactions of a micro-batch could be committed: the query stops, and its restart writes the
    missing rows. Of a batch write: nothing is committed."""


CommitFailedError = WriteCommitFailedError
"""Its former name, for one version: `spark_kafka_native.kafka.CommitFailedError` is that of groups."""


def commit_transactions(
    messages: Sequence[object],
    batch_id: int,
    options: WriteOptions,
    once: ExactlyOnce,
    *,
    is_first: bool = True,
) -> None:
    """Commit them all; with the first micro-batch of a run, abort what earlier runs have left open.

    Raises `WriteCommitFailedError` where one could not be, `ReplayError` where the batch was partly committed
    with another number of tasks before.
    """
    reports = reports_of(messages)
    if not reports:
        return
    open_ = transactions_of(reports)
    router = router_for(options.client)
    # When it has passed, the coordinator has aborted them, and says so.
    deadline = router.deadline(once.transaction_timeout_ms)
    intent = BatchIntent(
        batch_id=batch_id, tasks=len(messages), hash=hash_of_tasks(reports), topic=options.topic or ""
    )
    try:
        check_written_topics(router, written_topics(reports, once.marker_topic), deadline)
    except KafkaError as error:  # no commit was asked for
        raise WriteCommitFailedError(
            f"micro-batch {batch_id}: {error}; this run has committed nothing of it, and a restart writes it "
            "again"
        ) from error
    before = _Replacing(router, reports, options, once.transaction_timeout_ms, deadline).keep(intent)
    failures = _end_all(router, open_, commit=True, deadline=deadline)
    if failures:
        raise _failed(batch_id, failures, len(open_), once) from failures[0][1]
    if (warning := age_warning(batch_id, reports, once.transaction_timeout_ms, time.time())) is not None:
        _LOG.warning("%s", warning)
    if is_first:
        known = 0 if before is None else before.tasks
        abort_abandoned(router, reports[0].job, once, tasks=intent.tasks, known=known)


def abort_transactions(
    messages: Sequence[object], options: WriteOptions, batch_id: int | None = None
) -> None:
    """Abort all open transactions. Spark calls this after a failed commit, too: committed ones stay
    committed.
    """
    reports = reports_of(messages)
    router = router_for(options.client)
    deadline = router.deadline(ABORT_MS)
    for transaction, error in _end_all(router, transactions_of(reports), commit=False, deadline=deadline):
        _LOG.info("%s was not aborted: %s", transaction.transactional_id, error)
    once = options.exactly_once
    if reports and len(reports) < len(messages) and once is not None:
        # The query was stopped, or failed: of tasks that were killed nothing is known but their names.
        abort_abandoned(router, reports[0].job, once, tasks=0, known=len(messages))
        try:
            _renew(router, reports, batch_id, options, once)
        except KafkaError as error:
            _LOG.info("the markers of micro-batch %s were not renewed: %s", batch_id, error)


def _renew(
    router: Router,
    reports: Sequence[KafkaCommitMessage],
    batch_id: int | None,
    options: WriteOptions,
    once: ExactlyOnce,
) -> None:
    """Of a half committed micro-batch with tasks that fail in each run: commit once more what they have not
    renewed themselves, before it expires."""
    deadline, markers, job = router.deadline(ABORT_MS), find_markers(router, options), reports[0].job
    if not markers.needs_place:
        return  # records of a topic do not expire
    last = BatchIntent.newest(decided_offsets(router, job, deadline), job)
    if last is None or last.batch_id != batch_id:
        return
    where, timeout_ms = places_of(reports, options.topic), once.transaction_timeout_ms
    names = [f"{job}-{task}" for task in sorted({*range(last.tasks)} - {one.task for one in reports})]
    found = ask_for_each(
        router, names, str, lambda name: markers.take_over(name, where, timeout_ms, deadline), deadline
    )
    if not all(one.is_renewed for one in found):
        return
    intents = markers.take_intents(job, timeout_ms, deadline)
    try:
        if intents.last(where) == last:
            intents.renew(last)
    finally:
        intents.close()


def _failed(
    batch_id: int, failures: Sequence[tuple[OpenTransaction, KafkaError]], of: int, once: ExactlyOnce
) -> WriteCommitFailedError:
    transaction, error = failures[0]
    return WriteCommitFailedError(
        f"micro-batch {batch_id}: {len(failures)} of {of} transactions could not be committed; "
        f"{transaction.transactional_id}: {error}. Start the query again: it writes the micro-batch "
        "again, without what is committed. Where that repeats itself, its tasks and commit take longer "
        f"than transactionTimeout ({once.transaction_timeout_ms} ms): raise it (and the broker's "
        "transaction.max.timeout.ms, where that is lower), or give the query more cores. The offsets of "
        "this micro-batch are in the checkpoint and stay as they are: maxOffsetsPerTrigger and "
        "maxBytesPerTrigger make those after it smaller"
    )


def age_warning(
    batch_id: int, reports: Iterable[KafkaCommitMessage], timeout_ms: int, now_s: float
) -> str | None:
    """A warning if the oldest transaction was open for more than half of its timeout: a micro-batch that
    outlives its transactions can't be committed, and has the same offsets again."""
    began_s = [one.began_s for one in reports if one.transaction is not None and one.began_s is not None]
    age_s, timeout_s = now_s - min(began_s, default=now_s), timeout_ms / 1_000
    if age_s <= timeout_s * _TOO_OLD:
        return None
    return (
        f"micro-batch {batch_id}: its first transaction was open for {age_s:.0f} of the {timeout_s:.0f} "
        "seconds that transactionTimeout allows. A micro-batch that takes longer can't be committed, however "
        "often it runs. Limit what one reads (maxOffsetsPerTrigger, maxBytesPerTrigger), or raise "
        "transactionTimeout"
    )


def find_unsettled(
    before: BatchIntent | None, intent: BatchIntent, reports: Sequence[KafkaCommitMessage]
) -> dict[int, KafkaCommitMessage | None]:
    """The tasks to look at before an intent takes the place of ``before``, in order.

    With a report: its open transaction is to be committed, and must not have been taken over. With None: the
    task has nothing to commit now, so nothing of it may be committed already, nor be committed later.

    The same rows may be in other tasks: with another number of them, or with another version of the query. So
    where a micro-batch was about to be committed otherwise, nothing of that may be committed any more, nor be
    committed already unless this replay has found the same rows in the same task.

    Raises `ReplayError` if a later micro-batch was about to be committed, and where some rows are committed
    to another topic.
    """
    if before is None or before.batch_id < intent.batch_id:
        if any(one.skipped for one in reports) and transactions_of(reports):
            raise _forgotten(intent)
        return {}
    if before.batch_id > intent.batch_id:
        raise ReplayError(
            f"micro-batch {intent.batch_id} can't be committed: {reports[0].job} has begun to commit "
            f"micro-batch {before.batch_id}. The checkpoint was rolled back or copied, or another query "
            "runs on it"
        )
    if is_elsewhere(before, intent) and any(one.skipped for one in reports):
        # Also where all are: the other topic may be that of a query on a copy of this checkpoint.
        raise _elsewhere(before, intent)
    if before.is_like(intent):
        return {}
    open_ = {one.task: one for one in reports if one.transaction is not None}
    found_again = {one.task for one in reports if one.skipped}
    looked_at = sorted({*range(max(before.tasks, intent.tasks))} - found_again)
    return {task: open_.get(task) for task in looked_at}


def is_elsewhere(before: BatchIntent, intent: BatchIntent) -> bool:
    """True if the same micro-batch was about to be committed to another topic."""
    return before.batch_id == intent.batch_id and before.topic not in ("", intent.topic)


def _forgotten(intent: BatchIntent) -> ReplayError:
    return ReplayError(
        f"micro-batch {intent.batch_id} can't be committed: some of its tasks are committed, and the intent "
        "that says which tasks there were has expired (offsets.retention.minutes) or was deleted: markers "
        "of others may be gone, too. Nothing of this run is committed, as it might write rows twice: "
        "read what is in the topic. With another transactionalIdPrefix the whole micro-batch is written"
    )


def _elsewhere(before: BatchIntent, intent: BatchIntent) -> ReplayError:
    return ReplayError(
        f"micro-batch {intent.batch_id} can't be committed: rows of it are committed to topic "
        f"{before.topic}, and this run writes elsewhere. Run the query with topic={before.topic} "
        "until this micro-batch is complete; if its checkpoint was copied for another topic, give the copy "
        "another transactionalIdPrefix, with which the whole micro-batch is written"
    )


def check_uncommitted(
    marker: CommitMarker | None, name: str, before: BatchIntent | None, intent: BatchIntent
) -> None:
    """Raises `ReplayError` if the task ``name``, which has nothing to commit now, has committed rows of this
    micro-batch."""
    if before is None or marker is None or marker.batch_id != intent.batch_id:
        return
    if is_elsewhere(before, intent):
        raise _elsewhere(before, intent)
    otherwise = " with other rows" if before.tasks == intent.tasks else ""
    raise ReplayError(
        f"micro-batch {intent.batch_id} has {intent.tasks} tasks, and before the restart it had "
        f"{before.tasks}{otherwise}, of which {name} is committed: run the query with as many "
        "partitions as then (minPartitions, maxPartitions, repartition, "
        "spark.sql.shuffle.partitions; where Spark chooses, by "
        "spark.sql.adaptive.streaming.stateless.enabled, as many cores)"
    )


@dataclass(frozen=True)
class _Replacing:
    """The intent of a driver takes the place of the last one."""

    router: Router
    reports: Sequence[KafkaCommitMessage]
    options: WriteOptions
    timeout_ms: int
    deadline: Deadline

    def keep(self, intent: BatchIntent) -> BatchIntent | None:
        """The last one. Raises `ReplayError` where it can't be replaced, `WriteCommitFailedError` where
        another driver has come between, or a broker refuses the intent."""
        markers = find_markers(self.router, self.options)
        where = places_of(self.reports, self.options.topic)
        try:
            intents = markers.take_intents(self.reports[0].job, self.timeout_ms, self.deadline)
            try:
                before = intents.last(where)
                why, is_renewed = self._settle(markers, before, intent, where)
                if why is None and where and transactions_of(self.reports):
                    intents.replace(before, intent.follows(before), where)
                elif is_renewed and before is not None and before.batch_id == intent.batch_id:
                    self._renew(intents, before)  # a refusal holds as long as runs are refused
                if why is not None:
                    raise why
                return before
            finally:
                intents.close()
        except (TransactionAbortableError, TransactionFatalError) as error:
            hint = "Start the query again once that is mended: it writes the micro-batch again"
            if is_by_another(error):
                hint = (
                    "Another driver of the same query (the same checkpoint) runs; if there should be none, "
                    "start the query again"
                )
            raise WriteCommitFailedError(
                f"micro-batch {intent.batch_id}: this driver has committed nothing: {error}. {hint}"
            ) from error

    def _name(self, task: int) -> str:
        return f"{self.reports[0].job}-{task}"

    @staticmethod
    def _renew(intents: Intents, last: BatchIntent) -> None:
        try:
            intents.renew(last)
        except KafkaError as error:
            _LOG.info("the intent of micro-batch %d could not be renewed: %s", last.batch_id, error)

    def _settle(
        self,
        markers: Markers,
        before: BatchIntent | None,
        intent: BatchIntent,
        where: Sequence[TopicPartition],
    ) -> tuple[ReplayError | None, bool]:
        """Look at the tasks that `find_unsettled` names, all of them; why ``before`` can't be replaced (None:
        it can), and if the markers that it speaks of are renewed."""
        try:
            unsettled = find_unsettled(before, intent, self.reports)
        except ReplayError as error:
            return error, False
        elsewhere = places_in([before.topic]) if before is not None and is_elsewhere(before, intent) else []

        def settle(task: int) -> tuple[KafkaError | None, bool]:
            name, report = self._name(task), unsettled[task]
            try:
                if report is not None:
                    self._check_ours(report)
                    return None, True
                found = markers.take_over(name, [*where, *elsewhere], self.timeout_ms, self.deadline)
            except KafkaError as error:
                return error, False
            try:
                check_uncommitted(found.marker, name, before, intent)
            except ReplayError as error:
                return error, found.is_renewed
            return None, found.is_renewed

        settled = ask_for_each(self.router, list(unsettled), self._name, settle, self.deadline)
        errors = [error for error, _ in settled if error is not None]
        refusal = next((error for error in errors if isinstance(error, ReplayError)), None)
        if errors and refusal is None:
            raise errors[0]
        return refusal, all(is_renewed for _, is_renewed in settled)

    def _check_ours(self, report: KafkaCommitMessage) -> None:
        """Check that no later task has taken the transactional id: its InitProducerId would have ended ours.

        The coordinator says so when a partition is added to the transaction that is in it already.
        """
        assert report.transaction is not None
        topic, partition, *_ = report.partitions[0]
        add_partitions(self.router, report.transaction, [TopicPartition(topic, partition)], self.deadline)


def _end_all(
    router: Router, transactions: Sequence[OpenTransaction], *, commit: bool, deadline: Deadline
) -> list[tuple[OpenTransaction, KafkaError]]:
    """End each of them, also if others fail; returns those that failed, and why."""

    def attempt(transaction: OpenTransaction) -> KafkaError | None:
        try:
            end_transaction(router, transaction, commit=commit, deadline=deadline)
        except KafkaError as error:
            return error
        return None

    ended = ask_for_each(router, transactions, lambda one: one.transactional_id, attempt, deadline)
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
        ask_for_each(
            router,
            names,
            str,
            lambda name: init_producer_id(router, name, once.transaction_timeout_ms, None, deadline),
            deadline,
        )
    except KafkaError as error:
        _LOG.warning(
            "transactions that an earlier run of the query may have left open could not be aborted; readers "
            "with read_committed wait for them until transactionTimeout: %s",
            error,
        )
        return
    if names:
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
    numbers = task_numbers((one.transactional_id for one in found), lead)
    return [f"{lead}{task}" for task in numbers if task >= tasks]
