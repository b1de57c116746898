"""`Cluster`: its connections end with it, and its offsets are those of its settings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from support.brokers.scripted_broker import HangUp, ScriptedCluster, values_of

from spark_kafka_native.kafka import Cluster, Router, TopicPartition, cluster_client
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.errors import ClientClosedError, KafkaError
from spark_kafka_native.kafka.model import OffsetAt
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def brokers() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2) as running:
        running.create("t", partitions=2)
        yield running


def test_a_cluster_that_does_not_answer_leaves_no_connection_behind(
    brokers: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Router] = []

    class Seen(Router):
        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(*given, **settings)
            made.append(self)

    monkeypatch.setattr(cluster_client, "Router", Seen)
    for broker in brokers.brokers.values():
        broker.on(MetadataRequest, HangUp)
    with pytest.raises(KafkaError) as raised:
        Cluster.connect(brokers.bootstrap_servers, timeout=0.1, retry_backoff_ms=5)
    assert not isinstance(raised.value, ClientClosedError)
    [router] = made
    with pytest.raises(ClientClosedError):
        router.metadata(())


def test_a_shared_router_outlives_a_cluster(brokers: ScriptedCluster) -> None:
    router = Router(ClientConfig.from_properties({"bootstrap.servers": brokers.bootstrap_servers}))
    try:
        Cluster.connect(router=router).close()
        with Cluster.connect(router=router) as cluster:
            assert [broker.node_id for broker in cluster.brokers()] == [1, 2]
        assert router.metadata(("t",)).topic("t").partitions.keys() == {0, 1}
    finally:
        router.close()


def test_a_cluster_ends_with_its_block(brokers: ScriptedCluster) -> None:
    with Cluster.connect(brokers.bootstrap_servers) as cluster:
        assert cluster.topics() == ("t",)
    with pytest.raises(ClientClosedError):
        cluster.topics()


@pytest.mark.parametrize(
    ("when", "place"),
    [
        (1_700_000_000_000, OffsetAt.timestamp(1_700_000_000_000)),
        (0, OffsetAt.timestamp(0)),
        (OffsetAt.LATEST, OffsetAt.LATEST),
        ("earliest", OffsetAt.EARLIEST),
        ("max_timestamp", OffsetAt.MAX_TIMESTAMP),
        (datetime(1970, 1, 2, tzinfo=UTC), OffsetAt.timestamp(86_400_000)),
    ],
    ids=str,
)
def test_a_number_is_a_time_and_no_offset(
    monkeypatch: pytest.MonkeyPatch, when: Any, place: OffsetAt
) -> None:
    asked: list[dict[TopicPartition, OffsetAt]] = []

    def list_offsets(_router: Any, places: Any, **_: Any) -> dict[TopicPartition, int]:
        asked.append(places)
        return dict.fromkeys(places, 9)

    monkeypatch.setattr(cluster_client, "list_offsets", list_offsets)
    cluster = Cluster(Router(ClientConfig(bootstrap_servers=("a:1",))), ConsumerConfig())
    found: Any = cluster.list_offset("t", 1, when)
    assert found == 9
    cluster.offsets_for_times({T0: when, T1: "latest"})
    assert asked == [{T1: place}, {T0: place, T1: OffsetAt.LATEST}]
    with pytest.raises(TypeError, match="not True"):
        cluster.list_offset("t", 1, True)


@pytest.mark.parametrize("node_id", [None, 1, 2])
def test_a_request_goes_to_the_broker_that_is_named_or_to_any(
    brokers: ScriptedCluster, node_id: int | None
) -> None:
    with Cluster.connect(brokers.bootstrap_servers) as cluster:
        before = [len(broker.requests(MetadataRequest)) for broker in brokers.brokers.values()]
        for _ in range(9):
            assert cluster.send(MetadataRequest(topics=[]), node_id, timeout=60).topics == []
        after = [len(broker.requests(MetadataRequest)) for broker in brokers.brokers.values()]
    more = [now - then for now, then in zip(after, before, strict=True)]
    assert sum(more) == 9
    assert node_id is None or more[node_id - 1] == 9


def test_a_leader_is_that_of_the_partition(brokers: ScriptedCluster) -> None:
    brokers.logs[T0].leader, brokers.logs[T1].leader = 1, 2
    with Cluster.connect(brokers.bootstrap_servers) as cluster:
        partitions: list[tuple[Any, ...]] = [("t", 0), ("t", 1), (T1,), (("t", 0),)]
        assert [cluster.leader(*one).node_id for one in partitions] == [1, 2, 2, 1]
        with pytest.raises(ValueError, match="which partition"):
            cluster.leader("t")


@pytest.mark.parametrize(("level", "end"), [("read_uncommitted", 3), ("read_committed", 1)])
def test_the_end_of_a_log_is_that_of_the_isolation_level(
    brokers: ScriptedCluster, level: str, end: int
) -> None:
    """Records of an open transaction are behind the end of a reader of committed ones."""
    brokers.logs[T0].append([b"0", b"1", b"2"])
    brokers.logs[T0].last_stable_offset = 1
    with Cluster.connect(brokers.bootstrap_servers, isolation_level=level) as cluster:
        assert cluster.offsets("t", 0) == (0, end)
        assert cluster.end_offsets([T0, T1]) == {T0: end, T1: 0}
        assert cluster.list_offset("t", 0).offset == end
        assert cluster.beginning_offsets([T0]) == {T0: 0}


def test_brokers_are_asked_for_again_once_they_are_old(brokers: ScriptedCluster) -> None:
    with Cluster.connect(brokers.bootstrap_servers, metadata_max_age_ms=0) as always:
        before = len(brokers.mock.asked("Metadata"))
        controller = always.controller()
        assert controller in always.brokers()
        assert len(brokers.mock.asked("Metadata")) == before + 2
    with Cluster.connect(brokers.bootstrap_servers) as seldom:
        before = len(brokers.mock.asked("Metadata"))
        assert seldom.controller() in seldom.brokers()
        assert len(brokers.mock.asked("Metadata")) == before


def test_a_leader_that_newer_metadata_lack_is_looked_up_again(
    brokers: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may have refreshed them in between: it was a KeyError."""
    with Cluster.connect(brokers.bootstrap_servers, retry_backoff_ms=5) as cluster:
        leader, found = cluster._router.leader, list[int]()

        def look(*given: Any, **named: Any) -> Any:
            led = leader(*given, **named)
            found.append(led.node_id)
            return led._replace(node_id=99) if len(found) == 1 else led

        monkeypatch.setattr(cluster._router, "leader", look)
        assert [cluster.leader(T0).node_id] == found[1:]


def test_a_fetch_follows_the_leader_to_another_broker(brokers: ScriptedCluster) -> None:
    """The broker that led the partition refuses, and the metadata of before name no other."""
    brokers.logs[T0].append([b"0", b"1"])
    with Cluster.connect(
        brokers.bootstrap_servers, retry_backoff_ms=5, default_api_timeout_ms=10_000
    ) as cluster:
        former = cluster.leader(T0).node_id
        brokers.logs[T0].leader = 3 - former
        fetched = cluster.fetch("t", 0, 1)
    assert (values_of(fetched.columns), fetched.next_offset) == ([b"1"], 2)
    assert [one.node_id for one in brokers.mock.asked("Fetch")] == [former, 3 - former]
