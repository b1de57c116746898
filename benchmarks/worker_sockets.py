"""What a task of Spark waits for because its messages come over TCP: the exchange of JVM and worker, alone.

    python benchmarks/worker_sockets.py

The JVM's end sends a task in two small messages, as Spark does, and waits for the answer. The worker's end
has its defaults, or the settings of `spark_kafka_native.spark.worker_tuning`.
"""

from __future__ import annotations

import argparse
import gc
import socket
import statistics
import threading
import time

from harness.table import print_table

from spark_kafka_native.spark.worker_tuning import acknowledge_at_once, local_connections

TASKS = 60
WARM_UP = 20
"""A new connection acknowledges its first messages at once."""


def run_tasks(jvm: socket.socket, taken: list[float]) -> None:
    for _ in range(TASKS):
        began = time.perf_counter()
        jvm.sendall(b"h" * 300)
        time.sleep(0.001)
        jvm.sendall(b"p" * 200)
        receive(jvm, 400)
        taken.append(time.perf_counter() - began)
        jvm.sendall(b"e" * 4)
        receive(jvm, 4)
        time.sleep(0.02)
    jvm.close()


def receive(end: socket.socket, size: int) -> bool:
    """Read ``size`` bytes; False at the end of the stream."""
    while size:
        got = len(end.recv(size))
        if not got:
            return False
        size -= got
    return True


def measure(jvm: socket.socket, worker: socket.socket) -> float:
    """The median of what a task takes, in milliseconds."""
    taken: list[float] = []
    thread = threading.Thread(target=run_tasks, args=(jvm, taken))
    thread.start()
    while receive(worker, 300):
        receive(worker, 200)
        worker.sendall(b"r" * 400)
        receive(worker, 4)
        worker.sendall(b"x" * 4)
        gc.collect()
    thread.join()
    return statistics.median(taken[WARM_UP:]) * 1e3


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return socket.create_connection(listening.getsockname()), listening.accept()[0]


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    rows = [
        ["TCP", f"{measure(*tcp_pair()):.1f} ms"],
        ["unix domain sockets", f"{measure(*socket.socketpair()):.1f} ms"],
    ]
    jvm, worker = tcp_pair()
    acknowledge_at_once(one for one in local_connections() if one.descriptor == worker.fileno())
    rows.insert(1, ["TCP, acknowledged at once", f"{measure(jvm, worker):.1f} ms"])
    print_table("from a task's first message to its answer", ["sockets", "median"], rows)


if __name__ == "__main__":
    main()
