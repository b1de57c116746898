"""`FaultRule`: which frames get which fault. `ProxiedRequest`: the properties that rules match. `FaultPlan`
decides.

Pure: the caller passes the frames, one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ..kafka.protocol.api import all_requests
from ..kafka.protocol.codec import codec
from ..kafka.protocol.message import Request
from .fault_trace import TracedFault
from .faults import KINDS, OF_REPLIES, Fault, Hold, Side, drawn


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
