"""A broker that can't be connected to is named in the log, once, whichever part of a client needs it."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.brokers.produce_cluster import ProduceCluster
from support.brokers.scripted_group import ScriptedGroup
from support.brokers.silent_listener import silent_listener
from support.interrupts.signal_steps import run_at
from support.waiting import eventually

from spark_kafka_native.cli.main import main
from spark_kafka_native.kafka.cluster import brokers
from spark_kafka_native.kafka.cluster.brokers import Outages
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.errors import NetworkError, ProtocolError
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import DeliveryError
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest

HINT = "is what broker 7 advertises: if clients can't reach it under that name, its advertised.listeners must"


def dead_port() -> int:
    with silent_listener() as sock:
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def web_server() -> Iterator[int]:
    """What greets each client as a web server does."""

    class Greeting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.3", 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


@contextlib.contextmanager
def led_from(port: int) -> Iterator[ProduceCluster]:
    """One broker that can be asked; the leader of everything advertises ``port``."""
    with ProduceCluster() as cluster:
        cluster.create("t", leader=7)

        def metadata(asked: MetadataRequest, version: int) -> Any:
            told = cluster.metadata(asked, version)
            other = replace(told.brokers[0], node_id=7, host="127.0.0.3", port=port)
            return replace(told, brokers=[*told.brokers, other])

        cluster[1].on(MetadataRequest, metadata)
        ScriptedGroup(cluster, [TopicPartition("t", 0)])
        yield cluster


@pytest.fixture(params=["refuses", "silent"])
def misadvertised(request: pytest.FixtureRequest) -> Iterator[ProduceCluster]:
    with contextlib.ExitStack() as stack:
        silent = request.param == "silent"
        port = stack.enter_context(silent_listener()).getsockname()[1] if silent else dead_port()
        yield stack.enter_context(led_from(port))


def poll_consumer(bootstrap: str) -> None:
    with Consumer(bootstrap, "t", start=0) as consumer:
        assert consumer.poll(1) == []


def poll_group(bootstrap: str) -> None:
    with GroupConsumer(bootstrap, "t", "g") as consumer:
        assert consumer.fetch_record(1) is None


def produce(bootstrap: str) -> None:
    with Producer(bootstrap, delivery_timeout_ms=1_000) as producer:
        deliveries = [producer.send("t", value=b"1", partition=0) for _ in range(2)]
        for delivery in deliveries:
            with pytest.raises(DeliveryError, match=HINT):
                delivery.result(60)


def close_at_once(bootstrap: str) -> None:
    producer = Producer(bootstrap)
    delivery = producer.send("t", value=b"1", partition=0)
    producer.close(1)
    with pytest.raises(DeliveryError, match=f"closed before they could be delivered; .*{HINT}"):
        delivery.result(0)


@pytest.mark.parametrize("use", [poll_consumer, poll_group, produce, close_at_once])
def test_an_unreachable_leader_is_said_once(
    misadvertised: ProduceCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[str], None],
) -> None:
    monkeypatch.setattr(brokers, "SAY_AFTER_S", 0.2)
    use(misadvertised.bootstrap_servers)
    lines = [one for one in caplog.records if one.levelname == "WARNING" and one.module == "brokers"]
    [said] = [one.getMessage() for one in lines]
    assert said.startswith("broker 7")
    assert HINT in said


def test_an_address_that_is_no_brokers_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "SAY_AFTER_S", 0.2)
    with web_server() as port, led_from(port) as cluster:
        produce(cluster.bootstrap_servers)
        [said] = [one.getMessage() for one in caplog.records if one.module == "brokers"]
        assert f"broker 7 at 127.0.0.3:{port}: the peer answered with HTTP" in said
        reading = Consumer(cluster.bootstrap_servers, "t", start=0)
        with reading as consumer, pytest.raises(ProtocolError, match=HINT):
            consumer.poll(60)


def test_produce_ends_in_its_time_and_names_the_broker(
    misadvertised: ProduceCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(brokers, "SAY_AFTER_S", 0.2)
    (tmp_path / "lines").write_bytes(b"1\n2\n")
    command = ["produce", "t", str(tmp_path / "lines"), "-b", misadvertised.bootstrap_servers]
    assert main([*command, "--timeout", "1"]) == 1
    said = capsys.readouterr().err
    assert "error: 2 records are not; the first failure: " in said
    assert "delivery.timeout.ms=1000" in said
    assert HINT in said


class TestOutages:
    def fail(self, outages: Outages, node_id: int = 1) -> None:
        with pytest.raises(NetworkError), outages.attempt(node_id, "one:1", ""):
            raise NetworkError(f"broker {node_id}: off")

    def test_a_short_one_is_not_said(self, caplog: pytest.LogCaptureFixture) -> None:
        found = Outages()
        self.fail(found)
        assert str(found.error(1)) == "broker 1: off"
        with found.attempt(1, "one:1", ""):
            pass
        assert found.error(1) is None
        assert not caplog.records

    def test_each_is_said_for_itself_until_it_is_over(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [1_000.0]
        monkeypatch.setattr(brokers.time, "monotonic", lambda: now[0])
        found = Outages()
        for node_id in (1, 2, 1, 2, 1):
            self.fail(found, node_id)
            now[0] += 2
        assert [one.getMessage()[:9] for one in caplog.records] == ["broker 1:", "broker 2:"]
        with found.attempt(1, "one:1", ""):
            pass
        self.fail(found)
        assert len(caplog.records) == 2
        now[0] += 2
        self.fail(found)
        assert len(caplog.records) == 3

    def test_one_failure_now_and_one_long_ago_are_no_outage(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [1_000.0]
        monkeypatch.setattr(brokers.time, "monotonic", lambda: now[0])
        found = Outages()
        self.fail(found)
        now[0] += 100
        assert found.error(1) is None
        self.fail(found)
        assert not caplog.records

    def test_one_that_is_being_tried_is_not_over_however_long_that_takes(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [1_000.0]
        monkeypatch.setattr(brokers.time, "monotonic", lambda: now[0])
        found = Outages()
        self.fail(found)
        now[0] += 2
        with found.attempt(1, "one:1", ""):
            now[0] += 100
            assert str(found.error(1)) == "broker 1: off"
            self.fail(found)
            assert str(found.error(1)) == "broker 1: off"
        assert len(caplog.records) == 1

    def test_the_next_attempt_does_not_hide_why_the_last_one_has_failed(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(brokers, "SAY_AFTER_S", 0.2)
        found = Outages()
        self.fail(found)
        with found.attempt(1, "one:1", ""):
            eventually(lambda: bool(caplog.records))
            assert str(found.error(1)) == "broker 1: off"
        assert caplog.records[0].getMessage().startswith("broker 1: off.")

    @pytest.mark.parametrize("where", ["in the handler", "in a thread that the handler waits for"])
    @pytest.mark.parametrize("fails", [True, False])
    def test_the_handler_of_a_signal_may_connect_wherever_it_comes(self, where: str, fails: bool) -> None:
        """As when it closes a client with threads that may have to connect for that."""
        found = Outages()

        def attempt() -> None:
            with contextlib.suppress(NetworkError), found.attempt(1, "one:1", ""):
                if fails:
                    raise NetworkError("broker 1: off")

        def handler() -> None:
            if where == "in the handler":
                attempt()
            else:
                thread = threading.Thread(target=attempt, daemon=True)
                thread.start()
                thread.join(20)
                assert not thread.is_alive()

        def at_every_step() -> None:
            step = 0
            while run_at(step, handler, attempt):
                step += 1
            steps.append(step)

        steps: list[int] = []
        # In a thread of its own, so that one that waits for itself fails the test and does not hang it.
        main = threading.Thread(target=at_every_step, daemon=True)
        main.start()
        main.join(60)
        assert steps
        assert steps[0] > 10
        assert (found.error(1) is not None) == fails
        assert not found._outages or not found._outages[1].attempts

    def test_of_many_threads_one_says_it(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(brokers, "SAY_AFTER_S", 0)
        found = Outages()
        self.fail(found)
        threads = [threading.Thread(target=self.fail, args=(found,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(caplog.records) == 1
        assert not found._outages[1].attempts
