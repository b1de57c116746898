"""`Brokers`: the connections of one process to the brokers of one cluster, by node id; `Outages`: which
brokers cannot be connected to.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from ..config.client_config import CANONICAL, ClientConfig, split_address
from ..errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    KafkaError,
    NetworkError,
    ProtocolError,
    SecurityError,
    UnsupportedVersionError,
    joined,
    own_copy,
    to_keep,
)
from ..model import Broker
from ..network.connection import Connection
from ..observe import catalogue as metric
from ..observe.metrics import MetricsRegistry, Observed
from ..protocol.api.metadata import MetadataRequest
from ..runtime.deadline import Deadline
from ..runtime.fork import in_forked_child
from ..runtime.name_lookup import canonical_names
from ..runtime.waiting import DeadlineLock

_Key = tuple[int, str]
"""Node id and channel."""
Open = Callable[[str, int, ClientConfig, Deadline], Connection]
_LOG = logging.getLogger("spark_kafka_native")
OF_ONE_BROKER = (NetworkError, ProtocolError, SecurityError, BrokerError, UnsupportedVersionError)
"""Errors of a connection after which the other brokers are asked; but for `AuthenticationError`."""
SAY_AFTER_S = 1.5
"""A restarted broker or a slow handshake takes this time, and is not worth a log line."""
FORGET_AFTER_S = 30.0
"""A failure that was not followed by another attempt in this time is over: after a leader has moved, its
former broker is not connected to any more.
"""


class _Known(NamedTuple):
    """A connection, with the host and the port that the broker advertised."""

    connection: Connection
    host: str
    port: int
    began_at: float
    """When the attempt began; 0 for one that was adopted meanwhile."""


class _Turns:
    """The threads that need one connection take turns. A failure counts for all that waited meanwhile: one
    after the other would wait for a broker that has moved to another address.
    """

    def __init__(self) -> None:
        self.lock = DeadlineLock()
        self._failure: KafkaError | None = None
        self._failed_at = 0.0

    def raise_failure(self, since: float) -> None:
        """Raise the error of an attempt that ended after ``since``."""
        if self._failure is not None and self._failed_at >= since:
            raise own_copy(self._failure)

    @contextlib.contextmanager
    def noting_failure(self, deadline: Deadline) -> Iterator[None]:
        """Wraps an attempt. One that ends at its caller's ``deadline`` says nothing to callers with more
        time.
        """
        try:
            yield
        except KafkaError as error:
            if not deadline.expired:
                self._failure, self._failed_at = to_keep(error), time.monotonic()
            raise


class Brokers:
    """Opens a connection when it is first needed, and a new one when it has died. A forked child never uses
    connections of its parent.
    """

    def __init__(
        self,
        config: ClientConfig,
        open_connection: Open = Connection.open,
        metrics: MetricsRegistry | None = None,
    ) -> None:
        self._config = config
        self._open = open_connection
        self.metrics = metrics or MetricsRegistry()
        """The metrics of all connections."""
        self._ended: KafkaError | None = None
        self._has_connected = False
        """To a broker under the address that it advertises: that of a bootstrap server proves less."""
        self._start_empty()
        in_forked_child(self._disown)

    def _start_empty(self) -> None:
        self._connections: dict[_Key, _Known] = {}
        self._bootstrapped: Connection | None = None
        self._leaving: list[Connection] = []
        """Replaced by others, but their requests are not answered yet."""
        self._turns: dict[tuple[_Key, str, int], _Turns] = {}
        self.outages = Outages()
        """The brokers that cannot be connected to."""

    def connection(self, broker: Broker, deadline: Deadline, channel: str = "") -> Connection:
        """A live connection to ``broker``. Each ``channel`` has a connection of its own, because a long fetch
        holds up the requests behind it.

        If the address of a node id has changed, a new connection is made. Raises `NetworkError` with the
        address that the broker advertises.
        """
        key, known = (broker.node_id, channel), self._connections
        turns, began = self._turns_of(key, broker), time.monotonic()
        place = (broker.host, broker.port)

        def connect() -> Connection:
            self._raise_if_moved(key, broker, began)
            if (found := self._find(key, broker, deadline)) is not None:
                return found
            connection = self._adopt(broker) if not channel else None
            if connection is None:
                turns.raise_failure(began)
                with turns.noting_failure(deadline):
                    connection = self._connect(broker, deadline)
            connection.channel = channel
            try:
                self._raise_if_moved(key, broker, began)
            except NetworkError:
                self._let_go(connection)
                raise
            self._note(known, key, _Known(connection, *place, began))
            for former in [one for one in list(self._turns) if one[0] == key and one[1:] != place]:
                self._turns.pop(former, None)
            return self._unless_closed(connection, known)

        return turns.lock.run(connect, deadline, f"connecting to broker {broker.node_id}")

    def _raise_if_moved(self, key: _Key, broker: Broker, began: float) -> None:
        """Raise `NetworkError` if a call that began after ``began``, by newer metadata, has found the broker
        at another address."""
        other = self._connections.get(key)
        if other is not None and other[1:3] != (broker.host, broker.port) and other.began_at > began:
            at = f"{other.host}:{other.port}"
            raise NetworkError(f"broker {broker.node_id}: meanwhile another thread has found it at {at}")

    def ready(self, broker: Broker, channel: str = "") -> Connection | None:
        """A live connection as `connection` returns it, if there is one that can be had without waiting."""
        key = (broker.node_id, channel)

        def find() -> Connection | None:
            if key not in self._connections and not channel and (adopted := self._adopt(broker)) is not None:
                self._note(self._connections, key, _Known(adopted, broker.host, broker.port, 0.0))
            found = self._connections.get(key)
            if found is None or found[1:3] != (broker.host, broker.port):
                return None
            connection = found.connection
            return connection if connection.alive() and not connection.renewal_due else None

        try:
            return self._turns_of(key, broker).lock.run(find, Deadline.after_ms(0), "connecting")
        except NetworkError:  # another thread is connecting
            return None

    def _note(self, known: dict[_Key, _Known], key: _Key, made: _Known) -> None:
        self._has_connected = True
        former = known.get(key, made)
        known[key] = made
        if former.connection is not made.connection:  # at another address, by older metadata
            self._let_go(former.connection)

    def _unless_closed(self, connection: Connection, known: object) -> Connection:
        """``connection``, unless `close` was called since ``known`` was read, and missed it."""
        if self._connections is known:
            return connection
        connection.close()
        self._raise_if_ended()
        raise NetworkError(f"{connection.address}: the client was closed while it was connecting")

    def _turns_of(self, key: _Key, broker: Broker) -> _Turns:
        # For each connection, and each address: one that does not answer must not block others.
        return self._turns.setdefault((key, broker.host, broker.port), _Turns())

    def leave(self) -> list[threading.RLock]:
        """Close the connections that this thread is in the middle of using, for a signal handler that
        interrupted it; returns the locks of all connections. The interrupted call continues with another
        connection, or raises an error.
        """
        known = self._known()
        for connection in known:
            if connection.in_use_here or connection.closed:  # closed halfway, if that was interrupted
                connection.close()
        return [connection.lock for connection in known]

    def live(self) -> list[Connection]:
        """Connections that can be used without waiting for a new one; includes the bootstrap connection."""
        for one in list(self._leaving):
            if one.wind_down():
                with contextlib.suppress(ValueError):  # another thread was faster
                    self._leaving.remove(one)
        return [one for one in self._present() if one.alive() and not one.renewal_due]

    def start_again(self) -> None:
        """Use none of the present connections any more, as their brokers are not those of the cluster now."""
        present = self._present()
        self._connections.clear()
        self._bootstrapped = None
        for connection in present:
            self._let_go(connection)

    def _let_go(self, connection: Connection) -> None:
        """Close ``connection`` once the requests in flight are answered: others wait for them, and a request
        that is cut would be written twice.
        """
        if not connection.wind_down():
            self._leaving.append(connection)

    def _present(self) -> list[Connection]:
        present = [one.connection for one in list(self._connections.values())]
        bootstrapped = self._bootstrapped
        return present if bootstrapped is None else [*present, bootstrapped]

    def _known(self) -> list[Connection]:
        return [*self._present(), *self._leaving]

    def bootstrap(self, deadline: Deadline) -> Connection:
        """A connection to any bootstrap address that answers, tried in random order.

        Raises `NetworkError` with the cause of each failure; an error of TLS or of the protocol if all of
        them failed for that reason.
        """
        known, before = self._connections, self._bootstrapped
        left = random.sample(self._config.bootstrap_servers, len(self._config.bootstrap_servers))
        canonical = self._config.client_dns_lookup == CANONICAL
        failures: dict[str, KafkaError] = {}
        while left:
            share = deadline.within_ms(deadline.remaining_ms / len(left))
            address = left.pop(0)
            try:
                hosts = self._hosts(address, share) if canonical else [split_address(address)]
                connection = self._open_any(hosts, share)
                self._check_is_broker(connection)
                former = self._bootstrapped
                if former is not None and former is not before and former.alive():
                    connection.close()
                    return former  # another thread was faster, and is about to send there
                self._bootstrapped = connection
                if former is not None:
                    self._let_go(former)
                return self._unless_closed(connection, known)
            except OF_ONE_BROKER as error:
                if isinstance(error, AuthenticationError):
                    raise  # the other brokers would refuse it as well, and the account might be locked
                failures[address] = error
        raise _joined(failures, self._config.bootstrap_servers)

    def _check_is_broker(self, connection: Connection) -> None:
        """Raise `UnsupportedVersionError` for the port of a controller, which has no metadata."""
        try:
            connection.version_of(MetadataRequest)
        except UnsupportedVersionError:
            connection.close()
            raise

    def _hosts(self, address: str, deadline: Deadline) -> list[tuple[str, int]]:
        """The brokers behind a bootstrap address, each under its canonical name."""
        host, port = split_address(address)
        return [(name, port) for name in canonical_names(host, port, self._config, deadline)]

    def _open_any(self, hosts: list[tuple[str, int]], deadline: Deadline) -> Connection:
        """A connection to the first of ``hosts`` that answers."""
        failures: dict[str, KafkaError] = {}
        for i, (host, port) in enumerate(hosts):
            share = deadline.within_ms(deadline.remaining_ms / (len(hosts) - i))
            try:
                return self._dial(host, port, share)
            except OF_ONE_BROKER as error:
                if isinstance(error, AuthenticationError) or len(hosts) == 1:
                    raise
                failures[f"{host}:{port}"] = error
        raise _joined(failures, tuple(failures))

    def observed(self) -> list[Observed]:
        """Values that are measured when metrics are read; no request is made."""
        return [Observed(metric.CONNECTIONS, sum(not connection.closed for connection in self._known()))]

    def close(self) -> None:
        """Close every connection."""
        known = self._known()
        # First: from here on, a thread that is connecting closes its connection by itself.
        self._start_empty()
        for connection in known:
            connection.close()

    def end(self, error: KafkaError) -> None:
        """Close every connection, and open no other: attempts raise an error like ``error``."""
        self._ended = error
        self.close()

    def _raise_if_ended(self) -> None:
        if self._ended is not None:
            raise own_copy(self._ended)

    def _disown(self) -> None:
        # The connections are the parent's.
        inherited = self._known()
        self._start_empty()
        for connection in inherited:
            connection.forget()

    def _find(self, key: _Key, broker: Broker, deadline: Deadline) -> Connection | None:
        found = self._connections.get(key)
        if found is None:
            return None
        connection = found.connection
        if found[1:3] == (broker.host, broker.port) and connection.works():
            if not (connection.renewal_due or connection.retired):
                return connection
            # Its session ends (KIP-368). Nothing is sent on another connection before everything sent on this
            # one is answered, or overdue; a caller before may have had too little time for that.
            connection.retire(deadline)
            return None
        self._connections.pop(key, None)  # it must not be found again if its address changes back
        self._let_go(connection)
        return None

    def _adopt(self, broker: Broker) -> Connection | None:
        """The bootstrap connection, if ``broker`` advertises its address: saves a connection."""
        connection = self._bootstrapped
        if (
            connection is None
            or connection.address != f"{broker.host}:{broker.port}"
            or not connection.alive()
            or connection.renewal_due
        ):
            return None
        self._bootstrapped = None
        return connection

    def _dial(self, host: str, port: int, deadline: Deadline) -> Connection:
        self._raise_if_ended()
        began, outcome = time.monotonic(), "failed"
        try:
            connection = self._open(host, port, self._config, deadline)
            outcome = "connected"
        except (SecurityError, ConfigError) as error:
            error.may_pass = self._has_connected and not isinstance(error, AuthenticationError)
            raise
        finally:
            self.metrics.count(metric.DIALS, 1, outcome)
            self.metrics.measure(metric.DIAL_DURATION, time.monotonic() - began, outcome)
        connection.metrics = self.metrics
        return connection

    def _connect(self, broker: Broker, deadline: Deadline) -> Connection:
        address = f"{broker.host}:{broker.port}"
        hint = ""
        named = {split_address(one.lower()) for one in self._config.bootstrap_servers}
        if (broker.host.lower(), broker.port) not in named:
            hint = (
                f". {address} is what broker {broker.node_id} advertises: if clients can't reach it "
                "under that name, its advertised.listeners must change"
            )
        with self.outages.attempt(broker.node_id, address, hint):
            try:
                return self._dial(broker.host, broker.port, deadline)
            except NetworkError as error:
                raise NetworkError(f"broker {broker.node_id}: {error}{hint}") from error
            except ProtocolError as error:  # not a broker: it names no address
                raise ProtocolError(f"broker {broker.node_id} at {address}: {error}{hint}") from error


def _joined(failures: dict[str, KafkaError], addresses: tuple[str, ...]) -> KafkaError:
    """One error for the failures of all bootstrap addresses, of their own type if they agree on it."""
    told = ((address, str(failures[address])) for address in addresses if address in failures)
    causes = "; ".join(text if address in text else f"{address}: {text}" for address, text in told)
    found = failures.values()
    return joined(kind_of(found), f"no bootstrap server could be reached: {causes}", found)


def kind_of(failures: Collection[KafkaError]) -> type[KafkaError]:
    """The type of one error for all of ``failures``: their own if they agree on it."""
    kinds = {type(error) for error in failures}
    return kinds.pop() if len(kinds) == 1 else NetworkError


class _Outage:
    """From the first failed attempt to the first successful one."""

    def __init__(self) -> None:
        self.began_at = self.tried_at = time.monotonic()
        self.error: KafkaError | None = None
        self.attempts: set[object] = set()
        """The attempts in progress."""
        self._unsaid = [True]

    @property
    def is_over(self) -> bool:
        """True if the last attempt was too long ago."""
        return not self.attempts and time.monotonic() - self.tried_at > FORGET_AFTER_S

    def say(self) -> None:
        """Log the error, once."""
        if self.error is not None:
            with contextlib.suppress(IndexError):
                self._unsaid.pop()
                _LOG.warning("%s. The client keeps trying", self.error)


class Outages:
    """The brokers that a client cannot connect to, each logged once per outage. Each attempt is retried, by
    several parts of a client and with long deadlines: without a log line, a wrong ``advertised.listeners``
    would look like an idle cluster. Any thread may use it.

    It has no lock: a signal handler may interrupt a thread in here, and close a client. Its threads have to
    connect for that. Each change is a single step of a set or a dict.
    """

    def __init__(self) -> None:
        self._outages: dict[int, _Outage] = {}

    def error(self, node_id: int) -> KafkaError | None:
        """The error of the last attempt to connect to that broker, or of the one in progress; None if the
        broker is reachable, or no attempt was made for a while.
        """
        outage = self._outages.get(node_id)
        return None if outage is None or outage.is_over else outage.error

    @contextlib.contextmanager
    def attempt(self, node_id: int, address: str, hint: str) -> Iterator[None]:
        """Wraps one attempt to connect to a broker. ``hint`` says what may be wrong with ``address``."""
        outage, me = self._outage(node_id), object()
        left_s = outage.began_at + SAY_AFTER_S - time.monotonic()
        timer = threading.Timer(left_s, self._waits, (outage, node_id, address, hint))
        timer.daemon = True
        try:
            outage.attempts.add(me)
            if left_s <= 0:
                outage.say()
            else:
                with contextlib.suppress(RuntimeError):  # no thread can be started while the interpreter ends
                    timer.start()
            yield
        except KafkaError as error:
            outage.error = to_keep(error)
            raise
        else:
            self._outages.pop(node_id, None)
        finally:
            timer.cancel()
            outage.tried_at = time.monotonic()
            outage.attempts.discard(me)

    def _outage(self, node_id: int) -> _Outage:
        found = self._outages.get(node_id)
        if found is None:
            return self._outages.setdefault(node_id, _Outage())
        if found.is_over:  # if two threads find this at a time, one has a log line of its own
            found = self._outages[node_id] = _Outage()
        return found

    def _waits(self, outage: _Outage, node_id: int, address: str, hint: str) -> None:
        if outage.error is None:
            outage.error = NetworkError(f"broker {node_id}: no connection to {address} so far{hint}")
        outage.say()
