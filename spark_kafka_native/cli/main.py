"""Reads the command line and runs one command; errors with advice in them become plain messages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..kafka.errors import KafkaError
from ..testing.errors import BrokerUnavailableError, ClusterStartError
from ..version import __version__
from . import broker, demo
from .stopping import Stopped, stopping_on_signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code: 130 after Ctrl-C and 143 after SIGTERM, as shells expect."""
    parser = argparse.ArgumentParser(
        prog="python -m spark_kafka_native", description="Kafka for PySpark without a JVM jar."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (demo, broker):
        command.add_command(commands)
    parsed = parser.parse_args(arguments)
    try:
        with stopping_on_signals():
            code: int = parsed.run(parsed)
            return code
    except Stopped as stopped:
        print("Stopped.", file=sys.stderr)
        return 128 + stopped.signal
    except (BrokerUnavailableError, ClusterStartError, KafkaError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
