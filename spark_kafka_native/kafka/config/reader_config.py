"""Settings of continuous reading: `ReaderConfig`, and `OffsetReset` for a position that is not in the log.

Settings that every fetch needs are in `ConsumerConfig`. Pure: no clock, and no import of pyarrow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ..model import OffsetAt
from .client_config import ConsumerConfig
from .properties import INT32_MAX, property_field

_BY_DURATION = "by_duration:"
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """What to do if an offset is not in the log: raise an error (`NONE`), or continue elsewhere."""

    name: str
    duration_ms: int | None = None

    NONE: ClassVar[OffsetReset]
    """`OffsetOutOfRangeError` until the caller seeks: nothing is skipped or read twice silently."""
    EARLIEST: ClassVar[OffsetReset]
    LATEST: ClassVar[OffsetReset]

    @classmethod
    def parse(cls, text: str) -> OffsetReset:
        """Parse ``earliest``, ``latest``, ``none`` or ``by_duration:PT24H``, the records of a duration before
        now (KIP-1106; ISO 8601 with days, hours, minutes and seconds). Raises ValueError.
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
        """Return where to continue; None for `NONE`."""
        if self.duration_ms is not None:
            return OffsetAt.timestamp(max(0, int(now_ms) - self.duration_ms))
        return {"earliest": OffsetAt.EARLIEST, "latest": OffsetAt.LATEST}.get(self.name)

    def __str__(self) -> str:
        return self.name


OffsetReset.NONE = OffsetReset("none")
OffsetReset.EARLIEST = OffsetReset("earliest")
OffsetReset.LATEST = OffsetReset("latest")


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(ConsumerConfig):
    """A `ConsumerConfig` with the settings of continuous reading."""

    auto_offset_reset: OffsetReset = property_field(  # noqa: RUF009 - it returns a field
        "auto.offset.reset", OffsetReset.NONE, OffsetReset.parse
    )
    """Where to continue if the offset is not in the log: ``earliest``, ``latest``, ``by_duration:PT24H``, or
    ``none``: an error."""
    prefetch_max_bytes: int = property_field(
        "prefetch.max.bytes", 32 * 1024 * 1024, min_value=1, max_value=INT32_MAX
    )
    """Limit of records that are fetched ahead, decoded. A response of each broker comes on top."""
    max_poll_records: int = property_field("max.poll.records", 500, min_value=1, max_value=INT32_MAX)
    """Limit of records that one ``poll`` returns."""
