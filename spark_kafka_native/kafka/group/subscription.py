"""`Subscription`: which topics a consumer wants, by name or by pattern. Any thread may look at it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import ConfigError

Topics = str | Iterable[str] | re.Pattern[str]
"""A topic, several, or a pattern that the whole of a topic's name matches."""


class Subscription:
    """Either names or a pattern, until it is changed; without ``topics`` empty until then."""

    def __init__(self, topics: Topics = ()) -> None:
        self._wanted: frozenset[str] | re.Pattern[str] = frozenset()
        if topics != ():
            self.change(topics)

    def __str__(self) -> str:
        wanted = self._wanted
        if isinstance(wanted, re.Pattern):
            return f"topics like {wanted.pattern!r}"
        return ", ".join(sorted(wanted)) or "no topics"

    @property
    def empty(self) -> bool:
        """True until topics are given: the member does not join its group before."""
        return not self._wanted

    @property
    def by_pattern(self) -> bool:
        """Whether all topics of the cluster have to be looked at."""
        return isinstance(self._wanted, re.Pattern)

    def named(self) -> frozenset[str]:
        """The names. Raises `ConfigError` where there is a pattern."""
        if isinstance(self._wanted, re.Pattern):
            raise ConfigError(
                f"the consumer reads {self}: topics can't be added or removed, subscribe changes it"
            )
        return self._wanted

    def among(self, topics: Iterable[str]) -> frozenset[str]:
        """The topics that are wanted: those of ``topics`` that match, or all names, existing or not."""
        wanted = self._wanted
        if isinstance(wanted, re.Pattern):
            return frozenset(topic for topic in topics if wanted.fullmatch(topic))
        return wanted

    def includes(self, topic: str) -> bool:
        """Whether ``topic``, which exists, is wanted."""
        return topic in self.among((topic,))

    def change(self, topics: Topics) -> None:
        """Want these instead."""
        self._wanted = _wanted(topics)


def _wanted(topics: Topics) -> frozenset[str] | re.Pattern[str]:
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise ConfigError(f"topics: the pattern {topics.pattern!r} must be one of str")
        return topics
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"topics must name at least one topic, or be a compiled pattern, not {topics!r}")
    return frozenset(names)
