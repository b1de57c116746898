"""Typed keys and values with the client: in, out, and what becomes of records that can't be decoded."""

from __future__ import annotations

import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import polars
import pyarrow as pa
import pytest

from spark_kafka_native.formats import ColumnFormat
from spark_kafka_native.kafka import (
    ConfigError,
    Consumer,
    GroupConsumer,
    MalformedRecordError,
    Producer,
    RecordColumns,
    RecordError,
    TopicPartition,
    TransactionalProducer,
    TypedRecords,
)

pytestmark = pytest.mark.broker
SECONDS = 60
ORDER = ColumnFormat("json", "id bigint, name string")
GOOD = [b'{"id":1,"name":"a"}', b'{"id":2,"name":"b"}', None, b'{"id":3,"name":"c"}']
BAD = b'{"id":"?","name":"x"}'


@pytest.fixture
def topic(kafka: Any) -> str:
    name = f"typed-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 1)
    return name


@pytest.fixture
def consumer(kafka: Any, topic: str) -> Iterator[Consumer]:
    with Consumer(kafka.bootstrap_servers, topic, start="earliest", partitions=[0]) as made:
        yield made


def write(kafka: Any, topic: str, values: list[bytes | None], keys: list[str | bytes] | None = None) -> None:
    """As one batch."""
    records = [
        {"value": value, "key": None if keys is None else keys[row]} for row, value in enumerate(values)
    ]
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send_many(topic, records, partition=0).result(SECONDS)


def read(consumer: Consumer, **settings: Any) -> TypedRecords:
    found = consumer.read_columns(SECONDS, **{"value_format": ORDER} | settings)
    assert isinstance(found, TypedRecords)
    return found


def test_values_and_keys_come_as_columns(kafka: Any, topic: str, consumer: Consumer) -> None:
    write(kafka, topic, GOOD, ["k1", "k2", "k3", "k4"])
    found = read(consumer, key_format="string")
    assert found.batch.schema.field("value").type == ORDER.type
    assert found.batch["value"].to_pylist() == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
        None,
        {"id": 3, "name": "c"},
    ]
    assert found.batch["key"].to_pylist() == ["k1", "k2", "k3", "k4"]
    assert found.batch["offset"].to_pylist() == [0, 1, 2, 3]
    assert (found.topic_partition, found.from_offset, found.next_offset) == (TopicPartition(topic, 0), 0, 4)
    assert (found.bad, found.high_watermark) == (0, 4)
    assert polars.from_arrow(found.batch).height == 4  # type: ignore[union-attr]
    assert consumer.position() == 4


def test_a_bad_record_is_raised_after_those_before_it_until_it_is_passed(
    kafka: Any, topic: str, consumer: Consumer
) -> None:
    write(kafka, topic, [*GOOD, BAD, GOOD[0]])
    found = read(consumer)
    assert (found.batch.num_rows, found.next_offset, consumer.position()) == (4, 4, 4)
    for _ in range(2):
        with pytest.raises(
            MalformedRecordError, match=f"{topic}-0 at offset 4: the value can't be decoded: `id` is not"
        ) as raised:
            read(consumer)
        assert consumer.position() == 4
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.topic_partition, error.offset) == (TopicPartition(topic, 0), 4)
    consumer.seek(error.offset + 1, error.topic_partition)
    assert read(consumer).batch["offset"].to_pylist() == [5]


def test_bad_records_are_shown_or_left_out(kafka: Any, topic: str, consumer: Consumer) -> None:
    write(kafka, topic, [BAD, GOOD[0], BAD])
    shown = read(consumer, mode="permissive")
    assert shown.bad == 2
    assert shown.batch["value"].to_pylist()[:2] == [{"id": None, "name": "x"}, {"id": 1, "name": "a"}]
    assert shown.batch["_corrupt_record"].to_pylist() == [BAD, None, BAD]
    assert [text is None for text in shown.batch["_error"].to_pylist()] == [False, True, False]
    consumer.seek("earliest")
    left = read(consumer, mode="dropmalformed")
    assert (left.batch["offset"].to_pylist(), left.bad, left.next_offset) == ([1], 2, 3)
    consumer.seek("earliest")
    plain = consumer.read_columns(SECONDS)
    assert plain is not None
    assert plain.columns.value is not None
    assert plain.columns.value.to_pylist() == [BAD, GOOD[0], BAD]


def test_what_can_be_wrong_with_a_format(kafka: Any, topic: str, consumer: Consumer) -> None:
    with pytest.raises(ConfigError, match="value_format=jsn: There is no format 'jsn'"):
        read(consumer, value_format="jsn")
    with pytest.raises(ConfigError, match="mode is failfast, permissive, dropmalformed, not 'dlq'"):
        read(consumer, mode="dlq")
    write(kafka, topic, GOOD)
    with pytest.raises(ConfigError, match="value_format=json: a schema is needed"):
        read(consumer, value_format="json")
    with pytest.raises(ConfigError, match="value_format=json: JSON needs a struct, not int64"):
        read(consumer, value_format=ColumnFormat("json", "bigint"))
    assert read(consumer).from_offset == 0  # nothing was passed over meanwhile
    with (
        Consumer(kafka.bootstrap_servers, topic, start="earliest", columns=["key"]) as keys,
        pytest.raises(ConfigError, match="reads no values"),
    ):
        read(keys)


def test_a_partition_that_is_moved_while_its_records_are_decoded_stays_where_it_was_moved(
    kafka: Any, topic: str, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kafka, topic, [*GOOD, BAD])
    first = read(consumer)
    assert first.next_offset == 4
    from spark_kafka_native.kafka.consumer.typed_records import RecordTyping

    decode = RecordTyping.decode

    def moved_meanwhile(typing: RecordTyping, fetched: Any) -> Any:
        consumer.reader.seek(TopicPartition(topic, 0), 1)  # as another thread may
        return decode(typing, fetched)

    monkeypatch.setattr(RecordTyping, "decode", moved_meanwhile)
    with pytest.raises(MalformedRecordError):
        read(consumer)
    monkeypatch.undo()
    assert consumer.position() == 1
    assert read(consumer).batch["offset"].to_pylist() == [1, 2, 3]


def test_an_interrupt_while_records_are_decoded_loses_none(
    kafka: Any, topic: str, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kafka, topic, GOOD)
    from spark_kafka_native.kafka.consumer.typed_records import RecordTyping

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(RecordTyping, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(consumer)
    monkeypatch.undo()
    assert consumer.position() == 0
    assert read(consumer).batch.num_rows == 4


def test_an_interrupt_after_the_rest_was_put_back_doubles_none(
    kafka: Any, topic: str, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kafka, topic, [*GOOD, BAD])
    buffer = consumer.reader.buffer
    give_back = buffer.give_back

    def interrupted(*given: Any) -> None:
        give_back(*given)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(buffer, "give_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(consumer)
    assert consumer.position() == 0
    assert read(consumer, mode="permissive").batch["offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert consumer.read_columns(0.3) is None


def test_a_group_commits_nothing_that_could_not_be_decoded(kafka: Any, topic: str) -> None:
    write(kafka, topic, [*GOOD, BAD, GOOD[0]])
    partition = TopicPartition(topic, 0)
    group = f"typed-{uuid.uuid4().hex[:8]}"
    with GroupConsumer(kafka.bootstrap_servers, topic, group, auto_offset_reset="earliest") as member:
        found = member.read(SECONDS, value_format=ORDER)
        assert found is not None
        assert found.next_offset == 4
        with pytest.raises(MalformedRecordError):
            member.read(SECONDS, value_format=ORDER)
        assert member.position(partition) == 4
    with GroupConsumer(kafka.bootstrap_servers, topic, group) as member:
        with pytest.raises(MalformedRecordError, match="at offset 4"):
            member.read(SECONDS, value_format=ORDER)
        assert member.committed(partition) == {partition: 4}
        shown = member.read(SECONDS, value_format=ORDER, mode="permissive")
        assert shown is not None
        assert (shown.bad, shown.batch["offset"].to_pylist()) == (1, [4, 5])
        member.commit()
        assert member.committed(partition) == {partition: 6}


def test_columns_go_in_as_they_are(kafka: Any, topic: str, consumer: Consumer) -> None:
    rows = [{"id": 1, "name": "a"}, None, {"id": 2, "name": None}]
    table = pa.table({"key": pa.array([1, 2, None]), "value": pa.array(rows)})
    frame = polars.DataFrame({"value": [{"id": 9, "name": "x"}]})
    ids = ColumnFormat("json", "k bigint")
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send_columns(table.drop("key"), topic, 0, value_format="json").result(SECONDS)
        producer.send_columns(frame, topic, 0, value_format=ORDER).result(SECONDS)
        columns = RecordColumns(length=1, value=pa.array([{"id": 7}]), key=pa.array([{"k": 1}]))
        producer.send_columns(columns, topic, 0, value_format="json", key_format=ids).result(SECONDS)
    got: list[Any] = []
    while len(got) < 5:
        fetched = consumer.read_columns(SECONDS)
        assert fetched is not None
        got += [(record.key, record.value) for record in fetched.columns]
    assert got == [
        (None, b'{"id":1,"name":"a"}'),
        (None, None),
        (None, b'{"id":2}'),
        (None, b'{"id":9,"name":"x"}'),
        (b'{"k":1}', b'{"id":7}'),
    ]


def test_a_row_that_can_t_be_written_is_named_and_nothing_is_taken(kafka: Any, topic: str) -> None:
    values = pa.table({"value": [{"id": 1}]})
    with Producer(kafka.bootstrap_servers) as producer:
        with pytest.raises(
            ConfigError, match=r"value_format=json: the rows are struct<id: int64>, and the sch"
        ):
            producer.send_columns(values, topic, value_format=ORDER)
        with pytest.raises(ConfigError, match="value_format=string: The format 'string' has the type string"):
            producer.send_columns(values, topic, value_format="string")
        with pytest.raises(RecordError, match="key_format: there are 0 columns 'key' among value"):
            producer.send_columns(values, topic, value_format="json", key_format="string")
        assert producer.stats().records == 0


def test_typed_columns_in_a_transaction(kafka: Any, topic: str, consumer: Consumer) -> None:
    values = pa.table({"value": [{"id": 1, "name": "a"}]})
    with (
        TransactionalProducer(kafka.bootstrap_servers, f"typed-{topic}") as producer,
        producer.transaction(),
    ):
        producer.send_columns(values, topic, 0, value_format="json")
    assert read(consumer).batch["value"].to_pylist() == [{"id": 1, "name": "a"}]


def test_a_consumer_of_bytes_loads_no_format() -> None:
    code = (
        "import sys; from spark_kafka_native.kafka import Consumer, GroupConsumer, Producer; "
        "print([name for name in sys.modules if 'spark_kafka_native.formats' in name])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
