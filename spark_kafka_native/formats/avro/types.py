"""`arrow_type`: the Arrow type of an Avro type, as Spark's ``from_avro`` has it; `match_branches`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from .schema import AvroType

MAX_DIGITS: Final = 38
"""Of Arrow's decimal128 and of Spark's decimals."""
UNITS: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
"""In a second, by how names of logical types end."""
ARROW_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""What the writer's type may be read as, besides itself (Avro 1.12, "Schema Resolution")."""
_PLAIN: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}


def arrow_type(avro: AvroType) -> pa.DataType:
    """The type to read ``avro`` into where the user gives none."""
    if avro.kind == "record":
        return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in avro.fields])
    if avro.kind == "array":
        return pa.list_(pa.field("element", arrow_type(avro.items[0])))
    if avro.kind == "map":
        return pa.map_(pa.string(), arrow_type(avro.items[0]))
    if avro.kind == "union":
        return _union_type(avro)
    return _logical_type(avro) or _PLAIN[avro.kind]


def _logical_type(avro: AvroType) -> pa.DataType | None:
    if avro.logical == "decimal" and avro.precision <= MAX_DIGITS:
        return pa.decimal128(avro.precision, avro.scale)
    return {
        "date": pa.date32(),
        "timestamp-millis": pa.timestamp("us", "UTC"),
        "timestamp-micros": pa.timestamp("us", "UTC"),
        "local-timestamp-millis": pa.timestamp("us"),
        "local-timestamp-micros": pa.timestamp("us"),
    }.get(avro.logical)


def _union_type(avro: AvroType) -> pa.DataType:
    found = avro.alternatives
    kinds = {one.kind for one in found}
    if not found:
        return pa.null()
    if len(found) == 1:
        return arrow_type(found[0])
    if kinds == {"int", "long"}:
        return pa.int64()
    if kinds == {"float", "double"}:
        return pa.float64()
    return pa.struct([pa.field(f"member{i}", arrow_type(one)) for i, one in enumerate(found)])


def is_members(kind: pa.DataType) -> bool:
    """True for a struct that stands for a union of several types."""
    return pa.types.is_struct(kind) and all(
        kind.field(i).name.removeprefix("member").isdecimal() and kind.field(i).name.startswith("member")
        for i in range(kind.num_fields)
    )


def match_branches(written: tuple[AvroType, ...], branches: tuple[AvroType, ...]) -> list[AvroType | None]:
    """For each of ``written``, a type or the branches of a union, the branch of the reader's union that it is
    read as: one of the same type and name, else the first that it can be promoted to.

    An alias renames the writer's type, but not if the writer has the branch of the new name too. Namespaces
    count only where there is a choice, and names of records only where one side has several.
    """
    names = [(one.kind, one.name, one) for one in branches]
    names += [(one.kind, alias, one) for one in branches for alias in one.aliases]
    # Of equal names the first counts.
    short = {(kind, _short(name)): one for kind, name, one in reversed(names)}
    whole = {(kind, name): one for kind, name, one in reversed(names)}
    have = {(one.kind, one.name) for one in written}
    renamed: dict[tuple[str, str], AvroType] = {}
    without = [one for one in branches if (one.kind, one.name) not in have]
    for one in without:  # it grows: a branch may lose its name to another
        for key in ((one.kind, alias) for alias in one.aliases if alias != one.name):
            if key in have and key not in renamed:
                renamed[key] = one
                if whole[key].name == key[1]:
                    without.append(whole[key])
    whole |= renamed
    allowed = dict(PROMOTIONS)
    if _records(written) == _records(branches) == 1:
        allowed["record"] = ("record",)
    return [
        whole.get((one.kind, one.name))
        or short.get((one.kind, _short(one.name)))
        or next((branch for branch in branches if branch.kind in allowed.get(one.kind, ())), None)
        for one in written
    ]


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _records(types: tuple[AvroType, ...]) -> int:
    return sum(one.kind == "record" for one in types)


def same_name(written: AvroType, read: AvroType) -> bool:
    """True if the names without namespaces are the same, or an alias of the reader is the writer's."""
    return _short(written.name) in map(_short, (read.name, *read.aliases))


def least_bytes(avro: AvroType) -> int:
    """How many bytes a value of ``avro`` takes at least."""
    if avro.kind == "null":
        return 0
    if avro.kind == "fixed":
        return avro.size
    if avro.kind == "record":
        return min(1 << 30, sum(least_bytes(field.type) for field in avro.fields))
    return {"float": 4, "double": 8}.get(avro.kind, 1)
