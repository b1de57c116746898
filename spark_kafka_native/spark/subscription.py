"""`Subscription`: which topic-partitions a read is about, as the user said it.

Pure: the caller fetches the metadata. The pattern is Java's, as users copy it from jobs of the JVM connector.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..kafka.errors import ConfigError
from ..kafka.model import TopicPartition


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
    """All partitions of the topics in whose name a Java regex is found; no internal topics."""

    pattern: str

    def __post_init__(self) -> None:
        translate_java_pattern(self.pattern)

    def matches(self, topic: str) -> bool:
        """Whether the pattern is found in ``topic``."""
        return translate_java_pattern(self.pattern).search(topic) is not None

    def __str__(self) -> str:
        return f"SubscribePattern[{self.pattern}]"


Subscription = Assign | Subscribe | SubscribePattern

_POSIX: Final = {
    "Lower": "a-z", "Upper": "A-Z", "ASCII": "\\x00-\\x7f", "Alpha": "A-Za-z", "Digit": "0-9",
    "Alnum": "A-Za-z0-9",
    "Punct": "!-/:-@\\[-`{-~", "Graph": "!-~", "Print": " -~", "Blank": " \\t", "Cntrl": "\\x00-\\x1f\\x7f",
    "XDigit": "0-9a-fA-F", "Space": " \\t\\n\\x0b\\f\\r", "IsAlphabetic": "A-Za-z", "IsDigit": "0-9",
    "javaLowerCase": "a-z", "javaUpperCase": "A-Z", "L": "A-Za-z",
    "Lu": "A-Z", "Ll": "a-z", "N": "0-9", "Nd": "0-9",
}  # fmt: skip
"""Java's named classes, for the ASCII that topic names consist of."""

_TOKEN: Final = re.compile(
    r"(?P<quote>\\Q(?P<quoted>.*?)(?:\\E|$))"
    r"|(?P<named>\\(?P<negated>[pP])(?:\{(?P<class>\w+)\}|(?P<letter>\w)))"
    r"|(?P<group>\(\?<(?=[A-Za-z]))"
    r"|(?P<back>\\k<(?P<name>\w+)>)"
    r"|(?P<end>\\[zZ])"
    r"|(?P<escape>\\.)"
    r"|(?P<intersection>&&)"
    r"|(?P<open>\[\^?\]?)"
    r"|(?P<close>\])"
    r"|(?P<plain>.)",
    re.DOTALL,
)


def translate_java_pattern(pattern: str) -> re.Pattern[str]:
    r"""The Python pattern that finds in a topic name what Java's ``Pattern`` would.

    Translates what differs (``\Q..\E``, ``\p{Alpha}``, ``(?<name>..)``, ``\z``). Raises `ConfigError` for
    what Python has no counterpart of (intersections and nesting of character classes), and for a malformed
    pattern.
    """
    parts: list[str] = []
    inside = False
    for match in _TOKEN.finditer(pattern):
        kind = _kind(match)
        if kind == "open":
            if inside:
                raise _unsupported(pattern, "a character class inside another one")
            inside = True
            parts.append(match[0])
        elif kind == "close":
            inside = False
            parts.append("]")
        elif kind == "intersection" and inside:
            raise _unsupported(pattern, "an intersection (&&) of character classes")
        else:
            parts.append(_TRANSLATE.get(kind, _keep)(match, inside))
    try:
        return re.compile("".join(parts))
    except re.error as error:
        raise ConfigError(
            f"Option 'subscribePattern': {pattern!r} is not a regular expression: {error}"
        ) from error


def _kind(match: re.Match[str]) -> str:
    return next(kind for kind in _KINDS if match[kind] is not None)


def _keep(match: re.Match[str], _inside: bool) -> str:
    return match[0]


def _translate_named(match: re.Match[str], inside: bool) -> str:
    name = match["class"] or match["letter"]
    members = _POSIX.get(name.removeprefix("Is") if name not in _POSIX else name)
    if members is None:
        raise _unsupported(match[0], "a character class of this name")
    if match["negated"] == "P":
        if inside:
            raise _unsupported(match[0], "a negated named class inside a character class")
        return f"[^{members}]"
    return members if inside else f"[{members}]"


_KINDS: Final = ("quote", "named", "group", "back", "end", "escape", "intersection", "open", "close", "plain")
_TRANSLATE: Final[dict[str, Callable[[re.Match[str], bool], str]]] = {
    "quote": lambda match, _inside: re.escape(match["quoted"]),
    "named": _translate_named,
    "group": lambda _match, _inside: "(?P<",
    "back": lambda match, _inside: f"(?P={match['name']})",
    "end": lambda _match, _inside: r"\Z",
}


def _unsupported(pattern: str, what: str) -> ConfigError:
    return ConfigError(f"Option 'subscribePattern': {pattern!r} uses {what}, which is not supported here")
