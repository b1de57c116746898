"""Python workers that are killed in the middle of a task: Spark runs the task again."""

import json
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="finds the worker that talks to the broker in /proc"),
]

SCRIPT = """
import json, os, signal, sys, threading, time
from collections import Counter
from confluent_kafka import Consumer, TopicPartition
from pathlib import Path
from pyspark.sql import SparkSession, functions as F

bootstrap_servers, topic, copy, folder = sys.argv[1:]
PORT = int(bootstrap_servers.rpartition(":")[2])
spark = (
    SparkSession.builder.master("local[2,4]")  # a task may fail three times
    .config("spark.ui.enabled", "false")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    .config("spark.python.unix.domain.socket.enabled", "true")  # over TCP each socket may hold 37 MB
    .config("spark.python.worker.reuse", "false")  # what has a connection is in the middle of a task
    .getOrCreate()
)


def kafka(what):
    return what.format("pykafka").option("kafka.bootstrap.servers", bootstrap_servers)


def held(gate, after):
    # Passes on the first batches, and the rest when there is a file ``gate``: in the middle until then.
    def run(batches):
        for number, batch in enumerate(batches):
            while number >= after and not os.path.exists(gate):
                time.sleep(0.02)
            yield batch

    return run


def inodes_to_broker():
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {row[9] for row in rows if int(row[2].rpartition(":")[2], 16) == PORT and row[3] == "01"}


def is_below_this(pid):
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid == os.getpid():
            return True
    return False


def workers_at_broker():
    # Of this Spark: another one's, which wait for their next task, keep their connections to the same broker.
    sockets = {f"socket:[{inode}]" for inode in inodes_to_broker()}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\\0")
            if b"pyspark.worker" not in command or not is_below_this(int(process.name)):
                continue
            if sockets & {os.readlink(fd) for fd in (process / "fd").iterdir()}:
                yield int(process.name)
        except OSError:
            pass  # it has just ended


def kill_workers(when, killed, gate):
    while not killed:
        time.sleep(0.02)
        if when():
            for pid in list(workers_at_broker()):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    Path(gate).touch()


def run_and_kill(job, when, gate):
    # What the job gives, and how many of its tasks were lost. There are no others than killed ones.
    killed = []
    killer = threading.Thread(target=kill_workers, args=(when, killed, gate), daemon=True)
    killer.start()
    spark.sparkContext.setJobGroup(gate, gate)
    found = job()
    killer.join(300)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    jobs = spark.sparkContext.statusTracker()
    stages = [stage for job_id in jobs.getJobIdsForGroup(gate) for stage in jobs.getJobInfo(job_id).stageIds]
    return found, sum(jobs.getStageInfo(stage).numFailedTasks for stage in stages)


# Long values here too: a worker that has handed all of its rows to the buffers may die, and no task with it.
frame = kafka(spark.read).option("subscribe", topic).load().select("partition", "offset", "value")
gate = f"{folder}/read"
slow = frame.mapInPandas(held(gate, after=1), frame.schema).select("partition", "offset")
rows, lost = run_and_kill(slow.collect, lambda: True, gate)
read = {"lost": lost > 0, "count": len(rows), "distinct": len(set(rows))}

ROWS = 20_000
# Long values: what is passed on before the gate is more than the buffers on the way hold.
source = spark.range(0, ROWS, 1, 4).select(F.format_string("%0200d", "id").alias("value"))
gate = f"{folder}/written"
slow = source.mapInPandas(held(gate, after=8), source.schema)
written = kafka(spark.read).option("subscribe", copy).load()
writer = kafka(slow.write).option("topic", copy).option("kafka.linger.ms", "5").mode("append")
consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "watermarks"})


def has_begun():  # asked of the broker: a Spark job would be another worker with a connection
    ends = (consumer.get_watermark_offsets(TopicPartition(copy, index), timeout=60)[1] for index in (0, 1))
    return sum(ends) > 0


_, lost = run_and_kill(writer.save, has_begun, gate)
values = Counter(int(row.value) for row in written.select(F.col("value").cast("string")).collect())
write = {
    "lost": lost > 0, "missing": ROWS - len(values),
    "strange": len([value for value in values if not 0 <= value < ROWS]),
}
print("RESULT", json.dumps({"read": read, "write": write}))
"""


def long_values(count):
    """Records of two partitions, 30 MB each, of which a gate lets 2 MB pass: sockets and readers before it
    hold a few more."""
    value = b"v" * 3_000
    return [(number % 2, b"%d" % number, value, number, []) for number in range(count)]


@pytest.mark.timeout(900)
def test_readers_and_writers_that_are_killed_are_run_again(peer, kafka, topic, tmp_path, script_environment):
    copy = f"{topic}-copy"
    peer.create(kafka, topic, 2)
    peer.write(kafka.bootstrap_servers, topic, long_values(20_000))
    kafka.create_topic(copy, partitions=2)
    job = tmp_path / "job.py"
    job.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(job), kafka.bootstrap_servers, topic, copy, str(tmp_path)],
        env=script_environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    # The killed worker was in the middle of a task, both times. Each record is read once; of those written,
    # none is lost.
    assert json.loads(line.removeprefix("RESULT ")) == {
        "read": {"lost": True, "count": 20_000, "distinct": 20_000},
        "write": {"lost": True, "missing": 0, "strange": 0},
    }
