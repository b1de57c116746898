"""`Place`: what users give to say where in a partition to read; and how it becomes an offset."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from ..cluster.router import Router
from ..model import IsolationLevel, OffsetAt, TopicPartition
from ..runtime.deadline import Deadline
from .offsets import list_places

Place = int | str | OffsetAt | datetime | timedelta
"""An offset; ``"earliest"`` or ``"latest"``; an `OffsetAt`; a time (the first record at or after it), or how
long ago. A time after the last record is the log's end."""
Whence = Literal["offset", "start", "end", "current"]
"""What a number counts from: it is an offset, or relative to the first one, the log's end or the position."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WORDS = {
    "earliest": OffsetAt.EARLIEST,
    "beginning": OffsetAt.EARLIEST,
    "latest": OffsetAt.LATEST,
    "end": OffsetAt.LATEST,
    "max_timestamp": OffsetAt.MAX_TIMESTAMP,
}


def offset_or_at(place: Place, now: datetime | None = None) -> int | OffsetAt:
    """``place`` as an offset, or as what the leader is to be asked for. Raises `ValueError`, `TypeError`."""
    match place:
        case OffsetAt():
            return place
        case str():
            return _named(place)
        case datetime():
            return _at(place)
        case timedelta():
            if place < timedelta():
                raise ValueError(f"{place!r} is how long ago: it must not be negative")
            return _at((now or datetime.now(UTC)) - place)
        case int() if not isinstance(place, bool):
            if place < 0:
                raise ValueError(f"an offset must not be negative: {place}; relative ones take whence=")
            return place
    raise TypeError(f"a place in a partition is an offset, a word or a time, not {place!r}")


def _named(word: str) -> OffsetAt:
    found = _WORDS.get(word.strip().lower())
    if found is None:
        raise ValueError(f"no such place in a partition: {word!r}; there are earliest and latest")
    return found


def _at(time: datetime) -> OffsetAt:
    if time.tzinfo is None:
        raise ValueError(f"{time!r} has no time zone; write datetime(..., tzinfo=UTC)")
    # Rounded up, and not by way of a float: a record of the millisecond before is not at or after it.
    return OffsetAt.timestamp(-((_EPOCH - time) // timedelta(milliseconds=1)))


def resolve_places(
    router: Router,
    places: Mapping[TopicPartition, int | OffsetAt],
    isolation_level: IsolationLevel,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """Each place as an offset, with a request to each leader (two where a record may be missing)."""
    offsets = {tp: place for tp, place in places.items() if isinstance(place, int)}
    asked = {tp: place for tp, place in places.items() if isinstance(place, OffsetAt)}
    if asked:
        offsets |= list_places(router, asked, isolation_level, deadline)
    return {tp: offsets[tp] for tp in places}
