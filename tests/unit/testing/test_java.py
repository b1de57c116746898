import subprocess
from pathlib import Path

import pytest

from spark_kafka_native.testing import JavaUnavailableError, find_java, run_java


def fake_java(folder: Path, says: str, code: int = 0, program: str = "") -> Path:
    """A program that says what a Java of another kind says: this machine has only one. ``program``: the
    command of the shell that it is instead, unless it is asked for its version.
    """
    executable = folder / "bin" / "java"
    executable.parent.mkdir()
    instead = f'[ "$1" = -version ] || {program}\n' if program else ""
    executable.write_text(f"#!/bin/sh\n{instead}cat >&2 <<'EOF'\n{says}\nEOF\nexit {code}\n")
    executable.chmod(0o755)
    return executable


def test_no_java_at_all(tmp_path):
    with pytest.raises(JavaUnavailableError) as raised:
        find_java({"PATH": str(tmp_path)})
    assert "JAVA_HOME is not set and PATH has no java" in str(raised.value)
    assert "apt-get install openjdk-17-jdk-headless" in str(raised.value)


def test_java_home_without_java(tmp_path):
    with pytest.raises(
        JavaUnavailableError, match=f"JAVA_HOME is {tmp_path}, but there is no {tmp_path}/bin/java"
    ):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize("version", ["11.0.20", "1.8.0_402", "16"])
def test_java_too_old(tmp_path, version):
    fake_java(tmp_path, f'openjdk version "{version}" 2023-07-18')
    with pytest.raises(JavaUnavailableError, match=f"is Java {version}, too old: Java 17 or newer is needed"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_java_new_enough(tmp_path, version, major):
    executable = fake_java(tmp_path, f'openjdk version "{version}" 2025-04-15')
    found = find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert (found.executable, found.version, found.major) == (executable, version, major)


def test_java_home_wins_over_path(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "path").mkdir()
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    other = fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    path = f"{other.parent}:/usr/bin:/bin"
    assert find_java({"JAVA_HOME": str(home.parent.parent), "PATH": path}).major == 21
    assert find_java({"PATH": path}).major == 17


def test_java_that_does_not_run(tmp_path):
    fake_java(tmp_path, "The operation couldn't be completed. Unable to locate a Java Runtime.", code=1)
    with pytest.raises(JavaUnavailableError, match="tells no version: The operation couldn't be completed"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})


def test_run_java_has_kafkas_classes():
    source = """
        import org.apache.kafka.common.utils.Utils;
        class Hash {
            public static void main(String[] args) throws Exception {
                byte[] given = System.in.readAllBytes();
                System.out.print(args[0] + " " + Utils.murmur2(given));
            }
        }
    """
    assert (
        run_java(source, "of 21:", input_text="21") == "of 21: -973932308"
    )  # the number of Kafka's own UtilsTest


def test_run_java_ends_a_program_that_takes_too_long(tmp_path, monkeypatch):
    fake_java(tmp_path, 'openjdk version "21.0.1"', program="exec sleep 60")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(subprocess.TimeoutExpired):
        run_java("class Endless {}", classpath=[], timeout_s=0.1)


def test_run_java_tells_why_it_failed():
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run_java(
            'class Broken { public static void main(String[] args) { throw new RuntimeException("so"); } }'
        )
    assert "RuntimeException: so" in raised.value.__notes__[0]
