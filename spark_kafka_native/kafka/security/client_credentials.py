"""`client_credentials`: who asks a token endpoint for tokens; and what ``sasl.jaas.config`` says."""

from __future__ import annotations

from ..config.jaas import JaasConfig, parse_jaas
from ..config.secret import Secret
from ..config.security_config import SecurityConfig, check_module
from ..errors import ConfigError
from .references import resolve


def client_credentials(security: SecurityConfig) -> tuple[str, Secret, str | None]:
    """Id, secret and scope for a token endpoint."""
    jaas = jaas_of(security)
    client_id = security.client_id or revealed(jaas, "clientId")
    client_secret = security.client_secret or option(jaas, "clientSecret")
    if client_id is None or client_secret is None:
        raise ConfigError("the token endpoint needs a client id and a client secret; see docs/security.md")
    return (
        resolve("sasl.oauthbearer.client.credentials.client.id", client_id),
        Secret(resolve("sasl.oauthbearer.client.credentials.client.secret", client_secret)),
        security.scope or revealed(jaas, "scope"),
    )


def jaas_of(security: SecurityConfig) -> JaasConfig | None:
    """``sasl.jaas.config`` as it is now, checked against the mechanism; None where it is not given."""
    if security.jaas_config is None or security.mechanism is None:
        return None
    parsed = parse_jaas(resolve("sasl.jaas.config", security.jaas_config))
    check_module(parsed, security)
    return parsed


def option(jaas: JaasConfig | None, name: str) -> Secret | None:
    """The option ``name`` of ``jaas``; None where there is none."""
    return None if jaas is None else jaas.option(name)


def revealed(jaas: JaasConfig | None, name: str) -> str | None:
    """The same as text, for what is no secret."""
    found = option(jaas, name)
    return None if found is None else found.reveal()
