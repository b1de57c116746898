"""RFC 4752 with a scripted context in the place of the Kerberos library."""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.errors import AuthenticationError
from spark_kafka_native.kafka.security.gssapi import Gssapi
from spark_kafka_native.kafka.security.sasl import MAX_SASL_BYTES


class ScriptedContext:
    """Answers tokens with ``answers`` and is complete after the last one; messages are wrapped in braces."""

    def __init__(self, *answers: bytes, mutual: bool = True, finishes: bool = True) -> None:
        self.tokens: list[bytes] = []
        self.mutual = mutual
        self.principal = "alice@EXAMPLE.COM"
        self._answers = list(answers)
        self._finishes = finishes

    @property
    def complete(self) -> bool:
        return self._finishes and not self._answers

    def step(self, token: bytes) -> bytes:
        self.tokens.append(token)
        return self._answers.pop(0)

    def unwrap(self, message: bytes) -> bytes:
        if message[:1] + message[-1:] != b"{}":
            raise AuthenticationError("GSSAPI: the signature is wrong")
        return message[1:-1]

    def wrap(self, content: bytes) -> bytes:
        return b"{" + content + b"}"


def established(context: ScriptedContext | None = None) -> Gssapi:
    mechanism = Gssapi(context or ScriptedContext(b""), b"first")
    mechanism.start()
    mechanism.step(b"broker")
    return mechanism


def test_an_exchange_as_kafkas_brokers_have_it() -> None:
    context = ScriptedContext(b"")
    mechanism = Gssapi(context, b"first")
    assert mechanism.start() == b"first"
    assert mechanism.step(b"broker") == b""
    assert mechanism.step(b"{\x01\x01\x00\x00}") == b"{\x01\x00\x00\x00alice@EXAMPLE.COM}"
    assert mechanism.step(b"") is None
    assert context.tokens == [b"broker"]
    assert (mechanism.name, mechanism.secret.reveal()) == ("GSSAPI", "")


def test_a_context_may_take_several_tokens() -> None:
    context = ScriptedContext(b"second", b"third", b"")
    mechanism = Gssapi(context, b"first")
    assert [mechanism.step(token) for token in (b"a", b"b", b"c")] == [b"second", b"third", b""]
    assert mechanism.step(b"{\x07\x00\x00\x00}") is not None


def test_a_last_token_of_ours_is_sent_before_the_layers() -> None:
    mechanism = Gssapi(ScriptedContext(b"last"), b"first")
    assert mechanism.step(b"a") == b"last"
    assert mechanism.step(b"{\x01\x00\x00\x00}") is not None


@pytest.mark.parametrize("layers", [1, 3, 5, 7])
def test_none_is_chosen_wherever_it_is_offered(layers: int) -> None:
    answer = established().step(b"{" + bytes((layers, 0xFF, 0xFF, 0xFF)) + b"}")
    assert answer == b"{\x01\x00\x00\x00alice@EXAMPLE.COM}"


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        (2, "it offers integrity"),
        (4, "it offers confidentiality"),
        (6, "it offers integrity, confidentiality"),
        (0, "it offers nothing"),
        (8, "it offers nothing"),
    ],
)
def test_a_layer_is_never_agreed_to(layers: int, says: str) -> None:
    with pytest.raises(AuthenticationError, match=rf"demands a security layer \({says}\).*SASL_SSL encrypts"):
        established().step(b"{" + bytes((layers, 0, 0, 0)) + b"}")


@pytest.mark.parametrize("offer", [b"", b"\x01", b"\x01\x00\x00", b"\x01\x00\x00\x00\x00"])
def test_an_offer_has_four_bytes(offer: bytes) -> None:
    with pytest.raises(AuthenticationError, match=rf"has {len(offer)} bytes instead of 4"):
        established().step(b"{" + offer + b"}")


def test_an_offer_that_was_changed_on_its_way_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="signature is wrong"):
        established().step(b"\x01\x00\x00\x00")


def test_a_broker_that_proves_nothing_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="without proving its identity"):
        Gssapi(ScriptedContext(b""), b"first").step(b"")
    with pytest.raises(AuthenticationError, match="no mutual authentication"):
        Gssapi(ScriptedContext(b"", mutual=False), b"first").step(b"broker")


def test_a_context_that_stalls_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="nothing left to send"):
        Gssapi(ScriptedContext(b"", finishes=False), b"first").step(b"broker")


@pytest.mark.parametrize("last", [b"x", b"{\x01\x00\x00\x00}"])
def test_nothing_follows_the_choice(last: bytes) -> None:
    mechanism = established()
    mechanism.step(b"{\x01\x00\x00\x00}")
    with pytest.raises(AuthenticationError, match="after the last one"):
        mechanism.step(last)


def test_nothing_follows_the_end_or_a_failure() -> None:
    mechanism = established()
    mechanism.step(b"{\x01\x00\x00\x00}")
    assert mechanism.step(b"") is None
    with pytest.raises(AuthenticationError, match="after the last one"):
        mechanism.step(b"")
    mechanism = established()
    for message in (b"garbage", b"{\x01\x00\x00\x00}"):
        with pytest.raises(AuthenticationError):
            mechanism.step(message)


def test_a_huge_token_does_not_reach_the_library() -> None:
    context = ScriptedContext(b"")
    mechanism = Gssapi(context, b"first")
    with pytest.raises(AuthenticationError, match="longer than 65536 bytes"):
        mechanism.step(bytes(MAX_SASL_BYTES + 1))
    assert context.tokens == []
    assert Gssapi(context, b"first").step(bytes(MAX_SASL_BYTES)) == b""


@pytest.mark.parametrize("first", [b"", bytes(MAX_SASL_BYTES + 1)])
def test_a_first_token_that_cannot_be_sent(first: bytes) -> None:
    with pytest.raises(AuthenticationError, match=rf"has {len(first)} bytes"):
        Gssapi(ScriptedContext(b""), first).start()
