"""The methods of `GroupConsumer` that say and change where it reads."""

from __future__ import annotations

from abc import abstractmethod

from ..cluster.router import Router
from ..consumer.fetched_records import FetchedRecords
from ..consumer.offsets import list_offsets
from ..consumer.partition_reader import PartitionReader
from ..model import OffsetAt, Record, TopicPartition
from ..runtime.deadline import Deadline
from .callbacks import shown
from .commits import AutoCommit, Commits, Progress
from .committed_offsets import committed_offsets
from .group_config import GroupConfig
from .late_close import LateClose, closed_late
from .start_offsets import StartOffsets

Taken = Record | FetchedRecords | list[Record]


class GroupPositions(LateClose):
    """Part of `GroupConsumer`, which sets what is declared here."""

    _router: Router
    _config: GroupConfig
    _progress: Progress
    _reader: PartitionReader
    _commits: Commits
    _auto: AutoCommit
    _starts: StartOffsets
    _taken: Taken | None

    @property
    @abstractmethod
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member has just now."""

    @abstractmethod
    def _check_open(self) -> None: ...

    @closed_late
    def position(self, topic_partition: TopicPartition) -> int | None:
        """The offset that is handed out next; None while it is not known where to start."""
        self._check_assigned(topic_partition)
        if topic_partition in self._starts.missing:
            return None
        return self._reader.position(topic_partition)

    @closed_late
    def committed(
        self, *topic_partitions: TopicPartition, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """What the group has committed for these partitions (none: for those of this member): the offset of
        the next record to read, None where it has committed nothing.

        Asks the coordinator, which waits for transactions that are still ending. Raises
        `DeadlineExceededError` after ``timeout`` seconds (default: ``default_api_timeout_ms``).
        """
        self._check_open()
        wanted = topic_partitions or tuple(self.assignment)
        if not wanted:
            return {}
        deadline = self._router.deadline(None if timeout is None else timeout * 1000)
        return committed_offsets(self._router, self._config.group_id, wanted, deadline)

    @closed_late
    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets lie between `position` and the end, for each partition of this member only; not
        for those whose `position` is None.

        The other members have their own: `Admin` tells the lag of the whole group, from what is committed.
        """
        positions = {tp: self._reader.position(tp) for tp in self._reader.partitions}
        places = dict.fromkeys(positions, OffsetAt.LATEST)
        ends = list_offsets(self._router, places, isolation_level=self._config.isolation_level)
        return {tp: max(0, (ends[tp].offset or 0) - position) for tp, position in positions.items()}

    @closed_late
    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAt) -> None:
        """Go on from ``offset`` in a partition of this member. It lasts while the member has the partition,
        and until the next commit nobody else knows of it: seek and commit to move the group.
        """
        self._check_assigned(topic_partition)
        if isinstance(offset, OffsetAt):
            offset = self._starts.offset_of(topic_partition, offset)
        self._auto.forget([topic_partition])
        self._taken = None
        self._starts.seek(topic_partition, offset)

    @closed_late
    def seek_to_committed(self) -> None:
        """Go back to what the group has committed, in all partitions of this member: what was handed out and
        not committed is handed out again. For after a transaction that was aborted, before the next read.

        Nothing that was read before is handed out any more. The committed offsets are asked for by the next
        read, which waits for transactions that are still ending, and which also follows a rebalance first:
        `position` is None until then. Where nothing is committed, reading goes on where it began with this
        assignment, or with the last `seek`. Commits that are under way are waited for.
        """
        self._check_open()
        partitions = self.assignment
        self._starts.add(partitions)  # first: wherever an interrupt comes, the next read goes back
        self._commits.drain(self._settling())
        self._taken = None
        self._auto.forget_handed_out(partitions)
        self._progress.restart(partitions)
        self._starts.drop_missing()

    @closed_late
    def pause(self, *topic_partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`, or until they are assigned anew."""
        for topic_partition in topic_partitions:
            self._check_assigned(topic_partition)
            self._starts.pause(topic_partition)

    @closed_late
    def resume(self, *topic_partitions: TopicPartition) -> None:
        """Go on with partitions that were paused."""
        for topic_partition in topic_partitions:
            self._check_assigned(topic_partition)
            self._starts.resume(topic_partition)

    def _settling(self) -> Deadline:
        """So long it waits for commits that somebody must not overtake."""
        return self._router.deadline(
            min(self._router.config.default_api_timeout_ms, self._config.max_poll_interval_ms / 2)
        )

    def _check_assigned(self, topic_partition: TopicPartition) -> None:
        if topic_partition not in self.assignment:
            raise ValueError(
                f"{topic_partition} is not assigned to this consumer: {shown(self.assignment)} are"
            )
