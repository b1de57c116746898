"""`FaultProxy`: stands between clients and the brokers of a cluster, and does to their frames what rules say.

One thread with an event loop of its own, however many brokers and connections. Clients speak to it without
TLS; SASL passes, from SaslHandshake version 1 on.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import logging
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from ..kafka.errors import KafkaError
from .fault_rule import FaultPlan, FaultRule, ProxiedRequest
from .fault_trace import TracedFault
from .faults import Fault, Side
from .proxied_connection import ProxiedConnection, open_stream
from .proxied_frames import Address, offered_versions, redirect

_LOG: Final = logging.getLogger("spark_kafka_native")
_CLOSE_S: Final = 30.0
_BACKLOG: Final = 128
_ACCEPT_AGAIN_S: Final = 0.1


@dataclass(kw_only=True)
class _Listener:
    """In place of one broker."""

    broker: Address
    index: int
    socket: socket.socket
    connections: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port


class FaultProxy:
    """Between clients and the cluster at ``bootstrap_servers``; clients use `bootstrap_servers` of this.

        with EmbeddedKafka() as kafka, FaultProxy(kafka.bootstrap_servers) as proxy:
            proxy.add(FaultRule(api="Produce", fault=faults.Reset(), times=1))
            Producer(proxy.bootstrap_servers)

    It puts itself in the place of every broker that the cluster names to its clients. ``seed`` decides what
    rules leave to chance: the same for the same broker, connection and request of it. ``replay``: no rules,
    but the faults of a trace, each where it fell. ``max_versions``: no API is offered at a higher version, by
    name: ``{"EndTxn": 4}`` makes of the cluster one without KIP-890. ``host``: where it listens.

    A broker that is down is one that resets connections, not one that refuses them. Thread-safe.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        seed: int = 0,
        replay: Iterable[TracedFault] | None = None,
        max_versions: Mapping[str, int] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._addresses = [_parse(one) for one in bootstrap_servers.split(",")]
        self._limits = offered_versions(max_versions or {})
        self._plan = FaultPlan(seed, replay)
        self._host = host
        self._changed = threading.Condition()
        self._listeners: dict[Address, _Listener] = {}
        self._trace: list[TracedFault] = []
        self._failures: list[BaseException] = []
        self._seen: collections.Counter[tuple[str, Side]] = collections.Counter()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._began = time.monotonic()

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_thread()
        if error is None:  # one of the test itself says more
            self._check()

    def __repr__(self) -> str:
        return f"FaultProxy({self.bootstrap_servers or 'not started'}, {len(self._trace)} faults so far)"

    def start(self) -> FaultProxy:
        """Listen. The ``with`` statement calls it."""
        if self._thread is not None:
            raise RuntimeError("this FaultProxy is already running")
        self._began = time.monotonic()
        self._loop = asyncio.new_event_loop()
        try:
            for address in self._addresses:
                self._listener(address)
        except OSError:
            self._loop.run_until_complete(self._end())
            self._loop.close()
            raise
        self._thread = threading.Thread(target=self._run, args=(self._loop,), name="fault-proxy", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Reset every connection and stop listening. Harmless when repeated.

        Raises `RuntimeError` if a rule could not be followed, as where its ``when`` raised or a `Flip` is
        behind a frame's end: its connection was closed.
        """
        self._end_thread()
        self._check()

    def _end_thread(self) -> None:
        loop, thread, self._thread = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_S)
        if thread.is_alive():
            raise RuntimeError(f"the thread of {self!r} has not ended {_CLOSE_S:g} s after it was told to")

    def _check(self) -> None:
        failures, self._failures = self._failures, []
        for error in failures:
            what = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"a rule of a FaultProxy could not be followed: {what}") from error

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,...`` for clients: one for each broker that was given."""
        named = (self._listeners.get(address) for address in self._addresses)
        return ",".join(f"{self._host}:{one.port}" for one in named if one is not None)

    @property
    def trace(self) -> list[TracedFault]:
        """Every fault so far, in the order in which they fell."""
        with self._changed:
            return list(self._trace)

    @property
    def seen(self) -> collections.Counter[tuple[str, Side]]:
        """How many frames have come, by API and side."""
        with self._changed:
            return self._seen.copy()

    def add(self, rule: FaultRule) -> FaultRule:
        """From now on; returns the rule, for `remove`. Of several that fit a frame the first one counts."""
        with self._changed:
            self._plan.add(rule)
        return rule

    def remove(self, rule: FaultRule) -> None:
        """From now on no longer. What it holds stays held."""
        with self._changed:
            self._plan.remove(rule)

    def clear(self) -> None:
        """Remove every rule."""
        with self._changed:
            self._plan.remove(None)

    def wait_for_faults(self, count: int = 1, timeout_s: float = 60) -> list[TracedFault]:
        """The trace, once it has ``count`` faults; `TimeoutError` after ``timeout_s``."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._trace) >= count, timeout_s):
                raise TimeoutError(f"{len(self._trace)} faults fell in {timeout_s:g} s, not {count}")
            return list(self._trace)

    # For the connections, on the proxy's thread.

    def choose(self, request: ProxiedRequest, side: Side, size: int) -> Fault | None:
        """The fault of a frame."""
        with self._changed:
            self._seen[request.api, side] += 1
            return self._plan.choose(request, side, size)

    def record(self, request: ProxiedRequest, side: Side, fault: Fault) -> None:
        """It was done."""
        traced = TracedFault(
            broker_index=request.broker_index,
            connection=request.connection,
            ordinal=request.ordinal,
            side=side,
            api=request.api,
            version=request.version,
            client_id=request.client_id,
            at_ms=(time.monotonic() - self._began) * 1000,
            fault=fault,
        )
        with self._changed:
            self._trace.append(traced)
            self._changed.notify_all()

    def redirect(self, frame: bytes, request: ProxiedRequest) -> bytes:
        """The reply as a client may see it."""

        def to(broker: Address) -> Address:
            return self._host, self._listener(broker).port

        return redirect(frame, request, to, self._limits)

    def note_failure(self, broker: Address, connection: int, error: BaseException) -> None:
        """A connection is about to be closed: for what its peers sent, or for what a rule raised."""
        if isinstance(error, KafkaError):
            _LOG.warning("connection %d to %s:%d: %s", connection, *broker, error)
            return
        _LOG.error("connection %d to %s:%d is closed", connection, *broker, exc_info=error)
        with self._changed:
            self._failures.append(error)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(self._end())
            loop.close()

    async def _end(self) -> None:
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners.values():
            listener.socket.close()
        self._listeners.clear()

    def _listener(self, broker: Address) -> _Listener:
        found = self._listeners.get(broker)
        if found is None:
            assert self._loop is not None
            listening = socket.create_server((self._host, 0), backlog=_BACKLOG)
            listening.setblocking(False)
            found = _Listener(broker=broker, index=len(self._listeners), socket=listening)
            self._listeners[broker] = found
            self._keep(self._loop.create_task(self._accept(found)))
        return found

    async def _accept(self, listener: _Listener) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener.socket)
            except OSError as error:  # as where too many files are open: not for ever
                _LOG.warning("a connection to %s:%d was not accepted: %s", *listener.broker, error)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            serving = loop.create_task(self._serve(listener, accepted))
            serving.add_done_callback(lambda _, accepted=accepted: accepted.close())  # type: ignore[misc]
            self._keep(serving)

    async def _serve(self, listener: _Listener, accepted: socket.socket) -> None:
        number = next(listener.connections)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader, writer = await open_stream(sock=accepted)
            await ProxiedConnection(self, listener.broker, listener.index, number).run(reader, writer)
        except OSError as error:
            _LOG.warning("connection %d to %s:%d: %s", number, *listener.broker, error)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _parse(server: str) -> Address:
    host, colon, port = server.strip().rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{server!r} is no host:port")
    return host.strip("[]"), int(port)
