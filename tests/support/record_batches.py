"""Record batches written by hand, byte by byte, so that a test can break any of them; and both kernels."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import crcmod.predefined
import pytest

from spark_kafka_native.kafka.records import (
    decode,
    encode,
    hashing,
    kernel,
    numpy_kernel,
)

KERNELS: list[kernel.Kernel] = [numpy_kernel]
if (compiled := kernel.load_compiled()) is not None:
    KERNELS.append(compiled)

EACH_KERNEL = pytest.mark.parametrize(
    "kernel", KERNELS, ids=lambda one: "numpy" if one is numpy_kernel else "compiled"
)

_crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


@contextmanager
def using_kernel(chosen: kernel.Kernel) -> Iterator[None]:
    """Make the decoder, the encoder and the hashes use one kernel."""
    users = (decode, encode, hashing)
    before = [user.kernel for user in users]
    for user in users:
        user.kernel = chosen
    try:
        yield
    finally:
        for user, kernel_before in zip(users, before, strict=True):
            user.kernel = kernel_before


def varint(value: int) -> bytes:
    """A zigzag varint, the plain way."""
    raw = value << 1 if value >= 0 else ((-value) << 1) - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def span(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    offset_delta: int,
    value: bytes | None = b"v",
    *,
    key: bytes | None = None,
    timestamp_delta: int = 0,
    headers: Sequence[tuple[bytes | None, bytes | None]] = (),
    headers_count: int | None = None,
    tail: bytes = b"",
    length: int | None = None,
) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + span(key) + span(value)
    body += varint(len(headers) if headers_count is None else headers_count)
    body += b"".join(span(name) + span(content) for name, content in headers) + tail
    return varint(len(body) if length is None else length) + body


def batch(
    records: Sequence[bytes] = (),
    *,
    base_offset: int = 0,
    body: bytes | None = None,
    count: int | None = None,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    base_timestamp: int = 1000,
    max_timestamp: int = 1000,
    producer_id: int = -1,
    magic: int = 2,
    length: int | None = None,
    crc: int | None = None,
) -> bytes:
    body = b"".join(records) if body is None else body
    count = len(records) if count is None else count
    last_offset_delta = max(0, count - 1) if last_offset_delta is None else last_offset_delta
    checked = struct.pack(
        ">hiqqqhii", attributes, last_offset_delta, base_timestamp, max_timestamp, producer_id, -1, -1, count
    )
    checked += body
    crc = _crc32c(checked) if crc is None else crc
    length = len(checked) + 9 if length is None else length
    return struct.pack(">qiibI", base_offset, length, 0, magic, crc) + checked


def mend_crc(data: bytearray) -> bytearray:
    """Give a single batch the checksum that its bytes have."""
    if len(data) > 21:
        struct.pack_into(">I", data, 17, _crc32c(bytes(data[21:])))
    return data


def control(base_offset: int, producer_id: int, control_type: int, *, key: bytes | None = None) -> bytes:
    key = struct.pack(">hh", 0, control_type) if key is None else key
    marker = record(0, struct.pack(">hi", 0, 0), key=key)
    return batch([marker], base_offset=base_offset, attributes=0x30, producer_id=producer_id)
