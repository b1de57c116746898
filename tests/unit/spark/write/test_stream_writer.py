"""What the sink of a stream says: once each time that its query is started."""

import json
import logging
import pickle

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import StructType
from support.http_server import serving

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.batch_writer import KafkaBatchWriter
from spark_kafka_native.spark.write.driver import stream_commit
from spark_kafka_native.spark.write.stream_writer import KafkaStreamWriter
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage

LINE = "Unknown option 'creatTopics' is ignored; did you mean 'createTopics'?"


@pytest.fixture
def commit(monkeypatch, tmp_path, caplog):
    """``commit(run_id, batch_id)``: what the commit of a micro-batch warns of, in a process of its own."""
    monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "true")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "creatTopics": "true"}

    def run(run_id, batch_id):
        caplog.clear()
        writer = KafkaStreamWriter(
            OptionValues.parse(given, Scope.WRITE), StructType().add("value", "string")
        )
        writer.commit([KafkaCommitMessage(0, 0, 0, 0, (), run_id=run_id)], batch_id)
        return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]

    return run


def test_a_sink_warns_once_each_time_that_its_query_is_started(commit):
    assert [commit("run-1", batch_id) for batch_id in (0, 1, 2)] == [[LINE], [], []]
    assert [commit("run-2", batch_id) for batch_id in (3, 4)] == [[LINE], []]


def test_a_sink_that_can_note_nothing_warns_with_the_first_micro_batch(commit, monkeypatch):
    assert [commit("", batch_id) for batch_id in (0, 1)] == [[LINE], []]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/nowhere")
    assert [commit("run-3", batch_id) for batch_id in (0, 1)] == [[LINE], []]


def test_a_write_refuses_what_only_the_other_kind_of_write_can_use():
    schema = StructType().add("value", "string")
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "deliveryGuarantee": "exactly-once"}
    named = OptionValues.parse(given | {"writeId": "w"}, Scope.WRITE)
    with pytest.raises(ConfigError, match="'writeId' is for batch writes"):
        KafkaStreamWriter(named, schema)
    marked = OptionValues.parse(given | {"transactionMarkerTopic": "m"}, Scope.WRITE)
    KafkaStreamWriter(marked, schema)
    with pytest.raises(
        ConfigError, match="'transactionMarkerTopic' is for streams, and for batch writes with"
    ):
        KafkaBatchWriter(marked, schema, overwrite=False)


@pytest.mark.parametrize("mode", ["stream", "batch"])
def test_a_summary_that_cannot_be_written_is_a_warning_as_the_rows_are_written(tmp_path, caplog, mode):
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "summary.json")
    # Without a topic, so that a batch write asks no broker before it begins.
    values = OptionValues.parse({"kafka.bootstrap.servers": "a:1", "summaryPath": path}, Scope.WRITE)
    schema = StructType().add("value", "string").add("topic", "string")
    message = KafkaCommitMessage(1, 1, 1, 0, (("t", 0, 1, 1, 0, 0),))
    if mode == "stream":
        KafkaStreamWriter(values, schema).commit([message], 0)
    else:
        KafkaBatchWriter(values, schema, overwrite=False).commit([message])
    assert f"the rows are written; the summary of them could not be written to {path}" in caplog.text


@pytest.mark.parametrize("is_adaptive", [True, False])
def test_each_start_says_that_spark_may_choose_the_number_of_tasks(
    monkeypatch, tmp_path, caplog, is_adaptive
):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(stream_commit, "commit_transactions", lambda *_given, **_named: None)
    caplog.set_level(logging.INFO)
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "deliveryGuarantee": "exactly-once"}
    writer = KafkaStreamWriter(OptionValues.parse(given, Scope.WRITE), StructType().add("value", "string"))
    for run_id, batch_id in (("one", 0), ("one", 1), ("two", 2)):
        writer.commit([KafkaCommitMessage(0, 0, 0, 0, (), run_id=run_id, is_adaptive=is_adaptive)], batch_id)
    said = [one for one in caplog.messages if "repartition(n)" in one]
    assert len(said) == (2 if is_adaptive else 0)


def test_a_summary_says_which_micro_batch_it_is_of(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    path = tmp_path / "summary.json"
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "summaryPath": str(path)}
    writer = KafkaStreamWriter(OptionValues.parse(given, Scope.WRITE), StructType().add("value", "string"))
    writer.commit([None, KafkaCommitMessage(1, 1, 1, 0, (("t", 0, 1, 1, 0, 0),), run_id="one")], 7)
    assert json.loads(path.read_text())["batchId"] == 7


@pytest.mark.parametrize(
    ("folder", "runs", "first"),
    [
        ("", ["one", "one", "two"], [True, False, True]),
        ("gone", ["one", "one"], [True, True]),
        ("", ["", ""], [True, True]),
    ],
)
def test_the_first_commit_of_a_run_ends_what_earlier_runs_have_left(
    monkeypatch, tmp_path, folder, runs, first
):
    """So does each one where it is not known which one is the first."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / folder))
    told = []
    monkeypatch.setattr(stream_commit, "commit_transactions", lambda *_given, is_first: told.append(is_first))
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "deliveryGuarantee": "exactly-once"}
    writer = KafkaStreamWriter(OptionValues.parse(given, Scope.WRITE), StructType().add("value", "string"))
    for batch_id, run_id in enumerate(runs):
        writer.commit([KafkaCommitMessage(0, 0, 0, 0, (), run_id=run_id)], batch_id)
    assert told == first


def registered_rows(url):
    """The writer of a stream of Avro, as Spark makes one for the tasks, one for the commit, one for the
    abort."""
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "value.format": "avro", "registry.url": url}
    schema = StructType().add("value", StructType().add("id", "long"))
    return KafkaStreamWriter(OptionValues.parse(given, Scope.WRITE), schema)


def test_tasks_have_the_schema_that_was_looked_up_once_and_a_commit_or_an_abort_needs_none():
    fields = [{"name": "id", "type": ["null", "long"], "default": None}]
    latest = {"id": 7, "version": 1, "schema": json.dumps({"type": "record", "name": "R", "fields": fields})}
    with serving(lambda _asked: (200, {}, latest)) as registry:
        pickler, writer = CloudPickleSerializer(), registered_rows(registry.url)
        pickler.dumps((lambda rows: writer.write(rows), None))
        task = pickle.loads(pickler.dumps(writer))
        assert registry.paths == ["/subjects/t-value/versions/latest"]
    with serving(lambda _asked: (503, {}, b"")) as registry:
        rows = pa.RecordBatch.from_pylist([{"value": {"id": 1}}])
        assert task._columns.select(rows).to_pylist() == [{"value": b"\0\0\0\0\x07\x02\x02"}]
        message = KafkaCommitMessage(1, 7, 1, 0, (("t", 0, 1, 7, 0, 0),))
        registered_rows(registry.url).commit([message], 0)
        registered_rows(registry.url).abort([message, None], 1)
        assert registry.paths == []


def test_tasks_of_a_batch_write_have_the_schema_that_the_driver_has_looked_up():
    fields = [{"name": "id", "type": ["null", "long"], "default": None}]
    latest = {"id": 7, "version": 1, "schema": json.dumps({"type": "record", "name": "R", "fields": fields})}
    schema = StructType().add("value", StructType().add("id", "long")).add("topic", "string")
    with serving(lambda _asked: (200, {}, latest)) as registry:
        given = {"kafka.bootstrap.servers": "a:1", "value.format": "avro", "value.subject": "s"}
        values = OptionValues.parse(
            given | {"value.schemaVersion": "latest", "registry.url": registry.url}, Scope.WRITE
        )
        # The rows name the topic, so that no broker is asked before the write begins.
        writer = KafkaBatchWriter(values, schema, overwrite=False)
        assert registry.paths == ["/subjects/s/versions/latest"]
    with serving(lambda _asked: (503, {}, b"")) as registry:
        task = pickle.loads(pickle.dumps(writer))
        rows = pa.RecordBatch.from_pylist([{"value": {"id": 1}, "topic": "t"}])
        assert task._columns.select(rows).column("value").to_pylist() == [b"\0\0\0\0\x07\x02\x02"]
        assert registry.paths == []


def test_a_schema_that_the_registry_lacks_is_no_error_of_pickling():
    """PySpark says "Could not serialize object" for every other exception."""
    lacks = 404, {}, {"error_code": 40401, "message": "Subject not found"}
    refused = pytest.raises(ConfigError, match=r"^value\.format=avro: .*Subject")
    with serving(lambda _asked: lacks) as registry, refused:
        CloudPickleSerializer().dumps(registered_rows(registry.url))
