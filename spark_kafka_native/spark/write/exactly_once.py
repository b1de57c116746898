"""`write_once`: a write task whose rows count once, whatever dies. Rows in, an open transaction out.

The task writes its rows and a commit marker in one transaction and leaves it open; the driver commits it. Any
doubt becomes a replay of the micro-batch, and the marker tells the replay whether the rows are committed. The
tasks of a batch write with a name (`named_write`) do the same; what replays it is its user.

Why nothing is doubled: the marker is read *after* InitProducerId, which ends every earlier transaction of
this task for good; whoever commits later has taken the transactional id after us, and ours is over then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from ...kafka.cluster.router import router_for
from ...kafka.config.client_config import TransactionConfig
from ...kafka.errors import ConfigError, KafkaError
from ...kafka.model import TopicPartition
from ...kafka.producer.transactional_producer import TransactionalProducer
from ..worker import settle_worker
from .commit_marker import CommitMarker, ReplayError
from .commit_message import KafkaCommitMessage
from .markers import Markers, find_markers
from .row_digest import RowDigest
from .rows import RowColumns
from .write_options import ExactlyOnce, WriteOptions
from .write_task import WriteFailedError, WriteTask

if TYPE_CHECKING:
    from pyspark import TaskContext

_LOG: Final = logging.getLogger("spark_kafka_native")
_ADAPTIVE: Final = ("spark.sql.adaptive.enabled", "spark.sql.adaptive.streaming.stateless.enabled")
_ADAPTIVE_SINCE: Final = (4, 2)
_ABORT_S: Final = 5.0
"""A task that fails tries so long to abort: an open transaction holds up read_committed readers."""


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
    """Whether Spark may choose the number of tasks of a query that shuffles."""

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
            "query, another number of partitions: where a shuffle has no given one, Spark chooses it by the "
            "number of cores, see spark.sql.adaptive.streaming.stateless.enabled), or, with "
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
        where = None if columns.topic is None else TopicPartition(columns.topic, 0)
        marker = markers.last(name, where)
        _check_ahead(marker, task, name)
        digest = RowDigest()
        if marker is not None and marker.batch_id == task.batch_id:
            for batch in batches:
                digest.add(columns.select(batch))
            if (marker.rows, marker.hash) != (digest.rows, digest.hash):
                raise task.other_rows(marker, digest)
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
    """Whether Spark plans the shuffles of a stream without state adaptively, as it does from 4.2 on.

    What is not changed from its default does not come to the tasks.
    """
    import pyspark

    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < _ADAPTIVE_SINCE:
        return False
    return not any((context.getLocalProperty(name) or "true").lower() == "false" for name in _ADAPTIVE)


def close_producer(producer: TransactionalProducer) -> None:
    """Abort what is open, and end; a failure of that is no failure of the task."""
    try:
        producer.close(timeout=_ABORT_S)
    except KafkaError as error:
        _LOG.warning("%r could not be closed: %s", producer, error)


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
    for batch in batches:
        digest.add(writing.columns.select(batch))
        writing.write(batch)
    writing.finish()
    written = producer.stats()
    if digest.rows:
        marker = CommitMarker(batch_id=task.batch_id, rows=digest.rows, hash=digest.hash)
        # Any partition there is: one of a topic that was written to exists for sure.
        where = TopicPartition(min(tp.topic for tp in written.partitions), 0)
        name = task.name(once.transactional_id_prefix)
        if writing.columns.topic is None and markers.needs_place:
            _check_nothing_pending(markers.last(name, where), task, name)
        _check_nothing_pending(markers.add(producer, name, marker, where), task, name)
    job = task.job(once.transactional_id_prefix)
    message = KafkaCommitMessage.of(written, producer.detach(), job, digest.hash)
    return replace(message, began_s=began_s)


def _check_nothing_pending(marker: CommitMarker | None, task: TaskIdentity, name: str) -> None:
    """What the first look has missed. Where rows say their topic, only now it is known where a marker of
    theirs would be; and a broker may have answered that was deposed."""
    if marker is not None and marker.batch_id >= task.batch_id:
        done = task.what if marker.batch_id == task.batch_id else f"micro-batch {marker.batch_id}"
        raise WriteFailedError(
            f"{name}: {done} has become committed while {task.what} was written again; this attempt is "
            "aborted, and another one will find that"
        )


def _check_ahead(marker: CommitMarker | None, task: TaskIdentity, name: str) -> None:
    if marker is not None and marker.batch_id > task.batch_id:
        raise ReplayError(
            f"{task.what} can't be written exactly once: {name} has committed micro-batch "
            f"{marker.batch_id} already. The checkpoint was rolled back or copied, or another query runs on "
            "it (the same query id); start from the newest checkpoint, or with a new one"
        )
