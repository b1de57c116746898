import json
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from support.brokers.scripted_broker import ScriptedCluster, properties

from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, ConfigError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import DeliveryError, DeliveryStatus, ProducerClosedError
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.protocol.api.topics import CreateTopicsRequest
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.topics import prepare_topic
from spark_kafka_native.spark.write.worker import write_rows
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import RowColumns
from spark_kafka_native.testing import MockBroker

TP = TopicPartition("t", 0)
OPTIONS = SimpleNamespace(client=None, producer=None, topic="t")
COLUMNS = RowColumns(names=("value",), topic="t")


class FakeDelivery:
    def __init__(self, done):
        self.done = lambda: done

    def first_failure(self):
        return None

    def refused_row(self, _error):
        return None


class FakeProducer:
    def __init__(self, *deliveries):
        self.deliveries = [FakeDelivery(done) for done in deliveries]
        self.is_closed = False

    def send_columns(self, _rows, _topic):
        return self.deliveries.pop(0)

    def flush(self):
        pass

    def close(self, timeout):
        self.is_closed = timeout == 0


def test_rows_that_nobody_confirmed_are_not_committed(monkeypatch):
    producer = FakeProducer(True, False, False)
    monkeypatch.setattr(write_rows, "router_for", lambda _client: None)
    monkeypatch.setattr(write_rows, "settle_worker", lambda: None)
    monkeypatch.setattr(write_rows, "Producer", lambda *_arguments, **_options: producer)
    batch = pa.record_batch({"value": ["a", "b", "c"]})
    with pytest.raises(write_rows.WriteFailedError, match="rows 3 to 8 have not all been confirmed"):
        write_rows.write_rows(iter([batch] * 3), COLUMNS, OPTIONS)
    assert producer.is_closed


def test_the_row_that_failed_is_told_before_what_it_led_to(monkeypatch):
    """The batch after the failed one is refused by a producer that can't go on; the row is what helps."""
    producer, ended = FakeProducer(False), []
    first = producer.deliveries[0]
    first.done = lambda: bool(ended)
    first.first_failure = lambda: (1, DeliveryError(TP, 1, DeliveryStatus.NOT_PERSISTED, "no", False))

    def send_columns(_rows, _topic):
        if producer.deliveries:
            return producer.deliveries.pop()
        ended.append(True)
        raise ProducerClosedError("it can't go on")

    producer.send_columns = send_columns
    monkeypatch.setattr(write_rows, "router_for", lambda _client: None)
    monkeypatch.setattr(write_rows, "settle_worker", lambda: None)
    monkeypatch.setattr(write_rows, "Producer", lambda *_arguments, **_options: producer)
    batch = pa.record_batch({"value": ["a", "b", "c"]})
    with pytest.raises(write_rows.WriteFailedError, match=r"row 1 for topic t: .*not written: no"):
        write_rows.write_rows(iter([batch] * 2), COLUMNS, OPTIONS)


def test_rows_that_failed_fail_the_task_although_later_ones_are_under_way():
    producer = FakeProducer(False, False, True)
    first = producer.deliveries[0]
    first.first_failure = lambda: (2, DeliveryError(TP, 2, DeliveryStatus.NOT_PERSISTED, "no", False))
    task = write_rows.WriteTask(producer, None, COLUMNS, OPTIONS)
    batch = pa.record_batch({"value": ["a", "b", "c"]})
    task.write(batch)
    first.done = lambda: True
    with pytest.raises(write_rows.WriteFailedError, match=r"row 2 for topic t: .*not written: no"):
        task.write(batch)


def test_the_row_that_the_broker_names_may_be_in_a_later_batch():
    """Rows before it in the same batch of the log failed with it, and the first of them was blamed."""
    producer = FakeProducer(False, False, False)
    first, second, third = producer.deliveries
    error = DeliveryError(TP, 9, DeliveryStatus.NOT_PERSISTED, "no", False)
    first.first_failure = lambda: (0, error)
    second.refused_row = lambda of: 1 if of is error else None
    third.refused_row = lambda _: 0
    task = write_rows.WriteTask(producer, None, COLUMNS, OPTIONS)
    batch = pa.record_batch({"value": ["a", "b", "c"]})
    task.write(batch)
    task.write(batch)
    first.done = lambda: True
    with pytest.raises(write_rows.WriteFailedError, match=r"row 4 for topic t: .*not written: no"):
        task.write(batch)


def test_rows_that_failed_fail_the_task_however_many_batches_are_under_way():
    producer = FakeProducer(*[False] * 1_000)
    deliveries = list(producer.deliveries)
    deliveries[0].first_failure = lambda: (2, DeliveryError(TP, 2, DeliveryStatus.NOT_PERSISTED, "no", False))

    def flush():
        for delivery in deliveries:
            delivery.done = lambda: True

    producer.flush = flush
    task = write_rows.WriteTask(producer, None, COLUMNS, OPTIONS)
    for _ in deliveries:
        task.write(pa.record_batch({"value": ["a", "b", "c"]}))
    with pytest.raises(write_rows.WriteFailedError, match=r"row 2 for topic t: .*not written: no"):
        task.finish()


def options_of(broker, **given):
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, **given}
    return WriteOptions.parse(OptionValues.parse(options, Scope.WRITE))


def test_a_row_that_can_not_be_encoded_is_counted_within_the_task():
    enum = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
    schema = {"type": "record", "name": "r", "fields": [{"name": "c", "type": enum}]}
    with MockBroker() as broker:
        broker.create_topic("t")
        given = {"topic": "t", "value.format": "avro", "value.schema": json.dumps(schema)}
        options = options_of(broker, **given)
        kind = StructType().add("value", StructType().add("c", "string"))
        columns, _ = RowColumns.check(kind, "t", formats=options.formats)
        batches = [pa.record_batch({"value": [{"c": one} for one in texts]}) for texts in ("AB", "AX")]
        with pytest.raises(
            write_rows.WriteFailedError, match="row 3 for topic t: the value can't be encoded: `c` is 'X'"
        ):
            write_rows.write_rows(iter(batches), columns, options)


@pytest.mark.parametrize("name", ["bad topic", "", "x" * 250])
def test_a_topic_that_a_row_can_not_mean_is_refused_at_once_with_the_row(name):
    with MockBroker() as broker:
        broker.create_topic("t")
        options = options_of(broker)
        columns = RowColumns(names=("value", "topic"), topic=None)
        batches = [pa.record_batch({"value": ["a", "b"], "topic": ["t", one]}) for one in ("t", name)]
        with pytest.raises(write_rows.WriteFailedError, match=f"row 3: '{name}' is no topic name"):
            write_rows.write_rows(iter(batches), columns, options)
        assert all(name not in str(one.fields) for one in broker.asked("Metadata") if name)


def test_rows_for_the_marker_topic_are_refused_before_one_of_them_is_sent():
    producer, once = FakeProducer(), SimpleNamespace(marker_topic="markers")
    options = SimpleNamespace(client=None, producer=None, topic=None, exactly_once=once)
    columns = RowColumns(names=("value", "topic"), topic=None)
    task = write_rows.WriteTask(producer, None, columns, options)
    batch = pa.record_batch({"value": ["a", "b"], "topic": ["t", "markers"]})
    with pytest.raises(write_rows.WriteFailedError, match="topic markers, which is the transactionMarkerTop"):
        task.write(batch)


@pytest.mark.parametrize(("newest", "refused"), [(6, True), (7, False)])
def test_zstd_is_refused_before_anything_is_written_where_a_broker_is_too_old_for_it(newest, refused):
    with ScriptedCluster(2) as cluster:
        cluster.create("t")
        cluster[1].stop()  # down: the next one says
        cluster[2].versions[ProduceRequest.api_key] = (0, newest)
        router = Router(ClientConfig.from_properties(properties(cluster[2].address)))

        def prepare(codec):
            producer = ProducerConfig.from_properties({"compression.type": codec})
            prepare_topic(router, "t", SimpleNamespace(producer=producer, create_topics=False))

        prepare("lz4")
        if refused:
            with pytest.raises(ConfigError, match=r"zstd needs Kafka 2\.1 or later, and .* is older"):
                prepare("zstd")
        else:
            prepare("zstd")
        router.close()


@pytest.mark.parametrize("creates", [False, True])
@pytest.mark.parametrize(
    ("code", "waits"),
    [(ErrorCode.LEADER_NOT_AVAILABLE, True), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False)],
)
def test_a_topic_that_is_unwell_for_a_moment_is_waited_for(code, waits, creates):
    """Each task asks about the topics that its rows name, and ended at once. It is not created: it exists,
    and the task may not be allowed to."""
    with ScriptedCluster(1) as cluster:
        cluster.create("t")

        def unwell(request, version):
            own = cluster.metadata(request, version)
            return replace(own, topics=[replace(one, error_code=code) for one in own.topics])

        options = replace(options_of(cluster), create_topics=creates)
        router = Router(options.client)
        router.metadata(())
        cluster[1].push(MetadataRequest, unwell, *[unwell] * (0 if waits else 3))
        if waits:
            prepare_topic(router, "t", options)
        else:
            with pytest.raises(BrokerError, match="topic t: TOPIC_AUTHORIZATION_FAILED"):
                prepare_topic(router, "t", options)
        assert not cluster[1].requests(CreateTopicsRequest)
        router.close()


def test_a_topic_that_a_broker_leaves_out_of_its_metadata_is_asked_for_again():
    with ScriptedCluster(1) as cluster:
        cluster.create("t")

        def left_out(request, version):
            return replace(cluster.metadata(request, version), topics=[])

        cluster[1].push(MetadataRequest, left_out)
        options = WriteOptions.parse(
            OptionValues.parse(
                {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t"}, Scope.WRITE
            )
        )
        router = Router(options.client)
        prepare_topic(router, "t", options)
        assert router.snapshot.topic("t").name == "t"
        router.close()


def test_a_topic_that_is_missing_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(retry_policy, "NEW_TOPIC_WAIT_MS", 0)
    with MockBroker() as broker:
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "new"}
        options = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))
        router = Router(options.client)
        with pytest.raises(ConfigError, match="topic new does not exist: create it first, or set createTop"):
            prepare_topic(router, "new", options)
        assert broker.asked("CreateTopics") == []
        router.close()


@pytest.mark.parametrize("name", ["bad name", "__secret"])
def test_a_topic_that_can_not_be_had_is_no_missing_one(name):
    """Not even `createTopics` makes it."""
    with MockBroker() as broker:
        code = "INVALID_TOPIC_EXCEPTION" if " " in name else "TOPIC_AUTHORIZATION_FAILED"
        broker.on("Metadata", topic=name).fail(code)
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": name, "createTopics": "true"}
        options = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))
        router = Router(options.client)
        with pytest.raises(BrokerError, match=code):
            prepare_topic(router, name, options)
        assert broker.asked("CreateTopics") == []
        router.close()


@pytest.mark.parametrize("code", ["POLICY_VIOLATION", "INVALID_REPLICATION_FACTOR"])
def test_a_topic_that_is_not_created_is_an_error(code):
    with MockBroker() as broker:
        broker.on("CreateTopics").fail(code)
        given = {
            "createTopics": "true",
            "createTopics.partitions": "3",
            "createTopics.replicationFactor": "2",
        }
        given |= {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "new"}
        options = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))
        router = Router(options.client)
        with pytest.raises(BrokerError, match=code):
            prepare_topic(router, "new", options)
        (asked,) = broker.asked("CreateTopics")
        (topic,) = asked.fields["topics"]
        assert (topic["num_partitions"], topic["replication_factor"]) == (3, 2)
        router.close()


def test_of_two_tasks_that_create_a_topic_the_second_one_uses_it():
    """Both have seen that it is missing."""
    with MockBroker() as broker:
        router = Router(ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers}))

        def another_task_first(_request):
            broker.create_topic("new", partitions=2)

        broker.on("CreateTopics", topic="new").choose(another_task_first)
        options = WriteOptions.parse(
            OptionValues.parse(
                {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "new", "createTopics": "true"},
                Scope.WRITE,
            )
        )
        prepare_topic(router, "new", options)
        assert len(router.snapshot.topic("new").partitions) == 2
        router.close()


def test_topics_that_rows_name_are_created_as_the_options_say():
    with MockBroker() as broker:
        given = {"createTopics": "true", "createTopics.partitions": "3", "kafka.max.block.ms": "2000"}
        given |= {"kafka.bootstrap.servers": broker.bootstrap_servers, "kafka.linger.ms": "0"}
        options = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))
        rows = pa.record_batch({"topic": ["new", "newer"], "value": ["a", "b"]})
        columns = RowColumns(names=("value", "topic"), topic=None)
        assert write_rows.write_rows(iter([rows]), columns, options).records == 2
        created = {topic: len(one.partitions) for topic, one in broker.cluster.topics.items()}
        assert created == {"new": 3, "newer": 3}
