"""JSON as typed columns, end to end: `value.format=json` against Spark's connector with `from_json`.

    python benchmarks/formats.py             # some ten minutes
    python benchmarks/formats.py --scale 0.1 --only read

Records of 300 bytes with nine fields, lz4, 4 partitions; all nine fields are read, or two of them. Every
contender is a warm `local[2]` session in a process of its own, rounds are interleaved, the best one counts,
the sink of a read is `noop`. All run on the JVM connector's PySpark (--own-pyspark changes that).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from harness.arguments import parse_arguments
from harness.contender import UNIX_SOCKETS, Contender
from harness.jvm import JvmConnector
from harness.rounds import best_of_rounds
from harness.stage import open_stage
from harness.table import Target, print_table, rate
from harness.topics import TopicSpec, create_topic, delete_topic, load_topic, unique

SECTIONS = ("read", "write")
TOPIC = TopicSpec(
    label="JSON", topic="json-300", values="json", value_bytes=300, records=3_000_000, codec="lz4"
)
FIELDS = {
    "event_id": "string",
    "ts": "bigint",
    "type": "string",
    "user_id": "bigint",
    "country": "string",
    "amount": "double",
    "currency": "string",
    "channel": "string",
    "trace": "string",
}
TWO = ("user_id", "amount")
JVM_TUNED = {"kafka.max.poll.records": "100000", "kafka.max.partition.fetch.bytes": "8388608"}
WANTED = {"all nine fields": 3.5, "two of nine": 5.5, "write": 2.0}
WRITTEN_ROWS = 1_000_000


def build_contenders(python: Path, jvm: JvmConnector) -> dict[str, Contender]:
    jars = {"spark.jars": ",".join(map(str, jvm.jars))}
    return {
        "jvm": Contender(name="JVM connector", python=jvm.python, conf=jars),
        "pykafka": Contender(name="pykafka", python=python, sources=("pykafka",)),
        "pykafka_unix": Contender(
            name="pykafka, unix sockets", python=python, sources=("pykafka",), conf=UNIX_SOCKETS
        ),
    }


def ddl_of(fields: tuple[str, ...]) -> str:
    return ", ".join(f"{name}: {FIELDS[name]}" for name in fields)


def jvm_read(servers: str, topic: str, fields: tuple[str, ...], **options: str) -> dict[str, Any]:
    whole = f"from_json(cast(value as string), 'struct<{ddl_of(tuple(FIELDS))}>') as decoded"
    return {
        "format": "kafka",
        "options": {"kafka.bootstrap.servers": servers, "subscribe": topic, **options},
        "expressions": [whole],
        "select": [f"decoded.{name}" for name in fields],
    }


def pykafka_read(servers: str, topic: str, fields: tuple[str, ...]) -> dict[str, Any]:
    return {
        "format": "pykafka",
        "options": {"kafka.bootstrap.servers": servers, "subscribe": topic, "value.format": "json"},
        "schema": f"value struct<{ddl_of(fields)}>",
        "select": [f"value.{name}" for name in fields],
    }


def run_reads(servers: str, contenders: dict[str, Contender], scale: float, rounds: int) -> None:
    topic = load_topic(servers, TOPIC.of(max(20_000, int(TOPIC.records * scale))))
    name = topic.spec.topic
    rows = []
    for label, fields in (("all nine fields", tuple(FIELDS)), ("two of nine", TWO)):
        best = best_of_rounds(
            {
                "jvm": partial(contenders["jvm"].run, "read", **jvm_read(servers, name, fields)),
                "tuned": partial(
                    contenders["jvm"].run, "read", **jvm_read(servers, name, fields, **JVM_TUNED)
                ),
                "pykafka": partial(contenders["pykafka"].run, "read", **pykafka_read(servers, name, fields)),
                "pykafka_unix": partial(
                    contenders["pykafka_unix"].run, "read", **pykafka_read(servers, name, fields)
                ),
            },
            rounds,
            warm_up=3,
        )
        rows.append(build_row(label, topic.records, best, WANTED[label]))
    delete_topic(servers, name)
    print_table(f"reading {topic.records:,} JSON records of 300 bytes", HEADER, rows)


HEADER = ("rows/s", "JVM", "JVM tuned", "pykafka", "unix sockets", "against the better JVM", "unix sockets")


def build_row(label: str, records: int, best: dict[str, float], wanted: float) -> list[str]:
    jvm = min(best["jvm"], best["tuned"])
    ratios = (Target(ratio=jvm / best[one], wanted=wanted) for one in ("pykafka", "pykafka_unix"))
    return [
        label,
        *(rate(records, best[one]) for one in ("jvm", "tuned", "pykafka", "pykafka_unix")),
        *map(str, ratios),
    ]


def run_writes(servers: str, contenders: dict[str, Contender], scale: float, rounds: int) -> None:
    rows = max(20_000, int(WRITTEN_ROWS * scale))
    source = {"rows": rows, "value_bytes": 300, "struct": f"struct<{ddl_of(tuple(FIELDS))}>"}
    for contender in contenders.values():
        contender.run("typed source", **source)
    topic = unique("json-written")
    create_topic(servers, topic, 4)
    options = {"kafka.bootstrap.servers": servers, "topic": topic}
    tuned = {"kafka.batch.size": "1000000", "kafka.linger.ms": "100"}
    job: dict[str, Any] = {"table": "typed"}
    jvm = {**job, "format": "kafka", "expressions": ["to_json(value) as value"]}
    ours = {**job, "format": "pykafka", "options": {**options, "value.format": "json"}}
    best = best_of_rounds(
        {
            "jvm": partial(contenders["jvm"].run, "write", **jvm, options=options),
            "tuned": partial(contenders["jvm"].run, "write", **jvm, options={**options, **tuned}),
            "pykafka": partial(contenders["pykafka"].run, "write", **ours),
            "pykafka_unix": partial(contenders["pykafka_unix"].run, "write", **ours),
        },
        rounds,
        warm_up=3,
    )
    delete_topic(servers, topic)
    print_table(
        f"writing {rows:,} structs of nine fields as JSON",
        HEADER,
        [build_row("write", rows, best, WANTED["write"])],
    )


def main() -> None:
    arguments = parse_arguments(__doc__, SECTIONS, scale="share of the records")
    with open_stage(arguments, build_contenders) as (servers, contenders):
        if "read" in arguments.only:
            run_reads(servers, contenders, arguments.scale, arguments.rounds)
        if "write" in arguments.only:
            run_writes(servers, contenders, arguments.scale, arguments.rounds)


if __name__ == "__main__":
    main()
