"""pytest hook of the whole suite: a test that leaves a mock broker, a thread or a socket behind fails.

The threads before the fixtures of a test are compared with those after them. Some threads of the client end
with what they wait for (a name lookup, a connection attempt), and routers stay open for the whole process on
purpose. So only these count: threads of mock brokers, which `close` joins, and threads that would keep the
interpreter from ending (not daemons). Files that are left open fail their test as well, by `ResourceWarning`
(pyproject.toml).

Sockets are compared the same way, where the system shows them (Linux). Those of the routers that a process
keeps warm are closed first. One that only a garbage collection would close is not left behind: tests drop
connections that they have made, with the tracebacks of the errors that they expect. A connection to another
process does not count: a client of an earlier test may still look for its broker, and find one of the tests
beside these at its port. A test that fails is not asked: its traceback is kept, and with it what the test had
open.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from spark_kafka_native.kafka.cluster import router

GRACE_S = 5.0
"""A thread may be on its way out when its test ends."""
SOCKETS_GRACE_S = 30.0
"""A thread of an earlier test may try to connect meanwhile, until its attempt times out."""
FROZEN_GRACE_S = 0.5
"""Then frozen objects are collected, too. Each collection takes longer from there on."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[_BEFORE] = set(threading.enumerate())
    item.stash[_SOCKETS_BEFORE] = _open_sockets()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    try:
        return (yield)
    except BaseException:
        del item.stash[_BEFORE]
        raise


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    result = yield
    before = item.stash.get(_BEFORE, None)
    if before is not None and not _has_wide_fixtures(item):
        left = _left_behind(before)
        assert not left, f"the test left threads behind: {', '.join(sorted(left))}"
        left = _left_open(item.stash[_SOCKETS_BEFORE])
        assert not left, f"the test left sockets open: {', '.join(sorted(left))}"
    return result


_BEFORE = pytest.StashKey[set[threading.Thread]]()
_SOCKETS_BEFORE = pytest.StashKey[set[str]]()


def _has_wide_fixtures(item: pytest.Item) -> bool:
    """True if a fixture of it may live on: the threads of a session's broker end with the session."""
    found = getattr(item, "_fixtureinfo", None)
    definitions = [] if found is None else found.name2fixturedefs.values()
    return any(
        one.scope != "function" and not one.func.__module__.startswith("_pytest.")
        for several in definitions
        for one in several
    )


def _left_behind(before: set[threading.Thread]) -> list[str]:
    until = time.monotonic() + GRACE_S
    while found := [one.name for one in threading.enumerate() if one not in before and _counts(one)]:
        if time.monotonic() > until:
            return found
        time.sleep(0.01)
    return []


def _counts(thread: threading.Thread) -> bool:
    return thread.name.startswith("mock-broker-") or not thread.daemon


def _open_sockets() -> set[str]:
    """This process's sockets, such as ``socket:[4711]``; none where the system shows none."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir() if _SHOWS_DESCRIPTORS else ():
        with contextlib.suppress(OSError):  # closed meanwhile, as that of the folder itself
            found.add(os.readlink(descriptor))
    return {name for name in found if name.startswith("socket:")}


_SHOWS_DESCRIPTORS = Path("/proc/self/fd").is_dir()


class _Tcp:
    """The TCP sockets of this machine, as the kernel writes them."""

    def __init__(self) -> None:
        lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
        self._ends = {f"socket:[{words[9]}]": (words[1], words[2], words[3]) for words in lines}

    def ends_of(self, name: str) -> str:
        """Its addresses and its state."""
        return " ".join(self._ends.get(name, ("(no TCP)",)))

    def is_to_another_process(self, name: str, ours: set[str]) -> bool:
        """True if it is connected, and neither its other end nor what listens there is among ``ours``."""
        local, remote, state = self._ends.get(name, ("", "", ""))
        port = remote.rpartition(":")[2]
        here = {self._ends[one] for one in ours if one in self._ends}
        listens = any(place.endswith(f":{port}") and how == _LISTEN for place, _, how in here)
        return state == _ESTABLISHED and not listens and not any(one[:2] == (remote, local) for one in here)


_ESTABLISHED, _LISTEN = "01", "0A"


def _left_open(before: set[str]) -> list[str]:
    until = time.monotonic() + SOCKETS_GRACE_S
    frozen_until = time.monotonic() + FROZEN_GRACE_S
    while found := _open_sockets() - before:
        router._warm.clear()
        if time.monotonic() > frozen_until:  # The first task of a process freezes what its test has open.
            gc.unfreeze()
        gc.collect()
        ours, tcp = _open_sockets(), _Tcp()
        found = {name for name in found & ours if not tcp.is_to_another_process(name, ours)}
        if not found or time.monotonic() > until:
            return [f"{name} {tcp.ends_of(name)}" for name in found]
        time.sleep(0.01)
    return []
