"""A Spark cluster that has the package from ``--py-files`` only: pure Python out of a zip."""

import pytest

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


def test_a_zip_is_enough_on_a_cluster_of_two_workers(peer, kafka, topic, run_on_two_workers):
    peer.create(kafka, topic, 4)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(5000, 4))
    found = run_on_two_workers(SCRIPT, kafka.bootstrap_servers, topic)
    assert ".zip/" in found["driver"]
    assert all(".zip/" in file for file in found["executors"])
    assert not found["compiled"]
    assert (found["count"], found["distinct"]) == (5000, 5000)
    assert found["tasks"] == 8
