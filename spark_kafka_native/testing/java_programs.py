"""`run_java`: single-file Java sources as test oracles, with Kafka's jars on the classpath."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .jars import jars
from .java import find_java


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
