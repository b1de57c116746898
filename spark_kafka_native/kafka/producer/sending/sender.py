"""`Sender`: the one background thread of a producer. Batches in, produce requests out, answers to the
completion.

It never blocks but in its own wait: what a socket does not take at once is written when it has room. What may
take longer runs in other threads (`background_lookups.py`); what an answer means is decided in `verdict.py`,
and what follows from it in `partition_queue.py`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection

from ...errors import KafkaError
from ...network.transport import READ, wait_for_streams
from ...runtime.deadline import Deadline, Wakeup
from ..accumulating.batch import Batch
from ..accumulating.open_batches import WaitingRows
from ..accumulating.topic_buffer import TopicBuffer
from ..errors import ProducerClosedError
from ..settling.failed_batches import OVERTAKING, FailedBatches
from ..settling.healing import Healing
from .background_lookups import BackgroundLookups
from .dispatcher import Dispatcher
from .produce_responses import ProduceResponses
from .sender_state import SenderState
from .transaction_partitions import TransactionPartitions

_LOG = logging.getLogger("spark_kafka_native")

BUSY_BUFFER_S = 0.001
"""When to look again at a topic that a caller is just appending to."""
SHARED_READ_S = 0.02
"""Another thread may read our answers from a shared connection, which does not end our wait: look again after
this long."""
LEAST_AGE_S = 1.0
"""Without a reason, metadata is not requested more often than this, whatever metadata.max.age.ms says."""
TOGETHER = 0.75
"""When a topic's metadata are old, those that have reached this part of that age are asked for with them."""
CALLBACKS_S = 30.0
"""What is given up at the end goes to callbacks and the spill folder: `stop` waits this long for that."""
EXPIRY_S = 0.05
"""Looking at every batch has a cost, and being given up this much later does a batch no harm."""


class Sender:
    """The sending half of a producer. `wake`, `hurry` and `stop` may be called by any thread."""

    def __init__(
        self,
        state: SenderState,
        refreshed: Callable[[Collection[str]], None],
        room_wanted: Callable[[], bool],
        fail: Callable[[BaseException], None],
        release: Callable[[], None],
        retry_replay: Callable[[], bool],
    ) -> None:
        self._state = state
        self._release = release
        self._room_wanted = room_wanted
        self._fail = fail
        self.inbox: deque[Batch] = deque()
        """What callers hand over: appending to it is the one step in which a batch becomes the sender's, so
        that an interrupt in a caller leaves it on one side or on the other."""
        self.wakeup = Wakeup()
        self._failed = FailedBatches(state, fail)
        self._lookups = BackgroundLookups(state, self._failed, refreshed, self.wake)
        self._responses = ProduceResponses(state, self._failed, self._lookups)
        self._partitions = TransactionPartitions(state, self._failed, self._lookups)
        self._dispatcher = Dispatcher(state, self._failed, self._lookups, self._partitions)
        self._healing = Healing(state, retry_replay)
        self._new_topics: deque[str] = deque()
        self._hurry: object = None
        """Another object with each `hurry`: a flag that is cleared could be set at that very moment."""
        self._hurried: object = None
        """The one that was seen last, and has had its effect on every topic."""
        self._ended = False
        self._closing: Deadline | None = None
        self._expire_at = 0.0
        self._thread = threading.Thread(target=self._run, name="kafka-producer-sender", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether batches that are handed over will still end."""
        return not self._ended

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is a callback: it must not wait for what only its own thread can do."""
        return threading.current_thread() is self._thread

    def prepare(self, topic: str) -> None:
        """Records of ``topic``, which is described, will come in a moment."""
        self._new_topics.append(topic)
        self.wakeup.set()

    def wake(self) -> None:
        """Look at what there is to do."""
        self.wakeup.set()

    def hurry(self) -> None:
        """Send what there is, without waiting for batches to fill."""
        self._hurry = object()
        self.wakeup.set()

    def fail(self, cause: KafkaError) -> None:
        """End for good: a transaction's coordinator said so."""
        self._lookups.finished.append(lambda: self._failed.fail_for_good(cause))
        self.wakeup.set()

    @property
    def quiet(self) -> bool:
        """Whether nothing that was sent can be answered any more: after a flush, before a transaction is
        aborted."""
        unanswered = any(partition.in_flight for partition in list(self._state.active))
        return self._ended or (not unanswered and not self._partitions.adding)

    def stop(self, deadline: Deadline) -> None:
        """Deliver what is left until ``deadline``, give up the rest, and end the thread."""
        # Of several closing callers, the one with the earliest deadline decides when to give up.
        earlier = self._closing
        self._closing = deadline if earlier is None else deadline.within_ms(earlier.remaining_ms)
        self.hurry()
        if not self.is_current_thread:
            # Not with `Thread.join`: one that is interrupted takes the thread for ended (in 3.11).
            patience = Deadline.after_ms(deadline.remaining_ms + CALLBACKS_S * 1000)
            self._state.completion.waiters.wait_for(lambda: self._ended, patience)

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
            try:
                self._end()
            finally:
                self.wakeup.close()
                # by the thread that has used it: whatever ends it, and whoever waits for it or does not
                self._release()
                self._ended = True
                self._state.completion.waiters.notify_all()

    def _end(self) -> None:
        """Nothing is accepted any more, and what is here is given up."""
        fatal = self._state.fatal
        reason = str(fatal) if fatal else "the producer was closed before they could be delivered"
        try:
            for _ in range(2):  # what is taken in may leave dead letters, and these nothing more
                for buffer in self._state.buffers():
                    buffer.shut()
                self._take_in()
        finally:
            self._failed.fail_all(reason, fatal)

    def _turn(self) -> None:
        state = self._state
        now = state.clock()
        state.next_at = now + 3600
        self.wakeup.clear()
        while self._lookups.finished:
            self._lookups.finished.popleft()()
        while self._new_topics:
            self._dispatcher.prepare(self._new_topics.popleft(), now)
        self._close_due(now)
        self._take_in()
        for broker in state.connections.values():
            self._responses.read(broker, now)
        self._expire(now)
        if state.transaction is not None and state.transaction.discarding:
            self._failed.discard()
        self._refresh_old(now)
        if self._closing is None:
            self._healing.turn(now)
        self._dispatcher.send(now)
        self._lookups.ask_metadata(now)
        self._sleep()

    def _finished(self) -> bool:
        if self._state.fatal is not None:
            return True
        if self._closing is None:
            return False
        if self._closing.expired:
            return True
        waiting = any(buffer.waiting_since is not None for buffer in self._state.buffers())
        busy = self.inbox or self._state.completion.incomplete or self._healing.in_flight
        return not waiting and not busy

    def _sleep(self) -> None:
        state = self._state
        busy = [
            broker.connection
            for broker in state.connections.values()
            if broker.in_flight and broker.connection is not None
        ]
        if busy:
            state.by(state.clock() + SHARED_READ_S)
        if self._closing is not None:
            state.by(state.clock() + self._closing.remaining_ms / 1000)
        # The last answer of a closing producer may have come in this turn: nothing else would end the wait.
        if self.inbox or self._lookups.finished or self._finished():
            return
        streams = [(c.fileno(), c.waits_for) for c in busy if not c.closed]
        wait_ms = max(0.0, (state.next_at - state.clock()) * 1000)
        wait_for_streams([(self.wakeup.fileno(), READ), *streams], Deadline.after_ms(wait_ms))

    def _close_due(self, now: float) -> None:
        """Make batches of what has waited long enough."""
        wanted, room_wanted = self._hurry, self._room_wanted()
        hurry = wanted is not self._hurried or room_wanted or self._closing is not None

        def due(queue: WaitingRows) -> bool:
            # A batch that has to wait behind another may as well grow meanwhile.
            sending = self._state.partitions.get(queue.topic_partition)
            behind = sending is not None and bool(sending.waiting) and not sending.spilling
            return hurry or (
                not behind and queue.opened_at + self._state.linger_s(queue.topic_partition.topic) <= now
            )

        reached_all = True
        for buffer in self._state.buffers():
            since, linger_s = buffer.waiting_since, self._state.linger_s(buffer.topic)
            if since is not None and not hurry and since + linger_s > now:
                self._state.by(since + linger_s)
            elif since is not None or room_wanted:  # it may keep room for records that do not come
                reached_all &= self._close_buffer(buffer, due, now, (wanted, hurry))
        if reached_all:
            self._hurried = wanted
        if hurry:
            self._state.completion.waiters.notify_all()  # a flush waits for this first

    def _close_buffer(
        self, buffer: TopicBuffer, due: Callable[[WaitingRows], bool], now: float, reason: object
    ) -> bool:
        """False while a caller is appending to it: the next one does it, or we in a moment."""
        closed_at = buffer.close_waiting(due, now, reason)
        if closed_at is None:
            self._state.by(now + BUSY_BUFFER_S)
            return False
        # What stands behind another batch is not due when it has lingered: that one's end is what it waits
        # for.
        since, linger_s = buffer.waiting_since, self._state.linger_s(buffer.topic)
        if since is not None and since + linger_s > closed_at:
            self._state.by(since + linger_s)
        return True

    def _take_in(self) -> None:
        while self.inbox:
            # Before it leaves the inbox: a flush looks into that, and then at what is incomplete.
            self._state.completion.expect((self.inbox[0],))
            batch = self.inbox.popleft()
            partition = self._state.partition(batch.topic_partition)
            partition.add(batch)
            self._state.active[partition] = None
            if batch.failure is not None:
                self._failed.fail([batch], str(batch.failure), batch.failure, retriable=False)
            elif partition.spilling:  # also a dead letter that has taken a record's place in the folder
                self._failed.fail([batch], OVERTAKING, None)
            elif 0 < self._state.max_bytes(batch.topic_partition.topic) < len(batch.data):
                self._failed.split(batch)

    def _refresh_old(self, now: float) -> None:
        """Ask again about topics that were described long ago: partitions may have been added."""
        age_s = max(LEAST_AGE_S, self._state.router.config.metadata_max_age_ms / 1000)
        buffers = self._state.buffers()
        if any(buffer.described_at + age_s <= now for buffer in buffers):
            for buffer in buffers:  # also those that would be due in a moment: one request for all
                if buffer.described_at + age_s * TOGETHER <= now:
                    buffer.described_at = now
                    self._lookups.refresh(buffer.topic)
        self._state.by(min((buffer.described_at for buffer in buffers), default=now) + age_s)

    def _expire(self, now: float) -> None:
        """Give up what was not delivered in time."""
        state = self._state
        if now < self._expire_at:
            state.by(self._expire_at)
            return
        allowed_s = state.config.delivery_timeout_ms / 1000
        soonest = now + allowed_s
        for partition in list(state.active):
            for place, batch in enumerate(partition.unended()):
                if place and batch.spilled is not None:
                    # It takes no memory, and long may stand in front of it: its time begins with its turn.
                    batch.created_at = now
                if batch.created_at + allowed_s > now:
                    soonest = min(soonest, batch.created_at + allowed_s)
                    continue
                last = state.last_failure(batch)
                reason = f"not delivered within delivery.timeout.ms={state.config.delivery_timeout_ms}"
                self._failed.fail([batch], f"{reason}; the last failure: {last}" if last else reason, last)
            if partition.idle:
                del state.active[partition]
        self._expire_at = max(soonest, now + EXPIRY_S)
        state.by(self._expire_at)
