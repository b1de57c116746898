"""`FaultProxy`: stands between clients and the brokers of a cluster, and does to their frames what rules say.

One thread with an event loop of its own, however many brokers and connections. Clients speak to it without
TLS; SASL passes, from SaslHandshake version 1 on.

A broker answers in order, so a reply belongs to the oldest request in flight. The proxy hides the end of a
client from the broker until its requests are answered: a held request arrives even then.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, assert_never

from ..kafka.errors import KafkaError, ProtocolError
from ..kafka.protocol.framing import MAX_FRAME_BYTES, PREFIX_BYTES
from .faults import (
    BlackHole,
    CutAt,
    Delay,
    DropReply,
    Ending,
    Fault,
    FaultPlan,
    FaultRule,
    HalfClose,
    Hold,
    ProxiedRequest,
    Reset,
    Side,
    TracedFault,
)
from .proxied_frames import Address, changed, is_answered, offered_versions, read_request, redirect

_LOG: Final = logging.getLogger("spark_kafka_native")
_CLOSE_S: Final = 30.0
_BACKLOG: Final = 128
_ACCEPT_AGAIN_S: Final = 0.1
_RST_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_BUFFER_BYTES: Final = 1 << 20


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
        self._ledger = _Ledger(FaultPlan(seed, replay))
        self._host = host
        self._listeners: dict[Address, _Listener] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_thread()
        if error is None:  # one of the test itself says more
            self._check()

    def __repr__(self) -> str:
        return (
            f"FaultProxy({self.bootstrap_servers or 'not started'}, {len(self._ledger.trace)} faults so far)"
        )

    def start(self) -> FaultProxy:
        """Listen. The ``with`` statement calls it."""
        if self._thread is not None:
            raise RuntimeError("this FaultProxy is already running")
        self._ledger.began = time.monotonic()
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
            raise RuntimeError(f"the thread of {self!r} has not ended within {_CLOSE_S:g} s")

    def _check(self) -> None:
        for error in self._ledger.take_failures():
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
        with self._ledger.changed:
            return list(self._ledger.trace)

    @property
    def seen(self) -> collections.Counter[tuple[str, Side]]:
        """How many frames have come, by API and side."""
        with self._ledger.changed:
            return self._ledger.seen.copy()

    def add(self, rule: FaultRule) -> FaultRule:
        """From now on; returns the rule, for `remove`. Of several that fit a frame the first one counts."""
        with self._ledger.changed:
            self._ledger.plan.add(rule)
        return rule

    def remove(self, rule: FaultRule) -> None:
        """From now on no longer. What it holds stays held."""
        with self._ledger.changed:
            self._ledger.plan.remove(rule)

    def clear(self) -> None:
        """Remove every rule."""
        with self._ledger.changed:
            self._ledger.plan.remove(None)

    def wait_for_faults(self, count: int = 1, timeout_s: float = 60) -> list[TracedFault]:
        """The trace, once it has ``count`` faults; `TimeoutError` after ``timeout_s``."""
        ledger = self._ledger
        with ledger.changed:
            if not ledger.changed.wait_for(lambda: len(ledger.trace) >= count, timeout_s):
                raise TimeoutError(f"{len(ledger.trace)} faults fell in {timeout_s:g} s, not {count}")
            return list(ledger.trace)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(self._end())
            loop.close()

    async def _end(self) -> None:
        loop = asyncio.get_running_loop()
        # Again until none is left: a reply that is still under way may add a listener.
        while self._listeners or self._tasks:
            for listener in self._listeners.values():
                loop.remove_reader(listener.socket)
                listener.socket.close()
            self._listeners.clear()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _listener(self, broker: Address) -> _Listener:
        found = self._listeners.get(broker)
        if found is None:
            assert self._loop is not None
            listening = socket.create_server((self._host, 0), backlog=_BACKLOG)
            listening.setblocking(False)
            found = _Listener(broker=broker, index=len(self._listeners), socket=listening)
            self._listeners[broker] = found
            self._loop.add_reader(listening, self._accept, found)
        return found

    def _redirect(self, frame: bytes, request: ProxiedRequest) -> bytes:
        """The reply as a client may see it."""

        def to(broker: Address) -> Address:
            return self._host, self._listener(broker).port

        return redirect(frame, request, to, self._limits)

    def _accept(self, listener: _Listener) -> None:
        """Called where a connection waits; `loop.sock_accept`, cancelled just then, would lose it."""
        loop = asyncio.get_running_loop()
        try:
            accepted, _ = listener.socket.accept()
        except BlockingIOError:  # it has gone again
            return
        except OSError as error:  # as where too many files are open: not for ever
            _LOG.warning("a connection to %s:%d was not accepted: %s", *listener.broker, error)
            loop.remove_reader(listener.socket)
            self._keep(loop.create_task(self._accept_later(listener)))
            return
        accepted.setblocking(False)
        serving = loop.create_task(self._serve(listener, accepted))
        serving.add_done_callback(lambda _: accepted.close())
        self._keep(serving)

    async def _accept_later(self, listener: _Listener) -> None:
        await asyncio.sleep(_ACCEPT_AGAIN_S)
        asyncio.get_running_loop().add_reader(listener.socket, self._accept, listener)

    async def _serve(self, listener: _Listener, accepted: socket.socket) -> None:
        number = next(listener.connections)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader, writer = await _open_stream(sock=accepted)
            await _Connection(self._ledger, self._redirect, listener, number).run(reader, writer)
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


class _Ledger:
    """The rules and the record of what they did, shared by the callers' threads and the proxy's."""

    def __init__(self, plan: FaultPlan) -> None:
        self.changed = threading.Condition()
        """Guards all below; notified of each fault."""
        self.plan = plan
        self.trace: list[TracedFault] = []
        self.seen: collections.Counter[tuple[str, Side]] = collections.Counter()
        self.began = time.monotonic()
        self._failures: list[BaseException] = []

    def choose(self, request: ProxiedRequest, side: Side, size: int) -> Fault | None:
        """The fault of a frame of ``size`` bytes."""
        with self.changed:
            self.seen[request.api, side] += 1
            return self.plan.choose(request, side, size)

    def record(self, request: ProxiedRequest, side: Side, fault: Fault) -> None:
        """Add a fault that fell to the trace."""
        traced = TracedFault(
            broker_index=request.broker_index,
            connection=request.connection,
            ordinal=request.ordinal,
            side=side,
            api=request.api,
            version=request.version,
            client_id=request.client_id,
            at_ms=(time.monotonic() - self.began) * 1000,
            fault=fault,
        )
        with self.changed:
            self.trace.append(traced)
            self.changed.notify_all()

    def note_failure(self, broker: Address, connection: int, error: BaseException) -> None:
        """A connection is about to be closed: for what its peers sent, or for what a rule raised."""
        if isinstance(error, KafkaError):
            _LOG.warning("connection %d to %s:%d: %s", connection, *broker, error)
            return
        _LOG.error("connection %d to %s:%d is closed", connection, *broker, exc_info=error)
        with self.changed:
            self._failures.append(error)

    def take_failures(self) -> list[BaseException]:
        """What rules raised, once each."""
        with self.changed:
            failures, self._failures = self._failures, []
        return failures


class _Over(Exception):  # noqa: N818 - no error: how a pump says that its connection is to end
    def __init__(self, *, reset: bool = False) -> None:
        self.reset = reset


class _Connection:
    """From one client to one broker: two pumps, frame by frame, on the proxy's event loop."""

    def __init__(
        self,
        ledger: _Ledger,
        redirect: Callable[[bytes, ProxiedRequest], bytes],
        listener: _Listener,
        connection: int,
    ) -> None:
        self._ledger = ledger
        self._redirect = redirect
        self._broker = listener.broker
        self._broker_index = listener.index
        self._connection = connection
        self._in_flight: collections.deque[ProxiedRequest] = collections.deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._silent = False
        self._replies_dropped = False

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one of the two ends it, or a fault does."""
        try:
            host, port = self._broker
            reader_up, writer_up = await _open_stream(host=host, port=port)
        except BaseException as error:
            _hang_up(writer, reset=True)  # as a broker that is not there refuses
            if isinstance(error, OSError):
                return
            raise
        reset = True
        pumps = [
            asyncio.create_task(self._forward_requests(reader, writer_up)),
            asyncio.create_task(self._forward_replies(reader_up, writer)),
        ]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            ends = [one.exception() for one in done]
            reset = any(isinstance(end, _Over) and end.reset for end in ends)
            for end in ends:
                if end is not None and not isinstance(end, _Over | OSError):
                    self._ledger.note_failure(self._broker, self._connection, end)
        finally:
            for one in pumps:
                one.cancel()
            _hang_up(writer, reset=reset)
            _hang_up(writer_up, reset=reset)
            await asyncio.gather(*pumps, return_exceptions=True)
            await asyncio.gather(_await_end(writer), _await_end(writer_up))

    async def _forward_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ordinal = 0
        while (frame := await _read_frame(reader)) is not None:
            if self._silent:
                continue
            request = read_request(
                frame,
                broker="{}:{}".format(*self._broker),
                broker_index=self._broker_index,
                connection=self._connection,
                ordinal=ordinal,
            )
            ordinal += 1

            def note(request: ProxiedRequest = request) -> None:
                if is_answered(request):
                    self._in_flight.append(request)
                    self._idle.clear()

            await self._pass(request, "request", frame, writer, note)
        if not self._silent:
            await self._idle.wait()

    async def _forward_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (frame := await _read_frame(reader)) is not None:
            if self._silent:
                continue
            correlation_id = int.from_bytes(frame[PREFIX_BYTES : PREFIX_BYTES + 4], "big", signed=True)
            if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
                raise ProtocolError(f"{self._broker}: reply {correlation_id} is not what was asked")
            request = self._in_flight[0]
            try:
                if not self._replies_dropped:
                    frame = self._redirect(frame, request)
                    await self._pass(request, "reply", frame, writer, lambda: None)
            finally:
                self._in_flight.popleft()
                if not self._in_flight:
                    self._idle.set()
        if self._silent:
            await asyncio.Event().wait()  # until the client has had enough

    async def _pass(
        self,
        request: ProxiedRequest,
        side: Side,
        frame: bytes,
        writer: asyncio.StreamWriter,
        note: Callable[[], None],
    ) -> None:
        """Write the frame, or what its fault leaves of it; ``note`` is called right before."""
        fault = self._ledger.choose(request, side, len(frame))
        if fault is not None:
            frame = await self._suffer(fault, request, side, frame, writer)
        if not (self._silent or (side == "reply" and self._replies_dropped)):
            note()
            writer.write(frame)
            if side == "reply":
                # A client that has gone is no reason not to do what it asked before.
                with contextlib.suppress(OSError):
                    await writer.drain()
            else:
                await writer.drain()

    async def _suffer(
        self, fault: Fault, request: ProxiedRequest, side: Side, frame: bytes, writer: asyncio.StreamWriter
    ) -> bytes:
        """Apply the fault; returns the rest of the frame. Raises `_Over` if it ends the connection."""
        if isinstance(fault, Hold):
            await self._hold(fault, request, side)
            return frame
        self._ledger.record(request, side, fault)
        if isinstance(fault, Delay):
            await asyncio.sleep(fault.ms / 1000)
        if isinstance(fault, Ending):
            self._end(fault, frame, writer)
        return changed(frame, request, fault)

    def _end(self, fault: Ending, frame: bytes, writer: asyncio.StreamWriter) -> None:
        match fault:
            case BlackHole():
                self._silent = True
            case HalfClose():
                self._replies_dropped = True
                writer.write_eof()
            case CutAt(size):
                writer.write(frame[:size])
                raise _Over
            case DropReply():
                raise _Over
            case Reset():
                raise _Over(reset=True)
            case _:
                assert_never(fault)

    async def _hold(self, hold: Hold, request: ProxiedRequest, side: Side) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await hold.passed()
        self._ledger.record(request, side, Delay((loop.time() - began) * 1000))


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame with its length; None where there is none any more."""
    try:
        prefix = await reader.readexactly(PREFIX_BYTES)
        length = int.from_bytes(prefix, "big", signed=True)
        if not PREFIX_BYTES <= length <= MAX_FRAME_BYTES:
            raise ProtocolError(f"{prefix!r} is no length of a Kafka frame: TLS can't be proxied")
        return prefix + await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None


async def _open_stream(**how: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As `asyncio.open_connection`; cancelled at the last moment, it leaves nothing open either."""
    opening = asyncio.ensure_future(asyncio.open_connection(limit=_BUFFER_BYTES, **how))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            _hang_up((await opening)[1], reset=True)
        raise


def _hang_up(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    """Close the connection. Bytes already written still go out, unless ``reset``."""
    if reset:
        found: Any = writer.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        writer.transport.abort()
    writer.close()


async def _await_end(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.wait_closed()
    except OSError:
        pass
    except asyncio.CancelledError:  # the peer does not read it
        writer.transport.abort()
        raise
