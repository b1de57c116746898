"""What `doctor` finds on the way to a cluster."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from spark_kafka_native.cli import doctor, kerberos_walk
from spark_kafka_native.cli.doctor import Finding
from spark_kafka_native.cli.main import main
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.kerberos_login import KerberosLogin
from spark_kafka_native.kafka.errors import AuthenticationError, NetworkError
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.security import tls
from spark_kafka_native.kafka.security.krb5_files import Krb5Conf
from spark_kafka_native.testing import Effect, MockBroker


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker(3) as broker:
        yield broker


def config(broker: MockBroker, **properties: str) -> ClientConfig:
    servers = broker.bootstrap_servers.split(",")[0]
    return ClientConfig.from_properties({"bootstrap.servers": servers} | properties)


def test_the_next_address_of_a_name_is_tried_where_the_first_refuses(broker: MockBroker) -> None:
    client = config(broker)
    (address,) = client.bootstrap_servers
    with socket.socket() as unused:
        unused.bind(("127.0.0.2", int(address.rpartition(":")[2])))  # bound: nothing else comes to listen
        found = doctor._check_tcp(address, ["127.0.0.2", "127.0.0.1"], client)
    assert found.status == "warning"
    assert found.detail.startswith("127.0.0.1 in ")
    assert "after 127.0.0.2: " in found.detail


def test_an_address_has_the_time_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the system, which waits for minutes where a firewall drops packets."""
    waited_s: list[float] = []

    def drop(_: Any, timeout: float) -> socket.socket:
        waited_s.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", drop)
    settings = {"bootstrap.servers": "127.0.0.1:9092", "socket.connection.setup.timeout.ms": "1500"}
    found = list(doctor.check_address("127.0.0.1:9092", ClientConfig.from_properties(settings)))
    assert [one.status for one in found] == ["ok", "error"]
    assert found[1].detail == "127.0.0.1: timed out"
    assert waited_s == [1.5]


def test_each_broker_has_a_time_of_its_own(broker: MockBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[Any] = []

    def opened(host: str, port: int, client: ClientConfig, deadline: Any) -> Connection:
        limits.append(deadline)
        return opens(host, port, client, deadline)

    with closing(Router(config(broker))) as router:
        router.metadata(())
        opens = Connection.open
        monkeypatch.setattr(Connection, "open", opened)
        found = list(doctor.check_cluster(router))
    assert [one.status for one in found] == ["ok"] * 4
    assert len({id(one) for one in limits}) == 3


@pytest.mark.parametrize("leader", [-1, 9], ids=["none", "a broker that is gone"])
@pytest.mark.parametrize("lost", [0, 1, 6])
def test_partitions_without_a_leader_are_named(broker: MockBroker, lost: int, leader: int) -> None:
    """A broker with a failed disk takes no part in it, and answers all else."""
    broker.create_topic("many", partitions=7)

    def lose(fields: dict[str, Any]) -> None:
        for topic in fields["topics"]:
            for one in topic["partitions"]:
                if topic["name"] == "many" and one["partition_index"] < lost:
                    one["leader_id"] = leader

    broker.on("Metadata", times=None).change(lose)
    with closing(Router(config(broker))) as router:
        (found,) = doctor.check_leaders(router)
    names = {0: "7 partitions have one", 1: "1 of 7 partitions have no leader: many-0"}
    more = "6 of 7 partitions have no leader: many-0, many-1, many-2, many-3, many-4, ..."
    assert (found.status, found.detail) == ("warning" if lost else "ok", names.get(lost, more))


@pytest.mark.parametrize("status", ["ok", "warning", "error"])
def test_findings_about_kerberos_are_shown_and_errors_end_the_way(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    found = Finding(check="KDC", status=status, detail="it is")
    monkeypatch.setattr(kerberos_walk, "check_kerberos", lambda *_: [found])
    monkeypatch.setattr(doctor, "_check_exchange", lambda *_: [replace(found, check="exchange")])
    client = config(
        broker,
        **{
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "k",
        },
    )
    shown = [one.check for one in doctor.check_address(client.bootstrap_servers[0], client)]
    assert shown[2:] == (["KDC"] if status == "error" else ["KDC", "exchange"])


def test_a_kdc_may_listen_on_another_port(broker: MockBroker) -> None:
    (address,) = config(broker).bootstrap_servers
    (found,) = kerberos_walk._check_reachable("KDC of R", [address], 20.0)
    assert found.status == "ok"


@pytest.mark.parametrize(
    ("kdc", "asked"),
    [
        ("[::1]:750", ("::1", 750)),
        ("[::1]", ("::1", 88)),
        ("::1", ("::1", 88)),
        ("h", ("h", 88)),
        ("h:750", ("h", 750)),
    ],
)
def test_the_address_of_a_kdc_may_be_ipv6(
    monkeypatch: pytest.MonkeyPatch, kdc: str, asked: tuple[str, int]
) -> None:
    made: list[tuple[str, int]] = []
    connected = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(
        kerberos_walk.socket, "create_connection", lambda address, _: made.append(address) or connected
    )
    (found,) = kerberos_walk._check_reachable("KDC of R", [kdc], 1.0)
    assert (found.status, made) == ("ok", [asked])


def test_a_broker_that_does_not_answer_is_one_finding(broker: MockBroker) -> None:
    client = config(broker)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        (found,) = doctor._check_exchange(*unused.getsockname(), client)
    assert found.status == "error"


@pytest.mark.parametrize("place", [0, 1])
def test_the_cluster_is_checked_if_one_of_its_addresses_can_be_reached(
    broker: MockBroker, capsys: pytest.CaptureFixture[str], place: int
) -> None:
    (address,) = config(broker).bootstrap_servers
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        addresses = [address]
        addresses.insert(place, f"127.0.0.1:{unused.getsockname()[1]}")
        assert main(["doctor", "-b", ",".join(addresses)]) == 1
    checked = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
    assert [one for one in checked if one.startswith("broker ")] == [
        f"broker {number} advertises {one}"
        for number, one in enumerate(broker.bootstrap_servers.split(","), start=1)
    ]


NO_KAFKA = Effect().send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
TOO_OLD = Effect().fail("UNSUPPORTED_VERSION")


@pytest.mark.parametrize("answer", [NO_KAFKA, TOO_OLD], ids=["no Kafka", "too old"])
def test_a_server_that_a_client_cannot_talk_to_is_one_finding_of_several(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: Effect
) -> None:
    monkeypatch.setattr(doctor, "check_machine", lambda: [Finding(check="Java", status="ok", detail="it is")])
    broker.on("ApiVersions", node_id=1, times=None).choose(lambda _: answer)
    assert main(["doctor", "--json", "-b", broker.bootstrap_servers]) == 1
    found = json.loads(capsys.readouterr().out)
    exchanges = [one["status"] for one in found if one["check"].startswith("Kafka ")]
    assert exchanges == ["error", "ok", "ok"]
    assert found[-1]["check"] == "Java"


def test_a_name_without_an_address_makes_the_exit_code_though_another_broker_is_reached(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resolve = socket.getaddrinfo

    def without_one(host: str, *others: Any, **settings: Any) -> Any:
        if host == "misspelled.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *others, **settings)

    monkeypatch.setattr(socket, "getaddrinfo", without_one)
    monkeypatch.setattr(doctor, "check_machine", list)
    (address,) = config(broker).bootstrap_servers
    assert main(["doctor", "-b", f"{address},misspelled.example:9092"]) == 1
    found = [line.split("\t")[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["ERROR", "name misspelled.example"] in found
    assert "TCP misspelled.example:9092" not in [check for _, check in found]


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("note", 0), ("warning", 0), ("error", 1)])
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["lines", "json"])
def test_errors_alone_make_the_exit_code(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, form: list[str], status: str, code: int
) -> None:
    """The clock that was not measured is a note."""
    found = Finding(check="Java", status=status, detail="it is")
    monkeypatch.setattr(doctor, "check_machine", lambda: [found])
    assert main(["doctor", *form, "-b", broker.bootstrap_servers]) == code


@pytest.mark.parametrize(
    ("login", "checked"), [("error", ["KDC", "login"]), ("ok", ["KDC", "login", "ticket"])]
)
def test_each_step_of_kerberos_is_shown_up_to_the_first_that_fails(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, login: str, checked: list[str]
) -> None:
    def finding(check: str, status: str) -> Finding:
        return Finding(check=check, status=status, detail="it is")

    monkeypatch.setattr(kerberos_walk, "login_of", lambda _: None)
    monkeypatch.setattr(kerberos_walk, "_check_kdcs", lambda *_: [finding("KDC", "warning")])
    monkeypatch.setattr(kerberos_walk, "_check_login", lambda *_: finding("login", login))
    monkeypatch.setattr(kerberos_walk, "_check_ticket", lambda *_: finding("ticket", "error"))
    found = list(kerberos_walk.check_kerberos("host", config(broker)))
    assert [one.check for one in found][1:] == checked


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_that_controls_a_terminal_is_printed_of_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    """Texts of brokers and registries are among them."""
    monkeypatch.setattr(doctor, "on_terminal", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    doctor._show(Finding(check="a\x1b[2K", status="error", detail="b\x1b[1A", advice="c\x1b[2K"))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert [shown.count(one) for one in ("a\\x1b[2K", "b\\x1b[1A", "c\\x1b[2K")] == [1, 1, 1]


def test_a_port_that_says_nothing_is_no_tls_after_the_time_of_a_connection(broker: MockBroker) -> None:
    client = config(broker, **{"security.protocol": "SSL", "socket.connection.setup.timeout.ms": "20"})
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = doctor._check_tls(*silent.getsockname(), client)
    assert time.monotonic() - began < 10
    assert (found.status, found.detail.startswith("no handshake: ")) == ("error", True)


@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        (9, "", "is this machine's clock right"),
        (10, "", "the broker needs a new one"),
        (20, "", "Give the authority"),
        (62, "", "one of the names in the certificate"),
        (64, "", "an address in the certificate"),
        (None, "TLSV1_ALERT_PROTOCOL_VERSION", "no TLS version in common"),
        (None, "UNSUPPORTED_PROTOCOL", "no TLS version in common"),
        (None, "WRONG_VERSION_NUMBER", "Does that port speak TLS?"),
    ],
)
def test_what_to_do_about_a_handshake_follows_from_its_failure(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, code: int | None, reason: str, advice: str
) -> None:
    """For a certificate that has expired it was: give its authority."""
    failure = ssl.SSLError(1, "handshake") if code is None else ssl.SSLCertVerificationError(1, "verify")
    failure.reason = reason
    if code is not None:
        failure.verify_code, failure.verify_message = code, "no"  # type: ignore[attr-defined]
    context = mock.Mock(check_hostname=True)
    context.wrap_socket.side_effect = failure
    monkeypatch.setattr(tls, "tls_context", lambda _security: context)
    host, _, port = broker.bootstrap_servers.split(",")[0].partition(":")
    found = doctor._check_tls(host, int(port), config(broker))
    assert (found.status, advice in found.advice) == ("error", True)


@pytest.mark.parametrize(("code", "checks"), [(0, ["writing", "clock"]), (29, ["writing"])])
def test_the_topic_of_a_test_write_is_deleted(broker: MockBroker, code: int, checks: list[str]) -> None:
    """Also if the write is refused (TOPIC_AUTHORIZATION_FAILED)."""

    def answer(fields: dict[str, Any]) -> None:
        for topic in fields["responses"]:
            for partition in topic["partition_responses"]:
                partition["error_code"] = code

    broker.on("Produce", times=None).change(answer)
    with closing(Router(config(broker))) as router:
        found = list(doctor.check_writing(router))
    assert [one.check for one in found] == checks
    assert (found[0].status == "error") == (code != 0)
    assert len(broker.asked("CreateTopics")) == len(broker.asked("DeleteTopics")) == 1


@pytest.mark.parametrize("refused", [False, True])
def test_the_topic_of_a_test_write_is_deleted_although_an_answer_to_its_creation_was_lost(
    broker: MockBroker, refused: bool
) -> None:
    before = list(broker.cluster.topics)
    broker.on("CreateTopics").cut()
    if refused:
        broker.on("CreateTopics").fail("POLICY_VIOLATION")
    with closing(Router(config(broker))) as router:
        found = list(doctor.check_writing(router))
    assert (found[0].check, found[0].status) == ("writing", "error" if refused else "ok")
    assert ("can be made and deleted" in found[0].advice) == refused
    assert len(broker.asked("CreateTopics")) == 2
    assert list(broker.cluster.topics) == before


@pytest.mark.parametrize(
    ("version", "finding"), [("21.0.4", "ok: 21 at "), ("11.0.2", "warning: "), ("1.8.0_392", "warning: ")]
)
@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_javas_version_is_found_on_both_of_its_streams(
    tmp_path: Path, version: str, stream: str, finding: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    to = ">&2" if stream == "stderr" else ""
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-07-16' {to}\n")
    java.chmod(0o755)
    found = doctor._java({"JAVA_HOME": str(tmp_path)})
    assert f"{found.status}: {found.detail}".startswith(finding)
    assert str(java) in found.detail


@pytest.mark.parametrize(
    ("skew_ms", "took_ms", "status", "where"),
    [
        (3_000, 100, "warning", "ahead"),
        (-3_000, 100, "warning", "behind"),
        (2_040, 100, "ok", "ahead"),
        (-2_040, 100, "ok", "behind"),
        (3_000, 2_500, "ok", "ahead"),
    ],
)
def test_a_clock_is_wrong_in_both_directions_beyond_what_the_way_takes(
    skew_ms: float, took_ms: float, status: str, where: str
) -> None:
    found = doctor._judge_clock(skew_ms, took_ms)
    assert (found.status, f"{abs(skew_ms)} ms {where}" in found.detail) == (status, True)


@pytest.mark.parametrize(("days", "status"), [(-1, "warning"), (29, "warning"), (31, "ok"), (400, "ok")])
def test_a_certificate_is_to_be_renewed_in_its_last_month(days: int, status: str) -> None:
    until = time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(time.time() + days * 86_400 + 3_600))
    encrypted: Any = SimpleNamespace(
        getpeercert=lambda: {"notAfter": until, "issuer": ((("commonName", "CA"),),)},
        version=lambda: "TLSv1.3",
    )
    found = doctor._judge_certificate("TLS", encrypted)
    assert (found.status, "issued by CA" in found.detail) == (status, True)


@pytest.mark.parametrize(
    ("soft", "status"), [(256, "warning"), (1_023, "warning"), (1_024, "ok"), (-1, "ok")]
)
def test_open_files_without_a_limit_are_not_few(
    monkeypatch: pytest.MonkeyPatch, soft: int, status: str
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _what: (soft, -1))
    assert doctor._open_files().status == status


def test_a_setting_of_spark_is_that_of_its_whole_name(tmp_path: Path) -> None:
    path = tmp_path / "spark-defaults.conf"
    path.write_text("# a.b true\na.b.c  true\na.bc=true\n  a.b = False\na.b true\nalone\n")
    assert [doctor._setting(path, name) for name in ("a.b", "a.b.c", "a", "alone")] == [
        "false",
        "true",
        None,
        None,
    ]


@pytest.mark.parametrize("writes", [True, False])
def test_a_topic_is_written_to_only_on_request(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], writes: bool
) -> None:
    monkeypatch.setattr(doctor, "check_machine", list)
    options = ["--write"] if writes else []
    assert main(["doctor", "--json", *options, "-b", broker.bootstrap_servers]) == 0
    clock = {one["check"]: one["status"] for one in json.loads(capsys.readouterr().out)}["clock"]
    assert (clock, len(broker.asked("CreateTopics"))) == (("ok", 1) if writes else ("note", 0))


@pytest.mark.parametrize("name", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_a_python_of_spark_that_does_not_exist_is_named(name: str) -> None:
    found = {one.check: one for one in doctor._spark({name: "/nowhere/python"})}
    assert (found[name].status, "/nowhere/python" in found[name].detail) == ("warning", True)
    assert name not in {one.check for one in doctor._spark({name: sys.executable})}


@pytest.mark.parametrize(
    ("principal", "lookup", "kdcs", "status", "check"),
    [
        ("me", "true", {}, "note", "KDC of R"),
        ("me", "false", {}, "error", "KDC of R"),
        ("me", "false", {"R": 1}, "ok", "KDC of R"),
        ("me@S", "false", {"R": 1}, "error", "KDC of S"),
        ("me@S", "true", {"R": 1, "S": 2}, "ok", "KDC of S"),
        (None, "true", {"R": 1}, "ok", "KDC of R"),
    ],
)
def test_kdcs_are_those_of_the_realm_of_the_principal(
    broker: MockBroker, principal: str | None, lookup: str, kdcs: dict[str, int], status: str, check: str
) -> None:
    """Without one in the file, DNS is asked, unless that is switched off."""
    addresses = broker.bootstrap_servers.split(",")
    conf = Krb5Conf(
        defaults={"default_realm": "R", "dns_lookup_kdc": lookup},
        kdcs={realm: [addresses[number]] for realm, number in kdcs.items()},
    )
    (found,) = kerberos_walk._check_kdcs(KerberosLogin(principal=principal), conf, config(broker))
    assert (found.check, found.status) == (check, status)
    if status == "ok":
        assert found.detail.startswith(addresses[kdcs[check[-1]]])


@pytest.mark.parametrize(
    ("keytab", "lifetime_s", "status"),
    [(None, 599, "warning"), (None, 600, "ok"), ("k.keytab", 599, "ok"), ("k.keytab", 36_000, "ok")],
)
def test_a_ticket_that_ends_soon_is_said_where_no_keytab_renews_it(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, keytab: str | None, lifetime_s: int, status: str
) -> None:
    monkeypatch.setattr(kerberos_walk, "log_in", lambda *_: ("me@R", lifetime_s))
    found = kerberos_walk._check_login(KerberosLogin(principal="me", keytab=keytab), config(broker))
    assert (found.status, found.detail.startswith("me@R, for ")) == (status, True)


@pytest.mark.parametrize(
    ("kdc", "address"),
    [
        ("kdc.example", ("kdc.example", 88)),
        ("kdc.example:750", ("kdc.example", 750)),
        ("2001:db8::1", ("2001:db8::1", 88)),
    ],
)
@pytest.mark.parametrize("reached", [True, False])
def test_each_kdc_is_tried_at_its_port_and_one_that_is_down_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, kdc: str, address: tuple[str, int], reached: bool
) -> None:
    """The others may be reached, and there is UDP, too."""
    asked: list[Any] = []

    def connect(*given: Any) -> Any:
        asked.append(given)
        if not reached:
            raise ConnectionRefusedError("refused")
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(socket, "create_connection", connect)
    found = list(kerberos_walk._check_reachable("KDC of R", [kdc, kdc], 2.5))
    assert [one.status for one in found] == ["ok" if reached else "warning"] * 2
    assert asked == [(address, 2.5)] * 2


def test_a_failure_of_kerberos_is_a_finding(broker: MockBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise AuthenticationError("no ticket")

    client, login = config(broker), KerberosLogin(principal="me")
    monkeypatch.setattr(kerberos_walk, "log_in", refuse)
    monkeypatch.setattr(kerberos_walk, "open_context", refuse)
    for found in (
        kerberos_walk._check_login(login, client),
        kerberos_walk._check_ticket("host", login, client),
    ):
        assert (found.status, "no ticket" in found.detail) == ("error", True)
    monkeypatch.setattr(kerberos_walk, "login_of", refuse)
    found = list(kerberos_walk.check_kerberos("host", client))[-1]
    assert (found.check, found.status) == ("Kerberos login", "error")


@pytest.mark.parametrize(("files", "status"), [(["/a"], "ok"), ([], "warning")])
def test_a_configuration_of_kerberos_that_can_not_be_read_is_said(files: list[str], status: str) -> None:
    assert kerberos_walk._check_files(Krb5Conf(files=files)).status == status


@pytest.mark.parametrize(
    ("servers", "host", "local"),
    [
        ("kafka.example:9092", "localhost", True),
        ("kafka.example:9092", "127.0.0.1", True),
        ("kafka.example:9092,localhost:9092", "localhost", True),
        ("kafka.example:9092", "other.example", False),
        ("localhost:9092", "localhost", False),
    ],
)
def test_a_broker_that_advertises_itself_as_local_is_told_apart_from_one_that_is_down(
    monkeypatch: pytest.MonkeyPatch, servers: str, host: str, local: bool
) -> None:
    def refuse(*_: object) -> Any:
        raise NetworkError("refused")

    monkeypatch.setattr(Connection, "open", refuse)
    brokers = {1: SimpleNamespace(host=host, port=9092)}
    router: Any = SimpleNamespace(
        config=ClientConfig.from_properties({"bootstrap.servers": servers}),
        deadline=lambda _: None,
        metadata=lambda *_, **__: SimpleNamespace(cluster_id="c", brokers=brokers),
    )
    found = list(doctor.check_cluster(router))
    assert [one.status for one in found] == ["ok", "error"]
    assert ("advertises itself as local" in found[1].advice) == local


def test_a_certificate_that_is_not_verified_is_not_said_to_be_good() -> None:
    encrypted: Any = SimpleNamespace(getpeercert=lambda: None, version=lambda: "TLSv1.3")
    found = doctor._judge_certificate("TLS", encrypted)
    assert (found.status, "not verified" in found.advice) == ("note", True)


def test_nothing_is_written_where_no_topic_can_be_made(broker: MockBroker) -> None:
    broker.on("CreateTopics", times=None).fail("CLUSTER_AUTHORIZATION_FAILED")
    with closing(Router(config(broker))) as router:
        (found,) = doctor.check_writing(router)
    assert (found.check, found.status) == ("writing", "error")
    assert broker.asked("Produce") == []


@pytest.mark.parametrize(
    ("protocol", "status", "checked"),
    [
        ("PLAINTEXT", "error", ["exchange"]),
        ("SSL", "ok", ["TLS", "exchange"]),
        ("SSL", "warning", ["TLS", "exchange"]),
        ("SSL", "error", ["TLS"]),
    ],
)
def test_encryption_is_checked_where_it_is_used(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, protocol: str, status: str, checked: list[str]
) -> None:
    found = Finding(check="TLS", status=status, detail="it is")
    monkeypatch.setattr(doctor, "_check_tls", lambda *_: found)
    monkeypatch.setattr(doctor, "_check_exchange", lambda *_: [replace(found, check="exchange")])
    client = config(broker, **{"security.protocol": protocol})
    shown = [one.check for one in doctor.check_address(client.bootstrap_servers[0], client)]
    assert shown[2:] == checked


@pytest.mark.parametrize(("content", "status"), [("no program", "warning"), (None, "note")])
def test_a_java_that_does_not_run_is_a_finding(tmp_path: Path, content: str | None, status: str) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    if content is not None:
        java.write_text(content)
        java.chmod(0o755)
    found = doctor._java({"JAVA_HOME": str(tmp_path)})
    assert (found.check, found.status) == ("Java", status)
    assert str(tmp_path) in found.detail
