"""Runs `matrix_cell.py` with each supported Python, PySpark and Kafka, and writes the table of
docs/compatibility.md.

python3 .ci/matrix.py FOLDER [--cells PATTERN ...] [--table-only]

FOLDER takes the environments and one wheel of the project. A cell has a name such as 3.12-4.3-highest-4.3.0,
and PATTERN is the shell's. Cells that were never run to their end come first, then those with the oldest run.
The rows of all other cells stay as they are, also those of a Python that is not here.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- table: .ci/matrix.py -->", "<!-- end of table -->"
PYTHONS = ("3.11", "3.12", "3.13")
PYSPARKS = ("4.1", "4.2", "4.3")
LOWEST_PYSPARK = "4.1.0"
KAFKAS = ("2.8.2", "3.3.2", "3.9.2", "4.0.1", "4.1.1", "4.3.0")
NEWEST_KAFKA = KAFKAS[-1]
STEPS = ("batch", "stream", "exactly_once")
HEADER = ("Python", "PySpark", "libraries", "Kafka", "batch", "stream", "exactly once", "date")
NOT_RUN, LATE = "not run", "too late"
NO_WORKER = "Python worker failed to connect back"
"""Spark gives a worker seconds to start: on a busy machine that says nothing of the versions."""
CELL_TIMEOUT_S = 3_600
Outcomes = dict[str, dict[str, str]]
"""By the name of a cell: the outcome of each step, ``pyspark`` (the version that ran) and ``date``."""


@dataclass(frozen=True)
class Cell:
    """What runs together. ``libraries``: ``lowest``, by pyproject.toml, or ``highest``."""

    python: str
    pyspark: str
    libraries: str
    kafka: str

    @property
    def environment(self) -> str:
        """The name of its virtual environment."""
        return f"{self.python}-{self.pyspark}-{self.libraries}"

    @property
    def name(self) -> str:
        """As in outcomes.json."""
        return f"{self.environment}-{self.kafka}"


def all_cells() -> list[Cell]:
    """Each Python with each PySpark and with the lowest libraries; one of them with each Kafka."""
    cells = [Cell(python, pyspark, "highest", NEWEST_KAFKA) for pyspark in PYSPARKS for python in PYTHONS]
    cells += [Cell(python, PYSPARKS[0], "lowest", NEWEST_KAFKA) for python in PYTHONS]
    cells += [Cell(PYTHONS[0], PYSPARKS[-1], "highest", kafka) for kafka in KAFKAS if kafka != NEWEST_KAFKA]
    return cells


def table(outcomes: Outcomes) -> str:
    """The table, with a row for each cell, also for those that were not run."""
    rows = [HEADER, tuple("---" for _ in HEADER)]
    for cell in all_cells():
        found = outcomes.get(cell.name, {})
        steps = [found.get(step, NOT_RUN).partition(":")[0] for step in STEPS]
        pyspark = found.get("pyspark", cell.pyspark)
        rows.append((cell.python, pyspark, cell.libraries, cell.kafka, *steps, found.get("date", "")))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def read_table(page: str) -> Outcomes:
    """What the table of a page says of the cells that were run; it is the only record of earlier runs."""
    lines = page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    outcomes: Outcomes = {}
    for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines):
        python, pyspark, libraries, kafka, *steps, date = row
        if date:
            cell = Cell(python, ".".join(pyspark.split(".")[:2]), libraries, kafka)
            outcomes[cell.name] = dict(zip(STEPS, steps, strict=True)) | {"pyspark": pyspark, "date": date}
    return outcomes


def wanted_cells(patterns: list[str], outcomes: Outcomes) -> list[Cell]:
    """The cells that match, in the order in which they are run."""
    found = [one for one in all_cells() if any(fnmatch.fnmatch(one.name, each) for each in patterns)]

    def known_since(cell: Cell) -> str:
        outcome = outcomes.get(cell.name, {})
        return "" if was_late(outcome) else outcome.get("date", "")

    return sorted(found, key=known_since)


def write_table(outcomes: Outcomes) -> None:
    """Replace the table of the page."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(outcomes)}\n\n{END}{tail}")


def run(*command: str | Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Raises where it fails."""
    return subprocess.run([str(one) for one in command], check=True, text=True, **settings)


def environment_of(cell: Cell, folder: Path) -> Path | None:
    """The Python of an environment with the project's wheel in it, made where it is missing."""
    own, uv = folder / cell.environment, folder / "tools" / "bin" / "uv"
    python = own / "bin" / "python"
    if not (own / ".made").exists():
        found = subprocess.run(
            ["bash", ROOT / ".ci" / "find_python.sh", cell.python],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if found.returncode:
            print(f"{cell.name}: there is no Python {cell.python} here", flush=True)
            return None
        run(uv, "venv", "--quiet", "--clear", "--python", found.stdout.strip(), own)
        pyspark = f"pyspark=={LOWEST_PYSPARK if cell.libraries == 'lowest' else cell.pyspark + '.*'}"
        how = "lowest-direct" if cell.libraries == "lowest" else "highest"
        # Of libraries with C code the lowest version is one that has wheels for this Python.
        wheels = ("--only-binary", "numpy", "--only-binary", "pyarrow")
        given = ("--requirement", ROOT / "pyproject.toml", "--extra", "testing", pyspark, "setuptools>=77")
        run(uv, "pip", "install", "--quiet", "--python", python, "--resolution", how, *wheels, *given)
        # Spark waits 10 s for a worker, which must not spend them on compiling PySpark.
        run(python, "-W", "ignore", ROOT / ".ci" / "compile_workers.py")
        (own / ".made").touch()
    [wheel] = (folder / "wheel").glob("*.whl")
    run(uv, "pip", "install", "--quiet", "--reinstall", "--no-deps", "--python", python, wheel)
    return python


def build_wheel(folder: Path) -> None:
    """One for all Pythons: the kernels use the stable ABI."""
    tools, wheels = folder / "tools", folder / "wheel"
    if not (tools / "bin" / "uv").exists():
        run(sys.executable, "-m", "venv", tools)
        run(tools / "bin" / "pip", "--disable-pip-version-check", "--quiet", "install", "uv")
    shutil.rmtree(wheels, ignore_errors=True)
    run(tools / "bin" / "uv", "build", "--quiet", "--wheel", "--out-dir", wheels, ROOT)


def run_cell(cell: Cell, python: Path) -> dict[str, str]:
    """Its outcome; a broker of its own runs as long as the cell."""
    environ = os.environ | {"SPARK_KAFKA_NATIVE_KAFKA_VERSION": cell.kafka}
    elsewhere = python.parents[1]  # so that the sources are not imported in place of the wheel
    broker = subprocess.Popen(
        [python, ROOT / ".ci" / "matrix_broker.py"],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=elsewhere,
    )
    assert broker.stdin is not None
    assert broker.stdout is not None
    found: dict[str, str] = {}
    try:
        servers = broker.stdout.readline().strip()
        if not servers:
            return dict.fromkeys(STEPS, "FAILED: the broker did not start")
        ended = subprocess.run(
            [python, ROOT / ".ci" / "matrix_cell.py", servers],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=elsewhere,
            timeout=CELL_TIMEOUT_S,
            check=False,
        )
        last = ended.stdout.strip().splitlines()[-1:] or ["{}"]
        found = json.loads(last[0])
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        found = dict.fromkeys(STEPS, type(error).__name__)
    finally:
        broker.stdin.close()
        broker.wait()
    steps = {step: found.get(step, "it ended early") for step in STEPS}
    return {step: judge(one) for step, one in steps.items()}


def judge(said: str) -> str:
    """A step's outcome by the words of `matrix_cell.py`, with its error behind a colon."""
    if said == "passed":
        return said
    return f"{LATE if NO_WORKER in said else 'FAILED'}: {said}"


def was_late(outcome: dict[str, str]) -> bool:
    """True if nothing is known of one of its steps, as the machine was busy."""
    return any(one.startswith(LATE) for one in outcome.values())


def run_cells(cells: list[Cell], folder: Path, outcomes: Outcomes) -> Iterator[str]:
    """Run them, write each outcome into the page, and yield the names of those that failed."""
    for cell in cells:
        python = environment_of(cell, folder)
        if python is None:
            continue
        ask = "import pyspark; print(pyspark.__version__)"
        version = run(python, "-c", ask, capture_output=True).stdout.strip()
        if was_late(outcome := run_cell(cell, python)):
            outcome = run_cell(cell, python)
        print(f"{cell.name}: {outcome}", flush=True)
        outcomes[cell.name] = outcome | {"pyspark": version, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        write_table(outcomes)
        if set(outcome.values()) != {"passed"}:
            yield cell.name


def main() -> None:
    """Run the cells that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--table-only", action="store_true", help="only give each cell its row")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = read_table(PAGE.read_text())
    if arguments.table_only:
        write_table(outcomes)
        return
    build_wheel(folder)
    if failed := list(run_cells(wanted_cells(arguments.cells, outcomes), folder, outcomes)):
        sys.exit(f"FAILED: {', '.join(failed)}")


if __name__ == "__main__":
    main()
