"""The driver's side of a batch read: what it warns of, and what it takes from Spark and gives to tasks."""

import logging
import sys
from types import ModuleType

import pyspark
import pytest
from pyspark.sql.datasource import EqualTo
from support.brokers.planning_cluster import PlanningCluster

from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.spark.delegation_tokens import TokenLogin
from spark_kafka_native.spark.read.batch_reader import FilteringKafkaBatchReader, KafkaBatchReader
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


@pytest.fixture
def reader():
    """The reader of a topic with three partitions."""
    with PlanningCluster() as cluster:
        for tp in cluster.create("t", 3):
            cluster.logs[tp].end_offset = 50
        given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"}

        def make(**options):
            source = KafkaDataSource(given | options)
            return source.reader(source.schema())

        yield make


def test_each_task_has_the_token_of_the_job(reader, monkeypatch):
    login = TokenLogin(token_id="t1", hmac=Secret("x"))
    monkeypatch.setattr(KafkaBatchReader, "_login", lambda _: login)
    assert [one.login for one in reader().partitions()] == [login] * 3


def test_filters_are_taken_only_in_sparks_program_that_pushes_them(reader, monkeypatch):
    """Where the conf is off, Spark refuses a reader that takes filters."""
    assert type(reader(filterPushdown="true")) is KafkaBatchReader
    program = "pyspark.sql.worker.data_source_pushdown_filters"
    monkeypatch.setitem(sys.modules, program, ModuleType(program))
    assert type(reader()) is KafkaBatchReader
    filtering = reader(filterPushdown="true")
    assert type(filtering) is FilteringKafkaBatchReader
    filters = [EqualTo(("partition",), 1)]
    assert filtering.pushFilters(filters) is filters  # Spark applies each again
    assert [[one.partition for one in task.ranges] for task in filtering.partitions()] == [[1]]
