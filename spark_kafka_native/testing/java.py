"""`find_java`: a Java that runs Kafka and Spark.

Looks where Spark looks (``JAVA_HOME``, then ``PATH``), so that broker and Spark run on the same Java.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import JavaUnavailableError

MINIMUM_JAVA = 17  # Kafka 4 brokers (KIP-1013) and Spark 4 both ask for it
_INSTALL = (
    f"Install a JDK of version {MINIMUM_JAVA} or newer (Debian, Ubuntu: apt-get install "
    "openjdk-17-jdk-headless; macOS: brew install openjdk@17) and put it on PATH or name it in JAVA_HOME."
)


@dataclass(frozen=True, kw_only=True)
class Java:
    """One Java that is new enough.

    ``version`` is what the runtime calls itself ("17.0.15"); ``major`` its first number.
    """

    executable: Path
    version: str
    major: int


def find_java(environ: Mapping[str, str] | None = None, minimum: int = MINIMUM_JAVA) -> Java:
    """The Java that ``JAVA_HOME`` names, else the first on ``PATH``.

    Raises `JavaUnavailableError` when there is none, when it does not run, or when it is older than
    ``minimum``.
    """
    environ = os.environ if environ is None else environ
    executable = _locate(environ)
    version = _ask_version(executable, environ)
    major = _parse_major(version)
    if major < minimum:
        raise JavaUnavailableError(
            f"{executable} is Java {version}, too old: Java {minimum} or newer is needed. {_INSTALL}"
        )
    return Java(executable=executable, version=version, major=major)


def _locate(environ: Mapping[str, str]) -> Path:
    home = environ.get("JAVA_HOME")
    if home:
        executable = Path(home, "bin", "java")
        if not os.access(executable, os.X_OK):
            raise JavaUnavailableError(
                f"JAVA_HOME is {home}, but there is no {executable} to run. Correct or unset JAVA_HOME. "
                f"{_INSTALL}"
            )
        return executable
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise JavaUnavailableError(f"No Java found: JAVA_HOME is not set and PATH has no java. {_INSTALL}")
    return Path(found)


def _ask_version(executable: Path, environ: Mapping[str, str]) -> str:
    try:
        ran = subprocess.run(
            [str(executable), "-version"],
            capture_output=True,
            encoding="utf-8",
            timeout=30,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaUnavailableError(f"{executable} does not run: {error}. {_INSTALL}") from error
    # 'openjdk version "17.0.15" 2025-04-15'. The stub that macOS has for java fails with advice of its own
    # instead.
    match = re.search(r'version "([^"]+)"', ran.stderr + ran.stdout)
    if ran.returncode or match is None:
        said = (ran.stderr or ran.stdout).strip().splitlines()[:1] or [f"exit code {ran.returncode}"]
        raise JavaUnavailableError(f"{executable} -version tells no version: {said[0]}. {_INSTALL}")
    return match[1]


def _parse_major(version: str) -> int:
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        return 0
    return (
        numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
    )  # before Java 9 it was "1.8.0_402"
