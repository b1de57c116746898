"""Where records without a key go."""

import pyarrow as pa
import pytest
from support.producer.producing import producing

from spark_kafka_native.kafka.model import TopicPartition


@pytest.fixture
def cluster(cluster):
    cluster.create("four", 4)
    return cluster


def counts(cluster):
    return [len(cluster.records(TopicPartition("four", partition))) for partition in range(4)]


@pytest.mark.parametrize("columns", [False, True])
def test_those_of_a_slow_producer_reach_all_partitions(cluster, columns):
    with producing(cluster, batch_records=1_000, linger_ms=1) as producer:
        for _ in range(40):
            if columns:
                producer.send_columns(pa.record_batch({"value": [b"x"]}), "four").result(60)
            else:
                producer.send("four", b"x").result(60)
    assert counts(cluster) == [10] * 4


def test_those_of_one_batch_stay_together(cluster):
    with producing(cluster, batch_records=1_000, linger_ms=600_000, delivery_timeout_ms=600_000) as producer:
        for _ in range(2):
            for _ in range(100):
                producer.send("four", b"x")
            producer.flush(60)
    assert sorted(counts(cluster)) == [0, 0, 100, 100]
