"""pytest fixtures: brokers, topics and a Spark session. A conftest loads them with ``from ... import *``.

``KAFKA_TEST_BROKER=testcontainers`` runs what needs one plain broker on a Kafka container instead of the
embedded one.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .embedded_kafka import EmbeddedKafka
from .embedded_registry import EmbeddedRegistry
from .kafka_container import KafkaContainer
from .local_spark import StandaloneSpark, unix_socket_settings

__all__ = ["kafka", "kafka_cluster", "registry", "spark", "spark_cluster", "topic"]

BROKER_VARIABLE = "KAFKA_TEST_BROKER"
_KEEP = {"log.retention.ms": -1}
_PATIENCE_S = 240.0
_QUICK = ("-XX:TieredStopAtLevel=1",)
"""For a broker that lives some minutes, the compiler that pays off later is not worth its CPU."""
_SOON = {
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
}
"""A group may have a session of seconds, and hears of others' doings in a third of one. No group has such a
session unasked: a machine that stands still for a moment would cost it its members."""


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka | KafkaContainer]:
    """One broker for the whole run. It keeps records however old their timestamps are."""
    choice = os.environ.get(BROKER_VARIABLE, "embedded")
    if choice not in ("embedded", "testcontainers"):
        raise pytest.UsageError(f"{BROKER_VARIABLE} is {choice!r}: it may be embedded or testcontainers")
    settings = _KEEP | _SOON
    with (
        KafkaContainer()
        if choice == "testcontainers"
        else EmbeddedKafka(properties=settings, jvm_options=_QUICK, startup_timeout_s=_PATIENCE_S)
    ) as running:
        yield running


@pytest.fixture(scope="session")
def registry() -> Iterator[EmbeddedRegistry]:
    """One schema registry for the whole run: a test takes subjects of its own."""
    with EmbeddedRegistry() as running:
        yield running


@pytest.fixture(scope="module")
def kafka_cluster() -> Iterator[EmbeddedKafka]:
    """Three brokers for one test module: replication factor 3, min.insync.replicas 2."""
    with EmbeddedKafka(3, properties=_KEEP, startup_timeout_s=_PATIENCE_S) as running:
        yield running


@pytest.fixture(scope="module")
def spark_cluster() -> Iterator[StandaloneSpark]:
    """A standalone Spark master and two workers of one core each, for one test module."""
    with StandaloneSpark(workers=2, startup_timeout_s=_PATIENCE_S) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that does not exist yet, with the test's own name in it."""
    test = re.sub(r"[^a-zA-Z0-9_-]+", "-", request.node.name)[:60].strip("-")
    return f"{test}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark session on two local cores, its Python workers on this very Python."""
    from pyspark.sql import SparkSession

    # Workers would be the python3 of PATH otherwise, and the host's name may resolve to an address that is
    # not ours.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("spark-kafka-native tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.streaming.stopTimeout", "60s")  # query.stop() would wait for ever
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    )
    for name, value in unix_socket_settings(Path(tempfile.gettempdir())).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
