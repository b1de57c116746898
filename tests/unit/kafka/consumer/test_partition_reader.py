"""A reader that goes on and on: moved, paused, extended and closed meanwhile, from other threads too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from support.brokers.scripted_broker import HangUp, Late, Log, ScriptedCluster, offsets_of, properties
from support.consumer.partition_reading import Start, eventually, fill, prefetched, readers_of, soon, take

from spark_kafka_native.kafka.cluster.offsets import list_bounds, offset_or_at, resolve_offsets
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.reader_config import ReaderConfig
from spark_kafka_native.kafka.consumer import partition_reader, prefetch_thread, typed_records
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.consumer.fetched_records import FetchedRecords
from spark_kafka_native.kafka.consumer.fetcher import FetchRun
from spark_kafka_native.kafka.consumer.partition_reader import PartitionReader, single_reader
from spark_kafka_native.kafka.consumer.typed_records import RecordTyping
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    ConsumerClosedError,
    KafkaError,
    LogTruncatedError,
)
from spark_kafka_native.kafka.model import IsolationLevel, OffsetAt, TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline

pytestmark = [
    pytest.mark.timed(0.1),
    # An interrupt in a destructor.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2) as running:
        yield running


@pytest.fixture
def start(cluster: ScriptedCluster) -> Iterator[Start]:
    with readers_of(cluster) as begin:
        yield begin


READS: dict[str, Callable[[PartitionReader], object]] = {
    "poll": lambda reader: reader.poll(1, soon(0)),
    "next_record": lambda reader: reader.next_record(soon(0)),
    "read_columns": lambda reader: reader.read_columns(soon(0)),
}


def in_another_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)


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
        had = seen[two].count(0)
        reader.add(two, 0)
        # Not any record: one of the round before may be noted only now.
        eventually(lambda had=had: seen[two].count(0) > had)  # type: ignore[misc]
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


def test_a_partition_may_be_added_paused_or_with_an_error(cluster: ScriptedCluster, start: Start) -> None:
    one, two = fill(cluster, 2)
    reader = start()
    reader.add(one, 0, paused=True)
    reader.add(two, 3, error=LogTruncatedError(two, 3, 2))
    assert reader.partitions == {one: True, two: False}
    for _ in range(2):
        with pytest.raises(LogTruncatedError):
            reader.poll(5, soon())
    reader.seek(two, 3)
    found = [reader.next_record(soon()) for _ in range(17)]
    assert [(record.topic_partition, record.offset) for record in found if record] == [
        (two, at) for at in range(3, 20)
    ]
    assert reader.poll(5, soon(0.05)) == []
    reader.resume(one)
    assert take(reader, 20) == list(range(20))


def test_records_are_given_back_unless_the_partition_was_moved(
    cluster: ScriptedCluster, start: Start
) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 0))
    assert take(reader, 3) == [0, 1, 2]
    assert reader.give_back(tp, 1)
    assert take(reader, 3) == [1, 2, 3]
    reader.seek(tp, 10)
    assert not reader.give_back(tp, 1)
    assert take(reader, 2) == [10, 11]
    for moves in (False, True):
        assert reader.read_columns(soon()) is not None
        if moves:
            reader.seek(tp, 5)
        assert reader.give_back(tp, 12) is not moves
    assert take(reader, 2) == [5, 6]


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
    for _ in range(2):  # the first is still reading after another one was refused
        with pytest.raises(RuntimeError, match="'the first' is reading from this consumer, and 'MainThr"):
            READS[read](reader)
    cluster.logs[tp].append([b"20"])
    first.join(60)
    assert [record.offset for record in found] == [20]
    cluster.logs[tp].append([b"21"])
    assert take(reader, 1) == [21]  # one after the other


def test_a_read_that_is_refused_gives_back_nothing_of_the_one_that_goes_on(
    cluster: ScriptedCluster, start: Start
) -> None:
    """The records would come twice. A read within a read of the same thread does not end the outer one."""
    [tp] = fill(cluster)
    reader = start((tp, 0))
    refused: list[RuntimeError] = []

    def read_too() -> None:
        try:
            reader.poll(5, soon())
        except RuntimeError as error:
            refused.append(error)

    @single_reader
    def read(reader: PartitionReader) -> list[Any]:
        found = reader.poll(3, soon())
        for _ in range(2):
            in_another_thread(read_too)
        return found

    assert [record.offset for record in read(reader)] == [0, 1, 2]
    assert len(refused) == 2
    assert take(reader, 2) == [3, 4]


@pytest.mark.parametrize("rows", [2, partition_reader.ROWS])
def test_records_that_a_read_has_returned_count_as_handed_out_in_every_thread(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """And no others, which a commit would lose. A position that stays behind would be committed, and the
    records come again after a rebalance."""
    monkeypatch.setattr(partition_reader, "ROWS", rows)
    [tp] = fill(cluster)
    reader = start((tp, 0))
    seen: list[dict[TopicPartition, int]] = []

    def look() -> None:
        seen.append(reader.positions([tp]))

    @single_reader
    def read(reader: PartitionReader) -> None:
        reader.poll(3, soon())
        in_another_thread(look)

    for _ in range(2):
        read(reader)
        in_another_thread(look)
    assert seen == [{tp: 0}, {tp: 3}, {tp: 3}, {tp: 6}]
    reader.read_columns(soon())
    in_another_thread(look)
    assert seen[-1][tp] == reader.position(tp) > 6


def test_a_seek_to_before_the_records_that_another_thread_is_about_to_get_counts_at_once(
    cluster: ScriptedCluster, start: Start
) -> None:
    """A commit of where that read began would let the records in between be skipped."""
    [tp] = fill(cluster)
    reader = start((tp, 5))
    seen: list[dict[TopicPartition, int]] = []

    def seek() -> None:
        reader.seek(tp, 2)
        seen.append(reader.positions([tp]))

    @single_reader
    def read(reader: PartitionReader) -> None:
        reader.poll(3, soon())
        in_another_thread(seek)

    read(reader)
    assert seen == [{tp: 2}]


def test_a_seek_drops_the_rest_of_records_that_another_thread_is_decoding(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 0))

    def decode(_: object, fetched: FetchedRecords) -> tuple[object, FetchedRecords]:
        in_another_thread(lambda: reader.seek(tp, 15))
        return typed_records._split(fetched, 1)

    monkeypatch.setattr(RecordTyping, "decode", decode)
    assert reader.read_typed({"value": "string"}, "failfast", soon()) is not None
    assert take(reader, 5) == [15, 16, 17, 18, 19]


@pytest.mark.parametrize("how", READS)
def test_a_read_takes_back_nothing_of_the_reads_before_it(
    cluster: ScriptedCluster, start: Start, how: str
) -> None:
    """Another thread that closes or commits would commit where they began, and the records come again."""
    one, two = fill(cluster, 2)
    reader = start((one, 0))
    assert take(reader, 20) == list(range(20))
    seen: list[dict[TopicPartition, int]] = []

    @single_reader
    def read(reader: PartitionReader) -> None:
        assert READS[how](reader)
        in_another_thread(lambda: seen.append(reader.positions([one, two])))

    reader.add(two, 0)
    prefetched(reader, two, 20)
    read(reader)
    reader.seek(two, 20)
    cluster.logs[one].append([b"20"])
    prefetched(reader, one, 1)
    read(reader)
    assert seen == [{one: 20, two: 0}, {one: 20, two: 20}]


def test_close_returns_after_the_end_of_the_fetching_thread(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections are closed by then."""
    monkeypatch.setattr(partition_reader, "CLOSE_MS", 60_000)
    [tp] = fill(cluster)
    go_on = threading.Event()
    close = FetchRun.close

    def close_late(run: FetchRun) -> None:
        go_on.wait(60)
        close(run)

    monkeypatch.setattr(FetchRun, "close", close_late)
    reader = start((tp, 0))
    assert take(reader, 1) == [0]
    closing = threading.Thread(target=reader.close)
    closing.start()
    try:
        eventually(lambda: reader.buffer.condition.waiting > 0 or not closing.is_alive())
        assert closing.is_alive()
    finally:
        go_on.set()
        closing.join(60)
    assert reader.buffer.ended


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


@pytest.mark.parametrize("read", READS)
def test_records_that_were_fetched_ahead_are_not_handed_out_after_a_close(
    cluster: ScriptedCluster, start: Start, read: str
) -> None:
    [tp] = fill(cluster)
    reader = start((tp, 0))
    prefetched(reader, tp, 20)
    reader.close()
    with pytest.raises(ConsumerClosedError):
        READS[read](reader)
    assert reader.position(tp) == 0


def test_reads_keep_their_deadline_while_no_broker_answers(cluster: ScriptedCluster, start: Start) -> None:
    [tp] = fill(cluster)
    cluster[1].on(MetadataRequest, Late(5, HangUp))
    cluster[2].on(MetadataRequest, Late(5, HangUp))
    reader = start((tp, 0))
    began = time.monotonic()
    assert reader.poll(5, soon(0.05)) == []
    reader.close()
    assert time.monotonic() - began < 4


def test_a_mistake_in_the_fetching_thread_reaches_the_reader(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    [tp] = fill(cluster)
    monkeypatch.setattr(prefetch_thread.PrefetchThread, "_follow", lambda _: 1 / 0)
    reader = start((tp, 0))
    with pytest.raises(ConsumerClosedError, match="ZeroDivisionError"):
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


def test_without_a_look_around_the_metadata_are_refreshed(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that is cut off from the others may answer on and on, and know of no records since."""
    monkeypatch.setattr(prefetch_thread, "IDLE_MS", 10)
    [tp] = fill(cluster)
    reader = start((tp, 0), metadata_max_age_ms=30)
    assert take(reader, 20) == list(range(20))

    def asked() -> int:
        requests = [one for broker in cluster.brokers.values() for one in broker.requests(MetadataRequest)]
        return sum([topic.name for topic in one.topics or ()] == ["orders"] for one in requests)

    before = asked()
    eventually(lambda: asked() > before + 3)


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


def test_a_search_for_offsets_takes_no_longer_than_its_caller_allows(cluster: ScriptedCluster) -> None:
    [tp] = fill(cluster)
    router = Router(
        ClientConfig.from_properties(properties(cluster.bootstrap_servers, default_api_timeout_ms=60_000))
    )
    resolve_offsets(router, {tp: OffsetAt.LATEST}, deadline=Deadline.after_ms(5_000))
    assert all(asked.timeout_ms <= 5_000 for asked in cluster[1].requests(ListOffsetsRequest))
    router.close()


@pytest.mark.parametrize(
    ("level", "end"), [(IsolationLevel.READ_UNCOMMITTED, 20), (IsolationLevel.READ_COMMITTED, 15)]
)
def test_the_bounds_of_a_log_are_those_of_its_reader(
    cluster: ScriptedCluster, level: IsolationLevel, end: int
) -> None:
    [tp] = fill(cluster)
    cluster.logs[tp].log_start_offset = 5
    cluster.logs[tp].last_stable_offset = 15
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
    assert list_bounds(router, [tp], isolation_level=level) == {tp: (5, end)}
    router.close()


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
    assert resolve_offsets(router, {tp: OffsetAt.MAX_TIMESTAMP}) == {tp: 20}  # of an empty log
    assert seen == [-1, -3]
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


def test_a_place_may_be_an_integer_of_numpy(cluster: ScriptedCluster) -> None:
    assert offset_or_at(np.int64(5)) == 5  # type: ignore[arg-type]
    assert type(offset_or_at(np.int64(5))) is int  # type: ignore[arg-type]
    for place, error in ((np.int64(-1), ValueError), (1 << 63, ValueError), (True, TypeError)):
        with pytest.raises(error):
            offset_or_at(place)  # type: ignore[arg-type]
    fill(cluster)
    with Consumer(cluster.bootstrap_servers, "orders") as consumer:
        consumer.seek(np.int64(3))  # type: ignore[arg-type]
        assert consumer.position() == 3
        consumer.seek(np.int64(2), whence="current")  # type: ignore[arg-type]
        assert consumer.position() == 5


def test_places_that_no_log_has_are_refused() -> None:
    assert offset_or_at(2**63 - 2) == 2**63 - 2
    for offset in (2**63 - 1, 2**63, 2**70):
        with pytest.raises(ValueError, match=f"no log has the offset {offset}: the last one is {2**63 - 2}"):
            offset_or_at(offset)
    for years in (60, 1_900, 2_500):
        with pytest.raises(ValueError, match=r"negative|before the first"):
            offset_or_at(timedelta(days=365 * years))


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


def test_a_partition_is_named_where_several_are_read(cluster: ScriptedCluster) -> None:
    """The position of any other one would be committed as its own."""
    one, two = fill(cluster, 2)
    with Consumer(cluster.bootstrap_servers, "orders", start={one: 3, two: 7}) as consumer:
        with pytest.raises(ValueError, match="name the partition as a TopicPartition"):
            consumer.position()
        assert [consumer.position(tp) for tp in (0, one, 1, two)] == [3, 3, 7, 7]
    cluster.create("other")
    with Consumer(cluster.bootstrap_servers, ["orders", "other"], start="earliest") as consumer:
        with pytest.raises(ValueError, match="name the partition as a TopicPartition"):
            consumer.seek(1, partition=0)
        consumer.seek(1, partition=one)
        assert [consumer.position(tp) for tp in (one, TopicPartition("other", 0))] == [1, 0]


@pytest.mark.parametrize("wrong", [TopicPartition("other", 0), TopicPartition("orders", 1), 1])
def test_another_partition_than_the_only_one_is_refused(
    cluster: ScriptedCluster, wrong: int | TopicPartition
) -> None:
    """It may exist, and the call would move or pause the one that is read."""
    fill(cluster, 2)
    cluster.create("other")
    with Consumer(cluster.bootstrap_servers, "orders", partitions=[0], start=3) as consumer:
        for call in (consumer.position, consumer.pause, consumer.lag, lambda one: consumer.seek(0, one)):
            with pytest.raises(ValueError, match="is not being read"):
                call(wrong)
        assert consumer.position() == consumer.position(0) == 3


def test_a_partition_that_does_not_exist_is_no_partition_to_wait_for(cluster: ScriptedCluster) -> None:
    fill(cluster, 2)
    with pytest.raises(KafkaError, match=r"finding the partitions of orders(.|\n)*orders-7"):
        Consumer(cluster.bootstrap_servers, "orders", partitions=[0, 7], default_api_timeout_ms=200)


def test_a_partition_that_is_newer_than_the_metadata_of_a_shared_router_is_found(
    cluster: ScriptedCluster,
) -> None:
    [one] = fill(cluster, 1)
    given = properties(cluster.bootstrap_servers, default_api_timeout_ms=10_000)
    router = Router(ClientConfig.from_properties(given))
    try:
        assert router.metadata(("orders",)).topic("orders").partitions.keys() == {0}
        added = TopicPartition("orders", 1)
        cluster.logs[added] = Log()
        with Consumer(router=router, topic="orders", partitions=[0, 1]) as consumer:
            assert consumer.partitions == (one, added)
    finally:
        router.close()


@pytest.mark.parametrize("named", ["index", "partition"])
def test_partitions_that_a_start_does_not_name_are_read_from_their_beginning(
    cluster: ScriptedCluster, named: str
) -> None:
    one, two = fill(cluster, 2)
    start: Any = {1: 7} if named == "index" else {two: 7}
    with Consumer(cluster.bootstrap_servers, "orders", start=start) as consumer:
        assert {tp: consumer.position(tp) for tp in consumer.partitions} == {one: 0, two: 7}


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_records_are_unpacked_some_at_a_time_up_to_the_last(
    cluster: ScriptedCluster, start: Start, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    [tp] = fill(cluster)
    monkeypatch.setattr(partition_reader, "ROWS", rows)
    assert take(start((tp, 0)), 20) == list(range(20))
