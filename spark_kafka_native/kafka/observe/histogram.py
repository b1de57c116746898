"""`Histogram`: how many values of which size, in buckets that grow geometrically; `Distribution`: what it
says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

STEPS = 4
"""Buckets per doubling: a percentile, from the geometric middle of its bucket, is off by at most
2 ** (1 / 8) - 1, 9.05 %."""
_LOWEST, _HIGHEST = -20 * STEPS, 40 * STEPS
"""Values from 1e-6 (a microsecond) to 1e12 are told apart: 241 buckets at most, and one for what is
smaller."""
_MAX_VALUE = 2.0**40


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Percentiles of a measurement; all zero when there was none. They are off by at most 9.05 %; ``count``,
    ``mean``, ``min`` and ``max`` are exact, but for ``min`` and ``max`` of the time between two snapshots,
    which are percentiles too."""

    count: int = 0
    sum: float = 0.0
    """Of all values."""
    min: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0
    buckets: Mapping[int, int] = field(default_factory=dict, repr=False)
    """How many values lie in bucket ``i``: from ``2 ** (i / 4)`` on, up to where the next one begins. The
    lowest holds what is smaller too."""

    @classmethod
    def of(cls, buckets: Mapping[int, int], total: float, low: float, high: float) -> Distribution:
        """Of values between ``low`` and ``high`` whose sum is ``total``."""
        count = sum(buckets.values())
        if not count:
            return cls()
        p50, p95, p99 = _percentiles(buckets, count, low, high)
        return cls(count=count, sum=total, min=low, p50=p50, p95=p95, p99=p99, max=high, buckets=buckets)

    @property
    def mean(self) -> float:
        """Of all values."""
        return self.sum / self.count if self.count else 0.0

    def to_dict(self) -> dict[str, float]:
        """Without the buckets."""
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
        """In another unit (``buckets`` stay those of the first one)."""
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
        """The values that came since ``earlier``; all of them where that is not of the same histogram."""
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
"""Of no values at all."""


class Histogram:
    """Not thread-safe: its owner holds a lock."""

    __slots__ = ("_buckets", "_max", "_min", "_sum")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._sum = 0.0
        self._min = math.inf
        self._max = 0.0

    def add(self, value: float) -> None:
        """Count one value; below 0, as where a clock was set back, it counts as 0."""
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
        """What was counted so far."""
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
