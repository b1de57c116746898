"""JSON with a real registry: Confluent's Python serializer and deserializer as witnesses for the bytes."""

import json
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_kafka_native.formats.json.json_format import JsonFormat
from spark_kafka_native.formats.registry import RegistryError
from spark_kafka_native.testing import EmbeddedRegistry

SCHEMA = json.dumps(
    {
        "title": "order",
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "at": {"type": "string", "format": "date-time"},
        },
        "required": ["id"],
    }
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "Äpfel \u0001", "tags": ["a", "b"], "at": "2024-02-29T12:30:00.500000Z"},
    {"id": -(2**60), "name": None},
    {"id": 3, "tags": []},
]
JSON = JsonFormat()


def settings(registry: EmbeddedRegistry, topic: str, **more: str) -> dict[str, str]:
    return {"registry.url": registry.url, "topic": topic, "payload": "value"} | more


def context(topic: str, headers: Any = None) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE, headers)


def test_their_bytes_as_columns(registry: EmbeddedRegistry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    serializer = JSONSerializer(SCHEMA, client)
    payloads = [serializer(row, context("theirs")) for row in ROWS]
    resolved = JSON.resolve_read(settings(registry, "theirs"))
    decoded = JSON.decoder(resolved.type, resolved.settings).decode(pa.array([*payloads, None], pa.binary()))
    assert not decoded.bad.rows
    found = decoded.array.to_pylist()
    assert [None if row is None else (row["id"], row["name"], row["tags"]) for row in found] == [
        (1, "Äpfel \u0001", ["a", "b"]), (-(2**60), None, None), (3, None, []), None,
    ]  # fmt: skip
    assert found[0]["at"].isoformat() == "2024-02-29T12:30:00.500000+00:00"


@pytest.mark.parametrize("register", ["true", "false"])
def test_our_bytes_in_their_hands(registry: EmbeddedRegistry, register: str) -> None:
    topic = f"ours-{register}"
    if register == "false":
        registry.register(f"{topic}-value", SCHEMA, "JSON")
    kind = pa.struct([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
    resolved = JSON.resolve_write(kind, settings(registry, topic, **{"registry.register": register}))
    rows = [{name: text for name, text in row.items() if name != "at"} for row in ROWS]
    encoded = JSON.encoder(kind, resolved.settings).encode(pa.array(rows, kind)).to_pylist()
    # They validate the values against the schema that the id names.
    deserializer = JSONDeserializer(None, schema_registry_client=SchemaRegistryClient({"url": registry.url}))
    read = [deserializer(one, context(topic)) for one in encoded]
    assert read == [{name: x for name, x in row.items() if x is not None} for row in rows]


def test_a_schema_that_refers_to_another(registry: EmbeddedRegistry) -> None:
    point = json.dumps({"type": "object", "properties": {"x": {"type": "number"}}})
    registry.register("point", point, "JSON")
    line = {
        "type": "object",
        "properties": {"from": {"$ref": "point.json"}, "to": {"$ref": "point.json#/properties/x"}},
    }
    refer = [{"name": "point.json", "subject": "point", "version": 1}]
    registry.register("line-value", json.dumps(line), "JSON", refer)
    resolved = JSON.resolve_read(settings(registry, "line"))
    assert resolved.type == pa.struct([("from", pa.struct([("x", pa.float64())])), ("to", pa.float64())])


def test_an_incompatible_schema_is_refused_by_name(registry: EmbeddedRegistry) -> None:
    import urllib.request

    registry.register("strict-value", SCHEMA, "JSON")
    request = urllib.request.Request(
        f"{registry.url}/config/strict-value",
        data=b'{"compatibility": "FULL"}',
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request).close()
    kind = pa.struct([("id", pa.string())])
    with pytest.raises(RegistryError, match=r"subject 'strict-value'.*HTTP status 409"):
        JSON.resolve_write(kind, settings(registry, "strict", **{"registry.register": "true"}))


def test_their_ids_in_headers(registry: EmbeddedRegistry) -> None:
    # Apicurio knows no GUIDs: their own registry in memory does.
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    serializer = JSONSerializer(SCHEMA, client, conf={"schema.id.serializer": header_schema_id_serializer})
    headers: list[tuple[str, bytes]] = []
    payload = serializer(ROWS[0], context("headers", headers))
    ((name, id),) = headers
    assert name == "__value_schema_id"
    kind = pa.struct([("id", pa.int64())])
    decoded = JSON.decoder(kind, settings(registry, "headers")).decode(
        pa.array([payload, None], pa.binary()), pa.array([id, None], pa.binary())
    )
    assert decoded.array.to_pylist() == [{"id": 1}, None]
    assert not decoded.bad.rows
