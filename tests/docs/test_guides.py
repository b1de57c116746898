"""The Python blocks of the guides to writing, reading, streams and exactly once run, in this order, as one
program; ``localhost:9092`` is the broker of the tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_native.testing import EmbeddedKafka

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("writing.md", "reading.md", "streaming.md", "exactly-once.md")


@pytest.mark.timeout(900)
@pytest.mark.spark
@pytest.mark.broker
def test_the_guides_run(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    text = "\n".join((DOCS / page).read_text() for page in PAGES)
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    program = tmp_path / "guides.py"
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
