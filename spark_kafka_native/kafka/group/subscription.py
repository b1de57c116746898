"""`Subscription`: the topics of a consumer, by name or by pattern. Any thread may read it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import ConfigError

Topics = str | Iterable[str] | re.Pattern[str]
"""A topic, several, or a pattern that matches whole names of topics."""


class Subscription:
    """Names or a pattern; empty until `change` if ``topics`` is not given."""

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
        """True if the metadata of all topics of the cluster are needed."""
        return isinstance(self._wanted, re.Pattern)

    def named(self) -> frozenset[str]:
        """The names. Raises `ConfigError` for a pattern."""
        if isinstance(self._wanted, re.Pattern):
            raise ConfigError(
                f"the consumer reads {self}: topics can't be added or removed, subscribe changes it"
            )
        return self._wanted

    def among(self, topics: Iterable[str]) -> frozenset[str]:
        """The subscribed topics: those of ``topics`` that match the pattern, or all names, existing or
        not.
        """
        wanted = self._wanted
        if isinstance(wanted, re.Pattern):
            return frozenset(topic for topic in topics if wanted.fullmatch(topic))
        return wanted

    def includes(self, topic: str) -> bool:
        """True if ``topic``, which exists, is subscribed."""
        return topic in self.among((topic,))

    def change(self, topics: Topics) -> None:
        """Subscribe to these instead."""
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
