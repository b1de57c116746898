"""Checks what `sink_processes` have written, with another client (librdkafka), in a process of its own.

Run as a script with the plan's file and the addresses of the brokers. One consumer follows from the start,
while brokers die; a second one reads everything at the end. Both are read_committed. Prints the defects as
JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import confluent_kafka

Found = dict[int, dict[int, bytes]]
"""Values by partition and offset."""


class Reader:
    """Reads all partitions of a topic from the start."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"checker-{topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "topic.metadata.refresh.interval.ms": 2_000,
            "log_level": 0,
        }
        self._topic = topic
        self._consumer = confluent_kafka.Consumer(
            self._settings | {"isolation.level": "read_committed", "enable.partition.eof": True}
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)])
        self.found: Found = {p: {} for p in range(partitions)}
        self.ends: dict[int, int] = {}
        self.wrong: list[str] = []

    def read(self, timeout_s: float) -> None:
        """Read the next records."""
        for message in self._consumer.consume(2_000, timeout_s):
            error = message.error()
            if error is not None:
                if error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    self.ends[message.partition()] = message.offset()
                elif error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                    self.wrong.append(f"offset out of range: {error.str()}")
                continue
            there = self.found[message.partition()]
            if there and message.offset() <= next(reversed(there)):
                self.wrong.append(f"offset {message.offset()} comes after {next(reversed(there))}")
            there[message.offset()] = message.value()

    def read_to_the_end(self, timeout_s: float) -> None:
        """Until nothing is open any more and everything is read."""
        probe = confluent_kafka.Consumer(self._settings | {"isolation.level": "read_uncommitted"})
        deadline = time.monotonic() + timeout_s
        while True:
            high: dict[int, int] = {}
            for partition in self.found:
                where = confluent_kafka.TopicPartition(self._topic, partition)
                try:
                    high[partition] = probe.get_watermark_offsets(where, timeout=10)[1]
                except confluent_kafka.KafkaException:
                    break
            read = [end == 0 or self.ends.get(p, -1) >= end for p, end in high.items()]
            if len(read) == len(self.found) and all(read):
                break
            if time.monotonic() > deadline:
                self.wrong.append(f"open after {timeout_s:g} s: read to {self.ends}, written to {high}")
                break
            self.read(0.5)
        probe.close()

    def close(self) -> None:
        self._consumer.close()


def complaints(plan: dict[str, Any], found: Found) -> dict[str, list[str]]:
    """The defects in the records that a reader has seen, by kind."""
    wrong: dict[str, list[str]] = defaultdict(list)
    times: Counter[tuple[int, int, int]] = Counter()
    for partition, values in found.items():
        last: dict[int, tuple[int, int]] = {}
        for value in values.values():
            try:
                batch, task, index = map(int, value.split(b" ")[0].split(b"-"))
                whole = value == b"%d-%d-%d %s" % (batch, task, index, b"x" * (index % 97))
            except ValueError:
                whole = False
            if not whole or index % plan["partitions"] != partition:
                wrong["corrupt"].append(f"{value!r} in partition {partition}")
                continue
            times[batch, task, index] += 1
            if times[batch, task, index] == 1:  # a duplicate is not reordered besides
                if (batch, index) < last.get(task, (-1, -1)):
                    wrong["reordered"].append(f"{value!r} after {last[task]} in partition {partition}")
                last[task] = (batch, index)
    for batch in range(plan["batches"]):
        for task in range(plan["tasks"]):
            counts = [times.pop((batch, task, index), 0) for index in range(plan["rows"])]
            name = f"task {task} of batch {batch}"
            if len(set(counts)) > 1:
                wrong["torn"].append(f"{name}: its rows are there {sorted(set(counts))} times")
            wrong["lost"] += [f"row {i} of {name}" for i, n in enumerate(counts) if n == 0]
            wrong["duplicate"] += [f"row {i} of {name}, {n} times" for i, n in enumerate(counts) if n > 1]
    wrong["strange"] += [str(one) for one in times]
    return wrong


def compare(followed: Found, final: Found) -> dict[str, list[str]]:
    """Compare the records of a reader that followed with the final contents."""
    wrong: dict[str, list[str]] = defaultdict(list)
    for partition, values in followed.items():
        there = final[partition]
        for offset, value in values.items():
            if offset not in there:
                wrong["aborted read"].append(f"partition {partition}, offset {offset}: {value!r} was seen")
            elif there[offset] != value:
                wrong["two values"].append(f"partition {partition}, offset {offset}")
        last = next(reversed(values), -1)
        missed = [offset for offset in there if offset <= last and offset not in values]
        wrong["skipped"] += [f"partition {partition}, offset {offset}" for offset in missed]
    return wrong


def batches(plan: dict[str, Any]) -> int:
    """How many there are: a run goes on until all has happened that is to happen."""
    commits = Path(plan["folder"], "commits")
    done = len(commits.read_text().split()) if commits.exists() else 0
    return max(done, plan["batches"])


def main(plan_path: str, bootstrap_servers: str, wait_s: str = "120") -> None:
    """Follow until the file ``done`` is there, then read all again."""
    plan = json.loads(Path(plan_path).read_text())
    topic, partitions = plan["topic"], plan["partitions"]
    follower = Reader(bootstrap_servers, topic, partitions)
    while not Path(plan["folder"], "done").exists():
        follower.read(0.5)
    follower.read_to_the_end(float(wait_s))
    follower.close()
    final = Reader(bootstrap_servers, topic, partitions)
    final.read_to_the_end(float(wait_s))
    final.close()
    wrong = complaints(plan | {"batches": batches(plan)}, final.found) | compare(follower.found, final.found)
    wrong["reader"] = follower.wrong + final.wrong
    told = {kind: {"count": len(all_), "first": all_[:5]} for kind, all_ in wrong.items() if all_}
    records = sum(map(len, final.found.values()))
    print(json.dumps({"records": records, "wrong": told}))


if __name__ == "__main__":
    main(*sys.argv[1:])
