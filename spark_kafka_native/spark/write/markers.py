"""`Markers`: where commit markers and intents are kept. As offsets of groups of their own (`GroupMarkers`),
or in a compacted topic (`MarkerTopic`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...kafka.cluster.router import Router
from ...kafka.model import TopicPartition
from ...kafka.runtime.deadline import Deadline
from .batch_intent import GroupIntents, Intents
from .commit_marker import CommitMarker
from .write_options import WriteOptions

if TYPE_CHECKING:
    from ...kafka.producer.transactional_producer import TransactionalProducer


class Markers(Protocol):
    """What a task commits together with its rows, and what the driver is about to commit."""

    needs_place: bool
    """Whether `last` sees what is not decided yet only where it is told to look."""

    def check(self) -> None:
        """Raises `ConfigError` where markers can't be kept there."""

    def last(
        self, name: str, where: TopicPartition | None, deadline: Deadline | None = None
    ) -> CommitMarker | None:
        """The last marker of a task that was committed, once nothing of it is open any more; see
        `CommitMarker.read`."""

    def add(
        self, producer: TransactionalProducer, name: str, marker: CommitMarker, where: TopicPartition
    ) -> CommitMarker | None:
        """Put it into the open transaction. ``where`` is a partition that the task has written to, or one of
        the same topic.

        Returns the last one that was committed, as the broker says that has taken this one in: `last` may
        have been answered by one that was deposed and did not know it yet."""

    def take_intents(self, job: str, timeout_ms: int, deadline: Deadline) -> Intents:
        """The intents of a query; whoever had taken them before can replace none any more."""


def find_markers(router: Router, options: WriteOptions) -> Markers:
    """Where this write has its markers."""
    once = options.exactly_once
    if once is None or once.marker_topic is None:
        return GroupMarkers(router)
    # The driver commits each micro-batch in a process of its own, and imports what it needs each time.
    from .marker_topic import MarkerTopic

    return MarkerTopic(router, once.marker_topic, options)


class GroupMarkers:
    """`Markers` that are offsets of consumer groups without members."""

    needs_place = True

    def __init__(self, router: Router) -> None:
        self._router = router

    def check(self) -> None:
        """Any cluster has groups."""

    def last(
        self, name: str, where: TopicPartition | None, deadline: Deadline | None = None
    ) -> CommitMarker | None:
        """As `Markers.last`."""
        return CommitMarker.read(self._router, name, where, deadline)

    def add(
        self, producer: TransactionalProducer, name: str, marker: CommitMarker, where: TopicPartition
    ) -> CommitMarker | None:
        """As `Markers.add`."""
        producer.send_offsets({where: marker.offset()}, name)
        return CommitMarker.read_decided(self._router, name)

    def take_intents(self, job: str, timeout_ms: int, deadline: Deadline) -> Intents:
        """As `Markers.take_intents`."""
        return GroupIntents(self._router, job, timeout_ms, deadline)
