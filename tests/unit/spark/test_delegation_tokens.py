"""Delegation tokens for tasks: refusals, the token of a task, its renewal, and which queries share one."""

from __future__ import annotations

import base64
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_native.kafka.admin.delegation_tokens import DelegationToken
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.jaas import SCRAM_MODULE
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, ConfigError, NetworkError
from spark_kafka_native.kafka.security import kerberos, tokens
from spark_kafka_native.spark import delegation_tokens
from spark_kafka_native.spark.delegation_tokens import (
    HeldToken,
    LentToken,
    TokenKeeper,
    TokenLogin,
    TokenOptions,
    shared_login,
)
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.options.table import Scope
from spark_kafka_native.spark.read.batch_reader import KafkaBatchReader
from spark_kafka_native.spark.read.offset_range import At, KafkaInputPartition, OffsetRange
from spark_kafka_native.spark.read.read_options import ReadOptions, StreamOptions
from spark_kafka_native.spark.read.schema import full_schema
from spark_kafka_native.spark.read.stream_reader import KafkaStreamReader
from spark_kafka_native.spark.source import KafkaDataSource
from spark_kafka_native.spark.write.batch_writer import KafkaBatchWriter
from spark_kafka_native.spark.write.stream_writer import KafkaStreamWriter

PASSWORD = "marked-password"
HMAC = "bWFya2VkLWhtYWM="
HOUR_MS = 3_600_000
SCRAM = {
    "kafka.bootstrap.servers": "driver:9093",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.username": "alice",
    "kafka.sasl.password": PASSWORD,
    "kafka.ssl.truststore.location": "/ca.pem",
    "delegationTokens": "true",
}
TLS = {
    "kafka.bootstrap.servers": "driver:9093",
    "kafka.security.protocol": "SSL",
    "kafka.ssl.keystore.certificate.chain": "chain",
    "kafka.ssl.keystore.key": PASSWORD,
    "kafka.ssl.key.password": PASSWORD,
    "delegationTokens": "true",
}
ROWS = StructType([StructField("value", StringType())])
JAAS = f'{SCRAM_MODULE} required username="id" password="{HMAC}" tokenauth="true";'


class Cluster:
    """What `Admin` says, in all clients of a test."""

    def __init__(self) -> None:
        self.created: list[int | None] = []
        self.calls: list[str] = []
        self.alive: dict[str, DelegationToken] = {}
        self.life_ms, self.most_ms = 24 * HOUR_MS, 7 * 24 * HOUR_MS
        self.now_ms = 1_000_000
        self.failure: Exception | None = None
        self.configs: list[ClientConfig] = []

    def admin(self, config: ClientConfig) -> Cluster:
        self.configs.append(config)
        return self

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def router(self) -> Any:
        return Router(ClientConfig(bootstrap_servers=("nobody:1",)))

    def _note(self, what: str) -> None:
        self.calls.append(what)
        if self.failure is not None:
            raise self.failure

    def create_delegation_token(self, _limit: object, *, max_lifetime_ms: int | None) -> DelegationToken:
        self.created.append(max_lifetime_ms)
        token_id = f"t{len(self.created)}"
        self._note(f"create {token_id}")
        most_ms = self.most_ms if max_lifetime_ms is None else max_lifetime_ms
        token = DelegationToken(
            token_id=token_id,
            hmac=Secret(HMAC),
            owner="User:alice",
            requester="User:alice",
            issued_ms=self.now_ms,
            expires_ms=self.now_ms + min(self.life_ms, most_ms),
            max_ms=self.now_ms + most_ms,
        )
        self.alive[token_id] = token
        return token

    def await_delegation_token(self, token: DelegationToken, _limit: object) -> None:
        self.calls.append(f"await {token.token_id}")

    def renew_delegation_token(self, token: DelegationToken, _limit: object) -> int:
        self._note(f"renew {token.token_id}")
        if token.token_id not in self.alive:
            raise BrokerError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "renewing")
        return min(self.now_ms + self.life_ms, token.max_ms)

    def expire_delegation_token(self, token: DelegationToken, _limit: object) -> None:
        self._note(f"expire {token.token_id}")
        self.alive.pop(token.token_id, None)

    def describe_delegation_tokens(self, owners: list[str]) -> list[DelegationToken]:
        self._note(f"describe {','.join(owners)}")
        return list(self.alive.values())


class Clocks:
    """Of this machine, and of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.wall_s, self.steady_s = 5_000.0, 70.0

    def time(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.steady_s

    def pass_hours(self, hours: float) -> None:
        self.wall_s += hours * 3600
        self.steady_s += hours * 3600
        self._cluster.now_ms += int(hours * HOUR_MS)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    running = Cluster()
    monkeypatch.setattr("spark_kafka_native.kafka.admin.admin.Admin", running.admin)
    return running


@pytest.fixture
def clocks(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    both = Clocks(cluster)
    monkeypatch.setattr(delegation_tokens, "time", both)
    return both


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The session's local folder."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/other")
    return tmp_path


def client(given: dict[str, str] = SCRAM) -> ClientConfig:
    return ClientConfig.from_properties(OptionValues.parse(given, Scope.READ).kafka)


def parsed(given: dict[str, str] = SCRAM) -> TokenOptions:
    found = TokenOptions.parse(OptionValues.parse(given, Scope.READ), client(given))
    assert found is not None
    return found


# --- the options --------------------------------------------------------------------------------------------

REFUSALS: list[tuple[dict[str, str], str]] = [
    ({"kafka.bootstrap.servers": "h:1"}, "gives tokens to a driver that logs in"),
    (
        {"kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SSL"},
        "gives tokens to a driver that logs in",
    ),
    (TLS, "Name the brokers' SASL_SSL listener in delegationTokens.bootstrapServers"),
    (SCRAM | {"kafka.sasl.tokenauth": "true"}, "logs in with a delegation token itself"),
    (SCRAM | {"delegationTokens.mechanism": "PLAIN"}, "delegationTokens.mechanism"),
    (SCRAM | {"delegationTokens.maxLifetime": "1s"}, "delegationTokens.maxLifetime must be between 60000"),
]


@pytest.mark.parametrize(("given", "says"), REFUSALS)
def test_a_driver_that_can_make_no_token_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        parsed({"delegationTokens": "true"} | given)
    assert PASSWORD not in str(raised.value)


def test_a_token_in_jaas_is_a_token() -> None:
    login = {name: value for name, value in SCRAM.items() if "name" not in name and "password" not in name}
    with pytest.raises(ConfigError, match="logs in with a delegation token itself"):
        parsed(login | {"kafka.sasl.jaas.config": JAAS})


@pytest.mark.parametrize("name", ["mechanism", "bootstrapServers", "maxLifetime"])
def test_a_detail_needs_the_option(name: str) -> None:
    given = SCRAM | {"delegationTokens": "false", f"delegationTokens.{name}": "1h"}
    with pytest.raises(ConfigError, match=f"delegationTokens.{name}' has no effect without"):
        TokenOptions.parse(OptionValues.parse(given, Scope.READ), client(given))
    assert TokenOptions.parse(OptionValues.parse({}, Scope.READ), client()) is None


@pytest.mark.parametrize("given", [SCRAM, TLS | {"delegationTokens.bootstrapServers": "tasks:9094"}])
def test_tasks_trust_as_the_driver_does_and_have_none_of_its_credentials(given: dict[str, str]) -> None:
    of_tasks = parsed(given).of_tasks(client(given))
    assert PASSWORD.encode() not in pickle.dumps(of_tasks)
    assert of_tasks.security.protocol.name == "SASL_SSL"
    assert of_tasks.security.ca_location == client(given).security.ca_location
    assert of_tasks.bootstrap_servers == (("tasks:9094",) if given is not SCRAM else ("driver:9093",))
    login = TokenLogin(token_id="t1", hmac=Secret(HMAC)).to(of_tasks).security
    assert (login.mechanism, login.username, login.password, login.token_auth) == (
        "SCRAM-SHA-512", "t1", Secret(HMAC), True,
    )  # fmt: skip


# --- what goes to the workers -------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster", "session")
def test_no_pickle_for_workers_has_the_drivers_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaBatchWriter, "_prepare", lambda _: None)
    read, write = SCRAM | {"subscribe": "t"}, SCRAM | {"topic": "t"}
    source = KafkaDataSource(dict(read))
    assert PASSWORD.encode() in pickle.dumps(source)  # on its way to the driver's processes
    batch = source.reader(full_schema(False))
    stream = KafkaDataSource(dict(read))
    streaming = stream.streamReader(full_schema(False))
    batch_writer = KafkaDataSource(dict(write)).writer(ROWS, overwrite=False)
    stream_writer = KafkaDataSource(dict(write)).streamWriter(ROWS, overwrite=False)
    login = batch._login()
    partition = KafkaInputPartition(ranges=(), login=login)
    for one in (source, batch, stream, streaming, batch_writer, stream_writer, partition):
        pickled = pickle.dumps(one)
        assert PASSWORD.encode() not in pickled, one
        assert b"alice" not in pickled.replace(b"User:alice", b""), one
        assert HMAC not in repr(one)
    # The token is where tasks need it, and not where it would be old by then.
    assert HMAC.encode() in pickle.dumps(partition)
    assert HMAC.encode() in pickle.dumps(batch_writer)
    assert HMAC.encode() not in pickle.dumps(streaming)
    assert source.reader(full_schema(False)) is not None


def test_a_task_reads_with_the_token_of_its_partition() -> None:
    given = SCRAM | {"subscribe": "t"}
    options = ReadOptions.for_batch(OptionValues.parse(given, Scope.READ))
    task = KafkaBatchReader(options, full_schema(False))._task
    span = OffsetRange(topic="t", partition=0, start=At(0), end=At(1))
    login = TokenLogin(token_id="t7", hmac=Secret(HMAC))
    assert task.client_for(KafkaInputPartition(ranges=(span,), login=login)).security.username == "t7"
    without = task.client_for(KafkaInputPartition(ranges=(span,))).security
    assert (without.username, without.password) == ("", Secret(""))


# --- one token ----------------------------------------------------------------------------------------------


def test_a_token_is_kept_renewed_and_replaced_in_time(cluster: Cluster, clocks: Clocks) -> None:
    keeper = TokenKeeper(client(), parsed())
    used = []
    for _ in range(24 * 8):
        used.append(keeper.login().token_id)
        held = keeper.held
        assert held is not None
        # Each batch begins with at least half of a token's time left.
        assert held.token.expires_ms - cluster.now_ms >= 12 * HOUR_MS
        clocks.pass_hours(1)
    assert list(dict.fromkeys(used)) == ["t1", "t2"]
    assert cluster.calls[:3] == ["create t1", "await t1", "renew t1"]
    assert 10 <= cluster.calls.count("renew t1") <= 13
    keeper.expire()
    assert cluster.calls[-2:] == ["expire t2", "expire t1"]  # the one that lives longest first
    keeper.expire()
    assert cluster.calls[-2:] == ["expire t2", "expire t1"]
    assert cluster.configs[0] == client()


def test_a_lifetime_that_was_asked_for_is_never_exceeded(cluster: Cluster, clocks: Clocks) -> None:
    keeper = TokenKeeper(client(), parsed(SCRAM | {"delegationTokens.maxLifetime": "2h"}))
    assert keeper.login().token_id == "t1"
    clocks.pass_hours(1.1)
    assert keeper.login().token_id == "t2"
    assert cluster.created == [2 * HOUR_MS, 2 * HOUR_MS]
    assert not any(call.startswith("renew") for call in cluster.calls)


@pytest.mark.parametrize("clock", ["wall_s", "steady_s"])
def test_a_clock_that_was_set_or_has_slept_makes_no_token_older_than_it_is_thought(
    cluster: Cluster, clocks: Clocks, clock: str
) -> None:
    keeper = TokenKeeper(client(), parsed())
    keeper.login()
    clocks.pass_hours(13)
    setattr(clocks, clock, 0.0)
    keeper.login()
    assert cluster.calls[-1] == "renew t1"


def test_the_brokers_clock_may_be_any(cluster: Cluster, clocks: Clocks) -> None:
    cluster.now_ms = -50 * 365 * 24 * HOUR_MS
    keeper = TokenKeeper(client(), parsed())
    keeper.login()
    clocks.pass_hours(11)
    keeper.login()
    assert cluster.calls == ["create t1", "await t1"]


def test_a_token_that_can_not_be_renewed_is_replaced(cluster: Cluster, clocks: Clocks) -> None:
    keeper = TokenKeeper(client(), parsed())
    keeper.login()
    cluster.alive.clear()
    clocks.pass_hours(13)
    assert keeper.login().token_id == "t2"
    assert cluster.calls[2:] == ["renew t1", "create t2", "await t2"]


def test_a_cluster_that_does_not_answer_is_survived_while_the_token_lasts(
    cluster: Cluster, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = TokenKeeper(client(), parsed())
    keeper.login()
    cluster.failure = NetworkError("nobody answers")
    clocks.pass_hours(13)
    assert keeper.login().token_id == "t1"
    assert "t1 could not be renewed or replaced; it is used while it lasts: nobody answers" in caplog.text
    assert HMAC not in caplog.text
    asked = len(cluster.calls)
    keeper.login()
    assert len(cluster.calls) == asked  # not with each micro-batch
    clocks.pass_hours(0.1)
    keeper.login()
    assert len(cluster.calls) > asked
    clocks.pass_hours(12)
    with pytest.raises(NetworkError):
        keeper.login()
    keeper.expire()  # never raises


def test_without_any_token_the_error_is_the_clusters(cluster: Cluster) -> None:
    cluster.failure = BrokerError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "creating")
    with pytest.raises(BrokerError, match=r"delegation\.token\.secret\.key"):
        TokenKeeper(client(), parsed()).login()


# --- shared by a session ------------------------------------------------------------------------------------


def forget_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "_in_process", {})


def test_a_session_shares_one_token_between_its_processes(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shared_login(client(), parsed(), ask=False)
    forget_process(monkeypatch)
    assert shared_login(client(), parsed(), ask=True).login == first.login
    assert cluster.calls == ["create t1", "await t1", "describe User:alice"]
    for file in session.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
        assert PASSWORD.encode() not in file.read_bytes()
        assert "alice" not in file.name


@pytest.mark.parametrize(
    "other",
    [
        {"kafka.sasl.password": "another"},
        {"kafka.sasl.username": "bob"},
        {"kafka.bootstrap.servers": "other:1"},
        {"delegationTokens.maxLifetime": "1h"},
    ],
)
def test_others_have_a_token_of_their_own(cluster: Cluster, session: Path, other: dict[str, str]) -> None:
    """A user without the password does not get the token either."""
    assert session.is_dir()
    given = SCRAM | other
    assert shared_login(client(), parsed(), ask=False).login.token_id == "t1"
    assert shared_login(client(given), parsed(given), ask=False).login.token_id == "t2"
    assert len(cluster.created) == 2


def test_a_reference_with_another_value_is_another_user(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.is_dir()
    given = SCRAM | {"kafka.sasl.username": "env:THE_USER"}
    found = []
    for user in ("alice", "bob", "alice"):
        monkeypatch.setenv("THE_USER", user)
        found.append(shared_login(client(given), parsed(given), ask=False).login.token_id)
    assert found == ["t1", "t2", "t1"]


def test_another_ticket_is_another_user(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.is_dir()
    principals = iter(["alice@A", "bob@A", "alice@A"])
    monkeypatch.setattr(kerberos, "log_in", lambda *_: (next(principals), 3600.0))
    given = {name: text for name, text in SCRAM.items() if "username" not in name and "password" not in name}
    given |= {"kafka.sasl.mechanism": "GSSAPI", "kafka.sasl.kerberos.service.name": "kafka"}
    found = [shared_login(client(given), parsed(given), ask=False).login.token_id for _ in range(3)]
    assert found == ["t1", "t2", "t1"]


def jwt(**claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.x"


OAUTH = {name: text for name, text in SCRAM.items() if "username" not in name and "password" not in name} | {
    "kafka.sasl.mechanism": "OAUTHBEARER"
}


def test_another_token_of_a_file_is_another_user(cluster: Cluster, session: Path, tmp_path: Path) -> None:
    """Even if both name the same one: brokers check that, and they are not asked."""
    assert session.is_dir()
    file, found = tmp_path / "token", []
    given = OAUTH | {"kafka.sasl.oauthbearer.token": f"file:{file}"}
    for text in (jwt(sub="alice"), jwt(sub="alice", forged=True), jwt(sub="alice")):
        file.write_text(text)
        found.append(shared_login(client(given), parsed(given), ask=False).login.token_id)
    assert found == ["t1", "t2", "t1"]


def test_another_subject_of_a_providers_token_is_another_user(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.is_dir()
    given = OAUTH | {"kafka.sasl.oauthbearer.token.provider": "some.module:function"}
    found = []
    for text in (
        jwt(sub="alice"),
        jwt(sub="bob"),
        jwt(sub="alice", exp=4e9),
        "opaque",
        "e30.bm8.x",
        "opaque",
    ):
        monkeypatch.setattr(tokens, "current_token", lambda *_, text=text: Secret(text))
        found.append(shared_login(client(given), parsed(given), ask=False).login.token_id)
    assert found == ["t1", "t2", "t1", "t3", "t4", "t3"]


def test_a_token_that_was_made_just_now_ends_with_the_stream(cluster: Cluster) -> None:
    """SIGTERM while brokers are waited for."""
    keeper = TokenKeeper(client(), parsed())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "await_delegation_token", lambda *_: sys.exit(1))
        with pytest.raises(SystemExit):
            keeper.login()
    keeper.expire()
    assert cluster.calls[-1] == "expire t1"


def test_a_revoked_or_suspected_token_is_not_shared_any_more(cluster: Cluster, session: Path) -> None:
    assert session.is_dir()
    shared_login(client(), parsed(), ask=False)
    cluster.alive.clear()
    second = shared_login(client(), parsed(), ask=True)
    assert second.login.token_id == "t2"
    pickle.loads(pickle.dumps(second)).forget()
    second.forget()
    assert shared_login(client(), parsed(), ask=False).login.token_id == "t3"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"token": {}}', b'{"token": null}'])
def test_a_file_that_is_damaged_is_as_good_as_none(cluster: Cluster, session: Path, content: bytes) -> None:
    place = Path(shared_login(client(), parsed(), ask=False).place)
    place.write_bytes(content)
    assert shared_login(client(), parsed(), ask=False).login.token_id == "t2"
    assert len(cluster.created) == 2
    assert place.parent == session


def test_without_a_folder_the_process_keeps_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    forget_process(monkeypatch)
    first = shared_login(client(), parsed(), ask=False)
    assert shared_login(client(), parsed(), ask=False).login == first.login
    first.forget()
    assert shared_login(client(), parsed(), ask=False).login.token_id == "t2"
    assert len(cluster.created) == 2


# --- of a batch write and of a stream -----------------------------------------------------------------------


def on_the_driver(writer: Any) -> Any:
    """The process that commits gets a pickle, as tasks do."""
    return pickle.loads(pickle.dumps(writer))


@pytest.mark.parametrize("end", [lambda writer: writer.commit([]), lambda writer: writer.abort([None])])
def test_a_batch_write_expires_its_token(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[Any], None]
) -> None:
    monkeypatch.setattr(KafkaBatchWriter, "_prepare", lambda _: None)
    values = OptionValues.parse(SCRAM | {"topic": "t"}, Scope.WRITE)
    writer = KafkaBatchWriter(values, ROWS, overwrite=False)
    assert list(cluster.alive) == ["t1"]
    for file in session.iterdir():  # a half reveals nothing
        assert PASSWORD.encode() not in file.read_bytes()
    end(on_the_driver(writer))
    assert cluster.alive == {}
    assert cluster.configs[-1] == client()
    assert not [file for file in session.iterdir() if "pad" in file.name]
    end(on_the_driver(writer))
    assert cluster.calls.count("expire t1") == 1


def test_a_batch_write_that_can_not_be_prepared_leaves_no_token(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise NetworkError("no topic")

    monkeypatch.setattr(KafkaBatchWriter, "_prepare", fail)
    with pytest.raises(NetworkError):
        KafkaBatchWriter(OptionValues.parse(SCRAM | {"topic": "t"}, Scope.WRITE), ROWS, overwrite=False)
    assert cluster.alive == {}
    assert not [file for file in session.iterdir() if "pad" in file.name]


def test_halves_that_do_not_fit_are_no_credentials(cluster: Cluster, session: Path) -> None:
    for damage in (b"", b"x", None):
        lent = LentToken.create(client(), parsed())
        pad = Path(lent.pad)
        pad.write_bytes(bytes(pad.stat().st_size) if damage is None else damage)
        lent.expire()
        assert not pad.exists()
    assert len(cluster.alive) == 3
    assert list(session.iterdir()) == []


def test_without_a_folder_a_batch_write_leaves_its_token(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    lent = LentToken.create(client(), parsed())
    lent.expire()
    assert (lent.half, list(cluster.alive)) == (b"", ["t1"])


@pytest.mark.usefixtures("session")
def test_a_micro_batch_that_failed_makes_the_next_one_log_in_anew(cluster: Cluster) -> None:
    def writer() -> KafkaStreamWriter:
        return KafkaStreamWriter(OptionValues.parse(SCRAM | {"topic": "t"}, Scope.WRITE), ROWS)

    first = writer()
    assert writer()._options.client == first._options.client
    on_the_driver(first).abort([None], 0)
    assert writer()._options.client.security.username == "t2"
    assert len(cluster.created) == 2


def test_each_micro_batch_of_a_stream_gets_the_token_of_its_time(cluster: Cluster, clocks: Clocks) -> None:
    options = StreamOptions.parse(OptionValues.parse(SCRAM | {"subscribe": "t"}, Scope.STREAM))
    reader = KafkaStreamReader(options, full_schema(False))
    reader.__dict__["_planner"] = type("Planner", (), {"plan": lambda *_: [()]})()
    reader.stop()
    assert cluster.calls == []
    (first,) = reader.partitions({}, {})
    clocks.pass_hours(24 * 6.5)
    (second,) = reader.partitions({}, {})
    assert first.login is not None
    assert second.login is not None
    assert (first.login.token_id, second.login.token_id) == ("t1", "t2")
    reader.stop()
    assert cluster.alive == {}


def test_a_held_token_tells_its_hmac_to_no_text() -> None:
    held = HeldToken(
        token=replace(Cluster().create_delegation_token(None, max_lifetime_ms=None), hmac=Secret(HMAC)),
        life_ms=1, most_ms=1, wall_s=0.0, steady_s=0.0,
    )  # fmt: skip
    assert HMAC not in repr(held) + repr(held.login) + repr(parsed())
