from __future__ import annotations

import copy
import pickle

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode


def test_error_codes_have_their_properties() -> None:
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER

    assert (code, code.name, code.title) == (6, "NOT_LEADER_OR_FOLLOWER", "Not Leader Or Follower")
    assert code.retriable
    assert code.stale_metadata
    assert not code.timeout
    assert ErrorCode.REQUEST_TIMED_OUT.timeout
    assert not ErrorCode.NONE
    assert ErrorCode.INVALID_GROUP_ID.title == "Invalid Group ID"


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_is_described_in_one_sentence(code: ErrorCode) -> None:
    assert code.description
    assert not code.description.endswith(".")
    assert ErrorCode.of(int(code)) is code
    assert pickle.loads(pickle.dumps(code)) is code


def test_a_code_of_a_newer_broker_is_a_value_too() -> None:
    code = ErrorCode.of(999)

    assert code == 999
    assert code == ErrorCode(999)
    assert hash(code) == hash(ErrorCode(999))
    assert code.name == "UNKNOWN_CODE_999"
    assert "999" in code.description
    assert not code.known
    assert ErrorCode.NONE.known
    assert ErrorCode.UNKNOWN_SERVER_ERROR.known
    assert not code.retriable
    assert not code.stale_metadata
    again = pickle.loads(pickle.dumps(code))
    assert (again, again.name) == (code, "UNKNOWN_CODE_999")
    assert pickle.loads(pickle.dumps(ErrorCode.NONE)) is copy.copy(ErrorCode.NONE) is ErrorCode.NONE
    assert 999 not in list(ErrorCode)


def test_text_is_no_code() -> None:
    with pytest.raises(ValueError, match="'nonsense' is not a valid ErrorCode"):
        ErrorCode("nonsense")
