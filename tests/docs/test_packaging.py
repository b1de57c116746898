"""The files of the wheel and of the sdist, built as pip builds them, from a copy of the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "*.so", "build", "dist", "*.egg-info", "__pycache__")
NO_COMPILER = {"CC": "/nowhere/cc"}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT, tmp_path / "sources", ignore=LEFT_OUT))


def build(sources: Path, what: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``what`` is ``wheel`` or ``sdist``; it is written into ``sources / "dist"``."""
    command = f"from setuptools import build_meta; build_meta.build_{what}('dist')"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", command],
        cwd=sources,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_a_wheel_has_the_kernel_for_every_later_python_and_no_sources(sources: Path) -> None:
    built = build(sources, "wheel", SPARK_KAFKA_NATIVE_REQUIRE_KERNELS="1")
    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = (sources / "dist").glob("*.whl")
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.rpartition("/")[0] for name in names if name.endswith(".so")} == {
        "spark_kafka_native/kafka/records",
        "spark_kafka_native/formats/avro",
        "spark_kafka_native/formats/json",
    }
    assert "spark_kafka_native/py.typed" in names
    assert "pyspark_kafka_native/__init__.py" in names
    assert not [name for name in names if name.endswith((".c", ".h"))]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "spark_kafka_native",
        "pyspark_kafka_native",
    }


def test_a_wheel_without_a_compiler_is_for_any_platform(sources: Path) -> None:
    built = build(sources, "wheel", **NO_COMPILER)
    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = (sources / "dist").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (info,) = (name for name in names if name.endswith("/WHEEL"))
        assert "Root-Is-Purelib: true" in archive.read(info).decode()
    assert not [name for name in names if name.endswith((".so", ".c", ".h"))]
    assert "spark_kafka_native/kafka/records/numpy_kernel.py" in names  # not below a .data folder


def test_a_release_without_a_compiler_fails(sources: Path) -> None:
    assert build(sources, "wheel", **NO_COMPILER, SPARK_KAFKA_NATIVE_REQUIRE_KERNELS="1").returncode != 0
    assert not list((sources / "dist").glob("*.whl"))


def test_an_sdist_has_what_building_and_testing_take(sources: Path) -> None:
    built = build(sources, "sdist")
    assert built.returncode == 0, built.stderr[-2000:]
    (sdist,) = (sources / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    records = "spark_kafka_native/kafka/records"
    assert {f"{records}/_kernel.c", f"{records}/_kernel_decode.h", f"{records}/_kernel.pyi"} <= names
    assert {"tests/conftest.py", "docs/DESIGN.md", "conf/plaintext.json", "LICENSE", "Makefile"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
