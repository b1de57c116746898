"""Primitive wire types, such as ``Int32``: a reader and a writer for each.

A reader takes ``(data, at)`` and returns ``(value, next_at)``; a writer appends buffers to a list. A reader
trusts no length: it raises `ProtocolError` (or lets `IndexError`, `struct.error`, `UnicodeDecodeError`
escape, which the codec turns into one) rather than read, or allocate, beyond ``data``. *Compact* is the
encoding of flexible versions (KIP-482): lengths are unsigned varints of length + 1. This module knows no
messages, versions or field names.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import UUID

from ..error_code import ErrorCode
from ..errors import ProtocolError

Buffer = bytes | bytearray | memoryview
Read = Callable[[memoryview, int], tuple[Any, int]]
Write = Callable[[Any, list[Buffer]], None]

ZERO_UUID: Final = UUID(int=0)
"""The topic id that stands for none."""

COPY_BELOW_BYTES: Final = 4096
"""Shorter buffers are joined: copying them is cheaper than one more buffer for ``sendmsg``."""

_MAX_VARINT: Final = 0xFFFF_FFFF
_MAX_STRING_BYTES: Final = 0x7FFF


@dataclass(frozen=True, slots=True)
class Compiled:
    """The reader and writer of one type at one version, and the minimum size of a value (bytes)."""

    read: Read
    write: Write
    min_size: int


# --- lengths ------------------------------------------------------------------------------------------------


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits (KIP-482); a longer one is a `ProtocolError`."""
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _MAX_VARINT:
                break
            return value, at
    raise ProtocolError(f"a varint before byte {at} is longer than 32 bits")


def build_varint(value: int) -> bytes:
    """Build an unsigned varint (KIP-482) of ``value``, 0 <= value < 2**32."""
    return _SHORT_VARINTS[value] if value < len(_SHORT_VARINTS) else _build_varint(value)


def _build_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT_VARINTS: Final = tuple(_build_varint(value) for value in range(1024))
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def read_compact_length(data: memoryview, at: int) -> tuple[int, int]:
    """Read a compact length; -1 stands for null."""
    byte = data[at]
    if byte < 0x80:
        return byte - 1, at + 1
    value, at = read_varint(data, at)
    return value - 1, at


def read_length16(data: memoryview, at: int) -> tuple[int, int]:
    """Read the int16 length of a string; -1 stands for null."""
    return _INT16.unpack_from(data, at)[0], at + 2


def read_length32(data: memoryview, at: int) -> tuple[int, int]:
    """Read the int32 length of bytes or of an array; -1 stands for null."""
    return _INT32.unpack_from(data, at)[0], at + 4


def build_length(length: int, *, compact: bool) -> bytes:
    """Build the length of bytes or of an array; -1 stands for null."""
    return build_varint(length + 1) if compact else _INT32.pack(length)


def refuse_length(what: str, length: int, at: int, data: memoryview) -> ProtocolError:
    """Build the error for a length that must not be null, is negative or exceeds the rest of ``data``."""
    if length == -1:
        return ProtocolError(f"{what} before byte {at} is null but must not be")
    if length < 0:
        return ProtocolError(f"{what} before byte {at} has the negative length {length}")
    return ProtocolError(f"{what} at byte {at} has length {length}, but only {len(data) - at} bytes are left")


def join_short(buffers: list[Buffer]) -> list[Buffer]:
    """Join neighbouring short buffers; long ones are not copied."""
    joined: list[Buffer] = []
    short: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < COPY_BELOW_BYTES:
            short.append(buffer)
            continue
        if short:
            joined.append(b"".join(short))
            short = []
        joined.append(buffer)
    if short:
        joined.append(b"".join(short))
    return joined


# --- types --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fixed:
    """A type of fixed width: a `struct` format, and conversions if its value in Python is not a number."""

    name: str
    format: str
    from_wire: Callable[[Any], Any] | None = None
    to_wire: Callable[[Any], Any] | None = None

    def min_size(self, *, compact: bool) -> int:
        """Return the minimum size of a value (bytes)."""
        del compact
        return struct.calcsize(">" + self.format)

    def reader(self, *, compact: bool, nullable: bool) -> Read:
        """Return a reader of one value."""
        del compact, nullable
        unpack, size, from_wire = (
            struct.Struct(">" + self.format).unpack_from,
            self.min_size(compact=True),
            self.from_wire,
        )

        def read(data: memoryview, at: int) -> tuple[Any, int]:
            value = unpack(data, at)[0]
            return (value if from_wire is None else from_wire(value)), at + size

        return read

    def writer(self, *, compact: bool, nullable: bool) -> Write:
        """Return a writer of one value."""
        del compact, nullable
        pack, to_wire = struct.Struct(">" + self.format).pack, self.to_wire

        def write(value: Any, out: list[Buffer]) -> None:
            try:
                out.append(pack(value if to_wire is None else to_wire(value)))
            except struct.error as error:
                raise ValueError(f"{value!r} is not an {self.name} ({error})") from error

        return write


@dataclass(frozen=True)
class Text:
    """A UTF-8 string: int16 length, or compact."""

    name: str = "string"

    def min_size(self, *, compact: bool) -> int:
        """Return the minimum size of a value (bytes)."""
        return 1 if compact else 2

    def reader(self, *, compact: bool, nullable: bool) -> Read:
        """Return a reader of one string."""
        read_length = read_compact_length if compact else read_length16

        def read(data: memoryview, at: int) -> tuple[str | None, int]:
            length, at = read_length(data, at)
            end = at + length
            if length < 0 or end > len(data):
                if length == -1 and nullable:
                    return None, at
                raise refuse_length("a string", length, at, data)
            return str(data[at:end], "utf-8"), end

        return read

    def writer(self, *, compact: bool, nullable: bool) -> Write:
        """Return a writer of one string."""

        def write(value: str | None, out: list[Buffer]) -> None:
            if value is None:
                if not nullable:
                    raise ValueError("a string must not be null")
                out.append(b"\0" if compact else b"\xff\xff")
                return
            text = value.encode()
            if len(text) > _MAX_STRING_BYTES:
                raise ValueError(f"a string of {len(text)} bytes is longer than {_MAX_STRING_BYTES}")
            out.append(build_varint(len(text) + 1) if compact else _INT16.pack(len(text)))
            out.append(text)

        return write


@dataclass(frozen=True)
class Blob:
    """Bytes, or a record set: int32 length, or compact. ``copy``: a reader copies them out of the frame."""

    name: str
    copy: bool

    def min_size(self, *, compact: bool) -> int:
        """Return the minimum size of a value (bytes)."""
        return 1 if compact else 4

    def reader(self, *, compact: bool, nullable: bool) -> Read:
        """Return a reader of one value: `bytes`, or a `memoryview` of the frame."""
        read_length = read_compact_length if compact else read_length32
        what, copy = f"a field of type {self.name}", self.copy

        def read(data: memoryview, at: int) -> tuple[Buffer | None, int]:
            length, at = read_length(data, at)
            end = at + length
            if length < 0 or end > len(data):
                if length == -1 and nullable:
                    return None, at
                raise refuse_length(what, length, at, data)
            return (bytes(data[at:end]) if copy else data[at:end]), end

        return read

    def writer(self, *, compact: bool, nullable: bool) -> Write:
        """Return a writer of one value, which is not copied when it is long."""

        def write(value: Buffer | None, out: list[Buffer]) -> None:
            if value is None:
                if not nullable:
                    raise ValueError("bytes must not be null")
                out.append(build_length(-1, compact=compact))
                return
            view = memoryview(value).cast("B")
            out.append(build_length(len(view), compact=compact))
            out.append(view)

        return write


WireType = Fixed | Text | Blob


@functools.lru_cache(maxsize=4096)
def _read_uuid(raw: bytes) -> UUID:
    """Cached: topic ids repeat in every response; creating a `UUID` takes ten times as long as a lookup."""
    return UUID(bytes=raw)


class _ErrorCodes(dict[int, ErrorCode]):
    """Error codes by number; ``__getitem__`` is a conversion that runs in C for all known codes."""

    def __missing__(self, number: int) -> ErrorCode:
        return ErrorCode.of(number)


_read_error = _ErrorCodes({int(code): code for code in ErrorCode}).__getitem__


def _build_uuid(value: UUID) -> bytes:
    return value.bytes


# --- annotations of declarations ----------------------------------------------------------------------------

Int8 = Annotated[int, Fixed("int8", "b")]
Int16 = Annotated[int, Fixed("int16", "h")]
Int32 = Annotated[int, Fixed("int32", "i")]
Int64 = Annotated[int, Fixed("int64", "q")]
UInt16 = Annotated[int, Fixed("uint16", "H")]
UInt32 = Annotated[int, Fixed("uint32", "I")]
Float64 = Annotated[float, Fixed("float64", "d")]
Boolean = Annotated[bool, Fixed("bool", "?")]
Uuid = Annotated[UUID, Fixed("uuid", "16s", from_wire=_read_uuid, to_wire=_build_uuid)]
Error = Annotated[ErrorCode, Fixed("int16", "h", from_wire=_read_error)]
"""An int16 of the spec that holds an error code."""
String = Annotated[str, Text()]
Bytes = Annotated[bytes, Blob("bytes", copy=True)]
Records = Annotated[memoryview, Blob("records", copy=False)]
"""The bytes of one or more record batches: a view of the frame, valid while it is referenced."""
