"""The end of a stream, as reading and writing see it."""

import contextlib
import re
import select
import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import trustme

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.security_config import SecurityConfig, SecurityProtocol
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    ConfigError,
    HandshakeClosedError,
    KafkaError,
    NetworkError,
    SecurityError,
)
from spark_kafka_native.kafka.network import transport as transport_module
from spark_kafka_native.kafka.network.transport import (
    READ,
    TLS_CHUNK,
    WRITE,
    Transport,
    _encrypt,
    _handshake_failure,
    _shake_hands,
    wait_for_streams,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline


def test_a_shut_stream_still_encrypts_another_threads_writes():
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    encrypted = context.wrap_socket(ours, server_hostname="broker", do_handshake_on_connect=False)
    transport = Transport(encrypted, "broker:1")
    transport.shut()
    assert encrypted._sslobj is not None, "it would write plain text from here on"
    assert transport.fileno() >= 0
    transport.close()
    assert transport.fileno() == -1
    theirs.close()


def test_a_shut_stream_wakes_those_that_wait_for_a_silent_broker():
    ours, theirs = socket.socketpair()
    transport = Transport(ours, "broker:1")
    assert transport.wait(READ, Deadline.after_ms(1)) == 0
    transport.shut()
    assert transport.wait(READ, Deadline.after_ms(1_000)) == READ
    transport.close()
    theirs.close()


@pytest.mark.parametrize(
    ("found", "ready"),
    [
        (None, 0),
        (select.POLLIN, READ),
        (select.POLLOUT, WRITE),
        (select.POLLIN | select.POLLOUT, READ | WRITE),
        (select.POLLHUP, READ | WRITE),
        (select.POLLERR, READ | WRITE),
        (select.POLLNVAL, READ | WRITE),
        (select.POLLIN | select.POLLHUP, READ | WRITE),
    ],
)
def test_a_dead_stream_is_ready_for_all_that_is_waited_for(found, ready):
    """Reading says why it is dead; it is no silence until the deadline."""
    ours, theirs = socket.socketpair()
    transport = Transport(ours, "broker:1")
    deadline = SimpleNamespace(poll=lambda _: [] if found is None else [(ours.fileno(), found)])
    assert transport.wait(READ | WRITE, deadline) == ready
    transport.close()
    theirs.close()


@pytest.mark.parametrize(
    ("host", "name"),
    [("b.example.", "b.example"), ("b.example", "b.example"), ("localhost", "localhost"), ("::1", "::1")],
)
def test_a_certificate_is_asked_for_under_the_name_without_a_dot_at_its_end(host, name):
    """No certificate has one: that of the right broker was refused."""
    asked = []

    def wrap(sock, *, server_hostname, do_handshake_on_connect):
        asked.append((server_hostname, do_handshake_on_connect))
        raise OSError("the name is known by now")

    ours, theirs = socket.socketpair()
    with pytest.raises(KafkaError):
        _encrypt(ours, host, f"{host}:1", SimpleNamespace(wrap_socket=wrap), Deadline.after_ms(1_000))
    assert asked == [(name, False)]
    assert ours.fileno() == -1
    theirs.close()


def test_small_pieces_are_encrypted_together_and_a_large_one_by_itself(monkeypatch):
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    encrypted = context.wrap_socket(ours, server_hostname="broker", do_handshake_on_connect=False)
    offered, sent = [], []

    def send(piece):
        assert len(piece), "nothing would ever be sent"
        offered.append(len(piece))
        if len(offered) == 1:
            raise ssl.SSLWantWriteError
        sent.append(bytes(piece[:200_000]))
        return len(sent[-1])

    monkeypatch.setattr(encrypted, "send", send)
    transport = Transport(encrypted, "broker:1")
    pieces = [b"a" * 4, b"b" * 100, b"c" * (TLS_CHUNK + 1), b"d" * 4, b"e" * TLS_CHUNK, b"f"]
    unwritten = [memoryview(piece) for piece in pieces]
    assert not transport.write(unwritten)
    assert transport.write(unwritten)
    assert not unwritten
    assert b"".join(sent) == b"".join(pieces)
    assert offered[:3] == [104, 104, TLS_CHUNK + 1], "a retry offers the same bytes"
    transport.close()
    theirs.close()


def test_tls_says_if_its_reading_waits_to_write_and_its_writing_to_read(monkeypatch):
    """As in a renegotiation; a wait for the other direction would not end."""
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    encrypted = context.wrap_socket(ours, server_hostname="broker", do_handshake_on_connect=False)
    outcomes = []

    def proceed(_):
        raise outcomes.pop()

    monkeypatch.setattr(encrypted, "send", proceed)
    monkeypatch.setattr(encrypted, "recv_into", proceed)
    transport = Transport(encrypted, "broker:1")
    for error, waits_for in ((ssl.SSLWantReadError, READ), (ssl.SSLWantWriteError, WRITE)) * 2:
        outcomes.append(error)
        assert not transport.write([memoryview(b"a")])
        assert transport.write_waits_for == waits_for
        outcomes.append(error)
        assert transport.read_into(memoryview(bytearray(1))) == 0
        assert transport.read_waits_for == waits_for
    transport.close()
    theirs.close()


def test_a_closed_stream_is_not_waited_for():
    reading, writing = socket.socketpair()
    assert wait_for_streams([(reading.fileno(), READ), (-1, READ)], Deadline.after_ms(60_000))
    assert not wait_for_streams([(reading.fileno(), READ)], Deadline.after_ms(1))
    reading.close()
    writing.close()


def test_bytes_that_were_decrypted_and_not_read_are_ready():
    """The system shows nothing of them: the socket itself is empty."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("broker").configure_cert(server)
    authority.configure_trust(client)
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(server.wrap_socket, theirs, server_side=True)
        encrypted = client.wrap_socket(ours, server_hostname="broker")
        broker = accepted.result(10)
    encrypted.setblocking(False)
    transport, byte = Transport(encrypted, "broker:1"), memoryview(bytearray(1))
    broker.sendall(b"ab")
    while not transport.read_into(byte):
        assert transport.wait(READ, Deadline.after_ms(10_000)) == READ
    assert bytes(byte) == b"a"
    assert transport.wait(READ, Deadline.after_ms(100)) == READ
    assert transport.wait(WRITE, Deadline.after_ms(100)) == WRITE
    assert transport.read_into(byte) == 1
    assert bytes(byte) == b"b"
    assert transport.wait(READ, Deadline.after_ms(1)) == 0
    transport.close()
    broker.close()


def test_another_thread_is_not_writing_as_decrypted_bytes_are_looked_for(monkeypatch):
    """Two threads in one object of OpenSSL are undefined behaviour, for a question, too."""
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    encrypted = context.wrap_socket(ours, server_hostname="broker", do_handshake_on_connect=False)
    transport, held = Transport(encrypted, "broker:1"), []
    monkeypatch.setattr(encrypted, "pending", lambda: held.append(transport._tls_lock.locked()) or 0)
    assert transport.wait(READ, Deadline.after_ms(1)) == 0
    assert held == [True]
    assert not transport._tls_lock.locked()
    transport.close()
    theirs.close()


@pytest.mark.parametrize("reading", [True, False])
def test_a_damaged_record_is_a_lost_connection_once_the_broker_has_answered(monkeypatch, reading):
    """Another connection helps. Before the first answer it may be a disagreement about TLS, which stays."""
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    encrypted = context.wrap_socket(ours, server_hostname="broker", do_handshake_on_connect=False)
    transport = Transport(encrypted, "broker:1")
    outcomes = []

    def receive(_):
        if outcomes:
            raise outcomes.pop()
        return 1

    monkeypatch.setattr(encrypted, "recv_into", receive)
    monkeypatch.setattr(encrypted, "send", receive)

    def failure(reason):
        outcomes.append(ssl.SSLError(1, reason))
        outcomes[0].reason = reason
        with pytest.raises(KafkaError) as raised:
            transport.read_into(memoryview(bytearray(1))) if reading else transport.write([memoryview(b"a")])
        return raised.value

    assert type(failure("DECRYPTION_FAILED_OR_BAD_RECORD_MAC")) is SecurityError
    assert transport.read_into(memoryview(bytearray(1))) == 1
    lost = failure("DECRYPTION_FAILED_OR_BAD_RECORD_MAC")
    assert type(lost) is NetworkError
    assert "TLS failed" in str(lost)
    assert "bad record mac" in str(lost)
    refused = failure("TLSV1_ALERT_UNKNOWN_CA")
    assert type(refused) is AuthenticationError, "credentials that were refused are not tried again"
    transport.close()
    theirs.close()


@pytest.mark.parametrize("reading", [True, False])
@pytest.mark.parametrize(
    "kind", [ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError, BrokenPipeError]
)
def test_a_stream_that_ends_before_the_first_answer_is_a_lost_connection(monkeypatch, kind, reading):
    """The broker may be stopping: an error of TLS would be final."""
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    encrypted = context.wrap_socket(ours, server_hostname="broker", do_handshake_on_connect=False)
    transport = Transport(encrypted, "broker:1")

    def end(_):
        raise kind(6, "the end")

    monkeypatch.setattr(encrypted, "recv_into", end)
    monkeypatch.setattr(encrypted, "send", end)
    with pytest.raises(KafkaError, match="broker:1: connection lost while") as raised:
        transport.read_into(memoryview(bytearray(1))) if reading else transport.write([memoryview(b"a")])
    assert type(raised.value) is NetworkError
    transport.close()
    theirs.close()


def test_a_tls_handshake_of_single_bytes_ends_at_its_deadline():
    """Each byte ends a wait in time, and the handshake never ends."""
    ours, theirs = socket.socketpair()
    theirs.send(b"x")
    rounds = iter(range(1_000_000))

    class Dripping:
        def fileno(self):
            return ours.fileno()

        def do_handshake(self):
            assert next(rounds, None) is not None, "the handshake goes on behind its deadline"
            raise ssl.SSLWantReadError

    with pytest.raises(NetworkError, match="broker:1: no TLS handshake in time"):
        _shake_hands(Dripping(), "broker:1", Deadline.after_ms(20))
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("answer", "kind"), [(b"", NetworkError), (b"HTTP/1.1 400 Bad Request\r\n\r\n", SecurityError)]
)
def test_a_socket_whose_handshake_fails_is_closed(answer, kind):
    """The traceback keeps it alive: each attempt would leave one open."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.send(answer)
    with pytest.raises(kind) as raised:
        _encrypt(ours, "broker", "broker:1", ssl.create_default_context(), Deadline.after_ms(20))
    assert raised.value.__traceback__ is not None
    theirs.settimeout(10)
    with contextlib.suppress(ConnectionResetError):
        while theirs.recv(65_536):
            pass
    theirs.close()


@pytest.mark.parametrize("addresses", [1, 2])
def test_the_last_address_that_hangs_up_in_tls_gives_its_own_error(monkeypatch, addresses):
    """First contact is tried a few times only where connections are closed at once."""

    def hang_up(sock, *_):
        sock.close()
        raise HandshakeClosedError("broker:1: the connection was closed")

    monkeypatch.setattr(transport_module, "_encrypt", hang_up)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = (socket.AF_INET, socket.SOCK_STREAM, 6, "", listener.getsockname())
        config = ClientConfig(
            bootstrap_servers=("a:1",),
            security=SecurityConfig(protocol=SecurityProtocol.SSL),
            resolver=lambda *_: [target] * addresses,
        )
        with pytest.raises(HandshakeClosedError, match=r"^broker:1: the connection was closed$"):
            Transport.connect("b", 9092, config, Deadline.after_ms(60_000))


def test_an_address_that_is_silent_in_tls_is_named_beside_one_that_refuses():
    """The error is not that of a wrong port, with which first contact is given up early."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as gone:
        addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one.getsockname()) for one in (silent, gone)]
        gone.close()
        config = ClientConfig(
            bootstrap_servers=("a:1",),
            security=SecurityConfig(protocol=SecurityProtocol.SSL),
            connection_setup_timeout_ms=1_000,
            connection_attempt_delay_ms=-1,
            resolver=lambda *_: addresses,
        )
        with pytest.raises(NetworkError) as raised:
            Transport.connect("b", 9092, config, Deadline.after_ms(60_000))
    assert type(raised.value) is NetworkError
    assert re.search(
        r"127.0.0.1: .*no TLS handshake in time.*; 127.0.0.1: connection refused", str(raised.value)
    )


def test_an_error_of_tls_without_a_reason_has_its_text():
    """Python gives some of them none."""
    error = ssl.SSLError(1, "Out_of luck")
    error.reason = None
    found = _handshake_failure(error, "broker:1")
    assert type(found) is SecurityError
    assert re.fullmatch(r"broker:1: TLS handshake failed: .*out of luck.*", str(found))


@pytest.mark.parametrize("kind", [ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError])
def test_a_port_that_hangs_up_in_the_handshake_is_taken_for_plaintext(kind):
    """Python's version decides which of the errors it is."""
    told = _handshake_failure(kind(6, "TLS/SSL connection has been closed (EOF) (_ssl.c:992)"), "broker:1")
    assert isinstance(told, HandshakeClosedError)
    assert "broker:1" in str(told)
    assert "security.protocol=PLAINTEXT" in str(told)


def test_a_port_that_speaks_and_hangs_up_before_the_handshake_is_taken_for_plaintext():
    """It is by chance whether the handshake has begun."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        theirs.sendall(b"xxx")
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()  # with a reset
        assert wait_for_streams([(ours.fileno(), READ)], Deadline.after_ms(10_000))
        with pytest.raises(HandshakeClosedError, match=r"broker:1.*security.protocol=PLAINTEXT"):
            _encrypt(ours, "broker", "broker:1", ssl.create_default_context(), Deadline.after_ms(10_000))


@pytest.mark.parametrize("host", ["a" * 64 + ".example", ".example", "a..example"])
def test_a_host_name_that_no_tls_can_ask_for_is_named(host):
    """Without TLS it would fail as well, and another attempt does not help."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = ClientConfig(
            bootstrap_servers=("a:1",),
            security=SecurityConfig(protocol=SecurityProtocol.SSL),
            resolver=lambda *_: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", listener.getsockname())],
        )
        with pytest.raises(ConfigError, match=rf"^{host}:9092: TLS can't ask for a host of this name"):
            Transport.connect(host, 9092, config, Deadline.after_ms(10_000))
