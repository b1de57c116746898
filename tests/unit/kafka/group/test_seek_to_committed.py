"""`GroupConsumer.seek_to_committed` and `transaction`: uncommitted records are handed out again."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.brokers.scripted_broker import HangUp, ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup
from support.group.parts import heartbeat_refused, parts_of
from support.interrupts.signal_steps import interrupted_at

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import CommitFailedError, ConfigError, KafkaError, LogTruncatedError
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import GroupMembership, Record, TopicPartition
from spark_kafka_native.kafka.protocol.api.group_offsets import OffsetCommitRequest, OffsetFetchRequest
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
WITHIN_S = 120


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    with ScriptedCluster(1) as cluster:
        cluster.create("a", partitions=2)
        cluster.logs[A0].append([b"0", b"1", b"2", b"3"])
        yield ScriptedGroup(cluster, [A0, A1])


@contextmanager
def member(group: ScriptedGroup, **settings: Any) -> Iterator[GroupConsumer]:
    settings = {"enable_auto_commit": False, "retry_backoff_ms": 10} | settings
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", **settings) as consumer:
        yield consumer


def fetch(consumer: GroupConsumer, count: int) -> list[Record]:
    found = [consumer.fetch_record(WITHIN_S) for _ in range(count)]
    return [record for record in found if record is not None]


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def open_when_drained(consumer: GroupConsumer, gate: threading.Event) -> None:
    """Commits wait at ``gate`` until they are waited for."""
    queue = parts_of(consumer).commits.queue
    drain = queue.drain

    def drained(deadline: Deadline) -> None:
        gate.set()
        drain(deadline)

    queue.drain = drained  # type: ignore[method-assign]


def test_what_was_not_committed_comes_again(group: ScriptedGroup) -> None:
    with member(group) as consumer:
        first = fetch(consumer, 3)
        consumer.commit(first[0])
        consumer.seek_to_committed()
        assert consumer.position(A0) is None
        unread = r"^a-0: nothing was committed, as it is not known yet where reading begins"
        for call in (lambda: consumer.commit(first[2]), lambda: consumer.commit(offsets={A0: 3})):
            with pytest.raises(CommitFailedError, match=unread):
                call()  # its outcome is gone: only a new reading counts
        assert consumer.offsets_to_commit() == {}
        assert offsets(fetch(consumer, 3)) == [1, 2, 3]
        assert consumer.position(A0) == 4
        consumer.commit()
    assert group.committed == {A0: 4, A1: 0}


def test_where_nothing_is_committed_it_goes_back_to_where_it_began(group: ScriptedGroup) -> None:
    """And not to the log's end as it is by then, which would skip the aborted records."""
    with member(group, auto_offset_reset="latest") as consumer:
        until = Deadline.after_ms(WITHIN_S * 1_000)
        while A0 not in consumer.assignment or consumer.position(A0) is None:
            assert not until.expired
            assert consumer.read(0.05) is None
        group.cluster.logs[A0].append([b"4", b"5"])
        assert offsets(fetch(consumer, 2)) == [4, 5]
        consumer.seek_to_committed()
        assert offsets(fetch(consumer, 2)) == [4, 5]
        consumer.seek(A0, 1)
        assert offsets(fetch(consumer, 2)) == [1, 2]
        consumer.seek_to_committed()
        assert offsets(fetch(consumer, 1)) == [1]


def test_nothing_that_was_fetched_before_is_handed_out_while_the_coordinator_is_away(
    group: ScriptedGroup,
) -> None:
    with member(group) as consumer:
        assert offsets(fetch(consumer, 1)) == [0]
        consumer.seek_to_committed()
        group.cluster[1].push(OffsetFetchRequest, HangUp, HangUp, HangUp)
        found: list[Record] = []
        until = Deadline.after_ms(WITHIN_S * 1_000)
        while not found and not until.expired:
            found += [record for record in [consumer.fetch_record(0.01)] if record is not None]
        assert offsets(found) == [0]
        assert len(group.cluster[1].requests(OffsetFetchRequest)) > 3


def test_a_partition_that_was_paused_stays_so(group: ScriptedGroup) -> None:
    with member(group) as consumer:
        fetch(consumer, 1)
        consumer.pause(A0)
        consumer.seek_to_committed()
        group.cluster.logs[A1].append([b"other"])
        assert fetch(consumer, 1)[0].topic_partition == A1
        assert consumer.fetch_record(0.2) is None
        consumer.resume(A0)
        assert offsets(fetch(consumer, 4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("lost", [True, False])
def test_a_rebalance_comes_first(group: ScriptedGroup, lost: bool) -> None:
    """A partition that has left this member is not begun anew, and one that comes back is."""
    with member(group, partition_assignment_strategy="cooperative-sticky") as consumer:
        assert offsets(fetch(consumer, 2)) == [0, 1]
        group.assigned = [A1]
        heartbeat_refused(consumer, ErrorCode.UNKNOWN_MEMBER_ID if lost else ErrorCode.REBALANCE_IN_PROGRESS)
        parts_of(consumer).member.wake()
        consumer.seek_to_committed()
        until = Deadline.after_ms(WITHIN_S * 1_000)
        found: list[Record] = []
        while consumer.assignment != {A1}:
            assert not until.expired
            found += [record for record in [consumer.fetch_record(0.05)] if record is not None]
        assert offsets(found) == [0, 1, 2, 3][: len(found)]
        assert consumer.fetch_record(0.2) is None
        assert set(parts_of(consumer).reader.partitions) == {A1}
        group.assigned, group.committed[A0] = [A0, A1], 3
        heartbeat_refused(consumer, ErrorCode.REBALANCE_IN_PROGRESS)
        parts_of(consumer).member.wake()
        assert offsets(fetch(consumer, 1)) == [3]


@pytest.mark.parametrize("then", ["nothing more", "a commit of no offsets"])
def test_commits_that_are_under_way_are_waited_for(group: ScriptedGroup, then: str) -> None:
    gate = threading.Event()

    def commit(request: OffsetCommitRequest, version: int) -> Any:
        assert gate.wait(WITHIN_S)
        return group.commit(request, version)

    group.cluster[1].push(OffsetCommitRequest, commit)
    with member(group) as consumer:
        done = consumer.commit_async(*fetch(consumer, 2))
        if then == "a commit of no offsets":
            assert consumer.commit_async(offsets={}).done()
        open_when_drained(consumer, gate)
        consumer.seek_to_committed()
        assert done.done()
        assert offsets(fetch(consumer, 1)) == [2]


def test_an_interrupt_in_the_middle_does_not_undo_it(group: ScriptedGroup) -> None:
    with member(group) as consumer:
        fetch(consumer, 2)

        def interrupt(_deadline: Deadline) -> None:
            raise KeyboardInterrupt

        queue = parts_of(consumer).commits.queue
        drain, queue.drain = queue.drain, interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            consumer.seek_to_committed()
        queue.drain = drain  # type: ignore[method-assign]
        assert offsets(fetch(consumer, 2)) == [0, 1]


def test_after_an_interrupt_at_any_step_a_seek_counts_and_nothing_else_is_committed(
    group: ScriptedGroup,
) -> None:
    """The seek failed, and was lost; a commit before the next read contained records that are read again."""
    group.assigned = [A0]
    with member(group, fetch_max_wait_ms=1) as consumer:
        for step in itertools.count():
            fetch(consumer, 1)
            consumer.seek(A0, 0)
            fetch(consumer, 2)
            with interrupted_at(step) as came:
                consumer.seek_to_committed()
            if consumer.position(A0) is None:
                assert consumer.offsets_to_commit() == {}
            consumer.seek(A0, 3)
            assert offsets(fetch(consumer, 1)) == [3]
            if not came:
                break
            consumer.seek(A0, 0)
    assert step > 10
    assert group.committed == {}


def test_a_start_that_an_interrupt_left_half_done_is_done_again(group: ScriptedGroup) -> None:
    with member(group) as consumer:
        fetch(consumer, 1)
        parts = parts_of(consumer)
        with parts.member.changing():
            parts.starts.missing.add(A0)  # as between its first step and its last
        assert offsets(fetch(consumer, 1)) == [0]


class FakeProducer:
    """What a transaction of a consumer needs of one: the offsets that it got, and how it ended."""

    def __init__(self, failure: KafkaError | None = None) -> None:
        self.failure = failure
        self.said: list[Any] = []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            yield
            if self.failure is not None:
                raise self.failure
        except BaseException:
            self.said.append("aborted")
            raise
        self.said.append("committed")

    def send_offsets(self, offsets: dict[TopicPartition, int], metadata: Any) -> None:
        metadata.check(offsets)
        self.said.append((offsets, metadata.member_id))


def test_a_transaction_commits_what_was_handed_out(group: ScriptedGroup) -> None:
    producer: Any = FakeProducer()
    with member(group) as consumer:
        fetch(consumer, 2)
        with consumer.transaction(producer):
            fetch(consumer, 1)
        assert producer.said == [({A0: 3, A1: 0}, "me"), "committed"]
        assert offsets(fetch(consumer, 1)) == [3]


def test_an_interrupted_transaction_takes_the_consumer_back(group: ScriptedGroup) -> None:
    producer: Any = FakeProducer()
    with member(group) as consumer:
        fetch(consumer, 2)
        with pytest.raises(KeyboardInterrupt), consumer.transaction(producer):
            raise KeyboardInterrupt
        assert producer.said == ["aborted"]
        assert offsets(fetch(consumer, 2)) == [0, 1]


@pytest.mark.parametrize("failure", ["in the block", "of the commit"])
def test_a_transaction_that_is_aborted_takes_the_consumer_back(group: ScriptedGroup, failure: str) -> None:
    producer: Any = FakeProducer(KafkaError("of the commit"))

    def work(consumer: GroupConsumer) -> None:
        with consumer.transaction(producer):
            if failure == "in the block":
                raise KafkaError(failure)

    group.committed[A0] = 1
    with member(group) as consumer:
        assert offsets(fetch(consumer, 2)) == [1, 2]
        with pytest.raises(KafkaError, match=failure):
            work(consumer)
        assert producer.said[-1] == "aborted"
        assert offsets(fetch(consumer, 3)) == [1, 2, 3]


@pytest.mark.parametrize("instance", [None, "i"])
def test_offsets_made_by_hand_are_checked_too(group: ScriptedGroup, instance: str | None) -> None:
    with member(group, group_instance_id=instance) as consumer:
        fetch(consumer, 2)
        metadata = consumer.group_metadata()
        metadata.check({A0: 2})
        with pytest.raises(CommitFailedError, match="only offsets 0 to 2 were read"):
            metadata.check({A0: 3})
        with pytest.raises(CommitFailedError, match="b-0 is not assigned"):
            metadata.check({TopicPartition("b", 0): 0})
        alone = pickle.loads(pickle.dumps(metadata))  # no coordinator is there to ask
        alone.check({A0: 3})
    # With the instance id the coordinator fences a static member that another one has replaced.
    assert alone == GroupMembership(group_id="g", generation_id=1, member_id="me", group_instance_id=instance)


def test_automatic_commits_are_refused_before_a_transaction_begins(group: ScriptedGroup) -> None:
    producer: Any = FakeProducer()
    with (
        member(group, enable_auto_commit=True) as consumer,
        pytest.raises(ConfigError, match="enable_auto_commit=False"),
        consumer.transaction(producer),
    ):
        raise AssertionError
    assert producer.said == []


def test_automatic_commits_are_refused_with_the_metadata_for_a_transaction(group: ScriptedGroup) -> None:
    with member(group, enable_auto_commit=True) as consumer:
        fetch(consumer, 1)
        with pytest.raises(ConfigError, match="enable_auto_commit=False"):
            consumer.group_metadata()


def test_a_consumer_that_is_no_member_any_more_has_no_metadata_for_a_transaction(
    group: ScriptedGroup,
) -> None:
    with member(group) as consumer:
        fetch(consumer, 1)
        consumer.group_metadata()
        heartbeat_refused(consumer, ErrorCode.UNKNOWN_MEMBER_ID)
        with pytest.raises(CommitFailedError, match="is not in group g just now"):
            consumer.group_metadata()


@pytest.mark.parametrize("committed", [None, 1])
def test_records_that_were_read_after_a_reset_come_again(committed: int | None) -> None:
    """The policy `latest` was applied to the committed offset once more, at a later end."""
    with MockBroker() as broker:
        broker.create_topic("a")
        servers = broker.bootstrap_servers
        settings: dict[str, Any] = {"enable_auto_commit": False, "auto_offset_reset": "latest"}
        broker.append("a", ["old"] * 2)
        if committed:
            with GroupConsumer(servers, "a", "g", **settings | {"auto_offset_reset": "earliest"}) as consumer:
                consumer.commit(*fetch(consumer, committed))
        broker.append("a", ["old"] * 2)
        broker.delete_records("a", 0, 3)
        with GroupConsumer(servers, "a", "g", **settings) as consumer:
            until = Deadline.after_ms(WITHIN_S * 1_000)
            while A0 not in consumer.assignment or consumer.position(A0) != 4:
                assert not until.expired
                assert consumer.read(0.05) is None
            broker.append("a", ["new"] * 2)
            assert offsets(fetch(consumer, 2)) == [4, 5]
            broker.append("a", ["more"] * 2)
            for _ in range(2):
                consumer.seek_to_committed()
                assert offsets(fetch(consumer, 4)) == [4, 5, 6, 7]
            consumer.commit(offsets={A0: 5})
            consumer.seek_to_committed()
            assert offsets(fetch(consumer, 3)) == [5, 6, 7]
        assert broker.committed("g") == {A0: 5}


@pytest.mark.parametrize("given", [False, True])
def test_a_reset_that_went_back_counts_until_something_is_committed(
    group: ScriptedGroup, given: bool
) -> None:
    """The log ends before the committed offset. What a transaction was given is not committed yet."""
    group.committed[A0] = 100
    with member(group, auto_offset_reset="latest") as consumer:
        until = Deadline.after_ms(WITHIN_S * 1_000)
        while A0 not in consumer.assignment or consumer.position(A0) != 4:
            assert not until.expired
            assert consumer.read(0.05) is None
        group.cluster.logs[A0].append([b"4", b"5"])
        assert offsets(fetch(consumer, 2)) == [4, 5]
        for _ in range(2):
            if given:
                assert consumer.offsets_to_commit()[A0] == 6
            consumer.seek_to_committed()
            assert offsets(fetch(consumer, 2)) == [4, 5]
        if given:
            group.committed[A0] = consumer.offsets_to_commit()[A0]
            group.cluster.logs[A0].append([b"6"])
            consumer.seek_to_committed()
            assert offsets(fetch(consumer, 1)) == [6]
            return
        consumer.commit(offsets={A0: 5})
        consumer.seek_to_committed()
        assert offsets(fetch(consumer, 1)) == [5]
    assert group.committed == {A0: 5}


@pytest.mark.parametrize("by", ["a transaction", "commit_async"])
def test_what_was_committed_after_a_reset_that_went_back_counts(group: ScriptedGroup, by: str) -> None:
    """The next transaction was given more, and aborted; or the commit had not ended yet."""
    group.committed[A0] = 100
    gate = threading.Event()

    def commit(request: OffsetCommitRequest, version: int) -> Any:
        assert gate.wait(WITHIN_S)
        return group.commit(request, version)

    with member(group, auto_offset_reset="earliest") as consumer:
        assert offsets(fetch(consumer, 1)) == [0]
        open_when_drained(consumer, gate)
        if by == "commit_async":
            group.cluster[1].push(OffsetCommitRequest, commit)
            consumer.commit_async()
        else:
            group.committed |= consumer.offsets_to_commit()
        for _ in range(2):
            assert offsets(fetch(consumer, 2)) == [1, 2]
            if by == "a transaction":
                assert consumer.offsets_to_commit()[A0] == 3
            for _ in range(2):
                consumer.seek_to_committed()
        assert offsets(fetch(consumer, 1)) == [1]


def await_position(consumer: GroupConsumer, offset: int) -> None:
    until = Deadline.after_ms(WITHIN_S * 1_000)
    while A0 not in consumer.assignment or consumer.position(A0) != offset:
        assert not until.expired
        assert consumer.read(0.05) is None


def await_that(true: Callable[[], object]) -> None:
    until = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def lose_log(group: ScriptedGroup, new: int = 0) -> None:
    """A broker has lost the whole log; ``new`` records are written."""
    log = group.cluster.logs[A0]
    with group.cluster.mock.cluster.changed:
        log.batches.clear()
        log.end_offset = 0
        for number in range(new):
            log.append([b"%d" % number])


@contextmanager
def log_lost_after_a_commit(group: ScriptedGroup, policy: str) -> Iterator[GroupConsumer]:
    """A member that has committed 5, and has read on to 6, at the begin of a log that was lost."""
    log = group.cluster.logs[A0]
    with member(group, auto_offset_reset=policy) as consumer:
        if policy == "latest":
            await_position(consumer, 4)
        else:
            assert offsets(fetch(consumer, 4)) == [0, 1, 2, 3]
        log.append([b"4", b"5"])
        consumer.commit(*fetch(consumer, 1))
        assert offsets(fetch(consumer, 1)) == [5]
        lose_log(group)
        await_position(consumer, 0)
        yield consumer


@pytest.mark.parametrize("given", [(), (8,), (3, 8)])
def test_what_was_committed_before_a_reset_that_went_back_does_not_count(
    group: ScriptedGroup, given: tuple[int, ...]
) -> None:
    """Its records up to that offset are new ones, and were skipped."""
    with log_lost_after_a_commit(group, "latest") as consumer:
        group.cluster.logs[A0].append([b"%d" % number for number in range(8)])
        for _ in range(2):
            begin = 0
            for until_offset in given or (8,):
                assert offsets(fetch(consumer, until_offset - begin)) == [*range(begin, until_offset)]
                if given:
                    assert consumer.offsets_to_commit()[A0] == until_offset
                begin = until_offset
            consumer.seek_to_committed()


def test_an_offset_that_was_committed_before_a_reset_and_perhaps_after_it_is_an_error(
    group: ScriptedGroup,
) -> None:
    with log_lost_after_a_commit(group, "earliest") as consumer:
        group.cluster.logs[A0].append([b"%d" % number for number in range(8)])
        assert offsets(fetch(consumer, 5)) == [0, 1, 2, 3, 4]
        assert consumer.offsets_to_commit()[A0] == 5 == group.committed[A0]
        for _ in range(2):
            consumer.seek_to_committed()
            with pytest.raises(LogTruncatedError, match=r"cut back to offset 0 after .* read up to 5"):
                fetch(consumer, 1)
        consumer.seek(A0, 5)
        assert offsets(fetch(consumer, 3)) == [5, 6, 7]
        consumer.seek_to_committed()  # it is the caller's choice now
        assert offsets(fetch(consumer, 1)) == [5]


@pytest.mark.parametrize("committed", ["in a transaction", "by a commit"])
@pytest.mark.parametrize("aborts", [0, 1, 2])
def test_after_a_reset_that_went_back_what_was_committed_since_counts(
    group: ScriptedGroup, aborts: int, committed: str
) -> None:
    with log_lost_after_a_commit(group, "earliest") as consumer:
        group.cluster.logs[A0].append([b"%d" % number for number in range(8)])
        for _ in range(aborts):
            assert offsets(fetch(consumer, 2)) == [0, 1]
            consumer.offsets_to_commit()
            consumer.seek_to_committed()
        assert offsets(fetch(consumer, 3)) == [0, 1, 2]
        if committed == "by a commit":
            consumer.commit()
        else:
            group.committed |= consumer.offsets_to_commit()
        assert offsets(fetch(consumer, 2)) == [3, 4]
        for _ in range(2):
            consumer.offsets_to_commit()  # of a transaction that is aborted
            consumer.seek_to_committed()
            assert offsets(fetch(consumer, 2)) == [3, 4]


@pytest.mark.parametrize("abort_between", [False, True])
def test_a_reset_forward_does_not_hide_that_reading_went_back_before(
    group: ScriptedGroup, abort_between: bool
) -> None:
    """The log was lost; then retention removed the first of the records that were written since."""
    with log_lost_after_a_commit(group, "earliest") as consumer:
        if abort_between:
            consumer.seek_to_committed()
            await_position(consumer, 0)
        consumer.pause(A0)
        log = group.cluster.logs[A0]
        with group.cluster.mock.cluster.changed:  # a fetch is under way
            for number in range(8):
                log.append([b"%d" % number])
            del log.batches[:2]
            log.log_start_offset = 2
        consumer.resume(A0)
        for _ in range(2):
            assert offsets(fetch(consumer, 2)) == [2, 3]
            consumer.seek_to_committed()
        assert group.committed[A0] == 5


def test_a_second_loss_of_the_log_makes_what_was_committed_after_the_first_void(
    group: ScriptedGroup,
) -> None:
    with log_lost_after_a_commit(group, "earliest") as consumer:
        group.cluster.logs[A0].append([b"0", b"1", b"2"])
        assert offsets(fetch(consumer, 3)) == [0, 1, 2]
        group.committed |= consumer.offsets_to_commit()
        lose_log(group)
        await_position(consumer, 0)
        group.cluster.logs[A0].append([b"%d" % number for number in range(8)])
        for _ in range(2):
            assert offsets(fetch(consumer, 5)) == [0, 1, 2, 3, 4]
            consumer.seek_to_committed()


@pytest.mark.parametrize("read_by", ["records", "columns"])
def test_a_reset_that_went_back_counts_also_before_the_caller_has_got_there(
    group: ScriptedGroup, read_by: str
) -> None:
    """Records from before it wait; going back to the committed offsets drops them."""
    log = group.cluster.logs[A0]
    with member(group, auto_offset_reset="earliest") as consumer:
        reader = parts_of(consumer).reader
        if read_by == "columns":
            found = consumer.read(WITHIN_S)
            assert found is not None
            assert found.next_offset == 4
            log.append([b"4"])
            await_that(lambda: reader.has_news)
        else:
            assert offsets(fetch(consumer, 3)) == [0, 1, 2]
        consumer.commit()
        lose_log(group)
        await_that(lambda: reader.reset_of(A0))
        log.append([b"%d" % number for number in range(7)])
        consumer.seek_to_committed()
        assert offsets(fetch(consumer, 7)) == [*range(7)]


def test_a_log_that_was_lost_after_a_seek_to_its_end_is_read_from_its_begin(group: ScriptedGroup) -> None:
    """The log had the offset: it is another log that has it no more."""
    log, group.committed[A0] = group.cluster.logs[A0], 3
    with member(group, auto_offset_reset="earliest") as consumer:
        assert offsets(fetch(consumer, 1)) == [3]
        consumer.seek(A0, 4)
        reader = parts_of(consumer).reader
        await_that(lambda: reader.buffer.partition(A0).confirmed)
        lose_log(group)
        await_position(consumer, 0)
        log.append([b"%d" % number for number in range(7)])
        for _ in range(2):
            assert offsets(fetch(consumer, 2)) == [0, 1]
            consumer.seek_to_committed()


def test_a_log_that_was_cut_and_has_grown_is_read_from_the_committed_offset(group: ScriptedGroup) -> None:
    """`latest` went on behind the position, and all before it was taken for gone."""
    log, group.committed[A0] = group.cluster.logs[A0], 1
    asked = itertools.count()

    def grow(request: ListOffsetsRequest, version: int) -> object:
        if [one.timestamp for topic in request.topics for one in topic.partitions] == [-1] and next(
            asked
        ) == 1:
            log.append([b"4", b"5", b"6"])
        return group.cluster.list_offsets(request, version)

    with member(group, auto_offset_reset="latest") as consumer:
        assert offsets(fetch(consumer, 3)) == [1, 2, 3]
        group.cluster[1].on(ListOffsetsRequest, grow)
        with group.cluster.mock.cluster.changed:
            log.batches.clear()
            log.end_offset = 0
            log.append([b"0", b"1", b"2"])
        reader = parts_of(consumer).reader
        await_that(lambda: reader.reset_of(A0))
        reset = reader.reset_of(A0)
        assert reset is not None
        assert reset.offset == 6
        consumer.seek_to_committed()
        assert offsets(fetch(consumer, 5)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("commits", ["automatic", "in on_revoked"])
def test_the_last_commit_is_where_a_reset_has_gone_back_to(
    group: ScriptedGroup, commits: str, is_paused: bool
) -> None:
    """The caller has not got there: the next member would skip the new records up to the old position."""
    log, revoked = group.cluster.logs[A0], []

    def commit(consumer: GroupConsumer, partitions: list[TopicPartition]) -> None:
        revoked.extend(partitions)
        consumer.commit()

    settings: dict[str, Any] = {"auto_offset_reset": "earliest"}
    settings |= {"enable_auto_commit": True} if commits == "automatic" else {"on_revoked": commit}
    with member(group, **settings) as consumer:
        assert offsets(fetch(consumer, 3)) == [0, 1, 2]
        reader = parts_of(consumer).reader
        await_that(lambda: reader.buffer.partition(A0).confirmed)
        lose_log(group)
        await_that(lambda: reader.reset_of(A0))
        log.append([b"%d" % number for number in range(7)])
        if is_paused:
            consumer.pause(A0)
    assert revoked == ([] if commits == "automatic" else [A0, A1])
    assert group.committed[A0] == 0


@pytest.mark.parametrize(
    "step", ["handed_out", "forget", "started", "progress.handed_out", "progress.go_back"]
)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("automatic", [False, True])
def test_an_interrupt_hides_no_reset_that_went_back(
    group: ScriptedGroup, step: str, when: str, automatic: bool
) -> None:
    """Commits stayed at the offset of the log that was lost, and so did the next member."""
    settings = {
        "enable_auto_commit": automatic,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": 0,
    }
    with member(group, **settings) as consumer:
        assert offsets(fetch(consumer, 4)) == [0, 1, 2, 3]
        if automatic:
            consumer.poll(0.01)
        else:
            consumer.commit()
        await_that(lambda: group.committed.get(A0) == 4)
        parts = parts_of(consumer)
        lose_log(group)
        await_that(lambda: parts.reader.position(A0) == 0)
        group.cluster.logs[A0].append([b"0", b"1"])
        await_that(lambda: parts.reader.has_news)
        owner: Any = parts.commits.progress if "." in step else parts.commits
        name = step.rpartition(".")[2]
        real = getattr(owner, name)

        def interrupted(*arguments: object, **options: object) -> None:
            setattr(owner, name, real)
            if when == "after":
                real(*arguments, **options)
            raise KeyboardInterrupt

        setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(WITHIN_S)
        assert offsets(fetch(consumer, 2)) == [0, 1]
        if not automatic:
            consumer.commit()
    assert group.committed[A0] == 2


def test_a_reset_that_goes_back_while_commits_are_waited_for_counts(group: ScriptedGroup) -> None:
    with member(group, auto_offset_reset="earliest") as consumer:
        assert offsets(fetch(consumer, 4)) == [0, 1, 2, 3]
        consumer.commit(offsets={A0: 3})
        parts = parts_of(consumer)
        drain = parts.commits.queue.drain

        def drained(deadline: Deadline) -> None:
            drain(deadline)
            lose_log(group)
            await_that(lambda: parts.reader.position(A0) == 0)
            group.cluster.logs[A0].append([b"%d" % number for number in range(7)])

        parts.commits.queue.drain = drained  # type: ignore[method-assign]
        consumer.seek_to_committed()
        parts.commits.queue.drain = drain  # type: ignore[method-assign]
        assert offsets(fetch(consumer, 7)) == [*range(7)]
