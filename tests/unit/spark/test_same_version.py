"""Driver and executors with different versions of the package."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.spark import same_version
from spark_kafka_native.spark.read.schema import full_schema
from spark_kafka_native.spark.source import KafkaDataSource
from spark_kafka_native.spark.write.batch_writer import KafkaBatchWriter

SERVERS = {"kafka.bootstrap.servers": "localhost:1"}
READ, WRITE = SERVERS | {"subscribe": "t"}, SERVERS | {"topic": "t"}
ROWS = StructType([StructField("value", StringType())])

MAKERS: dict[str, Callable[[], Any]] = {
    "batch reader": lambda: KafkaDataSource(dict(READ)).reader(full_schema(False)),
    "stream reader": lambda: KafkaDataSource(dict(READ)).streamReader(full_schema(False)),
    "refused stream reader": lambda: KafkaDataSource({"subscribe": "t"}).streamReader(full_schema(False)),
    "batch writer": lambda: KafkaDataSource(dict(WRITE)).writer(ROWS, overwrite=False),
    "stream writer": lambda: KafkaDataSource(dict(WRITE)).streamWriter(ROWS, overwrite=False),
}


class Unreadable:
    """Of a class that the other version does not have, say."""

    tokens = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _fail, ()


def _fail() -> None:
    raise AttributeError("no such class")


@pytest.fixture(params=MAKERS)
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(KafkaBatchWriter, "_prepare", lambda _: None)
    return MAKERS[request.param]()


@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps])
def test_the_same_version_reads_it(made: Any, dump: Callable[[Any], bytes]) -> None:
    assert vars(pickle.loads(dump(made))).keys() == vars(copy.copy(made)).keys() <= vars(made).keys()


@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps])
def test_another_version_refuses_it_first_of_all(
    made: Any, dump: Callable[[Any], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    made._task = made._options = Unreadable()
    with monkeypatch.context() as driver:
        driver.setattr(same_version, "__version__", "9.8.7")
        pickled = dump(made)
    here = same_version.__version__
    with pytest.raises(ConfigError, match=f"the driver has .* 9.8.7, and this Python worker has {here}: "):
        pickle.loads(pickled)


def test_what_a_version_without_a_stamp_has_pickled_is_refused(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as driver:
        driver.setattr(same_version.SameVersion, "__getstate__", lambda self: self.sent_state())
        pickled = pickle.dumps(made)
    with pytest.raises(ConfigError, match="the driver has spark-kafka-native of an older version"):
        pickle.loads(pickled)
