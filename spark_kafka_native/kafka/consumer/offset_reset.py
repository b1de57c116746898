"""`OffsetReset`: where a reader goes on whose offset is not in the log. Pure: no clock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ..model import OffsetAt

_BY_DURATION = "by_duration:"
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """What to do where an offset is not in the log: nothing (`NONE`: an error), or go on elsewhere."""

    name: str
    duration_ms: int | None = None

    NONE: ClassVar[OffsetReset]
    """`OffsetOutOfRangeError`, until somebody seeks: nothing is skipped or read again in silence."""
    EARLIEST: ClassVar[OffsetReset]
    LATEST: ClassVar[OffsetReset]

    @classmethod
    def parse(cls, text: str) -> OffsetReset:
        """``earliest``, ``latest``, ``none``, or ``by_duration:PT24H``: the records of the last so many
        hours (KIP-1106; days, hours, minutes and seconds as ISO 8601 has them). Raises ValueError.
        """
        text = text.strip()
        if found := {"none": cls.NONE, "earliest": cls.EARLIEST, "latest": cls.LATEST}.get(text.lower()):
            return found
        match = _DURATION.fullmatch(text[len(_BY_DURATION) :])
        if not text.lower().startswith(_BY_DURATION) or match is None or not any(match.groups()):
            raise ValueError("must be earliest, latest, none or by_duration:<ISO 8601>, as by_duration:PT24H")
        parts = ((float(match[name] or 0), ms) for name, ms in _MS.items())
        return cls(text, int(sum(count * ms for count, ms in parts)))

    def place(self, now_ms: float) -> OffsetAt | None:
        """Where to go on; None for `NONE`."""
        if self.duration_ms is not None:
            return OffsetAt.timestamp(max(0, int(now_ms) - self.duration_ms))
        return {"earliest": OffsetAt.EARLIEST, "latest": OffsetAt.LATEST}.get(self.name)

    def __str__(self) -> str:
        return self.name


OffsetReset.NONE = OffsetReset("none")
OffsetReset.EARLIEST = OffsetReset("earliest")
OffsetReset.LATEST = OffsetReset("latest")
