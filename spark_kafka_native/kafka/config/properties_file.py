"""A parser for Java's ``.properties`` files, as Kafka's own tools read them. Pure: text in, names and values
out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from ..errors import ConfigError
from .secret import is_reference

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PLACEHOLDER: Final = re.compile(r"\$\{([^{}:]{0,100}):([^{}]{0,1000})\}")


def parse_properties(content: str | bytes, referred: Callable[[str, str], str]) -> dict[str, str]:
    """Names and values, by the rules of ``java.util.Properties``: comments, continued lines, escapes.

    Bytes are UTF-8 (with or without a byte order mark), or else ISO-8859-1. For the value ``${env:NAME}``
    stands ``referred(property, "env:NAME")``; Kafka's other config providers are a `ConfigError`, which names
    the property and shows no value.
    """
    found: dict[str, str] = {}
    for line in _logical_lines(content if isinstance(content, str) else _decoded(content)):
        name, value = _split(line)
        reference = _reference(name, value)
        found[name] = value if reference is None else referred(name, reference)
    return found


def _decoded(content: bytes) -> str:
    if b"\0" in content:
        raise ConfigError("a NUL byte is in it: save it as UTF-8, it may be UTF-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("iso-8859-1")  # the encoding in the format's specification


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments. A line that ends in an odd number of backslashes continues on the next one."""
    kept = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not kept and (not line or line[0] in "#!"):
            continue
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            kept += line[:-1]
            continue
        yield kept + line
        kept = ""
    if kept:
        yield kept


def _split(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(" \t\f")
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(" \t\f")
    return _unescaped(line[:at]), _unescaped(rest)


def _unescaped(text: str) -> str:
    letters: list[str] = []
    at = 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "\\" and at < len(text):
            letter = text[at]
            at += 1
            if letter == "u":
                digits, at = text[at : at + 4], at + 4
                if not re.fullmatch("[0-9A-Fa-f]{4}", digits):
                    raise ConfigError("a properties file has a \\u that four hexadecimal digits don't follow")
                letter = chr(int(digits, 16))
            else:
                letter = _ESCAPES.get(letter, letter)
        letters.append(letter)
    # Characters beyond 16 bits are written as two escapes.
    return "".join(letters).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _reference(name: str, value: str) -> str | None:
    placeholder = _PLACEHOLDER.search(value)
    if placeholder is None:
        return None
    reference = f"env:{placeholder.group(2)}"
    whole = placeholder.group(0) == value.strip()
    if placeholder.group(1) == "env" and whole and is_reference(reference):
        return reference
    raise ConfigError(
        f"{name}: of Kafka's configuration providers only ${{env:NAME}} is known here, as the whole value, "
        f"with letters, digits and _ in NAME (a password may also be file:/path)"
    )
