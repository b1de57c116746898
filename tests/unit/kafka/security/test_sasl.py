"""SASL mechanisms: PLAIN, OAUTHBEARER and SCRAM (RFC 7677), and brokers that violate them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

import pytest

from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.errors import AuthenticationError, ConfigError
from spark_kafka_native.kafka.security.sasl import SCRAM_HASHES, OAuthBearer, Plain, Scram, new_nonce

TOKEN = "abc.DEF-1_2~3+4/5=="


def test_plain_is_one_message() -> None:
    plain = Plain("zoë", Secret("pä=ss,word"))
    assert plain.start() == "\0zoë\0pä=ss,word".encode()
    assert plain.step(b"") is None


@pytest.mark.parametrize(
    ("username", "password", "says"),
    [("a\0b", "c", "NUL"), ("a", "b\0c", "NUL"), ("", "c", "empty"), ("a", "", "empty")],
)
def test_plain_refuses_ambiguous_credentials(username: str, password: str, says: str) -> None:
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
def test_invalid_tokens_are_not_sent(token: str) -> None:
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


NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
FIRST = f"r={SERVER_NONCE},s={SALT},i=4096"
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client(**options: object) -> Scram:
    given = {"username": "user", "password": Secret("pencil"), "nonce": lambda: NONCE} | options
    return Scram("SCRAM-SHA-256", **given)  # type: ignore[arg-type]


def started() -> Scram:
    made = client()
    made.start()
    return made


def test_the_exchange_of_rfc_7677() -> None:
    scram = client()
    assert scram.start() == f"n,,n=user,r={NONCE}".encode()
    assert scram.step(FIRST.encode()) == f"c=biws,r={SERVER_NONCE},p={PROOF}".encode()
    assert scram.step(f"v={SIGNATURE}".encode()) is None


@pytest.mark.parametrize("name", SCRAM_HASHES)
def test_both_hashes_against_a_server_written_from_the_rfc(name: str) -> None:
    digest = SCRAM_HASHES[name]
    scram = Scram(name, "a=b,c", Secret("zoë's pässwörd"))
    first = scram.start().decode()
    assert first.startswith("n,,n=a=3Db=2Cc,r=")
    nonce = first.rpartition("r=")[2] + "more"
    salt = b"\x00salt\xff"
    server_first = f"r={nonce},s={base64.b64encode(salt).decode()},i=5000"
    final = scram.step(server_first.encode())
    assert final is not None
    without_proof, _, proof = final.decode().rpartition(",p=")
    message = f"{first[3:]},{server_first},{without_proof}".encode()
    salted = hashlib.pbkdf2_hmac(digest, "zoë's pässwörd".encode(), salt, 5000)
    stored = hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()
    signature = hmac.digest(stored, message, digest)
    client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.new(digest, client_key).digest() == stored
    server_signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)
    assert scram.step(b"v=" + base64.b64encode(server_signature)) is None


def test_delegation_tokens_say_so() -> None:
    assert client(token_auth=True).start() == f"n,,n=user,r={NONCE},tokenauth=true".encode()


def test_nonces_are_long_printable_and_never_the_same() -> None:
    nonces = {new_nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", nonce) for nonce in nonces)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (f"r=x{SERVER_NONCE},s={SALT},i=4096", "does not begin with ours"),
        (f"r={NONCE[:-1]}X9999,s={SALT},i=4096", "does not begin with ours"),
        (f"r={NONCE},s={SALT},i=4096", "added nothing to our nonce"),
        (f"r={NONCE} x,s={SALT},i=4096", "does not begin with ours"),
        (f"r={SERVER_NONCE},s={SALT},i=1", "asks for 1 iterations; 4096 to 1000000 are allowed"),
        (f"r={SERVER_NONCE},s={SALT},i=4095", "asks for 4095 iterations"),
        (f"r={SERVER_NONCE},s={SALT},i=1000001", "asks for 1000001 iterations"),
        (f"r={SERVER_NONCE},s={SALT},i=1000000000", "asks for 1000000000 iterations"),
        (f"r={SERVER_NONCE},s={SALT},i=-4096", "not a number"),
        (f"r={SERVER_NONCE},s={SALT},i=0004096", "not a number"),
        (f"r={SERVER_NONCE},s={SALT},i={'9' * 5000}", "not a number"),
        (f"r={SERVER_NONCE},s={SALT},i=", "lacks one of the attributes r, s, i"),
        (f"r={SERVER_NONCE},s=,i=4096", "lacks one of the attributes"),
        (f"r={SERVER_NONCE},s=!!,i=4096", "salt is not base64"),
        (f"r={SERVER_NONCE},i=4096", "lacks one of the attributes"),
        (f"s={SALT},r={SERVER_NONCE},i=4096", "lacks one of the attributes"),
        (f"m=x,r={SERVER_NONCE},s={SALT},i=4096", "demands an extension"),
        (f"{FIRST},m=x", "demands an extension"),
        (f"{FIRST},i=8192", "attribute twice"),
        (f"r={SERVER_NONCE}é,s={SALT},i=4096", "not ASCII"),
        ("", "lacks one of the attributes"),
        ("e=other-error", "lacks one of the attributes"),
        (FIRST + ",x=" + "y" * 65536, "longer than 65536 bytes"),
    ],
)
def test_a_bad_first_message_is_refused(first: str, says: str) -> None:
    with pytest.raises(AuthenticationError, match=says) as caught:
        started().step(first.encode())
    assert str(caught.value).startswith("SCRAM-SHA-256: ")


@pytest.mark.parametrize("iterations", [4096, 1_000_000])
def test_the_bounds_of_iterations_are_inside(iterations: int) -> None:
    assert started().step(FIRST.replace("4096", str(iterations)).encode()) is not None


def test_an_unknown_extension_that_is_not_mandatory_is_ignored() -> None:
    assert started().step(f"{FIRST},x=y".encode()) is not None


@pytest.mark.parametrize(
    ("final", "says"),
    [
        ("", "without proving"),
        ("v=", "lacks one of the attributes v"),
        (f"v={base64.b64encode(b'x' * 32).decode()}", "signature is wrong"),
        (f"v={base64.b64encode(base64.b64decode(SIGNATURE)[:-1]).decode()}", "signature is wrong"),
        (f"v=A{SIGNATURE[1:]}", "signature is wrong"),
        ("v=%%%", "signature is not base64"),
        ("e=invalid-proof", "refused: invalid-proof"),
        ("e=<b>surprise</b>", "refused: other-error"),
        (f"x=1,v={SIGNATURE}", "lacks one of the attributes v"),
        (f"v={SIGNATURE},v={SIGNATURE}", "attribute twice"),
        (f"v={SIGNATURE},m=1", "demands an extension"),
    ],
)
def test_success_without_the_servers_signature_is_refused(final: str, says: str) -> None:
    scram = started()
    scram.step(FIRST.encode())
    with pytest.raises(AuthenticationError, match=says) as caught:
        scram.step(final.encode())
    assert SIGNATURE not in str(caught.value)


def test_a_round_too_many_is_refused() -> None:
    scram = started()
    scram.step(FIRST.encode())
    assert scram.step(f"v={SIGNATURE}".encode()) is None
    with pytest.raises(AuthenticationError, match="after the last one"):
        scram.step(f"v={SIGNATURE}".encode())


def test_a_final_message_before_the_first_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="lacks one of the attributes"):
        started().step(f"v={SIGNATURE}".encode())
    with pytest.raises(AuthenticationError, match="after the last one"):
        client().step(FIRST.encode())


def test_after_a_refusal_nothing_goes_on() -> None:
    scram = started()
    with pytest.raises(AuthenticationError):
        scram.step(b"nonsense")
    with pytest.raises(AuthenticationError, match="after the last one"):
        scram.step(FIRST.encode())


@pytest.mark.parametrize(("username", "password"), [("", "x"), ("x", "")])
def test_empty_credentials_are_refused(username: str, password: str) -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        Scram("SCRAM-SHA-512", username, Secret(password))
