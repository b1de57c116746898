"""Files that are prepared once per machine so that a broker starts fast.

Both are by-products of a real format and a real first start, kept in the cache beside the jars:
- ``bootstrap.checkpoint``: Kafka's feature levels as StorageTool writes them. They depend on the release
  alone, not on cluster or node, so a copy saves a second per broker.
- ``classes-<java>.jsa``: a class-data archive (JEP 350), about a second of CPU per start saved. The JVM
  checks by itself that it fits and goes on without it where it does not.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .broker_properties import ClusterSettings, Ports, build_properties, scram_records, write_properties
from .cache import locked
from .errors import BrokerStartError
from .guard import Guard
from .jars import jars, kafka_folder
from .java import Java, find_java
from .ports import free_ports

STARTED = "Kafka Server started"
_LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",  # says STARTED
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


@dataclass(frozen=True, kw_only=True)
class BrokerImage:
    """What every broker on this machine starts from."""

    java: Java
    classpath: str
    checkpoint: Path
    archive: Path | None

    def command(self, properties: Path, jvm_options: Sequence[str]) -> list[str]:
        """The command line of a broker in the foreground."""
        archive = (
            [f"-XX:SharedArchiveFile={self.archive}", "-Xshare:auto", "-Xlog:disable"] if self.archive else []
        )
        return [
            str(self.java.executable),
            *archive,
            *_quiet(properties.parent),
            *jvm_options,
            *_LOGGING,
            *("-cp", self.classpath, "kafka.Kafka", str(properties)),
        ]

    def format(self, log_folder: Path, cluster_id: str, node_id: int, checkpoint: Path | None = None) -> None:
        """Make ``log_folder`` what ``StorageTool format`` makes of it (KIP-858 has meta.properties)."""
        log_folder.mkdir(parents=True)
        meta = {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(node_id),
            "directory.id": random_id(),
        }
        (log_folder / "meta.properties").write_text(write_properties(meta), encoding="ascii")
        shutil.copyfile(checkpoint or self.checkpoint, log_folder / "bootstrap.checkpoint")


def _quiet(folder: Path) -> list[str]:
    """Leave nothing elsewhere: codecs are unpacked into the temp folder, and a killed JVM removes none."""
    return ["-XX:-UsePerfData", f"-Djava.io.tmpdir={folder}"]


def random_id() -> str:
    """A UUID the way Kafka writes them: 22 characters of URL-safe base64, never with a dash in front."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def broker_image() -> BrokerImage:
    """The image for this machine's Java.

    Made on the first call, under a lock, and read from the cache afterwards.
    """
    java, folder = find_java(), kafka_folder()
    classpath = os.pathsep.join(str(jar) for jar in jars())
    checkpoint, archive = folder / "bootstrap.checkpoint", folder / f"classes-{java.version}.jsa"
    if not checkpoint.exists() or not archive.exists():
        with locked(folder / "image.lock"):
            if not checkpoint.exists():
                _write_checkpoint(java, classpath, checkpoint, {})
            if not archive.exists():
                _write_archive(java, classpath, checkpoint, archive)
    usable = archive if archive.exists() and archive.stat().st_size else None
    return BrokerImage(java=java, classpath=classpath, checkpoint=checkpoint, archive=usable)


def write_scram_checkpoint(image: BrokerImage, path: Path, users: Mapping[str, str]) -> None:
    """A checkpoint that holds SCRAM credentials too.

    These are salted, so StorageTool runs for them (about 1 s).
    """
    _write_checkpoint(image.java, image.classpath, path, users)


def _write_checkpoint(java: Java, classpath: str, path: Path, users: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="spark-kafka-native-format-") as name:
        folder = Path(name)
        properties = folder / "server.properties"
        # Named in the file, but never opened.
        ports = Ports(listeners={"PLAINTEXT": 1}, internal=2, controller=3)
        settings = ClusterSettings(ports={1: ports})
        properties.write_text(
            write_properties(build_properties(settings, 1, str(folder / "log"))), encoding="ascii"
        )
        scram = [argument for record in scram_records(users) for argument in ("--add-scram", record)]
        command = [
            *(
                str(java.executable),
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                *_LOGGING,
                *_quiet(folder),
            ),
            *("-cp", classpath, "kafka.tools.StorageTool"),
            *("format", "-t", random_id(), "-c", str(properties)),
        ]
        # A JVM reads its arguments in the locale: without one, accounts of any script would be mangled.
        ran = subprocess.run(
            [*command, *scram],
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        made = folder / "log" / "bootstrap.checkpoint"
        if ran.returncode or not made.exists():
            raise BrokerStartError("StorageTool could not format a broker's folder", ran.stdout + ran.stderr)
        _publish(made, path)


def _write_archive(java: Java, classpath: str, checkpoint: Path, archive: Path) -> None:
    """Start a broker once, with the archive written as it stops.

    An empty file records that it did not work out.
    """
    guard = Guard("spark-kafka-native-archive-")
    try:
        dumped = guard.folder / archive.name
        image = BrokerImage(java=java, classpath=classpath, checkpoint=checkpoint, archive=None)
        ports = free_ports(3)
        settings = ClusterSettings(
            ports={1: Ports(listeners={"PLAINTEXT": ports[0]}, internal=ports[1], controller=ports[2])}
        )
        properties, log, output = (guard.folder / part for part in ("server.properties", "log", "output"))
        properties.write_text(write_properties(build_properties(settings, 1, str(log))), encoding="ascii")
        image.format(log, random_id(), 1)
        options = ["-Xmx512m", "-XX:+UseSerialGC", f"-XX:ArchiveClassesAtExit={dumped}"]
        process = guard.start(image.command(properties, options), output=output)
        _await_start(output)
        process.send(signal.SIGTERM)
        process.wait(60)
        if not dumped.exists():
            dumped.touch()
        _publish(dumped, archive)
    except TimeoutError:
        archive.touch()
    finally:
        guard.close()


def _await_start(output: Path, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while STARTED not in output.read_text(encoding="utf-8", errors="replace"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no broker after {timeout_s:g} s")
        time.sleep(0.1)


def _publish(made: Path, path: Path) -> None:
    """Move a finished file into the cache in one step, across file systems too."""
    partial = path.with_name(path.name + ".partial")
    shutil.copyfile(made, partial)
    partial.replace(path)
