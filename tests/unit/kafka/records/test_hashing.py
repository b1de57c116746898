"""Hashes of key columns: published vectors, and the compiled and the NumPy implementation against each
other."""

import random
import zlib

import numpy as np
import pyarrow as pa
import pytest
from support.record_batches import EACH_KERNEL, KERNELS, using_kernel

from spark_kafka_native.kafka.records.hashing import Hash, group_rows, hash_keys

pytestmark = EACH_KERNEL


@pytest.fixture(autouse=True)
def _kernel(kernel):
    with using_kernel(kernel):
        yield


# From the Java client's UtilsTest and librdkafka's rdmurmur2.c unit test.
MURMUR2 = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
    (b"kafka", 0xD067CF64 - (1 << 32)),
    (b"giberish123456789", 0x8F552B0C - (1 << 32)),
    (b"1234", 0x9FC97B14 - (1 << 32)),
    (b"234", 0xE7C009CA - (1 << 32)),
    (b"34", 0x873930DA - (1 << 32)),
    (b"4", 0x5A4B5CA1),
    (b"PreAmbleWillBeRemoved,ThePrePartThatIs", 0x78424F1C),
    (b"", 0x106E08D9),
]


def test_murmur2_is_javas():
    keys, expected = zip(*MURMUR2, strict=True)
    assert hash_keys(pa.array(keys, pa.binary()), Hash.MURMUR2).view(np.int32).tolist() == list(expected)


def test_crc32_is_zlibs():
    keys = [random.Random(i).randbytes(i % 67) for i in range(300)]
    assert hash_keys(pa.array(keys, pa.binary()), Hash.CRC32).tolist() == [zlib.crc32(key) for key in keys]


def test_fnv1a_is_that_of_its_authors():
    # From the reference vectors of draft-eastlake-fnv.
    vectors = {
        b"": 0x811C9DC5,
        b"a": 0xE40C292C,
        b"b": 0xE70C2DE5,
        b"foobar": 0xBF9CF968,
        b"foob": 0x3F5076EF,
    }
    assert hash_keys(pa.array(list(vectors), pa.binary()), Hash.FNV1A).tolist() == list(vectors.values())


@pytest.mark.parametrize("kind", list(Hash))
@pytest.mark.parametrize("arrow_type", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_every_layout_gives_the_same(kind, arrow_type):
    rng = random.Random(7)
    keys = [
        "".join(rng.choices("abcdefgh", k=rng.choice([0, 1, 2, 3, 4, 5, 8, 31, 200]))) for _ in range(500)
    ]
    plain = hash_keys(pa.array([key.encode() for key in keys], pa.binary()), kind)
    with_nulls = pa.array([None, *keys, None], arrow_type)
    assert np.array_equal(hash_keys(with_nulls.slice(1, 500), kind), plain)
    assert np.array_equal(hash_keys(with_nulls.slice(101), kind)[:-1], plain[100:])


@pytest.mark.parametrize("kind", list(Hash))
def test_the_kernels_agree(kernel, kind):
    rng = random.Random(3)
    keys = pa.array([rng.randbytes(rng.randrange(0, 70)) for _ in range(5000)], pa.binary())
    hashes = hash_keys(keys, kind)
    for other in KERNELS:
        with using_kernel(other):
            assert np.array_equal(hashes, hash_keys(keys, kind))


def test_empty_columns():
    assert len(hash_keys(pa.array([], pa.binary()), Hash.MURMUR2)) == 0
    assert len(hash_keys(pa.array([b"x"], pa.binary()).slice(1), Hash.MURMUR2)) == 0
    assert hash_keys(pa.array([b"", b""], pa.binary()), Hash.CRC32).tolist() == [0, 0]
    assert len(hash_keys(pa.array([None, None], pa.binary()), Hash.MURMUR2)) == 2


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="int64"):
        hash_keys(pa.array([1]), Hash.MURMUR2)


@pytest.mark.parametrize("edges", [[0, 6, 4], [-1, 2, 4], [0, 4, 9]])
@pytest.mark.parametrize("kind", list(Hash))
def test_offsets_that_leave_the_data_are_refused(kind, edges):
    offsets = np.array([0, 2, 4], np.int32)
    column = pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"12345678")])
    offsets[:] = edges  # pyarrow would refuse them at once
    with pytest.raises(ValueError, match="offsets leave its data"):
        hash_keys(column, kind)


@pytest.mark.parametrize("count", [1, 2, 7, 300, 70_000])
def test_group_rows_is_a_stable_sort(count):
    partition = np.random.default_rng(1).integers(0, count, 5000).astype(np.int32)
    order, bounds = group_rows(partition, count)
    assert bounds[0] == 0
    assert bounds[-1] == 5000
    assert np.array_equal(order, np.argsort(partition, kind="stable"))
    assert np.array_equal(np.diff(bounds), np.bincount(partition, minlength=count))


@pytest.mark.parametrize("count", [256, 257, 65_536, 65_537])
def test_group_rows_knows_the_last_partition_from_the_first(count):
    partition = np.array([count - 1, 0, 1, count - 1, 0], np.int32)
    order, bounds = group_rows(partition, count)
    assert order.tolist() == [1, 4, 2, 0, 3]
    assert bounds[[1, 2, count - 1, count]].tolist() == [2, 3, 3, 5]


@pytest.mark.parametrize("bad", [-1, 4])
def test_group_rows_names_the_row_out_of_range(bad):
    with pytest.raises(ValueError, match=rf"row 2: partition {bad} is not in \[0, 4\)"):
        group_rows(np.array([0, 3, bad, 1], np.int32), 4)
