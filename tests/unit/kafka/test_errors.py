"""What an error says, and that it says the same elsewhere."""

from __future__ import annotations

import pickle
import re

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    CorruptRecordError,
    EndOfLogError,
    KafkaError,
    LogTruncatedError,
    MalformedRecordError,
    NetworkError,
    NoCommittedOffsetError,
    OffsetOutOfRangeError,
    PartialAnswerError,
    TopicRecreatedError,
    own_copy,
    reasons_of,
    to_keep,
)
from spark_kafka_native.kafka.model import TopicPartition

TP = TopicPartition("t", 3)


@pytest.mark.parametrize(
    "error",
    [
        MalformedRecordError(TopicPartition("t", 3), 42, "not JSON"),
        BrokerError(ErrorCode.NOT_CONTROLLER, "topic t", "ask broker 2", operation="Create"),
        CorruptRecordError("a bad checksum", 7, TP),
        CorruptRecordError("a bad checksum", 7).at(TP),
        EndOfLogError(TP, 1, 9, 5, 4),
        LogTruncatedError(TP, 9, 5),
        NoCommittedOffsetError("g", TP),
        OffsetOutOfRangeError(TP, 1, 5, 9),
        OffsetOutOfRangeError(TP, 1),
        TopicRecreatedError("t", "former", "present"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_error_is_the_same_in_another_process_and_in_another_thread(error: KafkaError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), own_copy(error), to_keep(error)):
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ((5, 9), r"it has \[5, 9\)"),
        ((5, None), "was deleted"),
        ((None, 9), "was deleted"),
        ((), "was deleted"),
    ],
)
def test_the_range_of_a_log_is_said_where_both_of_its_bounds_are_known(
    bounds: tuple[int | None, ...], says: str
) -> None:
    error = OffsetOutOfRangeError(TP, 1, *bounds)
    assert re.search(says, str(error))
    assert "None" not in str(error)


def test_an_error_of_several_partitions_names_each_of_them() -> None:
    """That of a leader names one of them, or none."""
    other, third = TopicPartition("t", 4), TopicPartition("u", 0)
    shared, own = NetworkError(f"no answer about {TP}"), NetworkError(f"{third} has no leader")
    assert reasons_of({TP: shared, other: shared, third: own}) == [
        f"t-3, t-4: no answer about {TP}",
        "u-0 has no leader",
    ]
    assert reasons_of({TP: NetworkError("no answer")}) == ["t-3: no answer"]
    assert str(PartialAnswerError({}, {TP: shared, other: shared, third: own})).endswith(", and 1 more")


def test_an_error_to_keep_has_neither_its_frames_nor_those_of_its_cause() -> None:
    cause = OSError("gone")
    with pytest.raises(KafkaError) as raised:
        raise KafkaError("no connection") from cause
    assert own_copy(raised.value).__cause__ is cause
    kept = to_keep(raised.value)
    assert (kept.__cause__, kept.__context__, kept.__traceback__) == (None, None, None)


@pytest.mark.parametrize(
    ("stable", "high_watermark", "says"),
    [
        (5, 20, "an open transaction holds the last stable offset at 5"),
        (8, 8, r"the log ends before them \(high watermark 8, last stable offset 8\); records were lost"),
        (None, 8, r"the log ends before them \(high watermark 8\); records were lost"),
    ],
)
def test_records_that_an_open_transaction_hides_are_not_called_lost(
    stable: int | None, high_watermark: int, says: str
) -> None:
    error = EndOfLogError(TopicPartition("t", 0), 5, 10, high_watermark, stable)
    assert re.search(says, str(error))
