import os
import signal
import subprocess
import sys

import pytest

from spark_kafka_native.cli.main import main
from spark_kafka_native.cli.progress import step
from spark_kafka_native.cli.stopping import Stopped, stopping_on_signals


def test_commands_are_listed(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert {"demo", "broker"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["broker", "--listeners", "tls"], "no listener 'TLS'"),
        (["broker", "--property", "nothing"], "'nothing' is not of the form NAME=VALUE"),
        (["broker", "--user", "bob"], "'bob' is not of the form NAME:PASSWORD"),
        (["broker", "--properties-file", "/nowhere"], "No such file"),
        (["demo", "--records", "0"], "must be at least 1"),
    ],
)
def test_misuse_is_told(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert complaint in capsys.readouterr().err


def test_missing_java_is_a_message_and_no_traceback(tmp_path):
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "spark_kafka_native", "broker"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.startswith("JavaUnavailableError: No Java found")
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_with_blocks(number):
    before = signal.getsignal(number)
    cleaned = []

    def work():
        with stopping_on_signals():
            try:
                os.kill(os.getpid(), number)
                signal.pause()
            finally:
                os.kill(os.getpid(), number)  # an impatient second one does not keep us from cleaning up
                cleaned.append(True)

    with pytest.raises(Stopped) as raised:
        work()
    assert raised.value.signal == number
    assert cleaned == [True]
    assert signal.getsignal(number) is before


def test_a_step_tells_how_it_ended(capsys):
    with step("counting") as say:
        say("3 sheep")
    assert capsys.readouterr().out.endswith("s  counting: 3 sheep\n")
    with pytest.raises(ValueError, match="lost"), step("counting"):
        raise ValueError("lost")
    assert capsys.readouterr().out == "  ... counting\n"
