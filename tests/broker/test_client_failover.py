"""Three real brokers that die, stop answering and come back in the middle of a read: nothing lost,
nothing twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from support.brokers.in_sync import await_partitions
from support.consumer.reading import Reading, wait_until

from spark_kafka_native.kafka.admin import Admin, NewTopic
from spark_kafka_native.kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    KafkaError,
    TopicRecreatedError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.testing import EmbeddedKafka

pytestmark = pytest.mark.broker

RECORDS = 30_000
PARTITIONS = 6
SMALL_FETCHES = {"max_partition_fetch_bytes": 65_536}


@pytest.fixture
def filled(kafka_cluster: EmbeddedKafka, topic: str) -> Iterator[str]:
    """A topic of three replicas with `RECORDS` numbered records; every broker runs again afterwards."""
    kafka_cluster.create_topic(topic, PARTITIONS, replication_factor=3)
    fill(kafka_cluster.bootstrap_servers, topic)
    yield topic
    for broker in kafka_cluster.brokers:
        if broker.running:
            broker.resume()
        else:
            broker.start()
    for broker in kafka_cluster.brokers:  # one alone is no quorum
        broker.await_ready()


def fill(bootstrap_servers: str, topic: str, records: int = RECORDS) -> None:
    # Small batches however slow the machine: the read that is disturbed takes many fetches, not one.
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.num.messages": 50,
            "log_level": 0,
        }
    )
    for number in range(records):
        producer.produce(topic, b"%0100d" % number, partition=number % PARTITIONS)
    assert producer.flush(240) == 0


def read_while(reading: Reading, topic: str, disturb: Callable[[int], None], **consumer: Any) -> None:
    """Read everything, calling ``disturb`` with the count after each piece; every record must come
    once, in order.
    """
    ranges = {TopicPartition(topic, partition): (0, RECORDS // PARTITIONS) for partition in range(PARTITIONS)}
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for fetched in reading.fetch(ranges, **SMALL_FETCHES, **consumer):
        numbers = found[fetched.topic_partition.partition]
        assert fetched.columns.offset.tolist() == list(range(len(numbers), fetched.next_offset))
        numbers += map(int, fetched.columns.value.to_pylist())
        disturb(sum(map(len, found.values())))
    for partition, numbers in found.items():
        assert numbers == list(range(partition, RECORDS, PARTITIONS))


def leader_of(reading: Reading, topic: str, partition: int = 0) -> int:
    reading.router.metadata({topic}, refresh=True)
    return reading.router.leader(TopicPartition(topic, partition)).node_id


class Once:
    """Calls ``act`` when a third has been read."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.acted = False

    def __call__(self, count: int) -> None:
        if not self.acted and count > RECORDS // 3:
            self.acted = True
            self._act()


def test_a_leader_killed_in_the_middle_of_a_read(kafka_cluster: EmbeddedKafka, filled: str) -> None:
    reading = Reading(kafka_cluster.bootstrap_servers)
    victim = leader_of(reading, filled)
    kill = Once(lambda: kafka_cluster.kill(victim))
    read_while(reading, filled, kill)
    assert kill.acted
    wait_until("another leader", lambda: leader_of(reading, filled) != victim)


def test_a_leader_stopped_in_good_order(kafka_cluster: EmbeddedKafka, filled: str) -> None:
    reading = Reading(kafka_cluster.bootstrap_servers)
    stop = Once(lambda: kafka_cluster.stop(leader_of(reading, filled)))
    read_while(reading, filled, stop)
    assert stop.acted


@pytest.mark.soak  # to the reader each is a leader that goes, as in the tests around
def test_every_broker_restarted_in_turn(kafka_cluster: EmbeddedKafka, filled: str) -> None:
    reading = Reading(kafka_cluster.bootstrap_servers)
    restarted: list[int] = []

    def roll(count: int) -> None:
        if len(restarted) < 3 and count > RECORDS * (len(restarted) + 1) // 5:
            restarted.append(len(restarted) + 1)
            kafka_cluster.restart(restarted[-1])

    read_while(reading, filled, roll)
    assert restarted == [1, 2, 3]


def test_a_leader_that_stops_answering(kafka_cluster: EmbeddedKafka, filled: str) -> None:
    """Its connections stay open: only the request timeout notices."""
    reading = Reading(kafka_cluster.bootstrap_servers, request_timeout_ms=2_000)
    victim = leader_of(reading, filled)
    pause = Once(lambda: kafka_cluster.pause(victim))
    read_while(reading, filled, pause)  # while it hangs: without a timeout it would never end
    assert pause.acted


def test_a_broker_paused_for_a_moment_is_waited_for(kafka_cluster: EmbeddedKafka, filled: str) -> None:
    reading = Reading(kafka_cluster.bootstrap_servers)
    victim = leader_of(reading, filled)

    def blink() -> None:
        kafka_cluster.pause(victim)
        time.sleep(1)
        kafka_cluster.resume(victim)

    read_while(reading, filled, Once(blink))


def test_leaders_elected_back_and_forth(kafka_cluster: EmbeddedKafka, filled: str) -> None:
    """Fencing by leader epoch and moved leaders without any lost connection."""
    reading = Reading(kafka_cluster.bootstrap_servers)
    moves: list[int] = []

    def move(count: int) -> None:
        if len(moves) < 2 and count > RECORDS * (len(moves) + 1) // 4:
            moves.append(leader_of(reading, filled))
            kafka_cluster.restart(moves[-1], graceful=True)

    read_while(reading, filled, move)
    assert len(moves) == 2


def test_a_topic_recreated_between_plan_and_read(kafka_cluster: EmbeddedKafka, filled: str) -> None:
    reading = Reading(kafka_cluster.bootstrap_servers)
    planned = reading.router.metadata({filled}).topic(filled).topic_id
    assert planned is not None
    tp = TopicPartition(filled, 0)
    recreate(reading, kafka_cluster, filled)
    with pytest.raises(TopicRecreatedError, match=str(planned)):
        list(reading.fetch({tp: (0, 100)}, topic_ids={filled: planned}))
    fill(kafka_cluster.bootstrap_servers, filled, PARTITIONS)
    [fetched] = reading.fetch({tp: (0, 1)})
    assert fetched.columns.length == 1


def test_a_topic_recreated_in_the_middle_of_a_read(kafka_cluster: EmbeddedKafka, filled: str) -> None:
    reading = Reading(kafka_cluster.bootstrap_servers)
    tp = TopicPartition(filled, 0)
    records = reading.fetch({tp: (0, RECORDS // PARTITIONS)}, max_partition_fetch_bytes=1_000)
    next(records)
    other = Reading(kafka_cluster.bootstrap_servers)
    recreate(other, kafka_cluster, filled)
    fill(kafka_cluster.bootstrap_servers, filled)  # as many records, all of them others
    with pytest.raises(TopicRecreatedError):
        list(records)


def recreate(reading: Reading, cluster: EmbeddedKafka, topic: str) -> None:
    Admin(reading.router).delete_topics([topic])
    wait_until("deletion", lambda: topic not in reading.router.metadata(refresh=True).topics)
    cluster.create_topic(topic, PARTITIONS, replication_factor=3)


def test_a_deleted_topic_ends_the_read(
    kafka_cluster: EmbeddedKafka, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kafka_native.kafka.cluster.retry_policy.KNOWN_TOPIC_WAIT_MS", 1_000)
    reading = Reading(kafka_cluster.bootstrap_servers)
    records = reading.fetch({TopicPartition(filled, 0): (0, 5_000)}, max_partition_fetch_bytes=1_000)
    next(records)
    Admin(Reading(kafka_cluster.bootstrap_servers).router).delete_topics([filled])
    with pytest.raises(BrokerError, match=f"{filled}.*UNKNOWN_TOPIC"):
        list(records)


def test_a_dead_cluster_fails_inside_the_poll_timeout(kafka_cluster: EmbeddedKafka, filled: str) -> None:
    reading = Reading(kafka_cluster.bootstrap_servers, request_timeout_ms=1_000, default_api_timeout_ms=3_000)
    tp = TopicPartition(filled, 0)
    begun: list[Any] = []

    def has_begun() -> bool:  # a machine that stands still for a moment is as good as a dead cluster
        with contextlib.suppress(DeadlineExceededError):
            records = reading.fetch({tp: (0, 5_000)}, max_partition_fetch_bytes=1_000, poll_timeout_ms=2_000)
            next(records)
            begun.append(records)
        return bool(begun)

    wait_until("a first fetch", has_begun)
    for broker in kafka_cluster.brokers:
        broker.kill()
    with pytest.raises(DeadlineExceededError, match=rf"{filled}-0 at offset \d+"):
        list(begun[0])
    addresses = [broker.address("PLAINTEXT") for broker in kafka_cluster.brokers]

    def all_are_named() -> bool:  # those that were tried in time are
        fresh = Reading(kafka_cluster.bootstrap_servers, default_api_timeout_ms=1_000)
        with pytest.raises(KafkaError) as raised:
            fresh.partitions(filled)
        return all(address in str(raised.value) for address in addresses)

    wait_until("an error with all addresses", all_are_named)


@pytest.mark.soak  # starts six brokers; in tests/unit a scripted leader names replicas near us
def test_followers_in_our_rack_are_read_from() -> None:
    """KIP-392: the leader names a replica near us; when that dies, the leader serves."""
    selector = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with EmbeddedKafka(3, properties=selector) as cluster:
        for broker in cluster.brokers:
            with (cluster.folder / "brokers" / str(broker.node_id) / "server.properties").open("a") as file:
                file.write(f"broker.rack=rack-{broker.node_id}\n")
            broker.restart()
        cluster.create_topic("near", PARTITIONS, replication_factor=3)
        fill(cluster.bootstrap_servers, "near")
        reading = Reading(cluster.bootstrap_servers, client_rack="rack-2")
        wait_until("the racks in the metadata", lambda: racks(reading) == {"rack-1", "rack-2", "rack-3"})
        asked: set[int] = set()
        watch(reading, asked)
        kill = Once(lambda: cluster.kill(2))
        read_while(reading, "near", kill)
        assert kill.acted
        served = Reading(cluster.bootstrap_servers, client_rack="rack-3")
        read_while(served, "near", lambda _: None)
        assert 2 in asked


def racks(reading: Reading) -> set[str | None]:
    return {broker.rack for broker in reading.router.metadata(refresh=True).brokers.values()}


def watch(reading: Reading, asked: set[int]) -> None:
    """Note which brokers a connection is taken to."""
    connection = reading.router.connection

    def noting(node_id: int, *arguments: Any, **options: Any) -> Any:
        asked.add(node_id)
        return connection(node_id, *arguments, **options)

    reading.router.connection = noting  # type: ignore[method-assign]


def test_a_partition_moves_to_other_brokers_and_gets_its_preferred_leader(
    kafka_cluster: EmbeddedKafka, filled: str
) -> None:
    admin = Admin(Reading(kafka_cluster.bootstrap_servers).router)
    moved = f"{filled}-moved"
    admin.create_topics([NewTopic(name=moved, replicas=[[1, 2], [2, 3]])])
    await_partitions(kafka_cluster, moved, 2)  # each question below may go to any broker
    tp = TopicPartition(moved, 0)

    def replicas() -> tuple[int, ...]:
        return admin.describe_topics([moved])[moved].partitions[0].replica_nodes

    def leader() -> int | None:
        return admin.describe_topics([moved])[moved].partitions[0].leader

    assert replicas() == (1, 2)
    admin.reassign({tp: [3, 2]})
    wait_until("the partition has moved", lambda: replicas() == (3, 2), 60)
    wait_until("nothing is being moved", lambda: not admin.list_reassignments(), 60)
    assert {disk.node_id for disk in admin.describe_log_dirs()} == {1, 2, 3}
    admin.elect_leaders([tp])
    wait_until("the preferred replica leads", lambda: leader() == 3, 60)
