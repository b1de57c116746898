"""`Linger`: closes open batches when they have waited for more records as long as ``linger.ms`` allows, or
earlier, when a caller waits for them."""

from __future__ import annotations

from collections.abc import Callable

from ...config.client_config import ProducerConfig
from ..accumulating.memory import BufferMemory
from ..accumulating.open_batches import WaitingRows
from ..accumulating.topic_buffer import TopicBuffer
from ..accumulating.topics import Topics
from ..delivery import Waiters
from .loop_timer import LoopTimer
from .partition_queue import PartitionQueues

BUSY_BUFFER_S = 0.001
"""When to look again at a topic that a caller is just appending to."""


class Linger:
    """Called by the sender's thread, except for `hurry`."""

    def __init__(
        self,
        config: ProducerConfig,
        topics: Topics,
        queues: PartitionQueues,
        memory: BufferMemory,
        waiters: Waiters,
        timer: LoopTimer,
    ) -> None:
        self._config = config
        self._topics = topics
        self._queues = queues
        self._memory = memory
        self._waiters = waiters
        self._timer = timer
        self._hurry: object = None
        """Another object with each `hurry`: a flag that is cleared could be set at that very moment."""
        self._hurried: object = None
        """The one that was seen last, and has had its effect on every topic."""

    def hurry(self) -> None:
        """Close all open batches at the next turn. Any thread calls it."""
        self._hurry = object()

    def close_due(self, now: float, closing: bool) -> None:
        """Close the batches that have waited long enough; all of them while the producer is ``closing``,
        while a caller waits for room, and after `hurry`."""
        wanted, room_wanted = self._hurry, self._memory.waiting
        hurry = wanted is not self._hurried or room_wanted or closing

        def due(rows: WaitingRows) -> bool:
            # A batch that has to wait behind another may as well grow meanwhile.
            queue = self._queues.find(rows.topic_partition)
            behind = queue is not None and bool(queue.waiting) and not queue.spilling
            return hurry or (
                not behind and rows.opened_at + self._linger_s(rows.topic_partition.topic) <= now
            )

        reached_all = True
        for buffer in self._topics.all():
            since, linger_s = buffer.waiting_since, self._linger_s(buffer.topic)
            if since is not None and not hurry and since + linger_s > now:
                self._timer.by(since + linger_s)
            elif since is not None or room_wanted:  # it may keep room for records that do not come
                reached_all &= self._close_buffer(buffer, due, now, (wanted, hurry))
        if reached_all:
            self._hurried = wanted
        if hurry:
            self._waiters.notify_all()  # a flush waits for this first

    def _close_buffer(
        self, buffer: TopicBuffer, due: Callable[[WaitingRows], bool], now: float, reason: object
    ) -> bool:
        """False while a caller is appending to it: the next one does it, or we in a moment."""
        closed_at = buffer.close_waiting(due, now, reason)
        if closed_at is None:
            self._timer.by(now + BUSY_BUFFER_S)
            return False
        # What stands behind another batch is not due when it has lingered: that one's end is what it waits
        # for.
        since, linger_s = buffer.waiting_since, self._linger_s(buffer.topic)
        if since is not None and since + linger_s > closed_at:
            self._timer.by(since + linger_s)
        return True

    def _linger_s(self, topic: str) -> float:
        """How long a batch that is not full waits for more; a dead letter does not, as a flush waits for the
        record that it stands for."""
        return 0.0 if topic == self._config.dead_letter_topic else self._config.linger_ms / 1000
