r"""`Subscription`: the topic-partitions of the options ``assign``, ``subscribe`` and ``subscribePattern``.
`translate_java_pattern`: from a Java regular expression to the Python one that finds the same topics.

Pure: the driver fetches the metadata. Users copy patterns from jobs of the JVM connector. Topic names consist
of 65 ASCII characters, none of them white space: a character class is the set of those it contains, after
Java's rules for ranges, unions, intersections and Unicode. What can't be translated faithfully is refused.
"""

from __future__ import annotations

import functools
import re
import string
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...kafka.errors import ConfigError
from ...kafka.model import TopicPartition
from ..options.option_values import OptionValues
from .offset_range import parse_assignment


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions."""

    topic_partitions: tuple[TopicPartition, ...]

    def __str__(self) -> str:
        return f"Assign[{', '.join(map(str, self.topic_partitions))}]"


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]

    def __str__(self) -> str:
        return f"Subscribe[{', '.join(self.topics)}]"


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics with a match of a Java regex in their name; no internal topics."""

    pattern: str

    def __post_init__(self) -> None:
        translate_java_pattern(self.pattern)

    def matches(self, topic: str) -> bool:
        """True if the pattern is found in ``topic``."""
        return translate_java_pattern(self.pattern).search(topic) is not None

    def __str__(self) -> str:
        return f"SubscribePattern[{self.pattern}]"


Subscription = Assign | Subscribe | SubscribePattern

_STRATEGIES: Final = ("subscribe", "subscribePattern", "assign")


def parse_subscription(values: OptionValues) -> Subscription:
    """The one of the three options that is given. Raises `ConfigError` for none or several."""
    given = [name for name in _STRATEGIES if name in values]
    if len(given) != 1:
        which, verb = ("Only one", "can") if given else ("One", "must")
        raise ConfigError(
            f"{which} of the following options {verb} be specified for Kafka source: "
            "subscribe, subscribepattern, assign. See the docs for more details."
            + ("" if given else values.near_miss(*_STRATEGIES))
        )
    text = values.text(given[0]) or ""
    return _SUBSCRIPTIONS[given[0]](text)


def _parse_assign(text: str) -> Subscription:
    if not text.strip().startswith("{"):
        raise ConfigError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    return Assign(parse_assignment(text))


def _parse_subscribe(text: str) -> Subscription:
    topics = tuple(dict.fromkeys(topic for part in text.split(",") if (topic := part.strip())))
    if not topics:
        raise ConfigError(f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'")
    return Subscribe(topics)


def _parse_pattern(text: str) -> Subscription:
    if not text.strip():
        raise ConfigError(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{text}'"
        )
    return SubscribePattern(text.strip())


_SUBSCRIPTIONS: Final[dict[str, Callable[[str], Subscription]]] = {
    "assign": _parse_assign,
    "subscribe": _parse_subscribe,
    "subscribePattern": _parse_pattern,
}


_Chars = frozenset[str]
NAME_CHARS: Final[_Chars] = frozenset(string.ascii_letters + string.digits + "._-")
"""What a topic name may consist of."""
_NONE: Final[_Chars] = frozenset()
_WORD: Final = NAME_CHARS - set(".-")
_DIGITS: Final = frozenset(string.digits)
_LETTERS: Final = frozenset(string.ascii_letters)
_PUNCTUATION: Final = frozenset("._-")

_NAMED: Final[dict[str, _Chars]] = {
    **dict.fromkeys(("Lower", "javaLowerCase", "IsLowercase"), frozenset(string.ascii_lowercase)),
    **dict.fromkeys(("Upper", "javaUpperCase", "IsUppercase"), frozenset(string.ascii_uppercase)),
    **dict.fromkeys(
        ("Alpha", "javaLetter", "javaAlphabetic", "IsAlphabetic", "IsLetter", "IsLatin"), _LETTERS
    ),
    **dict.fromkeys(("Digit", "javaDigit", "IsDigit"), _DIGITS),
    **dict.fromkeys(("Alnum", "javaLetterOrDigit"), _LETTERS | _DIGITS),
    **dict.fromkeys(("Punct", "IsPunctuation"), _PUNCTUATION),
    **dict.fromkeys(("ASCII", "Graph", "Print", "InBASIC_LATIN"), NAME_CHARS),
    **dict.fromkeys(("Blank", "Cntrl", "Space", "javaWhitespace", "IsWhite_Space", "IsControl"), _NONE),
    "XDigit": frozenset(string.hexdigits),
}
_ESCAPED_SETS: Final[dict[str, _Chars]] = {"d": _DIGITS, "w": _WORD, "s": _NONE, "h": _NONE, "v": _NONE}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ANCHORS: Final = {"A": r"\A", "G": r"\A", "Z": r"\Z", "z": r"\Z", "b": r"\b", "B": r"\B"}
_FLAGS: Final = re.compile(r"\(\?([idmsuxU]*)(?:-([idmsuxU]*))?([:)])")
"""Of these only ``i`` and ``x`` make a difference for names without line ends."""
_OPENINGS: Final = re.compile(r"\((?:\?(?:[:=!>]|<[=!]))?(?!\?)")
_NAMED_GROUP: Final = re.compile(r"\(\?<([A-Za-z][A-Za-z0-9]*)>")
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{[0-9]{1,9}(?:,[0-9]{0,9})?\})[+?]?")
_NUMBERED: Final = re.compile(
    r"0([0-3][0-7]{2}|[0-7]{1,2})|x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})"
)
_PROPERTY: Final = re.compile(r"([pP])(?:\{(\w+)\}|(\w))")


@functools.lru_cache(maxsize=16)
def translate_java_pattern(pattern: str) -> re.Pattern[str]:
    """The Python pattern that finds in a topic name what Java's ``Pattern`` would.

    Raises `ConfigError` for a pattern that is malformed or has no faithful translation.
    """
    translated = _Translation(pattern).run()
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, OverflowError) as error:
        raise ConfigError(
            f"Option 'subscribePattern': {pattern!r} is not a regular expression, or uses what is not "
            f"supported here: {error}"
        ) from error


class _Translation:
    """One pass over the pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._out: list[str] = []
        self._ignores_case = False
        self._outer_case: list[bool] = []
        """Of each open group, what holds again after it."""
        self._groups = 0
        self._flags_end = 0
        """Where there is nothing to repeat."""

    def run(self) -> str:
        """The translation."""
        steps: dict[str, Callable[[], None]] = {
            "\\": self._escape, "[": self._class, "(": self._open, ")": self._close, "{": self._quantify,
            "*": self._quantify, "+": self._quantify, "?": self._quantify,
            "|": self._keep, ".": self._keep, "^": self._start, "$": self._end,
        }  # fmt: skip
        while self._at < len(self._pattern):
            step = steps.get(self._pattern[self._at])
            if step is None:
                self._literal(self._next())
            else:
                step()
        return "".join(self._out)

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise self._refusal("it ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _take(self, expected: re.Pattern[str]) -> re.Match[str] | None:
        match = expected.match(self._pattern, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _sees(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _refusal(self, why: str) -> ConfigError:
        return ConfigError(f"Option 'subscribePattern': {self._pattern!r} is not supported here: {why}")

    def _literal(self, char: str) -> None:
        if self._ignores_case and char in _LETTERS:
            self._out.append(f"[{char.lower()}{char.upper()}]")
        else:
            self._out.append(re.escape(char))

    def _chars(self, chars: _Chars) -> None:
        escaped = "".join(re.escape(char) for char in sorted(chars))
        self._out.append(f"[{escaped}]" if chars else r"[^\s\S]")

    def _keep(self) -> None:
        self._out.append(self._next())

    def _start(self) -> None:
        self._at += 1
        self._out.append(r"\A")

    def _end(self) -> None:
        self._at += 1
        self._out.append(r"\Z")

    def _quantify(self) -> None:
        match = self._take(_QUANTIFIER) if self._at != self._flags_end else None
        if match is None:
            raise self._refusal(f"a repetition at {self._at} that is malformed or repeats nothing")
        self._out.append(match[0])

    def _open(self) -> None:
        if (flags := self._take(_FLAGS)) is not None:
            self._set_flags(flags)
            return
        if (named := self._take(_NAMED_GROUP)) is not None:
            opening = f"(?P<{named[1]}>"
        elif (plain := self._take(_OPENINGS)) is not None:
            opening = plain[0]
        else:
            raise self._refusal(f"the group at {self._at}")
        self._groups += named is not None or opening == "("
        self._outer_case.append(self._ignores_case)
        self._out.append(opening)

    def _set_flags(self, flags: re.Match[str]) -> None:
        on, off = flags[1], flags[2] or ""
        if "x" in on:
            raise self._refusal("(?x), comments in a pattern")
        if flags[3] == ":":
            self._outer_case.append(self._ignores_case)
            self._out.append("(?:")
        self._flags_end = self._at
        self._ignores_case = (self._ignores_case or "i" in on) and "i" not in off

    def _close(self) -> None:
        if not self._outer_case:
            raise self._refusal(f"the parenthesis at {self._at} closes nothing")
        self._ignores_case = self._outer_case.pop()
        self._keep()

    def _escape(self) -> None:
        self._at += 1
        if self._sees("Q"):
            for char in self._quoted():
                self._literal(char)
            return
        if (number := self._take(re.compile(r"[1-9][0-9]*"))) is not None:
            self._refer(number[0])
            return
        if (name := self._take(re.compile(r"k<(\w+)>"))) is not None:
            self._out.append(f"(?i:(?P={name[1]}))" if self._ignores_case else f"(?P={name[1]})")
            return
        if self._pattern[self._at : self._at + 1] in _ANCHORS and not self._sees("b{"):
            self._out.append(_ANCHORS[self._next()])
            return
        if self._sees("R") or self._sees("X"):
            self._out.append(r"[^\s\S]" if self._next() == "R" else ".")
            return
        found = self._escaped()
        if isinstance(found, str):
            self._literal(found)
        else:
            self._chars(found)

    def _refer(self, digits: str) -> None:
        """A back reference takes the digits that make the number of a group, as Java does."""
        length = 1
        while length < len(digits) and int(digits[: length + 1]) <= self._groups:
            length += 1
        self._at -= len(digits) - length
        reference = f"\\{digits[:length]}"
        self._out.append(f"(?i:{reference})" if self._ignores_case else f"(?:{reference})")

    def _quoted(self) -> str:
        self._at += 1
        text, _, _ = self._pattern[self._at :].partition("\\E")
        self._at = min(self._at + len(text) + 2, len(self._pattern))
        return text

    def _escaped(self) -> str | _Chars:
        """What an escape means inside a character class and outside: a character, or a set of them."""
        if (number := self._take(_NUMBERED)) is not None:
            return self._character(number)
        if (named := self._take(_PROPERTY)) is not None:
            return self._property(named)
        char = self._next()
        if char.lower() in _ESCAPED_SETS:
            chars = _ESCAPED_SETS[char.lower()]
            return chars if char.islower() else NAME_CHARS - chars
        if char == "c":
            return chr(ord(self._next()) ^ 64)
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _LETTERS or char in _DIGITS:
            raise self._refusal(f"the escape \\{char}")
        return char

    def _character(self, number: re.Match[str]) -> str:
        octal, *hexadecimal = number.groups()
        code = int(octal, 8) if octal else int(next(filter(None, hexadecimal)), 16)
        if code > 0x10FFFF:
            raise self._refusal(f"no character has the number {code:x}")
        return chr(code)

    def _property(self, named: re.Match[str]) -> _Chars:
        name = named[2] or named[3]
        chars = _NAMED.get(name)
        category = name.removeprefix("Is")
        if chars is None and re.fullmatch(r"[LNPSZMC][a-z]?", category):
            chars = frozenset(char for char in NAME_CHARS if unicodedata.category(char).startswith(category))
        if chars is None:
            raise self._refusal(f"the character class {name}")
        if self._ignores_case and chars != _fold(chars):
            raise self._refusal(f"the character class {name} where case is ignored")
        return NAME_CHARS - chars if named[1] == "P" else chars

    def _class(self) -> None:
        self._at += 1
        self._chars(self._members())

    def _members(self) -> _Chars:
        """A character class from behind its bracket to its end."""
        negated = self._take(re.compile(r"\^")) is not None
        operands: list[_Chars] = []
        found, is_empty = _NONE, True
        while not self._sees("]") or is_empty:
            if self._sees("&&"):
                if is_empty:
                    raise self._refusal("an intersection (&&) of nothing")
                self._at += 2
                operands.append(found)
                found, is_empty = _NONE, True
                if self._sees("]"):
                    raise self._refusal("an intersection (&&) with nothing")
                continue
            found, is_empty = found | self._member(), False
        self._at += 1
        for operand in operands:
            found &= operand
        return NAME_CHARS - found if negated else found

    def _member(self) -> _Chars:
        """A nested class, a range, a set or a character."""
        if self._sees("["):
            self._at += 1
            return self._members()
        first = self._class_char()
        if not isinstance(first, str):
            return first
        if not self._sees("-") or self._sees("-]") or self._sees("-["):
            return self._folded(first)
        self._at += 1
        last = self._class_char()
        if not isinstance(last, str) or first > last:
            raise self._refusal(f"the range before {self._at}")
        return self._folded("".join(char for char in NAME_CHARS if first <= char <= last))

    def _class_char(self) -> str | _Chars:
        char = self._next()
        if char != "\\":
            return char
        return self._folded(self._quoted()) if self._sees("Q") else self._escaped()

    def _folded(self, chars: str) -> _Chars:
        found = NAME_CHARS & set(chars)
        return _fold(found) if self._ignores_case else found


def _fold(chars: _Chars) -> _Chars:
    return frozenset(char.lower() for char in chars) | frozenset(char.upper() for char in chars)
