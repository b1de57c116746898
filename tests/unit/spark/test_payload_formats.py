"""The options ``key.*`` and ``value.*``: what they make of a schema, and of the columns that are written."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
    VarcharType,
    VariantType,
)

import spark_kafka_native.formats as formats_package
from spark_kafka_native.formats import BadRows, Decoded, Resolved
from spark_kafka_native.kafka.errors import ConfigError, MalformedRecordError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.security.config_providers import ALLOWED_FILES, ALLOWED_MODULES
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.payload_formats import PayloadFormat, ReadFormats, ignored_settings
from spark_kafka_native.spark.read.read_options import ReadOptions
from spark_kafka_native.spark.read.schema import RowSchema, full_schema
from spark_kafka_native.spark.read.worker.arrow_rows import RowLayout
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import RowColumns

KAFKA = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in full_schema(False))


def formats(scope: Scope = Scope.READ, **options: str) -> ReadFormats:
    return ReadFormats.parse(OptionValues.parse({n.replace("_", "."): v for n, v in options.items()}, scope))


def written(**options: str) -> tuple[PayloadFormat, ...]:
    parsed = formats(Scope.WRITE, **options)
    return tuple(one for one in (parsed.key, parsed.value) if one is not None)


def test_bytes_are_the_default() -> None:
    plain = full_schema(True)
    assert formats().extend(plain) is plain
    assert formats(value_format=" RAW ").extend(plain) is plain


def test_a_struct_in_the_column_value() -> None:
    extended = formats(value_format="json", value_schema="id bigint, name string").extend(full_schema(False))
    assert extended == KAFKA.replace("`value` binary", "`value` STRUCT<id bigint, name string>")


@pytest.mark.parametrize("text", ['{"type":' * 5_000, '{"fields":' + "[" * 5_000], ids=["objects", "lists"])
@pytest.mark.parametrize("name", ["json", "csv"])
def test_a_schema_that_is_nested_without_end_is_refused(name: str, text: str) -> None:
    def resolve() -> None:
        parsed = formats(value_format=name, value_schema=text).value
        assert parsed is not None
        parsed.resolve_read()

    with pytest.raises(ConfigError, match="is no JSON"):
        resolve()


def test_text_keys_and_values() -> None:
    extended = formats(key_format="string", value_format="string").extend(full_schema(False))
    assert extended == KAFKA.replace("binary", "STRING")


def test_fields_beside_kafkas_columns() -> None:
    ddl = "id bigint, `odd, ``name` : decimal(10,2), s struct<a: int, b: string> COMMENT 'x, y'"
    extended = formats(
        value_format="json", value_schema=ddl, value_layout="columns", value_prefix="v_", mode="permissive"
    ).extend(full_schema(False))
    columns = "`v_id` bigint, `v_odd, ``name` decimal(10,2), `v_s` struct<a: int, b: string> COMMENT 'x, y'"
    wanted = KAFKA.replace("`value` binary", columns)
    assert extended == wanted + ", `_corrupt_record` BINARY, `_error` STRING"


@pytest.mark.parametrize(
    "kind",
    [
        "struct<a: decimal(10,2), b: int>",
        "map<struct<a: int, b: int>, array<int>>",
        "decimal(10,2)",
        "int COMMENT 'x, y'",
        'int COMMENT "x, y"',
        "int COMMENT 'a < b'",
        'int COMMENT "a < b"',
        r"int COMMENT 'it\'s x, y'",
        r'int COMMENT "the \"x, y\""',
        "struct<`a>, b`: int, `c``, d`: int>",
    ],
)
def test_a_column_ends_behind_all_of_its_brackets_and_quotes(kind: str) -> None:
    given = {"value_format": "json", "value_layout": "columns", "value_prefix": "v_"}
    extended = formats(value_schema=f"s {kind}, id bigint", **given).extend(full_schema(False))
    assert extended == KAFKA.replace("`value` binary", f"`v_s` {kind}, `v_id` bigint")


@pytest.mark.parametrize(
    ("mode", "added"),
    [
        ({}, ""),
        ({"mode": "failfast"}, ""),
        ({"mode": "permissive"}, ", `_corrupt_record` BINARY, `_error` STRING"),
        ({"mode": "dropmalformed"}, ""),
        ({"mode": "dlq", "dlq_topic": "letters"}, ""),
    ],
)
def test_columns_for_errors_are_there_where_bad_records_stay(mode: dict[str, str], added: str) -> None:
    extended = formats(value_format="json", value_schema="id bigint", **mode).extend(full_schema(False))
    assert extended == KAFKA.replace("`value` binary", "`value` STRUCT<id bigint>") + added


@pytest.mark.parametrize("mode", [{"mode": "permissive"}, {"mode": "dlq", "dlq_topic": "letters"}])
def test_keys_may_be_decoded_alone_in_any_mode(mode: dict[str, str]) -> None:
    parsed = formats(key_format="json", key_schema="id bigint", **mode)
    assert (parsed.mode, parsed.value) == (mode["mode"], None)


def test_a_comment_in_the_schema_ends_before_the_other_columns() -> None:
    ddl = "id bigint -- the number, `x`\n, name string /* 'y' */, `a -- b` string COMMENT '-- c'"
    more = ', d int COMMENT "/* d */", e int COMMENT "-- \\"e"'
    parsed = formats(value_format="json", value_schema=ddl + more).value
    assert parsed is not None
    assert parsed.schema == "id bigint  \n, name string  , `a -- b` string COMMENT '-- c'" + more


def test_settings_of_a_format_of_another_package_are_no_unknown_options(monkeypatch) -> None:
    given = {"value.format": "Their.Format", "value.registry": "x", "key.registry": "y"}
    values = OptionValues.parse(given, Scope.READ)
    assert [line for line in values.warnings if "registry" in line] == [
        "Unknown option 'key.registry' is ignored; did you mean 'registry.url'?"
    ]
    assert OptionValues.parse({"value.format": "JSON", "value.registry": "x"}, Scope.READ).warnings


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"value.format": "json", "value.schema": "a int", "value.sep": ";"}, ["value.sep"]),
        ({"value.format": "avro", "value.schema": '"int"', "value.timezone": "UTC"}, ["value.timeZone"]),
        ({"value.format": " String", "value.descriptorFile": "/x"}, ["value.descriptorFile"]),
        ({"key.format": "json", "key.schema": "a int", "key.sep": ";", "key.timeZone": "UTC"}, ["key.sep"]),
        ({"value.format": "csv", "value.schema": "a int", "value.layout": "columns", "value.prefix": "p",
          "value.sep": ";", "value.timeZone": "UTC", "value.nullValue": "-"}, []),
        ({"value.format": "json", "value.schema": "infer", "value.inferRecords": "5"}, []),
        ({"value.format": "avro", "value.registry.url": "http://h", "value.subject": "s"}, []),
        ({"value.format": "Their.Format", "value.sep": "x"}, []),
        ({"value.format": "raw"}, []),
    ],
)  # fmt: skip
def test_settings_of_another_format_are_warned_of(given: dict[str, str], warned: list[str]) -> None:
    """`value.timeZone` with Avro had no effect, and nothing said so."""
    found = ignored_settings(OptionValues.parse(given, Scope.READ))
    assert [line.split("'")[1] for line in found] == warned
    shown = {
        one.partition(".")[0]: given[f"{one.partition('.')[0]}.format"].strip().lower() for one in warned
    }
    assert all(any(line.endswith(f"with {k}.format={v}") for k, v in shown.items()) for line in found)


def test_reads_and_writes_warn_of_settings_of_another_format() -> None:
    both = {"kafka.bootstrap.servers": "h:1", "value.format": "json", "value.sep": ";"}
    wanted = "Option 'value.sep' is ignored with value.format=json"
    read = OptionValues.parse({**both, "subscribe": "t", "value.schema": "a int"}, Scope.READ)
    assert wanted in ReadOptions.for_batch(read).warnings
    assert wanted in WriteOptions.parse(OptionValues.parse({**both, "topic": "t"}, Scope.WRITE)).warnings


def test_a_schema_in_the_json_of_a_struct_type() -> None:
    kind = StructType(
        [
            StructField("a`b", ArrayType(StructType([StructField("x", IntegerType())]))),
            StructField("m", MapType(StringType(), LongType())),
        ]
    )
    parsed = formats(value_format="json", value_schema=kind.json()).value
    assert parsed is not None
    assert parsed.schema == "`a``b` ARRAY<STRUCT<`x` int>>, `m` MAP<string, bigint>"
    assert formats(value_format="json", value_schema="Struct< a int >").value.schema == "a int"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"value_format": "jsn"}, "value.format: There is no format 'jsn'; did you mean 'json'"),
        ({"value_format": "json"}, "value.format=json needs value.schema, such as"),
        ({"key_format": "json"}, "key.format=json needs key.schema"),
        ({"value_schema": "a int"}, "'value.schema' has no effect without value.format"),
        ({"value_layout": "columns"}, "'value.layout' has no effect without value.format"),
        ({"value_sep": ";"}, "'value.sep' has no effect without value.format"),
        (
            {"key_timeZone": "UTC", "value_format": "string"},
            "'key.timeZone' has no effect without key.format",
        ),
        ({"value_message": "shop.Order"}, "'value.message' has no effect without value.format"),
        ({"key_inferRecords": "5"}, "'key.inferRecords' has no effect without key.format"),
        ({"value_registry_url": "http://r"}, "'value.registry.url' has no effect without value.format"),
        (
            {"value_format": "raw", "value_nullValue": "-"},
            "'value.nullValue' has no effect without value.form",
        ),
        ({"mode": "permissive"}, "'mode' has no effect without key.format or value.format"),
        (
            {"value_format": "json", "registry_user": "u"},
            "'registry.user' has no effect without registry.url",
        ),
        (
            {
                "value_format": "avro",
                "key_registry_url": "http://r",
                "key_format": "avro",
                "value_registry_user": "u",
            },
            "'value.registry.user' has no effect without value.registry.url",
        ),
        (
            {"value_format": "csv", "registry_url": "http://r", "value_schemaId": "4"},
            "'value.schemaId' has no effect with value.format=csv",
        ),
        (
            {"key_format": "string", "key_registry_url": "http://r"},
            "'key.registry.url' has no effect with key.format=string",
        ),
        (
            {"value_format": "string", "value_layout": "columns"},
            "value.layout=columns: values with value.format=string have no fields",
        ),
        (
            {"value_format": "json", "value_prefix": "v"},
            "'value.prefix' has no effect without value.layout=col",
        ),
        (
            {"value_format": "json", "value_schema": '{"type":'},
            "the JSON Schema is no JSON",
        ),
        (
            {"value_format": "json", "value_schema": "a int, x", "value_layout": "columns"},
            "'x' is no column with",
        ),
        (
            {"value_format": "json", "value_schema": "[]"},
            "JSON Schema is not that of an object",
        ),
        (
            {"value_format": "json", "mode": "lenient"},
            "'mode' must be failfast or permissive or dropmalformed",
        ),
        (
            {"value_format": "json", "value_schema": "id int, Offset int", "value_layout": "columns"},
            "two columns `Offset`; value.prefix gives",
        ),
        (
            {"value_format": "json", "value_schema": "id int, value string", "value_layout": "columns"},
            "two columns `value`",
        ),
        (
            {"value_format": "json", "value_schema": "headers string", "value_layout": "columns"},
            "two columns `headers`",
        ),
        (
            {"value_format": "json", "value_schema": "_error int", "value_layout": "columns"},
            "two columns `_error`",
        ),
        (
            {"value_format": "json", "value_schema": "a int, A int", "value_layout": "columns"},
            "two columns `a`",
        ),
    ],
)
def test_options_that_can_not_be(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        formats(**options).extend(full_schema(False))


def test_settings_of_a_registry_go_with_any_payload_that_has_one(versioned) -> None:
    """A format of another package may have settings of these names."""
    shared = {"registry_user": "u", "value_registry_url": "http://r", "value_format": "json"}
    assert dict(formats(**shared, key_format="string").value.settings)["registry.user"] == "u"
    assert formats(value_format="versioned", value_registry_token="t", registry_token="t").value is not None
    both = {"registry_url": "http://r", "key_format": "csv", "key_schema": "a int", "value_format": "json"}
    assert dict(formats(**both, value_subject="s").value.settings)["subject"] == "s"


def test_options_of_a_format_need_the_format_in_a_write_too() -> None:
    for name in ("value.schemaIdIn", "key.sep", "value.registry.register"):
        with pytest.raises(
            ConfigError, match=rf"'{name}' has no effect without {name.partition('.')[0]}\.for"
        ):
            written(**{name.replace(".", "_"): "x"})
    assert written(value_timeZone="UTC") == ()  # of reads: there is a warning of it
    with pytest.raises(ConfigError, match=r"unknownOptions=error: .*'value\.mode'"):
        OptionValues.parse({"value.mode": "x", "unknownOptions": "error"}, Scope.WRITE).judge_names(())
    assert written(value_mode="x") == ()


VALUE = StructType().add("id", "long").add("name", "string")


def json_column() -> StructType:
    """A column `value`. New each time: `StructType.add` changes what it is called on."""
    return StructType().add("value", VALUE)


def test_the_columns_of_a_read_may_be_named_by_the_user() -> None:
    schema = RowSchema.from_schema(json_column().add("offset", "long"), formats(value_format="json"))
    assert schema.names == ("", "offset")
    (decoded,) = pickle.loads(pickle.dumps(schema)).decoded
    assert decoded.columns == ("value",)
    assert decoded.kind == pa.struct([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        (StructType().add("value", "binary"), {}, "value.format=json: JSON needs a struct, not binary"),
        (
            StructType().add("_error", "string").add("offset", "long"),
            {"mode": "permissive"},
            "The schema asks for _error, but for no column that is decoded",
        ),
        (StructType().add("value", VALUE, nullable=False), {}, "Column `value` is decoded and can be null"),
        (
            StructType().add(
                "value", StructType().add("a", StructType().add("b", "integer", nullable=False))
            ),
            {},
            "Column `value.a.b` is decoded",
        ),
        (
            StructType().add("value", StructType().add("a", ArrayType(IntegerType(), containsNull=False))),
            {},
            r"Column `value.a\[\]` is decoded",
        ),
        (
            StructType().add("value", StructType().add("a", MapType(StringType(), IntegerType(), False))),
            {},
            r"Column `value.a\{\}` is decoded",
        ),
        (StructType().add("id", "integer"), {}, "Kafka source has no column `id`"),
        (json_column().add("_error", "string"), {}, "Kafka source has no column `_error`"),
        (
            json_column().add("_error", "integer"),
            {"mode": "permissive"},
            "Column `_error` must be a nullable string",
        ),
        (
            json_column().add("_error", "string", nullable=False),
            {"mode": "permissive"},
            "Column `_error` must be a nullable string",
        ),
        (
            StructType().add("_corrupt_record", "integer"),
            {"mode": "permissive"},
            "`_corrupt_record` must be a nullable binary or string",
        ),
        (
            StructType().add("id", "integer"),
            {"value_layout": "columns", "value_prefix": "v_"},
            "no column `id`",
        ),
        (
            json_column().add("Value", "integer"),
            {},
            "names a column twice: `value`, `Value`; leave all but one",
        ),
        (
            json_column().add("key", "string").add("KEY", "string"),
            {},
            "twice: `key`, `KEY`; leave all but one",
        ),
        (
            StructType().add("key", "integer").add("offset", "long").add("KEY", "integer"),
            {"key_format": "json"},
            "names a column twice: `key`, `KEY`; leave all but one out",
        ),
        (
            json_column().add("_error", "string").add("_error", "string"),
            {"mode": "permissive"},
            "names a column twice: `_error`, `_error`; leave all but one out",
        ),
        (
            StructType().add("id", "integer").add("offset", "long").add("id", "string"),
            {"value_layout": "columns"},
            "names a column twice: `id`, `id`; leave all but one out",
        ),
        (
            # It was Kafka's, without a word: as `value.schema`, the same name is refused.
            StructType().add("Offset", "long").add("a", "long"),
            {"value_layout": "columns"},
            "`Offset` may be Kafka's `offset` or a field of the values: write `offset`, or give value.prefix",
        ),
    ],
)
def test_columns_that_can_not_be(schema: StructType, options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RowSchema.from_schema(schema, formats(value_format="json", **options))


@pytest.mark.parametrize("kind", [VarcharType(1), ArrayType(CharType(2))])
def test_a_type_that_columns_of_arrow_can_not_have(kind: DataType) -> None:
    schema = StructType().add("value", StructType().add("a", kind))
    with pytest.raises(ConfigError, match=r"struct<a:.*char\([12]\).* can't be read \(.* use string\)"):
        RowSchema.from_schema(schema, formats(value_format="json"))


class Wrapped(UserDefinedType):
    @classmethod
    def sqlType(cls) -> DataType:
        return StructType().add("x", VariantType())


@pytest.mark.parametrize(
    "kind",
    [
        VariantType(),
        Wrapped(),
        ArrayType(VariantType()),
        MapType(StringType(), StructType().add("x", VariantType())),
        MapType(Wrapped(), StringType()),
    ],
)
def test_bytes_of_sparks_own_are_no_values(kind: DataType) -> None:
    """A VARIANT was written as a struct of two texts in Base64."""
    schema = StructType().add("value", StructType().add("id", "long").add("a", kind))
    with pytest.raises(ConfigError, match=r"has the type variant, which no format knows: take string"):
        RowSchema.from_schema(schema, formats(value_format="json"))
    with pytest.raises(ConfigError, match=r"has the type variant"):
        RowColumns.check(schema, "t", formats=written(value_format="json"))


def records(*values: bytes | None, keys: list[bytes | None] | None = None) -> RecordColumns:
    n = len(values)
    return RecordColumns(
        length=n,
        offset=np.arange(100, 100 + n),
        timestamp_ms=None,
        timestamp_type=None,
        key=pa.array(keys or [None] * n, pa.binary()),
        value=pa.array(values, pa.binary()),
        headers=None,
    )


def layout(schema: StructType, **options: str) -> RowLayout:
    return RowLayout.of(RowSchema.from_schema(schema, formats(**options)))


TP = TopicPartition("t", 3)
GOOD, BAD = b'{"id":1,"name":"x"}', b'{"id":"?","name":"x"}'


def test_a_struct_column() -> None:
    rows = layout(json_column(), value_format="json").to_record_batch(records(GOOD, None), TP)
    assert rows.to_pylist() == [{"value": {"id": 1, "name": "x"}}, {"value": None}]


def test_columns_with_a_prefix_and_the_bytes_too() -> None:
    schema = (
        StructType().add("v_name", "string").add("value", "binary").add("key", "string").add("v_id", "long")
    )
    made = layout(schema, value_format="json", value_layout="columns", value_prefix="v_", key_format="string")
    rows = made.to_record_batch(records(GOOD, None, keys=[b"k", None]), TP)
    assert rows.to_pylist() == [
        {"v_name": "x", "value": GOOD, "key": "k", "v_id": 1},
        {"v_name": None, "value": None, "key": None, "v_id": None},
    ]


def test_fields_of_the_value_may_differ_by_case_alone() -> None:
    schema = StructType().add("a", "integer").add("A", "string")
    made = layout(schema, value_format="json", value_layout="columns")
    assert made.to_record_batch(records(b'{"a":1,"A":"x"}'), TP).to_pylist() == [{"a": 1, "A": "x"}]


def test_only_what_is_asked_for_is_decoded() -> None:
    assert layout(json_column(), value_format="json").record_fields == {"value", "offset"}
    keys = StructType().add("partition", "integer")
    assert layout(keys, value_format="json").record_fields == frozenset()


def test_a_bad_record_fails_the_read_with_its_place() -> None:
    made = layout(json_column(), value_format="json")
    first, second = (records(GOOD, GOOD), TP), (records(GOOD, BAD, BAD), TopicPartition("u", 7))
    with pytest.raises(
        MalformedRecordError, match=r"u-7 at offset 101: the value can't be decoded: `id` is not"
    ):
        made.join([first, second])


def test_a_column_about_errors_is_no_field_of_the_value() -> None:
    wanted = StructType().add("id", "long").add("_error", "string").add("_corrupt_record", "binary")
    made = layout(wanted, value_format="json", value_layout="columns", mode="permissive")
    sent = b'{"id":1,"_error":{},"_corrupt_record":2}'
    rows = made.to_record_batch(records(sent), TP).to_pylist()
    assert rows == [{"id": 1, "_error": None, "_corrupt_record": None}]


def test_a_bad_record_is_left_out() -> None:
    made = layout(json_column().add("offset", "long"), value_format="json", mode="dropmalformed")
    rows = made.to_record_batch(records(BAD, GOOD, BAD), TP)
    assert rows.column("offset").to_pylist() == [101]
    assert rows.schema.equals(made.arrow)


def test_a_bad_record_is_shown() -> None:
    schema = json_column().add("_error", "string").add("_corrupt_record", "binary").add("key", "string")
    options = {"value_format": "json", "key_format": "string", "mode": "permissive"}
    made = layout(schema, **options)
    rows = made.to_record_batch(records(GOOD, BAD, GOOD, keys=[b"k", b"\xff", b"\xfe"]), TP).to_pylist()
    reason = '`id` is not an integer of 64 bits: "?"'
    assert [row["_error"] for row in rows] == [
        None,
        f"the key can't be decoded: not UTF-8 at byte 0; the value can't be decoded: {reason}",
        "the key can't be decoded: not UTF-8 at byte 0",
    ]
    assert [row["_corrupt_record"] for row in rows] == [None, BAD, b"\xfe"]
    assert [row["value"]["name"] for row in rows] == ["x"] * 3
    assert [row["key"] for row in rows] == ["k", None, None]
    text = layout(StructType().add("_corrupt_record", "string").add("value", VALUE), **options)
    assert text.to_record_batch(records(b"\xff{"), TP).column(0).to_pylist() == ["\ufffd{"]
    assert made.to_record_batch(records(GOOD), TP).column("_error").to_pylist() == [None]


class Broken:
    """A format of another package that does not keep its promises."""

    def __init__(self, array: pa.Array, bad: BadRows) -> None:
        self.type, self._decoded = array.type, Decoded(array, bad)

    def decoder(self, *_: object) -> "Broken":
        return self

    encoder = decoder

    def decode(self, _payloads: pa.Array) -> Decoded:
        return self._decoded

    def encode(self, _rows: pa.Array) -> pa.Array:
        return self._decoded.array


KIND = pa.struct([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize(
    ("array", "bad", "text"),
    [
        (pa.nulls(1, KIND), BadRows(), "gave 1 rows of struct.* for 2 of struct"),
        (
            pa.nulls(2, pa.struct(list(KIND)[::-1])),
            BadRows(),
            "gave 2 rows of struct<name: string, id: int64>",
        ),
        (pa.nulls(2, KIND), BadRows((2,), ("x",)), "gave bad rows that do not exist"),
        (pa.nulls(2, KIND), BadRows((1,), ()), "another number of reasons"),
    ],
)
def test_a_format_that_would_shift_rows_is_refused(
    monkeypatch, array: pa.Array, bad: BadRows, text: str
) -> None:
    made = layout(json_column(), value_format="json", mode="dropmalformed")
    assert made.decoded is not None
    broken = replace(made, decoded=replace(made.decoded, decoders=(Broken(array, bad),)))
    with pytest.raises(ConfigError, match=text):
        broken.to_record_batch(records(GOOD, GOOD), TP)


def test_nothing_is_inferred_for_a_write() -> None:
    given = written(key_format="json", value_format="json", value_schema="infer")
    with pytest.raises(ConfigError, match=r"value\.schema=infer is for reads"):
        RowColumns.check(TYPED, None, formats=given)[0].resolve()


def test_records_are_read_at_load_where_keys_or_values_are_to_be_inferred() -> None:
    for given, samples in (
        ({"key_format": "json", "key_schema": "infer"}, True),
        ({"value_format": "json", "value_schema": "infer"}, True),
        ({"key_format": "string", "value_format": "json", "value_schema": "a int"}, False),
        ({}, False),
    ):
        assert formats(**given).samples is samples


def test_the_size_of_a_sample_is_an_option() -> None:
    value = formats(value_format="json", value_schema=" Infer ", value_inferRecords="7").value
    assert value is not None
    assert (value.sampled_records, value.schema) == (7, None)
    assert value.infer(pa.array([b'{"b":1,"a":"x"}'])).schema == "`a` string, `b` bigint"
    both = {"key_format": "json", "key_schema": "a int", "value_format": "json"}
    assert formats(**both, value_schema="infer", value_inferRecords="7").value == value
    for name in ("key", "value"):
        with pytest.raises(
            ConfigError, match=rf"'{name}\.inferRecords' has no effect without {name}\.schema=infer"
        ):
            formats(**both, value_schema="a int", **{f"{name}_inferRecords": "7"})


def test_a_schema_is_inferred_with_the_settings_of_the_format() -> None:
    """With others than the read has, all columns but the first would be lost."""
    value = formats(value_format="csv", value_schema="infer", value_sep=";", value_nullValue="-").value
    assert value is not None
    assert value.infer(pa.array([b"1;2", b"-;x"])).schema == "`_c0` bigint, `_c1` string"


def test_nothing_is_looked_up_at_load_where_the_schema_is_given(versioned) -> None:
    formats(value_format="versioned", value_schema="n bigint").extend(full_schema(False))
    assert versioned.lookups == 0


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.nulls(1, pa.binary()), "1 values of binary for 2 rows"),
        (pa.nulls(2, pa.string()), "2 values of string for 2 rows"),
        (pa.nulls(2, pa.binary()), "2 nulls for 2 rows with 1"),
    ],
)
def test_a_format_that_would_shift_what_is_written_is_refused(
    monkeypatch, array: pa.Array, text: str
) -> None:
    columns, _ = RowColumns.check(TYPED, None, formats=written(key_format="json", value_format="json"))
    monkeypatch.setattr(PayloadFormat, "encoder", lambda *_: Broken(array, BadRows()))
    with pytest.raises(ConfigError, match=f"The format 'json' of the key gave {text}"):
        columns.select(ROWS)


def test_columns_of_spark_with_large_types_are_written() -> None:
    kind = pa.struct(
        [
            ("s", pa.large_string()),
            ("b", pa.large_binary()),
            ("l", pa.list_(pa.large_string())),
            ("m", pa.map_(pa.large_string(), pa.struct([("x", pa.large_string())]))),
        ]
    )
    value = {"s": "a", "b": b"hi", "l": ["x"], "m": [("k", {"x": "y"})]}
    inner = StructType().add("x", "string")
    given = StructType().add("s", "string").add("b", "binary").add("l", ArrayType(StringType()))
    schema = StructType().add("value", given.add("m", MapType(StringType(), inner)))
    columns, _ = RowColumns.check(schema, "t", formats=written(value_format="json"))
    rows = pa.RecordBatch.from_arrays([pa.array([value], kind)], ["value"])
    assert columns.select(rows).column(0).to_pylist() == [
        b'{"s":"a","b":"aGk=","l":["x"],"m":{"k":{"x":"y"}}}'
    ]


ROWS = pa.RecordBatch.from_pylist(
    [
        {"key": {"k": 1}, "value": {"id": 1, "name": None}, "topic": "t"},
        {"key": None, "value": None, "topic": "u"},
    ],
    pa.schema(
        [
            ("key", pa.struct([("k", pa.int64())])),
            ("value", pa.struct([("id", pa.int64()), ("name", pa.string())])),
            ("topic", pa.string()),
        ]
    ),
)
TYPED = StructType().add("key", StructType().add("k", "long")).add("value", VALUE).add("topic", "string")


def test_structs_are_written() -> None:
    columns, warnings = RowColumns.check(TYPED, None, formats=written(key_format="json", value_format="json"))
    assert warnings == ()
    assert pickle.loads(pickle.dumps(columns)).select(ROWS).to_pydict() == {
        "key": [b'{"k":1}', None],
        "value": [b'{"id":1}', None],
        "topic": ["t", "u"],
    }


def test_columns_are_written() -> None:
    schema = (
        StructType().add("id", "long").add("topic", "string").add("name", "string").add("at", "timestamp")
    )
    columns, _ = RowColumns.check(
        schema, None, "at", formats=written(value_format="json", value_layout="columns")
    )
    rows = pa.RecordBatch.from_pydict(
        {"id": [1, None], "topic": ["t", "u"], "name": ["x", None], "at": [5, 6]}
    )
    assert columns.select(rows).to_pydict() == {
        "value": [b'{"id":1,"name":"x"}', b"{}"],
        "topic": ["t", "u"],
        "timestamp": [5, 6],
    }


def test_columns_with_a_prefix_are_written_without_it() -> None:
    given = written(value_format="json", value_layout="columns", value_prefix="v_")
    columns, _ = RowColumns.check(StructType().add("v_id", "long").add("note", "string"), "t", formats=given)
    assert columns.select(pa.RecordBatch.from_pydict({"v_id": [1], "note": ["x"]})).to_pydict() == {
        "value": [b'{"id":1}']
    }


@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        (StructType().add("value", "integer"), {}, "value.format=json: JSON needs a struct, not int32"),
        (StructType().add("key", "string"), {}, "Required attribute 'value' not found"),
        (json_column(), {"value_layout": "columns"}, "there is a column `value` too"),
        (
            json_column().add("v_id", "integer"),
            {"value_layout": "columns", "value_prefix": "v_"},
            "there is a column `value` too",
        ),
        (
            StructType().add("KEY", "string").add("a", "integer"),
            {"value_layout": "columns"},
            "Spell it `key`, or",
        ),
        (StructType().add("key", "string"), {"value_layout": "columns"}, "there are no columns but Kafka's"),
        (
            StructType().add("a", "string").add("a", "integer"),
            {"value_layout": "columns"},
            "The value has a column twice: a, a",
        ),
        (
            StructType().add("id", "integer"),
            {"value_layout": "columns", "value_prefix": "v_"},
            "there are no columns whose names begin with 'v_' but Kafka's",
        ),
        (json_column().add("key", "integer"), {}, "key attribute unsupported type int"),
    ],
)
def test_columns_that_can_not_be_written(schema: StructType, options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RowColumns.check(schema, "t", formats=written(value_format="json", **options))[0].resolve()


class Versioned:
    """A format with a schema that a registry keeps: each look-up finds a newer one."""

    def __init__(self) -> None:
        self.lookups = 0
        self.seen: dict[str, str] = {}

    def resolve_read(self, settings):
        self.lookups += 1
        self.seen = dict(settings)
        kind = (
            LONG if settings.get("schema") == '"long"' else pa.struct([("n", pa.int64()), ("s", pa.string())])
        )
        return Resolved(kind, {**settings, "version": str(self.lookups)})

    def resolve_write(self, _type, settings):
        return self.resolve_read(settings)

    def decoder(self, type, settings):  # noqa: ARG002
        self.seen = dict(settings)
        return self

    encoder = decoder


LONG = pa.int64()


@pytest.fixture
def versioned(monkeypatch) -> Versioned:
    found = Versioned()
    monkeypatch.setattr(formats_package, "load_format", lambda _: found)
    return found


def test_a_schema_that_the_format_looks_up(versioned) -> None:
    parsed = formats(value_format="versioned", subscribe="t", registry_url="http://r")
    assert "`value` STRUCT<`n` bigint, `s` string>" in parsed.extend(full_schema(False))
    wanted = {"payload": "value", "topic": "t", "registry.url": "http://r"}
    assert versioned.seen == wanted
    kind = StructType([StructField("value", StructType([StructField("n", LongType())]))])
    schema = pickle.loads(pickle.dumps(RowSchema.from_schema(kind, parsed)))
    before = versioned.lookups
    schema.decoded[0].format.decoder(schema.decoded[0].kind)
    assert versioned.lookups == before  # A worker looks nothing up: it has what the driver found.
    assert versioned.seen == {**wanted, "version": str(before)}


@pytest.mark.parametrize(
    ("options", "topic"),
    [
        ({"subscribe": " t "}, "t"),
        ({"subscribe": "t,u"}, None),
        ({"subscribe": "t,"}, "t"),
        ({"subscribe": "t,u", "topic": "x"}, None),
        ({"subscribe": "t", "topic": "x"}, "t"),
        ({"assign": '{"t":[0,1]}'}, "t"),
        ({"assign": '{"t":[0],"u":[0]}'}, None),
        ({"assign": "nonsense"}, None),
        ({"subscribePattern": "t"}, None),
    ],
)
def test_a_format_knows_the_topic_only_where_there_is_one(versioned, options, topic) -> None:
    """It names the subject of the schema after it."""
    parsed = formats(value_format="versioned", **options).value
    assert parsed is not None
    assert dict(parsed.settings).get("topic") == topic


@pytest.mark.parametrize(
    ("options", "topic"),
    [({"topic": " t "}, "t"), ({"topic": "t", "subscribe": "x"}, "t"), ({"subscribe": "x"}, None)],
)
def test_in_a_write_it_is_that_of_the_option(versioned, options, topic) -> None:
    """Rows may name others, and `subscribe` is an option of reads."""
    parsed = formats(Scope.WRITE, value_format="versioned", **options).value
    assert parsed is not None
    assert dict(parsed.settings).get("topic") == topic


def test_a_schema_in_the_language_of_the_format(versioned) -> None:
    parsed = formats(
        key_format="versioned", key_schema='"long"', value_format="versioned", value_layout="columns"
    )
    extended = parsed.extend(full_schema(False))
    assert extended.startswith("`key` bigint, `n` bigint, `s` string, ")
    with pytest.raises(ConfigError, match="no fields, they are bigint"):
        formats(value_format="versioned", value_schema='"long"', value_layout="columns").extend(
            full_schema(False)
        )


def test_a_schema_that_is_one_type(versioned) -> None:
    for ddl in ("bigint", "decimal (10, 2)", "array<struct<a: int>>"):
        assert f"`key` {ddl}, " in formats(key_format="versioned", key_schema=ddl).extend(full_schema(False))
    assert "`key` STRUCT<a: int>, " in formats(key_format="versioned", key_schema="struct<a: int>").extend(
        full_schema(False)
    )


def test_the_schema_of_a_write_is_looked_up_once_and_the_encoder_kept(versioned) -> None:
    schema = StructType([StructField("value", StructType([StructField("n", LongType())]))])
    columns = RowColumns.check(schema, "t", formats=written(value_format="versioned", topic="t"))[0].resolve()
    assert dict(columns.encoded[0].format.settings) == {"payload": "value", "topic": "t", "version": "1"}
    kind = pa.struct([("n", pa.int64())])
    assert columns.encoded[0].format.encoder(kind) is columns.encoded[0].format.encoder(kind)
    assert versioned.lookups == 1


def test_passwords_of_a_registry_are_not_shown(versioned) -> None:
    parsed = formats(value_format="versioned", registry_password="secret!", registry_url="http://r:1")
    assert "secret!" not in repr(parsed)


class Registering:
    """A format that notes the settings that it gets."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []

    def decoder(self, _type, settings):
        self.seen.append(dict(settings))
        return self

    encoder = decoder

    def resolve_read(self, settings):
        self.seen.append(dict(settings))
        return Resolved(pa.string(), {**settings, "schema": "found"})

    def resolve_write(self, _type, settings):
        return self.resolve_read(settings)


def test_settings_of_the_registry_are_resolved_where_they_are_used(monkeypatch) -> None:
    format = Registering()
    monkeypatch.setattr(formats_package, "load_format", lambda _: format)
    monkeypatch.setenv("REGISTRY_PASSWORD", "s3cr3t")
    options = {"registry_url": "https://r", "value_registry_password": "env:REGISTRY_PASSWORD", "topic": "t"}
    parsed = formats(value_format="other", **options).value
    assert parsed is not None
    for resolved in (parsed.resolve_read(), parsed.resolve_write(pa.string())):
        assert dict(resolved.settings)["registry.password"] == "env:REGISTRY_PASSWORD"
        assert dict(resolved.settings)["schema"] == "found"
        assert b"s3cr3t" not in pickle.dumps(resolved)
    resolved.decoder(pa.int8())
    resolved.encoder(pa.int8())
    assert [one["registry.password"] for one in format.seen] == ["s3cr3t"] * 4
    monkeypatch.setenv("PYKAFKA_ALLOWED_URLS", "https://r, https://s")
    parsed.decoder(pa.int8())
    monkeypatch.setenv("PYKAFKA_ALLOWED_URLS", "https://s")
    with pytest.raises(ConfigError, match="PYKAFKA_ALLOWED_URLS"):
        parsed.decoder(pa.int8())


def test_what_is_said_of_the_registry_of_a_payload_goes_before_what_is_said_of_both(versioned) -> None:
    options = {"registry_url": "http://r", "registry_username": "u", "value_registry_url": "http://v"}
    parsed = formats(key_format="versioned", value_format="versioned", **options)
    assert parsed.key is not None
    assert parsed.value is not None
    found = [dict(one.settings) for one in (parsed.key, parsed.value)]
    assert [one["registry.url"] for one in found] == ["http://r", "http://v"]
    assert [one["registry.username"] for one in found] == ["u", "u"]
    assert [one["payload"] for one in found] == ["key", "value"]


def test_formats_of_columns_with_a_type_know_that_there_is_one(versioned, monkeypatch) -> None:
    """With it a format looks up which schema it is, and need not know a type for it."""
    seen = []
    resolve = versioned.resolve_read

    def noted(settings):
        seen.append((settings["payload"], settings.get("typed")))
        return resolve(settings)

    monkeypatch.setattr(versioned, "resolve_read", noted)
    parsed = formats(key_format="versioned", value_format="versioned").resolve()
    assert seen == [("key", "true"), ("value", "true")]
    for one in (parsed.key, parsed.value):
        assert one is not None
        assert "typed" not in dict(one.settings)
    seen.clear()
    given = formats(key_format="versioned", value_format="versioned", value_schema="n bigint")
    for one in (given.key, given.value):
        assert one is not None
        one.resolve_read()
    assert seen == [("key", None), ("value", "true")]


def test_options_of_the_registry_are_known_for_a_payload_alone() -> None:
    given = {
        "value.format": "json",
        "value.registry.url": "https://r",
        "key.registry.ssl.ca": "x",
        "value.registry.x": "",
    }
    (warning,) = OptionValues.parse(given, Scope.READ).warnings
    assert warning.startswith("Unknown option 'value.registry.x' is ignored")
    with pytest.raises(ConfigError, match=r"key\.schemaId.*no effect without key\.format"):
        formats(value_format="json", key_schemaid="1")


def test_timestamps_without_a_time_zone_that_the_format_finds_stay_so(versioned, monkeypatch) -> None:
    """As timestamps of a zone they would be shifted by that of the session."""
    kind = pa.struct([("at", pa.timestamp("us")), ("of", pa.timestamp("us", "UTC"))])
    monkeypatch.setattr(versioned, "resolve_read", lambda settings: Resolved(kind, dict(settings)))
    extended = formats(value_format="versioned").extend(full_schema(False))
    assert "STRUCT<`at` timestamp_ntz, `of` timestamp>" in extended


def test_ids_of_schemas_are_put_into_the_headers_of_what_is_written(versioned, monkeypatch) -> None:
    class Marking:
        header = b"id"

        def encode(self, rows: pa.Array) -> pa.Array:
            return pa.array([b"x"] * len(rows), pa.binary())

    monkeypatch.setattr(versioned, "encoder", lambda *_: Marking())
    schema = StructType().add("value", StructType().add("id", "long"))
    columns, _ = RowColumns.check(schema, "t", formats=written(value_format="versioned"))
    (row,) = columns.select(pa.RecordBatch.from_pydict({"value": [{"id": 1}]})).to_pylist()
    assert [tuple(one.values()) for one in row["headers"]] == [("__value_schema_id", b"id")]


def test_files_and_modules_of_protobuf_are_those_that_the_environment_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Options may come from strangers."""
    allowed, link = tmp_path / "allowed", tmp_path / "allowed" / "link"
    allowed.mkdir()
    link.symlink_to(tmp_path / "secret")
    monkeypatch.setenv(ALLOWED_FILES, str(allowed))
    monkeypatch.setenv(ALLOWED_MODULES, "shop.order_pb2")
    for path in (tmp_path / "secret", link):
        with pytest.raises(
            ConfigError, match=r"value\.descriptorFile: .* is not among PYKAFKA_ALLOWED_FILES"
        ):
            formats(value_format="protobuf", value_descriptorFile=str(path), value_message="x")
    found = formats(value_format="protobuf", value_descriptorFile=str(allowed / "a"), value_message="x").value
    assert dict(found.settings)["descriptorfile"] == str(allowed / "a")
    with pytest.raises(
        ConfigError, match=r"key\.messageClass: the module antigravity is not among PYKAFKA_ALL"
    ):
        formats(key_format="protobuf", key_messageClass="antigravity.Message")
    assert formats(key_format="protobuf", key_messageClass="shop.order_pb2.Order").key is not None
