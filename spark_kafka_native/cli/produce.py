"""``produce``: writes lines or files as records."""

from __future__ import annotations

import argparse
import base64
import io
import json
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..kafka.config.producer_config import COMPRESSION_TYPES
from ..kafka.errors import KafkaError
from ..kafka.model import Acks
from .options import add_connection_options, number, pair, producer_configs, wrong_usage
from .output import (
    columns_of,
    counted,
    note,
    on_terminal,
    output_of_change,
    print_json,
    show_progress,
    wait_until_ready,
)
from .record_lines import ESCAPES_HELP, unescaped
from .typed_records import TypedInput, add_format_options, given_formats

if TYPE_CHECKING:
    from ..kafka.config.client_config import ClientConfig, ProducerConfig
    from ..kafka.producer.producer import Producer

_MAX_LINE_BYTES = 256 * 1024 * 1024
"""A longer line is refused: an endless stream without a delimiter would fill the memory."""
_JSON_MEMBERS = {
    "record": (
        "topic", "partition", "offset", "timestamp_ms",
        "key", "key_base64", "value", "value_base64", "headers",
    ),
    "header": ("name", "value", "value_base64"),
}  # fmt: skip
"""The members of a record, and of its headers, that `tail --json` prints."""
_PROGRESS_S = 0.2
_LAST_CHANCE_S = 5.0
"""The time that accepted records have to be confirmed when the command is stopped."""


class _NewRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    as_bytes: frozenset[str] = frozenset()
    """Of key and value, those that were given as bytes: they are written as they are in any format."""


class InputError(Exception):
    """A line is not a valid record. The records before it are still sent."""


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "produce",
        help="write lines or files to a topic",
        description="Writes each line of standard input, or of the files, as a record. Ends with success "
        "only when the brokers have confirmed every one of them (with acks=0: when all are sent).",
    )
    parser.add_argument("topic", nargs="?", metavar="TOPIC")
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="read these; - is standard input (the default)"
    )
    parser.add_argument("-t", "--topic", dest="named_topic", metavar="TOPIC", help="the same as TOPIC")
    parser.add_argument("-k", "--key", help="the key of every record")
    parser.add_argument(
        "-K", "--key-separator", metavar="TEXT", help="the text between key and value in a line"
    )
    parser.add_argument(
        "-H", "--header", action="append", type=pair, default=[], metavar="NAME=VALUE",
        help="a header of every record; repeatable",
    )  # fmt: skip
    parser.add_argument("-p", "--partition", type=number(0), help="write every record to this partition")
    parser.add_argument(
        "--timestamp", type=number(0), metavar="MILLISECONDS", help="the timestamp of every record"
    )
    parser.add_argument(
        "-D",
        "--delimiter",
        default="\\n",
        help=rf"the text between records (default \n); it and -K take {ESCAPES_HELP}",
    )
    parser.add_argument(
        "-z", "--empty-is-null", action="store_true", help="write an empty value (or key) as null"
    )
    parser.add_argument(
        "--compression", choices=COMPRESSION_TYPES, help="the property compression.type (default none)"
    )
    parser.add_argument("--whole", action="store_true", help="each file is one record")
    parser.add_argument(
        "--input",
        choices=("lines", "json"),
        default="lines",
        help="json: one object per line, as tail --json prints them",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_format_options(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Send all records; return 0 only if all are confirmed."""
    _check_usage(arguments)
    from ..kafka.producer.producer import Producer

    client, config = producer_configs(arguments)
    typed = {
        payload: TypedInput(given, payload, arguments.topic)
        for payload, given in given_formats(arguments).items()
    }
    counts = _Counts()
    producer = Producer(client, config, on_error=_say_nothing)
    problem = ""
    try:
        try:
            _send_all(producer, arguments, typed, counts)
        except InputError as error:
            problem = str(error)
        except KafkaError as error:  # this record can't be sent; the records before it are
            problem = f"record {counts.sent + 1} and what follows was not sent: {error}"
        if not counts.sent and not problem:
            problem = _find_problem(client, config, arguments.topic)
        counts.show(over=True)
        producer.close()
    except BaseException:
        producer.close(timeout=_LAST_CHANCE_S)
        stats = producer.stats()  # the signal may have come before `send` returned: the record counts, too
        sent = max(counts.sent, stats.records + stats.failed_records)
        done = "sent" if config.acks is Acks.NONE else "confirmed"
        note(f"Ended early: {stats.records} of {counted(sent, 'record')} {_is(sent)} {done}.")
        raise
    return _report(arguments, counts, problem, is_confirmed=config.acks is not Acks.NONE)


def _say_nothing(*_: object) -> None:
    """The deliveries say which records are lost, at the end."""


def _find_problem(client: ClientConfig, config: ProducerConfig, topic: str) -> str:
    """Why records could not be written to ``topic``; empty if they could be. Without a record no broker was
    asked: a wrong name of a topic, or of a cluster, would pass for a success."""
    from ..kafka.cluster.router import Router

    router = Router(client)
    try:
        if config.allow_auto_create_topics:  # it may be missing: a record creates it
            router.metadata((topic,))
        else:
            router.retry(
                lambda: router.metadata((topic,)).topic(topic), what=f"asking for {topic}", topics=(topic,)
            )
    except KafkaError as error:
        return str(error)
    finally:
        router.close()
    return ""


def _check_usage(arguments: argparse.Namespace) -> None:
    _check_contradictions(arguments)
    arguments.delimiter = _delimiter(arguments, "--delimiter", arguments.delimiter)
    if arguments.key_separator is not None:
        arguments.key_separator = _delimiter(arguments, "--key-separator", arguments.key_separator)
    if arguments.named_topic is not None:
        if arguments.topic is not None:  # the first word is a file, too
            arguments.files = [arguments.topic, *arguments.files]
        arguments.topic = arguments.named_topic
    if not arguments.topic:
        wrong_usage(arguments, "which topic?")
    if arguments.compression is not None:
        arguments.properties = [*arguments.properties, ("compression.type", arguments.compression)]


def _check_contradictions(arguments: argparse.Namespace) -> None:
    if arguments.key is not None and arguments.key_separator is not None:
        wrong_usage(arguments, "--key is the key of every record: there is nothing to separate")
    if arguments.whole and arguments.input == "json":
        wrong_usage(arguments, "--whole and --input json contradict each other")
    if arguments.input == "json" and (
        arguments.key is not None or arguments.key_separator is not None or arguments.empty_is_null
    ):
        wrong_usage(arguments, "--key, --key-separator and --empty-is-null are for lines, not --input json")


def _report(arguments: argparse.Namespace, counts: _Counts, problem: str, *, is_confirmed: bool) -> int:
    failed = counts.sent - counts.confirmed
    if arguments.json:
        result = {
            "topic": arguments.topic,
            "confirmed": counts.confirmed if is_confirmed else 0,
            "failed": failed,
            "error": problem or counts.first_error or None,
        }
        done = "written" if is_confirmed else "sent"
        with output_of_change(f"{counted(counts.confirmed, 'record')} of {counts.sent} {done}."):
            print_json(result)
    elif is_confirmed:
        note(f"{counted(counts.confirmed, 'record')} {_is(counts.confirmed)} in {arguments.topic}.")
    else:
        sent = f"{counted(counts.confirmed, 'record')} sent to {arguments.topic}"
        note(f"{sent}; with acks=0 the broker confirms none, and may have refused some.")
    if failed:
        note(f"error: {counted(failed, 'record')} {_is(failed)} not; the first failure: {counts.first_error}")
    if problem:
        note(f"error: {problem}")
    return 1 if failed or problem else 0


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


class _Counts:
    """Counts sent and confirmed records; the sender's thread counts, too."""

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed = 0
        self.first_error = ""
        self._lock = threading.Lock()
        self._shown_at = 0.0
        self._shows = on_terminal(sys.stderr) and not (sys.stdin and sys.stdin.isatty())

    def ended(self, delivery: Any) -> None:
        """Count a record that was confirmed or has failed."""
        error = delivery.exception(0)
        with self._lock:
            if error is None:
                self.confirmed += 1
            elif not self.first_error:
                self.first_error = str(error)

    def show(self, *, over: bool = False) -> None:
        """Update the progress line, at most every `_PROGRESS_S`."""
        now = time.monotonic()
        if self._shows and (over or now - self._shown_at > _PROGRESS_S):
            self._shown_at = now
            line = "" if over else f"  {self.sent:,} sent, {self.confirmed:,} confirmed"
            show_progress(line[: columns_of(sys.stderr) - 1], sys.stderr)


def _send_all(
    producer: Producer, arguments: argparse.Namespace, typed: Mapping[str, TypedInput], counts: _Counts
) -> None:
    make = _maker(arguments, typed)
    for lines in _lines(arguments):
        records: list[_NewRecord] = []
        problem: InputError | None = None
        try:
            records.extend(map(make, lines))
        except InputError as error:
            problem = InputError(f"line {counts.sent + len(records) + 1}: {error}")
        if typed:
            records, unfit = _encoded(records, typed)
            if unfit is not None:
                number, line = counts.sent + len(records) + 1, lines[len(records)][:60]
                problem = InputError(f"line {number}: the {unfit}: {line!r}")
        for record in records:
            delivery = producer.send(
                arguments.topic,
                key=record.key,
                value=record.value,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=record.headers,
            )
            counts.sent += 1
            delivery.add_done_callback(counts.ended)
            counts.show()
        if problem is not None:
            raise problem


def _encoded(
    records: list[_NewRecord], typed: Mapping[str, TypedInput]
) -> tuple[list[_NewRecord], str | None]:
    """``records`` with their keys and values in their formats, up to the first with one that does not fit,
    and why it does not."""
    why = None
    for payload, one in typed.items():
        contents = [None if payload in record.as_bytes else getattr(record, payload) for record in records]
        encoded, reason = one.encode(contents)
        if reason is not None:
            why = f"{payload} does not fit: {reason}"
        made = []
        for record, content in zip(records, encoded, strict=False):
            if payload in record.as_bytes:
                made.append(record)
                continue
            key, value = (content, record.value) if payload == "key" else (record.key, content)
            headers = record.headers if content is None else one.headers(record.headers)
            made.append(record._replace(key=key, value=value, headers=headers))
        records = made
    return records, why


def _maker(arguments: argparse.Namespace, typed: Mapping[str, TypedInput]) -> Callable[[bytes], _NewRecord]:
    headers = tuple((name, value.encode()) for name, value in arguments.header)
    if arguments.input == "json":
        as_json = [payload for payload, one in typed.items() if not one.is_text]
        return lambda data: record_from_json(data, arguments, headers, as_json)
    separator = arguments.key_separator
    empty = None if arguments.empty_is_null else b""
    fixed = None if arguments.key is None else arguments.key.encode() or empty

    def make(data: bytes) -> _NewRecord:
        key, value = fixed, data
        if separator is not None:
            before, found, after = data.partition(separator)
            if not found:
                raise InputError(f"it has no separator {separator!r}: {data[:60]!r}")
            key, value = before or empty, after
        return _NewRecord(key, value or empty, arguments.partition, arguments.timestamp, headers)

    return make


def record_from_json(
    data: bytes,
    arguments: argparse.Namespace,
    headers: tuple[tuple[str, bytes | None], ...],
    as_json: Sequence[str] = (),
) -> _NewRecord:
    """Parse one line of ``--input json``, as `tail --json` prints it. A text is its characters, and anything
    else the JSON that stands there; so is a text, too, for a key or value in ``as_json``. Raises
    `InputError`.
    """
    try:
        text = data.decode(json.detect_encoding(data), "surrogatepass").strip()
        parsed = _parsed(text)
        _check_members(parsed, "record")
        own = _json_headers(parsed, text)
        timestamp_ms = parsed.get("timestamp_ms")
        key, value = _json_contents(parsed, text, ("key", "value"), as_json)
        return _NewRecord(
            key,
            value,
            arguments.partition,
            arguments.timestamp if timestamp_ms is None else _json_number(timestamp_ms),
            own + headers,
            frozenset(name for name in ("key", "value") if parsed.get(f"{name}_base64") is not None),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"it is no record in JSON ({error}): {data[:60]!r}") from None


def _json_contents(
    parsed: dict[str, Any], text: str, names: Sequence[str], as_json: Sequence[str] = ()
) -> list[bytes | None]:
    """The members called ``names`` of the object ``text``. Null is None."""
    from ..formats.json.scan import members

    standing = [
        name
        for name in names
        if (value := parsed.get(name)) is not None and (name in as_json or not isinstance(value, str))
    ]
    # As it stands there: each number keeps its digits.
    texts = {name: text[start:end] for name, start, end in members(text, 0)} if standing else {}
    for name in standing:
        if name not in as_json and ("NaN" in texts[name] or "Infinity" in texts[name]):
            _STRICT.decode(texts[name])  # a format takes them, but without one JSON is written
    return [texts[name].encode() if name in standing else _json_bytes(parsed, name) for name in names]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # a number has more digits than `int` takes: its text is written
        return _LONG_NUMBERS.decode(text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_LONG_NUMBERS = json.JSONDecoder(parse_int=lambda digits: int(digits[:640]))
"""640: the lowest limit that Python can be given. A longer timestamp is out of range in any case."""
_STRICT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)


def _json_headers(parsed: dict[str, Any], text: str) -> tuple[tuple[str, bytes | None], ...]:
    from ..formats.json.scan import elements, members

    if not (given := parsed.get("headers")):
        return ()
    for header in given:
        _check_members(header, "header")
        if not isinstance(name := header.get("name"), str):
            raise ValueError(f"the name of a header is a text, not {json.dumps(name)[:60]}")
    texts = [""] * len(given)
    if not all(isinstance(header.get("value"), str | None) for header in given):
        places = {name: start for name, start, _ in members(text, 0)}
        texts = [text[start:end] for start, end in elements(text, places["headers"])]
    return tuple(
        (header["name"], _json_contents(header, one, ["value"])[0])
        for header, one in zip(given, texts, strict=True)
    )


def _check_members(given: Any, what: str) -> None:
    """Raise `ValueError` for an unknown member: ignoring it might write a null in its place."""
    if not isinstance(given, dict):
        raise ValueError(f"a {what} is an object")
    known = _JSON_MEMBERS[what]
    if unknown := sorted(given.keys() - set(known)):
        raise ValueError(f"unknown member {unknown[0]!r} of a {what}, which has {', '.join(known)}")
    if not given.keys() & {"value", "value_base64"}:
        raise ValueError(f'the {what} has no "value" (null for none) and no "value_base64"')
    if both := [name for name in ("key", "value") if {name, f"{name}_base64"} <= given.keys()]:
        raise ValueError(f'"{both[0]}" and "{both[0]}_base64" contradict each other')


def _json_number(given: Any) -> int:
    """A whole number; a text, such as a date's year, or a truth value would pass for one."""
    if type(given) is not int:
        raise ValueError(f"timestamp_ms is a whole number, not {json.dumps(given)[:60]}")
    return given


def _json_bytes(parsed: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in parsed:
        encoded = parsed[f"{name}_base64"]
        if not isinstance(encoded, str):
            raise ValueError(f'"{name}_base64" is a text, not {json.dumps(encoded)[:60]}')
        return base64.b64decode(encoded, validate=True)
    value = parsed.get(name)
    return None if value is None else value.encode()


def _lines(arguments: argparse.Namespace) -> Iterator[list[bytes]]:
    """The records in the input, as many at once as there are without waiting."""
    for name in arguments.files or ["-"]:
        try:
            with _opened(name) as file:
                if arguments.whole:
                    yield [b"".join(_blocks(file))]
                else:
                    yield from _split(file, arguments.delimiter)
        except OSError as error:
            raise InputError(f"{name} can't be read: {error.strerror}") from None


class _StandardInput:
    """Standard input, which is not closed after use."""

    def __enter__(self) -> Any:
        if sys.stdin is None:
            raise InputError("standard input is closed")
        return getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)

    def __exit__(self, *_: object) -> None:
        pass


def _opened(name: str) -> Any:
    return _StandardInput() if name == "-" else open(name, "rb", buffering=0)


def _blocks(file: io.RawIOBase) -> Iterator[bytes]:
    """The bytes of ``file`` as they come. A process that shares it may have set it to non-blocking: without a
    buffer "nothing yet" is None, while a buffer's reads give the same for it as for the end."""
    while (data := file.read(1 << 16)) != b"":
        if data is None:
            wait_until_ready(file, select.POLLIN)
        else:
            yield data


def _split(file: io.RawIOBase, delimiter: bytes) -> Iterator[list[bytes]]:
    """Yield the parts between delimiters as soon as they are complete; the last needs no delimiter."""
    rest = bytearray()
    for data in _blocks(file):
        seen = max(0, len(rest) - len(delimiter) + 1)  # a delimiter may begin in the rest
        rest += data
        if rest.find(delimiter, seen) >= 0:
            *parts, last = bytes(rest).split(delimiter)
            rest = bytearray(last)
            yield parts
        if len(rest) > _MAX_LINE_BYTES:
            what = "line" if delimiter == b"\n" else "record"
            raise InputError(f"a {what} is longer than {_MAX_LINE_BYTES} bytes")
    if rest:
        yield [bytes(rest)]


def _delimiter(arguments: argparse.Namespace, option: str, text: str) -> bytes:
    try:
        delimiter = unescaped(text)
    except UnicodeEncodeError:
        raise
    except ValueError as error:
        wrong_usage(arguments, f"{option}: {error}")
    if not delimiter:
        wrong_usage(arguments, "a delimiter and a separator must not be empty")
    return delimiter
