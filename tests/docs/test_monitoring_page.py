"""docs/monitoring.md: its programs run, and it names the metrics and alerts that there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from spark_kafka_native.kafka.observe.catalogue import ALL_METRICS
from spark_kafka_native.kafka.observe.prometheus import prometheus_name
from spark_kafka_native.testing import MockBroker

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/monitoring.md").read_text()
PREPARED = """
from unittest.mock import Mock
spark = Mock()
"""
SCRAPED = """
from prometheus_client import generate_latest
listener = spark.streams.addListener.call_args.args[0]
listener.onQueryStarted(Mock(id="1"))
print(generate_latest().decode())
producer.close()
"""


def test_its_programs_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    with MockBroker() as broker:
        program = PREPARED + "".join(blocks) + SCRAPED
        program = re.sub(r"start_http_server\(\d+\)", "start_http_server(0)", program)
        program = program.replace("localhost:9092", broker.bootstrap_servers)
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    assert "kafka_stream_failures_total{" in ran.stdout
    assert 'kafka_producer_records_failed_total{client="orders"} 0.0' in ran.stdout


def test_it_names_every_alert_and_no_other() -> None:
    rules = (ROOT / "conf/prometheus/rules.yml").read_text()
    assert set(re.findall(r"`(Kafka[A-Z]\w+)`", PAGE)) == set(re.findall(r"- alert: (\w+)", rules))


def test_its_metrics_exist() -> None:
    known = {prometheus_name(one) + end for one in ALL_METRICS for end in ("", "_total", "_bucket")}
    named = set(re.findall(r"`(kafka_[a-z_]*[a-z])`", PAGE)) - {"kafka_exporter"}
    assert len(named) > 5
    assert named <= known
