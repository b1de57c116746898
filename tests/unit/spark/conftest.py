"""Fixtures of delegation tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tokens import Clocks, Cluster

from spark_kafka_native.spark import delegation_tokens


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    running = Cluster()
    monkeypatch.setattr("spark_kafka_native.kafka.admin.admin.Admin", running.admin)
    return running


@pytest.fixture
def clocks(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    both = Clocks(cluster)
    monkeypatch.setattr(delegation_tokens, "time", both)
    return both


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The session's local folder."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/other")
    return tmp_path
