"""`ResumableWrite` on the driver: a batch write by many tasks that writes each row once over all its runs.

It has a name (``writeId``), and follows the protocol of the stream's sink as one micro-batch that its user
replays: each task writes its rows and a marker in one transaction (`write_once`), and the driver commits them
when Spark says that all are done. A run finds by the markers what earlier ones have committed.

The driver writes an intent before it commits anything: how many tasks and which rows. It does so in a
transaction under the transactional id of the write, after it has read the last intent under it: of two
drivers only one can be the next. An intent that has other rows is refused, unless nothing of the former is
committed and nothing can be any more, as `begin_resumable` has fenced all of its tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ....kafka.admin import Admin
from ....kafka.cluster.router import Router, router_for
from ....kafka.config.client_config import TransactionConfig
from ....kafka.errors import KafkaError
from ....kafka.producer.errors import TransactionAbortableError, TransactionFatalError
from ....kafka.producer.sending.transaction_requests import (
    OpenTransaction,
    end_transaction,
    find_version,
    init_producer_id,
)
from ....kafka.producer.transactional_producer import TransactionalProducer
from ....kafka.runtime.deadline import Deadline
from ...user_messages import inform
from ..commit_markers import CommitMarker, ReplayError
from ..marker_store import Markers, close_producer, find_markers, is_by_another, replaced
from ..topics import check_written_topics
from ..write_options import ExactlyOnce, WriteOptions
from ..write_task import (
    KafkaCommitMessage,
    ResumableWrite,
    hash_of_tasks,
    places_in,
    places_of,
    reports_of,
    task_name,
    task_numbers,
    transactions_of,
    written_topics,
)
from .atomic_write import await_readers
from .many_transactions import ask_for_each
from .stream_commit import WriteCommitFailedError

_LOG: Final = logging.getLogger("spark_kafka_native")

ABORT_MS: Final = 15_000

_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


def begin_resumable(
    router: Router, options: WriteOptions, once: ExactlyOnce, write_id: str
) -> ResumableWrite:
    """On the driver, before the tasks run: end what an earlier run has left open.

    Raises `ConfigError` (a timeout over the broker's maximum, a marker topic that can't be),
    `UnsupportedVersionError` (a broker that is too old), `TransactionFatalError` (ACLs).
    """
    job = f"{once.transactional_id_prefix}-write/{write_id}"
    timeout_ms = once.transaction_timeout_ms
    deadline = router.deadline(options.producer.max_block_ms)
    find_version(router, job, 2, deadline)
    markers = find_markers(router, options)
    markers.check()
    where = places_of((), options.topic)
    # An intent that is being committed is there, or gone for good, when this returns.
    init_producer_id(router, job, timeout_ms, None, deadline)
    before = markers.last(job, where, deadline)
    tasks: list[str] = []
    if before is not None and not before.is_complete:
        where = places_in({one for one in (options.topic, before.topic) if one})
        tasks = [task_name(job, partition) for partition in range(before.tasks)]
    names = tasks + sorted({*_open_transactions(router, job, deadline)} - {*tasks})
    found = ask_for_each(
        router, names, str, lambda name: markers.take_over(name, where, timeout_ms, deadline), deadline
    )
    if tasks and all(one.is_renewed for one in found):
        markers.take_over(job, where, timeout_ms, deadline)  # the last one: no marker expires before it
    done = [one.marker for one in found[: len(tasks)]]
    void = None if before is None else _find_void(markers, write_id, before, done)
    return ResumableWrite(write_id=write_id, transactional_id=job, void=void)


def commit_resumable(run: ResumableWrite, messages: Sequence[object], options: WriteOptions) -> None:
    """On the driver: make all of it visible, one task after another.

    Raises `ReplayError` where an earlier run has committed other rows; nothing of this one is committed
    then. Raises `WriteCommitFailedError` where only a part of it, or nothing, could be committed.
    """
    reports = reports_of(messages)
    if len(reports) < len(messages):
        lacking = len(messages) - len(reports)
        raise WriteCommitFailedError(f"write {run.write_id}: {lacking} tasks have said nothing. Run it again")
    once = options.exactly_once
    assert once is not None
    router = router_for(options.client)
    # When it has passed, the coordinators have aborted all open transactions.
    deadline = router.deadline(once.transaction_timeout_ms)
    settings = TransactionConfig(
        transactional_id=run.transactional_id, transaction_timeout_ms=once.transaction_timeout_ms
    )
    producer = TransactionalProducer(options.client, settings, options.producer, router=router)
    try:
        _check_topics(run, written_topics(reports, once.marker_topic), router, deadline)
        intent = _Intent(producer, find_markers(router, options), reports, options.topic)
        wanted = intent.take(run, deadline)
        open_ = transactions_of(reports)
        ended = ask_for_each(router, open_, _name_of, partial(_commit, router, deadline), deadline)
        failures = [one for one in ended if one is not None]
        if failures:
            raise _failed(run, len(failures), len(open_), failures[0], once) from failures[0]
        ask_for_each(router, open_, _name_of, partial(await_readers, router), deadline)
        intent.complete(run.transactional_id, wanted, deadline)
    finally:
        close_producer(producer)
    inform(describe_complete(run, reports, once))


def _check_topics(
    run: ResumableWrite, written: Mapping[str, Collection[str]], router: Router, deadline: Deadline
) -> None:
    try:
        check_written_topics(router, written, deadline)
    except KafkaError as error:  # no commit was asked for
        raise WriteCommitFailedError(
            f"write {run.write_id}: {error}; this run has committed nothing: run it again"
        ) from error


def abort_resumable(run: ResumableWrite, messages: Sequence[object], options: WriteOptions) -> None:
    """On the driver: end the transactions that the tasks have left open. Spark also calls this after a
    failed commit: committed transactions stay committed, and the next run finds them."""
    once = options.exactly_once
    assert once is not None
    router = router_for(options.client)
    deadline = router.deadline(ABORT_MS)

    def end(partition: int) -> None:
        message = messages[partition]
        try:
            if not isinstance(message, KafkaCommitMessage):
                name = task_name(run.transactional_id, partition)
                init_producer_id(router, name, once.transaction_timeout_ms, None, deadline)
            elif message.transaction is not None:
                end_transaction(router, message.transaction, commit=False, deadline=deadline)
        except KafkaError as error:
            _LOG.info("%s was not aborted: %s", task_name(run.transactional_id, partition), error)

    partitions = range(len(messages))
    ask_for_each(router, partitions, lambda one: task_name(run.transactional_id, one), end, deadline)


def _failed(
    run: ResumableWrite, failed: int, of: int, error: KafkaError, once: ExactlyOnce
) -> WriteCommitFailedError:
    return WriteCommitFailedError(
        f"write {run.write_id}: {failed} of {of} transactions could not be committed: {error}. Readers "
        "see the rows of the others. Run it again with the same writeId: it writes what is missing, and "
        "nothing twice. Where that repeats itself, either it takes longer from the first row to the "
        f"commit than transactionTimeout ({once.transaction_timeout_ms} ms), or another run with the "
        "same writeId is at work"
    )


def describe_complete(run: ResumableWrite, reports: Sequence[KafkaCommitMessage], once: ExactlyOnce) -> str:
    """A line for the user: what this run wrote, what earlier runs had, and for how long that is known."""
    rows = sum(report.records + report.skipped for report in reports)
    before = sum(report.skipped for report in reports)
    kept = "offsets.retention.minutes of the brokers (7 days unless configured) have passed"
    if once.marker_topic is not None:
        kept = f"its markers in topic {once.marker_topic} are deleted"
    did = f"{before} of its {rows} rows were committed before, and not written again"
    if rows and before == rows:
        did = f"all of its {rows} rows were committed before: nothing was written"
    return f"write {run.write_id} is complete; {did}. It is remembered until {kept}"


class _Intent:
    """The intent of one commit, and the producer by which it is kept."""

    def __init__(
        self,
        producer: TransactionalProducer,
        markers: Markers,
        reports: Sequence[KafkaCommitMessage],
        topic: str | None,
    ) -> None:
        self._producer = producer
        self._markers = markers
        self._reports = reports
        self._topic = topic
        self._where = places_of(reports, topic)
        self._last: CommitMarker | None = None

    def take(self, run: ResumableWrite, deadline: Deadline) -> CommitMarker:
        """The next intent; it is written if there is something to commit. Raises `ReplayError` where that
        must not be, `WriteCommitFailedError` where another driver has come between, or a broker refuses
        it."""
        try:
            wanted = self._check(run, deadline)
            if transactions_of(self._reports):
                self._write(run.transactional_id, wanted, deadline)
        except (TransactionAbortableError, TransactionFatalError) as error:
            hint = "Run it again once that is mended"
            if is_by_another(error):
                hint = "Another run with the same writeId is at work; if there should be none, run it again"
            raise WriteCommitFailedError(
                f"write {run.write_id}: this run has committed nothing: {error}. {hint}"
            ) from error
        return wanted

    def _check(self, run: ResumableWrite, deadline: Deadline) -> CommitMarker:
        """The next intent, not written yet."""
        wanted = intent_of(self._reports, self._topic)
        self._producer.initialize(timeout=deadline)  # from here on no other driver's intent comes between
        before = self._last = self._markers.last(run.transactional_id, self._where, deadline)
        if before is not None:  # rows of it may be in topics that only an earlier run has written to
            self._where = sorted({*self._where, *self._markers.places(run.transactional_id)})
        why = refusal(before, wanted, self._reports, run.void)
        if why is not None:
            raise ReplayError(f"write {run.write_id} can't be committed: {why}")
        return next_revision(before, wanted)

    def _write(self, job: str, intent: CommitMarker, deadline: Deadline) -> None:
        self._producer.begin(timeout=deadline)
        now = self._markers.add(self._producer, job, intent, self._where)
        if now != self._last:  # the transaction is aborted with the producer
            raise replaced("intent", self._last, now)
        self._producer.commit(timeout=deadline)
        self._last = intent
        # Coordinators up to Kafka 3.x apply it a moment later. Nothing is committed that it speaks of before
        # others can see it. In a topic it is there as soon as another driver has taken the transactional id.
        if self._markers.needs_place:
            self._markers.last(job, self._where, deadline)

    def complete(self, job: str, intent: CommitMarker, deadline: Deadline) -> None:
        """Note that all of it is committed, as well as can be: without that the next run goes by the markers.
        The note is younger than any of them, so that it is not forgotten before the last of them is: a run
        that has found all of them renews both."""
        is_kept = self._last is not None and self._last.is_complete and not self._markers.needs_place
        if is_kept or not self._where or not intent.rows:
            return
        try:
            self._write(job, replace(next_revision(intent, intent), is_complete=True), deadline)
        except KafkaError as error:
            _LOG.info("%s is complete; that could not be noted: %s", job, error)


def _name_of(transaction: OpenTransaction) -> str:
    return transaction.transactional_id


def _commit(router: Router, deadline: Deadline, transaction: OpenTransaction) -> KafkaError | None:
    """Why it could not be, or None."""
    try:
        end_transaction(router, transaction, commit=True, deadline=deadline)
    except KafkaError as error:
        return error
    return None


def _open_transactions(router: Router, job: str, deadline: Deadline) -> list[str]:
    """The transactional ids of tasks that died before any intent said how many there are; as far as the
    cluster lists them (Kafka 3.0, Describe on the transactional ids)."""
    try:
        found = Admin(router).list_transactions(deadline, states=_OPEN)
    except KafkaError as error:
        _LOG.info("it is not known which transactions of %s are open: %s", job, error)
        return []
    numbers = task_numbers((one.transactional_id for one in found), task_name(job, 0)[:-1])
    return [task_name(job, number) for number in numbers]


def _find_void(
    markers: Markers, write_id: str, before: CommitMarker, found: Sequence[CommitMarker | None]
) -> int | None:
    """The revision of ``before`` if none of its tasks is committed; they are fenced, and ``found`` has their
    markers. Says what there is."""
    if before.is_complete:
        inform(describe_earlier(write_id, before, []))
        return None
    # Without its place a marker that has just been committed may not be seen yet (`find_offsets`).
    if not before.topic and markers.needs_place:
        return None
    done = [one for one in found if one is not None]
    if not done:
        return before.batch_id
    inform(describe_earlier(write_id, before, done))
    return None


def describe_earlier(write_id: str, before: CommitMarker, done: Sequence[CommitMarker]) -> str:
    """A line for the user: what an earlier run has committed; ``done`` are the markers of its tasks."""
    if before.is_complete:
        return (
            f"write {write_id} was completed by an earlier run: its {before.rows} rows are compared with "
            "those of this run, and not written again"
        )
    rows = sum(one.rows for one in done)
    return (
        f"write {write_id} was begun by an earlier run, which has committed {rows} of its {before.rows} rows "
        f"in {len(done)} of its {before.tasks} tasks: this run writes the rest"
    )


def intent_of(messages: Sequence[KafkaCommitMessage], topic: str | None) -> CommitMarker:
    """All tasks of a run, in order: equal for equal rows in equal tasks."""
    return CommitMarker(
        batch_id=0,
        rows=sum(message.records + message.skipped for message in messages),
        hash=hash_of_tasks(messages),
        tasks=len(messages),
        topic=topic or "",
    )


def next_revision(before: CommitMarker | None, intent: CommitMarker) -> CommitMarker:
    """``intent`` as the one after ``before``: no revision comes twice, also with the same rows."""
    return intent if before is None else replace(intent, batch_id=before.batch_id + 1)


def refusal(
    before: CommitMarker | None,
    wanted: CommitMarker,
    messages: Sequence[KafkaCommitMessage],
    void: int | None,
) -> str | None:
    """Why ``wanted`` must not be committed; None if it may be.

    ``before`` is the last intent of the same name, ``void`` the revision of one of which nothing is committed
    and nothing ever will be: it does not bind this run.
    """
    finds = any(message.skipped for message in messages)
    writes = any(message.transaction is not None for message in messages)
    if before is None:
        return _forgotten("of the whole write") if finds else None
    if _rows(before) != _rows(wanted):
        return None if before.batch_id == void and not finds else _other_rows(before, wanted)
    return _forgotten("of some tasks") if before.is_complete and writes else None


def _rows(intent: CommitMarker) -> tuple[int, int, int, str]:
    return intent.tasks, intent.rows, intent.hash, intent.topic


def _describe(intent: CommitMarker) -> str:
    where = f" for topic {intent.topic}" if intent.topic else ""
    return f"{intent.rows} rows in {intent.tasks} tasks{where} (hash {intent.hash:016x})"


def _other_rows(before: CommitMarker, wanted: CommitMarker) -> str:
    state = "completed" if before.is_complete else "began to commit"
    # `_find_void`: markers in groups need a place.
    but = "" if before.topic else ", with transactionMarkerTopic only, as the rows name their topics"
    return (
        f"this run has {_describe(wanted)}, and an earlier one {state} {_describe(before)}. Nothing of this "
        "run is committed. Run it with the same input, topic and number of partitions as then (rand(), "
        "current_timestamp() or a source that has changed make other rows); if it is another write, give it "
        f"another writeId. If the earlier run committed nothing, running it again settles that, too{but}"
    )


def _forgotten(of_what: str) -> str:
    return (
        "an earlier run has committed rows under this name, and its markers are there only in part: those "
        f"{of_what} have expired (offsets.retention.minutes) or were deleted. Nothing of this run is "
        "committed, as it might write rows twice: read what is in the topic, and write what is missing with "
        "another writeId"
    )
