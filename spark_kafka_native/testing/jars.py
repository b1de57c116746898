"""Kafka's jars: fetched once by the Ivy inside PySpark, kept in the user's cache, published all or none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .cache import cache_folder, locked
from .errors import JarsUnavailableError
from .ivy import IVY_SETTINGS_VARIABLE, run_ivy

KAFKA_VERSION = "4.3.0"

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
_FETCH_TIMEOUT_S = 900.0  # a slow mirror takes two to three minutes for 52 small files


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
    partial = folder / "partial"  # under the lock: any content is left from a process that died
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    ivy_file = partial / "ivy.xml"
    ivy_file.write_text(_IVY_FILE, encoding="utf-8")
    print(
        f"Fetching Apache Kafka {KAFKA_VERSION} (46 MB, once) into {folder} ...", file=sys.stderr, flush=True
    )
    wanted = ["-ivy", str(ivy_file), "-confs", "default", "-cache", str(folder / "ivy-cache")]
    wanted += ["-retrieve", f"{partial}/jars/[artifact]-[revision].[ext]", "-types", "jar", "bundle"]
    try:
        ran = run_ivy(wanted, timeout_s=_FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailableError(
            _failure(folder, f"it had not finished after {_FETCH_TIMEOUT_S:g} s")
        ) from error
    if ran.returncode or not (partial / "jars" / f"kafka_2.13-{KAFKA_VERSION}.jar").exists():
        raise JarsUnavailableError(_failure(folder, _reasons(ran.stdout + ran.stderr)))
    os.rename(partial / "jars", folder / "jars")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(
        folder / "ivy-cache", ignore_errors=True
    )  # it kept finished downloads for a new try after a failure


def _failure(folder: Path, reason: str) -> str:
    return (
        f"The jars of Apache Kafka {KAFKA_VERSION} are not in {folder} and could not be fetched: {reason}\n"
        "They come from Maven Central. Is this machine online? Behind a proxy, set https_proxy. To use a "
        f"mirror, set {IVY_SETTINGS_VARIABLE} to an ivysettings.xml. Offline, copy that folder from "
        "a machine that has it. What was fetched so far is kept: the next attempt continues from there."
    )


def _reasons(output: str, limit: int = 6) -> str:
    """The lines of Ivy's report that name a cause, without its progress."""
    words = ("error", "unresolved", "not found", "exception", "refused", "timed out", "unknown host")
    lines = [line.strip() for line in output.splitlines() if any(word in line.lower() for word in words)]
    return "; ".join(dict.fromkeys(lines[:limit])) or output.strip()[-500:] or "Ivy gave no reason"
