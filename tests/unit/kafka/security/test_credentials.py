"""The options of sasl.jaas.config: the unsigned token made of them, as Java makes it, and others."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_native.kafka.config.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.config.security_config import SecurityConfig
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.network.authentication import mechanism_for
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.security.credentials import client_credentials, jaas_of, seconds
from spark_kafka_native.kafka.security.kerberos import login_of
from spark_kafka_native.kafka.security.tokens import current_token


def token_of(options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims."""
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{OAUTHBEARER_MODULE} required {options};",
    }
    token = current_token(SecurityConfig.from_properties(properties), Deadline.after_ms(10_000)).reveal()
    header, claims, signature = token.split(".")
    assert signature == ""
    return tuple(json.loads(base64.urlsafe_b64decode(part + "==")) for part in (header, claims))  # type: ignore[return-value]


def test_claims_of_each_kind() -> None:
    header, claims = token_of(
        'unsecuredLoginStringClaim_sub="alice" unsecuredLoginNumberClaim_level="7" '
        'unsecuredLoginListClaim_scope="|read|write" unsecuredLoginLifetimeSeconds="60" extension_a="b"'
    )
    assert header == {"alg": "none"}
    assert claims.pop("exp") - claims["iat"] == pytest.approx(60)
    assert abs(claims.pop("iat") - time.time()) < 600
    assert claims == {"sub": "alice", "level": 7, "scope": ["read", "write"]}


def test_another_claim_may_be_the_principal() -> None:
    _, claims = token_of('unsecuredLoginStringClaim_user="bob" unsecuredLoginPrincipalClaimName="user"')
    assert claims["user"] == "bob"
    assert claims["exp"] - claims["iat"] == pytest.approx(3600)


def test_a_scope_may_be_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCOPE_OF_KAFKA", "kafka")
    name = "sasl.oauthbearer.client.credentials.client"
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        f"{name}.id": "i",
        f"{name}.secret": "s",
        "sasl.oauthbearer.scope": "env:SCOPE_OF_KAFKA",
    }
    assert client_credentials(SecurityConfig.from_properties(given)) == ("i", Secret("s"), "kafka")
    del given["sasl.oauthbearer.scope"]
    given["sasl.jaas.config"] = f'{OAUTHBEARER_MODULE} required scope="env:SCOPE_OF_KAFKA";'
    assert client_credentials(SecurityConfig.from_properties(given)) == ("i", Secret("s"), "kafka")


@pytest.mark.parametrize("options", ['clientId="i"', 'clientSecret="marked"', 'scope="c"'])
def test_a_login_module_in_a_file_needs_both_parts_of_client_credentials(
    tmp_path: Path, options: str
) -> None:
    """The driver has not seen it."""
    path = tmp_path / "jaas"
    path.write_text(f"{OAUTHBEARER_MODULE} required {options};")
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://token/",
        "sasl.jaas.config": f"file:{path}",
    }
    with pytest.raises(ConfigError, match="needs a client id and a client secret"):
        client_credentials(SecurityConfig.from_properties(properties))


def test_the_properties_of_client_credentials_come_before_the_options_of_the_login_module() -> None:
    """Id and secret of the same client: with the secret of another one its login would be refused."""
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://token/",
        "sasl.jaas.config": f'{OAUTHBEARER_MODULE} required clientId="i" clientSecret="s" scope="c";',
    }
    assert client_credentials(SecurityConfig.from_properties(properties)) == ("i", Secret("s"), "c")
    name = "sasl.oauthbearer.client.credentials.client"
    both = properties | {f"{name}.id": "I", f"{name}.secret": "S", "sasl.oauthbearer.scope": "C"}
    assert client_credentials(SecurityConfig.from_properties(both)) == ("I", Secret("S"), "C")


def plain_login(security: SecurityConfig) -> list[str]:
    sent = mechanism_for(security, "broker", Deadline.after_ms(60_000)).start()
    return sent.decode().split("\0")[1:]


def endpoint_login(security: SecurityConfig) -> list[str]:
    client_id, secret, _ = client_credentials(security)
    return [client_id, secret.reveal()]


def kerberos_name(security: SecurityConfig) -> list[str | None]:
    return [login_of(security).principal]


OIDC = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://token/"}
OIDC_CLIENT = "sasl.oauthbearer.client.credentials.client"


@pytest.mark.parametrize(
    ("properties", "read"),
    [
        ({"sasl.mechanism": "PLAIN", "sasl.username": "env:A", "sasl.password": "env:B"}, plain_login),
        (
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'{PLAIN_MODULE} required username="env:A" password="env:B";',
            },
            plain_login,
        ),
        (OIDC | {f"{OIDC_CLIENT}.id": "env:A", f"{OIDC_CLIENT}.secret": "env:B"}, endpoint_login),
        (
            OIDC
            | {"sasl.jaas.config": f'{OAUTHBEARER_MODULE} required clientId="env:A" clientSecret="env:B";'},
            endpoint_login,
        ),
        (
            {
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.principal": "env:A",
                "sasl.kerberos.keytab": "/client.keytab",
            },
            kerberos_name,
        ),
    ],
)
def test_each_part_of_a_login_may_be_a_reference(
    monkeypatch: pytest.MonkeyPatch,
    properties: dict[str, str],
    read: Callable[[SecurityConfig], list[str | None]],
) -> None:
    monkeypatch.setenv("A", "me")
    monkeypatch.setenv("B", "marked")
    security = SecurityConfig.from_properties({"security.protocol": "SASL_SSL"} | properties)
    found = read(security)
    assert found == ["me", "marked"][: len(found)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('unsecuredLoginNumberClaim_level="1"', "unsecuredLoginStringClaim_sub must name the principal"),
        ('unsecuredLoginStringClaim_sub="a" unsecuredLoginNumberClaim_x="marked"', "a number of"),
        ('unsecuredLoginStringClaim_sub="a" unsecuredLoginLifetimeSeconds="marked"', "a number of"),
    ],
)
def test_options_that_make_no_token_are_named_without_values(options: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        token_of(options)
    assert "marked" not in str(caught.value)


@pytest.mark.parametrize(
    ("mechanism", "module", "fits"),
    [
        ("PLAIN", PLAIN_MODULE, True),
        ("PLAIN", SCRAM_MODULE, False),
        ("SCRAM-SHA-512", SCRAM_MODULE, True),
        ("SCRAM-SHA-512", PLAIN_MODULE, False),
    ],
)
def test_the_login_module_in_a_file_is_that_of_the_mechanism(
    tmp_path: Path, mechanism: str, module: str, fits: bool
) -> None:
    """The driver has not seen it. Else a password that SCRAM never sends would be sent in clear."""
    path = tmp_path / "jaas"
    path.write_text(f'{module} required username="me" password="marked";')
    security = SecurityConfig.from_properties(
        {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.jaas.config": f"file:{path}"}
    )
    if fits:
        found = jaas_of(security)
        assert found is not None
        assert found.option("password") == Secret("marked")
        return
    with pytest.raises(ConfigError, match=f"but sasl.mechanism={mechanism} goes with") as caught:
        jaas_of(security)
    assert "marked" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "found"),
    [
        (1_700_000_000, 1_700_000_000),
        (1_700_000_000.5, 1_700_000_000.5),
        (0, 0),
        (-1, -1),
        (10**12 - 1, 10**12 - 1),
        (10**12, None),
        (-(10**12), None),
        (10**400, None),
        (-(10**400), None),  # to divide it by anything overflows
        (float("nan"), None),
        (float("-inf"), None),
        (True, None),
        ("1700000000", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("per_second", [1, 1_000])
def test_a_time_is_a_number_that_a_clock_may_show(
    number: object, found: float | None, per_second: int
) -> None:
    """Of a token, or of the answer of an endpoint, which may hold anything."""
    if per_second > 1 and isinstance(number, int | float) and not isinstance(number, bool):
        number = number * per_second
    assert seconds(number, per_second=per_second) == found
