"""`Assignor` and its four implementations: the leader of a classic group assigns partitions to members. Pure.

Any member may become the leader, whichever client it uses, and the others accept its assignment. Clients have
to agree on the name of an assignor and on the user data that members send for it, not on the result for each
partition.

The sticky ones (KIP-54, KIP-429) balance first: no member could take a partition from one that has two more,
not even through others. Then a partition stays with the member that has it.
"""

from __future__ import annotations

import itertools
import struct
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..errors import ProtocolError
from ..model import TopicPartition
from ..protocol.consumer_protocol import ProtocolTopicPartitions
from ..protocol.message import Data, field
from ..protocol.message_codec import codec
from ..protocol.wire import Int32

Assignments = dict[str, list[TopicPartition]]
"""By member id, the partitions of each; every member is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribedMember:
    """A member as it describes itself to the leader."""

    member_id: str
    group_instance_id: str | None = None
    topics: frozenset[str]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    """The partitions that it keeps while it joins; empty with eager assignors."""
    generation_id: int = -1
    """The generation in which it got them; -1 if it does not say."""

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first, by instance id: it survives a restart, which the member id does not."""
        if self.group_instance_id is not None:
            return (False, self.group_instance_id)
        return (True, self.member_id)


class Assignor(Protocol):
    """A ``partition.assignment.strategy``."""

    name: str
    """The name by which members of all clients refer to it."""
    cooperative: bool
    """True if members keep their partitions while they join (KIP-429)."""

    def user_data(self, owned: Collection[TopicPartition], generation_id: int, /) -> bytes | None:
        """The user data in the subscription of a member with the last assignment ``owned``."""

    def assign(
        self, members: Collection[SubscribedMember], partition_counts: Mapping[str, int]
    ) -> Assignments:
        """Give each partition to one member that is subscribed to its topic.

        ``partition_counts`` contains the topics that exist. A cooperative assignor leaves out a partition
        that another member still owns: its owner gives it up and joins again, and then it is assigned.
        """


class RangeAssignor:
    """Of each topic, adjacent partitions for each member; the first members get one more.

    Topics with the same number of partitions are assigned alike, so that one member reads the same keys of
    both.
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
    """For each existing topic, its subscribers in their order."""
    found: dict[str, list[SubscribedMember]] = defaultdict(list)
    for member in sorted(members, key=lambda member: member.order):
        for topic in member.topics & partition_counts.keys():
            found[topic].append(member)
    return dict(sorted(found.items()))


_GENERATION = struct.Struct(">i")


class StickyAssignorUserData(Data, versions=(0, 1)):
    """The last assignment of a member, for the leader; version 0 lacks the generation. Not from a message
    spec: the structure is defined in Java's StickyAssignor, and is sent without its version.
    """

    previous_assignment: list[ProtocolTopicPartitions]
    generation: Int32 = field(since=1, default=-1)


class _Claim(NamedTuple):
    generation_id: int
    partitions: tuple[TopicPartition, ...]


class StickyAssignor:
    """Sticky and eager: members give everything up before they join, and get most of it back."""

    name = "sticky"
    cooperative = False

    def user_data(self, owned: Collection[TopicPartition], generation_id: int) -> bytes | None:
        """As `Assignor.user_data`: the last assignment and its generation."""
        if generation_id < 0:
            return None
        told = StickyAssignorUserData(previous_assignment=by_topic(owned), generation=generation_id)
        return b"".join(codec(StickyAssignorUserData, 1).write(told))

    def assign(
        self, members: Collection[SubscribedMember], partition_counts: Mapping[str, int]
    ) -> Assignments:
        """As `Assignor.assign`."""
        return _planned(members, partition_counts, {m.member_id: _told(m) for m in members}).result()


class CooperativeStickyAssignor:
    """Sticky and cooperative: members continue to read the partitions they keep while the group
    rebalances.
    """

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, owned: Collection[TopicPartition], generation_id: int) -> bytes | None:
        """As `Assignor.user_data`: the generation, for which older subscriptions lack a field."""
        del owned
        return _GENERATION.pack(generation_id)

    def assign(
        self, members: Collection[SubscribedMember], partition_counts: Mapping[str, int]
    ) -> Assignments:
        """As `Assignor.assign`: leaves out partitions that another member has to give up first."""
        claims = {m.member_id: _Claim(_generation_of(m), m.owned) for m in members}
        plan = _planned(members, partition_counts, claims)
        holders: dict[TopicPartition, set[str]] = defaultdict(set)
        for member in members:
            for tp in member.owned:
                holders[tp].add(member.member_id)
        # A member with an outdated claim may not get a partition before its owner gives it up.
        return {
            member_id: [tp for tp in partitions if holders[tp] <= {member_id} or plan.had(tp) == member_id]
            for member_id, partitions in plan.result().items()
        }


def by_topic(partitions: Iterable[TopicPartition]) -> list[ProtocolTopicPartitions]:
    """The partitions in the form of the consumer protocol."""
    indexes: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        indexes[topic].append(index)
    return [ProtocolTopicPartitions(topic=topic, partitions=found) for topic, found in indexes.items()]


def from_topics(topics: Iterable[ProtocolTopicPartitions]) -> tuple[TopicPartition, ...]:
    """The reverse of `by_topic`."""
    return tuple(TopicPartition(one.topic, index) for one in topics for index in one.partitions)


def _planned(
    members: Collection[SubscribedMember],
    partition_counts: Mapping[str, int],
    claims: Mapping[str, _Claim],
) -> _Plan:
    """The balanced assignment that keeps as many of the claimed partitions as possible."""
    plan = _Plan(members, partition_counts)
    plan.keep(claims)
    plan.shed()
    plan.fill()
    plan.even_out()
    return plan


class _Plan:
    """An assignment under construction."""

    def __init__(self, members: Collection[SubscribedMember], partition_counts: Mapping[str, int]) -> None:
        ordered = sorted(members, key=lambda member: member.order)
        self._rank = {member.member_id: rank for rank, member in enumerate(ordered)}
        self._topics = {m.member_id: frozenset(m.topics & partition_counts.keys()) for m in ordered}
        self._subscribers: dict[str, list[str]] = defaultdict(list)
        for member_id, topics in self._topics.items():
            for topic in topics:
                self._subscribers[topic].append(member_id)
        self._partitions = all_partitions(self._subscribers, partition_counts)
        self._had: dict[TopicPartition, str] = {}
        self._owned: dict[str, dict[str, set[int]]] = {m: defaultdict(set) for m in self._rank}
        self._size = dict.fromkeys(self._rank, 0)

    def keep(self, claims: Mapping[str, _Claim]) -> None:
        """Every member keeps its partitions. If two claim one, the later generation gets it, and neither if
        the generations are equal.
        """
        known = set(self._partitions)
        best: dict[TopicPartition, int] = {}
        for member_id in self._rank:
            generation_id, partitions = claims[member_id]
            for tp in dict.fromkeys(partitions):
                if tp not in known or tp.topic not in self._topics[member_id]:
                    continue
                if generation_id > best.get(tp, -2):
                    best[tp], self._had[tp] = generation_id, member_id
                elif generation_id == best.get(tp):  # below -2 stands for no claim at all
                    self._had.pop(tp, None)
        for tp, member_id in self._had.items():
            self._give(member_id, tp)

    def shed(self) -> None:
        """If all subscriptions are equal, no member keeps more than its share."""
        if len(set(self._topics.values())) > 1 or not self._rank:
            return
        share, more = divmod(len(self._partitions), len(self._rank))
        largest_first = sorted(self._rank, key=lambda m: (-self._size[m], self._rank[m]))
        for place, member_id in enumerate(largest_first):
            surplus = self._size[member_id] - share - (place < more)
            for tp in self._listed(member_id)[::-1][: max(0, surplus)]:
                self._take(member_id, tp)

    def fill(self) -> None:
        """Unassigned partitions go to the member with the fewest, partitions with the fewest subscribers
        first.
        """
        given = {tp for member_id in self._rank for tp in self._listed(member_id)}
        left = [tp for tp in self._partitions if tp not in given]
        for tp in sorted(left, key=lambda tp: (len(self._subscribers[tp.topic]), tp)):
            fewest = min(self._subscribers[tp.topic], key=lambda m: (self._size[m], self._rank[m]))
            self._give(fewest, tp)

    def even_out(self) -> None:
        """Move partitions, through other members if needed, until no member has two more than one that could
        take one of them. Each round brings a member closer to the others, so the loop ends.
        """
        while any(
            self._relieve(member_id)
            for member_id in sorted(self._rank, key=lambda m: (-self._size[m], self._rank[m]))
        ):
            pass

    def had(self, topic_partition: TopicPartition) -> str | None:
        """The member with the valid claim to a partition."""
        return self._had.get(topic_partition)

    def result(self) -> Assignments:
        """The assignment."""
        return {member_id: self._listed(member_id) for member_id in self._rank}

    def _relieve(self, member_id: str) -> bool:
        """Move one partition away from ``member_id`` along the shortest path to a member with two fewer."""
        came_from: dict[str, tuple[str, str]] = {member_id: ("", "")}
        queue = deque([member_id])
        seen_topics: set[str] = set()
        while queue:
            giver = queue.popleft()
            for topic in sorted(t for t, indexes in self._owned[giver].items() if indexes):
                if topic in seen_topics:
                    continue
                seen_topics.add(topic)
                for taker in sorted(self._subscribers[topic], key=lambda m: (self._size[m], self._rank[m])):
                    if taker in came_from:
                        continue
                    came_from[taker] = (giver, topic)
                    if self._size[taker] <= self._size[member_id] - 2:
                        self._shift(taker, came_from)
                        return True
                    queue.append(taker)
        return False

    def _shift(self, taker: str, came_from: Mapping[str, tuple[str, str]]) -> None:
        while (step := came_from[taker])[0]:
            giver, topic = step
            # A partition that is new for the giver, or that the taker had before, moves without a cost.
            moved = min(
                (TopicPartition(topic, index) for index in self._owned[giver][topic]),
                key=lambda tp: (self._had.get(tp) != taker, self._had.get(tp) == giver, -tp.partition),
            )
            self._take(giver, moved)
            self._give(taker, moved)
            taker = giver

    def _give(self, member_id: str, tp: TopicPartition) -> None:
        self._owned[member_id][tp.topic].add(tp.partition)
        self._size[member_id] += 1

    def _take(self, member_id: str, tp: TopicPartition) -> None:
        self._owned[member_id][tp.topic].remove(tp.partition)
        self._size[member_id] -= 1

    def _listed(self, member_id: str) -> list[TopicPartition]:
        return sorted(
            TopicPartition(t, index) for t, found in self._owned[member_id].items() for index in found
        )


def _told(member: SubscribedMember) -> _Claim:
    """The last assignment of a member of an eager group. User data that cannot be read counts as none: it
    only causes more moves.
    """
    if not member.user_data:
        return _Claim(-1, member.owned)
    for version in (1, 0):
        try:
            told, _ = codec(StickyAssignorUserData, version).read_start(memoryview(member.user_data))
        except ProtocolError:
            continue
        return _Claim(told.generation, from_topics(told.previous_assignment))
    return _Claim(-1, ())


def _generation_of(member: SubscribedMember) -> int:
    if member.generation_id >= 0 or member.user_data is None:
        return member.generation_id
    if len(member.user_data) == _GENERATION.size:
        return int(_GENERATION.unpack(member.user_data)[0])
    return _told(member).generation_id
