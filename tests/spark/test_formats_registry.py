"""JSON with a schema registry in Spark: reads, writes and streams."""

import json
import uuid
from typing import Any

import pytest
from support.http_server import Asked, serving

from spark_kafka_native.formats.registry import frame_id
from spark_kafka_native.testing import EmbeddedKafka, EmbeddedRegistry

pytestmark = [pytest.mark.broker, pytest.mark.spark]

OLD = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
NEW = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}})


def options(kafka: EmbeddedKafka, registry: EmbeddedRegistry) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "value.format": "json",
        "registry.url": registry.url,
    }


def put(peer: Any, kafka: EmbeddedKafka, topic: str, values: list[tuple[bytes | None, Any]]) -> None:
    """Values, each with headers."""
    records = [(0, None, value, 1_700_000_000_000, headers) for value, headers in values]
    peer.write(kafka.bootstrap_servers, topic, records)


def test_a_write_that_registers_and_a_read(
    spark: Any, kafka: EmbeddedKafka, registry: EmbeddedRegistry
) -> None:
    kafka.create_topic("registered", 2)
    frame = spark.sql("select struct(id, concat('n', id) as name) as value from range(100)")
    written = {**options(kafka, registry), "topic": "registered"}
    with pytest.raises(Exception, match="no latest version of subject 'registered-value'"):
        frame.write.format("pykafka").options(**written).mode("append").save()
    frame.write.format("pykafka").options(**written, **{"registry.register": "true"}).mode("append").save()
    read = spark.read.format("pykafka").options(**options(kafka, registry), subscribe="registered").load()
    assert read.schema["value"].dataType.simpleString() == "struct<id:bigint,name:string>"
    assert {(row.id, row.name) for row in read.select("value.*").collect()} == {
        (i, f"n{i}") for i in range(100)
    }


def test_records_of_several_schemas_ids_in_headers_and_bad_ones(
    spark: Any, kafka: EmbeddedKafka, registry: EmbeddedRegistry, peer: Any
) -> None:
    peer.create(kafka, "mixed")
    old, new = registry.register("mixed-value", OLD, "JSON"), registry.register("mixed-value", NEW, "JSON")
    header = [("x", b""), ("__value_schema_id", frame_id(new))]
    values = [
        (frame_id(old) + b'{"id": 1}', ()),
        (frame_id(new) + b'{"id": 2, "name": "b"}', ()),
        (b'{"id": 3}', header),
        (b'{"id": 4}', ()),
        (None, ()),
        (b"\0\0", ()),
    ]
    put(peer, kafka, "mixed", values)
    read = spark.read.format("pykafka").options(
        **options(kafka, registry), subscribe="mixed", mode="permissive"
    )
    rows = read.load().selectExpr("offset", "value.id", "value.name", "_error").orderBy("offset").collect()
    assert [(row.id, row.name) for row in rows] == [(1, None), (2, "b"), (3, None), *[(None, None)] * 3]
    assert [row._error is not None for row in rows] == [False, False, False, True, False, True]
    assert "first byte is 123" in rows[3]._error


def test_a_stream_goes_on_under_its_schema(
    spark: Any, kafka: EmbeddedKafka, registry: EmbeddedRegistry, peer: Any, tmp_path: Any
) -> None:
    peer.create(kafka, "evolving")
    old = registry.register("evolving-value", OLD, "JSON")
    put(peer, kafka, "evolving", [(frame_id(old) + b'{"id": 1}', ())])
    stream = (
        spark.readStream.format("pykafka")
        .options(**options(kafka, registry), subscribe="evolving", startingOffsets="earliest")
        .load()
    )
    query = (
        stream.select("value.*")
        .writeStream.format("memory")
        .queryName("evolving")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
        new = registry.register("evolving-value", NEW, "JSON")
        put(peer, kafka, "evolving", [(frame_id(new) + b'{"id": 2, "name": "b"}', ())])
        query.processAllAvailable()
        assert [row.asDict() for row in spark.table("evolving").orderBy("id").collect()] == [
            {"id": 1},
            {"id": 2},
        ]
    finally:
        query.stop()


def test_a_url_that_is_no_registrys(spark: Any, kafka: EmbeddedKafka, registry: EmbeddedRegistry) -> None:
    kafka.create_topic("no-registry", 1)
    given = {**options(kafka, registry), "registry.url": f"{registry.url}/x", "subscribe": "no-registry"}
    login = {"registry.user": "me", "registry.password": "s3cr3t"}
    with pytest.raises(Exception, match=r"subject 'no-registry-value'.*v7/x: HTTP status 404") as raised:
        spark.read.format("pykafka").options(**given, **login).load()
    assert "s3cr3t" not in str(raised.value)


def test_ids_in_headers_of_a_write_and_of_a_stream_that_copies_it(
    spark: Any, kafka: EmbeddedKafka, tmp_path: Any
) -> None:
    guids = {name: str(uuid.uuid4()) for name in ("ids-a", "ids-b")}

    def answer(asked: Asked) -> tuple[int, dict[str, str], Any]:
        subject = asked.path.split("/")[2]
        found = {"id": 7, "version": 1, "schemaType": "JSON", "guid": guids[subject.removesuffix("-value")]}
        return 200, {}, found | {"schema": NEW}

    with serving(answer) as served:
        given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "value.format": "json"}
        given |= {"registry.url": served.url}
        write = {**given, "value.schemaIdIn": "header"}
        for topic in guids:
            kafka.create_topic(topic, 1)
        headers = "array(struct('x' as key, binary('1') as value)) as headers"
        frame = spark.sql(f"select struct(id) as value, {headers} from range(3)")
        frame.write.format("pykafka").options(**write, topic="ids-a").mode("append").save()
        stream = spark.readStream.format("pykafka").options(**given, subscribe="ids-a", includeHeaders="true")
        copied = stream.option("startingOffsets", "earliest").load().select("value", "headers")
        written = copied.writeStream.format("pykafka").options(**write, topic="ids-b")
        query = written.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        for topic, guid in guids.items():
            plain = spark.read.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
            rows = plain.options(subscribe=topic, includeHeaders="true").load().collect()
            mark = b"\1" + uuid.UUID(guid).bytes
            expected = [("x", b"1"), ("__value_schema_id", mark)]
            assert [[(one.key, bytes(one.value)) for one in row.headers] for row in rows] == [expected] * 3
            assert sorted(bytes(row.value) for row in rows) == [b'{"id":%d}' % i for i in range(3)]
