"""What a response to a fetch, a failure or a leader means for one partition.

`apply_response` and the others decide, and call the transition of `PartitionState` that follows. They do no
I/O and read no clock.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass
from typing import Self

from ..cluster import retry_policy
from ..cluster.router import Leader
from ..config.client_config import ClientConfig, ConsumerConfig
from ..error_code import ErrorCode
from ..errors import (
    BrokerError,
    DeadlineExceededError,
    EndOfLogError,
    IncompleteResponseError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from ..model import IsolationLevel, TopicPartition
from ..protocol.api.fetch import PartitionData
from ..protocol.api.metadata import LeaderIdAndEpoch
from ..records.batch import RecordSetEnd, end_of_batches, first_offset, refused_format
from ..runtime.log_throttle import LogThrottle
from ..runtime.retry import Backoff, is_retriable
from .partition_state import GONE, OtherTopicError, PartitionState

_THROTTLED_LOG = LogThrottle(logging.getLogger("spark_kafka_native.consumer"))
FRAME_OVERHEAD = 64 * 1024
"""A response is larger than its record sets by this at most (headers of about 1 000 partitions)."""
RECREATED_AFTER = 3
"""Another topic id counts once seen this often in a row: a broker that lags may send the former one."""
_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_RETRIED = (
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.UNKNOWN_SERVER_ERROR,  # as in Java's consumer: the cause may be temporary
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRules:
    """The settings by which responses are judged."""

    read_committed: bool
    max_bytes: int
    """Limit of a response."""
    end_of_log_wait_s: float
    replica_s: float
    """How long a follower is used before the leader is asked for one again, and for how long at most one that
    could not serve is avoided.
    """
    late_after_ms: float
    """A broker that has not answered within this time is given up."""
    backoff: Backoff

    @classmethod
    def of(cls, config: ConsumerConfig, client: ClientConfig) -> Self:
        """The rules that follow from the settings."""
        return cls(
            read_committed=config.isolation_level is IsolationLevel.READ_COMMITTED,
            max_bytes=min(config.fetch_max_bytes, max(1, client.max_response_bytes - FRAME_OVERHEAD)),
            end_of_log_wait_s=config.end_of_log_wait_ms / 1000,
            replica_s=client.metadata_max_age_ms / 1000,
            late_after_ms=client.request_timeout_ms + config.fetch_max_wait_ms,
            backoff=Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms),
        )

    def delay_s(self, state: PartitionState) -> float:
        """How long to wait after a failure of ``state``, in seconds."""
        return self.backoff.delay_ms(state.progress.failures) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFacts:
    """The facts about one response that concern all its partitions."""

    now: float
    """On the fetch's clock."""
    turn: int
    """Grows with every response."""
    served: bool
    """True if it contains records of any partition."""
    passed_over: Container[TopicPartition]
    """The partitions that were requested after one with records: there may have been no room for theirs."""
    early: bool
    """True if it came well before the time for which a broker holds back a response without records."""
    throttled: bool
    """True if the broker throttled us: it may have held records back (KIP-219)."""
    brokers: Container[int]
    """The node ids in the metadata."""


def apply_response(
    state: PartitionState, data: PartitionData, response: ResponseFacts, rules: FetchRules
) -> bool:
    """Apply the broker's response about one partition; True if there are records to decode.

    An error that no retry can resolve goes to `PartitionState.error`.
    """
    try:
        return _apply(state, data, response, rules)
    except KafkaError as error:
        state.break_off(error)
        return False


def apply_missing(state: PartitionState, response: ResponseFacts, rules: FetchRules) -> None:
    """The response lacks a partition that was asked for, as one of a throttling broker lacks all."""
    if response.throttled:
        state.hold(response.now)
        return
    error = IncompleteResponseError(f"{state.where}: the response of broker {state.broker.node_id} lacks it")
    state.stall(error, response.now, rules.delay_s(state))


def apply_failure(state: PartitionState, error: KafkaError, now: float, rules: FetchRules) -> None:
    """Apply a failure: another attempt may succeed, or it ends the fetching of this partition."""
    code = error.error_code if isinstance(error, BrokerError) else None
    # A look-up of leaders that timed out: an outage, which an endless fetch outlives.
    outlived = state.position.endless and isinstance(error, DeadlineExceededError)
    if not is_retriable(error) and code not in _RETRIED and not outlived:
        state.break_off(error)
        return
    if code in GONE and not isinstance(error, OtherTopicError):
        limit_ms = retry_policy.KNOWN_TOPIC_WAIT_MS if state.existed else retry_policy.NEW_TOPIC_WAIT_MS
        if state.progress.seconds_like(error, now) > limit_ms / 1000:
            state.break_off(error)
            return
    _THROTTLED_LOG.info(
        (state.broker.node_id, type(error), code),
        "%s: fetching at offset %d is tried again: %s",
        state.topic_partition,
        state.position.offset,
        error,
    )
    if state.broker.replica is not None:  # the leader may be well
        state.leave_replica(now, rules.replica_s)
    state.lose_leader(error, now, rules.delay_s(state))


def apply_leader(state: PartitionState, found: Leader | KafkaError, now: float, rules: FetchRules) -> None:
    """Apply the outcome of looking up the leader, unless the partition no longer waits for it."""
    if state.broker.leader is not None or not state.open:
        return
    error = found if isinstance(found, KafkaError) else _recreated(state, found)
    if error is None and isinstance(found, Leader):
        error = state.refuse_leader(found, now)
    if error is not None:
        apply_failure(state, error, now, rules)
    elif isinstance(found, Leader):
        state.led_by(found, now)


def _recreated(state: PartitionState, leader: Leader) -> KafkaError | None:
    seen = state.other_ids(leader.topic_id)
    if seen == 0:
        return None
    if seen <= RECREATED_AFTER:
        return OtherTopicError(ErrorCode.INCONSISTENT_TOPIC_ID, f"fetching {state.where}")
    return TopicRecreatedError(state.topic_partition.topic, str(state.topic_id), str(leader.topic_id))


def apply_newer_leader(state: PartitionState, found: Leader | KafkaError, now: float) -> None:
    """Metadata that came meanwhile name a leader. One of a newer epoch is followed, although the former one
    still answers: it may be cut off from the controller, and knows of no records since.
    """
    former = state.broker.leader
    if (
        isinstance(found, Leader)
        and former is not None
        and found.topic_id == former.topic_id
        and found.leader_epoch > former.leader_epoch
    ):
        state.move_to(found, now)


def overdue_error(state: PartitionState, limit_ms: float) -> KafkaError:
    """The error of a partition that has waited in vain for ``limit_ms``."""
    if isinstance(state.progress.last_failure, EndOfLogError):
        return state.progress.last_failure
    last = state.progress.last_failure or f"none, broker {state.broker.node_id} has not answered"
    until = "" if state.position.endless else f" (until {state.position.until_offset})"
    error = DeadlineExceededError(
        f"cannot fetch {state.topic_partition} at offset {state.position.offset}{until} "
        f"in {limit_ms} ms; the last failure: {last}"
    )
    error.__cause__ = state.progress.last_failure
    return error


def log_overdue(state: PartitionState, limit_ms: float) -> None:
    """Log `overdue_error` of a partition that is read without an end: brokers come back."""
    _THROTTLED_LOG.warning(
        ("overdue", state.broker.node_id), "%s. It is tried on and on", overdue_error(state, limit_ms)
    )


def _apply(state: PartitionState, data: PartitionData, response: ResponseFacts, rules: FetchRules) -> bool:
    if data.error_code:
        _refused(state, data, response, rules)
        return False
    state.learn_topic_id()
    if data.diverging_epoch.end_offset >= 0:
        if state.broker.replica is not None:  # a follower may lack the end of a log that its leader has
            state.leave_replica(response.now, rules.replica_s)
            return False
        end_offset = state.position.cut_at(data.diverging_epoch.end_offset)
        raise LogTruncatedError(state.topic_partition, state.position.offset, end_offset)
    if data.preferred_read_replica not in (-1, state.broker.node_id):
        _prefer(state, data, response, rules)
        return False
    state.position.accept()
    if state.position.probe_until is not None:
        return _probed(state, data, response, rules)
    return _has_records(state, data, response, rules)


def _has_records(
    state: PartitionState, data: PartitionData, response: ResponseFacts, rules: FetchRules
) -> bool:
    if not data.records:
        _empty(state, data, response, rules)
        return False
    end = end_of_batches(data.records)
    if end is not None and end.next_offset > state.position.offset:
        state.receive(end, len(data.records), response.turn, response.now)
        return True
    if (refused := refused_format(data.records)) is not None:
        raise refused.at(state.topic_partition)
    if end is None:
        _grow(state, rules)
    else:
        error = IncompleteResponseError(f"{state.where}: the response has only records before it")
        state.stall(error, response.now, rules.delay_s(state))
    return False


def _refused(state: PartitionState, data: PartitionData, response: ResponseFacts, rules: FetchRules) -> None:
    error_code, former = data.error_code, state.broker.leader
    of_follower = state.broker.replica is not None
    if of_follower:
        state.leave_replica(response.now, rules.replica_s)
    if error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
        # A follower may lag behind: once more, from the leader. A broker that no longer knows the epoch: once
        # more without it.
        if of_follower:
            return
        if state.position.last_fetched_epoch < 0:
            raise OffsetOutOfRangeError(state.topic_partition, state.position.offset)
        state.position.forget_epoch()
        return
    error = BrokerError(error_code, f"fetching {state.where}", operation="Read")
    if error_code is ErrorCode.CORRUPT_MESSAGE:
        if not of_follower:
            raise error
        return
    apply_failure(state, error, response.now, rules)
    if error_code in _MOVED and former is not None:
        _follow_leader(state, former, data.current_leader, response)


def _follow_leader(
    state: PartitionState, former: Leader, named: LeaderIdAndEpoch, response: ResponseFacts
) -> None:
    """A broker that refuses because the leader has moved may name the new one (KIP-951): no metadata request
    is needed then. An epoch that is not newer may come from a broker that lags behind.
    """
    if named.leader_epoch > former.leader_epoch and named.leader_id in response.brokers:
        state.led_by(Leader(named.leader_id, named.leader_epoch, former.topic_id), response.now)


def _prefer(state: PartitionState, data: PartitionData, response: ResponseFacts, rules: FetchRules) -> None:
    """The leader names a follower to fetch from. The leader alone decides where the log ends."""
    node_id = data.preferred_read_replica
    if data.high_watermark >= 0 and _end(data, rules) <= state.position.offset:
        _at_end(state, data, response, rules)
    if state.broker.leader_only(response.now) or node_id not in response.brokers:
        if node_id not in response.brokers:
            state.leave_replica(response.now, rules.replica_s)
        where = f"fetching {state.where} from broker {node_id}, which its leader prefers"
        apply_failure(state, BrokerError(ErrorCode.REPLICA_NOT_AVAILABLE, where), response.now, rules)
        return
    state.prefer(node_id, response.now + rules.replica_s)


def _empty(state: PartitionState, data: PartitionData, response: ResponseFacts, rules: FetchRules) -> None:
    """No records: the log ends here, others filled the response, or the broker misbehaves."""
    end = _end(data, rules)
    if state.position.offset >= end:
        if state.broker.replica is not None and not state.position.endless:
            state.leave_replica(response.now, rules.replica_s)  # the leader decides where the log ends
        else:
            _at_end(state, data, response, rules)
    elif state.topic_partition in response.passed_over:
        state.progress.pass_over()
    elif response.throttled:
        state.hold(response.now)
    elif rules.read_committed and state.broker.replica is None:
        # Perhaps all that committed readers may see was compacted away, and an open transaction follows.
        state.position.probe(end)
    else:
        error = IncompleteResponseError(
            f"{state.where}: the response has no records, although the log goes on to {end}"
        )
        if state.broker.replica is not None:
            state.leave_replica(response.now, rules.replica_s)
        state.stall(error, response.now, rules.delay_s(state))


def _probed(state: PartitionState, data: PartitionData, response: ResponseFacts, rules: FetchRules) -> bool:
    """True if the next batch in the log starts later, which proves that there are no records in between."""
    until, next_batch = state.position.probe_until, first_offset(data.records or memoryview(b""))
    if until is not None and next_batch is not None and next_batch > state.position.offset:
        # -1: an epoch may have begun and ended in the gap; the broker would take the log for another one.
        end = RecordSetEnd(min(until, next_batch), -1)
        state.receive(end, 0, response.turn, response.now)
        return True
    error = IncompleteResponseError(
        f"{state.where}: the response has no records, although the log goes on to {until}"
    )
    state.stall(error, response.now, rules.delay_s(state))
    return False


def _end(data: PartitionData, rules: FetchRules) -> int:
    """The offset before which the broker shows records."""
    if rules.read_committed and data.last_stable_offset >= 0:
        return min(data.high_watermark, data.last_stable_offset)
    return data.high_watermark


def _at_end(state: PartitionState, data: PartitionData, response: ResponseFacts, rules: FetchRules) -> None:
    """Wait for records that must exist: for a moment if a new leader lags behind, until the poll timeout if a
    transaction is open (the records exist, and become visible once its producer commits).
    """
    stable = data.last_stable_offset if data.last_stable_offset >= 0 else None
    error = EndOfLogError(
        state.topic_partition, state.position.offset, state.position.until_offset, data.high_watermark, stable
    )
    held_back = error.in_open_transaction
    waited_s = state.reach_end(response.now, error if held_back else None)
    state.broker.expire_replica(response.now)
    if response.early and not response.served:
        state.progress.pace(response.now + rules.delay_s(state))
    if waited_s >= rules.end_of_log_wait_s and not held_back and not state.position.endless:
        raise error


def _grow(state: PartitionState, rules: FetchRules) -> None:
    """No complete batch came: request more, first in line (brokers since KIP-74 then send a complete one)."""
    if not state.grow(rules.max_bytes):
        raise KafkaError(
            f"{state.where}: no complete record batch in {state.max_bytes} bytes; "
            "raise fetch.max.bytes and receive.message.max.bytes"
        )
