"""What a stream asks a scripted cluster: ends that go back, topics that come and go meanwhile, sizes."""

import logging
from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
import pytest
from support.brokers.planning_cluster import PlanningCluster
from support.brokers.scripted_broker import properties
from support.consumer.failing_fetch import errors_of, fail_in

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.consumer.fetched_records import FetchedRecords
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    ConfigError,
    DeadlineExceededError,
    NetworkError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.driver import stream_logs
from spark_kafka_native.spark.read.driver.micro_batch import StreamOffset
from spark_kafka_native.spark.read.driver.stream_logs import SizeSampler, StreamLogs
from spark_kafka_native.spark.read.read_options import ReadOptions

pytestmark = pytest.mark.timed(0.1)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
def cluster():
    with PlanningCluster() as cluster:
        for tp in (*cluster.create("t", 2), *cluster.create("u")):
            cluster.logs[tp].end_offset = 50
        yield cluster


@pytest.fixture
def logs(cluster):
    made = []

    def make(**given):
        options = {
            "kafka.bootstrap.servers": "h:1",
            "subscribePattern": ".",
            "fetchOffset.retryIntervalMs": "10",
        }
        values = OptionValues.parse(options | given, Scope.STREAM)
        made.append(Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers))))
        return StreamLogs(made[-1], ReadOptions.for_stream(values, now_ms=1_000_000))

    yield make
    for router in made:
        router.close()


def at(positions, cluster):
    return StreamOffset(
        positions=positions, topic_ids={name: one.hex for name, one in cluster.topic_ids.items()}
    )


def test_a_start_says_which_topics_it_is_of(cluster, logs):
    """One that is created again before the first batch is another one."""
    start = logs(startingOffsets="latest").find_start()
    assert start == replace(at({T0: 50, T1: 50, U0: 50}, cluster), start={T0: 50, T1: 50, U0: 50})
    assert start.is_initial


def test_the_checkpoint_has_no_id_of_a_topic_without_one(cluster, logs):
    """Brokers before Kafka 2.8 give none."""
    cluster.topic_ids["t"] = UUID(int=0)
    start = logs().find_start()
    known = {"u": cluster.topic_ids["u"].hex}
    assert start.to_json() == {
        "t": {"0": 50, "1": 50},
        "u": {"0": 50},
        f"#id u {known['u']}": {},
        "#start": {},
        "#start t 0:50 1:50": {},
        "#start u 0:50": {},
    }
    assert logs().find_ends(start).topic_ids == known


@pytest.mark.parametrize("known", [[], ["t"]])
def test_the_ids_of_topics_that_the_checkpoint_does_not_know_are_those_of_now(cluster, logs, known):
    """A new topic, or a checkpoint of the JVM connector."""
    now = {name: one.hex for name, one in cluster.topic_ids.items()}
    start = StreamOffset(positions={T0: 50}, topic_ids={name: now[name] for name in known})
    assert logs().find_ends(start).topic_ids == now


def test_ends_and_ids_of_all_that_is_there(cluster, logs):
    ends = logs().find_ends(at({T0: 50, T1: 3}, cluster))
    assert ends.latest == {T0: 50, T1: 50, U0: 50}
    assert ends.topic_ids == {name: one.hex for name, one in cluster.topic_ids.items()}
    assert len(cluster[1].requests(ListOffsetsRequest)) == 1


@pytest.mark.parametrize("heals", [True, False])
def test_an_end_that_is_behind_is_asked_for_again_and_then_believed(cluster, logs, heals):
    cluster.logs[T0].end_offset = 49
    answered = []

    def answer(request, version):
        answered.append(request)
        if heals and len(answered) == 2:
            cluster.logs[T0].end_offset = 55
        return cluster.list_offsets(request, version)

    cluster[1].on(ListOffsetsRequest, answer)
    interval_ms = "500" if heals else "10"
    stream = logs(**{"fetchOffset.retryIntervalMs": interval_ms})
    assert stream.find_ends(at({T0: 50}, cluster)).latest[T0] == (55 if heals else 49)


def test_an_end_that_is_known_to_be_behind_is_asked_for_once(cluster, logs):
    """Else a stream would take seconds for each batch, for as long as the log stays short."""
    cluster.logs[T0].end_offset = 49
    stream = logs()

    def times_asked(held):
        before = len(cluster[1].requests(ListOffsetsRequest))
        assert stream.find_ends(at({T0: 50}, cluster), held).latest[T0] == 49
        return len(cluster[1].requests(ListOffsetsRequest)) - before

    assert times_asked({T0: 50}) == 1
    assert times_asked({T0: 51}) > 1


@pytest.mark.parametrize("position", [45, 50])
def test_a_transaction_that_is_open_holds_no_position_back(cluster, logs, position):
    """Read up to 50 with read_uncommitted, and now with read_committed: the log has these records."""
    cluster.logs[T0].last_stable_offset = 20
    cluster.logs[T1].last_stable_offset = 20
    committed = logs(**{"kafka.isolation.level": "read_committed", "fetchOffset.retryIntervalMs": "10"})
    found = committed.find_ends(at({T0: position, T1: 10}, cluster)).latest
    assert found == {T0: position, T1: 20, U0: 50}


def test_a_log_that_is_shorter_than_its_position_is_behind_with_read_committed_too(cluster, logs):
    cluster.logs[T0].end_offset, cluster.logs[T0].last_stable_offset = 44, 20
    committed = logs(**{"kafka.isolation.level": "read_committed"})
    assert committed.find_ends(at({T0: 45}, cluster)).latest[T0] == 20


def test_a_position_of_a_former_topic_says_nothing_about_open_transactions(cluster, logs):
    start = at({T0: 45}, cluster)
    cluster.topic_ids["t"] = uuid4()
    cluster.logs[T0].last_stable_offset = 20
    committed = logs(**{"kafka.isolation.level": "read_committed"})
    assert committed.find_ends(start).latest[T0] == 20


def test_a_partition_that_is_missing_is_asked_for_again(cluster, logs):
    gone = TopicPartition("t", 7)
    stream = logs(**{"fetchOffset.retryIntervalMs": "200"})
    assert gone not in stream.find_ends(at({gone: 0}, cluster)).latest
    assert len(cluster[1].requests(ListOffsetsRequest)) > 1


def test_a_cluster_that_does_not_answer_is_no_end(cluster, logs, monkeypatch):
    in_vain = DeadlineExceededError("nothing within the time")

    def fail(*_, **__):
        raise in_vain

    monkeypatch.setattr("spark_kafka_native.spark.read.driver.stream_logs.list_offsets_at", fail)
    for cause in (None, NetworkError("refused")):
        in_vain.__cause__ = cause
        with pytest.raises(DeadlineExceededError) as caught:
            logs().find_ends(at({T0: 50}, cluster))
        assert caught.value is in_vain  # and not that of retries that were in vain, too


def test_a_look_up_that_a_deleted_topic_used_up_is_made_again(cluster, logs, monkeypatch):
    in_vain = DeadlineExceededError("nothing within the time")
    in_vain.__cause__ = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic u")
    look_up = stream_logs.list_offsets_at

    def delete(*_, **__):
        del cluster.topic_ids["u"]
        monkeypatch.setattr(stream_logs, "list_offsets_at", look_up)
        raise in_vain

    monkeypatch.setattr(stream_logs, "list_offsets_at", delete)
    assert logs().find_ends(at({T0: 50}, cluster)).latest == {T0: 50, T1: 50}


def test_a_recreated_topic_is_not_waited_for(cluster, logs):
    start = at({T0: 50}, cluster)
    cluster.topic_ids["t"] = uuid4()
    cluster.logs[T0].end_offset = 2
    ends = logs(**{"fetchOffset.retryIntervalMs": "500"}).find_ends(start)
    assert ends.latest[T0] == 2
    assert ends.topic_ids["t"] == cluster.topic_ids["t"].hex
    assert len(cluster[1].requests(ListOffsetsRequest)) == 1


@pytest.mark.parametrize("lagging", [1, 2])
def test_one_broker_that_still_gives_another_id_is_not_believed(cluster, logs, lagging):
    start = at({T0: 50}, cluster)
    right, wrong, answered = cluster.topic_ids["t"], uuid4(), []

    def answer(request, version):
        response = cluster.metadata(request, version)
        topic_id = wrong if len(answered) < lagging else right
        answered.append(topic_id)
        topics = [replace(one, topic_id=topic_id) if one.name == "t" else one for one in response.topics]
        return replace(response, topics=topics)

    cluster[1].on(MetadataRequest, answer)
    ends = logs().find_ends(start)
    assert (ends.topic_ids["t"], ends.latest[T0]) == (right.hex, 50)
    assert answered[lagging - 1 : lagging + 1] == [wrong, right]


@pytest.fixture
def delete_before_offsets(cluster, monkeypatch):
    """``delete_before_offsets(topic)``: between the questions which there are and where they end."""
    monkeypatch.setattr("spark_kafka_native.kafka.cluster.retry_policy.KNOWN_TOPIC_WAIT_MS", 50)

    def arrange(deleted):
        def answer(request, version):
            response = cluster.list_offsets(request, version)
            cluster.topic_ids.pop(deleted)
            for tp in [tp for tp in cluster.logs if tp.topic == deleted]:
                del cluster.logs[tp]
            refused = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for topic in response.topics:
                if topic.name == deleted:
                    topic.partitions[:] = [replace(one, error_code=refused) for one in topic.partitions]
            return response

        cluster[1].push(ListOffsetsRequest, answer)

    return arrange


@pytest.mark.parametrize(("deleted", "kept"), [("u", {T0: 50, T1: 50}), ("t", {U0: 50})])
def test_a_topic_that_is_deleted_meanwhile_is_missing_like_any_other(
    cluster, logs, delete_before_offsets, deleted, kept
):
    start = at({T0: 50, U0: 50}, cluster)
    delete_before_offsets(deleted)
    assert logs().find_ends(start).latest == kept


def test_a_topic_that_is_deleted_meanwhile_has_no_start_and_no_beginning(
    cluster, logs, delete_before_offsets
):
    delete_before_offsets("u")
    assert logs().find_beginnings([T1, U0]) == {T1: 0}
    cluster.create("u")
    delete_before_offsets("u")
    assert logs(startingOffsets="latest").find_start().positions == {T0: 50, T1: 50}


def fill(cluster, tp, size, batches=2):
    cluster.logs[tp].end_offset = 0
    for _ in range(batches):
        cluster.logs[tp].append([b"x" * size] * 600)


def test_sizes_are_sampled_of_what_is_read_next(cluster, logs):
    fill(cluster, T0, 100)
    fill(cluster, U0, 1000)
    cluster.logs[T1].end_offset = 3  # and nothing that could be fetched
    one, ids = logs(), at({}, cluster).topic_ids
    sizes = one.sample_sizes({T0: 0, U0: 5}, {T0: 1200, U0: 1200}, ids).bytes_per_offset
    # Key, value and headers with their offsets in Arrow's columns.
    assert sizes == {T0: pytest.approx(100, abs=30), U0: pytest.approx(1000, abs=30)}
    asked = len(cluster[1].requests(FetchRequest))
    assert one.sample_sizes({T0: 10}, {T0: 10}, ids).bytes_per_offset == {}
    assert len(cluster[1].requests(FetchRequest)) == asked


def test_a_partition_that_is_not_sampled_counts_as_before_else_as_its_topic(cluster, logs):
    many = cluster.create("many", 12)
    for tp in many:
        fill(cluster, tp, 100, batches=1)
    one, ids = logs(), at({}, cluster).topic_ids
    sizes = one.sample_sizes(dict.fromkeys(many, 0), dict.fromkeys(many, 600), ids).bytes_per_offset
    assert sizes == dict.fromkeys(many, pytest.approx(100, abs=30))
    asked = {
        partition.partition
        for request in cluster[1].requests(FetchRequest)
        for topic in request.topics
        for partition in topic.partitions
    }
    assert asked == set(range(8))  # all are as long: the first
    fill(cluster, U0, 1000)
    longest = one.sample_sizes({many[0]: 599, U0: 0}, {many[0]: 600, U0: 1200}, ids).bytes_per_offset
    assert longest[U0] == pytest.approx(1000, abs=30)


def test_the_partitions_with_the_most_to_read_are_sampled(cluster, logs):
    many = cluster.create("many", 12)
    for tp in many:
        fill(cluster, tp, 100, batches=1)
    begin = {tp: 599 if tp.partition < 4 else 0 for tp in many}
    logs().sample_sizes(begin, dict.fromkeys(many, 600), at({}, cluster).topic_ids)
    asked = {
        partition.partition
        for request in cluster[1].requests(FetchRequest)
        for topic in request.topics
        for partition in topic.partitions
    }
    assert asked == set(range(4, 12))


def test_a_sample_is_small_and_soon_there_however_much_a_read_may_fetch_or_wait(cluster, logs):
    fill(cluster, T0, 100)
    read = {
        "kafka.fetch.max.bytes": "50000000",
        "kafka.max.partition.fetch.bytes": "40000000",
        "kafka.fetch.max.wait.ms": "20000",
        "kafka.poll.timeout.ms": "90000",
    }
    logs(**read).sample_sizes({T0: 0}, {T0: 1200}, at({}, cluster).topic_ids)
    request, *_ = cluster[1].requests(FetchRequest)
    ((partition,),) = [topic.partitions for topic in request.topics]
    assert (partition.partition_max_bytes, request.max_bytes, request.max_wait_ms) == (65_536, 524_288, 2_500)


def test_a_sample_ends_with_the_first_records_however_many_follow(cluster, logs):
    """They may be the backlog of a week."""
    fill(cluster, T0, 100, batches=30)
    sizes = logs().sample_sizes({T0: 0}, {T0: 18_000}, at({}, cluster).topic_ids)
    assert sizes.bytes_per_offset == {T0: pytest.approx(100, abs=30)}
    assert len(cluster[1].requests(FetchRequest)) <= 5  # some are on their way when the first is answered


def test_a_log_that_ends_before_its_sample_is_not_waited_for(cluster, logs):
    """Some time after the ends were listed, a new leader may have less."""
    fill(cluster, T0, 100, batches=1)
    fill(cluster, U0, 1000, batches=1)
    sizes = logs().sample_sizes({T0: 600, U0: 0}, {T0: 700, U0: 600}, at({}, cluster).topic_ids)
    assert sizes.bytes_per_offset == {U0: pytest.approx(1000, abs=30)}
    asked = [
        request
        for request in cluster[1].requests(FetchRequest)
        if 600 in {one.fetch_offset for topic in request.topics for one in topic.partitions}
    ]
    assert len(asked) <= 3


def test_a_position_that_is_lost_is_sampled_where_the_log_begins(cluster, logs, caplog):
    """And the other partitions as if nothing had happened."""
    for tp, size in ((T0, 100), (T1, 300), (U0, 1000)):
        fill(cluster, tp, size)
    cluster.logs[T0].log_start_offset = cluster.logs[T1].log_start_offset = 600
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        sizes = (
            logs()
            .sample_sizes({T0: 5, T1: 7, U0: 5}, {T0: 1200, T1: 500, U0: 1200}, at({}, cluster).topic_ids)
            .bytes_per_offset
        )
    # Nothing of T1's range is left: it counts as its topic.
    sized = {T0: pytest.approx(100, abs=30), T1: pytest.approx(100, abs=30), U0: pytest.approx(1000, abs=30)}
    assert sizes == sized
    assert not caplog.records


def test_a_leader_that_refuses_where_it_says_its_log_begins_is_not_asked_forever(cluster, logs):
    """A sample may be missing; the stream must go on."""
    fill(cluster, T0, 100)
    fill(cluster, T1, 300)
    answered = []

    def answer(request, version):
        response = cluster.fetcher(1)(request, version)
        answered.append(response)
        if len(answered) > 20:
            return response
        topics = [
            replace(
                topic,
                partitions=[
                    replace(one, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=5, records=None)
                    if one.partition_index == 0
                    else one
                    for one in topic.partitions
                ],
            )
            for topic in response.responses
        ]
        return replace(response, responses=topics)

    cluster[1].on(FetchRequest, answer)
    sizes = (
        logs().sample_sizes({T0: 0, T1: 0}, {T0: 1200, T1: 1200}, at({}, cluster).topic_ids).bytes_per_offset
    )
    assert sizes == dict.fromkeys((T0, T1), pytest.approx(300, abs=30))  # as its topic
    assert len(answered) <= 20


@pytest.mark.parametrize("error", errors_of(T0, 7, 3), ids=lambda error: type(error).__name__)
def test_an_error_of_one_partition_leaves_the_sizes_of_the_others(cluster, logs, monkeypatch, caplog, error):
    """The batch is planned all the same: its task finds the error where the record is."""
    fill(cluster, U0, 1000)
    fail_in(monkeypatch, T0, error)
    sizes = (
        logs().sample_sizes({T0: 7, U0: 0}, {T0: 50, U0: 1200}, at({}, cluster).topic_ids).bytes_per_offset
    )
    assert sizes == {U0: pytest.approx(1000, abs=30)}
    assert not caplog.records


def test_sizes_that_can_not_be_sampled_are_a_warning(cluster, logs, caplog):
    fill(cluster, T0, 100)
    fill(cluster, U0, 1000)
    cluster.topic_ids["t"] = uuid4()
    ids = at({}, cluster).topic_ids | {"t": "0" * 31 + "1"}
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        assert logs().sample_sizes({T0: 5}, {T0: 50}, ids).bytes_per_offset == {}
    assert "could not be sampled" in caplog.text


def test_starting_offsets_that_miss_partitions_are_refused_in_the_words_for_streams(cluster, logs):
    for given in ('{"t":{"0":1}}', '{"t":{"0":1,"1":2},"u":{"0":0,"1":0}}'):
        with pytest.raises(ConfigError) as caught:
            logs(startingOffsets=given).find_start()
        assert "you must specify all TopicPartitions.\nUse -1 for latest, -2 for earliest" in str(
            caught.value
        )
        assert "Assigned: [t-0, t-1, u-0]" in str(caught.value)
    assert "Specified: [t-0, t-1, u-0, u-1] " in str(caught.value)
    found = logs(startingOffsets='{"t":{"0":1,"1":-1},"u":{"0":-2}}').find_start()
    assert found.positions == {T0: 1, T1: 50, U0: 0}


def test_a_recreated_topic_is_found_at_once_and_the_others_are_waited_for(cluster, logs):
    start = at({T0: 50, U0: 50}, cluster)
    cluster.topic_ids["t"] = uuid4()
    cluster.logs[T0].end_offset = 2
    cluster.logs[U0].end_offset = 49
    ends = logs(**{"fetchOffset.retryIntervalMs": "100"}).find_ends(start)
    assert (ends.latest[T0], ends.latest[U0]) == (2, 49)
    assert len(cluster[1].requests(ListOffsetsRequest)) > 1


def test_beginnings_are_those_of_partitions_that_are_there_now(cluster, logs):
    one = logs()
    one.find_ends(at({}, cluster))
    # Known by now, and gone since.
    cluster.topic_ids.pop("u")
    asked = len(cluster[1].requests(ListOffsetsRequest))
    assert one.find_beginnings([T0, U0]) == {T0: 0}
    requests = cluster[1].requests(ListOffsetsRequest)[asked:]
    assert {topic.name for request in requests for topic in request.topics} == {"t"}
    # And one that is new since.
    (new,) = cluster.create("v")
    cluster.logs[new].log_start_offset, cluster.logs[new].end_offset = 3, 50
    assert one.find_beginnings([new]) == {new: 3}


def test_a_topic_that_no_metadata_mention_has_no_beginning(cluster, logs):
    def answer(request, version):
        response = cluster.metadata(request, version)
        return replace(response, topics=[one for one in response.topics if one.name != "u"])

    cluster[1].on(MetadataRequest, answer)
    assert logs().find_beginnings([T0, U0]) == {T0: 0}


def test_a_broker_that_does_not_know_a_new_partition_yet_is_asked_again(cluster, logs):
    (new,) = cluster.create("v")
    lagging = iter([cluster.topic_ids.pop("v")])

    def answer(request, version):
        response = cluster.metadata(request, version)
        for topic_id in lagging:
            cluster.topic_ids["v"] = topic_id
        return response

    cluster[1].on(MetadataRequest, answer)
    assert logs().find_beginnings([T0, new]) == {T0: 0, new: 0}


def test_a_sample_is_of_the_first_offsets_only(cluster, logs):
    fill(cluster, T0, 10, batches=0)
    for _ in range(5):
        cluster.logs[T0].append([b"x" * 10] * 100)
    cluster.logs[T0].append([b"x" * 200] * 250)
    sizes = logs().sample_sizes({T0: 0}, {T0: 750}, at({}, cluster).topic_ids).bytes_per_offset
    assert sizes == {T0: pytest.approx(20, abs=15)}  # and not 75, of all that a fetch brings


def test_offsets_that_leave_out_a_partition_are_refused_before_any_is_asked_for(cluster, logs):
    """A new partition may have no leader yet, while the checkpoint knows where the first batch starts."""
    with pytest.raises(ConfigError, match="specify all"):
        logs(subscribePattern="t", startingOffsets='{"t": {"0": 5}}').find_start()
    assert cluster[1].requests(ListOffsetsRequest) == []


def pieces_of(monkeypatch, *pieces):
    """A sampler that is given these pieces of logs, each where it begins."""
    sampler = SizeSampler(None, ConsumerConfig())  # type: ignore[arg-type]
    found = [
        FetchedRecords(
            topic_partition=tp,
            columns=RecordColumns(
                length=len(offsets),
                offset=np.array(offsets, np.int64),
                value=pa.array([b"x" * 60] * len(offsets), pa.binary()),
            ),
            from_offset=from_offset,
            next_offset=next_offset,
            log_start_offset=0,
            high_watermark=next_offset,
            last_stable_offset=next_offset,
        )
        for tp, offsets, from_offset, next_offset in pieces
    ]
    asked = []

    def fetch(ranges, *_):
        asked.append(dict(ranges))
        assert len(asked) < 100, "sampling does not end"
        yield from (one for one in found if ranges.get(one.topic_partition, (None,))[0] == one.from_offset)

    monkeypatch.setattr(sampler, "_fetcher", SimpleNamespace(fetch=fetch))
    return sampler, asked


@pytest.mark.parametrize(
    ("offsets", "until", "density"),
    [
        (range(10), 10, 1),
        (range(0, 1000, 10), 1000, 1 / 10),
        ([0, 500], 1000, 1 / 500),
        ([7], 12, 1 / 5),
        # A gap within: what follows it may be as dense as the records before it.
        ([0, 1, 2, *range(100_000, 100_020)], 100_020, 1),
        ([*range(20), 100_000], 200_000, 1),
        ([0, 100_000], 100_001, 1),
        ([0, 100_000, 100_001], 100_002, 1),
        # More records than are sampled: those behind them are not in the last part's offsets.
        ([*range(0, 3_750, 10), *range(3_750, 3_975)], 3_975, 1),
    ],
)
def test_sizes_are_those_of_offsets_and_not_of_records(monkeypatch, offsets, until, density):
    """Limits count offsets: compaction leaves fewer records than that."""
    sampler, asked = pieces_of(monkeypatch, (T0, offsets, 0, until))
    sizes = sampler.estimate({T0: 0}, {T0: 10**6}, {})
    assert sizes.bytes_per_offset == {T0: pytest.approx(64 * density, rel=0.05)}
    assert sizes.first == {T0: offsets[0]}
    assert asked == [{T0: (0, 10**6)}]


def test_a_log_that_begins_with_a_gap_is_sampled_behind_it(monkeypatch):
    """Compaction, or an aborted transaction; its offsets count apart, and only that partition is asked on."""
    sampler, asked = pieces_of(
        monkeypatch, (T0, [], 0, 5_000), (T1, range(10), 0, 10), (T0, range(90_000, 90_010), 5_000, 90_010)
    )
    sizes = sampler.estimate({T0: 0, T1: 0}, {T0: 10**6, T1: 10}, {})
    assert sizes.bytes_per_offset == {T0: pytest.approx(64, abs=1), T1: pytest.approx(64, abs=1)}
    assert sizes.first == {T0: 90_000, T1: 0}
    assert asked == [{T0: (0, 10**6), T1: (0, 10)}, {T0: (5_000, 10**6)}]


def test_a_gap_that_does_not_end_is_not_read_through(monkeypatch):
    """Of what follows, no size is known; it is not 0."""
    gaps = [(T0, [], start, start + 10) for start in range(0, 1_000, 10)]
    sampler, asked = pieces_of(monkeypatch, *gaps)
    sizes = sampler.estimate({T0: 0}, {T0: 10**6}, {})
    assert (sizes.bytes_per_offset, sizes.first) == ({}, {T0: 10 * len(asked)})
    assert len(asked) <= 8


def test_a_partition_that_ends_with_its_gap_is_done(monkeypatch):
    sampler, asked = pieces_of(monkeypatch, (T0, [], 0, 50))
    assert sampler.estimate({T0: 0}, {T0: 50}, {}).first == {T0: 50}
    assert len(asked) == 1
