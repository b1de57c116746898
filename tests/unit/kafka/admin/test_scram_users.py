"""Users of SCRAM: settings that are refused before any broker is asked, and the requests for the others."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from support.brokers.scripted_broker import HangUp, ScriptedCluster

from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError
from spark_kafka_native.kafka.protocol.api.scram_users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from spark_kafka_native.kafka.security.sasl import SCRAM_HASHES


@pytest.mark.parametrize("iterations", [0, 4_095, 16_385, 1_000_000])
def test_iterations_that_a_broker_would_refuse(iterations: int) -> None:
    with (
        Admin("127.0.0.1:1") as admin,
        pytest.raises(ValueError, match=f"iterations must be from 4096 to 16384, not {iterations}"),
    ):
        admin.set_scram_user("carol", "secret", iterations=iterations)


@pytest.mark.parametrize(
    ("user", "password"), [("", "secret"), ("carol", ""), ("carol", b"secret"), ("carol", None)]
)
def test_empty_names_and_passwords(user: str, password: Any) -> None:
    with Admin("127.0.0.1:1") as admin, pytest.raises(ValueError, match="texts that are not empty"):
        admin.set_scram_user(user, password)


@pytest.mark.parametrize("password", ["secret", Secret("secret")], ids=["text", "Secret"])
@pytest.mark.parametrize(("mechanism", "number"), [("SCRAM-SHA-256", 1), ("SCRAM-SHA-512", 2)])
def test_credentials_are_set_and_deleted_for_one_mechanism(
    mechanism: str, number: int, password: str | Secret
) -> None:
    done = AlterUserScramCredentialsResult(user="carol", error_code=ErrorCode.NONE, error_message=None)
    with ScriptedCluster(1) as cluster, Admin(cluster.bootstrap_servers) as admin:
        response = AlterUserScramCredentialsResponse(throttle_time_ms=0, results=[done])
        cluster[1].on(AlterUserScramCredentialsRequest, response)
        admin.set_scram_user("carol", password, mechanism=mechanism, iterations=4_096)
        admin.delete_scram_user("carol", mechanism=mechanism)
        [made, deleted] = cluster[1].requests(AlterUserScramCredentialsRequest)
    [one] = made.upsertions
    assert (one.name, one.mechanism, one.iterations, made.deletions) == ("carol", number, 4_096, [])
    digest = SCRAM_HASHES[mechanism]
    assert bytes(one.salted_password) == hashlib.pbkdf2_hmac(digest, b"secret", bytes(one.salt), 4_096)
    assert len(one.salt) >= 16
    shown = repr(made)
    assert "salt=****, salted_password=****" in shown
    assert repr(bytes(one.salt)) not in shown
    assert repr(bytes(one.salted_password)) not in shown
    assert [(gone.name, gone.mechanism) for gone in deleted.deletions] == [("carol", number)]
    assert deleted.upsertions == []


def test_credentials_that_a_lost_request_has_deleted_are_deleted() -> None:
    """And those that were not there before are an error."""
    gone = AlterUserScramCredentialsResult(
        user="carol", error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=None
    )
    response = AlterUserScramCredentialsResponse(throttle_time_ms=0, results=[gone])
    with (
        ScriptedCluster(1) as cluster,
        Admin(cluster.bootstrap_servers, retry_backoff_ms=5) as admin,
    ):
        cluster[1].on(AlterUserScramCredentialsRequest, response)
        cluster[1].push(AlterUserScramCredentialsRequest, HangUp)
        admin.delete_scram_user("carol")
        assert len(cluster[1].requests(AlterUserScramCredentialsRequest)) == 2
        with pytest.raises(BrokerError, match="altering SCRAM user carol: RESOURCE_NOT_FOUND"):
            admin.delete_scram_user("carol")
        cluster[1].push(AlterUserScramCredentialsRequest, HangUp)
        with pytest.raises(BrokerError, match="altering SCRAM user carol: RESOURCE_NOT_FOUND"):
            admin.set_scram_user("carol", "secret", iterations=4_096)


def test_an_unknown_user_has_no_credentials_and_a_refusal_is_raised() -> None:
    def described(code: ErrorCode) -> DescribeUserScramCredentialsResponse:
        found = [
            DescribeUserScramCredentialsResult(
                user="bob",
                error_code=ErrorCode.NONE,
                error_message=None,
                credential_infos=[CredentialInfo(mechanism=1, iterations=4_096)],
            ),
            DescribeUserScramCredentialsResult(
                user="carol", error_code=code, error_message=None, credential_infos=[]
            ),
        ]
        return DescribeUserScramCredentialsResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None, results=found
        )

    with ScriptedCluster(1) as cluster, Admin(cluster.bootstrap_servers) as admin:
        cluster[1].on(DescribeUserScramCredentialsRequest, described(ErrorCode.RESOURCE_NOT_FOUND))
        assert admin.describe_scram_users(["bob", "carol"]) == {"bob": {"SCRAM-SHA-256": 4_096}, "carol": {}}
        cluster[1].on(DescribeUserScramCredentialsRequest, described(ErrorCode.DUPLICATE_RESOURCE))
        with pytest.raises(BrokerError, match="describing SCRAM user carol: DUPLICATE_RESOURCE"):
            admin.describe_scram_users(["bob", "carol"])
        refused = DescribeUserScramCredentialsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message=None,
            results=[],
        )
        cluster[1].on(DescribeUserScramCredentialsRequest, refused)
        with pytest.raises(BrokerError, match="describing SCRAM users: CLUSTER_AUTHORIZATION_FAILED"):
            admin.describe_scram_users()
        # To null Kafka's brokers do not answer here.
        assert cluster[1].requests(DescribeUserScramCredentialsRequest)[-1].users == []
        assert admin.describe_scram_users([]) == {}
