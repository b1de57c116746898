"""Java's members and ours understand each other: the same words, and of simple assignors the same results."""

from __future__ import annotations

import random
from typing import Any

import pytest

from spark_kafka_native.kafka.group.assignors import (
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    StickyAssignorUserData,
    SubscribedMember,
    by_topic,
    from_topics,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    read_versioned,
    write_versioned,
)
from spark_kafka_native.kafka.protocol.message_codec import codec
from spark_kafka_native.testing.java import run_java

JAVA = """
import java.io.*;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.clients.consumer.internals.*;
import org.apache.kafka.common.TopicPartition;

public class Assign {
    static String hex(ByteBuffer bytes) {
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        return HexFormat.of().formatHex(copy);
    }

    static ByteBuffer unhex(String text) { return ByteBuffer.wrap(HexFormat.of().parseHex(text)); }

    // name | topic=count,... | member/instance/subscription in hex ...
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\\\\|", -1);
            AbstractPartitionAssignor assignor = switch (parts[0]) {
                case "range" -> new RangeAssignor();
                case "roundrobin" -> new RoundRobinAssignor();
                case "sticky" -> new StickyAssignor();
                default -> new CooperativeStickyAssignor();
            };
            Map<String, Integer> counts = new HashMap<>();
            for (String one : parts[1].split(","))
                if (!one.isEmpty()) counts.put(one.split("=")[0], Integer.parseInt(one.split("=")[1]));
            Map<String, Subscription> members = new HashMap<>();
            for (String one : parts[2].split(",")) {
                String[] words = one.split("/", -1);
                Subscription read = ConsumerProtocol.deserializeSubscription(unhex(words[2]));
                if (!words[1].isEmpty()) read.setGroupInstanceId(Optional.of(words[1]));
                members.put(words[0], read);
            }
            StringJoiner out = new StringJoiner(",");
            for (var entry : new TreeMap<>(assignor.assign(counts, members)).entrySet()) {
                Assignment assignment = new Assignment(entry.getValue());
                assignor.onAssignment(
                    assignment, new ConsumerGroupMetadata("g", 9, entry.getKey(), Optional.empty()));
                List<String> topics = new ArrayList<>(List.of("a"));
                Subscription next = new Subscription(
                    topics, assignor.subscriptionUserData(Set.of("a")), entry.getValue(), 9,
                    Optional.of("rack"));
                out.add(entry.getKey() + "/" + hex(ConsumerProtocol.serializeAssignment(assignment)) + "/"
                    + hex(ConsumerProtocol.serializeSubscription(next)));
            }
            System.out.println(out);
        }
    }
}
"""
ASSIGNORS = {
    one.name: one
    for one in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
}
TOPICS = ("a", "b", "c")
ROUNDS = 60


def any_group(chance: random.Random, name: str) -> tuple[list[SubscribedMember], dict[str, int]]:
    counts = {topic: chance.choice((1, 2, 5, 9)) for topic in TOPICS}
    left = [TopicPartition(topic, index) for topic, count in counts.items() for index in range(count)]
    chance.shuffle(left)
    members = []
    for number in range(chance.randint(1, 4)):
        topics = frozenset(TOPICS if name.endswith("sticky") else chance.sample(TOPICS, chance.randint(1, 3)))
        had = tuple(left.pop() for _ in range(min(len(left), chance.randint(0, 4))))
        assignor = ASSIGNORS[name]
        members.append(
            SubscribedMember(
                member_id=f"m{number}",
                group_instance_id=f"i{9 - number}" if chance.random() < 0.3 else None,
                topics=topics,
                user_data=assignor.user_data(had, 8),
                owned=had if assignor.cooperative else (),
                generation_id=8,
            )
        )
    return members, counts


def told(member: SubscribedMember) -> bytes:
    return write_versioned(
        ConsumerProtocolSubscription(
            topics=sorted(member.topics),
            user_data=member.user_data,
            owned_partitions=by_topic(member.owned),
            generation_id=member.generation_id,
        )
    )


@pytest.fixture(scope="module")
def rounds() -> list[tuple[str, list[SubscribedMember], dict[str, int], dict[str, Any]]]:
    chance = random.Random(7)
    asked = [(name, *any_group(chance, name)) for name in ASSIGNORS for _ in range(ROUNDS)]
    lines = []
    for name, members, counts in asked:
        words = [f"{one.member_id}/{one.group_instance_id or ''}/{told(one).hex()}" for one in members]
        lines.append("|".join((name, ",".join(f"{t}={n}" for t, n in counts.items()), ",".join(words))))
    answers = []
    for line in run_java(JAVA, input_text="\n".join(lines)).splitlines():
        parts = [one.split("/") for one in line.split(",")]
        answers.append({name: (bytes.fromhex(given), bytes.fromhex(next_)) for name, given, next_ in parts})
    return [(*one, answer) for one, answer in zip(asked, answers, strict=True)]


def assigned_by_java(answer: dict[str, Any]) -> dict[str, set[TopicPartition]]:
    return {
        name: set(from_topics(read_versioned(ConsumerProtocolAssignment, given).assigned_partitions))
        for name, (given, _) in answer.items()
    }


def test_range_and_round_robin_assign_as_java_does(rounds: list[Any]) -> None:
    for name, members, counts, answer in rounds:
        if name in ("range", "roundrobin"):
            ours = ASSIGNORS[name].assign(members, counts)
            assert {one: set(given) for one, given in ours.items()} == assigned_by_java(answer), (
                name,
                members,
            )


def test_sticky_ones_are_as_even_as_java_and_move_no_more(rounds: list[Any]) -> None:
    for name, members, counts, answer in rounds:
        if not name.endswith("sticky"):
            continue
        had = {
            one.member_id: set(one.owned if name != "sticky" else from_topics(_previous(one.user_data)))
            for one in members
        }
        java = assigned_by_java(answer)
        ours = {one: set(given) for one, given in ASSIGNORS[name].assign(members, counts).items()}

        def kept(assigned: dict[str, set[TopicPartition]], had: dict[str, set[TopicPartition]] = had) -> int:
            return sum(len(assigned[one] & had[one]) for one in had)

        assert sorted(map(len, ours.values())) == sorted(map(len, java.values())), (name, members)
        assert kept(ours) >= kept(java), (name, members)


def had_before(name: str, member: SubscribedMember) -> set[TopicPartition]:
    return set(from_topics(_previous(member.user_data)) if name == "sticky" else member.owned)


def _previous(user_data: bytes | None) -> list[Any]:
    return codec(StickyAssignorUserData, 1).read(memoryview(user_data or b"")).previous_assignment


def test_we_read_what_java_tells_the_leader(rounds: list[Any]) -> None:
    for name, _, _, answer in rounds:
        for given, next_ in answer.values():
            assigned = from_topics(read_versioned(ConsumerProtocolAssignment, given).assigned_partitions)
            read = read_versioned(ConsumerProtocolSubscription, next_)
            assert read.topics == ["a"]
            assert (read.generation_id, read.rack_id) == (9, "rack")
            assert set(from_topics(read.owned_partitions)) == set(assigned)
            ours = ASSIGNORS[name].user_data(assigned, 9)
            if name == "sticky":
                assert read.user_data is not None
                assert set(from_topics(_previous(read.user_data))) == set(assigned)
            else:
                assert read.user_data == ours
