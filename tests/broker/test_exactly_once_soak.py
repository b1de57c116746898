"""The exactly-once sink on three brokers that are killed and paused, through a proxy that loses and delays
replies, while its tasks, commits and drivers are killed. Another client, in a process of its own, checks.

The long one runs in `make soak` only. Its size: EXACTLY_ONCE_RECORDS, EXACTLY_ONCE_BROKER_KILLS and
EXACTLY_ONCE_DRIVER_KILLS; EXACTLY_ONCE_MARKERS=topic keeps the markers in a topic, EXACTLY_ONCE_SEED is for
another order of things, EXACTLY_ONCE_REPORT for a file with the figures.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.exactly_once.nemesis import SETTINGS, Nemesis, disturb, process
from support.exactly_once.sink_processes import POINTS, Events, Plan, batches_done, rows

from spark_kafka_native.kafka import Consumer, Producer, TransactionalProducer, TransactionConfig
from spark_kafka_native.kafka.errors import KafkaError
from spark_kafka_native.kafka.producer.sending.transaction_requests import TransactionSession
from spark_kafka_native.testing import EmbeddedKafka, FaultProxy, FaultRule, ProxiedRequest, faults

pytestmark = pytest.mark.broker
PROGRAMS = Path(__file__).parents[1] / "support/exactly_once"
TASKS = 4


def run(plan: Plan, checked_at: str, timeout_s: float, then: Callable[[], None]) -> dict[str, Any]:
    """Run the sink's processes and the checker beside them, ``then`` when all is written; what the checker
    says."""
    path = plan.save()
    with process(PROGRAMS / "record_checker.py", path, checked_at, stdout=subprocess.PIPE) as checker:
        with process(PROGRAMS / "sink_processes.py", path) as sink:
            sink.wait(timeout_s)
        then()
        assert "settled" in Events(plan.folder).read()
        Path(plan.folder, "done").touch()
        said, _ = checker.communicate(timeout=300)
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    return told


def summary(plan: Plan) -> Counter[str]:
    """The events, without their details."""
    return Counter(line.partition(": ")[0] for line in Events(plan.folder).read())


def create_marker_topic(kafka: EmbeddedKafka, topic: str) -> str:
    return kafka.create_topic(f"{topic}-markers", config={"cleanup.policy": "compact"})


def soak(
    tmp_path: Path,
    topic: str,
    *,
    records: int,
    rows: int,
    kills: int,
    driver_kills: int,
    seed: int,
    timeout_s: float,
    markers: str = "groups",
) -> None:
    with (
        EmbeddedKafka(3, properties=SETTINGS, startup_timeout_s=240) as kafka,
        FaultProxy(kafka.bootstrap_servers, seed=seed) as proxy,
    ):
        kafka.create_topic(topic, 3)
        plan = Plan(
            bootstrap_servers=proxy.bootstrap_servers,
            topic=topic,
            folder=str(tmp_path),
            seed=seed,
            batches=math.ceil(records / (TASKS * rows)),
            tasks=TASKS,
            rows=rows,
            min_kills=kills,
            min_driver_kills=driver_kills,
            marker_topic=create_marker_topic(kafka, topic) if markers == "topic" else None,
        )
        disturb(proxy)
        # One more when the batches before its share are done, while those of its share run.
        nemesis = Nemesis(
            kafka, tmp_path, seed, lambda n: n < kills and batches_done(plan) * kills >= n * plan.batches
        )
        began = time.monotonic()
        nemesis.start()
        try:
            told = run(plan, kafka.bootstrap_servers, timeout_s, nemesis.stop)
        finally:
            nemesis.stop()
    events = summary(plan)
    fell = Counter(f"{one.api} {one.side} {type(one.fault).__name__}" for one in proxy.trace)
    report = {
        "seconds": round(time.monotonic() - began),
        "records": told["records"],
        "wrong": told["wrong"],
        "broker kills": nemesis.kills,
        "broker pauses": nemesis.pauses,
        "driver kills": sum(n for what, n in events.items() if what.startswith("driver dies")),
        "events": dict(sorted(events.items())),
        "faults": dict(sorted(fell.items())),
        "markers": markers,
        "seed": seed,
    }
    if where := os.environ.get("EXACTLY_ONCE_REPORT"):
        Path(where).write_text(json.dumps(report, indent=1))
    assert told == {"records": batches_done(plan) * TASKS * rows, "wrong": {}}, report
    assert told["records"] >= records, report
    assert nemesis.kills >= kills, report
    assert nemesis.pauses, report
    assert report["driver kills"] >= driver_kills, report  # type: ignore[operator]
    assert all(events[f"killed at {point}"] for point in POINTS), report
    for one in ("reply Reset", "reply Delay", "request Delay"):
        assert fell[f"EndTxn {one}"], report
    strange = [one for one in Events(plan.folder).read() if "ReplayError" in one or "driver raised" in one]
    assert not strange


@pytest.mark.timeout(900)
def test_each_row_once_whoever_dies(tmp_path: Path, topic: str) -> None:
    soak(tmp_path, topic, records=10_000, rows=320, kills=8, driver_kills=3, seed=1, timeout_s=700)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_each_row_once_for_hours(tmp_path: Path, topic: str) -> None:
    asked = {
        name: int(os.environ.get(f"EXACTLY_ONCE_{name.upper()}", default))
        for name, default in (
            ("records", 1_000_000),
            ("broker_kills", 300),
            ("driver_kills", 200),
            ("seed", int(time.time())),
        )
    }
    soak(
        tmp_path,
        topic,
        records=asked["records"],
        rows=400,  # two batches for each broker that is killed
        kills=asked["broker_kills"],
        driver_kills=asked["driver_kills"],
        seed=asked["seed"],
        timeout_s=4 * 3600 - 300,
        markers=os.environ.get("EXACTLY_ONCE_MARKERS", "groups"),
    )


def calm(kafka: Any, tmp_path: Path, topic: str, **changed: Any) -> dict[str, Any]:
    """Each crash point in turn, one broker, and no other fault."""
    kafka.create_topic(topic, 3)
    plan = Plan(
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic,
        folder=str(tmp_path),
        seed=1,
        batches=len(POINTS) + 2,
        rows=20,
        calm=True,
        **changed,
    )
    told = run(plan, kafka.bootstrap_servers, 200, lambda: None)
    assert all(summary(plan)[f"killed at {point}"] for point in POINTS)
    assert told["records"] >= batches_done(plan) * plan.tasks * plan.rows
    return told


def test_each_row_once_with_a_marker_topic(kafka: Any, tmp_path: Path, topic: str) -> None:
    told = calm(kafka, tmp_path, topic, marker_topic=create_marker_topic(kafka, topic))
    assert told["wrong"] == {}


@pytest.mark.soak
@pytest.mark.parametrize("markers", ["groups", "topic"])
def test_the_checker_sees_what_happens_without_markers(
    kafka: Any, tmp_path: Path, topic: str, markers: str
) -> None:
    marker_topic = create_marker_topic(kafka, topic) if markers == "topic" else None
    told = calm(kafka, tmp_path, topic, bug="no-marker", marker_topic=marker_topic)
    assert told["wrong"]["duplicate"]["count"] >= 20


def check(kafka: Any, plan: Plan) -> dict[str, Any]:
    """What the checker says of the records."""
    path = plan.save()
    Path(plan.folder, "done").touch()
    with process(
        PROGRAMS / "record_checker.py", path, kafka.bootstrap_servers, stdout=subprocess.PIPE
    ) as checker:
        said, _ = checker.communicate(timeout=300)
    wrong: dict[str, Any] = json.loads(said.splitlines()[-1])["wrong"]
    return wrong


def small(kafka: Any, tmp_path: Path, topic: str) -> Plan:
    return Plan(
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic,
        folder=str(tmp_path),
        seed=0,
        batches=3,
        tasks=1,
        rows=20,
        partitions=1,
    )


@pytest.mark.parametrize("bug", [False, True])
def test_a_ghost_of_an_old_commit_ends_a_transaction_whose_epoch_is_not_fresh(
    kafka: Any, tmp_path: Path, topic: str, bug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old protocol: the commit of batch 0 arrives a second time, in the middle of batch 1."""
    kafka.create_topic(topic, 1)
    plan = small(kafka, tmp_path, topic)
    if bug:
        whole = TransactionSession.end

        def end(self: Any, **how: Any) -> None:
            whole(self, **how)
            self._transaction.epoch_used = False

        monkeypatch.setattr(TransactionSession, "end", end)
    old = TransactionConfig(transactional_id=topic, transaction_version=1)
    given = [list(rows(plan, batch_id, 0)) for batch_id in range(plan.batches)]
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        hold, held = faults.Hold(), []

        def note(one: ProxiedRequest) -> bool:
            held.append((one.connection, one.ordinal))
            return True

        proxy.add(FaultRule(api="EndTxn", side="request", fault=hold, when=note, times=1))
        # Traced, and nothing more: that the broker has answered the ghost.
        answered = faults.Delay(0)
        proxy.add(
            FaultRule(api="EndTxn", fault=answered, when=lambda one: [(one.connection, one.ordinal)] == held)
        )
        settings = {"request.timeout.ms": 1_000, "retry.backoff.ms": 20, "linger.ms": 0}
        with TransactionalProducer(
            {"bootstrap.servers": proxy.bootstrap_servers} | settings, old
        ) as producer:
            producer.begin()
            for part in given[0]:
                producer.send_columns(part, topic)
            producer.commit()
            hold.wait()
            producer.begin()
            producer.send_columns(given[1][0], topic)
            producer.flush()
            hold.release()
            assert answered in [one.fault for one in proxy.wait_for_faults(2)]
            with contextlib.suppress(KafkaError):
                producer.abort()
    with TransactionalProducer(kafka.bootstrap_servers, old) as producer:
        for batch in given[1:]:
            with producer.transaction():
                for part in batch:
                    producer.send_columns(part, topic)
    wrong = check(kafka, plan)
    assert (wrong.keys() >= {"torn", "duplicate"}) if bug else not wrong


@pytest.mark.parametrize("bug", [False, True])
def test_the_checker_sees_what_happens_without_checksums(
    kafka: Any, tmp_path: Path, topic: str, bug: bool
) -> None:
    """A record that is falsified on its way to a reader that writes it on."""
    source, plan = f"{topic}-source", small(kafka, tmp_path, topic)
    for name in (source, topic):
        kafka.create_topic(name, 1)
    with Producer(kafka.bootstrap_servers) as producer:
        for batch_id in range(plan.batches):
            for part in rows(plan, batch_id, 0):
                producer.send_columns(part, source)
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        # In the value of the last record: after it come the count of its headers and three empty sections.
        proxy.add(FaultRule(api="Fetch", fault=faults.Flip(-12), times=1))
        settings = {"bootstrap.servers": proxy.bootstrap_servers, "check.crcs": not bug}
        with (
            Consumer(settings, source, start="earliest") as consumer,
            Producer(kafka.bootstrap_servers) as producer,
        ):
            copied = 0
            while copied < plan.records:
                fetched = consumer.read_columns(timeout=60)
                assert fetched is not None
                copied += len(fetched.columns)
                producer.send_columns(fetched.columns, topic)
        assert proxy.trace
    wrong = check(kafka, plan)
    assert (wrong.keys() >= {"corrupt", "lost"}) if bug else not wrong
