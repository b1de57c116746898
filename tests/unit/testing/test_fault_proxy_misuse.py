"""A `FaultProxy` that is asked for what can't be, used twice, or spoken to in what it does not know."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest
from plain_peer import Peer

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.testing import FaultProxy, FaultRule, MockBroker, faults


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
        FaultProxy(broker.bootstrap_servers, host="203.0.113.7").start()  # nobody's: RFC 5737
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
