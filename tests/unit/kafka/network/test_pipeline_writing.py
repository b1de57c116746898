"""Writing to brokers that do not read: `post` never waits, and a blocked writer keeps reading."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest
from support.brokers.scripted_broker import ScriptedBroker, ScriptedCluster, Silence, properties

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import NetworkError, RequestTimedOutError
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.network.transport import READ, WRITE, Transport, wait_for_streams
from spark_kafka_native.kafka.protocol.api.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from spark_kafka_native.kafka.protocol.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline

pytestmark = [
    pytest.mark.timed(0.1),
    # An interrupt in a destructor.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

METADATA = MetadataRequest(topics=[])
SMALL = 4096


def large(acks: int = -1, size: int = 1 << 20) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=memoryview(bytes(size)))
    return ProduceRequest(
        acks=acks, timeout_ms=1_000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )


class DeafBroker(ScriptedCluster):
    """One broker with small socket buffers, which answers (and so reads) only while `hears` is set."""

    def __init__(self) -> None:
        super().__init__(socket_buffer_bytes=SMALL)
        self.hears = threading.Event()
        self.hears.set()
        self[1].on(MetadataRequest, self.wait_and_describe)
        self[1].on(ProduceRequest, Silence)

    def wait_and_describe(self, request: MetadataRequest, version: int) -> MetadataResponse:
        self.hears.wait(10)
        return self.metadata(request, version)

    def connect(self, **changed: object) -> Connection:
        small = {"send_buffer_bytes": SMALL, "receive_buffer_bytes": SMALL}
        broker = self[1]
        config = ClientConfig.from_properties(properties(broker.address, **small, **changed))
        return Connection.open(broker.host, broker.port, config)


@pytest.fixture
def cluster() -> Iterator[DeafBroker]:
    with DeafBroker() as running:
        try:
            yield running
        finally:
            running.hears.set()


def deafen(cluster: DeafBroker, connection: Connection) -> None:
    """The broker is busy with one request, and a large one fills the socket."""
    cluster.hears.clear()
    connection.post(METADATA)


def test_a_post_never_waits_and_arrives_whole(cluster: DeafBroker) -> None:
    connection = cluster.connect()
    deafen(cluster, connection)
    connection.post(large())
    assert connection.has_unwritten
    assert connection.waits_for == READ | WRITE
    broker: ScriptedBroker = cluster[1]
    cluster.hears.set()
    deadline = Deadline.after_ms(60_000)
    while not broker.requests(ProduceRequest) and not deadline.expired:
        connection.poll()
        wait_for_streams([(connection.fileno(), connection.waits_for)], Deadline.after_ms(50))
    (arrived,) = broker.requests(ProduceRequest)
    assert len(arrived.topic_data[0].partition_data[0].records) == 1 << 20
    assert not connection.has_unwritten
    assert connection.waits_for == READ


def test_waiting_for_a_posted_request_also_writes_it(cluster: DeafBroker) -> None:
    connection = cluster.connect()
    cluster.hears.clear()
    many = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 200) for _ in range(5_000)])
    connection.post(many)
    pending = connection.post(many)
    assert connection.has_unwritten
    threading.Timer(0.1, cluster.hears.set).start()
    assert len(pending.result(60_000).topics) == 5_000
    assert not connection.has_unwritten


def test_without_answer_a_posted_request_is_done_when_it_is_written(cluster: DeafBroker) -> None:
    connection = cluster.connect()
    deafen(cluster, connection)
    pending = connection.post(large(acks=0))
    assert not pending.done
    cluster.hears.set()
    deadline = Deadline.after_ms(60_000)
    while not pending.done and not deadline.expired:
        connection.poll()
    assert pending.result(0) is None


def test_a_posted_request_that_is_never_written_fails_with_the_connection(cluster: DeafBroker) -> None:
    connection = cluster.connect()
    deafen(cluster, connection)
    unanswered, answered = connection.post(large(acks=0)), connection.post(METADATA)
    connection.close()
    for pending in (unanswered, answered):
        with pytest.raises(NetworkError, match="closed by this client"):
            pending.result(0)
    assert not connection.has_unwritten


def test_submit_waits_until_posted_requests_are_written_and_gives_up_in_time(cluster: DeafBroker) -> None:
    connection = cluster.connect(request_timeout_ms=200)
    deafen(cluster, connection)
    posted = connection.post(large())
    submitted = connection.submit(METADATA)
    for pending in (posted, submitted):
        with pytest.raises((RequestTimedOutError, NetworkError), match="nothing could be written for 200 ms"):
            pending.result(0)
    assert connection.closed


@pytest.mark.parametrize("how", ["submit", "post"])
def test_large_requests_and_large_responses_do_not_block_each_other(cluster: DeafBroker, how: str) -> None:
    # The broker reads a request only after it has sent the previous response.
    connection = cluster.connect(request_timeout_ms=60_000)
    many = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 200) for _ in range(5_000)])
    pendings = [getattr(connection, how)(many) for _ in range(4)]
    assert [len(pending.result(60_000).topics) for pending in pendings] == [5_000] * 4


def test_a_writer_reads_once_the_thread_that_read_has_its_response(cluster: DeafBroker) -> None:
    """The broker can't send the large response before anyone reads it, nor read the large request before."""
    connection = cluster.connect(request_timeout_ms=60_000)
    cluster.hears.clear()
    many = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 200) for _ in range(20_000)])
    cluster[1].push(
        MetadataRequest, cluster.wait_and_describe, lambda _, version: cluster.metadata(many, version)
    )
    first, _second = connection.post(METADATA), connection.post(METADATA)
    reading = threading.Thread(target=first.result, args=(60_000,))
    reading.start()
    await_step(reading, "_read_until")
    writing = threading.Thread(target=connection.submit, args=(large(size=8 << 20),))
    writing.start()
    await_step(writing, "_wait_to_write")
    cluster.hears.set()
    reading.join(60)
    writing.join(60)
    assert not connection.closed
    assert not connection.has_unwritten


def await_step(thread: threading.Thread, name: str) -> None:
    """Wait until it is in the function of that name, and waits there."""
    until = Deadline.after_ms(60_000)
    while not until.expired:
        frame = sys._current_frames().get(thread.ident or 0)
        while frame is not None and frame.f_code.co_name != name:
            frame = frame.f_back
        if frame is not None:
            time.sleep(0.1)
            return
        time.sleep(0.01)


def test_a_response_that_another_thread_has_just_read_leaves_the_connection_open(cluster: DeafBroker) -> None:
    connection = cluster.connect()
    pending = connection.post(METADATA)
    pending.result(60_000)
    connection.give_up(pending, 1.0)
    assert not connection.closed


def test_an_interrupt_between_writing_and_noting_it_closes_the_connection(
    cluster: DeafBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_self: Transport, _buffers: list[memoryview]) -> bool:
        raise KeyboardInterrupt

    for how in ("submit", "post"):
        connection = cluster.connect()
        with monkeypatch.context() as patched:
            patched.setattr(Transport, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                getattr(connection, how)(METADATA)
        with pytest.raises(NetworkError, match="KeyboardInterrupt"):
            connection.submit(METADATA)


def test_posting_does_not_wait_while_the_broker_mutes_us(cluster: DeafBroker) -> None:
    connection = cluster.connect()
    cluster[1].push(
        MetadataRequest, MetadataResponse(throttle_time_ms=60_000, brokers=[], cluster_id="slow", topics=[])
    )
    connection.send(METADATA)
    began = time.monotonic()
    assert connection.post(METADATA).result(5_000).cluster_id == "mock"
    assert time.monotonic() - began < 30
