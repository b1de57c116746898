"""Topics that are denied, deleted, forbidden, without a leader, or get partitions meanwhile."""

import time
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from support.brokers.produce_cluster import (
    LOST_REQUEST,
    refused,
)
from support.brokers.scripted_broker import Log
from support.producer.producing import TP, numbers, producing, send, wait_until
from support.producer.sending_batches import SendingHalf

from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    NetworkError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.accumulating import topics as topics_module
from spark_kafka_native.kafka.producer.accumulating.partitioner import Targets
from spark_kafka_native.kafka.producer.accumulating.topic_buffer import TopicBuffer
from spark_kafka_native.kafka.producer.errors import (
    DeliveryError,
    DeliveryStatus,
    ProducerClosedError,
    RecordError,
)
from spark_kafka_native.kafka.producer.sending import partition_queue
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline

pytestmark = pytest.mark.timed(0.1)


def test_a_topic_that_is_denied_for_a_while_keeps_its_numbering(cluster):
    # librdkafka 1.9.0 started again at sequence 0 and lost what the broker then took for duplicates.
    topic_id = cluster.topic_ids["t"]
    with producing(cluster) as producer:
        send(producer, 10)
        producer.flush(60)
        del cluster.topic_ids["t"]
        deliveries = send(producer, 10, start=10)
        time.sleep(0.3)
        assert not any(d.done() for d in deliveries)
        cluster.topic_ids["t"] = topic_id
        producer.flush(60)
    assert cluster.values(TP) == numbers(20)
    stored = [one.header("base_sequence") for one in cluster.batches(TP)]
    assert 0 not in stored[10:]


def test_a_topic_that_stays_away_fails_by_name(cluster, monkeypatch):
    monkeypatch.setattr(partition_queue, "TOPIC_PROPAGATION_S", 0.3)
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.topic_ids.clear()
        delivery = send(producer, 1)[0]
        with pytest.raises(DeliveryError, match="UNKNOWN_TOPIC"):
            delivery.result(60)
        assert delivery.status is DeliveryStatus.NOT_PERSISTED


def test_a_topic_that_was_denied_twice_long_apart_is_not_taken_for_gone(cluster, monkeypatch):
    monkeypatch.setattr(partition_queue, "TOPIC_PROPAGATION_S", 0.5)
    unknown = refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.script(TP, unknown, *[LOST_REQUEST] * 15, unknown)
        assert send(producer, 1, start=1)[0].exception(60) is None
    assert cluster.values(TP) == numbers(2)


def test_a_topic_that_is_denied_in_spite_of_the_metadata_fails_too(cluster, monkeypatch):
    monkeypatch.setattr(partition_queue, "TOPIC_PROPAGATION_S", 0.3)
    with producing(cluster) as producer:
        cluster.script(TP, *[refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] * 1_000)
        assert "UNKNOWN_TOPIC" in str(send(producer, 1)[0].exception(60))


def test_records_are_written_to_the_topic_by_its_id(cluster):
    """By its name they could go to another topic that has got the name meanwhile."""
    with producing(cluster) as producer:
        send(producer, 1)[0].result(60)
    (request,) = cluster[1].requests(ProduceRequest)
    assert [topic.topic_id for topic in request.topic_data] == [cluster.topic_ids["t"]]


def test_a_topic_that_is_described_without_partitions_is_asked_about_again(cluster):
    """A broker that has just heard of its creation may say so."""

    def metadata(request, version):
        told = cluster.metadata(request, version)
        return replace(told, topics=[replace(topic, partitions=[]) for topic in told.topics])

    with producing(cluster, client={"retry_backoff_ms": 5}) as producer:
        cluster[1].push(MetadataRequest, metadata, metadata)
        assert producer.send("t", value=b"0").result(60).offset == 0


def test_a_producer_that_is_closed_while_it_looks_for_a_partition_says_so():
    """By the handler of a signal, which ends the look."""
    topics = SendingHalf().topics

    def closed_meanwhile(_names, _deadline):
        topics.close(ProducerClosedError("close() was called"))
        raise NetworkError("the connection was closed")

    topics._router.refresh = closed_meanwhile
    topics._config = ProducerConfig()
    with pytest.raises(ProducerClosedError, match=r"close\(\) was called"):
        topics.check_partition(SimpleNamespace(topic="t"), 7)


@pytest.mark.parametrize(
    "described",
    [
        None,
        SimpleNamespace(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partitions={}),
        SimpleNamespace(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, partitions={0: None}),
        SimpleNamespace(error_code=ErrorCode.NONE, partitions={}),
    ],
)
def test_a_topic_keeps_its_partitions_while_the_metadata_do_not_have_them(described):
    topics = SendingHalf().topics
    topics._router.snapshot = SimpleNamespace(topics={} if described is None else {"t": described})
    topics.describe(SimpleNamespace(topic="t"))  # it has nothing that could be changed


def test_limits_are_read_again_after_a_look_that_has_failed(monkeypatch):
    topics, looks = SendingHalf().topics, []
    topics.buffers["t"] = SimpleNamespace(topic="t", limit_age_s=1e9)
    monkeypatch.setattr(
        topics_module, "threading", SimpleNamespace(Thread=lambda target, **_: SimpleNamespace(start=target))
    )

    def read(names, _age_s):
        looks.append(names)
        raise ZeroDivisionError

    topics.read_limits = read
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            topics.refreshed(["t"])
    assert looks == [["t"], ["t"]]


def test_one_thread_at_a_time_reads_limits_and_none_where_they_are_new(monkeypatch):
    """Each of them may wait for brokers that do not answer."""
    topics, started = SendingHalf().topics, []
    for name, age_s in (("old", 1e9), ("new", 0.0)):
        topics.buffers[name] = SimpleNamespace(topic=name, limit_age_s=age_s)
    thread = lambda target, **_: SimpleNamespace(start=lambda: started.append(target))  # noqa: E731
    monkeypatch.setattr(topics_module, "threading", SimpleNamespace(Thread=thread))
    topics.describe = lambda _buffer: None
    topics.read_limits = lambda *_: None
    topics.refreshed(["new"])
    assert not started
    for _ in range(2):
        topics.refreshed(["old", "new"])
    (read,) = started
    read()
    topics.refreshed(["old"])
    assert len(started) == 2


def test_a_topic_that_two_callers_open_at_the_same_time_has_one_buffer(cluster):
    """In another one the records of the first would wait for ever."""
    with producing(cluster, linger_ms=60_000, batch_records=100) as producer:
        topics, sent = producer._topics, []
        ask = topics._ask

        def asked(names, deadline):
            topics._ask = ask
            sent.append(producer.send("t", value=b"0", partition=0))
            return ask(names, deadline)

        topics._ask = asked
        sent.append(producer.send("t", value=b"1", partition=0))
        producer.flush(60)
        assert [delivery.done() for delivery in sent] == [True, True]
    assert cluster.values(TP) == numbers(2)


def test_a_missing_topic_is_named(cluster, monkeypatch):
    from spark_kafka_native.kafka.cluster import retry_policy

    monkeypatch.setattr(retry_policy, "NEW_TOPIC_WAIT_MS", 100)
    with producing(cluster) as producer, pytest.raises(BrokerError, match="topic nowhere: UNKNOWN_TOPIC"):
        producer.send("nowhere", value=b"x")


def test_a_partition_without_leader_is_waited_for(cluster):
    log = cluster.logs[TP]
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        log.leader = -1
        deliveries = send(producer, 5, start=1)
        time.sleep(0.3)
        assert not deliveries[0].done()
        log.leader = 1
        log.leader_epoch += 1
        assert [d.result(60).offset for d in deliveries] == [1, 2, 3, 4, 5]


def test_a_forbidden_topic_fails_at_once_and_others_go_on(cluster):
    cluster.create("free")
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        forbidden = cluster.forbid("t")
        with forbidden:
            cluster.script(TP, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            delivery = send(producer, 1)[0]
            with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
                delivery.result(60)
            assert producer.send("free", value=b"x").result(60).offset == 0
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"), producing(cluster) as other:
                other.send("t", value=b"x")


def test_partitions_that_are_added_are_learnt_without_an_error(cluster):
    with producing(cluster, client={"metadata_max_age_ms": 1_000}) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.logs[TopicPartition("t", 1)] = Log(leader=1)
        wait_until(lambda: producer._buffers["t"].targets.count == 2)
        assert producer.send("t", value=b"x", partition=1).result(60).partition == 1
    with producing(cluster) as producer:
        with pytest.raises(ValueError, match="topic t: there is no partition 5: the topic has 2 partitions"):
            producer.send("t", value=b"x", partition=5)
        with pytest.raises(ValueError, match="row 1 for topic t: there is no partition 9"):
            producer.send_columns(pa.record_batch({"value": ["a", "b"], "partition": [0, 9]}), "t")


def test_rows_beyond_partitions_that_are_just_being_learnt_are_refused(cluster):
    """And nothing is taken of the other topics, which come before."""
    added, other = TopicPartition("t", 1), TopicPartition("other", 0)
    cluster.create("other")
    rows = pa.record_batch({"topic": ["other", "t", "t"], "value": ["a", "b", "c"], "partition": [0, 1, 2]})
    with producing(cluster) as producer:
        send(producer, 1)[0].result(60)
        cluster.logs[added] = Log(leader=1)
        with pytest.raises(RecordError, match="row 2 for topic t: there is no partition 2: the topic has 2"):
            producer.send_columns(rows)
        producer.flush(60)
        assert cluster.values(other) == []
        producer.send_columns(rows.slice(0, 2)).result(60)
    assert (cluster.values(other), cluster.values(added)) == ([b"a"], [b"b"])


def test_records_without_a_key_wait_for_a_topic_that_has_no_leader_yet(cluster):
    log = cluster.logs[TP]
    log.leader = -1
    with producing(cluster) as producer:
        deliveries = [producer.send("t", value=value) for value in numbers(3)]
        log.leader = 1
        assert [delivery.result(60).offset for delivery in deliveries] == [0, 1, 2]


@pytest.mark.parametrize(("without", "available"), [([1], [0, 2]), ([0, 1, 2], [0, 1, 2])])
def test_keyless_records_go_where_a_leader_is_unless_there_is_none_at_all(cluster, without, available):
    def denying(request, version):
        answer = cluster.metadata(request, version)
        topics = [
            replace(
                topic,
                partitions=[
                    replace(one, leader_id=-1) if one.partition_index in without else one
                    for one in topic.partitions
                ],
            )
            for topic in answer.topics
        ]
        return replace(answer, topics=topics)

    cluster.create("three", 3)
    with producing(cluster) as producer:
        producer._topics.open(["three"])
        buffer = producer._topics.buffers["three"]
        assert buffer.targets.available.tolist() == [0, 1, 2]
        cluster[1].push(MetadataRequest, denying)
        producer._topics._router.refresh(["three"], Deadline.after_ms(60_000))
        producer._topics.describe(buffer)
        assert (buffer.targets.count, buffer.targets.available.tolist()) == (3, available)


def test_a_broker_that_lags_behind_takes_no_partition_away(cluster):
    def lagging(request, version):
        told = cluster.metadata(request, version)
        return replace(
            told, topics=[replace(topic, partitions=topic.partitions[:1]) for topic in told.topics]
        )

    cluster.create("grown", 3)
    keys = [b"%d" % i for i in range(20)]
    with producing(cluster) as producer:
        buffer = producer._topics.buffers[producer._topics.open(["grown"])[0]]
        before = [producer.send("grown", key=key).result(60).partition for key in keys]
        cluster[1].push(MetadataRequest, lagging)
        producer._topics._router.refresh(["grown"], Deadline.after_ms(60_000))
        producer._topics.describe(buffer)
        assert buffer.targets.available.tolist() == [0]  # no leader is known of the others
        assert [producer.send("grown", key=key).result(60).partition for key in keys] == before
        assert producer.send("grown", partition=2).result(60).partition == 2
        cluster[1].push(MetadataRequest, lagging)
        with pytest.raises(RecordError, match="there is no partition 3: the topic has 3 partitions"):
            producer.send("grown", partition=3)


def test_a_topic_that_is_created_again_may_have_fewer_partitions(cluster):
    with producing(cluster) as producer:
        (name,) = producer._topics.open(["t"])
        buffer = producer._topics.buffers[name]
        with buffer.lock:
            former = ()
            for topic_id in (uuid4(), uuid4()):
                buffer.describe(topic_id, Targets.all("t", 7), 1_000)
                for lagging in (topic_id, None, *former, topic_id):
                    for count in (5, 9) if lagging in former else (5,):
                        buffer.describe(lagging, Targets.all("t", count), 1_000)
                        assert (buffer.targets.count, buffer.topic_id) == (7, topic_id)
                former = (topic_id,)
            buffer.describe(uuid4(), Targets.all("t", 5), 1_000)
            assert buffer.targets.count == 5


def test_a_topic_without_an_id_has_the_partitions_that_brokers_have_said_last(cluster):
    """It may have been deleted and created again with fewer."""
    with producing(cluster) as producer:
        buffer = TopicBuffer("t", producer._topics._parts)
        with buffer.lock:
            for count in (7, 5, 9):
                buffer.describe(None, Targets.all("t", count), 1_000)
                assert buffer.targets.count == count


def test_a_broker_that_describes_the_former_topic_says_nothing_of_the_present_one(cluster):
    """With its partitions counted in, keyed records went to other partitions, and to some that are gone."""
    former, present = uuid4(), uuid4()
    with producing(cluster) as producer:
        (name,) = producer._topics.open(["t"])
        buffer = producer._topics.buffers[name]
        with buffer.lock:
            for topic_id, count in ((former, 3), (present, 2), (former, 3), (present, 2), (former, 1)):
                led = np.array([count - 1], np.int32)
                buffer.describe(topic_id, Targets(topic="t", count=count, available=led), 1_000)
                if buffer.topic_id == present:
                    assert (buffer.targets.count, buffer.targets.available.tolist()) == (2, [1])
        assert buffer.topic_id == present
