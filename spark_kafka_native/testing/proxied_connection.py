"""One connection through a `FaultProxy`: two pumps, frame by frame, on the proxy's event loop.

A broker answers in order, so a reply belongs to the oldest request in flight. The proxy hides
the end of a client from the broker until its requests are answered: a held request arrives even then.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol, assert_never

from ..kafka.errors import ProtocolError
from ..kafka.protocol.session import MAX_FRAME_BYTES, PREFIX_BYTES
from .fault_rule import ProxiedRequest
from .faults import BlackHole, CutAt, Delay, DropReply, Ending, Fault, HalfClose, Hold, Reset, Side
from .proxied_frames import Address, changed, is_answered, read_request

_RST_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_BUFFER_BYTES: Final = 1 << 20


class Judge(Protocol):
    """What a connection asks its proxy."""

    def choose(self, request: ProxiedRequest, side: Side, size: int) -> Fault | None:
        """The fault of a frame."""

    def record(self, request: ProxiedRequest, side: Side, fault: Fault) -> None:
        """It was done."""

    def redirect(self, frame: bytes, request: ProxiedRequest) -> bytes:
        """The reply as a client may see it."""

    def note_failure(self, broker: Address, connection: int, error: BaseException) -> None:
        """Its connection is about to be closed for this."""


class _Over(Exception):  # noqa: N818 - no error: how a pump says that its connection is to end
    def __init__(self, *, reset: bool = False) -> None:
        self.reset = reset


class ProxiedConnection:
    """From one client to one broker."""

    def __init__(self, judge: Judge, broker: Address, broker_index: int, connection: int) -> None:
        self._judge = judge
        self._broker = broker
        self._broker_index = broker_index
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
            reader_up, writer_up = await open_stream(host=host, port=port)
        except BaseException as error:
            hang_up(writer, reset=True)  # as a broker that is not there refuses
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
                    self._judge.note_failure(self._broker, self._connection, end)
        finally:
            for one in pumps:
                one.cancel()
            hang_up(writer, reset=reset)
            hang_up(writer_up, reset=reset)
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
                    frame = self._judge.redirect(frame, request)
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
        fault = self._judge.choose(request, side, len(frame))
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
        self._judge.record(request, side, fault)
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
        self._judge.record(request, side, Delay((loop.time() - began) * 1000))


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


async def open_stream(**how: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As `asyncio.open_connection`; cancelled at the last moment, it leaves nothing open either."""
    opening = asyncio.ensure_future(asyncio.open_connection(limit=_BUFFER_BYTES, **how))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            hang_up((await opening)[1], reset=True)
        raise


def hang_up(writer: asyncio.StreamWriter, *, reset: bool) -> None:
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
