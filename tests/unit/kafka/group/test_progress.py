"""What a commit may say."""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.consumer.prefetch_buffer import AppliedReset
from spark_kafka_native.kafka.errors import CommitFailedError, LogTruncatedError
from spark_kafka_native.kafka.group.progress import MAX_GIVEN, Progress
from spark_kafka_native.kafka.model import TopicPartition

A0 = TopicPartition("a", 0)


def test_only_what_was_handed_out_in_this_assignment_may_be_committed() -> None:
    progress = Progress()
    with pytest.raises(CommitFailedError, match=r"a-0 is not assigned to this consumer \(any more\)"):
        progress.check({A0: 5})
    progress.begin(A0, 10, 10)
    progress.handed_out(A0, 10, 15)
    progress.check({A0: 10})
    progress.check({A0: 15})
    for offset in (9, 16):
        with pytest.raises(CommitFailedError, match="only offsets 10 to 15 were read"):
            progress.check({A0: offset})
    progress.drop([A0])
    with pytest.raises(CommitFailedError):
        progress.check({A0: 12})


def test_a_commit_never_goes_back_unless_after_a_seek() -> None:
    progress = Progress()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 20)
    assert progress.ahead({A0: 0}) == {A0: 0}
    progress.committed({A0: 12}, progress.places({A0: 12}))
    assert progress.ahead({A0: 12}) == progress.ahead({A0: 3}) == {}
    assert progress.ahead({A0: 13}) == {A0: 13}
    progress.sought(A0, 3)
    assert progress.ahead({A0: 3}) == {A0: 3}
    progress.check({A0: 3})
    with pytest.raises(CommitFailedError):
        progress.check({A0: 12})


def test_a_commit_from_before_a_seek_says_nothing_of_what_comes_after() -> None:
    progress = Progress()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 50)
    places = progress.places({A0: 50})
    progress.sought(A0, 10)
    progress.handed_out(A0, 10, 50)
    progress.committed({A0: 50}, places)  # it was on its way
    assert progress.ahead({A0: 12}) == {A0: 12}


def test_of_two_commits_from_before_a_seek_the_second_does_not_go_back() -> None:
    progress = Progress()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 50)
    places = progress.places({A0: 50})
    for offset in (90, 10):
        progress.sought(A0, offset)
    progress.committed({A0: 50}, places)
    assert progress.ahead({A0: 20}, places) == {}
    assert progress.ahead({A0: 10}) == {A0: 10}


def test_a_commit_from_before_a_seek_may_say_what_it_might_then() -> None:
    progress = Progress()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 50)
    progress.committed({A0: 20}, progress.places({A0: 20}))
    places = progress.places({A0: 50})
    for offset in (90, 10):
        progress.sought(A0, offset)
        progress.check({A0: 50}, places)
    with pytest.raises(CommitFailedError, match="since the last seek only offsets 10 to 10 were read"):
        progress.check({A0: 50})
    assert progress.ahead({A0: 20}, places) == {}
    assert progress.ahead({A0: 21}, places) == {A0: 21}
    with pytest.raises(CommitFailedError, match="only offsets 0 to 50 were read"):
        progress.check({A0: 51}, places)


@pytest.mark.parametrize("is_sought", [False, True])
@pytest.mark.parametrize("change", ["assigned anew", "went back", "taken away"])
def test_a_commit_from_before_another_member_or_a_reset_may_not(change: str, is_sought: bool) -> None:
    progress = Progress()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 50)
    places = progress.places({A0: 50})
    if change == "went back":
        progress.go_back(A0, 0, 10)
    else:
        progress.drop([A0])
    if change == "assigned anew":
        progress.begin(A0, 0, None)
    if is_sought:
        progress.sought(A0, 5)
    with pytest.raises(CommitFailedError):
        progress.check({A0: 50}, places)


def test_commits_go_back_with_a_reset() -> None:
    """The log ended before the committed offset, and is read from its start."""
    progress = Progress()
    progress.begin(A0, 100, 100)
    assert not progress.handed_out(A0, 0, 3)
    progress.go_back(A0, 0, 3)
    progress.check({A0: 3})
    assert progress.ahead({A0: 3}) == {A0: 3}
    with pytest.raises(CommitFailedError):
        progress.check({A0: 100})


def test_what_is_given_back_is_no_reset() -> None:
    progress = Progress()
    progress.begin(A0, 5, 5)
    progress.handed_out(A0, 5, 9)
    places = progress.places({A0: 7})
    progress.committed({A0: 7}, places)
    progress.given_back(A0, 8)
    progress.committed({A0: 9}, places)  # it was on its way
    assert progress.handed_out(A0, 8, 9)
    assert progress.ahead({A0: 7}) == {}
    assert progress.ahead({A0: 8}) == {A0: 8}


def test_records_that_the_caller_had_before_they_were_given_back_may_be_named() -> None:
    progress = Progress()
    progress.begin(A0, 5, 5)
    progress.handed_out(A0, 5, 9)
    for _ in range(2):
        progress.given_back(A0, 6, had=True)
    for offset in (5, 6, 9):
        progress.check({A0: offset})
    with pytest.raises(CommitFailedError, match="only offsets 5 to 9 were read"):
        progress.check({A0: 10})
    progress.committed({A0: 8}, progress.places({A0: 8}))
    assert progress.ahead({A0: 6}) == {}
    progress.drop([A0])
    assert progress.take_dropped_uncommitted() == frozenset()


@pytest.mark.parametrize(
    ("offset", "first", "last"),
    [(12, 5, 9), (9, 5, 9), (7, 5, 7), (5, 5, 5), (3, 5, 5)],
    ids=["after", "end", "within", "begin", "before"],
)
def test_what_is_given_back_is_within_the_records_that_were_handed_out(
    offset: int, first: int, last: int
) -> None:
    """Else a commit might contain records that no caller has got, or none that was handed out."""
    progress = Progress()
    progress.begin(A0, 5, 5)
    progress.handed_out(A0, 5, 9)
    progress.given_back(A0, offset)
    assert [at for at in range(20) if progress.allowed({A0: at})] == list(range(first, last + 1))


@pytest.mark.parametrize(
    ("begins", "read_until", "seeks", "kept"),
    [
        ((0, None), 10, [100], [10]),
        ((0, None), 10, [100, 200], [10, 10]),
        ((0, None), 10, [4], [4]),
        ((0, None), 10, [100, 4], [10, 4]),
        ((0, None), None, [100], [None]),
        ((0, None), None, [100, 200], [None, None]),
        ((5, 5), 10, [100, 200], [10, 10]),
        ((5, 5), 10, [3], [None]),
        ((5, 5), None, [100], [None]),
    ],
)
def test_a_seek_keeps_the_end_of_what_was_read_and_no_place_that_was_sought(
    begins: tuple[int, int | None], read_until: int | None, seeks: list[int], kept: list[int | None]
) -> None:
    """The next member would skip the records between the two."""
    progress, found, start = Progress(), [], None
    progress.begin(A0, *begins)
    if read_until is not None:
        progress.handed_out(A0, begins[0], read_until)
    for offset in seeks:
        start = progress.to_keep(A0, offset, start)
        progress.sought(A0, offset, start)
        found.append(start)
    assert found == kept


def test_a_commit_adds_what_lies_behind_the_last_one() -> None:
    """And nothing, not less, where it is of the records before a seek."""
    progress = Progress()
    progress.begin(A0, 3, None)
    progress.handed_out(A0, 3, 10)
    assert progress.spans({A0: 7, TopicPartition("gone", 0): 1}) == {A0: (3, 7)}
    progress.committed({A0: 7}, progress.places({A0: 7}))
    assert progress.spans({A0: 9}) == {A0: (7, 9)}
    progress.sought(A0, 100, 9)
    assert progress.spans({A0: 9}) == {A0: (9, 9)}


def test_an_aborted_transaction_forgets_what_was_dropped() -> None:
    progress, place = Progress(), TopicPartition("t", 0)
    for restarts in (False, True):
        progress.begin(place, 0, 0)
        progress.handed_out(place, 0, 5)
        progress.drop([place])
        if restarts:
            progress.restart([])
        assert progress.take_dropped_uncommitted() == (frozenset() if restarts else {place})


def test_a_partition_of_which_nothing_was_handed_out_is_dropped_without_a_loss() -> None:
    """Else the next transaction would fail for records that do not exist."""
    progress = Progress()
    progress.begin(A0, 5, None)
    progress.drop([A0])
    assert progress.take_dropped_uncommitted() == frozenset()


def gone_back(committed: int = 8) -> Progress:
    """With this committed offset, reading went on to 9, and then back to 0."""
    progress = Progress()
    progress.begin(A0, committed, committed)
    progress.handed_out(A0, committed, committed + 9)
    assert not progress.handed_out(A0, 0, 6)
    progress.go_back(A0, 0, 6)
    return progress


def test_after_reading_went_back_an_offset_of_before_is_no_place_to_begin_at() -> None:
    progress = gone_back()
    assert progress.place(A0, 8, committed=True) == 0
    progress.given_to_transaction({A0: 5})
    assert progress.place(A0, 5, committed=False) == 0  # where reading began
    assert progress.place(A0, 5, committed=True) == 5
    progress.begin(A0, 5, 5)
    assert not progress.handed_out(A0, 0, 6)
    progress.go_back(A0, 0, 6)
    assert progress.place(A0, 5, committed=True) == 0
    progress.given_to_transaction({A0: 5})
    with pytest.raises(LogTruncatedError, match=r"a-0: the log was cut back to offset 0 .* read up to 5"):
        progress.place(A0, 5, committed=True)
    progress.committed({A0: 6}, progress.places({A0: 6}))
    assert progress.place(A0, 5, committed=True) == 5
    assert progress.place(A0, 6, committed=True) == 6


def test_an_offset_that_the_group_has_of_before_is_in_doubt_once_it_is_given_again() -> None:
    """Its commit was under way when reading went back."""
    progress = gone_back(committed=3)
    assert progress.place(A0, 6, committed=True) == 0
    progress.given_to_transaction({A0: 6})
    with pytest.raises(LogTruncatedError):
        progress.place(A0, 6, committed=True)


def test_an_offset_of_before_is_in_doubt_however_often_reading_has_gone_back_since() -> None:
    """Nothing was committed in between: the group may have it still."""
    progress = gone_back(committed=3)
    assert not progress.handed_out(A0, 0, 4)
    progress.go_back(A0, 0, 4)
    progress.given_to_transaction({A0: 3})
    with pytest.raises(LogTruncatedError):
        progress.place(A0, 3, committed=True)


def test_an_offset_of_a_transaction_is_in_doubt_once_reading_has_gone_back_again_after_a_seek() -> None:
    """The seek says nothing about the transaction: the group may have its offset still."""
    progress = gone_back(committed=3)
    progress.given_to_transaction({A0: 5})
    progress.sought(A0, 2)
    progress.handed_out(A0, 2, 4)
    progress.go_back(A0, 0, 6)
    progress.given_to_transaction({A0: 5})
    with pytest.raises(LogTruncatedError):
        progress.place(A0, 5, committed=True)


def test_of_offsets_given_since_reading_went_back_the_last_ones_are_kept() -> None:
    progress = gone_back(2_000)
    for offset in range(1, MAX_GIVEN + 3):
        progress.given_to_transaction({A0: offset})
    found = [progress.place(A0, offset, committed=True) for offset in (1, 2, 3, MAX_GIVEN + 2)]
    assert found == [0, 0, 3, MAX_GIVEN + 2]


def test_each_offset_that_was_given_before_reading_went_back_may_be_of_before() -> None:
    """An earlier transaction may have committed it, and the last one is aborted."""
    progress = Progress()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 9)
    for offset in (5, 8):
        progress.given_to_transaction({A0: offset})
    progress.go_back(A0, 0, 9)
    for offset in (5, 8):
        progress.given_to_transaction({A0: offset})
        with pytest.raises(LogTruncatedError):
            progress.place(A0, offset, committed=True)


def test_what_was_skipped_is_a_floor_until_reading_goes_back() -> None:
    progress = Progress()
    progress.skipped(A0, 7)
    progress.begin(A0, 3, 3)
    assert progress.place(A0, 3, committed=True) == 3
    progress.skipped(A0, 7)
    assert progress.place(A0, 3, committed=True) == progress.place(A0, 3, committed=False) == 7
    assert progress.place(A0, 8, committed=True) == 8
    progress.handed_out(A0, 7, 9)
    progress.go_back(A0, 4, 6)
    assert progress.place(A0, 3, committed=True) == 3
    assert progress.place(A0, 8, committed=True) == progress.place(A0, 8, committed=False) == 4
    progress.skipped(A0, 5)
    progress.sought(A0, 2)
    assert progress.place(A0, 2, committed=False) == 2
    assert progress.place(A0, 8, committed=True) == 2  # it is of the log that was lost, in spite of the seek
    progress.given_to_transaction({A0: 9})
    assert progress.place(A0, 9, committed=True) == 9


def test_the_log_has_nothing_before_its_start_when_reading_goes_back() -> None:
    """With `latest` it goes on at its end; a second reset would skip the records that came since."""
    progress = Progress()
    progress.begin(A0, 3, 3)
    progress.handed_out(A0, 3, 50)
    progress.go_back(A0, 20, 22, AppliedReset(50, 20, 10, 20))
    assert progress.place(A0, 3, committed=True) == 10
    assert progress.place(A0, 12, committed=False) == 12
    assert progress.place(A0, 21, committed=True) == 20


@pytest.mark.parametrize("forward", [False, True])
def test_a_partition_that_comes_again_begins_where_other_members_have_got_to(forward: bool) -> None:
    """They know how the log has changed meanwhile; the reset here is one of an assignment that has ended."""
    progress = Progress()
    progress.begin(A0, 100, 100)
    if forward:
        progress.skipped(A0, 150)
    else:
        progress.go_back(A0, 20, 22)
    progress.restart([A0])
    assert progress.place(A0, 130, committed=True) == (150 if forward else 20)
    progress.begin(A0, 100, 100)
    progress.drop([A0])
    assert progress.place(A0, 130, committed=True) == 130


def test_how_often_records_have_counted_as_handed_out_is_counted() -> None:
    """So that after an interrupt those alone are given back that have."""
    progress = Progress()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 30)
    progress.handed_out(TopicPartition("gone", 0), 0, 30, counts=True)
    assert progress.counted == 1
    assert not progress.handed_out(A0, 0, 30, counts=True)
    assert progress.counted == 1
    progress.go_back(A0, 0, 30, counts=True)
    progress.handed_out(A0, 30, 40, counts=True)
    progress.handed_out(A0, 40, 40)
    assert progress.counted == 3


@pytest.mark.parametrize("settled", ["no", "given", "committed"])
def test_records_from_before_reading_went_back_are_dropped_uncommitted_as_others(settled: str) -> None:
    """A transaction has them, and the next member may read them again: the log was cut behind them."""
    progress = Progress()
    progress.begin(A0, 50, 50)
    progress.handed_out(A0, 50, 60)
    progress.go_back(A0, 0, 0)
    if settled == "given":
        progress.given_to_transaction({A0: 0})
    if settled == "committed":
        progress.committed({A0: 0}, progress.places({A0: 0}))
    progress.drop([A0])
    assert progress.take_dropped_uncommitted() == ({A0} if settled == "no" else set())


@pytest.mark.parametrize(
    ("seeks", "forgotten"),
    [([0], True), ([100], False), ([5], False), ([100, 30], False), ([100, 0], True), ([0, 100], True)],
)
def test_records_before_a_seek_are_dropped_uncommitted_unless_it_goes_back_to_before_all_of_them(
    seeks: list[int], forgotten: bool
) -> None:
    """A transaction has them, and the next member reads them again; after an abort this one does."""
    progress = Progress()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 10)
    for offset in seeks:
        progress.sought(A0, offset)
    progress.drop([A0])
    assert progress.take_dropped_uncommitted() == (frozenset() if forgotten else {A0})


def test_a_seek_back_to_the_last_offset_of_a_transaction_forgets_what_was_read_since() -> None:
    """The next one was aborted."""
    progress = Progress()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 10)
    progress.given_to_transaction({A0: 10})
    progress.handed_out(A0, 10, 20)
    progress.sought(A0, 10)
    progress.drop([A0])
    assert progress.take_dropped_uncommitted() == frozenset()


@pytest.mark.parametrize("settled", ["given", "committed"])
def test_the_place_that_was_sought_covers_the_records_before_it_once_it_is_committed(settled: str) -> None:
    progress = Progress()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 10)
    progress.sought(A0, 100)
    assert progress.uncommitted([A0]) == {A0}
    if settled == "given":
        progress.given_to_transaction({A0: 100})
    else:
        progress.committed({A0: 100}, progress.places({A0: 100}))
    assert progress.uncommitted([A0]) == set()


@pytest.mark.parametrize(("offset", "forgotten"), [(0, True), (20, False), (50, False)])
def test_a_seek_after_reading_went_back_forgets_the_records_of_before_only_from_there_on(
    offset: int, forgotten: bool
) -> None:
    progress = Progress()
    progress.begin(A0, 50, 50)
    progress.handed_out(A0, 50, 60)
    progress.go_back(A0, 0, 6)
    progress.sought(A0, offset)
    assert progress.uncommitted([A0]) == (set() if forgotten else {A0})


@pytest.mark.parametrize("lacked", [True, False])
def test_a_seek_to_an_offset_that_the_log_lacks_says_nothing_about_the_committed_one(lacked: bool) -> None:
    """But if a broker has confirmed the offset, the log was lost since."""
    progress, reset = Progress(), AppliedReset(100, 0, 0, 90, lacked=lacked)
    progress.begin(A0, 5, 5)
    progress.sought(A0, 100)
    assert not progress.handed_out(A0, 0, 3)
    progress.go_back(A0, 0, 3, reset)
    assert progress.place(A0, 5, committed=True) == (5 if lacked else 0)
    progress.handed_out(A0, 3, 8)
    assert not progress.handed_out(A0, 0, 3)
    progress.go_back(A0, 0, 3, reset)
    assert progress.place(A0, 5, committed=True) == 0
