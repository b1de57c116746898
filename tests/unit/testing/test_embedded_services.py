"""Embedded servers with stand-ins for their Java programs: how they start, and fail to."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_kafka_native.testing import (
    BrokerStartError,
    EmbeddedKafka,
    EmbeddedKdc,
    EmbeddedRegistry,
    GuardError,
    StandaloneSpark,
    embedded_kdc,
    embedded_registry,
    local_spark,
)
from spark_kafka_native.testing.broker_files import STARTED, Ports
from spark_kafka_native.testing.embedded_kafka import EmbeddedBroker
from spark_kafka_native.testing.processes import Guard

STARTS_ONCE = f"""
if mkdir started; then
    echo "{STARTED}"
    sleep 600
fi
echo "the log is damaged"
"""
JAVA = """#!/bin/sh
if [ "$1" = -version ]; then
    echo 'openjdk version "21.0.4" 2024-07-16'
else
    exec sleep 600
fi
"""

SPARK = """#!/bin/sh
echo "I have been elected leader"
echo "Successfully registered with master"
exec sleep 600
"""


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard("guard-test-")
    yield guard
    guard.close()


def test_a_broker_that_does_not_start_again_is_an_error_with_its_last_output(guard: Guard) -> None:
    """Although the output of its first run is in the same file."""
    broker = EmbeddedBroker(
        guard=guard,
        image=SimpleNamespace(command=lambda *_: ["/bin/sh", "-c", STARTS_ONCE]),  # type: ignore[arg-type]
        node_id=1,
        ports=Ports(listeners={}, internal=1, controller=2),
        folder=guard.folder,
        jvm_options=(),
        startup_timeout_s=60,
    )
    broker.start()
    broker.await_ready()
    with pytest.raises(BrokerStartError, match="broker 1 ended while starting") as failed:
        broker.restart(graceful=False)
    assert "the log is damaged" in str(failed.value)
    assert STARTED not in str(failed.value)


def test_a_registry_that_accepts_connections_and_does_not_answer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(JAVA)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(embedded_registry, "_ANSWER_S", 0.01)
    monkeypatch.setattr(embedded_registry, "registry_application", lambda: tmp_path)
    monkeypatch.setattr(embedded_registry, "_START_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(embedded_registry, "free_ports", lambda _: [silent.getsockname()[1]])
        with pytest.raises(BrokerStartError, match="the schema registry did not answer within 0 s"):
            EmbeddedRegistry().start()


def test_a_registry_is_asked_past_the_proxy(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    class Subjects(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    registry = EmbeddedRegistry()
    registry._guard = guard
    with HTTPServer(("127.0.0.1", 0), Subjects) as server:
        registry._port = server.server_port
        serving = threading.Thread(target=server.handle_request, daemon=True)
        serving.start()
        assert registry._answers()
        serving.join()


def test_a_spark_that_has_ended_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "spark-class"
    program.parent.mkdir()
    program.write_text(SPARK)
    program.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")  # set by the start, and to be as it was
    monkeypatch.setattr(local_spark, "find_java", lambda: None)
    monkeypatch.setattr(local_spark, "_spark_home", lambda: tmp_path)
    spark = StandaloneSpark(2)
    for _ in range(2):
        with spark:
            assert len(spark.workers) == 2
            with pytest.raises(RuntimeError, match="this StandaloneSpark is already running"):
                spark.__enter__()


@pytest.fixture
def kdc(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedKdc]:
    """A stand-in that starts, and answers nothing."""
    monkeypatch.setattr(embedded_kdc, "kdc_jars", list)
    monkeypatch.setattr(
        embedded_kdc, "java_command", lambda *_: ["/bin/sh", "-c", "echo ready; cat > /dev/null"]
    )
    with EmbeddedKdc() as kdc:
        yield kdc


def test_a_kdc_that_has_ended_says_so(kdc: EmbeddedKdc) -> None:
    assert kdc._process is not None
    kdc._process.kill()
    kdc._process.wait()
    with pytest.raises(RuntimeError, match="the KDC has ended"):
        kdc.keytab("alice")


def test_a_fork_neither_ends_nor_asks_a_kdc(kdc: EmbeddedKdc) -> None:
    assert kdc._process is not None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(RuntimeError, match="not to a fork"):
                kdc.keytab("alice")
            kdc.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kdc._process.poll() is None
    assert kdc.folder.exists()


def test_a_signal_handler_may_close_a_kdc_that_is_asked(kdc: EmbeddedKdc) -> None:
    folder = kdc.folder
    former = signal.signal(signal.SIGALRM, lambda *_: kdc.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(RuntimeError, match="the KDC has ended"):
            kdc.keytab("alice")
    finally:
        signal.signal(signal.SIGALRM, former)
    assert not folder.exists()


def test_ctrl_c_does_not_reach_a_kdc(kdc: EmbeddedKdc) -> None:
    """A terminal sends it to the processes of its session."""
    assert kdc._process is not None
    assert os.getsid(kdc._process.pid) != os.getsid(0)


def test_a_kdc_ends_though_the_brokers_do_not() -> None:
    def hang() -> None:
        raise GuardError("it had not ended")

    closed: list[str] = []
    kafka = EmbeddedKafka()
    kafka._guard = SimpleNamespace(close=hang)  # type: ignore[assignment]
    kafka.kdc = SimpleNamespace(close=lambda: closed.append("kdc"))  # type: ignore[assignment]
    with pytest.raises(GuardError, match="it had not ended"):
        kafka.close()
    assert closed == ["kdc"]


def test_a_cluster_that_does_not_run_has_no_topics_and_grants() -> None:
    kafka = EmbeddedKafka()
    with pytest.raises(RuntimeError, match="this EmbeddedKafka is not running"):
        kafka.create_topic("t")
    with pytest.raises(RuntimeError, match="this EmbeddedKafka is not running"):
        kafka.allow("alice", "read", "topic", "t")
