"""In every group, each partition has one reader, as evenly as can be, and few of them move."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import pytest
from support.hooks.fresh_seeds import try_seeds

from spark_kafka_native.kafka.group.assignors import (
    Assignments,
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    StickyAssignorUserData,
    SubscribedMember,
    by_topic,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.message_codec import codec

SEEDS = (*range(200), 2_674_857_821)  # the last one takes three rounds
TOPICS = ("a", "b", "c", "d")


def any_group(chance: random.Random, alike: bool) -> tuple[list[SubscribedMember], dict[str, int]]:
    counts = {topic: chance.choice((0, 1, 2, 5, 9)) for topic in TOPICS if chance.random() < 0.9}
    common = frozenset(chance.sample(TOPICS, chance.randint(1, 4)))
    members = [
        SubscribedMember(
            member_id=f"m{number}",
            group_instance_id=f"i{number}" if chance.random() < 0.3 else None,
            topics=common if alike else frozenset(chance.sample(TOPICS, chance.randint(1, 4))),
        )
        for number in range(chance.randint(1, 6))
    ]
    return members, counts


def owners(assigned: Assignments) -> dict[TopicPartition, str]:
    found = [(tp, member_id) for member_id, partitions in assigned.items() for tp in partitions]
    assert len(found) == len(dict(found)), "a partition is assigned twice"
    return dict(found)


def readable(members: Collection[SubscribedMember], counts: Mapping[str, int]) -> set[TopicPartition]:
    topics = set().union(*(member.topics for member in members))
    return {TopicPartition(topic, index) for topic in topics for index in range(counts.get(topic, 0))}


def check(assigned: Assignments, members: Collection[SubscribedMember], counts: Mapping[str, int]) -> None:
    topics = {member.member_id: member.topics for member in members}
    found = owners(assigned)
    assert set(found) == readable(members, counts)
    assert all(tp.topic in topics[member_id] for tp, member_id in found.items())
    assert set(assigned) == set(topics)


def test_static_members_come_first() -> None:
    """Else a member that joins would move their partitions, by its name."""
    static = SubscribedMember(member_id="b", group_instance_id="z", topics=frozenset("a"))
    dynamic = SubscribedMember(member_id="a", topics=frozenset("a"))
    for assignor in (RangeAssignor(), RoundRobinAssignor()):
        found = assignor.assign([dynamic, static], {"a": 2})
        assert found == {"b": [TopicPartition("a", 0)], "a": [TopicPartition("a", 1)]}


def settled(
    assignor: Assignor, members: Collection[SubscribedMember], counts: Mapping[str, int]
) -> Iterator[Assignments]:
    """The assignments of a cooperative group until no member has to give anything up."""
    for generation_id in range(10, 20):
        assigned = assignor.assign(members, counts)
        yield assigned
        if all(set(member.owned) <= set(assigned[member.member_id]) for member in members):
            return
        members = [
            replace(member, owned=tuple(assigned[member.member_id]), generation_id=generation_id)
            for member in members
        ]
    raise AssertionError("it does not come to rest")


def having(
    assignor: Assignor, members: Collection[SubscribedMember], assigned: Assignments, generation_id: int
) -> list[SubscribedMember]:
    """The members as they join again with what they were assigned."""
    return [
        replace(
            member,
            owned=tuple(assigned.get(member.member_id, ())) if assignor.cooperative else (),
            user_data=assignor.user_data(assigned.get(member.member_id, ()), generation_id)
            if member.member_id in assigned
            else None,
            generation_id=generation_id if member.member_id in assigned else -1,
        )
        for member in members
    ]


@pytest.mark.parametrize("assignor", [RangeAssignor(), RoundRobinAssignor()], ids=lambda one: one.name)
def test_every_partition_has_one_reader(assignor: Assignor) -> None:
    def check_one(seed: int) -> None:
        members, counts = any_group(random.Random(seed), alike=seed % 2 == 0)
        assigned = assignor.assign(members, counts)
        check(assigned, members, counts)
        if seed % 2 == 0 and assignor.name == "roundrobin":
            sizes = [len(partitions) for partitions in assigned.values()]
            assert max(sizes) - min(sizes) <= 1

    try_seeds(check_one, f"assignor {assignor.name}", SEEDS)


def could_be_evened_out(assigned: Assignments, members: Collection[SubscribedMember]) -> bool:
    """True if a partition could go from one member to another, through others, and make them more even."""
    topics = {member.member_id: member.topics for member in members}
    for start in assigned:
        reached, todo = {start}, [start]
        while todo:
            giver = todo.pop()
            gives = {tp.topic for tp in assigned[giver]}
            for taker in assigned.keys() - reached:
                if gives & topics[taker]:
                    if len(assigned[taker]) <= len(assigned[start]) - 2:
                        return True
                    reached.add(taker)
                    todo.append(taker)
    return False


@pytest.mark.parametrize(
    "assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=lambda one: one.name
)
def test_sticky_ones_are_even_and_move_little(assignor: Assignor) -> None:
    try_seeds(lambda seed: check_sticky(assignor, seed), f"assignor {assignor.name}", SEEDS)


def check_sticky(assignor: Assignor, seed: int) -> None:
    chance = random.Random(seed)
    alike = seed % 2 == 0
    members, counts = any_group(chance, alike)
    first = assignor.assign(members, counts)
    check(first, members, counts)
    assert not could_be_evened_out(first, members)
    assert assignor.assign(having(assignor, members, first, 3), counts) == first

    # Members come and go, topics grow.
    left = [member for member in members if chance.random() < 0.8]
    new = SubscribedMember(member_id="new", topics=members[0].topics)
    after = [*left, *([new] if chance.random() < 0.6 or not left else [])]
    if chance.random() < 0.3:
        counts = {topic: count + chance.choice((0, 1, 4)) for topic, count in counts.items()}
    again = having(assignor, after, first, 3)
    *between, second = settled(assignor, again, counts)
    check(second, after, counts)
    assert not could_be_evened_out(second, after)
    holders = {tp: member.member_id for member in again for tp in member.owned}
    for assigned in between:
        for tp, member_id in owners(assigned).items():
            assert holders.get(tp, member_id) == member_id, "assigned before its owner has given it up"
        holders = owners(assigned)

    if alike:  # the fewest moves can be counted: everybody keeps up to its share
        total = len(readable(after, counts))
        share, more = divmod(total, len(after))
        had = Counter(m for m in owners(first).values() if m in {member.member_id for member in after})
        keeps = sorted((had[member.member_id] for member in after), reverse=True)
        possible = sum(min(had_, share + (place < more)) for place, had_ in enumerate(keeps))
        kept = sum(owners(first).get(tp) == member_id for tp, member_id in owners(second).items())
        assert kept == possible


def test_an_owner_comes_before_who_has_an_outdated_claim() -> None:
    tp = TopicPartition("a", 0)
    other = TopicPartition("a", 1)
    topics = frozenset(["a"])
    owner = SubscribedMember(member_id="z", topics=topics, owned=(tp, other), generation_id=7)
    outdated = SubscribedMember(member_id="a", topics=topics, owned=(tp, other), generation_id=5)
    # The balance wants one of them at "a", which says that it has both: but "z" has not given it up yet.
    assigned = CooperativeStickyAssignor().assign([owner, outdated], {"a": 2})
    assert assigned["a"] == []
    assert len(assigned["z"]) == 1


@pytest.mark.parametrize(
    "assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=lambda one: one.name
)
@pytest.mark.parametrize("generation_id", [-2, -3, -(1 << 31)])
def test_a_generation_below_all_claims_nothing(assignor: Assignor, generation_id: int) -> None:
    tp = TopicPartition("a", 0)
    said = StickyAssignorUserData(previous_assignment=by_topic([tp]), generation=generation_id)
    sticky = b"".join(codec(StickyAssignorUserData, 1).write(said))
    user_data = generation_id.to_bytes(4, "big", signed=True) if assignor.cooperative else sticky
    members = [
        SubscribedMember(member_id=name, topics=frozenset(["a"]), owned=(tp,), user_data=user_data)
        for name in "xy"
    ]
    found = assignor.assign(members, {"a": 1})
    # Both members of a cooperative group say that they have it: first they give it up.
    assert sorted(found.values()) == [[], [] if assignor.cooperative else [tp]]


@pytest.mark.parametrize(
    "assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=lambda one: one.name
)
def test_of_two_claims_in_one_generation_neither_counts(assignor: Assignor) -> None:
    tp = TopicPartition("a", 0)
    claims = [
        SubscribedMember(
            member_id=name,
            topics=frozenset(["a"]),
            owned=(tp,),
            generation_id=5,
            user_data=assignor.user_data([tp], 5),
        )
        for name in ("x", "y")
    ]
    found = owners(assignor.assign(claims, {"a": 1}))
    assert set(found) == (set() if assignor.cooperative else {tp})


@pytest.mark.parametrize(
    "assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=lambda one: one.name
)
def test_of_two_claims_the_one_of_the_later_generation_counts(assignor: Assignor) -> None:
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    claims = [
        SubscribedMember(
            member_id=name,
            topics=frozenset(["a"]),
            owned=(first,) if assignor.cooperative else (),
            user_data=assignor.user_data([first], generation_id),
        )
        for name, generation_id in (("x", 5), ("y", 7))
    ]
    assert assignor.assign(claims, {"a": 2}) == {"x": [second], "y": [first]}


Placed = dict[str, str]
"""By member, its partitions: ``a0 b1``."""


@pytest.mark.parametrize(
    "assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=lambda one: one.name
)
@pytest.mark.parametrize(
    ("topics", "counts", "had", "expected"),
    [
        pytest.param(
            {"x": "a", "y": "ab"},
            {"a": 2, "b": 1},
            {"x": "a0 b0", "y": "a1"},
            {"x": "a0", "y": "a1 b0"},
            id="not subscribed any more",
        ),
        pytest.param(
            {"x": "a", "y": "a"},
            {"a": 2},
            {"x": "a0 a2", "y": "a1 a3"},
            {"x": "a0", "y": "a1"},
            id="the topic has fewer partitions",
        ),
        pytest.param(
            {"x": "abc", "y": "a", "new": "abc"},
            {"a": 1, "b": 3, "c": 2},
            {"x": "b2 c0 c1", "y": "a0"},
            {"x": "b2 c0 c1", "y": "a0", "new": "b0 b1"},
            id="more than the average, as others may not have it",
        ),
        pytest.param(
            {"x": "ac", "y": "abc", "new": "ac"},
            {"a": 1, "b": 1, "c": 3},
            {"x": "a0 c1", "y": "c0 c2"},
            {"x": "a0 c1", "y": "b0 c0", "new": "c2"},
            id="the largest one gives first",
        ),
    ],
)
def test_members_keep_all_that_they_may(
    assignor: Assignor, topics: dict[str, str], counts: dict[str, int], had: Placed, expected: Placed
) -> None:
    """The seeds above count moves only where all subscriptions are equal, and no claim there is void."""
    members = [SubscribedMember(member_id=name, topics=frozenset(its)) for name, its in topics.items()]
    again = having(assignor, members, {name: placed(partitions) for name, partitions in had.items()}, 3)
    *_, found = settled(assignor, again, counts)
    assert found == {name: placed(partitions) for name, partitions in expected.items()}


def placed(partitions: str) -> list[TopicPartition]:
    return [TopicPartition(one[0], int(one[1:])) for one in partitions.split()]


def test_a_thousand_partitions_and_a_hundred_members_take_no_time() -> None:
    counts = dict.fromkeys(TOPICS, 250)
    chance = random.Random(1)
    members = [
        SubscribedMember(member_id=f"m{number}", topics=frozenset(chance.sample(TOPICS, 1 + number % 4)))
        for number in range(100)
    ]
    assigned = StickyAssignor().assign(members, counts)
    check(assigned, members, counts)
