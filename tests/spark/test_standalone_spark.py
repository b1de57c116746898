import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_kafka_native.testing import StandaloneSpark

pytestmark = pytest.mark.spark

PARENT = """
import json, time
from spark_kafka_native.testing import StandaloneSpark
cluster = StandaloneSpark(1, startup_timeout_s=180).__enter__()
print(json.dumps([str(cluster.folder), [p.pid for p in [cluster.master, *cluster.workers]]]), flush=True)
time.sleep(600)
"""


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_nothing_is_left_of_a_cluster():
    """Jobs run on one in test_two_workers.py."""
    with StandaloneSpark(workers=1, startup_timeout_s=180) as cluster:
        folder, pids = cluster.folder, [process.pid for process in [cluster.master, *cluster.workers]]
        assert len(pids) == 2
        assert all(map(running, pids))
    assert not any(map(running, pids))
    assert not folder.exists()


def test_the_cluster_goes_with_a_killed_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    folder, pids = json.loads(parent.stdout.readline())
    parent.kill()
    parent.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(map(running, pids)) or Path(folder).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_misuse_is_told():
    with pytest.raises(ValueError, match="3 workers need 3 hosts, not 1"):
        StandaloneSpark(3, hosts=["127.0.0.1"])
    with pytest.raises(RuntimeError, match="not running"):
        _ = StandaloneSpark().master_url
