"""`MembershipThread`: runs a `Membership` in a thread, because heartbeats must not wait for the caller."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..cluster.coordinators import find_coordinator
from ..cluster.metadata import ClusterMetadata, topics_named
from ..cluster.router import CoordinatorKey, Router
from ..error_code import ErrorCode
from ..errors import BrokerError, DeadlineExceededError, KafkaError, NetworkError, RequestTimedOutError
from ..network.connection import Connection
from ..protocol.message import Request
from ..runtime.deadline import Deadline
from ..runtime.retry import Backoff, is_retriable, retry
from ..runtime.waiting import LocklessCondition
from .classic_membership import ClassicMembership
from .consumer_membership import ConsumerMembership
from .group_config import ASSIGNORS, GroupConfig, GroupProtocol, Subscription
from .membership import NEVER, Ask, Change, FindPartitions, Identity, Membership, MembershipRules

_LOG = logging.getLogger("spark_kafka_native.group")

CHANNEL = "membership"
"""A connection of its own: the coordinator holds back a JoinGroup until all members have joined, and with it
all later requests on the connection.
"""

UNKNOWN_LOOK_S = 1.0
"""The interval of lookups for a topic that does not exist yet, or not any more. Once nothing is missing
(for a pattern: nothing that was there in the look before), it doubles up to ``metadata_max_age_ms``: a topic
that a broker lacks for a moment matches no pattern then.
"""

LOOK_MS = 5_000
"""The limit of a metadata lookup after the first: heartbeats wait for it."""


class MembershipThread:
    """A membership that the caller's thread and the thread that this starts share. Starts at once."""

    def __init__(self, router: Router, membership: Membership, subscription: Subscription) -> None:
        self._router = router
        self._membership = membership
        self._subscription = subscription
        self._key = CoordinatorKey.group(membership.rules.group_id)
        self._lock = threading.Lock()  # guards the membership; never held while waiting
        self._condition = LocklessCondition()
        self._news = False
        self._stopping = False
        self._connection: Connection | None = None
        self._look_at = 0.0
        self._look_interval_s = NEVER
        self._missing: frozenset[str] = frozenset()
        """The topics that it has not found when it looked last."""
        self._seen = ClusterMetadata()
        """The metadata when it looked last."""
        self._wants_look = False
        """True if the subscription has changed since the last periodic look-up began."""
        self._may_start_later = False
        """True if its failure is that no broker was reached so far."""
        self._unknown: frozenset[str] = frozenset()
        """Topics that do not exist, or the pattern that matches none, by a line in the log."""
        self.attention = False
        """True if the caller has to `begin` a change, or a failure has to be raised."""
        self.thread = threading.Thread(target=self._work, name="kafka-group-member", daemon=True)
        """The consumer starts it once it can end it."""

    def __repr__(self) -> str:
        return f"<MembershipThread {self._membership!r}>"

    # The caller's side.

    @property
    def membership(self) -> Membership:
        """To read; `changing` and the methods below change it."""
        return self._membership

    def poll_begins(self) -> None:
        """As `Membership.poll_begins`."""
        with self._lock:
            held_up = self._membership.poll_begins()
        if held_up:
            self.wake()

    def poll_ends(self) -> None:
        """As `Membership.poll_ends`."""
        with self._lock:
            self._membership.poll_ends(time.monotonic())

    def begin(self) -> Change | None:
        """As `Membership.begin`."""
        with self._lock:  # not `changing`: an interrupt in the middle of it would leave the lock taken
            change = self._membership.begin()
            self._note_attention()
            return change

    def applied(self, change: Change) -> None:
        """As `Membership.applied`."""
        with self._lock:
            self._membership.applied(change)
            self._note_attention()
        self.wake()

    def failure_raised(self) -> None:
        """The caller hears of the failure. It is final, unless no broker was reached so far, or an ACL is
        missing: brokers may start later, an ACL may be added, and the next read tries again.
        """
        with self._lock:
            if self._may_start_later or _is_denied(self._membership.failure):
                self._may_start_later, self._membership.failure = False, None
                self._note_attention()
        self.wake()

    def identity(self) -> Identity | None:
        """The identity for commits; None if it is not a member, or its partitions are lost."""
        with self._lock:
            return None if self._membership.losing else self._membership.identity

    def doubt(self, identity: Identity) -> None:
        """As `Membership.doubt`."""
        with self._lock:
            self._membership.doubt(identity)
        self.wake()

    def look(self) -> None:
        """The subscription has changed: look up its topics."""
        self._wants_look = True
        self.wake()

    def wake(self) -> None:
        """There may be something to do."""
        self._news = True
        self._condition.notify_all()

    def abandon(self) -> None:
        """End without leaving the group: the consumer was garbage collected."""
        self._stopping = True
        self.wake()

    def stop(self, deadline: Deadline) -> None:
        """Leave the group, as far as ``deadline`` and the network allow."""
        with self._lock:
            request = self._membership.leaving()
        self._stopping = True
        self.wake()
        connection = self._connection
        if connection is not None:  # the coordinator may hold back a JoinGroup on it
            connection.close()
        self.thread.join(deadline.remaining_ms / 1000)
        if request is not None:
            with contextlib.suppress(KafkaError):
                self._leave(request, deadline)

    def _leave(self, request: Request[Any], deadline: Deadline) -> None:
        """A coordinator that has moved, has shut down, or is not there yet, is asked again: until the session
        ends, no other member would get the partitions. One that does not answer is not: the request may have
        come through.
        """
        group_id, client = self._membership.rules.group_id, self._router.config

        def ask() -> None:
            node_id = find_coordinator(self._router, self._key, deadline)
            try:
                self._router.connection(node_id, deadline)
            except NetworkError:  # nothing was sent; where no broker is left, the look-up ends it
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            else:
                code = self._router.send_to(node_id, request, deadline).error_code
            if code:
                raise BrokerError(code, f"leaving group {group_id}", operation="Read")

        retry(
            ask,
            what=f"leaving group {group_id}",
            deadline=deadline,
            backoff=Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms),
            retriable=lambda error: isinstance(error, BrokerError) and error.error_code in _ELSEWHERE,
            between=partial(self._router.coordinators.learn, self._key),
        )

    def _note_attention(self) -> None:
        membership = self._membership
        self.attention = membership.failure is not None or membership.change() is not None

    # The thread.

    @contextlib.contextmanager
    def changing(self) -> Iterator[Membership]:
        """Hold the lock of the membership, and check afterwards if the caller has something to do."""
        with self._lock:
            yield self._membership
            self._note_attention()

    def _work(self) -> None:
        try:
            while not self._stopping:
                self._news = False
                self._step()
        except BaseException as error:  # noqa: BLE001 - the caller must hear of a bug, of any kind
            _LOG.exception("the thread of a group's member failed")
            self._may_start_later = False
            with self.changing():
                self._membership.failed(KafkaError(f"the member's thread failed: {error!r}"), False, 0.0)

    def _step(self) -> None:
        if self._subscription.empty or self._membership.failure is not None:
            self._condition.wait_for(lambda: self._news or self._stopping, Deadline(NEVER))
            return
        now = time.monotonic()
        if self._wants_look or now >= self._look_at or self._may_have_changed():
            self._wants_look = False
            self._find(self._membership.watched, periodic=True)
            return
        with self.changing():
            step = self._membership.next(now)
        match step:
            case Ask():
                self._ask(step)
            case FindPartitions():
                self._find(step.topics)
            case _:
                until = min(step.until, self._look_at)
                self._condition.wait_for(lambda: self._news or self._stopping, Deadline(until))

    def _may_have_changed(self) -> bool:
        """True if fetches and commits have learned of other partitions since it looked last. As in Java, a
        group does not go on with a topic that was deleted until the next periodic look-up.
        """
        seen, known = self._seen, self._router.snapshot
        return known is not seen and any(
            _partitions(known, name) != _partitions(seen, name) for name in self._membership.watched
        )

    def _ask(self, ask: Ask) -> None:
        before = repr(self._membership)
        limit = self._limit().within_ms((ask.until - time.monotonic()) * 1000)
        try:
            node_id = find_coordinator(self._router, self._key, limit)
            self._connection = connection = self._router.connection(node_id, limit, CHANNEL)
            if self._stopping:
                return
            response = connection.submit(ask.request, deadline=limit).result(self.response_timeout_ms(ask))
        except KafkaError as error:
            self._failed(error, passing=_passes(error))
            return
        with self.changing():
            refusal = self._membership.answered(response, time.monotonic())
        if refusal is not None:
            self._router.coordinators.learn(self._key, refusal)
            _LOG.debug("%r: %s", self._membership, refusal)
        if (after := repr(self._membership)) != before:
            _LOG.info("%s", after)

    def response_timeout_ms(self, ask: Ask) -> float:
        """The limit of the wait for a response: a broker that is silent for longer may not be the coordinator
        any more.
        """
        left_ms = max(0.0, (ask.until - time.monotonic()) * 1000)
        return min(left_ms, max(ask.held_back_ms, self._router.config.request_timeout_ms))

    def _limit(self, timeout_ms: float | None = None) -> Deadline:
        """As `Router.deadline`, but expires as soon as the member stops."""
        limit_ms = self._router.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        return Deadline(
            time.monotonic() + limit_ms / 1000, lambda: NEVER if self._stopping else time.monotonic()
        )

    def _find(self, topics: frozenset[str], *, periodic: bool = False) -> None:
        self._seen = self._router.snapshot  # also if it fails: the next attempt is not due at once
        first = not self._seen.brokers
        limit = self._limit(None if first else LOOK_MS)
        wanted = None if self._subscription.by_pattern else topics | self._subscription.among(())
        try:
            metadata = self._router.metadata(wanted, refresh=True, deadline=limit)
        except KafkaError as error:
            # Only where the cluster has not answered yet the caller hears of it: brokers come back, or the
            # session ends.
            passing = _passes(error) and not first
            self._may_start_later = _passes(error) and first
            if periodic and passing:
                # The membership does not wait for it: its heartbeats are due meanwhile.
                _LOG.info("%r: %s", self._membership, error)
                self._look_at = time.monotonic() + UNKNOWN_LOOK_S / 2
            else:
                self._failed(error, passing=passing)
            return
        if (refusal := self._refusal(metadata)) is not None:
            self._failed(refusal, passing=False)
            return
        self._may_start_later = False
        self._take_in(metadata)

    def _take_in(self, metadata: ClusterMetadata) -> None:
        self._seen = metadata
        known = {name: topic for name, topic in metadata.topics.items() if not topic.error_code}
        now, before = time.monotonic(), self._membership.watched
        with self.changing():
            subscribed = self._subscription.among(_readable(metadata))
            if subscribed != self._membership.topics:
                self._membership.subscribe(subscribed)
            self._membership.found(
                {name: len(topic.partitions) for name, topic in known.items()},
                {topic.topic_id: name for name, topic in known.items() if topic.topic_id is not None},
                now,
            )
        if subscribed:
            self._say_unknown(subscribed - known.keys())
        else:
            self._say_no_match()
        missing = frozenset(
            name
            for name in before | self._membership.watched
            if name not in metadata.topics or metadata.topics[name].error_code.retriable
        )
        # A pattern's look is at all topics, and says nothing of those that may not be described.
        expected = missing - self._missing if self._subscription.by_pattern else missing
        self._look_interval_s = UNKNOWN_LOOK_S if expected or not subscribed else self._look_interval_s * 2
        self._missing = missing
        self._look_at = now + min(self._look_interval_s, self._router.config.metadata_max_age_ms / 1000)

    def _say_unknown(self, unknown: frozenset[str]) -> None:
        """Once for each topic, at the first lookup, because joining may take long."""
        if new := unknown - self._unknown:
            _LOG.warning(
                "No broker knows the %s (is the name right?): group %s reads nothing of it until it is "
                "created",
                topics_named(new), self._membership.rules.group_id,
            )  # fmt: skip
        self._unknown = unknown

    def _say_no_match(self) -> None:
        """Once, as `_say_unknown`."""
        pattern = str(self._subscription)
        if pattern not in self._unknown:
            _LOG.warning(
                "No topic of the cluster matches (a whole name has to): group %s reads no %s until one is "
                "created",
                self._membership.rules.group_id, pattern,
            )  # fmt: skip
        self._unknown = frozenset([pattern])

    def _refusal(self, metadata: ClusterMetadata) -> KafkaError | None:
        """The error for a topic in the subscription that this consumer may not read; a topic that only
        matches a pattern may be unreadable.
        """
        for name in () if self._subscription.by_pattern else sorted(self._subscription.among(())):
            code = metadata.topics[name].error_code if name in metadata.topics else ErrorCode.NONE
            if code and not code.retriable:
                return BrokerError(code, f"topic {name}", operation="Describe")
        return None

    def _failed(self, error: KafkaError, *, passing: bool) -> None:
        if self._stopping:
            return
        self._router.coordinators.learn(self._key, error)
        with self.changing():
            self._membership.failed(error, passing, time.monotonic())
        if isinstance(error, RequestTimedOutError):
            _LOG.warning("%r: %s; the coordinator is looked up again", self._membership, error)
        else:
            _LOG.info("%r: %s", self._membership, error)


def _partitions(metadata: ClusterMetadata, name: str) -> int:
    topic = metadata.topics.get(name)
    return 0 if topic is None else len(topic.partitions)


def _passes(error: KafkaError) -> bool:
    """True if a later attempt may succeed."""
    gone = isinstance(error, BrokerError) and error.error_code is ErrorCode.BROKER_NOT_AVAILABLE
    return gone or isinstance(error, DeadlineExceededError) or is_retriable(error)


def _is_denied(error: KafkaError | None) -> bool:
    return isinstance(error, BrokerError) and error.error_code in _DENIALS


_ELSEWHERE = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    )
)
_DENIALS = frozenset((ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED))


def _readable(metadata: ClusterMetadata) -> Iterator[str]:
    """The topics that a pattern may match."""
    return (name for name, topic in metadata.topics.items() if not topic.error_code and not topic.internal)


def new_member(router: Router, config: GroupConfig, subscription: Subscription) -> MembershipThread:
    """A member with the settings of ``config``, which joins its group once its thread is started."""
    client = router.config
    rules = MembershipRules(
        group_id=config.group_id,
        group_instance_id=config.group_instance_id,
        session_timeout_s=config.session_timeout_ms / 1000,
        heartbeat_interval_s=config.heartbeat_interval_ms / 1000,
        max_poll_interval_s=config.max_poll_interval_ms / 1000,
        backoff=Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms),
        rack=client.client_rack or None,
    )
    topics, now = subscription.among(()), time.monotonic()
    membership: Membership
    if config.group_protocol is GroupProtocol.CONSUMER:
        membership = ConsumerMembership(rules, topics, config.group_remote_assignor, now)
    else:
        assignors = [ASSIGNORS[name] for name in config.partition_assignment_strategy]
        membership = ClassicMembership(rules, topics, assignors, now)
    return MembershipThread(router, membership, subscription)
