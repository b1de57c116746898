"""Decoders and encoders behind a registry: each row under its schema, and back in its place."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.http_server import Asked, serving

from spark_kafka_native.formats import BadRows, ColumnFormat, Decoded, FormatError
from spark_kafka_native.formats.errors import SetupError
from spark_kafka_native.formats.registry import (
    CredentialsError,
    RegisteredSchema,
    RegistryDecoder,
    RegistryEncoder,
    RegistryError,
    SchemaRegistry,
    UnknownSchemaError,
    frame_id,
    frame_to_write,
    is_true,
    registry_formats,
)
from spark_kafka_native.formats.registry.schema_choice import schema_to_read, schema_to_write, subject_of

TEXT = pa.string()


class FakeRegistry:
    url = "http://registry"

    def __init__(self, known: Callable[[Any], bool] = lambda _: True, type: str = "AVRO") -> None:
        self.known, self.type = known, type
        self.asked: list[Any] = []

    def schema(self, id: int) -> RegisteredSchema:
        self.asked.append(id)
        if not self.known(id):
            raise UnknownSchemaError(f"There is no schema with id {id} at http://registry")
        return RegisteredSchema(type=self.type, text=str(id), id=id)

    schema_just_given = schema

    def schemas_of_records(self, keys: Any) -> dict[int | str, RegisteredSchema | UnknownSchemaError]:
        return {key: self.schema_of_records(key) for key in keys}

    def schema_of_records(self, key: int | str) -> RegisteredSchema | UnknownSchemaError:
        if isinstance(key, int):
            try:
                return self.schema(key)
            except UnknownSchemaError as error:
                return error
        self.asked.append(key)
        return RegisteredSchema(type=self.type, text=key, guid=key)


class Marked:
    """Texts with the name of the schema before them; those that begin with ``!`` are bad."""

    type = TEXT

    def __init__(self, schema: RegisteredSchema) -> None:
        self.mark = schema.text

    def decode(self, payloads: pa.Array) -> Decoded:
        rows = payloads.to_pylist()
        bad = tuple(row for row, one in enumerate(rows) if one is not None and one.startswith(b"!"))
        values = [
            None if one is None or row in bad else f"{self.mark}:{one.decode()}"
            for row, one in enumerate(rows)
        ]
        return Decoded(pa.array(values, TEXT), BadRows(bad, tuple(f"bad {row}" for row in bad)))


def decoder(registry: Any = None, make: Any = Marked) -> RegistryDecoder:
    return RegistryDecoder(TEXT, registry or FakeRegistry(), "AVRO", make)


def binary(*rows: bytes | None) -> pa.Array:
    return pa.array(rows, pa.binary())


def test_rows_of_several_schemas_stay_in_their_places() -> None:
    rows = [
        frame_id(2) + b"a",
        None,
        frame_id(1) + b"b",
        frame_id(2) + b"!c",
        b"junk",
        frame_id(1) + b"!d",
        b"",
    ]
    decoded = decoder().decode(binary(*rows))
    assert decoded.array.to_pylist() == ["2:a", None, "1:b", None, None, None, None]
    assert decoded.bad.rows == (3, 4, 5, 6)
    assert decoded.bad.reasons[0] == "bad 1"  # as its own decoder counts
    assert "not written with a schema registry" in decoded.bad.reasons[1]


def test_what_is_bad_for_an_unknown_schema_may_pass() -> None:
    rows = [frame_id(1) + b"a", frame_id(2) + b"b", None, b"junk", frame_id(1) + b"!c", frame_id(2) + b"d"]
    decoded = decoder(FakeRegistry(known=lambda id: id == 1)).decode(binary(*rows))
    assert decoded.bad.rows == (1, 3, 4, 5)
    assert decoded.bad.passing == (1, 5)
    assert decoder(FakeRegistry(known=lambda _: False)).decode(binary(rows[0])).bad.passing == (0,)


def test_one_schema_is_decoded_in_one_piece() -> None:
    decoded = decoder().decode(binary(frame_id(5) + b"a", None, frame_id(5) + b"!b"))
    assert decoded.array.to_pylist() == ["5:a", None, None]
    assert (decoded.bad.rows, decoded.bad.reasons) == ((2,), ("bad 2",))


def test_nothing_to_decode() -> None:
    for payloads in (binary(), binary(None, None), binary(None, None, b"\0").slice(0, 2)):
        decoded = decoder().decode(payloads)
        assert decoded.array.equals(pa.nulls(len(payloads), TEXT))
        assert not decoded.bad.rows


@pytest.mark.parametrize("seed", range(4))
def test_any_mixture(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    ids = drawn.integers(0, 4, 500)
    rows = [None if id == 3 else frame_id(int(id)) + str(row).encode() for row, id in enumerate(ids.tolist())]
    wanted = [None if id == 3 else f"{id}:{row}" for row, id in enumerate(ids.tolist())]
    start = seed * 7
    assert decoder().decode(binary(*rows).slice(start)).array.to_pylist() == wanted[start:]


def test_a_schema_is_made_once() -> None:
    registry = FakeRegistry()
    decoding = decoder(registry)
    for _ in range(3):
        decoding.decode(binary(frame_id(1) + b"a", frame_id(2) + b"b"))
    assert registry.asked == [1, 2]


def test_the_decoders_that_are_kept_are_those_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_formats, "MAX_DECODERS", 2)
    registry = FakeRegistry()
    decoding = decoder(registry)
    for id in (1, 2, 1, 3, 1, 2):
        decoding.decode(binary(frame_id(id)))
    assert registry.asked == [1, 2, 3, 2]


def test_an_unknown_schema_is_a_bad_row() -> None:
    decoded = decoder(FakeRegistry(lambda id: id != 7)).decode(binary(frame_id(7), frame_id(1) + b"a", None))
    assert decoded.array.to_pylist() == [None, "1:a", None]
    assert decoded.bad.rows == (0,)
    assert "id 7 at http://registry" in decoded.bad.reasons[0]


def test_a_schema_that_is_registered_later_is_known_then() -> None:
    known: set[int] = set()
    decoding = decoder(FakeRegistry(known.__contains__))
    assert decoding.decode(binary(frame_id(7) + b"a")).bad.rows == (0,)
    known.add(7)
    decoded = decoding.decode(binary(frame_id(7) + b"a"))
    assert (decoded.array.to_pylist(), decoded.bad.rows) == (["7:a"], ())


def test_nulls_of_a_column_under_an_unknown_schema_are_good() -> None:
    decoded = decoder(FakeRegistry(lambda _: False)).decode(binary(None, frame_id(7), None))
    assert decoded.bad.rows == (1,)


def test_ids_below_zero_are_not_asked_for() -> None:
    registry = FakeRegistry()
    decoded = decoder(registry).decode(binary(b"\0\xff\xff\xff\xff", b"\0\x80\0\0\0"))
    assert sorted(decoded.bad.reasons) == ["-1 is no id of a schema", "-2147483648 is no id of a schema"]
    assert not registry.asked


def test_a_schema_of_another_type_is_a_bad_row() -> None:
    decoded = decoder(FakeRegistry(type="JSON")).decode(binary(frame_id(3)))
    assert decoded.bad.reasons == ("schema 3 is of type JSON, not AVRO",)


def test_a_schema_that_the_format_refuses_is_a_bad_row() -> None:
    def make(schema: RegisteredSchema) -> Marked:
        if schema.id == 3:
            raise FormatError("no such field")
        return Marked(schema)

    decoded = decoder(make=make).decode(binary(frame_id(3), frame_id(4) + b"a"))
    assert decoded.array.to_pylist() == [None, "4:a"]
    assert decoded.bad.reasons == ("schema 3: no such field",)


def test_a_registry_that_is_down_is_an_error_and_no_bad_row() -> None:
    class Down(FakeRegistry):
        def schema(self, id: int) -> RegisteredSchema:
            raise RegistryError(f"down: {id}")

    def make(schema: RegisteredSchema) -> Marked:
        raise RegistryError(f"down: {schema.id}")

    with pytest.raises(RegistryError, match="down"):
        decoder(Down()).decode(binary(frame_id(1)))

    def lacks(schema: RegisteredSchema) -> Marked:
        raise SetupError(f"no compiler for {schema.id}")

    with pytest.raises(RegistryError, match="down"):
        decoder(make=make).decode(binary(frame_id(1)))
    with pytest.raises(SetupError, match="no compiler for 1"):
        decoder(make=lacks).decode(binary(frame_id(1)))


def test_schemas_in_headers_of_records() -> None:
    payloads = binary(b"a", frame_id(2) + b"b", None)
    headers = binary(frame_id(1), None, frame_id(9))
    for given in (headers, headers.cast(pa.large_binary())):
        assert decoder().decode(payloads, given).array.to_pylist() == ["1:a", "2:b", None]


@pytest.mark.parametrize("row", [frame_id(2) + b"b", None])
def test_a_null_without_a_header_is_no_bad_row_among_those_with_one(row: bytes | None) -> None:
    """A tombstone has no schema, and so no header that names one."""
    decoded = decoder().decode(binary(b"a", None, row), binary(frame_id(1), None, None))
    assert decoded.array.to_pylist() == ["1:a", None, None if row is None else "2:b"]
    assert decoded.bad.rows == ()


def test_a_second_schema_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_formats, "_first_schemas", registry_formats._FirstSchemas())
    decoding = decoder(FakeRegistry(lambda id: id != 9))
    for id in (4, 9, 4):
        decoding.decode(binary(frame_id(id), None))
    assert not caplog.records
    for id in (5, 6, 4, 5):
        decoder().decode(binary(frame_id(id)))
    (line,) = caplog.messages
    assert "under schema 4, others under schema 5" in line


def test_the_first_schemas_are_kept_of_some_types_only() -> None:
    """Each batch of a stream may have a type of its own."""
    noted = registry_formats._FirstSchemas()
    kinds = [pa.struct([(f"f{number}", TEXT)]) for number in range(registry_formats._MAX_NOTED + 1)]
    for kind in (*kinds, kinds[0]):
        noted.note(kind, 1)
    assert list(noted._keys) == kinds[:-1]


def test_an_encoder_puts_the_schema_in_front() -> None:
    class Upper:
        def encode(self, rows: pa.Array) -> pa.Array:
            return pa.array(
                [None if one is None else one.upper().encode() for one in rows.to_pylist()], pa.binary()
            )

    rows = pa.array(["a", None, ""])
    in_front = RegistryEncoder.of(Upper(), frame_id(3) + b"\0", {})
    assert in_front.encode(rows).to_pylist() == [b"\0\0\0\0\3\0A", None, b"\0\0\0\0\3\0"]
    assert in_front.header is None
    in_header = RegistryEncoder.of(Upper(), frame_id(3) + b"\0", {"schemaidin": " Header"})
    assert in_header.encode(rows).to_pylist() == [b"A", None, b""]
    assert in_header.header == b"\0\0\0\0\3\0"


def test_where_a_write_names_the_schema() -> None:
    schema = RegisteredSchema(type="AVRO", text='"int"', id=3, guid="00112233-4455-6677-8899-aabbccddeeff")
    assert frame_to_write(schema, {}) == frame_id(3)
    in_header = {"schemaidin": "header", "payload": "key"}
    assert frame_to_write(schema, in_header) == b"\1" + bytes.fromhex("00112233445566778899aabbccddeeff")
    for guid in (None, "", "x"):
        with pytest.raises(RegistryError, match=r"no GUID for schema 3.*leave key.schemaIdIn=header out"):
            frame_to_write(replace(schema, guid=guid), in_header)
    with pytest.raises(FormatError, match=r"value.schemaIdIn must be payload or header, not 'x'"):
        frame_to_write(schema, {"schemaidin": "x"})
    with pytest.raises(RegistryError, match=r"key.schemaIdIn has no effect without registry.url"):
        SchemaRegistry.from_settings(in_header)


@pytest.mark.parametrize(
    "name", ["subject", "subjectStrategy", "schemaVersion", "schemaId", "schemaIdIn", "schemaReferences"]
)
def test_settings_about_schemas_of_a_registry_need_one(name: str) -> None:
    """Payloads without the id of a schema were written."""
    with pytest.raises(RegistryError, match=rf"value\.{name} has no effect without registry.url"):
        SchemaRegistry.from_settings({name.lower(): "x"})
    assert SchemaRegistry.from_settings({"schema": "a int", "registry.user": "u"}) is None


@pytest.mark.parametrize(
    ("settings", "subject"),
    [
        ({}, "orders-value"),
        ({"payload": "key"}, "orders-key"),
        ({"subjectstrategy": "topic"}, "orders-value"),
        ({"subjectstrategy": "Record"}, "shop.Order"),
        ({"subjectstrategy": "topic-record", "payload": "key"}, "orders-shop.Order"),
        ({"subject": "own", "subjectstrategy": "record"}, "own"),
        ({"subject": " own "}, "own"),
        ({"subject": " "}, "orders-value"),
    ],
)
def test_subjects(settings: dict[str, str], subject: str) -> None:
    """A schema under another subject would be registered there, or that one's be taken."""
    assert subject_of({"topic": "orders", "payload": "value"} | settings, "shop.Order") == subject


@pytest.mark.parametrize("strategy", ["record", "topic-record"])
def test_a_subject_of_a_record_needs_its_name(strategy: str) -> None:
    settings = {"topic": "orders", "payload": "key", "subjectstrategy": strategy}
    with pytest.raises(FormatError, match=rf"key\.subjectStrategy={strategy} needs a name of a record"):
        subject_of(settings)


@pytest.mark.parametrize("strategy", ["topic", "topic-record"])
def test_a_subject_of_a_topic_needs_a_single_one(strategy: str) -> None:
    settings = {"payload": "value", "subjectstrategy": strategy}
    with pytest.raises(FormatError, match=r"no single topic .* give value\.subject"):
        subject_of(settings, "shop.Order")
    assert subject_of(settings | {"subjectstrategy": "record"}, "shop.Order") == "shop.Order"


class Noting(FakeRegistry):
    """Notes what it is asked for."""

    def _note(self, *asked: Any) -> RegisteredSchema:
        self.asked.append(asked)
        return RegisteredSchema(type="AVRO", text="a schema", id=7)

    def schema(self, id: int) -> RegisteredSchema:
        return self._note("id", id)

    def version(self, subject: str, version: int) -> RegisteredSchema:
        return self._note(subject, version)

    def latest(self, subject: str) -> RegisteredSchema:
        return self._note(subject, "latest")


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, ("orders-key", "latest")),
        ({"schemaversion": " Latest "}, ("orders-key", "latest")),
        ({"schemaversion": "2"}, ("orders-key", 2)),
        ({"schemaversion": "2", "subject": "own"}, ("own", 2)),
        ({"schemaid": "5"}, ("id", 5)),
        ({"schemaid": "5", "schemaversion": "2", "subject": "own"}, ("id", 5)),
        ({"schemaversion": "0"}, "key.schemaVersion must be a whole number from 1, not '0'"),
        ({"schemaversion": "-1"}, "key.schemaVersion must be a whole number from 1, not '-1'"),
        ({"schemaversion": "2147483648"}, "key.schemaVersion must be a whole number from 1"),
        ({"schemaid": "latest"}, "key.schemaId must be a whole number from 0, not 'latest'"),
    ],
)
def test_which_schema_is_read(settings: dict[str, str], asked: tuple[Any, ...] | str) -> None:
    registry: Any = Noting()
    given = {"topic": "orders", "payload": "key"} | settings
    if isinstance(asked, str):
        with pytest.raises(FormatError, match=re.escape(asked)):
            schema_to_read(registry, given, "AVRO")
        assert registry.asked == []
    else:
        schema_to_read(registry, given, "AVRO")
        assert registry.asked == [asked]


def test_whether_a_schema_is_registered_is_true_or_false() -> None:
    settings = {"registry.register": " True "}
    assert is_true(settings, "registry.register")
    assert not is_true({}, "registry.register")
    with pytest.raises(FormatError, match=r"registry.register must be true or false, not 'yes'"):
        is_true({"registry.register": "yes"}, "registry.register")


def test_a_registry_in_trouble_is_not_one_that_lacks_the_schema() -> None:
    """The advice to register the schema would be of no help."""

    class Down(FakeRegistry):
        def lookup(self, *_: Any) -> int:
            raise CredentialsError("refused")

    with pytest.raises(CredentialsError, match=r"^refused$"):
        schema_to_write(Down(), {"topic": "t"}, "AVRO", "a schema")  # type: ignore[arg-type]


@pytest.mark.parametrize("register", ["true", "false"])
def test_a_schema_is_registered_or_looked_up_with_its_references(register: str) -> None:
    """Without them the registry knows no equal schema, or refuses it."""

    class Known(FakeRegistry):
        def lookup(self, *given: Any) -> int:
            self.asked.append(("lookup", *given))
            return 7

        def register(self, *given: Any) -> int:
            self.asked.append(("register", *given))
            return 7

    registry: Any = Known()
    references = [{"name": "shop.Kind", "subject": "kinds", "version": 1}]
    settings = {"topic": "orders", "payload": "value", "schemareferences": json.dumps(references)}
    found = schema_to_write(registry, settings | {"registry.register": register}, "AVRO", "a schema")
    how = "register" if register == "true" else "lookup"
    assert registry.asked == [(how, "orders-value", "a schema", "AVRO", references), 7]
    assert (found.id, found.subject) == (7, "orders-value")


def test_records_of_a_subject_in_a_context_are_under_its_schemas() -> None:
    """The ids of the default context are other schemas, here with the fields in another order."""
    fields = [{"name": name, "type": "long"} for name in "ab"]
    schemas = {
        context: json.dumps({"type": "record", "name": "r", "fields": order})
        for context, order in (("", fields[::-1]), ("%3A.stg%3A", fields))
    }

    def answer(asked: Asked) -> tuple[int, dict[str, str], Any]:
        if asked.path.startswith("/schemas"):
            return 200, {}, {"schema": schemas[asked.path.partition("?subject=")[2]]}
        context = "%3A.stg%3A" if "%3A.stg%3A" in asked.path else ""
        return 200, {}, {"id": 1, "version": 1, "schema": schemas[context]}

    kind = pa.struct([(name, pa.int64()) for name in "ab"])
    rows, payloads = pa.array([{"a": 1, "b": 2}], kind), [frame_id(1) + b"\2\4"]
    with serving(answer) as served:
        other = {"registry.url": served.url}
        settings = other | {"subject": ":.stg:orders-value", "registry.register": "true"}
        for given, wanted in ((other, [frame_id(1) + b"\4\2"]), (settings, payloads)):
            written = ColumnFormat("avro", schemas["%3A.stg%3A"], given).encoder(kind, "value", "orders")
            assert written.encode(rows).to_pylist() == wanted
            decoder, _ = ColumnFormat("avro", kind, given).decoder("value", "orders")
            assert decoder.decode(binary(*wanted)).array.to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("name", ["avro", "json"])
def test_a_column_without_values_does_not_become_a_schema(name: str) -> None:
    """The subject would get a version that says null, or text, and other writers and readers with it."""
    kinds = {
        "n": pa.null(), "s.n": pa.struct([("n", pa.null())]),
        "l[].n": pa.list_(pa.struct([("n", pa.null())])), "m{}": pa.map_(pa.string(), pa.null()),
    }  # fmt: skip
    known: list[dict[str, Any]] = []

    def answer(asked: Asked) -> tuple[int, dict[str, str], Any]:
        if asked.path == "/subjects/t-value":
            known.append(json.loads(asked.body))
            return (200, {}, {"id": 1}) if len(known) > len(kinds) else (404, {}, {"error_code": 40403})
        return 200, {}, known[-1]

    with serving(answer) as served:
        given = ColumnFormat(name, None, {"registry.url": served.url, "registry.register": "true"})
        for place, one in kinds.items():
            kind = pa.struct([("id", pa.int64()), (place[0], one)])
            with pytest.raises(FormatError, match=rf"`{re.escape(place)}` has no values.*value\.schema"):
                given.encoder(kind, "value", "t")
        assert served.paths == ["/subjects/t-value"] * len(kinds)
        given.encoder(kind, "value", "t")  # the subject has an equal one


@pytest.mark.parametrize("text", ["", "orders", '{"name": "shop.Kind"}', "1"])
def test_references_that_are_no_list_are_refused(text: str) -> None:
    """Without them the schema would be looked up, or registered, as another one."""
    settings = {"topic": "orders", "payload": "value", "schemareferences": text}
    with pytest.raises(FormatError, match="schemaReferences must be JSON"):
        schema_to_write(FakeRegistry(), settings, "AVRO", "a schema")  # type: ignore[arg-type]
