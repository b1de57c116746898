"""`Transaction`: where a transactional producer stands, as one table; what a coordinator's answer means, as
another. Sans-IO.

Callers move it (`begin`, `commit`, `abort` ...), and so does the sender's thread (`failed`, `fatal`): each
move is one step under a lock of its own. Nothing here waits or sends.

There are two protocols, never mixed within one transaction. In version 1 (KIP-98) partitions and groups are
added to a transaction before they are written to, and the epoch stays: a delayed EndTxn would end a *later*
transaction (seen on Kafka 4.3), so each transaction gets a fresh epoch from InitProducerId. In version 2
(KIP-890) writing adds, and EndTxn raises the epoch.

Sources: KIP-98, KIP-360, KIP-447, KIP-588, KIP-890, Java's ``TransactionManager``, Jepsen's report on
Bufstream 0.1.0.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

from ...error_code import ErrorCode
from ...errors import KafkaError
from ...model import TopicPartition
from ...protocol.api.transactions import EndTxnRequest, InitProducerIdRequest
from ...protocol.message import Request
from ..accumulating.batch import ProducerIdentity
from ..errors import TransactionStateError
from .idempotence import ProducerId


class State(enum.Enum):
    """Where a transactional producer stands."""

    NEW = "not initialized yet"
    READY = "between two transactions"
    OPEN = "in a transaction"
    FLUSHING = "about to commit: what was sent is waited for"
    COMMITTING = "committing: the coordinator may have been told"
    ABORTABLE = "in a transaction that can only be aborted"
    ABORTING = "aborting"
    DETACHED = "given away: another process ends its transaction"
    FATAL = "at its end: make a new producer"


class TransactionEvent(enum.Enum):
    """What moves it."""

    INITIALIZED = "initialize"
    BEGIN = "begin"
    FAILED = "fail"
    COMMIT = "commit"
    FLUSHED = "end the transaction"
    COMMITTED = "be committed"
    ABORT = "abort"
    ABORTED = "be aborted"
    DETACHED = "detach"
    FATAL = "end"


TRANSITIONS = {
    (State.NEW, TransactionEvent.INITIALIZED): State.READY,
    (State.READY, TransactionEvent.INITIALIZED): State.READY,
    (State.READY, TransactionEvent.BEGIN): State.OPEN,
    (State.READY, TransactionEvent.FAILED): State.READY,
    (State.OPEN, TransactionEvent.FAILED): State.ABORTABLE,
    (State.OPEN, TransactionEvent.COMMIT): State.FLUSHING,
    (State.OPEN, TransactionEvent.ABORT): State.ABORTING,
    (State.FLUSHING, TransactionEvent.COMMIT): State.FLUSHING,
    (State.FLUSHING, TransactionEvent.FAILED): State.ABORTABLE,
    (State.FLUSHING, TransactionEvent.ABORT): State.ABORTING,
    (State.FLUSHING, TransactionEvent.FLUSHED): State.COMMITTING,
    (State.FLUSHING, TransactionEvent.DETACHED): State.DETACHED,
    # The coordinator may be committing: nothing but asking again can tell, and no abort is possible.
    (State.COMMITTING, TransactionEvent.COMMIT): State.COMMITTING,
    (State.COMMITTING, TransactionEvent.COMMITTED): State.READY,
    (State.COMMITTING, TransactionEvent.FAILED): State.ABORTABLE,
    (State.ABORTABLE, TransactionEvent.FAILED): State.ABORTABLE,
    (State.ABORTABLE, TransactionEvent.ABORT): State.ABORTING,
    (State.ABORTING, TransactionEvent.FAILED): State.ABORTING,
    (State.ABORTING, TransactionEvent.ABORT): State.ABORTING,
    (State.ABORTING, TransactionEvent.ABORTED): State.READY,
    (State.DETACHED, TransactionEvent.FAILED): State.DETACHED,
    **{(state, TransactionEvent.FATAL): State.FATAL for state in State},
    # The coordinator has ended it, regardless of the error that ended the producer meanwhile.
    (State.FATAL, TransactionEvent.COMMITTED): State.FATAL,
    (State.FATAL, TransactionEvent.ABORTED): State.FATAL,
    (State.FATAL, TransactionEvent.FAILED): State.FATAL,
}
"""Other transitions are refused: `TransactionStateError`."""


class Meaning(enum.Enum):
    """What a coordinator's answer means."""

    DONE = "it is done"
    RETRY = "the same once more"
    ABORTABLE = "the transaction can only be aborted; another one may follow"
    FATAL = "the producer is at its end"


_RETRIED = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
_ABORTABLE = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    }
)
_OF_ONE_API: dict[tuple[type[Request[Any]], ErrorCode], Meaning] = {
    # Its outcome is not known. The same EndTxn once more does no harm, and brings the answer.
    (EndTxnRequest, ErrorCode.UNKNOWN_SERVER_ERROR): Meaning.RETRY,
    # There is nothing left that could be aborted.
    (EndTxnRequest, ErrorCode.UNKNOWN_PRODUCER_ID): Meaning.FATAL,
    (EndTxnRequest, ErrorCode.INVALID_PRODUCER_ID_MAPPING): Meaning.FATAL,
    **{(InitProducerIdRequest, code): Meaning.FATAL for code in _ABORTABLE},
}


_WITHOUT_EFFECT = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


def is_open(code: ErrorCode) -> bool:
    """True if a request that was answered with ``code`` may have been applied nevertheless: a coordinator
    that loses its partition, or waits for its replicas in vain, may have written the decision to its log."""
    return code in _RETRIED | {ErrorCode.UNKNOWN_SERVER_ERROR} and code not in _WITHOUT_EFFECT


def judge_answer(request: type[Request[Any]], code: ErrorCode) -> Meaning:
    """What ``code`` means in an answer to ``request``. A code that is not listed ends the producer."""
    if code is ErrorCode.NONE:
        return Meaning.DONE
    own = _OF_ONE_API.get((request, code))
    if own is not None:
        return own
    if code in _RETRIED:
        return Meaning.RETRY
    return Meaning.ABORTABLE if code in _ABORTABLE else Meaning.FATAL


class Transaction:
    """The transaction of one producer, if it has one now."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.producer_id = ProducerId(transactional_id)
        self.version = 2
        """The protocol of the present transaction."""
        self.failure: KafkaError | None = None
        """Why it can only be aborted, or why the producer has ended."""
        self.touched = False
        """True if a broker may know of it: only then is there something to end."""
        self.uncertain = False
        """True if something of it may still arrive at a broker."""
        self.commit_asked = False
        """True if the coordinator may have been asked to commit it, and its answer is not known."""
        self.epoch_used = False
        """True if the next transaction needs a fresh epoch."""
        self.lock = threading.RLock()
        self._state = State.NEW
        self._added: set[TopicPartition] = set()
        self._wanted: set[TopicPartition] = set()
        self._written: dict[str, UUID] = {}
        """The topics that it has written to, and the id of each (`wrote`)."""

    def __repr__(self) -> str:
        return f"<Transaction of {self.transactional_id}, version {self.version}: {self._state.value}>"

    @property
    def state(self) -> State:
        """Where the producer stands."""
        return self._state

    def move(self, event: TransactionEvent) -> State:
        """Make the move; returns the new state. Raises `TransactionStateError` for what can't be now."""
        with self.lock:
            return self._move(event)

    def begin(self, version: int) -> None:
        """A transaction begins, in this version of the protocol."""
        with self.lock:
            self._move(TransactionEvent.BEGIN)
            self.version = version
            self.failure = None
            self.touched = self.uncertain = self.commit_asked = False
            self._added.clear()
            self._wanted.clear()
            self._written = {}  # another one, by which `may_write` knows its transaction

    def renewed(self, identity: ProducerIdentity) -> None:
        """The coordinator has given a fresh epoch. Between transactions: the sender has nothing that it could
        use it for."""
        self.producer_id.received(identity)
        self.epoch_used = False

    def failed(self, error: KafkaError, *, uncertain: bool = False) -> None:
        """Something of it was not written, for ``error``: it can only be aborted. The first one counts.

        ``uncertain``: it may be written after all, or still arrive.
        """
        with self.lock:
            self._move(TransactionEvent.FAILED)
            self.failure = self.failure or error
            self.uncertain = self.uncertain or uncertain

    def fatal(self, error: KafkaError) -> None:
        """The producer has ended, for ``error``."""
        with self.lock:
            if self._state is not State.FATAL:
                self._move(TransactionEvent.FATAL)
                self.failure = error

    # For the sender.

    @property
    def sending(self) -> bool:
        """True if batches may be sent."""
        return self._state in (State.OPEN, State.FLUSHING)

    @property
    def discarding(self) -> bool:
        """True if batches that wait are to be given up: their transaction will be aborted."""
        return self._state in (State.ABORTABLE, State.ABORTING)

    def admits(self, topic_partition: TopicPartition) -> bool:
        """True if a batch may be sent to ``topic_partition`` now. If it has to be added first, that is noted
        for `take_wanted`."""
        if not self.sending:
            return False
        if self.version != 1 or topic_partition in self._added:
            return True
        self._wanted.add(topic_partition)
        return False

    def wrote(self, topic_ids: Mapping[str, UUID]) -> None:
        """Records were sent to these topics by name, or were confirmed by id.

        Not before a leader has confirmed an id does it count: the first metadata answer may be that of a
        broker which lags behind. By name no leader says which topic it has written to, and the id known then
        counts.
        """
        for topic, topic_id in topic_ids.items():
            if self.may_write(topic, topic_id):
                self._written[topic] = topic_id

    def may_write(self, topic: str, topic_id: UUID | None) -> bool:
        """False if the topic that has the name now is not the one that it has written to: then it fails.

        Those records are gone, and a commit would be half of it. ``topic_id`` is no id that one broker has
        given once, while it lagged behind (`KnownTopicId`).
        """
        written = self._written
        if written.get(topic, topic_id) == topic_id or topic_id is None:
            return True
        why = f"topic {topic} has another id than at the begin of the transaction: it was created again"
        with self.lock:
            # While the coordinator may be committing, nothing can be taken back; and the next transaction may
            # have begun meanwhile. Only here: for each batch, the sender would wait for a lock of a thread
            # that runs a signal handler, which waits for the sender.
            if self.sending and written is self._written:
                self.failed(KafkaError(why))
        return False

    def check_topics(self, topic_id: Callable[[str], UUID | None]) -> None:
        """It fails if one of the topics that it has written to was created again; ``topic_id`` says the
        present ids."""
        for topic in list(self._written):
            self.may_write(topic, topic_id(topic))

    def take_wanted(self) -> list[TopicPartition]:
        """The partitions that are to be added next."""
        wanted = sorted(self._wanted)
        self._wanted.clear()
        return wanted

    def added(self, topic_partitions: Collection[TopicPartition]) -> None:
        """The coordinator has added these.

        Requests noted for them meanwhile are dropped: the answer to another one could come after the commit,
        and count for the next transaction, which would write without having added them.
        """
        self._added.update(topic_partitions)
        self._wanted.difference_update(topic_partitions)

    def _move(self, event: TransactionEvent) -> State:
        # A signal handler may change the state between any two calls: look up the state that is replaced.
        before = found = None
        while before is not self._state:
            before = self._state
            found = TRANSITIONS.get((before, event))
        if found is None:
            why = f": {self.failure}" if self.failure is not None else ""
            raise TransactionStateError(
                f"transactional id {self.transactional_id}: can't {event.value}; the producer is "
                f"{self._state.value}{why}"
            )
        self._state = found
        return found
