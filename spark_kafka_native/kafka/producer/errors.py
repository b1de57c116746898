"""How sending a record may fail: one exception per decision a caller makes. All of them can be pickled."""

from __future__ import annotations

import enum
from typing import ClassVar, Self

from ..errors import BrokerError, ClientClosedError, KafkaError
from ..model import TopicPartition


class DeliveryStatus(enum.IntEnum):
    """How certain it is that a record is in the log, in librdkafka's words.

    A request with a lost answer may have been applied: POSSIBLY_PERSISTED is then the only honest result.
    """

    NOT_PERSISTED = 0
    """The record is not in the log: it was never sent, or every attempt was definitely refused."""
    POSSIBLY_PERSISTED = 1
    """An attempt with an unknown outcome was sent."""
    PERSISTED = 2
    """The broker confirmed it, with the acks that were asked for."""


class BufferFullError(KafkaError):
    """The producer's buffer stayed full: records come faster than the brokers take them. Nothing of the call
    was taken."""


class ProducerClosedError(ClientClosedError):
    """The producer was closed, or failed for good (then ``__cause__`` is why); it takes no more records."""


class TransactionStateError(KafkaError):
    """A transactional producer was asked for what it can't do in its state: a mistake of the caller."""


class TransactionAbortableError(KafkaError):
    """The transaction can't be committed; nothing of it will be seen. Abort it, and do its work again in
    another one; ``__cause__`` is what failed."""


class TransactionFatalError(KafkaError):
    """The producer is at its end: another one took its transactional id, its transaction expired, or it may
    not go on. Make a new one.

    ``possibly_committed``: the answer to an earlier attempt at committing was lost, and its outcome can't be
    found out any more.
    """

    def __init__(self, message: str, possibly_committed: bool = False) -> None:
        super().__init__(message, possibly_committed)
        self.message = message
        self.possibly_committed = possibly_committed

    def __str__(self) -> str:
        return self.message


class RecordError(KafkaError, ValueError):
    """A record that can't be sent as it is. ``row`` counts from 0 in the columns that were handed over;
    None for a single one."""

    def __init__(self, reason: str, topic: str | None = None, row: int | None = None) -> None:
        super().__init__(reason, topic, row)
        self.reason = reason
        self.topic = topic
        self.row = row

    def moved(self, rows: int) -> Self:
        """The same error for a caller that had handed over ``rows`` rows before."""
        return self if self.row is None or not rows else self.at(self.row + rows)

    def at(self, row: int | None) -> Self:
        """The same error about ``row``."""
        arguments = list(self.args)
        arguments[2] = row
        return type(self)(*arguments)

    def __str__(self) -> str:
        where = [f"row {self.row}"] if self.row is not None else []
        where += [f"topic {self.topic}"] if self.topic is not None else []
        return f"{' for '.join(where)}: {self.reason}" if where else self.reason


class RecordTooLargeError(RecordError):
    """A record exceeds a limit; ``limit_name`` says which."""

    def __init__(
        self, reason: str, topic: str | None, row: int | None, size: int, limit: int, limit_name: str
    ) -> None:
        super().__init__(reason, topic, row)
        self.args = (reason, topic, row, size, limit, limit_name)
        self.size = size
        self.limit = limit
        self.limit_name = limit_name

    @classmethod
    def of(cls, topic: str | None, row: int | None, size: int, limit: int, limit_name: str) -> Self:
        """The error for a record of ``size`` bytes over ``limit``."""
        reason = f"the record takes {size} bytes and {limit_name} allows {limit}: raise that, or send less"
        return cls(reason, topic, row, size, limit, limit_name)


class DeliveryError(KafkaError):
    """Records that were accepted and could not be delivered; ``__cause__`` is what failed last.

    ``status`` is NOT_PERSISTED or POSSIBLY_PERSISTED; ``retriable`` says whether sending them again may help;
    ``spilled`` whether they lie in the spill folder, from where this producer sends them again once the
    leader takes records, or the next one does: sending them yourself would double them.
    """

    by_choice: ClassVar[bool] = False
    """True if the producer's configuration asked for this end: `RecordSkippedError`, `DeadLetteredError`."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        records: int,
        status: DeliveryStatus,
        reason: str,
        retriable: bool,
        spilled: bool = False,
    ) -> None:
        super().__init__(topic_partition, records, status, reason, retriable, spilled)
        self.topic_partition = topic_partition
        self.records = records
        self.status = status
        self.reason = reason
        self.retriable = retriable
        self.spilled = spilled

    def __str__(self) -> str:
        what = "1 record" if self.records == 1 else f"{self.records} records"
        fate = "not written" if self.status is DeliveryStatus.NOT_PERSISTED else "possibly written"
        kept = "; kept in the spill folder" if self.spilled else ""
        where = self.topic_partition if self.topic_partition.partition >= 0 else self.topic_partition.topic
        return f"{where}: {what} {fate}: {self.reason}{kept}"


class RecordsRefusedError(BrokerError):
    """A broker refused a batch, and named records in it (KIP-467): ``places`` counts them from 0."""

    places: tuple[int, ...] = ()


class RecordSkippedError(DeliveryError):
    """A record over a limit that was left out, as ``over_limit="skip"`` says. ``__cause__`` is the limit's
    error. The partition is -1 where the record was too large to be given one."""

    by_choice = True


class DeadLetteredError(DeliveryError):
    """A record over a limit that is not in its topic, but in the dead-letter topic, as
    ``over_limit="dead_letter"`` says: at ``offset`` of ``dead_letter`` (None where the broker did not say).

    The rest is as `RecordSkippedError` has it.
    """

    by_choice = True

    def __init__(
        self,
        topic_partition: TopicPartition,
        records: int,
        status: DeliveryStatus,
        reason: str,
        dead_letter: TopicPartition,
        offset: int | None,
    ) -> None:
        super().__init__(topic_partition, records, status, reason, retriable=False)
        self.args = (topic_partition, records, status, reason, dead_letter, offset)
        self.dead_letter = dead_letter
        self.offset = offset
