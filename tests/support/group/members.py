"""Consumers of a group as processes of their own, of four clients, that say what they do.

Each writes lines of JSON: what it was assigned and gave up, and the offsets that it read, with the time.
Run as a program it is one of the Python ones: ``group_members.py CLIENT SERVERS TOPIC GROUP STRATEGY MS``;
a line on its standard input makes it leave.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SESSION_MS = 60_000
"""Long: a machine that stands still for a moment is to cost no member its place."""
HEARTBEAT_MS = 500

JAVA = """
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Member {
    static void say(String event, Collection<TopicPartition> partitions) {
        StringJoiner out = new StringJoiner(",");
        for (TopicPartition one : partitions) out.add("" + one.partition());
        System.out.printf("{\\"event\\": \\"%s\\", \\"partitions\\": [%s], \\"time\\": %d.%03d}%n",
            event, out, System.currentTimeMillis() / 1000, System.currentTimeMillis() % 1000);
        System.out.flush();
    }

    public static void main(String[] args) throws Exception {
        AtomicBoolean leaves = new AtomicBoolean();
        Thread reader = new Thread(() -> {
            try { System.in.read(); } catch (Exception error) { }
            leaves.set(true);
        });
        reader.setDaemon(true);
        reader.start();
        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[0]);
        properties.put("group.id", args[2]);
        properties.put("auto.offset.reset", "earliest");
        if (args[3].equals("consumer")) {
            properties.put("group.protocol", "consumer");
        } else {
            properties.put("session.timeout.ms", args[4]);
            properties.put("heartbeat.interval.ms", "500");
            properties.put("partition.assignment.strategy", args[3].equals("range")
                ? "org.apache.kafka.clients.consumer.RangeAssignor"
                : "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        }
        properties.put("auto.commit.interval.ms", "300");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(args[1]), new ConsumerRebalanceListener() {
                public void onPartitionsAssigned(Collection<TopicPartition> all) { say("assigned", all); }
                public void onPartitionsRevoked(Collection<TopicPartition> all) { say("revoked", all); }
                public void onPartitionsLost(Collection<TopicPartition> all) { say("lost", all); }
            });
            while (!leaves.get()) {
                for (var one : consumer.poll(Duration.ofMillis(100)))
                    System.out.printf("{\\"event\\": \\"read\\", \\"partition\\": %d, \\"offset\\": %d}%n",
                        one.partition(), one.offset());
                System.out.flush();
            }
        }
        System.out.println("{\\"event\\": \\"left\\"}");
    }
}
"""


class MemberProcess:
    """One consumer of a group. It is missed after ``session_ms``, unless the group says for how long
    (protocol ``consumer``)."""

    def __init__(
        self, client: str, servers: str, topic: str, group: str, strategy: str, session_ms: int = SESSION_MS
    ) -> None:
        self.client = client
        if client == "java":
            from spark_kafka_native.testing.java import jars, java_command

            self._folder = tempfile.TemporaryDirectory(prefix="group-member-")
            source = Path(self._folder.name, "Member.java")
            source.write_text(JAVA)
            command = [*java_command(Path(self._folder.name), jars()), str(source)]
        else:
            command = [sys.executable, __file__, client]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `end` closes it
        self.process = subprocess.Popen(
            [*command, servers, topic, group, strategy, str(session_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.events: list[dict[str, Any]] = []
        self.ended_at: float | None = None
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{") and line.endswith("}\n"):  # a killed one may be in the middle
                self.events.append(json.loads(line))

    @property
    def assignment(self) -> set[int]:
        owned: set[int] = set()
        for event in list(self.events):
            if event["event"] == "assigned":
                owned |= set(event["partitions"])
            elif event["event"] in ("revoked", "lost"):
                owned -= set(event["partitions"])
        return owned

    @property
    def read(self) -> dict[int, list[int]]:
        found = defaultdict(list)
        for event in list(self.events):
            if event["event"] == "read":
                found[event["partition"]].append(event["offset"])
        return found

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.process.wait(240)
        self._thread.join(60)
        assert self.events[-1]["event"] == "left", self.complaints()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)
        self.ended_at = time.time()
        self._thread.join(60)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        self._thread.join(60)
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                stream.close()
        if self.client == "java":
            self._folder.cleanup()

    def complaints(self) -> str:
        self._errors.seek(0)
        return f"{self.client}: {self._errors.read()[-3000:]}"


def holds(members: Iterable[MemberProcess]) -> dict[int, list[tuple[float, float, str]]]:
    """By partition, its owners and the times at which they began and ended, in the order of time.

    A member learns that it has lost a partition later than another one gets it: the exact end is unknown.
    """
    found: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for number, member in enumerate(members):
        began: dict[int, float] = {}
        name = f"{member.client} {number}"
        for event in member.events:
            for partition in event.get("partitions", ()):
                if event["event"] == "assigned":
                    began.setdefault(partition, event["time"])
                elif partition in began:
                    start = began.pop(partition)
                    end = start if event["event"] == "lost" else event["time"]
                    found[partition].append((start, end, name))
        for partition, start in began.items():
            found[partition].append((start, member.ended_at or time.time(), name))
    return {partition: sorted(spans) for partition, spans in found.items()}


def say(event: str, partitions: Iterable[Any] = (), **more: Any) -> None:
    listed = [getattr(one, "partition", one) for one in partitions]
    print(json.dumps({"event": event, "partitions": listed, "time": time.time()} | more), flush=True)


def run_ours(
    servers: str, topic: str, group: str, strategy: str, session_ms: int, leaves: threading.Event
) -> None:
    from spark_kafka_native.kafka.group.group_consumer import GroupConsumer

    classic: dict[str, Any] = {
        "partition_assignment_strategy": strategy,
        "session_timeout_ms": session_ms,
        "heartbeat_interval_ms": HEARTBEAT_MS,
    }
    with GroupConsumer(
        servers,
        topic,
        group,
        auto_commit_interval_ms=300,
        on_assigned=lambda _, partitions: say("assigned", partitions),
        on_revoked=lambda _, partitions: say("revoked", partitions),
        on_lost=lambda _, partitions: say("lost", partitions),
        **({"group_protocol": "consumer"} if strategy == "consumer" else classic),
    ) as consumer:
        while not leaves.is_set():
            fetched = consumer.read(0.1)
            if fetched is not None and fetched.columns.offset is not None:
                for offset in fetched.columns.offset.tolist():
                    say("read", partition=fetched.topic_partition.partition, offset=offset)


def run_confluent(
    servers: str, topic: str, group: str, strategy: str, session_ms: int, leaves: threading.Event
) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 300,
            "log_level": 0,
        }
        | (
            {"group.protocol": "consumer"}
            if strategy == "consumer"
            else {
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": strategy,
            }
        )
    )
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: say("assigned", partitions),
        on_revoke=lambda _, partitions: say("revoked", partitions),
        on_lost=lambda _, partitions: say("lost", partitions),
    )
    while not leaves.is_set():
        for record in consumer.consume(500, 0.1):
            if not record.error():
                say("read", partition=record.partition(), offset=record.offset())
    consumer.close()


def run_kafka_python(
    servers: str, topic: str, group: str, strategy: str, session_ms: int, leaves: threading.Event
) -> None:
    import kafka
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            say("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            say("revoked", revoked)

    assignors = {"range": RangePartitionAssignor, "sticky": StickyPartitionAssignor}
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_commit_interval_ms=300,
        partition_assignment_strategy=[assignors[strategy]],
    )
    consumer.subscribe([topic], listener=Listener())
    while not leaves.is_set():
        for records in consumer.poll(100).values():
            for record in records:
                say("read", partition=record.partition, offset=record.offset)
    consumer.close()


def main() -> None:
    client, servers, topic, group, strategy, session_ms = sys.argv[1:]
    leaves = threading.Event()

    def listen() -> None:
        os.read(0, 1)
        leaves.set()

    threading.Thread(target=listen, daemon=True).start()
    run = {"ours": run_ours, "confluent": run_confluent, "kafka-python": run_kafka_python}[client]
    run(servers, topic, group, strategy, int(session_ms), leaves)
    say("left")


if __name__ == "__main__":
    main()
