"""``tail`` lets nobody wait: no request twice, and no import of what it does not need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from scripted_broker import ScriptedCluster

from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest

UNNEEDED = (
    "spark_kafka_native.kafka.producer_config",
    "spark_kafka_native.kafka.protocol.api.offset_for_leader_epoch",
    "hmac",
    "json",
    "pathlib",
    "pyspark",
)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(1) as running:
        (tp,) = running.create("t")
        for batch in range(4):
            running.logs[tp].append([b"%d" % (batch * 5 + i) for i in range(5)])
        yield running


def test_the_last_records_take_one_question_about_each_end_of_the_log(cluster: ScriptedCluster) -> None:
    script = (
        "import sys; from spark_kafka_native.cli.main import main; "
        f"code = main(['tail', 't', '-n', '3', '-b', {cluster.bootstrap_servers!r}]); "
        f"print(*[name for name in {UNNEEDED!r} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["17", "18", "19"]
    assert ran.stderr.split() == []
    asked = [one.topics[0].partitions[0].timestamp for one in cluster[1].requests(ListOffsetsRequest)]
    assert sorted(asked) == [-2, -1]
    assert len(cluster[1].requests(MetadataRequest)) == 1
