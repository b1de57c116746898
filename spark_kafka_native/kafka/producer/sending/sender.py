"""`Sender`: the one background thread of a producer. Batches in, produce requests out.

The thread blocks only in its own wait: what a socket does not take at once is written when it has room. What
may take longer runs in other threads (`background_lookups.py`); what an answer means is decided in
`verdict.py`, and what may be sent next in `partition_queue.py`. These return what follows, and `SenderLoop`
acts on it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import assert_never

from ...cluster.router import Router
from ...config.client_config import ProducerConfig
from ...errors import KafkaError
from ...network.transport import READ, wait_for_streams
from ...runtime.deadline import Deadline, LoopTimer, Wakeup
from ..accumulating.batch import Batch
from ..accumulating.memory import BufferMemory
from ..accumulating.open_batches import WaitingRows
from ..accumulating.topic_buffer import TopicBuffer
from ..accumulating.topics import Topics
from ..completion import OVERTAKING, BatchCompletion, Failures
from ..delivery import SenderThread, Waiters
from ..errors import DeliveryStatus, ProducerClosedError
from ..oversized import OverLimit, OversizedBatches
from ..spilling import Healing, Replay, Spilling
from ..stats import StatsRecorder
from .background_lookups import BackgroundLookups, TransactionPartitions
from .dispatcher import Dispatcher
from .idempotence import ProducerId
from .partition_queue import PartitionQueues, SendingRules
from .produce_requests import Answered, ProduceAnswer, ProduceConnections, Unanswered, Written
from .transaction import Transaction
from .verdict import Delivered, Failed, FailureScope, Retry, Split

_LOG = logging.getLogger("spark_kafka_native")

SHARED_READ_S = 0.02
"""Another thread may read our answers from a shared connection, which does not end our wait: look again after
this long."""
CALLBACKS_S = 30.0
"""Batches that are given up at the end go to callbacks and the spill folder: `stop` waits this long for
that."""
BUSY_BUFFER_S = 0.001
"""When to look again at a topic that a caller is just appending to."""


class Linger:
    """Closes open batches when they have waited for more records as long as ``linger.ms`` allows, or earlier,
    when a caller waits for them. Called by the sender's thread, except for `hurry`.
    """

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


class SenderLoop:
    """The steps of the sender's thread, and what they hand to each other. It owns the inbox."""

    def __init__(  # noqa: PLR0913 - where the sending half of a producer is put together
        self,
        router: Router,
        config: ProducerConfig,
        *,
        topics: Topics,
        memory: BufferMemory,
        completion: BatchCompletion,
        spilling: Spilling,
        over_limit: OverLimit,
        replay: Replay,
        stats: StatsRecorder,
        transaction: Transaction | None,
        inbox: deque[Batch],
        wake: Callable[[], None],
    ) -> None:
        own = ProducerId() if config.idempotent else None
        producer_id = own if transaction is None else transaction.producer_id
        self.inbox = inbox
        self.spilling = spilling
        self.timer = timer = LoopTimer()
        rules = SendingRules.of(config, router.config)
        self.queues = queues = PartitionQueues(rules, producer_id, transaction)
        self.connections = ProduceConnections(router, config, stats, timer, transaction)
        self.lookups = BackgroundLookups(router, topics, queues, timer, wake)
        self.failures = Failures(
            topics, queues, completion, spilling, timer, config.delivery_timeout_ms, transaction
        )
        self.linger = Linger(config, topics, queues, memory, completion.waiters, timer)
        self._topics = topics
        self._completion = completion
        self._transaction = transaction
        self._added: TransactionPartitions | None = None
        if transaction is not None:
            self._added = TransactionPartitions(transaction, router, self.lookups)
        self._oversized = OversizedBatches(topics, queues, completion, spilling, self.failures, over_limit)
        self._healing = Healing(
            queues, completion.expect, spilling, timer, replay, router.config.retry_backoff_max_ms
        )
        self._dispatcher = Dispatcher(topics, queues, self.connections, self.lookups, spilling, timer)

    def turn(self, new_topics: deque[str], closing: bool) -> None:
        """Do what there is to do now; afterwards `timer` says when there will be more."""
        now = self.timer.start_turn()
        self._finish_lookups()
        while new_topics:
            self._dispatcher.prepare(new_topics.popleft(), now)
        self.linger.close_due(now, closing)
        self._take_in()
        for answer in self.connections.read(now):
            self._settle(answer, now)
        self.failures.expire(now)
        if self._transaction is not None and self._transaction.discarding:
            self.failures.discard()
        self.lookups.refresh_old(now)
        if not closing:
            self._healing.turn(now)
        for one in self._dispatcher.send(now):
            self.failures.fail(one.batches, one.reason, one.cause, retriable=one.retriable)
        if self._added is not None:
            self._added.add_wanted()
        self.lookups.ask_metadata(now)

    @property
    def quiet(self) -> bool:
        """True if nothing that was sent can be answered any more. Any thread asks."""
        unanswered = any(queue.in_flight for queue in list(self.queues.active))
        return not unanswered and not (self._added is not None and self._added.adding)

    @property
    def empty(self) -> bool:
        """True if nothing is left to be sent or answered."""
        waiting = any(buffer.waiting_since is not None for buffer in self._topics.all())
        return not (waiting or self.inbox or self._completion.incomplete or self._healing.in_flight)

    def end(self) -> None:
        """Accept nothing more, and give up all batches that have not ended."""
        fatal = self.failures.fatal
        reason = str(fatal) if fatal else "the producer was closed before they could be delivered"
        try:
            for _ in range(2):  # batches taken in may leave dead letters, and these nothing more
                for buffer in self._topics.all():
                    self._shut(buffer)
                self._take_in()
        finally:
            self.failures.fail_all(reason, fatal)

    def _shut(self, buffer: TopicBuffer) -> None:
        try:
            buffer.shut()
        except BaseException:  # noqa: BLE001 - the records of the other topics must end all the same
            _LOG.exception("topic %s: records that wait for their batch to fill are lost", buffer.topic)

    def _finish_lookups(self) -> None:
        while self.lookups.finished:
            final = self.lookups.finished.popleft()()
            if final is not None:
                self.failures.fail_for_good(final)
            if self._transaction is not None:
                self._transaction.check_topics(self._topics.topic_id)

    def _take_in(self) -> None:
        while self.inbox:
            # Before it leaves the inbox: a flush looks into that, and then at the incomplete batches.
            self._completion.expect((self.inbox[0],))
            batch = self.inbox.popleft()
            queue = self.queues.add(batch)
            self.failures.taken_in(batch)
            if batch.failure is not None:
                self.failures.fail([batch], str(batch.failure), batch.failure, retriable=False)
            elif queue.spilling:  # also a dead letter that has taken a record's place in the folder
                self.failures.fail([batch], OVERTAKING, None)
            elif 0 < self._topics.max_bytes(batch.topic_partition.topic) < len(batch.data):
                self._oversized.split(batch)

    def _settle(self, answer: ProduceAnswer, now: float) -> None:
        """Do what an answer means, as its partition's queue says."""
        batch = answer.batch
        queue = self.queues.of(batch.topic_partition)
        match answer:
            case Written():
                queue.written(batch, now)
                self._completion.delivered(batch, DeliveryStatus.POSSIBLY_PERSISTED, None, None)
            case Unanswered(cause=cause):
                self._act(queue.lost(batch, cause, now), answer)
            case Answered(response=response, cause=cause, by_id=by_id):
                verdict = queue.answered(batch, response.error_code, cause, now, by_id=by_id)
                if isinstance(verdict, Delivered):
                    self._delivered(answer, verdict.duplicate)
                else:
                    self._act(verdict, answer)
            case _:
                assert_never(answer)

    def _act(self, verdict: Retry | Split | Failed | None, answer: Answered | Unanswered) -> None:
        batch = answer.batch
        match verdict:
            case None:
                return
            case Retry(refresh=refresh):
                if refresh:
                    self.lookups.refresh(batch.topic_partition.topic)
            case Split():
                self._oversized.split(batch)
            case Failed():
                self._give_up(verdict, batch, answer.cause)
            case _:
                assert_never(verdict)

    def _delivered(self, answer: Answered, duplicate: bool) -> None:
        response = answer.response
        known = not duplicate and response.base_offset >= 0
        self._completion.delivered(
            answer.batch,
            DeliveryStatus.PERSISTED,
            response.base_offset if known else None,
            response.log_append_time_ms if response.log_append_time_ms >= 0 else None,
        )

    def _give_up(self, verdict: Failed, batch: Batch, cause: KafkaError) -> None:
        failures = self.failures
        match verdict:
            case Failed(scope=FailureScope.PRODUCER):
                failures.fail_for_good(cause)
            case Failed(scope=FailureScope.WAITING):
                waiting = list(self.queues.of(batch.topic_partition).waiting)
                failures.fail(waiting, str(cause), cause, retriable=False)
            case Failed(exhausted=True):
                failures.fail([batch], f"{cause} (after {batch.sending.attempts} attempts)", cause)
            case Failed(oversized=True):
                self._oversized.too_large(batch, cause)
            case _:
                failures.fail([batch], str(cause), cause, retriable=False)


class Sender:
    """The thread around a `SenderLoop`. `wake`, `hurry` and `stop` may be called by any thread."""

    def __init__(
        self, loop: SenderLoop, wakeup: Wakeup, topics: Topics, waiters: Waiters, release: Callable[[], None]
    ) -> None:
        """``release`` is called by the thread at its end: nothing uses what it was given any more."""
        self.loop = loop
        self.wakeup = wakeup
        self._topics = topics
        self._waiters = waiters
        self._release = release
        self._new_topics: deque[str] = deque()
        self._ended = False
        self._closing: Deadline | None = None
        self._thread = SenderThread(target=self._run, name="kafka-producer-sender", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def inbox(self) -> deque[Batch]:
        """Batches that callers have handed over, and the loop has not taken in."""
        return self.loop.inbox

    @property
    def running(self) -> bool:
        """True while batches that are handed over will still end."""
        return not self._ended

    @property
    def is_current_thread(self) -> bool:
        """True if the caller is a callback: it must not wait for what only its own thread can do."""
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
        self.loop.linger.hurry()
        self.wakeup.set()

    def fail(self, cause: KafkaError) -> None:
        """End for good: a transaction's coordinator said so."""
        self.loop.lookups.finished.append(lambda: cause)
        self.wakeup.set()

    @property
    def quiet(self) -> bool:
        """True if nothing that was sent can be answered any more: after a flush, before a transaction is
        aborted."""
        return self._ended or self.loop.quiet

    def stop(self, deadline: Deadline) -> None:
        """Deliver the remaining batches until ``deadline``, give up the rest, and end the thread."""
        # Of several closing callers, the one with the earliest deadline decides when to give up.
        earlier = self._closing
        self._closing = deadline if earlier is None else deadline.within_ms(earlier.remaining_ms)
        self.hurry()
        if not self.is_current_thread:
            # Not with `Thread.join`: one that is interrupted takes the thread for ended (in 3.11).
            patience = Deadline.after_ms(deadline.remaining_ms + CALLBACKS_S * 1000)
            self._waiters.wait_for(lambda: self._ended, patience)

    def _run(self) -> None:
        failures = self.loop.failures
        try:
            while not self._finished():
                self.wakeup.clear()
                self.loop.turn(self._new_topics, self._closing is not None)
                self._sleep()
        except BaseException as error:  # noqa: BLE001 - the records' owners must hear of a bug of any kind
            _LOG.exception("the producer's sender thread failed")
            failures.fatal = ProducerClosedError(f"the sender thread failed: {error!r}")
            failures.fatal.__cause__ = error
            self._topics.close(failures.fatal)
        finally:
            try:
                self.loop.end()
            finally:
                self.wakeup.close()
                # By the thread that has used it, no matter how it ends and if a caller waits for it.
                self._release()
                self._ended = True
                self._waiters.notify_all()

    def _finished(self) -> bool:
        if self.loop.failures.fatal is not None:
            return True
        if self._closing is None:
            return False
        return self._closing.expired or self.loop.empty

    def _sleep(self) -> None:
        loop, timer = self.loop, self.loop.timer
        busy = [
            broker.connection
            for broker in loop.connections
            if broker.in_flight and broker.connection is not None
        ]
        if busy:
            timer.by(timer.clock() + SHARED_READ_S)
        if self._closing is not None:
            timer.by(timer.clock() + self._closing.remaining_ms / 1000)
        # The last answer of a closing producer may have come in this turn: nothing else would end the wait.
        if loop.inbox or loop.lookups.finished or self._finished():
            return
        streams = [(c.fileno(), c.waits_for) for c in busy if not c.closed]
        wait_ms = max(0.0, (timer.next_at - timer.clock()) * 1000)
        wait_for_streams([(self.wakeup.fileno(), READ), *streams], Deadline.after_ms(wait_ms))
