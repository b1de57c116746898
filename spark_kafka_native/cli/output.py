"""The output of commands: tables on a terminal, tab-separated lines in a pipe, JSON on request.

Names and records are foreign data: control characters in them never reach a terminal.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from ..kafka.errors import BrokerError, ClientClosedError, KafkaError, SecurityError

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Includes the characters that change the direction of text, and lone surrogates, which have no UTF-8."""
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
_CLEAR_LINE = "\r\x1b[K"
_BAR_COLUMNS = 30
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def on_terminal(stream: TextIO | None = None) -> bool:
    """Return True if ``stream`` (default: standard output) is a terminal."""
    return (stream or sys.stdout).isatty()


def printable(text: str) -> str:
    """Return ``text`` with every control character escaped."""
    return _CONTROL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    letter = found[0]
    code = ord(letter)
    return _ESCAPES.get(letter) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def print_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """`print_rows_or_raise`. No error if the reader has hung up: the command has its exit code nevertheless,
    also where the output is longer than the buffer.
    """
    with contextlib.suppress(BrokenPipeError):
        print_rows_or_raise(columns, rows, as_json=as_json)


def print_rows_or_raise(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print ``rows``, which have ``columns`` and may have further ones for JSON. Raises `BrokenPipeError` if
    the reader has hung up, at the latest when the output is flushed."""
    kept = list(rows)
    if as_json:
        print_json(kept)
    elif on_terminal():
        print("\n".join(table(columns, kept)))
    else:
        for row in kept:
            print("\t".join(cell(row.get(column)) for column in columns))


def write_bytes(data: bytes) -> None:
    """Write all of ``data`` to standard output. Without its buffer, which fails where another process has set
    the output to non-blocking: a write says how much it took, and None for a full pipe. A write that a full
    disk or the end of a pipe cuts short says so by the number of bytes only, and the next one fails."""
    sys.stdout.buffer.flush()
    raw: Any = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
    left = memoryview(data)
    while left:
        taken = raw.write(left)
        if taken is None:
            wait_until_ready(raw, select.POLLOUT)
        else:
            left = left[taken:]


def wait_until_ready(file: io.RawIOBase, event: int) -> None:
    """Wait until ``file``, which does not block, can be read (``event``: POLLIN) or written (POLLOUT)."""
    poll = select.poll()
    poll.register(file, event)
    poll.poll()


def check_reader() -> None:
    """Raise `BrokenPipeError` if standard output is a pipe that its reader has closed: a command that waits
    for records, and writes nothing meanwhile, would not notice."""
    if not hasattr(select, "poll"):
        return
    found: list[tuple[int, int]] = []
    with contextlib.suppress(OSError, ValueError):  # it is closed, or no descriptor
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        found = poll.poll(0)
    if any(events & select.POLLERR for _, events in found):
        raise BrokenPipeError


def print_json(value: Any) -> None:
    """Print one JSON document, indented on a terminal."""
    import json

    # An encoding that lacks a character would have it escaped in another way than JSON has.
    escaped = on_terminal() or not _is_utf_8(sys.stdout)
    print(json.dumps(value, indent=2 if on_terminal() else None, ensure_ascii=escaped, default=str))


def _is_utf_8(stream: TextIO) -> bool:
    return codecs.lookup(stream.encoding or "ascii").name == "utf-8"


def table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table with a heading; numbers are aligned to the right."""
    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    widths = [
        max(len(column), *(len(line[i]) for line in cells)) if cells else len(column)
        for i, column in enumerate(columns)
    ]
    right = [all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns]
    lines = [bold(_line([column.upper().replace("_", " ") for column in columns], widths, right))]
    return lines + [_line(line, widths, right) for line in cells]


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    aligned = (
        one.rjust(width) if to_right else one.ljust(width)
        for one, width, to_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(aligned).rstrip()


def cell(value: Any) -> str:
    """Return the text of one value; an empty one is a hyphen, so that lines can be split at spaces."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(cell(one) for one in value) or "-"
    return printable(str(value))


def bold(text: str) -> str:
    """Return ``text`` in bold if standard output is a terminal."""
    return f"{BOLD}{text}{PLAIN}" if on_terminal() and not os.environ.get("NO_COLOR") else text


def note(text: str) -> None:
    """Print a message that is not part of the result on standard error; a failure to print it is ignored."""
    with contextlib.suppress(OSError):
        print(printable(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def output_of_change(*done: str) -> Iterator[None]:
    """The output of a change that is made, such as to a full disk: where it can't be written, the lines
    ``done`` say on standard error that the change is made, or a script would repeat it. No error if the
    reader has hung up."""
    try:
        with contextlib.suppress(BrokenPipeError):
            yield
            sys.stdout.flush()
    except OSError:
        for line in done:
            note(line)
        raise


def counted(count: int, noun: str) -> str:
    """Return ``1 record``, ``2 records``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def progress_bar(title: str, share: float | None, columns: int) -> str:
    """Return one line that fits into ``columns``: ``title``, and a bar if there is a ``share`` (0 to 1)."""
    if share is None:
        return f"  {title}"[: columns - 1]
    rest = len(f"  {title} [] 100%")
    width = max(0, min(_BAR_COLUMNS, columns - 1 - rest))
    return f"  {title} [{'#' * int(share * width):{width}}] {share:4.0%}"[: columns - 1]


def show_progress(line: str, stream: TextIO) -> None:
    """Replace the last line on a terminal; an empty ``line`` removes it."""
    stream.write(f"{_CLEAR_LINE}{line}")
    stream.flush()


def columns_of(stream: TextIO) -> int:
    """Return the width of the terminal of ``stream``; 80 if it is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def act_on_each(names: Iterable[str], act: Callable[[str], None], done: str, *, as_json: bool) -> int:
    """Call ``act`` with each name and report each outcome: ``done``, or the error.

    Returns the exit code: 1 if a name was refused, or failed in another way. Raises `SecurityError`: the rest
    is not tried.
    """
    rows: list[dict[str, Any]] = []
    try:
        for name in names:
            try:
                act(name)
            except (ClientClosedError, SecurityError):
                raise  # each further login with a wrong password may lock the account
            except KafkaError as error:
                result = "refused" if isinstance(error, BrokerError) else "failed"
                text = "; ".join([str(error), *getattr(error, "__notes__", ())])
                rows.append({"name": name, "result": result, "error": text})
                note(f"{name}: {type(error).__name__}: {text}")
            else:
                rows.append({"name": name, "result": done, "error": None})
                if not as_json:
                    note(f"{name}: {done}")
    finally:
        failure = sys.exception()
        is_wrong_usage = isinstance(failure, ValueError) and not isinstance(failure, KafkaError)
        if as_json and not is_wrong_usage:
            with output_of_change(*(f"{row['name']}: {done}" for row in rows if not row["error"])):
                print_json(rows)
    return 1 if any(row["error"] for row in rows) else 0


def human_bytes(count: float | None) -> str | None:
    """Return ``count`` with a unit, as ``1.5 MiB``."""
    if count is None:
        return None
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
