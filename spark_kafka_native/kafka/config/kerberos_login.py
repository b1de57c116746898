"""`KerberosLogin`: how the client proves itself with GSSAPI, made of the plain properties or of Java's
``Krb5LoginModule``. Plain data: a keytab and a ticket cache are names of files here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ..errors import ConfigError
from .jaas import JaasConfig

_JAAS: Final = "sasl.jaas.config"
_CACHE_TYPE: Final = re.compile(r"[A-Za-z0-9]{2,}:")
_UNPRINTABLE: Final = re.compile(r"[\0-\x1f\x7f]")
_CACHE_ADVICE: Final = (
    "for a ticket cache of another kind set KRB5CCNAME in the environment of driver and executors, and leave "
    "ticketCache out"
)
_KEYTAB_ADVICE: Final = (
    "a keytab is not named by a reference (env:NAME), and is kept nowhere else. Give the path that it has on "
    "driver and executors, or its name alone if spark-submit --files ships it"
)
DEFAULT_SERVICE: Final = "kafka"


@dataclass(frozen=True, kw_only=True)
class KerberosLogin:
    """One client principal. Without ``keytab`` its ticket is in ``ticket_cache``, or in the default cache of
    the machine (``KRB5CCNAME``).
    """

    principal: str | None = None
    """With or without realm. None: the ticket cache says."""
    keytab: str | None = None
    ticket_cache: str | None = None
    service: str = DEFAULT_SERVICE
    """The first part of the brokers' principals."""
    given: str | None = None
    """``principal`` as the settings have it, which may be a reference."""

    @property
    def shown(self) -> str:
        """The principal, for errors."""
        return self.given or self.principal or "the ticket's principal"


def kerberos_login(
    jaas: JaasConfig | None, principal: str | None, keytab: str | None, service: str | None
) -> KerberosLogin:
    """The login that ``jaas``, or the properties ``sasl.kerberos.principal`` and ``sasl.kerberos.keytab``,
    stand for; ``service`` is ``sasl.kerberos.service.name``.

    Raises `ConfigError` for an option that has no meaning outside Java, and says what to do.
    """
    service = _service(jaas, service)
    if jaas is None:
        name = "sasl.kerberos.keytab"
        if keytab is not None and principal is None:
            raise ConfigError(f"{name} needs sasl.kerberos.principal: the principal to log in as")
    else:
        name = f"{_JAAS}: keyTab"
        _check_options(jaas)
        principal, keytab = _text(jaas, "principal"), _keytab(jaas)
    cache = None if jaas is None or keytab is not None else _ticket_cache(jaas)
    for what, value in (("the principal", principal), ("the service's name", service)):
        if value is not None and (not value or _UNPRINTABLE.search(value)):
            raise ConfigError(f"GSSAPI: {what} is empty or has a control character")
    keytab = None if keytab is None else _path(name, keytab, _KEYTAB_ADVICE)
    return KerberosLogin(principal=principal, keytab=keytab, ticket_cache=cache, service=service)


def _check_options(jaas: JaasConfig) -> None:
    if not _flag(jaas, "isInitiator", default=True):
        raise ConfigError(f"{_JAAS}: isInitiator=false is for servers; a client leaves it out")
    for name in ("useFirstPass", "tryFirstPass"):
        if _flag(jaas, name):
            raise ConfigError(
                f"{_JAAS}: {name} takes a password of another login module, and there is none here; give "
                f"useKeyTab=true with keyTab and principal"
            )
    if not _flag(jaas, "useKeyTab") and not _flag(jaas, "useTicketCache"):
        raise ConfigError(
            f"{_JAAS}: Krb5LoginModule would ask for a password; give useKeyTab=true with keyTab and "
            f"principal, or useTicketCache=true"
        )


def _keytab(jaas: JaasConfig) -> str | None:
    if not _flag(jaas, "useKeyTab"):
        return None
    keytab = _text(jaas, "keyTab")
    if keytab is None or _text(jaas, "principal") is None:
        raise ConfigError(f"{_JAAS}: useKeyTab=true needs keyTab and principal")
    return keytab


def _ticket_cache(jaas: JaasConfig) -> str | None:
    cache = _text(jaas, "ticketCache")
    return None if cache is None else _path(f"{_JAAS}: ticketCache", cache, _CACHE_ADVICE)


def _path(name: str, value: str, advice: str) -> str:
    """The path of a file that may be written ``FILE:/path``; ``advice``: for anything else."""
    path = re.sub(r"^file:", "", value, flags=re.IGNORECASE)
    if not path or _UNPRINTABLE.search(path):
        raise ConfigError(f"{name} is not the path of a file")
    if _CACHE_TYPE.match(path):
        raise ConfigError(f"{name} must be the path of a file; {advice}")
    return path


def _service(jaas: JaasConfig | None, service: str | None) -> str:
    """As Java: either may say it, and both must say the same."""
    given = None if jaas is None else _text(jaas, "serviceName")
    if given is not None and service is not None and given != service:
        raise ConfigError(
            "serviceName in sasl.jaas.config and sasl.kerberos.service.name differ: give one of them"
        )
    return given or service or DEFAULT_SERVICE


def _text(jaas: JaasConfig, name: str) -> str | None:
    found = jaas.option(name)
    return None if found is None else found.reveal()


def _flag(jaas: JaasConfig, name: str, *, default: bool = False) -> bool:
    found = _text(jaas, name)
    return default if found is None else found.strip().lower() == "true"
