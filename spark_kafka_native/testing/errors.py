"""What can keep a broker from starting; every message ends with what to do about it."""

from __future__ import annotations


class BrokerUnavailableError(RuntimeError):
    """No embedded broker can run here. Its children say why."""


class JavaUnavailableError(BrokerUnavailableError):
    """No Java, or one too old to run the broker."""


class JarsUnavailableError(BrokerUnavailableError):
    """Kafka's jars are not in the cache and could not be fetched."""


class BrokerStartError(BrokerUnavailableError):
    """A broker process ended, or was not ready in time; the message carries the end of its log."""


class GuardError(RuntimeError):
    """The process that watches over our brokers is gone or refused a command."""


class ClusterStartError(RuntimeError):
    """A Spark master or worker ended, or was not ready in time; the message carries the end of its log."""
