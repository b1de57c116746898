"""Which offsets are committed automatically, and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from spark_kafka_native.kafka.consumer.prefetch_buffer import AppliedReset
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    CommitFailedError,
    DeadlineExceededError,
    KafkaError,
    LogTruncatedError,
)
from spark_kafka_native.kafka.group import commits
from spark_kafka_native.kafka.group.commits import Commits
from spark_kafka_native.kafka.group.group_config import GroupConfig
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.group.pending_commit import PendingCommit, Then
from spark_kafka_native.kafka.group.progress import Progress
from spark_kafka_native.kafka.model import Record, TopicPartition
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class Answer(PendingCommit):
    """Of a commit; knows whether it was waited for."""

    waited = False

    def wait(self, deadline: Deadline | None) -> bool:  # noqa: ARG002 - it has ended
        self.waited = True
        return super().wait(Deadline.after_ms(0))


class World:
    """The `Commits` between a reader and a queue that a test answers."""

    def __init__(self, **settings: Any) -> None:
        self.at: dict[TopicPartition, int] = {}
        self.asked: list[tuple[dict[TopicPartition, int], Answer]] = []
        self.resets: dict[TopicPartition, AppliedReset] = {}
        self.failure: KafkaError | None = None
        self.is_quick = True
        """Commits end at once."""
        config = GroupConfig(group_id="g", **settings)
        self.progress = Progress()
        self.commits = Commits(config, self, self, self.progress)  # type: ignore[arg-type]
        self.commits.due = 0.0

    recreated: frozenset[TopicPartition] = frozenset()
    former_ids: frozenset[Any] = frozenset()
    topic_ids: Mapping[TopicPartition, Any] = {}
    truncated: Mapping[TopicPartition, LogTruncatedError] = {}

    @property
    def partitions(self) -> dict[TopicPartition, bool]:
        return dict.fromkeys(self.at, False)

    def positions(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.at[tp] for tp in topic_partitions if tp in self.at}

    def reset_of(self, topic_partition: TopicPartition) -> AppliedReset | None:
        return self.resets.get(topic_partition)

    def drop_lost(self, topic_partition: TopicPartition) -> None:
        self.at[topic_partition] = min(self.at[topic_partition], self.resets[topic_partition].offset)

    def submit(self, offsets: Mapping[TopicPartition, int], then: Then | None = None) -> Answer:
        answer = Answer(dict(offsets), then)
        self.asked.append((answer.offsets, answer))
        if self.is_quick:
            answer.end(self.failure)
        return answer

    def of_former_topics(self, *_: object) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
        return frozenset(), frozenset()

    def hand_out(self, topic_partition: TopicPartition, from_offset: int, until_offset: int) -> None:
        self.at[topic_partition] = until_offset
        self.commits.handed_out(topic_partition, from_offset, until_offset)

    def back(self) -> dict[TopicPartition, int] | None:
        """The caller is back when it is time to commit: what it commits."""
        self.commits.due, before = 0.0, len(self.asked)
        self.commits.caller_is_back()
        return self.asked[-1][0] if len(self.asked) > before else None


def test_it_commits_what_is_new() -> None:
    world = World()
    assert world.back() is None
    world.hand_out(A0, 0, 3)
    world.hand_out(A1, 5, 6)
    assert world.back() == {A0: 3, A1: 6}
    assert world.back() is None
    world.hand_out(A1, 6, 9)
    assert world.back() == {A1: 9}
    del world.at[A1]
    world.hand_out(A0, 3, 4)
    assert world.back() == {A0: 4}


def test_nothing_where_it_is_off() -> None:
    world = World(enable_auto_commit=False)
    world.hand_out(A0, 0, 3)
    world.commits.started(A0, 0)
    assert world.back() is None
    world.commits.commit_now(Deadline.after_ms(0))
    assert world.asked == []


def test_what_failed_is_asked_for_again() -> None:
    world = World()
    world.failure = DeadlineExceededError("not in time")
    world.hand_out(A0, 0, 3)
    assert world.back() == {A0: 3}
    world.failure = None
    assert world.back() == {A0: 3}
    assert world.back() is None


def test_only_with_an_interval_of_0_a_commit_is_waited_for() -> None:
    for interval_ms in (0, 1, 5_000):
        world = World(auto_commit_interval_ms=interval_ms)
        world.hand_out(A0, 0, 3)
        world.back()
        assert world.commits.may_go_on(Deadline.after_ms(0))
        assert world.asked[0][1].waited == (interval_ms == 0)


def test_nothing_else_is_handed_out_before_a_commit_that_may_succeed_yet() -> None:
    world = World(auto_commit_interval_ms=0)
    world.hand_out(A0, 0, 3)
    for _ in range(2):
        world.failure = DeadlineExceededError("not in time")
        assert world.back() == {A0: 3}
        with pytest.raises(DeadlineExceededError):
            world.commits.may_go_on(Deadline.after_ms(0))
    world.failure = CommitFailedError("another's by now")  # it is taken away next
    assert world.back() == {A0: 3}
    assert world.commits.may_go_on(Deadline.after_ms(0))


def test_a_deleted_topic_holds_up_no_other() -> None:
    world = World(auto_commit_interval_ms=0)
    world.hand_out(A0, 0, 3)
    world.hand_out(A1, 5, 9)
    world.failure = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "a-0")
    assert world.back() == {A0: 3, A1: 9}
    world.commits.forget([A1])  # moved meanwhile: it is read anew, and committed anew
    assert world.commits.may_go_on(Deadline.after_ms(0))
    world.failure = None
    assert world.back() is None
    world.hand_out(A1, 5, 9)
    assert world.back() == {A1: 9}
    world.commits.commit_now(Deadline.after_ms(0))
    assert world.asked[-1][0] == {A0: 3}  # once more: the topic may have been a new one


def test_a_deleted_topic_of_which_only_the_start_is_known_holds_up_no_other() -> None:
    """Others are committed again, and nothing waits for this one."""
    world = World(auto_commit_interval_ms=0)
    world.hand_out(A1, 5, 9)
    assert world.back() == {A1: 9}
    assert world.commits.may_go_on(Deadline.after_ms(0))
    world.commits.begun(A0, 7, None)
    world.commits.started(A0, 7)
    world.at[A0] = 7
    world.failure = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "a-0")
    assert world.back() == {A0: 7}
    assert world.commits.may_go_on(Deadline.after_ms(0))
    world.failure = None
    assert world.back() == {A1: 9}
    assert world.commits.may_go_on(Deadline.after_ms(0))
    assert world.back() is None


def test_a_refusal_for_good_is_raised_before_more_is_handed_out() -> None:
    world = World(auto_commit_interval_ms=0)
    world.hand_out(A0, 0, 3)
    world.failure = BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "g")
    assert world.back() == {A0: 3}
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        world.commits.may_go_on(Deadline.after_ms(0))


@pytest.mark.parametrize("moved", [False, True])
def test_a_start_that_was_moved_lets_nothing_be_handed_out_before_the_others_are_committed(
    moved: bool,
) -> None:
    """Where it was not, the partitions are lost, and the group takes them away."""
    world = World(auto_commit_interval_ms=0)
    world.is_quick = False
    world.commits.begun(A0, 7, None)
    world.commits.started(A0, 7)
    world.at[A0] = 7
    world.hand_out(A1, 5, 9)
    assert world.back() == {A0: 7, A1: 9}
    if moved:
        world.commits.forget([A0])
    world.asked[0][1].end(CommitFailedError("a-0: offset 7 was not committed"))
    assert world.commits.may_go_on(Deadline.after_ms(0)) is not moved
    assert world.back() == ({A1: 9} if moved else {A0: 7, A1: 9})


def test_a_deleted_topic_does_not_hide_that_others_are_late() -> None:
    world = World(auto_commit_interval_ms=0)
    world.hand_out(A0, 0, 3)
    world.failure = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "a-0")
    world.failure.__cause__ = DeadlineExceededError("not in time")
    assert world.back() == {A0: 3}
    with pytest.raises(BrokerError):
        world.commits.may_go_on(Deadline.after_ms(0))
    assert world.back() == {A0: 3}


def test_commits_look_for_the_coordinator_of_the_group() -> None:
    """That of a transactional id of the same name is another broker, most often."""
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["0"])
        with GroupConsumer(broker.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            read_all(consumer, 1)
            consumer.commit()
        assert {one.fields["key_type"] for one in broker.asked("FindCoordinator")} == {0}
        assert broker.asked("OffsetCommit")


def read_all(consumer: GroupConsumer, count: int) -> None:
    until = Deadline.after_ms(60_000)
    while count:
        assert not until.expired
        count -= len(consumer.poll(1))


def test_topics_are_read_and_committed_beside_a_deleted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "UNKNOWN_TOPIC_MS", 0)
    places = [TopicPartition("a", 0), TopicPartition("b", 0)]
    with MockBroker() as broker:
        for topic in "ab":
            broker.create_topic(topic)
            broker.append(topic, ["0", "1"])
        broker.on("OffsetCommit", topic="a", times=None).fail("UNKNOWN_TOPIC_OR_PARTITION")
        with GroupConsumer(broker.bootstrap_servers, ["a", "b"], "g", auto_commit_interval_ms=0) as consumer:
            read_all(consumer, 4)
            broker.append("b", ["2"])
            read_all(consumer, 1)
            assert consumer.committed(places[1]) == {places[1]: 2}
            # Of several refusals, one that the caller can do something about is raised.
            broker.on("OffsetCommit", topic="b", times=None).fail("TOPIC_AUTHORIZATION_FAILED")
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                consumer.commit(offsets=dict(zip(places, (2, 3), strict=True)))


def test_one_commit_at_a_time_is_waited_for() -> None:
    """A later one would take the place of the first, and hide its failure."""
    world = World(auto_commit_interval_ms=0)
    world.is_quick = False
    world.hand_out(A0, 0, 3)
    assert world.back() == {A0: 3}
    world.at[A0] = 5  # behind a marker
    assert world.back() is None
    assert not world.commits.may_go_on(Deadline.after_ms(0))
    world.asked[0][1].end(None)
    assert world.commits.may_go_on(Deadline.after_ms(0))
    assert world.back() == {A0: 5}


@pytest.mark.parametrize("leave", [Commits.forget, Commits.drop], ids=["sought", "given away"])
def test_a_partition_that_was_moved_meanwhile_lets_nothing_be_handed_out_before_the_others_are_committed(
    leave: Callable[[Commits, list[TopicPartition]], None],
) -> None:
    """The caller moved it after a read that timed out; the commit of all failed, and reading went on."""
    world = World(auto_commit_interval_ms=0)
    world.is_quick = False
    world.hand_out(A0, 0, 3)
    world.hand_out(A1, 5, 9)
    assert world.back() == {A0: 3, A1: 9}
    assert not world.commits.may_go_on(Deadline.after_ms(0))
    leave(world.commits, [A0])
    world.asked[0][1].end(CommitFailedError("a-0: offset 3 was not committed"))
    assert not world.commits.may_go_on(Deadline.after_ms(0))
    assert world.back() == {A1: 9}
    assert not world.commits.may_go_on(Deadline.after_ms(0))
    leave(world.commits, [A1])
    world.asked[1][1].end(CommitFailedError("a-1: offset 9 was not committed"))
    world.commits.may_go_on(Deadline.after_ms(0))
    assert world.back() is None
    assert world.commits.may_go_on(Deadline.after_ms(0))


def test_it_waits_for_its_interval() -> None:
    world = World(auto_commit_interval_ms=3_600_000)
    world.hand_out(A0, 0, 3)
    assert world.back() == {A0: 3}
    world.hand_out(A0, 3, 4)
    world.commits.caller_is_back()
    assert len(world.asked) == 1


def test_a_commit_before_partitions_are_given_up_is_waited_for() -> None:
    world = World()
    world.hand_out(A0, 0, 3)
    world.commits.due = float("inf")
    world.commits.caller_is_back()
    world.hand_out(A1, 5, 9)
    world.commits.commit_now(Deadline.after_ms(0))
    assert world.asked[-1][0] == {A0: 3, A1: 9}
    assert world.asked[-1][1].waited
    world.failure = KafkaError("refused")
    world.hand_out(A0, 3, 4)
    world.commits.commit_now(Deadline.after_ms(0))  # logged, and read again


def test_a_start_is_committed_until_it_is_read_from_elsewhere() -> None:
    world = World(auto_offset_reset="latest")
    world.progress.begin(A0, 7, None)
    world.at[A0] = 7
    world.commits.started(A0, 7)
    assert world.back() == {A0: 7}
    world.hand_out(A0, 7, 8)
    world.commits.restart([A0])
    world.progress.begin(A0, 7, None)
    world.at[A0] = 7
    assert world.back() == {A0: 7}
    world.hand_out(A0, 7, 8)
    world.commits.forget([A0])
    world.progress.sought(A0, 8)
    assert world.back() is None


def test_a_start_that_the_group_has_got_past_fails_no_commit_of_others() -> None:
    """`seek_to_committed` begins it anew at the committed offset, and it stays quiet."""
    world = World(auto_offset_reset="latest")
    for tp in (A0, A1):
        world.progress.begin(tp, 3, None)
        world.commits.started(tp, 3)
        world.hand_out(tp, 3, 11)
    assert world.back() == {A0: 11, A1: 11}
    world.commits.restart([A0, A1])
    for tp in (A0, A1):
        world.progress.begin(tp, 11, 11)
    assert world.back() is None
    world.hand_out(A0, 11, 20)
    assert world.back() == {A0: 20}


def test_a_start_that_the_group_has_got_past_is_not_kept_by_a_seek() -> None:
    """The commit would go back to it. A start that the group lacks is kept."""
    world = World(auto_offset_reset="latest")
    for tp in (A0, A1):
        world.progress.begin(tp, 3, None)
        world.commits.started(tp, 3)
        world.at[tp] = 3
    world.hand_out(A0, 3, 11)
    assert world.back() == {A0: 11, A1: 3}
    world.progress.committed({A0: 11}, world.progress.places({A0: 11}))
    world.commits.without_start.update([A0, A1])
    world.commits.restart([A0, A1])
    assert [world.commits.sought(tp, 50) for tp in (A0, A1)] == [None, 3]


def test_what_is_forgotten_may_go_back() -> None:
    world = World()
    world.hand_out(A0, 0, 30)
    world.back()
    world.commits.forget([A0])
    world.hand_out(A0, 2, 4)
    assert world.back() == {A0: 4}
    world.hand_out(A0, 4, 9)
    world.commits.forget([A0])
    world.commits.commit_now(Deadline.after_ms(0))
    assert len(world.asked) == 2


def test_a_position_behind_what_is_hidden_may_be_committed() -> None:
    """A marker, an aborted transaction, what compaction has left out: no record was handed out of it."""
    world = World()
    world.progress.begin(A0, 0, None)
    world.hand_out(A0, 0, 3)
    world.at[A0] = 5
    assert world.back() == {A0: 5}
    world.progress.check({A0: 5})


def test_a_position_that_went_back_takes_the_commits_back() -> None:
    """The log lacks the records that were read, and ``auto.offset.reset`` says to go on before it."""
    world = World()
    world.progress.begin(A0, 0, None)
    world.hand_out(A0, 0, 30)
    assert world.back() == {A0: 30}
    world.progress.committed({A0: 30}, world.progress.places({A0: 30}))
    world.at[A0] = 10
    assert world.back() == {A0: 10}
    assert world.progress.ahead({A0: 10}) == {A0: 10}
    world.hand_out(A0, 10, 12)
    assert world.back() == {A0: 12}


def test_a_position_that_moves_without_records_is_committed() -> None:
    """A reset by the policy, or hidden offsets: the group's own offset may leave the log unnoticed."""
    world = World()
    world.progress.begin(A0, 10, 10)
    world.at[A0] = 10
    assert world.back() is None
    world.at[A0] = 20
    world.failure = DeadlineExceededError("not in time")
    assert world.back() == {A0: 20}
    world.failure = None
    assert world.back() == {A0: 20}
    assert world.back() is None


def test_a_position_that_went_back_is_asked_for_again_if_its_commit_failed() -> None:
    world = World()
    world.progress.begin(A0, 100, 100)
    world.at[A0] = 15
    world.failure = DeadlineExceededError("not in time")
    assert world.back() == {A0: 15}
    world.failure = None
    assert world.back() == {A0: 15}
    assert world.back() is None


def test_records_count_once_as_handed_out_also_where_reading_goes_back() -> None:
    """After an interrupt, as many of them are given back; a position without records is none of them."""
    world = World()
    world.commits.begun(A0, 0, None)
    for counted, span in enumerate([(0, 30), (30, 31), (10, 12)], start=1):
        world.hand_out(A0, *span)
        assert world.progress.counted == counted
    world.at[A0] = 15
    for _ in range(2):
        world.commits.reached([A0])
        assert world.progress.counted == counted
        world.at[A0] = 5


def test_offsets_behind_the_cut_of_a_log_are_not_committed() -> None:
    """The next member would skip the records that have them now."""
    world = World()
    world.progress.begin(A0, 0, None)
    world.hand_out(A0, 0, 10)
    world.truncated = {A0: LogTruncatedError(A0, 10, 5)}
    assert world.back() is None
    assert world.commits.wanted([]) == {}
    assert world.commits.wanted([], {A0: 5}) == {A0: 5}
    with pytest.raises(CommitFailedError, match="a-0: the log was cut back"):
        world.commits.wanted([], {A0: 6})
    with pytest.raises(CommitFailedError, match="a-0: the log was cut back"):
        world.commits.for_transaction([], None)
    world.truncated = {}
    assert world.back() == {A0: 10}


def test_a_cut_log_keeps_no_offsets_of_others_from_a_transaction() -> None:
    world = World(enable_auto_commit=False)
    for tp in (A0, A1):
        world.commits.begun(tp, 0, None)
        world.hand_out(tp, 0, 10)
    world.truncated = {A0: LogTruncatedError(A0, 10, 5)}
    record = Record("a", 1, 5, key=None, value=None)
    assert world.commits.for_transaction([], {A1: 6}) == {A1: 6}
    assert world.commits.for_transaction([record], None) == {A1: 6}


def test_offsets_of_others_are_committed_beside_partitions_that_take_none() -> None:
    """One is of a topic that was created again, and of one it is not known where reading begins."""
    world = World(enable_auto_commit=False)
    former, unread = TopicPartition("b", 0), TopicPartition("c", 0)
    for tp in (former, unread, A0):
        world.commits.begun(tp, 0, None)
        world.hand_out(tp, 0, 10)
    world.recreated = frozenset([former])
    world.commits.without_start = {unread}
    assert world.commits.wanted([], {A0: 6}) == {A0: 6}
    for tp in (former, unread):
        with pytest.raises(CommitFailedError, match=f"{tp}: "):
            world.commits.wanted([], {tp: 6})


def test_offsets_that_no_commit_may_contain_are_in_no_transaction() -> None:
    world = World(enable_auto_commit=False)
    world.commits.begun(A0, 0, None)
    world.hand_out(A0, 0, 10)
    with pytest.raises(CommitFailedError, match="a-0: offset 11 was not committed"):
        world.commits.for_transaction([], {A0: 11})
    with pytest.raises(CommitFailedError, match="a-1 is not assigned"):
        world.commits.for_transaction([], {A1: 1})


@pytest.mark.parametrize("automatic", [True, False])
def test_a_seek_in_a_recreated_topic_is_committed_where_commits_are_automatic(automatic: bool) -> None:
    """The start in the former topic is not: the next member would begin there in the new one."""
    world = World(enable_auto_commit=automatic)
    world.commits.begun(A0, 7, None)
    world.commits.started(A0, 7)
    world.at[A0] = 7
    world.recreated = frozenset([A0])
    assert world.back() is None
    kept = world.commits.sought(A0, 2)
    world.progress.sought(A0, 2, kept)
    world.at[A0], world.recreated = 2, frozenset()
    world.commits.commit_now(Deadline.after_ms(0))
    assert [offsets for offsets, _ in world.asked] == ([{A0: 2}] if automatic else [])


def test_a_seek_commits_the_position_behind_what_is_hidden() -> None:
    world = World()
    world.commits.begun(A0, 0, None)
    world.hand_out(A0, 0, 3)
    world.at[A0] = 5
    assert world.commits.sought(A0, 7) == 5


def test_offsets_before_the_cut_of_a_log_are_committed() -> None:
    """Records that were fetched are lost, and none that the caller got."""
    world = World()
    world.progress.begin(A0, 0, None)
    world.hand_out(A0, 0, 5)
    world.truncated = {A0: LogTruncatedError(A0, 10, 5)}
    assert world.commits.wanted([]) == {A0: 5}
    assert world.back() == {A0: 5}


def test_where_a_reset_goes_on_is_committed_for_the_next_member() -> None:
    """That one would be reset to a later end, and skip the records that were written in between."""
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["old"] * 10)
        settings = {"auto_offset_reset": "latest", "auto_commit_interval_ms": 3_600_000}
        with GroupConsumer(broker.bootstrap_servers, "a", "g", auto_offset_reset="earliest") as consumer:
            read_all(consumer, 10)
        broker.append("a", ["gap"] * 10)
        broker.delete_records("a", 0, 15)
        with GroupConsumer(broker.bootstrap_servers, "a", "g", **settings) as consumer:
            until = Deadline.after_ms(60_000)
            while A0 not in consumer.assignment or consumer.position(A0) != 20:
                assert not until.expired
                assert consumer.poll(0.05) == []
        assert broker.committed("g") == {A0: 20}


def test_a_partition_that_was_taken_away_is_committed_anew_when_it_comes_back() -> None:
    """Another member may have gone back in between."""
    world = World()
    world.hand_out(A0, 0, 30)
    assert world.back() == {A0: 30}
    world.commits.drop([A0])
    assert world.back() is None
    world.hand_out(A0, 2, 4)
    assert world.back() == {A0: 4}


def test_what_will_be_read_again_is_not_committed() -> None:
    world = World()
    world.progress.begin(A0, 0, None)
    world.hand_out(A0, 0, 3)
    world.commits.restart([A0])
    assert world.back() is None
    with pytest.raises(CommitFailedError, match="not assigned"):
        world.progress.check({A0: 3})


def test_the_first_commit_is_due_after_the_interval() -> None:
    config, world, began = GroupConfig(group_id="g", auto_commit_interval_ms=7_000), World(), time.monotonic()
    commits = Commits(config, world, world, world.progress)  # type: ignore[arg-type]
    assert began + 7 <= commits.due <= time.monotonic() + 7


def test_a_partition_that_is_given_up_is_committed_where_a_reset_went_back_to() -> None:
    """Records of the log that was lost wait still; the next member would skip the new ones up to them."""
    world = World()
    for place in (A0, A1):
        world.commits.begun(place, 0, None)
        world.hand_out(place, 0, 50)
        world.resets[place] = AppliedReset(100, 7, 0, 7)
    world.commits.commit_now(Deadline.after_ms(0), leaving=[A0])
    assert [offsets for offsets, _ in world.asked] == [{A0: 7, A1: 50}]


def test_a_seek_before_a_reset_that_went_back_is_reached_commits_where_it_went() -> None:
    world = World()
    world.commits.begun(A0, 0, None)
    world.hand_out(A0, 0, 50)
    world.resets[A0] = AppliedReset(100, 7, 0, 7)
    assert world.commits.sought(A0, 40) == 7


@pytest.mark.parametrize("automatic", [True, False])
def test_a_seek_keeps_in_mind_a_reset_that_no_read_has_reached(automatic: bool) -> None:
    """The committed offset is one of the log that was lost: an abort went on there, past new records."""
    world = World(enable_auto_commit=automatic)
    world.commits.begun(A0, 80, 80)
    world.hand_out(A0, 80, 100)
    world.resets[A0] = AppliedReset(100, 0, 0, 120)
    world.progress.sought(A0, 0, world.commits.sought(A0, 0))
    assert world.progress.place(A0, 80, committed=True) == 0


def test_a_reset_forward_hides_no_earlier_one_that_went_back() -> None:
    """The log was lost, and its first new records expired before a read."""
    world = World(enable_auto_commit=False)
    world.commits.begun(A0, 80, 80)
    world.hand_out(A0, 80, 100)
    world.resets[A0] = AppliedReset(0, 20, 20, 120)
    world.at[A0] = 20
    world.commits.note_resets([A0])
    assert world.progress.place(A0, 80, committed=True) == 20


def test_offsets_that_a_reset_has_skipped_are_no_records_that_were_handed_out() -> None:
    """All that were are in a transaction, which nothing hinders."""
    world = World(enable_auto_commit=False)
    world.commits.begun(A0, 0, None)
    world.hand_out(A0, 0, 50)
    world.progress.given_to_transaction({A0: 50})
    world.resets[A0] = AppliedReset(50, 80, 80, 90)
    world.at[A0] = 80
    world.commits.commit_now(Deadline.after_ms(0), leaving=[A0])
    world.commits.drop([A0])
    assert world.progress.take_dropped_uncommitted() == frozenset()
