"""Who a connection authenticates as: the settings of a `SecurityConfig`, resolved, as a SASL mechanism."""

from __future__ import annotations

from ..config.jaas import JaasConfig
from ..config.secret import Secret
from ..config.security_config import SecurityConfig
from ..errors import ConfigError
from ..runtime.deadline import Deadline
from .client_credentials import jaas_of, option, revealed
from .mechanism import Mechanism
from .oauthbearer import OAuthBearer
from .plain import Plain
from .references import resolve
from .scram import Scram
from .tokens import current_token

_EXTENSION = "extension_"


def mechanism_for(security: SecurityConfig, deadline: Deadline) -> Mechanism:
    """The configured mechanism, never another, with credentials as they are now: a rotated file counts at
    once.

    Raises `ConfigError`; with OAUTHBEARER what getting a token raises.
    """
    name = security.mechanism
    if name is None:
        raise ConfigError("sasl.mechanism is missing")
    jaas = jaas_of(security)
    if name == "OAUTHBEARER":
        return OAuthBearer(current_token(security, deadline), _extensions(security, jaas))
    username, password = _login(security, jaas)
    if name == "PLAIN":
        return Plain(username, password)
    token_auth = (revealed(jaas, "tokenauth") or "").lower() == "true"
    return Scram(name, username, password, token_auth=token_auth)


def _login(security: SecurityConfig, jaas: JaasConfig | None) -> tuple[str, Secret]:
    username = security.username or revealed(jaas, "username")
    password = security.password or option(jaas, "password")
    if username is None or password is None:
        raise ConfigError("sasl.jaas.config lacks username or password")
    return resolve("sasl.username", username), Secret(resolve("sasl.password", password))


def _extensions(security: SecurityConfig, jaas: JaasConfig | None) -> dict[str, str]:
    found = dict(security.extensions)
    for name, value in () if jaas is None else jaas.options:
        if name.startswith(_EXTENSION):
            found[name.removeprefix(_EXTENSION)] = value.reveal()
    return found
