"""Avro as typed columns: beside fastavro, and `value.format=avro` against Spark's connector with `from_avro`.

    python benchmarks/formats_avro.py                 # some ten minutes
    python benchmarks/formats_avro.py --only decode   # in this process, without Spark

Events of 150 bytes with nine fields, lz4, 4 partitions; all nine fields are read, or two of them. Sessions
and rounds are those of `formats.py`.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import formats
import pyarrow as pa
from harness.arguments import parse_arguments
from harness.contender import REPOSITORY, UNIX_SOCKETS, Contender
from harness.jvm import JvmConnector, resolve_jars
from harness.rounds import best_of_rounds
from harness.stage import open_stage
from harness.table import Target, print_table, rate
from harness.topics import TopicSpec, delete_topic, load_topic
from harness.values import AVRO_EVENT, avro_events

from spark_kafka_native.formats.avro.decoder import AvroDecoder
from spark_kafka_native.formats.avro.encoder import AvroEncoder
from spark_kafka_native.formats.avro.schema import parse_schema
from spark_kafka_native.formats.avro.types import arrow_type

SECTIONS = ("decode", "read")
SCHEMA = json.dumps(AVRO_EVENT)
TOPIC = TopicSpec(
    label="Avro", topic="avro-150", values="avro", value_bytes=150, records=3_000_000, codec="lz4"
)
SPARK_AVRO = ("org.apache.spark", "spark-avro_2.13", "4.1.1")
"""The newest that Ivy resolves; there is none of PySpark 4.2. It has the expression `from_avro` alone: the
code that reads Avro is in PySpark's own jar."""
WANTED = {"decode": 5.0, "all nine fields": 3.0, "two of nine": 3.0}


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run_decode(scale: float, rounds: int) -> None:
    payloads = list(avro_events(max(5_000, int(200_000 * scale)), TOPIC.value_bytes))
    array = pa.array(payloads, pa.binary())
    schema, avro = fastavro.parse_schema(AVRO_EVENT), parse_schema(SCHEMA)
    kind = arrow_type(avro)
    decoder, encoder = AvroDecoder(avro, avro, kind), AvroEncoder(avro, kind)
    two = AvroDecoder(avro, avro, pa.struct([kind.field(name) for name in formats.TWO]))
    rows, events = decoder.decode(array).array, [read_one(schema, one) for one in payloads]
    best = best_of_rounds(
        {
            "fastavro": partial(seconds, lambda: [read_one(schema, one) for one in payloads]),
            "decode": partial(seconds, lambda: decoder.decode(array)),
            "two": partial(seconds, lambda: two.decode(array)),
            "fastavro encode": partial(seconds, lambda: [write_one(schema, event) for event in events]),
            "encode": partial(seconds, lambda: encoder.encode(rows)),
        },
        rounds,
        warm_up=1,
    )
    lines = [
        [
            label,
            rate(len(payloads), best[one]),
            rate(len(payloads), best[other]),
            str(target(best, one, other)),
        ]
        for label, one, other in (
            ("decode", "decode", "fastavro"),
            ("decode two of nine", "two", "fastavro"),
            ("encode", "encode", "fastavro encode"),
        )
    ]
    print_table(f"{len(payloads):,} events of 150 bytes in one process", HEADER, lines)


HEADER = ("rows/s", "here", "fastavro", "against it")


def target(best: dict[str, float], one: str, other: str) -> Target:
    return Target(ratio=best[other] / best[one], wanted=WANTED["decode"])


def read_one(schema: Any, payload: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(payload), schema, None)


def write_one(schema: Any, event: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, event)
    return out.getvalue()


def build_contenders(python: Path, jvm: JvmConnector) -> dict[str, Contender]:
    folder = REPOSITORY / ".venv-jvm" / "-".join(SPARK_AVRO[1:])
    if not list(folder.glob("*.jar")):
        resolve_jars(folder, [SPARK_AVRO])
    jars = {"spark.jars": ",".join(map(str, (*jvm.jars, *folder.glob("*.jar"))))}
    return {
        "jvm": Contender(name="JVM connector", python=jvm.python, conf=jars),
        "pykafka": Contender(name="pykafka", python=python, sources=("pykafka",)),
        "pykafka_unix": Contender(
            name="pykafka, unix sockets", python=python, sources=("pykafka",), conf=UNIX_SOCKETS
        ),
    }


def jvm_read(servers: str, topic: str, fields: tuple[str, ...], **options: str) -> dict[str, Any]:
    return {
        "format": "kafka",
        "options": {"kafka.bootstrap.servers": servers, "subscribe": topic, **options},
        "expressions": [f"from_avro(value, '{SCHEMA}', map()) as decoded"],
        "select": [f"decoded.{name}" for name in fields],
    }


def pykafka_read(servers: str, topic: str, fields: tuple[str, ...]) -> dict[str, Any]:
    return {
        "format": "pykafka",
        "options": {
            "kafka.bootstrap.servers": servers,
            "subscribe": topic,
            "value.format": "avro",
            "value.schema": SCHEMA,
        },
        "schema": f"value struct<{formats.ddl_of(fields)}>",
        "select": [f"value.{name}" for name in fields],
    }


def run_reads(servers: str, contenders: dict[str, Contender], scale: float, rounds: int) -> None:
    topic = load_topic(servers, TOPIC.of(max(20_000, int(TOPIC.records * scale))))
    name, lines = topic.spec.topic, []
    for label, fields in (("all nine fields", tuple(formats.FIELDS)), ("two of nine", formats.TWO)):
        tuned = jvm_read(servers, name, fields, **formats.JVM_TUNED)
        ours = pykafka_read(servers, name, fields)
        best = best_of_rounds(
            {
                "jvm": partial(contenders["jvm"].run, "read", **jvm_read(servers, name, fields)),
                "tuned": partial(contenders["jvm"].run, "read", **tuned),
                "pykafka": partial(contenders["pykafka"].run, "read", **ours),
                "pykafka_unix": partial(contenders["pykafka_unix"].run, "read", **ours),
            },
            rounds,
            warm_up=3,
        )
        lines.append(formats.build_row(label, topic.records, best, WANTED[label]))
    delete_topic(servers, name)
    print_table(f"reading {topic.records:,} Avro records of 150 bytes", formats.HEADER, lines)


def main() -> None:
    arguments = parse_arguments(__doc__, SECTIONS, scale="share of the records")
    if "decode" in arguments.only:
        run_decode(arguments.scale, arguments.rounds)
    if "read" in arguments.only:
        with open_stage(arguments, build_contenders) as (servers, contenders):
            run_reads(servers, contenders, arguments.scale, arguments.rounds)


if __name__ == "__main__":
    main()
