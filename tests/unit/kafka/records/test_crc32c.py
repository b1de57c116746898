"""All implementations give the same checksum; the first that is installed is used."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from spark_kafka_native.kafka.records import crc32c as checksums
from spark_kafka_native.kafka.records.crc32c import numpy_crc32c

# RFC 3720, appendix B.4.
VECTORS = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(reversed(range(32))): 0x113FDB5C,
    b"123456789": 0xE3069283,
    b"": 0,
}


@pytest.mark.parametrize("compute", [checksums.load_native(), checksums.load_portable(), numpy_crc32c])
@pytest.mark.parametrize("data", VECTORS)
def test_published_vectors(compute, data: bytes) -> None:
    assert compute(data) == VECTORS[data]


# Rows of 128 bytes are taken side by side from the 13th on, and folded by halves.
EDGES = [1536, 1663, 1664, 1665, 1792, 2047, 2048, 2049, 4095, 4096, 16_384, 16_512, 100_003, 1_000_001]


@pytest.mark.parametrize("few_rows", [0, 12])
def test_all_three_agree_on_any_length(monkeypatch: pytest.MonkeyPatch, few_rows: int) -> None:
    monkeypatch.setattr(checksums, "_FEW_ROWS", few_rows)
    native, portable = checksums.load_native(), checksums.load_portable()
    rng = random.Random(5)
    for size in [*range(130), *EDGES, *(rng.randrange(20_000) for _ in range(200))]:
        data = rng.randbytes(size + 3)
        for view in (data, bytearray(data), memoryview(data)[1:-1]):
            assert native(view) == portable(view) == numpy_crc32c(view)


@pytest.mark.parametrize("missing", [["fastcrc"], ["fastcrc", "crcmod"], ["fastcrc", "crcmod._crcfunext"]])
def test_the_next_one_steps_in(missing: list[str]) -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r})); "
        "from spark_kafka_native.kafka.records.crc32c import crc32c; "
        "print(crc32c(memoryview(b'123456789')), crc32c.__qualname__)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    number, implementation = out.stdout.split()
    assert int(number) == 0xE3069283
    assert ("<lambda>" if missing == ["fastcrc"] else "numpy_crc32c") in implementation
