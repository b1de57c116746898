"""The README's Python blocks run, in order, as the one program that a newcomer would paste together."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python_blocks(markdown: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", markdown, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(900)
@pytest.mark.spark
@pytest.mark.broker
def test_the_python_blocks_of_the_readme_run(tmp_path: Path) -> None:
    blocks = python_blocks((ROOT / "README.md").read_text())
    assert len(blocks) >= 3
    program = tmp_path / "readme.py"
    program.write_text("\n".join(blocks))

    activated = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    ran = subprocess.run(
        ["python", program],
        cwd=tmp_path,
        env=os.environ | activated,
        capture_output=True,
        text=True,
        timeout=840,
    )

    assert ran.returncode == 0, ran.stderr[-5000:]
    assert "timestampType: integer" in ran.stdout


def test_the_readme_names_the_two_commands_of_the_makefile() -> None:
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in readme
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)
