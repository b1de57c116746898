"""Kerberos' error codes in words, each with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..errors import AuthenticationError, KafkaError, NetworkError, SecurityError
from .krb5_files import config_path, read_krb5_conf

_MAX_SHOWN: Final = 300
_KRB5_BASE: Final = 2**32 - 1765328384
"""MIT's error codes begin here; below 128 they are those of RFC 4120, section 7.5.9."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error code of Kerberos in words; ``{what}``: the principal that was asked for."""

    text: str
    transient: bool = False
    local: bool = False
    """Neither a KDC nor a broker has refused anything: as where a ticket cache is being replaced."""


_CLIENT: Final = "is sasl.kerberos.principal (or principal in sasl.jaas.config) right, realm included?"
_TICKET: Final = (
    "give sasl.kerberos.keytab with sasl.kerberos.principal, or run kinit and name the cache in KRB5CCNAME "
    "(Spark's executors have neither your tickets nor your environment: they need a keytab)"
)
_OLD_KEY: Final = "the key in the keytab is not (or no longer) that of {what}: export the keytab again"
_CLOCKS: Final = (
    "the clocks of this machine and of the KDC or the broker differ by more than Kerberos allows (5 "
    "minutes): have both set by NTP"
)
FAILURES: Final = {
    1: Failure(text="{what} has expired in the KDC's database"),
    2: Failure(text="the service has expired in the KDC's database ({what})"),
    6: Failure(text="the KDC does not know {what}; " + _CLIENT),
    7: Failure(
        text="the KDC does not know the service {what}. Brokers have principals of the form "
        "SERVICE/HOST@REALM: SERVICE is sasl.kerberos.service.name, HOST the name by which the client dials "
        "the broker (in bootstrap.servers and in the broker's advertised.listeners; an address is replaced "
        "by its name, a short name by its long form), and REALM follows from [domain_realm] in krb5.conf"
    ),
    12: Failure(text="the KDC's policy refuses a ticket for {what}"),
    14: Failure(
        text="the KDC supports none of the encryption types for {what}: compare klist -ke of the keytab, and "
        "permitted_enctypes in krb5.conf, with those of the KDC"
    ),
    18: Failure(text="{what} is locked or revoked in the KDC's database"),
    23: Failure(text="the key (password) of {what} has expired: set a new one and export the keytab again"),
    24: Failure(text=_OLD_KEY),
    31: Failure(text=_OLD_KEY + " (or, if a broker's token was refused, its service ticket is not its own)"),
    32: Failure(text="the ticket has expired; " + _TICKET),
    33: Failure(text="the ticket is not valid yet: are the clocks right?"),
    34: Failure(text="the broker, or something between, repeats an old message"),
    37: Failure(text=_CLOCKS),
    41: Failure(text="the message was changed on its way, or the broker has another key"),
    29: Failure(text="the KDC has no answer for {what} at present", transient=True),
    135: Failure(text="krb5.conf can't be opened"),
    136: Failure(text="krb5.conf has a mistake"),
    141: Failure(text="there is no ticket; " + _TICKET, local=True),
    143: Failure(text="there is no ticket; " + _TICKET, local=True),
    148: Failure(text=_CLOCKS),
    154: Failure(
        text="krb5.conf names no KDC for the realm of {what}, and the name server knows none: is the realm "
        "right (upper case), and is KRB5_CONFIG set where it must be?"
    ),
    156: Failure(text="no KDC of the realm of {what} can be reached", transient=True),
    195: Failure(text="there is no ticket; " + _TICKET, local=True),
    199: Failure(text="the ticket cache is damaged; " + _TICKET, local=True),
    212: Failure(text="the ticket cache is damaged; " + _TICKET, local=True),
    220: Failure(text="the name of a KDC of the realm of {what} can't be resolved", transient=True),
    224: Failure(text="krb5.conf has no default_realm: write the principal with its realm, or set it"),
}
_RENEWED: Final = Failure(
    text="the ticket has expired before the broker was convinced; the next attempt has a new one",
    transient=True,
)
_NO_KDC_KNOWN: Final = 154
_TICKET_EXPIRED: Final = 32
_EXPIRED_MAJORS: Final = (11 << 16, 12 << 16)
"""GSS_S_CREDENTIALS_EXPIRED, and GSS_S_CONTEXT_EXPIRED: between two messages."""
_OTHER_PRINCIPAL: Final = 39756032
"""GSSAPI's own code (KG_CCACHE_NOMATCH)."""


def is_expired(error: Any) -> bool:
    """True if a ticket, or the context that was made with it, has expired."""
    return error.maj_code in _EXPIRED_MAJORS or error.min_code - _KRB5_BASE == _TICKET_EXPIRED


def explain(error: Any, what: str, *, renewable: bool = False, hidden: str | None = None) -> KafkaError:
    """The error to raise for one of the library's (``gssapi.exceptions.GSSError``). ``renewable``: there is a
    keytab, so a ticket that has expired is replaced in the next attempt. ``hidden``: the name that the
    library has for ``what``, which may be the value of a reference.
    """
    code = _TICKET_EXPIRED if is_expired(error) else error.min_code - _KRB5_BASE
    failure = _RENEWED if renewable and code == _TICKET_EXPIRED else FAILURES.get(code)
    if error.min_code == _OTHER_PRINCIPAL:
        failure = Failure(text="the ticket cache has no ticket of {what}; " + _TICKET)
    said = _words(error)
    words = shown(said.replace(hidden, what) if hidden else said)
    if failure is None:
        return AuthenticationError(f"GSSAPI: {words} ({shown(what)})")
    # KDCs that only the name server knows are unknown while it does not answer.
    transient = failure.transient or (code == _NO_KDC_KNOWN and not read_krb5_conf().is_off("dns_lookup_kdc"))
    where = f"; the configuration is {config_path()}" if code in (_NO_KDC_KNOWN, 156) else ""
    refused = SecurityError if failure.local else AuthenticationError
    kind = NetworkError if transient else refused
    return kind(f"GSSAPI: {failure.text.format(what=shown(what))} ({words}{where})")


def _words(error: Any) -> str:
    """What the library says: the mechanism's own words, if it has some."""
    minor = error.get_all_statuses(error.min_code, False) if error.min_code else []
    said = [words for words in minor if words != "Success"]
    return "; ".join(said or error.get_all_statuses(error.maj_code, True))


def shown(text: str) -> str:
    """Text of a file, the KDC or the library, made safe for a log."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_SHOWN])
