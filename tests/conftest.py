"""Hooks and fixtures: see `support.hooks` and `spark_kafka_native.testing.fixtures`."""

import os

import hypothesis
from support.hooks.file_order import pytest_collection_modifyitems  # noqa: F401
from support.hooks.hang_watchdog import pytest_configure, pytest_unconfigure  # noqa: F401
from support.hooks.reruns import pytest_runtest_protocol, pytest_terminal_summary  # noqa: F401
from support.hooks.spark_jvm import options

from spark_kafka_native.testing.fixtures import *  # noqa: F403

os.environ.setdefault("SPARK_SUBMIT_OPTS", options())

# How long an example takes, or drawing it, says more of the machine than of us.
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")
