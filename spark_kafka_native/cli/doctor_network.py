"""What `doctor` checks on the way to a cluster: names, TCP, TLS, the first exchange, advertised addresses,
the clock.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
import uuid
from collections.abc import Iterator
from typing import Any

from ..kafka.cluster.router import Router
from ..kafka.config.client_config import ClientConfig, split_address
from ..kafka.errors import KafkaError, NetworkError, SecurityError
from ..kafka.network.connection import Connection
from ..kafka.runtime.deadline import Deadline
from ..kafka.runtime.name_lookup import look_up
from ..kafka.security.tls import tls_context
from .finding import Finding, error, ok, told, warning

_SLOW_MS = 500
_CERTIFICATE_DAYS = 30
_SKEW_MS = 2_000
_LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))


def check_address(address: str, config: ClientConfig) -> Iterator[Finding]:
    """Name, TCP, TLS and the first exchange of one ``host:port``; stops at the first that fails."""
    host, port = split_address(address)
    finding, addresses = _check_name(host, port, config)
    yield finding
    if not addresses:
        return
    finding = _check_tcp(address, addresses, config)
    yield finding
    if finding.status == "error":
        return
    if config.security.encrypted:
        finding = _check_tls(host, port, config)
        yield finding
        if finding.status == "error":
            return
    yield from _check_exchange(host, port, config)


def _check_name(host: str, port: int, config: ClientConfig) -> tuple[Finding, list[str]]:
    check, started = f"name {host}", time.monotonic()
    try:
        found = look_up(host, port, config, Deadline.after_ms(config.default_api_timeout_ms))
    except KafkaError as failure:
        advice = "Check the spelling, /etc/hosts and the name server; inside containers names may differ."
        return error(check, str(failure), advice), []
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    took_ms = (time.monotonic() - started) * 1000
    detail = f"{', '.join(addresses)} in {took_ms:.0f} ms"
    if took_ms > _SLOW_MS:
        return warning(
            check, detail, "The name server is slow: every new connection waits for it."
        ), addresses
    return ok(check, detail), addresses


def _check_tcp(address: str, addresses: list[str], config: ClientConfig) -> Finding:
    check, failures = f"TCP {address}", []
    port = split_address(address)[1]
    for one in addresses:
        started = time.monotonic()
        try:
            socket.create_connection((one, port), config.connection_setup_timeout_ms / 1000).close()
        except OSError as failure:
            failures.append(f"{one}: {failure.strerror or failure}")
            continue
        took_ms = (time.monotonic() - started) * 1000
        detail = f"{one} in {took_ms:.1f} ms"
        if failures:
            advice = "The addresses are tried one after the other: those that fail cost time."
            return warning(check, f"{detail}, after {'; '.join(failures)}", advice)
        return ok(check, detail)
    refused = all("refused" in one.lower() for one in failures)
    advice = (
        "Nothing listens there: is the broker running, and is it this port?"
        if refused
        else "A firewall, a security group or a route may be in between."
    )
    return error(check, "; ".join(failures), advice)


def _check_tls(host: str, port: int, config: ClientConfig) -> Finding:
    check = f"TLS {host}:{port}"
    try:
        context = tls_context(config.security)
        name = host if context.check_hostname else None
        limit = config.connection_setup_timeout_ms / 1000
        with (
            socket.create_connection((host, port), limit) as plain,
            context.wrap_socket(plain, server_hostname=name or host) as encrypted,
        ):
            return _judge_certificate(check, encrypted)
    except ssl.SSLCertVerificationError as failure:
        advice = (
            "Give the authority that has signed it: ssl.truststore.location (PEM) or ssl.ca.location; the "
            "host must be among the names of the certificate."
        )
        return error(check, f"the certificate is not accepted: {failure.verify_message}", advice)
    except KafkaError as failure:
        return error(check, str(failure))
    except OSError as failure:
        advice = "Does that port speak TLS? Else set security.protocol to PLAINTEXT or SASL_PLAINTEXT."
        return error(check, f"no handshake: {getattr(failure, 'reason', None) or failure}", advice)


def _judge_certificate(check: str, encrypted: ssl.SSLSocket) -> Finding:
    certificate = encrypted.getpeercert() or {}
    words = [encrypted.version() or "TLS"]
    issuer: Any = certificate.get("issuer", ())
    if names := [str(value) for part in issuer for _, value in part]:
        words.append(f"issued by {' '.join(names)}")
    until = certificate.get("notAfter")
    if not isinstance(until, str):
        return told(check, f"{words[0]}, and the certificate is not looked at", "It is not verified at all.")
    days = (ssl.cert_time_to_seconds(until) - time.time()) / 86_400
    words.append(f"valid until {until} ({days:.0f} days)")
    if days < _CERTIFICATE_DAYS:
        return warning(check, ", ".join(words), "The broker's certificate ends soon: have it renewed.")
    return ok(check, ", ".join(words))


def _check_exchange(host: str, port: int, config: ClientConfig) -> Iterator[Finding]:
    security = config.security
    check = f"Kafka {host}:{port}"
    started = time.monotonic()
    try:
        connection = Connection.open(host, port, config, Deadline.after_ms(config.default_api_timeout_ms))
    except SecurityError as failure:
        advice = "Check sasl.mechanism, the user and the password; the broker's log says why it refused."
        yield error(check, str(failure), advice)
        return
    except KafkaError as failure:
        yield error(check, str(failure))
        return
    took_ms = (time.monotonic() - started) * 1000
    how = f"{security.protocol.name}{f' with {security.mechanism}' if security.uses_sasl else ''}"
    connection.close()
    yield ok(check, f"{how}: ApiVersions answered, connected in {took_ms:.0f} ms")


def check_cluster(router: Router) -> Iterator[Finding]:
    """Whether every broker can be reached at the address that it advertises."""
    try:
        metadata = router.metadata((), refresh=True)
    except KafkaError as failure:
        yield error("metadata", str(failure))
        return
    yield ok("metadata", f"cluster {metadata.cluster_id}, {len(metadata.brokers)} brokers")
    given = {split_address(address)[0] for address in router.config.bootstrap_servers}
    for node_id, broker in sorted(metadata.brokers.items()):
        check = f"broker {node_id} advertises {broker.host}:{broker.port}"
        limit = router.deadline(router.config.connection_setup_timeout_ms * 2)
        try:
            connection = Connection.open(broker.host, broker.port, router.config, limit)
        except (NetworkError, SecurityError) as failure:
            if broker.host in _LOCAL and not given <= _LOCAL:
                advice = (
                    "It advertises itself as local: set its advertised.listeners to a name that clients know."
                )
            else:
                advice = "Clients are sent there: that name and port must be reachable from here."
            yield error(check, str(failure), advice)
        except KafkaError as failure:
            yield error(check, str(failure))
        else:
            connection.close()
            yield ok(check, "reached")


def check_writing(router: Router) -> Iterator[Finding]:
    """Writes one record to a topic made for it: whether that works, how long it takes, and what the broker's
    clock says.
    """
    from ..kafka.admin.admin import Admin
    from ..kafka.admin.topics import NewTopic
    from ..kafka.producer.producer import Producer

    admin, topic = Admin(router), f"pykafka-doctor-{uuid.uuid4().hex[:8]}"
    try:
        new = NewTopic(name=topic, partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
        admin.create_topics([new])
    except KafkaError as failure:
        yield error(
            "writing", str(failure), "The clock is measured with a topic that can be made and deleted."
        )
        return
    try:
        with Producer(router.config, router=router) as producer:
            producer.send(topic, value="warm").result(60)
            before, started = time.time() * 1000, time.monotonic()
            stored = producer.send(topic, value="clock").result(60)
            took_ms = (time.monotonic() - started) * 1000
        yield ok("writing", f"a record was confirmed in {took_ms:.0f} ms")
        yield _judge_clock((stored.timestamp_ms or 0) - (before + took_ms / 2), took_ms)
    except (KafkaError, TimeoutError) as failure:
        yield error("writing", str(failure))
    finally:
        with contextlib.suppress(KafkaError):
            admin.delete_topics([topic])


def _judge_clock(skew_ms: float, took_ms: float) -> Finding:
    """``skew_ms``: how far the broker's clock is ahead of ours; the time in between is not ours to know."""
    where = "ahead" if skew_ms > 0 else "behind"
    detail = f"the broker's is {abs(skew_ms):.0f} ms {where}, +- {took_ms / 2:.0f} ms"
    if abs(skew_ms) - took_ms / 2 > _SKEW_MS:
        advice = "Times of records, retention and tokens go by these clocks: have both set by NTP."
        return warning("clock", detail, advice)
    return ok("clock", detail)
