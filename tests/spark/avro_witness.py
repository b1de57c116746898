"""Spark's ``from_avro`` and ``to_avro`` beside ours, on the same bytes, in a process with spark-avro's jar.

``avro_witness.py jars`` prints ``RESULT`` and, as JSON, what differs: by the names of the cases.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.pandas.types import from_arrow_type
from support.avro_cases import Cases, write

from spark_kafka_native.formats.avro.decoder import AvroDecoder
from spark_kafka_native.formats.avro.derived_schema import derive_schema
from spark_kafka_native.formats.avro.encoder import AvroEncoder
from spark_kafka_native.formats.avro.fingerprint import canonical_form
from spark_kafka_native.formats.avro.schema import parse_schema
from spark_kafka_native.formats.avro.types import arrow_type


def record(*fields: Any) -> dict[str, Any]:
    made = [one if isinstance(one, dict) else {"name": one[0], "type": one[1]} for one in fields]
    return {"type": "record", "name": "R", "fields": made}


def logical(of: str, logical_name: str, **more: Any) -> dict[str, Any]:
    return {"type": of, "logicalType": logical_name, **more}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
TYPES: dict[str, tuple[Any, list[str]]] = {
    "null": ("null", [""]),
    "boolean": ("boolean", ["00", "01"]),
    "int": ("int", ["00", "01", "ffffffff0f"]),
    "long": ("long", ["feffffffffffffffff01"]),
    "float": ("float", ["0000803f", "0000c07f"]),
    "double": ("double", ["000000000000f03f"]),
    "bytes": ("bytes", ["00", "02ff"]),
    "string": ("string", ["00", "08c3a4c3a4"]),
    "date": (logical("int", "date"), ["01", "c0cb02"]),
    "time-millis": (logical("int", "time-millis"), ["d00f"]),
    "time-micros": (logical("long", "time-micros"), ["d00f"]),
    "timestamp-millis": (logical("long", "timestamp-millis"), ["01", "8080a8f3e163"]),
    "timestamp-micros": (logical("long", "timestamp-micros"), ["01"]),
    "timestamp-nanos": (logical("long", "timestamp-nanos"), ["01"]),
    "local-timestamp-millis": (logical("long", "local-timestamp-millis"), ["01"]),
    "local-timestamp-micros": (logical("long", "local-timestamp-micros"), ["01"]),
    "local-timestamp-nanos": (logical("long", "local-timestamp-nanos"), ["01"]),
    "decimal": (logical("bytes", "decimal", precision=9, scale=2), ["0285", "0400ff"]),
    "decimal fixed": (
        logical("fixed", "decimal", name="D", size=5, precision=9, scale=2), ["ffffffff85"],
    ),
    "uuid": (logical("string", "uuid"), ["48" + b"12345678-1234-1234-1234-123456789abc".hex()]),
    "uuid fixed": (logical("fixed", "uuid", name="U", size=16), ["00" * 16]),
    "duration": (logical("fixed", "duration", name="D", size=12), ["01" * 12]),
    "unknown logical type": (logical("int", "parsecs"), ["02"]),
    "enum": (ENUM, ["00", "04"]),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, ["abcd"]),
    "array": ({"type": "array", "items": ["null", "int"]}, ["0402020000", "00", "030602020000"]),
    "map": ({"type": "map", "values": "int"}, ["02026102" + "00"]),
    "nullable": (["null", "int"], ["00", "0202"]),
    "union of int and long": (["int", "long"], ["0002", "0202"]),
    "union of float and double": (["float", "double"], ["000000803f"]),
    "union": (["null", "int", "string"], ["00", "0202", "040261"]),
    "union of one": (["int"], ["0002"]),
    "record": (
        record(("a", "int"), ("b", record(("c", ["null", "string"])) | {"name": "B"})), ["02020261"],
    ),
    "record without fields": (record(("a", record() | {"name": "Z"})), [""]),
}  # fmt: skip
BAD: dict[str, tuple[Any, str]] = {
    "empty payload": ("long", ""),
    "breaks off": ("string", "0461"),
    "bytes behind": ("long", "0202"),
    "not UTF-8": ("string", "02ff"),
    "branch": (["null", "int"], "04"),
    "symbol": (ENUM, "08"),
    "boolean of 2": ("boolean", "02"),
    "decimal with too many digits": (logical("bytes", "decimal", precision=2, scale=0), "0264"),
    "key twice": ({"type": "map", "values": "int"}, "0402610202610400"),
    "timestamp out of range": (logical("long", "timestamp-millis"), "feffffffffffffffff01"),
    "array of null": ({"type": "array", "items": "null"}, "feff0f00"),
    "size of a block": ({"type": "array", "items": "int"}, "01040200"),
}
READERS: dict[str, tuple[Any, Any, str]] = {
    "promotion": (record(("a", "int")), record(("a", "double")), "03"),
    "promotion of bytes": (record(("a", "bytes")), record(("a", "string")), "0261"),
    "field gone": (record(("a", "int"), ("b", "string")), record(("a", "int")), "020261"),
    "field added": (
        record(("a", "int")), record(("a", "int"), {"name": "b", "type": "string", "default": "x"}), "02",
    ),
    "nullable field without default added": (
        record(("a", "int")), record(("a", "int"), ("b", ["null", "int"])), "02",
    ),
    "alias": (record(("a", "int")), record({"name": "b", "type": "int", "aliases": ["a"]}), "02"),
    "enum default": (
        record(("a", ENUM)), record(("a", {**ENUM, "symbols": ["A"], "default": "A"})), "04",
    ),
    "millis read as micros": (
        record(("a", logical("long", "timestamp-millis"))),
        record(("a", logical("long", "timestamp-micros"))), "d00f",
    ),
    "other name of the record": (record(("a", "int")), {**record(("a", "int")), "name": "Q"}, "02"),
    "into union": (record(("a", "int")), record(("a", ["null", "long", "string"])), "02"),
}  # fmt: skip


def plain(value: Any) -> Any:
    """Rows of Spark in the form of `arrow_plain`."""
    if isinstance(value, Row):
        return {name: plain(value[i]) for i, name in enumerate(value.__fields__)}
    if isinstance(value, dict):
        return sorted([str(key), plain(one)] for key, one in value.items())
    if isinstance(value, list):
        return [plain(one) for one in value]
    return leaf(value)


def arrow_plain(kind: pa.DataType, value: Any) -> Any:
    """Values of Arrow with maps as sorted lists, bytes in hex, the rest as text."""
    if value is None:
        return leaf(None)
    if pa.types.is_struct(kind):
        return {field.name: arrow_plain(field.type, value[field.name]) for field in kind}
    if pa.types.is_map(kind):
        return sorted([key, arrow_plain(kind.item_type, one)] for key, one in value)
    if pa.types.is_list(kind):
        return [arrow_plain(kind.value_type, one) for one in value]
    return leaf(value)


def leaf(value: Any) -> str:
    if isinstance(value, bytearray | bytes):
        return bytes(value).hex()
    return repr(value.replace(tzinfo=None)) if hasattr(value, "tzinfo") else repr(value)


def theirs(spark: Any, payloads: list[str], schema: Any, options: dict[str, str]) -> tuple[str, Any]:
    rows = spark.createDataFrame(
        [(i, bytes.fromhex(one)) for i, one in enumerate(payloads)], "i int, v binary"
    )
    try:
        read = rows.select("i", from_avro("v", json.dumps(schema), options).alias("v"))
        kind = read.schema["v"].dataType.simpleString()
        # An empty map and an empty list are both [] in Arrow's Python.
        return kind, [
            plain(row.v) or [] if row.v == {} else plain(row.v) for row in read.orderBy("i").collect()
        ]
    except Exception as error:
        return "", f"{type(error).__name__}: {str(error)[:300]}"


def ours(payloads: list[str], schema: Any, reader: Any = None) -> tuple[str, Any]:
    avro = parse_schema(json.dumps(schema if reader is None else reader))
    kind = arrow_type(avro)
    decoded = AvroDecoder(parse_schema(json.dumps(schema)), avro, kind).decode(
        pa.array([bytes.fromhex(one) for one in payloads], pa.binary())
    )
    text = from_arrow_type(kind, prefer_timestamp_ntz=True).simpleString()
    return text, [arrow_plain(kind, value) for value in decoded.array.to_pylist()]


def compare_reads(spark: Any, differing: dict[str, Any]) -> None:
    def note(name: str, mine: Any, other: Any) -> None:
        if mine != other:
            differing[name] = [mine, other]

    for name, (schema, payloads) in TYPES.items():
        note(name, ours(payloads, schema), theirs(spark, payloads, schema, {}))
    for name, (schema, payload) in BAD.items():
        note(name, ours([payload], schema), theirs(spark, [payload], schema, {"mode": "PERMISSIVE"}))
    for name, (schema, reader, payload) in READERS.items():
        options = {"avroSchema": json.dumps(reader)}
        note(f"reader: {name}", ours([payload], schema, reader), theirs(spark, [payload], schema, options))
    for seed in range(8):
        cases = Cases(seed)
        schema = cases.record()
        payloads = [write(schema, cases.value(schema)[0]).hex() for _ in range(20)]
        note(f"seed {seed}", ours(payloads, schema), theirs(spark, payloads, schema, {}))


def compare_writes(spark: Any, differing: dict[str, Any]) -> None:
    at = F.timestamp_millis(F.col("id") * 1_000_003)
    frame = spark.range(50).select(
        F.struct(
            "id",
            F.col("id").cast("tinyint").alias("small"),
            F.when(F.col("id") % 3 != 0, F.concat(F.lit("n"), "id")).alias("name"),
            (F.col("id") / 7).alias("amount"),
            (F.col("id") / 7).cast("float").alias("ratio"),
            (F.col("id") % 2 == 0).alias("even"),
            at.alias("at"),
            at.cast("timestamp_ntz").alias("local"),
            F.to_date(at).alias("day"),
            F.array(F.lit("a"), F.when(F.col("id") % 2 == 0, "b")).alias("tags"),
            F.create_map(F.lit("k"), F.col("id").cast("int")).alias("attributes"),
            (F.col("id") / 100 - 1).cast("decimal(10,2)").alias("price"),
            (F.col("id") / 100 - 1).cast("decimal(38,10)").alias("long_price"),
            F.col("id").cast("string").cast("binary").alias("raw"),
            F.struct(F.struct((F.col("id") / 9).cast("decimal(9,1)").alias("d")).alias("inner")).alias("geo"),
            F.array(F.struct(F.col("id").alias("x"))).alias("list"),
        ).alias("v")
    )
    rows = frame.toArrow()["v"].combine_chunks()
    rows = rows.chunk(0) if isinstance(rows, pa.ChunkedArray) else rows
    mine = AvroEncoder(parse_schema(json.dumps(derive_schema(rows.type))), rows.type).encode(rows)
    other = [bytes(row.v) for row in frame.select(to_avro("v").alias("v")).collect()]
    if mine.to_pylist() != other:
        differing["to_avro"] = [mine[1].as_py().hex(), other[1].hex()]
    converters = spark._jvm.org.apache.spark.sql.avro.SchemaConverters
    kind = spark._jvm.org.apache.spark.sql.types.DataType.fromJson(frame.schema["v"].dataType.json())
    schema = converters.toAvroType(kind, False, "topLevelRecord", "").toString()
    if canonical_form(parse_schema(schema)) != canonical_form(
        parse_schema(json.dumps(derive_schema(rows.type)))
    ):
        differing["schema of to_avro"] = [json.dumps(derive_schema(rows.type)), schema]
    given = {"type": "record", "name": "Given", "fields": [
        {"name": "name", "type": ["null", "string"]}, {"name": "id", "type": "long"},
        {"name": "at", "type": logical("long", "timestamp-millis")},
        {"name": "price", "type": logical("bytes", "decimal", precision=10, scale=2)},
        {"name": "even", "type": "boolean"}]}  # fmt: skip
    some = frame.select(F.struct("v.name", "v.id", "v.at", "v.price", "v.even").alias("v"))
    rows = some.toArrow()["v"].combine_chunks()
    rows = rows.chunk(0) if isinstance(rows, pa.ChunkedArray) else rows
    mine = AvroEncoder(parse_schema(json.dumps(given)), rows.type).encode(rows)
    other = [bytes(row.v) for row in some.select(to_avro("v", json.dumps(given)).alias("v")).collect()]
    if mine.to_pylist() != other:
        differing["to_avro by a schema"] = [mine[1].as_py().hex(), other[1].hex()]


def main() -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.jars", ",".join(sys.argv[1:]))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    differing: dict[str, Any] = {}
    compare_reads(spark, differing)
    compare_writes(spark, differing)
    print("RESULT " + json.dumps(differing))
    spark.stop()


if __name__ == "__main__":
    main()
