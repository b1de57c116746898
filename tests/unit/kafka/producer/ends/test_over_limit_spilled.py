"""Records over a limit, their dead letters and the spill folder: nothing of it is lost or doubled."""

import random
from contextlib import closing

import pytest
from support.brokers.produce_cluster import LOST_ANSWER, LOST_REQUEST, ProduceCluster, refused
from support.hooks.fresh_seeds import try_seeds
from support.producer.producing import TP, buffered, producing, wait_until

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.spill_folder import SpillError, SpillFolder

pytestmark = pytest.mark.timed(0.1)

DEAD = TopicPartition("dead", 0)
SKIP = {"over_limit": "skip"}
LETTERS = {"over_limit": "dead_letter", "dead_letter_topic": "dead"}
LARGE = random.Random(1).randbytes(5_000)
DENIED = refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@pytest.fixture
def cluster(cluster):
    prepare(cluster)
    return cluster


def prepare(cluster):
    cluster.create("dead")
    cluster.told_max_message_bytes = 1_000_000
    cluster.limits = {"t": 2_000}


def is_empty(folder):
    return sorted(path.name for path in folder.iterdir()) == ["owner.lock"]


def leave(cluster, folder, *values):
    """A producer ends while the leader takes nothing."""
    cluster.script(TP, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100_000)
    with producing(cluster, spill_dir=str(folder), close_ms=1) as producer:
        deliveries = [producer.send("t", value=value, partition=0) for value in values]
        wait_until(lambda: cluster.batches(TP))
    assert all(delivery.exception(0).spilled for delivery in deliveries)
    cluster.scripts.clear()


@pytest.mark.parametrize("settings", [SKIP, LETTERS], ids=lambda one: one["over_limit"])
def test_what_a_producer_left_is_set_apart_by_the_next(cluster, tmp_path, settings):
    leave(cluster, tmp_path, b"1", LARGE, b"2")
    with producing(cluster, spill_dir=str(tmp_path), **settings) as producer:
        producer.flush(60)
        producer.send("t", value=b"3", partition=0).result(60)
        wait_until(lambda: is_empty(tmp_path))
        stats = producer.stats()
        told = (stats.skipped_records, stats.dead_lettered_records, stats.failed_records)
        assert told == ((1, 0, 0) if settings is SKIP else (0, 1, 0))
    assert cluster.values(TP) == [b"1", b"2", b"3"]
    assert cluster.values(DEAD) == ([] if settings is SKIP else [LARGE])


@pytest.mark.parametrize("settings", [SKIP, LETTERS], ids=lambda one: one["over_limit"])
def test_a_living_producer_sets_apart_what_it_has_spilled(cluster, tmp_path, settings):
    config = {"spill_dir": str(tmp_path), "delivery_timeout_ms": 300, **settings}
    with producing(cluster, **config) as producer:
        producer.send("t", value=b"0", partition=0).result(60)
        cluster[1].stop()
        deliveries = [producer.send("t", value=value, partition=0) for value in (LARGE, b"1", LARGE, b"2")]
        assert all(delivery.exception(60).spilled for delivery in deliveries)
        cluster[1].start()
        wait_until(lambda: is_empty(tmp_path))
        assert producer.send("t", value=b"3", partition=0).result(60).offset == 3
    assert cluster.values(TP) == [b"0", b"1", b"2", b"3"]
    assert cluster.values(DEAD) == ([] if settings is SKIP else [LARGE] * 2)


def test_a_record_of_the_folder_that_is_refused_is_not_written_later_without_a_word(
    cluster, tmp_path, caplog
):
    """Holding it in its place would hold up the partition for good."""
    leave(cluster, tmp_path, b"1", LARGE, b"2")
    failed = []
    with producing(cluster, spill_dir=str(tmp_path), on_error=lambda *one: failed.append(one)) as producer:
        producer.flush(60)
        producer.send("t", value=b"3", partition=0).result(60)
    says = "only the next producer sends it again, behind newer records of the partition; kept in the spill"
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == [str(failed[0][2])]
    assert says in str(failed[0][2])
    cluster.limits = {}
    with producing(cluster, spill_dir=str(tmp_path)) as producer:
        producer.flush(60)
    assert cluster.values(TP) == [b"1", b"2", b"3", LARGE]
    assert is_empty(tmp_path)


def test_a_dead_letter_that_was_spilled_is_sent_once(cluster, tmp_path):
    cluster.script(DEAD, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100_000)
    with producing(cluster, spill_dir=str(tmp_path), close_ms=1, **LETTERS) as producer:
        delivery = producer.send("t", value=LARGE, partition=0)
        wait_until(lambda: cluster.batches(DEAD))
    error = delivery.exception(0)
    assert error.spilled
    assert not error.by_choice
    assert "its dead letter failed, too" in str(error)
    cluster.scripts.clear()
    with producing(cluster, spill_dir=str(tmp_path), **LETTERS) as producer:
        producer.flush(60)
    assert is_empty(tmp_path)
    assert (cluster.values(TP), cluster.values(DEAD)) == ([], [LARGE])


def test_a_dead_letter_takes_its_records_place_in_the_folder_before_it_is_sent(cluster, tmp_path):
    """Its answer is lost with its producer: the next one sends it with the same numbers."""
    leave(cluster, tmp_path, LARGE)
    cluster.script(DEAD, *[LOST_ANSWER] * 100_000)
    with producing(cluster, spill_dir=str(tmp_path), close_ms=1, **LETTERS):
        wait_until(lambda: len(cluster.values(DEAD)) == 1)
    cluster.scripts.clear()
    folder = SpillFolder(str(tmp_path))
    assert [entry.topic_partition for entry in folder.entries] == [DEAD]
    folder.close()
    with producing(cluster, spill_dir=str(tmp_path), **LETTERS) as producer:
        producer.flush(60)
    assert is_empty(tmp_path)
    assert (cluster.values(TP), cluster.values(DEAD)) == ([], [LARGE])


def test_a_dead_letter_does_not_overtake_one_that_may_be_in_the_log(cluster, tmp_path):
    """The broker would not recognise that one again."""
    leave(cluster, tmp_path, b"0" + LARGE, b"1" + LARGE)
    hold = [refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100_000
    cluster.script(TP, refused(ErrorCode.MESSAGE_TOO_LARGE), *hold)
    cluster.script(DEAD, LOST_ANSWER, DENIED)
    client = {"retry.backoff.ms": "20", "retry.backoff.max.ms": "3000"}  # it is tried again late
    with producing(cluster, client=client, spill_dir=str(tmp_path), close_ms=60_000, **LETTERS) as producer:
        wait_until(lambda: DEAD in producer._sender.loop.spilling.backlogs)
        cluster.scripts[TP].clear()
        wait_until(lambda: is_empty(tmp_path))
    assert cluster.values(DEAD) == [b"0" + LARGE, b"1" + LARGE]


@pytest.mark.parametrize("sender", ["the same producer", "the next one"])
def test_a_dead_letter_that_the_folder_cannot_take_leaves_the_record_there(
    cluster, tmp_path, monkeypatch, sender
):
    leave(cluster, tmp_path, LARGE)
    full = [True]
    replace = SpillFolder.replace

    def refuse(folder, batch, entries):
        if full[0] and entries[0].topic_partition == DEAD:
            raise SpillError("no space left on device")
        return replace(folder, batch, entries)

    monkeypatch.setattr(SpillFolder, "replace", refuse)
    with producing(cluster, spill_dir=str(tmp_path), close_ms=1, **LETTERS) as producer:
        producer.flush(60)
        assert cluster.values(DEAD) == []
        if sender == "the same producer":
            full[0] = False
            wait_until(lambda: is_empty(tmp_path))
    full[0] = False
    with producing(cluster, spill_dir=str(tmp_path), **LETTERS) as producer:
        producer.flush(60)
    assert is_empty(tmp_path)
    assert cluster.values(DEAD) == [LARGE]


@pytest.mark.parametrize("batch_size", [10_000, 1_000_000])
@pytest.mark.parametrize("place", ["once_encoded", "by_the_broker"])
def test_what_is_found_as_the_producer_ends_is_kept(cluster, tmp_path, place, batch_size):
    """The time to close is over before the record was looked at: its dead letter goes to the folder, also
    one that is small enough to wait for others."""
    compressed = {"compression_type": "gzip"} if place == "once_encoded" else {}
    cluster.told_max_message_bytes = None if compressed else 1_000_000
    config = {
        "spill_dir": str(tmp_path),
        "linger_ms": 3_600_000,
        "delivery_timeout_ms": 3_600_000,
        "batch_records": 100,
        "batch_size": batch_size,
        **compressed,
    }
    with producing(cluster, close_ms=0, **config, **LETTERS) as producer:
        deliveries = [producer.send("t", value=value, partition=0) for value in (b"1", LARGE, b"2")]
    assert all(delivery.exception(0).spilled for delivery in deliveries)
    assert buffered(producer) == (0, 0)
    with closing(SpillFolder(str(tmp_path))) as folder:
        found = [entry.topic_partition for entry in folder.entries]
    assert sorted(found) == ([DEAD, TP, TP] if place == "once_encoded" else [TP])
    with producing(cluster, **config, **LETTERS) as producer:
        producer.flush(60)
    assert is_empty(tmp_path)
    assert (cluster.values(TP), cluster.values(DEAD)) == ([b"1", b"2"], [LARGE])


FAULTS = (LOST_ANSWER, LOST_REQUEST, refused(ErrorCode.NOT_ENOUGH_REPLICAS), DENIED)


def send_some(cluster, rng, folder, start):
    """A producer that may end before its records do. The number of the next record."""
    for where in (TP, DEAD):
        cluster.scripts[where].clear()
        cluster.script(where, *rng.choices(FAULTS, k=rng.randint(0, 8)))
    config = {"delivery_timeout_ms": rng.choice([300, 3_000]), "retries": rng.choice([1, 3, 100])}
    close_ms = rng.choice([1, 50, 300, 2_000])
    with producing(
        cluster,
        spill_dir=str(folder),
        batch_records=rng.choice([1, 3, 10]),
        close_ms=close_ms,
        **config,
        **LETTERS,
    ) as producer:
        for number in range(start, start + rng.randint(3, 20)):
            producer.send("t", value=b"%04d" % number + (LARGE if rng.random() < 0.2 else b""), partition=0)
        return number + 1


def test_whatever_happens_each_record_is_in_one_of_the_topics_once(tmp_path):
    def check(seed: int) -> None:
        with ProduceCluster() as cluster:
            cluster.create("t")
            prepare(cluster)
            check_each_is_there_once(cluster, tmp_path / f"{seed}", random.Random(seed))

    try_seeds(check, "over the limit, spilled", range(12))


def check_each_is_there_once(cluster, tmp_path, rng):
    sent = 0
    for _ in range(rng.randint(2, 4)):
        sent = send_some(cluster, rng, tmp_path, sent)
    cluster.scripts.clear()
    for _ in range(2):
        with producing(cluster, spill_dir=str(tmp_path), close_ms=60_000, **LETTERS) as last:
            last.flush(60)
    assert is_empty(tmp_path)
    written, letters = cluster.values(TP), cluster.values(DEAD)
    assert written == sorted(written)
    assert sorted(int(value[:4]) for value in written + letters) == list(range(sent))
    assert {len(value) for value in written} <= {4}
    assert {len(value) for value in letters} <= {5_004}
