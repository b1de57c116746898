"""A whole plan, against a scripted cluster: limits, filters, splits and packing together."""

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan
from support.brokers.planning_cluster import PlanningCluster
from support.brokers.scripted_broker import properties

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.model import IsolationLevel, TopicPartition
from spark_kafka_native.spark.error_conditions import KafkaConditionError
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.driver.batch_plan import plan_batch
from spark_kafka_native.spark.read.driver.cluster_view import AssignedPartition, ClusterView, view_cluster
from spark_kafka_native.spark.read.driver.pushed_filters import PushedFilters
from spark_kafka_native.spark.read.offset_range import (
    At,
    Earliest,
    FirstAtOrAfter,
    Inner,
    Latest,
    OffsetRange,
)
from spark_kafka_native.spark.read.read_options import ReadOptions
from spark_kafka_native.spark.read.worker.offset_binding import bind_ranges

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.fixture
def cluster():
    with PlanningCluster() as cluster:
        cluster.create("a", 2)
        cluster.logs[A0].log_start_offset = 10
        cluster.logs[A0].end_offset = 50
        cluster.logs[A1].end_offset = 20
        yield cluster


@pytest.fixture
def router(cluster):
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
    yield router
    router.close()


@pytest.fixture
def plan(router):
    def plan(filters=(), **given):
        names = {name.replace("__", "."): value for name, value in given.items()}
        base = {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}
        options = ReadOptions.for_batch(OptionValues.parse(base | names, Scope.READ), now_ms=1_000_000)
        pushed = PushedFilters.from_filters(filters)
        return plan_batch(view_cluster(router, options, pushed), options, pushed)

    return plan


def shown(tasks):
    return [[str(one) for one in task] for task in tasks]


def test_bounds_are_shipped_as_they_were_said(cluster, plan):
    ((whole,), _) = plan()
    topic_id = cluster.topic_ids["a"].hex
    assert whole == OffsetRange(topic="a", partition=0, start=Earliest(), end=Latest(), topic_id=topic_id)
    assert shown(plan(startingOffsets="latest-5")) == [["a-0 [45, latest)"], ["a-1 [15, latest)"]]
    ends = '{"a":{"0":30,"1":-1}}'
    assert shown(plan(endingOffsets=ends)) == [["a-0 [earliest, 30)"], ["a-1 [earliest, latest)"]]
    cluster.times = {A0: [(40, 30)]}
    (first,), (second,) = plan(endingTimestamp="40")
    assert (first.end, second.end) == (At(30), FirstAtOrAfter(40))


def test_an_empty_partition_is_planned_only_where_its_end_is_open(cluster, plan):
    cluster.logs[A1].end_offset = 0
    assert shown(plan()) == [["a-0 [earliest, latest)"], ["a-1 [earliest, latest)"]]
    assert shown(plan(endingOffsets='{"a":{"0":10,"1":0}}')) == []


def test_splits_and_packs(plan):
    tasks = plan(minPartitions="6")
    assert [(one.partition, one.start, one.end) for (one,) in tasks] == [
        (0, Earliest(), Inner(20)),
        (0, Inner(20), Inner(30)),
        (0, Inner(30), Inner(40)),
        (0, Inner(40), Latest()),
        (1, Earliest(), Inner(10)),
        (1, Inner(10), Latest()),
    ]
    assert shown(plan(maxRecordsPerPartition="20", maxPartitions="1")) == [
        ["a-0 [earliest, latest)", "a-1 [earliest, latest)"]
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "committed", "kafka__group__id": "g"},
        {"startingTimestamp": "500"},
        {"startingOffsetsByTimestamp": '{"a":{"0":500,"1":500}}'},
    ],
)
def test_a_start_that_was_looked_up_while_the_log_grew_is_not_beyond_its_end(cluster, plan, given):
    def grow():
        cluster.logs[A0].end_offset = 60
        cluster.committed = {A0: 55, A1: 20}
        cluster.times = {A0: [(500, 55)], A1: [(500, 19)]}

    cluster.on_lookup = grow
    (first,), (second,) = plan(**given)
    assert (first.start, first.end, second.end) == (At(55), Latest(), Latest())


@pytest.mark.parametrize(
    "given",
    [
        {"startingTimestamp": "500", "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsets": "committed", "kafka__group__id": "g", "committedOffsetsFallback": "latest"},
    ],
)
def test_a_start_that_is_not_found_is_the_end_that_was_listed_before(cluster, plan, given):
    def grow():
        cluster.logs[A0].end_offset = 60  # of a record with the time that is asked for, or of an earlier one

    cluster.on_lookup = grow
    (first,), (second,) = plan(**given)
    assert (first.start, second.start) == (At(50), At(20))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"startingOffsets": '{"a":{"0":51,"1":0}}'},
            "start offset 51 is greater than the resolved end offset 50",
        ),
        (
            {"startingOffsets": "latest-5", "endingOffsets": '{"a":{"0":44,"1":20}}'},
            "start offset 45 is greater than the resolved end offset 44",
        ),
    ],
)
def test_a_start_behind_its_end_is_an_error(plan, given, text):
    with pytest.raises(KafkaConditionError, match=f"RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET.*{text}"):
        plan(**given)


def test_a_start_at_its_end_is_none(plan):
    offsets = '{"a":{"0":50,"1":20}}'
    assert shown(plan(startingOffsets=offsets)) == [["a-0 [50, latest)"], ["a-1 [20, latest)"]]
    assert shown(plan(startingOffsets=offsets, endingOffsets=offsets)) == []


def test_filters_leave_partitions_out_and_cut_offsets(plan):
    assert shown(plan([EqualTo(("partition",), 1)])) == [["a-1 [earliest, latest)"]]
    ((one,), (other,)) = plan([GreaterThanOrEqual(("offset",), 15), LessThan(("offset",), 30)])
    assert (one.floor, one.ceiling, other.floor, other.ceiling) == (15, 30, 15, 30)
    # Sizes are those of the rest: 15 offsets of the one, 5 of the other.
    tasks = plan([GreaterThanOrEqual(("offset",), 15), LessThan(("offset",), 30)], maxRecordsPerPartition="5")
    assert [(one.partition, one.start, one.end) for (one,) in tasks] == [
        (0, Earliest(), Inner(20)),
        (0, Inner(20), Inner(25)),
        (0, Inner(25), Latest()),
        (1, Earliest(), Latest()),
    ]


def test_a_lower_bound_of_time_is_an_offset_of_each_partition(cluster, plan):
    cluster.times = {A0: [(500, 45)]}
    after = GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(0.5, UTC))
    ((one,), (other,)) = plan([after])
    # No record of partition 1 is that late: none before its end can be, later ones may.
    assert (one.floor, other.floor) == (45, 20)
    assert shown(plan([after, EqualTo(("partition",), 1)])) == [["a-1 [earliest, latest)"]]
    cluster.times |= {A1: [(500, 0)]}  # an offset like any other: nothing is left out
    assert [one.floor for (one,) in plan([after])] == [45, 0]


@pytest.mark.parametrize("times", [{A0: [(500, 10)]}, {A0: [(500, 30)]}, {}])
@pytest.mark.parametrize("bind", ["task", "load"])
def test_a_lower_bound_of_time_hides_no_loss_before_the_log(cluster, plan, times, bind):
    """What retention has taken may have been as late as the records that are left."""
    cluster.times = times
    after = GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(0.5, UTC))
    given = {"startingOffsets": '{"a":{"0":9,"1":0}}', "bindOffsets": bind}
    one, *_ = [one for task in plan([after], **given) for one in task]
    assert (one.partition, one.start, one.floor) == (0, At(9), 0)
    # Offsets that a filter leaves out are none that the read asks for.
    one, *_ = [one for task in plan([after, GreaterThanOrEqual(("offset",), 12)], **given) for one in task]
    assert one.floor == 12


def test_a_loss_while_a_lower_bound_of_time_is_looked_up_is_not_hidden_either(cluster, plan):
    def expire():
        cluster.logs[A0].log_start_offset = 30
        cluster.times = {A0: [(500, 30)]}

    cluster.times = {A0: [(500, 12)]}
    cluster.on_lookup = expire
    after = GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(0.5, UTC))
    only = EqualTo(("partition",), 0)
    ((one,),) = plan([after, only], startingOffsets='{"a":{"0":12,"1":0}}')
    assert (one.start, one.floor) == (At(12), 0)
    # Earliest is the first record that is there when the job runs: nothing before it is lost.
    for start in ({}, {"startingOffsets": '{"a":{"0":-2,"1":0}}'}):
        ((one,),) = plan([after, only], **start)
        assert (one.start, one.floor) == (Earliest(), 30)


@pytest.mark.parametrize("moment", ["1970-01-01T00:00:00+00:00", "1969-12-31T23:59:59.998+00:00"])
def test_a_time_that_no_record_is_before_is_no_bound(cluster, plan, moment):
    """In a request, -1 and -2 milliseconds would be the ends of the log."""
    tasks = plan([GreaterThanOrEqual(("timestamp",), datetime.fromisoformat(moment))])
    assert [one.floor for task in tasks for one in task] == [0, 0]


@pytest.mark.parametrize("option", ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp"])
def test_times_that_leave_out_a_partition_are_refused_when_the_cluster_has_been_asked(plan, option):
    with pytest.raises(KafkaConditionError, match=r"Specified: \[a-0\] Assigned: \[a-0, a-1\]"):
        plan(**{option: '{"a":{"0":5}}'})


def test_a_plan_of_many_small_tasks_comes_with_a_hint(cluster, plan, caplog):
    with caplog.at_level("WARNING", "spark_kafka_native"):
        plan()
        assert caplog.messages == []
        cluster.create("many", 101)
        plan(subscribe="many")
    assert ["maxPartitions" in message for message in caplog.messages] == [True]


def test_bounds_that_are_bound_at_load_are_offsets(cluster, plan):
    """So that a task that runs again, after its output was lost, reads the same."""
    assert shown(plan(bindOffsets="load")) == [["a-0 [10, 50)"], ["a-1 [0, 20)"]]
    assert shown(plan(bindOffsets="load", endingOffsets='{"a":{"0":30,"1":-1}}')) == [
        ["a-0 [10, 30)"],
        ["a-1 [0, 20)"],
    ]
    pieces = [one for (one,) in plan(bindOffsets="load", minPartitions="7")]
    assert all(isinstance(bound, At) for one in pieces for bound in (one.start, one.end))
    assert [one.end.offset for one in pieces if one.partition == 0][-1] == 50
    # Nothing to read: no task that could find something later.
    assert plan(bindOffsets="load", startingOffsets='{"a":{"0":50,"1":20}}') == []
    filters = [GreaterThanOrEqual(("offset",), 40)]
    assert shown(plan(filters, bindOffsets="load")) == [["a-0 [40, 50)"]]


YET_TO_COME = {"endingTimestamp": "900000", "startingOffsetsByTimestampStrategy": "latest"}


def grow_while_the_end_is_looked_up(cluster, **changes):
    """Not while the start is, which comes before."""
    lookups = []

    def grow():
        lookups.append(1)
        if len(lookups) > 1:
            for name, offset in changes.items():
                setattr(cluster.logs[A0], name, offset)

    cluster.on_lookup = grow


def test_a_time_that_is_yet_to_come_is_bound_before_what_arrives_while_it_is_looked_up(cluster, plan):
    grow_while_the_end_is_looked_up(cluster, end_offset=60)
    cluster.times = {A0: [(5_000, 20)]}
    (task,) = plan(bindOffsets="load", startingTimestamp="5000", **YET_TO_COME)
    assert shown([task]) == [["a-0 [20, 50)"]]


@pytest.mark.parametrize(
    "start", [{"startingTimestamp": "5000"}, {"startingOffsets": "committed", "kafka__group__id": "g"}]
)
@pytest.mark.parametrize("split", [{"minPartitions": "4"}, {"maxRecordsPerPartition": "9"}])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_no_piece_goes_beyond_a_time_that_is_reached_while_it_is_looked_up(
    cluster, plan, router, start, split, isolation
):
    cluster.committed = {A0: 20, A1: 20}
    cluster.times = {A0: [(5_000, 20)]}
    cluster.logs[A0].last_stable_offset = 50
    grow_while_the_end_is_looked_up(cluster, end_offset=100, last_stable_offset=90)
    level = {"kafka__isolation__level": isolation}
    pieces = [one for (one,) in plan(**start, **split, **level, **YET_TO_COME) if one.partition == 0]
    assert len(pieces) == 4
    cluster.times = {A0: [(5_000, 20), (900_000, 52)]}
    bound = bind_ranges(router, pieces, IsolationLevel[isolation.upper()])
    assert bound.losses == ()
    read = [offset for one in bound.ranges for offset in range(one.position, one.until_offset)]
    assert read == list(range(20, 52))


def test_a_start_that_arrived_after_the_first_look_is_not_beyond_a_time_that_is_yet_to_come(cluster, plan):
    def grow():
        cluster.logs[A0].end_offset = 60

    cluster.on_lookup = grow
    cluster.times = {A0: [(5_000, 55)]}
    assert shown(plan(startingTimestamp="5000", **YET_TO_COME)) == [
        ["a-0 [55, the first record at or after 900000 ms)"],
        ["a-1 [20, the first record at or after 900000 ms)"],
    ]
    assert shown(plan(startingTimestamp="5000", bindOffsets="load", **YET_TO_COME)) == [["a-0 [55, 60)"]]


READ_COMMITTED = {
    "startingOffsets": "committed",
    "kafka__group__id": "g",
    "kafka__isolation__level": "read_committed",
}


@pytest.mark.parametrize("bind", ["task", "load"])
@pytest.mark.parametrize("end", [{}, {"endingTimestamp": "900000"}])
def test_nothing_is_read_where_a_group_is_ahead_of_the_last_stable_offset(cluster, plan, bind, end):
    """It has read with read_uncommitted before: the rest belongs to open transactions."""
    given = READ_COMMITTED | end | {"bindOffsets": bind}
    cluster.logs[A0].last_stable_offset = 42
    for committed in (43, 45, 50):  # 50 is where the log ends
        cluster.committed = {A0: committed, A1: 5}
        assert [one.partition for task in plan(**given) for one in task] == [1]
    cluster.committed[A0] = 42
    cluster.logs[A0].last_stable_offset = 44
    assert [one.partition for task in plan(**given) for one in task] == [0, 1]


def test_a_group_that_is_ahead_of_the_log_is_refused_with_read_committed_too(cluster, plan):
    cluster.committed = {A0: 51, A1: 5}
    cluster.logs[A0].last_stable_offset = 42
    with pytest.raises(
        KafkaConditionError, match="start offset 51 is greater than the resolved end offset 42"
    ):
        plan(**READ_COMMITTED)
    given = READ_COMMITTED | {"startingOffsets": '{"a":{"0":45,"1":0}}'}
    with pytest.raises(
        KafkaConditionError, match="start offset 45 is greater than the resolved end offset 42"
    ):
        plan(**given)


def test_an_end_that_was_given_stays_where_a_group_is_ahead_of_the_last_stable_offset(cluster, plan):
    cluster.committed = {A0: 45, A1: 5}
    cluster.logs[A0].last_stable_offset = 42
    given = READ_COMMITTED | {"endingOffsets": '{"a":{"0":40,"1":20}}'}
    with pytest.raises(
        KafkaConditionError, match="start offset 45 is greater than the resolved end offset 40"
    ):
        plan(**given)


@pytest.mark.parametrize(
    ("given", "ending", "is_same"),
    [
        ({"endingOffsets": '{"a":{"0":10,"1":20,"2":30,"3":40}}'}, (), True),
        ({"endingTimestamp": "500"}, (10, 20, 30, 40), True),
        ({"endingTimestamp": "500"}, (10, 20, 30, None), True),  # no later record yet: the end, also later
        ({"endingOffsets": '{"a":{"0":10,"1":20,"2":30,"3":-1}}'}, (), False),
        ({"endingOffsets": "latest", "bindOffsets": "load"}, (), False),
    ],
)
def test_tasks_are_packed_by_leader_only_where_a_later_read_may_find_more(given, ending, is_same):
    """A write with a `writeId` that is committed in part needs the same rows in each task to be completed."""
    base = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "maxPartitions": "2"}
    options = ReadOptions.for_batch(OptionValues.parse(base | given, Scope.READ), now_ms=1_000_000)
    sizes = {TopicPartition("a", index): 10 * (index + 1) for index in range(4)}

    def plan_with(*leaders):
        view = ClusterView(
            partitions={tp: AssignedPartition(leader=leaders[tp.partition], topic_id=None) for tp in sizes},
            earliest=dict.fromkeys(sizes, 0),
            latest_before=sizes,
            latest=sizes,
            ending=dict(zip(sizes, ending, strict=False)),
        )
        return plan_batch(view, options, PushedFilters())

    assert (plan_with(1, 1, 2, 2) == plan_with(1, 2, 2, 2)) == is_same


def test_a_plan_depends_on_the_view_alone():
    one = AssignedPartition(leader=1, topic_id=None)
    view = ClusterView(
        partitions={A0: one, A1: one},
        earliest={A0: 10, A1: 0},
        latest_before={A0: 50, A1: 20},
        latest={A0: 60, A1: 20},
        starting={A0: 55, A1: None},
    )
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "startingTimestamp": "500"}
    lenient = given | {"startingOffsetsByTimestampStrategy": "latest"}
    options = ReadOptions.for_batch(OptionValues.parse(lenient, Scope.READ), now_ms=1_000_000)
    tasks = plan_batch(view, options, PushedFilters())
    assert shown(tasks) == [["a-0 [55, latest)"], ["a-1 [20, latest)"]]
