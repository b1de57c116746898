"""Buffer memory, statistics, columns that are handed over, and the contents of a delivery."""

import pickle
import time

import numpy as np
import pyarrow as pa
import pytest
from support.producer.sending_batches import batch

from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.model import Acks, TopicPartition
from spark_kafka_native.kafka.observe.metrics import Histogram
from spark_kafka_native.kafka.producer.accumulating.batch import Part, concat_columns, take_columns
from spark_kafka_native.kafka.producer.accumulating.records_in import columns_by_topic
from spark_kafka_native.kafka.producer.delivery import (
    ColumnsDelivery,
    Delivery,
    DeliveryBlock,
    Outcome,
    Waiters,
)
from spark_kafka_native.kafka.producer.errors import (
    BufferFullError,
    DeliveryError,
    DeliveryStatus,
    RecordError,
    RecordTooLargeError,
)
from spark_kafka_native.kafka.producer.stats import StatsRecorder
from spark_kafka_native.kafka.records.columns import HEADERS_TYPE, RecordColumns

TP = TopicPartition("t", 3)


@pytest.mark.parametrize(
    ("records", "head", "tail"),
    [
        (1, [("a", [4])], [("a", [5, 6]), ("b", [3, 7])]),
        (3, [("a", [4, 5, 6])], [("b", [3, 7])]),
        (4, [("a", [4, 5, 6]), ("b", [3])], [("b", [7])]),
    ],
)
def test_the_halves_of_a_batch_have_the_rows_of_their_own_records(records, head, tail):
    whole = batch(1, 5)
    whole.parts = [Part("a", np.array([0, 1, 2]), 4), Part("b", np.array([3, 7]), 0)]
    found = [
        [(part.block, (part.rows + part.first_row).tolist()) for part in half]
        for half in whole.divide_parts(records)
    ]
    assert found == [head, tail]


class TestStats:
    def test_quantiles_are_within_their_bucket(self):
        histogram = Histogram()
        for value in range(1, 10_001):
            histogram.add(value / 10)
        told = histogram.distribution()
        assert (told.count, told.max) == (10_000, 1000)
        assert told.mean == pytest.approx(500, rel=0.01)
        assert told.p50 == pytest.approx(500, rel=0.1)
        assert told.p99 == pytest.approx(990, rel=0.1)

    def test_nothing_measured_is_zero(self):
        assert Histogram().distribution().p99 == 0
        histogram = Histogram()
        histogram.add(0)
        assert histogram.distribution().p99 == 0

    def test_offsets_span_the_batches(self):
        stats = StatsRecorder()
        stats.delivered(TP, 10, 1000, 40)
        stats.delivered(TP, 5, 500, None)
        stats.delivered(TP, 5, 500, 20)
        told = stats.snapshot(0, 0).partitions[TP]
        assert (told.records, told.bytes, told.first_offset, told.last_offset) == (20, 2000, 20, 49)


class TestColumnInput:
    def test_columns_by_name(self):
        batch = pa.record_batch(
            {
                "other": [1, 2],
                "value": ["a", None],
                "key": [b"k", None],
                "partition": pa.array([3, None], pa.int32()),
                "timestamp": pa.array([1_500_999, None], pa.timestamp("us", "UTC")),
            }
        )
        (part,) = columns_by_topic(batch, "t")
        assert part.columns.value.to_pylist() == [b"a", None]
        assert part.partition.tolist() == [3, -1]
        assert part.columns.timestamp_ms[0] == 1_500
        assert abs(part.columns.timestamp_ms[1] - time.time() * 1000) < 10_000

    def test_rows_are_parted_by_topic_in_their_order(self):
        batch = pa.record_batch({"topic": ["b", "a", "b"], "value": ["1", "2", "3"]})
        parts = columns_by_topic(batch, None)
        assert [(p.topic, p.columns.value.to_pylist(), p.rows.tolist()) for p in parts] == [
            ("b", [b"1", b"3"], [0, 2]),
            ("a", [b"2"], [1]),
        ]

    def test_the_argument_goes_before_the_column(self):
        batch = pa.record_batch({"topic": ["b", None], "value": ["1", "2"], "partition": [0, 1]})
        (part,) = columns_by_topic(batch, "mine", 5)
        assert (part.topic, part.partition.tolist()) == ("mine", [5, 5])

    def test_tables_and_other_layouts(self):
        table = pa.table(
            {"value": pa.chunked_array([["a"], ["b"]]), "topic": pa.array(["t", "t"]).dictionary_encode()}
        )
        (part,) = columns_by_topic(table, None)
        assert part.columns.value.to_pylist() == [b"a", b"b"]
        fixed = pa.record_batch({"value": pa.array([b"abcd"], pa.binary(4)), "key": pa.nulls(1)})
        (part,) = columns_by_topic(fixed, "t")
        assert part.columns.value.to_pylist() == [b"abcd"]
        assert part.columns.key.null_count == 1

    @pytest.mark.parametrize(
        ("columns", "error", "message"),
        [
            ({"key": ["a"]}, TypeError, "'value' is needed"),
            ({"value": [1]}, TypeError, "'value' is int64"),
            ({"value": ["a"], "partition": [-1]}, RecordError, "row 0: partition -1"),
            ({"value": ["a"], "partition": ["x"]}, TypeError, "'partition' is string"),
            ({"value": ["a"], "timestamp": ["x"]}, TypeError, "'timestamp' is string"),
            ({"value": ["a", "b"], "timestamp": [5, -2]}, RecordError, "row 1: the timestamp -2"),
        ],
    )
    def test_what_can_not_be_sent_is_named(self, columns, error, message):
        with pytest.raises(error, match=message):
            columns_by_topic(pa.record_batch(columns), "t")

    def test_a_null_topic_and_a_null_header_key_have_a_row(self):
        with pytest.raises(RecordError, match="row 1: column 'topic' is null"):
            columns_by_topic(pa.record_batch({"topic": ["a", None], "value": ["1", "2"]}), None)
        headers = pa.array([None, [("a", b"")], [("b", None), (None, b"x")]], HEADERS_TYPE)
        with pytest.raises(RecordError, match="row 2: column 'headers' has a header with a null key"):
            columns_by_topic(pa.record_batch({"value": ["1", "2", "3"], "headers": headers}), "t")

    def test_no_topic(self):
        with pytest.raises(RecordError, match="no topic"):
            columns_by_topic(pa.record_batch({"value": ["a"]}), None)
        with pytest.raises(RecordError, match="no topic"):
            columns_by_topic(RecordColumns(length=0), None)


class TestGather:
    def test_parts_without_a_column_are_filled(self):
        first = RecordColumns(length=2, value=pa.array([b"a", b"b"]))
        second = RecordColumns(
            length=1, key=pa.array(["k"]), value=pa.array([b"c"]), timestamp_ms=np.array([5], np.int64)
        )
        whole = concat_columns([first, second], 9)
        assert whole.key.to_pylist() == [None, None, "k"]
        assert whole.timestamp_ms.tolist() == [9, 9, 5]
        assert whole.slice(1, 3).value.to_pylist() == [b"b", b"c"]
        assert take_columns(whole, np.array([2, 0])).key.to_pylist() == ["k", None]


class TestDelivery:
    def block(self, length):
        return DeliveryBlock(length, Waiters(), lambda: None)

    def test_rows_find_their_offsets(self):
        block = self.block(5)
        delivery = ColumnsDelivery(block)
        block.report(
            np.array([0, 3]),
            10,
            Outcome(topic_partition=TP, status=DeliveryStatus.PERSISTED, base_offset=100),
        )
        assert not delivery.done()
        assert Delivery(block, 3).result(0).offset == 111
        with pytest.raises(TimeoutError):
            Delivery(block, 1).result(0.01)
        other = TopicPartition("u", 1)
        block.report(
            np.array([1, 2, 4]),
            0,
            Outcome(topic_partition=other, status=DeliveryStatus.PERSISTED, base_offset=7),
        )
        columns = delivery.result(0)
        assert columns.offset.tolist() == [110, 7, 8, 111, 9]
        assert columns.partition.tolist() == [3, 1, 1, 3, 1]
        assert [columns.topics[i] for i in columns.topic] == ["t", "u", "u", "t", "u"]

    def test_the_first_failure_is_found(self):
        block = self.block(3)
        error = DeliveryError(TP, 2, DeliveryStatus.NOT_PERSISTED, "no", False)
        block.report(np.array([1, 2]), 0, Outcome(topic_partition=TP, status=error.status, error=error))
        assert ColumnsDelivery(block).first_failure() == (1, error)
        assert ColumnsDelivery(block).status().tolist() == [-1, 0, 0]
        with pytest.raises(DeliveryError):
            Delivery(block, 2).result(0)

    def test_callbacks_are_called_once_and_their_errors_are_logged(self, caplog):
        block, seen = self.block(2), []
        Delivery(block, 1).add_done_callback(lambda d: seen.append(d.result(0).offset))
        Delivery(block, 1).add_done_callback(lambda _: 1 / 0)
        block.report(
            np.array([0, 1]), 0, Outcome(topic_partition=TP, status=DeliveryStatus.PERSISTED, base_offset=5)
        )
        Delivery(block, 0).add_done_callback(lambda d: seen.append(d.result(0).offset))
        assert seen == [6, 5]
        assert "a delivery callback failed" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        RecordError("why", "t", 4),
        RecordTooLargeError.of("t", 4, 10, 5, "max.request.size"),
        DeliveryError(TP, 3, DeliveryStatus.POSSIBLY_PERSISTED, "why", True, True),
        BufferFullError("full"),
    ],
)
def test_errors_survive_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


class TestProducerConfig:
    def test_javas_names(self):
        config = ProducerConfig.from_properties(
            {
                "acks": "all",
                "compression.type": "ZSTD",
                "compression.zstd.level": "7",
                "batch.size": "16384",
                "linger.ms": "0",
                "max.in.flight.requests.per.connection": "1",
                "enable.idempotence": "false",
            }
        )
        assert (config.acks, config.compression_type, config.compression_level) == (Acks.ALL, "zstd", 7)
        assert (config.batch_size, config.linger_ms, config.max_in_flight, config.idempotent) == (
            16384,
            0,
            1,
            False,
        )

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("acks", "2", "acks must be all"),
            ("compression.type", "brotli", "must be one of none, gzip, snappy, lz4, zstd"),
            ("batch.size", "-1", "batch.size must be between 0"),
            ("linger.ms", "soon", "whole number"),
            ("max.request.size", "0", "at least 1"),
        ],
    )
    def test_wrong_values_are_named(self, name, value, message):
        with pytest.raises(ConfigError, match=message):
            ProducerConfig.from_properties({name: value})
