"""A Spark cluster that has the package from ``--py-files`` only: pure Python out of a zip."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

import spark_kafka_native
from spark_kafka_native.testing import StandaloneSpark

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
import spark_kafka_native

bootstrap_servers, topic = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark_kafka_native.register(spark)
frame = (
    spark.read.format("pykafka").option("kafka.bootstrap.servers", bootstrap_servers)
    .option("subscribe", topic).option("minPartitions", 8).load()
)

def where(batches):
    import pandas
    from spark_kafka_native.kafka.records import kernel
    for batch in batches:
        found = {"file": [spark_kafka_native.__file__], "compiled": [kernel.COMPILED], "n": [len(batch)]}
        yield pandas.DataFrame(found)

executors = frame.mapInPandas(where, "file string, compiled boolean, n long").collect()
rows = frame.select("partition", "offset").collect()
print("RESULT", json.dumps({
    "driver": spark_kafka_native.__file__,
    "executors": sorted({row.file for row in executors}),
    "compiled": any(row.compiled for row in executors),
    "tasks": frame.rdd.getNumPartitions(),
    "count": len(rows),
    "distinct": len(set(rows)),
}))
spark.stop()
"""


def make_zip(path: Path) -> Path:
    package = Path(spark_kafka_native.__file__).parent
    with zipfile.ZipFile(path, "w") as archive:
        for file in package.rglob("*.py"):
            archive.write(file, Path(package.name) / file.relative_to(package))
    return path


def test_a_zip_is_enough_on_a_cluster_of_two_workers(peer, kafka, topic, tmp_path):
    peer.create(kafka, topic, 4)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(5000, 4))
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    archive = make_zip(tmp_path / "spark_kafka_native.zip")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    with StandaloneSpark(workers=2) as cluster:
        settings = [f"--conf={name}={value}" for name, value in cluster.conf.items()]
        done = subprocess.run(
            [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                *("--master", cluster.master_url, "--py-files", str(archive)),
                *settings,
                *(str(script), kafka.bootstrap_servers, topic),
            ],
            env=clean | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found = json.loads(line.removeprefix("RESULT "))
    assert ".zip/" in found["driver"]
    assert all(".zip/" in file for file in found["executors"])
    assert not found["compiled"]
    assert (found["count"], found["distinct"]) == (5000, 5000)
    assert found["tasks"] == 8
