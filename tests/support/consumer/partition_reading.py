"""Continuous reading of a scripted cluster: readers for one test, and what they have fetched."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.reader_config import ReaderConfig
from spark_kafka_native.kafka.consumer.partition_reader import PartitionReader
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.runtime.deadline import Deadline
from support.brokers.scripted_broker import ScriptedCluster, offsets_of, properties

Start = Callable[..., PartitionReader]


@contextlib.contextmanager
def readers_of(cluster: ScriptedCluster) -> Iterator[Start]:
    """Makes readers of ``cluster``, which end with the block."""
    readers: list[PartitionReader] = []
    routers: list[Router] = []

    def begin(*at: tuple[TopicPartition, int], watch: Any = None, **changed: Any) -> PartitionReader:
        names = ("request_timeout_ms", "metadata_max_age_ms")
        client = {name: changed.pop(name) for name in list(changed) if name in names}
        router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers, **client)))
        config = ReaderConfig(**{"fetch_max_wait_ms": 20, "poll_timeout_ms": 60_000} | changed)
        readers.append(PartitionReader(router, config, watch=watch))
        routers.append(router)
        for tp, offset in at:
            readers[-1].add(tp, offset)
        return readers[-1]

    try:
        yield begin
    finally:
        for reader in readers:
            reader.close()
        for router in routers:
            router.close()


def fill(cluster: ScriptedCluster, partitions: int = 1, batches: int = 4) -> list[TopicPartition]:
    """``batches`` batches of five records: each value is its offset."""
    tps = cluster.create("orders", partitions, leader=1)
    for tp in tps:
        for batch in range(batches):
            cluster.logs[tp].append([b"%d" % (batch * 5 + i) for i in range(5)])
    return tps


def soon(seconds: float = 60) -> Deadline:
    return Deadline.after_ms(seconds * 1000)


def take(reader: PartitionReader, count: int) -> list[int]:
    """The offsets of the next ``count`` records; values must be theirs."""
    found: list[int] = []
    while len(found) < count:
        record = reader.next_record(soon())
        assert record is not None
        assert record.value == b"%d" % record.offset
        found.append(record.offset)
    return found


def eventually(holds: Callable[[], bool]) -> None:
    until = soon()
    while not holds():
        assert not until.expired
        time.sleep(0.005)


def prefetched(reader: PartitionReader, tp: TopicPartition, count: int) -> None:
    """Wait until the given number of records of ``tp`` was fetched ahead."""
    wanted = reader.buffer.partition(tp)
    eventually(lambda: sum(one.columns.length for one in list(wanted.waiting)) >= count)


def offsets_in(found: Any) -> list[int]:
    """The offsets of the records that a read has returned, in any form."""
    if hasattr(found, "columns"):
        return offsets_of(found.columns)
    return [record.offset for record in ([found] if hasattr(found, "offset") else found or [])]
