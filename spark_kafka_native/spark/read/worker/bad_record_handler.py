"""`BadRecordHandler`: what a task does about the records that it can't decode, apart from its rows: it counts
them for a line in the log, and with ``mode=dlq`` hands them to `DeadLetters`.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from ....formats.bad_records import BadRecords
from ....kafka.model import BadRecordMode, TopicPartition
from ....kafka.records.columns import RecordColumns

if TYPE_CHECKING:
    from .arrow_rows import PartitionRuns

_LOG: Final = logging.getLogger("spark_kafka_native")

EXAMPLES: Final = 3
"""How many bad records the line of a task describes."""

SHOWN_PARTITIONS: Final = 20
"""How many topic-partitions the line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecodedRecord:
    """A record that can't be decoded."""

    row: int
    """Its place in the columns that it came with."""
    offset: int
    stages: tuple[str, ...]
    """``key``, ``value``, or both: what can't be decoded."""
    reason: str
    is_passing: bool = False
    """True if another attempt may decode it: its schema is not known yet."""


class Letters(Protocol):
    """Takes the bad records of one topic-partition."""

    def send(
        self, topic_partition: TopicPartition, bad: list[UndecodedRecord], records: RecordColumns
    ) -> None:
        """They are stored for good when this returns. ``bad`` is in the order of offsets."""


class BadRecordHandler:
    """Of one task."""

    def __init__(self, letters: Letters | None = None) -> None:
        self._letters = letters
        self._counts: Counter[TopicPartition] = Counter()
        self._examples: list[str] = []

    def add(self, records: RecordColumns, runs: PartitionRuns, bad: BadRecords) -> None:
        """``bad`` are rows of ``records``. Raises as `Letters.send`."""
        offsets: Any = records.offset
        ends, rows = np.array(list(accumulate(runs.lengths))), bad.rows
        found: dict[TopicPartition, list[UndecodedRecord]] = {}
        for row, run in zip(rows, np.searchsorted(ends, rows, side="right").tolist(), strict=True):
            one = UndecodedRecord(
                row=row,
                offset=int(offsets[row]),
                stages=bad.stages(row),
                reason=bad.reason(row),
                is_passing=bad.is_passing(row),
            )
            found.setdefault(runs.topic_partitions[run], []).append(one)
        for tp, ones in found.items():
            if self._letters is not None:
                self._letters.send(tp, ones, records)
            self._counts[tp] += len(ones)
            room = EXAMPLES - len(self._examples)
            self._examples += [f"{tp} at offset {one.offset}: {one.reason}" for one in ones[:room]]

    def log(self, mode: BadRecordMode) -> None:
        """One warning for the task, if any record was bad."""
        if not self._counts:
            return
        ordered = sorted(self._counts.items(), key=lambda pair: (-pair[1], pair[0]))
        places = ", ".join(f"{tp}: {count:,}" for tp, count in islice(ordered, SHOWN_PARTITIONS))
        more = len(ordered) - SHOWN_PARTITIONS
        _LOG.warning(
            "mode=%s: %s records of this task can't be decoded (%s%s). The first: %s",
            mode, f"{self._counts.total():,}", places,
            f" and {more:,} more partitions" if more > 0 else "", " | ".join(self._examples),
        )  # fmt: skip
