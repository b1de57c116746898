"""The compiled reader of JSON, where the build had a C compiler. `json_format` has its twin, `pyarrow.json`.

The environment variable ``SPARK_KAFKA_NATIVE_KERNEL=numpy`` turns it off, as the writer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .read_program import ReadProgram, powers_of_five
from .write_kernel import ENVIRONMENT_VARIABLE

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
        valid, offsets, data = payloads.buffers()
        edges: Any = (
            np.zeros(1, np.int32)
            if offsets is None or not len(payloads)
            else np.frombuffer(offsets, np.int32, len(payloads) + 1, payloads.offset * 4)
        )
        built, unsure = _read_kernel.decode(
            program.nodes, len(program.nodes), program.names, powers_of_five(), edges,
            valid if payloads.null_count else None, payloads.offset, data or b"", len(payloads),
        )  # fmt: skip
        return program.assemble(built), np.frombuffer(unsure, np.int64)

    return run


def choose_reader() -> Reader | None:
    """The reader to use, if any."""
    if os.environ.get(ENVIRONMENT_VARIABLE, "").strip().lower() == "numpy":
        return None
    return load_reader()
