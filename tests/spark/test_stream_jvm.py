"""Spark's own connector and `pykafka` take turns on one checkpoint: each goes on where the other stopped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_native.testing import JarsUnavailableError
from spark_kafka_native.testing.java import cache_folder, locked

pytestmark = [pytest.mark.broker, pytest.mark.spark]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TURNS = """
import glob, json, os, sys
from pyspark.sql import SparkSession

servers, topic, checkpoint, jars = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.jars", jars).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

def run(name, crash=False, checkpoint=checkpoint, start="earliest"):
    seen = []
    def take(frame, batch):
        seen.extend(int(bytes(row.value)) for row in frame.collect())
        if crash:
            raise RuntimeError("crash")
    frame = (spark.readStream.format(name)
        .option("kafka.bootstrap.servers", servers).option("subscribe", topic)
        .option("startingOffsets", start).load())
    query = (frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        .trigger(availableNow=True).start())
    try:
        assert query.awaitTermination(300)
    except Exception as error:
        return sorted(seen), str(error)
    return sorted(seen)

def write(start, stop):
    rows = spark.range(start, stop).selectExpr("cast(id as string) AS value")
    writer = rows.write.format("pykafka").option("kafka.bootstrap.servers", servers)
    writer.option("topic", topic).mode("append").save()

found = []
for number, name in enumerate(["pykafka", "kafka", "pykafka"]):
    write(number * 5, number * 5 + 5)
    # A batch that one of them has planned and not completed is read by the other.
    if number > 0:
        other = "kafka" if name == "pykafka" else "pykafka"
        found.append(run(other, crash=True)[0])
    found.append(run(name))
first = checkpoint + "-first"
run("kafka", crash=True, checkpoint=first)
refused = run("pykafka", checkpoint=first)
print("RESULT " + json.dumps({"found": found, "refused": refused}))
"""


@pytest.fixture(scope="session")
def connector_jars():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from harness.jvm import resolve_jars
    finally:
        sys.path.remove(str(BENCHMARKS))
    folder = cache_folder() / "jvm-connector"
    with locked(cache_folder() / "jvm-connector.lock"):
        if len(list(folder.glob("*.jar"))) < 4:
            try:
                resolve_jars(folder)
            except (JarsUnavailableError, subprocess.TimeoutExpired) as error:
                pytest.skip(f"the jars of Spark's own connector could not be fetched: {str(error)[-500:]}")
    return ",".join(map(str, folder.glob("*.jar")))


@pytest.mark.timeout(900)
def test_each_continues_the_other(peer, kafka, topic, tmp_path, script_environment, connector_jars):
    peer.create(kafka, topic, 2)
    script = tmp_path / "turns.py"
    script.write_text(TURNS)
    done = subprocess.run(
        [sys.executable, script, kafka.bootstrap_servers, topic, tmp_path / "checkpoint", connector_jars],
        env=script_environment,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    result = json.loads(line.removeprefix("RESULT "))
    zero, one, two = (list(range(start, start + 5)) for start in (0, 5, 10))
    assert result["found"] == [zero, one, one, two, two]
    # Where the JVM connector's first batch starts is known to it only.
    seen, error = result["refused"]
    assert seen == []
    assert "planned by Spark's own connector and not completed" in error
