"""What is agreed on a new connection before any other request: API versions, SASL, the session's lifetime."""

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

if TYPE_CHECKING:
    from .authentication import Peer

_LOG: Final = logging.getLogger("spark_kafka_native")
INT16_MAX: Final = 32_767
RENEW_FROM, RENEW_TO = 0.8, 0.9
"""Between these parts of a SASL session's lifetime its connection is replaced: not all of them at once."""


class SessionLifetime(NamedTuple):
    """Moments in monotonic seconds; infinite for a session that does not end."""

    renew_at: float = float("inf")
    expires_at: float = float("inf")

    @classmethod
    def starting(cls, began: float, lifetime_ms: int) -> Self:
        """Of a session of ``lifetime_ms`` (0: without an end) that began no earlier than ``began``."""
        if not lifetime_ms:
            return cls()
        share = random.uniform(RENEW_FROM, RENEW_TO)
        return cls(began + lifetime_ms / 1000 * share, began + lifetime_ms / 1000)

    @property
    def renewal_due(self) -> bool:
        """Whether it ends soon."""
        return time.monotonic() >= self.renew_at

    @property
    def expired(self) -> bool:
        """Whether it has ended."""
        return time.monotonic() >= self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Negotiated:
    """What a handshake has agreed on."""

    api_versions: VersionRanges
    """API key -> (lowest, highest version) that this broker speaks: brokers differ during an upgrade."""
    features: Mapping[str, int] = field(default_factory=dict)
    """Finalized features of the cluster and their levels, as this broker knew them then (KIP-584)."""
    session_lifetime_ms: int = 0
    """The broker drops the connection if it is used for longer (KIP-368); 0: never."""

    def choose(self, api: type[Request[Any]] | int, min_version: int | None, max_version: int | None) -> int:
        """As `Connection.choose_api_version`."""
        key, (low, high) = (api, (0, INT16_MAX)) if isinstance(api, int) else (api.api_key, api.versions)
        low, high = low if min_version is None else min_version, high if max_version is None else max_version
        return choose_version(self.api_versions, key, low, high)


def shake_hands(peer: Peer, config: ClientConfig, deadline: Deadline) -> Negotiated:
    """Every exchange that comes before the first request of a caller, all of them within ``deadline``.

    Raises `HandshakeClosedError` (a listener of another security protocol, most likely),
    `AuthenticationError`, `RequestTimedOutError`, `BrokerError`, `ProtocolError` (something that is no
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
        from .authentication import authenticate  # late: a tenth of what importing a plain connection takes

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
    """Log what weakens the protection: once in a process for each configuration."""
    for warning in security.warnings:
        _LOG.warning("%s", warning)
