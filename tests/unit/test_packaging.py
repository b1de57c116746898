"""What a wheel has in it, and what it needs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_of_a_wheel(project: Path) -> set[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    ran = subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", project / "dist", project],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    (wheel,) = (project / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.startswith("spark_kafka_native/")}


@pytest.fixture
def small_package(tmp_path: Path) -> Path:
    """A project with our build, and almost nothing to build."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    package = tmp_path / "spark_kafka_native"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "version.py").write_bytes((ROOT / "spark_kafka_native" / "version.py").read_bytes())
    return package


def test_a_wheel_has_nothing_of_an_earlier_build(small_package: Path) -> None:
    project = small_package.parent
    kept = {"spark_kafka_native/__init__.py", "spark_kafka_native/version.py"}
    (small_package / "gone.py").write_text("")
    assert modules_of_a_wheel(project) == kept | {"spark_kafka_native/gone.py"}
    (small_package / "gone.py").unlink()
    assert modules_of_a_wheel(project) == kept


def test_a_wheel_has_nothing_of_an_interrupted_build(small_package: Path) -> None:
    project = small_package.parent
    modules_of_a_wheel(project)
    (installed,) = (project / "build").glob("bdist.*")
    left = installed / "wheel" / "spark_kafka_native" / "gone.py"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_text("")
    assert "spark_kafka_native/gone.py" not in modules_of_a_wheel(project)


def test_a_wheel_leaves_the_built_documentation_alone(small_package: Path) -> None:
    project = small_package.parent
    page = project / "build" / "site" / "html" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("")
    modules_of_a_wheel(project)
    assert page.exists()


def test_client_and_mock_broker_need_no_crcmod() -> None:
    """It has no wheels, so an installation of wheels alone lacks it."""
    script = (
        "import sys; sys.modules['crcmod'] = None\n"
        "from spark_kafka_native.kafka import Producer\n"
        "from spark_kafka_native.testing import MockBroker\n"
        "with MockBroker() as broker:\n"
        "    broker.create_topic('t', 1)\n"
        "    with Producer(broker.bootstrap_servers) as producer:\n"
        "        print(producer.send('t', b'v').result().offset)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (ran.stdout, ran.returncode) == ("0\n", 0), ran.stderr
