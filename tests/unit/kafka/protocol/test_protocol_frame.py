from __future__ import annotations

import struct

import pytest

from spark_kafka_native.kafka.errors import ProtocolError
from spark_kafka_native.kafka.protocol.framing import MAX_FRAME_BYTES, build_frame, read_frame_length
from spark_kafka_native.kafka.protocol.wire import COPY_BELOW_BYTES


def test_a_length() -> None:
    assert read_frame_length(b"\0\0\1\0") == 256
    assert read_frame_length(bytearray(b"\0\0\0\4")) == 4
    assert read_frame_length(memoryview(struct.pack(">i", MAX_FRAME_BYTES))) == MAX_FRAME_BYTES


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        (struct.pack(">i", -1), "the frame length -1 is negative"),
        (struct.pack(">i", -(1 << 31)), "the frame length -2147483648 is negative"),
        (struct.pack(">i", 0), "a frame of 0 bytes is too short"),
        (struct.pack(">i", 3), "a frame of 3 bytes is too short"),
        (struct.pack(">i", MAX_FRAME_BYTES + 1), "over the limit of 104857600"),
        (struct.pack(">i", (1 << 31) - 1), "over the limit of 104857600"),
        (b"HTTP", "HTTP: the port belongs to a web server"),
        (b"SSH-", "SSH"),
        (b"\x15\x03\x03\x00", "a TLS alert: the listener speaks TLS; set security.protocol"),
        (b"\x15\x03\x01\x00", "a TLS alert"),
        (b"\x16\x03\x03\x00", "a TLS handshake"),
    ],
)
def test_what_is_no_response_is_refused_before_anything_is_allocated(prefix: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        read_frame_length(prefix)


def test_a_tls_alert_is_one_under_any_limit() -> None:
    """Read as a length it is 352 MB, which a generous limit would let pass (KAFKA-4493)."""
    with pytest.raises(ProtocolError, match="a TLS alert"):
        read_frame_length(b"\x15\x03\x03\x00", 1 << 30)


@pytest.mark.parametrize("length", [0x15000000, 0x16020300, 0x15030500, 0x17030300])
def test_a_length_is_no_tls_record_for_its_first_byte_alone(length: int) -> None:
    assert read_frame_length(struct.pack(">i", length), 1 << 30) == length
    with pytest.raises(ProtocolError, match="over the limit"):
        read_frame_length(struct.pack(">i", length))


def test_the_limit_is_the_callers() -> None:
    assert read_frame_length(b"\0\0\1\0", 256) == 256
    with pytest.raises(ProtocolError, match="a frame of 256 bytes is over the limit of 255"):
        read_frame_length(b"\0\0\1\0", 255)


def test_the_length_counts_all_buffers_and_long_ones_stay_themselves() -> None:
    records = memoryview(bytes(COPY_BELOW_BYTES))

    frame = build_frame([b"header", b"body", records, b"tail"])

    assert frame[0] == struct.pack(">i", 14 + COPY_BELOW_BYTES) + b"headerbody"
    assert frame[1] is records
    assert frame[2:] == [b"tail"]
