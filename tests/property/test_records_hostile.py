"""Broken record sets with their checksums mended: our own errors or right columns, the same from both
kernels, in bounded time and memory, and never a byte from outside the record set."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hooks.fresh_seeds import try_seeds
from support.hostile import spoil
from support.record_batches import KERNELS, batch, control, mend_crc, record, using_kernel

from spark_kafka_native.kafka.errors import CorruptRecordError
from spark_kafka_native.kafka.model import AbortedTransaction
from spark_kafka_native.kafka.records.compression import Codec, compress
from spark_kafka_native.kafka.records.decode import decode_record_set

ROUNDS = int(os.environ.get("RECORD_FUZZ_ROUNDS", "300"))
"""Inputs per codec; raise it for a soak."""

NASTY_INTS = [0, 1, -1, 127, 128, 255, 2**15, 2**31 - 1, -(2**31), 48, 49, 61]
INT_FIELDS = [8, 12, 23, 57]
"""Where the header's int32 are: length, leader epoch, last offset delta, records count."""

CAP = 1 << 20
MEMORY_BUDGET = 24 << 20
"""A few columns of the largest decompressed batch; a believed claim would be gigabytes."""


def good_body(rng: random.Random) -> tuple[bytes, int]:
    count = rng.randrange(1, 12)
    records = []
    for index in range(count):
        headers = [(rng.choice([b"h", b"", b"\xc3\xbc"]), rng.choice([None, b"", b"x"]))] * rng.choice(
            [0, 0, 1, 3]
        )
        value = rng.choice([None, b"", rng.randbytes(rng.randrange(150))])
        key = rng.choice([None, b"", b"key"])
        records.append(
            record(index, value, key=key, timestamp_delta=rng.choice([0, -3, 2**40]), headers=headers)
        )
    return b"".join(records), count


def hostile_batch(rng: random.Random, codec: Codec, base_offset: int) -> bytes:
    """A batch mutated before compression, after it, or in its header; with a checksum that fits."""
    body, count = good_body(rng)
    plain = bytearray(body)
    where = rng.randrange(4)
    if where == 0:
        spoil(plain, rng)
    packed = bytearray(compress(codec, bytes(plain)))
    if where == 1:
        spoil(packed, rng)
    data = bytearray(batch(body=bytes(packed), count=count, attributes=codec, base_offset=base_offset))
    if where == 2:
        struct.pack_into(">i", data, rng.choice(INT_FIELDS), rng.choice(NASTY_INTS))
    if where == 3:
        spoil(data, rng, 21)
        struct.pack_into(">i", data, 8, len(data) - 12)
    return bytes(mend_crc(data))


def hostile_set(rng: random.Random, codec: Codec) -> bytes:
    """Up to 20 batches (few and many are checked in different ways), few of them hostile where there are
    many."""
    count = rng.choice([1, 2, 3, 7, 8, 20])
    hostile = rng.choices(range(count), k=min(count, 3))
    batches = []
    for index in range(count):
        if index in hostile:
            batches.append(hostile_batch(rng, codec, base_offset=20 * index))
        else:
            body, records = good_body(rng)
            some = rng.choice([codec, Codec.NONE])
            packed = bytes(compress(some, body))
            batches.append(batch(body=packed, count=records, attributes=some, base_offset=20 * index))
    return b"".join(batches)


def outcome(data: bytes, kernel, **options):
    """What a kernel makes of ``data``: the columns as Python objects, or the error."""
    with using_kernel(kernel):
        try:
            decoded = decode_record_set(data, fetch_offset=0, max_batch_bytes=CAP, **options)
        except CorruptRecordError as error:
            return ("refused", error.offset, error.message)
    columns = decoded.columns
    for column in (columns.key, columns.value, columns.headers):
        if column is not None:
            column.validate(full=True)
    lists = [
        None if column is None else column.to_pylist() if isinstance(column, pa.Array) else column.tolist()
        for column in (columns.offset, columns.timestamp_ms, columns.key, columns.value, columns.headers)
    ]
    return ("read", decoded.next_offset, decoded.consumed_bytes, decoded.incomplete_batch_bytes, lists)


@pytest.mark.parametrize("codec", list(Codec))
def test_mutated_batches(codec: Codec) -> None:
    for kernel in KERNELS:
        # Tables that are built once do not count.
        outcome(batch([record(0), record(1, b"x" * 100)]), kernel)
    refused = check_mutated(codec, 20240607 + codec, ROUNDS)
    # The mutations bite, and not everywhere.
    assert ROUNDS // 5 < refused < ROUNDS
    try_seeds(lambda seed: check_mutated(codec, seed, 20), f"mutated batches of {codec.name}")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("codec", list(Codec))
def test_a_great_many_mutated_batches(codec: Codec) -> None:
    try_seeds(lambda seed: check_mutated(codec, seed, 1000), f"soak of {codec.name}", range(100))


def check_mutated(codec: Codec, seed: int, rounds: int) -> int:
    """Both kernels say the same of hostile record sets, within a memory budget. How many they refuse."""
    rng, refused = random.Random(seed), 0
    tracemalloc.start()
    try:
        for _ in range(rounds):
            data = hostile_set(rng, codec)
            options = rng.choice(
                [{}, {"columns": frozenset({"offset"})}, {"until_offset": 3}, {"max_records": 2}]
            )
            tracemalloc.reset_peak()
            outcomes = [outcome(data, kernel, **options) for kernel in KERNELS]
            assert tracemalloc.get_traced_memory()[1] < MEMORY_BUDGET
            assert all(other == outcomes[0] for other in outcomes), data.hex()
            refused += outcomes[0][0] == "refused"
    finally:
        tracemalloc.stop()
    return refused


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    outcomes = [outcome(data, kernel) for kernel in KERNELS]
    assert all(other == outcomes[0] for other in outcomes)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 40), st.sampled_from(list(Codec)))
def test_any_body(body: bytes, count: int, codec: Codec) -> None:
    for packed in (body, bytes(compress(codec, body))):
        data = batch(body=packed, count=count, attributes=codec)
        outcomes = [outcome(data, kernel) for kernel in KERNELS]
        assert all(other == outcomes[0] for other in outcomes)


def test_mutated_control_batches() -> None:
    try_seeds(check_mutated_markers, "mutated control batches", [7])


def check_mutated_markers(seed: int) -> None:
    rng = random.Random(seed)
    transactions = [AbortedTransaction(producer_id=1, first_offset=0)]
    for _ in range(300):
        marker = bytearray(control(5, 1, 0))
        spoil(marker, rng, 21)
        struct.pack_into(">i", marker, 8, len(marker) - 12)
        data = batch([record(0)], attributes=0x10, producer_id=1) + bytes(mend_crc(marker))
        outcomes = [outcome(data, kernel, aborted_transactions=transactions) for kernel in KERNELS]
        assert all(other == outcomes[0] for other in outcomes)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_record_with_a_great_many_headers_takes_no_quadratic_time(kernel) -> None:
    n = 200_000
    data = batch([record(0, headers_count=n, tail=b"\0\1" * n), record(1, headers=[(b"a", b"b")])])
    with using_kernel(kernel):
        headers = decode_record_set(data, fetch_offset=0).columns.headers
    assert len(headers[0]) == n


BOMBS = """
import resource
import zlib
from support.record_batches import batch
from spark_kafka_native.kafka.errors import CorruptRecordError
from spark_kafka_native.kafka.records.compression import Codec, compress
from spark_kafka_native.kafka.records.decode import decode_record_set

MIB = 1 << 20
piece = bytes(32 * MIB)
bodies = [(codec, bytes(compress(codec, piece)) * 40) for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD)]
block = bytes(compress(Codec.SNAPPY, piece[: 4 * MIB]))
xerial = b"\\x82SNAPPY\\0" + bytes([0, 0, 0, 1, 0, 0, 0, 1])
bodies.append((Codec.SNAPPY, xerial + (len(block).to_bytes(4, "big") + block) * 300))
# One member; after a full flush the same blocks may follow again.
deflate = zlib.compressobj(1, zlib.DEFLATED, 31)
head = deflate.compress(piece) + deflate.flush(zlib.Z_FULL_FLUSH)
bodies.append((Codec.GZIP, head + (deflate.compress(piece) + deflate.flush(zlib.Z_FULL_FLUSH)) * 39))
bodies.append((Codec.SNAPPY, b"\\xff\\xff\\xff\\xff\\x07" + bytes(90_000_000)))
del piece
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
# Decompressed these are 1.2 GiB and more each.
resource.setrlimit(resource.RLIMIT_AS, (used + 400 * MIB,) * 2)
for codec, body in bodies:
    try:
        data = batch(body=body, count=5, attributes=codec)
        decode_record_set(data, fetch_offset=0, max_batch_bytes=64 * MIB)
    except CorruptRecordError as error:
        print(codec.name, "67108864 bytes allowed" in str(error))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
@pytest.mark.parametrize("choice", ["", "numpy"])
def test_bombs_within_a_memory_limit(choice: str) -> None:
    environment = {**os.environ, "SPARK_KAFKA_NATIVE_KERNEL": choice, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run(
        [sys.executable, "-c", BOMBS], env=environment, capture_output=True, text=True, timeout=240
    )
    assert out.stdout.split("\n")[:-1] == [
        "GZIP True",
        "LZ4 True",
        "ZSTD True",
        "SNAPPY True",
        "GZIP True",
        "SNAPPY True",
    ], out.stderr
