"""What an error says, and that it says the same elsewhere."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, KafkaError, MalformedRecordError, own_copy, to_keep
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
