"""Prometheus scrapes `pykafka exporter` and clients: the rules of conf/ fire while lag grows, and end."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from support.waiting import eventually

from spark_kafka_native.kafka import GroupConsumer, Producer, export_to_prometheus

pytestmark = [
    pytest.mark.broker,
    pytest.mark.soak,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="needs Prometheus: apt-get install prometheus"
    ),
]
CONF = Path(__file__).parents[2] / "conf/prometheus"
SECONDS = {"10m": "4s", "5m": "2s", "1m": "1s", "15s": "200ms"}
"""What the durations of conf/ become here."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def faster(name: str, folder: Path, **ports: int) -> None:
    text = re.sub(r"\b(10m|5m|1m|15s)\b", lambda found: SECONDS[found[1]], (CONF / name).read_text())
    for old, new in ports.items():
        text = text.replace(f"localhost:{old.removeprefix('port_')}", f"127.0.0.1:{new}")
    (folder / name).write_text(text)


@contextmanager
def serving(registry: CollectorRegistry, port: int) -> Iterator[None]:
    server, thread = start_http_server(port, "127.0.0.1", registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Prometheus:
    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=60) as response:
            return json.load(response)["data"]

    def firing(self) -> set[tuple[str, str]]:
        """(alert, job); empty until it serves."""
        try:
            alerts = self.ask("alerts")["alerts"]
        except OSError:
            return set()
        return {
            (one["labels"]["alertname"], one["labels"].get("job", ""))
            for one in alerts
            if one["state"] == "firing"
        }


@pytest.fixture
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture
def monitored(tmp_path: Path, kafka: Any, topic: str, ports: tuple[int, int]) -> Iterator[Prometheus]:
    """Prometheus with the files of conf/, and the exporter of the brokers; nothing serves streams."""
    prometheus = Prometheus(free_port())
    faster("prometheus.yml", tmp_path, port_9308=ports[0], port_9465=ports[1])
    faster("rules.yml", tmp_path)
    exporter = [sys.executable, "-m", "spark_kafka_native", "exporter", topic, "-i", "1"]
    exporter += ["--listen", f"127.0.0.1:{ports[0]}", "-b", kafka.bootstrap_servers]
    server = [
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
    ]
    server += [f"--web.listen-address=127.0.0.1:{prometheus.port}"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(exporter, stderr=log) as first,
        subprocess.Popen(server, stderr=log) as second,
    ):
        try:
            yield prometheus
        finally:
            second.terminate()
            first.terminate()


def test_alerts_fire_while_lag_grows(
    monitored: Prometheus, kafka: Any, topic: str, ports: tuple[int, int]
) -> None:
    kafka.create_topic(topic)
    registry = CollectorRegistry()
    with (
        serving(registry, ports[1]),
        Producer(kafka.bootstrap_servers) as producer,
        GroupConsumer(
            kafka.bootstrap_servers, topic, group=f"{topic}-group", auto_offset_reset="earliest"
        ) as consumer,
    ):
        export_to_prometheus(producer, registry, {"client": "orders"})
        export_to_prometheus(consumer, registry, {"client": "billing"})
        producer.send(topic, value=b"x").result()
        consumer.fetch_record(timeout=60)
        consumer.commit()

        def grown() -> set[tuple[str, str]]:
            producer.send_many(topic, [b"x"] * 20_000).result()
            return monitored.firing()

        eventually(lambda: ("KafkaGroupLagGrows", "kafka-groups") in grown(), "the alert on lag")
        eventually(lambda: ("KafkaGroupStuck", "kafka-groups") in monitored.firing(), "the alert on commits")
        assert ("KafkaTargetDown", "kafka-streams") in monitored.firing()
        assert not {job for alert, job in monitored.firing() if alert == "KafkaTargetDown"} & {
            "kafka-groups",
            "kafka-clients",
        }
        found = monitored.ask("query?query=kafka_producer_records_total")["result"]
        assert [one["metric"]["client"] for one in found] == ["orders"]

        while consumer.read(timeout=2) is not None:
            pass
        consumer.commit()
        lag_alerts = {("KafkaGroupLagGrows", "kafka-groups"), ("KafkaGroupStuck", "kafka-groups")}
        eventually(lambda: not lag_alerts & monitored.firing(), "the end of the alerts")
