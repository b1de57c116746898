"""`PushedFilters`: the bounds on topic, partition, offset and timestamp that Spark's filters imply.

Pure. A filter that is not understood is left out, never guessed: Spark applies every filter again to the
rows, so that pruning may be too weak but never too strong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ....kafka.model import TopicPartition

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_MILLISECOND: Final = timedelta(milliseconds=1)

_NEGATABLE: Final = frozenset(
    {"EqualTo", "EqualNullSafe", "In", "StringStartsWith", "StringEndsWith", "StringContains"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One understood filter: ``column`` in Kafka's spelling, ``operator`` in Spark's, ``negated`` for a
    ``Not`` of it."""

    column: str
    operator: str
    value: Any
    negated: bool = False

    def allows(self, found: Any) -> bool:
        """True if a row with ``found`` in the column passes."""
        return _COMPARE[self.operator](found, self.value) is not self.negated


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedFilters:
    """Bounds that every row which passes all filters lies in: inclusive lower, exclusive upper ones.

    A latest time is not among them: it bounds no offset, as timestamps need not grow with the offsets."""

    conditions: tuple[Condition, ...] = ()
    """On topic and partition."""
    from_offset: int = 0
    until_offset: int | None = None
    from_timestamp_ms: int | None = None

    @classmethod
    def from_filters(cls, filters: Iterable[Any]) -> PushedFilters:
        """Fold Spark's filters (all of them hold) into bounds."""
        found = cls()
        for condition in map(_to_condition, filters):
            if condition is not None:
                found = _FOLD[condition.column](found, condition)
        return found

    def allows(self, topic_partition: TopicPartition) -> bool:
        """True if any row of the partition may pass."""
        values = {"topic": topic_partition.topic, "partition": topic_partition.partition}
        return all(condition.allows(values[condition.column]) for condition in self.conditions)


def _to_condition(filter_: Any) -> Condition | None:
    negated = type(filter_).__name__ == "Not"
    inner = filter_.child if negated else filter_
    operator = type(inner).__name__
    column = ".".join(getattr(inner, "attribute", ())).lower()
    if column not in _FOLD or operator not in _COMPARE or (negated and operator not in _NEGATABLE):
        return None
    if not _is_plain(column, inner.value):
        return None
    return Condition(column=column, operator=operator, value=inner.value, negated=negated)


def _is_plain(column: str, value: Any) -> bool:
    """True if the literals have the type of the column; others are left to Spark."""
    values = value if isinstance(value, tuple | list) else (value,)
    kind = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}[column]
    return all(isinstance(one, kind) and not isinstance(one, bool) for one in values)


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "EqualTo": lambda found, value: bool(found == value),
    "EqualNullSafe": lambda found, value: bool(found == value),
    "In": lambda found, value: found in value,
    "GreaterThan": lambda found, value: bool(found > value),
    "GreaterThanOrEqual": lambda found, value: bool(found >= value),
    "LessThan": lambda found, value: bool(found < value),
    "LessThanOrEqual": lambda found, value: bool(found <= value),
    "StringStartsWith": lambda found, value: bool(found.startswith(value)),
    "StringEndsWith": lambda found, value: bool(found.endswith(value)),
    "StringContains": lambda found, value: value in found,
}


def _fold_place(filters: PushedFilters, condition: Condition) -> PushedFilters:
    return replace(filters, conditions=(*filters.conditions, condition))


def _bounds(condition: Condition, one: Callable[[Any], tuple[int, int]]) -> tuple[int | None, int | None]:
    """Inclusive lower and exclusive upper bound; ``one`` gives those of a single value."""
    if condition.operator == "In":
        spans = [one(value) for value in condition.value]
        return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else (None, 0)
    low, high = one(condition.value)
    return {
        "EqualTo": (low, high),
        "EqualNullSafe": (low, high),
        # A timestamp is cut to the millisecond below it: "greater" still may begin in that millisecond.
        "GreaterThan": (high if condition.column == "offset" else low, None),
        "GreaterThanOrEqual": (low, None),
        "LessThan": (None, low if condition.column == "offset" else high),
        "LessThanOrEqual": (None, high),
    }[condition.operator]


def _fold_offset(filters: PushedFilters, condition: Condition) -> PushedFilters:
    if condition.negated:
        return filters
    low, high = _bounds(condition, lambda value: (value, value + 1))
    return replace(
        filters,
        from_offset=max(filters.from_offset, low or 0),
        until_offset=_least(filters.until_offset, high),
    )


def _fold_timestamp(filters: PushedFilters, condition: Condition) -> PushedFilters:
    if condition.negated:
        return filters
    low, _ = _bounds(condition, _millisecond_of)
    return replace(filters, from_timestamp_ms=_most(filters.from_timestamp_ms, low))


def _millisecond_of(value: datetime) -> tuple[int, int]:
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    millisecond = (moment - _EPOCH) // _MILLISECOND
    return millisecond, millisecond + 1


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _most(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


_FOLD: Final[dict[str, Callable[[PushedFilters, Condition], PushedFilters]]] = {
    "topic": _fold_place,
    "partition": _fold_place,
    "offset": _fold_offset,
    "timestamp": _fold_timestamp,
}
