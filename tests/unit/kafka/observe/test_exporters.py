"""Exporters: metrics reach a function or OpenTelemetry, events reach a file; errors there stop nothing."""

from __future__ import annotations

import gc
import io
import json
import queue
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.forked_child import holds_in_forked_child
from support.waiting import eventually

from spark_kafka_native.kafka.consumer.fetched_records import WorkStatus, WorkUnit
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.observe import catalogue, exporters
from spark_kafka_native.kafka.observe.events import EventSource
from spark_kafka_native.kafka.observe.exporters import (
    JsonLines,
    MetricsExporter,
    _Collected,
    export_to_opentelemetry,
)
from spark_kafka_native.kafka.observe.metrics import MetricsRegistry, MetricsSnapshot, Observed
from spark_kafka_native.kafka.producer.completion import Acknowledgement
from spark_kafka_native.kafka.producer.errors import DeliveryStatus
from spark_kafka_native.kafka.runtime.deadline import Deadline


class Client:
    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.connections = 0

    def metrics(self) -> MetricsSnapshot:
        return self.registry.snapshot([Observed(catalogue.CONNECTIONS, self.connections)])

    def request(self, seconds: float) -> None:
        self.registry.count(catalogue.REQUESTS, 1, "Fetch")
        self.registry.measure(catalogue.REQUEST_DURATION, seconds, "Fetch")


def test_it_exports_the_total_and_the_changes_and_once_more_at_the_end() -> None:
    client, told = Client(), queue.Queue[tuple[float, float]]()

    def to(total: MetricsSnapshot, last: MetricsSnapshot) -> None:
        told.put((total.value("kafka.client.requests"), last.value("kafka.client.requests")))

    client.request(1.0)
    exporter = MetricsExporter(client, every=0.01, to=to)
    assert told.get(timeout=60) == (1, 1)
    client.request(1.0)
    while (found := told.get(timeout=60)) == (1, 0):
        pass
    assert found == (2, 1)
    exporter.close()
    exporter.close()
    while not told.empty():
        assert told.get() == (2, 0)
    with MetricsExporter(client, every=3600, to=to):
        client.request(1.0)
    assert told.get(timeout=60) == (3, 3)
    assert told.empty()


def test_a_function_that_raises_is_called_again() -> None:
    """It may have added the changes up before: they are those since that call, too."""
    client, changes = Client(), queue.Queue[float]()
    client.request(1.0)

    def to(_: MetricsSnapshot, last: MetricsSnapshot) -> None:
        changes.put(last.value("kafka.client.requests"))
        raise RuntimeError("no")

    with MetricsExporter(client, every=0.01, to=to) as exporter:
        assert [changes.get(timeout=60) for _ in range(3)] == [1, 0, 0]
    assert exporter.failures >= 3


def ended(exporter: MetricsExporter) -> None:
    deadline = time.monotonic() + 60
    while exporter.running:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_it_ends_with_its_client_and_does_not_keep_it() -> None:
    client, calls = Client(), queue.Queue[int]()
    exporter = MetricsExporter(client, every=0.01, to=lambda _, __: calls.put(1))
    calls.get(timeout=60)
    del client
    gc.collect()
    ended(exporter)


def test_a_function_that_takes_its_time_does_not_keep_the_client() -> None:
    client, called, done = Client(), threading.Event(), threading.Event()
    alive = weakref.ref(client)

    def to(_: MetricsSnapshot, __: MetricsSnapshot) -> None:
        called.set()
        done.wait(60)

    exporter = MetricsExporter(client, every=0.01, to=to)
    try:
        assert called.wait(60)
        del client
        gc.collect()
        assert alive() is None
    finally:
        done.set()
        exporter.close()


def test_the_exporting_function_may_close_it() -> None:
    client, made, ready, done = Client(), list[MetricsExporter](), threading.Event(), threading.Event()

    def to(_: MetricsSnapshot, __: MetricsSnapshot) -> None:
        assert ready.wait(60)
        made[0].close()
        done.set()

    exporter = MetricsExporter(client, every=0.01, to=to)
    made.append(exporter)
    ready.set()
    assert done.wait(60)
    ended(exporter)


@pytest.mark.parametrize("every", [0, -1.0, float("nan")])
def test_it_needs_a_period(every: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        MetricsExporter(Client(), every=every, to=print)


def collected(reader: Any) -> dict[tuple[str, frozenset[Any]], Any]:
    """The values in the real SDK: name and attributes -> value."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        (one.name, frozenset(point.attributes.items())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for one in scope.metrics
        for point in one.data.data_points
    }


def key(name: str, **attributes: str) -> tuple[str, frozenset[Any]]:
    return name, frozenset(attributes.items())


def test_opentelemetry_reads_them_when_it_collects() -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    client, reader = Client(), InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    export_to_opentelemetry(client, provider.get_meter("test"), {"client": "a"})
    client.request(8.0)
    client.connections = 2
    told = collected(reader)
    assert told[key("kafka.client.requests", client="a", api="Fetch")] == 1
    assert told[key("kafka.client.connections", client="a")] == 2
    assert told[key("kafka.client.request.duration.count", client="a", api="Fetch")] == 1
    assert told[key("kafka.client.request.duration.sum", client="a", api="Fetch")] == 8.0
    client.request(1.0)
    told = collected(reader)
    assert told[key("kafka.client.requests", client="a", api="Fetch")] == 2
    # Percentiles cover the time since the last collection.
    percentile = told[key("kafka.client.request.duration", client="a", api="Fetch", quantile="0.5")]
    assert percentile == pytest.approx(1.0, rel=0.1)
    units = {
        one.name: one.unit
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for one in scope.metrics
    }
    assert units["kafka.client.request.duration.sum"] == "s"
    del client
    gc.collect()
    assert not collected(reader) or all(not name.startswith("kafka") for name, _ in collected(reader))
    provider.shutdown()


class Meter:
    """The part of a meter that the exporter uses."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Any] = {}

    def create_observable_counter(self, name: str, callbacks: Any, unit: str, description: str) -> None:
        assert name not in self.callbacks
        assert unit
        assert description
        self.callbacks[name] = callbacks[0]

    create_observable_gauge = create_observable_counter

    def collect(self) -> dict[tuple[str, frozenset[Any]], float]:
        return {
            (name, frozenset(attributes.items())): value
            for name, callback in self.callbacks.items()
            for value, attributes in callback(None)
        }


class Api:
    """The part of ``opentelemetry.metrics`` that the exporter uses."""

    @staticmethod
    def Observation(value: float, attributes: dict[str, str]) -> tuple[float, dict[str, str]]:
        return value, attributes


def install(monkeypatch: pytest.MonkeyPatch, api: Any) -> None:
    """As the package ``opentelemetry``; with None, the package is missing."""
    for module in ("opentelemetry.metrics", "opentelemetry"):
        monkeypatch.setitem(sys.modules, module, api)


def test_each_collection_is_one_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Api)
    client, meter, taken = Client(), Meter(), 0
    told_by = client.metrics

    def metrics() -> MetricsSnapshot:
        nonlocal taken
        taken += 1
        return told_by()

    client.metrics = metrics  # type: ignore[method-assign]
    export_to_opentelemetry(client, meter)
    assert {one.name for one in catalogue.ALL_METRICS} <= meter.callbacks.keys()
    client.request(8.0)
    assert meter.collect()[key("kafka.client.requests", api="Fetch")] == 1
    assert taken == 1
    client.request(1.0)
    told = meter.collect()
    assert taken == 2
    assert told[key("kafka.client.requests", api="Fetch")] == 2
    assert told[key("kafka.client.request.duration.count", api="Fetch")] == 2
    assert told[key("kafka.client.request.duration", api="Fetch", quantile="1")] == pytest.approx(
        1.0, rel=0.2
    )
    assert not [name for name, _ in meter.collect() if name == "kafka.client.request.duration"]  # nothing new


def test_a_collection_under_way_does_not_hold_up_a_forked_child() -> None:
    collected = _Collected(MetricsRegistry(), lambda *_: None, {})  # type: ignore[arg-type]
    with collected._lock:
        assert holds_in_forked_child(lambda: collected._lock.acquire(timeout=20))


def test_opentelemetry_gets_nothing_out_of_a_forked_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the parent had counted would be counted twice."""
    install(monkeypatch, Api)
    client, meter = Client(), Meter()
    export_to_opentelemetry(client, meter)
    client.request(1.0)
    client.connections = 3
    assert holds_in_forked_child(lambda: meter.collect() == {})
    told = meter.collect()
    assert (told[key("kafka.client.requests", api="Fetch")], told[key("kafka.client.connections")]) == (1, 3)


def test_without_opentelemetry_the_error_has_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    with pytest.raises(ConfigError, match=r"spark-kafka-native\[otel\]"):
        export_to_opentelemetry(Client())


TP = TopicPartition("orders", 3)


def unit(offset: int) -> WorkUnit:
    return WorkUnit(
        topic_partition=TP,
        status=WorkStatus.FETCHED,
        from_offset=offset,
        until_offset=offset + 5,
        records=4,
        at=1.5,
    )


def test_a_line_is_in_the_file_once_no_other_event_waits(tmp_path: Path) -> None:
    """Not only at the end, which a process that is killed never reaches."""
    path, source = tmp_path / "units.jsonl", EventSource[Any]()
    with JsonLines(path, source.subscribe(10)):
        for count in (1, 2):
            source.emit(unit(0))
            eventually(lambda count=count: path.read_text().count("\n") == count)  # type: ignore[misc]


def test_each_event_is_a_line(tmp_path: Path) -> None:
    path, source = tmp_path / "units.jsonl", EventSource[Any]()
    path.write_text("{}\n")
    with JsonLines(path, source.subscribe(10)) as lines:
        source.emit(unit(0))
        source.emit(unit(5))
    lines.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found[0] == {}
    assert found[1] == {
        "event": "work_unit",
        "at": 1.5,
        "topic": "orders",
        "partition": 3,
        "status": "fetched",
        "from_offset": 0,
        "until_offset": 5,
        "length": 5,
        "records": 4,
    }
    assert found[2]["from_offset"] == 5
    assert lines.failures == 0


def test_an_acknowledgement_as_plain_values() -> None:
    told = Acknowledgement(
        topic_partition=TP,
        status=DeliveryStatus.PERSISTED,
        records=3,
        bytes=100,
        base_offset=40,
        error=None,
        seconds=0.25,
        at=1.5,
    )
    assert told.to_dict() == {
        "event": "acknowledgement",
        "at": 1.5,
        "topic": "orders",
        "partition": 3,
        "status": "persisted",
        "records": 3,
        "bytes": 100,
        "base_offset": 40,
        "last_offset": 42,
        "seconds": 0.25,
        "error": None,
    }


class SlowFile(io.StringIO):
    """A file that blocks until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.asked.set()
        assert self.let.wait(60)
        return super().write(text)


def test_events_that_a_slow_file_misses_are_counted_in_it() -> None:
    source, file = EventSource[Any](), SlowFile()
    with JsonLines(file, source.subscribe(2)):
        source.emit(unit(0))
        assert file.asked.wait(60)
        for number in range(1, 6):  # no thread waits for the file
            source.emit(unit(number))
        file.let.set()
    found = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [one.get("from_offset") for one in found] == [0, None, 4, 5]
    assert found[1] == {"event": "dropped", "count": 3}
    assert not file.closed


class FullDisk(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError("no space left on device")


def test_a_full_disk_is_logged_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    source = EventSource[Any]()
    with JsonLines(FullDisk(), source.subscribe(10)) as lines:
        for number in range(3):
            source.emit(unit(number))
    assert lines.failures == 3
    assert len([one for one in caplog.records if "can't be written" in one.message]) == 1


def test_a_disk_that_is_full_when_lines_are_flushed_ends_nothing() -> None:
    """A file keeps lines in its buffer: the disk refuses them only then."""

    class FullAtFlush(io.StringIO):
        def flush(self) -> None:
            raise OSError("no space left on device")

    source, file = EventSource[Any](), FullAtFlush()
    with JsonLines(file, source.subscribe(10)) as lines:
        for count in (1, 2):
            source.emit(unit(count))
            eventually(lambda count=count: lines.failures >= count)  # type: ignore[misc]
    assert file.getvalue().count("\n") == 2
    with JsonLines("/dev/full", source.subscribe(10)) as lines:
        source.emit(unit(0))
    assert lines.failures >= 1
    assert not lines._thread.is_alive()


@pytest.mark.parametrize("kind", ["metrics", "lines"])
def test_a_place_that_takes_nothing_holds_up_no_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that hangs, or a file on a disk that does: the process could not end."""
    monkeypatch.setattr(exporters, "CLOSE_S", 0.05)
    client, source, file = Client(), EventSource[Any](), SlowFile()
    asked, let = threading.Event(), threading.Event()

    def to(_: MetricsSnapshot, __: MetricsSnapshot) -> None:
        asked.set()
        let.wait(20)

    made: Any
    if kind == "metrics":
        made = MetricsExporter(client, every=0.01, to=to)
    else:
        made, asked, let = JsonLines(file, source.subscribe(2)), file.asked, file.let
        source.emit(unit(0))
    try:
        assert asked.wait(60)
        made.close()
        assert made._thread.is_alive()
    finally:
        let.set()
        made._thread.join(60)


def test_the_first_collection_has_the_percentiles_of_all_before(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Api)
    client, meter = Client(), Meter()
    export_to_opentelemetry(client, meter)
    client.request(8.0)
    told = meter.collect()
    assert told[key("kafka.client.request.duration", api="Fetch", quantile="1")] == 8.0


def test_the_time_between_exports_is_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_ms: list[float] = []

    def after_ms(milliseconds: float) -> Deadline:
        waited_ms.append(milliseconds)
        return Deadline.after_ms(milliseconds)

    monkeypatch.setattr(exporters, "Deadline", SimpleNamespace(after_ms=after_ms))
    client = Client()
    with MetricsExporter(client, every=3600, to=lambda *_: None):
        pass
    assert waited_ms == [3_600_000]
