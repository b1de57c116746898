"""A reader that goes on and on: moved, paused, extended and closed meanwhile, from other threads too."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from held_lock import held_by_another_thread
from scripted_broker import HangUp, Late, ScriptedCluster, offsets_of, properties, refusal

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.consumer import partition_reader, prefetch_thread
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.consumer.offsets import offset_or_at, resolve_offsets
from spark_kafka_native.kafka.consumer.partition_reader import PartitionReader
from spark_kafka_native.kafka.consumer.reader_config import OffsetReset, ReaderConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    ConsumerClosedError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from spark_kafka_native.kafka.model import OffsetAt, TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline

pytestmark = [
    pytest.mark.timed(0.1),
    # An interrupt in a destructor.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Start = Callable[..., PartitionReader]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2) as running:
        yield running


@pytest.fixture
def start(cluster: ScriptedCluster) -> Iterator[Start]:
    readers: list[PartitionReader] = []
    routers: list[Router] = []

    def begin(*at: tuple[TopicPartition, int], watch: Any = None, **changed: Any) -> PartitionReader:
        names = ("request_timeout_ms", "metadata_max_age_ms")
        client = {name: changed.pop(name) for name in list(changed) if name in names}
        router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers, **client)))
        config = ReaderConfig(**{"fetch_max_wait_ms": 20, "poll_timeout_ms": 60_000} | changed)
        readers.append(PartitionReader(router, config, watch=watch))
        routers.append(router)
        for tp, offset in at:
            readers[-1].add(tp, offset)
        return readers[-1]

    yield begin
    for reader in readers:
        reader.close()
    for router in routers:
        router.close()


def fill(cluster: ScriptedCluster, partitions: int = 1, batches: int = 4) -> list[TopicPartition]:
    """``batches`` batches of five records: each value is its offset."""
    tps = cluster.create("orders", partitions, leader=1)
    for tp in tps:
        for batch in range(batches):
            cluster.logs[tp].append([b"%d" % (batch * 5 + i) for i in range(5)])
    return tps


def soon(seconds: float = 60) -> Deadline:
    return Deadline.after_ms(seconds * 1000)


def take(reader: PartitionReader, count: int) -> list[int]:
    """The offsets of the next ``count`` records; values must be theirs."""
    found: list[int] = []
    while len(found) < count:
        record = reader.next_record(soon())
        assert record is not None
        assert record.value == b"%d" % record.offset
        found.append(record.offset)
    return found


def eventually(holds: Callable[[], bool]) -> None:
    until = soon()
    while not holds():
        assert not until.expired
        time.sleep(0.005)


def prefetched(reader: PartitionReader, tp: TopicPartition, count: int) -> None:
    """Wait until so many records of ``tp`` were fetched ahead."""
    wanted = reader.buffer.partition(tp)
    eventually(lambda: sum(one.columns.length for one in list(wanted.waiting)) >= count)


def test_records_come_in_order_and_position_follows_each(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 3))
    assert reader.position(tp) == 3
    assert take(reader, 4) == [3, 4, 5, 6]
    assert reader.position(tp) == 7
    assert [record.offset for record in reader.poll(5, soon())] == [7, 8, 9, 10, 11]
    assert reader.position(tp) == 12
    columns = reader.read_columns(soon())
    assert columns is not None
    assert (columns.from_offset, columns.next_offset, offsets_of(columns.columns)[0]) == (12, 20, 12)
    assert reader.position(tp) == 20
    assert reader.poll(5, soon(0.05)) == []
    assert reader.read_columns(soon(0)) is None
    cluster.logs[tp].append([b"20"])
    assert take(reader, 1) == [20]


def test_poll_takes_what_is_there_of_several_partitions_up_to_its_limit(
    cluster: ScriptedCluster, start: Start
) -> None:
    one, two = fill(cluster, 2)
    reader = start((one, 0), (two, 0), max_poll_records=33)
    for tp in (one, two):
        prefetched(reader, tp, 20)
    assert len(reader.poll(deadline=soon())) == 33
    assert len(reader.poll(deadline=soon())) == 7
    assert (reader.position(one), reader.position(two)) == (20, 20)
    assert reader.poll(0, soon()) == []


def test_what_was_fetched_before_a_seek_is_not_handed_out(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 0))
    assert take(reader, 2) == [0, 1]
    reader.seek(tp, 15)
    assert reader.position(tp) == 15
    assert take(reader, 2) == [15, 16]
    reader.seek(tp, 4)
    assert take(reader, 16) == list(range(4, 20))


def test_a_partition_that_is_removed_is_not_heard_of_again(cluster: ScriptedCluster, start: Start) -> None:
    one, two = fill(cluster, 2)
    reader = start((one, 0), (two, 0))
    first = reader.next_record(soon())
    assert first is not None
    for tp in (one, two):
        prefetched(reader, tp, 20 if tp != first.topic_partition else 0)
    assert reader.remove(first.topic_partition) == 1
    other = two if first.topic_partition == one else one
    records = [reader.next_record(soon()) for _ in range(20)]
    assert {record.topic_partition for record in records if record} == {other}
    assert reader.poll(5, soon(0.05)) == []
    assert reader.partitions == {other: False}
    for call in (reader.remove, reader.position, reader.pause, reader.resume):
        with pytest.raises(ValueError, match=f"{first.topic_partition} is not being read"):
            call(first.topic_partition)
    with pytest.raises(ValueError, match=f"{other} is being read already"):
        reader.add(other, 0)
    reader.add(first.topic_partition, 18)
    assert take(reader, 2) == [18, 19]


def test_partitions_come_and_go_while_another_thread_reads(cluster: ScriptedCluster, start: Start) -> None:
    """Each partition that is removed is behind the last record that came of it, in every round."""
    one, two = fill(cluster, 2, batches=40)
    reader = start((one, 0), max_partition_fetch_bytes=200)
    seen: dict[TopicPartition, list[int]] = {one: [], two: []}
    removed: set[TopicPartition] = set()
    late: list[TopicPartition] = []

    def read() -> None:
        while True:
            gone = set(removed)  # before the read begins
            try:
                record = reader.next_record(soon())
            except ConsumerClosedError:
                return
            assert record is not None
            if record.topic_partition in gone and record.topic_partition in removed:
                late.append(record.topic_partition)
            seen[record.topic_partition].append(record.offset)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(50):
        removed.discard(two)
        had = len(seen[two])
        reader.add(two, 0)
        eventually(lambda had=had: len(seen[two]) > had)  # type: ignore[misc]
        reader.remove(two)
        removed.add(two)
    reader.close()
    thread.join(60)
    assert not late
    assert seen[one] == list(range(len(seen[one])))
    assert seen[two].count(0) == 50


def test_a_pause_keeps_what_was_fetched(cluster: ScriptedCluster, start: Start) -> None:
    one, two = fill(cluster, 2)
    reader = start((one, 0), (two, 0))
    for tp in (one, two):
        prefetched(reader, tp, 20)
    first = reader.next_record(soon())
    assert first is not None
    tp, other = first.topic_partition, two if first.topic_partition == one else one
    reader.pause(tp)
    reader.pause(tp)
    assert (reader.position(tp), reader.partitions[tp]) == (1, True)
    assert {record.topic_partition for record in reader.poll(100, soon())} == {other}
    assert reader.poll(100, soon(0.05)) == []
    asked = len(cluster[1].requests(FetchRequest))
    reader.resume(tp)
    reader.resume(tp)
    assert [record.offset for record in reader.poll(100, soon(0))] == list(range(1, 20))
    assert len(cluster[1].requests(FetchRequest)) - asked < 10


def test_a_seek_of_a_paused_partition_holds_after_it(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 0))
    prefetched(reader, tp, 20)
    reader.pause(tp)
    reader.seek(tp, 17)
    assert reader.poll(5, soon(0.05)) == []
    reader.resume(tp)
    assert take(reader, 3) == [17, 18, 19]


def test_no_more_is_fetched_ahead_than_the_limit(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster, batches=60)
    reader = start((tp, 0), prefetch_max_bytes=1, max_partition_fetch_bytes=1)
    prefetched(reader, tp, 1)
    time.sleep(0.1)
    assert len(reader.buffer.partition(tp).waiting) == 1
    assert len(cluster[1].requests(FetchRequest)) <= 3
    assert take(reader, 300) == list(range(300))


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


def test_an_error_of_one_partition_is_heard_of_while_others_have_records(
    cluster: ScriptedCluster, start: Start
) -> None:
    one, two = fill(cluster, 2, batches=100)
    cluster.logs[one].log_start_offset = 10
    reader = start((one, 3), (two, 0))
    prefetched(reader, two, 500)
    eventually(lambda: bool(reader.buffer.broken))
    with pytest.raises(OffsetOutOfRangeError):
        reader.poll(5, soon())
    assert len(reader.poll(5, soon())) == 5


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


def test_a_reset_throws_away_nothing_that_was_fetched_before(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 0), auto_offset_reset=OffsetReset.LATEST)
    prefetched(reader, tp, 20)
    cluster.logs[tp].append([b"%d" % offset for offset in range(20, 25)])
    cluster.logs[tp].log_start_offset = 24
    eventually(lambda: reader.buffer.partition(tp).waiting[-1].next_offset >= 25)
    assert take(reader, 20) == list(range(20))


def test_a_refusal_that_the_bounds_contradict_is_asked_again(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    doubtful = [_refused(cluster) for _ in range(3)]
    cluster[1].push(FetchRequest, *doubtful)
    reader = start((tp, 5), auto_offset_reset=OffsetReset.EARLIEST)
    assert take(reader, 15) == list(range(5, 20))


def test_a_refusal_that_stays_in_doubt_is_an_error(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    cluster[1].on(FetchRequest, _refused(cluster))
    reader = start((tp, 5))
    with pytest.raises(OffsetOutOfRangeError, match=r"it has \[0, 20\)"):
        reader.poll(5, soon())
    assert len(cluster[1].requests(FetchRequest)) == 1 + prefetch_thread.REFUSALS_IN_DOUBT


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


READS: dict[str, Callable[[PartitionReader], object]] = {
    "poll": lambda reader: reader.poll(1, soon(0)),
    "next_record": lambda reader: reader.next_record(soon(0)),
    "read_columns": lambda reader: reader.read_columns(soon(0)),
}


@pytest.mark.parametrize("read", READS)
def test_a_second_thread_that_reads_meanwhile_is_refused_in_words(
    cluster: ScriptedCluster, start: Start, read: str
) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 20))
    first = threading.Thread(target=lambda: found.extend(reader.poll(1, soon())), name="the first")
    found: list[Any] = []
    first.start()
    eventually(lambda: "thread" in reader._read_by)
    with pytest.raises(RuntimeError, match="thread 'the first' is reading from this consumer, and 'MainThr"):
        READS[read](reader)
    cluster.logs[tp].append([b"20"])
    first.join(60)
    assert [record.offset for record in found] == [20]
    cluster.logs[tp].append([b"21"])
    assert take(reader, 1) == [21]  # one after the other


def test_close_ends_a_read_that_another_thread_waits_in(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 20))
    ended: list[BaseException] = []

    def read() -> None:
        try:
            reader.poll()
        except ConsumerClosedError as error:
            ended.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    eventually(lambda: reader.buffer.condition.waiting > 0)
    reader.close()
    reader.close()
    thread.join(60)
    assert [str(error) for error in ended] == ["the consumer is closed"]
    with pytest.raises(ConsumerClosedError):
        reader.next_record()
    assert repr(reader) == "<PartitionReader of 1 partitions (closed)>"
    eventually(lambda: reader.buffer.ended)


def test_reads_keep_their_deadline_while_no_broker_answers(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    cluster[1].on(MetadataRequest, Late(5, HangUp))
    cluster[2].on(MetadataRequest, Late(5, HangUp))
    reader = start((tp, 0))
    began = time.monotonic()
    assert reader.poll(5, soon(0.05)) == []
    reader.close()
    assert time.monotonic() - began < 4


def test_an_interrupt_while_it_waits_or_unpacks_loses_nothing(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 20))
    main = threading.main_thread().ident
    assert main is not None
    # Whoever starts the tests in the background has SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        reader.next_record(soon())
    timer.join()
    signal.signal(signal.SIGINT, before)
    reader.seek(tp, 0)
    prefetched(reader, tp, 20)
    taken = reader.buffer._take_first

    def interrupted(*args: Any) -> None:
        taken(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(reader.buffer, "_take_first", interrupted)
    for read in (reader.read_columns, reader.next_record, lambda: reader.poll(50, soon())):
        with pytest.raises(KeyboardInterrupt):
            read()  # type: ignore[operator]
        assert reader.position(tp) == 0
    monkeypatch.undo()
    assert take(reader, 3) == [0, 1, 2]
    monkeypatch.setattr(partition_reader, "islice", lambda *_: _interrupting(reader))
    with pytest.raises(KeyboardInterrupt):
        reader.poll(50, soon())
    monkeypatch.undo()
    assert take(reader, 17) == list(range(3, 20))


def _interrupting(reader: PartitionReader) -> Iterator[Any]:
    yield from [next(reader.rows), next(reader.rows)]
    raise KeyboardInterrupt


def test_a_mistake_in_the_fetching_thread_reaches_the_reader(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    [tp] = fill(cluster)
    monkeypatch.setattr(prefetch_thread.PrefetchThread, "_follow", lambda _: 1 / 0)
    reader = start((tp, 0))
    with pytest.raises(ConsumerClosedError, match="ZeroDivisionError"):
        reader.poll(5, soon())


def test_a_forked_child_is_told_to_make_its_own(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 0))
    reader._process_id = os.getpid() + 1
    with pytest.raises(ConsumerClosedError, match="another process"):
        reader.poll(5, soon())


def test_a_reader_that_nobody_holds_ends(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_thread, "IDLE_MS", 10)
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
    reader = PartitionReader(router, ReaderConfig())
    shared = reader.buffer
    del reader
    eventually(lambda: shared.ended)


def test_somebody_looks_around_once_per_metadata_age(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch_thread, "IDLE_MS", 10)
    [tp] = fill(cluster)
    seen: list[float] = []

    def watch() -> None:
        seen.append(time.monotonic())
        raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "orders")

    reader = start((tp, 0), watch=watch, metadata_max_age_ms=30)
    eventually(lambda: len(seen) > 3)
    assert take(reader, 20) == list(range(20))


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


def test_columns_that_are_not_wanted_are_not_read_but_for_offsets(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster)
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
    reader = PartitionReader(router, ReaderConfig(fetch_max_wait_ms=20), frozenset({"value"}))
    reader.add(tp, 3)
    record = reader.next_record(soon())
    assert record is not None
    assert (record.offset, record.key, record.value, reader.position(tp)) == (3, None, b"3", 4)
    fetched = reader.read_columns(soon())
    assert fetched is not None
    assert (fetched.columns.key, fetched.from_offset, offsets_of(fetched.columns)[0]) == (None, 4, 4)
    reader.close()
    router.close()


def test_where_it_was_closed_is_where_reading_had_come_to(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 0))
    assert take(reader, 3) == [0, 1, 2]
    for _ in range(2):
        reader.close()
        assert reader.position(tp) == 3
    assert next(reader.rows, None) is None


@pytest.mark.parametrize("limit", [1, 5])
def test_an_error_comes_behind_all_rows_of_its_partition(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Whoever seeks in answer to it would skip the others unread."""
    [tp] = fill(cluster)
    monkeypatch.setattr(partition_reader, "ROWS", 7)
    reader = start((tp, 0))
    prefetched(reader, tp, 20)
    found = _offsets(reader.poll(limit, soon()))
    cluster.topic_ids["orders"] = uuid.uuid4()
    eventually(lambda: bool(reader.buffer.broken))
    with contextlib.suppress(TopicRecreatedError):
        while len(found) < 30:
            found += _offsets(reader.next_record(soon()) if limit == 1 else reader.poll(limit, soon()))
    assert found == list(range(20))


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


def test_interrupts_at_any_moment_lose_and_double_nothing(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of the reading thread is one where an interrupt may come."""
    [tp] = fill(cluster, batches=3)
    monkeypatch.setattr(partition_reader, "ROWS", 4)
    reader = start((tp, 0))
    calls: list[Callable[[], Any]] = [
        lambda: reader.poll(3, soon(0)),
        lambda: reader.next_record(soon(0)),
        lambda: reader.read_columns(soon(0)),
        lambda: reader.pause(tp) or reader.resume(tp),
        lambda: reader.seek(tp, reader.position(tp)),
    ]
    for call in calls:
        for moment in itertools.count():
            reader.resume(tp)
            reader.seek(tp, 0)
            prefetched(reader, tp, 15)
            found = _offsets(reader.poll(3, soon()))
            with _interrupt_after(moment) as was_interrupted:
                found += _offsets(call())
            reader.resume(tp)
            while more := reader.poll(4, soon(0 if len(found) >= 15 else 10)):
                found += _offsets(more)
            assert found == list(range(15)), (calls.index(call), moment)
            assert reader.position(tp) == 15
            assert reader.buffer.nbytes == 0
            if not was_interrupted:
                break


def _offsets(found: Any) -> list[int]:
    if hasattr(found, "columns"):
        return offsets_of(found.columns)
    return [record.offset for record in ([found] if hasattr(found, "offset") else found or [])]


@contextlib.contextmanager
def _interrupt_after(calls: int) -> Iterator[list[bool]]:
    """A KeyboardInterrupt after so many calls into or out of our functions; says whether it came."""
    left, came = calls, []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal left
        if event not in ("call", "c_return") or came or "spark_kafka_native" not in frame.f_code.co_filename:
            return
        if left == 0:
            came.append(True)
            sys.setprofile(None)
            raise KeyboardInterrupt
        left -= 1

    sys.setprofile(trace)
    try:
        yield came
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)


def test_what_is_kept_of_paused_partitions_is_bounded(cluster: ScriptedCluster, start: Start) -> None:
    tps = fill(cluster, 3)
    reader = start(prefetch_max_bytes=1000)
    for tp in tps:
        reader.add(tp, 0)
        prefetched(reader, tp, 20)
        reader.pause(tp)
    assert sum(reader.buffer.partition(tp).nbytes for tp in reader.partitions) <= 1000
    for tp in tps:
        reader.resume(tp)
        assert take(reader, 20) == list(range(20))


def test_a_forked_child_reads_nothing_and_is_told_why(cluster: ScriptedCluster) -> None:
    fill(cluster)
    with Consumer(cluster.bootstrap_servers, "orders", fetch_max_wait_ms=20) as consumer:
        assert next(consumer).offset == 0
        with consumer.reader._lock, consumer.reader.buffer._lock:  # as other threads may
            child = os.fork()
        if not child:
            told = consumer.position() == 1
            for read in (consumer.__next__, consumer.poll, consumer.pause):
                try:
                    read()
                    told = False
                except ConsumerClosedError as error:
                    told = told and "another process" in str(error)
            os._exit(0 if told else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert next(consumer).offset == 1


def test_a_record_written_between_two_look_ups_is_not_skipped(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster)
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
    soon_there = 2**40

    def late(request: ListOffsetsRequest, version: int) -> Any:
        response = cluster.list_offsets(request, version)
        asked = request.topics[0].partitions[0].timestamp
        one = replace(response.topics[0].partitions[0], offset=len(seen) + 20 if asked == -1 else -1)
        response.topics[0].partitions[0] = one
        seen.append(asked)
        return response

    seen: list[int] = []
    cluster[1].on(ListOffsetsRequest, late)
    assert resolve_offsets(router, {tp: OffsetAt.timestamp(soon_there)}) == {tp: 20}
    assert seen == [-1, soon_there]
    seen.clear()
    with Consumer(topic="orders", router=router, start="latest") as consumer:
        assert consumer.position() == 20
    assert seen == [-1]
    router.close()


def test_a_time_is_rounded_up_to_the_millisecond() -> None:
    for ms in range(1_700_000_000_000, 1_700_000_001_000):
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
        assert offset_or_at(at) == OffsetAt.timestamp(ms)
        assert offset_or_at(at - timedelta(microseconds=1)) == OffsetAt.timestamp(ms)


def test_reads_that_end_in_vain_are_one_wait_together(cluster: ScriptedCluster, start: Start) -> None:
    (tp,) = fill(cluster)
    reader = start()
    for _ in range(3):
        assert reader.poll(deadline=Deadline.after_ms(1)) == []
    assert reader.metrics().distribution("kafka.consumer.wait.duration").count == 0
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(reader.poll(1, soon())))
    waiting.start()
    eventually(lambda: reader.buffer.condition.waiting > 0)
    reader.add(tp, 0)
    waiting.join(60)
    assert len(found) == 1
    assert reader.metrics().distribution("kafka.consumer.wait.duration").count == 1


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


def test_metrics_in_the_handler_of_a_signal_wait_for_no_lock(cluster: ScriptedCluster, start: Start) -> None:
    (tp,) = fill(cluster)
    reader = start((tp, 0))
    assert take(reader, 3) == [0, 1, 2]
    found: list[Any] = []

    def interrupted() -> None:
        """As the handler finds it: the locks are those of the very thread that it runs in."""
        with reader._lock, reader.buffer._lock, reader.registry.lock, reader._router.metrics.lock:
            found.append(reader.metrics())

    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(60)
    assert [found[0].value("kafka.consumer.lag", topic="orders", partition="0")] == [17]


def test_metrics_wait_for_no_thread_that_waits_for_the_interrupted_one(
    cluster: ScriptedCluster, start: Start
) -> None:
    (tp,) = fill(cluster)
    reader = start((tp, 0))
    assert take(reader, 1) == [0]
    found: list[Any] = []
    with held_by_another_thread(reader._lock), held_by_another_thread(reader.buffer._lock):
        thread = threading.Thread(target=lambda: found.append(reader.metrics()), daemon=True)
        thread.start()
        thread.join(60)
        assert found
