"""Delegation tokens: requests, refusals, and no text that shows an HMAC."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.brokers.scripted_broker import HangUp, Late, ScriptedCluster, Silence, properties

from spark_kafka_native.kafka.admin.admin import Admin
from spark_kafka_native.kafka.admin.delegation_tokens import DelegationToken, TokenAdmin
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, DeadlineExceededError, NetworkError
from spark_kafka_native.kafka.protocol.api.delegation_tokens import (
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.runtime.deadline import Deadline

HMAC = b"\xfb\xff" * 16
TEXT = base64.b64encode(HMAC).decode()
TOKEN = DelegationToken(
    token_id="t1", hmac=Secret(TEXT), owner="User:a", requester="User:a", issued_ms=1, expires_ms=2, max_ms=3
)
REFUSALS = (
    (ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "need delegation.token.secret.key"),
    (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "has expired, was revoked, or is very new"),
    (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "only the owner and the renewers"),
    (ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "never after a login with a token"),
    (ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, "an ACL on the user that owns the token: CreateTokens"),
    (ErrorCode.DELEGATION_TOKEN_EXPIRED, "has expired: create another one"),
    (ErrorCode.INVALID_PRINCIPAL_TYPE, "must be of the type User"),
)


class Router:
    """A controller that gives one answer after the other; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []
        self.snapshot = type("Snapshot", (), {"brokers": {1: None}})()

    def deadline(self, timeout_ms: float | None) -> Deadline:
        return Deadline.after_ms(60_000 if timeout_ms is None else timeout_ms)

    def metadata(self, *_: Any, **__: Any) -> Any:
        return type("Metadata", (), {"controller_id": 1})()

    def connection(self, *_: Any) -> None:
        pass

    def send_any(self, request: Any, _deadline: Any) -> Any:
        return self.send_to(0, request)

    def send_to(self, node_id: int, request: Any, *_: Any) -> Any:
        self.asked.append((node_id, request))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def refresh(self, *_: Any) -> None:
        pass

    def retry(self, operation: Callable[[], Any], **_: Any) -> Any:
        while True:
            try:
                return operation()
            except (NetworkError, Exception):
                if not self.answers:
                    raise


def admin(*answers: Any) -> tuple[TokenAdmin, Router]:
    router = Router(*answers)
    return TokenAdmin(router), router  # type: ignore[arg-type]


def created(code: ErrorCode = ErrorCode.NONE, requester: str = "User") -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type="User",
        principal_name="bob",
        token_requester_principal_type=requester,
        token_requester_principal_name="alice" if requester else "",
        issue_timestamp_ms=10,
        expiry_timestamp_ms=20,
        max_timestamp_ms=30,
        token_id="t1",
        hmac=HMAC,
        throttle_time_ms=0,
    )


def test_a_token_is_created_for_another_owner() -> None:
    tokens, router = admin(created())
    may_renew = ["User:carol", "User:spiffe://a/b"]
    made = tokens.create_delegation_token(owner="User:bob", renewers=may_renew, max_lifetime_ms=5)
    assert made == DelegationToken(
        token_id="t1",
        hmac=Secret(TEXT),
        owner="User:bob",
        requester="User:alice",
        issued_ms=10,
        expires_ms=20,
        max_ms=30,
        renewers=tuple(may_renew),
    )
    ((node_id, request),) = router.asked
    assert node_id == 1
    assert (request.owner_principal_type, request.owner_principal_name) == ("User", "bob")
    renewers = [(one.principal_type, one.principal_name) for one in request.renewers]
    assert renewers == [("User", "carol"), ("User", "spiffe://a/b")]
    assert request.max_lifetime_ms == 5


def test_without_words_the_cluster_decides_and_an_old_one_names_no_requester() -> None:
    tokens, router = admin(created(requester=""))
    assert tokens.create_delegation_token().requester == "User:bob"
    request = router.asked[0][1]
    assert (request.owner_principal_type, request.owner_principal_name) == ("", "")
    assert request.max_lifetime_ms == -1


@pytest.mark.parametrize("given", [TOKEN, TOKEN.hmac, TEXT])
def test_a_token_is_renewed_and_expired_by_its_hmac(given: DelegationToken | Secret | str) -> None:
    renewed = RenewDelegationTokenResponse(
        error_code=ErrorCode.NONE, expiry_timestamp_ms=99, throttle_time_ms=0
    )
    ended = ExpireDelegationTokenResponse(
        error_code=ErrorCode.NONE, expiry_timestamp_ms=7, throttle_time_ms=0
    )
    tokens, router = admin(renewed, renewed, ended, ended)
    assert tokens.renew_delegation_token(given) == 99
    assert tokens.renew_delegation_token(given, period_ms=50) == 99
    assert tokens.expire_delegation_token(given) == 7
    assert tokens.expire_delegation_token(given, after_ms=60) == 7
    asked = [request for _, request in router.asked]
    assert [request.hmac for request in asked] == [HMAC] * 4
    assert [request.renew_period_ms for request in asked[:2]] == [-1, 50]
    assert [request.expiry_time_period_ms for request in asked[2:]] == [-1, 60]


def test_a_token_that_a_lost_request_has_expired_is_expired() -> None:
    gone = ExpireDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_NOT_FOUND, expiry_timestamp_ms=-1, throttle_time_ms=0
    )
    tokens, router = admin(NetworkError("the answer was lost"), gone)
    before_ms = time.time() * 1000
    assert before_ms - 1 <= tokens.expire_delegation_token(TOKEN) <= time.time() * 1000
    assert len(router.asked) == 2
    tokens, _ = admin(gone)
    with pytest.raises(BrokerError, match="expiring delegation token t1: DELEGATION_TOKEN_NOT_FOUND"):
        tokens.expire_delegation_token(TOKEN)
    tokens, _ = admin(NetworkError("the answer was lost"), gone)
    with pytest.raises(BrokerError, match="DELEGATION_TOKEN_NOT_FOUND"):
        tokens.expire_delegation_token(TOKEN, after_ms=1)


def test_the_last_answer_counts_where_the_controller_has_moved() -> None:
    """The first one has an empty HMAC, and no time."""
    moved, nothing = ErrorCode.NOT_CONTROLLER, ""
    tokens, router = admin(replace(created(moved), hmac=b"", token_id=nothing), created())
    made = tokens.create_delegation_token()
    assert (made.token_id, made.hmac.reveal()) == ("t1", TEXT)
    for kind, change in (
        (RenewDelegationTokenResponse, tokens.renew_delegation_token),
        (ExpireDelegationTokenResponse, tokens.expire_delegation_token),
    ):
        router.answers = [
            kind(error_code=code, expiry_timestamp_ms=ms, throttle_time_ms=0)
            for code, ms in ((moved, -1), (ErrorCode.NONE, 99))
        ]
        assert change(TOKEN) == 99


def described(token_id: str) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        principal_type="User",
        principal_name="a",
        token_requester_principal_type="User",
        token_requester_principal_name="b",
        issue_timestamp=1,
        expiry_timestamp=2,
        max_timestamp=3,
        token_id=token_id,
        hmac=HMAC,
        renewers=[DescribedDelegationTokenRenewer(principal_type="User", principal_name="c")],
    )


def test_tokens_are_described() -> None:
    answer = DescribeDelegationTokenResponse(
        error_code=ErrorCode.NONE, tokens=[described("t1")], throttle_time_ms=0
    )
    tokens, router = admin(answer, answer, answer)
    (found,) = tokens.describe_delegation_tokens()
    assert found == replace(TOKEN, requester="User:b", renewers=("User:c",))
    tokens.describe_delegation_tokens(["User:a"])
    tokens.describe_delegation_tokens([])
    everyone, one, no_owner = (request for _, request in router.asked)
    assert (everyone.owners, no_owner.owners) == (None, [])
    assert [(owner.principal_type, owner.principal_name) for owner in one.owners] == [("User", "a")]


def knowing(*names: str) -> DescribeDelegationTokenResponse:
    found = [described(name) for name in names]
    return DescribeDelegationTokenResponse(error_code=ErrorCode.NONE, tokens=found, throttle_time_ms=0)


def refusing(code: ErrorCode) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=code, tokens=[], throttle_time_ms=0)


@pytest.fixture
def three() -> Iterator[ScriptedCluster]:
    """Brokers that know the token."""
    with ScriptedCluster(3) as cluster:
        for broker in cluster.brokers.values():
            broker.on(DescribeDelegationTokenRequest, knowing("t0", "t1"))
        yield cluster


def await_token(cluster: ScriptedCluster, seconds: float = 60) -> None:
    with Admin(properties(cluster.bootstrap_servers, request_timeout_ms=30_000)) as asking:
        asking.await_delegation_token(TOKEN, seconds)


def questions(cluster: ScriptedCluster) -> list[int]:
    return [len(one.requests(DescribeDelegationTokenRequest)) for one in cluster.brokers.values()]


def test_a_token_is_waited_for_until_each_broker_knows_it(three: ScriptedCluster) -> None:
    three[2].push(DescribeDelegationTokenRequest, knowing(), knowing("t0"))
    await_token(three)
    assert questions(three) == [1, 3, 1]


def test_a_broker_that_has_just_started_is_waited_for(three: ScriptedCluster) -> None:
    """A login with the token may go to it."""
    there = {1, 2}

    def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
        response: MetadataResponse = three.metadata(request, version)
        return replace(response, brokers=[one for one in response.brokers if one.node_id in there])

    for broker in three.brokers.values():
        broker.on(MetadataRequest, metadata)
    with Admin(properties(three.bootstrap_servers, request_timeout_ms=30_000)) as asking:
        asking.await_delegation_token(TOKEN, 60)
        there.add(3)
        three[3].push(DescribeDelegationTokenRequest, knowing())
        asking.await_delegation_token(TOKEN, 60)
    assert questions(three) == [2, 2, 2]


def test_a_broker_that_lags_behind_is_named_at_the_end(three: ScriptedCluster) -> None:
    three[3].on(DescribeDelegationTokenRequest, knowing("t0"))
    with pytest.raises(DeadlineExceededError, match=r"t1 .* broker 3 does not know t1 yet") as raised:
        await_token(three, 3)
    assert TEXT not in str(raised.value)
    assert questions(three)[:2] == [1, 1]


def test_a_broker_that_lacked_the_token_and_is_late_later_does_not_know_it(three: ScriptedCluster) -> None:
    """It was left out as one that is down where the end of the time cut its answer short."""
    three[3].push(DescribeDelegationTokenRequest, knowing("t0"))
    three[3].on(DescribeDelegationTokenRequest, Silence)
    with pytest.raises(DeadlineExceededError, match="waiting for delegation token t1"):
        await_token(three, 3)


@pytest.mark.parametrize("dead", [1, 3])
@pytest.mark.parametrize("way", ["stops", "is silent"])
def test_a_dead_broker_does_not_use_up_the_wait_for_the_others(
    three: ScriptedCluster, dead: int, way: str
) -> None:
    """Broker 2 learns of the token after the dead one's share of the time is over."""
    three[dead].on(DescribeDelegationTokenRequest, Silence)
    if way == "stops":
        three[dead].stop()
    began = time.monotonic()

    def late(*_: object) -> DescribeDelegationTokenResponse:
        return knowing("t1") if time.monotonic() > began + 1 else knowing()

    three[2].on(DescribeDelegationTokenRequest, late)
    await_token(three, 3)
    assert questions(three)[1] >= 2
    assert questions(three)[3 - dead] >= 1


def test_a_broker_is_not_given_up_at_the_first_failure(three: ScriptedCluster) -> None:
    three[3].push(DescribeDelegationTokenRequest, HangUp, knowing())
    await_token(three)
    assert questions(three) == [1, 1, 3]


def test_a_slow_broker_that_lags_behind_is_waited_for_longer_than_a_dead_one(three: ScriptedCluster) -> None:
    three[1].on(DescribeDelegationTokenRequest, Silence)
    three[2].push(DescribeDelegationTokenRequest, knowing(), Late(0.5, knowing()))
    three[2].on(DescribeDelegationTokenRequest, Late(0.5, knowing("t1")))
    await_token(three, 6)
    assert questions(three)[1] == 3


def test_a_broker_that_is_asked_for_the_metadata_and_stands_still_holds_nothing_up(
    three: ScriptedCluster,
) -> None:
    """Which one is asked is random, so none of them answers."""
    given = properties(three.bootstrap_servers, request_timeout_ms=30_000)
    with Admin(given) as asking:
        asking.await_delegation_token(TOKEN, 30)
        for broker in three.brokers.values():
            broker.on(MetadataRequest, Silence)
            broker.push(DescribeDelegationTokenRequest, knowing())
        asking.await_delegation_token(TOKEN, 3)


def test_a_cluster_of_which_no_broker_answers_is_not_taken_for_one_that_knows(three: ScriptedCluster) -> None:
    for broker in three.brokers.values():
        broker.on(DescribeDelegationTokenRequest, Silence)
    with pytest.raises(DeadlineExceededError):
        await_token(three, 3)


def test_a_broker_that_refuses_ends_the_wait(three: ScriptedCluster) -> None:
    three[2].on(DescribeDelegationTokenRequest, refusing(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED))
    three[1].on(DescribeDelegationTokenRequest, knowing())  # one that lags behind is not the reason
    with pytest.raises(BrokerError, match="DELEGATION_TOKEN_AUTH_DISABLED"):
        await_token(three, 5)
    assert questions(three)[1] == 1


@pytest.mark.parametrize(("code", "sentence"), REFUSALS)
def test_a_refusal_says_why(code: ErrorCode, sentence: str) -> None:
    tokens, _ = admin(created(code))
    with pytest.raises(BrokerError, match=f"creating a delegation token of User:bob: {code.name}") as raised:
        tokens.create_delegation_token(owner="User:bob")
    assert sentence in str(raised.value)
    tokens, _ = admin(refusing(code))
    with pytest.raises(BrokerError, match="describing delegation tokens"):
        tokens.describe_delegation_tokens()


@pytest.mark.parametrize(
    "misuse",
    [
        lambda tokens: tokens.create_delegation_token(owner="bob"),
        lambda tokens: tokens.create_delegation_token(renewers="User:bob"),
        lambda tokens: tokens.create_delegation_token(renewers=["User:"]),
        lambda tokens: tokens.create_delegation_token(max_lifetime_ms=0),
        lambda tokens: tokens.create_delegation_token(max_lifetime_ms=2**63),
        lambda tokens: tokens.renew_delegation_token(TOKEN, period_ms=0),
        lambda tokens: tokens.expire_delegation_token(TOKEN, after_ms=-1),
        lambda tokens: tokens.renew_delegation_token("geheim!"),
        lambda tokens: tokens.renew_delegation_token(""),
    ],
)
def test_misuse_is_refused_before_anything_is_sent(misuse: Callable[[TokenAdmin], object]) -> None:
    tokens, router = admin()
    with pytest.raises(ValueError, match=r"User:name|at least 1|collection|HMAC in base64") as raised:
        misuse(tokens)
    assert "geheim" not in str(raised.value)
    assert router.asked == []


def test_the_wire_dump_of_a_message_shows_no_hmac() -> None:
    messages = (
        created(),
        RenewDelegationTokenRequest(hmac=HMAC, renew_period_ms=-1),
        ExpireDelegationTokenRequest(hmac=HMAC, expiry_time_period_ms=-1),
        DescribeDelegationTokenResponse(
            error_code=ErrorCode.NONE, tokens=[described("t1")], throttle_time_ms=0
        ),
    )
    for message in messages:
        assert "xfb" not in repr(message)
        assert "hmac=****" in repr(message)


def test_no_text_of_a_token_shows_its_hmac() -> None:
    for text in (repr(TOKEN), str(TOKEN), f"{TOKEN}", repr([TOKEN])):
        assert TEXT not in text
        assert "t1" in text
