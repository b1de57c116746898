"""GSSAPI against a real broker and a real KDC; Java's console clients are the witnesses."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import pickle
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.brokers.kerberos import java_properties, plain_properties, require_gssapi
from support.consumer.reading import wait_until

from spark_kafka_native.cli.main import main
from spark_kafka_native.kafka import Admin, Consumer, GroupConsumer, Producer
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import AuthenticationError, ConfigError, NetworkError, SecurityError
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.security import kerberos
from spark_kafka_native.kafka.security.ticket_cache import MemoryCache
from spark_kafka_native.testing import EmbeddedKafka, EmbeddedKdc
from spark_kafka_native.testing.console import consume, produce
from spark_kafka_native.testing.embedded_kafka import ACLS

pytestmark = pytest.mark.broker

SESSION_MS = 1500


@pytest.fixture(scope="module")
def realm() -> Iterator[EmbeddedKafka]:
    settings = ACLS | {
        "super.users": "User:ANONYMOUS;User:alice",
        "listener.name.sasl_plaintext.connections.max.reauth.ms": SESSION_MS,
    }
    listeners = ("SASL_PLAINTEXT", "PLAINTEXT")
    with EmbeddedKafka(listeners=listeners, kerberos=True, properties=settings) as running:
        yield running


@pytest.fixture
def kdc(realm: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> EmbeddedKdc:
    assert realm.kdc is not None
    monkeypatch.setenv("KRB5_CONFIG", str(realm.kdc.krb5_conf))
    monkeypatch.setenv("KRB5CCNAME", "FILE:/no/such/cache")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", *realm.kdc.jvm_options)
    return realm.kdc


@pytest.fixture
def client(realm: EmbeddedKafka, kdc: EmbeddedKdc) -> dict[str, str]:
    require_gssapi()
    return plain_properties(realm)


def connect(client: dict[str, str], timeout_ms: int = 20_000, **changed: str) -> None:
    """Open a connection and close it; no retries, so the first error is shown."""
    named = {name.replace("_", "."): value for name, value in changed.items()}
    config = ClientConfig.from_properties(client | named)
    deadline = Deadline.after_ms(timeout_ms)
    Connection.open(config.bootstrap_servers[0], config=config, deadline=deadline).close()


def read(client: dict[str, str], topic: str, count: int) -> list[bytes | None]:
    with Consumer(client, topic, auto_offset_reset="earliest") as consumer:
        return [record.value for record in itertools.islice(consumer, count)]


def test_the_embedded_kdc_logs_java_in(realm: EmbeddedKafka, kdc: EmbeddedKdc) -> None:
    topic = realm.create_topic("java-alone")
    properties = java_properties(kdc)
    produce(realm.bootstrap_servers, topic, [("a", "1")], producer_properties=properties)
    (record,) = consume(realm.bootstrap_servers, topic, max_records=1, consumer_properties=properties)
    assert (record.key, record.value) == (b"a", b"1")


def test_java_reads_what_we_write_and_the_reverse(
    realm: EmbeddedKafka, kdc: EmbeddedKdc, client: dict[str, str]
) -> None:
    topic, properties = realm.create_topic("both-ways"), java_properties(kdc)
    pasted = properties | {"bootstrap.servers": realm.bootstrap_servers}
    with Producer(pasted) as producer:
        producer.send(topic, key="ours", value="1").result(60)
    (record,) = consume(realm.bootstrap_servers, topic, max_records=1, consumer_properties=properties)
    assert (record.key, record.value) == (b"ours", b"1")
    produce(realm.bootstrap_servers, topic, [("java", "2")], producer_properties=properties)
    assert read(client, topic, 2) == [b"1", b"2"]


def test_groups_and_admin(realm: EmbeddedKafka, client: dict[str, str]) -> None:
    topic = realm.create_topic("grouped")
    with Producer(client) as producer:
        producer.send(topic, value="1").result(60)
    group = f"group-{uuid.uuid4().hex}"
    with GroupConsumer(client, topic, group, auto_offset_reset="earliest") as member:
        assert next(iter(member)).value == b"1"
        member.commit()
    with Admin(client) as admin:
        assert len(admin.describe_cluster().brokers) == 1
        assert sum(one.lag or 0 for one in admin.group_lag(group).values()) == 0


def test_sessions_end_and_nothing_is_lost(
    realm: EmbeddedKafka, client: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers' connections.max.reauth.ms is 1.5 s, and the records take several of them."""
    topic, opened = realm.create_topic("sessions"), []
    make = kerberos.open_context
    monkeypatch.setattr(kerberos, "open_context", lambda *given: opened.append(1) or make(*given))
    sent = 0
    with Producer(client, linger_ms=0) as producer:
        deadline = Deadline.after_ms(60_000)
        while len(opened) < 5:
            assert not deadline.expired
            producer.send(topic, value=b"%d" % sent).result(30)
            sent += 1
    assert read(client, topic, sent) == [b"%d" % number for number in range(sent)]


def test_two_principals_in_one_process(
    realm: EmbeddedKafka, kdc: EmbeddedKdc, client: dict[str, str]
) -> None:
    topic = realm.create_topic("of-alice")
    bob = plain_properties(realm, "bob")
    with Producer(client) as alices, Producer(bob) as bobs:
        alices.send(topic, value="1").result(60)
        with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED"):
            bobs.send(topic, value="2").result(60)
        realm.allow("bob", "all", "topic", topic)
        alices.send(topic, value="3").result(60)
    assert read(bob, topic, 2) == [b"1", b"3"]


def test_addresses_and_names_are_the_same_broker(realm: EmbeddedKafka, client: dict[str, str]) -> None:
    port = realm.bootstrap_servers.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost", "LOCALHOST"):
        connect(client, bootstrap_servers=f"{host}:{port}")


def test_many_threads_log_in_at_once(client: dict[str, str]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            connect(client)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def describe(client: dict[str, str]) -> None:
    with Admin(client) as admin:
        admin.describe_cluster()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_of_a_fork_logs_in_for_itself(client: dict[str, str]) -> None:
    describe(client)
    child = multiprocessing.get_context("fork").Process(target=describe, args=(client,))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_a_login_leaves_no_ticket_cache_behind(
    client: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gssapi

    names: list[str] = []

    class Noted(MemoryCache):
        def __init__(self) -> None:
            super().__init__()
            names.append(self.name)

    def living() -> list[str]:
        found = []
        for name in names:
            with suppress(gssapi.exceptions.GSSError):
                gssapi.Credentials(usage="initiate", store={b"ccache": name.encode()})
                found.append(name)
        return found

    monkeypatch.setattr(kerberos, "MemoryCache", Noted)
    security = ClientConfig.from_properties(client).security
    kerberos.forget_login(security)
    for _ in range(3):
        # The second connection has the tickets of the first one.
        connect(client)
        connect(client)
        assert living() == names[-1:]
        kerberos.forget_login(security)
    gc.collect()
    assert len(names) == 3
    assert living() == []


# --- what goes wrong, in its own words ----------------------------------------------------------------------


def test_an_unknown_service(client: dict[str, str]) -> None:
    with pytest.raises(
        AuthenticationError, match=r"does not know the service kafkax/localhost@EXAMPLE.COM\. "
    ):
        connect(client, sasl_kerberos_service_name="kafkax")


def test_a_principal_that_was_deleted(kdc: EmbeddedKdc, client: dict[str, str], tmp_path: Path) -> None:
    keytab = tmp_path / "gone.keytab"
    keytab.write_bytes(kdc.keytab("gone").read_bytes())
    kdc.delete("gone")
    principal = kdc.principal("gone")
    with pytest.raises(AuthenticationError, match=r"the KDC does not know gone@EXAMPLE.COM; is sasl.kerb"):
        connect(client, sasl_kerberos_principal=principal, sasl_kerberos_keytab=str(keytab))


def test_a_keytab_with_an_old_key(kdc: EmbeddedKdc, client: dict[str, str], tmp_path: Path) -> None:
    keytab = tmp_path / "old.keytab"
    keytab.write_bytes(kdc.keytab("old").read_bytes())
    kdc.delete("old")
    kdc.keytab("old")
    principal = kdc.principal("old")
    with pytest.raises(AuthenticationError, match=r"no longer\) that of old@EXAMPLE.COM: export the keytab"):
        connect(client, sasl_kerberos_principal=principal, sasl_kerberos_keytab=str(keytab))


def test_a_keytab_that_is_not_here(client: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"sasl.kerberos.keytab: /no/such on .* can't be read"):
        connect(client, sasl_kerberos_keytab="/no/such")


def test_a_realm_that_krb5_conf_does_not_know(
    kdc: EmbeddedKdc, client: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "krb5.conf"
    conf.write_text(kdc.krb5_conf.read_text().replace("EXAMPLE.COM = {", "OTHER.COM = {"))
    monkeypatch.setenv("KRB5_CONFIG", str(conf))
    with pytest.raises(
        AuthenticationError, match=r"krb5.conf names no KDC for the realm of alice@EXAMPLE.COM"
    ):
        connect(client)


def test_a_kdc_that_is_down(
    kdc: EmbeddedKdc, client: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "krb5.conf"
    conf.write_text(kdc.krb5_conf.read_text().replace(f":{kdc.port}", ":1"))
    monkeypatch.setenv("KRB5_CONFIG", str(conf))
    with pytest.raises(NetworkError, match=r"no KDC of the realm of alice@EXAMPLE.COM can be reached"):
        connect(client)


def test_no_ticket(client: dict[str, str]) -> None:
    nobody = {name: value for name, value in client.items() if "kerberos" not in name}
    with pytest.raises(SecurityError, match=r"there is no ticket; give sasl.kerberos.keytab"):
        connect(nobody)


def test_garbage_from_a_broker(client: dict[str, str]) -> None:
    security = ClientConfig.from_properties(client).security
    for garbage in (b"x", b"\x60\x84\xff\xff\xff\xff" + bytes(60_000), bytes(65_537)):
        mechanism = kerberos.gssapi_mechanism(security, "localhost", Deadline.after_ms(20_000))
        mechanism.start()
        with pytest.raises(AuthenticationError, match=r"^GSSAPI: "):
            mechanism.step(garbage)


def test_a_broker_without_the_key_of_the_ticket(client: dict[str, str], kdc: EmbeddedKdc) -> None:
    """It answers with an error token, as it can't answer with a proof."""
    import gssapi

    security = ClientConfig.from_properties(client).security
    mechanism = kerberos.gssapi_mechanism(security, "localhost", Deadline.after_ms(20_000))
    store = {b"keytab": f"FILE:{kdc.keytab('kafka/other')}".encode()}
    credential = gssapi.Credentials(usage="accept", store=store)
    answer = gssapi.SecurityContext(creds=credential, usage="accept").step(mechanism.start())
    with pytest.raises(AuthenticationError, match=r"^GSSAPI: "):
        mechanism.step(answer)


def test_a_service_with_another_time(
    client: dict[str, str], kdc: EmbeddedKdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a service that accepts no difference our clock is wrong a second later: it answers with the error
    token of one that is minutes ahead.
    """
    import gssapi

    security = ClientConfig.from_properties(client).security
    mechanism = kerberos.gssapi_mechanism(security, "localhost", Deadline.after_ms(20_000))
    first = mechanism.start()
    conf = tmp_path / "krb5.conf"
    conf.write_text(kdc.krb5_conf.read_text().replace("[libdefaults]", "[libdefaults]\n  clockskew = 0"))
    answers = []

    def refused() -> bool:
        store = {b"keytab": f"FILE:{kdc.keytab('kafka/localhost')}".encode()}
        service = gssapi.SecurityContext(
            creds=gssapi.Credentials(usage="accept", store=store), usage="accept"
        )
        answers.append(service.step(first))
        try:
            return not service.complete
        except gssapi.exceptions.GSSError:  # `step` has returned the token that goes with it
            return True

    with monkeypatch.context() as strict:
        strict.setenv("KRB5_CONFIG", str(conf))
        strict.setenv("KRB5RCACHENAME", "none:")  # the same message again is no replay
        wait_until("a refusal", refused)
    with pytest.raises(AuthenticationError, match=r"^GSSAPI: the clocks of this machine and of the KDC or"):
        mechanism.step(answers[-1])


# --- tickets that end ---------------------------------------------------------------------------------------


def test_a_ticket_cache_and_its_end(
    kdc: EmbeddedKdc, client: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    ticket(kdc, cache, "alice", "3s")
    module = "com.sun.security.auth.module.Krb5LoginModule"
    pasted = {name: value for name, value in client.items() if "kerberos" not in name} | {
        "sasl.jaas.config": f'{module} required useTicketCache=true renewTGT=true ticketCache="{cache}";'
    }
    connect(pasted)

    def expired() -> str:
        try:
            connect(pasted)
        except AuthenticationError as error:
            return str(error)
        return ""

    wait_until("the ticket's end", expired)
    assert "the ticket has expired; give sasl.kerberos.keytab" in expired()
    ticket(kdc, cache, "alice", "1h")
    connect(pasted)  # something else has made a new one: no restart is needed
    ticket(kdc, cache, "bob", "1h")
    other = pasted["sasl.jaas.config"].replace("required", 'required principal="alice"')
    with pytest.raises(AuthenticationError, match="the ticket cache has no ticket of alice;"):
        connect(pasted, sasl_jaas_config=other)


def ticket(kdc: EmbeddedKdc, cache: Path, user: str, lifetime: str) -> None:
    """Write what ``kinit -l lifetime`` would write."""
    import gssapi

    cache.unlink(missing_ok=True)
    conf = cache.with_name("short.conf")
    conf.write_text(
        kdc.krb5_conf.read_text().replace("[libdefaults]", f"[libdefaults]\n ticket_lifetime = {lifetime}")
    )
    store = {b"client_keytab": f"FILE:{kdc.keytab(user)}".encode(), b"ccache": f"FILE:{cache}".encode()}
    name = gssapi.Name(kdc.principal(user), gssapi.NameType.kerberos_principal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRB5_CONFIG", str(conf))
        assert gssapi.Credentials(name=name, usage="initiate", store=store).lifetime > 0


def test_tickets_that_end_are_renewed_on_the_way(
    realm: EmbeddedKafka,
    kdc: EmbeddedKdc,
    client: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tickets of 2 s under sessions of 1.5 s: the producer outlives several of both."""
    conf = tmp_path / "short.conf"
    conf.write_text(
        kdc.krb5_conf.read_text().replace("[libdefaults]", "[libdefaults]\n ticket_lifetime = 2s")
    )
    monkeypatch.setenv("KRB5_CONFIG", str(conf))
    topic, logins = realm.create_topic("tickets"), []
    acquire = kerberos._from_keytab
    monkeypatch.setattr(kerberos, "_from_keytab", lambda login: logins.append(1) or acquire(login))
    sent = 0
    with Producer(client, linger_ms=0) as producer:
        deadline = Deadline.after_ms(60_000)
        while len(logins) < 4:
            assert not deadline.expired
            producer.send(topic, value=b"%d" % sent).result(30)
            sent += 1
    assert read(client, topic, sent) == [b"%d" % number for number in range(sent)]


def test_no_key_in_a_pickle_or_a_log(
    kdc: EmbeddedKdc, client: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    content = kdc.keytab("alice").read_bytes()
    connect(client)
    config = ClientConfig.from_properties(client)
    for held in (pickle.dumps(config), repr(config).encode(), caplog.text.encode()):
        assert content[-32:] not in held
        assert content[-32:].hex().encode() not in held


# --- the command line ---------------------------------------------------------------------------------------


def run(client: dict[str, str], capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    given = [part for name, value in client.items() for part in ("-X", f"{name}={value}")]
    code = main([*arguments, *given])
    return code, capsys.readouterr().out


def test_the_command_line(
    realm: EmbeddedKafka, client: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    topic = realm.create_topic("of-the-cli")
    with Producer(client) as producer:
        producer.send(topic, value="from the client").result(60)
    assert run(client, capsys, "topics", "list")[0] == 0
    code, out = run(client, capsys, "tail", topic, "--from", "earliest")
    assert (code, "from the client" in out) == (0, True)


def test_the_doctor_walks_to_the_broker(
    realm: EmbeddedKafka, kdc: EmbeddedKdc, client: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(client, capsys, "doctor")
    found = dict(line.split("\t")[1::-1] for line in out.splitlines())
    assert code == 0
    assert {check for check in found if "erberos" in check or "KDC" in check or "Kafka" in check} == {
        "Kerberos configuration",
        "KDC of EXAMPLE.COM",
        f"Kerberos login by keytab {kdc.keytab('alice')}",
        "Kerberos ticket for 127.0.0.1",
        f"Kafka {realm.bootstrap_servers}",
    }
    assert "\tkafka/localhost@" in out
    assert "alice@EXAMPLE.COM, for 24.0 hours" in out


@pytest.mark.parametrize(
    ("changed", "last", "says"),
    [
        ({"sasl.kerberos.keytab": "/no/such"}, "Kerberos login by keytab /no/such", "can't be read"),
        (
            {"sasl.kerberos.service.name": "x"},
            "Kerberos ticket for 127.0.0.1",
            "does not know the service x/",
        ),
        ({"sasl.kerberos.principal": "alice@OTHER"}, "KDC of OTHER", "realms with one: EXAMPLE.COM"),
        ({"sasl.jaas.config": "file:/no/such"}, "Kerberos login", "sasl.jaas.config: /no/such on"),
    ],
)
def test_the_doctor_stops_where_the_way_ends(
    client: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, str],
    last: str,
    says: str,
) -> None:
    if "sasl.jaas.config" in changed:
        client = {name: value for name, value in client.items() if "kerberos" not in name}
    code, out = run(client | changed, capsys, "doctor")
    (line,) = [line for line in out.splitlines() if line.startswith("ERROR")][:1]
    assert code == 1
    assert line.split("\t")[1] == last
    assert says in line
    assert "\nok\tKafka" not in out


def test_the_doctor_without_a_configuration(
    client: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CONFIG", "/no/such.conf")
    out = run(client, capsys, "doctor")[1]
    assert "WARNING\tKerberos configuration\t/no/such.conf can't be read\tName the file in KRB5_CONFIG" in out
    assert "note\tKDC of EXAMPLE.COM\tkrb5.conf has no kdc of it: DNS is asked" in out


def test_the_doctor_with_a_kdc_that_is_down(
    kdc: EmbeddedKdc,
    client: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf = tmp_path / "krb5.conf"
    conf.write_text(kdc.krb5_conf.read_text().replace(f":{kdc.port}", ":1"))
    monkeypatch.setenv("KRB5_CONFIG", str(conf))
    out = run(client, capsys, "doctor")[1]
    assert "WARNING\tKDC of EXAMPLE.COM\t127.0.0.1:1: " in out
    assert "no KDC of the realm of alice@EXAMPLE.COM can be reached" in out
