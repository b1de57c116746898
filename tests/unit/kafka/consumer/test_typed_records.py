"""Decoded records of a `Consumer`, and those that can't be decoded."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.http_server import Asked, serving

from spark_kafka_native.formats import ColumnFormat
from spark_kafka_native.formats.registry import frame_id
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.consumer.fetched_records import FetchedRecords
from spark_kafka_native.kafka.consumer.typed_records import RecordTyping
from spark_kafka_native.kafka.errors import ConfigError, MalformedRecordError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.kafka.records import columns
from spark_kafka_native.testing import MockBroker

BAD = b"\xff"
WITHIN_S = 60


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    """Of one partition. Its third record is no text."""
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[TopicPartition("a", 0)].append([b"0", b"1", BAD, b"3"])
        with Consumer(cluster.bootstrap_servers, "a", start="earliest") as consumer:
            yield consumer


def test_failfast_gives_the_records_before_a_bad_one_and_stays_there(consumer: Consumer) -> None:
    found = consumer.read_columns(WITHIN_S, value_format="string")
    assert found is not None
    assert found.batch["value"].to_pylist() == ["0", "1"]
    assert found.batch["offset"].to_pylist() == [0, 1]
    assert (found.from_offset, found.next_offset, found.bad) == (0, 2, 0)
    assert consumer.position() == 2
    for _ in range(2):
        with pytest.raises(MalformedRecordError, match="a-0 at offset 2"):
            consumer.read_columns(WITHIN_S, value_format="string")
        assert consumer.position() == 2
    plain = consumer.read_columns(WITHIN_S)
    assert plain is not None
    assert (plain.from_offset, plain.next_offset, plain.columns.length) == (2, 4, 2)
    consumer.seek(3)
    rest = consumer.read_columns(WITHIN_S, value_format="string")
    assert rest is not None
    assert (rest.batch["value"].to_pylist(), rest.from_offset, rest.next_offset) == (["3"], 3, 4)


def test_a_bad_record_behind_a_gap_is_named_by_its_own_offset() -> None:
    with MockBroker() as broker:
        broker.create_topic("a")
        with TransactionalProducer(broker.bootstrap_servers, "x") as producer, producer.transaction():
            producer.send("a", b"0")
        broker.append("a", [BAD, b"3"])  # behind the marker
        with Consumer(broker.bootstrap_servers, "a", start=1) as consumer:
            with pytest.raises(MalformedRecordError, match="a-0 at offset 2") as caught:
                consumer.read_columns(WITHIN_S, value_format="string")
            assert caught.value.offset == 2
            consumer.seek(caught.value.offset + 1)
            found = consumer.read_columns(WITHIN_S, value_format="string")
            assert found is not None
            assert found.batch["value"].to_pylist() == ["3"]


def test_keys_are_decoded_where_values_are_not() -> None:
    with MockBroker() as broker:
        broker.create_topic("a")
        with Producer(broker.bootstrap_servers) as producer:
            producer.send("a", value="v", key="k").result(WITHIN_S)
        with Consumer(broker.bootstrap_servers, "a", start="earliest") as consumer:
            found = consumer.read_columns(WITHIN_S, key_format="string")
            assert found is not None
            assert found.batch.to_pylist()[0]["key"] == "k"
            assert found.batch.to_pylist()[0]["value"] == b"v"
            consumer.seek(0)
            with pytest.raises(ConfigError, match="value_format=avro: "):
                consumer.read_columns(WITHIN_S, value_format="avro")


@pytest.mark.parametrize(
    ("mode", "offsets", "values"),
    [("permissive", [0, 1, 2, 3], ["0", "1", None, "3"]), ("dropmalformed", [0, 1, 3], ["0", "1", "3"])],
)
def test_the_other_modes_count_a_bad_record_and_go_on(
    consumer: Consumer, mode: str, offsets: list[int], values: list[str | None]
) -> None:
    found = consumer.read_columns(WITHIN_S, value_format="string", mode=mode)
    assert found is not None
    assert (found.batch["offset"].to_pylist(), found.batch["value"].to_pylist()) == (offsets, values)
    assert (found.from_offset, found.next_offset, found.bad, consumer.position()) == (0, 4, 1, 4)
    if mode == "permissive":
        assert found.batch["_corrupt_record"].to_pylist() == [None, None, BAD, None]
        reasons = found.batch["_error"].to_pylist()
        assert [reason is None for reason in reasons] == [True, True, False, True]


def test_each_read_goes_by_its_own_arguments(consumer: Consumer) -> None:
    """A consumer keeps the decoders of the last read."""

    def values(**given: Any) -> list[Any]:
        consumer.seek(0)
        found: Any = consumer.read_columns(WITHIN_S, **given)
        values: list[Any] = found.batch["value"].to_pylist()
        return values

    for _ in range(2):
        assert values(value_format="string") == ["0", "1"]
        assert values(value_format="string", mode="permissive") == ["0", "1", None, "3"]
        assert values(value_format="string", mode="dropmalformed") == ["0", "1", "3"]
        assert values(key_format="string", mode="dropmalformed") == [b"0", b"1", BAD, b"3"]


def test_each_topic_has_a_decoder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their schemas may differ in a registry."""
    asked: list[str | None] = []
    decoder = ColumnFormat.decoder

    def look_up(given: ColumnFormat, payload: str, topic: str | None) -> Any:
        asked.append(topic)
        return decoder(given, payload, topic)

    monkeypatch.setattr(ColumnFormat, "decoder", look_up)
    with ScriptedCluster(1) as cluster:
        for topic in ("a", "b"):
            cluster.create(topic)
            cluster.logs[TopicPartition(topic, 0)].append([topic.encode()])
        with Consumer(cluster.bootstrap_servers, ["a", "b"], start="earliest") as consumer:
            found = [consumer.read_columns(WITHIN_S, value_format="string") for _ in range(2)]
            for tp, log in cluster.logs.items():
                log.append([tp.topic.encode()])
            found += [consumer.read_columns(WITHIN_S, value_format="string") for _ in range(2)]
    assert sorted(one.batch["value"].to_pylist() for one in found if one is not None) == [
        ["a"],
        ["a"],
        ["b"],
        ["b"],
    ]
    assert sorted(map(str, asked)) == ["a", "b"], "once each, as a registry may be asked"


def test_offsets_without_records_are_passed() -> None:
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", [b"0", b"1"])
        with (
            TransactionalProducer(broker.bootstrap_servers, "x") as producer,
            producer.transaction(),
        ):
            producer.send("a", b"2")
        with Consumer(broker.bootstrap_servers, "a", start="earliest") as consumer:
            while consumer.position() != 4:  # behind the marker
                found = consumer.read_columns(WITHIN_S, value_format="string")
                assert found is not None
    assert found.next_offset == 4


def test_a_token_that_was_replaced_in_its_file(tmp_path: Path) -> None:
    """A consumer outlives the token of a registry: a new schema came, and was refused for ever."""
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]})
    valid, requests = ["one"], list[str]()

    def answer(asked: Asked) -> tuple[int, dict[str, str], Any]:
        requests.append(asked.path)
        if asked.headers.get("Authorization") != f"Bearer {valid[0]}":
            return 401, {}, {"error_code": 401, "message": "Unauthorized"}
        return 200, {}, {"schema": schema, "id": 1, "version": 1}

    token = tmp_path / "token"
    token.write_text("one")
    with serving(answer) as served, ScriptedCluster(1) as cluster:
        cluster.create("a")
        log = cluster.logs[TopicPartition("a", 0)]
        settings = {"registry.url": served.url, "registry.token": f"file:{token}"}
        avro = ColumnFormat("avro", pa.struct([("id", pa.int64())]), settings)
        with (
            Consumer(cluster.bootstrap_servers, "a", start="earliest") as consumer,
            Consumer(cluster.bootstrap_servers, "a", start="earliest") as other,
        ):

            def ids(reader: Consumer) -> list[Any]:
                found = reader.read_columns(WITHIN_S, value_format=avro)
                assert found is not None
                return [row["id"] for row in found.batch["value"].to_pylist()]

            log.append([b"\0\0\0\0\1\2"])
            assert (ids(consumer), ids(other)) == ([1], [1])
            for id, renewed, reader in ((2, "two", consumer), (3, "three", other)):
                valid[0] = renewed
                log.append([bytes([0, 0, 0, 0, id, 2 * id])])
                with pytest.raises(ConfigError, match="HTTP status 401"):
                    ids(reader)
                token.write_text(renewed)
                assert ids(consumer) == [id]
                assert ids(other) == [id]
            valid[0] = "four"
            log.append([b"\0\0\0\0\4\2"])
            before = len(requests)
            with pytest.raises(ConfigError, match="HTTP status 401"):
                ids(consumer)
            assert len(requests) == before + 1, "the file still has the token that was refused"


def _fetched(topic: str, key_id: int, value_id: int) -> FetchedRecords:
    """One record, key and value of which are the number 1 in Avro, under these schemas."""
    key, value = (pa.array([frame_id(id) + b"\2"], pa.binary()) for id in (key_id, value_id))
    headers = pa.nulls(1, columns.HEADERS_TYPE)
    return FetchedRecords(
        topic_partition=TopicPartition(topic, 0),
        columns=columns.RecordColumns(length=1, offset=np.array([0]), key=key, value=value, headers=headers),
        from_offset=0,
        next_offset=1,
        log_start_offset=0,
        high_watermark=1,
        last_stable_offset=1,
    )


@pytest.mark.parametrize("payloads", [("value",), ("key", "value")])
def test_a_token_that_is_replaced_again_and_again(tmp_path: Path, payloads: tuple[str, ...]) -> None:
    """Decoders of another topic, and those of another consumer, may have another login to the same registry:
    one of them was left with an old token for ever."""
    token = tmp_path / "token"

    def answer(asked: Asked) -> tuple[int, dict[str, str], Any]:
        if asked.headers.get("Authorization") != f"Bearer {token.read_text()}":
            return 401, {}, {"error_code": 401, "message": "Unauthorized"}
        return 200, {}, {"schema": '"long"'}

    token.write_text("0")
    with serving(answer) as served:
        settings = {"registry.url": served.url, "registry.token": f"file:{token}"}
        avro = ColumnFormat("avro", '"long"', settings)
        ids = itertools.count(1)

        def read(reader: RecordTyping, topic: str, key_id: int, value_id: int) -> None:
            found, _ = reader.decode(_fetched(topic, key_id, value_id))
            assert found.batch["value"].to_pylist() == [1]

        first = RecordTyping(dict.fromkeys(payloads, avro), "failfast")
        read(first, "a", 1_000, next(ids))
        readers = [first]
        for turn in range(1, 4):
            token.write_text(str(turn))
            readers.append(RecordTyping(dict.fromkeys(payloads, avro), "failfast"))
            read(readers[-1], "a", 1_000, next(ids))
            for reader in readers:
                read(reader, "a", next(ids), 1_000)
                read(reader, "b", 1_000, next(ids))
                read(reader, f"new-{turn}", 1_000, next(ids))
                read(reader, "a", 1_000, next(ids))


@pytest.mark.parametrize("mode", ["failfast", "permissive", "dropmalformed"])
def test_rows_that_are_too_many_for_one_batch_come_in_several(
    consumer: Consumer, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A string column of the topic's name ends at 2 GiB."""
    monkeypatch.setattr(columns, "_INT32_MAX", 3)
    found = [consumer.read_columns(WITHIN_S, value_format="string", mode=mode)]
    if mode == "failfast":
        assert consumer.position() == 2
        with pytest.raises(MalformedRecordError, match="a-0 at offset 2"):
            consumer.read_columns(WITHIN_S, value_format="string")
        consumer.seek(3)
    else:
        assert consumer.position() == 3
    found.append(consumer.read_columns(WITHIN_S, value_format="string", mode=mode))
    offsets = [one.batch["offset"].to_pylist() for one in found if one is not None]
    assert offsets == [[0, 1, 2] if mode == "permissive" else [0, 1], [3]]
    assert consumer.position() == 4


@pytest.mark.parametrize(
    ("most", "parts"), [(1, [1, 1, 1, 1]), (2, [2, 2]), (3, [3, 1]), (4, [4]), (5, [4])], ids=str
)
def test_each_batch_has_as_many_rows_as_fit(
    consumer: Consumer, most: int, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_INT32_MAX", most)
    found = []
    while consumer.position() < 4:
        one = consumer.read_columns(WITHIN_S, value_format="string", mode="permissive")
        assert one is not None
        found.append(one.batch["offset"].to_pylist())
    assert [len(offsets) for offsets in found] == parts
    assert [offset for offsets in found for offset in offsets] == [0, 1, 2, 3]
