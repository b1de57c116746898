"""The leader epochs that are committed with offsets (KIP-320): the next owner notices a log that was cut."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
from support.group.parts import parts_of

from spark_kafka_native.kafka.errors import CommitFailedError, LogTruncatedError
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import OffsetToCommit, TopicPartition
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.testing import MockBroker

A0 = TopicPartition("a", 0)
WITHIN_S = 120


def read(consumer: GroupConsumer, count: int) -> None:
    found: list[Any] = []
    while len(found) < count:
        found += consumer.poll(WITHIN_S, count - len(found))


def epoch_of_commit(broker: MockBroker) -> int:
    return int(broker.groups.by_id["g"].committed["a", 0]["committed_leader_epoch"])


def cut(broker: MockBroker) -> None:
    """An unclean election: the last batch, offsets 5 to 9, is gone, and others are written there."""
    broker.cut_log("a", 0, 5)
    broker.append("a", ["new"] * 20)


@pytest.mark.parametrize("automatic", [False, True])
@pytest.mark.parametrize("count", [10, 9])
@pytest.mark.parametrize("fetched_bytes", [1, 1 << 20])
def test_the_next_owner_notices_a_log_that_was_cut_before_the_committed_offset(
    automatic: bool, count: int, fetched_bytes: int
) -> None:
    """It read on at the offset, past the records that are before it now: also where that is within the first
    records that were fetched."""
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["old"] * 5)
        broker.append("a", ["old"] * 5)
        servers = broker.bootstrap_servers
        with GroupConsumer(
            servers, "a", "g", enable_auto_commit=automatic, max_partition_fetch_bytes=fetched_bytes
        ) as consumer:
            read(consumer, 2)
            consumer.commit()
            assert epoch_of_commit(broker) == 0
            read(consumer, count - 2)
            if not automatic:
                consumer.commit()
        assert broker.committed("g") == {A0: count}
        assert epoch_of_commit(broker) == 0
        cut(broker)
        with GroupConsumer(servers, "a", "g", enable_auto_commit=automatic) as consumer:
            for _ in range(2):
                with pytest.raises(LogTruncatedError):
                    consumer.poll(WITHIN_S)
            consumer.seek(A0, 5)
            assert consumer.poll(WITHIN_S)[0].value == b"new"


@pytest.mark.parametrize("committed", [0, 3, 5, 8])
def test_after_a_cut_it_goes_back_to_a_place_before_it_only(committed: int) -> None:
    """The cut was ahead of what the transaction had read, and the records up to it were skipped."""
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["old"] * 5)
        broker.append("a", ["old"] * 5)
        with GroupConsumer(broker.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            if committed:
                read(consumer, committed)
                consumer.commit()
                broker.groups.by_id["g"].committed["a", 0]["committed_leader_epoch"] = -1
            read(consumer, 1)
            reader = parts_of(consumer).reader
            known = reader.buffer.partition(A0)
            while 10 not in (known.position, *(one.next_offset for one in known.waiting)):
                time.sleep(0.01)
            cut(broker)
            while A0 not in reader.truncated:
                time.sleep(0.01)
            for _ in range(2):
                consumer.seek_to_committed()
            if committed > 5:
                for _ in range(2):
                    with pytest.raises(LogTruncatedError, match="cut back to offset 5"):
                        consumer.poll(WITHIN_S)
                    consumer.seek_to_committed()
                consumer.seek(A0, 5)
                committed = 5
            found = [consumer.fetch_record(WITHIN_S) for _ in range(25 - committed)]
            values = [None if one is None else one.value for one in found]
            assert values == [b"old"] * (5 - committed) + [b"new"] * 20
            consumer.commit()
        assert broker.committed("g") == {A0: 25}


def test_a_start_keeps_its_epoch() -> None:
    """Nothing was read since the partition was assigned, and the same offset is committed again."""
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["old"] * 10)
        for _ in range(2):
            with GroupConsumer(broker.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
                if broker.committed("g"):
                    while A0 not in consumer.assignment or consumer.position(A0) is None:
                        assert consumer.poll(0.05) == []
                    consumer.seek_to_committed()
                    while consumer.position(A0) is None:
                        assert consumer.poll(0.05) == []
                else:
                    read(consumer, 10)
                consumer.commit()
        assert epoch_of_commit(broker) == 0


@pytest.mark.parametrize("paused", [False, True])
def test_a_pause_that_frees_memory_keeps_the_epoch(paused: bool) -> None:
    """A log that is cut back meanwhile was read on, and the commit said nothing of the epoch."""
    with MockBroker() as broker:
        broker.create_topic("a")
        for _ in range(2):
            broker.append("a", ["old"] * 5)
        for _ in range(5):
            broker.append("a", ["x" * 1_000] * 5)
        servers, limits = broker.bootstrap_servers, {"prefetch_max_bytes": 2_000, "fetch_max_bytes": 2_000}
        limits["max_partition_fetch_bytes"] = 2_000
        with GroupConsumer(servers, "a", "g", enable_auto_commit=False, **limits) as consumer:
            read(consumer, 10)
            known = parts_of(consumer).reader.buffer.partition(A0)
            while known.nbytes < 2_000:
                time.sleep(0.01)
            if paused:
                consumer.pause(A0)
                assert not known.nbytes
            consumer.commit()
            assert epoch_of_commit(broker) == 0
            with broker.cluster.changed:
                log = broker.cluster.log("a", 0)
                del log.batches[2:]
                log.end_offset = 10
            cut(broker)
            consumer.resume(A0)
            with pytest.raises(LogTruncatedError):
                read(consumer, 30)


@pytest.mark.parametrize(("given", "epoch"), [(-1, 0), (7, 7)])
def test_the_next_owner_notices_a_log_that_was_cut_before_an_offset_of_a_transaction(
    given: int, epoch: int
) -> None:
    with MockBroker() as broker:
        for topic in ("a", "out"):
            broker.create_topic(topic)
        broker.append("a", ["old"] * 5)
        broker.append("a", ["old"] * 5)
        servers = broker.bootstrap_servers
        with (
            GroupConsumer(servers, "a", "g", enable_auto_commit=False) as consumer,
            TransactionalProducer(servers, "x") as producer,
        ):
            read(consumer, 10)
            with producer.transaction():
                producer.send("out", value=b"of 10")
                offsets = {
                    tp: OffsetToCommit(offset=offset, leader_epoch=given)
                    for tp, offset in consumer.offsets_to_commit().items()
                }
                producer.send_offsets(offsets, consumer.group_metadata())
        assert broker.committed("g") == {A0: 10}
        assert broker.groups.by_id["g"].committed["a", 0]["committed_leader_epoch"] == epoch
        if epoch == 0:
            cut(broker)
            with GroupConsumer(servers, "a", "g", enable_auto_commit=False) as consumer:
                for _ in range(2):
                    with pytest.raises(LogTruncatedError):
                        consumer.poll(WITHIN_S)


@pytest.mark.parametrize("count", [3, 5, 6, 10])
def test_a_transaction_has_the_offsets_of_records_that_are_left_or_fails(count: int) -> None:
    """Without them its records count, and are read again."""
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["old"] * 5)
        broker.append("a", ["old"] * 5)
        with GroupConsumer(broker.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            read(consumer, count)
            reader = parts_of(consumer).reader
            known = reader.buffer.partition(A0)
            while 10 not in (known.position, *(one.next_offset for one in known.waiting)):
                time.sleep(0.01)
            cut(broker)
            while A0 not in reader.truncated:
                time.sleep(0.01)
            if count <= 5:
                assert consumer.offsets_to_commit() == {A0: count}
                return
            for _ in range(2):
                with pytest.raises(CommitFailedError, match="a-0: the log was cut back"):
                    consumer.offsets_to_commit()
            consumer.seek(A0, 5)
            assert consumer.offsets_to_commit() == {A0: 5}


def test_the_metadata_of_a_member_that_is_in_another_process_know_no_epochs() -> None:
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["old"] * 5)
        with GroupConsumer(broker.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            read(consumer, 5)
            member = consumer.group_metadata()
            assert member.leader_epochs({A0: 5, TopicPartition("a", 1): 5}) == {A0: 0}
        assert pickle.loads(pickle.dumps(member)).leader_epochs({A0: 5}) == {}
