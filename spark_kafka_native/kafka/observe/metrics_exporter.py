"""`MetricsExporter`: hands a client's metrics to a function now and then, in a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol, Self

from ..runtime.deadline import Deadline
from ..runtime.waiting import LocklessCondition
from .snapshot import MetricsSnapshot

_LOG = logging.getLogger("spark_kafka_native.telemetry")
CLOSE_S = 5.0
"""`close` waits so long for the last export."""


class Metered(Protocol):
    """A client that counts: `Producer`, `Consumer`, `GroupConsumer` and their kin."""

    def metrics(self) -> MetricsSnapshot:
        """What was counted and measured so far."""
        ...


Export = Callable[[MetricsSnapshot, MetricsSnapshot], object]
"""Called with everything so far, and with what came since the last call."""


class MetricsExporter:
    """Calls ``to(total, since_last)`` every so many seconds, and once more in `close`. A context manager.

        with MetricsExporter(producer, every=10.0, to=lambda total, last: print(last.to_json())):
            ...

    ``to`` may take its time and may raise: that is logged, and the next call is made. It does not keep the
    client alive, and ends with it; a process forked from this one exports nothing.
    """

    def __init__(self, client: Metered, *, every: float = 60.0, to: Export) -> None:
        if not every > 0:
            raise ValueError(f"every must be a number of seconds above 0, not {every}")
        self.failures = 0
        """Calls that raised."""
        self._client = weakref.ref(client)
        self._every = every
        self._to = to
        self._last: MetricsSnapshot | None = None
        self._condition = LocklessCondition()
        self._stopping = False
        self._process_id = os.getpid()
        self._thread = threading.Thread(target=self._work, name="kafka-metrics-exporter", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<MetricsExporter of {self._client()!r} every {self._every} s, {self.failures} failures>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Export what came since the last time, and end. May be called twice."""
        if self._process_id != os.getpid():
            return
        self._stopping = True
        self._condition.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while self._client() is not None:
            last = self._condition.wait_for(lambda: self._stopping, Deadline.after_ms(self._every * 1000))
            self._export()
            if last:
                return

    def _export(self) -> None:
        if (client := self._client()) is None:
            return
        try:
            total = client.metrics()
            del client  # it may go while the function takes its time
            last, self._last = self._last, total
            self._to(total, total if last is None else total.since(last))
        except Exception:  # noqa: BLE001 - a user's function must not end the thread
            self.failures += 1
            _LOG.exception("exporting metrics failed")
