"""Random Avro schemas with values: as fastavro writes them, and as Arrow gives them."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
import string
import struct
from decimal import Decimal
from typing import Any

import fastavro

EPOCH = dt.datetime(1970, 1, 1)


class Cases:
    """Draws schemas; names are unique."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"n{self.names}"

    def record(self, depth: int = 0) -> dict[str, Any]:
        fields = [
            {"name": self.name(), "type": self.type(depth + 1)} for _ in range(self.rng.randrange(1, 6))
        ]
        return {"type": "record", "name": self.name(), "fields": fields}

    def type(self, depth: int) -> Any:
        leaves = ("boolean", "int", "long", "float", "double", "string", "bytes", "null")
        logical = (
            {"type": "int", "logicalType": "date"},
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
            {"type": "long", "logicalType": "local-timestamp-micros"},
            {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
        )
        choice = self.rng.randrange(10 if depth < 4 else 5)
        if choice < 3:
            return self.rng.choice(leaves)
        if choice == 3:
            return self.rng.choice(logical)
        if choice == 4:
            return self.named_leaf()
        if choice == 5:
            return self.record(depth)
        if choice == 6:
            return {"type": "array", "items": self.type(depth + 1)}
        if choice == 7:
            return {"type": "map", "values": self.type(depth + 1)}
        if choice == 8:
            kind = self.type(depth + 1)
            if isinstance(kind, list) or kind == "null":
                return kind
            return ["null", kind] if self.rng.random() < 0.5 else [kind, "null"]
        return ["null", "string", "double", self.record(depth), {"type": "array", "items": "long"}]

    def named_leaf(self) -> Any:
        kind = self.rng.randrange(3)
        if kind == 0:
            return {"type": "enum", "name": self.name(), "symbols": [f"S{i}" for i in range(5)]}
        if kind == 1:
            return {"type": "fixed", "name": self.name(), "size": self.rng.randrange(1, 20)}
        return {
            "type": "fixed", "name": self.name(), "size": 9,
            "logicalType": "decimal", "precision": 18, "scale": 2,
        }  # fmt: skip

    def value(self, schema: Any) -> tuple[Any, Any]:
        """What fastavro takes, and what Arrow's ``to_pylist`` gives."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            same = self._plain(schema)
            return same, same
        match schema["type"]:
            case "record":
                drawn = {field["name"]: self.value(field["type"]) for field in schema["fields"]}
                return {k: v[0] for k, v in drawn.items()}, {k: v[1] for k, v in drawn.items()}
            case "array":
                items = [self.value(schema["items"]) for _ in range(self._count())]
                return [one for one, _ in items], [other for _, other in items]
            case "map":
                entries = {self._plain("string"): self.value(schema["values"]) for _ in range(self._count())}
                return {k: v[0] for k, v in entries.items()}, [(k, v[1]) for k, v in entries.items()]
            case "enum":
                same = self.rng.choice(schema["symbols"])
                return same, same
        same = self._logical(schema)
        return same, same

    def _union(self, schema: list[Any]) -> tuple[Any, Any]:
        branch = self.rng.choice(schema)
        given, read = self.value(branch)
        if branch != "null":
            name = branch if isinstance(branch, str) else branch.get("name", branch["type"])
            given = (name, given)
        alternatives = [one for one in schema if one != "null"]
        if len(alternatives) == 1 or branch == "null":
            return given, read
        return given, {f"member{i}": read if one is branch else None for i, one in enumerate(alternatives)}

    def _count(self) -> int:
        return self.rng.choice((0, 0, 1, 2, 5, 20))

    def _plain(self, kind: str) -> Any:
        rng = self.rng
        match kind:
            case "null":
                return None
            case "boolean":
                return rng.random() < 0.5
            case "int" | "long":
                bits = rng.randrange(32 if kind == "int" else 64)
                return rng.randrange(-(1 << bits), 1 << bits) if bits else 0
            case "float":
                return struct.unpack("<f", struct.pack("<f", rng.uniform(-1e9, 1e9)))[0]
            case "double":
                return rng.uniform(-1e300, 1e300)
            case "string":
                return "".join(rng.choice(string.ascii_letters + "äß€😀\0") for _ in range(rng.randrange(12)))
        return rng.randbytes(rng.randrange(12))

    def _logical(self, schema: dict[str, Any]) -> Any:
        rng = self.rng
        match schema.get("logicalType"):
            case "date":
                return dt.date(1970, 1, 1) + dt.timedelta(rng.randrange(-700_000, 2_000_000))
            case "decimal":
                digits = 15 if schema["type"] == "bytes" else 18
                number = rng.randrange(-(10**digits) + 1, 10**digits)
                return Decimal(number).scaleb(-schema["scale"])
            case None:
                return rng.randbytes(schema["size"])
        at = EPOCH + dt.timedelta(milliseconds=rng.randrange(-(10**13), 10**14))
        if not schema["logicalType"].endswith("millis"):
            at += dt.timedelta(microseconds=rng.randrange(1000))
        return at if schema["logicalType"].startswith("local") else at.replace(tzinfo=dt.UTC)


def write(schema: Any, value: Any) -> bytes:
    """The bytes that fastavro makes of ``value``."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def read(data: bytes, written: Any, read: Any = None) -> Any:
    """What fastavro makes of ``data``."""
    return fastavro.schemaless_reader(
        io.BytesIO(data),
        fastavro.parse_schema(json.loads(json.dumps(written))),
        None if read is None else fastavro.parse_schema(json.loads(json.dumps(read))),
    )
