"""The upper bound on each record's bytes, which says what fits into a batch and under a topic's limit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.producer.accumulating.batch import max_record_sizes
from spark_kafka_native.kafka.records.columns import HEADERS_TYPE, RecordColumns
from spark_kafka_native.kafka.records.encode import record_sizes

VALUES = [b"", None, b"x" * 300, b"y", b"z" * 70_000, b"", b"w" * 5]
HEADERS = [[("h", b"1" * n)] for n in range(7)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize(("start", "stop"), [(0, 7), (0, 3), (2, 5), (4, 7), (6, 7), (3, 3)])
def test_they_are_those_of_the_very_rows_wherever_these_are_in_their_column(
    kind: pa.DataType, headers: bool, start: int, stop: int
) -> None:
    text = pa.array([None if one is None else one.decode() for one in VALUES], kind)
    more = pa.array(HEADERS, HEADERS_TYPE) if headers else None
    columns = RecordColumns(length=7, key=text, value=text, headers=more).slice(start, stop)
    sizes = max_record_sizes(columns)
    payload = np.array([2 * len(one or b"") for one in VALUES[start:stop]], np.int64)
    assert sizes.tolist() == (record_sizes(columns) if headers else payload + 22).tolist()
    assert (sizes >= record_sizes(columns)).all()


@pytest.mark.parametrize("days", [0, 1, 2, 20, 10**10])
def test_they_allow_for_timestamps_far_apart(days: int) -> None:
    stamps = np.array([0, days * 86_400_000, 1], np.int64)
    cells = pa.array([b"a", b"a", b"a" * 2**20], pa.binary())  # the longest with long lengths, too
    columns = RecordColumns(length=3, timestamp_ms=stamps, key=cells, value=cells)
    assert (max_record_sizes(columns) >= record_sizes(columns)).all()
