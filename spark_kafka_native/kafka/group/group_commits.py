"""The methods of `GroupConsumer` that commit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from ..cluster.router import Router
from ..consumer.partition_reader import PartitionReader
from ..errors import CommitFailedError, DeadlineExceededError, KafkaError
from ..model import Record, TopicPartition
from .callbacks import shown
from .commits import AutoCommit, Commits, Progress
from .group_config import GroupConfig
from .late_close import LateClose, closed_late


class GroupCommits(LateClose):
    """Part of `GroupConsumer`, which sets what is declared here."""

    _router: Router
    _config: GroupConfig
    _progress: Progress
    _reader: PartitionReader
    _commits: Commits
    _auto: AutoCommit

    @abstractmethod
    def _check_open(self) -> None: ...

    @closed_late
    def commit(
        self,
        *records: Record,
        offsets: Mapping[TopicPartition, int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit ``records`` and all before them in their partitions, ``offsets`` (of the next record to
        read), or, without either, everything that was handed out.

        What lies before the last commit changes nothing: a commit never goes back, unless reading did: after
        `seek`, or as ``auto_offset_reset`` says.
        Raises `CommitFailedError` where a partition is not this consumer's any more, or has been another's
        since the record was read; `DeadlineExceededError` after ``timeout`` seconds (default:
        ``default_api_timeout_ms``).
        """
        done = self.commit_async(*records, offsets=offsets)
        limit_ms = self._router.config.default_api_timeout_ms
        try:
            done.result(limit_ms / 1000 + 1.0 if timeout is None else timeout)
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            raise DeadlineExceededError(
                f"committing in group {self._config.group_id} did not end in time; it goes on"
            ) from None

    @closed_late
    def commit_async(
        self, *records: Record, offsets: Mapping[TopicPartition, int] | None = None
    ) -> Future[None]:
        """As `commit`, in the background: the future ends when it has. Commits keep their order."""
        return self._commits.ask(self._wanted(records, offsets))

    def _wanted(
        self, records: Iterable[Record], offsets: Mapping[TopicPartition, int] | None
    ) -> dict[TopicPartition, int]:
        """What these arguments of `commit` mean, if it may be committed."""
        self._check_open()
        wanted = dict(offsets or {})
        for record in records:
            tp = record.topic_partition
            wanted[tp] = max(wanted.get(tp, 0), record.offset + 1)
        recreated = self._reader.recreated
        if not records and offsets is None:
            wanted = self._auto.reached(self._reader.partitions.keys() - recreated)
        elif outdated := recreated & wanted.keys():
            raise CommitFailedError(
                f"{shown(outdated)}: the topic was deleted and created again, and offsets of the former one "
                "were not committed for it; seek to where to begin with the new one"
            )
        elif offsets:  # they may be positions
            self._auto.reached(offsets.keys() & self._reader.partitions.keys())
        self._progress.check(wanted)
        return wanted
