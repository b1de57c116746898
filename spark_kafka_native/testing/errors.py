"""What can keep a broker from starting; every message ends with what to do about it."""

from __future__ import annotations

import re


class BrokerUnavailableError(RuntimeError):
    """No embedded broker can run here. Its children say why."""


class JavaUnavailableError(BrokerUnavailableError):
    """No Java, or one too old to run the broker."""


class JarsUnavailableError(BrokerUnavailableError):
    """Kafka's jars are not in the cache and could not be fetched."""


class BrokerStartError(BrokerUnavailableError):
    """A broker process ended, or was not ready in time. The message carries the end of its log, ``output``;
    ``reason`` is one line without it.
    """

    def __init__(self, what: str, output: str = "") -> None:
        super().__init__(f"{what}. Its output ends with:\n{output[-4000:]}" if output else what)
        self.output = output
        causes = [line.strip() for line in output.splitlines() if _CAUSE.search(line)]
        self.reason = f"{what}: {causes[-1]}" if causes else what


_CAUSE = re.compile(r"^(Caused by: )?[\w.$]+(Exception|Error)\b|\bERROR\b|^Error\b")


class GuardError(RuntimeError):
    """The process that watches over our brokers is gone or refused a command."""


class ClusterStartError(RuntimeError):
    """A Spark master or worker ended, or was not ready in time; the message carries the end of its log."""
