"""`RetryPolicy`: which failures of an operation are retried, if that depends on how often or how long they
occur.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from uuid import UUID

from ..config.client_config import ClientConfig
from ..error_code import UNKNOWN_TOPIC, ErrorCode
from ..errors import BrokerError, HandshakeClosedError, KafkaError, LoginClosedError, UnreachableError
from ..runtime.deadline import Clock, Deadline
from ..runtime.retry import is_retriable
from .metadata import ClusterMetadata, topics_named

_LOG = logging.getLogger("spark_kafka_native")

NEW_TOPIC_WAIT_MS = 5_000
"""How long a topic that was never seen may be unknown: a created one reaches every broker within about a
second.
"""
KNOWN_TOPIC_WAIT_MS = 30_000
"""How long a topic that existed may be missing: a restarting broker may answer without it for some
seconds.
"""
HANDSHAKES_HUNG_UP = 3
"""After this number of connections that were closed at once the security.protocol is wrong; fewer may be a
broker that stops. Before the first answer `HANG_UP_WAIT_MS` must have passed, too.
"""
HANG_UP_WAIT_MS = 10_000
"""How long first contact is tried while connections are closed before the first answer: a load balancer takes
and closes them while the broker behind it restarts.
"""
UNREACHABLE_WAIT_MS = 15_000
"""How long first contact is tried while every address refuses at once: a wrong port stays wrong, and a broker
that is being started takes less.
"""
SAY_AFTER_S = 3.0
"""First contact that takes longer is logged."""
LEAST_GAPS = 3
"""Of the time between two answers without a topic at most the whole wait divided by this counts as time for
which it was unknown. In an outage, or while brokers are silent, none answers, and those that come back may
not know the topic yet.
"""
SAY_UNKNOWN_MS = 1_500
"""A topic that is unknown for longer is logged: its name may be misspelt."""


class DeletedTopics:
    """Topics that existed, and those that were still missing at the end of a full wait.

    Any thread may use it: no loop runs over what another thread may change meanwhile.
    """

    def __init__(self, forget_after_ms: float) -> None:
        self._forget_after_s = forget_after_ms / 1000
        self._noted: dict[str, tuple[UUID | None, float]] = {}
        """The id of each topic that was missing, and when its wait ended."""
        self._existed: set[str] = set()

    def add(self, topics: Mapping[str, UUID | None]) -> None:
        """A full wait for ``topics``, with these ids, has ended without them."""
        now = time.monotonic()
        self._noted.update({name: (topic_id, now) for name, topic_id in topics.items()})

    def update(self, metadata: ClusterMetadata) -> None:
        """Learn which topics exist, and forget the notes about those that ``metadata`` contains again."""
        for name, topic in metadata.topics.items():
            if not topic.error_code:
                self._existed.add(name)
            if topic.error_code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._noted.pop(name, None)

    def expect(self, topics: Iterable[str]) -> None:
        """All ``topics`` existed once."""
        self._existed.update(topics)

    def existed(self, topics: Iterable[str]) -> bool:
        """True if all ``topics`` existed once. A topic that was only requested did not."""
        return self._existed.issuperset(topics)

    def contains(self, topic: str, topic_id: UUID | None) -> bool:
        """True if ``topic`` was noted with this id: a wait for a former topic says nothing about one that was
        created since. Without an id it may be either.
        """
        noted_id, noted_at = self._noted.get(topic, (None, float("-inf")))
        is_same = topic_id is not None and noted_id == topic_id
        return is_same and noted_at > time.monotonic() - self._forget_after_s


class FirstContacts(threading.local):
    """The operations of one thread that began before a broker had answered, each within the one before."""

    def __init__(self) -> None:
        self.policies: list[RetryPolicy] = []


class RetryPolicy:
    """Decides about the retries of one operation."""

    def __init__(
        self,
        topics: Collection[str],
        metadata: ClusterMetadata,
        deleted: DeletedTopics,
        config: ClientConfig,
        clock: Clock = time.monotonic,
    ) -> None:
        self._clock = clock
        self._topics = topics
        self._deleted = deleted
        self._seen = deleted.existed(topics)
        self._servers = ", ".join(config.bootstrap_servers)
        self._unknown_ms = 0.0
        self._unknown_at: float | None = None
        """When the last answer without the topics came; None: since then there was another failure."""
        self._say_unknown_at = Deadline.after_ms(SAY_UNKNOWN_MS, clock)
        self._said_unknown = False
        self._first_contact = not metadata.brokers
        self._reachable_until = Deadline.after_ms(UNREACHABLE_WAIT_MS)
        self._hang_ups_left = HANDSHAKES_HUNG_UP - 1
        self._hung_up_until = Deadline.after_ms(HANG_UP_WAIT_MS)
        self._last: KafkaError | None = None

    def should_retry(self, error: KafkaError, metadata: ClusterMetadata) -> bool:
        """True if the operation should be tried again after ``error``; ``metadata`` is the current
        metadata.
        """
        self._last = error
        if isinstance(error, BrokerError) and error.error_code in UNKNOWN_TOPIC:
            return self._wait_for_unknown(metadata)
        # An outage counts for nothing: the brokers that come back are those that may not know it yet.
        self._unknown_at = None
        if isinstance(error, BrokerError) and error.error_code is ErrorCode.BROKER_NOT_AVAILABLE:
            return True  # `Router.connection` raises it for a broker that has just left the metadata
        if self._first_contact and isinstance(error, HandshakeClosedError):
            self._hang_ups_left -= 1
            if self._hang_ups_left >= 0:
                return True
            return not isinstance(error, LoginClosedError) and not self._hung_up_until.expired
        if self._first_contact and isinstance(error, UnreachableError):
            return not self._reachable_until.expired
        return is_retriable(error)

    @contextlib.contextmanager
    def logged(
        self, deadline: Deadline, knows_cluster: Callable[[], bool], contacts: FirstContacts
    ) -> Iterator[None]:
        """Log a warning if first contact takes longer than `SAY_AFTER_S`: the outermost operation does."""
        if not self._first_contact:
            yield
            return
        policies = contacts.policies
        timer = threading.Timer(SAY_AFTER_S, self._say, (deadline, knows_cluster, policies))
        timer.daemon = True
        outer = len(policies)
        try:  # an interrupt may come in each of these calls
            if not policies:
                with contextlib.suppress(RuntimeError):  # no thread can be started while the interpreter ends
                    timer.start()
            policies.append(self)
            yield
        finally:
            timer.cancel()
            del policies[outer:]

    def _say(
        self, deadline: Deadline, knows_cluster: Callable[[], bool], policies: list[RetryPolicy]
    ) -> None:
        failed = next((one for one in reversed([*policies]) if one._last is not None), self)
        if isinstance(failed._last, BrokerError) or (failed._last is None and knows_cluster()):
            return  # a broker has answered: the operation takes long, not first contact
        until = deadline
        if isinstance(failed._last, UnreachableError):
            until = failed._reachable_until
        elif isinstance(failed._last, HandshakeClosedError):
            until = failed._hung_up_until
        left_ms = min(until.remaining_ms, deadline.remaining_ms)
        _LOG.warning(
            "No Kafka broker has answered at %s in %.0f s; trying for %.0f s more. The last failure: %s",
            self._servers, SAY_AFTER_S, left_ms / 1000, failed._last or "none yet, nothing answers",
        )  # fmt: skip

    def _wait_for_unknown(self, metadata: ClusterMetadata) -> bool:
        unknown = unknown_topics(metadata, self._topics)
        # Not only at the beginning: the first answer may have had a topic that the next one lacks. One with
        # fewer partitions is not missing, and the number may be wrong.
        existed = self._seen or (bool(unknown) and self._deleted.existed(self._topics))
        wait_ms = KNOWN_TOPIC_WAIT_MS if existed else NEW_TOPIC_WAIT_MS
        left_ms = wait_ms - self._count_unknown(wait_ms / LEAST_GAPS)
        if left_ms > 0 and unknown and self._say_unknown_at.expired and not self._said_unknown:
            self._said_unknown = True
            _LOG.warning(
                "No broker knows the %s (is the name right?); trying for %.0f s more",
                topics_named(unknown), left_ms / 1000,
            )  # fmt: skip
        return left_ms > 0

    def _count_unknown(self, longest_gap_ms: float) -> float:
        """Milliseconds for which the topics have been unknown, with this answer."""
        now = self._clock()
        if self._unknown_at is None:
            self._unknown_ms = 0.0
        else:
            self._unknown_ms += min((now - self._unknown_at) * 1000, longest_gap_ms)
        self._unknown_at = now
        return self._unknown_ms


def unknown_topics(metadata: ClusterMetadata, topics: Iterable[str]) -> set[str]:
    """Those of ``topics`` that are unknown by the last response about them."""
    known = metadata.topics
    return {
        name
        for name in topics
        if name in known and known[name].error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
