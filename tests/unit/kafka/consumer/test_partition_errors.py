"""Errors about one partition of a reader: when they are raised, and how reading continues after them."""

from __future__ import annotations

import contextlib
import gc
import struct
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.brokers.scripted_broker import HangUp, ScriptedCluster, refusal
from support.consumer.partition_reading import (
    Start,
    eventually,
    fill,
    offsets_in,
    prefetched,
    readers_of,
    soon,
    take,
)

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.reader_config import OffsetReset, ReaderConfig
from spark_kafka_native.kafka.consumer import partition_reader, prefetch_thread
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.consumer.partition_reader import PartitionReader
from spark_kafka_native.kafka.consumer.prefetch_buffer import AppliedReset, PrefetchBuffer
from spark_kafka_native.kafka.consumer.prefetch_thread import PrefetchThread
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    ConsumerClosedError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    ProtocolError,
    TopicRecreatedError,
)
from spark_kafka_native.kafka.model import IsolationLevel, TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest

pytestmark = [
    pytest.mark.timed(0.1),
    # An interrupt in a destructor.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


TP = TopicPartition("orders", 0)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2) as running:
        yield running


@pytest.fixture
def start(cluster: ScriptedCluster) -> Iterator[Start]:
    with readers_of(cluster) as begin:
        yield begin


def test_without_a_policy_an_offset_out_of_range_is_an_error_until_it_is_moved(
    cluster: ScriptedCluster, start: Start
) -> None:
    one, two = fill(cluster, 2)
    cluster.logs[one].log_start_offset = 10
    reader = start((one, 3), (two, 0))
    found = []
    while len(found) < 20:
        with contextlib.suppress(OffsetOutOfRangeError):
            record = reader.next_record(soon())
            assert record is not None
            found.append((record.topic_partition, record.offset))
    assert found == [(two, offset) for offset in range(20)]
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError) as raised:
            reader.poll(5, soon())
        assert str(raised.value) == "orders-0 at offset 3: OFFSET_OUT_OF_RANGE (it has [10, 20))"
    reader.seek(one, 10)
    assert take(reader, 10) == list(range(10, 20))


def test_a_consumer_that_is_dropped_with_an_error_that_stays_is_freed(cluster: ScriptedCluster) -> None:
    """The error that is kept would keep the frames that raised it, and they the consumer, its thread and
    connections."""
    (tp,) = fill(cluster)
    cluster.logs[tp].log_start_offset = 10
    before = set(threading.enumerate())
    consumer = Consumer(cluster.bootstrap_servers, tp.topic, auto_offset_reset="none")
    consumer.seek(3)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError) as raised:
            consumer.poll(60)
        del raised
    freed = weakref.ref(consumer)
    (thread,) = (one for one in set(threading.enumerate()) - before if one.name == "kafka-reader")
    del consumer
    gc.collect()
    assert freed() is None
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "read",
    [
        lambda reader: reader.poll(5, soon()),
        lambda reader: reader.next_record(soon()),
        lambda reader: reader.read_columns(soon()),
    ],
    ids=["poll", "next_record", "read_columns"],
)
def test_an_error_of_one_partition_is_heard_of_once_while_others_have_records(
    cluster: ScriptedCluster, start: Start, read: Callable[[PartitionReader], Any]
) -> None:
    one, two = fill(cluster, 2, batches=100)
    cluster.logs[one].log_start_offset = 10
    reader = start((one, 3), (two, 0))
    prefetched(reader, two, 500)
    eventually(lambda: bool(reader.buffer.broken))
    with pytest.raises(OffsetOutOfRangeError):
        read(reader)
    assert offsets_in(read(reader))[0] == 0
    assert reader.position(two) > 0


@pytest.mark.parametrize(
    ("policy", "offset", "goes_on"), [("earliest", 3, 10), ("latest", 99, 20), ("earliest", 99, 10)]
)
def test_the_policy_says_where_to_go_on(
    cluster: ScriptedCluster, start: Start, policy: str, offset: int, goes_on: int
) -> None:
    [tp] = fill(cluster)
    cluster.logs[tp].log_start_offset = 10
    reader = start((tp, offset), auto_offset_reset=OffsetReset.parse(policy))
    eventually(lambda: reader.position(tp) == goes_on)
    cluster.logs[tp].append([b"20"])
    assert take(reader, 21 - goes_on) == list(range(goes_on, 21))


def test_a_reset_to_the_end_skips_no_record_of_an_open_transaction(
    cluster: ScriptedCluster, start: Start
) -> None:
    [tp] = fill(cluster)
    cluster.logs[tp].last_stable_offset = 15
    reader = start(
        (tp, 99),
        auto_offset_reset=OffsetReset.LATEST,
        isolation_level=IsolationLevel.READ_COMMITTED,
    )
    eventually(lambda: reader.position(tp) != 99)
    assert reader.position(tp) == 15


def reset_behind_20_rows(cluster: ScriptedCluster, start: Start) -> tuple[TopicPartition, PartitionReader]:
    """A reader that has fetched 20 rows, and then met a log that begins behind them."""
    [tp] = fill(cluster)
    reader = start((tp, 0), auto_offset_reset=OffsetReset.LATEST)
    prefetched(reader, tp, 20)
    cluster.logs[tp].append([b"%d" % offset for offset in range(20, 25)])
    cluster.logs[tp].log_start_offset = 24
    eventually(lambda: reader.buffer.partition(tp).waiting[-1].next_offset >= 25)
    return tp, reader


def test_a_reset_throws_away_nothing_that_was_fetched_before(cluster: ScriptedCluster, start: Start) -> None:
    _, reader = reset_behind_20_rows(cluster, start)
    assert take(reader, 20) == list(range(20))


def test_a_reset_is_reached_once_the_rows_of_before_are_read_and_ends_with_a_seek(
    cluster: ScriptedCluster, start: Start
) -> None:
    tp, reader = reset_behind_20_rows(cluster, start)
    assert take(reader, 2) == [0, 1]
    reset = reader.reset_of(tp)
    assert reset is not None
    assert (reset.former, reset.offset, reset.reached) == (20, 25, False)
    assert not reader.has_read(tp, 30)
    assert take(reader, 18) == list(range(2, 20))
    assert reader.reset_of(tp) == reset._replace(reached=True)
    assert reader.has_read(tp, 30)
    reader.seek(tp, 24)
    assert reader.reset_of(tp) is None


def test_a_reset_moves_no_end_that_the_log_has(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    cluster.logs[tp].log_start_offset = 10
    reader = start((tp, 3), auto_offset_reset=OffsetReset.EARLIEST)
    assert take(reader, 4) == [10, 11, 12, 13]
    assert [reader.has_read(tp, end) for end in (13, 14, 15)] == [True, True, False]


def test_a_refusal_that_the_bounds_contradict_is_asked_again(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    doubtful = [_refused(cluster) for _ in range(3)]
    cluster[1].push(FetchRequest, *doubtful)
    reader = start((tp, 5), auto_offset_reset=OffsetReset.EARLIEST)
    assert take(reader, 15) == list(range(5, 20))


def test_refusals_in_doubt_count_in_a_row(cluster: ScriptedCluster, start: Start) -> None:
    """Not over the life of a partition: the sixth one, days later, would apply the policy."""
    [tp] = fill(cluster)
    refuse, refused = _refused(cluster), []

    def counted(request: FetchRequest, version: int) -> Any:
        refused.append(request)
        return refuse(request, version)

    doubtful = [counted] * (prefetch_thread.REFUSALS_IN_DOUBT - 1)
    cluster[1].push(FetchRequest, *doubtful)
    reader = start((tp, 0), auto_offset_reset=OffsetReset.EARLIEST)
    assert take(reader, 20) == list(range(20))
    cluster[1].push(FetchRequest, *doubtful)
    eventually(lambda: len(refused) == 2 * len(doubtful))
    cluster.logs[tp].append([b"20"])
    assert take(reader, 1) == [20]


def test_one_poll_does_not_go_back(cluster: ScriptedCluster, start: Start) -> None:
    """Records before and after a reset in one list could not be committed: a commit takes the last offset."""
    [tp] = fill(cluster)
    reader = start((tp, 10), auto_offset_reset=OffsetReset.EARLIEST)
    prefetched(reader, tp, 10)
    cluster.logs[tp].batches.clear()
    cluster.logs[tp].end_offset = 0
    cluster.logs[tp].append([b"0", b"1", b"2"])
    prefetched(reader, tp, 13)
    assert [record.offset for record in reader.poll(100, soon())] == list(range(10, 20))
    assert [record.offset for record in reader.poll(100, soon())] == [0, 1, 2]


def test_a_pause_that_frees_memory_skips_nothing_of_the_log_after_a_reset(
    cluster: ScriptedCluster, start: Start
) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 10), auto_offset_reset=OffsetReset.EARLIEST, prefetch_max_bytes=250)
    assert take(reader, 3) == [10, 11, 12]
    cluster.logs[tp].batches.clear()
    cluster.logs[tp].end_offset = 0
    eventually(lambda: reader.reset_of(tp) is not None)
    for first in range(0, 25, 5):  # more than the old log had
        cluster.logs[tp].append([b"%d" % offset for offset in range(first, first + 5)])
    prefetched(reader, tp, 5)
    reader.pause(tp)
    reader.resume(tp)
    assert take(reader, 32) == [*range(13, 20), *range(25)]


def test_a_topic_that_is_found_to_be_recreated_while_a_pause_frees_memory_is_an_error(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer gets the error too late. The new topic was read from the old offset."""
    [tp] = fill(cluster)
    reader = start((tp, 0))
    assert take(reader, 3) == [0, 1, 2]
    buffer, broke, wanted = reader.buffer, reader.buffer.broke, reader.buffer.partition(tp)
    eventually(lambda: 20 in (wanted.position, *(one.next_offset for one in wanted.waiting)))

    def late(*args: Any) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(buffer, "_max_bytes", 0)
        reader.pause(tp)
        monkeypatch.undo()
        broke(*args)

    monkeypatch.setattr(buffer, "broke", late)
    cluster.topic_ids["orders"] = uuid.uuid4()
    eventually(lambda: reader.partitions[tp])
    reader.resume(tp)
    with pytest.raises(TopicRecreatedError):
        take(reader, 17)
    assert reader.position(tp) == 3


def test_a_refusal_that_stays_in_doubt_is_an_error(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    cluster[1].on(FetchRequest, _refused(cluster))
    reader = start((tp, 5))
    with pytest.raises(OffsetOutOfRangeError, match=r"it has \[0, 20\)"):
        reader.poll(5, soon())
    assert len(cluster[1].requests(FetchRequest)) == 1 + prefetch_thread.REFUSALS_IN_DOUBT


def test_between_refusals_in_doubt_the_leader_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it they would all come at once, and the policy would apply."""
    tp = TopicPartition("orders", 0)
    buffer = PrefetchBuffer(max_bytes=1)
    buffer.add(tp, 5, None)
    router = Router(ClientConfig(bootstrap_servers=("a:1",), retry_backoff_ms=70))
    thread = PrefetchThread(router, ReaderConfig(), None, buffer, None)
    thread._follow()
    tried: list[object] = []
    monkeypatch.setattr(thread._run, "try_again", lambda *given: tried.append(given))
    for count in range(1, prefetch_thread.REFUSALS_IN_DOUBT + 2):
        resolved = thread._resolved(OffsetOutOfRangeError(tp, 5, 0, 20))
        assert resolved is (count <= prefetch_thread.REFUSALS_IN_DOUBT)
    assert tried == [(tp, 70)] * prefetch_thread.REFUSALS_IN_DOUBT
    buffer.wakeup.close()


@pytest.mark.parametrize(
    ("bounds", "contradicted"),
    [
        ((6, 20), False),
        ((5, 20), True),
        ((0, 5), True),
        ((0, 4), False),
        ((None, 20), False),
        ((0, None), False),
    ],
)
def test_a_refusal_is_in_doubt_where_the_log_begins_or_ends_at_the_offset(
    bounds: tuple[int | None, int | None], contradicted: bool
) -> None:
    """If it were not, the policy would apply at once: `latest` skips all records of the log."""
    refused = OffsetOutOfRangeError(TP, 5, *bounds)
    assert prefetch_thread._is_contradicted(refused) is contradicted


def test_a_reset_has_the_bounds_of_the_log_of_then() -> None:
    """They say whether the log has lost all the records that were read, and where `stop_at_end` ends."""
    buffer = PrefetchBuffer(max_bytes=1)
    buffer.add(TP, 50, None)
    router = Router(ClientConfig(bootstrap_servers=("a:1",)))
    thread = PrefetchThread(router, ReaderConfig(), None, buffer, None)
    thread._follow()
    refused = OffsetOutOfRangeError(TP, 50, 3, 20)
    assert thread._resolved(prefetch_thread._ResetError(refused, go_on_at=12, end=18))
    assert buffer.reset_of(TP) == AppliedReset(former=50, offset=12, start=3, end=18, lacked=True)
    assert (buffer.position(TP), thread._run.position(TP)) == (12, 12)
    buffer.wakeup.close()


FORMER, PRESENT = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.mark.parametrize(
    ("change", "learns"),
    [
        pytest.param(lambda _thread, _buffer: None, True, id="none"),
        pytest.param(lambda _thread, buffer: buffer.seek(TP, 0), False, id="a seek"),
        pytest.param(
            lambda thread, _buffer: thread._judge(TopicRecreatedError("orders", "former", "present")),
            False,
            id="another topic",
        ),
    ],
)
def test_the_id_of_a_former_topic_is_not_taken_for_that_of_a_position_since(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[PrefetchThread, PrefetchBuffer], object], learns: bool
) -> None:
    """Otherwise each record of the topic that is there would be refused, also after a seek."""
    buffer = PrefetchBuffer(max_bytes=1)
    buffer.add(TP, 5, None)
    router = Router(ClientConfig(bootstrap_servers=("a:1",)))
    thread = PrefetchThread(router, ReaderConfig(), None, buffer, None)
    thread._follow()
    thread._run.state(TP).topic_id = FORMER
    monkeypatch.setattr(thread._run, "broken", lambda: {TP: None})
    change(thread, buffer)
    thread._learn_topic_id(TP, thread._fetched[TP])
    assert buffer.topic_ids() == ({TP: FORMER} if learns else {})
    thread._run.state(TP).topic_id = PRESENT
    thread._learn_topic_id(TP, thread._fetched[TP])
    assert buffer.topic_ids() == ({TP: FORMER} if learns else {}), "the first one counts"
    buffer.wakeup.close()


def _refused(cluster: ScriptedCluster) -> Any:
    serve = cluster.fetcher(1)

    def refuse(request: FetchRequest, version: int) -> Any:
        response = serve(request, version)
        response.responses[0].partitions[0] = refusal(0, ErrorCode.OFFSET_OUT_OF_RANGE)
        return response

    return refuse


def test_a_policy_that_cannot_be_asked_about_is_tried_again(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    cluster.logs[tp].log_start_offset = 10

    cluster[1].push(ListOffsetsRequest, _denied(cluster))
    reader = start((tp, 3), auto_offset_reset=OffsetReset.EARLIEST)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        reader.poll(5, soon())
    assert take(reader, 10) == list(range(10, 20))


def test_a_broker_that_is_away_for_long_is_logged_and_read_again(
    cluster: ScriptedCluster, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A read goes on, as in other clients: it has deadlines of its own."""
    [tp] = fill(cluster)
    cluster[1].on(FetchRequest, HangUp)
    reader = start((tp, 0), poll_timeout_ms=200)
    until = soon()
    while "orders-0 at offset 0 in 200 ms; the last failure" not in caplog.text:
        assert reader.poll(5, soon(0.1)) == []
        assert not until.expired
    cluster[1].on(FetchRequest, cluster.fetcher(1))
    assert take(reader, 20) == list(range(20))


def test_corrupt_records_are_an_error_until_they_are_skipped(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    log = cluster.logs[tp]
    bad = bytearray(log.batches[1])
    bad[-1] ^= 1
    log.batches[1] = bytes(bad)
    reader = start((tp, 0), max_partition_fetch_bytes=1)
    assert take(reader, 5) == list(range(5))
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="orders-0 at offset 5"):
            reader.poll(5, soon())
    reader.seek(tp, 10)
    assert take(reader, 10) == list(range(10, 20))


def test_a_recreated_topic_is_an_error_until_it_is_sought_and_then_read_as_what_it_is(
    cluster: ScriptedCluster, start: Start
) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 0))
    assert take(reader, 20) == list(range(20))
    cluster.topic_ids["orders"] = uuid.uuid4()
    for _ in range(2):
        with pytest.raises(TopicRecreatedError, match="orders was deleted and created again"):
            reader.poll(5, soon())
    reader.pause(tp)
    reader.seek(tp, 5)
    assert reader.poll(5, soon(0.05)) == []
    reader.resume(tp)
    assert take(reader, 15) == list(range(5, 20))
    reader.seek(tp, 18)
    assert take(reader, 2) == [18, 19]


@pytest.fixture
def former(cluster: ScriptedCluster, start: Start) -> PartitionReader:
    """A reader that was given the offset 5 of a former topic, and has said so."""
    [tp] = fill(cluster)
    reader = start()
    reader.add(tp, 5, uuid.uuid4())
    with pytest.raises(TopicRecreatedError, match="orders was deleted and created again"):
        reader.poll(5, soon())
    return reader


def test_an_offset_of_a_former_topic_is_an_error_before_the_first_record(
    cluster: ScriptedCluster, former: PartitionReader
) -> None:
    reader, [tp] = former, former.partitions
    assert (reader.recreated, reader.position(tp)) == ({tp}, 5)
    reader.remove(tp)
    reader.add(tp, 5, cluster.topic_ids["orders"])
    assert take(reader, 15) == list(range(5, 20))


def test_a_seek_in_a_recreated_topic_is_one_in_the_topic_that_is_there(
    cluster: ScriptedCluster, former: PartitionReader
) -> None:
    """Also where the id was given with the first offset. Its id is known from then on: commits go by it."""
    [tp] = former.partitions
    former.seek(tp, 3)
    assert take(former, 17) == list(range(3, 20))
    assert former.topic_ids == {tp: cluster.topic_ids["orders"]}


@pytest.mark.parametrize("limit", [1, 5])
def test_an_error_comes_behind_all_rows_of_its_partition(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A caller that seeks in answer to it would skip the others unread."""
    [tp] = fill(cluster)
    monkeypatch.setattr(partition_reader, "ROWS", 7)
    reader = start((tp, 0))
    prefetched(reader, tp, 20)
    found = offsets_in(reader.poll(limit, soon()))
    cluster.topic_ids["orders"] = uuid.uuid4()
    eventually(lambda: bool(reader.buffer.broken))
    with contextlib.suppress(TopicRecreatedError):
        while len(found) < 30:
            found += offsets_in(reader.next_record(soon()) if limit == 1 else reader.poll(limit, soon()))
    assert found == list(range(20))


def test_records_that_are_dropped_because_of_an_error_do_not_come_before_it(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    [tp] = fill(cluster)
    monkeypatch.setattr(partition_reader, "ROWS", 7)
    reader = start((tp, 0))
    prefetched(reader, tp, 20)
    assert take(reader, 2) == [0, 1]
    cluster.topic_ids["orders"] = uuid.uuid4()
    eventually(lambda: bool(reader.buffer.broken))
    reader.drop(tp)
    for _ in range(2):
        with pytest.raises(TopicRecreatedError):
            reader.next_record(soon())
    assert reader.partitions == {tp: False}


@pytest.mark.parametrize("check_crcs", [True, False])
def test_records_before_corrupt_ones_are_read_though_they_came_together(
    cluster: ScriptedCluster, start: Start, check_crcs: bool
) -> None:
    [tp] = fill(cluster)
    bad = bytearray(cluster.logs[tp].batches[2])
    bad[-1] ^= 1
    cluster.logs[tp].batches[2] = bytes(bad)
    reader = start((tp, 1), check_crcs=check_crcs)
    assert take(reader, 9) == list(range(1, 10))
    with pytest.raises(CorruptRecordError, match="orders-0 at offset 10"):
        reader.poll(5, soon())
    assert reader.position(tp) == 10


def test_an_offset_that_is_corrupt_lets_none_be_skipped(cluster: ScriptedCluster, start: Start) -> None:
    """No checksum covers it: the batch behind is the one that is found to be wrong."""
    [tp] = fill(cluster)
    cluster.logs[tp].end_offset = 2000
    cluster.logs[tp].batches[2] = struct.pack(">q", 1000) + cluster.logs[tp].batches[2][8:]
    reader = start((tp, 0))
    assert take(reader, 10) == list(range(10))
    with pytest.raises(CorruptRecordError, match="a batch from offset 15 after one up to 1004"):
        reader.poll(5, soon())
    assert reader.position(tp) == 10


def test_why_there_are_no_bounds_is_told_of_the_partition_it_is_about(
    cluster: ScriptedCluster, start: Start
) -> None:
    one, two = fill(cluster, 2)
    for tp in (one, two):
        cluster.logs[tp].log_start_offset = 10
    reader = start((one, 3))
    with pytest.raises(OffsetOutOfRangeError):
        reader.poll(5, soon())
    cluster[1].on(ListOffsetsRequest, _denied(cluster))
    asked = len(cluster[1].requests(ListOffsetsRequest))
    reader.add(two, 3)
    eventually(lambda: len(reader.buffer.broken) == 2)
    time.sleep(0.1)
    assert len(reader.buffer.broken) == 2
    assert len(cluster[1].requests(ListOffsetsRequest)) == asked + 1
    reader.seek(one, 10)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        reader.poll(5, soon())
    assert take(reader, 10) == list(range(10, 20))


def _denied(cluster: ScriptedCluster) -> Any:
    def deny(request: ListOffsetsRequest, version: int) -> Any:
        response = cluster.list_offsets(request, version)
        partitions = response.topics[0].partitions
        partitions[0] = replace(partitions[0], error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return response

    return deny


def test_what_keeps_a_partition_from_being_read_on_is_counted(cluster: ScriptedCluster, start: Start) -> None:
    (tp,) = fill(cluster)
    reader = start((tp, 1_000))
    with pytest.raises(OffsetOutOfRangeError):
        reader.poll(deadline=soon())
    told = reader.metrics()
    assert told.value("kafka.consumer.errors", error="OFFSET_OUT_OF_RANGE") == 1
    assert told.value("kafka.consumer.offset.resets") == 0
    reset = start((tp, 1_000), auto_offset_reset=OffsetReset.parse("earliest"))
    assert take(reset, 1) == [0]
    assert reset.metrics().value("kafka.consumer.offset.resets") == 1


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_a_consumer_that_cannot_be_made_leaves_no_connections_of_its_own(
    cluster: ScriptedCluster, shared: bool
) -> None:
    """A program that tries again and again would run out of them. Others use a shared router still."""
    made: list[Router] = []

    class Watched(Consumer):
        def _new_router(self, client: ClientConfig) -> Router:
            made.append(super()._new_router(client))
            return made[-1]

    cluster.create("a")
    servers = ClientConfig(bootstrap_servers=(cluster[1].address,))
    given = Router(servers) if shared else None
    with pytest.raises(ValueError, match="start names partitions that are not read"):
        Watched(None if shared else servers, "a", start={99: 0}, router=given)
    if given is None:
        with pytest.raises(ConsumerClosedError):
            made[0].metadata(("a",), refresh=True)
    else:
        assert made == []
        assert "a" in given.metadata(("a",), refresh=True).topics
        given.close()


@pytest.mark.parametrize("culprit", range(5))
def test_a_partition_with_a_batch_over_the_limit_keeps_none_of_its_broker_from_being_read(
    cluster: ScriptedCluster, culprit: int
) -> None:
    """It is the only one that the error names, and is read on behind the batch."""
    tps = fill(cluster, 5, batches=1)
    cluster.logs[tps[culprit]].append([bytes(300_000)])
    for tp in tps:
        cluster.logs[tp].append([b"5", b"6"] if tp.partition != culprit else [b"6"])
    found: list[tuple[int, int]] = []
    errors: set[str] = set()

    def read_until(count: int, failed: int = 0) -> None:
        while len(found) < count or len(errors) < failed:
            try:
                found.extend((record.partition, record.offset) for record in consumer.poll(60))
            except ProtocolError as error:
                errors.add(str(error).partition(":")[0])

    limits = {"max_response_bytes": 200_000, "fetch_max_wait_ms": 20, "retry_backoff_ms": 5}
    with Consumer(cluster.bootstrap_servers, "orders", start="earliest", **limits) as consumer:
        read_until(4 * 7 + 5, failed=1)
        assert sorted(found) == [(p, o) for p in range(5) for o in range(7) if p != culprit or o < 5]
        assert errors == {f"fetching orders-{culprit} at offset 5 from broker 1"}
        consumer.seek(6, partition=culprit)
        read_until(4 * 7 + 6)
    assert found[-1] == (culprit, 6)
    assert len(set(found)) == len(found)
