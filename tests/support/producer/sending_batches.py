"""Batches for tests of the sending half: really encoded, so that their numbers are in their bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.observe.metrics import MetricsRegistry
from spark_kafka_native.kafka.producer.accumulating.batch import Batch, Part, SendingState
from spark_kafka_native.kafka.producer.accumulating.memory import BufferMemory
from spark_kafka_native.kafka.producer.accumulating.topics import Topics
from spark_kafka_native.kafka.producer.completion import BatchCompletion, Failures
from spark_kafka_native.kafka.producer.delivery import Outcome, Waiters
from spark_kafka_native.kafka.producer.sending.background_lookups import BackgroundLookups
from spark_kafka_native.kafka.producer.sending.idempotence import ProducerId
from spark_kafka_native.kafka.producer.sending.partition_queue import PartitionQueues, SendingRules
from spark_kafka_native.kafka.producer.spill_folder import SpilledBatch, SpillFolder
from spark_kafka_native.kafka.producer.spilling import Spilling
from spark_kafka_native.kafka.producer.stats import StatsRecorder
from spark_kafka_native.kafka.records.batch import HEADER
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.encode import encode_record_batch, set_producer
from spark_kafka_native.kafka.runtime.deadline import LoopTimer

TP = TopicPartition("t", 0)


def encode(values: list[bytes]) -> bytearray | memoryview:
    columns = RecordColumns(length=len(values), value=pa.array(values, pa.binary()))
    return encode_record_batch(columns, now_ms=1_000)


def batch(order: int, records: int = 1) -> Batch:
    """The ``order``-th batch of the partition."""
    data = encode([b"%d-%d" % (order, i) for i in range(records)])
    return Batch(TP, data, records, 0, [], 1_000, (order,), SendingState(0.0))


def spilled(
    order: int, numbers: tuple[int, int, int], possibly_persisted: bool = False
) -> tuple[Batch, bytearray]:
    """A batch that another producer spilled with these numbers, not read yet; and its bytes."""
    data = bytearray(encode([b"spilled %d" % order]))
    set_producer(data, *numbers)
    entry = SpilledBatch(
        TP, None, 1, possibly_persisted, "why", Path("spill"), order, 0, len(data), 0, (1, order), False
    )
    return Batch.from_folder(entry, (0, order)), data


def numbers(sent: Batch) -> tuple[int, int, int]:
    """Producer id, epoch and base sequence, as a broker reads them."""
    header = np.frombuffer(sent.data, HEADER, 1)[0]
    return int(header["producer_id"]), int(header["producer_epoch"]), int(header["base_sequence"])


class SendingHalf:
    """The parts of a sender without its loop and thread. Retries come after 0.8 s to 1.2 s."""

    def __init__(
        self,
        folder: SpillFolder | None = None,
        ask_any: Callable[[Any, Any], Any] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        retry_backoff_ms: int = 1_000,
    ) -> None:
        client: Any = SimpleNamespace(
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=1_000,
            request_timeout_ms=30_000,
            metadata_max_age_ms=300_000,
        )
        config = ProducerConfig()
        memory = BufferMemory(1_000, 1_000)
        nothing: Any = None  # no topic is opened
        self.router: Any = SimpleNamespace(
            config=client,
            ask_any=ask_any,
            snapshot=SimpleNamespace(topics={}, brokers={}),
            metrics=MetricsRegistry(),
        )
        self.stats = StatsRecorder()
        self.timer = LoopTimer(clock)
        self.spilling = Spilling(folder)
        self.completion = BatchCompletion(memory, self.stats, self.spilling, None, False, Waiters())
        parts: Any = SimpleNamespace(config=config, memory=memory)
        self.topics = Topics({}, self.router, parts, nothing)
        self.queues = PartitionQueues(SendingRules.of(config, client), ProducerId())
        self.failures = Failures(
            self.topics, self.queues, self.completion, self.spilling, self.timer, config.delivery_timeout_ms
        )
        self.lookups = BackgroundLookups(self.router, self.topics, self.queues, self.timer, wake=lambda: None)

    def finish_lookups(self) -> None:
        """What the sender's loop does with the answers."""
        while self.lookups.finished:
            final = self.lookups.finished.popleft()()
            if final is not None:
                self.failures.fail_for_good(final)

    def wait_in(self, one: Batch, told: list[tuple[Batch, Outcome]]) -> Batch:
        """Queue ``one`` in its partition; its outcome is appended to the list."""

        def report(_rows: Any, _first: int, outcome: Outcome) -> None:
            told.append((one, outcome))

        block: Any = SimpleNamespace(report=report, is_heard=False)
        one.parts = [Part(block, np.arange(one.records), 0)]
        self.completion.expect([one])
        self.queues.add(one)
        return one
