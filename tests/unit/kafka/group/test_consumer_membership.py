"""KIP-848's member, step by step, against literal answers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, NetworkError
from spark_kafka_native.kafka.group.consumer_membership import ConsumerMembership
from spark_kafka_native.kafka.group.group_config import Subscription
from spark_kafka_native.kafka.group.membership import (
    NEVER,
    Ask,
    Change,
    FindPartitions,
    Identity,
    MembershipRules,
    Wait,
)
from spark_kafka_native.kafka.group.membership_thread import MembershipThread
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.group_membership import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from spark_kafka_native.kafka.runtime.retry import Backoff

A = UUID(int=7)
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def member(instance: str | None = None, session_timeout_s: float = 45.0) -> ConsumerMembership:
    rules = MembershipRules(
        group_id="g",
        group_instance_id=instance,
        session_timeout_s=session_timeout_s,
        heartbeat_interval_s=3.0,
        max_poll_interval_s=300.0,
        backoff=Backoff(first_ms=100, max_ms=1_000),
    )
    membership = ConsumerMembership(rules, {"a"}, "uniform", 0.0)
    membership.found({}, {A: "a"}, 0.0)
    return membership


def asked(membership: ConsumerMembership, now: float = 0.0) -> ConsumerGroupHeartbeatRequest:
    step = membership.next(now)
    assert isinstance(step, Ask), step
    assert isinstance(step.request, ConsumerGroupHeartbeatRequest)
    return step.request


def answer(epoch: int, *indexes: int, assigns: bool = True, **fields: Any) -> ConsumerGroupHeartbeatResponse:
    told = [TopicPartitions(topic_id=A, partitions=list(indexes))] if indexes else []
    blank: dict[str, Any] = {
        "throttle_time_ms": 0,
        "error_code": ErrorCode.NONE,
        "member_epoch": epoch,
        "heartbeat_interval_ms": 5_000,
        "assignment": Assignment(topic_partitions=told) if assigns else None,
    }
    return ConsumerGroupHeartbeatResponse(**blank | fields)


def owning(*indexes: int, instance: str | None = None) -> ConsumerMembership:
    membership = member(instance)
    asked(membership)
    membership.answered(answer(1, *indexes), 0.0)
    membership.applied(membership.begin() or Change())
    asked(membership)
    membership.answered(answer(1, assigns=False), 0.0)
    return membership


def test_it_tells_everything_once_and_then_only_what_has_changed() -> None:
    membership = member()
    first = asked(membership)
    assert (first.member_epoch, first.subscribed_topic_names, first.topic_partitions) == (0, ["a"], [])
    assert (first.rebalance_timeout_ms, first.server_assignor) == (300_000, "uniform")
    membership.answered(answer(1, 0, 1), 0.0)
    change = membership.begin()
    assert change == Change(assigned=frozenset({A0, A1}))
    membership.applied(change)
    acknowledgement = asked(membership)
    assert acknowledgement.topic_partitions == [TopicPartitions(topic_id=A, partitions=[0, 1])]
    assert (acknowledgement.subscribed_topic_names, acknowledgement.rebalance_timeout_ms) == (None, -1)
    membership.answered(answer(1, assigns=False), 0.0)
    assert membership.next(0.0) == Wait(5.0)  # as the broker says
    assert asked(membership, 5.0).topic_partitions is None
    membership.answered(answer(1, assigns=False), 5.0)
    membership.subscribe({"a", "b"})
    assert asked(membership, 5.0).subscribed_topic_names == ["a", "b"]


def test_what_is_to_go_is_acknowledged_only_when_it_is_gone() -> None:
    membership = owning(0, 1)
    asked(membership, 5.0)
    membership.answered(answer(1, 0), 5.0)
    assert membership.next(5.0) == Wait(10.0)
    change = membership.begin()
    assert change == Change(revoked=frozenset({A1}))
    assert membership.next(5.0) == Wait(10.0)
    membership.applied(change)
    assert asked(membership, 5.0).topic_partitions == [TopicPartitions(topic_id=A, partitions=[0])]


def test_partitions_that_are_being_given_up_are_reported_as_owned() -> None:
    """Another member would get them before the last commit for them."""
    membership = owning(0, 1)
    asked(membership, 5.0)
    membership.answered(answer(1, 0), 5.0)
    assert membership.begin() == Change(revoked=frozenset({A1}))
    assert asked(membership, 10.0).topic_partitions is None
    membership.failed(NetworkError("lost"), True, 10.0)  # so that the next one has every field
    assert asked(membership, 13.0).topic_partitions == [TopicPartitions(topic_id=A, partitions=[0, 1])]


@pytest.mark.parametrize("withdrawn_first", [True, False])
def test_each_assignment_is_acknowledged_even_if_it_changes_nothing(withdrawn_first: bool) -> None:
    """The coordinator keeps withdrawn partitions from others until it hears which ones are owned."""
    membership = owning(0, 1)
    if withdrawn_first:  # and given back: the same is owned at the end
        asked(membership, 5.0)
        membership.answered(answer(1, 0), 5.0)
        change = membership.begin()
        assert change == Change(revoked=frozenset({A1}))
        membership.applied(change)
    else:
        asked(membership, 5.0)
        membership.answered(answer(1, 0, 1, 2), 5.0)
    asked(membership, 10.0)
    membership.answered(answer(1, 0, 1), 10.0)
    if withdrawn_first:
        membership.applied(membership.begin() or Change())
    told = asked(membership, 10.0)
    assert told.topic_partitions == [TopicPartitions(topic_id=A, partitions=[0, 1])]
    membership.answered(answer(1, assigns=False), 10.0)
    assert membership.next(10.0) == Wait(15.0)


def test_what_is_about_to_be_taken_counts_as_owned() -> None:
    membership = owning(0)
    asked(membership, 5.0)
    membership.answered(answer(2, 0, 1), 5.0)
    assert membership.begin() == Change(assigned=frozenset({A1}))
    membership.failed(NetworkError("lost"), True, 6.0)  # so that the next one has every field
    told = asked(membership, 9.0)
    assert told.topic_partitions == [TopicPartitions(topic_id=A, partitions=[0, 1])]


def test_nothing_is_taken_while_the_coordinator_may_have_heard_that_it_is_not_owned() -> None:
    membership = owning(0)
    asked(membership, 5.0)
    membership.answered(answer(2, 0, 1), 5.0)
    membership.failed(NetworkError("lost"), True, 5.0)
    told = asked(membership, 9.0)
    assert told.topic_partitions == [TopicPartitions(topic_id=A, partitions=[0])]
    assert membership.begin() is None
    membership.failed(NetworkError("lost"), True, 9.0)
    assert membership.begin() is None
    asked(membership, 12.0)
    membership.answered(answer(3, 0), 12.0)
    assert membership.begin() is None


def test_partitions_are_given_up_while_a_heartbeat_has_no_response() -> None:
    """The other member waits for them; only a new one may be another's by now."""
    membership = owning(0, 1)
    asked(membership, 5.0)
    membership.answered(answer(2, 1, 2), 5.0)
    membership.failed(NetworkError("lost"), True, 5.0)
    asked(membership, 9.0)
    assert membership.begin() == Change(revoked=frozenset({A0}))


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_who_is_fenced_has_lost_everything_and_joins_anew(code: ErrorCode) -> None:
    membership = owning(0)
    name = membership.member_id
    asked(membership, 5.0)
    membership.answered(answer(0, error_code=code, assigns=False), 5.0)
    assert membership.identity is None
    change = membership.begin()
    assert change == Change(lost=frozenset({A0}))
    assert isinstance(membership.next(5.0), Wait)
    membership.applied(change)
    again = asked(membership, 5.0)
    assert (again.member_id, again.member_epoch, again.topic_partitions) == (name, 0, [])


def test_look_ups_that_fail_do_not_keep_it_from_its_heartbeats() -> None:
    """Its session ended, and it lost everything."""
    membership = owning(0)
    asked(membership, 5.0)
    partitions = [TopicPartitions(topic_id=topic_id, partitions=[0]) for topic_id in (A, UUID(int=8))]
    membership.answered(answer(2, assignment=Assignment(topic_partitions=partitions)), 5.0)
    for now in (5.0, 10.0):
        assert membership.next(now) == FindPartitions(frozenset({"a"}))
        membership.failed(NetworkError("no broker"), True, now + 5.0)
        asked(membership, now + 5.0 + 0.2)  # after the backoff
        membership.answered(answer(2, assigns=False), now + 5.0)


def test_heartbeats_with_slow_answers_do_not_keep_it_from_looking_up_names() -> None:
    """Each is due again when the one before is answered. One that a refused commit makes due comes first."""
    membership = owning(0)
    asked(membership, 5.0)
    partitions = [TopicPartitions(topic_id=topic_id, partitions=[0]) for topic_id in (A, UUID(int=8))]
    membership.answered(answer(2, assignment=Assignment(topic_partitions=partitions)), 10.5)
    identity = membership.identity
    assert identity is not None
    membership.doubt(identity)
    asked(membership, 10.5)
    membership.answered(answer(2, assigns=False), 16.0)
    assert membership.next(16.0) == FindPartitions(frozenset({"a"}))
    membership.failed(NetworkError("no broker"), True, 21.0)
    asked(membership, 21.2)  # after the backoff
    membership.answered(answer(2, assigns=False), 26.7)
    assert membership.next(26.7) == FindPartitions(frozenset({"a"}))


def test_an_assignment_from_before_a_loss_is_not_taken_again() -> None:
    """Others may have the partitions by now; the answer to the new heartbeat says nothing of them yet."""
    membership = owning(0, 1)
    asked(membership, 5.0)
    membership.answered(answer(0, error_code=ErrorCode.FENCED_MEMBER_EPOCH), 5.0)
    membership.applied(membership.begin() or Change())
    assert asked(membership, 5.0).member_epoch == 0
    membership.answered(answer(2, assigns=False), 5.0)
    assert membership.begin() is None
    membership.found({"a": 2}, {A: "a"}, 6.0)  # a periodic look-up
    assert membership.begin() is None
    asked(membership, 10.0)
    membership.answered(answer(2, 1), 10.0)
    assert membership.begin() == Change(assigned=frozenset({A1}))


def test_a_topic_without_a_name_is_looked_for_and_the_rest_is_read() -> None:
    membership = member()
    asked(membership)
    unknown = TopicPartitions(topic_id=UUID(int=9), partitions=[0])
    known = TopicPartitions(topic_id=A, partitions=[0])
    assigned = Assignment(topic_partitions=[unknown, known])
    membership.answered(answer(1, assignment=assigned), 0.0)
    assert isinstance(membership.next(0.0), FindPartitions)
    membership.found({}, {A: "a"}, 0.0)
    change = membership.begin()
    assert change == Change(assigned=frozenset({A0}))
    membership.applied(change)
    asked(membership)
    membership.answered(answer(1, assigns=False), 0.0)
    assert isinstance(membership.next(0.0), FindPartitions)
    membership.found({}, {UUID(int=9): "b"}, 0.0)
    assert membership.begin() == Change(assigned=frozenset({TopicPartition("b", 0)}))


@pytest.mark.parametrize("instance", [None, "one"])
def test_two_consumers_are_two_members_even_with_one_instance_id(instance: str | None) -> None:
    """The coordinator takes two with the same member id for one, and does not refuse the second."""
    first, second = asked(member(instance)), asked(member(instance))
    assert first.instance_id == second.instance_id == instance
    assert first.member_id != second.member_id


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("one", -2)])
def test_it_says_whether_it_means_to_come_back(instance: str | None, epoch: int) -> None:
    membership = member(instance)
    assert membership.leaving() is None
    asked(membership)
    membership.answered(answer(1, 0), 0.0)
    leaving = membership.leaving()
    assert isinstance(leaving, ConsumerGroupHeartbeatRequest)
    assert leaving.member_epoch == epoch


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (ErrorCode.UNRELEASED_INSTANCE_ID, r" \(another consumer is in the group with the same group\.inst"),
        (
            ErrorCode.UNSUPPORTED_VERSION,
            r" \(the brokers do not offer group\.protocol=consumer; use classic\)",
        ),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "of group g: .* an ACL for Read on the group"),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, "of group g: .*but it has range"),
    ],
)
def test_an_error_that_ends_the_membership_says_what_to_do(code: ErrorCode, says: str) -> None:
    membership = member("one")
    asked(membership)
    of_broker = "but it has range" if code is ErrorCode.UNSUPPORTED_ASSIGNOR else None
    membership.answered(answer(0, error_code=code, error_message=of_broker, assigns=False), 0.0)
    if code is ErrorCode.UNRELEASED_INSTANCE_ID:  # or is it this member?
        assert asked(membership).member_epoch == -2
        membership.answered(answer(0, error_code=ErrorCode.FENCED_INSTANCE_ID, assigns=False), 0.0)
        assert asked(membership).member_epoch == 0
        membership.answered(answer(0, error_code=code, assigns=False), 0.0)
    with pytest.raises(BrokerError, match=f"ConsumerGroupHeartbeat.*{says}"):
        raise membership.failure or AssertionError


@pytest.mark.parametrize("no_outcome", [None, ErrorCode.COORDINATOR_NOT_AVAILABLE], ids=["lost", "too late"])
@pytest.mark.parametrize(
    ("instance", "code", "leaves"),
    [(None, ErrorCode.FENCED_MEMBER_EPOCH, -1), ("one", ErrorCode.UNRELEASED_INSTANCE_ID, -2)],
    ids=["dynamic", "static"],
)
def test_a_member_that_the_coordinator_still_has_leaves_before_it_joins_again(
    instance: str | None, code: ErrorCode, leaves: int, no_outcome: ErrorCode | None
) -> None:
    """It sent thousands of heartbeats a second, or failed for good for the instance id that is its own."""
    membership = member(instance)
    refused = answer(0, error_code=code, assigns=False)
    asked(membership)
    membership.failed(NetworkError("no answer"), True, 0.0)  # the coordinator has taken it in
    assert asked(membership, 1.0).member_epoch == 0
    membership.answered(refused, 1.0)
    leave = asked(membership, 1.0)
    assert (leave, leave.member_epoch) == (membership.leaving(), leaves)
    membership.answered(answer(leaves, assigns=False), 1.0)
    assert asked(membership, 2.0).member_epoch == 0
    if no_outcome is None:  # once more
        membership.failed(NetworkError("no answer"), True, 2.0)
    else:
        membership.answered(answer(0, error_code=no_outcome, assigns=False), 2.0)
    assert asked(membership, 4.0).member_epoch == 0
    membership.answered(refused, 4.0)
    assert asked(membership, 4.0) == leave
    membership.answered(answer(leaves, assigns=False), 4.0)
    assert asked(membership, 4.0).member_epoch == 0
    membership.answered(answer(3, 0), 4.0)
    assert (membership.failure, membership.begin()) == (None, Change(assigned=frozenset({A0})))


@pytest.mark.parametrize("back_first", [False, True], ids=["", "the caller is back before"])
def test_a_leave_that_does_not_succeed_is_sent_again(back_first: bool) -> None:
    """The coordinator has moved: no other member got the partitions until the session ended there, and the
    member itself was refused when its caller came back."""
    membership = owning(0)
    leave = asked(membership, 300.0)
    moved = membership.answered(answer(0, error_code=ErrorCode.NOT_COORDINATOR, assigns=False), 300.0)
    assert moved is not None
    assert isinstance(membership.next(300.0), Wait)
    assert (membership.leaving(), asked(membership, 301.0)) == (leave, leave)
    membership.failed(NetworkError("no answer"), True, 301.0)
    assert (membership.leaving(), asked(membership, 302.0)) == (leave, leave)
    if back_first:
        membership.poll_begins()
        membership.applied(membership.begin() or Change())
    membership.answered(answer(-1, assigns=False), 302.0)
    assert membership.leaving() is None
    if not back_first:
        assert membership.next(302.0) == Wait(NEVER)
        membership.poll_begins()
        membership.applied(membership.begin() or Change())
    assert asked(membership, 302.0).member_epoch == 0


@pytest.mark.parametrize("instance", [None, "one"], ids=["dynamic", "static"])
def test_a_member_that_is_closed_while_it_leaves_leaves_once_more(instance: str | None) -> None:
    """The connection is closed, and with it the request that was under way: no other member got the
    partitions until the session ended."""
    membership = owning(0, instance=instance)
    leave = asked(membership, 300.0)
    assert membership.leaving() == leave
    membership.answered(answer(-1, assigns=False), 300.0)
    assert membership.leaving() is None


def test_a_member_that_is_fenced_again_and_again_waits_between_its_joins() -> None:
    membership = member()
    refused = answer(0, error_code=ErrorCode.FENCED_MEMBER_EPOCH, assigns=False)
    now, times = 0.0, 0
    while now < 10.0:
        step = membership.next(now)
        if isinstance(step, Ask):
            membership.answered(refused, now)
            times += 1
        else:
            now = step.until
    assert 8 < times < 20


def test_a_session_that_ends_by_the_clock_of_the_member_keeps_the_epoch() -> None:
    """The coordinator's timeout is another one: until that is over, it refuses a member that it still has if
    that comes with epoch 0."""
    membership = owning(0)
    membership.poll_begins()
    asked(membership, 5.0)
    membership.failed(NetworkError("no answer"), True, 46.0)
    assert isinstance(membership.next(46.0), Wait)
    assert membership.next(60.0) == Wait(NEVER)  # it drops its partitions first
    assert membership.begin() == Change(lost=frozenset({A0}))
    membership.applied(Change(lost=frozenset({A0})))
    step = membership.next(61.0)
    assert isinstance(step, Ask)
    assert step.until == NEVER
    assert step.request == ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=membership.member_id,
        member_epoch=1,
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=["a"],
        server_assignor="uniform",
        topic_partitions=[],
    )
    membership.answered(answer(1, 0), 61.0)
    assert membership.begin() == Change(assigned=frozenset({A0}))


def test_partitions_that_are_lost_by_the_clock_of_the_member_are_committed_no_more() -> None:
    """The epoch stays, but other members may have them now: `on_lost` is due for them, not `on_revoked`."""
    membership = owning(0)
    no_router: Any = None
    thread = MembershipThread(no_router, membership, Subscription("a"))
    assert thread.identity() == Identity(membership.member_id, 1, None)
    membership.poll_begins()
    asked(membership, 5.0)
    membership.failed(NetworkError("no answer"), True, 46.0)
    membership.next(46.0)
    assert membership.identity == Identity(membership.member_id, 1, None)
    assert thread.identity() is None


def test_a_coordinator_that_loads_is_asked_again_with_everything() -> None:
    membership = owning(0)
    asked(membership, 5.0)
    error = membership.answered(
        answer(0, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, assigns=False), 5.0
    )
    assert error is not None
    step = membership.next(5.0)
    assert isinstance(step, Wait)
    assert 5.0 < step.until < 5.2
    again = asked(membership, 6.0)
    assert again.subscribed_topic_names == ["a"]
    assert again.topic_partitions == [TopicPartitions(topic_id=A, partitions=[0])]


def test_each_member_has_an_id_of_its_own_from_the_start() -> None:
    """Since version 1 of the heartbeat the client makes it (KIP-1082)."""
    assert len({UUID(member().member_id) for _ in range(3)}) == 3


def test_it_leaves_also_while_it_joins() -> None:
    membership = member()
    assert membership.leaving() is None
    asked(membership)  # the coordinator may have heard it
    leaving = membership.leaving()
    assert isinstance(leaving, ConsumerGroupHeartbeatRequest)
    assert (leaving.member_id, leaving.member_epoch) == (membership.member_id, -1)
    membership.poll_begins()
    membership.failed(NetworkError("no answer"), True, 50.0)  # for longer than a session
    assert isinstance(membership.next(50.0), Wait)
    assert membership.leaving() == leaving


def test_an_answer_that_waited_for_a_sleeping_process_is_as_old_as_its_question() -> None:
    membership = owning(0)
    membership.poll_begins()
    asked(membership, 20.0)
    membership.answered(answer(1, assigns=False), 70.0)
    membership.next(70.0)
    assert membership.losing


def test_a_session_that_is_shorter_than_the_brokers_interval_does_not_end_by_itself() -> None:
    """Each heartbeat would find that everything is lost."""
    membership = member(session_timeout_s=3.0)
    asked(membership)
    membership.answered(answer(1, 0), 0.0)
    membership.applied(membership.begin() or Change())
    asked(membership)
    membership.answered(answer(1, assigns=False), 0.0)
    assert membership.next(0.0) == Wait(1.0)
    asked(membership, 1.0)
    assert not membership.losing


def test_what_is_owned_belongs_to_the_former_topic_until_it_is_revoked() -> None:
    """Else the coordinator would take partitions of the new topic for read that are not yet taken."""
    again = UUID(int=8)
    membership = owning(0, 1)
    membership.found({}, {again: "a"}, 1.0)
    asked(membership, 5.0)
    told = Assignment(topic_partitions=[TopicPartitions(topic_id=again, partitions=[0, 1])])
    membership.answered(answer(2, assignment=told), 5.0)
    membership.failed(NetworkError("connection lost"), True, 6.0)  # so that the next one has every field
    assert asked(membership, 9.0).topic_partitions == [TopicPartitions(topic_id=A, partitions=[0, 1])]


def test_partitions_of_a_topic_that_was_created_again_are_revoked_and_assigned_anew() -> None:
    """They have the same names: the former ones were read on, and reported as those of the new topic."""
    again = UUID(int=8)
    membership = owning(0, 1)
    membership.found({}, {again: "a"}, 1.0)
    membership.failed(NetworkError("connection lost"), True, 1.0)
    assert asked(membership, 5.0).topic_partitions == [TopicPartitions(topic_id=A, partitions=[0, 1])]
    told = Assignment(topic_partitions=[TopicPartitions(topic_id=again, partitions=[0])])
    membership.answered(answer(2, assignment=told), 5.0)
    change = membership.begin()
    assert change == Change(revoked=frozenset({A0, A1}))
    membership.applied(change)
    assert asked(membership, 5.0).topic_partitions == []
    membership.answered(answer(2, assigns=False), 5.0)
    change = membership.begin()
    assert change == Change(assigned=frozenset({A0}))
    membership.applied(change)
    assert asked(membership, 5.0).topic_partitions == [TopicPartitions(topic_id=again, partitions=[0])]
    membership.answered(answer(2, assigns=False), 5.0)
    assert membership.begin() is None


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("one", -2)], ids=["dynamic", "static"])
def test_the_coordinator_is_sent_the_identity_and_the_limits_of_the_member(
    instance: str | None, epoch: int
) -> None:
    membership = member(instance)
    identity = {"group_id": "g", "member_id": membership.member_id, "instance_id": instance}
    assert asked(membership) == ConsumerGroupHeartbeatRequest(
        **identity,
        member_epoch=0,
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=["a"],
        server_assignor="uniform",
        topic_partitions=[],
    )
    membership.answered(answer(3, assigns=False), 0.0)
    assert asked(membership, 5.0) == ConsumerGroupHeartbeatRequest(**identity, member_epoch=3)
    assert membership.leaving() == ConsumerGroupHeartbeatRequest(**identity, member_epoch=epoch)


@pytest.mark.parametrize("repeated", [False, True])
def test_partitions_that_are_being_taken_are_reported_once(repeated: bool) -> None:
    """And acknowledged once they are taken, also if the coordinator has repeated the assignment meanwhile."""
    membership = owning(0)
    asked(membership, 5.0)
    membership.answered(answer(2, 0, 1), 5.0)
    change = membership.begin()
    assert change == Change(assigned=frozenset({A1}))
    owned = [TopicPartitions(topic_id=A, partitions=[0, 1])]
    if repeated:  # as it does for a heartbeat with every field
        membership.failed(NetworkError("lost"), True, 5.0)
    assert asked(membership, 10.0).topic_partitions == owned
    membership.answered(answer(2, 0, 1, assigns=repeated), 10.0)
    assert membership.next(10.0) == Wait(15.0)
    membership.applied(change)
    assert asked(membership, 10.0).topic_partitions == owned  # the acknowledgement
    membership.answered(answer(2, assigns=False), 10.0)
    assert membership.next(10.0) == Wait(15.0)


def test_it_does_not_join_while_the_caller_takes_partitions_that_are_lost() -> None:
    """A coordinator refuses a member that joins with partitions of its own."""
    membership = member()
    asked(membership)
    membership.answered(answer(1, 0), 0.0)
    change = membership.begin()
    assert change == Change(assigned=frozenset({A0}))
    asked(membership, 5.0)
    membership.answered(answer(0, error_code=ErrorCode.FENCED_MEMBER_EPOCH, assigns=False), 5.0)
    assert isinstance(membership.next(5.0), Wait)
    membership.applied(change)
    assert isinstance(membership.next(5.0), Wait)
    assert membership.begin() == Change(lost=frozenset({A0}))
    assert isinstance(membership.next(5.0), Wait)
    membership.applied(Change(lost=frozenset({A0})))
    join = asked(membership, 5.0)
    assert (join.member_epoch, join.topic_partitions) == (0, [])


@pytest.mark.parametrize(
    ("code", "epoch"), [(ErrorCode.NONE, -1), (ErrorCode.GROUP_ID_NOT_FOUND, 0)], ids=["left", "no group"]
)
@pytest.mark.parametrize("back_first", [False, True], ids=["", "the caller is back before"])
def test_a_member_that_left_because_it_was_too_slow_joins_with_the_next_poll(
    code: ErrorCode, epoch: int, back_first: bool
) -> None:
    membership = owning(0)
    assert asked(membership, 300.0).member_epoch == -1
    if back_first:
        membership.poll_begins()
    membership.answered(answer(epoch, error_code=code, assigns=False), 300.0)
    membership.poll_begins()
    assert membership.begin() == Change(lost=frozenset({A0}))
    membership.applied(Change(lost=frozenset({A0})))
    join = asked(membership, 300.0)
    assert (join.member_epoch, join.topic_partitions) == (0, [])


def test_a_member_without_partitions_waits_for_the_next_poll_after_it_was_too_slow() -> None:
    """Else the coordinator would give partitions to a member without a caller."""
    membership = owning()
    assert asked(membership, 300.0).member_epoch == -1
    membership.answered(answer(-1, assigns=False), 300.0)
    assert membership.next(300.0) == Wait(NEVER)
    membership.poll_begins()
    assert asked(membership, 301.0).member_epoch == 0


def test_a_member_that_was_fenced_leaves_each_time_that_the_coordinator_has_it_still() -> None:
    """Else its joins would be refused until its session ends there."""
    membership = owning(0)
    fenced = answer(0, error_code=ErrorCode.FENCED_MEMBER_EPOCH, assigns=False)
    for now in (5.0, 10.0):
        asked(membership, now)
        membership.answered(fenced, now)
        membership.applied(membership.begin() or Change())
        assert asked(membership, now).member_epoch == 0
        membership.answered(fenced, now)
        assert asked(membership, now).member_epoch == -1
        membership.answered(answer(-1, assigns=False), now)
        assert asked(membership, now).member_epoch == 0
        membership.answered(answer(2, 0), now)
        change = membership.begin()
        assert change == Change(assigned=frozenset({A0}))
        membership.applied(change)


def test_a_response_to_a_join_is_waited_for_though_the_former_session_has_ended() -> None:
    """Each attempt would end at once, and the member would never join."""
    membership = owning(0)
    asked(membership, 5.0)
    membership.answered(answer(0, error_code=ErrorCode.FENCED_MEMBER_EPOCH, assigns=False), 5.0)
    membership.applied(membership.begin() or Change())
    step = membership.next(100.0)
    assert isinstance(step, Ask)
    assert step.until == NEVER
    membership.answered(answer(2, 0), 100.0)
    heartbeat = membership.next(110.0)
    assert isinstance(heartbeat, Ask)
    assert heartbeat.until == 145.0
