"""What sending a record may end in, one exception per decision a caller makes. All of them survive
pickling."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Self

from ..errors import KafkaError
from ..model import TopicPartition

if TYPE_CHECKING:
    from .delivery import ColumnsDelivery


class DeliveryStatus(enum.IntEnum):
    """What is known about a record's place in the log, in librdkafka's words.

    A request whose answer is lost may have been applied: POSSIBLY_PERSISTED is then the only honest result.
    """

    NOT_PERSISTED = 0
    """The record is not in the log: it was never sent, or every attempt was definitely refused."""
    POSSIBLY_PERSISTED = 1
    """An attempt was sent whose outcome is not known."""
    PERSISTED = 2
    """The broker confirmed it, with the acks that were asked for."""


class BufferFullError(KafkaError):
    """The producer's buffer stayed full: records come faster than the brokers take them. Nothing of the call
    was taken."""


class ProducerClosedError(KafkaError):
    """The producer was closed, or failed for good (then ``__cause__`` is why); it takes no more records."""


class RecordError(KafkaError, ValueError):
    """A record that can't be sent as it is. ``row`` counts from 0 in what was handed over; None for a
    single one."""

    def __init__(self, reason: str, topic: str | None = None, row: int | None = None) -> None:
        super().__init__(reason, topic, row)
        self.reason = reason
        self.topic = topic
        self.row = row

    def moved(self, rows: int) -> RecordError:
        """The same error for a caller that had handed over ``rows`` rows before."""
        if self.row is None:
            return self
        arguments = list(self.args)
        arguments[2] = self.row + rows
        return type(self)(*arguments)

    def __str__(self) -> str:
        where = [f"row {self.row}"] if self.row is not None else []
        where += [f"topic {self.topic}"] if self.topic is not None else []
        return f"{' for '.join(where)}: {self.reason}" if where else self.reason


class RecordTooLargeError(RecordError):
    """A record is over a limit; ``limit_name`` says whose."""

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


class PartlyTakenError(KafkaError):
    """Columns of which some rows were taken when the rest could not be; ``__cause__`` is why.

    The ``taken`` rows are being delivered: sending all of them again would double those. ``delivery`` (a
    `ColumnsDelivery`; None after pickling) says of each row where it ended.
    """

    def __init__(self, reason: str, taken: int, rows: int, delivery: ColumnsDelivery | None = None) -> None:
        super().__init__(reason, taken, rows)
        self.reason = reason
        self.taken = taken
        self.rows = rows
        self.delivery = delivery

    def __reduce__(self) -> tuple[type[PartlyTakenError], tuple[str, int, int]]:
        return type(self), (self.reason, self.taken, self.rows)

    def __str__(self) -> str:
        return (
            f"{self.taken:,} of {self.rows:,} rows were taken and are being delivered, the others were not: "
            f"{self.reason}"
        )


class DeliveryError(KafkaError):
    """Records that were accepted and could not be delivered; ``__cause__`` is what failed last.

    ``status`` is NOT_PERSISTED or POSSIBLY_PERSISTED; ``retriable`` says whether sending them again may help;
    ``spilled`` whether they lie in the spill folder, from where the next producer sends them.
    """

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
        return f"{self.topic_partition}: {what} {fate}: {self.reason}{kept}"
