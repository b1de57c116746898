"""`Connection`: a connection to one broker, with pipelined requests.

It owns opening, the versions agreed with the broker, and the end of the SASL session; `RequestPipeline` owns
the traffic.
"""

from __future__ import annotations

import logging
import time
from typing import Any, TypeVar

from ..config.client_config import ClientConfig, split_address
from ..config.security_config import SecurityConfig
from ..errors import HandshakeClosedError, KafkaError, NetworkError
from ..protocol.message import Request, Response
from ..protocol.session import Session
from ..protocol.versions import negotiate
from ..runtime.deadline import Deadline
from .handshake import Negotiated, SessionLifetime, shake_hands
from .pending_response import PendingResponse
from .pipeline import RequestPipeline
from .transport import Transport

R = TypeVar("R", bound=Response)
_LOG = logging.getLogger("spark_kafka_native.network")

HANDSHAKE_FRAME_BYTES = 64 * 1024
"""Limit of a handshake response: a peer that has not yet proved to be the broker must not make us allocate
more."""


class Connection(RequestPipeline):
    """A connection to one broker. Any thread may submit requests and wait for responses."""

    def __init__(self, transport: Transport, config: ClientConfig) -> None:
        session = Session(
            config.client_id, max_frame_length=min(HANDSHAKE_FRAME_BYTES, config.max_response_bytes)
        )
        super().__init__(transport, session, config.request_timeout_ms)
        self._config = config
        self.retired = False
        """True once `retire` has begun. Guarded by the lock."""
        self.negotiated = Negotiated(api_versions={})
        """The result of the handshake."""
        self.session_lifetime = SessionLifetime()
        """When the SASL session is renewed and when it expires."""

    @classmethod
    def open(
        cls,
        host: str,
        port: int | None = None,
        config: ClientConfig | None = None,
        deadline: Deadline | None = None,
    ) -> Connection:
        """Connect, encrypt and perform the handshake. Without ``port``, ``host`` is an address in the form
        ``host:port``; without ``config``, all settings have their defaults.

        Raises `NetworkError` (each address with its cause), `SecurityError`, and `ProtocolError` (the peer
        does not speak Kafka).
        """
        if port is None:
            host, port = split_address(host)
        config = config or ClientConfig(bootstrap_servers=(f"[{host}]:{port}",))
        limit = deadline or Deadline.after_ms(config.default_api_timeout_ms)
        connection = cls(Transport.connect(host, port, config, limit), config)
        try:
            connection._shake_hands(limit.within_ms(config.connection_setup_timeout_ms))
        except BaseException:
            connection.close()
            raise
        _LOG.debug("connected to %s", connection.address)
        return connection

    def __repr__(self) -> str:
        state = f"{self.in_flight} in flight" if self._death is None else f"closed ({self._death})"
        return f"<Connection to {self.address}: {state}>"

    def _shake_hands(self, deadline: Deadline) -> None:
        began = time.monotonic()
        self.negotiated = shake_hands(self, self._config, deadline)
        self._session.max_frame_length = self._config.max_response_bytes
        self._served = False
        self.session_lifetime = SessionLifetime.starting(began, self.negotiated.session_lifetime_ms)

    @property
    def muted_ms(self) -> float:
        """Milliseconds for which the broker asked this client to send nothing (KIP-219)."""
        return self._throttle.muted_ms

    @property
    def renewal_due(self) -> bool:
        """True if the SASL session ends soon: `retire` this connection and open another (KIP-368)."""
        return self.session_lifetime.renewal_due

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """The lowest and the highest version that this broker supports, by API key."""
        return dict(self.negotiated.api_versions)

    def choose_api_version(
        self, api: type[Request[Any]] | int, min_version: int | None = None, max_version: int | None = None
    ) -> int:
        """The highest version of an API (a request class or an API key) that this broker supports within the
        bounds. None stands for the bounds of this client. Raises `UnsupportedVersionError`.
        """
        return self.negotiated.choose(api, min_version, max_version)

    def version_of(self, request: type[Request[Any]], at_most: int | None = None) -> int:
        """The version of ``request`` to use here. Raises `UnsupportedVersionError` with both ranges."""
        return negotiate(request, self.negotiated.api_versions, at_most=at_most)

    def send(
        self,
        request: Request[R],
        timeout_ms: float | None = None,
        deadline: Deadline | None = None,
        at_most: int | None = None,
    ) -> R:
        """Submit and wait for the response. ``timeout_ms`` (None: the request timeout) starts once the broker
        no longer mutes this client; ``deadline`` limits the whole call. ``at_most`` caps the version.
        """
        version = None if at_most is None else self.version_of(type(request), at_most)
        return self.submit(request, version, deadline).result(timeout_ms, deadline)

    def ask(self, request: Request[R], version: int, deadline: Deadline) -> R:
        """Submit in exactly that version and wait for the response: for a handshake, which knows no other
        versions yet.
        """
        return self.submit(request, version, deadline).result(deadline.remaining_ms, deadline)

    def submit(
        self, request: Request[R], version: int | None = None, deadline: Deadline | None = None
    ) -> PendingResponse[R]:
        """Write ``request`` now and return without waiting for its response. Waits only while the broker
        mutes this client, and not at all if that would last beyond ``deadline``.

        Raises the error that ended the connection, or `NetworkError` (muted for too long), if nothing was
        written. Once a byte may have been sent, the error is in the `PendingResponse` instead: only then may
        the broker have applied the request.
        """
        self._throttle.wait(deadline)
        pending = self._enqueue(request, self.version_of(type(request)) if version is None else version)
        self._write_all()
        return pending

    def post(self, request: Request[R], version: int | None = None) -> PendingResponse[R]:
        """As `submit`, but never waits: later calls of `poll` write what the system does not take now.

        For one thread that serves several connections: it waits for their `waits_for`, and posts nothing more
        while a connection `has_unwritten` bytes (that limits them) or its broker mutes this client.
        """
        pending = self._enqueue(request, self.version_of(type(request)) if version is None else version)
        self._push()
        return pending

    def alive(self) -> bool:
        """True if a request may be sent here: the connection is open, not closed by an idle broker, and not
        idle for too long.
        """
        if not self._in_flight and not self.closed:
            if (time.monotonic() - self._used_at) * 1000 > self._config.connections_max_idle_ms:
                self.close()
            else:
                self.poll()
        return not self.closed

    def retire(self, deadline: Deadline) -> None:
        """Take no more requests, wait for the responses in flight, and close: nothing is lost or reordered.

        Raises `NetworkError` if responses are still missing at ``deadline``; threads that wait for them keep
        waiting.
        """
        with self.lock:
            self.retired = True
        self._write_all()
        while (last := self._last_in_flight()) is not None:
            if not self.wait_for(last, deadline):
                raise NetworkError(
                    f"{self.address}: the SASL session ends, but {last.what} is not answered yet"
                )
        self.close()

    def _last_in_flight(self) -> PendingResponse[Any] | None:
        with self.lock:
            return self._in_flight[-1] if self._in_flight else None

    def _raise_if_dead(self) -> None:
        super()._raise_if_dead()
        if self.retired or self.session_lifetime.expired:
            raise NetworkError(
                f"{self.address}: the SASL session of this connection ends; another one takes over"
            )

    def _explained(self, error: KafkaError) -> KafkaError:
        served = self._served or not self._in_flight or not self.negotiated.api_versions
        return error if served else _explained_hang_up(error, self._config.security)


def _explained_hang_up(error: KafkaError, security: SecurityConfig) -> KafkaError:
    """``error`` of the first request after the handshake, with its likely cause: a SASL listener answers
    ApiVersions without authentication, and closes the connection at the next request of a client that does
    not authenticate.
    """
    if type(error) is not NetworkError or security.uses_sasl:
        return error
    return HandshakeClosedError(
        f"{error} at the first request; does that port want SASL (security.protocol=SASL_"
        f"{'SSL' if security.encrypted else 'PLAINTEXT'})?"
    )
