"""Bytes that are a whole payload of a schema registry, as Confluent's Java client writes them."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_native.formats.avro import avro_format
from spark_kafka_native.formats.avro.avro_format import AvroFormat
from spark_kafka_native.formats.avro.bare_bytes import reads_bare_bytes
from spark_kafka_native.formats.avro.decoder import AvroDecoder
from spark_kafka_native.formats.avro.schema import parse_schema
from spark_kafka_native.formats.registry import RegisteredSchema, frame_id

LENGTHS = [0, 1, 63, 64, 8_191, 8_192, 1 << 20]
"""Where Avro's length takes one byte more."""


class FakeRegistry:
    url = "http://registry"

    def __init__(self, text: str) -> None:
        self._schema = RegisteredSchema(type="AVRO", text=text, id=1)

    def schema(self, _id: int) -> RegisteredSchema:
        return self._schema

    schema_just_given = latest = schema

    def schemas_of_records(self, keys: list[int]) -> dict[int, RegisteredSchema]:
        return {key: self.schema(key) for key in keys}


def registered(monkeypatch: pytest.MonkeyPatch, text: str) -> dict[str, str]:
    fake: Any = FakeRegistry(text)
    monkeypatch.setattr(avro_format.SchemaRegistry, "from_settings", lambda _: fake)
    return {"topic": "a", "payload": "value"}


def test_they_have_no_length_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = registered(monkeypatch, '"bytes"')
    drawn = random.Random(1)
    rows = [None if count < 0 else drawn.randbytes(count) for count in (*LENGTHS, -1, *reversed(LENGTHS))]
    payloads = pa.array([None if row is None else frame_id(1) + row for row in rows], pa.binary())
    resolved = AvroFormat().resolve_read(given)
    assert resolved.type == pa.binary()
    decoded = AvroFormat().decoder(resolved.type, resolved.settings).decode(payloads.slice(1))
    assert decoded.array.to_pylist() == rows[1:]
    assert not decoded.bad.rows
    written = AvroFormat().resolve_write(pa.binary(), given)
    encoded = AvroFormat().encoder(pa.binary(), written.settings).encode(pa.array(rows, pa.binary()).slice(1))
    encoded.validate(full=True)
    assert encoded.to_pylist() == payloads.to_pylist()[1:]


@pytest.mark.parametrize("start", [1, 3, 8, 9])
def test_payloads_of_a_slice_keep_their_nulls(start: int) -> None:
    """A decoder takes any array, also one that begins in the middle of its memory."""
    written = parse_schema('"bytes"')
    decoder = reads_bare_bytes(written, AvroDecoder(written, written, pa.binary()))
    rows = [None if row % 3 == 0 else b"%d" % row for row in range(20)]
    decoded = decoder.decode(pa.array(rows, pa.binary()).slice(start))
    decoded.array.validate(full=True)
    assert decoded.array.to_pylist() == rows[start:]
    assert not decoded.bad.rows


def test_decimals_have_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    given = registered(monkeypatch, '{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}')
    resolved = AvroFormat().resolve_read(given)
    payloads = [frame_id(1) + b"\x01\x00", None, frame_id(1) + b"\xff"]
    rows = [Decimal("2.56"), None, Decimal("-0.01")]
    decoded = AvroFormat().decoder(resolved.type, resolved.settings).decode(pa.array(payloads, pa.binary()))
    assert decoded.array.to_pylist() == rows
    encoder = AvroFormat().encoder(resolved.type, AvroFormat().resolve_write(resolved.type, given).settings)
    assert encoder.encode(pa.array(rows, resolved.type)).to_pylist() == payloads


def test_bytes_within_a_value_keep_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    given = registered(monkeypatch, '["null", "bytes"]')
    resolved = AvroFormat().resolve_read(given)
    decoded = (
        AvroFormat().decoder(resolved.type, resolved.settings).decode(pa.array([frame_id(1) + b"\x02\x04ab"]))
    )
    assert decoded.array.to_pylist() == [b"ab"]
