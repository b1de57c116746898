"""`Membership`: the part of a group membership that both protocols share. Sans-IO.

Two threads use it. The *member's thread* asks `next` for the next step (a request, a metadata lookup, a
wait), and reports its outcome. The *caller's thread* takes and gives up partitions: it `begin`s a `Change`,
carries it out (commits, removes, adds, calls back), and reports that (`applied`). In between nothing else
changes the caller's partitions, and no partition is reported to the group as given up.

It has no lock and no clock: `MembershipThread` guards it.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

from ..errors import BrokerError, KafkaError
from ..model import TopicPartition
from ..protocol.message import Request
from ..runtime.retry import Backoff

NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRules:
    """The identity and the time limits of a member. Times in seconds."""

    group_id: str
    group_instance_id: str | None
    session_timeout_s: float
    heartbeat_interval_s: float
    max_poll_interval_s: float
    backoff: Backoff
    rack: str | None = None

    @property
    def dynamic(self) -> bool:
        """True if the coordinator forgets the member when it leaves; a static member (KIP-345) keeps its
        place.
        """
        return self.group_instance_id is None


class Identity(NamedTuple):
    """The member id and generation that a commit carries."""

    member_id: str
    generation_id: int
    """The generation of the classic protocol, or the member's epoch."""
    group_instance_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the caller's partitions: if several are set, they are carried out in this order."""

    lost: frozenset[TopicPartition] = frozenset()
    """Drop them at once, without a commit: other members may have them already."""
    revoked: frozenset[TopicPartition] = frozenset()
    """Commit the finished records, and drop the partitions."""
    assigned: frozenset[TopicPartition] = frozenset()
    """Read them from now on."""

    def __bool__(self) -> bool:
        return bool(self.lost or self.revoked or self.assigned)


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request to the coordinator, and wait for its response for the client's request timeout."""

    request: Request[Any]
    held_back_ms: float = 0.0
    """The time for which the coordinator may hold back its response; if it is longer than the request
    timeout, it is the limit of the wait.
    """
    until: float = NEVER
    """The end of the session: no response is waited for beyond it."""


@dataclass(frozen=True, slots=True)
class FindPartitions:
    """Look up the partition counts of these topics, and report them to `Membership.found`."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until then, unless something happens."""

    until: float


Step = Ask | FindPartitions | Wait


class Reaction(enum.Enum):
    """The reaction of a member to an error code in a response. Retriable codes that a table lacks mean RETRY,
    all others FAIL.
    """

    RETRY = "the same again, a little later; the coordinator may be another one by now"
    REJOIN = "join again, and keep the partitions until they are asked for"
    LOSE = "the partitions are lost; join again"
    RENEW = "the partitions are lost; join again as a new member"
    FAIL = "nothing helps: tell the caller"


class Membership(ABC):
    """The state that both protocols share: owned and lost partitions, the time of the last poll, backoff."""

    def __init__(self, rules: MembershipRules, topics: Collection[str], now: float) -> None:
        self.rules = rules
        self.topics = frozenset(topics)
        """The subscription."""
        self.owned: frozenset[TopicPartition] = frozenset()
        """The partitions that the caller has."""
        self.failure: KafkaError | None = None
        """The error that ended the membership."""
        self.member_id = ""
        self.rebalances = 0
        """The number of assignments so far."""
        self._losing = False
        self._applying: Change | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._heard_at = now
        self._asked_at = now
        self._away_since: float | None = now
        """The end of the last poll; None within a poll."""
        self._too_slow = False
        self._doubted = False

    # The caller's thread.

    def poll_begins(self) -> bool:
        """The caller is in a poll. Returns True if the member's thread has waited for that."""
        # A change that an interrupt has ended would keep it from joining. If it is still due, it begins anew.
        held_up = self._too_slow or self._applying is not None
        self._away_since, self._applying = None, None
        self._losing, self._too_slow = self.losing, False
        return held_up

    def poll_ends(self, now: float) -> None:
        """The caller leaves the poll to process records; the max poll interval begins."""
        self._away_since = now

    def begin(self) -> Change | None:
        """The change that the caller has to carry out and then report to `applied`."""
        self._applying = self.change()
        return self._applying

    def applied(self, change: Change) -> None:
        """The caller has carried out ``change``."""
        self._applying = None
        self.owned = (self.owned - change.lost - change.revoked) | change.assigned
        if change.lost or not self.owned:
            self._losing = False
        if not change.lost:
            self._took(change)

    def change(self) -> Change | None:
        """The change that is due now, if any."""
        if self.losing:
            return Change(lost=self.owned)
        return self._wanted_change() or None

    @property
    def losing(self) -> bool:
        """True if the caller's partitions are lost, and it has not dropped them yet."""
        return self._losing and bool(self.owned)

    @property
    def too_slow(self) -> bool:
        """True if the member has left because the caller exceeded the max poll interval; it waits for the
        next poll.
        """
        return self._too_slow

    def doubt(self, identity: Identity) -> None:
        """The coordinator has refused a commit of ``identity``: make a heartbeat due at once."""
        self._doubted = self._doubted or identity == self.identity

    @property
    @abstractmethod
    def identity(self) -> Identity | None:
        """The identity for commits; None while it is not a member."""

    # The member's thread.

    def next(self, now: float) -> Step:
        """The next step of the member's thread."""
        if self.failure is not None:
            return Wait(NEVER)
        away_since = None if self._too_slow else self._away_since
        late_at = NEVER if away_since is None else away_since + self.rules.max_poll_interval_s
        if now >= late_at:  # also if it is not a member: it must not become one without a caller
            return self._leave_as_too_slow()
        session_ends = self._heard_at + self.rules.session_timeout_s
        if self.identity is not None and now >= session_ends:
            # The coordinator may have given our partitions to others by now.
            self._lapse()
            session_ends = NEVER
        if now < self._retry_at:
            return Wait(min(self._retry_at, late_at))
        step = self._next(now)
        if isinstance(step, Wait):
            return Wait(min(step.until, late_at))
        self._asked_at, self._doubted = now, False
        if isinstance(step, Ask) and not step.held_back_ms and self.identity is not None:
            return replace(step, until=session_ends)
        return step

    @abstractmethod
    def answered(self, response: Any, now: float) -> BrokerError | None:
        """Take in the response to the last request; returns an error in it that may mean that the coordinator
        has moved.
        """

    def failed(self, error: KafkaError, retriable: bool, now: float) -> None:
        """The last step failed without a response."""
        if retriable:
            self._back_off(now)
        else:
            self._fail(error)

    @abstractmethod
    def found(self, counts: Mapping[str, int], topic_ids: Mapping[UUID, str], now: float) -> None:
        """Take in metadata of `watched` or more: partition counts of existing topics, names by topic id."""

    @property
    def watched(self) -> frozenset[str]:
        """The topics with periodically refreshed metadata."""
        return self.topics

    @abstractmethod
    def subscribe(self, topics: Collection[str]) -> None:
        """Subscribe to these topics instead."""

    @abstractmethod
    def leaving(self) -> Request[Any] | None:
        """The request with which it leaves the group; None if the coordinator does not know it."""

    # Implemented by the protocols.

    @abstractmethod
    def _next(self, now: float) -> Step: ...

    @abstractmethod
    def _wanted_change(self) -> Change: ...

    @abstractmethod
    def _took(self, change: Change) -> None: ...

    @abstractmethod
    def _reset(self, *, renew: bool) -> None:
        """It is no longer a member (``renew``: the coordinator has forgotten its id, too)."""

    def _lapse(self) -> None:
        """The session has ended by this member's own clock."""
        self._lose(renew=False)

    def _leave_as_too_slow(self) -> Step:
        request = self.leaving()
        self._too_slow = True
        self._lose(renew=True)
        return Wait(0.0) if request is None else Ask(request)

    def _due_after(self, interval_s: float) -> float:
        """The time of the next heartbeat."""
        return 0.0 if self._doubted else self._heard_at + interval_s

    def _lose(self, *, renew: bool) -> None:
        # Partitions that the caller is about to take are lost, too.
        self._losing = bool(self.owned) or self._applying is not None
        self._reset(renew=renew)

    def _fail(self, error: KafkaError) -> None:
        self.failure = error
        self._lose(renew=False)

    def _succeeded(self, now: float) -> None:
        self._failures, self._retry_at = 0, 0.0
        self._heard_at = now

    def _back_off(self, now: float) -> None:
        self._retry_at = now + self.rules.backoff.delay_ms(self._failures) / 1000
        self._failures += 1

    def _judge(self, error: BrokerError, table: Mapping[Any, Reaction]) -> Reaction:
        code = error.error_code
        return table.get(code, Reaction.RETRY if code.retriable else Reaction.FAIL)
