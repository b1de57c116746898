"""Reading topics of a real broker with our client, as plain Python values: for comparison with
other clients.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from spark_kafka_native.kafka.cluster.offsets import list_offsets
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.consumer.fetched_records import FetchedRecords
from spark_kafka_native.kafka.consumer.fetcher import Fetcher
from spark_kafka_native.kafka.model import OffsetAt, TopicPartition


class Record(NamedTuple):
    """One record as Python values."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


def records_of(fetched: FetchedRecords) -> list[Record]:
    """The rows of fetched columns."""
    columns = fetched.columns
    assert columns.offset is not None
    assert columns.timestamp_ms is not None
    assert columns.timestamp_type is not None
    assert columns.key is not None
    assert columns.value is not None
    assert columns.headers is not None
    headers = [
        None if row is None else [(one["key"], one["value"]) for one in row]
        for row in columns.headers.to_pylist()
    ]
    return [
        Record(*row)
        for row in zip(
            columns.offset.tolist(),
            columns.timestamp_ms.tolist(),
            columns.timestamp_type.tolist(),
            columns.key.to_pylist(),
            columns.value.to_pylist(),
            headers,
            strict=True,
        )
    ]


class Reading:
    """A client of one broker or cluster, for one test."""

    def __init__(self, bootstrap_servers: str, **client: object) -> None:
        names = {name.replace("_", "."): str(value) for name, value in client.items()}
        self.router = Router(ClientConfig.from_properties({"bootstrap.servers": bootstrap_servers} | names))

    def partitions(self, topic: str) -> list[TopicPartition]:
        found = self.router.metadata({topic}, refresh=True).topic(topic).partitions
        return [TopicPartition(topic, index) for index in sorted(found)]

    def bounds(self, topic: str, **options: Any) -> dict[TopicPartition, tuple[int, int]]:
        """Each partition's first and end offset."""
        tps = self.partitions(topic)
        first = list_offsets(self.router, dict.fromkeys(tps, OffsetAt.EARLIEST), **options)
        end = list_offsets(self.router, dict.fromkeys(tps, OffsetAt.LATEST), **options)
        return {tp: (first[tp].offset or 0, end[tp].offset or 0) for tp in tps}

    def fetch(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        columns: frozenset[str] | None = None,
        topic_ids: Mapping[str, UUID] | None = None,
        **consumer: Any,
    ) -> Any:
        return Fetcher(self.router, ConsumerConfig(**consumer)).fetch(ranges, columns, topic_ids)

    def read(self, topic: str, **consumer: Any) -> dict[int, list[Record]]:
        """All records of a topic by partition; checks that positions have no gap."""
        level = {"isolation_level": consumer["isolation_level"]} if "isolation_level" in consumer else {}
        ranges = self.bounds(topic, **level)
        position = {tp: first for tp, (first, _) in ranges.items()}
        found: dict[int, list[Record]] = {tp.partition: [] for tp in ranges}
        for fetched in self.fetch(ranges, **consumer):
            assert fetched.from_offset == position[fetched.topic_partition]
            position[fetched.topic_partition] = fetched.next_offset
            found[fetched.topic_partition.partition] += records_of(fetched)
        # Records may be deleted beyond the last stable offset: such a range is empty.
        assert position == {tp: max(first, end) for tp, (first, end) in ranges.items()}
        return found


def wait_until(what: str, true: Any, seconds: float = 120) -> None:
    """Poll ``true`` until it is."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds} s"
        time.sleep(0.05)
