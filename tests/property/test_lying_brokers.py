"""Brokers of which one answer after the other is well-formed and not true: clients read, raise errors of ours
or wait, but neither hang nor ask without end, and hand out no record that is not in the log."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

import pytest
from support.hooks.fresh_seeds import try_seeds
from support.hostile import lie

from spark_kafka_native.kafka import Consumer, GroupConsumer, Producer
from spark_kafka_native.kafka.errors import KafkaError
from spark_kafka_native.kafka.model import Record
from spark_kafka_native.kafka.protocol.api import all_requests
from spark_kafka_native.kafka.protocol.message import Request
from spark_kafka_native.kafka.protocol.message_codec import codec
from spark_kafka_native.testing import MockBroker
from spark_kafka_native.testing.mock.script import MockRequest

SETTINGS = {
    "default_api_timeout_ms": 400,
    "request_timeout_ms": 200,
    "retry_backoff_ms": 10,
    "retry_backoff_max_ms": 20,
    "connection_setup_timeout_ms": 200,
}
READING_S = 0.3
MAX_REQUESTS = 400
"""More in so short a time is a storm: with its pauses a client asks each broker 100 times a second."""
MAX_CPU_S = 5.0
VALUES = {partition: [b"%d-%d" % (partition, n) for n in range(30)] for partition in (0, 1)}
BY_NAME: dict[str, type[Request]] = {one.api_name(): one for one in all_requests().values()}


def tell_lies(broker: MockBroker, api: str, rng: random.Random) -> None:
    """Some of the next answers of an API are changed in one or two places."""
    request_class = BY_NAME[api]

    def reply(request: MockRequest) -> bytes:
        true = broker.respond(api, request.body, version=request.version, node_id=request.node_id)
        one = codec(request_class.response, request.version)
        message = one.read(memoryview(true))
        for _ in range(rng.choice([1, 1, 2])):
            message = lie(message, request.version, rng)
        return b"".join(one.write(message))

    broker.on(api, times=rng.choice([1, 2, 5]), after=rng.choice([0, 0, 1, 2])).reply(reply)


def check_liar(seed: int, apis: tuple[str, ...], use: Callable[[MockBroker, str], None]) -> None:
    rng = random.Random(seed)
    api = rng.choice(apis)
    with MockBroker() as broker:
        broker.create_topic("t", 2)
        for partition, values in VALUES.items():
            for at in range(0, len(values), 5):
                broker.append("t", values[at : at + 5], partition=partition)
        tell_lies(broker, api, rng)
        began, cpu_s = time.monotonic(), time.process_time()
        with contextlib.suppress(KafkaError):
            use(broker, api)
        took_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_s
        assert len(broker.requests) < MAX_REQUESTS * (1 + took_s)
        assert cpu_s < MAX_CPU_S, f"{cpu_s:.1f} s of processor time in {took_s:.1f} s"


def check_records(records: list[Record], api: str, from_offset: dict[int, int]) -> None:
    """Each is in the log at its place, and behind the one before it."""
    for one in records:
        assert one.offset >= from_offset.get(one.partition, 0), "an offset went back"
        from_offset[one.partition] = one.offset + 1
        if api != "Fetch":
            assert one.value == VALUES[one.partition][one.offset]


def read_all(broker: MockBroker, api: str) -> None:
    with contextlib.ExitStack() as stack:
        consumer = stack.enter_context(
            Consumer(broker.bootstrap_servers, "t", start="earliest", fetch_max_wait_ms=20, **SETTINGS)
        )
        until, positions = time.monotonic() + READING_S, dict[int, int]()
        while time.monotonic() < until and sum(positions.values()) < 60:
            with contextlib.suppress(KafkaError):
                check_records(consumer.poll(0.05), api, positions)


def read_in_group(broker: MockBroker, api: str) -> None:
    settings = {
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 20,
        "heartbeat_interval_ms": 20,
    } | SETTINGS
    with GroupConsumer(broker.bootstrap_servers, "t", "g", session_timeout_ms=2_000, **settings) as consumer:
        until, errors = time.monotonic() + 2 * READING_S, 0
        while time.monotonic() < until and errors < 20:  # some are final, and come at once
            try:
                # Partitions may come anew, from where they were committed: each list is looked at alone.
                check_records(consumer.poll(0.05), api, {})
                consumer.commit()
            except KafkaError:
                errors += 1


def write_some(broker: MockBroker, api: str) -> None:
    with Producer(broker.bootstrap_servers, linger_ms=0, delivery_timeout_ms=500, **SETTINGS) as producer:
        sent = [producer.send("t", value=b"new %d" % n, partition=n % 2) for n in range(6)]
        with contextlib.suppress(KafkaError):
            producer.flush(2)
    log = {record.value for partition in (0, 1) for record in broker.records("t", partition)}
    for number, delivery in enumerate(sent):
        if delivery.exception(0) is None and api != "Produce":
            assert b"new %d" % number in log


READING = ("Metadata", "ListOffsets", "Fetch", "ApiVersions")
GROUPS = (
    "FindCoordinator",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "OffsetFetch",
    "OffsetCommit",
    "LeaveGroup",
)
WRITING = ("Produce", "InitProducerId", "Metadata")


@pytest.mark.parametrize(
    ("apis", "use"),
    [(READING, read_all), ((*GROUPS, *READING), read_in_group), (WRITING, write_some)],
    ids=["consumer", "group", "producer"],
)
def test_lies_are_survived(apis: tuple[str, ...], use: Callable[[MockBroker, str], None]) -> None:
    try_seeds(lambda seed: check_liar(seed, apis, use), f"lies, {use.__name__}")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("api", READING + GROUPS + WRITING)
def test_a_great_many_lies(api: str) -> None:
    use = read_all if api in READING else read_in_group if api in GROUPS else write_some
    try_seeds(lambda seed: check_liar(seed, (api,), use), f"soak of lies, {api}", range(200))
