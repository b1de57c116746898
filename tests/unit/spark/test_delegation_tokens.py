"""Delegation tokens for tasks: refusals, the token of a task, its renewal, and which queries share one."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import StringType, StructField, StructType
from support.full_disk import full_disk
from support.tokens import HMAC, HOUR_MS, PASSWORD, SCRAM, Clocks, Cluster, client, parsed

from spark_kafka_native.kafka.admin.delegation_tokens import DelegationToken
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.jaas import SCRAM_MODULE
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    DeadlineExceededError,
    KafkaError,
    NetworkError,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.security import kerberos, tokens
from spark_kafka_native.spark import shared_login
from spark_kafka_native.spark.delegation_tokens import (
    HeldToken,
    KeptTokens,
    Moment,
    TokenKeeper,
    TokenLogin,
    TokenOptions,
    session_folder,
)
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read import stream_reader
from spark_kafka_native.spark.read.batch_reader import KafkaBatchReader
from spark_kafka_native.spark.read.driver import batch_plan, cluster_view
from spark_kafka_native.spark.read.offset_range import At, KafkaInputPartition, OffsetRange
from spark_kafka_native.spark.read.read_options import ReadOptions, StreamOptions
from spark_kafka_native.spark.read.schema import full_schema
from spark_kafka_native.spark.read.stream_reader import KafkaStreamReader
from spark_kafka_native.spark.read.worker import bad_record_handler, dead_letters, read_partition
from spark_kafka_native.spark.read.worker.dead_letters import DeadLetters
from spark_kafka_native.spark.read.worker.offset_binding import Binding
from spark_kafka_native.spark.source import KafkaDataSource
from spark_kafka_native.spark.write import topics
from spark_kafka_native.spark.write.batch_writer import KafkaBatchWriter
from spark_kafka_native.spark.write.driver import atomic_write, resumable_write, stream_commit
from spark_kafka_native.spark.write.driver_credentials import LentToken
from spark_kafka_native.spark.write.stream_writer import KafkaStreamWriter
from spark_kafka_native.spark.write.worker import transactional_task, write_rows
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import AtomicWrite, KafkaCommitMessage, ResumableWrite

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


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_tasks_encrypt_as_the_driver_does(protocol: str) -> None:
    given = {name: text for name, text in SCRAM.items() if "ssl" not in name}
    given |= {"kafka.security.protocol": protocol}
    assert parsed(given).of_tasks(client(given)).security.protocol.name == protocol


def test_a_write_hands_its_tasks_the_login_and_the_brokers_that_are_for_them() -> None:
    """Another listener, perhaps: that of the driver may ask for a certificate."""
    given = TLS | {"delegationTokens.bootstrapServers": "tasks:9094"}
    driver = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))
    tasks = driver.with_login(TokenLogin(token_id="t1", hmac=Secret(HMAC))).client
    assert (driver.client.bootstrap_servers, tasks.bootstrap_servers) == (("driver:9093",), ("tasks:9094",))
    assert (tasks.security.protocol.name, tasks.security.username) == ("SASL_SSL", "t1")


@pytest.mark.parametrize(
    "trust",
    [
        {
            "ssl.truststore.location": "/ca.p12",
            "ssl.truststore.password": "p",
            "ssl.truststore.type": "PKCS12",
        },
        {"ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----"},
        {"ssl.enabled.protocols": "TLSv1.3", "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"},
        {"ssl.endpoint.identification.algorithm": ""},
        {"enable.ssl.certificate.verification": "false"},
    ],
)
def test_tasks_have_all_that_says_how_a_broker_is_trusted(trust: dict[str, str]) -> None:
    given = {name: text for name, text in SCRAM.items() if "truststore" not in name}
    driver = client(given | {f"kafka.{name}": text for name, text in trust.items()}).security
    tasks = parsed(given).of_tasks(replace(client(given), security=driver)).security
    login = ("mechanism", "username", "password", "token_auth")
    other = {one.name for one in fields(driver) if getattr(driver, one.name) != getattr(tasks, one.name)}
    assert driver != client(given).security
    assert other <= set(login)


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


def test_a_task_asks_and_writes_dead_letters_with_the_token_of_its_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = SCRAM | {"subscribe": "t", "value.format": "string", "mode": "dlq", "dlq.topic": "d"}
    options = StreamOptions.parse(OptionValues.parse(given, Scope.STREAM))
    task = KafkaStreamReader(options, StructType([StructField("value", StringType())]))._task
    spans = tuple(OffsetRange(topic="t", partition=number, start=At(0), end=At(1)) for number in (0, 1))
    partition = KafkaInputPartition(ranges=spans, login=TokenLogin(token_id="t7", hmac=Secret(HMAC)))
    used: list[ClientConfig] = []

    def router_for(config: ClientConfig) -> Router:
        used.append(config)
        return Router(config)

    def bind_ranges(*_: object, **__: object) -> Binding:
        return Binding()

    made: list[DeadLetters] = []
    monkeypatch.setattr(dead_letters, "_query_id", lambda: "q")
    monkeypatch.setattr(read_partition, "settle_worker", lambda: None)
    monkeypatch.setattr(read_partition, "router_for", router_for)
    monkeypatch.setattr(read_partition, "bind_ranges", bind_ranges)
    monkeypatch.setattr(bad_record_handler.BadRecordHandler, "__init__", lambda _, one: made.append(one))
    monkeypatch.setattr(bad_record_handler.BadRecordHandler, "log", lambda *_: None)
    assert list(read_partition.read_partition(partition, task)) == []
    (letters,) = made
    assert [one.security.username for one in (*used, letters.client)] == ["t7", "t7"]
    assert letters.ranges == {one.topic_partition: one for one in spans}
    assert letters.name.startswith("pykafka-q-dlq-")


# --- one token ----------------------------------------------------------------------------------------------


def test_a_token_is_kept_renewed_and_replaced_in_time(cluster: Cluster, clocks: Clocks) -> None:
    keeper = TokenKeeper(client(), parsed())
    used = []
    for _ in range(24 * 8):
        used.append(keeper.login().token.token_id)
        held = keeper.kept.held
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
    assert keeper.login().token.token_id == "t1"
    clocks.pass_hours(1.1)
    assert keeper.login().token.token_id == "t2"
    assert cluster.created == [2 * HOUR_MS, 2 * HOUR_MS]
    assert not any(call.startswith("renew") for call in cluster.calls)


def test_of_several_tokens_the_two_that_tasks_may_still_use_are_ended(
    cluster: Cluster, clocks: Clocks
) -> None:
    keeper = TokenKeeper(client(), parsed(SCRAM | {"delegationTokens.maxLifetime": "2h"}))
    for _ in range(4):
        keeper.login()
        clocks.pass_hours(1.1)
    keeper.expire()
    assert cluster.calls[-2:] == ["expire t4", "expire t3"]


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
    assert keeper.login().token.token_id == "t2"
    assert cluster.calls[2:] == ["renew t1", "create t2", "await t2"]


def test_a_cluster_that_does_not_answer_is_survived_while_the_token_lasts(
    cluster: Cluster, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = TokenKeeper(client(), parsed())
    keeper.login()
    cluster.failure = NetworkError("nobody answers")
    clocks.pass_hours(13)
    assert keeper.login().token.token_id == "t1"
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


def test_a_token_is_handed_out_once_all_brokers_know_it(
    cluster: Cluster, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = TokenKeeper(client(), parsed(SCRAM | {"delegationTokens.maxLifetime": "10h"}))
    assert keeper.login().token.token_id == "t1"
    cluster.unknown.add("t2")
    clocks.pass_hours(5.5)
    assert keeper.login().token.token_id == "t1"
    assert "t1 could not be renewed or replaced" in caplog.text
    asked = len(cluster.calls)
    assert keeper.login().token.token_id == "t1"
    assert len(cluster.calls) == asked  # there is a pause
    clocks.pass_hours(0.1)
    assert keeper.login().token.token_id == "t1"
    assert cluster.calls[asked:] == ["await t2"]  # and not another one each time
    cluster.unknown.clear()
    clocks.pass_hours(0.1)
    assert keeper.login().token.token_id == "t2"
    assert cluster.calls.count("create t2") == 1
    keeper.expire()
    assert cluster.calls[-2:] == ["expire t2", "expire t1"]


def test_near_its_end_a_token_is_replaced_even_if_a_broker_lags_behind(
    cluster: Cluster, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = TokenKeeper(client(), parsed(SCRAM | {"delegationTokens.maxLifetime": "10h"}))
    keeper.login()
    cluster.unknown.add("t2")
    clocks.pass_hours(7.4)
    assert keeper.login().token.token_id == "t1"
    clocks.pass_hours(0.2)
    assert keeper.login().token.token_id == "t2"
    assert "Not all brokers know delegation token t2 yet: broker 2 does not know t2" in caplog.text


def test_the_first_token_is_used_even_if_a_broker_lags_behind(cluster: Cluster) -> None:
    cluster.unknown.add("t1")
    assert TokenKeeper(client(), parsed()).login().token.token_id == "t1"


def test_a_token_that_was_never_handed_out_and_has_expired_is_not_used(
    cluster: Cluster, clocks: Clocks
) -> None:
    keeper = TokenKeeper(client(), parsed(SCRAM | {"delegationTokens.maxLifetime": "10h"}))
    keeper.login()
    cluster.unknown.add("t2")
    clocks.pass_hours(6)
    keeper.login()
    cluster.unknown.clear()
    clocks.pass_hours(20)
    assert keeper.login().token.token_id == "t3"
    assert cluster.calls[-2:] == ["create t3", "await t3"]


def test_the_pause_is_short_for_a_token_that_is(cluster: Cluster, clocks: Clocks) -> None:
    cluster.life_ms = cluster.most_ms = 100_000
    keeper = TokenKeeper(client(), parsed())
    keeper.login()
    cluster.failure = NetworkError("nobody answers")
    clocks.pass_hours(60 / 3600)
    keeper.login()
    asked = len(cluster.calls)
    clocks.pass_hours(4 / 3600)
    keeper.login()
    assert len(cluster.calls) == asked
    clocks.pass_hours(2 / 3600)
    keeper.login()
    assert len(cluster.calls) > asked


def test_a_pause_ends_with_the_token(cluster: Cluster, clocks: Clocks) -> None:
    cluster.life_ms = cluster.most_ms = 100_000
    keeper = TokenKeeper(client(), parsed())
    keeper.login()
    cluster.failure = NetworkError("nobody answers")
    clocks.pass_hours(97 / 3600)
    keeper.login()
    clocks.pass_hours(3.5 / 3600)
    with pytest.raises(NetworkError):
        keeper.login()


def test_a_renewal_may_bring_less_than_the_life_before() -> None:
    token = Cluster().create_delegation_token(None, max_lifetime_ms=None)
    held = HeldToken.created(token).renewed(token.expires_ms - 14 * HOUR_MS)
    assert 9.9 * HOUR_MS < held.life_ms <= 10 * HOUR_MS


def test_the_folder_of_a_session_is_the_first_one_if_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, folder in (
        (str(tmp_path), tmp_path),
        (f"{tmp_path},/elsewhere", tmp_path),
        (str(tmp_path / "missing"), None),
        (f"{tmp_path / 'missing'},{tmp_path}", None),
        ("", None),
    ):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", text)
        assert session_folder() == folder
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert session_folder() is None


def test_a_token_that_has_expired_when_it_comes_is_used_for_nothing() -> None:
    token = Cluster().create_delegation_token(None, max_lifetime_ms=None)
    for expires_ms in (token.issued_ms, token.issued_ms - 1):
        held = HeldToken.created(replace(token, expires_ms=expires_ms))
        assert (held.left, held.advice(), KeptTokens(held=held).usable) == (0.0, "replace", None)


def test_a_revoked_token_is_forgotten_also_if_its_owner_has_others(cluster: Cluster) -> None:
    keeper = TokenKeeper(client(), parsed())
    keeper.login()
    cluster.alive["other"] = cluster.alive.pop("t1")
    cluster.alive["other"] = replace(cluster.alive["other"], token_id="other")
    keeper.forget_revoked()
    assert keeper.login().token.token_id == "t2"


@pytest.mark.parametrize("age_hours", [0.0, 0.1])
@pytest.mark.parametrize("revoked", [{"t1", "t2"}, {"t2"}, {"t1"}, set()])
def test_the_next_token_is_forgotten_if_it_was_revoked(
    cluster: Cluster, clocks: Clocks, revoked: set[str], age_hours: float
) -> None:
    made = [cluster.create_delegation_token(None, max_lifetime_ms=None) for _ in range(2)]
    held, coming = map(HeldToken.created, made)
    keeper = TokenKeeper(client(), parsed(), KeptTokens(held=held, coming=coming))
    clocks.pass_hours(age_hours)
    for token_id in revoked:
        del cluster.alive[token_id]
    keeper.forget_revoked()
    assert (keeper.kept.held is None) == ("t1" in revoked)
    # A broker may lag behind with a new one; not if all of the user's tokens were revoked.
    is_lag = revoked == {"t2"} and not age_hours
    assert (keeper.kept.coming is None) == ("t2" in revoked and not is_lag)
    assert cluster.calls[-1] == "describe User:alice"
    left = min({"t1", "t2"} - revoked, default="t3")
    assert keeper.login().token.token_id == left


@pytest.mark.parametrize("is_revoked", [True, False])
def test_the_next_token_is_asked_about_where_it_is_the_only_one(
    cluster: Cluster, clocks: Clocks, is_revoked: bool
) -> None:
    coming = HeldToken.created(cluster.create_delegation_token(None, max_lifetime_ms=None))
    keeper = TokenKeeper(client(), parsed(), KeptTokens(coming=coming))
    clocks.pass_hours(0.1)
    if is_revoked:
        cluster.alive.clear()
    keeper.forget_revoked()
    assert (keeper.kept.coming is None) == is_revoked


def test_a_token_that_tasks_may_still_use_is_ended_with_the_others_though_its_successor_was_revoked(
    cluster: Cluster, clocks: Clocks
) -> None:
    keeper = TokenKeeper(client(), parsed(SCRAM | {"delegationTokens.maxLifetime": "10h"}))
    keeper.login()
    clocks.pass_hours(6)
    assert keeper.login().token.token_id == "t2"
    del cluster.alive["t2"]
    keeper.forget_revoked()
    assert keeper.login().token.token_id == "t3"
    keeper.expire()
    assert cluster.calls[-2:] == ["expire t3", "expire t1"]


@pytest.mark.usefixtures("session")
def test_a_batch_read_shares_no_token_that_was_revoked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing makes it plan again if its tasks are refused."""
    monkeypatch.setattr(cluster_view, "view_cluster", lambda *_: None)
    monkeypatch.setattr(batch_plan, "plan_batch", lambda *_: [])
    options = ReadOptions.for_batch(OptionValues.parse(SCRAM | {"subscribe": "t"}, Scope.READ))
    found = []
    for _ in range(2):
        (partition,) = KafkaBatchReader(options, full_schema(False)).partitions()
        assert partition.login is not None
        found.append(partition.login.token_id)
        cluster.alive.clear()
    assert found == ["t1", "t2"]


def test_another_token_takes_no_more_time_than_a_micro_batch_has(
    cluster: Cluster, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, create = [], cluster.create_delegation_token

    def noted(limit: Any, **given: Any) -> DelegationToken:
        limits.append(limit.remaining_ms)
        return create(limit, **given)

    monkeypatch.setattr(cluster, "create_delegation_token", noted)
    keeper = TokenKeeper(client(), parsed(SCRAM | {"delegationTokens.maxLifetime": "10h"}))
    keeper.login()
    clocks.pass_hours(6)
    keeper.login()
    assert limits[0] > 30_000
    assert limits[1] <= 10_000


def test_a_wait_for_brokers_ends_with_the_time_that_a_micro_batch_has(
    cluster: Cluster, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []
    monkeypatch.setattr(cluster, "await_delegation_token", lambda _, limit: limits.append(limit.remaining_ms))
    keeper = TokenKeeper(client(), parsed(SCRAM | {"delegationTokens.maxLifetime": "10h"}))
    keeper.login()
    clocks.pass_hours(6)
    keeper.login()
    assert [5_000 < limit <= 10_000 for limit in limits] == [True, True]


def test_tokens_are_ended_in_the_time_that_a_process_has_for_its_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []
    monkeypatch.setattr(
        cluster, "expire_delegation_token", lambda _, limit: limits.append(limit.remaining_ms)
    )
    keeper = TokenKeeper(client(), parsed())
    keeper.login()
    keeper.expire()
    assert [limit <= 5_000 for limit in limits] == [True]


def test_without_any_token_the_error_is_the_clusters(cluster: Cluster) -> None:
    cluster.failure = BrokerError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "creating")
    with pytest.raises(BrokerError, match=r"delegation\.token\.secret\.key"):
        TokenKeeper(client(), parsed()).login()


def test_a_token_that_was_made_just_now_ends_with_the_stream(cluster: Cluster) -> None:
    """SIGTERM while brokers are waited for."""
    keeper = TokenKeeper(client(), parsed())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "await_delegation_token", lambda *_: sys.exit(1))
        with pytest.raises(SystemExit):
            keeper.login()
    for _ in range(2):
        keeper.expire()
        assert cluster.calls == ["create t1", "expire t1"]
    assert keeper.login().token.token_id == "t2"


# --- of a batch write and of a stream -----------------------------------------------------------------------


def on_the_driver(writer: Any) -> Any:
    """The process that commits a batch write gets a pickle, as tasks do."""
    return pickle.loads(pickle.dumps(writer))


def stream_writer(given: dict[str, str]) -> KafkaStreamWriter:
    """Spark makes one to plan a micro-batch, and another one from the data source to commit or abort it."""
    found = pickle.loads(pickle.dumps(KafkaDataSource(dict(given)))).streamWriter(ROWS, overwrite=False)
    assert isinstance(found, KafkaStreamWriter)
    return found


def task_of(given: dict[str, str]) -> KafkaStreamWriter:
    """The writer in a task of the next micro-batch. PySpark pickles it twice."""
    planned = stream_writer(given)
    command, writer = pickle.dumps(planned), pickle.dumps(planned)
    assert command == writer
    assert PASSWORD.encode() not in writer
    task = pickle.loads(writer)
    assert pickle.dumps(pickle.loads(pickle.dumps(task))) == pickle.dumps(task)
    assert isinstance(task, KafkaStreamWriter)
    return task


def login_of_tasks(given: dict[str, str]) -> ClientConfig:
    return task_of(given)._options.client


NO_ROWS = KafkaCommitMessage(0, 0, 0, 0, ())


def written_by(task: KafkaStreamWriter) -> KafkaCommitMessage:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics, "prepare_fixed_topics", lambda _: None)
        patch.setattr(write_rows, "write_rows", lambda *_: NO_ROWS)
        patch.setattr(transactional_task, "write_once", lambda *_: NO_ROWS)
        patch.setattr(transactional_task.BatchTask, "current", lambda: None)
        message = task.write(iter([]))
    assert isinstance(message, KafkaCommitMessage)
    return message


def pads(session: Path) -> list[Path]:
    return [file for file in session.iterdir() if "pad" in file.name]


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
    assert pads(session) == []
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
    assert pads(session) == []


def test_a_batch_write_without_room_for_its_half_leaves_no_token(cluster: Cluster, session: Path) -> None:
    with full_disk(), pytest.raises(ConfigError, match=f"keeps logins in {session}"):
        LentToken.create(client(), parsed())
    assert cluster.created == []
    cluster.failure = NetworkError("no answer")
    with pytest.raises(NetworkError):
        LentToken.create(client(), parsed())
    assert list(session.iterdir()) == []


def test_halves_that_do_not_fit_are_no_credentials(cluster: Cluster, session: Path) -> None:
    damages: list[Callable[[bytes], bytes]] = [
        lambda _: b"",
        lambda _: b"x",
        lambda half: bytes(len(half)),
        lambda half: b"x" + half,
    ]
    for damaged in damages:
        lent = LentToken.create(client(), parsed())
        pad = Path(lent.credentials.pad)
        pad.write_bytes(damaged(pad.read_bytes()))
        lent.expire()
        assert not pad.exists()
    assert len(cluster.alive) == len(damages)
    assert list(session.iterdir()) == []


def test_without_a_folder_a_batch_write_leaves_its_token(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    lent = LentToken.create(client(), parsed())
    lent.expire()
    assert (lent.credentials.half, list(cluster.alive)) == (b"", ["t1"])


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[ClientConfig]:
    """The clients that have logged in to a cluster."""
    found: list[ClientConfig] = []
    monkeypatch.setattr(Router, "metadata", lambda router, *_, **__: found.append(router.config))
    return found


def test_transactions_are_ended_with_the_drivers_login(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch, reached: list[ClientConfig]
) -> None:
    """The token of the tasks may have ended: by the commit, and by the abort."""
    used: list[ClientConfig] = []

    def end(*given: Any, **_: Any) -> None:
        (options,) = [one for one in given if hasattr(one, "client")]
        used.append(options.client)

    for module, names in {
        atomic_write: ("commit_atomic", "abort_atomic"),
        resumable_write: ("commit_resumable", "abort_resumable"),
        stream_commit: ("commit_transactions", "abort_transactions"),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, end)
    given = SCRAM | {"topic": "t", "deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "p"}
    atomic = AtomicWrite(transactional_id="p", transaction_timeout_ms=1)
    resumable = ResumableWrite(write_id="w", transactional_id="p", void=None)
    for job in (atomic, resumable):
        monkeypatch.setattr(KafkaBatchWriter, "_prepare", lambda _, job=job: job)
        for verb in ("commit", "abort"):
            writer = KafkaBatchWriter(OptionValues.parse(given, Scope.WRITE), ROWS, overwrite=False)
            getattr(on_the_driver(writer), verb)([])
    assert pads(session) == []
    for verb in ("commit", "abort"):
        getattr(stream_writer(given), verb)([written_by(task_of(given))], 0)
        assert pads(session) == []
    assert used == reached == [client(given)] * 6


KERBEROS = {
    name: text for name, text in SCRAM.items() if "username" not in name and "password" not in name
} | {"kafka.sasl.mechanism": "GSSAPI", "kafka.sasl.kerberos.service.name": "kafka"}


class Kdc:
    """While it is down, no driver can log in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_up, self.user = True, "alice@A"
        self.limits_ms: list[float] = []
        monkeypatch.setattr(kerberos, "log_in", lambda _, deadline: (self.log_in(deadline), 3600.0))
        monkeypatch.setattr(Router, "metadata", lambda *_, deadline: self.log_in(deadline))

    def log_in(self, deadline: Deadline) -> str:
        self.limits_ms.append(deadline.remaining_ms)
        if not self.is_up:
            raise NetworkError("GSSAPI: no KDC")
        return self.user


@pytest.fixture
def kdc(monkeypatch: pytest.MonkeyPatch) -> Kdc:
    return Kdc(monkeypatch)


@pytest.fixture
def ended_with(monkeypatch: pytest.MonkeyPatch) -> list[ClientConfig]:
    """The clients that have ended the transactions of a stream."""
    found: list[ClientConfig] = []
    monkeypatch.setattr(
        stream_commit, "commit_transactions", lambda _, __, options, ___, **____: found.append(options.client)
    )
    monkeypatch.setattr(
        stream_commit, "abort_transactions", lambda _, options, __: found.append(options.client)
    )
    return found


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("verb", ["commit", "abort"])
@pytest.mark.parametrize("has_folder", [True, False])
def test_a_driver_that_can_not_log_in_ends_transactions_with_the_token(
    session: Path,
    kdc: Kdc,
    ended_with: list[ClientConfig],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    verb: str,
    has_folder: bool,
) -> None:
    """A KDC that is down at the end of a long job does not undo it, and takes little of its time."""
    monkeypatch.setattr(shared_login, "_in_process", {})
    if not has_folder:
        monkeypatch.delenv("SPARK_LOCAL_DIRS")
    given = KERBEROS | {"topic": "t", "deliveryGuarantee": "exactly-once"}
    task = task_of(given)
    kdc.is_up, kdc.limits_ms = False, []
    getattr(stream_writer(given), verb)([written_by(task), None], 0)
    assert ended_with == [task._options.client]
    assert "as the driver can't log in: GSSAPI: no KDC" in caplog.text
    assert len(kdc.limits_ms) == (1 if verb == "commit" else 2)
    assert max(kdc.limits_ms) <= 15_000
    assert pads(session) == []


ONCE = KERBEROS | {"topic": "t", "deliveryGuarantee": "exactly-once"}
PROVIDER = {name: text for name, text in ONCE.items() if "kerberos" not in name} | {
    "kafka.sasl.mechanism": "OAUTHBEARER",
    "kafka.sasl.oauthbearer.token.provider": "some.module:function",
}


@pytest.mark.usefixtures("cluster", "session")
@pytest.mark.parametrize("given", [ONCE, KERBEROS | {"topic": "t"}])
def test_tasks_say_with_which_token_they_have_logged_in(kdc: Kdc, given: dict[str, str]) -> None:
    assert written_by(task_of(given)).token_id == "t1"
    given = {name: text for name, text in given.items() if name != "delegationTokens"}
    own = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "alice", "kafka.sasl.password": "p"}
    assert written_by(stream_writer(given | own)).token_id == ""


@pytest.mark.usefixtures("cluster", "session")
@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_transactions_of_one_user_are_ended_with_the_token_of_that_user_alone(
    kdc: Kdc, ended_with: list[ClientConfig], verb: str
) -> None:
    """Of two that have logged in with the same settings only the tasks know which one it was."""
    tasks = {}
    for kdc.user in ("alice@A", "bob@A"):
        tasks[kdc.user] = task_of(ONCE)
    kdc.is_up = False
    for task in tasks.values():
        getattr(stream_writer(ONCE), verb)([written_by(task)], 0)
    assert ended_with == [task._options.client for task in tasks.values()]
    ended_with.clear()
    for messages in ([], [None], [NO_ROWS], [written_by(task) for task in tasks.values()]):
        getattr(stream_writer(ONCE), verb)(messages, 0)
    assert ended_with == [client(ONCE)] * 4


@pytest.mark.usefixtures("cluster", "session")
@pytest.mark.parametrize("verb", ["commit", "abort"])
@pytest.mark.parametrize("has_ended", [True, False])
def test_a_token_that_is_gone_is_not_replaced_by_the_one_of_another_user(
    clocks: Clocks, kdc: Kdc, ended_with: list[ClientConfig], verb: str, has_ended: bool
) -> None:
    report = written_by(task_of(ONCE))
    if has_ended:
        clocks.pass_hours(25)
    else:
        stream_writer(KERBEROS | {"topic": "t"}).abort([None], 0)
    kdc.user = "bob@A"
    login_of_tasks(ONCE)
    kdc.is_up = False
    getattr(stream_writer(ONCE), verb)([report], 0)
    assert ended_with == [client(ONCE)]


@pytest.mark.usefixtures("cluster", "session")
def test_an_abort_leaves_the_token_of_others_while_none_can_be_created(
    kdc: Kdc, ended_with: list[ClientConfig], caplog: pytest.LogCaptureFixture
) -> None:
    task = task_of(ONCE)
    kdc.is_up = False
    stream_writer(KERBEROS | {"topic": "other"}).abort([None], 0)
    assert "is used further: GSSAPI: no KDC" in caplog.text
    stream_writer(ONCE).commit([written_by(task)], 0)
    assert ended_with == [task._options.client]
    kdc.is_up = True
    assert login_of_tasks(ONCE) == task._options.client


@pytest.mark.usefixtures("cluster", "session")
def test_a_token_of_a_provider_whose_tokens_name_no_user_ends_transactions_too(
    kdc: Kdc, ended_with: list[ClientConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "current_token", lambda _, deadline: Secret(kdc.log_in(deadline)))
    tasks = []
    for kdc.user in ("opaque-1", "opaque-2"):
        tasks.append(task_of(PROVIDER))
    kdc.is_up = False
    stream_writer(PROVIDER).commit([written_by(tasks[0])], 0)
    assert ended_with == [tasks[0]._options.client]


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_rows_that_are_in_the_log_need_no_login_for_a_commit_or_an_abort(
    cluster: Cluster, kdc: Kdc, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Nor anything that the settings refer to."""
    monkeypatch.setenv("THE_USER", "alice")
    given = KERBEROS | {"topic": "t", "kafka.sasl.kerberos.principal": "env:THE_USER"}
    login_of_tasks(given)
    asked = [*cluster.calls]
    kdc.is_up, kdc.limits_ms = False, []
    monkeypatch.delenv("THE_USER")
    getattr(stream_writer(given), verb)([None], 0)
    assert (kdc.limits_ms, cluster.calls) == ([], asked)


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    "error",
    [
        NetworkError("no answer"),
        AuthenticationError("wrong user"),
        BrokerError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "creating"),
        DeadlineExceededError("too late"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_login_that_tasks_can_not_get_is_shown_as_it_is(cluster: Cluster, error: KafkaError) -> None:
    error.add_note("a note")
    cluster.failure = error
    planned = stream_writer(SCRAM | {"topic": "t"})
    with pytest.raises(type(error)) as raised:
        CloudPickleSerializer().dumps(planned)
    shown = traceback.format_exception_only(raised.type, raised.value)
    assert shown == traceback.format_exception_only(type(error), error)
    assert raised.value.__dict__ == error.__dict__


@pytest.mark.usefixtures("cluster", "session")
def test_warnings_about_the_login_of_tasks_are_among_sparks_worker_logs(
    kdc: Kdc, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark.logger.worker_io")
    monkeypatch.setenv("PYSPARK_SPARK_SESSION_UUID", "u")
    monkeypatch.setattr(tokens, "current_token", lambda _, deadline: Secret(kdc.log_in(deadline)))
    login_of_tasks(PROVIDER)
    lines = [line for line in capsys.readouterr().out.splitlines() if "do not say whose they are" in line]
    assert [line.startswith("PYTHON_WORKER_LOGGING:") for line in lines] == [True]


@pytest.mark.usefixtures("reached")
def test_a_commit_that_fails_leaves_the_drivers_login_for_the_abort(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch, ended_with: list[ClientConfig]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NetworkError("no answer")

    monkeypatch.setattr(stream_commit, "commit_transactions", fail)
    given = SCRAM | {"topic": "t", "deliveryGuarantee": "exactly-once"}
    login_of_tasks(given)
    with pytest.raises(NetworkError):
        stream_writer(given).commit([], 0)
    stream_writer(given).abort([], 0)
    assert ended_with == [client(given)]
    assert cluster.alive.keys() == {"t1"}
    assert pads(session) == []


@pytest.mark.usefixtures("reached")
def test_a_batch_commit_that_fails_leaves_token_and_login_for_the_abort(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NetworkError("no answer")

    used = []
    job = AtomicWrite(transactional_id="p", transaction_timeout_ms=1)
    monkeypatch.setattr(KafkaBatchWriter, "_prepare", lambda _: job)
    monkeypatch.setattr(atomic_write, "commit_atomic", fail)
    monkeypatch.setattr(
        atomic_write, "abort_atomic", lambda _, __, options: used.append((options.client, [*cluster.alive]))
    )
    given = SCRAM | {"topic": "t", "deliveryGuarantee": "exactly-once"}
    writer = KafkaBatchWriter(OptionValues.parse(given, Scope.WRITE), ROWS, overwrite=False)
    with pytest.raises(NetworkError):
        on_the_driver(writer).commit([])
    on_the_driver(writer).abort([])
    assert used == [(client(), ["t1"])]
    assert cluster.alive == {}
    assert pads(session) == []


@pytest.mark.usefixtures("reached")
def test_an_abort_that_fails_leaves_no_login(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NetworkError("no answer")

    job = AtomicWrite(transactional_id="p", transaction_timeout_ms=1)
    monkeypatch.setattr(KafkaBatchWriter, "_prepare", lambda _: job)
    monkeypatch.setattr(atomic_write, "abort_atomic", fail)
    monkeypatch.setattr(stream_commit, "abort_transactions", fail)
    given = SCRAM | {"topic": "t", "deliveryGuarantee": "exactly-once"}
    values = OptionValues.parse(given, Scope.WRITE)
    writer = KafkaBatchWriter(values, ROWS, overwrite=False)
    with pytest.raises(NetworkError):
        on_the_driver(writer).abort([None])
    assert cluster.alive == {}
    assert pads(session) == []


@pytest.mark.usefixtures("session")
def test_a_micro_batch_that_failed_makes_the_next_one_log_in_anew(cluster: Cluster) -> None:
    given = SCRAM | {"topic": "t"}
    assert login_of_tasks(given) == login_of_tasks(given)
    stream_writer(given).abort([None], 0)
    assert login_of_tasks(given).security.username == "t2"
    assert len(cluster.created) == 2


@pytest.mark.usefixtures("session")
def test_of_several_users_with_equal_settings_only_one_logs_in_anew_after_a_failure(
    cluster: Cluster, kdc: Kdc
) -> None:
    given, found = KERBEROS | {"topic": "t"}, []
    for kdc.user in ("alice@A", "bob@A"):
        login_of_tasks(given)
    stream_writer(given).abort([None], 0)
    for kdc.user in ("alice@A", "bob@A"):
        found.append(login_of_tasks(given).security.username)
    assert found == ["t1", "t3"]
    assert len(cluster.created) == 3


def test_each_micro_batch_of_a_stream_gets_the_token_of_its_time(
    cluster: Cluster, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[tuple[object, list[str]]] = []
    monkeypatch.setattr(stream_reader, "stop_on_sigterm", lambda stop: ends.append((stop, [*cluster.calls])))
    ignored: list[list[str]] = []
    monkeypatch.setattr(stream_reader, "ignore_sigterm", lambda: ignored.append([*cluster.alive]))
    options = StreamOptions.parse(OptionValues.parse(SCRAM | {"subscribe": "t"}, Scope.STREAM))
    reader = KafkaStreamReader(options, full_schema(False))
    reader.__dict__["_planner"] = type("Planner", (), {"plan": lambda *_: [()]})()
    reader.stop()
    assert (cluster.calls, ends) == ([], [])
    (first,) = reader.partitions({}, {})
    clocks.pass_hours(24 * 6.5)
    (second,) = reader.partitions({}, {})
    assert ends == [(reader.stop, [])]  # before there is a token to expire
    assert first.login is not None
    assert second.login is not None
    assert (first.login.token_id, second.login.token_id) == ("t1", "t2")
    assert ignored == []
    reader.stop()
    assert cluster.alive == {}
    assert ignored == [["t1", "t2"]]  # before the tokens expire, which a signal would cut short


def test_a_held_token_tells_its_hmac_to_no_text() -> None:
    held = HeldToken(
        token=replace(Cluster().create_delegation_token(None, max_lifetime_ms=None), hmac=Secret(HMAC)),
        life_ms=1, most_ms=1, since=Moment.now(),
    )  # fmt: skip
    assert HMAC not in repr(held) + repr(held.login) + repr(parsed())
