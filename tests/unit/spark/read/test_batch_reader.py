"""The driver's side of a batch read: what it warns of."""

import logging

import pyspark
import pytest
from support.brokers.planning_cluster import PlanningCluster

from spark_kafka_native.spark.source import KafkaDataSource


@pytest.fixture
def warned(monkeypatch, tmp_path, caplog):
    """``warned(version, **options)``: the warnings of plans that this PySpark makes in a new session."""
    with PlanningCluster() as cluster:
        for tp in cluster.create("t"):
            cluster.logs[tp].end_offset = 50
        base = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"}
        sessions = iter(range(100))

        def run(version, *, plans=1, **options):
            folder = tmp_path / str(next(sessions))
            folder.mkdir()
            monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
            monkeypatch.setattr(pyspark, "__version__", version)
            caplog.clear()
            source = KafkaDataSource(base | options)
            with caplog.at_level(logging.WARNING, "spark_kafka_native"):
                for _ in range(plans):
                    source.reader(source.schema()).partitions()
            return [record.getMessage() for record in caplog.records if "looks up" in record.getMessage()]

        yield run


def test_open_bounds_are_warned_of_where_spark_does_not_notice_them(warned):
    (line,) = warned("4.1.4", plans=2)
    assert "PySpark 4.1.4" in line
    assert "bindOffsets=load" in line
    assert warned("4.3.0") == warned("4.2.0.dev1") == []


@pytest.mark.parametrize(
    "fixed",
    [
        {"bindOffsets": "load"},
        {"startingOffsets": '{"t":{"0":0}}', "endingOffsets": '{"t":{"0":50}}'},
    ],
)
def test_fixed_bounds_are_not_warned_of(warned, fixed):
    assert warned("4.1.4", **fixed) == []
    # One open side is enough.
    assert len(warned("4.1.4", startingOffsets='{"t":{"0":0}}')) == 1
    assert len(warned("4.1.4", endingOffsets='{"t":{"0":50}}')) == 1
