"""Topics that tests create on embedded brokers, here on a `MockBroker`."""

from __future__ import annotations

import pytest

from spark_kafka_native.testing import MockBroker
from spark_kafka_native.testing.embedded_kafka import create_topic


@pytest.mark.parametrize(("factor", "requested"), [(None, -1), (1, 1), (3, 3)])
def test_a_topic_has_the_replicas_that_are_asked_for(factor: int | None, requested: int) -> None:
    """Without a number, those that the brokers choose."""
    with MockBroker(3) as broker:
        create_topic(broker.bootstrap_servers, "a", 2, replication_factor=factor)
        (request,) = broker.asked("CreateTopics")
    (topic,) = request.fields["topics"]
    assert (topic["name"], topic["num_partitions"], topic["replication_factor"]) == ("a", 2, requested)
