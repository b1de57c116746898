"""`Brokers`: the connections of one process to the brokers of one cluster, by node id."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable

from ..config import ClientConfig, split_address
from ..errors import KafkaError, NetworkError, SecurityError
from ..model import Broker
from ..network.connection import Connection
from ..network.deadline import Deadline

Open = Callable[[str, int, ClientConfig, Deadline], Connection]

BOOTSTRAP = -1
"""Stands for a node id that is not known yet."""


class Brokers:
    """Opens a connection when it is first needed, and anew when it has died. A forked child never uses its
    parent's.
    """

    def __init__(self, config: ClientConfig, open_connection: Open = Connection.open) -> None:
        self._config = config
        self._open = open_connection
        self._start_empty()

    def _start_empty(self) -> None:
        self._pid = os.getpid()
        self._connections: dict[tuple[int, str], tuple[Connection, str, int]] = {}
        self._bootstrapped: Connection | None = None
        self._locks: dict[tuple[int, str], threading.Lock] = {}

    def connection(self, broker: Broker, deadline: Deadline, channel: str = "") -> Connection:
        """A live connection to ``broker``; to another ``channel``, another one (a long fetch holds up what is
        behind it).

        A node id whose address has changed is connected to anew. Raises `NetworkError` that says which
        address the broker advertises.
        """
        self._check_process()
        key = (broker.node_id, channel)
        # One lock per connection: a broker that does not answer must not hold up the way to the others.
        with self._locks.setdefault(key, threading.Lock()):
            if (found := self._find(key, broker)) is not None:
                return found
            connection = self._adopt(broker) if not channel else None
            if connection is None:
                connection = self._connect(broker, deadline)
            self._connections[key] = (connection, broker.host, broker.port)
            return connection

    def live(self) -> list[Connection]:
        """Connections that may be asked anything, without a wait for connecting; the bootstrap one
        included.
        """
        self._check_process()
        found = [connection for connection, _, _ in list(self._connections.values()) if connection.alive()]
        if self._bootstrapped is not None and self._bootstrapped.alive():
            found.append(self._bootstrapped)
        return found

    def bootstrap(self, deadline: Deadline) -> Connection:
        """A connection to any bootstrap address that answers, tried in random order.

        Raises `NetworkError` with the cause of each; the one of TLS or version if that is what all of them
        failed of.
        """
        self._check_process()
        addresses = random.sample(self._config.bootstrap_servers, len(self._config.bootstrap_servers))
        failures: dict[str, KafkaError] = {}
        for i, address in enumerate(addresses):
            share = deadline.within_ms(deadline.remaining_ms / (len(addresses) - i))
            try:
                self._bootstrapped = self._open(*split_address(address), self._config, share)
                return self._bootstrapped
            except (NetworkError, SecurityError) as error:
                failures[address] = error
        raise _joined(failures, self._config.bootstrap_servers)

    def close(self) -> None:
        """Close every connection."""
        self._check_process()
        everything = [connection for connection, _, _ in self._connections.values()]
        if self._bootstrapped is not None:
            everything.append(self._bootstrapped)
        self._start_empty()
        for connection in everything:
            connection.close()

    def _check_process(self) -> None:
        if self._pid == os.getpid():
            return
        inherited = [connection for connection, _, _ in self._connections.values()]
        if self._bootstrapped is not None:
            inherited.append(self._bootstrapped)
        self._start_empty()
        for connection in inherited:
            connection.forget()

    def _find(self, key: tuple[int, str], broker: Broker) -> Connection | None:
        found = self._connections.get(key)
        if found is None:
            return None
        connection, host, port = found
        if (host, port) == (broker.host, broker.port) and connection.alive():
            return connection
        connection.close()
        return None

    def _adopt(self, broker: Broker) -> Connection | None:
        """The bootstrap connection, if that is the address which ``broker`` advertises: saves a
        connection.
        """
        connection = self._bootstrapped
        if (
            connection is None
            or connection.address != f"{broker.host}:{broker.port}"
            or not connection.alive()
        ):
            return None
        self._bootstrapped = None
        return connection

    def _connect(self, broker: Broker, deadline: Deadline) -> Connection:
        try:
            return self._open(broker.host, broker.port, self._config, deadline)
        except NetworkError as error:
            address = f"{broker.host}:{broker.port}"
            hint = ""
            if address not in self._config.bootstrap_servers:
                hint = (
                    f". {address} is what broker {broker.node_id} advertises: if clients can't reach it "
                    "under that name, its advertised.listeners must change"
                )
            raise NetworkError(f"broker {broker.node_id}: {error}{hint}") from error


def _joined(failures: dict[str, KafkaError], addresses: tuple[str, ...]) -> KafkaError:
    """One error out of those of all bootstrap addresses: their own kind if they agree on it."""
    causes = "; ".join(f"{address}: {failures[address]}" for address in addresses if address in failures)
    kinds = {type(error) for error in failures.values()}
    kind = kinds.pop() if len(kinds) == 1 else NetworkError
    return kind(f"no bootstrap server could be reached: {causes}")
