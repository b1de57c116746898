"""The types of the client, as the type checker of a user's project sees them: py.typed is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("user_program.py")


def mypy(program: Path) -> str:
    # In the folder of the program: the settings of this project are not those of a user.
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=cache", program.name]
    ran = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, timeout=500)
    return ran.stdout + ran.stderr


def test_mypy_finds_no_error_in_a_user_program_and_the_mistake_in_another(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.read_text())
    assert mypy(program) == "Success: no issues found in 1 source file\n"
    program.write_text(PROGRAM.read_text().replace("timeout=60.0", 'timeout="soon"'))
    assert 'Argument "timeout" to "flush" of "Producer" has incompatible type "str"' in mypy(program)
    # What it would return depends on whether there is a format.
    program.write_text(PROGRAM.read_text().replace('value_format="json", mode', "mode"))
    assert 'No overload variant of "read_columns" of "Consumer" matches argument type "str"' in mypy(program)
    program.write_text(
        PROGRAM.read_text().replace("1.0, value_format=", "1.0, value_format=None if group else ")
    )
    assert 'to "read" of "GroupConsumer" has incompatible type "ColumnFormat | None"' in mypy(program)
