"""What the decoder makes of record sets, good and bad; every case with both kernels."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from support.record_batches import EACH_KERNEL, batch, control, record, span, using_kernel, varint

from spark_kafka_native.kafka.errors import CorruptRecordError
from spark_kafka_native.kafka.model import AbortedTransaction, HeaderKeys, TopicPartition
from spark_kafka_native.kafka.records import scan
from spark_kafka_native.kafka.records.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from spark_kafka_native.kafka.records.columns import HEADERS_AS_BYTES_TYPE
from spark_kafka_native.kafka.records.compression import Codec, compress
from spark_kafka_native.kafka.records.decode import (
    ALL_COLUMNS,
    DecodedRecordSet,
    RecordSetSlice,
    decode_record_set,
    decode_record_sets,
)

pytestmark = EACH_KERNEL


@pytest.fixture(autouse=True)
def _kernel(kernel):
    with using_kernel(kernel):
        yield


def values(decoded: DecodedRecordSet) -> list[bytes | None]:
    return decoded.columns.value.to_pylist()


def offsets(decoded: DecodedRecordSet) -> list[int]:
    return decoded.columns.offset.tolist()


def test_records_with_lengths_that_begin_with_the_same_byte():
    """A length has two bytes here, and those of both sizes differ in the second one only."""
    wanted = [b"x" * 200] * 400 + [b"y" * 264] * 200 + [b"z" * 200] * 3
    data = batch([record(number, value) for number, value in enumerate(wanted)])
    assert values(decode_record_set(data, fetch_offset=0)) == wanted


def test_records_with_lengths_that_differ_in_their_third_byte():
    wanted = [b"x"] * 400 + [b"y" * 9_000] * 40 + [b"z" * (9_000 + 8_192)] * 2 + [b"y" * 9_000] * 2
    data = batch([record(number, value) for number, value in enumerate(wanted)])
    assert values(decode_record_set(data, fetch_offset=0)) == wanted


@pytest.mark.parametrize("sizes", [(3, 500), (500, 3, 500), (3, 500, 3), (3, 2, 500, 500, 2, 3)], ids=str)
def test_small_and_large_batches_mix(sizes):
    wanted, data = list[bytes](), b""
    for size in sizes:
        of_batch = [b"%d" % (len(wanted) + row) for row in range(size)]
        data += batch([record(row, value) for row, value in enumerate(of_batch)], base_offset=len(wanted))
        wanted += of_batch
    assert values(decode_record_set(data, fetch_offset=0)) == wanted


def test_every_column():
    headers = [(b"a", b"1"), (b"a", None), (b"\xc3\xbc", b"")]
    data = batch(
        [
            record(0, b"one", key=b"k", timestamp_delta=-5, headers=headers),
            record(1, None, key=b"", timestamp_delta=7),
            record(2, b"", timestamp_delta=-1001),
        ],
        base_offset=2**40,
    )
    decoded = decode_record_set(data, fetch_offset=0)
    columns = decoded.columns
    assert columns.length == 3
    assert offsets(decoded) == [2**40, 2**40 + 1, 2**40 + 2]
    assert columns.timestamp_ms.tolist() == [995, 1007, -1]
    assert columns.timestamp_type.tolist() == [0, 0, 0]
    assert columns.timestamp_type.dtype == np.int8
    assert columns.key.to_pylist() == [b"k", b"", None]
    assert values(decoded) == [b"one", None, b""]
    assert columns.headers.to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "ü", "value": b""}],
        None,
        None,
    ]
    columns.headers.validate(full=True)
    columns.value.validate(full=True)
    assert decoded.next_offset == 2**40 + 3
    assert decoded.consumed_bytes == len(data)
    assert decoded.incomplete_batch_bytes is None
    assert decoded.aborted_transactions is None


@pytest.mark.parametrize("data", [b"", bytearray(), memoryview(b"")])
def test_nothing(data):
    decoded = decode_record_set(data, fetch_offset=7)
    assert (decoded.columns.length, decoded.next_offset, decoded.consumed_bytes) == (0, 7, 0)
    assert len(decoded.columns.value) == len(decoded.columns.headers) == 0
    assert decoded.columns.headers.type.value_type.field(0).name == "key"


@pytest.mark.parametrize("codec", list(Codec))
def test_many_batches_become_one_set_of_columns(codec):
    data = b"".join(
        batch(
            base_offset=10 * i,
            body=bytes(
                compress(
                    codec if i % 2 else Codec.NONE, b"".join([record(j, b"%d-%d" % (i, j)) for j in range(5)])
                )
            ),
            count=5,
            attributes=codec if i % 2 else 0,
        )
        for i in range(7)
    )
    decoded = decode_record_set(data, fetch_offset=0)
    assert values(decoded) == [b"%d-%d" % (i, j) for i in range(7) for j in range(5)]
    assert offsets(decoded) == [10 * i + j for i in range(7) for j in range(5)]
    assert decoded.next_offset == 65


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_a_plain_batch_may_follow_a_compressed_one(codec, key):
    # Decompressed batches lie outside the record set; the rows still keep the order of the log.
    records = [record(0, b"a" * 50, key=key), record(1, None, key=key, headers=[(b"h", b"x")])]
    packed = batch(body=bytes(compress(codec, b"".join(records))), count=2, attributes=codec)
    plain = batch([record(0, None, key=key), record(1, b"b", key=key)], base_offset=2)
    columns = decode_record_set(packed + plain, fetch_offset=0).columns
    assert columns.key.to_pylist() == [key] * 4
    assert columns.value.to_pylist() == [b"a" * 50, None, None, b"b"]
    assert columns.headers.to_pylist() == [None, [{"key": "h", "value": b"x"}], None, None]
    for column in (columns.key, columns.value, columns.headers):
        column.validate(full=True)


def test_log_append_time_is_the_batch_s():
    data = batch([record(0, timestamp_delta=5), record(1, timestamp_delta=9)], attributes=8, max_timestamp=77)
    columns = decode_record_set(data + batch([record(0)], base_offset=2), fetch_offset=0).columns
    assert columns.timestamp_ms.tolist() == [77, 77, 1000]
    assert columns.timestamp_type.tolist() == [1, 1, 0]


def test_records_outside_the_asked_range_are_dropped():
    data = batch([record(i, b"%d" % i) for i in range(10)]) + batch([record(0, b"10")], base_offset=10)
    decoded = decode_record_set(data, fetch_offset=3, until_offset=6)
    assert values(decoded) == [b"3", b"4", b"5"]
    assert (decoded.next_offset, decoded.consumed_bytes) == (6, 0)
    decoded = decode_record_set(data, fetch_offset=10)
    assert values(decoded) == [b"10"]
    decoded = decode_record_set(data, fetch_offset=11)
    assert (values(decoded), decoded.next_offset) == ([], 11)


def test_a_batch_before_the_fetch_offset_is_skipped_but_moves_nothing_back():
    decoded = decode_record_set(batch([record(0)], base_offset=3), fetch_offset=9)
    assert (values(decoded), decoded.next_offset) == ([], 9)


def test_compaction_gaps():
    data = batch([record(2, b"a"), record(5, b"b")], base_offset=10, last_offset_delta=9)
    data += batch([], base_offset=20, last_offset_delta=4)  # all records compacted away
    decoded = decode_record_set(data, fetch_offset=10)
    assert offsets(decoded) == [12, 15]
    assert decoded.next_offset == 25
    assert decode_record_set(data, fetch_offset=16).next_offset == 25
    only_offsets = decode_record_set(data, fetch_offset=13, columns=frozenset({"offset"}))
    assert offsets(only_offsets) == [15]


@pytest.mark.parametrize("limit", [{"max_bytes": 1}, {"max_records": 1}], ids=["bytes", "records"])
def test_what_is_left_of_a_range_whose_end_is_there_is_read_next(limit):
    data = b"".join(batch([record(0)], base_offset=offset) for offset in (5, 7, 50))
    first = decode_record_set(data, fetch_offset=0, until_offset=20, **limit)
    assert (offsets(first), first.next_offset) == ([5], 6)
    rest = decode_record_set(data[first.consumed_bytes :], fetch_offset=6, until_offset=20, max_bytes=1_000)
    assert (offsets(rest), rest.next_offset) == ([7], 20)


def test_the_end_of_the_range_may_lie_in_a_gap():
    data = batch([record(0)], base_offset=5) + batch([record(0)], base_offset=50)
    decoded = decode_record_set(data, fetch_offset=0, until_offset=20)
    assert (offsets(decoded), decoded.next_offset) == ([5], 20)
    decoded = decode_record_set(data[: len(data) // 2], fetch_offset=0, until_offset=20)
    assert (offsets(decoded), decoded.next_offset) == ([5], 6)
    decoded = decode_record_set(batch([record(0)], base_offset=50), fetch_offset=0, until_offset=20)
    assert (offsets(decoded), decoded.next_offset, decoded.consumed_bytes) == ([], 20, 0)


@pytest.mark.parametrize("cut", [1, 8, 12, 16, 17, 40, 61, 65])
def test_a_cut_off_batch_at_the_end_is_ignored(cut):
    whole, more = batch([record(0, b"a")]), batch([record(0, b"b" * 100)], base_offset=1)
    decoded = decode_record_set(whole + more[:cut], fetch_offset=0)
    assert values(decoded) == [b"a"]
    assert (decoded.next_offset, decoded.consumed_bytes) == (1, len(whole))
    assert decoded.incomplete_batch_bytes == (len(more) if cut >= 17 else 61)
    alone = decode_record_set(more[:cut], fetch_offset=1)
    assert (alone.columns.length, alone.next_offset) == (0, 1)


def test_projection_builds_only_what_is_wanted():
    data = batch([record(0, b"a", key=b"k", headers=[(b"h", b"x")])])
    for name in ALL_COLUMNS:
        columns = decode_record_set(data, fetch_offset=0, columns=frozenset({name})).columns
        assert {other for other in ALL_COLUMNS if getattr(columns, other) is not None} == {name}
        assert len(getattr(columns, name)) == columns.length == 1
    with pytest.raises(ValueError, match="no such columns"):
        decode_record_set(data, fetch_offset=0, columns=frozenset({"topic"}))


def test_offsets_alone_need_no_body_where_the_header_says_it_all():
    # A compressed body that cannot be decompressed goes unnoticed: it is not looked at.
    data = batch(body=b"x" * 40, count=4, attributes=4)
    decoded = decode_record_set(data, fetch_offset=1, columns=frozenset({"offset"}))
    assert offsets(decoded) == [1, 2, 3]
    with pytest.raises(CorruptRecordError, match="zstd"):
        decode_record_set(data, fetch_offset=1, columns=frozenset({"offset", "timestamp_ms"}))
    # Nor is a claim of many records in few bytes believed.
    with pytest.raises(CorruptRecordError, match="zstd"):
        decode_record_set(
            batch(body=b"x", count=2**31 - 1, attributes=4), fetch_offset=0, columns=frozenset({"offset"})
        )


def test_dense_and_gapped_batches_mix():
    data = batch([record(0), record(1)]) + batch([record(1), record(3)], base_offset=2, last_offset_delta=3)
    data += batch([record(0)], base_offset=6, attributes=8, max_timestamp=5)
    assert offsets(decode_record_set(data, fetch_offset=0, columns=frozenset({"offset"}))) == [0, 1, 3, 5, 6]
    columns = decode_record_set(data, fetch_offset=0, columns=frozenset({"timestamp_ms"})).columns
    assert columns.timestamp_ms.tolist() == [1000, 1000, 1000, 1000, 5]


def test_max_records_cuts_and_goes_on_where_it_stopped():
    data = b"".join(
        batch([record(j, b"%d" % (4 * i + j)) for j in range(4)], base_offset=4 * i) for i in range(5)
    )
    seen: list[bytes | None] = []
    position, rest = 2, data
    while rest:
        decoded = decode_record_set(rest, fetch_offset=position, max_records=3)
        assert 0 < decoded.columns.length <= 3
        seen += values(decoded)
        position, rest = decoded.next_offset, rest[decoded.consumed_bytes :]
    assert seen == [b"%d" % i for i in range(2, 20)]


def test_a_cut_leaves_nothing_out_that_lies_before_a_marker_or_a_gap():
    data = batch([record(i, b"%d" % i) for i in range(5)], attributes=0x10, producer_id=1)
    data += control(5, 1, 1) + batch([], base_offset=6)
    seen: list[bytes | None] = []
    position, rest, left = 0, data, []
    while rest:
        decoded = decode_record_set(rest, fetch_offset=position, max_records=2, aborted_transactions=left)
        seen += values(decoded)
        position, rest, left = (
            decoded.next_offset,
            rest[decoded.consumed_bytes :],
            decoded.aborted_transactions,
        )
    assert (seen, position) == ([b"0", b"1", b"2", b"3", b"4"], 7)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_set_too_large_for_one_call_is_cut_at_a_batch(codec):
    body = b"".join(record(j, bytes([j]) * 100) for j in range(10))
    data = b"".join(
        batch(base_offset=10 * i, body=bytes(compress(codec, body)), count=10, attributes=codec)
        for i in range(6)
    )
    seen: list[int] = []
    position, rest, calls = 0, data, 0
    while rest:
        decoded = decode_record_set(rest, fetch_offset=position, max_batch_bytes=2500)
        seen += offsets(decoded)
        position, rest, calls = decoded.next_offset, rest[decoded.consumed_bytes :], calls + 1
    assert seen == list(range(60))
    assert calls >= 2


def test_a_bomb_is_refused():
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        data = batch(body=bytes(compress(codec, bytes(10**6))), count=1, attributes=codec, base_offset=42)
        with pytest.raises(CorruptRecordError, match="more than the 100000 bytes allowed") as caught:
            decode_record_set(data, fetch_offset=0, max_batch_bytes=100_000)
        assert caught.value.offset == 42


def test_memory_is_its_own():
    data = bytearray(batch([record(0, b"value", key=b"key", headers=[(b"h", b"x")])]))
    columns = decode_record_set(data, fetch_offset=0).columns
    data[:] = bytes(len(data))
    assert columns.key.to_pylist() == [b"key"]
    assert columns.value.to_pylist() == [b"value"]
    assert columns.headers.to_pylist() == [[{"key": "h", "value": b"x"}]]


# ---- transactions


def aborted(*pairs: tuple[int, int]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=producer_id, first_offset=first) for producer_id, first in pairs]


def transactional(base_offset: int, producer_id: int, value: bytes) -> bytes:
    return batch([record(0, value)], base_offset=base_offset, attributes=0x10, producer_id=producer_id)


INTERLEAVED = b"".join(
    [
        transactional(0, 1, b"a1"),
        transactional(1, 2, b"b1"),
        batch([record(0, b"plain")], base_offset=2),
        transactional(3, 1, b"a2"),
        control(4, 1, 0),  # aborts a1, a2
        transactional(5, 1, b"a3"),
        control(6, 2, 1),  # commits b1
        transactional(7, 2, b"b2"),
        control(8, 2, 0),  # aborts b2
        control(9, 1, 1),  # commits a3
    ]
)


def test_aborted_transactions_are_hidden_from_read_committed_only():
    decoded = decode_record_set(INTERLEAVED, fetch_offset=0)
    assert values(decoded) == [b"a1", b"b1", b"plain", b"a2", b"a3", b"b2"]
    assert decoded.next_offset == 10
    decoded = decode_record_set(
        INTERLEAVED, fetch_offset=0, aborted_transactions=aborted((2, 7), (1, 0), (1, 0))
    )
    assert values(decoded) == [b"b1", b"plain", b"a3"]
    assert (decoded.next_offset, decoded.aborted_transactions) == (10, ())
    assert len(values(decode_record_set(INTERLEAVED, fetch_offset=0, aborted_transactions=[]))) == 6


def test_reading_on_in_a_set_hides_neither_too_much_nor_too_little():
    transactions = aborted((2, 7), (1, 0))
    seen: list[bytes | None] = []
    position, rest = 0, INTERLEAVED
    while rest:
        decoded = decode_record_set(
            rest, fetch_offset=position, aborted_transactions=transactions, max_records=1
        )
        seen += values(decoded)
        position, rest = decoded.next_offset, rest[decoded.consumed_bytes :]
        transactions = decoded.aborted_transactions
    assert seen == [b"b1", b"plain", b"a3"]


def test_the_end_of_an_aborted_transaction_ends_no_other():
    data = transactional(0, 1, b"a1") + transactional(1, 2, b"b1") + control(2, 1, 0)
    data += transactional(3, 2, b"b2") + transactional(4, 1, b"a2")
    decoded = decode_record_set(data, fetch_offset=0, aborted_transactions=aborted((1, 0), (2, 1)))
    assert values(decoded) == [b"a2"]
    assert decoded.aborted_transactions == tuple(aborted((2, 1)))


def test_a_set_of_nothing_but_aborted_records_advances():
    data = transactional(0, 1, b"a") + control(1, 1, 0)
    decoded = decode_record_set(data, fetch_offset=0, aborted_transactions=aborted((1, 0)))
    assert (values(decoded), decoded.next_offset) == ([], 2)


def test_an_unknown_marker_is_no_abort():
    data = transactional(0, 1, b"a") + control(1, 1, 5) + transactional(2, 1, b"b") + control(3, 1, 0)
    decoded = decode_record_set(data, fetch_offset=0, aborted_transactions=aborted((1, 0)))
    assert (values(decoded), decoded.next_offset) == ([], 4)
    assert values(decode_record_set(data, fetch_offset=0)) == [b"a", b"b"]


def test_only_the_first_record_of_a_control_batch_counts():
    markers = [record(i, b"", key=bytes([0, 0, 0, kind])) for i, kind in enumerate((1, 0))]
    data = transactional(0, 1, b"a") + batch(markers, base_offset=1, attributes=0x30, producer_id=1)
    decoded = decode_record_set(data, fetch_offset=0, aborted_transactions=aborted((1, 0)))
    assert decoded.aborted_transactions == tuple(aborted((1, 0)))
    assert decoded.next_offset == 3


@pytest.mark.parametrize("key", [b"", b"\0\0\0"])
def test_an_unreadable_marker_is_an_error_where_it_matters(key):
    data = transactional(0, 1, b"a") + control(1, 1, 0, key=key)
    assert values(decode_record_set(data, fetch_offset=0)) == [b"a"]
    with pytest.raises(CorruptRecordError, match="control record") as caught:
        decode_record_set(data, fetch_offset=0, aborted_transactions=aborted((1, 0)))
    assert caught.value.offset == 1


# ---- faults

GOOD = record(0, b"good")


def refuse(data: bytes, match: str, offset: int = 0, **options) -> CorruptRecordError:
    with pytest.raises(CorruptRecordError, match=match) as caught:
        decode_record_set(data, fetch_offset=0, **options)
    assert caught.value.offset == offset
    return caught.value


def test_a_wrong_checksum_names_both():
    error = refuse(batch([GOOD], base_offset=9, crc=0x1234), "0x00001234.*0x", 9)
    assert "orders-3 at offset 9" in str(error.at(TopicPartition("orders", 3)))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert values(decode_record_set(batch([GOOD], crc=0), fetch_offset=0, check_crcs=False)) == [b"good"]


def test_a_flipped_bit_in_a_length_is_blamed_on_its_batch():
    data = bytearray(batch([GOOD]) + batch([GOOD], base_offset=1) + batch([GOOD], base_offset=2))
    data[11] ^= 1
    refuse(bytes(data), "checksum")


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused_by_name(magic):
    refuse(batch([GOOD], magic=magic, base_offset=5), f"old format v{magic}.*before Kafka 0.11", 5)


@pytest.mark.parametrize("magic", [3, 127, -1])
def test_unknown_formats_are_refused(magic):
    refuse(batch([GOOD], base_offset=1, magic=magic), rf"unknown record format \(magic {magic}\)", 1)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec):
    refuse(batch([GOOD], attributes=codec), f"unknown compression codec {codec}")


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_impossible_batch_lengths(length):
    refuse(batch([GOOD], length=length), f"a batch of length {length}")


def test_a_batch_longer_than_the_rest_is_incomplete():
    decoded = decode_record_set(batch([GOOD], length=2**31 - 1), fetch_offset=0)
    assert (decoded.next_offset, decoded.incomplete_batch_bytes) == (0, 2**31 - 1 + 12)


@pytest.mark.parametrize("count", [-1, 2, 1000, 2**31 - 1, -(2**31)])
def test_wrong_counts(count):
    refuse(batch([GOOD], count=count, last_offset_delta=0), "a batch of")
    refuse(batch([GOOD], count=count, last_offset_delta=2**31 - 1), "a batch of|malformed")
    body = bytes(compress(Codec.ZSTD, GOOD))
    refuse(batch(body=body, attributes=4, count=count, last_offset_delta=2**31 - 1), "a batch of|malformed")


def test_too_few_records_counted():
    refuse(batch([GOOD, record(1)], count=1), r"\d+ bytes are left over behind the 1 records")
    refuse(batch([GOOD], count=0), "a batch of 0 records in")


def test_offsets_that_make_no_sense():
    refuse(batch([GOOD], base_offset=-1), "a batch from offset -1", -1)
    refuse(batch([GOOD], last_offset_delta=-1, count=1), "last offset delta -1")
    refuse(batch([GOOD, record(1)], base_offset=2**63 - 1), "a batch from offset", 2**63 - 1)
    refuse(batch([GOOD, record(1)]) + batch([GOOD], base_offset=1), "after one up to 1", 1)
    refuse(batch([GOOD]) + batch([GOOD]), "after one up to 0", 0)


HEADER_RULES = {
    "a negative base offset": ({"base_offset": -1}, "a batch from offset -1"),
    "a negative last offset delta": ({"last_offset_delta": -1, "count": 1}, "last offset delta -1"),
    "a last offset beyond 64 bits": (
        {"base_offset": 2**63 - 1, "last_offset_delta": 1},
        "a batch from offset",
    ),
    "a negative count": ({"count": -1}, "a batch of -1 records"),
    "more records than offsets": ({"count": 4, "last_offset_delta": 2}, "a batch of 4 records whose last"),
    "more of them where no size tells": (
        {"count": 2, "last_offset_delta": 0, "attributes": 4, "body": b"packed"},
        "a batch of 2 records whose last offset delta is 0",
    ),
    "a codec that nobody knows": ({"attributes": 5}, "unknown compression codec 5"),
    "more records than bytes": ({"count": 3, "last_offset_delta": 2}, "a batch of 3 records in"),
    "bytes and no record": ({"count": 0}, "a batch of 0 records in"),
    "an offset that was there": ({"base_offset": -2}, "after one up to"),
}


@pytest.mark.parametrize("behind", [0, 3, 20])
@pytest.mark.parametrize("before", [0, 1, 6, 7, 8, 20])
@pytest.mark.parametrize("rule", HEADER_RULES)
def test_header_rules_hold_among_however_many_batches(rule, before, behind):
    changed, reason = HEADER_RULES[rule]
    good = [batch([record(0), record(1)], base_offset=2 * i) for i in range(before + 1 + behind)]
    base_offset = changed.get("base_offset", 2 * before)
    if rule == "an offset that was there":
        if not before:
            pytest.skip("there is none before the first")
        base_offset = 2 * before - 1
    # Two records of 8 bytes in all: room for no third.
    changed = {"body": record(0, None) + record(1, None), "count": 2} | changed | {"base_offset": base_offset}
    bad = batch(**changed)
    data = b"".join([*good[:before], bad, *good[before + 1 :]])
    refuse(data, reason, base_offset)
    assert decode_record_set(b"".join(good), fetch_offset=0).columns.length == 2 * len(good)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record(0), "its offset delta is 0, expected 1 to 1"),
        (record(-1), "its offset delta is -1"),
        (record(2), "its offset delta is 2"),
        (record(1, timestamp_delta=2**63 - 1), "its timestamp 1000"),
        (record(1, length=-1), "its length is -1"),
        (record(1, length=10**6), "its length is 1000000"),
        (record(1, length=0), "its length is 0|is cut off"),
        (record(1, length=3), "its key length is cut off"),
        (record(1, tail=b"x"), "1 bytes are left over behind its 0 headers"),
        (record(1, headers_count=-1), "it claims -1 headers"),
        (record(1, headers_count=2**31 - 1), "it claims 2147483647 headers"),
        (record(1, headers_count=1), "it claims 1 headers"),
        (varint(9) + b"\0\0\2" + varint(-2) + b"\1\0abc", "its key length is -2"),
        (varint(9) + b"\0\0\2" + varint(7) + b"\1\0abc", "its key length is 7"),
        (varint(9) + b"\0\0\2\1" + varint(-2) + b"\0abc", "its value length is -2"),
        (varint(9) + b"\0\0\2\1" + varint(100) + b"abc", "its value length is 100"),
        (b"\xff\xff\xff\xff\x7f", "its length does not fit 32 bits"),
        (b"\xff\xff\xff\xff\xff\xff", "its length has more than 5 bytes"),
        (varint(20) + b"\0" + b"\xff" * 10 + b"\0" * 9, "its timestamp delta has more than 10 bytes"),
        (varint(20) + b"\0" + b"\xff" * 9 + b"\x7f" + b"\0" * 9, "its timestamp delta does not fit 64 bits"),
        (varint(20) + b"\0\0" + b"\xff" * 4 + b"\x7f" + b"\0" * 13, "its offset delta does not fit 32 bits"),
        # All but this length is right.
        (varint(-8) + record(1)[1:], "its length is -8"),
        (varint(-215) + record(1, b"v" * 207)[2:], "its length is -215"),
        (varint(6) + b"\0\0\2" + varint(-2) + b"\1\0", "its key length is -2"),
        (varint(6) + b"\0\0\2\1" + varint(-2) + b"\0", "its value length is -2"),
        # All but the size of one number is right.
        (varint(10) + b"\0\0\x82\x80\x80\x80\x80\1\1\0", "its offset delta has more than 5 bytes"),
        (varint(10) + b"\0\0\2\x81\x80\x80\x80\x80\1\0", "its key length has more than 5 bytes"),
        (varint(10) + b"\0\0\2\1\x81\x80\x80\x80\x80\0", "its value length has more than 5 bytes"),
        (varint(10) + b"\0\0\2\1\1\x80\x80\x80\x80\x80", "its headers count has more than 5 bytes"),
        # All but these bits is right.
        (
            varint(15) + b"\0" + b"\x80" * 9 + b"\2" + b"\2\1\1\0",
            "its timestamp delta does not fit 64 bits",
        ),
        (varint(15) + b"\0" + b"\x80" * 10 + b"\2\1\1\0", "its timestamp delta has more than 10 bytes"),
    ],
)
def test_malformed_records(bad, reason):
    error = refuse(batch([GOOD, bad], base_offset=0), "malformed|left over")
    assert "record 1" in error.message
    import re

    assert re.search(reason, error.message), error.message
    # Behind a good batch it is the same, named after its own batch.
    data = batch([GOOD], base_offset=0) + batch([GOOD, bad], base_offset=10)
    refuse(data, reason, 10)
    body = bytes(compress(Codec.SNAPPY, GOOD + bad))
    refuse(batch(body=body, count=2, attributes=2), reason)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record(0, length=10**6), "its length is 1000000"),
        (record(0, length=-1), "its length is -1"),
        (b"\xff\xff\xff\xff\xff\xff" + bytes(8), "its length has more than 5 bytes"),
    ],
)
def test_the_first_record_of_any_batch_must_end_within_it(bad, reason):
    refuse(batch([bad], base_offset=10), reason, 10)
    for before in ([GOOD], [GOOD, record(1)]):
        refuse(batch(before) + batch([bad], base_offset=10), reason, 10)


def test_the_first_record_of_any_batch_must_not_lie_before_it():
    bad = batch([record(-1), record(1)], base_offset=10)
    refuse(bad, "its offset delta is -1, expected 0 to 1", 10)
    refuse(batch([GOOD, record(1)]) + bad, "its offset delta is -1, expected 0 to 1", 10)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([(None, b"x")], "its header key length is -1"),
        (
            [(b"ok", b"x"), (b"\xff\xfe", b"x")],
            r"a header key of the record is not UTF-8: b'\\xff\\xfe' \(invalid start byte\)",
        ),
    ],
)
def test_malformed_headers_name_the_record(headers, reason):
    data = batch([GOOD, record(1, headers=[(b"a", b"b")]), record(2, headers=headers)], base_offset=7)
    refuse(data, reason, 9)
    # Malformed headers are no error if headers are not requested.
    decoded = decode_record_set(data, fetch_offset=0, columns=frozenset({"value"}))
    assert decoded.columns.length == 3


@pytest.mark.parametrize("others", [0, 20])
@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (varint(-1) + span(b"x"), "its header key length is -1"),
        (varint(-2) + span(b"x"), "its header key length is -2"),
        (span(b"a") + varint(-2), "its header value length is -2"),
        (varint(100) + b"a", "its header key length is 100, 1 bytes are left"),
        (span(b"a") + varint(100) + b"xy", "its header value length is 100, 2 bytes are left"),
        (span(b"a") + span(b"b") + b"xy", "2 bytes are left over behind its 1 headers"),
        # All but the size of one number is right.
        (b"\x82\x80\x80\x80\x80a" + varint(-1), "its header key length has more than 5 bytes"),
        (span(b"a") + b"\x81\x80\x80\x80\x80", "its header value length has more than 5 bytes"),
    ],
)
def test_malformed_headers_are_found_among_however_many(header, reason, others):
    good = [record(number, headers=[(b"k", b"v"), (b"k", None)]) for number in range(others)]
    bad = record(others, headers_count=1, tail=header)
    more = [record(others + 1 + number, headers=[(b"k", b"v")]) for number in range(others)]
    refuse(batch([*good, bad, *more]), reason, others)


def test_a_null_header_key_is_found_though_the_bytes_fit():
    """Read one byte back, as its length says, the length of the key is that of a null value, too."""
    bad = record(1, headers_count=2, tail=varint(-1) + span(b"a") + span(b""))
    refuse(batch([record(0), bad, record(2)]), "its header key length is -1", 1)


def test_malformed_headers_are_explained_from_their_own_batch():
    def packed(base_offset: int, one: bytes) -> bytes:
        body = bytes(compress(Codec.ZSTD, one))
        return batch(body=body, count=1, attributes=4, base_offset=base_offset)

    good = record(0, b"x" * 50, headers=[(b"k", b"v")])
    bad = record(0, b"x" * 10, headers_count=1, tail=span(b"a") + varint(-2))
    refuse(packed(0, good) + packed(1, bad) + packed(2, good), "its header value length is -2", 1)


@pytest.mark.parametrize(
    ("base", "delta", "fits"),
    [
        (2**63 - 1, 0, True),
        (2**63 - 1, 1, False),
        (2**63 - 2, 1, True),
        (-(2**63), 0, True),
        (-(2**63), -1, False),
        (-(2**63) + 1, -1, True),
    ],
)
def test_a_timestamp_fits_64_bits_to_the_last_one(base, delta, fits):
    data = batch([record(0, timestamp_delta=delta)], base_timestamp=base)
    if fits:
        assert decode_record_set(data, fetch_offset=0).columns.timestamp_ms.tolist() == [base + delta]
    else:
        refuse(data, f"its timestamp {base} \\+ {delta} does not fit 64 bits")


def test_the_time_of_the_log_is_taken_as_it_is():
    """The deltas of the records count nothing then, not even if their sums leave 64 bits."""
    largest = 2**63 - 1
    data = batch([record(0, timestamp_delta=5), record(1)], attributes=8, max_timestamp=largest)
    assert decode_record_set(data, fetch_offset=0).columns.timestamp_ms.tolist() == [largest] * 2


HEADERS_NOT_UTF8 = batch(
    [
        GOOD,
        record(1, headers=[(b"ok", b"1"), (b"\xffk\xed\xa0\x80", b"2")]),
        record(2, headers=[(b"ok", None)]),
        record(3, headers=[(b"\xff", b"3"), (b"", b"4")]),
    ]
)


def test_header_keys_that_are_not_utf8_are_replaced_where_asked():
    headers = decode_record_set(
        HEADERS_NOT_UTF8, fetch_offset=0, header_keys=HeaderKeys.REPLACE
    ).columns.headers
    headers.validate(full=True)
    assert [row and [(one["key"], one["value"]) for one in row] for row in headers.to_pylist()] == [
        None,
        [("ok", b"1"), ("\ufffdk\ufffd", b"2")],
        [("ok", None)],
        [("\ufffd", b"3"), ("", b"4")],
    ]
    # The type is that of any other headers.
    plain = decode_record_set(batch([record(0, headers=[(b"a", b"b")])]), fetch_offset=0).columns
    assert headers.type == plain.headers.type


@pytest.mark.parametrize("records", [[], [GOOD], [GOOD, record(1, headers=[(b"a", b"b")])]])
def test_header_keys_may_stay_bytes(records):
    data = HEADERS_NOT_UTF8 + (batch(records, base_offset=4) if records else b"")
    for at in (0, 4):  # with headers, and without a record perhaps
        headers = decode_record_set(data, fetch_offset=at, header_keys=HeaderKeys.BYTES).columns.headers
        assert headers.type == HEADERS_AS_BYTES_TYPE
        headers.validate(full=True)
    keys = decode_record_set(data, fetch_offset=0, header_keys=HeaderKeys.BYTES).columns.headers.to_pylist()
    assert [one["key"] for row in keys[:4] for one in row or ()] == [
        b"ok",
        b"\xffk\xed\xa0\x80",
        b"ok",
        b"\xff",
        b"",
    ]


def test_headers_with_bytes_left_over():
    refuse(
        batch([record(0, headers=[(b"a", b"b")], tail=b"xy")]), "2 bytes are left over behind its 1 headers"
    )
    tail = span(b"a") + varint(100) + b"xy"
    refuse(batch([record(0, headers_count=1, tail=tail)]), "its header value length is 100, 2 bytes are left")


@pytest.mark.parametrize(
    "columns", [{"value"}, {"headers"}, {"offset", "timestamp_ms"}, ALL_COLUMNS], ids=len
)
@pytest.mark.parametrize("headers", [[], [(b"a", b"b")]])
def test_bytes_left_over_behind_no_headers_are_refused_whichever_headers_others_have(headers, columns):
    data = batch([record(0, headers=headers), record(1, tail=b"xy")])
    refuse(data, "2 bytes are left over behind its 0 headers", columns=frozenset(columns))


@pytest.mark.parametrize(
    "columns", [{"value"}, {"headers"}, {"offset", "timestamp_ms"}, ALL_COLUMNS], ids=len
)
@pytest.mark.parametrize(("count", "tail"), [(2, span(b"a") + varint(-1)), (3, b"\0\1\0\1\0"), (1, b"\0")])
def test_more_headers_than_have_place_are_refused_whichever_columns_are_wanted(count, tail, columns):
    """A header has two bytes at least."""
    data = batch([record(0), record(1, headers_count=count, tail=tail), record(2)])
    refuse(data, f"record 1 of .* claims {count} headers", columns=frozenset(columns))


def test_numbers_spelt_longer_than_needed_are_read():
    body = (
        b"\0" + b"\x80\x00" + b"\x80\x00" + b"\x82\x00" + b"k" + b"\x82\x80\x00" + b"v" + b"\x80\x80\x80\x00"
    )
    data = batch([bytes([0x80 | 2 * len(body) & 0x7F, 0x80 | 2 * len(body) >> 7, 0]) + body])
    columns = decode_record_set(data, fetch_offset=0).columns
    assert (columns.key.to_pylist(), columns.value.to_pylist()) == ([b"k"], [b"v"])


def test_a_limit_that_is_not_reached_cuts_nothing():
    data = batch([record(0, b"0"), record(1, b"1"), record(2, b"2")])
    for limit in (3, 4, 100):
        decoded = decode_record_set(data, fetch_offset=0, max_records=limit)
        assert (decoded.columns.length, values(decoded)) == (3, [b"0", b"1", b"2"])
        assert (decoded.next_offset, decoded.consumed_bytes) == (3, len(data))


def test_consumed_is_all_that_lies_before_the_end_of_the_range():
    first = batch([record(0), record(1)])
    data = first + batch([record(0), record(1)], base_offset=2)
    assert decode_record_set(data, fetch_offset=0, until_offset=4).consumed_bytes == len(data)
    assert decode_record_set(data, fetch_offset=0, until_offset=3).consumed_bytes == len(first)
    assert decode_record_set(data, fetch_offset=0, until_offset=2).consumed_bytes == len(first)
    nothing = decode_record_set(b"", fetch_offset=9, until_offset=3)
    assert (nothing.next_offset, nothing.consumed_bytes) == (9, 0)


def test_misuse():
    assert decode_record_set(b"", fetch_offset=0, max_batch_bytes=1).columns.length == 0
    with pytest.raises(ValueError, match="max_batch_bytes"):
        decode_record_set(b"", fetch_offset=0, max_batch_bytes=0)
    with pytest.raises(ValueError, match="fetch_offset"):
        decode_record_set(b"", fetch_offset=-1)
    with pytest.raises(ValueError, match="max_records"):
        decode_record_set(b"", fetch_offset=0, max_records=0)


def of_one_record(base_offset: int, size: int, codec: Codec) -> bytes:
    body = compress(codec, record(0, bytes(size)))
    return batch(base_offset=base_offset, body=bytes(body), count=1, attributes=codec)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_no_column_is_larger_than_its_offsets_reach(monkeypatch: pytest.MonkeyPatch, codec: Codec) -> None:
    """For any limit of the caller: offsets that wrap around would show other bytes."""
    monkeypatch.setattr(scan, "MAX_COLUMN_BYTES", 1_500)
    data = b"".join(of_one_record(offset, 1_000, codec) for offset in range(3))
    for offset in range(3):
        found = decode_record_set(data, fetch_offset=offset, max_batch_bytes=10_000)
        assert (offsets(found), found.next_offset) == ([offset], offset + 1)
        data = data[found.consumed_bytes :]
    assert not data


def test_no_batch_decompresses_to_more_than_a_column_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_COLUMN_BYTES", 1_500)
    with pytest.raises(CorruptRecordError, match="more than the 1500 bytes allowed"):
        decode_record_set(of_one_record(0, 2_000, Codec.ZSTD), fetch_offset=0, max_batch_bytes=10_000)


@pytest.mark.parametrize("spoilt", [None, 0, 1])
@pytest.mark.parametrize("check_crcs", [True, False])
def test_the_checksums_of_many_sets_are_checked_unless_that_is_turned_off(
    check_crcs: bool, spoilt: int | None
) -> None:
    sets = []
    for number in range(2):
        data = bytearray(batch([record(0, b"value")]))
        if number == spoilt:
            data[data.index(b"value")] ^= 1
        sets.append(RecordSetSlice(memoryview(data), 0, 1))
    found = decode_record_sets(
        sets, columns=None, header_keys=HeaderKeys.STRICT, check_crcs=check_crcs, max_bytes=10_000
    )
    assert (found is None) is (check_crcs and spoilt is not None)


def test_a_marker_that_was_compacted_away_ends_no_transaction_and_is_no_damage() -> None:
    """The broker keeps its batch, without a record, for the producer's numbers."""
    mine = {"producer_id": 1, "attributes": TRANSACTIONAL}
    data = batch([record(0, b"a")], **mine)
    data += batch([], base_offset=1, producer_id=1, attributes=TRANSACTIONAL | CONTROL)
    data += batch([record(0, b"b")], base_offset=2, **mine)
    transactions = [AbortedTransaction(producer_id=1, first_offset=0)]
    decoded = decode_record_set(data, fetch_offset=0, aborted_transactions=transactions)
    assert (values(decoded), decoded.next_offset) == ([], 3)
    assert decoded.aborted_transactions == tuple(transactions)


@pytest.mark.parametrize(("fetch_offset", "until_offset"), [(2, 1), (3, 3), (4, 0)])
def test_a_range_without_offsets_has_no_records(fetch_offset: int, until_offset: int) -> None:
    data = batch([record(i, b"%d" % i) for i in range(5)])
    decoded = decode_record_set(data, fetch_offset=fetch_offset, until_offset=until_offset)
    assert (values(decoded), decoded.next_offset) == ([], fetch_offset)


@pytest.mark.parametrize("bad", [(0, 0), (0, 1), (1, 0), (1, 1), (3, 0)])
def test_a_header_key_that_is_not_utf_8_is_named_by_its_record(bad: tuple[int, int]) -> None:
    records = []
    for row in range(4):
        keys = [b"\xff" if (row, place) == bad else b"k" for place in range(0 if row == 2 else 2)]
        records.append(record(row, headers=[(key, b"v") for key in keys]))
    with pytest.raises(CorruptRecordError, match="a header key of the record is not UTF-8") as error:
        decode_record_set(batch(records, base_offset=10), fetch_offset=10)
    assert error.value.offset == 10 + bad[0]


def test_after_a_cut_an_aborted_transaction_hides_nothing_that_its_producer_committed_later() -> None:
    mine = {"producer_id": 1, "attributes": TRANSACTIONAL}
    parts = [batch([record(0, b"aborted")], **mine), control(1, 1, 0)]
    parts += [batch([record(0, b"%d" % i)], base_offset=i, **mine) for i in range(2, 5)]
    data, position, found = memoryview(b"".join([*parts, control(5, 1, 1)])), 0, []
    left: Sequence[AbortedTransaction] | None = [AbortedTransaction(producer_id=1, first_offset=0)]
    while position < 6:
        decoded = decode_record_set(data, fetch_offset=position, max_records=1, aborted_transactions=left)
        found += values(decoded)
        data, left = data[decoded.consumed_bytes :], decoded.aborted_transactions
        position = decoded.next_offset
    assert (found, left) == ([b"2", b"3", b"4"], ())


def test_timestamp_types_are_those_of_the_rows_that_are_read() -> None:
    data = batch([record(0), record(1)]) + batch(
        [record(0), record(1)], base_offset=2, attributes=LOG_APPEND_TIME
    )
    for fetch_offset in range(4):
        types = decode_record_set(data, fetch_offset=fetch_offset).columns.timestamp_type
        assert types is not None
        assert types.tolist() == [0, 0, 1, 1][fetch_offset:]


def test_a_set_that_ends_before_the_range_takes_the_reader_not_back() -> None:
    one = RecordSetSlice(memoryview(batch([record(0), record(1)])), 5, 9)
    found = decode_record_sets(
        [one], columns=None, header_keys=HeaderKeys.STRICT, check_crcs=True, max_bytes=1 << 20
    )
    assert found is not None
    assert [(len(each.columns), each.next_offset) for each in found] == [(0, 5)]
    alone = decode_record_set(one.data, fetch_offset=5, until_offset=9)
    assert (len(alone.columns), alone.next_offset) == (0, 5)
