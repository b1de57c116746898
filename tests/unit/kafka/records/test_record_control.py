"""What a marker says."""

from __future__ import annotations

import struct

import pytest
from support.record_batches import span, varint

from spark_kafka_native.kafka.records.batch import ControlType, read_control_type


def marker(
    key: bytes, *, timestamp_delta: int = 0, length: int | None = None, behind: bytes = b""
) -> memoryview:
    """A record up to its key, and the bytes behind it."""
    start = b"\0" + varint(timestamp_delta) + varint(0)
    body = start + (span(key) if length is None else varint(length) + key) + behind
    return memoryview(varint(len(body)) + body)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(0, ControlType.ABORT), (1, ControlType.COMMIT), (2, ControlType.UNKNOWN), (-1, ControlType.UNKNOWN)],
)
@pytest.mark.parametrize("version", [0, 1, 7])
def test_types_by_their_numbers(number: int, kind: ControlType, version: int) -> None:
    key = struct.pack(">hh", version, number)
    assert read_control_type(marker(key)) is kind
    assert read_control_type(marker(key + b"more", behind=b"\1\0")) is kind


def test_a_timestamp_delta_may_take_ten_bytes() -> None:
    body = marker(struct.pack(">hh", 0, 0), timestamp_delta=-(2**63))
    assert read_control_type(body) is ControlType.ABORT


@pytest.mark.parametrize("key", [b"", b"\0\0\0"])
def test_a_key_too_short_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match=f"its key has {len(key)} bytes, a marker's has at least 4"):
        read_control_type(marker(key, behind=b"\0" * 9))


@pytest.mark.parametrize("length", [-1, 5, 2**31 - 1])
def test_a_key_beyond_the_record_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"its key has {length} bytes"):
        read_control_type(marker(b"\0\0\0\1", length=length))
