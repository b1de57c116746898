"""Several addresses of one broker: in parallel or one after the other, within the deadline."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.silent_listener import silent_listener

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.security_config import SecurityConfig, SecurityProtocol
from spark_kafka_native.kafka.errors import ConfigError, NetworkError, UnreachableError
from spark_kafka_native.kafka.network import transport
from spark_kafka_native.kafka.network.transport import Dialing, Transport
from spark_kafka_native.kafka.runtime.deadline import Deadline

SOON = 60_000.0


def config(**changed: Any) -> ClientConfig:
    return ClientConfig(bootstrap_servers=("kafka.example:9092",), **changed)


def info(sock: socket.socket) -> Any:
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", sock.getsockname())


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def refusing() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.2", 0))
        yield sock


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    with silent_listener() as sock:
        yield sock


def dial(addresses: list[Any], deadline_ms: float = SOON, **changed: Any) -> tuple[str, Dialing]:
    with Dialing(addresses, config(**changed), Deadline.after_ms(deadline_ms)) as dialing:
        found = dialing.next()
        if found is None:
            raise dialing.error("kafka.example:9092")
        found[0].close()
    assert not dialing._trying
    return found[1], dialing


def test_an_address_that_answers_nothing_is_overtaken(
    silent: socket.socket, listener: socket.socket, refusing: socket.socket
) -> None:
    # The silent address has 1,000 s: waiting for it would not end.
    patient = {"deadline_ms": 1e6, "connection_setup_timeout_ms": 1_000_000, "connection_attempt_delay_ms": 1}
    found, _ = dial([info(silent), info(refusing), info(silent), info(listener)], **patient)
    assert found == "127.0.0.1"


def test_an_address_that_refuses_hands_over_at_once(refusing: socket.socket, listener: socket.socket) -> None:
    found, _ = dial([info(refusing), info(listener)], connection_attempt_delay_ms=10_000_000)
    assert found == "127.0.0.1"


def test_an_address_that_refuses_hands_over_at_once_while_another_is_silent(
    silent: socket.socket, refusing: socket.socket, listener: socket.socket
) -> None:
    given = config(connection_attempt_delay_ms=10_000_000)
    with Dialing([info(silent), info(refusing), info(listener)], given, Deadline.after_ms(10_000)) as dialing:
        assert dialing._start(dialing._left.popleft()) is None
        dialing._next_at = Deadline.after_ms(0)
        found = dialing.next()
        assert found is not None
        assert found[1] == "127.0.0.1"
        assert len(dialing._trying) == 1, "the silent one is not waited for"
        found[0].close()


def test_a_socket_that_is_connected_to_itself_is_refused(listener: socket.socket) -> None:
    """As its broker is down: the socket would hold the port, and the broker could not start."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        address = info(own)
        with pytest.raises(UnreachableError, match=r"\(127.0.0.1: connection refused\)"):
            dial([address], socket_factory=lambda _: own)
        assert own.fileno() == -1
    with socket.socket() as another:
        another.bind(address[4])  # at once
        # The other addresses are tried.
        made = iter([another, socket.socket()])
        dial([address, info(listener)], socket_factory=lambda _: next(made))


def test_in_turn_each_has_its_share_of_the_time(silent: socket.socket, listener: socket.socket) -> None:
    found, dialing = dial(
        [info(silent), info(listener)], connection_setup_timeout_ms=100, connection_attempt_delay_ms=-1
    )
    assert found == "127.0.0.1"
    assert "127.0.0.3: no answer in" in str(dialing.error("x"))
    assert not isinstance(dialing.error("x"), UnreachableError)


def test_in_turn_the_first_leaves_half_of_the_time(silent: socket.socket, listener: socket.socket) -> None:
    found, dialing = dial([info(silent), info(listener)], deadline_ms=300, connection_attempt_delay_ms=-1)
    assert found == "127.0.0.1"
    assert int(str(dialing.error("x")).partition("no answer in ")[2].split()[0]) <= 150


def test_the_systems_own_timeout_is_no_refusal() -> None:
    class Late(socket.socket):
        def connect_ex(self, _: Any, /) -> int:
            return errno.ETIMEDOUT

    with pytest.raises(NetworkError, match="timed out") as raised:
        dial(
            [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9))],
            socket_factory=lambda info: Late(*info[:3]),
        )
    assert not isinstance(raised.value, UnreachableError)


def test_in_turn_means_that_no_other_is_begun(
    silent: socket.socket, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Deadline.after_ms(1_000)
    with Dialing([info(silent), info(listener)], config(connection_attempt_delay_ms=-1), limit) as dialing:
        begun = dialing._start

        def begin(one: Any) -> Any:
            assert not dialing._trying
            return begun(one)

        monkeypatch.setattr(dialing, "_start", begin)
        assert dialing.next() is not None
        assert dialing.exhausted


def test_no_other_address_is_begun_before_the_delay(listener: socket.socket) -> None:
    with socket.create_server(("127.0.0.3", 0)) as other:
        other.setblocking(False)
        found, _ = dial([info(listener), info(other)], connection_attempt_delay_ms=10_000_000)
        assert found == "127.0.0.1"
        with pytest.raises(BlockingIOError):
            other.accept()


def test_all_that_failed_are_named(refusing: socket.socket, silent: socket.socket) -> None:
    with pytest.raises(UnreachableError, match=r"kafka.example:9092 \(127.0.0.2: connection refused\)"):
        dial([info(refusing)])
    with pytest.raises(NetworkError, match=r"127.0.0.2: connection refused; 127.0.0.3: no answer") as raised:
        dial([info(refusing), info(silent)], deadline_ms=100)
    assert not isinstance(raised.value, UnreachableError)


def test_no_time_is_still_an_answer(refusing: socket.socket) -> None:
    with pytest.raises(NetworkError, match=r"127.0.0.2"):
        dial([info(refusing)], deadline_ms=0)


def socket_of(connected: Transport) -> socket.socket:
    """Its descriptor as a socket; the transport is closed."""
    found = socket.socket(fileno=os.dup(connected.fileno()))
    connected.close()
    return found


def connect(listener: socket.socket, **changed: Any) -> socket.socket:
    given = config(**changed)
    return socket_of(Transport.connect(*listener.getsockname(), given, Deadline.after_ms(SOON)))


def test_each_address_has_the_time_of_one_tls_handshake(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first one that takes connections, and says nothing, would leave no time to the others."""
    limits_ms: list[float] = []

    def encrypt(sock: socket.socket, host: str, address: str, context: Any, limit: Deadline) -> socket.socket:
        limits_ms.append(limit.remaining_ms)
        if len(limits_ms) == 1:
            sock.close()
            raise NetworkError("no TLS handshake in time")
        return sock

    monkeypatch.setattr(transport, "_encrypt", encrypt)
    given = config(
        security=SecurityConfig(protocol=SecurityProtocol.SSL),
        connection_setup_timeout_ms=5_000,
        resolver=lambda *_: [info(listener)] * 2,
    )
    connected = Transport.connect("kafka.example", 9092, given, Deadline.after_ms(SOON))
    with socket_of(connected) as sock:
        assert sock.getpeername() == listener.getsockname()
    assert len(limits_ms) == 2
    assert max(limits_ms) <= 5_000


def test_settings_of_the_socket(listener: socket.socket) -> None:
    with connect(listener) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with connect(listener, keepalive_idle_ms=75_000, source_address="127.0.0.9") as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 75
        assert sock.getsockname()[0] == "127.0.0.9"
    with connect(listener, keepalive=False) as sock:
        assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize(
    ("idle_ms", "idle_s"), [(0, 1), (999, 1), (1_999, 1), (32_767_000, 32_767), (2**31 - 1, 32_767)]
)
def test_each_keepalive_time_becomes_one_that_the_system_takes(
    listener: socket.socket, idle_ms: int, idle_s: int
) -> None:
    """It takes whole seconds from 1 to 32 767, and refuses all others: no connection would be made."""
    with connect(listener, keepalive_idle_ms=idle_ms) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == idle_s


@pytest.mark.parametrize("settings", [{"keepalive_idle_ms": -1}, {"keepalive": False}], ids=str)
def test_without_a_keepalive_time_that_of_the_system_stays(
    listener: socket.socket, settings: dict[str, Any]
) -> None:
    with socket.socket() as plain, connect(listener, **{"keepalive_idle_ms": 75_000, **settings}) as sock:
        idle_s = plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == idle_s


@pytest.mark.parametrize("size", [0, 8_192, 50_000])
@pytest.mark.parametrize(
    ("setting", "option"),
    [("receive_buffer_bytes", socket.SO_RCVBUF), ("send_buffer_bytes", socket.SO_SNDBUF)],
)
def test_each_buffer_has_the_size_that_is_set(
    listener: socket.socket, setting: str, option: int, size: int
) -> None:
    with socket.socket() as plain, connect(listener, **{setting: size}) as sock:
        plain.setsockopt(socket.SOL_SOCKET, option, size)
        # The system doubles the size, and has a minimum.
        assert sock.getsockopt(socket.SOL_SOCKET, option) == plain.getsockopt(socket.SOL_SOCKET, option)


def test_a_foreign_source_address_is_an_error(listener: socket.socket) -> None:
    with pytest.raises(NetworkError, match=r"cannot assign requested address"):
        connect(listener, source_address="192.0.2.1")


def test_a_socket_that_can_not_be_set_up_is_closed(listener: socket.socket) -> None:
    made: list[socket.socket] = []

    def make(address: Any) -> socket.socket:
        made.append(socket.socket(*address[:3]))
        return made[-1]

    with pytest.raises(NetworkError, match=r"cannot assign requested address"):
        connect(listener, source_address="192.0.2.1", socket_factory=make)
    assert [one.fileno() for one in made] == [-1]


@pytest.mark.parametrize("delay_ms", [-1, 1])
def test_the_sockets_of_addresses_that_fail_are_closed(
    silent: socket.socket, refusing: socket.socket, delay_ms: int
) -> None:
    made: list[socket.socket] = []

    def make(address: Any) -> socket.socket:
        made.append(socket.socket(*address[:3]))
        return made[-1]

    with pytest.raises(NetworkError, match="no answer in"):
        dial(
            [info(refusing), info(silent)],
            connection_setup_timeout_ms=20,
            connection_attempt_delay_ms=delay_ms,
            socket_factory=make,
        )
    assert [one.fileno() for one in made] == [-1, -1]


def test_a_socket_that_is_connected_keeps_its_own_source_address(listener: socket.socket) -> None:
    with connect(
        listener,
        source_address="127.0.0.9",
        socket_factory=lambda address: socket.create_connection(address[4]),
    ) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"


def test_a_factory_makes_the_socket_or_connects_it(listener: socket.socket) -> None:
    made: list[Any] = []

    def make(address: Any) -> socket.socket:
        made.append(address)
        return socket.socket(*address[:3])

    def through_a_proxy(address: Any) -> socket.socket:
        made.append(address)
        return socket.create_connection(listener.getsockname())

    def refuse(_: Any) -> socket.socket:
        raise OSError(111, "the proxy refuses")

    def fail(_: Any) -> socket.socket:
        raise OSError("an error of a library, which has no number")

    with connect(listener, socket_factory=make) as sock:
        assert sock.getpeername() == listener.getsockname()
    proxied = config(
        socket_factory=through_a_proxy,
        resolver=lambda host, port: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))],
    )
    with socket_of(Transport.connect("192.0.2.7", 9, proxied, Deadline.after_ms(SOON))) as sock:
        assert sock.getpeername() == listener.getsockname()
        assert not os.get_blocking(sock.fileno())
    assert [one[4] for one in made] == [listener.getsockname(), ("192.0.2.7", 9)]
    with pytest.raises(NetworkError, match=r"127.0.0.1:\d+ \(connection refused\)"):
        connect(listener, socket_factory=refuse)
    with pytest.raises(NetworkError, match=r"127.0.0.1:\d+ \(invalid argument\)"):
        connect(listener, socket_factory=fail)
    with pytest.raises(ConfigError, match="must return a socket"):
        connect(listener, socket_factory=lambda _: None)  # type: ignore[arg-type, return-value]
