"""What a producer says it has done."""

import itertools

from support.interrupts.signal_steps import run_at

from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.observe import catalogue as metric
from spark_kafka_native.kafka.producer.errors import DeliveryError, DeliveryStatus
from spark_kafka_native.kafka.producer.stats import StatsRecorder

TP = TopicPartition("t", 0)


def test_offsets_are_the_first_and_the_last_whatever_the_order():
    stats = StatsRecorder()
    stats.delivered(TP, 5, 100, 20)
    stats.delivered(TP, 3, 50, 7)
    stats.delivered(TP, 2, 10, None)
    stats.delivered(TopicPartition("t", 1), 1, 1, None)
    told = stats.snapshot(4, 40)
    assert (told.records, told.bytes, told.batches) == (11, 161, 4)
    assert (told.buffered_records, told.buffered_bytes) == (4, 40)
    one = told.partitions[TP]
    assert (one.records, one.bytes, one.first_offset, one.last_offset) == (10, 160, 7, 24)
    other = told.partitions[TopicPartition("t", 1)]
    assert (other.first_offset, other.last_offset) == (None, None)
    assert (told.batch_records.max, told.batch_bytes.max) == (5, 100)


def test_what_is_delivered_is_counted_by_topic():
    stats = StatsRecorder()
    stats.delivered(TP, 5, 100, 20)
    stats.delivered(TopicPartition("t", 1), 3, 50, None)
    stats.delivered(TopicPartition("u", 0), 1, 7, 0)
    assert [tuple(one) for one in stats.observed()] == [
        (metric.PRODUCED_RECORDS, 8, ("t",)),
        (metric.PRODUCED_BYTES, 150, ("t",)),
        (metric.PRODUCED_BATCHES, 2, ("t",)),
        (metric.PRODUCED_RECORDS, 1, ("u",)),
        (metric.PRODUCED_BYTES, 7, ("u",)),
        (metric.PRODUCED_BATCHES, 1, ("u",)),
    ]


def test_offset_zero_is_an_offset():
    stats = StatsRecorder()
    stats.delivered(TP, 1, 10, 0)
    stats.delivered(TP, 1, 10, 9)
    one = stats.snapshot(0, 0).partitions[TP]
    assert (one.first_offset, one.last_offset) == (0, 9)


def test_failures_are_counted_by_batch_and_by_record():
    stats = StatsRecorder()
    for records, reason in ((3, "first"), (4, "second")):
        stats.failed(DeliveryError(TP, records, DeliveryStatus.NOT_PERSISTED, reason, True))
    stats.sent(retries=2)
    told = stats.snapshot(0, 0)
    assert (told.errors, told.failed_records, told.requests, told.retries) == (2, 7, 1, 2)
    assert "second" in told.last_error


def test_a_signal_handler_may_deliver_to_another_partition_at_any_step():
    def recorder():
        stats = StatsRecorder()
        stats.delivered(TP, 1, 10, 0)
        return stats

    for step in itertools.count():
        stats = recorder()
        deliver = lambda stats=stats: stats.delivered(TopicPartition("t", 1), 1, 10, 0)  # noqa: E731
        told = []
        if not run_at(step, deliver, lambda stats=stats, told=told: told.append(stats.snapshot(0, 0))):
            break
        parts = told[0].partitions.values()
        assert (told[0].records, told[0].bytes) == (len(parts), 10 * len(parts)), step
        assert stats.snapshot(0, 0).records == 2
    assert step > 10
