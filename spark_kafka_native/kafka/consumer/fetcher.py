"""`Fetcher`: records of offset ranges as columns; `FetchRun`: the loop under it, and under `PartitionReader`.

The loop sends requests and hands out records; `fetch_answers` decides what an answer means, and
`PartitionState` holds what is known of a partition. Three rules keep records from being lost or duplicated: a
partition is in one request at a time; an answer counts only if it was asked at the partition's position; a
failure never moves a position.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from ..cluster.router import Router
from ..config.client_config import ConsumerConfig
from ..errors import (
    BrokerError,
    CorruptRecordError,
    KafkaError,
)
from ..model import IsolationLevel, TopicPartition
from ..network.connection import Connection
from ..network.pending_response import wait_for_any
from ..observe import catalogue as metric
from ..observe.metrics import MetricsRegistry
from ..protocol.api.fetch import FetchRequest, PartitionData
from ..runtime.deadline import Deadline
from ..runtime.retry import Backoff
from .background import Background
from .fetch_answers import Answer, FetchRules, fail, left_out, overdue, say_overdue, take_in
from .fetch_lookups import Connections, FetchLookups, unbounded
from .fetch_requests import (
    LAST_EPOCH_SINCE,
    NAMES_UNTIL,
    InFlightFetch,
    build_fetch,
    find_truncated,
    read_fetch,
    with_request,
)
from .fetched_records import FetchedRecords, Taken, decode_fetched, decode_group, in_groups
from .partition_state import ENDLESS, PartitionState, probes_first
from .run_clock import RunClock

MAX_WAIT_MS = 1_000
"""A wait ends after this at the latest, to check timeouts."""
FRAME_OVERHEAD = 64 * 1024
"""A response is larger than its record sets by this at most (headers of about 1 000 partitions)."""


class FetchRun:
    """Fetches from the leaders (or followers in ``client_rack``). Used by one thread.

    What has to be found out otherwise (leaders, connections, bounds) is found out in the ``background``: a
    broker that can't be reached holds up its own partitions alone. The wakeup that it was ``given`` lets
    other threads end the wait of `next`; that takes ``connections`` which nobody else waits on.
    ``shares_memory`` lets what few records of several partitions take be one piece of memory, which is
    quicker: it lives as long as any of them.
    """

    def __init__(
        self,
        router: Router,
        config: ConsumerConfig,
        columns: frozenset[str] | None = None,
        connections: Connections | None = None,
        background: Background | None = None,
        *,
        shares_memory: bool = False,
    ) -> None:
        self._router = router
        self._background = background or Background()
        self._config = config
        self._columns = columns
        self._shares_memory = shares_memory
        self._states: dict[TopicPartition, PartitionState] = {}
        self._flights: dict[int, InFlightFetch] = {}
        self._answered: deque[InFlightFetch] = deque()
        self._connections: set[Connection] = set()
        self._records: Iterator[FetchedRecords] = iter(())
        self._clock = RunClock()
        self._turns = itertools.count(1)
        self._muted_ms = 0.0
        self.metrics: MetricsRegistry | None = None
        """Where to measure the sizes of what is fetched."""
        client = router.config
        self._late_after_ms = client.request_timeout_ms + config.fetch_max_wait_ms
        self._rules = FetchRules(
            read_committed=config.isolation_level is IsolationLevel.READ_COMMITTED,
            max_bytes=min(config.fetch_max_bytes, max(1, client.max_response_bytes - FRAME_OVERHEAD)),
            end_of_log_wait_s=config.end_of_log_wait_ms / 1000,
            replica_s=client.metadata_max_age_ms / 1000,
            backoff=Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms),
        )
        self.lookups = FetchLookups(router, connections or router, self._clock, self._rules, self._background)

    def __repr__(self) -> str:
        left = sum(not state.finished for state in self._states.values())
        return f"<FetchRun over {len(self._states)} partitions, {left} unfinished>"

    @property
    def unfinished(self) -> bool:
        """Whether any partition has not reached its end."""
        return any(not state.finished for state in self._states.values())

    def add(
        self,
        topic_partition: TopicPartition,
        from_offset: int,
        until_offset: int = ENDLESS,
        topic_id: UUID | None = None,
    ) -> None:
        """Fetch ``[from_offset, until_offset)`` of a partition too, on and on without an end.

        ``topic_id`` is the id that the offsets belong to; without it, that of the first answer. Raises
        `ValueError` for a partition that is there already.
        """
        if topic_partition in self._states:
            raise ValueError(f"{topic_partition} is being fetched already; seek moves it")
        self._states[topic_partition] = PartitionState(
            topic_partition=topic_partition,
            position=from_offset,
            until_offset=until_offset,
            max_bytes=self._config.max_partition_fetch_bytes,
            topic_id=topic_id,
        )

    def remove(self, topic_partition: TopicPartition) -> None:
        """Stop fetching a partition; what was fetched and not handed out is dropped."""
        self._states.pop(topic_partition).pause(self._clock.now())

    def seek(self, topic_partition: TopicPartition, offset: int, until_offset: int | None = None) -> None:
        """Go on from ``offset`` (to the end there was, or a new one); also after an error about the
        partition.
        """
        state = self._states[topic_partition]
        state.seek(offset, state.until_offset if until_offset is None else until_offset)

    def pause(self, topic_partition: TopicPartition) -> None:
        """Fetch nothing of a partition until `resume`."""
        self._states[topic_partition].pause(self._clock.now())

    def resume(self, topic_partition: TopicPartition) -> None:
        """Go on with a partition that was paused, at its position."""
        self._states[topic_partition].resume()

    def position(self, topic_partition: TopicPartition) -> int:
        """The offset before which everything was handed out."""
        return self._states[topic_partition].position

    def next(self, deadline: Deadline | None = None) -> FetchedRecords | None:
        """The next records of any partition; None when ``deadline`` or a wakeup comes first, or nothing is
        left to fetch.

        An error about a partition is raised once there are no records to hand out, and again until that
        partition is moved (`seek`), paused or removed; the others can be read on. See `Fetcher.fetch` for
        what may be raised.
        """
        while True:
            if (fetched := next(self._records, None)) is not None:
                return fetched
            if self._answered:
                self._records = self._read(self._answered.popleft())
                continue
            self._background.settle()
            self._check_progress()
            self.lookups.find_bounds(self._states.values())
            self._raise_broken()
            if not any(not state.finished and not state.paused for state in self._states.values()):
                return None
            with self._clock.running():
                self._submit()
                self._wait(deadline)
            # Not before: a caller that never waits has its requests sent and their answers read, too.
            if not self._answered and self._is_over(deadline):
                return None

    def close(self) -> None:
        """Nothing waits for the requests in flight any more, or for what is looked up: the run is over."""
        self._background.close()
        self._records = iter(())
        for flight in [*self._flights.values(), *self._answered]:
            flight.pending.abandon()
        self._flights.clear()
        self._answered.clear()
        for connection in self._connections:
            connection.buffers.trim()
        self._connections.clear()

    def broken(self) -> dict[TopicPartition, KafkaError]:
        """The partitions that can't be read on as they stand, and why, but for those that are paused. The
        first is the one that `next` raises an error about. An offset that is out of range is told of once the
        bounds are known.
        """
        return {
            tp: state.error
            for tp, state in self._states.items()
            if state.error is not None and not state.paused and unbounded(state) is None
        }

    def try_again(self, topic_partition: TopicPartition, after_ms: float = 0) -> None:
        """Read on after an error about the partition, from the same position, ``after_ms`` from now."""
        self._states[topic_partition].try_again()
        self._states[topic_partition].pace(self._clock.now() + after_ms / 1000)

    def _is_over(self, deadline: Deadline | None) -> bool:
        given = self._background.given
        woken = given is not None and given.is_set
        return woken or (deadline is not None and deadline.expired)

    def _raise_broken(self) -> None:
        for error in self.broken().values():
            raise error

    def _submit(self) -> None:
        """Find the leaders that are not known, and send a request to every broker that has none in flight."""
        self.lookups.find_leaders(self._states.values())
        now = self._clock.now()
        self._muted_ms = 0.0
        ready: dict[int, list[PartitionState]] = defaultdict(list)
        for state in self._states.values():
            if state.open and not state.in_flight and state.node_id is not None and state.retry_at <= now:
                ready[state.node_id].append(state)
        for node_id, states in ready.items():
            if node_id in self._flights:
                for state in states:
                    state.hold(now)
                continue
            try:
                self._submit_to(node_id, probes_first(states, now))
            except KafkaError as error:
                self._fail_all(states, error)
        self.lookups.forget_dialled()

    def _submit_to(self, node_id: int, states: list[PartitionState]) -> None:
        connection = self.lookups.connection(node_id)
        if connection is None:
            return
        if connection.muted_ms:
            self._muted_ms = max(self._muted_ms, connection.muted_ms)
            for state in states:
                state.hold(self._clock.now())
            return
        by_name = any(state.leader is not None and state.leader.topic_id is None for state in states)
        version = connection.version_of(FetchRequest, NAMES_UNTIL if by_name else None)
        if version < LAST_EPOCH_SINCE:
            states = self._check_epochs(connection, states)
        if states:
            self._fetch_from(node_id, connection, states, version)

    def _check_epochs(self, connection: Connection, states: list[PartitionState]) -> list[PartitionState]:
        """Those of ``states`` whose log is known to be the one that was read so far; the others are told what
        is wrong with them.
        """
        timeout_ms = self._router.config.request_timeout_ms
        for state, error in find_truncated(connection, states, timeout_ms):
            fail(state, error, self._clock.now(), self._rules)
        return [state for state in states if state.open and state.leader is not None]

    def _fetch_from(
        self, node_id: int, connection: Connection, states: list[PartitionState], version: int
    ) -> None:
        now = self._clock.now()
        states.sort(key=lambda state: state.turn)
        # Only a request without a rack is served by the leader itself for certain.
        shunned = any(state.wants_leader(now) or state.probe_until is not None for state in states)
        rack = "" if shunned else self._router.config.client_rack
        request = build_fetch(states, self._config, rack, self._rules.max_bytes, version)
        pending = connection.submit(request, version)
        self._connections.add(connection)
        for state in states:
            state.asked(now)
        self._flights[node_id] = InFlightFetch(
            pending=pending,
            node_id=node_id,
            asked={state.topic_partition: (state, state.ask_from) for state in states},
            names={topic.topic_id: topic.topic for topic in request.topics},
            since=now,
            sent_at=time.monotonic(),
        )

    def _wait(self, deadline: Deadline | None) -> None:
        """Wait for answers, or until something is due."""
        flights = list(self._flights.values())
        until = Deadline.after_ms(self._wait_ms())
        if deadline is not None:
            until = until.within_ms(deadline.remaining_ms)
        done = set(wait_for_any([flight.pending for flight in flights], until, self._background.wakeup))
        for flight in flights:
            if flight.pending not in done and self._late(flight):
                flight.pending.connection.give_up(flight.pending, self._late_after_ms)
                done.add(flight.pending)
        for flight in flights:
            if flight.pending in done:
                del self._flights[flight.node_id]
                self._answered.append(flight)

    def _wait_ms(self) -> float:
        now, finding = self._clock.now(), self.lookups.finding_leaders
        waits = [
            max(0.0, (state.retry_at - now) * 1000)
            for state in self._states.values()
            if state.open
            and not state.in_flight
            and (state.retry_at > now or (state.leader is None and not finding))
        ]
        if self._muted_ms:
            waits.append(self._muted_ms)
        return min([MAX_WAIT_MS, self._background.max_wait_ms, *waits])

    def _late(self, flight: InFlightFetch) -> bool:
        return (self._clock.now() - flight.since) * 1000 > self._late_after_ms

    def _check_progress(self) -> None:
        """Break off a partition that has waited in vain for too long; one without an end goes on."""
        now, limit_ms = self._clock.now(), self._config.poll_timeout_ms
        for state in self._states.values():
            waits = not state.finished and not state.paused and state.error is None
            if not waits or state.waited_s(now) * 1000 <= limit_ms:
                continue
            if state.endless:
                say_overdue(state, limit_ms)
                state.count_waiting_anew()
            else:
                state.break_off(overdue(state, limit_ms))

    def _read(self, flight: InFlightFetch) -> Iterator[FetchedRecords]:
        """Hand out the records of an answer; everything else in it becomes state."""
        with self._clock.running():
            found = self._take_in(flight)
            self._submit()  # the next request is on its way before these records are decoded
        try:
            groups = in_groups(found) if self._shares_memory else ([taken] for taken in found)
            for group in groups:
                yield from self._decode(group)
        except BaseException:
            # An interrupt, say: what was not handed out is asked for again.
            for state, _, _ in found:
                state.rewind()
            raise
        # Columns own their memory: nothing points into the response any more.
        flight.pending.release()

    def _decode(self, group: Sequence[Taken]) -> Iterator[FetchedRecords]:
        decoded = decode_group(group, self._config, self._columns)
        for (state, data, moves), already in zip(group, decoded, strict=True):
            if state.moves != moves:
                continue
            try:
                yield from decode_fetched(state, data, self._config, self._columns, already)
            except CorruptRecordError as error:
                state.found_corrupt(error, self._clock.now(), self._rules.replica_s)

    def _take_in(self, flight: InFlightFetch) -> list[Taken]:
        """The partitions of an answer that have records for where they stand.

        Their ``ask_from`` is past these records already, so that the next request may be sent before they are
        decoded.
        """
        states = [state for state, _ in flight.asked.values()]
        for state in states:
            state.answered()
        try:
            response = flight.pending.result(0)
            if response.error_code:
                raise BrokerError(response.error_code, f"Fetch from broker {flight.node_id}")
        except KafkaError as error:
            self._fail_all(states, with_request(error, flight))
            return []
        told = list(read_fetch(response, flight.names))
        if self.metrics is not None:
            size = sum(len(data.records) for _, data in told if data.records)
            self.metrics.measure(metric.FETCH_SIZE, size)
        elapsed_ms = (time.monotonic() - flight.sent_at) * 1000
        answer = Answer(
            now=self._clock.now(),
            turn=next(self._turns),
            served=any(data.records for _, data in told),
            throttled=response.throttle_time_ms > 0,
            early=elapsed_ms < self._config.fetch_max_wait_ms / 2,
            brokers=self._router.snapshot.brokers,
        )
        found = [taken for tp, data in told if (taken := self._take(flight, tp, data, answer)) is not None]
        for state, _ in flight.asked.values():
            left_out(state, answer, self._rules)
        return found

    def _take(
        self, flight: InFlightFetch, topic_partition: TopicPartition, data: PartitionData, answer: Answer
    ) -> Taken | None:
        # Popped: a partition that comes twice counts once.
        state, asked_from = flight.asked.pop(topic_partition, (None, -1))
        if state is None or state.paused:
            return None
        if asked_from != state.position:
            state.rewind()
            return None
        probed = state.probe_until is not None
        if take_in(state, data, answer, self._rules):
            return Taken(state, replace(data, records=None) if probed else data, state.moves)
        return None

    def _fail_all(self, states: Collection[PartitionState], error: KafkaError) -> None:
        for state in states:
            fail(state, error, self._clock.now(), self._rules)


Ranges = Mapping[TopicPartition, tuple[int, int]]
"""For each partition the first offset to fetch, and the one before which to stop."""


class Fetcher:
    """Fetches from the leaders (or followers in ``client_rack``). Use from one thread at a time."""

    def __init__(self, router: Router, config: ConsumerConfig) -> None:
        self._router = router
        self._config = config

    def fetch(
        self,
        ranges: Ranges,
        columns: frozenset[str] | None = None,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> Iterator[FetchedRecords]:
        """Yield every record of ``ranges`` once, each partition in order; ends when all are at their
        until_offset.

        ``columns`` names the fields of `RecordColumns` to fill (None: all). ``topic_ids`` are the ids that
        the offsets belong to; without them, those of the first answer. Leaders that move and brokers that
        restart are followed without loss or duplicate. Small pieces of several partitions share memory, which
        lives as long as any of them. What was yielded stays valid after an error, and the
        caller may go on from there:

        - `OffsetOutOfRangeError`: retention took the offset, or it never was; with what the leader has.
        - `EndOfLogError`: the log ends before the range does (after ``end.of.log.wait.ms``), or an open
        transaction holds it back (after ``poll.timeout.ms``).
        - `LogTruncatedError`: what was read is not in the log any more.
        - `TopicRecreatedError`: the topic is another one than the offsets are of.
        - `CorruptRecordError`: twice in a row, with partition and offset.
        - `BrokerError` (not authorized, unknown topic, ...), `DeadlineExceededError` (no progress),
        `ProtocolError`.
        """
        run = FetchRun(self._router, self._config, columns, shares_memory=True)
        for tp, (from_offset, until_offset) in ranges.items():
            run.add(tp, from_offset, until_offset, (topic_ids or {}).get(tp.topic))
        try:
            while (fetched := run.next()) is not None:
                yield fetched
        finally:
            run.close()
