"""Keys and values as typed columns: what Spark's own functions make of the same bytes; batches, streams."""

import json
import random
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from spark_kafka_native.testing import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.spark]

DDL = (
    "id bigint, small tinyint, name string, amount double, ratio float, ok boolean, price decimal(10,2), "
    "day date, at timestamp, tags array<string>, geo struct<lat: double, lon: double>, "
    "attributes map<string, int>, raw binary"
)
ODD = [
    '{"id": 1, "name": "x", "amount": 1.5, "ok": true, "tags": ["a", null], "geo": {"lat": 1, "lon": -0.5}}',
    '{"name": 12.5, "geo": null, "extra": [[1], {"x": "}"}]}',
    '{"name": {"nested":[1,2]}, "tags": [1, {"a":2}, "t"]}',
    '{"id": 9223372036854775807, "small": -128, "ratio": 0.1, "amount": 1e308}',
    '{"price": 1.255, "day": "2024-02-29", "at": "2024-02-29T12:30:00.123456Z"}',
    '{"price": "3.5", "at": "2024-02-29 12:30:00+02:00"}',
    '{"at": 1700000000, "raw": "aGk=", "attributes": {"a": 1, "b": null}}',
    '{"amount": "NaN", "ratio": "Infinity"}',
    '{"name": "\\ud83d\\ude00 \\u0041 \\\\ \\""}',
    '{"id": 1, "id": 2}',
    '{"ID": 5, "Name": "case"}',
    "{}",
    '  {\n "id" :\t7 }  ',
    '{"tags": [], "attributes": {}}',
    "",
    "   ",
    '{"id": "text"}',
    '{"id": 1.5, "name": "kept"}',
    '{"small": 300, "name": "kept"}',
    '{"ok": "true"}',
    '{"geo": [1], "name": "kept"}',
    '{"tags": "no", "name": "kept"}',
    '{"day": "2024-02-30"}',
    "null",
    '"text"',
    "12",
]
"""Texts about which two readers of JSON may disagree; see the table in docs/formats.md."""


def load(spark: Any, kafka: EmbeddedKafka, topic: str, **options: str) -> Any:
    reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    return reader.options(subscribe=topic, **options).load()


def write_values(
    peer: Any, kafka: EmbeddedKafka, topic: str, values: list[str | None], partitions: int = 1
) -> str:
    peer.create(kafka, topic, partitions)
    records = [
        (i % partitions, f"{i}".encode(), None if value is None else value.encode(), 1_700_000_000_000, ())
        for i, value in enumerate(values)
    ]
    peer.write(kafka.bootstrap_servers, topic, records)
    return topic


@pytest.fixture(scope="module")
def odd(peer: Any, kafka: EmbeddedKafka) -> str:
    return write_values(peer, kafka, "formats-odd", [*ODD, None])


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "among good ones"])
def test_json_is_what_from_json_makes_of_it(
    spark: Any, peer: Any, kafka: EmbeddedKafka, together: bool, odd: str
) -> None:
    values: list[str | None] = [*ODD, None]
    if together:
        good = [json.dumps({"id": i, "name": f"n{i}", "tags": ["x"]}) for i in range(4_000)]
        rng = random.Random(7)
        for value in values:
            good.insert(rng.randrange(len(good)), value)
        odd = write_values(peer, kafka, "formats-odd-together", good)
        values = good
    typed = load(spark, kafka, odd, **{"value.format": "json", "value.schema": DDL, "mode": "permissive"})
    theirs = load(spark, kafka, odd).select(
        "offset", F.from_json(F.col("value").cast("string"), DDL).alias("value")
    )
    # As text: NaN equals nothing.
    ours = {row.offset: repr(row.value) for row in typed.select("offset", "value").collect()}
    assert len(ours) == len(values)
    differing = [
        (values[row.offset], ours[row.offset], repr(row.value))
        for row in theirs.collect()
        if ours[row.offset] != repr(row.value)
    ]
    assert not differing


def test_other_types_as_text_are_the_text_that_was_written(
    spark: Any, peer: Any, kafka: EmbeddedKafka
) -> None:
    values: list[str | None] = ['{"name": 12.50}', '{"name": {"a":  [1, 2]}}']
    topic = write_values(peer, kafka, "formats-text", values)
    read = load(spark, kafka, topic, **{"value.format": "json", "value.schema": "name string"})
    assert [row.value.name for row in read.orderBy("offset").collect()] == ["12.50", '{"a":  [1, 2]}']


def test_to_json_reads_what_is_written_and_the_other_way_round(spark: Any, kafka: EmbeddedKafka) -> None:
    kafka.create_topic("formats-written", 3)
    rows = spark.range(500).select(
        F.struct("id").alias("key"),
        F.struct(
            "id",
            F.when(F.col("id") % 3 != 0, F.concat(F.lit('n"\\\n'), "id")).alias("name"),
            (F.col("id") / 7).alias("amount"),
            F.timestamp_millis(F.col("id") * 1_000_003).alias("at"),
            F.to_date(F.timestamp_seconds(F.col("id") * 100_000)).alias("day"),
            F.array(F.lit("a"), F.col("id").cast("string")).alias("tags"),
            F.create_map(F.lit("k"), F.col("id").cast("int")).alias("attributes"),
            (F.col("id") / 100).cast("decimal(10,2)").alias("price"),
            F.col("id").cast("string").cast("binary").alias("raw"),
        ).alias("value"),
    )
    rows.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers).options(
        topic="formats-written", **{"key.format": "json", "value.format": "json"}
    ).mode("append").save()
    ddl = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in rows.schema["value"].dataType)
    formats = {"key.format": "json", "key.schema": "id bigint", "value.format": "json", "value.schema": ddl}
    read = load(spark, kafka, "formats-written", **formats).select("key", "value")
    wanted = rows.orderBy("key.id").collect()
    assert read.orderBy("key.id").collect() == wanted
    parsed = load(spark, kafka, "formats-written").select(
        F.from_json(F.col("key").cast("string"), "id bigint").alias("key"),
        F.from_json(F.col("value").cast("string"), ddl).alias("value"),
    )
    assert parsed.orderBy("key.id").collect() == wanted


CSV_DDL = "a string, b int, c double, d date, t timestamp, o boolean, x decimal(10,2)"
CSV_LINES = [
    "x,1,2.5,2024-02-29,2024-02-29T12:30:00Z,true,1.255",
    '"x,y",-1,1e3,2024-02-29T00:00:00,2024-02-29 12:30:00.123456,FALSE,.5',
    '"x\\"y\\\\z",+1, 2 ,,2024-02-29T12:30:00+02:00,,+1.5',
    '"x" ,1,NaN,2024-02-29,2024-02-29,,1e2',
    "x\ny,1,Inf,,,,",
    '"x\r\ny",1,-Infinity,,,,',
    'x"y,1,1e400,,,,',
    '"","",,,,,',
    ",,,,,,",
    "",
    "x,1",
    "   ",
    "x,1.0,y,2024-02-30,z,1,1234567890.5",
    "x,99999999999,1,,,,,too,many",
    " x ,0x1F,1_0,,,,",
    "NA,1,2,,,,NA",
    "\t,1,2,,,,",
]


@pytest.mark.parametrize(
    "settings", [{}, {"nullValue": "NA"}, {"escape": '"'}], ids=["defaults", "nullValue", "doubled quotes"]
)
def test_csv_is_what_from_csv_makes_of_it(
    spark: Any, peer: Any, kafka: EmbeddedKafka, settings: dict[str, str]
) -> None:
    odd = [line for line in CSV_LINES if not (settings.get("escape") and "\\" in line)]
    good = [f"g{i},{i},{i / 7},2024-01-01,2024-01-01T00:00:00Z,true,{i}.25" for i in range(3_000)]
    values: list[str | None] = [
        *odd,
        *good,
        *odd,
        None,
        *(['"x""y",1,2,,,,'] if "escape" in settings else []),
    ]
    topic = write_values(peer, kafka, f"formats-csv-{len(settings)}-{''.join(settings)}", values)
    options = {f"value.{name}": value for name, value in settings.items()}
    typed = load(
        spark, kafka, topic, mode="permissive", **{"value.format": "csv", "value.schema": CSV_DDL}, **options
    )
    theirs = load(spark, kafka, topic).select(
        "offset",
        F.from_csv(
            F.col("value").cast("string"),
            f"{CSV_DDL}, _bad string",
            {"columnNameOfCorruptRecord": "_bad"} | settings,
        ).alias("value"),
    )
    ours = {row.offset: row for row in typed.collect()}
    differing = []
    for row in theirs.collect():
        mine = ours[row.offset]
        wanted = None if row.value is None else tuple(row.value)[:-1]
        found = None if mine.value is None else tuple(mine.value)
        is_bad = row.value is not None and row.value._bad is not None
        if repr(found) != repr(wanted) or is_bad != (mine._error is not None):
            differing.append((values[row.offset], found, wanted, mine._error))
    assert not differing


def test_csv_is_written_as_to_csv_writes_it(spark: Any, kafka: EmbeddedKafka) -> None:
    kafka.create_topic("formats-csv-written")
    texts = ["x", "x,y", 'x"y', "x\\y", "x\ny", "", None, '"x"', 'a,b\\"c', "a\\,b"]
    rows = spark.createDataFrame(
        [(text, i, i / 4) for i, text in enumerate(texts)], "a string, b int, c double"
    )
    rows.select(F.struct("a", "b", "c").alias("value")).coalesce(1).write.format("pykafka").option(
        "kafka.bootstrap.servers", kafka.bootstrap_servers
    ).options(topic="formats-csv-written", **{"value.format": "csv"}).mode("append").save()
    ours = load(spark, kafka, "formats-csv-written", **{"value.format": "string"}).orderBy("offset").collect()
    theirs = rows.orderBy("b").select(F.to_csv(F.struct("a", "b", "c")).alias("value")).collect()
    assert [row.value for row in ours] == [row.value for row in theirs]


INFERRED = {"value.format": "json", "value.schema": "infer"}


def test_a_schema_is_inferred_as_spark_infers_it(spark: Any, peer: Any, kafka: EmbeddedKafka) -> None:
    values = [
        '{"a": 1, "b": true, "c": [1], "e": null, "s": "x", "o": {"y": 1}}',
        '{"a": 2.5, "c": [2.5, null], "d": [{"m": 1}, {"n": "x"}], "o": {"x": []}}',
        '{"big": 99999999999999999999, "e": "", "s": 1}',
        "not json",
    ]
    topic = write_values(peer, kafka, "formats-inferred", [*values, None], 2)
    typed = load(spark, kafka, topic, mode="dropmalformed", **INFERRED)
    good = spark.createDataFrame([(value,) for value in values[:3]], "value string")
    wanted = spark.read.json(good.rdd.map(lambda row: row.value)).schema
    assert typed.schema["value"].dataType == wanted
    assert typed.where("value is not null").count() == 3


def test_an_inferred_schema_is_that_of_the_newest_records(
    spark: Any, peer: Any, kafka: EmbeddedKafka, tmp_path: Any
) -> None:
    old, new = ["1,2,3,4,5"] * 500, ["1,x,2024-01-01"] * 20
    topic = write_values(peer, kafka, "formats-newest", [*old, *new, None, None, None])
    options = {"value.format": "csv", "value.schema": "infer", "value.inferRecords": "3"}
    # The three newest are null: it looks further back.
    assert "_c4" in load(spark, kafka, topic, **options).schema.simpleString()
    options |= {"value.inferRecords": "10", "startingOffsets": json.dumps({topic: {"0": 500}})}
    read = load(spark, kafka, topic, **options)
    assert read.schema["value"].dataType.simpleString() == "struct<_c0:bigint,_c1:string,_c2:date>"
    assert read.where("value._c0 = 1").count() == 20
    stream = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .options(subscribe=topic, **options, **{"value.layout": "columns"})
        .load()
    )
    assert "_c2" in stream.columns
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.lastProgress.numInputRows == 23


def test_nothing_to_infer_from(spark: Any, peer: Any, kafka: EmbeddedKafka) -> None:
    kafka.create_topic("formats-empty")
    with pytest.raises(Exception, match="has no record with a value to infer a schema from"):
        load(spark, kafka, "formats-empty", **INFERRED)
    topic = write_values(peer, kafka, "formats-nulls", [None, None])
    with pytest.raises(Exception, match="has no record with a value to infer a schema from"):
        load(spark, kafka, topic, **INFERRED)
    topic = write_values(peer, kafka, "formats-no-inference", ["x"])
    with pytest.raises(Exception, match=r"value\.format=string can't infer a schema"):
        load(spark, kafka, topic, **INFERRED | {"value.format": "string"})


def test_a_bad_record_fails_the_query_with_its_place(spark: Any, kafka: EmbeddedKafka, odd: str) -> None:
    typed = load(spark, kafka, odd, **{"value.format": "json", "value.schema": DDL})
    with pytest.raises(
        Exception, match=r"formats-odd-0 at offset 16: the value can't be decoded: `id` is not"
    ):
        typed.collect()


def test_bad_records_are_left_out_or_shown(spark: Any, kafka: EmbeddedKafka, odd: str) -> None:
    options = {"value.format": "json", "value.schema": DDL, "value.layout": "columns", "value.prefix": "v_"}
    shown = load(spark, kafka, odd, mode="permissive", **options)
    bad = {row.offset: row for row in shown.where("_error is not null").collect()}
    assert set(bad) == set(range(16, len(ODD)))
    assert bad[17].v_name == "kept"
    assert bytes(bad[17]._corrupt_record).decode() == ODD[17]
    left = load(spark, kafka, odd, mode="dropmalformed", **options)
    assert {row.offset for row in left.collect()} == {*range(16), len(ODD)}
    # Aggregations need no column: they count the same.
    assert left.count() == 17
    assert load(spark, kafka, odd, mode="permissive", **options).count() == len(ODD) + 1


def test_a_stream_of_typed_columns_into_another_topic(
    spark: Any, kafka: EmbeddedKafka, peer: Any, tmp_path: Any
) -> None:
    values = [json.dumps({"id": i, "name": f"n{i}"}) for i in range(1_000)]
    source = write_values(peer, kafka, "formats-stream", values, 3)
    kafka.create_topic("formats-stream-out", 2)
    stream = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="300")
        .options(
            **{"value.format": "json", "value.schema": "id bigint, name string", "value.layout": "columns"}
        )
        .load()
    )
    query = (
        stream.where("id % 2 = 0")
        .select("key", "id", F.upper("name").alias("name"))
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .options(
            topic="formats-stream-out", checkpointLocation=str(tmp_path), deliveryGuarantee="exactly-once"
        )
        .options(**{"value.format": "json", "value.layout": "columns"})
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    out = load(spark, kafka, "formats-stream-out", **{"value.format": "string", "key.format": "string"})
    got = sorted((int(row.key), row.value) for row in out.collect())
    assert got == [(i, f'{{"id":{i},"name":"N{i}"}}') for i in range(0, 1_000, 2)]


def test_a_stream_stops_at_a_bad_record(spark: Any, kafka: EmbeddedKafka, odd: str, tmp_path: Any) -> None:
    query = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .options(subscribe=odd, startingOffsets="earliest", **{"value.format": "json", "value.schema": DDL})
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="formats-odd-0 at offset 16"):
        query.awaitTermination()
