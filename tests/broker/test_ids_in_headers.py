"""Writes that name the schema in a header, as Confluent's `HeaderSchemaIdSerializer` does: its
deserializers are the witness.

Apicurio's registry has no GUIDs. Confluent's client has a registry in memory, which has them: `serving`
hands out its schemas.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from support.commands import Run, runner
from support.http_server import Asked, serving

from spark_kafka_native.formats import ColumnFormat
from spark_kafka_native.formats.protobuf.compile import compile_proto
from spark_kafka_native.formats.protobuf.descriptors import in_order
from spark_kafka_native.kafka import ConfigError, Consumer, Producer
from spark_kafka_native.testing import EmbeddedRegistry

pytestmark = pytest.mark.broker

SECONDS = 60
FIELDS = [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}]
PROTO_TEXT = (
    'syntax = "proto3"; message Other { int64 x = 1; } message Order { int64 id = 1; string note = 2; }'
)
PROTO = in_order(compile_proto("order.proto", {"order.proto": PROTO_TEXT}))[-1].SerializeToString()
"""As the registry gives it to Confluent's deserializers."""
OBJECT = {
    "type": "object",
    "title": "x",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
}
SCHEMAS = {
    "avro": ("AVRO", json.dumps({"type": "record", "name": "Order", "fields": FIELDS})),
    "json": ("JSON", json.dumps(OBJECT)),
    "protobuf": ("PROTOBUF", base64.b64encode(PROTO).decode()),
}
# Confluent's deserializer of Avro refuses payloads of less than six bytes, wherever the id is.
ROWS = [{"id": 1, "note": "an order"}, None, {"id": 2**40, "note": "another"}]
STALE = ("__value_schema_id", b"\0\0\0\0\x63")
HEADERS = [[("a", b"1"), STALE, ("a", None)], [STALE], None]


@dataclass
class GuidRegistry:
    client: SchemaRegistryClient
    url: str = ""

    def add(self, topic: str, name: str) -> str:
        """The GUID of the schema of ``name``, the latest of the topic's values."""
        language, text = SCHEMAS[name]
        guid = self.client.register_schema_full_response(f"{topic}-value", Schema(text, language)).guid
        assert guid is not None
        return guid

    def answer(self, asked: Asked) -> tuple[int, dict[str, str], Any]:
        _, kind, name, *_ = asked.path.split("/")
        if kind == "subjects":
            return 200, {}, self.client.get_latest_version(name).to_dict() | {"id": 1}
        schema = self.client.get_schema_by_guid(asked.path.rsplit("/", 1)[1])
        return 200, {}, schema.to_dict()


@pytest.fixture
def guids() -> Iterator[GuidRegistry]:
    made = GuidRegistry(SchemaRegistryClient.new_client({"url": "mock://"}))
    with serving(made.answer) as served:
        made.url = served.url
        yield made


@pytest.fixture
def topic(kafka: Any) -> str:
    name = f"header-ids-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 1)
    return name


def given(guids: GuidRegistry, name: str) -> ColumnFormat:
    message = {"message": "Order"} if name == "protobuf" else {}
    return ColumnFormat(name, None, {"registry.url": guids.url, "schemaIdIn": "header", **message})


def deserialized(guids: GuidRegistry, name: str, record: Any) -> Any:
    """What Confluent's deserializer makes of the value of ``record``."""
    context = SerializationContext(record.topic, MessageField.VALUE, list(record.headers))
    if name == "avro":
        return AvroDeserializer(guids.client)(record.value, context)
    if name == "json":
        return JSONDeserializer(None, schema_registry_client=guids.client)(record.value, context)
    pool = DescriptorPool()
    for file in in_order(compile_proto("order.proto", {"order.proto": PROTO_TEXT})):
        pool.Add(file)
    order = GetMessageClass(pool.FindMessageTypeByName("Order"))
    read = ProtobufDeserializer(order, {"use.deprecated.format": False}, guids.client)(record.value, context)
    found = MessageToDict(read)
    return found | {"id": int(found["id"])}


def records_of(kafka: Any, topic: str) -> list[Any]:
    with Consumer(kafka.bootstrap_servers, topic, start="earliest", stop_at_end=True) as consumer:
        return list(consumer)


@pytest.mark.parametrize("name", SCHEMAS)
def test_confluents_deserializer_finds_the_schema_in_the_header(
    kafka: Any, guids: GuidRegistry, topic: str, name: str
) -> None:
    mark = b"\1" + uuid.UUID(guids.add(topic, name)).bytes + (b"\2\2" if name == "protobuf" else b"")
    kind = pa.struct([("id", pa.int64()), ("note", pa.string())])
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    headers = [None if one is None else [{"key": k, "value": v} for k, v in one] for one in HEADERS]
    table = pa.table({"value": pa.array(ROWS, kind), "headers": pa.array(headers, pa.list_(pair))})
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send_columns(table, topic, value_format=given(guids, name)).result(SECONDS)
        producer.send_columns(table.select(["value"]), topic, value_format=given(guids, name)).result(SECONDS)
    records = records_of(kafka, topic)
    own = ("__value_schema_id", mark)
    # The header of another payload has gone, except where there is no payload.
    assert [list(one.headers) for one in records] == [
        [("a", b"1"), ("a", None), own], [STALE], [own], [own], [], [own]
    ]  # fmt: skip
    read = [None if one.value is None else deserialized(guids, name, one) for one in records]
    assert read == ROWS * 2
    with Consumer(kafka.bootstrap_servers, topic, start="earliest") as consumer:
        found = consumer.read_columns(SECONDS, value_format=given(guids, name))
    assert found is not None
    assert found.batch["value"].to_pylist() == ROWS * 2


def test_without_the_headers_a_payload_is_not_taken_for_one_with_an_id_in_front(
    kafka: Any, guids: GuidRegistry, topic: str
) -> None:
    guids.add(topic, "avro")
    table = pa.table({"value": pa.array([{"id": 0, "note": "x"}])})  # its Avro begins with a zero
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send_columns(table, topic, value_format=given(guids, "avro")).result(SECONDS)
    for columns in (["value"], ["value", "headers"]):
        with Consumer(kafka.bootstrap_servers, topic, start="earliest", columns=columns) as consumer:
            if "headers" not in columns:
                with pytest.raises(ConfigError, match="add 'headers' to its columns="):
                    consumer.read_columns(SECONDS, value_format=given(guids, "avro"))
                continue
            found = consumer.read_columns(SECONDS, value_format=given(guids, "avro"))
            assert found is not None
            assert found.batch["value"].to_pylist() == [{"id": 0, "note": "x"}]


def test_an_id_in_front_takes_a_header_of_another_payload_away(
    kafka: Any, registry: EmbeddedRegistry, topic: str
) -> None:
    registry.register(f"{topic}-value", SCHEMAS["avro"][1])
    avro = ColumnFormat("avro", None, {"registry.url": registry.url})
    value = pa.array(ROWS, pa.struct([("id", pa.int64()), ("note", pa.string())]))
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    headers = pa.array(
        [[{"key": name, "value": mark} for name, mark in [STALE, ("b", b"")]]] * 3, pa.list_(pair)
    )
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send_columns(pa.table({"value": value, "headers": headers}), topic, value_format=avro)
    assert [list(one.headers) for one in records_of(kafka, topic)] == [
        [("b", b"")], [STALE, ("b", b"")], [("b", b"")]
    ]  # fmt: skip
    with Consumer(kafka.bootstrap_servers, topic, start="earliest") as consumer:
        found = consumer.read_columns(SECONDS, value_format=avro)
    assert found is not None
    assert found.batch["value"].to_pylist() == ROWS


def test_lines_of_the_command_line(
    kafka: Any,
    guids: GuidRegistry,
    topic: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run: Run = runner(kafka, capsys, monkeypatch)
    guids.add(topic, "avro")
    how = ("--value-format", "avro", "--registry", guids.url, "-X", "value.schemaIdIn=header", "-H", "a=1")
    code, _, err = run("produce", topic, *how, stdin=b'{"id":1,"note":"an order"}\n')
    assert (code, err) == (0, f"1 record is in {topic}.\n")
    (record,) = records_of(kafka, topic)
    assert [name for name, _ in record.headers] == ["a", "__value_schema_id"]
    assert deserialized(guids, "avro", record) == ROWS[0]


def test_a_registry_without_guids_is_refused(kafka: Any, registry: EmbeddedRegistry, topic: str) -> None:
    registry.register(f"{topic}-value", SCHEMAS["avro"][1])
    wanted = ColumnFormat("avro", None, {"registry.url": registry.url, "schemaIdIn": "header"})
    rows = pa.table({"value": pa.array(ROWS[:1], pa.struct([("id", pa.int64()), ("note", pa.string())]))})
    with (
        Producer(kafka.bootstrap_servers) as producer,
        pytest.raises(ConfigError, match=r"no GUID for schema .*leave value.schemaIdIn=header out"),
    ):
        producer.send_columns(rows, topic, value_format=wanted)
