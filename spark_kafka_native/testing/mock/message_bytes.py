"""Kafka's wire format by the book, a value at a time: the primitive types and the rules for their lengths.

Slow and plain on purpose, and nothing of ``kafka.protocol`` is used: what both read alike is Kafka's format,
not one mistake made twice. *Compact* lengths (KIP-482) are unsigned varints of length + 1.
"""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

_NUMBERS = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
}


class MessageReader:
    """Reads values from the front of ``data``. Raises `ValueError` if ``data`` ends before a value does."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if size < 0 or self.at + size > len(self.data):
            raise ValueError(f"{size} bytes are wanted at byte {self.at} of {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        """An unsigned varint."""
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def length(self, kind: str, *, compact: bool) -> int:
        """How long the string, bytes or array that follows is; -1 for null."""
        if compact:
            return self.varint() - 1
        return int(self.primitive("int16" if kind == "string" else "int32"))

    def primitive(self, kind: str, *, compact: bool = False) -> Any:
        """A value of one of Kafka's primitive types; None for a null string or null bytes."""
        if kind == "uuid":
            return UUID(bytes=self.take(16))
        if kind in _NUMBERS:
            form = _NUMBERS[kind]
            return struct.unpack(form, self.take(struct.calcsize(form)))[0]
        size = self.length(kind, compact=compact)
        if size == -1:
            return None
        value = self.take(size)
        return value.decode() if kind == "string" else value


class MessageWriter:
    """Appends values to ``data``."""

    def __init__(self) -> None:
        self.data = bytearray()

    def varint(self, value: int) -> None:
        """An unsigned varint."""
        while value > 127:
            self.data.append(value & 127 | 128)
            value >>= 7
        self.data.append(value)

    def length(self, kind: str, size: int, *, compact: bool) -> None:
        """How long the string, bytes or array that follows is; -1 for null."""
        if compact:
            self.varint(size + 1)
        else:
            self.primitive("int16" if kind == "string" else "int32", size)

    def primitive(self, kind: str, value: Any, *, compact: bool = False) -> None:
        """A value of one of Kafka's primitive types; None is a null string or null bytes."""
        if kind == "uuid":
            self.data += value.bytes
        elif kind in _NUMBERS:
            self.data += struct.pack(_NUMBERS[kind], value)
        elif value is None:
            self.length(kind, -1, compact=compact)
        else:
            written = value.encode() if kind == "string" else bytes(value)
            self.length(kind, len(written), compact=compact)
            self.data += written
