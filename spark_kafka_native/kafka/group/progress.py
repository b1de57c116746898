"""`Progress`: what of each partition was handed out in this assignment, and what the group has of it.

It decides what a commit may say; it does no I/O. Any thread may use it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..model import TopicPartition
from .errors import CommitFailedError


@dataclass(slots=True)
class _Partition:
    start: int
    """Where reading began, with this assignment or the last `seek`."""
    handed_out: int
    """The offset behind the last record that the caller was given."""
    committed: int | None
    """What the group has; None where that is not to be compared with (nothing, or the caller sought)."""
    told: int = 0
    """What was told for a transaction: whether it was committed, only the caller knows."""

    @property
    def open(self) -> bool:
        """Whether the caller was given records that it neither committed nor asked to commit."""
        return self.handed_out > max(self.start, self.committed or 0, self.told)


class Progress:
    """One for each consumer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._dropped_open: set[TopicPartition] = set()

    def begin(self, topic_partition: TopicPartition, start: int, committed: int | None) -> None:
        """A partition is read from ``start`` on."""
        with self._lock:
            self._partitions[topic_partition] = _Partition(start, start, committed)

    def handed_out(self, topic_partition: TopicPartition, from_offset: int, next_offset: int) -> bool:
        """The caller was given everything in ``[from_offset, next_offset)``.

        Returns whether reading has gone back, as ``auto.offset.reset`` says where the log lacks what was
        committed or read. Commits go back with it: others would go on from where the log was, and skip what
        has come up to there since.
        """
        with self._lock:
            partition = self._partitions.get(topic_partition)
            if partition is None:
                return False
            if back := from_offset < partition.handed_out:
                self._partitions[topic_partition] = _Partition(from_offset, next_offset, None)
            else:
                partition.handed_out = max(partition.handed_out, next_offset)
            return back

    def given_back(self, topic_partition: TopicPartition, offset: int) -> None:
        """The caller was not given what begins at ``offset`` after all, and gets it again."""
        with self._lock:
            partition = self._partitions.get(topic_partition)
            if partition is not None:
                partition.handed_out = max(partition.start, min(partition.handed_out, offset))

    def sought(self, topic_partition: TopicPartition, offset: int) -> None:
        """The caller goes on from ``offset``, and may commit what lies before the last commit."""
        with self._lock:
            if topic_partition in self._partitions:
                self._partitions[topic_partition] = _Partition(offset, offset, None)

    def restart(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They will be begun anew where the group has come to; until then nothing of them can be committed.

        What was made of their records counts no more, nor of others' that were dropped.
        """
        with self._lock:
            for topic_partition in topic_partitions:
                self._partitions.pop(topic_partition, None)
            self._dropped_open.clear()

    def drop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are read no more."""
        with self._lock:
            for topic_partition in topic_partitions:
                partition = self._partitions.pop(topic_partition, None)
                if partition is not None and partition.open:
                    self._dropped_open.add(topic_partition)

    def dropped_open(self) -> frozenset[TopicPartition]:
        """What was dropped, since this was asked last, after records that were handed out and not committed:
        others read them again.
        """
        with self._lock:
            found, self._dropped_open = self._dropped_open, set()
            return frozenset(found)

    def told(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A transaction is to commit them."""
        with self._lock:
            for topic_partition, offset in offsets.items():
                if (partition := self._partitions.get(topic_partition)) is not None:
                    partition.told = offset

    def check(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises `CommitFailedError` where an offset is not behind records that were handed out since the
        partition was assigned: they belong to an older generation, or were never read.
        """
        with self._lock:
            for topic_partition, offset in offsets.items():
                partition = self._partitions.get(topic_partition)
                if partition is None:
                    raise CommitFailedError(
                        f"{topic_partition} is not assigned to this consumer (any more): offset {offset} was "
                        "not committed, and another one may read the records before it again"
                    )
                if not partition.start <= offset <= partition.handed_out:
                    raise CommitFailedError(
                        f"{topic_partition}: offset {offset} was not committed, as since the partition was "
                        f"assigned only offsets {partition.start} to {partition.handed_out} were read; the "
                        "record is of an earlier assignment, and others may have gone on since"
                    )

    def ahead(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those that are ahead of what the group has: a commit never goes back."""
        with self._lock:
            found = {}
            for topic_partition, offset in offsets.items():
                partition = self._partitions.get(topic_partition)
                if partition is None or partition.committed is None or offset > partition.committed:
                    found[topic_partition] = offset
            return found

    def spans(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """What committing ``offsets`` adds to what the group has, or to where reading began."""
        with self._lock:
            found = {}
            for topic_partition, offset in offsets.items():
                if (partition := self._partitions.get(topic_partition)) is not None:
                    begin = partition.start if partition.committed is None else partition.committed
                    found[topic_partition] = (min(begin, offset), offset)
            return found

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group has them. What was on its way when the caller sought says nothing of what comes after."""
        with self._lock:
            for topic_partition, offset in offsets.items():
                partition = self._partitions.get(topic_partition)
                if partition is not None and partition.start <= offset <= partition.handed_out:
                    partition.committed = offset
