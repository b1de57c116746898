"""Points in time as people write them: milliseconds, ISO-8601, or a time relative to now.

Spark's JVM connector takes milliseconds only; its words open the error, so that a search for them still
matches. The options of reads and the command line take them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from ..errors import ConfigError

_UNITS_MS: Final = {
    "ms": 1, "millisecond": 1,
    "s": 1_000, "sec": 1_000, "second": 1_000,
    "m": 60_000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000,
    "d": 86_400_000, "day": 86_400_000,
    "w": 604_800_000, "week": 604_800_000,
}  # fmt: skip
_RELATIVE: Final = re.compile(r"-\s*(\d{1,18})\s*([a-z]{1,12})", re.IGNORECASE)
_MAX_MS: Final = 2**63 - 1
_EXPECTED: Final = (
    "milliseconds since the epoch, an ISO-8601 time such as 2026-05-01T12:00:00Z, or a time before now such "
    "as -1h or '-15 minutes'"
)


def parse_timestamp_ms(text: str, *, now_ms: int) -> int:
    """Milliseconds since the epoch for ``1700000000000``, ``2026-05-01T12:00:00Z`` or ``-15 minutes``.

    A date or time without an offset is UTC: the session's time zone is not known where options are parsed.
    Raises `ConfigError` for anything else, and for a time before the epoch (Kafka stores none).
    """
    value = text.strip()
    found = _parse_number(value)
    if found is None:
        found = _parse_relative(value, now_ms)
    if found is None:
        found = _parse_iso(value)
    if found is None or not 0 <= found <= _MAX_MS:
        why = "it is before 1970" if found is not None and found < 0 else _EXPECTED
        raise ConfigError(f"Expected a single long value, got {text[:100]} ({why})")
    return found


def _parse_number(value: str) -> int | None:
    return int(value) if re.fullmatch(r"\+?[0-9]{1,19}", value) else None


def _parse_relative(value: str, now_ms: int) -> int | None:
    match = _RELATIVE.fullmatch(value)
    if match is None:
        return None
    word = match[2].lower()
    unit_ms = _UNITS_MS.get(word) or _UNITS_MS.get(word.removesuffix("s"))
    return None if unit_ms is None else now_ms - int(match[1]) * unit_ms


def _parse_iso(value: str) -> int | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Whole-number arithmetic: a float of seconds would lose milliseconds in far years.
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
