"""Write tasks that leave their rows in an open transaction: the driver commits it.

`write_once`, of a stream and of a `ResumableWrite`: the task writes its rows and a commit marker in one
transaction. Any doubt becomes a replay, and the marker shows the replay if the rows are committed. Why
nothing is doubled: the marker is read *after* InitProducerId, which ends every earlier transaction of this
task for good; a task that commits later has taken the transactional id after us, and ours is over then.
`RowDigest` recognises a replay with other rows.

`write_atomic`, of an `AtomicWrite`: one task writes the whole job.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....kafka.cluster.router import router_for
from ....kafka.config.client_config import TransactionConfig
from ....kafka.error_code import ErrorCode
from ....kafka.errors import BrokerError, ConfigError, DeadlineExceededError
from ....kafka.model import TopicPartition
from ....kafka.producer.transactional_producer import TransactionalProducer
from ....kafka.records.hashing import Hash, hash_keys
from ...worker_tuning import settle_worker
from ..commit_markers import CommitMarker, ReplayError
from ..marker_store import Markers, close_producer, find_markers
from ..write_options import ExactlyOnce, WriteOptions
from ..write_task import (
    AtomicWrite,
    KafkaCommitMessage,
    ResumableWrite,
    RowColumns,
    places_in,
    task_name,
)
from .write_rows import WriteFailedError, WriteTask

if TYPE_CHECKING:
    from pyspark import TaskContext

U64 = npt.NDArray[np.uint64]

_ADAPTIVE: Final = ("spark.sql.adaptive.enabled", "spark.sql.adaptive.streaming.stateless.enabled")

_ADAPTIVE_SINCE: Final = (4, 2)


class TaskIdentity(Protocol):
    """Which rows a task writes: the same rows have the same identity when they are written again."""

    @property
    def batch_id(self) -> int:
        """What its marker is compared with."""

    @property
    def partition(self) -> int:
        """Its number among all of them."""

    @property
    def is_adaptive(self) -> bool:
        """`BatchTask.is_adaptive`."""

    @property
    def what(self) -> str:
        """The rows of all tasks together, for errors."""

    def job(self, prefix: str) -> str:
        """What the transactional ids and groups begin with."""

    def name(self, prefix: str) -> str:
        """The task's transactional id, and the group of its marker."""

    def other_rows(self, marker: CommitMarker, digest: RowDigest) -> ReplayError:
        """The error of a replay with other rows than those that are committed."""


@dataclass(frozen=True, kw_only=True)
class BatchTask:
    """Which rows a task writes: those of one partition of a micro-batch of a query."""

    query_id: str
    batch_id: int
    partition: int
    is_adaptive: bool = False
    """True if Spark may choose the number of tasks of a query that shuffles."""

    @classmethod
    def current(cls) -> BatchTask:
        """Of the task that this worker runs. Raises `ConfigError` where Spark does not say, and where
        speculation is on."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        batch_id = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch_id is None:
            raise ConfigError("deliveryGuarantee=exactly-once: Spark does not say which micro-batch this is")
        refuse_speculation(context)
        return cls(
            query_id=query_id,
            batch_id=int(batch_id),
            partition=context.partitionId(),
            is_adaptive=_is_adaptive(context),
        )

    def job(self, prefix: str) -> str:
        """What the transactional ids and groups of the query begin with."""
        return f"{prefix}-{self.query_id}"

    def name(self, prefix: str) -> str:
        """The task's transactional id, and the group of its marker: the same for each micro-batch."""
        return f"{self.job(prefix)}-{self.partition}"

    @property
    def what(self) -> str:
        """As `TaskIdentity.what`."""
        return f"micro-batch {self.batch_id}"

    def other_rows(self, marker: CommitMarker, digest: RowDigest) -> ReplayError:
        """As `TaskIdentity.other_rows`."""
        return ReplayError(
            f"partition {self.partition} of {self.what} has {digest.rows} rows (hash "
            f"{digest.hash:016x}), and {marker.rows} (hash {marker.hash:016x}) were committed before the "
            "restart: the query makes other rows of the same input (rand(), current_timestamp(), a changed "
            "query; a newer schema in the registry: value.schemaVersion can name the one before; another "
            "number of partitions: minPartitions, maxPartitions, repartition; where a shuffle has no given "
            "one, Spark chooses it by the number of cores, see "
            "spark.sql.adaptive.streaming.stateless.enabled), or, with "
            "failOnDataLoss=false, input was deleted meanwhile. Run it as it was; only deterministic queries "
            "can be written exactly once"
        )


def write_once(
    batches: Iterator[pa.RecordBatch],
    columns: RowColumns,
    options: WriteOptions,
    once: ExactlyOnce,
    task: TaskIdentity,
) -> KafkaCommitMessage:
    """Write all rows of a task in a transaction that the driver is to end; none where the rows are committed.

    Raises `WriteFailedError`, `ReplayError` (a checkpoint that was rolled back, a query that makes other rows
    of the same input), `ConfigError`.
    """
    settle_worker()
    router = router_for(options.client)
    name = task.name(once.transactional_id_prefix)
    settings = TransactionConfig(transactional_id=name, transaction_timeout_ms=once.transaction_timeout_ms)
    producer = TransactionalProducer(options.client, settings, options.producer, router=router)
    try:
        markers = find_markers(router, options)
        markers.check()
        producer.initialize()
        where = () if columns.topic is None else places_in([columns.topic])
        committed = find_committed(_find_last(markers, name, where), task, name)
        digest = RowDigest()
        if committed is not None:
            _renew(committed, producer, markers, name)  # also where it is refused: that may be tried for days
            for batch in batches:
                digest.add(columns.select(batch))
            check_same_rows(committed, digest, task)
            job = task.job(once.transactional_id_prefix)
            message = KafkaCommitMessage.skipped_rows(job, digest.rows, digest.hash)
        else:
            writing = WriteTask(producer, router, columns, options)
            message = _write(writing, batches, digest, markers, once, task)
        return replace(message, task=task.partition, is_adaptive=task.is_adaptive)
    finally:
        # Of one that was detached nothing is aborted; after a failure nothing more is delivered.
        close_producer(producer)


def refuse_speculation(context: TaskContext) -> None:
    """Raises `ConfigError` where Spark may run a task twice at the same time."""
    if (context.getLocalProperty("spark.speculation") or "false").lower() == "true":
        raise ConfigError(
            "deliveryGuarantee=exactly-once can't be had with spark.speculation=true: a second attempt "
            "of a task takes over the transaction of the first; switch speculation off"
        )


def _is_adaptive(context: TaskContext) -> bool:
    """True if Spark plans the shuffles of a stream without state adaptively, as it does from 4.2 on.

    Tasks do not get settings that have their default value.
    """
    import pyspark

    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < _ADAPTIVE_SINCE:
        return False
    return not any((context.getLocalProperty(name) or "true").lower() == "false" for name in _ADAPTIVE)


def _write(
    writing: WriteTask,
    batches: Iterator[pa.RecordBatch],
    digest: RowDigest,
    markers: Markers,
    once: ExactlyOnce,
    task: TaskIdentity,
) -> KafkaCommitMessage:
    producer = writing.producer
    assert isinstance(producer, TransactionalProducer)
    began_s = time.time()
    producer.begin()
    # A marker topic that is created anew before the commit takes the markers along, and not the rows.
    if known := [one for one in (writing.columns.topic, once.marker_topic) if one is not None]:
        writing.note_topics(known)
    for batch in batches:
        digest.add(writing.write(batch))
    writing.finish()
    written = producer.stats()
    if digest.rows:
        marker = CommitMarker(batch_id=task.batch_id, rows=digest.rows, hash=digest.hash)
        # Partitions that exist for sure: of topics that were written to.
        where = places_in({tp.topic for tp in written.partitions})
        name = task.name(once.transactional_id_prefix)
        if writing.columns.topic is None and markers.needs_place:
            check_uncommitted(_find_last(markers, name, where), task, name)
        check_uncommitted(markers.add(producer, name, marker, where), task, name)
    job = task.job(once.transactional_id_prefix)
    message = KafkaCommitMessage.of(written, producer.detach(), job, digest.hash)
    return replace(message, began_s=began_s, topic_ids=writing.topic_ids)


def _renew(marker: CommitMarker, producer: TransactionalProducer, markers: Markers, name: str) -> None:
    """Commit a marker once more: each run writes the intent again, and a marker that expires before it would
    have the rows written twice."""
    if not (where := markers.places(name)):
        return
    producer.begin()
    if (now := markers.add(producer, name, marker, where)) != marker:
        raise WriteFailedError(
            f"{name}: {marker} was committed before, and now it is {now}: this attempt is aborted, and "
            "another one will look again"
        )
    producer.commit()


def check_uncommitted(marker: CommitMarker | None, task: TaskIdentity, name: str) -> None:
    """Raises `WriteFailedError` if the first look missed a marker. Where rows say their topic, only now it is
    known where a marker of theirs would be; and a broker may have answered that was deposed."""
    if marker is not None and marker.batch_id >= task.batch_id:
        done = task.what if marker.batch_id == task.batch_id else f"micro-batch {marker.batch_id}"
        raise WriteFailedError(
            f"{name}: {done} has become committed while {task.what} was written again; this attempt is "
            "aborted, and another one will find that"
        )


def _find_last(markers: Markers, name: str, where: Collection[TopicPartition]) -> CommitMarker | None:
    """As `Markers.last`. Raises `WriteFailedError` where the marker stays undecided: this task has ended all
    transactions before its own, so that it is in a later one."""
    try:
        return markers.last(name, where)
    except DeadlineExceededError as error:
        last = error.__cause__
        if isinstance(last, BrokerError) and last.error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
            raise WriteFailedError(
                f"{name}: another attempt or driver has taken over this transactional id, and its "
                f"transaction is open; {error}"
            ) from error
        raise


def find_committed(marker: CommitMarker | None, task: TaskIdentity, name: str) -> CommitMarker | None:
    """``marker``, the last one of the task, if it is that of the same rows: they are not written again. None
    if the rows are to be written. Raises `ReplayError` if a later micro-batch is committed."""
    if marker is not None and marker.batch_id > task.batch_id:
        raise ReplayError(
            f"{task.what} can't be written exactly once: {name} has committed micro-batch "
            f"{marker.batch_id} already. The checkpoint was rolled back or copied, or another query runs on "
            "it (the same query id); start from the newest checkpoint, or with a new one"
        )
    return marker if marker is not None and marker.batch_id == task.batch_id else None


def check_same_rows(marker: CommitMarker, digest: RowDigest, task: TaskIdentity) -> None:
    """Raises `ReplayError` if the rows that are committed are not those of this replay."""
    if (marker.rows, marker.hash) != (digest.rows, digest.hash):
        raise task.other_rows(marker, digest)


@dataclass(frozen=True, kw_only=True)
class ResumableTask:
    """`TaskIdentity` of one partition of the DataFrame."""

    write_id: str
    job_name: str
    partition: int
    batch_id: int = 0
    is_adaptive: bool = False
    """Matters for streams only."""

    @property
    def what(self) -> str:
        """As `TaskIdentity.what`."""
        return f"write {self.write_id}"

    def job(self, prefix: str) -> str:  # noqa: ARG002 - it is in the name
        """As `TaskIdentity.job`."""
        return self.job_name

    def name(self, prefix: str) -> str:  # noqa: ARG002
        """As `TaskIdentity.name`."""
        return task_name(self.job_name, self.partition)

    def other_rows(self, marker: CommitMarker, digest: RowDigest) -> ReplayError:
        """As `TaskIdentity.other_rows`."""
        return ReplayError(
            f"partition {self.partition} of the DataFrame has {digest.rows} rows (hash "
            f"{digest.hash:016x}), and an earlier run with writeId={self.write_id} has committed "
            f"{marker.rows} (hash {marker.hash:016x}) of it. Run it with the same input and number of "
            "partitions as then (rand(), current_timestamp(), a source that has changed make other rows, and "
            "so does a newer schema in the registry: value.schemaVersion can name the one of then); if it is "
            "another write, give it another writeId"
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


def write_atomic(
    job: AtomicWrite,
    batches: Iterator[pa.RecordBatch],
    columns: RowColumns,
    options: WriteOptions,
    partition: int,
) -> KafkaCommitMessage:
    """On a worker: write all rows of a task; readers with read_committed see them after the commit.

    Only partition 0 of the DataFrame may have rows. That is a rule of the plan, and not of what happens
    to be empty today. Raises `ConfigError` for a row elsewhere, and as `write_rows`.
    """
    settle_worker()
    if partition:
        _refuse_rows(batches, partition)
        return KafkaCommitMessage.skipped_rows("", 0)
    router = router_for(options.client)
    settings = TransactionConfig(
        transactional_id=job.transactional_id, transaction_timeout_ms=job.transaction_timeout_ms
    )
    producer = TransactionalProducer(options.client, settings, options.producer, router=router)
    try:
        # Fences an earlier attempt of this task, and aborts what it wrote, also where there are no rows.
        producer.begin()
        task = WriteTask(producer, router, columns, options)
        if columns.topic is not None:
            task.note_topics([columns.topic])
        for batch in batches:
            task.write(batch)
        task.finish()
        message = KafkaCommitMessage.of(producer.stats(), producer.detach())
        return replace(message, topic_ids=task.topic_ids)
    finally:
        close_producer(producer)


def write_resumable(
    run: ResumableWrite,
    batches: Iterator[pa.RecordBatch],
    columns: RowColumns,
    options: WriteOptions,
    partition: int,
) -> KafkaCommitMessage:
    """On a worker: write all rows of a task, unless they are committed. Raises as `write_once`."""
    assert options.exactly_once is not None
    task = ResumableTask(write_id=run.write_id, job_name=run.transactional_id, partition=partition)
    return write_once(batches, columns, options, options.exactly_once, task)


_NULL = np.uint64(0x6E756C6C)

_STEP = np.uint64(0x9E3779B97F4A7C15)


class RowDigest:
    """How many rows a task has written, and a hash of them: equal sets of rows have equal ``rows`` and
    ``hash``.

    The order of rows does not count, nor how Spark cuts them into Arrow batches: a shuffle may bring the same
    rows in another order.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.hash = 0
        """The sum of a hash of each row, modulo 2**64."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of columns as `RowColumns.select` picks them."""
        if not batch.num_rows:
            return
        hashes = np.zeros(batch.num_rows, np.uint64)
        for name in sorted(batch.schema.names):
            salt = np.uint64(zlib.crc32(name.encode()))
            hashes = _mix(hashes * _STEP + _hash(batch.column(name)) + salt)
        self.rows += batch.num_rows
        self.hash = (self.hash + int(hashes.sum(dtype=np.uint64))) % 2**64


def _hash(column: pa.Array) -> U64:
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        hashes = _hash_headers(column)
    elif pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        numbers = column.cast(pa.int64())
        start = numbers.offset * 8
        hashes = np.frombuffer(numbers.buffers()[1] or b"", np.uint64, len(numbers), start).copy()
    else:
        lengths = np.diff(_offsets(column)).astype(np.uint64)
        hashes = hash_keys(column, Hash.MURMUR2).astype(np.uint64) | lengths << np.uint64(32)
    if column.null_count:
        hashes[_nulls(column)] = _NULL
    return hashes


def _hash_headers(column: pa.Array) -> U64:
    """The order of a record's headers counts."""
    edges = _offsets(column).astype(np.int64)
    first, last = int(edges[0]), int(edges[-1])
    edges -= first
    elements = column.values.slice(first, last - first)
    lengths = np.diff(edges)
    place = np.arange(last - first, dtype=np.int64) - np.repeat(edges[:-1], lengths)
    each = _mix(_hash(elements.field(0)) * _STEP + _hash(elements.field(1)))
    each = _mix(each + place.astype(np.uint64) * _STEP)
    sums = np.zeros(len(each) + 1, np.uint64)
    np.cumsum(each, out=sums[1:])
    return _mix(sums[edges[1:]] - sums[edges[:-1]] + lengths.astype(np.uint64))


def _offsets(column: pa.Array) -> npt.NDArray[Any]:
    wide = (
        pa.types.is_large_list(column.type)
        or pa.types.is_large_binary(column.type)
        or pa.types.is_large_string(column.type)
    )
    kind = np.dtype(np.int64 if wide else np.int32)
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column) + 1, kind)
    return np.frombuffer(buffer, kind, len(column) + 1, column.offset * kind.itemsize)


def _nulls(column: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(column.is_null())


def _mix(values: U64) -> U64:
    """The finalizer of splitmix64: each bit of a value reaches all of the result."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
