"""Brokers that go, come back, hang or lose their lead in the middle of a task."""

import threading
import time

import pytest
from support.brokers.in_sync import await_in_sync
from support.consumer.reading import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RECORDS = 60_000
# Small fetches: the read takes many of them, so that a fault falls between two.
SLOW = {
    "kafka.max.partition.fetch.bytes": 20_000,
    "kafka.fetch.max.bytes": 60_000,
    "kafka.request.timeout.ms": 5_000,
    "kafka.retry.backoff.ms": 20,
}


@pytest.fixture(scope="module")
def numbers(peer, kafka_cluster):
    topic = peer.create(kafka_cluster, "read-faults-numbers", 3)
    peer.write(kafka_cluster.bootstrap_servers, topic, peer.numbered(RECORDS, 3))
    return topic


def read_during(peer, spark, kafka_cluster, topic, fault):
    """Every offset once and in order, despite a ``fault`` half a second into the job."""
    frame = peer.read(spark, kafka_cluster, topic, **SLOW)
    frame.limit(1).collect()
    breaker = threading.Timer(0.5, fault)
    breaker.start()
    try:
        found = peer.offsets(frame)
    finally:
        breaker.join(180)
        assert not breaker.is_alive()
    assert found == {partition: list(range(RECORDS // 3)) for partition in range(3)}


def test_a_leader_is_killed(peer, spark, kafka_cluster, numbers):
    try:
        read_during(peer, spark, kafka_cluster, numbers, lambda: kafka_cluster.kill(1))
    finally:
        kafka_cluster.restart(1)


def test_brokers_restart_one_after_another(peer, spark, kafka_cluster, numbers):
    read_during(
        peer, spark, kafka_cluster, numbers, lambda: [kafka_cluster.restart(node_id) for node_id in (2, 3)]
    )


def test_a_broker_hangs_for_a_while(peer, spark, kafka_cluster, numbers):
    def hang():
        kafka_cluster.pause(3)
        time.sleep(3)
        kafka_cluster.resume(3)

    read_during(peer, spark, kafka_cluster, numbers, hang)


def test_a_dead_cluster_fails_inside_the_poll_timeout(peer, spark, kafka_cluster, numbers):
    frame = peer.read(spark, kafka_cluster, numbers, **SLOW, kafkaConsumer__pollTimeoutMs=4_000)
    frame.limit(1).collect()
    for node_id in (1, 2, 3):
        kafka_cluster.pause(node_id)
    try:
        with pytest.raises(Exception) as caught:
            frame.count()  # while they hang: were it without an end, the runner would end the test
        assert numbers in peer.message_of(caught)
    finally:
        for node_id in (1, 2, 3):
            kafka_cluster.resume(node_id)


def killed_in_turn(kafka_cluster, until):
    """Kill and restart one broker after the other while ``until()`` says so; how many were killed."""
    killed = 0
    while until(killed):
        node_id = killed % 3 + 1
        kafka_cluster.kill(node_id)
        time.sleep(1)
        kafka_cluster.restart(node_id)
        killed += 1
        await_in_sync(kafka_cluster)  # or the next kill would be the second
    return killed


@pytest.mark.parametrize("kills", [2, pytest.param(15, marks=pytest.mark.soak)])
def test_a_stream_from_topic_to_topic_while_brokers_are_killed_in_turn(
    peer, spark, kafka_cluster, topic, tmp_path, kills
):
    copy = f"{topic}-copy"
    for name in (topic, copy):
        peer.create(kafka_cluster, name, 3)
    options = {"kafka.bootstrap.servers": kafka_cluster.bootstrap_servers}
    writer = (
        spark.readStream.format("pykafka")
        .options(**options, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=3_000)
        .load()
        .select("key", "value", "partition")
        .writeStream.format("pykafka")
        .options(**options, topic=copy, checkpointLocation=str(tmp_path / "checkpoint"))
    )
    query = writer.trigger(processingTime="0 seconds").start()
    written, over = [0], threading.Event()

    def feed():
        while not over.wait(0.1):
            records = peer.numbered(300, 3, start=written[0])
            peer.write(kafka_cluster.bootstrap_servers, topic, records, acks="all")
            written[0] += 300

    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()
    try:
        wait_until("the first batch", lambda: query.lastProgress is not None, seconds=240)
        assert killed_in_turn(kafka_cluster, lambda killed: killed < kills and query.isActive) == kills
        over.set()
        feeding.join(180)
        assert not feeding.is_alive()
        assert query.isActive, query.exception()
    finally:
        over.set()
        query.stop()
    rest = writer.trigger(availableNow=True).start()
    assert rest.awaitTermination(240), rest.lastProgress
    found = {}
    for row in peer.read(spark, kafka_cluster, copy).orderBy("partition", "offset").collect():
        found.setdefault(row.partition, {})[int(bytes(row.value)[1:])] = None
    # All of them, and in order, but for records that were written again.
    assert {partition: list(numbers) for partition, numbers in found.items()} == {
        partition: list(range(partition, written[0], 3)) for partition in range(3)
    }
