"""`StartOffsets`: where to begin with the partitions that were assigned. For the caller's thread.

From what the group has committed, else from where ``auto_offset_reset`` says.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from ..cluster.retry_policy import SAY_AFTER_S
from ..cluster.router import Router
from ..consumer.background import Background
from ..consumer.offsets import resolve_offsets, try_resolve_offsets
from ..consumer.partition_reader import PartitionReader
from ..errors import DeadlineExceededError, KafkaError, NoCommittedOffsetError
from ..model import OffsetAt, TopicPartition
from ..network.transport import READ, wait_for_streams
from ..runtime.deadline import Deadline
from ..runtime.log_throttle import LogThrottle
from ..runtime.retry import Backoff, is_retriable
from .commits import Commits, partitions_named
from .committed_offsets import committed_offsets
from .group_config import GroupConfig

_THROTTLED_LOG = LogThrottle(logging.getLogger("spark_kafka_native.group"))

WAIT_MS = 1_000
"""A read waits so long for start offsets before it goes on without them, or it would hardly ever find any."""
LOOK_MS = 50
"""And so long at a time then, while there is nothing else to read."""
FIRST_LOOK_MS = 3_000
"""So long the first attempt waits for leaders, each further one twice as long."""


@dataclass(slots=True)
class _Places:
    """What an attempt has found."""

    place: OffsetAt | None
    """Where to begin without a committed offset."""
    committed: dict[TopicPartition, int | None]
    found: dict[TopicPartition, int] = field(default_factory=dict)
    """Where ``place`` is."""
    failed: dict[TopicPartition, KafkaError] = field(default_factory=dict)


class StartOffsets:
    """Adds partitions to the reader once it is known where to begin."""

    def __init__(
        self, router: Router, config: GroupConfig, reader: PartitionReader, commits: Commits
    ) -> None:
        self._router = router
        self._config = config
        self._reader = reader
        self._commits = commits
        self.missing: set[TopicPartition] = set()
        """Assigned, and not being read yet."""
        self._paused: set[TopicPartition] = set()
        self._withheld: frozenset[TopicPartition] = frozenset()
        self._began: dict[TopicPartition, int] = {}
        """Where reading began with this assignment, or with the last `seek`."""
        self._since = 0.0
        self._wait = Deadline.after_ms(0)
        self._background = Background()
        self._retry_at = 0.0
        self._failures = 0

    def add(self, topic_partitions: Collection[TopicPartition]) -> None:
        """They were assigned, or are to begin anew where the group has come to."""
        self.stop_looking()  # the group may have gone on since
        self._wait = Deadline.after_ms(WAIT_MS)
        if not self.missing:
            self._since = time.monotonic()
        self.missing.update(topic_partitions)

    def remove(self, topic_partition: TopicPartition) -> None:
        """It is read no more."""
        self.missing.discard(topic_partition)
        self._paused.discard(topic_partition)
        self._withheld -= {topic_partition}
        self._began.pop(topic_partition, None)
        if topic_partition in self._reader.partitions:
            self._reader.remove(topic_partition)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Go on, or begin, at ``offset``."""
        if topic_partition in self.missing:
            self.begin(topic_partition, offset, None)
        else:
            self._began[topic_partition] = offset
            self._reader.seek(topic_partition, offset)
            self._commits.progress.sought(topic_partition, offset)

    def pause(self, topic_partition: TopicPartition) -> None:
        """Hand out nothing of it."""
        self._paused.add(topic_partition)
        self._hold_or_go_on(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        """Go on with it."""
        self._paused.discard(topic_partition)
        self._hold_or_go_on(topic_partition)

    def withhold(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these, whoever resumes them, and go on with those that were withheld before and
        are not among them.
        """
        before, self._withheld = self._withheld, frozenset(topic_partitions)
        for topic_partition in before ^ self._withheld:
            self._hold_or_go_on(topic_partition)

    def offset_of(self, topic_partition: TopicPartition, place: OffsetAt) -> int:
        """The offset of a place: of a time after the last record, the end."""
        return self._offsets({topic_partition: place}, self._router.deadline())[topic_partition]

    def drop_missing(self) -> None:
        """Drop what was fetched of those that are to begin anew."""
        for topic_partition in self.missing & self._reader.partitions.keys():
            self._reader.remove(topic_partition)

    def find(self, deadline: Deadline) -> None:
        """Look up where to begin with what is missing, in the background, and begin with what was found: a
        partition that has no leader holds up no other.

        Raises what no other try helps with, `NoCommittedOffsetError`, `DeadlineExceededError` where nothing
        can be read for ``default_api_timeout_ms``.
        """
        self.drop_missing()  # an interrupt may have left some half begun
        background = self._background
        background.settle()
        if self.missing and time.monotonic() >= self._retry_at:
            look = partial(self._look, background, frozenset(self.missing), self._failures)
            background.start("start offsets", look, self._looked)
        first = not self._failures and not self._wait.expired
        if (wakeup := background.wakeup) is not None and (first or not self._reader.partitions):
            until = self._wait if first else deadline.within_ms(LOOK_MS)
            wait_for_streams([(wakeup.fileno(), READ)], until)
            background.settle()
        if not self.missing:
            self.stop_looking()

    def stop_looking(self) -> None:
        """What is being looked up counts no more."""
        self._background.close()
        self._background = Background()
        self._retry_at, self._failures = 0.0, 0

    def _look(self, background: Background, wanted: Collection[TopicPartition], failures: int) -> _Places:
        """One attempt, in a thread: it changes nothing here."""
        limit = background.deadline(self._router.config.default_api_timeout_ms)
        place = self._config.auto_offset_reset.place(time.time() * 1000)
        places = _Places(place, committed_offsets(self._router, self._config.group_id, wanted, limit))
        new = [tp for tp, offset in places.committed.items() if offset is None and tp not in self._began]
        if place is None or not new:
            return places
        if failures:  # what is known of the leaders may be outdated
            with contextlib.suppress(KafkaError):
                self._router.refresh({tp.topic for tp in new}, limit)
        # What is found has to wait for a leader that can't be reached: not for long at first.
        limit = limit.within_ms(FIRST_LOOK_MS * 2.0 ** min(failures, 10))
        level = self._config.isolation_level
        places.found, places.failed = try_resolve_offsets(
            self._router, dict.fromkeys(new, place), level, limit
        )
        return places

    def _looked(self, places: _Places | KafkaError) -> None:
        """Begin with what was found and is still missing."""
        if isinstance(places, KafkaError):
            self._failed(places)
            return
        new = [tp for tp in sorted(self.missing & places.committed.keys()) if not self._go_on(tp, places)]
        if new and places.place is None:
            raise NoCommittedOffsetError(self._config.group_id, new[0])
        for topic_partition in new:
            if (offset := places.found.get(topic_partition)) is not None:
                self.begin(topic_partition, offset, None)
                if places.place is not OffsetAt.EARLIEST:
                    self._commits.started(topic_partition, offset)
        if failed := [places.failed[tp] for tp in new if tp in places.failed]:
            self._failed(min(failed, key=_passes))

    def _go_on(self, topic_partition: TopicPartition, places: _Places) -> bool:
        """Begin where the group has come to, or this consumer; False where neither has begun."""
        committed = places.committed[topic_partition]
        # Not anew by the reset policy: the log's end is elsewhere by now.
        offset = self._began.get(topic_partition) if committed is None else committed
        if offset is not None:
            self.begin(topic_partition, offset, committed)
        return offset is not None

    def _failed(self, error: KafkaError) -> None:
        """Try again a little later; what was found is read meanwhile."""
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

    def begin(self, topic_partition: TopicPartition, offset: int, committed: int | None) -> None:
        """Read a partition from ``offset`` on; ``committed`` is the group's committed offset, if any."""
        self._began[topic_partition] = offset
        self._commits.progress.begin(topic_partition, offset, committed)
        self._reader.add(topic_partition, offset)
        self.missing.discard(topic_partition)
        self._hold_or_go_on(topic_partition)

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
