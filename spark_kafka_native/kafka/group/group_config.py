"""`GroupConfig`: the settings of a group member, in addition to those of reading (`ReaderConfig`);
`Subscription`: its topics, by name or by pattern.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..config.properties import INT32_MAX, boolean, property_field, text
from ..config.reader_config import OffsetReset, ReaderConfig
from ..errors import ConfigError
from .assignors import Assignor, CooperativeStickyAssignor, RangeAssignor, RoundRobinAssignor, StickyAssignor

ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor
    for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
}


class GroupProtocol(enum.Enum):
    """Which side assigns partitions."""

    CLASSIC = "classic"
    """One of the members, by ``partition.assignment.strategy``."""
    CONSUMER = "consumer"
    """The coordinator (KIP-848, Kafka 4.0 and later)."""


def _protocol(text: str) -> GroupProtocol:
    try:
        return GroupProtocol(text.strip().lower())
    except ValueError:
        raise ValueError("must be classic or consumer") from None


def _strategy(text: str) -> tuple[str, ...]:
    """The names of assignors, given as they are or as Java's classes."""
    java = {type(assignor).__name__: name for name, assignor in ASSIGNORS.items()}
    words = [word.strip().rpartition(".")[2] for word in text.split(",") if word.strip()]
    names = tuple(dict.fromkeys(java.get(word, word) for word in words))
    if not names or not all(name in ASSIGNORS for name in names):
        raise ValueError(f"must be one or more of {', '.join(ASSIGNORS)}")
    return names


@dataclass(frozen=True, kw_only=True)
class GroupConfig(ReaderConfig):
    """The settings of a `GroupConsumer`. Names and defaults are Java's, except for ``auto.offset.reset``."""

    group_id: str = property_field("group.id", "", text)
    """The group. Required."""
    group_instance_id: str | None = property_field("group.instance.id", None, text)
    """Makes it a static member (KIP-345): if it comes back within the session timeout, it keeps its
    partitions, and the group does not rebalance. Each consumer of a group needs one of its own.
    """
    group_protocol: GroupProtocol = property_field(  # noqa: RUF009 - it returns a field
        "group.protocol", GroupProtocol.CLASSIC, _protocol
    )
    """``classic``, or ``consumer``: the coordinator assigns (KIP-848, Kafka 4.0 and later)."""
    partition_assignment_strategy: tuple[str, ...] = property_field(
        "partition.assignment.strategy", ("range", "cooperative-sticky"), _strategy
    )
    """``range``, ``roundrobin``, ``sticky``, ``cooperative-sticky``, in the order of preference; the group
    uses one that all members support. Rebalances are cooperative only if all in the list are. For the classic
    protocol.
    """
    group_remote_assignor: str | None = property_field("group.remote.assignor", None, text)
    """The coordinator's assignor, ``uniform`` or ``range``; by default its first. For ``consumer``."""
    session_timeout_ms: int = property_field("session.timeout.ms", 45_000, min_value=1, max_value=INT32_MAX)
    """Without a heartbeat for this time, the coordinator removes the member (with ``consumer``, the broker's
    setting applies), and without a response for this time, the member considers its partitions lost.
    """
    heartbeat_interval_ms: int = property_field(
        "heartbeat.interval.ms", 3_000, min_value=1, max_value=INT32_MAX
    )
    """The interval of heartbeats, with which a member learns of a rebalance. With ``consumer`` the broker
    sets it.
    """
    max_poll_interval_ms: int = property_field(
        "max.poll.interval.ms", 300_000, min_value=1, max_value=INT32_MAX
    )
    """A caller that does not poll for this time loses its partitions. A rebalance waits for it as long."""
    enable_auto_commit: bool = property_field("enable.auto.commit", True, boolean)
    """True: records handed out are committed once the caller comes back for more. False: only `commit`
    commits.
    """
    auto_commit_interval_ms: int = property_field(
        "auto.commit.interval.ms", 5_000, min_value=0, max_value=INT32_MAX
    )
    """The interval of automatic commits in the background. 0: commit each time, before anything else is
    handed out; a read that times out first returns nothing.
    """
    auto_offset_reset: OffsetReset = property_field(  # noqa: RUF009 - it returns a field
        "auto.offset.reset", OffsetReset.EARLIEST, OffsetReset.parse
    )
    """Where to begin in a partition without a committed offset, or if the log lacks the committed offset.

    ``earliest`` where other clients default to ``latest``, which silently skips records that were written
    before the first commit.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.group_id:
            raise ConfigError('group.id must name the group: GroupConsumer(..., group="name")')
        if self.group_instance_id == "":
            raise ConfigError("group.instance.id must not be empty; None makes a dynamic member")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat.interval.ms ({self.heartbeat_interval_ms}) must be less than session.timeout.ms "
                f"({self.session_timeout_ms}), a third of it at most to survive a lost heartbeat"
            )


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
