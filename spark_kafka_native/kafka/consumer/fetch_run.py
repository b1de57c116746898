"""`FetchRun`: one fetch over several partitions, as a state machine: route, submit, wait, read the answers.

It moves requests and keeps the partitions' states; it decodes nothing. Three rules keep records from being
lost or shown twice: a partition is in one request at a time; an answer counts only if it was asked at the
partition's position; a failure never moves a position.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from ..cluster.router import KNOWN_TOPIC_WAIT_MS, NEW_TOPIC_WAIT_MS, Leader, Router
from ..config import ConsumerConfig
from ..error_code import ErrorCode
from ..errors import (
    BrokerError,
    DeadlineExceededError,
    EndOfLogError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from ..model import IsolationLevel, TopicPartition
from ..network.deadline import Deadline
from ..network.pending import Pending
from ..network.retry import Backoff, is_retriable
from ..network.wait import wait_for_any
from ..protocol.api.fetch import FetchRequest, FetchResponse, PartitionData
from .fetch_messages import NAMES_UNTIL, build_fetch, offset_after, read_fetch
from .partition_state import PartitionState

LARGEST_WAIT_MS = 1_000
"""A wait ends after this at the latest, to look after timeouts."""
RECREATED_AFTER = 3
"""So many metadata in a row must show another topic id: a broker that lags behind may still show
the former one.
"""
FRAME_OVERHEAD = 64 * 1024
"""A response is larger than its record sets by this at most (headers of about 1 000 partitions)."""

_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)


@dataclass(slots=True, kw_only=True, eq=False)
class Flight:
    """A fetch request in flight and what it asked for."""

    pending: Pending[FetchResponse]
    node_id: int
    asked: dict[TopicPartition, int]
    """The offset that each partition was asked from."""
    names: dict[UUID, str]
    since: float
    """On the run's clock."""


class FetchRun:
    """The partitions of one fetch. Used by one thread."""

    def __init__(self, router: Router, config: ConsumerConfig, states: list[PartitionState]) -> None:
        self._router = router
        self._config = config
        self._states = {state.topic_partition: state for state in states}
        self._flights: dict[int, Flight] = {}
        self._backoff = Backoff(
            first_ms=router.config.retry_backoff_ms, most_ms=router.config.retry_backoff_max_ms
        )
        self._turns = itertools.count(1)
        self._stale_topics: set[str] = set()
        self._muted_ms = 0.0
        self._elsewhere = 0.0
        most = max(1, router.config.max_response_bytes - FRAME_OVERHEAD)
        self._max_bytes = min(config.fetch_max_bytes, most)
        self._late_after_ms = router.config.request_timeout_ms + config.fetch_max_wait_ms
        now = self.now()
        for state in states:
            state.progress_at = now

    @property
    def unfinished(self) -> bool:
        """Whether any partition has not reached its end."""
        return any(state.position < state.until_offset for state in self._states.values())

    def now(self) -> float:
        """Seconds that count: while the caller is busy with what it got, no broker is late."""
        return time.monotonic() - self._elsewhere

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Decoding, or the caller's own work: does not count as waiting for anybody."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._elsewhere += time.monotonic() - began

    def submit(self) -> None:
        """Find leaders for who has none, and send one request to every broker that has none in flight."""
        self._route()
        ready: dict[int, list[PartitionState]] = defaultdict(list)
        self._muted_ms = 0.0
        now = time.monotonic()
        for state in self._states.values():
            if state.replica is not None and now > state.replica_until:
                state.replica = None  # the leader says again who is near
            node_id = state.node_id
            if node_id is not None and state.open and not state.in_flight:
                ready[node_id].append(state)
        for node_id, states in ready.items():
            if node_id not in self._flights:
                try:
                    self._submit_to(node_id, states)
                except KafkaError as error:
                    for state in states:
                        self.fail(state, error)

    def wait(self) -> list[Flight]:
        """Wait for answers, or until something is due. Raises when a partition waited in vain for
        too long.
        """
        flights = list(self._flights.values())
        deadline = Deadline.after_ms(self._wait_ms())
        done = set(wait_for_any([flight.pending for flight in flights], deadline))
        for flight in flights:
            if flight.pending not in done and self._late(flight):
                flight.pending.connection.give_up(flight.pending, self._late_after_ms)
                done.add(flight.pending)
        self._check_progress()
        answered = [flight for flight in flights if flight.pending in done]
        for flight in answered:
            del self._flights[flight.node_id]
        return answered

    def read(self, flight: Flight) -> list[tuple[PartitionState, PartitionData]]:
        """The partitions of an answer that have records for where they stand; everything else becomes state.

        Their ``ask_from`` is past these records already, so that `submit` may send the next request before
        they are decoded.
        """
        states = [self._states[tp] for tp in flight.asked]
        for state in states:
            state.in_flight = False
        try:
            response = flight.pending.result(0)
            if response.error_code:
                raise BrokerError(response.error_code, f"Fetch from broker {flight.node_id}")
        except KafkaError as error:
            for state in states:
                self.fail(state, error)
            return []
        found = []
        for tp, data in read_fetch(response, flight.names):
            asked_from = flight.asked.pop(tp, None)  # popped: a partition that comes twice counts once
            if asked_from is None:
                continue
            state = self._states[tp]
            if asked_from != state.position:
                state.rewind()
            elif self._take(state, data):
                found.append((state, data))
        return found

    def fail(self, state: PartitionState, error: KafkaError) -> None:
        """Note a failure that another attempt may mend; raises ``error`` if none can."""
        if not is_retriable(error) and not (isinstance(error, BrokerError) and error.error_code in _RETRIED):
            raise error
        now = time.monotonic()
        if state.failures == 0:
            state.failing_since = now
        if isinstance(error, BrokerError) and error.error_code in _GONE:
            limit_ms = NEW_TOPIC_WAIT_MS if state.topic_id is None else KNOWN_TOPIC_WAIT_MS
            if now - state.failing_since > limit_ms / 1000:
                raise error
        state.retry_at = now + self._backoff.delay_ms(state.failures) / 1000
        state.failures += 1
        state.last_failure = error
        state.leader = state.replica = None
        state.rewind()
        self._stale_topics.add(state.topic_partition.topic)

    def abandon(self) -> None:
        """Nobody waits for what is in flight any more."""
        for flight in self._flights.values():
            flight.pending.abandon()
        self._flights.clear()

    def _route(self) -> None:
        now = time.monotonic()
        lost = [s for s in self._states.values() if s.leader is None and s.open and s.retry_at <= now]
        if not lost:
            return
        topics = {state.topic_partition.topic for state in lost}
        try:
            if topics & self._stale_topics:
                self._router.refresh(topics, self._router.deadline(self._router.config.request_timeout_ms))
                self._stale_topics -= topics
            else:
                self._router.metadata(topics)
        except KafkaError as error:
            for state in lost:
                self.fail(state, error)
            return
        for state in lost:
            try:
                state.leader = self._leader(state)
            except KafkaError as error:
                self.fail(state, error)

    def _leader(self, state: PartitionState) -> Leader:
        tp = state.topic_partition
        leader = self._router.leader(tp)
        if None not in (state.topic_id, leader.topic_id) and leader.topic_id != state.topic_id:
            if state.failures < RECREATED_AFTER:
                raise BrokerError(
                    ErrorCode.INCONSISTENT_TOPIC_ID, f"fetching {tp} at offset {state.position}"
                )
            raise TopicRecreatedError(tp.topic, str(state.topic_id), str(leader.topic_id))
        return leader

    def _submit_to(self, node_id: int, states: list[PartitionState]) -> None:
        connection = self._router.connection(node_id, self._router.deadline())
        if connection.muted_ms:
            self._muted_ms = max(self._muted_ms, connection.muted_ms)
            return
        states.sort(key=lambda state: state.turn)
        by_name = any(state.leader is not None and state.leader.topic_id is None for state in states)
        version = connection.version_of(FetchRequest, NAMES_UNTIL if by_name else None)
        rack = self._router.config.client_rack
        request = build_fetch(states, self._config, rack, self._max_bytes, version)
        names = {topic.topic_id: topic.topic for topic in request.topics}
        pending = connection.submit(request, version)
        for state in states:
            state.in_flight = True
        asked = {state.topic_partition: state.ask_from for state in states}
        self._flights[node_id] = Flight(
            pending=pending, node_id=node_id, asked=asked, names=names, since=self.now()
        )

    def _wait_ms(self) -> float:
        now = time.monotonic()
        waits = [LARGEST_WAIT_MS] if not self._muted_ms else [LARGEST_WAIT_MS, self._muted_ms]
        waits += [
            max(0.0, (state.retry_at - now) * 1000)
            for state in self._states.values()
            if state.leader is None and state.open
        ]
        return min(waits)

    def _late(self, flight: Flight) -> bool:
        return (self.now() - flight.since) * 1000 > self._late_after_ms

    def _check_progress(self) -> None:
        limit_ms = self._config.poll_timeout_ms
        since = self.now() - limit_ms / 1000
        for state in self._states.values():
            if state.position < state.until_offset and state.progress_at < since:
                if isinstance(state.last_failure, EndOfLogError):
                    raise state.last_failure
                raise DeadlineExceededError(
                    f"cannot fetch {state.topic_partition} at offset {state.position} "
                    f"(until {state.until_offset}) in {limit_ms} ms; "
                    f"the last failure: {state.last_failure or 'none'}"
                ) from state.last_failure

    def _take(self, state: PartitionState, data: PartitionData) -> bool:
        """Take in what the broker says of one partition; whether there are records to decode."""
        if data.error_code:
            self._refused(state, data.error_code)
            return False
        if state.leader is not None and state.topic_id is None:
            state.topic_id = state.leader.topic_id
        state.failures = 0
        if data.diverging_epoch.end_offset >= 0:
            raise LogTruncatedError(state.topic_partition, state.position, data.diverging_epoch.end_offset)
        if data.preferred_read_replica not in (-1, state.node_id):
            self._prefer(state, data.preferred_read_replica)
            return False
        if not data.records:
            self._wait_at_end(state, data)
            return False
        state.turn = next(self._turns)
        after = offset_after(data.records)
        if after is None or after[0] <= state.position:
            self._grow(state)
            return False
        next_offset, state.last_epoch = after
        state.bytes_per_offset = len(data.records) / (next_offset - state.position)
        state.ask_from = next_offset
        return True

    def _refused(self, state: PartitionState, error_code: ErrorCode) -> None:
        where = f"fetching {state.topic_partition} at offset {state.position}"
        out_of_range = error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        if out_of_range and (state.replica is not None or state.last_epoch >= 0):
            # A follower that lags behind, or a broker that does not know the epoch any more: once more, from
            # the leader and without the epoch.
            state.replica = None
            state.rewind()
            return
        if out_of_range:
            raise OffsetOutOfRangeError(state.topic_partition, state.position)
        if error_code is ErrorCode.CORRUPT_MESSAGE:
            raise BrokerError(error_code, where)
        self.fail(state, BrokerError(error_code, where))

    def _prefer(self, state: PartitionState, node_id: int) -> None:
        if node_id not in self._router.snapshot.brokers:
            where = f"fetching {state.topic_partition} from broker {node_id}, which its leader prefers"
            self.fail(state, BrokerError(ErrorCode.REPLICA_NOT_AVAILABLE, where))
            return
        state.replica = node_id
        state.replica_until = time.monotonic() + self._router.config.metadata_max_age_ms / 1000

    def _wait_at_end(self, state: PartitionState, data: PartitionData) -> None:
        """No records: nothing fitted into the response, or the log ends here."""
        end = data.high_watermark
        if self._config.isolation_level is IsolationLevel.READ_COMMITTED:
            end = min(end, data.last_stable_offset)
        if state.replica is not None:
            state.replica = None if state.position >= end else state.replica
            return
        if state.position < end:
            return
        stable = data.last_stable_offset if data.last_stable_offset >= 0 else None
        error = EndOfLogError(
            state.topic_partition, state.position, state.until_offset, data.high_watermark, stable
        )
        if error.in_open_transaction:
            # All of the range is there, and shows once its producer commits: that is worth the whole poll
            # timeout, after which `_check_progress` raises this.
            state.last_failure, state.at_end_since = error, None
        elif state.at_end_since is None:
            state.at_end_since = self.now()
        elif (self.now() - state.at_end_since) * 1000 >= self._config.end_of_log_wait_ms:
            raise error

    def _grow(self, state: PartitionState) -> None:
        """Not one complete batch came: ask for more, first in line (brokers since KIP-74 then send
        one whole).
        """
        if state.max_bytes >= self._max_bytes:
            raise KafkaError(
                f"{state.topic_partition} at offset {state.position}: no complete record batch in "
                f"{state.max_bytes} bytes; raise fetch.max.bytes and receive.message.max.bytes"
            )
        state.max_bytes = min(state.max_bytes * 2, self._max_bytes)
        state.bytes_per_offset = None
        state.turn = 0


_RETRIED = (
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)
