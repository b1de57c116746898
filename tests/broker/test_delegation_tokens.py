"""Delegation tokens on a real broker: ours are good for Java and Java's for us, as long as they live."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.consumer.reading import wait_until

from spark_kafka_native.cli.main import main
from spark_kafka_native.kafka import (
    Admin,
    AuthenticationError,
    BrokerError,
    Consumer,
    DelegationToken,
    ErrorCode,
    NewTopic,
    Producer,
    Secret,
)
from spark_kafka_native.kafka.config.jaas import SCRAM_MODULE
from spark_kafka_native.testing import ACLS, EmbeddedKafka
from spark_kafka_native.testing.console import consume
from spark_kafka_native.testing.java import jars, java_command

pytestmark = pytest.mark.broker

USERS = {"alice": "alice-marked", "bob": "bob-marked"}
DAY_MS = 86_400_000
Settings = dict[str, str]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    properties = {**ACLS, "delegation.token.secret.key": "not-for-production"}
    listeners = ("SASL_PLAINTEXT", "PLAINTEXT", "SSL")
    with EmbeddedKafka(
        listeners=listeners, users=USERS, client_auth="requested", properties=properties
    ) as running:
        with Admin(running.bootstrap_servers_for("PLAINTEXT")) as admin:
            admin.create_topics([NewTopic("orders", 1)])
        for user in USERS:
            running.allow(user, "all", "topic", "orders")
        running.allow("alice", "all", "group", "readers")
        yield running


def settings(kafka: EmbeddedKafka, user: str = "alice", mechanism: str = "SCRAM-SHA-256") -> Settings:
    return {
        "bootstrap.servers": kafka.bootstrap_servers_for("SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": USERS[user],
        "default.api.timeout.ms": "60000",
    }


def with_token(kafka: EmbeddedKafka, token: DelegationToken, mechanism: str = "SCRAM-SHA-256") -> Settings:
    login = {"sasl.username": token.token_id, "sasl.password": token.hmac.reveal(), "sasl.tokenauth": "true"}
    return settings(kafka, mechanism=mechanism) | login


def as_jaas(token_id: str, hmac: str) -> str:
    return f'{SCRAM_MODULE} required username="{token_id}" password="{hmac}" tokenauth="true";'


@pytest.fixture(scope="module")
def alice(kafka: EmbeddedKafka) -> Iterator[Admin]:
    with Admin(settings(kafka)) as admin:
        yield admin


@pytest.fixture(scope="module")
def bob(kafka: EmbeddedKafka) -> Iterator[Admin]:
    with Admin(settings(kafka, "bob")) as admin:
        yield admin


@pytest.fixture
def token(alice: Admin) -> DelegationToken:
    made = alice.create_delegation_token()
    alice.await_delegation_token(made)
    return made


def write(login: Settings, value: str) -> None:
    with Producer(login) as producer:
        producer.send("orders", value=value)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("form", ["options", "jaas"])
def test_a_token_is_a_login(kafka: EmbeddedKafka, token: DelegationToken, mechanism: str, form: str) -> None:
    login = with_token(kafka, token, mechanism)
    if form == "jaas":
        login = {
            name: value
            for name, value in login.items()
            if name not in ("sasl.username", "sasl.password", "sasl.tokenauth")
        } | {"sasl.jaas.config": as_jaas(token.token_id, token.hmac.reveal())}
    value = f"{mechanism}-{form}"
    write(login, value)
    with Consumer(login, "orders", stop_at_end=True) as consumer:
        assert value.encode() in [record.value for record in consumer]


def test_javas_client_logs_in_with_our_token(kafka: EmbeddedKafka, token: DelegationToken) -> None:
    write(with_token(kafka, token), "for Java")
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": as_jaas(token.token_id, token.hmac.reveal()),
        "group.id": "readers",
    }
    found = consume(kafka.bootstrap_servers_for("SASL_PLAINTEXT"), "orders", consumer_properties=properties)
    assert b"for Java" in [record.value for record in found]


def run_javas_tool(kafka: EmbeddedKafka, folder: Path, *arguments: str) -> list[list[str]]:
    """The rows of the table that ``kafka-delegation-tokens.sh`` prints, the heading first."""
    login = f'{SCRAM_MODULE} required username="alice" password="{USERS["alice"]}";'
    config = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": login,
    }
    file = folder / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    command = [*java_command(folder, jars()), "org.apache.kafka.tools.DelegationTokenCommand"]
    servers = ("--bootstrap-server", kafka.bootstrap_servers_for("SASL_PLAINTEXT"))
    ran = subprocess.run(
        [*command, *servers, "--command-config", str(file), *arguments],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = [line.split() for line in ran.stdout.splitlines() if line.strip()]
    return rows[next(at for at, row in enumerate(rows) if row[:1] == ["TOKENID"]) :]


def test_javas_tool_and_we_see_the_same_tokens(
    kafka: EmbeddedKafka, alice: Admin, bob: Admin, tmp_path: Path
) -> None:
    javas = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    heading, made = run_javas_tool(kafka, tmp_path, *javas)
    token_id, hmac, owner = (made[heading.index(name)] for name in ("TOKENID", "HMAC", "OWNER"))
    wait_until("it is known", lambda: token_id in {t.token_id for t in bob.describe_delegation_tokens()}, 60)
    (found,) = (t for t in bob.describe_delegation_tokens() if t.token_id == token_id)
    assert (found.owner, found.requester, found.renewers) == (owner, "User:alice", ("User:bob",))
    assert found.hmac == Secret(hmac)
    assert found.expires_ms - found.issued_ms == DAY_MS
    assert found.max_ms - found.issued_ms == 7 * DAY_MS
    write(with_token(kafka, found), "with Java's token")

    ours = alice.create_delegation_token(max_lifetime_ms=3_600_000)
    assert ours.max_ms - ours.issued_ms == 3_600_000
    alice.await_delegation_token(ours)
    rows = run_javas_tool(kafka, tmp_path, "--describe", "--owner-principal", "User:alice")[1:]
    assert {token_id, ours.token_id} <= {row[0] for row in rows}

    assert bob.renew_delegation_token(found, period_ms=60_000) < found.expires_ms
    assert bob.expire_delegation_token(found, after_ms=30_000) < found.expires_ms
    bob.expire_delegation_token(found)
    with pytest.raises(BrokerError, match="only the owner and the renewers") as raised:
        bob.expire_delegation_token(ours)
    assert raised.value.error_code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    wait_until(
        "it is gone", lambda: token_id not in {t.token_id for t in alice.describe_delegation_tokens()}, 60
    )


def refusal(ask: object) -> tuple[ErrorCode, str]:
    with pytest.raises(BrokerError) as raised:
        ask()  # type: ignore[operator]
    return raised.value.error_code, str(raised.value)


def test_each_refusal_has_its_sentence(
    kafka: EmbeddedKafka, alice: Admin, bob: Admin, token: DelegationToken
) -> None:
    code, said = refusal(lambda: alice.create_delegation_token(owner="User:bob"))
    assert code is ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert "creating a delegation token of User:bob" in said
    assert "CreateTokens" in said
    with Admin(kafka.bootstrap_servers_for("PLAINTEXT")) as nobody:
        assert refusal(nobody.create_delegation_token)[0] is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    with Admin(with_token(kafka, token)) as holder:
        for ask in (
            holder.create_delegation_token,
            lambda: holder.renew_delegation_token(token),
            lambda: holder.expire_delegation_token(token),
            holder.describe_delegation_tokens,
        ):
            code, said = refusal(ask)
            assert code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            assert "never after a login with a token" in said
            assert token.hmac.reveal() not in said
    code, said = refusal(lambda: alice.create_delegation_token(renewers=["Group:ops"]))
    assert code is ErrorCode.INVALID_PRINCIPAL_TYPE
    alice.expire_delegation_token(token)
    assert refusal(lambda: alice.renew_delegation_token(token))[0] is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert token.token_id not in {one.token_id for one in bob.describe_delegation_tokens()}


def test_a_token_is_made_for_another_owner(kafka: EmbeddedKafka, alice: Admin, bob: Admin) -> None:
    kafka.allow("bob", "create_tokens", "user", "User:alice")
    deadline = time.monotonic() + 60
    while True:  # a rule takes a moment to reach the authorizer
        try:
            made = bob.create_delegation_token(owner="User:alice")
            break
        except BrokerError:
            assert time.monotonic() < deadline
    assert (made.owner, made.requester) == ("User:alice", "User:bob")
    alice.await_delegation_token(made)
    write(with_token(kafka, made), "as alice")


def test_a_certificate_is_enough_to_get_a_token(kafka: EmbeddedKafka) -> None:
    assert kafka.certificates is not None
    given = {
        "bootstrap.servers": kafka.bootstrap_servers_for("SSL"),
        "security.protocol": "SSL",
        "ssl.truststore.location": str(kafka.certificates.authority),
        "ssl.keystore.location": str(kafka.certificates.client),
    }
    with Admin(given) as admin:
        made = admin.create_delegation_token()
        admin.await_delegation_token(made)
        assert made.owner.startswith("User:CN=")
        with Admin(with_token(kafka, made)) as holder:
            assert holder.list_topics() == []
        admin.expire_delegation_token(made)


def test_a_revoked_token_is_refused_and_named(
    kafka: EmbeddedKafka, alice: Admin, token: DelegationToken
) -> None:
    alice.expire_delegation_token(token)

    def refused() -> str:
        try:
            with Admin(with_token(kafka, token)) as holder:
                holder.list_topics()
        except AuthenticationError as error:
            return str(error)
        return ""

    wait_until("each broker has heard of it", refused, 60)
    said = refused()
    assert f"Delegation token {token.token_id} has expired or was revoked" in said
    assert token.hmac.reveal() not in said


def test_an_expired_token_is_refused_while_the_broker_still_has_it(
    kafka: EmbeddedKafka, alice: Admin, token: DelegationToken
) -> None:
    """Brokers look for expired tokens once an hour, and close a session in which one is used."""

    def await_expiry(at: int) -> None:
        def known() -> int:
            return next(
                t.expires_ms for t in alice.describe_delegation_tokens() if t.token_id == token.token_id
            )

        wait_until("the broker knows the new expiry", lambda: known() == at, 60)

    await_expiry(alice.renew_delegation_token(token, period_ms=4_000))
    said = ""

    def refused() -> bool:
        nonlocal said
        try:
            holder.list_topics()
        except AuthenticationError as error:
            said = str(error)
        return bool(said)

    with Admin(with_token(kafka, token)) as holder:
        assert not refused()
        wait_until("it is refused", refused, 60)
        assert "the session has ended as it began" in said
        assert f"Delegation token {token.token_id} has expired" in said
    assert refusal(lambda: alice.renew_delegation_token(token))[0] is ErrorCode.DELEGATION_TOKEN_EXPIRED


def test_a_cluster_without_a_key_says_so() -> None:
    with (
        EmbeddedKafka(listeners=("SASL_PLAINTEXT",), users=USERS) as plain,
        Admin(settings(plain)) as admin,
    ):
        code, said = refusal(admin.create_delegation_token)
        assert code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert "delegation.token.secret.key" in said


def test_tokens_on_the_command_line(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        given = [f"{name}={value}" for name, value in settings(kafka).items()]
        try:
            code = main(["tokens", *arguments, *(word for one in given for word in ("-X", one))])
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    code, out, _ = run("create", "--renewer", "User:bob", "--max-lifetime", "3h", "--json")
    ((made,), code_of_create) = json.loads(out), code
    assert code_of_create == 0
    assert (made["owner"], made["requester"], made["renewers"]) == ("User:alice", "User:alice", ["User:bob"])
    token_id, hmac = made["token_id"], made["hmac"]
    wait_until("it is there", lambda: run("describe", token_id)[0] == 0, 60)
    code, out, _ = run("describe", token_id, "--json")
    assert json.loads(out) == [{name: value for name, value in made.items() if name != "hmac"}]
    line = run("describe", "--owner", "User:alice")
    assert [row for row in line[1].splitlines() if row.startswith(f"{token_id}\tUser:alice\tUser:alice\t")]
    assert run("renew", token_id, "--period", "30m")[::2] == (0, f"{token_id}: renewed\n")
    code, out, err = run("expire", token_id, "unknown")
    assert code == 1
    assert f"{token_id}: expired" in err
    assert "no token unknown" in err
    for wrong in (
        ("renew",),
        ("create", "x"),
        ("create", "--owner", "bob"),
        ("create", "--max-lifetime", "3"),
    ):
        assert run(*wrong)[0] == 2
    for words in (("describe",), ("expire", token_id), ("renew", token_id), ("describe", "--json")):
        _, out, err = run(*words)
        assert hmac not in out + err
