"""Events of queries become metrics, which every exporter reads."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from spark_kafka_native import StreamMetrics
from spark_kafka_native.kafka import export_to_opentelemetry, export_to_prometheus


def started(query_id: str, name: str | None, run: str = "r1") -> Any:
    return SimpleNamespace(id=query_id, name=name, runId=run)


def ended(query_id: str, exception: str | None = None, run: str = "r1") -> Any:
    return SimpleNamespace(id=query_id, exception=exception, runId=run)


def progress(
    query_id: str, name: str | None, end: dict[str, int], latest: dict[str, int], **more: Any
) -> Any:
    source = {
        "endOffset": json.dumps({"t": end}),
        "latestOffset": json.dumps({"t": latest}),
        "numInputRows": 7,
    }
    found = {
        "id": query_id,
        "runId": "r1",
        "name": name,
        "batchId": 0,
        "timestamp": "2026-05-06T07:08:09.500Z",
        "durationMs": {"triggerExecution": 500},
        "sources": [source, {"endOffset": "3", "numInputRows": 100}],  # of a rate source
        "sink": {"numOutputRows": 5},
    }
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(found | more)))


@pytest.fixture
def metrics() -> StreamMetrics:
    return StreamMetrics()


def test_a_query_that_has_started_has_failed_zero_times(metrics: StreamMetrics) -> None:
    metrics.onQueryStarted(started("1", "copy"))
    export_to_prometheus(metrics, registry := CollectorRegistry())
    lines = generate_latest(registry).decode().splitlines()
    assert 'kafka_stream_failures_total{query="copy"} 0.0' in lines
    assert 'kafka_stream_batches_total{query="copy"} 0.0' in lines
    assert 'kafka_stream_running{query="copy"} 1.0' in lines
    metrics.onQueryTerminated(ended("1", "boom"))
    lines = generate_latest(registry).decode().splitlines()
    assert 'kafka_stream_failures_total{query="copy"} 1.0' in lines
    assert not [line for line in lines if line.startswith("kafka_stream_running{")]


def test_a_micro_batch_is_counted(metrics: StreamMetrics) -> None:
    metrics.onQueryStarted(started("1", "copy"))
    metrics.onQueryProgress(progress("1", "copy", {"0": 5, "1": 9}, {"0": 15, "1": 9}))
    metrics.onQueryProgress(
        progress("1", "copy", {"0": 10, "1": 9}, {"0": 30, "1": 4}, sink={"numOutputRows": -1})
    )
    found = metrics.metrics()
    assert found.value("kafka.stream.batches", query="copy") == 2
    assert found.value("kafka.stream.records", query="copy") == 14
    assert found.value("kafka.stream.written.records", query="copy") == 5
    assert found.value("kafka.stream.lag", query="copy", topic="t", partition="0") == 20
    assert found.value("kafka.stream.lag", query="copy", topic="t", partition="1") == 0  # recreated
    assert found.distribution("kafka.stream.batch.duration", query="copy").sum == pytest.approx(1.0)


def test_lag_goes_with_the_query_and_counts_stay(metrics: StreamMetrics) -> None:
    metrics.onQueryProgress(progress("1", None, {"0": 5}, {"0": 15}))  # its start was not seen
    metrics.onQueryTerminated(ended("1"))
    metrics.onQueryTerminated(ended("2", "never seen"))
    found = metrics.metrics()
    assert found.value("kafka.stream.batches", query="1") == 1
    assert found.value("kafka.stream.failures", query="1") == 0
    assert found.value("kafka.stream.failures", query="2") == 1
    names = {key.name for key, _ in found}
    assert not names & {"kafka.stream.lag", "kafka.stream.running", "kafka.stream.last_progress.timestamp"}


def test_an_idle_query_is_heard_of(metrics: StreamMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    def heard() -> float:
        return metrics.metrics().value("kafka.stream.last_progress.timestamp")

    monkeypatch.setattr(time, "time", lambda: 100.0)
    metrics.onQueryStarted(started("1", "copy"))
    monkeypatch.setattr(time, "time", lambda: 200.0)
    metrics.onQueryProgress(progress("1", "copy", {"0": 5}, {"0": 15}))
    assert heard() == 200
    monkeypatch.setattr(time, "time", lambda: 300.0)
    metrics.onQueryIdle(ended("1"))
    metrics.onQueryIdle(ended("2"))
    assert heard() == 300


def test_opentelemetry_collects_it_too(metrics: StreamMetrics) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    export_to_opentelemetry(metrics, provider.get_meter("test"))
    metrics.onQueryProgress(progress("1", "copy", {"0": 5}, {"0": 15}))
    collected = reader.get_metrics_data()
    assert collected is not None
    (scope,) = collected.resource_metrics[0].scope_metrics
    found = {one.name: one.data.data_points for one in scope.metrics}
    assert [point.value for point in found["kafka.stream.lag"]] == [10]
    provider.shutdown()


def test_the_end_of_a_run_that_is_heard_after_the_next_start_does_not_end_that(
    metrics: StreamMetrics,
) -> None:
    """Spark says at once that a run starts, and a little later that the one before has ended."""
    metrics.onQueryStarted(started("1", "copy"))
    metrics.onQueryProgress(progress("1", "copy", {"0": 5}, {"0": 15}))
    metrics.onQueryStarted(started("1", "copy", "r2"))
    metrics.onQueryProgress(progress("1", "copy", {"0": 6}, {"0": 15}))  # also of the run before
    metrics.onQueryTerminated(ended("1", "boom"))
    export_to_prometheus(metrics, registry := CollectorRegistry())
    lines = generate_latest(registry).decode().splitlines()
    assert 'kafka_stream_running{query="copy"} 1.0' in lines
    assert 'kafka_stream_failures_total{query="copy"} 1.0' in lines
    assert [line for line in lines if line.startswith("kafka_stream_lag{")]
    metrics.onQueryTerminated(ended("1", run="r2"))
    lines = generate_latest(registry).decode().splitlines()
    assert not [line for line in lines if line.startswith("kafka_stream_running{")]


def test_a_query_that_is_restarted_under_another_name_has_that(metrics: StreamMetrics) -> None:
    metrics.onQueryStarted(started("1", "a"))
    metrics.onQueryProgress(progress("1", "a", {"0": 5}, {"0": 15}))
    metrics.onQueryStarted(started("1", "b", "r2"))
    metrics.onQueryTerminated(ended("1"))
    metrics.onQueryTerminated(ended("1", "boom", run="r2"))
    export_to_prometheus(metrics, registry := CollectorRegistry())
    lines = generate_latest(registry).decode().splitlines()
    assert 'kafka_stream_failures_total{query="b"} 1.0' in lines
    assert 'kafka_stream_failures_total{query="a"} 0.0' in lines


def test_events_of_the_run_before_that_are_late_count_for_its_name(metrics: StreamMetrics) -> None:
    metrics.onQueryStarted(started("1", "a"))
    metrics.onQueryStarted(started("1", "b", "r2"))
    metrics.onQueryProgress(progress("1", "a", {"0": 5}, {"0": 15}))
    metrics.onQueryTerminated(ended("1", "boom"))
    metrics.onQueryTerminated(ended("1", run="never seen"))
    found = metrics.metrics()
    assert [found.value("kafka.stream.failures", query=name) for name in "ab"] == [1, 0]
    assert [found.value("kafka.stream.batches", query=name) for name in "ab"] == [1, 0]
    assert found.value("kafka.stream.running", query="b") == 1
    assert "kafka.stream.lag" not in {key.name for key, _ in found}
    metrics.onQueryTerminated(ended("1", "boom", run="r2"))
    found = metrics.metrics()
    assert [found.value("kafka.stream.failures", query=name) for name in "ab"] == [1, 1]
    assert "kafka.stream.running" not in {key.name for key, _ in found}
