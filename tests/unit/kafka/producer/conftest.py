"""Clusters of scripted brokers that take batches in."""

import pytest
from support.brokers.produce_cluster import (
    ProduceCluster,
)


@pytest.fixture
def cluster():
    with ProduceCluster() as running:
        running.create("t")
        yield running


@pytest.fixture
def two_brokers():
    with ProduceCluster(2) as running:
        running.create("t")
        yield running
