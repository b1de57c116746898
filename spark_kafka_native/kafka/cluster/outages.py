"""`Outages`: says, once for each broker, that a client can't connect to it.

Each attempt is retried, by different parts of a client and with long deadlines: without this line, a wrong
``advertised.listeners`` would look like a cluster that has nothing to say.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

from ..errors import KafkaError, NetworkError, ProtocolError

_LOG = logging.getLogger("spark_kafka_native")

SAY_AFTER_S = 1.5
"""What a restart of a broker or a slow handshake takes is not worth a line."""
FORGET_AFTER_S = 30.0
"""A failure that no attempt has followed for so long is over: a leader that moved is not connected to any
more."""


class _Outage:
    """From the first failed attempt to the first successful one."""

    def __init__(self) -> None:
        self.began_at = self.tried_at = time.monotonic()
        self.error: KafkaError | None = None
        self.said = False
        self.attempts = 0

    @property
    def is_over(self) -> bool:
        """Whether nobody has tried any more."""
        return not self.attempts and time.monotonic() - self.tried_at > FORGET_AFTER_S


class Outages:
    """The brokers that a client can't connect to. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outages: dict[int, _Outage] = {}

    def error(self, node_id: int) -> KafkaError | None:
        """Why the last attempt to connect to that broker has failed, or what the one under way waits for;
        None where it is reachable, or was not tried for long.
        """
        outage = self._outages.get(node_id)
        return None if outage is None or outage.is_over else outage.error

    @contextlib.contextmanager
    def attempt(self, node_id: int, address: str, hint: str) -> Iterator[None]:
        """Around one attempt to connect to a broker. ``hint`` is what may be wrong with ``address``."""
        outage = self._outage(node_id)
        left_s = outage.began_at + SAY_AFTER_S - time.monotonic()
        timer = threading.Timer(left_s, self._waits, (outage, node_id, address, hint))
        timer.daemon = True
        if left_s <= 0:
            self._say(outage)
        else:
            with contextlib.suppress(RuntimeError):  # no thread can be started while the interpreter ends
                timer.start()
        try:
            yield
        except (NetworkError, ProtocolError) as error:
            outage.error = error
            raise
        else:
            with self._lock:
                self._outages.pop(node_id, None)
        finally:
            timer.cancel()
            with self._lock:
                outage.attempts -= 1
                outage.tried_at = time.monotonic()

    def _outage(self, node_id: int) -> _Outage:
        with self._lock:
            found = self._outages.get(node_id)
            if found is None or found.is_over:
                found = self._outages[node_id] = _Outage()
            found.attempts += 1
            return found

    def _waits(self, outage: _Outage, node_id: int, address: str, hint: str) -> None:
        if outage.error is None:
            outage.error = NetworkError(f"broker {node_id}: no connection to {address} so far{hint}")
        self._say(outage)

    def _say(self, outage: _Outage) -> None:
        with self._lock:
            new = outage.error is not None and not outage.said
            outage.said = outage.said or new
        if new:
            _LOG.warning("%s. The client keeps trying", outage.error)
