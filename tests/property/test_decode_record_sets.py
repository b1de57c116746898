"""Small record sets decoded together are what each is alone, or not decoded at all."""

from __future__ import annotations

import os
import random
from typing import Any

import pyarrow as pa
import pytest
from support.hooks.fresh_seeds import try_seeds
from support.record_batches import EACH_KERNEL, batch, control, record, using_kernel

from spark_kafka_native.kafka.errors import CorruptRecordError
from spark_kafka_native.kafka.model import HeaderKeys
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.compression import Codec, compress
from spark_kafka_native.kafka.records.decode import RecordSetSlice, decode_record_set, decode_record_sets

ROUNDS = int(os.environ.get("RECORD_FUZZ_ROUNDS", "120"))
"""Groups of sets per kernel and kind; raise it for a soak."""
CAP = 1 << 20
COLUMNS = [None, frozenset({"offset"}), frozenset({"offset", "timestamp_ms"}), frozenset({"key", "headers"})]


def a_record(rng: random.Random, delta: int) -> bytes:
    headers = [(rng.choice([b"h", b"", b"\xc3\xbc"]), rng.choice([None, b"x"]))] * rng.choice([0, 0, 0, 2])
    value = rng.choice([None, b"", rng.randbytes(rng.randrange(60))])
    return record(
        delta,
        value,
        key=rng.choice([None, b"", b"key"]),
        timestamp_delta=rng.randrange(-5, 9),
        headers=headers,
    )


def a_batch(rng: random.Random, base_offset: int) -> tuple[bytes, int]:
    """A batch and its last offset: with gaps, empty, compressed, of a transaction, a marker."""
    if rng.randrange(6) == 0:
        return control(base_offset, 7, rng.randrange(2)), base_offset
    deltas = sorted(rng.sample(range(8), rng.randrange(6)))
    last = rng.choice([8, deltas[-1] if deltas else 0])
    codec = rng.choice([Codec.NONE, Codec.NONE, *Codec])
    body = b"".join(a_record(rng, delta) for delta in deltas)
    data = batch(
        body=bytes(compress(codec, body)) if deltas else b"",
        count=len(deltas),
        attributes=codec * bool(deltas) | rng.choice([0, 0x08, 0x10]),
        base_offset=base_offset,
        last_offset_delta=last,
        max_timestamp=rng.randrange(2000),
        producer_id=7,
    )
    return data, base_offset + last


def a_set(rng: random.Random) -> RecordSetSlice:
    """A record set of some batches; the requested range begins and ends anywhere."""
    offset, batches = rng.randrange(1000), []
    first = offset
    for _ in range(rng.choice([1, 1, 1, 2, 3, 9])):
        offset += rng.choice([0, 0, 5])
        data, last = a_batch(rng, offset)
        batches.append(data)
        offset = last + 1
    joined = b"".join(batches)
    if rng.randrange(4) == 0:
        joined += a_batch(rng, offset)[0][: rng.randrange(1, 70)]
    fetch_offset = rng.choice([first, first, rng.randrange(first, offset)])
    return RecordSetSlice(
        memoryview(joined), fetch_offset, rng.choice([offset, 1 << 62, rng.randrange(first, offset + 3)])
    )


def damaged(rng: random.Random, one: RecordSetSlice) -> RecordSetSlice:
    data = bytearray(one.data)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return one._replace(data=memoryview(bytes(data)))


def as_lists(columns: RecordColumns) -> list[Any]:
    parts = (
        columns.offset,
        columns.timestamp_ms,
        columns.timestamp_type,
        columns.key,
        columns.value,
        columns.headers,
    )
    for part in parts:
        if isinstance(part, pa.Array):
            part.validate(full=True)
    return [
        columns.length,
        *(
            part.to_pylist() if isinstance(part, pa.Array) else part is not None and part.tolist()
            for part in parts
        ),
    ]


def alone(one: RecordSetSlice, **options: Any) -> tuple[Any, ...]:
    decoded = decode_record_set(
        one.data, fetch_offset=one.fetch_offset, until_offset=one.until_offset, max_batch_bytes=CAP, **options
    )
    return one.fetch_offset, decoded.next_offset, as_lists(decoded.columns)


def together(sets: list[RecordSetSlice], **options: Any) -> list[tuple[Any, ...]] | None:
    decoded = decode_record_sets(sets, max_bytes=CAP, **options)
    if decoded is None:
        return None
    return [(one.from_offset, one.next_offset, as_lists(one.columns)) for one in decoded]


def has_batch(one: RecordSetSlice) -> bool:
    """Return True if one of its batches begins before the until_offset."""
    return int.from_bytes(one.data[:8], "big") < one.until_offset


@EACH_KERNEL
def test_sets_together_are_what_each_is_alone(kernel) -> None:
    with using_kernel(kernel):
        try_seeds(check_together, "sets together", range(20261122, 20261122 + ROUNDS))


def check_together(seed: int) -> None:
    rng = random.Random(seed)
    sets = [a_set(rng) for _ in range(rng.randrange(1, 12))]
    options = {"columns": rng.choice(COLUMNS), "header_keys": rng.choice(list(HeaderKeys))}
    options |= {"check_crcs": rng.choice([True, False])}
    found = together(sets, **options)
    if all(map(has_batch, sets)):
        assert found == [alone(one, **options) for one in sets]
    else:
        assert found is None


@EACH_KERNEL
@pytest.mark.parametrize("check_crcs", [True, False])
def test_nothing_damaged_is_decoded_together_that_is_refused_alone(kernel, check_crcs: bool) -> None:
    with using_kernel(kernel):
        refused = sum(check_damaged(seed, check_crcs) for seed in range(ROUNDS))
        # Not every bit is under the checksum, and few of them are where lengths are.
        assert refused > ROUNDS // (3 if check_crcs else 10)
        try_seeds(lambda seed: check_damaged(seed, check_crcs), f"damaged sets, checked: {check_crcs}")


def check_damaged(seed: int, check_crcs: bool) -> bool:
    """Return True if the sets are refused alone, and not decoded together."""
    rng = random.Random(seed)
    options = {"columns": None, "header_keys": HeaderKeys.STRICT, "check_crcs": check_crcs}
    sets = [a_set(rng) for _ in range(rng.randrange(2, 6))]
    at = rng.randrange(len(sets))
    sets[at] = damaged(rng, sets[at])
    found = together(sets, **options)
    try:
        expected = [alone(one, **options) for one in sets]
    except CorruptRecordError:
        assert found is None
        return True
    # Together they may be refused without need, as a set that has no batch is, but never differ.
    assert found in (None, expected)
    return False


@EACH_KERNEL
def test_what_decompresses_to_a_lot_is_left_to_be_decoded_alone(kernel) -> None:
    body = record(0, bytes(CAP // 2))
    packed = batch(body=bytes(compress(Codec.ZSTD, body)), count=1, attributes=Codec.ZSTD)
    sets = [RecordSetSlice(memoryview(packed), 0, 1)] * 3
    options = {"columns": None, "header_keys": HeaderKeys.STRICT, "check_crcs": True}
    with using_kernel(kernel):
        assert together(sets, **options) is None
        assert together(sets[:1], **options) == [alone(sets[0], **options)]


@EACH_KERNEL
def test_a_set_without_a_batch_is_left_to_be_decoded_alone(kernel) -> None:
    whole = RecordSetSlice(memoryview(batch([record(0)])), 0, 1)
    options = {"columns": None, "header_keys": HeaderKeys.STRICT, "check_crcs": True}
    with using_kernel(kernel):
        assert together([whole, whole._replace(data=whole.data[:60])], **options) is None
        assert together([whole, whole._replace(until_offset=0)], **options) is None
