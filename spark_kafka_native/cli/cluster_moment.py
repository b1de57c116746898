"""A look at a cluster, for ``top`` and ``exporter``: the ends of its topics, the offsets of its groups."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..kafka.errors import AuthenticationError, BrokerError, KafkaError
from ..kafka.model import OffsetAt, TopicPartition
from ..spark.write.commit_markers import is_marker

if TYPE_CHECKING:
    from ..kafka.admin.admin import Admin
    from ..kafka.admin.groups import GroupListing
    from ..kafka.cluster.metadata import Topic

_LEAST_S = 0.2
"""For the answers about a group, however many others of its coordinator have not answered."""


@dataclass
class ClusterMoment:
    """The state of the cluster at one time."""

    at: float
    """The start of the look; rates count from the time at which a number was read."""
    ends_at: float = 0.0
    brokers: int = 0
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    groups: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    committed_at: dict[str, float] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    """Groups that may not be described, and those of type ``streams``, have none."""
    problems: list[str] = field(default_factory=list)

    def note(self, errors: Iterable[KafkaError]) -> None:
        """Add ``errors`` to the problems. Raises an `AuthenticationError`."""
        for error in errors:
            if isinstance(error, AuthenticationError):
                raise error
            self.problems.append(str(error))


def look_at_cluster(admin: Admin, names: list[str]) -> ClusterMoment:
    """Look at these topics, or at all that are not internal, and at the groups that read them. What a part of
    the cluster does not answer is among the ``problems``. Raises `KafkaError` if no topic can be seen, or no
    broker lists its groups, and `AuthenticationError` for any broker: the next look would log in again.
    """
    from ..kafka.cluster.offsets import MISSING_MS, try_offsets
    from ..kafka.model import IsolationLevel

    moment = ClusterMoment(at=time.monotonic())
    topics, problems = _look_at_topics(admin, names)
    moment.problems += problems
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
    moment.ends_at = time.monotonic()  # one leader may answer seconds later than the others
    # One attempt: another view follows soon.
    ends, failed = try_offsets(admin.router, latest, IsolationLevel.READ_UNCOMMITTED, limit)
    moment.note(failed.values())
    moment.brokers = len(admin.router.snapshot.brokers)
    moment.ends = {tp: found.offset or 0 for tp, found in ends.items()}
    _look_at_groups(admin, moment, only_these=bool(names))
    return moment


def _look_at_topics(admin: Admin, names: list[str]) -> tuple[dict[str, Topic], list[str]]:
    """These topics, and why others are not among them. Raises `KafkaError` if none is there."""
    if not names:
        return admin.describe_topics(), []
    metadata = admin.router.metadata(dict.fromkeys(names), refresh=True)
    topics: dict[str, Topic] = {}
    refused: list[BrokerError] = []
    for name in names:
        try:
            topics[name] = metadata.topic(name)
        except BrokerError as error:
            refused.append(error)
    if refused and not topics:
        raise refused[0]
    return topics, [str(error) for error in refused]


def _look_at_groups(admin: Admin, moment: ClusterMoment, *, only_these: bool) -> None:
    from ..kafka.admin.groups import list_groups_of_each_broker
    from ..kafka.cluster.coordinators import find_coordinators
    from ..kafka.cluster.offsets import MISSING_MS
    from ..kafka.cluster.router import CoordinatorKey

    listed, unheard = list_groups_of_each_broker(admin.router, admin.router.deadline())
    moment.note(unheard.values())
    groups = {
        CoordinatorKey.group(group.group_id): group
        for group in listed
        if group.type != "share"  # these commit no offsets
    }
    find_coordinators(admin.router, list(groups), admin.router.deadline(MISSING_MS))
    # Of each coordinator, for all of its groups: those of others must not wait for them.
    patience_s: dict[int | None, float] = defaultdict(lambda: MISSING_MS / 1000)
    for key, group in groups.items():
        coordinator, asked_at = admin.router.coordinators.get(key), time.monotonic()
        try:
            _look_at_group(admin, group, moment, only_these, max(_LEAST_S, patience_s[coordinator]))
        except KafkaError as error:  # a group without permission, or just deleted
            moment.note([error])
            patience_s[coordinator] -= time.monotonic() - asked_at


def _look_at_group(
    admin: Admin, group: GroupListing, moment: ClusterMoment, only_these: bool, timeout_s: float
) -> None:
    name = group.group_id
    offsets, read_at = admin.group_offsets(name, timeout_s), time.monotonic()
    read = {tp: one.offset for tp, one in offsets.items() if not is_marker(one)}
    committed = {tp: offset for tp, offset in read.items() if tp in moment.ends}
    if (only_these and not committed) or (offsets and not read):  # markers have no lag
        return
    moment.groups[name], moment.states[name] = committed, group.state
    moment.committed_at[name] = read_at
    if group.state == "Empty":
        moment.members[name] = 0
    elif group.type != "streams":  # described by another request
        moment.members[name] = len(admin.describe_groups([name], timeout_s)[name].members)
