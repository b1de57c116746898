"""A topic's max.message.bytes that changes while a producer lives."""

import random
import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from support.brokers.produce_cluster import refused
from support.producer.producing import TP, producing, wait_until

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.producer.accumulating import topics
from spark_kafka_native.kafka.producer.errors import DeadLetteredError, RecordTooLargeError
from spark_kafka_native.kafka.protocol.api.configs import DescribeConfigsRequest, DescribeConfigsResource
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest

SKIP = {"over_limit": "skip"}
LETTERS = {"over_limit": "dead_letter", "dead_letter_topic": "dead"}
LARGE = random.Random(1).randbytes(5_000)
MODES = pytest.mark.parametrize("mode", [{}, SKIP, LETTERS], ids=["fail", "skip", "dead_letter"])


@pytest.fixture
def cluster(cluster):
    cluster.create("dead")
    cluster.limits = {"t": 2_000}
    return cluster


def written(send):
    """True if the record of ``send()`` is in its topic."""
    try:
        return send().exception(60) is None
    except RecordTooLargeError:
        return False


@MODES
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_raised_limit_counts_for_the_next_records(cluster, mode, codec):
    with producing(cluster, compression_type=codec, **mode) as producer:
        assert not written(lambda: producer.send("t", LARGE, partition=0))
        cluster.limits["t"] = 10_000
        wait_until(lambda: written(lambda: producer.send("t", LARGE, partition=0)))
    assert cluster.values(TP) == [LARGE]


@pytest.mark.parametrize(
    ("codec", "value"),
    [("none", b"x" * 1_950), ("gzip", LARGE[:1_915])],
    ids=["its frame", "its compression"],
)
def test_a_raised_limit_counts_for_a_record_that_was_too_large_by_what_its_batch_adds(cluster, codec, value):
    with producing(cluster, compression_type=codec) as producer:
        assert not written(lambda: producer.send("t", value, partition=0))
        cluster.limits["t"] = 10_000
        wait_until(lambda: written(lambda: producer.send("t", value, partition=0)))
    assert cluster.values(TP) == [value]


@MODES
def test_columns_too(cluster, mode):
    rows = pa.record_batch({"value": [b"1", LARGE]})
    with producing(cluster, **mode) as producer:
        assert not written(lambda: producer.send("t", LARGE, partition=0))
        cluster.limits["t"] = 10_000

        def whole():
            try:
                return not producer.send_columns(rows, "t", 0).exceptions(60)
            except RecordTooLargeError:
                return False

        wait_until(whole)
    assert cluster.values(TP)[-2:] == [b"1", LARGE]


def test_a_dead_letter_has_the_room_that_its_topic_has_now(cluster):
    cluster.limits["dead"] = 3_000
    with producing(cluster, **LETTERS) as producer:
        assert isinstance(producer.send("t", LARGE, partition=0).exception(60), DeadLetteredError)
        cluster.limits["dead"] = 10_000

        def is_whole():
            producer.send("t", LARGE, partition=0).exception(60)
            return cluster.records(("dead", 0))[-1].value == LARGE

        wait_until(is_whole)


def test_a_limit_is_read_again_with_the_metadata_each_time(cluster):
    with producing(cluster, client={"metadata.max.age.ms": 500}) as producer:
        producer.send("t", b"1").result(60)
        for size in (5_000, 10_000):
            cluster.limits["t"] = size + 1_000
            asked = len(cluster[1].requests(DescribeConfigsRequest))
            wait_until(lambda asked=asked: len(cluster[1].requests(DescribeConfigsRequest)) > asked)
            wait_until(lambda size=size: written(lambda: producer.send("t", bytes(size), partition=0)))


def test_records_that_fit_ask_for_nothing(cluster):
    with producing(cluster) as producer:
        (name,) = producer._topics.open(["t"])
        buffer = producer._topics.buffers[name]
        buffer.limits = replace(buffer.limits, read_at=-1e9)
        for _ in range(20):
            producer.send("t", b"x" * 1_500).result(60)
        producer.send_columns(pa.record_batch({"value": [b"x" * 1_900] * 20}), "t").result(60)
        assert len(cluster[1].requests(DescribeConfigsRequest)) == 1


def test_only_the_limits_of_topics_are_asked_for(cluster):
    with producing(cluster) as producer:
        producer.send_columns(pa.record_batch({"topic": ["t", "dead"], "value": ["1", "2"]})).result(60)
    keys = ["max.message.bytes"]
    asked = [
        DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=keys)
        for topic in ("t", "dead")
    ]
    (request,) = cluster[1].requests(DescribeConfigsRequest)
    assert request == DescribeConfigsRequest(resources=asked)


@pytest.mark.parametrize("value", [None, "", "many", "-1", "999", "9" * 20])
def test_a_value_that_is_no_limit_of_a_topic_leaves_that_of_kafka(cluster, value):
    cluster.limits = {}

    def configs(request, version):
        answer = cluster._configs(request, version)
        results = [replace(one, configs=[replace(one.configs[0], value=value)]) for one in answer.results]
        return replace(answer, results=results)

    cluster[1].on(DescribeConfigsRequest, configs)
    with producing(cluster) as producer:
        producer.send("t", LARGE, partition=0).result(60)
        assert not written(lambda: producer.send("t", bytes(topics.DEFAULT_MAX_MESSAGE_BYTES), partition=0))
    assert cluster.values(TP) == [LARGE]


@pytest.mark.parametrize(("max_block_ms", "patience_ms"), [(600_000, topics.LIMIT_PATIENCE_MS), (200, 200)])
def test_a_record_that_is_too_large_waits_for_its_limit_for_a_moment_only(
    cluster, monkeypatch, max_block_ms, patience_ms
):
    waits = []

    def unanswered(_router, _topics, deadline):
        waits.append(deadline.remaining_ms)
        return {}

    with producing(cluster) as producer:
        (name,) = producer._topics.open(["t"])
        buffer = producer._topics.buffers[name]
        buffer.limits = replace(buffer.limits, read_at=-1e9)
        producer._topics._config = replace(producer._topics._config, max_block_ms=max_block_ms)
        monkeypatch.setattr(topics, "read_max_message_bytes", unanswered)
        assert not written(lambda: producer.send("t", LARGE, partition=0))
    (wait_ms,) = waits
    assert wait_ms <= patience_ms


def test_new_leaders_do_not_wait_for_limits(cluster, monkeypatch):
    asked, answered = threading.Event(), threading.Event()

    def waiting(*_arguments):
        asked.set()
        assert answered.wait(60)
        return {}

    with producing(cluster, client={"metadata.max.age.ms": 1}) as producer:  # limits are always old
        producer.send("t", b"1", partition=0).result(60)
        monkeypatch.setattr(topics, "read_max_message_bytes", waiting)
        cluster.script(TP, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        try:
            delivery = producer.send("t", b"2", partition=0)
            assert asked.wait(60)
            known = len(cluster[1].requests(MetadataRequest))
            wait_until(delivery.done)
            wait_until(lambda: len(cluster[1].requests(MetadataRequest)) > known)
        finally:
            answered.set()
        assert delivery.exception(60) is None


def test_topics_that_may_not_be_described_cost_no_request_each(cluster):
    names = [f"refused-{i}" for i in range(50)]
    for name in names:
        cluster.create(name)
        cluster.limit_errors[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rows = pa.record_batch({"topic": [*names, "t"], "value": [b"1"] * (len(names) + 1)})
    with producing(cluster) as producer:
        assert not producer.send_columns(rows).exceptions(60)
        assert len(cluster[1].requests(DescribeConfigsRequest)) == 1
        assert not written(lambda: producer.send("t", LARGE, partition=0))  # its limit is known all the same
        assert written(lambda: producer.send(names[0], LARGE, partition=0))


@MODES
def test_a_limit_stays_as_it_is_while_the_brokers_do_not_say_it(cluster, mode):
    with producing(cluster, **mode) as producer:
        assert written(lambda: producer.send("t", b"1", partition=0))
        cluster.limits["t"] = 10_000
        cluster.limit_errors["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        asked = len(cluster[1].requests(DescribeConfigsRequest))

        def is_asked_again():
            assert not written(lambda: producer.send("t", LARGE, partition=0))
            return len(cluster[1].requests(DescribeConfigsRequest)) > asked

        wait_until(is_asked_again)
        assert written(lambda: producer.send("t", b"x" * 1_500, partition=0))


def test_without_an_answer_the_limit_is_that_of_kafka(cluster):
    cluster.limits["t"] = 10_000_000
    cluster.limit_errors["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with producing(cluster) as producer:
        assert not written(lambda: producer.send("t", bytes(topics.DEFAULT_MAX_MESSAGE_BYTES), partition=0))
        assert written(lambda: producer.send("t", bytes(topics.DEFAULT_MAX_MESSAGE_BYTES - 100), partition=0))
