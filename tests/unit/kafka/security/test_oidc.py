"""A token endpoint is an option and therefore untrusted: which requests it gets, and which responses are
accepted.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from spark_kafka_native.http_request import RequestError
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.config.security_config import SecurityConfig
from spark_kafka_native.kafka.errors import AuthenticationError, ConfigError, NetworkError
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.security import config_providers, oidc, tokens
from spark_kafka_native.kafka.security.oidc import ClientCredentials, fetch_token
from spark_kafka_native.kafka.security.tokens import current_token

pytestmark = pytest.mark.timed(0.1)

MARKED = "marked-client-secret"


class Endpoint:
    """An HTTPS server on this machine that answers every request with the same bytes."""

    def __init__(self, folder: Path, *, tls: bool = True) -> None:
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(self._context)
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://localhost:{self.port}/token"
        self.asked: list[bytes] = []
        self.answer: Callable[[], bytes] = lambda: answer({"access_token": "abc", "expires_in": 300})
        self.piece_s = 0.0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
                if self._tls:
                    sock = self._context.wrap_socket(sock, server_side=True)
                asked = sock.recv(65536)
                while asked and b"grant_type" not in asked:
                    asked += sock.recv(65536)
                self.asked.append(asked)
                reply = self.answer()
                if self.piece_s:
                    for at in range(len(reply)):
                        sock.sendall(reply[at : at + 1])
                        time.sleep(self.piece_s)
                sock.sendall(b"" if self.piece_s else reply)
                sock.close()
            except OSError:
                if self._listener.fileno() < 0:
                    return

    @property
    def properties(self) -> dict[str, str]:
        """Of a client that logs in with its tokens."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.oauthbearer.client.credentials.client.id": "me",
            "sasl.oauthbearer.client.credentials.client.secret": MARKED,
            "https.ca.location": str(self.ca),
        }

    def close(self) -> None:
        self._listener.close()

    def fetch(self, timeout_ms: float = 60_000, **changed: str | None) -> tuple[str, float | None]:
        given = {"url": self.url, "client_id": "me", "scope": None, "ca_location": str(self.ca)} | changed
        credentials = ClientCredentials(client_secret=Secret(MARKED), **given)  # type: ignore[arg-type]
        return fetch_token(credentials, Deadline.after_ms(timeout_ms))


def answer(body: object, status: str = "200 OK", headers: str = "") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n{headers}\r\n".encode() + content


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    made = Endpoint(tmp_path)
    yield made
    made.close()


def test_client_credentials_become_a_token(endpoint: Endpoint) -> None:
    assert endpoint.fetch(scope="kafka read") == ("abc", 300.0)
    head, _, body = endpoint.asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /token HTTP/1.1\r\n")
    login = base64.b64encode(f"me:{MARKED}".encode())
    assert b"Authorization: Basic " + login in head
    assert body == b"grant_type=client_credentials&scope=kafka+read"
    for none in (None, ""):  # an endpoint may refuse an empty one
        endpoint.fetch(scope=none)
        assert endpoint.asked[-1].endswith(b"\r\n\r\ngrant_type=client_credentials")


def test_a_login_has_all_letters_of_base64(endpoint: Endpoint) -> None:
    """Not those of its variant for URLs, which endpoints refuse."""
    endpoint.fetch(client_id="abc>>>???")
    assert b"Authorization: Basic YWJjPj4+Pz8/" in endpoint.asked[0]


@pytest.mark.parametrize(("lifetime_s", "asked"), [(300, 1), (None, 3)])
def test_a_token_is_kept_as_long_as_its_endpoint_says(
    endpoint: Endpoint, lifetime_s: int | None, asked: int
) -> None:
    endpoint.answer = lambda: answer({"access_token": "abc", "expires_in": lifetime_s})
    config = SecurityConfig.from_properties(endpoint.properties)
    found = [current_token(config, Deadline.after_ms(60_000)).reveal() for _ in range(3)]
    assert (found, len(endpoint.asked)) == (["abc"] * 3, asked)


@pytest.mark.parametrize("changed", ["client.credentials.client.id", "scope"])
def test_no_token_of_another_user_is_used(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """The reference is the same, and may read those of another user by now."""
    given = endpoint.properties | {f"sasl.oauthbearer.{changed}": "env:CHANGED"}
    config = SecurityConfig.from_properties(given)
    for user in ("alice", "bob", "alice"):
        monkeypatch.setenv("CHANGED", user)
        body = {"access_token": user, "expires_in": 300}
        endpoint.answer = lambda body=body: answer(body)  # type: ignore[misc]
        found = {current_token(config, Deadline.after_ms(60_000)).reveal() for _ in range(2)}
        assert found == {user}
    assert len(endpoint.asked) == 3
    monkeypatch.delenv("CHANGED")
    assert current_token(config, Deadline.after_ms(60_000)).reveal() == "alice"  # while it is valid
    tokens.forget_token(config)
    with pytest.raises(ConfigError, match="CHANGED is not set"):
        current_token(config, Deadline.after_ms(60_000))


def test_a_secret_that_was_rotated_costs_no_token_that_is_valid(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its endpoint may not take it yet, and would be asked by each connection."""
    given = endpoint.properties | {"sasl.oauthbearer.client.credentials.client.secret": "env:SECRET"}
    config = SecurityConfig.from_properties(given)
    endpoint.answer = lambda: answer({"access_token": "abc", "expires_in": 300})
    for secret in ("before", "after"):
        monkeypatch.setenv("SECRET", secret)
        assert current_token(config, Deadline.after_ms(60_000)).reveal() == "abc"
    assert len(endpoint.asked) == 1


def test_a_user_without_a_token_yet_costs_the_former_one_none(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = endpoint.properties | {"sasl.oauthbearer.client.credentials.client.id": "env:CID"}
    config = SecurityConfig.from_properties(given)
    monkeypatch.setenv("CID", "alice")
    endpoint.answer = lambda: answer({"access_token": "alice", "expires_in": 300})
    assert current_token(config, Deadline.after_ms(60_000)).reveal() == "alice"
    monkeypatch.setenv("CID", "bob")
    endpoint.answer = lambda: answer({"error": "invalid_client"}, status="401 Unauthorized")
    with pytest.raises(AuthenticationError):
        current_token(config, Deadline.after_ms(60_000))
    monkeypatch.delenv("CID")
    assert current_token(config, Deadline.after_ms(60_000)).reveal() == "alice"
    monkeypatch.setenv("CID", "alice")
    assert current_token(config, Deadline.after_ms(60_000)).reveal() == "alice"


def test_a_token_is_not_kept_for_the_user_that_was_read_before_it_was_fetched(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = endpoint.properties | {"sasl.oauthbearer.client.credentials.client.id": "env:CID"}
    config = SecurityConfig.from_properties(given)
    endpoint.answer = lambda: answer({"access_token": os.environ["CID"], "expires_in": 300})
    monkeypatch.setenv("CID", "alice")
    read = tokens.client_credentials

    def read_late(security: SecurityConfig) -> Any:
        monkeypatch.setenv("CID", "bob")
        return read(security)

    monkeypatch.setattr(tokens, "client_credentials", read_late)
    with pytest.raises(NetworkError, match="another client id by now"):
        current_token(config, Deadline.after_ms(60_000))
    assert current_token(config, Deadline.after_ms(60_000)).reveal() == "bob"
    monkeypatch.setenv("CID", "alice")
    monkeypatch.setattr(tokens, "client_credentials", read)
    assert current_token(config, Deadline.after_ms(60_000)).reveal() == "alice"


@pytest.mark.parametrize(("timeout_ms", "limit_s"), [(3_600_000, 10), (2_000, 2)])
def test_an_endpoint_has_ten_seconds_at_most(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, timeout_ms: float, limit_s: float
) -> None:
    """One that does not answer leaves time for the login with a token that is still valid."""
    now = time.monotonic()
    limits: list[float] = []

    def send(_url: object, _request: object, _tls: object, until: float, **settings: Any) -> None:
        limits.append(until)
        raise RequestError("silent")

    monkeypatch.setattr(oidc, "send", send)
    with pytest.raises(NetworkError, match="can't be asked \\(silent\\)"):
        endpoint.fetch(timeout_ms)
    assert limits == [pytest.approx(now + limit_s, abs=limit_s / 2)]


@pytest.mark.parametrize("authorities", ["of a file", "of the system"])
def test_older_tls_is_not_spoken_even_if_the_system_allows_it(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, authorities: str
) -> None:
    def lax(*_: object) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        return context

    contexts: list[ssl.SSLContext] = []

    def send(_url: object, _request: object, tls: ssl.SSLContext, _until: float, **_: Any) -> None:
        contexts.append(tls)
        raise RequestError("silent")

    monkeypatch.setattr(oidc, "send", send)
    made = {"SSLContext": lax, "create_default_context": lax, "TLSVersion": ssl.TLSVersion}
    lax_ssl = SimpleNamespace(PROTOCOL_TLS_CLIENT=ssl.PROTOCOL_TLS_CLIENT, **made)
    monkeypatch.setattr(oidc, "ssl", lax_ssl)
    with pytest.raises(NetworkError, match="silent"):
        endpoint.fetch(**({} if authorities == "of a file" else {"ca_location": None}))
    assert [one.minimum_version for one in contexts] == [ssl.TLSVersion.TLSv1_2]


def test_the_lifetime_of_a_token_begins_when_it_is_asked_for(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its issuer counts from its answer at the latest: one that comes late ends no later."""
    now = [1_000.0]

    def late() -> bytes:
        now[0] += 40
        return answer({"access_token": "abc", "expires_in": 300})

    endpoint.answer = late
    monkeypatch.setattr(tokens, "time", SimpleNamespace(time=lambda: now[0]))
    fetch = tokens._fetcher(SecurityConfig.from_properties(endpoint.properties))
    assert fetch(Deadline.after_ms(60_000)) == ("abc", 1_300.0)


def test_an_answer_that_says_created_has_a_token(endpoint: Endpoint) -> None:
    endpoint.answer = lambda: answer({"access_token": "abc", "expires_in": 5}, "201 Created")
    assert endpoint.fetch() == ("abc", 5)


@pytest.mark.parametrize("lifetime", [None, "300", True, -1, 0, 10**400, float("inf")])
def test_a_lifetime_that_is_none_is_not_known(endpoint: Endpoint, lifetime: object) -> None:
    endpoint.answer = lambda: answer({"access_token": "abc", "expires_in": lifetime})
    assert endpoint.fetch() == ("abc", None)


@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        (
            answer({"error": "invalid_client", "error_description": MARKED}, "401 No"),
            AuthenticationError,
            "HTTP status 401 (invalid_client)",
        ),
        (answer({"error": MARKED}, "400 No"), AuthenticationError, "HTTP status 400"),
        (answer({"error": [MARKED]}, "400 No"), AuthenticationError, "HTTP status 400"),
        (answer(MARKED.encode(), "403 No"), AuthenticationError, "HTTP status 403"),
        (answer({"access_token": ""}), AuthenticationError, "has no access_token"),
        (answer({"access_token": 5}), AuthenticationError, "has no access_token"),
        (answer([1]), AuthenticationError, "has no access_token"),
        (answer(b"<html>" + MARKED.encode()), AuthenticationError, "has no access_token"),
        (answer(b"[" * 60_000), AuthenticationError, "has no access_token"),
        (answer(b"x" * 70_000), AuthenticationError, "longer than 65536 bytes"),
        (answer({}, "500 No"), NetworkError, "HTTP status 500"),
        (answer({}, "429 No"), NetworkError, "HTTP status 429"),
        (answer({}, "408 No"), NetworkError, "HTTP status 408"),
        (b"nonsense\r\n\r\n", NetworkError, "can't be asked"),
        (b"", NetworkError, "can't be asked"),
        (answer({"access_token": "abc"})[:-4], NetworkError, "can't be asked"),
        (
            answer({}, "307 Go", "Location: https://example.org/token\r\n"),
            AuthenticationError,
            "redirects to another host",
        ),
        (
            answer({}, "308 Go", "Location: http://localhost/token\r\n"),
            AuthenticationError,
            "redirects to another host",
        ),
        (answer({}, "307 Go"), AuthenticationError, "redirects again and again"),
        (answer({}, "302 Go", "Location: https://localhost/x\r\n"), AuthenticationError, "HTTP status 302"),
    ],
)
def test_any_other_answer_is_refused_and_not_shown(
    endpoint: Endpoint, reply: bytes, error: type[Exception], says: str
) -> None:
    endpoint.answer = lambda: reply
    with pytest.raises(error) as caught:
        endpoint.fetch()
    assert says in str(caught.value)
    assert MARKED not in str(caught.value)


def test_a_redirect_on_the_same_host_is_followed(endpoint: Endpoint) -> None:
    replies = [answer({}, "307 Go", "Location: /other\r\n"), answer({"access_token": "abc"})]
    endpoint.answer = lambda: replies.pop(0)
    assert endpoint.fetch() == ("abc", None)
    assert endpoint.asked[1].startswith(b"POST /other ")


def test_an_endpoint_that_dribbles_is_cut_off_in_time(endpoint: Endpoint) -> None:
    endpoint.piece_s = 0.05
    began = time.monotonic()
    with pytest.raises(NetworkError, match="no answer in time"):
        endpoint.fetch(timeout_ms=300)
    assert time.monotonic() - began < 5


def test_a_closed_port_is_a_network_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    credentials = ClientCredentials(
        url=f"https://127.0.0.1:{port}/", client_id="a", client_secret=Secret(MARKED)
    )
    with pytest.raises(NetworkError, match=r"can't be asked \(Connection refused\)"):
        fetch_token(credentials, Deadline.after_ms(2_000))


def test_a_name_that_can_not_be_looked_up_is_a_network_error(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolved(*_: object) -> list[object]:
        raise NetworkError("no name server answers")

    monkeypatch.setattr(oidc, "resolved", resolved)
    with pytest.raises(NetworkError, match=r"the token endpoint can't be asked.*no name server answers"):
        endpoint.fetch()


@pytest.mark.parametrize("before", ["# Főtanúsítvány\n", "\ufeff"], ids=["comment", "byte order mark"])
def test_a_file_of_authorities_may_have_text_between_them(endpoint: Endpoint, before: str) -> None:
    endpoint.ca.write_text(before + endpoint.ca.read_text() + before, encoding="utf-8")
    assert endpoint.fetch() == ("abc", 300)


def test_a_file_without_authorities_is_refused(endpoint: Endpoint) -> None:
    spoilt = endpoint.ca.read_bytes().replace(b"MII", "é".encode(), 1)
    for content in (b"", "ő".encode(), b"\xf5", spoilt):
        endpoint.ca.write_bytes(content)
        with pytest.raises(ConfigError, match=r"https.ca.location: .* holds no PEM certificate"):
            endpoint.fetch()


def test_a_certificate_of_an_untrusted_authority_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(
        AuthenticationError,
        match=r"token endpoint can't be asked: localhost:\d+: its certificate is not trusted",
    ):
        endpoint.fetch(ca_location=None)
    assert not endpoint.asked
    with pytest.raises(ConfigError, match=r"https.ca.location: .* holds no PEM certificate"):
        endpoint.fetch(ca_location=__file__)


def test_http_is_for_this_machine_and_only_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Endpoint(tmp_path, tls=False)
    with pytest.raises(ConfigError, match="set PYKAFKA_ALLOW_HTTP_LOCALHOST=true for it"):
        plain.fetch()
    for text in ("", "false", "0"):
        monkeypatch.setenv(oidc.ALLOW_HTTP, text)
        with pytest.raises(ConfigError, match="set PYKAFKA_ALLOW_HTTP_LOCALHOST=true for it"):
            plain.fetch()
    assert not plain.asked
    monkeypatch.setenv(oidc.ALLOW_HTTP, "true")
    assert plain.fetch() == ("abc", 300.0)
    for host in ("example.org", "localhost.example.org", "127.0.0.1.example.org"):
        with pytest.raises(ConfigError, match=rf"http sends the client secret in clear to {host}"):
            plain.fetch(url=f"http://{host}/token")
    plain.close()


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://localhost/",
        "https://",
        "//localhost/x",
        "https://a:b@localhost/",
        "https://a@localhost/",
        "https://:b@localhost/",
        "https://localhost:0/",
        "https://localhost/\x01",
        "https://localhost:99999/",
        "https://local host/",
        "https://localhost/\r\nHost: evil",
        "gopher://localhost",
        "",
    ],
)
def test_only_https_urls_are_requested(endpoint: Endpoint, url: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.token\.endpoint\.url"):
        endpoint.fetch(url=url)


def test_the_metadata_service_of_a_cloud_is_not_asked(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"169.254.169.254 is a link-local address"):
        endpoint.fetch(url="https://169.254.169.254/latest/api/token")
    monkeypatch.setenv(config_providers.ALLOWED_URLS, "https://a/token")
    with pytest.raises(ConfigError, match="this URL is not among PYKAFKA_ALLOWED_URLS"):
        endpoint.fetch()
    monkeypatch.setenv(config_providers.ALLOWED_URLS, f"https://a/token,{endpoint.url}")
    assert endpoint.fetch()[0] == "abc"


def test_a_redirect_does_not_take_tls_away(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(oidc.ALLOW_HTTP, "true")
    endpoint.answer = lambda: answer({}, "307 Go", f"Location: http://localhost:{endpoint.port}/token\r\n")
    with pytest.raises(AuthenticationError, match="redirects to another host"):
        endpoint.fetch()
    assert len(endpoint.asked) == 1


def test_redirects_are_counted(endpoint: Endpoint) -> None:
    endpoint.answer = lambda: answer({}, "307 Go", "Location: /again\r\n")
    with pytest.raises(AuthenticationError, match="redirects again and again"):
        endpoint.fetch()
    assert len(endpoint.asked) == 4
