"""What a write task hands the driver, and the summary of a write that the driver makes of it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import WriterCommitMessage

from ...kafka.producer.sending.transaction_requests import OpenTransaction
from ...kafka.producer.stats import ProducerStats
from ..notice import tell

_LOG: Final = logging.getLogger("spark_kafka_native")
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
        """Of a replayed task, whose rows are committed."""
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
class WriteSummary:
    """A whole write. Offsets of a partition are those of its first and last record, over all tasks."""

    tasks: int
    records: int
    bytes: int
    batches: int
    retries: int
    partitions: tuple[PartitionRow, ...]
    over_limit_skipped: int = 0
    over_limit_dead_lettered: int = 0

    @classmethod
    def of(cls, messages: Iterable[object]) -> WriteSummary:
        """Add the tasks' messages up. Raises TypeError for what is no message of ours."""
        told = [message for message in messages if message is not None]
        rows: dict[tuple[str, int], PartitionRow] = {}
        for message in told:
            if not isinstance(message, KafkaCommitMessage):
                raise TypeError(f"not a commit message of a Kafka write: {type(message).__name__}")
            for row in message.partitions:
                rows[row[:2]] = _merge(rows.get(row[:2]), row)
        messages_of_ours = [message for message in told if isinstance(message, KafkaCommitMessage)]
        return cls(
            tasks=len(messages_of_ours),
            records=sum(message.records for message in messages_of_ours),
            bytes=sum(message.bytes for message in messages_of_ours),
            batches=sum(message.batches for message in messages_of_ours),
            retries=sum(message.retries for message in messages_of_ours),
            partitions=tuple(rows[key] for key in sorted(rows)),
            over_limit_skipped=sum(message.over_limit_skipped for message in messages_of_ours),
            over_limit_dead_lettered=sum(message.over_limit_dead_lettered for message in messages_of_ours),
        )

    def __str__(self) -> str:
        topics = sorted({row[0] for row in self.partitions})
        where = f"{len(self.partitions)} partitions of {', '.join(topics[:3]) or 'nothing'}"
        more = f" and {len(topics) - 3} more topics" if len(topics) > 3 else ""
        return (
            f"wrote {self.records} records ({self.bytes} bytes in {self.batches} batches, "
            f"{self.retries} retries) to {where}{more} in {self.tasks} tasks{self._over_limit()}"
        )

    def _over_limit(self) -> str:
        told = (
            (self.over_limit_skipped, "left out, as they are over a limit"),
            (self.over_limit_dead_lettered, "over a limit and in the dead-letter topic"),
        )
        return "".join(f"; {rows} rows are {fate}" for rows, fate in told if rows)

    def announce(self, lead: str = "") -> None:
        """Tell the user, in one line."""
        tell(f"{lead}{self}")

    def as_json(self) -> dict[str, Any]:
        """As `WriteSummary.save` writes it."""
        names = ("topic", "partition", "records", "bytes", "firstOffset", "lastOffset")
        return {
            "tasks": self.tasks,
            "records": self.records,
            "bytes": self.bytes,
            "batches": self.batches,
            "retries": self.retries,
            "skippedRecords": self.over_limit_skipped,
            "deadLetteredRecords": self.over_limit_dead_lettered,
            "partitions": [dict(zip(names, row, strict=True)) for row in self.partitions],
        }

    def save(self, path: str, **more: Any) -> None:
        """Write the summary to a file, whole or not at all; ``more`` goes before it.

        Where that can't be done, it is a warning: the rows are written, and an error here would make Spark,
        or the user, write them again.
        """
        try:
            self._write(Path(path), json.dumps(more | self.as_json(), indent=1) + "\n")
        except OSError as error:
            _LOG.warning(
                "the rows are written; the summary of them could not be written to %s (summaryPath): %s",
                path, error,
            )  # fmt: skip

    @staticmethod
    def _write(target: Path, text: str) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        part.replace(target)


def _merge(known: PartitionRow | None, row: PartitionRow) -> PartitionRow:
    if known is None:
        return row
    offsets = [offset for offset in (known[4], row[4]) if offset >= 0]
    return (
        row[0],
        row[1],
        known[2] + row[2],
        known[3] + row[3],
        min(offsets, default=-1),
        max(known[5], row[5]),
    )
