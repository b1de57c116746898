"""A `FaultProxy` that is asked for the impossible, is used twice, or has peers that send odd bytes."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest
from support.brokers.framed_client import Peer

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.testing import FaultProxy, FaultRule, MockBroker, ProxiedRequest, faults
from spark_kafka_native.testing.faults import FaultPlan


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    with MockBroker() as broker:
        broker.on("GetTelemetrySubscriptions", times=None).reply({})
        yield broker


def list_groups(proxy: FaultProxy) -> bytes:
    """What a client gets of the answer's length."""
    with closing(Peer(proxy.bootstrap_servers)) as peer:
        peer.send("ListGroups", {}, 4)
        return peer.read(4)


def test_it_starts_again(broker: MockBroker) -> None:
    proxy = FaultProxy(broker.bootstrap_servers)
    for _ in range(2):
        with proxy:
            assert len(list_groups(proxy)) == 4
        assert proxy.bootstrap_servers == ""


def test_a_start_that_fails_leaves_nothing_open(broker: MockBroker) -> None:
    with pytest.raises(OSError, match=r"203\.0\.113\.7|assign"):
        FaultProxy(broker.bootstrap_servers, host="203.0.113.7").start()  # of no host: RFC 5737
    if os.path.isdir("/proc/self/fd"):
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match=r"203\.0\.113\.7|assign"):
            FaultProxy(broker.bootstrap_servers, host="203.0.113.7").start()
        assert len(os.listdir("/proc/self/fd")) == before


def cannot_ask(request: Any) -> bool:
    return bool(request.nothing)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (FaultRule(fault=faults.Reset(), when=cannot_ask), "has no attribute 'nothing'"),
        (FaultRule(fault=faults.Flip(10_000)), "IndexError"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_told_at_the_end(
    broker: MockBroker, rule: FaultRule, words: str
) -> None:
    """Or a test would pass that has tried nothing of what it says."""
    proxy = FaultProxy(broker.bootstrap_servers).start()
    proxy.add(rule)
    assert list_groups(proxy) == b""
    with pytest.raises(RuntimeError, match=words):
        proxy.close()
    proxy.close()

    def test() -> None:
        with FaultProxy(broker.bootstrap_servers) as proxy:
            proxy.add(rule)
            assert list_groups(proxy) == b""

    with pytest.raises(RuntimeError, match=words):
        test()


def test_what_a_test_raises_itself_comes_first(broker: MockBroker) -> None:
    def test() -> None:
        with FaultProxy(broker.bootstrap_servers) as proxy:
            proxy.add(FaultRule(fault=faults.Flip(10_000)))
            assert list_groups(proxy) == b""
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        test()


def test_errors_of_an_unknown_api_are_not_rewritten(broker: MockBroker) -> None:
    proxy = FaultProxy(broker.bootstrap_servers).start()
    proxy.add(FaultRule(fault=faults.RewriteError(ErrorCode.NOT_COORDINATOR)))
    with closing(Peer(proxy.bootstrap_servers)) as peer:
        peer.send("GetTelemetrySubscriptions", {}, 0)
        assert peer.read(4) == b""
    with pytest.raises(RuntimeError, match="the error codes of Api71 are not known here: name an API"):
        proxy.close()


def test_a_version_that_is_not_offered_ends_the_connection(
    broker: MockBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        FaultProxy(broker.bootstrap_servers) as proxy,
        closing(Peer(proxy.bootstrap_servers)) as peer,
    ):
        peer.socket.sendall(b"\0\0\0\x0a\0\0\0\2\0\0\0\0\xff\xff")  # Produce 2, of clients before 0.11
        assert peer.read(4) == b""
    assert "ProduceRequest is declared for versions 3 to 13, not 2" in caplog.text


def test_a_client_that_is_too_new_learns_which_versions_there_are(broker: MockBroker) -> None:
    """KIP-511: at version 0, for any version of the request. APIs that leak addresses are not among them."""
    broker.on("ShareFetch", times=None).reply({})
    with FaultProxy(broker.bootstrap_servers) as proxy:
        for servers, share in ((broker.bootstrap_servers, {78}), (proxy.bootstrap_servers, set[int]())):
            with closing(Peer(servers)) as peer:
                peer.socket.sendall(struct.pack(">ihhihB", 11, 18, 99, 7, -1, 0))
                told = peer.receive("ApiVersions", 0)
            assert told["error_code"] == ErrorCode.UNSUPPORTED_VERSION
            assert {one["api_key"] for one in told["api_keys"]} & {78, 79} == share


def test_a_leader_that_a_produce_names_is_behind_the_proxy(broker: MockBroker) -> None:
    """KIP-951: a client would go round the proxy."""
    there = {"node_id": 1, "host": "127.0.0.1", "port": int(broker.bootstrap_servers.split(":")[1])}
    broker.on("Produce").change(lambda fields: fields.update(node_endpoints=[there]))
    with FaultProxy(broker.bootstrap_servers) as proxy, closing(Peer(proxy.bootstrap_servers)) as peer:
        (told,) = peer.ask("Produce", {"acks": 1, "topic_data": []}, 10)["node_endpoints"]
        assert f"{told['host']}:{told['port']}" == proxy.bootstrap_servers


def test_each_rule_draws_for_itself() -> None:
    plan = FaultPlan(seed=1)
    for _ in range(2):
        plan.add(FaultRule(fault=faults.Reset(), api="Fetch", probability=0.5))
    fell = sum(plan.choose(request(ordinal), "reply", 99) is not None for ordinal in range(1000))
    assert 650 < fell < 850, "of the half that the first one spares, the second takes a half"


def request(ordinal: int) -> ProxiedRequest:
    return ProxiedRequest(
        broker="b:1",
        broker_index=0,
        connection=0,
        ordinal=ordinal,
        api_key=1,
        version=12,
        correlation_id=ordinal,
        client_id=None,
        body=memoryview(b""),
    )


def test_a_reply_to_nothing_ends_the_connection(broker: MockBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.on("ListGroups").corrupt(0)  # the correlation id
    with caplog.at_level(logging.WARNING), FaultProxy(broker.bootstrap_servers) as proxy:
        assert list_groups(proxy) == b""
    assert "is not what was asked" in caplog.text


def test_what_a_broker_ends_behind_a_black_hole_stays_open(broker: MockBroker) -> None:
    with FaultProxy(broker.bootstrap_servers) as proxy, closing(Peer(proxy.bootstrap_servers)) as peer:
        proxy.add(FaultRule(api="ListGroups", fault=faults.BlackHole(), times=1))
        peer.send("ListGroups", {}, 4)
        proxy.wait_for_faults()
        broker.hang_up()
        for _ in range(10):  # time enough for the proxy to hear of it
            assert len(list_groups(proxy)) == 4
        peer.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.socket.recv(1)


def test_what_was_asked_is_done_though_an_answer_finds_nobody(broker: MockBroker) -> None:
    before = len(broker.asked("DescribeCluster"))
    answered, asked = faults.Hold(), faults.Hold()
    with FaultProxy(broker.bootstrap_servers) as proxy:
        proxy.add(FaultRule(api="ListGroups", fault=answered, times=1))
        proxy.add(FaultRule(api="DescribeCluster", side="request", fault=asked))
        peer = Peer(proxy.bootstrap_servers)
        peer.send("ListGroups", {}, 4)
        peer.send("DescribeCluster", {}, 1)
        answered.wait()
        asked.wait()
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()  # by a reset
        answered.release()
        proxy.wait_for_faults()
        for _ in range(10):  # time enough for the answer to be written
            list_groups(proxy)
        asked.release()
        assert len(broker.wait_for("DescribeCluster", before + 1)) == before + 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"fault": faults.Reset}, r"fault is <class .*Reset'>: it may be one of `faults`, as Reset\(\)"),
        ({"fault": faults.Reset(), "skip": -1}, "skip is -1"),
        ({"fault": faults.Reset(), "times": -1}, "times is -1"),
    ],
)
def test_rules_that_would_do_nothing_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FaultRule(**wrong)


def test_each_fault_makes_a_rule() -> None:
    every = (faults.Delay(1), faults.Hold(), faults.DropReply(), faults.Reset(), faults.HalfClose())
    for fault in (
        *every,
        faults.BlackHole(),
        faults.CutAt(),
        faults.Flip(),
        faults.RewriteError(ErrorCode(1)),
    ):
        assert FaultRule(fault=fault).fault is fault
    assert len(every) + 4 == len(faults.KINDS)


@pytest.mark.parametrize(("side", "first"), [("request", 12), ("reply", 8)])
def test_what_is_drawn_to_be_flipped_is_behind_the_correlation_id(side: Any, first: int) -> None:
    drawn = {faults.drawn(faults.Flip(), side, 20, Random(seed)) for seed in range(400)}
    assert {vars(one)["byte"] for one in drawn} == set(range(first, 20))
    assert faults.drawn(faults.Flip(), side, 5, Random(1)) == faults.Flip(4)
