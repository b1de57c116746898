"""The login, the broker's principal, and errors in words, with scripted DNS and a scripted library."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.forked_child import holds_in_forked_child
from support.waiting import eventually

from spark_kafka_native.kafka.config.jaas import KRB5_MODULE
from spark_kafka_native.kafka.config.kerberos_login import KerberosLogin
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.config.security_config import SecurityConfig
from spark_kafka_native.kafka.errors import AuthenticationError, ConfigError, NetworkError, SecurityError
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.security import kerberos, ticket_cache
from spark_kafka_native.kafka.security.kerberos import SharedCredential, gssapi_mechanism, service_principal
from spark_kafka_native.kafka.security.kerberos_errors import FAILURES, explain
from spark_kafka_native.kafka.security.krb5_files import Krb5Conf

from .test_krb5_files import entry

BASE = 2**32 - 1765328384


class GSSError(Exception):
    """As the library's: two codes, and words for each."""

    def __init__(self, minor: int, major: int = 851968, words: str = "its own words") -> None:
        super().__init__(minor)
        self.maj_code, self.min_code, self.words = major, minor, words

    def get_all_statuses(self, code: int, is_major: bool) -> list[str]:
        assert code == (self.maj_code if is_major else self.min_code)
        return ["a major status"] if is_major else [self.words]


class ScriptedLibrary(types.ModuleType):
    """A module ``gssapi``: hands out credentials of ``lifetime`` seconds, and fails where it is set to."""

    def __init__(self) -> None:
        super().__init__("gssapi")
        self.lifetime: int | None = 100
        self.login_error: Exception | None = None
        self.step_error: Exception | None = None
        self.inquire_error: Exception | None = None
        self.credential_error: Exception | None = None
        self.blocked = threading.Event()
        self.blocked.set()
        self.logins: list[dict[str, Any]] = []
        self.targets: list[str] = []
        self.raw = types.SimpleNamespace()
        self.exceptions = types.SimpleNamespace(GSSError=GSSError)
        self.NameType = types.SimpleNamespace(kerberos_principal="kerberos_principal")
        self.MechType = types.SimpleNamespace(kerberos="krb5")
        self.Name = lambda text, kind: f"{text}" if kind == "kerberos_principal" else None
        self.RequirementFlag = types.SimpleNamespace(
            mutual_authentication=2, integrity=32, replay_detection=4, out_of_sequence_detection=8
        )
        library = self

        class Credentials:
            def __init__(self, **given: Any) -> None:
                library.logins.append(given)
                library.blocked.wait(20)
                if library.login_error is not None:
                    raise library.login_error
                self._name = given["name"] or "cached@EXAMPLE.COM"

            @property
            def lifetime(self) -> int | None:
                self.inquire()
                return library.lifetime

            @property
            def name(self) -> str:
                self.inquire()
                return str(self._name)

            def inquire(self) -> None:
                if library.credential_error is not None:
                    raise library.credential_error

        class SecurityContext:
            def __init__(self, **given: Any) -> None:
                library.targets.append(given["name"])
                self.flags = given["flags"]
                self.complete = False
                credentials = given.get("creds")
                self.initiator = "default@EXAMPLE.COM" if credentials is None else str(credentials.name)

            @property
            def actual_flags(self) -> int:
                self.inquire()
                return int(self.flags)

            @property
            def initiator_name(self) -> str:
                self.inquire()
                return self.initiator

            def inquire(self) -> None:
                if library.inquire_error is not None:
                    raise library.inquire_error

            def step(self, token: bytes | None = None) -> bytes | None:
                if library.step_error is not None:
                    raise library.step_error
                self.complete = token is not None
                return None if token else b"first"

            def unwrap(self, message: bytes) -> Any:
                return types.SimpleNamespace(message=message)

            def wrap(self, content: bytes, encrypt: bool) -> Any:
                assert not encrypt
                return types.SimpleNamespace(message=content)

        self.Credentials, self.SecurityContext = Credentials, SecurityContext


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ScriptedLibrary]:
    made = ScriptedLibrary()
    monkeypatch.setitem(sys.modules, "gssapi", made)
    conf = tmp_path / "krb5.conf"
    conf.write_text("[libdefaults]\ndefault_realm = EXAMPLE.COM\ndns_lookup_kdc = false\n")
    monkeypatch.setenv("KRB5_CONFIG", str(conf))
    others = set(threading.enumerate())
    yield made
    made.blocked.set()
    for thread in set(threading.enumerate()) - others:
        thread.join(20)  # one that a test no longer waits for would log in during the next one
    kerberos._shared.clear()


@pytest.fixture
def security(tmp_path: Path) -> SecurityConfig:
    keytab = tmp_path / "app.keytab"
    keytab.write_bytes(b"\x05\x02" + entry("alice"))
    return SecurityConfig.from_properties(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.principal": "alice@EXAMPLE.COM",
            "sasl.kerberos.keytab": str(keytab),
        }
    )


def begin(security: SecurityConfig, host: str = "broker.test.invalid") -> Any:
    return gssapi_mechanism(security, host, Deadline.after_ms(10_000))


# --- the library --------------------------------------------------------------------------------------------


def test_without_the_package_the_error_has_the_commands(
    security: SecurityConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(
        ConfigError, match=r"pip install 'spark-kafka-native\[kerberos\]'.*apt-get install .*libkrb5-dev"
    ):
        begin(security)


def test_a_package_that_does_not_load_says_why(
    security: SecurityConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "gssapi", raising=False)
    (tmp_path / "gssapi.py").write_text("raise ImportError('libgssapi_krb5.so.2: cannot open')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"libkrb5-dev.*\(libgssapi_krb5.so.2: cannot open\)"):
        begin(security)
    monkeypatch.delitem(sys.modules, "gssapi", raising=False)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_during_the_first_import_can_import_it_too(
    security: SecurityConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python's lock of a module that another thread is importing would never be released in the child."""
    began, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "gssapi_test", (began, goes_on), raising=False)
    (tmp_path / "gssapi.py").write_text(
        "import threading\nbegan, goes_on = threading.gssapi_test\nbegan.set()\ngoes_on.wait(20)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "gssapi", raising=False)
    importing = threading.Thread(target=kerberos.library)
    importing.start()
    began.wait(20)
    timer = threading.Timer(0.3, goes_on.set)
    timer.start()
    assert holds_in_forked_child(lambda: kerberos.library().__name__ == "gssapi", seconds=20)
    importing.join()
    timer.join()
    monkeypatch.delitem(sys.modules, "gssapi", raising=False)


# --- the broker's principal ---------------------------------------------------------------------------------


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Names to addresses, and addresses to names."""
    table: dict[str, str] = {}

    def getaddrinfo(name: str, port: int, **_: Any) -> list[Any]:
        if name not in table:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(2, 1, 6, "", (table[name], port))]

    def getnameinfo(address: tuple[str, int], flags: int) -> tuple[str, str]:
        assert flags == socket.NI_NAMEREQD
        if address[0] not in table:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return table[address[0]], "0"

    monkeypatch.setattr(kerberos.socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(kerberos.socket, "getnameinfo", getnameinfo)
    return table


@pytest.mark.parametrize(
    ("host", "table", "principal"),
    [
        ("Broker.Example.com", {}, "kafka/broker.example.com@"),
        # A short name becomes the long one, if both directions agree.
        (
            "b",
            {"b": "10.0.0.1", "10.0.0.1": "B.example.com", "B.example.com": "10.0.0.1"},
            "kafka/b.example.com@",
        ),
        ("b", {"b": "10.0.0.1", "10.0.0.1": "b.evil.com", "b.evil.com": "10.6.6.6"}, "kafka/b@"),
        ("b", {"b": "10.0.0.1", "10.0.0.1": "b.evil.com"}, "kafka/b@"),
        ("b", {"b": "10.0.0.1"}, "kafka/b@"),
        # Any other canonical name is ignored: an alias keeps its name.
        (
            "alias.com",
            {"alias.com": "10.0.0.1", "10.0.0.1": "node1.com", "node1.com": "10.0.0.1"},
            "kafka/alias.com@",
        ),
        ("b", {"b": "10.0.0.1", "10.0.0.1": "broker.com", "broker.com": "10.0.0.1"}, "kafka/b@"),
        # An address becomes its name.
        ("10.0.0.1", {"10.0.0.1": "b.example.com"}, "kafka/b.example.com@"),
        ("::1", {"::1": "localhost"}, "kafka/localhost@"),
        ("10.0.0.1", {}, "kafka/10.0.0.1@"),
        ("broker.example.com.", {}, "kafka/broker.example.com@"),
    ],
)
def test_the_brokers_name_is_that_of_java(
    dns: dict[str, str], host: str, table: dict[str, str], principal: str
) -> None:
    dns.update(table)
    assert service_principal("kafka", host, Krb5Conf()) == principal


def test_dns_canonicalize_hostname_leaves_short_names_alone(dns: dict[str, str]) -> None:
    dns.update({"b": "10.0.0.1", "10.0.0.1": "b.example.com", "b.example.com": "10.0.0.1"})
    conf = Krb5Conf(defaults={"dns_canonicalize_hostname": "false"})
    assert service_principal("kafka", "b", conf) == "kafka/b@"
    assert (
        service_principal("kafka", "b", Krb5Conf(defaults={"dns_canonicalize_hostname": "true"}))
        != "kafka/b@"
    )


def test_the_realm_is_that_of_the_domain(dns: dict[str, str]) -> None:
    conf = Krb5Conf(domains={".example.com": "EXAMPLE.COM"})
    assert service_principal("sv", "b.example.com", conf) == "sv/b.example.com@EXAMPLE.COM"
    assert service_principal("a/b@c\\", "x", Krb5Conf()) == "a\\/b\\@c\\\\/x@"


# --- the login ----------------------------------------------------------------------------------------------


def test_one_login_serves_all_brokers(library: ScriptedLibrary, security: SecurityConfig) -> None:
    before = dict(os.environ)
    mechanisms = [begin(security, f"b{number}.test.invalid") for number in range(3)]
    assert [mechanism.start() for mechanism in mechanisms] == [b"first"] * 3
    assert library.targets == [f"kafka/b{number}.test.invalid@" for number in range(3)]
    (login,) = library.logins
    assert login["name"] == "alice@EXAMPLE.COM"
    assert login["store"][b"client_keytab"] == f"FILE:{security.kerberos_keytab}".encode()
    assert login["store"][b"ccache"].startswith(b"MEMORY:")
    assert dict(os.environ) == before


def test_the_whole_exchange_through_the_adapter(library: ScriptedLibrary, security: SecurityConfig) -> None:
    mechanism = begin(security)
    assert mechanism.step(b"broker") == b""
    assert mechanism.step(b"\x01\0\0\0") == b"\x01\0\0\0alice@EXAMPLE.COM"
    assert mechanism.step(b"") is None


@pytest.mark.parametrize(
    ("options", "user"),
    [
        ('useKeyTab=true keyTab="{}/app.keytab" principal="alice@EXAMPLE.COM"', b"alice@EXAMPLE.COM"),
        ('useTicketCache=true ticketCache="{}/cc"', b"cached@EXAMPLE.COM"),
    ],
    ids=["keytab", "ticket cache"],
)
def test_a_broker_sees_the_user_of_the_login(
    library: ScriptedLibrary, tmp_path: Path, options: str, user: bytes
) -> None:
    """Without its credential a context has the user of the default ticket cache."""
    (tmp_path / "app.keytab").write_bytes(b"\x05\x02" + entry("alice"))
    module = "com.sun.security.auth.module.Krb5LoginModule"
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
    jaas = {"sasl.jaas.config": f"{module} required {options.format(tmp_path)};"}
    mechanism = begin(SecurityConfig.from_properties(given | jaas))
    mechanism.step(b"broker")
    assert mechanism.step(b"\x01\0\0\0") == b"\x01\0\0\0" + user


def test_a_ticket_that_ends_between_two_messages(library: ScriptedLibrary, security: SecurityConfig) -> None:
    """With a keytab the next attempt succeeds; a cache has nothing else to give."""
    cached = SecurityConfig(protocol="SASL_SSL", mechanism="GSSAPI")  # type: ignore[arg-type]
    for config, kind, says in (
        (security, NetworkError, r"expired before the broker was convinced; .* \(a major status\)"),
        (cached, AuthenticationError, r"the ticket has expired; give sasl.kerberos.keytab"),
    ):
        for messages in ([], [b"broker"]):
            library.inquire_error = None
            mechanism = begin(config)
            for message in messages:
                mechanism.step(message)
            library.inquire_error = GSSError(100001, major=12 << 16, words="Success")
            before = len(library.logins)
            with pytest.raises(kind, match=says):
                mechanism.step(b"\x01\0\0\0")
            library.inquire_error = None
            begin(config)
            assert len(library.logins) == before + 1


def test_two_principals_have_two_logins(
    library: ScriptedLibrary, security: SecurityConfig, tmp_path: Path
) -> None:
    keytab = tmp_path / "both.keytab"
    keytab.write_bytes(b"\x05\x02" + entry("alice") + entry("bob"))
    for principal in ("alice@EXAMPLE.COM", "bob@EXAMPLE.COM", "bob"):
        begin(
            SecurityConfig(
                protocol="SASL_SSL",  # type: ignore[arg-type]
                mechanism="GSSAPI",
                kerberos_principal=principal,
                kerberos_keytab=str(keytab),
            )
        )
    assert [login["name"] for login in library.logins] == ["alice@EXAMPLE.COM", "bob@EXAMPLE.COM", "bob"]
    assert len({login["store"][b"ccache"] for login in library.logins}) == 3


def test_a_refusal_of_the_kdc_makes_the_next_connection_log_in_again(
    library: ScriptedLibrary, security: SecurityConfig
) -> None:
    begin(security)
    library.step_error = GSSError(BASE + 7)
    with pytest.raises(AuthenticationError, match=r"does not know the service kafka/broker.test.invalid@"):
        begin(security)
    library.step_error = None
    begin(security)
    assert len(library.logins) == 2
    kerberos.forget_login(security)
    begin(security)
    assert len(library.logins) == 3


def test_tickets_of_a_cache_are_read_for_each_connection(
    library: ScriptedLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "com.sun.security.auth.module.Krb5LoginModule"
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
    cache = given | {
        "sasl.jaas.config": f'{module} required useTicketCache=true ticketCache="{tmp_path}/cc";'
    }
    for properties in (given, cache, cache):
        begin(SecurityConfig.from_properties(properties))
    assert [login["store"] for login in library.logins] == [
        None,
        *([{b"ccache": f"FILE:{tmp_path}/cc".encode()}] * 2),
    ]
    monkeypatch.setenv("PYKAFKA_ALLOWED_FILES", "/nowhere")
    with pytest.raises(ConfigError, match="is not among PYKAFKA_ALLOWED_FILES"):
        begin(SecurityConfig.from_properties(cache))


def test_a_refused_login_is_the_answer_for_all_that_have_waited_for_it() -> None:
    """Each of them tried once more: several connections at a time locked the account."""
    refused, entered, gate = AuthenticationError("the key is old"), threading.Event(), threading.Event()
    tries: list[int] = []

    def acquire() -> Any:
        tries.append(1)
        entered.set()
        assert gate.wait(60)
        raise refused

    shared = SharedCredential(acquire)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(shared.current)
        assert entered.wait(60)
        others = [pool.submit(shared.current) for _ in range(3)]
        time.sleep(0.1)  # until they wait
        gate.set()
        errors = [one.exception(60) for one in (first, *others)]
    assert [str(error) for error in errors] == ["the key is old"] * 4
    assert len(set(map(id, errors))) == 4, "each has a traceback of its own"
    assert len(tries) == 1
    with pytest.raises(AuthenticationError, match="the key is old"):
        shared.current()  # another call is another try
    assert len(tries) == 2


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_refused_login_is_forgotten_with_the_next_one(when: str) -> None:
    """A thread that had waited for both got the former error, which is final."""
    made: list[Any] = [AuthenticationError("the key is old"), ("new", 3_600.0)]

    def acquire() -> Any:
        result = made.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    class SlowLock:
        """While it is waited for the first time, others log in: one is refused, one is not."""

        waited = False

        def acquire(self, blocking: bool = True) -> bool:
            if not self.waited:
                self.waited = True
                if when == "meanwhile":
                    with pytest.raises(AuthenticationError):
                        shared.current()
                assert shared.current() == "new"
            return blocking

        def release(self) -> None:
            pass

    shared = SharedCredential(acquire)
    if when == "before":
        with pytest.raises(AuthenticationError):
            shared.current()
    lock: Any = SlowLock()
    shared._lock = lock
    assert shared.current() == "new"


def test_a_keytab_without_the_principal_names_those_that_it_has(
    library: ScriptedLibrary, security: SecurityConfig, tmp_path: Path
) -> None:
    (tmp_path / "app.keytab").write_bytes(b"\x05\x02" + entry("bob") + entry("kafka", "host"))
    with pytest.raises(
        ConfigError,
        match=rf"app.keytab on {socket.gethostname()} has no key of alice@EXAMPLE.COM; it has keys of "
        rf"bob@EXAMPLE.COM, kafka/host@EXAMPLE.COM$",
    ):
        begin(security)
    (tmp_path / "app.keytab").write_bytes(b"\x05\x02" + entry("alice@home"))
    with pytest.raises(ConfigError, match=r"has no key of alice; it has keys of alice@home$"):
        begin(replace(security, kerberos_principal="alice"))
    (tmp_path / "app.keytab").unlink()
    with pytest.raises(ConfigError, match=rf"on {socket.gethostname()} can't be read \(No such file"):
        begin(security)
    assert library.logins == []


@pytest.mark.parametrize("way", ["property", "jaas"])
def test_a_principal_that_a_reference_reads_is_in_no_error(
    library: ScriptedLibrary,
    security: SecurityConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """The library's own words have it, too."""
    keytab, jaas = security.kerberos_keytab, tmp_path / "jaas"
    jaas.write_text(f'{KRB5_MODULE} required useKeyTab=true keyTab="{keytab}" principal="marked@A";')
    monkeypatch.setenv("THE_PRINCIPAL", "marked@A")
    if way == "property":
        given = "env:THE_PRINCIPAL"
        security = replace(security, kerberos_principal=given)
    else:
        given = f"file:{jaas}"
        security = replace(security, kerberos_principal=None, kerberos_keytab=None, jaas_config=Secret(given))
    with pytest.raises(ConfigError, match=f"has no key of {given}; it has keys of alice") as caught:
        begin(security)
    assert "marked" not in str(caught.value)
    Path(keytab or "").write_bytes(b"\x05\x02" + entry("marked", realm="A"))
    library.login_error = GSSError(BASE + 6, words="Client 'marked@A' not found in Kerberos database")
    with pytest.raises(AuthenticationError, match=rf"not know {given};.*Client '{given}' not") as refused:
        begin(security)
    assert "marked" not in str(refused.value)


def test_log_in_says_who_and_for_how_long(library: ScriptedLibrary) -> None:
    assert kerberos.log_in(KerberosLogin(), Deadline.after_ms(5_000)) == ("cached@EXAMPLE.COM", 100.0)
    library.lifetime = None
    assert kerberos.log_in(KerberosLogin(), Deadline.after_ms(5_000))[1] == float("inf")


@pytest.mark.parametrize("principal", [None, "alice@EXAMPLE.COM"])
def test_a_ticket_of_a_cache_that_expires_after_it_is_found_is_an_error_with_advice(
    library: ScriptedLibrary, principal: str | None
) -> None:
    library.credential_error = GSSError(BASE + 32)
    with pytest.raises(AuthenticationError, match=r"the ticket has expired; .* or run kinit"):
        kerberos.log_in(KerberosLogin(principal=principal), Deadline.after_ms(5_000))


def test_a_kdc_that_does_not_answer_is_waited_for_until_the_deadline(
    library: ScriptedLibrary, security: SecurityConfig
) -> None:
    library.blocked.clear()
    with pytest.raises(NetworkError, match=r"a ticket for kafka/b: no answer in \d+ ms; are the KDC and"):
        gssapi_mechanism(security, "b", Deadline.after_ms(50))
    with pytest.raises(NetworkError, match=r"the login: no answer in \d+ ms; are the KDC and"):
        kerberos.log_in(KerberosLogin(), Deadline.after_ms(50))
    library.blocked.set()
    assert begin(security).start() == b"first"


def test_no_more_logins_are_kept_than_a_process_needs(
    library: ScriptedLibrary, security: SecurityConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kerberos, "MAX_LOGINS", 2)
    users = ("alice", "bob", "carol", "carol", "bob", "alice")
    for user in users:
        keytab = tmp_path / f"{user}.keytab"
        keytab.write_bytes(b"\x05\x02" + entry(user))
        principal = f"{user}@EXAMPLE.COM"
        begin(replace(security, kerberos_principal=principal, kerberos_keytab=str(keytab)))
    assert [login["name"].partition("@")[0] for login in library.logins] == ["alice", "bob", "carol", "alice"]


def test_a_child_of_a_fork_logs_in_for_itself(
    library: ScriptedLibrary, security: SecurityConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(ticket_cache, "_destroy", lambda name, _: ended.append(name))
    begin(security)
    before = kerberos._shared_lock
    kerberos._after_fork()
    try:
        assert kerberos._shared_lock is not before
        begin(security)
        assert len(library.logins) == 2
        gc.collect()
        assert ended == []  # the library's locks may be held in the child
    finally:
        kerberos._inherited.clear()


def test_the_ticket_cache_of_a_login_ends_with_its_last_context(
    library: ScriptedLibrary, security: SecurityConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(ticket_cache, "_destroy", lambda name, _: ended.append(name))

    def login(number: int) -> str:
        return str(library.logins[number]["store"][b"ccache"].decode())

    mechanism = begin(security)
    kerberos.forget_login(security)
    begin(security)
    assert ended == []  # a context of the first login is in use
    assert mechanism.step(b"broker") == b""
    del mechanism
    assert ended == [login(0)]
    kerberos.forget_login(security)
    assert ended == [login(0), login(1)]
    library.login_error = GSSError(BASE + 24)
    with pytest.raises(AuthenticationError):
        begin(security)
    library.login_error = None  # its traceback has the frames of the login
    gc.collect()
    assert ended == [login(0), login(1), login(2)]


# --- re-login -----------------------------------------------------------------------------------------------


def test_a_ticket_is_renewed_after_four_fifths_of_its_life() -> None:
    now, found = [1000.0], iter([("first", 100.0), ("second", 50.0), ("third", 50.0)])
    shared = SharedCredential(lambda: next(found), clock=lambda: now[0])
    seen = []
    for at in (1000.0, 1079.1, 1079.2, 1118.3, 1118.5):
        now[0] = at
        seen.append(shared.current())
    assert seen == ["first", "first", "second", "second", "third"]


def test_the_life_of_a_ticket_counts_from_before_its_login() -> None:
    """A login may take long, and the ticket may date from its beginning."""
    now = [0.0]

    def acquire() -> tuple[str, float]:
        if now[0] >= 120.0:
            raise NetworkError("GSSAPI: no KDC")
        now[0] += 50
        return "ticket", 101.0

    shared = SharedCredential(acquire, clock=lambda: now[0])
    assert shared.current() == "ticket"  # until 100
    now[0] = 120.0
    with pytest.raises(NetworkError, match="no KDC"):
        shared.current()


def test_a_renewal_that_fails_is_no_matter_until_the_ticket_ends(caplog: pytest.LogCaptureFixture) -> None:
    now, failing = [0.0], [False]

    def acquire() -> tuple[str, float]:
        if failing[0]:
            raise NetworkError("GSSAPI: no KDC")
        return "ticket", 100.0

    shared = SharedCredential(acquire, clock=lambda: now[0])
    failing[0] = True
    with pytest.raises(NetworkError, match="no KDC"):
        shared.current()
    failing[0] = False
    shared.current()
    failing[0], now[0] = True, 98.9  # tickets end at a whole second: it may be over before 100
    assert shared.current() == "ticket"
    assert "no KDC; the present ticket is used until it expires" in caplog.text
    now[0] = 99.0
    with pytest.raises(NetworkError, match="no KDC"):
        shared.current()


def test_a_ticket_that_ends_during_a_renewal_that_fails_is_not_used() -> None:
    now = [0.0]

    def acquire() -> tuple[str, float]:
        if now[0]:
            now[0] += 10
            raise NetworkError("GSSAPI: no KDC")
        return "ticket", 100.0

    shared = SharedCredential(acquire, clock=lambda: now[0])
    shared.current()
    now[0] = 95.0
    with pytest.raises(NetworkError, match="no KDC"):
        shared.current()


def test_a_kdc_that_is_silent_takes_the_time_of_one_connection() -> None:
    """While the present ticket is valid."""
    now, asked, release = [0.0], [], threading.Event()

    def acquire() -> tuple[str, float]:
        asked.append(now[0])
        if len(asked) == 2:
            release.wait(60)
            raise NetworkError("GSSAPI: no KDC")
        return f"ticket {len(asked)}", 101.0

    shared = SharedCredential(acquire, clock=lambda: now[0])
    shared.current()
    now[0] = 81.0
    renewing = threading.Thread(target=shared.current)
    renewing.start()
    eventually(lambda: len(asked) == 2)
    assert shared.current() == "ticket 1"  # at once: this would hang
    release.set()
    renewing.join(60)
    assert shared.current() == "ticket 1"
    assert asked == [0.0, 81.0]  # not with each connection
    now[0] = 99.9
    assert shared.current() == "ticket 1"
    now[0] = 100.0  # its end, before the pause is over
    assert shared.current() == "ticket 3"


def test_a_ticket_at_its_end_is_given_to_no_thread_while_another_one_logs_in() -> None:
    now, asked = [0.0], [0]
    seen: list[str] = []
    looking = threading.Event()

    def clock() -> float:
        if threading.current_thread() is other:
            looking.set()
        return now[0]

    def acquire() -> tuple[str, float]:
        asked[0] += 1
        if asked[0] == 2:
            other.start()
            looking.wait(60)
            other.join(0.1)  # it has nothing to return before the end of this login
        return f"ticket {asked[0]}", 101.0

    shared = SharedCredential(acquire, clock=clock)
    other = threading.Thread(target=lambda: seen.append(shared.current()))
    shared.current()
    now[0] = 100.0
    seen.append(shared.current())
    other.join(60)
    assert seen == ["ticket 2", "ticket 2"]
    assert asked == [2]


def test_a_failure_in_the_middle_leaves_a_ticket_that_has_not_expired(
    library: ScriptedLibrary, security: SecurityConfig
) -> None:
    """While the KDC is down, the present one serves other brokers."""
    mechanism = begin(security)
    mechanism.step(b"broker")
    library.inquire_error = GSSError(-1765328228, major=13 << 16, words="Cannot contact any KDC")
    with pytest.raises((AuthenticationError, NetworkError), match="Cannot contact any KDC"):
        mechanism.step(b"\x01\0\0\0")
    library.inquire_error = None
    begin(security)
    assert len(library.logins) == 1


def test_only_the_credential_that_has_expired_is_replaced() -> None:
    made = iter([("first", 100.0), ("second", 100.0)])
    shared = SharedCredential(lambda: next(made), clock=lambda: 0.0)
    first = shared.current()
    shared.retire("another")
    assert shared.current() == first
    shared.retire(first)
    assert shared.current() == "second"
    shared.retire(first)
    assert shared.current() == "second"


def test_a_credential_that_was_found_expired_does_not_serve_where_no_new_one_comes() -> None:
    """Not even while its lifetime says that it is valid: clocks may differ."""
    made = ["first"]

    def acquire() -> tuple[str, float]:
        if not made:
            raise AuthenticationError("the KDC is gone")
        return made.pop(), 100.0

    shared = SharedCredential(acquire, clock=lambda: 0.0)
    shared.retire(shared.current())
    with pytest.raises(AuthenticationError, match="the KDC is gone"):
        shared.current()


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_credential_may_be_found_expired_while_another_one_is_fetched(succeeds: bool) -> None:
    """The finder waited for a KDC that did not answer, without a limit."""
    now, made = 0.0, ["first"]

    def acquire() -> tuple[str, float]:
        if made:
            return made.pop(), 101.0
        shared.retire("first")  # by another thread, at this moment
        if not succeeds:
            raise AuthenticationError("the KDC is gone")
        return "second", 101.0

    shared = SharedCredential(acquire, clock=lambda: now)
    assert shared.current() == "first"
    now = 99.0
    if succeeds:
        assert shared.current() == "second"
        assert shared.current() == "second"
    else:
        with pytest.raises(AuthenticationError, match="the KDC is gone"):
            shared.current()


def test_a_login_is_that_of_its_configuration(
    library: ScriptedLibrary, security: SecurityConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another krb5.conf the same principal may be known to another KDC."""
    begin(security)
    begin(security)
    assert len(library.logins) == 1
    other = tmp_path / "other.conf"
    other.write_text(Path(os.environ["KRB5_CONFIG"]).read_text())
    monkeypatch.setenv("KRB5_CONFIG", str(other))
    begin(security)
    assert len(library.logins) == 2


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "says", "kind"),
    [
        (6, "the KDC does not know alice@R; is sasl.kerberos.principal", AuthenticationError),
        (7, r"SERVICE is sasl.kerberos.service.name, HOST the name by which", AuthenticationError),
        (18, "alice@R is locked or revoked", AuthenticationError),
        (24, "no longer\\) that of alice@R: export the keytab again", AuthenticationError),
        (31, "no longer\\) that of alice@R: export the keytab again", AuthenticationError),
        (32, "the ticket has expired; give sasl.kerberos.keytab", AuthenticationError),
        (37, "differ by more than Kerberos allows", AuthenticationError),
        (148, "differ by more than Kerberos allows", AuthenticationError),
        # Not refused, by a KDC or a broker: that would be final, and a cache may be being replaced.
        (141, "there is no ticket; give sasl.kerberos.keytab", SecurityError),
        (195, "there is no ticket; give", SecurityError),
        (199, "the ticket cache is damaged; give", SecurityError),
        (212, "the ticket cache is damaged; give", SecurityError),
        (
            154,
            r"krb5.conf names no KDC for the realm of alice@R.*the configuration is /",
            AuthenticationError,
        ),
        (156, r"no KDC of the realm of alice@R can be reached.*the configuration is /", NetworkError),
        (29, "has no answer for alice@R at present", NetworkError),
        (220, "can't be resolved", NetworkError),
        (224, "krb5.conf has no default_realm", AuthenticationError),
        (99, r"GSSAPI: its own words \(alice@R\)$", AuthenticationError),
    ],
)
def test_each_failure_has_its_sentence(
    library: ScriptedLibrary, code: int, says: str, kind: type[Exception]
) -> None:
    error = explain(GSSError(BASE + code), "alice@R")
    assert type(error) is kind
    with pytest.raises(kind, match=says):
        raise error
    assert "its own words" in str(error)


def test_codes_that_are_not_of_kerberos(library: ScriptedLibrary) -> None:
    for major in (11, 12):
        assert "the ticket has expired" in str(explain(GSSError(100001, major=major << 16), "a"))
    assert "the ticket cache has no ticket of a;" in str(explain(GSSError(39756032), "a"))
    assert str(explain(GSSError(0, major=9 << 16), "a")) == "GSSAPI: a major status (a)"


def test_a_kdc_that_only_dns_knows_is_asked_for_again(
    library: ScriptedLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type(explain(GSSError(BASE + 154), "a")) is AuthenticationError
    monkeypatch.setenv("KRB5_CONFIG", "/no/such")
    assert type(explain(GSSError(BASE + 154), "a")) is NetworkError


def test_foreign_words_are_safe_for_a_log(library: ScriptedLibrary) -> None:
    said = str(explain(GSSError(BASE + 99, words="a\x1b[31m\nb" + "x" * 1000), "n\n"))
    assert said == f"GSSAPI: a?[31m?b{'x' * 292} (n?)"


def test_every_sentence_can_be_made(library: ScriptedLibrary) -> None:
    for code in FAILURES:
        assert "{" not in str(explain(GSSError(BASE + code), "someone"))
