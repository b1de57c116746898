"""`Cluster` and `Connection` as tools of their own, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from spark_kafka_native.kafka import (
    BrokerError,
    Cluster,
    Connection,
    CorruptRecordError,
    Deadline,
    DeadlineExceededError,
    ErrorCode,
    OffsetAt,
    OffsetOutOfRangeError,
    Producer,
    TopicPartition,
    UnsupportedVersionError,
)
from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.consumer import fetch_once
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest

pytestmark = pytest.mark.broker
START = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def cluster(kafka: Any) -> Iterator[Cluster]:
    with Cluster.connect(kafka.bootstrap_servers, fetch_max_wait_ms=20) as found:
        yield found


@pytest.fixture
def filled(kafka: Any, topic: str) -> str:
    """Ten records a second apart in partition 0, none in partition 1."""
    kafka.create_topic(topic, 2)
    with Producer(kafka.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=START + number * 1000)
    return topic


def test_what_there_is(cluster: Cluster, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_policy, "KNOWN_TOPIC_WAIT_MS", 1_000)  # for a missing partition
    [broker] = cluster.brokers()
    assert cluster.controller() == broker
    assert cluster.cluster_id
    assert filled in cluster.topics()
    assert [p.leader for p in cluster.partitions(filled)] == [broker.node_id] * 2
    assert cluster.leader(filled, 1) == cluster.leader(TopicPartition(filled, 1)) == broker
    assert repr(cluster) == f"<Cluster {cluster.cluster_id}: 1 brokers>"
    with pytest.raises(BrokerError, match="has 2 partitions"):
        cluster.leader(filled, 2)
    with pytest.raises(ValueError, match="which partition"):
        cluster.leader(filled)
    cluster.refresh()
    cluster.refresh([filled], timeout=30)
    response = cluster.send(MetadataRequest(topics=[]), broker.node_id)
    assert response.cluster_id == cluster.cluster_id == cluster.send(MetadataRequest(topics=[])).cluster_id


def test_brokers_are_asked_for_anew_once_they_are_old(kafka: Any) -> None:
    with Cluster.connect(kafka.bootstrap_servers, metadata_max_age_ms=0) as cluster:
        before = cluster.router.snapshot.generation
        cluster.brokers()
        assert cluster.router.snapshot.generation > before
    with Cluster.connect(kafka.bootstrap_servers) as cluster:
        before = cluster.router.snapshot.generation
        cluster.brokers()
        assert cluster.router.snapshot.generation == before


def test_offsets(cluster: Cluster, filled: str) -> None:
    full, empty = TopicPartition(filled, 0), TopicPartition(filled, 1)
    assert cluster.offsets(filled, 0) == (0, 10)
    assert cluster.beginning_offsets([full, empty]) == {full: 0, empty: 0}
    assert cluster.end_offsets([full, empty]) == {full: 10, empty: 0}
    assert cluster.list_offset(filled, 0).offset == 10
    assert cluster.list_offset(filled, 0, OffsetAt.EARLIEST).offset == 0
    assert cluster.list_offset(filled, 0, "max_timestamp").offset == 9
    found = cluster.list_offset(filled, 0, START + 3_500)
    assert (found.offset, found.timestamp_ms) == (4, START + 4_000)
    since = datetime.fromtimestamp(START / 1000, UTC) + timedelta(seconds=7)
    found_for = cluster.offsets_for_times({full: since, empty: START})
    assert (found_for[full].offset, found_for[empty].offset) == (7, None)


def test_a_single_fetch(cluster: Cluster, filled: str) -> None:
    fetched = cluster.fetch(filled, 0, 4)
    assert fetched.columns.value is not None
    assert fetched.columns.value.to_pylist() == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert fetched.valid.tolist() == [True] * 6
    assert (fetched.from_offset, fetched.next_offset, fetched.high_watermark) == (4, 10, 10)
    assert (fetched.log_start_offset, fetched.throttle_time_ms) == (0, 0)
    at_end = cluster.fetch(filled, 0, 10)
    assert (len(at_end.columns), at_end.next_offset, at_end.valid.tolist()) == (0, 10, [])
    with pytest.raises(OffsetOutOfRangeError, match=r"it has \[0, 10\)"):
        cluster.fetch(filled, 0, 11)
    with pytest.raises(ValueError, match="negative"):
        cluster.fetch(filled, 0, -1)
    with pytest.raises(BrokerError) as raised:
        cluster.fetch("no-such-topic-here", 0, 0, timeout=20)
    assert raised.value.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_each_record_tells_whether_its_batch_is_valid(
    kafka: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.create_topic(topic, 1)
    for _ in range(2):
        with Producer(kafka.bootstrap_servers, linger_ms=100) as producer:
            for number in range(3):
                producer.send(topic, b"value %d" % number)
    read = fetch_once.read_fetch

    def damaged(*args: Any) -> Any:
        for tp, data in read(*args):
            records = bytearray(data.records)
            records[records.rindex(b"value 2")] ^= 1
            yield tp, replace(data, records=memoryview(records))

    monkeypatch.setattr(fetch_once, "read_fetch", damaged)
    with Cluster.connect(kafka.bootstrap_servers) as strict, pytest.raises(CorruptRecordError, match=topic):
        strict.fetch(topic, 0, 0)
    with Cluster.connect(kafka.bootstrap_servers, check_crcs=False) as relaxed:
        fetched = relaxed.fetch(topic, 0, 1)
    assert fetched.columns.offset is not None
    assert np.array_equal(fetched.columns.offset, [1, 2, 3, 4, 5])
    assert fetched.valid.tolist() == [True, True, False, False, False]


def test_a_connection_of_ones_own(kafka: Any) -> None:
    address = kafka.bootstrap_servers.split(",")[0]
    connection = Connection.open(address, deadline=Deadline.after_ms(30_000))
    try:
        ranges = connection.api_versions()
        low, high = ranges[FetchRequest.api_key]
        assert connection.choose_api_version(FetchRequest) == min(high, FetchRequest.versions[1])
        assert connection.choose_api_version(FetchRequest.api_key) == high
        assert connection.choose_api_version(FetchRequest, 4, 11) == 11
        with pytest.raises(UnsupportedVersionError, match=f"speaks versions {low} to {high} of API key 1"):
            connection.choose_api_version(FetchRequest, high + 1, high + 2)
        with pytest.raises(UnsupportedVersionError, match="does not offer API key 9999"):
            connection.choose_api_version(9999, 0, 1)
        assert connection.send(MetadataRequest(topics=[]), deadline=Deadline.after_ms(30_000)).brokers
    finally:
        connection.close()


def test_a_cluster_that_is_not_there(kafka: Any) -> None:
    with pytest.raises(DeadlineExceededError):
        Cluster.connect("localhost:1", timeout=0.5)
