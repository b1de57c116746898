"""The exactly-once sink as processes that die: what Spark does with tasks and batches, without Spark.

Run as a script, with a JSON file of `Plan`. The supervisor forks drivers, a driver tasks and committers: a
task is what runs in a Python worker of an executor, a committer what Spark starts anew for each commit. The
driver itself speaks to no broker. Processes die by SIGKILL: they report nothing and clean up nothing. The
drivers of a run share a checkpoint, as Spark's do: a batch is done once it stands in ``commits``.

What happened is in the file ``events``, a line each, with its time.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import pkgutil
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

TASK_POINTS = ("initialized", "marker-read", "producing", "acknowledged", "returned")
COMMIT_POINTS = ("before-end", "after-end", "committed")
POINTS = TASK_POINTS + COMMIT_POINTS
"""The points at which a process is killed."""
REQUEST_TIMEOUT_MS = 2_000
"""As long as nothing is heard after an answer that is lost."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TASK_TRIES = 4
_ANSWER_S = 170.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is to do. ``kills`` is a file with the number of brokers killed so far: a batch does not
    begin before the share of ``min_kills`` of those before it, so that brokers die while batches run; and it
    does not end before its share of ``min_driver_kills``.

    ``batches``: at least; more as long as anything of `POINTS` has not happened.
    """

    bootstrap_servers: str
    topic: str
    folder: str
    seed: int
    batches: int
    tasks: int = 4
    rows: int = 100
    partitions: int = 3
    protocols: tuple[int, ...] = (1, 2)
    marker_topic: str | None = None
    min_kills: int = 0
    min_driver_kills: int = 0
    calm: bool = False
    """Only the crash points in turn, and nothing by chance."""
    bug: str | None = None
    """One that is planted: "no-marker"."""

    @classmethod
    def load(cls, path: str) -> Plan:
        told = json.loads(Path(path).read_text())
        return cls(**{**told, "protocols": tuple(told["protocols"])})

    def save(self) -> Path:
        path = Path(self.folder, "plan.json")
        path.write_text(json.dumps(asdict(self)))
        return path

    @property
    def records(self) -> int:
        return self.batches * self.tasks * self.rows


class Events:
    """Appended to by all processes, a line at a time."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder, "events")

    def tell(self, what: str) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(f"{time.time():.2f} {what}\n".encode())

    def read(self) -> list[str]:
        """The events, without the times."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [line.partition(" ")[2] for line in lines]

    def count(self, prefix: str) -> int:
        return sum(line.startswith(prefix) for line in self.read())


# A task, a committer: each in a process of its own, which has never spoken to a broker before.


def rows(plan: Plan, batch_id: int, task: int) -> Iterator[Any]:
    import pyarrow as pa

    for part in (range(plan.rows // 2), range(plan.rows // 2, plan.rows)):
        values = [b"%d-%d-%d %s" % (batch_id, task, index, b"x" * (index % 97)) for index in part]
        yield pa.record_batch(
            {
                "partition": pa.array([index % plan.partitions for index in part], pa.int32()),
                "value": pa.array(values, pa.binary()),
            }
        )


def options(plan: Plan, timeout: str) -> Any:
    from spark_kafka_native.spark.options.option import Scope
    from spark_kafka_native.spark.options.option_values import OptionValues
    from spark_kafka_native.spark.write.write_options import WriteOptions

    given = {
        "kafka.bootstrap.servers": plan.bootstrap_servers,
        "topic": plan.topic,
        "deliveryGuarantee": "exactly-once",
        "transactionTimeout": timeout,
        "kafka.retry.backoff.ms": "20",
        "kafka.linger.ms": "0",
        "kafka.request.timeout.ms": str(REQUEST_TIMEOUT_MS),
    }
    if plan.marker_topic is not None:
        given["transactionMarkerTopic"] = plan.marker_topic
    return WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))


def after(owner: Any, name: str, then: Callable[[], None]) -> None:
    """``then`` happens after each call."""
    original = getattr(owner, name)

    def called(*arguments: Any, **named: Any) -> Any:
        found = original(*arguments, **named)
        then()
        return found

    setattr(owner, name, called)


def die(events: Events, point: str) -> None:
    events.tell(f"killed at {point}")
    os.kill(os.getpid(), signal.SIGKILL)


def run_task(plan: Plan, job: dict[str, Any], events: Events) -> Any:
    """What a Python worker does; the message for the driver."""
    from spark_kafka_native.kafka.config.client_config import TransactionConfig
    from spark_kafka_native.spark.write.marker_store import GroupMarkers, MarkerTopic
    from spark_kafka_native.spark.write.worker import transactional_task
    from spark_kafka_native.spark.write.worker.write_rows import WriteTask
    from spark_kafka_native.spark.write.write_task import RowColumns

    def at(point: str) -> Callable[[], None]:
        return partial(die, events, point) if job["point"] == point else lambda: None

    transactional_task.TransactionConfig = partial(TransactionConfig, transaction_version=job["protocol"])  # type: ignore[misc, assignment]
    plant(plan)
    after(transactional_task.TransactionalProducer, "initialize", at("initialized"))
    for markers in (GroupMarkers, MarkerTopic):
        after(markers, "last", at("marker-read"))
    after(WriteTask, "write", at("producing"))
    after(WriteTask, "finish", at("acknowledged"))
    chosen = options(plan, job["timeout"])
    columns = RowColumns(names=("partition", "value"), topic=plan.topic)
    who = transactional_task.BatchTask(query_id=plan.topic, batch_id=job["batch"], partition=job["task"])
    given = rows(plan, job["batch"], job["task"])
    message = transactional_task.write_once(given, columns, chosen, chosen.exactly_once, who)
    at("returned")()
    return message


def plant(plan: Plan) -> None:
    """The bug that the checker has to see."""
    from spark_kafka_native.spark.write.marker_store import GroupMarkers, MarkerTopic
    from spark_kafka_native.spark.write.worker import transactional_task

    if plan.bug == "no-marker":
        transactional_task._check_nothing_pending = lambda *_arguments: None
        transactional_task.check_uncommitted = lambda *_arguments: None
        for markers in (GroupMarkers, MarkerTopic):
            markers.last = lambda *_arguments: None  # type: ignore[method-assign, misc, assignment]


def run_commit(plan: Plan, job: dict[str, Any], events: Events) -> None:
    """What Spark's process for the commit of a batch does."""
    from spark_kafka_native.spark.write.driver import stream_commit

    chosen = options(plan, job["timeout"])
    messages, end_all = job["messages"], stream_commit._end_all

    def dying(router: Any, transactions: Any, **how: Any) -> Any:
        if job["point"] == "before-end":
            die(events, "before-end")
        if job["point"] == "after-end":
            some = random.Random(job["draw"]).sample(transactions, (len(transactions) + 1) // 2)
            end_all(router, some, **how)
            die(events, "after-end")
        return end_all(router, transactions, **how)

    if job["expire"]:
        await_expiry(plan, messages)
    stream_commit._end_all = dying
    stream_commit.commit_transactions(messages, job["batch"], chosen, chosen.exactly_once)
    if job["point"] in COMMIT_POINTS:  # the last one, and the others where nothing was left to end
        die(events, job["point"])


def run_abort(plan: Plan, job: dict[str, Any], _events: Events) -> None:
    from spark_kafka_native.spark.write.driver.stream_commit import abort_transactions

    abort_transactions(job["messages"], options(plan, job["timeout"]))


def await_expiry(plan: Plan, messages: list[Any]) -> None:
    """Until the coordinators have aborted them."""
    from spark_kafka_native.kafka.admin import Admin

    names = [message.transaction.transactional_id for message in messages if message.transaction is not None]
    with Admin(plan.bootstrap_servers) as admin:
        deadline = time.monotonic() + 100
        while any(one.state == "Ongoing" for one in admin.describe_transactions(names).values()):
            if time.monotonic() > deadline:
                raise TimeoutError("no transaction expired")
            time.sleep(0.2)


class Child:
    """A process that runs one function and reports its result: ("done", value), ("raised", text) or, where
    it was killed, None."""

    def __init__(self, run: Callable[[Plan, dict[str, Any], Events], Any], plan: Plan, job: Any) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            signal.alarm(int(_ANSWER_S))  # an orphan does not live for ever
            self._work(write, run, plan, job)
        os.close(write)

    @staticmethod
    def _work(write: int, run: Callable[..., Any], plan: Plan, job: Any) -> NoReturn:
        try:
            try:
                told: Any = ("done", run(plan, job, Events(plan.folder)))
            except Exception as error:
                told = ("raised", f"{type(error).__name__}: {error}")
            with contextlib.suppress(BrokenPipeError), open(write, "wb") as file:
                pickle.dump(told, file)
        finally:
            os._exit(0)

    def result(self) -> tuple[str, Any] | None:
        with open(self._read, "rb") as file:
            data = file.read()
        os.waitpid(self.pid, 0)
        try:
            told: tuple[str, Any] = pickle.loads(data)
        except (EOFError, pickle.UnpicklingError):
            return None  # killed, perhaps in the middle of a word
        return told


# The driver.


def batches_done(plan: Plan) -> int:
    """As the checkpoint has it."""
    commits = Path(plan.folder, "commits")
    return len(commits.read_text().split()) if commits.exists() else 0


def share(wanted: int, plan: Plan, batches: int) -> int:
    """The share of ``wanted`` that belongs to the first ``batches`` batches."""
    return min(wanted, wanted * batches // plan.batches)


def await_kills(plan: Plan, wanted: int) -> None:
    """Wait until ``wanted`` brokers have been killed."""
    kills = Path(plan.folder, "kills")
    while wanted and (not kills.exists() or int(kills.read_text()) < wanted):
        time.sleep(0.02)


class Driver:
    """One life of a driver."""

    def __init__(self, plan: Plan, life: int) -> None:
        self.plan = plan
        self.life = life
        self.events = Events(plan.folder)
        self.commits = Path(plan.folder, "commits")

    def run(self) -> None:
        """The batches that are left, unless something happens."""
        self.events.tell(f"a driver begins: life {self.life}")
        while (batch_id := self.next_batch()) is not None:
            await_kills(self.plan, share(self.plan.min_kills, self.plan, batch_id))
            if not self._run_batch(batch_id):
                return

    def next_batch(self) -> int | None:
        """None if it was the last one."""
        done = batches_done(self.plan)
        return None if done >= self.plan.batches and not self._due() else done

    def _due(self) -> list[str]:
        """The points at which no process has been killed yet."""
        happened = self.events.read()
        return [one for one in POINTS if f"killed at {one}" not in happened]

    def _run_batch(self, batch_id: int) -> bool:
        """Run a batch; true if the query goes on."""
        self.events.tell(f"a batch begins: {batch_id}")
        plan, rng = self.plan, random.Random(f"{self.plan.seed} {self.life} {batch_id}")
        due = self._due()  # happens next
        point = due[0] if due and batch_id else None
        chance = (lambda _p: False) if plan.calm else (lambda p: rng.random() < p)
        if point is None and chance(0.25):
            point = rng.choice(COMMIT_POINTS)
        late = share(plan.min_driver_kills, plan, batch_id + 1) > self.events.count("driver dies")
        expire = point is None and batch_id > 0 and chance(0.04)
        common = {
            "batch": batch_id,
            "protocol": rng.choice(plan.protocols),
            "timeout": "1s" if expire else "1m",
            "draw": rng.random(),
            "expire": expire,
        }
        fates = [rng.choice(TASK_POINTS) if chance(0.1) else None for _ in range(plan.tasks)]
        if point in TASK_POINTS:
            fates[rng.randrange(plan.tasks)] = point
        twice = [chance(0.08) for _ in range(plan.tasks)]
        messages = self._run_tasks(common, fates, twice, rng)
        if messages is None:
            self.events.tell("query fails: a task failed too often")
            return False
        if chance(0.06):
            self._die("before the commit")
        commit = common | {"messages": messages, "point": point if point in COMMIT_POINTS else None}
        came = Child(run_commit, plan, commit).result()
        if came == ("done", None) and not late:
            with self.commits.open("a") as file:
                file.write(f"{batch_id}\n")
            self.events.tell(f"a batch is done: {batch_id}")
            return True
        if came is not None and came[0] == "raised":
            self.events.tell(f"commit refused: {came[1]}"[:600])
            if expire and "WriteCommitFailedError" in came[1]:
                self.events.tell("expired")
        elif late or rng.random() < 0.6:
            self._die("in the commit")
        # Spark aborts, also after a commit that raised when all was done.
        Child(run_abort, plan, commit).result()
        self.events.tell("query fails, and Spark aborts")
        return False

    def _run_tasks(
        self, common: dict[str, Any], fates: list[str | None], twice: list[bool], rng: random.Random
    ) -> list[Any] | None:
        first = []
        for task, (fate, double) in enumerate(zip(fates, twice, strict=True)):
            job = common | {"task": task, "point": fate}
            first.append([Child(run_task, self.plan, job) for _ in range(2 if double else 1)])
        messages = []
        for task, children in enumerate(first):
            came = [child.result() for child in children]
            if len(came) > 1:
                self.events.tell("a task runs twice")
            for _ in range(_TASK_TRIES):
                done = [one[1] for one in came if one is not None and one[0] == "done"]
                if done:
                    messages.append(rng.choice(done))
                    break
                for one in came:
                    if one is not None:
                        self.events.tell(f"task refused: {one[1]}"[:600])
                came = [Child(run_task, self.plan, common | {"task": task, "point": None}).result()]
            else:
                return None
        return messages

    def _die(self, where: str) -> NoReturn:
        self.events.tell(f"driver dies {where}")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


# The supervisor.


def supervise(plan: Plan) -> None:
    """Start drivers until all batches are done; then end the open transactions."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans are ours to wait for
    warm(plan)
    events, rng, life = Events(plan.folder), random.Random(f"{plan.seed} supervisor"), 0
    while Driver(plan, 0).next_batch() is not None:
        life += 1
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the supervisor has one thread: it is its end, then
            try:
                Driver(plan, life).run()
            except BaseException as error:
                events.tell(f"driver raised: {type(error).__name__}: {error}")
            os._exit(0)
        fate = rng.random()
        if not plan.calm and fate < 0.35 and not ended(pid, rng.uniform(0.1, 3)):
            events.tell(
                f"driver dies at some time, {'all its tasks too' if fate < 0.15 else 'its tasks live on'}"
            )
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if fate < 0.15 else os.kill)(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    await_kills(plan, plan.min_kills)
    settle(plan, events)


def prctl(option: int, value: int) -> None:
    """Where there is such a thing: on Linux."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value)


def ended(pid: int, timeout_s: float) -> bool:
    """True if a child has ended within the time; it is not reaped."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        select.select([], [], [], 0.02)
    return False


def settle(plan: Plan, events: Events) -> None:
    """Fence the last user of each transactional id; that aborts the transactions that orphans left open."""
    for task in range(plan.tasks):
        job = {"batch": batches_done(plan) - 1, "task": task, "point": None, "protocol": 2, "timeout": "1m"}
        for _ in range(10):
            came = Child(run_task, plan, job).result()
            if came is not None and came[0] == "done":
                break
            events.tell(f"task refused: {came}")
    events.tell("settled")


def warm(plan: Plan) -> None:
    """Import what the children need, once."""
    list(rows(plan, 0, 0))  # the first array of pyarrow imports pandas: half a second of each child's life
    for name in (
        "spark_kafka_native.kafka",
        "spark_kafka_native.spark.options",
        "spark_kafka_native.spark.write",
    ):
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                with contextlib.suppress(ImportError):  # of an optional dependency
                    importlib.import_module(module.name)
    gc.freeze()


if __name__ == "__main__":
    supervise(Plan.load(sys.argv[1]))
