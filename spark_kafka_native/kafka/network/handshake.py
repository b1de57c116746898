"""The handshake on a new connection: API versions, SASL, and the session's lifetime.

It sends one request after the other through a `Peer`, and opens, writes and reads nothing itself. A SASL
session that expires (KIP-368) is followed by another connection, not by a second round on the same one.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from ...version import __version__
from ..config.client_config import ClientConfig
from ..config.security_config import SecurityConfig
from ..error_code import ErrorCode
from ..errors import BrokerError, HandshakeClosedError, NetworkError, RequestTimedOutError
from ..protocol.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ..protocol.message import Request
from ..protocol.versions import VersionRanges, choose_version, lower_api_versions, read_version_ranges
from ..runtime.deadline import Deadline
from ..runtime.fork import no_fork

if TYPE_CHECKING:
    from .authentication import Peer

_LOG: Final = logging.getLogger("spark_kafka_native")
INT16_MAX: Final = 32_767
RENEW_FROM, RENEW_TO = 0.8, 0.9
"""A connection is replaced after a random share of its SASL session's lifetime, so that not all of them are
replaced at once."""


class SessionLifetime(NamedTuple):
    """The times at which a SASL session is renewed and expires (monotonic seconds); infinite if it does not
    expire.
    """

    renew_at: float = float("inf")
    expires_at: float = float("inf")

    @classmethod
    def starting(cls, began: float, lifetime_ms: int) -> Self:
        """The times of a session of ``lifetime_ms`` (0: no expiry) that began at ``began`` or later."""
        if not lifetime_ms:
            return cls()
        share = random.uniform(RENEW_FROM, RENEW_TO)
        return cls(began + lifetime_ms / 1000 * share, began + lifetime_ms / 1000)

    @property
    def renewal_due(self) -> bool:
        """True if the session ends soon."""
        return time.monotonic() >= self.renew_at

    @property
    def expired(self) -> bool:
        """True if the session has ended."""
        return time.monotonic() >= self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Negotiated:
    """The result of a handshake."""

    api_versions: VersionRanges
    """API key -> (lowest, highest version) that this broker supports: brokers differ during an upgrade."""
    features: Mapping[str, int] = field(default_factory=dict)
    """Finalized features of the cluster with their levels, as this broker knew them then (KIP-584)."""
    session_lifetime_ms: int = 0
    """The broker closes the connection if it is used for longer (KIP-368); 0: never."""

    def choose(self, api: type[Request[Any]] | int, min_version: int | None, max_version: int | None) -> int:
        """As `Connection.choose_api_version`."""
        key, (low, high) = (api, (0, INT16_MAX)) if isinstance(api, int) else (api.api_key, api.versions)
        low, high = low if min_version is None else min_version, high if max_version is None else max_version
        return choose_version(self.api_versions, key, low, high)


def shake_hands(peer: Peer, config: ClientConfig, deadline: Deadline) -> Negotiated:
    """Exchange everything that precedes the first request of a caller, within ``deadline``.

    Raises `HandshakeClosedError` (most likely the listener has another security protocol),
    `AuthenticationError`, `RequestTimedOutError`, `BrokerError`, and `ProtocolError` (the peer does not speak
    Kafka).
    """
    security = config.security
    if security.warnings:
        warn_of(security)
    response = _learn_versions(peer, config, deadline)
    api_versions = read_version_ranges(response)
    features = {one.name: one.max_version_level for one in response.finalized_features}
    # After ApiVersions (KIP-152), before any other request.
    lifetime_ms = 0
    if security.uses_sasl:
        with no_fork():
            from .authentication import authenticate  # late: a tenth of the import time of a plain connection

        lifetime_ms = authenticate(peer, security, api_versions, deadline)
    return Negotiated(api_versions=api_versions, features=features, session_lifetime_ms=lifetime_ms)


def _learn_versions(peer: Peer, config: ClientConfig, deadline: Deadline) -> ApiVersionsResponse:
    try:
        version = ApiVersionsRequest.versions[1]
        response = _ask_versions(peer, version, deadline)
        while (lower := lower_api_versions(response, version)) is not None:
            version = lower
            response = _ask_versions(peer, version, deadline)
    except RequestTimedOutError:
        raise
    except NetworkError as error:
        other = config.security.protocol.name.replace("SSL", "PLAINTEXT")
        if not config.security.encrypted:
            other = config.security.protocol.name.replace("PLAINTEXT", "SSL")
        nameless = config.security.encrypted and not config.security.presents_certificate
        hint = " It may also want a client certificate: ssl.keystore.location." if nameless else ""
        raise HandshakeClosedError(
            f"{error} during the first exchange; does that port speak Kafka with "
            f"security.protocol={config.security.protocol.name}, or rather {other}?{hint}"
        ) from error
    if response.error_code != ErrorCode.NONE:
        raise BrokerError(response.error_code, f"ApiVersions to {peer.address}")
    return response


def _ask_versions(peer: Peer, version: int, deadline: Deadline) -> ApiVersionsResponse:
    request = ApiVersionsRequest(
        client_software_name="spark-kafka-native", client_software_version=__version__
    )
    return peer.ask(request, version, deadline)


@functools.lru_cache(maxsize=64)
def warn_of(security: SecurityConfig) -> None:
    """Log the settings that weaken the protection, once in a process for each configuration."""
    for warning in security.warnings:
        _LOG.warning("%s", warning)
