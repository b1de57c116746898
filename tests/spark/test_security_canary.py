"""Marked secrets through every way in and every error path, then a search of all that Spark has written.

One driver of its own and an executor in another process, with Spark's own redaction and an event log that is not
compressed: the test looks through the output of both with that of their Python workers, the event log, the
checkpoint, and what other users of the machine see of the processes.
"""

# ruff: noqa: E501 - a program in a string

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafka_native.kafka import Admin
from spark_kafka_native.testing import EmbeddedKafka, StandaloneSpark

pytestmark = [pytest.mark.spark, pytest.mark.broker]

MARK = "c4n4ry"
PASSWORD = f"right-{MARK}"

SCRIPT = """
import json, sys, traceback
from pyspark.sql import SparkSession
bootstrap, folder, master, conf = sys.argv[1:]
mark = sys.stdin.readline().strip()
spark = (SparkSession.builder.master(master).config(map=json.loads(conf)).config("spark.ui.enabled", "false")
    .config("spark.task.maxFailures", "1").config("spark.eventLog.enabled", "true").config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", f"file://{folder}/events").config("spark.sql.shuffle.partitions", "1")
    .config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate())
scram = {"kafka.bootstrap.servers": bootstrap, "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "SCRAM-SHA-256", "kafka.sasl.username": "alice", "kafka.sasl.password": f"right-{mark}",
    "kafka.client.id": "visible-client"}
jaas = {k: v for k, v in scram.items() if k not in ("kafka.sasl.username", "kafka.sasl.password")} | {
    "kafka.sasl.jaas.config.secret": "org.apache.kafka.common.security.scram.ScramLoginModule required "
    f'username="alice" password="right-{mark}";'}
bearer = {"kafka.bootstrap.servers": bootstrap, "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "OAUTHBEARER"}
endpoint = bearer | {"kafka.sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:9/x",
    "kafka.sasl.oauthbearer.client.id": "me", "kafka.sasl.oauthbearer.client.secret": f"secret-{mark}"}
pem = f"-----BEGIN PRIVATE KEY-----\\n{mark}\\n-----END PRIVATE KEY-----"
tls = {"kafka.bootstrap.servers": bootstrap, "kafka.security.protocol": "SSL", "kafka.ssl.key.password": f"pass-{mark}",
    "kafka.ssl.keystore.certificate.chain": "no certificate", "kafka.ssl.keystore.key.secret": pem}
ways = {
    "password": (scram, ("write", "read")),
    "jaas": (jaas, ("read",)),
    "tokens": (scram | {"delegationTokens": "true"}, ("write", "read")),
    "wrong password": (scram | {"kafka.sasl.password": f"wrong-{mark}"}, ("write", "read")),
    "odd jaas": (jaas | {"kafka.sasl.jaas.config.secret":
        f'org.apache.kafka.common.security.scram.ScramLoginModule required password="{mark}" {mark}="x";'}, ("read",)),
    "token": (bearer | {"kafka.sasl.oauthbearer.token": f"a.{mark}.c"}, ("write",)),
    "endpoint": (endpoint, ("read",)),
    "key": (tls, ("write",)),
}
# Nobody is there: in vain after this, or after two minutes. Others fail at once, or must have their time.
quick = {"kafka.default.api.timeout.ms": "3000", "kafka.delivery.timeout.ms": "3000", "kafka.max.block.ms": "3000"}
rows = spark.createDataFrame([("v",)], "value string")
for name, (options, done) in ways.items():
    options = (quick if name == "endpoint" else {}) | options
    for what in done:
        try:
            if what == "write":
                rows.write.format("pykafka").options(**options).option("topic", "t").mode("append").save()
            else:
                frame = spark.read.format("pykafka").options(**{"subscribe": "t"} | options).load()
                frame.createOrReplaceTempView("seen")
                frame.explain(True)
                print(name, what, "rows", spark.sql("select count(*) from seen").collect())
        except Exception:
            print("FAILED", name, what)
            traceback.print_exc()
import pickle
from spark_kafka_native.spark.source import KafkaDataSource
source = KafkaDataSource(scram | {"subscribe": "t"})
planned = source.reader(source.schema()).partitions()
print("partitions", len(planned), mark.encode() in pickle.dumps(planned))
import pyarrow as pa
writer = KafkaDataSource(scram | {"topic": "t"}).writer(rows.schema, False)
message = writer.write(iter([pa.RecordBatch.from_pydict({"value": ["v"]})]))
print("message", type(message).__name__, mark.encode() in pickle.dumps(message))
scram["delegationTokens"] = "true"
stream = (spark.readStream.format("pykafka").options(**scram).option("subscribe", "t")
    .option("startingOffsets", "earliest").load().selectExpr("value")
    .writeStream.format("pykafka").options(**scram).option("topic", "out")
    .option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start())
stream.awaitTermination(300)
print("progress", stream.lastProgress)
stream.explain(True)
spark.stop()
"""


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedKafka]:
    properties = {"delegation.token.secret.key": "not-for-production"}
    with EmbeddedKafka(
        listeners=("SASL_PLAINTEXT", "PLAINTEXT"), users={"alice": PASSWORD}, properties=properties
    ) as running:
        running.create_topic("t", 1)
        running.create_topic("out", 1)
        yield running


def living_hmacs(kafka: EmbeddedKafka) -> list[str]:
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers_for("SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    with Admin(settings) as admin:
        return [token.hmac.reveal() for token in admin.describe_delegation_tokens()]


class Watch:
    """Looks at the command lines and environments of all processes, again and again, for the mark."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.looks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            for process in Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        content = (process / name).read_bytes()
                        if MARK.encode() in content:
                            self.found.add(f"{name}: {content!r}")
            self.looks += 1


@pytest.mark.timeout(900)
def test_no_secret_is_found_anywhere(secured: EmbeddedKafka, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with StandaloneSpark(workers=1, startup_timeout_s=180) as cluster, Watch() as watch:
        arguments = [
            secured.bootstrap_servers,
            str(tmp_path),
            cluster.master_url,
            json.dumps(
                dict(cluster.conf) | {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}
            ),
        ]
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments],
            input=MARK,
            capture_output=True,
            text=True,
            timeout=840,
            env=environment,
        )
        of_executors = [path.read_text(errors="replace") for path in cluster.folder.glob("work-1/*/*/std*")]
        of_cluster = b"".join(path.read_bytes() for path in cluster.folder.glob("*") if path.is_file())
    said = ran.stdout + ran.stderr + "".join(of_executors)
    assert ran.returncode == 0, said[-3000:]
    assert any("CoarseGrainedExecutorBackend" in text for text in of_executors)
    assert MARK.encode() not in of_cluster
    assert watch.looks > 0
    assert watch.found == set()
    # It did happen: what should work worked, what should fail did, and a setting that is no secret is in the log.
    assert "password read rows" in said
    assert "jaas read rows" in said
    assert "tokens read rows" in said
    assert sum(line.startswith("FAILED ") for line in said.splitlines()) == 6
    assert "SASL_AUTHENTICATION_FAILED" in said
    assert "partitions 1 False" in said
    assert "message KafkaCommitMessage False" in said
    assert "numInputRows" in said
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(b"visible-client" in content for content in written.values())
    assert any("checkpoint" in str(path) for path in written)
    assert [line for line in said.splitlines() if MARK in line] == []
    assert [str(path) for path, content in written.items() if MARK.encode() in content] == []
    # And the HMAC of the token that reads and streaming writes of the session have shared.
    hmacs = living_hmacs(secured)
    assert len(hmacs) == 1
    for hmac in hmacs:
        assert hmac not in said
        assert hmac.encode() not in of_cluster
        assert [str(path) for path, content in written.items() if hmac.encode() in content] == []
