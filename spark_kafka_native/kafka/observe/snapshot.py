"""`MetricsSnapshot`: everything that a client has counted and measured, at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .histogram import Distribution
from .metric import Kind, Metric

Value = int | float | Distribution


class Observed(NamedTuple):
    """The value that a gauge, or a counter kept elsewhere, has now."""

    metric: Metric
    value: float
    tags: tuple[str, ...] = ()


class MetricKey(NamedTuple):
    """A metric with values for its tags; prints as in ``kafka.client.requests{api=Fetch}``."""

    name: str
    tags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        shown = ",".join(f"{name}={value}" for name, value in self.tags)
        return f"{self.name}{{{shown}}}" if shown else self.name


@dataclass(frozen=True, kw_only=True)
class MetricsSnapshot:
    """What was counted since a moment. Its metrics are those of ``docs/client.md``.

    ``snapshot.values`` maps each name with its tags to a number, or a `Distribution`. Counters and
    distributions of one client only grow; a process that was forked from it begins at zero.
    """

    taken_at: float
    """Seconds since the epoch."""
    seconds: float
    """How long it was counted for: since the client was made, or, of `since`, since the earlier snapshot."""
    values: Mapping[MetricKey, Value]
    kinds: Mapping[str, Metric]
    """By name."""

    def __iter__(self) -> Iterator[tuple[MetricKey, Value]]:
        return iter(self.values.items())

    def __repr__(self) -> str:
        return f"<MetricsSnapshot of {self.seconds:.3f} s: {len(self.values)} values>"

    def value(self, name: str, **tags: str) -> float:
        """A counter or gauge, over all that have these ``tags``; 0 where there is none. Of a distribution it
        is the sum."""
        found = self._find(name, tags)
        return sum(one.sum if isinstance(one, Distribution) else one for one in found)

    def distribution(self, name: str, **tags: str) -> Distribution:
        """A distribution, over all that have these ``tags``; an empty one where there is none."""
        whole = Distribution()
        for one in self._find(name, tags):
            if isinstance(one, Distribution):
                whole = whole.plus(one)
        return whole

    def since(self, earlier: MetricsSnapshot) -> MetricsSnapshot:
        """What was counted and measured since an ``earlier`` snapshot of the same client; gauges are as they
        are now."""
        values = {key: self._since(key, value, earlier.values.get(key)) for key, value in self}
        return MetricsSnapshot(
            taken_at=self.taken_at,
            seconds=max(0.0, self.seconds - earlier.seconds),
            values=values,
            kinds=self.kinds,
        )

    def plus(self, others: Iterable[MetricsSnapshot]) -> MetricsSnapshot:
        """Together with those of other parts of the same client."""
        values, kinds = dict(self.values), dict(self.kinds)
        for other in others:
            kinds.update(other.kinds)
            for key, value in other:
                values[key] = added(values[key], value) if key in values else value
        return MetricsSnapshot(
            taken_at=self.taken_at, seconds=self.seconds, values=dict(sorted(values.items())), kinds=kinds
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: ``metrics`` is a list of name, unit, tags and value."""
        return {
            "taken_at": self.taken_at,
            "seconds": self.seconds,
            "metrics": [
                {
                    "name": key.name,
                    "kind": self.kinds[key.name].kind.value,
                    "unit": self.kinds[key.name].unit,
                    "tags": dict(key.tags),
                    "value": value.to_dict() if isinstance(value, Distribution) else value,
                }
                for key, value in self
            ],
        }

    def to_json(self) -> str:
        """`to_dict` as one line of JSON."""
        import json  # late: few ask for it, and a person may be waiting for something else

        return json.dumps(self.to_dict(), separators=(",", ":"))

    def _find(self, name: str, tags: Mapping[str, str]) -> list[Value]:
        wanted = set(tags.items())
        return [value for key, value in self if key.name == name and wanted <= set(key.tags)]

    def _since(self, key: MetricKey, value: Value, earlier: Value | None) -> Value:
        if earlier is None or self.kinds[key.name].kind is Kind.GAUGE:
            return value
        if isinstance(value, Distribution):
            return value.minus(earlier) if isinstance(earlier, Distribution) else value
        assert not isinstance(earlier, Distribution)
        return value - earlier if value >= earlier else value


def added(one: Value, other: Value) -> Value:
    """Both together."""
    if isinstance(one, Distribution):
        return one.plus(other) if isinstance(other, Distribution) else one
    return one if isinstance(other, Distribution) else one + other
