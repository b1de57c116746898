"""A file of certificates that is missing while it is replaced: clients that have connected wait for it."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafka_native.kafka import Consumer, GroupConsumer, TransactionalProducer
from spark_kafka_native.kafka.errors import AuthenticationError, ConfigError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.testing import MockBroker
from spark_kafka_native.testing.credentials import write_certificates

AWAY_S = 0.5


class Replaced:
    """A broker's certificate authority, and its file."""

    def __init__(self, folder: Path) -> None:
        certificates = write_certificates(folder, "127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.server)
        self.broker = MockBroker(tls=context)
        self.broker.create_topic("a")
        self.broker.append("a", [b"before"])
        self.authority = certificates.authority
        self.properties = {
            "bootstrap.servers": self.broker.bootstrap_servers,
            "security.protocol": "SSL",
            "ssl.truststore.location": str(self.authority),
            "retry.backoff.ms": "10",
            "retry.backoff.max.ms": "100",
        }

    def lose(self, then: Callable[[], object] = lambda: None) -> None:
        """The file is there again after a moment, and then comes ``then``."""
        away = self.authority.rename(self.authority.with_suffix(".away"))

        def put_back() -> None:
            away.rename(self.authority)
            then()

        threading.Timer(AWAY_S, put_back).start()


@pytest.fixture
def replaced(tmp_path: Path) -> Iterator[Replaced]:
    replaced = Replaced(tmp_path)
    with replaced.broker:
        yield replaced


def test_a_consumer_reads_on(replaced: Replaced) -> None:
    with Consumer(replaced.properties, "a", start="earliest") as consumer:
        assert next(consumer).value == b"before"
        replaced.lose(lambda: replaced.broker.append("a", [b"after"]))
        replaced.broker.hang_up()
        assert next(consumer).value == b"after"


def test_a_group_reads_on_and_commits(replaced: Replaced) -> None:
    group = GroupConsumer(
        replaced.properties, "a", group="g", auto_offset_reset="earliest", enable_auto_commit=False
    )
    with group as consumer:
        assert next(consumer).value == b"before"
        replaced.lose()
        replaced.broker.hang_up()
        consumer.commit()
        assert replaced.broker.committed("g") == {TopicPartition("a", 0): 1}
        replaced.lose(lambda: replaced.broker.append("a", [b"after"]))
        replaced.broker.hang_up()
        assert next(consumer).value == b"after"


def test_a_commit_whose_answer_is_lost_is_asked_for_again(replaced: Replaced) -> None:
    with TransactionalProducer(replaced.properties, "t") as producer:
        with producer.transaction():
            producer.send("a", b"first")
        replaced.broker.on("EndTxn").change(lambda _: replaced.lose()).cut()
        producer.begin()
        producer.send("a", b"second")
        producer.commit()
    assert [one.value for one in replaced.broker.records("a", committed=True)] == [
        b"before",
        b"first",
        b"second",
    ]


def test_a_commit_that_meets_refused_credentials_may_have_been_made(tmp_path: Path) -> None:
    users = {"alice": "secret"}
    with MockBroker(users=users) as broker:
        broker.create_topic("a")
        properties = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "secret",
        }
        producer = TransactionalProducer(properties, "t")
        producer.begin()
        producer.send("a", b"x")
        producer.flush()
        broker.on("EndTxn").change(lambda _: users.update(alice="changed")).cut()
        with pytest.raises(AuthenticationError) as raised:
            producer.commit()
        assert raised.value.__notes__ == [
            "an earlier attempt had no answer, and may have committed it: commit again"
        ]
        assert [one.value for one in broker.records("a", committed=True)] == [b"x"]
        producer.close(0)


def test_at_first_contact_the_configuration_is_wrong(replaced: Replaced) -> None:
    replaced.authority.unlink()
    with (
        pytest.raises(ConfigError, match="can't be read"),
        Consumer(replaced.properties, "a", start="earliest") as consumer,
    ):
        next(consumer)
