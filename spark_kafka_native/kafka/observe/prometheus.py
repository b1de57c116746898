"""`export_to_prometheus`: metrics for Prometheus, through a registry of the package prometheus-client."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from ..errors import ConfigError
from ..runtime.fork import in_forked_child
from .catalogue import ALL_METRICS, Kind, Metric
from .exporters import Metered
from .metrics import STEPS, Distribution, MetricsSnapshot, Value, added

_LOG: Final = logging.getLogger("spark_kafka_native.telemetry")
_UNITS: Final = {"s": "seconds", "By": "bytes"}
_BOUNDS: Final = {"s": range(-10, 7), "By": range(6, 31, 2), "{record}": range(0, 21, 2)}
"""Upper bounds of a histogram's buckets, as powers of two: 1 ms to 64 s, 64 B to 1 GiB, 1 to a million
records. Our own, finer buckets have all of these bounds, so the counts are exact; but a value that equals a
bound counts as above it."""
_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_TAKEN: Final = {"le", "quantile", *(tag for metric in ALL_METRICS for tag in metric.tags)}
_PARTITION: Final = "partition"

_Labels = tuple[tuple[str, str], ...]


def export_to_prometheus(
    client: Metered,
    registry: Any = None,
    labels: Mapping[str, str] | None = None,
    *,
    by_partition: bool = False,
) -> None:
    """Register the metrics of ``client`` with ``registry``, a ``prometheus_client.CollectorRegistry`` (None:
    the global one). Serving them is left to prometheus-client, as by ``prometheus_client.start_http_server``.

    ``labels`` are added to each value, except empty ones, which are none for Prometheus. Clients with the
    same labels are counted together, and what a deleted one had counted by the last scrape stays. Without
    ``by_partition``, values of partitions are summed by topic, which bounds their number. A scrape reads
    counters in memory and asks no broker. The client is not kept alive; a process forked from this one
    exports nothing of it.

    Names: dots become ``_``; units (``_seconds``, ``_bytes``) and, of a counter, ``_total`` are appended. A
    distribution becomes a histogram.

    Raises `ConfigError` if prometheus-client is not installed (``pip install
    "spark-kafka-native[prometheus]"``), and for a label that is no name or is one of ours, such as ``topic``.
    """
    for name in labels or ():
        if not _LABEL.fullmatch(name) or name in _TAKEN:
            raise ConfigError(f"{name!a} can't be a label: it is {'taken' if name in _TAKEN else 'no name'}")
    try:
        api = import_module("prometheus_client")
        families = import_module("prometheus_client.core")
    except ImportError as error:
        raise ConfigError(
            "prometheus-client is not installed: pip install 'spark-kafka-native[prometheus]' brings it"
        ) from error
    registry = api.REGISTRY if registry is None else registry
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = _collectors[registry] = _Collector(families)
            registry.register(collector)
    texts = {name: _clean(value) for name, value in (labels or {}).items()}
    own = tuple(sorted((name, text) for name, text in texts.items() if text))
    collector.add(_Exported(weakref.ref(client), own, by_partition))


def prometheus_name(metric: Metric) -> str:
    """The name of ``metric`` in Prometheus, but for the suffixes that a counter and a histogram have."""
    words = metric.name.replace(".", "_")
    unit = _UNITS.get(metric.unit)
    return words if unit is None or unit in words.split("_") else f"{words}_{unit}"


@dataclass(slots=True)
class _Exported:
    """A client, and what it had counted at the last scrape."""

    client: weakref.ref[Metered]
    labels: _Labels
    by_partition: bool
    last: MetricsSnapshot | None = None
    is_current: bool = True
    """False if the client failed in the last scrape: ``last`` is older, and only its counters are shown."""


class _Collector:
    """All clients of one registry: Prometheus wants each metric once, with all its values."""

    def __init__(self, families: Any) -> None:
        self._families = families
        self._start_empty()
        in_forked_child(self._start_empty)

    def _start_empty(self) -> None:
        self._lock = threading.RLock()  # re-entrant: a signal handler may scrape
        self._clients: list[_Exported] = []
        self._ended: dict[tuple[_Labels, Metric, _Labels], Value] = {}
        """Counted by clients that are gone: a counter must not fall."""

    def add(self, exported: _Exported) -> None:
        """A client that is there already with these labels, as when a cell of a notebook is run again, counts
        once, by partition or not as the last call says."""
        client = exported.client()
        with self._lock:
            for one in self._clients:
                if one.client() is client and one.labels == exported.labels:
                    one.by_partition = exported.by_partition
                    return
            self._clients = [*self._clients, exported]

    def describe(self) -> list[Any]:
        """Nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Any]:
        """Called by prometheus-client, in the thread of a scrape."""
        values: dict[Metric, dict[_Labels, Value]] = {}
        with self._lock:
            for one in self._clients:
                self._look(one)
            rows = [((one.labels, *key), value) for one in self._clients for key, value in _values_of(one)]
            rows += self._ended.items()
        for (labels, metric, tags), value in rows:
            series, key = values.setdefault(metric, {}), (*labels, *tags)
            series[key] = _joined(metric, series[key], value) if key in series else value
        return iter([self._family(metric, series) for metric, series in values.items()])

    def _look(self, one: _Exported) -> None:
        client = one.client()
        if client is None:
            if not any(other is one for other in self._clients):
                return  # a scrape by a signal handler, amid this one, has done it
            self._clients = [other for other in self._clients if other is not one]
            one.is_current = False
            for (metric, tags), value in _values_of(one):
                key = (one.labels, metric, tags)
                self._ended[key] = added(self._ended[key], value) if key in self._ended else value
            return
        try:
            one.last, one.is_current = client.metrics(), True
        except Exception:  # noqa: BLE001 - it would take the metrics of all others along
            one.is_current = False
            _LOG.exception("the gauges of %r are left out of this scrape", client)

    def _family(self, metric: Metric, series: Mapping[_Labels, Value]) -> Any:
        """A label that only some of the values have is empty in the others: for Prometheus that is none."""
        names = tuple(dict.fromkeys(name for labels in series for name, _ in labels))
        kind = {
            Kind.COUNTER: self._families.CounterMetricFamily,
            Kind.GAUGE: self._families.GaugeMetricFamily,
            Kind.DISTRIBUTION: self._families.HistogramMetricFamily,
        }[metric.kind]
        family = kind(prometheus_name(metric), metric.description, labels=names)
        for labels, value in series.items():
            found = dict(labels)
            texts = [found.get(name, "") for name in names]
            if isinstance(value, Distribution):
                family.add_metric(texts, buckets=_buckets(metric, value), sum_value=value.sum)
            else:
                family.add_metric(texts, value)
        return family


def _values_of(one: _Exported) -> Iterator[tuple[tuple[Metric, _Labels], Value]]:
    """The last values of a client, partitions summed if that is wanted; without gauges if they are old. A
    counter without tags that has not counted yet is 0: ``increase`` in Prometheus misses the first error of
    one that begins at 1.
    """
    if one.last is None:
        return
    wings = {_wing(key.name) for key, _ in one.last}
    for metric in ALL_METRICS:
        if metric.kind is Kind.COUNTER and not metric.tags and _wing(metric.name) in wings:
            yield (metric, ()), 0
    for key, value in one.last:
        if one.last.kinds[key.name].kind is Kind.GAUGE and not one.is_current:
            continue
        tags = tuple(
            (name, _clean(text)) for name, text in key.tags if one.by_partition or name != _PARTITION
        )
        yield (one.last.kinds[key.name], tags), value


def _joined(metric: Metric, one: Value, other: Value) -> Value:
    """Of two clients with the same labels, or of two partitions."""
    if metric.name.endswith(".timestamp") and not isinstance(one, Distribution):
        return one if isinstance(other, Distribution) else max(one, other)
    return added(one, other)


def _wing(name: str) -> str:
    return name.split(".", 2)[1]


def _buckets(metric: Metric, value: Distribution) -> list[tuple[str, int]]:
    ours, found, seen = sorted(value.buckets.items()), [], 0
    for power in _BOUNDS[metric.unit]:
        while ours and ours[0][0] < power * STEPS:
            seen += ours.pop(0)[1]
        found.append((str(2.0**power), seen))
    return [*found, ("+Inf", value.count)]


def _clean(text: str) -> str:
    """``text`` as UTF-8 can have it. prometheus-client escapes the rest."""
    return str(text).encode("utf-8", "replace").decode()


_lock = threading.RLock()
_collectors: weakref.WeakKeyDictionary[Any, _Collector] = weakref.WeakKeyDictionary()


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


in_forked_child(_new_lock)
