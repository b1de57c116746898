"""`unsecured_token`: the unsigned token that Java's clients make of ``unsecuredLogin...`` options of
``sasl.jaas.config``, for brokers of tests. It proves nothing."""

from __future__ import annotations

import base64
import json
import time
from typing import Any, Final

from ..config.jaas import UNSECURED, JaasConfig
from ..errors import ConfigError
from .client_credentials import revealed

_LIFETIME_S: Final = 3600


def unsecured_token(jaas: JaasConfig | None) -> tuple[str, float]:
    """The token, and when it expires, in seconds since 1970. Raises `ConfigError` that shows no value."""
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
    if kind == "ListClaim":  # its first character separates the others
        return [part for part in text[1:].split(text[0]) if part] if text else []
    return text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"sasl.jaas.config: a number of {UNSECURED}... is none") from None


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
