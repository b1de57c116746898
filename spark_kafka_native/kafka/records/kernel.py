"""The loops over records: compiled where the build had a compiler, and NumPy twins that are always there.

Both have the signatures of `numpy_kernel` and give the same results and refuse the same input. Set the
environment variable ``SPARK_KAFKA_NATIVE_KERNEL=numpy`` to do without the compiled one.
"""

from __future__ import annotations

import os
from types import ModuleType

from . import numpy_kernel

ENVIRONMENT_VARIABLE = "SPARK_KAFKA_NATIVE_KERNEL"


def load_compiled() -> ModuleType | None:
    """Return the compiled kernel, or None where it was not built."""
    try:
        from . import compiled_kernel
    except ImportError:
        return None
    return compiled_kernel


def _choose() -> ModuleType:
    wanted = os.environ.get(ENVIRONMENT_VARIABLE, "").strip().lower()
    if wanted == "numpy":
        return numpy_kernel
    return load_compiled() or numpy_kernel


chosen: ModuleType = _choose()
"""The kernel in use."""

COMPILED: bool = chosen is not numpy_kernel
"""Whether the compiled kernel is in use."""
