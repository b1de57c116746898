"""`Spilling`: undelivered batches go to the spill folder, where there is one, and are sent again from there.

`resending.py` decides when they are sent again. The sender's thread owns all of this.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from ...error_code import ErrorCode
from ...errors import BrokerError
from ...model import TopicPartition
from ..accumulating.batch import Batch
from ..errors import RecordError
from ..spill_folder import NewEntry, SpilledBatch, SpillError, SpillFolder

_LOG = logging.getLogger("spark_kafka_native")

_REFUSED_FOR_CONTENT = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.CORRUPT_MESSAGE,
    }
)
"""The same bytes would be refused again for ever: not worth spilling."""


@dataclass(eq=False)
class Backlog:
    """The batches of one partition in the folder that this producer will send again."""

    batches: list[Batch] = field(default_factory=list)
    """In order, without ``probe``."""
    probe: Batch | None = None
    """The first of them, while it is being tried."""
    refused: bool = False
    """True if the probe, or a part of it, is in ``batches`` again."""
    failures: int = 0
    not_before: float | None = None
    """Monotonic seconds of the next try; None until a try has been scheduled."""


class Spilling:
    """The stage between a batch that is given up and its end. Without a ``folder`` it does nothing."""

    def __init__(self, folder: SpillFolder | None) -> None:
        self._folder = folder
        self.backlogs: dict[TopicPartition, Backlog] = {}
        """What this producer has put into the folder and will send again."""

    @property
    def enabled(self) -> bool:
        """True if there is a folder."""
        return self._folder is not None

    @property
    def left_over(self) -> list[SpilledBatch]:
        """The batches that an earlier producer left in the folder, in order."""
        return [] if self._folder is None else self._folder.entries

    def close(self) -> None:
        """Release the folder; harmless when repeated."""
        if self._folder is not None:
            self._folder.close()

    def disown(self) -> None:
        """In a forked child: the folder is the parent's."""
        if self._folder is not None:
            self._folder.forget()

    def keeps(self, cause: BaseException | None) -> bool:
        """True if batches that are given up for ``cause`` go to the folder."""
        if self._folder is None or isinstance(cause, RecordError):
            return False
        return not (isinstance(cause, BrokerError) and cause.error_code in _REFUSED_FOR_CONTENT)

    def keep(
        self, batches: list[Batch], reason: str, cause: BaseException | None, topic_id: UUID | None
    ) -> dict[Batch, SpilledBatch]:
        """Write those of ``batches`` that are not in the folder yet; returns their entries.

        Where that fails, their records are lost, and the log says so.
        """
        new = [batch for batch in batches if batch.spilled is None]
        if self._folder is None or not self.keeps(cause) or not new:
            return {}
        entries = [
            NewEntry(b.topic_partition, topic_id, b.records, b.sending.indefinite, reason, b.data)
            for b in new
        ]
        try:
            kept = self._folder.keep(entries)
        except SpillError as error:
            _LOG.error("%s: undelivered records are lost", error)
            return {}
        return dict(zip(new, kept, strict=True))

    def add(self, given_up: Batch, entry: SpilledBatch) -> None:
        """``given_up`` is ``entry`` of the folder now, and will be sent again."""
        backlog = self.backlogs.setdefault(given_up.topic_partition, Backlog())
        insort(backlog.batches, given_up.sent_again_from(entry), key=lambda batch: batch.order)
        backlog.refused = backlog.refused or given_up.reported_before

    def replace(self, batch: Batch, into: Iterable[Batch]) -> None:
        """``into`` (its halves, or itself under new numbers) takes the place of ``batch`` in the folder, if
        that is there. Raises `SpillError`: the folder is then unchanged.

        Before any of them is sent: a later replay must send them as they were sent now.
        """
        old, batches = batch.spilled, list(into)
        if old is None or self._folder is None:
            return
        entries = [NewEntry(old[0], old.topic_id, b.records, True, old.reason, b.data) for b in batches]
        for one, spilled in zip(batches, self._folder.replace(old, entries), strict=True):
            one.spilled = spilled

    def replace_by_letter(self, batch: Batch, letter: Batch, topic_id: UUID | None) -> None:
        """``letter``, a dead letter, takes the place of ``batch``, a single record in the folder. Raises
        `SpillError`: nothing has changed then.
        """
        old = batch.spilled
        assert old is not None
        assert self._folder is not None
        entry = NewEntry(letter.topic_partition, topic_id, 1, False, old.reason, letter.data)
        letter.spilled = self._folder.replace(old, [entry])[0]

    def ended(self, batch: Batch) -> None:
        """``batch`` is delivered, or ended by choice: if it is in the folder, it is not sent again."""
        if batch.spilled is not None and self._folder is not None:
            self._folder.delivered(batch.spilled)

    def delivered_late(self, given_up: Batch) -> SpilledBatch | None:
        """``given_up`` is in the log after all, as a late answer says: returns the entry that goes, if it was
        still to be sent again."""
        backlog = self.backlogs.get(given_up.topic_partition)
        again = [] if backlog is None else [b for b in backlog.batches if b.order == given_up.order]
        if backlog is None or not again:
            return None
        backlog.batches.remove(again[0])
        self.ended(again[0])
        return again[0].spilled
