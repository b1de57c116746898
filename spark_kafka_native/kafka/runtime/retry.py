"""`retry`: the only retry loop of the client; no other code sleeps between attempts."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..errors import (
    BrokerError,
    DeadlineExceededError,
    IncompleteResponseError,
    KafkaError,
    NetworkError,
    with_notes,
)
from .deadline import Deadline
from .log_throttle import LogThrottle

T = TypeVar("T")
_THROTTLED_LOG = LogThrottle(logging.getLogger("spark_kafka_native.network"))


LEAST_LONG_MS = 50


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Exponential backoff with jitter of 20 % (KIP-580): ``first_ms``, doubled per attempt up to
    ``max_ms``. With 0 it begins with 1 ms, and ends with `LEAST_LONG_MS`: a broker that is down must not be
    connected to without a pause.
    """

    first_ms: int
    max_ms: int

    def delay_ms(self, attempt: int, uniform: Callable[[float, float], float] = random.uniform) -> float:
        """Milliseconds to wait after the ``attempt``-th failure (from 0)."""
        # 2**30 times the smallest first_ms exceeds any cap; the bound keeps the power from growing.
        longest_ms = self.max_ms or LEAST_LONG_MS
        return min(longest_ms, max(1, self.first_ms) * 2.0 ** min(attempt, 30)) * uniform(0.8, 1.2)


def is_retriable(error: KafkaError) -> bool:
    """True if the same request may succeed later: a network error, an error code that Kafka calls retriable,
    an incomplete response, or an error that `KafkaError.may_pass`.
    """
    if isinstance(error, BrokerError):
        return error.error_code.retriable or error.error_code.stale_metadata
    return error.may_pass or isinstance(error, NetworkError | IncompleteResponseError)


def retry(  # noqa: PLR0913 - time and randomness come in as arguments
    operation: Callable[[], T],
    *,
    what: str,
    deadline: Deadline,
    backoff: Backoff,
    retriable: Callable[[KafkaError], bool] = is_retriable,
    between: Callable[[KafkaError], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    uniform: Callable[[float, float], float] = random.uniform,
) -> T:
    """Call ``operation`` until it returns, fails for good, or ``deadline`` passes.

    ``between`` is called with each retriable failure before the wait (to refresh what the failure proved
    stale); an error that it raises counts as a failed attempt. Raises the error of ``operation`` if that is
    not retriable, else `DeadlineExceededError` with ``what`` in its message; its cause is the last failure
    that was not merely a lack of time, with the notes of that.
    """
    attempt = 0
    telling: KafkaError | None = None
    while True:
        try:
            return operation()
        except KafkaError as error:
            failure = error
        telling = _more_telling(telling, failure, deadline)
        if not retriable(failure):
            raise failure
        try:
            if between is not None:
                between(failure)
        except KafkaError as error:
            if not retriable(error):
                raise
            telling = _more_telling(telling, error, deadline)
        delay_ms = backoff.delay_ms(attempt, uniform)
        attempt += 1
        if delay_ms >= deadline.remaining_ms:
            tries = "1 attempt" if attempt == 1 else f"{attempt} attempts"
            says = f"{what} did not succeed in time ({tries}); the last: {telling}"
            raise with_notes(DeadlineExceededError(says), telling) from telling
        _THROTTLED_LOG.info(
            what, "%s: attempt %d failed, another in %d ms: %s", what, attempt, delay_ms, failure
        )
        sleep(delay_ms / 1000)


def _more_telling(earlier: KafkaError | None, later: KafkaError, deadline: Deadline) -> KafkaError:
    """The failure of the two that shows the cause. An attempt that the deadline cut short does not."""
    cut_short = deadline.expired and isinstance(later, NetworkError)
    return later if earlier is None or not cut_short else earlier
