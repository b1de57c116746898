"""`SecurityConfig`: the settings for encryption and authentication. Plain data: reads no file and asks no
server.

Properties have Java's names, with librdkafka's as aliases. Contradictions are refused at once, on the driver;
files, references and tokens are read where they are used (`security`).
"""

# ruff: noqa: RUF009 - property_field and secret_field return fields

from __future__ import annotations

import difflib
import enum
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self
from urllib.parse import urlsplit

from ..errors import ConfigError
from .jaas import (
    IAM_MODULE,
    KRB5_MODULE,
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    JaasConfig,
    parse_jaas,
    without_shading,
)
from .kerberos_login import kerberos_login
from .properties import Properties, boolean, property_field, secret_field, text, text_or_reference
from .secret import Secret, is_reference


class SecurityProtocol(enum.Enum):
    """The protocol of a listener; Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


MECHANISMS: Final[Mapping[str, str]] = {
    "PLAIN": PLAIN_MODULE,
    "SCRAM-SHA-256": SCRAM_MODULE,
    "SCRAM-SHA-512": SCRAM_MODULE,
    "OAUTHBEARER": OAUTHBEARER_MODULE,
    "GSSAPI": KRB5_MODULE,
}
"""The supported mechanisms, each with its login module in Java."""
_AWS_MECHANISM: Final = "AWS_MSK_IAM"
"""The mechanism of Amazon's Java library: the same credentials as with OAUTHBEARER, which MSK accepts as
well."""
MSK_IAM: Final = "aws-msk-iam"
"""The token provider that replaces it."""
_MSK: Final = "software.amazon.msk.auth.iam"
_OIDC_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
_MSK_HANDLERS: Final = (f"{_MSK}.IAMClientCallbackHandler", f"{_MSK}.IAMOAuthBearerLoginCallbackHandler")
_TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


def _security_protocol(text: str) -> SecurityProtocol:
    try:
        return SecurityProtocol[text.strip().upper()]
    except KeyError:
        raise ValueError(f"must be one of {', '.join(p.name for p in SecurityProtocol)}") from None


def _mechanism(text: str) -> str | None:
    name = text.strip().upper()
    if not name:
        return None
    if name not in MECHANISMS and name != _AWS_MECHANISM:
        raise ValueError(f"must be one of {', '.join(MECHANISMS)}")
    return name


def _handler(text: str) -> str:
    name = without_shading(text.strip())
    if name not in (*_OIDC_HANDLERS, *_MSK_HANDLERS):
        raise ValueError(
            "must be a class that stands for a token endpoint or for MSK, as no other can be loaded outside "
            "Java (sasl.oauthbearer.token.provider=module:function is the way here)"
        )
    return name


def _checks_hostname(text: str) -> bool:
    """``ssl.endpoint.identification.algorithm``: https checks the broker's host name, empty (or none) does
    not.
    """
    if text.strip().lower() not in ("", "none", "https"):
        raise ValueError("must be https, or empty to accept a certificate of any host name")
    return text.strip().lower() == "https"


def _store_type(text: str) -> str:
    if text.strip().upper() not in ("PEM", "PKCS12", "JKS"):
        raise ValueError("must be PEM or PKCS12")
    return text.strip().upper()


def _tls_versions(text: str) -> tuple[str, ...]:
    asked = {version.strip() for version in text.split(",") if version.strip()}
    # Java's clients also list older versions that they refuse to use.
    found = tuple(version for version in _TLS_VERSIONS if version in asked)
    if not found or any(not version.startswith(("TLSv1", "SSLv")) for version in asked):
        raise ValueError(f"must name {' or '.join(_TLS_VERSIONS)} (older ones are not spoken)")
    return found


def _extensions(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if any(not equals or not name for name, equals, _ in pairs):
        raise ValueError("must be name=value, comma-separated")
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def _oauth_method(text: str) -> str:
    if text.strip().lower() not in ("default", "oidc"):
        raise ValueError("must be default or oidc")
    return text.strip().lower()


def _cipher_suites(text: str) -> tuple[str, ...]:
    names = tuple(name for name in re.split(r"[,:\s]+", text) if name)
    if not all(re.fullmatch(r"[A-Za-z0-9_-]+", name) for name in names):
        raise ValueError("must be names of cipher suites, comma-separated")
    return names


_PROTOCOL: Final = "security.protocol"
_OIDC: Final = "sasl.oauthbearer.client.credentials"


@dataclass(frozen=True, kw_only=True)
class SecurityConfig(Properties):
    """Settings for encryption and authentication. Texts may be references, ``env:NAME`` or ``file:/path``;
    locations are paths on every machine that connects.
    """

    protocol: SecurityProtocol = property_field(_PROTOCOL, SecurityProtocol.PLAINTEXT, _security_protocol)
    """``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``: the protocol of the listener in
    ``bootstrap.servers``."""
    ca_location: str | None = property_field(
        "ssl.truststore.location", None, text, aliases=("ssl.ca.location",)
    )
    """File with the trusted certificates, PEM or PKCS12. Default: the system's."""
    ca_pem: str | None = property_field(
        "ssl.truststore.certificates", None, text_or_reference, aliases=("ssl.ca.pem",)
    )
    """The same, as PEM text (KIP-651)."""
    truststore_password: Secret | None = secret_field("ssl.truststore.password")
    """Password of a PKCS12 truststore."""
    truststore_type: str | None = property_field("ssl.truststore.type", None, _store_type)
    """``PEM`` or ``PKCS12``. Default: by the file's name (``.p12``, ``.pfx``) and content."""
    keystore_location: str | None = property_field("ssl.keystore.location", None, text)
    """File with the client's certificate chain and private key, PEM or PKCS12."""
    keystore_password: Secret | None = secret_field("ssl.keystore.password")
    """Password of a PKCS12 keystore."""
    keystore_type: str | None = property_field("ssl.keystore.type", None, _store_type)
    """``PEM`` or ``PKCS12``. Default: by the file's name (``.p12``, ``.pfx``) and content."""
    certificate_location: str | None = property_field("ssl.certificate.location", None, text)
    """File with the client's certificate chain alone, PEM (librdkafka's name)."""
    key_location: str | None = property_field("ssl.key.location", None, text)
    """File with the client's private key alone, PEM (librdkafka's name)."""
    certificate_pem: str | None = property_field(
        "ssl.keystore.certificate.chain", None, text_or_reference, aliases=("ssl.certificate.pem",)
    )
    """The client's certificate chain, as PEM text."""
    key_pem: Secret | None = secret_field(
        "ssl.keystore.key", aliases=("ssl.keystore.key.secret", "ssl.key.pem")
    )
    """The client's private key, as PEM text."""
    key_password: Secret | None = secret_field("ssl.key.password")
    """Password of the client's private key."""
    tls_versions: tuple[str, ...] = property_field("ssl.enabled.protocols", _TLS_VERSIONS, _tls_versions)
    """Allowed versions of TLS, comma-separated."""
    cipher_suites: tuple[str, ...] = property_field("ssl.cipher.suites", (), _cipher_suites)
    """Allowed cipher suites, by IANA's or OpenSSL's names, comma-separated. One suite of TLS 1.3 allows all
    suites of TLS 1.3; without one, only TLS 1.2 is used."""
    check_hostname: bool = property_field("ssl.endpoint.identification.algorithm", True, _checks_hostname)
    """``https`` verifies that the certificate belongs to the broker's host; empty accepts any host name."""
    verify_certificate: bool = property_field("enable.ssl.certificate.verification", True, boolean)
    """``false`` (librdkafka) accepts any certificate: an attacker who can redirect the connection can read
    and change everything."""
    mechanism: str | None = property_field("sasl.mechanism", None, _mechanism, aliases=("sasl.mechanisms",))
    """The mechanism for a SASL listener: ``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512``, ``OAUTHBEARER`` or
    ``GSSAPI`` (Kerberos). ``AWS_MSK_IAM`` is ``OAUTHBEARER`` with the token provider ``aws-msk-iam``."""
    username: str | None = property_field("sasl.username", None, text_or_reference)
    """User name, for PLAIN and SCRAM."""
    password: Secret | None = secret_field("sasl.password")
    """Password, for PLAIN and SCRAM."""
    token_auth: bool = property_field("sasl.tokenauth", False, boolean)
    """``true``: user name and password, for SCRAM, are id and HMAC of a delegation token (KIP-48), as with
    ``tokenauth="true"`` in ``sasl.jaas.config``."""
    jaas_config: Secret | None = secret_field("sasl.jaas.config", aliases=("sasl.jaas.config.secret",))
    """User name and password, OAuth settings, or keytab and principal, as Java's clients take them: one login
    module with its options."""
    kerberos_service: str | None = property_field("sasl.kerberos.service.name", None, text)
    """First part of the brokers' principals, for GSSAPI. Default: ``kafka``."""
    kerberos_principal: str | None = property_field("sasl.kerberos.principal", None, text_or_reference)
    """The client's principal, for GSSAPI (librdkafka's name)."""
    kerberos_keytab: str | None = property_field("sasl.kerberos.keytab", None, text)
    """File with the principal's key, for GSSAPI (librdkafka's name). Without it the machine's ticket cache is
    used."""
    login_handler: str | None = property_field("sasl.login.callback.handler.class", None, _handler)
    """Java's class for OIDC client credentials, or MSK's. It is not loaded: its name determines the source of
    tokens."""
    client_handler: str | None = property_field("sasl.client.callback.handler.class", None, _handler)
    """MSK's ``IAMClientCallbackHandler``. It has no effect: the mechanism ``AWS_MSK_IAM`` is enough."""
    token: Secret | None = secret_field("sasl.oauthbearer.token")
    """The OAuth token itself; ``file:/path`` is read for each connection."""
    token_provider: str | None = property_field("sasl.oauthbearer.token.provider", None, text)
    """``module:function``, a name given to `register_token_provider`, or ``aws-msk-iam``."""
    aws_region: str | None = property_field("sasl.oauthbearer.aws.region", None, text)
    """Region of the MSK cluster, for ``aws-msk-iam``."""
    token_endpoint_url: str | None = property_field("sasl.oauthbearer.token.endpoint.url", None, text)
    """The endpoint that issues tokens for OIDC client credentials."""
    client_id: str | None = property_field(
        f"{_OIDC}.client.id", None, text_or_reference, aliases=("sasl.oauthbearer.client.id",)
    )
    """OIDC client id."""
    client_secret: Secret | None = secret_field(
        f"{_OIDC}.client.secret", aliases=("sasl.oauthbearer.client.secret",)
    )
    """OIDC client secret."""
    scope: str | None = property_field("sasl.oauthbearer.scope", None, text_or_reference)
    """OAuth scope to request."""
    extensions: tuple[tuple[str, str], ...] = property_field("sasl.oauthbearer.extensions", (), _extensions)
    """SASL extensions to send with the token, ``name=value``, comma-separated (KIP-342)."""
    oauth_method: str = property_field("sasl.oauthbearer.method", "default", _oauth_method)
    """``oidc`` gets tokens with client credentials (librdkafka's name); ``default`` follows from the other
    properties."""
    https_ca_location: str | None = property_field("https.ca.location", None, text)
    """File of trusted PEM certificates for the token endpoint. Default: the system's."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], **values: Any) -> Self:
        """As `Properties.from_properties`. A misspelt ``security.protocol`` is an error, because ignoring it
        would mean PLAINTEXT.
        """
        for name in properties:
            if name != _PROTOCOL and difflib.get_close_matches(str(name).lower(), [_PROTOCOL], cutoff=0.9):
                raise ConfigError(f"unknown property {name}: did you mean {_PROTOCOL}?")
        return super().from_properties(properties, **values)

    def __post_init__(self) -> None:
        super().__post_init__()
        _settle_msk(self)
        _settle_kerberos(self)
        _check_stores(self)
        if self.uses_sasl:
            _check_sasl(self)

    @property
    def encrypted(self) -> bool:
        """True if connections use TLS."""
        return self.protocol in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """True if connections authenticate with a SASL mechanism."""
        return self.protocol in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    @property
    def logs_in_with_token(self) -> bool:
        """True if it logs in with a delegation token; not known of a ``sasl.jaas.config`` that is a
        reference.
        """
        jaas = _jaas_of(self) if self.uses_sasl else None
        of_jaas = None if jaas is None else jaas.option("tokenauth")
        return self.token_auth or (of_jaas is not None and of_jaas.reveal().lower() == "true")

    @property
    def presents_certificate(self) -> bool:
        """True if the client has a certificate."""
        return bool(self.keystore_location or self.certificate_location or self.certificate_pem)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for every start: settings that weaken the protection, or have no effect."""
        found = []
        if self.encrypted and not self.verify_certificate:
            found.append(
                "enable.ssl.certificate.verification=false: ANY certificate is accepted. Whoever can "
                "redirect a "
                "connection can read and change everything on it, passwords and records alike; never in "
                "production"
            )
        elif self.encrypted and not self.check_hostname:
            found.append(
                "ssl.endpoint.identification.algorithm is empty: a broker's certificate may be for any "
                "host name, as long as a trusted authority issued it"
            )
        if self.uses_sasl and not self.encrypted and self.mechanism in ("PLAIN", "OAUTHBEARER"):
            found.append(
                f"security.protocol=SASL_PLAINTEXT with {self.mechanism} sends credentials that "
                f"everybody on the way can read and use; set SASL_SSL"
            )
        if self.mechanism is not None and not self.uses_sasl:
            found.append(
                f"sasl.mechanism={self.mechanism} does nothing with "
                f"security.protocol={self.protocol.name}; set SASL_SSL"
            )
        if self.uses_sasl and (jaas := _jaas_of(self)) is not None and jaas.is_unsecured:
            found.append(
                "sasl.jaas.config makes an unsigned token (unsecuredLogin...): with a broker that takes it, "
                "anybody can be anyone; for tests only"
            )
        found += _without_effect(self)
        return tuple(found)


def _without_effect(config: SecurityConfig) -> list[str]:
    """A warning if the connection is not encrypted although TLS properties are set."""
    given = [
        f.metadata["property"]
        for f in fields(config)
        if f.metadata["property"].startswith("ssl.") and getattr(config, f.name) != f.default
    ]
    if config.encrypted or not given:
        return []
    return [
        f"{', '.join(given)} without effect: security.protocol={config.protocol.name} does not encrypt; set "
        f"{config.protocol.name.replace('PLAINTEXT', 'SSL')}"
    ]


def takes_reference(name: str) -> bool:
    """True if the value of the property ``name`` may be a reference."""
    return any(
        name in (f.metadata["property"], *f.metadata["aliases"])
        for f in fields(SecurityConfig)
        if f.metadata["parse"] in (Secret, text_or_reference)
    )


def java_keystore(setting: str, location: str) -> ConfigError:
    """The error for a file in a format that only Java reads."""
    name = setting.split(".")[1]
    return ConfigError(
        f"{setting}={location} is a Java keystore (JKS), which only Java reads; convert it: "
        f"keytool -importkeystore -srckeystore {location} -destkeystore {name}.p12 -deststoretype "
        f"PKCS12, then openssl pkcs12 -in {name}.p12 -out {name}.pem -nodes, and give {name}.pem (a file "
        f"with PKCS12 in it needs ssl.{name}.type=PKCS12)"
    )


def _check_stores(config: SecurityConfig) -> None:
    for name, location, kind in (
        ("truststore", config.ca_location, config.truststore_type),
        ("keystore", config.keystore_location, config.keystore_type),
    ):
        is_java = kind == "JKS" or (kind is None and location and location.lower().endswith(".jks"))
        # Java writes PKCS12 into such files, too: one that is here is looked at when it is read.
        if is_java and config.encrypted and location and not os.path.exists(location):
            raise java_keystore(f"ssl.{name}.location", location)
    if (config.certificate_pem is None) != (config.key_pem is None):
        raise ConfigError("ssl.keystore.certificate.chain and ssl.keystore.key must be given together")
    if config.key_location and not config.certificate_location:
        raise ConfigError("ssl.key.location needs ssl.certificate.location, the certificate of that key")
    ways = {
        "ssl.keystore.location": config.keystore_location,
        "ssl.certificate.location": config.certificate_location,
        "ssl.keystore.certificate.chain": config.certificate_pem,
    }
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} each name a client certificate: give one of them")
    if config.ca_location is not None and config.ca_pem is not None:
        raise ConfigError("ssl.truststore.location and ssl.truststore.certificates: give one of them")


_NO_FILE: Final = (
    "The file that Java's java.security.auth.login.config names is not read: its entry goes into "
    "sasl.jaas.config"
)


def _check_sasl(config: SecurityConfig) -> None:
    if config.mechanism is None:
        raise ConfigError(
            f"security.protocol={config.protocol.name} needs sasl.mechanism: one of {', '.join(MECHANISMS)}. "
            f"{_NO_FILE}"
        )
    jaas = _jaas_of(config)
    if jaas is not None:
        check_module(jaas, config)
    if config.token_auth:
        _check_token_login(config)
    if config.mechanism == "OAUTHBEARER":
        _check_token_source(config, jaas)
    elif config.mechanism == "GSSAPI":
        _check_kerberos(config, jaas)
    else:
        _check_password(config, jaas)


def _check_password(config: SecurityConfig, jaas: JaasConfig | None) -> None:
    direct = config.username is not None or config.password is not None
    if direct and config.jaas_config is not None:
        raise ConfigError("sasl.jaas.config and sasl.username with sasl.password: give one of them")
    if config.jaas_config is None and (config.username is None or config.password is None):
        raise ConfigError(
            f"sasl.mechanism={config.mechanism} needs sasl.username and sasl.password, or sasl.jaas.config. "
            f"{_NO_FILE}"
        )
    if jaas is not None and (jaas.option("username") is None or jaas.option("password") is None):
        raise ConfigError("sasl.jaas.config lacks username or password")


def _check_token_login(config: SecurityConfig) -> None:
    if MECHANISMS.get(config.mechanism or "") != SCRAM_MODULE:
        raise ConfigError(
            "sasl.tokenauth=true logs in with a delegation token, which takes SCRAM-SHA-256 or "
            f"SCRAM-SHA-512, not sasl.mechanism={config.mechanism}"
        )
    if config.jaas_config is not None:
        raise ConfigError(
            "sasl.tokenauth=true goes with sasl.username and sasl.password; in sasl.jaas.config write "
            'tokenauth="true"'
        )


def _check_kerberos(config: SecurityConfig, jaas: JaasConfig | None) -> None:
    if config.username is not None or config.password is not None:
        raise ConfigError(
            "sasl.mechanism=GSSAPI takes no sasl.username and sasl.password: give sasl.kerberos.principal "
            "and sasl.kerberos.keytab"
        )
    direct = config.kerberos_principal is not None or config.kerberos_keytab is not None
    if direct and config.jaas_config is not None:
        raise ConfigError(
            "sasl.jaas.config and sasl.kerberos.principal with sasl.kerberos.keytab: give one of them"
        )
    if jaas is not None or config.jaas_config is None:
        kerberos_login(jaas, config.kerberos_principal, config.kerberos_keytab, config.kerberos_service)


def _jaas_of(config: SecurityConfig) -> JaasConfig | None:
    """The parsed ``sasl.jaas.config``; None if it is a reference, which is resolved where it is used."""
    if config.jaas_config is None or is_reference(config.jaas_config.reveal()):
        return None
    return parse_jaas(config.jaas_config.reveal())


def _settle_msk(config: SecurityConfig) -> None:
    """Translate the mechanism and class names of MSK's Java library."""
    if config.mechanism == _AWS_MECHANISM or config.login_handler in _MSK_HANDLERS:
        if config.uses_sasl and config.mechanism not in (None, "OAUTHBEARER", _AWS_MECHANISM):
            raise ConfigError(
                f"sasl.login.callback.handler.class is MSK's, which goes with sasl.mechanism=OAUTHBEARER or "
                f"{_AWS_MECHANISM}, not {config.mechanism}: leave one of them out"
            )
        object.__setattr__(config, "mechanism", "OAUTHBEARER")
        if config.token_provider is None:
            object.__setattr__(config, "token_provider", MSK_IAM)


def _settle_kerberos(config: SecurityConfig) -> None:
    """Java's default for the mechanism is GSSAPI; here only where there is, or may be, a login for it."""
    if config.mechanism is not None or not config.uses_sasl:
        return
    jaas = _jaas_of(config)
    has_login = config.kerberos_principal is not None or config.kerberos_keytab is not None
    has_reference = jaas is None and config.jaas_config is not None
    if has_login or has_reference or (jaas is not None and jaas.module == KRB5_MODULE):
        object.__setattr__(config, "mechanism", "GSSAPI")


def check_module(jaas: JaasConfig, config: SecurityConfig) -> None:
    """Raise `ConfigError` if the login module belongs to another mechanism."""
    mechanism = config.mechanism or ""
    modules = [MECHANISMS[mechanism], *([IAM_MODULE] if config.token_provider == MSK_IAM else [])]
    if jaas.module not in modules:
        raise ConfigError(
            f"sasl.jaas.config has the {jaas.module.rpartition('.')[2]}, but sasl.mechanism={mechanism} "
            f"goes with {' or '.join(modules)}"
        )


def _check_token_source(config: SecurityConfig, jaas: JaasConfig | None) -> None:
    ways = {
        "sasl.oauthbearer.token": config.token,
        "sasl.oauthbearer.token.provider": config.token_provider,
        "sasl.oauthbearer.token.endpoint.url": config.token_endpoint_url,
    }
    given = [name for name, value in ways.items() if value is not None]
    if jaas is not None and jaas.is_unsecured:
        given.append("sasl.jaas.config with unsecuredLogin...")
    if len(given) != 1:
        found = "none is given" if not given else f"given are {' and '.join(given)}"
        raise ConfigError(
            f"sasl.mechanism=OAUTHBEARER takes its token from one of {', '.join(ways)}; {found}"
        )
    if config.token_endpoint_url is None:
        return
    check_token_url(config.token_endpoint_url)
    if config.jaas_config is None and (config.client_id is None or config.client_secret is None):
        raise ConfigError(
            f"sasl.oauthbearer.token.endpoint.url needs {_OIDC}.client.id and {_OIDC}.client.secret"
        )


def check_token_url(url: str) -> None:
    """Raise `ConfigError` unless ``url`` is https, or http to this machine; errors show no more than its
    scheme.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError("sasl.oauthbearer.token.endpoint.url is not a URL") from None
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0:
        raise ConfigError("sasl.oauthbearer.token.endpoint.url must be https://host/path")
    if parts.username or parts.password or any(letter.isspace() or ord(letter) < 32 for letter in url):
        raise ConfigError("sasl.oauthbearer.token.endpoint.url must have no credentials and no spaces in it")
    if parts.scheme == "http" and parts.hostname not in LOCAL_HOSTS:
        raise ConfigError(
            f"sasl.oauthbearer.token.endpoint.url: http sends the client secret in clear to "
            f"{parts.hostname}; use https"
        )
