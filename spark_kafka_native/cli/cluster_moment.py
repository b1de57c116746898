"""A look at a cluster, for ``top`` and ``exporter``: the ends of its topics, the offsets of its groups."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..kafka.errors import KafkaError
from ..kafka.model import OffsetAt, TopicPartition

if TYPE_CHECKING:
    from ..kafka.admin.admin import Admin


@dataclass
class ClusterMoment:
    """The state of the cluster at one time."""

    at: float
    brokers: int = 0
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    groups: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def look_at_cluster(admin: Admin, names: list[str]) -> ClusterMoment:
    """Look at these topics, or at all that are not internal, and at the groups that read them. What a part of
    the cluster does not answer is among the ``problems``. Raises `KafkaError` if nothing can be seen.
    """
    from ..kafka.cluster.offsets import MISSING_MS, try_offsets
    from ..kafka.model import IsolationLevel

    moment = ClusterMoment(at=time.monotonic())
    topics = admin.describe_topics(names or None)
    partitions = [
        TopicPartition(name, one.partition)
        for name, topic in topics.items()
        if not topic.internal and not topic.error_code
        for one in topic.partitions.values()
    ]
    moment.problems += [
        f"{name}: {topic.error_code.name}" for name, topic in topics.items() if topic.error_code
    ]
    latest, limit = dict.fromkeys(partitions, OffsetAt.LATEST), admin.router.deadline(MISSING_MS)
    # One attempt: another view follows soon.
    ends, failed = try_offsets(admin.router, latest, IsolationLevel.READ_UNCOMMITTED, limit)
    moment.problems += [str(error) for error in failed.values()]
    moment.brokers = len(admin.router.snapshot.brokers)
    moment.ends = {tp: found.offset or 0 for tp, found in ends.items()}
    for group in admin.list_groups():
        if group.type in ("share", "streams"):
            continue
        try:
            _look_at_group(admin, group.group_id, group.state, moment, bool(names))
        except KafkaError as error:  # a group without permission, or just deleted
            moment.problems.append(str(error))
    return moment


def _look_at_group(admin: Admin, name: str, state: str, moment: ClusterMoment, only_these: bool) -> None:
    committed = {tp: one.offset for tp, one in admin.group_offsets(name).items() if tp in moment.ends}
    if only_these and not committed:
        return
    moment.groups[name], moment.states[name] = committed, state
    moment.members[name] = 0 if state == "Empty" else len(admin.describe_groups([name])[name].members)
