"""A scripted group of one topic, and a member that commits in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup
from support.group.committing import PARTITIONS, Committing


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    with ScriptedCluster(2) as cluster:
        cluster.create("a", partitions=3)
        yield ScriptedGroup(cluster, PARTITIONS)


@pytest.fixture
def member(group: ScriptedGroup) -> Iterator[Committing]:
    made = Committing(group)
    yield made
    made.queue.stop()
    made.router.close()
