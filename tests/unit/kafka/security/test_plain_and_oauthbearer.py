"""PLAIN and OAUTHBEARER byte by byte."""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.errors import AuthenticationError, ConfigError
from spark_kafka_native.kafka.security.sasl import OAuthBearer, Plain

TOKEN = "abc.DEF-1_2~3+4/5=="


def test_plain_is_one_message() -> None:
    plain = Plain("zoë", Secret("pä=ss,word"))
    assert plain.start() == "\0zoë\0pä=ss,word".encode()
    assert plain.step(b"") is None


@pytest.mark.parametrize(
    ("username", "password", "says"),
    [("a\0b", "c", "NUL"), ("a", "b\0c", "NUL"), ("", "c", "empty"), ("a", "", "empty")],
)
def test_plain_refuses_what_it_could_not_tell_apart(username: str, password: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Plain(username, Secret(password))


def test_a_token_with_extensions() -> None:
    bearer = OAuthBearer(Secret(TOKEN), {"logicalCluster": "lkc-1", "identityPoolId": "pool 2"})
    assert bearer.start() == (
        b"n,,\x01auth=Bearer abc.DEF-1_2~3+4/5==\x01logicalCluster=lkc-1\x01identityPoolId=pool 2\x01\x01"
    )
    assert bearer.step(b"") is None


def test_a_refusal_is_answered_and_then_final() -> None:
    bearer = OAuthBearer(Secret(TOKEN))
    bearer.start()
    assert bearer.step(b'{"status":"invalid_token","scope":"x"}') == b"\x01"
    with pytest.raises(AuthenticationError, match=r"refused the token \(invalid_token\)"):
        bearer.step(b"")  # a success after it would be a lie


@pytest.mark.parametrize(
    "challenge",
    [b"{}", b"[1]", b"no json", b'{"status":"<script>"}', b'{"status":{}}', b"[" * 60000, b"\xff"],
)
def test_a_refusal_that_says_nothing_known_shows_nothing(challenge: bytes) -> None:
    bearer = OAuthBearer(Secret(TOKEN))
    bearer.start()
    assert bearer.step(challenge) == b"\x01"
    with pytest.raises(AuthenticationError, match=r"without a (known )?reason"):
        bearer.step(challenge)


def test_an_oversized_challenge_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="longer than 65536 bytes"):
        OAuthBearer(Secret(TOKEN)).step(b"x" * 65537)


@pytest.mark.parametrize("token", ["", "a b", "a\x01auth=Bearer b", "ä", "=abc", "abc\n"])
def test_what_is_no_token_is_not_sent(token: str) -> None:
    with pytest.raises(ConfigError, match="token is empty or has characters") as caught:
        OAuthBearer(Secret(token))
    assert not token or token not in str(caught.value)


def test_a_token_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ConfigError, match="more than 65536 bytes"):
        OAuthBearer(Secret("a" * 65536)).start()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auth", "x"),
        ("AUTH", "x"),
        ("a1", "x"),
        ("", "x"),
        ("a", ""),
        ("a", "x\x01y"),
        ("a", "ä"),
        ("a\x01", "b"),
    ],
)
def test_extensions_that_rfc_7628_has_not(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="extension"):
        OAuthBearer(Secret(TOKEN), {name: value})
