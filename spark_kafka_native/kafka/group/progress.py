"""`Progress`: the offsets that a group consumer has handed out, and which of them a commit may contain."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..consumer.prefetch_buffer import AppliedReset
from ..errors import CommitFailedError, LogTruncatedError
from ..model import TopicPartition

Offsets = Mapping[TopicPartition, int]
Places = Mapping[TopicPartition, "tuple[_Partition | None, _Partition | None]"]
"""Those of `Progress.places`."""
NO_PLACES: Places = {}

MAX_GIVEN = 1_000
"""How many offsets of transactions are kept; the group has one of the last few."""


@dataclass(slots=True)
class _Partition:
    start: int
    """Where reading began, with this assignment or the last `seek`."""
    handed_out: int
    """The offset after the last record that was handed out."""
    committed: int | None
    """The group's committed offset; None if there is none to compare with (nothing committed, or a seek)."""
    given: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_GIVEN))
    """Those that were given to transactions; only the caller knows which transactions committed."""
    sought: bool = False
    """True if the caller has chosen ``start``."""
    kept: int | None = None
    """An offset from before the last `seek` that may be committed, too."""
    had: int = 0
    """Where the records end that the caller had before `close` gave them back: those that are done may be
    committed by name."""
    unsettled: int | None = None
    """Where records begin that were neither committed nor given, from before reading went back or was moved;
    None if there are none."""

    @property
    def end(self) -> int:
        """The last offset that may be committed."""
        return max(self.handed_out, self.had)

    @property
    def uncommitted_from(self) -> int | None:
        """Where the records begin that were handed out and neither committed nor given to a transaction; None
        if there are none.
        """
        if self.unsettled is not None:
            return self.unsettled
        settled = max(self.start, self.committed or 0, self.given[-1] if self.given else 0)
        return settled if self.handed_out > settled else None


@dataclass(slots=True)
class _Reset:
    """Where the reset policy went on, and what the group may have committed before and after: the same offset
    means other records then.
    """

    floor: int = 0
    """Nothing before it is in the log any more."""
    back: int | None = None
    """After it went back, until a commit: where the log went on that had lost the position, or the caller
    since."""
    before: frozenset[int | None] = frozenset()
    """Offsets that the group may still have from before it went back."""
    since: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_GIVEN))
    """Those that were given to transactions since: if the group has one of them, it is of the new log."""

    def go_back(self, offset: int, had: Iterable[int | None], start: int) -> None:
        """It went back to ``offset`` in a log that begins at ``start``; the group may have one of ``had``."""
        self.before |= {*had, *self.since}
        self.floor, self.back = start, offset
        self.since.clear()

    def place(self, topic_partition: TopicPartition, offset: int, *, committed: bool) -> int:
        """As `Progress.place`."""
        if self.back is not None and offset > self.back:
            if not committed:
                offset = self.back
            elif offset not in self.since:
                self.before |= {offset}
                offset = self.back
            elif offset in self.before:
                raise LogTruncatedError(topic_partition, offset, self.back)
        return max(offset, self.floor)


class Progress:
    """For each assigned partition: the offsets that were handed out and the group's committed offset.

    It decides what a commit may contain; it does no I/O. One for each consumer. Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._resets: dict[TopicPartition, _Reset] = {}
        self._begun: dict[TopicPartition, _Partition] = {}
        """The first object of each since it was assigned, or since reading went back: `sought` keeps it."""
        self._dropped_uncommitted: set[TopicPartition] = set()
        self.counted = 0
        """How often records have counted as handed out."""

    def begin(
        self, topic_partition: TopicPartition, start: int, committed: int | None, kept: int | None = None
    ) -> None:
        """Reading of a partition begins at ``start``; ``kept`` may be committed, too."""
        with self._lock:
            partition = _Partition(start, start, committed, kept=kept)
            self._partitions[topic_partition] = self._begun[topic_partition] = partition

    def handed_out(
        self, topic_partition: TopicPartition, from_offset: int, next_offset: int, *, counts: bool = False
    ) -> bool:
        """Everything in ``[from_offset, next_offset)`` was handed out. ``counts`` for `counted`.

        Returns False, and changes nothing, if reading goes back by that: see `go_back`.
        """
        with self._lock:
            partition = self._partitions.get(topic_partition)
            if partition is None:
                self.counted += counts
                return True
            if from_offset < partition.handed_out:
                return False
            reached = max(partition.handed_out, next_offset)
            # No call between these two: an interrupt comes before both or after both.
            self.counted += counts
            partition.handed_out = reached
            return True

    def go_back(
        self,
        topic_partition: TopicPartition,
        from_offset: int,
        next_offset: int,
        reset: AppliedReset | None = None,
        *,
        counts: bool = False,
    ) -> None:
        """As `handed_out`, where reading goes back, as ``auto.offset.reset`` has applied; ``reset`` is the
        last one of the partition.

        Commits go back with it: otherwise another member would continue at the old offset and skip the
        records that are written up to it.
        """
        with self._lock:
            partition = self._partitions[topic_partition]
            # Nothing was lost if the caller had chosen an offset that the log does not have.
            if reset is None or not (partition.sought and reset.lacked):
                had = partition.committed, *partition.given
                resets = self._resets.setdefault(topic_partition, _Reset())
                resets.go_back(from_offset, had, 0 if reset is None else reset.start)
            began = partition.uncommitted_from
            unsettled = None if began is None else min(began, from_offset)
            now = _Partition(from_offset, next_offset, None, unsettled=unsettled)
            self.counted += counts
            self._partitions[topic_partition] = now
            self._begun[topic_partition] = now

    def has_read_past(self, topic_partition: TopicPartition, offset: int) -> bool:
        """True if records from ``offset`` on were handed out since the partition was assigned or sought."""
        with self._lock:
            partition = self._partitions.get(topic_partition)
            return partition is not None and offset < partition.handed_out

    def skipped(self, topic_partition: TopicPartition, offset: int) -> None:
        """The log has lost the records that were read, and the reset policy went forward to ``offset``."""
        with self._lock:
            if topic_partition in self._partitions:
                self._resets.setdefault(topic_partition, _Reset()).floor = offset

    def place(self, topic_partition: TopicPartition, offset: int, *, committed: bool) -> int:
        """Where to begin anew with a partition instead of ``offset``, which the group has ``committed``, or
        where reading began. Once ``auto.offset.reset`` has applied, it must not apply again: `latest` would
        skip the records that were read since. And after reading went back, an offset that was committed
        before belongs to records that are lost.

        Raises `LogTruncatedError` if it was committed both before and after that.
        """
        with self._lock:
            reset = self._resets.get(topic_partition)
            return offset if reset is None else reset.place(topic_partition, offset, committed=committed)

    def allowed(self, offsets: Offsets) -> dict[TopicPartition, int]:
        """Those of the offsets that `check` lets pass."""
        with self._lock:
            at = self._partitions.get
            return {tp: offset for tp, offset in offsets.items() if self._allows(at(tp), offset)}

    @staticmethod
    def _allows(partition: _Partition | None, offset: int) -> bool:
        if partition is None:
            return False
        return partition.start <= offset <= partition.end or offset == partition.kept

    def _judged_by(self, topic_partition: TopicPartition, places: Places) -> _Partition | None:
        """A partition as it was at these `places`, if the caller has only sought since, else as it is now."""
        now = self._partitions.get(topic_partition)
        then, begun = places.get(topic_partition, (None, None))
        if now is None or then is None or begun is not self._begun[topic_partition]:
            return now
        return then

    def moved(self, positions: Offsets) -> set[TopicPartition]:
        """The partitions that are not read from where reading began any more, by their ``positions``."""
        with self._lock:
            return {
                topic_partition
                for topic_partition, position in positions.items()
                if (partition := self._partitions.get(topic_partition)) and position != partition.start
            }

    def given_back(self, topic_partition: TopicPartition, offset: int, *, had: bool = False) -> None:
        """Records from ``offset`` on did not reach the caller, although they count as handed out; they will
        be handed out again. If the caller ``had`` them, those that are done may still be committed.
        """
        with self._lock:
            partition = self._partitions.get(topic_partition)
            if partition is not None:
                if had:
                    partition.had = partition.end
                partition.handed_out = max(partition.start, min(partition.handed_out, offset))

    def sought(self, topic_partition: TopicPartition, offset: int, kept: int | None = None) -> None:
        """The caller continues at ``offset``, and may commit offsets before the last commit; and ``kept``.

        Uncommitted records are forgotten if it goes back to before all of them, as after an aborted
        transaction: they are handed out again. Otherwise a transaction may contain their results.
        """
        with self._lock:
            if (reset := self._resets.get(topic_partition)) is not None:
                # What the group had of a log that was lost is no place to begin at in the new one, either.
                reset.floor, reset.back = 0, None if reset.back is None else offset
            if (partition := self._partitions.get(topic_partition)) is not None:
                began = partition.uncommitted_from
                unsettled = None if began is None or offset <= began else began
                now = _Partition(offset, offset, None, sought=True, kept=kept, unsettled=unsettled)
                self._partitions[topic_partition] = now

    def to_keep(self, topic_partition: TopicPartition, offset: int, start: int | None) -> int | None:
        """The last offset up to ``offset`` that a commit may contain after a `seek` to there, if the group
        lacks it: the end of the records that were handed out, or else a ``start`` that is to be committed.
        """
        with self._lock:
            partition = self._partitions.get(topic_partition)
            done, committed = start, None
            if partition is not None:
                committed = partition.committed
                if partition.handed_out > partition.start:
                    done = partition.handed_out
            if done is None:
                return None
            kept = min(done, offset)
            return kept if committed is None or kept > committed else None

    def restart(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Reading will begin anew at the committed offsets; until then nothing of them can be committed.

        Also forgets which partitions were dropped: the transaction that used their records is aborted.
        """
        with self._lock:
            for topic_partition in topic_partitions:
                self._partitions.pop(topic_partition, None)
            self._dropped_uncommitted.clear()

    def drop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are no longer assigned."""
        with self._lock:
            for topic_partition in topic_partitions:
                self._resets.pop(topic_partition, None)
                self._begun.pop(topic_partition, None)
                partition = self._partitions.pop(topic_partition, None)
                if partition is not None and partition.uncommitted_from is not None:
                    self._dropped_uncommitted.add(topic_partition)

    def uncommitted(self, topic_partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those with records that were handed out and neither committed nor given to a transaction."""
        with self._lock:
            return {
                topic_partition
                for topic_partition in topic_partitions
                if (partition := self._partitions.get(topic_partition)) is not None
                and partition.uncommitted_from is not None
            }

    def take_dropped_uncommitted(self) -> frozenset[TopicPartition]:
        """The partitions that were dropped, since the last call, with records that were handed out and not
        committed: another member reads these records again.
        """
        with self._lock:
            found, self._dropped_uncommitted = self._dropped_uncommitted, set()
            return frozenset(found)

    def given_to_transaction(self, offsets: Offsets) -> None:
        """A transaction is going to commit them."""
        with self._lock:
            for topic_partition, offset in offsets.items():
                if (partition := self._partitions.get(topic_partition)) is not None:
                    partition.given.append(offset)
                    partition.unsettled = None
                if (reset := self._resets.get(topic_partition)) is not None and reset.back is not None:
                    reset.since.append(offset)

    def given_beyond(self, offsets: Offsets) -> set[TopicPartition]:
        """The partitions of which a later offset was given to a transaction: the group may have that."""
        with self._lock:
            return {
                topic_partition
                for topic_partition, offset in offsets.items()
                if (partition := self._partitions.get(topic_partition)) is not None
                and any(given > offset for given in partition.given)
            }

    def check(self, offsets: Offsets, places: Places = NO_PLACES) -> None:
        """Raises `CommitFailedError` for an offset outside the records that were handed out in the current
        assignment: they belong to an older generation, or were never read. A `seek` after the commit with
        these `places` was submitted does not matter.
        """
        with self._lock:
            for topic_partition, offset in offsets.items():
                partition = self._judged_by(topic_partition, places)
                if partition is None:
                    raise CommitFailedError(
                        f"{topic_partition} is not assigned to this consumer (any more): offset {offset} was "
                        "not committed, and another one may read the records before it again"
                    )
                if not self._allows(partition, offset):
                    if partition.sought:
                        raise CommitFailedError(
                            f"{topic_partition}: offset {offset} was not committed, as since the last seek "
                            f"only offsets {partition.start} to {partition.end} were read; commit "
                            "the records before it first"
                        )
                    raise CommitFailedError(
                        f"{topic_partition}: offset {offset} was not committed, as since the partition was "
                        f"assigned only offsets {partition.start} to {partition.end} were read; the "
                        "record is of an earlier assignment, and others may have gone on since"
                    )

    def ahead(self, offsets: Offsets, places: Places = NO_PLACES) -> dict[TopicPartition, int]:
        """The offsets that are ahead of the committed ones: a commit never goes back. ``places`` as for
        `check`.
        """
        with self._lock:
            found = {}
            for topic_partition, offset in offsets.items():
                partition = self._judged_by(topic_partition, places)
                if partition is None or partition.committed is None or offset > partition.committed:
                    found[topic_partition] = offset
            return found

    def spans(self, offsets: Offsets) -> dict[TopicPartition, tuple[int, int]]:
        """For each partition the offsets that committing ``offsets`` adds, from and until."""
        with self._lock:
            found = {}
            for topic_partition, offset in offsets.items():
                if (partition := self._partitions.get(topic_partition)) is not None:
                    begin = partition.start if partition.committed is None else partition.committed
                    found[topic_partition] = (min(begin, offset), offset)
            return found

    def places(self, offsets: Offsets) -> Places:
        """What `committed` takes: for each partition, other objects after it was moved."""
        with self._lock:
            return {tp: (self._partitions.get(tp), self._begun.get(tp)) for tp in offsets}

    def committed(self, offsets: Offsets, places: Places) -> None:
        """The coordinator has committed them; they had these `places` when that was asked for. It says
        nothing about the new place of a partition that was moved meanwhile, or about records that were given
        back: commits may go back there.
        """
        with self._lock:
            for topic_partition, offset in offsets.items():
                # After a `seek`, the former object still judges commits that were submitted before it.
                partition = self._judged_by(topic_partition, places)
                if partition is None or partition is not places[topic_partition][0]:
                    continue
                if offset <= partition.end:
                    partition.committed, partition.unsettled = offset, None
                    is_now = partition is self._partitions[topic_partition]
                    if is_now and (reset := self._resets.get(topic_partition)) is not None:
                        reset.back = None  # the group has none of before any more
