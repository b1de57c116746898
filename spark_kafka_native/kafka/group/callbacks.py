"""`Callbacks`: what a user wants to be told of partitions that come and go. For the caller's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from ..model import TopicPartition

if TYPE_CHECKING:
    from .group_consumer import GroupConsumer

_LOG = logging.getLogger("spark_kafka_native.group")

OnPartitions = Callable[["GroupConsumer", list[TopicPartition]], object]
"""Called with the consumer and the partitions concerned, in the caller's thread, from within a read."""


class Callbacks:
    """``on_assigned``, ``on_revoked`` and ``on_lost`` of one consumer, each None or called."""

    def __init__(self, group_id: str, **callbacks: OnPartitions | None) -> None:
        self._group_id = group_id
        self._callbacks = callbacks
        self.running = False
        """Whether one of them has not returned yet."""
        self.revoking: frozenset[TopicPartition] = frozenset()
        """What ``on_revoked`` was called with that has not returned yet."""

    def tell(self, consumer: GroupConsumer, event: str, partitions: Collection[TopicPartition]) -> None:
        """Call what there is for ``event``: ``assigned``, ``revoked`` or ``lost``."""
        level = logging.WARNING if event == "lost" else logging.INFO
        _LOG.log(level, "%s: %s %s", self._group_id, event, shown(partitions))
        callback = self._callbacks[event]
        if callback is None:
            return
        self.running = True
        if event == "revoked":
            self.revoking = frozenset(partitions)
        try:
            callback(consumer, sorted(partitions))
        finally:
            self.running, self.revoking = False, frozenset()


def shown(topic_partitions: Collection[TopicPartition]) -> str:
    """The partitions in words."""
    return ", ".join(map(str, sorted(topic_partitions))) or "no partitions"
