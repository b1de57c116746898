"""What a dead connection says to those who wait on it or come too late. Pure."""

from __future__ import annotations

import logging
from functools import partial

from ..config.security_config import SecurityConfig
from ..errors import HandshakeClosedError, KafkaError, NetworkError
from ..runtime.log_throttle import LogThrottle

_LOG = logging.getLogger("spark_kafka_native.network")
_THROTTLED_LOG = LogThrottle(_LOG)


def own_copy(error: KafkaError) -> KafkaError:
    """The same error as another object: each who raises it adds a traceback of its own."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def error_for(waiter: int, error: KafkaError, address: str) -> KafkaError:
    """The error of the ``waiter``-th request in flight when the connection died of ``error``: the first one's
    answer broke the stream, the others lost a connection.
    """
    if waiter == 0 or isinstance(error, NetworkError):
        return own_copy(error)
    return NetworkError(
        f"{address}: the connection was closed, as an earlier response on it was bad: {error}"
    )


def explained_hang_up(error: KafkaError, security: SecurityConfig) -> KafkaError:
    """``error`` of the first request after the handshake, with its likely cause: a listener with SASL tells
    anybody its versions, and hangs up on a client that then does not authenticate.
    """
    if type(error) is not NetworkError or security.uses_sasl:
        return error
    return HandshakeClosedError(
        f"{error} at the first request; does that port want SASL (security.protocol=SASL_"
        f"{'SSL' if security.encrypted else 'PLAINTEXT'})?"
    )


def log_end(address: str, in_flight: int, error: KafkaError, *, expected: bool) -> None:
    """One line for the end of a connection: for everybody where nobody wanted it."""
    say = _LOG.debug if expected else partial(_THROTTLED_LOG.info, address)
    say("%s: disconnected, %d requests in flight: %s", address, in_flight, error)
