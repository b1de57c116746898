"""Where the members of a JSON object and the elements of an array are, without Python objects for them.

Takes what `pyarrow.json` takes, so that a record is read alike alone and among others: values of any depth,
and numbers such as ``-NaN``.
"""

from __future__ import annotations

import json.decoder
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_PLAIN: Final = (
    r'("[^"\\\x00-\x1f]*"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)[ \t\r\n]*'
)
"""A value without escapes that is no object and no array."""
_PLAIN_MEMBER: Final = re.compile(rf'[ \t\r\n]*"([^"\\\x00-\x1f]*)"[ \t\r\n]*:[ \t\r\n]*{_PLAIN}[,}}]')
"""A usual member and the sign after it: one match costs less than many steps."""
_PLAIN_ELEMENT: Final = re.compile(rf"[ \t\r\n]*{_PLAIN}[,\]]")
_DELIMITERS: Final = frozenset(",} \t\r\n")


class _Skipper(json.JSONDecoder):
    """Finds where a value ends. Numbers are not converted."""

    def __init__(self) -> None:
        super().__init__(parse_int=_nothing, parse_float=_nothing, parse_constant=_nothing)


def _nothing(_text: str) -> None:
    return None


_skip: Final[Callable[[str, int], tuple[Any, int]]] = _Skipper().scan_once  # type: ignore[attr-defined]


def members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Name and place of each member of the object that is all of ``text`` from ``at``. Raises ValueError once
    the text is malformed; a value that may have broken off does not come before."""
    at = _space(text, at + 1)
    if text[at : at + 1] == "}":
        _check_end(text, at + 1)
        return
    while True:
        while plain := _PLAIN_MEMBER.match(text, at):
            start, end = plain.span(2)
            yield plain[1], start, end
            at = plain.end()
            if text[at - 1] == "}":
                _check_end(text, at)
                return
        at = _space(text, at)
        name, start = _name(text, at)
        end = _end_of(text, start)
        at = _space(text, end)
        if text[end : end + 1] in _DELIMITERS or text[end - 1] in '"}]':  # else a number may go on
            yield name, start, end
        match text[at : at + 1]:
            case ",":
                at = _space(text, at + 1)
            case "}":
                _check_end(text, at + 1)
                return
            case _:
                raise ValueError(f"malformed JSON at character {at}: expected ',' or '}}'")


def _name(text: str, at: int) -> tuple[str, int]:
    """The name of the member at ``at``, and where its value begins."""
    if text[at : at + 1] != '"':
        raise ValueError(f"malformed JSON at character {at}: expected a member's name")
    name, at = read_string(text, at)
    at = _space(text, at)
    if text[at : at + 1] != ":":
        raise ValueError(f"malformed JSON at character {at}: expected ':'")
    return name, _space(text, at + 1)


def elements(text: str, start: int) -> Iterator[tuple[int, int]]:
    """The place of each element of the array at ``start``, which is well-formed."""
    at = _space(text, start + 1)
    while text[at] != "]":
        while plain := _PLAIN_ELEMENT.match(text, at):
            yield plain.span(1)
            at = plain.end()
            if text[at - 1] == "]":
                return
        at = _space(text, at)
        end = _end_of(text, at)
        yield at, end
        at = _space(text, end)
        if text[at] == ",":
            at = _space(text, at + 1)


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def read_string(text: str, at: int) -> tuple[str, int]:
    """The string at ``at``, and where it ends. Raises ValueError."""
    try:
        value, end = json.decoder.scanstring(text, at + 1)  # type: ignore[attr-defined]
        return value, end
    except json.JSONDecodeError as error:
        raise ValueError(f"malformed JSON at character {error.pos}: {error.msg}") from None


def _end_of(text: str, start: int) -> int:
    """Where the value at ``start`` ends. Raises ValueError if it is malformed."""
    try:
        return _skip(text, start)[1]
    except json.JSONDecodeError as error:
        raise ValueError(f"malformed JSON at character {error.pos}: {error.msg}") from None
    except (StopIteration, RecursionError):
        return _end_of_any(text, start)


_ODD_NUMBER: Final = re.compile(r"-?Inf(?!inity)|-NaN")


def _end_of_any(text: str, at: int) -> int:
    """As `_end_of`, for values of any depth, and with the numbers that `json` does not take."""
    closing: list[str] = []
    while True:
        if text[at : at + 1] in ("{", "["):
            closing.append("}" if text[at] == "{" else "]")
            at = _space(text, at + 1)
            if text[at : at + 1] != closing[-1]:
                at = _name(text, at)[1] if closing[-1] == "}" else at
                continue
        else:
            at = _end_of_scalar(text, at)
        while closing and text[(at := _space(text, at)) : at + 1] == closing[-1]:
            closing.pop()
            at += 1
        if not closing:
            return at
        if text[at : at + 1] != ",":
            raise ValueError(f"malformed JSON at character {at}: expected ',' or '{closing[-1]}'")
        at = _space(text, at + 1)
        at = _name(text, at)[1] if closing[-1] == "}" else at


def _end_of_scalar(text: str, at: int) -> int:
    if match := _ODD_NUMBER.match(text, at):
        return match.end()
    if text[at : at + 1] == '"':
        return read_string(text, at)[1]
    try:
        return _skip(text, at)[1]
    except StopIteration:
        raise ValueError(f"malformed JSON at character {at}: expected a value") from None


def _check_end(text: str, at: int) -> None:
    if at != len(text) and _space(text, at) != len(text):
        raise ValueError(f"malformed JSON at character {at}: something follows the object")
