"""What a task goes on with after an error, against a scripted cluster; and its loop."""

import logging
from types import SimpleNamespace
from uuid import uuid4

import pytest
from pyspark.sql.types import StructType
from support.brokers.planning_cluster import PlanningCluster
from support.brokers.scripted_broker import properties

from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    EndOfLogError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from spark_kafka_native.kafka.model import IsolationLevel, TopicPartition
from spark_kafka_native.spark.error_conditions import KafkaConditionError
from spark_kafka_native.spark.read.data_loss import DataLossPolicy, LogShrunk, OffsetsLost, PartitionsDeleted
from spark_kafka_native.spark.read.offset_range import At, Earliest, Latest, OffsetRange
from spark_kafka_native.spark.read.schema import RowSchema
from spark_kafka_native.spark.read.worker import offset_binding, read_partition
from spark_kafka_native.spark.read.worker.offset_binding import Binding, BoundRange, rebind_ranges

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
LEVEL = IsolationLevel.READ_UNCOMMITTED
SCHEMA = RowSchema.from_schema(StructType().add("offset", "long"))
WHY = KafkaError("a leader said so")


@pytest.fixture
def cluster():
    with PlanningCluster() as cluster:
        for tp in (*cluster.create("t", 2), *cluster.create("u")):
            cluster.logs[tp].log_start_offset = 20
            cluster.logs[tp].end_offset = 50
        yield cluster


@pytest.fixture
def router(cluster):
    router = Router(ClientConfig.from_properties(properties(cluster.bootstrap_servers)))
    yield router
    router.close()


def bound(tp, position, until_offset, *, end=None, topic_id=None):
    planned = OffsetRange(
        topic=tp.topic,
        partition=tp.partition,
        start=Earliest(),
        end=end or At(until_offset),
        topic_id=topic_id,
    )
    return BoundRange(planned=planned, position=position, until_offset=until_offset)


def spans(binding):
    return [(str(one.topic_partition), one.position, one.until_offset) for one in binding.ranges]


def test_offsets_that_the_leader_refuses_are_cut_to_its_log_and_the_others_stay(router):
    left = [bound(T0, 5, 40), bound(T1, 5, 40), bound(U0, 5, 40)]
    error = OffsetOutOfRangeError(T1, 5)
    found = rebind_ranges(router, left, error, LEVEL)
    assert spans(found) == [("t-0", 5, 40), ("t-1", 20, 40), ("u-0", 5, 40)]
    (loss,) = found.losses
    assert (loss.topic_partition, loss.from_offset, loss.until_offset, loss.lost) == (T1, 5, 40, 15)
    assert loss.cause is error
    gone = rebind_ranges(router, [bound(T1, 5, 15)], error, LEVEL)
    assert (gone.ranges, [one.lost for one in gone.losses]) == ((), [10])


def test_an_end_of_the_log_is_a_loss_but_not_where_a_transaction_hides_the_records(cluster, router):
    left = [bound(T0, 30, 70)]
    found = rebind_ranges(router, left, EndOfLogError(T0, 30, 70, 50), LEVEL)
    assert (spans(found), found.losses[0].lost) == ([("t-0", 30, 50)], 20)
    with pytest.raises(EndOfLogError):
        rebind_ranges(router, left, EndOfLogError(T0, 30, 70, 70, 30), LEVEL)
    cluster.logs[T0].last_stable_offset = 40  # of the log, not of what readers see
    assert spans(rebind_ranges(router, left, EndOfLogError(T0, 30, 70, 69, 40), LEVEL)) == [("t-0", 30, 50)]


def test_the_end_of_the_log_is_that_of_the_present_leader(cluster, router, monkeypatch):
    """One that was deposed, and has not heard of it, lacks the records of its successor: they were lost."""
    metadata = router.metadata

    def find_successor(topics, *, refresh=False, **named):
        if refresh:
            assert set(topics) == {"t"}
            cluster.logs[T0].end_offset = 70
        return metadata(topics, refresh=refresh, **named)

    monkeypatch.setattr(router, "metadata", find_successor)
    found = rebind_ranges(router, [bound(T0, 30, 70)], EndOfLogError(T0, 30, 70, 50), LEVEL)
    assert (spans(found), found.losses) == ([("t-0", 30, 70)], ())


@pytest.mark.parametrize("error", [OffsetOutOfRangeError(T0, 5), EndOfLogError(T0, 5, 40, 30)])
def test_a_topic_that_is_deleted_before_its_log_is_looked_at_is_lost(cluster, router, monkeypatch, error):
    """As retention takes offsets of a topic that is about to be deleted, say."""
    monkeypatch.setattr(retry_policy, "KNOWN_TOPIC_WAIT_MS", 300)
    router.metadata({"t", "u"})
    del cluster.topic_ids["t"]
    left = [bound(T0, 5, 40), bound(T1, 20, 40), bound(U0, 30, 40)]
    found = rebind_ranges(router, left, error, LEVEL)
    assert found == Binding(ranges=(left[2],), losses=(PartitionsDeleted(topic_partitions={T0, T1}),))


@pytest.mark.parametrize("error", [OffsetOutOfRangeError(T0, 5), EndOfLogError(T0, 5, 40, 30)])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_topic_that_is_created_again_before_its_log_is_looked_at_is_followed(
    cluster, router, monkeypatch, error, when
):
    """Offsets are listed by name: those of the new topic are no loss of the former one, and are read where
    the end is open."""
    former, current = cluster.topic_ids["t"], uuid4()
    metadata = router.metadata

    def create_again(*asked, refresh=False, **named):
        known = metadata(*asked, refresh=refresh, **named) if when == "after" else None
        if refresh:
            cluster.topic_ids["t"] = current
            cluster.logs[T0].log_start_offset, cluster.logs[T0].end_offset = 0, 3
        return known or metadata(*asked, refresh=refresh, **named)

    router.metadata({"t", "u"})
    monkeypatch.setattr(router, "metadata", create_again)
    left = [bound(T0, 5, 40, end=Latest(), topic_id=former.hex).advanced(5), bound(U0, 30, 40)]
    found = rebind_ranges(router, left, error, LEVEL)
    assert spans(found) == [("u-0", 30, 40), ("t-0", 0, 3)]
    assert found.ranges[1].topic_id == current
    (loss,) = found.losses
    assert (loss.from_offset, loss.lost, str(loss.cause)) == (
        5, 35, str(TopicRecreatedError("t", str(former), str(current))),
    )  # fmt: skip


def test_a_log_that_cannot_be_looked_at_is_no_loss(cluster, router, monkeypatch):
    refused = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "there")

    def refuse(*_, **__):
        raise refused

    monkeypatch.setattr(offset_binding, "list_bounds", refuse)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        rebind_ranges(router, [bound(T0, 5, 40)], OffsetOutOfRangeError(T0, 5), LEVEL)


def test_partitions_that_are_gone_are_lost_and_the_others_stay_as_far_as_they_had_come(router, monkeypatch):
    monkeypatch.setattr(retry_policy, "KNOWN_TOPIC_WAIT_MS", 300)
    gone = TopicPartition("t", 7)
    left = [bound(T0, 30, 40), bound(gone, 0, 5)]
    found = rebind_ranges(router, left, BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there"), LEVEL)
    expected = PartitionsDeleted(topic_partitions=frozenset({gone}))
    assert found == Binding(ranges=(left[0],), losses=(expected,))
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        rebind_ranges(router, left, BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "there"), LEVEL)


def test_a_partition_that_is_back_by_the_end_of_the_wait_is_read_on(router):
    left = [bound(T0, 30, 40)]
    found = rebind_ranges(router, left, BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there"), LEVEL)
    assert found == Binding(ranges=tuple(left))


def test_all_ranges_of_a_recreated_topic_move_and_the_others_stay(cluster, router):
    former, current = cluster.topic_ids["t"], uuid4()
    left = [
        bound(T0, 20, 50, end=Latest(), topic_id=former.hex),
        bound(T1, 20, 50, end=Latest(), topic_id=former.hex).advanced(30),
        bound(U0, 20, 50, end=Latest(), topic_id=cluster.topic_ids["u"].hex).advanced(40),
    ]
    error = TopicRecreatedError("t", str(former), str(current))
    assert rebind_ranges(router, left, error, LEVEL) == Binding(ranges=tuple(left))
    cluster.topic_ids["t"] = current
    cluster.logs[T0].log_start_offset = cluster.logs[T1].log_start_offset = 0
    found = rebind_ranges(router, left, error, LEVEL)
    assert spans(found) == [("u-0", 40, 50), ("t-0", 0, 50), ("t-1", 0, 50)]
    assert [one.topic_id for one in found.ranges] == [cluster.topic_ids["u"], current, current]
    (loss,) = found.losses
    assert (loss.topic_partition, loss.from_offset, loss.lost, loss.cause) == (T1, 30, 20, error)


def test_the_partitions_that_a_recreated_topic_lacks_are_waited_for_together(cluster, router, monkeypatch):
    """Those that it has are not read before."""
    monkeypatch.setattr(retry_policy, "KNOWN_TOPIC_WAIT_MS", 300)
    waits = []

    def bind(router, ranges, *arguments):
        waits.append([one.partition for one in ranges])
        return bind_ranges(router, ranges, *arguments)

    bind_ranges = offset_binding.bind_ranges
    monkeypatch.setattr(offset_binding, "bind_ranges", bind)
    former, current = cluster.topic_ids["t"], uuid4()
    cluster.topic_ids["t"] = current
    absent = [TopicPartition("t", partition) for partition in (2, 3, 4)]
    left = [bound(tp, 20, 50, end=Latest(), topic_id=former.hex) for tp in (T0, T1, *absent)]
    found = rebind_ranges(router, left, TopicRecreatedError("t", str(former), str(current)), LEVEL)
    assert spans(found) == [("t-0", 20, 50), ("t-1", 20, 50)]
    assert found.losses == (PartitionsDeleted(topic_partitions=frozenset(absent)),)
    assert waits == [[0, 1, 2, 3, 4]]


def test_the_leaders_of_all_that_is_left_are_asked_whether_a_topic_was_recreated(
    cluster, router, monkeypatch
):
    former = cluster.topic_ids["t"]
    left = [bound(tp, 20, 50, topic_id=former.hex) for tp in (T0, T1)]
    asked = []

    def find(_router, expected, *, refresh, at):
        asked.append((expected, refresh, at))
        return {}

    monkeypatch.setattr(offset_binding, "find_recreated", find)
    error = TopicRecreatedError("t", str(former), str(uuid4()))
    assert rebind_ranges(router, left, error, LEVEL) == Binding(ranges=tuple(left))
    assert asked == [({"t": former}, True, {T0, T1})]


@pytest.mark.parametrize(
    ("loss", "condition", "lost", "warning"),
    [
        (
            OffsetsLost(
                topic_partition=T0,
                from_offset=3,
                until_offset=9,
                lost=4,
                note="Why.",
                then="Then.",
                cause=WHY,
            ),
            r"COULD_NOT_READ_OFFSET_RANGE.* offset \[3, 9\) for topic partition t-0 .* g\. Why\. SQLSTATE",
            4,
            "t-0: 4 offsets of [3, 9) are lost; .* failOnDataLoss is false. Why. Then.",
        ),
        (
            OffsetsLost(topic_partition=T0, from_offset=3, until_offset=None, lost=None, note="Why."),
            r"COULD_NOT_READ_OFFSET_RANGE.* offset \[3, latest\) for",
            0,
            "t-0: all offsets from 3 on are lost; .* failOnDataLoss is false. Why.",
        ),
        (
            LogShrunk(topic_partition=T0, from_offset=9, until_offset=3),
            "RESOLVED_START_OFFSET_GREATER_THAN_END.* start offset 9 .* end offset 3 for topic t partition 0",
            0,
            "Nothing is read from t-0 because .*start offset 9 .* end offset 3 ",
        ),
        (
            PartitionsDeleted(topic_partitions=frozenset({T1, U0}), cause=WHY),
            r"PARTITIONS_DELETED.*Partitions \[t-1, u-0\] have been deleted\.",
            0,
            "Partitions [t-1, u-0] have been deleted; .* failOnDataLoss is false",
        ),
    ],
)
def test_a_loss_fails_the_query_or_is_counted_and_told(caplog, loss, condition, lost, warning):
    with pytest.raises(KafkaConditionError, match=condition) as raised:
        DataLossPolicy(fail=True, group_id="g").report(loss)
    assert raised.value.__cause__ is getattr(loss, "cause", None)
    policy = DataLossPolicy(fail=False, group_id="g")
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        policy.report(loss)
        policy.report(loss)
    assert policy.lost == 2 * lost
    (message, _) = caplog.messages
    for part in warning.split(".*"):
        assert part in message


class Task:
    """`read_partition`'s loop with a fetch that fails as scripted."""

    def __init__(self, monkeypatch, router, failures, *, fail=False, advance=0):
        self.failures = failures
        self.advance = advance
        """How many records of t-0 are read before each failure."""
        self.fetched = []
        self.paced = []
        self.policy = DataLossPolicy(fail=fail, group_id="g")
        self.router = router
        monkeypatch.setattr(
            read_partition, "RangeFetch", lambda *_: SimpleNamespace(read=self.fetch, close=int)
        )

    def fetch(self, left, paced):
        self.paced.append({**paced})
        self.fetched.append({str(tp): (one.position, one.until_offset) for tp, one in left.items()})
        if self.failures:
            if self.advance:
                left[T0] = left[T0].advanced(left[T0].position + self.advance)
            raise self.failures.pop(0)
        yield "batch"

    def read(self, *ranges):
        task = SimpleNamespace(consumer=SimpleNamespace(isolation_level=LEVEL))
        return list(read_partition.read_round(self.router, task, list(ranges), self.policy))


def test_what_is_left_after_a_loss_is_fetched_and_what_is_done_is_not(monkeypatch, router):
    task = Task(monkeypatch, router, [OffsetOutOfRangeError(T0, 5)])
    assert task.read(bound(T0, 5, 40), bound(T1, 40, 40)) == ["batch"]
    assert task.fetched == [{"t-0": (5, 40), "t-1": (40, 40)}, {"t-0": (20, 40)}]
    assert task.policy.lost == 15
    strict = Task(monkeypatch, router, [OffsetOutOfRangeError(T0, 5)], fail=True)
    with pytest.raises(KafkaConditionError, match=r"\[5, 40\).*The log has \[20, 50\)"):
        strict.read(bound(T0, 5, 40))


def test_a_range_that_is_lost_altogether_ends(monkeypatch, router):
    task = Task(monkeypatch, router, [OffsetOutOfRangeError(T0, 5)])
    assert task.read(bound(T0, 5, 15)) == []
    assert (len(task.fetched), task.policy.lost) == (1, 10)


@pytest.mark.parametrize(("refusals", "is_raised"), [(5, False), (6, True)])
def test_a_leader_that_refuses_what_it_has_is_asked_again(monkeypatch, router, refusals, is_raised):
    task = Task(monkeypatch, router, [OffsetOutOfRangeError(T0, 30) for _ in range(refusals)])
    if is_raised:
        with pytest.raises(OffsetOutOfRangeError):
            task.read(bound(T0, 30, 40))
    else:
        assert task.read(bound(T0, 30, 40)) == ["batch"]
    assert (len(task.fetched), task.policy.lost) == (6, 0)


def test_refusals_count_by_partition_and_position(monkeypatch, router):
    """A long task comes by many leaders that lag behind for a moment."""
    errors = [OffsetOutOfRangeError(T0, 30), OffsetOutOfRangeError(T1, 20), EndOfLogError(T1, 20, 40, 30)]
    task = Task(monkeypatch, router, errors[:2] * 5)
    assert task.read(bound(T0, 30, 40), bound(T1, 20, 40)) == ["batch"]
    task = Task(monkeypatch, router, errors[:1] * 20, advance=1)
    assert task.read(bound(T0, 20, 50), bound(T1, 20, 40)) == ["batch"]
    task = Task(monkeypatch, router, [*errors[1:] * 2, errors[0], *errors[1:]], advance=1)
    with pytest.raises(EndOfLogError):
        task.read(bound(T0, 20, 50), bound(T1, 20, 40))
    assert (len(task.fetched), task.policy.lost) == (7, 0)


def test_a_leader_that_refuses_what_it_has_is_given_time(monkeypatch, cluster):
    """For some 100 ms it may lag behind itself. Other partitions do not wait for it."""
    patient = properties(cluster.bootstrap_servers, retry_backoff_ms=200, retry_backoff_max_ms=1_000)
    router = Router(ClientConfig.from_properties(patient))
    refusals = [OffsetOutOfRangeError(T0, 30) for _ in range(5)]
    task = Task(monkeypatch, router, [*refusals, OffsetOutOfRangeError(T1, 20)])
    assert task.read(bound(T0, 30, 40), bound(T1, 20, 40)) == ["batch"]
    waits = [pytest.approx(wait, rel=0.2) for wait in (200, 400, 800, 1000, 1000)]
    assert task.paced == [{}, *({T0: wait} for wait in waits), {T1: waits[0]}]
    router.close()


def test_a_truncation_is_the_loss_of_what_was_read_beyond_it(router):
    left = [bound(T0, 30, 40), bound(T1, 5, 40)]
    error = LogTruncatedError(T0, 30, 28)
    found = rebind_ranges(router, left, error, LEVEL)
    assert found.ranges == tuple(left)
    (loss,) = found.losses
    assert (loss.topic_partition, loss.from_offset, loss.until_offset, loss.lost) == (T0, 28, 30, 2)
    assert loss.cause is error


def test_a_loss_is_no_refusal_however_many_there_are(monkeypatch, router):
    task = Task(monkeypatch, router, [LogTruncatedError(T0, 30, 28) for _ in range(8)])
    assert task.read(bound(T0, 30, 40)) == ["batch"]
    assert (len(task.fetched), task.policy.lost) == (9, 16)


def test_an_error_that_is_no_loss_is_raised(monkeypatch, router):
    task = Task(monkeypatch, router, [KafkaError("corrupt")])
    with pytest.raises(KafkaError, match="corrupt"):
        task.read(bound(T0, 30, 40))
    assert len(task.fetched) == 1


def test_a_fetch_goes_on_with_the_ranges_that_an_error_does_not_concern(monkeypatch):
    """One that is removed and added begins anew: it waits as if it had not waited before."""
    former, current = uuid4(), uuid4()
    tps = [TopicPartition("t", partition) for partition in range(8)]
    read, raised, waits, gone, done, behind, cut, moved = tps
    left = {tp: bound(tp, 20, 40, topic_id=former.hex) for tp in tps}
    run = ScriptedRun()
    monkeypatch.setattr(read_partition, "FetchRun", lambda *_, **__: run)
    fetch = read_partition.RangeFetch(None, SimpleNamespace(schema=SCHEMA, consumer=None))
    run.errors[raised] = EndOfLogError(raised, 20, 40, 20)
    run.errors[waits] = EndOfLogError(waits, 20, 40, 20)
    run.errors[gone] = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there")
    with pytest.raises(EndOfLogError):
        list(fetch.read(left, {}))
    assert run.added == dict.fromkeys(tps, (20, 40, former, -1))
    run.added.clear()
    run.positions[read] = run.positions[behind] = 30
    left[read] = left[read].advanced(30)  # an error has kept the records of the other one from Spark
    left[cut] = bound(cut, 20, 25, topic_id=former.hex)
    left[moved] = bound(moved, 20, 40, topic_id=current.hex)
    del left[done]
    with pytest.raises(EndOfLogError) as second:
        list(fetch.read(left, {raised: 200.0}))
    assert second.value is run.errors[waits]
    assert run.paced == {raised: 200.0}
    assert run.removed == {raised, gone, done, behind, cut, moved}
    # The epoch of the record before stays known: the log may be cut meanwhile.
    assert run.added == {
        raised: (20, 40, former, 7),
        gone: (20, 40, former, 7),
        behind: (20, 40, former, -1),
        cut: (20, 25, former, -1),
        moved: (20, 40, current, -1),
    }


def test_after_a_truncation_that_is_accepted_the_epoch_before_it_is_forgotten(monkeypatch):
    run = ScriptedRun()
    monkeypatch.setattr(read_partition, "FetchRun", lambda *_, **__: run)
    fetch = read_partition.RangeFetch(None, SimpleNamespace(schema=SCHEMA, consumer=None))
    run.errors[T0] = LogTruncatedError(T0, 20, 18)
    run.errors[T1] = LogTruncatedError(T1, 20, 17)
    left = {tp: bound(tp, 20, 40) for tp in (T0, T1)}
    with pytest.raises(LogTruncatedError):
        list(fetch.read(left, {}))
    run.added.clear()
    with pytest.raises(LogTruncatedError) as second:  # it has not been raised yet, and is not forgotten
        list(fetch.read(left, {}))
    assert second.value.topic_partition == T1
    assert run.added == {T0: (20, 40, None, -1)}
    fetch.close()
    assert run.closed


class ScriptedRun:
    """A `FetchRun` with errors as scripted."""

    def __init__(self):
        self.errors = {}
        self.positions = {}
        self.added = {}
        self.paced = {}
        self.removed = set()
        self.closed = False

    def close(self):
        self.closed = True

    def state(self, tp):
        return SimpleNamespace(position=SimpleNamespace(offset_epoch=7), error=self.errors.get(tp))

    def add(self, tp, position, until_offset, topic_id, leader_epoch):
        self.added[tp] = position, until_offset, topic_id, leader_epoch
        self.positions[tp] = position

    def try_again(self, tp, *, after_ms):
        self.paced[tp] = after_ms

    def remove(self, tp):
        self.removed.add(tp)
        self.errors.pop(tp, None)
        del self.positions[tp]

    def broken(self):
        return self.errors

    def position(self, tp):
        return self.positions[tp]

    def next(self):
        raise next(iter(self.errors.values()))


def test_ranges_of_the_same_partition_are_read_in_turn():
    pieces = [bound(T0, 20, 30), bound(T1, 20, 30), bound(T0, 30, 40), bound(T0, 40, 50)]
    rounds = []
    while pieces:
        rounds.append([(str(one.topic_partition), one.position) for one in read_partition.take_round(pieces)])
    assert rounds == [[("t-0", 20), ("t-1", 20)], [("t-0", 30)], [("t-0", 40)]]
