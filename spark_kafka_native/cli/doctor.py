"""``doctor``: checks this machine and the way to a cluster, with advice.

The way to a cluster is names, TCP, TLS, Kerberos, the first exchange, advertised addresses, the clock; this
machine is Python, Java, Spark and limits. Each check yields a `Finding`, and imports what it needs when it
runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import resource
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..kafka.config.client_config import ClientConfig, split_address
from ..kafka.errors import KafkaError, NetworkError, SecurityError
from .options import add_connection_options, add_json_option, client_config, names_a_cluster
from .output import on_terminal, print_json, printable

if TYPE_CHECKING:
    import ssl

    from ..kafka.cluster.router import Router

_SLOW_MS = 500
_CERTIFICATE_DAYS = 30
_SKEW_MS = 2_000
_LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))
_JAVA_MIN = 17
_OPEN_FILES = 1024
_SOCKET_SETTING = "spark.python.unix.domain.socket.enabled"
_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "error": "ERROR"}
_COLOURS = {"ok": "\x1b[32m", "note": "\x1b[36m", "warning": "\x1b[33m", "error": "\x1b[31m"}


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="check the way to a cluster, and this machine",
        description="Checks names, TCP, TLS, Kerberos, SASL and the first exchange of each bootstrap server, "
        "whether every broker can be reached where it says it is, and Python, Java and Spark on this "
        "machine. Without a cluster it checks only this machine. The exit code is 1 if any finding is an "
        "error.",
    )
    parser.add_argument(
        "--write", action="store_true", help="also write to a temporary topic, to measure the broker's clock"
    )
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the checks and print the findings; 1 if any is an error."""
    findings: list[Finding] = []
    for finding in _checks(arguments):
        findings.append(finding)
        if not arguments.json:
            with contextlib.suppress(BrokenPipeError):  # the findings make the exit code nevertheless
                _show(finding)
    if arguments.json:
        with contextlib.suppress(BrokenPipeError):
            print_json([asdict(finding) for finding in findings])
    return 1 if any(finding.status == "error" for finding in findings) else 0


def _checks(arguments: argparse.Namespace) -> Iterator[Finding]:
    if names_a_cluster(arguments):
        yield from _cluster_checks(arguments)
    yield from check_machine()


def _cluster_checks(arguments: argparse.Namespace) -> Iterator[Finding]:
    from ..kafka.cluster.router import Router

    config = client_config(arguments)
    reached = False
    for address in config.bootstrap_servers:
        findings = list(check_address(address, config))
        yield from findings
        reached = reached or all(finding.status != "error" for finding in findings)
    if not reached:
        return
    router = Router(config)
    try:
        has_metadata = False
        for finding in check_cluster(router):
            yield finding
            has_metadata = has_metadata or (finding.check, finding.status) == ("metadata", "ok")
        if has_metadata:
            yield from check_leaders(router)
        if arguments.write:
            yield from check_writing(router)
        else:
            yield remark("clock", "not measured", "--write measures it, with a topic made for that.")
    finally:
        router.close()


def _show(finding: Finding) -> None:
    mark = _MARKS[finding.status]
    if on_terminal():
        coloured = mark if os.environ.get("NO_COLOR") else f"{_COLOURS[finding.status]}{mark}\x1b[0m"
        print(f"{' ' * (7 - len(mark))}{coloured}  {printable(finding.check)}: {printable(finding.detail)}")
        if finding.advice:
            print(f"         {printable(finding.advice)}")
        return
    print("\t".join(printable(one) for one in (mark, finding.check, finding.detail, finding.advice or "-")))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check and its outcome."""

    check: str
    status: str
    """``ok``, ``note`` (good to know), ``warning`` or ``error`` (nothing works before it is fixed)."""
    detail: str
    advice: str = ""


def ok(check: str, detail: str) -> Finding:
    """Return the finding of a check that found nothing wrong."""
    return Finding(check=check, status="ok", detail=detail)


def remark(check: str, detail: str, advice: str = "") -> Finding:
    """Return a finding that is good to know."""
    return Finding(check=check, status="note", detail=detail, advice=advice)


def warning(check: str, detail: str, advice: str) -> Finding:
    """Return a finding that may cause problems later."""
    return Finding(check=check, status="warning", detail=detail, advice=advice)


def error(check: str, detail: str, advice: str = "") -> Finding:
    """Return a finding that prevents other things from working."""
    return Finding(check=check, status="error", detail=detail, advice=advice)


# --- the way to a cluster -----------------------------------------------------------------------------------


def check_address(address: str, config: ClientConfig) -> Iterator[Finding]:
    """Check name, TCP, TLS and the first exchange of one ``host:port``; stop at the first failure."""
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
    if config.security.uses_sasl and config.security.mechanism == "GSSAPI":
        from .kerberos_walk import check_kerberos

        findings = list(check_kerberos(host, config))
        yield from findings
        if any(finding.status == "error" for finding in findings):
            return
    yield from _check_exchange(host, port, config)


def _check_name(host: str, port: int, config: ClientConfig) -> tuple[Finding, list[str]]:
    from ..kafka.runtime.deadline import Deadline
    from ..kafka.runtime.name_lookup import look_up

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
    import socket

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
    import socket
    import ssl

    from ..kafka.security.tls import tls_context

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
        advice = _CERTIFICATE_ADVICE.get(failure.verify_code, _AUTHORITY_ADVICE)
        return error(check, f"the certificate is not accepted: {failure.verify_message}", advice)
    except KafkaError as failure:
        return error(check, str(failure))
    except OSError as failure:
        reason = str(getattr(failure, "reason", None) or failure)
        advice = (
            "The broker and this client have no TLS version in common: see ssl.enabled.protocols of both."
            if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason
            else "Does that port speak TLS? Else set security.protocol to PLAINTEXT or SASL_PLAINTEXT."
        )
        return error(check, f"no handshake: {reason}", advice)


_AUTHORITY_ADVICE = "Give the authority that has signed it: ssl.truststore.location (PEM) or ssl.ca.location."
_CERTIFICATE_ADVICE = {
    9: "It is not valid yet: is this machine's clock right?",
    10: "It has expired: the broker needs a new one. Is this machine's clock right?",
    62: "Connect to one of the names in the certificate, or have it issued for this one.",
    64: "Connect to a name or an address in the certificate, or have it issued for this one.",
}
"""By OpenSSL's code (X509_V_ERR_...)."""


def _judge_certificate(check: str, encrypted: ssl.SSLSocket) -> Finding:
    import ssl

    certificate = encrypted.getpeercert() or {}
    words = [encrypted.version() or "TLS"]
    issuer: Any = certificate.get("issuer", ())
    if names := [str(value) for part in issuer for _, value in part]:
        words.append(f"issued by {' '.join(names)}")
    until = certificate.get("notAfter")
    if not isinstance(until, str):
        return remark(
            check, f"{words[0]}, and the certificate is not looked at", "It is not verified at all."
        )
    days = (ssl.cert_time_to_seconds(until) - time.time()) / 86_400
    words.append(f"valid until {until} ({days:.0f} days)")
    if days < _CERTIFICATE_DAYS:
        return warning(check, ", ".join(words), "The broker's certificate ends soon: have it renewed.")
    return ok(check, ", ".join(words))


def _check_exchange(host: str, port: int, config: ClientConfig) -> Iterator[Finding]:
    from ..kafka.network.connection import Connection
    from ..kafka.runtime.deadline import Deadline

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
    """Check that every broker can be reached at the address that it advertises."""
    from ..kafka.network.connection import Connection

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


def check_leaders(router: Router) -> Iterator[Finding]:
    """Check that every partition has a leader."""
    try:
        metadata = router.metadata(None, refresh=True)
    except KafkaError as failure:
        yield error("leaders", str(failure))
        return
    leaders = {
        f"{name}-{index}": partition.leader in metadata.brokers
        for name, topic in sorted(metadata.topics.items())
        for index, partition in sorted(topic.partitions.items())
    }
    without = [name for name, has_leader in leaders.items() if not has_leader]
    if without:
        shown = ", ".join(without[:5]) + (", ..." if len(without) > 5 else "")
        yield warning(
            "leaders",
            f"{len(without)} of {len(leaders)} partitions have no leader: {shown}",
            "Nothing can be read or written there: is a broker down, or its disk full or broken? `pykafka "
            "describe TOPIC` shows the replicas.",
        )
    else:
        yield ok("leaders", f"{len(leaders)} partitions have one")


def check_writing(router: Router) -> Iterator[Finding]:
    """Write a record to a temporary topic: check that it works, its duration, and the broker's clock."""
    from ..kafka.admin.admin import Admin
    from ..kafka.admin.topics import NewTopic
    from ..kafka.producer.producer import Producer

    admin, topic = Admin(router), f"pykafka-doctor-{uuid.uuid4().hex[:8]}"
    advice = "The clock is measured with a topic that can be made and deleted."
    try:
        new = NewTopic(name=topic, partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
        admin.create_topics([new], exist_ok=True)  # only a lost attempt of its own can have made it
        advice = ""
        with Producer(router.config, router=router) as producer:
            producer.send(topic, value="warm").result(60)
            before, started = time.time() * 1000, time.monotonic()
            stored = producer.send(topic, value="clock").result(60)
            took_ms = (time.monotonic() - started) * 1000
        yield ok("writing", f"a record was confirmed in {took_ms:.0f} ms")
        yield _judge_clock((stored.timestamp_ms or 0) - (before + took_ms / 2), took_ms)
    except (KafkaError, TimeoutError) as failure:
        yield error("writing", str(failure), advice)
    finally:
        with contextlib.suppress(KafkaError):
            admin.delete_topics([topic], missing_ok=True)


def _judge_clock(skew_ms: float, took_ms: float) -> Finding:
    """Judge the difference of the clocks: ``skew_ms`` is how far the broker's clock is ahead of ours, known
    to within half of ``took_ms``.
    """
    where = "ahead" if skew_ms > 0 else "behind"
    detail = f"the broker's is {abs(skew_ms):.0f} ms {where}, +- {took_ms / 2:.0f} ms"
    if abs(skew_ms) - took_ms / 2 > _SKEW_MS:
        advice = "Times of records, retention and tokens go by these clocks: have both set by NTP."
        return warning("clock", detail, advice)
    return ok("clock", detail)


# --- this machine -------------------------------------------------------------------------------------------


def check_machine(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Check everything that needs no network."""
    yield _python()
    yield from _kernel()
    yield _java(environment)
    yield from _spark(environment)
    yield _open_files()


def _python() -> Finding:
    import importlib.metadata

    found = []
    for name in ("pyarrow", "numpy", "spark-kafka-native"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} from a folder or zip")
    return ok("Python", f"{platform.python_version()} at {sys.executable}; {', '.join(found)}")


def _kernel() -> Iterator[Finding]:
    from ..kafka.records import kernel

    if kernel.COMPILED:
        yield ok("kernel", "compiled")
    else:
        advice = "Install a wheel, or have a C compiler: records are decoded several times faster."
        yield warning("kernel", "not compiled: NumPy does its work", advice)


def _java(environment: Mapping[str, str]) -> Finding:
    import subprocess

    home = environment.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin" if home else environment.get("PATH"))
    if path is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is none on PATH"
        return remark("Java", where, "Spark on this machine and `pykafka broker` need Java 17 or later.")
    try:
        ran = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return warning("Java", f"{path} does not run: {failure}", "Set JAVA_HOME to Java 17 or later.")
    version = re.search(r'version "(\d+)', ran.stderr + ran.stdout)
    number = int(version[1]) if version else 0
    if number < _JAVA_MIN:
        return warning(
            "Java", f"{path} is version {number}", "Spark 4 needs Java 17 or later: set JAVA_HOME."
        )
    return ok("Java", f"{number} at {path}")


def _spark(environment: Mapping[str, str]) -> Iterator[Finding]:
    import importlib.metadata

    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        yield remark(
            "Spark",
            "pyspark is not installed",
            "The client needs none; for the data source: the extra [spark].",
        )
        return
    yield ok("Spark", f"pyspark {version}")
    yield _sockets(environment)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        given = environment.get(name)
        if given and shutil.which(given) is None:
            yield warning(
                name, f"{given} does not exist", "Spark's Python workers can't start: unset or correct it."
            )


def _sockets(environment: Mapping[str, str]) -> Finding:
    import tempfile

    from ..testing.local_spark import unix_socket_settings

    check = "Spark's sockets"
    if unix_socket_settings(Path(tempfile.gettempdir()))[_SOCKET_SETTING] != "true":
        return remark(check, f"the path of {tempfile.gettempdir()} is too long for unix domain sockets")
    if environment.get("PYSPARK_UDS_MODE", "").lower() == "true":
        return ok(check, "unix domain sockets (PYSPARK_UDS_MODE=true)")
    defaults = _spark_defaults(environment)
    if defaults is not None and _setting(defaults, _SOCKET_SETTING) == "true":
        return ok(check, f"unix domain sockets ({defaults})")
    return remark(
        check,
        "TCP between Spark and its Python workers, unless the session says otherwise",
        f"PYSPARK_UDS_MODE=true, or {_SOCKET_SETTING}=true before the session starts, makes reads up to a "
        "third faster.",
    )


def _spark_defaults(environment: Mapping[str, str]) -> Path | None:
    folder = environment.get("SPARK_CONF_DIR")
    if folder is None and "SPARK_HOME" in environment:
        folder = f"{environment['SPARK_HOME']}/conf"
    path = Path(folder or ".") / "spark-defaults.conf"
    return path if folder is not None and path.is_file() else None


def _setting(path: Path, name: str) -> str | None:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = re.split(r"[\s=]+", line.strip(), maxsplit=1)
        if len(words) == 2 and words[0] == name:
            return words[1].strip().lower()
    return None


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < soft < _OPEN_FILES:
        return warning("open files", f"at most {soft}", "Each broker takes some connections: ulimit -n 4096.")
    return ok("open files", f"at most {soft}")
