"""`ProduceResponses`: reads the brokers' answers, and does with each batch what its partition decides."""

from __future__ import annotations

from typing import assert_never

from ...errors import BrokerError, KafkaError, ProtocolError
from ...model import Acks
from ...observe import catalogue as metric
from ...protocol.api.produce import PartitionProduceResponse
from ..accumulating.batch import Batch
from ..errors import DeliveryStatus
from ..settling.failed_batches import FailedBatches
from .background_lookups import BackgroundLookups
from .produce_request import BrokerConnection, InFlightRequest
from .sender_state import SenderState
from .verdict import Delivered, Failed, Retry, Scope, Split, Verdict


class ProduceResponses:
    """Called by the sender's thread."""

    def __init__(self, state: SenderState, failed: FailedBatches, lookups: BackgroundLookups) -> None:
        self._state = state
        self._failed = failed
        self._lookups = lookups

    def read(self, broker: BrokerConnection, now: float) -> None:
        """Read what has arrived from ``broker``; close its connection if an answer is overdue."""
        if not broker.in_flight or broker.connection is None:
            return
        broker.connection.poll()
        while broker.in_flight and broker.in_flight[0].pending.done:
            broker.last_answer_at = now
            self._take_in(broker.in_flight.popleft(), now)
        if not broker.in_flight:
            return
        # The clock of a request starts when the one before it is answered: brokers handle them in order.
        due = max(broker.in_flight[0].sent_at, broker.last_answer_at) + self._state.request_timeout_s
        if due <= now:
            broker.connection.give_up(broker.in_flight[0].pending, self._state.request_timeout_s * 1000)
            due = now
        self._state.by(due)

    def _take_in(self, request: InFlightRequest, now: float) -> None:
        self._state.stats.metrics.measure(metric.PRODUCE_DURATION, now - request.sent_at)
        try:
            response = request.pending.result(0)
        except KafkaError as error:
            for batch in request.batches:
                self._lost(batch, error, now)
            return
        if self._state.config.acks is Acks.NONE:
            for batch in request.batches:
                self._state.partition(batch.topic_partition).written(batch)
                self._state.completion.delivered(batch, DeliveryStatus.POSSIBLY_PERSISTED, None, None)
            return
        told = request.match(response)
        request.pending.release()
        for batch in request.batches:
            if batch in told:
                self._answered(batch, told[batch], now)
            else:
                what = f"{request.pending.what}: the answer does not mention {batch.topic_partition}"
                self._lost(batch, ProtocolError(what), now)

    def _lost(self, batch: Batch, cause: KafkaError, now: float) -> None:
        verdict = self._state.partition(batch.topic_partition).lost(batch, cause, now)
        if verdict is not None:
            self._act(verdict, batch, cause, None)

    def _answered(self, batch: Batch, told: PartitionProduceResponse, now: float) -> None:
        cause = BrokerError(
            told.error_code, f"Produce to {batch.topic_partition}", _words(told), operation="Write"
        )
        partition = self._state.partition(batch.topic_partition)
        verdict = partition.answered(batch, told.error_code, cause, now)
        if verdict is not None:
            self._act(verdict, batch, cause, told)

    def _act(
        self, verdict: Verdict, batch: Batch, cause: KafkaError, told: PartitionProduceResponse | None
    ) -> None:
        match verdict:
            case Delivered(duplicate=duplicate):
                assert told is not None
                known = not duplicate and told.base_offset >= 0
                self._state.completion.delivered(
                    batch,
                    DeliveryStatus.PERSISTED,
                    told.base_offset if known else None,
                    told.log_append_time_ms if told.log_append_time_ms >= 0 else None,
                )
            case Retry(refresh=refresh):
                if refresh:
                    self._lookups.refresh(batch.topic_partition.topic)
            case Split():
                self._failed.split(batch)
            case Failed():
                self._give_up(verdict, batch, cause)
            case _:
                assert_never(verdict)

    def _give_up(self, verdict: Failed, batch: Batch, cause: KafkaError) -> None:
        waiting = self._state.partition(batch.topic_partition).waiting
        match verdict:
            case Failed(scope=Scope.PRODUCER):
                self._failed.fail_for_good(cause)
            case Failed(scope=Scope.WAITING):
                self._failed.fail(list(waiting), str(cause), cause, retriable=False)
            case Failed(exhausted=True):
                self._failed.fail([batch], f"{cause} (after {batch.attempts} attempts)", cause)
            case Failed(oversized=True):
                self._failed.too_large(batch, cause)
            case _:
                self._failed.fail([batch], str(cause), cause, retriable=False)


def _words(told: PartitionProduceResponse) -> str | None:
    """The broker's own words, with the records that it names (KIP-467)."""
    named = [f"record {e.batch_index}: {e.batch_index_error_message}" for e in told.record_errors[:3]]
    return "; ".join([*([told.error_message] if told.error_message else []), *named]) or None
