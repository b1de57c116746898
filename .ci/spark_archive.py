"""Write the archive of classes from which Spark's JVMs start in half of the CPU time, once per environment.

What the JVM of a small job has loaded when it ends is what those of the tests load first. Where that can't
be had, they start without it.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.hooks.spark_jvm import QUICK, archive

JOB = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
java = spark.sparkContext._gateway.proc
frame = spark.range(1000).select((F.col("id") % 7).alias("key"), F.lit("value").alias("value"))
frame.groupBy("key").count().orderBy("key").collect()
frame.mapInPandas(lambda batches: batches, frame.schema).collect()
stream = spark.readStream.format("rate").load().writeStream.trigger(once=True).format("noop")
stream.start().awaitTermination(120)
spark.stop()
java.stdin.close()
java.wait(240)
"""

made = archive()
if not made.exists():
    partial = made.with_suffix(".partial")
    options = f"{QUICK} -XX:ArchiveClassesAtExit={partial}"
    environment = os.environ | {"SPARK_SUBMIT_OPTS": options}
    try:
        command = [sys.executable, "-c", JOB]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300).stderr
    except subprocess.TimeoutExpired as error:
        said = str(error)
    if partial.exists():
        partial.replace(made)
    else:
        print(f"No archive of Spark's classes, tests take longer: {said[-2000:]}", file=sys.stderr)
