"""The broker of one cell of the matrix, of the release that SPARK_KAFKA_NATIVE_KAFKA_VERSION names.

python .ci/matrix_broker.py

Prints its bootstrap servers, and runs until its standard input ends. A release before 3.3 runs with a
ZooKeeper: its KRaft is a preview, and that of 2.8 knows no transactions.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from spark_kafka_native.testing import EmbeddedKafka
from spark_kafka_native.testing.broker_files import HOST, write_properties
from spark_kafka_native.testing.errors import BrokerStartError
from spark_kafka_native.testing.java import KAFKA_VERSION, find_java, jars
from spark_kafka_native.testing.processes import EmbeddedService, Guard, free_ports

FIRST_KRAFT = (3, 3)
START_TIMEOUT_S = 600
STARTED = "[KafkaServer id=1] started"


class ZookeeperKafka(EmbeddedService):
    """One broker and its ZooKeeper, both from the jars of the release."""

    _folder_prefix = "spark-kafka-native-zookeeper-"
    bootstrap_servers = ""

    def _start(self, guard: Guard) -> None:
        folder = guard.folder
        java = java_command(folder)
        zookeeper, port = free_ports(2)
        server = [*java, "org.apache.zookeeper.server.ZooKeeperServerMain"]
        guard.start([*server, str(zookeeper), str(folder / "zookeeper")], output=folder / "zookeeper.output")
        properties, output = folder / "server.properties", folder / "output"
        settings = broker_properties(f"{HOST}:{zookeeper}", f"PLAINTEXT://{HOST}:{port}", folder / "log")
        properties.write_text(write_properties(settings), encoding="ascii")
        broker = guard.start([*java, "kafka.Kafka", str(properties)], output=output)
        deadline = time.monotonic() + START_TIMEOUT_S
        while STARTED not in (said := output.read_text(encoding="utf-8", errors="replace")):
            if broker.returncode is not None or time.monotonic() > deadline:
                raise BrokerStartError(f"the broker of Kafka {KAFKA_VERSION} did not start", said)
            time.sleep(0.1)
        self.bootstrap_servers = f"{HOST}:{port}"


def java_command(folder: Path) -> list[str]:
    """The start of both command lines."""
    return [
        str(find_java().executable),
        *("-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Djava.io.tmpdir={folder}"),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaServer=info",  # says STARTED
        "-Dzookeeper.admin.enableServer=false",  # it would take the port 8080
        *("-cp", os.pathsep.join(str(jar) for jar in jars())),
    ]


def broker_properties(zookeeper: str, listener: str, log_folder: Path) -> dict[str, str]:
    """Those of one broker alone."""
    return {
        "broker.id": "1",
        "zookeeper.connect": zookeeper,
        # On a busy machine either may stand still for seconds, and the broker's session must survive that.
        "zookeeper.connection.timeout.ms": str(START_TIMEOUT_S * 1000),
        "zookeeper.session.timeout.ms": "60000",
        "listeners": listener,
        "log.dirs": str(log_folder),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "5",
        "group.initial.rebalance.delay.ms": "0",
    }


def broker() -> EmbeddedKafka | ZookeeperKafka:
    """The broker, which is not started yet."""
    major, minor, *_ = KAFKA_VERSION.split(".")
    if (int(major), int(minor)) < FIRST_KRAFT:
        return ZookeeperKafka()
    return EmbeddedKafka(startup_timeout_s=START_TIMEOUT_S)


if __name__ == "__main__":
    with broker() as started:
        print(started.bootstrap_servers, flush=True)
        sys.stdin.read()
