"""Records over a limit at the edges: as the producer ends, where memory ends, and without numbers."""

import random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from support.brokers.produce_cluster import LOST_ANSWER, LOST_REQUEST, refused
from support.producer.producing import TP, producing, wait_until
from support.producer.sending_batches import batch

from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import NO_TIMESTAMP_MS, Record, TimestampType, TopicPartition
from spark_kafka_native.kafka.producer.accumulating.batch import BatchEncoder
from spark_kafka_native.kafka.producer.accumulating.memory import BufferMemory
from spark_kafka_native.kafka.producer.delivery import Outcome, Waiters
from spark_kafka_native.kafka.producer.errors import DeliveryStatus, ProducerClosedError, RecordTooLargeError
from spark_kafka_native.kafka.producer.oversized import DeadLetterWriter, OverLimit, partitions_of
from spark_kafka_native.kafka.producer.spill_folder import SpillFolder

pytestmark = pytest.mark.timed(0.1)

DEAD = TopicPartition("dead", 0)
SKIP = {"over_limit": "skip"}
LETTERS = {"over_limit": "dead_letter", "dead_letter_topic": "dead"}
LARGE = random.Random(1).randbytes(5_000)
CHOICES = pytest.mark.parametrize("settings", [SKIP, LETTERS], ids=lambda one: one["over_limit"])


@pytest.fixture
def cluster(cluster):
    cluster.create("dead")
    cluster.limits = {"t": 2_000}
    return cluster


def test_a_producer_that_fails_for_good_keeps_a_record_or_its_dead_letter(cluster, tmp_path):
    """One answer refuses a record for its size, and for good the records behind it."""
    cluster.create("u")
    cluster.told_max_message_bytes = 1_000_000
    handed_back = []
    settings = {
        "spill_dir": str(tmp_path),
        "linger_ms": 3_600_000,
        "delivery_timeout_ms": 3_600_000,
        "batch_records": 100,
        **LETTERS,
    }
    with producing(cluster, on_error=lambda *told: handed_back.append(told), **settings) as producer:
        for topic in "tu":
            producer.send(topic, value=b"first", partition=0)
        producer.flush(60)
        cluster.script(TopicPartition("u", 0), refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        large = producer.send("t", value=LARGE, partition=0)
        producer.send("u", value=b"second", partition=0)
        error = large.exception(60)
    assert error.spilled
    assert "its dead letter failed, too" in str(error)
    assert producer.stats().failed_records == 2
    assert sorted(where.topic for where, *_ in handed_back) == ["dead", "u"]
    folder = SpillFolder(str(tmp_path))
    assert sorted(entry.topic_partition.topic for entry in folder.entries) == ["dead", "u"]
    folder.close()
    with producing(cluster, spill_dir=str(tmp_path), **LETTERS) as producer:
        producer.flush(60)
    assert (cluster.values(TP), cluster.values(DEAD)) == ([b"first"], [LARGE])


@CHOICES
def test_a_closed_producer_takes_no_record_over_the_limit_either(cluster, settings):
    with producing(cluster, **settings) as producer:
        producer.send("t", value=b"x").result(60)
    with pytest.raises(ProducerClosedError):
        producer.send("t", value=LARGE)
    assert producer.stats().skipped_records == 0


@pytest.mark.parametrize("given", [{}, {"timestamp_ms": 1}, {"headers": {"name" * 10: b"x"}}])
def test_a_record_is_sent_or_set_apart_by_its_real_size(cluster, given):
    """The memory that is reserved for a single record is an estimate, a few bytes too high."""
    cluster.limits = {}
    with producing(cluster, buffer_memory=1_000, **SKIP) as producer:
        ends = [
            producer.send("t", value=b"x" * size, partition=0, **given).exception(60) is None
            for size in range(700, 1_010)
        ]
        assert producer.stats().buffered_bytes == 0
    assert ends == [True] * sum(ends) + [False] * (len(ends) - sum(ends))
    with producing(cluster, buffer_memory=1_000) as producer:
        assert producer.send("t", value=b"x" * (699 + sum(ends)), **given).result(60)
        with pytest.raises(RecordTooLargeError, match=r"takes 1001 bytes and buffer\.memory allows 1000"):
            producer.send("t", value=b"x" * (700 + sum(ends)), **given)


@CHOICES
def test_the_rest_of_a_refused_batch_is_not_overtaken_without_numbers_and_retries(cluster, settings):
    cluster.told_max_message_bytes = 1_000_000
    values = [b"%d" % i if i % 7 else LARGE for i in range(100)]
    config = {"acks": "1", "enable_idempotence": False, "retries": 0, "batch_records": 5, "linger_ms": 1_000}
    with producing(cluster, **config, **settings) as producer:
        for value in values:
            producer.send("t", value=value, partition=0)
        producer.flush(60)
    assert cluster.values(TP) == [value for value in values if len(value) < 10]


def test_a_dead_letter_behind_one_that_is_given_up_is_looked_at_at_once(cluster):
    """No other thread wakes the sender: a flush that began before has hurried the batches of that time."""
    cluster.told_max_message_bytes = 1_000_000
    with producing(cluster, batch_records=100, delivery_timeout_ms=3_600_000, **LETTERS) as producer:
        producer.send("t", value=b"x", partition=0).result(60)
        cluster.logs[DEAD].leader = -1
        first = producer.send("t", value=LARGE, partition=0)
        known = producer._router
        wait_until(lambda: known.snapshot.topics["dead"].partitions[0].leader is None)
        second = producer.send("t", value=LARGE, partition=0)
        wait_until(lambda: producer._buffers["dead"].waiting_since is not None)
        with cluster.forbid("dead"):
            wait_until(lambda: first.done() and second.done())
    assert "TOPIC_AUTHORIZATION_FAILED" in str(second.exception(0))


def test_dead_letters_of_one_batch_tell_their_own_offsets(cluster):
    rows = pa.record_batch({"value": [LARGE + b"%d" % i for i in range(5)]})
    with producing(
        cluster, batch_records=5, linger_ms=3_600_000, delivery_timeout_ms=3_600_000, **LETTERS
    ) as producer:
        errors = producer.send_columns(rows, "t", 0).exceptions(60)
    assert [error.offset for error in errors] == [0, 1, 2, 3, 4]
    assert len(cluster.batches(DEAD)) == 1


@CHOICES
def test_a_record_that_may_be_in_the_log_is_said_to_be(cluster, settings):
    """The limit was lowered after it was written, and the answer to that was lost."""
    cluster.script(TP, LOST_ANSWER, refused(ErrorCode.MESSAGE_TOO_LARGE))
    with producing(cluster, **settings) as producer:
        error = producer.send("t", value=b"x", partition=0).exception(60)
    assert (error.by_choice, error.status) == (True, DeliveryStatus.POSSIBLY_PERSISTED)
    assert "1 record possibly written" in str(error)


@pytest.mark.parametrize("place", [1, 4, 6])
@pytest.mark.parametrize("settings", [{}, SKIP, LETTERS], ids=["fail", "skip", "dead_letter"])
def test_a_record_over_the_limit_costs_no_other_one_where_a_request_was_lost(cluster, settings, place):
    """The batch may be in the log as a whole, until one of its parts is."""
    cluster.told_max_message_bytes = 1_000_000
    values = [b"%d" % i if i != place else LARGE for i in range(8)]
    with producing(cluster, batch_records=8, linger_ms=60_000, **settings) as producer:
        producer.send("t", value=b"first", partition=0)
        producer.flush(60)
        cluster.script(TP, LOST_REQUEST)
        deliveries = [producer.send("t", value=value, partition=0) for value in values]
        producer.flush(60)
        assert [d.exception(0) is None for d in deliveries] == [i != place for i in range(8)]
    assert cluster.values(TP) == [b"first", *(value for value in values if value is not LARGE)]


def letter_writer(max_bytes, **config):
    config = ProducerConfig(**config)
    buffers = {"dead": SimpleNamespace(limits=SimpleNamespace(max_bytes=max_bytes))}
    return DeadLetterWriter("dead", config, BatchEncoder(config, lambda: 1_234), buffers)


def large_record(timestamp_ms=NO_TIMESTAMP_MS):
    return Record("t", 0, -1, None, LARGE, (), timestamp_ms, TimestampType.CREATE_TIME)


@pytest.mark.parametrize(("given", "expected"), [(NO_TIMESTAMP_MS, 1_234), (0, 0), (5, 5)])
def test_a_dead_letter_has_the_time_of_its_record_or_that_of_now(given, expected):
    letter = letter_writer(1_000_000).write(large_record(given), ValueError("why"))
    assert letter.timestamp_ms.tolist() == [expected]


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(
    ("max_bytes", "settings", "limit"),
    [
        (2_000, {}, 2_000),
        (1_000_000, {"max_request_size": 2_000}, 2_000),
        (1_000_000, {"buffer_memory": 2_000}, 2_000),
        (1_000_000, {"buffer_memory": 2_000, "max_request_size": 3_000}, 2_000),
        (1_000_000, {"buffer_memory": 3_000, "max_request_size": 2_000}, 2_000),
        (1_500, {"buffer_memory": 3_000, "max_request_size": 2_000}, 1_500),
    ],
)
def test_the_smallest_of_all_limits_counts_for_a_dead_letter(max_bytes, settings, limit, compression):
    """One that is larger than the buffer memory would wait for room for ever."""
    writer = letter_writer(max_bytes, compression_type=compression, **settings)
    (written,) = writer.write(large_record(), ValueError("why")).records()
    assert limit // 2 < len(written.value) < limit
    assert LARGE.startswith(written.value)


def test_a_record_without_a_partition_leaves_a_dead_letter_without_one():
    assert partitions_of(np.array([-1, 0, 2, 3, 7], np.int32), 3).tolist() == [-1, 0, 2, 0, 1]


def test_a_record_that_has_ended_does_not_end_again_with_its_dead_letter():
    """Its memory would be given back twice, and a caller that waits for its batch would wait for ever."""
    blocks, ends, memory = [], [], BufferMemory(10_000_000, 10)
    buffer = SimpleNamespace(
        targets=SimpleNamespace(count=1),
        limits=SimpleNamespace(max_bytes=1_000_000),
        append_columns=lambda *given, **_how: blocks.append(given[3].block),
    )
    completion = SimpleNamespace(waiters=Waiters(), ended_by_choice=lambda one, _error: ends.append(one))
    config = ProducerConfig(**LETTERS)
    stats = SimpleNamespace(metrics=SimpleNamespace(count=lambda _metric: None))
    over = OverLimit(config, {"dead": buffer}, BatchEncoder(config), memory, completion, stats)
    ended, waiting = batch(1), batch(2)
    for one in (ended, waiting):
        over.write_letter_of(one, ValueError("too large"))
    ended.ended = True
    for block in blocks:
        block.report(np.zeros(1, np.int64), 0, Outcome(topic_partition=DEAD, status=DeliveryStatus.PERSISTED))
    assert ends == [waiting]
    assert memory.used == (0, 0)
