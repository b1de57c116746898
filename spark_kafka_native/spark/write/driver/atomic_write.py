"""`AtomicWrite` on the driver: a batch write that readers with read_committed see as a whole, or not at all.

Kafka ends one transaction atomically, never several. So the whole job is one transaction, and a single task
writes it: that task leaves it open, and the driver commits it once Spark says that the job is done. If
anything dies before that, the transaction is never committed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from typing import Final

from ....kafka.admin import Admin
from ....kafka.cluster.router import Router, router_for
from ....kafka.errors import IncompleteResponseError, KafkaError
from ....kafka.producer.errors import TransactionAbortableError, TransactionFatalError
from ....kafka.producer.sending.transaction_requests import (
    OpenTransaction,
    end_transaction,
    find_version,
    init_producer_id,
)
from ..topics import check_written_topics
from ..write_options import ExactlyOnce, WriteOptions
from ..write_task import AtomicWrite, reports_of, transactions_of, written_topics
from .stream_commit import WriteCommitFailedError

_LOG: Final = logging.getLogger("spark_kafka_native")

ABORT_MS: Final = 15_000

_STRAGGLERS_S: Final = 5.0
"""How long after a job the last of its tasks may begin: Spark ends their Python two seconds after it knows
(``spark.python.task.killTimeout``)."""

_VISIBLE_MS: Final = 30_000
"""How long a committed job waits for its readers: a coordinator answers before they can see it."""


_NOTHING: Final = (
    "the job could not be committed, and nothing of it will be seen by readers with read_committed"
)


class CommitInDoubtError(KafkaError):
    """It is unknown if the job is committed. All of its rows are visible, or none is; the message says how to
    find out."""


def begin_atomic(router: Router, options: WriteOptions, once: ExactlyOnce) -> AtomicWrite:
    """On the driver, before the job runs: take the transactional id. What an earlier run with the same
    ``transactionalIdPrefix`` has left is aborted, and its tasks that still run are fenced.

    Raises `ConfigError` (a timeout over the broker's maximum), `UnsupportedVersionError` (a broker that
    is too old), `TransactionFatalError` (ACLs).
    """
    # No later run knows a unique name: what this one leaves open ends with its timeout.
    own = f"{once.transactional_id_prefix}-batch" + ("" if once.is_prefix_given else f"-{uuid.uuid4()}")
    deadline = router.deadline(options.producer.max_block_ms)
    find_version(router, own, 2, deadline)
    init_producer_id(router, own, once.transaction_timeout_ms, None, deadline)
    return AtomicWrite(transactional_id=own, transaction_timeout_ms=once.transaction_timeout_ms)


def commit_atomic(job: AtomicWrite, messages: Sequence[object], options: WriteOptions) -> None:
    """On the driver: make all of it visible.

    Raises `WriteCommitFailedError` where nothing of it will ever be seen, `CommitInDoubtError` where that is
    not known.
    """
    open_ = only_transaction(job, messages)
    if open_ is None:
        return
    router = router_for(options.client)
    # When it has passed, the coordinator has aborted it, unless it has committed it before.
    deadline = router.deadline(job.transaction_timeout_ms)
    try:
        check_written_topics(router, written_topics(reports_of(messages)), deadline)
    except KafkaError as error:  # no commit was asked for
        raise WriteCommitFailedError(f"{_NOTHING}: {error}. Run it again") from error
    try:
        end_transaction(router, open_, commit=True, deadline=deadline)
    except KafkaError as error:
        if is_definite(error):
            raise _failed(job, str(error)) from error
        raise CommitInDoubtError(
            f"it is not known whether the job is committed: {error}. {how_to_find_out(open_, messages)}"
        ) from error
    await_readers(router, open_)


def abort_atomic(job: AtomicWrite, messages: Sequence[object], options: WriteOptions) -> None:
    """On the driver: abort the transaction, if that is possible. Spark calls this after a failed commit,
    too: a committed transaction stays committed."""
    router = router_for(options.client)
    deadline = router.deadline(ABORT_MS)
    name, timeout_ms = job.transactional_id, job.transaction_timeout_ms
    try:
        for one in transactions_of(messages):
            # Not by InitProducerId: the coordinator would forget how this one has ended.
            end_transaction(router, one, commit=False, deadline=deadline)
        if not transactions_of(messages):
            init_producer_id(router, name, timeout_ms, None, deadline)
            if len(reports_of(messages)) < len(messages):
                # A task that begins now would hold up readers until its transaction's timeout is over.
                time.sleep(_STRAGGLERS_S)
                init_producer_id(router, name, timeout_ms, None, router.deadline(ABORT_MS))
    except KafkaError as error:
        _LOG.warning(
            "%s was not aborted; it is when its timeout of %d ms is over: %s",
            name, timeout_ms, error,
        )  # fmt: skip


def only_transaction(job: AtomicWrite, messages: Sequence[object]) -> OpenTransaction | None:
    """The one to commit; None for a job without rows."""
    open_ = transactions_of(messages)
    lacking = len(messages) - len(reports_of(messages))
    if lacking or len(open_) > 1:
        raise _failed(job, f"{len(open_)} tasks have a transaction, and {lacking} have said nothing")
    return open_[0] if open_ else None


def _failed(job: AtomicWrite, why: str) -> WriteCommitFailedError:
    return WriteCommitFailedError(
        f"{_NOTHING}: {why}. Run it again. Where that repeats itself, either it takes longer from its first "
        f"row to its end than transactionTimeout ({job.transaction_timeout_ms} ms), or another job with the "
        "same transactionalIdPrefix runs at the same time"
    )


def is_definite(error: KafkaError) -> bool:
    """True if a coordinator has said that the transaction is not committed."""
    if isinstance(error, TransactionFatalError):
        return not error.possibly_committed
    return isinstance(error, TransactionAbortableError)


def how_to_find_out(transaction: OpenTransaction, messages: Sequence[object]) -> str:
    """What a user can ask where a commit is in doubt, for the error."""
    name = transaction.transactional_id
    places = sorted(row for report in reports_of(messages) for row in report.partitions if row[4] >= 0)
    reads = f" Or read {places[0][0]}-{places[0][1]} from offset {places[0][4]}" if places else ""
    return (
        "All of its rows are there, or none is: find out before you run it again. Ask the coordinator "
        f"(kafka-transactions.sh describe --transactional-id {name}, or Admin.describe_transactions): "
        "CompleteCommit says that it is committed, CompleteAbort that it is not, and Ongoing that it is not "
        f"decided yet.{reads} with read_committed: if it is committed, its first record is there"
    )


def await_readers(router: Router, transaction: OpenTransaction) -> None:
    """Wait until readers see the commit: each partition gets a marker after the coordinator has answered."""
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
