"""Slices of a call: all rows in order, each slice small enough that several fit into the buffer."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.producer.accumulating.batch import BatchEncoder, max_record_sizes
from spark_kafka_native.kafka.producer.accumulating.records_in import TopicColumns
from spark_kafka_native.kafka.producer.accumulating.topic_buffer import TopicLimits
from spark_kafka_native.kafka.producer.accumulating.topics import slice_rows
from spark_kafka_native.kafka.producer.errors import RecordError
from spark_kafka_native.kafka.records.columns import RecordColumns


def slices(sizes, rows=None, **config):
    n = len(sizes)
    columns = RecordColumns(length=n, value=pa.array([b"%d" % i for i in range(n)], pa.binary()))
    part = TopicColumns(topic="t", columns=columns, partition=np.arange(n, dtype=np.int32), rows=rows)
    return list(slice_rows(None, part, np.array(sizes), None, ProducerConfig(**config)))


@pytest.mark.parametrize(
    ("sizes", "config", "expected"),
    [
        ([10] * 10, {"buffer_memory": 160}, [4, 4, 2]),
        ([10] * 10, {"buffer_memory": 159}, [3, 3, 3, 1]),
        ([10] * 10, {"max_buffered_records": 8}, [2] * 5),
        ([10] * 3, {"max_buffered_records": 1}, [1] * 3),
        ([100, 1, 1, 100], {"buffer_memory": 100}, [1, 2, 1]),
        ([8 << 20] * 2, {"buffer_memory": 1 << 30}, [1, 1]),
        ([4 << 20] * 4, {"buffer_memory": 1 << 30}, [2, 2]),
        ([], {}, []),
    ],
)
def test_they_are_small_enough(sizes, config, expected):
    found = slices(sizes, **config)
    assert [len(one.sizes) for one in found] == expected
    assert [one.size for one in found] == [int(one.sizes.sum()) for one in found]
    assert [v for one in found for v in one.columns.value.to_pylist()] == [
        b"%d" % i for i in range(len(sizes))
    ]
    assert [p for one in found for p in one.partition] == list(range(len(sizes)))
    assert [r for one in found for r in one.rows] == list(range(len(sizes)))


def test_rows_are_those_of_what_was_handed_over():
    numbers = np.array([1, 4, 9, 16, 25])
    found = slices([10] * 5, rows=numbers, max_buffered_records=8)
    assert [one.rows.tolist() for one in found] == [[1, 4], [9, 16], [25]]
    assert [one.origin.part(np.array([0])).rows.tolist() for one in found] == [[1], [9], [25]]
    assert found[1].located(RecordError("why", "t", 1)).row == 16
    assert found[1].located(RecordError("why", "t")).row is None
    (_, second, _) = slices([10] * 5, max_buffered_records=8)
    assert second.located(RecordError("why", "t", 1)).row == 3
    part = second.origin.part(np.array([0, 1]))
    assert (part.rows + part.first_row).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("compression", "own", "limit", "name"),
    [
        ("none", None, 1_000, "the topic's max.message.bytes"),
        ("none", 5_000, 1_000, "the topic's max.message.bytes"),
        ("none", 500, 500, "max.request.size"),
        ("gzip", 500, 500, "max.request.size"),
        ("gzip", 5_000, 5_000, "max.request.size"),
        ("gzip", None, None, None),
    ],
)
def test_which_limit_a_record_is_over(compression, own, limit, name):
    """Only uncompressed ones are certain not to fit their topic."""
    config = ProducerConfig(compression_type=compression, max_request_size=own)
    parts = SimpleNamespace(config=config, encoder=BatchEncoder(config), clock=lambda: 0.0)
    columns = RecordColumns(length=2, value=pa.array([b"x", bytes(6_000)], pa.binary()))
    found = list(TopicLimits.of("t", 1_000, parts).too_large(columns, max_record_sizes(columns)))
    assert [(one.row, one.limit, one.limit_name) for one in found] == (
        [] if limit is None else [(1, limit, name)]
    )
