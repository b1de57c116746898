"""What a task does about offsets that are not there any more, against a scripted broker."""

import logging
from dataclasses import replace
from uuid import uuid4

import pytest
from support.brokers.scripted_broker import ScriptedCluster, properties

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import LogTruncatedError, TopicRecreatedError
from spark_kafka_native.kafka.model import IsolationLevel
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.spark.error_conditions import KafkaConditionError
from spark_kafka_native.spark.read.data_loss import DataLossPolicy
from spark_kafka_native.spark.read.driver.range_calculator import PlannedRange, split_ranges
from spark_kafka_native.spark.read.offset_range import At, Earliest, Latest, OffsetRange
from spark_kafka_native.spark.read.worker.offset_binding import Binding, bind_ranges, rebind_ranges

OLD_ID = uuid4().hex


@pytest.fixture
def log():
    """The log [20, 50) of topic ``t``, which is not the topic of `OLD_ID`; and a client."""
    with ScriptedCluster() as cluster:
        (tp,) = cluster.create("t")
        cluster.logs[tp].log_start_offset = 20
        cluster.logs[tp].end_offset = 50
        router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
        yield cluster, router
        router.close()


LEVEL = IsolationLevel.READ_UNCOMMITTED


class Task:
    """What a task does with ranges and errors, as `read_partition`."""

    def __init__(self, router, *, fail=False):
        self.router = router
        self.policy = DataLossPolicy(fail=fail, group_id="g")

    def bind(self, ranges, **options):
        return self._accept(bind_ranges(self.router, ranges, LEVEL, **options))

    def go_on(self, left, error):
        return self._accept(rebind_ranges(self.router, left, error, LEVEL))

    def _accept(self, binding):
        for loss in binding.losses:
            self.policy.report(loss)
        return binding.ranges


def range_of(first, until, topic_id=None):
    start = Earliest() if first is None else At(first)
    end = Latest() if until is None else At(until)
    return OffsetRange(topic="t", partition=0, start=start, end=end, topic_id=topic_id)


def pieces(first, until, count, topic_id=None):
    planned = PlannedRange(
        shipped=range_of(first, until, topic_id),
        from_offset=first or 0,
        until_offset=100 if until is None else until,
    )
    return [piece.shipped for piece in split_ranges([planned], min_partitions=count)]


def read_in_tens(first, until, topic_id):
    planned = PlannedRange(shipped=range_of(first, until, topic_id), from_offset=0, until_offset=50)
    return [piece.shipped for piece in split_ranges([planned], max_records=10)]


def spans(bound):
    return [(one.position, one.until_offset) for one in bound]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize(
    ("first", "until", "expected", "lost"),
    [
        # Other tasks may have read their pieces of the former topic.
        (None, None, [(20, 50)], {1: 0, 4: 75}),
        (None, 90, [], 90),
        # The number of records after 10 is unknown; the fixed pieces of it are counted.
        (10, None, [(20, 50)], {1: 0, 4: 67}),
        (10, 90, [], 80),
    ],
)
def test_a_successor_is_read_once_where_the_end_is_open_and_not_at_all_where_it_is_fixed(
    log, caplog, count, first, until, expected, lost
):
    _, router = log
    task = Task(router)
    ranges = pieces(first, until, count, OLD_ID)
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        assert spans(task.bind(ranges)) == expected
    assert task.policy.lost == (lost[count] if isinstance(lost, dict) else lost)
    is_loss = (first, until, count) != (None, None, 1)
    assert len(caplog.messages) == (count if is_loss else 0)
    if is_loss:
        assert "The topic was deleted and created again" in caplog.text
    for one in ranges:
        if is_loss:
            with pytest.raises(KafkaConditionError, match="The topic was deleted and created again"):
                Task(router, fail=True).bind([one])
    if not is_loss:
        assert spans(Task(router, fail=True).bind(ranges)) == expected


def test_offsets_of_a_filter_on_the_former_topic_do_not_cut_its_successor(log):
    _, router = log
    (whole,) = pieces(None, None, 1, OLD_ID)
    cut = replace(whole, floor=40, ceiling=45)
    assert spans(Task(router).bind([cut])) == [(20, 50)]


@pytest.mark.parametrize(("until", "expected"), [(None, [(20, 50)]), (45, [])])
def test_a_range_that_was_begun_loses_its_rest(log, until, expected):
    cluster, router = log
    (whole,) = pieces(None, until, 1, cluster.topic_ids["t"].hex)
    (bound,) = Task(router).bind([whole])
    former, cluster.topic_ids["t"] = cluster.topic_ids["t"], uuid4()
    router.metadata({"t"}, refresh=True)
    error = TopicRecreatedError("t", str(former), str(cluster.topic_ids["t"]))
    task = Task(router)
    found = task.go_on([bound.advanced(30)], error)
    assert spans(found) == expected
    assert all(one.topic_id == cluster.topic_ids["t"] for one in found)
    assert task.policy.lost == (50 if until is None else until) - 30
    with pytest.raises(KafkaConditionError, match="deleted and created again"):
        Task(router, fail=True).go_on([bound.advanced(30)], error)


@pytest.mark.parametrize("end", [5, 10])
def test_metadata_of_the_former_topic_are_not_believed_where_the_log_is_too_short(log, end):
    cluster, router = log
    (tp,) = cluster.logs
    ranges = pieces(10, None, 1, cluster.topic_ids["t"].hex)
    router.metadata({"t"}, refresh=True)
    cluster.topic_ids["t"] = uuid4()
    cluster.logs[tp].log_start_offset = 0
    cluster.logs[tp].end_offset = end
    assert spans(Task(router).bind(ranges)) == [(0, end)]


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("until", [None, 50])
def test_pieces_of_a_read_from_earliest_lose_nothing_where_the_log_starts_later(log, caplog, fail, until):
    cluster, router = log
    topic_id = cluster.topic_ids["t"].hex
    task = Task(router, fail=fail)
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        found = [task.bind([piece]) for piece in read_in_tens(None, until, topic_id)]
    assert [spans(bound) for bound in found] == [[], [], [(20, 30)], [(30, 40)], [(40, 50)]]
    assert (task.policy.lost, caplog.messages) == (0, [])


def test_a_piece_whose_start_was_an_offset_is_bound_as_it_is(log):
    cluster, router = log
    found = Task(router).bind(read_in_tens(0, 50, cluster.topic_ids["t"].hex))
    assert spans(found) == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50)]


@pytest.mark.parametrize("lagging_answers", [0, 1, 2])
def test_old_metadata_do_not_make_a_recreated_topic_of_the_one_that_was_planned(log, lagging_answers):
    cluster, router = log
    current = cluster.topic_ids["t"]
    cluster.topic_ids["t"] = uuid4()
    router.metadata({"t"})  # the worker has read the former topic
    cluster.topic_ids["t"] = current
    lagging = Lagging(cluster, uuid4(), lagging_answers)
    cluster[1].on(MetadataRequest, lagging.metadata)
    found = Task(router, fail=True).bind([range_of(25, 40, current.hex)])
    assert [(one.position, one.until_offset, one.topic_id) for one in found] == [(25, 40, current)]
    assert lagging.asked == (2, 2, 4)[lagging_answers]  # each time for metadata, then the leader


class Lagging:
    """A broker that gives a former topic id so often before it gives that of the cluster."""

    def __init__(self, cluster, former, answers):
        self.cluster, self.former, self.answers, self.asked = cluster, former, answers, 0

    def metadata(self, request, version):
        self.asked += 1
        response = self.cluster.metadata(request, version)
        if self.asked > self.answers:
            return response
        return replace(response, topics=[replace(response.topics[0], topic_id=self.former)])


def test_a_recreated_topic_is_told_by_answers_and_not_by_a_refused_fetch_alone(log):
    cluster, router = log
    (whole,) = pieces(None, None, 1, cluster.topic_ids["t"].hex)
    left = Task(router).bind([whole])
    current = cluster.topic_ids["t"]
    error = TopicRecreatedError("t", str(current), str(uuid4()))
    assert rebind_ranges(router, left, error, LEVEL) == Binding(ranges=left)


def test_a_log_that_was_cut_back_under_the_reader_is_a_loss_after_which_a_read_goes_on(log):
    _cluster, router = log
    left = Task(router).bind([range_of(25, 50)])
    [begun] = [replace(one, position=35) for one in left]
    error = LogTruncatedError(begun.topic_partition, 35, 30)
    with pytest.raises(KafkaConditionError, match="cut back to offset 30"):
        Task(router, fail=True).go_on((begun,), error)
    task = Task(router)
    assert task.go_on((begun,), error) == (begun,)
    assert task.policy.lost == 5
