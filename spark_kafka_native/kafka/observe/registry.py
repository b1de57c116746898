"""`MetricsRegistry`: where a client counts and measures. Per request and per batch, never per record."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from .histogram import Distribution, Histogram
from .metric import Metric
from .snapshot import MetricKey, MetricsSnapshot, Observed, Value, added

MAX_SERIES = 1_000
"""So many combinations of tags of a metric are told apart: memory must not grow with the names of topics that
come and go, and many topics must not hide why commits fail."""
OTHER = "other"
"""The value of all tags beyond that."""

_Key = tuple[Metric, tuple[str, ...]]


class MetricsRegistry:
    """Any thread may use it; nobody waits while holding its lock. In a forked child it begins at zero."""

    def __init__(self) -> None:
        self._start()
        _REGISTRIES.add(self)

    def _start(self) -> None:
        # Reentrant: a signal's handler that closes the client may run while this thread counts.
        self.lock = threading.RLock()
        """Guards what is counted, and what an owner wants to change in one step with it."""
        self._counts: dict[_Key, int] = {}
        self._histograms: dict[_Key, Histogram] = {}
        self._series: dict[Metric, int] = {}
        """How many combinations of tags each has."""
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
        """Measure how many seconds the block takes, however it ends."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.measure(metric, time.monotonic() - began, *tags)

    def total(self, metric: Metric) -> int:
        """A counter, whatever its tags."""
        with self.lock:
            return sum(count for (of, _), count in list(self._counts.items()) if of is metric)

    def distribution(self, metric: Metric) -> Distribution:
        """A distribution, whatever its tags."""
        whole = Distribution()
        with self.lock:
            known = list(self._histograms.items())  # a signal's handler may add one meanwhile
            found = [one.distribution() for (of, _), one in known if of is metric]
        for one in found:
            whole = whole.plus(one)
        return whole

    def snapshot(
        self, observed: Iterable[Observed] = (), others: Iterable[MetricsRegistry] = ()
    ) -> MetricsSnapshot:
        """Everything so far, with what was ``observed`` elsewhere just now and what ``others`` have
        counted."""
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
        """``key``, unless there are too many already."""
        metric, tags = key
        known = self._series.get(metric, 0)
        if tags and known >= MAX_SERIES:
            return metric, (OTHER,) * len(tags)
        self._series[metric] = known + 1
        return key


_REGISTRIES: weakref.WeakSet[MetricsRegistry] = weakref.WeakSet()


def _after_fork() -> None:
    for registry in list(_REGISTRIES):
        registry._start()


os.register_at_fork(after_in_child=_after_fork)
