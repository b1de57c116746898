"""Messages that are quiet, and come once in a session."""

import logging
import signal
import socket
import subprocess
import sys

import pytest

from spark_kafka_native.kafka.records import kernel
from spark_kafka_native.kernel_choice import ENVIRONMENT_VARIABLE
from spark_kafka_native.spark import user_messages
from spark_kafka_native.spark.user_messages import advise, inform, note_once, prefix_log_lines


@pytest.fixture
def told(monkeypatch, tmp_path, caplog):
    monkeypatch.delenv("PYTHON_UNIX_DOMAIN_ENABLED", raising=False)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    caplog.set_level(logging.INFO, "spark_kafka_native")
    return lambda: [record.getMessage() for record in caplog.records]


def test_sockets_are_told_once_in_a_session(told, monkeypatch, tmp_path):
    advise()
    advise()
    (line,) = told()
    assert "spark.python.unix.domain.socket.enabled=true" in line
    assert "PYSPARK_UDS_MODE=true" in line
    another = tmp_path / "another"
    another.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(another))
    advise()
    assert len(told()) == 2


@pytest.mark.parametrize(
    "without",
    [
        lambda patch: patch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "true"),
        lambda patch: patch.delenv("SPARK_LOCAL_DIRS"),
        lambda patch: patch.setenv("SPARK_LOCAL_DIRS", "/nowhere"),
        lambda patch: patch.delattr(socket, "AF_UNIX"),
    ],
    ids=["on already", "no session", "folder is gone", "no such sockets"],
)
def test_nothing_is_told_where_it_is_on_or_cannot_be(told, monkeypatch, without):
    without(monkeypatch)
    advise()
    assert told() == []


def test_a_missing_kernel_is_told_once_in_a_session(told, monkeypatch):
    monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "true")
    monkeypatch.setattr(kernel, "COMPILED", False)
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    advise()
    advise()
    (line,) = told()
    assert "the compiled kernel is not installed" in line
    assert f"{ENVIRONMENT_VARIABLE}=numpy hides" in line


def test_what_can_not_be_noted_is_neither_the_first_time_nor_another(monkeypatch, tmp_path):
    for folder, answers in (
        (str(tmp_path), [True, False]),
        (f"{tmp_path / 'missing'},{tmp_path}", [None, None]),
        ("", [None, None]),
    ):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folder)
        assert [note_once("this"), note_once("this")] == answers
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    assert [note_once("this"), note_once("other")] == [False, True]


@pytest.mark.parametrize(("compiled", "chosen"), [(True, ""), (False, "numpy")])
def test_nothing_is_told_of_a_kernel_that_is_there_or_not_wanted(told, monkeypatch, compiled, chosen):
    monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "true")
    monkeypatch.setattr(kernel, "COMPILED", compiled)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, chosen)
    advise()
    assert told() == []


@pytest.fixture
def unconfigured(monkeypatch):
    """Called: logging becomes as it is in a process of Spark's."""

    def run():
        logger = logging.getLogger("spark_kafka_native")
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        monkeypatch.setattr(logger, "handlers", [])
        return logger

    return run


def test_a_line_is_printed_where_logging_is_not_configured(unconfigured, capsys):
    unconfigured()
    inform("wrote 3 records")
    prefix_log_lines()
    inform("wrote 4 records")
    assert capsys.readouterr().err == "pykafka: wrote 3 records\npykafka: wrote 4 records\n"


def test_every_line_has_one_prefix_where_logging_is_not_configured(unconfigured, monkeypatch, capsys):
    logger = unconfigured()
    prefix_log_lines()
    prefix_log_lines()
    logger.warning("one")
    logging.getLogger("spark_kafka_native.network").warning("two")
    assert capsys.readouterr().err == "pykafka: one\npykafka: two\n"
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    logger.warning("three")
    assert capsys.readouterr().err == ""


def test_a_stop_that_sigterm_ends_is_made_up_for_at_exit():
    """Spark closes the socket of a streaming source and sends the signal at about the same time."""
    program = """
import os, signal, sys, types
from spark_kafka_native.spark.user_messages import ignore_sigterm, stop_on_sigterm
def stop():
    calls.append("call")
    if len(calls) == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    ignore_sigterm()
    os.kill(os.getpid(), signal.SIGTERM)
    print("stopped")
calls = []
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.worker")
stop_on_sigterm(stop)
stop()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (ran.stdout, ran.returncode) == ("stopped\n", 128 + signal.SIGTERM), ran.stderr


def test_a_handler_of_sigterm_that_is_there_already_stays(monkeypatch):
    handlers = []
    monkeypatch.setattr(user_messages, "_is_process_of_spark", lambda: True)
    monkeypatch.setattr(signal, "signal", lambda *given: handlers.append(given))
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.SIG_IGN)
    user_messages.stop_on_sigterm(lambda: None)
    assert handlers == []
