"""Transactions on a real broker, in both protocols: all or nothing for other clients too, zombies fenced,
timeouts, and processes killed in each state."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from support.consumer.reading import Reading, wait_until
from support.exactly_once.read_committed import read_committed

from spark_kafka_native.kafka.config.client_config import ClientConfig, TransactionConfig
from spark_kafka_native.kafka.errors import ConfigError, KafkaError
from spark_kafka_native.kafka.group.committed_offsets import committed_offsets
from spark_kafka_native.kafka.model import IsolationLevel, OffsetToCommit, TopicPartition
from spark_kafka_native.kafka.producer.errors import ProducerClosedError, TransactionFatalError
from spark_kafka_native.kafka.producer.sending.transaction_requests import OpenTransaction, end_transaction
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.testing import console

pytestmark = pytest.mark.broker
VERSIONS = pytest.mark.parametrize("version", [1, 2])
COMMITTED = IsolationLevel.READ_COMMITTED


def client(kafka: Any) -> ClientConfig:
    return ClientConfig(bootstrap_servers=tuple(kafka.bootstrap_servers.split(",")))


def producer_of(kafka: Any, name: str, version: int = 2, timeout_ms: int = 60_000) -> TransactionalProducer:
    settings = TransactionConfig(
        transactional_id=name, transaction_version=version, transaction_timeout_ms=timeout_ms
    )
    return TransactionalProducer(client(kafka), settings)


def write(producer: TransactionalProducer, topic: str, name: str, records: int = 10) -> list[bytes]:
    values = [b"%s-%02d" % (name.encode(), i) for i in range(records)]
    for i, value in enumerate(values):
        producer.send(topic, value=value, partition=i % 2)
    return values


def settle(kafka: Any, name: str, version: int = 2) -> None:
    """Once another producer has the id, the markers of the last transaction are written."""
    with producer_of(kafka, name, version) as producer:
        producer.initialize()


def seen(kafka: Any, topic: str) -> list[bytes | None]:
    found = Reading(kafka.bootstrap_servers).read(topic, isolation_level=COMMITTED)
    return sorted(record.value or b"" for records in found.values() for record in records)


@VERSIONS
def test_all_clients_see_what_is_committed_and_nothing_else(kafka: Any, topic: str, version: int) -> None:
    kafka.create_topic(topic, 2)
    tp, group = TopicPartition(topic, 0), f"group-{topic}"
    expected: list[bytes] = []
    with producer_of(kafka, topic, version) as producer:
        for number, commit in enumerate([True, False, True, False]):
            producer.begin()
            values = write(producer, topic, f"t{number}")
            producer.send_offsets({tp: OffsetToCommit(offset=number + 1, metadata="note")}, group)
            producer.commit() if commit else producer.abort()
            expected += values if commit else []
    settle(kafka, topic, version)

    assert seen(kafka, topic) == sorted(expected)
    committed = committed_offsets(Reading(kafka.bootstrap_servers).router, group, [tp])
    assert committed == {tp: 3}
    found = read_committed(kafka.bootstrap_servers, topic, 2, timeout_s=60)
    assert sorted(value for values in found.values() for value in values) == sorted(expected)
    if version == 2:
        java = console.consume(
            kafka.bootstrap_servers, topic, max_records=20, isolation_level="read_committed"
        )
        assert sorted(record.value or b"" for record in java) == sorted(expected)


@VERSIONS
def test_a_zombie_commits_nothing(kafka: Any, topic: str, version: int) -> None:
    kafka.create_topic(topic, 2)
    zombie = producer_of(kafka, topic, version)
    zombie.begin()
    write(zombie, topic, "zombie")
    zombie.flush()
    with producer_of(kafka, topic, version) as producer, producer.transaction():
        expected = write(producer, topic, "new")
    with pytest.raises((TransactionFatalError, ProducerClosedError)):
        zombie.commit()
    zombie.close()
    settle(kafka, topic, version)
    assert seen(kafka, topic) == expected


@VERSIONS
def test_a_transaction_that_expires_is_not_committed(kafka: Any, topic: str, version: int) -> None:
    kafka.create_topic(topic, 2)
    with producer_of(kafka, topic, version, timeout_ms=500) as producer:
        producer.begin()
        write(producer, topic, "late")
        with contextlib.suppress(KafkaError):  # it may expire before they are there
            producer.flush()
        reading = Reading(kafka.bootstrap_servers)
        wait_until("the abort", lambda: _stable(reading, topic) == _ends(reading, topic))
        with pytest.raises(TransactionFatalError, match=r"INVALID_TXN_STATE|FENCED|INVALID_PRODUCER_EPOCH"):
            producer.commit()
    assert seen(kafka, topic) == []


def test_a_timeout_over_the_brokers_maximum_is_refused_with_both_numbers(kafka: Any, topic: str) -> None:
    with (
        producer_of(kafka, topic, timeout_ms=3_600_000) as producer,
        pytest.raises(ConfigError, match=r"timeout\.ms=3600000 is over .*max\.timeout\.ms=900000"),
    ):
        producer.initialize()


PROGRAM = """
import os, signal, sys
from spark_kafka_native.kafka import *
servers, name, topic, version, state = sys.argv[1:]
producer = TransactionalProducer(
    ClientConfig.from_properties({"bootstrap.servers": servers}),
    TransactionConfig(transactional_id=name, transaction_version=int(version)),
)
producer.begin()
for i in range(10):
    producer.send(topic, value=b"dead-%02d" % i, partition=i % 2)
if state != "open":
    producer.flush()
if state == "offsets":
    producer.send_offsets({TopicPartition(topic, 0): 1}, name)
if state == "detached":
    print(producer.detach(), flush=True)
if state == "committed":
    producer.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("version", "state"),
    [(1, "open"), (2, "flushed"), (1, "offsets"), (1, "detached"), (2, "detached"), (2, "committed")],
)
def test_a_process_killed_in_any_state_leaves_all_or_nothing(
    kafka: Any, topic: str, version: int, state: str
) -> None:
    kafka.create_topic(topic, 2)
    command = [sys.executable, "-c", PROGRAM, kafka.bootstrap_servers, topic, topic, str(version), state]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    if state == "detached":  # another process ends it, as often as it likes
        left = eval(ran.stdout, {"OpenTransaction": OpenTransaction})  # a repr
        for _ in range(2):
            end_transaction(Reading(kafka.bootstrap_servers).router, left, commit=True)
    with producer_of(kafka, topic, version) as producer, producer.transaction():
        expected = write(producer, topic, "next")
    settle(kafka, topic, version)

    dead = [b"dead-%02d" % i for i in range(10)] if state in ("detached", "committed") else []
    assert seen(kafka, topic) == sorted(dead + expected)


def _stable(reading: Reading, topic: str) -> list[int]:
    return [end for _, end in reading.bounds(topic, isolation_level=COMMITTED).values()]


def _ends(reading: Reading, topic: str) -> list[int]:
    return [end for _, end in reading.bounds(topic).values()]
