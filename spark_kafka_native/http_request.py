"""`send`: one HTTP request to a schema registry or a token endpoint, within a deadline and with a limit for
the answer.

The URL is an option, so a user could make this process send requests to any address. Hence no redirect to
another host and no address where clouds keep their metadata: no link-local one, and none of
`_OF_METADATA`. Errors show nothing that was sent or received.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - `getaddrinfo` needs it: a fork could cut its import in a thread short
import http.client
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urljoin, urlsplit

_MAX_REDIRECTS: Final = 3
_ALLOWED_URLS: Final = "PYKAFKA_ALLOWED_URLS"
"""An administrator's list of URLs; it may contain addresses that are otherwise refused."""
_OF_METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        ("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "100.100.100.200", "168.63.129.16"),
    )
)
"""Of AWS (two), Google, Alibaba and Azure, which are not link-local."""
_IPV4_AT_THE_END: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
"""NAT64 (RFC 6052), and IPv4-compatible and IPv4-translated addresses (RFC 4291, 2765)."""
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
"""RFC 8215: with prefixes of 48, 56, 64 or 96 bits."""


class RequestError(Exception):
    """No whole answer: another attempt may get one."""


class RefusedError(Exception):
    """Another attempt makes no difference: an untrusted certificate, a redirect that is not followed, an
    answer that is too long. The text begins with the host."""


class ForbiddenAddressError(RefusedError):
    """The host has an address where a cloud keeps its metadata."""


Resolve = Callable[[str, int, float], list[Any]]
"""The addresses of a host and a port, as `socket.getaddrinfo` gives them, by a moment of `time.monotonic`.
Raises `OSError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """``path`` comes behind the base's. ``headers`` may hold credentials."""

    method: str
    path: str = ""
    headers: Mapping[str, str]
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """``headers`` have names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def send(
    base: str,
    request: HttpRequest,
    tls: ssl.SSLContext | None,
    until: float,
    *,
    max_body_bytes: int,
    resolve: Resolve | None = None,
) -> Answer:
    """The answer of the server at ``base``, of any status, over a connection of its own: a process asks for
    each schema and each token once. ``until`` is a moment of `time.monotonic`; ``tls`` is None for http. By
    default a thread for each request asks the system's resolver.

    Raises `RequestError`, or `RefusedError` where another attempt makes no difference.
    """
    url = base.rstrip("/") + request.path if request.path else base
    for _ in range(_MAX_REDIRECTS + 1):
        answer = _send_once(urlsplit(url), request, tls, until, max_body_bytes, resolve or _resolve)
        if answer.status not in ((301, 302, 303, 307, 308) if request.body is None else (307, 308)):
            return answer
        url = _redirected(url, answer.headers.get("location"))
    raise RefusedError(f"{urlsplit(base).netloc} redirects again and again")


def _redirected(url: str, location: str | None) -> str:
    before = urlsplit(url)
    try:
        target = urljoin(url, location or "")
        after = urlsplit(target)
    except ValueError:
        after = SplitResult("", "", "", "", "")
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        raise RefusedError(f"{before.netloc} redirects to another host, which is not asked")
    return target


def _send_once(
    parts: SplitResult,
    request: HttpRequest,
    tls: ssl.SSLContext | None,
    until: float,
    max_body_bytes: int,
    resolve: Resolve,
) -> Answer:
    host = parts.hostname or ""
    open_socket = _Cuttable()
    # One timer for the whole request: a socket timeout would restart with each byte.
    watchdog = threading.Timer(max(until - time.monotonic(), 0), open_socket.cut)
    watchdog.daemon = True
    with contextlib.suppress(RuntimeError):  # without a thread, the socket's own limits are left
        watchdog.start()
    try:
        sock = open_socket.hold(
            _connect(host, resolve(host, parts.port or (443 if tls else 80), until), until)
        )
        if tls is not None:
            sock = open_socket.hold(tls.wrap_socket(sock, server_hostname=host))
        answer = _exchange(sock, parts, request, max_body_bytes)
        open_socket.check()  # an answer that was cut off looks like a short one
        return answer
    except ssl.SSLCertVerificationError as error:
        raise RefusedError(
            f"{parts.netloc}: its certificate is not trusted: {error.verify_message}"
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        late = "no answer in time" if time.monotonic() >= until else _name(error)
        raise RequestError(late) from None
    finally:
        watchdog.cancel()
        open_socket.close()


def _name(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


class _Cuttable:
    """The socket of a request, which another thread may cut."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._is_cut = False

    def hold(self, sock: socket.socket) -> socket.socket:
        self._socket = sock
        self.check()  # it may have been cut between two sockets
        return sock

    def check(self) -> None:
        if self._is_cut:
            raise TimeoutError

    def cut(self) -> None:
        self._is_cut = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # SSLSocket's own shutdown takes the encryption away first: what another thread sends at that
                # moment would go out in plain text.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _connect(host: str, addresses: list[Any], until: float) -> socket.socket:
    failure: OSError | None = None
    for i, (family, kind, protocol, _, target) in enumerate(addresses):
        if _may_have_metadata(str(target[0])) and os.environ.get(_ALLOWED_URLS) is None:
            raise ForbiddenAddressError(
                f"{host} is a link-local address, or one of a cloud's metadata; such a URL must be among "
                f"{_ALLOWED_URLS}"
            )
        sock = socket.socket(family, kind, protocol)
        try:
            # One that drops all packets leaves time for the others.
            sock.settimeout(max((until - time.monotonic()) / (len(addresses) - i), 0.001))
            sock.connect(target)
            sock.settimeout(max(until - time.monotonic(), 0.001))
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure or OSError("no address")


def _may_have_metadata(text: str) -> bool:
    return any(one.is_link_local or one in _OF_METADATA for one in _effective_addresses(text))


def _effective_addresses(text: str) -> Sequence[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The IPv4 addresses that an IPv6 address may have in it; any other address itself."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address in _LOCAL_NAT64:
        packed = address.packed[:8] + address.packed[9:]  # byte 8 is not part of the address (RFC 6052)
        return [ipaddress.IPv4Address(packed[at : at + 4]) for at in (6, 7, 8, 11)]
    if any(address in network for network in _IPV4_AT_THE_END):
        return [ipaddress.IPv4Address(address.packed[-4:])]
    return [address.ipv4_mapped or address.sixtofour or address]


def _resolve(host: str, port: int, until: float) -> list[Any]:
    """The addresses. The system's resolver has no time limit: a thread waits for it, or this one if no other
    can start, because the interpreter is ending (Python 3.12 on), or because there are too many.
    """
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)

    thread = threading.Thread(target=ask, daemon=True, name=f"look-up of {host}")
    try:
        thread.start()
        thread.join(max(until - time.monotonic(), 0))
    except RuntimeError:
        ask()
    if not found:
        raise TimeoutError
    if isinstance(found[0], Exception):
        raise OSError(0, f"cannot resolve {host}")
    return list(found[0])


def _exchange(sock: socket.socket, parts: SplitResult, request: HttpRequest, max_body_bytes: int) -> Answer:
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.sock = sock
    connection.request(
        request.method,
        (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        body=request.body,
        headers={**request.headers, "Connection": "close"},
    )
    response = connection.getresponse()
    body = response.read(max_body_bytes + 1)
    if len(body) > max_body_bytes:
        raise RefusedError(f"{parts.netloc}: the answer is longer than {max_body_bytes} bytes")
    if response.length:  # with a limit, `read` does not mind
        raise http.client.IncompleteRead(body, response.length)
    return Answer(response.status, {name.lower(): text for name, text in response.getheaders()}, body)
