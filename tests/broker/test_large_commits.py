"""Commits of which the records would not fit into one batch of ``__consumer_offsets`` (1 MiB): the names of
groups and the metadata here have 4,000 bytes, so that 300 partitions suffice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafka_native.kafka import (
    Admin,
    BrokerError,
    ClientConfig,
    ErrorCode,
    GroupConsumer,
    OffsetToCommit,
    Producer,
    Router,
    TopicPartition,
    TransactionalProducer,
    TransactionConfig,
    committed_offsets,
)
from spark_kafka_native.kafka.group.committed_offsets import all_committed_offsets, commit_offsets

pytestmark = pytest.mark.broker

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])
PARTITIONS = 300
WAIT_S = 240


@pytest.fixture(scope="module")
def places(kafka: Any) -> list[TopicPartition]:
    """The partitions of a topic, each with one record."""
    topic = f"many-{uuid.uuid4().hex}"
    kafka.create_topic(topic, PARTITIONS)
    with Producer(kafka.bootstrap_servers) as producer:
        for partition in range(PARTITIONS):
            producer.send(topic, value="one", partition=partition)
    return [TopicPartition(topic, partition) for partition in range(PARTITIONS)]


@pytest.fixture
def group() -> str:
    return f"{uuid.uuid4().hex:g>4000}"


@pytest.fixture
def router(kafka: Any) -> Iterator[Router]:
    made = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))
    yield made
    made.close()


def read_all(consumer: GroupConsumer) -> None:
    records, until = 0, time.monotonic() + WAIT_S
    while records < PARTITIONS:
        assert time.monotonic() < until, f"{records} records, {consumer!r}"
        records += len(consumer.poll(0.1))


@PROTOCOLS
@pytest.mark.parametrize("automatic", [True, False])
def test_a_member_commits_all_of_its_partitions(
    kafka: Any, router: Router, places: list[TopicPartition], group: str, protocol: str, automatic: bool
) -> None:
    with GroupConsumer(
        kafka.bootstrap_servers,
        places[0].topic,
        group,
        group_protocol=protocol,
        enable_auto_commit=automatic,
        auto_commit_interval_ms=3_600_000,  # with close, then
    ) as consumer:
        read_all(consumer)
        if not automatic:
            consumer.commit()
            assert consumer.committed() == dict.fromkeys(places, 1)
    assert committed_offsets(router, group, places) == dict.fromkeys(places, 1)


@PROTOCOLS
def test_a_member_commits_all_of_its_partitions_in_a_transaction_or_none(
    kafka: Any, router: Router, places: list[TopicPartition], group: str, protocol: str
) -> None:
    with (
        GroupConsumer(
            kafka.bootstrap_servers,
            places[0].topic,
            group,
            group_protocol=protocol,
            enable_auto_commit=False,
        ) as consumer,
        TransactionalProducer(kafka.bootstrap_servers, uuid.uuid4().hex) as producer,
    ):
        read_all(consumer)
        producer.begin()
        producer.send_offsets(consumer.offsets_to_commit(), consumer.group_metadata())
        producer.abort()
        consumer.seek_to_committed()
        assert set(committed_offsets(router, group, places).values()) == {None}
        read_all(consumer)
        with consumer.transaction(producer):
            pass
        assert committed_offsets(router, group, places) == dict.fromkeys(places, 1)


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_with_metadata_are_committed_in_a_transaction_or_not_at_all(
    kafka: Any, router: Router, places: list[TopicPartition], version: int
) -> None:
    group = uuid.uuid4().hex
    settings = TransactionConfig(transactional_id=group, transaction_version=version)
    with TransactionalProducer(kafka.bootstrap_servers, settings) as producer:
        for offset, end in enumerate((producer.abort, producer.commit)):
            producer.begin()
            note = OffsetToCommit(offset=offset, metadata="m" * 4_000)
            producer.send_offsets(dict.fromkeys(places, note), group)
            end()
        producer.initialize()
    assert committed_offsets(router, group, places) == dict.fromkeys(places, 1)
    assert all_committed_offsets(router, group) == dict.fromkeys(places, note)


def test_offsets_are_committed_from_outside_and_deleted(
    kafka: Any, router: Router, places: list[TopicPartition], group: str
) -> None:
    commit_offsets(router, group, dict.fromkeys(places, 1))
    assert set(all_committed_offsets(router, group)) == set(places)
    with Admin(kafka.bootstrap_servers) as admin:
        with pytest.raises(BrokerError) as raised:  # Kafka's own limit: see `Admin.delete_groups`
            admin.delete_groups([group])
        assert raised.value.error_code is ErrorCode.UNKNOWN_SERVER_ERROR
        admin.delete_group_offsets(group, places)
        assert admin.group_offsets(group) == {}
        admin.delete_groups([group])


def test_offsets_of_100_000_partitions_are_fetched_with_one_request(router: Router) -> None:
    places = [TopicPartition(f"none-{number % 100}", number // 100) for number in range(100_000)]
    assert committed_offsets(router, "none", places) == dict.fromkeys(places)
