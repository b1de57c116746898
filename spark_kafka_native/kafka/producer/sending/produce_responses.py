"""`ProduceResponses`: reads the brokers' answers, and does with each batch what its partition decides."""

from __future__ import annotations

from ...errors import BrokerError, KafkaError, ProtocolError
from ...model import Acks
from ...observe import catalogue as metric
from ...protocol.api.produce import PartitionProduceResponse
from ..accumulating.batch import Batch
from ..errors import DeliveryStatus
from ..settling.failed_batches import FailedBatches
from .background_lookups import BackgroundLookups
from .partition_queue import PartitionQueue
from .produce_request import BrokerConnection, InFlightRequest
from .sender_state import SenderState
from .verdict import TOO_LARGE, Verdict


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
        partition = self._state.partition(batch.topic_partition)
        self._act(partition.lost(batch, cause, now), partition, batch, cause)

    def _answered(self, batch: Batch, told: PartitionProduceResponse, now: float) -> None:
        partition = self._state.partition(batch.topic_partition)
        cause = BrokerError(
            told.error_code, f"Produce to {batch.topic_partition}", _words(told), operation="Write"
        )
        verdict = partition.answered(batch, told.error_code, cause, now)
        if verdict in (Verdict.DELIVERED, Verdict.DUPLICATE):
            known = verdict is Verdict.DELIVERED and told.base_offset >= 0
            self._state.completion.delivered(
                batch,
                DeliveryStatus.PERSISTED,
                told.base_offset if known else None,
                told.log_append_time_ms if told.log_append_time_ms >= 0 else None,
            )
        else:
            self._act(verdict, partition, batch, cause)

    def _act(self, verdict: Verdict, partition: PartitionQueue, batch: Batch, cause: KafkaError) -> None:
        match verdict:
            case Verdict.REFRESH:
                self._lookups.refresh(batch.topic_partition.topic)
            case Verdict.SPLIT:
                self._failed.split(batch)
            case Verdict.FATAL:
                self._failed.fail_for_good(cause)
            case Verdict.EXHAUSTED:
                self._failed.fail([batch], f"{cause} (after {batch.attempts} attempts)", cause)
            case Verdict.GONE:
                self._failed.fail(list(partition.waiting), str(cause), cause, retriable=False)
            case Verdict.FAIL if _is_too_large(batch, cause):
                self._failed.too_large(batch, cause)
            case Verdict.FAIL:
                self._failed.fail([batch], str(cause), cause, retriable=False)


def _is_too_large(batch: Batch, cause: KafkaError) -> bool:
    return batch.records == 1 and isinstance(cause, BrokerError) and cause.error_code in TOO_LARGE


def _words(told: PartitionProduceResponse) -> str | None:
    """The broker's own words, with the records that it names (KIP-467)."""
    named = [f"record {e.batch_index}: {e.batch_index_error_message}" for e in told.record_errors[:3]]
    return "; ".join([*([told.error_message] if told.error_message else []), *named]) or None
