"""A check in a forked child says no where it is false, raises, ends its process or hangs."""

from __future__ import annotations

import os
import time

import pytest
from support.forked_child import holds_in_forked_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def test_the_result_is_that_of_the_child() -> None:
    parent = os.getpid()
    assert holds_in_forked_child(lambda: os.getppid() == parent)
    assert not holds_in_forked_child(lambda: os.getpid() == parent)


def test_an_error_is_printed_and_counts_as_false(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> bool:
        raise ValueError("in the child")

    assert not holds_in_forked_child(fail)
    assert "ValueError: in the child" in capfd.readouterr().err


def test_a_child_that_hangs_is_killed() -> None:
    assert not holds_in_forked_child(lambda: time.sleep(600) or True, seconds=0.2)
