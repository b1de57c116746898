"""`Properties`: the base class of configs. Each field declares its Java property, its parser and its
bounds.
"""

from __future__ import annotations

import enum
import operator
import os
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from numbers import Number
from typing import Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import ConfigError
from .secret import Secret

T = TypeVar("T")
INT32_MAX = 2**31 - 1
_FUNCTION: Any = Callable
"""The resolved type hint of a field that is a function."""


def text(text: str) -> str:
    """A property that is any text."""
    return text


def text_or_reference(text: str) -> str:
    """A property that is any text, or a reference, which is resolved where it is used."""
    return text


def boolean(text: str) -> bool:
    """A property that is ``true`` or ``false``. Raises ValueError."""
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def property_field(
    name: str,
    default: T,
    parse: Callable[[str], Any] = int,
    *,
    min_value: int | None = None,
    max_value: int | None = None,
    aliases: tuple[str, ...] = (),
) -> T:
    """A dataclass field that the Java property ``name`` or one of ``aliases`` sets. ``parse`` raises
    ValueError.
    """
    metadata = {
        "property": name,
        "parse": parse,
        "min_value": min_value,
        "max_value": max_value,
        "aliases": aliases,
    }
    return field(default=default, metadata=metadata)


def secret_field(name: str, *, aliases: tuple[str, ...] = ()) -> Secret | None:
    """A field of the type `Secret`, None by default; no error shows its value."""
    return property_field(name, None, Secret, aliases=aliases)


@dataclass(frozen=True, kw_only=True)
class Properties:
    """Base class of the configs: parses Java's properties, and checks the types and bounds of all values."""

    _types: ClassVar[Mapping[str, tuple[type, ...]]]
    """The allowed types of each field."""

    def __init_subclass__(cls) -> None:
        cls._types = {name: _alternatives(hint) for name, hint in get_type_hints(cls).items()}

    @classmethod
    def property_names(cls) -> frozenset[str]:
        """The names of all properties that this config reads."""
        return frozenset(name for f in fields(cls) for name in _names(f))

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], **values: Any) -> Self:
        """Parse the properties that this config knows and ignore the others (see `unknown_properties`);
        ``values`` are fields that take precedence.

        Raises `ConfigError` with the property, its value and the allowed values.
        """
        return cls(**(cls._parse(properties) | values))

    @classmethod
    def _parse(cls, properties: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for f in fields(cls):
            given = [name for name in _names(f) if name in properties]
            if not given:
                continue
            texts = [_text_of(name, properties[name]) for name in given]
            if any(text != texts[0] for text in texts):
                raise ConfigError(f"{' and '.join(given)} mean the same and differ: give one of them")
            values[f.name] = _entered(given[0], f, texts[0], cls._types[f.name])
        return values

    def __post_init__(self) -> None:
        """Check and convert the values: a text is parsed as the property would be.

        Without this, ``protocol="SSL"`` would be a plain text and the connection would not be encrypted.
        """
        for f in fields(self):
            low, high = f.metadata.get("min_value"), f.metadata.get("max_value")
            name = f.metadata.get("property", f.name)
            value = _entered(name, f, getattr(self, f.name), self._types[f.name])
            object.__setattr__(self, f.name, value)
            if value is None:
                continue
            if (low is not None and value < low) or (high is not None and value > high):
                bounds = f"at least {low}" if high is None else f"between {low} and {high}"
                raise ConfigError(f"{f.metadata['property']} must be {bounds}, not {value}")


def _names(f: Field[Any]) -> tuple[str, ...]:
    """The property of a field and its aliases; none for a field that no property sets."""
    name = f.metadata.get("property")
    return () if name is None else (name, *f.metadata["aliases"])


def all_names(name: str, configs: Iterable[type[Properties]]) -> tuple[str, ...]:
    """The names of the property that ``name`` sets in one of ``configs``, Java's first; else ``name``."""
    fields_of_all = (f for config in configs for f in fields(config))
    return next((names for f in fields_of_all if name in (names := _names(f))), (name,))


def _text_of(name: str, value: object) -> object:
    """A property's value as a properties file spells it; an enum, list or tuple is returned unchanged. As in
    Java (``ConfigDef``) without blanks around it, which the end of a line in a file may have: with one,
    ``group.id`` would be another group.
    """
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, enum.Enum | list | tuple):
        return value
    if not isinstance(value, str | Number | os.PathLike):  # str() would make up a text
        raise ConfigError(f"{name} must be a str, not of the type {type(value).__name__}")
    return os.fspath(value) if isinstance(value, os.PathLike) else trimmed(str(value))


def trimmed(text: str) -> str:
    """As Java's ``String.trim``: without blanks and control characters around it."""
    return text.strip(_TRIMMED)


_TRIMMED = "".join(map(chr, range(ord(" ") + 1)))


def _alternatives(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(one for part in get_args(hint) for one in _alternatives(part))
    return (get_origin(hint) or hint,)


def _entered(name: str, f: Field[Any], value: Any, allowed: tuple[type, ...]) -> Any:
    """``value`` converted to one of the ``allowed`` types. Raises `ConfigError` that shows no secret."""
    if type(value) in allowed and not isinstance(value, str | tuple):
        return value
    if _FUNCTION in allowed and callable(value):
        return value
    if Secret in allowed:
        if isinstance(value, str):
            return Secret(value)
        raise ConfigError(f"{name} must be a Secret or a str, not of the type {type(value).__name__}")
    text = _as_text(value, allowed)
    parse = f.metadata.get("parse")
    if text is None or parse is None:
        wanted = " or ".join(one.__name__ for one in allowed if one is not types.NoneType)
        if type(value) in allowed and all(isinstance(part, tuple) for part in value):
            return value  # pairs, which have no text form
        raise ConfigError(f"{name} must be of the type {wanted}, not {value!r}")
    try:
        return parse(text)
    except ValueError as error:
        problem = "must be a whole number" if parse is int else str(error)
        # Else the message already contains the value.
        found = f", not {value!r}" if problem.startswith("must") else ""
        raise ConfigError(f"{name} {problem}{found}") from None


def _as_text(value: Any, allowed: tuple[type, ...]) -> str | None:
    """A value as the text of a property; None if it has no such text."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        parts = [part for part in value if isinstance(part, str)]
        return ",".join(parts) if tuple in allowed and len(parts) == len(value) else None
    if isinstance(value, os.PathLike) and str in allowed:
        return os.fsdecode(value)
    if isinstance(value, bool | bytes) or value is None or bool in allowed or str in allowed:
        return None
    try:
        # Includes numpy's integers, and integer enums, which properties spell as numbers.
        return str(operator.index(value))
    except TypeError:
        return None
