"""`Fetcher` fetches records of offset ranges as columns; `FetchRun` is the loop below it.

The loop sends requests and hands out records; `fetch_responses` decides what a response means, and
`PartitionState` holds the state of a partition. Three rules keep records from being lost or duplicated: a
partition is in one request at a time; a response counts only if it was requested at the partition's position;
a failure never moves a position.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from ..cluster.router import Router
from ..config.client_config import ConsumerConfig
from ..errors import BrokerError, CorruptRecordError, KafkaError, ProtocolError
from ..model import TopicPartition
from ..network.connection import Connection
from ..network.pending_response import wait_for_any
from ..observe import catalogue as metric
from ..observe.metrics import MetricsRegistry
from ..protocol.api.fetch import FetchRequest, PartitionData
from ..runtime.deadline import Clock, Deadline
from .fetch_lookups import BoundsOutcome, FetchLookups, HeldBack, LeaderOutcome, Outcome, unbounded
from .fetch_requests import (
    LAST_EPOCH_SINCE,
    NAMES_UNTIL,
    InFlightFetch,
    build_fetch,
    find_truncated,
    is_probe,
    read_fetch,
)
from .fetch_responses import (
    FetchRules,
    ResponseFacts,
    apply_failure,
    apply_leader,
    apply_missing,
    apply_newer_leader,
    apply_response,
    log_overdue,
    overdue_error,
)
from .fetched_records import (
    FetchedRecords,
    ReceivedRecords,
    decode_fetched,
    decode_group,
    group_small_sets,
)
from .partition_state import ENDLESS, PartitionState, probes_first

MAX_WAIT_MS = 1_000
"""A wait ends after this at the latest, to check timeouts."""

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
        the offsets belong to; without them, those of the first response. Leaders that move and brokers that
        restart are followed without loss or duplicate. Small record sets of several partitions share memory,
        which lives until the last of them is gone. Records that were yielded stay valid after an error, and
        the caller may continue from there:

        - `OffsetOutOfRangeError`: retention took the offset, or it never existed; with the leader's bounds.
        - `EndOfLogError`: the log ends before the range does (after ``end.of.log.wait.ms``), or an open
          transaction holds it back (after ``poll.timeout.ms``).
        - `LogTruncatedError`: records that were read are not in the log any more.
        - `TopicRecreatedError`: the topic is not the one that the offsets belong to.
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


class FetchClock:
    """Seconds for which the fetch itself has run: while the caller processes records, no broker is late."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.elapsed_s = 0.0
        """Before the current `running` began."""
        self._since: float | None = None

    def now(self) -> float:
        """Seconds within `running` so far."""
        return self.elapsed_s if self._since is None else self.elapsed_s + self._clock() - self._since

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The time within counts."""
        self._since = self._clock()
        try:
            yield
        finally:
            self.elapsed_s, self._since = self.now(), None


class FetchRun:
    """A fetch over partitions that may be added, moved, paused and removed meanwhile. Used by one thread.

    ``lookups`` run beside it: a broker that cannot be reached holds up its own partitions alone. If their
    background was given a wakeup, other threads can end the wait of `next` with it; the connections must then
    be used by this fetch alone. With ``shares_memory`` small record sets of several partitions are decoded
    into one piece of memory, which is faster, but lives until the last of them is gone. ``metrics`` gets the
    sizes of responses. ``accepted`` is called when a broker answers for a partition for the first time since
    it was added or moved: its offset is not out of range.
    """

    def __init__(  # noqa: PLR0913 - optional parts, by name
        self,
        router: Router,
        config: ConsumerConfig,
        columns: frozenset[str] | None = None,
        *,
        lookups: FetchLookups | None = None,
        metrics: MetricsRegistry | None = None,
        clock: FetchClock | None = None,
        shares_memory: bool = False,
        accepted: Callable[[TopicPartition], None] | None = None,
    ) -> None:
        self._router = router
        self._config = config
        self._columns = columns
        self._shares_memory = shares_memory
        self._lookups = lookups or FetchLookups(router)
        self._metrics = metrics
        self._accepted = accepted
        self._clock = clock or FetchClock()
        self._states: dict[TopicPartition, PartitionState] = {}
        self._in_flight: dict[int, InFlightFetch] = {}
        self._answered: deque[InFlightFetch] = deque()
        self._connections: set[Connection] = set()
        self._records: Iterator[FetchedRecords] = iter(())
        self._turns = itertools.count(1)
        self._muted_ms = 0.0
        self._snapshot = router.snapshot
        """The newest metadata that were seen."""
        self._behind: set[TopicPartition] = set()
        """The partitions of which the leaders were not compared with them."""
        self._apart: dict[int, list[list[PartitionState]]] = defaultdict(list)
        """By broker: the partitions of a request that had an unreadable response, in the groups of the next
        requests; the last one comes first."""
        self.rules = FetchRules.of(config, router.config)
        """How responses are judged."""

    def __repr__(self) -> str:
        left = sum(not state.position.finished for state in self._states.values())
        return f"<FetchRun over {len(self._states)} partitions, {left} unfinished>"

    @property
    def unfinished(self) -> bool:
        """True if any partition has not reached its end."""
        return any(not state.position.finished for state in self._states.values())

    def state(self, topic_partition: TopicPartition) -> PartitionState:
        """The state of a partition, to look at."""
        return self._states[topic_partition]

    def add(
        self,
        topic_partition: TopicPartition,
        from_offset: int,
        until_offset: int = ENDLESS,
        topic_id: UUID | None = None,
        leader_epoch: int = -1,
    ) -> None:
        """Fetch ``[from_offset, until_offset)`` of a partition too; by default without an end.

        ``topic_id`` is the id that the offsets belong to; without it, that of the first response.
        ``leader_epoch`` is that of the record before ``from_offset``, if it is known: the log must have it
        there. Raises `ValueError` if the partition is being fetched already.
        """
        if topic_partition in self._states:
            raise ValueError(f"{topic_partition} is being fetched already; seek moves it")
        max_bytes = self._config.max_partition_fetch_bytes
        self._states[topic_partition] = PartitionState(
            topic_partition, from_offset, until_offset, max_bytes, topic_id, leader_epoch
        )

    def remove(self, topic_partition: TopicPartition) -> None:
        """Stop fetching a partition; records that were fetched and not handed out are dropped."""
        self._states.pop(topic_partition).pause(self._clock.now())

    def seek(
        self,
        topic_partition: TopicPartition,
        offset: int,
        until_offset: int | None = None,
        leader_epoch: int = -1,
    ) -> None:
        """Continue from ``offset`` to the same end or a new one; also after an error about the partition.
        ``leader_epoch`` as for `add`."""
        state = self._states[topic_partition]
        until_offset = state.position.until_offset if until_offset is None else until_offset
        state.seek(offset, until_offset, leader_epoch)

    def pause(self, topic_partition: TopicPartition) -> None:
        """Fetch nothing of a partition until `resume`."""
        self._states[topic_partition].pause(self._clock.now())

    def resume(self, topic_partition: TopicPartition) -> None:
        """Continue with a partition that was paused, at its position."""
        self._states[topic_partition].resume()

    def position(self, topic_partition: TopicPartition) -> int:
        """The offset before which everything was handed out."""
        return self._states[topic_partition].position.offset

    def next(self, deadline: Deadline | None = None) -> FetchedRecords | None:
        """The next records of any partition; None when ``deadline`` or a wakeup comes first, or nothing is
        left to fetch.

        An error about a partition is raised once there are no records to hand out, and again until that
        partition is moved (`seek`), paused or removed; the others can be read on. See `Fetcher.fetch` for the
        errors.
        """
        while True:
            if (fetched := next(self._records, None)) is not None:
                return fetched
            if self._answered:
                self._records = self._read(self._answered.popleft())
                continue
            self.settle()
            self._check_progress()
            found = self._lookups.find_bounds(self._states.values(), self._clock.now())
            self._apply_outcomes(found)
            self._raise_broken()
            if not any(not state.position.finished and not state.paused for state in self._states.values()):
                return None
            with self._clock.running():
                self._submit()
                self._wait(deadline)
            # Not before: a caller that never waits has its requests sent and their responses read, too.
            if not self._answered and self._is_over(deadline):
                return None

    def settle(self) -> None:
        """Apply the outcomes of look-ups that have ended, as `next` does."""
        self._apply_outcomes(self._lookups.settle(self._clock.now()))

    def close(self) -> None:
        """End the fetch: abandon requests in flight and look-ups."""
        self._lookups.background.close()
        self._records = iter(())
        for fetch in [*self._in_flight.values(), *self._answered]:
            fetch.pending.abandon()
        self._in_flight.clear()
        self._answered.clear()
        for connection in self._connections:
            connection.buffers.trim()
        self._connections.clear()

    def broken(self) -> dict[TopicPartition, KafkaError]:
        """The partitions that cannot be read on as they stand, with the reason, except paused ones. The first
        is the one that `next` raises an error about. An offset that is out of range appears once its bounds
        are known.
        """
        return {
            tp: state.error
            for tp, state in self._states.items()
            if state.error is not None and not state.paused and unbounded(state) is None
        }

    def try_again(self, topic_partition: TopicPartition, after_ms: float = 0) -> None:
        """Read on after an error about the partition, from the same position, ``after_ms`` from now."""
        self._states[topic_partition].try_again()
        self._states[topic_partition].progress.pace(self._clock.now() + after_ms / 1000)

    @property
    def max_wait_ms(self) -> float:
        """How long to wait for responses at most: until a request is due, or a look-up may have ended."""
        now, finding = self._clock.now(), self._lookups.finding_leaders
        waits = [
            max(0.0, (state.progress.retry_at - now) * 1000)
            for state in self._states.values()
            if state.open
            and not state.in_flight
            and (state.progress.retry_at > now or (state.broker.leader is None and not finding))
        ]
        if self._muted_ms:
            waits.append(self._muted_ms)
        return min([MAX_WAIT_MS, self._lookups.background.max_wait_ms, *waits])

    def _is_over(self, deadline: Deadline | None) -> bool:
        given = self._lookups.background.given
        woken = given is not None and given.is_set
        return woken or (deadline is not None and deadline.expired)

    def _raise_broken(self) -> None:
        if error := next(iter(self.broken().values()), None):
            raise error

    def _apply_outcomes(self, outcomes: Collection[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case LeaderOutcome(state, found):
                    apply_leader(state, found, self._clock.now(), self.rules)
                case BoundsOutcome(state, refused, error):
                    state.explain(refused, error)
                case HeldBack(state, until):
                    state.progress.pace(until)

    def _submit(self) -> None:
        """Find the leaders that are not known, and send a request to every broker that has none in flight."""
        self._follow_metadata()
        outcomes = self._lookups.find_leaders(self._states.values(), self._clock.now())
        self._apply_outcomes(outcomes)
        now = self._clock.now()
        self._muted_ms = 0.0
        ready: dict[int, list[PartitionState]] = defaultdict(list)
        for state in self._states.values():
            if state.open and not state.in_flight and state.progress.retry_at <= now:
                node_id = state.broker.node_id
                if node_id is not None:
                    ready[node_id].append(state)
        for node_id, states in ready.items():
            if node_id in self._in_flight:
                for state in states:
                    state.hold(now)
                continue
            try:
                self._submit_to(node_id, probes_first(self._next_apart(node_id, states, now), now))
            except KafkaError as error:
                self._fail_all(states, error)
        self._lookups.forget_dialled()

    def _next_apart(self, node_id: int, ready: list[PartitionState], now: float) -> list[PartitionState]:
        """The ``ready`` partitions that the next request may contain: those of one group, during the search
        for the partition that makes responses unreadable."""
        groups = self._apart[node_id]
        while groups:
            asked = [state for state in ready if state in groups[-1]]
            if asked:
                for state in ready:
                    if state not in asked:
                        state.hold(now)
                return asked
            groups.pop()
        return ready

    def _follow_metadata(self) -> None:
        """Ask the leaders that newer metadata name, once no answer of another broker is under way."""
        if self._router.snapshot is not self._snapshot:
            self._snapshot, self._behind = self._router.snapshot, set(self._states)
        # One without a leader may be about to get that of metadata from before.
        ready = [
            tp
            for tp in self._behind
            if (state := self._states.get(tp)) is None
            or (not state.in_flight and state.broker.leader is not None)
        ]
        self._behind.difference_update(ready)
        for tp, found in self._router.known_leaders(tp for tp in ready if tp in self._states).items():
            apply_newer_leader(self._states[tp], found, self._clock.now())

    def _submit_to(self, node_id: int, states: list[PartitionState]) -> None:
        connection = self._lookups.connection(node_id)
        if connection is None:
            return
        if connection.muted_ms:
            self._muted_ms = max(self._muted_ms, connection.muted_ms)
            for state in states:
                state.hold(self._clock.now())
            return
        leaders = [state.broker.leader for state in states]
        by_name = any(leader is not None and leader.topic_id is None for leader in leaders)
        version = connection.version_of(FetchRequest, NAMES_UNTIL if by_name else None)
        if version < LAST_EPOCH_SINCE:
            states = self._check_epochs(connection, states)
        if states:
            self._fetch_from(node_id, connection, states, version)

    def _check_epochs(self, connection: Connection, states: list[PartitionState]) -> list[PartitionState]:
        """Return the ``states`` that are known to have the log that was read so far."""
        timeout_ms = self._router.config.request_timeout_ms
        for state, error in find_truncated(connection, states, timeout_ms):
            if error is None:
                state.broker.pass_epoch_check()
            else:
                apply_failure(state, error, self._clock.now(), self.rules)
        return [state for state in states if state.open and state.broker.leader is not None]

    def _fetch_from(
        self, node_id: int, connection: Connection, states: list[PartitionState], version: int
    ) -> None:
        now = self._clock.now()
        states.sort(key=lambda state: state.turn)
        # Only a request without a rack is served by the leader itself for certain.
        by_leader = any(
            state.broker.leader_only(now) or state.position.probe_until is not None for state in states
        )
        rack = "" if by_leader else self._router.config.client_rack
        request = build_fetch(states, self._config, rack, self.rules.max_bytes, version)
        pending = connection.submit(request, version)
        self._connections.add(connection)
        for state in states:
            state.requested(now)
        self._in_flight[node_id] = InFlightFetch(
            pending=pending,
            node_id=node_id,
            asked={state.topic_partition: (state, state.position.fetch_offset) for state in states},
            probe=is_probe(states),
            names={topic.topic_id: topic.topic for topic in request.topics},
            since=now,
            sent_at=time.monotonic(),
        )

    def _wait(self, deadline: Deadline | None) -> None:
        """Wait for responses, or until something is due."""
        fetches = list(self._in_flight.values())
        until = Deadline.after_ms(self.max_wait_ms)
        if deadline is not None:
            until = until.within_ms(deadline.remaining_ms)
        done = set(wait_for_any([fetch.pending for fetch in fetches], until, self._lookups.background.wakeup))
        late_after_ms = self.rules.late_after_ms
        for fetch in fetches:
            is_late = (self._clock.now() - fetch.since) * 1000 > late_after_ms
            if fetch.pending not in done and is_late:
                fetch.pending.connection.give_up(fetch.pending, late_after_ms, is_overdue=True)
                done.add(fetch.pending)
        for fetch in fetches:
            if fetch.pending in done:
                del self._in_flight[fetch.node_id]
                self._answered.append(fetch)

    def _check_progress(self) -> None:
        """Break off a partition that has waited in vain for too long; one without an end goes on."""
        now, limit_ms = self._clock.now(), self._config.poll_timeout_ms
        for state in self._states.values():
            waits = not state.position.finished and not state.paused and state.error is None
            if not waits or state.progress.waited_s(now) * 1000 <= limit_ms:
                continue
            if state.position.endless:
                log_overdue(state, limit_ms)
                state.progress.forget_waiting()
            else:
                state.break_off(overdue_error(state, limit_ms))

    def _read(self, fetch: InFlightFetch) -> Iterator[FetchedRecords]:
        """Hand out the records of a response; everything else in it becomes state."""
        with self._clock.running():
            received = self._receive(fetch)
            self._submit()  # the next request is on its way before these records are decoded
        try:
            groups = group_small_sets(received) if self._shares_memory else ([one] for one in received)
            for group in groups:
                yield from self._decode(group)
        except BaseException:
            # An interrupt, say: records that were not handed out are requested again.
            for state, _, _ in received:
                state.position.rewind()
            raise
        # Columns own their memory: nothing points into the response any more.
        fetch.pending.release()

    def _decode(self, group: Sequence[ReceivedRecords]) -> Iterator[FetchedRecords]:
        decoded_group = decode_group(group, self._config, self._columns)
        for (state, data, moves), decoded in zip(group, decoded_group, strict=True):
            position, progress = state.position, state.progress
            if position.moves != moves:
                continue
            try:
                for fetched in decode_fetched(position, data, self._config, self._columns, decoded):
                    progress.deliver(moved=fetched.next_offset > fetched.from_offset)
                    yield fetched
            except CorruptRecordError as error:
                state.find_corrupt(error, self._clock.now(), self.rules.replica_s)

    def _receive(self, fetch: InFlightFetch) -> list[ReceivedRecords]:
        """The partitions of a response that have records for their position.

        Their ``fetch_offset`` is past these records already, so that the next request may be sent before they
        are decoded.
        """
        states = [state for state, _ in fetch.asked.values()]
        for state in states:
            state.answered()
        apart = self._apart[fetch.node_id]
        del apart[-1:]
        try:
            response = fetch.pending.result(0)
            if response.error_code:
                raise BrokerError(response.error_code, f"Fetch from broker {fetch.node_id}")
        except KafkaError as error:
            if type(error) is ProtocolError and len(states) > 1:  # one of them is: the others are read on
                half = len(states) // 2
                apart += [states[half:], states[:half]]
            else:
                self._fail_all(states, fetch.explain(error))
            return []
        partitions = list(read_fetch(response, fetch.names))
        if self._metrics is not None:
            size = sum(len(data.records) for _, data in partitions if data.records)
            self._metrics.measure(metric.FETCH_SIZE, size)
        elapsed_ms = (time.monotonic() - fetch.sent_at) * 1000
        with_records = {tp for tp, data in partitions if data.records}
        facts = ResponseFacts(
            now=self._clock.now(),
            turn=next(self._turns),
            served=bool(with_records),
            passed_over=set(itertools.dropwhile(lambda tp: tp not in with_records, fetch.asked)),
            throttled=response.throttle_time_ms > 0,
            early=elapsed_ms < self._config.fetch_max_wait_ms / 2,
            brokers=self._router.snapshot.brokers,
        )
        found = [self._receive_partition(fetch, tp, data, facts) for tp, data in partitions]
        for state, _ in fetch.asked.values():
            apply_missing(state, facts, self.rules)
        return [received for received in found if received is not None]

    def _receive_partition(
        self, fetch: InFlightFetch, topic_partition: TopicPartition, data: PartitionData, facts: ResponseFacts
    ) -> ReceivedRecords | None:
        # Popped: a partition that comes twice counts once.
        state, asked_from = fetch.asked.pop(topic_partition, (None, -1))
        if state is None or state.paused:
            return None
        position = state.position
        probed = position.probe_until is not None
        # A seek or a pause forgets a probe. The response has uncommitted records, and aborted ones unmarked.
        if asked_from != position.offset or probed != fetch.probe:
            position.rewind()
            return None
        known = position.accepted
        has_records = apply_response(state, data, facts, self.rules)
        if position.accepted and not known and self._accepted is not None:
            self._accepted(topic_partition)
        if has_records:
            return ReceivedRecords(state, replace(data, records=None) if probed else data, position.moves)
        return None

    def _fail_all(self, states: Collection[PartitionState], error: KafkaError) -> None:
        for state in states:
            apply_failure(state, error, self._clock.now(), self.rules)
