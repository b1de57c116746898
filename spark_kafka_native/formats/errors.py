"""Errors of formats. A record that can't be decoded is no error here: `Decoded.bad` lists it."""

from __future__ import annotations


class FormatError(ValueError):
    """A format that does not exist, or a type or a setting that it can't work with."""


class SetupError(FormatError):
    """This machine can't do its part: it lacks a package, memory or room on its disk. Payloads are not bad
    because of that.
    """


class EncodeError(ValueError):
    """A row that a format can't write."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        """Its index in the array that was to be encoded."""
        self.reason = reason
