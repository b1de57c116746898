"""What the driver and the tasks of a write hand each other, as plain data that Spark pickles:
`AtomicWrite` and `ResumableWrite` go to the workers, `KafkaCommitMessage` comes back.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from ...kafka.producer.sending.transaction_requests import OpenTransaction
from ...kafka.producer.stats import ProducerStats

PartitionRow = tuple[str, int, int, int, int, int]
"""topic, partition, records, bytes, first offset, last offset; -1 for an offset that is not known."""


@dataclass(frozen=True)
class KafkaCommitMessage(WriterCommitMessage):  # type: ignore[misc]
    """What one task has written. Plain numbers and strings: it is pickled on the way to the driver."""

    records: int
    bytes: int
    batches: int
    retries: int
    partitions: tuple[PartitionRow, ...]
    transaction: OpenTransaction | None = None
    """What the driver is to commit; None where the rows are in the log already."""
    job: str = ""
    """Of an exactly-once write: what its transactional ids begin with."""
    skipped: int = 0
    """Rows of a replay that were committed before."""
    rows_hash: int = 0
    """Of an exactly-once write: `RowDigest.hash` of the task's rows, whether written or skipped."""
    over_limit_skipped: int = 0
    """Rows that ``kafka.over.limit`` left out."""
    over_limit_dead_lettered: int = 0
    """Rows that it sent to the dead-letter topic; ``records`` counts these."""
    run_id: str = ""
    """Of a stream: the query's from one start to the next."""

    task: int = -1
    """Of an exactly-once write: which partition of the micro-batch it was."""

    began_s: float | None = None
    """When its transaction began, by the worker's clock (seconds since the epoch)."""

    is_adaptive: bool = False
    """Of an exactly-once write: whether Spark may choose the number of tasks anew when it runs again."""

    @classmethod
    def skipped_rows(cls, job: str, rows: int, rows_hash: int = 0) -> KafkaCommitMessage:
        """The message of a replayed task that has committed its rows before."""
        return cls(0, 0, 0, 0, (), None, job, rows, rows_hash)

    @classmethod
    def of(
        cls,
        stats: ProducerStats,
        transaction: OpenTransaction | None = None,
        job: str = "",
        rows_hash: int = 0,
    ) -> KafkaCommitMessage:
        """From the statistics of the task's producer."""
        rows = tuple(
            (
                where.topic,
                where.partition,
                told.records,
                told.bytes,
                -1 if told.first_offset is None else told.first_offset,
                -1 if told.last_offset is None else told.last_offset,
            )
            for where, told in stats.partitions.items()
        )
        return cls(
            stats.records,
            stats.bytes,
            stats.batches,
            stats.retries,
            rows,
            transaction,
            job,
            rows_hash=rows_hash,
            over_limit_skipped=stats.skipped_records,
            over_limit_dead_lettered=stats.dead_lettered_records,
        )


def hash_of_tasks(messages: Iterable[KafkaCommitMessage]) -> int:
    """Of which rows are in which task, whether written or skipped: equal for equal rows in equal tasks."""
    each = (struct.pack("<QQ", one.records + one.skipped, one.rows_hash) for one in messages)
    return int.from_bytes(hashlib.blake2b(b"".join(each), digest_size=8).digest(), "little")


@dataclass(frozen=True, kw_only=True)
class AtomicWrite:
    """A batch write in one transaction: the driver begins and commits it, one task writes it."""

    transactional_id: str
    transaction_timeout_ms: int


@dataclass(frozen=True, kw_only=True)
class ResumableWrite:
    """One run of a batch write with a ``writeId``: what an earlier run has committed is not written again."""

    write_id: str
    transactional_id: str
    """Of the driver; those of the tasks are `task_name`."""
    void: int | None
    """The revision of an intent of which nothing is committed, and nothing will be."""


def task_name(transactional_id: str, partition: int) -> str:
    """The transactional id of a task of a `ResumableWrite`, and the group of its marker."""
    return f"{transactional_id}/{partition}"
