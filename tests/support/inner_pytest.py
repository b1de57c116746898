"""pytest in a process of its own, with one file of tests: for the tests of our hooks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_pytest(
    folder: Path, conftest: str, tests: str, *options: str, chances: str = "0"
) -> subprocess.CompletedProcess[str]:
    """Run ``tests`` (none: the files of ``folder``) in a session of its own, which may be stopped."""
    (folder / "conftest.py").write_text(conftest)
    if tests:
        (folder / "test_some.py").write_text(tests)
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:randomly -p no:cacheprovider\nmarkers = timed: x\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options],
        cwd=folder,
        env={**os.environ, "SECOND_CHANCES": chances},
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
    )
