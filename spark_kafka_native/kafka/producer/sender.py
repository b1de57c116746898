"""`Sender`: the one background thread of a producer. Batches in, produce requests out, answers to the
settlement.

It never blocks but in its own wait and in a socket's write: connecting and metadata run in helper threads,
whose results come back through the inbox. What an answer means is decided in `verdict.py`; here it is
acted upon.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from uuid import UUID

from ..cluster.router import Router
from ..config import ProducerConfig
from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError, ProtocolError
from ..model import Acks
from ..network.connection import Connection
from ..network.deadline import Deadline
from ..network.retry import Backoff
from ..network.transport import READ, wait_for_streams
from ..protocol.api.init_producer_id import InitProducerIdRequest
from ..protocol.api.produce import PartitionProduceResponse
from .batch import Batch
from .encoder import BatchEncoder
from .errors import DeliveryStatus, ProducerClosedError, RecordTooLargeError
from .idempotence import (
    Idempotence,
    PartitionSequence,
    ProducerIdentity,
    clear_numbering,
    read_numbering,
)
from .lane import Lane, SentRequest, build_produce, choose_version
from .partition_queue import PartitionQueue
from .settlement import Settlement
from .splitting import split_batch
from .stats import StatsRecorder
from .topic_buffer import TopicBuffer
from .verdict import INDEFINITE, Verdict, judge
from .wakeup import Wakeup

_LOG = logging.getLogger("spark_kafka_native")

CHANNEL = "produce"
"""Produce requests have connections of their own: behind a long fetch they would wait for it."""
MOST_REQUEST_BYTES = 8 * 1024 * 1024
"""One request, where max.request.size does not say; brokers take up to 100 MiB (socket.request.max.bytes)."""
TOPIC_PROPAGATION_S = 30.0
"""So long a topic that was there may be unknown to a broker (it may be restarting); then it was deleted."""
BUSY_BUFFER_S = 0.001
"""When to look again at a topic that a caller is just appending to."""
SHARED_READ_S = 0.02
"""Another thread may read our answers off a shared connection, which does not end our wait: look again
after this."""


class Sender:
    """The sending half of a producer. `post`, `wake`, `hurry` and `stop` may be called by any thread."""

    def __init__(
        self,
        router: Router,
        config: ProducerConfig,
        buffers: Callable[[], Iterable[TopicBuffer]],
        describe: Callable[[TopicBuffer], None],
        encoder: BatchEncoder,
        settlement: Settlement,
        stats: StatsRecorder,
        room_wanted: Callable[[], bool],
        fail: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._config = config
        self._buffers = buffers
        self._describe = describe
        self._encoder = encoder
        self._settlement = settlement
        self._stats = stats
        self._room_wanted = room_wanted
        self._fail = fail
        self._clock = clock
        self._backoff = Backoff(
            first_ms=router.config.retry_backoff_ms, most_ms=router.config.retry_backoff_max_ms
        )
        self._timeout_s = router.config.request_timeout_ms / 1000
        self._most_bytes = config.max_request_size or MOST_REQUEST_BYTES
        self._inbox: deque[Batch] = deque()
        self._results: deque[Callable[[], None]] = deque()
        self._wakeup = Wakeup()
        self._hurry = False
        self._closing: Deadline | None = None
        self._thread = threading.Thread(target=self._run, name="kafka-producer-sender", daemon=True)
        # From here on: the sender thread's own.
        self._active: dict[PartitionQueue, None] = {}
        self._lanes: dict[int, Lane] = {}
        self._idempotence = Idempotence() if config.idempotent else None
        self._asking_identity = False
        self._refreshing: set[str] = set()
        self._identity_not_before = 0.0
        self._identity_failures = 0
        self._expire_at = 0.0
        self._next_at = 0.0
        self._fatal: KafkaError | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, batches: list[Batch]) -> None:
        """Take batches over, in their order; the caller holds the lock that keeps it."""
        if batches:
            self._settlement.expect(batches)
            self._inbox.extend(batches)
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
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            # Writing to a broker that does not read may hold the thread for one request timeout.
            self._thread.join(deadline.remaining_ms / 1000 + self._timeout_s + 5)

    # The loop.

    def _run(self) -> None:
        try:
            while not self._finished():
                self._turn()
        except BaseException as error:  # noqa: BLE001 - the records' owners must hear of a bug, whatever it is
            _LOG.exception("the producer's sender thread failed")
            self._fatal = ProducerClosedError(f"the sender thread failed: {error!r}")
            self._fatal.__cause__ = error
            self._fail(self._fatal)
        finally:
            self._take_in()
            reason = (
                str(self._fatal) if self._fatal else "the producer was closed before they could be delivered"
            )
            self._give_up_all(reason, self._fatal)
            self._wakeup.close()

    def _turn(self) -> None:
        now = self._clock()
        self._next_at = now + 3600
        self._wakeup.clear()
        while self._results:
            self._results.popleft()()
        self._close_due(now)
        self._take_in()
        self._read_answers(now)
        self._expire(now)
        self._dispatch(now)
        self._sleep()

    def _finished(self) -> bool:
        if self._closing is None:
            return False
        if self._closing.expired:
            return True
        return not self._settlement.unsettled and not any(
            b.waiting_since is not None for b in self._buffers()
        )

    def _by(self, moment: float) -> None:
        """Something is to be done at ``moment`` at the latest."""
        self._next_at = min(self._next_at, moment)

    def _sleep(self) -> None:
        busy = [lane.connection for lane in self._lanes.values() if lane.sent and lane.connection is not None]
        if busy:
            self._by(self._clock() + SHARED_READ_S)
        if self._closing is not None:
            self._by(self._clock() + self._closing.remaining_ms / 1000)
        if self._inbox or self._results:
            return
        streams = [(c.fileno(), c.waits_for) for c in busy if not c.closed]
        wait_ms = max(0.0, (self._next_at - self._clock()) * 1000)
        wait_for_streams([(self._wakeup.fileno(), READ), *streams], Deadline.after_ms(wait_ms))

    def _take_in(self) -> None:
        while self._inbox:
            batch = self._inbox.popleft()
            batch.queue.batches.append(batch)
            self._active[batch.queue] = None
            if batch.queue.spilling and batch.spilled is None:
                self._give_up(
                    [batch],
                    "an earlier batch of the partition is in the spill folder and must not be overtaken",
                    None,
                )
            elif not self._fits(batch):
                self._split(batch)

    def _fits(self, batch: Batch) -> bool:
        limit = self._limit(batch.queue)
        return limit <= 0 or len(batch.data) <= limit

    def _limit(self, queue: PartitionQueue) -> int:
        buffer = self._buffer(queue)
        return 0 if buffer is None else buffer.most_bytes

    def _close_due(self, now: float) -> None:
        hurry = self._hurry or self._room_wanted() or self._closing is not None
        self._hurry = False
        for buffer in self._buffers():
            since = buffer.waiting_since
            if since is None:
                continue
            due = since + self._config.linger_ms / 1000
            if not hurry and due > now:
                self._by(due)
                continue
            # A batch that would stand behind another may as well grow meanwhile.
            if not buffer.close_waiting(lambda queue: hurry or not queue.batches):
                self._hurry = hurry
                self._by(now + BUSY_BUFFER_S)

    # Answers.

    def _read_answers(self, now: float) -> None:
        for lane in self._lanes.values():
            if not lane.sent or lane.connection is None:
                continue
            lane.connection.poll()
            while lane.sent and lane.sent[0].pending.done:
                lane.last_answer_at = now
                self._settle_request(lane.sent.popleft(), now)
            if lane.sent:
                # The clock of a request starts when the one before it is answered: brokers work on them in
                # turn.
                due = max(lane.sent[0].sent_at, lane.last_answer_at) + self._timeout_s
                if due <= now:
                    lane.connection.give_up(lane.sent[0].pending, self._timeout_s * 1000)
                    self._by(now)
                else:
                    self._by(due)

    def _settle_request(self, request: SentRequest, now: float) -> None:
        self._stats.measure(latency_ms=(now - request.sent_at) * 1000)
        try:
            response = request.pending.result(0)
        except KafkaError as error:
            for batch in request.batches:
                batch.indefinite = True
                self._came_back(batch)
                self._try_again(batch, error, now, refresh=True)
            return
        if self._config.acks is Acks.NONE:
            for batch in request.batches:
                self._came_back(batch)
                self._settlement.delivered(batch, DeliveryStatus.POSSIBLY_PERSISTED, None, None)
            return
        told = request.match(response)
        request.pending.release()
        for batch in request.batches:
            head = self._is_head(batch)
            self._came_back(batch)
            if batch not in told:
                batch.indefinite = True
                missing = ProtocolError(
                    f"{request.pending.what}: the answer does not mention {batch.queue.topic_partition}"
                )
                self._try_again(batch, missing, now, refresh=True)
            else:
                self._settle_batch(batch, told[batch], head, now)

    def _came_back(self, batch: Batch) -> None:
        queue = batch.queue
        queue.in_flight.remove(batch)
        if not queue.in_flight:
            queue.draining = False
        self._active[queue] = None

    def _is_head(self, batch: Batch) -> bool:
        """Whether no earlier batch of its partition is unconfirmed."""
        queue = batch.queue
        return queue.in_flight[0] is batch and not (queue.batches and queue.batches[0].order < batch.order)

    def _settle_batch(self, batch: Batch, told: PartitionProduceResponse, head: bool, now: float) -> None:
        code, queue = told.error_code, batch.queue
        sequence = self._sequence(queue)
        verdict = judge(
            code,
            records=batch.records,
            head_of_line=head,
            gap=sequence is not None and sequence.gap,
            indefinite=batch.indefinite,
            numbered=batch.identity is not None,
            foreign=batch.spilled is not None,
        )
        if verdict in (Verdict.DELIVERED, Verdict.DUPLICATE):
            self._confirm(batch, told, verdict, sequence)
            return
        batch.indefinite = batch.indefinite or code in INDEFINITE
        where = f"Produce to {queue.topic_partition}"
        cause = BrokerError(code, where, _message(told))
        batch.last_error = cause
        if batch.ended:  # gave it up while it was under way
            return
        match verdict:
            case Verdict.RETRY | Verdict.REFRESH:
                self._try_again(batch, cause, now, refresh=verdict is Verdict.REFRESH)
            case Verdict.SPLIT:
                queue.put_back(batch)
                self._split(batch)
            case Verdict.RENUMBER:
                queue.put_back(batch)
                queue.draining = bool(queue.in_flight)
                queue.renumber = True
            case Verdict.FATAL:
                queue.put_back(batch)
                self._end_all(cause)
            case _:
                self._give_up([batch], str(cause), cause, retriable=False)

    def _confirm(
        self,
        batch: Batch,
        told: PartitionProduceResponse,
        verdict: Verdict,
        sequence: PartitionSequence | None,
    ) -> None:
        queue = batch.queue
        queue.failures = 0
        queue.not_before = 0.0
        queue.unknown_since = None
        if sequence is not None and batch.identity == sequence.identity:
            sequence.confirmed = True
            sequence.gap = False
        known = verdict is Verdict.DELIVERED and told.base_offset >= 0
        self._settlement.delivered(
            batch,
            DeliveryStatus.PERSISTED,
            told.base_offset if known else None,
            told.log_append_time_ms if told.log_append_time_ms >= 0 else None,
        )

    def _try_again(self, batch: Batch, cause: KafkaError, now: float, *, refresh: bool) -> None:
        queue = batch.queue
        batch.last_error = cause
        if batch.ended:
            return
        if batch.attempts > self._config.retries:
            self._give_up([batch], f"{cause} (after {batch.attempts} attempts)", cause)
            return
        if isinstance(cause, BrokerError) and self._deleted(queue, cause, now):
            self._give_up([*self._all_of(batch)], str(cause), cause, retriable=False)
            return
        queue.put_back(batch)
        queue.draining = bool(queue.in_flight)
        if not queue.draining or queue.batches[0] is batch:
            queue.not_before = now + self._backoff.delay_ms(queue.failures) / 1000
            queue.failures += 1
        if refresh:
            self._refresh(queue)

    def _deleted(self, queue: PartitionQueue, cause: BrokerError, now: float) -> bool:
        if cause.error_code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            queue.unknown_since = None
            return False
        if queue.unknown_since is None:
            queue.unknown_since = now
        return now - queue.unknown_since > TOPIC_PROPAGATION_S

    def _all_of(self, batch: Batch) -> list[Batch]:
        return [batch, *batch.queue.batches]

    def _split(self, batch: Batch) -> None:
        """Put two halves in the place of ``batch``, which stands in its queue and was never accepted."""
        if batch.records == 1:
            limit = self._limit(batch.queue)
            topic = batch.queue.topic_partition.topic
            part = batch.parts[0] if batch.parts else None
            row = int(part.rows[0]) + part.first_row if part else None
            cause = RecordTooLargeError.of(
                topic, row, len(batch.data), limit, "the topic's max.message.bytes"
            )
            batch.queue.batches.remove(batch)
            self._give_up([batch], str(cause), cause, retriable=False)
            return
        batch.queue.batches.remove(batch)
        halves = split_batch(batch, self._encoder)
        self._settlement.replace(batch, halves)
        for half in halves:
            batch.queue.put_back(half)
            if not self._fits(half):
                self._split(half)

    # Giving up.

    def _expire(self, now: float) -> None:
        if now < self._expire_at:
            self._by(self._expire_at)
            return
        allowed = self._config.delivery_timeout_ms / 1000
        soonest = now + allowed
        for queue in list(self._active):
            late = [
                b for b in (*queue.in_flight, *queue.batches) if b.created_at + allowed <= now and not b.ended
            ]
            for batch in late:
                batch.indefinite = batch.indefinite or batch in queue.in_flight
                last = f"; the last failure: {batch.last_error}" if batch.last_error else ""
                reason = f"not delivered within delivery.timeout.ms={self._config.delivery_timeout_ms}{last}"
                self._give_up([batch], reason, batch.last_error)
            left = [b.created_at + allowed for b in (*queue.in_flight, *queue.batches) if not b.ended]
            soonest = min([soonest, *left])
            if not queue.batches and not queue.in_flight:
                del self._active[queue]
        # Looking at every batch costs something, and a delivery that is given up 50 ms late is none the
        # worse.
        self._expire_at = max(soonest, now + 0.05)
        self._by(self._expire_at)

    def _give_up(
        self, batches: list[Batch], reason: str, cause: BaseException | None, *, retriable: bool = True
    ) -> None:
        """Batches of one partition, in order; they leave the queue, and what was spilled takes along what
        is behind."""
        queue = batches[0].queue
        if (
            any(batch.identity is not None for batch in batches)
            and (sequence := self._sequence(queue)) is not None
        ):
            sequence.gap = True
        self._forget(queue, batches)
        topic_id = self._topic_id(queue)
        self._settlement.give_up(batches, reason, cause, retriable=retriable, topic_id=topic_id)
        behind = [batch for batch in queue.batches if batch.spilled is None]
        if queue.spilling and behind:
            self._forget(queue, behind)
            overtaking = "an earlier batch of the partition is in the spill folder and must not be overtaken"
            self._settlement.give_up(behind, overtaking, cause, retriable=retriable, topic_id=topic_id)

    def _forget(self, queue: PartitionQueue, batches: list[Batch]) -> None:
        gone = set(batches)
        kept = [batch for batch in queue.batches if batch not in gone]
        queue.batches.clear()
        queue.batches.extend(kept)

    def _give_up_all(self, reason: str, cause: BaseException | None) -> None:
        for queue in list(self._active):
            for batch in queue.in_flight:
                batch.indefinite = True
            left = [*queue.in_flight, *queue.batches]
            if left:
                self._give_up(sorted(left, key=lambda batch: batch.order), reason, cause)

    def _end_all(self, cause: KafkaError) -> None:
        _LOG.error("the producer can't go on: %s", cause)
        self._fatal = cause
        self._fail(cause)
        self._give_up_all(f"the producer can't go on: {cause}", cause)
        self._closing = self._closing or Deadline.after_ms(0)

    # Sending.

    def _dispatch(self, now: float) -> None:
        by_leader: dict[int, list[PartitionQueue]] = {}
        for queue in self._active:
            if not queue.batches or (queue.draining and queue.in_flight):
                continue
            if queue.not_before > now:
                self._by(queue.not_before)
                continue
            leader = self._leader(queue, now)
            if leader is not None:
                by_leader.setdefault(leader, []).append(queue)
        for node_id, queues in by_leader.items():
            lane = self._lanes.setdefault(node_id, Lane(node_id))
            if self._reach(lane, now):
                self._fill(lane, queues, now)

    def _leader(self, queue: PartitionQueue, now: float) -> int | None:
        topic, index = queue.topic_partition
        metadata = self._router.snapshot
        known = metadata.topics.get(topic)
        if known is not None and known.error_code and not known.error_code.retriable:
            cause = BrokerError(known.error_code, f"topic {topic}")
            self._give_up(list(queue.batches), str(cause), cause, retriable=False)
            return None
        partition = None if known is None else known.partitions.get(index)
        if partition is not None and partition.leader is not None and partition.leader in metadata.brokers:
            return partition.leader
        if known is not None and known.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            cause = BrokerError(known.error_code, f"topic {topic}")
            if self._deleted(queue, cause, now):
                self._give_up(list(queue.batches), str(cause), cause, retriable=False)
                return None
        queue.not_before = now + self._backoff.delay_ms(queue.failures) / 1000
        queue.failures += 1
        self._by(queue.not_before)
        self._refresh(queue)
        return None

    def _reach(self, lane: Lane, now: float) -> bool:
        """Whether requests can be sent on ``lane`` now; starts connecting if not."""
        if lane.usable and lane.connection is not None:
            broker = self._router.snapshot.brokers.get(lane.node_id)
            moved = broker is not None and lane.connection.address != f"{broker.host}:{broker.port}"
            if lane.connection.muted_ms:
                self._by(now + lane.connection.muted_ms / 1000)
                return False
            if not moved and (lane.sent or lane.connection.alive()):
                return True
        if lane.sent or lane.connecting:
            return False
        if lane.not_before > now:
            self._by(lane.not_before)
            return False
        lane.connecting = True
        self._in_background(lambda: self._connect(lane), f"connect-{lane.node_id}")
        return False

    def _fill(self, lane: Lane, queues: list[PartitionQueue], now: float) -> None:
        while queues and len(lane.sent) < self._config.max_in_flight:
            batches: list[Batch] = []
            size = 0
            for queue in queues:
                batch = self._next_batch(queue)
                if batch is not None and (not batches or size + len(batch.data) <= self._most_bytes):
                    batches.append(batch)
                    size += len(batch.data)
            if not batches or not self._submit(lane, batches, now):
                return

    def _next_batch(self, queue: PartitionQueue) -> Batch | None:
        """The batch that may be sent now, numbered; it stays in its queue until it is sent."""
        if not queue.batches or (queue.draining and queue.in_flight):
            return None
        batch = queue.batches[0]
        if batch.spilled is not None and not batch.data:
            self._load(batch)
        if self._idempotence is None:
            if queue.renumber:
                clear_numbering(memoryview(batch.data))
                batch.identity, queue.renumber = None, False
            # Without sequence numbers a retry could overtake: one at a time, unless nothing is ever retried.
            alone = self._config.acks is not Acks.NONE and self._config.retries > 0
            return None if alone and queue.in_flight else batch
        sequence = self._sequence(queue)
        if sequence is None:
            self._ask_identity()
            return None
        if queue.in_flight and (not sequence.confirmed or batch.spilled is not None):
            return None
        return batch if self._number(batch, sequence, self._idempotence) else None

    def _number(self, batch: Batch, sequence: PartitionSequence, idempotence: Idempotence) -> bool:
        """Give the first batch of its queue sequence numbers, if it has none; False while that is not
        possible."""
        queue = batch.queue
        fresh = sequence.gap and not queue.in_flight and all(b.identity is None for b in queue.batches)
        if fresh or queue.renumber:
            if not idempotence.restart(sequence):
                self._ask_identity()
                return False
            queue.renumber = False
            for waiting in queue.batches:
                waiting.identity = None
        if batch.identity is None:
            idempotence.number(batch, sequence)
        return True

    def _load(self, batch: Batch) -> None:
        """A spilled batch, with the numbering it had: if it is in the log after all, the broker recognises
        it."""
        assert batch.spilled is not None
        batch.data = memoryview(batch.spilled.read())
        batch.indefinite = batch.spilled.possibly_persisted
        identity, base_sequence = read_numbering(batch.data)
        if identity is not None and batch.attempts == 0:
            batch.identity, batch.base_sequence = identity, base_sequence

    def _submit(self, lane: Lane, batches: list[Batch], now: float) -> bool:
        connection = lane.connection
        assert connection is not None
        topic_ids = {
            name: topic_id
            for batch in batches
            if (topic_id := self._topic_id(batch.queue)) is not None
            and (name := batch.queue.topic_partition.topic)
        }
        version = choose_version(connection, batches, topic_ids)
        request = build_produce(batches, topic_ids, self._config.acks, int(self._timeout_s * 1000))
        try:
            pending = connection.submit(request, version)
        except KafkaError as error:
            # Nothing was written: the batches are as if never tried.
            self._stumble(lane, error, now)
            return False
        by_id = version >= 13
        lane.sent.append(
            SentRequest(pending=pending, batches=batches, by_id=by_id, topic_ids=topic_ids, sent_at=now)
        )
        self._stats.count(requests=1, retries=sum(batch.attempts > 0 for batch in batches))
        for batch in batches:
            batch.queue.batches.popleft()
            batch.queue.in_flight.append(batch)
            if not batch.attempts:
                self._stats.measure(queue_ms=max(0.0, now - batch.created_at) * 1000)
            batch.attempts += 1
            batch.sent_at = now
        if pending.done:
            self._by(now)
        return True

    # What may block runs elsewhere.

    def _in_background(self, job: Callable[[], Callable[[], None]], name: str) -> None:
        """Run ``job`` in a thread of its own; what it returns is called in the sender's thread."""

        def run() -> None:
            self._results.append(job())
            self.wake()

        threading.Thread(target=run, name=f"kafka-producer-{name}", daemon=True).start()

    def _connect(self, lane: Lane) -> Callable[[], None]:
        try:
            deadline = Deadline.after_ms(2 * self._router.config.connection_setup_timeout_ms)
            connection = self._router.connection(lane.node_id, deadline, CHANNEL)
        except KafkaError as error:
            failure = error
            return lambda: self._connected(lane, None, failure)
        return lambda: self._connected(lane, connection, None)

    def _connected(self, lane: Lane, connection: Connection | None, error: KafkaError | None) -> None:
        lane.connecting = False
        if error is not None:
            self._stumble(lane, error, self._clock())
            return
        lane.connection = connection
        lane.failures = 0

    def _stumble(self, lane: Lane, error: KafkaError, now: float) -> None:
        lane.not_before = now + self._backoff.delay_ms(lane.failures) / 1000
        lane.failures += 1
        self._by(lane.not_before)
        _LOG.debug("broker %s: %s", lane.node_id, error)
        for queue in self._active:
            if queue.batches and self._leads(lane, queue):
                queue.batches[0].last_error = error
                self._refresh(queue)

    def _leads(self, lane: Lane, queue: PartitionQueue) -> bool:
        topic = self._router.snapshot.topics.get(queue.topic_partition.topic)
        partition = None if topic is None else topic.partitions.get(queue.topic_partition.partition)
        return partition is not None and partition.leader == lane.node_id

    def _refresh(self, queue: PartitionQueue) -> None:
        topic = queue.topic_partition.topic
        if topic in self._refreshing:
            return
        self._refreshing.add(topic)

        def ask() -> Callable[[], None]:
            error: KafkaError | None = None
            try:
                self._router.refresh((topic,), Deadline.after_ms(self._router.config.request_timeout_ms))
                buffer = self._buffer(queue)
                if buffer is not None:
                    self._describe(buffer)
            except KafkaError as failure:
                error = failure
            return lambda: self._refreshed(topic, error)

        self._in_background(ask, "metadata")

    def _refreshed(self, topic: str, error: KafkaError | None) -> None:
        self._refreshing.discard(topic)
        if error is None:
            return
        for queue in self._active:
            if queue.topic_partition.topic == topic and queue.batches:
                queue.batches[0].last_error = error

    def _ask_identity(self) -> None:
        now = self._clock()
        if self._asking_identity or self._identity_not_before > now:
            self._by(self._identity_not_before)
            return
        self._asking_identity = True

        def ask() -> Callable[[], None]:
            request = InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=0, producer_epoch=-1
            )
            try:
                response = self._router.send_any(request)
                if response.error_code:
                    raise BrokerError(response.error_code, "InitProducerId")
            except KafkaError as error:
                failure = error
                return lambda: self._identified(None, failure)
            identity = ProducerIdentity(response.producer_id, response.producer_epoch)
            return lambda: self._identified(identity, None)

        self._in_background(ask, "identity")

    def _identified(self, identity: ProducerIdentity | None, error: KafkaError | None) -> None:
        assert self._idempotence is not None
        self._asking_identity = False
        if identity is not None:
            self._idempotence.identity = identity
            self._identity_failures = 0
            return
        if isinstance(error, BrokerError) and not (
            error.error_code.retriable or error.error_code.stale_metadata
        ):
            hint = BrokerError(
                error.error_code,
                error.where,
                f"{error.error_code.description}; enable.idempotence=false goes without",
            )
            self._end_all(hint)
            return
        self._identity_not_before = self._clock() + self._backoff.delay_ms(self._identity_failures) / 1000
        self._identity_failures += 1
        self._by(self._identity_not_before)
        for queue in self._active:
            if queue.batches and error is not None:
                queue.batches[0].last_error = error

    # Lookups.

    def _buffer(self, queue: PartitionQueue) -> TopicBuffer | None:
        topic = queue.topic_partition.topic
        return next((buffer for buffer in self._buffers() if buffer.topic == topic), None)

    def _topic_id(self, queue: PartitionQueue) -> UUID | None:
        # Not from the metadata of the moment: a restarting broker may deny the topic, and its numbering
        # must go on.
        buffer = self._buffer(queue)
        return None if buffer is None else buffer.topic_id

    def _sequence(self, queue: PartitionQueue) -> PartitionSequence | None:
        if self._idempotence is None:
            return None
        return self._idempotence.sequence(
            queue.topic_partition.topic, self._topic_id(queue), queue.topic_partition.partition
        )


def _message(told: PartitionProduceResponse) -> str | None:
    """The broker's own words, with the records that it names (KIP-467)."""
    named = [f"record {e.batch_index}: {e.batch_index_error_message}" for e in told.record_errors[:3]]
    return "; ".join([*([told.error_message] if told.error_message else []), *named]) or None
