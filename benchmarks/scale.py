"""A large installation on paper: 100 brokers, 100,000 partitions, 1,000 executors with 4 workers each.

    python benchmarks/scale.py                      # some minutes, no Java runs, no Spark session
    python benchmarks/scale.py --only plan herd
    python benchmarks/scale.py --partitions 20000   # smaller

plan          planning of a batch read and of a micro-batch: CPU per partition as the partitions double (equal
              where it is linear), memory of the driver, bytes that are pickled for tasks
offsets       sizes of the JSON that is written to a checkpoint, and of that which a query keeps
lookups       what the driver asks for one micro-batch: requests and bytes by API, per broker (mock cluster)
task          what one task asks, alone on a new worker: the topics that its Metadata names (mock cluster)
connections   connections per broker, counted over plans of a read; of writes by arithmetic
transactions  1,000 open transactions ended by a driver, each answer 2 ms late: requests, and the longest line
              at one connection (mock cluster)
groups        offset commits of all partitions: requests and their sizes
herd          4,000 clients that lose a broker at the same moment: attempts per 100 ms by the client's backoff

Counts, bytes and ratios; where time is shown it is CPU time of this thread, of one process.
"""

from __future__ import annotations

import argparse
import json
import logging
import pickle
import random
import sys
import time
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from harness.table import print_table
from pyspark.sql.types import StructType

from spark_kafka_native.kafka.cluster.router import Router, router_for
from spark_kafka_native.kafka.cluster.split_commit import split_commit
from spark_kafka_native.kafka.group.committed_offsets import build_offset_commit
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.sending.transaction_requests import OpenTransaction
from spark_kafka_native.kafka.protocol.message import Request
from spark_kafka_native.kafka.protocol.message_codec import codec
from spark_kafka_native.kafka.runtime.retry import Backoff
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.driver.batch_plan import plan_batch
from spark_kafka_native.spark.read.driver.cluster_view import AssignedPartition, ClusterView
from spark_kafka_native.spark.read.driver.micro_batch import MicroBatch, StreamOffset
from spark_kafka_native.spark.read.driver.pushed_filters import PushedFilters
from spark_kafka_native.spark.read.driver.range_calculator import form_tasks
from spark_kafka_native.spark.read.driver.stream_logs import StreamLogs
from spark_kafka_native.spark.read.driver.stream_planner import StreamPlanner
from spark_kafka_native.spark.read.offset_range import At, KafkaInputPartition, OffsetRange, format_offsets
from spark_kafka_native.spark.read.read_options import ReadOptions, ReadTask, StreamOptions
from spark_kafka_native.spark.read.worker.read_partition import read_partition
from spark_kafka_native.spark.write.driver.stream_commit import commit_transactions
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage
from spark_kafka_native.testing import MockBroker
from spark_kafka_native.testing.mock.script import MockRequest

BROKERS, TOPICS, WORKERS = 100, 1_000, 4_000
ROUND_TRIP_S = 0.002
TOPIC_ID = "3f2a" * 8
REPLICAS = 3
OUTAGE_S = 10.0
TRANSACTIONS, COORDINATORS = 1_000, 50
"""Coordinators: as many as ``__transaction_state`` has partitions by default."""


def options(servers: str = "a:1", **given: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers, "subscribePattern": "events.*", **given}


def batch_options(**given: str) -> ReadOptions:
    return ReadOptions.for_batch(OptionValues.parse(options(**given), Scope.READ))


def partitions_of(count: int) -> list[TopicPartition]:
    each = max(count // TOPICS, 1)
    return [TopicPartition(f"events.{i // each:04d}", i % each) for i in range(count)]


def view_of(count: int) -> ClusterView:
    chance, known = random.Random(1), partitions_of(count)
    return ClusterView(
        partitions={tp: AssignedPartition(i % BROKERS, TOPIC_ID) for i, tp in enumerate(known)},
        earliest=dict.fromkeys(known, 0),
        latest_before={tp: 10**9 + chance.randrange(10**6) for tp in known},
        latest={tp: 10**9 + 10**6 + chance.randrange(10**6) for tp in known},
    )


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and the CPU time of this thread in seconds."""
    before = time.thread_time()
    found = work()
    return found, time.thread_time() - before


def peak_mib(work: Callable[[], Any]) -> float:
    tracemalloc.start()
    kept = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del kept
    return peak / 2**20


def plan_stream(view: ClusterView, max_partitions: str | None) -> list[Any]:
    limits = batch_options(
        **({} if max_partitions is None else {"maxPartitions": max_partitions})
    ).task_limits
    ids = dict.fromkeys((tp.topic for tp in view.latest), TOPIC_ID)
    start = StreamOffset(positions=view.latest_before, topic_ids=ids)
    batch = MicroBatch.between(start, StreamOffset(positions=view.latest, topic_ids=ids))
    assert not list(batch.losses())
    return form_tasks(batch.ranges({}), limits, {})


def plan(most: int) -> None:
    cases: dict[str, Callable[[ClusterView], Any]] = {
        "batch, a task each": lambda view: plan_batch(view, batch_options(), PushedFilters()),
        "batch, maxPartitions=4000": lambda view: plan_batch(
            view, batch_options(maxPartitions="4000"), PushedFilters()
        ),
        "batch, minPartitions=2 x": lambda view: plan_batch(
            view, batch_options(minPartitions=str(2 * len(view.latest))), PushedFilters()
        ),
        "micro-batch, a task each": lambda view: plan_stream(view, None),
        "micro-batch, maxPartitions=4000": lambda view: plan_stream(view, "4000"),
    }
    sizes = [most // 4, most // 2, most]
    views = [view_of(size) for size in sizes]
    rows = []
    for name, work in cases.items():
        each = [timed(partial(work, view)) for view in views]
        per = [seconds / size * 1e6 for (_, seconds), size in zip(each, sizes, strict=True)]
        tasks = each[-1][0]
        shipped = [
            tuple(getattr(one, "shipped", one) for one in task) if isinstance(task, tuple) else task
            for task in tasks
        ]
        pickled = sum(len(pickle.dumps(KafkaInputPartition(ranges=task))) for task in shipped)
        rows.append(
            [
                name,
                f"{len(tasks):,}",
                *(f"{one:.1f}" for one in per),
                f"{each[-1][1]:.1f} s",
                f"{4 * peak_mib(partial(work, views[0])):.0f}",
                f"{pickled / 2**20:.1f}",
            ]
        )
    print_table(
        f"Planning: CPU microseconds per partition at {', '.join(f'{one:,}' for one in sizes)} partitions",
        [
            "",
            "tasks",
            *(f"{one:,}" for one in sizes),
            "whole",
            "peak MiB (4 x that of a quarter)",
            "pickled MiB",
        ],
        rows,
    )


def offsets(most: int) -> None:
    view = view_of(most)
    ids = dict.fromkeys((tp.topic for tp in view.latest), TOPIC_ID)
    later = json.dumps(StreamOffset(positions=view.latest, topic_ids=ids).to_json())
    first = json.dumps(StreamOffset(positions=view.latest, topic_ids=ids, start=view.latest_before).to_json())
    text = format_offsets(view.latest)
    _, parsing = timed(lambda: StreamOffset.from_json(json.loads(later)))
    rows = [
        ["end of a micro-batch", f"{len(later) / 2**20:.2f}", f"{len(later) / most:.1f}"],
        ["end of the first one (with its start)", f"{len(first) / 2**20:.2f}", f"{len(first) / most:.1f}"],
        ["startingOffsets that name all", f"{len(text) / 2**20:.2f}", f"{len(text) / most:.1f}"],
        ["100 batches in a checkpoint", f"{100 * len(later) / 2**20:.0f}", ""],
        ["100 x 3 offsets in recentProgress", f"{300 * len(later) / 2**20:.0f}", ""],
    ]
    print_table("Offsets as JSON", ["", "MiB", "bytes a partition"], rows)
    print(f"  parsing one: {parsing / most * 1e6:.2f} us CPU a partition")


@contextmanager
def cluster(partitions: int, topics: int = TOPICS) -> Iterator[MockBroker]:
    """100 brokers. Each partition has three replicas, and not all brokers."""
    with MockBroker(brokers=BROKERS) as broker:
        each = max(partitions // topics, 1)
        for topic in range(topics):
            broker.create_topic(f"events.{topic:04d}", each)
        with broker.cluster.changed:
            for topic, one in enumerate(broker.cluster.topics.values()):
                for log in one.partitions:
                    log.leader = 1 + (topic * each + log.partition) % BROKERS

        def fewer_replicas(fields: dict[str, Any]) -> None:
            for topic in fields["topics"]:
                for one in topic.get("partitions", ()):
                    found = [(one["leader_id"] + i) % BROKERS + 1 for i in range(REPLICAS)]
                    one["replica_nodes"] = one["isr_nodes"] = found

        broker.on("Metadata", times=None).change(fewer_replicas)
        yield broker


Traffic = dict[str, tuple[int, int, int]]
"""By API: requests, bytes sent, bytes received."""


def traffic(router: Router) -> Traffic:
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    places = {"kafka.client.requests": 0, "kafka.client.bytes.sent": 1, "kafka.client.bytes.received": 2}
    for key, value in router.metrics.snapshot():
        if key.name in places:
            found[dict(key.tags)["api"]][places[key.name]] += int(value)
    return {api: (one[0], one[1], one[2]) for api, one in found.items()}


def since(before: Traffic, now: Traffic) -> Traffic:
    none = (0, 0, 0)
    changes = {api: tuple(np.subtract(one, before.get(api, none)).tolist()) for api, one in now.items()}
    return {api: one for api, one in changes.items() if one[0]}  # type: ignore[misc]


def traffic_rows(what: str, found: Traffic) -> list[list[str]]:
    return [
        [
            what,
            api,
            f"{count:,}",
            f"{sent / count / 1024:.1f}",
            f"{received / count / 1024:.1f}",
            f"{received / 2**20:.2f}",
        ]
        for api, (count, sent, received) in sorted(found.items())
    ]


TRAFFIC = ["", "API", "requests", "KiB sent each", "KiB received each", "MiB received"]


def lookups(most: int) -> None:
    rows = []
    with cluster(most) as broker:
        every = ",".join(broker.cluster.topics)
        for what, subscribed in (("pattern", {}), ("names", {"subscribe": every, "subscribePattern": ""})):
            given = {key: one for key, one in (options(broker.bootstrap_servers) | subscribed).items() if one}
            parsed = StreamOptions.parse(OptionValues.parse(given, Scope.READ))
            router = Router(parsed.read.client)
            planner = StreamPlanner(StreamLogs(router, parsed.read), parsed)
            start = planner.initial()
            rows += traffic_rows(f"{what}: start of a stream", traffic(router))
            before, cpu = traffic(router), time.thread_time()
            planner.latest(start, limited=True)
            cpu = time.thread_time() - cpu
            rows += traffic_rows(f"{what}: one trigger", since(before, traffic(router)))
            print(f"  {what}: a quiet trigger takes {cpu / most * 1e6:.1f} us CPU of the driver a partition")
            router.close()
        by_node = Counter(one.node_id for one in broker.asked("ListOffsets"))
    print_table(f"What the driver asks about {most:,} partitions", TRAFFIC, rows)
    print(f"  ListOffsets per broker over both: {min(by_node.values())} to {max(by_node.values())}")


def task(most: int) -> None:
    rows = []
    for topics in (TOPICS, 1):
        with cluster(most, topics) as broker:
            name = next(iter(broker.cluster.topics))
            broker.append(name, ["a", "b"])
            schema = StructType().add("value", "binary")
            given = options(broker.bootstrap_servers)
            parsed = ReadOptions.for_batch(OptionValues.parse(given, Scope.READ))
            one = OffsetRange(topic=name, partition=0, start=At(0), end=At(2))
            shared = ReadTask.of(parsed, schema)
            router = router_for(shared.client)
            read = sum(batch.num_rows for batch in read_partition(KafkaInputPartition(ranges=(one,)), shared))
            assert read == 2, read
            asked = [request.fields["topics"] for request in broker.asked("Metadata")]
            named = sorted({topic["name"] for one in asked for topic in one or ()})
            assert None not in asked, "a task never asks for all topics"
            assert named == [name], named
            rows += traffic_rows(f"1 of {topics:,} topics", traffic(router))
            router.close()
    print_table("What one task of one partition asks on a new worker", TRAFFIC, rows)


def spread(connected: Mapping[int, set[int]]) -> list[str]:
    """Of the workers that are connected to each broker: the highest number, and brokers per worker."""
    by_broker = Counter(broker for brokers in connected.values() for broker in brokers)
    each = sum(by_broker.values()) / len(connected)
    return [f"{max(by_broker.values()):,}", f"{each:.1f}"]


def connections(most: int) -> None:
    """Tasks are given to workers at random, as Spark knows no leaders."""
    view, chance = view_of(most), random.Random(2)
    leaders = {tp: one.leader for tp, one in view.partitions.items()}
    plans = {
        "read, batch: a task a partition": plan_batch(view, batch_options(), PushedFilters()),
        "read, batch: maxPartitions=4000 (by leader)": plan_batch(
            view, batch_options(maxPartitions="4000"), PushedFilters()
        ),
        "read, micro-batch: maxPartitions=4000 (not by leader)": [
            tuple(one.shipped for one in task) for task in plan_stream(view, "4000")
        ],
        "read, micro-batch: maxPartitions=400": [
            tuple(one.shipped for one in task) for task in plan_stream(view, "400")
        ],
    }
    rows = []
    for name, tasks in plans.items():
        brokers = [{leaders[one.topic_partition] for one in task} for task in tasks]
        cells = []
        for rounds in (1, 10):
            connected: dict[int, set[int]] = defaultdict(set)
            for _ in range(rounds):
                order = chance.sample(range(len(tasks)), len(tasks))
                slots = chance.sample(range(WORKERS), WORKERS)
                for place, task in enumerate(order):
                    connected[slots[place % WORKERS]] |= brokers[task]
            cells += spread(connected)
        rows.append([name, f"{len(tasks):,}", *cells])
    print_table(
        "Connections: the highest number at a broker, and brokers per worker; after 1 and after 10 rounds",
        ["", "tasks", "at a broker, 1", "a worker, 1", "at a broker, 10", "a worker, 10"],
        rows,
    )
    busy = WORKERS
    rows = [
        ["write, keys over all leaders", f"{busy:,}", f"{2 * busy:,}"],
        ["exactly once, the same", f"{busy:,}", f"{2 * busy:,}"],
        ["write, 400 tasks (coalesce, 100 executors)", f"{busy // 10:,}", f"{2 * busy // 10:,}"],
        ["write into a topic of 10 leaders", f"{busy:,} at 10 of them", f"{2 * busy:,}"],
    ]
    print_table(
        "By arithmetic: a producer has a connection of its own beside that of look-ups and coordinators",
        ["", "to produce", "with look-ups, at most"],
        rows,
    )


def end_slowly(broker: MockBroker, count: int) -> None:
    """Coordinators as a large cluster has them, each 2 ms away; a broker answers a connection in turn."""

    def elsewhere(fields: dict[str, Any]) -> None:
        for one in fields["coordinators"]:
            node = hash_of(one["key"]) % count + 1
            host, port = broker.cluster.addresses[node]
            one |= {"node_id": node, "host": host, "port": port}

    both = (1, 0)  # FindCoordinator's key types
    broker.on("FindCoordinator", when=lambda one: one.fields["key_type"] == both[0], times=None).change(
        elsewhere
    ).delay(ROUND_TRIP_S)
    broker.on("FindCoordinator", when=lambda one: one.fields["key_type"] == both[1], times=None).delay(
        ROUND_TRIP_S
    )
    broker.on("EndTxn", times=None).reply({}).delay(ROUND_TRIP_S)
    broker.on("AddOffsetsToTxn", times=None).reply({}).delay(ROUND_TRIP_S)
    broker.on("InitProducerId", times=None).reply({"producer_id": 7, "producer_epoch": 0}).delay(ROUND_TRIP_S)


def hash_of(name: str) -> int:
    return sum(name.encode()) * 7_919 + len(name)


def longest_line(requests: list[MockRequest]) -> int:
    return max(Counter((one.node_id, one.connection) for one in requests).values(), default=0)


def transactions(_most: int) -> None:
    rows = []
    for count in (1, 5, COORDINATORS):
        with MockBroker(brokers=BROKERS) as broker:
            broker.create_topic("t")
            end_slowly(broker, count)
            given = {
                "kafka.bootstrap.servers": broker.bootstrap_servers,
                "topic": "t",
                "deliveryGuarantee": "exactly-once",
            }
            parsed = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))
            assert parsed.exactly_once is not None
            messages = [written(task) for task in range(TRANSACTIONS)]
            broker.on("TxnOffsetCommit", times=None).change(accept).delay(ROUND_TRIP_S)
            began = time.monotonic()
            commit_transactions(messages, 0, parsed, parsed.exactly_once, is_first=False)
            took = time.monotonic() - began
            seen = broker.requests
            asked = Counter(one.api for one in seen)
            line = longest_line([one for one in seen if one.api != "ApiVersions"])
            rows.append(
                [
                    f"{count} coordinators",
                    f"{asked['EndTxn']:,}",
                    f"{asked['FindCoordinator']:,}",
                    f"{line:,}",
                    f"{line * ROUND_TRIP_S:.2f} s",
                    f"{took:.2f} s",
                ]
            )
            router_for(parsed.client).close()
    print_table(
        f"{TRANSACTIONS:,} transactions ended by a driver, answers {ROUND_TRIP_S * 1e3:g} ms late",
        ["", "EndTxn", "FindCoordinator", "longest line", "x 2 ms", "took, with the mock's own time"],
        rows,
    )


def accept(fields: dict[str, Any]) -> None:
    for topic in fields["topics"]:
        for one in topic["partitions"]:
            one["error_code"] = 0


def written(task: int) -> KafkaCommitMessage:
    one = OpenTransaction(transactional_id=f"q-{task}", producer_id=task, producer_epoch=0, version=1)
    return KafkaCommitMessage(1, 1, 1, 0, (("t", 0, 1, 1, 0, 0),), one, "q", rows_hash=1, task=task)


def groups(most: int) -> None:
    rows = []
    for count in (1_000, 10_000, most):
        positions = dict.fromkeys(partitions_of(count), 10**9)
        parts = list(split_commit("a-group-of-a-stream", positions))
        whole = size_of(build_offset_commit("a-group-of-a-stream", positions), 9)
        sizes = [size_of(build_offset_commit("a-group-of-a-stream", part), 9) for part in parts]
        rows.append([f"{count:,}", f"{whole / 2**20:.2f}", f"{len(parts)}", f"{max(sizes) / 2**10:.0f}"])
    print_table(
        "Offset commits of all partitions of a group",
        ["partitions", "as one request, MiB", "requests", "largest, KiB"],
        rows,
    )


def size_of(request: Request[Any], version: int) -> int:
    return sum(len(piece) for piece in codec(type(request), version).write(request))


def herd(_most: int) -> None:
    rows = []
    for first_ms, max_ms, outage_s in (
        (100, 1_000, 0.2),
        (100, 1_000, 2),
        (100, 1_000, OUTAGE_S),
        (100, 10_000, OUTAGE_S),
        (100, 10_000, 60),
    ):
        backoff, chance = Backoff(first_ms=first_ms, max_ms=max_ms), random.Random(3)
        attempts: list[float] = []
        connected: list[float] = []
        for _ in range(WORKERS):
            at, attempt = 0.0, 0
            while at < outage_s:
                attempts.append(at)
                at += backoff.delay_ms(attempt, chance.uniform) / 1000
                attempt += 1
            connected.append(at)
        bins = np.bincount((np.array(connected) * 10).astype(int))
        during = np.bincount((np.array(attempts) * 10).astype(int), minlength=1)
        later = during[1:] if len(during) > 1 else during
        rows.append(
            [
                f"{first_ms} to {max_ms:,} ms, away for {outage_s:g} s",
                f"{len(attempts) / WORKERS:.1f}",
                f"{later.max():,}",
                f"{bins.max():,}",
                f"{np.percentile(np.array(connected) - outage_s, 50):.2f} s",
                f"{max(connected) - outage_s:.2f} s",
            ]
        )
    print_table(
        f"{WORKERS:,} clients lose a broker at once",
        [
            "retry.backoff",
            "attempts each",
            "most in 100 ms, away",
            "most in 100 ms, back",
            "half are back",
            "all are back",
        ],
        rows,
    )


SECTIONS = {
    one.__name__: one for one in (plan, offsets, lookups, task, connections, transactions, groups, herd)
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    for name in arguments.only:
        SECTIONS[name](arguments.partitions)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
