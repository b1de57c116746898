"""``python -m spark_kafka_native.spark.options`` prints docs/options.md, written from the declarations: the
page says what the code does."""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import textwrap
from dataclasses import Field, fields
from typing import Any, Final

from ...kafka.config.client_config import (
    JAVA_ONLY,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    SecurityConfig,
)
from ...kafka.config.properties import Properties
from ..read.read_options import REFUSED as READ_REFUSED
from ..write.write_options import REFUSED as WRITE_REFUSED
from .option import Option, OptionType, Scope
from .option_values import MEANINGLESS, MEANINGLESS_IN_WRITES
from .table import OPTIONS

_INTRO: Final = """\
# Options

Generated from the declarations by `python -m spark_kafka_native.spark.options`; a test compares the two.

Names are case-insensitive. Options marked * are unknown to Spark's own Kafka connector; all others mean what
they mean there, and their errors use its words. Where a row has two names, the second is the same for keys.
An unknown name is not an error, unless `unknownOptions=error` says so: a warning names it, and the nearest
known one. A time span is a number of milliseconds, or has a unit: `500us`, `500ms`, `5s`, `15m`, `2h`, `7d`.
"""
_SECTIONS: Final = (
    ("Reading", Scope.READ | Scope.STREAM),
    ("Reading in streams only", Scope.STREAM),
    ("Writing", Scope.WRITE),
)
_GROUP_ID: Final = (
    "| `kafka.group.id` | text |  | Reading joins no group, and a warning says so: the id is only used for "
    "`startingOffsets=committed`, for `commitOffsets=true`, and in error messages. `groupIdPrefix` has no "
    "effect beside it. In writes it has none. |"
)
_NOT_HERE: Final = JAVA_ONLY | MEANINGLESS_IN_WRITES | set(WRITE_REFUSED)
"""Properties of the client that mean nothing in Spark."""
_CLIENT_SECTIONS: Final[tuple[tuple[str, type[Properties]], ...]] = (
    ("Client", ClientConfig),
    ("Security", SecurityConfig),
    ("Consumer (reading)", ConsumerConfig),
    ("Producer (writing)", ProducerConfig),
)
_OWN_OPTION: Final = {"poll.timeout.ms": "kafkaConsumer.pollTimeoutMs"}
"""Properties that a user sets through an option instead."""
_SHOWN_DEFAULT: Final = {"ssl.endpoint.identification.algorithm": "`https`"}


def write_options_page() -> str:
    """The whole page, Markdown."""
    parts = [_INTRO]
    for title, scope in _SECTIONS:
        rows = [
            _write_row(option)
            for option in OPTIONS
            if _section_of(option) == scope and not _is_of_keys(option.name)
        ]
        parts.append(
            f"## {title}\n\n| option | values | default | meaning |\n|---|---|---|---|\n"
            + "\n".join(rows)
            + "\n"
        )
    parts.append(
        "## Properties of the Kafka client\n\nWritten with the prefix `kafka.`, under Java's names. "
        "Properties of Java's clients that have no meaning here are accepted silently. Several names in one "
        "row mean the same.\n"
    )
    for title, config in _CLIENT_SECTIONS:
        rows = ([_GROUP_ID] if config is ConsumerConfig else []) + _write_properties(config)
        if rows:
            parts.append(
                f"### {title}\n\n| property | values | default | meaning |\n|---|---|---|---|\n"
                + "\n".join(rows)
                + "\n"
            )
    return "\n".join((*parts, _write_without_effect()))


def _write_without_effect() -> str:
    """Properties of Java's clients and of the bundled one that the data source has no use for."""
    lists = (
        ("Without effect", (JAVA_ONLY | MEANINGLESS) - {"group.id"}),
        ("Without effect in writes", MEANINGLESS_IN_WRITES - JAVA_ONLY - MEANINGLESS),
        ("Refused in reads", set(READ_REFUSED)),
        ("Refused in writes", set(WRITE_REFUSED)),
    )
    rows = [
        f"| {title} | {', '.join(f'`kafka.{name}`' for name in sorted(names))} |" for title, names in lists
    ]
    return (
        "### Without effect\n\nKnown and accepted without a word, or refused with the reason. "
        "`createTopics` takes the place of `kafka.allow.auto.create.topics`.\n\n"
        "| | properties |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def _section_of(option: Option) -> Scope:
    if Scope.WRITE in option.scope and Scope.READ not in option.scope:
        return Scope.WRITE
    return Scope.READ | Scope.STREAM if Scope.READ in option.scope else Scope.STREAM


def _is_of_keys(name: str) -> bool:
    """True for an option that has the row of its twin for values."""
    return name.startswith("key.")


def _write_row(option: Option) -> str:
    batch_only = Scope.READ in option.scope and Scope.STREAM not in option.scope
    of_keys = option.name.replace("value.", "key.", 1)
    names = [option.name, *(other.name for other in OPTIONS if other.name == of_keys != option.name)]
    cells = (
        ", ".join(f"`{name}`{'*' if option.ours else ''}" for name in names),
        _write_values(option),
        _write_option_default(option),
        option.sentence + (" Batch only." if batch_only else ""),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _write_option_default(option: Option) -> str:
    if option.stream_default is not None:
        return f"`{option.default}`; streams: `{option.stream_default}`"
    return "" if option.default is None else f"`{option.default}`"


def _write_values(option: Option) -> str:
    if option.type is OptionType.CHOICE:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.type is OptionType.TEXT:
        return option.values
    unit = " ms" if option.type is OptionType.DURATION else ""
    bounds = "" if option.minimum is None else f", minimum {option.minimum}{unit}"
    return f"{option.type.value}{bounds}"


def _write_properties(config: type[Properties]) -> list[str]:
    meanings = _field_docstrings(config)
    if missing := [field.name for field in fields(config) if field.metadata and field.name not in meanings]:
        raise LookupError(f"{config.__name__}: no docstring behind {', '.join(missing)}")
    rows: list[str] = []
    for field in fields(config):
        name = field.metadata.get("property")
        if name is not None and name not in _OWN_OPTION and name not in _NOT_HERE:
            cells = (
                ", ".join(f"`kafka.{known}`" for known in (name, *field.metadata["aliases"])),
                _write_bounds(field),
                _SHOWN_DEFAULT.get(name) or _write_default(field.default),
                meanings[field.name],
            )
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _field_docstrings(config: type[Properties]) -> dict[str, str]:
    """The first paragraph of the docstring behind each field, as Markdown."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(declared, ast.ClassDef)
    found: dict[str, str] = {}
    for field, docstring in itertools.pairwise(declared.body):
        match field, docstring:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.partition("\n\n")[0].split()).replace("``", "`")
    return found


_UNITS: Final = (("ms", "milliseconds"), ("bytes", "bytes"), ("memory", "bytes"), ("size", "bytes"))
"""What a property counts, by the last word of its name."""


def _write_bounds(field: Field[Any]) -> str:
    if isinstance(field.default, bool) or "bool" in str(field.type):
        return "`https` or empty" if field.metadata["property"] in _SHOWN_DEFAULT else "true or false"
    if field.metadata["parse"] is not int:
        return ""
    unit = dict(_UNITS).get(field.metadata["property"].rpartition(".")[2], "whole number")
    lowest = field.metadata["min_value"]
    return unit if lowest is None else f"{unit}, minimum {lowest}"


def _write_default(value: Any) -> str:
    if value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    shown = value.name.lower() if isinstance(value, enum.Enum) else value
    return f"`{shown}`"


if __name__ == "__main__":
    print(write_options_page(), end="")
