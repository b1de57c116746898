"""The methods of `GroupConsumer` that commit, and those that let a transaction commit for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from ..cluster.router import Router
from ..consumer.partition_reader import PartitionReader
from ..errors import ConfigError, DeadlineExceededError, KafkaError
from ..model import GroupMembership, Record, TopicPartition
from .callbacks import shown
from .commits import Commits
from .errors import CommitFailedError
from .group_config import GroupConfig
from .member import Member
from .progress import Progress


class GroupCommits(ABC):
    """Part of `GroupConsumer`, which sets what is declared here."""

    _router: Router
    _config: GroupConfig
    _progress: Progress
    _reader: PartitionReader
    _member: Member
    _commits: Commits

    @abstractmethod
    def _check_open(self) -> None: ...

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

    def commit_async(
        self, *records: Record, offsets: Mapping[TopicPartition, int] | None = None
    ) -> Future[None]:
        """As `commit`, in the background: the future ends when it has. Commits keep their order."""
        return self._commits.ask(self._wanted(records, offsets))

    def offsets_to_commit(
        self, *records: Record, offsets: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, int]:
        """What `commit` would commit, for `TransactionalProducer.send_offsets`: of each partition the offset
        of the next record to read.

        Raises `CommitFailedError` where a partition is not this consumer's any more, or has been another's
        since the record was read. Also, once, where a partition was taken away in between whose records were
        handed out, and told of in no commit: another member reads them again, and what this transaction made
        of them would count twice. The transaction must be aborted then. That does not move the consumer: what
        was read in it is handed out again only after `seek`.
        """
        self._check_open()
        if dropped := self._progress.dropped_open():
            raise CommitFailedError(
                f"{shown(dropped)} went to others after records were handed out here and not committed, "
                "and they are read again. What was made of them must not count: abort the transaction, "
                "seek back in the partitions that are still assigned, and read on"
            )
        wanted = self._wanted(records, offsets)
        self._progress.told(wanted)
        return wanted

    def _wanted(
        self, records: Iterable[Record], offsets: Mapping[TopicPartition, int] | None
    ) -> dict[TopicPartition, int]:
        """What these arguments of `commit` mean, if it may be committed."""
        self._check_open()
        wanted = dict(offsets or {})
        for record in records:
            tp = record.topic_partition
            wanted[tp] = max(wanted.get(tp, 0), record.offset + 1)
        if not records and offsets is None:
            wanted = self._handed_out(self._reader.partitions)
        elif offsets:  # they may be positions
            self._handed_out(offsets.keys() & self._reader.partitions.keys())
        self._progress.check(wanted)
        return wanted

    def group_metadata(self) -> GroupMembership:
        """Who this member is just now, for `TransactionalProducer.send_offsets`: the coordinator refuses the
        offsets of a member that it has replaced since (KIP-447).

        Raises `CommitFailedError` while it is no member: its partitions may be others' by now; `ConfigError`
        with automatic commits, which would count what the transaction may still abort.
        """
        self._check_open()
        if self._config.enable_auto_commit:
            raise ConfigError("offsets in transactions take enable_auto_commit=False: both would commit them")
        identity = self._member.identity()
        group_id = self._config.group_id
        if identity is None:
            raise CommitFailedError(
                f"this consumer is not in group {group_id} just now: it has not joined yet, or was too slow "
                "or not heard of, and its partitions may be others' by now. What it read must not count: "
                "abort the transaction, and read on"
            )
        return GroupMembership(
            group_id=group_id,
            generation_id=identity.generation_id,
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
        )

    def _handed_out(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each partition the offset behind what was handed out (and what is hidden after it)."""
        found = {}
        for tp in topic_partitions:
            offset = self._reader.position(tp)
            self._progress.handed_out(tp, offset, offset)
            found[tp] = offset
        return found
