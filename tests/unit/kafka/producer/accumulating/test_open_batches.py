"""Records that came one by one become columns: pyarrow's own constructors are the oracle."""

import random

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.accumulating.batch import (
    BatchEncoder,
    Origin,
    max_record_sizes,
    read_records,
)
from spark_kafka_native.kafka.producer.accumulating.open_batches import (
    MAX_CHUNKS,
    BatchLimits,
    Chunk,
    Incoming,
    Move,
    OpenBatches,
    SingleRecords,
    WaitingRows,
)
from spark_kafka_native.kafka.producer.accumulating.partitioner import Targets, build_partitioner
from spark_kafka_native.kafka.producer.delivery import DeliveryBlock, Waiters
from spark_kafka_native.kafka.producer.errors import RecordError
from spark_kafka_native.kafka.records.columns import (
    HEADERS_TYPE,
    RecordColumns,
    build_binary,
    build_headers,
    build_index,
    wrap_numpy,
)


@pytest.mark.parametrize("seed", range(20))
def test_arrays_are_what_pyarrow_makes(seed):
    rng = random.Random(seed)
    n = rng.choice([0, 1, 7, 8, 9, 100])
    cells = [None if rng.random() < 0.3 else rng.randbytes(rng.choice([0, 1, 20])) for _ in range(n)]
    if seed % 2:
        cells = [cell or b"" for cell in cells]
    array = build_binary(cells)
    array.validate(full=True)
    assert array.equals(pa.array(cells, pa.binary()))
    assert array.null_count == cells.count(None)
    headers = [
        rng.choice([None, (), [(f"k{i}", rng.choice([None, b"", b"v"])) for i in range(rng.randrange(4))]])
        for _ in range(n)
    ]
    lists = build_headers(headers)
    lists.validate(full=True)
    assert lists.equals(pa.array([list(one or ()) for one in headers], HEADERS_TYPE))


def test_an_index_takes():
    taken = pa.array([b"a", b"b", b"c"]).take(build_index(np.array([2, 0])))
    assert taken.to_pylist() == [b"c", b"a"]


@pytest.mark.parametrize(
    "values",
    [np.zeros(4, np.int32), np.zeros(4, ">i8"), np.zeros((2, 2), np.int64), np.zeros(4, np.bool_)],
    ids=["too narrow", "another byte order", "two dimensions", "bytes for bits"],
)
def test_memory_of_another_shape_is_not_taken_for_an_array(values):
    with pytest.raises(TypeError, match="is no array of"):
        wrap_numpy(values, pa.bool_() if values.dtype == np.bool_ else pa.int64())


def test_memory_is_shared_where_it_is_contiguous_and_outlives_its_owner():
    values = np.arange(1000, dtype=np.int64)
    array = wrap_numpy(values, pa.timestamp("us"))
    strided = wrap_numpy(values[::2], pa.int64())
    values[0] = 7
    assert array.cast(pa.int64())[0].as_py() == 7
    assert strided.to_pylist() == list(range(0, 1000, 2))
    del values
    assert array.cast(pa.int64())[999].as_py() == 999
    assert wrap_numpy(np.array([], np.int32), pa.int32()).to_pylist() == []


def single(*records):
    found = SingleRecords(None, 0.0, 1)
    found.fields = [
        field for record in records for field in (*record, *(None, None, 9.75, None)[len(record) - 1 :])
    ]
    return found.columns()


def test_what_nobody_gave_is_no_column():
    columns, partition = single((None, b"a"), (None, b"b"))
    assert (columns.key, columns.headers, partition) == (None, None, None)
    assert columns.timestamp_ms.tolist() == [9, 9]
    assert columns.value.to_pylist() == [b"a", b"b"]
    columns, _ = single((b"k", None), (b"l", None))
    assert columns.value is None
    assert columns.length == 2


def test_what_is_empty_is_not_what_nobody_gave():
    """As null, values would delete their keys in a compacted topic."""
    columns, _ = single((b"", b""), (b"", b""))
    assert columns.key.to_pylist() == columns.value.to_pylist() == [b"", b""]


def test_what_only_some_gave_is_filled():
    columns, partition = single(
        (b"k", b"a", 3, 9.99, [("h", None)]), (None, None, None, 2**63 - 1, None), (b"", b"")
    )
    assert columns.key.to_pylist() == [b"k", None, b""]
    assert columns.value.to_pylist() == [b"a", None, b""]
    assert partition.tolist() == [3, -1, -1]
    assert partition.dtype == np.int32
    assert columns.timestamp_ms.tolist() == [9, 2**63 - 1, 9]
    assert columns.headers.to_pylist() == [[{"key": "h", "value": None}], [], []]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_key_and_a_value_among_nulls_are_kept_wherever_they_stand(place):
    records = [(None, None)] * 3
    records[place] = (b"k", b"v")
    columns, _ = single(*records)
    assert list(zip(columns.key.to_pylist(), columns.value.to_pylist(), strict=True)) == records


@pytest.mark.parametrize("how", ["lingered", "filled"])
def test_the_delivery_timeout_counts_from_the_first_record_that_waited(how):
    """From ``send()``, not from when its batch was closed."""
    rows = WaitingRows(TopicPartition("t", 0), BatchEncoder(ProducerConfig()))
    origin = Origin(DeliveryBlock(2, Waiters(), lambda: None))
    columns = RecordColumns(length=2, value=pa.array([b"one", b"two"], pa.binary()))
    for since in (5.0, 6.0):
        rows.hold(Chunk(columns, [origin.part(np.arange(2))], 60), since)
    if how == "lingered":
        batches = [rows.close_chunks(9.0)]
    else:
        limits = BatchLimits(size=150, records=5, direct=150)
        batches, _ = rows.cut(columns, np.arange(2), np.full(2, 30), origin, limits, 9.0)
    assert [batch.sending.since for batch in batches] == [5.0]


ORIGIN = Origin(DeliveryBlock(1_000, Waiters(), lambda: None))
WIDE = BatchLimits(size=100_000, records=1_000, direct=100_000)


def values_of(count):
    return RecordColumns(length=count, value=pa.array([b"%d" % i for i in range(count)], pa.binary()))


def waiting_rows(count, size):
    """Rows that wait, counted from 0, with ``size`` bytes together."""
    rows = WaitingRows(TopicPartition("t", 0), BatchEncoder(ProducerConfig()))
    rows.hold(Chunk(values_of(count), [ORIGIN.part(np.arange(count))], size), 0.0)
    return rows


@pytest.mark.parametrize(
    ("limits", "made"),
    [
        (BatchLimits(size=1_000, records=3, direct=1_000), [3, 3]),
        (BatchLimits(size=100, records=1_000, direct=100), [2, 1]),
    ],
    ids=["by number", "by size"],
)
def test_rows_that_wait_count_for_the_limits_of_their_batch(limits, made):
    rows = waiting_rows(2, 60)
    more = values_of(4)
    batches, taken = rows.cut(more, np.arange(4), np.full(4, 80), ORIGIN, limits, 1.0)
    assert [batch.records for batch in batches][:2] == made
    assert sum(batch.records for batch in batches) == 2 + taken
    assert sum(batch.reserved for batch in batches) == 60 + 80 * taken


@pytest.mark.parametrize(
    ("limits", "taken"),
    [
        (BatchLimits(size=1_000, records=3, direct=1_000), 1),
        (BatchLimits(size=1_000, records=4, direct=1_000), 0),
        (BatchLimits(size=1_000, records=1_000, direct=100), 1),
        (BatchLimits(size=1_000, records=1_000, direct=101), 0),
    ],
    ids=["full by number", "one less", "direct", "a byte less"],
)
def test_a_batch_that_is_full_with_the_rows_that_waited_does_not_linger(limits, taken):
    rows = waiting_rows(2, 60)
    batches, found = rows.cut(values_of(1), np.arange(1), np.full(1, 40), ORIGIN, limits, 1.0)
    assert (found, [batch.records for batch in batches]) == (taken, [3] * taken)


def test_a_batch_is_within_the_limit_of_the_topic():
    """Where it is lower than the configured size of a batch."""
    rows, columns = WaitingRows(TopicPartition("t", 0), BatchEncoder(ProducerConfig())), values_of(100)
    limits = BatchLimits.of(100_000, 1_000, 500)
    batches, _ = rows.cut(columns, np.arange(100), max_record_sizes(columns), ORIGIN, limits, 0.0)
    assert len(batches) > 1
    assert max(len(batch.data) for batch in batches) <= 500


def test_a_batch_that_could_not_be_encoded_has_a_place_of_its_own_between_the_others():
    orders = []
    rows = waiting_rows(1, 1)
    for columns in (values_of(1), RecordColumns(length=1, value=pa.array([7])), values_of(1)):
        rows.hold(Chunk(columns, [ORIGIN.part(np.arange(1))], 1), 0.0)
        batch = rows.close_chunks(0.0)
        orders.append((batch.order, batch.failure is not None))
    assert [failed for _, failed in orders] == [False, True, False]
    places = [place for place, _ in orders]
    assert places == sorted(set(places))


def test_batches_are_compressed_at_the_level_that_is_configured():
    columns = RecordColumns(length=1, value=pa.array([b" ".join(b"%d" % (i * i) for i in range(5_000))]))
    configs = [ProducerConfig(compression_type="gzip", compression_level=level) for level in (1, 9)]
    fast, small = (len(BatchEncoder(config).encode(columns, None, 0)) for config in configs)
    assert small < fast


def open_batches(partitions):
    found = OpenBatches("t", BatchEncoder(ProducerConfig()), build_partitioner("murmur2", 1_000))
    found.grow(partitions)
    return found


def append(batches, columns, partition, since=0.0, limits=WIDE):
    rows = Incoming(columns, max_record_sizes(columns), np.array(partition, np.int32), ORIGIN)
    move = Move()
    batches.append(move, rows, Targets.all("t", len(batches.partitions)), limits, since)
    return move.closed


def test_the_row_for_which_a_function_finds_no_partition_is_one_of_all_records():
    """Although it is asked about those that name none."""
    columns = values_of(5)
    choose = build_partitioner(lambda _topic, keys, count: np.array([0, count, 0][: len(keys)]), 1_000)
    batches = OpenBatches("t", BatchEncoder(ProducerConfig()), choose)
    batches.grow(2)
    with pytest.raises(RecordError, match="chose partition 2 of 2") as error:
        append(batches, columns, [1, -1, 0, -1, -1])
    assert error.value.row == 3
    assert batches.oldest is None


@pytest.mark.parametrize("times", [[5.0, 3.0, 4.0], [3.0, 4.0, 5.0], [5.0, 4.0, 3.0]])
def test_the_oldest_open_batch_of_any_partition_counts(times):
    """A flush waits while one is open that was begun before it."""
    batches = open_batches(3)
    assert batches.oldest is None
    for partition, since in enumerate(times):
        append(batches, values_of(1), [partition], since=since)
    for oldest in (3.0, 4.0, 5.0):
        assert batches.oldest == oldest
        batches.close(Move(), lambda rows, oldest=oldest: rows.opened_at == oldest, 9.0)
    assert batches.oldest is None


def test_records_that_waited_in_many_chunks_are_whole_in_one_batch():
    """More of them than are kept apart, those of two partitions in turn."""
    batches, sent = open_batches(2), []
    for call in range(2 * MAX_CHUNKS):
        row = (call, b"k%d" % call, b"v%d" % call, (("h", b"%d" % call),))
        sent.append(row)
        columns = RecordColumns(
            length=2,
            timestamp_ms=np.full(2, call, np.int64),
            key=pa.array([row[1]] * 2, pa.binary()),
            value=pa.array([row[2]] * 2, pa.binary()),
            headers=build_headers([row[3]] * 2),
        )
        assert append(batches, columns, [1, 0]) == []
        assert max(len(rows.chunks) for rows in batches.partitions) <= MAX_CHUNKS
    move = Move()
    batches.close(move, lambda _: True, 1.0)
    for batch in move.closed:
        records = read_records(batch).records("t")
        assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in records] == sent
        assert [int(row) for part in batch.parts for row in part.rows] == [
            1 - batch.topic_partition.partition
        ] * len(sent)


def test_only_the_batch_that_is_due_is_closed_and_a_move_puts_it_back():
    batches = open_batches(3)
    for partition, since in ((2, 7.0), (0, 5.0), (1, 6.0)):
        append(batches, values_of(1), [partition], since)
    assert batches.oldest == 5.0
    move = Move()
    batches.close(move, lambda rows: rows.opened_at <= 5.0, 8.0)
    assert [batch.topic_partition.partition for batch in move.closed] == [0]
    assert batches.oldest == 6.0
    move.put_back()
    assert batches.oldest == 5.0
    assert [len(rows.chunks) for rows in batches.partitions] == [1, 1, 1]
