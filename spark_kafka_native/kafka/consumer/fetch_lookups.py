"""`FetchLookups`: what a fetch has to find out otherwise than by fetching: leaders, the way to them, bounds.

All of it may take as long as a broker that does not answer lets it, and holds up only the partitions that it
is for: it is done in the background, and partitions are told of it when it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol

from ..cluster.router import Leader, Router
from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError, OffsetOutOfRangeError, TopicRecreatedError
from ..model import TopicPartition
from ..network.connection import Connection
from ..runtime.deadline import Deadline
from ..runtime.retry import is_retriable
from .background import Background
from .fetch_answers import FetchRules, fail
from .offsets import with_bounds
from .partition_state import PartitionState
from .run_clock import RunClock

RECREATED_AFTER = 3
"""So many metadata in a row must show another topic id: a broker that lags behind may show the former one."""
LEADERS = "leaders"

Bounds = Callable[[Router, OffsetOutOfRangeError, Deadline], KafkaError]
"""What to say of an offset that is out of range, once the leader was asked for its bounds."""
_Leaders = Mapping[TopicPartition, Leader | KafkaError]


class Connections(Protocol):
    """The way to brokers, as `Router` has it."""

    def ready(self, node_id: int) -> Connection | None:
        """A live connection, if there is one that nobody has to wait for."""

    def connection(self, node_id: int, deadline: Deadline) -> Connection:
        """A live connection, made if need be."""


class FetchLookups:
    """Of one run. At most one look for leaders is under way, and one dial and one question about bounds for
    each broker.
    """

    def __init__(
        self,
        router: Router,
        connections: Connections,
        clock: RunClock,
        rules: FetchRules,
        background: Background,
    ) -> None:
        self._router = router
        self._connections = connections
        self._clock = clock
        self._rules = rules
        self._background = background
        self._dialled: dict[int, Connection | KafkaError] = {}
        self._not_before: dict[str, float] = {}
        """When to look again for topics of which the last look has found no leader: each of their partitions
        has a backoff of its own, and together they would have one request follow another."""
        self._misses: dict[str, int] = {}
        """How many looks in a row have not found the topic."""
        self.bounds: Bounds = with_bounds

    @property
    def finding_leaders(self) -> bool:
        """Whether those that have no leader wait for one that is being looked up."""
        return LEADERS in self._background

    def find_leaders(self, states: Collection[PartitionState]) -> None:
        """Look for the leaders of those of ``states`` that have none, one look at a time."""
        now = self._clock.now()
        lost: list[PartitionState] = []
        known: list[PartitionState] = []
        for state in states:
            if state.leader is not None or not state.open or state.retry_at > now:
                continue
            if self._is_known(state):
                known.append(state)
            elif (not_before := self._not_before.get(state.topic_partition.topic, now)) > now:
                state.pace(not_before)
            else:
                lost.append(state)
        self._found(known, self._leaders(known))
        if lost:
            self._background.start(LEADERS, partial(self._ask_leaders, lost), partial(self._looked, lost))

    def connection(self, node_id: int) -> Connection | None:
        """A live connection to a broker; None while one is being made. Raises, once, why none could be."""
        if (found := self._find_connection(node_id)) is not None:
            return found
        self._background.start(
            ("connection", node_id),
            lambda: self._connections.connection(node_id, self._deadline()),
            partial(self._dialled.__setitem__, node_id),
        )
        # Where no thread could be started, it is done by now.
        return self._find_connection(node_id)

    def forget_dialled(self) -> None:
        """Whom it was for has been told."""
        self._dialled.clear()

    def find_bounds(self, states: Collection[PartitionState]) -> None:
        """Ask for the bounds of those of ``states`` whose offsets were refused."""
        for state in states:
            if state.error is not None and (error := unbounded(state)) is not None:
                self._background.start(
                    ("bounds", state.node_id),
                    partial(self._bounds_of, error),
                    partial(self._told_bounds, state, error),
                )

    def _deadline(self) -> Deadline:
        return self._background.deadline(self._router.config.default_api_timeout_ms)

    def _is_known(self, state: PartitionState) -> bool:
        return not state.leader_is_stale and self._router.knows((state.topic_partition.topic,))

    def _ask_leaders(self, lost: Collection[PartitionState]) -> _Leaders:
        topics = {state.topic_partition.topic for state in lost}
        if any(state.leader_is_stale for state in lost):
            self._router.refresh(topics, self._background.deadline(self._router.config.request_timeout_ms))
        else:
            self._router.metadata(topics, deadline=self._deadline())
        return self._leaders(lost)

    def _leaders(self, states: Collection[PartitionState]) -> _Leaders:
        # As the metadata are by now: of a topic that is missing, `leader` asks again for each partition.
        return self._router.known_leaders([state.topic_partition for state in states])

    def _looked(self, lost: Collection[PartitionState], leaders: _Leaders | KafkaError) -> None:
        self._hold_back(lost, leaders)
        self._found(lost, leaders)

    def _hold_back(self, lost: Collection[PartitionState], leaders: _Leaders | KafkaError) -> None:
        by_topic: dict[str, list[Leader | KafkaError]] = {}
        for tp in [state.topic_partition for state in lost]:
            by_topic.setdefault(tp.topic, []).append(
                leaders if isinstance(leaders, KafkaError) else leaders[tp]
            )
        for topic, told in by_topic.items():
            self._misses[topic] = self._misses.get(topic, 0) + 1 if all(map(_is_missing, told)) else 0
            if all(isinstance(one, KafkaError) and is_retriable(one) for one in told):
                delay_s = self._rules.backoff.delay_ms(self._misses[topic]) / 1000
                self._not_before[topic] = self._clock.now() + delay_s

    def _found(self, lost: Collection[PartitionState], leaders: _Leaders | KafkaError) -> None:
        """Tell those that still wait for a leader who it is, or what is wrong with them."""
        for state in lost:
            if state.leader is not None or not state.open:
                continue
            try:
                found = leaders if isinstance(leaders, KafkaError) else leaders[state.topic_partition]
                state.led_by(_checked(state, found), self._clock.now())
            except KafkaError as error:
                fail(state, error, self._clock.now(), self._rules)

    def _find_connection(self, node_id: int) -> Connection | None:
        dialled = self._dialled.pop(node_id, None)
        if isinstance(dialled, KafkaError):
            raise dialled
        # One that was just made is used, also if nobody else would be given it any more: where the broker has
        # hung up, it says so, which is a failure. Another one made at once would fare no better, and so on.
        return self._connections.ready(node_id) if dialled is None else dialled

    def _bounds_of(self, error: OffsetOutOfRangeError) -> KafkaError:
        return self.bounds(self._router, error, self._deadline())

    def _told_bounds(self, state: PartitionState, error: OffsetOutOfRangeError, told: KafkaError) -> None:
        if state.error is error:  # it was not moved meanwhile
            state.error = told


def unbounded(state: PartitionState) -> OffsetOutOfRangeError | None:
    """Its error, if that is to be raised with bounds that are not known yet."""
    error = state.error
    if state.paused or not isinstance(error, OffsetOutOfRangeError):
        return None
    return error if error.log_start_offset is None else None


def _is_missing(found: Leader | KafkaError) -> bool:
    return isinstance(found, BrokerError) and found.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _checked(state: PartitionState, leader: Leader | KafkaError) -> Leader:
    if isinstance(leader, KafkaError):
        raise leader
    tp = state.topic_partition
    if None not in (state.topic_id, leader.topic_id) and leader.topic_id != state.topic_id:
        if state.failures < RECREATED_AFTER:
            raise BrokerError(ErrorCode.INCONSISTENT_TOPIC_ID, f"fetching {tp} at offset {state.position}")
        raise TopicRecreatedError(tp.topic, str(state.topic_id), str(leader.topic_id))
    return leader
