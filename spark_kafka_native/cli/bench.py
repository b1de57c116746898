"""``bench``: measures how fast this machine writes to a cluster and reads from it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

from ..kafka.errors import KafkaError
from .options import (
    add_connection_options,
    add_json_option,
    client_config,
    consumer_configs,
    number,
    producer_configs,
)
from .output import columns_of, note, on_terminal, print_rows, progress_bar, show_progress

if TYPE_CHECKING:
    from ..kafka.admin.admin import Admin
    from ..kafka.config.client_config import ClientConfig

_BLOCK = 10_000


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure writing and reading",
        description="Creates a topic, writes random records to it in columns, reads them back, deletes it.",
    )
    parser.add_argument("--records", type=number(1), default=1_000_000, metavar="N", help="(default 1000000)")
    parser.add_argument(
        "--size", type=number(0, 1_000_000), default=100, metavar="N", help="bytes of a value (default 100)"
    )
    parser.add_argument("--partitions", type=number(1), default=4, metavar="N", help="(default 4)")
    parser.add_argument(
        "--replication-factor", type=number(1, 32_767), metavar="N", help="default: the broker's"
    )
    parser.add_argument("--keep", action="store_true", help="do not delete the topic afterwards")
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print a row for each direction."""
    from ..kafka.admin.admin import Admin
    from ..kafka.admin.topics import NewTopic

    client = client_config(arguments)
    topic = f"pykafka-bench-{uuid.uuid4().hex[:8]}"
    with Admin(client) as admin:
        new = NewTopic(
            name=topic, partitions=arguments.partitions, replication_factor=arguments.replication_factor
        )
        try:
            admin.create_topics([new], exist_ok=True)  # only a lost attempt of its own can have made it
        except KafkaError:
            if admin.router.snapshot.brokers:  # else there is no cluster in which it may have been made
                with contextlib.suppress(KafkaError):
                    admin.delete_topics([topic], missing_ok=True)
            raise
        try:
            written = _write(arguments, client, topic)
            rows = [written, _read(arguments, admin, topic)]
        finally:
            if arguments.keep:
                note(f"The records are in {topic}.")
            else:
                admin.delete_topics([topic])
    print_rows(("way", "records", "seconds", "records_per_s", "mib_per_s"), rows, as_json=arguments.json)
    return 1 if written["records"] < arguments.records else 0


def _write(arguments: argparse.Namespace, client: ClientConfig, topic: str) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa

    from ..kafka.producer.producer import Producer
    from ..kafka.records.columns import RecordColumns

    count = min(_BLOCK, arguments.records)
    noise = pa.py_buffer(os.urandom(count * arguments.size))
    ends = pa.py_buffer((np.arange(count + 1) * arguments.size).astype(np.int32))
    values = pa.Array.from_buffers(pa.binary(), count, [None, ends, noise])
    _, config = producer_configs(arguments)
    started = time.monotonic()
    with Producer(client, config) as producer:
        sent = 0
        while sent < arguments.records:
            length = min(count, arguments.records - sent)
            part = values[:length]
            producer.send_columns(RecordColumns(length=length, value=part), topic)
            sent += length
            _show("writing", sent, arguments.records)
        producer.flush()
        seconds = time.monotonic() - started
        failed = producer.stats().failed_records
    if failed:
        note(f"warning: {failed} records were not written")
    return _row("write", sent - failed, seconds, arguments.size)


def _read(arguments: argparse.Namespace, admin: Admin, topic: str) -> dict[str, Any]:
    from ..kafka.consumer.fetcher import Fetcher
    from .offsets import parse_offset_spec, resolve_offset_spec
    from .options import partitions_of

    _, config = consumer_configs(arguments)
    found = partitions_of(admin.router, [topic])
    ends = resolve_offset_spec(admin.router, found, parse_offset_spec("latest"))
    started, read = time.monotonic(), 0
    for fetched in Fetcher(admin.router, config).fetch({tp: (0, ends[tp]) for tp in found}):
        read += fetched.columns.length
        _show("reading", read, arguments.records)
    return _row("read", read, time.monotonic() - started, arguments.size)


def _row(way: str, records: int, seconds: float, size: int) -> dict[str, Any]:
    rate = records / max(seconds, 1e-9)
    return {
        "way": way,
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_s": round(rate),
        "mib_per_s": round(rate * size / 2**20, 1),
    }


def _show(what: str, done: int, of: int) -> None:
    if on_terminal(sys.stderr):
        line = "" if done >= of else progress_bar(what, done / of, columns_of(sys.stderr))
        show_progress(line, sys.stderr)
