"""Faults of a connection that no real broker shows: in framing, order and time."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers.scripted_broker import (
    Cut,
    Dribble,
    HangUp,
    Late,
    Raw,
    ScriptedBroker,
    ScriptedCluster,
    Silence,
    frame,
    properties,
)
from support.forked_child import holds_in_forked_child
from support.waiting import eventually

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.security_config import SecurityConfig, SecurityProtocol
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    HandshakeClosedError,
    NetworkError,
    ProtocolError,
    RequestTimedOutError,
    SecurityError,
    UnsupportedVersionError,
)
from spark_kafka_native.kafka.network import pipeline
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.network.frames import (
    KEPT_BYTES,
    POOLED_FRAMES,
    POOLED_FROM,
    ROUNDING,
    FrameBuffers,
)
from spark_kafka_native.kafka.network.pending_response import PendingResponse
from spark_kafka_native.kafka.network.pipeline import Throttle
from spark_kafka_native.kafka.protocol.api.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.runtime.name_lookup import failed_addresses
from spark_kafka_native.testing import Effect
from spark_kafka_native.testing.mock.script import MockRequest

pytestmark = pytest.mark.timed(0.1)

METADATA = MetadataRequest(topics=[])


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as running:
        yield running


@pytest.fixture
def broker(cluster: ScriptedCluster) -> ScriptedBroker:
    return cluster[1]


def connect(broker: ScriptedBroker, **changed: object) -> Connection:
    config = ClientConfig.from_properties(properties(broker.address, **changed))
    return Connection.open(broker.host, broker.port, config)


def test_requests_are_pipelined_and_answered_in_order(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    pendings = [connection.submit(METADATA) for _ in range(20)]
    assert pendings[-1].result().cluster_id == "mock"
    assert all(pending.done for pending in pendings)
    assert connection.in_flight == 0


def test_threads_share_a_connection(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(50):
                assert isinstance(connection.send(METADATA), MetadataResponse)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert len(broker.requests(MetadataRequest)) == 400


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        (struct.pack(">i", -5), "negative"),
        (struct.pack(">i", 0), "too short"),
        (struct.pack(">i", 3), "too short"),
        (struct.pack(">i", 2**31 - 1), "over the limit"),
        (b"HTTP", "HTTP"),
        (b"\x15\x03\x03\x00", "TLS"),
    ],
)
def test_a_bad_length_closes_the_connection_before_anything_is_allocated(
    broker: ScriptedBroker, prefix: bytes, says: str
) -> None:
    connection = connect(broker)
    broker.push(MetadataRequest, Raw(prefix + b"/1.1 400"))
    first, second = connection.submit(METADATA), connection.submit(METADATA)
    with pytest.raises(ProtocolError, match=says):
        first.result()
    with pytest.raises(NetworkError, match="earlier response on it was bad"):
        second.result()
    assert connection.closed
    with pytest.raises(NetworkError, match=f"earlier response on it was bad: .*{says}"):
        connection.submit(METADATA)


def test_a_wrong_correlation_id_is_never_delivered(broker: ScriptedBroker, cluster: ScriptedCluster) -> None:
    connection = connect(broker)

    broker.push(
        MetadataRequest,
        lambda request, version: Raw(frame(cluster.metadata(request, version), version, correlation_id=77)),
    )
    with pytest.raises(ProtocolError, match="correlation id 77"):
        connection.send(METADATA)
    assert connection.closed


def test_an_unsolicited_response_closes_the_connection(
    broker: ScriptedBroker, cluster: ScriptedCluster
) -> None:
    def answer_twice(came: MockRequest) -> Effect:
        told = frame(cluster.metadata(METADATA, came.version), came.version, came.correlation_id)
        return Effect().send(told + struct.pack(">ii", 8, 5) + b"abcd")

    connection = connect(broker)
    broker.mock.on("Metadata").choose(answer_twice)
    connection.send(METADATA)
    eventually(lambda: not connection.alive())


def test_a_cut_frame_fails_everything_in_flight(broker: ScriptedBroker, cluster: ScriptedCluster) -> None:
    connection = connect(broker)
    for length in (2, 4, 7, 30):
        broker.push(MetadataRequest, Cut(cluster.metadata, length))
        connection = connect(broker)
        pendings = [connection.submit(METADATA) for _ in range(3)]
        for pending in pendings:
            with pytest.raises(NetworkError):
                pending.result()


def test_too_short_a_body_is_an_error(broker: ScriptedBroker) -> None:
    connection = connect(broker)

    broker.mock.on("Metadata").reply(b"\0\0\0\0")
    with pytest.raises(ProtocolError):
        connection.send(METADATA)
    assert connection.closed


def test_silence_closes_the_connection_in_time(broker: ScriptedBroker) -> None:
    connection = connect(broker, request_timeout_ms=200)
    broker.push(MetadataRequest, Silence)
    began = time.monotonic()
    with pytest.raises(RequestTimedOutError, match=r"Metadata v\d+ to 127.0.0.1:\d+: no answer in 200 ms"):
        connection.send(METADATA)
    assert 0.15 < time.monotonic() - began < 20
    assert connection.closed


def test_a_byte_now_and_then_buys_no_time(broker: ScriptedBroker, cluster: ScriptedCluster) -> None:
    connection = connect(broker, request_timeout_ms=300)
    broker.push(MetadataRequest, Dribble(cluster.metadata, 1, 0.05))
    with pytest.raises(RequestTimedOutError):
        connection.send(METADATA)


def test_a_late_answer_matches_nothing(broker: ScriptedBroker, cluster: ScriptedCluster) -> None:
    connection = connect(broker, request_timeout_ms=100)
    broker.push(MetadataRequest, Late(0.3, cluster.metadata))
    with pytest.raises(RequestTimedOutError):
        connection.send(METADATA)
    time.sleep(0.3)
    with pytest.raises(RequestTimedOutError):
        connection.submit(METADATA)
    assert connect(broker).send(METADATA).cluster_id == "mock"


@pytest.mark.parametrize("others", ["wait", "are abandoned"])
def test_a_caller_with_little_time_does_not_cut_the_requests_of_others(
    broker: ScriptedBroker, cluster: ScriptedCluster, others: str
) -> None:
    """A Produce behind a look-up with max.block.ms was cut, and without idempotence written twice."""
    connection = connect(broker)
    broker.push(MetadataRequest, Late(0.5, cluster.metadata))
    hurried, other = connection.submit(METADATA), connection.submit(METADATA)
    if others == "are abandoned":
        other.abandon()
    closes = "; the connection was closed" if others == "are abandoned" else ""
    with pytest.raises(RequestTimedOutError, match=rf"no answer in 1\d\d ms{closes}$"):
        hurried.result(150)
    assert connection.closed is bool(closes)
    if not closes:
        assert other.result().cluster_id == "mock"
        assert connection.in_flight == 0
        assert connection.send(METADATA).cluster_id == "mock"


def test_a_request_is_not_overdue_before_the_request_timeout() -> None:
    """Others would close its connection, and cut the requests behind it, once it is abandoned."""
    given_up: list[bool | None] = []

    def give_up(_pending: object, _waited_ms: float, *, is_overdue: bool | None) -> None:
        given_up.append(is_overdue)

    carrier: Any = SimpleNamespace(request_timeout_ms=30_000, wait_for=lambda *_: False, give_up=give_up)
    pending: PendingResponse[Any] = PendingResponse(carrier, 1, "Fetch", 12)
    at_first = pending.overdue_at
    pending.result(20)
    pending.result(deadline=Deadline.after_ms(20))
    assert pending.overdue_at == at_first
    pending.result(60_000)  # one that the broker may hold back for longer
    assert pending.overdue_at > at_first + 25
    assert given_up == [False, False, None]


@pytest.mark.parametrize("outcome", ["answered", "failed"])
def test_an_outcome_is_there_once_a_request_is_done(outcome: str) -> None:
    """A thread that looks meanwhile, without a lock, took None for the response."""
    seen: list[tuple[object, ...]] = []

    class Watched(PendingResponse[Any]):
        def __setattr__(self, name: str, value: object) -> None:
            if (name, value) == ("done", True):
                seen.append((self._response, self._frame, self._error))
            super().__setattr__(name, value)

    pending, frame, lost = Watched(SimpleNamespace(request_timeout_ms=1), 1, "Fetch", 12), b"", NetworkError()
    if outcome == "answered":
        pending.complete("response", memoryview(frame))
    else:
        pending.fail(lost)
    assert seen == [("response", frame, None) if outcome == "answered" else (None, None, lost)]


@pytest.mark.parametrize("abandoned", ["before", "after", "twice"])
def test_the_memory_of_an_abandoned_response_is_given_back_once(abandoned: str) -> None:
    given_back: list[memoryview] = []
    carrier: Any = SimpleNamespace(
        request_timeout_ms=30_000, buffers=SimpleNamespace(give_back=given_back.append)
    )
    pending: PendingResponse[Any] = PendingResponse(carrier, 1, "Fetch", 12)
    frame = memoryview(b"records")
    if abandoned in ("before", "twice"):
        pending.abandon()
    pending.complete("response", frame)
    if abandoned in ("after", "twice"):
        pending.abandon()
    assert given_back == [frame]


def test_a_request_timeout_ends_the_connection_for_all(broker: ScriptedBroker) -> None:
    connection = connect(broker, request_timeout_ms=100)
    broker.push(MetadataRequest, Silence)
    first, second = connection.submit(METADATA), connection.submit(METADATA)
    with pytest.raises(RequestTimedOutError, match="the connection was closed"):
        first.result()
    assert second.done


def test_a_busy_caller_does_not_blame_the_broker(broker: ScriptedBroker) -> None:
    connection = connect(broker, request_timeout_ms=100)
    pending = connection.submit(METADATA)
    time.sleep(0.3)
    assert pending.result().cluster_id == "mock"


def test_an_idle_connection_that_the_broker_closed_is_seen(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    assert connection.alive()
    broker.hang_up()
    time.sleep(0.05)
    assert not connection.alive()


def test_an_idle_connection_is_closed_by_us_first(broker: ScriptedBroker) -> None:
    connection = connect(broker, connections_max_idle_ms=20)
    connection.send(METADATA)
    time.sleep(0.05)
    assert not connection.alive()


def test_a_new_connection_is_not_idle_before_its_first_request(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With connections.max.idle.ms=0 none took a request."""
    connection = connect(broker, connections_max_idle_ms=0)
    time.sleep(0.01)
    assert connection.alive()
    monkeypatch.setattr(pipeline, "UNUSED_MS", 5)
    assert not connection.alive()


@pytest.mark.parametrize("waits", [True, False], ids=["retire", "wind down"])
def test_a_request_that_was_abandoned_is_not_waited_for_without_end(
    broker: ScriptedBroker, waits: bool
) -> None:
    """Its answer was lost, and no thread gave it up: the broker could not be connected to any more."""
    connection = connect(broker, request_timeout_ms=300)
    broker.push(MetadataRequest, Silence)
    connection.submit(METADATA)
    if waits:
        connection.retire(Deadline.after_ms(60_000))
    else:
        assert not connection.wind_down()
        eventually(connection.wind_down)
    assert connection.closed


def test_a_connection_whose_first_in_flight_is_abandoned_and_overdue_takes_no_more(
    broker: ScriptedBroker, cluster: ScriptedCluster
) -> None:
    """No thread waits for that, and would find that the broker is silent; all others wait behind it. They are
    not cut: a young Produce was written twice."""
    connection = connect(broker, request_timeout_ms=200)
    broker.push(MetadataRequest, Late(0.5, cluster.metadata))
    first = connection.submit(METADATA)
    second = connection.submit(METADATA)
    with pytest.raises(RequestTimedOutError, match=r"no answer in 10 ms$"):
        first.result(10)
    assert connection.alive()
    time.sleep(0.3)
    assert not connection.alive()
    assert not connection.closed
    assert second.result(60_000).cluster_id == "mock"
    assert connection.alive()


def test_a_request_that_a_thread_waits_for_keeps_its_connection(broker: ScriptedBroker) -> None:
    connection = connect(broker, request_timeout_ms=50)
    broker.push(MetadataRequest, Silence)
    connection.submit(METADATA)
    connection.submit(METADATA).abandon()
    time.sleep(0.1)
    assert connection.alive()


@pytest.mark.parametrize("answers", [True, False])
def test_a_connection_with_a_request_that_was_left_ends_in_time(
    broker: ScriptedBroker, cluster: ScriptedCluster, answers: bool
) -> None:
    """To retire it was a loop without an end."""
    connection = connect(broker, request_timeout_ms=300)
    broker.push(MetadataRequest, Late(0.1, cluster.metadata) if answers else Silence)
    other, hurried = connection.submit(METADATA), connection.submit(METADATA)
    with pytest.raises(RequestTimedOutError):
        hurried.result(10)
    assert connection.in_flight == 2
    connection.retire(Deadline.after_ms(60_000))
    assert connection.closed
    assert other.done


def test_an_abandoned_request_that_was_answered_late_keeps_its_connection(broker: ScriptedBroker) -> None:
    connection = connect(broker, request_timeout_ms=50)
    connection.submit(METADATA).abandon()
    time.sleep(0.2)
    assert connection.alive()
    assert connection.in_flight == 0


def test_a_connection_that_winds_down_answers_those_that_wait(
    broker: ScriptedBroker, cluster: ScriptedCluster
) -> None:
    connection = connect(broker, request_timeout_ms=50)
    broker.push(MetadataRequest, Late(0.5, cluster.metadata))
    pending = connection.submit(METADATA)
    answers: list[MetadataResponse] = []
    waiting = threading.Thread(target=lambda: answers.append(pending.result(60_000)))
    waiting.start()
    eventually(lambda: pending.overdue_at > time.monotonic() + 1)
    time.sleep(0.1)
    assert connection.alive()
    assert not connection.wind_down()
    assert not connection.alive()
    assert not connection.closed
    with pytest.raises(NetworkError, match="this connection ends; another one takes over"):
        connection.submit(METADATA)
    waiting.join(60)
    assert answers[0].cluster_id == "mock"
    assert connection.wind_down()


def test_no_connection_is_idle_for_too_long_without_a_limit(broker: ScriptedBroker) -> None:
    connection = connect(broker, connections_max_idle_ms=-1)
    assert connection.alive()


def test_throttling_mutes_the_connection_and_counts_as_no_timeout(broker: ScriptedBroker) -> None:
    connection = connect(broker, request_timeout_ms=150)
    throttled = MetadataResponse(throttle_time_ms=400, brokers=[], cluster_id="slow", topics=[])
    broker.push(MetadataRequest, throttled)
    assert connection.send(METADATA).cluster_id == "slow"
    assert 300 < connection.muted_ms <= 400
    connection.send(METADATA)
    first, second = (asked.at for asked in broker.asked if isinstance(asked.request, MetadataRequest))
    assert second - first > 0.35


def test_a_deadline_shorter_than_the_throttle_time_fails_at_once(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    broker.push(MetadataRequest, MetadataResponse(throttle_time_ms=60_000, brokers=[], topics=[]))
    connection.send(METADATA)
    began = time.monotonic()
    for ask in (
        lambda: connection.send(METADATA, deadline=Deadline.after_ms(500)),
        lambda: connection.ask(METADATA, 9, Deadline.after_ms(500)),
        lambda: connection.submit(METADATA, deadline=Deadline.after_ms(500)),
    ):
        with pytest.raises(NetworkError, match="enforces a quota and wants no request for"):
            ask()
    assert time.monotonic() - began < 20
    assert (connection.closed, connection.in_flight) == (False, 0)


def test_all_of_a_request_ends_by_its_deadline(broker: ScriptedBroker) -> None:
    connection = connect(broker, request_timeout_ms=60_000)
    broker.push(MetadataRequest, Silence)
    with pytest.raises(RequestTimedOutError, match=r"no answer in \d{1,3} ms"):
        connection.send(METADATA, deadline=Deadline.after_ms(100))


def test_a_shorter_throttle_time_leaves_a_longer_one() -> None:
    throttle = Throttle("b:1")
    throttle.learn(50_000)
    throttle.learn(10)
    assert throttle.muted_ms > 40_000


def test_a_throttle_time_without_end_is_cut(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    for told, muted_ms in ((2**31 - 1, 60_000), (59_000, 59_000)):
        connection._throttle._muted_until = 0.0
        broker.push(MetadataRequest, MetadataResponse(throttle_time_ms=told, brokers=[], topics=[]))
        connection.send(METADATA)
        assert muted_ms - 1_000 < connection.muted_ms <= muted_ms


def test_close_wakes_a_waiting_thread(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    broker.push(MetadataRequest, Silence)
    pending = connection.submit(METADATA)
    timer = threading.Timer(0.1, connection.close)
    timer.start()
    began = time.monotonic()
    with pytest.raises(NetworkError, match="closed by this client"):
        pending.result(5_000)
    assert time.monotonic() - began < 20


def test_close_wakes_a_thread_that_waits_for_a_quota(broker: ScriptedBroker) -> None:
    """It slept until the broker wanted requests again, for up to a minute."""
    connection = connect(broker)
    connection._throttle.learn(60_000)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(connection.send, METADATA)
        eventually(lambda: connection._waiting_to_write.waiting)
        connection.close()
        error = sent.exception(30)
    assert "closed by this client" in str(error)
    assert not broker.requests(MetadataRequest)


def test_a_connection_prints_for_people(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    assert repr(connection) == f"<Connection to {broker.address}: 0 in flight>"
    broker.push(MetadataRequest, Silence)
    connection.submit(METADATA)
    assert repr(connection) == f"<Connection to {broker.address}: 1 in flight>"
    connection.close()
    assert "closed (" in repr(connection)
    assert "by this client" in repr(connection)


def test_a_connection_that_was_closed_with_requests_in_flight_is_freed_at_once(
    broker: ScriptedBroker,
) -> None:
    """With its buffers, which may be large: not with a garbage collection some time later."""
    connection = connect(broker)
    broker.push(MetadataRequest, Silence)
    pending = connection.submit(METADATA)
    connection.close()
    assert pending.done
    freed = weakref.ref(connection)
    gc.disable()
    try:
        del connection, pending
        assert freed() is None
    finally:
        gc.enable()


def test_acks_0_is_done_at_once(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    pending = connection.submit(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[]))
    assert pending.done
    assert pending.result() is None
    assert connection.send(METADATA).cluster_id == "mock"


def test_an_old_broker_is_asked_again_with_a_lower_version(broker: ScriptedBroker) -> None:
    old = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)],
    )
    broker.push(ApiVersionsRequest, old)
    connection = connect(broker)
    versions = [asked.version for asked in broker.asked if isinstance(asked.request, ApiVersionsRequest)]
    assert versions == [ApiVersionsRequest.versions[1], 2]
    assert connection.send(METADATA).cluster_id == "mock"


def test_a_broker_that_always_wants_a_lower_version_ends_in_an_error(broker: ScriptedBroker) -> None:
    broker.on(ApiVersionsRequest, ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[]))
    with pytest.raises(Exception, match="UNSUPPORTED_VERSION"):
        connect(broker)
    assert len(broker.requests(ApiVersionsRequest)) <= 3


def test_disjoint_versions_name_the_api_and_both_ranges_only_when_needed(broker: ScriptedBroker) -> None:
    broker.versions[FetchRequest.api_key] = (90, 99)
    connection = connect(broker)
    assert connection.send(METADATA).cluster_id == "mock"
    with pytest.raises(UnsupportedVersionError, match=r"Fetch.*90.*99"):
        connection.version_of(FetchRequest)


def test_a_listener_that_hangs_up_at_once_raises_the_question_of_the_protocol(broker: ScriptedBroker) -> None:
    broker.on(ApiVersionsRequest, HangUp)
    with pytest.raises(HandshakeClosedError, match="or rather SSL"):
        connect(broker)


def test_tls_to_a_plaintext_port_is_named(broker: ScriptedBroker) -> None:
    # A plaintext broker's reaction to a ClientHello: it reads a length of hundreds of MB, and waits.
    began = time.monotonic()
    with pytest.raises((NetworkError, SecurityError), match="TLS"):
        connect(broker, security_protocol="SSL", socket_connection_setup_timeout_ms=500)
    assert time.monotonic() - began < 20


def test_every_address_of_a_host_is_tried_and_named(
    monkeypatch: pytest.MonkeyPatch, broker: ScriptedBroker
) -> None:
    dead = socket.socket()
    dead.bind(("127.0.0.1", 0))
    targets = [("127.0.0.1", dead.getsockname()[1]), ("127.0.0.1", broker.port)]

    def resolve(host: str, port: int, **_: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", target) for target in targets]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    config = ClientConfig.from_properties(properties("kafka.example:9092"))
    assert Connection.open("kafka.example", 9092, config).send(METADATA).cluster_id == "mock"
    targets[1] = targets[0]
    with pytest.raises(NetworkError, match=r"kafka.example:9092 \(127.0.0.1: connection refused; 127.0.0.1"):
        Connection.open("kafka.example", 9092, config)
    dead.close()


@pytest.mark.parametrize(
    ("protocol", "answer"),
    [
        ("PLAINTEXT", b""),
        ("PLAINTEXT", None),
        ("PLAINTEXT", b"HTTP/1.1 400 \r\n"),
        ("SSL", b""),
        ("SSL", None),
    ],
    ids=["closes", "is silent", "is no broker", "closes, TLS", "is silent, TLS"],
)
def test_an_address_whose_handshake_fails_is_tried_after_the_others(
    broker: ScriptedBroker, protocol: str, answer: bytes | None
) -> None:
    """As Java does: after a disconnection the next address of the name is used."""
    failure = ProtocolError if answer else NetworkError
    bad = socket.create_server(("127.0.0.2", 0))
    accepted: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted.append(bad.accept()[0])
                if answer:
                    accepted[-1].sendall(answer)
                elif answer is not None:
                    accepted[-1].close()

    targets = [bad.getsockname()]
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    config = ClientConfig.from_properties(
        properties("kafka.example:9092", socket_connection_setup_timeout_ms=500),
        resolver=lambda *_: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", target) for target in targets],
    )
    given = SecurityConfig(protocol=SecurityProtocol[protocol])
    with pytest.raises(failure):
        Connection.open("kafka.example", 9092, dataclasses.replace(config, security=given))
    targets.append(("127.0.0.1", broker.port))
    for _ in range(2):
        with contextlib.closing(Connection.open("kafka.example", 9092, config)) as connection:
            assert connection.send(METADATA).cluster_id == "mock"
    eventually(lambda: len(accepted) == 1)
    targets.pop()
    with pytest.raises(failure):
        Connection.open("kafka.example", 9092, config)
    assert len(accepted) == 2, "it is tried where there is no other"
    bad.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    for sock in (bad, *accepted):
        sock.close()


def test_an_address_that_has_come_back_is_not_tried_last_any_more(broker: ScriptedBroker) -> None:
    """Its broker may be the nearest one."""
    target = ("127.0.0.1", broker.port)
    infos: list[Any] = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", one) for one in (target, ("127.0.0.2", broker.port))
    ]
    config = ClientConfig.from_properties(properties("kafka.example:9092"), resolver=lambda *_: infos[:1])
    failed_addresses.add(target)
    assert failed_addresses.last(infos) == infos[::-1]
    Connection.open("kafka.example", 9092, config).close()
    assert failed_addresses.last(infos) == infos


def test_an_unresolvable_host_is_named() -> None:
    config = ClientConfig.from_properties(properties("nowhere.invalid:9092"))
    with pytest.raises(NetworkError, match=r"cannot resolve the host of nowhere.invalid:9092"):
        Connection.open("nowhere.invalid", 9092, config)


def test_large_frames_reuse_their_memory(broker: ScriptedBroker, cluster: ScriptedCluster) -> None:
    for topic in range(3_000):
        cluster.create(f"topic-with-a-long-name-{topic}")
    connection = connect(broker, request_timeout_ms=60_000)
    for _ in range(3):
        pending = connection.submit(MetadataRequest(topics=None))
        assert len(pending.result().topics) == 3_000
        pending.release()
    assert len(connection.buffers.pooled_sizes) == 1
    abandoned = connection.submit(MetadataRequest(topics=None))
    abandoned.abandon()
    connection.send(METADATA)
    assert len(connection.buffers.pooled_sizes) == 1
    connection.buffers.trim()
    assert len(connection.buffers.pooled_sizes) == 1


def test_buffers_of_a_connection_without_work_are_few_and_small() -> None:
    buffers = FrameBuffers()
    frames = [buffers.take(size) for size in (KEPT_BYTES + 1, KEPT_BYTES, 1 << 20)]
    for one in frames:
        buffers.give_back(one)
    buffers.trim()
    assert buffers.pooled_sizes == [KEPT_BYTES]


def test_a_frame_has_its_own_length_in_memory_of_any_size() -> None:
    """A shorter buffer would cut the response, a longer one would wait for bytes of the next."""
    buffers, size = FrameBuffers(), ROUNDING
    lengths = [size, size + 1, size, 2 * size, 3 * size + 5, POOLED_FROM, POOLED_FROM - 1, 1, 0, 2 * size]
    for length in lengths:
        taken = buffers.take(length)
        assert len(taken) == length
        buffers.give_back(taken)
    assert buffers.pooled_sizes == [4 * size], "of the longest one, as shorter ones fit into it"


def test_few_large_frames_and_no_small_ones_are_kept() -> None:
    buffers = FrameBuffers()
    for length in (POOLED_FROM, POOLED_FROM - 1):
        for taken in [buffers.take(length) for _ in range(POOLED_FRAMES + 2)]:
            buffers.give_back(taken)
    assert buffers.pooled_sizes == [ROUNDING] * POOLED_FRAMES


def test_memory_that_another_thread_takes_meanwhile_is_not_kept_for_a_third(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Connections are shared: one consumer closes while a response for another one arrives."""
    buffers = FrameBuffers()
    taken: list[memoryview] = []

    class Limit(int):
        def __ge__(self, size: int) -> bool:
            if not taken:
                taken.append(buffers.take(1 << 20))
            return int(self) >= size

    buffers.give_back(buffers.take(1 << 20))
    monkeypatch.setattr("spark_kafka_native.kafka.network.frames.KEPT_BYTES", Limit(KEPT_BYTES))
    buffers.trim()
    (first,), second = taken, buffers.take(1 << 20)
    first[0], second[0] = 1, 2
    assert first[0] == 1


def test_a_child_process_never_writes_to_an_inherited_connection(broker: ScriptedBroker) -> None:
    connection = connect(broker)

    def is_closed() -> bool:
        connection.forget()
        return connection.closed

    assert holds_in_forked_child(is_closed)
    assert connection.send(METADATA).cluster_id == "mock"


def test_connecting_and_disconnecting_are_logged_at_debug(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "spark_kafka_native.network"):
        connect(broker).close()
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 2
    connected, disconnected = caplog.messages
    assert connected == f"connected to {broker.address}"
    assert disconnected.startswith(f"{broker.address}: disconnected, 0 requests in flight: ")


def test_a_handshake_that_ends_in_an_error_leaves_no_socket_open(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Connection] = []

    def interrupted(connection: Connection, _: Deadline) -> None:
        opened.append(connection)
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "_shake_hands", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connect(broker)
    (connection,) = opened
    assert connection.closed
    assert connection.fileno() == -1


def test_a_version_may_be_capped(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    connection.send(METADATA)
    connection.send(METADATA, at_most=9)
    newest = MetadataRequest.versions[1]
    connection.send(METADATA, at_most=newest + 1)
    found = [one.version for one in broker.asked if isinstance(one.request, MetadataRequest)]
    assert found == [newest, 9, newest]
    connection.close()
