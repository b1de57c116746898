"""`Properties`: a frozen dataclass whose fields know the Java property that sets them, how to parse
it, and its bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

from .errors import ConfigError

T = TypeVar("T")


def property_field(
    name: str,
    default: T,
    parse: Callable[[str], Any] = int,
    *,
    least: int | None = None,
    most: int | None = None,
    secret: bool = False,
) -> T:
    """A dataclass field that Java's property ``name`` sets. ``parse`` raises ValueError; a secret stays out
    of repr.
    """
    metadata = {"property": name, "parse": parse, "least": least, "most": most}
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, kw_only=True)
class Properties:
    """Base of the configs: builds one from Java's property names and checks every value's bounds."""

    @classmethod
    def property_names(cls) -> frozenset[str]:
        """Java's names of everything that this config reads."""
        return frozenset(name for f in fields(cls) if (name := f.metadata.get("property")) is not None)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Parse the properties that this config knows and leave the others alone (see `unknown_properties`).

        Raises `ConfigError` that names the property, its value and what is allowed.
        """
        return cls(**cls._parse(properties))

    @classmethod
    def _parse(cls, properties: Mapping[str, str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for f in fields(cls):
            name = f.metadata.get("property")
            if name is None or name not in properties:
                continue
            try:
                values[f.name] = f.metadata["parse"](str(properties[name]))
            except ValueError as error:
                told = "must be a whole number" if f.metadata["parse"] is int else str(error)
                shown = "" if not f.repr else f", not {properties[name]!r}"
                raise ConfigError(f"{name} {told}{shown}") from None
        return values

    def __post_init__(self) -> None:
        for f in fields(self):
            least, most = f.metadata.get("least"), f.metadata.get("most")
            value = getattr(self, f.name)
            if (least is not None and value < least) or (most is not None and value > most):
                bounds = f"at least {least}" if most is None else f"between {least} and {most}"
                raise ConfigError(f"{f.metadata['property']} must be {bounds}, not {value}")
