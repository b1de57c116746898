"""What a transactional producer asks coordinators: build, send, read. Each function retries what may be
retried until its deadline, and raises what the answer means otherwise. `TransactionSession` asks for one
producer and moves its `Transaction` accordingly.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from ...cluster.coordinators import ask_coordinator, find_coordinator, retry_at_coordinator
from ...cluster.describe_configs import describe_broker_configs
from ...cluster.router import CoordinatorKey, Router
from ...cluster.split_commit import split_commit
from ...config.client_config import TransactionConfig
from ...error_code import ErrorCode
from ...errors import (
    BrokerError,
    ConfigError,
    IncompleteResponseError,
    KafkaError,
    NetworkError,
    SecurityError,
    UnsupportedVersionError,
)
from ...model import GroupMembership, OffsetToCommit, TopicPartition
from ...protocol.api.transactions import (
    LAST_END_TXN_OF_VERSION_1,
    LAST_TXN_OFFSET_COMMIT_OF_VERSION_1,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ...protocol.message import Request, Response
from ...runtime.deadline import Deadline
from ..accumulating.batch import ProducerIdentity
from ..errors import TransactionAbortableError, TransactionFatalError
from .transaction import Meaning, State, Transaction, TransactionEvent, is_open, judge_answer

R = TypeVar("R", bound=Response)
T = TypeVar("T")

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_FEATURE = "transaction.version"
_OLD_INIT = 2
"""The last version of InitProducerId that can't raise the epoch of a producer (before Kafka 2.5, KIP-360)."""


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A transaction as any process can end it: plain data. ``version`` is that of its protocol."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int

    @classmethod
    def of(cls, transaction: Transaction) -> Self:
        """The present one of a producer."""
        identity = transaction.producer_id.current
        assert identity is not None, "it has one before it begins"
        return cls(
            transactional_id=transaction.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            version=transaction.version,
        )


class TransactionSession:
    """A producer's transactions, as coordinators see them: it asks, and notes in the producer's `Transaction`
    what the responses mean.

    One thread at a time, and none while records are taken in. ``fail`` ends the producer for good. Once that
    is closed, ``raise_if_closed`` keeps it from taking the transactional id.
    """

    def __init__(
        self,
        router: Router,
        settings: TransactionConfig,
        transaction: Transaction,
        fail: Callable[[KafkaError], None],
        raise_if_closed: Callable[[], None],
    ) -> None:
        self._router = router
        self._settings = settings
        self._transaction = transaction
        self._fail = fail
        self._raise_if_closed = raise_if_closed

    def initialize(self, deadline: Deadline) -> None:
        """Take the transactional id, unless that was done."""
        if self._transaction.state is State.NEW:
            self._renew(None, deadline)

    def next_version(self, deadline: Deadline) -> int:
        """The version of the protocol for the next transaction; that one has an epoch of its own."""
        transaction, settings = self._transaction, self._settings
        if transaction.state is State.READY and transaction.epoch_used:
            self._renew(transaction.producer_id.current, deadline)
        return self._guarded(
            lambda: find_version(
                self._router, settings.transactional_id, settings.transaction_version, deadline
            )
        )

    def send_offsets(
        self, group: GroupMembership, offsets: Mapping[TopicPartition, OffsetToCommit], deadline: Deadline
    ) -> None:
        """Write a group's offsets into the transaction. What it raises makes that abortable."""
        transaction = self._transaction
        asked = OpenTransaction.of(transaction)
        transaction.touched = True

        def send() -> None:
            if asked.version == 1:
                add_offsets(self._router, asked, group.group_id, deadline)
            commit_offsets_in(self._router, asked, group, offsets, deadline)

        try:
            self._guarded(send)
        except (TransactionAbortableError, TransactionFatalError):
            raise
        except BaseException as error:
            transaction.failed(as_kafka_error(error), uncertain=True)
            raise

    def end(self, *, commit: bool, deadline: Deadline) -> None:
        """Have the coordinator end the transaction."""
        transaction, identity = self._transaction, None
        if transaction.touched:
            asked_before = transaction.commit_asked
            transaction.commit_asked = asked_before or commit
            # An interrupt from here on leaves the identity by which the same is asked again.
            transaction.epoch_used = True
            identity = self._guarded(
                lambda: end_transaction(
                    self._router,
                    OpenTransaction.of(transaction),
                    commit=commit,
                    deadline=deadline,
                    asked_before=asked_before,
                )
            )
        transaction.move(TransactionEvent.COMMITTED if commit else TransactionEvent.ABORTED)
        transaction.commit_asked = False
        if identity is not None:
            transaction.renewed(identity)

    def abort(self, deadline: Deadline) -> None:
        """Abort it; nothing of it is on its way any more, as far as this is known."""
        if self._transaction.version == 1 and self._transaction.uncertain:
            self._fence(deadline)
        else:
            self.end(commit=False, deadline=deadline)

    def _fence(self, deadline: Deadline) -> None:
        """Abort in version 1 where something may still arrive: an abort marker of this epoch would let it
        in (KAFKA-14053). The coordinator fences the epoch instead, and this producer with it."""
        transaction = self._transaction
        try:
            transaction.renewed(self._init(transaction.producer_id.current, deadline))
        except TransactionFatalError as error:
            if not (isinstance(error.__cause__, BrokerError) and error.__cause__.error_code in _FENCED):
                self._die(error)
                raise
            cause = transaction.failure
            ended = TransactionFatalError(
                "the transaction was aborted, and its producer fenced with it, as some of its records may "
                f"still have been under way ({cause}): make a new producer"
            )
            ended.__cause__ = cause
            self._die(ended)
            return
        transaction.move(TransactionEvent.ABORTED)

    def _renew(self, identity: ProducerIdentity | None, deadline: Deadline) -> None:
        """A fresh epoch from the coordinator."""
        self._transaction.renewed(self._guarded(lambda: self._init(identity, deadline)))
        self._transaction.move(TransactionEvent.INITIALIZED)

    def _init(self, identity: ProducerIdentity | None, deadline: Deadline) -> ProducerIdentity:
        settings = self._settings
        # With an identity it fences no successor, and `close` itself aborts with it.
        check = self._raise_if_closed if identity is None else None
        name, timeout_ms = settings.transactional_id, settings.transaction_timeout_ms
        return init_producer_id(self._router, name, timeout_ms, identity, deadline, check)

    def _guarded(self, ask: Callable[[], T]) -> T:
        """``ask`` a coordinator; what its response means for the producer is noted."""
        try:
            return ask()
        except TransactionAbortableError as error:
            self._transaction.failed(error)
            raise
        except TransactionFatalError as error:
            self._die(error)
            raise

    def _die(self, error: KafkaError) -> None:
        self._transaction.fatal(error)
        self._fail(error)


def as_kafka_error(error: BaseException) -> KafkaError:
    """``error`` as the failure of a transaction."""
    return error if isinstance(error, KafkaError) else KafkaError(repr(error))


def find_version(router: Router, transactional_id: str, most: int, deadline: Deadline) -> int:
    """The protocol that the next transaction is written in: 2 where the whole cluster has it, else 1."""
    key = CoordinatorKey.transaction(transactional_id)

    def look() -> int:
        connection = router.connection(find_coordinator(router, key, deadline), deadline)
        level = connection.negotiated.features.get(_FEATURE, 0)
        has_2 = level >= 2 and connection.version_of(EndTxnRequest) > LAST_END_TXN_OF_VERSION_1
        if not has_2 and connection.version_of(InitProducerIdRequest) <= _OLD_INIT:
            raise UnsupportedVersionError(
                f"{connection.address} is too old for transactions of this client: they need Kafka 2.5 or "
                "later (InitProducerId version 3)"
            )
        return min(most, 2 if has_2 else 1)

    return retry_at_coordinator(router, key, look, f"asking for the coordinator of {key}", deadline)


def init_producer_id(
    router: Router,
    transactional_id: str,
    timeout_ms: int,
    identity: ProducerIdentity | None,
    deadline: Deadline,
    check: Callable[[], None] | None = None,
) -> ProducerIdentity:
    """A fresh identity. Without ``identity`` the last producer with the transactional id is fenced,
    and its open transaction aborted; with it, only if that producer is not fenced itself (KIP-360).

    Raises `ConfigError` for a transaction timeout over the broker's maximum, `TransactionFatalError`, and the
    errors of ``check``, which is called before each attempt and before its request is sent.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1 if identity is None else identity.producer_id,
        producer_epoch=-1 if identity is None else identity.producer_epoch,
    )
    key = CoordinatorKey.transaction(transactional_id)

    def read(response: InitProducerIdResponse) -> ProducerIdentity:
        if response.error_code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            allowed = _max_timeout_ms(router, key, deadline)
            raise ConfigError(
                f"transaction.timeout.ms={timeout_ms} is over what the broker allows "
                f"(transaction.max.timeout.ms={allowed}): lower the one or raise the other"
            )
        _check(InitProducerIdRequest, response.error_code, f"InitProducerId for {key}", "Write")
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    return _ask(router, key, request, read, deadline, check=check)


def add_partitions(
    router: Router,
    transaction: OpenTransaction,
    topic_partitions: Collection[TopicPartition],
    deadline: Deadline,
) -> None:
    """Version 1: these partitions are about to be written to."""
    key = CoordinatorKey.transaction(transaction.transactional_id)
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in topic_partitions:
        topics[topic].append(partition)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transaction.transactional_id,
        v3_and_below_producer_id=transaction.producer_id,
        v3_and_below_producer_epoch=transaction.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()
        ],
    )

    def read(response: AddPartitionsToTxnResponse) -> None:
        codes = {
            TopicPartition(topic.name, one.partition_index): one.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        }
        unknown = {tp.topic for tp, code in codes.items() if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        if unknown:
            with contextlib.suppress(KafkaError):
                router.refresh(unknown, deadline)  # they may be gone, or have fewer partitions
        where = f"AddPartitionsToTxn for {key}"
        _check_all(AddPartitionsToTxnRequest, codes, topic_partitions, where, "Write")

    _ask(router, key, request, read, deadline)


def add_offsets(router: Router, transaction: OpenTransaction, group_id: str, deadline: Deadline) -> None:
    """Version 1: offsets of this group are about to be committed."""
    key = CoordinatorKey.transaction(transaction.transactional_id)
    request = AddOffsetsToTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        group_id=group_id,
    )
    where = f"AddOffsetsToTxn of group {group_id} for {key}"
    _ask(
        router,
        key,
        request,
        lambda response: _check(AddOffsetsToTxnRequest, response.error_code, where, "Read"),
        deadline,
    )


def commit_offsets_in(
    router: Router,
    transaction: OpenTransaction,
    group: GroupMembership,
    offsets: Mapping[TopicPartition, OffsetToCommit],
    deadline: Deadline,
) -> None:
    """Write a group's offsets into the transaction: they count once it is committed. Many thousands of them
    take several requests: after an error, those of earlier ones are in the transaction; it must be aborted.
    """
    for part in split_commit(group.group_id, offsets):
        _commit_part(router, transaction, group, part, deadline)


def _commit_part(
    router: Router,
    transaction: OpenTransaction,
    group: GroupMembership,
    offsets: Mapping[TopicPartition, OffsetToCommit],
    deadline: Deadline,
) -> None:
    key = CoordinatorKey.group(group.group_id)
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, partition), position in offsets.items():
        topics[topic].append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=position.offset,
                committed_leader_epoch=position.leader_epoch,
                committed_metadata=position.metadata,
            )
        )
    request = TxnOffsetCommitRequest(
        transactional_id=transaction.transactional_id,
        group_id=group.group_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=some) for name, some in topics.items()],
    )

    def read(response: TxnOffsetCommitResponse) -> None:
        codes = {
            TopicPartition(topic.name, one.partition_index): one.error_code
            for topic in response.topics
            for one in topic.partitions
        }
        where = f"TxnOffsetCommit to {key} for transactional id {transaction.transactional_id}"
        _check_all(TxnOffsetCommitRequest, codes, offsets, where, "Read")

    at_most = LAST_TXN_OFFSET_COMMIT_OF_VERSION_1 if transaction.version == 1 else None
    _ask(router, key, request, read, deadline, at_most=at_most)


def end_transaction(
    router: Router,
    transaction: OpenTransaction,
    *,
    commit: bool,
    deadline: Deadline | None = None,
    asked_before: bool = False,
) -> ProducerIdentity | None:
    """Commit or abort ``transaction``, from whichever process. It may be asked again: an answer that is lost
    is asked for until the coordinator gives it.

    Returns the identity of the next transaction, None where InitProducerId has to bring it. Aborting one that
    has ended is no error. Raises `TransactionAbortableError` or `TransactionFatalError` where the coordinator
    says that it is not committed (``possibly_committed``: it may be, after all), and
    `DeadlineExceededError` where it says nothing: the outcome is open then, and only another call can tell,
    with ``asked_before``: an earlier call may have committed it.
    """
    limit = deadline or router.deadline()
    key = CoordinatorKey.transaction(transaction.transactional_id)
    request = EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        committed=commit,
    )
    lost: list[KafkaError] = [KafkaError("an earlier call")] if asked_before else []

    def read(response: EndTxnResponse) -> ProducerIdentity | None:
        if not commit and response.error_code is ErrorCode.INVALID_TXN_STATE:
            return None  # there is none: never begun, or aborted by its timeout
        where = f"EndTxn ({'commit' if commit else 'abort'}) for {key}"
        if is_open(response.error_code):
            lost.append(BrokerError(response.error_code, where))
        _check(EndTxnRequest, response.error_code, where, "Write", possibly_committed=commit and bool(lost))
        if transaction.version == 1 or response.producer_id < 0:
            return None
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    at_most = LAST_END_TXN_OF_VERSION_1 if transaction.version == 1 else None
    try:
        return _ask(router, key, request, read, limit, at_most=at_most, lost=lost)
    except (SecurityError, ConfigError) as error:
        if commit and lost:
            error.add_note("an earlier attempt had no answer, and may have committed it: commit again")
        raise


def _ask(  # noqa: PLR0913 - of a helper that all of them share
    router: Router,
    key: CoordinatorKey,
    request: Request[R],
    read: Callable[[R], T],
    deadline: Deadline,
    *,
    at_most: int | None = None,
    lost: list[KafkaError] | None = None,
    check: Callable[[], None] | None = None,
) -> T:
    """``read`` of the coordinator's answer; ``lost`` gets each failure after which the request may have been
    applied. ``check`` is called before each attempt and before its request is sent."""

    def attempt() -> T:
        if check is not None:
            check()
        try:
            if check is not None:  # finding the coordinator and connecting to it may take long
                router.connection(find_coordinator(router, key, deadline), deadline)
                check()
            response = ask_coordinator(router, key, request, deadline, at_most=at_most)
        except BrokerError as error:  # of the look-up of the coordinator
            if not lost and judge_answer(type(request), error.error_code) is Meaning.ABORTABLE:
                raise _abortable(error) from error
            raise
        except NetworkError as error:
            if lost is not None:
                lost.append(error)
            raise
        return read(response)

    what = f"{request.api_name()} to the coordinator of {key}"
    return retry_at_coordinator(router, key, attempt, what, deadline)


def _check_all(
    request: type[Request[Any]],
    codes: Mapping[TopicPartition, ErrorCode],
    wanted: Collection[TopicPartition],
    where: str,
    operation: str,
) -> None:
    """Raises for the gravest of the answers, and for one that is missing."""
    order = [Meaning.FATAL, Meaning.ABORTABLE, Meaning.RETRY, Meaning.DONE]

    def rank(code: ErrorCode) -> tuple[int, bool]:
        # Merely not attempted, as another one was refused: that one says why, and if to try again.
        is_bystander = code is ErrorCode.OPERATION_NOT_ATTEMPTED
        meaning = Meaning.RETRY if is_bystander else judge_answer(request, code)
        return order.index(meaning), is_bystander

    ranked = sorted(((codes[tp], tp) for tp in wanted if tp in codes), key=lambda one: rank(one[0]))
    for code, tp in ranked[:1]:
        _check(request, code, f"{where}, {tp}", operation)
    missing = [tp for tp in wanted if tp not in codes]
    if missing:
        raise IncompleteResponseError(f"{where}: the answer says nothing of {missing[0]}")


def _check(
    request: type[Request[Any]],
    code: ErrorCode,
    where: str,
    operation: str,
    *,
    possibly_committed: bool = False,
) -> None:
    """Raise what ``code`` means: something that is retried, or one of the two ends."""
    meaning = judge_answer(request, code)
    if meaning is Meaning.DONE:
        return
    cause = BrokerError(code, where, operation=operation)
    if meaning is Meaning.RETRY:
        raise cause if code.retriable else IncompleteResponseError(str(cause))
    if meaning is Meaning.ABORTABLE and not possibly_committed:
        raise _abortable(cause) from cause
    hint = "; an earlier attempt had no answer, and may have committed it" if possibly_committed else ""
    raise TransactionFatalError(f"{cause}{hint}", possibly_committed) from cause


def _abortable(cause: BrokerError) -> TransactionAbortableError:
    return TransactionAbortableError(f"{cause}: abort the transaction and begin another")


def _max_timeout_ms(router: Router, key: CoordinatorKey, deadline: Deadline) -> str:
    """What the broker allows; describing its configuration takes an ACL."""
    name = "transaction.max.timeout.ms"
    try:
        configs = describe_broker_configs(router, find_coordinator(router, key, deadline), deadline)
    except KafkaError:
        return "unknown: it takes an ACL for DescribeConfigs on the cluster"
    return configs.get(name) or "unknown"
