"""Schemas, a registry's answers and payloads of any kind: they are read, or refused with an error of ours, in
bounded time and memory; and what one payload means is no matter of its neighbours.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from support.hooks.fresh_seeds import SECONDS, try_seeds
from support.hostile import attempt, spoil, spoil_text, watched

from spark_kafka_native.formats import EncodeError, FormatError
from spark_kafka_native.formats.ddl import parse_ddl
from spark_kafka_native.formats.format import InferringFormat, SchemaFormat, load_format
from spark_kafka_native.formats.registry import RegisteredSchema, frame_id, schema_registry
from spark_kafka_native.formats.registry.registry_client import RegistryClient
from spark_kafka_native.http_request import Answer

AVRO = json.dumps(
    {
        "type": "record",
        "name": "r.Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "default": "A"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
JSON_SCHEMA = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "integer"},
            "tags": {"type": "array", "items": {"$ref": "#/definitions/tag"}},
            "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        },
        "definitions": {"tag": {"type": "string", "format": "date"}},
    }
)
PROTO = """syntax = "proto3"; package r;
message Order { int64 id = 1; repeated string tags = 2; map<string, Line> lines = 3;
  message Line { optional double price = 1; enum Kind { A = 0; B = 1; } Kind kind = 2; } }"""
DDL = [
    "id bigint not null, tags array<struct<a: decimal(9, 2), `b c`: map<string, timestamp_ntz>>> comment 'x'",
    "struct<id:int,day:date,data:binary>",
]
TYPE = pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string())), ("note", pa.string())])
ROWS = pa.array(
    [{"id": 1, "tags": ["é", None], "note": None}, {"id": -(2**40), "tags": [], "note": "a\"b\\"}, None], TYPE
)  # fmt: skip
PLAIN = pa.struct([("id", pa.int64()), ("note", pa.string()), ("part", pa.float64())])
PLAIN_ROWS = pa.array(
    [{"id": 7, "note": 'a,"b"', "part": 0.5}, {"id": None, "note": "", "part": 1e300}], PLAIN
)
PAYLOADS = {"json": ROWS, "csv": PLAIN_ROWS, "avro": ROWS, "arrow-ipc": ROWS}


# --- schemas ------------------------------------------------------------------------------------------------


def use(name: str, settings: Mapping[str, str]) -> None:
    """All that a schema leads to: a type, a decoder that reads, and an encoder that writes."""
    found = load_format(name)
    assert isinstance(found, SchemaFormat)
    with contextlib.suppress(FormatError):
        resolved = found.resolve_read(settings)
        if resolved.type is not None:
            decoder = found.decoder(resolved.type, resolved.settings)
            payloads = pa.array([b"", b"\0" * 20, frame_id(1) + b"\2\2", b'{"id": 1}', None], pa.binary())
            assert len(decoder.decode(payloads).array) == len(payloads)
    with contextlib.suppress(FormatError, EncodeError):
        written = found.resolve_write(TYPE, settings)
        payloads = found.encoder(TYPE, written.settings).encode(ROWS)
        assert payloads[2].as_py() is None


@pytest.mark.parametrize(("name", "good"), [("avro", AVRO), ("json", JSON_SCHEMA)])
def test_schemas_are_read_or_refused(name: str, good: str) -> None:
    use(name, {"schema": good})

    half_a_pair = good.replace('"id"', r'"i\ud800d"')
    with pytest.raises(FormatError, match="surrogates"):
        load_format(name).resolve_read({"schema": half_a_pair})  # type: ignore[attr-defined]

    def check(seed: int) -> None:
        text = spoil_text(good, random.Random(seed))
        attempt(lambda: use(name, {"schema": text}), len(text), (), cpu_s=2, cap=16 << 20)

    with watched():
        try_seeds(check, f"hostile {name} schema", range(150), seconds=min(SECONDS, 0.5))


def test_ddl_is_read_or_refused() -> None:
    def check(seed: int) -> None:
        rng = random.Random(seed)
        text = spoil_text(rng.choice(DDL), rng)
        attempt(lambda: parse_ddl(text), len(text), (FormatError,), cap=16 << 20, cpu_s=2)

    with watched():
        try_seeds(check, "hostile ddl", range(300), seconds=min(SECONDS, 0.5))


# --- a registry's answers -----------------------------------------------------------------------------------


class LyingRegistry(RegistryClient):
    """Each answer is spoilt, or true of something else."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__(urls=("https://registry",))
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "rng", random.Random(seed))

    def _send(self, _url: str, _request: Any, _until: float) -> Answer:
        rng: random.Random = self.rng  # type: ignore[attr-defined]
        text = {"AVRO": AVRO, "JSON": JSON_SCHEMA, "PROTOBUF": PROTO}[self.kind]  # type: ignore[attr-defined]
        answer: dict[str, Any] = {"schema": text, "schemaType": self.kind, "id": 1, "version": 3}  # type: ignore[attr-defined]
        lie = rng.randrange(6)
        if lie == 0:
            answer["schema"] = spoil_text(text, rng)
        elif lie == 1:
            answer["references"] = [{"name": "n", "subject": rng.choice("ab"), "version": rng.randrange(3)}]
        elif lie == 2:
            answer[rng.choice(["schema", "schemaType", "id", "references", "guid"])] = rng.choice(
                [None, -1, 2**31, "x", [], {}, [{}], True, "PROTOBUF", "AVRO", 1.5, "\ud800"]
            )
        body = json.dumps(answer)
        if lie == 3:
            body = spoil_text(body, rng)
        status = 200 if lie else rng.choice([200, 200, 401, 404, 409, 422])
        if status != 200 and rng.randrange(2):
            body = json.dumps({"error_code": rng.choice([40401, 40403, 42201, "x"]), "message": ["m"]})
        return Answer(status=status, headers={}, body=body.encode(errors="surrogatepass"))


@pytest.mark.parametrize("name", ["avro", "json", "protobuf"])
def test_a_registry_that_lies_is_refused_or_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(seed: int) -> None:
        client = LyingRegistry(name.upper(), seed)
        monkeypatch.setattr(schema_registry, "parse_client", lambda _: client)
        settings = {"registry.url": f"https://registry/{seed}", "topic": "t", "payload": "value"}
        for more in ({}, {"registry.version": "3"}, {"registry.register": "true"}):
            attempt(lambda: use(name, settings | more), 4096, (), cpu_s=5, cap=64 << 20)  # noqa: B023

    with watched():
        # A .proto file is compiled in half a second.
        try_seeds(
            check, f"lying registry {name}", range(4 if name == "protobuf" else 40), seconds=SECONDS / 4
        )


# --- payloads -----------------------------------------------------------------------------------------------


def settings_of(name: str) -> dict[str, str]:
    return {"avro": {"schema": AVRO_OF_ROWS}, "csv": {"nullvalue": "NULL"}}.get(name, {})


AVRO_OF_ROWS = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "id", "type": ["null", "long"]},
            {"name": "tags", "type": ["null", {"type": "array", "items": ["null", "string"]}]},
            {"name": "note", "type": ["null", "string"]},
        ],
    }
)


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_means_the_same_alone_and_among_others(name: str) -> None:
    rows, found, settings = PAYLOADS[name], load_format(name), settings_of(name)
    good = found.encoder(rows.type, settings).encode(rows)
    decoder = found.decoder(rows.type, settings)
    assert decoder.decode(good).array.equals(rows)

    def check(seed: int) -> None:
        rng = random.Random(seed)
        payloads: list[bytes | None] = []
        for _ in range(rng.randrange(1, 12)):
            payload = good[rng.randrange(len(good))].as_py()
            if payload is not None and rng.random() < 0.7:
                spoilt = bytearray(payload)
                spoil(spoilt, rng)
                payload = bytes(spoilt)
            payloads.append(payload)
        array = pa.array([b"neighbour", *payloads, b"neighbour"], pa.binary()).slice(1, len(payloads))
        size = sum(len(one or b"") for one in payloads)
        together = attempt(lambda: decoder.decode(array), size, (), cpu_s=2, cap=16 << 20)
        assert not isinstance(together, BaseException)
        together.array.validate(full=True)
        assert len(together.array) == len(payloads)
        reasons = dict(zip(together.bad.rows, together.bad.reasons, strict=True))
        for row, payload in enumerate(payloads):
            alone = decoder.decode(pa.array([payload], pa.binary()))
            assert alone.array.equals(together.array.slice(row, 1)) or _has_nan(alone.array)
            assert bool(alone.bad.rows) == (row in reasons), (payload, alone.bad, reasons.get(row))
            if payload is None:
                assert row not in reasons
                assert not together.array[row].is_valid
        if isinstance(found, InferringFormat) and any(payloads):
            sample = pa.array([one for one in payloads if one is not None], pa.binary())
            attempt(lambda: found.infer(sample, {}), size, (FormatError,), cpu_s=2, cap=16 << 20)

    with watched():
        try_seeds(check, f"hostile {name} payloads", range(60), seconds=min(SECONDS, 1))


def _has_nan(array: pa.Array) -> bool:
    return "nan" in str(array.to_pylist())


def test_the_type_of_the_schema_is_what_is_tried() -> None:
    """The good cases are good: no lie is refused for another reason."""
    for name, kind, text in (("avro", "AVRO", AVRO), ("json", "JSON", JSON_SCHEMA)):
        assert load_format(name).resolve_read({"schema": text}).type is not None, kind  # type: ignore[attr-defined]
        RegisteredSchema(type=kind, text=text, id=1)
