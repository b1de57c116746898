"""The token that a session shares: its user, and how long processes wait for each other."""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.full_disk import full_disk
from support.tokens import PASSWORD, SCRAM, Clocks, Cluster, client, parsed

from spark_kafka_native.kafka.config.jaas import SCRAM_MODULE
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.errors import ConfigError, DeadlineExceededError, NetworkError
from spark_kafka_native.kafka.security import kerberos, tokens
from spark_kafka_native.spark import shared_login as shared_login_module
from spark_kafka_native.spark.delegation_tokens import HeldToken, KeptTokens, Moment
from spark_kafka_native.spark.shared_login import forget_login, shared_login


def forget_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_login_module, "_in_process", {})


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


def test_a_reference_in_a_jaas_config_with_another_value_is_another_user(
    cluster: Cluster, session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.is_dir()
    given = {name: text for name, text in SCRAM.items() if "username" not in name and "password" not in name}
    jaas = f'{SCRAM_MODULE} required username="env:THE_USER" password="file:{tmp_path}/password";'
    given |= {"kafka.sasl.jaas.config": jaas}
    found = []
    for user, password in (("alice", "a"), ("bob", "a"), ("bob", "guessed"), ("alice", "a")):
        monkeypatch.setenv("THE_USER", user)
        (tmp_path / "password").write_text(password)
        found.append(shared_login(client(given), parsed(given), ask=False).login.token_id)
    assert found == ["t1", "t2", "t3", "t1"]
    monkeypatch.delenv("THE_USER")
    with pytest.raises(ConfigError, match=r"sasl.jaas.config: username: .* THE_USER is not set"):
        shared_login(client(given), parsed(given), ask=False)


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


def test_a_keytab_may_be_named_as_a_url(
    cluster: Cluster, session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no reference, and its content no text."""
    assert session.is_dir()
    monkeypatch.setattr(kerberos, "log_in", lambda *_: ("alice@A", 3600.0))
    (tmp_path / "alice.keytab").write_bytes(b"\x05\x02\xff")
    given = {name: text for name, text in SCRAM.items() if "username" not in name and "password" not in name}
    given |= {"kafka.sasl.mechanism": "GSSAPI", "kafka.sasl.kerberos.principal": "alice@A"}
    given |= {"kafka.sasl.kerberos.keytab": f"file:{tmp_path}/alice.keytab"}
    assert shared_login(client(given), parsed(given), ask=False).login.token_id == "t1"


def test_a_reference_may_read_all_public_authorities(cluster: Cluster, session: Path, tmp_path: Path) -> None:
    assert session.is_dir()
    (tmp_path / "ca.pem").write_text("A" * 200_000)
    given = {name: text for name, text in SCRAM.items() if "truststore" not in name}
    given |= {"kafka.ssl.truststore.certificates": f"file:{tmp_path}/ca.pem"}
    assert shared_login(client(given), parsed(given), ask=False).login.token_id == "t1"
    given["kafka.ssl.truststore.certificates"] = f"file:{tmp_path}/none.pem"
    with pytest.raises(ConfigError, match=r"^ssl\.truststore\.certificates: .* can't be read"):
        shared_login(client(given), parsed(given), ask=False)


@pytest.mark.parametrize("setting", ["ssl.keystore.location", "ssl.certificate.location", "ssl.key.location"])
def test_another_client_certificate_at_the_same_place_is_another_user(
    cluster: Cluster, session: Path, tmp_path: Path, setting: str
) -> None:
    assert session.is_dir()
    (tmp_path / "certificate.pem").write_text("of no one")
    file, found = tmp_path / "client.pem", []
    given = {"kafka.bootstrap.servers": "k:1", "kafka.security.protocol": "SSL", "delegationTokens": "true"}
    given |= {"delegationTokens.bootstrapServers": "k:2"}
    if setting == "ssl.key.location":
        given["kafka.ssl.certificate.location"] = str(tmp_path / "certificate.pem")
    given[f"kafka.{setting}"] = str(file)
    for text in ("alice's", "bob's", "alice's"):
        file.write_text(text)
        found.append(shared_login(client(given), parsed(given), ask=False).login.token_id)
    assert found == ["t1", "t2", "t1"]
    assert len(cluster.created) == 2
    file.unlink()
    with pytest.raises(ConfigError, match=setting):
        shared_login(client(given), parsed(given), ask=False)


def test_a_login_that_hangs_holds_up_no_other_user(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one with a token provider that hangs: both are asked for the user at the same place."""

    def log_in(*_: object) -> tuple[str, float]:
        with open(session / "pykafka-tokens", "rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "alice@A", 3600.0

    monkeypatch.setattr(kerberos, "log_in", log_in)
    given = {name: text for name, text in SCRAM.items() if "username" not in name and "password" not in name}
    given |= {"kafka.sasl.mechanism": "GSSAPI", "kafka.sasl.kerberos.service.name": "kafka"}
    assert shared_login(client(given), parsed(given), ask=False).login.token_id == "t1"
    assert cluster.calls == ["create t1", "await t1"]


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
        jwt(sub="alice", iss="others"),
        "opaque",
        "e30.bm8.x",
        "opaque",
        f"a.{base64.urlsafe_b64encode(b'[' * 9_000).decode()}.b",
    ):
        monkeypatch.setattr(tokens, "current_token", lambda *_, text=text: Secret(text))
        found.append(shared_login(client(given), parsed(given), ask=False).login.token_id)
    assert found == ["t1", "t2", "t1", "t3", "t4", "t5", "t4", "t6"]


@pytest.mark.parametrize("has_folder", [True, False])
def test_tokens_that_do_not_say_whose_they_are_leave_nothing_for_ever(
    cluster: Cluster,
    clocks: Clocks,
    session: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_folder: bool,
) -> None:
    forget_process(monkeypatch)
    if not has_folder:
        monkeypatch.delenv("SPARK_LOCAL_DIRS")
    given = OAUTH | {"kafka.sasl.oauthbearer.token.provider": "some.module:function"}

    def plan(text: str) -> int:
        monkeypatch.setattr(tokens, "current_token", lambda *_: Secret(text))
        shared_login(client(given), parsed(given), ask=False)
        for file in session.iterdir():
            os.utime(file, (0, 0))
        return len([*session.iterdir(), *shared_login_module._in_process])

    most = [plan(f"opaque{number}") for number in range(3)][-1]
    assert most == (7 if has_folder else 3), "tokens that live are kept"
    assert "some.module:function: its tokens do not say whose they are" in caplog.text
    assert "opaque1" not in caplog.text
    clocks.pass_hours(25)
    assert plan("opaque3") == (3 if has_folder else 1)
    caplog.clear()
    plan(jwt(sub="alice"))
    assert caplog.text == ""
    assert len(cluster.created) == 5


def test_a_token_that_lives_is_kept_where_the_one_that_it_replaces_has_ended(
    cluster: Cluster, session: Path
) -> None:
    assert session.is_dir()
    file = Path(shared_login(client(), parsed(), ask=False).place)
    coming = shared_login_module._read(file).held
    shared_login_module._write(file, KeptTokens(held=None, coming=coming))
    os.utime(file, (0, 0))
    other = SCRAM | {"kafka.sasl.username": "bob"}
    shared_login(client(other), parsed(other), ask=False)
    assert coming is not None
    assert shared_login_module._read(file).coming == coming
    assert len(cluster.created) == 2


def test_a_revoked_or_suspected_token_is_not_shared_any_more(cluster: Cluster, session: Path) -> None:
    assert session.is_dir()
    shared_login(client(), parsed(), ask=False)
    cluster.alive.clear()
    second = shared_login(client(), parsed(), ask=True)
    assert second.login.token_id == "t2"
    for _ in range(2):
        forget_login(client(), parsed(), 10_000)
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
    forget_login(client(), parsed(), 10_000)
    assert shared_login(client(), parsed(), ask=False).login.token_id == "t2"
    assert len(cluster.created) == 2


def test_without_a_folder_the_process_keeps_what_it_has_renewed(
    cluster: Cluster, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    forget_process(monkeypatch)
    for hours in (0, 13, 1):
        clocks.pass_hours(hours)
        assert shared_login(client(), parsed(), ask=False).login.token_id == "t1"
    assert cluster.calls == ["create t1", "await t1", "renew t1"]


@pytest.mark.usefixtures("session")
def test_after_a_failed_renewal_no_other_process_asks_for_a_while(
    cluster: Cluster, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    """Each micro-batch, and each of several workers, is another process."""
    shared_login(client(), parsed(), ask=False)
    clocks.pass_hours(13)
    cluster.failure = NetworkError("nobody answers")
    for _ in range(5):
        assert shared_login(client(), parsed(), ask=False).login.token_id == "t1"
    assert cluster.calls[2:] == ["renew t1", "create t2"]
    assert caplog.text.count("it is used while it lasts") == 1
    cluster.failure = None
    clocks.pass_hours(0.02)
    shared_login(client(), parsed(), ask=False)
    assert cluster.calls[4:] == ["renew t1"]


@pytest.mark.usefixtures("session")
def test_a_token_that_a_broker_does_not_know_is_made_once_for_all_processes(
    cluster: Cluster, clocks: Clocks
) -> None:
    given = SCRAM | {"delegationTokens.maxLifetime": "10h"}
    shared_login(client(given), parsed(given), ask=False)
    cluster.unknown.add("t2")
    for _ in range(3):
        clocks.pass_hours(1 if len(cluster.created) > 1 else 5.5)
        assert shared_login(client(given), parsed(given), ask=False).login.token_id == "t1"
        cluster.unknown -= {"t2"} if cluster.calls.count("await t2") > 1 else set()
        if not cluster.unknown:
            break
    clocks.pass_hours(0.1)
    assert shared_login(client(given), parsed(given), ask=False).login.token_id == "t2"
    assert len(cluster.created) == 2


def test_a_token_that_was_made_when_its_process_was_ended_is_not_lost(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.is_dir()
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "await_delegation_token", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            shared_login(client(), parsed(), ask=False)
    assert shared_login(client(), parsed(), ask=False).login.token_id == "t1"


@contextmanager
def busy(place: str) -> Iterator[None]:
    """Another process asks the cluster, and does not end."""
    with Path(f"{place}-lock").open("r+b") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("session")
def test_a_living_token_is_used_while_another_process_asks(cluster: Cluster, clocks: Clocks) -> None:
    first = shared_login(client(), parsed(), ask=False)
    for hours in (1, 13):
        clocks.pass_hours(hours)
        with busy(first.place):
            assert shared_login(client(), parsed(), ask=False).login == first.login
    assert cluster.calls == ["create t1", "await t1"]


HASTY = SCRAM | {"kafka.default.api.timeout.ms": "300", "kafka.request.timeout.ms": "200"}


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("hours", [0, 23, 25])
def test_a_process_that_does_not_end_is_waited_for_no_longer_than_a_cluster(
    cluster: Cluster, clocks: Clocks, hours: int
) -> None:
    """``ask``: the token may be revoked, and near its end another one is worth the wait."""
    first = shared_login(client(HASTY), parsed(HASTY), ask=False)
    clocks.pass_hours(hours)
    with busy(first.place):
        if hours == 23:
            assert shared_login(client(HASTY), parsed(HASTY), ask=False).login == first.login
            return
        with pytest.raises(DeadlineExceededError, match=r"another process of this Spark session .*locked"):
            shared_login(client(HASTY), parsed(HASTY), ask=hours == 0)
    assert shared_login(client(HASTY), parsed(HASTY), ask=False).login.token_id == ("t2" if hours else "t1")
    assert len(cluster.created) == (2 if hours else 1)


@pytest.mark.usefixtures("session")
def test_near_its_end_another_token_is_waited_for(
    cluster: Cluster, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_login(client(HASTY), parsed(HASTY), ask=False)
    patience, locked = [], shared_login_module._locked

    def noted(file: Path, patience_ms: float) -> Any:
        patience.append(patience_ms)
        return locked(file, patience_ms)

    monkeypatch.setattr(shared_login_module, "_locked", noted)
    for hours in (13, 6):
        cluster.failure = NetworkError("nobody answers")
        clocks.pass_hours(hours)
        shared_login(client(HASTY), parsed(HASTY), ask=False)
    assert patience[1::2] == [0, 300]


def test_one_process_at_a_time_asks_the_cluster(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = cluster.create_delegation_token

    def noted(*given: Any, **more: Any) -> Any:
        (lock,) = session.glob("*-lock")
        with lock.open() as opened, pytest.raises(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return create(*given, **more)

    monkeypatch.setattr(cluster, "create_delegation_token", noted)
    shared_login(client(), parsed(), ask=False)
    assert len(cluster.created) == 1


BOB = SCRAM | {"kafka.sasl.username": "bob"}


def test_an_ended_token_is_left_while_a_process_replaces_it(
    cluster: Cluster, session: Path, clocks: Clocks
) -> None:
    """Without its file two processes could lock it, and each would create a token."""
    ended = Path(shared_login(client(), parsed(), ask=False).place)
    clocks.pass_hours(25)
    with busy(str(ended)):
        os.utime(ended, (0, 0))
        assert shared_login(client(BOB), parsed(BOB), ask=False).login.token_id == "t2"
        assert ended.exists()
        with pytest.raises(DeadlineExceededError):
            shared_login_module._locked(session / f"{ended.name}-lock", 0)
    clocks.pass_hours(25)
    shared_login(client(BOB), parsed(BOB), ask=False)
    assert [file.name for file in session.glob(f"{ended.name}*")] == []
    assert len(cluster.created) == 3


def test_a_token_that_another_process_has_just_written_is_left(
    cluster: Cluster, session: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the ended one and the removal of its file."""
    assert session.is_dir()
    place = shared_login(client(), parsed(), ask=False).place
    clocks.pass_hours(25)
    os.utime(place, (0, 0))
    lives = shared_login_module._lives

    def late(kept: KeptTokens) -> bool:
        monkeypatch.setattr(shared_login_module, "_lives", lives)
        shared_login(client(), parsed(), ask=False)
        return lives(kept)

    monkeypatch.setattr(shared_login_module, "_lives", late)
    shared_login(client(BOB), parsed(BOB), ask=False)
    shared_login(client(), parsed(), ask=False)
    assert len(cluster.created) == 3


def test_a_lock_file_that_is_removed_while_it_is_waited_for_is_made_again(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, flock = session / "pykafka-token-x-lock", fcntl.flock

    def late(opened: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        flock(opened, how)
        file.unlink()

    monkeypatch.setattr(fcntl, "flock", late)
    with (
        shared_login_module._locked(file, 0),
        pytest.raises(DeadlineExceededError, match=r"has .* locked"),
    ):
        shared_login_module._locked(file, 0)


def test_a_lock_file_that_another_process_has_made_again_is_its_own(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the one before is waited for: two processes with a lock would create a token each."""
    file, flock = session / "pykafka-token-x-lock", fcntl.flock
    with ExitStack() as stack:

        def late(opened: Any, how: int) -> None:
            monkeypatch.setattr(fcntl, "flock", flock)
            flock(opened, how)
            file.unlink()
            stack.enter_context(shared_login_module._locked(file, 0))

        monkeypatch.setattr(fcntl, "flock", late)
        with pytest.raises(DeadlineExceededError, match=r"has .* locked"):
            stack.enter_context(shared_login_module._locked(file, 0))


@pytest.mark.parametrize("hours", [None, 13])
@pytest.mark.parametrize("ask", [False, True])
def test_what_another_process_has_done_meanwhile_is_not_done_again(
    cluster: Cluster,
    session: Path,
    clocks: Clocks,
    monkeypatch: pytest.MonkeyPatch,
    hours: int | None,
    ask: bool,
) -> None:
    """Between the first look at the file and the lock: of the token that this one has seen, if there was one,
    half of the time is over."""
    assert session.is_dir()
    if hours is not None:
        shared_login(client(), parsed(), ask=False)
        clocks.pass_hours(hours)
    others, locked = [], shared_login_module._locked

    def late(file: Path, patience_ms: float) -> Any:
        if file.name.endswith("-lock"):
            monkeypatch.setattr(shared_login_module, "_locked", locked)
            others.append(shared_login(client(), parsed(), ask=False))
        return locked(file, patience_ms)

    monkeypatch.setattr(shared_login_module, "_locked", late)
    found = shared_login(client(), parsed(), ask=ask)
    assert [found.login] == [one.login for one in others]
    assert (len(cluster.created), cluster.calls.count("renew t1")) == (1, hours is not None)


def test_what_is_kept_is_read_as_it_was_written(cluster: Cluster, tmp_path: Path) -> None:
    tokens_ = [cluster.create_delegation_token(None, max_lifetime_ms=None) for _ in range(2)]
    held, coming = (HeldToken.created(replace(one, renewers=("User:bob",))) for one in tokens_)
    for kept in (KeptTokens(), KeptTokens(held=held, coming=coming, failed=Moment.now())):
        shared_login_module._write(tmp_path / "kept", kept)
        assert shared_login_module._read(tmp_path / "kept") == kept


@pytest.mark.usefixtures("cluster")
def test_a_file_is_called_otherwise_in_each_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name does not help to find out the credentials."""
    names = []
    for session in ("one", "other"):
        (tmp_path / session).mkdir()
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / session))
        names.append(Path(shared_login(client(), parsed(), ask=False).place).name)
    assert names[0] != names[1]


@pytest.mark.parametrize("is_new", [True, False])
def test_a_token_that_can_not_be_kept_is_ended(cluster: Cluster, session: Path, is_new: bool) -> None:
    if not is_new:
        shared_login(client(), parsed(), ask=False)
        forget_login(client(), parsed(), 10_000)
        cluster.alive.clear()
    files = {file.name for file in session.iterdir()}
    with full_disk(), pytest.raises(ConfigError, match=rf"keeps logins in {session}.*: file too large|space"):
        shared_login(client(), parsed(), ask=False)
    assert cluster.alive == {}
    assert {file.name for file in session.iterdir()} - files <= {"pykafka-tokens"}
    made = len(cluster.created)
    assert shared_login(client(), parsed(), ask=False).login.token_id == f"t{made + 1}"
    assert len((session / "pykafka-tokens").read_bytes()) == 32, "a salt cut short protects nothing"


def test_a_renewal_that_can_not_be_kept_is_used(
    cluster: Cluster, session: Path, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    shared_login(client(), parsed(), ask=False)
    clocks.pass_hours(13)
    with full_disk():
        assert shared_login(client(), parsed(), ask=False).login.token_id == "t1"
    assert f"keeps logins in {session}" in caplog.text
    assert list(cluster.alive) == ["t1"]


def test_a_coming_token_that_can_not_be_kept_as_the_present_one_is_used(
    cluster: Cluster, session: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the file as the coming one: other processes take it from there."""
    file = Path(shared_login(client(), parsed(), ask=False).place)
    coming = shared_login_module._read(file).held
    shared_login_module._write(file, KeptTokens(coming=coming))
    with full_disk():
        assert shared_login(client(), parsed(), ask=False).login.token_id == "t1"
    assert f"keeps logins in {session}" in caplog.text
    assert list(cluster.alive) == ["t1"]
    assert shared_login(client(), parsed(), ask=False).login.token_id == "t1"


def test_another_token_that_can_not_be_kept_while_a_broker_does_not_know_it_is_ended(
    cluster: Cluster, session: Path, clocks: Clocks
) -> None:
    """Each process would create one until the broker knows the first."""
    given = SCRAM | {"delegationTokens.maxLifetime": "10h"}
    shared_login(client(given), parsed(given), ask=False)
    clocks.pass_hours(5.5)
    cluster.unknown.add("t2")
    with full_disk(), pytest.raises(ConfigError, match=f"keeps logins in {session}"):
        shared_login(client(given), parsed(given), ask=False)
    assert list(cluster.alive) == ["t1"]
    assert shared_login(client(given), parsed(given), ask=False).login.token_id == "t3"


def test_a_folder_that_takes_no_file_is_named(
    cluster: Cluster, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(ConfigError, match=rf"keeps logins in {session}.*no space left"):
            shared_login(client(), parsed(), ask=False)
    shared_login(client(), parsed(), ask=False)
    forget_login(client(), parsed(), 10_000)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(ConfigError, match="no space left"):
            shared_login(client(), parsed(), ask=False)
    assert list(cluster.alive) == ["t1"]
    assert not [file.name for file in session.iterdir() if not file.name.startswith("pykafka-token")]
