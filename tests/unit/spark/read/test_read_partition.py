"""A whole task on a worker, against a scripted cluster with records."""

import logging
import subprocess
import sys
import threading
from dataclasses import replace
from uuid import uuid4

import pytest
from pyspark.sql.types import StructType
from support.brokers.scripted_broker import ScriptedCluster, properties, refusal

from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import DeadlineExceededError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest
from spark_kafka_native.spark.error_conditions import KafkaConditionError
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.payload_formats import ReadFormats
from spark_kafka_native.spark.read.offset_range import (
    At,
    Earliest,
    Inner,
    KafkaInputPartition,
    Latest,
    OffsetRange,
)
from spark_kafka_native.spark.read.read_options import ReadTask
from spark_kafka_native.spark.read.schema import RowSchema
from spark_kafka_native.spark.read.worker import arrow_rows
from spark_kafka_native.spark.read.worker import read_partition as read_partition_module
from spark_kafka_native.spark.read.worker.read_partition import read_partition

SCHEMA = StructType().add("partition", "integer").add("offset", "long").add("value", "string")
NUMBERS = StructType().add("partition", "integer").add("offset", "long")
NUMBERS.add("value", StructType().add("v", "byte"))


@pytest.fixture
def cluster():
    with ScriptedCluster(2) as cluster:
        for tp in cluster.create("t", 2):
            for first in range(0, 20, 5):
                cluster.logs[tp].append([b"%d" % value for value in range(first, first + 5)])
        yield cluster


@pytest.fixture
def read(cluster):
    quick = properties(cluster.bootstrap_servers, default_api_timeout_ms=1_500)
    client = ClientConfig.from_properties(quick)

    def read(*ranges, fail=True, schema=None, ends_are_known=False, **consumer):
        task = ReadTask(
            client=client,
            consumer=ConsumerConfig(poll_timeout_ms=3_000, **consumer),
            schema=schema or RowSchema.from_schema(SCHEMA),
            fail_on_data_loss=fail,
            group_id="g",
            ends_are_known=ends_are_known,
        )
        rows = []
        for batch in read_partition(KafkaInputPartition(ranges=ranges), task):
            rows += [(row["partition"], row["offset"], row["value"]) for row in batch.to_pylist()]
        return rows

    read.router = router_for(client)
    yield read
    read.router.close()


def planned(start, end, partition=0, topic_id=None):
    return OffsetRange(topic="t", partition=partition, start=start, end=end, topic_id=topic_id)


def rows_of(partition, first, until):
    return [(partition, offset, str(offset)) for offset in range(first, until)]


def test_ranges_of_several_partitions_and_of_the_same(cluster, read):
    topic_id = cluster.topic_ids["t"].hex
    found = read(
        planned(At(2), At(8), topic_id=topic_id),
        planned(Earliest(), Latest(), 1, topic_id=topic_id),
        planned(At(11), At(13), topic_id=topic_id),
    )
    assert [row for row in found if row[0] == 0] == rows_of(0, 2, 8) + rows_of(0, 11, 13)
    assert [row for row in found if row[0] == 1] == rows_of(1, 0, 20)
    assert read() == []


def test_offsets_that_are_gone_fail_the_task_or_are_left_out(cluster, read):
    (log, _) = cluster.logs.values()
    log.log_start_offset, log.batches = 10, log.batches[2:]
    with pytest.raises(KafkaConditionError, match=r"offset \[3, 20\) for topic partition t-0 .*\[10, 20\)"):
        read(planned(At(3), Latest()))
    assert read(planned(At(3), Latest()), fail=False) == rows_of(0, 10, 20)
    assert read(planned(Inner(3), Latest())) == rows_of(0, 10, 20)


def test_each_loss_is_in_the_log_where_it_does_not_fail_the_task(cluster, read, caplog):
    ranges = [planned(At(15), At(30), partition) for partition in (0, 1)]
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        assert sorted(read(*ranges, fail=False)) == rows_of(0, 15, 20) + rows_of(1, 15, 20)
    found = [message for message in caplog.messages if "10 offsets of [15, 30) are lost" in message]
    assert [message.partition(":")[0] for message in found] == ["t-0", "t-1"]


def test_logs_that_end_too_early_are_all_found_by_one_wait(cluster, read):
    """An unclean election cuts all that one broker has led: each other wait would be another request."""
    for tp in cluster.create("u", 8):
        cluster.logs[tp].append([b"0", b"1"])
    ranges = [OffsetRange(topic="u", partition=partition, start=At(0), end=At(9)) for partition in range(8)]
    found = read(*ranges, fail=False, ends_are_known=True, end_of_log_wait_ms=0)
    assert sorted(found) == [(partition, offset, str(offset)) for partition in range(8) for offset in (0, 1)]
    assert len(cluster[1].requests(FetchRequest)) < 8


def test_a_leader_that_refuses_what_it_has_holds_up_no_other_partition(cluster, monkeypatch):
    monkeypatch.setattr(arrow_rows, "SMALL_ROWS", 0)  # rows are passed on at once
    looked_at, asked_again = threading.Event(), threading.Event()
    rebind = read_partition_module.rebind_ranges

    def look(*given):
        found = rebind(*given)
        looked_at.set()
        return found

    monkeypatch.setattr(read_partition_module, "rebind_ranges", look)

    def refused(request, version):
        if looked_at.is_set():
            asked_again.set()
        answer = cluster.fetcher(2)(request, version)
        parts = [refusal(0, ErrorCode.OFFSET_OUT_OF_RANGE)]
        return replace(answer, responses=[replace(one, partitions=parts) for one in answer.responses])

    def later(request, version):
        assert looked_at.wait(60)
        asked_again.wait(0.3)  # it is not: its pause does not end
        return cluster.fetcher(1)(request, version)

    for log, leader in zip(cluster.logs.values(), (2, 1), strict=True):
        log.leader = leader
    cluster[2].on(FetchRequest, refused)
    cluster[1].on(FetchRequest, later)
    # None of the backoffs ends in this test.
    patient = properties(cluster.bootstrap_servers, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000)
    client = ClientConfig.from_properties(patient)
    task = ReadTask(
        client=client,
        consumer=ConsumerConfig(poll_timeout_ms=300_000),
        schema=RowSchema.from_schema(SCHEMA),
        fail_on_data_loss=True,
        group_id="g",
    )
    both = KafkaInputPartition(ranges=(planned(At(10), At(20)), planned(At(0), At(20), 1)))
    batches = read_partition(both, task)
    found = [row["partition"] for row in next(batches).to_pylist()]
    batches.close()
    router_for(client).close()
    assert set(found) == {1}
    assert len(cluster[2].requests(FetchRequest)) == 1


@pytest.mark.parametrize("first", ["EndOfLogError", "OffsetOutOfRangeError"])
def test_a_log_that_is_cut_just_as_it_is_looked_at_is_found_out(cluster, read, monkeypatch, first):
    """After a wait for its end, or a refusal. The look at the log says that nothing is wrong: it has the
    offsets, with other records."""
    log = cluster.logs[TopicPartition("t", 0)]
    rebind = read_partition_module.rebind_ranges
    errors = []

    def elect(router, left, error, level):
        errors.append(type(error).__name__)
        if len(errors) == 1:
            log.log.cut(10)
            log.leader_epoch += 1
            for _ in range(6):
                log.append([b"new"] * 5)
        return rebind(router, left, error, level)

    def refuse(request, version):
        answer = cluster.fetcher(1)(request, version)
        if errors or request.topics[0].partitions[0].fetch_offset < 20:
            return answer
        parts = [refusal(0, ErrorCode.OFFSET_OUT_OF_RANGE)]  # with the epoch, and without it
        return replace(answer, responses=[replace(one, partitions=parts) for one in answer.responses])

    if first == "OffsetOutOfRangeError":
        cluster[1].on(FetchRequest, refuse)
    monkeypatch.setattr(read_partition_module, "rebind_ranges", elect)
    whole = planned(At(0), At(40), topic_id=cluster.topic_ids["t"].hex)
    with pytest.raises(KafkaConditionError, match="KAFKA_DATA_LOSS"):
        read(whole, ends_are_known=True, end_of_log_wait_ms=500)
    assert errors == [first, "LogTruncatedError"]


def test_a_task_says_how_many_records_were_bad(cluster, read, caplog):
    cluster.logs[TopicPartition("t", 0)].append([b"300", b"400"])
    given = {"value.format": "csv", "value.schema": "v tinyint", "mode": "permissive"}
    schema = RowSchema.from_schema(NUMBERS, ReadFormats.parse(OptionValues.parse(given, Scope.READ)))
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        rows = read(planned(At(18), At(22)), planned(At(18), At(20), 1), schema=schema)
    assert [row[2] for row in rows if row[0] == 0] == [{"v": 18}, {"v": 19}, {"v": None}, {"v": None}]
    (line,) = caplog.messages
    assert "mode=permissive: 2 records of this task can't be decoded (t-0: 2)" in line


def test_a_topic_that_became_another_is_found_out_by_the_fetch(cluster, read):
    former = cluster.topic_ids["t"]
    read.router.metadata({"t"})
    cluster.topic_ids["t"] = uuid4()
    # The task knows the planned offsets, and the new log is as long as the former.
    with pytest.raises(KafkaConditionError, match="The topic was deleted and created again"):
        read(planned(At(3), At(9), topic_id=former.hex))
    assert read(planned(At(3), At(9), topic_id=former.hex), fail=False) == []
    assert read(planned(At(3), Latest(), topic_id=former.hex), fail=False) == rows_of(0, 0, 20)


@pytest.mark.parametrize("wait_ms", [15_000, 0], ids=["its time is over", "it gives up before"])
def test_a_task_that_reaches_no_broker_names_what_it_was_to_read(cluster, read, monkeypatch, wait_ms):
    monkeypatch.setattr(retry_policy, "UNREACHABLE_WAIT_MS", wait_ms)
    cluster[1].stop()
    with pytest.raises(DeadlineExceededError, match=r"cannot start reading t-0 \[earliest, 9\) and 1 more"):
        read(planned(Earliest(), At(9)), planned(At(9), Latest()))


def test_a_worker_loads_nothing_of_the_driver():
    """Each new worker imports what its first task needs, and the task waits for it."""
    script = """
import pickle, sys
from spark_kafka_native.spark.source import KafkaDataSource
source = KafkaDataSource({"kafka.bootstrap.servers": "h:1", "subscribe": "t"})
reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
list(reader.read(None))
loaded = [name for name in sys.modules if name.startswith("spark_kafka_native.spark.read.")]
print(any(".worker." in name for name in loaded), [name for name in loaded if ".driver" in name])
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert ran.stdout == "True []\n"
