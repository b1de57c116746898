"""`FORMAT_OPTIONS`: the part of the table of options that is about formats of keys and values."""

from __future__ import annotations

from typing import Final

from ...kafka.model import BadRecordMode
from .option import Option, OptionType, Scope

_READS: Final = Scope.READ | Scope.STREAM


def _for_both(
    name: str, values: str, sentence: str, scope: Scope = _READS | Scope.WRITE
) -> tuple[Option, Option]:
    """The option for values, and the same one for keys."""
    value = Option(name=f"value.{name}", scope=scope, values=values, ours=True, sentence=sentence)
    same = f"The same for keys as `value.{name}`."
    return value, Option(name=f"key.{name}", scope=scope, values=values, ours=True, sentence=same)


FORMAT_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        name="value.format",
        scope=_READS | Scope.WRITE,
        default="raw",
        values="`raw`, `string`, `json`, `csv`, `avro`, `protobuf`, `arrow-ipc`, or one of another package",
        ours=True,
        sentence=(
            "What the values (keys) are. `json`, `csv`, `avro`, `protobuf`, `arrow-ipc`: the column `value` "
            "is a struct, or another type of the format, instead of bytes; see [formats.md](formats.md). A "
            "read takes its type from `value.schema` or from `.schema(...)`; a write encodes the column that "
            "it finds."
        ),
    ),
    Option(
        name="key.format",
        scope=_READS | Scope.WRITE,
        default="raw",
        values="as `value.format`",
        ours=True,
        sentence="What the keys are.",
    ),
    Option(
        name="value.schema",
        scope=_READS | Scope.WRITE,
        values="DDL (`id bigint, name string`), the JSON of a `StructType`, or a schema of the format",
        ours=True,
        sentence=(
            "The fields of the values (keys). Only these are decoded. In Avro's JSON, with "
            "`value.format=avro`: the schema that the values were written with, or are to be written with. A "
            "write takes no other. "
            "`infer`, for JSON and CSV: `load()` finds them in the newest records."
        ),
    ),
    Option(
        name="key.schema",
        scope=_READS | Scope.WRITE,
        values="as `value.schema`",
        ours=True,
        sentence="The fields of the keys.",
    ),
    Option(
        name="value.avroSchema",
        scope=_READS,
        values="Avro's JSON",
        ours=True,
        sentence=(
            "The schema to read the values as, where it is not the one that they were written with, as the "
            "option `avroSchema` of Spark's `from_avro`."
        ),
    ),
    Option(
        name="key.avroSchema",
        scope=_READS,
        values="Avro's JSON",
        ours=True,
        sentence="The same for keys.",
    ),
    Option(
        name="value.inferRecords",
        scope=_READS,
        type=OptionType.INT,
        minimum=1,
        maximum=100_000,
        default="1000",
        ours=True,
        sentence="With `value.schema=infer`: how many of the newest records `load()` reads to find a schema.",
    ),
    Option(
        name="key.inferRecords",
        scope=_READS,
        type=OptionType.INT,
        minimum=1,
        maximum=100_000,
        default="1000",
        ours=True,
        sentence="The same with `key.schema=infer`.",
    ),
    Option(
        name="value.layout",
        scope=_READS | Scope.WRITE,
        type=OptionType.CHOICE,
        choices=("struct", "columns"),
        default="struct",
        ours=True,
        sentence=(
            "`struct`: the fields of the value are in the column `value`. `columns`: they are columns of the "
            "DataFrame, beside Kafka's; a write takes all columns that are not Kafka's."
        ),
    ),
    Option(
        name="value.prefix",
        scope=_READS | Scope.WRITE,
        values="text",
        ours=True,
        sentence=(
            "With `value.layout=columns`: what the names of these columns begin with. A write takes the "
            "columns whose names begin so, and leaves the prefix out."
        ),
    ),
    Option(
        name="value.timeZone",
        scope=_READS,
        values="such as `Europe/Berlin`",
        ours=True,
        sentence="The time zone of timestamps that name none, in JSON and CSV; by default UTC.",
    ),
    Option(
        name="key.timeZone",
        scope=_READS,
        values="as `value.timeZone`",
        ours=True,
        sentence="The same for keys.",
    ),
    *_for_both(
        "descriptorFile",
        "a file",
        "The file that `protoc --descriptor_set_out --include_imports` wrote. It is read in the driver.",
    ),
    *_for_both("message", "such as `shop.Order`", "The full name of the protobuf message."),
    *_for_both(
        "messageClass",
        "such as `shop.order_pb2.Order`",
        "The Python class that `protoc` made of the message; imported in the driver.",
    ),
    *_for_both(
        "enums.as.ints",
        "`true` or `false`",
        "protobuf: enums are their numbers instead of their names, where the type is not given.",
        scope=_READS,
    ),
    *_for_both(
        "upcast.unsigned.ints",
        "`true` or `false`",
        "protobuf: `uint32` is `bigint` and `uint64` is `decimal(20,0)`, the default; or `int` and `bigint`, "
        "and larger values are bad.",
        scope=_READS,
    ),
    *_for_both(
        "unwrap.primitive.wrapper.types",
        "`true` or `false`",
        "protobuf: `google.protobuf.Int64Value` and the like are what they wrap.",
        scope=_READS,
    ),
    *_for_both(
        "emit.default.values",
        "`true` or `false`",
        "protobuf: fields without presence are zeros instead of nulls where they are absent.",
        scope=_READS,
    ),
    *_for_both(
        "recursive.fields.max.depth",
        "1 to 10",
        "protobuf: how often a message is there within itself; 1 leaves the recursive field out.",
        scope=_READS,
    ),
    *_for_both(
        "convert.any.fields.to.json",
        "`false`",
        "protobuf: not supported; an `Any` is `struct<type_url, value>`.",
        scope=_READS,
    ),
    *_for_both(
        "retain.empty.message.types",
        "`false`",
        "protobuf: not supported; messages without fields are left out.",
        scope=_READS,
    ),
    Option(
        name="value.sep",
        scope=_READS | Scope.WRITE,
        values="one character, or `\\t`",
        ours=True,
        sentence="What separates the values of CSV; by default a comma.",
    ),
    Option(
        name="key.sep",
        scope=_READS | Scope.WRITE,
        values="as `value.sep`",
        ours=True,
        sentence="The same for keys.",
    ),
    *_for_both(
        "delimiter",
        "as `value.sep`",
        "The same as `value.sep`, which comes first.",
        scope=_READS | Scope.WRITE,
    ),
    Option(
        name="value.quote",
        scope=_READS | Scope.WRITE,
        values="one character, or nothing",
        ours=True,
        sentence='What a value of CSV is put into if it has separators; by default `"`.',
    ),
    Option(
        name="key.quote",
        scope=_READS | Scope.WRITE,
        values="as `value.quote`",
        ours=True,
        sentence="The same for keys.",
    ),
    Option(
        name="value.escape",
        scope=_READS | Scope.WRITE,
        values="one character",
        ours=True,
        sentence=(
            "What stands before a quote inside of a quoted value of CSV, by default `\\`; "
            "the quote itself: quotes are doubled."
        ),
    ),
    Option(
        name="key.escape",
        scope=_READS | Scope.WRITE,
        values="as `value.escape`",
        ours=True,
        sentence="The same for keys.",
    ),
    Option(
        name="value.nullValue",
        scope=_READS | Scope.WRITE,
        values="text",
        ours=True,
        sentence="The text of a null in CSV; by default empty.",
    ),
    Option(
        name="key.nullValue",
        scope=_READS | Scope.WRITE,
        values="as `value.nullValue`",
        ours=True,
        sentence="The same for keys.",
    ),
    Option(
        name="mode",
        scope=_READS,
        type=OptionType.CHOICE,
        choices=tuple(one.value for one in BadRecordMode),
        default="failfast",
        ours=True,
        sentence=(
            "What becomes of a record whose key or value can't be decoded. `failfast`: the query fails, with "
            "topic, partition and offset. `permissive`: fields that can't be read are null; "
            "`_corrupt_record` has the bytes and `_error` the reason. `dropmalformed`: the record is left "
            "out. `dlq`, in streams: it is left out, and goes to `dlq.topic`. But for the first, a line of "
            "each task's log says how many were bad."
        ),
    ),
    Option(
        name="dlq.topic",
        scope=Scope.STREAM,
        values="a topic",
        ours=True,
        sentence=(
            "With `mode=dlq`: where records go that can't be decoded, with their bytes and headers, each "
            "once for a query. The topic must exist."
        ),
    ),
)
