"""The files under conf/ say nothing that the program does not know."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from spark_kafka_native.cli.broker import _properties
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.observe.catalogue import ALL_METRICS, Kind
from spark_kafka_native.kafka.observe.prometheus import prometheus_name
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.write_options import ExactlyOnce, WriteOptions

CONF = Path(__file__).parents[3] / "conf"
PROMETHEUS = CONF / "prometheus"


@pytest.mark.parametrize("name", ["plaintext.json"])
def test_option_files_name_properties_of_the_client(name):
    options = json.loads((CONF / name).read_text())
    properties = {name.removeprefix("kafka."): value for name, value in options.items()}
    assert all(name.startswith("kafka.") for name in options)
    assert set(properties) <= ClientConfig.property_names()
    assert ClientConfig.from_properties(properties).bootstrap_servers


def test_the_exactly_once_options_are_taken_by_a_write():
    options = WriteOptions.parse(
        OptionValues.parse(json.loads((CONF / "exactly-once.json").read_text()), Scope.WRITE)
    )
    assert options.warnings == ()
    assert options.topic == "orders"
    assert options.exactly_once == ExactlyOnce(
        transactional_id_prefix="orders-job", is_prefix_given=True, transaction_timeout_ms=600_000
    )


def test_each_option_file_is_tested():
    assert {path.name for path in CONF.glob("*.json")} == {"plaintext.json", "exactly-once.json"}


@pytest.mark.broker
def test_broker_settings_are_taken():
    from spark_kafka_native.testing import EmbeddedKafka

    properties = _properties(CONF / "test-broker.properties", ["log.segment.bytes=2097152"])
    assert properties["log.segment.bytes"] == "2097152"
    with EmbeddedKafka(properties=properties) as kafka:
        assert kafka.broker(1).running


def test_every_file_is_described():
    described = (CONF / "README.md").read_text()
    for path in CONF.rglob("*"):
        name = str(path.relative_to(CONF))
        assert path.is_dir() or f"`{name}`" in described or name == "README.md"


def exported_names():
    """As Prometheus has them, with the suffixes of their kinds."""
    suffixes = {
        Kind.COUNTER: ("_total",),
        Kind.GAUGE: ("",),
        Kind.DISTRIBUTION: ("_bucket", "_sum", "_count"),
    }
    return {prometheus_name(one) + suffix: one for one in ALL_METRICS for suffix in suffixes[one.kind]}


def selectors(text):
    """(metric, labels) of each series that an expression selects."""
    names = re.findall(r"(?<![\w:])(kafka_\w+)(?:\{([^}]*)\})?", text)
    return [(name, re.findall(r"(\w+)(?:=~|!~|!=|=)", labels)) for name, labels in names]


def test_rules_and_dashboard_select_what_is_exported():
    known = exported_names()
    rules = re.sub(
        r"^ *(summary|description|- name): .*$", "", (PROMETHEUS / "rules.yml").read_text(), flags=re.M
    )
    dashboard = json.loads((CONF / "grafana/dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 20
    for text in [rules, *expressions]:
        for name, labels in selectors(text):
            assert name in known, f"{name} is no metric"
            assert set(labels) <= {"job", *known[name].tags}
    for expression in expressions:
        legend_tags = {tag for name, _ in selectors(expression) for tag in known[name].tags}
        for group in re.findall(r"by \(([^)]*)\)", expression):
            assert set(group.split(", ")) <= {"job", "le", *legend_tags}
    rows = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(at["x"] + at["w"] <= 24 for at in rows)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(rows)


def test_each_alert_has_a_test():
    alerts = re.findall(r"- alert: (\w+)", (PROMETHEUS / "rules.yml").read_text())
    tested = set(
        re.findall(r"alertname: (\w+)\n +exp_alerts:\n", (PROMETHEUS / "rules-test.yml").read_text())
    )
    assert len(alerts) > 10
    assert set(alerts) == tested


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus")
@pytest.mark.parametrize(
    "words", [("check", "config", "prometheus.yml"), ("test", "rules", "rules-test.yml")]
)
def test_the_alerts_fire_when_they_should(words):
    ran = subprocess.run(["promtool", *words], cwd=PROMETHEUS, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
