"""The pipeline over a scripted stream: no socket, no thread, no time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from support.brokers.scripted_broker import frame
from support.waiting import eventually

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    HandshakeClosedError,
    NetworkError,
    ProtocolError,
    RequestTimedOutError,
)
from spark_kafka_native.kafka.network import pending_response, pipeline
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.network.frames import POOLED_FROM
from spark_kafka_native.kafka.network.handshake import Negotiated, SessionLifetime
from spark_kafka_native.kafka.network.pending_response import PendingResponse, wait_for_any
from spark_kafka_native.kafka.network.transport import READ, WRITE
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.runtime import waiting
from spark_kafka_native.kafka.runtime.deadline import Deadline, Wakeup
from spark_kafka_native.kafka.runtime.waiting import LocklessCondition

REQUEST = MetadataRequest(topics=[])
VERSION = 9
NOW = Deadline.after_ms(0)


def later() -> Deadline:
    return Deadline.after_ms(60_000)


class Stream:
    """Replaces a transport. `wait` calls the next of ``waits``; without one the deadline has passed."""

    address = "b1:9092"

    def __init__(self) -> None:
        self.read_waits_for, self.write_waits_for = READ, WRITE
        self.arrived = bytearray()
        self.hung_up = False
        self.full = False
        self.written: list[bytes] = []
        self.waits: list[Callable[[], int]] = []
        self.waited: list[tuple[int, float]] = []
        self.ends: list[str] = []

    def read_into(self, view: memoryview) -> int:
        count = min(len(view), len(self.arrived))
        view[:count] = self.arrived[:count]
        del self.arrived[:count]
        if self.hung_up and not count:
            raise NetworkError(f"{self.address}: the broker closed the connection")
        return count

    def write(self, buffers: list[memoryview]) -> bool:
        if self.full:
            return False
        self.written.append(b"".join(buffers))
        buffers.clear()
        return True

    def wait(self, events: int, deadline: Deadline) -> int:
        self.waited.append((events, deadline.remaining_ms))
        return self.waits.pop(0)() if self.waits else 0

    def shut(self) -> None:
        self.ends.append("shut")

    def close(self) -> None:
        self.ends.append("close")

    def forget(self) -> None:
        self.ends.append("forget")

    def fileno(self) -> int:
        return 99

    def answer(self, correlation_id: int, events: int = READ, throttle_ms: int = 0) -> Callable[[], int]:
        def arrive() -> int:
            response = MetadataResponse(
                throttle_time_ms=throttle_ms, brokers=[], cluster_id="c", controller_id=1, topics=[]
            )
            self.arrived += frame(response, VERSION, correlation_id)
            return events

        return arrive


@pytest.fixture
def stream() -> Stream:
    return Stream()


def connect(stream: Stream, **changed: str) -> Connection:
    settings = {"bootstrap.servers": "a:1", "request.timeout.ms": "3000"} | changed
    transport: Any = stream
    made = Connection(transport, ClientConfig.from_properties(settings))
    made.negotiated = Negotiated(api_versions={MetadataRequest.api_key: (0, VERSION)})
    return made


@pytest.fixture
def connection(stream: Stream) -> Connection:
    return connect(stream)


class TestTimeouts:
    def test_a_request_has_the_time_that_it_was_given(self, connection: Connection, stream: Stream) -> None:
        with pytest.raises(RequestTimedOutError, match="Metadata v9 to b1:9092: no answer in 1234 ms"):
            connection.send(REQUEST, 1234)
        [(events, left)] = stream.waited
        assert events == READ
        assert 0 < left <= 1_234
        assert connection.closed
        assert stream.ends == ["shut", "close"]

    @pytest.mark.parametrize(
        ("timeout_ms", "deadline_ms", "least", "most"),
        [(None, 60_000, 1_000, 3_000), (1_000, 60_000, 0, 1_000), (60_000, 2_000, 0, 2_000)],
    )
    def test_the_shorter_of_timeout_and_deadline_counts(
        self, connection: Connection, stream: Stream,
        timeout_ms: float | None, deadline_ms: float, least: float, most: float,
    ) -> None:  # fmt: skip
        with pytest.raises(RequestTimedOutError):
            connection.send(REQUEST, timeout_ms, Deadline.after_ms(deadline_ms))
        assert least < stream.waited[0][1] <= most

    def test_a_request_on_a_dead_connection_hears_why_that_died(self, connection: Connection) -> None:
        pending = connection.submit(REQUEST)
        connection.close()
        connection.give_up(pending, 5, is_overdue=True)
        with pytest.raises(NetworkError, match="closed by this client"):
            pending.result(0)

    def test_a_request_of_the_parent_process_is_given_up(self, connection: Connection) -> None:
        pending = connection.submit(REQUEST)
        connection.forget()
        connection.give_up(pending, 5, is_overdue=True)
        with pytest.raises(RequestTimedOutError, match="no answer in 5 ms; the connection was closed"):
            pending.result(0)

    @pytest.mark.parametrize("api", ["Metadata", "Produce"])
    def test_a_caller_with_little_time_cuts_no_request_of_others(
        self, connection: Connection, stream: Stream, api: str
    ) -> None:
        """Of others those are meant that have a response, or are not written yet."""
        connection.negotiated = Negotiated(
            api_versions={ProduceRequest.api_key: (3, 9), MetadataRequest.api_key: (0, VERSION)}
        )
        hurried = connection.submit(REQUEST)
        stream.full = api == "Produce"
        produce = ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[])
        other = connection.post(REQUEST if api == "Metadata" else produce)
        with pytest.raises(RequestTimedOutError):
            hurried.result(5)
        assert not connection.closed
        other.abandon()
        stream.full = False
        connection.poll()
        with pytest.raises(RequestTimedOutError, match="the connection was closed"):
            connection.submit(REQUEST).result(5)

    def test_a_request_that_waited_behind_an_answer_cuts_none_of_others(
        self, connection: Connection, stream: Stream
    ) -> None:
        """A look-up behind requests of a producer closed a connection on which answers came all the time:
        without idempotence, records were written twice."""
        others = [connection.submit(REQUEST) for _ in range(2)]
        behind, last = connection.submit(REQUEST), connection.submit(REQUEST)
        for one in (behind, last):
            one.overdue_at = time.monotonic() - 1
        stream.answer(0)()
        connection.poll()
        assert others[0].done
        with pytest.raises(RequestTimedOutError, match=r"no answer in 5 ms$"):
            connection.give_up(behind, 5)
        assert (connection.closed, behind.abandoned) == (False, True)
        connection.answered_at -= 3  # the request timeout
        connection.give_up(last, 5)
        assert connection.closed

    def test_throttling_is_logged_when_nothing_is_being_read(
        self, connection: Connection, stream: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A log handler that uses the client waited for itself."""
        roles: list[object] = []
        monkeypatch.setattr(
            pipeline.Throttle, "say", lambda _one: roles.append((connection._reader, connection._writer))
        )
        stream.waits = [stream.answer(0, throttle_ms=10)]
        connection.send(REQUEST)
        assert roles == [(None, None)] * 2  # when it was written, and when the answer was read
        roles.clear()
        stream.full = True
        stream.waits = [stream.answer(1, throttle_ms=10), lambda: setattr(stream, "full", False) or WRITE]
        connection.submit(REQUEST)  # its writer reads meanwhile
        assert roles == [(None, None)]
        roles.clear()
        stream.full = True
        waiting = connection.post(REQUEST)  # its reader writes meanwhile
        stream.waits = [lambda: setattr(stream, "full", False) or READ, stream.answer(2, throttle_ms=10)]
        assert waiting.result().cluster_id == "c"
        assert set(roles) == {(None, None)}

    def test_no_request_is_submitted_while_the_connection_is_given_up(
        self, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between the look at the others and the end another thread's request was cut. But nothing that may
        wait, as a log handler, is called with the lock.
        """
        held: dict[str, bool] = {}
        for owner, name in ((connection._unwritten, "unanswered"), (connection, "_mark_dead")):
            monkeypatch.setattr(owner, name, self.noting(held, name, connection, getattr(owner, name)))
        monkeypatch.setattr(pipeline, "log_end", self.noting(held, "log", connection, lambda *_, **__: None))
        pending = connection.submit(REQUEST)
        with pytest.raises(RequestTimedOutError):
            pending.result(0)
        assert held == {"unanswered": True, "_mark_dead": True, "log": False}

    @staticmethod
    def noting(
        held: dict[str, bool], name: str, connection: Connection, call: Callable[..., Any]
    ) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            held[name] = waiting.is_held(connection.lock)
            return call(*args, **kwargs)

        return noted


class TestRetiring:
    def test_it_waits_for_every_answer_takes_nothing_new_and_closes(
        self, connection: Connection, stream: Stream
    ) -> None:
        pendings = [connection.submit(REQUEST) for _ in range(3)]

        def refuses() -> int:
            with pytest.raises(NetworkError, match="b1:9092: this connection ends"):
                connection.submit(REQUEST)
            return stream.answer(pendings[0].correlation_id)()

        stream.waits = [refuses, *(stream.answer(pending.correlation_id) for pending in pendings[1:])]
        connection.retire(later())
        assert [pending.result(0).cluster_id for pending in pendings] == ["c"] * 3
        assert len(stream.written) == 3
        assert connection.closed
        assert all(2_000 < left <= 3_000 for _, left in stream.waited)

    def test_posted_and_unwritten_requests_go_first(self, connection: Connection, stream: Stream) -> None:
        stream.full = True
        pending = connection.post(REQUEST)
        assert connection.has_unwritten
        stream.full = False
        stream.waits = [stream.answer(pending.correlation_id)]
        connection.retire(later())
        assert len(stream.written) == 1
        assert pending.result(0).cluster_id == "c"

    def test_a_request_without_a_response_is_written_first(
        self, connection: Connection, stream: Stream
    ) -> None:
        connection.negotiated = Negotiated(api_versions={ProduceRequest.api_key: (3, 9)})
        stream.full = True
        pending = connection.post(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[]))
        assert not pending.done
        stream.full = False
        connection.retire(later())
        assert len(stream.written) == 1
        assert pending.result(0) is None
        assert connection.closed

    def test_a_request_without_a_response_is_not_lost_for_lack_of_time(
        self, connection: Connection, stream: Stream
    ) -> None:
        connection.negotiated = Negotiated(api_versions={ProduceRequest.api_key: (3, 9)})
        stream.full = True
        pending = connection.post(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[]))
        with pytest.raises(NetworkError, match="this connection ends, but Produce v9 to b1:9092 is not"):
            connection.retire(NOW)
        assert not stream.waited
        stream.full = False
        connection.retire(later())
        assert pending.result(0) is None

    def test_unanswered_requests_are_named_and_still_waited_for(
        self, connection: Connection, stream: Stream
    ) -> None:
        pending = connection.submit(REQUEST)
        with pytest.raises(NetworkError, match="this connection ends, but Metadata v9 to b1:9092 is not"):
            connection.retire(NOW)
        assert not connection.closed
        stream.waits = [stream.answer(pending.correlation_id)]
        assert pending.result(1_000).cluster_id == "c"

    def test_a_request_behind_another_has_the_request_timeout_from_the_answer_to_that(
        self, connection: Connection, stream: Stream
    ) -> None:
        """A broker works on one at a time: the second one was cut, and sent again."""
        first, second = (connection.submit(REQUEST) for _ in range(2))
        first.overdue_at = second.overdue_at = 0.0
        stream.answer(first.correlation_id)()
        assert not connection.wind_down()
        stream.waits = [stream.answer(second.correlation_id)]
        assert second.result(1_000).cluster_id == "c"
        assert connection.wind_down()

    def test_a_request_that_is_overdue_holds_up_no_other_connection(self, connection: Connection) -> None:
        pendings = [connection.submit(REQUEST) for _ in range(3)]
        connection.answered_at -= 10
        for pending in pendings:
            assert not connection.wind_down()
            pending.overdue_at = 0.0
        assert connection.wind_down()
        with pytest.raises(NetworkError, match="closed by this client"):
            pendings[0].result(0)

    def test_a_connection_that_winds_down_reads_answers_that_no_thread_waits_for(
        self, connection: Connection, stream: Stream
    ) -> None:
        pending = connection.submit(REQUEST)
        stream.answer(pending.correlation_id)()
        assert connection.wind_down()
        assert pending.done

    def test_a_connection_that_winds_down_writes_first(self, connection: Connection, stream: Stream) -> None:
        connection.negotiated = Negotiated(api_versions={ProduceRequest.api_key: (3, 9)})
        stream.full = True
        pending = connection.post(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[]))
        assert not connection.wind_down()
        stream.full = False
        assert connection.wind_down()
        assert (len(stream.written), pending.done) == (1, True)

    def test_a_request_that_was_given_up_long_ago_is_not_written(
        self, connection: Connection, stream: Stream
    ) -> None:
        """Another one may have been done instead of it, and undone since."""
        asked = connection.submit(REQUEST)
        stream.full = True
        late = connection.post(REQUEST)
        assert connection.alive()
        late.abandon()
        assert connection.alive()
        late.overdue_at = time.monotonic() - 1
        stream.full = False
        assert not connection.alive()
        for answered in (False, True):
            assert not connection.wind_down()
            assert asked.done == answered
            stream.answer(asked.correlation_id)()
        connection.answered_at -= 10
        assert connection.wind_down()
        assert len(stream.written) == 1

    def test_a_session_that_has_ended_takes_nothing_new(self, connection: Connection, stream: Stream) -> None:
        connection.session_lifetime = SessionLifetime(0.0, 0.0)
        assert connection.renewal_due
        with pytest.raises(NetworkError, match="another one takes over"):
            connection.submit(REQUEST)
        assert not stream.written

    def test_a_session_that_ends_meanwhile_lets_the_request_through(
        self, connection: Connection, stream: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was queued, written later, and reported as not written: a second attempt doubled it."""
        send = connection._framing.send

        def session_ends(*args: Any) -> Any:
            connection.session_lifetime = SessionLifetime(0.0, 0.0)
            return send(*args)

        monkeypatch.setattr(connection._framing, "send", session_ends)
        pending = connection.submit(REQUEST)
        assert len(stream.written) == 1
        stream.waits = [stream.answer(pending.correlation_id)]
        assert pending.result().cluster_id == "c"


class TestForgetting:
    def test_not_a_word_on_the_wire_and_none_taken(self, connection: Connection, stream: Stream) -> None:
        connection.submit(REQUEST)
        connection.forget()
        assert stream.ends == ["forget"]
        assert connection.closed
        with pytest.raises(NetworkError, match="b1:9092: the connection belongs to the parent process"):
            connection.submit(REQUEST)
        assert len(stream.written) == 1

    def test_the_wait_for_an_answer_of_the_parents_ends(self, connection: Connection, stream: Stream) -> None:
        """The parent reads it: a wait here must read nothing, and end at its deadline."""
        pending = connection.submit(REQUEST)
        connection.forget()
        stream.hung_up = True
        soon = Deadline.after_ms(1)
        thread = threading.Thread(target=connection.wait_for, args=(pending, soon), daemon=True)
        thread.start()
        thread.join(10)
        ended = not thread.is_alive()
        pending.done = True  # ends a wait that goes on
        assert ended


def test_the_wait_for_several_does_not_sleep_while_a_dead_connection_fails_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread is about to do that, and no socket is left to wake this one."""
    connection: Any = SimpleNamespace(closed=True, request_timeout_ms=30_000)
    pendings: list[PendingResponse[Any]] = [PendingResponse(connection, at, "x", 9) for at in range(2)]
    polls = iter([lambda: None, lambda: pendings[1].fail(NetworkError("gone"))])
    connection.poll = lambda: next(polls)()
    monkeypatch.setattr(pending_response, "wait_for_streams", lambda *_: pytest.fail("it sleeps"))
    assert wait_for_any(pendings, later()) == [pendings[1]]


class TestWriting:
    def test_a_handler_that_interrupts_the_writer_and_closes_may_wait_for_the_next_writer(
        self, connection: Connection, stream: Stream
    ) -> None:
        stream.full = True
        other = threading.Thread(target=connection.submit, args=(REQUEST,))
        waits_on: list[bool] = []

        def handle() -> int:
            other.start()
            while connection.in_flight < 2:
                time.sleep(0.001)
            connection.close()
            other.join(10)
            waits_on.append(other.is_alive())
            return 0

        stream.waits = [handle]
        connection.submit(REQUEST)
        other.join(60)
        assert waits_on == [False]

    @pytest.mark.parametrize(("deadline_ms", "waits_ms"), [(None, 3_000), (60_000, 3_000), (1_000, 1_000)])
    def test_a_writer_waits_until_its_deadline_and_for_the_request_timeout_at_most(
        self, connection: Connection, stream: Stream, deadline_ms: float | None, waits_ms: float
    ) -> None:
        """A broker that reads nothing would hold up the caller for all of its time."""
        stream.full = True
        stream.waits = [lambda: setattr(stream, "full", False) or WRITE]
        connection.submit(REQUEST, deadline=None if deadline_ms is None else Deadline.after_ms(deadline_ms))
        [(_, wait_ms)] = stream.waited
        assert waits_ms / 2 < wait_ms <= waits_ms

    def test_who_can_not_write_reads_meanwhile(self, connection: Connection, stream: Stream) -> None:
        first = connection.submit(REQUEST)
        stream.full = True

        def room() -> int:
            stream.full = False
            return WRITE

        stream.waits = [stream.answer(first.correlation_id), room]
        second = connection.submit(REQUEST)
        assert [events for events, _ in stream.waited] == [READ | WRITE, READ | WRITE]
        assert first.done
        assert not second.done
        assert len(stream.written) == 2

    def test_who_can_write_does_so_before_it_reads(self, connection: Connection, stream: Stream) -> None:
        first = connection.submit(REQUEST)
        stream.full = True
        arrive = stream.answer(first.correlation_id, READ | WRITE)

        def both() -> int:
            stream.full = False
            return arrive()

        stream.waits = [both]
        connection.submit(REQUEST)
        assert len(stream.written) == 2
        assert not first.done

    def test_who_writes_while_another_reads_leaves_reading_to_it(
        self, connection: Connection, stream: Stream
    ) -> None:
        connection._reader = SimpleNamespace(thread_id=0)
        stream.full = True

        def room() -> int:
            stream.full = False
            return WRITE

        stream.waits = [room]
        connection.submit(REQUEST)
        assert [events for events, _ in stream.waited] == [WRITE]

    def test_nothing_written_in_time_is_the_end(self, connection: Connection, stream: Stream) -> None:
        stream.full = True
        pending = connection.submit(REQUEST)
        assert 0 < stream.waited[0][1] <= 3_000
        with pytest.raises(RequestTimedOutError, match="b1:9092: nothing could be written for 3000 ms"):
            pending.result(0)
        assert connection.closed

    def test_a_caller_with_little_time_leaves_what_is_not_written(
        self, connection: Connection, stream: Stream
    ) -> None:
        """A full socket cost it the request timeout, and all others the connection."""
        stream.full = True
        patient, hurried = connection.post(REQUEST), connection.submit(REQUEST, deadline=NOW)
        with pytest.raises(RequestTimedOutError, match="no answer"):
            hurried.result(deadline=NOW)
        assert not stream.waited
        stream.full = False
        stream.waits = [stream.answer(one.correlation_id) for one in (patient, hurried)]
        assert patient.result().cluster_id == "c"
        assert len(stream.written) == 2
        connection.retire(later())
        assert not stream.waits, "the late answer is that of its request"

    def test_a_post_waits_for_nothing_and_speaks_the_version_asked_for(
        self, connection: Connection, stream: Stream
    ) -> None:
        stream.full = True
        pending = connection.post(REQUEST, 4)
        assert (pending.api_version, stream.waited, connection.waits_for) == (4, [], READ | WRITE)
        stream.full = False
        connection.poll()
        assert int.from_bytes(stream.written[0][6:8], "big") == 4
        assert connection.waits_for == READ


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


class SeenCondition(LocklessCondition):
    """Shows the threads that wait, and how often the predicates of all threads were checked."""

    made: ClassVar[list[SeenCondition]] = []

    def __init__(self) -> None:
        super().__init__()
        self.checks = 0
        self.made.append(self)

    def wait_for(
        self, predicate: Callable[[], bool], deadline: Deadline | None, awaited: object = None
    ) -> bool:
        def counted() -> bool:
            self.checks += 1
            return predicate()

        return super().wait_for(counted, deadline, awaited)


class TestManyThreads:
    @pytest.fixture(autouse=True)
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> list[SeenCondition]:
        """The conditions of the connections. A wake-up that is lost is made good by no nap."""
        monkeypatch.setattr(waiting, "MAX_WAIT_S", 3600.0)
        monkeypatch.setattr(pipeline, "LocklessCondition", SeenCondition)
        monkeypatch.setattr(SeenCondition, "made", [])
        return SeenCondition.made

    def test_a_response_wakes_only_the_thread_that_waits_for_it(
        self, stream: Stream, seen: list[SeenCondition]
    ) -> None:
        connection, threads, each = connect(stream), 32, 4
        begin, returned, left = threading.Barrier(threads), list[int](), list[int]()

        def ask(thread: int) -> None:
            begin.wait(60)
            for _ in range(each):
                connection.send(REQUEST, 60_000)
                returned.append(thread)
            left.append(thread)

        def answer(number: int) -> int:
            """When the threads of earlier responses have them, and all others wait."""
            eventually(lambda: len(returned) == number, seconds=30)
            eventually(lambda: sum(one.waiting for one in seen) == threads - len(left) - 1)
            return stream.answer(number)()

        # The oldest request is answered first.
        stream.waits = [partial(answer, number) for number in range(threads * each)]
        asking = [in_thread(partial(ask, number)) for number in range(threads)]
        for one in asking:
            one.join(60)
        assert not stream.waits
        # One to write, two before it waits, one when it is to read, one when the response is there.
        assert sum(one.checks for one in seen) <= 5 * threads * each

    def test_a_thread_that_is_to_read_but_has_its_response_leaves_that_to_the_next(
        self, stream: Stream, seen: list[SeenCondition]
    ) -> None:
        connection, go = connect(stream), threading.Event()

        def answer_first() -> int:
            assert go.wait(60)
            return stream.answer(0)()

        stream.waits = [answer_first, stream.answer(1)]
        first, second = connection.submit(REQUEST), connection.submit(REQUEST)

        reader = in_thread(lambda: connection.wait_for(first, later()))
        eventually(lambda: len(stream.waited) == 1)
        sleeper = in_thread(lambda: connection.wait_for(second, later()))
        eventually(lambda: any(one.waiting for one in seen))

        class Completed:
            """Complete at the second look: its thread is in the queue then, and was notified to read."""

            looks = 0

            @property
            def done(self) -> bool:
                self.looks += 1
                if self.looks == 2:
                    go.set()
                    reader.join(60)
                return self.looks > 1

        completed: Any = Completed()
        assert connection.wait_for(completed, later())
        sleeper.join(60)
        assert not sleeper.is_alive()
        assert second.done


class TestHangUps:
    def test_at_the_first_request_the_port_may_want_sasl(
        self, connection: Connection, stream: Stream
    ) -> None:
        pending = connection.submit(REQUEST)
        stream.hung_up = True
        connection.poll()
        with pytest.raises(HandshakeClosedError, match="at the first request; does that port want SASL"):
            pending.result(0)

    def test_after_a_login_it_is_a_hang_up_and_nothing_else(self, stream: Stream) -> None:
        """That port does take SASL; a failed login would be tried a few times only."""
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
        connection = connect(stream, **login, **{"security.protocol": "SASL_PLAINTEXT"})
        pending = connection.submit(REQUEST)
        stream.hung_up = True
        connection.poll()
        with pytest.raises(NetworkError, match=r"closed the connection$") as caught:
            pending.result(0)
        assert type(caught.value) is NetworkError

    def test_after_an_answer_it_is_a_hang_up_and_nothing_else(
        self, connection: Connection, stream: Stream
    ) -> None:
        stream.waits = [stream.answer(0)]
        connection.send(REQUEST)
        pending = connection.submit(REQUEST)
        stream.hung_up = True
        connection.poll()
        with pytest.raises(NetworkError) as caught:
            pending.result(0)
        assert type(caught.value) is NetworkError

    @pytest.mark.parametrize("handshaking", [False, True])
    def test_with_nothing_asked_or_in_the_handshake_neither(self, stream: Stream, handshaking: bool) -> None:
        connection = connect(stream)
        if handshaking:
            connection.negotiated = Negotiated(api_versions={})
            connection.submit(REQUEST, 4)
        stream.hung_up = True
        connection.poll()
        with pytest.raises(NetworkError) as caught:
            connection.submit(REQUEST, 4)
        assert type(caught.value) is NetworkError

    def test_the_first_request_in_flight_gets_the_cause_and_the_others_a_lost_connection(
        self, connection: Connection, stream: Stream
    ) -> None:
        first, second = connection.submit(REQUEST), connection.submit(REQUEST)
        stream.answer(4711)()
        connection.poll()
        with pytest.raises(ProtocolError):
            first.result(0)
        with pytest.raises(NetworkError, match=r"b1:9092: .*an earlier response on it was bad"):
            second.result(0)
        with pytest.raises(NetworkError, match=r"b1:9092: .*an earlier response on it was bad"):
            connection.submit(REQUEST)

    def test_later_requests_get_the_refusal_of_a_certificate(
        self, connection: Connection, stream: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """TLS 1.3 refuses a client's certificate in a read; one more attempt would be refused as well."""

        def refuse(_view: memoryview) -> int:
            raise AuthenticationError("the broker refused the certificate")

        monkeypatch.setattr(stream, "read_into", refuse)
        connection.poll()
        with pytest.raises(AuthenticationError, match="refused the certificate"):
            connection.submit(REQUEST)

    def test_all_requests_in_flight_get_the_cause_of_a_lost_connection(
        self, connection: Connection, stream: Stream
    ) -> None:
        """The outcome of each may differ by the kind of the error: of a timeout, or of another end."""
        stream.waits = [stream.answer(0)]
        connection.send(REQUEST)
        pendings = [connection.submit(REQUEST) for _ in range(3)]
        connection.give_up(pendings[1], 7, is_overdue=True)
        errors = []
        for pending in pendings:
            with pytest.raises(RequestTimedOutError, match="no answer in 7 ms") as caught:
                pending.result(0)
            errors.append(caught.value)
        assert len(set(map(id, errors))) == 3, "each has a traceback of its own"


class TestWaitingForAny:
    @pytest.mark.parametrize("count", [1, 2])
    def test_a_wakeup_ends_the_wait_of_one_request_as_of_many(
        self, connection: Connection, stream: Stream, count: int
    ) -> None:
        wakeup = Wakeup()
        wakeup.set()
        pendings = [connection.submit(REQUEST) for _ in range(count)]
        assert wait_for_any(pendings, later(), wakeup) == []
        assert not stream.waited
        stream.answer(0)()
        assert wait_for_any(pendings, later(), wakeup) == pendings[:1]
        wakeup.close()

    def test_without_a_wakeup_one_request_is_waited_for(self, connection: Connection, stream: Stream) -> None:
        pending = connection.submit(REQUEST)
        assert wait_for_any([pending], later()) == []
        stream.waits = [stream.answer(0)]
        assert wait_for_any([pending], later()) == [pending]


class TestMemory:
    def test_the_memory_of_a_response_is_given_back_once(self, connection: Connection) -> None:
        """Twice, and two later responses would overwrite each other."""
        pending: PendingResponse[Any] = PendingResponse(connection, 0, "Fetch", 12)
        pending.complete(None, connection.buffers.take(POOLED_FROM))
        pending.release()
        pending.release()
        pending.abandon()
        assert len(connection.buffers.pooled_sizes) == 1


class TestAlive:
    def test_a_hang_up_is_seen_where_nothing_is_in_flight(
        self, connection: Connection, stream: Stream
    ) -> None:
        assert connection.alive()
        stream.hung_up = True
        assert not connection.alive()

    def test_a_request_that_was_given_up_long_ago_is_not_written(
        self, connection: Connection, stream: Stream
    ) -> None:
        """What it asks for may have been done on another connection since, and changed once more."""
        stream.full = True
        connection.post(REQUEST).abandon()
        connection._in_flight[0].overdue_at = 0.0
        connection.answered_at -= 10
        stream.full = False
        assert not connection.alive()
        assert not stream.written

    @pytest.mark.parametrize("abandoned", [True, False])
    def test_an_overdue_request_is_not_written_as_its_connection_ends(
        self, connection: Connection, stream: Stream, abandoned: bool
    ) -> None:
        """It is cut at once, and would be done twice where it is sent again."""
        stream.full = True
        pending = connection.post(REQUEST)
        pending.abandoned, pending.overdue_at = abandoned, 0.0
        connection.answered_at -= 10
        stream.full = False
        assert connection.wind_down()
        assert not stream.written

    def test_who_waits_for_answers_is_not_read_for(self, connection: Connection, stream: Stream) -> None:
        pending = connection.submit(REQUEST)
        connection._used_at -= 1e6  # long ago, but a response is due
        stream.answer(pending.correlation_id)()
        assert connection.alive()
        assert not pending.done

    @pytest.mark.parametrize(
        ("max_idle_ms", "idle_s", "alive"),
        [("10000", 8, True), ("10000", 12, False), ("-1", 1e6, True), ("0", 0.5, True), ("0", 2, False)],
    )
    def test_one_that_was_idle_for_too_long_is_closed(
        self, stream: Stream, max_idle_ms: str, idle_s: float, alive: bool
    ) -> None:
        """None is with -1, not even one that has served no request yet."""
        connection = connect(stream, **{"connections.max.idle.ms": max_idle_ms})
        connection._used_at -= idle_s
        assert connection.alive() is alive

    @pytest.mark.parametrize("deadline_ms", [None, 60_000])
    def test_a_request_waits_for_the_end_of_a_quota_and_no_longer(
        self,
        connection: Connection,
        stream: Stream,
        monkeypatch: pytest.MonkeyPatch,
        deadline_ms: float | None,
    ) -> None:
        """Also of one that an answer has extended meanwhile, which another thread has read."""
        stream.waits = [stream.answer(0, throttle_ms=5_000)]
        connection.send(REQUEST)
        waited: list[float] = []

        def wait_for(_: Callable[[], bool], until: Deadline) -> bool:
            waited.append(until.remaining_ms)
            connection._throttle._muted_until = 0.0
            if len(waited) == 1:
                connection._throttle.learn(9_000)
            return False

        monkeypatch.setattr(connection._waiting_to_write, "wait_for", wait_for)
        connection._wait_until_welcome(None if deadline_ms is None else Deadline.after_ms(deadline_ms))
        first_ms, second_ms = waited
        assert 2_000 < first_ms <= 5_000 < second_ms <= 9_000

    def test_a_broker_that_mutes_us_is_obeyed(self, connection: Connection, stream: Stream) -> None:
        stream.waits = [stream.answer(0, throttle_ms=30_000)]
        connection.send(REQUEST)
        assert 25_000 < connection.muted_ms <= 30_000
        with pytest.raises(NetworkError, match="enforces a quota"):
            connection.submit(REQUEST, deadline=Deadline.after_ms(1_000))
        assert len(stream.written) == 1
