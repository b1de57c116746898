"""docs/options.md, written from the declarations: the page says what the code does."""

from __future__ import annotations

import enum
from dataclasses import fields
from typing import Any, Final

from ..kafka.config import ClientConfig, ConsumerConfig, ProducerConfig, SecurityConfig
from ..kafka.properties import Properties
from .options import OPTIONS, Option, OptionType, Scope

_INTRO: Final = """\
# Options

Generated from the declarations by `python -m spark_kafka_native.spark.options`; a test compares the two.

Names are case-insensitive. Options marked * are not known to Spark's own Kafka connector; all others mean
what they mean there, and fail with its words. An unknown name is not an error: a warning tells it, with the
nearest known one.
"""
_SECTIONS: Final = (
    ("Reading", Scope.READ | Scope.STREAM),
    ("Reading in streams only", Scope.STREAM),
    ("Writing", Scope.WRITE),
)
_CLIENT_SECTIONS: Final[tuple[tuple[str, type[Properties]], ...]] = (
    ("Client", ClientConfig),
    ("Security", SecurityConfig),
    ("Consumer (reading)", ConsumerConfig),
    ("Producer (writing)", ProducerConfig),
)
_OWN_OPTION: Final = {"poll.timeout.ms": "kafkaConsumer.pollTimeoutMs"}
"""Properties that a user sets through an option instead."""


def write_options_page() -> str:
    """The whole page, Markdown."""
    parts = [_INTRO]
    for title, scope in _SECTIONS:
        rows = [_write_row(option) for option in OPTIONS if _section_of(option) == scope]
        parts.append(
            f"## {title}\n\n| option | values | default | meaning |\n|---|---|---|---|\n"
            + "\n".join(rows)
            + "\n"
        )
    parts.append(
        "## Properties of the Kafka client\n\nWritten with the prefix `kafka.`, under Java's names. "
        "Properties of Java's clients that mean nothing here are accepted in silence.\n"
    )
    for title, config in _CLIENT_SECTIONS:
        rows = list(_write_properties(config))
        if rows:
            parts.append(f"### {title}\n\n| property | default |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _section_of(option: Option) -> Scope:
    if Scope.WRITE in option.scope and Scope.READ not in option.scope:
        return Scope.WRITE
    return Scope.READ | Scope.STREAM if Scope.READ in option.scope else Scope.STREAM


def _write_row(option: Option) -> str:
    batch_only = Scope.READ in option.scope and Scope.STREAM not in option.scope
    cells = (
        f"`{option.name}`{'*' if option.ours else ''}",
        _write_values(option),
        "" if option.default is None else f"`{option.default}`",
        option.sentence + (" Batch only." if batch_only else ""),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _write_values(option: Option) -> str:
    if option.type is OptionType.CHOICE:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.type is OptionType.TEXT:
        return option.values
    bounds = "" if option.least is None else f", at least {option.least}"
    return f"{option.type.value}{bounds}"


def _write_properties(config: type[Properties]) -> list[str]:
    rows: list[str] = []
    for field in fields(config):
        name = field.metadata.get("property")
        if name is not None and name not in _OWN_OPTION:
            rows.append(f"| `kafka.{name}` | {_write_default(field.default)} |")
    return rows


def _write_default(value: Any) -> str:
    if value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    shown = value.name.lower() if isinstance(value, enum.Enum) else value
    return f"`{shown}`"
