"""The spill folder on a disk that is full, and has room again: it keeps the batches that it reports as kept.

The disk is a file size limit of a process of its own, which the kernel enforces as it does a full disk: it
takes a part of a write and refuses the rest.
"""

import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers.produce_cluster import ProduceCluster
from support.brokers.scripted_broker import properties
from support.producer.sending_batches import batch

from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer import spill_folder
from spark_kafka_native.kafka.producer.accumulating.batch import Batch
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.producer.sending.idempotence import ProducerIdentity, read_numbers
from spark_kafka_native.kafka.producer.spill_folder import NewEntry, SpillError, SpillFolder
from spark_kafka_native.kafka.producer.spilling import Spilling

TP = TopicPartition("t", 0)


def entry(number, size=1000):
    return NewEntry(TP, None, 1, False, f"why {number}", bytes([number % 251]) * size)


@pytest.fixture
def full_at():
    """Let files of this process grow to this number of bytes, until another limit is set."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("room", [2_500, 2_600, 3_456, 3_999])
def test_what_a_full_disk_refused_does_not_come_back_and_what_it_took_stays(tmp_path, full_at, room):
    folder, kept = SpillFolder(str(tmp_path)), []
    full_at(room)
    for number in range(8):
        try:
            folder.keep([entry(number)])
        except SpillError:
            continue
        kept.append(number)
    assert 0 < len(kept) < 8
    full_at(resource.RLIM_INFINITY)
    for number in range(8, 11):
        folder.keep([entry(number)])
        kept.append(number)
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == [f"why {number}" for number in kept]
    assert [bytes(one.read()) for one in again.entries] == [entry(number).data for number in kept]
    again.close()
    assert not list(tmp_path.glob("*.damaged"))


def test_nothing_is_written_after_it_was_refused(tmp_path, full_at):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(0)])
    (file,) = tmp_path.glob("*.batches")
    size = file.stat().st_size
    full_at(size + 500)
    with pytest.raises(SpillError):
        folder.keep([entry(1), entry(2)])
    assert file.stat().st_size == size
    full_at(resource.RLIM_INFINITY)
    folder.close()
    assert file.stat().st_size == size


def test_a_file_that_could_not_be_begun_is_not_left(tmp_path, full_at):
    folder = SpillFolder(str(tmp_path))
    full_at(3)
    with pytest.raises(SpillError):
        folder.keep([entry(0)])
    full_at(resource.RLIM_INFINITY)
    assert not list(tmp_path.glob("*.batches"))
    folder.keep([entry(1)])
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 1"]
    again.close()


def fail_to_keep_and_cut(folder, full_at, monkeypatch):
    full_at(1_500)

    def refuse(*_arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.ftruncate", refuse)
    with pytest.raises(SpillError):
        folder.keep([entry(1)])
    monkeypatch.undo()
    full_at(resource.RLIM_INFINITY)


def test_a_file_that_can_not_be_cut_is_not_written_to_any_more(tmp_path, full_at, monkeypatch):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(0)])
    fail_to_keep_and_cut(folder, full_at, monkeypatch)
    folder.keep([entry(2)])
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 0", "why 2"]
    again.close()


def test_all_of_a_file_that_can_not_be_cut_may_be_delivered(tmp_path, full_at, monkeypatch):
    folder = SpillFolder(str(tmp_path))
    (kept,) = folder.keep([entry(0)])
    fail_to_keep_and_cut(folder, full_at, monkeypatch)
    folder.delivered(kept)
    assert not list(tmp_path.glob("*.batches"))
    folder.keep([entry(2)])
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 2"]
    again.close()


def test_an_entry_that_memory_does_not_suffice_for_stands_in_front_of_no_other(tmp_path, monkeypatch):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(0)])
    encode = spill_folder._encode

    def fail(one):
        if one.reason == "why 2":
            raise MemoryError
        return encode(one)

    monkeypatch.setattr(spill_folder, "_encode", fail)
    with pytest.raises(MemoryError):
        folder.keep([entry(1), entry(2)])
    (kept,) = folder.keep([entry(3)])
    assert bytes(kept.read()) == entry(3).data
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 0", "why 3"]
    again.close()


def test_a_damaged_file_is_set_aside_on_a_full_disk_too(tmp_path, full_at):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(i) for i in range(3)])
    folder.close()
    (file,) = tmp_path.glob("*.batches")
    data = bytearray(file.read_bytes())
    data[data.index(bytes([1]) * 500)] ^= 0xFF
    file.write_bytes(data)
    full_at(20)  # the owner's process id still fits
    again = SpillFolder(str(tmp_path))
    full_at(resource.RLIM_INFINITY)
    assert [one.reason for one in again.entries] == ["why 0", "why 2"]
    assert file.with_suffix(".damaged").read_bytes() == data
    again.close()


@pytest.mark.parametrize("what", ["file", "folder"])
def test_nothing_counts_as_kept_before_it_is_synced(tmp_path, monkeypatch, what):

    synced = []
    fsync = os.fsync

    def note(descriptor):
        synced.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", note)
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(0)])
    assert what in synced
    folder.close()


def test_a_delivered_batch_is_noted_on_disk_before_another_is_sent(tmp_path, monkeypatch):
    """A lost note would send the batch again after a crash, and without its numbers twice."""
    folder = SpillFolder(str(tmp_path))
    first, second = folder.keep([entry(0), entry(1)])
    synced = []
    fsync = os.fsync

    def note(descriptor):
        synced.append(os.fstat(descriptor))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", note)
    folder.delivered(first)
    (marks,) = tmp_path.glob("*.delivered")
    assert [(one.st_ino, one.st_size) for one in synced] == [(marks.stat().st_ino, 8)]
    folder.delivered(second)
    folder.close()


@pytest.mark.parametrize("room", [0, 3, 11])
@pytest.mark.parametrize("noted", ["at the next", "at close"])
def test_a_mark_that_a_full_disk_refused_is_written_once_there_is_room(
    tmp_path, full_at, room, noted, caplog
):
    folder = SpillFolder(str(tmp_path))
    kept = folder.keep([entry(i) for i in range(5)])
    full_at(room)
    folder.delivered(kept[0])
    folder.delivered(kept[1])
    assert (
        "2 batches of 0000000001.batches that were delivered may be sent again" in caplog.text or room == 11
    )
    full_at(resource.RLIM_INFINITY)
    if noted == "at the next":
        folder.delivered(kept[2])
        folder.forget()  # as at its death
    else:
        folder.close()
    again = SpillFolder(str(tmp_path))
    left = [3, 4] if noted == "at the next" else [2, 3, 4]
    assert [one.reason for one in again.entries] == [f"why {i}" for i in left]
    again.close()
    assert "damaged" not in caplog.text


def test_a_start_on_a_full_disk_says_what_to_do(tmp_path, full_at):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(0)])
    folder.close()
    full_at(0)
    says = rf"spill.dir={tmp_path} can't be used: File too large \(.*owner.lock\)\. .* needs room"
    with pytest.raises(ConfigError, match=says):
        SpillFolder(str(tmp_path))
    full_at(resource.RLIM_INFINITY)
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 0"]
    again.close()


@pytest.mark.parametrize("name", ["0000000001.batches", "0000000002.delivered", "owner.lock"])
def test_a_start_with_a_file_that_can_not_be_read_says_which(tmp_path, name):
    folder = SpillFolder(str(tmp_path / "good"))
    folder.keep([entry(0)])
    folder.close()
    (tmp_path / "good/0000000001.batches").rename(tmp_path / "0000000002.batches")
    (tmp_path / name).mkdir()
    for _ in range(2):  # the folder is not in use after the first
        with pytest.raises(ConfigError, match=rf"can't be used: Is a directory \(.*{name}\)"):
            SpillFolder(str(tmp_path))


def test_a_delivered_file_that_can_not_be_removed_is_named_at_the_start(tmp_path, monkeypatch):
    (tmp_path / "0000000001.batches").write_bytes(spill_folder.MAGIC)

    def refuse(path, **_named):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(ConfigError, match=r"can't be used: Permission denied \(.*0000000001.batches\)"):
        SpillFolder(str(tmp_path))


def test_a_lock_that_the_file_system_does_not_have_is_no_other_producer(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(ConfigError, match="can't be used: No locks available"):
        SpillFolder(str(tmp_path))


@pytest.mark.parametrize("more", [False, True])
def test_a_delivered_file_that_could_not_be_removed_is_removed_later(tmp_path, monkeypatch, more):
    folder = SpillFolder(str(tmp_path))
    (one,) = folder.keep([entry(0)])

    def refuse(*_arguments, **_named):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        folder.delivered(one)
    if more:
        folder.keep([entry(1)])
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == (["why 1"] if more else [])
    again.close()
    assert more or sorted(path.name for path in tmp_path.iterdir()) == ["owner.lock"]


def test_halves_of_a_batch_without_a_mark_are_not_followed_by_the_whole(tmp_path, monkeypatch):
    folder = SpillFolder(str(tmp_path))
    folder.keep([entry(i) for i in range(2)])
    folder.close()
    folder = SpillFolder(str(tmp_path))

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        patched.setattr(spill_folder, "_sync_folder", lambda _path: None)
        halves = folder.replace(folder.entries[0], [entry(10), entry(11)])
    for half in halves:
        folder.delivered(half)
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 1"]
    again.close()


@pytest.mark.parametrize("room", [0, 20, 700, 1_500])
def test_halves_that_find_no_room_leave_the_whole(tmp_path, full_at, room):
    folder = SpillFolder(str(tmp_path))
    kept = folder.keep([entry(i) for i in range(3)])
    (file,) = tmp_path.glob("*.batches")
    full_at(file.stat().st_size + room)
    with pytest.raises(SpillError, match="cannot write"):
        folder.replace(kept[1], [entry(11, 600), entry(12, 600)])
    assert bytes(kept[1].read()) == entry(1).data
    full_at(resource.RLIM_INFINITY)
    folder.close()
    again = SpillFolder(str(tmp_path))
    assert [one.reason for one in again.entries] == ["why 0", "why 1", "why 2"]
    again.replace(again.entries[1], [entry(11, 600), entry(12, 600)])
    again.close()
    third = SpillFolder(str(tmp_path))
    assert [one.reason for one in third.entries] == ["why 0", "why 11", "why 12", "why 2"]
    third.close()


SCRIPT = """
import resource, signal, sys
sys.path[:0] = {paths!r}
from spark_kafka_native.kafka import ClientConfig, Producer, ProducerConfig

settings = dict(batch_records=1, linger_ms=0, delivery_timeout_ms=3_000)
producer = Producer(
    ClientConfig.from_properties({properties!r}), ProducerConfig(spill_dir={folder!r}, **settings)
)
producer.send("t", value=b"first", partition=0).result()
print("up", flush=True)
input()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, resource.RLIM_INFINITY))
sent = [producer.send("t", value=b"%d " % i + b"x" * 500, partition=0) for i in range(40)]
for i, delivery in enumerate(sent):
    error = delivery.exception()
    print(i, "kept" if error.spilled else "lost", flush=True)
    if i == 30:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
late = [producer.send("t", value=b"%d " % i + b"x" * 500, partition=0) for i in range(40, 50)]
for i, delivery in enumerate(late):
    print(40 + i, "kept" if delivery.exception().spilled else "lost", flush=True)
"""


def test_a_producer_whose_disk_is_full_for_a_while(tmp_path):
    with ProduceCluster() as cluster:
        cluster.create("t")
        script = SCRIPT.format(
            paths=[str(Path(__file__).parents[5])],
            properties=dict(properties(cluster.bootstrap_servers)),
            folder=str(tmp_path),
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        cluster[1].stop()
        told, _ = process.communicate("\n", timeout=60)
        assert process.returncode == 0
        kept = [line.split()[0] for line in told.splitlines() if line.endswith("kept")]
        assert 0 < len(kept) < 50
        cluster[1].start()
        client = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
        with Producer(client, ProducerConfig(spill_dir=str(tmp_path))) as producer:
            producer.flush(60)
        assert [value.split()[0].decode() for value in cluster.values(TP)] == ["first", *kept]


def test_new_numbers_that_find_no_room_do_not_keep_a_batch_from_being_sent(tmp_path, full_at, caplog):
    folder = SpillFolder(str(tmp_path))
    folder.keep([NewEntry(TP, None, 1, False, "why", batch(1).data)])
    folder.close()
    with ProduceCluster() as cluster:
        cluster.create("t")
        client = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
        full_at(20)  # the owner's process id still fits
        with Producer(client, ProducerConfig(spill_dir=str(tmp_path))) as producer:
            producer.flush(60)
            producer.send("t", value=b"next", partition=0).result(60)
            full_at(resource.RLIM_INFINITY)
        assert cluster.values(TP) == [b"1-0", b"next"]
    assert "t-0: may be written twice after this producer: cannot write" in caplog.text


def test_numbers_that_found_no_room_are_kept_when_there_is_some(tmp_path, full_at, caplog):
    """Else the next producer sent the batch under its older numbers once more, after an orderly close."""
    folder = SpillFolder(str(tmp_path))
    [entry] = folder.keep([NewEntry(TP, None, 1, False, "why", batch(1).data)])
    spilling = Spilling(folder)
    first = Batch.from_folder(entry, (0, 1))
    first.data = batch(2).data
    full_at(20)
    spilling.keep_numbers(first)
    assert "t-0: may be written twice after this producer" in caplog.text
    spilling.add(first, entry)
    [again] = spilling.backlogs[TP].batches
    assert (again.spilled, again.has_older_entry) == (entry, True)
    full_at(resource.RLIM_INFINITY)
    spilling.backlogs.clear()
    spilling.add(again, entry)  # before it was read from the folder once more
    [again] = spilling.backlogs[TP].batches
    assert (again.spilled, again.has_older_entry) == (entry, True)
    spilling.backlogs.clear()
    again.data = first.data
    spilling.add(again, entry)
    [last] = spilling.backlogs[TP].batches
    assert (bytes(last.spilled.read()), last.has_older_entry) == (bytes(first.data), False)
    folder.close()
    with_new = SpillFolder(str(tmp_path))
    assert [bytes(one.read()) for one in with_new.entries] == [bytes(first.data)]
    with_new.close()


@pytest.mark.parametrize("ends", ["closed", "closed twice while full", "forked"])
def test_numbers_that_found_no_room_are_kept_at_the_end_at_the_latest(tmp_path, full_at, ends):
    """The batch waits for its next try then."""
    folder = SpillFolder(str(tmp_path))
    [entry] = folder.keep([NewEntry(TP, None, 1, False, "why", batch(1).data)])
    spilling = Spilling(folder)
    given_up = Batch.from_folder(entry, (0, 1))
    given_up.data = memoryview(bytearray(entry.read()))
    given_up.sending.identity, given_up.sending.base_sequence = ProducerIdentity(77, 3), 5
    read_numbers(given_up)
    full_at(20)
    spilling.keep_numbers(given_up)
    spilling.add(given_up, entry)
    if ends == "closed twice while full":
        spilling.close()
    full_at(resource.RLIM_INFINITY)
    if ends == "forked":
        spilling.disown()
    spilling.close()
    after = SpillFolder(str(tmp_path))
    kept = [bytes(one.read()) for one in after.entries]
    assert kept == [bytes(given_up.data if ends == "closed" else batch(1).data)]
    after.close()


def test_a_descriptor_that_somebody_inherited_does_not_keep_the_folder(tmp_path):
    folder = SpillFolder(str(tmp_path))
    inherited = [os.dup(lock) for lock in folder._locks]
    try:
        folder.close()
        SpillFolder(str(tmp_path)).close()
    finally:
        for lock in inherited:
            os.close(lock)
