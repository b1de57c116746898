"""What each answer means, as a table; every code of Kafka has an entry or is final."""

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.producer.sending.verdict import Verdict, is_indefinite, judge

E = ErrorCode


def verdict(code, **changed):
    told = {
        "records": 10,
        "head_of_line": True,
        "gap": False,
        "indefinite": False,
        "numbered": True,
    } | changed
    return judge(code, **told)


@pytest.mark.parametrize(
    ("code", "changed", "expected"),
    [
        (E.NONE, {}, Verdict.DELIVERED),
        (E.DUPLICATE_SEQUENCE_NUMBER, {}, Verdict.DUPLICATE),
        (E.NOT_LEADER_OR_FOLLOWER, {}, Verdict.REFRESH),
        (E.LEADER_NOT_AVAILABLE, {}, Verdict.REFRESH),
        (E.UNKNOWN_TOPIC_OR_PARTITION, {}, Verdict.REFRESH),
        (E.UNKNOWN_TOPIC_ID, {}, Verdict.REFRESH),
        (E.KAFKA_STORAGE_ERROR, {}, Verdict.REFRESH),
        (E.NOT_ENOUGH_REPLICAS, {}, Verdict.RETRY),
        (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, {}, Verdict.RETRY),
        (E.REQUEST_TIMED_OUT, {}, Verdict.RETRY),
        (E.CORRUPT_MESSAGE, {}, Verdict.RETRY),
        (E.MESSAGE_TOO_LARGE, {}, Verdict.SPLIT),
        (E.MESSAGE_TOO_LARGE, {"records": 1}, Verdict.FAIL),
        (E.RECORD_LIST_TOO_LARGE, {}, Verdict.FAIL),
        (E.INVALID_RECORD, {}, Verdict.FAIL),
        (E.TOPIC_AUTHORIZATION_FAILED, {}, Verdict.FAIL),
        (E.UNKNOWN_SERVER_ERROR, {}, Verdict.FAIL),
        (E(999), {}, Verdict.FAIL),
        (E.CLUSTER_AUTHORIZATION_FAILED, {}, Verdict.FATAL),
        (E.PRODUCER_FENCED, {}, Verdict.FATAL),
        (E.INVALID_PRODUCER_EPOCH, {}, Verdict.FATAL),
        (E.INVALID_PRODUCER_EPOCH, {"foreign": True}, Verdict.RENUMBER),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {}, Verdict.FATAL),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"head_of_line": False}, Verdict.RETRY),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"gap": True}, Verdict.RENUMBER),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"foreign": True}, Verdict.RENUMBER),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"numbered": False}, Verdict.FAIL),
        (E.UNKNOWN_PRODUCER_ID, {}, Verdict.RENUMBER),
        (E.UNKNOWN_PRODUCER_ID, {"indefinite": True}, Verdict.FATAL),
        (E.UNKNOWN_PRODUCER_ID, {"head_of_line": False}, Verdict.RETRY),
    ],
)
def test_verdicts(code, changed, expected):
    assert verdict(code, **changed) is expected


def test_every_code_has_a_verdict_and_only_retriable_ones_are_retried():
    for code in ErrorCode:
        if verdict(code) in (Verdict.RETRY, Verdict.REFRESH):
            assert code.retriable or code.stale_metadata


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (E.NOT_ENOUGH_REPLICAS, False),
        (E.INVALID_RECORD, False),
        (E.UNKNOWN_TOPIC_OR_PARTITION, False),
        (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
        (E.REQUEST_TIMED_OUT, True),
        (E.UNKNOWN_SERVER_ERROR, True),
        (E.KAFKA_STORAGE_ERROR, True),
        (E.NOT_LEADER_OR_FOLLOWER, True),
        (E.NETWORK_EXCEPTION, True),
        (E(999), True),
    ],
)
def test_what_may_be_in_the_log_nevertheless(code, expected):
    assert is_indefinite(code) is expected
