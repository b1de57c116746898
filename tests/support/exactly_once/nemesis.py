"""Shared by the soak tests of the exactly-once sink: the killer of brokers, the faults that lose replies, and
processes that end with their test.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spark_kafka_native.testing import EmbeddedKafka, FaultProxy, FaultRule, faults
from support.exactly_once.sink_processes import Events

SETTINGS = {
    "log.retention.ms": -1,
    "broker.session.timeout.ms": 1_500,
    "broker.heartbeat.interval.ms": 300,
    "controller.quorum.fetch.timeout.ms": 1_200,
    "controller.quorum.election.timeout.ms": 600,
    "controller.quorum.election.backoff.max.ms": 300,
    "replica.lag.time.max.ms": 2_500,
    "offsets.commit.timeout.ms": 1_000,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "log.cleaner.backoff.ms": 15_000,
}
"""Of the brokers: a dead one is missed soon, and now and then one that is only slow is taken for dead.

A replica that is in sync by name alone holds up everything that is committed: by default for 30 to 45 s.
A coordinator then keeps back even its answer to OffsetFetch, for 5 s by default, which is longer than the
clients here wait for any: they would report a timeout only, not its reason.
"""
_PAUSES = 10
"""One strike in this number is a pause."""


class Nemesis(threading.Thread):
    """Kills and pauses one broker after the other, and starts it again, until the test stops it.

    ``may``: given the number of kills so far, true if one more is allowed. A cluster that is killed faster
    than it recovers makes no progress.
    """

    def __init__(self, kafka: EmbeddedKafka, folder: Path, seed: int, may: Callable[[int], bool]) -> None:
        super().__init__(name="nemesis")
        self.kafka = kafka
        self.folder = folder
        self.may = may
        self.rng = random.Random(f"{seed} nemesis")
        self.events = Events(str(folder))
        self.kills = self.pauses = 0
        self.error: BaseException | None = None
        self.over = threading.Event()

    def run(self) -> None:
        try:
            while not self.over.wait(self.rng.uniform(0.05, 1)):
                if self.may(self.kills):
                    self.strike(self.rng.choice([1, 2, 3]))
        except BaseException as error:
            self.error = error

    def strike(self, node_id: int) -> None:
        if (self.kills + self.pauses) % _PAUSES == _PAUSES // 2:
            self.pauses += 1
            self.events.tell(f"a broker is paused: {node_id}")
            self.kafka.pause(node_id)
            self.over.wait(self.rng.uniform(1, 3))  # about the time after which a broker is taken for dead
            self.kafka.resume(node_id)
            return
        self.kafka.kill(node_id)
        self.kills += 1
        self.events.tell(f"a broker is killed: {node_id}")
        partial = self.folder / "kills.partial"
        partial.write_text(str(self.kills))
        partial.replace(self.folder / "kills")
        self.kafka.restart(node_id)
        self.events.tell(f"a broker is back: {node_id}")

    def stop(self) -> None:
        self.over.set()
        if self.ident is not None:
            self.join()
        if self.error is not None:
            raise self.error


def disturb(proxy: FaultProxy) -> None:
    """Replies that are lost and late, and requests that arrive late: after their client has given up."""
    lost, late, ghost = faults.Reset(), faults.Delay(200, 1_500), faults.Delay(4_000, 12_000)
    proxy.add(FaultRule(api="EndTxn", fault=lost, skip=5, times=1))
    proxy.add(FaultRule(api="EndTxn", fault=late, skip=10, times=1))
    proxy.add(FaultRule(api="EndTxn", side="request", fault=ghost, skip=20, times=1))
    proxy.add(FaultRule(api="EndTxn", fault=lost, probability=0.06))
    proxy.add(FaultRule(api="EndTxn", fault=late, probability=0.08))
    proxy.add(FaultRule(api="EndTxn", side="request", fault=ghost, probability=0.02))
    for api in ("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "OffsetFetch"):
        proxy.add(FaultRule(api=api, fault=faults.DropReply(), probability=0.02))
    for api in ("InitProducerId", "AddPartitionsToTxn", "TxnOffsetCommit"):
        proxy.add(FaultRule(api=api, side="request", fault=ghost, probability=0.004))
    proxy.add(FaultRule(api="Produce", fault=lost, probability=0.02))
    proxy.add(FaultRule(api="Produce", side="request", fault=faults.CutAt(), probability=0.01))
    proxy.add(FaultRule(api="Produce", side="request", fault=faults.Flip(-12), probability=0.005))


@contextlib.contextmanager
def process(*command: object, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """In a session of its own, all of which ends with the block."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OPENBLAS_NUM_THREADS": "1",
    }
    started = subprocess.Popen(
        [sys.executable, *map(str, command)], env=environment, text=True, start_new_session=True, **how
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(60)
