"""`Commits`: the offsets of a member, committed one request at a time in the order in which they were asked
for, so that none goes back. A thread of its own sends them: the group's, or the caller's, may be waiting.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from ..cluster.coordinator_requests import ask_coordinator
from ..cluster.coordinators import CoordinatorKey
from ..cluster.router import Router
from ..consumer.consumer_events import WorkStatus, WorkUnit
from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError
from ..model import TopicPartition
from ..observe import catalogue as metric
from ..observe.error_tag import error_tag
from ..observe.event_source import EventSource
from ..observe.registry import MetricsRegistry
from ..runtime.deadline import Deadline
from ..runtime.retry import Backoff, is_retriable, retry
from ..runtime.waiting import LocklessCondition
from .committing import build_offset_commit, read_offset_commit
from .errors import CommitFailedError
from .membership import Identity
from .progress import Progress

_LOG = logging.getLogger("spark_kafka_native.group")

Offsets = Mapping[TopicPartition, int]

UNKNOWN_TOPIC_MS = 3_000
"""A coordinator that does not know a topic for so long: it was deleted, and the others' commits wait."""

_AGAIN = frozenset((ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH))
"""The generation changes just now, and the partitions are still ours: again, as a member of the new one."""
_TOO_LATE = frozenset(
    (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    )
)


@dataclass(frozen=True, slots=True)
class _Wanted:
    offsets: dict[TopicPartition, int]
    done: Future[None]


class Commits:
    """Ask from any thread."""

    def __init__(
        self,
        router: Router,
        group_id: str,
        identity: Callable[[], Identity | None],
        progress: Progress,
        doubt: Callable[[Identity], None],
    ) -> None:
        """``identity`` says as whom to commit; ``doubt`` hears of one that the coordinator has refused."""
        self._router = router
        self._group_id = group_id
        self._key = CoordinatorKey.group(group_id)
        self._identity = identity
        self._progress = progress
        self._doubt = doubt
        self.metrics = MetricsRegistry()
        """Where commits are counted."""
        self.work_units: EventSource[WorkUnit] = EventSource()
        """Where they are told."""
        self._wanted: deque[_Wanted] = deque()
        self._last: Future[None] | None = None
        self._condition = LocklessCondition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def ask(self, offsets: Offsets) -> Future[None]:
        """Commit ``offsets`` in the background; the future ends with what came of it."""
        wanted = _Wanted(dict(offsets), Future())
        wanted.done.set_running_or_notify_cancel()
        if not offsets:
            wanted.done.set_result(None)
            return wanted.done
        self._last = wanted.done
        self._wanted.append(wanted)
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="kafka-group-commits", daemon=True)
                self._thread.start()
        self._condition.notify_all()
        return wanted.done

    def drain(self, deadline: Deadline) -> None:
        """Wait until everything that was asked for has ended, or for ``deadline``."""
        last = self._last
        if last is not None:
            concurrent.futures.wait([last], deadline.remaining_ms / 1000)

    def abandon(self) -> None:
        """End, once what was asked for has ended."""
        self._stopping = True
        self._condition.notify_all()

    def stop(self) -> None:
        """End; what is tried again is not any more."""
        self.abandon()
        if self._thread is not None:
            self._thread.join(1.0)

    def _work(self) -> None:
        while True:
            self._condition.wait_for(lambda: bool(self._wanted) or self._stopping, None)
            if self._stopping and not self._wanted:
                return
            wanted = self._wanted.popleft()
            began, failure = time.monotonic(), None
            try:
                self._commit(wanted.offsets)
            except KafkaError as error:
                failure = error
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear of a bug
                failure = KafkaError(f"committing failed: {error!r}")
            self._count(failure, time.monotonic() - began)
            if failure is None:
                wanted.done.set_result(None)
            else:
                wanted.done.set_exception(failure)

    def _count(self, failure: KafkaError | None, seconds: float) -> None:
        outcome = "committed" if failure is None else error_tag(failure)
        self.metrics.count(metric.COMMITS, 1, outcome)
        self.metrics.measure(metric.COMMIT_DURATION, seconds, outcome)

    def _commit(self, offsets: Offsets) -> None:
        limit = self._router.deadline()
        client = self._router.config
        in_doubt = Deadline.after_ms(UNKNOWN_TOPIC_MS)

        def again(error: KafkaError) -> bool:
            if isinstance(error, BrokerError) and error.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return not in_doubt.expired
            return not self._stopping and _again(error)

        retry(
            lambda: self._attempt(offsets, limit),
            what=f"committing offsets in group {self._group_id}",
            deadline=limit,
            backoff=Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms),
            retriable=again,
            between=lambda error: self._router.coordinators.learn(self._key, error),
        )

    def _attempt(self, offsets: Offsets, deadline: Deadline) -> None:
        """One attempt, as who this consumer is now: each looks anew whether the partitions are still its."""
        # First of all: as a member of a later generation, it might commit what was checked for this one.
        identity = self._identity()
        self._progress.check(offsets)
        ahead = self._progress.ahead(offsets)
        if not ahead:
            return
        if identity is None:
            raise CommitFailedError(
                f"this consumer is not in group {self._group_id} just now (it was too slow, or not heard of, "
                f"and its partitions may be others' by now): {_shown(ahead)} were not committed"
            )
        request = build_offset_commit(self._group_id, ahead, identity)
        try:
            response = ask_coordinator(self._router, self._key, request, deadline)
            read_offset_commit(response, self._group_id, ahead)
        except BrokerError as error:
            if error.error_code not in _TOO_LATE:
                raise
            if self._identity() not in (identity, None):
                raise _OutdatedError(str(error)) from error
            self._doubt(identity)
            raise CommitFailedError(
                f"the group has gone on without this consumer: {_shown(ahead)} were not committed, and the "
                f"records before are read again by whoever has their partitions now ({error})"
            ) from error
        spans = self._progress.spans(ahead) if self.work_units.listening else {}
        self._progress.committed(ahead)
        for tp, (from_offset, until_offset) in spans.items():
            self.work_units.emit(
                WorkUnit(
                    topic_partition=tp,
                    status=WorkStatus.COMMITTED,
                    from_offset=from_offset,
                    until_offset=until_offset,
                    records=None,
                )
            )


class _OutdatedError(KafkaError):
    """The commit was refused as a generation's that has ended, and this consumer is in the next already."""


def _again(error: KafkaError) -> bool:
    if isinstance(error, BrokerError) and error.error_code in _AGAIN:
        return True
    return isinstance(error, _OutdatedError) or is_retriable(error)


def _shown(offsets: Offsets) -> str:
    first = sorted(offsets.items())[:3]
    more = f" and {len(offsets) - 3} more" if len(offsets) > 3 else ""
    return "the offsets " + ", ".join(f"{tp}: {offset}" for tp, offset in first) + more
