"""The rules of a batch's header hold for the first batch and the twentieth, in a short record set and in a
long one."""

import struct

import pyarrow as pa
import pytest
from support.record_batches import batch, record

from spark_kafka_native.kafka.errors import CorruptRecordError
from spark_kafka_native.kafka.records.batch import (
    CHECKED_FROM,
    CONTROL,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    check_batches,
    place_of,
    read_batch_headers,
)
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.compression import Codec, compress
from spark_kafka_native.kafka.records.crc32c import crc32c
from spark_kafka_native.kafka.records.decode import decode_record_set
from spark_kafka_native.kafka.records.encode import encode_record_batch

FORMATS = {8: ">q", 4: ">i", 2: ">h", 1: ">b"}


def record_set(count, wrong=None, **changed):
    """``count`` batches of two records, the headers of which say what ``changed`` says for the ``wrong``
    one."""
    batches = []
    for index in range(count):
        values = pa.array([b"a", b"b"], pa.binary())
        one = bytearray(encode_record_batch(RecordColumns(length=2, value=values), now_ms=1_000))
        struct.pack_into(">q", one, 0, 2 * index)
        if index == wrong:
            for name, value in changed.items():
                struct.pack_into(FORMATS[HEADER[name].itemsize], one, place_of(name), value)
            struct.pack_into(">I", one, CRC_AT, crc32c(memoryview(one)[CHECKED_FROM:]))
        batches.append(bytes(one))
    return memoryview(b"".join(batches))


@pytest.mark.parametrize("count", [1, 7, 8, 20])
def test_what_keeps_the_rules_is_read(count):
    assert decode_record_set(record_set(count), fetch_offset=0).columns.length == 2 * count


@pytest.mark.parametrize(("count", "wrong"), [(1, 0), (7, 6), (8, 0), (8, 7), (20, 0), (20, 11), (20, 19)])
@pytest.mark.parametrize(
    "changed",
    [
        {"last_offset_delta": -1},
        {"base_offset": -5},
        {"records_count": -1},
        {"records_count": 3},
        {"last_offset_delta": 10_000, "records_count": 1_000},
        {"records_count": 0},
        {"attributes": 1, "records_count": 3},
        {"attributes": 5},
        {"attributes": 7},
        {"base_offset": 2**63 - 1},
        {"last_offset_delta": 2, "records_count": 3},
    ],
    ids=lambda changed: ",".join(changed),
)
def test_what_breaks_one_is_refused(count, wrong, changed):
    data = record_set(count, wrong, **changed)
    with pytest.raises(CorruptRecordError):
        decode_record_set(data, fetch_offset=0)
    # By the headers alone: before room for as many records as they say is allocated.
    headers = read_batch_headers(data)
    with pytest.raises(CorruptRecordError) as caught:
        check_batches(data, headers, check_crcs=False)
    assert caught.value.offset == changed.get("base_offset", 2 * wrong)


@pytest.mark.parametrize(("count", "wrong"), [(1, 0), (7, 6), (8, 7), (20, 11)])
def test_the_first_whose_bytes_were_changed_is_named(count, wrong):
    data = bytearray(record_set(count))
    headers = read_batch_headers(memoryview(data))
    for index in range(wrong, count):
        data[int(headers.end[index]) - 1] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum mismatch") as caught:
        check_batches(memoryview(data), headers, check_crcs=True)
    assert caught.value.offset == 2 * wrong
    check_batches(memoryview(data), headers, check_crcs=False)


@pytest.mark.parametrize("count", [4, 20])
def test_of_a_wrong_checksum_and_a_wrong_header_the_first_is_told(count):
    wrong = 2
    data = bytearray(record_set(count, wrong, records_count=-1))
    headers = read_batch_headers(memoryview(data))

    def told():
        with pytest.raises(CorruptRecordError) as caught:
            check_batches(memoryview(data), headers, check_crcs=True)
        return caught.value.offset, "checksum" in str(caught.value)

    for damaged, expected in [(3, (4, False)), (2, (4, True)), (1, (2, True))]:
        data[int(headers.end[damaged]) - 1] ^= 1
        assert told() == expected


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(
    "changed",
    [
        {"last_offset_delta": 10_000},
        {"last_offset_delta": 1},
        {"attributes": 4, "records_count": 1_000, "last_offset_delta": 999},
    ],
    ids=["compacted", "as it was", "compressed"],
)
def test_what_a_broker_may_well_send_is_not_refused_by_its_header(count, changed):
    data = record_set(count, count - 1, **changed)
    check_batches(data, read_batch_headers(data), check_crcs=True)


@pytest.mark.parametrize("count", [3, 2**31 - 1])
def test_a_compressed_batch_has_no_more_records_than_its_bytes_can_hold(count):
    """Room for as many as it says would be made before they are read."""
    body = bytes(compress(Codec.GZIP, record(0, None) + record(1, None)))
    assert decode_record_set(batch(body=body, count=2, attributes=1), fetch_offset=0).columns.length == 2
    with pytest.raises(CorruptRecordError, match=f"a batch of {count} records in 14 decompressed bytes"):
        decode_record_set(batch(body=body, count=count, attributes=1), fetch_offset=0)


def test_a_walk_ends_at_the_first_batch_that_is_not_wanted():
    data = record_set(3)
    for until, found, reached in [(0, 0, True), (2, 1, True), (3, 2, True), (4, 2, True), (5, 3, False)]:
        headers = read_batch_headers(data, until)
        assert (headers.base_offset.tolist(), headers.reached_until) == ([0, 2, 4][:found], reached)
        assert headers.incomplete_batch_bytes is None
    assert not read_batch_headers(data).reached_until


def test_a_batch_that_is_cut_off_says_how_much_it_needs():
    data = record_set(2)
    size = len(data) // 2
    for cut, needed in [
        (2 * size, None),
        (2 * size - 1, size),
        (size + 17, size),
        (size + 16, HEADER_BYTES),
        (size + 1, HEADER_BYTES),
        (size, None),
        (1, HEADER_BYTES),
        (0, None),
    ]:
        headers = read_batch_headers(data[:cut])
        assert headers.incomplete_batch_bytes == needed, cut
        assert headers.start.tolist() == [0, size][: cut // size]
        assert headers.fault is None


@pytest.mark.parametrize(
    ("at", "byte", "said"),
    [
        (16, 0, "old format v0"),
        (16, 1, "old format v1"),
        (16, 3, "unknown record format .magic 3"),
        (11, HEADER_BYTES - 13, "a batch of length 48, the header alone has 49"),
    ],
)
def test_what_is_no_batch_is_told_behind_those_before_it(at, byte, said):
    data = bytearray(record_set(2))
    size = len(data) // 2
    data[size + at] = byte
    headers = read_batch_headers(memoryview(data))
    assert headers.start.tolist() == [0]
    with pytest.raises(CorruptRecordError, match=said) as caught:
        check_batches(memoryview(data), headers, check_crcs=True)
    assert caught.value.offset == 2
    first = headers.first(1)
    assert (first.start.tolist(), first.fault) == ([0], None)
    assert (first.incomplete_batch_bytes, first.reached_until) == (None, False)
    check_batches(memoryview(data), first, check_crcs=True)
    assert len(headers.first(0).crc) == 0


def test_a_batch_of_nothing_but_a_header_is_one():
    data = memoryview(batch([], base_offset=7))
    assert len(data) == HEADER_BYTES
    headers = read_batch_headers(data)
    check_batches(data, headers, check_crcs=True)
    assert (headers.base_offset.tolist(), headers.count.tolist()) == ([7], [0])


def test_headers_are_columns():
    data = memoryview(
        batch([record(0), record(1)], base_offset=5, base_timestamp=1_234, attributes=LOG_APPEND_TIME)
        + batch([record(0)], base_offset=9, last_offset_delta=4, attributes=TRANSACTIONAL | CONTROL)
    )
    headers = read_batch_headers(data)
    assert (headers.last_offset.tolist(), headers.last_offset_delta.tolist()) == ([6, 13], [1, 4])
    assert (headers.count.tolist(), headers.base_timestamp[0]) == ([2, 1], 1_234)
    assert headers.end.tolist() == [headers.start[1], len(data)]
    assert headers.has(LOG_APPEND_TIME).tolist() == [True, False]
    assert headers.has(CONTROL).tolist() == [False, True]
    assert headers.codec.tolist() == [0, 0]


@pytest.mark.parametrize(("count", "wrong"), [(7, 6), (8, 1), (8, 7), (20, 13)])
@pytest.mark.parametrize("back", [1, 2])
def test_offsets_that_go_back_are_refused(count, wrong, back):
    with pytest.raises(CorruptRecordError, match=f"after one up to {2 * wrong - 1}$"):
        decode_record_set(record_set(count, wrong, base_offset=2 * wrong - back), fetch_offset=0)
