"""`ConsumerMembership`: the consumer group protocol (KIP-848), where the coordinator assigns. Sans-IO.

| state | means | ends with |
| --- | --- | --- |
| epoch 0 | it joins with full state, after lost partitions are dropped | an epoch of its own |
| target differs from owned | the caller gives up and takes partitions | done: acknowledged |
| stable | heartbeats contain only changes | another target, another subscription |

The coordinator gives a partition to another member only once this one has acknowledged that it no longer
owns it. FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID and GROUP_ID_NOT_FOUND (the group was deleted while this
process slept) lead to epoch 0 with everything lost. After a session timeout everything is lost, too, but the
epoch stays: the coordinator's timeout is its own, and it refuses a member that it still has if that comes
with epoch 0.
"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from ..error_code import ErrorCode
from ..errors import BrokerError
from ..model import TopicPartition
from ..protocol.api.group_membership import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ..protocol.message import Request
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

_HEARTBEAT: Final = {
    ErrorCode.FENCED_MEMBER_EPOCH: Reaction.LOSE,
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.LOSE,
    ErrorCode.GROUP_ID_NOT_FOUND: Reaction.LOSE,
}
"""UNRELEASED_INSTANCE_ID fails: another consumer has the instance id, or one that was killed a while ago had
it.
"""
_STILL_THERE: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNRELEASED_INSTANCE_ID})
"""The refusals of epoch 0 by a coordinator that still has this member, with a later epoch."""


class _Leave(enum.Enum):
    """How far a membership is ended that the coordinator may still have."""

    NONE = enum.auto()
    NEXT = enum.auto()
    """The next request ends it."""
    ASKED = enum.auto()
    """That request is under way: its outcome says nothing of the next membership, which the caller may
    already ask for.
    """
    DONE = enum.auto()
    """The coordinator has answered it, and no join since has an outcome that is not known."""


class _Report(NamedTuple):
    """The state of the member in a heartbeat."""

    topics: frozenset[str] = frozenset()
    owned: frozenset[TopicPartition] = frozenset()
    settled: bool = False
    """True if it acknowledges the last assignment."""


class ConsumerMembership(Membership):
    """A member that uses the consumer protocol. ``assignor`` is the name of the coordinator's assignor (None:
    its choice).
    """

    def __init__(
        self, rules: MembershipRules, topics: Collection[str], assignor: str | None, now: float
    ) -> None:
        super().__init__(rules, topics, now)
        self.member_id = str(uuid.uuid4())
        self.member_epoch = JOIN_EPOCH
        self._assignor = assignor
        self._interval_s = rules.heartbeat_interval_s
        self._assigned_ids: dict[UUID, list[int]] | None = None
        """The last assignment; None before there is one."""
        self._names: dict[UUID, str] = {}
        self._looked_for: frozenset[UUID] = frozenset()
        self._looks_first = False
        """True from the answer to a heartbeat until a look-up of names."""
        self._target: dict[TopicPartition, UUID] = {}
        """The partitions of the last assignment, with the ids of their topics."""
        self._owned_ids: dict[TopicPartition, UUID] = {}
        """Those that the owned partitions, and the ones that are being taken, were assigned with."""
        self._send_all = True
        self._sent = _Report()
        """The last heartbeat."""
        self._received = _Report()
        """The last heartbeat that the coordinator has answered."""
        self._acknowledge = False
        """True if the coordinator has to be sent the owned partitions once the last assignment is applied,
        even if it received the same before: it waits for that if it has given a partition and withdrawn it.
        """
        self._in_doubt = False
        """True while the response to a heartbeat with the owned partitions is outstanding: the coordinator
        may have given all other partitions to other members, regardless of its previous assignment.
        """
        self._leave = _Leave.NONE

    def __repr__(self) -> str:
        who = self.rules.group_instance_id or self.member_id
        return f"<ConsumerMembership {who} in {self.rules.group_id}: epoch {self.member_epoch}>"

    @property
    def identity(self) -> Identity | None:
        """As `Membership.identity`."""
        if self.member_epoch <= JOIN_EPOCH:
            return None
        return Identity(self.member_id, self.member_epoch, self.rules.group_instance_id)

    def subscribe(self, topics: Collection[str]) -> None:
        """As `Membership.subscribe`: the next heartbeat contains it."""
        self.topics = frozenset(topics)

    def leaving(self) -> Request[Any] | None:
        """As `Membership.leaving`: a static member announces that it will come back.

        Also while it does not know that it has joined, or left: the coordinator may have given it partitions.
        """
        is_known = self.member_epoch > JOIN_EPOCH or self._in_doubt
        return self._leaving() if is_known or self._leave in (_Leave.NEXT, _Leave.ASKED) else None

    def _leaving(self) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self.rules.group_id,
            member_id=self.member_id,
            instance_id=self.rules.group_instance_id,
            member_epoch=LEAVE_EPOCH if self.rules.dynamic else LEAVE_STATIC_EPOCH,
        )

    # Steps of the member's thread.

    def _next(self, now: float) -> Step:
        if self._leave is _Leave.NEXT:
            self._leave = _Leave.ASKED
            return Ask(self._leaving())
        joins = self.member_epoch <= JOIN_EPOCH
        if (joins or self._losing) and (self._applying is not None or self._too_slow or self.change()):
            return Wait(NEVER)
        due = self._due_after(self._interval_s)
        # Those that fail must not delay a heartbeat, nor heartbeats with slow answers keep it from looking.
        looks = now < due or (self._looks_first and not self._doubted)
        if looks and self._unnamed() - self._looked_for:
            self._looks_first = False
            return FindPartitions(self.topics)
        news = self._applying is None and (self._received.owned != self.owned or self._is_settled())
        if joins or news or self._send_all or self._received.topics != self.topics or now >= due:
            return Ask(self._heartbeat())
        return Wait(due)

    def _heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        # Includes what the caller is about to take: no other member may be given it.
        owned = self.owned if self._applying is None else self.owned | self._applying.assigned
        settled = self._is_settled()
        self._sent = _Report(self.topics, owned, settled)
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.rules.group_id,
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            instance_id=self.rules.group_instance_id,
        )
        everything = self._send_all or self.member_epoch <= JOIN_EPOCH
        if everything:
            request = dataclasses.replace(
                request,
                rack_id=self.rules.rack,
                rebalance_timeout_ms=int(self.rules.max_poll_interval_s * 1000),
                server_assignor=self._assignor,
            )
        if everything or self._received.topics != self.topics:
            request = dataclasses.replace(request, subscribed_topic_names=sorted(self.topics))
        if everything or settled or self._received.owned != owned:
            self._in_doubt = True
            request = dataclasses.replace(request, topic_partitions=self._by_topic_id(owned))
        return request

    def _is_settled(self) -> bool:
        """True if an assignment is applied that has not been acknowledged."""
        return self._acknowledge and self._applying is None and not self._wanted_change()

    def _by_topic_id(self, partitions: Collection[TopicPartition]) -> list[TopicPartitions]:
        found: dict[UUID, list[int]] = defaultdict(list)
        for topic, index in sorted(partitions):
            found[self._owned_ids[TopicPartition(topic, index)]].append(index)
        return [TopicPartitions(topic_id=topic_id, partitions=indexes) for topic_id, indexes in found.items()]

    # Answers.

    def answered(self, response: Any, now: float) -> BrokerError | None:
        """As `Membership.answered`."""
        if not isinstance(response, ConsumerGroupHeartbeatResponse):
            return None
        if self._leave is _Leave.ASKED or response.member_epoch < JOIN_EPOCH:
            return self._left(response, now)
        if response.error_code:
            return self._refused(response, now)
        self._succeeded(self._asked_at)  # it may have answered long ago: this process may have slept
        self.member_id = response.member_id or self.member_id
        self.member_epoch = response.member_epoch
        # The broker's session timeout is its own: ours must not end between two heartbeats.
        interval_s = min(response.heartbeat_interval_ms / 1000, self.rules.session_timeout_s / 3)
        self._interval_s = max(0.1, interval_s)
        self._send_all = self._in_doubt = False
        self._leave = _Leave.NONE
        self._received = self._sent
        self._acknowledge &= not self._sent.settled
        self._looked_for, self._looks_first = frozenset(), True
        if response.assignment is not None:
            self._take_in(response.assignment)
        return None

    def _lapse(self) -> None:
        epoch = self.member_epoch
        super()._lapse()
        self.member_epoch = epoch

    def _leave_as_too_slow(self) -> Step:
        step = super()._leave_as_too_slow()
        if isinstance(step, Ask):
            self._leave = _Leave.ASKED
        return step

    def _left(self, response: ConsumerGroupHeartbeatResponse, now: float) -> BrokerError | None:
        if not response.error_code.retriable:
            self._leave = _Leave.DONE
            return None
        # Until its session ends there, no other member would get the partitions.
        self._leave = _Leave.NEXT
        self._back_off(now)
        return self._error_of(response)

    def _take_in(self, assignment: Assignment) -> None:
        assigned = {one.topic_id: one.partitions for one in assignment.topic_partitions}
        self._acknowledge |= assigned != self._assigned_ids
        self._assigned_ids = assigned
        self.rebalances += 1
        self._resolve()

    def found(self, counts: Mapping[str, int], topic_ids: Mapping[UUID, str], now: float) -> None:
        """As `Membership.found`: names for the topics of the assignment.

        A topic that has none yet is looked up again after the next heartbeat; the others are read meanwhile.
        """
        del counts, now
        self._names.update(topic_ids)
        self._looked_for = self._unnamed()
        self._resolve()

    def _unnamed(self) -> frozenset[UUID]:
        return frozenset(self._assigned_ids or ()) - self._names.keys()

    def _resolve(self) -> None:
        if self._assigned_ids is None:
            return
        self._target = {
            TopicPartition(self._names[topic_id], index): topic_id
            for topic_id, indexes in self._assigned_ids.items()
            if topic_id in self._names
            for index in indexes
        }

    def _refused(self, response: ConsumerGroupHeartbeatResponse, now: float) -> BrokerError | None:
        code, error = response.error_code, self._error_of(response)
        if code in _STILL_THERE and self.member_epoch <= JOIN_EPOCH and self._leave is _Leave.NONE:
            self._leave = _Leave.NEXT
            return None
        match self._judge(error, _HEARTBEAT):
            case Reaction.RETRY:
                # COORDINATOR_NOT_AVAILABLE: the broker may have kept it nevertheless.
                self._send_all, self._leave = True, _Leave.NONE
                self._back_off(now)
                return error
            case Reaction.LOSE if self.member_epoch <= JOIN_EPOCH:
                self._back_off(now)
            case Reaction.FAIL:
                self._fail(error)
            case _:
                self._lose(renew=False)
        return None

    def _error_of(self, response: ConsumerGroupHeartbeatResponse) -> BrokerError:
        code = response.error_code
        where = f"ConsumerGroupHeartbeat of group {self.rules.group_id}{_advice(code)}"
        return BrokerError(code, where, response.error_message or None, operation="Read")

    def failed(self, error: Any, retriable: bool, now: float) -> None:
        """As `Membership.failed`: the coordinator may or may not have received the request, so the next one
        contains everything.
        """
        self._send_all = True
        # If it was a join, it may have succeeded.
        self._leave = _Leave.NEXT if self._leave is _Leave.ASKED else _Leave.NONE
        super().failed(error, retriable, now)

    # Transitions.

    def _wanted_change(self) -> Change:
        if self._assigned_ids is None or self.member_epoch <= JOIN_EPOCH:
            return Change()
        # A topic that was created again is another one under the same name: first its partitions are revoked.
        kept = frozenset(tp for tp in self.owned if self._target.get(tp) == self._owned_ids.get(tp))
        if self._in_doubt:
            return Change(revoked=self.owned - kept, assigned=frozenset())
        return Change(revoked=self.owned - kept, assigned=frozenset(self._target.keys() - self.owned))

    def begin(self) -> Change | None:
        """As `Membership.begin`."""
        change = super().begin()
        if change is not None:
            self._owned_ids |= {tp: self._target[tp] for tp in change.assigned}
        return change

    def _took(self, change: Change) -> None:
        """The next heartbeat acknowledges it: see ``news`` in `_next`."""

    def _reset(self, *, renew: bool) -> None:
        del renew  # the member id belongs to the consumer as long as it lives
        self.member_epoch = JOIN_EPOCH
        self._assigned_ids, self._target = None, {}
        self._received = _Report()
        self._send_all, self._in_doubt, self._acknowledge = True, False, False


def _advice(code: ErrorCode) -> str:
    if code is ErrorCode.UNRELEASED_INSTANCE_ID:
        return (
            " (another consumer is in the group with the same group.instance.id; after a crash, that is "
            "until group.consumer.session.timeout.ms is over)"
        )
    if code is ErrorCode.UNSUPPORTED_VERSION:
        return " (the brokers do not offer group.protocol=consumer; use classic)"
    return ""
