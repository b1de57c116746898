"""Offsets that are gone, transactions, topics that are not what they were."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.model import TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.spark]

LOSS = "Some data may have been lost because they are not available in Kafka any more"


@pytest.fixture
def admin(kafka):
    router = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))
    yield Admin(router)
    router.close()


def test_deleted_records_fail_or_are_left_out(peer, spark, kafka, topic, admin):
    peer.create(kafka, topic, 2)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(100, 2))
    admin.delete_records({TopicPartition(topic, 0): 20})
    start = f'{{"{topic}":{{"0":5,"1":0}}}}'
    with pytest.raises(Exception) as caught:
        peer.read(spark, kafka, topic, startingOffsets=start).count()
    message = peer.message_of(caught)
    assert "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] " + LOSS in message
    assert (
        f"Could not read records in offset [5, 50) for topic partition {topic}-0 with consumer group"
        in message
    )
    assert "The log has [20, 50)." in message
    for options in ({}, {"minPartitions": 9}, {"maxPartitions": 1}):
        frame = peer.read(spark, kafka, topic, startingOffsets=start, failOnDataLoss="false", **options)
        found = {partition: sorted(seen) for partition, seen in peer.offsets(frame).items()}
        assert found == {0: list(range(20, 50)), 1: list(range(50))}
    # Earliest is wherever the log starts: no loss.
    assert peer.read(spark, kafka, topic).count() == 80


def test_records_deleted_between_planning_and_reading(peer, spark, kafka, topic, admin):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(100))
    whole = peer.read(spark, kafka, topic)
    split = peer.read(spark, kafka, topic, minPartitions=4)
    lenient = peer.read(spark, kafka, topic, minPartitions=4, failOnDataLoss="false")
    zero = f'{{"{topic}":{{"0":0}}}}'
    from_zero = peer.read(spark, kafka, topic, minPartitions=4, startingOffsets=zero)
    assert [frame.count() for frame in (whole, split, lenient, from_zero)] == [100] * 4
    admin.delete_records({TopicPartition(topic, 0): 60})
    assert peer.offsets(whole) == {0: list(range(60, 100))}
    # Earliest is wherever the log starts by now, whichever way it is split.
    for frame in (split, lenient):
        assert sorted(peer.offsets(frame)[0]) == list(range(60, 100))
    with pytest.raises(Exception, match=r"Could not read records in offset \[(0, 25|25, 50)\)"):
        from_zero.count()


def test_an_end_beyond_the_log_fails(peer, spark, kafka, topic):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10))
    end = f'{{"{topic}":{{"0":15}}}}'
    with pytest.raises(Exception) as caught:
        peer.read(spark, kafka, topic, endingOffsets=end).count()
    assert "Could not read records in offset [0, 15)" in peer.message_of(caught)
    assert "The log has [0, 10)." in peer.message_of(caught)
    frame = peer.read(spark, kafka, topic, endingOffsets=end, failOnDataLoss="false")
    assert frame.count() == 10
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10, start=10))
    assert peer.offsets(frame) == {0: list(range(15))}


def test_a_topic_that_was_deleted_and_created_again(peer, spark, kafka, topic, admin):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(20))
    fixed = f'{{"{topic}":{{"0":10}}}}'
    strict = peer.read(spark, kafka, topic, startingOffsets=fixed)
    lenient = peer.read(spark, kafka, topic, startingOffsets=fixed, failOnDataLoss="false")
    open_ended = peer.read(spark, kafka, topic)
    strict_split = peer.read(spark, kafka, topic, maxRecordsPerPartition=8)
    open_ended_split = peer.read(spark, kafka, topic, maxRecordsPerPartition=8, failOnDataLoss="false")
    losing = {"failOnDataLoss": "false", "startingOffsets": fixed}
    end = {"endingOffsets": f'{{"{topic}":{{"0":18}}}}'}
    lenient_split = peer.read(spark, kafka, topic, maxRecordsPerPartition=4, **losing)
    lenient_fixed = peer.read(spark, kafka, topic, **losing, **end)
    lenient_fixed_split = peer.read(spark, kafka, topic, minPartitions=3, maxPartitions=2, **losing, **end)
    lenient_until = peer.read(spark, kafka, topic, failOnDataLoss="false", **end)
    assert [frame.count() for frame in (strict, lenient, lenient_split)] == [10] * 3
    assert [frame.count() for frame in (open_ended, open_ended_split, strict_split)] == [20] * 3
    assert [frame.count() for frame in (lenient_fixed, lenient_fixed_split, lenient_until)] == [8, 8, 18]
    admin.delete_topics([topic])
    peer.create(kafka, topic)
    # More records than before: only the topic id differs.
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(30))
    for frame in (strict, strict_split):
        with pytest.raises(Exception) as caught:
            frame.count()
        assert "KAFKA_DATA_LOSS" in peer.message_of(caught)
        assert "The topic was deleted and created again" in peer.message_of(caught)
    # An offset of the former topic says nothing about this one, a fixed end not either.
    assert peer.offsets(lenient) == {0: list(range(30))}
    assert sorted(peer.offsets(lenient_split)[0]) == list(range(30))
    assert [frame.count() for frame in (lenient_fixed, lenient_fixed_split, lenient_until)] == [0] * 3
    assert open_ended.count() == 30
    assert sorted(peer.offsets(open_ended_split)[0]) == list(range(30))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_workers_that_know_the_former_topic_read_the_one_that_was_planned(
    peer, spark, kafka, topic, admin, fail
):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(20))
    # As many tasks as workers, so that each of them knows the topic.
    assert peer.read(spark, kafka, topic, minPartitions=4).count() == 20
    admin.delete_topics([topic])
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(20, start=100))

    def values(**options):
        frame = peer.read(spark, kafka, topic, "value string", failOnDataLoss=fail, **options)
        return sorted(int(row.value[1:]) for row in frame.collect())

    assert values(endingOffsets=f'{{"{topic}":{{"0":10}}}}') == list(range(100, 110))
    assert values(startingOffsets=f'{{"{topic}":{{"0":15}}}}') == list(range(115, 120))
    assert values(startingOffsets="latest-5") == list(range(115, 120))
    assert values() == list(range(100, 120))


@pytest.mark.parametrize("count", [4, 10])
def test_a_topic_that_was_created_again_and_is_no_longer_than_the_start(
    peer, spark, kafka, topic, admin, count
):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(20))
    start = {"startingOffsets": f'{{"{topic}":{{"0":10}}}}'}
    strict = peer.read(spark, kafka, topic, **start)
    lenient = peer.read(spark, kafka, topic, failOnDataLoss="false", **start)
    strict_split = peer.read(spark, kafka, topic, minPartitions=4)
    split = peer.read(spark, kafka, topic, minPartitions=4, failOnDataLoss="false")
    assert [frame.count() for frame in (strict, lenient, strict_split, split)] == [10, 10, 20, 20]
    admin.delete_topics([topic])
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(count))
    for frame in (strict, strict_split):
        with pytest.raises(Exception, match="The topic was deleted and created again"):
            frame.count()
    assert peer.offsets(lenient) == {0: list(range(count))}
    assert peer.offsets(split) == {0: list(range(count))}


def test_a_topic_that_was_deleted(peer, spark, kafka, topic, admin):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(20))
    options = {"kafka.default.api.timeout.ms": "3000"}
    strict = peer.read(spark, kafka, topic, **options)
    lenient = peer.read(spark, kafka, topic, failOnDataLoss="false", **options)
    assert [frame.count() for frame in (strict, lenient)] == [20, 20]
    admin.delete_topics([topic])
    # At the same time: a topic that existed is asked about for 30 s.
    with ThreadPoolExecutor() as pool:
        failing, passing = pool.submit(strict.count), pool.submit(lenient.count)
        with pytest.raises(Exception) as caught:
            failing.result()
        assert passing.result() == 0
    assert f"[KAFKA_DATA_LOSS.PARTITIONS_DELETED] {LOSS}" in peer.message_of(caught)
    assert f"Partitions [{topic}-0] have been deleted." in peer.message_of(caught)


def transactional(kafka, name, **config):
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name, "log_level": 0} | config
    )
    producer.init_transactions(120)
    return producer


def produce(producer, topic, values, *, commit):
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(120)
    if commit is not None:
        (producer.commit_transaction if commit else producer.abort_transaction)(120)


def test_read_committed_hides_aborted_records_and_ends_at_the_last_stable_offset(peer, spark, kafka, topic):
    peer.create(kafka, topic)
    producer = transactional(kafka, topic)
    produce(producer, topic, [b"a", b"b"], commit=True)
    produce(producer, topic, [b"x", b"y"], commit=False)
    produce(producer, topic, [b"c"], commit=True)
    produce(producer, topic, [b"z"], commit=False)

    def values(**options):
        frame = peer.read(spark, kafka, topic, **options)
        return [bytes(row.value) for row in frame.orderBy("offset").collect()]

    committed = {"kafka.isolation.level": "read_committed"}
    assert values() == [b"a", b"b", b"x", b"y", b"c", b"z"]
    assert values(**committed) == [b"a", b"b", b"c"]
    assert values(**committed, minPartitions=4) == [b"a", b"b", b"c"]
    # Ranges that consist of markers and aborted records only, and ends that fall on them.
    for first, until, expected in ((2, 3, []), (3, 6, []), (3, 7, [b"c"]), (8, 10, []), (0, 5, [b"a", b"b"])):
        limits = {
            "startingOffsets": f'{{"{topic}":{{"0":{first}}}}}',
            "endingOffsets": f'{{"{topic}":{{"0":{until}}}}}',
        }
        assert values(**committed, **limits) == expected
    open_one = transactional(kafka, topic + "-open")
    produce(open_one, topic, [b"later"], commit=None)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(3))
    assert values(**committed) == [b"a", b"b", b"c"]
    assert len(values()) == 10
    open_one.commit_transaction(120)
    assert len(values(**committed)) == 7


def test_a_compacted_topic_has_gaps_and_no_loss(peer, spark, kafka, topic):
    peer.create(
        kafka,
        topic,
        cleanup_policy="compact",
        segment_ms=100,
        min_cleanable_dirty_ratio=0.01,
        delete_retention_ms=100,
        max_compaction_lag_ms=100,
    )
    now_ms = int(time.time() * 1000)
    for turn in range(4):
        peer.write(
            kafka.bootstrap_servers,
            topic,
            [(0, b"k%d" % (i % 5), b"%d-%d" % (turn, i), now_ms, []) for i in range(200)],
        )
        time.sleep(0.3)
    frame = peer.read(spark, kafka, topic, failOnDataLoss="true")
    seen = peer.offsets(frame)[0]
    assert seen == sorted(seen)
    assert {bytes(row.key) for row in frame.collect()} == {b"k%d" % i for i in range(5)}
    assert seen[-1] == 799
    pruned = peer.read(spark, kafka, topic, "offset long")
    assert pruned.count() == frame.count()
