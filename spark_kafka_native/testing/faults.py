"""What a `FaultProxy` may do to a frame. Plain data but for `Hold`, which its test releases.

A *request* is changed before the broker has seen it, a *reply* after the broker has done what it was asked.
Numbers of bytes count a frame from its length prefix on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal, get_args

from ..kafka.error_code import ErrorCode

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


def from_json(told: dict[str, Any]) -> Fault:
    """As `to_json` wrote it. Raises `ValueError`."""
    given = dict(told)
    kind = _PLAIN.get(str(given.pop("kind", None)))
    if kind is None:
        raise ValueError(f"no fault: {told!r}")
    if kind is RewriteError:
        given["error_code"] = ErrorCode(given["error_code"])
    fault: Fault = kind(**given)
    return fault
