"""What a proxy does to frames, seen by a client of plain sockets: replies are read by hand."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedBroker
from support.waiting import eventually

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.protocol.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_native.kafka.protocol.api.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_native.kafka.protocol.api.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.protocol.api.transactions import EndTxnRequest, EndTxnResponse
from spark_kafka_native.kafka.protocol.framing import Framing
from spark_kafka_native.kafka.protocol.message import Request
from spark_kafka_native.testing import FaultProxy, FaultRule, faults, read_trace, write_trace

END = EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=1, committed=True)
DONE = EndTxnResponse(error_code=ErrorCode.NONE, producer_id=7, producer_epoch=2)


class Client:
    """One connection, and its client id."""

    def __init__(self, address: str, client_id: str = "c") -> None:
        host, _, port = address.partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.session = Framing(client_id)

    def send(self, request: Request[Any], version: int) -> None:
        _, buffers = self.session.send(request, version)
        self.socket.sendall(b"".join(buffers))

    def frame(self) -> bytes:
        """The next frame without its length; as much of it as came."""
        prefix = self.read(4)
        return self.read(struct.unpack(">i", prefix)[0]) if len(prefix) == 4 else prefix

    def read(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size and (part := self.socket.recv(size - len(parts))):
            parts += part
        return parts

    def ask(self, request: Request[Any], version: int) -> Any:
        self.send(request, version)
        return self.session.receive(memoryview(self.frame()))[1]

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as running:
        running.on(EndTxnRequest, DONE)
        yield running


@pytest.fixture
def proxy(broker: ScriptedBroker) -> Iterator[FaultProxy]:
    with FaultProxy(broker.address, seed=5) as running:
        yield running


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[Client]:
    with closing(Client(proxy.bootstrap_servers)) as connected:
        yield connected


def test_without_rules_everything_passes(proxy: FaultProxy, client: Client, broker: ScriptedBroker) -> None:
    assert [client.ask(END, version) for version in (5, 5)] == [DONE, DONE]
    assert broker.requests(EndTxnRequest) == [END, END]
    assert proxy.trace == []
    assert proxy.seen == {("EndTxn", "request"): 2, ("EndTxn", "reply"): 2}


def test_brokers_addresses_become_the_proxys(
    proxy: FaultProxy, client: Client, broker: ScriptedBroker
) -> None:
    with ScriptedBroker(2) as other:
        other.on(EndTxnRequest, DONE)
        both = [MetadataResponseBroker(node_id=b.node_id, host=b.host, port=b.port) for b in (broker, other)]
        broker.on(MetadataRequest, MetadataResponse(brokers=both, topics=[]))
        found = Coordinator(
            key="t", node_id=2, host=other.host, port=other.port, error_code=ErrorCode.NONE, error_message=""
        )
        none = Coordinator(
            key="u", node_id=-1, host="", port=-1, error_code=ErrorCode.NOT_COORDINATOR, error_message=""
        )
        broker.on(FindCoordinatorRequest, FindCoordinatorResponse(coordinators=[found, none]))

        metadata = client.ask(MetadataRequest(topics=[]), 12)
        first = metadata.brokers[0]
        assert f"{first.host}:{first.port}" == proxy.bootstrap_servers
        told = client.ask(FindCoordinatorRequest(coordinator_keys=["t", "u"]), 4).coordinators
        assert (told[0].host, told[0].port) == (metadata.brokers[1].host, metadata.brokers[1].port)
        assert told[1] == none
        with closing(Client(f"{told[0].host}:{told[0].port}")) as second:
            assert second.ask(END, 5) == DONE
        assert len(other.requests(EndTxnRequest)) == 1


def test_versions_can_be_limited(broker: ScriptedBroker) -> None:
    with (
        FaultProxy(broker.address, max_versions={"EndTxn": 4}) as proxy,
        closing(Client(proxy.bootstrap_servers)) as client,
    ):
        told: ApiVersionsResponse = client.ask(ApiVersionsRequest(), 3)
        offered = {one.api_key: one.max_version for one in told.api_keys}
        assert offered[EndTxnRequest.api_key] == 4
        assert offered[1] == 15  # a later Fetch has addresses
    with pytest.raises(ValueError, match="no API is called 'EndTransaction'"):
        FaultProxy(broker.address, max_versions={"EndTransaction": 4})


@pytest.mark.parametrize("side", ["request", "reply"])
def test_reset(proxy: FaultProxy, client: Client, broker: ScriptedBroker, side: Any) -> None:
    proxy.add(FaultRule(api="EndTxn", side=side, fault=faults.Reset()))
    client.send(END, 5)
    with pytest.raises(ConnectionResetError):
        client.frame()
    assert len(broker.requests(EndTxnRequest)) == (side == "reply")
    (fell,) = proxy.trace
    assert (fell.side, fell.api, fell.version, fell.client_id) == (side, "EndTxn", 5, "c")


def test_a_reply_is_dropped(proxy: FaultProxy, client: Client, broker: ScriptedBroker) -> None:
    proxy.add(FaultRule(api="EndTxn", fault=faults.DropReply()))
    client.send(END, 5)
    assert client.frame() == b""
    assert len(broker.requests(EndTxnRequest)) == 1


def test_cut_at_each_byte(proxy: FaultProxy, broker: ScriptedBroker) -> None:
    with closing(Client(proxy.bootstrap_servers)) as client:
        client.send(END, 5)
        whole = client.read(4)
        whole += client.read(struct.unpack(">i", whole)[0])
    for size in range(len(whole)):
        rule = proxy.add(FaultRule(fault=faults.CutAt(size)))
        with closing(Client(proxy.bootstrap_servers)) as client:
            client.send(END, 5)
            assert client.read(len(whole) + 1) == whole[:size]
        proxy.remove(rule)
    asked = len(broker.requests(EndTxnRequest))
    proxy.add(FaultRule(side="request", fault=faults.CutAt(9)))
    with closing(Client(proxy.bootstrap_servers)) as client:
        client.send(END, 5)
        assert client.frame() == b""
    assert len(broker.requests(EndTxnRequest)) == asked


def test_flip_and_rewritten_errors(proxy: FaultProxy, client: Client) -> None:
    client.send(END, 5)
    whole = client.frame()
    proxy.add(FaultRule(fault=faults.Flip(-1), times=1))
    client.send(END, 5)
    flipped = client.frame()
    assert flipped[4:] == whole[4:-1] + bytes([whole[-1] ^ 1])
    proxy.add(FaultRule(api="EndTxn", fault=faults.RewriteError(ErrorCode.NOT_COORDINATOR)))
    client.send(END, 5)
    client.session.receive(memoryview(whole))
    client.session.receive(memoryview(whole[:3] + b"\1" + whole[4:]))
    told: Any = client.session.receive(memoryview(client.frame()))[1]
    assert (told.error_code, told.producer_id) == (ErrorCode.NOT_COORDINATOR, 7)


def test_half_close(proxy: FaultProxy, client: Client, broker: ScriptedBroker) -> None:
    proxy.add(FaultRule(fault=faults.HalfClose(), times=1))
    client.send(END, 5)
    assert client.frame() == b""
    for _ in range(2):
        client.send(END, 5)
    client.close()  # sent requests arrive
    with closing(Client(proxy.bootstrap_servers)) as second:
        proxy.wait_for_faults()
        while len(broker.requests(EndTxnRequest)) < 3:
            second.ask(ApiVersionsRequest(), 3)


@pytest.mark.parametrize("side", ["request", "reply"])
def test_black_hole(proxy: FaultProxy, client: Client, broker: ScriptedBroker, side: Any) -> None:
    proxy.add(FaultRule(side=side, fault=faults.BlackHole(), times=1))
    client.send(END, 5)
    proxy.wait_for_faults()
    client.send(END, 5)
    client.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.socket.recv(1)
    assert len(broker.requests(EndTxnRequest)) == (side == "reply")


def test_a_request_that_is_held_arrives_though_its_client_has_gone(
    proxy: FaultProxy, client: Client, broker: ScriptedBroker
) -> None:
    hold = faults.Hold()
    proxy.add(FaultRule(api="EndTxn", side="request", fault=hold, times=1))
    client.send(END, 5)
    hold.wait()
    since = time.monotonic()
    client.close()
    with closing(Client(proxy.bootstrap_servers)) as second:
        assert second.ask(END, 5) == DONE
        assert len(broker.requests(EndTxnRequest)) == 1
        held_s = time.monotonic() - since
        hold.release()
        (held,) = proxy.wait_for_faults()
        assert isinstance(held.fault, faults.Delay)
        assert held.fault.ms >= held_s * 1_000, "a replay would hold it for a shorter time"
        while len(broker.requests(EndTxnRequest)) < 2:
            second.ask(ApiVersionsRequest(), 3)


def test_a_reply_that_is_held_comes_late(proxy: FaultProxy, client: Client, broker: ScriptedBroker) -> None:
    hold = faults.Hold()
    proxy.add(FaultRule(api="EndTxn", fault=hold))
    proxy.add(FaultRule(api="ApiVersions", fault=faults.Delay(1, 2)))
    client.send(END, 5)
    client.send(ApiVersionsRequest(), 3)
    hold.wait()
    assert len(broker.requests(EndTxnRequest)) == 1
    assert hold.held == 1
    hold.release(once=True)
    assert client.session.receive(memoryview(client.frame()))[1] == DONE
    client.session.receive(memoryview(client.frame()))
    assert 1 <= vars(proxy.wait_for_faults(2)[1].fault)["ms"] <= 2
    client.send(END, 5)
    hold.wait()
    hold.release()
    client.frame()


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
def test_a_reply_is_waited_for_and_traced_though_its_client_has_gone(
    proxy: FaultProxy, client: Client, resets: bool
) -> None:
    hold = faults.Hold()
    proxy.add(FaultRule(api="EndTxn", fault=hold, times=1))
    client.send(END, 5)
    hold.wait()
    if resets:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with closing(Client(proxy.bootstrap_servers)) as second:
        assert second.ask(END, 5) == DONE  # the proxy has noticed the end of the first connection before
    hold.release()
    (held,) = proxy.wait_for_faults(timeout_s=20)
    assert (held.api, held.side, type(held.fault)) == ("EndTxn", "reply", faults.Delay)


def test_rules_fit_count_and_ask(proxy: FaultProxy, client: Client, broker: ScriptedBroker) -> None:
    reset = faults.DropReply()
    proxy.add(FaultRule(client_id="somebody else", fault=reset))
    proxy.add(FaultRule(broker="elsewhere:9092", fault=reset))
    proxy.add(FaultRule(api="EndTxn", when=lambda one: not one.message.committed, fault=reset))  # type: ignore[attr-defined]
    last = proxy.add(FaultRule(broker=broker.address, api="EndTxn", skip=1, times=1, fault=reset))
    assert client.ask(END, 5) == DONE
    client.send(END, 5)
    assert client.frame() == b""
    with closing(Client(proxy.bootstrap_servers)) as second:
        assert second.ask(END, 5) == DONE
        second.send(EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=1, committed=False), 5)
        assert second.frame() == b""
    proxy.remove(last)
    proxy.clear()


def run(proxy: FaultProxy) -> list[str]:
    """What three connections see, each of them asking up to ten times."""
    seen = []
    for _ in range(3):
        with closing(Client(proxy.bootstrap_servers)) as client:
            for _ in range(10):
                try:
                    client.send(END, 5)
                    frame = client.frame()
                except ConnectionError:
                    seen.append("reset")
                    break
                seen.append(frame.hex())
                if len(frame) < 8:
                    break
    return seen


def disturb(proxy: FaultProxy) -> None:
    proxy.add(FaultRule(fault=faults.Flip(), probability=0.2))
    proxy.add(FaultRule(fault=faults.CutAt(), probability=0.1))
    proxy.add(FaultRule(fault=faults.Delay(0, 1), probability=0.3))
    proxy.add(FaultRule(side="request", fault=faults.Reset(), probability=0.05))


def test_the_same_seed_and_the_same_trace_give_the_same_faults(
    broker: ScriptedBroker, tmp_path: Path
) -> None:
    seen, traces = [], []
    for seed in (1, 1, 2):
        with FaultProxy(broker.address, seed=seed) as proxy:
            disturb(proxy)
            seen.append(run(proxy))
            traces.append(proxy.trace)
    assert seen[0] == seen[1] != seen[2]
    assert [(one.place, one.fault) for one in traces[0]] == [(one.place, one.fault) for one in traces[1]]
    assert len({type(one.fault) for one in traces[0]}) > 1

    write_trace(traces[0], tmp_path / "trace")
    assert read_trace(tmp_path / "trace") == traces[0]
    with FaultProxy(broker.address, seed=3, replay=read_trace(tmp_path / "trace")) as proxy:
        assert run(proxy) == seen[0]


def test_a_fault_of_one_connection_is_replayed_on_that_one_alone(broker: ScriptedBroker) -> None:
    with FaultProxy(broker.address) as proxy:
        proxy.add(FaultRule(api="EndTxn", client_id="second", fault=faults.DropReply()))
        with (
            closing(Client(proxy.bootstrap_servers)) as first,
            closing(Client(proxy.bootstrap_servers, "second")) as second,
        ):
            assert first.ask(END, 5) == DONE
            second.send(END, 5)
            assert second.frame() == b""
        (fell,) = proxy.trace
    assert (fell.broker_index, fell.connection, fell.ordinal) == (0, 1, 0)
    with FaultProxy(broker.address, replay=[fell]) as proxy:
        seen = []
        for _ in range(3):
            with closing(Client(proxy.bootstrap_servers)) as client:
                client.send(END, 5)
                seen.append(client.frame() != b"")
        assert seen == [True, False, True]


def test_a_trace_without_faults_is_replayed_without_faults(broker: ScriptedBroker) -> None:
    with FaultProxy(broker.address, replay=[]) as proxy:
        proxy.add(FaultRule(fault=faults.Reset()))
        with closing(Client(proxy.bootstrap_servers)) as client:
            assert client.ask(END, 5) == DONE
        assert proxy.trace == []


def test_a_trace_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text('{"fault": {"kind": "Exec"}}\n')
    with pytest.raises(ValueError, match=r"trace, line 1: no traced fault \(no fault"):
        read_trace(path)


@pytest.mark.parametrize(
    "fault", [faults.RewriteError(ErrorCode.NOT_COORDINATOR), faults.CutAt(3)], ids=["with a code", "plain"]
)
def test_a_fault_that_was_written_can_be_read_more_than_once(fault: faults.Fault) -> None:
    written = faults.to_json(fault)
    assert [faults.from_json(written) for _ in range(2)] == [fault, fault]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"side": "both", "fault": faults.Reset()}, "side is 'both'"),
        ({"side": "request", "fault": faults.DropReply()}, "DropReply is for replies"),
        ({"api": "EndTransaction", "fault": faults.Reset()}, "no API is called 'EndTransaction'"),
        ({"probability": 2, "fault": faults.Reset()}, "probability is 2"),
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FaultRule(**wrong)


def test_nothing_is_answered_to_acks_0(proxy: FaultProxy, client: Client, broker: ScriptedBroker) -> None:
    client.send(ProduceRequest(transactional_id=None, acks=0, timeout_ms=1, topic_data=[]), 9)
    assert client.ask(END, 5) == DONE


def test_what_is_no_kafka_frame_ends_the_connection(proxy: FaultProxy, client: Client) -> None:
    client.socket.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # TLS
    assert client.read(1) == b""


def test_a_broker_that_is_down_resets(proxy: FaultProxy, broker: ScriptedBroker) -> None:
    broker.stop()
    with pytest.raises(ConnectionResetError):  # at once, or when it is read from
        Client(proxy.bootstrap_servers).frame()
    broker.start()
    with closing(Client(proxy.bootstrap_servers)) as client:
        assert client.ask(END, 5) == DONE


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def test_a_connection_that_cannot_be_accepted_is_not_the_last(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "none is left")]

    def accept_later(self: socket.socket) -> Any:
        if failures and self.getsockname()[1] == port:
            raise failures.pop()
        return accept(self)

    with FaultProxy(broker.address) as proxy:
        port = int(proxy.bootstrap_servers.partition(":")[2])
        monkeypatch.setattr(socket.socket, "accept", accept_later)
        with closing(Client(proxy.bootstrap_servers)) as client:
            assert client.ask(END, 5) == DONE
    assert not failures


def test_a_connection_that_comes_as_the_proxy_ends_is_closed(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clients: list[Client] = []
    with FaultProxy(broker.address) as proxy:
        loop: Any = proxy._loop
        stop = loop.stop

        def connect_and_stop() -> None:
            # The next time that the loop looks at its sockets it is ending its tasks.
            if not clients:
                clients.append(Client(proxy.bootstrap_servers))
            stop()

        monkeypatch.setattr(loop, "stop", connect_and_stop)
    (client,) = clients
    with closing(client):
        assert not caplog.records
        with pytest.raises(ConnectionResetError):
            client.read(1)


def test_nothing_is_left_behind(broker: ScriptedBroker) -> None:
    before = open_files(), threading.active_count()
    for _ in range(3):
        hold = faults.Hold()
        with FaultProxy(broker.address) as proxy:
            proxy.add(FaultRule(api="EndTxn", side="request", fault=hold))
            proxy.add(FaultRule(api="ApiVersions", fault=faults.BlackHole()))
            clients = [Client(proxy.bootstrap_servers) for _ in range(6)]
            for number, client in enumerate(clients):
                client.send(END if number % 2 else ApiVersionsRequest(), 3)
            hold.wait(frames=3)
            proxy.wait_for_faults(3)
        for client in clients:
            client.close()
        assert hold.held == 0
        proxy.close()
    broker.hang_up()
    assert threading.active_count() <= before[1] + 3 * 6  # the broker's own, about to end
    assert not [one for one in threading.enumerate() if one.name == "fault-proxy"]
    eventually(lambda: open_files() <= before[0] + 2, "the end of the broker's sockets")


def test_it_starts_once(proxy: FaultProxy) -> None:
    with pytest.raises(RuntimeError, match="already running"):
        proxy.start()
    with pytest.raises(ValueError, match="'localhost' is no host:port"):
        FaultProxy("localhost")
    assert repr(proxy) == f"FaultProxy({proxy.bootstrap_servers}, 0 faults so far)"
