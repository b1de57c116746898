"""A record's time is that of the call that handed it over, however long its batch waits (CreateTime)."""

import threading
import time

import pyarrow as pa
import pytest
from support.producer.producing import TP, producing, wait_until

from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest


def now_ms():
    return time.time_ns() // 1_000_000


def later():
    """The time, once it is another than before."""
    since = now_ms()
    wait_until(lambda: now_ms() > since + 20)
    return now_ms()


def timed(call):
    """What ``call`` returns, and the milliseconds within which its record has its time."""
    first = now_ms()
    result = call()
    return result, (first - 1, now_ms())


def check(times, bounds):
    for moment, (first, last) in zip(times, bounds, strict=True):
        assert first <= moment <= last


def test_single_records_have_the_time_of_send(cluster):
    with producing(cluster, linger_ms=600_000, delivery_timeout_ms=600_000, batch_records=1_000) as producer:
        sent = []
        for number in range(3):
            sent.append(timed(lambda number=number: producer.send("t", b"%d" % number, partition=0)))
            later()
        sent.append((producer.send("t", b"own", partition=0, timestamp_ms=2**63 - 1), (2**63 - 1,) * 2))
        later()
        producer.flush(60)
        bounds = [bound for _, bound in sent]
        check([record.timestamp_ms for record in cluster.records(TP)], bounds)
        check([delivery.result(0).timestamp_ms for delivery, _ in sent], bounds)


def test_columns_have_the_time_of_send_columns(cluster):
    rows = pa.record_batch({"value": [b"a", b"b"]})
    own = pa.record_batch({"value": [b"c"], "timestamp": pa.array([7], pa.int64())})
    with producing(cluster, linger_ms=600_000, delivery_timeout_ms=600_000, batch_records=1_000) as producer:
        _, first = timed(lambda: producer.send_columns(rows, "t", 0))
        later()
        producer.send_columns(own, "t", 0)
        _, second = timed(lambda: producer.send_many("t", [b"d"], partition=0))
        later()
        producer.flush(60)
    check([r.timestamp_ms for r in cluster.records(TP)], [first, first, (7, 7), second])


def test_many_chunks_that_are_joined_keep_their_times(cluster):
    with producing(cluster, linger_ms=600_000, delivery_timeout_ms=600_000, batch_records=1_000) as producer:
        bounds = []
        for number in range(150):
            rows = pa.record_batch({"value": [b"%d" % number]})
            bounds.append(timed(lambda rows=rows: producer.send_columns(rows, "t", 0))[1])
        later()
        producer.flush(60)
    check([r.timestamp_ms for r in cluster.records(TP)], bounds)


def test_columns_of_one_time_cost_no_column(cluster):
    with producing(cluster, batch_records=1_000) as producer:
        producer.send_columns(pa.record_batch({"value": [b"x"] * 500}), "t", 0).result(60)
    (batch,) = cluster.batches(TP)
    assert batch.header("base_timestamp") == batch.header("max_timestamp")


def test_a_record_that_waits_for_room_has_the_time_of_the_call(cluster):
    with producing(
        cluster, linger_ms=600_000, delivery_timeout_ms=600_000, batch_records=1_000, max_buffered_records=1
    ) as producer:
        producer.send("t", b"first", partition=0).result(60)
        sent = []
        waiting = threading.Thread(target=lambda: sent.append(producer.send("t", b"third", partition=0)))
        with cluster.lock:  # no broker answers
            producer.send("t", b"second", partition=0)
            waiting.start()
            wait_until(lambda: producer._memory.waiting)
            free = later()
        waiting.join(60)
        producer.flush(60)
        assert sent[0].result(0).timestamp_ms < free


@pytest.mark.parametrize(
    "hand_over",
    [
        lambda producer, value: producer.send_columns(pa.record_batch({"value": [value]}), "t", 0),
        lambda producer, value: producer.send_many("t", [value], partition=0),
        lambda producer, value: producer.send("t", value, partition=0),
    ],
    ids=["columns", "many", "one"],
)
def test_records_that_wait_for_their_topic_have_the_time_of_the_call(cluster, hand_over):
    described = []

    def describe_late(request, version):
        described.append(later())
        return cluster.metadata(request, version)

    with producing(cluster) as producer:
        cluster[1].on(MetadataRequest, describe_late)
        hand_over(producer, b"0").result(60)
    assert cluster.records(TP)[0].timestamp_ms < described[0]
