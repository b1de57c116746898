"""The user's offsets as bounds: in literals where no broker has to be asked, else with a scripted cluster."""

from uuid import UUID

import pytest
from support.brokers.planning_cluster import PlanningCluster
from support.brokers.scripted_broker import Log, properties

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, ConfigError, NetworkError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.spark.error_conditions import KafkaConditionError
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.driver.batch_plan import resolve_end, resolve_start
from spark_kafka_native.spark.read.driver.cluster_view import (
    AssignedPartition,
    ClusterView,
    find_partitions,
    view_cluster,
)
from spark_kafka_native.spark.read.driver.pushed_filters import PushedFilters
from spark_kafka_native.spark.read.offset_range import At, Earliest, FirstAtOrAfter, Latest
from spark_kafka_native.spark.read.read_options import ReadOptions

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOTH = (A0, A1)
EARLIEST, LATEST = {A0: 10, A1: 0}, {A0: 100, A1: 3}
VIEW = ClusterView(
    partitions=dict.fromkeys(BOTH, AssignedPartition(leader=1, topic_id=None)),
    earliest=EARLIEST,
    latest_before=LATEST,
    latest=LATEST,
)


def options_of(**given):
    names = {name.replace("__", "."): value for name, value in given.items()}
    base = {"kafka.bootstrap.servers": "h:1", "fetchOffset.numRetries": "0"}
    if not {"assign", "subscribePattern"} & set(names):
        base["subscribe"] = "a"
    return ReadOptions.for_batch(OptionValues.parse(base | names, Scope.READ), now_ms=1_000_000)


@pytest.fixture
def cluster():
    with PlanningCluster() as cluster:
        cluster.create("a", 2)
        for tp in BOTH:
            cluster.logs[tp].log_start_offset = EARLIEST[tp]
            cluster.logs[tp].end_offset = LATEST[tp]
        yield cluster


@pytest.fixture
def router(cluster):
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
    yield router
    router.close()


def start_of(router, options):
    return resolve_start(view_cluster(router, options, PushedFilters()), options)


def end_of(router, options):
    return resolve_end(view_cluster(router, options, PushedFilters()), options)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {A0: Earliest(), A1: Earliest()}),
        ({"startingOffsets": "latest-5"}, {A0: At(95), A1: At(0)}),
        ({"startingOffsets": "latest-95"}, {A0: At(10), A1: At(0)}),
        ({"startingOffsets": '{"a":{"0":0,"1":-2}}'}, {A0: At(0), A1: Earliest()}),
    ],
)
def test_a_start_that_needs_no_lookup(given, expected):
    assert resolve_start(VIEW, options_of(**given)) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {A0: Latest(), A1: Latest()}),
        ({"endingOffsets": '{"a":{"0":0,"1":-1}}'}, {A0: At(0), A1: Latest()}),
    ],
)
def test_an_end_that_needs_no_lookup(given, expected):
    assert resolve_end(VIEW, options_of(**given)) == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("latest", {A0: At(100), A1: At(3)}),
        ('{"a":{"0":-1,"1":-2}}', {A0: At(100), A1: Earliest()}),
    ],
)
def test_a_stream_that_starts_at_the_end_starts_at_the_one_of_now(limit, expected):
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "startingOffsets": limit}
    options = ReadOptions.for_stream(OptionValues.parse(given, Scope.STREAM), now_ms=1_000_000)
    assert resolve_start(VIEW, options) == expected


@pytest.mark.parametrize(
    ("one", "named"),
    [('{"a":{"0":5}}', "a-0"), ('{"a":{"0":5,"1":2,"2":0}}', "a-0, a-1, a-2"), ('{"b":{"0":5,"1":2}}', "b-")],
    ids=["one is missing", "one is not there", "another topic"],
)
def test_offsets_and_times_are_for_exactly_the_partitions_that_are_read(one, named):
    condition = "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"
    with pytest.raises(
        KafkaConditionError, match=rf"{condition}.*Specified: \[{named}.* Assigned: \[a-0, a-1\]"
    ):
        resolve_start(VIEW, options_of(startingOffsets=one))
    with pytest.raises(KafkaConditionError, match=condition):
        resolve_end(VIEW, options_of(endingOffsets=one))
    with pytest.raises(KafkaConditionError, match="for Kafka timestamp based start offsets don't match"):
        resolve_start(VIEW, options_of(startingOffsetsByTimestamp=one))
    with pytest.raises(KafkaConditionError, match="for Kafka timestamp based end offsets don't match"):
        resolve_end(VIEW, options_of(endingOffsetsByTimestamp=one))


@pytest.mark.parametrize(
    ("fallback", "expected"), [("earliest", Earliest()), ("latest", At(3)), (None, Earliest())]
)
def test_committed_offset_0_is_one_and_none_is_what_the_fallback_says(cluster, router, fallback, expected):
    cluster.committed = {A0: 0}
    given = {} if fallback is None else {"committedOffsetsFallback": fallback}
    options = options_of(startingOffsets="committed", kafka__group__id="g", **given)
    assert start_of(router, options) == {A0: At(0), A1: expected}


def test_a_group_without_an_offset_can_be_an_error(cluster, router):
    given = {"startingOffsets": "committed", "kafka__group__id": "g", "committedOffsetsFallback": "error"}
    cluster.committed = {A0: 0}
    with pytest.raises(ConfigError, match=r"Group g has committed no offset for \[a-1\]"):
        start_of(router, options_of(**given))
    cluster.committed = {A0: 0, A1: 2}
    assert start_of(router, options_of(**given)) == {A0: At(0), A1: At(2)}


def test_a_starting_time_is_an_offset_an_error_or_the_end_listed_before(cluster, router):
    cluster.times = {A0: [(40, 50), (60, 70)], A1: [(40, 0)]}
    found = start_of(router, options_of(startingTimestamp="40"))
    assert found == {A0: At(50), A1: At(0)}
    each = options_of(startingOffsetsByTimestamp='{"a":{"0":41,"1":7}}')
    assert start_of(router, each) == {A0: At(70), A1: At(0)}
    with pytest.raises(ConfigError, match=r"No offset matched .* topic-partition a-1 and timestamp 60\."):
        start_of(router, options_of(startingTimestamp="60"))
    lenient = options_of(startingTimestamp="60", startingOffsetsByTimestampStrategy="latest")

    def grow():
        cluster.logs[A1].end_offset = 9

    cluster.on_lookup = grow
    assert start_of(router, lenient) == {A0: At(70), A1: At(3)}


def test_an_ending_time_that_no_record_has_reached_stays_a_time(cluster, router):
    cluster.times = {A0: [(40, 0)]}
    assert end_of(router, options_of(endingTimestamp="40")) == {A0: At(0), A1: FirstAtOrAfter(40)}
    each = options_of(endingOffsetsByTimestamp='{"a":{"0":41,"1":7}}')
    assert end_of(router, each) == {A0: FirstAtOrAfter(41), A1: FirstAtOrAfter(7)}


def test_only_committed_records_are_read_from_where_a_group_has_committed_and_elsewhere_too(cluster, router):
    cluster.committed = {A0: 30}
    cluster.logs[A0].last_stable_offset = cluster.logs[A1].last_stable_offset = 2
    options = options_of(
        startingOffsets="committed", kafka__group__id="g", kafka__isolation__level="read_committed"
    )
    view = view_cluster(router, options, PushedFilters())
    assert resolve_start(view, options) == {A0: At(30), A1: Earliest()}
    assert view.log_ends == {A0: 100}  # of those alone that the group is ahead in


def test_latest_is_the_last_stable_offset_where_only_committed_records_are_read(cluster, router):
    cluster.logs[A0].last_stable_offset = 42
    view = view_cluster(router, options_of(), PushedFilters())
    assert (view.earliest, view.latest_before, view.latest) == (EARLIEST, LATEST, LATEST)
    committed = options_of(kafka__isolation__level="read_committed")
    assert view_cluster(router, committed, PushedFilters()).latest == {A0: 42, A1: 3}


def test_partitions_of_each_kind_of_subscription(cluster, router):
    cluster.create("ab")
    cluster.create("__a")
    cluster.internal = {"__a"}
    pattern = find_partitions(router, options_of(subscribePattern="a"))
    assert [str(tp) for tp in pattern] == ["a-0", "a-1", "ab-0"]
    assert pattern[A0].topic_id == cluster.topic_ids["a"].hex
    assert pattern[A0].leader == 1
    assert [str(tp) for tp in find_partitions(router, options_of(subscribePattern="^b"))] == []
    assert [str(tp) for tp in find_partitions(router, options_of())] == ["a-0", "a-1"]
    # Listed topics are asked for again: topics and partitions are those of now.
    cluster.create("new-a")
    cluster.logs[TopicPartition("a", 2)] = Log(leader=7)
    found = find_partitions(router, options_of(subscribePattern="a$"))
    assert [(str(tp), one.leader) for tp, one in found.items()] == [
        ("a-0", 1), ("a-1", 1), ("a-2", 7), ("new-a-0", 1),
    ]  # fmt: skip
    del cluster.logs[TopicPartition("a", 2)]
    # An internal topic is read when it is named.
    assert [str(tp) for tp in find_partitions(router, options_of(subscribe="__a"))] == ["__a-0"]
    assign = options_of(assign='{"a":[1,7],"ab":[0]}')
    assert [str(tp) for tp in find_partitions(router, assign)] == ["a-1", "ab-0"]


def test_a_partition_without_a_leader_and_a_topic_without_an_id_are_planned_too(cluster, router):
    cluster.logs[A0].leader = -1
    cluster.topic_ids["a"] = UUID(int=0)
    found = find_partitions(router, options_of())
    assert [(one.leader, one.topic_id) for one in found.values()] == [(-1, None), (1, None)]


def test_a_topic_that_is_missing_is_told_with_the_nearest_that_may_be_meant(cluster, router):
    cluster.create("orders")
    cluster.create("__order")
    cluster.internal = {"__order", "order-internal"}
    cluster.create("order-internal")
    with pytest.raises(BrokerError, match=r"topic order: .*does not exist; did you mean 'orders'"):
        find_partitions(router, options_of(subscribe="order"))
    asked = len(cluster[1].asked)
    with pytest.raises(BrokerError, match=r"the topic does not exist\)"):
        find_partitions(router, options_of(subscribe="zzz"))
    assert len(cluster[1].asked) - asked <= 2


def test_a_pattern_takes_one_metadata_request(cluster, router):
    """Of all topics: in a large cluster that is megabytes, for each trigger of a stream."""
    cluster.create("b")
    router.metadata(None)
    before = len(cluster[1].requests(MetadataRequest))
    assert list(find_partitions(router, options_of(subscribePattern="."))) == [A0, A1, B0]
    assert len(cluster[1].requests(MetadataRequest)) - before == 1


@pytest.mark.parametrize("given", [{}, {"assign": '{"a":[0,1,2]}'}, {"subscribePattern": "a"}])
def test_partitions_are_looked_for_anew_each_time(cluster, router, given):
    """Not in metadata that are minutes old: a stream would read new partitions as much later."""
    assert list(find_partitions(router, options_of(**given))) == [A0, A1]
    with cluster.mock.cluster.changed:
        cluster.mock.cluster.grow_topic("a", 3)
    assert list(find_partitions(router, options_of(**given))) == [A0, A1, TopicPartition("a", 2)]


def test_a_topic_that_appears_a_moment_later_is_found(cluster, router):
    attempts = []

    def appears(request, version):
        attempts.append(request)
        if len(attempts) == 3:
            cluster.create("late")
        return cluster.metadata(request, version)

    cluster[1].on(MetadataRequest, appears)
    retried = {"fetchOffset__numRetries": "3", "fetchOffset__retryIntervalMs": "50"}
    assert list(find_partitions(router, options_of(subscribe="late", **retried)))


@pytest.mark.parametrize(
    "error", [BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic a"), NetworkError("refused")]
)
def test_partitions_are_looked_for_once_where_the_answer_will_be_the_same(monkeypatch, router, error):
    """Or where the client has tried for as long as the options allow."""
    asked = []

    def fail(_router, topics, **_):
        asked.append(topics)
        raise error

    monkeypatch.setattr(Router, "metadata", fail)
    retried = {"fetchOffset__numRetries": "3", "fetchOffset__retryIntervalMs": "1"}
    with pytest.raises(type(error)):
        find_partitions(router, options_of(**retried))
    assert len(asked) == 1


def test_a_time_is_looked_up_among_the_records_that_a_read_may_see(cluster, router, monkeypatch):
    """An end among records of open transactions could not be reached."""
    asked, offset_at = set(), cluster.offset_at

    def noted(tp, timestamp, isolation_level):
        asked.add((timestamp, isolation_level))
        return offset_at(tp, timestamp, isolation_level)

    monkeypatch.setattr(cluster, "offset_at", noted)
    cluster.times = {A0: [(40, 50)], A1: [(40, 0)]}
    times = {"startingTimestamp": "30", "endingTimestamp": "35"}
    filters = PushedFilters(from_timestamp_ms=33)
    view_cluster(router, options_of(kafka__isolation__level="read_committed", **times), filters)
    assert {pair for pair in asked if pair[0] > 0} == {(30, 1), (33, 1), (35, 1)}
