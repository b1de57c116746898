"""``broker``: runs a real Kafka in the foreground, for experiments."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..testing.embedded_kafka import EmbeddedKafka

_WATCH_S = 0.5


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "broker",
        help="run a Kafka broker until Ctrl-C",
        description="Runs Apache Kafka on this machine until Ctrl-C. Its data is deleted afterwards.",
    )
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="how many brokers (default 1)")
    parser.add_argument(
        "--listeners",
        default="PLAINTEXT",
        metavar="NAME,...",
        help="PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL (default PLAINTEXT)",
    )
    parser.add_argument(
        "--port", type=_port, help="the first port; the others follow it (default: free ones)"
    )
    parser.add_argument(
        "--user",
        action="append",
        metavar="NAME:PASSWORD",
        help="an account for the SASL listeners; repeatable (default alice:alice-secret)",
    )
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a broker setting as in server.properties; repeatable",
    )
    parser.add_argument(
        "--properties-file",
        type=Path,
        metavar="FILE",
        help="broker settings, one NAME=VALUE per line; --property takes precedence",
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Start the brokers, print their addresses, and wait. Returns 1 if one of them ends unexpectedly."""
    from ..testing.embedded_kafka import EmbeddedKafka
    from ..testing.java import KAFKA_VERSION

    try:
        kafka = EmbeddedKafka(
            arguments.brokers,
            listeners=[name.strip().upper() for name in arguments.listeners.split(",")],
            users=dict(_pair(text, "NAME:PASSWORD", ":") for text in arguments.user)
            if arguments.user
            else None,
            properties=_properties(arguments.properties_file, arguments.property),
            port=arguments.port,
        )
    except ValueError as error:
        arguments.parser.error(str(error))
    started = time.monotonic()
    with kafka:
        print(f"Apache Kafka {KAFKA_VERSION} is ready after {time.monotonic() - started:.1f} s.")
        for name in kafka.listeners:
            print(f"  {name:15} {kafka.bootstrap_servers_for(name)}")
        if kafka.certificates:
            print(f"  certificates    {kafka.certificates.authority.parent}")
        if any(name.startswith("SASL") for name in kafka.listeners):
            print(f"  accounts        {', '.join(kafka.users)}")
        print(f"  folder          {kafka.folder}")
        print("Press Ctrl-C to stop it and remove its folder.", flush=True)
        return _wait(kafka)


def _wait(kafka: EmbeddedKafka) -> int:
    while all(broker.running for broker in kafka.brokers):
        time.sleep(_WATCH_S)
    for broker in kafka.brokers:
        if not broker.running:
            print(f"Broker {broker.node_id} has ended. Its last output:\n{broker.output.read_text()[-2000:]}")
    return 1


def _properties(file: Path | None, given: list[str]) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file else []
    except OSError as error:
        raise ValueError(f"--properties-file: {file} can't be read: {error.strerror}") from None
    kept = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return dict(_pair(text, "NAME=VALUE", "=") for text in [*kept, *given])


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"a port is a number from 1 to 65535, not {text!r}")
    return int(text)


def _pair(text: str, form: str, separator: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name:
        raise ValueError(f"{text!r} is not of the form {form}")
    return name.strip(), value.strip()
