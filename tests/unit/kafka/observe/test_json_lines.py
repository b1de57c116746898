"""Events in a file, whatever becomes of the file."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_native.kafka.consumer.consumer_events import WorkStatus, WorkUnit
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.observe.events import EventSource
from spark_kafka_native.kafka.observe.exporters import JsonLines
from spark_kafka_native.kafka.producer.errors import DeliveryStatus
from spark_kafka_native.kafka.producer.settling.completion import Acknowledgement

TP = TopicPartition("orders", 3)


def unit(offset: int) -> WorkUnit:
    return WorkUnit(
        topic_partition=TP,
        status=WorkStatus.FETCHED,
        from_offset=offset,
        until_offset=offset + 5,
        records=4,
        at=1.5,
    )


def test_each_event_is_a_line(tmp_path: Path) -> None:
    path, source = tmp_path / "units.jsonl", EventSource[Any]()
    path.write_text("{}\n")
    with JsonLines(path, source.subscribe(10)) as lines:
        source.emit(unit(0))
        source.emit(unit(5))
    lines.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found[0] == {}
    assert found[1] == {
        "event": "work_unit",
        "at": 1.5,
        "topic": "orders",
        "partition": 3,
        "status": "fetched",
        "from_offset": 0,
        "until_offset": 5,
        "length": 5,
        "records": 4,
    }
    assert found[2]["from_offset"] == 5
    assert lines.failures == 0


def test_an_acknowledgement_as_plain_values() -> None:
    told = Acknowledgement(
        topic_partition=TP,
        status=DeliveryStatus.PERSISTED,
        records=3,
        bytes=100,
        base_offset=40,
        error=None,
        seconds=0.25,
        at=1.5,
    )
    assert told.to_dict() == {
        "event": "acknowledgement",
        "at": 1.5,
        "topic": "orders",
        "partition": 3,
        "status": "persisted",
        "records": 3,
        "bytes": 100,
        "base_offset": 40,
        "last_offset": 42,
        "seconds": 0.25,
        "error": None,
    }


class SlowFile(io.StringIO):
    """Takes nothing until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.asked.set()
        assert self.let.wait(60)
        return super().write(text)


def test_what_a_slow_file_misses_is_said_in_it() -> None:
    source, file = EventSource[Any](), SlowFile()
    with JsonLines(file, source.subscribe(2)):
        source.emit(unit(0))
        assert file.asked.wait(60)
        for number in range(1, 6):  # nobody waits for the file
            source.emit(unit(number))
        file.let.set()
    found = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [one.get("from_offset") for one in found] == [0, None, 4, 5]
    assert found[1] == {"event": "dropped", "count": 3}
    assert not file.closed


class FullDisk(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError("no space left on device")


def test_a_full_disk_is_logged_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    source = EventSource[Any]()
    with JsonLines(FullDisk(), source.subscribe(10)) as lines:
        for number in range(3):
            source.emit(unit(number))
    assert lines.failures == 3
    assert len([one for one in caplog.records if "can't be written" in one.message]) == 1
