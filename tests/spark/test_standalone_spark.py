import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_kafka_native.testing import StandaloneSpark

pytestmark = pytest.mark.spark

# In a process of its own, because a process has one Spark session and the other tests have theirs.
JOB = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master(sys.argv[1])
for setting in sys.argv[2:]:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
import os
def where(rows):
    import pandas
    for _ in rows:
        yield pandas.DataFrame({"directory": [os.getcwd()]})
found = spark.range(100, numPartitions=4).mapInPandas(where, "directory string").distinct().collect()
print(sorted(row.directory for row in found))
spark.stop()
"""

PARENT = """
import json, time
from spark_kafka_native.testing import StandaloneSpark
cluster = StandaloneSpark(1).__enter__()
print(json.dumps([str(cluster.folder), [p.pid for p in [cluster.master, *cluster.workers]]]), flush=True)
time.sleep(600)
"""


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_job_runs_on_two_workers_and_nothing_is_left():
    with StandaloneSpark(workers=2) as cluster:
        folder, pids = cluster.folder, [process.pid for process in [cluster.master, *cluster.workers]]
        settings = [f"{name}={value}" for name, value in cluster.conf.items()]
        command = [sys.executable, "-c", JOB, cluster.master_url, *settings]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr
        directories = json.loads(ran.stdout.replace("'", '"'))
        assert all(directory.startswith(str(folder)) for directory in directories)
        assert all(map(running, pids))
    assert not any(map(running, pids))
    assert not folder.exists()


def test_the_cluster_goes_with_a_killed_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    folder, pids = json.loads(parent.stdout.readline())
    parent.kill()
    parent.communicate(timeout=10)
    deadline = time.monotonic() + 15
    while any(map(running, pids)) or Path(folder).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_misuse_is_told():
    with pytest.raises(ValueError, match="3 workers need 3 hosts, not 1"):
        StandaloneSpark(3, hosts=["127.0.0.1"])
    with pytest.raises(RuntimeError, match="not running"):
        _ = StandaloneSpark().master_url
