"""A transactional producer and coordinators with answers that are lost, late, doubled or refusals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.brokers.produce_cluster import LOST_ANSWER, LOST_REQUEST, refused
from support.brokers.scripted_broker import HangUp, Silence, properties
from support.brokers.transaction_cluster import TransactionCluster
from support.producer.producing import wait_until

from spark_kafka_native.kafka.cluster import split_commit
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig, TransactionConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    ConfigError,
    DeadlineExceededError,
    KafkaError,
    UnsupportedVersionError,
)
from spark_kafka_native.kafka.model import Acks, GroupMembership, OffsetToCommit, TopicPartition
from spark_kafka_native.kafka.producer.errors import (
    ProducerClosedError,
    RecordError,
    TransactionAbortableError,
    TransactionFatalError,
    TransactionStateError,
)
from spark_kafka_native.kafka.producer.producer import Producer, producer_for
from spark_kafka_native.kafka.producer.sending import transaction_requests
from spark_kafka_native.kafka.producer.sending.transaction import (
    State,
    Transaction,
)
from spark_kafka_native.kafka.producer.sending.transaction_requests import TransactionSession, end_transaction
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer, _transaction
from spark_kafka_native.kafka.protocol.api.api_versions import ApiVersionsRequest
from spark_kafka_native.kafka.protocol.api.find_coordinator import GROUP_KEY_TYPE, FindCoordinatorRequest
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
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

pytestmark = pytest.mark.timed(0.1)

E = ErrorCode
TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
VERSIONS = pytest.mark.parametrize("version", [1, 2])
OF_VERSION = {
    1: (
        InitProducerIdRequest,
        AddPartitionsToTxnRequest,
        ProduceRequest,
        AddOffsetsToTxnRequest,
        TxnOffsetCommitRequest,
        EndTxnRequest,
    ),
    2: (InitProducerIdRequest, ProduceRequest, TxnOffsetCommitRequest, EndTxnRequest),
}
EACH_REQUEST = pytest.mark.parametrize(
    ("version", "request_class"), [(version, one) for version, all_ in OF_VERSION.items() for one in all_]
)


@pytest.fixture
def cluster() -> Iterator[TransactionCluster]:
    with TransactionCluster() as running:
        running.create("t", 2)
        yield running


@contextmanager
def producing(
    cluster: TransactionCluster, version: int = 2, name: str = "x", **config: Any
) -> Iterator[TransactionalProducer]:
    client = {"request.timeout.ms": 250, "retry.backoff.ms": 5, "retry.backoff.max.ms": 20}
    settings = ClientConfig.from_properties(properties(cluster.bootstrap_servers, **client))
    producer = TransactionalProducer(
        settings,
        TransactionConfig(transactional_id=name, transaction_version=version),
        ProducerConfig(**{"linger_ms": 0, "batch_records": 2, "delivery_timeout_ms": 60_000} | config),
    )
    try:
        yield producer
    finally:
        producer.close(60)


def write(producer: TransactionalProducer, *values: bytes) -> None:
    for number, value in enumerate(values):
        producer.send("t", value=value, partition=number % 2)


def transact(producer: TransactionalProducer, name: str, number: int) -> None:
    producer.begin()
    write(producer, *(b"%s-%d" % (name.encode(), i) for i in range(5)))
    producer.send_offsets({TP: OffsetToCommit(offset=number, metadata=name)}, "g")


def seen(cluster: TransactionCluster) -> list[bytes]:
    return sorted(cluster.committed[TP] + cluster.committed[OTHER])


def told(name: str) -> list[bytes]:
    return [b"%s-%d" % (name.encode(), i) for i in range(5)]


@VERSIONS
def test_what_is_committed_is_seen_and_what_is_aborted_is_not(
    cluster: TransactionCluster, version: int
) -> None:
    with producing(cluster, version) as producer:
        for number, (name, commit) in enumerate([("a", True), ("b", False), ("c", True), ("d", False)]):
            transact(producer, name, number)
            producer.commit() if commit else producer.abort()

    assert seen(cluster) == told("a") + told("c")
    assert cluster.offsets == {("g", TP): (2, "c")}
    epochs = [epoch for _, epoch, _ in cluster.ended]
    assert len(set(epochs)) == 4, "an epoch was used again"


@VERSIONS
def test_a_transaction_speaks_one_protocol_only(cluster: TransactionCluster, version: int) -> None:
    with producing(cluster, version) as producer:
        transact(producer, "a", 0)
        producer.commit()

    spoken = {type(asked.request): asked.version for asked in cluster[1].asked}
    if version == 2:
        assert (spoken[ProduceRequest], spoken[EndTxnRequest], spoken[TxnOffsetCommitRequest]) == (13, 5, 5)
        assert not {AddPartitionsToTxnRequest, AddOffsetsToTxnRequest} & spoken.keys()
    else:
        assert (spoken[ProduceRequest], spoken[EndTxnRequest], spoken[TxnOffsetCommitRequest]) == (11, 4, 4)


@pytest.mark.parametrize(("level", "end_txn"), [(1, 5), (2, 4)])
def test_a_cluster_without_version_2_is_spoken_to_in_version_1(level: int, end_txn: int) -> None:
    """Its brokers have the requests of version 2 and the feature: one of these alone is not enough."""
    with TransactionCluster(level=level) as cluster:
        cluster.create("t", 2)
        versions = cluster._versions(None, 0)
        key = EndTxnRequest.api_key
        keys = [replace(one, max_version=end_txn) if one.api_key == key else one for one in versions.api_keys]
        cluster[1].on(ApiVersionsRequest, lambda *_: replace(versions, api_keys=keys))
        with producing(cluster) as producer:
            transact(producer, "a", 0)
            producer.commit()
        assert {one.version for one in cluster[1].asked if isinstance(one.request, EndTxnRequest)} == {4}
        assert cluster[1].requests(AddPartitionsToTxnRequest)
        assert seen(cluster) == told("a")


@pytest.mark.parametrize(("version", "epochs"), [(1, [-1, 0, 1]), (2, [-1])])
def test_a_fresh_epoch_is_asked_for_where_the_end_of_a_transaction_brings_none(
    cluster: TransactionCluster, version: int, epochs: list[int]
) -> None:
    """By the present identity, so that a producer that was fenced gets none (KIP-360)."""
    with producing(cluster, version) as producer:
        for number, name in enumerate("abc"):
            transact(producer, name, number)
            producer.commit()
    assert cluster[1].requests(InitProducerIdRequest) == [
        InitProducerIdRequest(
            transactional_id="x",
            transaction_timeout_ms=60_000,
            producer_id=-1 if epoch < 0 else cluster.held["x"].producer_id,
            producer_epoch=epoch,
        )
        for epoch in epochs
    ]
    assert seen(cluster) == told("a") + told("b") + told("c")


def test_a_broker_that_is_too_old_is_refused_before_anything_is_written() -> None:
    with TransactionCluster(level=1) as cluster:
        cluster.create("t", 2)
        versions = cluster._versions(None, 0)
        key = InitProducerIdRequest.api_key
        keys = [replace(one, max_version=2) if one.api_key == key else one for one in versions.api_keys]
        cluster[1].on(ApiVersionsRequest, lambda *_: replace(versions, api_keys=keys))
        with (
            producing(cluster) as producer,
            pytest.raises(UnsupportedVersionError, match=r"is too old .* they need Kafka 2\.5 or later"),
        ):
            producer.begin()
        assert seen(cluster) == []


@pytest.mark.parametrize("fault", ["lost", "unsent", "late", "delayed", "doubled"])
@EACH_REQUEST
def test_a_request_whose_answer_is_lost_late_or_doubled_changes_nothing(
    cluster: TransactionCluster, version: int, request_class: Any, fault: str
) -> None:
    if (request_class, fault, version) == (InitProducerIdRequest, "delayed", 2):
        pytest.skip("without an identity it fences whoever has the id when it arrives: ourselves")
    with producing(cluster, version) as producer:
        transact(producer, "a", 0)
        producer.commit()
        delayed: tuple[Any, ...] = (cluster.delayed(request_class, 0.35),)
        if request_class is InitProducerIdRequest:
            # In the middle of the next transaction it would end that one, with an error.
            delayed = cluster.overtaken(request_class)
        answers: tuple[Any, ...] = {
            "lost": (cluster.lost(request_class),),
            "unsent": (HangUp,),
            "late": (cluster.late(request_class, 0.35),),
            "delayed": delayed,
            "doubled": (cluster.doubled(request_class),),
        }[fault]
        cluster[1].push(request_class, *answers)
        if request_class is InitProducerIdRequest and version == 2:
            producer.close()
        with producing(cluster, version) if producer.closed else _same(producer) as second:
            transact(second, "b", 1)
            second.commit()
            transact(second, "c", 2)
            second.commit()

    assert not cluster[1].pushed(request_class), "the fault never came"
    assert seen(cluster) == told("a") + told("b") + told("c")
    assert cluster.offsets == {("g", TP): (2, "c")}


@VERSIONS
def test_offsets_that_an_answer_leaves_out_are_sent_again(cluster: TransactionCluster, version: int) -> None:
    def half(request: TxnOffsetCommitRequest, version: int) -> TxnOffsetCommitResponse:
        topics = [replace(topic, partitions=topic.partitions[:1]) for topic in request.topics]
        told: TxnOffsetCommitResponse = cluster.handlers[TxnOffsetCommitRequest](
            replace(request, topics=topics), version
        )
        return told

    with producing(cluster, version) as producer:
        producer.begin()
        cluster[1].push(TxnOffsetCommitRequest, half)
        producer.send_offsets({TP: OffsetToCommit(offset=3), OTHER: OffsetToCommit(offset=4)}, "g")
        producer.commit()
    assert cluster.offsets == {("g", TP): (3, ""), ("g", OTHER): (4, "")}


@VERSIONS
def test_a_block_that_ends_in_a_commit_without_time_is_aborted(
    cluster: TransactionCluster, version: int
) -> None:
    cluster.script(TP, *[refused(E.NOT_ENOUGH_REPLICAS)] * 100_000)
    with producing(cluster, version, max_block_ms=1_000) as producer:
        with pytest.raises(DeadlineExceededError), producer.transaction():
            producer.send("t", value=b"1", partition=0)
        assert producer.state is State.READY
        cluster.scripts[TP].clear()
        with producer.transaction():
            producer.send("t", value=b"2", partition=0)
    assert seen(cluster) == [b"2"]


@contextmanager
def _same(producer: TransactionalProducer) -> Iterator[TransactionalProducer]:
    yield producer


@VERSIONS
def test_a_commit_whose_outcome_is_open_can_only_be_repeated(
    cluster: TransactionCluster, version: int
) -> None:
    with producing(cluster, version) as producer:
        transact(producer, "a", 0)
        producer.flush()
        cluster[1].on(EndTxnRequest, cluster.lost(EndTxnRequest))
        with pytest.raises(DeadlineExceededError, match="EndTxn"):
            producer.commit(timeout=0.3)
        with pytest.raises(TransactionStateError, match="can't abort"):
            producer.abort()
        with pytest.raises(TransactionStateError, match="can't detach"):
            producer.detach()
        with pytest.raises(TransactionStateError, match="can't send"):
            producer.send("t", value=b"more")
        cluster[1].on(EndTxnRequest, cluster.handlers[EndTxnRequest])
        producer.commit()
        transact(producer, "b", 1)
        producer.commit()

    assert seen(cluster) == told("a") + told("b")


def test_an_unknown_server_error_is_no_outcome(cluster: TransactionCluster) -> None:
    with producing(cluster) as producer:
        transact(producer, "a", 0)
        cluster[1].push(EndTxnRequest, EndTxnResponse(error_code=E.UNKNOWN_SERVER_ERROR))
        producer.commit()
    assert seen(cluster) == told("a")


@VERSIONS
def test_a_failed_record_keeps_the_transaction_from_being_committed(
    cluster: TransactionCluster, version: int
) -> None:
    with producing(cluster, version) as producer:
        producer.begin()
        cluster.script(TP, refused(E.INVALID_RECORD))
        write(producer, b"bad", b"good")
        with pytest.raises(TransactionAbortableError, match="INVALID_RECORD"):
            producer.commit()
        with pytest.raises(TransactionAbortableError, match="can't send, only abort"):
            producer.send("t", value=b"more")
        producer.abort()
        transact(producer, "b", 1)
        producer.commit()
    assert seen(cluster) == told("b")


def test_a_record_that_send_refuses_keeps_the_transaction_from_being_committed(
    cluster: TransactionCluster,
) -> None:
    with producing(cluster) as producer:
        producer.begin()
        write(producer, b"good")
        with pytest.raises(RecordError):
            producer.send("t", value=b"bad", partition=7)
        with pytest.raises(TransactionAbortableError, match="partition 7"):
            producer.commit()
        producer.abort()
    assert seen(cluster) == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_send_that_is_interrupted_while_it_waits_for_room_keeps_the_transaction_from_being_committed(
    cluster: TransactionCluster, kind: type[BaseException]
) -> None:
    def interrupt(*_: object) -> None:
        raise kind

    def interrupt_once_it_waits() -> None:
        wait_until(lambda: producer._memory.waiting)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with producing(cluster, max_buffered_records=1, max_block_ms=60_000) as producer:
            producer.begin()
            cluster[1].on(ProduceRequest, lambda _request, _version: Silence)
            write(producer, b"taken")
            other = threading.Thread(target=interrupt_once_it_waits)
            other.start()
            with pytest.raises(kind):
                producer.send("t", value=b"interrupted", partition=0)
            other.join(60)
            cluster[1].on(ProduceRequest, cluster.handlers[ProduceRequest])
            with pytest.raises(TransactionAbortableError, match=kind.__name__):
                producer.commit()
            producer.abort()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen(cluster) == []


def test_records_that_expire_keep_the_transaction_from_being_committed(cluster: TransactionCluster) -> None:
    with producing(cluster, delivery_timeout_ms=300) as producer:
        producer.begin()
        cluster.script(TP, *[refused(E.NOT_ENOUGH_REPLICAS)] * 500)
        write(producer, b"late", b"good")
        with pytest.raises(TransactionAbortableError, match=r"delivery\.timeout\.ms"):
            producer.commit()
        cluster.scripts.clear()
        producer.abort()
        transact(producer, "b", 1)
        producer.commit()
    assert seen(cluster) == told("b")


@pytest.mark.parametrize(
    "code", [E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.UNKNOWN_PRODUCER_ID, E.TRANSACTION_ABORTABLE]
)
def test_the_epoch_is_never_raised_by_this_client(cluster: TransactionCluster, code: ErrorCode) -> None:
    """librdkafka 1.8.2 lost the records that were written before it."""
    with producing(cluster) as producer:
        producer.begin()
        write(producer, b"one", b"two")
        producer.flush()
        cluster.script(TP, refused(code))
        write(producer, b"three")
        with pytest.raises(TransactionAbortableError, match=code.name):
            producer.commit()
        assert {one.header("producer_epoch") for one in cluster.arrived} == {0}
        producer.abort()
        transact(producer, "b", 1)
        producer.commit()
    assert seen(cluster) == told("b")


@VERSIONS
@pytest.mark.parametrize("step", [LOST_ANSWER, LOST_REQUEST])
def test_batches_are_sent_again_within_the_transaction(
    cluster: TransactionCluster, version: int, step: Any
) -> None:
    with producing(cluster, version) as producer:
        producer.begin()
        cluster.script(TP, step)
        cluster.script(OTHER, step)
        write(producer, *told("a"))
        producer.commit()
    assert seen(cluster) == told("a")


def test_an_abort_of_version_1_with_something_under_way_fences_the_producer(
    cluster: TransactionCluster,
) -> None:
    """An abort marker of the same epoch would let the late batch in: into nothing, or the next one."""
    with producing(cluster, 1, delivery_timeout_ms=1_000) as producer:
        producer.begin()
        write(producer, b"one", b"two")
        producer.flush()
        cluster.script(TP, *[LOST_REQUEST] * 500)
        write(producer, b"three")
        with pytest.raises(TransactionAbortableError):
            producer.commit()
        producer.abort()
        assert cluster.held["x"].epoch == 1
        assert not cluster[1].requests(EndTxnRequest)
        with pytest.raises(TransactionFatalError, match="make a new producer"):
            producer.begin()
    cluster.scripts.clear()
    with producing(cluster, 1) as producer:
        transact(producer, "b", 1)
        producer.commit()
    assert seen(cluster) == told("b")


def held_back(
    answer: Callable[[Any, int], Any],
) -> tuple[Callable[[Any, int], Any], threading.Event, threading.Event]:
    """A handler of a broker: once asked, it sets the first event, and waits for the second to ``answer``."""
    asked, gate = threading.Event(), threading.Event()

    def late(request: Any, version: int) -> Any:
        asked.set()
        assert gate.wait(60)
        return answer(request, version)

    return late, asked, gate


def test_two_threads_take_the_transactional_id_once(cluster: TransactionCluster) -> None:
    """Taken again, it would fence the transaction that the other thread has begun."""
    late, asked, gate = held_back(cluster.handlers[InitProducerIdRequest])
    with producing(cluster) as producer:
        cluster[1].push(InitProducerIdRequest, late)
        thread = threading.Thread(target=producer.begin, args=(60,))
        thread.start()
        assert asked.wait(60)
        with pytest.raises(DeadlineExceededError, match="initialize: another thread was in"):
            producer.initialize(0.05)
        gate.set()
        thread.join()
        producer.initialize()
        write(producer, *told("a"))
        producer.commit()
    assert seen(cluster) == told("a")


def test_a_call_that_raised_holds_up_no_other_thread(cluster: TransactionCluster) -> None:
    with producing(cluster) as producer:
        producer.begin()
        for call in (producer.begin, lambda: producer.initialize(0.0)):
            with suppress(TransactionStateError, DeadlineExceededError):
                call()
        with ThreadPoolExecutor(1) as other:
            other.submit(write, producer, *told("a")).result(60)
            other.submit(producer.commit, 60).result(90)
    assert seen(cluster) == told("a")


@VERSIONS
def test_a_zombie_is_fenced(cluster: TransactionCluster, version: int) -> None:
    with producing(cluster, version) as zombie:
        transact(zombie, "zombie", 0)
        zombie.flush()
        with producing(cluster, version) as producer:
            transact(producer, "a", 1)
            with pytest.raises(TransactionFatalError, match="PRODUCER_FENCED") as raised:
                zombie.commit()
            assert not raised.value.possibly_committed
            producer.commit()
        with pytest.raises(TransactionFatalError, match="can't begin: EndTxn"):
            zombie.begin()
    assert seen(cluster) == told("a")


@VERSIONS
def test_a_zombie_does_not_take_its_transactional_id_back(cluster: TransactionCluster, version: int) -> None:
    """It would abort the open transaction of its successor."""
    with producing(cluster, version) as zombie:
        transact(zombie, "zombie", 0)
        zombie.commit()
        with producing(cluster, version) as producer:
            transact(producer, "a", 1)
            with pytest.raises(TransactionFatalError, match="PRODUCER_FENCED"):
                transact(zombie, "late", 2)
            producer.commit()
    assert seen(cluster) == told("a") + told("zombie")


def test_a_closed_producer_does_not_take_its_transactional_id(cluster: TransactionCluster) -> None:
    """It would abort the open transaction of its successor."""
    with producing(cluster) as closed:
        pass
    with producing(cluster) as producer:
        transact(producer, "a", 0)
        with pytest.raises(ProducerClosedError, match=r"close\(\) was called"):
            closed.initialize()
        producer.commit()
    assert seen(cluster) == told("a")


def test_a_begin_under_way_ends_with_its_producer(cluster: TransactionCluster) -> None:
    late, asked, gate = held_back(lambda _request, _version: HangUp)
    cluster[1].push(InitProducerIdRequest, late)
    with producing(cluster) as producer, ThreadPoolExecutor(1) as other:
        begun = other.submit(producer.begin)
        assert asked.wait(60)
        producer.close()
        gate.set()
        with pytest.raises(ProducerClosedError, match=r"close\(\) was called"):
            begun.result(60)
    assert not cluster.held


@pytest.mark.parametrize("late_request", [FindCoordinatorRequest, ApiVersionsRequest])
def test_a_begin_under_way_on_a_router_of_the_caller_ends_with_its_producer(
    late_request: type[Any],
) -> None:
    """It goes on then: looking for the coordinator and connecting to it may take longer than the close."""
    with TransactionCluster(brokers=2) as cluster, ThreadPoolExecutor(1) as other:
        answer = cluster._find if late_request is FindCoordinatorRequest else cluster._versions
        late, asked, gate = held_back(answer)
        # The one to begin with is not the coordinator.
        settings = ClientConfig.from_properties(properties(f"{cluster[2].host}:{cluster[2].port}"))
        router = Router(settings)
        router.metadata((), deadline=Deadline.after_ms(60_000))
        for broker in cluster.brokers.values():
            broker.push(late_request, late)
        producer = TransactionalProducer(settings, TransactionConfig(transactional_id="x"), router=router)
        begun = other.submit(producer.begin)
        assert asked.wait(60)
        producer.close()
        gate.set()
        with pytest.raises(ProducerClosedError, match=r"close\(\) was called"):
            begun.result(60)
        router.close()
        assert not cluster.held


def test_a_begin_without_a_coordinator_ends_with_its_producer_on_a_router_of_the_caller(
    cluster: TransactionCluster,
) -> None:
    """No later attempt looks for one: nothing else would end them before the time of the operation."""
    asked = threading.Event()

    def hang_up(*_: object) -> Any:
        asked.set()
        return HangUp

    client = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20, "default.api.timeout.ms": 30_000}
    settings = ClientConfig.from_properties(properties(cluster.bootstrap_servers, **client))
    router = Router(settings)
    router.metadata((), deadline=Deadline.after_ms(60_000))  # the first contact, which is not tried for long
    cluster[1].on(FindCoordinatorRequest, hang_up)
    producer = TransactionalProducer(settings, TransactionConfig(transactional_id="x"), router=router)
    with ThreadPoolExecutor(1) as other:
        begun = other.submit(producer.begin)
        assert asked.wait(60)
        producer.close()
        with pytest.raises(ProducerClosedError, match=r"close\(\) was called"):
            begun.result(60)
    router.close()


def test_a_begin_of_a_later_transaction_ends_with_its_producer(cluster: TransactionCluster) -> None:
    """It began one that only another close would have aborted."""
    late, asked, gate = held_back(lambda _request, _version: HangUp)
    with producing(cluster, version=1) as producer, ThreadPoolExecutor(1) as other:
        transact(producer, "a", 0)
        producer.commit()
        cluster[1].push(InitProducerIdRequest, late)
        begun = other.submit(producer.begin)
        assert asked.wait(60)
        producer.close()
        gate.set()
        with pytest.raises(ProducerClosedError, match=r"close\(\) was called"):
            begun.result(60)
        assert producer.state is State.READY
    assert seen(cluster) == told("a")


def test_a_zombie_that_may_have_committed_says_so(cluster: TransactionCluster) -> None:
    with producing(cluster) as zombie:
        transact(zombie, "a", 0)
        zombie.flush()
        cluster[1].on(EndTxnRequest, cluster.lost(EndTxnRequest))
        with pytest.raises(DeadlineExceededError):
            zombie.commit(timeout=0.2)
        with producing(cluster) as producer:
            producer.initialize()
        cluster[1].on(EndTxnRequest, cluster.handlers[EndTxnRequest])
        cluster[1].push(EndTxnRequest, HangUp)
        with pytest.raises(TransactionFatalError) as raised:
            zombie.commit()
        assert raised.value.possibly_committed
    assert seen(cluster) == told("a")


@VERSIONS
def test_a_transaction_that_the_coordinator_has_aborted_is_not_committed(
    cluster: TransactionCluster, version: int
) -> None:
    with producing(cluster, version) as producer:
        transact(producer, "a", 0)
        producer.flush()
        cluster.expire("x")
        with pytest.raises(TransactionFatalError, match=r"INVALID_TXN_STATE|PRODUCER_FENCED"):
            producer.commit()
    assert seen(cluster) == []


def test_a_fenced_batch_ends_the_producer(cluster: TransactionCluster) -> None:
    with producing(cluster) as producer:
        producer.begin()
        write(producer, b"one", b"two")
        producer.flush()
        cluster.expire("x")
        write(producer, b"three", b"four")
        with pytest.raises((TransactionFatalError, ProducerClosedError), match="INVALID_PRODUCER_EPOCH"):
            producer.commit()
        with pytest.raises(TransactionFatalError, match="INVALID_PRODUCER_EPOCH"):
            producer.begin()
    assert seen(cluster) == []


@VERSIONS
def test_nothing_is_asked_of_the_coordinator_for_an_empty_transaction(
    cluster: TransactionCluster, version: int
) -> None:
    with producing(cluster, version) as producer:
        for end in (producer.commit, producer.abort):
            producer.begin()
            end()
        producer.begin()
        assert producer.detach() is None
    assert not cluster[1].requests(EndTxnRequest)
    assert not cluster.ended


@VERSIONS
@pytest.mark.parametrize("commit", [True, False])
def test_a_detached_transaction_is_ended_elsewhere(
    cluster: TransactionCluster, version: int, commit: bool
) -> None:
    with producing(cluster, version) as producer:
        transact(producer, "a", 0)
        detached = producer.detach()
        with pytest.raises(TransactionStateError, match="given away"):
            producer.send("t", value=b"more")
        with pytest.raises(TransactionStateError, match="given away"):
            producer.commit()
    assert not cluster.ended, "closing it ended what was given away"
    assert detached is not None
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
    for _ in range(2):  # any number of times
        end_transaction(router, detached, commit=commit, deadline=Deadline.after_ms(5_000))
    if commit:  # abort() of Spark's comes after a failed commit(), which may have done it
        end_transaction(router, detached, commit=False, deadline=Deadline.after_ms(5_000))
    router.close()
    assert seen(cluster) == (told("a") if commit else [])


def test_closing_aborts_what_is_open(cluster: TransactionCluster) -> None:
    with producing(cluster) as producer:
        transact(producer, "a", 0)
    assert cluster.ended == [("x", 1, False)]
    assert seen(cluster) == []


def test_closing_aborts_what_a_commit_could_not_deliver_in_time(cluster: TransactionCluster) -> None:
    """Else readers would wait for it until the transaction's timeout."""
    with producing(cluster) as producer:
        producer.begin()
        write(producer, *told("a"))
        producer.flush()
        cluster[1].on(ProduceRequest, lambda _request, _version: Silence)
        write(producer, b"late")
        with pytest.raises(DeadlineExceededError):
            producer.commit(0.1)
        assert producer.state is State.FLUSHING
        cluster[1].on(ProduceRequest, cluster.handlers[ProduceRequest])
    assert cluster.ended == [("x", 1, False)]
    assert seen(cluster) == []


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        (State.ABORTABLE, [("x", 1, False)]),
        (State.ABORTING, [("x", 1, False)]),
        (State.COMMITTING, []),  # only its caller may ask again
    ],
)
def test_closing_aborts_what_can_be_aborted(
    cluster: TransactionCluster, state: State, ended: list[Any]
) -> None:
    """Else readers would wait for it until the transaction's timeout."""
    with producing(cluster) as producer:
        producer.begin()
        write(producer, *told("a"))
        producer.flush()
        cluster[1].on(EndTxnRequest, lambda _request, _version: HangUp)
        if state is State.ABORTABLE:
            with pytest.raises(RecordError):
                producer.send("t", value=b"of no partition", partition=2)
        else:
            with pytest.raises(DeadlineExceededError):
                (producer.commit if state is State.COMMITTING else producer.abort)(0.3)
        assert producer.state is state
        answer = cluster.handlers[EndTxnRequest]
        # The last attempt of that call may only come in now.
        cluster[1].on(EndTxnRequest, lambda asked, at: HangUp if asked.committed else answer(asked, at))
    assert cluster.ended == ended
    assert seen(cluster) == []


@VERSIONS
def test_closing_in_a_callback_leaves_the_abort_to_another_close(
    cluster: TransactionCluster, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers waited for it until the transaction's timeout, and no line said so."""
    with producing(cluster, version) as producer:
        producer.begin()
        producer.send("t", value=b"a", partition=0, on_delivery=lambda _: producer.close())
        wait_until(lambda: not producer._sender.running)
        assert "close() in a callback can't abort it" in caplog.text
        assert cluster.held["x"].state == "ongoing"
    assert [committed for _, _, committed in cluster.ended] == [False]


def test_an_abort_that_had_no_time_before_a_close_in_a_callback_is_left_to_another_close(
    cluster: TransactionCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The next close took it for one that a close had tried: readers waited, and no line said so."""
    gate = threading.Event()

    def close(_delivery: Any) -> None:
        gate.wait(60)
        producer.close()

    with producing(cluster) as producer:
        producer.begin()
        write(producer, b"a")
        producer.flush()
        producer.send("t", value=b"b", partition=0, on_delivery=close)
        with pytest.raises(DeadlineExceededError):
            producer.abort(0.05)
        gate.set()
        wait_until(lambda: not producer._sender.running)
        assert "close() in a callback can't abort it" in caplog.text
        assert cluster.held["x"].state == "ongoing"
    assert [committed for _, _, committed in cluster.ended] == [False]
    assert producer.state is State.READY


def test_an_abort_for_which_closing_had_no_time_does_not_hold_up_the_next_close(
    cluster: TransactionCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with producing(cluster) as producer:
        producer.begin()
        write(producer, *told("a"))
        producer.flush()
        cluster[1].on(EndTxnRequest, lambda _request, _version: HangUp)
        producer.close(0.3)
        assert "stays open until its timeout" in caplog.text
        tries = len(cluster[1].requests(EndTxnRequest))
    assert len(cluster[1].requests(EndTxnRequest)) == tries


def test_closing_says_nothing_of_a_transaction_that_another_thread_ends_meanwhile(
    cluster: TransactionCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log said of a committed one that it stays open until its timeout."""
    with producing(cluster) as producer:
        abort = producer.abort

        def abort_late(timeout: Any) -> None:
            producer.commit()
            abort(timeout)

        monkeypatch.setattr(producer, "abort", abort_late)
        producer.begin()
        write(producer, *told("a"))
    assert seen(cluster) == told("a")
    assert caplog.records == []


def test_the_value_comes_second(cluster: TransactionCluster) -> None:
    with producing(cluster) as producer, producer.transaction():
        producer.send("t", b"one", key=b"k", partition=0)
        producer.send_many("t", [{"key": "k", "value": "two"}], partition=0)
        with pytest.raises(TypeError, match="positional"):
            producer.send("t", b"k", b"three")  # type: ignore[misc]
    assert seen(cluster) == [b"one", b"two"]


def test_a_block_is_committed_at_its_end_and_aborted_where_it_raises(cluster: TransactionCluster) -> None:
    with producing(cluster) as producer:
        with producer.transaction():
            write(producer, *told("a"))
        with pytest.raises(RecordError), producer.transaction():  # noqa: PT012
            write(producer, *told("b"))
            producer.send("t", value=b"bad", partition=7)
        assert producer.state is State.READY
    assert seen(cluster) == told("a")


def test_a_block_that_is_interrupted_as_it_begins_leaves_no_transaction_open(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Transaction.begin

    def interrupted(transaction: Transaction, version: int) -> None:
        begin(transaction, version)
        raise KeyboardInterrupt

    with producing(cluster) as producer:
        with monkeypatch.context() as patched:
            patched.setattr(Transaction, "begin", interrupted)
            with pytest.raises(KeyboardInterrupt), producer.transaction():
                raise AssertionError
        assert producer.state is State.READY
        with producer.transaction():
            write(producer, *told("a"))
            with pytest.raises(TransactionStateError, match="can't begin"), producer.transaction():
                raise AssertionError
            write(producer, *told("b"))
    assert seen(cluster) == [*told("a"), *told("b")]


def test_a_block_that_is_interrupted_as_it_begins_leaves_the_transaction_of_another_thread(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producing(cluster) as producer:
        other = threading.Thread(target=producer.begin)
        other.start()
        other.join(60)
        with pytest.raises(TransactionStateError), producer.transaction():
            raise AssertionError
        with monkeypatch.context() as patched:
            patched.setattr(TransactionSession, "initialize", interrupt)
            with pytest.raises(KeyboardInterrupt):
                producer.transaction().__enter__()
        assert producer.state is State.OPEN
        write(producer, *told("a"))
        producer.commit()
    assert seen(cluster) == told("a")


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@VERSIONS
def test_an_abort_that_failed_is_done_by_the_next_begin(cluster: TransactionCluster, version: int) -> None:
    with producing(cluster, version) as producer:
        producer.begin()
        write(producer, *told("a"))
        producer.flush()
        cluster[1].on(EndTxnRequest, lambda _request, _version: HangUp)
        with pytest.raises(DeadlineExceededError):
            producer.abort(0.3)
        assert producer.state is State.ABORTING
        with pytest.raises(DeadlineExceededError):
            producer.begin(0.3)
        cluster[1].on(EndTxnRequest, cluster.handlers[EndTxnRequest])
        with producer.transaction():
            write(producer, *told("b"))
    assert seen(cluster) == told("b")


def test_who_ends_a_transaction_waits_no_longer_than_it_was_told_for_who_waits_for_room(
    cluster: TransactionCluster,
) -> None:
    cluster[1].on(ProduceRequest, lambda _request, _version: Silence)
    refused: list[KafkaError] = []

    def send() -> None:
        try:
            write(producer, *told("a"))
        except KafkaError as error:
            refused.append(error)

    with producing(cluster, max_buffered_records=1, max_block_ms=60_000) as producer:
        producer.begin()
        other = threading.Thread(target=send)
        other.start()
        for _ in range(6_000):
            if producer._memory.waiting:
                break
            other.join(0.01)
        assert producer._memory.waiting
        for end in (producer.abort, producer.commit, producer.detach):
            with pytest.raises(DeadlineExceededError):
                end(0.1)
            assert other.is_alive()
        producer.close(0.2)
        other.join(60)
        assert [type(error) for error in refused] == [ProducerClosedError]


def test_misuse_is_refused(cluster: TransactionCluster) -> None:
    settings = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
    with pytest.raises(ConfigError, match=r"transactional\.id"):
        TransactionConfig(transactional_id="")
    for config, words in [
        ({"enable_idempotence": False}, ": enable.idempotence=false"),
        ({"acks": Acks.LEADER}, ": acks=1"),
        ({"retries": 0}, ": retries=0"),
        ({"max_in_flight": 6}, ": max.in.flight.requests.per.connection=6 is over 5"),
        ({"spill_dir": "x"}, "spill"),
    ]:
        with pytest.raises(ConfigError, match=words):
            TransactionalProducer(settings, TransactionConfig(transactional_id="x"), ProducerConfig(**config))  # type: ignore[arg-type]
    with producing(cluster) as producer:
        for call in (producer.commit, producer.abort, producer.detach):
            with pytest.raises(TransactionStateError, match="not initialized yet"):
                call()
        producer.initialize()
        with pytest.raises(TransactionStateError, match="can't send; the producer is between"):
            producer.send("t", value=b"1")
        with pytest.raises(TransactionStateError, match="between"):
            producer.send_offsets({TP: 1}, "g")
        producer.begin()
        with pytest.raises(TransactionStateError, match="can't begin"):
            producer.begin()
        write(producer, *told("a"))
        producer.commit()
    assert seen(cluster) == told("a")


def test_a_timeout_over_the_brokers_maximum_names_both(cluster: TransactionCluster) -> None:
    cluster[1].push(
        InitProducerIdRequest,
        InitProducerIdResponse(error_code=E.INVALID_TRANSACTION_TIMEOUT, producer_epoch=-1),
    )
    with (
        producing(cluster) as producer,
        pytest.raises(ConfigError, match=r"transaction\.timeout\.ms=60000.*transaction\.max\.timeout\.ms="),
    ):
        producer.initialize()


@VERSIONS
def test_a_group_whose_coordinator_may_not_be_known_ends_the_transaction_alone(
    cluster: TransactionCluster, version: int
) -> None:
    """Nothing was under way, and with version 1 the producer was at its end."""

    def refuse(request: FindCoordinatorRequest, version: int) -> Any:
        answer = cluster._find(request, version)
        for one in answer.coordinators if request.key_type == GROUP_KEY_TYPE else ():
            object.__setattr__(one, "error_code", E.GROUP_AUTHORIZATION_FAILED)
        return answer

    with producing(cluster, version) as producer:
        producer.begin()
        write(producer, *told("a"))
        cluster[1].on(FindCoordinatorRequest, refuse)
        with pytest.raises(TransactionAbortableError, match=r"group g.*ACL for Describe on the group"):
            producer.send_offsets({TP: 1}, "g")
        cluster[1].on(FindCoordinatorRequest, cluster._find)
        producer.abort()
        transact(producer, "b", 1)
        producer.commit()
    assert (seen(cluster), cluster.offsets) == (told("b"), {("g", TP): (1, "b")})


@VERSIONS
@pytest.mark.parametrize("refusal", [E.GROUP_AUTHORIZATION_FAILED, E.ILLEGAL_GENERATION])
def test_offsets_that_are_refused_keep_the_transaction_from_being_committed(
    cluster: TransactionCluster, version: int, refusal: ErrorCode
) -> None:
    def refuse(request: TxnOffsetCommitRequest, version: int) -> Any:
        answer = cluster._offset_commit(request, version)
        for topic in answer.topics:
            for one in topic.partitions:
                object.__setattr__(one, "error_code", refusal)
        return answer

    with producing(cluster, version) as producer:
        producer.begin()
        write(producer, *told("a"))
        cluster[1].push(TxnOffsetCommitRequest, refuse)
        with pytest.raises(TransactionAbortableError, match=refusal.name):
            producer.send_offsets({TP: 1}, "g")
        with pytest.raises(TransactionAbortableError, match=refusal.name):
            producer.commit()
        producer.abort()
        transact(producer, "b", 1)  # the refusal leaves nothing under way: the producer goes on
        producer.commit()
    assert (seen(cluster), cluster.offsets) == (told("b"), {("g", TP): (1, "b")})


@pytest.mark.parametrize(
    ("codes", "error"),
    [
        ([E.NONE, E.ILLEGAL_GENERATION], TransactionAbortableError),
        ([E.COORDINATOR_LOAD_IN_PROGRESS, E.ILLEGAL_GENERATION], TransactionAbortableError),
        ([E.ILLEGAL_GENERATION, E.INVALID_PRODUCER_EPOCH], TransactionFatalError),
        ([E.INVALID_PRODUCER_EPOCH, E.FENCED_INSTANCE_ID], TransactionFatalError),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_of_the_answers_to_one_request_for_offsets_the_gravest_counts(
    cluster: TransactionCluster, codes: list[ErrorCode], error: type[KafkaError], order: int
) -> None:
    answer = TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name="t",
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=index, error_code=code)
                    for index, code in enumerate(codes[::order])
                ],
            )
        ]
    )
    with producing(cluster) as producer:
        producer.begin()
        cluster[1].push(TxnOffsetCommitRequest, answer)
        with pytest.raises(error):
            producer.send_offsets({TP: 1, OTHER: 2}, "g")
    assert len(cluster[1].requests(TxnOffsetCommitRequest)) == 1
    assert not cluster.offsets


@VERSIONS
def test_offsets_say_which_member_of_which_generation_sends_them(
    cluster: TransactionCluster, version: int
) -> None:
    """By these the coordinator fences a member that was replaced (KIP-447)."""
    member = GroupMembership(group_id="g", generation_id=4, member_id="me", group_instance_id="mine")
    with producing(cluster, version) as producer:
        producer.begin()
        producer.send_offsets({TP: OffsetToCommit(offset=5, leader_epoch=3, metadata="m")}, member)
        producer.abort()
    (sent,) = cluster[1].requests(TxnOffsetCommitRequest)
    assert (sent.group_id, sent.generation_id, sent.member_id, sent.group_instance_id) == (
        "g",
        4,
        "me",
        "mine",
    )
    (one,) = sent.topics[0].partitions
    assert (one.committed_offset, one.committed_leader_epoch, one.committed_metadata) == (5, 3, "m")


class KnowingEpochs(GroupMembership):
    """A member that has read records of epoch 4."""

    def leader_epochs(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return dict.fromkeys(offsets, 4)


@pytest.mark.parametrize(("given", "committed"), [(-1, 4), (0, 0), (3, 3)])
def test_an_epoch_that_the_caller_gives_comes_before_that_of_the_member(
    cluster: TransactionCluster, given: int, committed: int
) -> None:
    with producing(cluster, 2) as producer:
        producer.begin()
        producer.send_offsets({TP: OffsetToCommit(offset=5, leader_epoch=given)}, KnowingEpochs(group_id="g"))
        producer.abort()
    (sent,) = cluster[1].requests(TxnOffsetCommitRequest)
    assert [one.committed_leader_epoch for one in sent.topics[0].partitions] == [committed]


@VERSIONS
def test_offsets_are_whole_numbers_and_those_of_numpy_are_taken(
    cluster: TransactionCluster, version: int
) -> None:
    with producing(cluster, version) as producer:
        for offset, error in ((-1, ValueError), (1.0, TypeError), (True, TypeError), ("1", TypeError)):
            for given in (offset, OffsetToCommit(offset=offset)):  # type: ignore[arg-type]
                producer.begin()
                with pytest.raises(error):
                    producer.send_offsets({TP: given}, "g")  # type: ignore[dict-item]
                # Its records would count without the offsets, and be written once more.
                with pytest.raises(TransactionAbortableError):
                    producer.commit()
                producer.abort()
        producer.begin()
        producer.send_offsets({tuple(TP): np.int64(5)}, "g")  # type: ignore[dict-item]
        producer.commit()
    (sent,) = cluster[1].requests(TxnOffsetCommitRequest)
    assert [one.committed_offset for one in sent.topics[0].partitions] == [5]


@pytest.fixture
def _one_offset_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_commit, "MAX_COMMIT_BYTES", 1)


@VERSIONS
@pytest.mark.usefixtures("_one_offset_a_request")
@pytest.mark.parametrize("fault", [None, "lost", E.COORDINATOR_LOAD_IN_PROGRESS])
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_offsets_in_several_requests_are_committed_together(
    cluster: TransactionCluster, version: int, fault: Any, end: str
) -> None:
    handler = cluster.handlers[TxnOffsetCommitRequest]
    if fault is not None:
        second = cluster.lost(TxnOffsetCommitRequest) if fault == "lost" else _refusing(cluster, fault)
        cluster[1].push(TxnOffsetCommitRequest, handler, second)
    with producing(cluster, version) as producer:
        producer.begin()
        producer.send_offsets({TP: 1, OTHER: 2}, "g")
        assert not cluster.offsets
        getattr(producer, end)()
    sent = [
        [(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions]
        for request in cluster[1].requests(TxnOffsetCommitRequest)
    ]
    assert sent == [[TP], [OTHER]] + ([] if fault is None else [[OTHER]])
    assert len(cluster[1].requests(AddOffsetsToTxnRequest)) == (1 if version == 1 else 0)
    assert cluster.offsets == ({("g", TP): (1, ""), ("g", OTHER): (2, "")} if end == "commit" else {})


@VERSIONS
def test_a_group_and_a_transaction_may_have_different_coordinators(version: int) -> None:
    """That of the transaction is asked to expect the offsets, that of the group to take them in."""
    with TransactionCluster(brokers=2) as cluster:
        with producing(cluster, version) as producer:
            producer.begin()
            producer.send_offsets({TP: 1}, "g")
            producer.commit()
        asked = [
            [len(cluster[node_id].requests(request)) for node_id in (1, 2)]
            for request in (AddOffsetsToTxnRequest, TxnOffsetCommitRequest)
        ]
        assert asked == [[1 if version == 1 else 0, 0], [0, 1]]
        assert cluster.offsets == {("g", TP): (1, "")}


@VERSIONS
@pytest.mark.usefixtures("_one_offset_a_request")
@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (E.ILLEGAL_GENERATION, TransactionAbortableError),
        (E.UNKNOWN_MEMBER_ID, TransactionAbortableError),
        (E.UNKNOWN_SERVER_ERROR, TransactionFatalError),
    ],
)
def test_offsets_of_which_a_later_request_is_refused_are_not_committed_at_all(
    cluster: TransactionCluster, version: int, refusal: ErrorCode, error: type[KafkaError]
) -> None:
    """The member was replaced between the two: the partitions of the first went to another one as well."""
    with producing(cluster, version) as producer:
        producer.begin()
        write(producer, *told("a"))
        handler = cluster.handlers[TxnOffsetCommitRequest]
        cluster[1].push(TxnOffsetCommitRequest, handler, _refusing(cluster, refusal))
        with pytest.raises(error, match=refusal.name):
            producer.send_offsets({TP: 1, OTHER: 2}, "g")
        assert set(cluster.held["x"].offsets) == {("g", TP)}, "the coordinator has the first"
        with pytest.raises(error, match=refusal.name):
            producer.commit()
        if error is TransactionAbortableError:
            producer.abort()
    with producing(cluster, version) as producer:
        producer.initialize()  # which ends what the former one has left
    assert (seen(cluster), cluster.offsets) == ([], {})


@pytest.mark.usefixtures("_one_offset_a_request")
def test_offsets_that_are_interrupted_between_two_requests_are_not_committed(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = transaction_requests.split_commit

    def interrupted(*arguments: Any) -> Iterator[Any]:
        for number, part in enumerate(whole(*arguments)):
            if number:
                raise KeyboardInterrupt
            yield part

    monkeypatch.setattr(transaction_requests, "split_commit", interrupted)
    with producing(cluster) as producer:
        producer.begin()
        with pytest.raises(KeyboardInterrupt):
            producer.send_offsets({TP: 1, OTHER: 2}, "g")
        with pytest.raises(TransactionAbortableError, match="KeyboardInterrupt"):
            producer.commit()
        producer.abort()
    assert cluster.ended == [("x", 1, False)]
    assert cluster.offsets == {}


@pytest.mark.usefixtures("_one_offset_a_request")
def test_all_requests_for_offsets_share_the_time_of_the_call(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[Deadline] = []
    monkeypatch.setattr(transaction_requests, "_commit_part", lambda *given: deadlines.append(given[-1]))
    with producing(cluster) as producer:
        producer.begin()
        limit = Deadline.after_ms(60_000)
        producer.send_offsets({TP: 1, OTHER: 2}, "g", timeout=limit)
        producer.abort()
    assert deadlines == [limit, limit]


def _refusing(cluster: TransactionCluster, refusal: ErrorCode) -> Any:
    """A TxnOffsetCommit that is not applied."""

    def refuse(request: TxnOffsetCommitRequest, _version: int) -> Any:
        topics = [
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=one.partition_index, error_code=refusal)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return TxnOffsetCommitResponse(topics=topics)

    return refuse


@pytest.mark.parametrize("offsets", [{TP: OffsetToCommit(offset=7)}, {}])
def test_offsets_that_the_member_can_not_commit_are_not_sent(
    cluster: TransactionCluster, offsets: dict[TopicPartition, OffsetToCommit]
) -> None:
    """Not none, either: the member may have lost the partitions of which the transaction has results."""

    class Elsewhere(GroupMembership):
        def check(self, offsets: Mapping[TopicPartition, int]) -> None:
            raise KafkaError(f"{offsets} or more are another's")

    with producing(cluster) as producer:
        producer.begin()
        write(producer, *told("a"))
        with pytest.raises(KafkaError, match="} or more are another's"):
            producer.send_offsets(offsets, Elsewhere(group_id="g"))
        with pytest.raises(TransactionAbortableError, match="are another's"):
            producer.commit()
        producer.abort()
    assert cluster[1].requests(TxnOffsetCommitRequest) == []
    assert (seen(cluster), cluster.offsets) == ([], {})


def test_the_transactional_id_may_stand_among_the_properties(cluster: TransactionCluster) -> None:
    given = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "x", "linger.ms": "0"}
    for producer in (
        TransactionalProducer(given),
        TransactionalProducer(given, "x"),
        TransactionalProducer(cluster.bootstrap_servers, transactional_id="x", transaction_timeout_ms=5_000),
    ):
        with producer, producer.transaction():
            write(producer, b"1")
    assert cluster.committed[TP] == [b"1"] * 3
    assert {one.transactional_id for one in cluster[1].requests(InitProducerIdRequest)} <= {"x"}


def test_a_producer_without_transactions_refuses_a_transactional_id() -> None:
    """It would write outside of transactions what its user expects in one."""
    given = {"bootstrap.servers": "nowhere:1", "transactional.id": "x"}
    with pytest.raises(ConfigError, match="Use TransactionalProducer"):
        Producer(given)
    with pytest.raises(ConfigError, match="Use TransactionalProducer"):
        producer_for(given)


def test_a_transactional_id_that_is_given_twice_is_one_without_the_blanks_around_it() -> None:
    settings: dict[str, Any] = {}
    assert _transaction("x", {"bootstrap.servers": "a:1", "transactional.id": "x "}, settings)
    assert settings == {"transactional_id": "x"}
    given = TransactionConfig(transactional_id="x")
    assert _transaction(given, {"bootstrap.servers": "a:1", "transactional.id": " x"}, {}) is given


def test_an_argument_with_blanks_around_it_is_another_transactional_id() -> None:
    """Only properties lose them; as a part of the id they are another id for the broker."""
    properties = {"bootstrap.servers": "a:1", "transactional.id": "x"}
    for name, bootstrap, settings in (
        ("x ", properties, {}),
        ("x", None, {"transactional_id": "x "}),
        ("x ", properties | {"transactional.id": "x "}, {}),
    ):
        with pytest.raises(ConfigError, match=r"transactional\.id is given twice"):
            _transaction(name, bootstrap, dict[str, Any](settings))
    settings = {}
    assert _transaction("x ", {"bootstrap.servers": "a:1"}, settings)
    assert settings == {"transactional_id": "x "}


def test_two_transactional_ids_are_refused() -> None:
    given = {"bootstrap.servers": "nowhere:1", "transactional.id": "x"}
    for producer in (
        lambda: TransactionalProducer(given, "y"),
        lambda: TransactionalProducer(given, TransactionConfig(transactional_id="y")),
        lambda: TransactionalProducer("nowhere:1", "y", transactional_id="x"),
    ):
        with pytest.raises(ConfigError, match=r"transactional\.id is given twice, as 'x' and as 'y'"):
            producer()
    with pytest.raises(ConfigError, match=r"transactional\.id must be given"):
        TransactionalProducer("nowhere:1")
