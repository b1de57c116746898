"""The pages on the client run: each page's Python blocks, in order, as one program; on docs/client.md those
of each ``##`` section.

``localhost:9092`` in a program stands for the tests' broker. A comment, as ``<!-- topics: a, b=3 -->``, names
topics that exist before it runs, with their partitions.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_native.testing import EmbeddedKafka

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("groups.md", "admin.md", "metrics.md", "other-clients.md", "testing.md")
"""One program each."""


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", (DOCS / "client.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def program_of(section: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL))


def topics_of(section: str) -> dict[str, int]:
    named = ",".join(re.findall(r"^<!-- topics: (.*) -->$", section, flags=re.MULTILINE))
    pairs = [one.strip().partition("=") for one in named.split(",") if one.strip()]
    return {name: int(partitions or 1) for name, _, partitions in pairs}


SECURED = "TLS and SASL"
"""It runs where the brokers are that have such listeners: in ``tests/broker/test_security.py``."""
PROGRAMS = {
    title: section for title, section in sections().items() if program_of(section) and title != SECURED
} | {page: (DOCS / page).read_text() for page in PAGES}


@pytest.mark.broker
@pytest.mark.parametrize("title", PROGRAMS)
def test_a_program_of_the_clients_pages_runs(title: str, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    for name, partitions in topics_of(PROGRAMS[title]).items():
        kafka.create_topic(name, partitions)
    program = tmp_path / "section.py"
    program.write_text(program_of(PROGRAMS[title]).replace("localhost:9092", kafka.bootstrap_servers))

    ran = subprocess.run(
        [sys.executable, "-W", "error", program],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=400,
    )

    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-5000:]


def test_the_pages_have_their_programs() -> None:
    assert list(PROGRAMS)[:2] == ["Connecting", "Producer"]
    assert all(program_of(PROGRAMS[page]) for page in PAGES)
