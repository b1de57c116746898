"""Batch writes end to end: `pykafka`, Spark's own connector, and the two limits that no writer can beat.

    python benchmarks/write.py                # everything: some fifteen minutes
    python benchmarks/write.py --scale 0.1 --only 100B

Columns: `source` is the cached DataFrame that all of them read, into nothing; `raw` is one socket that
produces record batches which exist already (acks=all, five requests in flight); `ceiling` is Spark's Python
Data Source API with a writer that drops its Arrow batches; `limit` is 1 / (1/raw + 1/ceiling). Every
contender is a warm `local[2]` session in a process of its own, the broker is warm too, rounds are
interleaved, the best one counts, and the end offsets must add up after every run. All run on the JVM
connector's PySpark (--own-pyspark changes that).
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness import raw
from harness.arguments import parse_arguments
from harness.contender import UNIX_SOCKETS, Contender
from harness.jvm import JvmConnector
from harness.rounds import best_of_rounds
from harness.stage import open_stage
from harness.table import Target, print_rates, rate
from harness.topics import (
    TEMPLATE_BYTES,
    TopicSpec,
    build_batches,
    create_topic,
    delete_topic,
    end_offsets,
    warm_up_broker,
)

TOPICS = (
    TopicSpec(label="100B", topic="plain-100", values="incompressible", value_bytes=100, records=8_000_000),
    TopicSpec(label="1KiB", topic="plain-1024", values="incompressible", value_bytes=1024, records=1_000_000),
    TopicSpec(
        label="200B-lz4", topic="lz4-200", values="json", value_bytes=200, records=4_000_000, codec="lz4"
    ),
    TopicSpec(
        label="1KiB-zstd", topic="zstd-1024", values="json", value_bytes=1024, records=1_000_000, codec="zstd"
    ),
)
# vs combined limit, vs the better JVM setting
TARGETS = {"100B": (0.9, 1.15), "1KiB": (0.9, 2), "200B-lz4": (0.9, 1.5), "1KiB-zstd": (0.9, 1.5)}
JVM_TUNED = {"kafka.batch.size": "1000000", "kafka.linger.ms": "20"}
WARM_UP_JOBS = 10


@dataclass(slots=True, kw_only=True)
class Bench:
    """The broker, the contenders and how often they run."""

    bootstrap_servers: str
    jvm: Contender
    pykafka: Contender
    pykafka_unix: Contender
    rounds: int
    scale: float
    pykafka_options: dict[str, str]
    topics_made: int = field(default=0)

    def write(
        self, contender: Contender, spec: TopicSpec, options: dict[str, str], table: str = "source"
    ) -> float:
        """One job into a topic of its own, which is gone afterwards: the disk holds one run at a time."""
        self.topics_made += 1
        topic = f"{spec.topic}-{self.topics_made}"
        create_topic(self.bootstrap_servers, topic, spec.partitions)
        fixed = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "topic": topic,
            "kafka.compression.type": spec.codec,
        }
        name = "kafka" if contender is self.jvm else "pykafka"
        seconds = contender.run("write", format=name, options={**fixed, **options}, table=table)
        written = sum(end_offsets(self.bootstrap_servers, topic, spec.partitions).values())
        delete_topic(self.bootstrap_servers, topic)
        if table == "source" and written != spec.records:
            raise RuntimeError(f"{contender.name} wrote {written:,} records of {spec.records:,}")
        return seconds

    def produce_raw(self, spec: TopicSpec, batches: list[bytes]) -> float:
        """Seconds for at least ``spec.records`` records, scaled to exactly as many."""
        self.topics_made += 1
        topic = f"{spec.topic}-{self.topics_made}"
        create_topic(self.bootstrap_servers, topic, spec.partitions)
        connection = raw.connect(self.bootstrap_servers)
        started = time.perf_counter()
        sent = raw.produce_batches(connection, topic, spec.partitions, batches, spec.records)
        seconds = time.perf_counter() - started
        connection.close()
        delete_topic(self.bootstrap_servers, topic)
        return seconds * spec.records / sent


def build_contenders(python: Path, jvm: JvmConnector) -> dict[str, Contender]:
    jars = {"spark.jars": ",".join(map(str, jvm.jars))}
    both = ("ceiling", "pykafka")
    return {
        "jvm": Contender(name="JVM connector", python=jvm.python, conf=jars),
        "pykafka": Contender(name="pykafka", python=python, sources=both),
        "pykafka_unix": Contender(
            name="pykafka, unix sockets", python=python, sources=both, conf=UNIX_SOCKETS
        ),
    }


def prepare_sources(bench: Bench, spec: TopicSpec) -> None:
    source = {
        "values": spec.values,
        "value_bytes": spec.value_bytes,
        "rows": spec.records,
        "tasks": spec.partitions,
    }
    for contender in (bench.jvm, bench.pykafka, bench.pykafka_unix):
        print(f"\r  caching the source of {contender.name}".ljust(70), end="", file=sys.stderr, flush=True)
        contender.run("source", distinct_bytes=TEMPLATE_BYTES, **source)


def warm_up(bench: Bench, spec: TopicSpec, drop: dict[str, Any]) -> None:
    for contender in (bench.jvm, bench.pykafka, bench.pykafka_unix):
        print(f"\r  warming up {contender.name}".ljust(70), end="", file=sys.stderr, flush=True)
        for _ in range(WARM_UP_JOBS):
            contender.run("drop source", table="sample")
            bench.write(contender, spec, {} if contender is bench.jvm else bench.pykafka_options, "sample")
            if contender is not bench.jvm:
                contender.run("write", **{**drop, "table": "sample"})


def run_topic(bench: Bench, spec: TopicSpec) -> list[list[str]]:
    """Two rows of the table: default sockets, unix domain sockets."""
    drop = {"format": "ceiling", "table": "source"}
    prepare_sources(bench, spec)
    warm_up(bench, spec, drop)
    batches = build_batches(bench.bootstrap_servers, spec)
    best = best_of_rounds(
        {
            "source": partial(bench.pykafka.run, "drop source", table="source"),
            "raw": partial(bench.produce_raw, spec, batches),
            "ceiling": partial(bench.pykafka.run, "write", **drop),
            "ceiling_unix": partial(bench.pykafka_unix.run, "write", **drop),
            "jvm": partial(bench.write, bench.jvm, spec, {}),
            "tuned": partial(bench.write, bench.jvm, spec, JVM_TUNED),
            "pykafka": partial(bench.write, bench.pykafka, spec, bench.pykafka_options),
            "pykafka_unix": partial(bench.write, bench.pykafka_unix, spec, bench.pykafka_options),
        },
        bench.rounds,
    )
    return [
        build_row(spec, spec.label, best, "ceiling", "pykafka"),
        build_row(spec, f"{spec.label}, unix sockets", best, "ceiling_unix", "pykafka_unix"),
    ]


def build_row(spec: TopicSpec, label: str, best: dict[str, float], ceiling: str, pykafka: str) -> list[str]:
    limit, ours = best["raw"] + best[ceiling], best[pykafka]
    wanted = TARGETS[spec.label]
    targets = (
        Target(ratio=limit / ours, wanted=wanted[0]),
        Target(ratio=best["jvm"] / ours),
        Target(ratio=min(best["jvm"], best["tuned"]) / ours, wanted=wanted[1]),
    )
    seconds = (best["source"], best["raw"], best[ceiling], limit, best["jvm"], best["tuned"], ours)
    return [label, *(rate(spec.records, taken) for taken in seconds), *map(str, targets)]


def main() -> None:
    arguments = parse_arguments(__doc__, list(TARGETS), scale="share of the records")
    with open_stage(arguments, build_contenders) as (bootstrap_servers, contenders):
        bench = Bench(
            bootstrap_servers=bootstrap_servers,
            rounds=arguments.rounds,
            scale=arguments.scale,
            pykafka_options=arguments.options,
            **contenders,
        )
        warm_up_broker(bootstrap_servers)
        rows: list[list[str]] = []
        for spec in TOPICS:
            if spec.label in arguments.only:
                sized = spec.of(max(20_000, int(spec.records * bench.scale)))
                rows += run_topic(bench, sized)
        title = f"writing key and value to 4 partitions, acks=all, best of {bench.rounds}"
        print_rates(title, ["source", "raw", "ceiling", "limit", "JVM", "JVM tuned", "pykafka"], rows)


if __name__ == "__main__":
    main()
