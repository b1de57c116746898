"""`export_to_opentelemetry`: a client's metrics as OpenTelemetry's, read when its SDK collects."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

from ..errors import ConfigError
from .catalogue import ALL_METRICS
from .histogram import NOTHING, Distribution
from .metric import Kind, Metric
from .metrics_exporter import Metered
from .snapshot import MetricKey, MetricsSnapshot, Value

METER: Final = "spark_kafka_native"
_PERCENTILES: Final = (("0", "min"), ("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99"), ("1", "max"))

_Read = Callable[[Value], Iterator[tuple[float, Mapping[str, str]]]]


def export_to_opentelemetry(
    client: Metered, meter: Any = None, attributes: Mapping[str, str] | None = None
) -> None:
    """Register every metric of ``client`` with ``meter`` (None: the global provider's). ``attributes`` go on
    each value, to tell clients apart; tags are attributes, too.

    A counter and a gauge keep their names and units. A distribution is a counter ``<name>.count``, a counter
    ``<name>.sum``, and a gauge ``<name>`` with the percentiles since the last collection, as attribute
    ``quantile`` (0 to 1). The client is not kept alive; nothing is reported of one that is gone.

    Raises `ConfigError` where ``opentelemetry-api`` is not installed: ``pip install
    "spark-kafka-native[otel]"``.
    """
    try:
        api = import_module("opentelemetry.metrics")
    except ImportError as error:
        raise ConfigError(
            "OpenTelemetry is not installed: pip install 'spark-kafka-native[otel]' brings opentelemetry-api"
        ) from error
    collected = _Collected(client, api.Observation, attributes or {})
    meter = meter or api.get_meter(METER)
    for metric in ALL_METRICS:
        for suffix, create, unit, read in _instruments(meter, metric):
            name = metric.name + suffix
            create(name, [collected.reader(name, metric, read)], unit, metric.description)


def _instruments(meter: Any, metric: Metric) -> list[tuple[str, Any, str, _Read]]:
    """The suffix of its name, how it is made, its unit and what it reads."""
    match metric.kind:
        case Kind.COUNTER:
            return [("", meter.create_observable_counter, metric.unit, _number)]
        case Kind.GAUGE:
            return [("", meter.create_observable_gauge, metric.unit, _number)]
        case Kind.DISTRIBUTION:
            return [
                (".count", meter.create_observable_counter, "1", _count),
                (".sum", meter.create_observable_counter, metric.unit, _sum),
                ("", meter.create_observable_gauge, metric.unit, _percentiles),
            ]


class _Collected:
    """One snapshot for all instruments of a collection: one that is read again begins the next."""

    def __init__(
        self, client: Metered, observation: Callable[..., Any], attributes: Mapping[str, str]
    ) -> None:
        self._client = weakref.ref(client)
        self._observation = observation
        self._attributes = dict(attributes)
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._total: MetricsSnapshot | None = None
        self._since: MetricsSnapshot | None = None
        self._read: set[str] = set()

    def reader(self, name: str, metric: Metric, read: _Read) -> Callable[[Any], list[Any]]:
        """The callback of one instrument."""

        def observe(_: Any) -> list[Any]:
            found = []
            for key, value in self._values(name, metric, interval=read is _percentiles):
                for number, more in read(value):
                    found.append(self._observation(number, {**self._attributes, **dict(key.tags), **more}))
            return found

        return observe

    def _values(self, name: str, metric: Metric, *, interval: bool) -> list[tuple[MetricKey, Value]]:
        if self._process_id != os.getpid():  # a reader may go on in a forked child, where the client does not
            return []
        with self._lock:
            snapshot = self._snapshot(name)[interval]
        return (
            [] if snapshot is None else [(key, value) for key, value in snapshot if key.name == metric.name]
        )

    def _snapshot(self, name: str) -> tuple[MetricsSnapshot | None, MetricsSnapshot | None]:
        """All so far, and what came since the last collection."""
        client = self._client()
        if client is None:
            return None, None
        if self._total is None or name in self._read:
            last, self._total = self._total, client.metrics()
            self._since = self._total if last is None else self._total.since(last)
            self._read.clear()
        self._read.add(name)
        return self._total, self._since


def _number(value: Value) -> Iterator[tuple[float, Mapping[str, str]]]:
    if not isinstance(value, Distribution):
        yield value, {}


def _count(value: Value) -> Iterator[tuple[float, Mapping[str, str]]]:
    if isinstance(value, Distribution):
        yield value.count, {}


def _sum(value: Value) -> Iterator[tuple[float, Mapping[str, str]]]:
    if isinstance(value, Distribution):
        yield value.sum, {}


def _percentiles(value: Value) -> Iterator[tuple[float, Mapping[str, str]]]:
    if isinstance(value, Distribution) and value != NOTHING:
        for quantile, name in _PERCENTILES:
            yield getattr(value, name), {"quantile": quantile}
