"""`Rebalance`: takes and gives up partitions as the group demands, and calls the user's callbacks.

For the caller's thread, from within a read or `close`. By then the caller is done with everything that it was
given, so that it can be committed before another member continues from there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable

from ..errors import own_copy
from ..model import TopicPartition
from ..observe import catalogue as metric
from ..observe.metrics import MetricsRegistry
from ..runtime.deadline import Deadline
from .commits import Commits, partitions_named
from .group_config import Subscription
from .membership import Change
from .membership_thread import MembershipThread
from .start_offsets import StartOffsets

_LOG = logging.getLogger("spark_kafka_native.group")

LEAVE_MS = 5_000
"""The limit for each of the last steps of `close`: the read of another thread, the last commits, and leaving
the group.
"""
CLOSE_STEPS = 6
"""How many steps `close` has: it drains the commits before and after the last ones; ``on_revoked`` is one."""

OnChange = Callable[[list[TopicPartition]], object]


class RebalanceCallbacks:
    """``on_assigned``, ``on_revoked`` and ``on_lost`` of one consumer; each may be None."""

    def __init__(self, group_id: str, **callbacks: OnChange | None) -> None:
        self._group_id = group_id
        self._callbacks = callbacks
        self.runs_in: int | None = None
        """The thread that one of them is being called in."""
        self.revoking: frozenset[TopicPartition] = frozenset()
        """The partitions that ``on_revoked`` is being called with."""

    def call(self, event: str, partitions: Collection[TopicPartition]) -> None:
        """Log ``event`` (``assigned``, ``revoked`` or ``lost``) and call its callback, if there is one."""
        level = logging.WARNING if event == "lost" else logging.INFO
        _LOG.log(level, "%s: %s %s", self._group_id, event, partitions_named(partitions))
        callback = self._callbacks[event]
        if callback is None:
            return
        nothing: frozenset[TopicPartition] = frozenset()
        here, revoking = threading.get_ident(), frozenset(partitions) if event == "revoked" else nothing
        # No call next to the `try`, or in the `finally`: after an interrupt there, it would seem to run on.
        self.runs_in, self.revoking = here, revoking
        try:
            callback(sorted(partitions))
        finally:
            self.runs_in, self.revoking = None, nothing


class Rebalance:
    """Carries out the changes of the assignment."""

    def __init__(
        self,
        member: MembershipThread,
        subscription: Subscription,
        commits: Commits,
        starts: StartOffsets,
        callbacks: RebalanceCallbacks,
        metrics: MetricsRegistry,
    ) -> None:
        self._member = member
        self._subscription = subscription
        self._commits = commits
        self._starts = starts
        self.callbacks = callbacks
        self._metrics = metrics
        self.leaving = False
        """True once the consumer is being closed: ``on_assigned`` is not called any more."""
        self._unannounced: frozenset[TopicPartition] = frozenset()
        """The partitions that it was not called with for that reason: no other callback names them."""

    def follow(self, deadline: Deadline) -> None:
        """Do what the group demands; the caller is done with everything that it was given. Then look up where
        to begin with new partitions, until ``deadline``. Raises what ended the membership.
        """
        self._commits.caller_is_back()
        while self._member.attention and not self.leaving:
            if (failure := self._member.membership.failure) is not None:
                if (change := self._member.begin()) is not None:
                    self._lose(change)
                self._member.failure_raised()
                raise own_copy(failure)
            change = self._member.begin()
            if change is None:
                return
            self.carry_out(change)
        if self._starts.missing and not self.leaving:
            self._starts.find(deadline)

    def carry_out(self, change: Change) -> None:
        """Give up and take partitions, with the commits and the callbacks in between."""
        if change.lost:
            self._lose(change)
            return
        queue = self._commits.queue
        if change.revoked:
            # Not in the `try`: after an interrupt, the next read begins the change anew, with ``on_revoked``.
            self._commits.commit_now(queue.settle_deadline(), change.revoked)
        try:
            if change.revoked:
                self.callbacks.call("revoked", change.revoked)
                queue.drain(queue.settle_deadline())
        finally:
            self._remove(change.revoked)
            self._starts.add(change.assigned)
            self._member.applied(change)
            self.withhold_unsubscribed()
            self._metrics.count(metric.PARTITION_CHANGES, len(change.revoked), "revoked")
            self._metrics.count(metric.PARTITION_CHANGES, len(change.assigned), "assigned")
            if self.leaving:
                self._unannounced = change.assigned
            elif change.assigned:  # also if the other callback raised
                self.callbacks.call("assigned", change.assigned)

    def withhold_unsubscribed(self) -> None:
        """Hand out nothing of partitions of topics that are no longer subscribed. They stay assigned to this
        member until the group has rebalanced.
        """
        owned = self._member.membership.owned
        self._starts.withhold(tp for tp in owned if not self._subscription.includes(tp.topic))

    def leave_deadline(self) -> Deadline:
        """The limit of one of the last steps of `close`, from now on."""
        return Deadline.after_ms(LEAVE_MS)

    def close_deadline(self) -> Deadline:
        """The limit of waiting for a `close` in another thread, from now on."""
        return Deadline.after_ms(CLOSE_STEPS * LEAVE_MS)

    def give_up(self, owned: frozenset[TopicPartition]) -> None:
        """Give up all partitions before leaving the group: as if they were revoked, or lost if this consumer
        is no member any more.
        """
        announced = owned - self._unannounced
        if self._member.identity() is None:
            self._remove(owned)
            if announced:
                self.callbacks.call("lost", announced)
            return
        try:
            self._commits.commit_now(self.leave_deadline(), owned)
            if rest := announced - self.callbacks.revoking:  # `close` may be called in on_revoked
                self.callbacks.call("revoked", rest)
            self._commits.queue.drain(self.leave_deadline())
        finally:
            self._remove(owned)

    def _lose(self, change: Change) -> None:
        self._remove(change.lost)
        self._metrics.count(metric.PARTITION_CHANGES, len(change.lost), "lost")
        self._member.applied(change)
        self.callbacks.call("lost", change.lost)

    def _remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        # First: a transaction that ends in another thread beside `close` would miss them without an error.
        self._commits.drop(topic_partitions)
        for topic_partition in topic_partitions:
            self._starts.remove(topic_partition)
