"""`MockCluster`: the state that the brokers of a mock share: topics, logs, groups, leaders."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from ...kafka.error_code import ErrorCode
from .classic_group import ClassicGroup
from .mock_request import MockRequest, index_of, topic_of
from .partition_log import PartitionLog
from .script import Effect, Fields
from .transaction import Transaction

CLUSTER_ID = "mock"


@dataclass
class MockTopic:
    """A topic."""

    name: str
    topic_id: UUID
    partitions: list[PartitionLog]
    configs: dict[str, str | None]


@dataclass(frozen=True)
class Call:
    """A request, and what the script says about it."""

    request: MockRequest
    faults: list[Effect]

    @property
    def fields(self) -> Fields:
        """Those of the request."""
        return self.request.fields

    @property
    def version(self) -> int:
        """That of the request."""
        return self.request.version

    def refusal(self, topic: str | None = None, partition: int | None = None) -> Effect | None:
        """The fault that refuses this part of the request, or, without arguments, any."""
        for fault in self.faults:
            if fault.code is not None and (topic is None or fault.covers(topic, partition)):
                return fault
        return None


@dataclass
class MockCluster:
    """State under one lock, `changed`, which is notified of every change that a thread may wait for."""

    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    topics: dict[str, MockTopic] = field(default_factory=dict)
    groups: dict[str, ClassicGroup] = field(default_factory=dict)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    """By transactional id."""
    users: Mapping[str, str] | None = None
    """Names and passwords; None: clients need no authentication."""
    authenticated: set[int] = field(default_factory=set)
    """The authenticated connections, by number."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    producer_ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1000))

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str | None]) -> MockTopic:
        """Make a topic; its leaders take turns."""
        topic = self.topics[name] = MockTopic(name, uuid4(), [], dict(configs))
        self.grow_topic(name, partitions)
        return topic

    def grow_topic(self, name: str, partitions: int) -> None:
        """Add partitions up to the given number."""
        logs, nodes = self.topics[name].partitions, sorted(self.running) or [-1]
        logs += [
            PartitionLog(name, index, nodes[index % len(nodes)]) for index in range(len(logs), partitions)
        ]
        self.changed.notify_all()

    def topic_name(self, topic_id: UUID) -> str | None:
        """The topic with this id."""
        return next((topic.name for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """That of a partition, if it is there."""
        found = self.topics.get(topic)
        in_range = found is not None and 0 <= partition < len(found.partitions)
        return found.partitions[partition] if found is not None and in_range else None

    def group(self, group_id: str) -> ClassicGroup:
        """A group; created on first use."""
        return self.groups.setdefault(group_id, ClassicGroup(self.changed))

    @property
    def coordinator(self) -> int:
        """The coordinator of all groups, and controller: the first running broker; -1 if none runs."""
        return min(self.running, default=-1)

    def lead(self, log: PartitionLog, node_id: int) -> None:
        """Make a broker the leader, in a new epoch."""
        log.leader = node_id
        log.leader_epoch += 1
        self.changed.notify_all()

    def elect(self) -> None:
        """Move each partition from a stopped leader to a running broker, if there is one."""
        for topic in self.topics.values():
            for log in topic.partitions:
                if log.leader not in self.running:
                    self.lead(log, min(self.running, default=-1))

    def led_log(
        self, call: Call, topic: str | None, partition: int, epoch: int = -1
    ) -> tuple[ErrorCode, PartitionLog | None]:
        """The log of a partition that the asked broker leads, or why there is none."""
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID, None
        log = self.log(topic, partition)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        if log.leader != call.request.node_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
        if -1 < epoch < log.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH, None
        if epoch > log.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH, None
        return ErrorCode.NONE, log


Ask = Callable[[str | None, Fields], Fields]
"""What a partition answers: gets its topic and its part of the request."""


def each_partition(
    cluster: MockCluster, call: Call, topics: list[Fields], keys: tuple[str, str], ask: Ask
) -> list[Fields]:
    """The answer topic by topic, partition by partition; what the script refuses is not asked.

    ``keys`` are the response's names for the list of partitions and for their index.
    """
    answers = []
    for item in topics:
        topic = topic_of(item, cluster.topic_name)
        within = next(value for value in item.values() if isinstance(value, list))
        answer: Fields = {key: item[key] for key in ("name", "topic", "topic_id") if key in item}
        answer[keys[0]] = [_partition_answer(call, topic, part, keys[1], ask) for part in within]
        answers.append(answer)
    return answers


def _partition_answer(call: Call, topic: str | None, part: Fields, index_key: str, ask: Ask) -> Fields:
    index = index_of(part)
    refusal = call.refusal(topic or "", index)
    answer: dict[str, Any] = {} if refusal is not None and not refusal.applied else ask(topic, part)
    if refusal is not None:
        answer["error_code"] = refusal.code
    return {**answer, index_key: index}


def named_error(call: Call, name: str, check: Callable[[], ErrorCode]) -> Fields:
    """The answer about one topic: the script's error, else what ``check`` (which does it) returns."""
    refusal = call.refusal(name)
    code = refusal.code if refusal is not None and not refusal.applied else check()
    if refusal is not None:
        code = refusal.code
    return {"name": name, "error_code": code, "error_message": None}
