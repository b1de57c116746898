"""What a producer says it has done."""

from spark_kafka_native.kafka.model import TopicPartition
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
