"""A connection that ends in the middle of a request, at each of its bytes: nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_native.kafka import Consumer, Producer
from spark_kafka_native.testing import MockBroker
from spark_kafka_native.testing.fault_proxy import FaultProxy
from spark_kafka_native.testing.faults import CutAt, FaultRule

SETTINGS = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 2}
CUTS = [*range(24), *range(24, 140, 7)]
"""Within the length, the header and the body; a cut behind the end is the whole request, and no answer."""


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker() as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def proxy(broker: MockBroker) -> Iterator[FaultProxy]:
    with FaultProxy(broker.bootstrap_servers) as running:
        yield running


def test_a_produce_request_that_is_cut_anywhere_is_written_once(
    broker: MockBroker, proxy: FaultProxy
) -> None:
    values = [b"%d" % cut for cut in CUTS]
    with Producer(proxy.bootstrap_servers, linger_ms=0, **SETTINGS) as producer:
        for cut, value in zip(CUTS, values, strict=True):
            rule = proxy.add(FaultRule(fault=CutAt(cut), api="Produce", side="request", times=1))
            assert producer.send("t", value=value).result(60) is not None
            proxy.remove(rule)
    assert len(proxy.trace) == len(CUTS)
    assert [record.value for record in broker.records("t")] == values


def test_a_fetch_request_that_is_cut_anywhere_is_made_again(broker: MockBroker, proxy: FaultProxy) -> None:
    found = []
    with Consumer(proxy.bootstrap_servers, topic="t", **SETTINGS) as consumer:
        for cut in CUTS:
            rule = proxy.add(FaultRule(fault=CutAt(cut), api="Fetch", side="request", times=1))
            broker.append("t", [b"%d" % cut])
            record = next(consumer)
            found.append((record.offset, record.value))
            proxy.remove(rule)
    assert found == [(offset, b"%d" % cut) for offset, cut in enumerate(CUTS)]
    assert len(proxy.trace) > len(CUTS) // 2
