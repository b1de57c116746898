"""Connections of a process: which addresses are opened, and which callers wait for each other."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from support.waiting import eventually

from spark_kafka_native.kafka.cluster.brokers import Brokers, _Known
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    KafkaError,
    NetworkError,
    ProtocolError,
    SecurityError,
    UnreachableError,
    UnsupportedVersionError,
)
from spark_kafka_native.kafka.model import Broker
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.runtime.retry import is_retriable

SOON = 60_000.0
PLACES = [("one", 9092), ("two", 9092), ("two", 9093)]


class Opened:
    """A connection of which only the address matters."""

    metrics: Any = None
    channel = ""
    closed = renewal_due = retired = answers = False

    def __init__(self, address: str) -> None:
        self.address = address

    def alive(self) -> bool:
        return not self.closed

    works = alive

    def version_of(self, _request: Any) -> int:
        return 9

    def close(self) -> None:
        self.closed = True

    def retire(self, _deadline: Deadline) -> None:
        self.retired = self.closed = True

    def wind_down(self) -> bool:
        self.retired, self.closed = True, self.closed or self.answers
        return self.closed


class Opening:
    """Opens connections that are their addresses; some wait at a gate, some fail."""

    def __init__(self, **failures: Exception) -> None:
        self.failures = failures
        self.opened: list[str] = []
        self.made: list[Opened] = []
        self.gates: dict[str, threading.Event] = {}
        self.at_gate = threading.Event()

    def __call__(self, host: str, port: int, _config: ClientConfig, _deadline: Deadline) -> Any:
        self.opened.append(f"{host}:{port}")
        if host in self.gates:
            self.at_gate.set()
            assert self.gates[host].wait(120)
        if host in self.failures:
            raise self.failures[host]
        self.made.append(Opened(f"{host}:{port}"))
        return self.made[-1]


def canonical(monkeypatch: pytest.MonkeyPatch, **names: list[str]) -> ClientConfig:
    """Names of which each has several addresses, and each of those a name."""
    targets = {
        name: [(socket.AF_INET, 1, 6, "", (one, 9092)) for one in found] for name, found in names.items()
    }
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, _port, **_: targets[host])
    monkeypatch.setattr(socket, "getnameinfo", lambda target, _flags: (target[0], "9092"))
    return ClientConfig(
        bootstrap_servers=tuple(f"{name}:9092" for name in names),
        client_dns_lookup="resolve_canonical_bootstrap_servers_only",
    )


@pytest.mark.parametrize(
    "error",
    [UnreachableError("one is off"), SecurityError("wrong certificate"), ProtocolError("HTTP")],
    ids=str,
)
def test_each_canonical_name_is_a_server(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    opening = Opening(one=error)
    brokers = Brokers(canonical(monkeypatch, cluster=["one", "two", "three"]), opening)
    assert brokers.bootstrap(Deadline.after_ms(SOON)).address == "two:9092"
    assert opening.opened == ["one:9092", "two:9092"]


def test_failures_of_all_canonical_names_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Opening(one=UnreachableError("one is off"), two=UnreachableError("two too"))
    brokers = Brokers(canonical(monkeypatch, cluster=["one", "two"]), opening)
    with pytest.raises(UnreachableError, match=r"cluster:9092.*one:9092: one is off; two:9092: two too"):
        brokers.bootstrap(Deadline.after_ms(SOON))


def test_refused_credentials_are_shown_to_one_canonical_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Opening(one=AuthenticationError("no"), two=AuthenticationError("no"))
    brokers = Brokers(canonical(monkeypatch, cluster=["one", "two"]), opening)
    with pytest.raises(AuthenticationError):
        brokers.bootstrap(Deadline.after_ms(SOON))
    assert opening.opened == ["one:9092"]


def test_refused_credentials_are_shown_to_one_bootstrap_server_only() -> None:
    """The account might be locked."""
    opening = Opening(one=AuthenticationError("no"), two=AuthenticationError("no"))
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092", "two:9092")), opening)
    with pytest.raises(AuthenticationError, match=r"^no$"):
        brokers.bootstrap(Deadline.after_ms(SOON))
    assert len(opening.opened) == 1


@pytest.mark.parametrize(
    "error",
    [
        SecurityError("wrong certificate"),
        ProtocolError("this is HTTP"),
        UnsupportedVersionError("a controller"),
        BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "ApiVersions"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_bootstrap_server_that_is_no_broker_keeps_no_other_from_being_asked(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(random, "sample", lambda servers, _count: list(servers))  # in their order
    opening = Opening(one=error)
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092", "two:9092")), opening)
    assert brokers.bootstrap(Deadline.after_ms(SOON)).address == "two:9092"
    assert opening.opened == ["one:9092", "two:9092"]


def test_the_port_of_a_controller_is_no_bootstrap_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "sample", lambda servers, _count: list(servers))
    opening = Opening()

    def version_of(opened: Opened, _request: Any) -> int:
        if opened.address == "one:9092":
            raise UnsupportedVersionError("no Metadata")
        return 9

    monkeypatch.setattr(Opened, "version_of", version_of)
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092", "two:9092")), opening)
    assert brokers.bootstrap(Deadline.after_ms(SOON)).address == "two:9092"
    assert [one.closed for one in opening.made] == [True, False]


def test_each_bootstrap_server_has_a_share_of_the_time_that_is_left() -> None:
    """One that stands still leaves time for the others; those that refuse at once leave theirs, too."""
    shares: list[float] = []

    def refuse(_host: str, _port: int, _config: ClientConfig, deadline: Deadline) -> Any:
        shares.append(deadline.remaining_ms)
        raise UnreachableError("off")

    servers = ("one:9092", "two:9092", "three:9092")
    with pytest.raises(UnreachableError):
        Brokers(ClientConfig(bootstrap_servers=servers), refuse).bootstrap(Deadline.after_ms(SOON))
    for share, most in zip(shares, (SOON / 3, SOON / 2, SOON), strict=True):
        assert most - 5_000 < share <= most


def test_each_canonical_name_has_a_share_of_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As each bootstrap server: the brokers behind one name may stand still one by one."""
    shares: list[float] = []

    def refuse(_host: str, _port: int, _config: ClientConfig, deadline: Deadline) -> Any:
        shares.append(deadline.remaining_ms)
        raise UnreachableError("off")

    config = canonical(monkeypatch, cluster=["one", "two", "three"])
    with pytest.raises(UnreachableError):
        Brokers(config, refuse).bootstrap(Deadline.after_ms(SOON))
    for share, most in zip(shares, (SOON / 3, SOON / 2, SOON), strict=True):
        assert most - 5_000 < share <= most


@pytest.mark.parametrize("is_lost", [False, True])
def test_threads_at_first_contact_do_not_close_each_others_connection(is_lost: bool) -> None:
    """The faster one is about to send on it: its attempt failed although all brokers were well."""
    opening, gate = Opening(), threading.Event()
    opening.gates["one"] = gate
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092",)), opening)
    with ThreadPoolExecutor(1) as pool:
        slower = pool.submit(brokers.bootstrap, Deadline.after_ms(SOON))
        assert opening.at_gate.wait(60)
        del opening.gates["one"]
        faster: Any = brokers.bootstrap(Deadline.after_ms(SOON))
        if is_lost:
            faster.close()
        gate.set()
        second: Any = slower.result(60)
    assert (second is faster, faster.retired) == (not is_lost, is_lost)
    assert opening.made[1].closed is not is_lost


def test_a_bootstrap_connection_that_did_not_help_is_replaced() -> None:
    opening = Opening()
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092",)), opening)
    first, second = (brokers.bootstrap(Deadline.after_ms(SOON)) for _ in range(2))
    assert first is not second
    assert [one.retired for one in opening.made] == [True, False]
    assert brokers.live() == [second]


def test_a_broker_with_another_address_is_connected_to_there() -> None:
    """Where it was before there may be a broker of another cluster."""
    opening = Opening()
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092",)), opening)
    here, moved, other_port = (Broker(node_id=1, host=h, port=p) for h, p in PLACES)
    first = brokers.connection(here, Deadline.after_ms(SOON))
    assert brokers.connection(here, Deadline.after_ms(SOON)) is first
    for place in (moved, other_port):
        assert brokers.ready(place) is None
        assert brokers.connection(place, Deadline.after_ms(SOON)).address == f"{place.host}:{place.port}"
        assert brokers.ready(place) is opening.made[-1]
    # Others may wait for answers: requests that are cut are sent again.
    assert [one.retired for one in opening.made] == [True, True, False]
    assert not any(one.closed for one in opening.made)
    opening.made[0].answers = True
    assert brokers.live() == opening.made[2:]
    assert brokers._leaving == opening.made[1:2]
    assert [one.closed for one in opening.made] == [True, False, False]
    brokers.close()
    assert all(one.closed for one in opening.made)


def test_a_connection_that_was_let_go_is_not_found_again_where_its_address_changes_back() -> None:
    opening = Opening(two=UnreachableError("two is off"))
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092",)), opening)
    here, moved, _ = (Broker(node_id=1, host=h, port=p) for h, p in PLACES)
    first = brokers.connection(here, Deadline.after_ms(SOON))
    for _ in range(3):
        with pytest.raises(NetworkError, match="two is off"):
            brokers.connection(moved, Deadline.after_ms(SOON))
    assert brokers._leaving == [first]
    assert brokers.ready(here) is None
    assert brokers.connection(here, Deadline.after_ms(SOON)) is not first


def test_connections_of_a_former_cluster_take_nothing_more() -> None:
    opening = Opening()
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092",)), opening)
    brokers.bootstrap(Deadline.after_ms(SOON))
    brokers.connection(Broker(node_id=1, host="two", port=9092), Deadline.after_ms(SOON))
    brokers.start_again()
    assert brokers.live() == []
    assert all(one.retired for one in opening.made)
    brokers.start_again()
    assert len(brokers._leaving) == 2
    again = brokers.bootstrap(Deadline.after_ms(SOON))
    assert brokers.live() == [again]
    brokers.bootstrap(Deadline.after_ms(SOON))
    assert opening.made[2].retired
    brokers.close()
    assert all(one.closed for one in opening.made)


def test_names_stay_as_they_are_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("nobody is to be asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    opening = Opening()
    brokers = Brokers(ClientConfig(bootstrap_servers=("cluster:9092",)), opening)
    assert brokers.bootstrap(Deadline.after_ms(SOON)).address == "cluster:9092"


def test_who_waits_for_another_threads_connection_keeps_its_own_deadline() -> None:
    opening = Opening()
    opening.gates["slow"] = threading.Event()
    brokers = Brokers(ClientConfig(bootstrap_servers=("cluster:9092",)), opening)
    slow, fast = (Broker(node_id=i, host=host, port=1) for i, host in enumerate(("slow", "fast")))
    first = threading.Thread(target=brokers.connection, args=(slow, Deadline.after_ms(SOON)), daemon=True)
    first.start()
    assert opening.at_gate.wait(60)
    with pytest.raises(NetworkError, match="connecting to broker 0"):
        brokers.connection(slow, Deadline.after_ms(20))
    # The way to the others is free meanwhile.
    assert brokers.connection(fast, Deadline.after_ms(SOON)).address == "fast:1"
    opening.gates["slow"].set()
    first.join(60)


def test_a_former_address_blocks_no_thread_that_knows_the_present_one() -> None:
    opening = Opening()
    opening.gates["former"] = threading.Event()
    brokers = Brokers(ClientConfig(bootstrap_servers=("cluster:9092",)), opening)
    former, present = (Broker(node_id=1, host=host, port=1) for host in ("former", "present"))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(brokers.connection, former, Deadline.after_ms(SOON))
        assert opening.at_gate.wait(60)
        found = brokers.connection(present, Deadline.after_ms(SOON))
        assert found.address == "present:1"
        assert brokers.ready(present) is found
        opening.gates["former"].set()
        # It comes too late: in the place of the other one, that would be closed by no one.
        assert "another thread has found it at present:1" in str(first.exception(60))
    assert brokers.live() == [found]
    assert opening.made[1].retired
    assert [(host, port) for _, host, port in brokers._turns] == [("present", 1)]


def test_a_thread_that_waited_for_a_former_address_leaves_the_connection_to_the_present_one() -> None:
    """It closed that, and dialed the former one once more."""
    opening = Opening()
    opening.gates["former"] = threading.Event()
    brokers = Brokers(ClientConfig(bootstrap_servers=("cluster:9092",)), opening)
    former, present = (Broker(node_id=1, host=host, port=1) for host in ("former", "present"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(brokers.connection, former, Deadline.after_ms(SOON))
        assert opening.at_gate.wait(60)
        second = pool.submit(brokers.connection, former, Deadline.after_ms(SOON))
        (turns,) = brokers._turns.values()
        eventually(lambda: turns.lock._released.waiting == 1)
        found = brokers.connection(present, Deadline.after_ms(SOON))
        opening.gates["former"].set()
        errors = [str(one.exception(60)) for one in (first, second)]
    assert ["another thread has found it at present:1" in error for error in errors] == [True, True]
    assert (brokers.live(), opening.opened) == ([found], ["former:1", "present:1"])


@pytest.mark.parametrize("has_time", [True, False])
def test_a_failure_counts_for_the_threads_that_waited_for_the_attempt(has_time: bool) -> None:
    """Each dialed a former address of the broker by itself, one after the other."""
    opening = Opening(former=NetworkError("nothing answers"))
    opening.gates["former"] = gate = threading.Event()
    brokers = Brokers(ClientConfig(bootstrap_servers=("cluster:9092",)), opening)
    broker, limit, now = Broker(node_id=1, host="former", port=1), Deadline.after_ms(SOON), [0.0]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(brokers.connection, broker, Deadline(1.0, clock=lambda: now[0]))
        assert opening.at_gate.wait(60)
        second = pool.submit(brokers.connection, broker, limit)
        (turns,) = brokers._turns.values()
        eventually(lambda: turns.lock._released.waiting == 1)
        if not has_time:
            now[0] = 1.0
        gate.set()
        errors = [one.exception(60) for one in (first, second)]
    assert [("nothing answers" in str(one)) for one in errors] == [True, True]
    assert errors[0] is not errors[1]
    # A thread with less time than the attempt needs says nothing about the broker.
    assert len(opening.opened) == (1 if has_time else 2)
    with pytest.raises(NetworkError):
        brokers.connection(broker, limit)
    assert len(opening.opened) == (2 if has_time else 3), "it is over: the next call tries again"


def test_who_waits_for_another_threads_metadata_keeps_its_own_deadline() -> None:
    opening = Opening(slow=NetworkError("gone"))
    opening.gates["slow"] = threading.Event()
    config = ClientConfig(bootstrap_servers=("slow:1",))
    router = Router(config, Brokers(config, opening))

    def ask() -> None:
        with pytest.raises(NetworkError, match="gone"):
            router.refresh((), Deadline.after_ms(SOON))

    first = threading.Thread(target=ask, daemon=True)
    first.start()
    assert opening.at_gate.wait(60)
    with pytest.raises(NetworkError, match="another thread was asking for metadata"):
        router.refresh((), Deadline.after_ms(20))
    opening.gates["slow"].set()
    first.join(60)
    assert not first.is_alive()


def test_what_is_connected_after_a_close_is_closed_too() -> None:
    opening = Opening()
    opening.gates["slow"] = threading.Event()
    brokers = Brokers(ClientConfig(bootstrap_servers=("slow:9092",)), opening)
    failures: list[NetworkError] = []

    def connect(way: Callable[[], object]) -> None:
        with pytest.raises(NetworkError, match="slow:9092: the client was closed while it was connecting"):
            way()
        failures.append(NetworkError())

    slow, until = Broker(node_id=1, host="slow", port=9092), Deadline.after_ms(SOON)
    ways = (lambda: brokers.connection(slow, until), lambda: brokers.bootstrap(until))
    threads = [threading.Thread(target=connect, args=(way,), daemon=True) for way in ways]
    for thread in threads:
        opening.at_gate.clear()
        thread.start()
        assert opening.at_gate.wait(60)
    brokers.close()
    opening.gates["slow"].set()
    for thread in threads:
        thread.join(60)
    assert len(failures) == 2
    assert [one.closed for one in opening.made] == [True, True]


def test_what_is_connected_while_the_others_are_closed_is_kept_for_the_next_close() -> None:
    """Otherwise no call would close it."""
    opening = Opening()
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:1",)), opening)
    one, two = (Broker(node_id=i, host=host, port=1) for i, host in enumerate(("one", "two")))
    until = Deadline.after_ms(SOON)
    brokers.connection(one, until)

    def close() -> None:
        opening.made[0].closed = True
        brokers.connection(two, until)

    opening.made[0].close = close  # type: ignore[method-assign]
    brokers.close()
    assert brokers.live() == [opening.made[1]]
    brokers.close()
    assert [one.closed for one in opening.made] == [True, True]


def test_each_channel_has_a_connection_of_its_own() -> None:
    """The one to a bootstrap server, on which other requests may wait, is not given to a channel."""
    opening, until = Opening(), Deadline.after_ms(SOON)
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092",)), opening)
    broker = Broker(node_id=1, host="one", port=9092)
    bootstrapped = brokers.bootstrap(until)
    assert brokers.ready(broker, "beats") is None
    beats, fetches = (brokers.connection(broker, until, name) for name in ("beats", "fetches"))
    assert brokers.connection(broker, until) is bootstrapped
    assert [one.channel for one in opening.made] == ["", "beats", "fetches"]
    for name, own in (("", bootstrapped), ("beats", beats), ("fetches", fetches)):
        assert brokers.ready(broker, name) is brokers.connection(broker, until, name) is own
    assert len(opening.made) == 3


@pytest.mark.parametrize("way", ["ready", "connection"])
def test_a_bootstrap_connection_that_a_broker_has_taken_over_is_that_of_the_broker(way: str) -> None:
    """The next first contact does not end it, and no request is sent to it twice."""
    opening, until = Opening(), Deadline.after_ms(SOON)
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092",)), opening)
    broker = Broker(node_id=1, host="one", port=9092)
    own: Any = brokers.bootstrap(until)
    assert (brokers.ready(broker) if way == "ready" else brokers.connection(broker, until)) is own
    assert brokers.live() == [own]
    other = brokers.bootstrap(until)
    assert brokers.live() == [own, other]
    assert not own.retired


@pytest.mark.parametrize("looks_first", [True, False])
def test_nothing_new_is_sent_on_a_connection_whose_session_ends(looks_first: bool) -> None:
    """Its broker would close it, and drop what it got without an answer."""
    opening, until = Opening(), Deadline.after_ms(SOON)
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092",)), opening)
    broker = Broker(node_id=1, host="one", port=9092)
    brokers.bootstrap(until)
    opening.made[0].renewal_due = True
    assert brokers.live() == []
    if looks_first:
        assert brokers.ready(broker) is None
    own: Any = brokers.connection(broker, until)
    assert own is opening.made[1]
    assert brokers.live() == [own]
    own.renewal_due = True
    assert brokers.live() == []
    assert brokers.ready(broker) is None
    assert brokers.connection(broker, until) is opening.made[2]
    assert own.closed, "the requests on it are answered first"


def test_only_a_connection_that_nobody_waits_for_is_ready() -> None:
    opening = Opening()
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:1",)), opening)
    one, two = (Broker(node_id=i, host=host, port=1) for i, host in enumerate(("one", "two")))
    assert brokers.ready(one) is None
    assert opening.opened == []
    until = Deadline.after_ms(SOON)
    bootstrapped = brokers.bootstrap(until)
    assert brokers.ready(one) is bootstrapped  # it is the one that it advertises
    assert brokers.ready(one) is brokers.connection(one, until)
    assert brokers.ready(Broker(node_id=0, host="moved", port=1)) is None
    opening.made[0].closed = True
    assert brokers.ready(one) is None
    opening.gates["two"] = threading.Event()
    first = threading.Thread(target=brokers.connection, args=(two, until), daemon=True)
    first.start()
    assert opening.at_gate.wait(60)
    assert brokers.ready(two) is None
    opening.gates["two"].set()
    first.join(60)
    assert brokers.ready(two) is brokers.connection(two, until)
    assert opening.opened == ["one:1", "two:1"]


class Used:
    """A connection, and how often it was ended in each way."""

    def __init__(self, *, in_use_here: bool = False, closed: bool = False) -> None:
        self.in_use_here, self.closed = in_use_here, closed
        self.lock = threading.RLock()
        self.ends: list[str] = []

    def close(self) -> None:
        self.ends.append("close")

    def forget(self) -> None:
        self.ends.append("forget")


def with_connections(*used: Used) -> Brokers:
    """The last one to a bootstrap server."""
    brokers: Any = Brokers(ClientConfig(bootstrap_servers=("h:1",)))
    brokers._connections = {(number, ""): _Known(one, "h", 1, 0.0) for number, one in enumerate(used[:-1])}
    brokers._bootstrapped = used[-1]
    return brokers  # type: ignore[no-any-return]


def test_connections_in_which_a_signal_interrupted_a_call_are_closed_and_no_others() -> None:
    """A handler would write into the frame that was interrupted."""
    used = [Used(in_use_here=True), Used(closed=True), Used(), Used(in_use_here=True)]
    assert with_connections(*used).leave() == [one.lock for one in used]
    assert [one.ends for one in used] == [["close"], ["close"], [], ["close"]]


def test_a_child_does_not_end_the_connections_of_its_parent() -> None:
    """With TLS, closing one would say so to the broker."""
    used = [Used(), Used()]
    brokers = with_connections(*used)
    brokers._disown()
    assert [one.ends for one in used] == [["forget"], ["forget"]]
    assert brokers._known() == []


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (SecurityError("an old certificate"), True),
        (ConfigError("the file is missing"), True),
        (AuthenticationError("the password is wrong"), False),
    ],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("at", ["a broker", "the bootstrap servers"])
def test_settings_that_have_worked_may_work_again(error: KafkaError, passes: bool, at: str) -> None:
    opening = Opening()
    brokers = Brokers(ClientConfig(bootstrap_servers=("one:9092", "two:9092")), opening)
    broker = Broker(node_id=1, host="one", port=9092)
    dial = partial(brokers.connection, broker) if at == "a broker" else brokers.bootstrap

    def connect() -> KafkaError:
        with pytest.raises(type(error)) as raised:
            dial(Deadline.after_ms(SOON))
        return raised.value

    found = []
    # A bootstrap server says little of the names that brokers advertise.
    for works in (lambda _: None, brokers.bootstrap, partial(brokers.connection, broker)):
        opening.failures = {}
        if (connection := works(Deadline.after_ms(SOON))) is not None:
            connection.close()
        opening.failures = {"one": error, "two": error}
        found.append(is_retriable(connect()))
    assert found == [False, False, passes]


@pytest.mark.parametrize(
    ("server", "host", "blames"),
    [("[::1]:9092", "::1", False), ("One:9092", "one", False), ("one:9092", "two", True)],
)
def test_an_address_that_is_a_bootstrap_servers_is_not_blamed_on_advertised_listeners(
    server: str, host: str, blames: bool
) -> None:
    opening = Opening(**{host: NetworkError("off")})
    brokers = Brokers(ClientConfig(bootstrap_servers=(server,)), opening)
    with pytest.raises(NetworkError, match="off") as raised:
        brokers.connection(Broker(node_id=1, host=host, port=9092), Deadline.after_ms(SOON))
    assert ("advertised.listeners" in str(raised.value)) is blames
