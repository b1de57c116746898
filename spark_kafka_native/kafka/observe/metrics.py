"""Metrics: a registry of counters and histograms, and snapshots of both.

Counting happens per request and per batch, never per record.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import BrokerError
from ..runtime.fork import in_forked_child
from .catalogue import Kind, Metric

STEPS = 4
"""Buckets per doubling. A percentile is the geometric middle of its bucket, so its error is at most 2 ** (1 /
8) - 1, 9.05 %."""
_LOWEST, _HIGHEST = -20 * STEPS, 40 * STEPS
"""The range of distinguished values, from 1e-6 (a microsecond) to 1e12: at most 241 buckets, one of which
holds all smaller values."""
_MAX_VALUE = 2.0**40


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Percentiles of a measurement; all zero if there are no values. Their error is at most 9.05 %.
    ``count``, ``mean``, ``min`` and ``max`` are exact, except ``min`` and ``max`` of the time between two
    snapshots, which are percentiles too.
    """

    count: int = 0
    sum: float = 0.0
    """The sum of all values."""
    min: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0
    buckets: Mapping[int, int] = field(default_factory=dict, repr=False)
    """The number of values in bucket ``i``, which starts at ``2 ** (i / 4)`` and ends where the next one
    starts. The lowest bucket also holds all smaller values."""

    @classmethod
    def of(cls, buckets: Mapping[int, int], total: float, low: float, high: float) -> Distribution:
        """The distribution of values between ``low`` and ``high`` with the sum ``total``."""
        count = sum(buckets.values())
        if not count:
            return cls()
        p50, p95, p99 = _percentiles(buckets, count, low, high)
        return cls(count=count, sum=total, min=low, p50=p50, p95=p95, p99=p99, max=high, buckets=buckets)

    @property
    def mean(self) -> float:
        """The mean of all values."""
        return self.sum / self.count if self.count else 0.0

    def to_dict(self) -> dict[str, float]:
        """Plain values, without the buckets."""
        return {
            "count": self.count,
            "sum": self.sum,
            "mean": self.mean,
            "min": self.min,
            "p50": self.p50,
            "p95": self.p95,
            "p99": self.p99,
            "max": self.max,
        }

    def scaled(self, factor: float) -> Distribution:
        """In another unit (``buckets`` keep the original one)."""
        return Distribution(
            count=self.count,
            sum=self.sum * factor,
            min=self.min * factor,
            p50=self.p50 * factor,
            p95=self.p95 * factor,
            p99=self.p99 * factor,
            max=self.max * factor,
            buckets=self.buckets,
        )

    def plus(self, other: Distribution) -> Distribution:
        """The values of both."""
        if not self.count or not other.count:
            return self if self.count else other
        buckets = dict(self.buckets)
        for bucket, count in other.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
        return Distribution.of(
            buckets, self.sum + other.sum, min(self.min, other.min), max(self.max, other.max)
        )

    def minus(self, earlier: Distribution) -> Distribution:
        """The values since ``earlier``; all values if ``earlier`` is not of the same histogram."""
        before = earlier.buckets
        left = {bucket: count - before.get(bucket, 0) for bucket, count in self.buckets.items()}
        if not before or any(count < 0 for count in left.values()) or not before.keys() <= left.keys():
            return self
        left = {bucket: count for bucket, count in left.items() if count}
        if not left:
            return Distribution()
        low = max(self.min, _lower_bound(min(left)))
        high = min(self.max, _lower_bound(max(left) + 1))
        return Distribution.of(left, max(0.0, self.sum - earlier.sum), low, max(low, high))


NOTHING = Distribution()
"""The distribution of no values."""


class Histogram:
    """Counts of values in buckets that grow geometrically. Not thread-safe: its owner holds a lock."""

    __slots__ = ("_buckets", "_max", "_min", "_sum")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._sum = 0.0
        self._min = math.inf
        self._max = 0.0

    def add(self, value: float) -> None:
        """Count one value; a negative one (a clock was set back) counts as 0."""
        if not value > 0.0:
            value, bucket = 0.0, _LOWEST
        elif value >= _MAX_VALUE:
            bucket = _HIGHEST
        else:
            bucket = max(_LOWEST, math.floor(math.log2(value) * STEPS))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self._sum += value
        if value < self._min:
            self._min = value
        if value > self._max:
            self._max = value

    def distribution(self) -> Distribution:
        """The distribution so far."""
        return Distribution.of(dict(self._buckets), self._sum, self._min, self._max)


def _percentiles(buckets: Mapping[int, int], count: int, low: float, high: float) -> list[float]:
    ranks, found, seen = [0.50 * count, 0.95 * count, 0.99 * count], [], 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        while ranks and seen >= ranks[0]:
            found.append(min(high, max(low, _middle(bucket))))
            del ranks[0]
    return found


def _lower_bound(bucket: int) -> float:
    return 0.0 if bucket <= _LOWEST else 2.0 ** (bucket / STEPS)


def _middle(bucket: int) -> float:
    return 0.0 if bucket <= _LOWEST else 2.0 ** ((bucket + 0.5) / STEPS)


Value = int | float | Distribution


class Observed(NamedTuple):
    """The current value of a gauge, or of a counter kept elsewhere."""

    metric: Metric
    value: float
    tags: tuple[str, ...] = ()


class MetricKey(NamedTuple):
    """A metric with values of its tags; prints as ``kafka.client.requests{api=Fetch}``."""

    name: str
    tags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        shown = ",".join(f"{name}={value}" for name, value in self.tags)
        return f"{self.name}{{{shown}}}" if shown else self.name


@dataclass(frozen=True, kw_only=True)
class MetricsSnapshot:
    """The values of a client's metrics at one moment. ``docs/metrics.md`` lists them.

    ``snapshot.values`` maps each name with its tags to a number or a `Distribution`. Counters and
    distributions of one client only grow; a forked process starts at zero.
    """

    taken_at: float
    """Seconds since the epoch."""
    seconds: float
    """The time that it covers: since the client was created, or, for `since`, since the earlier snapshot."""
    values: Mapping[MetricKey, Value]
    kinds: Mapping[str, Metric]
    """By name."""

    def __iter__(self) -> Iterator[tuple[MetricKey, Value]]:
        return iter(self.values.items())

    def __repr__(self) -> str:
        return f"<MetricsSnapshot of {self.seconds:.3f} s: {len(self.values)} values>"

    def value(self, name: str, **tags: str) -> float:
        """The sum of a counter or gauge over all series with these ``tags``; 0 if there are none. For a
        distribution, the sum of its values.
        """
        found = self._find(name, tags)
        return sum(one.sum if isinstance(one, Distribution) else one for one in found)

    def distribution(self, name: str, **tags: str) -> Distribution:
        """A distribution over all series with these ``tags``; an empty one if there are none."""
        whole = Distribution()
        for one in self._find(name, tags):
            if isinstance(one, Distribution):
                whole = whole.plus(one)
        return whole

    def since(self, earlier: MetricsSnapshot) -> MetricsSnapshot:
        """The changes since an ``earlier`` snapshot of the same client; gauges keep their current values."""
        values = {key: self._since(key, value, earlier.values.get(key)) for key, value in self}
        return MetricsSnapshot(
            taken_at=self.taken_at,
            seconds=max(0.0, self.seconds - earlier.seconds),
            values=values,
            kinds=self.kinds,
        )

    def plus(self, others: Iterable[MetricsSnapshot]) -> MetricsSnapshot:
        """The sum of this snapshot and those of other parts of the same client."""
        values, kinds = dict(self.values), dict(self.kinds)
        for other in others:
            kinds.update(other.kinds)
            for key, value in other:
                values[key] = added(values[key], value) if key in values else value
        return MetricsSnapshot(
            taken_at=self.taken_at, seconds=self.seconds, values=dict(sorted(values.items())), kinds=kinds
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: ``metrics`` is a list of name, kind, unit, tags and value."""
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
        import json  # late: few callers need it, and imports delay the first result

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
    """The sum of two values."""
    if isinstance(one, Distribution):
        return one.plus(other) if isinstance(other, Distribution) else one
    return one if isinstance(other, Distribution) else one + other


MAX_SERIES = 1_000
"""Limit of tag combinations per metric: memory must not grow with the names of topics that come and go, and
many topics must not hide why commits fail."""
OTHER = "other"
"""The value of all tags beyond that limit."""

_Key = tuple[Metric, tuple[str, ...]]


class MetricsRegistry:
    """Counters and histograms. Any thread may use it; no thread waits while it holds the lock. In a forked
    child it starts at zero.
    """

    def __init__(self) -> None:
        self._start()
        in_forked_child(self._start)

    def _start(self) -> None:
        # Re-entrant: a signal handler may close the client while this thread counts.
        self.lock = threading.RLock()
        """Guards the counts, and the state that an owner changes in one step with them."""
        self._counts: dict[_Key, int] = {}
        self._histograms: dict[_Key, Histogram] = {}
        self._series: dict[Metric, int] = {}
        """The number of tag combinations of each metric."""
        self._started_at = time.monotonic()

    def __repr__(self) -> str:
        return f"<MetricsRegistry: {len(self._counts)} counters, {len(self._histograms)} distributions>"

    def count(self, metric: Metric, amount: int = 1, *tags: str) -> None:
        """Add to a counter."""
        key = (metric, tags)
        with self.lock:
            counts = self._counts
            if key in counts:
                counts[key] += amount
            else:
                key = self._bounded(key)
                counts[key] = counts.get(key, 0) + amount

    def measure(self, metric: Metric, value: float, *tags: str) -> None:
        """Add to a distribution."""
        key = (metric, tags)
        with self.lock:
            histogram = self._histograms.get(key)
            if histogram is None:
                histogram = self._histograms.setdefault(self._bounded(key), Histogram())
            histogram.add(value)

    @contextlib.contextmanager
    def timed(self, metric: Metric, *tags: str) -> Iterator[None]:
        """Measure the duration of the block in seconds, however it ends."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.measure(metric, time.monotonic() - began, *tags)

    def total(self, metric: Metric) -> int:
        """A counter, summed over all tags."""
        with self.lock:
            return sum(count for (of, _), count in list(self._counts.items()) if of is metric)

    def distribution(self, metric: Metric) -> Distribution:
        """A distribution over all tags."""
        whole = Distribution()
        with self.lock:
            known = list(self._histograms.items())  # a signal handler may add one meanwhile
            found = [one.distribution() for (of, _), one in known if of is metric]
        for one in found:
            whole = whole.plus(one)
        return whole

    def snapshot(
        self, observed: Iterable[Observed] = (), others: Iterable[MetricsRegistry] = ()
    ) -> MetricsSnapshot:
        """The metrics so far, with values ``observed`` elsewhere just now and the metrics of ``others``."""
        with self.lock:
            counts: list[tuple[_Key, Any]] = list(self._counts.items())
            counts += [(key, histogram.distribution()) for key, histogram in list(self._histograms.items())]
            seconds = time.monotonic() - self._started_at
        values: dict[MetricKey, Value] = {}
        kinds: dict[str, Metric] = {}
        seen = [Observed(metric, value, tags) for (metric, tags), value in counts]
        for metric, value, tags in [*seen, *observed]:
            kinds[metric.name] = metric
            key = MetricKey(metric.name, tuple(zip(metric.tags, tags, strict=False)))
            values[key] = added(values[key], value) if key in values else value
        mine = MetricsSnapshot(
            taken_at=time.time(), seconds=seconds, values=dict(sorted(values.items())), kinds=kinds
        )
        return mine.plus([other.snapshot() for other in others if other is not self])

    def _bounded(self, key: _Key) -> _Key:
        """``key``, or the key of `OTHER` if the metric has too many tag combinations."""
        metric, tags = key
        known = self._series.get(metric, 0)
        if tags and known >= MAX_SERIES:
            return metric, (OTHER,) * len(tags)
        self._series[metric] = known + 1
        return key


def error_tag(error: BaseException | None) -> str:
    """The name of a broker's error code or of the exception's class; never the message, which has unlimited
    variants.
    """
    if isinstance(error, BrokerError):
        return error.error_code.name
    return "none" if error is None else type(error).__name__
