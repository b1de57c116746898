"""What exactly-once costs: large micro-batches, small ones, a batch write, and the broker's part of it."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from spark_kafka_native.kafka import ProducerConfig, TopicPartition, TransactionalProducer, TransactionConfig
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.producer.sending.transaction_requests import end_transaction
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.spark.write.commit_markers import CommitMarker
from spark_kafka_native.spark.write.marker_store import GroupMarkers

from .cluster import open_broker
from .contender import UNIX_SOCKETS, Contender
from .rounds import best_of_rounds
from .table import print_table, rate
from .topics import TopicSpec, create_topic, delete_topic, load_small_topic, load_topic, unique

SPEC = TopicSpec(label="100B", topic="once", values="incompressible", value_bytes=100, records=2_000_000)
BATCH_OFFSETS = 500_000
SMALL_BATCHES = 30
MOST = 1.15
"""Times the time of at-least-once."""
CONF = {"spark.sql.streaming.numRecentProgressUpdates": "100000", **UNIX_SOCKETS}


def run_exactly_once(arguments: argparse.Namespace) -> None:
    with open_broker(arguments.bootstrap_servers) as bootstrap_servers:
        session = Contender(name="pykafka", python=Path(sys.executable), sources=("pykafka",), conf=CONF)
        try:
            session.start()
            print(f"PySpark {session.version}", flush=True)
            run_large(session, bootstrap_servers, arguments)
            run_small(session, bootstrap_servers, arguments)
            run_batch_write(session, bootstrap_servers, arguments)
        finally:
            session.stop()
        print_requests(bootstrap_servers)


def sinks(bootstrap_servers: str) -> dict[str, dict[str, str]]:
    """Options of a sink by name; each has a topic of its own."""
    markers = unique("markers")
    create_topic(bootstrap_servers, markers, 1, {"cleanup.policy": "compact"})
    once = {"deliveryGuarantee": "exactly-once"}
    more = {
        "at least once": {},
        "exactly once": once,
        "exactly once, marker topic": once | {"transactionMarkerTopic": markers},
    }
    made = {}
    for name, options in more.items():
        topic = unique("once-sink")
        create_topic(bootstrap_servers, topic, 4)
        made[name] = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic, **options}
    return made


def copying(bootstrap_servers: str, topic: str, sink: dict[str, str], **options: str) -> dict[str, Any]:
    fixed = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    return {
        "format": "pykafka",
        "options": fixed | options,
        "select": ["key", "value"],
        "where": "true",
        "sink": {"format": "pykafka", "options": sink},
    }


def against(taken: float, other: float) -> str:
    ratio = taken / other
    return f"{ratio:.2f}x (<= {MOST}: {'met' if ratio <= MOST else 'MISSED'})"


def run_large(session: Contender, bootstrap_servers: str, arguments: argparse.Namespace) -> None:
    topic = load_topic(bootstrap_servers, SPEC.of(max(20_000, int(SPEC.records * arguments.scale))))
    limit = str(max(1, int(BATCH_OFFSETS * min(1.0, arguments.scale))))
    runs = {
        name: partial(
            session.run,
            "catch up",
            **copying(bootstrap_servers, topic.spec.topic, sink, maxOffsetsPerTrigger=limit),
        )
        for name, sink in sinks(bootstrap_servers).items()
    }
    best = best_of_rounds(runs, arguments.rounds, warm_up=1)
    rows = [
        [name, rate(topic.records, taken), f"{taken:.2f} s", against(taken, best["at least once"])]
        for name, taken in best.items()
    ]
    title = f"topic to topic, {topic.records:,} records of 100 B in batches of {int(limit):,}"
    print_table(title, ["4 tasks", "records/s", "time", "vs at least once"], rows)
    delete_topic(bootstrap_servers, topic.spec.topic)


def run_small(session: Contender, bootstrap_servers: str, arguments: argparse.Namespace) -> None:
    """One record of each partition in a micro-batch."""
    topic, batches = unique("once-small"), max(5, int(SMALL_BATCHES * min(1.0, arguments.scale)))
    load_small_topic(bootstrap_servers, topic, 4, dict.fromkeys(range(4), batches))
    rows = []
    for tasks, packed in (("4 tasks", {}), ("1 task", {"maxPartitions": "1"})):
        medians: dict[str, float] = {}
        for name, sink in sinks(bootstrap_servers).items():
            job = copying(bootstrap_servers, topic, sink, maxOffsetsPerTrigger="4", **packed)
            medians[name] = session.ask("plan stream", **job)["result"][2]
            added = f"+{medians[name] - medians['at least once']:.0f} ms"
            rows.append([f"{name}, {tasks}", f"{medians[name]:,.0f} ms", added])
    print_table(f"micro-batches of 4 records, {batches} each", ["triggerExecution", "median", "added"], rows)
    delete_topic(bootstrap_servers, topic)


def run_batch_write(session: Contender, bootstrap_servers: str, arguments: argparse.Namespace) -> None:
    records = max(20_000, int(1_000_000 * arguments.scale))
    source = {"rows": records, "values": "incompressible", "value_bytes": 100, "distinct_bytes": 10_000_000}
    rows = []
    for tasks, names in ((1, ("at least once", "exactly once")), (4, ("at least once",))):
        session.run("source", tasks=tasks, **source)
        found = sinks(bootstrap_servers)
        runs = {
            name: partial(session.run, "write", format="pykafka", table="source", options=found[name])
            for name in names
        }
        best = best_of_rounds(runs, arguments.rounds, warm_up=1)
        rows += [
            [f"{name}, {tasks} tasks", rate(records, taken), f"{taken:.2f} s"] for name, taken in best.items()
        ]
    print_table(f"df.write of {records:,} records of 100 B", ["", "records/s", "time"], rows)


def print_requests(bootstrap_servers: str, rounds: int = 100) -> None:
    """What a task and the driver wait for, one after the other, as the client sees it."""
    topic = unique("once-requests")
    create_topic(bootstrap_servers, topic, 1)
    router = Router(ClientConfig(bootstrap_servers=(bootstrap_servers,), retry_backoff_ms=5))
    taken: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = call()
        taken.setdefault(name, []).append((time.perf_counter() - began) * 1000)
        return result

    for number in range(rounds):
        config = TransactionConfig(transactional_id=topic)
        producer = TransactionalProducer(router.config, config, ProducerConfig(linger_ms=0), router=router)
        timed("InitProducerId", producer.initialize)
        timed("OffsetFetch (the marker)", lambda: GroupMarkers(router).last(topic, TopicPartition(topic, 0)))
        producer.begin()
        producer.send(topic, value=b"v" * 100)
        timed("Produce", producer.flush)
        offset = CommitMarker(batch_id=number, rows=1, hash=1).offset()
        timed("TxnOffsetCommit", partial(producer.send_offsets, {TopicPartition(topic, 0): offset}, topic))
        open_ = producer.detach()
        assert open_ is not None
        deadline = Deadline.after_ms(60_000)
        timed("EndTxn", partial(end_transaction, router, open_, commit=True, deadline=deadline))
        producer.close()
    router.close()
    rows = [
        [name, f"{statistics.median(found[5:]):.2f} ms", f"{sorted(found)[len(found) * 95 // 100]:.2f} ms"]
        for name, found in taken.items()
    ]
    print_table(f"the broker's part, {rounds} transactions", ["request", "median", "95 %"], rows)
