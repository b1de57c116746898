"""Requests to servers that an option names: rules that `test_oidc` and `test_schema_registry` can't see."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme
from support.http_server import Asked, serving

from spark_kafka_native import http_request
from spark_kafka_native.http_request import ForbiddenAddressError, HttpRequest, RequestError, send

GET = HttpRequest(method="GET", path="/", headers={})


@contextmanager
def dripping(head: bytes, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server that answers with ``head`` and then single bytes; its connection must be cut."""
    cut = threading.Event()

    def drip(server: socket.socket) -> None:
        try:
            connection, _ = server.accept()
            with tls.wrap_socket(connection, server_side=True) if tls else connection as sending:
                sending.sendall(head)
                for _ in range(10_000):
                    sending.sendall(b"x")
                    cut.wait(0.005)
        except OSError:
            cut.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        yield server.getsockname()[1]
        thread.join()
    assert cut.is_set()


@pytest.mark.parametrize(
    "address",
    [
        "fe80::a9fe:a9fe%1",
        "::ffff:169.254.169.254",
        "::169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "64:ff9b:1::a9fe:a9fe",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:a83f:81:1000::",
        "64:ff9b:1:a9:fe:a9fe::",
        "64:ff9b:1:0:a9:fea9:fe00:0",
        "::ffff:0:a9fe:a9fe",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "::ffff:168.63.129.16",
        "fd20:ce::254",
        "::ffff:100.100.100.200",
    ],
)
def test_the_metadata_of_a_cloud_is_not_asked_in_any_dress(address: str) -> None:
    target = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 443, 0, 0))
    with pytest.raises(ForbiddenAddressError, match="example is a link-local address, or one of a cloud"):
        send(
            "http://example", GET, None, time.monotonic() + 60, max_body_bytes=9, resolve=lambda *_: [target]
        )


@pytest.mark.parametrize(
    "address", ["64:ff9b:1::808:808", "64:ff9b:1:808:8:800::", "64:ff9b::808:808", "fd00::1"]
)
def test_another_address_is_asked(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    def connect(*_: object) -> None:
        raise OSError(111, "refused")

    monkeypatch.setattr(socket.socket, "connect", connect)
    target = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 443, 0, 0))
    with pytest.raises(RequestError, match="refused"):
        send(
            "http://example", GET, None, time.monotonic() + 60, max_body_bytes=9, resolve=lambda *_: [target]
        )


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_link_local_address_is_asked_only_by_leave_of_the_administrator(
    monkeypatch: pytest.MonkeyPatch, is_allowed: bool
) -> None:
    """The list of URLs has been looked at before: some clouds have their own token endpoints there."""
    asked: list[Any] = []

    def connect(_: socket.socket, target: Any) -> None:
        asked.append(target)
        raise OSError(111, "refused")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.delenv("PYKAFKA_ALLOWED_URLS", raising=False)
    if is_allowed:
        monkeypatch.setenv("PYKAFKA_ALLOWED_URLS", "http://example")
    target = ("169.254.169.254", 80)
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", target)]
    with pytest.raises(RequestError if is_allowed else ForbiddenAddressError):
        send(
            "http://example", GET, None, time.monotonic() + 60, max_body_bytes=9, resolve=lambda *_: addresses
        )
    assert asked == [target] * is_allowed


def test_a_watchdog_that_came_between_two_sockets_has_still_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer could close neither socket; single bytes would keep the connection open for ever."""
    connect, cut = http_request._connect, http_request._Cuttable.cut
    has_come = threading.Event()

    def late(host: str, addresses: list[Any], until: float) -> socket.socket:
        sock = connect(host, addresses, until)
        sock.settimeout(5)
        assert has_come.wait(60)
        return sock

    def come(open_socket: http_request._Cuttable) -> None:
        cut(open_socket)
        has_come.set()

    monkeypatch.setattr(http_request, "_connect", late)
    monkeypatch.setattr(http_request._Cuttable, "cut", come)
    with serving(lambda _: (200, {}, b"")) as served:
        with pytest.raises(RequestError, match="no answer in time"):
            send(served.url, GET, None, time.monotonic() + 0.1, max_body_bytes=9)
        assert not served.asked


def test_an_encrypted_answer_in_single_bytes_ends_at_the_deadline() -> None:
    """Each byte comes in time for a timeout of the socket, and the whole answer never does."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with dripping(head, context) as port, pytest.raises(RequestError, match="no answer in time"):
        send(f"https://localhost:{port}", GET, trusting, time.monotonic() + 0.3, max_body_bytes=1000)


def test_an_answer_of_no_stated_length_that_is_cut_off_is_not_taken_for_whole() -> None:
    """Its end is that of the stream: half a schema, or half a token, would look complete."""
    with dripping(b"HTTP/1.1 200 OK\r\n\r\n") as port, pytest.raises(RequestError, match="no answer in time"):
        send(f"http://localhost:{port}", GET, None, time.monotonic() + 0.3, max_body_bytes=20_000)


@pytest.mark.parametrize(
    ("url", "error"),
    [("http://example:99999", "ValueError"), ("https://.example", "UnicodeError")],
)
def test_an_address_that_no_request_can_have_is_an_error_of_the_request(url: str, error: str) -> None:
    """Not one that passes by the callers, which know those of a request alone."""
    tls = ssl.create_default_context() if url.startswith("https") else None
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = (socket.AF_INET, socket.SOCK_STREAM, 6, "", server.getsockname())
        with pytest.raises(RequestError, match=error):
            send(url, GET, tls, time.monotonic() + 60, max_body_bytes=9, resolve=lambda *_: [target])


def test_a_connection_that_is_cut_stays_encrypted() -> None:
    """Its own thread may be sending: what it sends has credentials."""
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context()
    encrypted = context.wrap_socket(ours, server_hostname="example", do_handshake_on_connect=False)
    with theirs, encrypted:
        held = http_request._Cuttable()
        held.hold(encrypted)
        held.cut()
        # An SSLError, from Python 3.13 on a BrokenPipeError; a ValueError if it had lost its encryption.
        with pytest.raises(OSError, match=r"EOF|Broken pipe"):
            encrypted.write(b"secret")
        assert theirs.recv(9) == b""


def test_a_resolver_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's has no time limit of its own."""
    may_answer, has_answered = threading.Event(), threading.Event()

    def resolve(*_: Any, **__: Any) -> list[Any]:
        may_answer.wait(5)
        has_answered.set()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    try:
        with pytest.raises(RequestError, match="no answer in time"):
            send("http://example", GET, None, time.monotonic() + 0.05, max_body_bytes=9)
        assert not has_answered.is_set()
    finally:
        may_answer.set()
    assert has_answered.wait(60)


def test_a_request_is_sent_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the interpreter ends (Python 3.12 on): the last records of a producer may need a new token."""
    start, ours = threading.Thread.start, threading.get_ident()

    def refuse(thread: threading.Thread) -> None:
        if threading.get_ident() == ours:
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    with serving(lambda _: (200, {}, b"yes")) as served:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert send(served.url, GET, None, time.monotonic() + 60, max_body_bytes=9).body == b"yes"


@pytest.mark.parametrize("error", [socket.gaierror(-2, "unknown"), UnicodeError("label too long")], ids=repr)
def test_a_name_without_an_address_is_said_at_once(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(RequestError, match="cannot resolve example"):
        send("http://example", GET, None, time.monotonic() + 60, max_body_bytes=9)


def test_an_address_that_does_not_answer_leaves_time_for_the_others() -> None:
    """A host with an IPv6 address to which no packet goes looked like one that is down."""
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = [socket.socket() for _ in range(3)]
    with full, serving(lambda _: (200, {}, b"yes")) as served:
        for one in waiting:  # they fill the queue of connections, and the next one is not answered
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        port = urlsplit(served.url).port
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", target)
            for target in (full.getsockname(), ("127.0.0.1", port))
        ]
        until = time.monotonic() + 2
        answer = send(served.url, GET, None, until, max_body_bytes=9, resolve=lambda *_: addresses)
        assert answer.body == b"yes"
    for one in waiting:
        one.close()


def test_a_query_is_sent() -> None:
    def answer(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        return (302, {"Location": "/b?c=%2F&d"}, b"") if asked.path == "/a?x=1" else (200, {}, b"found")

    with serving(answer) as served:
        request = HttpRequest(method="GET", headers={})
        found = send(f"{served.url}/a?x=1", request, None, time.monotonic() + 60, max_body_bytes=9)
        assert found.body == b"found"
        send(f"{served.url}?x=2", request, None, time.monotonic() + 60, max_body_bytes=9)
        assert served.paths == ["/a?x=1", "/b?c=%2F&d", "/?x=2"]
        hosts = [{name.lower(): text for name, text in one.headers.items()}["host"] for one in served.asked]
        assert hosts == [urlsplit(served.url).netloc] * 3, "one server may have many names"


@pytest.mark.parametrize(
    ("url", "port"), [("https://example", 443), ("http://example", 80), ("https://example:8443", 8443)]
)
def test_the_port_is_that_of_the_scheme(url: str, port: int) -> None:
    asked: list[Any] = []

    def resolve(host: str, port: int, _until: float) -> Any:
        asked.append((host, port))
        raise RequestError("no address")

    tls = ssl.create_default_context() if url.startswith("https") else None
    with pytest.raises(RequestError, match="no address"):
        send(url, GET, tls, time.monotonic() + 60, max_body_bytes=9, resolve=resolve)
    assert asked == [("example", port)]
