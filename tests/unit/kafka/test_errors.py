"""What an error says, and that it says the same elsewhere."""

from __future__ import annotations

import pickle
import re

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    EndOfLogError,
    KafkaError,
    MalformedRecordError,
    own_copy,
    to_keep,
)
from spark_kafka_native.kafka.model import TopicPartition


@pytest.mark.parametrize(
    "error",
    [
        MalformedRecordError(TopicPartition("t", 3), 42, "not JSON"),
        BrokerError(ErrorCode.NOT_CONTROLLER, "topic t", "ask broker 2", operation="Create"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_error_is_the_same_in_another_process_and_in_another_thread(error: KafkaError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), own_copy(error), to_keep(error)):
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


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
