"""The compiled reader of JSON, where the build had a compiler; `json_format` has its twin, `pyarrow.json`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...kernel_choice import wants_compiled
from ..arrays import offsets_and_data
from .read_program import ReadProgram, powers_of_five

Reader = Callable[[ReadProgram, pa.Array], tuple[pa.Array, npt.NDArray[np.int64]]]


def load_reader() -> Reader | None:
    """Return the compiled reader, or None where it was not built.

    It runs a program for each payload (binary), and returns the array of the program's type, and the rows of
    which it is not sure, in ascending order, which are null there. Raises OverflowError where a column would
    have more than 2 GiB.
    """
    try:
        from . import _read_kernel
    except ImportError:  # not built
        return None

    def run(program: ReadProgram, payloads: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
        valid = payloads.buffers()[0] if payloads.null_count else None
        offsets, data = offsets_and_data(payloads)
        built, unsure = _read_kernel.decode(
            program.nodes, len(program.nodes), program.names, powers_of_five(), offsets,
            valid, payloads.offset, data, len(payloads),
        )  # fmt: skip
        return program.assemble(built), np.frombuffer(unsure, np.int64)

    return run


def choose_reader() -> Reader | None:
    """The reader to use, if any."""
    return load_reader() if wants_compiled() else None
