"""The exactly-once sink, while drivers of one query, or runs of one write with a name, overlap, at random:
each of them, and each of their tasks, stands still before any of its requests, goes on later, or dies there;
requests and answers are lost, coordinators and leaders move, transactions are ended by others, and a later
driver has another number of tasks. Readers with read_committed never see a row twice, and see all of a
micro-batch, or of a write, once it is committed; in the end each row is there once, and micro-batches are in
order. Runs of a write that have other rows never mix, a write without a name is seen as a whole or not at
all, and nothing is ever seen of a driver that has said so.

Brokers and clients have threads of their own; one process of the query runs at a time. So a seed gives the
same story, not always the same run.
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from support.hooks.fresh_seeds import try_seeds

from spark_kafka_native.kafka.cluster.router import Router, router_for
from spark_kafka_native.kafka.errors import KafkaError
from spark_kafka_native.kafka.producer.sending.transaction_requests import init_producer_id
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.driver import atomic_write
from spark_kafka_native.spark.write.driver.atomic_write import abort_atomic, begin_atomic, commit_atomic
from spark_kafka_native.spark.write.driver.resumable_write import (
    abort_resumable,
    begin_resumable,
    commit_resumable,
)
from spark_kafka_native.spark.write.driver.stream_commit import abort_transactions, commit_transactions
from spark_kafka_native.spark.write.worker.transactional_task import (
    BatchTask,
    write_atomic,
    write_once,
    write_resumable,
)
from spark_kafka_native.spark.write.write_options import ExactlyOnce, WriteOptions
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage, RowColumns, transactions_of
from spark_kafka_native.testing import MockBroker
from spark_kafka_native.testing.mock.partition_log import BatchHeader, PartitionLog, read_records
from spark_kafka_native.testing.mock.script import Effect, MockRequest

SIMULATIONS = int(os.environ.get("SINK_SIMULATIONS", "4"))
BATCHES, ROWS, PARTITIONS = 4, 6, 2
STEPS = 60
WITHIN_S = 120
COLUMNS = RowColumns(names=("partition", "value"), topic="t")
TRANSACTION_MS = 4_000
SETTINGS = {
    "deliveryGuarantee": "exactly-once",
    "topic": "t",
    "transactionTimeout": f"{TRANSACTION_MS}ms",
    "kafka.linger.ms": "0",
    "kafka.retry.backoff.ms": "2",
    "kafka.retry.backoff.max.ms": "20",
    "kafka.request.timeout.ms": "2000",
    "kafka.default.api.timeout.ms": "3000",
    "kafka.delivery.timeout.ms": "3000",
    "kafka.max.block.ms": "3000",
}
OF_TRANSACTIONS = ("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn")
MOVED = ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"]
REFUSALS = {
    **{api: [*MOVED, "CONCURRENT_TRANSACTIONS"] for api in OF_TRANSACTIONS},
    "Produce": ["NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS"],
}
DENIALS = {
    **dict.fromkeys(OF_TRANSACTIONS, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    **dict.fromkeys(("TxnOffsetCommit", "OffsetFetch", "FindCoordinator"), "GROUP_AUTHORIZATION_FAILED"),
    **dict.fromkeys(("Produce", "Metadata", "Fetch", "ListOffsets"), "TOPIC_AUTHORIZATION_FAILED"),
}
"""The answers to a process that is dead: nothing of it is carried out, and it ends soon."""


NOTHING = re.compile(r"committed nothing|[Nn]othing of (it|this run) (is committed|will be seen)")


@dataclass(eq=False)
class Process:
    """A task or a step of a driver, in a thread of its own. It stands still where `World.choose` holds it."""

    name: str
    work: Callable[[], Any]
    changed: threading.Condition
    commits: bool = False
    """True for one that commits a micro-batch: it stands still more often, and for longer."""
    held: bool = False
    done: bool = False
    dead: bool = False
    outcome: Any = None

    def start(self) -> None:
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def _run(self) -> None:
        try:
            self.outcome = self.work()
        except BaseException as error:  # `World.take` looks at it
            self.outcome = error
        with self.changed:
            self.done = True
            self.changed.notify_all()

    def advance(self) -> None:
        """Let it go on until it stands still again, or ends."""
        with self.changed:
            self.held = False
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.done or self.held, WITHIN_S)


@dataclass(eq=False)
class Driver:
    """One life of the query: a micro-batch after the other, with the same number of tasks each. Or a run of
    the write."""

    tasks: int
    batch_id: int
    """Of a write: which of the sets of rows it has."""
    name: str
    run: Any = None
    """Of a write: the outcome of its beginning."""
    messages: list[KafkaCommitMessage | None] = field(default_factory=list)
    process: Process | None = None
    step: str = "task"
    is_first: bool = True
    failures: int = 0
    ended: bool = False


class World:
    """The brokers, and the drivers with their tasks."""

    batch_count = BATCHES
    first_step = "task"

    def __init__(self, seed: int, broker: MockBroker) -> None:
        self.rng = random.Random(seed)
        self.broker = broker
        self.chaos = True
        self.changed = threading.Condition()
        self.processes: dict[str, Process] = {}
        self.late: list[Process] = []
        """Attempts of tasks of which no driver hears any more."""
        self.drivers: list[Driver] = []
        self.asleep: list[Driver] = []
        self.lives = 0
        self.committed = 0
        """The number of micro-batches in the query's commit log."""
        self.batches = [
            sorted(self.rng.sample(range(ROWS), self.rng.randint(0, ROWS))) for _ in range(BATCHES)
        ]
        """The rows of each: a task may have none."""
        self.given = SETTINGS | {"kafka.bootstrap.servers": broker.bootstrap_servers}
        if self.rng.random() < 0.5:
            broker.create_topic("m", configs={"cleanup.policy": "compact"})
            self.given["transactionMarkerTopic"] = "m"
        self.void: set[tuple[int, int]] = set()
        """Producer ids and epochs of drivers that have said that nothing of theirs is committed."""
        self.log: list[str] = []
        for api in DENIALS:
            broker.on(api, times=None).choose(self.choose)

    def options(self, name: str) -> WriteOptions:
        return WriteOptions.parse(OptionValues.parse(self.given | {"kafka.client.id": name}, Scope.WRITE))

    @property
    def router(self) -> Router:
        return router_for(self.options("witness").client)

    # What happens to a request; called in the brokers' threads.

    def choose(self, request: MockRequest) -> Effect | None:
        process = self.processes.get(request.client_id or "")
        with self.changed:
            if process is None or (process.done and not process.dead):
                return None
            if not process.dead and self.chaos and self.rng.random() < (0.2 if process.commits else 0.1):
                process.held = True
                self.changed.notify_all()
            if process.held:  # with all of its requests
                assert self.changed.wait_for(lambda: not process.held, WITHIN_S)
                if process.dead and self.rng.random() < 0.5:
                    return Effect().cut(0)  # one that was on its way is carried out
            if process.dead:
                return Effect().fail(DENIALS[request.api])
            fault = self.rng.random() if self.chaos else 1.0
        if fault < 0.02:
            return Effect().hang_up()
        if fault < 0.05:
            return Effect().cut(0)
        if fault < 0.08 and request.api in REFUSALS:
            code = self.rng.choice(REFUSALS[request.api])
            return Effect().fail(code, applied=request.api == "EndTxn" and self.rng.random() < 0.3)
        return None

    # The query.

    def rows(self, batch_id: int, task: int, tasks: int) -> Iterator[pa.RecordBatch]:
        mine = [row for row in self.batches[batch_id] if row % tasks == task]
        for part in (mine[:1], mine[1:]):
            values = [b"%d-%d" % (batch_id, row) for row in part]
            parts = pa.array([row % PARTITIONS for row in part], pa.int32())
            yield pa.record_batch({"partition": parts, "value": pa.array(values, pa.binary())})

    def start_driver(self, tasks: int | None = None) -> Driver:
        self.lives += 1
        driver = Driver(tasks or self.rng.randint(1, 3), self.first_batch(), f"d{self.lives}")
        driver.step = self.first_step
        self.drivers.append(driver)
        self.note(f"{driver.name} begins at {driver.batch_id} with {driver.tasks} tasks")
        return driver

    def first_batch(self) -> int:
        """The one that the checkpoint names, which may have been rolled back."""
        is_rolled_back = self.committed == self.batch_count or (self.chaos and self.rng.random() < 0.1)
        return self.rng.randrange(self.committed) if self.committed and is_rolled_back else self.committed

    def note(self, what: str) -> None:
        self.log.append(what)

    def advance(self, driver: Driver) -> None:
        if driver.process is None:
            driver.process = self.next_process(driver)
        process = driver.process
        process.advance()
        if process.done:
            self.take(driver, process.outcome)
        elif self.chaos and self.rng.random() < (0.5 if process.commits else 0.1):
            self.note(f"{driver.name} stands still in its {driver.step}")
            self.drivers.remove(driver)
            self.asleep.append(driver)

    def next_process(self, driver: Driver) -> Process:
        name = f"{driver.name}-{len(self.processes)}"
        options = self.options(name)
        assert options.exactly_once is not None
        work = self.work_of(driver, options, options.exactly_once)
        process = self.processes[name] = Process(name, work, self.changed, driver.step == "commit")
        process.start()
        return process

    def work_of(self, driver: Driver, options: WriteOptions, once: ExactlyOnce) -> Callable[[], Any]:
        batch_id, messages = driver.batch_id, [*driver.messages]
        if driver.step == "task":
            task = BatchTask(query_id="q", batch_id=batch_id, partition=len(messages))
            rows = self.rows(batch_id, task.partition, driver.tasks)
            return partial(write_once, rows, COLUMNS, options, once, task)
        if driver.step == "commit":
            return partial(commit_transactions, messages, batch_id, options, once, is_first=driver.is_first)
        messages += [None] * (driver.tasks - len(messages))
        return partial(abort_transactions, messages, options, batch_id)

    def take(self, driver: Driver, outcome: Any) -> None:
        """What Spark does when a process of a driver has ended."""
        driver.process = None
        self.note(f"{driver.name}: {driver.step} of {driver.batch_id}: {outcome!r}"[:300])
        if isinstance(outcome, BaseException):
            if not isinstance(outcome, KafkaError):
                raise outcome
            driver.failures += 1
            if driver.step == "commit" and NOTHING.search(str(outcome)):
                self.void |= {
                    (one.producer_id, one.producer_epoch) for one in transactions_of(driver.messages)
                }
            if driver.step in ("begin", "abort"):
                self.end(driver)
            elif driver.step == "commit" or driver.failures > 1:
                driver.step = "abort"
        elif driver.step == "begin":
            driver.run, driver.step = outcome, "task"
        elif driver.step == "task":
            driver.messages.append(outcome)
            driver.step = "commit" if len(driver.messages) == driver.tasks else "task"
        elif driver.step == "commit":
            self.check_complete(driver.batch_id)
            self.log_commit(driver)
        else:
            self.end(driver)

    def log_commit(self, driver: Driver) -> None:
        if driver.batch_id != self.committed:  # the commit log has it already: another driver runs
            self.end(driver)
            return
        self.committed += 1
        driver.batch_id, driver.messages, driver.step = self.committed, [], "task"
        driver.is_first, driver.failures = False, 0
        if self.committed == self.batch_count:
            self.end(driver)

    def end(self, driver: Driver) -> None:
        driver.ended = True
        self.drivers.remove(driver)

    # What happens to it.

    def step(self) -> None:
        fate = self.rng.random()
        if not self.drivers:
            if self.committed < self.batch_count or self.rng.random() < 0.1:
                self.start_driver()
        elif fate < 0.06 and self.asleep:
            self.wake(self.rng.randrange(len(self.asleep)))
        elif fate < 0.70:
            self.advance(self.rng.choice(self.drivers))
        elif fate < 0.76:
            self.kill(self.rng.choice(self.drivers))
        elif fate < 0.82:
            self.lose_executor(self.rng.choice(self.drivers))
        elif fate < 0.92 and self.late:
            self.go_on(self.rng.choice(self.late))
        elif fate < 0.95:
            self.move()
        else:
            self.fence()
        self.check_once()

    def wake(self, place: int) -> None:
        driver = self.asleep.pop(place)
        self.note(f"{driver.name} wakes")
        self.drivers.append(driver)

    def kill(self, driver: Driver) -> None:
        self.note(f"{driver.name} is killed")
        if driver.process is not None:
            self.die(driver.process)
        self.end(driver)

    def die(self, process: Process) -> None:
        with self.changed:
            process.dead, process.held = True, False
            self.changed.notify_all()

    def lose_executor(self, driver: Driver) -> None:
        """Spark runs the task again, and does not hear of the first attempt any more."""
        if driver.process is not None and driver.step == "task":
            self.note(f"{driver.name} takes {driver.process.name} for lost")
            self.late.append(driver.process)
            driver.process = None

    def go_on(self, process: Process) -> None:
        self.note(f"{process.name} goes on")
        process.advance()
        if process.done:
            self.late.remove(process)

    def move(self) -> None:
        """Coordinators and leaders."""
        with self.broker.cluster.changed:
            running = set(self.broker.cluster.running)
        if len(running) == 2:
            node_id = self.rng.choice([1, 2])
            self.note(f"broker {node_id} stops")
            self.broker.stop(node_id)
        else:
            self.note("both brokers run")
            for node_id in (1, 2):
                self.broker.start(node_id)

    def fence(self) -> None:
        """A transaction is ended, as by its coordinator when its time is over."""
        with self.broker.cluster.changed:
            names = sorted(name for name, one in self.broker.transactions.by_id.items() if one.is_open)
        if names:
            name = self.rng.choice(names)
            self.note(f"{name} expires")
            init_producer_id(self.router, name, TRANSACTION_MS, None, Deadline.after_ms(60_000))

    # What must hold.

    def seen(self) -> list[list[tuple[int, ...]]]:
        """Batch and row of each committed record, for each partition; also of those that readers get only
        once an earlier transaction has ended."""
        with self.broker.cluster.changed:
            return [
                [row for _, rows in _committed(log) for row in rows]
                for log in self.broker.cluster.topics["t"].partitions
            ]

    def check_once(self) -> None:
        with self.broker.cluster.changed:
            writers = {
                who for log in self.broker.cluster.topics["t"].partitions for who, _ in _committed(log)
            }
        assert not writers & self.void, "rows of a driver that has committed nothing, as it said"
        counts = Counter(row for part in self.seen() for row in part)
        twice = [row for row, count in counts.items() if count > 1]
        assert not twice, f"visible more than once: {twice}"

    def check_complete(self, batch_id: int) -> None:
        there = {row for part in self.seen() for row in part}
        missing = {(batch_id, row) for row in self.batches[batch_id]} - there
        assert not missing, f"committed, and not visible: {missing}"

    def finish(self) -> None:
        """Without faults: some drivers end that stood still, a last one completes the query, and the others
        change nothing any more."""
        self.chaos = False
        for node_id in (1, 2):
            self.broker.start(node_id)
        self.drain(lambda: self.rng.random() < 0.5)
        for number in range(60):
            if self.committed == self.batch_count:
                break
            driver = self.start_driver(1 + number % 3)
            while not driver.ended:
                self.advance(driver)
        assert self.committed == self.batch_count, "it does not end"
        self.drain(lambda: True)
        self.check_once()
        self.check_end()

    def check_end(self) -> None:
        for batch_id in range(self.committed):
            self.check_complete(batch_id)
        for part in self.seen():
            assert [batch_id for batch_id, _ in part] == sorted(batch_id for batch_id, _ in part)

    def drain(self, wakes: Callable[[], bool]) -> None:
        """All that is awake ends, with those of the others that wake."""
        for driver in [one for one in self.asleep if wakes()]:
            self.wake(self.asleep.index(driver))
        while self.drivers:
            self.advance(self.drivers[0])
        for process in [one for one in self.late if wakes()]:
            while process in self.late:
                self.go_on(process)


class NamedWrite(World):
    """Runs of one write with a name: any number of tasks, and one of some sets of rows."""

    batch_count = 1
    first_step = "begin"

    def __init__(self, seed: int, broker: MockBroker) -> None:
        super().__init__(seed, broker)
        self.given |= {"writeId": "nightly"}
        if self.rng.random() < 0.5:  # other rows, and as many
            self.batches[1] = sorted(self.rng.sample(range(ROWS), len(self.batches[0])))

    def first_batch(self) -> int:
        return self.rng.randrange(2)

    def work_of(self, driver: Driver, options: WriteOptions, once: ExactlyOnce) -> Callable[[], Any]:
        run, messages = driver.run, [*driver.messages]
        if driver.step == "begin":
            return lambda: begin_resumable(router_for(options.client), options, once, "nightly")
        if driver.step == "task":
            rows = self.rows(driver.batch_id, len(messages), driver.tasks)
            return partial(write_resumable, run, rows, COLUMNS, options, len(messages))
        if driver.step == "commit":
            return partial(commit_resumable, run, messages, options)
        messages += [None] * (driver.tasks - len(messages))
        return partial(abort_resumable, run, messages, options)

    def log_commit(self, driver: Driver) -> None:
        # One without rows binds no other.
        self.committed |= bool(self.batches[driver.batch_id]) or not any(self.batches[:2])
        self.end(driver)

    def check_once(self) -> None:
        super().check_once()
        sets = {batch_id for part in self.seen() for batch_id, _ in part}
        assert len(sets) < 2, f"rows of two runs: {self.seen()}"

    def check_end(self) -> None:
        for batch_id in {batch_id for part in self.seen() for batch_id, _ in part}:
            self.check_complete(batch_id)


class AtomicWrites(World):
    """Writes without a name, one after the other, of one task each: other rows each time."""

    batch_count = 1
    first_step = "begin"

    def __init__(self, seed: int, broker: MockBroker) -> None:
        super().__init__(seed, broker)
        self.given |= {"transactionalIdPrefix": "job"}
        self.given.pop("transactionMarkerTopic", None)
        self.batches *= 50

    def start_driver(self, tasks: int | None = None) -> Driver:  # noqa: ARG002 - there is one
        return super().start_driver(1)

    def first_batch(self) -> int:
        return self.lives

    def work_of(self, driver: Driver, options: WriteOptions, once: ExactlyOnce) -> Callable[[], Any]:
        if driver.step == "begin":
            return lambda: begin_atomic(router_for(options.client), options, once)
        if driver.step == "task":
            rows = self.rows(driver.batch_id, 0, 1)
            return partial(write_atomic, driver.run, rows, COLUMNS, options, 0)
        if driver.step == "commit":
            return partial(commit_atomic, driver.run, driver.messages, options)
        return partial(abort_atomic, driver.run, driver.messages or [None], options)

    def log_commit(self, driver: Driver) -> None:
        self.committed = 1
        self.end(driver)

    def check_once(self) -> None:
        super().check_once()
        self.check_end()

    def check_end(self) -> None:
        for batch_id in {batch_id for part in self.seen() for batch_id, _ in part}:
            self.check_complete(batch_id)


def _committed(log: PartitionLog) -> Iterator[tuple[tuple[int, int], list[tuple[int, ...]]]]:
    """Producer id and epoch of each committed batch, and its rows."""
    for batch in log.batches:
        header = BatchHeader.read(batch)
        at, producer_id = header.base_offset, header.producer_id
        is_open = log.open_transactions.get(producer_id, log.end_offset) <= at
        is_aborted = any(one == producer_id and first <= at <= end for one, first, end in log.aborted)
        values = [one.value or b"" for one in read_records(log.topic, log.partition, batch)]
        if values and not is_open and not is_aborted:
            rows = [tuple(map(int, value.split(b"-"))) for value in values]
            yield (producer_id, header.producer_epoch), rows


def simulate(made: type[World], seed: int) -> None:
    with MockBroker(2) as broker, mock.patch.object(atomic_write, "_STRAGGLERS_S", 0.0):
        broker.create_topic("t", PARTITIONS)
        world = made(seed, broker)
        try:
            for _ in range(STEPS):
                world.step()
            world.finish()
        except BaseException as error:
            error.add_note("\n".join(world.log))
            raise
        finally:
            for process in world.processes.values():
                world.die(process)
            with world.changed:
                world.changed.wait_for(lambda: all(one.done for one in world.processes.values()), WITHIN_S)


@pytest.mark.parametrize("seed", range(SIMULATIONS))
@pytest.mark.parametrize("made", [World, NamedWrite, AtomicWrites])
def test_overlapping_drivers_write_each_row_once(made: type[World], seed: int) -> None:
    simulate(made, seed)


@pytest.mark.parametrize("made", [World, NamedWrite, AtomicWrites])
def test_fresh_seeds(made: type[World]) -> None:
    try_seeds(partial(simulate, made), f"sink, {made.__name__}")
