"""pytest hook of the whole suite: a test that leaves a mock broker or a thread of its own behind fails.

The threads before the fixtures of a test are compared with those after them. Some threads of the client end
with what they wait for (a name lookup, a connection attempt), and routers stay open for the whole process on
purpose. So only these count: threads of mock brokers, which `close` joins, and threads that would keep the
interpreter from ending (not daemons). Files that are left open fail their test as well, by `ResourceWarning`
(pyproject.toml).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import pytest

GRACE_S = 5.0
"""A thread may be on its way out when its test ends."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[_BEFORE] = set(threading.enumerate())
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    result = yield
    before = item.stash.get(_BEFORE, None)
    if before is not None and not _has_wide_fixtures(item):
        left = _left_behind(before)
        assert not left, f"the test left threads behind: {', '.join(sorted(left))}"
    return result


_BEFORE = pytest.StashKey[set[threading.Thread]]()


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
