"""Small pieces of many partitions become one batch: in order, none lost, none counted before Spark has it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_kafka_native.kafka.consumer.fetched_records import FetchedRecords
from spark_kafka_native.kafka.errors import EndOfLogError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.spark.read.offset_range import At, OffsetRange
from spark_kafka_native.spark.read.schema import RowSchema
from spark_kafka_native.spark.read.worker import arrow_rows, read_partition
from spark_kafka_native.spark.read.worker.arrow_rows import BatchCoalescer, RowLayout
from spark_kafka_native.spark.read.worker.offset_binding import BoundRange

SCHEMA = RowSchema.from_schema(StructType().add("partition", "integer").add("offset", "long", nullable=False))
BIG = arrow_rows.SMALL_ROWS + 1


def fetched(index, first, rows, until=None):
    return FetchedRecords(
        topic_partition=TopicPartition("t", index),
        columns=RecordColumns(length=rows, offset=np.arange(first, first + rows)),
        from_offset=first,
        next_offset=first + rows if until is None else until,
        log_start_offset=0,
        high_watermark=100_000,
        last_stable_offset=100_000,
    )


def bound(index, until=100_000):
    planned = OffsetRange(topic="t", partition=index, start=At(0), end=At(until))
    return BoundRange(planned=planned, position=0, until_offset=until)


@pytest.fixture
def fetch(monkeypatch):
    """What `RangeFetch` yields for these pieces, and after each batch how far the ranges have come."""

    def fetch(*pieces, error=None):
        def given():
            yield from pieces
            if error is not None:
                raise error
            yield None

        run = SimpleNamespace(next=given().__next__, add=lambda *_: None, broken=dict)
        monkeypatch.setattr(read_partition, "FetchRun", lambda *_arguments, **_options: run)
        left = {one.topic_partition: bound(one.topic_partition.partition) for one in pieces}
        task = SimpleNamespace(consumer=None, schema=SCHEMA)
        found, before = [], []
        try:
            for batch in read_partition.RangeFetch(None, task).read(left, {}):
                before.append({tp.partition: one.position for tp, one in left.items()})
                found.append([(row["partition"], row["offset"]) for row in batch.to_pylist()])
                assert batch.schema == SCHEMA.arrow
        except EndOfLogError:
            assert error is not None
        return found, before, {tp.partition: one.position for tp, one in left.items()}

    return fetch


def test_pieces_of_many_partitions_are_one_batch(fetch):
    found, before, after = fetch(*(fetched(index, 5, 2) for index in range(64)))
    assert found == [[(index, offset) for index in range(64) for offset in (5, 6)]]
    assert before == [dict.fromkeys(range(64), 0)]  # not counted before Spark has taken them
    assert after == dict.fromkeys(range(64), 7)


def test_pieces_of_one_partition_are_one_batch_and_the_last_says_how_far_it_is(fetch):
    found, _, after = fetch(fetched(0, 0, 2), fetched(1, 7, 1), fetched(0, 2, 3, until=9))
    assert found == [[(0, 0), (0, 1), (1, 7), (0, 2), (0, 3), (0, 4)]]
    assert after == {0: 9, 1: 8}


def test_what_is_large_goes_by_itself_and_behind_what_came_before_it(fetch):
    found, _, after = fetch(fetched(0, 0, 3), fetched(1, 0, 1), fetched(0, 3, BIG), fetched(0, 3 + BIG, 2))
    assert [len(batch) for batch in found] == [4, BIG, 2]
    assert [offset for batch in found for index, offset in batch if index == 0] == list(range(BIG + 5))
    assert after == {0: BIG + 5, 1: 1}


def test_what_was_small_before_does_not_set_a_partition_back(fetch):
    _, _, after = fetch(fetched(0, 0, 3), fetched(0, 3, BIG), fetched(1, 0, 2))
    assert after == {0: 3 + BIG, 1: 2}


def test_large_values_are_not_copied():
    value = pa.array([b"x" * (arrow_rows.SMALL_BYTES + 1)], pa.binary())
    large = fetched(0, 0, 1)
    object.__setattr__(large, "columns", RecordColumns(length=1, offset=np.arange(1), value=value))
    assert not arrow_rows.BatchCoalescer(RowLayout.of(SCHEMA)).add(large)


def test_joined_rows_have_a_bound(fetch):
    found, _, after = fetch(*(fetched(index, 0, 900) for index in range(30)))
    assert [len(batch) for batch in found] == [10_800, 10_800, 5_400]
    assert after == dict.fromkeys(range(30), 900)


def test_joined_bytes_have_a_bound_each_time(fetch):
    def heavy(index):
        one, value = fetched(index, 0, 1), pa.array([b"x" * 60_000], pa.binary())
        object.__setattr__(one, "columns", RecordColumns(length=1, offset=np.arange(1), value=value))
        return one

    found, _, after = fetch(*(heavy(index) for index in range(40)))
    assert [len(batch) for batch in found] == [18, 18, 4]
    assert after == dict.fromkeys(range(40), 1)


def test_an_error_finds_all_that_was_fetched_with_spark(fetch):
    error = EndOfLogError(TopicPartition("t", 0), 9, 12, 9)
    found, _, after = fetch(fetched(0, 0, 2), fetched(1, 4, 3), error=error)
    assert found == [[(0, 0), (0, 1), (1, 4), (1, 5), (1, 6)]]
    assert after == {0: 2, 1: 7}


def test_offsets_without_records_are_passed(fetch):
    found, _, after = fetch(fetched(0, 0, 0, until=50), fetched(1, 0, 0, until=9))
    assert (found, after) == ([], {0: 50, 1: 9})


def test_small_pieces_of_wide_rows_are_not_joined_beyond_the_limit():
    small = BatchCoalescer(replace(RowLayout.of(SCHEMA), max_rows=5))
    full = []
    for index in range(3):
        assert small.add(fetched(index, 0, 2))
        full.append(small.full)
    assert full == [False, False, True]
