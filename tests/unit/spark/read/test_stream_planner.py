"""The driver's side of a stream without a cluster: the offsets that it writes, and a restart from them."""

import contextlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.error_conditions import KafkaConditionError
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.data_loss import DataLossPolicy
from spark_kafka_native.spark.read.driver.admission_control import SizeEstimate
from spark_kafka_native.spark.read.driver.micro_batch import LogEnds, StreamOffset
from spark_kafka_native.spark.read.driver.stream_logs import StreamLogs
from spark_kafka_native.spark.read.driver.stream_planner import StreamPlanner
from spark_kafka_native.spark.read.offset_range import At
from spark_kafka_native.spark.read.read_options import MicroBatchLimits, StreamOptions
from spark_kafka_native.spark.read.worker.offset_binding import move_to_successor
from spark_kafka_native.testing import MockBroker

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OLD, NEW = "a" * 32, "b" * 32


@dataclass
class Logs:
    """What a cluster would say."""

    start: Mapping[TopicPartition, int]
    latest: dict[TopicPartition, int]
    earliest: dict[TopicPartition, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=lambda: {"t": OLD})
    asked: int = 0

    def find_start(self):
        return StreamOffset(positions=dict(self.start), topic_ids=dict(self.ids), start=dict(self.start))

    def find_ends(self, _start, held=None):
        self.asked += 1
        self.held = held
        return LogEnds(latest=dict(self.latest), topic_ids=dict(self.ids))

    def find_beginnings(self, topic_partitions):
        return {tp: self.earliest.get(tp, 0) for tp in topic_partitions if tp in self.latest}

    def sample_sizes(self, begin, latest, _topic_ids):
        sizes = {tp: 100.0 for tp in latest if latest[tp] > begin[tp]}
        return SizeEstimate(bytes_per_offset=sizes)


class MovingLeaders(Logs):
    """Each time that they are asked for, partitions have other leaders."""

    moves = 0

    def find_leaders(self, topic_partitions):
        self.moves += 1
        return {tp: tp.partition // self.moves % 2 for tp in topic_partitions}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def planner_of(logs, clock=None, **options):
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"} | options
    return StreamPlanner(
        logs, StreamOptions.parse(OptionValues.parse(given, Scope.STREAM)), clock=clock or Clock()
    )


def through_checkpoint(offset):
    return json.loads(json.dumps(offset))


def ranges(planner, start, end):
    tasks = planner.plan(through_checkpoint(start), through_checkpoint(end))
    assert all(isinstance(one.start, At) and isinstance(one.end, At) for task in tasks for one in task)
    return [
        (one.topic, one.partition, one.start.offset, one.end.offset, one.topic_id)
        for task in tasks
        for one in task
    ]


def test_batches_follow_one_another():
    logs = Logs({T0: 5}, {T0: 9})
    planner = planner_of(logs)
    assert planner.report() is None
    first = planner.initial()
    end = planner.latest(first, limited=False)
    assert ranges(planner, first, end) == [("t", 0, 5, 9, OLD)]
    assert planner.report() == {"t": {"0": 9}, "#bytes 100.0": {}}
    assert planner.latest(end, limited=False) is end
    logs.latest[T0] = 12
    later = planner.latest(end, limited=False)
    assert later == {"t": {"0": 12}, f"#id t {OLD}": {}}
    assert ranges(planner, end, later) == [("t", 0, 9, 12, OLD)]


def test_the_initial_offset_is_looked_up_once():
    logs = Logs({T0: 5}, {T0: 9})
    planner = planner_of(logs)
    first = planner.initial()
    logs.start = {T0: 7}
    assert planner.initial() == first


def test_a_first_batch_that_was_not_completed_is_the_same_after_a_crash():
    logs = Logs({T0: 5, T1: 0}, {T0: 9, T1: 0})
    before = planner_of(logs)
    first = before.initial()
    end = before.latest(first, limited=False)
    # Latest is a later place by now, and there is a partition more.
    logs.start = {T0: 30, T1: 30, TopicPartition("t", 2): 30}
    logs.latest = dict(logs.start)
    after = planner_of(logs)
    assert ranges(after, after.initial(), end) == ranges(before, first, end) == [("t", 0, 5, 9, OLD)]
    following = after.latest(through_checkpoint(end), limited=False)
    assert ranges(after, end, following) == [
        ("t", 0, 9, 30, OLD),
        ("t", 1, 0, 30, OLD),
        ("t", 2, 0, 30, OLD),
    ]


def test_an_empty_first_batch_keeps_the_start():
    logs = Logs({T0: 5}, {T0: 5})
    planner = planner_of(logs)
    first = planner.initial()
    assert planner.latest(first, limited=False) is first
    logs.latest[T0] = 8
    # Another process, which starts from the checkpoint.
    restarted = planner_of(logs)
    end = restarted.latest(through_checkpoint(first), limited=False)
    assert ranges(restarted, first, end) == [("t", 0, 5, 8, OLD)]
    # The JVM connector has gone on from there and was stopped: its offset has no start.
    assert ranges(planner_of(logs), first, {"t": {"0": 8}}) == [("t", 0, 5, 8, None)]


def test_a_first_batch_that_the_jvm_connector_planned_is_left_to_it():
    planner = planner_of(Logs({T0: 9}, {T0: 9}))
    first = planner.initial()
    with pytest.raises(ConfigError, match="planned by Spark's own connector and not completed"):
        planner.plan(through_checkpoint(first), {"t": {"0": 9}})


def test_a_checkpoint_of_the_jvm_connector_is_continued():
    planner = planner_of(Logs({T0: 0}, {T0: 9}))
    start = {"t": {"0": 4}}
    assert ranges(planner, start, planner.latest(start, limited=False)) == [("t", 0, 4, 9, OLD)]
    assert planner_of(Logs({T0: 0}, {T0: 4})).latest(start, limited=False) is start


def test_new_partitions_begin_at_their_beginning_also_when_limited():
    logs = Logs({T0: 0}, {T0: 100, T1: 100})
    start = StreamOffset(positions={T0: 50}, topic_ids={"t": OLD}).to_json()
    planner = planner_of(logs, maxOffsetsPerTrigger="30")
    end = planner.latest(start, limited=True)
    assert ranges(planner, start, end) == [("t", 0, 50, 60, OLD), ("t", 1, 0, 20, OLD)]
    assert ranges(planner, start, planner.latest(start, limited=False)) == [
        ("t", 0, 50, 100, OLD),
        ("t", 1, 0, 100, OLD),
    ]


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "7"}])
def test_a_new_partition_that_does_not_start_at_zero_is_a_loss(limit):
    """Before anything is written down, and in a batch that was written down before."""
    logs = Logs({T0: 0}, {T0: 9, T1: 9}, earliest={T1: 4})
    start = {"t": {"0": 9}}
    lost = r"ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO.*t-1 starts from 4"
    with pytest.raises(KafkaConditionError, match=lost):
        planner_of(logs, **limit).latest(start, limited=bool(limit))
    lenient = planner_of(logs, failOnDataLoss="false", **limit)
    end = lenient.latest(start, limited=bool(limit))
    with pytest.raises(KafkaConditionError, match=lost):
        planner_of(logs).plan(start, {"t": {"0": 9, "1": 9}})
    assert ranges(lenient, start, end) == [("t", 1, 4, 9, OLD)]


def test_a_new_partition_that_goes_while_a_batch_is_planned_is_a_loss_before_it_is_written_down():
    logs = Logs({T0: 0}, {T0: 12, T1: 5})
    logs.find_beginnings = lambda _: {}
    with pytest.raises(KafkaConditionError, match=r"INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS.*\[t-1\]"):
        planner_of(logs).latest({"t": {"0": 9}}, limited=False)


def test_a_new_partition_that_is_gone_again_is_a_loss():
    logs = Logs({T0: 0}, {T0: 12})
    start, end = {"t": {"0": 9}}, {"t": {"0": 12, "1": 5}}
    with pytest.raises(KafkaConditionError, match=r"INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS.*\[t-1\]"):
        planner_of(logs).plan(start, end)
    # Perhaps it is only hidden: after this batch it counts as read.
    lenient = planner_of(logs, failOnDataLoss="false")
    assert ranges(lenient, start, end) == [("t", 0, 9, 12, None), ("t", 1, 0, 5, None)]


def test_deleted_partitions_fail_before_anything_is_written_down():
    logs = Logs({T0: 0}, {T0: 9})
    start = StreamOffset(positions={T0: 5, T1: 5}, topic_ids={"t": OLD}).to_json()
    with pytest.raises(KafkaConditionError, match=r"\[KAFKA_DATA_LOSS.PARTITIONS_DELETED\].*\[t-1\]"):
        planner_of(logs).latest(start, limited=False)
    # So it is under `subscribePattern`, too, if an ACL is withdrawn: a new checkpoint would read all again.
    with pytest.raises(
        KafkaConditionError,
        match=r"_AND_GROUP_ID_CONFIG_PRESENT.* an ACL is missing: with one for Describe the query goes on",
    ):
        planner_of(logs, **{"kafka.group.id": "g"}).latest(start, limited=False)
    planned = StreamOffset(positions={T0: 9}, topic_ids={"t": OLD}).to_json()
    with pytest.raises(KafkaConditionError, match=r"_AND_GROUP_ID_CONFIG_PRESENT"):
        planner_of(logs, **{"kafka.group.id": "g"}).plan(start, planned)
    lenient = planner_of(logs, failOnDataLoss="false")
    end = lenient.latest(start, limited=False)
    assert ranges(lenient, start, end) == [("t", 0, 5, 9, OLD)]
    # Logged before, and planned again after the deletion.
    with pytest.raises(KafkaConditionError, match="PARTITIONS_DELETED"):
        planner_of(logs).plan(start, end)


U0 = TopicPartition("u", 0)


def test_a_partition_that_was_missing_for_some_batches_is_read_on_where_it_was():
    """A topic that may not be described for a while is missing, as a deleted one is."""
    logs = Logs({}, {T0: 9}, ids={"t": OLD})
    start = StreamOffset(positions={T0: 5, U0: 5}, topic_ids={"t": OLD, "u": NEW}).to_json()
    for end in (9, 12):
        logs.latest = {T0: end}
        start = through_checkpoint(planner_of(logs, failOnDataLoss="false").latest(start, limited=False))
    logs.latest, logs.ids = {T0: 12, U0: 5}, {"t": OLD, "u": NEW}
    lenient = planner_of(logs, failOnDataLoss="false")
    back = lenient.latest(start, limited=False)
    assert ranges(lenient, start, back) == []  # nothing new; lag and commits count it again
    assert StreamOffset.from_json(back).positions == {T0: 12, U0: 5}
    assert lenient.latest(back, limited=False) is back
    logs.latest[U0] = 8
    for planner in (lenient, planner_of(logs)):  # its loss was accepted, and has proved to be none
        end = planner.latest(start, limited=False)
        assert ranges(planner, start, end) == [("u", 0, 5, 8, NEW)]
        assert StreamOffset.from_json(end).gone == {}


def test_a_missing_partition_waits_where_it_was_also_if_it_comes_back_shorter():
    logs = Logs({}, {T0: 9, U0: 3}, ids={"t": OLD, "u": NEW})
    start = StreamOffset(positions={T0: 5}, topic_ids={"t": OLD, "u": NEW}, gone={U0: 5}).to_json()
    lenient = planner_of(logs, failOnDataLoss="false")
    end = lenient.latest(start, limited=False)
    assert ranges(lenient, start, end) == [("t", 0, 5, 9, OLD)]
    assert StreamOffset.from_json(end).positions == {T0: 9, U0: 5}


@pytest.mark.parametrize("known", [OLD, None], ids=["of another id", "without an id"])
def test_a_topic_that_may_be_another_one_is_read_from_its_beginning(known):
    logs = Logs({}, {T0: 9}, ids={"t": OLD})
    ids = {"t": OLD} if known is None else {"t": OLD, "u": known}
    start = StreamOffset(positions={T0: 5, U0: 5}, topic_ids=ids).to_json()
    lenient = planner_of(logs, failOnDataLoss="false")
    start = lenient.latest(start, limited=False)
    logs.latest, logs.ids = {T0: 9, U0: 7}, {"t": OLD, "u": NEW}
    assert ranges(lenient, start, lenient.latest(start, limited=False)) == [("u", 0, 0, 7, NEW)]
    strict = planner_of(logs)
    if known is None:
        assert ranges(strict, start, strict.latest(start, limited=False)) == [("u", 0, 0, 7, NEW)]
    else:
        # Unread records of the former topic are lost, and no error said so.
        with pytest.raises(
            KafkaConditionError, match=r"Partition u-0 offset was changed from 5 to 7.*created again"
        ):
            strict.latest(start, limited=False)


def test_positions_of_the_partitions_that_went_last_are_kept():
    """A pattern subscribes to a topic of each day, and old ones are deleted: offsets do not grow for ever."""
    logs = Logs({}, {T0: 9}, ids={"t": OLD})
    first, later = (
        {TopicPartition(name, number): 5 for number in range(count)} for name, count in (("z", 3), ("a", 999))
    )
    ids = {"t": OLD, "z": NEW, "a": NEW}
    start = StreamOffset(positions={T0: 5, **later}, topic_ids=ids, gone=first).to_json()
    end = planner_of(logs, failOnDataLoss="false").latest(start, limited=False)
    assert list(StreamOffset.from_json(through_checkpoint(end)).gone) == [TopicPartition("z", 2), *later]


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "100"}])
def test_a_new_partition_of_which_the_beginning_is_not_found_is_left_for_a_later_batch(limit):
    """The broker that is asked may not know of it yet: at the end of a batch, its records were skipped."""
    logs = Logs({}, {T0: 9, T1: 3})
    start = StreamOffset(positions={T0: 5}, topic_ids={"t": OLD}).to_json()
    found, logs.find_beginnings = logs.find_beginnings, lambda tps: dict.fromkeys(set(tps) - {T1}, 0)
    lenient = planner_of(logs, failOnDataLoss="false", **limit)
    end = lenient.latest(start, limited=True)
    assert ranges(lenient, start, end) == [("t", 0, 5, 9, OLD)]
    assert lenient.latest(end, limited=True) is end
    del logs.latest[T0]
    assert lenient.latest(end, limited=True) is end  # an offset without a partition is no end of a batch
    logs.latest[T0], logs.find_beginnings = 9, found
    assert ranges(lenient, end, lenient.latest(end, limited=True)) == [("t", 1, 0, 3, OLD)]


def test_an_end_without_ids_says_not_that_a_missing_topic_is_back():
    """Spark's connector has planned it: the topic may be another one."""
    start = StreamOffset(positions={T0: 9}, topic_ids={"t": OLD, "u": NEW}, gone={U0: 5}).to_json()
    lenient = planner_of(Logs({}, {T0: 9, U0: 7}), failOnDataLoss="false")
    assert ranges(lenient, start, {"t": {"0": 9}, "u": {"0": 7}}) == [("u", 0, 0, 7, None)]


def test_a_batch_that_is_not_held_back_and_finds_nothing_does_not_use_up_the_delay():
    logs, clock = Logs({}, {T0: 9, T1: 3}), Clock()
    start = StreamOffset(positions={T0: 9}, topic_ids={"t": OLD}).to_json()
    found, logs.find_beginnings = logs.find_beginnings, lambda _: {}
    lenient = planner_of(
        logs, clock, failOnDataLoss="false", minOffsetsPerTrigger="100", maxTriggerDelay="1m"
    )
    assert lenient.latest(start, limited=True) is start
    logs.find_beginnings = found
    assert ranges(lenient, start, lenient.latest(start, limited=True)) == [("t", 1, 0, 3, OLD)]


def test_a_missing_partition_is_asked_for_again_once_while_a_batch_is_held_back():
    logs = Logs({}, {T0: 9, U0: 5}, ids={"t": OLD, "u": NEW})
    start = StreamOffset(positions={T0: 5, U0: 5}, topic_ids=dict(logs.ids)).to_json()
    lenient = planner_of(logs, failOnDataLoss="false", minOffsetsPerTrigger="100", maxTriggerDelay="1m")
    end = lenient.latest(start, limited=True)  # the first one of a run is never held back
    logs.latest, logs.ids, known = {T0: 12}, {"t": OLD}, []
    for _ in range(2):
        assert lenient.latest(end, limited=True) is end
        known.append(logs.held)
    assert known == [{}, {U0: 5}]


@pytest.mark.parametrize(
    "there", [pytest.param({T0: 5}, id="missing"), pytest.param({T0: 5, U0: 3}, id="shorter")]
)
def test_what_is_known_of_a_partition_holds_until_it_is_as_it_was(there):
    """While it holds, no batch asks again; after that, a broker that lags behind is in doubt as before."""
    both = {T0: 5, U0: 5}
    logs, known = Logs({}, both, ids={"t": OLD, "u": NEW}), []
    start = StreamOffset(positions=both, topic_ids=dict(logs.ids)).to_json()
    lenient = planner_of(logs, failOnDataLoss="false")
    for latest in (there, there, both, both):
        logs.latest = dict(latest)
        lenient.latest(start, limited=True)
        known.append(logs.held)
    assert known == [{}, {U0: 5}, {U0: 5}, {}]


def test_available_now_leaves_a_new_partition_of_which_the_beginning_is_not_found_for_the_next_run():
    logs = Logs({}, {T0: 9, T1: 3})
    start = StreamOffset(positions={T0: 5}, topic_ids={"t": OLD}).to_json()
    found, logs.find_beginnings = logs.find_beginnings, lambda tps: dict.fromkeys(set(tps) - {T1}, 0)
    lenient = planner_of(logs, failOnDataLoss="false")
    lenient.freeze()
    end = lenient.latest(start, limited=False)
    assert ranges(lenient, start, end) == [("t", 0, 5, 9, OLD)]
    logs.find_beginnings = found
    assert lenient.latest(end, limited=False) is end
    lenient = planner_of(logs, failOnDataLoss="false")
    lenient.freeze()
    assert ranges(lenient, end, lenient.latest(end, limited=False)) == [("t", 1, 0, 3, OLD)]


def test_no_partition_at_all_is_never_written_down():
    logs = Logs({T0: 0}, {})
    start = {"t": {"0": 5}}
    assert planner_of(logs, failOnDataLoss="false").latest(start, limited=False) is start
    with pytest.raises(KafkaConditionError, match=r"PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT\]"):
        planner_of(logs, **{"kafka.group.id": "g"}).latest(start, limited=False)
    with pytest.raises(KafkaConditionError, match=r"PARTITIONS_DELETED\]"):
        planner_of(logs).latest(start, limited=False)
    nothing = planner_of(Logs({}, {}, ids={}))
    first = nothing.initial()
    assert nothing.latest(first, limited=False) == first == {"#start": {}}
    assert nothing.report() is None
    # And a topic that comes into being is read whole, also by startingOffsets=latest.
    logs = Logs({}, {T0: 7})
    planner = planner_of(logs)
    assert ranges(planner, first, planner.latest(first, limited=False)) == [("t", 0, 0, 7, OLD)]


@pytest.mark.parametrize("records", [3, 5, 500])
def test_a_recreated_topic_is_a_loss_however_long_it_is(records):
    logs = Logs({T0: 0}, {T0: records}, ids={"t": NEW})
    start = StreamOffset(positions={T0: 5}, topic_ids={"t": OLD}).to_json()
    with pytest.raises(KafkaConditionError, match=f"PARTITION_OFFSET_CHANGED.*from 5 to {records}.*{NEW}"):
        planner_of(logs).latest(start, limited=False)
    for limited in (False, True):
        lenient = planner_of(logs, failOnDataLoss="false", maxOffsetsPerTrigger="1000")
        end = lenient.latest(start, limited=limited)
        assert ranges(lenient, start, end) == [("t", 0, 0, records, NEW)]
        assert lenient.latest(end, limited=limited) is end


def test_a_stream_goes_on_in_another_cluster_with_the_same_offsets_once_the_ids_are_dropped():
    logs = Logs({T0: 0}, {T0: 1010}, ids={"t": NEW})
    start = StreamOffset(positions={T0: 1000}, topic_ids={"t": OLD}).to_json()
    with pytest.raises(
        KafkaConditionError, match=r'another cluster .* one run of the whole query, .* format\("kafka"'
    ):
        planner_of(logs).latest(start, limited=False)
    # A batch that was planned in the other cluster and is not complete: only its tasks ask which topic it is.
    planned = StreamOffset(positions={T0: 1005}, topic_ids={"t": OLD}).to_json()
    (task,) = planner_of(logs).plan(start, planned)
    _, loss = move_to_successor(task[0], NEW)
    with pytest.raises(
        KafkaConditionError, match=r'COULD_NOT_READ_OFFSET_RANGE.* another cluster .* format\("kafka"'
    ):
        DataLossPolicy(fail=True, group_id="g").report(loss)
    planner, of_sparks = planner_of(logs), {"t": {"0": 1000}}
    end = planner.latest(of_sparks, limited=False)
    assert ranges(planner, of_sparks, end) == [("t", 0, 1000, 1010, NEW)]


def test_a_topic_that_is_recreated_during_the_first_batch_starts_at_its_beginning():
    logs = Logs({T0: 5}, {T0: 9}, ids={"t": OLD})
    planner = planner_of(logs, failOnDataLoss="false")
    first = planner.initial()
    logs.ids, logs.latest = {"t": NEW}, {T0: 7}
    end = planner.latest(first, limited=False)
    after = planner_of(logs, failOnDataLoss="false")
    assert ranges(planner, first, end) == ranges(after, after.initial(), end) == [("t", 0, 0, 7, NEW)]


@pytest.mark.parametrize("records", [3, 5, 7])
def test_a_topic_that_is_recreated_before_anything_was_read_is_a_loss_too(records):
    """A quiet topic: its stream stands where it began, and does not know the records before the deletion."""
    logs = Logs({T0: 5}, {T0: 5})
    first = planner_of(logs).initial()
    logs.ids, logs.latest = {"t": NEW}, {T0: records}
    with pytest.raises(KafkaConditionError, match=f"PARTITION_OFFSET_CHANGED.*from 5 to {records}.*{NEW}"):
        planner_of(logs).latest(through_checkpoint(first), limited=False)
    lenient = planner_of(logs, failOnDataLoss="false")
    end = lenient.latest(through_checkpoint(first), limited=False)
    assert ranges(lenient, first, end) == [("t", 0, 0, records, NEW)]


def test_a_first_batch_that_is_run_again_is_of_the_topic_it_was_planned_for():
    """Only its tasks can tell that it is gone; what the topic of that name looks like now says nothing."""
    logs = Logs({T0: 5}, {T0: 9})
    planner = planner_of(logs)
    end = planner.latest(planner.initial(), limited=False)
    logs.ids, logs.start, logs.latest = {"t": NEW}, {T0: 2, T1: 2}, {T0: 2, T1: 2}
    after = planner_of(logs)
    assert ranges(after, after.initial(), end) == [("t", 0, 5, 9, OLD)]


@pytest.mark.parametrize(
    "refusal",
    [
        ConfigError("you must specify all TopicPartitions"),
        KafkaConditionError(
            "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            {"position": "start", "specifiedPartitions": "[t-0]", "assignedPartitions": "[t-0, t-1]"},
        ),
    ],
    ids=lambda refusal: type(refusal).__name__,
)
def test_a_start_that_fits_no_more_does_not_keep_a_first_batch_from_being_run_again(refusal):
    """Of offsets or times for each partition, and there is one more since the crash."""
    logs = Logs({T0: 5}, {T0: 9})
    planner = planner_of(logs)
    end = planner.latest(planner.initial(), limited=False)

    def refuse():
        raise refusal

    logs.find_start, logs.latest = refuse, {T0: 12, T1: 3}
    after = planner_of(logs)
    assert ranges(after, after.initial(), end) == [("t", 0, 5, 9, OLD)]
    following = after.latest(through_checkpoint(end), limited=False)
    assert ranges(after, end, following) == [("t", 0, 9, 12, OLD), ("t", 1, 0, 3, OLD)]
    # A new stream is refused before anything is written down, and as often as it is asked.
    new = planner_of(logs)
    for _ in range(2):
        with pytest.raises(type(refusal), match=re.escape(str(refusal))):
            new.latest(new.initial(), limited=False)
    with pytest.raises(ConfigError, match="planned by Spark's own connector"):
        new.plan(new.initial(), {"t": {"0": 9}})


def test_an_end_that_goes_back_is_a_loss_and_the_stream_stays_where_it_is(caplog):
    """The same topic, as its id says: no record is read again, also where the log is shorter."""
    logs = Logs({T0: 0}, {T0: 3, T1: 8})
    start = StreamOffset(positions={T0: 5, T1: 6}, topic_ids={"t": OLD}).to_json()
    with pytest.raises(
        KafkaConditionError, match=r"PARTITION_OFFSET_CHANGED.*t-0 offset was changed from 5 to 3"
    ):
        planner_of(logs).latest(start, limited=False)
    lenient = planner_of(logs, failOnDataLoss="false", maxOffsetsPerTrigger="100")
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        end = lenient.latest(start, limited=False)
        assert lenient.latest(start, limited=True) == end
        assert ranges(lenient, start, end) == [("t", 1, 6, 8, OLD)]
        assert StreamOffset.from_json(end).positions == {T0: 5, T1: 8}
        assert lenient.latest(end, limited=True) is end
        logs.latest[T0] = 4
        assert lenient.latest(end, limited=True) is end
    # Once for a position, however often it is asked.
    (told,) = [record.message for record in caplog.records]
    assert "t-0 offset was changed from 5 to 3" in told
    assert "goes on at offset 5" in told
    logs.latest[T0] = 7
    assert ranges(lenient, end, lenient.latest(end, limited=True)) == [("t", 0, 5, 7, OLD)]


def test_an_end_that_goes_back_where_no_ids_are_known_is_where_the_stream_goes_on():
    """A checkpoint of the JVM connector, or old brokers: the topic may have been recreated."""
    logs = Logs({T0: 0}, {T0: 3}, ids={})
    lenient = planner_of(logs, failOnDataLoss="false")
    end = lenient.latest({"t": {"0": 5}}, limited=False)
    assert StreamOffset.from_json(end).positions == {T0: 3}


@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_start_beyond_the_end_of_the_log_goes_on_at_that_end(caplog, is_available_now):
    """Committed in a former topic, say: nothing was read before it, so that nothing could be read twice."""
    logs = Logs({T0: 1000, T1: 0}, {T0: 10, T1: 7})
    strict = planner_of(logs)
    first = strict.initial()
    changed = r"t-0 offset was changed from 1000 to 10.*goes on at offset 10"
    with pytest.raises(KafkaConditionError, match=changed):
        strict.latest(first, limited=False)
    lenient = planner_of(logs, failOnDataLoss="false")
    if is_available_now:
        lenient.freeze()
    first = through_checkpoint(lenient.initial())
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        end = lenient.latest(first, limited=False)
        assert ranges(lenient, first, end) == [("t", 1, 0, 7, OLD)]
    (warned,) = [record.message for record in caplog.records]
    assert "beyond the end of its log" in warned
    assert "goes on at offset 10" in warned
    end = through_checkpoint(end)
    assert StreamOffset.from_json(end).positions == {T0: 10, T1: 7}
    logs.latest[T0] = 25
    after = planner_of(logs, failOnDataLoss="false")
    assert ranges(after, after.initial(), end) == [("t", 1, 0, 7, OLD)]
    assert ranges(after, end, after.latest(end, limited=False)) == [("t", 0, 10, 25, OLD)]


def test_available_now_holds_the_position_of_a_log_that_became_shorter():
    logs = Logs({T0: 0}, {T0: 3, T1: 25})
    start = StreamOffset(positions={T0: 5, T1: 6}, topic_ids={"t": OLD}).to_json()
    planner = planner_of(logs, failOnDataLoss="false", maxOffsetsPerTrigger="10")
    planner.freeze()
    at, found = start, []
    while (end := planner.latest(at, limited=True)) is not at:
        found += ranges(planner, at, end)
        at = end
    assert [one[1:4] for one in found] == [(1, 6, 16), (1, 16, 25)]
    assert StreamOffset.from_json(at).positions == {T0: 5, T1: 25}
    assert logs.held == {T0: 5}  # of which it is known: no second look in each batch


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "100"}, {"maxBytesPerTrigger": "10000"}])
def test_a_limit_does_not_count_offsets_that_are_lost(limit):
    """Retention has passed the position: one batch goes over all that is lost, and reads as much as any."""
    logs = Logs({T0: 0, T1: 0}, {T0: 1_000_000, T1: 10}, earliest={T0: 999_000})
    start = StreamOffset(positions={T0: 0, T1: 10}, topic_ids={"t": OLD}).to_json()
    lenient = planner_of(logs, failOnDataLoss="false", **limit)
    end = lenient.latest(start, limited=True)
    # The tasks are given the lost offsets, too: they report them.
    assert ranges(lenient, start, end) == [("t", 0, 0, 999_100, OLD)]
    assert ranges(lenient, end, lenient.latest(end, limited=True)) == [("t", 0, 999_100, 999_200, OLD)]
    # All of it is lost, and nothing is there to read.
    logs.earliest[T0] = 1_000_000
    assert StreamOffset.from_json(lenient.latest(start, limited=True)).positions[T0] == 1_000_000


def test_the_beginnings_are_asked_for_only_where_a_limit_could_creep():
    logs, asked = Logs({T0: 0}, {T0: 50}), []
    logs.find_beginnings = lambda tps: asked.append(list(tps)) or dict.fromkeys(tps, 0)
    start = StreamOffset(positions={T0: 0}, topic_ids={"t": OLD}).to_json()
    planner_of(logs, failOnDataLoss="false").latest(start, limited=True)
    planner_of(logs, maxOffsetsPerTrigger="10").latest(start, limited=True)
    assert [tps for tps in asked if tps] == []
    planner_of(logs, failOnDataLoss="false", maxOffsetsPerTrigger="10").latest(start, limited=True)
    assert [tps for tps in asked if tps] == [[T0]]


def test_available_now_reads_what_was_there_when_it_began_in_several_batches():
    logs = Logs({T0: 0}, {T0: 25})
    planner = planner_of(logs, maxOffsetsPerTrigger="10", minOffsetsPerTrigger="10")
    planner.freeze()
    at, found = planner.initial(), []
    while (end := planner.latest(at, limited=True)) is not at:
        logs.latest[T0] += 100
        found += ranges(planner, at, end)
        at = end
    # The last batch is smaller than minOffsetsPerTrigger, and there will be no more.
    assert [one[2:4] for one in found] == [(0, 10), (10, 20), (20, 25)]


def test_available_now_stops_if_its_target_is_gone():
    logs = Logs({T0: 0, T1: 0}, {T0: 25, T1: 25})
    planner = planner_of(logs, failOnDataLoss="false")
    planner.freeze()
    first = planner.initial()
    end = planner.latest(first, limited=False)
    logs.latest = {T0: 25}
    with pytest.raises(
        KafkaConditionError, match="LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW"
    ):
        planner.plan(first, end)
    logs.latest = {T0: 24, T1: 25}
    with pytest.raises(
        KafkaConditionError, match="END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST"
    ):
        planner.plan(first, end)
    logs.latest = {T0: 25, T1: 25}
    with pytest.raises(KafkaConditionError, match="MISMATCHED_TOPIC_PARTITIONS"):
        planner.plan(first, {"t": {"0": 25}, "#start": {}, "#start t 0:0": {}})
    with pytest.raises(
        KafkaConditionError, match="END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED"
    ):
        planner.plan({"t": {"0": 0, "1": 0}}, {"t": {"0": 25, "1": 26}})


def test_a_batch_logged_before_available_now_looked_is_just_read():
    logs = Logs({T0: 0}, {T0: 25})
    planner = planner_of(logs)
    planner.freeze()
    assert ranges(planner, {"t": {"0": 3}}, {"t": {"0": 9}}) == [("t", 0, 3, 9, None)]
    assert logs.asked == 0


def test_too_little_waits_for_more_or_for_the_delay():
    logs, clock = Logs({T0: 0}, {T0: 1}), Clock()
    planner = planner_of(
        logs, clock, minOffsetsPerTrigger="10", maxTriggerDelay="60s", maxOffsetsPerTrigger="12"
    )
    at = planner.latest(planner.initial(), limited=True)
    assert StreamOffset.from_json(at).positions == {T0: 1}  # the first never waits
    logs.latest[T0] = 10
    assert planner.latest(at, limited=True) is at
    logs.latest[T0] = 40
    at = planner.latest(at, limited=True)
    assert StreamOffset.from_json(at).positions == {T0: 13}  # both limits
    logs.latest[T0] = 15
    clock.now += 59.9
    assert planner.latest(at, limited=True) is at
    clock.now += 0.1
    at = planner.latest(at, limited=True)
    assert StreamOffset.from_json(at).positions == {T0: 15}
    logs.latest[T0] = 17
    assert planner.latest(at, limited=True) is at
    # Trigger.Once reads all records, regardless of the limits.
    assert StreamOffset.from_json(planner.latest(at, limited=False)).positions == {T0: 17}


def test_the_delay_of_a_batch_begins_anew_while_all_is_quiet():
    """As in Spark's connector: the first record after a quiet spell made a batch at once."""
    logs, clock = Logs({T0: 0}, {T0: 1}), Clock()
    planner = planner_of(logs, clock, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    at = planner.latest(planner.initial(), limited=True)
    for _ in range(5):
        clock.now += 50
        assert planner.latest(at, limited=True) is at
    logs.latest[T0] = 2
    assert planner.latest(at, limited=True) is at
    clock.now += 59
    assert StreamOffset.from_json(planner.latest(at, limited=True)).positions == {T0: 2}


def test_packed_and_split_ranges_cover_the_same():
    logs = Logs({T0: 0, T1: 0}, {T0: 100, T1: 7})
    packed, split = planner_of(logs, maxPartitions="1"), planner_of(logs, minPartitions="4")
    first = packed.initial()
    end = packed.latest(first, limited=False)
    assert len(packed.plan(first, end)) == 1
    tasks = split.plan(through_checkpoint(first), end)
    assert len(tasks) >= 4
    assert sum(one.end.offset - one.start.offset for task in tasks for one in task) == 107


def test_a_batch_has_the_same_tasks_also_when_leaders_have_moved():
    # An exactly-once sink compares the rows of each task with those of the first time.
    ends = {TopicPartition("t", index): 10 + 7 * index for index in range(9)}
    logs = MovingLeaders(dict.fromkeys(ends, 0), ends)
    first = planner_of(logs, maxPartitions="4")
    start = first.initial()
    end = first.latest(start, limited=False)
    plan = first.plan(start, end)
    assert len(plan) == 4
    again = planner_of(logs, maxPartitions="4").plan(through_checkpoint(start), through_checkpoint(end))
    assert again == plan


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"endingTimestamp": "5"}, "ending timestamp not valid in streaming queries"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":5}}'}, "ending timestamp not valid in streaming queries"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be positive"),
        (
            {"minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"},
            "is higher than the maxOffsetsPerTrigger",
        ),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"maxBytesPerTrigger": "x"}, "maxBytesPerTrigger"),
        ({"commitOffsets": "true"}, "commitOffsets=true needs kafka.group.id"),
    ],
)
def test_stream_options_that_cannot_be(options, words):
    with pytest.raises(ConfigError, match=words):
        planner_of(None, **options)


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({"minOffsetsPerTrigger": "0"}, MicroBatchLimits()),
        ({"minOffsetsPerTrigger": "0", "maxOffsetsPerTrigger": "1"}, MicroBatchLimits(max_offsets=1)),
        (
            {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "500000us"},
            MicroBatchLimits(min_offsets=5, max_delay_ms=500),
        ),
        ({"kafkaConsumer.pollTimeoutMs": "3000000000"}, MicroBatchLimits()),
        ({"fetchOffset.numRetries": "5000"}, MicroBatchLimits()),
    ],
)
def test_stream_options_that_sparks_connector_takes(options, limits):
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"} | options
    assert StreamOptions.parse(OptionValues.parse(given, Scope.STREAM)).limits == limits


def test_sizes_are_sampled_once_a_minute_where_no_limit_needs_them():
    logs, clock, sampled = Logs({T0: 0}, {T0: 1}), Clock(), []
    sizes = SizeEstimate(bytes_per_offset={T0: 7.0})
    logs.sample_sizes = lambda _begin, _latest, _ids: sampled.append(clock.now) or sizes
    planner = planner_of(logs, clock)
    at = planner.initial()
    for step in (0, 1, 58.9, 0.1, 30, 30):
        clock.now += step
        logs.latest[T0] += 10
        at = planner.latest(at, limited=True)
    assert sampled == [100.0, 160.0, 220.0]
    assert planner.report()["#bytes 7.0"] == {}


def test_a_progress_without_a_sample_has_the_ends_alone():
    logs = Logs({T0: 9}, {T0: 9})
    planner = planner_of(logs)
    planner.latest(planner.initial(), limited=False)
    assert planner.report() == {"t": {"0": 9}}
    logs.sample_sizes = lambda *_: SizeEstimate()  # what could not be sampled is left out
    logs.latest[T0] = 12
    planner.latest(planner.initial(), limited=False)
    assert planner.report() == {"t": {"0": 12}}


def test_a_quiet_stream_notices_what_changes():
    """A partition without new records is not looked at again; all others are."""
    logs = Logs({T0: 0}, {T0: 9, T1: 4})
    planner = planner_of(logs)
    at = through_checkpoint(planner.latest(planner.initial(), limited=False))
    for _ in range(3):
        assert planner.latest(at, limited=False) is at
    logs.ids = {"t": NEW}
    with pytest.raises(KafkaConditionError, match="PARTITION_OFFSET_CHANGED"):
        planner.latest(at, limited=False)
    logs.ids, logs.latest = {"t": OLD}, {T0: 9}
    with pytest.raises(KafkaConditionError, match="PARTITIONS_DELETED"):
        planner.latest(at, limited=False)
    logs.latest = {T0: 9, T1: 4}
    assert planner.latest(at, limited=False) is at
    # The same ends, and another start: of a batch that was planned before.
    earlier = through_checkpoint(StreamOffset(positions={T0: 9, T1: 3}, topic_ids={"t": OLD}).to_json())
    assert ranges(planner, earlier, planner.latest(earlier, limited=False)) == [("t", 1, 3, 4, OLD)]
    logs.latest = {T0: 9, T1: 4, TopicPartition("t", 2): 1}
    assert ranges(planner, at, planner.latest(at, limited=False)) == [("t", 2, 0, 1, OLD)]


@pytest.mark.parametrize("limits", [{}, {"maxOffsetsPerTrigger": "60"}])
def test_a_batch_with_new_partitions_has_the_same_tasks_once_retention_has_gone_on(limits):
    """A sink that writes exactly once needs the same rows in each task of a batch that runs again."""
    logs = Logs({T0: 0}, {T0: 80, T1: 100}, earliest={T1: 40})
    start = StreamOffset(positions={T0: 50}, topic_ids={"t": OLD}).to_json()
    options = {"failOnDataLoss": "false", "minPartitions": "4"} | limits
    end = planner_of(logs, **options).latest(start, limited=bool(limits))
    before = planner_of(logs, **options).plan(start, through_checkpoint(end))
    assert min(one.start.offset for task in before for one in task if one.partition == 1) == 40
    logs.earliest[T1] = 90
    assert planner_of(logs, **options).plan(start, through_checkpoint(end)) == before
    # The batch after it does not begin there.
    logs.latest[T1] = 120
    following = planner_of(logs, **options).latest(through_checkpoint(end), limited=False)
    assert ("t", 1) in [one[:2] for one in ranges(planner_of(logs, **options), end, following)]
    assert not [name for name in following if name.startswith("#added")]


def test_where_a_new_partition_begins_is_written_down_only_where_that_may_change_the_plan():
    logs = Logs({T0: 0}, {T0: 80, T1: 100})
    start = StreamOffset(positions={T0: 50}, topic_ids={"t": OLD}).to_json()
    strict = planner_of(logs).latest(start, limited=False)
    assert not [name for name in strict if name.startswith("#added")]  # another beginning than 0 is an error
    known = StreamOffset(positions={T0: 50, T1: 3}, topic_ids={"t": OLD}).to_json()
    lenient = planner_of(logs, failOnDataLoss="false").latest(known, limited=False)
    assert not [name for name in lenient if name.startswith("#added")]
    lenient = planner_of(logs, failOnDataLoss="false").latest(start, limited=False)
    assert "#added t 1:0" in lenient


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "50"}, {"maxBytesPerTrigger": "500"}])
def test_a_quiet_stream_costs_two_requests_and_a_busy_one_asks_for_each_thing_once(fail, limit):
    with MockBroker() as broker:
        broker.create_topic("t")
        options = StreamOptions.parse(
            OptionValues.parse(
                {
                    "kafka.bootstrap.servers": broker.bootstrap_servers,
                    "subscribe": "t",
                    "failOnDataLoss": fail,
                }
                | limit,
                Scope.STREAM,
            )
        )
        with contextlib.closing(Router(options.read.client)) as router:
            planner = StreamPlanner(StreamLogs(router, options.read), options, clock=Clock())
            at = planner.initial()

            def asked():
                before = len(broker.requests)
                end = planner.latest(at, limited=True)
                return end, [one.api for one in broker.requests[before:] if one.api != "ApiVersions"]

            for _ in range(3):
                assert asked() == (at, ["Metadata", "ListOffsets"])
            broker.append("t", [b"x" * 10] * 100)
            asked()  # samples the sizes of records for the progress
            end, apis = asked()
    looks = 2 if fail == "false" and limit else 1  # the first offsets, too: some may be lost
    expected = ["Metadata", "ListOffsets"] * looks + ["Fetch"] * ("maxBytesPerTrigger" in limit)
    assert apis == expected
    assert (StreamOffset.from_json(end).positions[T0] < 100) == bool(limit)
