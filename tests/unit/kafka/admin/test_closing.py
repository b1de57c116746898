"""`Admin` and `Cluster`: what ends a call, and that nothing is asked after `close`."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator

import pytest
from support.brokers.scripted_broker import HangUp, ScriptedCluster, Silence
from support.consumer.reading import wait_until

from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.cluster_client import Cluster
from spark_kafka_native.kafka.config.client_config import ConsumerConfig, configs_from
from spark_kafka_native.kafka.errors import ClientClosedError, DeadlineExceededError, KafkaError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.transaction_admin import ListTransactionsRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0 = TopicPartition("a", 0)
WITHIN_S = 60


@pytest.fixture(params=[Silence, HangUp], ids=["silent", "hanging up"])
def cluster(request: pytest.FixtureRequest) -> Iterator[ScriptedCluster]:
    """It never answers two requests."""
    with ScriptedCluster(1) as running:
        running.create("a")
        running[1].on(ListTransactionsRequest, request.param)
        running[1].on(ListOffsetsRequest, request.param)
        yield running


def end_of(call: Callable[[], object], close: Callable[[], None], asked: Callable[[], object]) -> KafkaError:
    """What ``call`` raises in a thread when ``close`` comes once it has ``asked``."""
    raised: list[KafkaError] = []

    def work() -> None:
        try:
            call()
        except KafkaError as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wait_until("it has asked", asked)
    close()
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    return raised[0]


def test_a_call_of_an_admin_ends_when_it_is_closed(cluster: ScriptedCluster) -> None:
    admin = Admin(cluster.bootstrap_servers, default_api_timeout_ms=600_000)
    error = end_of(admin.list_transactions, admin.close, lambda: cluster[1].requests(ListTransactionsRequest))
    assert isinstance(error, ClientClosedError)
    connections = cluster[1].connections
    for call in (admin.list_topics, lambda: admin.describe_topics(["a"]), admin.list_groups):
        with pytest.raises(ClientClosedError, match="the client was closed"):
            call()
    assert cluster[1].connections == connections
    admin.close()


def test_a_call_of_a_cluster_ends_when_it_is_closed(cluster: ScriptedCluster) -> None:
    view = Cluster.connect(cluster.bootstrap_servers, default_api_timeout_ms=600_000)
    error = end_of(
        lambda: view.end_offsets([A0]), view.close, lambda: cluster[1].requests(ListOffsetsRequest)
    )
    assert isinstance(error, ClientClosedError)
    connections = cluster[1].connections
    for call in (view.brokers, lambda: view.leader("a", 0), lambda: view.connection(1), view.topics):
        with pytest.raises(ClientClosedError, match="the client was closed"):
            call()
    assert cluster[1].connections == connections


@pytest.mark.parametrize(
    "call",
    [
        lambda bootstrap, patient: Admin(bootstrap, **patient).describe_broker_configs(1, timeout=0.2),
        lambda bootstrap, patient: leader_without_metadata(bootstrap, **patient),
        lambda bootstrap, patient: Admin(bootstrap, **patient).list_groups(timeout=0.2),
        lambda bootstrap, patient: Admin(bootstrap, **patient).delete_records({("a", 0): 1}, timeout=0.2),
    ],
    ids=["describe_broker_configs", "leader", "every broker", "leaders"],
)
def test_the_time_that_a_call_has_counts_for_its_metadata_too(call: Callable[..., object]) -> None:
    with ScriptedCluster(1) as silent:
        silent[1].on(MetadataRequest, Silence)
        patient = {"default_api_timeout_ms": 3_600_000, "request_timeout_ms": 3_600_000}
        with pytest.raises(DeadlineExceededError):
            call(silent.bootstrap_servers, patient)


def test_the_cluster_id_that_is_known_is_not_asked_for_again() -> None:
    with ScriptedCluster(1) as cluster:
        with Cluster.connect(cluster.bootstrap_servers, metadata_max_age_ms=0) as view:
            known, asked = view.cluster_id, len(cluster[1].requests(MetadataRequest))
            assert known is not None
            cluster[1].on(MetadataRequest, Silence)
            assert view.cluster_id == known
        assert len(cluster[1].requests(MetadataRequest)) == asked


def leader_without_metadata(bootstrap: str, **settings: int) -> object:
    client, consumer = configs_from(bootstrap, dict(settings), ConsumerConfig)
    return Cluster(Router(client), consumer).leader("a", 0, timeout=0.2)


def test_a_router_that_was_given_stays_open(cluster: ScriptedCluster) -> None:
    with Admin(cluster.bootstrap_servers) as owner:
        Admin(owner.router).close()
        assert owner.list_topics() == ["a"]


def test_settings_beside_a_router_are_refused(cluster: ScriptedCluster) -> None:
    """They would be ignored: the router has its own."""
    with Admin(cluster.bootstrap_servers) as owner:
        with pytest.raises(TypeError, match="request_timeout_ms can't be given with it"):
            Admin(owner.router, request_timeout_ms=5)
        assert owner.list_topics() == ["a"]


def test_every_method_of_an_admin_takes_a_timeout(cluster: ScriptedCluster) -> None:
    methods = {
        name: one
        for name, one in inspect.getmembers(Admin, inspect.isfunction)
        if not name.startswith("_") and name != "close"
    }
    assert len(methods) > 30
    assert [name for name, one in methods.items() if "timeout" not in inspect.signature(one).parameters] == []
    with Admin(cluster.bootstrap_servers, default_api_timeout_ms=600_000) as admin:
        for timeout in (0.2, Deadline.after_ms(200)):
            with pytest.raises(DeadlineExceededError):
                admin.list_transactions(timeout=timeout)
