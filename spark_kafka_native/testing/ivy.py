"""`run_ivy`: the Ivy inside PySpark, which fetches jars and never waits for ever."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from .errors import JarsUnavailableError
from .java import find_java

IVY_SETTINGS_VARIABLE: Final = "SPARK_KAFKA_NATIVE_IVY_SETTINGS"
"""May name an ivysettings.xml, for a mirror of Maven Central."""


def run_ivy(arguments: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run Ivy with ``arguments``, the proxy of ``https_proxy`` and the settings of `IVY_SETTINGS_VARIABLE`.

    Says what Ivy printed and its exit code. Raises `JarsUnavailableError` without a PySpark,
    `JavaUnavailableError` without a Java, and `subprocess.TimeoutExpired`.
    """
    settings = os.environ.get(IVY_SETTINGS_VARIABLE)
    command = [
        str(find_java().executable),
        # Without these two a registry that swallows packets keeps Ivy waiting for ever.
        "-Dsun.net.client.defaultConnectTimeout=15000",
        "-Dsun.net.client.defaultReadTimeout=60000",
        *_proxy_options(),
        *("-jar", str(_ivy_jar())),
        *(["-settings", settings] if settings else []),
        *arguments,
    ]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL, timeout=timeout_s
    )


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    homes = [Path(spec.origin).parent] if spec and spec.origin else []
    if os.environ.get("SPARK_HOME"):
        homes.append(Path(os.environ["SPARK_HOME"]))
    for home in homes:
        for jar in sorted(home.glob("jars/ivy-*.jar")):
            return jar
    raise JarsUnavailableError(
        "Kafka's jars are fetched by the Ivy inside PySpark, and no PySpark is installed here: "
        "pip install 'spark-kafka-native[testing]'"
    )


def _proxy_options() -> list[str]:
    """Java knows nothing of https_proxy."""
    proxy = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
    parts = urlsplit(proxy) if proxy else None
    if parts is None or not parts.hostname:
        return []
    return [f"-Dhttps.proxyHost={parts.hostname}", f"-Dhttps.proxyPort={parts.port or 3128}"]
