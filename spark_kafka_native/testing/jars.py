"""Kafka's jars: fetched once by the Ivy inside PySpark, kept in the user's cache, published all or none."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from .cache import cache_folder, locked
from .errors import JarsUnavailableError
from .java import find_java

KAFKA_VERSION = "4.3.0"
IVY_SETTINGS_VARIABLE = "SPARK_KAFKA_NATIVE_IVY_SETTINGS"

# kafka-tools alone is taken without what it depends on: that is Connect and a web server, 45 jars that the
# console tools do without. Kafka names no logging back-end in its dependencies; slf4j-simple is the one that
# starts fastest.
_IVY_FILE = f"""\
<ivy-module version="2.0">
  <info organisation="spark-kafka-native" module="embedded-broker"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->default">
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{KAFKA_VERSION}" transitive="false"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36"/>
  </dependencies>
</ivy-module>
"""
_LAYOUT = 1  # raise it when the list above changes, so that an older cache is not taken for this one
_FETCH_TIMEOUT_S = 900  # a slow mirror takes two to three minutes for 52 small files


def jars() -> list[Path]:
    """Paths of the jars of a broker, the console tools and the Java client; fetched on the first call ever.

    Raises `JarsUnavailableError` when the registry can't be reached, `JavaUnavailableError` without a Java.
    """
    return sorted((kafka_folder() / "jars").glob("*.jar"))


def kafka_folder() -> Path:
    """The cached installation: ``jars/``, and beside it what the broker derives from them."""
    folder = cache_folder() / f"kafka-{KAFKA_VERSION}-{_LAYOUT}"
    if (folder / "jars").is_dir():
        return folder
    with locked(folder.with_name(folder.name + ".lock")):
        if not (folder / "jars").is_dir():
            folder.mkdir(exist_ok=True)
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    partial = folder / "partial"  # under the lock: whatever is there was left by a process that died
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    ivy_file = partial / "ivy.xml"
    ivy_file.write_text(_IVY_FILE, encoding="utf-8")
    command = [
        str(find_java().executable),
        # Without these two a registry that swallows packets keeps Ivy waiting for ever.
        "-Dsun.net.client.defaultConnectTimeout=15000",
        "-Dsun.net.client.defaultReadTimeout=60000",
        *_proxy_options(),
        "-jar",
        str(_ivy_jar()),
        *(["-settings", os.environ[IVY_SETTINGS_VARIABLE]] if os.environ.get(IVY_SETTINGS_VARIABLE) else []),
        *("-ivy", str(ivy_file), "-confs", "default"),
        *("-cache", str(folder / "ivy-cache")),
        *("-retrieve", f"{partial}/jars/[artifact]-[revision].[ext]"),
        *("-types", "jar", "bundle"),
    ]
    print(
        f"Fetching Apache Kafka {KAFKA_VERSION} (46 MB, once) into {folder} ...", file=sys.stderr, flush=True
    )
    try:
        ran = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailableError(_failure(folder, f"no end after {_FETCH_TIMEOUT_S} s")) from error
    if ran.returncode or not (partial / "jars" / f"kafka_2.13-{KAFKA_VERSION}.jar").exists():
        raise JarsUnavailableError(_failure(folder, _reasons(ran.stdout + ran.stderr)))
    os.rename(partial / "jars", folder / "jars")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(
        folder / "ivy-cache", ignore_errors=True
    )  # it held what came before a failure, for the next try


def _failure(folder: Path, reason: str) -> str:
    return (
        f"The jars of Apache Kafka {KAFKA_VERSION} are not in {folder} and could not be fetched: {reason}\n"
        "They come from Maven Central. Is this machine online? Behind a proxy set https_proxy; with a mirror "
        f"name an ivysettings.xml in {IVY_SETTINGS_VARIABLE}; offline, copy that folder from a machine that "
        "has it. What was fetched so far is kept: trying again goes on from there."
    )


def _reasons(output: str, limit: int = 6) -> str:
    """The lines of Ivy's report that name a cause, without its progress."""
    words = ("error", "unresolved", "not found", "exception", "refused", "timed out", "unknown host")
    lines = [line.strip() for line in output.splitlines() if any(word in line.lower() for word in words)]
    return "; ".join(dict.fromkeys(lines[:limit])) or output.strip()[-500:] or "Ivy gave no reason"


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
