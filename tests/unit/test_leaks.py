"""A test fails for the threads and the sockets that it leaves behind, and only for those."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.inner_pytest import run_pytest

CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support.hooks import leaks
from support.hooks.leaks import pytest_runtest_call, pytest_runtest_setup, pytest_runtest_teardown
leaks.GRACE_S = leaks.SOCKETS_GRACE_S = 0.5
"""
TESTS = """
import threading, time
import pytest

over = threading.Event()

def start(name, daemon=True):
    threading.Thread(target=over.wait, args=(60,), name=name, daemon=daemon).start()

def test_of_a_mock_broker():
    start("mock-broker-1")

def test_that_keeps_the_interpreter():
    start("mine", daemon=False)

def test_of_a_router_that_stays():
    start("kafka-lookup")

def test_whose_thread_ends_soon():
    threading.Thread(target=time.sleep, args=(0.1,), name="mock-broker-2", daemon=True).start()

@pytest.fixture(scope="module")
def shared():
    start("mock-broker-3")

def test_with_a_broker_of_the_module(shared):
    pass

def test_the_end():
    over.set()
"""


def test_threads_that_are_left_behind_fail_their_test(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, CONFTEST, TESTS)
    assert "6 passed, 2 errors" in ran.stdout, ran.stdout + ran.stderr
    assert "ERROR test_some.py::test_of_a_mock_broker" in ran.stdout
    assert "the test left threads behind: mock-broker-1" in ran.stdout
    assert "ERROR test_some.py::test_that_keeps_the_interpreter" in ran.stdout
    assert "the test left threads behind: mine" in ran.stdout


SOCKETS = """
import socket, subprocess, sys, threading
from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.testing import MockBroker

left = []

def test_that_leaves_one():
    left.append(socket.socket())

def test_that_inherits_it():
    assert left

def test_that_fails():
    kept = socket.socket()
    assert not left

def test_that_drops_one_in_a_cycle():
    cycle = [socket.socket()]
    cycle.append(cycle)

def test_that_closes_one_late():
    threading.Timer(0.1, socket.socket().close).start()

def test_whose_peer_is_another_process():
    serve = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1]); input()"
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    beside = subprocess.Popen([sys.executable, "-u", "-c", serve], **how)
    left.append(beside)
    left.append(socket.create_connection(("127.0.0.1", int(beside.stdout.readline()))))

def test_that_connects_to_itself():
    server = socket.create_server(("127.0.0.1", 0))
    left.append(socket.create_connection(server.getsockname()))
    left.append(server)

def test_of_a_router_that_stays_warm():
    with MockBroker() as broker:
        config = ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers})
        router_for(config).metadata()
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not show descriptors")
def test_a_socket_that_is_left_open_fails_its_test(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, CONFTEST, SOCKETS)
    assert "1 failed, 7 passed, 2 errors" in ran.stdout, ran.stdout + ran.stderr
    assert "ERROR test_some.py::test_that_leaves_one" in ran.stdout
    assert "ERROR test_some.py::test_that_connects_to_itself" in ran.stdout
    assert "the test left sockets open: socket:[" in ran.stdout
