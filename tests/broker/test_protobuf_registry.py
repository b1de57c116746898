"""Protobuf with a registry: what Confluent's Python client writes is read, and the other way round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from spark_kafka_native.formats import FormatError
from spark_kafka_native.formats.protobuf.compile import compile_proto
from spark_kafka_native.formats.protobuf.descriptors import in_order
from spark_kafka_native.formats.protobuf.protobuf_format import ProtobufFormat
from spark_kafka_native.formats.registry import SchemaRegistry
from spark_kafka_native.testing import EmbeddedRegistry

pytestmark = pytest.mark.broker

ITEM = 'syntax = "proto3"; package shop; message Item { string sku = 1; int32 count = 2; }'
FIRST = """syntax = "proto3"; package shop; import "shop/item.proto";
import "google/protobuf/timestamp.proto";
message Note { string text = 1; }
message Order { int64 id = 1; repeated Item items = 2; google.protobuf.Timestamp at = 3;
  message Line { int32 number = 1; } }"""
SECOND = FIRST.replace("at = 3;", "at = 3; string customer = 4;")


def messages(text: str) -> DescriptorPool:
    pool = DescriptorPool()
    for file in in_order(
        compile_proto("shop/order.proto", {"shop/order.proto": text, "shop/item.proto": ITEM})
    ):
        pool.Add(file)
    return pool


def message_class(name: str, text: str = FIRST) -> Any:
    return GetMessageClass(messages(text).FindMessageTypeByName(name))


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


@pytest.fixture
def client(registry: EmbeddedRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


def settings(registry: EmbeddedRegistry, topic: str, **others: str) -> dict[str, str]:
    return {"registry.url": registry.url, "topic": topic, "payload": "value"} | others


def test_versions_of_confluents_serializer_are_read_under_the_latest(
    registry: EmbeddedRegistry, client: SchemaRegistryClient
) -> None:
    payloads: list[bytes | None] = [None]
    for text, extra in ((FIRST, {}), (SECOND, {"customer": "c"})):
        made = message_class("shop.Order", text)
        serialize = ProtobufSerializer(made, client, {"use.deprecated.format": False})
        order = made(id=7, items=[{"sku": "a", "count": 2}], at={"seconds": 5}, **extra)
        payloads.append(serialize(order, context("orders")))
    made = message_class("shop.Note", SECOND)
    serialize = ProtobufSerializer(made, client, {"use.deprecated.format": False})
    payloads.append(serialize(made(text="n"), context("orders")))
    given = settings(registry, "orders", message="shop.Order")
    resolved = ProtobufFormat().resolve_read(given)
    decoder = ProtobufFormat().decoder(resolved.type, resolved.settings)
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    assert decoded.bad.rows == (3,)
    assert decoded.bad.reasons == ("it is a message shop.Note, not shop.Order",)
    rows = decoded.array.to_pylist()
    assert [row and (row["id"], row["items"], row["customer"]) for row in rows] == [
        None,
        (7, [{"sku": "a", "count": 2}], None),
        (7, [{"sku": "a", "count": 2}], "c"),
        None,
    ]


@pytest.mark.parametrize("name", ["shop.Note", "shop.Order", "shop.Order.Line"])
def test_confluents_deserializer_reads_every_message(registry: EmbeddedRegistry, name: str) -> None:
    ours = SchemaRegistry.from_settings({"registry.url": registry.url})
    assert ours is not None
    ours.register("shop/item.proto", ITEM, "PROTOBUF")
    references = [{"name": "shop/item.proto", "subject": "shop/item.proto", "version": 1}]
    ours.register("written-value", FIRST, "PROTOBUF", references)
    columns = {
        "shop.Note": [("text", pa.string(), "n")],
        "shop.Order": [("id", pa.int64(), 5), ("at", pa.timestamp("us", "UTC"), 3_000_000)],
        "shop.Order.Line": [("number", pa.int32(), 4)],
    }[name]
    kind = pa.struct([(column, one) for column, one, _ in columns])
    resolved = ProtobufFormat().resolve_write(kind, settings(registry, "written", message=name))
    encoder = ProtobufFormat().encoder(kind, resolved.settings)
    row = {column: value for column, _, value in columns}
    (payload, nothing) = encoder.encode(pa.array([row, None], kind)).to_pylist()
    assert nothing is None
    made = message_class(name)
    # Without the registry: it would ask for a binary schema, which Apicurio does not give.
    deserialize = ProtobufDeserializer(made, {"use.deprecated.format": False})
    read = deserialize(payload, context("written"))
    wanted = {"seconds": 3} if name == "shop.Order" else None
    assert read == made(**(row | ({"at": wanted} if wanted else {})))


def test_a_descriptor_of_ones_own_has_to_be_registered_or_is(
    registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    text = 'syntax = "proto3"; package own; message Own { int32 number = 1; }'
    path = tmp_path / "own.desc"
    path.write_bytes(compile_proto("own.proto", {"own.proto": text}).SerializeToString())
    given = settings(registry, "own", descriptorfile=str(path), message="own.Own")
    kind = pa.struct([("number", pa.int32())])
    with pytest.raises(FormatError, match=r"registry.register=true"):
        ProtobufFormat().resolve_write(kind, given)
    registered = ProtobufFormat().resolve_write(kind, given | {"registry.register": "true"})
    again = ProtobufFormat().resolve_write(kind, given)
    rows = pa.array([{"number": 1}], kind)
    payloads = ProtobufFormat().encoder(kind, registered.settings).encode(rows)
    assert ProtobufFormat().encoder(kind, again.settings).encode(rows).equals(payloads)
    read = ProtobufFormat().resolve_read(settings(registry, "own"))
    decoder = ProtobufFormat().decoder(read.type, read.settings)
    assert decoder.decode(payloads).array.to_pylist() == [{"number": 1}]
