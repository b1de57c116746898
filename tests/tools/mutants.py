"""Mutation testing, run by hand: `make mutants`, or `python tests/tools/mutants.py --help`.

mutmut changes one thing at a time in a copy of the package (a comparison, a bound, an argument, a returned
value) and runs the tests that reach the changed function. A mutant that no test notices has survived, and is
shown as a diff. What mutmut leaves alone: decorated functions (properties), constants of modules and classes.

Here stands which modules are worth it and which tests know them, and what mutmut lacks: a sample, and a limit
on the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "spark_kafka_native"

AREAS = {
    "kafka/records": (
        "tests/unit/kafka/records",
        "tests/property/test_records_hostile.py",
        "tests/property/test_records_roundtrip.py",
        "tests/property/test_decode_record_sets.py",
        "tests/property/test_transactions.py",
    ),
    "kafka/protocol": ("tests/unit/kafka/protocol", "tests/property/test_messages.py"),
    "kafka/consumer": ("tests/unit/kafka/consumer",),
    "kafka/producer": ("tests/unit/kafka/producer",),
    "kafka/cluster": ("tests/unit/kafka/cluster", "tests/unit/kafka/consumer"),
    "kafka/network": ("tests/unit/kafka/network", "tests/unit/kafka/runtime"),
    "kafka/runtime": ("tests/unit/kafka/runtime", "tests/unit/kafka/network"),
    "kafka/security": ("tests/unit/kafka/security", "tests/unit/kafka/network"),
    "kafka/observe": ("tests/unit/kafka/observe",),
    "kafka/config": ("tests/unit/kafka/config",),
    "kafka/group": ("tests/unit/kafka",),
    "spark/read": ("tests/unit/spark/read",),
    "spark/write": ("tests/unit/spark/write",),
    "spark": ("tests/unit/spark",),
}
"""The tests that know a folder's modules; the first that fits counts."""

MODULES = (
    "kafka/records/decode.py",
    "kafka/records/batch.py",
    "kafka/records/scan.py",
    "kafka/consumer",
    "kafka/producer/sending",
    "kafka/cluster/router.py",
    "kafka/network/connection.py",
    "kafka/network/pipeline.py",
    "spark/read",
    "spark/write",
)
"""The default modules to mutate: a mistake there loses, duplicates or reorders records."""

IGNORED = [r"_LOG\.", r'^\s*f?"[^"]*",?\)?$', r'raise \w+\(f?"[^"]*"\)', r"\bassert "]
"""Lines left alone: a log line or a message in other words is no fault, and an assertion is a test itself."""

PYTEST_ARGUMENTS = [
    *("-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    *("-m", "not soak and not broker and not spark"),
    # They interrupt at each step, and mutmut's wrappers have steps of their own.
    *("-k", "not interrupt"),
]

NOT_RUN, SURVIVED, KILLED, UNTESTED, TIMED_OUT = "not run", "survived", "killed", "no test", "timed out"
_OUTCOMES = {
    None: NOT_RUN,
    0: SURVIVED,
    5: UNTESTED,
    33: UNTESTED,
    24: TIMED_OUT,
    36: TIMED_OUT,
    152: TIMED_OUT,
}
"""By mutmut's exit codes; any other is a test that failed or a process that died."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add(
        "--module",
        action="append",
        help="a file or folder of the package (kafka/records/batch.py); may be repeated",
    )
    add("--tests", action="append", help="files or folders of tests, instead of those that know the modules")
    add("--sample", type=int, help="as many mutants, drawn at random (default: all)")
    add("--seed", type=int, default=1, help="of the sample")
    add("--minutes", type=float, help="stop then, with what is known (default: no limit)")
    add("--processes", type=int, default=os.cpu_count() or 1)
    add("--keep", action="store_true", help="leave the copy, for `mutmut browse` in it")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    modules = [find_module(name) for name in arguments.module or MODULES]
    tests = arguments.tests or sorted({test for module in modules for test in tests_of(module)})
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        copy_project(folder, modules, tests)
        make_mutants(folder, arguments.processes)
        names = sorted(read_outcomes(folder))
        if not names or not is_measured(folder):
            sys.exit("there is nothing to change, or the tests don't pass: see above")
        if arguments.sample is not None and arguments.sample < len(names):
            names = random.Random(arguments.seed).sample(names, arguments.sample)
        run_mutants(folder, arguments.processes, names, arguments.minutes)
        report(folder, names)
    finally:
        if arguments.keep:
            print(f"the copy: {folder}")
        else:
            shutil.rmtree(folder)


def find_module(name: str) -> Path:
    """Return the file or folder of the package that ``name`` means, relative to the package."""
    path = Path(name.removeprefix(f"{PACKAGE}/"))
    if not (ROOT / PACKAGE / path).exists():
        sys.exit(f"there is no {PACKAGE}/{path}")
    return path


def tests_of(module: Path) -> tuple[str, ...]:
    """Return the tests that know ``module``."""
    return next((tests for area, tests in AREAS.items() if module.is_relative_to(area)), ("tests/unit",))


def copy_project(folder: Path, modules: list[Path], tests: list[str]) -> None:
    """Copy the package and its tests, and tell mutmut what to do with them."""
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in (PACKAGE, "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    # It is on the path of the mutants' Python, which would not look again for a folder that it missed.
    (folder / "mutants").mkdir()
    settings = {
        "source_paths": [PACKAGE],
        "only_mutate": [f"{PACKAGE}/{module}" + ("" if module.suffix else "/*") for module in modules],
        "do_not_mutate_patterns": IGNORED,
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": PYTEST_ARGUMENTS,
    }
    # A JSON list of strings is one of TOML, too.
    section = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    project = (ROOT / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(f"{project}\n[tool.mutmut]\n{section}")


def make_mutants(folder: Path, processes: int) -> None:
    """Have the mutants made, and measured which tests reach which functions and how long they take."""
    # No mutant has that name: mutmut would run the tests a few times more and then do nothing.
    process = start_mutmut(folder, processes, ["none"])
    try:
        while process.poll() is None and not is_measured(folder):
            time.sleep(0.2)
    finally:
        kill(process)


def is_measured(folder: Path) -> bool:
    """True if mutmut has written down which tests reach which functions."""
    try:
        return bool(json.loads((folder / "mutants/mutmut-stats.json").read_text()))
    except (FileNotFoundError, ValueError):  # not yet, or not all of it
        return False


def run_mutants(folder: Path, processes: int, names: list[str], minutes: float | None) -> None:
    """Run the mutants called ``names``, for as long as there is time."""
    process = start_mutmut(folder, processes, names)
    try:
        process.wait(None if minutes is None else 60 * minutes)
    except subprocess.TimeoutExpired:
        print("\nthe time is up")
    finally:
        kill(process)


def start_mutmut(folder: Path, processes: int, names: list[str]) -> subprocess.Popen[bytes]:
    """Start mutmut with as many ``processes`` in a group of its own."""
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(processes), *names]
    # Tests that start a Python of their own are to find the mutants, too.
    environment = os.environ | {"PYTHONPATH": str(folder / "mutants"), "TEST_SEED": "0", "SEED_SECONDS": "0"}
    return subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End mutmut and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_outcomes(folder: Path) -> dict[str, str]:
    """Return what became of each mutant, by mutmut's name for it."""
    outcomes: dict[str, str] = {}
    for path in folder.glob("mutants/**/*.py.meta"):
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            outcomes[name] = _OUTCOMES.get(code if code is None or code >= 0 else -code, KILLED)
    return outcomes


def report(folder: Path, names: list[str]) -> None:
    """Print the survivors as diffs, then the score of each module."""
    outcomes = read_outcomes(folder)
    scores: dict[str, Counter[str]] = {}
    for name in names:
        outcome = outcomes[name]
        scores.setdefault(module_of(name), Counter())[outcome] += 1
        if outcome in (SURVIVED, UNTESTED):
            command = [sys.executable, "-m", "mutmut", "show", name]
            shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            print(f"\n{shown.stdout}", end="")
    print(f"\n{'module':50}{'mutants':>9}{'noticed':>9}{SURVIVED:>9}{UNTESTED:>9}{NOT_RUN:>9}{'score':>7}")
    for module in sorted(scores):
        print_score(module, scores[module])
    print_score("all", sum(scores.values(), Counter[str]()))


def module_of(name: str) -> str:
    """Return the module of a mutant: of ``package.module.x_function__mutmut_3``, or ``xǁClassǁmethod``."""
    return re.sub(r"\.x[_ǁ][^.]*$", "", name).removeprefix(f"{PACKAGE}.")


def print_score(module: str, counts: Counter[str]) -> None:
    noticed = counts[KILLED] + counts[TIMED_OUT]
    ran = counts.total() - counts[NOT_RUN]
    score = f"{noticed / ran:.0%}" if ran else "-"
    print(
        f"{module:50}{counts.total():9}{noticed:9}{counts[SURVIVED]:9}{counts[UNTESTED]:9}"
        f"{counts[NOT_RUN]:9}{score:>7}"
    )


if __name__ == "__main__":
    main()
