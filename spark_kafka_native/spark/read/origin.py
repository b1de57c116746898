"""`Origin`: which topic-partitions rows are of; what the columns `topic` and `partition` show."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import numpy as np
import pyarrow as pa

from ...kafka.model import TopicPartition
from ...kafka.records.columns import wrap_numpy
from .repeated import repeat


@dataclass(frozen=True, slots=True)
class Origin:
    """Rows of one topic-partition, then of the next."""

    topic_partitions: Sequence[TopicPartition]
    lengths: Sequence[int]
    """How many rows of each."""

    def at(self, row: int) -> TopicPartition:
        """Where one row is of."""
        return self.topic_partitions[bisect_right(list(accumulate(self.lengths)), row)]

    def topics(self) -> pa.Array:
        """The topic of each row."""
        runs = zip((tp.topic for tp in self.topic_partitions), self.lengths, strict=True)
        same = groupby(runs, key=lambda run: run[0])
        return _joined(repeat(topic, pa.string(), sum(n for _, n in runs)) for topic, runs in same)

    def partitions(self) -> pa.Array:
        """The partition of each row, int32."""
        if len(self.lengths) == 1:
            return repeat(self.topic_partitions[0].partition, pa.int32(), self.lengths[0])
        numbers = np.array([tp.partition for tp in self.topic_partitions], np.int32).repeat(self.lengths)
        return wrap_numpy(numbers, pa.int32())


def _joined(arrays: Iterable[pa.Array]) -> pa.Array:
    parts = list(arrays)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
