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
from spark_kafka_native.kafka.producer.accumulating.batch import Batch, Part
from spark_kafka_native.kafka.producer.accumulating.memory import BufferMemory
from spark_kafka_native.kafka.producer.delivery import Outcome, Waiters
from spark_kafka_native.kafka.producer.sending.sender_state import SenderState
from spark_kafka_native.kafka.producer.settling.completion import BatchCompletion
from spark_kafka_native.kafka.producer.spill_folder import SpilledBatch, SpillFolder
from spark_kafka_native.kafka.producer.stats import StatsRecorder
from spark_kafka_native.kafka.records.batch import HEADER
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.encode import encode_record_batch, set_producer

TP = TopicPartition("t", 0)


def encode(values: list[bytes]) -> bytearray | memoryview:
    columns = RecordColumns(length=len(values), value=pa.array(values, pa.binary()))
    return encode_record_batch(columns, now_ms=1_000)


def batch(order: int, records: int = 1) -> Batch:
    """The ``order``-th batch of the partition."""
    data = encode([b"%d-%d" % (order, i) for i in range(records)])
    return Batch(TP, data, records, 0, [], 0.0, 1_000, (order,))


def spilled(
    order: int, numbers: tuple[int, int, int], possibly_persisted: bool = False
) -> tuple[Batch, bytearray]:
    """A batch that another producer spilled with these numbers, not read yet; and its bytes."""
    data = bytearray(encode([b"spilled %d" % order]))
    set_producer(data, *numbers)
    entry = SpilledBatch(
        TP, None, 1, possibly_persisted, "why", Path("spill"), order, 0, len(data), (1, order), False
    )
    made = Batch(TP, b"", 1, 0, [], 0.0, -1, (0, order))
    made.spilled = entry
    return made, data


def numbers(sent: Batch) -> tuple[int, int, int]:
    """Producer id, epoch and base sequence, as a broker reads them."""
    header = np.frombuffer(sent.data, HEADER, 1)[0]
    return int(header["producer_id"]), int(header["producer_epoch"]), int(header["base_sequence"])


def sender_state(
    folder: SpillFolder | None = None,
    send_any: Callable[[Any], Any] | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> SenderState:
    """What a sender works on, without the sender: one partition, `TP`, and retries after 0.8 s to 1.2 s."""
    client: Any = SimpleNamespace(retry_backoff_ms=1000, retry_backoff_max_ms=1000, request_timeout_ms=30_000)
    router: Any = SimpleNamespace(config=client, send_any=send_any)
    stats = StatsRecorder()
    encoder: Any = None  # nothing is split
    state = SenderState(
        router=router,
        config=ProducerConfig(),
        topics={},
        encoder=encoder,
        completion=BatchCompletion(BufferMemory(1000, 1000), stats, folder, None, False, Waiters()),
        stats=stats,
        clock=clock,
    )
    state.active[state.partition(TP)] = None
    return state


def wait_in(state: SenderState, one: Batch, told: list[tuple[Batch, Outcome]]) -> Batch:
    """``one`` waits in its partition; its end goes to ``told``."""

    def report(_rows: Any, _first: int, outcome: Outcome) -> None:
        told.append((one, outcome))

    block: Any = SimpleNamespace(report=report)
    one.parts = [Part(block, np.arange(one.records), 0)]
    state.completion.expect([one])
    state.partition(one.topic_partition).add(one)
    return one
