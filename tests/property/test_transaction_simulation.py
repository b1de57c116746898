"""A transactional producer against a naive model of coordinators and log, at random: requests and answers
lost, late and doubled, batches refused, transactions that expire, zombies. Of each one all or nothing is
seen: all if it was reported as committed, nothing if as aborted, and offsets as records. Nothing is doubled
or reordered.
"""

from __future__ import annotations

import os
import random
from typing import Any
from unittest import mock

import pytest
from support.brokers.produce_cluster import LOST_ANSWER, LOST_REQUEST, refused
from support.brokers.scripted_broker import HangUp, properties
from support.brokers.transaction_cluster import TransactionCluster
from support.hooks.fresh_seeds import try_seeds

from spark_kafka_native.kafka.cluster import split_commit
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig, TransactionConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import DeadlineExceededError
from spark_kafka_native.kafka.model import OffsetToCommit, TopicPartition
from spark_kafka_native.kafka.producer.errors import TransactionAbortableError, TransactionFatalError
from spark_kafka_native.kafka.producer.sending.transaction import State
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.kafka.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

SIMULATIONS = int(os.environ.get("TRANSACTION_SIMULATIONS", "16"))
PARTS = 4
TPS = [TopicPartition("t", 0), TopicPartition("t", 1)]
E = ErrorCode


class World:
    """One producer after the other with the same transactional id, and the outcome that each of them got."""

    def __init__(self, seed: int, cluster: TransactionCluster) -> None:
        self.rng = random.Random(seed)
        self.cluster = cluster
        self.version = self.rng.choice([1, 2])
        self.producer: TransactionalProducer | None = None
        self.told: dict[int, str] = {}
        """By transaction: committed, aborted or unknown."""
        self.sent: dict[int, list[int]] = {}
        self.with_offsets: set[int] = set()
        self.log: list[str] = []

    def open(self) -> TransactionalProducer:
        client = {"request.timeout.ms": 150, "retry.backoff.ms": 1, "retry.backoff.max.ms": 5}
        return TransactionalProducer(
            ClientConfig.from_properties(properties(self.cluster.bootstrap_servers, **client)),
            TransactionConfig(transactional_id="x", transaction_version=self.version),
            ProducerConfig(
                linger_ms=0,
                batch_records=self.rng.choice([1, 3]),
                delivery_timeout_ms=self.rng.choice([300, 5_000]),
                max_block_ms=5_000,
            ),
        )

    def disturb(self) -> None:
        """One fault for one of the next requests."""
        request: Any = self.rng.choice(
            [
                InitProducerIdRequest,
                EndTxnRequest,
                EndTxnRequest,
                TxnOffsetCommitRequest,
                *([AddPartitionsToTxnRequest, AddOffsetsToTxnRequest] if self.version == 1 else []),
            ]
        )
        fault = self.rng.choice(["lost", "unsent", "late", "doubled", "batch", "batch", "gone"])
        if fault == "batch":
            steps = [LOST_ANSWER, LOST_REQUEST, refused(E.NOT_ENOUGH_REPLICAS), refused(E.INVALID_RECORD)]
            self.cluster.script(self.rng.choice(TPS), self.rng.choice(steps))
        elif fault == "gone":
            self.cluster.script(self.rng.choice(TPS), *[LOST_REQUEST] * 60)
        else:
            answers: dict[str, Any] = {
                "lost": self.cluster.lost(request),
                "unsent": HangUp,
                "late": self.cluster.late(request, 0.2),
                "doubled": self.cluster.doubled(request),
            }
            self.cluster[1].push(request, answers[fault])
        self.log.append(f"{fault} {request.__name__}")

    def transact(self, number: int) -> None:
        producer = self.producer = self.producer or self.open()
        if self.rng.random() < 0.5:
            self.disturb()
        self.told[number], self.sent[number] = "unknown", list(range(self.rng.randint(1, 8)))
        try:
            producer.begin()
            for i in self.sent[number]:
                producer.send("t", value=b"%d-%d" % (number, i), partition=i % 2)
            if self.rng.random() < 0.5:
                producer.send_offsets(dict.fromkeys(TPS, OffsetToCommit(offset=number)), "g")
                self.with_offsets.add(number)
            if self.rng.random() < 0.1:
                producer.flush()
                self.cluster.expire("x")
            self.end(producer, number)
        except TransactionFatalError as error:
            self.told[number] = "unknown" if error.possibly_committed else "aborted"
            self.log.append(f"{number}: {error}")
        except DeadlineExceededError as error:
            self.log.append(f"{number}: {error}")
        except Exception as error:
            if "takes no more records" not in str(error):  # it was fenced while it was sending
                raise
            self.told[number] = "aborted"
        if producer.state is not State.READY:
            self.replace(producer)

    def end(self, producer: TransactionalProducer, number: int) -> None:
        try:
            if self.rng.random() < 0.75:
                producer.commit()
                self.told[number] = "committed"
                return
        except TransactionAbortableError as error:
            self.log.append(f"{number}: {error}")
        self.told[number] = "aborted"
        producer.abort()

    def replace(self, producer: TransactionalProducer) -> None:
        """A zombie is left, or it ends; another one takes over."""
        self.cluster.scripts.clear()
        self.producer = self.open()
        self.producer.initialize()
        producer.close(1)

    def check(self, seed: int) -> None:
        where = f"seed {seed}, version {self.version}: {self.log}"
        seen: dict[int, list[int]] = {}
        for index, tp in enumerate(TPS):
            last = (-1, -1)
            for value in self.cluster.committed[tp]:
                number, place = map(int, value.split(b"-"))
                assert (number, place) > last, f"doubled or reordered at {value!r}; {where}"
                last = number, place
                assert place % 2 == index
                seen.setdefault(number, []).append(place)
        for number, told in self.told.items():
            places = sorted(seen.get(number, []))
            if told == "committed":
                assert places, f"transaction {number} is lost; {where}"
            if told == "aborted":
                assert not places, f"transaction {number} was aborted and is seen; {where}"
            assert places in ([], self.sent[number]), f"transaction {number} is torn: {places}; {where}"
        self.check_offsets(set(seen), where)

    def check_offsets(self, seen: set[int], where: str) -> None:
        """The offsets are those of the last transaction that has some and is seen."""
        last = max(seen & self.with_offsets, default=None)
        found = [self.cluster.offsets.get(("g", tp)) for tp in TPS]
        assert found == [None if last is None else (last, "")] * 2, f"offsets {found}, not {last}; {where}"


def check(seed: int) -> None:
    # Offsets of two partitions take two requests.
    with mock.patch.object(split_commit, "MAX_COMMIT_BYTES", 1), TransactionCluster() as cluster:
        cluster.create("t", 2)
        world = World(seed, cluster)
        for number in range(8):
            world.transact(number)
        if world.producer is not None:
            world.producer.close(5)
        world.check(seed)


@pytest.mark.parametrize("part", range(PARTS))
def test_of_each_transaction_all_or_nothing_is_seen_and_the_words_are_true(part: int) -> None:
    try_seeds(check, f"transactions {part}", range(part, SIMULATIONS, PARTS))
