"""Waits that end because a thread wakes them, and for no other reason."""

from __future__ import annotations

import re

import pytest

from spark_kafka_native.kafka.producer.accumulating import memory
from spark_kafka_native.kafka.runtime import waiting

HOUR_S = 3_600.0
OF_INTERRUPTS = re.compile("interrupt|signal|chaos|exit")
"""In the names of modules: an interrupt may keep a thread from waking another, which then looks by itself."""


@pytest.fixture(autouse=True)
def without_naps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait look again by themselves after a second, which would hide a lost wake-up. Here they
    do so after an hour."""
    interrupted = OF_INTERRUPTS.search(request.path.name) or hasattr(request.module, "run_at")
    if not interrupted:
        monkeypatch.setattr(waiting, "MAX_WAIT_S", HOUR_S)
        monkeypatch.setattr(memory, "MAX_NAP_S", HOUR_S)
