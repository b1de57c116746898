"""`TracedFault`: what a `FaultProxy` has done to one frame; a list of them is replayed by another proxy."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .faults import Fault, Side, from_json, to_json


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
            told = json.loads(line)
            found.append(TracedFault(**{**told, "fault": from_json(told["fault"])}))
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: no traced fault ({error})") from error
    return found
