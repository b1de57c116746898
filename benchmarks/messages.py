"""Kafka's messages, bytes to objects and back, next to kafka-python's codec in the same run.

    python benchmarks/messages.py

Both read the very same bytes into objects of their own, and write an object that exists already. kafka-python
generates Python source per version and compiles it; ours is put together from closures. Interleaved rounds,
the best one counts.
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from harness.rounds import best_of_rounds
from harness.table import Target, print_table
from kafka.protocol.consumer.fetch import FetchRequest as PeerFetchRequest
from kafka.protocol.consumer.fetch import FetchResponse as PeerFetchResponse
from kafka.protocol.metadata.metadata import MetadataResponse as PeerMetadataResponse
from kafka.protocol.producer.produce import ProduceRequest as PeerProduceRequest

from spark_kafka_native.kafka import ErrorCode
from spark_kafka_native.kafka.protocol.api.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from spark_kafka_native.kafka.protocol.api.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_native.kafka.protocol.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_native.kafka.protocol.message import Message
from spark_kafka_native.kafka.protocol.message_codec import codec

PARTITIONS = 100
RECORD_SET_BYTES = 64 * 1024
METADATA_PARTITIONS = 10_000
METADATA_LIMIT_S = 1.0
NO_SLOWER = 0.9  # what the machine's moods allow between two equals
RUN_S = 0.05
"""A run repeats the work for about this long, so that the clock and the scheduler do not matter."""


def fetch_response() -> FetchResponse:
    """What one broker answers for 100 partitions of 10 topics."""
    records = memoryview(bytes(RECORD_SET_BYTES))
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=f"topic-{topic}",
                partitions=[
                    PartitionData(
                        partition_index=partition,
                        error_code=ErrorCode.NONE,
                        high_watermark=1 << 40,
                        last_stable_offset=1 << 40,
                        log_start_offset=0,
                        aborted_transactions=None,
                        records=records,
                    )
                    for partition in range(PARTITIONS // 10)
                ],
            )
            for topic in range(10)
        ]
    )


def fetch_request() -> FetchRequest:
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[
            FetchTopic(
                topic=f"topic-{topic}",
                partitions=[
                    FetchPartition(partition=partition, fetch_offset=1 << 40, partition_max_bytes=1 << 20)
                    for partition in range(PARTITIONS // 10)
                ],
            )
            for topic in range(10)
        ],
    )


def produce_request() -> ProduceRequest:
    records = memoryview(bytes(RECORD_SET_BYTES))
    data = [PartitionProduceData(index=partition, records=records) for partition in range(PARTITIONS)]
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="topic", partition_data=data)]
    )


def metadata_response() -> MetadataResponse:
    """A large cluster: 1,000 topics of 10 partitions, replicated three times over 12 brokers."""
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node_id, host=f"broker-{node_id}.example.com", port=9092, rack="a")
            for node_id in range(12)
        ],
        cluster_id="cluster",
        controller_id=3,
        topics=[
            MetadataResponseTopic(
                error_code=ErrorCode.NONE,
                name=f"some.topic.of.the.cluster-{topic}",
                topic_id=uuid.UUID(int=topic + 1),
                partitions=[
                    MetadataResponsePartition(
                        error_code=ErrorCode.NONE,
                        partition_index=partition,
                        leader_id=partition,
                        leader_epoch=17,
                        replica_nodes=[partition, partition + 1, partition + 2],
                        isr_nodes=[partition, partition + 1, partition + 2],
                    )
                    for partition in range(10)
                ],
            )
            for topic in range(METADATA_PARTITIONS // 10)
        ],
    )


def seconds_per_call(work: Callable[[], object]) -> float:
    """CPU time, for nothing here waits: other work on the machine should not count."""
    calls, began = 0, time.process_time()
    while (spent := time.process_time() - began) < RUN_S:
        work()
        calls += 1
    return spent / calls


def reading(message: Message, version: int, peer: Any) -> dict[str, Callable[[], object]]:
    ours = codec(type(message), version)
    data = b"".join(ours.write(message))
    assert ours.read(memoryview(data)) == message
    assert peer.decode(data, version=version).encode
    return {
        "ours": partial(ours.read, memoryview(data)),
        "kafka-python": partial(peer.decode, data, version=version),
    }


def writing(message: Message, version: int, peer: Any) -> dict[str, Callable[[], object]]:
    ours = codec(type(message), version)
    theirs = peer_instance(message, peer, version)
    assert b"".join(ours.write(message)) == bytes(theirs.encode(version=version)), (
        "the two must write the same"
    )
    return {"ours": partial(ours.write, message), "kafka-python": partial(theirs.encode, version=version)}


def peer_instance(message: Message, peer: Any, version: int) -> Any:
    """The same message as an object of kafka-python's; the fields of both have Kafka's names."""
    return build_peer(peer, message, peer._struct.fields, version)


def build_peer(peer: Any, ours: Any, fields: Any, version: int) -> Any:
    values = {}
    for name, field in fields.items():
        if not field.for_version_q(version) or field.tag is not None:
            continue
        value = getattr(ours, name)
        if field.is_struct_array():
            value = [build_peer(field.data_class, item, field.fields, version) for item in value]
        values[name] = bytes(value) if isinstance(value, memoryview) else value
    return peer(version=version, **values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    cases = {
        "read Fetch response, 100 partitions, v11": reading(fetch_response(), 11, PeerFetchResponse),
        "read Fetch response, 100 partitions, v12": reading(fetch_response(), 12, PeerFetchResponse),
        "read Metadata, 10,000 partitions, v8": reading(
            without_ids(metadata_response()), 8, PeerMetadataResponse
        ),
        "read Metadata, 10,000 partitions, v12": reading(metadata_response(), 12, PeerMetadataResponse),
        "write Fetch request, 100 partitions, v12": writing(fetch_request(), 12, PeerFetchRequest),
        "write Produce request, 100 x 64 KiB, v9": writing(produce_request(), 9, PeerProduceRequest),
    }
    rows = []
    for name, contenders in cases.items():
        best = best_of_rounds(
            {who: partial(seconds_per_call, work) for who, work in contenders.items()}, rounds
        )
        ratio = Target(against="kafka-python", ratio=best["kafka-python"] / best["ours"], wanted=NO_SLOWER)
        rows.append([name, milliseconds(best["ours"]), milliseconds(best["kafka-python"]), str(ratio)])
        if "Metadata" in name and best["ours"] > METADATA_LIMIT_S:
            raise SystemExit(
                f"{name} takes {best['ours']:.2f} s: it must take less than {METADATA_LIMIT_S} s"
            )
    print_table("Messages: CPU time for one", ["message", "ours", "kafka-python", "speed"], rows)


def without_ids(message: MetadataResponse) -> MetadataResponse:
    """As version 8 has it, so that the message is read as it was written."""
    data = codec(MetadataResponse, 8).write(message)
    return codec(MetadataResponse, 8).read(memoryview(b"".join(data)))


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


if __name__ == "__main__":
    main()
