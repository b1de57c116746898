"""What a transactional producer says of a commit of which not everything is known, and which callers may
not touch it: callbacks, forked processes, records that were never taken."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import pyarrow as pa
import pytest
from support.brokers.produce_cluster import refused
from support.brokers.scripted_broker import Silence, properties
from support.brokers.transaction_cluster import TransactionCluster
from support.forked_child import holds_in_forked_child

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig, TransactionConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    DeadlineExceededError,
    KafkaError,
    NetworkError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import (
    DeliveryError,
    ProducerClosedError,
    RecordError,
    TransactionAbortableError,
    TransactionFatalError,
    TransactionStateError,
)
from spark_kafka_native.kafka.producer.sending import transaction_requests
from spark_kafka_native.kafka.producer.sending.transaction import State, Transaction, TransactionEvent
from spark_kafka_native.kafka.producer.stats import StatsRecorder
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

# One in a destructor.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

E = ErrorCode
TP = TopicPartition("t", 0)
VERSIONS = pytest.mark.parametrize("version", [1, 2])


@pytest.fixture
def cluster() -> Iterator[TransactionCluster]:
    with TransactionCluster() as running:
        running.create("t")
        yield running


@contextmanager
def producing(
    cluster: TransactionCluster,
    version: int = 2,
    *,
    request_timeout_ms: int = 250,
    delivery_timeout_ms: int = 120_000,
    on_error: Any = None,
) -> Iterator[TransactionalProducer]:
    client = {"request.timeout.ms": request_timeout_ms, "retry.backoff.ms": 5, "retry.backoff.max.ms": 20}
    producer = TransactionalProducer(
        ClientConfig.from_properties(properties(cluster.bootstrap_servers, **client)),
        TransactionConfig(transactional_id="x", transaction_version=version),
        ProducerConfig(linger_ms=0, delivery_timeout_ms=delivery_timeout_ms),
        on_error=on_error,
    )
    try:
        yield producer
    finally:
        producer.close(60)


def test_a_repeated_commit_remembers_that_the_first_may_have_worked(cluster: TransactionCluster) -> None:
    with producing(cluster) as zombie:
        zombie.begin()
        zombie.send("t", value=b"1")
        zombie.flush()
        cluster[1].on(EndTxnRequest, cluster.lost(EndTxnRequest))
        with pytest.raises(DeadlineExceededError):
            zombie.commit(timeout=0.2)
        with producing(cluster) as producer:
            producer.initialize()
        cluster[1].on(EndTxnRequest, cluster.handlers[EndTxnRequest])
        for _ in range(2):
            with pytest.raises(TransactionFatalError, match="may have committed") as raised:
                zombie.commit()
            assert raised.value.possibly_committed
    assert cluster.committed[TP] == [b"1"]


@pytest.mark.parametrize("code", [E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR, E.REQUEST_TIMED_OUT])
def test_a_coordinator_that_goes_may_have_committed(cluster: TransactionCluster, code: ErrorCode) -> None:
    """Its log may have taken the decision and could not confirm it: the next coordinator carries it out."""

    def applied_and_refused(request: EndTxnRequest, version: int) -> EndTxnResponse:
        cluster.handlers[EndTxnRequest](request, version)
        return EndTxnResponse(error_code=code)

    with producing(cluster) as zombie:
        zombie.begin()
        zombie.send("t", value=b"1")
        cluster[1].push(EndTxnRequest, applied_and_refused)
        cluster[1].push(EndTxnRequest, EndTxnResponse(error_code=E.PRODUCER_FENCED))
        with pytest.raises(TransactionFatalError) as raised:
            zombie.commit()
        assert raised.value.possibly_committed


@pytest.mark.parametrize("answer", ["lost", E.UNKNOWN_SERVER_ERROR])
def test_what_may_be_committed_is_never_called_abortable(cluster: TransactionCluster, answer: Any) -> None:
    def applied_and_failed(request: EndTxnRequest, version: int) -> EndTxnResponse:
        cluster.handlers[EndTxnRequest](request, version)
        return EndTxnResponse(error_code=answer)

    with producing(cluster) as producer:
        producer.begin()
        producer.send("t", value=b"1")
        cluster[1].push(
            EndTxnRequest, cluster.lost(EndTxnRequest) if answer == "lost" else applied_and_failed
        )
        cluster[1].push(EndTxnRequest, EndTxnResponse(error_code=E.TRANSACTION_ABORTABLE))
        with pytest.raises(TransactionFatalError) as raised:
            producer.commit()
        assert raised.value.possibly_committed


def test_the_end_of_a_given_away_transaction_is_asked_for_within_the_time_of_the_router(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Router, "deadline", lambda _self, timeout_ms=300.0: Deadline.after_ms(timeout_ms))
    given_away = transaction_requests.OpenTransaction(
        transactional_id="x", producer_id=7, producer_epoch=1, version=2
    )
    cluster[1].on(EndTxnRequest, lambda _request, _version: Silence)
    client = {"request.timeout.ms": 100, "retry.backoff.ms": 5, "retry.backoff.max.ms": 20}
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers, **client)))
    with closing(router), pytest.raises(DeadlineExceededError):
        transaction_requests.end_transaction(router, given_away, commit=True)
    asked = cluster[1].requests(EndTxnRequest)
    assert asked[0] == EndTxnRequest(transactional_id="x", producer_id=7, producer_epoch=1, committed=True)


def end_refused(
    cluster: TransactionCluster,
    monkeypatch: pytest.MonkeyPatch,
    refusal: KafkaError,
    *,
    commit: bool,
    earlier: str,
) -> None:
    """End a transaction; ``refusal`` is all that the coordinator says, after an attempt without an answer if
    ``earlier`` is ``lost``, or another call before (``another call``)."""
    answers: list[KafkaError] = [NetworkError("no answer")] if earlier == "lost" else []
    answers.append(refusal)

    def ask(*_: Any, **__: Any) -> Any:
        raise answers.pop(0)

    monkeypatch.setattr(transaction_requests, "ask_coordinator", ask)
    given_away = transaction_requests.OpenTransaction(
        transactional_id="x", producer_id=7, producer_epoch=1, version=2
    )
    client = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20}
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers, **client)))
    try:
        with closing(router):
            transaction_requests.end_transaction(
                router, given_away, commit=commit, asked_before=earlier == "another call"
            )
    finally:
        assert not answers


@pytest.mark.parametrize("refusal", [AuthenticationError, ConfigError])
@pytest.mark.parametrize(
    ("commit", "earlier", "is_open"),
    [
        (True, "lost", True),
        (True, "another call", True),
        (True, "none", False),
        (False, "lost", False),
        (False, "another call", False),
    ],
)
def test_a_wrong_setting_does_not_hide_that_a_commit_may_have_worked(
    cluster: TransactionCluster,
    monkeypatch: pytest.MonkeyPatch,
    refusal: type[KafkaError],
    commit: bool,
    earlier: str,
    is_open: bool,
) -> None:
    with pytest.raises(refusal, match="refused") as raised:
        end_refused(cluster, monkeypatch, refusal("refused"), commit=commit, earlier=earlier)
    notes = getattr(raised.value, "__notes__", [])
    assert [("may have committed it" in note) for note in notes] == [True] * is_open


@pytest.mark.parametrize(
    ("earlier", "refused_as"),
    [("none", TransactionAbortableError), ("lost", BrokerError), ("another call", BrokerError)],
)
def test_a_refused_look_up_does_not_call_a_commit_abortable_that_may_have_worked(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch, earlier: str, refused_as: type[KafkaError]
) -> None:
    """Brokers answer with this code from version 5 of FindCoordinator on (KIP-890)."""
    refusal = BrokerError(E.TRANSACTION_ABORTABLE, "coordinator of transactional id x")
    with pytest.raises(KafkaError) as raised:
        end_refused(cluster, monkeypatch, refusal, commit=True, earlier=earlier)
    assert type(raised.value) is refused_as


def test_an_abort_without_an_answer_is_not_taken_for_a_commit(cluster: TransactionCluster) -> None:
    with producing(cluster) as producer:
        producer.begin()
        producer.send("t", value=b"1")
        producer.flush()
        cluster[1].push(EndTxnRequest, cluster.lost(EndTxnRequest))
        cluster[1].push(EndTxnRequest, EndTxnResponse(error_code=E.PRODUCER_FENCED))
        with pytest.raises(TransactionFatalError) as raised:
            producer.abort()
        assert not raised.value.possibly_committed
        with pytest.raises(TransactionFatalError) as raised:
            producer.begin()
        assert not raised.value.possibly_committed


@VERSIONS
@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("step", ["answered", "moved", "taken"])
def test_an_interrupt_at_the_end_of_a_transaction_leaves_one_that_can_be_ended_again(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch, step: str, end: str, version: int
) -> None:
    with producing(cluster, version) as producer:
        producer.begin()
        producer.send("t", value=b"1")
        where, name = {
            "answered": (transaction_requests, "end_transaction"),
            "moved": (Transaction, "move"),
            "taken": (Transaction, "renewed"),
        }[step]
        real: Any = getattr(where, name)

        def interrupted(*arguments: Any, **how: Any) -> Any:
            result = real(*arguments, **how)
            if step != "moved" or arguments[1] in (TransactionEvent.COMMITTED, TransactionEvent.ABORTED):
                monkeypatch.undo()
                raise KeyboardInterrupt
            return result

        monkeypatch.setattr(where, name, interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            getattr(producer, end)()
        if producer.state is not State.READY:
            getattr(producer, end)()
        monkeypatch.undo()
        producer.begin()
        producer.send("t", value=b"2")
        producer.commit()
    assert cluster.committed[TP] == ([b"1", b"2"] if end == "commit" else [b"2"])


def test_a_commit_that_the_coordinator_confirms_is_one_whatever_else_has_ended_the_producer(
    cluster: TransactionCluster,
) -> None:
    with producing(cluster) as producer:
        producer.begin()
        producer.send("t", value=b"1")

        def end(request: EndTxnRequest, version: int) -> EndTxnResponse:
            producer._sender.fail(KafkaError("credentials refused"))
            producer._waiters.wait_for(lambda: not producer._sender.running, None)
            answer: EndTxnResponse = cluster.handlers[EndTxnRequest](request, version)
            return answer

        cluster[1].push(EndTxnRequest, end)
        producer.commit()
        with pytest.raises(TransactionFatalError, match="credentials refused") as raised:
            producer.begin()
        assert not raised.value.possibly_committed
    assert cluster.committed[TP] == [b"1"]


@pytest.mark.parametrize("call", ["begin", "send", "send_offsets", "detach", "commit"])
@pytest.mark.parametrize("earlier", ["none", "refused", "lost"])
def test_a_producer_that_ends_during_a_commit_says_that_it_may_have_worked(
    cluster: TransactionCluster, earlier: str, call: str
) -> None:
    """The error that ended the producer knows nothing of the commit, and the caller would write the records
    again. An earlier transaction, with a commit that was refused, does not count."""
    arguments: dict[str, Any] = {"send": ("t",), "send_offsets": ({TP: 1}, "g")}
    with producing(cluster) as producer:
        producer.begin()
        producer.send("t", value=b"1")
        producer.flush()
        if earlier == "refused":
            cluster[1].push(EndTxnRequest, EndTxnResponse(error_code=E.TRANSACTION_ABORTABLE))
            with pytest.raises(TransactionAbortableError):
                producer.commit()
            producer.abort()
            producer.begin()
            producer.send("t", value=b"2")
        elif earlier == "lost":
            cluster[1].on(EndTxnRequest, cluster.lost(EndTxnRequest))
            with pytest.raises(DeadlineExceededError):
                producer.commit(timeout=0.2)
        producer._sender.fail(KafkaError("credentials refused"))
        producer._waiters.wait_for(lambda: not producer._sender.running, None)
        with pytest.raises(TransactionFatalError, match="credentials refused") as raised:
            getattr(producer, call)(*arguments.get(call, ()))
        assert raised.value.possibly_committed == (earlier == "lost")


def test_a_definite_refusal_stays_one_however_often_it_is_asked_for(cluster: TransactionCluster) -> None:
    with producing(cluster) as producer:
        producer.begin()
        producer.send("t", value=b"1")
        cluster[1].push(EndTxnRequest, EndTxnResponse(error_code=E.PRODUCER_FENCED))
        for _ in range(2):
            with pytest.raises(TransactionFatalError) as raised:
                producer.commit()
            assert not raised.value.possibly_committed


def test_a_record_that_nobody_speaks_of_keeps_the_transaction_from_being_committed(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producing(cluster) as producer:
        producer.begin()
        producer.send("t", value=b"1")
        monkeypatch.setattr(StatsRecorder, "delivered", lambda *_: None)
        with pytest.raises(TransactionAbortableError, match="1 records were sent, and 0 were confirmed"):
            producer.commit()


def test_an_abort_waits_for_what_was_given_up_and_is_still_under_way(cluster: TransactionCluster) -> None:
    """Else it would arrive behind the end of its transaction."""
    arrived: list[int] = []

    def end(request: EndTxnRequest, version: int) -> EndTxnResponse:
        arrived.append(len(cluster.logs[TP].batches))
        answer: EndTxnResponse = cluster.handlers[EndTxnRequest](request, version)
        return answer

    with producing(cluster, request_timeout_ms=10_000, delivery_timeout_ms=500) as producer:
        cluster[1].on(EndTxnRequest, end)
        cluster[1].push(ProduceRequest, cluster.delayed(ProduceRequest, 1.5))
        producer.begin()
        with pytest.raises(DeliveryError):
            producer.send("t", value=b"1").result(60)
        producer.abort()
    assert arrived == [1]


def test_an_abort_waits_for_no_answer_that_the_ended_sender_would_not_read(
    cluster: TransactionCluster,
) -> None:
    with producing(cluster, request_timeout_ms=600_000, delivery_timeout_ms=2_000) as producer:
        cluster[1].on(ProduceRequest, lambda _request, _version: Silence)
        producer.begin()
        with pytest.raises(DeliveryError):
            producer.send("t", value=b"1").result(60)
        assert not producer._sender.quiet, "the request is still under way"
        waiting = threading.Event()
        ended: list[bool] = []

        def wait() -> None:
            waiting.set()
            ended.append(producer._wait_until_quiet(Deadline.after_ms(20_000)))

        other = threading.Thread(target=wait)
        other.start()
        assert waiting.wait(60)
        producer._fail(KafkaError("credentials refused"))
        other.join(60)
        assert ended == [True]


def test_an_abort_waits_for_partitions_that_are_being_added(cluster: TransactionCluster) -> None:
    """The coordinator is not ready for them. Added behind the end, they would begin another transaction."""
    ended: list[str] = []

    def end(request: EndTxnRequest, version: int) -> EndTxnResponse:
        ended.append(cluster.held["x"].state)
        answer: EndTxnResponse = cluster.handlers[EndTxnRequest](request, version)
        return answer

    def not_yet(request: AddPartitionsToTxnRequest, version: int) -> AddPartitionsToTxnResponse:
        answer: AddPartitionsToTxnResponse = cluster.handlers[AddPartitionsToTxnRequest](request, version)
        for one in answer.results_by_topic_v3_and_below[0].results_by_partition:
            object.__setattr__(one, "partition_error_code", E.CONCURRENT_TRANSACTIONS)
        cluster.held["x"].state = "empty"
        return answer

    with producing(cluster, 1) as producer:
        cluster[1].on(EndTxnRequest, end)
        cluster[1].push(AddPartitionsToTxnRequest, *[not_yet] * 30)
        producer.begin()
        producer.send("t", value=b"1")
        while not cluster[1].requests(AddPartitionsToTxnRequest):
            time.sleep(0.001)
        producer.abort()
    assert ended == ["ongoing"]
    assert cluster.held["x"].state == "aborted"
    assert not cluster.committed[TP]


def test_an_unanswered_request_for_partitions_fences_the_producer(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still arrive: no end of the same epoch closes what it would begin."""
    monkeypatch.setattr(Router, "deadline", lambda _self, timeout_ms=300.0: Deadline.after_ms(timeout_ms))
    with producing(cluster, 1) as producer:
        producer.begin()
        cluster[1].on(AddPartitionsToTxnRequest, cluster.lost(AddPartitionsToTxnRequest))
        with pytest.raises(DeliveryError):
            producer.send("t", value=b"1").result(60)
        producer.abort()
        assert cluster.held["x"].epoch == 1
        assert not cluster[1].requests(EndTxnRequest)
        with pytest.raises(TransactionFatalError, match="make a new producer"):
            producer.begin()
    assert not cluster.committed[TP]


def test_closing_fences_a_producer_with_records_that_may_still_arrive(cluster: TransactionCluster) -> None:
    """Only what would fence a successor is not requested by a closed producer."""
    with producing(cluster, 1) as producer:
        producer.begin()
        producer.send("t", value=b"1")
        producer.flush()
        producer._transaction.failed(KafkaError("lost"), uncertain=True)
    assert (cluster.held["x"].state, cluster.held["x"].epoch) == ("aborted", 1)


def test_a_transaction_that_may_be_committed_cannot_be_given_away(cluster: TransactionCluster) -> None:
    with producing(cluster) as producer:
        producer.begin()
        producer.send("t", value=b"1")
        producer.flush()
        cluster[1].on(EndTxnRequest, cluster.lost(EndTxnRequest))
        with pytest.raises(DeadlineExceededError):
            producer.commit(timeout=0.2)
        with pytest.raises(TransactionStateError, match="detach"):
            producer.detach()


def test_an_abort_that_is_refused_is_no_abort(cluster: TransactionCluster) -> None:
    """In version 1 with something under way: only a fenced epoch proves that the transaction is gone."""
    with producing(cluster, 1) as producer:
        producer.begin()
        producer.send("t", value=b"1")
        producer.flush()
        producer._transaction.failed(KafkaError("lost"), uncertain=True)
        refusal = InitProducerIdResponse(
            error_code=E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_epoch=-1
        )
        cluster[1].push(InitProducerIdRequest, refusal)
        with pytest.raises(TransactionFatalError, match="AUTHORIZATION"):
            producer.abort()


def test_a_record_that_send_many_refuses_keeps_the_transaction_from_being_committed(
    cluster: TransactionCluster,
) -> None:
    with producing(cluster) as producer:
        producer.begin()
        producer.send_many("t", [b"good"])
        with pytest.raises(RecordError):
            producer.send_many("t", [b"good", 7])  # type: ignore[list-item]
        with pytest.raises(TransactionAbortableError):
            producer.commit()
        producer.abort()
    assert not cluster.committed[TP]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("commit", ()),
        ("abort", ()),
        ("begin", ()),
        ("initialize", ()),
        ("detach", ()),
        ("send_offsets", ({TP: 1}, "g")),
        ("send", ("t", b"1")),
        ("send_many", ("t", [b"1"])),
        ("send_columns", (pa.record_batch({"value": [b"1"]}), "t")),
    ],
)
def test_a_callback_is_told_so_instead_of_waiting_for_its_own_thread(
    cluster: TransactionCluster, call: str, arguments: tuple[Any, ...]
) -> None:
    told: list[BaseException] = []
    done = threading.Event()

    def on_error(*_: Any) -> None:
        try:
            getattr(producer, call)(*arguments)
        except BaseException as error:
            told.append(error)
        done.set()

    with producing(cluster, on_error=on_error) as producer:
        producer.begin()
        cluster.script(TP, refused(E.INVALID_RECORD))
        cluster.delay_s = 0.2
        producer.send("t", value=b"bad")
        with pytest.raises(TransactionAbortableError):
            producer.commit()  # which waits for the sender's thread
        assert done.wait(60)
    assert isinstance(told[0], RuntimeError), told


def test_a_forked_child_leaves_the_transaction_alone(cluster: TransactionCluster) -> None:
    with producing(cluster) as producer:
        producer.begin()
        producer.send("t", value=b"1").result(60)
        held = threading.Event()
        free = threading.Event()

        def end(request: EndTxnRequest, version: int) -> EndTxnResponse:
            held.set()
            free.wait(60)
            response: EndTxnResponse = cluster.handlers[EndTxnRequest](request, version)
            return response

        cluster[1].push(EndTxnRequest, end)
        other = threading.Thread(target=producer.commit)
        other.start()
        held.wait(60)
        calls = [
            lambda: producer.send_offsets({TP: 7}, "g"),
            producer.commit,
            producer.abort,
            producer.begin,
            producer.detach,
            lambda: producer.send("t", value=b"2"),
            lambda: producer.flush(1),
        ]

        def all_are_refused() -> bool:
            for call in calls:
                with pytest.raises(ProducerClosedError, match="another process"):
                    call()
            return True

        are_refused = holds_in_forked_child(all_are_refused)
        free.set()
        other.join()
    assert are_refused
    assert cluster.committed[TP] == [b"1"]
    assert not cluster.offsets


@VERSIONS
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_transaction_of_offsets_alone_is_ended_like_any_other(
    cluster: TransactionCluster, end: str, version: int
) -> None:
    with producing(cluster, version) as producer:
        producer.begin()
        producer.send_offsets({TP: 7}, "g")
        assert not cluster.offsets
        getattr(producer, end)()
    assert cluster.offsets == ({("g", TP): (7, "")} if end == "commit" else {})


def test_offsets_of_an_unanswered_request_are_aborted_with_the_transaction(
    cluster: TransactionCluster,
) -> None:
    with producing(cluster) as producer:
        producer.begin()
        cluster[1].on(TxnOffsetCommitRequest, cluster.lost(TxnOffsetCommitRequest))
        with pytest.raises(DeadlineExceededError):
            producer.send_offsets({TP: 7}, "g", timeout=0.2)
        assert cluster.held["x"].offsets, "the coordinator has applied them"
        cluster[1].on(TxnOffsetCommitRequest, cluster.handlers[TxnOffsetCommitRequest])
        producer.abort()
        producer.begin()
        producer.send("t", value=b"1")
        producer.commit()
    assert not cluster.offsets
    assert cluster.committed[TP] == [b"1"]


@pytest.mark.parametrize("lost", [AddOffsetsToTxnRequest, TxnOffsetCommitRequest])
def test_an_unanswered_request_for_offsets_of_version_1_fences_the_producer(
    cluster: TransactionCluster, lost: Any
) -> None:
    with producing(cluster, 1) as producer:
        producer.begin()
        cluster[1].on(lost, cluster.lost(lost))
        with pytest.raises(DeadlineExceededError):
            producer.send_offsets({TP: 7}, "g", timeout=0.2)
        producer.abort()
        with pytest.raises(TransactionFatalError, match="make a new producer"):
            producer.begin()
    with producing(cluster, 1) as producer:
        producer.begin()
        producer.send("t", value=b"1")
        producer.commit()
    assert not cluster.offsets
    assert cluster.committed[TP] == [b"1"]


@pytest.mark.parametrize("call", ["send", "send_many", "send_columns", "send_offsets"])
def test_what_made_a_transaction_abortable_is_the_cause_of_later_refusals(
    cluster: TransactionCluster, call: str
) -> None:
    outside: dict[str, Any] = {
        "send": lambda: producer.send("t", value=b"1", partition=99),
        "send_many": lambda: producer.send_many("t", [b"1"], partition=99),
        "send_columns": lambda: producer.send_columns(pa.record_batch({"value": [b"1"]}), "t", 99),
        "send_offsets": lambda: producer.send_offsets({TP: 1}, "g"),
    }
    with producing(cluster) as producer:
        producer.begin()
        refusal = TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name="t",
                    partitions=[
                        TxnOffsetCommitResponsePartition(partition_index=0, error_code=E.ILLEGAL_GENERATION)
                    ],
                )
            ]
        )
        cluster[1].push(TxnOffsetCommitRequest, refusal)
        with pytest.raises(KafkaError) as first:
            outside[call]()
        with pytest.raises(TransactionAbortableError) as later:
            producer.commit()
        assert later.value.__cause__ is first.value
        producer.abort()


def test_a_closed_producer_begins_nothing_and_keeps_no_connection(cluster: TransactionCluster) -> None:
    with producing(cluster) as producer:
        with producer.transaction():
            producer.send("t", value=b"1")
        assert producer._router._brokers.live()
        producer.close(60)
        asked = len(cluster[1].asked)
        with pytest.raises(ProducerClosedError, match=r"close\(\) was called"):
            producer.begin()
        assert len(cluster[1].asked) == asked
        assert not producer._router._brokers.live()


@pytest.mark.parametrize(
    ("code", "retried"), [("UNKNOWN_TOPIC_OR_PARTITION", True), ("TOPIC_AUTHORIZATION_FAILED", False)]
)
def test_a_partition_that_was_not_attempted_follows_the_one_that_was_refused(
    code: str, retried: bool
) -> None:
    """A new topic beside an old one, of which the coordinator does not know yet (AddPartitionsToTxn, v3)."""
    with MockBroker() as broker:
        for topic in ("new", "old"):
            broker.create_topic(topic)
        broker.on("AddPartitionsToTxn", topic="new", times=1).fail(code)
        with TransactionalProducer(broker.bootstrap_servers, "id", linger_ms=50) as producer:
            refused = pytest.raises(TransactionAbortableError, match=f"new-0.*{code}")
            with nullcontext() if retried else refused, producer.transaction():
                for topic in ("new", "old"):
                    producer.send(topic, value=b"x", partition=0)
        assert [len(broker.records(topic, committed=True)) for topic in ("new", "old")] == [retried] * 2


def test_a_topic_that_the_coordinator_does_not_know_is_asked_about() -> None:
    """It may be gone, or have fewer partitions: later transactions of the process go by the new metadata."""
    with MockBroker() as broker:
        broker.create_topic("t", partitions=2)
        settings = {"linger_ms": 0, "metadata_max_age_ms": 3_600_000}
        with TransactionalProducer(broker.bootstrap_servers, "id", **settings) as producer:
            with producer.transaction():
                producer.send("t", value=b"x", partition=0)
            asked = len(broker.asked("Metadata"))
            broker.on("AddPartitionsToTxn", times=1).fail("UNKNOWN_TOPIC_OR_PARTITION")
            with producer.transaction():
                producer.send("t", value=b"y", partition=1)
            assert len(broker.asked("Metadata")) > asked
