"""Exporters: metrics to a function (`MetricsExporter`) or OpenTelemetry, events to a file (`JsonLines`)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, Self, TextIO

from ..errors import ConfigError
from ..runtime.deadline import Deadline
from ..runtime.fork import in_forked_child
from ..runtime.waiting import LocklessCondition
from .catalogue import ALL_METRICS, Kind, Metric
from .events import EventStream
from .metrics import NOTHING, Distribution, MetricKey, MetricsSnapshot, Value

_LOG = logging.getLogger("spark_kafka_native.telemetry")
CLOSE_S = 5.0
"""How long `close` waits for the last export, or for the last events to be written."""


METER: Final = "spark_kafka_native"
_PERCENTILES: Final = (("0", "min"), ("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99"), ("1", "max"))

_Read = Callable[[Value], Iterator[tuple[float, Mapping[str, str]]]]


class Metered(Protocol):
    """A client with metrics: `Producer`, `Consumer`, `GroupConsumer` and similar."""

    def metrics(self) -> MetricsSnapshot:
        """The metrics so far."""
        ...


Export = Callable[[MetricsSnapshot, MetricsSnapshot], object]
"""Called with the metrics so far, and with those since the last call."""


class MetricsExporter:
    """Calls ``to(total, since_last)`` every ``every`` seconds, and once more in `close`. A context manager.

        with MetricsExporter(producer, every=10.0, to=lambda total, last: print(last.to_json())):
            ...

    ``to`` may be slow and may raise: the error is logged, and the next call is made. The exporter does not
    keep the client alive, and ends with it; a process forked from this one exports nothing.
    """

    def __init__(self, client: Metered, *, every: float = 60.0, to: Export) -> None:
        if not every > 0:
            raise ValueError(f"every must be a number of seconds above 0, not {every}")
        self.failures = 0
        """The number of calls that raised."""
        self._client = weakref.ref(client)
        self._every = every
        self._to = to
        self._last: MetricsSnapshot | None = None
        self._condition = LocklessCondition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="kafka-metrics-exporter", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<MetricsExporter of {self._client()!r} every {self._every} s, {self.failures} failures>"

    @property
    def running(self) -> bool:
        """True until the last export: after `close`, or once the client is gone."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Export the metrics since the last call, and stop. Harmless if repeated."""
        self._stopping = True
        self._condition.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while self._client() is not None:
            last = self._condition.wait_for(lambda: self._stopping, Deadline.after_ms(self._every * 1000))
            self._export()
            if last:
                return

    def _export(self) -> None:
        if (client := self._client()) is None:
            return
        try:
            total = client.metrics()
            del client  # the client may be deleted while the function runs
            last, self._last = self._last, total
            self._to(total, total if last is None else total.since(last))
        except Exception:  # noqa: BLE001 - a user's function must not end the thread
            self.failures += 1
            _LOG.exception("exporting metrics failed")


def export_to_opentelemetry(
    client: Metered, meter: Any = None, attributes: Mapping[str, str] | None = None
) -> None:
    """Register every metric of ``client`` with ``meter`` (None: the global provider's). ``attributes`` are
    added to each value, to distinguish clients; tags become attributes, too.

    A counter and a gauge keep their names and units. A distribution becomes a counter ``<name>.count``, a
    counter ``<name>.sum``, and a gauge ``<name>`` with the percentiles since the last collection, as
    attribute ``quantile`` (0 to 1). The client is not kept alive; a deleted one reports nothing.

    Raises `ConfigError` if ``opentelemetry-api`` is not installed: ``pip install
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
    """For each instrument of ``metric``: the suffix of its name, its constructor, its unit and its reader."""
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
    """One snapshot for all instruments of a collection; an instrument that is read again starts the next
    collection.
    """

    def __init__(
        self, client: Metered, observation: Callable[..., Any], attributes: Mapping[str, str]
    ) -> None:
        self._client: Callable[[], Metered | None] = weakref.ref(client)
        self._observation = observation
        self._attributes = dict(attributes)
        self._lock = threading.Lock()
        self._total: MetricsSnapshot | None = None
        self._since: MetricsSnapshot | None = None
        self._read: set[str] = set()
        in_forked_child(self._disown)

    def _disown(self) -> None:
        # A metric reader may run on in a forked child, where the client does not.
        self._lock = threading.Lock()
        self._client = lambda: None

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
        with self._lock:
            snapshot = self._snapshot(name)[interval]
        return (
            [] if snapshot is None else [(key, value) for key, value in snapshot if key.name == metric.name]
        )

    def _snapshot(self, name: str) -> tuple[MetricsSnapshot | None, MetricsSnapshot | None]:
        """The metrics so far, and those since the last collection."""
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


class JsonLines:
    """Writes events to a file, one line of JSON each, in a thread of its own. A context manager.

    ``to`` is a path to append to, or an open text file, which stays open.

        with JsonLines("acknowledgements.jsonl", producer.acknowledgements()):
            ...

    If the file is too slow, events are dropped, and a line ``{"event": "dropped", "count": n}`` counts them.
    Write errors are logged once and counted in ``failures``; the client goes on.
    """

    def __init__(self, to: str | os.PathLike[str] | TextIO, stream: EventStream[Any]) -> None:
        self.failures = 0
        """Lines that could not be written."""
        self._stream = stream
        self._owns_file = isinstance(to, str | os.PathLike)
        # The thread closes it, once everything is written.
        self._file = Path(to).open("a", encoding="utf-8") if isinstance(to, str | os.PathLike) else to  # noqa: SIM115
        self._reported_dropped = 0
        self._thread = threading.Thread(target=self._work, name="kafka-json-lines", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<JsonLines of {self._stream!r}, {self.failures} failures>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the remaining events, and stop. Harmless if repeated."""
        self._stream.close()
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        for event in self._stream:
            self._write(event.to_dict())
            if (dropped := self._stream.dropped) > self._reported_dropped:
                self._write({"event": "dropped", "count": dropped - self._reported_dropped})
                self._reported_dropped = dropped
            if not len(self._stream):
                self._flush()
        self._flush()
        if self._owns_file:
            # A full disk: the rest of the buffer cannot be written here either.
            with contextlib.suppress(OSError):
                self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        except Exception as error:  # noqa: BLE001 - of any kind of file: a full disk must not end the thread
            self._failed(error)

    def _flush(self) -> None:
        try:
            self._file.flush()
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            _LOG.warning("events can't be written, and are lost: %r", error)
