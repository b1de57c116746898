"""What Java's users paste for Kerberos has the same meaning here, or is refused by name."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.jaas import KRB5_MODULE, parse_jaas
from spark_kafka_native.kafka.config.kerberos_login import KerberosLogin, kerberos_login
from spark_kafka_native.kafka.config.security_config import SecurityConfig
from spark_kafka_native.kafka.errors import ConfigError

KEYTAB = 'useKeyTab=true keyTab="/k/app.keytab" principal="app@EXAMPLE.COM"'
GSSAPI = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "bootstrap.servers": "b:1"}


def of_java(options: str, service: str | None = None) -> KerberosLogin:
    return kerberos_login(parse_jaas(f"{KRB5_MODULE} required {options};"), None, None, service)


def test_a_keytab_as_java_has_it() -> None:
    login = of_java(
        f"{KEYTAB} storeKey=true doNotPrompt=true debug=false refreshKrb5Config=true renewTGT=false"
    )
    assert login == KerberosLogin(principal="app@EXAMPLE.COM", keytab="/k/app.keytab", service="kafka")


@pytest.mark.parametrize("prefix", ["", "FILE:", "file:"])
def test_a_file_may_be_written_as_such(prefix: str) -> None:
    assert of_java(KEYTAB.replace("/k", f"{prefix}/k")).keytab == "/k/app.keytab"
    cache = of_java(f'useTicketCache=true ticketCache="{prefix}/tmp/cc"')
    assert (cache.ticket_cache, cache.keytab, cache.principal) == ("/tmp/cc", None, None)


def test_the_default_ticket_cache() -> None:
    assert of_java("useTicketCache=TRUE") == KerberosLogin()
    assert of_java("useTicketCache=true keyTab=/ignored principal=p@R") == KerberosLogin(principal="p@R")
    assert kerberos_login(None, None, None, None) == KerberosLogin()
    assert kerberos_login(None, "p", None, "broker") == KerberosLogin(principal="p", service="broker")


def test_a_keytab_comes_before_a_cache() -> None:
    login = of_java(f"{KEYTAB} useTicketCache=true ticketCache=/tmp/cc")
    assert (login.keytab, login.ticket_cache) == ("/k/app.keytab", None)


def test_the_service_is_said_once_or_alike() -> None:
    assert of_java(f"{KEYTAB} serviceName=broker").service == "broker"
    assert of_java(KEYTAB, "broker").service == "broker"
    assert of_java(f"{KEYTAB} serviceName=broker", "broker").service == "broker"
    with pytest.raises(
        ConfigError, match=r"serviceName in sasl.jaas.config and sasl.kerberos.service.name differ"
    ):
        of_java(f"{KEYTAB} serviceName=one", "other")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "",
            "would ask for a password; give useKeyTab=true with keyTab and principal, or useTicketCache=true",
        ),
        ("useKeyTab=false", "would ask for a password"),
        ("useKeyTab=true principal=p", "useKeyTab=true needs keyTab and principal"),
        ("useKeyTab=true keyTab=/k", "useKeyTab=true needs keyTab and principal"),
        (f"{KEYTAB} isInitiator=false", "isInitiator=false is for servers"),
        (f"{KEYTAB} useFirstPass=true", "useFirstPass takes a password of another login module"),
        (f"{KEYTAB} tryFirstPass=true", "tryFirstPass takes a password of another login module"),
        ("useTicketCache=true ticketCache=KEYRING:x", "for a ticket cache of another kind set KRB5CCNAME"),
        ('useTicketCache=true ticketCache=""', "ticketCache is not the path of a file"),
        ('useKeyTab=true keyTab="FILE:" principal=p', "keyTab is not the path of a file"),
        ('useKeyTab=true keyTab=/k principal=""', "the principal is empty or has a control character"),
        ('useKeyTab=true keyTab=/k principal="a\\\tb"', "the principal is empty or has a control character"),
        (f"{KEYTAB} password=x", "an option of Krb5LoginModule is not known; it may have useKeyTab, keyTab"),
    ],
)
def test_what_has_no_meaning_here_is_refused(options: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        of_java(options)


def test_plain_properties() -> None:
    given = GSSAPI | {
        "sasl.kerberos.service.name": "broker",
        "sasl.kerberos.principal": "app",
        "sasl.kerberos.keytab": "FILE:/k/app.keytab",
    }
    config = ClientConfig.from_properties(given).security
    assert (config.kerberos_service, config.kerberos_principal) == ("broker", "app")
    assert config.warnings == ()
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sasl.kerberos.keytab": "/k"}, "sasl.kerberos.keytab needs sasl.kerberos.principal"),
        ({"sasl.username": "a", "sasl.password": "b"}, "GSSAPI takes no sasl.username and sasl.password"),
        ({"sasl.username": "a"}, "GSSAPI takes no sasl.username and sasl.password"),
        ({"sasl.password": "b"}, "GSSAPI takes no sasl.username and sasl.password"),
        (
            {"sasl.kerberos.principal": "p", "sasl.jaas.config": f"{KRB5_MODULE} required {KEYTAB};"},
            "sasl.jaas.config and sasl.kerberos.principal with sasl.kerberos.keytab: give one of them",
        ),
        (
            {"sasl.kerberos.keytab": "/k", "sasl.jaas.config": "file:/etc/jaas"},
            "sasl.jaas.config and sasl.kerberos.principal with sasl.kerberos.keytab: give one of them",
        ),
        ({"sasl.jaas.config": f"{KRB5_MODULE} required;"}, "would ask for a password"),
        (
            {"sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required;"},
            "has the PlainLoginModule, but sasl.mechanism=GSSAPI goes with com.sun.security.auth.module.Krb5",
        ),
        (
            {"sasl.kerberos.keytab": "DIR:/k", "sasl.kerberos.principal": "p"},
            "sasl.kerberos.keytab must be the path of a file; a keytab is not named by a reference",
        ),
        (
            {"sasl.kerberos.keytab": "env:KEYTAB", "sasl.kerberos.principal": "p"},
            r"sasl.kerberos.keytab must be the path of a file; .* \(env:NAME\).* spark-submit --files",
        ),
    ],
)
def test_contradictions_are_refused_on_the_driver(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ClientConfig.from_properties(GSSAPI | given)


def test_a_reference_is_not_resolved_on_the_driver() -> None:
    assert (
        SecurityConfig.from_properties(GSSAPI | {"sasl.jaas.config": "file:/nowhere"}).mechanism == "GSSAPI"
    )


def test_a_kerberos_login_needs_no_mechanism() -> None:
    """GSSAPI is Java's default; without a login the missing name is an error."""
    given = {name: value for name, value in GSSAPI.items() if name != "sasl.mechanism"}
    for login in (
        {"sasl.jaas.config": f"{KRB5_MODULE} required {KEYTAB};"},
        {"sasl.kerberos.principal": "p", "sasl.kerberos.keytab": "/k"},
        {"sasl.jaas.config": "file:/nowhere"},
    ):
        assert ClientConfig.from_properties(given | login).security.mechanism == "GSSAPI"
    with pytest.raises(ConfigError, match=r"needs sasl\.mechanism.*auth\.login\.config names is not read"):
        ClientConfig.from_properties(given)
