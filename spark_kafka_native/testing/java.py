"""Finds Java, fetches Kafka's jars into the user's cache, and runs single Java programs with them.

Java is looked for where Spark looks (``JAVA_HOME``, then ``PATH``), so that broker and Spark run on the same.
The jars are fetched once by the Ivy inside PySpark and published all or none; every process of this user
shares the cache.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from .errors import JarsUnavailableError, JavaUnavailableError

KAFKA_VERSION_VARIABLE: Final = "SPARK_KAFKA_NATIVE_KAFKA_VERSION"
"""May name another release than ours, from 3.3 on: for the compatibility table."""
KAFKA_VERSION = os.environ.get(KAFKA_VERSION_VARIABLE) or "4.3.0"
MINIMUM_JAVA = 17  # Kafka 4 brokers (KIP-1013) and Spark 4 both ask for it
CACHE_VARIABLE = "SPARK_KAFKA_NATIVE_CACHE"
IVY_SETTINGS_VARIABLE: Final = "SPARK_KAFKA_NATIVE_IVY_SETTINGS"
"""May name an ivysettings.xml, for a mirror of Maven Central."""
_INSTALL = (
    f"Install a JDK of version {MINIMUM_JAVA} or newer (Debian, Ubuntu: apt-get install "
    "openjdk-17-jdk-headless; macOS: brew install openjdk@17) and put it on PATH or name it in JAVA_HOME."
)
_WITHOUT_POMS: Final = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_FETCH_TIMEOUT_S = 900.0  # a slow mirror takes two to three minutes for 52 small files


@dataclass(frozen=True, kw_only=True)
class JarSet:
    """A program's jars: the modules to resolve, and the folder of the cache that keeps them."""

    title: str
    folder: str
    """Rename it when the modules change, so that an older cache is not used for them."""
    size_mb: int
    proof: str
    """A jar without which the others are incomplete."""
    dependencies: str
    reads_poms: bool = True
    """False: only the modules that ``dependencies`` names, without a look at their POMs. Where
    `IVY_SETTINGS_VARIABLE` is set, those settings say it instead."""

    @property
    def ivy_file(self) -> str:
        """The text of an ivy.xml that resolves them."""
        return f"""\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="spark-kafka-native" module="embedded"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->default">
{self.dependencies}
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36"/>
  </dependencies>
</ivy-module>
"""


# kafka-tools alone is taken without what it depends on: that is Connect and a web server, 45 jars that the
# console tools do without. Kafka names no logging back-end in its dependencies; slf4j-simple is the one that
# starts fastest.
_KAFKA = JarSet(
    title=f"Apache Kafka {KAFKA_VERSION}",
    folder=f"kafka-{KAFKA_VERSION}-1",
    size_mb=46,
    proof=f"kafka_2.13-{KAFKA_VERSION}.jar",
    dependencies=f"""\
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{KAFKA_VERSION}" transitive="false"/>""",
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


def cache_folder() -> Path:
    """``$SPARK_KAFKA_NATIVE_CACHE``, else ``spark-kafka-native`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        folder = Path(named)
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "spark-kafka-native")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` against all other processes; waits for as long as another one holds it.

    The kernel drops the lock when its holder dies, so a killed process blocks no other.
    """
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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


def jars() -> list[Path]:
    """Paths of the jars of a broker, the console tools and the Java client; fetched on the first call ever.

    Raises `JarsUnavailableError` when the registry can't be reached, `JavaUnavailableError` without a Java.
    """
    return sorted((kafka_folder() / "jars").glob("*.jar"))


def kafka_folder() -> Path:
    """The cached installation: ``jars/``, and beside it what the broker derives from them."""
    return jars_folder(_KAFKA)


def jars_folder(wanted: JarSet) -> Path:
    """The folder of the cache that has these jars in ``jars/``; they are fetched on the first call ever.
    Raises as `jars`.
    """
    folder = cache_folder() / wanted.folder
    if (folder / "jars").is_dir():
        return folder
    with locked(folder.with_name(folder.name + ".lock")):
        if not (folder / "jars").is_dir():
            folder.mkdir(exist_ok=True)
            _fetch(wanted, folder)
    return folder


def _fetch(wanted: JarSet, folder: Path) -> None:
    partial = folder / "partial"  # under the lock: any content is left from a process that died
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    ivy_file = partial / "ivy.xml"
    ivy_file.write_text(wanted.ivy_file, encoding="utf-8")
    print(
        f"Fetching {wanted.title} ({wanted.size_mb} MB, once) into {folder} ...", file=sys.stderr, flush=True
    )
    arguments = ["-ivy", str(ivy_file), "-confs", "default", "-cache", str(folder / "ivy-cache")]
    arguments += ["-retrieve", f"{partial}/jars/[artifact]-[revision].[ext]", "-types", "jar", "bundle"]
    if not wanted.reads_poms and IVY_SETTINGS_VARIABLE not in os.environ:
        settings = partial / "ivysettings.xml"
        settings.write_text(_WITHOUT_POMS, encoding="utf-8")
        arguments += ["-settings", str(settings)]
    try:
        ran = run_ivy(arguments, timeout_s=_FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailableError(
            _failure(wanted, folder, f"it had not finished after {_FETCH_TIMEOUT_S:g} s")
        ) from error
    if ran.returncode or not (partial / "jars" / wanted.proof).exists():
        raise JarsUnavailableError(_failure(wanted, folder, _reasons(ran.stdout + ran.stderr)))
    os.rename(partial / "jars", folder / "jars")
    shutil.rmtree(partial, ignore_errors=True)
    # It kept finished downloads for a new try after a failure.
    shutil.rmtree(folder / "ivy-cache", ignore_errors=True)


def _failure(wanted: JarSet, folder: Path, reason: str) -> str:
    return (
        f"The jars of {wanted.title} are not in {folder} and could not be fetched: {reason}\n"
        "They come from Maven Central. Is this machine online? Behind a proxy, set https_proxy. To use a "
        f"mirror, set {IVY_SETTINGS_VARIABLE} to an ivysettings.xml. Offline, copy that folder from "
        "a machine that has it. What was fetched so far is kept: the next attempt continues from there."
    )


def _reasons(output: str, limit: int = 6) -> str:
    """The lines of Ivy's report that name a cause, without its progress."""
    words = ("error", "unresolved", "not found", "exception", "refused", "timed out", "unknown host")
    lines = [line.strip() for line in output.splitlines() if any(word in line.lower() for word in words)]
    return "; ".join(dict.fromkeys(lines[:limit])) or output.strip()[-500:] or "Ivy gave no reason"


def run_java(
    source: str | Path,
    *args: str,
    classpath: Sequence[Path] | None = None,
    input_text: str | None = None,
    timeout_s: float = 120,
) -> str:
    """Run one Java source file (its text, or its path) with Kafka's jars on the classpath.

    Returns its standard output.
    The source's class may have any name. Needs a JDK: a bare runtime has no compiler. Raises
    `subprocess.CalledProcessError`, with the compiler's or the program's complaints as its note, when it
    fails.
    """
    with tempfile.TemporaryDirectory(prefix="spark-kafka-native-java-") as folder:
        path = source if isinstance(source, Path) else Path(folder, "Oracle.java")
        if isinstance(source, str):
            path.write_text(source, encoding="utf-8")
        command = [
            *java_command(Path(folder), jars() if classpath is None else classpath),
            "-Dfile.encoding=UTF-8",
            str(path),
            *args,
        ]
        ran = subprocess.run(
            command, input=input_text, capture_output=True, encoding="utf-8", timeout=timeout_s
        )
    if ran.returncode:
        named = [path.name, *args]
        error = subprocess.CalledProcessError(ran.returncode, named, ran.stdout, ran.stderr)
        error.add_note(ran.stderr[-4000:])
        raise error
    return ran.stdout


def java_command(temp_folder: Path, classpath: Sequence[Path]) -> list[str]:
    """``java`` with options for short runs: quick, quiet, and leaving nothing outside ``temp_folder``."""
    return [
        str(find_java().executable),
        *("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
        f"-Djava.io.tmpdir={temp_folder}",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        *("-cp", os.pathsep.join(str(jar) for jar in classpath)),
    ]
