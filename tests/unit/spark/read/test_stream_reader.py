"""`KafkaStreamReader` as Spark calls it, with a planner and a group that only listen."""

import gc
import pickle
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest
from pyspark.sql.types import StructType
from support.brokers.planning_cluster import PlanningCluster

from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, ConfigError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.driver.micro_batch import StreamOffset
from spark_kafka_native.spark.read.offset_range import At, OffsetRange
from spark_kafka_native.spark.read.read_options import StreamOptions
from spark_kafka_native.spark.read.schema import full_schema
from spark_kafka_native.spark.read.stream_reader import KafkaStreamReader, check_letter_topic

limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="PySpark 4.1 limits no batches")
ReadAllAvailable, ReadMaxRows = limits.ReadAllAvailable, limits.ReadMaxRows
T0 = TopicPartition("t", 0)


def offset(position):
    return StreamOffset(positions={T0: position}).to_json()


class Planner:
    """Each batch ends at the given offset."""

    def __init__(self):
        self.end, self.asked, self.frozen = offset(9), [], 0

    def initial(self):
        return offset(1)

    def latest(self, start, *, limited):
        self.asked.append((start, limited))
        return start if start == self.end else self.end

    def freeze(self):
        self.frozen += 1

    def plan(self, _start, _end):
        return []


class Commits:
    def __init__(self):
        self.told, self.topic_ids = [], []

    def completed(self, at, topic_ids, *, is_idle=False):
        self.told.append((at.positions[T0], is_idle))
        self.topic_ids.append(topic_ids)


@pytest.fixture
def reader_of():
    def make(columns=None, **given):
        options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"} | given
        parsed = StreamOptions.parse(OptionValues.parse(options, Scope.STREAM))
        reader = KafkaStreamReader(parsed, columns or full_schema(include_headers=False))
        reader.__dict__.update(_planner=Planner(), _offset_committer=Commits())
        return reader

    return make


def test_limits_are_the_options_unless_spark_wants_all(reader_of):
    limited, plain = reader_of(maxOffsetsPerTrigger="7"), reader_of()
    assert limited.getDefaultReadLimit() == ReadMaxRows(7)
    assert reader_of(minOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMaxRows(2**63 - 1)
    assert plain.getDefaultReadLimit() == ReadAllAvailable()
    limited.latestOffset(offset(1), ReadMaxRows(7))
    limited.latestOffset(offset(1), ReadAllAvailable())
    assert [one[1] for one in limited._planner.asked] == [True, False]


def test_available_now_ends_where_the_logs_end_as_it_begins(reader_of):
    """Else it would go on while records are written, and leave a remainder below ``minOffsetsPerTrigger``."""
    reader = reader_of(minOffsetsPerTrigger="7")
    assert reader._planner.frozen == 0
    reader.prepareForTriggerAvailableNow()
    assert reader._planner.frozen == 1


def test_a_group_is_told_where_a_batch_starts_that_follows_and_never_where_it_will_end(reader_of):
    reader = reader_of()
    reader.latestOffset(offset(5), ReadAllAvailable())
    reader.latestOffset(offset(9), ReadAllAvailable())
    reader.commit(offset(9))
    assert reader._offset_committer.told == [(5, False), (9, True), (9, False)]


def test_a_commit_to_a_group_goes_by_the_topics_that_there_are_now(reader_of):
    """Not those of the batch that is completed: its positions may be in a former topic of the name."""
    former, now = ({"t": letter * 32} for letter in "ab")
    reader = reader_of()
    reader._planner.end = StreamOffset(positions={T0: 9}, topic_ids=now).to_json()
    before = StreamOffset(positions={T0: 5}, topic_ids=former).to_json()
    reader.latestOffset(before, ReadAllAvailable())
    reader.commit(before)  # after the question for the next batch's end, as Spark does
    assert reader._offset_committer.topic_ids == [now, now]


def test_a_commit_to_a_group_before_any_question_goes_by_the_topics_of_its_batch(reader_of):
    reader = reader_of()
    ids = {"t": "a" * 32}
    reader.commit(StreamOffset(positions={T0: 5}, topic_ids=ids).to_json())
    assert reader._offset_committer.topic_ids == [ids]


def test_a_group_that_does_not_answer_holds_up_a_batch_for_seconds_only(reader_of, monkeypatch):
    reader = reader_of(**{"kafka.group.id": "g", "commitOffsets": "true"})
    del reader.__dict__["_offset_committer"]
    told = []

    def commit(_router, group_id, positions, deadline):
        told.append((group_id, dict(positions), deadline.remaining_ms <= 3_000))

    monkeypatch.setattr("spark_kafka_native.kafka.group.committed_offsets.commit_offsets", commit)
    reader.commit(offset(9))
    assert told == [("g", {T0: 9}, True)]
    plain = reader_of(**{"kafka.group.id": "g"})
    del plain.__dict__["_offset_committer"]
    plain.commit(offset(9))
    assert len(told) == 1


def test_without_admission_control_what_was_planned_last_is_the_start(reader_of):
    reader = reader_of()
    assert reader.latestOffset() == offset(9)
    reader.partitions(offset(1), offset(9))
    reader.latestOffset()
    assert reader._planner.asked == [(offset(1), False), (offset(9), False)]
    assert reader._offset_committer.told == []


def test_an_end_from_before_a_restart_says_where_it_is_ends_the_query(reader_of):
    """Spark 4.1 with spark.sql.streaming.triggerAvailableNowWrapper.enabled: each run would seem to be the
    first one, which starts where its end says."""
    reader = reader_of()
    reader.latestOffset()
    for end in (offset(5), offset(9)):
        with pytest.raises(ConfigError, match=r"triggerAvailableNowWrapper\.enabled: .* Set it to false"):
            reader.partitions(offset(5), end)
    assert reader._planner.asked == [(offset(1), False)]


def test_a_first_batch_and_a_restart_without_that_conf_go_on(reader_of):
    first, restarted = reader_of(), reader_of()
    first.latestOffset()
    first.partitions(offset(1), offset(1))  # of a first batch that is empty
    restarted.partitions(offset(5), offset(5))
    for reader in (first, restarted):
        reader.latestOffset()
        reader.partitions(offset(5), offset(9))
    later = reader_of()  # PySpark 4.2
    later.latestOffset(offset(5), ReadAllAvailable())
    later.partitions(offset(5), offset(9))


def test_what_workers_get_is_the_task_alone(reader_of):
    reader = reader_of(**{"kafka.group.id": "g", "commitOffsets": "true"})
    del reader.__dict__["_planner"], reader.__dict__["_offset_committer"]
    assert vars(pickle.loads(pickle.dumps(reader))).keys() == {"_task"}


def test_a_querys_process_loads_nothing_of_groups():
    """Each streaming query starts a process of its own, and waits while that imports."""
    script = """
import sys
from spark_kafka_native.spark.source import KafkaDataSource
source = KafkaDataSource({"kafka.bootstrap.servers": "h:1", "subscribe": "t"})
source.streamReader(source.schema())
import spark_kafka_native.spark.read.driver.stream_logs, spark_kafka_native.spark.read.driver.stream_planner
loaded = [name for name in sys.modules if name.startswith("spark_kafka_native")]
print(len(loaded) > 50, [name for name in loaded if {"group", "producer", "worker"} & {*name.split(".")}])
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert ran.stdout == "True []\n"


def test_a_querys_process_does_not_collect_garbage_before_it_answers(monkeypatch):
    """It runs no tasks, so that no garbage is collected after them: there is nothing to save."""
    full = []
    monkeypatch.setattr(gc, "collect", lambda *_: full.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: full.append("freeze"))
    monkeypatch.setattr("spark_kafka_native.spark.worker_tuning._settled", False)
    with PlanningCluster() as cluster:
        cluster.create("t")
        given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"}
        options = StreamOptions.parse(OptionValues.parse(given, Scope.STREAM))
        assert KafkaStreamReader(options, full_schema(False)).initialOffset()["t"] == {"0": 0}
    assert full == []


def test_a_topic_for_dead_letters_that_is_read_is_refused_before_a_batch_is_logged(reader_of):
    """A restart plans a batch that is logged once more, also with a pattern that leaves the topic out."""
    columns = StructType().add("value", "string")
    reader = reader_of(columns, **{"value.format": "string", "mode": "dlq", "dlq.topic": "t"})
    for asked in ((offset(1), ReadAllAvailable()), (None, None)):
        with pytest.raises(ConfigError, match=r"dlq\.topic=t is among the topics that are read"):
            reader.latestOffset(*asked)


def test_a_topic_for_dead_letters_that_a_logged_batch_reads_is_refused(reader_of):
    """The checkpoint may have been written with other options."""
    columns = StructType().add("value", "string")
    reader = reader_of(columns, **{"value.format": "string", "mode": "dlq", "dlq.topic": "t"})
    reader._planner.plan = lambda *_: [(OffsetRange(topic="t", partition=0, start=At(1), end=At(9)),)]
    with pytest.raises(ConfigError, match=r"dlq\.topic=t is among the topics that are read"):
        reader.partitions(offset(1), offset(9))


def test_a_topic_for_dead_letters_beside_the_topics_that_are_read_is_no_circle(reader_of):
    columns = StructType().add("value", "string")
    reader = reader_of(columns, **{"value.format": "string", "mode": "dlq", "dlq.topic": "letters"})
    task = (OffsetRange(topic="t", partition=0, start=At(1), end=At(9)),)
    reader._planner.plan = lambda *_: [task]
    assert reader.latestOffset(offset(1), ReadAllAvailable()) == offset(9)
    assert [one.ranges for one in reader.partitions(offset(1), offset(9))] == [task]


def test_tasks_believe_the_ends_of_a_batch(reader_of):
    """They were in the log at planning: a leader that lags behind for a moment is waited for."""
    assert reader_of()._task.ends_are_known


@pytest.fixture
def letters(monkeypatch):
    """A cluster with a topic for dead letters, and a router to it. No topic is waited for for long."""
    for name in ("NEW_TOPIC_WAIT_MS", "KNOWN_TOPIC_WAIT_MS"):
        monkeypatch.setattr(retry_policy, name, 300)
    with PlanningCluster() as cluster:
        cluster.create("letters")
        client = ClientConfig.from_properties({"bootstrap.servers": cluster.bootstrap_servers})
        with closing(Router(client)) as router:
            yield cluster, router


def test_a_topic_for_dead_letters_has_to_exist(letters):
    _, router = letters
    check_letter_topic(router, "letters")
    with pytest.raises(ConfigError, match=r"dlq\.topic: topic other does not exist"):
        check_letter_topic(router, "other")


def test_a_wrong_name_of_a_topic_for_dead_letters_is_waited_for_as_one_that_was_never_seen(
    letters, monkeypatch, caplog
):
    _, router = letters
    monkeypatch.setattr(retry_policy, "SAY_UNKNOWN_MS", 0)
    with pytest.raises(ConfigError, match="topic other does not exist"):
        check_letter_topic(router, "other")
    assert "No broker knows the topic other (is the name right?)" in caplog.text


def test_a_stream_begins_only_with_a_topic_for_dead_letters(letters):
    """Else it would fail at the first bad record, perhaps days later."""
    cluster, _ = letters
    cluster.create("t")
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": "t",
        "value.format": "string",
        "mode": "dlq",
    }
    columns = StructType().add("value", "string")
    for topic in ("other", "letters"):
        options = StreamOptions.parse(OptionValues.parse(given | {"dlq.topic": topic}, Scope.STREAM))
        reader = KafkaStreamReader(options, columns)
        if topic == "other":
            with pytest.raises(ConfigError, match=r"dlq\.topic: topic other does not exist"):
                reader.initialOffset()
        else:
            assert reader.initialOffset()["t"] == {"0": 0}


def test_a_topic_for_dead_letters_that_may_not_be_described_is_not_called_missing(letters):
    cluster, router = letters

    def answer(request, version):
        response = cluster.metadata(request, version)
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return replace(response, topics=[replace(one, error_code=refused) for one in response.topics])

    cluster[1].on(MetadataRequest, answer)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED") as caught:
        check_letter_topic(router, "letters")
    assert caught.value.error_code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE])
def test_one_answer_of_a_broker_that_lags_makes_no_topic_for_dead_letters_missing(letters, monkeypatch, code):
    cluster, router = letters
    monkeypatch.setattr(retry_policy, "NEW_TOPIC_WAIT_MS", 60_000)
    lagging = [code]

    def answer(request, version):
        response = cluster.metadata(request, version)
        if not lagging or not response.topics:
            return response
        error_code = lagging.pop()
        return replace(
            response, topics=[replace(one, error_code=error_code, partitions=[]) for one in response.topics]
        )

    cluster[1].on(MetadataRequest, answer)
    check_letter_topic(router, "letters")
    assert lagging == []
