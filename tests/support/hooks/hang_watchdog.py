"""pytest hooks of the whole suite: a run in several processes ends, even if a test hangs or dies.

Each test has a deadline (``timeout`` in pyproject.toml), at which it fails. But a test may end its process,
or sit where no signal is heard. pytest-xdist replaces a process that died, and runs the same test again in
the new one, up to four times per process: here it is not replaced. And should nothing be heard of any test
for longer than every deadline, the run says what it was doing and ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SILENCE_S = 1200.0
"""Longer than any test may take."""
EXIT_S = 120.0
"""From the last line of the report to the end of the process."""
_WATCH = pytest.StashKey["_Watch"]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not _distributes(config):
        return
    if config.option.maxworkerrestart is None:
        config.option.maxworkerrestart = "0"
    config.stash[_WATCH] = watch = _Watch()
    config.pluginmanager.register(watch)
    threading.Thread(target=watch.run, name="never-hang", daemon=True).start()


def pytest_unconfigure(config: pytest.Config) -> None:
    watch = config.stash.get(_WATCH, None)
    if watch is not None:
        watch.over.set()
        # Threads that a test left running could keep the interpreter from ending.
        faulthandler.dump_traceback_later(EXIT_S, exit=True, file=sys.__stderr__)


def _distributes(config: pytest.Config) -> bool:
    """True in the process that hands out the tests."""
    return not hasattr(config, "workerinput") and bool(getattr(config.option, "numprocesses", None))


class _Watch:
    """Hears of each test that begins and ends, and keeps time."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._heard_at = time.monotonic()
        self._running: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._heard_at = time.monotonic()
        self._running[nodeid] = self._heard_at

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._heard_at = time.monotonic()
        self._running.pop(nodeid, None)

    def pytest_testnodeready(self) -> None:
        self._heard_at = time.monotonic()

    def pytest_testnodedown(self) -> None:
        self._heard_at = time.monotonic()

    def run(self) -> None:
        while not self.over.wait(min(5.0, SILENCE_S / 4)):
            if time.monotonic() - self._heard_at > SILENCE_S:
                self._give_up()

    def _give_up(self) -> None:
        now = time.monotonic()
        said = [f"\nNothing was heard of any test for {SILENCE_S:g} s: the run ends here. Not finished:"]
        said += [f"  {nodeid}, for {now - began:.0f} s" for nodeid, began in list(self._running.items())]
        said.append("Processes that were started:")
        ours = list(_descendants(os.getpid()))
        said += [f"  {pid} of {parent}: {command}" for pid, parent, command in ours]
        os.write(2, ("\n".join(said) + "\n").encode(errors="replace"))
        workers = [pid for pid, parent, _ in ours if parent == os.getpid()]
        for number in (signal.SIGABRT, signal.SIGKILL):  # the first makes them print their stacks
            for pid in workers:
                _send(pid, number)
            time.sleep(2)
        os._exit(3)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _descendants(root: int) -> Iterator[tuple[int, int, str]]:
    """(process, parent, command) of all below ``root``; nothing where there is no /proc."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            commands[int(folder.name)] = command[:160]
        except (OSError, ValueError):
            continue  # it has just ended
    waiting = [root]
    while waiting:
        above = waiting.pop()
        for pid in sorted(pid for pid, parent in parents.items() if parent == above and pid in commands):
            yield pid, above, commands[pid]
            waiting.append(pid)
