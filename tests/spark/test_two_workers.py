"""A Spark cluster of two workers that has the package from ``--py-files`` only: pure Python out of a zip."""

import json
import sys

import pytest

from spark_kafka_native.testing import StandaloneSpark

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="finds the executors in /proc"),
]


@pytest.fixture(scope="module")
def spark_cluster():
    """As the package's, but on two hosts: the second copy of a task never runs on the host of the first."""
    with StandaloneSpark(hosts=["127.0.0.1", "127.0.0.2"], startup_timeout_s=240) as running:
        yield running


# One application for all of it: what takes the time is starting three JVMs.
JOB = """
import json, os, signal, sys, time
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
import spark_kafka_native

bootstrap_servers, read_from, write_to, again, copied, topic, copy, folder, times = sys.argv[1:]
kills, gates, checkpoint = int(times), Path(folder), f"{folder}/checkpoint"
options = {"kafka.bootstrap.servers": bootstrap_servers}
speculation = {"interval": "20ms", "multiplier": "1.01", "minTaskRuntime": "1ms"}
builder = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").config("spark.speculation", "true")
for name, value in (speculation | {"efficiency.enabled": "false"}).items():
    builder = builder.config(f"spark.speculation.{name}", value)
# All tasks of a stage must have ended before one is speculated on: none is, until `speculate` says so.
builder = builder.config("spark.speculation.quantile", "1.0").config("spark.python.task.killTimeout", "100ms")
spark = builder.getOrCreate()
spark_kafka_native.register(spark)

# A read.
frame = spark.read.format("pykafka").options(**options, subscribe=read_from, minPartitions=8).load()


def where(batches):
    import pandas
    from spark_kafka_native.kafka.records import kernel
    for _ in batches:
        found = {"file": [spark_kafka_native.__file__], "compiled": [kernel.COMPILED]}
        yield pandas.DataFrame(found | {"folder": [os.getcwd()]})


executors = frame.mapInPandas(where, "file string, compiled boolean, folder string").collect()
rows = frame.select("partition", "offset").collect()
read = {
    "driver": spark_kafka_native.__file__,
    "executors": sorted({row.file for row in executors}),
    "folders": sorted({row.folder for row in executors}),
    "compiled": any(row.compiled for row in executors),
    "tasks": frame.rdd.getNumPartitions(),
    "count": len(rows),
    "distinct": len(set(rows)),
}

# A write.
frame = spark.range(0, 20_000, 1, 4).select(
    F.col("id").cast("string").alias("key"), F.concat(F.lit("value "), "id").alias("value")
)
(
    frame.write.format("pykafka").options(**options, topic=write_to, summaryPath=f"{folder}/summary.json")
    .option("kafka.compression.type", "zstd").mode("append").save()
)
found = spark.read.format("pykafka").options(**options, subscribe=write_to).load()
found = found.select(F.col("key").cast("string"), F.col("value").cast("string"))
written = {"count": found.count(), "other": found.exceptAll(frame).count()}

# Reads and writes of which Spark runs a task twice.


def speculate(quantile):
    spark.sparkContext._jsc.sc().conf().set("spark.speculation.quantile", quantile)


def twice(frame, name):
    # The first attempt of task 0 stops in the middle, until its copy has won and Spark kills it.
    def hold(batches):
        from pyspark import TaskContext
        context = TaskContext.get()
        attempt, deadline = context.attemptNumber(), time.monotonic() + 300
        for batch in batches:
            yield batch.slice(0, 50)
            if context.partitionId() == 0:
                (gates / f"{name}-{attempt}").touch()
                while attempt == 0 or not (gates / f"{name}-0").exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            yield batch.slice(50)

    columns = frame.select("key", "value", "partition")
    return columns.mapInArrow(hold, columns.schema)


def run(writer, name):
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint-{name}")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(300), query.lastProgress


def shown(rows):
    numbers = sorted(int(bytes(row.value)[1:]) for row in rows)
    return {"all": sorted(set(numbers)) == list(range(5000)), "count": len(numbers)}


speculate("0.1")
source = options | {"subscribe": read_from, "startingOffsets": "earliest"}
frame = spark.read.format("pykafka").options(**source).load()
speculated = {"read": shown(twice(frame, "read").collect())}
sink = twice(frame, "write").write.format("pykafka").options(**options, topic=again)
sink.mode("append").save()
frame = spark.readStream.format("pykafka").options(**source).load()
rows = []
run(twice(frame, "stream").writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect())), "stream")
speculated["stream"] = shown(rows)
run(twice(frame, "copy").writeStream.format("pykafka").options(**options, topic=copied), "copy")
speculate("1.0")
for name, at in (("write", again), ("copy", copied)):
    rows = spark.read.format("pykafka").options(**options, subscribe=at).load().select("value").collect()
    speculated[name] = shown(rows)

# A stream, under which executors are killed.
columns = (
    spark.readStream.format("pykafka")
    .options(**options, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=1000)
    .load().select("key", "value", "partition")
)


def held(batches):
    # After a part of batch 1, and of batch 3, the tasks wait until an executor was killed under them.
    from pyspark import TaskContext
    number = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))
    for batch in batches:
        yield batch.iloc[:50]
        if number in (1, 3) and number // 2 < kills:
            (gates / f"in-{number}-{os.getpid()}").touch()
            while not (gates / f"killed-{number}").exists():
                time.sleep(0.05)
        yield batch.iloc[50:]


query = (
    columns.mapInPandas(held, columns.schema).writeStream.format("pykafka")
    .options(**options, topic=copy, checkpointLocation=checkpoint).trigger(availableNow=True).start()
)
driver = f"@127.0.0.1:{spark.conf.get('spark.driver.port')}".encode()


def executors():
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\\0")
        except OSError:
            continue  # it has just ended
        is_ours = any(argument.endswith(driver) for argument in command)
        if is_ours and b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in command:
            yield int(process.name)


def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert query.isActive and time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


killed = []
for number in (1, 3)[:kills]:
    wait_for(lambda: len(list(gates.glob(f"in-{number}-*"))) >= 2)  # both tasks, one on each executor
    wait_for(lambda: len(set(executors()) - set(killed)) == 2)
    killed.append(min(set(executors()) - set(killed)))
    os.kill(killed[-1], signal.SIGKILL)
    (gates / f"killed-{number}").touch()
assert query.awaitTermination(400), query.lastProgress
rows = spark.read.format("pykafka").options(**options, subscribe=copy).load().orderBy("partition", "offset")
found = {}
for row in rows.collect():
    found.setdefault(row.partition, {})[int(bytes(row.value)[1:])] = None
found = {partition: list(numbers) for partition, numbers in found.items()}
whole = {index: list(range(index, 2000 + 2000 * kills, 2)) for index in (0, 1)}
streamed = {"killed": len(killed), "whole": found == whole, "count": sum(map(len, found.values()))}
found = {"read": read, "written": written, "speculated": speculated, "streamed": streamed}
print("RESULT", json.dumps(found))
spark.stop()
"""


# The second kill is the first once more, at a later batch.
@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_zip_is_enough_and_neither_killed_executors_nor_speculation_cost_a_record(
    peer, kafka, topic, tmp_path, spark_cluster, run_on_two_workers, kills
):
    topics = [f"{topic}-{name}" for name in ("r", "w", "again", "copied", "source", "copy")]
    for name, partitions in zip(topics, (4, 4, 4, 4, 2, 2), strict=True):
        peer.create(kafka, name, partitions)
    records = 2000 + 2000 * kills
    peer.write(kafka.bootstrap_servers, topics[0], peer.numbered(5000, 4))
    peer.write(kafka.bootstrap_servers, topics[4], peer.numbered(records, 2))
    arguments = (kafka.bootstrap_servers, *topics, str(tmp_path), str(kills))
    found = run_on_two_workers(JOB, *arguments, timeout_s=840)
    read = found["read"]
    assert ".zip/" in read["driver"]
    assert all(".zip/" in file for file in read["executors"])
    assert all(folder.startswith(str(spark_cluster.folder)) for folder in read["folders"])
    assert not read["compiled"]
    assert (read["count"], read["distinct"]) == (5000, 5000)
    assert read["tasks"] == 8
    assert found["written"] == {"count": 20_000, "other": 0}
    told = json.loads((tmp_path / "summary.json").read_text())
    assert (told["records"], told["tasks"]) == (20_000, 4)
    speculated = found["speculated"]
    for name in ("read", "write", "stream", "copy"):
        assert {f"{name}-0", f"{name}-1"} <= {path.name for path in tmp_path.iterdir()}  # it ran twice
        assert speculated[name]["all"]
    assert speculated["read"]["count"] == speculated["stream"]["count"] == 5000
    # At least once: what the first attempt had sent is there twice.
    assert all(speculated[name]["count"] >= 5000 for name in ("write", "copy"))
    # At least once, and in order but for records that were written again.
    assert found["streamed"] == {"killed": kills, "whole": True, "count": records}
