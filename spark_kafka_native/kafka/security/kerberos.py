"""Kerberos through the package ``gssapi`` (MIT's library): the login, the broker's principal, and the first
token of a context.

The library contacts the KDC and looks names up without a time limit, so a thread of its own calls it, and
callers wait until their deadlines. A keytab's credential is shared by all connections of a process, and made
anew after 80 % of its lifetime. It lives in a ticket cache in memory: neither the environment nor a file of
the process changes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ..config.kerberos_login import KerberosLogin, kerberos_login
from ..config.security_config import SecurityConfig
from ..errors import AuthenticationError, ConfigError, KafkaError, NetworkError, own_copy, to_keep
from ..runtime.background import Lookups
from ..runtime.deadline import Deadline
from ..runtime.fork import in_forked_child, no_fork
from .config_providers import allowed_path, located, read_file, resolve
from .credentials import as_given, jaas_of
from .gssapi import Gssapi
from .kerberos_errors import explain, is_expired, shown
from .krb5_files import Krb5Conf, config_path, keytab_principals, read_krb5_conf
from .ticket_cache import MemoryCache

_LOG: Final = logging.getLogger("spark_kafka_native")
_PAUSE_S: Final = 30.0
"""After a login that failed, while the present ticket is valid: to ask a KDC that does not answer takes the
time of a connection."""
_REFRESH: Final = 0.8
"""Share of a ticket's lifetime after which the next connection logs in again; Java's default."""
_WHOLE_SECONDS: Final = 1.0
"""Tickets end at a whole second, and lifetimes are rounded up to one."""
MAX_LOGINS: Final = 64
_MAX_KEYTAB_BYTES: Final = 1024 * 1024
_INSTALL: Final = (
    "sasl.mechanism=GSSAPI needs the package gssapi on driver and executors: pip install "
    "'spark-kafka-native[kerberos]'. pip compiles it, which takes a C compiler and the headers of MIT "
    "Kerberos (Debian, Ubuntu: apt-get install gcc python3-dev libkrb5-dev; Red Hat: dnf install gcc "
    "python3-devel krb5-devel; macOS: brew install krb5); conda install python-gssapi has it compiled"
)


def gssapi_mechanism(security: SecurityConfig, host: str, deadline: Deadline) -> Gssapi:
    """GSSAPI for a broker that is dialled as ``host``, with the first token made.

    Raises `ConfigError` (the keytab, the package), `AuthenticationError` (the KDC refuses), and
    `NetworkError` if another attempt may succeed.
    """
    try:
        context = open_context(login_of(security), host, deadline)
    except AuthenticationError:
        forget_login(security)
        raise
    return Gssapi(context, context.first)


def login_of(security: SecurityConfig) -> KerberosLogin:
    """The login of ``security``, with references resolved now. Raises `ConfigError`."""
    principal = security.kerberos_principal
    login = kerberos_login(
        jaas_of(security),
        None if principal is None else resolve("sasl.kerberos.principal", principal),
        security.kerberos_keytab,
        security.kerberos_service,
    )
    if login.principal is None:
        return login
    return replace(login, given=as_given(security, principal, "principal"))


def library() -> Any:
    """The package ``gssapi``. Raises `ConfigError` with the commands that install it."""
    try:
        with no_fork():
            import gssapi
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "gssapi"
        raise ConfigError(_INSTALL if missing else f"{_INSTALL} ({error})") from None
    return gssapi


# --- waiting ------------------------------------------------------------------------------------------------

_steps = Lookups()


def _within(deadline: Deadline, question: Callable[[], Any], what: str) -> Any:
    """The result of ``question``, which a thread computes; `NetworkError` if there is none by
    ``deadline``.
    """
    waits_ms = deadline.remaining_ms
    found = _steps.ask(object(), lambda: [question()], deadline)
    if found is None:
        raise NetworkError(
            f"GSSAPI: {what}: no answer in {waits_ms:.0f} ms; are the KDC and the name server up? (The "
            f"configuration is {config_path()}.)"
        )
    return found[0]


def open_context(login: KerberosLogin, host: str, deadline: Deadline) -> Context:
    """A context with the broker ``host``, with its first token: logged in, and with a ticket for the
    broker.
    """
    library()
    return _within(deadline, lambda: _open(login, host), f"a ticket for {login.service}/{host}")  # type: ignore[no-any-return]


def log_in(login: KerberosLogin, deadline: Deadline) -> tuple[str, float]:
    """The principal that ``login`` stands for, and the seconds that its ticket is still valid."""
    library()

    def question() -> tuple[str, float]:
        ticket, _ = _ticket(login)
        with _explained(login):
            return str(ticket.credential.name), _lifetime(ticket.credential)

    return _within(deadline, question, "the login")  # type: ignore[no-any-return]


# --- the broker's principal ---------------------------------------------------------------------------------


def service_principal(service: str, host: str, conf: Krb5Conf) -> str:
    """The principal of the broker ``host``, by the rules of Java's client.

    An address is replaced by its name. A short name is replaced by its long form if the name server says that
    the host's canonical name is the short one with a domain, unless ``dns_canonicalize_hostname`` is false;
    any other canonical name is ignored. The realm is that of ``[domain_realm]``, else it is left to the KDC
    (an empty realm begins with the client's own). MIT's rules differ: they take any canonical name.
    """
    name = _name_of_address(host)
    if not conf.is_off("dns_canonicalize_hostname"):
        name = _long_form(name).removesuffix(".")
    name = name.lower()
    return f"{_quoted(service)}/{_quoted(name)}@{_quoted(conf.realm_of(name) or '')}"


def _name_of_address(host: str) -> str:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    try:
        return socket.getnameinfo((host, 0), socket.NI_NAMEREQD)[0]
    except OSError:
        return host


def _long_form(name: str) -> str:
    """``broker.example.com`` for ``broker``, if the name server says so in both directions."""
    try:
        address = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0][4]
        canonical = socket.getnameinfo(address, socket.NI_NAMEREQD)[0]
        if not canonical.lower().startswith(f"{name.lower()}."):
            return name
        back = [info[4][0] for info in socket.getaddrinfo(canonical, 0, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return name
    return canonical if address[0] in back else name


def _quoted(part: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\/@" else letter for letter in part)


# --- credentials --------------------------------------------------------------------------------------------


class SharedCredential:
    """The credential of one keytab and principal. Any thread may use it; one logs in while the others
    use the present one, or wait if there is none.
    """

    def __init__(
        self, acquire: Callable[[], tuple[Any, float]], clock: Callable[[], float] = time.time
    ) -> None:
        self._acquire = acquire
        """Returns a credential and its lifetime in seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._credential: Any = None
        self._retired: Any = None
        """The last credential that was found expired."""
        self._refresh_at = self._expires_at = 0.0
        self._failure: KafkaError | None = None
        """Of the last login; an object of its own each time."""

    def current(self) -> Any:
        """A credential that remains valid for a while. Raises the error of the login, unless the present one
        is still valid.
        """
        before = self._failure
        present = self._credential
        if self._serves(present, self._refresh_at):
            return present
        # While the present one is valid no thread waits for another one's login.
        if not self._lock.acquire(blocking=not self._serves(present, self._expires_at)):
            return present
        try:
            if self._failure is not None and self._failure is not before:
                raise own_copy(self._failure)  # of a thread that this one has waited for: tries lock accounts
            return self._renewed()
        finally:
            self._lock.release()

    def _renewed(self) -> Any:
        now = self._clock()
        if self._serves(self._credential, self._refresh_at):
            return self._credential
        try:
            credential, lifetime_s = self._acquire()
        except KafkaError as error:
            # By the time of now: the ticket may have expired during the attempt.
            if not self._serves(self._credential, self._expires_at):
                self._failure = to_keep(error)
                raise
            _LOG.warning("%s; the present ticket is used until it expires", error)
            self._refresh_at = min(self._clock() + _PAUSE_S, self._expires_at)
            return self._credential
        lifetime_s = max(0.0, lifetime_s - _WHOLE_SECONDS)
        self._credential, self._failure = credential, None
        self._refresh_at, self._expires_at = now + lifetime_s * _REFRESH, now + lifetime_s
        return credential

    def _serves(self, credential: Any, until: float) -> bool:
        return credential is not None and credential is not self._retired and self._clock() < until

    def retire(self, credential: Any) -> None:
        """Log in again for the next context, unless that has been done since: ``credential`` has expired."""
        # Without the lock, which another thread holds throughout a login: with a KDC that does not answer, it
        # would wait past its deadline.
        if self._credential is credential:
            self._retired = credential


_Key = tuple[str | None, str, str]
_shared: dict[_Key, SharedCredential] = {}
_shared_lock = threading.Lock()
_inherited: list[Any] = []
"""The parent's credentials in a forked child: unused, and never freed, as the library's locks may be held."""


def _key(login: KerberosLogin, keytab: str) -> _Key:
    return login.principal, os.path.realpath(located(keytab)), config_path()


def forget_login(security: SecurityConfig) -> None:
    """Log in again for the next connection: a broker, or the KDC, has refused the present tickets."""
    with contextlib.suppress(KafkaError):
        login = login_of(security)
        if login.keytab is not None:
            with _shared_lock:
                _shared.pop(_key(login, login.keytab), None)


class Ticket(NamedTuple):
    """A credential of the library, and where it has its tickets. Compared by identity."""

    credential: Any
    cache: MemoryCache | None = None
    """Of a keytab's; it lives as long as this object."""


def _ticket(login: KerberosLogin) -> tuple[Ticket, SharedCredential | None]:
    """The ticket for a new context, and its source. Those of a cache are read anew and have none, as
    something else keeps them fresh.
    """
    if login.keytab is None:
        return Ticket(_from_cache(login)), None
    key = _key(login, login.keytab)
    with _shared_lock:
        shared = _shared.get(key)
        if shared is None:
            shared = _shared[key] = SharedCredential(lambda: _from_keytab(login))
            if len(_shared) > MAX_LOGINS:
                del _shared[next(iter(_shared))]
    return shared.current(), shared


def _from_keytab(login: KerberosLogin) -> tuple[Ticket, float]:
    name, path = "sasl.kerberos.keytab", login.keytab or ""
    content = read_file(name, path, _MAX_KEYTAB_BYTES)
    _check_principal(login, keytab_principals(f"{name}: {path}", content), path)
    cache = MemoryCache()
    store = {"client_keytab": f"FILE:{allowed_path(name, located(path))}", "ccache": cache.name}
    with _explained(login):
        credential = _acquire(login, store)
        return Ticket(credential, cache), _lifetime(credential)


def _lifetime(credential: Any) -> float:
    """In seconds; infinite where the library knows no end."""
    return math.inf if credential.lifetime is None else float(credential.lifetime)


def _check_principal(login: KerberosLogin, found: list[str], path: str) -> None:
    principal = login.principal or ""
    if "@" not in principal:
        found = [name.rpartition("@")[0] for name in found]
    if principal not in found:
        others = ", ".join(shown(name) for name in found[:5])
        raise ConfigError(
            f"sasl.kerberos.keytab: {path} on {socket.gethostname()} has no key of {shown(login.shown)}; it "
            f"has keys of {others}"
        )


def _from_cache(login: KerberosLogin) -> Any:
    store = None
    if login.ticket_cache is not None:
        path = allowed_path("sasl.jaas.config: ticketCache", located(login.ticket_cache))
        store = {"ccache": f"FILE:{path}"}
    with _explained(login):
        return _acquire(login, store)


def _acquire(login: KerberosLogin, store: dict[str, str] | None) -> Any:
    gssapi = library()
    kind = gssapi.NameType.kerberos_principal
    return gssapi.Credentials(
        name=None if login.principal is None else gssapi.Name(login.principal, kind),
        usage="initiate",
        mechs=[gssapi.MechType.kerberos],
        store=None if store is None else {key.encode(): os.fsencode(value) for key, value in store.items()},
    )


# --- the context --------------------------------------------------------------------------------------------


class Context:
    """A `SecurityContext` of the library, with its first token. One thread at a time uses it."""

    def __init__(self, target: str, ticket: Ticket, source: SharedCredential | None) -> None:
        gssapi = library()
        flags = gssapi.RequirementFlag
        self.target = target
        self._ticket = ticket
        self._source = source
        with self._explained():
            self._context = gssapi.SecurityContext(
                name=gssapi.Name(target, gssapi.NameType.kerberos_principal),
                creds=ticket.credential,
                usage="initiate",
                mech=gssapi.MechType.kerberos,
                flags=flags.mutual_authentication | flags.integrity | flags.replay_detection
                | flags.out_of_sequence_detection,
            )  # fmt: skip
            self.first: bytes = self._context.step() or b""

    @property
    def complete(self) -> bool:
        """As `SecurityContext`."""
        return bool(self._context.complete)

    @property
    def mutual(self) -> bool:
        """As `SecurityContext`."""
        with self._explained():
            return bool(self._context.actual_flags & library().RequirementFlag.mutual_authentication)

    @property
    def principal(self) -> str:
        """As `SecurityContext`."""
        with self._explained():
            return str(self._context.initiator_name)

    def step(self, token: bytes) -> bytes:
        """As `SecurityContext`."""
        with self._explained():
            return self._context.step(token) or b""

    def unwrap(self, message: bytes) -> bytes:
        """As `SecurityContext`."""
        with self._explained():
            return bytes(self._context.unwrap(message).message)

    def wrap(self, content: bytes) -> bytes:
        """As `SecurityContext`."""
        with self._explained():
            return bytes(self._context.wrap(content, False).message)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """As the function. A ticket that has expired is replaced for the next attempt, if it can be."""
        gssapi = library()
        try:
            yield
        except gssapi.exceptions.GSSError as error:
            if self._source is not None and is_expired(error):
                self._source.retire(self._ticket)
            raise explain(error, self.target, renewable=self._source is not None) from None


def _open(login: KerberosLogin, host: str) -> Context:
    conf = read_krb5_conf()
    return Context(service_principal(login.service, host, conf), *_ticket(login))


@contextlib.contextmanager
def _explained(login: KerberosLogin) -> Iterator[None]:
    """Turn an error of the library into one of ours."""
    gssapi = library()
    try:
        yield
    except gssapi.exceptions.GSSError as error:
        raise explain(error, login.shown, hidden=login.principal) from None


def _after_fork() -> None:
    global _shared_lock, _steps
    _shared_lock = threading.Lock()
    _steps = Lookups()  # its threads are the parent's
    _inherited.append(dict(_shared))
    _shared.clear()


in_forked_child(_after_fork)
