"""Chaos on Spark: a batch read, a batch write or a stream from topic to topic, while brokers are killed and
paused, leaders elected, partitions added, records deleted, a topic recreated, Python workers killed, and the
process that commits a micro-batch. Another client checks the records.

A seed is a round: a job with two or three faults, all of which fall while it runs. CHAOS_SECONDS is for all
kinds of jobs together, each of which has a round at least; CHAOS_REPORT names a file for the figures.

Executors that are lost and speculation are in test_two_workers.py, drivers that are killed in
test_stream_crashes.py and test_stream_exactly_once_soak.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from support.brokers.in_sync import await_in_sync, await_partitions
from support.chaos.spark_jobs import COMMIT_POINTS, Job
from support.exactly_once.nemesis import SETTINGS, process
from support.exactly_once.read_committed import await_committed, read_messages
from support.hooks.fresh_seeds import try_seeds
from support.waiting import eventually

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.errors import BrokerError, DeadlineExceededError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.testing import EmbeddedKafka

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="finds Python workers in /proc"),
]

KINDS = ("read", "write", "write once", "copy", "copy once")
ON_WRITES = ("kill", "pause", "elect", "grow", "worker")
ON_READS = (*ON_WRITES, "kill", "pause", "elect", "retention", "recreate")
"""Some twice, to be more likely. A stream may have the committer in place of the last two: exactly-once
refuses a micro-batch that is half committed and has lost records since."""
NEED_ALL_BROKERS = ("kill", "pause", "elect", "grow", "recreate")
PARTITIONS, RECORDS, MORE = 2, 4_000, 200
PATIENCE_S = 300.0
SECONDS, SOAK_SECONDS = (float(os.environ.get("CHAOS_SECONDS", default)) for default in (40, 3600))


class Spark:
    """The process of `spark_jobs`. It starts with the first job, and with the one after a failure."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._output = folder, folder / "spark-output"
        self._stack, self._process = contextlib.ExitStack(), None

    def start(self, job: Job) -> None:
        if self._process is None:
            output = self._stack.enter_context(self._output.open("wb"))
            how = {"stdin": subprocess.PIPE, "stdout": output, "stderr": output}
            self._process = self._stack.enter_context(process("-m", "support.chaos.spark_jobs", **how))
            self._stack.enter_context(self._process.stdin)
        Path(job.folder, "result.json").unlink(missing_ok=True)
        self._process.stdin.write(f"{job.save()}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process = None
        self._stack.close()

    def check_alive(self) -> None:
        assert self._process.poll() is None, self._output.read_text(errors="replace")[-4000:]


class Round:
    """A job with its topics, and all that happens to it."""

    def __init__(self, kind: str, seed: int, kafka: EmbeddedKafka, spark: Spark) -> None:
        self.kafka, self.spark, self.rng = kafka, spark, random.Random(seed)
        self.folder = spark.folder / f"{kind.replace(' ', '-')}-{seed}-{time.monotonic_ns()}"
        self.folder.mkdir()
        what = kind.partition(" ")[0]
        faults = self.rng.sample(ON_WRITES if what == "write" else ON_READS, self.rng.randint(2, 3))
        if what == "copy" and self.rng.random() < 0.5:
            faults = ["committer", *self.rng.sample(ON_WRITES, self.rng.randint(1, 2))]
            self.rng.shuffle(faults)
        self.faults = sorted(faults, key="recreate".__eq__)  # nothing comes after it
        self.job = Job(
            kind=what,
            folder=str(self.folder),
            bootstrap_servers=kafka.bootstrap_servers,
            source=f"{self.folder.name}-source",
            sink=f"{self.folder.name}-sink",
            records=RECORDS,
            gates=2 * len(self.faults) + 3,
            partitions=PARTITIONS,
            once=kind.endswith("once"),
            strict="retention" not in self.faults,
            packed=self.rng.random() < 0.5,
        )
        source, sink = self.job.source, self.job.sink
        self.topics = {"read": [source], "write": [sink], "copy": [source, sink]}[what]
        self.places = {n: [(0, number) for number in range(RECORDS)] for n in range(PARTITIONS)}
        """Generation and number of each record of a partition of the source, or of a task of a write."""
        self.deleted = Counter[int]()
        self.records, self.lost = 0, False
        self.gate = -1
        self.down: list[Any] = []
        """What brings back a broker that a fault has taken away."""

    # The job and its gates.

    def result(self) -> Any:
        path = self.folder / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    def finish(self) -> dict[str, Any]:
        """Open all gates that are left; the result."""
        while self.gate < self.job.gates:
            self.open()
        eventually(lambda: self.spark.check_alive() or self.result(), "the job", PATIENCE_S)
        return dict(self.result())

    def open(self) -> None:
        self.gate += 1
        Path(self.folder, f"gate-{self.gate}").touch()

    def held(self) -> list[Path]:
        """Of each Python worker that waits at the next gate, in the middle of a task."""
        marks = self.folder.glob(f"waiting-{self.gate + 1}-*")
        return sorted(mark for mark in marks if Path("/proc", mark.name.rpartition("-")[2]).exists())

    def reach(self) -> None:
        """Wait until a task is at the next gate."""
        eventually(lambda: self.held() or self.check_running(), "a gate", PATIENCE_S)

    def check_running(self) -> None:
        self.spark.check_alive()
        assert self.result() is None, (self.faults, self.result())

    @contextlib.contextmanager
    def flow(self) -> Iterator[None]:
        """Meanwhile the next gate opens: the block takes place among the records behind it."""
        opening = threading.Timer(self.rng.uniform(0, 0.4), self.open)
        opening.start()
        try:
            yield
        finally:
            opening.join()

    # Faults.

    def leaders(self, topic: str) -> list[int]:
        found = list[int]()

        def all_known() -> bool:
            partitions = admin.describe_topics([topic])[topic].partitions
            found[:] = [int(partitions[index].leader) for index in range(PARTITIONS)]
            return min(found) > 0

        with Admin(self.kafka.bootstrap_servers) as admin:
            eventually(all_known, "a leader for each partition", PATIENCE_S)
        return found

    def kill(self) -> None:
        node_id = self.rng.choice(self.leaders(self.rng.choice(self.topics)))
        self.kafka.kill(node_id)
        self.down.append(lambda: self.kafka.restart(node_id))
        self.linger()

    def pause(self) -> None:
        node_id = self.rng.choice(self.leaders(self.rng.choice(self.topics)))
        self.kafka.pause(node_id)
        self.down.append(lambda: self.kafka.resume(node_id))
        self.linger()

    def linger(self) -> None:
        """A fault takes a while: a silent broker is taken for dead after one and a half seconds."""
        threading.Event().wait(self.rng.uniform(0, 4))

    def elect(self) -> None:
        topic = self.rng.choice(self.topics)
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        with Admin(self.kafka.bootstrap_servers) as admin:
            for _ in range(self.rng.randint(1, 4)):
                leaders = [leader % 3 + 1 for leader in self.leaders(topic)]
                orders = [[(leader + n) % 3 + 1 for n in (-1, 0, 1)] for leader in leaders]
                admin.reassign(dict(zip(places, orders, strict=True)))

                def elected(wanted: list[int]) -> bool:
                    with contextlib.suppress(BrokerError):  # a broker that is slow may not be in sync
                        admin.elect_leaders(places)
                    return self.leaders(topic) == wanted

                eventually(partial(elected, leaders), "the election", PATIENCE_S)

    def grow(self) -> None:
        """Add a partition, and records in it where it is one of the source."""
        topic = self.rng.choice(self.topics)
        with Admin(self.kafka.bootstrap_servers) as admin:
            admin.create_partitions({topic: PARTITIONS + 1})
        # Or the last question of a stream may go to a broker that was paused before it knew.
        await_partitions(self.kafka, topic, PARTITIONS + 1)
        if topic == self.job.source:
            write_source(self.job, 0, [PARTITIONS], MORE)
            if self.job.kind == "copy":
                self.places[PARTITIONS] = [(0, number) for number in range(MORE)]

    def retention(self) -> None:
        index, before = self.rng.randrange(PARTITIONS), self.rng.randrange(RECORDS)
        # The leader deletes at once, and answers when each living replica has followed, which may be late.
        with Admin(self.kafka.bootstrap_servers) as admin, contextlib.suppress(DeadlineExceededError):
            admin.delete_records({TopicPartition(self.job.source, index): before}, timeout=20)
        self.deleted[index] = before

    def recreate(self) -> None:
        with Admin(self.kafka.bootstrap_servers) as admin:
            admin.delete_topics([self.job.source])
        self.kafka.create_topic(self.job.source, PARTITIONS)
        count = self.rng.choice((MORE, RECORDS))  # as long as the former topic: only the id differs
        write_source(self.job, 1, range(PARTITIONS), count)
        if self.job.kind == "copy":
            for index in range(PARTITIONS):
                self.places[index] += [(1, number) for number in range(count)]

    def worker(self) -> None:
        """Kill one that waits in the middle of a task, or all."""
        mark, before = self.rng.choice(self.held()), len(self.attempts())
        daemon, pid = mark.name.split("-")[2:]
        everyone = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
        for victim in everyone if self.rng.random() < 0.5 else [pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(victim), signal.SIGKILL)
        eventually(
            lambda: len(self.attempts()) > before or self.check_running(), "another attempt", PATIENCE_S
        )

    def attempts(self) -> list[Path]:
        """Those of tasks that were not the first ones."""
        return list(self.folder.glob("again-*"))

    def committer(self) -> None:
        (self.folder / "die").write_text(self.rng.choices(COMMIT_POINTS, (1, 2, 2))[0])

    # A round.

    def recover(self) -> None:
        """Have all brokers run, and all replicas in sync."""
        if self.down:
            with self.flow():
                self.bring_back()
        await_in_sync(self.kafka)

    def bring_back(self) -> None:
        while self.down:
            self.down.pop()()

    def strike(self, name: str) -> None:
        self.reach()
        if name in NEED_ALL_BROKERS:
            self.recover()
            self.reach()
        with contextlib.nullcontext() if name == "worker" else self.flow():
            getattr(self, name)()
        if name != "recreate":  # after which it may have ended with an error
            self.check_running()
        if name == "worker":
            self.open()

    def run(self) -> dict[str, Any]:
        """The result of the job, on which all faults fell."""
        self.spark.start(self.job)
        self.open()
        try:
            for name in self.faults:
                self.strike(name)
            if self.down:
                self.reach()
                self.recover()
            told = self.finish()
            if self.job.kind == "write" and self.job.once and "error" not in told:
                self.spark.start(self.job)  # by its name it is complete: nothing is written twice
                told = self.finish()
            if "recreate" in self.faults:
                told = self.after_recreation(told)
        except BaseException:
            self.spark.close()
            raise
        finally:
            self.bring_back()
        assert "error" not in told, (self.faults, told)
        assert "committer" not in self.faults or (self.folder / "died").exists()
        return told

    def after_recreation(self, told: dict[str, Any]) -> dict[str, Any]:
        """A stream reports the loss and goes on when it may; a read may have fetched all before."""
        if "error" not in told:
            assert self.job.kind == "read" or not self.job.strict
            if self.job.kind == "read":
                return told
            self.spark.start(self.job)  # it may have ended while the new topic was empty
            return self.finish()
        self.lost = True
        assert "KAFKA_DATA_LOSS" in told["error"] or "does not exist" in told["error"], told
        if self.job.kind == "read":
            return {"rows": []}
        self.job = replace(self.job, strict=False)
        self.spark.start(self.job)
        return self.finish()

    def planned(self) -> str:
        """Where the last micro-batch of a stream ends: records that are missing before that were lost."""
        batches = (self.folder / "checkpoint" / "offsets").glob("[0-9]*")
        last = max(batches, key=lambda path: int(path.name), default=None)
        return "" if last is None else last.read_text()

    def wrong(self, rows: list[tuple[int, int, str]] | None) -> list[str]:
        """The defects of the written records, or of ``rows``, as another client sees the topic."""
        topic = self.topics[-1]
        if self.job.once:
            await_committed(self.job.bootstrap_servers, topic, PARTITIONS, timeout_s=PATIENCE_S)
        log = read_messages(self.job.bootstrap_servers, topic, PARTITIONS, timeout_s=PATIENCE_S)
        there = [
            (one.partition(), one.offset(), one.key(), one.value()) for some in log.values() for one in some
        ]
        wrong = list[str]()
        if rows is not None:
            known = set(there)
            there = [(index, offset, None, value.encode()) for index, offset, value in rows]
            if "recreate" not in self.faults:
                left = [row for row in there if row[1] >= self.deleted[row[0]]]
                wrong += [f"the log has no {row!r:.50}" for row in left if row not in known]
        found = defaultdict[tuple[int, int], list[tuple[int, int]]](list)
        attempts = defaultdict[tuple[int, int, bytes | None], list[tuple[int, int]]](list)
        for index, _, key, value in there:
            generation, source, number = map(int, value.split(b" ")[:3])
            found[source, index].append((generation, number))
            attempts[source, index, key].append((generation, number))
        self.records = len(there)
        # Without exactly-once the key is the attempt of a task, and each attempt writes in order.
        wrong += [
            f"doubled or reordered: {name}" for name, one in attempts.items() if one != sorted(set(one))
        ]
        may_repeat = self.attempts() or {"committer", "recreate"} & set(self.faults)
        if self.job.once or not may_repeat:
            wrong += [f"doubled in {name}" for name, one in found.items() if len(one) > len(set(one))]
        return wrong + (self.compare(found) if not self.lost or rows is None else [])

    def compare(self, found: dict[tuple[int, int], list[tuple[int, int]]]) -> list[str]:
        """Compare with the source: each record is there, and those that are first are in order."""
        wanted = defaultdict[tuple[int, int], set[tuple[int, int]]](set)
        for source, places in self.places.items():
            for place in places:
                wanted[source, (place[1] if self.job.kind == "write" else source) % PARTITIONS].add(place)
        wrong = [f"strange: {name}" for name in found.keys() - wanted.keys()]
        for name, places in wanted.items():
            first = list(dict.fromkeys(found[name]))
            missing, strange = places - set(first), set(first) - places
            # A reader loses what lies between its position and the first record that is left, nothing before.
            until = self.deleted[name[0]]
            below = sorted(place for place in missing if place < (0, until))
            if below == [(0, number) for number in range(until - len(below), until)]:
                missing -= set(below)
            # The end of the former topic, but a strict read fails, or has all of it.
            if "recreate" in self.faults and not (self.job.kind == "read" and self.job.strict):
                last = max((number for generation, number in first if generation == 0), default=-1)
                missing = {place for place in missing if place[0] == 1 or place[1] < last}
            if missing or strange:
                wrong.append(f"{name} lacks {sorted(missing)[:5]} and has {sorted(strange)[:5]}")
            if first != sorted(first):
                wrong.append(f"reordered in {name}")
        return wrong


def write_source(job: Job, generation: int, partitions: Iterable[int], count: int) -> None:
    """By another client: record ``n`` of each partition."""
    settings = {"enable.idempotence": True, "log_level": 0, "linger.ms": 20}
    producer = confluent_kafka.Producer({"bootstrap.servers": job.bootstrap_servers} | settings)
    for number in range(count):
        for index in partitions:
            value = b"%d %d %d %s" % (generation, index, number, b"x" * 1000)
            producer.produce(job.source, value, partition=index)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def kafka_cluster() -> Iterator[EmbeddedKafka]:
    """As the package's, but a dead broker is soon missed."""
    with EmbeddedKafka(3, properties=SETTINGS, startup_timeout_s=240) as running:
        yield running


@pytest.fixture(scope="module")
def spark_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    spark = Spark(tmp_path_factory.mktemp("chaos"))
    yield spark
    spark.close()


@pytest.fixture(scope="module")
def figures() -> Iterator[Counter[str]]:
    counts = Counter[str]()
    yield counts
    if where := os.environ.get("CHAOS_REPORT"):
        Path(where).write_text(json.dumps(dict(sorted(counts.items())), indent=1))


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(SECONDS, id="a minute"),
        pytest.param(SOAK_SECONDS, id="an hour", marks=[pytest.mark.soak, pytest.mark.timeout(24 * 3600)]),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_in_chaos(
    kind: str, seconds: float, kafka_cluster: EmbeddedKafka, spark_process: Spark, figures: Counter[str]
) -> None:
    def check(seed: int) -> None:
        began = time.monotonic()
        one = Round(kind, seed, kafka_cluster, spark_process)
        for name in one.topics:
            kafka_cluster.create_topic(name, PARTITIONS)
        if one.job.source in one.topics:
            write_source(one.job, 0, range(PARTITIONS), RECORDS)
        wrong = one.wrong(one.run()["rows"])
        took = time.monotonic() - began
        print(f"{kind}, seed {seed}: {one.faults}, {one.records} records, lost: {one.lost}, {took:.1f} s")
        figures.update([f"jobs: {kind}", *(f"faults: {name}" for name in one.faults)])
        figures.update({"records": one.records, "wrong": len(wrong), "data loss errors": one.lost})
        assert not wrong, (one.faults, wrong, one.planned())
        with Admin(kafka_cluster.bootstrap_servers) as admin:
            admin.delete_topics(one.topics)
        shutil.rmtree(one.folder)

    began = time.monotonic()
    try_seeds(check, f"chaos: {kind}", seconds=seconds / len(KINDS))
    figures["seconds"] += round(time.monotonic() - began)
