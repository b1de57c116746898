"""Each panel of conf/grafana/dashboard.json shows something in a real Prometheus with ten minutes of
all metrics: its query selects series, its legend names labels of theirs, and the first error of a kind
counts."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from support.waiting import eventually

from spark_kafka_native.kafka import export_to_prometheus
from spark_kafka_native.kafka.observe.catalogue import ALL_METRICS, Kind, Metric
from spark_kafka_native.kafka.observe.metrics import MetricsRegistry, MetricsSnapshot, Observed

Ask = Callable[..., Any]
pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs Prometheus: apt-get install prometheus"
)
DASHBOARD = json.loads((Path(__file__).parents[3] / "conf/grafana/dashboard.json").read_text())
TARGETS = [
    pytest.param(target["expr"], target["legendFormat"], id=f"{panel['title']} {target['refId']}")
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
]
INTERVAL_S, SCRAPES = 15, 40
SEEN_AT, EVENTS = 30, 3
"""The scrape that sees the first events of a kind, and how many they are: one burst, and no more."""


def is_event(metric: Metric) -> bool:
    """Its series begin with the first event."""
    return "error" in metric.tags or metric.name == "kafka.client.timeouts"


class Client:
    """All metrics at once: those of work grow with every scrape."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.scrapes = 0

    def metrics(self) -> MetricsSnapshot:
        gauges = [one for one in ALL_METRICS if one.kind is Kind.GAUGE]
        return self.registry.snapshot([Observed(one, self.scrapes, one.tags) for one in gauges])

    def work(self) -> None:
        self.scrapes += 1
        for metric in ALL_METRICS:
            if metric.kind is Kind.DISTRIBUTION:
                self.registry.measure(metric, 0.1, *metric.tags)
            elif metric.kind is Kind.COUNTER and not is_event(metric):
                self.registry.count(metric, 1, *metric.tags)
            elif metric.kind is Kind.COUNTER and self.scrapes == SEEN_AT:
                self.registry.count(metric, EVENTS, *metric.tags)


def scraped(end: int) -> Iterator[str]:
    """What Prometheus would have stored of the ten minutes until ``end``, as OpenMetrics."""
    client, registry = Client(), CollectorRegistry()
    export_to_prometheus(client, registry, {"job": "app"})
    for at in range(end - (SCRAPES - 1) * INTERVAL_S, end + 1, INTERVAL_S):
        client.work()
        lines = generate_latest(registry).decode().splitlines()
        yield from (f"{line} {at}" for line in lines if not line.startswith("#"))
    yield "# EOF\n"


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """``ask(path, **parameters)`` of a Prometheus, at the time of the last scrape."""
    folder, end = tmp_path_factory.mktemp("prometheus"), int(time.time())
    (folder / "scraped").write_text("\n".join(scraped(end)))
    (folder / "prometheus.yml").write_text("")
    fill = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "scraped", "data"]
    filled = subprocess.run(fill, cwd=folder, capture_output=True, text=True, timeout=240)
    assert filled.returncode == 0, filled.stdout + filled.stderr
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"

    def ask(path: str, **parameters: str) -> Any:
        asked = urlencode(parameters | {"time": str(end)})
        with urllib.request.urlopen(f"http://{address}/api/v1/{path}?{asked}", timeout=60) as response:
            return json.load(response)["data"]

    def serves() -> bool:
        try:
            return bool(ask("query", query="kafka_brokers")["result"])
        except OSError:
            return False

    command = ["prometheus", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, cwd=folder, stderr=log) as server:
        try:
            eventually(serves, "the start of Prometheus")
            yield ask
        finally:
            server.terminate()


@pytest.mark.parametrize(("expression", "legend"), TARGETS)
def test_a_panel_shows_its_series(ask: Ask, expression: str, legend: str) -> None:
    found = ask("query", query=expression.replace("$__rate_interval", "1m").replace("$job", ".*"))["result"]
    named = set(re.findall(r"\{\{(\w+)\}\}", legend))
    assert found
    assert all(named <= one["metric"].keys() for one in found)
    values = [float(one["value"][1]) for one in found]
    assert all(value > 0 for value in values)
    if any(is_event(one) and f"{one.name.replace('.', '_')}_total" in expression for one in ALL_METRICS):
        assert values == [EVENTS]


def test_the_choice_of_jobs(ask: Ask) -> None:
    assert ask("label/job/values", **{"match[]": '{__name__=~"kafka_.*"}'}) == ["app"]


def test_the_query_of_alerts_is_one(ask: Ask) -> None:
    for one in DASHBOARD["annotations"]["list"]:
        assert ask("query", query=one["expr"])["resultType"] == "vector"
