"""Streams with topics that are deleted, recreated or cut off; groups that get the offsets of a stream."""

import pytest

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.group.committed_offsets import committed_offsets
from spark_kafka_native.kafka.model import TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SOON = {"fetchOffset__retryIntervalMs": "50"}


@pytest.fixture
def recreate(peer, kafka, admin):
    """Delete a topic and make it anew with ``records``."""
    from support.consumer.reading import wait_until

    router = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))

    def run(topic, records):
        admin.delete_topics([topic])
        wait_until("the deletion", lambda: router.metadata({topic}, refresh=True).topics[topic].error_code)
        peer.create(kafka, topic)
        peer.write(kafka.bootstrap_servers, topic, peer.numbered(records, start=100))

    yield run
    router.close()


@pytest.mark.parametrize("records", [4, 50])
def test_a_recreated_topic_is_a_loss_and_then_read_from_its_beginning(
    peer, kafka, topic, stream, recreate, records
):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10))
    reading = stream(**SOON)
    reading.run()
    recreate(topic, records)
    with pytest.raises(Exception, match="PARTITION_OFFSET_CHANGED") as caught:
        reading.run()
    assert "The topic was deleted and created again" in str(caught.value)
    # Nothing was written down: the very checkpoint goes on.
    assert reading.run(failOnDataLoss="false") == [[f"v{number}" for number in range(100, 100 + records)]]
    assert reading.run() == []


def test_a_topic_of_a_pattern_is_deleted_and_another_one_made(peer, kafka, topic, stream, admin):
    kept, gone, new = (f"{topic}-{name}" for name in ("kept", "gone", "new"))
    for name in (kept, gone):
        peer.create(kafka, name)
        peer.write(kafka.bootstrap_servers, name, peer.numbered(3))
    reading = stream(None, subscribePattern=f"{topic}-.*", **SOON)
    assert len(reading.run()[0]) == 6
    admin.delete_topics([gone])
    with pytest.raises(Exception, match=f"PARTITIONS_DELETED.*{gone}-0"):
        reading.run()
    peer.create(kafka, new)
    peer.write(kafka.bootstrap_servers, new, peer.numbered(4, start=3))
    assert sorted(reading.run(failOnDataLoss="false")[0]) == ["v3", "v4", "v5", "v6"]
    # A topic that is named is an error for any failOnDataLoss.
    named = stream(f"{kept},{gone}", failOnDataLoss="false", **SOON)
    with pytest.raises(Exception, match=f"{gone}.*does not exist"):
        named.run()


def test_retention_that_passes_the_position(peer, kafka, topic, stream, admin):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10))
    reading = stream(maxOffsetsPerTrigger="5")
    reading.crash = lambda batch: batch == 1
    with pytest.raises(Exception, match="crash in batch 1"):
        reading.run()
    admin.delete_records({TopicPartition(topic, 0): 8})
    reading.crash = lambda _: False
    # The batch was written down before, so that each run reads it first.
    with pytest.raises(Exception, match=r"COULD_NOT_READ_OFFSET_RANGE.*\[5, 10\)"):
        reading.run()
    assert reading.run(failOnDataLoss="false") == [["v8", "v9"]]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_an_isolation_level_that_is_changed_while_a_transaction_is_open(peer, kafka, topic, stream, fail):
    """The stream has read more than read_committed may see: no loss, and nothing is read again."""
    from confluent_kafka import Producer

    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(3))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"v3", partition=0)
    producer.flush(30)
    reading = stream(failOnDataLoss=fail, **SOON)
    assert reading.run() == [["v0", "v1", "v2", "v3"]]
    committed = {"kafka.isolation.level": "read_committed"}
    assert reading.run(**committed) == []
    producer.produce(topic, b"v4", partition=0)
    producer.commit_transaction(30)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(1, start=5))
    assert reading.run(**committed) == [["v4", "v5"]]


def test_a_group_is_told_completed_batches_only(peer, kafka, topic, stream):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10))
    tp = TopicPartition(topic, 0)
    router = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))

    def committed():
        return committed_offsets(router, topic, [tp])[tp]

    reading = stream(maxOffsetsPerTrigger="4", commitOffsets="true", kafka__group__id=topic)
    reading.crash = lambda batch: batch == 1
    with pytest.raises(Exception, match="crash in batch 1"):
        reading.run()
    assert committed() == 4
    reading.crash = lambda _: False
    reading.run()
    # The last batch of AvailableNow, too.
    assert committed() == 10
    # The stream goes on from its checkpoint, wherever the group is.
    assert reading.run() == []
    # A group that has a member refuses: a warning, and the records all the same.
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"{topic}-taken", "log_level": 0}
    )
    consumer.subscribe([topic])
    for _ in range(100):
        consumer.poll(0.1)
        if consumer.assignment():
            break
    taken = stream(commitOffsets="true", kafka__group__id=f"{topic}-taken")
    assert len(taken.run()[0]) == 10
    consumer.close()
    router.close()


def test_bytes_limit_a_batch(peer, kafka, topic, stream):
    peer.create(kafka, topic, 2)
    records = [(i % 2, None, b"v%07d" % i + b"x" * 992, 1_700_000_000_000, []) for i in range(200)]
    peer.write(kafka.bootstrap_servers, topic, records)
    batches = stream(maxBytesPerTrigger="50000").run()
    assert sum(map(len, batches)) == 200
    assert 4 <= len(batches) <= 5
    assert all(44 <= len(batch) <= 50 for batch in batches[:3])
