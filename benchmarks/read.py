"""Batch reads end to end: `pykafka`, Spark's own connector, and the two limits that no reader can beat.

    python benchmarks/read.py                # everything: some fifteen minutes
    python benchmarks/read.py --scale 0.1 --only 100B small

Columns: `raw` is one socket with bytes that are dropped; `ceiling` is Spark's Python Data Source API fed with
Arrow batches that exist already; `limit` is 1 / (1/raw + 1/ceiling), the rate when both have to happen.
Every contender is a warm `local[2]` session in a process of its own, rounds are interleaved, the best one
counts, the sink is `noop`. All run on the JVM connector's PySpark, so that only the connector differs
(--own-pyspark changes that).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
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
from harness.table import Target, print_rates, print_table, rate
from harness.topics import LoadedTopic, TopicSpec, delete_topic, load_small_topic, load_topic, unique

TOPICS = (
    TopicSpec(label="100B", topic="plain-100", values="incompressible", value_bytes=100, records=7_000_000),
    TopicSpec(label="1KiB", topic="plain-1024", values="incompressible", value_bytes=1024, records=700_000),
    TopicSpec(
        label="200B-lz4", topic="lz4-200", values="json", value_bytes=200, records=2_500_000, codec="lz4"
    ),
    TopicSpec(
        label="1KiB-zstd", topic="zstd-1024", values="json", value_bytes=1024, records=500_000, codec="zstd"
    ),
)
# vs combined limit, vs the JVM's defaults, vs the better JVM setting
TARGETS = {
    "100B": (0.95, 2.7, 1.75),
    "1KiB": (0.9, 2.2, 1.7),
    "200B-lz4": (0.75, 2, 2),
    "1KiB-zstd": (0.75, 2, 2),
}
SECTIONS = (*TARGETS, "offset", "small", "many", "plan")
JVM_TUNED = {
    "kafka.max.poll.records": "100000",
    "kafka.max.partition.fetch.bytes": "8388608",
    "kafka.receive.buffer.bytes": "4194304",
}
JVM_NO_WAIT = {"kafka.fetch.max.wait.ms": "10"}
RAW_SETTINGS = ((4 << 20, 1), (4 << 20, 2), (8 << 20, 1), (8 << 20, 2))
CEILING_BATCH_BYTES = 4 << 20
ROW_OVERHEAD_BYTES = 60
WORKER_LIMIT_BYTES = 300_000_000


@dataclass(slots=True, kw_only=True)
class Bench:
    """The broker, the contenders and how often they run."""

    bootstrap_servers: str
    jvm: Contender
    ceiling: Contender
    ceiling_unix: Contender
    pykafka: Contender
    pykafka_unix: Contender
    rounds: int
    scale: float
    pykafka_options: dict[str, str]
    worker_bytes: dict[str, int] = field(default_factory=dict)

    def kafka(
        self, contender: Contender, topic: str, options: dict[str, str] | None = None, **job: Any
    ) -> dict[str, Any]:
        """A job that reads the topic with the contender's connector."""
        own = {} if contender is self.jvm else self.pykafka_options
        fixed = {"kafka.bootstrap.servers": self.bootstrap_servers, "subscribe": topic}
        name = "kafka" if contender is self.jvm else "pykafka"
        return {"format": name, "options": {**fixed, **own, **(options or {})}, **job}

    def warm_up(self, contender: Contender, job: dict[str, Any], jobs: int = 10) -> None:
        print(f"\r  warming up {contender.name}".ljust(70), end="", file=sys.stderr, flush=True)
        for _ in range(jobs):
            contender.run("read", **job)

    def note_memory(self, label: str) -> None:
        peak = max(self.pykafka.peak_worker_bytes(), self.pykafka_unix.peak_worker_bytes())
        self.worker_bytes[label] = max(peak, self.worker_bytes.get(label, 0))


def build_contenders(python: Path, jvm: JvmConnector) -> dict[str, Contender]:
    jars = {"spark.jars": ",".join(map(str, jvm.jars))}
    return {
        "jvm": Contender(name="JVM connector", python=jvm.python, conf=jars),
        "ceiling": Contender(name="ceiling", python=python, sources=("ceiling",)),
        "ceiling_unix": Contender(
            name="ceiling, unix sockets", python=python, sources=("ceiling",), conf=UNIX_SOCKETS
        ),
        "pykafka": Contender(name="pykafka", python=python, sources=("pykafka",)),
        "pykafka_unix": Contender(
            name="pykafka, unix sockets", python=python, sources=("pykafka",), conf=UNIX_SOCKETS
        ),
    }


def measure_raw(bootstrap_servers: str, topic: LoadedTopic) -> float:
    """The best seconds over a few fetch sizes and pipeline depths."""
    best = float("inf")
    for fetch_bytes, in_flight in RAW_SETTINGS * 2:
        connection = raw.connect(bootstrap_servers)
        started = time.perf_counter()
        for _ in raw.fetch_record_sets(connection, topic.spec.topic, topic.ends, fetch_bytes, in_flight):
            pass
        best = min(best, time.perf_counter() - started)
        connection.close()
    return best


def build_ceiling_job(topic: LoadedTopic, share: float = 1.0) -> dict[str, Any]:
    spec = topic.spec
    options = {
        "rows": int(topic.records * share),
        "tasks": spec.partitions,
        "batchRows": CEILING_BATCH_BYTES // (spec.value_bytes + ROW_OVERHEAD_BYTES),
        "valueBytes": spec.value_bytes,
    }
    return {"format": "ceiling", "options": {name: str(value) for name, value in options.items()}}


def tenth_of(topic: LoadedTopic) -> dict[str, str]:
    """Options that read a tenth of the topic: enough to warm a JIT up."""
    ends = {str(partition): end // 10 for partition, end in topic.ends.items()}
    return {"endingOffsets": json.dumps({topic.spec.topic: ends})}


def run_topic(bench: Bench, topic: LoadedTopic) -> list[list[str]]:
    """Two rows of the main table: default sockets, unix domain sockets."""
    name, records = topic.spec.topic, topic.records
    for contender in (bench.jvm, bench.pykafka, bench.pykafka_unix):
        bench.warm_up(contender, bench.kafka(contender, name, tenth_of(topic)))
    for contender in (bench.ceiling, bench.ceiling_unix):
        bench.warm_up(contender, build_ceiling_job(topic, 0.1))
    ceiling_job = build_ceiling_job(topic)
    best = best_of_rounds(
        {
            "raw": partial(measure_raw, bench.bootstrap_servers, topic),
            "ceiling": partial(bench.ceiling.run, "read", **ceiling_job),
            "ceiling_unix": partial(bench.ceiling_unix.run, "read", **ceiling_job),
            "jvm": partial(bench.jvm.run, "read", **bench.kafka(bench.jvm, name)),
            "tuned": partial(bench.jvm.run, "read", **bench.kafka(bench.jvm, name, JVM_TUNED)),
            "pykafka": partial(bench.pykafka.run, "read", **bench.kafka(bench.pykafka, name)),
            "pykafka_unix": partial(bench.pykafka_unix.run, "read", **bench.kafka(bench.pykafka_unix, name)),
        },
        bench.rounds,
    )
    bench.note_memory(topic.spec.label)
    return [
        build_row(topic.spec.label, records, best, "ceiling", "pykafka"),
        build_row(f"{topic.spec.label}, unix sockets", records, best, "ceiling_unix", "pykafka_unix"),
    ]


def build_row(label: str, records: int, best: dict[str, float], ceiling: str, pykafka: str) -> list[str]:
    limit, ours = best["raw"] + best[ceiling], best[pykafka]
    wanted = TARGETS[label.split(",")[0]]
    targets = (
        Target(ratio=limit / ours, wanted=wanted[0]),
        Target(ratio=best["jvm"] / ours, wanted=wanted[1]),
        Target(ratio=min(best["jvm"], best["tuned"]) / ours, wanted=wanted[2]),
    )
    seconds = (best["raw"], best[ceiling], limit, best["jvm"], best["tuned"], ours)
    return [label, *(rate(records, taken) for taken in seconds), *map(str, targets)]


def run_offset_only(bench: Bench, topic: LoadedTopic) -> list[list[str]]:
    """One column: `pykafka` by schema; the JVM connector reads all and selects it."""
    name, records = topic.spec.topic, topic.records
    only = {"schema": "offset long"}
    for contender in (bench.pykafka, bench.pykafka_unix):
        bench.warm_up(contender, bench.kafka(contender, name, tenth_of(topic), **only))
    bench.warm_up(bench.jvm, bench.kafka(bench.jvm, name, tenth_of(topic), select=["offset"]))
    best = best_of_rounds(
        {
            "jvm": partial(bench.jvm.run, "read", **bench.kafka(bench.jvm, name, select=["offset"])),
            "tuned": partial(
                bench.jvm.run, "read", **bench.kafka(bench.jvm, name, JVM_TUNED, select=["offset"])
            ),
            "pykafka": partial(bench.pykafka.run, "read", **bench.kafka(bench.pykafka, name, **only)),
            "pykafka_unix": partial(
                bench.pykafka_unix.run, "read", **bench.kafka(bench.pykafka_unix, name, **only)
            ),
        },
        bench.rounds,
    )
    rows = []
    for label, ours in (("offset only", "pykafka"), ("offset only, unix sockets", "pykafka_unix")):
        targets = (
            Target(ratio=best["jvm"] / best[ours], wanted=6),
            Target(ratio=min(best["jvm"], best["tuned"]) / best[ours], wanted=4),
        )
        taken = (rate(records, best[which]) for which in ("jvm", "tuned", ours))
        rows.append([label, "-", "-", "-", *taken, "-", *map(str, targets)])
    return rows


def run_small(bench: Bench, topic: str, tasks: int, title: str, *, packed: bool) -> None:
    """Too few records to matter: the time is the price of a job and of its tasks."""
    variants: dict[str, tuple[Contender, dict[str, str]]] = {
        "JVM, defaults": (bench.jvm, {}),
        "JVM, fetch.max.wait.ms=10": (bench.jvm, JVM_NO_WAIT),
        "pykafka": (bench.pykafka, {}),
        "pykafka, unix sockets": (bench.pykafka_unix, {}),
    }
    if packed:
        variants["pykafka, maxPartitions=2"] = (bench.pykafka, {"maxPartitions": "2"})
        variants["pykafka, maxPartitions=2, unix sockets"] = (bench.pykafka_unix, {"maxPartitions": "2"})
    floor = {
        "format": "ceiling",
        "options": {"rows": "10", "tasks": str(tasks), "batchRows": "10", "valueBytes": "100"},
    }
    runs: dict[str, Callable[[], float]] = {
        "API floor": partial(bench.ceiling.run, "collect", **floor),
        "API floor, unix sockets": partial(bench.ceiling_unix.run, "collect", **floor),
    }
    for name, (contender, options) in variants.items():
        runs[name] = partial(contender.run, "collect", **bench.kafka(contender, topic, options))
    # A run of minutes, with many tasks, warms itself up.
    slow = {name: run for name, run in runs.items() if packed and "maxPartitions" not in name}
    best = best_of_rounds(slow, 1)
    quick = {name: run for name, run in runs.items() if name not in slow}
    best |= best_of_rounds(quick, bench.rounds, warm_up=5)
    bench.note_memory(title)
    print_small(title, best, packed=packed)


def print_small(title: str, best: dict[str, float], *, packed: bool) -> None:
    rows = []
    for name, seconds in best.items():
        targets: list[str] = []
        if name.startswith("pykafka"):
            floor = best["API floor, unix sockets" if "unix" in name else "API floor"]
            is_packed = "maxPartitions" in name
            factor = 10 if is_packed else 2 if not packed else None
            over = seconds / floor
            mark = "met" if over <= 1.2 else "MISSED"
            targets = ["-" if is_packed else f"{over:.2f}x floor (<= 1.2: {mark})"]
            targets.append(str(Target(ratio=best["JVM, defaults"] / seconds, wanted=factor)))
        rows.append([name, f"{seconds * 1000:,.0f} ms", *targets, *[""] * (2 - len(targets))])
    print_table(title, ["load() to collect(), warm", "best", "vs floor", "vs JVM defaults"], rows)


def run_plan(bench: Bench, topic: str, partitions: int) -> None:
    """Planning alone, for a part of the partitions and for all: a line, if all is well."""
    sizes = [max(1, partitions // 10), partitions // 2, partitions]
    rows = []
    for contender in (bench.jvm, bench.pykafka):
        job = bench.kafka(contender, topic)
        del job["options"]["subscribe"]
        seconds = []
        for size in sizes:
            job["options"]["assign"] = json.dumps({topic: list(range(size))})
            seconds.append(min(contender.run("plan", **job) for _ in range(bench.rounds)))
        slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
        rows.append(
            [contender.name, *(f"{taken * 1000:,.0f} ms" for taken in seconds), f"{slope * 1e6:,.0f} us"]
        )
    print_table("planning only", ["partitions", *map(str, sizes), "each further one"], rows)


def run_topics(bench: Bench, sections: Sequence[str]) -> None:
    rows: list[list[str]] = []
    total = 0
    for spec in TOPICS:
        offset_too = "offset" in sections and spec.label == "100B"
        if spec.label not in sections and not offset_too:
            continue
        records = max(20_000, int(spec.records * bench.scale))
        topic = load_topic(bench.bootstrap_servers, spec.of(records))
        total += topic.spec.record_bytes
        print(
            f"{spec.label}: {topic.records:,} records, {topic.spec.record_bytes / 1e6:,.0f} MB of keys and "
            f"values, {topic.log_bytes / 1e6:,.0f} MB on the broker",
            flush=True,
        )
        if spec.label in sections:
            rows += run_topic(bench, topic)
        if offset_too:
            rows += run_offset_only(bench, topic)
        delete_topic(bench.bootstrap_servers, topic.spec.topic)
    if rows:
        title = f"reading {total / 1e9:.1f} GB of records, 4 partitions, best of {bench.rounds}"
        print_rates(title, ["raw", "ceiling", "limit", "JVM", "JVM tuned", "pykafka"], rows)


def run_many(bench: Bench, sections: Sequence[str], partitions: int) -> None:
    topic = unique("many")
    load_small_topic(bench.bootstrap_servers, topic, partitions, dict.fromkeys(range(partitions), 10))
    if "many" in sections:
        title = f"10 records in each of {partitions:,} partitions (one run each, packed: best)"
        run_small(bench, topic, partitions, title, packed=True)
    if "plan" in sections:
        run_plan(bench, topic, partitions)
    delete_topic(bench.bootstrap_servers, topic)


def run_sections(bench: Bench, sections: Sequence[str]) -> None:
    run_topics(bench, sections)
    if "small" in sections:
        small = unique("small")
        load_small_topic(bench.bootstrap_servers, small, 4, {0: 3, 1: 3, 2: 2, 3: 2})
        run_small(bench, small, 4, "10 records in 4 partitions", packed=False)
        delete_topic(bench.bootstrap_servers, small)
    if "many" in sections or "plan" in sections:
        run_many(bench, sections, max(20, int(1000 * bench.scale)))
    if bench.worker_bytes:
        rows = [
            [label, f"{peak / 1e6:,.0f} MB", "met" if peak < WORKER_LIMIT_BYTES else "MISSED"]
            for label, peak in bench.worker_bytes.items()
        ]
        print_table(
            "largest resident size of a pykafka Python worker so far", ["after", "peak", "< 300 MB"], rows
        )


def main() -> None:
    arguments = parse_arguments(__doc__, SECTIONS, scale="share of the records (and of the 1,000 partitions)")
    with open_stage(arguments, build_contenders) as (bootstrap_servers, contenders):
        bench = Bench(
            bootstrap_servers=bootstrap_servers,
            rounds=arguments.rounds,
            scale=arguments.scale,
            pykafka_options=arguments.options,
            **contenders,
        )
        run_sections(bench, arguments.only)


if __name__ == "__main__":
    main()
