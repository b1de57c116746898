"""A fetch without sockets."""

import pytest
from support.consumer.simulated_fetch import World

from spark_kafka_native.kafka.consumer import fetcher


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(fetcher, "wait_for_any", made.wait_for_any)
    return made
