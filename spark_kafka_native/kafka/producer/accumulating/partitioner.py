"""Partitioners: which partition each record of a whole column goes to.

A partitioner belongs to one topic of one producer and may keep state; its owner calls it under the topic's
lock. Records with the same key go to the same partition for as long as the number of partitions does not
change.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ConfigError
from ...records.hashing import Hash, hash_keys
from ..errors import RecordError

Partitions = npt.NDArray[np.int32]
Sizes = npt.NDArray[np.int64]
PartitionFunction = Callable[[str, Any, int], Any]
"""``f(topic, keys: pa.Array of n or None, partition count) -> n partitions``, for a whole column at a
time."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The partitions of a topic."""

    topic: str
    count: int
    available: Partitions
    """Those with a leader, ascending; all of them when none has one. Records with a key ignore it, keyless
    ones go only there."""

    @classmethod
    def all(cls, topic: str, count: int) -> Targets:
        """``count`` partitions that all have a leader."""
        return cls(topic=topic, count=count, available=np.arange(count, dtype=np.int32))


def per_record(choose: Callable[[str, bytes | None, int], int]) -> PartitionFunction:
    """A partitioner out of a function for one record: ``choose(topic, key, partition count)`` -> partition.

    It costs a Python call per record; a function over the whole key column (`PartitionFunction`) does not.
    """

    def choose_each(topic: str, keys: pa.Array, count: int) -> npt.NDArray[np.int64]:
        chosen = [operator.index(choose(topic, key, count)) for key in keys.to_pylist()]
        return np.array(chosen, np.int64)

    return choose_each


class Partitioner(Protocol):
    """Places records."""

    def assign(self, keys: pa.Array | None, sizes: Sizes, targets: Targets, /) -> Partitions:
        """Partition of each record, int32[n]. ``keys``: n keys, or None when all are null; ``sizes``:
        bytes, int64[n]."""
        ...

    def batch_closed(self, partition: int, /) -> None:  # noqa: ARG002 - most do not care
        """A batch of ``partition`` was closed before it was full."""
        return  # not abstract: most partitioners do not care


class StickyPartitioner(Partitioner):
    """Runs of records to one partition after the other; keys don't matter. A run ends with its batch, when
    that has lingered (KIP-480), and after ``run_bytes`` at the latest (KIP-794).

    Spreading record by record would fill every partition's batch at once and slowly; a run fills one batch
    fast. By bytes alone, all that a slow producer sends in an hour would be one run.
    """

    def __init__(self, run_bytes: int, rng: random.Random | None = None) -> None:
        self._run_bytes = max(1, run_bytes)
        self._filled = 0
        self._current = -1
        """The partition of the run that has begun; -1: none."""
        # Producers that start together must not all begin with partition 0.
        self._turn = (rng or random.Random()).randrange(1 << 30)

    def assign(self, _keys: pa.Array | None, sizes: Sizes, targets: Targets, /) -> Partitions:
        """See `Partitioner`."""
        if not len(sizes):
            return np.zeros(0, np.int32)
        end = np.cumsum(sizes) + self._filled
        run = (end - sizes) // self._run_bytes
        # A record longer than a run moves on by one partition, not several: otherwise some would never be
        # chosen.
        turn = self._turn + np.concatenate([[0], np.cumsum(np.diff(run) > 0)])
        chosen = targets.available[turn % len(targets.available)]
        self._turn = int(turn[-1]) + bool(end[-1] // self._run_bytes > run[-1])
        self._filled = int(end[-1]) % self._run_bytes
        self._current = int(chosen[-1]) if self._turn == int(turn[-1]) else -1
        runs: Partitions = chosen.astype(np.int32, copy=False)
        return runs

    def batch_closed(self, partition: int, /) -> None:
        """See `Partitioner`."""
        if partition == self._current:
            self._turn += 1
            self._filled, self._current = 0, -1


class RoundRobinPartitioner(Partitioner):
    """Every record to the next partition."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._turn = (rng or random.Random()).randrange(1 << 30)

    def assign(self, _keys: pa.Array | None, sizes: Sizes, targets: Targets, /) -> Partitions:
        """See `Partitioner`."""
        turn = np.arange(self._turn, self._turn + len(sizes))
        self._turn += len(sizes)
        chosen: Partitions = targets.available[turn % len(targets.available)]
        return chosen


class LeastBytesPartitioner(Partitioner):
    """To the partitions that got the fewest bytes from this producer so far (kafka-go's ``LeastBytes``).

    A column fills the partitions as water fills steps: each gets one run of rows, and all end level.
    """

    def __init__(self) -> None:
        self._bytes = np.zeros(0, np.int64)

    def assign(self, _keys: pa.Array | None, sizes: Sizes, targets: Targets, /) -> Partitions:
        """See `Partitioner`."""
        if targets.count > len(self._bytes):
            # A partition that is new starts level with the lowest of the others: it must not take
            # everything at first.
            lowest = self._bytes.min() if len(self._bytes) else 0
            self._bytes = np.concatenate(
                [self._bytes, np.full(targets.count - len(self._bytes), lowest, np.int64)]
            )
        if not len(sizes):
            return np.zeros(0, np.int32)
        by_level = targets.available[np.argsort(self._bytes[targets.available], kind="stable")]
        shares = _pour(self._bytes[by_level], int(sizes.sum()))
        # A row belongs to the run in which its first byte lies.
        first_byte = np.cumsum(sizes) - sizes
        run = np.searchsorted(np.cumsum(shares), first_byte, side="right")
        chosen = by_level[np.minimum(run, len(by_level) - 1)]
        self._bytes += np.bincount(chosen, weights=sizes, minlength=len(self._bytes)).astype(np.int64)
        return chosen


class HashPartitioner(Partitioner):
    """By the hash of the key; records without a key go to ``spread``.

    ``place`` turns uint32 hashes and a count into partitions as the client that is imitated does.
    """

    def __init__(
        self,
        kind: Hash,
        place: Callable[[npt.NDArray[np.uint32], int], Partitions],
        spread: Partitioner,
        *,
        empty_is_null: bool = False,
    ) -> None:
        self._kind = kind
        self._place = place
        self._spread = spread
        self._empty_is_null = empty_is_null

    def assign(self, keys: pa.Array | None, sizes: Sizes, targets: Targets, /) -> Partitions:
        """See `Partitioner`."""
        if keys is None or keys.null_count == len(keys):
            return self._spread.assign(None, sizes, targets)
        chosen = self._place(hash_keys(keys, self._kind), targets.count)
        keyless = self._keyless(keys)
        if keyless is not None and keyless.any():
            chosen[keyless] = self._spread.assign(None, sizes[keyless], targets)
        return chosen

    def batch_closed(self, partition: int, /) -> None:
        """See `Partitioner`."""
        self._spread.batch_closed(partition)

    def _keyless(self, keys: pa.Array) -> npt.NDArray[np.bool_] | None:
        if not self._empty_is_null:
            return np.asarray(keys.is_null()) if keys.null_count else None
        empty = pc.fill_null(pc.equal(pc.binary_length(keys), 0), True)
        return np.asarray(empty)


class ExplicitPartitioner(Partitioner):
    """None: every record must name its partition, and one that gets here did not."""

    @staticmethod
    def refusal(topic: str) -> RecordError:
        """The error for a record of ``topic`` without a partition."""
        return RecordError("no partition is given, and the partitioner is 'explicit'", topic, None)

    def assign(self, _keys: pa.Array | None, sizes: Sizes, targets: Targets, /) -> Partitions:
        """See `Partitioner`. Raises `RecordError`."""
        if len(sizes):
            raise self.refusal(targets.topic)
        return np.zeros(0, np.int32)


class FunctionPartitioner(Partitioner):
    """The caller's own function, a whole column at a time."""

    def __init__(self, function: PartitionFunction) -> None:
        self._function = function

    def assign(self, keys: pa.Array | None, sizes: Sizes, targets: Targets, /) -> Partitions:
        """See `Partitioner`. Raises `RecordError` when the function does not return one whole number per
        record."""
        column = pa.nulls(len(sizes), pa.binary()) if keys is None else keys
        chosen = np.asarray(self._function(targets.topic, column, targets.count))
        if chosen.shape != (len(sizes),) or not np.issubdtype(chosen.dtype, np.integer):
            raise RecordError(
                f"the partitioner function must return {len(sizes)} whole numbers, one for each record, not "
                f"{chosen.dtype} of shape {chosen.shape}",
                targets.topic,
            )
        outside = np.flatnonzero((chosen < 0) | (chosen >= targets.count))
        if len(outside):
            row = int(outside[0])
            raise RecordError(
                f"the partitioner function chose partition {chosen[row]} of {targets.count}",
                targets.topic,
                row,
            )
        return chosen.astype(np.int32, copy=False)


def place_as_java(hashes: npt.NDArray[np.uint32], count: int) -> Partitions:
    """Java's ``toPositive(murmur2(key)) % count``: the sign bit is dropped."""
    return ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(count)).astype(np.int32)


def place_unsigned(hashes: npt.NDArray[np.uint32], count: int) -> Partitions:
    """librdkafka's ``crc32(key) % count``, and Ruby's."""
    return (hashes % np.uint32(count)).astype(np.int32)


def place_absolute(hashes: npt.NDArray[np.uint32], count: int) -> Partitions:
    """kafka-go's and Sarama's ``abs(int32(fnv1a(key)) % count)``."""
    magnitude = np.abs(hashes.view(np.int32).astype(np.int64))
    return (magnitude % count).astype(np.int32)


_ALIASES = {
    "default": "murmur2",
    "murmur2_random": "murmur2",
    "fnv1a_random": "fnv1a",
    "hash": "fnv1a",
    "roundrobin": "round_robin",
    "leastbytes": "least_bytes",
    "uniform_sticky": "sticky",
    "random": "sticky",
    "org.apache.kafka.clients.producer.internals.defaultpartitioner": "murmur2",
    "org.apache.kafka.clients.producer.roundrobinpartitioner": "round_robin",
    "org.apache.kafka.clients.producer.uniformstickypartitioner": "sticky",
}
"""Names of librdkafka, kafka-go and Java (in lower case) for the same things."""

PARTITIONERS = (
    "murmur2",
    "crc32",
    "fnv1a",
    "consistent_random",
    "round_robin",
    "least_bytes",
    "sticky",
    "explicit",
)


def partitioner_name(name: str) -> str:
    """The short name of a partitioner from its short name, librdkafka's, or the name of Java's class.

    Raises `ConfigError` that lists what there is.
    """
    short = name.strip().lower()
    short = _ALIASES.get(short, short)
    if short not in PARTITIONERS:
        raise ConfigError(
            f"partitioner.class={name!r} is not a partitioner; there are {', '.join(PARTITIONERS)}, and "
            "Java's RoundRobinPartitioner and UniformStickyPartitioner by their class names (a class of your "
            "own can't be loaded here: give each record its `partition`, in Spark as a column; a client "
            "also takes a function as partitioner)"
        )
    return short


def build_partitioner(choice: str | PartitionFunction, run_bytes: int) -> Partitioner:
    """A partitioner for one topic. ``run_bytes``: how long a run of keyless records stays with one
    partition."""
    if callable(choice):
        return FunctionPartitioner(choice)
    name = partitioner_name(choice)
    match name:
        case "round_robin":
            return RoundRobinPartitioner()
        case "least_bytes":
            return LeastBytesPartitioner()
        case "sticky":
            return StickyPartitioner(run_bytes)
        case "explicit":
            return ExplicitPartitioner()
        case _:
            return _build_hash_partitioner(name, run_bytes)


def _build_hash_partitioner(name: str, run_bytes: int) -> HashPartitioner:
    sticky = StickyPartitioner(run_bytes)
    match name:
        case "murmur2":
            return HashPartitioner(Hash.MURMUR2, place_as_java, sticky)
        case "fnv1a":
            return HashPartitioner(Hash.FNV1A, place_absolute, sticky)
        case "crc32":
            # As lua-resty-kafka: an empty key is a key, and records without one go round.
            return HashPartitioner(Hash.CRC32, place_unsigned, RoundRobinPartitioner())
        case _:
            # librdkafka's consistent_random spreads empty keys as it spreads null ones.
            return HashPartitioner(Hash.CRC32, place_unsigned, sticky, empty_is_null=True)


def _pour(levels: npt.NDArray[np.int64], amount: int) -> npt.NDArray[np.int64]:
    """How much each of the ascending ``levels`` gets of ``amount`` so that all that get any end level;
    int64[n]."""
    count = np.arange(1, len(levels) + 1)
    # The level when the first k steps share everything; k is right as long as it reaches step k.
    shared = (np.cumsum(levels) + amount) // count
    k = int(np.flatnonzero(shared >= levels)[-1])
    poured: npt.NDArray[np.int64] = np.maximum(shared[k] - levels, 0) * (count <= k + 1)
    return poured
