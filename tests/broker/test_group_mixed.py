"""In one group with Java, librdkafka and kafka-python, while a producer writes and members come, go and die:
every record is read, no partition has two readers at a time, and no commit goes back.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.group.members import SESSION_MS, MemberProcess, holds

from spark_kafka_native.kafka import (
    Admin,
    ClientConfig,
    ConfigResource,
    Producer,
    Router,
    TopicPartition,
    committed_offsets,
)

pytestmark = pytest.mark.broker

PARTITIONS = 6
WAIT_S = 240


def wait_for(condition: Callable[[], bool], members: list[MemberProcess], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        states = [(m.client, sorted(m.assignment)) for m in members]
        assert time.monotonic() < until, f"{what}: {states} {[m.complaints() for m in members]}"
        time.sleep(0.05)


def all_assigned(members: list[MemberProcess]) -> bool:
    owned = [partition for member in members for partition in member.assignment]
    return sorted(owned) == list(range(PARTITIONS)) and all(member.assignment for member in members)


class Watch:
    """Looks at what the group has committed, again and again."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        self.router = Router(ClientConfig(bootstrap_servers=(servers,)))
        self.partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self.group = group
        self.seen: list[dict[TopicPartition, int]] = []

    def look(self) -> dict[TopicPartition, int]:
        found = committed_offsets(self.router, self.group, self.partitions)
        self.seen.append({tp: offset or 0 for tp, offset in found.items()})
        return self.seen[-1]


@contextlib.contextmanager
def producing(servers: str, topic: str, watch: Watch) -> Iterator[Callable[[], dict[int, int]]]:
    """A producer at work; calling the yielded function ends it, and returns the records of each partition."""
    stop = threading.Event()
    counts = dict.fromkeys(range(PARTITIONS), 0)

    def work() -> None:
        with Producer(servers, linger_ms=20) as producer:
            while not stop.is_set():
                for partition in counts:
                    for _ in range(10):
                        producer.send(topic, value=b"x" * 50, partition=partition)
                        counts[partition] += 1
                watch.look()
                stop.wait(0.05)

    thread = threading.Thread(target=work)
    thread.start()

    def end() -> dict[int, int]:
        stop.set()
        thread.join()
        return counts

    try:
        yield end
    finally:
        end()


@pytest.mark.parametrize(
    ("strategy", "clients"),
    [
        ("range", ["confluent", "kafka-python", "java"]),
        pytest.param("sticky", ["kafka-python"], marks=pytest.mark.soak),
        ("cooperative-sticky", ["confluent", "java"]),
        ("consumer", ["confluent", "java"]),
    ],
)
def test_a_group_of_many_clients(kafka: Any, topic: str, strategy: str, clients: list[str]) -> None:
    kafka.create_topic(topic, PARTITIONS)
    group, servers = f"mixed-{uuid.uuid4().hex}", kafka.bootstrap_servers
    watch = Watch(servers, topic, group)
    members: list[MemberProcess] = []

    def start(client: str, **session: int) -> MemberProcess:
        members.append(MemberProcess(client, servers, topic, group, strategy, **session))
        return members[-1]

    def miss_members_after(milliseconds: int) -> None:
        """In the protocol ``consumer``, where the group says it for all of them."""
        if strategy == "consumer":
            with Admin(servers) as admin:
                setting = {"consumer.session.timeout.ms": str(milliseconds)}
                admin.alter_configs(ConfigResource.group(group), setting)

    try:
        with producing(servers, topic, watch) as end:
            first = start("ours", session_ms=3_000)  # it will be missed soon
            wait_for(lambda: all_assigned([first]), members, "the first has everything")
            others = [start(client) for client in clients]
            last = start("ours")
            living = [first, *others, last]
            wait_for(lambda: all_assigned(living), members, "everybody has some")
            living.remove(others[-1])
            others[-1].leave()
            wait_for(lambda: all_assigned(living), members, "one has left")
            living.remove(first)
            miss_members_after(3_000)
            time.sleep(1.5)  # its next heartbeat begins such a session; without one it takes a minute
            first.kill()
            wait_for(lambda: all_assigned(living), members, "one was killed")
            miss_members_after(SESSION_MS)
            living.remove(last)
            last.leave()
            late = start("ours")
            living.append(late)
            wait_for(lambda: all_assigned(living), members, "another has come")
            counts = end()
        wait_for(
            lambda: all(watch.look()[tp] == counts[tp.partition] for tp in watch.partitions),
            members,
            "everything is committed",
        )
        for member in living:
            member.leave()
    finally:
        for member in members:
            member.end()
        watch.router.close()

    for partition, count in counts.items():
        read = {offset for member in members for offset in member.read[partition]}
        assert read == set(range(count))
        spans = holds(members)[partition]
        for (_, until, one), (since, _, another) in itertools.pairwise(spans):
            assert until <= since + 0.01, f"{partition}: {one} had it until {until}, {another} from {since}"
    for before, after in itertools.pairwise(watch.seen):
        assert all(after[tp] >= offset for tp, offset in before.items())
