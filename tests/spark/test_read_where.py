"""Where a read starts and ends: timestamps, the last N, a group's offsets."""

from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer, TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.spark]

START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def times(peer, kafka):
    """100 records of one millisecond each on two partitions; partition 2 is empty."""
    topic = peer.create(kafka, "read-where-times", 3)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(100, 2))
    return topic


def spans(peer, frame):
    return {partition: (seen[0], seen[-1]) for partition, seen in peer.offsets(frame).items()}


def test_a_time_on_both_sides(peer, spark, kafka, times):
    frame = peer.read(
        spark,
        kafka,
        times,
        startingTimestamp=START_MS + 10,
        endingTimestamp=datetime.fromtimestamp((START_MS + 20) / 1000, UTC).isoformat(),
        startingOffsetsByTimestampStrategy="latest",
    )
    assert spans(peer, frame) == {0: (5, 9), 1: (5, 9)}


def test_a_time_for_each_partition(peer, spark, kafka, times):
    frame = peer.read(
        spark,
        kafka,
        times,
        startingOffsetsByTimestamp=f'{{"{times}":{{"0":{START_MS + 90},"1":{START_MS + 51},"2":0}}}}',
        endingOffsetsByTimestamp=f'{{"{times}":{{"0":{START_MS + 999},"1":{START_MS + 61},"2":9}}}}',
        startingOffsetsByTimestampStrategy="latest",
    )
    assert spans(peer, frame) == {0: (45, 49), 1: (25, 29)}


def test_no_record_at_or_after_a_time(peer, spark, kafka, times):
    with pytest.raises(Exception) as caught:
        peer.read(spark, kafka, times, startingTimestamp=START_MS + 99).count()
    message = peer.message_of(caught)
    expected = f"No offset matched from request of topic-partition {times}-0 and timestamp {START_MS + 99}."
    assert expected in message
    latest = peer.read(
        spark, kafka, times, startingTimestamp=START_MS + 99, startingOffsetsByTimestampStrategy="LATEST"
    )
    assert spans(peer, latest) == {1: (49, 49)}


def test_times_must_list_exactly_the_partitions(peer, spark, kafka, times):
    with pytest.raises(Exception) as caught:
        peer.read(spark, kafka, times, startingOffsetsByTimestamp=f'{{"{times}":{{"0":1}}}}').count()
    assert (
        "[KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED] Partitions specified for Kafka timestamp based "
        "start offsets" in (peer.message_of(caught))
    )


def test_a_relative_time(peer, spark, kafka, topic):
    peer.create(kafka, topic)
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    ages_s = (7200, 3700, 3500, 60)
    peer.write(kafka.bootstrap_servers, topic, [(0, None, b"v", now_ms - age * 1000, []) for age in ages_s])
    assert spans(peer, peer.read(spark, kafka, topic, startingTimestamp="-1h")) == {0: (2, 3)}
    assert spans(peer, peer.read(spark, kafka, topic, endingTimestamp="-61 minutes")) == {0: (0, 1)}


def test_the_last_n_of_each_partition(peer, spark, kafka, times):
    assert spans(peer, peer.read(spark, kafka, times, startingOffsets="latest-7")) == {
        0: (43, 49),
        1: (43, 49),
    }
    assert spans(peer, peer.read(spark, kafka, times, startingOffsets="latest-1000")) == {
        0: (0, 49),
        1: (0, 49),
    }


def test_the_offsets_of_a_group(peer, spark, kafka, times, topic):
    group = f"group-{topic}"
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(times, 0, 40)], asynchronous=False)
    consumer.close()
    options = {"startingOffsets": "committed", "kafka.group.id": group}
    assert spans(peer, peer.read(spark, kafka, times, **options)) == {0: (40, 49), 1: (0, 49)}
    latest = peer.read(spark, kafka, times, **options, committedOffsetsFallback="latest")
    assert spans(peer, latest) == {0: (40, 49)}
    with pytest.raises(Exception) as caught:
        peer.read(spark, kafka, times, **options, committedOffsetsFallback="error").count()
    assert f"Group {group} has committed no offset for [{times}-1, {times}-2]" in peer.message_of(caught)


def test_a_start_after_the_end_is_named(peer, spark, kafka, times):
    start = f'{{"{times}":{{"0":51,"1":0,"2":0}}}}'
    with pytest.raises(Exception) as caught:
        peer.read(spark, kafka, times, startingOffsets=start).count()
    message = peer.message_of(caught)
    assert (
        "[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] The resolved start offset 51 is greater than"
        in message
    )
    assert f"the resolved end offset 50 for topic {times} partition 0." in message


def test_an_end_time_that_comes_later_holds_for_a_frame_that_is_used_again(peer, spark, kafka, topic):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10))
    end_ms = START_MS + 15
    by_partition = f'{{"{topic}":{{"0":{end_ms}}}}}'
    frames = [
        peer.read(spark, kafka, topic, endingTimestamp=end_ms),
        peer.read(spark, kafka, topic, endingOffsetsByTimestamp=by_partition),
        peer.read(spark, kafka, topic, endingTimestamp=end_ms, maxRecordsPerPartition=3),
        peer.read(spark, kafka, topic, endingTimestamp=end_ms, minPartitions=4, maxPartitions=2),
    ]
    assert [frame.count() for frame in frames] == [10] * 4
    # As long as none is late, the end stays open.
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(2, start=10))
    assert [frame.count() for frame in frames] == [12] * 4
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(8, start=12))
    assert [sorted(peer.offsets(frame)[0]) for frame in frames] == [list(range(15))] * 4
