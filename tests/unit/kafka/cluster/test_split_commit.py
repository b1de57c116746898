"""Committed offsets in parts that a coordinator can append as one batch."""

from __future__ import annotations

from spark_kafka_native.kafka.cluster.split_commit import split_commit
from spark_kafka_native.kafka.model import OffsetToCommit, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_commit_is_split_where_its_records_would_not_fit_into_one_batch() -> None:
    few = {TopicPartition("t", partition): partition for partition in range(1_000)}
    assert list(split_commit("g", few)) == [few]
    assert list(split_commit("g", {})) == []
    many = {TopicPartition("t" * 40, partition): partition for partition in range(100_000)}
    parts = list(split_commit("g" * 19, many))
    assert len(parts) == 27
    assert all(len(part) <= 512 * 1024 // (80 + 40 + 19) for part in parts)
    assert [tp for part in parts for tp in part] == list(many)


def test_metadata_counts_in_bytes_and_one_offset_is_never_split() -> None:
    large = OffsetToCommit(offset=1, metadata="\N{EURO SIGN}" * 300_000)
    small = OffsetToCommit(offset=2)
    assert list(split_commit("g", {A0: small, A1: large, B0: small})) == [
        {A0: small},
        {A1: large},
        {B0: small},
    ]
    assert list(split_commit("g", {A1: large})) == [{A1: large}], "and no part is empty"
    half = OffsetToCommit(offset=1, metadata="\N{EURO SIGN}" * 90_000)  # 263 KiB of the 512
    assert [len(part) for part in split_commit("g", {A0: half, A1: half})] == [1, 1]
