"""Commands of ours, run within the test's process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_native.cli.main import main

Run = Callable[..., tuple[int, str, str]]


def runner(kafka: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command as in a pipe: its exit code, standard output and standard error."""

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main([*arguments, "-b", kafka.bootstrap_servers])
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
