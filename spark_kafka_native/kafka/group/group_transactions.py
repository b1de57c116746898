"""The methods of `GroupConsumer` that let a transaction commit for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ..errors import CommitFailedError, ConfigError, ConsumerClosedError
from ..model import GroupMembership, Record, TopicPartition
from .callbacks import shown
from .group_commits import GroupCommits
from .group_positions import GroupPositions
from .late_close import closed_late
from .member import Member

if TYPE_CHECKING:
    from ..producer.transactional_producer import TransactionalProducer


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMembership(GroupMembership):
    """That of a consumer in this process, which knows what it has and what it has handed out."""

    checked_by: Callable[[Mapping[TopicPartition, int]], object] = field(compare=False, repr=False)

    def check(self, offsets: Mapping[TopicPartition, int]) -> None:
        """As `GroupMembership.check`: raises `CommitFailedError` as `GroupTransactions.offsets_to_commit`."""
        self.checked_by(offsets)

    def __reduce__(self) -> tuple[Callable[[], GroupMembership], tuple[()]]:
        """Another process has no such consumer: there it is a membership like any other."""
        plain = partial(
            GroupMembership,
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
        )
        return plain, ()


class GroupTransactions(GroupCommits, GroupPositions):
    """Part of `GroupConsumer`, which sets what is declared here."""

    _member: Member

    @contextmanager
    def transaction(self, producer: TransactionalProducer) -> Iterator[None]:
        """A transaction of ``producer`` around a block, which commits what this consumer has handed out, too.

            fetched = consumer.read()
            with consumer.transaction(producer):
                producer.send("bills", value=...)

        Where anything raises, also the commit, the transaction is aborted, and the consumer goes back to
        what is committed (`seek_to_committed`): the next read hands out the same again. Raises what the block
        raises, and as `TransactionalProducer.begin`, `offsets_to_commit`, `group_metadata`,
        `TransactionalProducer.send_offsets` and ``commit``.
        """
        self._check_manual()
        try:
            with producer.transaction():
                yield
                producer.send_offsets(self.offsets_to_commit(), self.group_metadata())
        except BaseException:
            with suppress(ConsumerClosedError):
                self.seek_to_committed()
            raise

    @closed_late
    def offsets_to_commit(
        self, *records: Record, offsets: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, int]:
        """What `commit` would commit, for `TransactionalProducer.send_offsets`: of each partition the offset
        of the next record to read.

        Raises `CommitFailedError` where a partition is not this consumer's any more, or has been another's
        since the record was read. Also, once, where a partition was taken away in between whose records were
        handed out, and told of in no commit: another member reads them again, and what this transaction made
        of them would count twice. The transaction must be aborted then. That does not move the consumer: what
        was read in it is handed out again only after `seek_to_committed`.
        """
        self._check_open()
        if dropped := self._progress.dropped_open():
            raise CommitFailedError(
                f"{shown(dropped)} went to others after records were handed out here and not committed, "
                "and they are read again. What was made of them must not count: abort the transaction, "
                "call seek_to_committed(), and read on"
            )
        wanted = self._wanted(records, offsets)
        self._progress.told(wanted)
        return wanted

    @closed_late
    def group_metadata(self) -> GroupMembership:
        """Who this member is just now, for `TransactionalProducer.send_offsets`: the coordinator refuses the
        offsets of a member that it has replaced since (KIP-447). What is told with it is checked as by
        `offsets_to_commit`: nobody else knows which partitions a member has.

        Raises `CommitFailedError` while it is no member: its partitions may be others' by now; `ConfigError`
        with automatic commits, which would count what the transaction may still abort.
        """
        self._check_open()
        self._check_manual()
        identity = self._member.identity()
        group_id = self._config.group_id
        if identity is None:
            raise CommitFailedError(
                f"this consumer is not in group {group_id} just now: it has not joined yet, or was too slow "
                "or not heard of, and its partitions may be others' by now. What it read must not count: "
                "abort the transaction, call seek_to_committed(), and read on"
            )
        return OwnMembership(
            checked_by=lambda offsets: self.offsets_to_commit(offsets=offsets),
            group_id=group_id,
            generation_id=identity.generation_id,
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
        )

    def _check_manual(self) -> None:
        if self._config.enable_auto_commit:
            raise ConfigError("offsets in transactions take enable_auto_commit=False: both would commit them")
