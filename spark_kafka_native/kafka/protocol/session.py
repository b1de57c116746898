"""The former name of `framing`."""

import warnings

from .framing import Framing as Session

__all__ = ["Session"]
warnings.warn(
    f"Session of {__name__} is now Framing of {Session.__module__}", DeprecationWarning, stacklevel=2
)
