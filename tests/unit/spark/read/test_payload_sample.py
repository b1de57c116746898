"""Schemas out of the newest records: which records of which partitions `infer_schemas` looks at."""

from dataclasses import replace

import pyarrow as pa
import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.consumer.failing_fetch import errors_of, fail_in

from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    ConfigError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.encode import encode_record_batch
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.driver import payload_sample
from spark_kafka_native.spark.read.driver.payload_sample import infer_schemas
from spark_kafka_native.spark.read.read_options import check_general
from spark_kafka_native.spark.source import KafkaDataSource

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def cluster():
    with ScriptedCluster() as cluster:
        cluster.create("t", 2)
        yield cluster


@pytest.fixture
def infer(cluster):
    routers = []

    def infer(*, payload="value", **given):
        options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"}
        options |= {"value.format": "json", "value.schema": "infer"} | given
        read = check_general(OptionValues.parse(options, Scope.READ))
        routers.append(router_for(read.client))
        return getattr(infer_schemas(read), payload).schema

    yield infer
    for router in routers:
        router.close()


def test_the_newest_records_of_each_partition_are_sampled(cluster, infer):
    cluster.logs[T0].append([b'{"old":1}'] * 5)
    cluster.logs[T0].append([b'{"a":1}'] * 2)
    cluster.logs[T1].append([b'{"older":1}'])
    cluster.logs[T1].append([b'{"b":1}'] * 2)
    assert infer(**{"value.inferRecords": "4"}) == "`a` bigint, `b` bigint"


def test_keys_are_sampled_for_keys_and_a_schema_that_is_given_stays(cluster, infer):
    batch = RecordColumns(
        length=2,
        key=pa.array([None, b'{"k":1}'], pa.binary()),
        value=pa.array([b'{"v":1}', None], pa.binary()),
    )
    cluster.logs[T0].log.append(bytes(encode_record_batch(batch, now_ms=1_000)))
    both = {"key.format": "json", "key.schema": "infer"}
    assert (infer(payload="key", **both), infer(**both)) == ("`k` bigint", "`v` bigint")
    given = both | {"value.schema": "w string"}
    assert (infer(payload="key", **given), infer(**given)) == ("`k` bigint", "w string")


@pytest.mark.parametrize("payload", ["key", "value"])
def test_the_schema_of_a_read_is_the_inferred_one(cluster, payload):
    given = pa.array([b'{"a":1}'], pa.binary())
    batch = RecordColumns(length=1, key=given, value=given)
    cluster.logs[T0].log.append(bytes(encode_record_batch(batch, now_ms=1_000)))
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"}
    schema = KafkaDataSource(options | {f"{payload}.format": "json", f"{payload}.schema": "infer"}).schema()
    assert f"`{payload}` STRUCT<`a` bigint>" in schema


def test_older_records_are_looked_at_until_one_has_a_value(cluster, infer):
    cluster.logs[T0].append([b'{"a":1}'])
    cluster.logs[T0].append([None] * 150)
    assert infer(**{"value.inferRecords": "1"}) == "`a` bigint"


def test_records_without_a_value_are_read_once_and_not_for_ever(cluster, infer, monkeypatch):
    cluster.logs[T0].append([b'{"a":1}'])
    for _ in range(300):
        cluster.logs[T0].append([None])
    assert infer(**{"value.inferRecords": "1"}) == "`a` bigint"
    asked = [
        part.fetch_offset
        for request in cluster[1].requests(FetchRequest)
        for topic in request.topics
        for part in topic.partitions
    ]
    assert sorted(asked) == sorted(set(asked))
    monkeypatch.setattr(payload_sample, "SAMPLE_MS", 0)
    with pytest.raises(
        ConfigError, match=r"newest records of .* have no value, as far as they were read in 0 s"
    ):
        infer(**{"value.inferRecords": "1"})


def test_a_sample_that_ran_out_of_time_says_so_also_where_it_asked_for_all(cluster, infer, monkeypatch):
    for value in (None, b'{"a":1}'):
        cluster.logs[T0].append([value])
    monkeypatch.setattr(payload_sample, "SAMPLE_MS", 0)
    with pytest.raises(ConfigError, match="as far as they were read"):
        infer(**{"kafka.max.partition.fetch.bytes": "1"})


def test_of_too_many_partitions_the_longest_are_sampled(cluster, infer, monkeypatch):
    monkeypatch.setattr(payload_sample, "MAX_PARTITIONS", 1)
    cluster.logs[T0].append([b'{"a":1}'] * 2)
    cluster.logs[T1].append([b'{"old":1}'] * 3)
    cluster.logs[T1].append([b'{"b":1}'] * 3)
    cluster.logs[T1].log_start_offset = 3
    assert infer() == "`b` bigint"


@pytest.mark.parametrize("values", [[], [None] * 3])
def test_without_any_value_there_is_nothing_to_infer_from(cluster, infer, values):
    if values:
        cluster.logs[T0].append(values)
    with pytest.raises(ConfigError, match=r"value\.schema=infer: Subscribe\[t\] has no record with a value"):
        infer()


@pytest.mark.parametrize(("limit", "value"), [("MAX_BYTES", 10), ("SAMPLE_MS", 0)])
def test_a_sample_ends_with_the_piece_that_has_enough_bytes_or_takes_too_long(
    cluster, infer, monkeypatch, limit, value
):
    monkeypatch.setattr(payload_sample, limit, value)
    for value in (b'{"a":1}', b'{"b":1}', b'{"c":1}'):
        cluster.logs[T0].append([value])
    one_batch_at_once = {"kafka.max.partition.fetch.bytes": "1"}
    assert infer(**one_batch_at_once) == "`a` bigint"


def test_a_sample_has_a_limit_of_its_own_and_waits_for_no_record_to_come(cluster, infer, monkeypatch):
    """However long the tasks of the read may wait."""
    configs, fetcher = [], payload_sample.Fetcher

    def noted(router, config):
        configs.append((config.poll_timeout_ms, config.end_of_log_wait_ms))
        return fetcher(router, config)

    monkeypatch.setattr(payload_sample, "Fetcher", noted)
    cluster.logs[T0].append([b'{"a":1}'])
    infer(**{"kafka.poll.timeout.ms": "600000", "kafka.end.of.log.wait.ms": "60000"})
    assert configs == [(payload_sample.TIMEOUT_MS, 0)]


@pytest.mark.parametrize("error", errors_of(T0, 0, 0), ids=lambda error: type(error).__name__)
def test_an_error_of_one_partition_leaves_the_records_of_the_others(cluster, infer, monkeypatch, error):
    cluster.logs[T0].append([b'{"a":1}'])
    cluster.logs[T1].append([b'{"b":1}'])
    fail_in(monkeypatch, T0, error)
    assert infer() == "`b` bigint"


def test_a_partition_that_loses_its_records_meanwhile_is_left_out(cluster, infer):
    cluster.logs[T0].append([b'{"a":1}'])
    for value in (b'{"b":1}', b'{"c":1}'):
        cluster.logs[T1].append([value])
    asked = []

    def answer(request, version):
        asked.append(request)
        # To be asked for it again and again is an error, and not a test without an end.
        cluster.logs[T0].log_start_offset = 1 if len(asked) < 10 else 0
        return cluster.fetcher(1)(request, version)

    cluster[1].on(FetchRequest, answer)
    one_batch_at_once = {"kafka.max.partition.fetch.bytes": "1"}
    assert infer(**one_batch_at_once) == "`b` bigint, `c` bigint"


def test_a_log_that_loses_its_first_records_meanwhile_is_sampled_from_its_new_start(cluster, infer):
    for value in (b'{"a":1}', b'{"b":1}', b'{"c":1}', b'{"d":1}'):
        cluster.logs[T0].append([value])

    def answer(request, version):
        # Retention goes on, by a record for each of the first requests.
        cluster.logs[T0].log_start_offset = min(cluster.logs[T0].log_start_offset + 1, 2)
        return cluster.fetcher(1)(request, version)

    cluster[1].on(FetchRequest, answer)
    assert infer() == "`c` bigint, `d` bigint"


def test_a_leader_that_refuses_where_it_says_its_log_begins_is_not_asked_forever(cluster, infer):
    cluster.logs[T0].append([b'{"a":1}'] * 3)
    cluster.logs[T1].append([b'{"b":1}'])
    answered = []

    def answer(request, version):
        response = cluster.fetcher(1)(request, version)
        answered.append(response)
        if len(answered) > 20:
            return response
        refused = {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE, "log_start_offset": 1, "records": None}
        topics = [
            replace(
                topic,
                partitions=[
                    replace(one, **refused) if one.partition_index == 0 else one for one in topic.partitions
                ],
            )
            for topic in response.responses
        ]
        return replace(response, responses=topics)

    cluster[1].on(FetchRequest, answer)
    assert infer() == "`b` bigint"
    assert len(answered) <= 20
