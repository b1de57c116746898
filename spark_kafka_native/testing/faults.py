"""Which faults a `FaultProxy` knows, which frames get them (`FaultRule`), and which fell (`TracedFault`).

Plain data and pure functions, but for `Hold`, which its test releases: the proxy passes each frame to a
`FaultPlan` and does what that chooses. A *request* is changed before the broker has seen it, a *reply* after
the broker has done what it was asked. Numbers of bytes count a frame from its length prefix on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, get_args

from ..kafka.error_code import ErrorCode
from ..kafka.protocol.api import all_requests
from ..kafka.protocol.message import Request
from ..kafka.protocol.message_codec import codec

Side = Literal["request", "reply"]


@dataclass(frozen=True)
class Delay:
    """The frame, and all behind it on its connection, comes ``ms`` later; with ``max_ms`` a time between
    the two is drawn for each frame."""

    ms: float
    max_ms: float | None = None


@dataclass(frozen=True)
class DropReply:
    """The reply never comes: the connection is closed in its place, like that of a broker that stops."""


@dataclass(frozen=True)
class Reset:
    """The connection is reset (RST) in place of the frame."""


@dataclass(frozen=True)
class HalfClose:
    """No more replies, from this one on: the client reads an end, and what it sends still arrives."""


@dataclass(frozen=True)
class BlackHole:
    """From this frame on nothing passes any more, either way, and the connection stays open."""


@dataclass(frozen=True)
class CutAt:
    """Only the first ``size`` bytes of the frame pass, then the connection is closed. None: drawn."""

    size: int | None = None


@dataclass(frozen=True)
class Flip:
    """The lowest bit of one byte is another; negative ones count from the end. None: drawn, but not from
    the length and what follows it: a request's API and version, and the correlation id."""

    byte: int | None = None


@dataclass(frozen=True)
class RewriteError:
    """Each error code of the reply becomes ``error_code``; the broker has done what it was asked all the
    same."""

    error_code: ErrorCode


class Hold:
    """The frame, and all behind it on its connection, waits for `release`. A request that is held arrives at
    the broker even where its client has gone meanwhile: a ghost.

    Safe to use from any thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._released = False

    def __repr__(self) -> str:
        return f"Hold({len(self._waiting)} held)"

    @property
    def held(self) -> int:
        """How many frames wait now."""
        return len(self._waiting)

    def wait(self, timeout_s: float = 60, frames: int = 1) -> None:
        """Wait until the given number of frames is held; `TimeoutError` after ``timeout_s``."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._waiting) >= frames, timeout_s):
                raise TimeoutError(
                    f"{len(self._waiting)} frames are held after {timeout_s:g} s, not {frames}"
                )

    def release(self, *, once: bool = False) -> None:
        """Let the held frames pass, and later ones too, unless ``once``."""
        with self._changed:
            self._released = self._released or not once
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            with contextlib.suppress(RuntimeError):  # its proxy was closed at this moment
                loop.call_soon_threadsafe(event.set)

    async def passed(self) -> None:
        """Until it is released; for the proxy."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._changed:
            if self._released:
                return
            self._waiting.append(entry)
            self._changed.notify_all()
        try:
            await entry[1].wait()
        finally:
            with self._changed:
                if entry in self._waiting:  # cancelled: its connection has ended
                    self._waiting.remove(entry)


Ending = DropReply | Reset | HalfClose | BlackHole | CutAt
"""What ends a connection, or half of it."""

Fault = Delay | Hold | Ending | Flip | RewriteError

KINDS: Final[tuple[type[Any], ...]] = (Delay, Hold, *get_args(Ending), Flip, RewriteError)
"""All that `Fault` is."""

OF_REPLIES: Final = (DropReply, HalfClose, RewriteError)
"""What can't be done to a request."""

_PLAIN: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (Delay, DropReply, Reset, HalfClose, BlackHole, CutAt, Flip, RewriteError)
}
_HEADS: Final[dict[Side, int]] = {"request": 12, "reply": 8}
"""Bytes up to the correlation id and with it: an API key and a version come before that of a request."""


def drawn(fault: Fault, side: Side, size: int, random: Random) -> Fault:
    """The fault with everything that is left to chance decided, for a frame of ``size`` bytes."""
    match fault:
        case Delay(ms, max_ms) if max_ms is not None:
            return Delay(random.uniform(ms, max_ms))
        case CutAt(None):
            return CutAt(random.randrange(size))
        case Flip(None):
            return Flip(random.randrange(min(_HEADS[side], size - 1), size))
    return fault


def to_json(fault: Fault) -> dict[str, Any]:
    """As it stands in a trace."""
    if isinstance(fault, Hold):
        raise ValueError("a Hold has no end yet: it is traced as the Delay that it was")
    return {"kind": type(fault).__name__, **vars(fault)}


def from_json(written: dict[str, Any]) -> Fault:
    """As `to_json` wrote it. Raises `ValueError`."""
    given = dict(written)
    kind = _PLAIN.get(str(given.pop("kind", None)))
    if kind is None:
        raise ValueError(f"no fault: {written!r}")
    if kind is RewriteError:
        given["error_code"] = ErrorCode(given["error_code"])
    fault: Fault = kind(**given)
    return fault


@dataclass(frozen=True, kw_only=True)
class ProxiedRequest:
    """A request on its way through a proxy.

    ``connection`` counts those to its broker from 0 in the order in which they were opened, ``ordinal`` the
    requests of the connection from 0. ``broker`` is its own address, ``host:port``, and ``broker_index`` its
    place among all that the proxy knows, those of ``bootstrap_servers`` first.
    """

    broker: str
    broker_index: int
    connection: int
    ordinal: int
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: memoryview = field(repr=False, compare=False)

    @property
    def api(self) -> str:
        """The API's name, ``EndTxn``; ``Api99`` for one that is unknown here."""
        known = all_requests().get(self.api_key)
        return f"Api{self.api_key}" if known is None else known.api_name()

    @property
    def message(self) -> Request[Any]:
        """The request itself. Raises `ProtocolError`, `KeyError` where the API is unknown."""
        request: Request[Any] = codec(all_requests()[self.api_key], self.version).read(self.body)
        return request


@dataclass(frozen=True, kw_only=True, eq=False)
class FaultRule:
    """Do ``fault`` to each ``side`` ("request" or "reply") of the exchanges that match all given conditions.

    ``api``: its name, ``"EndTxn"``. ``broker``: its own address, ``host:port``, not the proxy's. ``when`` is
    asked last, on the proxy's thread. Of the frames that fit, the first ``skip`` pass, and at most ``times``
    get the fault; ``probability`` is drawn for each, from the proxy's seed and the frame's place alone.
    """

    fault: Fault
    api: str | None = None
    side: Side = "reply"
    broker: str | None = None
    client_id: str | None = None
    when: Callable[[ProxiedRequest], bool] | None = None
    skip: int = 0
    times: int | None = None
    probability: float = 1.0

    def __post_init__(self) -> None:
        if self.side not in ("request", "reply"):
            raise ValueError(f"side is {self.side!r}: it may be 'request' or 'reply'")
        if not isinstance(self.fault, KINDS):
            raise ValueError(f"fault is {self.fault!r}: it may be one of `faults`, as Reset()")
        if self.side == "request" and isinstance(self.fault, OF_REPLIES):
            raise ValueError(f"{type(self.fault).__name__} is for replies, not for requests")
        names = {request.api_name() for request in all_requests().values()}
        if self.api is not None and self.api not in names:
            raise ValueError(f"no API is called {self.api!r}: there are {', '.join(sorted(names))}")
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability is {self.probability}: it may be 0 to 1")
        if self.skip < 0 or (self.times is not None and self.times < 0):
            raise ValueError(f"skip is {self.skip} and times is {self.times}: neither may be negative")

    def fits(self, request: ProxiedRequest, side: Side) -> bool:
        """True if the rule matches this frame, apart from probability and counts."""
        return (
            side == self.side
            and self.api in (None, request.api)
            and self.broker in (None, request.broker)
            and self.client_id in (None, request.client_id)
            and (self.when is None or self.when(request))
        )


@dataclass(kw_only=True)
class _Counted:
    rule: FaultRule
    number: int
    fitted: int = 0
    done: int = 0


class FaultPlan:
    """What becomes of each frame: by rules, or just as a trace has it. Not thread-safe."""

    def __init__(self, seed: int, replay: Iterable[TracedFault] | None = None) -> None:
        self._seed = seed
        self._rules: list[_Counted] = []
        self._numbers = itertools.count()
        self._replayed = None if replay is None else {one.place: one.fault for one in replay}

    def add(self, rule: FaultRule) -> None:
        """From now on. The first of the rules that gives a frame a fault counts."""
        self._rules.append(_Counted(rule=rule, number=next(self._numbers)))

    def remove(self, rule: FaultRule | None) -> None:
        """No longer; None: none of them."""
        self._rules = [one for one in self._rules if rule is not None and one.rule is not rule]

    def choose(self, request: ProxiedRequest, side: Side, size: int) -> Fault | None:
        """The fault of a frame of ``size`` bytes."""
        place = (request.broker_index, request.connection, request.ordinal, side)
        if self._replayed is not None:
            return self._replayed.get(place)
        for counted in self._rules:
            rule = counted.rule
            if rule.times is not None and counted.done >= rule.times:
                continue
            if not rule.fits(request, side):
                continue
            counted.fitted += 1
            # Of the frame's place alone: independent of events on other connections.
            random = Random(f"{self._seed} {counted.number} {place}")
            if counted.fitted <= rule.skip or random.random() >= rule.probability:
                continue
            counted.done += 1
            return rule.fault if isinstance(rule.fault, Hold) else drawn(rule.fault, side, size, random)
        return None


@dataclass(frozen=True, kw_only=True)
class TracedFault:
    """A fault, and where it fell; the fields are those of `ProxiedRequest`. ``at_ms`` counts from the start
    of the proxy."""

    broker_index: int
    connection: int
    ordinal: int
    side: Side
    api: str
    version: int
    client_id: str | None
    at_ms: float
    fault: Fault

    @property
    def place(self) -> tuple[int, int, int, str]:
        """What it is found by when it is replayed."""
        return (self.broker_index, self.connection, self.ordinal, self.side)


def write_trace(trace: Iterable[TracedFault], path: Path) -> None:
    """One line of JSON for each."""
    lines = (json.dumps({**vars(one), "fault": to_json(one.fault)}) for one in trace)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_trace(path: Path) -> list[TracedFault]:
    """Read a trace of `write_trace`. Raises `ValueError` for any other content."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            written = json.loads(line)
            found.append(TracedFault(**{**written, "fault": from_json(written["fault"])}))
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: no traced fault ({error})") from error
    return found
