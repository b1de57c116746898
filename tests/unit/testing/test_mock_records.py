"""Record batches in a `MockBroker`: which of them a log takes, what a fetch brings, and what time finds."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from support.brokers.framed_client import Peer

from spark_kafka_native.kafka import Record
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.testing import MockBroker
from spark_kafka_native.testing.mock.partition_log import (
    BatchHeader,
    PartitionLog,
    build_batch,
    place_batch,
    read_records,
)

LAST_SEQUENCE = (1 << 31) - 1
OUT_OF_ORDER = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def batch(
    sequence: int, count: int = 1, epoch: int = 0, producer_id: int = 7, transactional: bool = False
) -> bytes:
    """By another client's encoder."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=int(transactional),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=9999,
    )
    for at in range(count):
        builder.append(at, 1000 + at, None, b"value", [])
    return bytes(builder.build())


@pytest.fixture
def log() -> PartitionLog:
    return PartitionLog("a", 0, leader=1)


def test_sequences_follow_each_other(log: PartitionLog) -> None:
    """As KIP-98 has it."""
    assert log.append(batch(0, 3)) == (0, 0)
    assert log.append(batch(4)) == OUT_OF_ORDER
    assert log.append(batch(3)) == (0, 3)
    assert log.append(batch(0, 3)) == (0, 0), "it is here already"
    assert log.append(batch(0, 2)) == OUT_OF_ORDER
    assert log.append(batch(0, producer_id=8)) == (0, 4)
    assert log.end_offset == 5


def test_the_last_five_batches_are_known(log: PartitionLog) -> None:
    for sequence in range(6):
        assert log.append(batch(sequence)) == (0, sequence)
    assert [log.append(batch(sequence)) for sequence in range(6)] == [
        OUT_OF_ORDER,
        *((ErrorCode.NONE, offset) for offset in range(1, 6)),
    ]


def test_a_batch_that_was_cut_off_is_stored_when_it_is_sent_again(log: PartitionLog) -> None:
    for sequence in range(3):
        log.append(batch(sequence))
    log.cut(1)
    assert log.append(batch(2)) == OUT_OF_ORDER
    assert [log.append(batch(sequence)) for sequence in (0, 1, 2)] == [(0, 0), (0, 1), (0, 2)]


def test_a_transaction_that_has_lost_its_marker_is_open_again(broker: MockBroker) -> None:
    with TransactionalProducer(broker.bootstrap_servers, "x") as producer:
        for end in (producer.commit, producer.abort):
            producer.begin()
            producer.send("a", b"1", partition=0)
            producer.flush()
            end()
    (log,) = [broker.cluster.log("a", 0)]
    assert log is not None
    (aborted,) = log.aborted
    for end, is_open, visible in (
        (4, {}, 1),
        (3, {aborted[0]: 2}, 1),
        (2, {}, 1),
        (1, {aborted[0]: 0}, 0),
        (0, {}, 0),
    ):
        broker.cut_log("a", 0, end)
        assert log.open_transactions == is_open
        assert log.aborted == ([aborted] if end == 4 else [])
        assert len(broker.records("a", committed=True)) == visible


def test_sequences_begin_again_behind_the_last(log: PartitionLog) -> None:
    assert log.append(batch(LAST_SEQUENCE - 1, 3)) == (0, 0)
    assert log.append(batch(LAST_SEQUENCE - 1, 3)) == (0, 0)
    assert log.append(batch(1)) == (0, 3)
    assert log.append(batch(LAST_SEQUENCE)) == OUT_OF_ORDER
    assert log.append(batch(LAST_SEQUENCE - 1, 2, producer_id=8)) == (0, 4)
    assert log.append(batch(0, producer_id=8)) == (0, 6)


def test_epochs_of_a_producer(log: PartitionLog) -> None:
    assert log.append(batch(5)) == (0, 0), "of an unknown producer any sequence is taken (KIP-360)"
    assert log.append(batch(6, epoch=1)) == OUT_OF_ORDER
    assert log.append(batch(0, epoch=1)) == (0, 1)
    assert log.append(batch(6)) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


def test_a_transaction_holds_readers_back_from_its_first_batch_on(log: PartitionLog) -> None:
    for sequence in (0, 2):
        log.append(batch(sequence, 2, transactional=True))
        assert log.last_stable_offset == 0
    log.append(batch(0, producer_id=8, transactional=True))
    log.end_transaction(7, 0, 1, committed=True)
    assert (log.last_stable_offset, log.end_offset) == (4, 6)


def test_a_fetch_has_the_aborted_transactions_of_its_records(log: PartitionLog) -> None:
    """Also of one that began before the offset that is fetched."""
    for producer_id in (7, 8):
        log.append(batch(0, 3, producer_id=producer_id, transactional=True))
        log.end_transaction(producer_id, 0, 1, committed=False)
    first, second = ({"producer_id": one, "first_offset": at} for one, at in ((7, 0), (8, 4)))
    assert log.aborted_from(0, 8) == log.aborted_from(2, 8) == log.aborted_from(3, 8) == [first, second]
    assert log.aborted_from(2, 4) == [first]
    assert log.aborted_from(4, 8) == [second]


def test_a_marker_keeps_the_batches_of_its_producer_and_fences_older_ones(log: PartitionLog) -> None:
    log.append(batch(0, transactional=True))
    log.end_transaction(7, 0, 1, committed=True)
    assert log.append(batch(0, transactional=True)) == (0, 0), "sent again, as the answer was lost"
    assert log.append(batch(2, transactional=True)) == OUT_OF_ORDER
    for producer_id in (7, 8):  # 8 has written nothing here
        log.end_transaction(producer_id, 1, 1, committed=False)
        late = batch(1, producer_id=producer_id, transactional=True)
        assert log.append(late) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


def test_what_is_no_batch_is_not_taken(log: PartitionLog) -> None:
    whole = batch(0, 2)
    corrupt = (ErrorCode.CORRUPT_MESSAGE, -1)
    assert log.append(whole[:-1] + bytes([whole[-1] ^ 1])) == corrupt
    assert [log.append(whole[:size]) for size in range(1, len(whole))] == [corrupt] * (len(whole) - 1)
    assert log.append(whole[:16] + b"\1" + whole[17:]) == corrupt, "of an older format"
    assert log.append(whole + batch(2)) == (ErrorCode.INVALID_RECORD, -1), "one batch a request"
    assert log.append(b"") == (ErrorCode.INVALID_RECORD, -1)
    assert log.append(recount(whole, 3)) == (ErrorCode.INVALID_RECORD, -1)
    assert log.append(recount(whole, 0, last=-1)) == (ErrorCode.INVALID_RECORD, -1), "without a record"
    assert (log.end_offset, log.batches) == (0, [])


def recount(whole: bytes, count: int, last: int = 1) -> bytes:
    """The batch with another number of records, the offset ``last`` of the last one, and a checksum that
    fits."""
    from spark_kafka_native.testing.mock.partition_log import _crc32c

    checked = whole[21:23] + struct.pack(">i", last) + whole[27:57] + struct.pack(">i", count) + whole[61:]
    return whole[:17] + struct.pack(">I", _crc32c(checked)) + checked


def test_times_of_the_log_are_those_of_its_records() -> None:
    """LogAppendTime: all records of a batch have its highest timestamp."""
    stored = bytearray(place_batch(batch(0, 3), 5, 0))
    stored[22] |= 8
    records = read_records("a", 0, bytes(stored))
    assert [(record.offset, record.timestamp_ms, record.timestamp_type) for record in records] == [
        (offset, 1002, 1) for offset in (5, 6, 7)
    ]


def test_empty_values_and_the_time_zero_are_kept() -> None:
    given = [
        Record("a", 0, 0, b"", b"", (("h", b""), ("", None)), 2_000),
        Record("a", 0, 1, None, None, (), 0),
        Record("a", 0, 2, b"k", b"v", (), -1),
    ]
    made = build_batch(given, 1_000)
    assert BatchHeader.read(made).max_timestamp == 2_000
    found = read_records("a", 0, made)
    assert [(one.key, one.value, one.headers) for one in found] == [
        (one.key, one.value, one.headers) for one in given
    ]
    assert [one.timestamp_ms for one in found] == [2_000, 0, 1_000], "without a time, that of now"


def test_offsets_by_time(log: PartitionLog) -> None:
    for _ in range(2):
        log.append(batch(-1, 3, producer_id=-1, epoch=-1))
    assert log.offset_at(1001) == (1, 1001)
    assert log.offset_at(1003) == log.offset_at(-9) == (-1, -1)
    assert log.offset_at(-3) == (2, 1002), "the first of the highest"
    log.delete_before(2)
    assert log.offset_at(1000) == (2, 1002)
    assert log.offset_at(-2) == log.offset_at(-4) == (2, -1)
    assert log.offset_at(-1) == (6, -1)
    assert len(log.batches) == 2


# --- requests to a broker, frame by frame ------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker() as broker:
        broker.create_topic("a", partitions=2)
        yield broker


@pytest.fixture
def peer(broker: MockBroker) -> Iterator[Peer]:
    with closing(Peer(broker.bootstrap_servers)) as peer:
        yield peer


def fetch(peer: Peer, *offsets: int, epoch: int = -1, last: int = -1, **limits: int) -> list[dict[str, Any]]:
    """Of the partitions from 0 on; ``last`` is the epoch that was read last."""
    partitions = [
        {
            "partition": index,
            "fetch_offset": offset,
            "partition_max_bytes": limits.get("of_partition", 1 << 20),
            "current_leader_epoch": epoch,
            "last_fetched_epoch": last,
        }
        for index, offset in enumerate(offsets)
    ]
    wanted = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20} | limits
    wanted.pop("of_partition", None)
    told = peer.ask("Fetch", wanted | {"topics": [{"topic": "a", "partitions": partitions}]}, 12)
    found: list[dict[str, Any]] = told["responses"][0]["partitions"]
    return found


def sizes(told: list[dict[str, Any]]) -> list[int]:
    return [len(part["records"] or b"") for part in told]


def test_a_fetch_has_whole_batches_up_to_its_limits(broker: MockBroker, peer: Peer) -> None:
    for partition in (0, 1):
        for _ in range(3):
            broker.append("a", [b"x" * 100] * 2, partition=partition)
    one = len(broker.batches("a")[0])

    assert sizes(fetch(peer, 0, 0)) == [3 * one, 3 * one]
    assert sizes(fetch(peer, 1, 2)) == [3 * one, 2 * one], "from the batch on that has the offset"
    assert sizes(fetch(peer, 0, 6, of_partition=2 * one)) == [2 * one, 0]
    assert sizes(fetch(peer, 0, 0, of_partition=1)) == [one, one], "one, however large"
    assert sizes(fetch(peer, 0, 0, max_bytes=4 * one)) == [3 * one, one]
    assert sizes(fetch(peer, 0, 0, max_bytes=3 * one)) == [3 * one, 0]


def test_a_fetch_outside_the_log_is_refused(broker: MockBroker, peer: Peer) -> None:
    broker.append("a", [b"1", b"2"])
    broker.delete_records("a", 0, 1)
    codes = [fetch(peer, offset)[0]["error_code"] for offset in range(4)]
    assert codes == [ErrorCode.OFFSET_OUT_OF_RANGE, 0, 0, ErrorCode.OFFSET_OUT_OF_RANGE]
    told = fetch(peer, 1)[0]
    assert (told["log_start_offset"], told["high_watermark"]) == (1, 2)


def test_a_fetch_waits_for_records_but_not_with_an_error(broker: MockBroker, peer: Peer) -> None:
    hour_ms = 3_600_000
    assert fetch(peer, 5, max_wait_ms=hour_ms)[0]["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    found: list[list[dict[str, Any]]] = []
    waiting = threading.Thread(target=lambda: found.append(fetch(peer, 0, max_wait_ms=hour_ms)), daemon=True)
    waiting.start()
    broker.wait_for("Fetch", 2)
    assert not found
    broker.append("a", [b"1"])
    waiting.join(120)
    assert sizes(found[0]) == [len(broker.batches("a")[0])]


def test_a_fetch_without_records_is_answered_when_its_wait_is_over(peer: Peer) -> None:
    wait_ms = 200
    began = time.monotonic()
    (found,) = fetch(peer, 0, max_wait_ms=wait_ms)
    assert (time.monotonic() - began) * 1000 >= wait_ms
    assert (found["error_code"], found["records"]) == (ErrorCode.NONE, b"")


def test_a_log_that_was_cut_says_where_it_parts_from_the_one_that_was_read(
    broker: MockBroker, peer: Peer
) -> None:
    """KIP-320, KIP-595."""
    for _ in range(3):
        broker.append("a", [b"1"] * 3)
    broker.cut_log("a", 0, 5)
    assert [record.offset for record in broker.records("a")] == [0, 1, 2], "a batch is lost as a whole"
    hour_ms = 3_600_000
    (parted,) = fetch(peer, 5, last=0, max_wait_ms=hour_ms)
    assert (parted["error_code"], parted["diverging_epoch"]) == (0, {"epoch": 0, "end_offset": 3})
    assert broker.append("a", [b"2"] * 4) == 3
    (parted,) = fetch(peer, 5, last=0)
    assert (parted["diverging_epoch"]["end_offset"], parted["records"]) == (3, b"")
    for offset, last in ((3, 0), (5, 1), (5, -1)):
        (found,) = fetch(peer, offset, last=last)
        assert found["diverging_epoch"]["end_offset"] == -1
        assert found["records"]


def test_an_epoch_without_records_is_not_the_one_that_was_read(broker: MockBroker, peer: Peer) -> None:
    """KIP-320."""
    broker.append("a", [b"1"] * 3)
    for _ in range(2):
        broker.move_leader("a", 0, 1)
    ends = [fetch(peer, 3, last=last)[0]["diverging_epoch"]["end_offset"] for last in (0, 1, 2)]
    assert ends == [-1, 3, -1]
    (beyond,) = fetch(peer, 5, last=2)
    assert (beyond["error_code"], beyond["diverging_epoch"]["end_offset"]) == (
        ErrorCode.OFFSET_OUT_OF_RANGE,
        -1,
    )


def test_leader_epochs_are_compared(broker: MockBroker, peer: Peer) -> None:
    """KIP-320."""
    broker.move_leader("a", 0, 1)
    codes = [fetch(peer, 0, epoch=epoch)[0]["error_code"] for epoch in (-1, 0, 1, 2)]
    assert codes == [0, ErrorCode.FENCED_LEADER_EPOCH, 0, ErrorCode.UNKNOWN_LEADER_EPOCH]
    broker.append("a", [b"1"])
    (stored,) = broker.batches("a")
    assert BatchHeader.read(stored).partition_leader_epoch == 1


def test_records_are_deleted_up_to_an_offset_or_the_end(broker: MockBroker, peer: Peer) -> None:
    broker.append("a", [Record("", -1, -1, None, b"1"), b"2", b"3"])

    def delete(offset: int) -> tuple[int, int]:
        topic = {"name": "a", "partitions": [{"partition_index": 0, "offset": offset}]}
        (told,) = peer.ask("DeleteRecords", {"topics": [topic]}, 2)["topics"][0]["partitions"]
        return told["error_code"], told["low_watermark"]

    assert delete(2) == (0, 2)
    assert [record.value for record in broker.records("a")] == [b"3"]
    assert delete(1) == (0, 2), "it never moves back"
    assert delete(4) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-1) == (0, 3)


def test_a_log_is_moved_and_cut_within_its_offsets_alone(broker: MockBroker) -> None:
    broker.append("a", [b"1"] * 4)
    broker.delete_records("a", 0, 2)
    for before in (1, 5):
        with pytest.raises(ValueError, match=f"can't move to {before}: the log has the offsets 2 to 4"):
            broker.delete_records("a", 0, before)
    for end in (1, 5):
        with pytest.raises(ValueError, match=f"can't end at {end}: it has the offsets 2 to 4"):
            broker.cut_log("a", 0, end)
    assert [record.offset for record in broker.records("a")] == [2, 3]
    assert broker.cluster.topics["a"].partitions[0].leader_epoch == 0


def test_an_old_client_learns_which_versions_there_are(peer: Peer) -> None:
    """KIP-511: answered at version 0."""
    peer.socket.sendall(struct.pack(">ihhihB", 11, 18, 99, 7, -1, 0))
    (length,) = struct.unpack(">i", peer.read(4))
    assert struct.unpack(">ih", peer.read(length)[:6]) == (7, ErrorCode.UNSUPPORTED_VERSION)
