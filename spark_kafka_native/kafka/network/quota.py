"""`Quota`: for how long a broker wants no requests, as it has more than its quotas allow (KIP-219)."""

from __future__ import annotations

import logging
import time

from ..errors import NetworkError
from ..runtime.deadline import Deadline
from ..runtime.log_throttle import LogThrottle

_THROTTLED_LOG = LogThrottle(logging.getLogger("spark_kafka_native.network"))

MAX_MUTED_MS = 60_000
"""A broker's throttle time is obeyed up to this: a corrupt or hostile one must not mute us for days."""


class Quota:
    """The throttle time of one connection. Any thread may use it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._muted_until = 0.0

    @property
    def muted_ms(self) -> float:
        """Milliseconds for which the broker asked us to send nothing."""
        return max(0.0, (self._muted_until - time.monotonic()) * 1000)

    def learn(self, throttle_time_ms: int) -> None:
        """A response carries this throttle time; 0 says nothing about the ones before."""
        if throttle_time_ms > 0:
            self._muted_until = time.monotonic() + min(throttle_time_ms, MAX_MUTED_MS) / 1000
            _THROTTLED_LOG.info(
                self._address,
                "%s: throttled for %d ms, as a quota is exceeded",
                self._address,
                throttle_time_ms,
            )

    def wait(self, deadline: Deadline | None) -> None:
        """Sleep until the broker may be asked. Raises `NetworkError`, and does not sleep, if
        that is only after ``deadline``.
        """
        while self._muted_until and (muted_ms := self.muted_ms) > 0:
            if deadline is not None and muted_ms >= deadline.remaining_ms:
                raise NetworkError(
                    f"{self._address}: the broker enforces a quota and wants no request for "
                    f"{muted_ms:.0f} ms, which is longer than this one may wait"
                )
            time.sleep(muted_ms / 1000)
