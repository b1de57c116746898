"""`RecordColumns` one by one, and as Arrow."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.model import Record, TimestampType, TopicPartition
from spark_kafka_native.kafka.records import columns
from spark_kafka_native.kafka.records.columns import (
    HEADERS_AS_BYTES_TYPE,
    HEADERS_TYPE,
    RecordColumns,
    to_binary,
)

HEADERS = [None, [("a", b"1"), ("a", None)], [], [("", b"")]]
COLUMNS = RecordColumns(
    length=4,
    offset=np.array([5, 6, 8, 9]),
    timestamp_ms=np.array([0, -1, 1_700_000_000_123, 3]),
    timestamp_type=np.array([0, -1, 1, 0], np.int8),
    key=pa.array([b"k", None, b"", b"\xff"], pa.binary()),
    value=pa.array([None, b"v", b"", b"\x00"], pa.binary()),
    headers=pa.array(HEADERS, HEADERS_TYPE),
)


def expected(topic: str = "", partition: int = -1) -> list[Record]:
    return [
        Record(topic, partition, 5, b"k", None, (), 0, 0),
        Record(topic, partition, 6, None, b"v", (("a", b"1"), ("a", None)), -1, -1),
        Record(topic, partition, 8, b"", b"", (), 1_700_000_000_123, 1),
        Record(topic, partition, 9, b"\xff", b"\x00", (("", b""),), 3, 0),
    ]


def test_columns_are_records_one_by_one() -> None:
    assert len(COLUMNS) == 4
    assert list(COLUMNS) == expected()
    assert list(COLUMNS.records("orders", 3)) == expected("orders", 3)
    assert all(type(record) is Record for record in COLUMNS)
    assert list(COLUMNS.slice(1, 4).records("t", 0)) == expected("t", 0)[1:]
    assert [type(record.offset) for record in COLUMNS] == [int] * 4


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (1, 3), (2, 4), (3, 4), (4, 4)])
def test_a_slice_has_the_records_of_its_own_rows(start: int, stop: int) -> None:
    """Rows before it have headers, too."""
    assert list(COLUMNS.slice(start, stop)) == expected()[start:stop]


def test_columns_that_are_not_there_have_their_defaults() -> None:
    assert list(RecordColumns(length=2)) == [Record("", -1, -1, None, None)] * 2
    assert list(RecordColumns(length=0)) == []
    assert (
        list(RecordColumns(length=0, key=pa.array([], pa.binary()), headers=pa.array([], HEADERS_TYPE))) == []
    )


def test_header_keys_stay_bytes_where_they_are() -> None:
    headers = pa.array([[(b"\xff", b"1")]], HEADERS_AS_BYTES_TYPE)
    (record,) = RecordColumns(length=1, headers=headers)
    assert record.headers == ((b"\xff", b"1"),)


def test_columns_become_a_record_batch() -> None:
    batch = COLUMNS.to_arrow("orders", 3)
    assert batch.schema.names == [
        "key", "value", "headers", "topic", "partition", "offset", "timestamp", "timestamp_type"
    ]  # fmt: skip
    assert batch["topic"].to_pylist() == ["orders"] * 4
    assert (batch["partition"].type, batch["partition"].to_pylist()) == (pa.int32(), [3] * 4)
    assert batch["timestamp"].type == pa.timestamp("ms", "UTC")
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [0, None, 1_700_000_000_123, 3]
    assert batch["headers"].type == HEADERS_TYPE
    assert COLUMNS.slice(1, 3).to_arrow()["offset"].to_pylist() == [6, 8]
    assert RecordColumns(length=2, key=COLUMNS.key[:2]).to_arrow().schema.names == ["key"]
    assert RecordColumns(length=0).to_arrow().num_rows == 0


def test_more_rows_than_a_topic_column_has_are_refused() -> None:
    """Arrow would wrap its offsets, and show other text."""
    topic = "t" * 249
    rows = (2**31 - 1) // 249
    many = RecordColumns(length=rows + 1)
    with pytest.raises(ValueError, match=f"{rows + 1} rows .* do not fit in one column: at most {rows} do"):
        many.to_arrow(topic, 0)
    assert many.slice(0, 2).to_arrow(topic)["topic"].to_pylist() == [topic] * 2
    assert many.to_arrow(partition=3).num_rows == rows + 1


def test_a_record_says_when_and_where_it_is() -> None:
    record = expected("orders", 3)[2]
    assert record.topic_partition == TopicPartition("orders", 3)
    assert record.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert expected()[1].timestamp is None
    assert TimestampType(record.timestamp_type) is TimestampType.LOG_APPEND_TIME
    assert pickle.loads(pickle.dumps(record)) == record


def test_a_record_prints_for_people() -> None:
    record = Record("orders", 3, 17, b"k", b"x" * 100)
    assert repr(record) == f"<Record orders-3 offset 17: key b'k', value {b'x' * 40!r}... (100 bytes)>"
    assert repr(Record("orders", 3, 17, None, b"")) == "<Record orders-3 offset 17: key None, value b''>"


def test_a_record_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        expected()[0].offset = 1  # type: ignore[misc]


def test_bytes_of_fixed_size_that_end_behind_2_gib_have_large_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arrow's offsets count from the begin of the memory, not from that of a slice."""
    monkeypatch.setattr(columns, "_INT32_MAX", 10)
    column = pa.array([b"abc", b"def", b"ghi", b"jkl"], pa.binary(3))
    for start, stop, kind in [(0, 3, pa.binary()), (0, 4, pa.large_binary()), (3, 4, pa.large_binary())]:
        made = to_binary(column[start:stop])
        assert made is not None
        assert made.type == kind
        assert made.to_pylist() == column[start:stop].to_pylist()
