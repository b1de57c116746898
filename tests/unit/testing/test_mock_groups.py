"""Groups of a `MockBroker`, frame by frame: which members join, which are refused, and with which error."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from support.brokers.framed_client import WITHIN_S, Peer

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.group.committed_offsets import commit_offsets
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.testing import MockBroker
from spark_kafka_native.testing.mock.groups import ClassicGroup, ClassicGroupMember
from spark_kafka_native.testing.mock.message_spec import message_specs

LONG_MS = 600_000
SHORT_MS = 300


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker(2) as broker:
        broker.create_topic("a")
        yield broker


class Member:
    """A connection that speaks for one member of the group g."""

    def __init__(self, broker: MockBroker, session_ms: int = LONG_MS, instance_id: str | None = None) -> None:
        self.peer = Peer(broker.bootstrap_servers.split(",")[0])
        self.session_ms, self.instance_id = session_ms, instance_id
        self.member_id, self.generation = "", -1

    def join(self, *protocols: str, rebalance_ms: int = LONG_MS, version: int = 7) -> dict[str, Any]:
        """JoinGroup, once more with the id that it is given; the answer to the last."""
        told: dict[str, Any] = {"error_code": ErrorCode.MEMBER_ID_REQUIRED}
        while told["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
            told = self.peer.ask(
                "JoinGroup",
                {
                    "group_id": "g",
                    "session_timeout_ms": self.session_ms,
                    "rebalance_timeout_ms": rebalance_ms,
                    "member_id": self.member_id,
                    "group_instance_id": self.instance_id,
                    "protocol_type": "consumer",
                    "protocols": [{"name": one, "metadata": one.encode()} for one in protocols or ["range"]],
                },
                version,
            )
            self.member_id = told["member_id"]
        self.generation = told["generation_id"]
        return told

    def later(self, *protocols: str, **how: Any) -> tuple[threading.Thread, list[dict[str, Any]]]:
        """`join`, which waits for the others, on a thread of its own; where its answer will be."""
        told: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: told.append(self.join(*protocols, **how)), daemon=True)
        thread.start()
        return thread, told

    def ask(self, api: str, version: int, **fields: Any) -> dict[str, Any]:
        own = {"group_id": "g", "member_id": self.member_id, "generation_id": self.generation}
        wanted = {field.name for field in message_specs()[f"{api}Request"].fields}
        mine = {key: value for key, value in own.items() if key in wanted}
        return self.peer.ask(api, mine | fields, version)

    def sync(self, **assignments: bytes) -> dict[str, Any]:
        told = [{"member_id": key, "assignment": value} for key, value in assignments.items()]
        return self.ask("SyncGroup", 3, assignments=told)

    def heartbeat(self) -> int:
        return int(self.ask("Heartbeat", 3)["error_code"])

    def commit(self, **who: Any) -> int:
        place = {"name": "a", "partitions": [{"partition_index": 0, "committed_offset": 1}]}
        own = {"member_id": self.member_id, "generation_id_or_member_epoch": self.generation}
        told = self.peer.ask("OffsetCommit", {"group_id": "g", "topics": [place]} | own | who, 7)
        return int(told["topics"][0]["partitions"][0]["error_code"])

    def close(self) -> None:
        self.peer.close()


@pytest.fixture
def one(broker: MockBroker) -> Iterator[Member]:
    with closing(Member(broker)) as member:
        yield member


@pytest.fixture
def two(broker: MockBroker) -> Iterator[Member]:
    with closing(Member(broker)) as member:
        yield member


def test_a_member_is_given_an_id_before_it_is_let_in(one: Member) -> None:
    """KIP-394."""
    asked = {"group_id": "g", "protocols": [{"name": "range", "metadata": b""}]}
    told = one.peer.ask("JoinGroup", asked, 4)
    assert told["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
    assert told["member_id"]
    unknown = one.peer.ask("JoinGroup", asked | {"member_id": "nobody"}, 4)
    assert unknown["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_generation_of_two(one: Member, two: Member) -> None:
    assert one.join("sticky", "range")["generation_id"] == 1
    thread, told = two.later("range")
    while (code := one.heartbeat()) == ErrorCode.NONE:
        pass
    assert code == ErrorCode.REBALANCE_IN_PROGRESS
    assert one.commit() == ErrorCode.NONE, "what was read before the rebalance counts"
    leader = one.join("sticky", "range")
    thread.join(WITHIN_S)

    assert (leader["generation_id"], told[0]["generation_id"]) == (2, 2)
    assert leader["protocol_name"] == told[0]["protocol_name"] == "range", "what both know"
    assert leader["leader"] == told[0]["leader"] == one.member_id
    assert [m["metadata"] for m in leader["members"]] == [b"range"] * 2
    assert told[0]["members"] == []
    assert one.commit() == ErrorCode.REBALANCE_IN_PROGRESS, "nobody knows what is whose"
    assert one.sync(**{one.member_id: b"1", two.member_id: b"2"})["assignment"] == b"1"
    assert two.sync()["assignment"] == b"2"
    assert (one.heartbeat(), two.heartbeat(), one.commit()) == (0, 0, 0)

    two.generation = 1
    assert two.heartbeat() == two.commit() == ErrorCode.ILLEGAL_GENERATION
    assert two.sync()["error_code"] == ErrorCode.ILLEGAL_GENERATION
    two.member_id = "nobody"
    assert two.heartbeat() == two.commit() == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("session_ms", "code"),
    [(LONG_MS, ErrorCode.REBALANCE_IN_PROGRESS), (SHORT_MS, ErrorCode.UNKNOWN_MEMBER_ID)],
    ids=["rebalance", "session is over"],
)
def test_a_follower_has_no_assignment_of_a_generation_that_ends_while_it_waits(
    broker: MockBroker, one: Member, session_ms: int, code: ErrorCode
) -> None:
    with closing(Member(broker, session_ms)) as follower:
        one.join()
        thread, _ = follower.later()
        while one.heartbeat() == ErrorCode.NONE:
            pass
        assert one.join()["leader"] == one.member_id
        thread.join(WITHIN_S)
        answers: list[dict[str, Any]] = []
        waiting = threading.Thread(target=lambda: answers.append(follower.sync()), daemon=True)
        waiting.start()
        broker.wait_for("SyncGroup")
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            assert one.ask("LeaveGroup", 2)["error_code"] == ErrorCode.NONE
        waiting.join(WITHIN_S)
        assert [(answer["error_code"], answer["assignment"]) for answer in answers] == [(code, b"")]


def test_who_shares_no_protocol_stays_outside(one: Member, two: Member) -> None:
    one.join("range")
    assert two.join("sticky")["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert one.heartbeat() == ErrorCode.NONE


def test_a_member_may_join_with_other_protocols_and_not_with_the_id_of_one_that_has_left(
    one: Member,
) -> None:
    one.join("range")
    again = one.join("sticky")
    assert (again["error_code"], again["protocol_name"]) == (ErrorCode.NONE, "sticky")
    assert one.ask("LeaveGroup", 2)["error_code"] == ErrorCode.NONE
    assert one.join("sticky")["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_silent_is_out(broker: MockBroker, one: Member) -> None:
    with closing(Member(broker, session_ms=SHORT_MS)) as silent:
        silent.join()
        assert silent.sync(**{silent.member_id: b"all"})["assignment"] == b"all"
        assert one.join()["generation_id"] == 2, "it came although the other did not"
        assert silent.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_requests_of_a_member_keep_it_in() -> None:
    changed, clock = threading.Condition(), [0.0]
    group = ClassicGroup(changed, now=lambda: clock[0])
    asked = {
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
    }
    with changed:
        joined = group.join(asked, "c", version=3)
        me = {key: joined[key] for key in ("member_id", "generation_id")}
        given = [{"member_id": one, "assignment": b"all"} for one in ("left-meanwhile", me["member_id"])]
        assert group.sync(me | {"assignments": given})["assignment"] == b"all"
        again = [{"member_id": me["member_id"], "assignment": b"other"}]
        assert group.sync(me | {"assignments": again})["assignment"] == b"all", "it is distributed already"
        for clock[0] in (8.0, 16.0):
            assert group.check(me | {"generation_id": 1}) == ErrorCode.NONE
        assert group.check_commit(me | {"generation_id_or_member_epoch": 1}) == ErrorCode.NONE
        for generation in (0, 2):
            assert group.check(me | {"generation_id": generation}) == ErrorCode.ILLEGAL_GENERATION
        clock[0] = 27.0
        assert group.check(me | {"generation_id": 1}) == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_names_another_member_leaves_and_commits_nothing() -> None:
    group = ClassicGroup(threading.Condition())
    assert group.check_commit({"member_id": "gone", "generation_id": -1}) == ErrorCode.UNKNOWN_MEMBER_ID
    group.members["m"] = ClassicGroupMember("i", 600.0, 600.0, time.monotonic())
    assert group.leave("gone", "i") == ErrorCode.FENCED_INSTANCE_ID
    assert group.leave("gone", None) == ErrorCode.UNKNOWN_MEMBER_ID
    assert list(group.members) == ["m"]


def test_offsets_of_a_deleted_topic_do_not_come_with_the_end_of_a_transaction() -> None:
    group = ClassicGroup(threading.Condition())
    for topic in ("a", "b"):
        group.commit_in_transaction(1, (topic, 0), {"committed_offset": 5})
    group.forget_topic("a")
    group.end_transaction(1, committed=True)
    assert group.committed == {("b", 0): {"committed_offset": 5}}
    group.commit_in_transaction(1, ("b", 0), {"committed_offset": 7})
    group.end_transaction(1, committed=False)
    group.end_transaction(1, committed=True)
    assert group.committed == {("b", 0): {"committed_offset": 5}}


def test_who_does_not_join_again_in_time_is_out(one: Member, two: Member) -> None:
    one.join(rebalance_ms=SHORT_MS)
    assert [m["member_id"] for m in two.join(rebalance_ms=SHORT_MS)["members"]] == [two.member_id]
    assert one.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_comes_back(broker: MockBroker) -> None:
    """KIP-345: under a new id, in the place of the old one."""
    with closing(Member(broker, instance_id="i")) as before, closing(Member(broker, instance_id="i")) as back:
        before.join()
        assert [m["member_id"] for m in back.join()["members"]] == [back.member_id]
        assert before.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID

        left = [{"member_id": "", "group_instance_id": one} for one in ("other", "i")]
        told = back.ask("LeaveGroup", 4, members=left)["members"]
        assert [one["error_code"] for one in told] == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
        assert back.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_second_member_of_the_same_instance_fences_the_first(broker: MockBroker) -> None:
    with (
        closing(Member(broker, instance_id="i")) as first,
        closing(Member(broker, instance_id="i")) as second,
    ):
        first.join()
        second.join()
        own = {"group_instance_id": "i"}
        left = first.ask("LeaveGroup", 4, members=[own | {"member_id": first.member_id}])["members"]
        refused = [
            first.ask("Heartbeat", 3, **own)["error_code"],
            first.ask("SyncGroup", 3, assignments=[], **own)["error_code"],
            first.commit(**own),
            left[0]["error_code"],
            first.join()["error_code"],
        ]
        assert refused == [ErrorCode.FENCED_INSTANCE_ID] * 5
        second.sync(**{second.member_id: b"all"})
        assert second.commit(**own) == second.ask("Heartbeat", 3, **own)["error_code"] == ErrorCode.NONE


@pytest.fixture
def static(broker: MockBroker, one: Member) -> Iterator[Member]:
    """A static member, which follows ``one`` in a stable group."""
    with closing(Member(broker, instance_id="i")) as member:
        one.join()
        thread, _ = member.later()
        while one.heartbeat() == ErrorCode.NONE:
            pass
        one.join()
        thread.join(WITHIN_S)
        one.sync(**{one.member_id: b"1", member.member_id: b"2"})
        member.sync()
        yield member


def test_a_static_member_that_restarts_has_its_generation_and_assignment(static: Member, one: Member) -> None:
    """KIP-345."""
    generation, former = static.generation, static.member_id
    static.member_id = ""
    told = static.join()
    assert (told["generation_id"], told["leader"], told["members"]) == (generation, one.member_id, [])
    assert static.member_id != former
    assert static.sync()["assignment"] == b"2"
    assert one.heartbeat() == static.heartbeat() == ErrorCode.NONE
    static.member_id = former
    assert static.ask("Heartbeat", 3, group_instance_id="i")["error_code"] == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("version", [7, 9])
def test_a_static_leader_that_restarts_makes_no_assignment(static: Member, one: Member, version: int) -> None:
    """KIP-814; before, it takes itself for a follower."""
    assert one.ask("LeaveGroup", 2)["error_code"] == ErrorCode.NONE
    static.join()
    static.sync(**{static.member_id: b"all"})
    generation, former, static.member_id = static.generation, static.member_id, ""
    told = static.join(version=version)
    assert told["generation_id"] == generation
    if version == 9:
        assert (told["leader"], told["skip_assignment"]) == (static.member_id, True)
        assert [member["member_id"] for member in told["members"]] == [static.member_id]
    else:
        assert (told["leader"], told["members"]) == (former, [])
    assert static.sync()["assignment"] == b"all"


def test_a_static_member_that_restarts_with_another_protocol_begins_a_generation(
    static: Member, one: Member
) -> None:
    assert one.ask("LeaveGroup", 2)["error_code"] == ErrorCode.NONE
    static.join("range")
    static.sync()
    generation, static.member_id = static.generation, ""
    assert static.join("sticky")["generation_id"] == generation + 1


def test_a_follower_that_joins_again_unchanged_has_its_generation(static: Member, one: Member) -> None:
    generation = static.generation
    assert static.join()["generation_id"] == generation
    assert static.sync()["assignment"] == b"2"
    assert one.heartbeat() == ErrorCode.NONE
    thread, _ = one.later()  # of a leader it is a rebalance: what it assigns may have changed
    while static.heartbeat() == ErrorCode.NONE:
        pass
    static.join()
    thread.join(WITHIN_S)
    assert one.generation == static.generation == generation + 1


def test_a_member_that_missed_the_answer_to_its_join_has_it_again(one: Member) -> None:
    generation = one.join()["generation_id"]
    again = one.join()
    assert again["generation_id"] == generation
    assert [member["member_id"] for member in again["members"]] == [one.member_id]


def test_a_join_that_waits_is_fenced_when_its_instance_joins_again(broker: MockBroker) -> None:
    with (
        closing(Member(broker, instance_id="i")) as first,
        closing(Member(broker, instance_id="i")) as second,
        closing(Member(broker)) as other,
    ):
        other.join()
        thread, answers = first.later()  # waits for the other
        while other.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
            pass
        replacing, _ = second.later()
        thread.join(WITHIN_S)
        assert [answer["error_code"] for answer in answers] == [ErrorCode.FENCED_INSTANCE_ID]
        other.join()
        replacing.join(WITHIN_S)
        assert second.generation == other.generation


def test_who_is_no_member_commits_while_there_is_none(one: Member, two: Member) -> None:
    alone = {"member_id": "", "generation_id_or_member_epoch": -1}
    assert two.commit(**alone) == ErrorCode.NONE
    one.join()
    assert two.commit(**alone) == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.ask("LeaveGroup", 2)["error_code"] == ErrorCode.NONE
    assert two.commit(**alone) == ErrorCode.NONE


def test_another_broker_is_no_coordinator(broker: MockBroker, one: Member) -> None:
    one.peer.close()
    one.peer = Peer(broker.bootstrap_servers.split(",")[1])
    assert one.join()["error_code"] == ErrorCode.NOT_COORDINATOR
    assert one.sync()["error_code"] == one.heartbeat() == one.commit() == ErrorCode.NOT_COORDINATOR
    for version in (1, 7):
        told = one.ask("OffsetFetch", version, topics=[{"name": "a", "partition_indexes": [0]}])
        codes = [told["error_code"]] if version > 1 else [told["topics"][0]["partitions"][0]["error_code"]]
        assert codes == [ErrorCode.NOT_COORDINATOR]


@pytest.mark.parametrize(
    ("version", "filters", "found"),
    [
        (5, {}, ["g", "idle"]),
        (5, {"states_filter": ["stable"]}, ["g"]),
        (5, {"states_filter": ["Empty", "Dead"]}, ["idle"]),
        (5, {"states_filter": ["Empty", "Stable"], "types_filter": ["Classic"]}, ["g", "idle"]),
        (5, {"types_filter": ["consumer", "share"]}, []),
        (4, {"states_filter": ["Stable"]}, ["g"]),
        (3, {}, ["g", "idle"]),
    ],
)
def test_groups_of_the_states_and_types_that_are_asked_for_are_listed(
    broker: MockBroker, one: Member, version: int, filters: dict[str, list[str]], found: list[str]
) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        admin.reset_offsets("idle", {TopicPartition("a", 0): 0})
    one.join()
    one.sync(**{one.member_id: b"1"})
    groups = one.peer.ask("ListGroups", filters, version)["groups"]
    assert sorted(group["group_id"] for group in groups) == found


def test_a_broker_lists_the_groups_that_it_coordinates(broker: MockBroker, one: Member) -> None:
    def listed(peer: Peer) -> list[str]:
        return [group["group_id"] for group in peer.ask("ListGroups", {}, 4)["groups"]]

    one.join()
    with closing(Peer(broker.bootstrap_servers.split(",")[1])) as other:
        assert (listed(one.peer), listed(other)) == (["g"], [])
        broker.stop(1)
        assert listed(other) == ["g"]


def test_all_that_is_committed(broker: MockBroker, one: Member) -> None:
    broker.create_topic("b")
    alone = {"member_id": "", "generation_id_or_member_epoch": -1}
    one.commit(**alone)
    gone = {"name": "b", "partitions": [{"partition_index": 0, "committed_offset": 7}]}
    one.commit(**alone, topics=[gone])

    def fetch(version: int = 7) -> dict[str, int]:
        asked: dict[str, Any] = {"group_id": "g", "topics": None}
        told = one.peer.ask("OffsetFetch", asked if version < 8 else {"groups": [asked]}, version)
        topics = told["topics"] if version < 8 else told["groups"][0]["topics"]
        return {topic["name"]: topic["partitions"][0]["committed_offset"] for topic in topics}

    assert fetch() == fetch(9) == {"a": 1, "b": 7}
    deleted = one.peer.ask("DeleteTopics", {"topic_names": ["b"]}, 5)["responses"]
    assert [topic["error_code"] for topic in deleted] == [0]
    assert fetch() == {"a": 1}
    assert one.commit(**alone, topics=[gone]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_offset_is_fetched_with_what_was_committed_beside_it(one: Member) -> None:
    place = {"partition_index": 0, "committed_offset": 4, "committed_leader_epoch": 3}
    topics = [{"name": "a", "partitions": [place | {"committed_metadata": "why"}]}]
    assert one.commit(member_id="", generation_id_or_member_epoch=-1, topics=topics) == ErrorCode.NONE
    asked = {"topics": [{"name": "a", "partition_indexes": [0]}]}
    told = [one.peer.ask("OffsetFetch", asked | {"group_id": group}, 7) for group in ("g", "only-asked")]
    found = [answer["topics"][0]["partitions"][0] for answer in told]
    assert [
        (at["committed_offset"], at["committed_leader_epoch"], at["metadata"], at["error_code"])
        for at in found
    ] == [(4, 3, "why", 0), (-1, -1, "", 0)]
    assert [group["group_id"] for group in one.peer.ask("ListGroups", {}, 4)["groups"]] == ["g"]


def test_offsets_go_with_their_topic(broker: MockBroker) -> None:
    """As Kafka's coordinators delete them: also where a topic with the same name comes after it."""
    for topic in ("bills", "orders"):
        broker.create_topic(topic)
    router = router_for(ClientConfig(bootstrap_servers=tuple(broker.bootstrap_servers.split(","))))
    commit_offsets(router, "g", {TopicPartition("bills", 0): 3, TopicPartition("orders", 0): 4})
    with Admin(broker.bootstrap_servers) as admin:
        admin.delete_topics(["bills"])
    broker.create_topic("bills")
    assert broker.committed("g") == {TopicPartition("orders", 0): 4}
