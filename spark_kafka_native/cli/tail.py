"""``tail``: shows records of topics, from any offset, up to the end or continuously.

The second half is pure: the formats of a printed record are text, raw, hex, JSON, and a format given by the
user.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ..kafka.errors import ConfigError, DeadlineExceededError, KafkaError
from ..kafka.model import HeaderKeys, OffsetAt
from .offsets import OFFSET_SPECS, OffsetResolver, OffsetSpec, parse_offset_spec
from .options import (
    add_connection_options,
    add_topics,
    consumer_configs,
    given_topics,
    group_configs,
    number,
    partitions_of,
    topics_matching,
    wrong_usage,
)
from .output import on_terminal, printable

if TYPE_CHECKING:
    from ..kafka.cluster.router import Router
    from ..kafka.config.client_config import ConsumerConfig
    from ..kafka.consumer.fetched_records import FetchedRecords
    from ..kafka.consumer.fetcher import FetchRun
    from ..kafka.model import IsolationLevel, TopicPartition

_LAST = 10
_FIRST_FETCH_BYTES = 256 * 1024
_REFRESH_MS = 10_000
"""The interval between looks for new partitions and late ones: a person waits for a record that was just
written, and one request in this time is little to a broker."""
_LATE_MS = 1_000
"""The limit for a partition that does not answer: the records of the others wait for it."""
FORMAT_HELP = (
    "%%t topic, %%p partition, %%o offset, %%T timestamp (milliseconds), %%k key, %%s value, %%K and %%S "
    "their lengths (-1 for null), %%h headers, %%%% a percent sign, \\n \\t \\\\ \\xNN"
)
_TOKEN = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Headers = Sequence[tuple[str, bytes | None]]


class ShownRecord(NamedTuple):
    """A record with its topic, partition and offset."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


Render = Callable[[ShownRecord], bytes]


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tail",
        help="show records of topics",
        description=f"Shows the last {_LAST} records of each partition, or those from an offset on. With -f "
        "it goes on with new records, also of partitions that are added. The records of one partition are in "
        "order.",
    )
    add_topics(parser)
    parser.add_argument(
        "-p",
        "--partition",
        type=number(0),
        action="append",
        metavar="N",
        help="only this partition; repeatable",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--from", type=parse_offset_spec, metavar="OFFSET", dest="start", help=OFFSET_SPECS)
    where.add_argument(
        "-n",
        "--lines",
        type=number(0),
        metavar="N",
        help=f"the last N records of each partition (default {_LAST})",
    )
    where.add_argument(
        "-g", "--group", help="read as a member of this group from its committed offsets, and commit those "
        "of printed records; goes on until it is stopped, or -c",
    )  # fmt: skip
    parser.add_argument(
        "--until", type=parse_offset_spec, metavar="OFFSET", help="stop before this offset (default the end)"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new records")
    parser.add_argument("-c", "--count", type=number(1), metavar="N", help="stop after N records in total")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "-o", "--output", choices=tuple(_RENDERS),
        help="text: where, when, key and value (default on a terminal); raw: values as they are, each with a "
        "newline (default in a pipe); hex; json: one object a line",
    )  # fmt: skip
    shown.add_argument("--json", action="store_const", const="json", dest="output", help="as -o json")
    shown.add_argument("--format", metavar="TEXT", help=FORMAT_HELP)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the records."""
    if arguments.follow and arguments.until is not None:
        wrong_usage(arguments, "--follow goes on and on: it has no --until")
    names, render = given_topics(arguments), _render(arguments)
    if arguments.group is not None:
        if arguments.until is not None or arguments.partition is not None:
            wrong_usage(arguments, "--group: the group says which partitions are read, and there is no end")
        _show_group(names, arguments, render)
        return 0
    from ..kafka.cluster.router import Router

    client, consumer = consumer_configs(arguments)
    router = Router(client)
    try:
        whole = _show(router, names, consumer, arguments, render)
    finally:
        router.close()
    return 0 if whole else 1


def _render(arguments: argparse.Namespace) -> Render:
    terminal = on_terminal()
    if arguments.format is not None:
        try:
            render = parse_format(arguments.format)
        except ValueError as error:
            wrong_usage(arguments, f"--format: {error}")
        return escaped(render) if terminal else render
    output = arguments.output or ("text" if terminal else "raw")
    return escaped(raw_line) if output == "raw" and terminal else _RENDERS[output]


def _show_group(names: list[str], arguments: argparse.Namespace, render: Render) -> None:
    """Print as a member of a group. The offsets of printed records are committed; a record that may not have
    been printed is read again.
    """
    from ..kafka.cluster.router import Router
    from ..kafka.group.group_consumer import GroupConsumer

    client, config = group_configs(arguments, arguments.group)
    router = Router(client)
    try:
        topics = topics_matching(router, names)
        metadata = router.metadata(topics)
        for name in topics:
            metadata.topic(name)
    finally:
        router.close()
    left = arguments.count
    with GroupConsumer(client, topics, config) as consumer:
        while left is None or left > 0:
            fetched = consumer.read()
            assert fetched is not None  # without a timeout
            printed = _print(fetched, render, left)
            whole = printed == fetched.columns.length
            offsets = fetched.columns.offset
            assert offsets is not None  # every column is fetched
            done = fetched.next_offset if whole else int(offsets[printed])
            consumer.commit(offsets={fetched.topic_partition: done})
            if left is not None:
                left -= printed


def _show(
    router: Router,
    names: list[str],
    consumer: ConsumerConfig,
    arguments: argparse.Namespace,
    render: Render,
) -> bool:
    """Print the records; False if there are partitions that did not answer."""
    from ..kafka.consumer.fetcher import FetchRun

    wanted = partitions_of(router, names, arguments.partition)
    level = consumer.isolation_level
    start = (
        arguments.start
        if arguments.start is not None
        else _last(_LAST if arguments.lines is None else arguments.lines)
    )
    resolver = OffsetResolver(router, wanted, isolation_level=level)
    begins = resolver.resolve(start)
    ends = None
    if not arguments.follow:
        until = parse_offset_spec("latest") if arguments.until is None else arguments.until
        ends = resolver.resolve(until)
    run = FetchRun(router, _adjusted(consumer, arguments))
    try:
        for tp in begins:
            if ends is None:
                run.add(tp, begins[tp])
            elif begins[tp] < ends.get(tp, begins[tp]):
                run.add(tp, begins[tp], ends[tp])
        found = iter(run.next, None)
        if arguments.follow:
            late = dict.fromkeys(resolver.missing, start)
            growing = arguments.partition is None
            found = Following(router, run, wanted, level, late=late, growing=growing).fetched()
        _print_all(found, render, arguments.count)
    finally:
        run.close()
    return not resolver.missing


def _adjusted(consumer: ConsumerConfig, arguments: argparse.Namespace) -> ConsumerConfig:
    """Return ``consumer`` with the settings that the options imply."""
    from dataclasses import replace

    if arguments.count is not None or arguments.start is None:
        # A person sees the few requested records at once, without waiting for megabytes of others.
        consumer = replace(consumer, max_partition_fetch_bytes=_FIRST_FETCH_BYTES)
    if arguments.output == "json":  # `produce` reads it back: the names of headers must not change
        consumer = replace(consumer, header_keys=HeaderKeys.STRICT)
    return consumer


def _last(lines: int) -> OffsetSpec:
    return parse_offset_spec("latest" if lines == 0 else f"-{lines}")


def _print_all(found: Iterator[FetchedRecords], render: Render, count: int | None) -> None:
    left = count
    for fetched in found:
        printed = _print(fetched, render, left)
        if left is not None:
            left -= printed
            if left <= 0:
                return


def _print(fetched: FetchedRecords, render: Render, max_records: int | None) -> int:
    """Print the first records of ``fetched``, and return their number."""
    lines = [render(record) for record in itertools.islice(shown_records(fetched), max_records)]
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()
    return len(lines)


def shown_records(fetched: FetchedRecords) -> Iterator[ShownRecord]:
    """Yield the records of ``fetched``."""
    columns, (topic, partition) = fetched.columns, fetched.topic_partition
    if not columns.length:
        return
    given = (columns.offset, columns.timestamp_ms, columns.key, columns.value, columns.headers)
    if any(column is None for column in given):
        raise ConfigError("all columns have to be fetched to show records")
    offset, timestamp_ms, key, value, headers = (
        column.to_pylist() if hasattr(column, "to_pylist") else column.tolist()  # type: ignore[union-attr]
        for column in given
    )
    for row in range(columns.length):
        pairs = [(one["key"], one["value"]) for one in headers[row] or ()]
        yield ShownRecord(topic, partition, offset[row], timestamp_ms[row], key[row], value[row], pairs)


def _passes(error: KafkaError) -> bool:
    """Return True if another attempt may succeed."""
    from ..kafka.runtime.retry import is_retriable

    return is_retriable(error) or isinstance(error, DeadlineExceededError)


class Following:
    """Fetches the records of ``known`` without an end through ``run``.

    Partitions that are ``late`` are read from their offset once they answer. If ``growing``, partitions that
    are added to the topics are read from their beginning.
    """

    def __init__(
        self,
        router: Router,
        run: FetchRun,
        known: Collection[TopicPartition],
        level: IsolationLevel,
        *,
        late: Mapping[TopicPartition, OffsetSpec],
        growing: bool,
    ) -> None:
        self._router = router
        self._run = run
        self._known = set(known)
        self._topics = {tp.topic for tp in known}
        self._level = level
        self._late = dict(late)
        self._growing = growing

    def fetched(self) -> Iterator[FetchedRecords]:
        """Yield records as they arrive, without an end."""
        from ..kafka.runtime.deadline import Deadline

        every_ms = min(_REFRESH_MS, self._router.config.metadata_max_age_ms)
        due = Deadline.after_ms(every_ms)
        while True:
            found = self._run.next(due)
            if found is not None:
                yield found
            if due.expired:
                self._add_late()
                if self._growing:
                    self._add_new()
                due = Deadline.after_ms(every_ms)

    def _add_late(self) -> None:
        """Add the late partitions that answer now. One attempt, as `_add_new`."""
        for spec in set(self._late.values()):
            late = [tp for tp in self._late if self._late[tp] == spec]
            limit = self._router.deadline(_LATE_MS)
            resolver = OffsetResolver(self._router, late, isolation_level=self._level, deadline=limit)
            try:
                self._router.refresh(self._topics, limit)
                offsets = resolver.resolve(spec)
            except KafkaError as error:
                if not _passes(error):
                    raise
                continue
            for topic_partition, offset in offsets.items():
                self._run.add(topic_partition, offset)
                del self._late[topic_partition]

    def _add_new(self) -> None:
        """Add new partitions. One attempt: the fetches report an error that persists, and another attempt
        follows.
        """
        from ..kafka.cluster.offsets import list_offsets
        from ..kafka.model import TopicPartition

        limit = self._router.deadline(self._router.config.request_timeout_ms)
        try:
            topics = self._router.refresh(self._topics, limit).topics
            existing = [
                TopicPartition(name, partition)
                for name in sorted(self._topics & topics.keys())
                if not topics[name].error_code
                for partition in topics[name].partitions
            ]
            new = dict.fromkeys((tp for tp in existing if tp not in self._known), OffsetAt.EARLIEST)
            first = list_offsets(self._router, new, isolation_level=self._level, deadline=limit)
        except KafkaError as error:
            if not _passes(error):
                raise
            return
        for topic_partition, found in first.items():
            self._run.add(topic_partition, found.offset or 0)
            self._known.add(topic_partition)


# --- formats ------------------------------------------------------------------------------------------------


def raw_line(record: ShownRecord) -> bytes:
    """Return the unchanged value and a newline; only a newline for a null value."""
    return (record.value or b"") + b"\n"


def text_line(record: ShownRecord) -> bytes:
    """Return position, timestamp, key and value for people, with control characters escaped."""
    when = "no time" if record.timestamp_ms < 0 else _time(record.timestamp_ms)
    key = "" if record.key is None else f"{_readable(record.key)}  "
    headers = "".join(f"  {name}={_readable(value)}" for name, value in record.headers)
    where = f"{record.topic}-{record.partition}@{record.offset}"
    line = f"{where}  {when}  {key}{_readable(record.value)}{'  #' if headers else ''}{headers}"
    return f"{printable(line)}\n".encode(errors="backslashreplace")


def hex_line(record: ShownRecord) -> bytes:
    """Return the position and the key of a record, and its value as a hex dump."""
    lines = [f"{record.topic}-{record.partition}@{record.offset}  key {_hex(record.key)}"]
    value = record.value
    if value is None:
        lines.append("  null")
    else:
        for at in range(0, len(value), 16):
            row = value[at : at + 16]
            shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
            lines.append(f"  {at:08x}  {row.hex(' '):47}  {shown}")
    return printable_lines(lines)


def json_line(record: ShownRecord) -> bytes:
    """Return one JSON object, which `produce` can read; bytes that are not UTF-8 are base64 (see
    `json_bytes`).
    """
    shown: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms if record.timestamp_ms >= 0 else None,
    }
    shown |= json_bytes("key", record.key) | json_bytes("value", record.value)
    if record.headers:
        shown["headers"] = [{"name": name} | json_bytes("value", value) for name, value in record.headers]
    import json

    return json.dumps(shown).encode() + b"\n"


_RENDERS: dict[str, Render] = {"text": text_line, "raw": raw_line, "hex": hex_line, "json": json_line}


def json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return ``data`` as a member called ``name``, or ``<name>_base64`` if it is not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        import base64

        return {f"{name}_base64": base64.b64encode(data).decode()}


def parse_format(text: str) -> Render:
    """Parse a format given by the user (`FORMAT_HELP`). Raises `ValueError` for an unknown letter."""
    parts: list[bytes | Render] = []
    at = 0
    for found in _TOKEN.finditer(text):
        parts.append(text[at : found.start()].encode())
        parts.append(_part(found))
        at = found.end()
    parts.append(text[at:].encode())
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def _part(found: re.Match[str]) -> bytes | Render:
    letter, code, escape = found.groups()
    if code is not None:
        return bytes.fromhex(code)
    if escape is not None:
        if escape not in _ESCAPES:
            raise ValueError(f"\\{escape} means nothing in a format")
        return _ESCAPES[escape]
    if letter == "%":
        return b"%"
    if letter not in _FIELDS:
        raise ValueError(
            f"%{letter} means nothing in a format: it has {', '.join('%' + one for one in _FIELDS)}"
        )
    return _FIELDS[letter]


def _number(value: int) -> bytes:
    return str(value).encode()


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else str(len(data)).encode()


_FIELDS: dict[str, Render] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: _number(record.partition),
    "o": lambda record: _number(record.offset),
    "T": lambda record: _number(record.timestamp_ms),
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "K": lambda record: _length(record.key),
    "S": lambda record: _length(record.value),
    "h": lambda record: b",".join(
        name.encode(errors="surrogateescape") + b"=" + (value or b"") for name, value in record.headers
    ),
}


def escaped(render: Render) -> Render:
    """Return ``render`` for a terminal: control characters except newlines and tabs are escaped."""

    def safe(record: ShownRecord) -> bytes:
        text = render(record).decode(errors="backslashreplace")
        kept = re.split("([\n\t])", text)
        return "".join(part if part in ("\n", "\t") else printable(part) for part in kept).encode()

    return safe


def printable_lines(lines: Sequence[str]) -> bytes:
    """Return the bytes of ``lines``, with control characters escaped."""
    return "".join(f"{printable(line)}\n" for line in lines).encode(errors="backslashreplace")


def _readable(data: bytes | None) -> str:
    return "null" if data is None else data.decode(errors="backslashreplace")


def _hex(data: bytes | None) -> str:
    return "null" if data is None else data.hex(" ") or "empty"


def _time(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"@{timestamp_ms}"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
