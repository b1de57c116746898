"""`wants_compiled`: compiled kernels, or the twins that do without a compiler; for all kernels alike."""

from __future__ import annotations

import os
from typing import Final

ENVIRONMENT_VARIABLE: Final = "SPARK_KAFKA_NATIVE_KERNEL"
"""``numpy`` chooses the twins; anything else the compiled kernels, as far as the build has them."""


def wants_compiled() -> bool:
    """False if the environment chooses the twins."""
    return os.environ.get(ENVIRONMENT_VARIABLE, "").strip().lower() != "numpy"
