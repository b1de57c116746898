"""`Membership`: what being a member of a group takes, whichever protocol the group speaks. Sans-IO.

Two threads are told apart. The *member's thread* asks `next` what is to be done (a request, a look at the
metadata, a wait), and reports what came of it. The *caller's thread* takes and gives up partitions: it
`begin`s a `Change`, carries it out (commits, removes, adds, calls back), and says so (`applied`). In between
nothing else changes what the caller owns, and the group is not told that anything was given up.

No lock and no clock here: whoever shares a membership between threads guards it (`MembershipThread`).
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
    """What a member does when, and who it is. Times in seconds."""

    group_id: str
    group_instance_id: str | None
    session_timeout_s: float
    heartbeat_interval_s: float
    max_poll_interval_s: float
    backoff: Backoff
    rack: str | None = None

    @property
    def dynamic(self) -> bool:
        """Whether the coordinator forgets it when it leaves; a static member (KIP-345) keeps its place."""
        return self.group_instance_id is None


class Identity(NamedTuple):
    """As whom a member commits."""

    member_id: str
    generation_id: int
    """The generation of the classic protocol, or the member's epoch."""
    group_instance_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What the caller has to do with its partitions: one of the three first, if any."""

    lost: frozenset[TopicPartition] = frozenset()
    """Drop them at once, without a commit: others may have them already."""
    revoked: frozenset[TopicPartition] = frozenset()
    """Commit what is done, and drop them."""
    assigned: frozenset[TopicPartition] = frozenset()
    """Read them from now on."""

    def __bool__(self) -> bool:
        return bool(self.lost or self.revoked or self.assigned)


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request to the coordinator, and wait for its answer for the client's request timeout."""

    request: Request[Any]
    held_back_ms: float = 0.0
    """So long the coordinator may keep its answer back: it is waited for, where that is longer."""
    until: float = NEVER
    """When the session ends: nothing is waited for any longer."""


@dataclass(frozen=True, slots=True)
class FindPartitions:
    """Look up how many partitions these topics have now, and tell `Membership.found`."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be done until that moment, unless something happens."""

    until: float


Step = Ask | FindPartitions | Wait


class Reaction(enum.Enum):
    """What an error code in an answer means for the member. Retriable codes that a table lacks mean RETRY,
    all others FAIL.
    """

    RETRY = "the same again, a little later; the coordinator may be another one by now"
    REJOIN = "join again, and keep the partitions until they are asked for"
    LOSE = "the partitions are lost; join again"
    RENEW = "the partitions are lost; join again as a new member"
    FAIL = "nothing helps: tell the caller"


class Membership(ABC):
    """What both protocols share: what is owned, what is lost, when the caller was here, when to try again."""

    def __init__(self, rules: MembershipRules, topics: Collection[str], now: float) -> None:
        self.rules = rules
        self.topics = frozenset(topics)
        """What it is subscribed to."""
        self.owned: frozenset[TopicPartition] = frozenset()
        """What the caller has."""
        self.failure: KafkaError | None = None
        """Why it can't be a member any more."""
        self.member_id = ""
        self.rebalances = 0
        """How often it got an assignment."""
        self._losing = False
        self._applying: Change | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._heard_at = now
        self._asked_at = now
        self._polled_at = now
        self._polling = False
        self._too_slow = False
        self._doubted = False

    # The caller's thread.

    def poll_begins(self) -> None:
        """The caller is here, to read on."""
        self._polling = True
        self._too_slow = False

    def poll_ends(self, now: float) -> None:
        """The caller goes to work on what it read; it has the max poll interval for that."""
        self._polling = False
        self._polled_at = now

    def begin(self) -> Change | None:
        """What the caller is to do with its partitions, to be followed by `applied`."""
        self._applying = self.change()
        return self._applying

    def applied(self, change: Change) -> None:
        """The caller has done it."""
        self._applying = None
        self.owned = (self.owned - change.lost - change.revoked) | change.assigned
        if change.lost or not self.owned:
            self._losing = False
        if not change.lost:
            self._took(change)

    def change(self) -> Change | None:
        """What is to be done with the partitions just now, if anything."""
        if self.losing:
            return Change(lost=self.owned)
        return self._wanted_change() or None

    @property
    def losing(self) -> bool:
        """Whether what the caller owns is lost, and it was not told yet."""
        return self._losing and bool(self.owned)

    @property
    def too_slow(self) -> bool:
        """Whether it has left as the caller was away for too long, and waits for it."""
        return self._too_slow

    def doubt(self, identity: Identity) -> None:
        """The coordinator has refused a commit of ``identity``: ask it at once whether it is a member yet."""
        self._doubted = self._doubted or identity == self.identity

    @property
    @abstractmethod
    def identity(self) -> Identity | None:
        """As whom to commit; None while it is no member."""

    # The member's thread.

    def next(self, now: float) -> Step:
        """What is to be done now."""
        if self.failure is not None:
            return Wait(NEVER)
        late_at = (
            NEVER if self._polling or self._too_slow else self._polled_at + self.rules.max_poll_interval_s
        )
        if now >= late_at:  # also where it is no member: it is not to become one without a caller
            return self._leave_as_too_slow()
        if self.identity is not None and now >= self._heard_at + self.rules.session_timeout_s:
            # The coordinator has given our partitions to others by now.
            self._lose(renew=False)
        if now < self._retry_at:
            return Wait(min(self._retry_at, late_at))
        step = self._next(now)
        if isinstance(step, Wait):
            return Wait(min(step.until, late_at))
        self._asked_at, self._doubted = now, False
        if isinstance(step, Ask) and not step.held_back_ms and self.identity is not None:
            return replace(step, until=self._heard_at + self.rules.session_timeout_s)
        return step

    @abstractmethod
    def answered(self, response: Any, now: float) -> BrokerError | None:
        """The answer to what was asked last; returns the error in it that may mean another coordinator."""

    def failed(self, error: KafkaError, retriable: bool, now: float) -> None:
        """What was to be done last failed, without an answer."""
        if retriable:
            self._back_off(now)
        else:
            self._fail(error)

    @abstractmethod
    def found(self, counts: Mapping[str, int], topic_ids: Mapping[UUID, str], now: float) -> None:
        """Metadata of `watched` or more: partition counts of topics that exist, names by topic id."""

    @property
    def watched(self) -> frozenset[str]:
        """Topics whose metadata are to be looked at now and then."""
        return self.topics

    @abstractmethod
    def subscribe(self, topics: Collection[str]) -> None:
        """Be subscribed to these topics instead."""

    @abstractmethod
    def leaving(self) -> Request[Any] | None:
        """The request that tells the coordinator that it leaves; None where there is nothing to tell."""

    # What the protocols do with it.

    @abstractmethod
    def _next(self, now: float) -> Step: ...

    @abstractmethod
    def _wanted_change(self) -> Change: ...

    @abstractmethod
    def _took(self, change: Change) -> None: ...

    @abstractmethod
    def _reset(self, *, renew: bool) -> None:
        """It is no member any more (``renew``: not even known to the coordinator)."""

    def _leave_as_too_slow(self) -> Step:
        request = self.leaving()
        self._too_slow = True
        self._lose(renew=True)
        return Wait(0.0) if request is None else Ask(request)

    def _due_after(self, interval_s: float) -> float:
        """When the next heartbeat is due."""
        return 0.0 if self._doubted else self._heard_at + interval_s

    def _lose(self, *, renew: bool) -> None:
        # What the caller is about to take is lost, too.
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
