"""`register` with a PySpark that has no Python data sources."""

from types import SimpleNamespace

import pyspark
import pytest

import spark_kafka_native
from spark_kafka_native import KafkaDataSource


@pytest.mark.parametrize("version", ["3.5.1", "4.0.2"])
def test_an_older_pyspark_is_told_which_one_it_takes(monkeypatch, version):
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(ImportError, match=f"needs PySpark 4.1 or later, but this is {version}"):
        spark_kafka_native.register(object())  # a session of 3.5 has no attribute dataSource


def test_the_class_is_registered():
    registered = []
    source = SimpleNamespace(register=registered.append)
    spark_kafka_native.register(SimpleNamespace(dataSource=source, createDataFrame=lambda *_: None))
    assert registered == [KafkaDataSource]


def test_a_name_that_the_package_lacks_is_an_error():
    """It is not None, so that `from spark_kafka_native import kafka` imports the module."""
    with pytest.raises(AttributeError, match="no attribute 'KafkaDataSorce'"):
        _ = spark_kafka_native.KafkaDataSorce
