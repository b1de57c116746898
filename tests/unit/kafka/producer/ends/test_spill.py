"""Undelivered batches on disk: kept in order, sent first by the next producer, after any death."""

import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from pathlib import Path
from uuid import uuid4

import pytest
from support.brokers.produce_cluster import LOST_ANSWER, NO_ANSWER, ProduceCluster, refused
from support.brokers.scripted_broker import Log, properties
from support.hostile import described_otherwise
from support.producer.producing import buffered, producing, wait_until

from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import ConfigError, DeadlineExceededError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer import spill_folder
from spark_kafka_native.kafka.producer.errors import BufferFullError, DeliveryStatus
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.producer.sending.sender import Sender
from spark_kafka_native.kafka.producer.spill_folder import NewEntry, SpillError, SpillFolder
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.records.crc32c import crc32c
from spark_kafka_native.kafka.runtime.deadline import Deadline

pytestmark = pytest.mark.timed(0.1)

TP = TopicPartition("t", 0)


def entry(number, topic="t", data=None):
    payload = data or bytes([number]) * (100 + number)
    return NewEntry(
        TopicPartition(topic, number % 3), uuid4(), number + 1, number % 2 == 1, f"why {number}", payload
    )


def test_what_is_kept_comes_back_in_order(tmp_path):
    kept = [entry(i) for i in range(7)]
    folder = SpillFolder(str(tmp_path))
    assert folder.entries == []
    folder.keep(kept[:4])
    folder.keep(kept[4:])
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [bytes(one.read()) for one in again.entries] == [one.data for one in kept]
    for found, one in zip(again.entries, kept, strict=True):
        assert found[:5] == one[:5]
    again.close()


def test_a_folder_in_folders_that_do_not_exist_is_made(tmp_path):
    path = tmp_path / "of" / "a job"
    folder = SpillFolder(str(path))
    folder.keep([entry(0)])
    folder.close()
    assert reasons(path) == ["why 0"]


def test_the_number_of_a_file_that_was_left_and_deleted_is_not_used_again(tmp_path):
    """The batches that were in it would be read from the new file."""
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(0)])
    folder.close()
    again = SpillFolder(str(tmp_path))
    (left,) = again.entries
    left.file.unlink()
    (new,) = again.keep([entry(1)])
    assert new.file != left.file
    with pytest.raises(FileNotFoundError):
        left.read()
    again.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not show descriptors")
def test_files_that_come_and_go_leave_no_descriptor_open(tmp_path):
    folder = SpillFolder(str(tmp_path))
    for number in range(3):
        (one,) = folder.keep([entry(number)])
        folder.delivered(one)
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    paths = [link.readlink() for link in links if link.is_symlink()]
    assert {path for path in paths if path.is_relative_to(tmp_path)} == {tmp_path / "owner.lock", tmp_path}
    folder.close()


def test_a_folder_is_opened_with_one_batch_in_memory_at_a_time(tmp_path):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(i, data=bytes([i]) * 500_000) for i in range(40)])
    folder.close()
    tracemalloc.start()
    try:
        again = SpillFolder(str(tmp_path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(again.entries) == 40
    assert bytes(again.entries[39].read()) == b"\x27" * 500_000
    again.close()
    assert peak < 3_000_000


def test_what_was_delivered_does_not_come_back(tmp_path):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(i) for i in range(5)])
    folder.close()
    second = SpillFolder(str(tmp_path))
    for one in second.entries[:3]:
        second.delivered(one)
    second.close()
    third = SpillFolder(str(tmp_path))
    assert [one.reason for one in third.entries] == ["why 3", "why 4"]
    for one in third.entries:
        third.delivered(one)
    third.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner.lock"]


def test_a_folder_has_one_owner(tmp_path):
    folder = SpillFolder(str(tmp_path))
    with pytest.raises(ConfigError, match=rf"in use by another producer \(process {os.getpid()}\)"):
        SpillFolder(str(tmp_path))
    folder.close()
    SpillFolder(str(tmp_path)).close()


@pytest.mark.parametrize(("end", "free"), [(SpillFolder.close, True), (SpillFolder.forget, False)])
def test_an_owner_that_ends_frees_the_folder_for_all_its_forks_and_a_fork_for_itself(tmp_path, end, free):
    folder = SpillFolder(str(tmp_path))
    # Locks are of open files, which these descriptors share as a forked process does.
    others = [os.dup(lock) for lock in folder._locks]
    try:
        end(folder)
        if free:
            SpillFolder(str(tmp_path)).close()
        else:
            with pytest.raises(ConfigError, match="in use by another producer"):
                SpillFolder(str(tmp_path))
    finally:
        for other in others:
            os.close(other)
    SpillFolder(str(tmp_path)).close()


@pytest.mark.parametrize("cut", [1, 4, 9, 50, 120])
def test_a_torn_tail_is_ignored(tmp_path, cut):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(i) for i in range(3)])
    folder.close()
    (file,) = tmp_path.glob("*.batches")
    file.write_bytes(file.read_bytes()[:-cut])
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 0", "why 1"]
    again.close()
    assert not list(tmp_path.glob("*.damaged"))


def test_a_damaged_batch_is_set_aside_and_the_others_come_back(tmp_path, caplog):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(i) for i in range(3)])
    folder.close()
    (file,) = tmp_path.glob("*.batches")
    data = bytearray(file.read_bytes())
    data[data.index(bytes([1]) * 50)] ^= 0xFF
    file.write_bytes(data)
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 0", "why 2"]
    again.close()
    assert list(tmp_path.glob("*.damaged"))
    assert "one batch is lost" in caplog.text


def test_damage_does_not_change_which_of_the_batches_behind_it_were_delivered(tmp_path):
    folder = SpillFolder(str(tmp_path))
    kept = folder.keep([entry(i) for i in range(4)])
    folder.delivered(kept[2])
    folder.close()
    (file,) = tmp_path.glob("*.batches")
    data = bytearray(file.read_bytes())
    data[data.index(bytes([1]) * 50)] ^= 0xFF
    file.write_bytes(data)
    for left in (["why 0", "why 3"], ["why 0"]):
        again = SpillFolder(str(tmp_path))
        assert [one.reason for one in again.entries] == left
        again.delivered(again.entries[-1])
        again.close()
    assert not file.exists()


def test_a_second_damaged_file_of_the_same_number_is_kept_beside_the_first(tmp_path):
    for reason in (1, 2):
        folder = SpillFolder(str(tmp_path))
        folder.keep([entry(reason)])
        folder.close()
        (file,) = tmp_path.glob("*.batches")
        data = bytearray(file.read_bytes())
        data[-1] ^= 0xFF
        file.write_bytes(data)
        SpillFolder(str(tmp_path)).close()
        assert not file.exists()
    kept = [path.read_bytes() for path in sorted(tmp_path.glob("*.damaged"))]
    assert [b"why %d" % number in data for number, data in zip((2, 1), kept, strict=True)] == [True, True]


@pytest.mark.parametrize(
    "change",
    [
        {"topic": 7},
        {"partition": "0"},
        {"records": None},
        {"place": 7},
        {"place": ["a"]},
        {"topic_id": "x"},
        ["topic"],
        None,
    ],
    ids=str,
)
def test_a_batch_that_is_described_as_none_can_be_is_set_aside(tmp_path, change):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(0), entry(1)])
    folder.close()
    (file,) = tmp_path.glob("*.batches")

    def otherwise(meta):
        return json.dumps(json.loads(meta) | change if isinstance(change, dict) else change)

    changed = described_otherwise(file.read_bytes(), otherwise)
    file.write_bytes(changed)
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 1"]
    again.close()
    assert [path.read_bytes() for path in tmp_path.glob("*.damaged")] == [changed]


def test_a_damaged_length_ends_the_file(tmp_path):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(i) for i in range(3)])
    folder.close()
    (file,) = tmp_path.glob("*.batches")
    data = bytearray(file.read_bytes())
    data[10] = 0x7F
    file.write_bytes(data)
    again = SpillFolder(str(tmp_path))
    assert again.entries == []
    again.close()
    assert list(tmp_path.glob("*.damaged"))


def test_a_large_entry_is_no_damage(tmp_path):
    """Three GiB that a crash cut: the head says so, and its checksum is right."""
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(0)])
    folder.close()
    (file,) = tmp_path.glob("*.batches")
    lengths = struct.pack(">II", 100, 3 << 30)
    file.write_bytes(file.read_bytes() + lengths + struct.pack(">I", crc32c(lengths)) + bytes(200))
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 0"]
    again.close()
    assert not list(tmp_path.glob("*.damaged"))


def test_an_entry_that_could_not_be_read_back_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(spill_folder, "MAX_ENTRY_BYTES", 10_000)
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(0)])
    with pytest.raises(SpillError, match="a batch of 10000 bytes is too large"):
        folder.keep([entry(1, data=bytes(10_000))])
    folder.keep([entry(2)])
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 0", "why 2"]
    again.close()


def test_a_folder_that_can_not_be_written_says_so(tmp_path, monkeypatch):
    folder = SpillFolder(str(tmp_path))

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SpillError, match="No space left"):
        folder.keep([entry(0)])
    monkeypatch.undo()
    folder.keep([entry(1)])
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 1"]
    again.close()


def test_what_replaces_an_entry_takes_its_place(tmp_path):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(i) for i in range(3)])
    folder.close()
    second = SpillFolder(str(tmp_path))
    halves = second.replace(second.entries[1], [entry(11), entry(12)])
    second.keep([entry(3)])
    second.replace(halves[1], [entry(22)])
    second.delivered(halves[0])
    assert bytes(halves[0].read()) == entry(11).data
    second.close()
    third = SpillFolder(str(tmp_path))
    assert [one.reason for one in third.entries] == ["why 0", "why 22", "why 2", "why 3"]
    assert [bytes(one.read()) for one in third.entries] == [entry(i).data for i in (0, 22, 2, 3)]
    for one in third.entries:
        third.delivered(one)
    third.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner.lock"]


@pytest.mark.parametrize(("cut", "left"), [(0, ["why 11", "why 12"]), (1, ["why 0"]), (400, ["why 0"])])
def test_a_crash_leaves_what_was_replaced_or_what_replaces_it(tmp_path, monkeypatch, cut, left):
    folder = SpillFolder(str(tmp_path))
    (one,) = folder.keep([entry(0)])
    monkeypatch.setattr(folder, "delivered", lambda _batch: None)
    folder.replace(one, [entry(11), entry(12)])
    folder.close()
    (file,) = tmp_path.glob("*.batches")
    file.write_bytes(file.read_bytes()[: -cut or None])
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == left
    again.close()


def test_a_batch_that_a_crash_left_beside_its_halves_does_not_come_back_behind_them(tmp_path, monkeypatch):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(0)])
    folder.close()
    folder = SpillFolder(str(tmp_path))
    monkeypatch.setattr(folder, "delivered", lambda _batch: None)
    folder.replace(folder.entries[0], [entry(11), entry(12)])
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 11", "why 12"]
    for one in again.entries:
        again.delivered(one)
    again.close()
    assert reasons(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner.lock"]


def test_all_of_the_file_that_is_being_written_may_be_delivered(tmp_path):
    folder = SpillFolder(str(tmp_path))
    (one,) = folder.keep([entry(0)])
    folder.delivered(one)
    folder.keep([entry(1)])
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 1"]
    again.close()


def with_marks(path):
    """Of four entries in the folder the second and the third were delivered: the file that says so."""
    folder = SpillFolder(str(path))
    kept = folder.keep([entry(i) for i in range(4)])
    folder.delivered(kept[1])
    folder.delivered(kept[2])
    folder.close()
    (marks,) = [one for one in path.iterdir() if one.suffix not in (".batches", ".lock")]
    return marks


def reasons(path):
    folder = SpillFolder(str(path))
    try:
        return [one.reason for one in folder.entries]
    finally:
        folder.close()


def test_a_mark_with_any_bit_flipped_counts_for_nothing(tmp_path, caplog):
    marks = with_marks(tmp_path)
    good = marks.read_bytes()
    for bit in range(len(good) * 8):
        spoilt = bytearray(good)
        spoilt[bit // 8] ^= 1 << bit % 8
        marks.write_bytes(spoilt)
        caplog.clear()
        again = ["why 0", "why 3"]
        again.insert(1, "why 1" if bit < len(good) * 4 else "why 2")
        assert reasons(tmp_path) == again
        assert "1 damaged marks: batches that were delivered may be sent again" in caplog.text


@pytest.mark.parametrize("garbage", [bytes(3), bytes(8), bytes(4096), b"\0\0\0\3" * 2], ids=len)
def test_garbage_behind_marks_counts_for_nothing(tmp_path, caplog, garbage):
    marks = with_marks(tmp_path)
    marks.write_bytes(marks.read_bytes() + garbage)
    assert reasons(tmp_path) == ["why 0", "why 3"]
    assert "damaged marks" in caplog.text


def test_marks_behind_a_torn_one_are_in_step(tmp_path):
    marks = with_marks(tmp_path)
    marks.write_bytes(marks.read_bytes()[:-3])
    folder = SpillFolder(str(tmp_path))
    assert [one.reason for one in folder.entries] == ["why 0", "why 2", "why 3"]
    folder.delivered(folder.entries[2])
    folder.close()
    assert reasons(tmp_path) == ["why 0", "why 2"]


def test_marks_are_about_the_entries_of_their_own_file(tmp_path, caplog):
    """A former release, which does not know them, has removed their file only."""
    marks = with_marks(tmp_path / "a")
    folder = SpillFolder(str(tmp_path / "b"))
    folder.keep([entry(i) for i in range(4)])
    folder.close()
    (tmp_path / "b" / marks.name).write_bytes(marks.read_bytes())
    assert reasons(tmp_path / "b") == ["why 0", "why 1", "why 2", "why 3"]
    assert "2 damaged marks" in caplog.text


@pytest.mark.parametrize(
    ("numbers", "left"),
    [
        ([1, 2], ["why 0", "why 3"]),
        ([], ["why 0", "why 1", "why 2", "why 3"]),
        ([1, 4], ["why 0", "why 1", "why 2", "why 3"]),
        ([1, 0, 0], ["why 0", "why 1", "why 2", "why 3"]),
        ([1, b"\0"], ["why 0", "why 1", "why 2", "why 3"]),
    ],
    ids=str,
)
def test_marks_of_a_former_release_count_if_they_can_be_right(tmp_path, caplog, numbers, left):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(i) for i in range(4)])
    folder.close()
    old = [one if isinstance(one, bytes) else struct.pack(">I", one) for one in numbers]
    (tmp_path / "0000000001.done").write_bytes(b"".join(old))
    assert reasons(tmp_path) == left
    assert ("is damaged and is not used" in caplog.text) == (len(left) == 4 and numbers != [])
    folder = SpillFolder(str(tmp_path))
    for one in folder.entries:
        folder.delivered(one)
    folder.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner.lock"]


@pytest.mark.parametrize("name", ["0000000001.done", "0000000001.delivered"])
def test_a_list_of_the_delivered_that_a_crash_left_is_not_about_a_new_file(tmp_path, name):
    (tmp_path / name).write_bytes(bytes(4))
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(0)])
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 0"]
    again.close()


@pytest.fixture
def cluster():
    with ProduceCluster() as running:
        running.create("t", 2)
        yield running


def open_producer(cluster, folder, **config):
    settings = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
    config = {"batch_records": 1, "linger_ms": 0, "delivery_timeout_ms": 3_000} | config
    return Producer(settings, ProducerConfig(spill_dir=str(folder), **config))


def numbers(start, stop):
    return [b"%d" % i for i in range(start, stop)]


def test_the_next_producer_sends_first_what_the_last_could_not(cluster, tmp_path):
    first = open_producer(cluster, tmp_path)
    first.send("t", value=b"0", partition=0).result(60)
    cluster[1].stop()
    deliveries = [first.send("t", value=value, partition=0) for value in numbers(1, 20)]
    first.close(0.5)
    errors = [d.exception(0) for d in deliveries]
    assert all(e.spilled for e in errors)
    assert "kept in the spill folder" in str(errors[0])
    assert first.stats().spilled_records == 19
    cluster[1].start()
    second = open_producer(cluster, tmp_path, delivery_timeout_ms=60_000)
    for value in numbers(20, 25):
        second.send("t", value=value, partition=0)
    second.flush(60)
    second.close()
    assert cluster.values(TP) == numbers(0, 25)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner.lock"]


def test_a_producer_that_cannot_start_leaves_the_folder_to_another(cluster, tmp_path, monkeypatch):
    def refuse(_sender):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Sender, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread") as failed:
        open_producer(cluster, tmp_path)
    SpillFolder(str(tmp_path)).close()
    assert failed.value.__traceback__ is not None  # it keeps the producer, which would keep the folder


def test_records_of_the_folder_that_could_not_be_sent_are_handed_back(cluster, tmp_path):
    """Those of batches that were not read from it yet, too."""
    cluster.script(TP, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100_000)
    first = open_producer(cluster, tmp_path)
    deliveries = [first.send("t", value=value, partition=0) for value in numbers(0, 3)]
    first.close(0.001)
    assert all(delivery.exception(0).spilled for delivery in deliveries)
    sent, values = len(cluster.batches(TP)), []

    def hand_back(_partition, columns, _error, _retriable):
        values.extend(columns.value.to_pylist())

    with producing(cluster, spill_dir=str(tmp_path), on_error=hand_back, close_ms=1):
        wait_until(lambda: len(cluster.batches(TP)) > sent)
    assert values == numbers(0, 3)


def spilled_before(cluster, tmp_path, *topics):
    """Leave a batch of one record for the first partition of each topic, as an earlier producer would."""
    folder = SpillFolder(str(tmp_path))
    with open_producer(cluster, tmp_path / "unused") as producer:
        producer.send("t", value=b"0", partition=0).result(60)
        data = cluster.arrived[-1].data
    places = [TopicPartition(topic, 0) for topic in topics]
    folder.keep([NewEntry(place, None, 1, False, "why", data) for place in places])
    folder.close()
    return places


def test_a_topic_that_is_gone_keeps_no_spilled_records_of_another(cluster, tmp_path):
    spilled_before(cluster, tmp_path, "gone", "t", "lost")
    with open_producer(cluster, tmp_path, max_block_ms=200) as producer, pytest.raises(SpillError):
        producer.flush(60)
    folder = SpillFolder(str(tmp_path))
    assert [one.topic_partition.topic for one in folder.entries] == ["gone", "lost"]
    folder.close()


def test_a_flush_looks_again_for_a_topic_that_was_gone(cluster, tmp_path):
    (gone,) = spilled_before(cluster, tmp_path, "gone")
    with open_producer(cluster, tmp_path, max_block_ms=2_000) as producer:
        with pytest.raises(SpillError, match="1 records of topic gone"):
            producer.flush(60)
        cluster.create("gone", 1)
        producer.flush(60)
        assert cluster.values(gone) == [b"0"]


def test_a_flush_waits_for_the_topic_that_it_looks_for_again(cluster, tmp_path):
    (gone,) = spilled_before(cluster, tmp_path, "gone")
    slowly = {"retry_backoff_max_ms": 600_000}  # only the flush tries again
    with producing(cluster, client=slowly, spill_dir=str(tmp_path), max_block_ms=200) as producer:
        with pytest.raises(SpillError, match="1 records of topic gone"):
            producer.flush(60)
        assert producer._replay.wait(Deadline.after_ms(60_000))
        cluster.create("gone", 1)
        ended = threading.Event()

        def describe_late(request, version):
            wait_until(lambda: producer._waiters.waiting or ended.is_set())
            return cluster.metadata(request, version)

        cluster[1].on(MetadataRequest, describe_late)
        try:
            producer.flush(60)
        finally:
            ended.set()
        assert cluster.values(gone) == [b"0"]


def test_closing_waits_for_the_topics_of_what_is_replayed(cluster, tmp_path):
    other = TopicPartition("t", 1)
    with open_producer(cluster, tmp_path / "unused") as producer:
        producer.send("t", value=b"0", partition=0).result(60)
        data = cluster.arrived[-1].data
    folder = SpillFolder(str(tmp_path))
    folder.keep([NewEntry(other, None, 1, False, "why", data)])
    folder.close()
    awaited = threading.Event()

    def describe_late(request, version):
        assert awaited.wait(60)
        return cluster.metadata(request, version)

    cluster[1].on(MetadataRequest, describe_late)
    producer = open_producer(cluster, tmp_path)
    wait = producer._replay.wait

    def wait_and_note(deadline):
        awaited.set()
        return wait(deadline)

    producer._replay.wait = wait_and_note
    try:
        producer.close(60)
    finally:
        awaited.set()
    assert cluster.values(other) == [b"0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner.lock", "unused"]


def test_spilled_records_of_a_partition_that_is_added_later_are_sent(cluster, tmp_path):
    cluster.create("grown", 1)
    added = TopicPartition("grown", 1)
    with open_producer(cluster, tmp_path / "unused") as producer:
        producer.send("grown", value=b"0", partition=0).result(60)
        data = cluster.arrived[-1].data
    folder = SpillFolder(str(tmp_path))
    folder.keep([NewEntry(added, None, 1, False, "why", data)])
    folder.close()
    with open_producer(cluster, tmp_path) as producer:
        with pytest.raises(SpillError, match="the topic has 1 partitions only"):
            producer.flush(60)
        cluster.logs[added] = Log(leader=1)
        assert producer.send("grown", value=b"1", partition=1).result(60).offset == 1
        producer.flush(60)
    assert cluster.values(added) == [b"0", b"1"]


def test_replayed_records_leave_room_for_no_more_than_is_configured(cluster, tmp_path):
    first = open_producer(cluster, tmp_path)
    first.send("t", value=b"0", partition=0).result(60)
    cluster[1].stop()
    for value in numbers(1, 20):
        first.send("t", value=value, partition=0)
    first.close(0.5)
    cluster[1].start()
    # The topic is looked up within max.block.ms, too.
    limits = {"max_buffered_records": 3, "max_block_ms": 3_000, "delivery_timeout_ms": 60_000}
    second = open_producer(cluster, tmp_path, **limits)
    second.flush(60)
    assert cluster.values(TP) == numbers(0, 20)
    cluster[1].stop()
    for value in numbers(20, 23):
        second.send("t", value=value, partition=0)
    with pytest.raises(BufferFullError):
        second.send("t", value=b"23", partition=0)
    second.close(0.5)


def test_what_was_possibly_written_is_recognised(cluster, tmp_path):
    first = open_producer(cluster, tmp_path)
    first.send("t", value=b"0", partition=0).result(60)
    cluster.script(TP, LOST_ANSWER)
    cluster.delay_s = 0.3
    delivery = first.send("t", value=b"1", partition=0)
    wait_until(lambda: cluster.values(TP) == numbers(0, 2))
    cluster[1].stop()
    first.close(0.001)
    assert delivery.exception(0).status is DeliveryStatus.POSSIBLY_PERSISTED
    assert cluster.values(TP) == numbers(0, 2)
    cluster.delay_s = 0
    cluster[1].start()
    with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000) as second:
        second.flush(60)
        second.send("t", value=b"2", partition=0).result(60)
    assert cluster.values(TP) == numbers(0, 3)


def test_a_replay_that_the_broker_does_not_know_is_numbered_anew(cluster, tmp_path):
    first = open_producer(cluster, tmp_path)
    first.send("t", value=b"0", partition=0).result(60)
    cluster.script(TP, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100)
    for value in numbers(1, 6):
        first.send("t", value=value, partition=0)
    first.close(0.4)
    cluster.scripts.clear()
    cluster.script(TP, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000) as second:
        second.flush(60)
        second.send("t", value=b"6", partition=0).result(60)
    assert cluster.values(TP) == numbers(0, 7)


def test_later_records_do_not_overtake_spilled_ones(cluster, tmp_path):
    with open_producer(cluster, tmp_path, delivery_timeout_ms=1_500) as first:
        cluster.script(TP, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000)
        early = first.send("t", value=b"0", partition=0)
        assert early.exception(60).spilled
        cluster.scripts.clear()
        late = first.send("t", value=b"1", partition=0)
        assert late.exception(60).spilled
        assert "must not be overtaken" in str(late.exception(0))
        assert first.send("t", value=b"other", partition=1).result(60).offset == 0
    with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000) as second:
        second.flush(60)
    assert cluster.values(TP) == numbers(0, 2)


@pytest.mark.parametrize(
    ("refusal", "delay_s", "delivery_timeout_ms", "stop"),
    [
        pytest.param(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0.1, 3_000, 10, id="a refused batch"),
        pytest.param(ErrorCode.NOT_ENOUGH_REPLICAS, 0.4, 600, 4, id="the first to time out"),
    ],
)
def test_what_is_in_flight_keeps_its_place_around_a_spilled_batch(
    cluster, tmp_path, refusal, delay_s, delivery_timeout_ms, stop
):
    with open_producer(cluster, tmp_path, delivery_timeout_ms=delivery_timeout_ms) as first:
        first.send("t", value=b"0", partition=0).result(60)
        cluster.delay_s = delay_s
        cluster.script(TP, refused(refusal))
        later = [first.send("t", value=value, partition=0) for value in numbers(1, stop)]
        assert all(delivery.exception(60).spilled for delivery in later)
    cluster.delay_s = 0
    with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000) as second:
        second.flush(60)
    assert cluster.values(TP) == numbers(0, stop)


def test_replayed_batches_do_not_overtake_one_that_was_given_up(cluster, tmp_path):
    first = open_producer(cluster, tmp_path)
    first.send("t", value=b"0", partition=0).result(60)
    cluster[1].stop()
    for value in numbers(1, 4):
        first.send("t", value=value, partition=0)
    first.close(0.3)
    cluster[1].start()
    cluster.script(TP, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 2)
    cluster.script(TP, refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    for retries in (1, 5, 5):
        with open_producer(cluster, tmp_path, retries=retries) as again:
            again.flush(60)
    assert cluster.values(TP) == numbers(0, 4)


def test_own_batches_do_not_follow_a_replayed_one_in_flight(cluster, tmp_path):
    first = open_producer(cluster, tmp_path)
    first.send("t", value=b"0", partition=0).result(60)
    cluster.delay_s = 0.15
    cluster.script(TP, refused(ErrorCode.INVALID_RECORD))
    later = [first.send("t", value=value, partition=0) for value in numbers(1, 5)]
    assert later[0].exception(60) is not None
    wait_until(lambda: cluster[1].requests(ProduceRequest)[2:])  # the next one is in flight
    first.close(0.001)
    cluster.delay_s = 0.05
    with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000) as second:
        for value in numbers(5, 10):
            second.send("t", value=value, partition=0)
        second.flush(60)
    assert cluster.values(TP) == [b"0", *numbers(2, 10)]


def test_a_replayed_batch_keeps_its_numbers_when_another_loses_its_own(cluster, tmp_path):
    sent = []
    for name in ("lost", "recognised"):
        with open_producer(cluster, tmp_path / "unused") as producer:
            for number in range(2):
                producer.send("t", value=f"{name} {number}".encode(), partition=0).result(60)
            sent.append(cluster.arrived[-1].data)
    before = cluster.values(TP)
    folder = SpillFolder(str(tmp_path))
    topic_id = cluster.topic_ids["t"]
    folder.keep([NewEntry(TP, topic_id, 1, True, "why", data) for data in sent])
    folder.close()
    cluster.script(TP, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    cluster.delay_s = 0.05
    with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000) as producer:
        producer.flush(60)
    assert cluster.values(TP) == [*before, b"lost 1"]


def test_a_replayed_batch_that_is_split_is_sent_once(cluster, tmp_path):
    values = [b"%04d" % i + b"x" * 96 for i in range(10)]
    first = open_producer(cluster, tmp_path, batch_records=10, linger_ms=20)
    first.send("t", value=b"first", partition=0).result(60)
    cluster[1].stop()
    for value in values:
        first.send("t", value=value, partition=0)
    first.close(0.3)
    cluster[1].start()
    cluster.max_message_bytes, cluster.told_max_message_bytes = 700, 100_000
    for _ in range(2):
        with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000) as again:
            again.flush(60)
            assert buffered(again) == (0, 0)
    assert cluster.values(TP) == [b"first", *values]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner.lock"]


@pytest.mark.parametrize("sender", ["the same producer", "the next one"])
def test_a_replayed_batch_whose_halves_cannot_be_kept_stays_in_the_folder(
    cluster, tmp_path, monkeypatch, sender
):
    values = [b"%04d" % i + b"x" * 96 for i in range(10)]
    first = open_producer(cluster, tmp_path, batch_records=10, linger_ms=20)
    first.send("t", value=b"first", partition=0).result(60)
    cluster[1].stop()
    for value in values:
        first.send("t", value=value, partition=0)
    first.close(0.3)
    cluster[1].start()
    cluster.max_message_bytes, cluster.told_max_message_bytes = 700, 100_000

    def full(_folder, _batch, _entries):
        raise SpillError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(SpillFolder, "replace", full)
        again = open_producer(cluster, tmp_path, delivery_timeout_ms=60_000, keep_undelivered=True)
        wait_until(again.undelivered)
        if sender == "the next one":
            again.close(1)
            assert cluster.values(TP) == [b"first"]
            folder = SpillFolder(str(tmp_path))
            assert [one.records for one in folder.entries] == [10]
            folder.close()
    if sender == "the next one":
        again = open_producer(cluster, tmp_path, delivery_timeout_ms=60_000)
        again.flush(60)
    wait_until(lambda: cluster.values(TP) == [b"first", *values])
    again.close(60)


@pytest.mark.parametrize("numbered", ["once", "anew"])
def test_a_replayed_batch_is_replayed_with_the_numbers_it_was_sent_with(cluster, tmp_path, numbered):
    first = open_producer(cluster, tmp_path)
    first.send("t", value=b"0", partition=0).result(60)
    cluster[1].stop()
    for value in numbers(1, 3):
        first.send("t", value=value, partition=0)
    first.close(0.2)
    cluster[1].start()
    if numbered == "anew":
        cluster.script(TP, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    cluster.script(TP, NO_ANSWER)
    second = open_producer(cluster, tmp_path)
    deadline = time.monotonic() + 60
    while cluster.values(TP) != numbers(0, 2) and time.monotonic() < deadline:
        time.sleep(0.01)
    second.close(0.001)
    with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000) as third:
        third.flush(60)
    assert cluster.values(TP) == numbers(0, 3)


def test_a_spilled_batch_that_cannot_be_read_does_not_end_the_producer(cluster, tmp_path):
    first = open_producer(cluster, tmp_path)
    first.send("t", value=b"0", partition=0).result(60)
    cluster[1].stop()
    first.send("t", value=b"1", partition=0)
    first.close(0.2)
    cluster[1].start()
    with cluster.forbid("t"):
        second = open_producer(cluster, tmp_path)
        (file,) = tmp_path.glob("*.batches")
        file.unlink()
    second.flush(60)
    assert second.send("t", value=b"other", partition=1).result(60).offset == 0
    second.close()


def test_a_file_that_is_deleted_while_it_is_written_takes_nothing_along_that_comes_later(
    cluster, tmp_path, caplog
):
    """What followed was written into it, and its partition was held up for ever."""
    with open_producer(cluster, tmp_path, delivery_timeout_ms=300) as producer:
        producer.send("t", value=b"0", partition=0)  # a slow machine may send it again from the folder
        wait_until(lambda: cluster.values(TP) == [b"0"] and not list(tmp_path.glob("*.batches*")))
        cluster[1].stop()
        assert producer.send("t", value=b"1", partition=0).exception(60).spilled
        (file,) = tmp_path.glob("*.batches")
        file.unlink()
        assert producer.send("t", value=b"2", partition=0).exception(60).spilled
        (other,) = tmp_path.glob("*.batches")
        assert other.name != file.name  # else batches of the former one would be read from this one
        cluster[1].start()
        wait_until(lambda: cluster.values(TP) == [b"0", b"2"])
        producer.send("t", value=b"3", partition=0)
        wait_until(lambda: cluster.values(TP) == [b"0", b"2", b"3"])
        wait_until(lambda: not list(tmp_path.glob("*.batches*")))
    assert "its file was deleted, and these records are lost" in caplog.text
    assert not list(tmp_path.glob("*.batches*"))


def test_a_folder_has_one_owner_also_once_its_lock_file_is_deleted(tmp_path):
    owner = SpillFolder(str(tmp_path))
    (tmp_path / "owner.lock").unlink()
    with pytest.raises(ConfigError, match="in use by another producer"):
        SpillFolder(str(tmp_path))
    owner.close()
    SpillFolder(str(tmp_path)).close()


def test_what_would_be_refused_again_is_not_kept(cluster, tmp_path):
    with open_producer(cluster, tmp_path) as producer:
        cluster.script(TP, refused(ErrorCode.INVALID_RECORD))
        error = producer.send("t", value=b"0", partition=0).exception(60)
        assert not error.spilled
    assert not list(tmp_path.glob("*.batches"))


KILLED = """
import sys, time
sys.path[:0] = {paths!r}
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.producer.producer import Producer

config = ClientConfig.from_properties({properties!r})
settings = dict(batch_records=1, linger_ms=0, delivery_timeout_ms=5_000)
producer = Producer(config, ProducerConfig(spill_dir={folder!r}, **settings))
print("open", flush=True)
for i in range(100_000):
    error = producer.send("t", value=b"%d" % i, partition=0).exception()
    print(i, "spilled" if error is not None and error.spilled else "delivered", flush=True)
"""


def test_sigkill_loses_nothing_that_was_kept(cluster, tmp_path):
    script = textwrap.dedent(
        KILLED.format(
            paths=[str(Path(__file__).parents[5])],
            properties=dict(properties(cluster.bootstrap_servers)),
            folder=str(tmp_path),
        )
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    kept, delivered = [], []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "open\n":
                continue
            number, what = line.split()
            (kept if what == "spilled" else delivered).append(number.encode())
            if len(delivered) == 3 and not kept:
                cluster[1].stop()
            if len(kept) >= 25:
                process.send_signal(signal.SIGKILL)
                break
    finally:
        process.kill()
        unread, _ = process.communicate()  # it may have gone on before the signal reached it
    assert len(delivered) >= 3
    assert len(kept) == 25
    kept += [line.split()[0].encode() for line in unread.splitlines() if line.endswith(" spilled")]
    cluster[1].start()
    with open_producer(cluster, tmp_path, delivery_timeout_ms=60_000) as producer:
        producer.flush(60)
        producer.send("t", value=b"after", partition=0).result(60)
    values = cluster.values(TP)
    # The record that was being kept when the process died may or may not have made it.
    assert values[: len(delivered) + len(kept)] == delivered + kept
    assert values[-1] == b"after"
    assert len(values) <= len(delivered) + len(kept) + 2


def test_a_flush_that_ends_too_early_counts_what_is_replayed(cluster, tmp_path):
    folder = SpillFolder(str(tmp_path))
    folder.keep([NewEntry(TP, None, 4, False, "why", b"x"), NewEntry(TP, None, 3, False, "why", b"x")])
    folder.close()
    cluster[1].stop()
    producer = open_producer(cluster, tmp_path)
    try:
        with pytest.raises(DeadlineExceededError, match=r"7 records are still .* 7 of them from the spill"):
            producer.flush(0.1)
    finally:
        producer.close(0.1)


def test_a_flush_counts_replayed_batches_that_no_broker_has_answered(cluster, tmp_path):
    first = open_producer(cluster, tmp_path)
    first.send("t", value=b"0", partition=0).result(60)
    cluster[1].stop()
    for value in numbers(1, 5):
        first.send("t", value=value, partition=0)
    first.close(0.5)
    cluster[1].start()
    cluster.delay_s = 2
    second = open_producer(cluster, tmp_path, delivery_timeout_ms=60_000)
    try:
        wait_until(lambda: second._completion.incomplete)
        second.send("t", value=b"5", partition=0)
        with pytest.raises(DeadlineExceededError, match=r"5 records are still .* 4 of them from the spill"):
            second.flush(0.1)
        cluster.delay_s = 0
        second.flush(60)
    finally:
        second.close()
    assert cluster.values(TP) == numbers(0, 6)
