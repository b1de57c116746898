"""Random messages, and what they are as rows: by the reference implementation, field by field in Python."""

from __future__ import annotations

import functools
import random
import string
from decimal import Decimal
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from spark_kafka_native.formats.protobuf.compile import compile_proto
from spark_kafka_native.formats.protobuf.descriptors import in_order

_FIELDS = """
  double a_double = 1; float a_float = 2; int32 an_int32 = 3; int64 an_int64 = 4; uint32 a_uint32 = 5;
  uint64 a_uint64 = 6; sint32 a_sint32 = 7; sint64 a_sint64 = 8; fixed32 a_fixed32 = 9;
  fixed64 a_fixed64 = 10; sfixed32 an_sfixed32 = 11; sfixed64 an_sfixed64 = 12; bool a_bool = 13;
  string a_string = 14;
  bytes some_bytes = 15; Color color = 16; Part part = 17;
"""
_SCALARS = ["double", "float", "int32", "sint64", "uint32", "uint64", "fixed32", "bool", "string", "bytes"]
_LISTS = "".join(
    f"  repeated {kind} {kind.lower().rpartition('.')[2]}s = {number};\n"
    for number, kind in enumerate(
        [*_SCALARS, "Color", "Part", "google.protobuf.Timestamp"],
        30,
    )
)
_MAPS = """
  map<string, int64> by_name = 50; map<int32, Part> parts_by_id = 51; map<bool, string> by_bool = 52;
  map<uint64, Color> colors_by_number = 53; map<sint32, google.protobuf.Duration> waits = 54;
"""
PROTO3 = f"""
syntax = "proto3";
package test.three;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/any.proto";
enum Color {{ option allow_alias = true; RED = 0; GREEN = 1; LIME = 1; BLUE = -5; }}
message Part {{ string name = 1; optional int32 size = 2; repeated int32 marks = 3; Grain grain = 4;
  oneof kind {{ int64 code = 5; string label = 6; Grain seed = 7; }} message Grain {{ int32 x = 1; }} }}
message Everything {{
{_FIELDS}{_LISTS}{_MAPS}
  optional int32 maybe_int = 60; optional string maybe_text = 61; optional Color maybe_color = 62;
  oneof choice {{ int32 number = 70; string text = 71; Part piece = 72; Color shade = 73; bytes blob = 74; }}
  google.protobuf.Timestamp at = 80; google.protobuf.Duration took = 81;
  google.protobuf.Int64Value count = 82;
  google.protobuf.StringValue note = 83; google.protobuf.Any thing = 84;
  repeated int32 unpacked = 90 [packed = false];
}}
message Node {{ int32 value = 1; Node next = 2; repeated Node children = 3; }}
"""
PROTO2 = """
syntax = "proto2";
package test.two;
enum Color { GREEN = 1; RED = 2; }
enum Side { LEFT = 0; RIGHT = 1; }
message Sides { map<string, Side> sides = 1; }
message Part { required string name = 1; optional int32 size = 2 [default = 7]; }
message Everything {
  optional int32 plain = 1; optional int32 seven = 2 [default = 7];
  optional string text = 3 [default = "t\\303\\251"];
  optional bytes data = 4 [default = "\\377"]; optional bool yes = 5 [default = true];
  optional Color color = 6; optional Color red = 7 [default = RED]; repeated Color colors = 8;
  repeated int32 numbers = 9; repeated int32 packed = 10 [packed = true]; optional Part part = 11;
  repeated Part parts = 12; map<string, int32> by_name = 13; optional double ratio = 14 [default = -inf];
}
"""


@functools.cache
def descriptor(name: str) -> Descriptor:
    """The message ``name`` of the two files above."""
    proto = PROTO3 if name.startswith("test.three") else PROTO2
    pool = DescriptorPool()
    for file in in_order(compile_proto("test.proto", {"test.proto": proto})):
        pool.Add(file)
    return pool.FindMessageTypeByName(name)


_FLOATS = [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e-40]
_TEXT = string.ascii_letters + "é€😀\0"


def scalar(kind: int, rng: random.Random) -> Any:
    bits = 64 if kind in (3, 4, 6, 16, 18) else 32
    if kind in (1, 2):
        return rng.choice([*_FLOATS, rng.randrange(1000) / 8])
    if kind == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.TYPE_STRING:
        return "".join(rng.choices(_TEXT, k=rng.choice([0, 1, 5, 200])))
    if kind == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice([0, 1, 5]))
    if kind in (4, 6, 7, 13):
        return rng.choice([0, 1, 2**bits - 1, rng.getrandbits(bits)])
    low = -(2 ** (bits - 1))
    return rng.choice([0, 1, -1, low, -low - 1, low + rng.getrandbits(bits)])


def _value(field: FieldDescriptor, rng: random.Random, depth: int) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = [one.number for one in field.enum_type.values]
        return rng.choice(known if field.enum_type.is_closed else [*known, 77])
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return random_message(field.message_type, rng, depth + 1)
    return scalar(field.type, rng)


def random_message(kind: Descriptor, rng: random.Random, depth: int = 0) -> Any:
    """A message with some of its fields; times and required fields are right."""
    message = GetMessageClass(kind)()
    if kind.full_name.endswith((".Timestamp", ".Duration")):
        message.seconds = rng.choice([0, -1, 1_700_000_000, rng.randrange(-62_135_596_800, 253_402_300_800)])
        message.nanos = rng.choice([0, 1, 999_999_999, rng.randrange(10**9)])
        if kind.full_name.endswith(".Duration") and message.seconds < 0:
            message.nanos = -message.nanos
        return message
    share = rng.choice([0.1, 0.5, 0.9]) if depth < 3 else 0.2
    for field in kind.fields:
        if not field.is_required and rng.random() > share:
            continue
        if field.is_repeated:
            _fill_repeated(message, field, rng, depth)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(message, field.name).CopyFrom(_value(field, rng, depth))
        else:
            setattr(message, field.name, _value(field, rng, depth))
    return message


def _fill_repeated(message: Any, field: FieldDescriptor, rng: random.Random, depth: int) -> None:
    target = getattr(message, field.name)
    for _ in range(rng.choice([0, 1, 2, 5])):
        if field.type != FieldDescriptor.TYPE_MESSAGE or not field.message_type.GetOptions().map_entry:
            target.append(_value(field, rng, depth))
        else:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            if value.type == FieldDescriptor.TYPE_MESSAGE:
                target[_value(key, rng, depth)].CopyFrom(_value(value, rng, depth))
            else:
                target[_value(key, rng, depth)] = _value(value, rng, depth)


def expected(message: Any, *, emits_defaults: bool = False) -> dict[str, Any]:
    """The row of ``message``, as `normal` makes those of Arrow comparable."""
    return {one.name: _field(message, one, emits_defaults) for one in message.DESCRIPTOR.fields}


def _field(message: Any, field: FieldDescriptor, emits: bool) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            pairs = [
                (_plain(key, entry["key"], emits), _plain(value[key], entry["value"], emits)) for key in value
            ]
            return sorted(pairs, key=repr)
        return [_plain(one, field, emits) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return _plain(field.default_value, field, emits) if field.has_default_value else None
    is_absent = not field.has_presence and all(field.name != one.name for one, _ in message.ListFields())
    return None if is_absent and not emits else _plain(value, field, emits)


def _plain(value: Any, field: FieldDescriptor, emits: bool) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        first = next((one.name for one in field.enum_type.values if one.number == value), None)
        return first if known else f"UNKNOWN_ENUM_VALUE_{field.enum_type.name}_{value}"
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        name = value.DESCRIPTOR.full_name
        if name == "google.protobuf.Timestamp":
            return value.seconds * 1_000_000 + value.nanos // 1_000
        if name == "google.protobuf.Duration":
            return value.seconds * 1_000_000 + int(value.nanos / 1_000)
        return expected(value, emits_defaults=emits)
    if field.type in (4, 6):
        return Decimal(value)
    return repr(value) if isinstance(value, float) else value


def normal(value: Any) -> Any:
    """A row of Arrow, taken with ``to_pylist`` where times are numbers, in the form of `expected`."""
    if isinstance(value, dict):
        return {name: normal(one) for name, one in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return sorted(((normal(k), normal(v)) for k, v in value), key=repr)
        return [normal(one) for one in value]
    return repr(value) if isinstance(value, float) else value


NASTY = [0, 1, 2, 5, 8, 0x0A, 0x0B, 0x0C, 0x12, 0x7F, 0x80, 0xFF, 0xFE]


def mutate(payload: bytes, rng: random.Random) -> bytes:
    """A payload with a few of its bytes changed, gone, or there twice."""
    data = bytearray(payload)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if at < len(data):
                data[at] = rng.choice(NASTY)
            case 1 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.randrange(1, 4)]
            case 3:
                data[at:at] = bytes(rng.choices(NASTY, k=rng.randrange(1, 4)))
            case _:
                data[at:at] = data[rng.randrange(len(data) + 1) :][:30]
    return bytes(data)
