"""The transactions of a `MockBroker` beside Kafka's: the same frames to both, and the same answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from support.brokers.framed_client import WITHIN_S, Peer

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.testing import EmbeddedKafka, MockBroker

PASSING = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "CONCURRENT_TRANSACTIONS",
)
"""What a real coordinator says while it is not ready; the mock always is."""


class Dialogue:
    """Asks one broker, and notes what it answers."""

    def __init__(self, servers: str, topic: str) -> None:
        self.peer, self.topic = Peer(servers), topic
        self.told: list[tuple[Any, ...]] = []
        self.own: dict[str, Any] = {"transactional_id": topic, "producer_id": -1, "producer_epoch": -1}
        for kind, key in ((1, topic), (0, topic)):
            self.until_ready(
                lambda kind=kind, key=key: [self.code("FindCoordinator", 3, key=key, key_type=kind)]
            )  # type: ignore[misc]

    def until_ready(self, ask: Callable[[], list[Any]]) -> list[Any]:
        deadline = time.monotonic() + WITHIN_S
        while (answer := ask())[0] in PASSING and time.monotonic() < deadline:
            time.sleep(0.1)
        return answer

    def code(self, api: str, version: int, **fields: Any) -> str:
        return ErrorCode(self.peer.ask(api, fields, version)["error_code"]).name

    def initialize(self, version: int = 4, **known: int) -> None:
        fields = {"transactional_id": self.topic, "transaction_timeout_ms": 60_000, **known}

        def ask() -> list[Any]:
            told = self.peer.ask("InitProducerId", fields, version)
            if not told["error_code"]:
                self.own |= {key: told[key] for key in ("producer_id", "producer_epoch")}
            return [ErrorCode(told["error_code"]).name, told["producer_epoch"]]

        self.told.append(("InitProducerId", version, *self.until_ready(ask)))

    def begin(self, *topics: str, version: int = 3, **who: int) -> None:
        named = [{"name": one, "partitions": [0]} for one in topics or [self.topic]]
        fields = {f"v3_and_below_{key}": value for key, value in (self.own | who | {"topics": named}).items()}

        def ask() -> list[str]:
            results = self.peer.ask("AddPartitionsToTxn", fields, version)["results_by_topic_v3_and_below"]
            codes = {one["name"]: one["results_by_partition"][0]["partition_error_code"] for one in results}
            return [ErrorCode(codes[one["name"]]).name for one in named]

        self.told.append(("AddPartitionsToTxn", version, *self.until_ready(ask)))

    def end(self, version: int = 4, committed: bool = True, **who: Any) -> None:
        fields = self.own | who | {"committed": committed}
        self.told.append(
            (
                "EndTxn",
                version,
                committed,
                *self.until_ready(lambda: [self.code("EndTxn", version, **fields)]),
            )
        )

    def produce(self, epoch: int) -> None:
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=1,
            producer_id=self.own["producer_id"],
            producer_epoch=epoch,
            base_sequence=0,
            batch_size=999,
        )
        builder.append(0, 1234, None, b"value", [])
        part = {"index": 0, "records": bytes(builder.build())}
        topic = {"name": self.topic, "partition_data": [part]}
        fields = {"acks": -1, "transactional_id": self.topic, "timeout_ms": 30_000, "topic_data": [topic]}

        def ask() -> list[str]:
            (told,) = self.peer.ask("Produce", fields, 9)["responses"][0]["partition_responses"]
            return [ErrorCode(told["error_code"]).name]

        self.told.append(("Produce", epoch, *self.until_ready(ask)))

    def add_offsets(self) -> None:
        fields = self.own | {"group_id": self.topic}
        self.told.append(
            ("AddOffsets", *self.until_ready(lambda: [self.code("AddOffsetsToTxn", 3, **fields)]))
        )

    def commit_offsets(self, **who: Any) -> None:
        topic = {"name": self.topic, "partitions": [{"partition_index": 0, "committed_offset": 5}]}
        fields = self.own | {"group_id": self.topic, "topics": [topic]} | who

        def ask() -> list[str]:
            (told,) = self.peer.ask("TxnOffsetCommit", fields, 3)["topics"][0]["partitions"]
            return [ErrorCode(told["error_code"]).name]

        self.told.append(("TxnOffsetCommit", *self.until_ready(ask)))

    def committed(self, *, stable: bool, until: int | None = None) -> None:
        """``until`` the offset is this one: a broker's markers may come after EndTxn's answer."""
        fields = {"group_id": self.topic, "require_stable": stable}
        fields |= {"topics": [{"name": self.topic, "partition_indexes": [0]}]}
        deadline = time.monotonic() + WITHIN_S
        while True:
            (told,) = self.peer.ask("OffsetFetch", fields, 7)["topics"][0]["partitions"]
            if until in (None, told["committed_offset"]) or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self.told.append(("OffsetFetch", told["committed_offset"], ErrorCode(told["error_code"]).name))

    def fetch(self) -> None:
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 9999, "current_leader_epoch": -1}
        fields = {"isolation_level": 1, "topics": [{"topic": self.topic, "partitions": [part]}]}
        (told,) = self.peer.ask("Fetch", fields | {"max_bytes": 9999}, 11)["responses"][0]["partitions"]
        aborted = [one["first_offset"] for one in told["aborted_transactions"] or []]
        offsets = told["high_watermark"], told["last_stable_offset"]
        self.told.append(("Fetch", *offsets, aborted, len(told["records"])))


def hold(servers: str, topic: str) -> list[tuple[Any, ...]]:
    """All that is asked of one broker, and what it said."""
    dialogue = Dialogue(servers, topic)
    with closing(dialogue.peer):
        dialogue.initialize()
        first = {key: dialogue.own[key] for key in ("producer_id", "producer_epoch")}
        for known in (first, first, {}, first):
            dialogue.initialize(**known)
        dialogue.initialize(3, **first)
        for version in (1, 3):
            dialogue.begin(version=version, **first)
            dialogue.end(version=version, **first)
        dialogue.end(producer_id=first["producer_id"] + 50)
        dialogue.end(transactional_id=f"{topic}-none")
        dialogue.end(producer_epoch=9)
        for committed in (True, False):
            dialogue.end(committed=committed)
        dialogue.begin(topic, f"{topic}-none")
        dialogue.begin()
        for committed in (True, True, False):
            dialogue.end(committed=committed)

        dialogue.produce(2)
        dialogue.begin()
        for epoch in (1, 2, 2):
            dialogue.produce(epoch)
        dialogue.fetch()
        dialogue.initialize()
        dialogue.produce(2)

        dialogue.commit_offsets()
        dialogue.add_offsets()
        dialogue.commit_offsets()
        dialogue.commit_offsets(producer_epoch=1)
        dialogue.commit_offsets(member_id="x", generation_id=1)
        for stable in (False, True):
            dialogue.committed(stable=stable)
        dialogue.end()
        dialogue.committed(stable=True, until=5)
        dialogue.fetch()
    return dialogue.told


def test_a_mock_answers_as_kafka_does(kafka: EmbeddedKafka, topic: str) -> None:
    kafka.create_topic(topic)
    with MockBroker() as mock:
        mock.create_topic(topic)
        assert hold(mock.bootstrap_servers, topic) == hold(kafka.bootstrap_servers, topic)
