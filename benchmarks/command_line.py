"""How long a person waits: from the start of a command to its first record, and to its end.

    python benchmarks/command_line.py [--rounds 7] [--bootstrap-servers HOST:PORT]

Next to it what any Python program pays: the interpreter alone, and the imports of numpy and pyarrow,
without which no record is decoded here. Interleaved rounds, the best and the median of them; a first one
that does not count compiles what an installed package has compiled.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from harness.cluster import open_broker
from harness.table import Target, print_table

from spark_kafka_native.kafka import Admin, NewTopic, Producer

TOPIC = "command-line"
WANTED_S = 0.5
"""A `tail` must show its first record within this."""


def environment(compiled: str) -> dict[str, str]:
    """Modules are compiled once, into the folder ``compiled``: pip has done it where it installed them."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return given | {"PYTHONPYCACHEPREFIX": compiled}


def first_line(command: Sequence[str], environment: dict[str, str]) -> float:
    """Seconds until the first byte of standard output."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.read(1)
    took = time.perf_counter() - started
    process.stdout.read()
    process.wait()
    return took


def whole(command: Sequence[str], environment: dict[str, str]) -> float:
    """Seconds until it ends."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap-servers", help="a broker that is there; default: an embedded one")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with open_broker(arguments.bootstrap_servers) as servers, tempfile.TemporaryDirectory() as compiled:
        with Admin(servers) as admin:
            admin.create_topics([NewTopic(name=TOPIC, partitions=4)], exist_ok=True)
        with Producer(servers) as producer:
            for number in range(10_000):
                producer.send(TOPIC, value=str(number))
        ours = [sys.executable, "-m", "spark_kafka_native"]
        imports = [sys.executable, "-c", "import numpy, pyarrow"]
        env = environment(compiled)
        ways: dict[str, Callable[[], float]] = {
            "pykafka tail, first record": lambda: first_line([*ours, "tail", TOPIC, "-b", servers], env),
            "pykafka topics, whole": lambda: whole([*ours, "topics", "-b", servers], env),
            "pykafka --version, whole": lambda: whole([*ours, "--version"], env),
            "python, import numpy, pyarrow": lambda: whole(imports, env),
            "python alone": lambda: whole([sys.executable, "-c", "pass"], env),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(arguments.rounds + 1):
            for name, way in ways.items():
                seconds = way()
                if number:
                    taken[name].append(seconds)
    rows = []
    for name, seconds in taken.items():
        first = min(seconds)
        target = str(Target(ratio=WANTED_S / first, wanted=1.0)) if "tail" in name else ""
        rows.append([name, f"{first:.3f} s", f"{statistics.median(seconds):.3f} s", target])
    print_table("a command's start", ["", "best", "median", f"{WANTED_S} s / best"], rows)


if __name__ == "__main__":
    main()
