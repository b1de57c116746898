"""The client and the command line with schemas of a real registry; Confluent's serializers as a witness."""

from __future__ import annotations

import io
import json
import sys
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_kafka_native.cli.main import main
from spark_kafka_native.formats import ColumnFormat
from spark_kafka_native.kafka import ConfigError, Consumer, GroupConsumer, MalformedRecordError, Producer
from spark_kafka_native.testing import EmbeddedRegistry

pytestmark = pytest.mark.broker

SECONDS = 60
V1 = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
V2 = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string note = 2; }'
JSON = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}})
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def topic(kafka: Any) -> str:
    name = f"registry-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 1)
    return name


@pytest.fixture
def run(kafka: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as in a pipe: its exit code, standard output and standard error."""

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main([*arguments, "-b", kafka.bootstrap_servers])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def of_registry(registry: EmbeddedRegistry, name: str = "avro", **settings: str) -> ColumnFormat:
    return ColumnFormat(name, None, {"registry.url": registry.url, **settings})


def confluents_payload(registry: EmbeddedRegistry, topic: str, schema: str, row: dict[str, Any]) -> bytes:
    client = SchemaRegistryClient({"url": registry.url})
    written = AvroSerializer(client, schema)(row, SerializationContext(topic, MessageField.VALUE))
    assert written is not None
    return written


def write(kafka: Any, topic: str, *values: bytes | None) -> None:
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send_many(topic, values).result(SECONDS)


def test_records_of_two_versions_come_out_under_the_one_that_reading_began_with(
    kafka: Any, registry: EmbeddedRegistry, topic: str
) -> None:
    write(kafka, topic, confluents_payload(registry, topic, V1, {"id": 1}))
    with Consumer(kafka.bootstrap_servers, topic, start="earliest") as consumer:
        first = consumer.read_columns(SECONDS, value_format=of_registry(registry))
        assert first is not None
        assert first.batch["value"].to_pylist() == [{"id": 1}]
        write(kafka, topic, confluents_payload(registry, topic, V2, {"id": 2, "note": "new"}), None)
        rows: list[Any] = []
        while len(rows) < 2:
            found = consumer.read_columns(SECONDS, value_format=of_registry(registry))
            assert found is not None
            rows += found.batch["value"].to_pylist()
        assert rows == [{"id": 2}, None]
    with GroupConsumer(kafka.bootstrap_servers, topic, f"g-{topic}", auto_offset_reset="earliest") as member:
        rows = []
        while len(rows) < 3:
            taken = member.read(SECONDS, value_format=of_registry(registry))
            assert taken is not None
            rows += taken.batch["value"].to_pylist()
    assert rows == [{"id": 1, "note": None}, {"id": 2, "note": "new"}, None]


def test_confluents_deserializer_reads_what_columns_became(
    kafka: Any, registry: EmbeddedRegistry, topic: str
) -> None:
    rows = pa.table({"value": [{"id": 1, "note": "a"}, {"id": 2, "note": None}, None]})
    given = ColumnFormat("avro", V2, {"registry.url": registry.url, "registry.register": "true"})
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send_columns(rows, topic, value_format=given).result(SECONDS)
    read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    with Consumer(kafka.bootstrap_servers, topic, start="earliest", stop_at_end=True) as consumer:
        values = [record.value for record in consumer]
    context = SerializationContext(topic, MessageField.VALUE)
    assert [None if one is None else read(one, context) for one in values] == rows["value"].to_pylist()


def test_a_record_without_a_schema_and_a_subject_that_does_not_exist(
    kafka: Any, registry: EmbeddedRegistry, topic: str
) -> None:
    write(kafka, topic, b"not framed")
    with Consumer(kafka.bootstrap_servers, topic, start="earliest") as consumer:
        with pytest.raises(ConfigError, match=f"value_format=avro: .*{topic}-value"):
            consumer.read_columns(SECONDS, value_format=of_registry(registry))
        registry.register(f"{topic}-value", V1)
        with pytest.raises(MalformedRecordError, match=f"{topic}-0 at offset 0"):
            consumer.read_columns(SECONDS, value_format=of_registry(registry))


@pytest.mark.parametrize(
    ("name", "schema", "language"),
    [("avro", V2, "AVRO"), ("protobuf", PROTO, "PROTOBUF"), ("json", JSON, "JSON")],
)
def test_the_command_line_writes_and_shows_by_a_registrys_schema(
    kafka: Any,
    registry: EmbeddedRegistry,
    run: Run,
    topic: str,
    name: str,
    schema: str,
    language: str,
) -> None:
    registry.register(f"{topic}-value", schema, language)
    options = ("--value-format", name, "--registry", registry.url)
    lines = b'{"id":1,"note":"a"}\n{"id":2,"note":"\xc3\xa4"}\n'
    assert run("produce", topic, *options, stdin=lines) == (0, "", f"2 records are in {topic}.\n")
    assert run("tail", topic, *options) == (0, lines.decode(), "")
    shown = [json.loads(line) for line in run("tail", topic, "--json", *options)[1].splitlines()]
    assert [one["value"] for one in shown] == [{"id": 1, "note": "a"}, {"id": 2, "note": "ä"}]
    code, _, err = run("produce", topic, *options, stdin=b'{"id":"x"}\n')
    assert (code, "line 1: the value does not fit: `id` is not an integer" in err) == (1, True)


def test_a_schema_of_the_command_line_is_registered_if_that_is_asked_for(
    registry: EmbeddedRegistry, run: Run, topic: str, tmp_path: Any
) -> None:
    (tmp_path / "order.avsc").write_text(V2)
    options = ("--value-format", "avro", "--registry", registry.url)
    written = ("--value-schema", f"file:{tmp_path}/order.avsc")
    code, _, err = run("produce", topic, *options, *written, stdin=b'{"id":1}\n')
    assert (code, f"{topic}-value" in err) == (1, True)
    code, _, err = run(
        "produce", topic, *options, *written, "-X", "registry.register=true", stdin=b'{"id":1}\n'
    )
    assert (code, err) == (0, f"1 record is in {topic}.\n")
    assert run("tail", topic, *options)[1] == '{"id":1}\n'


def test_a_value_that_is_no_record_and_a_schema_without_a_registry(run: Run, topic: str) -> None:
    options = ("--key-format", "avro", "--key-schema", '"long"', "--value-format", "string")
    assert run("produce", topic, "-K", ":", *options, stdin=b"42:x\n")[0] == 0
    (shown,) = run("tail", topic, "--json", *options)[1].splitlines()
    assert (json.loads(shown)["key"], json.loads(shown)["value"]) == (42, "x")


def test_the_password_of_a_registry_is_a_reference_and_in_no_message(
    registry: EmbeddedRegistry, run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register(f"{topic}-value", V1)
    monkeypatch.setenv("REGISTRY_PASSWORD", "geheim")
    secret = ("-X", "registry.user=me", "-X", "registry.password=env:REGISTRY_PASSWORD")
    options = ("--value-format", "avro", "--registry", registry.url, *secret)
    assert run("produce", topic, *options, stdin=b'{"id":1}\n')[0] == 0
    monkeypatch.delenv("REGISTRY_PASSWORD")
    code, _, err = run("tail", topic, *options)
    assert (code, "REGISTRY_PASSWORD is not set" in err, "geheim" in err) == (1, True, False)
