"""The classic protocol's member, step by step, against literal answers."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, NetworkError, ProtocolError
from spark_kafka_native.kafka.group.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    StickyAssignor,
    by_topic,
)
from spark_kafka_native.kafka.group.classic_membership import ClassicMembership, MemberState
from spark_kafka_native.kafka.group.membership import (
    NEVER,
    Ask,
    Change,
    FindPartitions,
    Identity,
    MembershipRules,
    Wait,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.group_membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from spark_kafka_native.kafka.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ProtocolTopicPartitions,
    read_versioned,
    write_versioned,
)
from spark_kafka_native.kafka.runtime.retry import Backoff

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))


def rules(**changed: Any) -> MembershipRules:
    values: dict[str, Any] = {
        "group_id": "g",
        "group_instance_id": None,
        "session_timeout_s": 45.0,
        "heartbeat_interval_s": 3.0,
        "max_poll_interval_s": 300.0,
        "backoff": Backoff(first_ms=100, max_ms=1_000),
    }
    return MembershipRules(**values | changed)


def member(cooperative: bool = False, **changed: Any) -> ClassicMembership:
    assignor = CooperativeStickyAssignor() if cooperative else RangeAssignor()
    return ClassicMembership(rules(**changed), {"a"}, [assignor], 0.0)


def asked(membership: ClassicMembership, now: float = 0.0) -> Any:
    step = membership.next(now)
    assert isinstance(step, Ask), step
    return step.request


def joined(generation: int, leader: str = "other", **fields: Any) -> JoinGroupResponse:
    blank: dict[str, Any] = {
        "error_code": ErrorCode.NONE,
        "generation_id": generation,
        "protocol_name": "range",
        "leader": leader,
        "member_id": "me",
        "members": [],
    }
    return JoinGroupResponse(**blank | fields)


def synced(*partitions: TopicPartition) -> SyncGroupResponse:
    told = ConsumerProtocolAssignment(assigned_partitions=by_topic(partitions))
    return SyncGroupResponse(error_code=ErrorCode.NONE, assignment=write_versioned(told))


def heartbeat(code: ErrorCode = ErrorCode.NONE) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)


def stable(cooperative: bool = False, *, owns: tuple[TopicPartition, ...] = (A0, A1), **changed: Any) -> Any:
    membership = member(cooperative, **changed)
    asked(membership)
    name = "cooperative-sticky" if cooperative else "range"
    membership.answered(joined(1, protocol_name=name), 0.0)
    asked(membership)
    membership.answered(synced(*owns), 0.0)
    change = membership.begin()
    assert change == Change(assigned=frozenset(owns))
    membership.applied(change)
    assert membership.state is MemberState.STABLE
    return membership


def test_it_joins_with_the_id_that_it_is_given() -> None:
    membership = member()
    first = asked(membership)
    assert isinstance(first, JoinGroupRequest)
    assert (first.member_id, first.session_timeout_ms, first.rebalance_timeout_ms) == ("", 45_000, 300_000)
    told = read_versioned(ConsumerProtocolSubscription, first.protocols[0].metadata)
    assert (first.protocols[0].name, told.topics, told.owned_partitions) == ("range", ["a"], [])
    membership.answered(joined(-1, error_code=ErrorCode.MEMBER_ID_REQUIRED, protocol_name=None), 0.0)
    assert asked(membership).member_id == "me"
    assert membership.identity is None


def test_a_follower_syncs_and_takes_what_it_is_given() -> None:
    membership = member()
    asked(membership)
    membership.answered(joined(7), 0.0)
    sync = asked(membership)
    assert isinstance(sync, SyncGroupRequest)
    assert (sync.generation_id, sync.member_id, sync.assignments) == (7, "me", [])
    membership.answered(synced(A0, A2), 0.0)
    assert membership.state is MemberState.TAKING
    assert membership.owned == frozenset()
    change = membership.begin()
    assert change == Change(assigned=frozenset({A0, A2}))
    membership.applied(change)
    assert membership.owned == {A0, A2}
    assert membership.identity == Identity("me", 7, None)
    assert membership.next(1.0) == Wait(3.0)
    assert isinstance(asked(membership, 3.0), HeartbeatRequest)


def test_the_leader_assigns_once_it_knows_the_partitions() -> None:
    membership = member()
    asked(membership)
    told = write_versioned(ConsumerProtocolSubscription(topics=["a", "b"]))
    members = [JoinGroupResponseMember(member_id=name, metadata=told) for name in ("me", "you")]
    membership.answered(joined(3, leader="me", members=members), 0.0)
    assert membership.next(0.0) == FindPartitions(frozenset({"a", "b"}))
    membership.found({"a": 3, "b": 0, "c": 9}, {}, 0.0)
    sync = asked(membership)
    assigned = {
        one.member_id: read_versioned(ConsumerProtocolAssignment, one.assignment).assigned_partitions
        for one in sync.assignments
    }
    assert assigned == {"me": by_topic([A0, A1]), "you": by_topic([A2])}
    membership.answered(synced(A0, A1), 0.0)
    membership.applied(membership.begin() or Change())
    membership.found({"a": 3}, {}, 0.0)
    assert membership.state is MemberState.STABLE
    membership.found({"a": 4}, {}, 0.0)
    assert membership.state is MemberState.PREPARING


def test_eager_members_give_everything_up_before_they_join_again() -> None:
    membership = stable()
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 3.0)
    assert membership.state is MemberState.PREPARING
    assert membership.next(3.1) == Wait(6.0)  # the caller is not back yet; it goes on being heard of
    assert isinstance(asked(membership, 6.0), HeartbeatRequest)
    membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 6.0)
    change = membership.begin()
    assert change == Change(revoked=frozenset({A0, A1}))
    assert membership.next(6.1) == Wait(9.0)  # not while the caller is at it
    membership.applied(change)
    join = asked(membership, 6.2)
    assert isinstance(join, JoinGroupRequest)
    assert membership.owned == frozenset()
    assert membership.identity is not None  # the old generation's: it may still commit


def test_cooperative_members_keep_what_they_have_and_give_up_in_a_second_round() -> None:
    membership = stable(cooperative=True)
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 3.0)
    join = asked(membership, 3.0)
    told = read_versioned(ConsumerProtocolSubscription, join.protocols[0].metadata)
    assert (told.owned_partitions, told.generation_id) == (by_topic([A0, A1]), 1)
    assert membership.begin() is None
    membership.answered(joined(2, protocol_name="cooperative-sticky"), 3.0)
    asked(membership, 3.0)
    membership.answered(synced(A0), 3.0)
    change = membership.begin()
    assert change == Change(revoked=frozenset({A1}))
    membership.applied(change)
    again = asked(membership, 3.0)
    told = read_versioned(ConsumerProtocolSubscription, again.protocols[0].metadata)
    assert (told.owned_partitions, told.generation_id) == (by_topic([A0]), 2)


def about_to_give_up() -> ClassicMembership:
    """A member that keeps a-0 and is to give up a-1."""
    membership = stable(cooperative=True)
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 3.0)
    asked(membership, 3.0)
    membership.answered(joined(2, protocol_name="cooperative-sticky"), 3.0)
    asked(membership, 3.0)
    membership.answered(synced(A0), 3.0)
    return membership


def test_partitions_whose_giving_up_was_interrupted_are_given_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    membership = about_to_give_up()
    change = membership.begin()
    assert change == Change(revoked=frozenset({A1}))

    def interrupted(_change: Change) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(membership, "_took", interrupted)
    with pytest.raises(KeyboardInterrupt):
        membership.applied(change)
    monkeypatch.undo()
    assert membership.begin() is None
    assert isinstance(asked(membership, 3.0), JoinGroupRequest)
    assert membership.owned == {A0}


def test_topics_that_are_wanted_no_more_are_given_up_at_once() -> None:
    membership = stable(cooperative=True)
    membership.subscribe({"b"})
    assert membership.begin() == Change(revoked=frozenset({A0, A1}))


@pytest.mark.parametrize(
    ("code", "member_id"), [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "me")]
)
@pytest.mark.parametrize("instance", [None, "one"], ids=["dynamic", "static"])
def test_who_is_out_of_the_group_has_lost_everything(
    code: ErrorCode, member_id: str, instance: str | None
) -> None:
    membership = stable(group_instance_id=instance)
    asked(membership, 3.0)
    membership.answered(heartbeat(code), 3.0)
    assert membership.losing
    assert membership.identity is None
    assert membership.next(3.0) == Wait(300.0)  # until the caller has dropped them
    change = membership.begin()
    assert change == Change(lost=frozenset({A0, A1}))
    membership.applied(change)
    assert asked(membership, 3.0).member_id == member_id


def test_only_a_join_is_waited_for_beyond_the_session() -> None:
    membership = member()
    step = membership.next(0.0)
    assert isinstance(step, Ask)
    assert (step.held_back_ms, step.until) == (305_000, NEVER)
    membership.answered(joined(1), 2.0)
    assert membership.next(2.0) == Ask(asked(membership), until=47.0)  # SyncGroup
    membership.answered(synced(A0), 4.0)
    assert membership.next(7.0) == Ask(asked(membership, 7.0), until=49.0)  # Heartbeat
    membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 7.0)
    again = membership.next(7.0)  # the others may take longer than a session to join
    assert isinstance(again, Ask)
    assert isinstance(again.request, JoinGroupRequest)
    assert (again.held_back_ms, again.until) == (305_000, NEVER)


def test_what_is_being_taken_while_it_is_lost_is_lost_too() -> None:
    membership = member()
    asked(membership)
    membership.answered(joined(1), 0.0)
    asked(membership)
    membership.answered(synced(A0), 0.0)
    change = membership.begin()
    assert change is not None
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.UNKNOWN_MEMBER_ID), 3.0)
    assert isinstance(membership.next(3.0), Wait)  # it does not join meanwhile
    membership.applied(change)
    assert membership.begin() == Change(lost=frozenset({A0}))


def test_what_was_given_up_while_it_was_lost_takes_nothing_of_the_next_assignment() -> None:
    membership = stable()
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 3.0)
    change = membership.begin()
    assert change == Change(revoked=frozenset({A0, A1}))
    asked(membership, 6.0)
    membership.answered(heartbeat(ErrorCode.UNKNOWN_MEMBER_ID), 6.0)
    membership.applied(change)
    asked(membership, 6.0)
    membership.answered(joined(2), 6.0)
    asked(membership, 6.0)
    membership.answered(synced(A0), 6.0)
    change = membership.begin()
    assert change == Change(assigned=frozenset({A0}))
    membership.applied(change)
    assert (membership.losing, membership.begin(), membership.owned) == (False, None, frozenset({A0}))


def test_what_is_not_heard_of_for_a_session_is_lost() -> None:
    membership = stable()
    asked(membership, 3.0)
    membership.failed(NetworkError("gone"), True, 40.0)
    assert not membership.losing
    assert membership.next(45.5) == Wait(300.0)
    assert membership.begin() == Change(lost=frozenset({A0, A1}))


def test_a_caller_that_is_away_for_too_long_is_taken_out_of_the_group() -> None:
    membership = stable(max_poll_interval_s=10.0, session_timeout_s=1_000.0)
    membership.poll_begins()
    assert isinstance(asked(membership, 60.0), HeartbeatRequest)  # it waits for records: that is no absence
    membership.answered(heartbeat(), 60.0)
    membership.poll_ends(60.0)
    assert membership.next(62.9) == Wait(63.0)
    leave = asked(membership, 70.0)
    assert isinstance(leave, LeaveGroupRequest)
    assert leave.members[0].member_id == "me"
    membership.answered(LeaveGroupResponse(), 70.0)
    assert membership.losing
    membership.applied(membership.begin() or Change())
    assert membership.next(71.0) == Wait(NEVER)  # not before it is back
    membership.poll_begins()
    join = asked(membership, 80.0)
    assert isinstance(join, JoinGroupRequest)
    assert join.member_id == ""  # the one that it had has left


def test_a_static_member_does_not_say_that_it_leaves() -> None:
    assert stable(group_instance_id="one").leaving() is None
    assert stable().leaving() is not None


def test_an_answer_that_may_mean_another_coordinator_is_told_and_tried_again() -> None:
    membership = stable()
    asked(membership, 3.0)
    error = membership.answered(heartbeat(ErrorCode.NOT_COORDINATOR), 3.0)
    assert isinstance(error, BrokerError)
    assert error.error_code is ErrorCode.NOT_COORDINATOR
    step = membership.next(3.0)
    assert isinstance(step, Wait)
    assert 3.0 < step.until < 3.2
    assert isinstance(asked(membership, 3.5), HeartbeatRequest)
    assert not membership.losing


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, r" \(another consumer .* same group\.instance\.id\): "),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, r" \(its members .* partition\.assignment\.strategy .*\): "),
        (ErrorCode.INVALID_SESSION_TIMEOUT, r" \(session\.timeout\.ms is outside .*\): "),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, ": .* an ACL for Read on the group"),
    ],
)
def test_what_nothing_helps_against_is_told_the_caller(code: ErrorCode, words: str) -> None:
    membership = member()
    asked(membership)
    membership.answered(joined(-1, error_code=code), 0.0)
    assert membership.failure is not None
    with pytest.raises(BrokerError, match=f"of group g{words}"):  # the advice for this one, or none
        raise membership.failure
    assert membership.next(0.0) == Wait(NEVER)


def test_a_member_that_nobody_can_read_ends_the_leader_with_its_reason() -> None:
    membership = member()
    asked(membership)
    members = [JoinGroupResponseMember(member_id="you", metadata=b"\x00\x01\x00\x00")]
    membership.answered(joined(3, leader="me", members=members), 0.0)
    assert isinstance(membership.failure, ProtocolError)


def test_a_sync_in_the_middle_of_another_rebalance_joins_again() -> None:
    membership = member()
    asked(membership)
    membership.answered(joined(1), 0.0)
    asked(membership)
    membership.answered(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, assignment=b""), 0.0)
    again = asked(membership)
    assert isinstance(again, JoinGroupRequest)
    assert again.member_id == "me"


def test_a_member_that_the_leader_left_out_has_nothing() -> None:
    membership = member()
    asked(membership)
    membership.answered(joined(1), 0.0)
    asked(membership)
    membership.answered(SyncGroupResponse(error_code=ErrorCode.NONE, assignment=b""), 0.0)
    assert membership.state is MemberState.STABLE
    assert membership.owned == frozenset()


def test_a_caller_that_stays_away_when_all_is_lost_is_waited_for_in_peace() -> None:
    membership = stable()
    membership.poll_ends(0.0)
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.UNKNOWN_MEMBER_ID), 3.0)
    assert membership.next(3.0) == Wait(300.0)
    assert membership.next(300.0) == Wait(0.0)  # once
    assert membership.next(300.0) == Wait(NEVER)
    assert membership.too_slow
    membership.poll_begins()
    change = membership.begin()
    assert change == Change(lost=frozenset([A0, A1]))
    membership.applied(change)
    assert isinstance(asked(membership, 301.0), JoinGroupRequest)


def test_a_member_that_nobody_reads_for_stops_trying_to_join() -> None:
    membership = member()
    asked(membership)
    membership.failed(NetworkError("gone"), True, 299.95)
    assert membership.next(300.0) == Wait(0.0)
    assert membership.next(301.0) == Wait(NEVER)
    membership.poll_begins()
    assert isinstance(asked(membership, 302.0), JoinGroupRequest)


def test_a_change_that_an_interrupt_has_ended_does_not_keep_it_from_joining() -> None:
    """Unless a change is due, the caller begins none: the group waited for this member."""
    membership = about_to_give_up()
    assert membership.begin() == Change(revoked=frozenset([A1]))
    asked(membership, 6.0)
    membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 6.0)
    assert membership.change() is None
    assert isinstance(membership.next(6.0), Wait)
    assert membership.poll_begins()
    assert isinstance(asked(membership, 6.0), JoinGroupRequest)
    assert not membership.poll_begins()


def test_an_assignment_that_an_interrupt_has_ended_and_that_was_lost_says_nothing_of_the_next() -> None:
    membership = member()
    asked(membership)
    membership.answered(joined(1), 0.0)
    asked(membership)
    membership.answered(synced(A0), 0.0)
    assert membership.begin() == Change(assigned=frozenset([A0]))
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.UNKNOWN_MEMBER_ID), 3.0)
    membership.poll_begins()
    asked(membership, 4.0)
    membership.answered(joined(2), 4.0)
    asked(membership, 4.0)
    membership.answered(synced(A0), 4.0)
    change = membership.begin()
    assert change == Change(assigned=frozenset([A0]))
    membership.applied(change)
    assert not membership.losing


def test_an_answer_that_waited_for_a_sleeping_process_is_as_old_as_its_question() -> None:
    membership = stable()
    membership.poll_begins()
    asked(membership, 3.0)
    membership.answered(heartbeat(), 60.0)
    membership.next(60.0)
    assert membership.losing


def test_a_subscription_that_changed_while_it_joined_is_told_next() -> None:
    membership = member()
    asked(membership)
    membership.subscribe({"b"})
    membership.answered(joined(1), 0.0)
    asked(membership)
    membership.answered(synced(A0), 0.0)
    assert membership.begin() is None
    again = asked(membership)
    assert isinstance(again, JoinGroupRequest)
    assert read_versioned(ConsumerProtocolSubscription, again.protocols[0].metadata).topics == ["b"]


def test_a_static_leader_that_is_back_leaves_the_assignment_as_it_is() -> None:
    membership = member(group_instance_id="one")
    asked(membership)
    told = write_versioned(ConsumerProtocolSubscription(topics=["a"]))
    members = [JoinGroupResponseMember(member_id="me", metadata=told)]
    membership.answered(joined(3, leader="me", members=members, skip_assignment=True), 0.0)
    assert membership.next(0.0) == FindPartitions(frozenset({"a"}))
    membership.found({"a": 1}, {}, 0.0)
    sync = asked(membership)
    assert isinstance(sync, SyncGroupRequest)
    assert sync.assignments == []
    membership.answered(synced(A0), 0.0)
    membership.applied(membership.begin() or Change())
    membership.found({"a": 2}, {}, 0.0)  # the first periodic look-up: it took any number as known
    assert membership.state is MemberState.PREPARING


def test_an_assignment_of_a_topic_that_is_not_subscribed_to_is_refused_once() -> None:
    """A static member that comes back with another subscription is given its former assignment: it read
    nothing. An assignor that insists on the topic does not keep the group in rebalances.
    """
    b0 = TopicPartition("b", 0)
    membership = ClassicMembership(rules(group_instance_id="one"), {"b"}, [RangeAssignor()], 0.0)
    generations = []
    for generation, *assigned in ((7, A0), (8, A0, b0)):
        sent = read_versioned(ConsumerProtocolSubscription, asked(membership).protocols[0].metadata)
        generations.append(sent.generation_id)
        membership.answered(joined(generation), 0.0)
        asked(membership)
        membership.answered(synced(*assigned), 0.0)
    assert generations == [-1, 7]  # different metadata: a coordinator would not rebalance otherwise
    assert membership.begin() == Change(assigned=frozenset({A0, b0}))


def test_of_two_members_that_say_they_own_a_partition_the_one_of_the_later_generation_does() -> None:
    """The other has lost it without hearing of it: it would not get it back from the member that reads it."""
    membership = member(cooperative=True)
    asked(membership)
    members = [
        JoinGroupResponseMember(
            member_id=name,
            metadata=write_versioned(
                ConsumerProtocolSubscription(
                    topics=["a"], owned_partitions=by_topic([A0]), generation_id=generation
                )
            ),
        )
        for name, generation in (("late", 1), ("me", 2))
    ]
    membership.answered(joined(3, leader="me", members=members, protocol_name="cooperative-sticky"), 0.0)
    membership.found({"a": 2}, {}, 0.0)
    sync = asked(membership)
    assert isinstance(sync, SyncGroupRequest)
    found = {one.member_id: one.assignment for one in sync.assignments}
    assert read_versioned(ConsumerProtocolAssignment, found["me"]).assigned_partitions == by_topic([A0])


def static_leader_after(end: ErrorCode) -> tuple[ClassicMembership, list[JoinGroupResponseMember]]:
    """A static member that led generation 3, which has ended so, and has asked to join again; its members."""
    membership = member(group_instance_id="one")
    subscription = write_versioned(ConsumerProtocolSubscription(topics=["a"]))
    members = [JoinGroupResponseMember(member_id="me", metadata=subscription)]
    asked(membership)
    membership.answered(joined(3, leader="me", members=members), 0.0)
    membership.found({"a": 1}, {}, 0.0)
    assert len(asked(membership).assignments) == 1
    membership.answered(synced(A0), 0.0)
    membership.applied(membership.begin() or Change())
    asked(membership, 3.0)
    membership.answered(heartbeat(end), 3.0)
    membership.applied(membership.begin() or Change())
    asked(membership, 3.0)
    return membership, members


def test_a_static_leader_that_is_back_compares_with_no_partitions_of_an_earlier_generation() -> None:
    """Another leader may have assigned those that are new: one rebalance would follow the other."""
    membership, members = static_leader_after(ErrorCode.REBALANCE_IN_PROGRESS)
    membership.answered(joined(5, leader="me", members=members, skip_assignment=True), 3.0)
    membership.found({"a": 2}, {}, 3.0)
    asked(membership, 3.0)
    membership.answered(synced(A0, A1), 3.0)
    membership.applied(membership.begin() or Change())
    membership.found({"a": 2}, {}, 3.0)
    assert membership.state is MemberState.STABLE
    membership.found({"a": 3}, {}, 3.0)
    assert membership.state is MemberState.PREPARING


@pytest.mark.parametrize("leader", ["me", "other"])
def test_the_assignments_of_an_earlier_generation_are_not_sent_again(leader: str) -> None:
    membership, members = static_leader_after(ErrorCode.ILLEGAL_GENERATION)
    membership.answered(joined(4, leader=leader, members=members, skip_assignment=leader == "me"), 3.0)
    membership.found({"a": 1}, {}, 3.0)
    sync = asked(membership, 3.0)
    assert isinstance(sync, SyncGroupRequest)
    assert sync.assignments == []


def test_who_has_lost_everything_says_nothing_of_an_earlier_generation() -> None:
    membership = stable(cooperative=True)
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.ILLEGAL_GENERATION), 3.0)
    membership.applied(membership.begin() or Change())
    join = asked(membership, 3.0)
    told = read_versioned(ConsumerProtocolSubscription, join.protocols[0].metadata)
    assert (told.owned_partitions, told.generation_id) == ([], -1)


def test_one_eager_assignor_makes_all_of_them_eager() -> None:
    membership = ClassicMembership(rules(), {"a"}, [RangeAssignor(), CooperativeStickyAssignor()], 0.0)
    asked(membership)
    membership.answered(joined(1), 0.0)
    asked(membership)
    membership.answered(synced(A0), 0.0)
    membership.applied(membership.begin() or Change())
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 3.0)
    assert membership.begin() == Change(revoked=frozenset({A0}))


@pytest.mark.parametrize("instance", [None, "one"], ids=["dynamic", "static"])
def test_the_coordinator_is_sent_the_identity_and_the_limits_of_the_member(instance: str | None) -> None:
    membership = member(group_instance_id=instance, rack="r1")
    join = asked(membership)
    subscription = ConsumerProtocolSubscription(topics=["a"], rack_id="r1")
    assert join == JoinGroupRequest(
        group_id="g",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id="",
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=write_versioned(subscription))],
        reason=join.reason,
    )
    membership.answered(joined(7), 0.0)
    assert asked(membership) == SyncGroupRequest(
        group_id="g",
        generation_id=7,
        member_id="me",
        group_instance_id=instance,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    )
    membership.answered(synced(A0), 0.0)
    membership.applied(membership.begin() or Change())
    assert asked(membership, 3.0) == HeartbeatRequest(
        group_id="g", generation_id=7, member_id="me", group_instance_id=instance
    )


@pytest.mark.parametrize(
    ("assignor", "user_data", "keeps"),
    [
        (RangeAssignor(), None, ()),
        (StickyAssignor(), "00000001 0001 61 00000002 00000000 00000001 00000001", ()),
        (CooperativeStickyAssignor(), "00000001", (A0, A1)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_leader_hears_which_partitions_a_member_had(
    assignor: Assignor, user_data: str | None, keeps: tuple[TopicPartition, ...]
) -> None:
    membership = ClassicMembership(rules(), {"a"}, [assignor], 0.0)
    asked(membership)
    membership.answered(joined(1, protocol_name=assignor.name), 0.0)
    asked(membership)
    membership.answered(synced(A0, A1), 0.0)
    membership.applied(membership.begin() or Change())
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 3.0)
    membership.applied(membership.begin() or Change())
    sent = read_versioned(ConsumerProtocolSubscription, asked(membership, 3.0).protocols[0].metadata)
    assert sent == ConsumerProtocolSubscription(
        topics=["a"],
        user_data=None if user_data is None else bytes.fromhex(user_data),
        owned_partitions=by_topic(keeps),
        generation_id=1,
    )


def assigned_by(
    assignor: Assignor, members: list[JoinGroupResponseMember]
) -> dict[str, list[ProtocolTopicPartitions]]:
    """By member, the partitions that a leader gives out of three."""
    membership = ClassicMembership(rules(), {"a"}, [assignor], 0.0)
    asked(membership)
    membership.answered(joined(2, leader="me", members=members, protocol_name=assignor.name), 0.0)
    membership.found({"a": 3}, {}, 0.0)
    return {
        one.member_id: read_versioned(ConsumerProtocolAssignment, one.assignment).assigned_partitions
        for one in asked(membership).assignments
    }


def test_a_sticky_leader_gives_members_the_partitions_that_they_had() -> None:
    had = {"me": [A2], "you": [A0, A1]}
    sticky = StickyAssignor()
    members = [
        JoinGroupResponseMember(
            member_id=name,
            metadata=write_versioned(
                ConsumerProtocolSubscription(topics=["a"], user_data=sticky.user_data(partitions, 1))
            ),
        )
        for name, partitions in had.items()
    ]
    assert assigned_by(sticky, members) == {name: by_topic(found) for name, found in had.items()}


def test_a_static_member_has_the_same_place_under_another_member_id() -> None:
    subscription = write_versioned(ConsumerProtocolSubscription(topics=["a"]))
    for member_id in ("b", "z"):
        members = [
            JoinGroupResponseMember(member_id=name, group_instance_id=instance, metadata=subscription)
            for name, instance in ((member_id, "one"), ("me", "two"))
        ]
        assert assigned_by(RangeAssignor(), members)[member_id] == by_topic([A0, A1])


@pytest.mark.parametrize("step", ["JoinGroup", "SyncGroup"])
def test_a_response_that_makes_no_sense_ends_the_membership(step: str) -> None:
    """The member does not ask again and again. It is still in the group, and `leaving` takes it out."""
    membership = member()
    asked(membership)
    membership.answered(joined(1, protocol_name="unknown" if step == "JoinGroup" else "range"), 0.0)
    if step == "SyncGroup":
        asked(membership)
        broken = SyncGroupResponse(error_code=ErrorCode.NONE, assignment=b"\x00\x01\x00\x00")
        membership.answered(broken, 0.0)
    assert isinstance(membership.failure, ProtocolError)
    assert membership.next(0.0) == Wait(NEVER)
    leave = membership.leaving()
    assert isinstance(leave, LeaveGroupRequest)
    assert [one.member_id for one in leave.members] == ["me"]


def test_a_coordinator_that_requires_the_id_that_it_was_sent_is_not_asked_for_ever() -> None:
    membership = member()
    for _ in range(2):
        asked(membership)
        required = joined(-1, error_code=ErrorCode.MEMBER_ID_REQUIRED, protocol_name=None)
        membership.answered(required, 0.0)
    assert isinstance(membership.failure, BrokerError)
    assert membership.next(0.0) == Wait(NEVER)


def test_partitions_that_are_new_since_the_assignment_are_assigned_by_the_leader_alone() -> None:
    membership = member()
    subscription = write_versioned(ConsumerProtocolSubscription(topics=["a"]))
    members = [JoinGroupResponseMember(member_id=name, metadata=subscription) for name in ("me", "you")]
    asked(membership)
    membership.answered(joined(1, leader="me", members=members), 0.0)
    membership.found({"a": 2}, {}, 0.0)
    asked(membership)
    membership.answered(synced(A0), 0.0)
    membership.applied(membership.begin() or Change())
    membership.found({"a": 3}, {}, 0.0)
    assert membership.begin() == Change(revoked=frozenset({A0}))
    membership.applied(Change(revoked=frozenset({A0})))
    asked(membership)
    membership.answered(joined(2, leader="you"), 0.0)
    asked(membership)
    membership.answered(synced(A1), 0.0)
    membership.applied(membership.begin() or Change())
    membership.found({"a": 4}, {}, 0.0)
    assert membership.begin() is None
    assert isinstance(asked(membership, 3.0), HeartbeatRequest)


def test_a_partition_that_is_given_up_as_it_is_assigned_again_is_asked_for() -> None:
    """The subscription changes and changes back between SyncGroup and its response."""
    membership = stable(cooperative=True, owns=(A0,))
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 3.0)
    asked(membership, 3.0)
    membership.answered(joined(2, protocol_name="cooperative-sticky"), 3.0)
    asked(membership, 3.0)
    membership.subscribe({"b"})
    change = membership.begin()
    assert change == Change(revoked=frozenset({A0}))
    membership.subscribe({"a"})
    membership.answered(synced(A0), 3.0)
    membership.applied(change)
    assert isinstance(asked(membership, 3.0), JoinGroupRequest)


def test_a_member_that_is_back_after_its_session_is_the_same_member() -> None:
    """A coordinator that still has it would wait for it under its former id."""
    membership = stable()
    membership.poll_begins()
    assert isinstance(membership.next(45.0), Wait)
    membership.applied(membership.begin() or Change())
    assert asked(membership, 45.0).member_id == "me"


def test_a_coordinator_that_refuses_again_and_again_is_asked_less_often() -> None:
    membership = stable()
    for _ in range(6):
        membership.answered(heartbeat(ErrorCode.COORDINATOR_NOT_AVAILABLE), 3.0)
    step = membership.next(3.0)
    assert isinstance(step, Wait)
    assert 3.5 < step.until < 4.5


@pytest.mark.parametrize("step", ["JoinGroup", "SyncGroup"])
@pytest.mark.parametrize(
    ("code", "is_lost", "member_id"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, True, ""),
        (ErrorCode.ILLEGAL_GENERATION, True, "me"),
        (ErrorCode.REBALANCE_IN_PROGRESS, False, "me"),
    ],
)
def test_a_member_that_is_refused_in_a_rebalance_joins_again_with_what_is_left_to_it(
    step: str, code: ErrorCode, is_lost: bool, member_id: str
) -> None:
    """It reads on meanwhile, unless others may have the partitions."""
    membership = stable(cooperative=True)
    asked(membership, 3.0)
    membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 3.0)
    assert isinstance(asked(membership, 3.0), JoinGroupRequest)
    if step == "JoinGroup":
        membership.answered(joined(-1, error_code=code), 3.0)
    else:
        membership.answered(joined(2, protocol_name="cooperative-sticky"), 3.0)
        assert isinstance(asked(membership, 3.0), SyncGroupRequest)
        membership.answered(SyncGroupResponse(error_code=code, assignment=b""), 3.0)
    change = membership.begin()
    assert change == (Change(lost=frozenset({A0, A1})) if is_lost else None)
    assert (membership.identity is None, membership.failure) == (is_lost, None)
    if change is not None:
        membership.applied(change)
    again = asked(membership, 4.0)
    assert isinstance(again, JoinGroupRequest)
    subscription = read_versioned(ConsumerProtocolSubscription, again.protocols[0].metadata)
    assert again.member_id == member_id
    # Those that it owns are of generation 1: a claim of a later one might go before that of another member.
    owned = ([], -1) if is_lost else (by_topic([A0, A1]), 1)
    assert (subscription.owned_partitions, subscription.generation_id) == owned


def test_each_generation_has_an_assignor_of_its_own() -> None:
    """The group takes another one when a member with fewer of them joins or leaves."""
    membership = ClassicMembership(rules(), {"a"}, [RangeAssignor(), StickyAssignor()], 0.0)
    for generation, name in ((1, "range"), (2, "sticky"), (3, "range")):
        assert isinstance(asked(membership, 3.0 * generation), JoinGroupRequest)
        membership.answered(joined(generation, protocol_name=name), 3.0 * generation)
        sync = asked(membership, 3.0 * generation)
        assert isinstance(sync, SyncGroupRequest)
        assert (sync.generation_id, sync.protocol_name) == (generation, name)
        membership.answered(SyncGroupResponse(error_code=ErrorCode.NONE, assignment=b""), 3.0 * generation)
        asked(membership, 3.0 * generation + 3.0)
        membership.answered(heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), 3.0 * generation + 3.0)


def test_a_commit_that_is_refused_makes_one_heartbeat_due_at_once() -> None:
    """And not one after the other, without a pause. A refusal of an earlier generation says nothing."""
    membership = stable()
    identity = membership.identity
    assert identity is not None
    membership.doubt(identity._replace(generation_id=0))
    assert membership.next(1.0) == Wait(3.0)
    membership.doubt(identity)
    membership.doubt(identity._replace(generation_id=0))
    assert isinstance(asked(membership, 1.0), HeartbeatRequest)
    membership.answered(heartbeat(), 1.0)
    assert membership.next(1.0) == Wait(4.0)
