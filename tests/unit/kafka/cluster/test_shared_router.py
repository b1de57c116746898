"""Clients that share a router: settings beside it, and brokers that it does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster

from spark_kafka_native.kafka import Admin, Cluster, ConfigResource, Consumer, Producer, Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, ConfigError
from spark_kafka_native.kafka.model import TopicPartition


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as one:
        one.create("orders")
        yield one


@pytest.fixture
def router(cluster: ScriptedCluster) -> Iterator[Router]:
    one = Router(ClientConfig.from_properties({"bootstrap.servers": cluster.bootstrap_servers}))
    yield one
    one.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda router, **given: Producer(router=router, **given),
        lambda router, **given: Consumer(topic="orders", router=router, **given),
        lambda router, **given: Cluster.connect(router=router, **given),
    ],
)
def test_settings_beside_a_router_are_refused(router: Router, make: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"^client_id, security: a router that is given"):
        make(router, client_id="mine", protocol="SSL")
    with pytest.raises(ConfigError, match=r"^bootstrap_servers: a router that is given"):
        make(router, bootstrap="elsewhere:9092")
    make(router, client_id="spark-kafka-native").close()  # as the router has it


def test_a_consumer_asks_by_the_router_that_it_is_given_and_leaves_it_open(router: Router) -> None:
    assert "orders" not in router.snapshot.topics
    with Consumer(topic="orders", router=router) as consumer:
        assert "orders" in router.snapshot.topics
        assert consumer.lag() == {TopicPartition("orders", 0): 0}
    assert "orders" in router.metadata(("orders",), refresh=True).topics


def test_a_consumer_of_no_partition_is_refused(router: Router) -> None:
    with pytest.raises(ValueError, match="names none"):
        Consumer(topic="orders", partitions=[], router=router)


def test_a_broker_that_is_not_there_is_named_at_once(cluster: ScriptedCluster) -> None:
    with (
        Admin(cluster.bootstrap_servers, default_api_timeout_ms=600_000) as admin,
        pytest.raises(BrokerError, match=r"broker 99.*no such broker just now; there are 1") as raised,
    ):
        admin.describe_configs(ConfigResource.broker(99))
    assert raised.value.error_code is ErrorCode.BROKER_NOT_AVAILABLE
