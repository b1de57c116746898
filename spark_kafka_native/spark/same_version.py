"""`SameVersion`: a reader or writer that another version of the package has pickled is refused.

Dataclasses with slots are pickled as lists of values: where another version has other fields, each value
lands in the next field without an error, and records are read by the wrong settings.
"""

from __future__ import annotations

from typing import Any, Final

from ..kafka.errors import ConfigError
from ..version import __version__

_STAMP: Final = "made_by"


class SameVersion:
    """The first base of all that Spark pickles to other processes."""

    def sent_state(self) -> dict[str, Any]:
        """The attributes that the other side needs."""
        return dict(self.__dict__)

    def __getstate__(self) -> dict[str, Any]:
        # First: unpickling it fails before there is anything that the other version may not have.
        return {_STAMP: _Stamp(), **self.sent_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if _STAMP not in state:
            check_version("of an older version")
        self.__dict__.update({name: value for name, value in state.items() if name != _STAMP})


class _Stamp:
    """The version that pickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return check_version, (__version__,)


def check_version(theirs: str) -> None:
    """Raise `ConfigError` if the version that has pickled an object is not ``theirs`` too."""
    if theirs != __version__:
        raise ConfigError(
            f"the driver has spark-kafka-native {theirs}, and this Python worker has {__version__}: install "
            "the same version on the driver and all executors"
        )
