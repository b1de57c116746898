"""`WriteSummary`: what a whole write has written, for the log line and the file of ``summaryPath``."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...user_messages import inform
from ..write_task import KafkaCommitMessage, PartitionRow

_LOG: Final = logging.getLogger("spark_kafka_native")


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
        """Add the tasks' messages up. Raises TypeError for messages of another sink."""
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
        inform(f"{lead}{self}")

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
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


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
