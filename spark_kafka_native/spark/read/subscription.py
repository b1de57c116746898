"""`Subscription`: which topic-partitions a read is about, as the user said it.

Pure: the caller fetches the metadata. The pattern is Java's, as users copy it from jobs of the JVM connector.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...kafka.model import TopicPartition
from .java_pattern import translate_java_pattern


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
