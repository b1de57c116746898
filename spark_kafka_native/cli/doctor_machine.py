"""What `doctor` checks on this machine: Python, Java and Spark, and the settings that make Spark fast."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from .finding import Finding, ok, told, warning

_JAVA_MIN = 17
_OPEN_FILES = 1024
_SOCKET_SETTING = "spark.python.unix.domain.socket.enabled"


def check_machine(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Everything that needs no network."""
    yield _python()
    yield from _kernel()
    yield _java(environment)
    yield from _spark(environment)
    yield _open_files()


def _python() -> Finding:
    found = []
    for name in ("pyarrow", "numpy", "spark-kafka-native"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} from a folder or zip")
    return ok("Python", f"{platform.python_version()} at {sys.executable}; {', '.join(found)}")


def _kernel() -> Iterator[Finding]:
    from ..kafka.records import kernel

    if kernel.COMPILED:
        yield ok("kernel", "compiled")
    else:
        advice = "Install a wheel, or have a C compiler: records are decoded several times faster."
        yield warning("kernel", "not compiled: NumPy does its work", advice)


def _java(environment: Mapping[str, str]) -> Finding:
    home = environment.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin" if home else environment.get("PATH"))
    if path is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is none on PATH"
        return told("Java", where, "Spark on this machine and `pykafka broker` need Java 17 or later.")
    try:
        ran = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return warning("Java", f"{path} does not run: {failure}", "Set JAVA_HOME to Java 17 or later.")
    version = re.search(r'version "(\d+)', ran.stderr + ran.stdout)
    number = int(version[1]) if version else 0
    if number < _JAVA_MIN:
        return warning(
            "Java", f"{path} is version {number}", "Spark 4 needs Java 17 or later: set JAVA_HOME."
        )
    return ok("Java", f"{number} at {path}")


def _spark(environment: Mapping[str, str]) -> Iterator[Finding]:
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        yield told(
            "Spark",
            "pyspark is not installed",
            "The client needs none; for the data source: the extra [spark].",
        )
        return
    yield ok("Spark", f"pyspark {version}")
    yield _sockets(environment)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        given = environment.get(name)
        if given and shutil.which(given) is None:
            yield warning(
                name, f"{given} does not exist", "Spark's Python workers can't start: unset or correct it."
            )


def _sockets(environment: Mapping[str, str]) -> Finding:
    from ..testing.unix_sockets import unix_socket_settings

    check = "Spark's sockets"
    if unix_socket_settings(Path(tempfile.gettempdir()))[_SOCKET_SETTING] != "true":
        return told(check, f"the path of {tempfile.gettempdir()} is too long for unix domain sockets")
    if environment.get("PYSPARK_UDS_MODE", "").lower() == "true":
        return ok(check, "unix domain sockets (PYSPARK_UDS_MODE=true)")
    defaults = _spark_defaults(environment)
    if defaults is not None and _setting(defaults, _SOCKET_SETTING) == "true":
        return ok(check, f"unix domain sockets ({defaults})")
    return told(
        check,
        "TCP between Spark and its Python workers, unless the session says otherwise",
        f"PYSPARK_UDS_MODE=true, or {_SOCKET_SETTING}=true before the session starts, makes reads up to half "
        "as fast again.",
    )


def _spark_defaults(environment: Mapping[str, str]) -> Path | None:
    folder = environment.get("SPARK_CONF_DIR")
    if folder is None and "SPARK_HOME" in environment:
        folder = f"{environment['SPARK_HOME']}/conf"
    path = Path(folder or ".") / "spark-defaults.conf"
    return path if folder is not None and path.is_file() else None


def _setting(path: Path, name: str) -> str | None:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = re.split(r"[\s=]+", line.strip(), maxsplit=1)
        if len(words) == 2 and words[0] == name:
            return words[1].strip().lower()
    return None


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < soft < _OPEN_FILES:
        return warning("open files", f"at most {soft}", "Each broker takes some connections: ulimit -n 4096.")
    return ok("open files", f"at most {soft}")
