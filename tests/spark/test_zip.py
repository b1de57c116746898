"""A driver and a worker that have the package from a zip, and from nowhere else.

A virtual environment would have it by a `.pth` file in its folder of packages; in PYTHONPATH that folder has
all packages but this one.
"""

import json
import os
import subprocess
import sys
import sysconfig

import pytest

from spark_kafka_native.testing import MockBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

JOB = """
import json, sys, tempfile
from pyspark.sql import SparkSession

zipped, bootstrap_servers = sys.argv[1:]
try:
    import spark_kafka_native
    raise SystemExit("it is there without the zip")
except ImportError:
    pass
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.addPyFile(zipped)
import spark_kafka_native
before = dict(spark.sparkContext.environment)
spark_kafka_native.register(spark)
kafka = {"kafka.bootstrap.servers": bootstrap_servers}
rows = spark.range(3).selectExpr("cast(id as string) as value")
rows.write.format("pykafka").options(**kafka, topic="rows").mode("append").save()
stream = spark.readStream.format("pykafka").options(**kafka, subscribe="rows", startingOffsets="earliest")
writer = stream.load().select("value").writeStream.format("pykafka").options(**kafka, topic="copies")
query = writer.option("checkpointLocation", tempfile.mkdtemp()).trigger(availableNow=True).start()
query.awaitTermination(200)
found = {"read": spark.read.format("pykafka").options(**kafka, subscribe="rows").load().count()}
found |= {"streamed": query.lastProgress["numInputRows"], "same": before == spark.sparkContext.environment}
print("RESULT", json.dumps(found | {"file": spark_kafka_native.__file__}))
"""


def test_batches_and_streams_take_the_package_from_a_zip(tmp_path):
    """Streams did not: Spark has the process that plans them look in a folder of its own."""
    zipped = tmp_path / "package.zip"
    command = [sys.executable, "-m", "spark_kafka_native", "zip", "--output", str(zipped)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (tmp_path / "job.py").write_text(JOB)
    python = os.path.realpath(sys.executable)
    environment = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib"), "PYSPARK_PYTHON": python}
    with MockBroker() as broker:
        broker.create_topic("rows")
        broker.create_topic("copies")
        job = subprocess.run(
            [python, "job.py", str(zipped), broker.bootstrap_servers],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        assert job.returncode == 0, job.stdout + job.stderr
        (line,) = (one for one in job.stdout.splitlines() if one.startswith("RESULT "))
        found = json.loads(line.removeprefix("RESULT "))
        assert "package.zip/" in found.pop("file")
        assert found == {"read": 3, "streamed": 3, "same": True}
        assert sorted(record.value for record in broker.records("copies")) == [b"0", b"1", b"2"]
