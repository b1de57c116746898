"""A wake-up cancels a deadline: every wait below it ends."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock, call

import pytest
from support.brokers.scripted_broker import ScriptedBroker, Silence

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import NetworkError
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.runtime.deadline import Deadline, LoopTimer, Wakeup

HOUR_MS = 3_600_000.0


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    made = Wakeup()
    yield made
    made.close()


def test_it_comes_with_the_wakeup_to_all_that_were_made_of_it(wakeup: Wakeup) -> None:
    whole = Deadline.after_ms(HOUR_MS).with_wakeup(wakeup)
    parts = [whole, whole.within_ms(1e9), whole.from_now_ms(2 * HOUR_MS)]
    assert [one.expired or one.cancelled for one in parts] == [False] * 3
    assert [round(one.remaining_ms / HOUR_MS) for one in parts] == [1, 1, 2]
    wakeup.set()
    assert [one.expired and one.cancelled for one in parts] == [True] * 3
    assert [one.remaining_ms for one in parts] == [0.0] * 3
    assert not Deadline.after_ms(0).cancelled


def test_a_wait_for_sockets_ends_and_tells_of_them_alone(wakeup: Wakeup) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        deadline = Deadline.after_ms(HOUR_MS).with_wakeup(wakeup)
        theirs.send(b"x")
        assert deadline.poll(poller_of(ours)) == [(ours.fileno(), select.POLLIN)]
        ours.recv(1)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(deadline.poll(poller_of(ours))), daemon=True)
        thread.start()
        wakeup.set()
        thread.join(60)
        assert found == [[]]


def poller_of(sock: socket.socket) -> select.poll:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return poller


def test_a_cancelled_wait_leaves_the_connection_to_others(wakeup: Wakeup) -> None:
    with ScriptedBroker() as broker:
        broker.on(MetadataRequest, Silence)
        config = ClientConfig(bootstrap_servers=(broker.address,), request_timeout_ms=int(HOUR_MS))
        connection = Connection.open(broker.address, config=config)
        failures: list[NetworkError] = []

        def ask() -> None:
            try:
                connection.send(
                    MetadataRequest(topics=None), deadline=Deadline.after_ms(HOUR_MS).with_wakeup(wakeup)
                )
            except NetworkError as error:
                failures.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        wakeup.set()
        thread.join(60)
        assert [str(error).endswith("nobody waits for the answer any more") for error in failures] == [True]
        assert not connection.closed
        connection.close()


def test_the_late_answer_of_a_cancelled_wait_keeps_no_memory(wakeup: Wakeup) -> None:
    with ScriptedBroker() as broker:
        broker.on(MetadataRequest, Silence)
        connection = Connection.open(broker.address)
        pending = connection.submit(MetadataRequest(topics=None))
        wakeup.set()
        with pytest.raises(NetworkError, match="nobody waits"):
            pending.result(deadline=Deadline.after_ms(HOUR_MS).with_wakeup(wakeup))
        frame = connection.buffers.take(1 << 20)
        pending.complete(MetadataResponse(brokers=[], topics=[]), frame)  # as the reader does
        assert connection.buffers.pooled_sizes == [1 << 20]
        connection.close()


def test_a_handshake_is_cancelled(wakeup: Wakeup) -> None:
    """The broker has accepted the connection and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        config = ClientConfig(bootstrap_servers=(where,), connection_setup_timeout_ms=int(HOUR_MS))
        failures: list[NetworkError] = []

        def dial() -> None:
            try:
                Connection.open(where, config=config, deadline=Deadline.after_ms(HOUR_MS).with_wakeup(wakeup))
            except NetworkError as error:
                failures.append(error)

        thread = threading.Thread(target=dial, daemon=True)
        thread.start()
        sock, _ = listener.accept()
        with sock:
            wakeup.set()
            thread.join(60)
            assert len(failures) == 1
            sock.settimeout(60)
            while sock.recv(4096):  # the request, and then its end
                pass


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_woken_thread_sees_the_cancellation_before_is_set(
    wakeup: Wakeup, monkeypatch: pytest.MonkeyPatch, *, interrupted: bool
) -> None:
    """The pipe is readable, and an interrupt keeps the setting thread from assigning `is_set`."""
    seen: list[bool] = []
    deadline = Deadline.after_ms(HOUR_MS).with_wakeup(wakeup)

    def wait() -> None:
        assert deadline.poll(select.poll()) == []
        seen.append(deadline.cancelled)

    thread = threading.Thread(target=wait, daemon=True)
    write: Callable[..., int] = os.write

    def write_and_stop(*how: Any) -> int:
        written = write(*how)
        if interrupted:
            raise KeyboardInterrupt
        thread.join(0.2)
        return written

    thread.start()
    monkeypatch.setattr("spark_kafka_native.kafka.runtime.deadline.os.write", write_and_stop)
    with contextlib.suppress(KeyboardInterrupt):
        wakeup.set()
    thread.join(60)
    assert seen == [True]


def test_a_cleared_wakeup_ends_no_wait_until_it_is_set_again(wakeup: Wakeup) -> None:
    """A pipe that stays readable would make a loop spin."""
    poller = select.poll()
    poller.register(wakeup.fileno(), select.POLLIN)
    for _ in range(2):
        assert not wakeup.is_set
        assert poller.poll(0) == []
        wakeup.set()
        assert wakeup.is_set
        assert poller.poll(0) == [(wakeup.fileno(), select.POLLIN)]
        wakeup.clear()


def test_a_closed_wakeup_touches_no_descriptor() -> None:
    """The system may have given its numbers to another file by then."""
    wakeup = Wakeup()
    wakeup.close()
    read, write = os.pipe()
    wakeup.set()
    wakeup.close()
    os.set_blocking(read, False)
    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    for descriptor in (read, write):
        os.close(descriptor)


def test_a_loop_runs_again_at_the_earliest_of_the_times_of_its_turn() -> None:
    timer = LoopTimer(lambda: 100.0)
    assert timer.start_turn() == 100.0
    assert timer.next_at > 100.0  # it waits where nothing has to be done
    for moment in (130.0, 120.0, 140.0):
        timer.by(moment)
    assert timer.next_at == 120.0
    timer.at_once()
    assert timer.next_at == 100.0
    timer.start_turn()
    assert timer.next_at > 140.0


def test_a_timeout_of_0_is_one_and_a_deadline_stays_as_it_is() -> None:
    assert Deadline.of(0, HOUR_MS).expired
    assert Deadline.of(0.0, HOUR_MS).expired
    assert round(Deadline.of(7_200, HOUR_MS).remaining_ms / HOUR_MS) == 2
    assert round(Deadline.of(None, HOUR_MS).remaining_ms / HOUR_MS) == 1
    shared = Deadline.after_ms(HOUR_MS)
    assert Deadline.of(shared, 0) is shared


@pytest.mark.parametrize("with_wakeup", [False, True])
def test_a_wait_is_not_over_before_its_last_part_of_a_millisecond(wakeup: Wakeup, with_wakeup: bool) -> None:
    """Its caller would ask in circles until then."""
    poller = Mock(**{"poll.return_value": []})
    for left_s in (0.0004, 0.0025):
        deadline = Deadline(left_s, clock=lambda: 0.0)
        assert (deadline.with_wakeup(wakeup) if with_wakeup else deadline).poll(poller) == []
    assert poller.poll.call_args_list == [call(1), call(3)]
