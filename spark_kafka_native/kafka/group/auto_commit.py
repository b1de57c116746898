"""`AutoCommit`: commits what the caller is done with, now and then, without being asked. For the caller's
thread.

Done is what was handed out before the caller came back for more: not what it was given last.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable
from concurrent.futures import Future

from ..consumer.partition_reader import PartitionReader
from ..errors import KafkaError
from ..model import TopicPartition
from ..runtime.deadline import Deadline
from .commits import Commits
from .errors import CommitFailedError
from .group_config import GroupConfig
from .progress import Progress

_LOG = logging.getLogger("spark_kafka_native.group")


class AutoCommit:
    """Knows of what it was told is to be committed without being asked; nothing of it where that is off."""

    def __init__(
        self, config: GroupConfig, commits: Commits, reader: PartitionReader, progress: Progress
    ) -> None:
        self._enabled = config.enable_auto_commit
        self._interval_s = config.auto_commit_interval_ms / 1000
        self._commits = commits
        self._reader = reader
        self._progress = progress
        self._touched: set[TopicPartition] = set()
        self._starts: dict[TopicPartition, int] = {}
        self._asked: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, int] = {}
        self._due = time.monotonic() + self._interval_s

    def handed_out(self, topic_partition: TopicPartition, from_offset: int) -> None:
        """The caller is given what begins at ``from_offset``."""
        if self._enabled:
            self._touched.add(topic_partition)
            self._last[topic_partition] = from_offset

    def reached(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each partition the offset behind what was handed out and what is hidden after it (markers,
        aborted transactions, compaction): from now on a commit may say it.
        """
        found = {tp: self._reader.position(tp) for tp in topic_partitions}
        for topic_partition, offset in found.items():
            if self._progress.handed_out(topic_partition, offset, offset):
                self.forget([topic_partition])
        return found

    def started(self, topic_partition: TopicPartition, offset: int) -> None:
        """Reading begins at ``offset``, and nothing was committed: if the group is not told, whoever has the
        partition next may begin later, and skip what came in between.
        """
        if self._enabled:
            self._starts[topic_partition] = offset

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are read no more, or from elsewhere."""
        for topic_partition in topic_partitions:
            self._starts.pop(topic_partition, None)
        self.forget_handed_out(topic_partitions)

    def forget_handed_out(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """What was handed out of them is not done."""
        for topic_partition in topic_partitions:
            self._touched.discard(topic_partition)
            self._asked.pop(topic_partition, None)
            self._last.pop(topic_partition, None)

    def caller_is_back(self) -> None:
        """Everything that was handed out is done: commit it if it is time to."""
        self._last.clear()
        if not (self._touched or self._starts) or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._interval_s
        done = self._ask(all_done=True)
        if self._interval_s == 0 and done is not None:
            with contextlib.suppress(CommitFailedError):  # logged; what is not ours any more is taken away
                done.result()  # nothing else is handed out before

    def commit_now(self, deadline: Deadline, *, all_done: bool) -> None:
        """Commit what is done, and wait for it. A failure is logged: the records are read again.

        ``all_done``: also what was handed out last.
        """
        done = self._ask(all_done=all_done)
        if done is not None:
            with contextlib.suppress(KafkaError, TimeoutError):
                done.result(deadline.remaining_ms / 1000)

    def _ask(self, *, all_done: bool) -> Future[None] | None:
        read = self._reader.partitions.keys() - self._reader.recreated
        offsets = {tp: offset for tp, offset in self._starts.items() if tp in read}
        offsets |= self.reached(self._touched & read)
        if not all_done:
            offsets |= {tp: offset for tp, offset in self._last.items() if tp in offsets}
        wanted = {tp: offset for tp, offset in offsets.items() if offset > self._asked.get(tp, -1)}
        if not wanted:
            return None
        self._asked.update(wanted)
        done = self._commits.ask(wanted)
        done.add_done_callback(self._ended)
        return done

    def _ended(self, done: Future[None]) -> None:
        if (error := done.exception()) is not None:
            self._asked = {}  # the next one asks for it again
            _LOG.warning("committing what was read failed: %s", error)
