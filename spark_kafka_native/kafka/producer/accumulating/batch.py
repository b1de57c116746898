"""`Batch`: one encoded record batch on its way to one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ...model import TopicPartition
from ..delivery import DeliveryBlock, Outcome
from ..errors import DeliveryStatus, RecordError

if TYPE_CHECKING:
    from ..sending.producer_id import ProducerIdentity
    from ..settling.spill import SpilledBatch


class Part(NamedTuple):
    """Records of a batch that were handed over together: ``rows`` of ``block``, counted from
    ``first_row``."""

    block: DeliveryBlock
    rows: npt.NDArray[np.int64]
    first_row: int


class Origin(NamedTuple):
    """Where the rows of some columns come from: row i is row ``first_row + i`` of ``block``, or ``rows[i]``
    where that is given."""

    block: DeliveryBlock
    first_row: int = 0
    rows: npt.NDArray[np.int64] | None = None

    def part(self, rows: npt.NDArray[np.int64]) -> Part:
        """``rows`` of the columns, as those of a batch."""
        if self.rows is None:
            return Part(self.block, rows, self.first_row)
        return Part(self.block, self.rows[rows], 0)


class Batch:
    """Encoded once; from its first sending on its bytes never change, as the broker recognises a retry by
    them.

    The sender's thread owns it once it was handed over. `PartitionSending` alone writes to what is about
    sending it (identity, base_sequence, attempts, indefinite, last_error), `BatchCompletion` to what is about
    its end.
    """

    __slots__ = (
        "attempts",
        "base_sequence",
        "children",
        "created_at",
        "data",
        "encoded_at_ms",
        "ended",
        "failure",
        "identity",
        "indefinite",
        "last_error",
        "order",
        "parts",
        "records",
        "reported",
        "reserved",
        "spilled",
        "told",
        "topic_partition",
    )

    def __init__(  # noqa: PLR0913 - to become fewer
        self,
        topic_partition: TopicPartition,
        data: bytes | bytearray | memoryview,
        records: int,
        reserved: int,
        parts: list[Part],
        created_at: float,
        encoded_at_ms: int,
        order: tuple[int, ...],
    ) -> None:
        self.topic_partition = topic_partition
        self.data = data
        self.records = records
        self.reserved = reserved
        """Bytes of buffer memory that its end gives back."""
        self.parts = parts
        self.created_at = created_at
        """Monotonic seconds of its first record: the delivery timeout counts from here."""
        self.encoded_at_ms = encoded_at_ms
        self.order = order
        """Place among the batches of its partition; a retried batch goes back to it, and halves lie within
        it."""
        self.attempts = 0
        self.identity: ProducerIdentity | None = None
        self.base_sequence = -1
        self.indefinite = False
        """Whether an attempt was made whose outcome is not known."""
        self.ended = False
        self.reported = False
        """Whether everybody was told: only then may a flush return."""
        self.children: list[Batch] = []
        """What it was split into."""
        self.last_error: Exception | None = None
        self.spilled: SpilledBatch | None = None
        self.told = False
        """Whether its records have ended before, as kept in the spill folder: nobody is told again."""
        self.failure: RecordError | None = None
        """Why its records could not be encoded: they are given up in their turn, and nobody else's."""

    @property
    def undelivered_status(self) -> DeliveryStatus:
        """What is known about the batch if it is given up now."""
        return DeliveryStatus.POSSIBLY_PERSISTED if self.indefinite else DeliveryStatus.NOT_PERSISTED

    @property
    def complete(self) -> bool:
        """Whether all of its records have ended, those of its splits included."""
        if self.children:
            return all(child.complete for child in self.children)
        return self.reported

    def report(self, outcome: Outcome) -> None:
        """Tell whoever handed the records over."""
        first = 0
        for part in self.parts:
            part.block.report(part.rows + part.first_row if part.first_row else part.rows, first, outcome)
            first += len(part.rows)
        self.reported = True

    def divide_parts(self, records: int) -> tuple[list[Part], list[Part]]:
        """Its parts, cut after the first ``records`` records."""
        head: list[Part] = []
        tail: list[Part] = []
        for part in self.parts:
            cut = min(records, len(part.rows))
            if cut:
                head.append(Part(part.block, part.rows[:cut], part.first_row))
            if cut < len(part.rows):
                tail.append(Part(part.block, part.rows[cut:], part.first_row))
            records -= cut
        return head, tail

    def __repr__(self) -> str:
        return f"<Batch {self.topic_partition} {self.records} records, {self.attempts} attempts>"
