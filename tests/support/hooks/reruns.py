"""pytest hooks of the whole suite: run some failed tests again, and report that.

Tests wait for conditions, with deadlines of minutes. But some are about time itself (a session that ends, a
request that is late), and no bound on time holds on a machine that stops for seconds, as virtual ones do. So
a process looks at the clock all the while (a thread here would be late, too, where the client's threads
are). Where it came late by more than a test bears, nothing is known of a failure, and the test runs
again, with new fixtures. What fails while the clock was looked at in time has failed. At the end of the run
it is said which tests ran again, with what they had said.

Spark has such a bound of its own: a query fails if its Python process has not connected within ten seconds,
and no setting changes that. PySpark's imports, half a second's work, come before the connection, and nothing
of ours does. So that error says as much as a late clock of a machine that has too much to do; the clock need
not be late meanwhile.

Continuous integration gives a second chance besides (at most ``SECOND_CHANCES`` in each process): among
thousands of tests with threads, brokers and Spark, on an unknown machine, one may have met a race of
its own. What passes only then is a defect all the same, and is named as one. The process that hands out the
tests counts the rescues of all processes; more than ``SECOND_CHANCES`` fail the run.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache

import pytest
from _pytest.runner import runtestprotocol

LOOK_S = 0.02
STOOD_STILL_S = 1.0
"""What a test bears that is not marked ``timed(seconds)``."""
RUNS = 4
SHORT_S = 150.0
"""What took longer is not run again: four times a long test would be the time of all."""
SECOND_CHANCES = int(os.environ.get("SECOND_CHANCES", "0"))
_SECOND = pytest.StashKey[bool]()
_RESCUED = pytest.StashKey["Rescues"]()
_given = 0
_GAVE_UP = "Python worker failed to connect back"
_SAID = "ran again, as "
_RESCUE = "rescued"
_DEFECT = "it failed once: A DEFECT, of the test or of what it tests"


LOOK = f"""
import select, sys, time
latest_s = 0.0
while True:
    began = time.monotonic()
    asked, _, _ = select.select([sys.stdin], [], [], {LOOK_S})
    latest_s = max(latest_s, time.monotonic() - began - {LOOK_S})
    if asked:
        if not sys.stdin.readline():
            break
        print(latest_s, flush=True)
        latest_s = 0.0
"""


class Pace:
    """A process that looks at the clock. It ends with this one."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", "-c", LOOK]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.close)

    def latest_s(self) -> float:
        """How late it came at most since the last call, in seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


_pace = cache(Pace)


@pytest.hookimpl
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    again: list[tuple[str, str]] = []
    for run in range(1, RUNS + 1):
        pace = _pace()
        pace.latest_s()
        began = time.monotonic()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        latest_s = pace.latest_s()
        failed = [report for report in reports if report.failed]
        if not failed or run == RUNS or time.monotonic() - began > SHORT_S:
            break
        said = "\n".join(report.longreprtext for report in failed)
        why = _excuse(item, latest_s, said)
        if not why:
            break
        again.append((f"{_SAID}{why}", said))
        _forget(item)
    reports[-1].sections += again
    if again and not failed:
        reports[-1].sections.append((_RESCUE, again[-1][0].removeprefix(_SAID)))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class Rescues:
    """Counts the tests that passed only in a later run, by the reason for which they ran again."""

    def __init__(self) -> None:
        self.second_chances = self.stalls = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for title, why in report.sections:
            self.second_chances += title == _RESCUE and why == _DEFECT
            self.stalls += title == _RESCUE and why != _DEFECT

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.second_chances > SECOND_CHANCES:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def __str__(self) -> str:
        counts = f"{self.second_chances} after a failure, {self.stalls} after a stall."
        found = f"Rescued by a second run: {counts}"
        if self.second_chances > SECOND_CHANCES:
            found += f" More than {SECOND_CHANCES} after a failure fail the run."
        return found


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that hands out the tests hears of all of them
        config.stash[_RESCUED] = rescues = Rescues()
        config.pluginmanager.register(rescues)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(str(terminalreporter.config.stash[_RESCUED]))
    for nodeid, said, failure in _ran_again(terminalreporter):
        terminalreporter.write_line(f"{nodeid} {said}:")
        terminalreporter.write_line("    " + "\n    ".join(_excerpt(failure)))


def _excerpt(failure: str) -> list[str]:
    """The beginning of the error's message, which may be long, and the end of the whole."""
    lines = failure.splitlines()
    message = [number for number, line in enumerate(lines) if line.startswith("E  ")]
    last = range(max(0, len(lines) - 12), len(lines))
    return [lines[number] for number in sorted({*message[:12], *last})]


def _ran_again(reporter: pytest.TerminalReporter) -> Iterator[tuple[str, str, str]]:
    for reports in reporter.stats.values():
        for report in reports:
            for said, failure in getattr(report, "sections", ()):
                if said.startswith(_SAID):
                    yield report.nodeid, said, failure


def _excuse(item: pytest.Item, latest_s: float, said: str) -> str:
    """Why ``item``, which has failed and ``said`` so, may run again; empty if it may not."""
    if latest_s >= _bears_s(item):
        return f"the machine had stood still for {latest_s:.1f} s"
    if _GAVE_UP in said:
        return "a Python process of Spark's had not started in the 10 s that Spark gives it"
    if item.stash.get(_SECOND, False) or _given >= SECOND_CHANCES:
        return ""
    return _give_second(item)


def _give_second(item: pytest.Item) -> str:
    global _given
    _given += 1
    item.stash[_SECOND] = True
    return _DEFECT


def _bears_s(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timed")
    return float(mark.args[0]) if mark else STOOD_STILL_S


def _forget(item: pytest.Item) -> None:
    """Make the next run of ``item`` one with new fixtures, those of a module that failed included."""
    item._initrequest()  # type: ignore[attr-defined]
    for definitions in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]
        for definition in definitions:
            if definition.cached_result is not None and definition.cached_result[2] is not None:
                definition.finish(item._request)  # type: ignore[attr-defined]
