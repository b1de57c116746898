"""`TransactionalProducer`: a `Producer` that shows its records, and a group's offsets with them, to
read_committed consumers together or not at all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from ..cluster.router import Router
from ..config.client_config import Bootstrap, ProducerConfig, TransactionConfig, configs_from
from ..config.properties import trimmed
from ..errors import ConfigError, DeadlineExceededError, KafkaError
from ..model import GroupMembership, OffsetToCommit, TopicPartition, checked_offset
from ..runtime.deadline import Deadline, Timeout
from .accumulating.encoded_columns import FormatLike
from .accumulating.partitioner import PartitionFunction
from .accumulating.records_in import Columns, RecordHeaders, Sendable
from .completion import OnError
from .delivery import ColumnsDelivery, Delivery
from .errors import (
    TransactionAbortableError,
    TransactionFatalError,
    TransactionStateError,
)
from .producer import Producer
from .sending.transaction import State, Transaction, TransactionEvent
from .sending.transaction_requests import OpenTransaction, TransactionSession, as_kafka_error

_LOG = logging.getLogger("spark_kafka_native")


class TransactionalProducer(Producer):
    """A producer that writes in transactions (KIP-98, KIP-890).

        with TransactionalProducer("localhost:9092", "orders-1") as producer:
            with producer.transaction():
                producer.send("orders", value=b"...")

    ``transaction`` is the transactional id, or a `TransactionConfig`; without it, ``transactional.id`` of a
    mapping counts, or the keyword ``transactional_id``. The rest is as `Producer` has it. The
    first transaction fences the last producer with the same ``transactional_id``. Records are sent as they
    come; `commit` delivers the rest and makes all of them visible, and raises where any of them failed. Of
    what may be raised, `TransactionAbortableError` says: `abort`, and do it again;
    `TransactionFatalError`: this producer is at its end; `DeadlineExceededError` of `commit`: call it again,
    as only the coordinator knows whether the transaction is committed. Thread-safe. What takes time takes at
    most ``max.block.ms``, unless a ``timeout`` is given: seconds, or a `Deadline`.
    """

    _transaction: Transaction

    def __init__(
        self,
        bootstrap: Bootstrap | None = None,
        transaction: TransactionConfig | str | None = None,
        producer: ProducerConfig | None = None,
        *,
        partitioner: PartitionFunction | None = None,
        on_error: OnError | None = None,
        router: Router | None = None,
        **settings: Any,
    ) -> None:
        wanted = _transaction(transaction, bootstrap, settings)
        config, how, transaction = configs_from(bootstrap, settings, producer or ProducerConfig, wanted)
        if (why := how.why_not_idempotent) is not None:
            raise ConfigError(
                "a transactional producer needs acks=all, retries and enable.idempotence (the defaults): "
                f"{why}"
            )
        if how.spill_dir is not None:
            raise ConfigError("spill.dir makes no sense in transactions: what is not written is aborted")
        if how.over_limit != "fail":
            raise ConfigError(
                f"over.limit={how.over_limit} can't be used in transactions: a transaction is committed with "
                "all of its records or not at all"
            )
        self._transaction = Transaction(transaction.transactional_id)
        # A commit and an append must not cross,
        self._gate = threading.RLock()
        # nor must two commits.
        self._calls = threading.RLock()
        self._taken = 0
        """Records of this transaction."""
        self._begun_by = 0
        """The thread that has begun it."""
        self._delivered_before = 0
        self._close_has_tried = False
        """True once `close` could not abort the transaction."""
        super().__init__(config, how, partitioner=partitioner, on_error=on_error, router=router)
        self._session = TransactionSession(
            self._router, transaction, self._transaction, self._fail, self._raise_if_closed
        )

    @property
    def state(self) -> State:
        """Where this producer stands."""
        return self._transaction.state

    def initialize(self, timeout: Timeout = None) -> None:
        """Take the transactional id: the last producer that had it is fenced, and its open transaction
        aborted. The first `begin` does it; call it earlier to read what that one has committed first.

        Raises `ConfigError` (a transaction timeout over the broker's maximum), `TransactionFatalError`,
        `BrokerError`, `DeadlineExceededError`, `ProducerClosedError`.
        """
        self._check_caller("initialize()")
        deadline = self._deadline(timeout)
        with self._holding(self._calls, "initialize", deadline):
            self._session.initialize(deadline)

    def begin(self, timeout: Timeout = None) -> None:
        """Begin a transaction. Raises `TransactionStateError` in one, and as `initialize`. An abort before
        that failed is tried again first; raises as `abort` then."""
        self._check_caller("begin()")
        deadline = self._deadline(timeout)
        with self._holding(self._calls, "begin", deadline):
            if self._transaction.state is State.ABORTING:
                self.abort(timeout=deadline)
            if self._transaction.state is State.FATAL:
                self._raise_failure("begin")
            self._raise_if_closed()
            self._session.initialize(deadline)
            version = self._session.next_version(deadline)
            with self._holding(self._gate, "begin", deadline):
                if self._transaction.state is State.READY:
                    self._begun_by = threading.get_ident()
                self._transaction.begin(version)
                self._taken = 0
                self._delivered_before = self._delivered_records
                if self._topics.closed:  # meanwhile: `close` has seen no transaction to abort
                    with suppress(TransactionStateError):  # it has, where it interrupted us
                        self._transaction.move(TransactionEvent.ABORT)
                        self._transaction.move(TransactionEvent.ABORTED)
                    self._raise_if_closed()

    def send(  # noqa: PLR0913 - as Producer's
        self,
        topic: str,
        value: bytes | str | None = None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: RecordHeaders | None = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """As `Producer.send`, in a transaction. One that raises makes the transaction abortable."""
        self._raise_if_callback("send() in a transaction")
        with self._gate:
            if self._transaction.state is not State.OPEN:
                self._require_open("send")
            try:
                delivery = super().send(
                    topic,
                    value,
                    key=key,
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                    headers=headers,
                    on_delivery=on_delivery,
                )
            except BaseException as error:
                self._transaction.failed(as_kafka_error(error))
                raise
            self._taken += 1
            return delivery

    def send_columns(
        self,
        columns: Columns,
        topic: str | None = None,
        partition: int | npt.NDArray[Any] | pa.Array | None = None,
        *,
        value_format: FormatLike | None = None,
        key_format: FormatLike | None = None,
    ) -> ColumnsDelivery:
        """As `Producer.send_columns`, in a transaction. One that raises makes the transaction abortable."""
        self._raise_if_callback("send_columns() in a transaction")
        with self._gate:
            self._require_open("send_columns")
            try:
                delivery = super().send_columns(
                    columns, topic, partition, value_format=value_format, key_format=key_format
                )
            except BaseException as error:
                self._transaction.failed(as_kafka_error(error))
                raise
            self._taken += len(delivery)
            return delivery

    def send_many(
        self, topic: str, records: Iterable[Sendable], *, partition: int | None = None
    ) -> ColumnsDelivery:
        """As `Producer.send_many`, in a transaction. One that raises makes the transaction abortable."""
        self._raise_if_callback("send_many() in a transaction")
        self._require_open("send_many")
        try:
            return super().send_many(topic, records, partition=partition)
        except BaseException as error:
            with self._gate:  # a commit that has begun meanwhile never had these records
                if self._transaction.state is State.OPEN:
                    self._transaction.failed(as_kafka_error(error))
            raise

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetToCommit],
        group: str | GroupMembership,
        timeout: Timeout = None,
    ) -> None:
        """Commit a group's offsets with the transaction: those of the next records to read.

        ``group`` identifies the member (KIP-447), or only the group's name where it has no members. With
        `GroupConsumer.group_metadata`, the offsets must be of partitions that the consumer has and not beyond
        what it handed out, and are committed with their leader epochs (KIP-320); also without offsets, raises
        `CommitFailedError` as `GroupConsumer.offsets_to_commit`, if partitions were taken away. In any other
        case neither is done: the coordinator looks at the member and its generation only. Raises
        `TransactionAbortableError` (the member was fenced, an ACL is missing), `TransactionFatalError`,
        `DeadlineExceededError`; the transaction can only be aborted then, as after a `TypeError` or a
        ValueError for an offset that is none.
        """
        member = GroupMembership(group_id=group) if isinstance(group, str) else group
        self._check_caller("send_offsets()")
        deadline = self._deadline(timeout)
        with self._holding(self._calls, "send_offsets", deadline):
            self._require_open("send_offsets")
            try:  # without the offsets its records must not count
                positions = {
                    TopicPartition(*tp): replace(one, offset=checked_offset(one.offset))
                    if isinstance(one, OffsetToCommit)
                    else OffsetToCommit(offset=checked_offset(one))
                    for tp, one in offsets.items()
                }
                given = {tp: one.offset for tp, one in positions.items()}
                member.check(given)  # also none: those of partitions that went to others are missing
            except BaseException as error:
                self._transaction.failed(as_kafka_error(error))
                raise
            if not positions:
                return
            for tp, epoch in member.leader_epochs(given).items():
                if positions[tp].leader_epoch < 0:
                    positions[tp] = replace(positions[tp], leader_epoch=epoch)
            self._session.send_offsets(member, positions, deadline)

    def commit(self, timeout: Timeout = None) -> None:
        """Deliver the records that were sent, and commit.

        Raises `TransactionAbortableError` where anything of it failed: `abort` then. After a
        `DeadlineExceededError`, call it again: it goes on where it was. `TransactionFatalError` says whether
        the transaction may be committed nevertheless (``possibly_committed``).
        """
        self._check_caller("commit()")
        deadline = self._deadline(timeout)
        with self._holding(self._calls, "commit", deadline):
            self._deliver("commit", deadline, TransactionEvent.FLUSHED)
            self._session.end(commit=True, deadline=deadline)

    def abort(self, timeout: Timeout = None) -> None:
        """Nothing of the transaction will be seen. After a `DeadlineExceededError`, call it again."""
        self._check_caller("abort()")
        deadline = self._deadline(timeout)
        with self._holding(self._calls, "abort", deadline):
            with self._holding(self._gate, "abort", deadline):
                self._transaction.move(TransactionEvent.ABORT)
            # Requests in flight must not arrive after the transaction has ended.
            if not (self._flush(deadline) and self._wait_until_quiet(deadline)):
                raise DeadlineExceededError("abort: some records are still under way; call it again")
            self._session.abort(deadline)

    def detach(self, timeout: Timeout = None) -> OpenTransaction | None:
        """Deliver the records and give the transaction away: any process ends it with the returned value
        and `end_transaction`, before the transaction timeout. None if nothing was sent: there is nothing to
        end.

        The producer can only be closed afterwards. Raises as `commit`.
        """
        self._check_caller("detach()")
        deadline = self._deadline(timeout)
        with self._holding(self._calls, "detach", deadline):
            self._deliver("detach", deadline, TransactionEvent.DETACHED)
            return OpenTransaction.of(self._transaction) if self._transaction.touched else None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction around a block: committed at its end, aborted where it raises."""
        has_begun = False
        try:
            self.begin()
            has_begun = True
            yield
            self.commit()
        except BaseException as error:
            # An interrupt may end `begin` after its last step. What another thread has begun is not ours.
            if not has_begun and (isinstance(error, KafkaError) or self._begun_by != threading.get_ident()):
                raise
            # Not where the coordinator may be committing: no abort is possible then.
            if self._transaction.state in (State.OPEN, State.FLUSHING, State.ABORTABLE):
                try:
                    self.abort()
                except KafkaError as error:
                    _LOG.warning("%s could not be aborted: %s", self._transaction, error)
            raise

    def close(self, timeout: Timeout = None) -> None:
        """Abort the open transaction, and end. One that was detached, or that may be committing, stays as it
        is. In a callback it aborts nothing: call it again outside of one. Harmless when closed."""
        super().close(timeout=None if timeout is None else self._deadline(timeout))
        if self._owns_router and not self._sender.running and not self._waiters.forked:
            self._close_router()  # again: a commit may have connected after the sender had failed

    def _end_open_work(self, timeout: Timeout) -> None:
        state = self._transaction.state
        if self._sender.is_current_thread:
            if state in (State.OPEN, State.ABORTABLE, State.ABORTING):
                _LOG.warning(
                    "%s stays open unless another thread ends it: close() in a callback can't abort it; "
                    "call it again outside of one",
                    self._transaction,
                )
            return
        # What an earlier `close` had no time to abort is not waited for again.
        aborting = state is State.ABORTING and (self._sender.running or not self._close_has_tried)
        if aborting or state in (State.OPEN, State.FLUSHING, State.ABORTABLE):
            try:
                self.abort(timeout=timeout)
            except TransactionStateError:
                return  # another thread has ended it meanwhile
            except KafkaError as error:
                self._close_has_tried = True
                _LOG.warning("%s stays open until its timeout: %s", self._transaction, error)

    def disown(self) -> None:
        """As `Producer.disown`. What another thread of the parent was just doing is not waited for."""
        self._gate, self._calls = threading.RLock(), threading.RLock()
        super().disown()

    # How it is done.

    def _require_open(self, what: str) -> None:
        state = self._transaction.state
        if state is State.OPEN:
            return
        self._raise_failure(what)
        self._raise_if_closed()
        raise TransactionStateError(
            f"transactional id {self._transaction.transactional_id}: can't {what}; the producer is "
            f"{state.value}"
        )

    def _raise_failure(self, what: str) -> None:
        """Raise the failure of the transaction or the producer, if there is one."""
        state, failure = self._transaction.state, self._transaction.failure
        name = f"transactional id {self._transaction.transactional_id}"
        if state is State.ABORTABLE:
            raise TransactionAbortableError(f"{name}: can't {what}, only abort: {failure}") from failure
        if state is State.FATAL:
            possibly = self._transaction.commit_asked
            if isinstance(failure, TransactionFatalError):
                possibly = failure.possibly_committed
            raise TransactionFatalError(f"{name}: can't {what}: {failure}", possibly) from failure

    @contextmanager
    def _holding(self, lock: threading.RLock, what: str, deadline: Deadline) -> Iterator[None]:
        """With ``lock``, which another thread may have for longer than there is time: it may be waiting for
        room, or for a coordinator."""
        try:
            if not lock.acquire(timeout=min(deadline.remaining_ms / 1000, threading.TIMEOUT_MAX)):
                raise DeadlineExceededError(
                    f"{what}: another thread was in send(), commit() or abort() all the time that there was; "
                    "call it again"
                )
            yield
        finally:
            with suppress(RuntimeError):  # it was not got; an interrupt may have kept us from hearing of it
                lock.release()

    def _deliver(self, what: str, deadline: Deadline, then: TransactionEvent) -> None:
        """Wait until all records are in the log, and make the move."""
        with self._holding(self._gate, what, deadline):
            self._raise_failure(what)
            if self._transaction.move(TransactionEvent.COMMIT) is State.COMMITTING:
                if then is not TransactionEvent.FLUSHED:
                    self._transaction.move(then)  # which can't be any more
                return
        if not self._flush(deadline):
            raise DeadlineExceededError(f"{what}: some records are still under way; call it again, or abort")
        if self._transaction.state is State.FLUSHING:
            delivered = self._delivered_records - self._delivered_before
            if delivered != self._taken:  # no matter why no failure was reported
                lost = KafkaError(f"{self._taken} records were sent, and {delivered} were confirmed")
                self._transaction.failed(lost, uncertain=True)
        self._transaction.check_topics(self._topics.topic_id)
        self._raise_failure(what)
        self._transaction.move(then)

    def _close_router(self) -> None:
        """Not for good: a commit that lost its answer asks again, even after the sender has failed."""
        self._router.close()

    def _deadline(self, timeout: Timeout) -> Deadline:
        return Deadline.of(timeout, self._config.max_block_ms)


def _transaction(
    given: TransactionConfig | str | None, bootstrap: Bootstrap | None, settings: dict[str, Any]
) -> TransactionConfig | type[TransactionConfig]:
    """What `configs_from` takes for ``given``; an id goes into ``settings``. Raises `ConfigError` where these
    or ``bootstrap`` have another one.
    """
    if given is None:
        return TransactionConfig
    name = given if isinstance(given, str) else given.transactional_id
    properties: Mapping[str, Any] = bootstrap if isinstance(bootstrap, Mapping) else {}
    others = [settings.get("transactional_id", name)]
    if "transactional.id" in properties:
        others.append(trimmed(str(properties["transactional.id"])))
    for other in others:
        if other != name:
            raise ConfigError(
                f"transactional.id is given twice, as {other!r} and as {name!r}: give one of them"
            )
    if not isinstance(given, str):
        return given
    settings["transactional_id"] = name
    return TransactionConfig
