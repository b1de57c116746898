"""Kafka's own console tools, the other side of interop tests: Java reads what we wrote, and the reverse."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .java import jars, java_command

# Bytes that test values leave alone: the tools print keys, values and headers as they are.
_COLUMN, _LINE, _NULL = "\x1f", "\x1e\n", "\x1d"
_FAILED = re.compile(
    r"Error when sending message"
    # A bare TimeoutException is the end that --timeout-ms asks for.
    r"|terminating consumer process: *\n(?!org\.apache\.kafka\.common\.errors\.TimeoutException\n)"
)
"""What the tools log where they end with exit code 0 although they have failed."""


@dataclass(frozen=True, kw_only=True)
class ConsoleRecord:
    """One record as the console consumer prints it.

    ``timestamp_type`` is ``CreateTime``, ``LogAppendTime`` or, without ``timestamp_ms``, ``NoTimestampType``.
    ``headers`` is Kafka's text of them, ``name:value,name:value``, None when there are none.
    """

    partition: int
    offset: int
    timestamp_type: str
    timestamp_ms: int | None
    headers: bytes | None
    key: bytes | None
    value: bytes | None


def consume(
    bootstrap_servers: str,
    topic: str,
    *,
    max_records: int | None = None,
    timeout_ms: int = 5_000,
    isolation_level: str = "read_uncommitted",
    consumer_properties: Mapping[str, str] | None = None,
) -> list[ConsoleRecord]:
    """Everything in a topic, read by Kafka's console consumer; sorted by partition and offset.

    It ends after ``max_records`` records, or when none came for ``timeout_ms``: also from brokers that do not
    answer. Keys, values and headers must not contain the bytes 0x1d, 0x1e and 0x1f. Raises
    `subprocess.CalledProcessError` with what the tool said.
    """
    arguments = [
        *("--bootstrap-server", bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--timeout-ms", str(timeout_ms), "--isolation-level", isolation_level),
    ]
    if max_records is not None:
        arguments += ["--max-messages", str(max_records)]
    for what in ("timestamp", "partition", "offset", "headers", "key", "value"):
        arguments += ["--formatter-property", f"print.{what}=true"]
    for name, text in {"key.separator": _COLUMN, "line.separator": _LINE, "null.literal": _NULL}.items():
        arguments += ["--formatter-property", f"{name}={text}"]
    for name, text in (consumer_properties or {}).items():
        arguments += ["--command-property", f"{name}={text}"]
    printed = _run_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", arguments)
    records = [_read_record(line) for line in printed.split(_LINE.encode()) if line]
    return sorted(records, key=lambda record: (record.partition, record.offset))


def produce(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[tuple[str | None, str | None]],
    *,
    compression: str = "none",
    producer_properties: Mapping[str, str] | None = None,
) -> None:
    """Write key-value pairs with Kafka's console producer; neither may contain a tab or a line's end.

    Raises `subprocess.CalledProcessError` with what the tool said, also if it could not write a record.
    """
    lines = ["\t".join(_NULL if part is None else part for part in record) for record in records]
    arguments = [
        "--bootstrap-server",
        bootstrap_servers,
        "--topic",
        topic,
        "--compression-codec",
        compression,
    ]
    for name, text in {"parse.key": "true", "key.separator": "\t", "null.marker": _NULL}.items():
        arguments += ["--reader-property", f"{name}={text}"]
    for name, text in (producer_properties or {}).items():
        arguments += ["--command-property", f"{name}={text}"]
    _run_tool(
        "org.apache.kafka.tools.ConsoleProducer", arguments, "".join(f"{line}\n" for line in lines).encode()
    )


def _run_tool(class_name: str, arguments: list[str], given: bytes = b"") -> bytes:
    with tempfile.TemporaryDirectory(prefix="spark-kafka-native-java-") as folder:
        command = [*java_command(Path(folder), jars()), "-Dfile.encoding=UTF-8", class_name, *arguments]
        ran = subprocess.run(command, input=given, capture_output=True, timeout=300)
    said = ran.stderr.decode(errors="replace")
    if ran.returncode or _FAILED.search(said):
        error = subprocess.CalledProcessError(
            ran.returncode or 1, [class_name, *arguments], ran.stdout, ran.stderr
        )
        error.add_note(said[-4000:])
        raise error
    return ran.stdout


def _read_record(line: bytes) -> ConsoleRecord:
    timestamp, partition, offset, headers, key, value = line.split(_COLUMN.encode())
    timestamp_type, _, milliseconds = timestamp.decode().partition(":")
    return ConsoleRecord(
        partition=int(partition.removeprefix(b"Partition:")),
        offset=int(offset.removeprefix(b"Offset:")),
        timestamp_type=timestamp_type.removeprefix("NO_TIMESTAMP") or "NoTimestampType",
        timestamp_ms=int(milliseconds) if milliseconds else None,
        headers=None if headers == b"NO_HEADERS" else headers,
        key=None if key == _NULL.encode() else key,
        value=None if value == _NULL.encode() else value,
    )
