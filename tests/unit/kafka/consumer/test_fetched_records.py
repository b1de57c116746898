"""Records of one partition out of a response that is decoded in several pieces."""

from __future__ import annotations

import struct
from itertools import islice

import pytest
from support.brokers.scripted_broker import offsets_of
from support.record_batches import batch, control, record

from spark_kafka_native.kafka.config.client_config import ConsumerConfig
from spark_kafka_native.kafka.consumer import fetched_records
from spark_kafka_native.kafka.consumer.fetched_records import ReceivedRecords, decode_fetched, decode_group
from spark_kafka_native.kafka.consumer.partition_state import ENDLESS, FetchPosition, PartitionState
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import CorruptRecordError
from spark_kafka_native.kafka.model import HeaderKeys, IsolationLevel, TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import FetchedAbortedTransaction, PartitionData
from spark_kafka_native.kafka.records.batch import RecordSetEnd

ABORT, COMMIT = 0, 1
TRANSACTIONAL = 0x10


def transactional(offset: int) -> bytes:
    return batch([record(0)], base_offset=offset, attributes=TRANSACTIONAL, producer_id=7)


def test_a_transaction_that_was_aborted_in_one_piece_hides_nothing_in_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetched_records, "DECODED_BYTES", 1)  # a batch for each piece
    log = [
        batch([record(0)], base_offset=0),
        transactional(1),
        control(2, 7, ABORT),
        transactional(3),
        transactional(4),
        control(5, 7, COMMIT),
    ]
    data = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        high_watermark=6,
        last_stable_offset=6,
        log_start_offset=0,
        aborted_transactions=[FetchedAbortedTransaction(producer_id=7, first_offset=1)],
        records=memoryview(b"".join(log)),
    )
    position = FetchPosition(TopicPartition("t", 0), 0, ENDLESS)
    position.receive(RecordSetEnd(6, 0))
    config = ConsumerConfig(isolation_level=IsolationLevel.READ_COMMITTED)
    pieces = [
        [] if one.columns.offset is None else one.columns.offset.tolist()
        for one in decode_fetched(position, data, config, None)
    ]
    assert pieces == [[0], [3], [4]]
    assert position.offset == 6


@pytest.mark.parametrize(
    ("log", "received", "offsets", "next_offset"),
    [
        pytest.param(b"", 5, [], 5, id="hidden offsets"),
        pytest.param(batch([record(0), record(1), record(2)], base_offset=1), 4, [1, 2, 3], 4, id="all"),
        pytest.param(
            batch([record(index) for index in range(9)], base_offset=1), 10, [*range(1, 7)], 7, id="its end"
        ),
    ],
)
def test_a_range_moves_to_the_end_of_the_records_that_came_or_to_its_own(
    log: bytes, received: int, offsets: list[int], next_offset: int
) -> None:
    """Further on it would skip records, or claim those of another range."""
    data = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        high_watermark=100,
        aborted_transactions=None,
        records=memoryview(log) if log else None,
    )
    position = FetchPosition(TopicPartition("t", 0), 1, 7)
    position.receive(RecordSetEnd(received, 0))
    [fetched] = decode_fetched(position, data, ConsumerConfig(), None)
    assert offsets_of(fetched.columns) == offsets
    assert (fetched.from_offset, fetched.next_offset, position.offset) == (1, next_offset, next_offset)


@pytest.mark.parametrize("corrupt", [False, True])
@pytest.mark.parametrize("moved_to", [None, 0, 2, 90], ids=["paused", "back", "within", "beyond"])
def test_after_a_move_nothing_comes_of_the_pieces_that_are_left(
    monkeypatch: pytest.MonkeyPatch, moved_to: int | None, corrupt: bool
) -> None:
    """They would count as those of the new place, and the records before them as read. So would an error of
    the last one."""
    monkeypatch.setattr(fetched_records, "DECODED_BYTES", 1)  # a batch for each piece
    log = bytearray(b"".join(batch([record(0)], base_offset=offset) for offset in range(1, 5)))
    log[-1] ^= corrupt
    data = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        high_watermark=100,
        aborted_transactions=None,
        records=memoryview(bytes(log)),
    )
    position = FetchPosition(TopicPartition("t", 0), 1, ENDLESS)
    position.receive(RecordSetEnd(5, 0))
    pieces = decode_fetched(position, data, ConsumerConfig(), None)
    assert next(pieces).next_offset == 2
    if moved_to is None:
        position.invalidate()
    else:
        position.seek(moved_to, ENDLESS)
    assert list(pieces) == []
    goes_on_at = 2 if moved_to is None else moved_to
    assert (position.offset, position.fetch_offset) == (goes_on_at, goes_on_at)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (21, b"\xff"),
        (23, struct.pack(">i", -2)),
        (23, struct.pack(">i", -9)),
        (-1, b"!"),
    ],
    ids=["attributes", "ends before itself", "ends before the others", "a record"],
)
def test_batches_before_a_corrupt_one_come_first(at: int, value: bytes) -> None:
    """A caller that skips the offset in the error would skip them unread."""
    bad = bytearray(batch([record(0)], base_offset=3))
    at %= len(bad)
    bad[at : at + len(value)] = value
    data = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        high_watermark=100,
        aborted_transactions=None,
        records=memoryview(b"".join(batch([record(0)], base_offset=offset) for offset in (1, 2)) + bad),
    )
    position = FetchPosition(TopicPartition("t", 0), 1, ENDLESS)
    position.receive(RecordSetEnd(4, 0))
    pieces = decode_fetched(position, data, ConsumerConfig(), None)
    assert offsets_of(next(pieces).columns) == [1, 2]
    assert position.offset == 3
    with pytest.raises(CorruptRecordError, match="t-0 at offset"):
        next(pieces)


@pytest.mark.parametrize("cut_off", [0, 30], ids=["nothing", "a part of a batch"])
@pytest.mark.parametrize("partitions", [1, 2], ids=["alone", "with others"])
def test_what_decoding_stops_before_is_requested_again(cut_off: int, partitions: int) -> None:
    """The requests of a range may have reached its end already: it would wait for ever."""
    data = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        high_watermark=100,
        aborted_transactions=None,
        records=memoryview(
            batch([record(0), record(1)], base_offset=0) + batch([record(0)], base_offset=2)[:cut_off]
        ),
    )
    state = PartitionState(TopicPartition("t", 0), 0, 5, 1)
    state.position.receive(RecordSetEnd(5, 0))
    [decoded, *_] = decode_group([ReceivedRecords(state, data, 0)] * partitions, ConsumerConfig(), None)
    assert (decoded is None) == (partitions == 1)
    position = state.position
    pieces = islice(decode_fetched(position, data, ConsumerConfig(), None, decoded), 9)
    assert [offset for piece in pieces for offset in offsets_of(piece.columns)] == [0, 1]
    assert (position.offset, position.fetch_offset) == (2, 2)


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_a_response_that_names_no_aborted_transactions_hides_nothing(level: IsolationLevel) -> None:
    data = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        high_watermark=3,
        aborted_transactions=None,
        records=memoryview(transactional(1) + transactional(2)),
    )
    position = FetchPosition(TopicPartition("t", 0), 1, ENDLESS)
    position.receive(RecordSetEnd(3, 0))
    [piece] = decode_fetched(position, data, ConsumerConfig(isolation_level=level), None)
    assert offsets_of(piece.columns) == [1, 2]


@pytest.mark.parametrize("header_keys", list(HeaderKeys))
def test_a_gap_has_the_columns_that_records_have(header_keys: HeaderKeys) -> None:
    """Both become parts of one table."""
    tables = []
    for records in (None, memoryview(batch([record(0, headers=[(b"k", b"v")])], base_offset=1))):
        data = PartitionData(
            partition_index=0,
            error_code=ErrorCode.NONE,
            high_watermark=2,
            aborted_transactions=None,
            records=records,
        )
        position = FetchPosition(TopicPartition("t", 0), 1, ENDLESS)
        position.receive(RecordSetEnd(2, 0))
        config = ConsumerConfig(header_keys=header_keys)
        [piece] = decode_fetched(position, data, config, frozenset({"offset", "headers"}))
        tables.append(piece.columns)
    gap, full = tables
    assert (gap.length, full.length) == (0, 1)
    assert gap.headers is not None
    assert full.headers is not None
    assert gap.headers.type == full.headers.type
    assert (gap.key, gap.value, gap.timestamp_ms) == (full.key, full.value, full.timestamp_ms)


@pytest.mark.parametrize("columns", [None, frozenset({"offset", "headers"})], ids=["all", "some"])
@pytest.mark.parametrize("check_crcs", [True, False])
@pytest.mark.parametrize("header_keys", list(HeaderKeys))
def test_the_settings_count_also_where_others_are_decoded_together_with_it(
    header_keys: HeaderKeys, check_crcs: bool, columns: frozenset[str] | None
) -> None:
    """Which of the two happens depends on how a broker fills its responses."""
    config = ConsumerConfig(header_keys=header_keys, check_crcs=check_crcs)

    def read(partitions: int, key: bytes, crc: int | None) -> object:
        records = batch([record(0, key=b"k", headers=[(key, b"v")])], base_offset=1, crc=crc)
        data = PartitionData(
            partition_index=0,
            error_code=ErrorCode.NONE,
            high_watermark=2,
            aborted_transactions=None,
            records=memoryview(records),
        )
        state = PartitionState(TopicPartition("t", 0), 1, ENDLESS, 1)
        state.position.receive(RecordSetEnd(2, 0))
        [decoded, *_] = decode_group([ReceivedRecords(state, data, 0)] * partitions, config, columns)
        try:
            [piece] = decode_fetched(state.position, data, config, columns, decoded)
        except CorruptRecordError as error:
            return str(error)
        assert (decoded is None) == (partitions == 1)
        found = piece.columns
        arrays = (found.key, found.value, found.headers)
        return offsets_of(found), [None if one is None else one.to_pylist() for one in arrays]

    for key, crc in ((b"a", None), (b"\xff", None), (b"a", 1)):
        alone = read(1, key, crc)
        assert isinstance(alone, str) == bool(
            (check_crcs and crc) or (header_keys is HeaderKeys.STRICT and key == b"\xff")
        )
        assert read(2, key, crc) == alone
