"""The offset commits of a group consumer: when they are made, and in which order.

`CommitQueue` sends commits one at a time, in a thread of its own. `Commits` stands in front of it and of
`Progress`, for the caller's thread: explicit commits, automatic commits, and offsets for a transaction.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn
from uuid import UUID

from ..cluster.coordinators import ask_coordinator
from ..cluster.recreated_topics import find_recreated
from ..cluster.router import CoordinatorKey, Router
from ..cluster.split_commit import split_commit
from ..consumer.fetched_records import WorkStatus, WorkUnit
from ..consumer.partition_reader import PartitionReader
from ..error_code import ErrorCode
from ..errors import BrokerError, CommitFailedError, ConsumerClosedError, DeadlineExceededError, KafkaError
from ..model import OffsetToCommit, Record, TopicPartition, checked_offset
from ..observe import catalogue as metric
from ..observe.events import EventSource
from ..observe.metrics import MetricsRegistry, error_tag
from ..runtime.deadline import Deadline
from ..runtime.retry import Backoff, is_retriable, retry
from ..runtime.waiting import LocklessCondition
from .committed_offsets import build_offset_commit, refusals
from .group_config import GroupConfig
from .membership import Identity
from .pending_commit import PendingCommit, Then
from .progress import Offsets, Places, Progress

_LOG = logging.getLogger("spark_kafka_native.group")

TopicIds = Mapping[TopicPartition, UUID]
Spans = Mapping[TopicPartition, tuple[int, int]]
"""For each partition where some records begin, and the next offset after them."""

METADATA_MS = 1_000
"""How long a commit waits for the topic ids of now."""
FRESH_S = 0.1
"""The ids count as those of now for this time, and for ten times the time that asking took. After a failure
they are asked for again after this time.
"""
FRESH_LIMIT_S = 1.0
"""The limit of these ten times: a topic may be created again meanwhile."""
_IDS_BACKOFF = Backoff(first_ms=50, max_ms=100)
"""Between the leaders' answers about an id that differs: several are to come within `METADATA_MS`."""
UNKNOWN_TOPIC_MS = 3_000
"""After this time, a topic that the coordinator does not know counts as deleted: later commits are waiting.
"""

_AGAIN = frozenset(
    (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.BROKER_NOT_AVAILABLE)
)
"""The generation is changing and the partitions are still assigned here: try again with the next generation.
Or the metadata do not name the coordinator any more: the group has another one.
"""
_TOO_LATE = frozenset(
    (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    )
)
"""The coordinator does not have the member under its identity, or has no such group any more."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """The commit that is being sent."""

    left: dict[TopicPartition, int]
    """The offsets that the coordinator has not confirmed."""
    places: Places
    """As `Progress.places`, from when it was submitted."""
    topic_ids: TopicIds
    """Those that the offsets belong to, also from then."""
    epochs: Offsets
    """The leader epochs of the records before the offsets, also from then."""
    limit: Deadline
    in_doubt: Deadline
    """Until then, a topic that the coordinator does not know may be a new one."""
    refused: list[KafkaError] = field(default_factory=list)
    """Refusals for good, in order."""


class CommitQueue:
    """Sends commits one request at a time, in the order in which they were submitted, so that none goes back.

    A thread of its own sends them, because the thread of the membership or the caller may be waiting. Any
    thread may submit.
    """

    def __init__(
        self,
        router: Router,
        config: GroupConfig,
        identity: Callable[[], Identity | None],
        progress: Progress,
        doubt: Callable[[Identity], None],
    ) -> None:
        """``identity`` returns the member id and generation to commit with; ``doubt`` is called with those
        that the coordinator refused.
        """
        self._router = router
        self._config = config
        self._key = CoordinatorKey.group(config.group_id)
        self._identity = identity
        self._progress = progress
        self._doubt = doubt
        self.metrics = MetricsRegistry()
        """Counts the commits."""
        self.work_units: EventSource[WorkUnit] = EventSource()
        """Emits an event for each partition that was committed."""
        self.topic_ids: Callable[[], TopicIds] = dict
        """Returns the ids of the topics that the positions belong to, as far as they are known."""
        self.leader_epochs: Callable[[Offsets], Offsets] = lambda _offsets: {}
        """Returns the leader epochs of the records before the offsets, as far as they are known."""
        self.former_ids: set[UUID] = set()
        """Those of topics that were recreated."""
        self._fresh_until: dict[str, float] = {}
        """The topics with metadata that count as fresh until then."""
        self._waiting: deque[tuple[PendingCommit, Places, TopicIds, Offsets]] = deque()
        self._last: PendingCommit | None = None
        self._condition = LocklessCondition()
        self._stopping = False
        self._ended = False
        """True once the thread takes no more of those that are waiting."""
        self.thread: threading.Thread | None = None
        """The one that sends."""
        self._unclaimed = [True]
        """Empty once `thread` sends. Not the caller, but the thread itself says so: an interrupt may end the
        start of a thread."""

    def submit(self, offsets: Offsets, then: Then | None = None) -> PendingCommit:
        """Commit ``offsets`` in the background; the future completes with the outcome, after ``then``."""
        commit = PendingCommit(dict(offsets), then, partial(self.raise_if_callback, "waiting for a commit"))
        if not offsets:
            commit.end(None)
            return commit
        waiting = commit, self._progress.places(offsets), self.topic_ids(), self.leader_epochs(offsets)
        # No call in between: `drain` waits for the last one, which has to be among those that are sent.
        self._last = commit
        self._waiting.append(waiting)
        self.start()
        self._condition.notify_all()
        if self._ended:  # looked at after the append: either this or the thread's last look finds it
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiting)
                commit.end(_closed())
        return commit

    def raise_if_callback(self, what: str) -> None:
        """Raise `RuntimeError` in a callback of a commit."""
        if threading.current_thread() is self.thread:
            raise RuntimeError(f"{what} in a callback of a commit would wait for the thread that it runs in")

    def start(self) -> None:
        """Start the thread that sends, unless there is one; of several the first stays. Not only for the
        first commit: none can be started any more as the interpreter ends, or while there are too many.
        """
        if self._unclaimed:
            threading.Thread(target=self._work, name="kafka-group-commits", daemon=True).start()

    def settle_deadline(self) -> Deadline:
        """The limit of a wait for commits that a rebalance or a seek must not overtake: half of the max poll
        interval at most, because the caller is in a poll meanwhile.
        """
        return self._router.deadline(
            min(self._router.config.default_api_timeout_ms, self._config.max_poll_interval_ms / 2)
        )

    def drain(self, deadline: Deadline) -> None:
        """Wait until every submitted commit has ended, or until ``deadline``."""
        self.start()  # an interrupt may have kept `submit` from it
        last = self._last
        if last is not None:
            last.wait(deadline)

    def abandon(self) -> None:
        """End the thread once every submitted commit has ended."""
        self._stopping = True
        self._condition.notify_all()

    def stop(self) -> None:
        """End the thread; a commit that failed is not retried any more."""
        self.abandon()
        if self.thread is not None:
            self.thread.join(1.0)

    def _work(self) -> None:
        try:
            self._unclaimed.pop()
        except IndexError:
            return
        self.thread = threading.current_thread()
        while True:
            self._condition.wait_for(lambda: bool(self._waiting) or self._stopping, None)
            if not self._waiting:
                self._ended = True
                self._refuse_waiting()
                return
            commit, places, topic_ids, epochs = self._waiting.popleft()
            began, failure = time.monotonic(), None
            try:
                self._commit(commit.offsets, places, topic_ids, epochs)
            except KafkaError as error:
                failure = error
            except BaseException as error:  # noqa: BLE001 - the waiting thread must hear of a bug
                failure = KafkaError(f"committing failed: {error!r}")
            self._count(failure, time.monotonic() - began)
            commit.end(failure)

    def _refuse_waiting(self) -> None:
        """End commits that were submitted as the thread was about to end: nothing sends them."""
        with contextlib.suppress(IndexError):
            while True:
                self._waiting.popleft()[0].end(_closed())

    def _count(self, failure: KafkaError | None, seconds: float) -> None:
        outcome = "committed" if failure is None else error_tag(failure)
        self.metrics.count(metric.COMMITS, 1, outcome)
        self.metrics.measure(metric.COMMIT_DURATION, seconds, outcome)

    def of_former_topics(
        self, offsets: Offsets, topic_ids: TopicIds, deadline: Deadline
    ) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
        """The partitions of topics that were recreated, so that ``offsets``, which belong to ``topic_ids``,
        mean other records now; and those of which the brokers disagree about that. The reader may learn it
        later: its buffer may be full, or nothing is fetched.
        """
        expected = {tp: topic_ids[tp] for tp in offsets if tp in topic_ids}
        if not expected:
            return frozenset(), frozenset()
        began = time.monotonic()
        if due := {tp.topic for tp in expected if self._fresh_until.get(tp.topic, 0.0) <= began}:
            fresh_s = FRESH_S
            with contextlib.suppress(KafkaError):  # the coordinator decides alone then
                self._router.refresh(due, deadline.within_ms(METADATA_MS))
                fresh_s = max(FRESH_S, min(10 * (time.monotonic() - began), FRESH_LIMIT_S))
            self._fresh_until |= dict.fromkeys(due, time.monotonic() + fresh_s)
        known = self._router.snapshot.topics
        doubtful = {
            (tp.topic, topic_id)
            for tp, topic_id in expected.items()
            if tp.topic in known and known[tp.topic].topic_id not in (None, topic_id)
            if topic_id not in self.former_ids
        }
        doubted = dict(doubtful)
        undecided: set[UUID] = set()
        try:
            # A broker that lags behind may have given another id.
            others = find_recreated(
                self._router,
                doubted,
                refresh=True,
                deadline=deadline.within_ms(METADATA_MS),
                backoff=_IDS_BACKOFF,
            )
            now = doubted | others
            self.former_ids.update(topic_id for name, topic_id in doubtful if topic_id != now[name])
        except KafkaError:  # other commits do not wait until they agree
            undecided.update(topic_id for _, topic_id in doubtful)
        return (
            frozenset(tp for tp, topic_id in expected.items() if topic_id in self.former_ids),
            frozenset(tp for tp, topic_id in expected.items() if topic_id in undecided),
        )

    def _commit(self, offsets: Offsets, places: Places, topic_ids: TopicIds, epochs: Offsets) -> None:
        """In as many requests as it takes, one after the other: the next commit begins when none of them is
        under way. One that is refused, as for a deleted topic, does not keep the others from being sent.
        """
        limit, in_doubt = self._router.deadline(), Deadline.after_ms(UNKNOWN_TOPIC_MS)
        self._progress.check(offsets, places)
        commit = _UnderWay(self._progress.ahead(offsets, places), places, topic_ids, epochs, limit, in_doubt)
        late: DeadlineExceededError | None = None
        for part in list(split_commit(self._config.group_id, commit.left)):
            try:
                self._commit_part(part, commit)
            except BrokerError as error:
                commit.refused.append(error)
            except DeadlineExceededError as error:
                late = error
                break
        # A refusal for good first: the caller has to do something about it.
        if commit.refused:
            raise min(commit.refused, key=_is_unknown_topic) from late
        if late is not None:
            raise late

    def _commit_part(self, part: dict[TopicPartition, int], commit: _UnderWay) -> None:
        client = self._router.config
        retry(
            lambda: self._attempt(part, commit),
            what=f"committing offsets in group {self._config.group_id}",
            deadline=commit.limit,
            backoff=Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms),
            retriable=partial(self._passes, commit),
            between=partial(self._router.coordinators.learn, self._key),
        )

    def _passes(self, commit: _UnderWay, error: KafkaError) -> bool:
        if _is_unknown_topic(error):
            return not commit.in_doubt.expired
        return not self._stopping and _again(error)

    def _attempt(self, part: dict[TopicPartition, int], commit: _UnderWay) -> None:
        """One attempt at one request with the current member id and generation; each checks again that the
        partitions are still assigned. ``part`` loses the offsets that are stored, and those that are refused
        for good: the coordinator decides on each partition.
        """
        # First of all: with a later generation, it might commit offsets that were checked for this one.
        identity = self._identity()
        self._progress.check(part, commit.places)
        group_id = self._config.group_id
        if identity is None:
            raise CommitFailedError(
                f"this consumer is not in group {group_id} just now (it was too slow, or not heard of, "
                f"and its partitions may be others' by now): {_shown(commit.left)} were not committed"
            )
        former, undecided = self.of_former_topics(part, commit.topic_ids, commit.limit)
        if former:
            commit.refused.append(_of_former(former))
        if undecided:
            commit.refused.append(_undecided(undecided))
        for tp in former | undecided:
            del part[tp]
        if part:
            self._ask(part, commit, identity)

    def _ask(self, part: dict[TopicPartition, int], commit: _UnderWay, identity: Identity) -> None:
        group_id = self._config.group_id
        positions = {
            tp: OffsetToCommit(offset=offset, leader_epoch=commit.epochs.get(tp, -1))
            for tp, offset in part.items()
        }
        request = build_offset_commit(group_id, positions, identity)
        response = ask_coordinator(self._router, self._key, request, commit.limit)
        refused = refusals(response, group_id, part)
        self._stored({tp: offset for tp, offset in part.items() if tp not in refused}, part, commit)
        for error in refused.values():
            if isinstance(error, BrokerError) and error.error_code in _TOO_LATE:
                self._raise_too_late(error, identity, commit)
        for tp, error in refused.items():
            # Of several failures that pass, only one is raised.
            self._router.coordinators.learn(self._key, error)
            if not self._passes(commit, error):
                commit.refused.append(error)
                del part[tp]
        if part:
            raise refused[next(iter(part))]

    def _raise_too_late(self, error: BrokerError, identity: Identity, commit: _UnderWay) -> NoReturn:
        """The coordinator has refused ``identity``."""
        now = self._identity()
        if now in (identity, None):
            self._doubt(identity)
        if now is not None and (now != identity or error.error_code is ErrorCode.ILLEGAL_GENERATION):
            # If it is not in the next one, the answer to its JoinGroup may be under way; else the heartbeat
            # ends the membership, and with it the attempts.
            raise _OutdatedError(str(error)) from error
        raise CommitFailedError(
            f"the group has gone on without this consumer: {_shown(commit.left)} were not committed, and "
            f"the records before are read again by whoever has their partitions now ({error})"
        ) from error

    def _stored(self, stored: Offsets, part: dict[TopicPartition, int], commit: _UnderWay) -> None:
        spans = self._progress.spans(stored) if self.work_units.listening else {}
        self._progress.committed(stored, commit.places)
        for tp in stored:
            del part[tp], commit.left[tp]
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


class _OutdatedError(CommitFailedError):
    """The coordinator refused a commit of an ended generation, and this consumer is in the next, or is about
    to learn of it.
    """


def _closed() -> ConsumerClosedError:
    return ConsumerClosedError("the consumer is closed: nothing was committed")


def _of_former(topic_partitions: Iterable[TopicPartition]) -> CommitFailedError:
    return CommitFailedError(
        f"{partitions_named(topic_partitions)}: the topic was deleted and created again, and offsets of the "
        "former one were not committed for it; seek to where to begin with the new one"
    )


def _undecided(topic_partitions: Iterable[TopicPartition]) -> CommitFailedError:
    return CommitFailedError(
        f"{partitions_named(topic_partitions)}: a broker says that the topic was created again, and "
        "its leaders do not agree about that yet: offsets were not committed; commit them again later"
    )


def _is_unknown_topic(error: KafkaError) -> bool:
    return isinstance(error, BrokerError) and error.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _again(error: KafkaError) -> bool:
    if isinstance(error, BrokerError) and error.error_code in _AGAIN:
        return True
    return isinstance(error, _OutdatedError) or is_retriable(error)


def _shown(offsets: Offsets) -> str:
    first = sorted(offsets.items())[:3]
    more = f" and {len(offsets) - 3} more" if len(offsets) > 3 else ""
    return "the offsets " + ", ".join(f"{tp}: {offset}" for tp, offset in first) + more


class Commits:
    """The commits of one consumer, explicit and automatic ones. For the caller's thread.

    Records count as done once the caller comes back for more. Automatic commits contain everything that was
    handed out, as records that are not done are given back first; none are made if ``enable_auto_commit`` is
    off.
    """

    def __init__(
        self, config: GroupConfig, queue: CommitQueue, reader: PartitionReader, progress: Progress
    ) -> None:
        self._enabled = config.enable_auto_commit
        self._interval_s = config.auto_commit_interval_ms / 1000
        self.queue = queue
        self.progress = progress
        self._reader = reader
        self.without_start: set[TopicPartition] = set()
        """Assigned partitions that are not read yet, or begin anew: those of `StartOffsets`."""
        self._touched: set[TopicPartition] = set()
        """Partitions with records that were handed out, or another position without any: after a reset, or
        hidden offsets. Without automatic commits these three stay empty."""
        self._starts: dict[TopicPartition, int] = {}
        """Start offsets to commit, of partitions in which nothing was committed, or reading went back; after
        a `seek`, the end of the records that were done before."""
        self._asked: dict[TopicPartition, int] = {}
        """The offsets of the last automatic commit, so that it is not repeated."""
        self.due = time.monotonic() + self._interval_s
        """When the next automatic commit is due, by the monotonic clock."""
        self._before_more: PendingCommit | None = None
        """The automatic commit that has to end before more is handed out."""
        self._unknown: set[TopicPartition] = set()
        """Among the partitions of the last such commit, some were refused, as no broker knows their topic."""

    # Reading.

    def handed_out(self, topic_partition: TopicPartition, from_offset: int, next_offset: int) -> None:
        """The caller is given everything in ``[from_offset, next_offset)``."""
        self._note(topic_partition, from_offset, next_offset, counts=True)
        if self._enabled:
            self._touched.add(topic_partition)

    def reached(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each partition the offset after the records that were handed out, and after hidden offsets that
        follow them (markers, aborted transactions, compaction): from now on a commit may contain it.
        """
        found = self._reader.positions(topic_partitions)
        for topic_partition, offset in found.items():
            self._note(topic_partition, offset, offset)
        return found

    def note_resets(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """These partitions are given up or begin anew. Where the reset policy has moved them since the caller
        did, that counts also if the caller has not got there.
        """
        for topic_partition in topic_partitions:
            if (reset := self._reader.reset_of(topic_partition)) is not None:
                self._reader.drop_lost(topic_partition)
                if reset.forward:
                    self.progress.skipped(topic_partition, reset.offset)
                # Also forward, if an earlier one has gone back further that no read has noticed.
                if not reset.forward or self.progress.has_read_past(topic_partition, reset.offset):
                    self.reached([topic_partition])

    def _note(
        self, topic_partition: TopicPartition, from_offset: int, next_offset: int, *, counts: bool = False
    ) -> None:
        if not self.progress.handed_out(topic_partition, from_offset, next_offset, counts=counts):
            # First: after an interrupt in between, reading goes back again.
            self.forget([topic_partition])
            self.started(topic_partition, from_offset)
            reset = self._reader.reset_of(topic_partition)
            self.progress.go_back(topic_partition, from_offset, next_offset, reset, counts=counts)

    def begun(self, topic_partition: TopicPartition, offset: int, committed: int | None) -> None:
        """Reading begins at ``offset``; ``committed`` is the group's committed offset, if any."""
        if committed is not None:
            self._starts.pop(topic_partition, None)
        self.progress.begin(topic_partition, offset, committed, self._starts.get(topic_partition))

    def started(self, topic_partition: TopicPartition, offset: int) -> None:
        """Reading begins at ``offset``, and nothing is committed. An automatic commit stores the start: a
        member that gets the partition next might begin later, and skip the records in between.
        """
        if self._enabled:
            self._starts[topic_partition] = offset

    def sought(self, topic_partition: TopicPartition, offset: int) -> int | None:
        """The caller continues at ``offset``, and is done with the records before. Returns the offset that
        automatic commits contain until something is read there (None: none), for `Progress.sought`: without
        it, the next member with the partition would read them again, or begin later with `latest`.
        """
        kept, is_begun = None, topic_partition in self._begun
        if is_begun:
            self.note_resets([topic_partition])
        if self._enabled and topic_partition in self.recreated:
            kept = offset  # in the new topic nothing is committed
        elif self._enabled:
            if is_begun:
                self.reached([topic_partition])
            kept = self.progress.to_keep(topic_partition, offset, self._starts.get(topic_partition))
        self.forget([topic_partition])
        if kept is not None:
            self._starts[topic_partition] = kept
        return kept

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are no longer read, or from elsewhere: automatic commits do not contain them."""
        for topic_partition in topic_partitions:
            self._starts.pop(topic_partition, None)
        self.forget_handed_out(topic_partitions)

    def forget_handed_out(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """The records that were handed out of them do not count as done."""
        for topic_partition in topic_partitions:
            self._touched.discard(topic_partition)
            self._asked.pop(topic_partition, None)

    def restart(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Reading will begin anew at the committed offsets."""
        for topic_partition, start in [(tp, self._starts.get(tp)) for tp in topic_partitions]:
            if start is not None and self.progress.to_keep(topic_partition, start, start) is None:
                del self._starts[topic_partition]  # the group has got past it
        self.forget_handed_out(topic_partitions)
        self.progress.restart(topic_partitions)

    def drop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are no longer assigned."""
        self.forget(topic_partitions)
        self.progress.drop(topic_partitions)

    # Automatic commits.

    def caller_is_back(self) -> None:
        """Everything that was handed out is done: commit it if a commit is due."""
        if self._before_more or not self._enabled or time.monotonic() < self.due:
            return
        self.due = time.monotonic() + self._interval_s
        done = self._submit()
        if self._interval_s == 0:
            self._before_more = done

    def may_go_on(self, deadline: Deadline) -> bool:
        """Wait until more may be handed out: with an interval of 0, until the automatic commit has ended.
        False if ``deadline`` passed first, or if a part of it has to be committed anew. Raises its failure,
        unless it is of partitions that are lost, or of a deleted topic.
        """
        if (commit := self._before_more) is None:
            return True
        if not commit.wait(deadline):
            return False
        self._before_more = None
        try:
            commit.result()
        except CommitFailedError:  # logged; partitions that are lost are taken away
            # One that was moved or given up meanwhile fails the others, too: they are committed first.
            return commit.offsets.keys() <= self._touched | self._starts.keys()
        except BrokerError as error:
            if not _is_unknown_topic(error) or error.__cause__ is not None:
                raise
            # Logged. All others are committed; this one would hold up each read until it is taken away.
            self._unknown = commit.offsets.keys() & (self._touched | self._starts.keys())
            self._asked |= {tp: commit.offsets[tp] for tp in self._unknown}
        return True

    def commit_now(self, deadline: Deadline, leaving: Collection[TopicPartition] = ()) -> None:
        """Commit all handed-out records, and wait for it; those that are ``leaving`` are given up then. A
        failure is logged: the records are read again.
        """
        self.note_resets(self._begun.intersection(leaving))
        for topic_partition in self._unknown:
            self._asked.pop(topic_partition, None)  # once more: it may have been a new topic
        self._unknown.clear()
        done = self._submit()
        if done is not None:
            with contextlib.suppress(KafkaError, TimeoutError):
                done.result(deadline.remaining_ms / 1000)

    @property
    def _begun(self) -> set[TopicPartition]:
        """The partitions with positions that may be committed. An interrupt may leave others in the reader
        that are about to begin anew."""
        return self._reader.partitions.keys() - self.recreated - self._cut_back - self.without_start

    @property
    def _cut_back(self) -> set[TopicPartition]:
        """The partitions with positions behind the end of a log that was cut back."""
        cuts = self._reader.truncated
        return {tp for tp, at in self._reader.positions(cuts).items() if at > cuts[tp].end_offset}

    @property
    def recreated(self) -> frozenset[TopicPartition]:
        """The partitions with positions in former topics, as the reader or a commit has learnt."""
        found, former_ids = self._reader.recreated, self.queue.former_ids
        if not former_ids:
            return found
        return found | {tp for tp, topic_id in self._reader.topic_ids.items() if topic_id in former_ids}

    def _submit(self) -> PendingCommit | None:
        read = self._begun
        if self._enabled:
            self._touched |= self.progress.moved(self._reader.positions(read))
        # One that the group has got past since would fail the commit of all.
        offsets = self.progress.allowed({tp: offset for tp, offset in self._starts.items() if tp in read})
        offsets |= self.reached(self._touched & read)
        wanted = {tp: offset for tp, offset in offsets.items() if offset > self._asked.get(tp, -1)}
        if not wanted:
            return None
        try:
            self._asked.update(wanted)
            return self.queue.submit(wanted, self._ended)
        except BaseException:  # an interrupt
            self._asked = {}
            raise

    def _ended(self, error: KafkaError | None) -> None:
        if error is not None:
            self._asked = {}  # the next commit contains it again
            _LOG.warning("committing what was read failed: %s", error)

    # Explicit commits and transactions.

    def wanted(
        self, records: Iterable[Record], offsets: Offsets | None = None, in_work: Spans | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets that `GroupConsumer.commit` with these arguments commits: without records or offsets,
        none behind those ``in_work``, nor of partitions where a transaction may have committed these, or a
        `seek` has passed them. Raises `CommitFailedError` if one of them must not be committed.
        """
        wanted = {tp: checked_offset(offset) for tp, offset in (offsets or {}).items()}
        for record in records:
            tp = record.topic_partition
            wanted[tp] = max(wanted.get(tp, 0), record.offset + 1)
        if not records and offsets is None:
            wanted = self.reached(self._begun)
            in_work = in_work or {}
            undone = self.progress.allowed({tp: begin for tp, (begin, _) in in_work.items()})
            wanted |= {tp: min(at, wanted[tp]) for tp, at in undone.items() if tp in wanted}
            left_out = self.progress.given_beyond(undone)  # the transaction may have committed them
            if not self._enabled:  # else those before a `seek` are done
                passed = {
                    tp for tp, (_, end) in in_work.items() if tp not in undone and wanted.get(tp, 0) >= end
                }
                left_out |= self.progress.uncommitted(passed)
            wanted = {tp: offset for tp, offset in wanted.items() if tp not in left_out}
        elif outdated := self.recreated & wanted.keys():
            raise _of_former(outdated)
        elif cut := [tp for tp, one in self._reader.truncated.items() if wanted.get(tp, 0) > one.end_offset]:
            raise _of_lost_records(cut)
        elif unread := self.without_start & wanted.keys():
            raise CommitFailedError(
                f"{partitions_named(unread)}: nothing was committed, as it is not known yet where reading "
                "begins (position() is None); read on until it is, or seek() first"
            )
        elif offsets:  # they may be positions
            self.reached(offsets.keys() & self._reader.partitions.keys())
        self.progress.check(wanted)
        return wanted

    def for_transaction(
        self, records: Iterable[Record], offsets: Offsets | None, in_work: Callable[[], Spans] = dict
    ) -> dict[TopicPartition, int]:
        """As `wanted`, for a transaction that commits them. Raises `CommitFailedError` once if a partition
        was taken away after some of its records were handed out and not committed; and, without records or
        offsets, for records ``in_work``: the transaction may contain their results, or not.
        """
        self._raise_if_dropped()
        if not records and offsets is None and (lost := self.progress.uncommitted(self._cut_back)):
            # Without their offsets, the results of records that are left would count once more.
            raise _of_lost_records(lost)
        wanted = self.wanted(records, offsets)
        limit = Deadline.after_ms(METADATA_MS)
        former, undecided = self.queue.of_former_topics(wanted, self._reader.topic_ids, limit)
        if former:
            raise _of_former(former)
        if undecided:
            raise _undecided(undecided)
        self._raise_if_dropped()  # again: another thread may be closing the consumer
        # Only now, too: it may have given the records back before `wanted` was looked up.
        if not records and not offsets and (undone := in_work()):
            raise CommitFailedError(
                f"{partitions_named(undone)}: the last records may be in work as the consumer is closed, in "
                "another thread or where an exception or a signal has come in between, and the transaction "
                "may have results of them: abort it, or name the finished ones, if there are any"
            )
        self.progress.given_to_transaction(wanted)
        return wanted

    def _raise_if_dropped(self) -> None:
        if dropped := self.progress.take_dropped_uncommitted():
            raise CommitFailedError(
                f"{partitions_named(dropped)} went to others after records were handed out here and not "
                "committed, and they are read again. What was made of them must not count: abort the "
                "transaction, call seek_to_committed(), and read on"
            )


def _of_lost_records(topic_partitions: Iterable[TopicPartition]) -> CommitFailedError:
    return CommitFailedError(
        f"{partitions_named(topic_partitions)}: the log was cut back, and offsets of the records that are "
        "gone were not committed; seek to where to read on"
    )


def partitions_named(topic_partitions: Iterable[TopicPartition]) -> str:
    """The partitions for a message, in order."""
    return ", ".join(map(str, sorted(topic_partitions))) or "no partitions"
