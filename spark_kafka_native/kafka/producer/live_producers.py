"""`LiveProducers`: the producers of this process that are not closed, and their end when it ends
or forks."""

from __future__ import annotations

import atexit

# pyarrow imports this when it first looks for pandas (an array that becomes NumPy's is enough), and it can't
# be imported once the main thread has ended: records that were sent and not flushed are encoded exactly then.
import concurrent.futures.thread  # noqa: F401
import logging
import os
import sys
import weakref
from typing import Protocol

from ..runtime.fork import in_forked_child
from .stats import ProducerStats

_LOG = logging.getLogger("spark_kafka_native")
CHILD_EXIT_PRIORITY = 0
"""Those of users' finalizers that have a higher one run first, and may send."""


class LiveProducer(Protocol):
    """The part of a producer that is used here."""

    def close(self) -> None:
        """Deliver what there is, and end."""

    def stats(self) -> ProducerStats:
        """The counts so far."""
        ...

    def disown(self) -> None:
        """It belongs to the parent process."""


class LiveProducers:
    """Kept weakly: a producer's own thread keeps it alive for as long as it has anything to do."""

    def __init__(self) -> None:
        self._live: weakref.WeakSet[LiveProducer] = weakref.WeakSet()
        self._ends_with: int | None = None
        """The child of `multiprocessing` that closes them at its end."""

    def add(self, producer: LiveProducer) -> None:
        """It has started."""
        self._live.add(producer)
        self._close_with_child()

    def _close_with_child(self) -> None:
        """A child that `multiprocessing` has forked ends without the calls that are registered with
        atexit."""
        if self._ends_with == os.getpid() or "multiprocessing.process" not in sys.modules:
            return
        from multiprocessing import process, util

        if process.parent_process() is not None:
            util.Finalize(None, self.close_all, exitpriority=CHILD_EXIT_PRIORITY)
            self._ends_with = os.getpid()

    def discard(self, producer: LiveProducer) -> None:
        """It has ended."""
        self._live.discard(producer)

    def close_all(self) -> None:
        """Records that were sent and not flushed must not vanish with the interpreter; losses are
        logged."""
        for producer in list(self._live):
            before = producer.stats()
            interrupted: BaseException | None = None
            try:
                producer.close()
            except BaseException as error:  # noqa: BLE001 - the others are to be closed as well
                interrupted = error
            after = producer.stats()
            lost = (
                after.failed_records - before.failed_records - after.spilled_records + before.spilled_records
            )
            lost += after.buffered_records
            if lost:
                reason = repr(interrupted) if interrupted else after.last_error or "they were still under way"
                _LOG.error(
                    "%d records that were sent and not flushed are lost as the interpreter ends: %s. Call "
                    "flush() or close() before the end of the program, and look at the deliveries",
                    lost,
                    reason,
                )

    def disown_all(self) -> None:
        """In a forked child the sender's thread does not exist: refuse records instead of keeping them
        forever."""
        for producer in list(self._live):
            producer.disown()
        self._live.clear()


LIVE = LiveProducers()
atexit.register(LIVE.close_all)
in_forked_child(LIVE.disown_all)
