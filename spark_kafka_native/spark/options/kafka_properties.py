"""Warnings about properties under ``kafka.`` that nothing here reads."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Final

from ...kafka.config.client_config import unknown_properties
from ...kafka.config.properties import Properties

MEANINGLESS: Final = {
    "group.remote.assignor",
    "internal.throw.on.fetch.stable.offset.unsupported",
    "metadata.max.idle.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "share.acknowledgement.mode",
    "share.acquire.mode",
}
"""Legal for Java's clients, and without a meaning here: nothing is said."""
_NOT_YET: Final = ("sasl.", "ssl.", "config.providers")
"""How names begin that Java's clients know and that would make a difference."""
NO_EFFECT: Final = "is not supported yet: it has no effect"
_TYPO: Final = 0.9
"""How alike a name and a known one are (`difflib`) where it is a slip of the finger."""


def describe_unread(
    names: Iterable[str], configs: Iterable[type[Properties]], meaningless: Collection[str] = ()
) -> tuple[str, ...]:
    """A warning for each of ``names`` (without their prefix) that none of ``configs`` reads and that is not
    ``meaningless`` here."""
    unknown = unknown_properties(names, *configs)
    return tuple(
        _describe(name, nearest)
        for name, nearest in unknown.items()
        if name not in MEANINGLESS and name not in meaningless
    )


def _describe(name: str, nearest: str | None) -> str:
    is_typo = nearest is not None and difflib.SequenceMatcher(None, name, nearest).ratio() >= _TYPO
    if name.startswith(_NOT_YET) and not is_typo:
        return f"Option 'kafka.{name}' {NO_EFFECT}"
    hint = "" if nearest is None else f"; did you mean 'kafka.{nearest}'?"
    return f"Unknown option 'kafka.{name}' is ignored{hint}"
