"""The kernel: the loops over payloads and rows, compiled where the build had a C compiler, else in Python.

`AvroKernel` is the interface; `PythonKernel` is always there, and slower by far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...kernel_choice import wants_compiled
from ..arrays import offsets_and_data
from . import twin_read, twin_write
from .program import I32, Program


class BuiltArray(NamedTuple):
    """What a builder has built: the buffers of an Arrow array, None where it has none."""

    length: int
    nulls: int
    valid: bytes | None
    offsets: bytes | None
    """32 bits each, of lists and bytes."""
    data: bytes | None


class AvroColumns(NamedTuple):
    """The arrays that a program writes out of, in the form that kernels take."""

    shapes: npt.NDArray[np.int64]
    """Shape (n, 4): the rows, the offset of the first, the bits of a value, the length of a list's items (or
    -1)."""
    buffers: Sequence[Any]
    """Validity, offsets and data of each column; ``b""`` where it has none."""


class Refused(NamedTuple):
    """A row that can't be written."""

    row: int
    reason: int
    step: int


class AvroKernel(Protocol):
    """The loops."""

    def decode(
        self, program: Program, payloads: pa.Array, prefix: bytes
    ) -> tuple[list[BuiltArray], list[tuple[int, int, int]]]:
        """Run ``program`` for each payload (binary): what each builder has built, and the bad rows, each with
        its reason (`reasons`) and the step that failed, or -1. A row that is null or bad is null.

        A payload that begins with ``prefix`` is read from behind it. Raises OverflowError where a column
        would have more than 2 GiB.
        """

    def encode(
        self, program: Program, columns: AvroColumns, skip: npt.NDArray[np.uint8]
    ) -> tuple[bytes, I32] | Refused:
        """Run ``program`` for each row that is not to be skipped: all payloads joined, and where they end,
        after a 0; or the first row that can't be written. Raises OverflowError for more than 2 GiB."""


class CompiledAvroKernel:
    """The C extension as an `AvroKernel`. AttributeError if it lacks a loop."""

    def __init__(self, loops: Any) -> None:
        self._decode, self._encode = loops.decode, loops.encode

    def decode(
        self, program: Program, payloads: pa.Array, prefix: bytes
    ) -> tuple[list[BuiltArray], list[tuple[int, int, int]]]:
        """As `AvroKernel.decode`."""
        valid = payloads.buffers()[0] if payloads.null_count else None
        offsets, data = offsets_and_data(payloads)
        built, bad = self._decode(
            program.steps, len(program.steps), program.links, len(program.links), program.builders,
            len(program.builders), program.constants, offsets, valid,
            payloads.offset, data, len(payloads), prefix,
        )  # fmt: skip
        found = np.frombuffer(bad, _BAD).tolist() if bad else []
        return [BuiltArray(*one) for one in built], found

    def encode(
        self, program: Program, columns: AvroColumns, skip: npt.NDArray[np.uint8]
    ) -> tuple[bytes, I32] | Refused:
        """As `AvroKernel.encode`."""
        ends = np.zeros(len(skip) + 1, np.int32)
        written = self._encode(
            program.steps, len(program.steps), program.links, len(program.links), program.constants,
            columns.shapes, len(columns.shapes), columns.buffers, skip, len(skip), ends,
        )  # fmt: skip
        return (written, ends) if isinstance(written, bytes) else Refused(*written)


class PythonKernel:
    """The loops in Python."""

    def decode(
        self, program: Program, payloads: pa.Array, prefix: bytes
    ) -> tuple[list[BuiltArray], list[tuple[int, int, int]]]:
        """As `AvroKernel.decode`."""
        return twin_read.decode(program, payloads, prefix)

    def encode(
        self, program: Program, columns: AvroColumns, skip: npt.NDArray[np.uint8]
    ) -> tuple[bytes, I32] | Refused:
        """As `AvroKernel.encode`."""
        return twin_write.encode(program, columns, skip)


_BAD: Final = np.dtype([("row", np.int64), ("reason", np.int32), ("step", np.int32)])


def load_compiled() -> CompiledAvroKernel | None:
    """Return the compiled kernel, or None where it was not built."""
    try:
        from . import _kernel

        return CompiledAvroKernel(_kernel)
    except (ImportError, AttributeError):  # not built, or built from older sources
        return None


def choose() -> AvroKernel:
    """The kernel to use."""
    return (load_compiled() if wants_compiled() else None) or PythonKernel()
