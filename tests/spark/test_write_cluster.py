"""Writes from a Spark cluster of two workers that has the package from ``--py-files`` only: pure Python
out of a zip."""

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
from pyspark.sql import SparkSession, functions as F
import spark_kafka_native

bootstrap_servers, topic, summary = sys.argv[1:]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
spark_kafka_native.register(spark)
frame = spark.range(0, 20_000, 1, 4).select(
    F.col("id").cast("string").alias("key"), F.concat(F.lit("value "), "id").alias("value")
)
(
    frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic)
    .option("kafka.compression.type", "zstd").option("summaryPath", summary).mode("append").save()
)
found = (
    spark.read.format("pykafka").option("kafka.bootstrap.servers", bootstrap_servers)
    .option("subscribe", topic).load().select(F.col("key").cast("string"), F.col("value").cast("string"))
)
print("RESULT", json.dumps({"count": found.count(), "other": found.exceptAll(frame).count()}))
spark.stop()
"""


def make_zip(path: Path) -> Path:
    package = Path(spark_kafka_native.__file__).parent
    with zipfile.ZipFile(path, "w") as archive:
        for file in package.rglob("*.py"):
            archive.write(file, Path(package.name) / file.relative_to(package))
    return path


def test_two_workers_write_every_row_once(kafka, topic, tmp_path):
    kafka.create_topic(topic, partitions=4)
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    archive = make_zip(tmp_path / "spark_kafka_native.zip")
    summary = tmp_path / "summary.json"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    with StandaloneSpark(workers=2) as cluster:
        settings = [f"--conf={name}={value}" for name, value in cluster.conf.items()]
        done = subprocess.run(
            [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                *("--master", cluster.master_url, "--py-files", str(archive)),
                *settings,
                *(str(script), kafka.bootstrap_servers, topic, str(summary)),
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
    assert json.loads(line.removeprefix("RESULT ")) == {"count": 20_000, "other": 0}
    told = json.loads(summary.read_text())
    assert (told["records"], told["tasks"]) == (20_000, 4)
