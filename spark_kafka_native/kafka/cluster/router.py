"""`Router`: who leads what, and the way there. Keeps the metadata fresh; decides nothing about records.

Any thread may use it. `router_for` shares one per process and config, so that the next task starts warm.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from ..config import ClientConfig
from ..error_code import ErrorCode
from ..errors import BrokerError, HandshakeClosedError, KafkaError, NetworkError
from ..model import TopicPartition
from ..network.connection import Connection
from ..network.deadline import Deadline
from ..network.retry import Backoff, is_retriable, retry
from ..protocol.api.find_coordinator import GROUP_KEY_TYPE, FindCoordinatorRequest
from ..protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ..protocol.message import Request, Response
from .brokers import Brokers
from .metadata import ClusterMetadata

R = TypeVar("R", bound=Response)
T = TypeVar("T")

NEW_TOPIC_WAIT_MS = 5_000
"""How long a topic that was never seen may stay unknown: a created one reaches every broker within about a
second.
"""
KNOWN_TOPIC_WAIT_MS = 30_000
"""How long a topic that was there may be missing: a restarting broker can answer without it for some seconds.
"""
HANDSHAKES_HUNG_UP = 3
"""After so many connections closed in the first exchange, it is the wrong security.protocol, not a broker
that stops.
"""


class Leader(NamedTuple):
    """Who leads a partition, and since when."""

    node_id: int
    leader_epoch: int
    topic_id: UUID | None


class Router:
    """Metadata of one cluster and the connections to its brokers."""

    def __init__(self, config: ClientConfig, brokers: Brokers | None = None) -> None:
        self.config = config
        self._brokers = brokers or Brokers(config)
        self._start_empty()

    def _start_empty(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # one refresh at a time
        self._metadata = ClusterMetadata()
        self._fetched_at: dict[str | None, float] = {}  # by topic; None: all of them
        self._coordinators: dict[tuple[int, str], int] = {}
        self._gone: dict[str, float] = {}  # topics that a whole wait did not bring back, and when it ended

    def deadline(self, timeout_ms: float | None = None) -> Deadline:
        """``timeout_ms`` from now, or the config's time for an operation with its retries."""
        return Deadline.after_ms(self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms)

    @property
    def snapshot(self) -> ClusterMetadata:
        """What is known now, however old; no request is made."""
        return self._metadata

    def metadata(
        self,
        topics: Collection[str] | None = None,
        *,
        refresh: bool = False,
        deadline: Deadline | None = None,
    ) -> ClusterMetadata:
        """Metadata that covers ``topics`` (None: all of the cluster), asked for when missing, old or
        ``refresh``.

        A topic that can't be described is in it with its error code. Raises what kept every broker from
        answering.
        """
        self._check_process()
        # Without the lock: whoever holds it may be waiting for a broker that does not answer.
        if not refresh and self._fresh(topics):
            return self._metadata
        return self.retry(
            lambda: self.refresh(topics, deadline or self.deadline()),
            what="asking for metadata",
            deadline=deadline,
        )

    def refresh(self, topics: Collection[str] | None, deadline: Deadline) -> ClusterMetadata:
        """One attempt at new metadata for ``topics``, from whichever broker answers first."""
        self._check_process()
        wanted = None if topics is None else sorted(set(topics))
        asked = None if wanted is None else [MetadataRequestTopic(name=name) for name in wanted]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        with self._lock:
            response = self._ask_any(request, deadline)
            if response.error_code:
                raise BrokerError(response.error_code, "Metadata")
            self._metadata = self._metadata.updated(response, wanted)
            now = time.monotonic()
            if wanted is None:
                self._fetched_at = dict.fromkeys(self._metadata.topics, now)
            self._fetched_at.update(dict.fromkeys([None] if wanted is None else wanted, now))
            for name in self._gone.keys() - self._unknown(self._gone):
                del self._gone[name]
            return self._metadata

    def leader(self, topic_partition: TopicPartition) -> Leader:
        """Who leads ``topic_partition``. Raises `BrokerError`: no such topic or partition, or no leader
        (retriable).
        """
        metadata = self.metadata((topic_partition.topic,))
        partition = metadata.partition(topic_partition)
        if partition.leader is None or partition.leader not in metadata.brokers:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {topic_partition}")
        return Leader(
            partition.leader, partition.leader_epoch, metadata.topics[topic_partition.topic].topic_id
        )

    def leaders(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leader]:
        """`leader` of many, with one metadata request for all that are unknown. Raises for the first that has
        none.
        """
        wanted = list(topic_partitions)
        self.metadata({tp.topic for tp in wanted})
        return {tp: self.leader(tp) for tp in wanted}

    def connection(self, node_id: int, deadline: Deadline | None = None, channel: str = "") -> Connection:
        """A live connection to a broker of the cluster; a ``channel`` of its own does not wait
        behind others.
        """
        broker = self._metadata.brokers.get(node_id)
        if broker is None:
            raise BrokerError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id}", "the metadata do not name it"
            )
        return self._brokers.connection(broker, deadline or self.deadline(), channel)

    def send_to(self, node_id: int, request: Request[R], deadline: Deadline | None = None) -> R:
        """One attempt at ``request`` to that broker."""
        limit = deadline or self.deadline()
        timeout_ms = min(self.config.request_timeout_ms, limit.remaining_ms)
        return self.connection(node_id, limit).send(request, timeout_ms)

    def send_any(self, request: Request[R], deadline: Deadline | None = None) -> R:
        """``request`` to whichever broker answers, tried again until one does or ``deadline`` passes."""
        self._check_process()
        limit = deadline or self.deadline()
        return self.retry(lambda: self._ask_any(request, limit), what=request.api_name(), deadline=limit)

    def coordinator(self, key: str, key_type: int = GROUP_KEY_TYPE, deadline: Deadline | None = None) -> int:
        """The node id of the coordinator of a group or transactional id. One attempt; its failures are
        retriable.
        """
        self._check_process()
        if (known := self._coordinators.get((key_type, key))) is not None:
            return known
        limit = deadline or self.deadline()
        response = self._ask_any(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), limit)
        found = response.coordinators[0]
        if found.error_code:
            raise BrokerError(found.error_code, f"coordinator of {key}", found.error_message)
        if found.node_id not in self._metadata.brokers:
            self.refresh((), limit)
        self._coordinators[key_type, key] = found.node_id
        return found.node_id

    def forget_coordinator(self, key: str, key_type: int = GROUP_KEY_TYPE) -> None:
        """The coordinator turned out to be another; `coordinator` asks again."""
        self._coordinators.pop((key_type, key), None)

    def retry(
        self,
        operation: Callable[[], T],
        *,
        what: str,
        deadline: Deadline | None = None,
        topics: Collection[str] = (),
        between: Callable[[KafkaError], None] | None = None,
    ) -> T:
        """`network.retry.retry` with this config's backoff; refreshes the metadata of ``topics`` after each
        failure.

        Unknown topics and hung-up handshakes end it sooner than ``deadline``: see the constants above. A
        topic that was waited for in vain is not waited for again while it stays unknown.
        """
        limit = deadline or self.deadline()
        patience = _Patience(self, topics, knows_cluster=self._knows_cluster())

        def told(error: KafkaError) -> None:
            if between is not None:
                between(error)
            if topics:
                self.refresh(topics, limit)

        backoff = Backoff(first_ms=self.config.retry_backoff_ms, most_ms=self.config.retry_backoff_max_ms)
        return retry(
            operation, what=what, deadline=limit, backoff=backoff, retriable=patience.lasts, between=told
        )

    def close(self) -> None:
        """Close every connection; the router may be used again and then starts anew."""
        self._check_process()
        self._brokers.close()

    def _check_process(self) -> None:
        # A lock that a thread of the parent held at the fork would never be freed in the child.
        if self._pid != os.getpid():
            self._start_empty()

    def _unknown(self, topics: Iterable[str]) -> set[str]:
        """Those of ``topics`` that the last answer about them called unknown."""
        known = self._metadata.topics
        return {
            name
            for name in topics
            if name in known and known[name].error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }

    def _are_gone(self, topics: Iterable[str]) -> bool:
        # Not for ever: a topic that is created again may take a moment to reach every broker.
        since = time.monotonic() - self.config.metadata_max_age_ms / 1000
        return all(self._gone.get(name, since) > since for name in topics)

    def _note_gone(self, topics: Iterable[str]) -> None:
        with self._lock:
            self._gone.update(dict.fromkeys(topics, time.monotonic()))

    def _knows_cluster(self) -> bool:
        return bool(self._metadata.brokers)

    def _fresh(self, topics: Collection[str] | None) -> bool:
        oldest = time.monotonic() - self.config.metadata_max_age_ms / 1000
        fetched, never = self._fetched_at, float("-inf")
        if topics is None or not topics:
            return fetched.get(None, never) >= oldest or (topics is not None and self._knows_cluster())
        known: Mapping[str, Any] = self._metadata.topics
        return all(
            fetched.get(name, never) >= oldest and name in known and not known[name].error_code
            for name in topics
        )

    def _ask_any(self, request: Request[R], deadline: Deadline) -> R:
        """Ask live connections, then the brokers known, then bootstrap anew (KIP-899: all of them may have
        moved).
        """
        failures: list[KafkaError] = []
        for connect in self._ways(deadline):
            if deadline.expired:
                break
            try:
                timeout_ms = min(self.config.request_timeout_ms, deadline.remaining_ms)
                return connect().send(request, timeout_ms)
            except NetworkError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        causes = "; ".join(dict.fromkeys(str(error) for error in failures)) or "no time was left"
        raise NetworkError(f"no broker answered {request.api_name()}: {causes}")

    def _ways(self, deadline: Deadline) -> Iterable[Callable[[], Connection]]:
        for connection in sorted(self._brokers.live(), key=lambda c: c.in_flight):
            yield lambda connection=connection: connection  # type: ignore[misc]
        # Half of what is left at most, so that brokers which are gone for good leave time for the bootstrap
        # servers.
        for broker in self._metadata.brokers.values():
            share = deadline.within_ms(deadline.remaining_ms / 2)
            yield lambda broker=broker, share=share: self._brokers.connection(broker, share)  # type: ignore[misc]
        yield lambda: self._brokers.bootstrap(deadline)


class _Patience:
    """Which failures are worth another attempt, where that depends on how often or how long they came
    already.
    """

    def __init__(self, router: Router, topics: Collection[str], *, knows_cluster: bool) -> None:
        self._router = router
        self._topics = topics
        self._seen = set(router._metadata.topics).issuperset(topics)
        self._unknown_until = Deadline.after_ms(KNOWN_TOPIC_WAIT_MS if self._seen else NEW_TOPIC_WAIT_MS)
        self._always_unknown = set(topics)
        self._hang_ups_left = None if knows_cluster else HANDSHAKES_HUNG_UP - 1

    def lasts(self, error: KafkaError) -> bool:
        """Whether to try again after ``error``."""
        if isinstance(error, BrokerError) and error.error_code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ):
            return self._lasts_unknown()
        if isinstance(error, BrokerError) and error.error_code is ErrorCode.BROKER_NOT_AVAILABLE:
            return True  # `Router.connection`'s word for a broker that has just gone from the metadata
        if isinstance(error, HandshakeClosedError) and self._hang_ups_left is not None:
            self._hang_ups_left -= 1
            return self._hang_ups_left >= 0
        return is_retriable(error)

    def _lasts_unknown(self) -> bool:
        unknown = self._router._unknown(self._topics)
        self._always_unknown &= unknown
        if unknown and self._router._are_gone(unknown):
            return False
        if not self._unknown_until.expired:
            return True
        # Each task of a read asks anew: one wait in a process is enough for a topic that was deleted.
        if self._seen:
            self._router._note_gone(self._always_unknown)
        return False


_routers: dict[tuple[int, ClientConfig], Router] = {}
_routers_lock = threading.Lock()


def router_for(config: ClientConfig) -> Router:
    """This process's router for ``config``: Spark reuses its Python workers, and the next task starts
    connected.
    """
    key = (os.getpid(), config)
    router = _routers.get(key)
    if router is None:
        with _routers_lock:
            router = _routers.setdefault(key, Router(config))
    return router


def _after_fork() -> None:
    global _routers_lock
    _routers_lock = threading.Lock()
    inherited = list(_routers.values())
    _routers.clear()
    for router in inherited:
        router._brokers._check_process()


os.register_at_fork(after_in_child=_after_fork)
