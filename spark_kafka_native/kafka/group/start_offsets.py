"""`StartOffsets`: where to begin with the partitions that were assigned. For the caller's thread.

From what the group has committed, else from where ``auto_offset_reset`` says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable

from ..cluster.router import Router
from ..consumer.offsets import list_places
from ..consumer.partition_reader import PartitionReader
from ..errors import DeadlineExceededError
from ..model import OffsetAt, TopicPartition
from ..network.deadline import Deadline
from .auto_commit import AutoCommit
from .committed import committed_offsets
from .errors import NoCommittedOffsetError
from .group_config import GroupConfig
from .progress import Progress

_LOG = logging.getLogger("spark_kafka_native.group")

MIN_FIND_MS = 1_000
"""A read that may take less looks for start offsets for so long, or it would never find any."""


class StartOffsets:
    """Adds partitions to the reader once it is known where to begin."""

    def __init__(
        self,
        router: Router,
        config: GroupConfig,
        reader: PartitionReader,
        progress: Progress,
        auto: AutoCommit,
    ) -> None:
        self._router = router
        self._config = config
        self._reader = reader
        self._progress = progress
        self._auto = auto
        self.missing: set[TopicPartition] = set()
        """Assigned, and not being read yet."""
        self._paused: set[TopicPartition] = set()
        self._withheld: frozenset[TopicPartition] = frozenset()
        self._began: dict[TopicPartition, int] = {}
        """Where reading began with this assignment, or with the last `seek`."""
        self._since = 0.0

    def add(self, topic_partitions: Collection[TopicPartition]) -> None:
        """They were assigned, or are to begin anew where the group has come to."""
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
            self._begin(topic_partition, offset, None)
        else:
            self._began[topic_partition] = offset
            self._reader.seek(topic_partition, offset)
            self._progress.sought(topic_partition, offset)

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
        """Look up where to begin with what is missing, and begin; in vain, the next read tries again.

        Raises what no other try helps with, `DeadlineExceededError` when it took ``default_api_timeout_ms``,
        `NoCommittedOffsetError`.
        """
        self.drop_missing()  # an interrupt may have left some half begun
        limit_ms = self._router.config.default_api_timeout_ms
        left_ms = limit_ms - (time.monotonic() - self._since) * 1000
        wait_ms = max(MIN_FIND_MS, min(deadline.remaining_ms, left_ms))
        try:
            self._find(self._router.deadline(wait_ms))
        except DeadlineExceededError as error:
            if left_ms <= MIN_FIND_MS:
                self._since = time.monotonic()
                raise
            _LOG.warning("%s; it is tried again", error)

    def _find(self, deadline: Deadline) -> None:
        committed = committed_offsets(self._router, self._config.group_id, self.missing, deadline)
        for topic_partition, offset in committed.items():
            if offset is not None:  # those do not wait for a leader that the others may lack
                self._begin(topic_partition, offset, offset)
        for topic_partition in self.missing & self._began.keys():
            # Not anew by the reset policy: the log's end is elsewhere by now.
            self._begin(topic_partition, self._began[topic_partition], None)
        new = sorted(self.missing)
        place = self._config.auto_offset_reset.place(time.time() * 1000)
        if new and place is None:
            raise NoCommittedOffsetError(self._config.group_id, new[0])
        if not new or place is None:
            return
        for topic_partition, offset in self._offsets(dict.fromkeys(new, place), deadline).items():
            self._begin(topic_partition, offset, None)
            if place is not OffsetAt.EARLIEST:
                self._auto.started(topic_partition, offset)

    def _begin(self, topic_partition: TopicPartition, offset: int, committed: int | None) -> None:
        self._began[topic_partition] = offset
        self._progress.begin(topic_partition, offset, committed)
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
        return list_places(self._router, places, self._config.isolation_level, deadline)
