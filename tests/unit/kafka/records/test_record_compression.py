"""Kafka's framing of each codec, against independent implementations; caps and damage."""

from __future__ import annotations

import gzip
import random
import struct
import zlib

import cramjam
import pytest
import snappy

from spark_kafka_native.kafka.records import compression
from spark_kafka_native.kafka.records.compression import Codec, CompressionError, compress, decompress

RNG = random.Random(1)
SAMPLES = {
    "empty": b"",
    "short": b"kafka",
    "text": b"the same words again and again, " * 9000,
    "noise": RNG.randbytes(200_001),
    "block": bytes(64 * 1024),
    "mixed": RNG.randbytes(70_000) + bytes(400_000) + RNG.randbytes(10),
}
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
EACH_SAMPLE = pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES.keys())

ORACLE_READS = {
    Codec.GZIP: gzip.decompress,
    Codec.SNAPPY: snappy.decompress,
    Codec.LZ4: lambda data: bytes(cramjam.lz4.decompress(data)),
    Codec.ZSTD: lambda data: bytes(cramjam.zstd.decompress(data)),
}
ORACLE_WRITES = {
    Codec.GZIP: gzip.compress,
    Codec.SNAPPY: snappy.compress,
    Codec.LZ4: lambda data: bytes(cramjam.lz4.compress(data)),
    Codec.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
}


@EACH_SAMPLE
@pytest.mark.parametrize("codec", list(Codec))
def test_round_trip(codec, data):
    assert bytes(decompress(codec, compress(codec, data))) == data
    assert bytes(decompress(codec, memoryview(compress(codec, memoryview(data))))) == data


@EACH_SAMPLE
@pytest.mark.parametrize("codec", COMPRESSED)
def test_an_oracle_reads_ours_and_we_its(codec, data):
    assert ORACLE_READS[codec](bytes(compress(codec, data))) == data
    assert bytes(decompress(codec, ORACLE_WRITES[codec](data))) == data


def test_lz4_blocks_are_independent_and_small():
    packed = compress(Codec.LZ4, SAMPLES["mixed"])
    flags, descriptor = packed[4], packed[5]
    assert packed[:4] == bytes.fromhex("04224d18")
    assert flags & 0x20, "blocks are independent"
    assert not flags & 0x1D, "no checksums, no size, no dictionary"
    assert descriptor == 0x40
    position, sizes = 7, []
    while (size := struct.unpack_from("<I", packed, position)[0]) != 0:
        sizes.append(size & 0x7FFFFFFF)
        position += 4 + sizes[-1]
    assert position + 4 == len(packed)
    assert max(sizes) <= 64 * 1024


def xerial(data: bytes, block: int = 32 * 1024) -> bytes:
    out = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for start in range(0, len(data), block):
        packed = snappy.compress(data[start : start + block])
        out += struct.pack(">i", len(packed)) + packed
    return out


@EACH_SAMPLE
def test_both_snappy_framings_and_their_mixture(data):
    assert bytes(decompress(Codec.SNAPPY, xerial(data))) == data
    assert (
        bytes(decompress(Codec.SNAPPY, xerial(data) + xerial(b"x") + xerial(data, 100))) == data + b"x" + data
    )


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_frames_one_after_the_other_are_one_stream(codec):
    data = bytes(compress(codec, b"one")) + bytes(compress(codec, b"")) + bytes(compress(codec, b"two"))
    assert bytes(decompress(codec, data)) == b"onetwo"


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_the_cap_is_exact(codec, framed, size):
    packed = xerial(bytes(size)) if framed and codec is Codec.SNAPPY else compress(codec, bytes(size))
    assert len(decompress(codec, packed, size)) == size
    with pytest.raises(CompressionError, match=f"more than the {size - 1} bytes allowed"):
        decompress(codec, packed, size - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_frames_one_after_the_other_share_the_cap(codec):
    frame = xerial(bytes(1_000)) if codec is Codec.SNAPPY else bytes(compress(codec, bytes(1_000)))
    assert len(decompress(codec, frame * 5, 5_000)) == 5_000
    with pytest.raises(CompressionError, match="more than the 4999 bytes allowed"):
        decompress(codec, frame * 5, 4_999)


@pytest.mark.parametrize("sample", ["short", "text", "mixed"])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_damage_is_an_error_of_ours(codec, sample):
    packed = bytes(compress(codec, SAMPLES[sample]))
    for damaged in (packed[:-1], packed[: len(packed) // 2], packed[:3], packed + b"x", packed + bytes(4)):
        with pytest.raises(CompressionError):
            decompress(codec, damaged)
    rng = random.Random(3)
    for _ in range(200):
        broken = bytearray(packed)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        try:
            decompress(codec, bytes(broken), 1 << 20)
        except CompressionError:
            continue


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"\xff\xff\xff\xff\x0f" + bytes(20), "claim to hold 4294967295"),
        (b"\xc1\x02" + bytes(8), "10 bytes claim to hold 321"),
        (b"\xc0\x02" + bytes(8), "damaged snappy data: (?!10 bytes)"),  # 32 times as many may be
        (b"\xff\xff\xff\xff\xff\x0f", "does not begin with its length"),
        (b"", "does not begin with its length"),
        (b"\0\0", "empty block"),
        (xerial(b"abc")[:10], "ends within a xerial header"),
        (xerial(b"abc")[:18], "ends within the length"),
        (xerial(b"abc")[:-1], "a xerial block of 5 bytes, 4 are left"),
        (xerial(b"")[:16] + struct.pack(">i", -1) + b"x", "a xerial block of -1 bytes"),
        (xerial(b"")[:16] + struct.pack(">i", 0), "a xerial block of 0 bytes"),
    ],
)
def test_snappy_lies(data, match):
    with pytest.raises(CompressionError, match=match):
        decompress(Codec.SNAPPY, data)


def test_gzip_of_a_bomb_stops_at_the_cap():
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = bomb.compress(bytes(50_000_000)) + bomb.flush()
    with pytest.raises(CompressionError, match="more than"):
        decompress(Codec.GZIP, data, 1000)


def test_gzip_members_take_time_in_proportion_to_their_bytes(monkeypatch):
    """zlib copies the bytes behind a member: with all of the rest behind each, that is quadratic."""
    copied = 0

    class Counted:
        def __init__(self, wbits):
            self._inflate = inflate(wbits)

        def __getattr__(self, name):
            nonlocal copied
            found = getattr(self._inflate, name)
            copied += len(found) if name == "unused_data" else 0
            return found

    inflate = zlib.decompressobj
    monkeypatch.setattr(compression.zlib, "decompressobj", Counted)
    data = gzip.compress(b"") * 20_000 + gzip.compress(b"last")
    assert decompress(Codec.GZIP, data) == b"last"
    assert copied < 100 * len(data)


@pytest.mark.parametrize("size", [0, 1, 900, 1_030, 5_000, 300_000])
def test_gzip_members_of_any_size(size):
    large = RNG.randbytes(size)
    data = gzip.compress(b"first") + gzip.compress(large) + gzip.compress(large[:7]) + gzip.compress(large)
    expected = b"first" + large + large[:7] + large
    assert decompress(Codec.GZIP, data, len(expected)) == expected
    with pytest.raises(CompressionError, match="more than"):
        decompress(Codec.GZIP, data, len(expected) - 1)
    for damaged in (data[:-1], data[:-9], data + b"x"):
        with pytest.raises(CompressionError, match="damaged gzip data"):
            decompress(Codec.GZIP, damaged)


@pytest.mark.parametrize(
    ("codec", "levels"), [(Codec.GZIP, (-1, 1, 9)), (Codec.LZ4, (1, 9, 17)), (Codec.ZSTD, (-5, 1, 19))]
)
def test_levels(codec, levels):
    for level in levels:
        assert bytes(decompress(codec, compress(codec, SAMPLES["text"], level))) == SAMPLES["text"]


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, 10), (Codec.ZSTD, 23), (Codec.LZ4, 0)])
def test_no_such_level(codec, level):
    with pytest.raises(ValueError, match=f"no compression level {level}"):
        compress(codec, b"x", level)


def test_snappy_has_no_levels():
    with pytest.raises(ValueError, match="snappy has no compression levels"):
        compress(Codec.SNAPPY, b"x", 1)


def test_names():
    assert Codec.of_name(" ZSTD ") is Codec.ZSTD
    with pytest.raises(ValueError, match="expected one of none, gzip, snappy, lz4, zstd"):
        Codec.of_name("brotli")


@pytest.fixture
def own_zstd(monkeypatch):
    monkeypatch.setattr(compression, "_REGISTERED", {})
    asked = []

    def pack(data, level):
        asked.append(level)
        return b"own" + bytes(data)

    def unpack(data, max_bytes):
        if bytes(data[:3]) != b"own":
            raise RuntimeError("not mine")
        return bytes(data[3:])

    compression.register_codec(" zstd", pack, unpack)
    return asked


def test_a_registered_codec_takes_the_place_of_the_bundled_one(own_zstd):
    assert compress(Codec.ZSTD, b"abc", 99) == b"ownabc"
    assert compress(Codec.GZIP, b"abc") != b"ownabc"
    assert decompress(Codec.ZSTD, b"ownabc", 3) == b"abc"
    assert own_zstd == [99]
    with pytest.raises(CompressionError, match="more than the 2 bytes"):
        decompress(Codec.ZSTD, b"ownabc", 2)
    with pytest.raises(CompressionError, match=r"can.t read it.*not mine"):
        decompress(Codec.ZSTD, b"abc")


def test_only_codecs_that_kafka_has_can_be_registered():
    for name in ("none", "brotli"):
        with pytest.raises(ValueError, match=name):
            compression.register_codec(name, None, None)
