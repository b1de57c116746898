"""A contender's process: one warm Spark session that takes jobs as JSON lines and answers with their
seconds.

Started by `contender.Contender`. Between jobs it waits in a read, and so costs the other contenders
nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, expr

from harness.stream_jobs import STREAM_JOBS, load_source
from harness.values import VALUES

Job = dict[str, Any]


def open_session(conf: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def load(spark: SparkSession, job: Job) -> DataFrame:
    frame = load_source(spark.read, job)
    if job.get("expressions"):
        frame = frame.selectExpr(*job["expressions"])
    return frame.select(*job["select"]) if job.get("select") else frame


def drop(frame: DataFrame) -> None:
    """Every row through the whole plan, and nothing after it."""
    frame.write.format("noop").mode("overwrite").save()


def run_read(spark: SparkSession, job: Job) -> Any:
    return drop(load(spark, job))


def run_collect(spark: SparkSession, job: Job) -> int:
    return len(load(spark, job).collect())


def run_count(spark: SparkSession, job: Job) -> int:
    return load(spark, job).count()


def run_plan(spark: SparkSession, job: Job) -> int:
    """Plan the partitions and stop there: the number of tasks."""
    return int(load(spark, job)._jdf.queryExecution().toRdd().getNumPartitions())


def run_source(spark: SparkSession, job: Job) -> int:
    """Cache ``rows`` rows of key and value as `source` and a tenth of them as `sample`: what writers read.

    Spark repeats the distinct values: a driver that is handed gigabytes of rows runs out of its heap.
    """
    spark.catalog.clearCache()
    rows, size = int(job["rows"]), int(job["value_bytes"])
    distinct = min(rows, int(job["distinct_bytes"]) // size)
    values = pa.array(VALUES[job["values"]](distinct, size), pa.binary())
    pool = spark.createDataFrame(pa.table({"number": np.arange(distinct), "value": values}))
    frame = (
        spark.range(0, rows, 1, int(job["tasks"]))
        .join(broadcast(pool), expr(f"id % {distinct} = number"))
        .select(expr("unhex(lpad(hex(id), 16, '0'))").alias("key"), "value")
        .persist()
    )
    frame.createOrReplaceTempView("source")
    sample = frame.sample(0.1, seed=1).persist()
    sample.createOrReplaceTempView("sample")
    return frame.count() + sample.count()


def run_typed_source(spark: SparkSession, job: Job) -> int:
    """Cache ``rows`` rows with one column, the struct ``value``, as `typed`."""
    texts = VALUES["json"](min(int(job["rows"]), 100_000), int(job["value_bytes"]))
    values = pa.array([text.decode() for text in texts])
    pool = spark.createDataFrame(pa.table({"number": np.arange(len(values)), "text": values}))
    frame = (
        spark.range(0, int(job["rows"]), 1, 4)
        .join(broadcast(pool), expr(f"id % {len(values)} = number"))
        .select(expr(f"from_json(text, '{job['struct']}') as value"))
        .persist()
    )
    frame.createOrReplaceTempView("typed")
    return frame.count()


def run_write(spark: SparkSession, job: Job) -> None:
    frame = spark.table(job["table"])
    if job.get("expressions"):
        frame = frame.selectExpr(*job["expressions"])
    frame.write.format(job["format"]).options(**job.get("options", {})).mode("append").save()


def run_drop_source(spark: SparkSession, job: Job) -> None:
    drop(spark.table(job["table"]))


JOBS = {
    "read": run_read,
    "collect": run_collect,
    "count": run_count,
    "plan": run_plan,
    "source": run_source,
    "typed source": run_typed_source,
    "write": run_write,
    "drop source": run_drop_source,
    **STREAM_JOBS,
}


def register_ceiling(spark: SparkSession) -> None:
    from harness.ceiling import CeilingSource

    spark.dataSource.register(CeilingSource)


def register_pykafka(spark: SparkSession) -> None:
    from spark_kafka_native import register

    register(spark)


def register_stream_floor(spark: SparkSession) -> None:
    from harness.stream_floor import StreamFloorSource

    spark.dataSource.register(StreamFloorSource)


REGISTER = {
    "ceiling": register_ceiling,
    "pykafka": register_pykafka,
    "stream_floor": register_stream_floor,
}


def take_jobs(spark: SparkSession, answers: TextIO) -> None:
    for line in sys.stdin:
        job = json.loads(line)
        started = time.perf_counter()
        result = JOBS[job["job"]](spark, job)
        answer = {"seconds": time.perf_counter() - started, "result": result}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    # Spark and its workers print to stdout as they please: answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    spark = open_session(settings["conf"])
    for source in settings["sources"]:
        REGISTER[source](spark)
    print(json.dumps({"version": spark.version}), file=answers, flush=True)
    take_jobs(spark, answers)


if __name__ == "__main__":
    main()
