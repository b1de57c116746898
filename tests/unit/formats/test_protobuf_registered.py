"""Messages of a schema registry: which message it is, and what stands before each of them."""

import base64
import errno
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from spark_kafka_native.formats.errors import FormatError, SetupError
from spark_kafka_native.formats.protobuf import protobuf_format, registered
from spark_kafka_native.formats.protobuf.compile import compile_proto
from spark_kafka_native.formats.protobuf.protobuf_format import ProtobufFormat
from spark_kafka_native.formats.protobuf.registered import _indexes, _read_indexes
from spark_kafka_native.formats.registry import RegisteredSchema, SchemaReference, frame_id


class FakeRegistry:
    url = "https://registry"

    def __init__(self, schemas: dict[int, RegisteredSchema]) -> None:
        self.schemas = schemas
        self.asked: list[Any] = []

    def schema(self, id: int) -> RegisteredSchema:
        return self.schemas[id]

    schema_just_given = schema

    def schemas_of_records(self, keys: list[int]) -> dict[int, RegisteredSchema]:
        return {key: self.schema(key) for key in keys}

    def latest(self, _subject: str) -> RegisteredSchema:
        return self.schemas[max(self.schemas)]

    def lookup(self, subject: str, text: str, *_: Any) -> int:
        self.asked.append((subject, text))
        return 2


FIRST = 'syntax = "proto3"; package r; message Order { int32 id = 1; }'
SECOND = """syntax = "proto3"; package r; import "shared/item.proto";
message Note { string text = 1; } message Order { int32 id = 1; s.Item item = 3;
  message Line { int32 n = 1; } }"""
MOVED = 'syntax = "proto3"; package r; message Order { int32 id = 1; } message Note { string text = 1; }'
ITEM = 'syntax = "proto3"; package s; message Item { string sku = 1; }'


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> FakeRegistry:
    item = SchemaReference("shared/item.proto", RegisteredSchema(type="PROTOBUF", text=ITEM, id=9))
    fake = FakeRegistry(
        {
            1: RegisteredSchema(type="PROTOBUF", text=FIRST, id=1),
            2: RegisteredSchema(type="PROTOBUF", text=SECOND, id=2, references=(item,)),
        }
    )
    monkeypatch.setattr(protobuf_format.SchemaRegistry, "from_settings", lambda _: fake)
    return fake


def test_versions_of_a_message_are_read_under_the_latest(registry: FakeRegistry) -> None:
    given = {"topic": "orders", "payload": "value", "message": "r.Order"}
    resolved = ProtobufFormat().resolve_read(given)
    assert str(resolved.type) == "struct<id: int32, item: struct<sku: string>>"
    decoder = ProtobufFormat().decoder(resolved.type, resolved.settings)
    body = b"\x08\x05"
    payloads = [
        frame_id(1) + b"\0" + body,
        frame_id(2) + b"\x02\x02" + body + b"\x1a\x03\x0a\x01k",
        frame_id(2) + b"\0" + body,
        frame_id(2) + b"\x04\x02\x00" + body,
        frame_id(2) + b"\x02\x08",
        frame_id(2) + b"\xff\xff",
        frame_id(2),
        frame_id(2) + b"\x02\x02",
        None,
    ]
    decoded = decoder.decode(pa.array(payloads))
    row = {"id": 5, "item": None}
    second = {"id": 5, "item": {"sku": "k"}}
    assert decoded.array.to_pylist() == [row, second, *[None] * 5, {"id": None, "item": None}, None]
    assert dict(zip(decoded.bad.rows, decoded.bad.reasons, strict=True)) == {
        2: "it is a message r.Note, not r.Order",
        3: "it is a message r.Order.Line, not r.Order",
        4: "it is a message with the indexes [4], not r.Order",
        5: "message indexes that break off",
        6: "message indexes that break off",
    }


def test_bad_indexes_and_bad_messages_are_named_in_the_order_of_their_rows(registry: FakeRegistry) -> None:
    resolved = ProtobufFormat().resolve_read({"topic": "orders", "payload": "value", "message": "r.Order"})
    decoder = ProtobufFormat().decoder(resolved.type, resolved.settings)
    good, broken, other, odd = b"\x02\x02\x08\x05", b"\x02\x02\x08", b"\0\x08\x05", b"\x01"
    heads = [good, broken, other, broken, odd, good, None, other, broken]
    payloads = [None if one is None else frame_id(2) + one for one in heads]
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    assert [row and row["id"] for row in decoded.array.to_pylist()] == [5, *[None] * 4, 5, *[None] * 3]
    assert decoded.bad.rows == (1, 2, 3, 4, 7, 8)
    for row, reason in zip(decoded.bad.rows, decoded.bad.reasons, strict=True):
        assert ("not r.Order" in reason) == (heads[row] == other)
        assert ("message indexes" in reason) == (heads[row] == odd)


@pytest.mark.parametrize("name", ["schema.proto", "_schema.proto"])
def test_an_imported_file_may_have_any_name(registry: FakeRegistry, name: str) -> None:
    """The schema's own file took its place: it was said to import itself."""
    other = SchemaReference("schema.proto", RegisteredSchema(type="PROTOBUF", text=ITEM, id=9))
    references = tuple({one.name: one for one in (other, replace(other, name=name))}.values())
    text = f'syntax = "proto3"; package r; import "{name}"; message Order {{ s.Item x = 2; }}'
    if len(references) > 1:
        references = (replace(other, schema=replace(other.schema, text='syntax = "proto3";')), references[1])
    registry.schemas[2] = RegisteredSchema(type="PROTOBUF", text=text, id=2, references=references)
    resolved = ProtobufFormat().resolve_read({"topic": "orders", "payload": "value"})
    assert str(resolved.type) == "struct<x: struct<sku: string>>"


@pytest.mark.parametrize(
    ("imported", "field", "type_"),
    [
        (
            "confluent/type/decimal.proto",
            "confluent.type.Decimal x = 2;",
            "value: binary, precision: int64, scale: int32",
        ),
        ("google/type/date.proto", "google.type.Date x = 2;", "year: int32, month: int32, day: int32"),
        (
            "confluent/meta.proto",
            's.Item x = 2 [(confluent.field_meta) = { doc: "a", tags: ["b"] }];',
            "sku: string",
        ),
    ],
)
@pytest.mark.parametrize("is_text", [True, False], ids=["text", "descriptor"])
def test_files_that_registries_keep_no_references_for(
    registry: FakeRegistry, imported: str, field: str, type_: str, is_text: bool
) -> None:
    imports = f'import "{imported}"; import "shared/item.proto";'
    text = f'syntax = "proto3"; package r; {imports} message Order {{ {field} }}'
    references = registry.schemas[2].references
    if not is_text:
        texts = {one.name: one.schema.text for one in references} | {"a.proto": text}
        files = {one.name: one.SerializeToString() for one in compile_proto("a.proto", texts).file}
        text, *others = (base64.b64encode(files[name]).decode() for name in ("a.proto", *list(texts)[:-1]))
        references = tuple(
            replace(one, schema=replace(one.schema, text=other))
            for one, other in zip(references, others, strict=True)
        )
    registry.schemas[2] = RegisteredSchema(type="PROTOBUF", text=text, id=2, references=references)
    resolved = ProtobufFormat().resolve_read({"topic": "orders", "payload": "value"})
    assert str(resolved.type) == f"struct<x: struct<{type_}>>"


def no_memory(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def too_slow(*_: Any, **__: Any) -> Any:
    raise subprocess.TimeoutExpired("protoc", 60)


def ended(code: int, words: str) -> Callable[..., Any]:
    return lambda *_, **__: SimpleNamespace(returncode=code, stderr=words)


@pytest.mark.parametrize(
    "run",
    [
        no_memory,
        too_slow,
        ended(1, "/usr/bin/python: No module named grpc_tools"),
        ended(-9, ""),
        ended(1, "/tmp/x/out: No space left on device"),
        ended(-6, "terminate called after throwing an instance of 'std::bad_alloc'"),
    ],
)
@pytest.mark.parametrize("id_", [1, 2])
def test_records_are_not_bad_because_this_machine_can_not_compile(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any], id_: int
) -> None:
    """With dropmalformed they were lost, and the query went on."""
    resolved = ProtobufFormat().resolve_read({"topic": "orders", "payload": "value", "message": "r.Order"})
    decoder = ProtobufFormat().decoder(resolved.type, resolved.settings)
    registered._files.cache_clear()
    payloads = pa.array([frame_id(id_) + b"\x02\x02\x08\x05"])
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", run)
        with pytest.raises(SetupError):
            decoder.decode(payloads)
    assert decoder.decode(payloads).bad.rows == ((0,) if id_ == 1 else ())


@pytest.mark.parametrize(
    "text",
    [
        "message {",
        "message M { option map_entry = true; option map_entry = true; }",
        'import "No space left on device.proto";',
        f'import "google/protobuf/descriptor.proto"; extend google.protobuf.FileOptions {{ M m = 50000; }} '
        f"message M {{ M m = 1; }} option (m) = {'{ m: ' * 20_000}{'}' * 20_000};",
    ],
    ids=["wrong", "entry", "import", "crash"],
)
def test_records_of_a_schema_that_does_not_compile_are_bad(registry: FakeRegistry, text: str) -> None:
    resolved = ProtobufFormat().resolve_read({"topic": "orders", "payload": "value", "message": "r.Order"})
    decoder = ProtobufFormat().decoder(resolved.type, resolved.settings)
    registry.schemas[3] = RegisteredSchema(type="PROTOBUF", text=f'syntax = "proto3"; {text}', id=3)
    decoded = decoder.decode(pa.array([frame_id(3) + b"\0", frame_id(1) + b"\0"]))
    assert decoded.bad.rows == (0,)
    assert "can't be compiled" in decoded.bad.reasons[0]


def _binary(name: str, sources: dict[str, str]) -> str:
    [file] = [one for one in compile_proto(name, sources).file if one.name == name]
    return base64.b64encode(file.SerializeToString()).decode()


ENTRIES = """// Proto schema formatted by Wire, do not edit.
syntax = "proto3";
package r;

message Order {
  repeated .r.Order.StockEntry stock = 1;

  message StockEntry {
    option map_entry = true;
  %s
    string key = 1;
    int32 value = 2;
  }
  message Line {
    int32 n = 1;
  }
}
"""


def test_maps_whose_entries_stand_in_the_text(registry: FakeRegistry) -> None:
    """As Confluent's registry writes schemas that were registered as descriptors."""
    other = """/* option map_entry = true; " */ option deprecated = true; // option map_entry = true; '"""
    for id, text in (
        (1, 'syntax = "proto3"; package r; message Order { map<string, int32> stock = 1; }'),
        (2, ENTRIES % ""),
        (3, ENTRIES % other),
    ):
        registry.schemas[id] = RegisteredSchema(type="PROTOBUF", text=text, id=id)
    given = {"topic": "orders", "payload": "value"}
    resolved = ProtobufFormat().resolve_read(given)
    assert str(resolved.type) == "struct<stock: map<string, int32>>"
    payloads = [frame_id(id) + b"\0\x0a\x05\x0a\x01k\x10\x07" for id in (1, 2, 3)]
    decoded = ProtobufFormat().decoder(resolved.type, resolved.settings).decode(pa.array(payloads))
    assert decoded.bad.reasons == ()
    assert decoded.array.to_pylist() == [{"stock": [("k", 7)]}] * 3
    written = ProtobufFormat().resolve_write(resolved.type, given)
    encoder = ProtobufFormat().encoder(resolved.type, written.settings)
    assert encoder.encode(decoded.array).to_pylist() == [payloads[-1]] * 3


MAPS = """syntax = "proto3"; package r; message Order { map<string, int32> stock = 1;
  message A { int32 n = 1; } map<string, A> by_name = 2; message B { int32 n = 1; }
  message C { int32 n = 1; map<string, int32> more = 2; message Inner { int32 n = 1; } } }"""
BOTH = "its indexes [0, 1] mean a message r.Order.B, or r.Order.A if entries of maps count"


@pytest.mark.parametrize(
    ("name", "read", "reasons"),
    [
        ("r.Order.A", [(0, 0)], {(0, 1): BOTH, (0, 2): "it is a message r.Order.C, not r.Order.A"}),
        (
            "r.Order.B",
            [(0, 3)],
            {(0, 1): BOTH, (0, 5): "it is a message with the indexes [0, 5], not r.Order.B"},
        ),
        ("r.Order.C", [(0, 2), (0, 4)], {(0, 0): "it is a message r.Order.A, not r.Order.C"}),
        (
            "r.Order.C.Inner",
            [(0, 2, 0), (0, 4, 1)],
            {(0, 2): "it is a message r.Order.C, not r.Order.C.Inner"},
        ),
    ],
)
def test_entries_of_maps_count_or_not(
    registry: FakeRegistry, name: str, read: list[tuple[int, ...]], reasons: dict[tuple[int, ...], str]
) -> None:
    """Java counts what stands in the text, others the entries of maps, too: A was read as B."""
    registry.schemas[2] = RegisteredSchema(type="PROTOBUF", text=MAPS, id=2)
    resolved = ProtobufFormat().resolve_read({"topic": "orders", "payload": "value", "message": name})
    decoder = ProtobufFormat().decoder(resolved.type, resolved.settings)
    payloads = [frame_id(2) + _indexes(path) + b"\x08\x05" for path in (*read, *reasons)]
    decoded = decoder.decode(pa.array(payloads))
    assert [row and row["n"] for row in decoded.array.to_pylist()] == [5] * len(read) + [None] * len(reasons)
    assert decoded.bad.reasons == tuple(reasons.values())


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        (MAPS, "A", (0, 0)),
        (MAPS, "B", (0, 1)),
        (MAPS, "C.Inner", (0, 2, 0)),
        (ENTRIES % "", "Line", (0, 1)),
        (_binary("a.proto", {"a.proto": ENTRIES % ""}), "Line", (0, 1)),
    ],
    ids=["first", "second", "within", "entries in the text", "descriptor"],
)
def test_indexes_are_written_as_java_counts(
    registry: FakeRegistry, text: str, name: str, path: tuple[int, ...]
) -> None:
    registry.schemas[2] = RegisteredSchema(type="PROTOBUF", text=text, id=2)
    given = {"topic": "orders", "payload": "value", "message": f"r.Order.{name}"}
    kind = pa.struct([("n", pa.int32())])
    encoder = ProtobufFormat().encoder(kind, ProtobufFormat().resolve_write(kind, given).settings)
    assert encoder.encode(pa.array([{"n": 5}], kind)).to_pylist() == [
        frame_id(2) + _indexes(path) + b"\x08\x05"
    ]


def test_an_imported_message_is_not_written_as_one_of_the_file(registry: FakeRegistry) -> None:
    """No indexes name it: with those in its own file it was read as another one."""
    given = {"topic": "orders", "payload": "value", "message": "s.Item"}
    with pytest.raises(FormatError, match="only imports the message"):
        ProtobufFormat().resolve_write(pa.struct([("sku", pa.string())]), given)


def test_indexes_that_break_off_do_not_go_on_in_the_next_record(registry: FakeRegistry) -> None:
    resolved = ProtobufFormat().resolve_read({"topic": "orders", "payload": "value", "message": "r.Order"})
    decoder = ProtobufFormat().decoder(resolved.type, resolved.settings)
    # Behind the second one's first byte the next one's 2 is the index of the message.
    heads = [b"\x02\x02\x08\x05", b"\x02", b"\x02\x02\x08\x06", b"\x02"]
    payloads, headers = pa.array(heads, pa.binary()), pa.array([frame_id(2)] * 4, pa.binary())
    for given in ((pa.array([frame_id(2) + one for one in heads]),), (payloads, headers)):
        decoded = decoder.decode(*given)
        assert [row and row["id"] for row in decoded.array.to_pylist()] == [5, None, 6, None]
        assert dict(zip(decoded.bad.rows, decoded.bad.reasons, strict=True)) == {
            1: "message indexes that break off",
            3: "message indexes that break off",
        }


def test_the_indexes_that_are_kept_have_a_limit(registry: FakeRegistry) -> None:
    """Payloads of something else may have any."""
    resolved = ProtobufFormat().resolve_read({"topic": "orders", "payload": "value", "message": "r.Order"})
    decoder = ProtobufFormat().decoder(resolved.type, resolved.settings)
    decoded = decoder.decode(pa.array([frame_id(2) + _indexes((index,)) for index in range(2_100)]))
    assert decoded.bad.rows == (0, *range(2, 2_100))
    assert decoded.bad.reasons[-1] == "it is a message with the indexes [2099], not r.Order"
    assert len(decoder._decoders[2]._refusals) <= 1_001


def test_the_first_message_is_the_default_and_indexes_stand_in_front(registry: FakeRegistry) -> None:
    given = {"topic": "orders", "payload": "value"}
    assert str(ProtobufFormat().resolve_read(given).type) == "struct<text: string>"
    kind = pa.struct([("n", pa.int32())])
    resolved = ProtobufFormat().resolve_write(kind, given | {"message": "r.Order.Line"})
    encoder = ProtobufFormat().encoder(kind, resolved.settings)
    assert encoder.encode(pa.array([{"n": 1}, None], kind)).to_pylist() == [
        frame_id(2) + b"\x04\x02\x00\x08\x01",
        None,
    ]
    text = (
        'syntax = "proto3"; message X {} message A { message B { message Y {} message C { int32 n = 1; } } }'
    )
    registry.schemas[2] = RegisteredSchema(type="PROTOBUF", text=text, id=2)
    resolved = ProtobufFormat().resolve_write(kind, given | {"message": "A.B.C"})
    (payload,) = (
        ProtobufFormat().encoder(kind, resolved.settings).encode(pa.array([{"n": 1}], kind)).to_pylist()
    )
    assert payload == frame_id(2) + b"\x06\x02\x00\x02\x08\x01"
    decoded = ProtobufFormat().decoder(kind, resolved.settings).decode(pa.array([payload]))
    assert decoded.array.to_pylist() == [{"n": 1}]


def test_an_own_message_is_looked_up_in_the_registry(registry: FakeRegistry, tmp_path: Path) -> None:
    path = tmp_path / "own.desc"
    files = compile_proto("own.proto", {"own.proto": SECOND, "shared/item.proto": ITEM})
    path.write_bytes(files.SerializeToString())
    given = {"topic": "orders", "payload": "value", "descriptorfile": str(path), "message": "r.Note"}
    kind = pa.struct([("text", pa.string())])
    encoder = ProtobufFormat().encoder(kind, given)
    assert encoder.encode(pa.array([{"text": "x"}], kind)).to_pylist() == [frame_id(2) + b"\0\x0a\x01x"]
    [(subject, text)] = registry.asked
    assert subject == "orders-value"
    # The indexes are those of the registered file, where the message may stand elsewhere.
    moved = compile_proto("own.proto", {"own.proto": MOVED})
    path.write_bytes(moved.SerializeToString())
    encoder = ProtobufFormat().encoder(kind, given)
    assert encoder.encode(pa.array([{"text": "x"}], kind)).to_pylist() == [frame_id(2) + b"\0\x0a\x01x"]
    assert FileDescriptorProto.FromString(base64.b64decode(text)).message_type[0].name == "Note"


def test_a_message_of_a_class_is_not_the_first_of_its_file(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class names its message: no other setting does."""
    files = compile_proto("own.proto", {"own.proto": SECOND, "shared/item.proto": ITEM})
    own = registered.find_message(files, "r.Order")
    monkeypatch.setattr(protobuf_format, "named_descriptor", lambda _: own)
    kind = pa.struct([("id", pa.int32())])
    given = {"topic": "orders", "payload": "value", "messageclass": "own_pb2.Order"}
    encoder = ProtobufFormat().encoder(kind, given)
    assert encoder.encode(pa.array([{"id": 5}], kind)).to_pylist() == [frame_id(2) + b"\x02\x02\x08\x05"]


@pytest.mark.usefixtures("registry")
def test_an_own_message_has_its_own_fields_in_spite_of_the_registrys(tmp_path: Path) -> None:
    path = tmp_path / "own.desc"
    path.write_bytes(compile_proto("own.proto", {"own.proto": MOVED}).SerializeToString())
    given = {"topic": "orders", "payload": "value", "message": "r.Order"}
    found = [
        str(ProtobufFormat().resolve_read(given | own).type) for own in ({}, {"descriptorfile": str(path)})
    ]
    assert found == ["struct<id: int32, item: struct<sku: string>>", "struct<id: int32>"]


@pytest.mark.parametrize("binary", [("main",), ("import",), ("main", "import")])
def test_schemas_that_are_descriptors(registry: FakeRegistry, binary: tuple[str, ...]) -> None:
    item = _binary("i.proto", {"i.proto": ITEM}) if "import" in binary else ITEM
    for id, schema in list(registry.schemas.items()):
        references = tuple(
            SchemaReference(one.name, RegisteredSchema(type="PROTOBUF", text=item))
            for one in schema.references
        )
        sources = {"a.proto": schema.text, "shared/item.proto": ITEM}
        main = _binary("a.proto", sources) if "main" in binary else schema.text
        registry.schemas[id] = RegisteredSchema(type="PROTOBUF", text=main, id=id, references=references)
    resolved = ProtobufFormat().resolve_read({"topic": "orders", "payload": "value", "message": "r.Order"})
    assert str(resolved.type) == "struct<id: int32, item: struct<sku: string>>"


@pytest.mark.parametrize("path", [(0,), (1,), (63,), (64,), (0, 0), (3, 2, 1), (2**20,)])
def test_message_indexes(path: tuple[int, ...]) -> None:
    assert _read_indexes(_indexes(path) + b"rest") == (path, len(_indexes(path)))
    assert (_indexes(path) == b"\0") == (path == (0,))


def test_the_depth_of_message_indexes_has_limits() -> None:
    deepest = (1,) * 32
    assert _read_indexes(_indexes(deepest)) == (deepest, len(_indexes(deepest)))
    for head in (_indexes((1,) * 33), b"\x01\x02", b"\xff\xff\xff\xff\x0f"):
        with pytest.raises(ValueError, match="message indexes"):
            _read_indexes(head)
