"""protobuf: where the schema is from, which types there are, what can be read and written."""

import base64
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from support.protobuf_messages import PROTO3, descriptor

from spark_kafka_native.formats import ColumnFormat, EncodeError, FormatError, load_format
from spark_kafka_native.formats.protobuf import descriptors, protobuf_format
from spark_kafka_native.formats.protobuf.cells import Cells, Findings
from spark_kafka_native.formats.protobuf.compile import compile_proto
from spark_kafka_native.formats.protobuf.descriptors import is_repeated, is_required, to_text
from spark_kafka_native.formats.protobuf.message_types import TypeChoices, message_type
from spark_kafka_native.formats.protobuf.messages import ListCodec
from spark_kafka_native.formats.protobuf.protobuf_format import ProtobufFormat
from spark_kafka_native.formats.protobuf.scalars import EnumCodec

EVERYTHING, PART, NODE = "test.three.Everything", "test.three.Part", "test.three.Node"


def settings(name: str, **options: str) -> dict[str, str]:
    carried = {"descriptor": to_text(descriptor(name)), "message": name, "payload": "value"}
    return carried | {key.replace("_", "."): text for key, text in options.items()}


def type_of(name: str, **options: str) -> Any:
    return ProtobufFormat().resolve_read(settings(name, **options)).type


def made(name: str, /, **values: Any) -> bytes:
    return bytes(GetMessageClass(descriptor(name))(**values).SerializeToString())


def read(kind: pa.DataType, name: str, *payloads: bytes | None, **options: str) -> Any:
    decoded = (
        ProtobufFormat().decoder(kind, settings(name, **options)).decode(pa.array(payloads, pa.binary()))
    )
    decoded.array.validate(full=True)
    return decoded


def write(kind: pa.DataType, name: str, *rows: Any) -> Any:
    encoder = ProtobufFormat().encoder(kind, settings(name))
    return encoder.encode(pa.array(rows, kind)).to_pylist()


def test_a_descriptor_file_is_read_in_the_driver_only(tmp_path: Path) -> None:
    path = tmp_path / "schema.desc"
    path.write_bytes(compile_proto("a.proto", {"a.proto": PROTO3}).SerializeToString())
    given = {"descriptorfile": str(path), "message": PART, "payload": "value"}
    resolved = ProtobufFormat().resolve_read(given)
    path.unlink()
    assert "descriptorfile" not in resolved.settings
    decoder = ProtobufFormat().decoder(resolved.type, resolved.settings)
    assert decoder.decode(pa.array([made(PART, name="x", size=0)])).array.to_pylist() == [
        {"name": "x", "size": 0, "marks": [], "grain": None, "code": None, "label": None, "seed": None}
    ]


def test_programs_without_spark_use_the_same_options(tmp_path: Path) -> None:
    path = tmp_path / "schema.desc"
    path.write_bytes(compile_proto("a.proto", {"a.proto": PROTO3}).SerializeToString())
    named = ColumnFormat("protobuf", settings={"descriptorFile": str(path), "message": PART})
    decoder, kind = named.decoder("value", "topic")
    payloads = pa.array([made(PART, name="x", size=3), None])
    assert kind == type_of(PART)
    assert named.encoder(kind, "value", "topic").encode(decoder.decode(payloads).array).equals(payloads)


def test_a_descriptor_file_made_without_its_imports_gets_googles(tmp_path: Path) -> None:
    path = tmp_path / "schema.desc"
    files = compile_proto("a.proto", {"a.proto": PROTO3})
    alone = FileDescriptorSet(file=[one for one in files.file if one.name == "a.proto"])
    path.write_bytes(alone.SerializeToString())
    given = {"descriptorfile": str(path), "message": EVERYTHING}
    assert ProtobufFormat().resolve_read(given).type == type_of(EVERYTHING)
    alone.file[0].dependency.append("other.proto")
    path.write_bytes(alone.SerializeToString())
    with pytest.raises(FormatError, match=r"has no file other.proto: .*--include_imports"):
        ProtobufFormat().resolve_read(given)


def test_a_descriptor_file_that_is_cut_off_is_refused_though_the_message_is_in_front(tmp_path: Path) -> None:
    path = tmp_path / "schema.desc"
    files = compile_proto("a.proto", {"a.proto": PROTO3})
    files.file.add(name="behind.proto")
    given = {"descriptorfile": str(path), "message": PART}
    path.write_bytes(files.SerializeToString())
    assert ProtobufFormat().resolve_read(given).type == type_of(PART)
    path.write_bytes(files.SerializeToString()[:-1])
    with pytest.raises(FormatError, match=r"schema\.desc is no descriptor set"):
        ProtobufFormat().resolve_read(given)


def test_a_descriptor_file_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    content = compile_proto("a.proto", {"a.proto": PROTO3}).SerializeToString()
    assert descriptors.parse_set(content, "x.desc").file
    monkeypatch.setattr(descriptors, "MAX_DESCRIPTOR_BYTES", len(content) - 1)
    with pytest.raises(FormatError, match=r"x\.desc is longer than"):
        descriptors.parse_set(content, "x.desc")


def test_the_files_of_a_schema_have_one_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = "spark_kafka_native.formats.protobuf.compile.MAX_DESCRIPTOR_BYTES"
    item = 'syntax = "proto3"; message Item { int32 id = 1; }'
    order = 'syntax = "proto3"; import "item.proto"; message Order { Item item = 1; }'
    files = {"order.proto": order, "item.proto": item}
    monkeypatch.setattr(limit, len(order) + len(item))
    assert {one.name for one in compile_proto("order.proto", files).file} == files.keys()
    monkeypatch.setattr(limit, len(order) + len(item) - 1)
    with pytest.raises(FormatError, match=r"order\.proto is longer than"):
        compile_proto("order.proto", files)


def test_a_descriptor_that_travels_in_settings_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(base64.b64decode(to_text(descriptor(PART))))
    monkeypatch.setattr(descriptors, "MAX_DESCRIPTOR_BYTES", size)
    assert descriptors.from_text(to_text(descriptor(PART)), PART).full_name == PART
    monkeypatch.setattr(descriptors, "MAX_DESCRIPTOR_BYTES", size - 1)
    with pytest.raises(FormatError, match=rf"{PART} is longer than"):
        to_text(descriptor(PART))


def test_a_type_may_have_a_limited_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that stands in two places of the type counts twice."""
    monkeypatch.setattr("spark_kafka_native.formats.protobuf.wire.MAX_MESSAGES", 2)
    of_part = pa.struct([("size", pa.int32())])
    two, three = (pa.struct([(name, of_part) for name in names]) for names in (["part"], ["part", "piece"]))
    assert read(two, EVERYTHING, b"").array.to_pylist() == [{"part": None}]
    with pytest.raises(FormatError, match="more than 2 messages"):
        read(three, EVERYTHING, b"")


def test_a_class_is_imported_in_the_driver_only(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_by_protoc")
    module.Part = GetMessageClass(descriptor(PART))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_by_protoc", module)
    resolved = ProtobufFormat().resolve_read({"messageclass": "made_by_protoc.Part"})
    assert resolved.type == type_of(PART)
    assert resolved.settings["message"] == PART
    assert "messageclass" not in resolved.settings
    both = {"messageclass": "made_by_protoc.Part", "message": EVERYTHING}
    with pytest.raises(FormatError, match=f"messageClass is the message '{PART}', not '{EVERYTHING}'"):
        ProtobufFormat().resolve_read(both)
    for name in ("made_by_protoc.Nothing", "no_such_module.Part", "Part", "json.loads"):
        with pytest.raises(FormatError, match="messageClass"):
            ProtobufFormat().resolve_read({"messageclass": name})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "needs descriptorFile and message, or messageClass"),
        ({"descriptorfile": "/nowhere.desc", "message": "M"}, "/nowhere.desc can't be read: No such file"),
        ({"descriptorfile": "/nowhere.desc"}, "needs `message`"),
        ({"descriptorfile": __file__, "message": "M"}, "no descriptor set; protoc writes one with"),
        ({"descriptorfile": "x", "messageclass": "y"}, "exclude each other"),
    ],
)
def test_schemas_that_are_not_there(given: dict[str, str], error: str) -> None:
    with pytest.raises(FormatError, match=error):
        ProtobufFormat().resolve_read(given)


def test_an_unknown_message_is_named_with_those_that_there_are() -> None:
    with pytest.raises(FormatError, match=r"no message 'Prat'.* test.three.Part, test.three.Part.Grain"):
        ProtobufFormat().resolve_read(settings(PART) | {"message": "Prat"})


def test_a_missing_library_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ptars", None)
    with pytest.raises(FormatError, match=r"package ptars: pip install 'spark-kafka-native\[protobuf\]'"):
        ProtobufFormat().resolve_read(settings(PART))


def test_types() -> None:
    kind = type_of(EVERYTHING)
    found = {one.name: str(one.type) for one in kind}
    assert found["a_uint32"] == "int64"
    assert found["a_uint64"] == "decimal128(20, 0)"
    assert found["color"] == "string"
    assert found["at"] == "timestamp[us, tz=UTC]"
    assert found["took"] == "duration[us]"
    assert found["count"] == "struct<value: int64>"
    assert found["thing"] == "struct<type_url: string, value: binary>"
    assert found["by_name"] == "map<string, int64>"
    assert [one.name for one in kind] == [one.name for one in descriptor(EVERYTHING).fields]
    other = type_of(
        EVERYTHING,
        enums_as_ints="true",
        upcast_unsigned_ints="false",
        unwrap_primitive_wrapper_types="true",
    )
    found = {one.name: str(one.type) for one in other}
    assert [found[name] for name in ("a_uint32", "a_uint64", "color", "count", "note")] == [
        "int32",
        "int64",
        "int32",
        "int64",
        "string",
    ]


def test_recursive_messages_need_a_depth() -> None:
    with pytest.raises(FormatError, match=r"Node.next` is recursive .*: recursive.fields.max.depth"):
        message_type(descriptor(NODE), TypeChoices())
    # The user may say a type that is not.
    resolved = ProtobufFormat().resolve_read(settings(NODE))
    assert resolved.type is None
    plain = pa.struct([("value", pa.int32())])
    decoder = ProtobufFormat().decoder(plain, resolved.settings)
    assert decoder.decode(pa.array([made(NODE, value=1)])).array.to_pylist() == [{"value": 1}]
    assert str(type_of(NODE, recursive_fields_max_depth="1")) == "struct<value: int32>"
    kind = type_of(NODE, recursive_fields_max_depth="2")
    assert str(kind.field("next").type) == "struct<value: int32>"
    payload = made(NODE, value=1, next={"value": 2, "next": {"value": 3}}, children=[{}, {"value": 4}])
    assert read(kind, NODE, payload).array.to_pylist() == [
        {"value": 1, "next": {"value": 2}, "children": [{"value": None}, {"value": 4}]}
    ]
    for depth in ("0", "11", "-2", "x", "9" * 5000):
        with pytest.raises(FormatError, match="must be 1 to 10"):
            type_of(NODE, recursive_fields_max_depth=depth)


def test_a_small_descriptor_of_a_huge_type_is_refused() -> None:
    levels = "".join(
        f"message M{i} {{ {''.join(f'M{i + 1} f{j} = {j + 1};' for j in range(10))} }}\n" for i in range(8)
    )
    text = f'syntax = "proto3"; {levels} message M8 {{ int32 x = 1; }}'
    path = compile_proto("a.proto", {"a.proto": text})
    given = {"descriptor": base64.b64encode(path.SerializeToString()).decode(), "message": "M0"}
    with pytest.raises(FormatError, match="more than 10000 fields"):
        ProtobufFormat().resolve_read(given)


def test_a_descriptor_of_messages_in_messages_without_end_is_refused() -> None:
    levels = "".join(f"message M{i} {{ M{i + 1} f = 1; }}\n" for i in range(3_000))
    files = compile_proto(
        "a.proto", {"a.proto": f'syntax = "proto3"; {levels} message M3000 {{ int32 x = 1; }}'}
    )
    given = {"descriptor": base64.b64encode(files.SerializeToString()).decode(), "message": "M0"}
    with pytest.raises(FormatError, match="nested more than 100 deep"):
        ProtobufFormat().resolve_read(given)


def test_a_descriptor_that_calls_its_own_messages_as_googles() -> None:
    text = """syntax = "proto3"; package google.protobuf; message Int64Value { Timestamp value = 1; }
    message Timestamp { int64 seconds = 1; string nanos = 2; }
    message M { Int64Value a = 1; Timestamp b = 2; }"""
    files = compile_proto("a.proto", {"a.proto": text})
    given = {
        "descriptor": base64.b64encode(files.SerializeToString()).decode(),
        "message": "google.protobuf.M",
    }
    resolved = ProtobufFormat().resolve_read(given | {"unwrap.primitive.wrapper.types": "true"})
    assert str(resolved.type.field("a").type) == "struct<value: timestamp[us, tz=UTC]>"
    with pytest.raises(FormatError, match="Timestamp is not Google's"):
        ProtobufFormat().decoder(resolved.type, resolved.settings)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ("int64 value = 1;", "int64"),
        ("int64 value = 2;", "struct<value: int64>"),
        ("repeated int64 value = 1;", "struct<value: list<item: int64>>"),
        ("int64 value = 1; int64 other = 2;", "struct<value: int64, other: int64>"),
    ],
)
def test_a_message_named_as_a_wrapper_is_one_if_it_has_its_field(fields: str, kind: str) -> None:
    text = f"""syntax = "proto3"; package google.protobuf; message Int64Value {{ {fields} }}
    message M {{ Int64Value a = 1; }}"""
    files = compile_proto("a.proto", {"a.proto": text})
    given = {
        "descriptor": base64.b64encode(files.SerializeToString()).decode(),
        "message": "google.protobuf.M",
    }
    resolved = ProtobufFormat().resolve_read(given | {"unwrap.primitive.wrapper.types": "true"})
    assert str(resolved.type.field("a").type) == kind


@pytest.mark.parametrize("name", ["convert.any.fields.to.json", "retain.empty.message.types"])
def test_options_of_spark_that_are_refused(name: str) -> None:
    with pytest.raises(FormatError, match=f"{name} is not supported"):
        ProtobufFormat().resolve_read(settings(PART) | {name: "true"})
    assert ProtobufFormat().resolve_read(settings(PART) | {name: "false"}).type == type_of(PART)


def test_only_what_the_type_asks_for_is_read() -> None:
    kind = pa.struct([("part", pa.struct([("size", pa.int64())])), ("an_int32", pa.int64())])
    payload = made(EVERYTHING, part={"name": "x", "size": 3}, an_int32=-1, a_string="not asked for")
    assert read(kind, EVERYTHING, payload).array.to_pylist() == [{"part": {"size": 3}, "an_int32": -1}]
    # A field that is not asked for is not looked at.
    assert read(kind, EVERYTHING, payload + b"\x72\x01\xff").bad.rows == ()
    with pytest.raises(FormatError, match="has no field 'An_Int32'; did you mean 'an_int32'"):
        read(pa.struct([("An_Int32", pa.int32())]), EVERYTHING)


@pytest.mark.parametrize(
    ("name", "kind", "error"),
    [
        ("a_string", pa.int64(), "`a_string` is string in the message, which can't be int64"),
        ("a_double", pa.float32(), "can't be float"),
        ("a_uint64", pa.decimal128(10, 0), "can't be decimal"),
        ("a_uint64", pa.decimal128(22, 2), "can't be decimal"),
        ("color", pa.binary(), "`color` is test.three.Color in the message"),
        ("part", pa.string(), "`part` is the message test.three.Part: its type must be a struct"),
        ("doubles", pa.float64(), "`doubles` is repeated"),
        ("by_name", pa.list_(pa.string()), "`by_name` is a map"),
        ("at", pa.timestamp("ns"), "must be a struct"),
    ],
)
def test_types_that_a_field_can_t_have(name: str, kind: pa.DataType, error: str) -> None:
    with pytest.raises(FormatError, match=error):
        read(pa.struct([(name, kind)]), EVERYTHING)


def test_of_two_members_of_a_oneof_the_last_one_counts_asked_for_or_not() -> None:
    number, text = made(EVERYTHING, number=5), made(EVERYTHING, text="x")
    both = pa.struct([("number", pa.int32()), ("text", pa.string())])
    payloads = (number + text, text + number, number, number + number, None)
    assert read(both, EVERYTHING, *payloads).array.to_pylist() == [
        {"number": None, "text": "x"},
        {"number": 5, "text": None},
        {"number": 5, "text": None},
        {"number": 5, "text": None},
        None,
    ]
    one = read(pa.struct([("number", pa.int32())]), EVERYTHING, *payloads)
    assert one.array.to_pylist() == [{"number": None}, *[{"number": 5}] * 3, None]
    # The parser that finds out which came last refuses a group that ends as another one.
    refused = read(both, EVERYTHING, number + text + b"\xa3\x06\xac\x06", number)
    assert refused.bad.rows == (0,)
    assert refused.array.to_pylist() == [None, {"number": 5, "text": None}]
    # Deep inside, too, and next to a bad record.
    inner = made(PART, code=1) + made(PART, label="l")
    nested = b"\xca\x02" + bytes([len(inner)]) + inner
    kind = pa.struct([("parts", pa.list_(pa.struct([("code", pa.int64()), ("label", pa.string())])))])
    decoded = read(kind, EVERYTHING, b"\xff", nested)
    assert decoded.bad.rows == (0,)
    assert decoded.array.to_pylist() == [None, {"parts": [{"code": None, "label": "l"}]}]


def test_a_oneof_may_have_two_members() -> None:
    text = 'syntax = "proto3"; message M { oneof kind { int32 a = 1; string b = 2; } }'
    files = compile_proto("a.proto", {"a.proto": text})
    given = {"descriptor": base64.b64encode(files.SerializeToString()).decode(), "message": "M"}
    kind = pa.struct([("a", pa.int32()), ("b", pa.string())])
    payloads = pa.array([b"\x08\x05\x12\x01x", b"\x12\x01x\x08\x05"])
    decoded = ProtobufFormat().decoder(kind, given).decode(payloads)
    assert decoded.array.to_pylist() == [{"a": None, "b": "x"}, {"a": 5, "b": None}]
    alone = ProtobufFormat().decoder(pa.struct([("a", pa.int32())]), given).decode(payloads)
    assert alone.array.to_pylist() == [{"a": None}, {"a": 5}]
    with pytest.raises(EncodeError, match="row 0: `b` is set, and so is another member of its oneof"):
        ProtobufFormat().encoder(kind, given).encode(pa.array([{"a": 5, "b": "x"}], kind))


@pytest.mark.parametrize(
    ("row", "second"),
    [
        ({"code": 1, "label": "l"}, "label"),
        ({"code": 1, "seed": {"x": 1}}, "seed"),
        ({"label": "l", "seed": {"x": 1}}, "seed"),
        ({"code": 0, "label": "", "seed": {"x": 1}}, "label"),
    ],
)
def test_any_two_members_of_a_oneof_are_refused(row: dict[str, Any], second: str) -> None:
    alone = {"label": "l"}
    encoder = ProtobufFormat().encoder(type_of(PART), settings(PART))
    with pytest.raises(EncodeError, match=f"row 1: `{second}` is set, and so is another member of its oneof"):
        encoder.encode(pa.array([alone, row], type_of(PART)))


def test_bad_payloads_write_nothing_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    """But for lengths of 2**64 - 10 or more, of which the page speaks."""
    payloads = [
        b"\xff",
        b"\x0a\xff\xff\xff\xff\x07",
        b"\x0a\xf5" + b"\xff" * 8 + b"\x01",  # 2**64 - 11
        b"\x22" + b"\xff" * 9 + b"\x01",  # of a field that is skipped
        b"\x0b" * 1_000,
        b"\x0a\x01\xff",
    ]
    kind = pa.struct([("name", pa.string()), ("size", pa.int32())])
    assert read(kind, PART, *payloads).bad.rows == tuple(range(len(payloads)))
    assert capfd.readouterr().err == ""


def test_groups_in_one_another_do_not_end_the_process() -> None:
    """They are skipped by recursion, up to the end of the stack; in a child, since that is a crash."""
    script = r"""
import json, sys
import pyarrow as pa
from spark_kafka_native.formats.protobuf.protobuf_format import ProtobufFormat
kind = pa.struct([("a_string", pa.string()), ("part", pa.struct([("name", pa.string())]))])
decoder = ProtobufFormat().decoder(kind, json.loads(sys.argv[1]))
many, good = 300_000, b"\x72\x01x"
for odd in (
    b"\x0b" * many,
    b"\x0b" * many + b"\x0c" * many,
    b"\xfb\x7f" * many + b"\xfc\x7f" * many,
    b"\x13\x0a\x04text" * many + b"\x14" * many,
    b"\x13" * many + b"\x0c" * many,
    good + b"\x8a\x01\xe0\xa7\x12" + b"\x0b" * many,  # in `part`
):
    decoded = decoder.decode(pa.array([good, odd, None, good]))
    assert decoded.array.field(0).to_pylist() == ["x", None, None, "x"]
    assert decoded.bad.rows == (1,), decoded.bad
    assert "groups in one another" in decoded.bad.reasons[0]
"""
    given = json.dumps(settings(EVERYTHING))
    subprocess.run([sys.executable, "-c", script, given], check=True)


def test_groups_in_one_another_are_noticed_beside_short_payloads_and_nulls() -> None:
    """Found before anything is read, since reading ends the process."""
    decoder: Any = ProtobufFormat().decoder(pa.struct([("name", pa.string())]), settings(PART))
    payloads = [b"", None, b"\x0b" * 20_000, made(PART, name="x")]
    assert decoder._engine.too_deep(pa.array(payloads, pa.binary())) == [2]


def test_payloads_with_as_many_bytes_of_the_kind_of_a_group_are_read() -> None:
    """Text, groups behind one another, and groups that are not deep."""
    kind = pa.struct([("a_string", pa.string()), ("maybe_int", pa.int32())])
    text = "sticks" * 100_000
    payloads = [
        made(EVERYTHING, a_string=text, maybe_int=3),
        b"\x2b\x2c" * 100_000 + made(EVERYTHING, maybe_int=4),
        (b"\x2b" * 90 + b"\x2c" * 90) * 1_000 + made(EVERYTHING, maybe_int=5),
        b"\x2b" * 4_000 + b"\x2c" * 4_000 + made(EVERYTHING, maybe_int=6),
    ]
    decoded = read(kind, EVERYTHING, *payloads)
    assert decoded.bad.rows == ()
    assert decoded.array.to_pylist() == [
        {"a_string": text, "maybe_int": 3},
        *({"a_string": None, "maybe_int": number} for number in (4, 5, 6)),
    ]


def test_a_null_over_the_bytes_of_many_groups_is_null() -> None:
    data = pa.array([b"\x0b" * 20_000, made(PART, name="x")])
    hidden = pa.Array.from_buffers(data.type, 2, [pa.py_buffer(b"\x02"), *data.buffers()[1:]])
    decoded = ProtobufFormat().decoder(pa.struct([("name", pa.string())]), settings(PART)).decode(hidden)
    assert (decoded.array.to_pylist(), decoded.bad.rows) == ([None, {"name": "x"}], ())


def test_a_wrapper_is_null_or_has_a_value() -> None:
    kind = pa.struct([("count", pa.int64()), ("note", pa.string())])
    payloads = [b"", made(EVERYTHING, count={}, note={}), made(EVERYTHING, count={"value": 3})]
    decoded = read(kind, EVERYTHING, *payloads)
    rows = [{"count": None, "note": None}, {"count": 0, "note": ""}, {"count": 3, "note": None}]
    assert decoded.array.to_pylist() == rows
    assert write(kind, EVERYTHING, *rows) == payloads


def test_the_last_of_equal_keys_counts() -> None:
    kind = pa.struct([("by_name", pa.map_(pa.string(), pa.int64()))])
    payload = made(EVERYTHING, by_name={"a": 1, "b": 2}) + made(EVERYTHING, by_name={"a": 3})
    other = made(EVERYTHING, by_name={"a": 4})
    decoded = read(kind, EVERYTHING, payload, other, b"\x92\x03\x00")
    found = [sorted(row["by_name"]) for row in decoded.array.to_pylist()]
    assert found == [[("a", 3), ("b", 2)], [("a", 4)], [("", 0)]]


def test_the_last_of_two_equal_keys_counts_where_no_map_has_more_entries() -> None:
    kind = pa.struct([("by_name", pa.map_(pa.string(), pa.int64()))])
    payload = made(EVERYTHING, by_name={"a": 1}) + made(EVERYTHING, by_name={"a": 2})
    other = made(EVERYTHING, by_name={"a": 3})
    decoded = read(kind, EVERYTHING, other, payload, other)
    assert [row["by_name"] for row in decoded.array.to_pylist()] == [[("a", 3)], [("a", 2)], [("a", 3)]]


def test_an_unknown_number_of_a_closed_enum_is_absent() -> None:
    kind = pa.struct([("color", pa.string()), ("red", pa.string()), ("colors", pa.list_(pa.string()))])
    payload = b"\x30\x09\x38\x09\x40\x01\x40\x09\x40\x02"
    row = {"color": None, "red": "RED", "colors": ["GREEN", "RED"]}
    assert read(kind, "test.two.Everything", payload).array.to_pylist() == [row]
    sides = pa.struct([("sides", pa.map_(pa.string(), pa.string()))])
    payload = made("test.two.Sides", sides={"a": 1}) + b"\x0a\x05\x0a\x01b\x10\x09"
    assert read(sides, "test.two.Sides", payload).array.to_pylist() == [{"sides": [("a", "RIGHT")]}]
    unknown = b"\x0a\x05\x0a\x01a\x10\x09"  # of the same key: it is no entry that replaces the other
    for payloads in ([payload + unknown, payload], [unknown + payload, payload + unknown + unknown]):
        found = read(sides, "test.two.Sides", *payloads).array.to_pylist()
        assert found == [{"sides": [("a", "RIGHT")]}] * 2
    assert read(sides, "test.two.Sides", unknown, b"").array.to_pylist() == [{"sides": []}] * 2


def test_unknown_numbers_of_an_open_enum_are_not_read_as_a_neighbour_of_theirs() -> None:
    kind = pa.struct([("color", pa.string())])
    numbers = (9, 1, -7, 2**31 - 1, 9)
    read_back = read(kind, EVERYTHING, *(made(EVERYTHING, color=number) for number in numbers)).array
    unknown = [f"UNKNOWN_ENUM_VALUE_Color_{number}" for number in numbers]
    assert [row["color"] for row in read_back.to_pylist()] == [unknown[0], "GREEN", *unknown[2:]]


def test_an_unknown_number_is_written_into_an_open_enum_only() -> None:
    """Readers of a closed one would take the field for absent."""
    cases: list[tuple[pa.DataType, Any, str]] = [
        (pa.string(), "UNKNOWN_ENUM_VALUE_Color_9", "`color` is no name of the enum Color"),
        (pa.int32(), 9, "`color` is no number of the enum Color"),
    ]
    for kind, unknown, reason in cases:
        struct = pa.struct([("color", kind)])
        rows = {"color": None}, {"color": unknown}
        assert write(struct, EVERYTHING, *rows) == [b"", made(EVERYTHING, color=9)]
        with pytest.raises(EncodeError, match=f"row 1: {reason}"):
            write(struct, "test.two.Everything", *rows)


@pytest.mark.parametrize("number", ["2147483648", "-2147483649", "9999999999", "12345678901", "1.5", ""])
def test_a_number_that_no_enum_can_have_is_the_fault_of_its_row(number: str) -> None:
    struct = pa.struct([("color", pa.string())])
    least = {"color": f"UNKNOWN_ENUM_VALUE_Color_{-(2**31)}"}
    assert write(struct, EVERYTHING, least) == [made(EVERYTHING, color=-(2**31))]
    with pytest.raises(EncodeError, match="row 1: `color` is no name of the enum Color"):
        write(struct, EVERYTHING, least, {"color": f"UNKNOWN_ENUM_VALUE_Color_{number}"})


def test_absent_fields_are_zeros_on_request_only_where_absent_and_zero_are_the_same() -> None:
    scalars = pa.struct(
        [
            ("color", pa.string()),
            ("maybe_int", pa.int32()),
            ("maybe_text", pa.string()),
            ("maybe_color", pa.string()),
            ("number", pa.int32()),
            ("blob", pa.binary()),
        ]
    )
    nulls = dict.fromkeys([one.name for one in scalars])
    part: dict[str, Any] = {
        "name": None,
        "size": None,
        "marks": [],
        "grain": None,
        "code": None,
        "label": None,
        "seed": None,
    }
    for emits, color, name in (("true", "RED", ""), ("false", None, None)):
        found = read(scalars, EVERYTHING, b"", None, emit_default_values=emits)
        assert found.array.to_pylist() == [nulls | {"color": color}, None]
        found = read(type_of(PART), PART, b"", made(PART, grain={}), emit_default_values=emits)
        grain = {"x": 0 if emits == "true" else None}
        assert found.array.to_pylist() == [part | {"name": name}, part | {"name": name, "grain": grain}]


def test_a_zero_that_was_written_is_an_absent_one_where_both_are_the_same() -> None:
    """Some libraries write zeros, and most leave them out: the column must not tell them apart."""
    kind = pa.struct(
        [
            ("an_int32", pa.int32()),
            ("a_bool", pa.bool_()),
            ("a_string", pa.string()),
            ("a_double", pa.float64()),
        ]
    )
    zeros = b"\x18\0\x68\0\x72\0\x09" + bytes(8)
    for emits, row in (("false", dict.fromkeys(one.name for one in kind)), ("true", None)):
        wanted = row or {"an_int32": 0, "a_bool": False, "a_string": "", "a_double": 0.0}
        found = read(kind, EVERYTHING, b"", zeros, emit_default_values=emits)
        assert found.array.to_pylist() == [wanted, wanted]
    (negative,) = read(kind, EVERYTHING, b"\x09" + bytes(7) + b"\x80").array.to_pylist()
    assert str(negative["a_double"]) == "-0.0"
    maybe = pa.struct([("maybe_int", pa.int32())])
    assert read(maybe, EVERYTHING, b"", b"\xe0\x03\0").array.to_pylist() == [
        {"maybe_int": None}, {"maybe_int": 0}
    ]  # fmt: skip


def test_values_that_do_not_fit_are_bad_and_null_and_their_neighbours_are_read() -> None:
    kind = pa.struct(
        [
            ("a_uint32", pa.int32()),
            ("a_uint64", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("uint64s", pa.list_(pa.int64())),
            ("colors_by_number", pa.map_(pa.int64(), pa.int32())),
            ("a_string", pa.string()),
        ]
    )
    rows = [
        {"a_uint32": 2**32 - 1, "a_string": "kept"},
        {"a_uint64": 2**63},
        {"at": {"seconds": 2**40}},
        {"uint64s": [1, 2**64 - 1]},
        {"colors_by_number": {2**63: 1, 1: 1}},
        {"a_uint32": 2**31 - 1},
    ]
    decoded = read(kind, EVERYTHING, *(made(EVERYTHING, **row) for row in rows))
    assert decoded.bad.reasons == (
        "`a_uint32` does not fit int32",
        "`a_uint64` does not fit int64",
        "`at` is out of the range of its type",
        "`uint64s[]` does not fit int64",
        "`colors_by_number[]` does not fit int64",
    )
    found = decoded.array.to_pylist()
    assert found[0]["a_string"] == "kept"
    assert [found[0]["a_uint32"], found[3]["uint64s"], found[4]["colors_by_number"]] == [
        None,
        [1, None],
        [(1, 1)],
    ]
    assert found[5]["a_uint32"] == 2**31 - 1


def test_a_required_field_that_is_missing() -> None:
    kind = pa.struct([("parts", pa.list_(pa.struct([("name", pa.string()), ("size", pa.int32())])))])
    decoded = read(kind, "test.two.Everything", b"\x62\x00\x62\x03\x0a\x01x", b"")
    assert decoded.bad.reasons == ("`parts[].name` is required and missing",)
    assert decoded.array.to_pylist()[0] == {"parts": [{"name": None, "size": 7}, {"name": "x", "size": 7}]}


def test_a_null_is_no_message_that_lacks_a_required_field() -> None:
    kind = pa.struct([("name", pa.string())])
    decoded = read(kind, "test.two.Part", None, b"\x0a\x01x", b"", None, b"\xff")
    assert decoded.array.to_pylist() == [None, {"name": "x"}, {"name": None}, None, None]
    assert decoded.bad.rows == (2, 4)
    assert decoded.bad.reasons[0] == "`name` is required and missing"


def test_rows_that_can_t_be_written_are_named() -> None:
    part = pa.struct([("name", pa.string()), ("size", pa.int64())])
    cases: list[tuple[str, pa.DataType, Any, str]] = [
        ("an_int32", pa.int64(), 2**31, "`an_int32` does not fit int32"),
        ("a_uint32", pa.int64(), -1, "`a_uint32` does not fit uint32"),
        ("a_uint64", pa.decimal128(20, 0), 2**64, "`a_uint64` does not fit uint64"),
        ("a_uint64", pa.decimal128(20, 0), -1, "`a_uint64` does not fit uint64"),
        ("color", pa.string(), "PINK", "`color` is no name of the enum Color"),
        ("int32s", pa.list_(pa.int32()), [1, None], "`int32s[]` is null, and a repeated field holds none"),
        (
            "by_name",
            pa.map_(pa.string(), pa.int64()),
            [("a", None)],
            "`by_name[]` is null, and a map holds none",
        ),
        ("part", part, {"name": "", "size": 2**40}, "`part.size` does not fit int32"),
        ("at", pa.timestamp("us"), -(2**61), "`at` is out of the range of its type"),
    ]
    for name, kind, value, reason in cases:
        struct = pa.struct([(name, kind)])
        with pytest.raises(EncodeError) as raised:
            write(struct, EVERYTHING, None, {name: None}, {name: value})
        assert str(raised.value).startswith(f"row 2: {reason}")
    decimals = pa.struct([("a_uint64", pa.decimal128(20, 0))])
    with pytest.raises(EncodeError, match="row 1: `a_uint64` does not fit uint64"):
        write(decimals, EVERYTHING, {"a_uint64": 7}, {"a_uint64": 2**64}, {"a_uint64": 8})
    with pytest.raises(EncodeError, match="row 0: `text` is set, and so is another member of its oneof"):
        write(
            pa.struct([("number", pa.int32()), ("text", pa.string())]), EVERYTHING, {"number": 1, "text": ""}
        )
    with pytest.raises(EncodeError, match="row 1: `name` is required and missing"):
        write(pa.struct([("name", pa.string())]), "test.two.Part", {"name": ""}, {"name": None})
    with pytest.raises(FormatError, match="has no field 'colour'"):
        write(pa.struct([("colour", pa.string())]), EVERYTHING)


NULL_PART = pa.struct([("name", pa.null()), ("marks", pa.null()), ("size", pa.int32()), ("code", pa.null())])


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        *((name, pa.null(), None) for name in (
            "a_string", "an_int32", "a_bool", "color", "part", "int32s", "parts", "by_name", "maybe_int",
            "maybe_color", "number", "piece", "at", "timestamps", "count", "thing",
        )),
        ("part", NULL_PART, {"size": 5}),
        ("part", pa.struct([("name", pa.null())]), {}),
        ("parts", pa.list_(NULL_PART), [{"size": 5}, {}]),
        ("int32s", pa.list_(pa.null()), []),
        ("parts", pa.list_(pa.null()), None),
        ("by_name", pa.map_(pa.string(), pa.null()), []),
        ("parts_by_id", pa.map_(pa.int32(), NULL_PART), [(3, {"size": 5}), (4, {})]),
    ],
)  # fmt: skip
def test_a_field_of_type_null_is_left_out(name: str, kind: pa.DataType, value: Any) -> None:
    """Data frames give that type to a column without a value, and Spark writes it so."""
    typed = pa.struct([type_of(EVERYTHING).field(one) for one in ("an_int64", name)])
    rows = [{"an_int64": 1, name: value}, None, {"an_int64": 2, name: None}, {"an_int64": 3, name: value}]
    wanted = write(typed, EVERYTHING, *rows)
    of_nulls = pa.struct([("an_int64", pa.int64()), (name, kind)])
    assert write(of_nulls, EVERYTHING, *rows) == wanted
    column = pa.array(rows, of_nulls)
    encoder = ProtobufFormat().encoder(of_nulls, settings(EVERYTHING))
    for start in range(len(rows)):
        assert encoder.encode(column[start:]).to_pylist() == wanted[start:]
    with pytest.raises(FormatError, match="null"):
        read(of_nulls, EVERYTHING, b"")


@pytest.mark.parametrize(
    ("message", "name", "kind", "value", "said"),
    [
        (EVERYTHING, "int32s", pa.list_(pa.null()), [None], "`int32s[]` is null, and a repeated field"),
        (EVERYTHING, "by_name", pa.map_(pa.string(), pa.null()), [("a", None)], "is null, and a map"),
        ("test.two.Part", "name", pa.null(), None, "`name` is required and missing"),
    ],
)
def test_a_null_where_none_may_be(message: str, name: str, kind: pa.DataType, value: Any, said: str) -> None:
    for row in (1, 3):
        rows: list[Any] = [None] * row + [{name: value}]
        with pytest.raises(EncodeError, match=re.escape(said)) as raised:
            write(pa.struct([(name, kind)]), message, *rows)
        assert raised.value.row == row
    with pytest.raises(FormatError, match="has no field 'other'"):
        write(pa.struct([("other", pa.null())]), EVERYTHING)


def test_what_is_behind_a_null_is_not_looked_at() -> None:
    """Arrow says nothing about the bytes there: here a number that would not fit."""
    behind = [pa.py_buffer(bytes([0b10])), pa.py_buffer(np.array([2**40, 5]))]
    column = pa.Array.from_buffers(pa.int64(), 2, behind)
    kind = pa.struct([("an_int32", pa.int64())])
    rows = pa.StructArray.from_arrays([column], fields=list(kind))
    encoder = ProtobufFormat().encoder(kind, settings(EVERYTHING))
    assert encoder.encode(rows).to_pylist() == [b"", made(EVERYTHING, an_int32=5)]


def test_text_that_is_not_utf8_is_not_written() -> None:
    struct = pa.struct([("a_string", pa.string())])
    data = pa.array([b"fine", b"\xff"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 2, data.buffers())
    rows = pa.StructArray.from_arrays([texts], fields=list(struct))
    with pytest.raises(EncodeError, match="row 1: `a_string` is not UTF-8"):
        ProtobufFormat().encoder(struct, settings(EVERYTHING)).encode(rows)


def test_what_is_written_is_what_the_reference_writes() -> None:
    kind = type_of(PART)
    values = {"name": "n", "size": 0, "marks": [1, 0, -1], "code": 7}
    assert write(kind, PART, {**values, "grain": {"x": 0}}) == [made(PART, **values, grain={"x": 0})]
    # A list that is null, with elements under it.
    mask = pa.array(np.array([True, False]))
    column = pa.ListArray.from_arrays([0, 2, 3], pa.array([7, 8, 9], pa.int32()), mask=mask)
    covered = pa.StructArray.from_arrays([column], ["int32s"])
    encoded = ProtobufFormat().encoder(covered.type, settings(EVERYTHING)).encode(covered)
    assert encoded.to_pylist() == [b"", made(EVERYTHING, int32s=[9])]
    # A slice of nested columns, and values that lie under a null.
    rows = pa.array([{**values, "name": str(i)} for i in range(6)], kind)
    encoder = ProtobufFormat().encoder(kind, settings(PART))
    assert encoder.encode(rows.slice(2, 3)).equals(encoder.encode(rows).slice(2, 3))
    hidden = pa.StructArray.from_arrays(
        [pa.array(["x", "y"])], ["name"], mask=pa.array(np.array([True, False]))
    )
    assert ProtobufFormat().encoder(hidden.type, settings(PART)).encode(hidden).to_pylist() == [
        None,
        made(PART, name="y"),
    ]


def test_slices_of_lists_and_maps_are_written_as_their_rows() -> None:
    part = pa.struct([("name", pa.string())])
    kind = pa.struct(
        [
            ("int32s", pa.list_(pa.int32())),
            ("by_name", pa.map_(pa.string(), pa.int64())),
            ("parts", pa.list_(part)),
        ]
    )
    rows = pa.array(
        [
            {"int32s": [1, 2], "by_name": [("a", 1), ("b", 2)], "parts": [{"name": "x"}]},
            {"int32s": [3], "by_name": [("c", 3)], "parts": [{"name": "y"}, {"name": "z"}]},
            {"int32s": [4, 5], "by_name": [("d", 4)], "parts": []},
            {"int32s": [None], "by_name": [("e", None)], "parts": [None]},
        ],
        kind,
    )
    encoder = ProtobufFormat().encoder(kind, settings(EVERYTHING))
    wanted = [write(kind, EVERYTHING, row)[0] for row in rows[:3].to_pylist()]
    for start in range(3):
        for end in range(start, 3):
            assert encoder.encode(rows[start : end + 1]).to_pylist() == wanted[start : end + 1]
    with pytest.raises(EncodeError, match="row 1: "):
        encoder.encode(rows[2:])


def test_many_payloads_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_format, "MAX_EXPANDED_BYTES", 1 << 14)
    kind = type_of(PART)
    payloads = [made(PART, name=f"n{i}") if i % 10 else (None if i % 20 else b"\xff") for i in range(2_000)]
    parts = protobuf_format._parts(pa.array(payloads), width=20)
    assert len(parts) > 20
    assert [start for start, _ in parts] == np.cumsum([0, *(len(one) for _, one in parts[:-1])]).tolist()
    assert sum(len(one) for _, one in parts) == 2_000
    decoded = read(kind, PART, *payloads)
    assert decoded.bad.rows == tuple(range(0, 2_000, 20))
    names = [None if row is None else row["name"] for row in decoded.array.to_pylist()]
    assert names == [f"n{i}" if i % 10 else None for i in range(2_000)]


def test_a_payload_that_is_larger_than_a_part_is_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_format, "MAX_EXPANDED_BYTES", 1 << 10)
    large = "n" * 1_000
    payloads = [made(PART, name=one) for one in (large, "a", large, large, "b", large)]
    assert len(protobuf_format._parts(pa.array(payloads), width=20)) == 6
    kind = pa.struct([("name", pa.string())])
    names = [row["name"] for row in read(kind, PART, *payloads).array.to_pylist()]
    assert names == [large, "a", large, large, "b", large]


def test_a_payload_about_which_the_two_parsers_disagree_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no others."""
    monkeypatch.setattr(protobuf_format.WireEngine, "is_message", lambda *_: True)
    kind = pa.struct([("name", pa.string())])
    decoded = read(kind, PART, made(PART, name="x"), b"\xff", None, made(PART, name="y"))
    assert decoded.array.to_pylist() == [{"name": "x"}, None, None, {"name": "y"}]
    assert decoded.bad.rows == (1,)


def test_a_group_in_a_oneof_does_not_keep_the_others_from_being_read() -> None:
    text = """syntax = "proto2";
    message M { oneof kind { int32 a = 1; group G = 2 { optional int32 x = 1; } string b = 3; } }"""
    files = compile_proto("a.proto", {"a.proto": text})
    given = {"descriptor": base64.b64encode(files.SerializeToString()).decode(), "message": "M"}
    decoder = ProtobufFormat().decoder(pa.struct([("a", pa.int32())]), given)
    payloads = pa.array([b"\x08\x05", b"\x13\x08\x01\x14", b"\x08\x05\x1a\x01x"])
    assert decoder.decode(payloads).array.to_pylist() == [{"a": 5}, {"a": None}, {"a": None}]


def test_a_message_in_a_oneof_ends_the_member_before_it() -> None:
    text = 'syntax = "proto3"; message N { int32 x = 1; } message M { oneof kind { int32 a = 1; N n = 2; } }'
    files = compile_proto("a.proto", {"a.proto": text})
    given = {"descriptor": base64.b64encode(files.SerializeToString()).decode(), "message": "M"}
    decoder = ProtobufFormat().decoder(pa.struct([("a", pa.int32())]), given)
    payloads = pa.array([b"\x08\x05\x12\x00", b"\x12\x02\x08\x01\x08\x05", b"\x12\x00"])
    assert decoder.decode(payloads).array.to_pylist() == [{"a": None}, {"a": 5}, {"a": None}]


@pytest.mark.parametrize("name", ["../up.proto", "/etc/x.proto", "a\\b.proto", "", "a\0.proto"])
def test_names_of_imports_stay_in_their_folder(name: str) -> None:
    with pytest.raises(FormatError, match="which is refused"):
        compile_proto("a.proto", {"a.proto": PROTO3, name: PROTO3})


def test_proto_text_that_does_not_compile() -> None:
    with pytest.raises(FormatError, match=r"a.proto can't be compiled: a.proto:1:"):
        compile_proto("a.proto", {"a.proto": "message {"})


def test_modules_of_the_current_folder_do_not_compile_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may write to that folder: their code would be executed."""
    package = tmp_path / "grpc_tools"
    package.mkdir()
    (package / "__init__.py").write_text("open('executed', 'w')\n")
    monkeypatch.chdir(tmp_path)
    files = compile_proto("a.proto", {"a.proto": PROTO3})
    assert "a.proto" in [one.name for one in files.file]
    assert not (tmp_path / "executed").exists()


def test_it_is_found_by_its_name() -> None:
    assert isinstance(load_format("protobuf"), ProtobufFormat)


class OldField:
    """A field as protobuf before 6.31 describes it."""

    LABEL_REQUIRED, LABEL_REPEATED = 2, 3

    def __init__(self, label: int) -> None:
        self.label = label


def test_labels_of_older_protobufs() -> None:
    fields: list[Any] = [OldField(label) for label in (1, 2, 3)]
    assert [is_required(one) for one in fields] == [False, True, False]
    assert [is_repeated(one) for one in fields] == [False, False, True]


@pytest.mark.parametrize(
    ("name", "seconds", "nanos", "fits"),
    [
        ("at", -62_135_596_800, 0, True),
        ("at", -62_135_596_801, 999_999_999, False),
        ("at", 253_402_300_799, 999_999_999, True),
        ("at", 253_402_300_800, 0, False),
        ("at", 0, 1_000_000_000, False),
        ("at", 0, -1, False),
        ("took", 315_576_000_000, 0, True),
        ("took", 315_576_000_001, 0, False),
        ("took", -(2**63), 0, False),
        ("took", -1, -999_999_999, True),
        ("took", -1, 1, False),
        ("took", 1, -1, False),
        ("took", 0, 1_000_000_000, False),
        ("took", 0, -1_000_000_000, False),
    ],
)
def test_the_limits_of_times(name: str, seconds: int, nanos: int, fits: bool) -> None:
    kind = pa.struct([(name, pa.timestamp("us", "UTC") if name == "at" else pa.duration("us"))])
    decoded = read(kind, EVERYTHING, made(EVERYTHING, **{name: {"seconds": seconds, "nanos": nanos}}))
    assert decoded.bad.reasons == (() if fits else (f"`{name}` is out of the range of its type",))
    micros = int(nanos / 1_000) if nanos < 0 else nanos // 1_000
    wanted = seconds * 1_000_000 + micros if fits else None
    assert decoded.array.field(0).view(pa.int64()).to_pylist() == [wanted]


@pytest.mark.parametrize(
    ("name", "micros", "fits"),
    [
        ("at", -62_135_596_800_000_000, True),
        ("at", -62_135_596_800_000_001, False),
        ("at", 253_402_300_799_999_999, True),
        ("at", 253_402_300_800_000_000, False),
        ("took", 315_576_000_000_000_000, True),
        ("took", 315_576_000_001_000_000, False),
        ("took", -315_576_000_000_000_000, True),
        ("took", -315_576_000_001_000_000, False),
    ],
)
def test_the_limits_of_times_that_are_written(name: str, micros: int, fits: bool) -> None:
    kind = pa.timestamp("us", "UTC") if name == "at" else pa.duration("us")
    encoder = ProtobufFormat().encoder(pa.struct([(name, kind)]), settings(EVERYTHING))

    def encode(*values: int, valid: bytes | None = None) -> list[bytes | None]:
        data = pa.array(values, pa.int64()).buffers()[1]
        bits = None if valid is None else pa.py_buffer(valid)
        column = pa.Array.from_buffers(kind, len(values), [bits, data])
        return encoder.encode(pa.StructArray.from_arrays([column], [name])).to_pylist()

    if fits:
        seconds, rest = divmod(micros, 1_000_000)
        time = {"seconds": seconds, "nanos": rest * 1_000}
        assert encode(0, micros)[1] == made(EVERYTHING, **{name: time})
    else:
        with pytest.raises(EncodeError, match=f"row 1: `{name}` is out of the range of its type"):
            encode(0, micros)
    # Under a null it is no value.
    assert encode(0, micros, valid=b"\x01") == [encode(0)[0], b""]


def test_the_parts_of_a_duration_have_one_sign() -> None:
    """Others are refused by its readers."""
    kind = pa.struct([("took", pa.duration("us"))])
    micros = [-1, -500_000, -1_000_000, -1_500_000, 0, 1, 1_500_000]
    parts = [
        (0, -1_000),
        (0, -500_000_000),
        (-1, 0),
        (-1, -500_000_000),
        (0, 0),
        (0, 1_000),
        (1, 500_000_000),
    ]
    written = write(kind, EVERYTHING, *({"took": one} for one in micros))
    assert written == [made(EVERYTHING, took={"seconds": s, "nanos": n}) for s, n in parts]
    assert read(kind, EVERYTHING, *written).array.field(0).view(pa.int64()).to_pylist() == micros


def test_lists_of_a_closed_enum_may_begin_within_others() -> None:
    """A number that it does not name takes no place in the list."""
    closed = EnumCodec(pa.string(), "E", (("A", 0), ("B", 1)), True)
    raw = pa.array([[0], [1], [9, 1]], pa.list_(pa.int32()))[1:]
    read = ListCodec(pa.list_(pa.string()), closed).read(raw, Cells(2, Findings()))
    assert read.to_pylist() == [["B"], ["B"]]


def test_a_descriptor_file_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    """Opening it waited for a writer."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="pipe is not a regular file"):
        load_format("protobuf").resolve_read({"descriptorfile": str(tmp_path / "pipe"), "message": "x"})
