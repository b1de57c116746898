"""`take_in`: what the answer to a fetch means for one partition. It decides, and updates the
`PartitionState`; it does no I/O and reads no clock.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass

from ..cluster import retry_policy
from ..error_code import ErrorCode
from ..errors import (
    BrokerError,
    DeadlineExceededError,
    EndOfLogError,
    IncompleteResponseError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
)
from ..protocol.api.fetch import PartitionData
from ..records.batch import first_offset, offset_after
from ..runtime.log_throttle import LogThrottle
from ..runtime.retry import Backoff, is_retriable
from .partition_state import PartitionState

_THROTTLED_LOG = LogThrottle(logging.getLogger("spark_kafka_native.consumer"))
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)
_RETRIED = (
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.UNKNOWN_SERVER_ERROR,  # as in Java's consumer: whatever a broker stumbled over may pass
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRules:
    """The settings by which answers are judged."""

    read_committed: bool
    max_bytes: int
    """Of a response."""
    end_of_log_wait_s: float
    replica_s: float
    """How long a follower is asked before the leader says again who is near, and how long one that could not
    serve is left alone, at most.
    """
    backoff: Backoff

    def delay_s(self, state: PartitionState) -> float:
        """How long to wait after a failure of ``state``."""
        return self.backoff.delay_ms(state.failures) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What holds for all partitions of one response."""

    now: float
    """On the fetch's clock."""
    turn: int
    """Grows with every response."""
    served: bool
    """Whether any partition has records in it."""
    early: bool
    """Whether it came well before the time for which a broker holds back an answer without records."""
    throttled: bool
    """Whether the broker throttled us: it may have held records back (KIP-219)."""
    brokers: Container[int]
    """The node ids in the metadata."""


def take_in(state: PartitionState, data: PartitionData, answer: Answer, rules: FetchRules) -> bool:
    """Take in what the broker says of one partition; whether there are records to decode.

    An error that no retry can mend goes to `PartitionState.error`.
    """
    try:
        return _take_in(state, data, answer, rules)
    except KafkaError as error:
        state.break_off(error)
        return False


def left_out(state: PartitionState, answer: Answer, rules: FetchRules) -> None:
    """The answer does not name a partition that was asked for: a throttled one names none."""
    if answer.throttled:
        state.hold(answer.now)
        return
    error = IncompleteResponseError(
        f"{state.topic_partition} at offset {state.position}: the answer of broker {state.node_id} lacks it"
    )
    state.stall(error, answer.now, rules.delay_s(state))


def fail(state: PartitionState, error: KafkaError, now: float, rules: FetchRules) -> None:
    """Note a failure: another attempt may mend it, or it ends the fetching of this partition."""
    code = error.error_code if isinstance(error, BrokerError) else None
    # A look for leaders that has ended in vain: an outage, which an endless fetch outlives.
    outlived = state.endless and isinstance(error, DeadlineExceededError)
    if not is_retriable(error) and code not in _RETRIED and not outlived:
        state.break_off(error)
        return
    if code in _GONE and state.failures > 0:
        limit_ms = (
            retry_policy.NEW_TOPIC_WAIT_MS if state.topic_id is None else retry_policy.KNOWN_TOPIC_WAIT_MS
        )
        if now - state.failing_since > limit_ms / 1000:
            state.break_off(error)
            return
    _THROTTLED_LOG.info(
        (state.node_id, type(error), code),
        "%s: fetching at offset %d is tried again: %s",
        state.topic_partition,
        state.position,
        error,
    )
    state.lose_leader(error, now, rules.delay_s(state))


def overdue(state: PartitionState, limit_ms: float) -> KafkaError:
    """What to say of a partition that has waited in vain for ``limit_ms``."""
    if isinstance(state.last_failure, EndOfLogError):
        return state.last_failure
    last = state.last_failure or f"none, broker {state.node_id} has not answered"
    until = "" if state.endless else f" (until {state.until_offset})"
    error = DeadlineExceededError(
        f"cannot fetch {state.topic_partition} at offset {state.position}{until} "
        f"in {limit_ms} ms; the last failure: {last}"
    )
    error.__cause__ = state.last_failure
    return error


def say_overdue(state: PartitionState, limit_ms: float) -> None:
    """As `overdue`, of a partition that is read without an end: brokers come back."""
    _THROTTLED_LOG.warning(("overdue", state.node_id), "%s. It is tried on and on", overdue(state, limit_ms))


def _take_in(state: PartitionState, data: PartitionData, answer: Answer, rules: FetchRules) -> bool:
    if data.error_code:
        _refused(state, data.error_code, answer, rules)
        return False
    state.learn_topic_id()
    if data.diverging_epoch.end_offset >= 0:
        if state.replica is not None:  # a follower may lack the end of a log that its leader has
            state.leave_replica(answer.now, rules.replica_s)
            return False
        raise LogTruncatedError(state.topic_partition, state.position, data.diverging_epoch.end_offset)
    if data.preferred_read_replica not in (-1, state.node_id):
        _prefer(state, data, answer, rules)
        return False
    if state.probe_until is not None:
        return _probed(state, data, answer, rules)
    return _has_records(state, data, answer, rules)


def _has_records(state: PartitionState, data: PartitionData, answer: Answer, rules: FetchRules) -> bool:
    if not data.records:
        _empty(state, data, answer, rules)
        return False
    after = offset_after(data.records)
    if after is None:
        _grow(state, rules)
        return False
    if after[0] <= state.position:
        error = IncompleteResponseError(f"{_where(state)}: the answer has only records before it")
        state.stall(error, answer.now, rules.delay_s(state))
        return False
    state.took(*after, len(data.records), answer.turn, answer.now)
    return True


def _refused(state: PartitionState, error_code: ErrorCode, answer: Answer, rules: FetchRules) -> None:
    of_follower = state.replica is not None
    if of_follower:
        state.leave_replica(answer.now, rules.replica_s)
    if error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
        # A follower that lags behind, or a broker that does not know the epoch any more: once more, from the
        # leader and without the epoch.
        if state.last_epoch >= 0:
            state.forget_epoch()
        elif not of_follower:
            raise OffsetOutOfRangeError(state.topic_partition, state.position)
        return
    error = BrokerError(error_code, f"fetching {_where(state)}", operation="Read")
    if error_code is ErrorCode.CORRUPT_MESSAGE:
        if not of_follower:
            raise error
        return
    fail(state, error, answer.now, rules)


def _prefer(state: PartitionState, data: PartitionData, answer: Answer, rules: FetchRules) -> None:
    """The leader has a follower serve us. How far the log goes is the leader's word all the same."""
    node_id = data.preferred_read_replica
    if data.high_watermark >= 0 and _end(data, rules) <= state.position:
        _at_end(state, data, answer, rules)
    if state.wants_leader(answer.now) or node_id not in answer.brokers:
        where = f"fetching {_where(state)} from broker {node_id}, which its leader prefers"
        fail(state, BrokerError(ErrorCode.REPLICA_NOT_AVAILABLE, where), answer.now, rules)
        return
    state.prefer(node_id, answer.now + rules.replica_s)


def _empty(state: PartitionState, data: PartitionData, answer: Answer, rules: FetchRules) -> None:
    """No records: the log ends here, others filled the response, or the broker misbehaves."""
    end = _end(data, rules)
    if state.position >= end:
        if state.replica is not None and not state.endless:
            state.leave_replica(answer.now, rules.replica_s)  # where the log ends is the leader's word
        else:
            _at_end(state, data, answer, rules)
    elif answer.served:
        state.passed_over()
    elif answer.throttled:
        state.hold(answer.now)
    elif rules.read_committed and state.replica is None:
        # Perhaps all that committed readers may see has been compacted away, and an open transaction follows.
        state.probe_until = end
    else:
        error = IncompleteResponseError(
            f"{_where(state)}: the answer has no records, although the log goes on to {end}"
        )
        if state.replica is not None:
            state.leave_replica(answer.now, rules.replica_s)
        state.stall(error, answer.now, rules.delay_s(state))


def _probed(state: PartitionState, data: PartitionData, answer: Answer, rules: FetchRules) -> bool:
    """Whether the next batch that the log has is further on, so that nothing lies in between."""
    until, next_batch = state.probe_until, first_offset(data.records or memoryview(b""))
    if until is not None and next_batch is not None and next_batch > state.position:
        # -1: an epoch may have begun and ended in what is gone; the broker would take that for another log.
        state.took(min(until, next_batch), -1, 0, answer.turn, answer.now)
        return True
    error = IncompleteResponseError(
        f"{_where(state)}: the answer has no records, although the log goes on to {until}"
    )
    state.stall(error, answer.now, rules.delay_s(state))
    return False


def _end(data: PartitionData, rules: FetchRules) -> int:
    """Up to where records are shown."""
    if rules.read_committed and data.last_stable_offset >= 0:
        return min(data.high_watermark, data.last_stable_offset)
    return data.high_watermark


def _at_end(state: PartitionState, data: PartitionData, answer: Answer, rules: FetchRules) -> None:
    """Wait for records that must exist: for a new leader that lags behind for a moment, for an open
    transaction until the poll timeout (all of the range is there, and shows once its producer commits).
    """
    stable = data.last_stable_offset if data.last_stable_offset >= 0 else None
    error = EndOfLogError(
        state.topic_partition, state.position, state.until_offset, data.high_watermark, stable
    )
    held_back = error.in_open_transaction
    waited_s = state.at_end(answer.now, error if held_back else None)
    if answer.early and not answer.served:
        state.pace(answer.now + rules.delay_s(state))
    if waited_s >= rules.end_of_log_wait_s and not held_back and not state.endless:
        raise error


def _grow(state: PartitionState, rules: FetchRules) -> None:
    """Not one complete batch came: ask for more, first in line (brokers since KIP-74 then send one whole)."""
    if not state.grow(rules.max_bytes):
        raise KafkaError(
            f"{_where(state)}: no complete record batch in {state.max_bytes} bytes; "
            "raise fetch.max.bytes and receive.message.max.bytes"
        )


def _where(state: PartitionState) -> str:
    return f"{state.topic_partition} at offset {state.position}"
