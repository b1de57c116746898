"""The exactly-once sink with typed columns: a micro-batch that runs again after a crash has the same bytes
and headers, and its dead letters, each once."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from spark_kafka_native.kafka import Consumer
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.group.committed_offsets import all_committed_offsets
from spark_kafka_native.spark.source import KafkaDataSource
from spark_kafka_native.spark.write.driver import stream_commit
from spark_kafka_native.spark.write.stream_writer import KafkaStreamWriter
from spark_kafka_native.testing import EmbeddedKafka

if TYPE_CHECKING:
    # Workers import this file, and not `support`.
    from support.http_server import Asked

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RECORDS, PER_BATCH = 48, 16
STALE = ("__value_schema_id", b"\0\0\0\0\x63")
"""Of the payload that a record had where it was copied from."""


class CommittingWriter(KafkaStreamWriter):
    """Its process dies with one of the two transactions of micro-batch 1 committed."""

    def commit(self, messages: Any, batchId: int) -> None:
        if batchId == 1:
            end_all = stream_commit._end_all

            def half(router: Any, transactions: Any, **how: Any) -> Any:
                assert len(transactions) == 2
                assert end_all(router, transactions[:1], **how) == []
                os.kill(os.getpid(), signal.SIGKILL)

            stream_commit._end_all = half
        super().commit(messages, batchId)


class WritingWriter(KafkaStreamWriter):
    """The worker of a task of micro-batch 1 dies when it has taken a row in."""

    def write(self, iterator: Iterator[Any]) -> Any:
        context = TaskContext.get()
        dies = context.getLocalProperty("streaming.sql.batchId") == "1" and context.partitionId() == 1

        def rows() -> Iterator[Any]:
            for one in iterator:
                yield one.slice(0, 1)
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield one.slice(1)

        return super().write(rows())


def source_of(writer: type[KafkaStreamWriter]) -> type[KafkaDataSource]:
    class Dying(KafkaDataSource):
        @classmethod
        def name(cls) -> str:
            return f"dying-{writer.__name__}"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            made = super().streamWriter(schema, overwrite)
            made.__class__ = writer
            return made

    return Dying


class Registry:
    """One with GUIDs, and one subject, the versions of which differ in a word."""

    def __init__(self) -> None:
        self.guids = [uuid.uuid4()]

    def header(self, version: int) -> tuple[str, bytes]:
        return "__value_schema_id", b"\1" + self.guids[version - 1].bytes

    def answer(self, asked: Asked) -> tuple[int, dict[str, str], Any]:
        last = asked.path.rsplit("/", 1)[1]
        version = len(self.guids) if last == "latest" else int(last)
        fields = [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ]
        schema = json.dumps(
            {"type": "record", "name": "Order", "doc": f"version {version}", "fields": fields}
        )
        found = {"id": 6 + version, "version": version, "schemaType": "AVRO", "schema": schema}
        return 200, {}, found | {"guid": str(self.guids[version - 1])}


@pytest.fixture
def registry() -> Iterator[tuple[Registry, str]]:
    from support.http_server import serving

    made = Registry()
    with serving(made.answer) as served:
        yield made, served.url


def value(i: int) -> bytes | None:
    if i % 8 in (2, 3):
        return b"bad %d" % i
    return None if i % 8 == 5 else b'{"id": %d, "note": "n%d"}' % (i, i)


@pytest.fixture
def topics(peer: Any, kafka: EmbeddedKafka, topic: str) -> None:
    for name in (topic, f"{topic}-copy", f"{topic}-plain", f"{topic}-letters"):
        peer.create(kafka, name, 2)
    records = [
        (i % 2, b"k%d" % i, value(i), 1_700_000_000_000 + i, [("h", b"%d" % i), STALE, ("n", None)])
        for i in range(RECORDS)
    ]
    peer.write(kafka.bootstrap_servers, topic, records)


Run = Callable[..., Any]


@pytest.fixture
def run(spark: Any, kafka: EmbeddedKafka, topic: str, registry: Any, tmp_path: Path) -> Run:
    """``run(sink="pykafka", **options)``: the query from the test's topic to its copy, up to the end."""
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    typed = {"value.format": "json", "value.schema": "id bigint, note string", "includeHeaders": "true"}
    write = {"value.format": "avro", "registry.url": registry[1], "value.schemaIdIn": "header"}
    write |= {"value.subject": "orders"}

    def run(sink: str = "pykafka", **options: str) -> Any:
        read = servers | typed | {"subscribe": topic, "startingOffsets": "earliest"}
        read |= {"mode": "dlq", "dlq.topic": f"{topic}-letters", "maxOffsetsPerTrigger": str(PER_BATCH)}
        frame = spark.readStream.format("pykafka").options(**read).load().select("key", "value", "headers")
        query = (
            frame.writeStream.format(sink)
            .options(**servers, **write, **{name.replace("__", "."): text for name, text in options.items()})
            .option("topic", f"{topic}-copy")
            .option("deliveryGuarantee", "exactly-once")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        return query

    def plain() -> None:
        """The same rows without a stream."""
        read = servers | typed | {"subscribe": topic, "mode": "dropmalformed"}
        frame = spark.read.format("pykafka").options(**read).load().select("key", "value", "headers")
        frame.write.format("pykafka").options(**servers, **write, topic=f"{topic}-plain").mode(
            "append"
        ).save()

    run.plain = plain  # type: ignore[attr-defined]
    return run


def records_of(kafka: EmbeddedKafka, topic: str) -> list[Any]:
    """Those that read_committed readers see."""
    how = {"isolation_level": "read_committed", "stop_at_end": True}
    with Consumer(kafka.bootstrap_servers, topic, **how) as consumer:
        return sorted((one.partition, one.key, one.value, one.headers) for one in consumer)


def letters_of(kafka: EmbeddedKafka, topic: str) -> list[bytes]:
    return sorted(one[2] for one in records_of(kafka, f"{topic}-letters"))


def await_committed(kafka: EmbeddedKafka, checkpoint: Path, wanted: list[int]) -> None:
    """The last micro-batches that the two tasks have committed, in ascending order, are those ``wanted``. A
    transaction that a task has left open is not waited for, but a coordinator writes the outcome of one after
    it has answered."""
    from support.waiting import eventually

    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    router = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))
    names = [f"pykafka-{query_id}-{task}" for task in range(2)]

    def found() -> list[int]:
        each = [all_committed_offsets(router, name, stable=False).values() for name in names]
        return sorted(max((one.offset for one in offsets), default=-1) for offsets in each)

    try:
        eventually(lambda: found() == wanted, "the commits")
    finally:
        router.close()


def bad(records: int) -> list[bytes]:
    return sorted(found for i in range(records) if (found := value(i)) and found.startswith(b"bad"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("writer", "committed"),
    [(CommittingWriter, [0, 1]), (WritingWriter, [0, 0])],
    ids=["committing", "writing"],
)
def test_a_batch_that_runs_again_has_its_bytes_headers_and_letters_once(
    spark: Any, kafka: EmbeddedKafka, topic: str, topics: None, run: Any, registry: Any, tmp_path: Path,
    writer: type[KafkaStreamWriter], committed: list[int],
) -> None:  # fmt: skip
    spark.dataSource.register(source_of(writer))
    with pytest.raises(Exception, match=r"(?s)crash|EOF|died|reset|exited"):
        run(f"dying-{writer.__name__}")
    await_committed(kafka, tmp_path / "checkpoint", committed)
    assert letters_of(kafka, topic) == bad(2 * PER_BATCH)  # before the rows of the batch
    run()
    run.plain()
    copied, plain = records_of(kafka, f"{topic}-copy"), records_of(kafka, f"{topic}-plain")
    assert copied == plain
    assert sorted(one[1] for one in copied) == sorted(
        b"k%d" % i for i in range(RECORDS) if not (value(i) or b"").startswith(b"bad")
    )
    mark = registry[0].header(1)
    for _, key, data, headers in copied:
        own = [("h", key[1:]), STALE, ("n", None)]
        assert list(headers) == (own if data is None else [own[0], own[2], mark])
    assert letters_of(kafka, topic) == bad(RECORDS)


@pytest.mark.timeout(900)
def test_a_new_version_of_the_schema_stops_a_batch_that_is_half_committed(
    spark: Any, kafka: EmbeddedKafka, topic: str, topics: None, run: Any, registry: Any, tmp_path: Path
) -> None:
    """The bytes of its values would be the same."""
    spark.dataSource.register(source_of(CommittingWriter))
    with pytest.raises(Exception, match=r"(?s)crash|EOF|died|reset|exited"):
        run("dying-CommittingWriter")
    await_committed(kafka, tmp_path / "checkpoint", [0, 1])
    registry[0].guids.append(uuid.uuid4())
    with pytest.raises(Exception, match=r"were committed before the restart.*value\.schemaVersion"):
        run()
    run(value__schemaVersion="1")
    copied = records_of(kafka, f"{topic}-copy")
    run.plain()
    assert [one[:3] for one in copied] == [one[:3] for one in records_of(kafka, f"{topic}-plain")]
    assert {one for *_, headers in copied for one in headers if one[0] == STALE[0]} == {
        STALE, registry[0].header(1)
    }  # fmt: skip
    assert letters_of(kafka, topic) == bad(RECORDS)
