"""The table of docs/compatibility.md: its versions are the claimed ones, and cells without a run say so."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark
import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    return script("matrix")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def rows_of(matrix: ModuleType) -> list[list[str]]:
    table = matrix.PAGE.read_text().partition(matrix.BEGIN)[2].partition(matrix.END)[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def test_the_pythons_are_those_that_the_package_claims(matrix: ModuleType) -> None:
    lead = "Programming Language :: Python :: "
    claimed = [one.removeprefix(lead) for one in PROJECT["classifiers"] if one.startswith(lead)]
    assert list(matrix.PYTHONS) == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_the_pysparks_are_within_the_bounds_of_the_package(matrix: ModuleType) -> None:
    [bounds] = PROJECT["optional-dependencies"]["spark"]
    found = re.fullmatch(r"pyspark>=(\d+\.\d+),<(\d+)", bounds)
    assert found is not None
    assert matrix.PYSPARKS[0] == found[1]
    assert all(one.split(".")[0] < found[2] for one in matrix.PYSPARKS)
    assert minor(matrix.LOWEST_PYSPARK) == found[1]


def test_the_table_has_a_row_for_each_cell_in_order(matrix: ModuleType) -> None:
    header, _, *rows = rows_of(matrix)
    assert tuple(header) == matrix.HEADER
    wanted = [[one.python, one.pyspark, one.libraries, one.kafka] for one in matrix.all_cells()]
    assert [[row[0], minor(row[1]), row[2], row[3]] for row in rows] == wanted


def test_what_was_run_has_a_date_and_what_was_not_says_so(matrix: ModuleType) -> None:
    _, _, *rows = rows_of(matrix)
    for row in rows:
        steps, date = row[4:-1], row[-1]
        if date:
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", date)
            assert set(steps) <= {"passed", "FAILED", matrix.LATE}
        else:
            assert set(steps) == {matrix.NOT_RUN}
    assert any(row[-1] for row in rows)


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("passed", "passed"),
        ("AssertionError: 1 records", "FAILED: AssertionError: 1 records"),
        ("it ended early", "FAILED: it ended early"),
    ],
)
def test_only_a_worker_that_spark_did_not_wait_for_is_no_failure(
    matrix: ModuleType, said: str, outcome: str
) -> None:
    assert matrix.judge(said) == outcome
    assert matrix.judge(f"x: {matrix.NO_WORKER}").startswith("too late: ")


def test_a_cell_that_ends_without_an_outcome_has_failed(matrix: ModuleType) -> None:
    cell, *_ = matrix.all_cells()
    outcome = dict.fromkeys(matrix.STEPS, "passed") | {
        "stream": "FAILED: AssertionError: 1 records",
        "pyspark": "4.1.4",
        "date": "2026-01-02",
    }
    _, _, first, second, *_ = matrix.table({cell.name: outcome}).splitlines()
    run = "| 3.11 | 4.1.4 | highest | 4.3.0 | passed | FAILED | passed | 2026-01-02 |"
    assert first == run
    assert second == "| 3.12 | 4.1 | highest | 4.3.0 | not run | not run | not run |  |"


def test_a_run_keeps_the_rows_of_earlier_runs(matrix: ModuleType) -> None:
    first, second, *_ = matrix.all_cells()
    earlier = dict.fromkeys(matrix.STEPS, "passed") | {"pyspark": "4.1.4", "date": "2026-01-02"}
    page = f"# A page\n\n{matrix.BEGIN}\n\n{matrix.table({second.name: earlier})}\n\n{matrix.END}\n"
    assert matrix.read_table(page) == {second.name: earlier}
    later = matrix.read_table(page) | {first.name: earlier | {"stream": "FAILED: x"}}
    assert matrix.table(later).splitlines()[2:4] == [
        "| 3.11 | 4.1.4 | highest | 4.3.0 | passed | FAILED | passed | 2026-01-02 |",
        "| 3.12 | 4.1.4 | highest | 4.3.0 | passed | passed | passed | 2026-01-02 |",
    ]


def test_what_is_not_known_comes_first_and_then_the_oldest(matrix: ModuleType) -> None:
    first, second, third, *_ = matrix.all_cells()
    outcomes = {first.name: {"date": "2026-01-02"}, second.name: {"date": "2026-01-01"}}
    assert matrix.wanted_cells(["3.1?-4.1-highest-*"], outcomes) == [third, second, first]
    late = outcomes | {first.name: {"stream": "too late", "date": "2026-01-02"}}
    assert matrix.wanted_cells(["3.1?-4.1-highest-*"], late) == [first, third, second]


def test_a_cell_that_was_too_late_is_run_once_more(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second, *_ = (one for one in matrix.all_cells() if one.pyspark == minor(pyspark.__version__))
    passed = dict.fromkeys(matrix.STEPS, "passed")
    said = [passed | {"stream": f"{matrix.LATE}: x"}, passed, passed | {"batch": "FAILED: y"}]
    page = tmp_path / "page.md"
    page.write_text(f"{matrix.BEGIN}{matrix.END}")
    monkeypatch.setattr(matrix, "PAGE", page)
    monkeypatch.setattr(matrix, "environment_of", lambda *_: Path(sys.executable))
    monkeypatch.setattr(matrix, "run_cell", lambda *_: said.pop(0))
    assert list(matrix.run_cells([first, second], tmp_path, {})) == [second.name]
    assert not said
    found = matrix.read_table(page.read_text())
    assert [found[cell.name]["stream"] for cell in (first, second)] == ["passed", "passed"]
    assert found[second.name]["batch"] == "FAILED"


def test_a_release_without_a_finished_kraft_has_a_zookeeper(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = script("matrix_broker")

    def kind(release: str) -> str:
        monkeypatch.setattr(brokers, "KAFKA_VERSION", release)
        return type(brokers.broker()).__name__

    found = {release: kind(release) for release in matrix.KAFKAS}
    assert found.pop("2.8.2") == "ZookeeperKafka"
    assert set(found.values()) == {"EmbeddedKafka"}
