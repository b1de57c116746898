"""Security settings for Java's clients on Databricks, Amazon MSK and Azure have the same meaning here, and
load no class.
"""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig, unknown_properties
from spark_kafka_native.kafka.config.jaas import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    parse_jaas,
)
from spark_kafka_native.kafka.config.security_config import SecurityConfig, SecurityProtocol
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.security.credentials import client_credentials

_SECURED = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
_MSK = "software.amazon.msk.auth.iam"
IAM = {
    "bootstrap.servers": "b-1.mine.abc123.c2.kafka.eu-central-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": f"{_MSK}.IAMLoginModule required;",
    "sasl.client.callback.handler.class": f"{_MSK}.IAMClientCallbackHandler",
}


@pytest.mark.parametrize("module", [PLAIN_MODULE, SCRAM_MODULE, OAUTHBEARER_MODULE])
def test_shaded_names_mean_the_same(module: str) -> None:
    assert parse_jaas(f"kafkashaded.{module} required;").module == module
    with pytest.raises(ConfigError, match="must begin with one of these login modules"):
        parse_jaas(f"other.{module} required;")


@pytest.mark.parametrize("shading", ["", "shadedmskiam."])
def test_aws_msk_iam_is_oauthbearer_with_a_token_of_aws(shading: str) -> None:
    given = {name: value.replace(_MSK, f"{shading}{_MSK}") for name, value in IAM.items()}
    config = ClientConfig.from_properties(given).security
    assert (config.mechanism, config.token_provider) == ("OAUTHBEARER", "aws-msk-iam")
    assert config.aws_region == "eu-central-1"
    assert config.warnings == ()
    assert not unknown_properties(given, ClientConfig, ConsumerConfig)


def test_the_library_of_msk_for_oauthbearer_means_the_same() -> None:
    given = IAM | {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{OAUTHBEARER_MODULE} required;",
        "sasl.login.callback.handler.class": f"{_MSK}.IAMOAuthBearerLoginCallbackHandler",
    }
    assert ClientConfig.from_properties(given).security.token_provider == "aws-msk-iam"


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("boot-x.c1.kafka-serverless.us-east-1.amazonaws.com", "us-east-1"),
        ("b-1-public.x.kafka.ap-southeast-2.amazonaws.com", "ap-southeast-2"),
        ("b-1.x.kafka.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("kafka.example.com", None),
    ],
)
def test_the_region_is_in_the_brokers_names(host: str, region: str | None) -> None:
    given = IAM | {"bootstrap.servers": f"a.example:1,{host}:9098"}
    assert ClientConfig.from_properties(given).security.aws_region == region
    chosen = given | {"sasl.oauthbearer.aws.region": "eu-west-3"}
    assert ClientConfig.from_properties(chosen).security.aws_region == "eu-west-3"


def test_a_login_class_of_msk_replaces_no_other_mechanism() -> None:
    """The user and the password were ignored."""
    handler = {"sasl.login.callback.handler.class": f"{_MSK}.IAMOAuthBearerLoginCallbackHandler"}
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    with pytest.raises(ConfigError, match=r"is MSK's, which goes with .* not SCRAM-SHA-512"):
        SecurityConfig.from_properties(given | handler)
    assert SecurityConfig.from_properties(given).mechanism == "SCRAM-SHA-512"
    for mechanism in ("", "OAUTHBEARER", "AWS_MSK_IAM"):
        config = SecurityConfig.from_properties(
            {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism} | handler
        )
        assert (config.mechanism, config.token_provider) == ("OAUTHBEARER", "aws-msk-iam")


def test_a_token_provider_that_is_named_is_that_of_msk_too() -> None:
    given = {name: value for name, value in IAM.items() if name != "sasl.jaas.config"}
    config = SecurityConfig.from_properties(given | {"sasl.oauthbearer.token.provider": "mine:token"})
    assert (config.mechanism, config.token_provider) == ("OAUTHBEARER", "mine:token")


def test_an_empty_mechanism_is_none() -> None:
    """Programs give all settings, some of them empty."""
    assert SecurityConfig.from_properties({"sasl.mechanism": " "}).mechanism is None
    given = {"sasl.mechanism": "", "security.protocol": "SASL_SSL"}
    with pytest.raises(ConfigError, match=r"security.protocol=SASL_SSL needs sasl.mechanism: one of PLAIN"):
        SecurityConfig.from_properties(given)


def test_a_login_module_of_msk_needs_its_mechanism() -> None:
    given = IAM | {"sasl.mechanism": "SCRAM-SHA-512"}
    with pytest.raises(ConfigError, match=r"has the IAMLoginModule, but sasl.mechanism=SCRAM-SHA-512"):
        SecurityConfig.from_properties(given)
    with pytest.raises(ConfigError, match="an option of IAMLoginModule is not known; it may have awsProfile"):
        SecurityConfig.from_properties(
            IAM | {"sasl.jaas.config": f'{_MSK}.IAMLoginModule required awsRoleSecretAccessKey="marked";'}
        )


@pytest.mark.parametrize("shading", ["", "kafkashaded."])
def test_event_hubs_with_entra_id(shading: str) -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{shading}{OAUTHBEARER_MODULE} required clientId="i" clientSecret="s" '
        'scope="https://my.servicebus.windows.net/.default" ssl.protocol="SSL";',
        "sasl.oauthbearer.token.endpoint.url": "https://login.microsoftonline.com/t/oauth2/v2.0/token",
        "sasl.login.callback.handler.class": f"{shading}{_SECURED}",
    }
    config = SecurityConfig.from_properties(given)
    client_id, secret, scope = client_credentials(config)
    assert (client_id, secret.reveal()) == ("i", "s")
    assert scope == "https://my.servicebus.windows.net/.default"
    assert config.warnings == ()


def test_the_value_of_an_extension_may_have_equals_signs() -> None:
    """Base64 ends with them."""
    given = {"sasl.oauthbearer.extensions": "logicalCluster=lkc-1, proof = YQ== "}
    found = SecurityConfig.from_properties(given).extensions
    assert found == (("logicalCluster", "lkc-1"), ("proof", "YQ=="))


def test_another_class_is_refused_with_the_way_there_is() -> None:
    for name in ("sasl.login.callback.handler.class", "sasl.client.callback.handler.class"):
        with pytest.raises(ConfigError, match=rf"{name} must be .*token.provider=module:function"):
            SecurityConfig.from_properties({name: "com.example.Handler"})


def test_an_unsigned_token_is_warned_of_and_is_a_source_like_others() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{OAUTHBEARER_MODULE} required unsecuredLoginStringClaim_sub="alice";',
    }
    (warning,) = SecurityConfig.from_properties(given).warnings
    assert "unsigned token" in warning
    with pytest.raises(
        ConfigError, match=r"given are sasl.oauthbearer.token and sasl.jaas.config with unsec"
    ):
        SecurityConfig.from_properties(given | {"sasl.oauthbearer.token": "t"})
    with pytest.raises(ConfigError, match="none is given"):
        SecurityConfig.from_properties(given | {"sasl.jaas.config": f"{OAUTHBEARER_MODULE} required;"})


SCRAM = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-256", "username": "id", "password": "hmac"}


def test_a_delegation_token_is_a_login_of_scram_only() -> None:
    assert SecurityConfig(**SCRAM, token_auth=True).token_auth
    assert not SecurityConfig(**SCRAM).token_auth
    with pytest.raises(ConfigError, match=r"takes SCRAM-SHA-256 or SCRAM-SHA-512, not sasl.mechanism=PLAIN"):
        SecurityConfig(**SCRAM | {"mechanism": "PLAIN"}, token_auth=True)
    jaas = f'{SCRAM_MODULE} required username="id" password="hmac";'
    with pytest.raises(ConfigError, match=r'in sasl.jaas.config write tokenauth="true"'):
        SecurityConfig(protocol="SASL_SSL", mechanism="SCRAM-SHA-256", jaas_config=jaas, token_auth=True)


@pytest.mark.parametrize("given", [("username",), ("password",), ("username", "password")])
@pytest.mark.parametrize(
    "jaas", [f'{SCRAM_MODULE} required username="other" password="theirs";', "file:/etc/jaas"]
)
def test_a_user_or_a_password_beside_a_login_module_is_refused(given: tuple[str, ...], jaas: str) -> None:
    """Else the client would log in as the user of the login module, also of one in a file."""
    beside = {f"sasl.{name}": SCRAM[name] for name in given}
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas}
    with pytest.raises(ConfigError, match=r"sasl.jaas.config and sasl.username with sasl.password: give one"):
        SecurityConfig.from_properties(login | beside)


@pytest.mark.parametrize(
    ("given", "logs_in_with_token"),
    [
        ({"username": "id", "password": "hmac"}, False),
        ({"username": "id", "password": "hmac", "token_auth": True}, True),
        ({"jaas_config": f'{SCRAM_MODULE} required username="id" password="h" tokenauth="TRUE";'}, True),
        ({"jaas_config": f'{SCRAM_MODULE} required username="id" password="h" tokenauth="false";'}, False),
        ({"jaas_config": "env:JAAS"}, False),
    ],
)
def test_a_login_with_a_delegation_token_is_known_as_one(
    given: dict[str, str | bool], logs_in_with_token: bool
) -> None:
    config = SecurityConfig(protocol="SASL_SSL", mechanism="SCRAM-SHA-256", **given)  # type: ignore[arg-type]
    assert config.logs_in_with_token is logs_in_with_token


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("given", [{}, {"username": "me"}, {"password": "marked"}])
def test_a_user_without_a_password_is_refused_on_the_driver(mechanism: str, given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"needs sasl\.username and sasl\.password, or sasl\.jaas\.config"):
        SecurityConfig(protocol="SASL_SSL", mechanism=mechanism, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("module", [PLAIN_MODULE, SCRAM_MODULE])
@pytest.mark.parametrize("options", ["", 'username="me"', 'password="marked"'])
def test_half_a_login_is_refused_on_the_driver(module: str, options: str) -> None:
    mechanism = "PLAIN" if module == PLAIN_MODULE else "SCRAM-SHA-256"
    with pytest.raises(ConfigError, match=r"^sasl\.jaas\.config lacks username or password$"):
        SecurityConfig(protocol="SASL_SSL", mechanism=mechanism, jaas_config=f"{module} required {options};")


@pytest.mark.parametrize(
    "given",
    [
        {"ssl.keystore.location": "me.p12"},
        {"ssl.certificate.location": "me.pem", "ssl.key.location": "key.pem"},
        {"ssl.keystore.certificate.chain": "chain", "ssl.keystore.key": "key"},
    ],
)
def test_each_way_to_name_a_certificate_presents_one(given: dict[str, str]) -> None:
    assert SecurityConfig.from_properties(given).presents_certificate
    assert not SecurityConfig.from_properties({"ssl.truststore.location": "ca.pem"}).presents_certificate


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"ssl.truststore.location": "ca.pem", "ssl.ca.pem": "text"},
            "ssl.truststore.location and ssl.truststore.certificates: give one of them",
        ),
        (
            {"ssl.keystore.location": "me.p12", "ssl.certificate.location": "me.pem"},
            "ssl.keystore.location and ssl.certificate.location each name a client certificate",
        ),
        (
            {
                "ssl.keystore.location": "me.p12",
                "ssl.keystore.certificate.chain": "chain",
                "ssl.keystore.key": "key",
            },
            "ssl.keystore.location and ssl.keystore.certificate.chain each name a client certificate",
        ),
        ({"ssl.key.location": "key.pem"}, "ssl.key.location needs ssl.certificate.location"),
        ({"ssl.keystore.certificate.chain": "chain"}, "must be given together"),
        ({"ssl.keystore.key": "key"}, "must be given together"),
    ],
)
def test_certificates_that_are_named_twice_or_by_half_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SecurityConfig.from_properties({"security.protocol": "SSL"} | given)


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"mechanism": "PLAIN", "username": "me", "password": "marked"}, True),
        ({"mechanism": "OAUTHBEARER", "token": "marked"}, True),
        ({"mechanism": "SCRAM-SHA-256", "username": "me", "password": "marked"}, False),
    ],
)
def test_credentials_in_clear_are_warned_of(given: dict[str, str], warned: bool) -> None:
    """SCRAM sends none."""
    for protocol, in_clear in (("SASL_PLAINTEXT", warned), ("SASL_SSL", False)):
        found = SecurityConfig(protocol=protocol, **given).warnings  # type: ignore[arg-type]
        assert any("sends credentials that everybody on the way can read" in one for one in found) is in_clear
        assert "marked" not in repr(found)


@pytest.mark.parametrize(("protocol", "advised"), [("PLAINTEXT", "SSL"), ("SASL_PLAINTEXT", "SASL_SSL")])
def test_tls_settings_of_a_connection_in_clear_are_warned_of(protocol: str, advised: str) -> None:
    """With SASL they look as if records were encrypted."""
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "me", "sasl.password": "p"}
    given = {"ssl.truststore.location": "ca.pem"} | (login if protocol.startswith("SASL") else {})
    (warning,) = SecurityConfig.from_properties(given | {"security.protocol": protocol}).warnings
    assert warning.startswith(f"ssl.truststore.location without effect: security.protocol={protocol} does")
    assert warning.endswith(f"; set {advised}")
    assert SecurityConfig.from_properties(given | {"security.protocol": advised}).warnings == ()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_login_that_is_not_made_is_warned_of(protocol: str) -> None:
    """With TLS alone the broker knows the client by its certificate, if at all."""
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "p"}
    (warning,) = SecurityConfig.from_properties(login | {"security.protocol": protocol}).warnings
    assert warning == f"sasl.mechanism=PLAIN does nothing with security.protocol={protocol}; set SASL_SSL"


@pytest.mark.parametrize("half", ["id", "secret"])
def test_half_of_the_client_credentials_is_refused_on_the_driver(half: str) -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://token/",
        f"sasl.oauthbearer.client.credentials.client.{half}": "marked",
    }
    with pytest.raises(ConfigError, match=r"needs .*\.client\.id and .*\.client\.secret$") as caught:
        SecurityConfig.from_properties(given)
    assert "marked" not in str(caught.value)


_ANY_CERTIFICATE = "enable.ssl.certificate.verification=false: ANY certificate is accepted"
_ANY_HOST = "ssl.endpoint.identification.algorithm is empty: a broker's certificate may be for any"


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({}, None),
        ({"ssl.endpoint.identification.algorithm": "https"}, None),
        ({"ssl.endpoint.identification.algorithm": ""}, _ANY_HOST),
        ({"ssl.endpoint.identification.algorithm": "none"}, _ANY_HOST),
        ({"enable.ssl.certificate.verification": "false"}, _ANY_CERTIFICATE),
        (
            {
                "enable.ssl.certificate.verification": "false",
                "ssl.endpoint.identification.algorithm": "",
            },
            _ANY_CERTIFICATE,
        ),
    ],
)
def test_each_check_of_the_broker_that_is_left_out_is_warned_of(
    given: dict[str, str], warning: str | None
) -> None:
    found = SecurityConfig.from_properties(given | {"security.protocol": "SSL"}).warnings
    assert len(found) == (warning is not None)
    assert all(one.startswith(str(warning)) for one in found)


@pytest.mark.parametrize(
    ("versions", "allowed"),
    [
        ("TLSv1.3", ("TLSv1.3",)),
        (" TLSv1.3 , TLSv1.2,", ("TLSv1.2", "TLSv1.3")),
        ("TLSv1,TLSv1.1,SSLv3,TLSv1.2", ("TLSv1.2",)),
        ("TLSv1.1", None),
        ("TLSv1.2,TLS1.3", None),
        ("", None),
    ],
)
def test_the_versions_of_tls_that_are_named_and_no_others(
    versions: str, allowed: tuple[str, ...] | None
) -> None:
    """A misspelt one is not left out silently."""
    given = {"ssl.enabled.protocols": versions}
    if allowed is not None:
        assert SecurityConfig.from_properties(given).tls_versions == allowed
        return
    with pytest.raises(ConfigError, match=r"ssl\.enabled\.protocols must name TLSv1\.2 or TLSv1\.3"):
        SecurityConfig.from_properties(given)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("ssl.endpoint.identification.algorithm", "https", "check_hostname", True),
        ("ssl.endpoint.identification.algorithm", "HTTPS", "check_hostname", True),
        ("ssl.endpoint.identification.algorithm", " Https ", "check_hostname", True),
        ("ssl.endpoint.identification.algorithm", "None", "check_hostname", False),
        ("ssl.endpoint.identification.algorithm", " ", "check_hostname", False),
        ("security.protocol", "ssl", "protocol", SecurityProtocol.SSL),
        ("security.protocol", " Plaintext", "protocol", SecurityProtocol.PLAINTEXT),
        ("sasl.mechanism", "scram-sha-512", "mechanism", "SCRAM-SHA-512"),
        ("ssl.keystore.type", "pkcs12", "keystore_type", "PKCS12"),
        ("ssl.truststore.type", "pem ", "truststore_type", "PEM"),
        ("sasl.oauthbearer.method", "OIDC", "oauth_method", "oidc"),
        ("enable.ssl.certificate.verification", "TRUE", "verify_certificate", True),
        ("enable.ssl.certificate.verification", "False", "verify_certificate", False),
        ("sasl.tokenauth", "True", "token_auth", True),
    ],
)
def test_the_case_of_a_choice_does_not_matter(name: str, text: str, field: str, value: object) -> None:
    """Where `https` in upper case counted as another one, no host name would be checked."""
    assert getattr(SecurityConfig.from_properties({name: text}), field) == value
