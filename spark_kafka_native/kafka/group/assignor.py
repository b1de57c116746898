"""`Assignor`: who reads which partition, decided by the leader of a classic group. Pure.

Any member may become the leader, whatever client it is, and the others only obey: what has to agree between
clients is an assignor's name and what members tell the leader for it, not the result to the partition.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..model import TopicPartition

Assignments = dict[str, list[TopicPartition]]
"""By member id, the partitions of each; every member is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribedMember:
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None = None
    topics: frozenset[str]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    """What it holds on to while it joins; empty with eager assignors."""
    generation_id: int = -1
    """The generation in which it got that; -1 where it does not say."""

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first, by instance id: it outlives a restart, which the member id does not."""
        if self.group_instance_id is not None:
            return (False, self.group_instance_id)
        return (True, self.member_id)


class Assignor(Protocol):
    """A ``partition.assignment.strategy``."""

    name: str
    """By which members of all clients know it."""
    cooperative: bool
    """Whether members keep their partitions while they join (KIP-429)."""

    def user_data(self, owned: Collection[TopicPartition], generation_id: int, /) -> bytes | None:
        """What a member that has last been assigned ``owned`` tells the leader."""

    def assign(
        self, members: Collection[SubscribedMember], partition_counts: Mapping[str, int]
    ) -> Assignments:
        """Give each partition to one member that is subscribed to its topic.

        ``partition_counts`` has the topics that exist. With a cooperative assignor, a partition that another
        member still owns goes to nobody: its owner gives it up, joins again, and then it is assigned.
        """


class RangeAssignor:
    """Of each topic, adjacent partitions for each member; the first members get one more.

    Topics with as many partitions are assigned alike, so that one member reads the same keys of both.
    """

    name = "range"
    cooperative = False

    def user_data(self, _owned: Collection[TopicPartition], _generation_id: int) -> bytes | None:
        """As `Assignor.user_data`: nothing."""
        return None

    def assign(
        self, members: Collection[SubscribedMember], partition_counts: Mapping[str, int]
    ) -> Assignments:
        """As `Assignor.assign`."""
        assigned: Assignments = {member.member_id: [] for member in members}
        for topic, subscribed in _subscribers(members, partition_counts).items():
            each, more = divmod(partition_counts[topic], len(subscribed))
            start = 0
            for place, member in enumerate(subscribed):
                end = start + each + (place < more)
                assigned[member.member_id] += [TopicPartition(topic, index) for index in range(start, end)]
                start = end
        return assigned


class RoundRobinAssignor:
    """All partitions of all topics in turn, one for each member that is subscribed to the topic."""

    name = "roundrobin"
    cooperative = False

    def user_data(self, _owned: Collection[TopicPartition], _generation_id: int) -> bytes | None:
        """As `Assignor.user_data`: nothing."""
        return None

    def assign(
        self, members: Collection[SubscribedMember], partition_counts: Mapping[str, int]
    ) -> Assignments:
        """As `Assignor.assign`."""
        assigned: Assignments = {member.member_id: [] for member in members}
        turns = itertools.cycle(sorted(members, key=lambda member: member.order))
        subscribed = _subscribers(members, partition_counts)
        for tp in all_partitions(subscribed, partition_counts):
            member = next(member for member in turns if tp.topic in member.topics)
            assigned[member.member_id].append(tp)
        return assigned


def all_partitions(topics: Iterable[str], partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    """Every partition of those of ``topics`` that exist, by topic and index."""
    return [
        TopicPartition(topic, index)
        for topic in sorted(topics)
        for index in range(partition_counts.get(topic, 0))
    ]


def _subscribers(
    members: Collection[SubscribedMember], partition_counts: Mapping[str, int]
) -> dict[str, list[SubscribedMember]]:
    """By topic that exists, its members in their order."""
    found: dict[str, list[SubscribedMember]] = defaultdict(list)
    for member in sorted(members, key=lambda member: member.order):
        for topic in member.topics & partition_counts.keys():
            found[topic].append(member)
    return dict(sorted(found.items()))
