"""One cell of the matrix: a batch, a stream and an exactly-once stream, each compared record by record.

python .ci/matrix_cell.py BOOTSTRAP_SERVERS

Prints one line of JSON: what passed, and the error of what did not.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

from spark_kafka_native import register
from spark_kafka_native.kafka import Admin, NewTopic

ROWS, PARTITIONS = 2_000, 3
EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once"}


class Cell:
    """A Spark session, a cluster, and a topic for each step."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path) -> None:
        self.spark, self.servers, self.folder = spark, servers, folder
        names = ["in", "batch", "stream", "once"]
        self.topics = {name: f"{name}-{uuid.uuid4().hex[:8]}" for name in names}
        with Admin(servers) as admin:
            admin.create_topics([NewTopic(topic, PARTITIONS) for topic in self.topics.values()])
        self.wanted = sorted((f"key-{row % 50}", f"value-{row}") for row in range(ROWS))

    def options(self, **given: str) -> dict[str, str]:
        """Those of all reads and writes, and ``given``."""
        return {"kafka.bootstrap.servers": self.servers, **given}

    def write(self, name: str, **given: str) -> None:
        """Some records with known keys and values."""
        rows = self.spark.range(ROWS).selectExpr("concat('key-', id % 50) key", "concat('value-', id) value")
        options = self.options(topic=self.topics[name], **given)
        rows.repartition(2).write.format("pykafka").options(**options).mode("append").save()

    def check(self, name: str) -> None:
        """Read a topic: it has the records that were written, each once."""
        options = self.options(subscribe=self.topics[name], **{"kafka.isolation.level": "read_committed"})
        read = self.spark.read.format("pykafka").options(**options).load()
        rows = read.selectExpr("string(key) key", "string(value) value").collect()
        found = sorted((row.key, row.value) for row in rows)
        assert found == self.wanted, f"{len(found)} records, and not the {ROWS} that were written"

    def batch(self) -> None:
        """Write and read."""
        self.write("batch")
        self.check("batch")

    def copy(self, name: str, **given: str) -> None:
        """A query that copies the first topic, and the same query again, which finds nothing new."""
        source = self.options(subscribe=self.topics["in"], startingOffsets="earliest")
        sink = self.options(topic=self.topics[name], **given)
        for _ in range(2):
            read = self.spark.readStream.format("pykafka").options(**source).load().select("key", "value")
            to: Any = read.writeStream.format("pykafka").options(**sink)
            to = to.option("checkpointLocation", str(self.folder / name))
            to.trigger(availableNow=True).start().awaitTermination()
        self.check(name)

    def stream(self) -> None:
        """At least once."""
        self.write("in")
        self.copy("stream")

    def exactly_once(self) -> None:
        """In transactions."""
        self.copy("once", **EXACTLY_ONCE)


def main() -> None:
    """Run the steps, the later ones also after a failure."""
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master("local[2]").appName("matrix")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    outcome = {}
    with tempfile.TemporaryDirectory() as folder:
        cell = Cell(spark, sys.argv[1], Path(folder))
        for step in (cell.batch, cell.stream, cell.exactly_once):
            try:
                step()
                outcome[step.__name__] = "passed"
            except Exception as error:  # noqa: BLE001 - the table shows it
                outcome[step.__name__] = f"{type(error).__name__}: {str(error)[:300]}"
    spark.stop()
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
