"""Finding the way: bootstrap, metadata that lie or are late, brokers that move, forks."""

from __future__ import annotations

import gc
import itertools
import socket
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from support.brokers.scripted_broker import (
    HangUp,
    Late,
    Raw,
    ScriptedBroker,
    ScriptedCluster,
    Silence,
    properties,
)
from support.forked_child import holds_in_forked_child
from support.waiting import eventually

from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.cluster import router as router_module
from spark_kafka_native.kafka.cluster.metadata import ClusterMetadata, Topic
from spark_kafka_native.kafka.cluster.offsets import list_offsets
from spark_kafka_native.kafka.cluster.retry_policy import DeletedTopics
from spark_kafka_native.kafka.cluster.router import Router, router_for
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    HandshakeClosedError,
    KafkaError,
    NetworkError,
    ProtocolError,
    UnreachableError,
    UnsupportedVersionError,
)
from spark_kafka_native.kafka.model import Broker, OffsetAt, TopicPartition
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.protocol.api.api_versions import ApiVersionsRequest
from spark_kafka_native.kafka.protocol.api.find_coordinator import FindCoordinatorRequest
from spark_kafka_native.kafka.protocol.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_native.kafka.protocol.api.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline, Wakeup

pytestmark = pytest.mark.timed(0.1)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(3) as running:
        yield running


def config(bootstrap_servers: str, **changed: object) -> ClientConfig:
    return ClientConfig.from_properties(properties(bootstrap_servers, **changed))


_dead: list[socket.socket] = []


def dead_address() -> str:
    """Where connections are refused. The port stays bound, or another process may come to listen on it."""
    _dead.append(socket.socket())
    _dead[-1].bind(("127.0.0.1", 0))
    return f"127.0.0.1:{_dead[-1].getsockname()[1]}"


@pytest.fixture(autouse=True)
def dead_ports() -> Iterator[None]:
    yield
    while _dead:
        _dead.pop().close()


def test_bootstrap_takes_whoever_answers(cluster: ScriptedCluster) -> None:
    router = Router(config(f"{dead_address()},{cluster[2].address},{dead_address()}"))
    assert set(router.metadata().brokers) == {1, 2, 3}


def test_no_bootstrap_server_names_each_with_its_cause() -> None:
    first, second = dead_address(), dead_address()
    router = Router(config(f"{first},{second},nowhere.invalid:9092", default_api_timeout_ms=500))
    began = time.monotonic()
    with pytest.raises(DeadlineExceededError) as raised:
        router.metadata()
    assert time.monotonic() - began < 20
    said = str(raised.value)
    assert f"reached: cannot connect to {first} (connection refused); cannot connect to {second} (" in said
    assert said.count(first) == said.count(second) == 1
    assert "cannot resolve the host of nowhere.invalid:9092" in said


def test_a_black_hole_leaves_time_for_the_others(cluster: ScriptedCluster) -> None:
    hole = socket.socket()
    hole.bind(("127.0.0.1", 0))
    hole.listen(0)
    fillers = []
    for _ in range(3):  # fills the backlog: further connects get no answer at all
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(hole.getsockname())
        fillers.append(filler)
    address = f"127.0.0.1:{hole.getsockname()[1]}"
    router = Router(config(f"{address},{cluster[1].address}", socket_connection_setup_timeout_ms=300))
    began = time.monotonic()
    for _ in range(3):
        router.metadata(refresh=True)
    assert time.monotonic() - began < 20
    for filler in (*fillers, hole):
        filler.close()


def test_a_wrong_security_protocol_is_named_soon_however_long_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry_policy, "HANG_UP_WAIT_MS", 500)
    with ScriptedBroker() as broker:
        broker.on(ApiVersionsRequest, HangUp)
        began = time.monotonic()
        with pytest.raises(HandshakeClosedError, match="or rather SSL"):
            Router(config(broker.address)).metadata()
        assert 0.4 < time.monotonic() - began < 20


def test_a_load_balancer_that_hangs_up_while_its_broker_restarts_is_waited_for() -> None:
    with ScriptedBroker() as broker:
        broker.push(ApiVersionsRequest, *[HangUp] * (retry_policy.HANDSHAKES_HUNG_UP + 1))
        assert Router(config(broker.address)).metadata().brokers


def test_a_broker_that_is_known_is_waited_for_however_often_it_hangs_up_on_a_first_request() -> None:
    with ScriptedBroker() as broker:
        router = Router(config(broker.address))
        [node_id] = router.metadata().brokers
        broker.hang_up()
        hang_ups = retry_policy.HANDSHAKES_HUNG_UP + 1
        broker.push(MetadataRequest, *[HangUp] * hang_ups)
        request = MetadataRequest(topics=[])
        assert router.retry(lambda: router.send_to(node_id, request), what="asking").brokers
        assert len(broker.requests(MetadataRequest)) >= hang_ups + 2


@pytest.mark.parametrize("answer", [Raw(b"HTTP/1.1 400 Bad Request"), Raw(b"\x15\x03\x03\x00\x02\x02\x46")])
def test_another_protocol_is_named_at_once(answer: Raw) -> None:
    with ScriptedBroker() as broker:
        broker.on(ApiVersionsRequest, answer)
        with pytest.raises(ProtocolError, match=r"HTTP|TLS"):
            Router(config(broker.address)).metadata()
        assert broker.connections == 1


def test_first_contact_gives_up_soon_where_every_address_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_policy, "UNREACHABLE_WAIT_MS", 200)
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"no bootstrap server could be reached: .*connection refused"):
        Router(config(f"{dead_address()},nowhere.invalid:9092")).metadata()
    assert 0.1 < time.monotonic() - began < 20


def test_first_contact_goes_on_where_an_address_is_only_silent(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One broker says nothing (it is starting, perhaps): that is no refusal of every address."""
    monkeypatch.setattr(retry_policy, "UNREACHABLE_WAIT_MS", 0)
    cluster[1].on(ApiVersionsRequest, Silence)
    router = Router(
        config(
            f"{cluster[1].address},{dead_address()}",
            socket_connection_setup_timeout_ms=50,
            default_api_timeout_ms=600,
        )
    )
    with pytest.raises(DeadlineExceededError, match="did not succeed in time"):
        router.metadata()


def test_a_cluster_that_is_known_is_waited_for_although_every_address_refuses(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_policy, "UNREACHABLE_WAIT_MS", 0)
    router = Router(config(cluster[1].address, default_api_timeout_ms=400))
    router.metadata()
    for broker in cluster.brokers.values():
        broker.stop()
    with pytest.raises(DeadlineExceededError):
        router.metadata(refresh=True)


@pytest.mark.parametrize("silent", [False, True])
def test_slow_first_contact_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, silent: bool
) -> None:
    monkeypatch.setattr(retry_policy, "SAY_AFTER_S", 0.1)
    with ScriptedBroker() as broker:
        broker.on(ApiVersionsRequest, Silence)
        address = broker.address if silent else dead_address()
        router = Router(config(address, default_api_timeout_ms=500))
        with pytest.raises(KafkaError):
            router.retry(router.metadata, what="asking", deadline=router.deadline())
    [line] = [record for record in caplog.records if record.levelname == "WARNING"]
    said = line.getMessage()
    assert said.startswith(f"No Kafka broker has answered at {address}")
    assert ("nothing answers" if silent else "connection refused") in said


def test_quick_first_contact_is_not_worth_a_line(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry_policy, "SAY_AFTER_S", 0.3)
    router = Router(config(cluster[1].address))
    router.metadata()
    cluster[1].push(MetadataRequest, slow_metadata(cluster, 0.5))
    router.metadata(refresh=True)
    assert not caplog.records


def test_first_contact_needs_no_thread(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the interpreter ends, when a flush may be the first that connects."""

    def refuse(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    assert set(Router(config(cluster[1].address)).metadata().brokers) == {1, 2, 3}


@pytest.mark.parametrize("where", ["start", "append"])
def test_an_interrupt_of_a_first_operation_leaves_nothing_that_is_logged_later(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    class Interrupted(list[Any]):
        def append(self, one: Any) -> None:
            super().append(one)
            raise KeyboardInterrupt

    timers: list[threading.Timer] = []

    def start(timer: threading.Timer) -> None:
        timers.append(timer)
        if where == "start":
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Timer, "start", start)
    router = Router(config(cluster[1].address))
    if where == "append":
        router._contacts.policies = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        router.retry(lambda: None, what="looking")
    assert [timer.finished.is_set() for timer in timers] == [True]
    assert not router._contacts.policies


@pytest.mark.parametrize("answer", ["metadata", "an error"])
def test_a_first_operation_that_takes_long_is_no_slow_first_contact(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    answered, looked, say = threading.Event(), threading.Event(), retry_policy.RetryPolicy._say
    failures = [BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS, "t")] if answer == "an error" else []

    def say_now(self: Any, *arguments: Any) -> None:
        assert answered.wait(60)
        say(self, *arguments)
        looked.set()

    def operation() -> None:
        if failures:
            raise failures.pop()
        if answer == "metadata":
            router.refresh((), router.deadline())
        answered.set()
        assert looked.wait(60)

    monkeypatch.setattr(retry_policy, "SAY_AFTER_S", 0)
    monkeypatch.setattr(retry_policy.RetryPolicy, "_say", say_now)
    router = Router(config(cluster[1].address))
    router.retry(operation, what="initializing", deadline=Deadline.after_ms(120_000))
    assert not caplog.records


def slow_metadata(cluster: ScriptedCluster, seconds: float) -> Any:
    def answer(request: MetadataRequest, version: int) -> MetadataResponse:
        time.sleep(seconds)
        return cluster.metadata(request, version)

    return answer


def test_the_deadline_holds_for_the_last_attempt_too() -> None:
    """An attempt that starts shortly before the deadline gets the rest, not a new minute."""
    with ScriptedBroker() as broker:
        broker.on(ApiVersionsRequest, Silence)
        router = Router(
            config(
                broker.address,
                default_api_timeout_ms=1_000,
                socket_connection_setup_timeout_ms=30_000,
            )
        )
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            router.metadata()
        assert time.monotonic() - began < 15


def test_an_advertised_address_that_is_not_reachable_is_named(cluster: ScriptedCluster) -> None:
    [tp] = cluster.create("orders", 1, leader=2)
    cluster[2].host = "kafka-2.invalid"
    router = Router(config(cluster[1].address, default_api_timeout_ms=400))
    with pytest.raises(DeadlineExceededError, match=r"broker 2 advertises.*advertised\.listeners"):
        list_offsets(router, {tp: OffsetAt.LATEST})


def test_metadata_are_asked_for_once(cluster: ScriptedCluster) -> None:
    cluster.create("orders", 4)
    router = Router(config(cluster[1].address))
    for partition in range(4):
        router.leader(TopicPartition("orders", partition))
    router.metadata({"orders"})
    assert len(cluster[1].requests(MetadataRequest)) == 1
    router.metadata({"orders"}, refresh=True)
    assert len(cluster[1].requests(MetadataRequest)) == 2


def test_old_metadata_are_asked_for_again(cluster: ScriptedCluster) -> None:
    cluster.create("orders")
    router = Router(config(cluster[1].address, metadata_max_age_ms=30))
    router.metadata({"orders"})
    time.sleep(0.05)
    router.metadata({"orders"})
    assert len(cluster[1].requests(MetadataRequest)) == 2


def test_the_bootstrap_connection_becomes_the_brokers(cluster: ScriptedCluster) -> None:
    [tp] = cluster.create("orders", 1, leader=1)
    router = Router(config(cluster[1].address))
    list_offsets(router, {tp: OffsetAt.LATEST})
    assert cluster[1].connections == 1


def test_a_dead_broker_does_not_keep_metadata_from_coming(cluster: ScriptedCluster) -> None:
    router = Router(config(cluster[1].address))
    router.metadata()
    cluster[1].stop()
    assert set(router.metadata(refresh=True).brokers) == {1, 2, 3}


@pytest.fixture
def in_turn(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Router]:
    """Connected to brokers 1, 2 and 3, which are asked in this order, 30 ms apart, and to no others."""
    router = Router(config(cluster[1].address))
    router.metadata()
    for node_id in cluster.brokers:
        router.connection(node_id)
    live = router._brokers.live
    monkeypatch.setattr(router._brokers, "live", lambda: sorted(live(), key=lambda one: order[one.address]))
    order = {broker.address: node_id for node_id, broker in cluster.brokers.items()}
    monkeypatch.setattr(router_module, "NEXT_AFTER_MS", 30)
    monkeypatch.setattr(router_module.random, "random", lambda: 0.5)
    monkeypatch.setattr(router, "_ways", lambda *_: ())
    yield router
    router.close()


def in_flight(router: Router) -> list[int]:
    """Requests without an answer, on each connection that is open."""
    return [one.in_flight for one in router._brokers.live()]


def test_a_broker_that_a_network_cuts_off_costs_no_request_timeout(
    in_turn: Router, cluster: ScriptedCluster
) -> None:
    """Of several, each cost one: all look-ups stood still for minutes."""
    for node_id in (1, 2):
        cluster[node_id].on(MetadataRequest, Silence)
    in_turn.metadata(refresh=True)
    # Their connections stay: closing them would cut the requests of others.
    assert in_flight(in_turn) == [1, 1, 0]
    first, second, _ = in_turn._brokers.live()
    assert [pending.abandoned for one in (first, second) for pending in one._in_flight] == [True, True]


def test_the_first_answer_counts_also_that_of_a_slow_broker(
    in_turn: Router, cluster: ScriptedCluster
) -> None:
    cluster[1].push(
        MetadataRequest,
        Late(0.3, replace(cluster.metadata(MetadataRequest(topics=[]), 9), cluster_id="late")),
    )
    for node_id in (2, 3):
        cluster[node_id].on(MetadataRequest, Silence)
    assert in_turn.look_up(MetadataRequest(topics=[]), Deadline.after_ms(60_000)).cluster_id == "late"
    assert in_flight(in_turn) == [0, 1, 1]


def test_where_all_connections_are_silent_another_is_made(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a router of the network has lost its state, say. With a dozen brokers each look-up ended in vain,
    and records failed, while the bootstrap servers could be reached.
    """
    router = Router(config(cluster[1].address))
    router.metadata()
    for node_id in cluster.brokers:
        router.connection(node_id)
        router.connection(node_id, channel="fetch")
    monkeypatch.setattr(router_module, "NEXT_AFTER_MS", 30)
    silent = router._brokers.live()
    waited: list[float] = []
    for connection in silent:
        connection.opened_at -= 3_600
        monkeypatch.setattr(connection._transport, "write", lambda buffers: buffers.clear() or True)
    first = router_module._Asked.first
    monkeypatch.setattr(router_module._Asked, "first", lambda one, ms: waited.append(ms) or first(one, ms))
    assert router.look_up(MetadataRequest(topics=[]), Deadline.after_ms(60_000)).cluster_id == "mock"
    assert waited == [30, 30, 30, 0, 0, 30, 30]
    assert not any(one.closed for one in silent)
    router.close()


def test_a_connection_is_made_in_little_time_while_the_answer_of_one_just_made_may_come(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is seen afterwards only: it waited for a broker that drops all packets."""
    router = Router(config(cluster[1].address))
    router.metadata()
    router.close()
    for broker in cluster.brokers.values():
        broker.on(MetadataRequest, Silence)
    monkeypatch.setattr(router_module, "NEXT_AFTER_MS", 30)
    shares: list[float] = []
    connect = router._brokers.connection

    def connecting(broker: Broker, deadline: Deadline) -> Connection:
        shares.append(deadline.remaining_ms)
        return connect(broker, Deadline.after_ms(60_000))

    monkeypatch.setattr(router._brokers, "connection", connecting)
    with pytest.raises(NetworkError):
        router.look_up(MetadataRequest(topics=[]), Deadline.after_ms(2_000))
    assert [share > 100 for share in shares] == [True, False, False]
    router.close()


def test_where_brokers_are_slow_not_each_look_up_makes_a_connection(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one that is silent as well says that they are slow."""
    router = Router(config(cluster[1].address))
    router.metadata()
    router.connection(1).opened_at -= 3_600
    monkeypatch.setattr(router_module, "NEXT_AFTER_MS", 30)
    for broker in cluster.brokers.values():
        for _ in range(20):
            broker.push(MetadataRequest, Late(0.2, cluster.metadata))
    made = []
    for _ in range(3):
        assert router.look_up(MetadataRequest(topics=[]), Deadline.after_ms(60_000)).cluster_id == "mock"
        made.append(sum(broker.connections for broker in cluster.brokers.values()))
    assert made[0] > 1
    assert made[1:] == [made[0]] * 2
    router.close()


def test_a_request_that_brokers_are_too_old_for_is_tried_on_no_others(
    in_turn: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of one release, more or less: a cluster of hundreds was connected to for nothing."""
    first, *others = in_turn._brokers.live()
    for one in others:
        monkeypatch.setattr(one, "submit", lambda *_, **__: pytest.fail("it is asked"))
    first.negotiated = replace(first.negotiated, api_versions={})
    with pytest.raises(UnsupportedVersionError):
        in_turn.look_up(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), Deadline.after_ms(60_000))


def test_a_look_up_closes_no_connection_on_which_an_answer_is_held_back(cluster: ScriptedCluster) -> None:
    """A JoinGroup waits for the other members, for longer than the request timeout."""
    router = Router(config(cluster[1].address))
    router.metadata()
    router.close()
    cluster[1].on(MetadataRequest, Silence)
    channel = router.connection(1, channel="membership")
    channel.request_timeout_ms = 100
    joining = channel.submit(MetadataRequest(topics=[]))
    joining.overdue_at += 600
    asked = router_module._Asked[Any](Deadline.after_ms(60_000), [])
    asked.ask(lambda: channel, MetadataRequest(topics=[]))
    assert asked.first(5_000) is None
    assert (channel.closed, joining.done) == (False, False)
    router.close()


@pytest.mark.parametrize(
    "error",
    [BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "ApiVersions"), UnsupportedVersionError("no Metadata")],
    ids=lambda error: type(error).__name__,
)
def test_a_broker_that_refuses_the_request_itself_keeps_no_other_from_being_asked(
    in_turn: Router, monkeypatch: pytest.MonkeyPatch, error: KafkaError
) -> None:
    """A controller's port has no Metadata, say. If all are so, the first error is raised."""
    first, *others = in_turn._brokers.live()

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(first, "submit", refuse)
    assert in_turn.look_up(MetadataRequest(topics=[]), Deadline.after_ms(60_000)).cluster_id == "mock"
    for one in others:
        monkeypatch.setattr(one, "submit", refuse)
    with pytest.raises(type(error)):
        in_turn.look_up(MetadataRequest(topics=[]), Deadline.after_ms(60_000))


def test_a_broker_with_busy_channels_alone_is_connected_to(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of a producer may take long, and a look-up behind them takes as long."""
    router = Router(config(cluster[1].address))
    router.metadata()
    router.close()
    busy = [router.connection(node_id, channel="produce") for node_id in (2, 3)]
    cluster[1].stop()  # the bootstrap server
    monkeypatch.setattr(router_module, "NEXT_AFTER_MS", 30)
    for connection in busy:
        monkeypatch.setattr(connection._transport, "write", lambda buffers: buffers.clear() or True)
    assert router.look_up(MetadataRequest(topics=[]), Deadline.after_ms(2_000)).cluster_id == "mock"
    router.close()


def test_a_failure_of_one_leaves_the_others_asked(in_turn: Router, cluster: ScriptedCluster) -> None:
    cluster[1].push(MetadataRequest, Late(0.2, cluster.metadata))
    cluster[2].push(MetadataRequest, HangUp)
    cluster[3].on(MetadataRequest, Silence)
    assert in_turn.look_up(MetadataRequest(topics=[]), Deadline.after_ms(60_000)).cluster_id == "mock"
    assert in_flight(in_turn) == [0, 1]


def test_a_request_that_changes_something_goes_to_the_next_broker_only_after_its_timeout(
    cluster: ScriptedCluster, in_turn: Router
) -> None:
    for connection in in_turn._brokers.live():
        connection.request_timeout_ms = 200
    for node_id in (1, 2):
        cluster[node_id].on(MetadataRequest, Silence)
    in_turn.ask_any(MetadataRequest(topics=[]), Deadline.after_ms(60_000))
    asked_at = [cluster[node_id].asked[-1].at for node_id in (1, 2, 3)]
    assert [later - earlier >= 0.15 for earlier, later in itertools.pairwise(asked_at)] == [True, True]
    assert in_flight(in_turn) == [0]


@pytest.mark.parametrize("held_up_by", ["_throttle", "_unwritten"])
def test_an_answer_that_is_there_does_not_wait_for_a_connection_that_takes_nothing_now(
    in_turn: Router, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, held_up_by: str
) -> None:
    """To send the request there as well waited for the end of the quota, or of a whole request timeout."""
    cluster[1].push(MetadataRequest, Late(0.3, cluster.metadata))
    first, *others = in_turn._brokers.live()
    for connection in others:
        if held_up_by == "_throttle":
            connection._throttle.learn(1_000)
        else:
            monkeypatch.setattr(type(connection), "has_unwritten", property(lambda one: one is not first))
    sent: list[str] = []
    submit = type(first).submit
    monkeypatch.setattr(type(first), "submit", lambda *a, **k: sent.append(a[0].address) or submit(*a, **k))
    in_turn.metadata(refresh=True)
    assert sent == [first.address]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_look_up_with_little_time_closes_at_most_the_connection_that_was_asked_first(
    in_turn: Router, cluster: ScriptedCluster, cancelled: bool
) -> None:
    for broker in cluster.brokers.values():
        broker.on(MetadataRequest, Silence)
    wakeup = Wakeup()
    timer = threading.Timer(0.3, wakeup.set)
    timer.start()
    deadline = Deadline.after_ms(60_000).with_wakeup(wakeup) if cancelled else Deadline.after_ms(300)
    with pytest.raises(NetworkError, match="no time was left" if cancelled else r"no answer in \d\d\d ms"):
        in_turn.look_up(MetadataRequest(topics=[]), deadline)
    assert in_flight(in_turn) == ([1, 1, 1] if cancelled else [1, 1])
    timer.join()
    wakeup.close()


def test_a_look_up_with_little_time_cuts_no_other_request(cluster: ScriptedCluster) -> None:
    router = Router(config(cluster[1].address))
    router.metadata()
    cluster[1].push(MetadataRequest, Late(0.5, cluster.metadata))
    pending = router.connection(1).submit(MetadataRequest(topics=[]))
    with pytest.raises(NetworkError, match="no answer in"):
        router.look_up(MetadataRequest(topics=[]), Deadline.after_ms(100))
    assert pending.result().cluster_id == "mock"
    router.close()


def test_heartbeats_do_not_wait_behind_a_look_up(cluster: ScriptedCluster) -> None:
    """A connection of a channel is asked last, however idle it is."""
    router = Router(config(cluster[1].address))
    router.metadata()
    beats = router.connection(1, channel="group")
    cluster[1].push(MetadataRequest, Late(0.5, cluster.metadata))
    busy = router.connection(1).submit(MetadataRequest(topics=[]))
    for _ in range(3):
        router.metadata(refresh=True)
    assert busy.done
    assert [one.connection for one in cluster[1].asked].count(cluster[1].asked[-1].connection) >= 5
    assert (beats.channel, router.connection(1).channel) == ("group", "")
    router.close()


def test_silent_connections_are_replaced_and_cut_nothing(in_turn: Router, cluster: ScriptedCluster) -> None:
    for connection in in_turn._brokers.live():
        connection.request_timeout_ms = 200
    former = in_turn.connection(1)
    for node_id in (1, 2):
        cluster[node_id].push(MetadataRequest, Silence)
    in_turn.metadata(refresh=True)
    young = former.submit(MetadataRequest(topics=[]))
    young.overdue_at += 60
    eventually(lambda: in_flight(in_turn) == [0])
    assert in_turn.connection(1).send(MetadataRequest(topics=[])).cluster_id == "mock"
    assert (in_turn.connection(1) is former, former.closed, young.done) == (False, False, False)
    young.overdue_at -= 60
    eventually(lambda: bool(in_turn._brokers.live()) and former.closed)


def test_an_answer_comes_while_a_quota_lasts_but_is_not_waited_for_longer(
    in_turn: Router, cluster: ScriptedCluster
) -> None:
    """Where the first broker is silent, the quota of the second one ends before a request timeout."""
    for node_id in (1, 3):
        cluster[node_id].on(MetadataRequest, Silence)
    for connection in in_turn._brokers.live():
        connection.request_timeout_ms = 60_000
    in_turn._brokers.live()[1]._throttle.learn(300)
    assert in_turn.look_up(MetadataRequest(topics=[]), Deadline.after_ms(20_000)).cluster_id == "mock"


@pytest.mark.parametrize("held_up_by", ["a quota", "a full socket"])
def test_another_broker_is_connected_to_where_the_only_connection_takes_no_request_now(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, held_up_by: str
) -> None:
    """The look-up waited for the end of a long quota, of a broker that may be dead."""
    router = Router(config(cluster[1].address))
    router.metadata()
    [only] = router._brokers.live()
    asked = len(cluster[1].asked)
    if held_up_by == "a quota":
        only._throttle.learn(30_000)
    else:
        monkeypatch.setattr(type(only), "has_unwritten", property(lambda one: one is only))
    assert router.look_up(MetadataRequest(topics=[]), Deadline.after_ms(60_000)).cluster_id == "mock"
    assert len(cluster[1].asked) == asked
    router.close()


def test_brokers_that_all_moved_are_found_through_the_bootstrap_servers(cluster: ScriptedCluster) -> None:
    router = Router(config(cluster[1].address))
    router.metadata()
    router.close()
    moved = {
        node_id: (broker.host, broker.port) for node_id, broker in cluster.brokers.items() if node_id > 1
    }
    for node_id in moved:
        cluster[node_id].stop()
    cluster[1].on(
        MetadataRequest,
        lambda *asked: replace(
            told := cluster.metadata(*asked), brokers=[replace(told.brokers[0], node_id=9), *told.brokers[1:]]
        ),
    )
    router._metadata = replace(
        router.snapshot,
        brokers={
            i: replace(b, port=int(dead_address().split(":")[1])) for i, b in router.snapshot.brokers.items()
        },
    )
    assert 9 in router.metadata(refresh=True).brokers


def test_a_node_id_at_a_new_address_is_connected_to_there(cluster: ScriptedCluster) -> None:
    router = Router(config(cluster[1].address))
    router.metadata()
    old = router.connection(2)
    with ScriptedBroker(2) as moved:
        cluster.mock.cluster.addresses[2] = (moved.host, moved.port)
        router.metadata(refresh=True)
        assert router.connection(2).address == moved.address
    assert old.closed


def test_a_missing_topic_is_named_within_its_patience(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_policy, "NEW_TOPIC_WAIT_MS", 200)
    router = Router(config(cluster[1].address))
    for _ in range(2):  # it was never there, and may be created at any time
        began = time.monotonic()
        with pytest.raises(BrokerError, match="topic nowhere: UNKNOWN_TOPIC_OR_PARTITION"):
            list_offsets(router, {TopicPartition("nowhere", 0): OffsetAt.LATEST})
        assert 0.2 <= time.monotonic() - began < 20
    assert router.metadata({"nowhere"}).topics["nowhere"].error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_vanishes_for_a_moment_is_waited_for(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_policy, "NEW_TOPIC_WAIT_MS", 0)
    [tp] = cluster.create("orders", 1, leader=1)
    router = Router(config(cluster[1].address))
    list_offsets(router, {tp: OffsetAt.LATEST})

    def gone(request: MetadataRequest, version: int) -> MetadataResponse:
        missing = MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name="orders", partitions=[]
        )
        return replace(cluster.metadata(request, version), topics=[missing])

    cluster[1].push(MetadataRequest, gone, gone, gone)
    cluster[1].push(ListOffsetsRequest, refuse(tp, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert list_offsets(router, {tp: OffsetAt.LATEST})[tp].offset == 0


def test_what_is_noted_of_a_deleted_topic_ends_no_other_wait(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be created again, by this very operation: only a planned read knows which topic it wants."""
    monkeypatch.setattr(retry_policy, "NEW_TOPIC_WAIT_MS", 0)
    tps = [cluster.create(name, 1, leader=1)[0] for name in ("orders", "kept")]
    router = Router(config(cluster[1].address))
    router.metadata({"orders", "kept"})
    topic_id = cluster.topic_ids.pop("orders")
    router.refresh(["orders"], router.deadline())
    router.note_deleted({"orders": topic_id, "kept": cluster.topic_ids["kept"]})
    assert router.was_deleted("orders", topic_id)
    assert not router.was_deleted("kept", cluster.topic_ids["kept"])
    answers = len(cluster[1].requests(MetadataRequest)) + 3

    def created(request: MetadataRequest, version: int) -> MetadataResponse:
        if len(cluster[1].requests(MetadataRequest)) == answers:
            cluster.topic_ids["orders"] = topic_id
        return cluster.metadata(request, version)

    cluster[1].on(MetadataRequest, created)
    assert set(list_offsets(router, dict.fromkeys(tps, OffsetAt.LATEST))) == set(tps)
    assert not router.was_deleted("orders", topic_id)


def test_what_is_noted_of_a_deleted_topic_is_forgotten_after_some_time() -> None:
    """One that is created again takes a moment to reach every broker."""
    for forget_after_ms, is_deleted in ((60_000, True), (0, False)):
        deleted = DeletedTopics(forget_after_ms)
        deleted.add({"orders": UUID(int=1)})
        assert deleted.contains("orders", UUID(int=1)) is is_deleted
        assert not deleted.contains("kept", UUID(int=1))


def test_topics_existed_only_if_each_of_them_did() -> None:
    """One that was only requested may be new, and the wait for it is shorter."""
    deleted = DeletedTopics(60_000)
    deleted.expect(["orders"])
    assert deleted.existed(["orders"])
    assert not deleted.existed(["orders", "requested"])


@pytest.mark.parametrize("noted", [None, UUID(int=1)])
@pytest.mark.parametrize("planned", [None, UUID(int=1), UUID(int=2)])
def test_a_wait_for_a_topic_says_nothing_about_another_one_of_that_name(
    noted: UUID | None, planned: UUID | None
) -> None:
    """Where brokers give no ids, each may be another one."""
    deleted = DeletedTopics(60_000)
    deleted.add({"orders": noted})
    assert deleted.contains("orders", planned) is (noted == planned == UUID(int=1))


def test_topics_are_noted_while_metadata_are_looked_at() -> None:
    """By another thread, at any time."""
    deleted = DeletedTopics(60_000)
    unknown = answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION).topics["a"]
    names, topic_id = [f"t{i}" for i in range(10)], UUID(int=1)

    class Read(dict[str, Topic]):
        def __contains__(self, name: object) -> bool:
            deleted.add({f"beside {name}": topic_id})
            return super().__contains__(name)

        def items(self) -> Any:
            for name, topic in super().items():
                deleted.add({f"beside {name}": topic_id})
                yield name, topic

    deleted.add(dict.fromkeys(names, topic_id))
    deleted.update(ClusterMetadata(topics=Read({name: replace(unknown, name=name) for name in names})))
    assert all(deleted.contains(name, topic_id) for name in names)


def refuse(tp: TopicPartition, error_code: ErrorCode) -> ListOffsetsResponse:
    refused = ListOffsetsPartitionResponse(partition_index=tp.partition, error_code=error_code)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=tp.topic, partitions=[refused])])


@pytest.mark.parametrize("wait_ms", [60_000, 0])
@pytest.mark.parametrize("code", ["UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID", "NOT_LEADER_OR_FOLLOWER"])
def test_a_topic_that_is_refused_by_name_or_by_id_is_waited_for_a_while(
    monkeypatch: pytest.MonkeyPatch, code: str, wait_ms: float
) -> None:
    """Other refusals are retried until the time of the operation ends."""
    monkeypatch.setattr(retry_policy, "NEW_TOPIC_WAIT_MS", wait_ms)
    policy = retry_policy.RetryPolicy({"a"}, ClusterMetadata(), DeletedTopics(300_000), config("a:1"))
    is_retried = policy.should_retry(BrokerError(ErrorCode[code], "topic a"), ClusterMetadata())
    assert is_retried is (wait_ms > 0 or code == "NOT_LEADER_OR_FOLLOWER")


@pytest.mark.parametrize(
    "outage",
    [NetworkError("refused"), BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "a-0")],
    ids=["network", "leader"],
)
def test_the_wait_for_a_topic_begins_after_an_outage(outage: KafkaError) -> None:
    """The brokers that come back are those that may not know it yet."""
    wait = Wait()
    for _ in range(2):
        assert wait.goes_on_after(outage)
        wait.now += LIMIT_S + 1
        assert wait.goes_on_for(1)
    assert wait.goes_on_for(LIMIT_S - 1.1)
    assert not wait.goes_on_for(0.2)


LIMIT_S = retry_policy.NEW_TOPIC_WAIT_MS / 1000


class Wait:
    """The wait for a topic, on a clock of its own."""

    def __init__(self, **settings: object) -> None:
        self.now = 0.0
        self.deleted = DeletedTopics(300_000)
        self.metadata = answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.policy = retry_policy.RetryPolicy(
            {"a"}, ClusterMetadata(), self.deleted, config("a:1", **settings), lambda: self.now
        )

    def goes_on_after(self, error: KafkaError) -> bool:
        return self.policy.should_retry(error, self.metadata)

    def goes_on_for(self, seconds: float) -> bool:
        """True if it goes on for that time, in which answers without the topic come."""
        unknown = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic a")
        goes_on, until = self.goes_on_after(unknown), self.now + seconds
        while goes_on and self.now < until:
            self.now = min(self.now + 1, until)
            goes_on = self.goes_on_after(unknown)
        return goes_on


@pytest.mark.parametrize("backoff_ms", [1_000, 60_000])
@pytest.mark.parametrize("existed", [False, True])
def test_time_without_answers_is_a_third_of_the_wait_for_a_topic_at_most(
    existed: bool, backoff_ms: int
) -> None:
    """What the operation itself asks may outlast an outage, or a silent network, without a failure."""
    wait = Wait(retry_backoff_max_ms=backoff_ms)
    limit_s = LIMIT_S
    if existed:
        wait.deleted.expect({"a"})
        limit_s = retry_policy.KNOWN_TOPIC_WAIT_MS / 1000
    assert wait.goes_on_for(0)
    wait.now += 3_600
    assert wait.goes_on_for(limit_s * 2 / 3 - 0.1)
    assert not wait.goes_on_for(0.2)


@pytest.mark.parametrize("existed", [False, True])
def test_a_topic_is_not_given_up_before_the_fourth_answer(existed: bool) -> None:
    """With a long backoff, too: one answer may be that of a broker that lags behind."""
    wait = Wait()
    if existed:
        wait.deleted.expect({"a"})
    for _ in range(3):
        assert wait.goes_on_for(0)
        wait.now += 3_600
    assert not wait.goes_on_for(0)


def test_a_topic_that_the_first_answer_to_an_operation_has_is_waited_for_as_one_that_existed() -> None:
    wait = Wait()
    wait.deleted.update(answer(ErrorCode.NONE))
    assert wait.goes_on_for(retry_policy.KNOWN_TOPIC_WAIT_MS / 1000 - 0.1)
    assert not wait.goes_on_for(0.2)


def test_a_partition_that_a_topic_does_not_have_is_not_waited_for_as_one_that_existed() -> None:
    """The number may be wrong: all answers name the topic, and the first one as well."""
    wait = Wait()
    wait.metadata = answer(ErrorCode.NONE)
    wait.deleted.update(wait.metadata)
    assert wait.goes_on_for(LIMIT_S - 0.1)
    assert not wait.goes_on_for(0.2)


def test_a_topic_that_another_process_has_seen_is_waited_for_like_one_that_this_one_has_seen(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_policy, "NEW_TOPIC_WAIT_MS", 0)
    [tp] = cluster.create("orders", 1, leader=1)
    topic_id = cluster.topic_ids.pop("orders")
    router = Router(config(cluster[1].address))
    with pytest.raises(BrokerError, match="topic orders: UNKNOWN_TOPIC_OR_PARTITION"):
        list_offsets(router, {tp: OffsetAt.LATEST})
    router.expect(["orders"])
    answers = len(cluster[1].requests(MetadataRequest)) + 3

    def grown(request: MetadataRequest, version: int) -> MetadataResponse:
        if len(cluster[1].requests(MetadataRequest)) == answers:
            cluster.topic_ids["orders"] = topic_id
        return cluster.metadata(request, version)

    cluster[1].on(MetadataRequest, grown)
    assert list_offsets(router, {tp: OffsetAt.LATEST})[tp].offset == 0


def answer(error_code: ErrorCode) -> ClusterMetadata:
    topic = Topic(name="a", topic_id=None, partitions={}, error_code=error_code, internal=False)
    return ClusterMetadata(topics={"a": topic})


def test_a_partition_that_does_not_exist_is_named(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_policy, "KNOWN_TOPIC_WAIT_MS", 100)
    monkeypatch.setattr(retry_policy, "NEW_TOPIC_WAIT_MS", 100)
    cluster.create("orders", 2)
    router = Router(config(cluster[1].address))
    with pytest.raises(BrokerError, match=r"partition orders-7.*has 2 partitions"):
        list_offsets(router, {TopicPartition("orders", 7): OffsetAt.LATEST})


@pytest.mark.parametrize(
    "error_code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_only_the_refused_partition_is_asked_for_again(
    cluster: ScriptedCluster, error_code: ErrorCode
) -> None:
    tps = cluster.create("orders", 2, leader=1)

    def one_refused(request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        topic = cluster.list_offsets(request, version).topics[0]
        refused = replace(topic.partitions[1], error_code=error_code, offset=-1)
        return ListOffsetsResponse(topics=[replace(topic, partitions=[topic.partitions[0], refused])])

    cluster[1].push(ListOffsetsRequest, one_refused)
    found = list_offsets(Router(config(cluster[1].address)), dict.fromkeys(tps, OffsetAt.LATEST))
    assert [found[tp].offset for tp in tps] == [0, 0]
    asked = [
        [p.partition_index for p in r.topics[0].partitions] for r in cluster[1].requests(ListOffsetsRequest)
    ]
    assert asked == [[0, 1], [1]]


def test_a_partition_that_an_answer_leaves_out_is_asked_for_again(cluster: ScriptedCluster) -> None:
    tps = cluster.create("orders", 2, leader=1)

    def one_missing(request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        topic = cluster.list_offsets(request, version).topics[0]
        told = [partition for partition in topic.partitions if partition.partition_index == 0]
        return ListOffsetsResponse(topics=[replace(topic, partitions=told)])

    router = Router(config(cluster[1].address, default_api_timeout_ms=500))
    cluster[1].push(ListOffsetsRequest, one_missing)
    found = list_offsets(router, dict.fromkeys(tps, OffsetAt.LATEST))
    assert [found[tp].offset for tp in tps] == [0, 0]
    cluster[1].on(ListOffsetsRequest, one_missing)
    with pytest.raises(DeadlineExceededError, match="latest offset of orders-1: the leader's response lacks"):
        list_offsets(router, dict.fromkeys(tps, OffsetAt.LATEST))


def test_leaders_are_asked_at_the_same_time(cluster: ScriptedCluster) -> None:
    tps = cluster.create("orders", 3)
    all_asked = threading.Barrier(len(cluster.brokers))
    for broker in cluster.brokers.values():
        broker.on(ListOffsetsRequest, once_all_are_asked(cluster, all_asked))
    list_offsets(Router(config(cluster[1].address)), dict.fromkeys(tps, OffsetAt.EARLIEST))
    assert not all_asked.broken


def once_all_are_asked(cluster: ScriptedCluster, all_asked: threading.Barrier) -> Any:
    def answer(request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        all_asked.wait(20)
        return cluster.list_offsets(request, version)

    return answer


def test_a_negative_offset_is_an_error_not_the_start(cluster: ScriptedCluster) -> None:
    [tp] = cluster.create("orders", 1, leader=1)
    bad = replace(refuse(tp, ErrorCode.NONE).topics[0].partitions[0], offset=-1)
    cluster[1].on(
        ListOffsetsRequest,
        ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=tp.topic, partitions=[bad])]),
    )
    router = Router(config(cluster[1].address))
    with pytest.raises(ProtocolError, match="orders-0 answered with offset -1 for latest"):
        list_offsets(router, {tp: OffsetAt.LATEST})
    assert list_offsets(router, {tp: OffsetAt.timestamp(5)})[tp].offset is None


def test_a_permanent_refusal_is_raised_at_once(cluster: ScriptedCluster) -> None:
    [tp] = cluster.create("orders", 1, leader=1)
    cluster[1].on(ListOffsetsRequest, refuse(tp, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="latest offset of orders-0: TOPIC_AUTHORIZATION_FAILED"):
        list_offsets(Router(config(cluster[1].address)), {tp: OffsetAt.LATEST})


def test_a_partition_without_a_leader_is_waited_for(cluster: ScriptedCluster) -> None:
    [tp] = cluster.create("orders", 1, leader=1)

    def leaderless(request: MetadataRequest, version: int) -> MetadataResponse:
        told = cluster.metadata(request, version)
        partition = replace(
            told.topics[0].partitions[0], leader_id=-1, error_code=ErrorCode.LEADER_NOT_AVAILABLE
        )
        return replace(told, topics=[replace(told.topics[0], partitions=[partition])])

    cluster[1].push(MetadataRequest, leaderless, leaderless, leaderless)
    assert list_offsets(Router(config(cluster[1].address)), {tp: OffsetAt.LATEST})[tp].offset == 0
    assert len(cluster[1].requests(MetadataRequest)) == 4


def test_a_topic_that_is_not_ours_to_see_fails_alone_and_at_once(cluster: ScriptedCluster) -> None:
    [seen] = cluster.create("orders", 1, leader=1)

    def denied(request: MetadataRequest, version: int) -> MetadataResponse:
        told = cluster.metadata(request, version)
        topics = [
            replace(topic, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if topic.name == "secret"
            else topic
            for topic in told.topics
        ]
        return replace(told, topics=topics)

    cluster[1].on(MetadataRequest, denied)
    router = Router(config(cluster[1].address))
    assert router.metadata({"orders", "secret"}).topic("orders").partitions
    assert list_offsets(router, {seen: OffsetAt.LATEST})[seen].offset == 0
    asked = len(cluster[1].requests(MetadataRequest))
    with pytest.raises(BrokerError, match="topic secret: TOPIC_AUTHORIZATION_FAILED"):
        list_offsets(router, {TopicPartition("secret", 0): OffsetAt.LATEST})
    assert len(cluster[1].requests(MetadataRequest)) <= asked + 2  # not tried again


def test_versions_are_each_brokers_own(cluster: ScriptedCluster) -> None:
    """During a rolling upgrade one broker speaks what another does not yet."""
    tps = cluster.create("orders", 2)
    cluster[1].versions[ListOffsetsRequest.api_key] = (1, 5)
    cluster[2].versions[ListOffsetsRequest.api_key] = (6, 7)
    list_offsets(Router(config(cluster[1].address)), dict.fromkeys(tps, OffsetAt.LATEST))
    spoken = [
        next(asked.version for asked in cluster[i].asked if isinstance(asked.request, ListOffsetsRequest))
        for i in (1, 2)
    ]
    assert spoken == [5, 7]


@pytest.mark.parametrize(
    ("newest", "place", "is_asked"),
    [
        (6, OffsetAt.MAX_TIMESTAMP, False),
        (7, OffsetAt.MAX_TIMESTAMP, True),
        (6, OffsetAt.LATEST, True),
        (6, OffsetAt.timestamp(5), True),
    ],
    ids=str,
)
def test_a_broker_that_is_too_old_is_not_asked_for_the_highest_timestamp(
    cluster: ScriptedCluster, newest: int, place: OffsetAt, is_asked: bool
) -> None:
    """It would take it for a time before all records, and answer with the first offset (KIP-734)."""
    [tp] = cluster.create("orders")
    cluster[1].versions[ListOffsetsRequest.api_key] = (1, newest)
    router = Router(config(cluster[1].address))
    if is_asked:
        assert list(list_offsets(router, {tp: place})) == [tp]
    else:
        with pytest.raises(UnsupportedVersionError, match="can't find the highest timestamp"):
            list_offsets(router, {tp: place})
    assert len(cluster[1].requests(ListOffsetsRequest)) == is_asked


def test_a_silent_broker_ends_at_the_deadline(cluster: ScriptedCluster) -> None:
    for broker in cluster.brokers.values():
        broker.on(MetadataRequest, Silence)
    router = Router(config(cluster.bootstrap_servers, default_api_timeout_ms=500, request_timeout_ms=200))
    began = time.monotonic()
    with pytest.raises(KafkaError, match=r"Metadata|time"):
        router.metadata()
    assert time.monotonic() - began < 20


def test_the_routers_that_were_asked_for_last_stay_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that were made last: the one that each task asks for is the oldest."""
    monkeypatch.setattr(router_module, "WARM_ROUTERS", 2)
    monkeypatch.setattr(router_module, "_warm", OrderedDict())
    often, once, last = (config("a:1", client_id=f"client {number}") for number in range(3))
    for settings in (often, once, often, last):
        router_for(settings)
    assert list(router_module._warm) == [often, last]


def test_one_router_per_config_and_process(cluster: ScriptedCluster) -> None:
    settings = config(cluster[1].address, client_id="shared")
    router = router_for(settings)
    assert router_for(config(cluster[1].address, client_id="shared")) is router
    assert router_for(config(cluster[1].address, client_id="other")) is not router
    router.metadata()
    connections = cluster[1].connections

    def uses_its_own() -> bool:  # and does not hurt the inherited one
        fresh = router_for(settings) is not router and not router_for(settings).snapshot.brokers
        return fresh and len(router.metadata(refresh=True).brokers) == 3

    assert holds_in_forked_child(uses_its_own)
    assert cluster[1].connections == connections + 1
    assert len(router.metadata(refresh=True).brokers) == 3
    assert cluster[1].connections == connections + 1


def test_a_fork_while_a_thread_asks_for_metadata(cluster: ScriptedCluster) -> None:
    """In the child that thread is gone, and what it held is free."""
    router = Router(config(cluster[1].address))
    router.metadata()
    gate = threading.Event()

    def late(request: MetadataRequest, version: int) -> MetadataResponse:
        assert gate.wait(60)
        return cluster.metadata(request, version)

    before = len(cluster[1].requests(MetadataRequest))
    cluster[1].push(MetadataRequest, late)
    asking = threading.Thread(target=router.metadata, kwargs={"refresh": True})
    asking.start()
    while len(cluster[1].requests(MetadataRequest)) == before:
        time.sleep(0.001)

    def asks_alone() -> bool:
        return len(router.metadata(refresh=True, deadline=Deadline.after_ms(20_000)).brokers) == 3

    is_free = holds_in_forked_child(asks_alone)
    gate.set()
    asking.join()
    assert is_free


def test_a_process_forked_while_a_thread_connects_connects_by_itself(cluster: ScriptedCluster) -> None:
    router = Router(config(cluster[1].address))
    router.metadata()
    connecting, gate = threading.Event(), threading.Event()

    def late(request: ApiVersionsRequest, version: int) -> Any:
        connecting.set()
        assert gate.wait(60)
        return cluster.own(request, version, node_id=2)

    cluster[2].push(ApiVersionsRequest, late)
    thread = threading.Thread(target=router.connection, args=(2,))
    thread.start()
    assert connecting.wait(60)

    def connects() -> bool:
        router.metadata()
        return router.connection(2, Deadline.after_ms(20_000)).alive()

    is_free = holds_in_forked_child(connects)
    gate.set()
    thread.join()
    router.close()
    assert is_free


def test_routers_that_nobody_uses_are_closed(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "WARM_ROUTERS", 3)

    def client(number: int) -> Router:
        found = router_for(config(cluster[1].address, client_id=f"client-{number}"))
        found.metadata(())
        return found

    in_use = client(0)
    connection = client(1).connection(1)
    warm = [weakref.ref(client(number)) for number in range(1, 21)]

    def there() -> list[bool]:
        gc.collect()
        return [router() is not None for router in warm]

    # The timer of a router's first contact, which is cancelled by then, ends a moment later.
    eventually(lambda: there() == [False] * 17 + [True] * 3)
    assert connection.closed
    assert client(0) is in_use  # found again, although it had not been asked for lately
    assert in_use.metadata(refresh=True).brokers
    before = cluster[1].connections
    assert [client(number) is not None for number in (19, 20)] == [True] * 2
    assert cluster[1].connections == before


def test_a_worker_leaves_the_brokers_that_its_last_tasks_did_not_need(cluster: ScriptedCluster) -> None:
    # Long enough that a slow machine does not make the connection in use an idle one between two requests.
    settings = config(cluster[1].address, connections_max_idle_ms=2_000)
    router = router_for(settings)
    found = [router.connection(node_id) for node_id in router.metadata(()).brokers]
    assert len(found) == 3

    def closed_but_for_the_one_in_use() -> bool:
        router_for(settings).send_to(2, MetadataRequest(topics=[]))
        return [one.closed for one in found] == [True, False, True]

    eventually(closed_but_for_the_one_in_use)
    assert router.connection(1).alive(), "it may be connected to again"
    router.close()


def test_a_router_that_was_not_asked_for_lately_is_closed(cluster: ScriptedCluster) -> None:
    idle = weakref.ref(router_for(config(cluster[1].address, connections_max_idle_ms=20)))
    assert idle() is not None
    time.sleep(0.03)
    kept = weakref.ref(router_for(config(cluster[1].address, connections_max_idle_ms=-1)))
    router_for(config(cluster[1].address, client_id="another"))
    gc.collect()
    assert idle() is None
    assert kept() is not None


@pytest.mark.parametrize("failed", ["to connect", "a connection"])
def test_a_router_is_closed_though_a_broker_failed(cluster: ScriptedCluster, failed: str) -> None:
    """An error that is kept would keep the frames that it went through, and they the router."""
    settings = config(cluster[1].address, connections_max_idle_ms=20)
    router = router_for(settings)
    router.metadata(())
    connection = router.connection(1)
    if failed == "to connect":
        cluster[2].stop_listening()
    else:
        router.send_to(2, MetadataRequest(topics=[]))
        cluster[2].push(MetadataRequest, HangUp)
    with pytest.raises(NetworkError):
        router.send_to(2, MetadataRequest(topics=[]))
    idle = weakref.ref(router)
    del router
    time.sleep(0.03)
    router_for(config(cluster[1].address, client_id="another"))
    eventually(lambda: (gc.collect(), idle() is None)[1])
    assert connection.closed


def test_a_router_prints_for_people(cluster: ScriptedCluster) -> None:
    router = Router(config(cluster[1].address))
    assert repr(router) == f"<Router to {cluster[1].address}: 0 brokers known>"
    router.metadata()
    assert repr(router) == f"<Router to {cluster[1].address}: 3 brokers known>"


def response(partitions: list[tuple[int, int, int]], **changed: Any) -> MetadataResponse:
    topic = MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name="orders",
        partitions=[
            MetadataResponsePartition(
                error_code=ErrorCode.NONE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=epoch,
                replica_nodes=[1],
                isr_nodes=[1],
            )
            for index, leader, epoch in partitions
        ],
    )
    broker = MetadataResponseBroker(node_id=1, host="a", port=1)
    return MetadataResponse(brokers=[broker], topics=[replace(topic, **changed)])


def test_an_older_leader_epoch_of_the_same_topic_id_is_no_news() -> None:
    one, other = UUID(int=1), UUID(int=2)
    known = ClusterMetadata().updated(response([(0, 1, 5)], topic_id=one), ["orders"])
    stale = known.updated(response([(0, 2, 4)], topic_id=one), ["orders"])
    assert stale.topics["orders"].partitions[0].leader == 1
    newer = known.updated(response([(0, 2, 6)], topic_id=one), ["orders"])
    assert newer.topics["orders"].partitions[0].leader == 2
    recreated = known.updated(response([(0, 3, 0)], topic_id=other), ["orders"])
    assert recreated.topics["orders"].partitions[0].leader == 3
    assert (known.generation, stale.generation) == (1, 2)


def test_topics_not_asked_for_are_kept_and_all_replaces_all() -> None:
    known = ClusterMetadata().updated(response([(0, 1, 0)]), ["orders"])
    assert set(known.updated(response([(0, 1, 0)], name="other"), ["other"]).topics) == {"orders", "other"}
    assert set(known.updated(response([(0, 1, 0)], name="other"), None).topics) == {"other"}


def test_ten_thousand_partitions_are_not_compared_with_each_other() -> None:
    few, many = (min(_cost_of_updates(partitions) for _ in range(3)) for partitions in (2_000, 20_000))
    assert many < 50 * few  # linear: 10 times, quadratic: 100 times


def _cost_of_updates(partitions: int) -> float:
    answer = response([(index, 1, 0) for index in range(partitions)])
    gc.disable()
    try:
        began = time.thread_time()
        known = ClusterMetadata().updated(answer, ["orders"]).updated(answer, ["orders"])
        cost = time.thread_time() - began
    finally:
        gc.enable()
    assert len(known.topics["orders"].partitions) == partitions
    return cost


def test_metadata_that_name_no_brokers_are_asked_for_again(cluster: ScriptedCluster) -> None:
    """A broker that has just started knows no topics, either: they would pass for all there are."""
    cluster.create("orders", 1, leader=1)
    nothing = MetadataResponse(brokers=[], topics=[], cluster_id="c")
    for topics in (None, {"orders"}):
        cluster[1].push(MetadataRequest, nothing, nothing)
        router = Router(config(cluster[1].address))
        found = router.metadata(topics)
        assert (set(found.topics), set(found.brokers)) == ({"orders"}, {1, 2, 3})
        cluster[1].push(MetadataRequest, nothing)
        assert set(router.metadata(topics, refresh=True).topics) == {"orders"}
        router.close()
