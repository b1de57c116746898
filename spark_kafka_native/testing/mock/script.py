"""What a mock broker does otherwise than a broker would, and when: a `Script` is a list of faults.

A `Fault` has conditions, which a `MockRequest` may meet, and an `Effect`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

from ...kafka.error_code import ErrorCode

_PARTITIONS = ("partitions", "partition_data", "partition_indexes")
_INDEX = ("partition", "index", "partition_index")
_TOPIC_RESOURCE = 2

Place = tuple[str, int | None]
"""A topic, and a partition of it where one is named."""


@dataclass(frozen=True, kw_only=True)
class MockRequest:
    """One request. ``fields`` has Kafka's names for its fields, in snake case, as its version has them."""

    api: str
    """As in Kafka's documentation: ``Produce``, ``ListOffsets``."""
    version: int
    fields: dict[str, Any] = field(repr=False)
    node_id: int
    """The broker that was asked."""
    connection: int
    """Connections are numbered from 1, over all brokers."""
    at: float
    """When it came, by `time.monotonic`."""
    body: bytes = field(repr=False)
    """The bytes behind its header."""
    client_id: str | None
    correlation_id: int
    places: tuple[Place, ...] = ()
    """Which topics and partitions it is about."""


def find_places(fields: Mapping[str, Any], topic_name: Callable[[UUID], str | None]) -> Iterator[Place]:
    """The topics and partitions that a request names, wherever its API puts them."""
    for key, value in fields.items():
        if not isinstance(value, list):
            continue
        for one in value:
            if key == "topic_names":
                yield one, None
            elif isinstance(one, dict):
                yield from _places_of(one, topic_name)


def _places_of(item: Mapping[str, Any], topic_name: Callable[[UUID], str | None]) -> Iterator[Place]:
    topic = topic_of(item, topic_name)
    if topic is None:
        yield from find_places(item, topic_name)
        return
    partitions = next((item[key] for key in _PARTITIONS if key in item), None)
    if partitions is None:
        yield topic, None
        return
    for partition in partitions:
        yield topic, index_of(partition) if isinstance(partition, dict) else partition


def topic_of(item: Mapping[str, Any], topic_name: Callable[[UUID], str | None]) -> str | None:
    """The topic that a part of a request is about, by its name or its id; None if it has neither."""
    if item.get("resource_type") == _TOPIC_RESOURCE:
        return str(item["resource_name"])
    named = item.get("name") or item.get("topic")
    if named or "topic_id" not in item:
        return named
    return topic_name(item["topic_id"])


def index_of(item: Mapping[str, Any]) -> int:
    """The partition that a part of a request is about."""
    return int(next(item[key] for key in _INDEX if key in item))


Fields = dict[str, Any]
Reply = Mapping[str, Any] | bytes | Callable[[MockRequest], Mapping[str, Any] | bytes | None]
Choice = Callable[[MockRequest], "Effect | None"]


class Effect:
    """What happens to a request. Its methods may be chained: ``Effect().delay(0.5).hang_up()``."""

    def __init__(self) -> None:
        self.conditions: dict[str, Any] = {}
        self.code: ErrorCode | None = None
        self.applied = False
        self.delay_s = 0.0
        self.gate: threading.Event | None = None
        self.is_hang_up = False
        self.is_ignored = False
        self.is_silence = False
        self.cut_after: int | None = None
        self.spoilt: list[int] = []
        self.spoilt_records: list[int] = []
        self.frame: bytes | None = None
        self.pieces: tuple[int, float] | None = None
        self.response: Reply | None = None
        self.edits: list[Callable[[Fields], None]] = []

    def fail(self, code: str | int | ErrorCode, *, applied: bool = False) -> Self:
        """Answer with this error code, ``"NOT_LEADER_OR_FOLLOWER"`` or its number, for the partitions (or
        topics) of the conditions only. Nothing of them is done, unless ``applied``.
        """
        named = ErrorCode[code] if isinstance(code, str) else ErrorCode(code)
        with self._tell():
            self.code, self.applied = named, applied
        return self

    def delay(self, seconds: float) -> Self:
        """Wait for the given time, then go on. Requests behind it on its connection wait, as at a broker."""
        with self._tell():
            self.delay_s = seconds
        return self

    def hold(self, gate: threading.Event) -> Self:
        """Wait until the test sets ``gate``: a test that holds a broker needs no sleeps."""
        with self._tell():
            self.gate = gate
        return self

    def hang_up(self) -> Self:
        """Close the connection; the request is not carried out."""
        with self._tell():
            self.is_hang_up = True
        return self

    def ignore(self) -> Self:
        """Neither carry the request out nor answer it, and leave the connection open: nothing more comes
        from it.
        """
        with self._tell():
            self.is_ignored = True
        return self

    def drop_reply(self) -> Self:
        """Carry the request out, never answer, and leave the connection open: nothing more comes from it."""
        with self._tell():
            self.is_silence = True
        return self

    def cut(self, after_bytes: int = 0) -> Self:
        """Carry the request out, send the given number of bytes of the response (the 4 bytes of its length
        included), and close the connection.
        """
        with self._tell():
            self.cut_after = after_bytes
        return self

    def dribble(self, piece: int, pause_s: float) -> Self:
        """Carry the request out, and send the response in pieces of ``piece`` bytes, ``pause_s`` apart."""
        if piece < 1:
            raise ValueError(f"piece is {piece}: at least one byte is sent at a time")
        with self._tell():
            self.pieces = (piece, pause_s)
        return self

    def corrupt(self, byte: int) -> Self:
        """Turn over the bits of a byte of the response, counted from 0 after the length, or -1 from its end.

        The first four are the correlation id.
        """
        with self._tell():
            self.spoilt.append(byte)
        return self

    def corrupt_records(self, byte: int = -1) -> Self:
        """Turn over the bits of one byte of the record sets that a Fetch answers with: their checksum is
        wrong, all around them is right.
        """
        with self._tell():
            self.spoilt_records.append(byte)
        return self

    def reply(self, response: Reply) -> Self:
        """Answer with these fields, or with these bytes after the header. The request is not carried out.

        A function gets the `MockRequest` and returns either, or None for no response, as to a Produce with
        ``acks=0``. Fields that are left out have their default.
        """
        with self._tell():
            self.response = response
        return self

    def send(self, frame: bytes) -> Self:
        """Send these bytes in place of the response's frame, length and header included. The request is not
        carried out.
        """
        with self._tell():
            self.frame = frame
        return self

    def change(self, edit: Callable[[Fields], None]) -> Self:
        """Carry the request out, and let ``edit`` change the fields of its response in place."""
        with self._tell():
            self.edits.append(edit)
        return self

    @contextlib.contextmanager
    def _tell(self) -> Iterator[None]:
        """Around each change: nothing else knows of this effect yet."""
        yield

    @property
    def is_partial(self) -> bool:
        """True if it affects only some topics or partitions of a request."""
        return "topic" in self.conditions or "partition" in self.conditions

    def covers(self, topic: str | None, partition: int | None) -> bool:
        """True if its conditions hold for this part of a request."""
        wanted = self.conditions
        return wanted.get("topic", topic) == topic and wanted.get("partition", partition) == partition


class Fault(Effect):
    """A fault for some requests. `MockBroker.on` makes one; its methods set the effect, and may be chained.

    A fault without an effect changes nothing, and only counts in `used`. Once it gets an effect, it counts
    anew: no request that comes in between uses it up.
    """

    def __init__(
        self,
        api: str,
        conditions: Mapping[str, Any],
        *,
        times: int | None,
        after: int,
        when: Callable[[MockRequest], bool] | None,
        lock: contextlib.AbstractContextManager[Any],
    ) -> None:
        if after < 0 or (times is not None and times < 0):
            raise ValueError(f"times is {times} and after is {after}: neither may be negative")
        super().__init__()
        self.api = api
        self.conditions = {name: value for name, value in conditions.items() if value is not None}
        self.used = 0
        """How many requests it has happened to."""
        self._times, self._after, self._when = times, after, when
        self._spared = 0
        self._lock, self._is_told = lock, False
        self._choice: Choice | None = None

    def choose(self, choice: Choice) -> Self:
        """Let a function decide for each request: it gets the `MockRequest` and returns an `Effect`, or None
        for a request that nothing happens to.
        """
        with self._tell():
            self._choice = choice
        return self

    def effect_on(self, request: MockRequest) -> Effect:
        """What happens to this request."""
        if self._choice is None:
            return self
        chosen = self._choice(request) or Effect()
        chosen.conditions = self.conditions
        return chosen

    def withdraw(self) -> None:
        """End it: no further request is affected."""
        with self._lock:
            self._times = self.used

    @contextlib.contextmanager
    def _tell(self) -> Iterator[None]:
        with self._lock:
            if not self._is_told:
                self._is_told, self.used, self._spared = True, 0, 0
            yield

    def concerns(self, request: MockRequest) -> bool:
        """True if it affects ``request``."""
        if self.api != request.api or self.conditions.get("node_id", request.node_id) != request.node_id:
            return False
        if self.is_partial and not any(self.covers(*place) for place in request.places):
            return False
        return self._when is None or self._when(request)

    def take(self) -> bool:
        """Count a request that it concerns; whether it happens to this one."""
        if self._spared < self._after:
            self._spared += 1
            return False
        self.used += 1
        return True

    @property
    def is_endless(self) -> bool:
        """True if no number of requests uses it up."""
        return self._times is None

    @property
    def is_over(self) -> bool:
        """True if it has happened as often as configured."""
        return self._times is not None and self.used >= self._times

    def __repr__(self) -> str:
        where = "".join(f", {name}={value!r}" for name, value in self.conditions.items())
        return f"<Fault of {self.api}{where}: used {self.used} times>"


class Script:
    """The faults that are left. Faults with the same conditions happen one after the other, those without an
    end last; of several without an end the newest counts.
    """

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Put it behind the others."""
        self._faults.append(fault)
        return fault

    def apis(self) -> set[str]:
        """What there are faults for."""
        return {fault.api for fault in self._faults}

    def take(self, request: MockRequest) -> list[Fault]:
        """What happens to ``request``; counted."""
        first: dict[tuple[tuple[str, Any], ...], Fault] = {}
        endless = [fault for fault in reversed(self._faults) if fault.is_endless]
        for fault in [*(fault for fault in self._faults if not fault.is_endless), *endless]:
            if not fault.is_over and fault.concerns(request):
                first.setdefault(tuple(sorted(fault.conditions.items())), fault)
        return [fault for fault in first.values() if fault.take()]
