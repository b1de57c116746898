"""What a task reports of records that it can't decode, and what it hands to a dead-letter topic."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_kafka_native.formats import BadRows, Decoded
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.payload_formats import LetterOptions, ReadFormats
from spark_kafka_native.spark.read.read_options import ReadOptions, StreamOptions
from spark_kafka_native.spark.read.schema import RowSchema
from spark_kafka_native.spark.read.worker import dead_letters
from spark_kafka_native.spark.read.worker.arrow_rows import RowLayout
from spark_kafka_native.spark.read.worker.bad_record_handler import BadRecordHandler, UndecodedRecord
from spark_kafka_native.spark.read.worker.dead_letters import _digest

GOOD, BAD = b'{"id":1}', b'{"id":"x"}'
T, U = TopicPartition("t", 0), TopicPartition("u", 1)


def columns(*values: bytes | None, first: int = 100) -> RecordColumns:
    return RecordColumns(
        length=len(values),
        offset=np.arange(first, first + len(values)),
        timestamp_ms=np.zeros(len(values), np.int64),
        key=pa.array([None] * len(values), pa.binary()),
        value=pa.array(values, pa.binary()),
    )


def schema(mode: str, key: str | None = None, **options: str) -> RowSchema:
    given = {"value.format": "json", "value.schema": "id bigint", "mode": mode, **options}
    formats = ReadFormats.parse(OptionValues.parse(given, Scope.STREAM))
    value = StructType().add("id", "long")
    wanted = StructType().add("value", value).add("offset", "long")
    return RowSchema.from_schema(wanted if key is None else wanted.add("key", key), formats)


class Box:
    """Keeps letters."""

    def __init__(self) -> None:
        self.letters: list[tuple[TopicPartition, int, bytes | None]] = []

    def send(
        self, topic_partition: TopicPartition, bad: list[UndecodedRecord], records: RecordColumns
    ) -> None:
        values: Any = records.value
        self.letters += [(topic_partition, one.offset, values[one.row].as_py()) for one in bad]


class Seen:
    """Keeps the bad records that letters are made of."""

    def __init__(self) -> None:
        self.bad: list[UndecodedRecord] = []

    def send(self, _tp: TopicPartition, bad: list[UndecodedRecord], _records: RecordColumns) -> None:
        self.bad.extend(bad)


def test_letters_of_joined_partitions_have_their_own_place() -> None:
    box = Box()
    layout = RowLayout.of(schema("dlq", **{"dlq.topic": "d"}), BadRecordHandler(box))
    assert layout.record_fields == {"key", "value", "headers", "timestamp_ms", "offset"}
    rows = layout.join([(columns(BAD, GOOD), T), (columns(GOOD, BAD, b"", first=5), U), (columns(BAD), T)])
    assert rows.column("offset").to_pylist() == [101, 5, 7]
    assert box.letters == [(T, 100, BAD), (T, 100, BAD), (U, 6, BAD)]


def test_columns_beside_the_decoded_ones_are_fetched_too() -> None:
    value = StructType().add("id", "long")
    formats = ReadFormats.parse(OptionValues.parse({"value.format": "json"}, Scope.STREAM))
    wanted = StructType().add("key", "binary").add("value", value).add("timestamp", "timestamp")
    assert RowLayout.of(RowSchema.from_schema(wanted, formats)).record_fields == {
        "key", "value", "timestamp_ms", "offset",
    }  # fmt: skip


def test_each_bad_record_has_its_letter_however_many_there_are() -> None:
    box = Box()
    layout = RowLayout.of(schema("dlq", **{"dlq.topic": "d"}), BadRecordHandler(box))
    layout.to_record_batch(columns(*[BAD] * 50), T)
    assert [offset for _, offset, _ in box.letters] == list(range(100, 150))


def test_a_record_with_a_bad_key_and_a_bad_value_has_one_letter() -> None:
    wanted = schema("dlq", **{"dlq.topic": "d", "key.format": "string"}, key="string")
    records = replace(columns(BAD, GOOD, GOOD), key=pa.array([b"\xff", b"\xff", None], pa.binary()))
    seen = Seen()
    rows = RowLayout.of(wanted, BadRecordHandler(seen)).to_record_batch(records, T)
    assert rows.column("offset").to_pylist() == [102]
    assert [(one.offset, one.stages) for one in seen.bad] == [(100, ("key", "value")), (101, ("key",))]
    assert seen.bad[0].reason.count("can't be decoded") == 2


def test_a_letter_is_known_as_one_of_a_record_that_another_attempt_may_decode() -> None:
    class Behind:
        """Knows the schema of all records but the last."""

        type = pa.struct([("id", pa.int64())])

        def decode(self, payloads: pa.Array) -> Decoded:
            bad = BadRows(rows=(0, 2), reasons=("broken", "not known yet"), passing=(2,))
            return Decoded(array=pa.nulls(len(payloads), self.type), bad=bad)

    seen = Seen()
    layout = RowLayout.of(schema("dlq", **{"dlq.topic": "d"}), BadRecordHandler(seen))
    assert layout.decoded is not None
    replace(layout, decoded=replace(layout.decoded, decoders=(Behind(),))).to_record_batch(
        columns(BAD, GOOD, GOOD), T
    )
    assert [(one.offset, one.is_passing) for one in seen.bad] == [(100, False), (102, True)]


def test_rows_are_not_handed_on_before_their_letters_are_stored() -> None:
    class Full:
        def send(self, *_: object) -> None:
            raise ConfigError("full")

    layout = RowLayout.of(schema("dlq", **{"dlq.topic": "d"}), BadRecordHandler(Full()))
    with pytest.raises(ConfigError, match="full"):
        layout.to_record_batch(columns(BAD, GOOD), T)


@pytest.mark.parametrize("mode", ["permissive", "dropmalformed"])
def test_one_line_for_a_task_says_how_many_were_bad(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    bad = BadRecordHandler()
    layout = RowLayout.of(schema(mode), bad)
    for _ in range(2):
        layout.to_record_batch(columns(*[BAD] * 600), T)
    layout.to_record_batch(columns(GOOD, BAD), U)
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        bad.log(mode)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"mode={mode}: 1,201 records of this task can't be decoded (t-0: 1,200, u-1: 1). ")
    assert line.count("the value can't be decoded: `id` is not an integer") == 3
    assert "t-0 at offset 100:" in line


def test_a_task_without_bad_records_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bad = BadRecordHandler()
    RowLayout.of(schema("permissive"), bad).to_record_batch(columns(GOOD, None), T)
    bad.log("permissive")
    assert not caplog.records


def test_the_line_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    bad = BadRecordHandler()
    layout = RowLayout.of(schema("permissive"), bad)
    for partition in range(500):
        layout.to_record_batch(columns(b"x" * 100_000), TopicPartition("t", partition))
    bad.log("permissive")
    assert len(caplog.text) < 2_000
    assert "and 480 more partitions" in caplog.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "dlq"}, r"mode=dlq needs dlq\.topic"),
        ({"dlq.topic": "d"}, r"'dlq\.topic' has no effect without mode=dlq"),
        ({"mode": "dlq", "dlq.topic": "d", "transactionalIdPrefix": " "}, "must not be empty"),
        (
            {"mode": "dlq", "dlq.topic": "d", "minPartitions": "4"},
            "mode=dlq can't be had with minPartitions or",
        ),
        ({"mode": "dlq", "dlq.topic": "d", "maxRecordsPerPartition": "4"}, "mode=dlq can't be had with"),
    ],
)
def test_options_that_can_not_be(options: dict[str, str], text: str) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "value.format": "string", **options}
    with pytest.raises(ConfigError, match=text):
        StreamOptions.parse(OptionValues.parse(given, Scope.STREAM))


def test_a_batch_has_no_dead_letters() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "value.format": "string", "mode": "dlq"}
    values = OptionValues.parse(given | {"dlq.topic": "d"}, Scope.READ)
    with pytest.raises(ConfigError, match="mode=dlq is for streams"):
        ReadOptions.for_batch(values)


def test_the_prefix_of_names_is_an_option() -> None:
    letters = schema("dlq", **{"dlq.topic": " d ", "transactionalIdPrefix": "team"}).letters
    assert letters == LetterOptions(topic="d", prefix="team")


def test_another_way_of_decoding_has_markers_of_its_own_and_another_password_has_not() -> None:
    plain = {"dlq.topic": "d"}
    one = plain | {"registry.url": "https://r,https://s", "registry.user": "me", "registry.password": "x"}
    same = one | {"registry.password": "y"}
    assert _digest(schema("dlq", **one)) == _digest(schema("dlq", **same))
    others = (plain, one | {"registry.url": "https://r"}, one | {"value.timeZone": "Asia/Tokyo"})
    assert len({_digest(schema("dlq", **other)) for other in (one, *others)}) == 4


def test_another_version_has_markers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that one can decode may be bad to the other."""
    before = _digest(schema("dlq", **{"dlq.topic": "d"}))
    monkeypatch.setattr(dead_letters, "__version__", "0.0.0")
    assert _digest(schema("dlq", **{"dlq.topic": "d"})) != before


def test_another_type_or_value_of_a_setting_is_another_way_of_decoding() -> None:
    """A record that one can decode may be bad to the other."""
    zones = [schema("dlq", **{"dlq.topic": "d", "value.timeZone": zone}) for zone in ("Asia/Tokyo", "UTC")]
    (payload,) = zones[0].decoded
    narrow = replace(payload, kind=pa.struct([("id", pa.int32())]))
    assert len({_digest(one) for one in (*zones, replace(zones[0], decoded=(narrow,)))}) == 3


def test_another_topic_for_letters_has_markers_of_its_own() -> None:
    assert _digest(schema("dlq", **{"dlq.topic": "d"})) != _digest(schema("dlq", **{"dlq.topic": "e"}))
