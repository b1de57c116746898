"""`ClassicMembership`: the classic group protocol (JoinGroup, SyncGroup), where a member assigns. Sans-IO.

| state | means | heartbeats | ends with |
| --- | --- | --- | --- |
| UNJOINED | in no generation | | the caller polls, and has dropped lost partitions: JOINING |
| PREPARING | the group rebalances | yes | the caller has given up partitions (eager: all): JOINING |
| JOINING | JoinGroup is in flight | held back | the generation begins: ASSIGNING (leader) or SYNCING |
| ASSIGNING | the leader looks up the partitions (also if they stay as assigned) | | they are found: SYNCING |
| SYNCING | SyncGroup is in flight | held back | the assignment: TAKING; of other topics: PREPARING, once |
| TAKING | the caller takes the assignment | yes | done: STABLE; if it gave up some (cooperative): PREPARING |
| STABLE | | yes | a rebalance, another subscription, other partitions: PREPARING |

The three tables below map error codes to reactions. From every state an unknown member, an illegal
generation, a session timeout or an exceeded max poll interval lead to UNJOINED with everything lost.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from ..error_code import ErrorCode
from ..errors import BrokerError, ProtocolError
from ..model import TopicPartition
from ..protocol.api.group_membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ..protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    read_versioned,
    write_versioned,
)
from ..protocol.message import Request
from .assignors import Assignor, SubscribedMember, by_topic, from_topics
from .membership import (
    NEVER,
    Ask,
    Change,
    FindPartitions,
    Identity,
    Membership,
    MembershipRules,
    Reaction,
    Step,
    Wait,
)

NO_GENERATION: Final = -1
JOIN_GRACE_MS: Final = 5_000
"""The coordinator answers a JoinGroup once the rebalance timeout has passed, or slightly later."""


class MemberState(enum.Enum):
    """The state of a member; see the module."""

    UNJOINED = enum.auto()
    PREPARING = enum.auto()
    JOINING = enum.auto()
    ASSIGNING = enum.auto()
    SYNCING = enum.auto()
    TAKING = enum.auto()
    STABLE = enum.auto()


_JOIN: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.RENEW,
    ErrorCode.ILLEGAL_GENERATION: Reaction.LOSE,
    ErrorCode.REBALANCE_IN_PROGRESS: Reaction.RETRY,
}
"""MEMBER_ID_REQUIRED is not a failure: the response contains the id to join with."""
_SYNC: Final = {
    ErrorCode.REBALANCE_IN_PROGRESS: Reaction.REJOIN,
    ErrorCode.ILLEGAL_GENERATION: Reaction.LOSE,
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.RENEW,
}
_HEARTBEAT: Final = {
    ErrorCode.REBALANCE_IN_PROGRESS: Reaction.REJOIN,
    ErrorCode.ILLEGAL_GENERATION: Reaction.LOSE,
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.RENEW,
}


@dataclass(slots=True)
class _LeaderState:
    """The data from which a leader assigns; unused in other members."""

    members: Sequence[JoinGroupResponseMember] = ()
    topics: frozenset[str] = frozenset()
    """The topics to which any member is subscribed."""
    counts: dict[str, int] = field(default_factory=dict)
    """The partition counts on which the group's assignment is based, as far as this leader knows."""
    keeps: bool = False
    """True if a static leader comes back, and the group's assignment stays (KIP-814)."""
    assignments: list[SyncGroupRequestAssignment] = field(default_factory=list)
    """The computed assignments, for SyncGroup; empty in other members."""


class ClassicMembership(Membership):
    """A member that uses the classic protocol. ``assignors`` are in the order of preference."""

    def __init__(
        self, rules: MembershipRules, topics: Collection[str], assignors: Sequence[Assignor], now: float
    ) -> None:
        super().__init__(rules, topics, now)
        self.state = MemberState.UNJOINED
        self.generation_id = NO_GENERATION
        self.leads = False
        """True if it is the leader, which assigns for the group."""
        self._assignors = {assignor.name: assignor for assignor in assignors}
        # Java's rule: one assignor that is not cooperative makes all of them eager.
        self._cooperative = all(assignor.cooperative for assignor in assignors)
        self._target: frozenset[TopicPartition] = frozenset()
        self._protocol_name: str | None = None
        self._lead = _LeaderState()
        self._joined_topics = self.topics
        self._last: tuple[frozenset[TopicPartition], int] = (frozenset(), NO_GENERATION)
        self._reason = "joining"
        self._foreign: frozenset[str] = frozenset()
        """The topics of the last assignment to which it was not subscribed: it has joined again because of
        them, once, so that an assignor that insists on them does not keep the group in rebalances.
        """

    def __repr__(self) -> str:
        who = self.rules.group_instance_id or self.member_id or "not yet named"
        return f"<ClassicMembership {who} in {self.rules.group_id}: {self.state.name}, {self.generation_id}>"

    @property
    def identity(self) -> Identity | None:
        """As `Membership.identity`."""
        if self.generation_id == NO_GENERATION:
            return None
        return Identity(self.member_id, self.generation_id, self.rules.group_instance_id)

    @property
    def watched(self) -> frozenset[str]:
        """As `Membership.watched`: the leader watches the topics of all members."""
        return self.topics | self._lead.topics if self.leads else self.topics

    def subscribe(self, topics: Collection[str]) -> None:
        """As `Membership.subscribe`: the group rebalances."""
        self.topics = frozenset(topics)
        if self.topics != self._joined_topics:
            self._rejoin("the subscription has changed")

    def leaving(self) -> Request[Any] | None:
        """As `Membership.leaving`: static members do not leave."""
        if not self.rules.dynamic or not self.member_id:
            return None
        return LeaveGroupRequest(
            group_id=self.rules.group_id,
            members=[MemberIdentity(member_id=self.member_id, reason="the consumer is closed or too slow")],
        )

    # Steps of the member's thread.

    def _next(self, now: float) -> Step:
        if self.state is MemberState.TAKING and self._applying is None and not self._wanted_change():
            # An interrupt has ended `applied` before `_took`. Something may have been given up.
            self._rejoin("taking the assignment was interrupted")
        match self.state:
            case MemberState.UNJOINED | MemberState.PREPARING if self._may_join():
                return self._join()
            case MemberState.ASSIGNING:
                return FindPartitions(self.watched)
            case MemberState.JOINING:
                return self._join()
            case MemberState.SYNCING:
                return self._sync()
            case MemberState.UNJOINED:
                return Wait(NEVER)
        due = self._due_after(self.rules.heartbeat_interval_s)
        return Wait(due) if now < due else self._heartbeat()

    def _may_join(self) -> bool:
        return self._applying is None and not self._too_slow and not self.change()

    def _join(self) -> Step:
        self.state = MemberState.JOINING
        self._joined_topics = self.topics
        rebalance_ms = int(self.rules.max_poll_interval_s * 1000)
        request = JoinGroupRequest(
            group_id=self.rules.group_id,
            session_timeout_ms=int(self.rules.session_timeout_s * 1000),
            rebalance_timeout_ms=rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.rules.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=self._metadata(assignor))
                for name, assignor in self._assignors.items()
            ],
            reason=self._reason,
        )
        return Ask(request, held_back_ms=rebalance_ms + JOIN_GRACE_MS)

    def _metadata(self, assignor: Assignor) -> bytes:
        return write_versioned(
            ConsumerProtocolSubscription(
                topics=sorted(self.topics),
                user_data=assignor.user_data(*self._last),
                owned_partitions=by_topic(self.owned),
                generation_id=self._last[1],
                rack_id=self.rules.rack,
            )
        )

    def _sync(self) -> Step:
        request = SyncGroupRequest(
            group_id=self.rules.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.rules.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol_name,
            assignments=self._lead.assignments,
        )
        return Ask(request)  # as Java: it waits for the leader's SyncGroup, which is on its way

    def _heartbeat(self) -> Step:
        request = HeartbeatRequest(
            group_id=self.rules.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.rules.group_instance_id,
        )
        return Ask(request)

    # Answers.

    def answered(self, response: Any, now: float) -> BrokerError | None:
        """As `Membership.answered`."""
        match response:
            case JoinGroupResponse():
                return self._joined(response, now)
            case SyncGroupResponse():
                return self._synced(response, now)
            case HeartbeatResponse():
                if not response.error_code:
                    self._succeeded(
                        self._asked_at
                    )  # it may have answered long ago: this process may have slept
                    return None
                return self._refused(response.error_code, "Heartbeat", _HEARTBEAT, now)
        return None  # the response to a LeaveGroup does not matter

    def _joined(self, response: JoinGroupResponse, now: float) -> BrokerError | None:
        if response.error_code is ErrorCode.MEMBER_ID_REQUIRED and response.member_id != self.member_id:
            self.member_id = response.member_id
            return None
        if response.error_code:
            return self._refused(response.error_code, "JoinGroup", _JOIN, now)
        self._succeeded(now)
        self.member_id, self.generation_id = response.member_id, response.generation_id
        self._protocol_name = response.protocol_name
        self.leads = response.leader == response.member_id
        self._lead.assignments = []
        self.state = MemberState.SYNCING
        if response.protocol_name not in self._assignors:
            chosen = f"the coordinator chose {response.protocol_name!r}, which this member does not have"
            self._fail(ProtocolError(f"JoinGroup of group {self.rules.group_id}: {chosen}"))
        elif self.leads:
            self._lead.members = response.members
            self._read_members(skip_assignment=response.skip_assignment)
        return None

    def _read_members(self, *, skip_assignment: bool) -> None:
        try:
            subscribed = [_subscribed(member) for member in self._lead.members]
        except ProtocolError as error:
            self._fail(error)
            return
        self._lead.topics = frozenset[str]().union(*(member.topics for member in subscribed))
        self._lead.keeps = skip_assignment
        self.state = MemberState.ASSIGNING

    def found(self, counts: Mapping[str, int], topic_ids: Mapping[UUID, str], now: float) -> None:
        """As `Membership.found`: computes the assignment, or rejoins if partitions have changed."""
        del topic_ids, now
        relevant = {topic: count for topic, count in counts.items() if topic in self._lead.topics and count}
        if self.state is MemberState.ASSIGNING:
            self._lead.counts = relevant
            if not self._lead.keeps:
                self._assign()
            self.state = MemberState.SYNCING
        elif self.leads and relevant != self._lead.counts:
            self._rejoin("the topics' partitions have changed")

    def _assign(self) -> None:
        assignor = self._assignors[self._protocol_name or ""]
        members = [_subscribed(member) for member in self._lead.members]
        self._lead.assignments = [
            SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=write_versioned(ConsumerProtocolAssignment(assigned_partitions=by_topic(found))),
            )
            for member_id, found in assignor.assign(members, self._lead.counts).items()
        ]

    def _synced(self, response: SyncGroupResponse, now: float) -> BrokerError | None:
        if response.error_code:
            return self._refused(response.error_code, "SyncGroup", _SYNC, now)
        self._succeeded(now)
        try:
            self._target = _assigned(response.assignment)
        except ProtocolError as error:
            self._fail(error)
            return None
        self.rebalances += 1
        self._last = self._target, self.generation_id
        self.state = MemberState.TAKING
        before, self._foreign = self._foreign, frozenset(tp.topic for tp in self._target) - self.topics
        if self.topics != self._joined_topics:
            self._rejoin("the subscription has changed")
        elif not self._foreign <= before:
            # A static member that comes back with another subscription is given its former assignment. Its
            # metadata have another generation now, so that this join makes the group rebalance.
            self._rejoin("the assignment does not match the subscription")
        elif self._applying is None and not self.change():
            self._took(Change())
        return None

    def _refused(
        self, code: ErrorCode, api: str, table: Mapping[ErrorCode, Reaction], now: float
    ) -> BrokerError | None:
        error = BrokerError(code, f"{api} of group {self.rules.group_id}{_advice(code)}", operation="Read")
        match self._judge(error, table):
            case Reaction.RETRY:
                self._back_off(now)
                return error
            case Reaction.REJOIN:
                self._heard_at = now
                self._rejoin("the group rebalances")
            case Reaction.LOSE:
                self._lose(renew=False)
            case Reaction.RENEW:
                self._lose(renew=True)
            case Reaction.FAIL:
                self._fail(error)
        return None

    # Transitions.

    def _rejoin(self, reason: str) -> None:
        self._reason = reason
        if self.state in (MemberState.STABLE, MemberState.TAKING, MemberState.SYNCING, MemberState.ASSIGNING):
            self.state = MemberState.PREPARING

    def _wanted_change(self) -> Change:
        match self.state:
            case MemberState.PREPARING if self._cooperative:
                return Change(revoked=frozenset(tp for tp in self.owned if tp.topic not in self.topics))
            case MemberState.PREPARING:
                return Change(revoked=self.owned)
            case MemberState.TAKING:
                return Change(revoked=self.owned - self._target, assigned=self._target - self.owned)
        return Change()

    def _took(self, change: Change) -> None:
        if self.state is not MemberState.TAKING:
            return
        self.state = MemberState.STABLE
        if change.revoked:
            # They can be given to others now, in another round.
            self._rejoin("partitions were given up")

    def _reset(self, *, renew: bool) -> None:
        self.state = MemberState.UNJOINED
        self.generation_id = NO_GENERATION
        self.leads = False
        self._last = frozenset(), NO_GENERATION
        self._foreign = frozenset()
        self._reason = "the membership was lost"
        if renew:
            self.member_id = ""


def _subscribed(member: JoinGroupResponseMember) -> SubscribedMember:
    """A member as it describes itself in its subscription. Raises `ProtocolError`: no assignment is possible
    then.
    """
    subscription = read_versioned(ConsumerProtocolSubscription, member.metadata)
    return SubscribedMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=frozenset(subscription.topics),
        user_data=subscription.user_data,
        owned=from_topics(subscription.owned_partitions),
        generation_id=subscription.generation_id,
    )


def _assigned(data: bytes) -> frozenset[TopicPartition]:
    """The assignment; empty bytes mean that the leader left this member out."""
    if not data:
        return frozenset()
    return frozenset(from_topics(read_versioned(ConsumerProtocolAssignment, data).assigned_partitions))


def _advice(code: ErrorCode) -> str:
    if code is ErrorCode.FENCED_INSTANCE_ID:
        return " (another consumer has joined with the same group.instance.id)"
    if code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
        return " (its members share no partition.assignment.strategy with this one)"
    if code is ErrorCode.INVALID_SESSION_TIMEOUT:
        return " (session.timeout.ms is outside the brokers' group.min/max.session.timeout.ms)"
    return ""
