"""Explains what is wrong with a record that a kernel refused. Slow and plain: it looks at one record,
once."""

from __future__ import annotations

from .varint import VARINT_BYTES, VARLONG_BYTES, read_varint

_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)


class _Reader:
    def __init__(self, data: memoryview, position: int, end: int) -> None:
        self.data, self.position, self.end = data, position, end

    def varint(self, name: str, max_bytes: int = VARINT_BYTES) -> int:
        try:
            value, self.position = read_varint(self.data[: self.end], self.position, max_bytes)
        except ValueError as error:
            raise ValueError(f"its {name} {error}") from None
        return value

    def span(self, name: str, min_length: int) -> int:
        """Read a length and skip what it measures; ``min_length`` is -1 where null is allowed."""
        length = self.varint(f"{name} length")
        if length < min_length:
            raise ValueError(f"its {name} length is {length}")
        if length > self.end - self.position:
            raise ValueError(f"its {name} length is {length}, {self.end - self.position} bytes are left")
        self.position += max(length, 0)
        return length


def explain_record(
    data: memoryview,
    position: int,
    end: int,
    *,
    timestamp: int | None,
    previous_delta: int,
    last_offset_delta: int,
) -> str:
    """Return what is wrong with the record at ``position`` of a batch whose records end at ``end``.

    ``timestamp`` is the batch's base timestamp, None where records' own do not count.
    """
    try:
        reader = _Reader(data, position, end)
        length = reader.varint("length")
        if not 0 <= length <= end - reader.position:
            return f"its length is {length}, {end - reader.position} bytes are left in the batch"
        reader.end = reader.position + length
        reader.position += 1
        delta = reader.varint("timestamp delta", VARLONG_BYTES)
        if timestamp is not None and not _INT64_MIN <= timestamp + delta <= _INT64_MAX:
            return f"its timestamp {timestamp} + {delta} does not fit 64 bits"
        delta = reader.varint("offset delta")
        if not previous_delta < delta <= last_offset_delta:
            return f"its offset delta is {delta}, expected {previous_delta + 1} to {last_offset_delta}"
        reader.span("key", -1)
        reader.span("value", -1)
        headers_count = reader.varint("headers count")
        if not 0 <= headers_count <= (reader.end - reader.position) // 2:
            return f"it claims {headers_count} headers, {reader.end - reader.position} bytes are left"
        return _explain_headers(reader, headers_count)
    except ValueError as error:
        return str(error)


def explain_headers(data: memoryview, position: int, end: int, headers_count: int) -> str:
    """Return what is wrong with the headers of a record, which begin at ``position`` and end at ``end``."""
    try:
        return _explain_headers(_Reader(data, position, end), headers_count)
    except ValueError as error:
        return str(error)


def _explain_headers(reader: _Reader, headers_count: int) -> str:
    for _ in range(headers_count):
        reader.span("header key", 0)
        reader.span("header value", -1)
    return f"{reader.end - reader.position} bytes are left over behind its {headers_count} headers"
