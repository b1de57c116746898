"""Where a record set ends, by its lengths alone."""

from __future__ import annotations

import struct

import pytest
from support.record_batches import batch, record

from spark_kafka_native.kafka.records.batch import HEADER_BYTES, end_of_batches, epoch_before, place_of

FIRST = batch([record(0), record(1)], base_offset=5)
SECOND = batch([record(0)], base_offset=9, last_offset_delta=2**31 - 1)


def with_epoch(data: bytes, epoch: int) -> bytes:
    return data[:12] + struct.pack(">i", epoch) + data[16:]


@pytest.mark.parametrize("cut", [0, 1, 12, HEADER_BYTES - 1, HEADER_BYTES, len(FIRST) - 1])
def test_nothing_complete_is_no_offset(cut: int) -> None:
    assert end_of_batches(memoryview(FIRST[:cut])) is None


def test_it_is_behind_the_last_complete_batch_with_its_epochs() -> None:
    first, second = with_epoch(FIRST, 3), with_epoch(SECOND, 4)
    assert end_of_batches(memoryview(first)) == (7, 3, ((5, 7, 3),))
    assert end_of_batches(memoryview(first + second)) == (9 + 2**31, 4, ((5, 7, 3), (9, 9 + 2**31, 4)))
    third = with_epoch(batch([record(0, b"a" * 99)], base_offset=2**40), 5)
    assert end_of_batches(memoryview(first + second + third)) == (
        2**40 + 1,
        5,
        ((5, 7, 3), (9, 9 + 2**31, 4), (2**40, 2**40 + 1, 5)),
    )
    for cut in (1, HEADER_BYTES, len(second) - 1):
        assert end_of_batches(memoryview(first + second[:cut])) == (7, 3, ((5, 7, 3),))


def test_batches_of_one_epoch_are_one_range() -> None:
    first, second = with_epoch(FIRST, 3), with_epoch(SECOND, 3)
    assert end_of_batches(memoryview(first + second)) == (9 + 2**31, 3, ((5, 9 + 2**31, 3),))
    third = with_epoch(batch([record(0)], base_offset=2**40), 4)
    found = end_of_batches(memoryview(first + second + third))
    assert found is not None
    assert found.epoch_ranges == ((5, 9 + 2**31, 3), (2**40, 2**40 + 1, 4))


def test_a_batch_of_nothing_but_a_header_counts() -> None:
    assert end_of_batches(memoryview(batch([], base_offset=7))) == (8, 0, ((7, 8, 0),))


@pytest.mark.parametrize("length", [-1, 0, HEADER_BYTES - 13, 2**31 - 1])
def test_a_length_that_cannot_be_ends_the_walk(length: int) -> None:
    """The decoder names its defect."""
    bad = batch([record(0)], length=length)
    assert end_of_batches(memoryview(bad)) is None
    assert end_of_batches(memoryview(FIRST + bad + FIRST)) == (7, 0, ((5, 7, 0),))


def test_places_in_the_header_are_those_of_the_format() -> None:
    """Kafka's docs, "Record Batch"."""
    places = {"crc": 17, "attributes": 21, "last_offset_delta": 23, "producer_id": 43, "records_count": 57}
    assert {name: place_of(name) for name in places} == places
    assert HEADER_BYTES == 61


def test_the_epoch_before_an_offset_is_known_up_to_the_end_of_its_range() -> None:
    ranges = ((0, 5, 1), (7, 9, 2))
    known = {offset: epoch_before(offset, ranges) for offset in range(11)}
    assert known == {0: -1, **dict.fromkeys(range(1, 6), 1), 6: -1, 7: -1, 8: 2, 9: 2, 10: -1}
