"""The notebooks run top to bottom, as they are, and their committed outputs hold no error."""

import asyncio
import random
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from support.hooks.fresh_seeds import run_seed

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
DRAWN = random.Random(run_seed()).sample(NOTEBOOKS, 2)
"""Each takes a minute: a run of the tests tries these two; `make soak` with its seed tries the others."""


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.timeout(900)
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[] if path in DRAWN else pytest.mark.soak) for path in NOTEBOOKS],
)
def test_a_notebook_runs_top_to_bottom(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)

    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    asyncio.run(client.async_execute())  # execute() would leave its event loop open


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_its_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]

    assert all(cell.execution_count for cell in cells)
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
