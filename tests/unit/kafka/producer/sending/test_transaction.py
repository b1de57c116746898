"""The transactional producer's table, with literals: every state, every event, every code."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import KafkaError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import TransactionStateError
from spark_kafka_native.kafka.producer.sending import transaction as transactions
from spark_kafka_native.kafka.producer.sending.transaction import (
    Meaning,
    State,
    Transaction,
    TransactionEvent,
    judge_answer,
)
from spark_kafka_native.kafka.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
E = ErrorCode
ALL = (
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
)
WAYS: dict[str, list[TransactionEvent]] = {
    "NEW": [],
    "READY": [TransactionEvent.INITIALIZED],
    "OPEN": [TransactionEvent.INITIALIZED, TransactionEvent.BEGIN],
    "FLUSHING": [TransactionEvent.INITIALIZED, TransactionEvent.BEGIN, TransactionEvent.COMMIT],
    "COMMITTING": [
        TransactionEvent.INITIALIZED,
        TransactionEvent.BEGIN,
        TransactionEvent.COMMIT,
        TransactionEvent.FLUSHED,
    ],
    "ABORTABLE": [TransactionEvent.INITIALIZED, TransactionEvent.BEGIN, TransactionEvent.FAILED],
    "ABORTING": [TransactionEvent.INITIALIZED, TransactionEvent.BEGIN, TransactionEvent.ABORT],
    "DETACHED": [
        TransactionEvent.INITIALIZED,
        TransactionEvent.BEGIN,
        TransactionEvent.COMMIT,
        TransactionEvent.DETACHED,
    ],
    "FATAL": [TransactionEvent.FATAL],
}
TABLE = """
             INITIALIZED BEGIN FAILED    COMMIT     FLUSHED    COMMITTED ABORT    ABORTED DETACHED FATAL
NEW          READY       -     -         -          -          -         -        -       -        FATAL
READY        READY       OPEN  READY     -          -          -         -        -       -        FATAL
OPEN         -           -     ABORTABLE FLUSHING   -          -         ABORTING -       -        FATAL
FLUSHING     -           -     ABORTABLE FLUSHING   COMMITTING -         ABORTING -       DETACHED FATAL
COMMITTING   -           -     ABORTABLE COMMITTING -          READY     -        -       -        FATAL
ABORTABLE    -           -     ABORTABLE -          -          -         ABORTING -       -        FATAL
ABORTING     -           -     ABORTING  -          -          -         ABORTING READY   -        FATAL
DETACHED     -           -     DETACHED  -          -          -         -        -       -        FATAL
FATAL        -           -     FATAL     -          -          FATAL     -        FATAL   -        FATAL
"""
_HEAD, *_ROWS = (line.split() for line in TABLE.strip().splitlines())
CELLS = [(row[0], event, cell) for row in _ROWS for event, cell in zip(_HEAD, row[1:], strict=True)]


def in_state(state: str) -> Transaction:
    transaction = Transaction("orders-1")
    for event in WAYS[state]:
        transaction.move(event)
    assert transaction.state is State[state]
    return transaction


def test_the_table_has_every_state_and_event() -> None:
    assert [row[0] for row in _ROWS] == [state.name for state in State]
    assert sorted(_HEAD) == sorted(event.name for event in TransactionEvent)


@pytest.mark.parametrize(("state", "event", "expected"), CELLS)
def test_moves(state: str, event: str, expected: str) -> None:
    transaction = in_state(state)
    if expected == "-":
        with pytest.raises(TransactionStateError, match=r"orders-1: can't .*; the producer is"):
            transaction.move(TransactionEvent[event])
        assert transaction.state is State[state]
    else:
        assert transaction.move(TransactionEvent[event]) is State[expected]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        (
            [
                E.COORDINATOR_NOT_AVAILABLE,
                E.NOT_COORDINATOR,
                E.COORDINATOR_LOAD_IN_PROGRESS,
                E.CONCURRENT_TRANSACTIONS,
                E.REQUEST_TIMED_OUT,
                E.NETWORK_EXCEPTION,
                E.NOT_ENOUGH_REPLICAS,
                E.BROKER_NOT_AVAILABLE,
            ],
            Meaning.RETRY,
        ),
        (
            [
                E.PRODUCER_FENCED,
                E.INVALID_PRODUCER_EPOCH,
                E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                E.INVALID_TXN_STATE,
                E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                E.CLUSTER_AUTHORIZATION_FAILED,
                E.INVALID_REQUEST,
                E(999),
            ],
            Meaning.FATAL,
        ),
        ([E.NONE], Meaning.DONE),
    ],
)
def test_what_a_code_means_whoever_says_it(codes: list[ErrorCode], expected: Meaning) -> None:
    assert {judge_answer(request, code) for request in ALL for code in codes} == {expected}


@pytest.mark.parametrize(
    ("request_class", "code", "expected"),
    [
        (AddPartitionsToTxnRequest, E.TOPIC_AUTHORIZATION_FAILED, Meaning.ABORTABLE),
        (AddPartitionsToTxnRequest, E.OPERATION_NOT_ATTEMPTED, Meaning.ABORTABLE),
        (AddPartitionsToTxnRequest, E.TRANSACTION_ABORTABLE, Meaning.ABORTABLE),
        (AddPartitionsToTxnRequest, E.UNKNOWN_TOPIC_OR_PARTITION, Meaning.RETRY),
        (AddPartitionsToTxnRequest, E.UNKNOWN_SERVER_ERROR, Meaning.FATAL),
        (AddOffsetsToTxnRequest, E.GROUP_AUTHORIZATION_FAILED, Meaning.ABORTABLE),
        (AddOffsetsToTxnRequest, E.INVALID_PRODUCER_ID_MAPPING, Meaning.ABORTABLE),
        (TxnOffsetCommitRequest, E.ILLEGAL_GENERATION, Meaning.ABORTABLE),
        (TxnOffsetCommitRequest, E.UNKNOWN_MEMBER_ID, Meaning.ABORTABLE),
        (TxnOffsetCommitRequest, E.FENCED_INSTANCE_ID, Meaning.ABORTABLE),
        (TxnOffsetCommitRequest, E.STALE_MEMBER_EPOCH, Meaning.ABORTABLE),
        (TxnOffsetCommitRequest, E.OFFSET_METADATA_TOO_LARGE, Meaning.ABORTABLE),
        (EndTxnRequest, E.TRANSACTION_ABORTABLE, Meaning.ABORTABLE),
        (EndTxnRequest, E.UNKNOWN_SERVER_ERROR, Meaning.RETRY),
        (EndTxnRequest, E.INVALID_PRODUCER_ID_MAPPING, Meaning.FATAL),
        (InitProducerIdRequest, E.TRANSACTION_ABORTABLE, Meaning.FATAL),
        (InitProducerIdRequest, E.UNKNOWN_SERVER_ERROR, Meaning.FATAL),
    ],
)
def test_what_a_code_means_in_one_answer(request_class: type, code: ErrorCode, expected: Meaning) -> None:
    assert judge_answer(request_class, code) is expected


def test_version_1_sends_to_a_partition_once_it_is_added() -> None:
    transaction = in_state("READY")
    transaction.begin(1)

    assert not transaction.admits(TP)
    assert transaction.take_wanted() == [TP]
    assert transaction.take_wanted() == []
    assert not transaction.admits(TP)  # while the coordinator is asked
    transaction.added([TP])
    assert transaction.take_wanted() == []  # or it would be added once more, perhaps after the commit
    assert transaction.admits(TP)
    assert not transaction.admits(OTHER)


def test_what_was_added_to_one_transaction_is_not_in_the_next() -> None:
    transaction = in_state("READY")
    transaction.begin(1)
    transaction.added([TP])
    for event in (TransactionEvent.COMMIT, TransactionEvent.FLUSHED, TransactionEvent.COMMITTED):
        transaction.move(event)
    transaction.begin(1)

    assert not transaction.admits(TP)


def test_a_partition_that_an_aborted_transaction_wanted_is_not_added_to_the_next() -> None:
    transaction = in_state("READY")
    transaction.begin(1)
    assert not transaction.admits(TP)
    for event in (TransactionEvent.ABORT, TransactionEvent.ABORTED):
        transaction.move(event)
    transaction.begin(1)

    assert transaction.take_wanted() == []


def test_version_2_sends_to_any_partition_within_a_transaction_only() -> None:
    transaction = in_state("READY")
    assert not transaction.admits(TP)
    transaction.begin(2)
    assert transaction.admits(TP)
    transaction.failed(KafkaError("why"))
    assert not transaction.admits(TP)
    assert transaction.discarding


def test_the_first_failure_counts_and_uncertainty_stays_until_the_next() -> None:
    transaction = in_state("READY")
    transaction.begin(2)
    transaction.failed(KafkaError("first"), uncertain=True)
    transaction.failed(KafkaError("second"))
    assert (str(transaction.failure), transaction.uncertain) == ("first", True)
    with pytest.raises(TransactionStateError, match=r"can't commit.*only be aborted: first"):
        transaction.move(TransactionEvent.COMMIT)
    transaction.move(TransactionEvent.ABORT)
    transaction.move(TransactionEvent.ABORTED)
    transaction.begin(2)
    assert (transaction.failure, transaction.uncertain) == (None, False)


def test_the_first_fatal_error_counts() -> None:
    """It may say that the transaction is committed, possibly."""
    transaction = in_state("OPEN")
    transaction.fatal(KafkaError("first"))
    transaction.fatal(KafkaError("second"))
    transaction.failed(KafkaError("third"))
    assert (transaction.state, str(transaction.failure)) == (State.FATAL, "first")


@pytest.mark.parametrize(
    ("handled", "expected"),
    [
        ([TransactionEvent.COMMIT], State.FLUSHING),
        ([TransactionEvent.ABORT], None),
        ([TransactionEvent.ABORT, TransactionEvent.ABORTED], None),
        ([TransactionEvent.FATAL], None),
    ],
)
def test_a_signal_handler_that_moves_it_between_any_two_steps_comes_first(
    monkeypatch: pytest.MonkeyPatch, handled: list[TransactionEvent], expected: State | None
) -> None:
    """Else a transaction that the handler has aborted would be committed: empty, and without an error."""
    transaction = in_state("OPEN")

    class Interrupted(dict[tuple[State, TransactionEvent], State]):
        def get(self, key: tuple[State, TransactionEvent], default: Any = None) -> Any:
            monkeypatch.undo()
            for event in handled:
                transaction.move(event)
            return super().get(key, default)

    monkeypatch.setattr(transactions, "TRANSITIONS", Interrupted(transactions.TRANSITIONS))
    if expected is not None:
        assert transaction.move(TransactionEvent.COMMIT) is expected
        return
    with pytest.raises(TransactionStateError, match="can't commit"):
        transaction.move(TransactionEvent.COMMIT)
    assert transaction.state not in (State.OPEN, State.FLUSHING)


def test_the_coordinator_has_to_end_no_transaction_because_of_the_one_before() -> None:
    """There is nothing to commit in one without records: the answer to EndTxn would end its producer."""
    transaction = in_state("READY")
    transaction.begin(2)
    transaction.touched = transaction.commit_asked = True
    for event in (TransactionEvent.COMMIT, TransactionEvent.FLUSHED, TransactionEvent.COMMITTED):
        transaction.move(event)
    transaction.begin(2)
    assert (transaction.touched, transaction.commit_asked) == (False, False)


def test_a_transaction_that_has_written_to_a_topic_does_not_go_on_in_another_of_its_name() -> None:
    former, present = UUID(int=1), UUID(int=2)
    transaction = in_state("READY")
    transaction.begin(2)
    transaction.wrote({"t": former})
    assert transaction.may_write("t", former)
    assert transaction.may_write("t", None)  # which only a forked child sees
    assert transaction.may_write("u", present)
    assert transaction.state is State.OPEN
    assert not transaction.may_write("t", present)
    assert transaction.state is State.ABORTABLE
    assert "topic t has another id" in str(transaction.failure)
    transaction.move(TransactionEvent.ABORT)
    transaction.move(TransactionEvent.ABORTED)
    transaction.begin(2)
    assert transaction.may_write("t", present)


def test_a_transaction_with_records_in_two_topics_of_one_name_fails() -> None:
    """A leader confirms those that were sent to the former one after others were sent to the present one."""
    transaction = in_state("READY")
    transaction.begin(2)
    transaction.wrote({"t": UUID(int=2)})
    transaction.wrote({"t": UUID(int=1)})
    assert transaction.state is State.ABORTABLE
    assert "topic t has another id" in str(transaction.failure)


def test_all_topics_of_a_transaction_are_looked_at() -> None:
    one, other = UUID(int=1), UUID(int=2)
    transaction = in_state("READY")
    transaction.begin(2)
    transaction.wrote({"t": one, "u": one})
    transaction.move(TransactionEvent.COMMIT)
    transaction.check_topics({"t": one, "u": one}.get)
    assert transaction.state is State.FLUSHING
    transaction.check_topics({"t": one, "u": other}.get)
    assert transaction.state is State.ABORTABLE
    assert "topic u has another id" in str(transaction.failure)


def test_a_commit_that_was_asked_for_is_not_failed_for_a_topic() -> None:
    transaction = in_state("READY")
    transaction.begin(2)
    transaction.wrote({"t": UUID(int=1)})
    transaction.move(TransactionEvent.COMMIT)
    transaction.move(TransactionEvent.FLUSHED)
    transaction.check_topics(lambda _topic: UUID(int=2))
    assert (transaction.state, transaction.failure) == (State.COMMITTING, None)


def test_a_topic_of_the_last_transaction_does_not_fail_the_next_one_that_begins_during_the_check() -> None:
    transaction = in_state("READY")
    transaction.begin(2)
    transaction.wrote({"t": UUID(int=1)})
    for event in (TransactionEvent.COMMIT, TransactionEvent.FLUSHED, TransactionEvent.COMMITTED):
        transaction.move(event)

    class TakenByBegin:
        """The caller's thread has the lock, and begins, while the sender's waits for it."""

        def __enter__(self) -> None:
            transaction.lock = lock
            transaction.begin(2)

        def __exit__(self, *_: object) -> None:
            pass

    lock, transaction.lock = transaction.lock, TakenByBegin()  # type: ignore[assignment]
    transaction.check_topics(lambda _topic: UUID(int=2))
    assert transaction.lock is lock
    assert (transaction.state, transaction.failure) == (State.OPEN, None)
