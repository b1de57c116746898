"""`check_sizes`: the rows and bytes that an Arrow IPC stream claims to have, before Arrow allocates them.

A batch may claim any number of rows, and a compressed buffer any size. Both are in the metadata of messages,
which are flatbuffers: https://github.com/apache/arrow/blob/main/format/Message.fbs
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

MAX_BYTES: Final = 256 * 1024 * 1024
"""That the columns of one payload may take."""
MAX_GROWTH: Final = 256
"""How much larger than a payload its columns may be; LZ4 packs at most that well."""
_FREE_BYTES: Final = 64 * 1024
_MAX_MESSAGES: Final = 10_000
_RECORD_BATCH, _DICTIONARY_BATCH = "record batch", "dictionary"


class TooLargeError(Exception):
    """A payload with columns that are too large for it."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"its columns take {size} bytes, and more than {limit} are refused for its length")


def check_sizes(payload: bytes, columns: int) -> int:
    """How many bytes the columns of a stream may take; ``columns`` are asked for.

    Raises `TooLargeError` if it claims more, and errors of Arrow, `ValueError` or `struct.error` for bytes
    that are no stream.
    """
    limit = min(MAX_BYTES, MAX_GROWTH * len(payload) + _FREE_BYTES)
    rows = size = count = 0
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(payload))
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return limit
        count += 1
        if count > _MAX_MESSAGES:
            raise ValueError(f"more than {_MAX_MESSAGES} messages")
        if message.type not in (_RECORD_BATCH, _DICTIONARY_BATCH):
            continue
        added, packed = _claims(message.metadata.to_pybytes(), message)
        rows += added
        # At least a byte for each value: columns that are not in the stream become nulls.
        size = max(size + packed, rows * columns)
        if rows < 0 or size > limit:
            raise TooLargeError(size, limit)


def _claims(metadata: bytes, message: pa.ipc.Message) -> tuple[int, int]:
    """The rows of a batch, and the bytes of its buffers once they are unpacked."""
    header = _table(metadata, _field(metadata, struct.unpack_from("<I", metadata)[0], 2))
    if message.type == _DICTIONARY_BATCH:
        header = _table(metadata, _field(metadata, header, 1))
    length = _field(metadata, header, 0)
    rows = struct.unpack_from("<q", metadata, length)[0] if length else 0
    if rows < 0:
        raise ValueError("a negative number of rows")
    buffers = _field(metadata, header, 2)
    if not _field(metadata, header, 3) or not buffers:
        return rows, 0
    body = memoryview(message.body)
    vector = _table(metadata, buffers)
    total = 0
    for index in range(struct.unpack_from("<I", metadata, vector)[0]):
        offset, size = struct.unpack_from("<qq", metadata, vector + 4 + 16 * index)
        # The unpacked size is in front of the bytes; -1: they are not packed.
        unpacked = struct.unpack_from("<q", body, offset)[0] if size >= 8 and offset >= 0 else 0
        total += size if unpacked == -1 else abs(unpacked)
    return rows, total


def _table(data: bytes, at: int) -> int:
    """Where the table or vector is that the offset at ``at`` points to."""
    if not at:
        raise ValueError("a message without its header")
    return int(at + struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Where field ``number`` of the table at ``table`` is; 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise ValueError("a message that points outside of itself")
    if struct.unpack_from("<H", data, vtable)[0] < 6 + 2 * number:
        return 0
    place = struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return int(table + place) if place else 0
