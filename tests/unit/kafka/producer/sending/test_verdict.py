"""What each answer means, as a table; every code of Kafka has an entry or is final."""

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.producer.sending.verdict import (
    DELIVERED,
    DUPLICATE,
    FAIL,
    FATAL,
    OVERSIZED,
    REFRESH,
    RENUMBER,
    RETRY,
    SPLIT,
    is_indefinite,
    judge,
)

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
        (E.NONE, {}, DELIVERED),
        (E.DUPLICATE_SEQUENCE_NUMBER, {}, DUPLICATE),
        (E.NOT_LEADER_OR_FOLLOWER, {}, REFRESH),
        (E.LEADER_NOT_AVAILABLE, {}, REFRESH),
        (E.UNKNOWN_TOPIC_OR_PARTITION, {}, REFRESH),
        (E.UNKNOWN_TOPIC_ID, {}, REFRESH),
        (E.KAFKA_STORAGE_ERROR, {}, REFRESH),
        (E.NOT_ENOUGH_REPLICAS, {}, RETRY),
        (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, {}, RETRY),
        (E.REQUEST_TIMED_OUT, {}, RETRY),
        (E.CORRUPT_MESSAGE, {}, RETRY),
        (E.MESSAGE_TOO_LARGE, {}, SPLIT),
        (E.MESSAGE_TOO_LARGE, {"records": 1}, OVERSIZED),
        (E.RECORD_LIST_TOO_LARGE, {}, FAIL),
        (E.RECORD_LIST_TOO_LARGE, {"records": 1}, OVERSIZED),
        (E.RECORD_LIST_TOO_LARGE, {"sets_apart": True}, SPLIT),
        (E.RECORD_LIST_TOO_LARGE, {"records": 1, "sets_apart": True}, OVERSIZED),
        (E.INVALID_RECORD, {}, FAIL),
        (E.TOPIC_AUTHORIZATION_FAILED, {}, FAIL),
        (E.UNKNOWN_SERVER_ERROR, {}, FAIL),
        (E(999), {}, FAIL),
        (E.CLUSTER_AUTHORIZATION_FAILED, {}, FATAL),
        (E.PRODUCER_FENCED, {}, FATAL),
        (E.INVALID_PRODUCER_EPOCH, {}, FATAL),
        (E.INVALID_PRODUCER_EPOCH, {"foreign": True}, RENUMBER),
        (E.INVALID_PRODUCER_EPOCH, {"foreign": True, "numbered": False}, FATAL),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {}, FATAL),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"head_of_line": False}, RETRY),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"gap": True}, RENUMBER),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"foreign": True}, RENUMBER),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"numbered": False}, FAIL),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"foreign": True, "numbered": False}, FAIL),
        (E.UNKNOWN_PRODUCER_ID, {}, RENUMBER),
        (E.UNKNOWN_PRODUCER_ID, {"indefinite": True}, FATAL),
        (E.UNKNOWN_PRODUCER_ID, {"head_of_line": False}, RETRY),
        (E.PRODUCER_FENCED, {"transactional": True}, FATAL),
        (E.INVALID_PRODUCER_EPOCH, {"transactional": True}, FATAL),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"transactional": True}, FAIL),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"transactional": True, "gap": True}, FAIL),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"transactional": True, "head_of_line": False}, RETRY),
        (E.UNKNOWN_PRODUCER_ID, {"transactional": True}, FAIL),
        (E.UNKNOWN_PRODUCER_ID, {"transactional": True, "indefinite": True}, FAIL),
        (E.UNKNOWN_PRODUCER_ID, {"transactional": True, "head_of_line": False}, RETRY),
        (E.INVALID_PRODUCER_ID_MAPPING, {}, FATAL),
        (E.INVALID_PRODUCER_ID_MAPPING, {"transactional": True}, FAIL),
        (E.INVALID_TXN_STATE, {}, FAIL),
        (E.INVALID_TXN_STATE, {"transactional": True}, FATAL),
        (E.TRANSACTION_ABORTABLE, {"transactional": True}, FAIL),
        (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, {}, FAIL),
        (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, {"transactional": True}, FATAL),
    ],
)
def test_verdicts(code, changed, expected):
    assert verdict(code, **changed) == expected


def test_every_code_has_a_verdict_and_only_retriable_ones_are_retried():
    for code in ErrorCode:
        if verdict(code) in (RETRY, REFRESH):
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
