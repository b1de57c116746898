"""A record as a line of output: text, raw, hex, JSON, or a format given by the user. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..kafka.errors import ConfigError
from ..kafka.model import CORRUPT_COLUMN, ERROR_COLUMN
from .output import printable

if TYPE_CHECKING:
    from ..kafka.consumer.fetched_records import FetchedRecords

FORMAT_HELP = (
    "%%t topic, %%p partition, %%o offset, %%T timestamp (milliseconds), %%k key, %%s value, %%K and %%S "
    "their lengths (-1 for null), %%h headers, %%%% a percent sign, \\n \\t \\\\ \\xNN"
)
ESCAPES_HELP = r"\n \r \t \0 \\ \xNN"
NO_TIMESTAMP = -1
_TOKEN = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)", re.DOTALL)
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

_ONE_LINE = {ord("\n"): " ", ord("\r"): " "}

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
    typed: Mapping[str, bytes] = MappingProxyType({})
    """The JSON of the key and the value, as far as they were decoded."""
    error: str | None = None
    """Why it can't be decoded."""
    corrupt: bytes | None = None
    """The bytes that can't."""
    nulls: Mapping[str, bytes] = MappingProxyType({})
    """The bytes of a key and a value that are there, but null (or nothing) in their format."""


Render = Callable[[ShownRecord], bytes]


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


def raw_line(record: ShownRecord) -> bytes:
    """Return the unchanged value and a newline; only a newline for a null value."""
    return (record.value or b"") + b"\n"


def text_line(record: ShownRecord) -> bytes:
    """Return position, timestamp, key and value for people, with control characters escaped."""
    when = "no time" if record.timestamp_ms == NO_TIMESTAMP else _time(record.timestamp_ms)
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
    `json_bytes`), and so are those of a null that is no tombstone: `produce` would write one.
    """
    import json  # late: most output is text

    def members(shown: Mapping[str, Any]) -> str:
        return json.dumps(shown)[1:-1]

    at = None if record.timestamp_ms == NO_TIMESTAMP else record.timestamp_ms
    where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    texts = [members(where | {"timestamp_ms": at})]
    for name, data in (("key", record.key), ("value", record.value)):
        typed = record.typed.get(name)
        if record.error is None and name in record.nulls:
            texts.append(members(_base64(name, record.nulls[name])))
        elif typed is None:
            texts.append(members(json_bytes(name, data)))
        else:  # as the text that it is: each number keeps its digits. A newline can only stand between parts
            texts.append(f'"{name}": {typed.decode().translate(_ONE_LINE)}')
    if record.headers:
        pairs = [{"name": name, **json_bytes("value", value)} for name, value in record.headers]
        texts.append(members({"headers": pairs}))
    if record.error is not None:
        texts.append(members({ERROR_COLUMN: record.error, **json_bytes(CORRUPT_COLUMN, record.corrupt)}))
    return f"{{{', '.join(texts)}}}\n".encode()


RENDERS: dict[str, Render] = {"text": text_line, "raw": raw_line, "hex": hex_line, "json": json_line}


def json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return ``data`` as a member called ``name``, or ``<name>_base64`` if it is not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return dict(_base64(name, data))


def _base64(name: str, data: bytes) -> dict[str, str]:
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


def unescaped(text: str) -> bytes:
    """Return ``text`` with the characters that its escapes stand for. Raises `ValueError` for an unknown
    escape.
    """
    parts: list[bytes] = []
    at = 0
    for found in _ESCAPE.finditer(text):
        parts += (text[at : found.start()].encode(), _unescaped(*found.groups()))
        at = found.end()
    return b"".join((*parts, text[at:].encode()))


def _unescaped(code: str | None, letter: str) -> bytes:
    if code is not None:
        return bytes.fromhex(code)
    if letter not in _ESCAPES:
        raise ValueError(f"\\{letter} means nothing: there are {ESCAPES_HELP}")
    return _ESCAPES[letter]


def _part(found: re.Match[str]) -> bytes | Render:
    letter, code, escape = found.groups()
    if letter is None:
        return _unescaped(code, escape)
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
