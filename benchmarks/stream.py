"""Streams end to end: `pykafka`, Spark's own connector, and a Python source that does nothing.

    python benchmarks/stream.py                     # everything: an hour with --rounds 1
    python benchmarks/stream.py --quick             # does it run at all? figures mean nothing
    python benchmarks/stream.py --only catch-up --rounds 3

catch-up  Trigger.AvailableNow over 8 M records of 100 B in batches of 500,000, to nowhere; next to a Python
          source that has its rows ready
copy      the same with a filter and a projection, into another topic
steady    1,000 records/s spread over 4 and over 64 partitions, one micro-batch after the other: milliseconds
          of triggerExecution, next to the floor: a Python source that does nothing, with as many tasks
many      a stream of 1,000 partitions: milliseconds of planning
memory    2,000 micro-batches: resident megabytes of the query's process and of the workers
once      (--only exactly-once) deliveryGuarantee=exactly-once next to at-least-once, in a session
          of its own: time for micro-batches of 500,000 records, milliseconds added to small ones, a batch
          write, and what the broker's requests take

Every contender is a warm `local[2]` session in a process of its own; rounds are interleaved, the best one
counts (of steady: the one with the best median).
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from harness.arguments import parse_arguments
from harness.contender import UNIX_SOCKETS, Contender
from harness.exactly_once import run_exactly_once
from harness.jvm import JvmConnector
from harness.rounds import best_of_rounds
from harness.stage import open_stage
from harness.table import Target, print_table, rate
from harness.topics import TopicSpec, create_topic, delete_topic, load_small_topic, load_topic, unique

SECTIONS = ("catch-up", "copy", "steady", "many", "memory", "exactly-once")
SPEC = TopicSpec(label="100B", topic="stream", values="incompressible", value_bytes=100, records=8_000_000)
BATCH_OFFSETS = 500_000
JVM_TUNED = {
    "kafka.max.poll.records": "100000",
    "kafka.max.partition.fetch.bytes": "8388608",
    "kafka.receive.buffer.bytes": "4194304",
}
JVM_QUICK = {"kafka.fetch.max.wait.ms": "5", **JVM_TUNED}
PROGRESS = {"spark.sql.streaming.numRecentProgressUpdates": "100000"}
USED_COLUMNS = "key binary, value binary, offset long"
RECORDS_PER_S = 1_000
WARM_UPS = 3
"""Of the runs that read everything. The JVM's compiler needs them: the first takes three times as long as the
fourth, of every contender."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """The broker, the contenders and how often they run."""

    bootstrap_servers: str
    jvm: Contender
    floor: Contender
    floor_unix: Contender
    pykafka: Contender
    pykafka_unix: Contender
    rounds: int
    scale: float
    pykafka_options: dict[str, str]

    def source(self, contender: Contender, topic: str, **options: str) -> dict[str, Any]:
        """A job's source: the topic from its beginning."""
        own = {} if contender is self.jvm else self.pykafka_options
        fixed = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }
        name = "kafka" if contender is self.jvm else "pykafka"
        return {"format": name, "options": {**fixed, **own, **options}}


def build_contenders(python: Path, jvm: JvmConnector) -> dict[str, Contender]:
    jars = {"spark.jars": ",".join(map(str, jvm.jars))}
    unix = {**PROGRESS, **UNIX_SOCKETS}
    return {
        "jvm": Contender(name="JVM connector", python=jvm.python, conf=PROGRESS | jars),
        "floor": Contender(name="floor", python=python, sources=("stream_floor",), conf=PROGRESS),
        "floor_unix": Contender(name="floor, unix", python=python, sources=("stream_floor",), conf=unix),
        "pykafka": Contender(name="pykafka", python=python, sources=("pykafka",), conf=PROGRESS),
        "pykafka_unix": Contender(name="pykafka, unix", python=python, sources=("pykafka",), conf=unix),
    }


def run_catch_up(bench: Bench, topic: str, records: int, *, copy: bool) -> None:
    offsets = max(4, int(BATCH_OFFSETS * min(1.0, bench.scale * 4)))
    limit = {"maxOffsetsPerTrigger": str(offsets)}
    variants: dict[str, tuple[Contender, dict[str, str], str]] = {
        "JVM, defaults": (bench.jvm, limit, ""),
        "JVM, tuned": (bench.jvm, limit | JVM_TUNED, ""),
        "pykafka": (bench.pykafka, limit, ""),
        "pykafka, unix sockets": (bench.pykafka_unix, limit, ""),
        f"pykafka, unix sockets, .schema({USED_COLUMNS!r})": (bench.pykafka_unix, limit, USED_COLUMNS),
    }
    target = unique("copy")
    if copy:
        create_topic(bench.bootstrap_servers, target, 4)
    runs = {}
    for name, (contender, options, schema) in variants.items():
        job = bench.source(contender, topic, **options) | {"schema": schema}
        if copy:
            sink = {"kafka.bootstrap.servers": bench.bootstrap_servers, "topic": target}
            job |= {
                "select": ["key", "substring(value, 1, 50) AS value", "offset"],
                "where": "offset % 2 = 0",
                "sink": {"format": job["format"], "options": sink},
            }
        runs[name] = partial(contender.run, "catch up", **job)
    if not copy:
        ready = {"tasks": "4", "rows": str(offsets // 4), "batches": str(records // offsets)}
        for name, contender in (("ceiling", bench.floor), ("ceiling, unix sockets", bench.floor_unix)):
            runs[name] = partial(contender.run, "catch up", format="stream_floor", options=ready)
    best = best_of_rounds(runs, bench.rounds, warm_up=WARM_UPS)
    wanted = 1.5 if copy else 2
    jvm = min(best["JVM, defaults"], best["JVM, tuned"])
    rows = [
        [
            name,
            rate(records, taken),
            str(Target(ratio=jvm / taken, wanted=wanted)) if "pykafka" in name else "",
        ]
        for name, taken in best.items()
    ]
    title = "topic to topic, filter and projection" if copy else "catching up, noop sink"
    print_table(f"{title}, {records:,} records of 100 B", ["AvailableNow", "records/s", "vs best JVM"], rows)
    if copy:
        delete_topic(bench.bootstrap_servers, target)


@contextmanager
def feeding(bootstrap_servers: str, topic: str, partitions: int) -> Iterator[None]:
    """1,000 records/s, spread evenly, as long as the block runs."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 1, "log_level": 0})
    done = threading.Event()

    def feed() -> None:
        began, sent = time.monotonic(), 0
        while not done.wait(0.005):
            while sent < (time.monotonic() - began) * RECORDS_PER_S:
                producer.produce(topic, b"v" * 100, partition=sent % partitions)
                sent += 1
            producer.poll(0)
        producer.flush()

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def run_steady(bench: Bench, partitions: int) -> None:
    topic = unique(f"steady-{partitions}")
    create_topic(bench.bootstrap_servers, topic, partitions)
    packed = {"maxPartitions": "1"}
    floor: dict[str, Any] = {"format": "stream_floor"}
    jobs: dict[str, tuple[Contender, dict[str, Any]]] = {
        "JVM, defaults": (bench.jvm, bench.source(bench.jvm, topic)),
        "JVM, tuned": (bench.jvm, bench.source(bench.jvm, topic, **JVM_QUICK)),
    }
    for suffix, empty, ours in (
        ("", bench.floor, bench.pykafka),
        (", unix sockets", bench.floor_unix, bench.pykafka_unix),
    ):
        jobs |= {
            f"floor{suffix}": (empty, floor | {"options": {"tasks": str(partitions)}}),
            f"floor, 1 task{suffix}": (empty, floor | {"options": {"tasks": "1"}}),
            f"pykafka{suffix}": (ours, bench.source(ours, topic)),
            f"pykafka, maxPartitions=1{suffix}": (ours, bench.source(ours, topic, **packed)),
        }
    shorter = min(1, bench.scale * 10)
    best: dict[str, list[int]] = {}
    with feeding(bench.bootstrap_servers, topic, partitions):
        # The first round warms up all of them, and does not count.
        for number in range(1 + bench.rounds):
            times = {"warm_up": 10 * shorter, "seconds": (30 if number else 20) * shorter}
            for name, (contender, job) in jobs.items():
                # Not from the records that were written while others ran: from the topic's end.
                options = job["options"] | ({} if "floor" in name else {"startingOffsets": "latest"})
                found = contender.ask("steady", **(job | {"options": options}), **times)["result"]
                if number and found:
                    best[name] = min(best.get(name, found), found, key=statistics.median)
    print_steady(partitions, best)
    delete_topic(bench.bootstrap_servers, topic)


def print_steady(partitions: int, best: dict[str, list[int]]) -> None:
    medians = {name: statistics.median(found) for name, found in best.items()}
    rows = []
    for name, found in best.items():
        p99 = sorted(found)[max(0, len(found) * 99 // 100 - 1)]
        targets = ["", ""]
        if name.startswith("pykafka"):
            over = (
                medians[name] / medians[name.replace("pykafka", "floor").replace("maxPartitions=1", "1 task")]
            )
            targets[0] = f"{over:.2f}x (<= 1.15: {'met' if over <= 1.15 else 'MISSED'})"
            wanted = (4 if "maxPartitions" in name else 1) if partitions > 4 else 1
            is_asked = "unix" in name and (partitions > 4 or "maxPartitions" in name)
            target = Target(ratio=medians["JVM, tuned"] / medians[name], wanted=wanted if is_asked else None)
            targets[1] = str(target)
        rows.append([name, f"{len(found)}", f"{medians[name]:,.0f} ms", f"{p99:,} ms", *targets])
    header = ["triggerExecution", "batches", "median", "p99", "vs floor", "vs JVM tuned"]
    print_table(f"{RECORDS_PER_S:,} records/s over {partitions} partitions", header, rows)


def run_many(bench: Bench, partitions: int) -> None:
    rows = []
    for size in (max(1, partitions // 10), partitions // 2, partitions):
        topic = unique(f"many-{size}")
        load_small_topic(bench.bootstrap_servers, topic, size, dict.fromkeys(range(size), 30))
        for title, options in (("plain", {}), ("packed", {"maxPartitions": "2"})):
            job = bench.source(bench.pykafka_unix, topic, maxOffsetsPerTrigger=str(10 * size), **options)
            found = [bench.pykafka_unix.ask("plan stream", **job)["result"] for _ in range(bench.rounds)]
            best = [min(column) for column in zip(*found, strict=True)]
            rows.append([f"{size:,}, {title}", *(f"{taken:,.0f} ms" for taken in best)])
        delete_topic(bench.bootstrap_servers, topic)
    print_table("partitions", ["", "latestOffset", "queryPlanning", "triggerExecution"], rows)


def run_memory(bench: Bench, batches: int) -> None:
    topic = unique("memory")
    load_small_topic(bench.bootstrap_servers, topic, 1, {0: batches + 50})
    job = bench.source(bench.pykafka_unix, topic, maxOffsetsPerTrigger="1")
    seen = bench.pykafka_unix.ask("memory", batches=batches, **job)["result"]
    rows = []
    for kind in ("driver", "worker"):
        sizes = [one[kind] for one in seen]
        per_batch = (sizes[-1] - sizes[2]) / (batches * 0.7)  # the first third warms up
        verdict = f"{per_batch:,.0f} B a batch (< 1,000: {'met' if per_batch < 1_000 else 'MISSED'})"
        rows.append([kind, *(f"{size / 1e6:,.0f}" for size in sizes), verdict])
    header = ["resident MB", *(f"{tenth * 10} %" for tenth in range(1, 11)), "growth"]
    print_table(f"{batches:,} micro-batches", header, rows)
    delete_topic(bench.bootstrap_servers, topic)


def run_sections(bench: Bench, sections: Sequence[str]) -> None:
    if "catch-up" in sections or "copy" in sections:
        topic = load_topic(bench.bootstrap_servers, SPEC.of(max(20_000, int(SPEC.records * bench.scale))))
        for section in ("catch-up", "copy"):
            if section in sections:
                run_catch_up(bench, topic.spec.topic, topic.records, copy=section == "copy")
        delete_topic(bench.bootstrap_servers, topic.spec.topic)
    if "steady" in sections:
        for partitions in (4, 64):
            run_steady(bench, partitions)
    if "many" in sections:
        run_many(bench, max(20, int(1_000 * bench.scale)))
    if "memory" in sections:
        run_memory(bench, max(50, int(2_000 * bench.scale)))


def main() -> None:
    arguments = parse_arguments(__doc__, SECTIONS, scale="share of the records, partitions and batches")
    if "exactly-once" in arguments.only:
        run_exactly_once(arguments)
    if set(arguments.only) == {"exactly-once"}:
        return
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
