"""Members of a group against a naive coordinator: in any case, no two members read the same,
commits never go back, and in the end everything was read.

Requests and answers get lost, callers are slow or away, members are killed and new ones come, topics grow,
the clock jumps. Both protocols; the classic one with eager and cooperative members.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from support.hooks.fresh_seeds import try_seeds

from spark_kafka_native.kafka.error_code import ErrorCode as E
from spark_kafka_native.kafka.errors import NetworkError
from spark_kafka_native.kafka.group.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    StickyAssignor,
    SubscribedMember,
)
from spark_kafka_native.kafka.group.classic_membership import ClassicMembership
from spark_kafka_native.kafka.group.consumer_membership import ConsumerMembership
from spark_kafka_native.kafka.group.membership import (
    Ask,
    Change,
    FindPartitions,
    Identity,
    Membership,
    MembershipRules,
)
from spark_kafka_native.kafka.group.progress import Progress
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api import group_membership
from spark_kafka_native.kafka.runtime.retry import Backoff

SEEDS = int(os.environ.get("GROUP_SIMULATION_SEEDS", "100"))
STEPS = 500
SESSION_S = 10.0
REBALANCE_S = 20.0
IDS = {"a": UUID(int=1), "b": UUID(int=2)}


@dataclass
class Known:
    """A member as the coordinator has it."""

    heard: float
    generation: int = 0
    previous: int = -1
    """The epoch before (KIP-848)."""
    awaits: tuple[str, Any] | None = None
    """What it is not answered yet: the API, and the actor."""
    joined: bool = False
    request: Any = None
    assignment: bytes = b""
    holds: set[TopicPartition] = field(default_factory=set)
    topics: frozenset[str] = frozenset()


class ClassicCoordinator:
    def __init__(self, world: World) -> None:
        self.world = world
        self.members: dict[str, Known] = {}
        self.pending: set[str] = set()
        self.state = "Empty"
        self.generation = 0
        self.since = 0.0
        self.ids = itertools.count()
        self.leader = ""

    def ask(self, actor: Actor, request: Any) -> None:
        match request:
            case group_membership.JoinGroupRequest():
                self.join(actor, request)
            case group_membership.SyncGroupRequest():
                self.sync(actor, request)
            case group_membership.HeartbeatRequest():
                actor.answer(group_membership.HeartbeatResponse(error_code=self.heartbeat(request)))
            case group_membership.LeaveGroupRequest():
                for one in request.members:
                    self.remove(one.member_id)
                actor.answer(group_membership.LeaveGroupResponse())

    def join(self, actor: Actor, request: Any) -> None:
        def refuse(code: E, member_id: str) -> None:
            actor.answer(joined(error_code=code, member_id=member_id))

        if not request.member_id:
            member_id = f"m{next(self.ids)}"
            self.pending.add(member_id)
            return refuse(E.MEMBER_ID_REQUIRED, member_id)
        if request.member_id not in self.members | dict.fromkeys(self.pending):
            return refuse(E.UNKNOWN_MEMBER_ID, request.member_id)
        self.pending.discard(request.member_id)
        known = self.members.setdefault(request.member_id, Known(self.world.now))
        known.heard, known.request, known.joined = self.world.now, request, True
        known.awaits = ("join", actor)
        self.rebalance()
        self.complete()
        return None

    def rebalance(self) -> None:
        if self.state != "Preparing":
            self.state, self.since = "Preparing", self.world.now
            for known in self.members.values():
                if known.awaits is not None and known.awaits[0] == "sync":
                    known.awaits[1].answer(synced(error_code=E.REBALANCE_IN_PROGRESS))
                    known.awaits = None

    def complete(self) -> None:
        late = self.world.now - self.since > REBALANCE_S
        if self.state != "Preparing" or not (late or all(one.joined for one in self.members.values())):
            return
        for member_id in [name for name, one in self.members.items() if not one.joined]:
            del self.members[member_id]
        if not self.members:
            self.state = "Empty"
            return
        self.generation += 1
        self.state, self.since = "Completing", self.world.now
        if self.leader not in self.members:
            self.leader = min(self.members)
        common = set.intersection(
            *({one.name for one in known.request.protocols} for known in self.members.values())
        )
        for member_id, known in self.members.items():
            known.generation, known.joined, known.heard = self.generation, False, self.world.now
            known.assignment = b""
            _, actor = known.awaits or ("", None)
            known.awaits = None
            members = [
                group_membership.JoinGroupResponseMember(
                    member_id=name,
                    metadata=next(p.metadata for p in one.request.protocols if p.name == min(common)),
                )
                for name, one in self.members.items()
                if member_id == self.leader
            ]
            assert actor is not None
            actor.answer(
                joined(
                    error_code=E.NONE,
                    generation_id=self.generation,
                    protocol_name=min(common),
                    leader=self.leader,
                    member_id=member_id,
                    members=members,
                )
            )

    def check(self, member_id: str, generation_id: int) -> E:
        if member_id not in self.members:
            return E.UNKNOWN_MEMBER_ID
        return E.NONE if generation_id == self.generation else E.ILLEGAL_GENERATION

    def sync(self, actor: Actor, request: Any) -> None:
        code = self.check(request.member_id, request.generation_id)
        if not code and self.state == "Preparing":
            code = E.REBALANCE_IN_PROGRESS
        if code:
            return actor.answer(synced(error_code=code))
        known = self.members[request.member_id]
        known.heard, known.awaits = self.world.now, ("sync", actor)
        if self.state == "Completing" and request.member_id == self.leader:
            self.state = "Stable"
            for one in request.assignments:
                if one.member_id in self.members:
                    self.members[one.member_id].assignment = one.assignment
        if self.state == "Stable":
            for one in self.members.values():
                if one.awaits is not None:
                    one.awaits[1].answer(synced(error_code=E.NONE, assignment=one.assignment))
                    one.awaits, one.heard = None, self.world.now
        return None

    def heartbeat(self, request: Any) -> E:
        code = self.check(request.member_id, request.generation_id)
        if code:
            return code
        self.members[request.member_id].heard = self.world.now
        return E.REBALANCE_IN_PROGRESS if self.state == "Preparing" else E.NONE

    def remove(self, member_id: str) -> None:
        known = self.members.pop(member_id, None)
        if known is not None:
            if known.awaits is not None:
                known.awaits[1].lose()
            self.rebalance()
            self.complete()

    def commit(self, identity: Identity) -> E:
        code = self.check(identity.member_id, identity.generation_id)
        return E.REBALANCE_IN_PROGRESS if not code and self.state == "Completing" else code

    def tick(self) -> None:
        for member_id, known in list(self.members.items()):
            if known.awaits is None and self.world.now - known.heard > SESSION_S:
                self.remove(member_id)
        self.complete()
        if self.state == "Completing" and self.world.now - self.since > REBALANCE_S:
            for member_id, known in list(self.members.items()):
                if known.awaits is None:
                    self.remove(member_id)

    def grown(self) -> None:
        """Members see for themselves."""


def joined(**fields: Any) -> Any:
    blank = {"generation_id": -1, "protocol_name": None, "leader": "", "members": []}
    return group_membership.JoinGroupResponse(**blank | fields)


def synced(error_code: E, assignment: bytes = b"") -> Any:
    return group_membership.SyncGroupResponse(error_code=error_code, assignment=assignment)


class ConsumerCoordinator:
    def __init__(self, world: World) -> None:
        self.world = world
        self.members: dict[str, Known] = {}
        self.epoch = 0
        self.target: dict[str, list[TopicPartition]] = {}

    def ask(self, actor: Actor, request: Any) -> None:
        actor.answer(self.heartbeat(request))

    def bump(self) -> None:
        self.epoch += 1
        members = [
            SubscribedMember(member_id=name, topics=one.topics, owned=tuple(one.holds), generation_id=1)
            for name, one in self.members.items()
        ]
        self.target = StickyAssignor().assign(members, self.world.counts)

    grown = bump

    def heartbeat(self, request: Any) -> Any:
        def answer(**fields: Any) -> Any:
            blank = {"throttle_time_ms": 0, "heartbeat_interval_ms": 3_000, "member_epoch": 0}
            blank |= {"error_code": E.NONE, "member_id": request.member_id}
            return group_membership.ConsumerGroupHeartbeatResponse(**blank | fields)

        name, epoch = request.member_id, request.member_epoch
        if epoch < 0:
            if self.members.pop(name, None) is not None:
                self.bump()
            return answer(member_epoch=epoch)
        told = request.topic_partitions
        owned = None if told is None else by_name(told)
        if epoch == 0:
            assert owned == set()
            if name not in self.members:
                self.members[name] = Known(self.world.now, topics=frozenset(request.subscribed_topic_names))
                self.bump()
        if name not in self.members:
            return answer(error_code=E.UNKNOWN_MEMBER_ID)
        known = self.members[name]
        has_missed_one = epoch == known.previous and owned is not None and owned <= known.holds
        if epoch != known.generation and not has_missed_one:
            return answer(error_code=E.FENCED_MEMBER_EPOCH)
        known.heard = self.world.now
        if request.subscribed_topic_names is not None:
            topics = frozenset(request.subscribed_topic_names)
            if topics != known.topics:
                known.topics = topics
                self.bump()
        keeps = known.holds & set(self.target[name])
        if known.holds - keeps:  # to be given up, and acknowledged
            if owned is None or not owned <= keeps:
                return answer(member_epoch=known.generation, assignment=assignment(keeps))
            known.holds = keeps
        others = set().union(*(one.holds for other, one in self.members.items() if other != name))
        known.holds = keeps | (set(self.target[name]) - others)
        if known.generation != self.epoch:
            known.previous, known.generation = known.generation, self.epoch
        return answer(member_epoch=known.generation, assignment=assignment(known.holds))

    def commit(self, identity: Identity) -> E:
        known = self.members.get(identity.member_id)
        if known is None:
            return E.UNKNOWN_MEMBER_ID
        return E.NONE if identity.generation_id == known.generation else E.STALE_MEMBER_EPOCH

    def tick(self) -> None:
        # Longer than that of the members, which do not know it.
        gone = [name for name, one in self.members.items() if self.world.now - one.heard > 3 * SESSION_S]
        for name in gone:
            del self.members[name]
        if gone:
            self.bump()


def by_name(partitions: list[Any]) -> set[TopicPartition]:
    topics = {topic_id: topic for topic, topic_id in IDS.items()}
    return {TopicPartition(topics[one.topic_id], index) for one in partitions for index in one.partitions}


def assignment(partitions: set[TopicPartition]) -> Any:
    indexes: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        indexes[topic].append(index)
    return group_membership.Assignment(
        topic_partitions=[
            group_membership.TopicPartitions(topic_id=IDS[topic], partitions=found)
            for topic, found in indexes.items()
        ]
    )


class Actor:
    """A consumer: a member's thread and a caller, which take their steps one at a time."""

    def __init__(self, world: World, membership: Membership) -> None:
        self.world = world
        self.membership = membership
        self.in_flight = False
        self.lost_answer = False
        self.answers: list[Any] = []
        self.change: Change | None = None
        self.positions: dict[TopicPartition, int] = {}
        self.starting: set[TopicPartition] = set()
        self.progress = Progress()
        self.polling = False

    # The member's thread.

    def answer(self, response: Any) -> None:
        if self.lost_answer:
            self.lose()
        else:
            self.answers.append(response)

    def lose(self) -> None:
        self.answers.append(NetworkError("lost"))

    def work(self) -> None:
        now, chance = self.world.now, self.world.chance
        if self.in_flight:
            if self.answers:
                self.in_flight = False
                answer = self.answers.pop(0)
                self.answers.clear()
                if isinstance(answer, NetworkError):
                    self.membership.failed(answer, True, now)
                else:
                    self.membership.answered(answer, now)
            return
        match self.membership.next(now):
            case Ask(request):
                self.in_flight, self.lost_answer = True, False
                fault = chance.random() if self.world.faults else 1.0
                if fault < 0.03:
                    self.lose()
                    return
                self.lost_answer = fault < 0.06
                self.world.coordinator.ask(self, request)
            case FindPartitions():
                self.look()

    def look(self) -> None:
        ids = {topic_id: topic for topic, topic_id in IDS.items()}
        self.membership.found(self.world.counts, ids, self.world.now)

    # The caller.

    def call(self) -> None:
        if self.change is not None:
            self.carry_out()
        elif not self.polling:
            self.membership.poll_begins()
            self.polling = True
            self.commit()  # it is back: what it was given is done
        elif (change := self.membership.begin()) is not None:
            self.change = change
        elif self.starting:
            for tp in self.starting:
                committed = self.world.committed.get(tp)
                self.positions[tp] = committed or 0
                self.progress.begin(tp, committed or 0, committed)
            self.starting.clear()
        else:
            self.read()

    def read(self) -> None:
        ready = [tp for tp, position in self.positions.items() if position < self.world.ends[tp]]
        if ready and self.world.chance.random() < 0.9:
            tp = self.world.chance.choice(ready)
            assert tp in self.membership.owned
            self.world.read[tp].add(self.positions[tp])
            self.positions[tp] += 1
            self.progress.handed_out(tp, self.positions[tp] - 1, self.positions[tp])
        self.polling = False
        self.membership.poll_ends(self.world.now)

    def carry_out(self) -> None:
        change = self.change
        assert change is not None
        if change.revoked:
            self.commit()
        for tp in change.lost | change.revoked:
            self.positions.pop(tp, None)
            self.starting.discard(tp)
        self.progress.drop(change.lost | change.revoked)
        self.starting |= change.assigned
        self.membership.applied(change)
        self.change = None

    def commit(self) -> None:
        identity = None if self.membership.losing else self.membership.identity
        offsets = self.progress.ahead(self.positions)
        if identity is None or not offsets:
            return
        self.progress.check(offsets)
        if not self.world.coordinator.commit(identity):
            for tp, offset in offsets.items():
                before = self.world.committed.get(tp, 0)
                assert offset >= before, f"the commit of {tp} goes back from {before} to {offset}"
                self.world.committed[tp] = offset
            self.progress.committed(offsets, self.progress.places(offsets))

    @property
    def reads(self) -> set[TopicPartition]:
        """What a read could hand out of, were it to come now."""
        membership = self.membership
        return set() if membership.losing else set(self.positions) | self.starting


class World:
    def __init__(self, seed: int, protocol: str) -> None:
        self.chance = random.Random(seed)
        self.protocol = protocol
        self.now = 100.0
        self.faults = True
        self.counts = {"a": 3, "b": 2}
        self.ends: dict[TopicPartition, int] = defaultdict(int)
        self.committed: dict[TopicPartition, int] = {}
        self.read: dict[TopicPartition, set[int]] = defaultdict(set)
        self.actors: list[Actor] = []
        self.coordinator: Any = (
            ConsumerCoordinator(self) if protocol == "consumer" else ClassicCoordinator(self)
        )
        assignors: list[list[Assignor]] = [
            [CooperativeStickyAssignor()],
            [RangeAssignor()],
            [StickyAssignor(), RangeAssignor()],
            [RangeAssignor(), CooperativeStickyAssignor()],
        ]
        self.assignors = self.chance.choice(assignors)
        for _ in range(3):
            self.add()

    def add(self) -> None:
        if len(self.actors) >= 4:
            return
        rules = MembershipRules(
            group_id="g",
            group_instance_id=None,
            session_timeout_s=SESSION_S,
            heartbeat_interval_s=3.0,
            max_poll_interval_s=REBALANCE_S,
            backoff=Backoff(first_ms=100, max_ms=1000),
        )
        membership: Membership
        if self.protocol == "consumer":
            membership = ConsumerMembership(rules, {"a", "b"}, None, self.now)
            membership.member_id = str(
                UUID(int=self.chance.getrandbits(128))
            )  # a seed is the same world each time
        else:
            membership = ClassicMembership(rules, {"a", "b"}, self.assignors, self.now)
        self.actors.append(Actor(self, membership))

    def kill(self) -> None:
        if len(self.actors) > 1:
            self.actors.remove(self.chance.choice(self.actors))

    def leave(self) -> None:
        idle = [actor for actor in self.actors if not actor.in_flight and actor.change is None]
        if len(self.actors) > 1 and idle:
            actor = self.chance.choice(idle)
            self.actors.remove(actor)
            if actor.membership.identity is not None and not actor.membership.losing:
                actor.commit()
            if (request := actor.membership.leaving()) is not None:
                self.coordinator.ask(actor, request)

    def grow(self) -> None:
        if sum(self.counts.values()) < 9:
            self.counts[self.chance.choice("ab")] += 1
            self.coordinator.grown()

    def produce(self) -> None:
        topic = self.chance.choice("ab")
        self.ends[TopicPartition(topic, self.chance.randrange(self.counts[topic]))] += 1

    def subscribe(self) -> None:
        topics = self.chance.choice([{"a", "b"}, {"a"}, {"a", "b"}])
        self.chance.choice(self.actors).membership.subscribe(topics)

    def step(self) -> None:
        self.now += self.chance.random() * self.chance.choice([0.02, 0.3, 0.3, 1.5])
        if self.faults and self.chance.random() < 0.005:
            self.now += self.chance.choice([5, 15, 30])
        self.coordinator.tick()
        actor = self.chance.choice(self.actors)
        actions = [(actor.work, 10), (actor.call, 10), (actor.look, 0.5), (self.produce, 2)]
        if self.faults:
            actions += [(self.kill, 0.1), (self.leave, 0.1), (self.add, 0.3), (self.grow, 0.05)]
            actions += [(self.subscribe, 0.1)]
        self.chance.choices([one for one, _ in actions], [weight for _, weight in actions])[0]()
        self.check()

    def check(self) -> None:
        """Of those that the coordinator counts as members, no two read the same."""
        readers: dict[TopicPartition, str] = {}
        for actor in self.actors:
            if actor.membership.member_id not in self.coordinator.members:
                continue
            for tp in actor.reads:
                assert tp not in readers, f"{tp} is read by {readers[tp]} and {actor.membership!r}"
                readers[tp] = repr(actor.membership)

    def settle(self) -> None:
        self.faults = False
        for actor in self.actors:
            actor.membership.subscribe({"a", "b"})
        everything = {TopicPartition(topic, n) for topic, count in self.counts.items() for n in range(count)}
        for turn in range(4000):
            self.now += 0.05
            self.coordinator.tick()
            for actor in self.actors:
                if turn % 100 == 0:
                    actor.look()
                actor.work()
                actor.call()
            self.check()
            owned = [tp for actor in self.actors for tp in actor.positions]
            done = all(self.committed.get(tp, 0) == end for tp, end in self.ends.items())
            if done and sorted(owned) == sorted(everything):
                return
        raise AssertionError(f"it does not come to rest: {[actor.membership for actor in self.actors]}")


def check(seed: int, protocol: str) -> None:
    world = World(seed, protocol)
    for _ in range(STEPS):
        world.step()
    world.settle()
    for tp, end in world.ends.items():
        assert world.read[tp] == set(range(end)), f"not everything of {tp} was read"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("part", range(2))
def test_whatever_happens_everything_is_read_by_one_at_a_time(part: int, protocol: str) -> None:
    known = range(part, SEEDS, 2)
    try_seeds(lambda seed: check(seed, protocol), f"{protocol} group {part}", known)
