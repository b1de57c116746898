"""`Option`: one option of the data source, its name, meaning and bounds; its text -> a value, or an error."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ...kafka.errors import ConfigError


class Scope(enum.Flag):
    """Where an option means something."""

    READ = enum.auto()
    """``spark.read``"""
    STREAM = enum.auto()
    """``spark.readStream``"""
    WRITE = enum.auto()
    """``df.write`` and ``df.writeStream``"""


class OptionType(enum.Enum):
    """How an option's text becomes a value."""

    TEXT = "text"
    BOOLEAN = "true or false"
    INT = "whole number"
    CHOICE = "one of"
    DURATION = "time span"
    """Milliseconds as a bare number, or with a unit: ``15m``, ``5s``."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: its bounds are inclusive; ``values`` describes a TEXT in the docs."""

    name: str
    scope: Scope
    sentence: str
    type: OptionType = OptionType.TEXT
    default: str | None = None
    """What counts if the option is not given: a value as a user would write it."""
    stream_default: str | None = None
    """The same for streams, where it is another."""
    minimum: int | None = None
    maximum: int | None = None
    cap: int | None = None
    """A number up to the maximum that is above this one means this one: it stands for "never"."""
    choices: tuple[str, ...] = ()
    values: str = ""
    ours: bool = False
    """Not an option of Spark's own connector."""

    def default_in(self, scope: Scope) -> str | None:
        """The default of a batch or a stream."""
        return (
            self.default if self.stream_default is None or scope is not Scope.STREAM else self.stream_default
        )

    def parse(self, text: str) -> Any:
        """The value of ``text``: str, bool or int (milliseconds for a DURATION). Raises `ConfigError`."""
        return _PARSERS[self.type](self, text)


def _parse_boolean(option: Option, text: str) -> bool:
    value = text.strip().lower()
    if value not in ("true", "false"):
        raise ConfigError(f"For input string: \"{text}\" (option '{option.name}' must be true or false)")
    return value == "true"


def _parse_int(option: Option, text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text):
        raise ConfigError(
            f"For input string: \"{text[:100]}\" (option '{option.name}' must be a whole number)"
        )
    return _check_bounds(option, int(text))


def _parse_choice(option: Option, text: str) -> str:
    value = text.strip().lower()
    if value not in option.choices:
        raise ConfigError(
            f"No value found for '{text}' (option '{option.name}' must be {' or '.join(option.choices)})"
        )
    return value


_DURATION_US: Final = {
    "us": 1, "": 1_000, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000,
    "h": 3_600_000_000, "d": 86_400_000_000,
}  # fmt: skip


def _parse_duration(option: Option, text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,19})\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _DURATION_US:
        raise ConfigError(
            f"Option '{option.name}' is a duration such as 500 (milliseconds), 5s or 15m, not {text[:100]!r}"
        )
    return _check_bounds(option, int(match[1]) * _DURATION_US[match[2]] // 1_000)


def _check_bounds(option: Option, value: int) -> int:
    if option.minimum == 1 and value < 1:
        # Spark's words; it spells the newer of the two names in lower case.
        shown = "maxrecordsperpartition" if option.name == "maxRecordsPerPartition" else option.name
        raise ConfigError(f"{shown} must be positive")
    maximum = (2**63 - 1) if option.maximum is None else option.maximum
    if (option.minimum is not None and value < option.minimum) or value > maximum:
        raise ConfigError(f"{option.name} must be between {option.minimum} and {maximum}, not {value}")
    return value if option.cap is None else min(value, option.cap)


_PARSERS: Final[dict[OptionType, Callable[[Option, str], Any]]] = {
    OptionType.TEXT: lambda _option, text: text,
    OptionType.BOOLEAN: _parse_boolean,
    OptionType.INT: _parse_int,
    OptionType.CHOICE: _parse_choice,
    OptionType.DURATION: _parse_duration,
}

INT32_MAX: Final = 2**31 - 1
