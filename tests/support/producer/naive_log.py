"""`Log`: a broker's log of one partition, as naive as can be."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from spark_kafka_native.kafka.error_code import ErrorCode

E = ErrorCode


@dataclass
class Log:
    """What Kafka's ProducerStateManager does: five batches are remembered per producer id."""

    records: list[int] = field(default_factory=list)
    states: dict[int, tuple[int, deque[tuple[int, int]]]] = field(default_factory=dict)

    def append(self, numbers: tuple[int, int, int], records: list[int]) -> ErrorCode:
        """A batch with these ``numbers``: producer id, epoch, and the sequence number of its first record."""
        producer_id, epoch, first = numbers
        last = first + len(records) - 1
        known = self.states.get(producer_id)
        if known is not None and epoch < known[0]:
            return E.INVALID_PRODUCER_EPOCH
        if known is not None and epoch > known[0]:
            if first:
                return E.OUT_OF_ORDER_SEQUENCE_NUMBER
            known = None
        if known is None:
            known = self.states[producer_id] = (epoch, deque(maxlen=5))
        batches = known[1]
        if (first, last) in batches:
            return E.DUPLICATE_SEQUENCE_NUMBER if first % 2 else E.NONE
        if batches and first != batches[-1][1] + 1:
            return E.OUT_OF_ORDER_SEQUENCE_NUMBER
        batches.append((first, last))
        self.records += records
        return E.NONE
