"""`register` with a PySpark that has no Python data sources."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
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


@pytest.mark.parametrize("before", [None, "/here"])
def test_threads_that_register_a_zip_leave_the_environment_as_it_was(monkeypatch, before):
    """The path is sent along while a source is registered: by two threads at a time it was deleted twice."""
    monkeypatch.setattr(spark_kafka_native, "__file__", "/some/package.zip/spark_kafka_native/__init__.py")
    environment = {} if before is None else {"PYTHONPATH": before}
    seen, inside = [], threading.Event()

    def register(_source):
        seen.append(environment["PYTHONPATH"])
        inside.wait(0.1)

    session = SimpleNamespace(
        dataSource=SimpleNamespace(register=register),
        createDataFrame=lambda *_: None,
        sparkContext=SimpleNamespace(environment=environment),
    )
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(spark_kafka_native.register, [session] * 2)] == [None, None]
    assert seen == ["/some/package.zip" if before is None else f"/some/package.zip{os.pathsep}/here"] * 2
    assert environment == ({} if before is None else {"PYTHONPATH": before})


def test_a_name_that_the_package_lacks_is_an_error():
    """It is not None, so that `from spark_kafka_native import kafka` imports the module."""
    with pytest.raises(AttributeError, match="no attribute 'KafkaDataSorce'"):
        _ = spark_kafka_native.KafkaDataSorce
