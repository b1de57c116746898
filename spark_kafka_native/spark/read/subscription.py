"""`Subscription`: the topic-partitions of the options ``assign``, ``subscribe`` and ``subscribePattern``.

Pure: the driver fetches the metadata. The pattern is a Java regular expression, as users copy it from jobs of
the JVM connector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...kafka.errors import ConfigError
from ...kafka.model import TopicPartition
from ..options.option_values import OptionValues
from .java_pattern import translate_java_pattern
from .offset_limits import parse_assignment


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
