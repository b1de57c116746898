"""Hooks and fixtures: see `support.hooks` and `spark_kafka_native.testing.fixtures`."""

import os

import hypothesis
import hypothesis.core
import pytest
from support.hooks import hang_watchdog, reruns
from support.hooks.file_order import pytest_collection_modifyitems  # noqa: F401
from support.hooks.fresh_seeds import pytest_report_header, run_seed  # noqa: F401
from support.hooks.hang_watchdog import pytest_unconfigure  # noqa: F401
from support.hooks.interrupts import hear_interrupts
from support.hooks.leaks import pytest_runtest_call, pytest_runtest_setup, pytest_runtest_teardown  # noqa: F401
from support.hooks.reruns import pytest_runtest_protocol, pytest_terminal_summary  # noqa: F401
from support.hooks.spark_jvm import options

from spark_kafka_native.testing.fixtures import *  # noqa: F403


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    hear_interrupts()
    hang_watchdog.pytest_configure(config)
    reruns.pytest_configure(config)


os.environ.setdefault("SPARK_SUBMIT_OPTS", options())

# How long an example takes, or drawing it, says more of the machine than of us.
hypothesis.settings.register_profile(
    "patient",
    deadline=None,
    derandomize=False,  # also in continuous integration: each run tries examples of its own
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")
hypothesis.core.global_force_seed = run_seed()  # --hypothesis-seed goes before
