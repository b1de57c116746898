"""Metrics in Prometheus' format: names, labels, histograms; what ends, forks or fails takes nothing along."""

from __future__ import annotations

import gc
import logging
import shutil
import subprocess
import sys
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.parser import text_string_to_metric_families
from support.forked_child import holds_in_forked_child

from spark_kafka_native.kafka import export_to_prometheus
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.observe import catalogue, prometheus
from spark_kafka_native.kafka.observe.catalogue import ALL_METRICS, Kind
from spark_kafka_native.kafka.observe.metrics import MetricsRegistry, MetricsSnapshot, Observed

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Client:
    def __init__(self, lag: int = 0) -> None:
        self.registry = MetricsRegistry()
        self.observed = [Observed(catalogue.LAG, lag, ("t", str(partition))) for partition in range(2)]

    def metrics(self) -> MetricsSnapshot:
        return self.registry.snapshot(self.observed)


def scraped(registry: CollectorRegistry) -> Values:
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_a_client_that_is_exported_twice_counts_once(registry: CollectorRegistry) -> None:
    """As by a cell of a notebook that is run again."""
    client = Client()
    client.registry.count(catalogue.REQUESTS, 3, "Fetch")
    for labels in ({"app": "a"}, {"app": "a"}, {"app": "b"}):
        export_to_prometheus(client, registry, labels)
    found = scraped(registry)
    assert [found[key("kafka_client_requests_total", api="Fetch", app=app)] for app in "ab"] == [3, 3]


def test_a_client_that_is_exported_again_is_shown_as_the_last_call_says(registry: CollectorRegistry) -> None:
    client = Client(lag=5)
    export_to_prometheus(client, registry, {"app": "a"})
    export_to_prometheus(client, registry, {"app": "a"}, by_partition=True)
    lags = {name for name in scraped(registry) if name[0] == "kafka_consumer_lag"}
    assert lags
    assert all("partition" in dict(labels) for _, labels in lags)


def test_counters_gauges_and_histograms(registry: CollectorRegistry) -> None:
    client = Client(lag=5)
    client.registry.count(catalogue.REQUESTS, 3, "Fetch")
    for seconds in (0.0, 0.3, 0.4, 1.0, 100.0):
        client.registry.measure(catalogue.REQUEST_DURATION, seconds, "Fetch")
    client.registry.measure(catalogue.FETCH_SIZE, 100)
    export_to_prometheus(client, registry, {"app": "billing"})
    found = scraped(registry)
    assert found[key("kafka_client_requests_total", api="Fetch", app="billing")] == 3
    assert found[key("kafka_consumer_lag", topic="t", app="billing")] == 10
    duration = "kafka_client_request_duration_seconds"
    at_most = {
        bound: found[key(f"{duration}_bucket", api="Fetch", app="billing", le=bound)]
        for bound in ("0.0009765625", "0.25", "0.5", "1.0", "2.0", "64.0", "+Inf")
    }
    # 1.0 is a bound, and counts as above it.
    expected = {"0.0009765625": 1, "0.25": 1, "0.5": 3, "1.0": 3, "2.0": 4, "64.0": 4, "+Inf": 5}
    assert at_most == expected
    assert found[key(f"{duration}_count", api="Fetch", app="billing")] == 5
    assert found[key(f"{duration}_sum", api="Fetch", app="billing")] == pytest.approx(101.7)
    assert found[key("kafka_consumer_fetch_size_bytes_bucket", app="billing", le="64.0")] == 0
    assert found[key("kafka_consumer_fetch_size_bytes_bucket", app="billing", le="256.0")] == 1


def test_openmetrics_can_be_parsed_too(registry: CollectorRegistry) -> None:
    client = Client()
    for metric in ALL_METRICS:
        if metric.kind is Kind.COUNTER:
            client.registry.count(metric, 1, *metric.tags)
        elif metric.kind is Kind.DISTRIBUTION:
            client.registry.measure(metric, 1.0, *metric.tags)
        else:
            client.observed.append(Observed(metric, 1, metric.tags))
    export_to_prometheus(client, registry)
    families = list(parser.text_string_to_metric_families(exposition.generate_latest(registry).decode()))
    assert len(families) == len(ALL_METRICS) == len({family.name for family in families})
    if promtool := shutil.which("promtool"):
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=generate_latest(registry), capture_output=True
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_partitions_are_told_apart_if_that_is_wanted(registry: CollectorRegistry) -> None:
    client = Client(lag=5)
    export_to_prometheus(client, registry, by_partition=True)
    assert scraped(registry)[key("kafka_consumer_lag", topic="t", partition="1")] == 5
    assert key("kafka_consumer_lag", topic="t") not in scraped(registry)


def test_a_counter_is_there_before_it_counts(registry: CollectorRegistry) -> None:
    client = Client()
    client.observed = [Observed(catalogue.BUFFERED_RECORDS, 0)]
    export_to_prometheus(client, registry)
    assert scraped(registry)[key("kafka_producer_records_failed_total")] == 0
    assert key("kafka_consumer_offset_resets_total") not in scraped(registry)  # it is no consumer
    client.registry.count(catalogue.FAILED_RECORDS, 2)
    assert scraped(registry)[key("kafka_producer_records_failed_total")] == 2


def test_clients_of_one_registry_stand_side_by_side_or_are_added(registry: CollectorRegistry) -> None:
    clients = [Client(lag=number) for number in (1, 10, 100)]
    for client, labels in zip(clients, ({"app": "a"}, {"app": "b"}, {"app": "b"}), strict=True):
        client.registry.count(catalogue.REQUESTS, 1, "Fetch")
        export_to_prometheus(client, registry, labels)
    other = Client()
    other.registry.count(catalogue.REQUESTS, 1, "Fetch")
    export_to_prometheus(other, registry)
    found = scraped(registry)
    assert found[key("kafka_consumer_lag", topic="t", app="a")] == 2
    assert found[key("kafka_consumer_lag", topic="t", app="b")] == 220
    assert found[key("kafka_client_requests_total", api="Fetch", app="b")] == 2
    assert found[key("kafka_client_requests_total", api="Fetch", app="")] == 1
    assert generate_latest(registry).count(b"# TYPE kafka_client_requests_total") == 1


def test_a_label_without_a_value_is_none(registry: CollectorRegistry) -> None:
    """Prometheus takes both for one series, and refuses a scrape that has it twice."""
    clients = [Client(), Client()]
    for client, labels in zip(clients, ({"app": "", "env": "x"}, {"env": "x"}), strict=True):
        client.registry.count(catalogue.REQUESTS, 1, "Fetch")
        export_to_prometheus(client, registry, labels)
    assert scraped(registry)[key("kafka_client_requests_total", api="Fetch", env="x")] == 2
    assert b"app=" not in generate_latest(registry)


def test_labels_in_another_order_are_the_same(registry: CollectorRegistry) -> None:
    clients = [Client(lag=1), Client(lag=2)]
    for client, labels in zip(clients, ({"app": "a", "env": "x"}, {"env": "x", "app": "a"}), strict=True):
        export_to_prometheus(client, registry, labels)
    assert scraped(registry)[key("kafka_consumer_lag", topic="t", app="a", env="x")] == 6
    assert generate_latest(registry).count(b"\nkafka_consumer_lag{") == 1


@pytest.mark.parametrize("moments", [(0, 1), (1, 0)])
def test_times_are_not_added_up(registry: CollectorRegistry, moments: tuple[int, int]) -> None:
    """The latest counts, whichever client it is of."""
    clients = [Client(), Client()]
    for at, client in zip(moments, clients, strict=True):
        client.observed = [Observed(catalogue.STREAM_HEARD, 1000.0 + at, ("copy",))]
        export_to_prometheus(client, registry)
    assert scraped(registry)[key("kafka_stream_last_progress_timestamp_seconds", query="copy")] == 1001


def test_what_a_deleted_client_has_counted_stays(registry: CollectorRegistry) -> None:
    for _ in range(2):
        client = Client(lag=5)
        client.registry.count(catalogue.REQUESTS, 1, "Fetch")
        client.registry.measure(catalogue.REQUEST_DURATION, 1.0, "Fetch")
        export_to_prometheus(client, registry)
        before = scraped(registry)
        del client
        gc.collect()
    assert before[key("kafka_consumer_lag", topic="t")] == 10
    for _ in range(2):
        found = scraped(registry)
        assert found[key("kafka_client_requests_total", api="Fetch")] == 2
        assert found[key("kafka_client_request_duration_seconds_count", api="Fetch")] == 2
        assert key("kafka_consumer_lag", topic="t") not in found


def test_a_client_that_fails_takes_no_other_along(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Client(lag=9), Client(lag=1)
    export_to_prometheus(bad, registry, {"app": "bad"})
    export_to_prometheus(good, registry, {"app": "good"})

    assert scraped(registry)[key("kafka_consumer_lag", topic="t", app="bad")] == 18

    def metrics() -> Any:
        raise RuntimeError("no")

    bad.metrics = metrics  # type: ignore[method-assign]
    found = scraped(registry)
    assert found[key("kafka_consumer_lag", topic="t", app="good")] == 2
    assert key("kafka_consumer_lag", topic="t", app="bad") not in found  # rather than an old one
    assert "left out of this scrape" in caplog.text
    del bad.metrics
    assert scraped(registry)[key("kafka_consumer_lag", topic="t", app="bad")] == 18, "it is back"


def test_what_a_client_had_counted_before_it_failed_stays(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """A counter that is gone and comes back would be one that has begun anew."""
    client = Client()
    client.registry.count(catalogue.REQUESTS, 2, "Fetch")
    export_to_prometheus(client, registry)
    requests = key("kafka_client_requests_total", api="Fetch")
    assert scraped(registry)[requests] == 2

    def metrics() -> Any:
        raise RuntimeError("no")

    client.metrics = metrics  # type: ignore[method-assign]
    with caplog.at_level(logging.CRITICAL + 1, "spark_kafka_native.telemetry"):  # a traceback would keep it
        assert scraped(registry)[requests] == 2
    del client
    gc.collect()
    for _ in range(2):
        assert scraped(registry)[requests] == 2


def test_a_scrape_amid_a_scrape_does_not_wait_for_it(registry: CollectorRegistry) -> None:
    """As the handler of a signal may do, in the same thread. Both find that a client is gone."""
    client, gone, inner = Client(lag=1), Client(), list[Values]()
    gone.registry.count(catalogue.REQUESTS, 3, "Fetch")
    for one in (client, gone):
        export_to_prometheus(one, registry)
    before, snapshot = scraped(registry), client.metrics

    def metrics() -> MetricsSnapshot:
        if not inner:
            inner.append({})
            inner[0] = scraped(registry)
        return snapshot()

    client.metrics = metrics  # type: ignore[method-assign]
    del gone, one
    gc.collect()
    assert scraped(registry) == inner[0] == before != {}


def test_labels_may_hold_anything(registry: CollectorRegistry) -> None:
    names = ['"', "\n", "\\", "}", 'a"b\n\\{},= c', "é", "\u2028"]
    client = Client()
    client.observed = [Observed(catalogue.ASSIGNED_PARTITIONS, 1)]
    for name in names:
        client.registry.count(catalogue.PRODUCED_RECORDS, 1, name)
    client.registry.count(catalogue.PRODUCED_RECORDS, 7, "\udcff")
    export_to_prometheus(client, registry, {"app": 'x"\ny'})
    export_to_prometheus(other := Client(lag=5), registry, {"app": "\udcff"})
    found = scraped(registry)
    assert found[key("kafka_consumer_lag", topic="t", app="?")] == 10
    assert other is not None
    for name in names:
        assert found[key("kafka_producer_records_total", topic=name, app='x"\ny')] == 1
    assert found[key("kafka_producer_records_total", topic="?", app='x"\ny')] == 7


@pytest.mark.parametrize("name", ["topic", "le", "quantile", "__name", "a-b", "", "1a", "a\n"])
def test_labels_that_prometheus_or_we_would_not_take(registry: CollectorRegistry, name: str) -> None:
    with pytest.raises(ConfigError, match="can't be a label"):
        export_to_prometheus(Client(), registry, {name: "x"})
    assert scraped(registry) == {}


def test_a_registry_may_have_metrics_of_others(registry: CollectorRegistry) -> None:
    Counter("orders", "Of the application", registry=registry).inc()
    client = Client(lag=1)
    export_to_prometheus(client, registry)
    found = scraped(registry)
    assert found[key("orders_total")] == 1
    assert found[key("kafka_consumer_lag", topic="t")] == 2


def test_a_forked_child_exports_what_is_its_own(registry: CollectorRegistry) -> None:
    client = Client(lag=1)
    export_to_prometheus(client, registry)
    collector = prometheus._collectors[registry]

    def check() -> bool:
        nothing = scraped(registry)
        own = Client(lag=2)
        export_to_prometheus(own, registry)
        return nothing == {} and scraped(registry)[key("kafka_consumer_lag", topic="t")] == 4

    held, done = threading.Event(), threading.Event()

    def scraping() -> None:
        with collector._lock, prometheus._lock:
            held.set()
            done.wait(120)

    other = threading.Thread(target=scraping)
    other.start()
    held.wait(60)
    try:
        assert holds_in_forked_child(check)
    finally:
        done.set()
        other.join()
    assert scraped(registry)[key("kafka_consumer_lag", topic="t")] == 2


def test_without_prometheus_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"spark-kafka-native\[prometheus\]"):
        export_to_prometheus(Client())


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (catalogue.BYTES_SENT, "kafka_client_bytes_sent"),
        (catalogue.REQUEST_DURATION, "kafka_client_request_duration_seconds"),
        (catalogue.REQUESTS, "kafka_client_requests"),
    ],
)
def test_a_name_has_its_unit_once(metric: catalogue.Metric, name: str) -> None:
    """Dashboards and alerts have these names."""
    assert prometheus.prometheus_name(metric) == name
