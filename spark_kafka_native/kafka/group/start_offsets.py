"""`StartOffsets`: where reading begins in assigned partitions, and which of them are paused. For the caller's
thread.

A partition begins at the group's committed offset, or else at the offset of ``auto_offset_reset``.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from ..cluster.offsets import resolve_offsets, try_resolve_offsets
from ..cluster.recreated_topics import find_recreated
from ..cluster.retry_policy import SAY_AFTER_S
from ..cluster.router import Router
from ..consumer.partition_reader import PartitionReader
from ..errors import (
    AuthenticationError,
    DeadlineExceededError,
    KafkaError,
    LogTruncatedError,
    NoCommittedOffsetError,
)
from ..model import OffsetAt, TopicPartition
from ..network.transport import READ, wait_for_streams
from ..runtime.background import Background
from ..runtime.deadline import Deadline
from ..runtime.log_throttle import LogThrottle
from ..runtime.retry import Backoff, is_retriable
from .commits import Commits, partitions_named
from .committed_offsets import committed_positions
from .group_config import GroupConfig

_THROTTLED_LOG = LogThrottle(logging.getLogger("spark_kafka_native.group"))

WAIT_MS = 1_000
"""The limit of the first wait of a read for start offsets. Without it, short reads would rarely find any."""
LOOK_MS = 50
"""The limit of later waits, while there is nothing else to read."""
FIRST_LOOK_MS = 3_000
"""The time in which the first attempt waits for leaders; it doubles with each attempt."""


@dataclass(slots=True)
class _Places:
    """The result of an attempt."""

    place: OffsetAt | None
    """Where to begin without a committed offset."""
    committed: dict[TopicPartition, int | None]
    topic_ids: dict[str, UUID]
    """The ids of the topics just before the committed offsets were asked for, as far as they are known."""
    epochs: dict[TopicPartition, int]
    """The leader epochs of the committed offsets."""
    found: dict[TopicPartition, int] = field(default_factory=dict)
    """The offsets of ``place``."""
    failed: dict[TopicPartition, KafkaError] = field(default_factory=dict)


@dataclass(slots=True)
class _Start:
    """Where reading of an assigned partition begins, or has begun. All but the first are of one that begins
    anew.
    """

    began: int | None = None
    """The offset with which reading began with this assignment, or with the last `seek`."""
    topic_id: UUID | None = None
    """The id of the topic that its former position belongs to, if it is known."""
    cut: LogTruncatedError | None = None
    """Why its former position is behind the end of the log, if so."""


class StartOffsets:
    """Adds partitions to the reader once their start offsets are known."""

    def __init__(
        self, router: Router, config: GroupConfig, reader: PartitionReader, commits: Commits
    ) -> None:
        self._router = router
        self._config = config
        self._reader = reader
        self._commits = commits
        self.missing = commits.without_start
        """Assigned partitions that are not being read yet."""
        self._paused: set[TopicPartition] = set()
        self._withheld: frozenset[TopicPartition] = frozenset()
        self._starts: dict[TopicPartition, _Start] = {}
        self._since = 0.0
        self._wait = Deadline.after_ms(0)
        self._background = Background("kafka-group")
        self._retry_at = 0.0
        self._refused_until: dict[TopicPartition, float] = {}
        """When partitions may be looked up again of which the leader has refused the login."""
        self._failures = 0

    def add(self, topic_partitions: Collection[TopicPartition]) -> None:
        """They were assigned, or begin anew at the committed offsets."""
        self.stop_looking()  # the group may have committed more since that lookup
        self._wait = Deadline.after_ms(WAIT_MS)
        if not self.missing:
            self._since = time.monotonic()
        self.missing.update(topic_partitions)
        topic_ids, cuts = self._reader.topic_ids, self._reader.truncated
        for tp in topic_partitions:
            start = self._start(tp)
            start.topic_id = topic_ids.get(tp, start.topic_id)
            if tp in self._reader.partitions:
                start.cut = cuts.get(tp)

    def remove(self, topic_partition: TopicPartition) -> None:
        """It is no longer read."""
        self.missing.discard(topic_partition)
        self._paused.discard(topic_partition)
        self._withheld -= {topic_partition}
        self._starts.pop(topic_partition, None)
        if topic_partition in self._reader.partitions:
            self._reader.remove(topic_partition)

    def seek(self, topic_partition: TopicPartition, offset: int, kept: int | None = None) -> None:
        """Continue, or begin, at ``offset``; ``kept`` is that of `Commits.sought`."""
        start = self._start(topic_partition)
        start.cut = None
        if topic_partition in self._commits.recreated - self._reader.recreated:
            # The reader has not learnt it yet, and would take the offset for one of the former topic.
            self.missing.add(topic_partition)
        if topic_partition in self.missing:
            if start.topic_id in self._commits.queue.former_ids:
                start.topic_id = None  # the caller means the new one
            # An interrupt may have left it half begun. The others stay: this may be called in a handler
            # that has interrupted the begin of one.
            if topic_partition in self._reader.partitions:
                self._reader.remove(topic_partition)
            self.begin(topic_partition, offset, None)
        else:
            start.began, start.topic_id = offset, None
            self._reader.seek(topic_partition, offset)
        self._commits.progress.sought(topic_partition, offset, kept)

    def pause(self, topic_partition: TopicPartition) -> None:
        """Hand out no records of it."""
        self._paused.add(topic_partition)
        self._hold_or_go_on(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        """Continue with it."""
        self._paused.discard(topic_partition)
        self._hold_or_go_on(topic_partition)

    def withhold(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Hand out no records of these, even if the caller resumes them, and continue with those that were
        withheld before and are not among them.
        """
        before, self._withheld = self._withheld, frozenset(topic_partitions)
        for topic_partition in before ^ self._withheld:
            self._hold_or_go_on(topic_partition)

    def offset_of(self, topic_partition: TopicPartition, place: OffsetAt) -> int:
        """The offset of ``place``; of a time after the last record, the end offset."""
        return self._offsets({topic_partition: place}, self._router.deadline())[topic_partition]

    def drop_missing(self) -> None:
        """Drop the fetched records of partitions that begin anew."""
        left = self.missing & self._reader.partitions.keys()
        self._commits.note_resets(left)
        for topic_partition in left:
            self._reader.remove(topic_partition)

    def find(self, deadline: Deadline) -> None:
        """Look up the start offsets of missing partitions in the background, and begin those that were found:
        a partition without a leader does not delay the others.

        Raises errors that are not retriable, `NoCommittedOffsetError`, `DeadlineExceededError` if nothing can
        be read for ``default_api_timeout_ms``. A refused login is repeated after ``metadata_max_age_ms``.
        """
        self.drop_missing()  # an interrupt may have left some half begun
        background = self._background
        background.settle()
        now = time.monotonic()
        wanted = frozenset(tp for tp in self.missing if self._refused_until.get(tp, now) <= now)
        if wanted and now >= self._retry_at:
            look = partial(self._look, background, wanted, self._failures)
            background.start("start offsets", look, self._looked)
        first = not self._failures and not self._wait.expired
        if (wakeup := background.wakeup) is not None and (first or not self._reader.partitions):
            until = self._wait if first else deadline.within_ms(LOOK_MS)
            wait_for_streams([(wakeup.fileno(), READ)], until)
            background.settle()
        if not self.missing:
            self.stop_looking()

    def stop_looking(self) -> None:
        """Discard the lookup in progress."""
        self._background.close()
        self._background = Background("kafka-group")
        self._retry_at, self._refused_until, self._failures = 0.0, {}, 0

    def _look(self, background: Background, wanted: Collection[TopicPartition], failures: int) -> _Places:
        """One attempt, in a background thread: it changes no state of this object."""
        limit = background.deadline(self._router.config.default_api_timeout_ms)
        place = self._config.auto_offset_reset.place(time.time() * 1000)
        # A leader that cannot be reached delays the offsets that were found: only briefly in the first
        # attempts.
        briefly = limit.within_ms(FIRST_LOOK_MS * 2.0 ** min(failures, 10))
        topics = {tp.topic for tp in wanted}
        topic_ids: dict[str, UUID] = {}
        with contextlib.suppress(KafkaError):
            # The known ids and leaders may be outdated. Before the offsets: the ids of a topic that is
            # recreated in between are then those of the former one, and the new one is not taken for it.
            known = self._router.refresh(topics, briefly).topics
            ids = {name: known[name].topic_id for name in topics if name in known}
            told = {name: topic_id for name, topic_id in ids.items() if topic_id is not None}
            # A broker that lags behind may give a former id, and the present one would be refused for it.
            lagging = find_recreated(self._router, told, refresh=True, deadline=briefly)
            topic_ids = {name: topic_id for name, topic_id in told.items() if name not in lagging}
        positions = committed_positions(self._router, self._config.group_id, wanted, limit)
        committed = {tp: None if one is None else one.offset for tp, one in positions.items()}
        epochs = {tp: one.leader_epoch for tp, one in positions.items() if one is not None}
        places = _Places(place, committed, topic_ids, epochs)
        new = [tp for tp, offset in places.committed.items() if offset is None and self._began(tp) is None]
        if place is None or not new:
            return places
        limit = limit.within_ms(FIRST_LOOK_MS * 2.0 ** min(failures, 10))
        level = self._config.isolation_level
        places.found, places.failed = try_resolve_offsets(
            self._router, dict.fromkeys(new, place), level, limit
        )
        return places

    def _looked(self, places: _Places | KafkaError) -> None:
        """Begin with the offsets that were found for partitions that are still missing."""
        # After a refused login: more of them may lock the account.
        until = time.monotonic() + self._router.config.metadata_max_age_ms / 1000
        if isinstance(places, KafkaError):
            if isinstance(places, AuthenticationError):
                self._retry_at = until
            self._failed(places)
            return
        new = [tp for tp in sorted(self.missing & places.committed.keys()) if not self._go_on(tp, places)]
        if new and places.place is None:
            raise NoCommittedOffsetError(self._config.group_id, new[0])
        for topic_partition in new:
            if (offset := places.found.get(topic_partition)) is not None:
                if places.place is not OffsetAt.EARLIEST:  # first: an interrupt may come in between
                    self._commits.started(topic_partition, offset)
                self.begin(topic_partition, offset, None)
        failed = {tp: places.failed[tp] for tp in new if tp in places.failed}
        refused = [tp for tp, error in failed.items() if isinstance(error, AuthenticationError)]
        self._refused_until |= dict.fromkeys(refused, until)
        if failed:
            self._failed(min(failed.values(), key=_passes))

    def _go_on(self, topic_partition: TopicPartition, places: _Places) -> bool:
        """Begin at the committed offset, or where this consumer began; False if there is neither."""
        committed = places.committed[topic_partition]
        # Not at the reset policy's offset again: the end of the log has moved by now.
        offset = self._began(topic_partition) if committed is None else committed
        if offset is not None:
            # Only with a committed offset: in a new group, a broker that lags behind may give a former id.
            topic_id = None if committed is None else places.topic_ids.get(topic_partition.topic)
            epoch = -1 if committed is None else places.epochs[topic_partition]
            try:
                begin = self._commits.progress.place(topic_partition, offset, committed=committed is not None)
            except LogTruncatedError as error:
                self._start(topic_partition).cut, begin = error, offset
            if begin == offset:
                self.begin(topic_partition, offset, committed, topic_id, epoch)
            else:
                self.begin(topic_partition, begin, committed if begin > offset else None, topic_id)
                self._commits.started(topic_partition, begin)
        return offset is not None

    def _failed(self, error: KafkaError) -> None:
        """Try again after a backoff; partitions that were found are read meanwhile."""
        if not _passes(error):
            raise error
        client, now = self._router.config, time.monotonic()
        backoff = Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms)
        self._retry_at = now + backoff.delay_ms(self._failures) / 1000
        self._failures += 1
        waited_s = now - self._since
        if waited_s * 1000 >= client.default_api_timeout_ms and not self._reader.partitions:
            self._since = now
            raise DeadlineExceededError(
                f"where to begin with {partitions_named(self.missing)} was not found in {waited_s:.0f} s; "
                f"the last failure: {error}"
            ) from error
        if waited_s >= SAY_AFTER_S:
            _THROTTLED_LOG.warning(
                self._config.group_id,
                "Nothing is read yet of %s in group %s, where to begin was not found in %.0f s: %s. It is "
                "tried again, and the other partitions are read meanwhile",
                partitions_named(self.missing), self._config.group_id, waited_s, error,
            )  # fmt: skip

    def begin(
        self,
        topic_partition: TopicPartition,
        offset: int,
        committed: int | None,
        topic_id: UUID | None = None,
        leader_epoch: int = -1,
    ) -> None:
        """Read a partition from ``offset`` on; ``committed`` is the group's committed offset, if any,
        ``topic_id`` the id that it belongs to and ``leader_epoch`` the one before it, if they are known.
        """
        start = self._start(topic_partition)
        start.began = offset
        self._commits.begun(topic_partition, offset, committed)
        topic_id, cut = start.topic_id or topic_id, start.cut
        error = None if cut is None or offset <= cut.end_offset else cut
        self._reader.add(topic_partition, offset, topic_id, leader_epoch, error=error)
        self.missing.discard(topic_partition)
        self._hold_or_go_on(topic_partition)

    def _start(self, topic_partition: TopicPartition) -> _Start:
        return self._starts.setdefault(topic_partition, _Start())

    def _began(self, topic_partition: TopicPartition) -> int | None:
        start = self._starts.get(topic_partition)
        return None if start is None else start.began

    def _hold_or_go_on(self, topic_partition: TopicPartition) -> None:
        if topic_partition in self.missing:
            return
        held = topic_partition in self._paused or topic_partition in self._withheld
        (self._reader.pause if held else self._reader.resume)(topic_partition)

    def _offsets(
        self, places: dict[TopicPartition, OffsetAt], deadline: Deadline
    ) -> dict[TopicPartition, int]:
        return resolve_offsets(self._router, places, self._config.isolation_level, deadline)


def _passes(error: KafkaError) -> bool:
    return isinstance(error, DeadlineExceededError) or is_retriable(error)
