"""Partitioners: whole columns at a time, and the same whether a column comes in one piece or in many."""

import random
import zlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.producer.accumulating.partitioner import (
    PARTITIONERS,
    LeastBytesPartitioner,
    RoundRobinPartitioner,
    StickyPartitioner,
    Targets,
    build_partitioner,
    partitioner_name,
    per_record,
    place_absolute,
    place_as_java,
    place_unsigned,
)
from spark_kafka_native.kafka.producer.errors import RecordError


def keys(n, seed=1):
    rng = random.Random(seed)
    return [rng.randbytes(rng.randrange(1, 20)) for _ in range(n)]


def ones(n):
    return np.ones(n, np.int64)


def test_murmur2_drops_the_sign_bit_as_java_does():
    # Java: toPositive(murmur2("21".getBytes())) % 7, with murmur2 = -973932308.
    chosen = build_partitioner("murmur2", 100).assign(pa.array([b"21"]), ones(1), Targets.all("t", 7))
    assert chosen.tolist() == [(-973932308 & 0x7FFFFFFF) % 7]


@pytest.mark.parametrize("name", ["murmur2", "crc32"])
def test_a_key_keeps_its_partition_while_others_have_no_leader(name):
    some = Targets(topic="t", count=7, available=np.array([0, 3], np.int32))
    partitioner, column = build_partitioner(name, 100), pa.array(keys(100))
    chosen = partitioner.assign(column, ones(100), some).tolist()
    assert chosen == partitioner.assign(column, ones(100), Targets.all("t", 7)).tolist()


def test_crc32_is_rubys_and_librdkafkas():
    some = keys(100)
    chosen = build_partitioner("crc32", 100).assign(pa.array(some), ones(100), Targets.all("t", 7))
    assert chosen.tolist() == [zlib.crc32(key) % 7 for key in some]


def test_fnv1a_takes_the_absolute_value_as_kafka_go_does():
    def fnv1a(key):
        h = 0x811C9DC5
        for byte in key:
            h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
        signed = h - (1 << 32) if h & 0x80000000 else h
        remainder = abs(signed) % 7 * (-1 if signed < 0 else 1)  # Go's % keeps the sign
        return -remainder if remainder < 0 else remainder

    some = keys(300)
    chosen = build_partitioner("fnv1a", 100).assign(pa.array(some), ones(300), Targets.all("t", 7))
    assert chosen.tolist() == [fnv1a(key) for key in some]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (place_as_java, [0, 1, (2**31 - 1) % 7, 0, 1, (2**31 - 1) % 7]),
        (place_unsigned, [0, 1, (2**31 - 1) % 7, 2**31 % 7, (2**31 + 1) % 7, (2**32 - 1) % 7]),
        (place_absolute, [0, 1, (2**31 - 1) % 7, 2**31 % 7, (2**31 - 1) % 7, 1]),
    ],
    ids=["java", "unsigned", "absolute"],
)
def test_hashes_around_the_sign_bit_are_placed_as_by_the_client_that_is_imitated(place, expected):
    hashes = np.array([0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1], np.uint32)
    assert place(hashes, 7).tolist() == expected


@pytest.mark.parametrize("name", ["murmur2", "crc32", "fnv1a", "consistent_random"])
def test_what_has_no_key_is_spread(name):
    column = pa.array([b"k", None] * 500, pa.binary())
    chosen = build_partitioner(name, 10).assign(column, ones(1000), Targets.all("t", 4))
    assert len(set(chosen[::2].tolist())) == 1
    assert np.bincount(chosen[1::2], minlength=4).min() > 100


def test_an_empty_key_is_a_key_for_java_and_none_for_librdkafka():
    column = pa.array([b""] * 1000, pa.binary())
    assert (
        len(set(build_partitioner("murmur2", 10).assign(column, ones(1000), Targets.all("t", 4)).tolist()))
        == 1
    )
    assert (
        len(
            set(
                build_partitioner("consistent_random", 10)
                .assign(column, ones(1000), Targets.all("t", 4))
                .tolist()
            )
        )
        == 4
    )


@pytest.mark.parametrize("name", ["murmur2", "fnv1a", "consistent_random", "sticky"])
def test_a_run_ends_with_its_batch_too(name):
    partitioner, targets = build_partitioner(name, 1_000_000), Targets.all("t", 3)
    seen = []
    for _ in range(30):
        (first, *others) = partitioner.assign(None, ones(3), targets).tolist()
        assert others == [first] * 2
        assert partitioner.assign(None, ones(1), targets).tolist() == [first]
        partitioner.batch_closed((first + 1) % 3)  # another one's, which keyed records have filled
        assert partitioner.assign(None, ones(1), targets).tolist() == [first]
        partitioner.batch_closed(first)
        partitioner.batch_closed(first)
        seen.append(first)
    assert np.bincount(seen).tolist() == [10, 10, 10]


def test_with_a_batch_size_of_0_each_record_is_a_run():
    partitioner = build_partitioner("sticky", 0)
    chosen = partitioner.assign(None, ones(6), Targets.all("t", 3)).tolist()
    assert set(np.diff(chosen) % 3) == {1}


def test_a_run_that_has_ended_by_its_bytes_is_not_ended_again():
    partitioner, targets = StickyPartitioner(10), Targets.all("t", 3)
    (first,) = partitioner.assign(None, np.array([10]), targets).tolist()
    partitioner.batch_closed(first)
    assert partitioner.assign(None, np.array([1]), targets).tolist() == [(first + 1) % 3]


def test_the_run_after_one_that_ends_with_its_batch_has_its_whole_size():
    partitioner, targets = StickyPartitioner(10), Targets.all("t", 3)
    (first,) = partitioner.assign(None, np.array([6]), targets).tolist()
    partitioner.batch_closed(first)
    following = partitioner.assign(None, np.array([4, 5, 1, 1]), targets).tolist()
    assert [(one - first) % 3 for one in following] == [1, 1, 1, 2]


@pytest.mark.parametrize("make", [lambda rng: StickyPartitioner(1000, rng), RoundRobinPartitioner])
def test_pieces_give_what_the_whole_gives(make):
    sizes = np.random.default_rng(1).integers(1, 400, 1000)
    whole = make(random.Random(5)).assign(None, sizes, Targets.all("t", 5))
    partitioner = make(random.Random(5))
    cuts = [0, 1, 2, 10, 300, 301, 999, 1000]
    pieces = [partitioner.assign(None, sizes[a:b], Targets.all("t", 5)) for a, b in pairwise(cuts)]
    assert np.concatenate(pieces).tolist() == whole.tolist()
    assert np.bincount(whole, minlength=5).min() > 100


def test_sticky_stays_for_a_run_and_reaches_every_partition():
    chosen = StickyPartitioner(100, random.Random(1)).assign(None, np.full(1000, 10), Targets.all("t", 4))
    runs = np.flatnonzero(np.diff(chosen)) + 1
    assert set(np.diff(runs).tolist()) == {10}
    # Records of two runs each must not skip every other partition.
    chosen = StickyPartitioner(100, random.Random(1)).assign(None, np.full(100, 200), Targets.all("t", 4))
    assert sorted(set(chosen.tolist())) == [0, 1, 2, 3]


def test_spreading_avoids_partitions_without_a_leader():
    targets = Targets(topic="t", count=4, available=np.array([1, 3], np.int32))
    for partitioner in (StickyPartitioner(10), RoundRobinPartitioner(), LeastBytesPartitioner()):
        assert set(partitioner.assign(None, np.full(100, 10), targets).tolist()) == {1, 3}


def test_least_bytes_levels():
    partitioner = LeastBytesPartitioner()
    rng = np.random.default_rng(2)
    filled = np.zeros(6)
    for _ in range(50):
        sizes = rng.integers(1, 500, rng.integers(1, 300))
        chosen = partitioner.assign(None, sizes, Targets.all("t", 6))
        filled += np.bincount(chosen, weights=sizes, minlength=6)
        assert filled.max() - filled.min() < 25_000
    assert filled.max() - filled.min() < 2_000 + 500 * 6


@pytest.mark.parametrize(
    ("calls", "chosen"),
    [
        ([[10, 10], [5, 5, 5, 5]], [[0, 1], [0, 0, 1, 1]]),
        ([[2, 1]], [[0, 1]]),
        ([[30], [10, 10, 10]], [[0], [1, 1, 1]]),
        ([[30], [20, 20, 20, 20]], [[0], [1, 1, 1, 0]]),
        ([[1, 1, 1]], [[0, 1, 1]]),
    ],
    ids=["level", "an odd byte", "up to the next level", "beyond the next level", "one row too many"],
)
def test_least_bytes_gives_each_partition_one_run(calls, chosen):
    partitioner, targets = LeastBytesPartitioner(), Targets.all("t", 2)
    assert [partitioner.assign(None, np.array(sizes), targets).tolist() for sizes in calls] == chosen


def test_least_bytes_takes_new_partitions_in():
    partitioner = LeastBytesPartitioner()
    partitioner.assign(None, np.full(100, 10), Targets.all("t", 2))
    chosen = partitioner.assign(None, np.full(90, 10), Targets.all("t", 3))
    assert np.bincount(chosen, minlength=3).min() >= 25


def test_explicit_wants_a_partition():
    partitioner = build_partitioner("explicit", 10)
    assert len(partitioner.assign(None, ones(0), Targets.all("t", 2))) == 0
    with pytest.raises(RecordError, match="no partition is given"):
        partitioner.assign(None, ones(1), Targets.all("t", 2))


def test_a_function_sees_the_whole_column():
    seen = []

    def choose(topic, column, count):
        seen.append((topic, column.to_pylist(), count))
        return [0, 1, 2]

    chosen = build_partitioner(choose, 10).assign(pa.array([b"a", None, b"c"]), ones(3), Targets.all("t", 3))
    assert chosen.tolist() == [0, 1, 2]
    assert seen == [("t", [b"a", None, b"c"], 3)]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([0, 1], "must return 3 whole numbers"),
        ([0.5, 1, 2], "float64"),
        ([0, 3, 1], "partition 3 of 3"),
        ([0, 1, -1], "-1"),
    ],
)
def test_a_function_that_misbehaves_is_named(returned, message):
    with pytest.raises(RecordError, match=message):
        build_partitioner(lambda *_: returned, 10).assign(None, ones(3), Targets.all("t", 3))


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("murmur2", "murmur2"),
        ("Murmur2_Random", "murmur2"),
        ("hash", "fnv1a"),
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", "murmur2"),
        ("org.apache.kafka.clients.producer.RoundRobinPartitioner", "round_robin"),
        ("org.apache.kafka.clients.producer.UniformStickyPartitioner", "sticky"),
    ],
)
def test_names_of_other_clients(name, short):
    assert partitioner_name(name) == short


def test_crc32_is_lua_resty_kafkas_without_a_key_and_with_an_empty_one():
    column = pa.array([None, b"", b"k"] * 4, pa.binary())
    chosen = build_partitioner("crc32", 10).assign(column, ones(12), Targets.all("t", 4)).tolist()
    assert sorted(chosen[::3]) == [0, 1, 2, 3]  # in turn
    assert set(chosen[1::3]) == {zlib.crc32(b"") % 4}
    assert set(chosen[2::3]) == {zlib.crc32(b"k") % 4}


def test_a_function_for_one_record_gets_one_key_at_a_time():
    seen = []

    def choose(topic, key, count):
        seen.append((topic, key, count))
        return len(key or b"") % count

    column = pa.array([b"ab", None, b"abcd"], pa.binary())
    partitioner = build_partitioner(per_record(choose), 10)
    assert partitioner.assign(column, ones(3), Targets.all("t", 3)).tolist() == [2, 0, 1]
    assert partitioner.assign(None, ones(1), Targets.all("t", 3)).tolist() == [0]
    assert seen == [("t", b"ab", 3), ("t", None, 3), ("t", b"abcd", 3), ("t", None, 3)]
    with pytest.raises(RecordError, match="chose partition 7 of 3"):
        build_partitioner(per_record(lambda *_: 7), 10).assign(None, ones(1), Targets.all("t", 3))


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(ConfigError, match=r"partitioner.class='com.acme.Mine'.*murmur2, crc32") as caught:
        partitioner_name("com.acme.Mine")
    assert all(name in str(caught.value) for name in PARTITIONERS)
    assert "also takes a function" in str(caught.value)
