"""The codecs of a record batch: Kafka's framing of each, and a cap on the decompressed size.

A broker's bytes are untrusted: 1 MiB of zstd can claim 32 GiB. No function allocates more than the cap (plus
one chunk), regardless of the sizes that a frame claims, and every error of a codec's library becomes a
`CompressionError`.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import assert_never

import pyarrow as pa

from .buffer_pool import BUFFERS

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""Default cap on one batch: 250 times a broker's default max.message.bytes, yet no threat to an executor."""

Buffer = bytes | bytearray | memoryview

_GZIP_WBITS = 31
_GZIP_NEXT_BYTES = 1024
"""How much of a second and later member is decompressed first, doubled until the member ends: zlib copies all
bytes behind a member, and with 50,000 members that is quadratic. The first is nearly always the only one.
"""
_ZSTD_LEVEL = 3
"""Kafka's default; pyarrow's own is 1."""

_LIKELY_RATIO = 8
_FIRST_BYTES = 4096
"""The first buffer for decompressed bytes has `_LIKELY_RATIO` times the compressed size plus this; it doubles
when it is full."""

_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_FRAME_HEADER = bytes.fromhex("04224D18604082")
"""Independent blocks of 64 KiB, no checksums, and the header's own checksum (0x82): Kafka's Java reader
refuses linked blocks, which LZ4 libraries write by default."""
_LZ4_STORED = 0x80000000

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_SNAPPY_MAX_RATIO = 32
"""A snappy element of 3 bytes yields at most 64 bytes: a larger claim is refused before allocating for it."""


class Codec(enum.IntEnum):
    """The compression of a record batch: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of_name(cls, name: str) -> Codec:
        """Return the codec with this name in ``compression.type`` (none, gzip, snappy, lz4, zstd)."""
        try:
            return cls[name.strip().upper()]
        except KeyError:
            known = ", ".join(codec.name.lower() for codec in cls)
            raise ValueError(f"unknown compression {name!r}; expected one of {known}") from None


LEVELS = {Codec.GZIP: (-1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}
"""The min and max level of each codec that has levels, as in Kafka's producer configuration."""


class CompressionError(ValueError):
    """Compressed bytes are damaged, cut short, followed by others, or larger than the cap."""


Compress = Callable[[Buffer, int | None], Buffer]
"""``f(data, level)`` -> the compressed bytes, framed as Kafka frames that codec; ``level`` may be None."""
Decompress = Callable[[Buffer, int], Buffer]
"""``f(data, max_bytes)`` -> the decompressed bytes. It must refuse data that would exceed ``max_bytes``
before it allocates that much."""

_REGISTERED: dict[Codec, tuple[Compress, Decompress]] = {}


def register_codec(name: str, compress: Compress, decompress: Decompress) -> None:
    """Use another implementation of Kafka's codec ``name`` (gzip, snappy, lz4, zstd) in this process from now
    on, also in producers and consumers that exist: for example, one in hardware.

    Brokers and other clients must be able to read its output: this replaces a codec, it cannot add one.
    An error of the functions becomes a `CompressionError`. ValueError for an unknown name.
    """
    codec = Codec.of_name(name)
    if codec is Codec.NONE:
        raise ValueError("'none' is no codec: there is nothing to replace")
    _REGISTERED[codec] = (compress, decompress)


def _decompress_registered(decompress: Decompress, data: Buffer, max_bytes: int) -> Buffer:
    try:
        plain = decompress(data, max_bytes)
    except Exception as error:
        raise CompressionError(f"the registered codec can't read it: {error!r}") from error
    if len(plain) > max_bytes:
        raise _too_large(max_bytes)
    return plain


def compress(codec: Codec, data: Buffer, level: int | None = None) -> Buffer:
    """Compress ``data`` (contiguous bytes) in Kafka's framing of ``codec``.

    ``level`` as in Kafka's ``compression.<codec>.level`` (`LEVELS`); None is Kafka's default. ValueError for
    a level that the codec does not have.
    """
    if codec in _REGISTERED:
        return _REGISTERED[codec][0](data, level)
    if level is not None:
        _check_level(codec, level)
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            deflate = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
            return deflate.compress(data) + deflate.flush()
        case Codec.SNAPPY:
            return _compress_whole(_codec("snappy", None), data)
        case Codec.LZ4:
            return _compress_lz4(data, level)
        case Codec.ZSTD:
            return _compress_whole(_codec("zstd", _ZSTD_LEVEL if level is None else level), data)
        case _:
            assert_never(codec)


def decompress(codec: Codec, data: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Decompress ``data`` to at most ``max_bytes``; `CompressionError` if that fails.

    Several frames one after the other are one stream; other bytes behind the last frame are an error.
    """
    if codec in _REGISTERED:
        return _decompress_registered(_REGISTERED[codec][1], data, max_bytes)
    try:
        match codec:
            case Codec.NONE:
                return data
            case Codec.GZIP:
                return _decompress_gzip(data, max_bytes)
            case Codec.SNAPPY:
                return _decompress_snappy(data, max_bytes)
            case Codec.LZ4:
                return _decompress_stream("lz4", data, max_bytes)
            case Codec.ZSTD:
                return _decompress_stream("zstd", data, max_bytes)
            case _:
                assert_never(codec)
    except (OSError, pa.ArrowException, zlib.error) as error:
        raise CompressionError(f"damaged {codec.name.lower()} data: {error}") from error


def _check_level(codec: Codec, level: int) -> None:
    lowest, highest = LEVELS.get(codec, (0, -1))
    if lowest > highest:
        raise ValueError(f"{codec.name.lower()} has no compression levels, so not {level} either")
    if not lowest <= level <= highest:
        raise ValueError(
            f"{codec.name.lower()} has no compression level {level}; expected {lowest} to {highest}"
        )


def _compress_whole(codec: pa.Codec, data: Buffer) -> bytes:
    packed: bytes = codec.compress(pa.py_buffer(data), asbytes=True)
    return packed


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    block_codec = _codec("lz4_raw", level)
    view = memoryview(data)
    parts: list[Buffer] = [_LZ4_FRAME_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        block = view[start : start + _LZ4_BLOCK_BYTES]
        packed = block_codec.compress(pa.py_buffer(block), asbytes=True)
        if len(packed) < len(block):
            parts += (struct.pack("<I", len(packed)), packed)
        else:
            parts += (struct.pack("<I", len(block) | _LZ4_STORED), block)
    parts.append(bytes(4))
    return b"".join(parts)


@lru_cache(maxsize=64)
def _codec(name: str, level: int | None) -> pa.Codec:
    return pa.Codec(name, compression_level=level)


def _decompress_gzip(data: Buffer, max_bytes: int) -> Buffer:
    parts: list[bytes] = []
    room, position, piece = max_bytes, 0, data
    inflate, size = zlib.decompressobj(_GZIP_WBITS), _GZIP_NEXT_BYTES
    while position < len(data):
        # One byte more than allowed distinguishes "exactly the cap" from "too much".
        part = inflate.decompress(piece, room + 1)
        if len(part) > room:
            raise _too_large(max_bytes)
        room -= len(part)
        parts.append(part)
        position += len(piece) - len(inflate.unused_data)
        if position == len(data):
            break
        if inflate.eof:
            inflate, size = zlib.decompressobj(_GZIP_WBITS), _GZIP_NEXT_BYTES
        piece = memoryview(data)[position : position + size]
        size *= 2
    if len(data) and not inflate.eof:
        raise CompressionError("damaged gzip data: it ends in the middle of a member")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_stream(name: str, data: Buffer, max_bytes: int) -> Buffer:
    """Decompress frames. The decompressed sizes that they may state are not trusted.

    Not with `pa.Codec.decompress`: given a size that is too large, it returns that many bytes, the rest of
    them uninitialised.
    """
    stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name)
    # One byte more than allowed distinguishes "exactly the cap" from "too much".
    limit = max_bytes + 1
    memory = BUFFERS.take(min(_LIKELY_RATIO * len(data) + _FIRST_BYTES, limit))
    filled = 0
    while read := stream.readinto(memory[filled:]):
        filled += read
        if filled > max_bytes:
            raise _too_large(max_bytes)
        if filled == len(memory):
            larger = BUFFERS.take(min(2 * filled, limit))
            larger[:filled] = memory
            memory = larger
    return memoryview(memory[:filled])  # type: ignore[arg-type]


def _decompress_snappy(data: Buffer, max_bytes: int) -> Buffer:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(memoryview(data), max_bytes, max_bytes)
    room = max_bytes
    parts: list[Buffer] = []
    for block in _read_xerial_blocks(memoryview(data)):
        part = _decompress_snappy_block(block, room, max_bytes)
        room -= len(part)
        parts.append(part)
    return b"".join(parts)


def _read_xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the raw blocks of snappy-java's stream format; a new header may begin before any block."""
    position = 0
    while position < len(data):
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += _XERIAL_HEADER_BYTES
            if position > len(data):
                raise CompressionError("damaged snappy data: it ends within a xerial header")
            continue
        if len(data) - position < 4:
            raise CompressionError("damaged snappy data: it ends within the length of a xerial block")
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 < length <= len(data) - position:
            raise CompressionError(
                f"damaged snappy data: a xerial block of {length} bytes, {len(data) - position} are left"
            )
        yield data[position : position + length]
        position += length


def _decompress_snappy_block(block: memoryview, room: int, max_bytes: int) -> Buffer:
    size = _read_snappy_size(block)
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise CompressionError(f"damaged snappy data: {len(block)} bytes claim to hold {size}")
    if size > room:
        raise _too_large(max_bytes)
    if size == 0:
        # pyarrow does not decompress into an empty buffer; empty data is the single byte 0.
        if len(block) != 1:
            raise CompressionError("damaged snappy data: an empty block with bytes behind it")
        return b""
    return memoryview(_codec("snappy", None).decompress(pa.py_buffer(block), size)).cast("B")


def _read_snappy_size(block: memoryview) -> int:
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise CompressionError("damaged snappy data: it does not begin with its length")


def _too_large(max_bytes: int) -> CompressionError:
    return CompressionError(
        f"it decompresses to more than the {max_bytes} bytes allowed for one batch; "
        "raise max.decompressed.batch.bytes if it is genuine"
    )
