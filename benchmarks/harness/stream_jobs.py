"""The streaming jobs of a contender's session."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery

from harness.contender import descendants

Job = dict[str, Any]


def load_source(reader: DataFrameReader | DataStreamReader, job: Job) -> DataFrame:
    """The job's source, read by ``spark.read`` or ``spark.readStream``."""
    reader = reader.format(job["format"]).options(**job.get("options", {}))
    if job.get("schema"):
        reader = reader.schema(job["schema"])
    return reader.load()


def load_stream(spark: SparkSession, job: Job) -> DataFrame:
    frame = load_source(spark.readStream, job)
    return frame.selectExpr(*job["select"]).where(job["where"]) if job.get("select") else frame


def to_sink(frame: DataFrame, job: Job) -> DataStreamWriter:
    sink = job.get("sink") or {"format": "noop", "options": {}}
    return frame.writeStream.format(sink["format"]).options(**sink["options"])


def run_catch_up(spark: SparkSession, job: Job) -> int:
    """Trigger.AvailableNow to its end; how many rows came."""
    checkpoint = tempfile.mkdtemp()
    writer = to_sink(load_stream(spark, job), job).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    shutil.rmtree(checkpoint, ignore_errors=True)
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def run_steady(spark: SparkSession, job: Job) -> list[int]:
    """Micro-batches as fast as they come for ``seconds`` after ``warm_up``: triggerExecution of each that
    read something, in milliseconds."""
    checkpoint = tempfile.mkdtemp()
    writer = to_sink(load_stream(spark, job), job).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    wait_active(query, float(job["warm_up"]))
    first = (query.lastProgress or {"batchId": -1})["batchId"]
    wait_active(query, float(job["seconds"]))
    query.stop()
    shutil.rmtree(checkpoint, ignore_errors=True)
    return [
        int(progress["durationMs"]["triggerExecution"])
        for progress in query.recentProgress
        if progress["numInputRows"] and progress["batchId"] > first
    ]


def run_plan_stream(spark: SparkSession, job: Job) -> list[float]:
    """The median milliseconds of planning (latestOffset, getBatch, queryPlanning) and the whole trigger."""
    checkpoint = tempfile.mkdtemp()
    writer = to_sink(load_stream(spark, job), job).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    shutil.rmtree(checkpoint, ignore_errors=True)
    read = [progress["durationMs"] for progress in query.recentProgress if progress["numInputRows"]]
    names = ("latestOffset", "queryPlanning", "triggerExecution")
    return [sorted(one.get(name, 0) for one in read)[len(read) // 2] for name in names]


def run_memory(spark: SparkSession, job: Job) -> list[dict[str, int]]:
    """``batches`` micro-batches of a single offset each; resident bytes of every Python process of the
    session at each tenth of them."""
    checkpoint = tempfile.mkdtemp()
    writer = to_sink(load_stream(spark, job), job).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    batches, seen = int(job["batches"]), []
    for tenth in range(1, 11):
        while (query.lastProgress or {"batchId": -1})["batchId"] < batches * tenth // 10:
            wait_active(query, 0.2)
        seen.append(resident_bytes())
    query.stop()
    shutil.rmtree(checkpoint, ignore_errors=True)
    return seen


def wait_active(query: StreamingQuery, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not query.isActive:
            raise RuntimeError(f"the query has ended: {query.exception()}")
        time.sleep(0.1)


def resident_bytes() -> dict[str, int]:
    """By kind: the query's own process on the driver, the largest worker."""
    found = {"driver": 0, "worker": 0}
    for pid in descendants(os.getpid()):
        process = Path("/proc", str(pid))
        try:
            command = (process / "cmdline").read_bytes()
            resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
        kind = "driver" if b"python_streaming_source_runner" in command else "worker"
        if kind == "driver" or b"pyspark.daemon" in command:
            found[kind] = max(found[kind], resident)
    return found


STREAM_JOBS = {
    "catch up": run_catch_up,
    "steady": run_steady,
    "plan stream": run_plan_stream,
    "memory": run_memory,
}
