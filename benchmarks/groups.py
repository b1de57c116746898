"""How long a group of three takes to share 100 partitions out anew when its third member comes.

    python benchmarks/groups.py [--rounds 5] [--bootstrap-servers HOST:PORT]

Two consumers have 50 partitions each and poll. The clock runs from the making of the third to the moment at
which all three have a third and its first record could come. It holds connecting, finding the coordinator
and, mostly, the others' next heartbeats: members hear of a rebalance there only. So each client is measured
with ``heartbeat.interval.ms`` 300; with the usual 3,000 up to that much comes on top, for all clients. All
members are of one process; interleaved rounds, the median counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

import confluent_kafka
import kafka as kafka_python
from harness.cluster import open_broker
from harness.table import print_table
from harness.topics import create_topic, delete_topic

from spark_kafka_native.kafka import GroupConsumer

PARTITIONS = 100
HEARTBEAT_MS = 300
WANTED_S = 2.0
LIMIT_S = 60.0


class Ours:
    def __init__(self, servers: str, topic: str, group: str, **settings: Any) -> None:
        self.consumer = GroupConsumer(
            servers, topic, group, heartbeat_interval_ms=HEARTBEAT_MS, auto_offset_reset="latest", **settings
        )

    def poll(self) -> None:
        self.consumer.read(0.01)

    def count(self) -> int:
        return len(self.consumer.assignment)

    def close(self) -> None:
        self.consumer.close()


class OursCooperative(Ours):
    def __init__(self, servers: str, topic: str, group: str) -> None:
        super().__init__(servers, topic, group, partition_assignment_strategy="cooperative-sticky")


class Confluent:
    def __init__(self, servers: str, topic: str, group: str) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "log_level": 0,
            }
        )
        self.consumer.subscribe([topic])

    def poll(self) -> None:
        self.consumer.poll(0.01)

    def count(self) -> int:
        return len(self.consumer.assignment())

    def close(self) -> None:
        self.consumer.close()


class KafkaPython:
    def __init__(self, servers: str, topic: str, group: str) -> None:
        self.consumer = kafka_python.KafkaConsumer(
            topic, bootstrap_servers=servers, group_id=group, heartbeat_interval_ms=HEARTBEAT_MS
        )

    def poll(self) -> None:
        self.consumer.poll(10)

    def count(self) -> int:
        return len(self.consumer.assignment())

    def close(self) -> None:
        self.consumer.close()


CLIENTS: dict[str, Callable[[str, str, str], Any]] = {
    "ours, range": Ours,
    "ours, cooperative-sticky": OursCooperative,
    "confluent-kafka, range": Confluent,
}


def poll_until(members: list[Any], shares: list[int]) -> float:
    began = time.perf_counter()
    while sorted(member.count() for member in members) != shares:
        if time.perf_counter() - began > LIMIT_S:
            raise TimeoutError(f"the group has {[member.count() for member in members]}")
        for member in members:
            member.poll()
    return time.perf_counter() - began


def rebalance(servers: str, topic: str, join: Callable[[str, str, str], Any]) -> float:
    """Seconds until three have a third each."""
    group = f"rebalance-{uuid.uuid4().hex}"
    members = [join(servers, topic, group) for _ in range(2)]
    try:
        poll_until(members, [PARTITIONS // 2] * 2)
        began = time.perf_counter()
        members.append(join(servers, topic, group))
        poll_until(members, [33, 33, 34])
        return time.perf_counter() - began
    finally:
        for member in members:
            member.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap-servers", help="a broker that is there; default: an embedded one")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with open_broker(arguments.bootstrap_servers) as servers:
        topic = f"rebalance-{uuid.uuid4().hex}"
        create_topic(servers, topic, PARTITIONS)
        times: dict[str, list[float]] = {name: [] for name in CLIENTS}
        for number in range(arguments.rounds + 1):
            for name, join in CLIENTS.items():
                seconds = rebalance(servers, topic, join)
                if number:  # the first round warms up
                    times[name].append(seconds)
        delete_topic(servers, topic)
    rows = []
    for name, found in times.items():
        median = statistics.median(found)
        met = ("met" if median < WANTED_S else "MISSED") if name.startswith("ours") else ""
        rows.append([name, f"{median:.2f}", f"{min(found):.2f}", f"{max(found):.2f}", met])
    title = f"a third member of {PARTITIONS} partitions, heartbeats every {HEARTBEAT_MS} ms, seconds"
    print_table(title, ["member", "median", "min", "max", f"< {WANTED_S:g} s"], rows)


if __name__ == "__main__":
    main()
