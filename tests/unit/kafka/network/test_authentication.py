"""SASL over the wire, with brokers that violate it: no broker is trusted without proof, and no attempt is
repeated.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers.produce_cluster import ProduceCluster
from support.brokers.scripted_broker import (
    HangUp,
    Late,
    Raw,
    ScriptedBroker,
    ScriptedCluster,
    Silence,
    properties,
)

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.config.jaas import PLAIN_MODULE, SCRAM_MODULE
from spark_kafka_native.kafka.config.security_config import SecurityConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    ConfigError,
    KafkaError,
    NetworkError,
    ProtocolError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.network import authentication
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.network.handshake import SessionLifetime
from spark_kafka_native.kafka.producer.errors import DeliveryError, DeliveryStatus
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.security import kerberos
from spark_kafka_native.kafka.security.sasl import OAuthBearer, Scram
from spark_kafka_native.kafka.security.tokens import register_token_provider

pytestmark = pytest.mark.timed(0.1)

METADATA = MetadataRequest(topics=[])
PASSWORD = "marked-password"


def handshake(request: SaslHandshakeRequest, _version: int) -> SaslHandshakeResponse:
    known = request.mechanism in ("PLAIN", "SCRAM-SHA-256")
    code = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return SaslHandshakeResponse(error_code=code, mechanisms=["PLAIN", "SCRAM-SHA-256"])


def accepted(lifetime_ms: int = 0, auth_bytes: bytes = b"") -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.NONE, error_message=None, auth_bytes=auth_bytes, session_lifetime_ms=lifetime_ms
    )


def refused(
    message: str | None, code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"")


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2) as running:
        for broker in running.brokers.values():
            broker.on(SaslHandshakeRequest, handshake)
            broker.on(SaslAuthenticateRequest, accepted())
        yield running


@pytest.fixture
def broker(cluster: ScriptedCluster) -> ScriptedBroker:
    return cluster[1]


def config(address: str, mechanism: str = "PLAIN", **changed: Any) -> ClientConfig:
    sasl = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": "alice",
        "sasl_password": PASSWORD,
    }
    return ClientConfig.from_properties(properties(address, **sasl | changed))


def connect(broker: ScriptedBroker, mechanism: str = "PLAIN", **changed: Any) -> Connection:
    return Connection.open(broker.host, broker.port, config(broker.address, mechanism, **changed))


def test_the_mechanism_comes_after_the_versions_and_before_anything_else(broker: ScriptedBroker) -> None:
    connect(broker).send(METADATA)
    names = [type(asked.request).__name__ for asked in broker.asked]
    assert names == [
        "ApiVersionsRequest",
        "SaslHandshakeRequest",
        "SaslAuthenticateRequest",
        "MetadataRequest",
    ]
    assert broker.requests(SaslHandshakeRequest)[0].mechanism == "PLAIN"
    assert broker.requests(SaslAuthenticateRequest)[0].auth_bytes == b"\0alice\0marked-password"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_there_is_no_falling_back_to_another_mechanism(broker: ScriptedBroker, mechanism: str) -> None:
    token = {"sasl_oauthbearer_token": "abc"} if mechanism == "OAUTHBEARER" else {}
    with pytest.raises(
        AuthenticationError,
        match=rf"does not offer the SASL mechanism {mechanism}; it offers PLAIN, "
        f"SCRAM-SHA-256",
    ):
        connect(broker, mechanism, **token)
    assert not broker.requests(SaslAuthenticateRequest)


def test_a_listener_without_sasl_is_named(broker: ScriptedBroker) -> None:
    answer = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    broker.on(SaslHandshakeRequest, answer)
    with pytest.raises(
        AuthenticationError, match=r"the listener takes no SASL; set security.protocol to PLAINTEXT"
    ):
        connect(broker)


def test_a_refusal_is_final_and_asked_for_once(cluster: ScriptedCluster) -> None:
    for broker in cluster.brokers.values():
        broker.on(SaslAuthenticateRequest, refused("Authentication failed: Invalid username or password"))
    router = Router(config(cluster.bootstrap_servers))
    with pytest.raises(
        AuthenticationError,
        match=r"SASL_AUTHENTICATION_FAILED \(Authentication failed: "
        "Invalid",
    ):
        router.metadata()
    assert sum(len(broker.requests(SaslAuthenticateRequest)) for broker in cluster.brokers.values()) == 1


@pytest.mark.parametrize(
    "told", [f"no such password: {PASSWORD}", f"x{PASSWORD}x", None, "a\r\nb\x1b[31m", "long " * 1000]
)
def test_a_brokers_words_are_shown_within_limits(broker: ScriptedBroker, told: str | None) -> None:
    broker.on(SaslAuthenticateRequest, refused(told))
    with pytest.raises(AuthenticationError) as caught:
        connect(broker)
    shown = str(caught.value)
    assert PASSWORD not in shown
    assert shown.isprintable()
    assert len(shown) < 400


class EndlessContext:
    """A Kerberos context that is never established."""

    first = b"first"
    complete = False
    mutual = False
    principal = "alice"

    def step(self, token: bytes) -> bytes:
        return b"and " + token


@pytest.fixture
def gssapi(broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the hosts that tickets were made for, and of the logins that were forgotten."""
    seen: list[str] = []

    def open_context(_login: Any, host: str, _deadline: Deadline) -> EndlessContext:
        seen.append(host)
        return EndlessContext()

    monkeypatch.setattr(kerberos, "open_context", open_context)
    monkeypatch.setattr(kerberos, "forget_login", lambda _security: seen.append("forgotten"))
    broker.on(SaslHandshakeRequest, SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=["GSSAPI"]))
    return seen


def connect_with_kerberos(broker: ScriptedBroker) -> None:
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}
    settings = ClientConfig.from_properties(properties(broker.address, **given))
    Connection.open(broker.host, broker.port, settings)


def test_an_exchange_of_kerberos_has_an_end(broker: ScriptedBroker, gssapi: list[str]) -> None:
    broker.on(SaslAuthenticateRequest, accepted(auth_bytes=b"more"))
    with pytest.raises(AuthenticationError, match=r"GSSAPI: authentication did not finish in 8 rounds"):
        connect_with_kerberos(broker)
    messages = [request.auth_bytes for request in broker.requests(SaslAuthenticateRequest)]
    assert messages == [b"first", *[b"and more"] * 7]
    assert gssapi == [broker.host, "forgotten"]


def test_a_mechanism_without_a_secret_shows_the_brokers_words(
    broker: ScriptedBroker, gssapi: list[str]
) -> None:
    broker.on(SaslAuthenticateRequest, refused("no key of that version"))
    with pytest.raises(AuthenticationError, match=r"SASL_AUTHENTICATION_FAILED \(no key of that version\)"):
        connect_with_kerberos(broker)
    assert gssapi == [broker.host, "forgotten"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (accepted(), "lacks one of the attributes"),  # success at once, without proof
        (accepted(auth_bytes=b"r=short,s=QQ==,i=4096"), "does not begin with ours"),
        (accepted(auth_bytes=b"v=QQ=="), "lacks one of the attributes"),
        (refused("x", ErrorCode.ILLEGAL_SASL_STATE), "ILLEGAL_SASL_STATE"),
        (refused("x", ErrorCode.CLUSTER_AUTHORIZATION_FAILED), "CLUSTER_AUTHORIZATION_FAILED"),
    ],
)
def test_scram_believes_no_broker_that_proves_nothing(
    broker: ScriptedBroker, answer: SaslAuthenticateResponse, says: str
) -> None:
    broker.on(SaslAuthenticateRequest, answer)
    with pytest.raises(AuthenticationError, match=says):
        connect(broker, "SCRAM-SHA-256")
    assert not broker.requests(MetadataRequest)


def test_a_success_after_server_first_without_a_signature_is_refused(broker: ScriptedBroker) -> None:
    def first(request: SaslAuthenticateRequest, _version: int) -> SaslAuthenticateResponse:
        nonce = request.auth_bytes.rpartition(b"r=")[2]
        return accepted(auth_bytes=b"r=" + nonce + b"more,s=QQ==,i=4096")

    broker.push(SaslAuthenticateRequest, first, accepted())
    with pytest.raises(AuthenticationError, match="without proving that it knows the password"):
        connect(broker, "SCRAM-SHA-256")


def test_a_claimed_frame_of_more_than_64_kib_is_not_read(broker: ScriptedBroker) -> None:
    broker.push(SaslAuthenticateRequest, Raw((64 * 1024 + 1).to_bytes(4, "big") + b"x"))
    with pytest.raises(ProtocolError, match="a frame of 65537 bytes is over the limit of 65536"):
        connect(broker)


def test_after_the_handshake_large_answers_are_welcome(
    broker: ScriptedBroker, cluster: ScriptedCluster
) -> None:
    for number in range(1500):
        cluster.create(f"{'long-name' * 10}-{number}", 1)
    connection = connect(broker, request_timeout_ms=60_000)  # a slow machine is given time
    assert len(connection.send(MetadataRequest(topics=None)).topics) == 1500


@pytest.mark.parametrize("request_class", [SaslHandshakeRequest, SaslAuthenticateRequest])
def test_silence_ends_with_the_time_to_connect(broker: ScriptedBroker, request_class: type[Any]) -> None:
    broker.push(request_class, Silence)
    with pytest.raises(RequestTimedOutError):
        connect(broker, socket_connection_setup_timeout_ms=200)


@pytest.mark.parametrize("request_class", [SaslHandshakeRequest, SaslAuthenticateRequest])
def test_a_broker_that_hangs_up_may_be_stopping(broker: ScriptedBroker, request_class: type[Any]) -> None:
    broker.push(request_class, HangUp)
    with pytest.raises(NetworkError, match="while authenticating with PLAIN"):
        connect(broker)


def test_a_broker_that_always_hangs_up_is_not_tried_for_a_minute(broker: ScriptedBroker) -> None:
    broker.on(SaslAuthenticateRequest, HangUp)
    with pytest.raises(NetworkError, match="while authenticating with PLAIN"):
        Router(config(broker.address)).metadata()
    assert len(broker.requests(SaslAuthenticateRequest)) <= 3


def test_a_broker_without_saslauthenticate_is_too_old(broker: ScriptedBroker) -> None:
    del broker.versions[SaslAuthenticateRequest.api_key]
    with pytest.raises(UnsupportedVersionError, match="does not offer SaslAuthenticate"):
        connect(broker)


def test_the_wire_dump_of_a_request_shows_nothing() -> None:
    assert "marked" not in repr(SaslAuthenticateRequest(auth_bytes=b"marked"))


def test_credentials_are_read_for_each_connection(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for password in ("first", "second"):
        monkeypatch.setenv("KAFKA_PASSWORD", password)
        connect(broker, sasl_password="env:KAFKA_PASSWORD")
    sent = [request.auth_bytes for request in broker.requests(SaslAuthenticateRequest)]
    assert sent == [b"\0alice\0first", b"\0alice\0second"]
    monkeypatch.delenv("KAFKA_PASSWORD")
    with pytest.raises(
        ConfigError, match=r"sasl.password: the environment variable KAFKA_PASSWORD is not set on"
    ):
        connect(broker, sasl_password="env:KAFKA_PASSWORD")


# --- sessions that expire (KIP-368)
# ----------------------------------------------------------------------------


def test_a_session_is_renewed_before_its_end(broker: ScriptedBroker) -> None:
    broker.on(SaslAuthenticateRequest, accepted(lifetime_ms=100_000))
    connection = connect(broker)
    assert not connection.renewal_due
    left_s = connection.session_lifetime.expires_at - connection.session_lifetime.renew_at
    assert 9 <= left_s <= 20.1
    broker.on(SaslAuthenticateRequest, accepted())
    assert connect(broker).session_lifetime.renew_at == float("inf")


def test_a_session_may_have_begun_with_its_handshake(broker: ScriptedBroker) -> None:
    """Its end must not be taken to be later than it is: the broker closes the connection then."""
    asked: list[float] = []

    def answer(*_: Any) -> Any:
        asked.append(time.monotonic())
        return accepted(lifetime_ms=100_000)

    broker.on(SaslAuthenticateRequest, answer)
    lifetime = connect(broker).session_lifetime
    assert 0 < lifetime.renew_at < lifetime.expires_at <= asked[-1] + 100


def test_renewing_waits_for_requests_in_flight(broker: ScriptedBroker, cluster: ScriptedCluster) -> None:
    broker.on(SaslAuthenticateRequest, accepted(lifetime_ms=60_000))
    router = Router(config(broker.address))
    router.metadata()
    old = router.connection(1)
    broker.push(MetadataRequest, Late(0.3, cluster.metadata))
    slow = [old.submit(METADATA) for _ in range(3)]
    old.session_lifetime = SessionLifetime(renew_at=0.0)
    fresh = router.connection(1)
    assert fresh is not old
    assert all(pending.done for pending in slow)
    assert [pending.result().cluster_id for pending in slow] == ["mock"] * 3
    assert old.closed
    assert fresh.send(METADATA).cluster_id == "mock"
    with pytest.raises(NetworkError):
        old.submit(METADATA)


def test_no_caller_overtakes_what_one_with_too_little_time_waited_for(broker: ScriptedBroker) -> None:
    """A commit that its caller gave up could come behind the next one."""
    router = Router(config(broker.address))
    router.metadata()
    old = router.connection(1)
    broker.push(MetadataRequest, Silence)
    old.submit(METADATA)
    old.session_lifetime = SessionLifetime(renew_at=0.0)
    for _ in range(2):
        with pytest.raises(NetworkError, match=r"this connection ends, but Metadata .* is not answered yet"):
            router.connection(1, Deadline.after_ms(50))
    assert not old.closed
    old.close()
    assert router.connection(1).alive()


def test_a_session_that_ends_takes_no_request_meanwhile(
    broker: ScriptedBroker, cluster: ScriptedCluster
) -> None:
    connection = connect(broker)
    broker.push(MetadataRequest, Late(0.3, cluster.metadata))
    pending = connection.submit(METADATA)
    retiring = threading.Thread(target=connection.retire, args=(Deadline.after_ms(5_000),))
    retiring.start()
    while not connection.retired:
        pass
    before = len(broker.requests(MetadataRequest))
    with pytest.raises(NetworkError, match="this connection ends"):
        connection.submit(METADATA)
    retiring.join(60)
    assert pending.result().cluster_id == "mock"
    assert len(broker.requests(MetadataRequest)) <= max(1, before)


def test_answers_that_stay_away_do_not_hold_up_for_ever(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    broker.push(MetadataRequest, Silence)
    pending = connection.submit(METADATA)
    with pytest.raises(NetworkError, match=r"this connection ends, but Metadata v.* is not answered yet"):
        connection.retire(Deadline.after_ms(100))
    assert not connection.closed
    assert not pending.done


def test_nothing_is_sent_once_a_session_is_over(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    connection.session_lifetime = SessionLifetime(expires_at=0.0)
    with pytest.raises(NetworkError, match="this connection ends"):
        connection.send(METADATA)
    assert not broker.requests(MetadataRequest)


def test_a_refused_renewal_is_final(broker: ScriptedBroker) -> None:
    router = Router(config(broker.address))
    router.metadata()
    router.connection(1).session_lifetime = SessionLifetime(renew_at=0.0)
    broker.on(SaslAuthenticateRequest, refused("the account was closed"))
    with pytest.raises(AuthenticationError, match="the account was closed"):
        router.send_any(METADATA)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_producer_keeps_its_order_over_renewals(idempotent: bool) -> None:
    with ProduceCluster() as cluster:
        cluster.create("t")
        cluster[1].on(SaslHandshakeRequest, handshake)
        cluster[1].on(SaslAuthenticateRequest, accepted(lifetime_ms=250))
        cluster.delay_s = 0.005
        settings = ProducerConfig(batch_records=1, linger_ms=0, enable_idempotence=idempotent)
        producer = Producer(config(cluster.bootstrap_servers), settings)
        sent = []
        while len(cluster[1].requests(SaslAuthenticateRequest)) < 6:
            sent += [
                producer.send("t", value=b"%d" % number, partition=0)
                for number in range(len(sent), len(sent) + 5)
            ]
            sent[-1].result(60)
        producer.close(60)
        assert {delivery.status for delivery in sent} == {DeliveryStatus.PERSISTED}
        assert cluster.values(TopicPartition("t", 0)) == [b"%d" % number for number in range(len(sent))]
        # Renewed in time: no request met an expired session, so no batch was sent twice.
        assert len(cluster.arrived) == len(sent)


@pytest.mark.parametrize("later", [False, True])
def test_a_producer_whose_credentials_are_refused_ends_at_once(later: bool) -> None:
    with ProduceCluster() as cluster:
        cluster.create("t")
        cluster[1].on(SaslHandshakeRequest, handshake)
        cluster[1].on(SaslAuthenticateRequest, refused("the account was closed"))
        if later:  # metadata is available, and the producer's own connection is refused
            cluster[1].push(SaslAuthenticateRequest, accepted())
        producer = Producer(config(cluster.bootstrap_servers), ProducerConfig(enable_idempotence=False))
        with pytest.raises((AuthenticationError, DeliveryError), match="the account was closed"):
            producer.send("t", value=b"x").result(60)
        producer.close(1)
        assert len(cluster[1].requests(SaslAuthenticateRequest)) <= 3
        assert not cluster.arrived


def test_the_first_request_that_is_hung_up_on_asks_for_sasl(broker: ScriptedBroker) -> None:
    broker.on(MetadataRequest, HangUp)
    plain = ClientConfig.from_properties(properties(broker.address))
    with pytest.raises(KafkaError, match=r"does that port want SASL \(security.protocol=SASL_PLAINTEXT\)"):
        Router(plain).metadata()
    assert len(broker.requests(MetadataRequest)) <= 4


@pytest.mark.parametrize(
    "cut",
    [slice(None), slice(100, 160), slice(0, 12), slice(101, 113), slice(-13, -1), slice(-12, None)],
)
def test_a_brokers_words_repeat_no_part_of_a_long_token(broker: ScriptedBroker, cut: slice) -> None:
    token = "".join(f"{number:03}" for number in range(400))
    known = SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=["OAUTHBEARER"])
    broker.on(SaslHandshakeRequest, known)
    broker.on(SaslAuthenticateRequest, refused(f"bad token {token[cut]} is not known"))
    with pytest.raises(AuthenticationError, match=r"SASL_AUTHENTICATION_FAILED$"):
        connect(broker, "OAUTHBEARER", sasl_oauthbearer_token=token)


@pytest.mark.parametrize("password", ["Zq", "Zq-12345678", "Zq-123456789", "Zq-1234567890"])
def test_a_brokers_words_repeat_no_short_password(broker: ScriptedBroker, password: str) -> None:
    """One that is shorter than a telling part of a token is one as a whole."""
    broker.on(SaslAuthenticateRequest, refused(f"{password} is not the password"))
    with pytest.raises(AuthenticationError, match=r"SASL_AUTHENTICATION_FAILED$"):
        connect(broker, sasl_password=password)


@pytest.mark.parametrize("given", ['username="u"', 'password="marked"', ""])
@pytest.mark.parametrize(("mechanism", "module"), [("PLAIN", PLAIN_MODULE), ("SCRAM-SHA-256", SCRAM_MODULE)])
def test_a_login_module_in_a_file_needs_both_parts_of_a_login(
    tmp_path: Path, mechanism: str, module: str, given: str
) -> None:
    """The driver has not seen it."""
    (tmp_path / "jaas").write_text(f"{module} required {given};")
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"file:{tmp_path / 'jaas'}",
    }
    with pytest.raises(ConfigError, match=r"^sasl\.jaas\.config lacks username or password$"):
        authentication.mechanism_for(
            SecurityConfig.from_properties(properties), "b", Deadline.after_ms(60_000)
        )


def test_a_refused_token_is_fetched_anew_for_the_next_connection(broker: ScriptedBroker) -> None:
    made: list[str] = []

    def provide() -> tuple[str, int]:
        made.append(f"token{len(made)}")
        return made[-1], int(time.time() * 1000) + 3_600_000

    register_token_provider("revoked", provide)
    known = SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=["OAUTHBEARER"])
    broker.on(SaslHandshakeRequest, known)
    chosen = {"sasl_oauthbearer_token_provider": "revoked"}
    for _ in range(2):
        connect(broker, "OAUTHBEARER", **chosen)
    assert made == ["token0"]
    broker.push(SaslAuthenticateRequest, refused("revoked"))
    with pytest.raises(AuthenticationError):
        connect(broker, "OAUTHBEARER", **chosen)
    connect(broker, "OAUTHBEARER", **chosen)
    assert b"token1" in broker.requests(SaslAuthenticateRequest)[-1].auth_bytes


@pytest.mark.parametrize("bad", ["", "two\nlines", "x" * 70_000])
def test_a_token_that_can_not_be_sent_is_fetched_anew_for_the_next_connection(
    broker: ScriptedBroker, bad: str
) -> None:
    made = [bad, "good"]
    register_token_provider("malformed", lambda: (made.pop(0), int(time.time() * 1000) + 3_600_000))
    broker.on(
        SaslHandshakeRequest, SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=["OAUTHBEARER"])
    )
    chosen = {"sasl_oauthbearer_token_provider": "malformed"}
    with pytest.raises(ConfigError, match="token"):
        connect(broker, "OAUTHBEARER", **chosen)
    connect(broker, "OAUTHBEARER", **chosen)
    assert b"good" in broker.requests(SaslAuthenticateRequest)[-1].auth_bytes
    connect(broker, "OAUTHBEARER", **chosen)
    assert made == []


def test_answers_that_dribble_are_cut_off_in_total(broker: ScriptedBroker) -> None:
    """The whole handshake has one deadline: single bytes do not extend it."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def dribble() -> None:
            accepted_socket, _ = listener.accept()
            accepted_socket.sendall((60_000).to_bytes(4, "big"))
            with contextlib.suppress(OSError):
                while not stop.wait(0.05):
                    accepted_socket.sendall(b"x")

        threading.Thread(target=dribble, daemon=True).start()
        port = listener.getsockname()[1]
        given = config(f"127.0.0.1:{port}", socket_connection_setup_timeout_ms="400")
        began = time.monotonic()
        with pytest.raises(RequestTimedOutError):
            Connection.open("127.0.0.1", port, given)
        assert time.monotonic() - began < 10
        stop.set()


def test_any_other_refusal_of_a_mechanism_ends_it(broker: ScriptedBroker) -> None:
    answer = SaslHandshakeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, mechanisms=["PLAIN"])
    broker.on(SaslHandshakeRequest, answer)
    with pytest.raises(AuthenticationError, match="the broker refused PLAIN: UNKNOWN_SERVER_ERROR"):
        connect(broker)
    assert not broker.requests(SaslAuthenticateRequest)


def test_a_lifetime_below_zero_is_none(broker: ScriptedBroker) -> None:
    broker.on(SaslAuthenticateRequest, accepted(lifetime_ms=-5))
    assert connect(broker).send(METADATA).cluster_id == "mock"


@pytest.mark.parametrize(
    ("newest", "with_token", "lifetime_ms", "passes"),
    [(1, True, 0, False), (1, True, 5, True), (0, True, 0, True), (1, False, 0, True), (1, False, 5, True)],
)
def test_a_token_that_passes_for_no_time_has_expired(
    monkeypatch: pytest.MonkeyPatch, newest: int, with_token: bool, lifetime_ms: int, passes: bool
) -> None:
    """Version 0 of the response says no lifetime, and the session of a password has none."""

    class Accepting:
        address = "broker:9092"

        def ask(self, request: SaslHandshakeRequest, version: int, _deadline: Deadline) -> Any:
            return handshake(request, version)

    monkeypatch.setattr(authentication, "_exchange", lambda *_: lifetime_ms)  # the login was accepted
    security = config("broker:9092", "SCRAM-SHA-256", sasl_tokenauth=str(with_token)).security
    versions = {SaslHandshakeRequest.api_key: (0, 1), SaslAuthenticateRequest.api_key: (0, newest)}
    peer: Any = Accepting()
    expected = contextlib.nullcontext() if passes else pytest.raises(AuthenticationError, match="has ended")
    with expected:
        found = authentication.authenticate(peer, security, versions, Deadline.after_ms(60_000))
        assert found == lifetime_ms


@pytest.mark.parametrize(
    ("option", "token_id"),
    [("", None), ('tokenauth="false"', None), ('tokenauth="true"', "id"), ('tokenauth="TRUE"', "id")],
)
def test_a_login_module_may_say_that_it_logs_in_with_a_token(option: str, token_id: str | None) -> None:
    jaas = f'{SCRAM_MODULE} required username="id" password="marked" {option};'
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas}
    security = SecurityConfig.from_properties(given)
    mechanism = authentication.mechanism_for(security, "broker", Deadline.after_ms(60_000))
    assert isinstance(mechanism, Scram)
    assert mechanism.token_id == token_id


@pytest.mark.parametrize("way", ["property", "option", "jaas"])
def test_a_token_id_that_a_reference_reads_is_in_no_error(
    broker: ScriptedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("THE_TOKEN", "marked-id")
    broker.on(SaslHandshakeRequest, handshake)
    broker.on(SaslAuthenticateRequest, refused("Authentication failed"))
    user = "marked-id" if way == "jaas" else "env:THE_TOKEN"
    text = f'{SCRAM_MODULE} required username="{user}" password="x" tokenauth="true";'
    (tmp_path / "jaas").write_text(text)
    given = {"sasl.username": "env:THE_TOKEN", "sasl.password": "x", "sasl.tokenauth": "true"}
    if way != "property":
        given = {"sasl.jaas.config": f"file:{tmp_path}/jaas" if way == "jaas" else text}
    given |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    client = ClientConfig.from_properties(properties(broker.address) | given)
    shown = f"file:{tmp_path}/jaas" if way == "jaas" else "env:THE_TOKEN"
    with pytest.raises(AuthenticationError, match=f"Delegation token {shown} has expired") as caught:
        Connection.open(broker.host, broker.port, client)
    assert "marked" not in str(caught.value)


def test_each_connection_that_is_asked_for_is_one_try(cluster: ScriptedCluster) -> None:
    """An attempt with a wrong password counts towards locking the account."""

    def tries() -> int:
        return sum(len(broker.requests(SaslAuthenticateRequest)) for broker in cluster.brokers.values())

    def renew(node_id: int) -> None:
        router.connection(node_id).retire(Deadline.after_ms(1_000))
        router.connection(node_id)

    router = Router(config(cluster.bootstrap_servers))
    router.metadata()
    for broker in cluster.brokers.values():
        broker.on(SaslAuthenticateRequest, refused("revoked"))
    before = tries()
    for node_id in cluster.brokers:
        with pytest.raises(AuthenticationError, match="revoked"):
            renew(node_id)
    assert tries() - before == len(cluster.brokers)


def test_an_extension_that_is_given_with_two_values_is_refused() -> None:
    """It is not said which of them counts."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"

    def begin(value: str) -> OAuthBearer:
        given = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token": "abc",
            "sasl.oauthbearer.extensions": "logicalCluster=l,proof=p",
            "sasl.jaas.config": f'{module} required extension_logicalCluster="{value}" extension_other="o";',
        }
        found = authentication.mechanism_for(
            SecurityConfig.from_properties(given), "broker", Deadline.after_ms(60_000)
        )
        assert isinstance(found, OAuthBearer)
        return found

    first = begin("l").start()
    for part in (b"logicalCluster=l", b"proof=p", b"other=o"):
        assert part in first
    with pytest.raises(ConfigError, match=r"the extension logicalCluster is given twice"):
        begin("m")
