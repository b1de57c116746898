"""A broker with a full disk: a small file system as its log folder, which is made larger later."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.producer.producing import wait_until

from spark_kafka_native.kafka import Consumer, Producer
from spark_kafka_native.kafka.producer.delivery import Delivery
from spark_kafka_native.kafka.producer.errors import DeliveryError
from spark_kafka_native.testing import EmbeddedKafka

pytestmark = pytest.mark.broker

SMALL, LARGE = "size=12m", "size=200m"
SIZE, COUNT = 50_000, 400


def mount(*arguments: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", *arguments], check=True, capture_output=True)


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """One broker; its log folder is a file system of 12 MB."""
    try:
        mount("-o", SMALL, "tmpfs", str(tmp_path))
        subprocess.run(["umount", str(tmp_path)], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a small file system")
    # Indexes are mapped files of 10 MB each otherwise.
    with EmbeddedKafka(properties={"log.index.size.max.bytes": 4096}) as running:
        running.stop(1)
        folder = running.broker(1).folder / "log"
        before = folder.rename(folder.with_name("before"))
        folder.mkdir()
        mount("-o", SMALL, "tmpfs", str(folder))
        try:
            shutil.copytree(before, folder, dirs_exist_ok=True)
            running.restart(1)
            yield running
        finally:
            running.kill(1)
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_broker_with_a_full_disk_loses_no_confirmed_record(kafka: EmbeddedKafka) -> None:
    """The broker ends itself. One producer gives up in its time and says so, another waits for the broker."""
    kafka.create_topic("t")
    kafka.create_topic("u")
    values = [b"%06d" % number + os.urandom(SIZE) for number in range(COUNT)]
    patient = Producer(kafka.bootstrap_servers, delivery_timeout_ms=300_000, linger_ms=0)
    hasty = Producer(
        kafka.bootstrap_servers, delivery_timeout_ms=3_000, request_timeout_ms=2_000, linger_ms=0
    )
    kept: list[Delivery] = []
    for number, value in enumerate(values):
        kept.append(patient.send("t", value=value))
        if number % 4 == 0:
            hasty.send("u", value=value)
    wait_until(lambda: not kafka.broker(1).running)
    with pytest.raises(DeliveryError, match=r"not delivered within delivery\.timeout\.ms=3000"):
        hasty.send("u", value=b"nowhere to go").result(60)
    hasty.close(0)
    assert not all(one.done() for one in kept), "the disk was never full"

    mount("-o", f"remount,{LARGE}", str(kafka.broker(1).folder / "log"))
    kafka.restart(1)
    patient.flush(120)
    patient.close()
    for one in kept:
        one.result(0)
    with Consumer(kafka.bootstrap_servers, topic="t", stop_at_end=True) as consumer:
        assert [record.value for record in consumer] == values
