"""The loops over records and keys: compiled where the build had a compiler, with NumPy twins that are always
there.

Both have the signatures of `numpy_kernel` and give the same results and refuse the same input. Set the
environment variable ``SPARK_KAFKA_NATIVE_KERNEL=numpy`` to do without the compiled one.
"""

from __future__ import annotations

import os
from types import ModuleType

import numpy as np

from . import numpy_kernel

ENVIRONMENT_VARIABLE = "SPARK_KAFKA_NATIVE_KERNEL"

_LARGEST_LESSON = 32 * 1024 * 1024 - 64 * 1024


def load_compiled() -> ModuleType | None:
    """Return the compiled kernel, or None where it was not built."""
    try:
        from . import compiled_kernel
    except (ImportError, AttributeError):  # not built, or built of older sources
        return None
    return compiled_kernel


def _keep_freed_memory() -> None:
    """Teach glibc's allocator to keep what NumPy frees, instead of having every page faulted in again.

    It gives freed memory back beyond a threshold that it learns from the largest block it saw being freed, up
    to 32 MiB (mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD). This block is never touched, so it costs
    nothing; large record sets decode up to four times as fast. Other allocators don't care.
    """
    np.empty(_LARGEST_LESSON, np.uint8)


def _choose() -> ModuleType:
    wanted = os.environ.get(ENVIRONMENT_VARIABLE, "").strip().lower()
    if wanted == "numpy":
        return numpy_kernel
    return load_compiled() or numpy_kernel


_keep_freed_memory()
chosen: ModuleType = _choose()
"""The kernel in use."""

COMPILED: bool = chosen is not numpy_kernel
"""Whether the compiled kernel is in use."""
