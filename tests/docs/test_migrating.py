"""The Python blocks of docs/migrating.md run, in order, as one program; ``localhost:9092`` is the broker of
the tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_native.testing import EmbeddedKafka

PAGE = Path(__file__).parents[2] / "docs/migrating.md"


@pytest.mark.timeout(900)
@pytest.mark.spark
@pytest.mark.broker
def test_what_comes_after_a_migration_runs(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 10
    program = tmp_path / "migrated.py"
    program.write_text("\n".join(blocks).replace("localhost:9092", kafka.bootstrap_servers))
    ran = subprocess.run(
        ["python", program],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    assert "Unknown option" not in ran.stderr
    assert "has no effect" not in ran.stderr
