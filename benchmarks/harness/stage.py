"""Where a benchmark takes place: a broker, and the contenders' sessions around it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .cluster import open_broker
from .contender import REPOSITORY, Contender
from .jvm import JvmConnector, prepare_jvm_connector

BuildContenders = Callable[[Path, JvmConnector], dict[str, Contender]]
"""(the interpreter of everybody but the JVM connector, that connector) -> contenders by name."""


@contextmanager
def open_stage(
    arguments: argparse.Namespace, build_contenders: BuildContenders
) -> Iterator[tuple[str, dict[str, Contender]]]:
    """The broker's address and the contenders, started; all of them end with the block."""
    jvm = prepare_jvm_connector(REPOSITORY / ".venv-jvm")
    python = Path(sys.executable) if arguments.own_pyspark else jvm.python
    with ExitStack() as stack:
        bootstrap_servers = stack.enter_context(open_broker(arguments.bootstrap_servers))
        contenders = build_contenders(python, jvm)
        for contender in contenders.values():
            stack.callback(contender.stop)
            contender.start()
        versions = ", ".join(f"{contender.name} {contender.version}" for contender in contenders.values())
        print(f"PySpark: {versions}", flush=True)
        yield bootstrap_servers, contenders
