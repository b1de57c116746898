import os
import socket

import pytest

from spark_kafka_native.testing import JarsUnavailableError, JavaUnavailableError, jars
from spark_kafka_native.testing.java import KAFKA_VERSION

NO_REGISTRY = """
<ivysettings>
  <settings defaultResolver="mirror"/>
  <resolvers><ibiblio name="mirror" m2compatible="true" root="http://127.0.0.1:{port}/maven2"/></resolvers>
</ivysettings>
"""


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_KAFKA_NATIVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def registry_that_refuses(tmp_path, monkeypatch):
    with socket.socket() as held:  # bound, but not listening: every connection is refused
        held.bind(("127.0.0.1", 0))
        settings = tmp_path / "ivysettings.xml"
        settings.write_text(NO_REGISTRY.format(port=held.getsockname()[1]))
        monkeypatch.setenv("SPARK_KAFKA_NATIVE_IVY_SETTINGS", str(settings))
        yield


def test_jars_of_broker_tools_and_client():
    names = {jar.name for jar in jars()}
    assert {f"{part}-{KAFKA_VERSION}.jar" for part in ("kafka_2.13", "kafka-tools", "kafka-clients")} <= names
    assert all(jar.stat().st_size for jar in jars())


def test_unreachable_registry(empty_cache, registry_that_refuses, capfd):
    with pytest.raises(JarsUnavailableError) as raised:
        jars()
    message = str(raised.value)
    assert "could not be fetched" in message
    assert "https_proxy" in message
    assert "SPARK_KAFKA_NATIVE_IVY_SETTINGS" in message
    assert str(empty_cache) in message
    assert "kafka_2.13" in message  # Ivy's own reason
    assert "Fetching Apache Kafka" in capfd.readouterr().err
    assert not list(empty_cache.glob("*/jars")), "half a set of jars must not look like a whole one"


def test_no_java_to_fetch_with(empty_cache, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(empty_cache))
    with pytest.raises(JavaUnavailableError, match="PATH has no java"):
        jars()


def test_leftovers_of_a_killed_fetch_are_no_jars(empty_cache, registry_that_refuses):
    partial = empty_cache / f"kafka-{KAFKA_VERSION}-1" / "partial" / "jars"
    partial.mkdir(parents=True)
    (partial / f"kafka_2.13-{KAFKA_VERSION}.jar").touch()
    with pytest.raises(JarsUnavailableError):
        jars()
    assert os.listdir(empty_cache / f"kafka-{KAFKA_VERSION}-1" / "partial") == ["ivy.xml"]
