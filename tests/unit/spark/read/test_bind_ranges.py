"""Bounds that a task looks up: `bind` in literals, `bind_ranges` against a scripted cluster."""

import time
from dataclasses import replace
from unittest.mock import Mock
from uuid import uuid4

import pytest
from support.brokers.planning_cluster import PlanningCluster
from support.brokers.scripted_broker import ScriptedCluster, properties

from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.cluster.offsets import list_offsets
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.consumer.fetcher import Fetcher
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, DeadlineExceededError, NetworkError
from spark_kafka_native.kafka.model import IsolationLevel, OffsetAt, TopicPartition
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.spark.read.data_loss import LogShrunk, OffsetsLost, PartitionsDeleted
from spark_kafka_native.spark.read.offset_range import (
    At,
    Earliest,
    FirstAtOrAfter,
    Inner,
    Latest,
    OffsetRange,
)
from spark_kafka_native.spark.read.worker import offset_binding
from spark_kafka_native.spark.read.worker.offset_binding import (
    Binding,
    LogsNow,
    bind,
    bind_ranges,
    drop_deleted,
)

pytestmark = pytest.mark.timed(0.1)

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
UNCOMMITTED, COMMITTED = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED


def planned(start, end, partition=0, **changes):
    return OffsetRange(topic="t", partition=partition, start=start, end=end, **changes)


def now(earliest=0, latest=100, log_end=None):
    return LogsNow(
        earliest={TP: earliest}, latest={TP: latest}, log_end={} if log_end is None else {TP: log_end}
    )


def spans(binding):
    return [(one.position, one.until_offset) for one in binding.ranges]


@pytest.mark.parametrize(
    ("one", "there", "expected"),
    [
        (planned(Earliest(), Latest()), now(20, 100), [(20, 100)]),
        (planned(Earliest(), Latest()), now(100, 100), []),
        (planned(At(5), At(50)), now(20, 100), [(5, 50)]),  # that 5 is gone, the leader says to a fetch
        (planned(Inner(5), At(50)), now(20, 100), [(20, 50)]),
        (planned(Inner(5), At(50)), now(60, 100), []),
        (planned(At(5), Latest(), floor=7, ceiling=9), now(), [(7, 9)]),
        (planned(At(5), Latest(), ceiling=200), now(), [(5, 100)]),
        (planned(At(5), At(50), floor=3), now(), [(5, 50)]),  # a filter never goes before the start
        (planned(Earliest(), Latest(), floor=7), now(20, 100), [(20, 100)]),
        (planned(At(5), At(50), floor=50), now(), []),
        (planned(At(5), At(50), floor=70), now(), []),
        (planned(At(5), At(50), ceiling=5), now(), []),
        (planned(At(5), At(50)), now(log_end=50), [(5, 50)]),
        # Of a partition with two pieces, what the log's end is for one is no matter of the other.
        (planned(At(5), Latest()), now(latest=30, log_end=20), [(5, 30)]),
    ],
)
def test_bounds_that_are_there(one, there, expected):
    found = bind(one, there)
    assert (spans(found), found.losses) == (expected, ())
    assert all(bound.planned is one and bound.is_untouched for bound in found.ranges)


@pytest.mark.parametrize(
    ("log_end", "left", "lost", "log"),
    [(30, [(5, 30)], 20, "[5, 30)"), (5, [], 45, "[5, 5)"), (3, [], 45, "[3, 3)")],
)
def test_a_fixed_end_beyond_the_log_is_a_loss_at_once(log_end, left, lost, log):
    found = bind(planned(At(5), At(50)), now(log_end=log_end))
    assert spans(found) == left
    note = f"The log has {log}."
    loss = OffsetsLost(topic_partition=TP, from_offset=5, until_offset=50, lost=lost, note=note)
    assert found.losses == (loss,)
    filtered = bind(planned(At(5), At(50), ceiling=max(5, log_end) + 3), now(log_end=log_end)).losses
    assert [one.lost for one in filtered] == [3]


@pytest.mark.parametrize(
    ("start", "latest", "is_loss"), [(At(50), 50, False), (At(50), 49, True), (Inner(50), 49, True)]
)
def test_a_log_that_ends_before_the_start_is_shorter_than_it_was(start, latest, is_loss):
    found = bind(planned(start, Latest()), now(latest=latest))
    shrunk = LogShrunk(topic_partition=TP, from_offset=50, until_offset=latest)
    assert found == Binding(losses=(shrunk,) if is_loss else ())


@pytest.fixture
def cluster():
    with PlanningCluster() as cluster:
        for tp in cluster.create("t", 2):
            cluster.logs[tp].log_start_offset = 20
            cluster.logs[tp].end_offset = 50
        yield cluster


@pytest.fixture
def router(cluster):
    quick = properties(cluster.bootstrap_servers, default_api_timeout_ms=1_500)
    router = Router(ClientConfig.from_properties(quick))
    yield router
    router.close()


def test_open_bounds_are_looked_up(cluster, router):
    ranges = [planned(Earliest(), Latest()), planned(At(30), Latest(), partition=1)]
    assert spans(bind_ranges(router, ranges, UNCOMMITTED)) == [(20, 50), (30, 50)]
    cluster.logs[TP].last_stable_offset = 40
    assert spans(bind_ranges(router, ranges, COMMITTED)) == [(20, 40), (30, 50)]
    assert spans(bind_ranges(router, ranges, UNCOMMITTED)) == [(20, 50), (30, 50)]


def test_the_end_of_a_time_is_its_first_record_or_the_end_of_the_log(cluster, router):
    until = planned(Earliest(), FirstAtOrAfter(700))
    assert spans(bind_ranges(router, [until], UNCOMMITTED)) == [(20, 50)]
    cluster.times = {TP: [(699, 30), (700, 31), (900, 40)]}
    assert spans(bind_ranges(router, [until], UNCOMMITTED)) == [(20, 31)]
    # Offset 0 is an end like any other: of a log that begins after that time nothing is read.
    cluster.logs[TP].log_start_offset = 0
    cluster.times = {TP: [(700, 0), (900, 40)]}
    assert spans(bind_ranges(router, [until], UNCOMMITTED)) == []


def test_a_record_that_is_too_late_for_the_end_is_not_read_although_it_comes_while_the_end_is_looked_up(
    cluster, router
):
    def arrives():
        cluster.times = {TP: [(700, 50)]}
        cluster.logs[TP].end_offset = 51

    cluster.on_lookup = arrives
    assert spans(bind_ranges(router, [planned(Earliest(), FirstAtOrAfter(700))], UNCOMMITTED)) == [(20, 50)]


def test_a_record_that_is_too_late_is_not_read_although_it_comes_between_the_questions_for_the_end(
    cluster, router
):
    """The end of the log and the time are asked for one after the other."""

    def answer(request, version):
        response = cluster.list_offsets(request, version)
        if any(one.timestamp != -2 for topic in request.topics for one in topic.partitions):
            cluster.times = {TP: [(700, 50)]}
            cluster.logs[TP].end_offset = 51
        return response

    cluster[1].on(ListOffsetsRequest, answer)
    assert spans(bind_ranges(router, [planned(Earliest(), FirstAtOrAfter(700))], UNCOMMITTED)) == [(20, 50)]


def test_an_open_transaction_is_no_loss(cluster, router):
    cluster.logs[TP].last_stable_offset = 30
    assert spans(bind_ranges(router, [planned(At(20), At(50))], COMMITTED)) == [(20, 50)]


def test_ends_that_are_known_are_not_looked_up(cluster, router):
    ranges = [planned(At(20), At(60), topic_id=cluster.topic_ids["t"].hex)]
    assert spans(bind_ranges(router, ranges, UNCOMMITTED, ends_are_known=True)) == [(20, 60)]
    assert cluster[1].requests(ListOffsetsRequest) == []
    assert spans(bind_ranges(router, ranges, UNCOMMITTED)) == [(20, 50)]


def test_a_log_that_looks_other_than_planned_is_looked_at_with_new_metadata(cluster, router):
    topic_id = cluster.topic_ids["t"].hex
    router.metadata({"t"})

    def asked(*ranges):
        before = len(cluster[1].requests(MetadataRequest))
        bind_ranges(router, ranges, UNCOMMITTED)
        return len(cluster[1].requests(MetadataRequest)) - before

    assert asked(planned(At(20), At(50), topic_id=topic_id)) == 0
    assert asked(planned(Earliest(), Latest(), topic_id=topic_id)) == 0
    assert asked(planned(At(20), At(51), topic_id=topic_id)) == 2
    assert asked(planned(At(50), Latest(), topic_id=topic_id)) == 2
    assert asked(planned(Inner(5), At(20), topic_id=topic_id)) == 2
    cluster.logs[TP].log_start_offset = 50
    assert asked(planned(Earliest(), Latest(), topic_id=topic_id)) == 0


def test_a_topic_that_became_another_and_is_as_long_as_planned_is_found_out(cluster, router):
    former = cluster.topic_ids["t"]
    router.metadata({"t"})
    cluster.topic_ids["t"] = uuid4()
    cluster.logs[TP].log_start_offset = 60
    cluster.logs[TP].end_offset = 90
    # Its earliest is beyond the end of the piece: nothing would be fetched, so that no fetch can tell.
    found = bind_ranges(router, [planned(Inner(5), At(50), topic_id=former.hex)], UNCOMMITTED)
    assert found.ranges == ()
    assert [(loss.from_offset, loss.until_offset) for loss in found.losses] == [(5, 50)]


def test_a_topic_that_became_another_is_lost_once_however_often_it_is_looked_at(cluster, router):
    former = cluster.topic_ids["t"]
    cluster.topic_ids["t"] = uuid4()
    router.metadata({"t"}, refresh=True)  # the first look knows it
    cluster.logs[TP].log_start_offset = cluster.logs[TP].end_offset = 5
    cluster.logs[OTHER].end_offset = 5
    ranges = [planned(At(20), Latest(), topic_id=former.hex), planned(At(9), At(20), partition=1)]
    found = bind_ranges(router, ranges, UNCOMMITTED)
    assert [loss.from_offset for loss in found.losses if isinstance(loss, OffsetsLost)] == [20, 9]


def test_a_topic_that_became_another_is_found_out_beside_a_range_that_is_as_planned(cluster, router):
    cluster.create("u", 1)
    cluster.logs[TopicPartition("u", 0)].end_offset = 50
    former = {topic: cluster.topic_ids[topic].hex for topic in ("t", "u")}
    router.metadata({"t", "u"})
    cluster.topic_ids["t"] = uuid4()
    cluster.logs[TP].log_start_offset = 0
    cluster.logs[TP].end_offset = 5
    unchanged = replace(planned(At(0), At(50), topic_id=former["u"]), topic="u")
    found = bind_ranges(router, [planned(At(20), Latest(), topic_id=former["t"]), unchanged], UNCOMMITTED)
    assert [(one.planned.topic, *span) for one, span in zip(found.ranges, spans(found), strict=True)] == [
        ("t", 0, 5),
        ("u", 0, 50),
    ]
    (loss,) = found.losses
    assert (loss.topic_partition, loss.from_offset) == (TP, 20)
    assert "deleted and created again" in loss.note


@pytest.fixture
def short_wait(monkeypatch):
    monkeypatch.setattr(retry_policy, "KNOWN_TOPIC_WAIT_MS", 300)


def test_partitions_that_are_gone_are_a_loss_and_the_others_are_read(cluster, router, short_wait):
    ranges = [planned(Earliest(), Latest(), partition=p) for p in (0, 1, 7)]
    found = bind_ranges(router, ranges, UNCOMMITTED)
    assert spans(found) == [(20, 50), (20, 50)]
    assert found.losses == (PartitionsDeleted(topic_partitions=frozenset({TopicPartition("t", 7)})),)
    assert isinstance(found.losses[0].cause, BrokerError | DeadlineExceededError)


def test_a_partition_that_is_said_to_be_gone_at_once_is_a_loss(cluster, router, monkeypatch, short_wait):
    """Not only one that was waited for in vain."""

    def answer(router, places, **how):
        if missing in places:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there")
        return list_offsets(router, places, **how)

    missing, list_offsets = TopicPartition("t", 7), offset_binding.list_offsets
    monkeypatch.setattr(offset_binding, "list_offsets", answer)
    ranges = [planned(Earliest(), Latest(), partition=p) for p in (0, 7)]
    found = bind_ranges(router, ranges, UNCOMMITTED)
    assert spans(found) == [(20, 50)]
    assert found.losses == (PartitionsDeleted(topic_partitions=frozenset({missing})),)


@pytest.mark.parametrize("error", ["one topic", "a deadline"])
def test_a_topic_that_some_answers_lack_is_not_taken_for_deleted(cluster, router, short_wait, error):
    """The error is about one topic that was missing for long; or it was a deadline that came soon after an
    outage. A broker that restarts may not know the other topics yet."""
    cluster.create("u", 1)
    unknown = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there")
    late = DeadlineExceededError("in vain")
    late.__cause__ = unknown
    ranges = [
        planned(Earliest(), Latest()),
        OffsetRange(topic="u", partition=0, start=Earliest(), end=Latest()),
    ]
    list_offsets(router, {TP: OffsetAt.LATEST, TopicPartition("u", 0): OffsetAt.LATEST})
    del cluster.topic_ids["u"]
    gone = [
        lambda *asked: _with_error(cluster.metadata(*asked), "t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ] * 2
    cluster[1].push(MetadataRequest, *gone)
    there, losses = drop_deleted(router, ranges, unknown if error == "one topic" else late)
    assert there == ranges[:1]
    assert losses == [PartitionsDeleted(topic_partitions=frozenset({TopicPartition("u", 0)}))]
    cluster[1].push(MetadataRequest, *gone)
    assert drop_deleted(router, ranges[:1], late) == (ranges[:1], [])


def test_a_topic_that_only_the_last_answer_lacks_is_not_taken_for_deleted(cluster, router, short_wait):
    """The wait for another one has ended."""
    cluster.create("u", 1)
    other = OffsetRange(topic="u", partition=0, start=Earliest(), end=Latest())
    topic_id = cluster.topic_ids["t"]
    kept = planned(Earliest(), Latest(), topic_id=topic_id.hex)
    list_offsets(router, {TP: OffsetAt.LATEST, TopicPartition("u", 0): OffsetAt.LATEST})
    del cluster.topic_ids["u"]
    began = time.monotonic()

    def without_t_at_the_end(*asked):
        answer = cluster.metadata(*asked)
        is_late = time.monotonic() - began > 0.25
        return _with_error(answer, "t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if is_late else answer

    cluster[1].on(MetadataRequest, without_t_at_the_end)
    missing = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there")
    there, [loss] = drop_deleted(router, [kept, other], missing)
    assert (there, loss.topic_partitions) == ([kept], {TopicPartition("u", 0)})
    assert not router.was_deleted("t", topic_id)


def test_a_topic_that_one_answer_lacks_is_not_that_of_an_error_about_another_one(cluster, router, short_wait):
    cluster.create("u", 1)
    ranges = [planned(Earliest(), Latest()), OffsetRange(topic="u", partition=0, start=At(0), end=At(1))]
    list_offsets(router, {TP: OffsetAt.LATEST})
    cluster[1].push(
        MetadataRequest,
        lambda *asked: _with_error(cluster.metadata(*asked), "t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    )
    about_u = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "about u")
    assert drop_deleted(router, ranges, about_u) == (ranges, [])


def test_a_partition_that_is_new_is_not_taken_for_deleted_beside_a_topic_that_was_waited_for(
    cluster, router, monkeypatch
):
    """The broker that answers may not know of the added partitions yet."""
    monkeypatch.setattr(retry_policy, "KNOWN_TOPIC_WAIT_MS", 3_600_000)
    cluster.create("u", 1)
    other = TopicPartition("u", 0)
    list_offsets(router, {TP: OffsetAt.LATEST, other: OffsetAt.LATEST})
    topic_id = cluster.topic_ids.pop("u")
    router.refresh(["u"], router.deadline())
    router.note_deleted({"u": topic_id})
    cluster[1].push(MetadataRequest, *[lambda *asked: _with_one_partition(cluster.metadata(*asked), "t")] * 3)
    ranges = [
        planned(Earliest(), Latest(), partition=1),
        OffsetRange(topic="u", partition=0, start=At(0), end=At(1), topic_id=topic_id.hex),
    ]
    there, [loss] = drop_deleted(router, ranges, BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there"))
    assert (there, loss.topic_partitions) == (ranges[:1], {other})


def _with_one_partition(response, name):
    topics = [
        replace(topic, partitions=topic.partitions[:1]) if topic.name == name else topic
        for topic in response.topics
    ]
    return replace(response, topics=topics)


def test_a_topic_that_a_fetch_has_waited_for_is_waited_for_before_it_is_deleted(cluster, router, short_wait):
    """A silence may have taken most of that wait, which ends with the next answer."""
    topic_id = cluster.topic_ids["t"]
    list_offsets(router, {TP: OffsetAt.LATEST})
    del cluster.topic_ids["t"]
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC") as raised:
        list(Fetcher(router, ConsumerConfig()).fetch({TP: (20, 50)}, topic_ids={"t": topic_id}))
    cluster.topic_ids["t"] = topic_id
    cluster[1].push(MetadataRequest, lambda *asked: _without(cluster.metadata(*asked), "t"))
    ranges = [planned(At(20), At(50), topic_id=topic_id.hex)]
    assert drop_deleted(router, ranges, raised.value) == (ranges, [])


@pytest.mark.parametrize("end", ["full wait", "deadline"])
def test_a_deleted_topic_is_waited_for_once(cluster, router, monkeypatch, short_wait, end):
    """By all tasks of a process, and if a deadline ends what they ask, too."""
    ranges = [planned(Earliest(), Latest(), topic_id=cluster.topic_ids["t"].hex)]
    router.metadata({"t"})
    del cluster.topic_ids["t"]
    router.refresh({"t"}, router.deadline())
    late = DeadlineExceededError("in vain")
    late.__cause__ = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there")

    def end_late(router, places, **how):
        if places:
            raise late
        return {}

    if end == "deadline":
        monkeypatch.setattr(offset_binding, "list_offsets", end_late)
    losses = (PartitionsDeleted(topic_partitions=frozenset({TP})),)
    assert bind_ranges(router, ranges, UNCOMMITTED) == Binding(losses=losses)
    monkeypatch.setattr(retry_policy, "KNOWN_TOPIC_WAIT_MS", 3_600_000)
    asked = len(cluster[1].requests(MetadataRequest))
    found = bind_ranges(router, ranges, UNCOMMITTED)
    assert found == Binding(losses=losses)
    assert str(found.losses[0].cause).startswith("topic t: UNKNOWN_TOPIC_OR_PARTITION")
    assert len(cluster[1].requests(MetadataRequest)) == asked + 1


def test_without_ids_each_task_waits_as_the_topic_may_have_been_created_again(cluster, router, short_wait):
    topic_id = cluster.topic_ids.pop("t")
    assert bind_ranges(router, [planned(At(20), At(50))], UNCOMMITTED).losses
    cluster.topic_ids["t"] = topic_id
    cluster[1].push(MetadataRequest, lambda *asked: _without(cluster.metadata(*asked), "t"))
    found = bind_ranges(router, [planned(At(20), At(50))], UNCOMMITTED)
    assert (spans(found), found.losses) == ([(20, 50)], ())


def test_a_deadline_of_the_task_does_not_end_the_wait_for_what_is_missing(cluster):
    """Restarting brokers may not know it for longer."""
    router = Router(
        ClientConfig.from_properties(properties(cluster.bootstrap_servers, default_api_timeout_ms=200))
    )
    router.metadata({"t"}, deadline=router.deadline(10_000))
    later = time.monotonic() + 0.5

    def back_later(*asked):
        answer = cluster.metadata(*asked)
        return answer if time.monotonic() > later else _without(answer, "t")

    cluster[1].on(MetadataRequest, back_later)
    late = DeadlineExceededError("in vain")
    late.__cause__ = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there")
    ranges = [planned(At(20), At(50))]
    router.expect({"t"})
    assert drop_deleted(router, ranges, late) == (ranges, [])
    router.close()


def test_a_topic_that_another_broker_knows_is_not_deleted(short_wait):
    """The one that the task is connected to, which all answers of its wait come from, may lag for long."""
    with ScriptedCluster(2) as cluster:
        cluster.create("t", 1, leader=2)
        cluster[1].on(MetadataRequest, lambda *asked: _without(cluster.metadata(*asked), "t"))
        router = Router(ClientConfig.from_properties(properties(cluster[1].address)))
        ranges = [planned(At(20), At(50), topic_id=cluster.topic_ids["t"].hex)]
        router.expect({"t"})
        unknown = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there")
        assert drop_deleted(router, ranges, unknown) == (ranges, [])
        assert not router.was_deleted("t", ranges[0].topic_uuid)
        router.close()


def test_a_broker_that_is_down_does_not_keep_a_topic_from_being_deleted(monkeypatch, short_wait):
    monkeypatch.setattr(offset_binding, "SILENT_PART", 0.1)
    with ScriptedCluster(2) as cluster:
        cluster.create("t", 1, leader=2)
        router = Router(ClientConfig.from_properties(properties(cluster[1].address)))
        ranges = [planned(At(20), At(50), topic_id=cluster.topic_ids["t"].hex)]
        router.metadata({"t"})
        del cluster.topic_ids["t"]
        cluster[2].stop()
        unknown = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there")
        loss = PartitionsDeleted(topic_partitions=frozenset({TP}))
        assert drop_deleted(router, ranges, unknown) == ([], [loss])
        assert router.was_deleted("t", ranges[0].topic_uuid)
        router.close()


def test_an_error_that_is_about_something_else_ends_the_wait(cluster, router, monkeypatch):
    del cluster.topic_ids["t"]
    denied = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Metadata")
    monkeypatch.setattr(router, "retry", Mock(side_effect=denied))
    monkeypatch.setattr(router, "metadata", Mock())
    with pytest.raises(BrokerError, match="Metadata: CLUSTER_AUTHORIZATION_FAILED"):
        drop_deleted(router, [planned(At(20), At(50))], BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "there"))


@pytest.mark.parametrize("has_id", [True, False])
def test_a_topic_is_not_deleted_because_another_one_of_the_task_is(cluster, router, short_wait, has_id):
    """The offsets of the one that is deleted are asked for before the other one is."""
    cluster.create("u", 1)
    of_u, of_t = ((cluster.topic_ids[name].hex if has_id else None) for name in ("u", "t"))
    del cluster.topic_ids["u"]
    cluster[1].push(MetadataRequest, lambda *asked: _without(cluster.metadata(*asked), "t"))
    deleted = OffsetRange(topic="u", partition=0, start=Earliest(), end=Latest(), topic_id=of_u)
    found = bind_ranges(router, [deleted, planned(At(20), At(50), topic_id=of_t)], UNCOMMITTED)
    assert spans(found) == [(20, 50)]
    assert found.losses == (PartitionsDeleted(topic_partitions=frozenset({TopicPartition("u", 0)})),)


@pytest.mark.parametrize("times", [1, 2])
def test_a_task_goes_on_once_with_what_was_missing_until_a_moment_ago(router, monkeypatch, times):
    refusals = [BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "until now")] * times
    list_offsets = offset_binding.list_offsets

    def answer(router, places, **how):
        if refusals:
            raise refusals.pop()
        return list_offsets(router, places, **how)

    monkeypatch.setattr(offset_binding, "list_offsets", answer)
    if times == 1:
        assert spans(bind_ranges(router, [planned(Earliest(), Latest())], UNCOMMITTED)) == [(20, 50)]
    else:
        with pytest.raises(BrokerError, match="until now"):
            bind_ranges(router, [planned(Earliest(), Latest())], UNCOMMITTED)


def test_a_deleted_partition_does_not_count_as_one_that_was_missing_until_a_moment_ago(
    cluster, router, monkeypatch, short_wait
):
    """Another one may be after it."""
    missing, list_offsets = TopicPartition("t", 7), offset_binding.list_offsets
    refusals = [BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "until now")]

    def answer(router, places, **how):
        if missing in places:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there")
        if refusals:
            raise refusals.pop()
        return list_offsets(router, places, **how)

    monkeypatch.setattr(offset_binding, "list_offsets", answer)
    ranges = [planned(Earliest(), Latest(), partition=p) for p in (0, 7)]
    found = bind_ranges(router, ranges, UNCOMMITTED)
    assert spans(found) == [(20, 50)]
    assert found.losses == (PartitionsDeleted(topic_partitions=frozenset({missing})),)
    assert refusals == []


def _without(response, name):
    return _with_error(response, name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.mark.parametrize("noted", ["of the former topic", "without an id"])
def test_a_note_about_another_topic_does_not_end_the_wait_for_the_planned_one(
    cluster, router, monkeypatch, noted
):
    """A task that has only written to it knows no id of it."""
    router.metadata({"t"})
    topic_id = cluster.topic_ids.pop("t")
    router.refresh({"t"}, router.deadline())
    router.note_deleted({"t": uuid4() if noted == "of the former topic" else None})
    cluster.topic_ids["t"] = topic_id
    cluster[1].push(
        MetadataRequest,
        *[lambda *asked: _with_error(cluster.metadata(*asked), "t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        * 2,
    )
    found = bind_ranges(router, [planned(At(20), At(50), topic_id=topic_id.hex)], UNCOMMITTED)
    assert (spans(found), found.losses) == ([(20, 50)], ())


@pytest.mark.parametrize("has_id", [True, False])
def test_a_planned_topic_is_waited_for_as_one_that_exists(cluster, router, monkeypatch, has_id):
    monkeypatch.setattr(retry_policy, "NEW_TOPIC_WAIT_MS", 0)
    gone = [
        lambda *asked: _with_error(cluster.metadata(*asked), "t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ] * 2
    cluster[1].push(MetadataRequest, *gone)
    topic_id = cluster.topic_ids["t"].hex if has_id else None
    assert spans(bind_ranges(router, [planned(Earliest(), Latest(), topic_id=topic_id)], UNCOMMITTED)) == [
        (20, 50)
    ]


def test_only_what_is_missing_is_taken_for_deleted(cluster, router, short_wait):
    missing = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there")
    ranges = [planned(Earliest(), Latest()), planned(Earliest(), Latest(), partition=7)]
    loss = PartitionsDeleted(topic_partitions=frozenset({TopicPartition("t", 7)}))
    assert drop_deleted(router, ranges, missing) == (ranges[:1], [loss])
    in_vain = DeadlineExceededError("in vain")
    in_vain.__cause__ = BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "there")
    assert drop_deleted(router, ranges, in_vain)[0] == ranges[:1]
    del cluster.logs[OTHER]  # the router still knows it
    assert drop_deleted(router, [planned(At(0), At(1), partition=1)], missing)[0] == []
    assert drop_deleted(router, ranges[:1], missing) == (ranges[:1], [])
    for code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.LEADER_NOT_AVAILABLE):
        cluster[1].push(
            MetadataRequest, lambda *asked, code=code: _with_error(cluster.metadata(*asked), "t", code)
        )
        assert drop_deleted(router, ranges, missing) == (ranges, [])
    late = DeadlineExceededError("no broker")
    late.__cause__ = NetworkError("refused")
    denied = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "there")
    for other in (late, denied):
        with pytest.raises(type(other)):
            drop_deleted(router, ranges, other)


def _with_error(response, name, code):
    """Metadata that say ``code`` of the topic, and nothing else."""
    topics = [
        replace(topic, error_code=code, partitions=[]) if topic.name == name else topic
        for topic in response.topics
    ]
    return replace(response, topics=topics)


def test_the_id_is_asked_of_the_leaders_of_what_is_read(router, monkeypatch):
    asked = []
    monkeypatch.setattr(offset_binding, "find_recreated", lambda *_, at, **__: asked.append(at) or {})
    bind_ranges(router, [planned(At(30), Latest(), partition=1)], UNCOMMITTED)
    assert asked == [{OTHER}]
