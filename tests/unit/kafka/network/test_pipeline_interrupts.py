"""Ctrl-C in the middle of a request: a shared connection is neither left locked nor left with half a
frame.
"""

from __future__ import annotations

import contextlib
import random
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedBroker, ScriptedCluster, Silence, properties
from support.interrupts.keyboard_interrupts import repeat_until_interrupted
from support.interrupts.signal_steps import interrupted_at, run_at

from spark_kafka_native.kafka.cluster.brokers import Brokers
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import NetworkError, RequestTimedOutError
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.network.transport import Transport
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.protocol.framing import Framing
from spark_kafka_native.kafka.runtime.deadline import Deadline

# An interrupt in a destructor.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

METADATA = MetadataRequest(topics=[])


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedCluster() as running:
        yield running[1]


def connect(broker: ScriptedBroker, **changed: object) -> Connection:
    config = ClientConfig.from_properties(properties(broker.address, **changed))
    return Connection.open(broker.host, broker.port, config)


def interrupted_after(call: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """``call`` with an interrupt (Ctrl-C) just before its ``times``-th result is returned."""
    calls = iter(range(1, times + 1))

    def wrapped(*arguments: Any) -> Any:
        result = call(*arguments)
        if next(calls, 0) == times:
            raise KeyboardInterrupt
        return result

    return wrapped


def expect_dead(connection: Connection) -> None:
    """The connection is dead at once: no thread waits for a reader or writer that never ends."""
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            connection.send(METADATA, 60_000)
        except NetworkError as error:
            failures.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(60)
    assert len(failures) == 1, "it lives on, or waits for ever"
    assert connection.closed
    assert "KeyboardInterrupt" in str(failures[0])


@pytest.mark.parametrize("read", ["result", "poll"])
def test_bytes_that_were_read_and_lost_are_the_end(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    connection = connect(broker)
    pending = connection.submit(METADATA)
    assert select.select([connection], [], [], 60)[0]
    monkeypatch.setattr(Transport, "read_into", interrupted_after(Transport.read_into))
    with pytest.raises(KeyboardInterrupt):
        pending.result() if read == "result" else connection.poll()
    monkeypatch.undo()
    expect_dead(connection)


@pytest.mark.parametrize("posted", [False, True])
def test_bytes_that_were_written_and_forgotten_are_the_end(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, posted: bool
) -> None:
    connection = connect(broker)
    monkeypatch.setattr(Transport, "write", interrupted_after(Transport.write))
    with pytest.raises(KeyboardInterrupt):
        connection.post(METADATA) if posted else connection.submit(METADATA)
    monkeypatch.undo()
    expect_dead(connection)


def test_a_request_that_was_counted_and_not_queued_is_the_end(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(broker)
    monkeypatch.setattr(Framing, "send", interrupted_after(Framing.send))
    with pytest.raises(KeyboardInterrupt):
        connection.submit(METADATA)
    monkeypatch.undo()
    expect_dead(connection)


def test_who_only_waits_for_a_turn_may_be_interrupted(broker: ScriptedBroker) -> None:
    """An interrupt while another thread reads: the connection stays usable."""
    broker.on(MetadataRequest, Silence)
    connection = connect(broker)
    held = connection.submit(METADATA)
    reading = threading.Thread(target=connection.wait_for, args=(held, Deadline.after_ms(600)), daemon=True)
    reading.start()
    mine = connection.submit(METADATA)
    repeat_until_interrupted(0.1, lambda: connection.wait_for(mine, Deadline.after_ms(20_000)))
    reading.join(60)
    assert not connection.closed


def test_interrupts_at_random_moments_leave_no_lock_held(broker: ScriptedBroker) -> None:
    """Two threads share connections, and one is interrupted repeatedly. The other never waits for long, and
    gets its own responses only.
    """
    rng = random.Random(3)
    current = [connect(broker)]
    stop = threading.Event()
    trouble: list[BaseException] = []

    def ask() -> None:
        while not stop.is_set():
            try:
                assert current[0].send(METADATA, 10_000).cluster_id == "mock"
            except RequestTimedOutError as error:
                trouble.append(error)
            except NetworkError:
                stop.wait(0.001)

    other = threading.Thread(target=ask, daemon=True)
    other.start()
    try:
        for _ in range(60):
            repeat_until_interrupted(rng.uniform(0.001, 0.02), lambda: use(current, broker))
    finally:
        stop.set()
    other.join(60)
    assert not other.is_alive()
    assert not trouble


def use(current: list[Connection], broker: ScriptedBroker) -> None:
    try:
        current[0].send(METADATA, 10_000)
    except RequestTimedOutError:
        raise
    except NetworkError:
        current[0] = connect(broker)


@pytest.mark.parametrize("submits", [False, True])
def test_a_descriptor_stays_open_while_a_thread_waits_for_it(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, submits: bool
) -> None:
    """The next socket would get its number, and the waiting thread would wait for that socket."""
    broker.on(MetadataRequest, Silence)
    connection = connect(broker)
    pending = connection.submit(METADATA)
    numbers: list[int] = []
    wait = Transport.wait

    def closed_meanwhile(transport: Transport, events: int, deadline: Deadline) -> int:
        connection.close()
        numbers.append(connection.fileno())
        return wait(transport, events, deadline)

    monkeypatch.setattr(Transport, "wait", closed_meanwhile)
    if submits:
        monkeypatch.setattr(Transport, "write", lambda _transport, _buffers: False)
        pending = connection.submit(METADATA)
    with pytest.raises(NetworkError, match="closed by this client"):
        pending.result(60_000)
    assert len(numbers) == 1
    assert numbers[0] >= 0
    assert connection.fileno() == -1


def test_who_waits_on_a_connection_whose_end_was_interrupted_gets_an_error(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.on(MetadataRequest, Silence)
    connection = connect(broker)
    pending = connection.submit(METADATA)
    monkeypatch.setattr(Transport, "shut", interrupted_after(Transport.shut))
    with pytest.raises(KeyboardInterrupt):
        connection.close()
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            pending.result(100)
        except NetworkError as error:
            failures.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(60)
    assert len(failures) == 1
    assert "the connection was closed by this client" in str(failures[0])


@pytest.mark.parametrize("dying", [False, True])
def test_a_handler_that_closes_a_connection_leaves_no_request_without_an_end(
    broker: ScriptedBroker, dying: bool
) -> None:
    """Wherever it has interrupted a thread that reads for others, or ends the connection: a thread that waits
    for one of the others may be what the handler waits for.
    """
    step, came = 0, True
    while came:
        connection = connect(broker)
        pendings = [connection.submit(METADATA) for _ in range(3)]
        left: list[int] = []

        def close(
            connection: Connection = connection, pendings: list[Any] = pendings, left: list[int] = left
        ) -> None:
            connection.close()
            left.append(sum(not pending.done for pending in pendings))

        def use(connection: Connection = connection, pendings: list[Any] = pendings) -> None:
            with contextlib.suppress(NetworkError):
                connection.give_up(pendings[0], 1, is_overdue=True) if dying else pendings[1].result(60_000)

        came = run_at(step, close, use)
        assert left == [0] * came, f"at step {step}"
        connection.close()
        step += 1
    assert step > 20


def test_leaving_ends_what_an_interrupted_close_has_left(broker: ScriptedBroker) -> None:
    """A handler leaves the connections in use before it waits for other threads, and those may wait for a
    request on one that was closed halfway."""
    broker.on(MetadataRequest, Silence)
    step, came = 0, True
    while came:
        brokers = Brokers(ClientConfig.from_properties(properties(broker.address)))
        connection = brokers.bootstrap(Deadline.after_ms(60_000))
        pendings = [connection.submit(METADATA) for _ in range(3)]
        with interrupted_at(step) as interrupts:
            connection.close()
        came = bool(interrupts)
        if connection.closed:
            brokers.leave()
            assert [pending.done for pending in pendings] == [True] * 3, f"at step {step}"
        brokers.close()
        step += 1
    assert step > 10


def test_a_handler_that_closes_a_connection_ends_a_request_that_gets_no_response(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it has interrupted the thread that writes it (acks=0), perhaps for another one."""
    step, came = 0, True
    while came:
        connection = connect(broker)
        with monkeypatch.context() as patch:
            patch.setattr(Transport, "write", lambda *_: False)
            pendings = [
                connection.post(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[])) for _ in range(2)
            ]
        assert [pending.done for pending in pendings] == [False, False]
        left: list[int] = []

        def close(
            connection: Connection = connection, pendings: list[Any] = pendings, left: list[int] = left
        ) -> None:
            connection.close()
            left.append(sum(not pending.done for pending in pendings))

        came = run_at(step, close, connection.poll)
        assert left == [0] * came, f"at step {step}"
        connection.close()
        step += 1
    assert step > 10
