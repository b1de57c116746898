"""`Sender`: the one background thread of a producer. Batches in, produce requests out, answers to the
settlement.

It never blocks but in its own wait and in a socket's write. What may take longer is asked in other threads
(`inquiries.py`); what an answer means is decided in `verdict.py` and acted upon in `answers.py`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from ..network.deadline import Deadline
from ..network.transport import READ, wait_for_streams
from .answers import Answers
from .batch import Batch
from .dispatcher import Dispatcher
from .errors import ProducerClosedError
from .give_up import OVERTAKING, GiveUp
from .inquiries import Inquiries
from .partition_queue import PartitionQueue
from .sender_state import SenderState
from .topic_buffer import TopicBuffer
from .wakeup import Wakeup

_LOG = logging.getLogger("spark_kafka_native")

BUSY_BUFFER_S = 0.001
"""When to look again at a topic that a caller is just appending to."""
SHARED_READ_S = 0.02
"""Another thread may read our answers off a shared connection, which does not end our wait: look again
then."""
LEAST_AGE_S = 1.0
"""Metadata are never asked for more often than this without a reason, whatever metadata.max.age.ms says."""
EXPIRY_S = 0.05
"""Looking at every batch costs something, and one that is given up so much later is none the worse."""


class Sender:
    """The sending half of a producer. `post`, `wake`, `hurry` and `stop` may be called by any thread."""

    def __init__(
        self,
        state: SenderState,
        describe: Callable[[TopicBuffer], None],
        room_wanted: Callable[[], bool],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._state = state
        self._room_wanted = room_wanted
        self._fail = fail
        self._inbox: deque[Batch] = deque()
        self._wakeup = Wakeup()
        self._give_up = GiveUp(state, fail)
        self._inquiries = Inquiries(state, self._give_up, describe, self.wake)
        self._answers = Answers(state, self._give_up, self._inquiries)
        self._dispatcher = Dispatcher(state, self._give_up, self._inquiries, self._answers)
        self._new_topics: deque[str] = deque()
        self._hurry = False
        self._closing: Deadline | None = None
        self._expire_at = 0.0
        self._thread = threading.Thread(target=self._run, name="kafka-producer-sender", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_current_thread(self) -> bool:
        """Whether a callback is calling: it must not wait for what only its own thread can do."""
        return threading.current_thread() is self._thread

    def post(self, batches: list[Batch]) -> None:
        """Take batches over, in their order; the caller holds the lock that keeps it."""
        if batches:
            self._state.settlement.expect(batches)
            self._inbox.extend(batches)
            self._wakeup.set()

    def prepare(self, topic: str) -> None:
        """Records of ``topic``, which is described, will come in a moment."""
        self._new_topics.append(topic)
        self._wakeup.set()

    def wake(self) -> None:
        """Have a look at what there is to do."""
        self._wakeup.set()

    def hurry(self) -> None:
        """Send what there is, without waiting for batches to fill."""
        self._hurry = True
        self._wakeup.set()

    def stop(self, deadline: Deadline) -> None:
        """Deliver what there is until ``deadline``, give up the rest, and end the thread."""
        self._closing = deadline
        self.hurry()
        if self._thread.is_alive() and not self.is_current_thread:
            # Writing to a broker that does not read may hold the thread for one request timeout.
            self._thread.join(deadline.remaining_ms / 1000 + self._state.request_timeout_s + 5)

    def _run(self) -> None:
        try:
            while not self._finished():
                self._turn()
        except BaseException as error:  # noqa: BLE001 - the records' owners must hear of a bug, whatever it is
            _LOG.exception("the producer's sender thread failed")
            self._state.fatal = ProducerClosedError(f"the sender thread failed: {error!r}")
            self._state.fatal.__cause__ = error
            self._fail(self._state.fatal)
        finally:
            for buffer in self._state.buffers():
                buffer.shut()
            self._take_in()
            fatal = self._state.fatal
            reason = str(fatal) if fatal else "the producer was closed before they could be delivered"
            self._give_up.everything(reason, fatal)
            self._wakeup.close()

    def _turn(self) -> None:
        state = self._state
        now = state.clock()
        state.next_at = now + 3600
        self._wakeup.clear()
        while self._inquiries.answered:
            self._inquiries.answered.popleft()()
        while self._new_topics:
            self._dispatcher.prepare(self._new_topics.popleft(), now)
        self._close_due(now)
        self._take_in()
        for lane in state.lanes.values():
            self._answers.read(lane, now)
        self._expire(now)
        self._refresh_old(now)
        self._dispatcher.send(now)
        self._sleep()

    def _finished(self) -> bool:
        if self._state.fatal is not None:
            return True
        if self._closing is None:
            return False
        if self._closing.expired:
            return True
        waiting = any(buffer.waiting_since is not None for buffer in self._state.buffers())
        return not waiting and not self._state.settlement.unsettled

    def _sleep(self) -> None:
        state = self._state
        busy = [lane.connection for lane in state.lanes.values() if lane.sent and lane.connection is not None]
        if busy:
            state.by(state.clock() + SHARED_READ_S)
        if self._closing is not None:
            state.by(state.clock() + self._closing.remaining_ms / 1000)
        if self._inbox or self._inquiries.answered or self._finished():
            return
        streams = [(c.fileno(), c.waits_for) for c in busy if not c.closed]
        wait_ms = max(0.0, (state.next_at - state.clock()) * 1000)
        wait_for_streams([(self._wakeup.fileno(), READ), *streams], Deadline.after_ms(wait_ms))

    def _close_due(self, now: float) -> None:
        """Make batches of what has waited long enough."""
        hurry = self._hurry or self._room_wanted() or self._closing is not None
        self._hurry = False
        linger_s = self._state.config.linger_ms / 1000

        def due(queue: PartitionQueue) -> bool:
            # A batch that would stand behind another may as well grow meanwhile.
            return hurry or (not queue.batches and queue.opened_at + linger_s <= now)

        for buffer in self._state.buffers():
            since = buffer.waiting_since
            if since is None:
                continue
            if not hurry and since + linger_s > now:
                self._state.by(since + linger_s)
            elif not buffer.close_waiting(due):
                self._hurry = hurry
                self._state.by(now + BUSY_BUFFER_S)
            elif buffer.waiting_since is not None and buffer.waiting_since + linger_s > now:
                self._state.by(buffer.waiting_since + linger_s)

    def _take_in(self) -> None:
        while self._inbox:
            batch = self._inbox.popleft()
            queue = batch.queue
            queue.batches.append(batch)
            self._state.active[queue] = None
            if batch.failure is not None:
                self._give_up.batches([batch], str(batch.failure), batch.failure, retriable=False)
            elif queue.spilling and batch.spilled is None:
                self._give_up.batches([batch], OVERTAKING, None)
            elif 0 < self._state.most_bytes(queue) < len(batch.data):
                self._give_up.too_large(batch)

    def _refresh_old(self, now: float) -> None:
        """Ask again about topics that were described long ago: partitions may have been added."""
        age_s = max(LEAST_AGE_S, self._state.router.config.metadata_max_age_ms / 1000)
        for buffer in self._state.buffers():
            if buffer.described_at + age_s <= now:
                buffer.described_at = now
                self._inquiries.refresh(buffer.topic)
            self._state.by(buffer.described_at + age_s)

    def _expire(self, now: float) -> None:
        """Give up what was not delivered in time."""
        state = self._state
        if now < self._expire_at:
            state.by(self._expire_at)
            return
        allowed_s = state.config.delivery_timeout_ms / 1000
        soonest = now + allowed_s
        for queue in list(state.active):
            for batch in [*queue.in_flight, *queue.batches]:
                if batch.ended:
                    continue
                if batch.created_at + allowed_s > now:
                    soonest = min(soonest, batch.created_at + allowed_s)
                    continue
                batch.indefinite = batch.indefinite or batch in queue.in_flight
                last = f"; the last failure: {batch.last_error}" if batch.last_error else ""
                reason = f"not delivered within delivery.timeout.ms={state.config.delivery_timeout_ms}{last}"
                self._give_up.batches([batch], reason, batch.last_error)
            if not queue.batches and not queue.in_flight:
                del state.active[queue]
        self._expire_at = max(soonest, now + EXPIRY_S)
        state.by(self._expire_at)
