"""What a task does about offsets that are not there any more, against a scripted broker."""

import logging
from dataclasses import replace
from uuid import uuid4

import pytest
from scripted_broker import ScriptedCluster, properties

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config import ClientConfig
from spark_kafka_native.kafka.errors import TopicRecreatedError
from spark_kafka_native.kafka.model import IsolationLevel
from spark_kafka_native.spark.conditions import KafkaConditionError
from spark_kafka_native.spark.data_loss import DataLossPolicy
from spark_kafka_native.spark.late_bounds import bind_ranges
from spark_kafka_native.spark.ranges import OffsetRange, PlannedRange, split_ranges

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


def policy(*, fail=False):
    return DataLossPolicy(fail=fail, group_id="g", isolation_level=IsolationLevel.READ_UNCOMMITTED)


def pieces(first, until, count, topic_id=None):
    whole = OffsetRange(topic="t", partition=0, from_offset=first, until_offset=until, topic_id=topic_id)
    planned = PlannedRange(
        shipped=whole, from_offset=first or 0, until_offset=100 if until is None else until
    )
    return [piece.shipped for piece in split_ranges([planned], min_partitions=count)]


def read_in_tens(first, until, topic_id):
    whole = OffsetRange(topic="t", partition=0, from_offset=first, until_offset=until, topic_id=topic_id)
    planned = PlannedRange(shipped=whole, from_offset=0, until_offset=50)
    return [piece.shipped for piece in split_ranges([planned], max_records=10)]


def spans(bound):
    return [(one.position, one.until_offset) for one in bound]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize(
    ("first", "until", "expected", "lost"),
    [
        (None, None, [(20, 50)], 0),
        (None, 90, [], 90),
        # How much there was after 10 nobody knows; the fixed pieces of it are counted.
        (10, None, [(20, 50)], {1: 0, 4: 67}),
        (10, 90, [], 80),
    ],
)
def test_a_successor_is_read_once_where_the_end_is_open_and_not_at_all_where_it_is_fixed(
    log, caplog, count, first, until, expected, lost
):
    _, router = log
    loss = policy()
    ranges = pieces(first, until, count, OLD_ID)
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        assert spans(bind_ranges(router, ranges, loss)) == expected
    assert loss.lost == (lost[count] if isinstance(lost, dict) else lost)
    is_loss = (first, until) != (None, None)
    assert len(caplog.messages) == (count if is_loss else 0)
    if is_loss:
        assert "The topic was deleted and created again" in caplog.text
    for one in ranges:
        if is_loss:
            with pytest.raises(KafkaConditionError, match="The topic was deleted and created again"):
                bind_ranges(router, [one], policy(fail=True))
    if not is_loss:
        assert spans(bind_ranges(router, ranges, policy(fail=True))) == expected


def test_offsets_of_a_filter_on_the_former_topic_do_not_cut_its_successor(log):
    _, router = log
    (whole,) = pieces(None, None, 1, OLD_ID)
    cut = replace(whole, floor=40, ceiling=45)
    assert spans(bind_ranges(router, [cut], policy())) == [(20, 50)]


@pytest.mark.parametrize(("until", "expected"), [(None, [(20, 50)]), (45, [])])
def test_a_range_that_was_begun_loses_its_rest(log, until, expected):
    cluster, router = log
    (whole,) = pieces(None, until, 1, cluster.topic_ids["t"].hex)
    (bound,) = bind_ranges(router, [whole], policy())
    former, cluster.topic_ids["t"] = cluster.topic_ids["t"], uuid4()
    router.metadata({"t"}, refresh=True)
    error = TopicRecreatedError("t", str(former), str(cluster.topic_ids["t"]))
    loss = policy()
    found = loss.go_on(router, [bound.advanced(30)], error)
    assert spans(found) == expected
    assert all(one.topic_id == cluster.topic_ids["t"] for one in found)
    assert loss.lost == (50 if until is None else until) - 30
    with pytest.raises(KafkaConditionError, match="deleted and created again"):
        policy(fail=True).go_on(router, [bound.advanced(30)], error)


@pytest.mark.parametrize("end", [5, 10])
def test_metadata_of_the_former_topic_are_not_believed_where_the_log_is_too_short(log, end):
    cluster, router = log
    (tp,) = cluster.logs
    ranges = pieces(10, None, 1, cluster.topic_ids["t"].hex)
    router.metadata({"t"}, refresh=True)
    cluster.topic_ids["t"] = uuid4()
    cluster.logs[tp].log_start_offset = 0
    cluster.logs[tp].end_offset = end
    assert spans(bind_ranges(router, ranges, policy())) == [(0, end)]


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("until", [None, 50])
def test_pieces_of_a_read_from_earliest_lose_nothing_where_the_log_starts_later(log, caplog, fail, until):
    cluster, router = log
    topic_id = cluster.topic_ids["t"].hex
    loss = policy(fail=fail)
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        found = [bind_ranges(router, [piece], loss) for piece in read_in_tens(None, until, topic_id)]
    assert [spans(bound) for bound in found] == [[], [], [(20, 30)], [(30, 40)], [(40, 50)]]
    assert (loss.lost, caplog.messages) == (0, [])


def test_a_piece_whose_start_was_an_offset_is_bound_as_it_is(log):
    cluster, router = log
    found = bind_ranges(router, read_in_tens(0, 50, cluster.topic_ids["t"].hex), policy())
    assert spans(found) == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50)]
