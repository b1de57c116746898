"""The credentials of a `SecurityConfig`, with references resolved now: ``sasl.jaas.config``, the client
credentials of a token endpoint, and the unsecured token of test brokers.
"""

from __future__ import annotations

import base64
import json
import time
from typing import Any, Final

from ..config.jaas import UNSECURED, JaasConfig, parse_jaas
from ..config.secret import Secret, is_reference
from ..config.security_config import SecurityConfig, check_module
from ..errors import ConfigError
from .config_providers import resolve

OPTIONS_WITH_REFERENCES: Final = ("username", "password", "clientId", "clientSecret", "scope")
"""The options of ``sasl.jaas.config`` that may be references themselves."""


_INCOMPLETE: Final = "the token endpoint needs a client id and a client secret; see docs/security.md"


def client_credentials(security: SecurityConfig) -> tuple[str, Secret, str | None]:
    """Client id, client secret and scope for a token endpoint."""
    jaas = jaas_of(security)
    client_id, scope = client_of(security, jaas)
    client_secret = security.client_secret or option(jaas, "clientSecret")
    if client_secret is None:
        raise ConfigError(_INCOMPLETE)
    name = "sasl.oauthbearer.client.credentials.client.secret"
    return client_id, Secret(resolve(name, client_secret)), scope


def client_of(security: SecurityConfig, jaas: JaasConfig | None) -> tuple[str, str | None]:
    """Client id and scope for a token endpoint: those of the tokens, also after the secret was rotated."""
    client_id = security.client_id or revealed(jaas, "clientId")
    if client_id is None:
        raise ConfigError(_INCOMPLETE)
    scope = security.scope or revealed(jaas, "scope")
    return (
        resolve("sasl.oauthbearer.client.credentials.client.id", client_id),
        resolve("sasl.oauthbearer.scope", scope) if scope else None,
    )


def jaas_of(security: SecurityConfig) -> JaasConfig | None:
    """The current ``sasl.jaas.config``, checked against the mechanism; None if it is not set."""
    if security.jaas_config is None or security.mechanism is None:
        return None
    parsed = parse_jaas(resolve("sasl.jaas.config", security.jaas_config))
    check_module(parsed, security)
    return parsed


def option(jaas: JaasConfig | None, name: str) -> Secret | None:
    """The option ``name`` of ``jaas``; None if it is not set."""
    return None if jaas is None else jaas.option(name)


def revealed(jaas: JaasConfig | None, name: str) -> str | None:
    """The option ``name`` as text, for an option that is not a secret."""
    found = option(jaas, name)
    return None if found is None else found.reveal()


def as_given(security: SecurityConfig, user: str | None, name: str) -> str | None:
    """The user as the settings have it, for errors: ``user``, or the option ``name`` of ``sasl.jaas.config``.
    Of a reference that is the reference itself, not the value that it reads."""
    jaas = security.jaas_config
    if user is not None or jaas is None:
        return user
    return jaas.reveal() if is_reference(jaas.reveal()) else revealed(jaas_of(security), name)


_LATEST_S: Final = 1e12
"""Some 30,000 years: a later time is none."""


def seconds(number: object, *, per_second: int = 1) -> float | None:
    """A time that a token, its source or an endpoint has given; None if it is no number, or one that no clock
    shows.
    """
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    # Not a float at once: an int of JSON may have thousands of digits. A NaN compares as false.
    return number / per_second if abs(number) < _LATEST_S * per_second else None


_LIFETIME_S: Final = 3600


def unsecured_token(jaas: JaasConfig | None) -> tuple[str, float]:
    """The unsigned token that Java's clients make of ``unsecuredLogin...`` options, for test brokers, with
    its expiry in seconds since 1970. It proves nothing.

    Raises `ConfigError`, which shows no value.
    """
    if jaas is None:
        raise ConfigError("sasl.mechanism=OAUTHBEARER: nothing says where the token comes from")
    now = time.time()
    expires_at = now + _number(revealed(jaas, f"{UNSECURED}LifetimeSeconds") or str(_LIFETIME_S))
    claims: dict[str, Any] = {"iat": now, "exp": expires_at}
    for option, secret in jaas.options:
        kind, underscore, name = option.removeprefix(UNSECURED).partition("_")
        if underscore and name and option.startswith(UNSECURED):
            claims[name] = _claim(kind, secret.reveal())
    principal = revealed(jaas, f"{UNSECURED}PrincipalClaimName") or "sub"
    if not claims.get(principal):
        raise ConfigError(f"sasl.jaas.config: {UNSECURED}StringClaim_{principal} must name the principal")
    return f"{_part({'alg': 'none'})}.{_part(claims)}.", expires_at


def _claim(kind: str, text: str) -> Any:
    if kind == "NumberClaim":
        return _number(text)
    if kind == "ListClaim":  # its first character is the separator
        return [part for part in text[1:].split(text[0]) if part] if text else []
    return text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"sasl.jaas.config: a number of {UNSECURED}... is none") from None


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
