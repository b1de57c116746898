"""What a commit may say."""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.errors import CommitFailedError
from spark_kafka_native.kafka.group.progress import Progress
from spark_kafka_native.kafka.model import TopicPartition

A0 = TopicPartition("a", 0)


def test_only_what_was_handed_out_in_this_assignment_may_be_committed() -> None:
    progress = Progress()
    with pytest.raises(CommitFailedError, match=r"a-0 is not assigned to this consumer \(any more\)"):
        progress.check({A0: 5})
    progress.begin(A0, 10, 10)
    assert not progress.handed_out(A0, 10, 15)
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


def test_commits_go_back_with_a_reset() -> None:
    """The log ended before the committed offset, and is read from its start."""
    progress = Progress()
    progress.begin(A0, 100, 100)
    assert progress.handed_out(A0, 0, 3)
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
    assert not progress.handed_out(A0, 8, 9)
    assert progress.ahead({A0: 7}) == {}
    assert progress.ahead({A0: 8}) == {A0: 8}


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
