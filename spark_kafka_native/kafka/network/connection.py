"""`Connection`: a connection to one broker, with pipelined requests.

It owns opening, the versions agreed with the broker, and the end of the SASL session; `RequestPipeline` owns
the traffic.
"""

from __future__ import annotations

import logging
import time
from typing import Any, TypeVar

from ..config.client_config import ClientConfig, split_address
from ..errors import KafkaError, LoginClosedError, NetworkError, ProtocolError
from ..protocol.framing import Framing
from ..protocol.message import Request, Response
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
        framing = Framing(
            config.client_id, max_frame_length=min(HANDSHAKE_FRAME_BYTES, config.max_response_bytes)
        )
        super().__init__(transport, framing, config.request_timeout_ms)
        self._config = config
        self.channel = ""
        """Set by `Brokers`, for which it has requests of one kind."""
        self.retired = False
        """True once `retire` or `wind_down` has begun. Guarded by the lock."""
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
        transport = Transport.connect(host, port, config, limit)
        connection = cls(transport, config)
        try:
            connection._shake_hands(limit.within_ms(config.connection_setup_timeout_ms))
            transport.note_handshake(succeeded=True)
        except BaseException as error:
            if isinstance(error, NetworkError | ProtocolError):
                transport.note_handshake(succeeded=False)
            connection.close()
            raise
        _LOG.debug("connected to %s", connection.address)
        return connection

    def _shake_hands(self, deadline: Deadline) -> None:
        began = time.monotonic()
        self.negotiated = shake_hands(self, self._config, deadline)
        self.begin_service(self._config.max_response_bytes)
        self.session_lifetime = SessionLifetime.starting(began, self.negotiated.session_lifetime_ms)

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
        """As `RequestPipeline.submit`; by default in the highest version that both sides support."""
        return super().submit(
            request, self.version_of(type(request)) if version is None else version, deadline
        )

    def post(self, request: Request[R], version: int | None = None) -> PendingResponse[R]:
        """As `RequestPipeline.post`; by default in the highest version that both sides support."""
        return super().post(request, self.version_of(type(request)) if version is None else version)

    def alive(self) -> bool:
        """True if a request may be sent here: the connection works, and is not about to end."""
        return self.works() and not self.retired

    def works(self) -> bool:
        """True if the connection is open, not closed by an idle broker, not idle for too long, and its broker
        is not silent and takes all requests.
        """
        self.poll_idle(self._config.connections_max_idle_ms)
        return not self.closed and not self.is_silent and not self.has_stale

    def retire(self, deadline: Deadline) -> None:
        """Take no more requests, wait for the responses in flight, and close: nothing is lost or reordered.

        Raises `NetworkError` if responses are still missing at ``deadline``; threads that wait for them keep
        waiting. Responses that are overdue are not waited for: their requests were abandoned.
        """
        missing = self.drain(deadline.within_ms(self._take_no_more()))
        if missing is not None and self._take_no_more() > 0:
            raise NetworkError(
                f"{self.address}: this connection ends, but {missing.what} is not answered yet"
            )
        self.close()

    def wind_down(self) -> bool:
        """As `retire` without waiting: True if it is closed now, else call it again."""
        if self._take_no_more() > 0 and not self.has_stale:
            self.poll()
        else:  # nothing overdue is written: it may have been done on another connection since
            self.read_arrived()
        if self._take_no_more() <= 0 or not (self.in_flight or self.has_unwritten):
            self.close()
        return self.closed

    def _take_no_more(self) -> float:
        """The milliseconds after which all requests in flight are overdue."""
        with self.lock:
            self.retired = True
            return self._overdue_in_s(list(self._in_flight)) * 1000

    def _raise_if_unusable(self) -> None:
        super()._raise_if_unusable()
        if self.retired or self.session_lifetime.expired:
            raise NetworkError(f"{self.address}: this connection ends; another one takes over")

    def _explain_hang_up(self, error: KafkaError) -> KafkaError:
        security = self._config.security
        if type(error) is not NetworkError or security.uses_sasl or not self.negotiated.api_versions:
            return error
        # A SASL listener answers ApiVersions without authentication, and closes the connection at the next
        # request of a client that does not authenticate.
        return LoginClosedError(
            f"{error} at the first request; does that port want SASL (security.protocol=SASL_"
            f"{'SSL' if security.encrypted else 'PLAINTEXT'})?"
        )
