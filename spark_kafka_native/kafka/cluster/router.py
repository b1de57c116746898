"""`Router`: finds the broker for a request. It keeps the metadata fresh and knows nothing about records.

Any thread may use it. `router_for` shares one per process and config, so that the next task starts with open
connections.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Generic, NamedTuple, Self, TypeVar
from uuid import UUID

from ..config.client_config import ClientConfig
from ..error_code import ErrorCode
from ..errors import (
    AuthenticationError,
    BrokerError,
    ClientClosedError,
    ConfigError,
    KafkaError,
    NetworkError,
    UnsupportedVersionError,
    joined,
    own_copy,
)
from ..model import Broker, TopicPartition
from ..network.connection import Connection
from ..network.pending_response import PendingResponse, wait_for_any
from ..observe import catalogue as metric
from ..observe.metrics import MetricsRegistry, Observed, error_tag
from ..protocol.api.find_coordinator import GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE
from ..protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ..protocol.message import Request, Response
from ..runtime.deadline import Deadline
from ..runtime.fork import in_forked_child
from ..runtime.retry import Backoff, retry
from ..runtime.waiting import DeadlineLock
from .brokers import OF_ONE_BROKER, Brokers, kind_of
from .metadata import ClusterMetadata, leader_changes, require_brokers, topics_named
from .retry_policy import DeletedTopics, FirstContacts, RetryPolicy, unknown_topics

R = TypeVar("R", bound=Response)
T = TypeVar("T")
_LOG = logging.getLogger("spark_kafka_native.cluster")

WARM_ROUTERS = 8
"""The number of unused routers of a process that stay connected."""
LEAST_SHARE = 8
"""Known brokers are asked until this part of the time for all of them is left."""
NEXT_AFTER_MS = 3_000
"""A connection that takes longer for a look-up does not keep the next one from being asked, too."""
MAX_IN_TURN = 3
"""Where this number of live connections take longer, all others are asked at once."""
LOOK_MS = 50
"""How soon an answer is noticed that another thread reads, where several are waited for."""
SHOWN_CHANGES = 5
"""The number of leader changes in a log line: a broker that stops hands over thousands of partitions."""


class Leader(NamedTuple):
    """The leader of a partition and its epoch."""

    node_id: int
    leader_epoch: int
    topic_id: UUID | None


class Router:
    """Metadata of one cluster and the connections to its brokers."""

    def __init__(self, config: ClientConfig, brokers: Brokers | None = None) -> None:
        self.config = config
        self.metrics = MetricsRegistry()
        """The metrics of all clients that share this router."""
        self._brokers = brokers or Brokers(config, metrics=self.metrics)
        self._ended: KafkaError | None = None
        self._start_empty()
        in_forked_child(self._start_empty)

    def _start_empty(self) -> None:
        self._refreshes = DeadlineLock()
        self._metadata = ClusterMetadata()
        self._fetched_at: dict[str | None, float] = {}  # by topic; None: all of them
        self.coordinators = Coordinators()
        self._deleted = DeletedTopics(self.config.metadata_max_age_ms)
        self._contacts = FirstContacts()

    def __repr__(self) -> str:
        brokers = len(self._metadata.brokers)
        return f"<Router to {', '.join(self.config.bootstrap_servers)}: {brokers} brokers known>"

    def deadline(self, timeout_ms: float | None = None) -> Deadline:
        """``timeout_ms`` from now, or the config's time for an operation with its retries."""
        return Deadline.after_ms(self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms)

    @property
    def snapshot(self) -> ClusterMetadata:
        """The metadata that are known now, however old; no request is made."""
        return self._metadata

    def expect(self, topics: Iterable[str]) -> None:
        """``topics`` exist, as another process has seen. While they are unknown, operations wait for them as
        long as for those that this router has seen (see `RetryPolicy`).
        """
        self._deleted.expect(topics)

    def note_deleted(self, topics: Mapping[str, UUID | None]) -> None:
        """A full wait for ``topics``, which existed with these ids, has ended without them."""
        unknown = unknown_topics(self._metadata, topics)
        self._deleted.add({name: topics[name] for name in unknown})

    def was_deleted(self, topic: str, topic_id: UUID | None) -> bool:
        """True if `note_deleted` was called with ``topic`` and this id in the last ``metadata.max.age.ms``,
        and no response has named the topic since. It may have come back: ask once. False without an id: the
        name may be that of another topic by now.
        """
        return self._deleted.contains(topic, topic_id)

    def metadata(
        self,
        topics: Collection[str] | None = None,
        *,
        refresh: bool = False,
        deadline: Deadline | None = None,
        create: bool = False,
    ) -> ClusterMetadata:
        """Metadata that covers ``topics`` (None: all of the cluster), requested if missing, old or
        ``refresh``. ``create``: brokers may create missing topics, if they are configured to.

        A topic that cannot be described is included with its error code. Raises the last error if no broker
        answered.
        """
        self._raise_if_ended()
        # Without the lock: its holder may be waiting for a broker that does not answer.
        if not refresh and self._fresh(topics):
            return self._metadata
        limit = deadline or self.deadline()
        what = f"asking for metadata of {topics_named(topics)}" if topics else "asking for metadata"
        return self.retry(lambda: self.refresh(topics, limit, create=create), what=what, deadline=limit)

    def refresh(
        self, topics: Collection[str] | None, deadline: Deadline, *, create: bool = False
    ) -> ClusterMetadata:
        """One attempt at new metadata for ``topics``, from the broker that answers first. Threads that need
        the same at a time share one request.
        """
        began = time.monotonic()
        wanted = None if topics is None else sorted(set(topics))
        keys: list[str | None] = [None] if wanted is None else [*wanted]
        asked = None if wanted is None else [MetadataRequestTopic(name=name) for name in wanted]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=create)

        def ask() -> ClusterMetadata:
            fetched, never = self._fetched_at, float("-inf")
            if keys and not create and all(fetched.get(one, never) > began for one in keys):
                return self._metadata  # another thread has asked since this one began to wait for it
            now = time.monotonic()
            response = self.look_up(request, deadline)
            if response.error_code is ErrorCode.REBOOTSTRAP_REQUIRED:  # KIP-1102
                self._brokers.start_again()
                response = self._brokers.bootstrap(deadline).send(request, deadline=deadline)
                if response.error_code is ErrorCode.REBOOTSTRAP_REQUIRED:  # others of them may know better
                    raise NetworkError("a bootstrap server answers REBOOTSTRAP_REQUIRED, too")
            if response.error_code:
                raise BrokerError(response.error_code, "Metadata")
            require_brokers(response)
            self._learn(self._metadata.updated(response, wanted))
            if wanted is None:
                self._fetched_at = dict.fromkeys(self._metadata.topics, now)
            self._fetched_at.update(dict.fromkeys(keys, now))
            self._deleted.update(self._metadata)
            return self._metadata

        return self._refreshes.run(ask, deadline, "asking for metadata")

    def leader(self, topic_partition: TopicPartition, deadline: Deadline | None = None) -> Leader:
        """The leader of ``topic_partition``. Raises `BrokerError`: no such topic or partition, or no leader
        (retriable).
        """
        return _leader(self.metadata((topic_partition.topic,), deadline=deadline), topic_partition)

    def leaders(
        self, topic_partitions: Iterable[TopicPartition], deadline: Deadline | None = None
    ) -> dict[TopicPartition, Leader]:
        """The leaders of several partitions, with one metadata request for all that are unknown. Raises the
        error of the first partition that has none.
        """
        wanted = list(topic_partitions)
        metadata = self.metadata({tp.topic for tp in wanted}, deadline=deadline)
        return {tp: _leader(metadata, tp) for tp in wanted}

    def known_leaders(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Leader | BrokerError]:
        """The leader of each partition as far as it is known now, or the reason why it has none; no request
        is made.
        """
        found: dict[TopicPartition, Leader | BrokerError] = {}
        for topic_partition in topic_partitions:
            try:
                found[topic_partition] = _leader(self._metadata, topic_partition)
            except BrokerError as error:
                found[topic_partition] = error
        return found

    def connection(self, node_id: int, deadline: Deadline | None = None, channel: str = "") -> Connection:
        """A live connection to a broker of the cluster; a ``channel`` of its own does not wait behind other
        requests.
        """
        return self._brokers.connection(self.broker(node_id), deadline or self.deadline(), channel)

    def ready(self, node_id: int) -> Connection | None:
        """As `connection`, if there is one that can be had without waiting."""
        return self._brokers.ready(self.broker(node_id))

    def broker(self, node_id: int) -> Broker:
        """A broker in the metadata. Raises `BrokerError` if they do not contain it."""
        broker = self._metadata.brokers.get(node_id)
        if broker is None:
            raise BrokerError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id}", "the metadata do not name it"
            )
        return broker

    def outage(self, node_id: int) -> KafkaError | None:
        """Why that broker cannot be connected to, as far as this is known; no attempt is made."""
        return self._brokers.outages.error(node_id)

    def knows(self, topics: Collection[str]) -> bool:
        """True if `metadata` and `leader` know ``topics`` without a request."""
        return self._fresh(topics)

    def send_to(
        self,
        node_id: int,
        request: Request[R],
        deadline: Deadline | None = None,
        timeout_ms: float | None = None,
        at_most: int | None = None,
    ) -> R:
        """One attempt at ``request`` to that broker, which has ``timeout_ms`` (None: the config's) to
        answer. ``at_most`` caps the version.
        """
        limit = deadline or self.deadline()
        connection = self.connection(node_id, limit)
        if at_most is None:
            return connection.send(request, timeout_ms, limit)
        return connection.send(request, timeout_ms, limit, at_most)

    def send_any(self, request: Request[R], deadline: Deadline | None = None) -> R:
        """Send ``request`` to any broker, with retries until one answers or ``deadline`` passes."""
        limit = deadline or self.deadline()
        return self.retry(lambda: self.ask_any(request, limit), what=request.api_name(), deadline=limit)

    def ask_any(self, request: Request[R], deadline: Deadline) -> R:
        """One attempt at ``request``: live connections, then the known brokers, then the bootstrap addresses
        again (KIP-899: all brokers may have moved). Raises the failures of all. After an
        `AuthenticationError` no other connection is made: the others would refuse it as well, and the account
        might be locked.
        """
        return self._ask(request, deadline, math.inf)

    def look_up(self, request: Request[R], deadline: Deadline) -> R:
        """As `ask_any`, for a request that changes nothing: it goes to several live connections at a time if
        the first ones are slow (`NEXT_AFTER_MS`), and the first answer counts. Otherwise each broker behind a
        network that drops everything would cost a whole request timeout.
        """
        return self._ask(request, deadline, NEXT_AFTER_MS)

    def _ask(self, request: Request[R], deadline: Deadline, next_after_ms: float) -> R:
        failures: list[KafkaError] = []
        with _Asked[R](deadline, failures) as asked:
            try:
                answer = self._ask_in_turn(asked, request, deadline, next_after_ms)
            except KafkaError:  # no other connection is made, but a broker asked before may answer
                answer = asked.first(math.inf)
                if answer is None:
                    raise
            if answer is not None:
                return answer
        if len(failures) == 1:
            raise failures[0]
        causes = "; ".join(dict.fromkeys(str(error) for error in failures)) or "no time was left"
        is_retriable = any(isinstance(error, NetworkError) for error in failures)
        kind = NetworkError if is_retriable else kind_of(failures)
        raise joined(kind, f"no broker answered {request.api_name()}: {causes}", failures)

    def _ask_in_turn(
        self, asked: _Asked[R], request: Request[R], deadline: Deadline, next_after_ms: float
    ) -> R | None:
        for before_ms, connect, at_once in self._in_turn(asked, deadline, next_after_ms):
            if before_ms and (answer := asked.first(before_ms)) is not None:
                return answer
            asked.ask(connect, request)
            is_followed = at_once and math.isfinite(next_after_ms)
            if (answer := asked.first(0 if is_followed else next_after_ms)) is not None:
                return answer
        return asked.first(math.inf)

    def _in_turn(
        self, asked: _Asked[R], deadline: Deadline, next_after_ms: float
    ) -> Iterator[tuple[float, Callable[[], Connection], bool]]:
        """The connections to ask: how long the others are waited for before, and whether the next one is
        asked at once.
        """
        # A random one of the idle connections: always the same one might be the broker that lags behind.
        # Those of a channel come last: a heartbeat must not wait behind an answer that takes long.
        live = sorted(
            self._brokers.live(), key=lambda c: (c.muted_ms, c.channel != "", c.in_flight, random.random())
        )
        # With a long quota, or a full socket, a broker takes the request late, and may be dead.
        ready = [one for one in live if not one.has_unwritten and one.muted_ms < next_after_ms]
        for i, connection in enumerate(ready, 1):
            # Where several are silent all may be, and time has to be left to connect to others.
            yield connection.muted_ms, lambda one=connection: one, MAX_IN_TURN < i < len(ready)  # type: ignore[misc]
        # One that was just made and is silent as well says that the brokers are slow: more of them would not
        # help. On a channel a request may be held back.
        since = time.monotonic() - self.config.request_timeout_ms / 1000
        recent = [one for one in ready if one.opened_at > since and not one.closed and not one.channel]
        if not (asked.is_waiting and recent):
            # No answer of the others is seen while a connection is made.
            is_held_back = len(ready) < len(live)

            def at_most_ms() -> float:
                return NEXT_AFTER_MS if asked.is_waiting or is_held_back else math.inf

            for connect in self._ways(deadline, at_most_ms, live):
                yield 0.0, connect, False
        for connection in live:
            if connection not in ready:
                before_ms = math.inf if connection.has_unwritten else connection.muted_ms
                yield before_ms, lambda one=connection: one, False  # type: ignore[misc]

    def retry(
        self,
        operation: Callable[[], T],
        *,
        what: str,
        deadline: Deadline | None = None,
        topics: Collection[str] = (),
        between: Callable[[KafkaError], None] | None = None,
    ) -> T:
        """`runtime.retry.retry` with the backoff of this config; refreshes the metadata of ``topics`` after
        each failure.

        Unknown topics, closed handshakes and addresses that refuse may end it before ``deadline``: see
        `RetryPolicy`.
        """
        limit = deadline or self.deadline()
        policy = RetryPolicy(topics, self._metadata, self._deleted, self.config)

        def after_failure(error: KafkaError) -> None:
            self.metrics.count(metric.RETRIES, 1, error_tag(error))
            if between is not None:
                between(error)
            if topics:
                self.refresh(topics, limit)

        backoff = Backoff(first_ms=self.config.retry_backoff_ms, max_ms=self.config.retry_backoff_max_ms)

        def attempt() -> T:
            self._raise_if_ended()
            return operation()

        with policy.logged(limit, self._knows_cluster, self._contacts):
            return retry(
                attempt,
                what=what,
                deadline=limit,
                backoff=backoff,
                retriable=lambda error: policy.should_retry(error, self._metadata),
                between=after_failure,
            )

    def leave(self) -> list[threading.RLock]:
        """As `Brokers.leave`."""
        return self._brokers.leave()

    def observed(self) -> list[Observed]:
        """Values that are measured when metrics are read."""
        return self._brokers.observed()

    def close_idle(self) -> None:
        """Close connections that have been idle for longer than ``connections.max.idle.ms``: task by task, a
        worker comes to all brokers of a large cluster.
        """
        self._brokers.live()

    def close(self) -> None:
        """Close every connection. The router may be used again; then it starts anew."""
        self._brokers.close()

    def end(self, error: KafkaError | None = None) -> None:
        """Close every connection for good: calls in progress, once they notice, and all later ones raise an
        error like ``error`` (None: `ClientClosedError`). A call that is connecting notices at the end of that
        attempt.
        """
        self._ended = error or ClientClosedError("the client was closed")
        self._brokers.end(self._ended)

    def _raise_if_ended(self) -> None:
        if self._ended is not None:
            raise own_copy(self._ended)

    def _learn(self, metadata: ClusterMetadata) -> None:
        if _LOG.isEnabledFor(logging.INFO):
            changes = list(leader_changes(self._metadata, metadata))
            more = f", and {len(changes) - SHOWN_CHANGES} more" if len(changes) > SHOWN_CHANGES else ""
            if changes:
                _LOG.info("other leaders: %s%s", "; ".join(changes[:SHOWN_CHANGES]), more)
        self._metadata = metadata

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

    def _ways(
        self, deadline: Deadline, at_most_ms: Callable[[], float], live: Collection[Connection]
    ) -> Iterable[Callable[[], Connection]]:
        """The connections that have to be made first, each in ``at_most_ms()``. The brokers of ``live`` are
        asked already, but for channels: a request of another part of the client may take long there.
        """
        # To connect, at most half of the rest of the time, so that brokers that are gone leave some for the
        # bootstrap servers. Those that did not answer before are asked last, and those for which little
        # time is left next time: they must not count as unreachable after a moment.
        whole_ms = deadline.remaining_ms / 2
        known = deadline.within_ms(whole_ms)
        there = {one.address for one in live if not one.closed and not one.channel}
        brokers = sorted(
            (one for one in self._metadata.brokers.values() if f"{one.host}:{one.port}" not in there),
            key=lambda broker: 0.0 if self.outage(broker.node_id) is None else 1.0 + random.random(),
        )
        for broker in brokers:
            if known.remaining_ms < whole_ms / LEAST_SHARE:
                break
            share = known.within_ms(min(at_most_ms(), known.remaining_ms / 2))
            yield lambda broker=broker, share=share: self._brokers.connection(broker, share)  # type: ignore[misc]
        yield lambda: self._brokers.bootstrap(deadline.within_ms(at_most_ms()))


@contextlib.contextmanager
def _noted(failures: list[KafkaError], *, final: type[KafkaError] = AuthenticationError) -> Iterator[None]:
    """Appends to ``failures`` the error for which the next broker is asked."""
    try:
        yield
    except (AuthenticationError, final):
        raise
    except OF_ONE_BROKER as error:
        failures.append(error)


class _Asked(Generic[R]):
    """One request on several connections, of which the first answer counts."""

    def __init__(self, deadline: Deadline, failures: list[KafkaError]) -> None:
        self._deadline = deadline
        self._failures = failures
        self._pendings: dict[PendingResponse[R], Connection] = {}

    @property
    def is_waiting(self) -> bool:
        """True if an answer may still come."""
        return bool(self._pendings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pending in self._pendings:
            pending.abandon()

    def ask(self, connect: Callable[[], Connection], request: Request[R]) -> None:
        """Send ``request`` on the connection that ``connect`` returns."""
        if self._deadline.expired:
            return
        connection: Connection | None = None
        with _noted(self._failures):
            connection = connect()
        # All brokers are of one release, more or less; but the port of a controller has no Metadata.
        final = AuthenticationError if isinstance(request, MetadataRequest) else UnsupportedVersionError
        if connection is not None:
            with _noted(self._failures, final=final):
                self._pendings[connection.submit(request, deadline=self._deadline)] = connection

    def first(self, timeout_ms: float) -> R | None:
        """The first answer within ``timeout_ms``; None if there is none, at once if all have failed.

        A connection with requests of others is closed after its request timeout only, as they would be cut.
        """
        limit = self._deadline.within_ms(timeout_ms)
        while self._pendings:
            oldest = min(self._pendings, key=lambda one: one.overdue_at)
            until = limit.within_ms((oldest.overdue_at - time.monotonic()) * 1000)
            look = until if len(self._pendings) == 1 else until.within_ms(LOOK_MS)
            arrived = wait_for_any(list(self._pendings), look)
            if not arrived and until.expired:
                if self._deadline.cancelled or (limit.expired and not self._deadline.expired):
                    return None
                arrived = [oldest]
            for pending in arrived:
                connection = self._pendings.pop(pending)
                with _noted(self._failures):
                    return self._answer(pending, connection)
            if self._deadline.expired:
                return None
        return None

    def _answer(self, pending: PendingResponse[R], connection: Connection) -> R:
        """Raises the error of one that has failed, or has taken too long."""
        if not pending.done:
            # On a channel a broker may hold an answer back for longer than the request timeout.
            is_overdue = False if connection.channel else None
            connection.give_up(pending, (time.monotonic() - pending.sent_at) * 1000, is_overdue=is_overdue)
        return pending.result()


def check_shared(router: Router | None, config: ClientConfig) -> None:
    """Raise `ConfigError` if ``config``, of a client that was given a ``router``, contradicts the router's
    own config: it would be ignored.
    """
    if router is None or router.config == config:
        return
    other = [f.name for f in fields(config) if getattr(router.config, f.name) != getattr(config, f.name)]
    raise ConfigError(f"{', '.join(other)}: a router that is given has settings of its own, and those count")


_warm: OrderedDict[ClientConfig, tuple[Router, float]] = OrderedDict()
"""The routers that were requested last, and when; the newest at the end."""

_routers: weakref.WeakValueDictionary[ClientConfig, Router] = weakref.WeakValueDictionary()
"""All routers that are warm or in use."""

_routers_lock = threading.Lock()


def router_for(config: ClientConfig) -> Router:
    """This process's router for ``config``: Spark reuses its Python workers, and the next task starts
    connected.

    An unused router that was not requested lately (`WARM_ROUTERS`, ``connections.max.idle.ms``) is closed;
    one in use never is, but for connections that have been idle for that long.
    """
    now = time.monotonic()
    with _routers_lock:
        router = _routers.get(config)
        if router is None:
            router = _routers[config] = Router(config)
            # By reference counting: nothing in a router may refer back to it, or its sockets would stay open
            # until the next garbage collection; for good if it is in `Brokers`, which the finalizer keeps.
            weakref.finalize(router, router._brokers.close).atexit = False
        _warm[config] = router, now
        _warm.move_to_end(config)
        dropped = _drop_cold(now)
    dropped.clear()  # closes the unused ones, without the lock
    router.close_idle()
    return router


def _drop_cold(now: float) -> list[Router]:
    dropped = []
    for config, (router, asked_for) in list(_warm.items()):
        idle_ms = (now - asked_for) * 1000
        if len(_warm) > WARM_ROUTERS or 0 <= config.connections_max_idle_ms < idle_ms:
            dropped.append(router)
            del _warm[config]
    return dropped


def _after_fork() -> None:
    global _routers_lock
    _routers_lock = threading.Lock()
    _warm.clear()
    _routers.clear()


in_forked_child(_after_fork)


def _leader(metadata: ClusterMetadata, topic_partition: TopicPartition) -> Leader:
    """The leader in ``metadata``. Raises as `Router.leader`."""
    partition = metadata.partition(topic_partition)
    if partition.leader is None or partition.leader not in metadata.brokers:
        raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {topic_partition}")
    return Leader(partition.leader, partition.leader_epoch, metadata.topics[topic_partition.topic].topic_id)


_MOVED = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,  # by `Router.connection`: the broker is not in the metadata
    )
)


class CoordinatorKey(NamedTuple):
    """A group or a transactional id; prints as in ``group orders-reader``."""

    key_type: int
    name: str

    @classmethod
    def group(cls, group_id: str) -> Self:
        """A consumer group."""
        return cls(GROUP_KEY_TYPE, group_id)

    @classmethod
    def transaction(cls, transactional_id: str) -> Self:
        """A transactional producer."""
        return cls(TRANSACTION_KEY_TYPE, transactional_id)

    def __str__(self) -> str:
        return f"{'group' if self.key_type == GROUP_KEY_TYPE else 'transactional id'} {self.name}"


class Coordinators:
    """The coordinators that a router knows, by node id. They move as leaders do: with the partition of the
    internal topic that a key belongs to. Any thread may use it.
    """

    def __init__(self) -> None:
        self._known: dict[CoordinatorKey, int] = {}

    def get(self, key: CoordinatorKey) -> int | None:
        """The node id; None while it is not known."""
        return self._known.get(key)

    def note(self, key: CoordinatorKey, node_id: int) -> None:
        """The coordinator of ``key`` is ``node_id``, by a response of a broker."""
        self._known[key] = node_id

    def learn(self, key: CoordinatorKey, error: KafkaError) -> None:
        """Forget the coordinator of ``key`` if ``error`` may mean that it has moved."""
        moved = (
            error.error_code in _MOVED if isinstance(error, BrokerError) else isinstance(error, NetworkError)
        )
        if moved:
            self._known.pop(key, None)
