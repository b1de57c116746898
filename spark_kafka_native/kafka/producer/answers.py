"""`Answers`: reads what brokers answered and acts on it, batch by batch."""

from __future__ import annotations

from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError, ProtocolError
from ..model import Acks
from ..protocol.api.produce import PartitionProduceResponse
from .batch import Batch
from .errors import DeliveryStatus
from .give_up import GiveUp
from .idempotence import PartitionSequence
from .inquiries import Inquiries
from .lane import Lane, SentRequest
from .partition_queue import PartitionQueue
from .sender_state import SenderState
from .verdict import INDEFINITE, UNKNOWN_TOPIC, Verdict, judge

TOPIC_PROPAGATION_S = 30.0
"""So long a topic that was there may be unknown to a broker (it may be restarting); then it was deleted."""


class Answers:
    """Called by the sender's thread."""

    def __init__(self, state: SenderState, give_up: GiveUp, inquiries: Inquiries) -> None:
        self._state = state
        self._give_up = give_up
        self._inquiries = inquiries

    def read(self, lane: Lane, now: float) -> None:
        """Take in what has arrived on ``lane``; close its connection if an answer is too late."""
        if not lane.sent or lane.connection is None:
            return
        lane.connection.poll()
        while lane.sent and lane.sent[0].pending.done:
            lane.last_answer_at = now
            self._settle_request(lane.sent.popleft(), now)
        if not lane.sent:
            return
        # The clock of a request starts when the one before it is answered: brokers work on them in turn.
        due = max(lane.sent[0].sent_at, lane.last_answer_at) + self._state.request_timeout_s
        if due <= now:
            lane.connection.give_up(lane.sent[0].pending, self._state.request_timeout_s * 1000)
            due = now
        self._state.by(due)

    def unknown_for_long(self, queue: PartitionQueue, error_code: ErrorCode, now: float) -> bool:
        """Whether brokers have denied the topic for so long that it must be gone."""
        if error_code not in UNKNOWN_TOPIC:
            queue.unknown_since = None
            return False
        if queue.unknown_since is None:
            queue.unknown_since = now
        return now - queue.unknown_since > TOPIC_PROPAGATION_S

    def _settle_request(self, request: SentRequest, now: float) -> None:
        self._state.stats.measure(latency_ms=(now - request.sent_at) * 1000)
        try:
            response = request.pending.result(0)
        except KafkaError as error:
            for batch in request.batches:
                batch.indefinite = True
                _came_back(batch, self._state)
                self._try_again(batch, error, now, refresh=True)
            return
        if self._state.config.acks is Acks.NONE:
            for batch in request.batches:
                _came_back(batch, self._state)
                self._state.settlement.delivered(batch, DeliveryStatus.POSSIBLY_PERSISTED, None, None)
            return
        told = request.match(response)
        request.pending.release()
        for batch in request.batches:
            head = _is_head(batch)
            _came_back(batch, self._state)
            if batch in told:
                self._settle_batch(batch, told[batch], head, now)
            else:
                batch.indefinite = True
                what = f"{request.pending.what}: the answer does not mention {batch.queue.topic_partition}"
                self._try_again(batch, ProtocolError(what), now, refresh=True)

    def _settle_batch(self, batch: Batch, told: PartitionProduceResponse, head: bool, now: float) -> None:
        code, queue = told.error_code, batch.queue
        sequence = self._state.sequence(queue)
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
        cause = BrokerError(code, f"Produce to {queue.topic_partition}", _words(told))
        batch.last_error = cause
        if batch.ended:  # given up while it was under way
            return
        self._act(verdict, batch, cause, now)

    def _act(self, verdict: Verdict, batch: Batch, cause: BrokerError, now: float) -> None:
        queue = batch.queue
        match verdict:
            case Verdict.RETRY | Verdict.REFRESH:
                self._try_again(batch, cause, now, refresh=verdict is Verdict.REFRESH)
            case Verdict.SPLIT:
                queue.put_back(batch)
                queue.draining = bool(queue.in_flight)
                self._give_up.too_large(batch)
            case Verdict.RENUMBER:
                queue.put_back(batch)
                queue.draining = bool(queue.in_flight)
                queue.renumber = True
            case Verdict.FATAL:
                queue.put_back(batch)
                self._give_up.for_good(cause)
            case _:
                self._give_up.batches([batch], str(cause), cause, retriable=False)

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
            if batch.order >= sequence.gap_after:  # one before the gap says nothing of those behind it
                sequence.gap = False
        known = verdict is Verdict.DELIVERED and told.base_offset >= 0
        self._state.settlement.delivered(
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
        if batch.attempts > self._state.config.retries:
            self._give_up.batches([batch], f"{cause} (after {batch.attempts} attempts)", cause)
            return
        if isinstance(cause, BrokerError) and self.unknown_for_long(queue, cause.error_code, now):
            self._give_up.batches([batch, *queue.batches], str(cause), cause, retriable=False)
            return
        queue.put_back(batch)
        queue.draining = bool(queue.in_flight)
        if queue.batches[0] is batch:  # those behind it only come back because of it
            queue.not_before = now + self._state.delay_s(queue.failures)
            queue.failures += 1
        if refresh:
            self._inquiries.refresh(queue.topic_partition.topic)


def _came_back(batch: Batch, state: SenderState) -> None:
    queue = batch.queue
    queue.in_flight.remove(batch)
    if not queue.in_flight:
        queue.draining = False
    state.active[queue] = None


def _is_head(batch: Batch) -> bool:
    """Whether no earlier batch of its partition is unconfirmed."""
    queue = batch.queue
    return queue.in_flight[0] is batch and not (queue.batches and queue.batches[0].order < batch.order)


def _words(told: PartitionProduceResponse) -> str | None:
    """The broker's own words, with the records that it names (KIP-467)."""
    named = [f"record {e.batch_index}: {e.batch_index_error_message}" for e in told.record_errors[:3]]
    return "; ".join([*([told.error_message] if told.error_message else []), *named]) or None
