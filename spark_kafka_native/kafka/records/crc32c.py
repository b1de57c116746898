"""CRC-32C (Castagnoli), the checksum of a record batch: a native wheel where there is one, else crcmod.

crcmod is slow without its own C extension (megabytes a second) but installs anywhere, so a platform for which
no native wheel exists still reads and writes right bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

Checksum = Callable[[bytes | bytearray | memoryview], int]


def load_native() -> Checksum:
    """Return fastcrc's CRC-32C (which calls it by its other name, iSCSI); ImportError where it is not
    installed."""
    import fastcrc

    return cast(Checksum, fastcrc.crc32.iscsi)


def load_portable() -> Checksum:
    """Return crcmod's CRC-32C."""
    import crcmod.predefined

    compute = cast(Checksum, crcmod.predefined.mkPredefinedCrcFun("crc-32c"))
    # Without its C extension crcmod walks its argument with ord-like indexing, which only bytes survive.
    return lambda data: compute(bytes(data))


def _load() -> Checksum:
    try:
        return load_native()
    except ImportError:
        return load_portable()


crc32c: Checksum = _load()
"""``crc32c(data) -> int`` in [0, 2**32): the CRC-32C of a contiguous buffer (RFC 3720, appendix B.4)."""
