"""CRC-32C (Castagnoli), the checksum of a record batch: fastcrc's where its wheel is installed, else crcmod's
where that has its C extension, else one in NumPy.

A cluster that got this package as a zip has neither wheel; it still reads and writes right bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from . import numpy_crc32c

Checksum = Callable[[bytes | bytearray | memoryview], int]


def load_native() -> Checksum:
    """Return fastcrc's CRC-32C (which calls it by its other name, iSCSI); ImportError where it is not
    installed."""
    import fastcrc

    return cast(Checksum, fastcrc.crc32.iscsi)


def load_portable() -> Checksum:
    """Return crcmod's CRC-32C; ImportError where it is not installed, or without its C extension: in Python
    it takes 0.3 us a byte, NumPy a small part of that."""
    import crcmod.predefined
    from crcmod import _crcfunext  # noqa: F401 - whether it is there

    compute = cast(Checksum, crcmod.predefined.mkPredefinedCrcFun("crc-32c"))
    return lambda data: compute(bytes(data))


def _choose() -> Checksum:
    for load in (load_native, load_portable):
        try:
            return load()
        except ImportError:
            continue
    return numpy_crc32c.crc32c


crc32c: Checksum = _choose()
"""``crc32c(data) -> int`` in [0, 2**32): the CRC-32C of a contiguous buffer (RFC 3720, appendix B.4)."""
