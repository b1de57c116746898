"""`Healing`: a living producer sends again what it has put into the spill folder.

Of each such partition the first batch is tried, at growing intervals, while whatever comes meanwhile is
spilled behind it. Once a broker has taken that one in, the others follow in order and new records wait
behind them in memory: from then on the partition is as any other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...model import TopicPartition
from ...runtime.retry import Backoff
from ..accumulating.batch import Batch
from ..sending.sender_state import SenderState
from .backlogs import Backlog

_LOG = logging.getLogger("spark_kafka_native")
MAX_INTERVAL_MS = 30_000
"""Between two tries of a partition: a try is one small request, and a healed one should not wait for long."""


class Healing:
    """Called by the sender's thread. ``retry_replay`` sends what an earlier producer left and could not be
    sent yet; it returns whether there is any."""

    def __init__(self, state: SenderState, retry_replay: Callable[[], bool]) -> None:
        client = state.router.config
        self._state = state
        self._retry_replay = retry_replay
        first_ms = client.retry_backoff_max_ms
        self._backoff = Backoff(first_ms=first_ms, max_ms=max(first_ms, MAX_INTERVAL_MS))
        self._replay_failures = 0
        self._replay_at = state.clock() + self._interval_s(0)

    @property
    def in_flight(self) -> bool:
        """Whether a try has been sent and not answered: a producer that ends waits for it, as without
        sequence numbers nobody would recognise the next one."""
        backlogs = self._state.completion.backlogs.by_partition
        return any(
            backlog.probe is not None and backlog.probe in self._state.partition(where).in_flight
            for where, backlog in backlogs.items()
        )

    def turn(self, now: float) -> None:
        """Try what is due, and look at what has become of what was tried."""
        if not self._state.completion.spills:
            return
        self._replay(now)
        for where, backlog in list(self._state.completion.backlogs.by_partition.items()):
            partition = self._state.partition(where)
            if backlog.probe is not None:
                self._judge(backlog, backlog.probe, now)
            elif not backlog.batches:  # late answers have said that all of it is in the log
                if partition.idle:
                    self._resume(backlog, partition.topic_partition, now)
            elif partition.idle:  # else late answers are to come, or what stands in front is still sent
                self._try(backlog, now)

    def _replay(self, now: float) -> None:
        if now < self._replay_at:
            if self._replay_failures:
                self._state.by(self._replay_at)
            return
        self._replay_failures = self._replay_failures + 1 if self._retry_replay() else 0
        self._replay_at = now + self._interval_s(self._replay_failures)
        if self._replay_failures:
            self._state.by(self._replay_at)

    def _try(self, backlog: Backlog, now: float) -> None:
        if backlog.not_before is None:
            backlog.not_before = now + self._interval_s(backlog.failures)
        if now < backlog.not_before:
            self._state.by(backlog.not_before)
            return
        backlog.probe = backlog.batches.pop(0)
        backlog.refused = False
        self._send(backlog.probe, now)

    def _judge(self, backlog: Backlog, probe: Batch, now: float) -> None:
        if not probe.complete:
            return
        backlog.probe = None
        if backlog.refused:
            backlog.failures += 1
            backlog.not_before = None
            self._state.by(now)
        else:
            self._resume(backlog, probe.topic_partition, now)

    def _resume(self, backlog: Backlog, where: TopicPartition, now: float) -> None:
        """What is left is sent, and what comes from now on waits behind it."""
        del self._state.completion.backlogs.by_partition[where]
        _LOG.info("spill folder: %s takes records again, %d batches follow", where, len(backlog.batches))
        self._state.completion.expect(backlog.batches)
        for batch in backlog.batches:
            self._send(batch, now)
        self._state.partition(where).resumed()

    def _send(self, batch: Batch, now: float) -> None:
        batch.created_at = now
        partition = self._state.partition(batch.topic_partition)
        partition.add(batch)
        self._state.active[partition] = None

    def _interval_s(self, failures: int) -> float:
        return self._backoff.delay_ms(failures) / 1000
