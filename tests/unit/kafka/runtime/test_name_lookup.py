"""Names are looked up within a deadline, even if the resolver never answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.forked_child import holds_in_forked_child
from support.interrupts.signal_steps import run_at

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import NetworkError, UnreachableError
from spark_kafka_native.kafka.runtime import name_lookup, waiting
from spark_kafka_native.kafka.runtime.background import Lookups
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.runtime.name_lookup import FailedAddresses, canonical_names, look_up, resolved

SOON = 60_000.0


def config(**changed: Any) -> ClientConfig:
    return ClientConfig(bootstrap_servers=("kafka.example:9092",), **changed)


def v4(host: str, port: int) -> tuple[Any, ...]:
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))


def v6(host: str, port: int) -> tuple[Any, ...]:
    return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (host, port, 0, 0))


class Stuck:
    """A resolver that answers once its gate is opened."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        if host == "127.0.0.1":  # a thread of an earlier test, on its way to a broker
            return [v4(host, port)]
        self.asked.append(host)
        assert self.gate.wait(120)
        return [v4("127.0.0.1", port)]


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    resolver = Stuck()
    monkeypatch.setattr(name_lookup, "_lookups", Lookups())
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.gate.set()


def wait_until(ended: Callable[[], bool]) -> None:
    until = Deadline.after_ms(SOON)
    while not ended():
        assert not until.expired
        time.sleep(0.005)


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


def test_a_resolver_that_does_not_answer_ends_with_the_deadline(stuck: Stuck) -> None:
    with pytest.raises(NetworkError, match=r"cannot resolve the host of kafka.example:9092 \(no answer"):
        look_up("kafka.example", 9092, config(), Deadline.after_ms(50))
    # It may answer the next time: this is not an answer that the host does not exist.
    with pytest.raises(NetworkError, match="no answer in 50 ms") as raised:
        look_up("kafka.example", 9092, config(connection_setup_timeout_ms=50), Deadline.after_ms(SOON))
    assert not isinstance(raised.value, UnreachableError)


def test_the_same_lookup_under_way_is_joined_and_its_answer_shared(
    stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_WAIT_S", 3600.0)  # each of them is notified
    patient = config(connection_setup_timeout_ms=3_600_000)
    with pytest.raises(NetworkError):
        look_up("kafka.example", 9092, config(), Deadline.after_ms(20))
    threads = [
        in_thread(lambda: look_up("kafka.example", 9092, patient, Deadline.after_ms(3_600_000)))
        for _ in range(3)
    ]
    wait_until(lambda: name_lookup._lookups._condition.waiting == 3)
    stuck.gate.set()
    for thread, results in threads:
        thread.join(30)
        assert results == [[v4("127.0.0.1", 9092)]]
    assert stuck.asked == ["kafka.example"]


@pytest.mark.parametrize(
    ("host", "port", "changed"),
    [
        ("kafka2.example", 9092, {}),
        ("kafka.example", 9093, {}),
        ("kafka.example", 9092, {"broker_address_family": "v4"}),
        ("kafka.example", 9092, {"resolver": lambda host, port: socket.getaddrinfo(host, port)}),
    ],
    ids=["host", "port", "family", "resolver"],
)
def test_a_lookup_under_way_does_not_answer_another_question(
    stuck: Stuck, host: str, port: int, changed: dict[str, Any]
) -> None:
    with pytest.raises(NetworkError):
        look_up("kafka.example", 9092, config(), Deadline.after_ms(20))
    with pytest.raises(NetworkError):
        look_up(host, port, config(**changed), Deadline.after_ms(20))
    wait_until(lambda: stuck.asked == ["kafka.example", host])


@pytest.mark.parametrize(("host", "port"), [("token2.example", 443), ("token.example", 444)])
def test_a_host_that_is_no_broker_is_looked_up_by_name_and_port(stuck: Stuck, host: str, port: int) -> None:
    for one in (("token.example", 443), (host, port)):
        with pytest.raises(NetworkError, match="no answer"):
            resolved(*one, Deadline.after_ms(20))
    wait_until(lambda: stuck.asked == ["token.example", host])
    stuck.gate.set()
    assert resolved(host, port, Deadline.after_ms(SOON)) == [v4("127.0.0.1", port)]


def test_a_resolver_under_way_does_not_answer_for_another_one(stuck: Stuck) -> None:
    first = config(resolver=lambda host, port: stuck(host, port))
    with pytest.raises(NetworkError):
        look_up("kafka.example", 9092, first, Deadline.after_ms(20))
    other = config(resolver=lambda _host, port: [v4("10.0.0.1", port)])
    assert look_up("kafka.example", 9092, other, Deadline.after_ms(SOON)) == [v4("10.0.0.1", 9092)]


def test_a_resolver_of_the_caller_is_asked_for_an_address_in_a_thread_too() -> None:
    """It may ask a proxy, also about an address, and the wait for that is limited."""
    threads: list[int] = []

    def resolve(host: str, port: int) -> list[Any]:
        threads.append(threading.get_ident())
        return [v4(host, port)]

    found = look_up("10.0.0.1", 1, config(resolver=resolve), Deadline.after_ms(SOON))
    assert found == [v4("10.0.0.1", 1)]
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


def test_names_that_are_never_answered_hold_up_no_other_name(
    stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster with brokers in a zone without a working name server."""
    names = [f"stuck-{number}" for number in range(100)]
    for name in names * 2:
        with pytest.raises(NetworkError, match="no answer"):
            look_up(name, 9092, config(), Deadline.after_ms(0))
    asked: list[str] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [v4("127.0.0.1", port)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert look_up("new", 9092, config(), Deadline.after_ms(SOON)) == [v4("127.0.0.1", 9092)]
    assert asked == ["new"]
    assert sorted(stuck.asked) == sorted(names)  # one thread each, however often


def test_threads_are_bounded_and_the_one_too_many_says_so(
    stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_lookup, "_lookups", Lookups(max_lookups=2))
    for name in ("a", "b", "a"):
        with pytest.raises(NetworkError, match="no answer"):
            look_up(name, 9092, config(), Deadline.after_ms(20))
    refused = r"cannot resolve the host of c:9092 \(not asked, as 2 other lookups are not answered; is"
    with pytest.raises(NetworkError, match=refused):
        look_up("c", 9092, config(), Deadline.after_ms(20))
    assert sorted(stuck.asked) == ["a", "b"]
    waiting = in_thread(lambda: look_up("e", 9092, config(), Deadline.after_ms(SOON)))
    stuck.gate.set()
    waiting[0].join(60)
    assert waiting[1] == [[v4("127.0.0.1", 9092)]]


def test_an_address_needs_no_lookup(stuck: Stuck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(name_lookup, "_lookups", Lookups(max_lookups=0))
    assert look_up("127.0.0.1", 9092, config(), Deadline.after_ms(0))[0][4] == ("127.0.0.1", 9092)
    assert look_up("::1", 9092, config(), Deadline.after_ms(0))[0][4][:2] == ("::1", 9092)


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (socket.gaierror(-2, "Name or service not known"), r"\(Name or service not known\)$"),
        (OSError("of a library"), r"\(of a library\)$"),
        (UnicodeError("label empty or too long"), r"\(label empty or too long\)$"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_failure_is_raised_in_every_waiting_thread_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, says: str
) -> None:
    answers: list[Any] = [failure, [v4("127.0.0.1", 1)]]

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(UnreachableError, match=says):
        look_up("kafka.example", 9092, config(), Deadline.after_ms(SOON))
    assert look_up("kafka.example", 9092, config(), Deadline.after_ms(SOON)) == [v4("127.0.0.1", 1)]


def test_without_threads_it_asks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **_: [v4(host, port)])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert look_up("kafka.example", 1, config(), Deadline.after_ms(SOON)) == [v4("kafka.example", 1)]


def test_an_interrupt_at_the_start_blocks_no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = Lookups(max_lookups=1)
    with monkeypatch.context() as patched:

        def interrupt(_: threading.Thread) -> None:
            raise KeyboardInterrupt

        patched.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lookups.ask("key", lambda: [1], Deadline.after_ms(SOON))
    assert lookups.ask("key", lambda: [2], Deadline.after_ms(SOON)) == [2]


def test_an_interrupt_as_it_is_recorded_blocks_no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = Lookups(max_lookups=1)

    class Interrupted(dict[Any, Any]):
        """Ctrl-C just after it is there."""

        def setdefault(self, key: Any, value: Any = None) -> Any:
            self[key] = value
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        under_way = Interrupted()
        patched.setattr(lookups, "_under_way", under_way)
        with pytest.raises(KeyboardInterrupt):
            lookups.ask("key", lambda: [1], Deadline.after_ms(SOON))
        assert not under_way
    assert lookups.ask("key", lambda: [2], Deadline.after_ms(1_000)) == [2]


def test_an_interrupt_before_it_is_joined_leaves_a_lookup_under_way() -> None:
    """Else the next caller would start another thread for a name that is never answered."""

    class Interrupted(dict[Any, Any]):
        def setdefault(self, *_: object) -> Any:
            raise KeyboardInterrupt

    lookups, gate = Lookups(), threading.Event()
    assert lookups.ask("key", lambda: gate.wait(120), Deadline.after_ms(0)) is None
    under_way = dict(lookups._under_way)
    assert list(under_way) == ["key"]
    lookups._under_way = Interrupted(under_way)
    with pytest.raises(KeyboardInterrupt):
        lookups.ask("key", lambda: True, Deadline.after_ms(SOON))
    assert lookups._under_way == under_way
    gate.set()


@pytest.mark.parametrize("others", ["other", "key"])
def test_the_handler_of_a_signal_may_wait_for_a_lookup_of_another_thread_wherever_it_comes(
    others: str,
) -> None:
    """As when it closes a client with threads that have to connect for that, perhaps to the same broker."""
    lookups, steps = Lookups(), []

    def ask(key: str) -> None:
        assert lookups.ask(key, lambda: [1], Deadline.after_ms(SOON)) == [1]

    def handler() -> None:
        thread = threading.Thread(target=ask, args=(others,), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()

    def at_every_step() -> None:
        step = 0
        while run_at(step, handler, lambda: ask("key")):
            step += 1
        steps.append(step)

    # In a thread of its own, so that one that waits for itself fails the test and does not hang it.
    main = threading.Thread(target=at_every_step, daemon=True)
    main.start()
    main.join(60)
    assert steps
    assert steps[0] > 10


def test_a_child_of_a_fork_asks_anew(stuck: Stuck, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkError):
        look_up("kafka.example", 9092, config(), Deadline.after_ms(20))

    def asks_anew() -> bool:
        socket.getaddrinfo = lambda _host, port, **_: [v4("127.0.0.2", port)]  # type: ignore[assignment]
        found = look_up("kafka.example", 9092, config(), Deadline.after_ms(SOON))
        return found[0][4][0] == "127.0.0.2"

    assert holds_in_forked_child(asks_anew)


def test_families_take_turns_beginning_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [v6("::1", 1), v6("::2", 1), v6("::3", 1), v4("10.0.0.1", 1), v4("10.0.0.2", 1)]
    given = config(resolver=lambda _host, _port: found)
    hosts = [info[4][0] for info in look_up("kafka.example", 1, given, Deadline.after_ms(SOON))]
    assert hosts == ["::1", "10.0.0.1", "::2", "10.0.0.2", "::3"]


@pytest.mark.parametrize(
    ("changed", "hosts"),
    [
        ({"broker_address_family": "v4"}, ["10.0.0.1"]),
        ({"broker_address_family": "v6"}, ["::1"]),
        ({"source_address": "127.0.0.1"}, ["10.0.0.1"]),
        ({"source_address": "::1"}, ["::1"]),
        ({"source_address": "::1", "broker_address_family": "v4"}, ["::1"]),
    ],
)
def test_only_one_family(changed: dict[str, str], hosts: list[str]) -> None:
    given = config(resolver=lambda _host, _port: [v4("10.0.0.1", 1), v6("::1", 1)], **changed)
    assert [info[4][0] for info in look_up("kafka.example", 1, given, Deadline.after_ms(SOON))] == hosts
    given = config(resolver=lambda _host, _port: [], **changed)
    with pytest.raises(UnreachableError, match="no address of the family"):
        look_up("kafka.example", 1, given, Deadline.after_ms(SOON))


def test_the_system_is_asked_for_the_configured_family(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def resolve(host: str, port: int, **how: Any) -> list[Any]:
        asked.append(how.get("family"))
        return [v4(host, port)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    look_up("kafka.example", 1, config(broker_address_family="v4"), Deadline.after_ms(SOON))
    look_up("kafka.example", 1, config(), Deadline.after_ms(SOON))
    assert asked == [socket.AF_INET, None]


def test_canonical_names_are_those_of_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"10.0.0.1": "one.example", "10.0.0.2": "two.example", "10.0.0.3": "one.example"}
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, port, **_: [v4(name, port) for name in names])

    def name(target: tuple[str, int], flags: int) -> tuple[str, str]:
        numeric = flags & socket.NI_NUMERICHOST  # certificates and Kerberos principals have names
        return target[0] if numeric else names[target[0]], str(target[1])

    monkeypatch.setattr(socket, "getnameinfo", name)
    found = canonical_names("kafka.example", 9092, config(), Deadline.after_ms(SOON))
    assert found == ["one.example", "two.example"]


def test_names_under_way_are_not_those_of_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients of a process may see other addresses of one name: by family, or by a resolver."""
    gate = threading.Event()
    monkeypatch.setattr(name_lookup, "_lookups", Lookups())

    def name(target: tuple[Any, ...], _: int) -> tuple[str, str]:
        if target[0] == "10.0.0.1":
            assert gate.wait(120)
        return f"name-of-{target[0]}", str(target[1])

    monkeypatch.setattr(socket, "getnameinfo", name)

    def of(info: tuple[Any, ...], limit_ms: float) -> list[str]:
        given = config(resolver=lambda _host, _port: [info])
        return canonical_names("kafka.example", 1, given, Deadline.after_ms(limit_ms))

    with pytest.raises(NetworkError, match="no answer"):
        of(v4("10.0.0.1", 1), 20)
    assert of(v4("10.0.0.2", 1), SOON) == ["name-of-10.0.0.2"]
    gate.set()


def test_addresses_whose_handshake_failed_come_last_for_a_while() -> None:
    now = 0.0
    failed = FailedAddresses(clock=lambda: now)
    found = [v4(f"127.0.0.{number}", 1) for number in range(1, 5)]

    def order() -> list[str]:
        return [info[4][0][-1] for info in failed.last(found)]

    assert order() == ["1", "2", "3", "4"]
    for info in found[:2]:
        failed.add(info[4])
        now += 1
    assert order() == ["3", "4", "1", "2"]
    failed.add(found[0][4])
    assert order() == ["3", "4", "2", "1"], "each in its turn"
    failed.discard(found[1][4])
    assert order() == ["2", "3", "4", "1"]
    now += 1
    failed.add(found[2][4])
    now += name_lookup.AVOIDED_S
    assert order() == ["1", "2", "3", "4"]
    now += 1
    assert order() == ["1", "2", "3", "4"], "an old failure is forgotten, not preferred"


def test_few_failed_addresses_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_lookup, "MAX_FAILED", 2)
    failed = FailedAddresses()
    found = [v4(f"127.0.0.{number}", 1) for number in range(1, 4)]
    for info in found:
        failed.add(info[4])
    assert [info[4][0][-1] for info in failed.last(found)] == ["1", "2", "3"]
    assert len(failed._failed_at) == 2


def test_an_address_that_has_failed_again_is_not_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_lookup, "MAX_FAILED", 2)
    failed = FailedAddresses()
    found = [v4(f"127.0.0.{number}", 1) for number in range(1, 4)]
    for number in (0, 1, 0, 2):
        failed.add(found[number][4])
    assert list(failed._failed_at) == [found[0][4], found[2][4]]
