"""When tokens are fetched and by which thread, and failures to fetch one."""

from __future__ import annotations

import base64
import errno
import http.client
import itertools
import json
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
import urllib.error
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.forked_child import holds_in_forked_child

from spark_kafka_native.kafka.config.jaas import OAUTHBEARER_MODULE
from spark_kafka_native.kafka.config.security_config import SecurityConfig
from spark_kafka_native.kafka.errors import AuthenticationError, ConfigError, NetworkError
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.security import tokens
from spark_kafka_native.kafka.security.config_providers import ALLOWED_MODULES
from spark_kafka_native.kafka.security.tokens import TokenSource, current_token, register_token_provider

MARKED = "marked-token"


def jwt(**claims: object) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part(claims)}."


def security(**given: str) -> SecurityConfig:
    names = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    return SecurityConfig.from_properties(
        names | {f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in given.items()}
    )


def soon() -> Deadline:
    return Deadline.after_ms(2_000)


class Fetches:
    """A source of numbered tokens with a clock of its own."""

    def __init__(self, lifetime_s: float | None = 100) -> None:
        self.now = 1_000.0
        self.count = 0
        self.lifetime_s = lifetime_s
        self.failure: Exception | None = None
        self.source = TokenSource(self.fetch, clock=lambda: self.now, uniform=lambda _low, high: high)

    def advance(self, seconds: float) -> str:
        self.now += seconds
        return "late"

    def fetch(self, _deadline: Deadline) -> tuple[str, float | None]:
        if self.failure is not None:
            raise self.failure
        self.count += 1
        return f"token{self.count}", None if self.lifetime_s is None else self.now + self.lifetime_s

    def token(self) -> str:
        return self.source.token(soon()).reveal()


def test_a_token_is_kept_for_four_fifths_of_its_life() -> None:
    fetches = Fetches()
    assert fetches.token() == "token1"
    fetches.now += 79.9
    assert fetches.token() == "token1"
    fetches.now += 0.2
    assert fetches.token() == "token2"


def test_a_token_without_a_lifetime_is_fetched_each_time() -> None:
    fetches = Fetches(None)
    assert [fetches.token(), fetches.token()] == ["token1", "token2"]


def test_the_old_token_serves_while_no_new_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    fetches = Fetches()
    fetches.token()
    fetches.now += 90
    fetches.failure = NetworkError("the endpoint is down")
    with caplog.at_level(logging.WARNING):
        assert fetches.token() == "token1"
    assert "no new token (the endpoint is down)" in caplog.text
    fetches.now += 10
    with pytest.raises(NetworkError, match="the endpoint is down"):
        fetches.token()


def test_an_error_of_any_type_is_a_failed_fetch(caplog: pytest.LogCaptureFixture) -> None:
    fetches = Fetches()
    fetches.token()
    fetches.now += 90
    fetches.failure = TypeError(MARKED)
    assert fetches.token() == "token1"
    fetches.now += 10
    with pytest.raises(AuthenticationError, match="its source failed with TypeError") as raised:
        fetches.token()
    assert MARKED not in str(raised.value) + caplog.text


def test_a_fetch_without_a_thread_of_its_own_may_be_repeated() -> None:
    """There are too many for a moment: no credentials were refused."""
    fetches = Fetches()
    fetches.failure = RuntimeError("can't start new thread")
    with pytest.raises(NetworkError, match="its source failed with RuntimeError"):
        fetches.token()
    fetches.failure = None
    assert fetches.token() == "token1"


def test_the_old_token_is_not_used_if_it_expires_while_no_new_one_comes() -> None:
    """A broker refuses it, and that would be final, unlike an endpoint that does not answer."""
    fetches = Fetches()
    fetches.token()
    fetches.now += 95

    def fetch(_: Deadline) -> tuple[str, float | None]:
        fetches.advance(10)
        raise NetworkError("the endpoint is silent")

    fetches.source._fetch = fetch
    with pytest.raises(NetworkError, match="the endpoint is silent"):
        fetches.token()


def test_a_renewal_that_hangs_takes_little_of_a_logins_time_and_serves_once_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release, given, calls = threading.Event(), list[float](), list[int]()

    def fetch(deadline: Deadline) -> tuple[str, float | None]:
        calls.append(1)
        given.append(deadline.remaining_ms)
        if len(calls) == 2:
            assert release.wait(60)
        if len(calls) == 3:
            raise NetworkError("the endpoint is down")
        return f"token{len(calls)}", now + 100

    now = 1_000.0
    source = TokenSource(fetch, clock=lambda: now)
    source.token(soon())
    now += 90
    login = soon()
    assert source.token(login).reveal() == "token1"
    assert login.remaining_ms > 1_000, "the login itself needs time"
    assert given[1] > 1_000, "an endpoint that takes longer than the login waits can renew the token, too"
    login = soon()
    assert source.token(login).reveal() == "token1"
    assert login.remaining_ms > 1_900, "one login in a while waits"
    release.set()
    until = time.monotonic() + 60
    while source.token(soon()).reveal() == "token1":
        assert time.monotonic() < until
        time.sleep(0.01)
    assert source.token(soon()).reveal() == "token2"
    now += 90
    monkeypatch.setattr(source, "_renewal_pause", Deadline.after_ms(0))
    assert [source.token(soon()).reveal() for _ in range(3)] == ["token2"] * 3
    assert len(calls) == 3, "no attempt for each login"
    now += 10
    assert source.token(soon()).reveal() == "token4", "without a valid token there is no pause"


@pytest.mark.parametrize(("login_ms", "waits_ms"), [(2_000, 500), (60_000, 1_000)])
def test_a_login_waits_for_a_renewal_for_a_share_of_its_time_and_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch, login_ms: float, waits_ms: float
) -> None:
    """Each connection of a process would stand still for a quarter of its time, however long that is."""
    fetches, waited = Fetches(), list[float]()
    fetches.token()
    fetches.now += 90

    def ask(_key: object, _question: object, limit: Deadline) -> None:
        waited.append(limit.remaining_ms)
        raise AuthenticationError("no answer")

    monkeypatch.setattr(fetches.source._fetches, "ask", ask)
    assert fetches.source.token(Deadline.after_ms(login_ms)).reveal() == "token1"
    [wait_ms] = waited
    assert waits_ms / 4 < wait_ms <= waits_ms


def test_an_expired_token_is_not_even_sent() -> None:
    with pytest.raises(AuthenticationError, match="the token has expired already"):
        Fetches(0).token()
    slow = Fetches()
    slow.source = TokenSource(lambda _: (slow.advance(100), 1_100.0), clock=lambda: slow.now)
    with pytest.raises(AuthenticationError, match="the token has expired already"):
        slow.token()
    expired = jwt(sub="a", exp=int(time.time()) - 1)
    with pytest.raises(AuthenticationError, match="the token has expired already") as caught:
        current_token(security(token=expired), soon())
    assert expired not in str(caught.value)


def test_the_expiry_that_a_provider_returns_is_in_milliseconds() -> None:
    called = []

    def provider() -> tuple[str, int]:
        called.append(1)
        return "t", round((time.time() + seconds_left) * 1000)

    register_token_provider("in milliseconds", provider)
    config = security(token_provider="in milliseconds")
    seconds_left = -60
    with pytest.raises(AuthenticationError, match="the token has expired already"):
        current_token(config, soon())
    seconds_left = 3_600
    assert [current_token(config, soon()).reveal() for _ in range(3)] == ["t"] * 3
    assert len(called) == 2, "once when it had expired, and once for all of the three"


@pytest.mark.parametrize(
    "token",
    [
        "a.b.c",
        "opaque",
        jwt(sub="x"),
        jwt(exp="soon"),
        jwt(exp=True),
        "a..b",
        "a.WzFd.c",
        jwt(exp=10**400),
        jwt(exp=1e300),
        jwt(exp=float("nan")),
        f"a.{base64.urlsafe_b64encode(b'[' * 9_000).decode()}.c",
    ],
)
def test_any_token_that_tells_no_expiry_is_the_brokers_to_judge(token: str) -> None:
    assert current_token(security(token=token), soon()).reveal() == token


@pytest.mark.parametrize("expiry_ms", [10**400, float("inf"), float("nan")])
def test_an_expiry_that_no_clock_shows_is_none(expiry_ms: float) -> None:
    register_token_provider("for ever", lambda: ("t", expiry_ms))  # type: ignore[arg-type,return-value]
    assert current_token(security(token_provider="for ever"), soon()).reveal() == "t"


def test_threads_that_need_a_token_share_one_fetch() -> None:
    calls = []
    release = threading.Event()

    def fetch(_deadline: Deadline) -> tuple[str, float | None]:
        calls.append(1)
        release.wait(5)
        return "t", time.time() + 100

    source = TokenSource(fetch)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(source.token(soon()).reveal())) for _ in range(8)]
    for thread in threads:
        thread.start()
    with pytest.raises(NetworkError, match="no token came in time"):
        source.token(Deadline.after_ms(50))
    release.set()
    for thread in threads:
        thread.join(60)
    assert found == ["t"] * 8
    assert len(calls) == 1


def test_a_source_that_hangs_may_be_asked_again() -> None:
    """`AuthenticationError` would end a producer for good."""
    release = threading.Event()
    source = TokenSource(lambda _: (release.wait(60), ("t", time.time() + 100))[1])
    with pytest.raises(NetworkError, match="no token came in time"):
        source.token(Deadline.after_ms(50))
    release.set()
    assert source.token(soon()).reveal() == "t"


def test_a_provider_that_hangs_is_named_and_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a socket without a timeout does: all later logins of the process joined the call that hung."""
    monkeypatch.setattr(tokens, "HANGING_MS", 100)
    release, calls = threading.Event(), list[int]()

    def provider() -> str:
        calls.append(1)
        if len(calls) == 1:
            assert release.wait(60)
        return f"t{len(calls)}"

    register_token_provider("hangs", provider)
    config = security(token_provider="hangs")
    try:
        with pytest.raises(NetworkError, match="no token came in time from the token provider hangs"):
            current_token(config, Deadline.after_ms(20))
        time.sleep(0.1)
        assert current_token(config, soon()).reveal() == "t2"
        assert current_token(config, soon()).reveal() == "t3"
    finally:
        release.set()


def test_a_fetch_that_takes_longer_than_a_login_is_joined_by_the_next() -> None:
    release, calls = threading.Event(), list[int]()

    def fetch(_deadline: Deadline) -> tuple[str, float | None]:
        calls.append(1)
        assert release.wait(60)
        return "t", None

    source = TokenSource(fetch)
    with pytest.raises(NetworkError, match="no token came in time"):
        source.token(Deadline.after_ms(20))
    timer = threading.Timer(0.05, release.set)
    timer.start()
    assert source.token(soon()).reveal() == "t"
    timer.join()
    assert len(calls) == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_fetch_is_no_longer_hanging_once_it_has_ended(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Else each login would begin one of its own, beside those of others."""
    monkeypatch.setattr(tokens, "HANGING_MS", 50)
    gates, calls = [threading.Event(), threading.Event()], list[int]()

    def fetch(_deadline: Deadline) -> tuple[str, float | None]:
        calls.append(1)
        assert gates[min(len(calls), 2) - 1].wait(60)
        return f"t{len(calls)}", None

    source = TokenSource(fetch)
    if not late:
        gates[0].set()
        assert source.token(soon()).reveal() == "t1"
    else:
        with pytest.raises(NetworkError):
            source.token(Deadline.after_ms(20))
    time.sleep(0.1)
    timer = threading.Timer(0.02, gates[1].set)
    timer.start()
    assert source.token(soon()).reveal() == "t2"
    timer.join()
    gates[0].set()
    assert len(calls) == 2


def test_a_fetch_that_hangs_still_hangs_when_one_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all later logins would wait for it."""
    monkeypatch.setattr(tokens, "HANGING_MS", 50)
    gates, calls = [threading.Event(), threading.Event()], list[int]()

    def fetch(_deadline: Deadline) -> tuple[str, float | None]:
        calls.append(1)
        number = len(calls)
        assert number > len(gates) or gates[number - 1].wait(60)
        return f"t{number}", None

    def wait_until(holds: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.1)

    source = TokenSource(fetch)
    for number in (1, 2):
        with pytest.raises(NetworkError):
            source.token(Deadline.after_ms(20))
        wait_until(lambda number=number: len(calls) == number)
    gates[0].set()
    wait_until(lambda: source._token is not None)
    assert source.token(soon()).reveal() == "t3"
    gates[1].set()


def test_a_fetch_that_hung_does_not_replace_a_token_that_was_asked_for_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker may refuse the older one by then."""
    monkeypatch.setattr(tokens, "HANGING_MS", 0)
    begun, release, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    def fetch(_deadline: Deadline) -> tuple[str, float | None]:
        threads.append(threading.current_thread())
        number = len(threads)
        if number == 1:
            begun.set()
            assert release.wait(60)
        return f"t{number}", time.time() + 100

    source = TokenSource(fetch)
    with pytest.raises(NetworkError, match="no token came in time"):
        source.token(Deadline.after_ms(20))
    assert begun.wait(60)
    assert source.token(soon()).reveal() == "t2"
    release.set()
    threads[0].join(60)
    assert source.token(soon()).reveal() == "t2"
    assert len(threads) == 2


def test_a_clock_that_is_set_back_lengthens_no_tokens_life() -> None:
    """A broker that refuses an expired one ends the client."""
    fetches, passed = Fetches(), [0.0]
    source = TokenSource(
        fetches.fetch, lambda: fetches.now, lambda _low, high: high, steady=lambda: passed[0]
    )
    assert source.token(soon()).reveal() == "token1"
    fetches.now -= 7_200
    passed[0] += 79
    assert source.token(soon()).reveal() == "token1"
    passed[0] += 2
    assert source.token(soon()).reveal() == "token2"
    passed[0] += 101
    fetches.failure = NetworkError("the endpoint is down")
    with pytest.raises(NetworkError, match="the endpoint is down"):
        source.token(soon())


def test_a_source_that_keeps_its_deadline_says_the_reason_itself() -> None:
    def fetch(deadline: Deadline) -> tuple[str, float | None]:
        time.sleep(deadline.remaining_ms / 1000)
        raise NetworkError("the endpoint is silent")

    with pytest.raises(NetworkError, match="the endpoint is silent"):
        TokenSource(fetch).token(Deadline.after_ms(1_000))


def test_a_thread_that_is_interrupted_while_it_fetches_holds_up_no_other() -> None:
    """As the main thread does while its signal handler closes a client, of which a thread needs a token."""
    source = TokenSource(lambda _: (release.wait(60), ("t", time.time() + 100))[1])
    release, found = threading.Event(), list[str]()

    def handler(*_: object) -> None:
        release.set()
        other = threading.Thread(target=lambda: found.append(source.token(soon()).reveal()))
        other.start()
        other.join(60)
        assert found == ["t"]

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGUSR1))
    try:
        timer.start()
        assert source.token(Deadline.after_ms(60_000)).reveal() == "t"
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert found == ["t"]


def test_a_refusal_of_another_threads_fetch_is_not_repeated() -> None:
    """An account that is asked for by each thread in turn might be locked."""
    release, calls = threading.Event(), list[int]()

    def fetch(_deadline: Deadline) -> tuple[str, float | None]:
        calls.append(1)
        assert release.wait(60)
        raise AuthenticationError("refused")

    source = TokenSource(fetch)
    errors: list[AuthenticationError] = []

    def ask() -> None:
        with pytest.raises(AuthenticationError, match="refused") as raised:
            source.token(Deadline.after_ms(60_000))
        errors.append(raised.value)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    with pytest.raises(NetworkError, match="no token came in time"):
        source.token(Deadline.after_ms(50))
    release.set()
    for thread in threads:
        thread.join(60)
    assert (len(calls), len(set(map(id, errors)))) == (1, 3)


def test_a_token_is_kept_no_longer_than_it_says_itself() -> None:
    """An endpoint behind a cache gives the lifetime that the token had when it was made."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 1_300}).encode()).decode().rstrip("=")
    now, calls = [1_000.0], list[int]()

    def fetch(_deadline: Deadline) -> tuple[str, float | None]:
        calls.append(1)
        return f"a.{claims}.c", 1_000 + 3_600

    source = TokenSource(fetch, clock=lambda: now[0], uniform=lambda _low, high: high, steady=lambda: 0.0)
    for now[0], count in ((1_000.0, 1), (1_200.0, 1), (1_241.0, 2)):
        source.token(soon())
        assert len(calls) == count
    now[0] = 1_301.0  # the clock of the endpoint may be behind: its token is new
    assert source.token(soon()).reveal().startswith("a.")


def test_a_failure_of_another_threads_fetch_is_no_failure_of_ours() -> None:
    release, calls = threading.Event(), list[float]()

    def fetch(deadline: Deadline) -> tuple[str, float | None]:
        calls.append(deadline.remaining_ms)
        if len(calls) == 1:
            assert release.wait(60)
            raise NetworkError("no time left")
        return "t", time.time() + 100

    source = TokenSource(fetch)
    failed: list[Exception] = []

    def ask_first() -> None:
        try:
            source.token(Deadline.after_ms(60_000))
        except NetworkError as error:
            failed.append(error)

    first = threading.Thread(target=ask_first)
    first.start()
    until = time.monotonic() + 60
    while not calls:
        assert time.monotonic() < until
    timer = threading.Timer(0.1, release.set)
    timer.start()
    assert source.token(Deadline.after_ms(60_000)).reveal() == "t"
    first.join(60)
    timer.join()
    assert [str(error) for error in failed] == ["no time left"]
    assert len(calls) == 2


def test_a_fetch_that_another_thread_could_not_begin_is_begun_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That one was interrupted before its thread had started; those that joined it were not."""
    source = TokenSource(lambda _deadline: ("t", time.time() + 100))
    ask, asked = source._fetches.ask, list[object]()

    def interrupted_at_first(*given: Any) -> object:
        asked.append(given[0])
        if len(asked) == 1:
            raise OSError("interrupted by KeyboardInterrupt()")
        return ask(*given)

    monkeypatch.setattr(source._fetches, "ask", interrupted_at_first)
    assert source.token(soon()).reveal() == "t"
    assert len(asked) == 2


def test_a_token_file_is_read_for_each_connection(tmp_path: Path) -> None:
    path = tmp_path / "token"
    config = security(token=f"file:{path}")
    for text in ("first", "second"):
        path.write_text(text + "\n")
        assert current_token(config, soon()).reveal() == text


def test_a_registered_function_gives_tokens() -> None:
    register_token_provider("mine", lambda: ("abc", int(time.time() * 1000) + 60_000))
    config = security(token_provider="mine")
    assert current_token(config, soon()).reveal() == "abc"
    assert config == security(token_provider="mine")  # plain data
    for bad in ("", "a:b", tokens.MSK_IAM):
        with pytest.raises(ValueError, match="no colon"):
            register_token_provider(bad, lambda: "x")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("token_maker")
    monkeypatch.setitem(sys.modules, "token_maker", made)
    return made


def test_no_token_of_a_provider_that_was_replaced_is_used() -> None:
    """It may be that of another user."""
    late = (time.time() + 3_600) * 1000
    mine, others = security(token_provider="mine"), security(token_provider="others")
    for user in ("alice", "bob"):
        register_token_provider("mine", lambda user=user: (user, late))  # type: ignore[misc]
        if user == "alice":
            register_token_provider("others", lambda: ("other", late))
            current_token(others, soon())
        assert current_token(mine, soon()).reveal() == user
    assert "others" in [key.security.token_provider for key in tokens._sources]


def test_no_token_of_a_login_module_that_was_replaced_is_used(tmp_path: Path) -> None:
    path = tmp_path / "jaas"
    late = int(time.time() + 3_600) * 1000
    register_token_provider("by module", lambda: (path.read_text().split('"')[1], late))
    names = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    config = SecurityConfig.from_properties(
        names | {"sasl.jaas.config": f"file:{path}", "sasl.oauthbearer.token.provider": "by module"}
    )
    for user in ("alice", "bob"):
        path.write_text(f'{OAUTHBEARER_MODULE} required extension_user="{user}";')
        assert current_token(config, soon()).reveal() == user


def test_a_function_of_a_module_gives_tokens(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    module.make = lambda: "from-module"  # type: ignore[attr-defined]
    config = security(token_provider="token_maker:make")
    assert current_token(config, soon()).reveal() == "from-module"
    monkeypatch.setenv(ALLOWED_MODULES, "other, token_maker")
    assert current_token(config, soon()).reveal() == "from-module"


SLOW = """
from slow_gate import begun, release
begun.set()
release.wait(0.2)
make = lambda: "from-module"
"""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_the_module_is_imported_has_the_whole_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It had the half of it for good, or waited for ever for the lock of its import."""
    gate: Any = ModuleType("slow_gate")
    gate.begun, gate.release = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, "slow_gate", gate)
    (tmp_path / "slow_tokens.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    config = security(token_provider="slow_tokens:make")
    thread = threading.Thread(target=current_token, args=(config, soon()))
    thread.start()
    assert gate.begun.wait(20)
    assert holds_in_forked_child(lambda: current_token(config, soon()).reveal() == "from-module", seconds=20)
    thread.join()
    monkeypatch.delitem(sys.modules, "slow_tokens")


@pytest.mark.parametrize("allowed", ["", "other", "token_maker.sub", "token"])
def test_a_module_that_is_not_allowed_is_not_imported(monkeypatch: pytest.MonkeyPatch, allowed: str) -> None:
    monkeypatch.setenv(ALLOWED_MODULES, allowed)
    with pytest.raises(ConfigError, match="the module antigravity is not among PYKAFKA_ALLOWED_MODULES"):
        current_token(security(token_provider="antigravity:make", scope=allowed), soon())
    assert "antigravity" not in sys.modules


def test_a_module_lends_none_that_it_imports(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    module.os = os  # type: ignore[attr-defined]
    config = security(token_provider="token_maker:os.getcwd")
    assert current_token(config, soon()).reveal() == os.getcwd()
    tokens.forget_token(config)
    monkeypatch.setenv(ALLOWED_MODULES, "token_maker")
    with pytest.raises(ConfigError, match="the module os is not among PYKAFKA_ALLOWED_MODULES"):
        current_token(config, soon())


def test_the_signer_of_msk_is_a_module_that_may_be_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's broker got a token of the process."""
    signer = ModuleType("aws_msk_iam_sasl_signer")
    signer.MSKAuthTokenProvider = SimpleNamespace(  # type: ignore[attr-defined]
        generate_auth_token=lambda region: (f"token-for-{region}", 1e15)
    )
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    config = security(token_provider="aws-msk-iam", aws_region="eu-west-9")
    monkeypatch.setenv(ALLOWED_MODULES, "other")
    with pytest.raises(
        ConfigError, match="module aws_msk_iam_sasl_signer is not among PYKAFKA_ALLOWED_MODUL"
    ):
        current_token(config, soon())
    monkeypatch.setenv(ALLOWED_MODULES, "other,aws_msk_iam_sasl_signer")
    assert current_token(config, soon()).reveal() == "token-for-eu-west-9"


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        ("nobody", "nothing was registered under this name"),
        ("no_such_module_here:f", "can't be imported (ModuleNotFoundError)"),
        ("token_maker:missing", "can't be imported (AttributeError)"),
        ("token_maker:text", "is no function"),
        ("token_maker:number", "must return a str"),
        ("token_maker:odd", "must return a str"),
        ("token_maker:fails", "failed with RuntimeError"),
        ("token_maker:exits", "failed with SystemExit"),
    ],
)
def test_a_provider_that_fails_is_named_and_its_words_are_not_shown(
    module: ModuleType, provider: str, says: str
) -> None:
    def fails() -> str:
        raise RuntimeError(MARKED)

    def exits() -> str:  # as the main() of a command line does
        sys.exit(MARKED)

    module.text, module.fails, module.exits = MARKED, fails, exits  # type: ignore[attr-defined]
    module.number, module.odd = lambda: 5, lambda: (MARKED, "later")  # type: ignore[attr-defined]
    with pytest.raises((ConfigError, AuthenticationError)) as caught:
        current_token(security(token_provider=provider), soon())
    assert says in str(caught.value)
    assert MARKED not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or provider == "nobody" or "return" in says or "function" in says


class ConnectTimeout(OSError):  # noqa: N818 - as `requests` names it
    pass


Timeout = type("Timeout", (ConnectTimeout,), {})


def because(*errors: Exception) -> Exception:
    """The first of ``errors``, each raised from the next one."""
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def in_a_circle() -> Exception:
    error = RuntimeError(MARKED)
    error.__cause__ = error
    return error


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (TimeoutError(MARKED), NetworkError),
        (ConnectionRefusedError(MARKED), NetworkError),
        (socket.gaierror(MARKED), NetworkError),
        (OSError(errno.EHOSTUNREACH, MARKED), NetworkError),
        (urllib.error.URLError(TimeoutError(MARKED)), NetworkError),
        (urllib.error.URLError(OSError(errno.ENETUNREACH, MARKED)), NetworkError),
        (Timeout(MARKED), NetworkError),
        (urllib.error.URLError(ssl.SSLEOFError(MARKED)), NetworkError),
        (http.client.IncompleteRead(MARKED.encode()), NetworkError),
        (http.client.BadStatusLine(MARKED), NetworkError),
        (because(RuntimeError(MARKED), ValueError(MARKED), ConnectionError(MARKED)), NetworkError),
        (because(RuntimeError(MARKED), Timeout(MARKED)), NetworkError),
        (RuntimeError("can't start new thread"), NetworkError),
        # Trying again would lock the account, or help nothing.
        (RuntimeError("can't create new thread at interpreter shutdown"), AuthenticationError),
        (urllib.error.HTTPError("https://idp", 401, MARKED, Message(), None), AuthenticationError),
        (ssl.SSLCertVerificationError(MARKED), AuthenticationError),
        (urllib.error.URLError(ssl.SSLCertVerificationError(MARKED)), AuthenticationError),
        (in_a_circle(), AuthenticationError),
        (FileNotFoundError(MARKED), AuthenticationError),
        (OSError(errno.EACCES, MARKED), AuthenticationError),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else one.__name__,
)
@pytest.mark.parametrize("handles", [False, True], ids=["", "while another error is handled"])
def test_a_provider_without_its_server_is_asked_again(
    module: ModuleType, raised: Exception, kind: type[Exception], handles: bool
) -> None:
    """It counted as credentials that are refused, which end a client."""
    answers: list[Exception | str] = [raised, "a.b.c"]

    def asks() -> str:
        answer = answers.pop(0)
        if isinstance(answer, str):
            return answer
        try:
            raise ConnectionResetError if handles else ValueError
        except (OSError, ValueError):
            raise answer  # noqa: B904 - its context says nothing

    module.asks = asks  # type: ignore[attr-defined]
    given = security(token_provider="token_maker:asks")
    with pytest.raises(
        kind, match=f"provider token_maker:asks failed with {type(raised).__name__}$"
    ) as error:
        current_token(given, soon())
    assert MARKED not in str(error.value)
    if kind is NetworkError:
        assert current_token(given, soon()).reveal() == "a.b.c"


def test_msk_iam_takes_region_and_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(ConfigError, match="needs the cluster's region"):
        current_token(security(token_provider="aws-msk-iam"), soon())
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConfigError, match=r"pip install 'spark-kafka-native\[msk\]'"):
        current_token(security(token_provider="aws-msk-iam", aws_region="eu-west-1"), soon())
    signer = ModuleType("aws_msk_iam_sasl_signer")

    class MSKAuthTokenProvider:
        @staticmethod
        def generate_auth_token(region: str) -> tuple[str, int]:
            return f"signed-for-{region}", int(time.time() * 1000) + 900_000

    signer.MSKAuthTokenProvider = MSKAuthTokenProvider  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    config = security(token_provider="aws-msk-iam", aws_region="eu-central-1")
    assert current_token(config, soon()).reveal() == "signed-for-eu-central-1"
    for name, region in (("AWS_DEFAULT_REGION", "us-east-2"), ("AWS_REGION", "us-east-1")):
        monkeypatch.setenv(name, region)
        config = security(token_provider="aws-msk-iam", scope=region)  # none that is cached
        assert current_token(config, soon()).reveal() == f"signed-for-{region}"


@pytest.mark.parametrize(
    ("options", "token"),
    [
        ("", "default eu-west-1"),
        ('awsProfileName="p" awsDebugCreds="true"', "profile eu-west-1 p"),
        ('awsRoleArn="arn:r" awsStsRegion="eu-west-1"', "role eu-west-1 arn:r"),
        ('awsRoleArn="arn:r" awsRoleSessionName="s"', "role eu-west-1 arn:r s"),
    ],
)
def test_msk_takes_profile_and_role_from_the_login_module(
    monkeypatch: pytest.MonkeyPatch, options: str, token: str
) -> None:
    def made(kind: str) -> Callable[..., tuple[str, int]]:
        return lambda *names: (" ".join((kind, *names)), int(time.time() * 1000) + 900_000)

    monkeypatch.setenv("AWS_REGION", "us-east-1")  # of the job, and not of the cluster
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    signer = ModuleType("aws_msk_iam_sasl_signer")
    signer.MSKAuthTokenProvider = SimpleNamespace(  # type: ignore[attr-defined]
        generate_auth_token=made("default"),
        generate_auth_token_from_profile=made("profile"),
        generate_auth_token_from_role_arn=made("role"),
    )
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": f"software.amazon.msk.auth.iam.IAMLoginModule required {options};",
        "sasl.oauthbearer.aws.region": "eu-west-1",
    }
    assert current_token(SecurityConfig.from_properties(given), soon()).reveal() == token
    both = 'software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="p" awsRoleArn="r";'
    with pytest.raises(ConfigError, match="awsProfileName and awsRoleArn: give one of them"):
        current_token(SecurityConfig.from_properties(given | {"sasl.jaas.config": both}), soon())


def test_a_file_of_jwts_is_read_for_each_connection(tmp_path: Path) -> None:
    path = tmp_path / "token"
    config = security(token=f"file:{path}")
    for name in ("old", "new"):  # the old token is valid for another hour, and may be revoked
        text = jwt(sub=name, exp=time.time() + 3600)
        path.write_text(text)
        assert current_token(config, soon()).reveal() == text
    path.write_text(jwt(exp=time.time() - 1))
    with pytest.raises(AuthenticationError, match="has expired already"):
        current_token(config, soon())


def test_tokens_of_configurations_gone_by_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_SOURCES", 3)
    monkeypatch.setattr(tokens, "_sources", {})
    register_token_provider("many", lambda: ("abc", int(time.time() * 1000) + 60_000))
    for number in range(10):
        current_token(security(token_provider="many", scope=str(number)), soon())
    assert [key.security.scope for key in tokens._sources] == ["7", "8", "9"]
