"""`options_from_properties`: a Kafka client's ``.properties`` file as options of ``pykafka``."""

from __future__ import annotations

import os
from typing import Final

from ...kafka.config.properties_file import parse_properties
from ...kafka.security.config_providers import read_file
from .table import OPTIONS

_OWN: Final = frozenset(option.name.lower() for option in OPTIONS)
_LEFT_OUT: Final = ("key.serializer", "value.serializer", "key.deserializer", "value.deserializer")
"""Settings that Java's clients need and ``pykafka`` does not: keys and values are bytes."""


def options_from_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the file that Java's clients and Kafka's tools take, for
    ``options(**options_from_properties(path))``.

    The client's properties get their ``kafka.`` prefix; names that have it, and options such as
    ``subscribe``, stay as they are; (de)serializers are left out. ``${env:NAME}`` becomes ``env:NAME``.
    Raises `ConfigError`.
    """
    content = read_file("options_from_properties", os.fspath(path))
    found: dict[str, str] = {}
    for name, value in parse_properties(content).items():
        lowered = name.lower()
        if lowered in _LEFT_OUT:
            continue
        own = lowered in _OWN or lowered.startswith("kafka.")
        found[name if own else f"kafka.{name}"] = value
    return found
