"""`FetchLookups`: look-ups beside a fetch, of leaders, connections and bounds of refused offsets.

Each look-up may take as long as a broker does not answer, and must hold up its own partitions alone: it runs
in the background. It changes no partition: its outcomes are returned, and the fetch loop acts on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..cluster.offsets import with_bounds
from ..cluster.router import Leader, Router
from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError, OffsetOutOfRangeError
from ..model import TopicPartition
from ..network.connection import Connection
from ..runtime.background import Background
from ..runtime.deadline import Deadline
from ..runtime.retry import Backoff, is_retriable
from .partition_state import PartitionState

LEADERS = "leaders"

Bounds = Callable[[Router, OffsetOutOfRangeError, Deadline], KafkaError]
"""Makes the error to raise for an offset that is out of range, by asking the leader for its bounds."""
_Leaders = Mapping[TopicPartition, Leader | KafkaError]


class Connections(Protocol):
    """Connections to brokers by node id, as `Router` provides them."""

    def ready(self, node_id: int) -> Connection | None:
        """A live connection, if there is one that no caller has to wait for."""

    def connection(self, node_id: int, deadline: Deadline) -> Connection:
        """A live connection, opened if need be."""


@dataclass(frozen=True, slots=True)
class LeaderOutcome:
    """The leader of a partition that had none, or why it was not found."""

    state: PartitionState
    found: Leader | KafkaError


@dataclass(frozen=True, slots=True)
class BoundsOutcome:
    """What to raise instead of an offset that was ``refused``."""

    state: PartitionState
    refused: OffsetOutOfRangeError
    error: KafkaError


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The leader of a partition is not looked up again before ``until``."""

    state: PartitionState
    until: float


Outcome = LeaderOutcome | BoundsOutcome | HeldBack


class TopicBackoff:
    """When to look up topics again for which the last look-up found no leader.

    Each partition has a backoff of its own, and together they would have one request follow another.
    """

    def __init__(self, first_ms: int, max_ms: int) -> None:
        self._backoff = Backoff(first_ms=first_ms, max_ms=max_ms)
        self._not_before: dict[str, float] = {}
        self._misses: dict[str, int] = {}
        """How many look-ups in a row have not found the topic."""

    def not_before(self, topic: str, now: float) -> float:
        """When the topic may be looked up again; ``now`` if its last look-up found a leader."""
        return self._not_before.get(topic, now)

    def learn(self, leaders: _Leaders, now: float) -> None:
        """Take note of the result of one look-up."""
        by_topic: dict[str, list[Leader | KafkaError]] = {}
        for tp, found in leaders.items():
            by_topic.setdefault(tp.topic, []).append(found)
        for topic, results in by_topic.items():
            self._misses[topic] = self._misses.get(topic, 0) + 1 if all(map(_is_missing, results)) else 0
            if all(isinstance(one, KafkaError) and is_retriable(one) for one in results):
                self._not_before[topic] = now + self._backoff.delay_ms(self._misses[topic]) / 1000


class FetchLookups:
    """Of one fetch, in its thread. At most one look-up of leaders is under way, and for each broker one dial
    and one question about bounds.

    ``connections`` are those to dial (None: the router's), ``bounds`` makes the error of a refused offset.
    """

    def __init__(
        self,
        router: Router,
        connections: Connections | None = None,
        background: Background | None = None,
        bounds: Bounds = with_bounds,
    ) -> None:
        self._router = router
        self._connections = connections or router
        self.background = background or Background("kafka-fetch")
        self._bounds = bounds
        self._dialled: dict[int, Connection | KafkaError] = {}
        self._bounds_found: list[BoundsOutcome] = []
        self._leaders_found: list[tuple[Collection[PartitionState], _Leaders | KafkaError]] = []
        self._topics = TopicBackoff(router.config.retry_backoff_ms, router.config.retry_backoff_max_ms)

    @property
    def finding_leaders(self) -> bool:
        """True while leaders are being looked up."""
        return LEADERS in self.background

    def settle(self, now: float) -> list[Outcome]:
        """Return the outcomes of look-ups that have ended since the last call."""
        self.background.settle()
        return self._take_outcomes(now)

    def find_leaders(self, states: Collection[PartitionState], now: float) -> list[Outcome]:
        """Find leaders for those of ``states`` that have none. Returns the outcomes that are known at once;
        others come from `settle`.
        """
        lost: list[PartitionState] = []
        known: list[PartitionState] = []
        outcomes: list[Outcome] = []
        for state in states:
            if state.broker.leader is not None or not state.open or state.progress.retry_at > now:
                continue
            if self._is_known(state):
                known.append(state)
            elif (not_before := self._topics.not_before(state.topic_partition.topic, now)) > now:
                outcomes.append(HeldBack(state, not_before))
            else:
                lost.append(state)
        found = self._leaders(known)
        outcomes += [LeaderOutcome(state, found[state.topic_partition]) for state in known]
        if lost:
            self.background.start(LEADERS, partial(self._ask_leaders, lost), partial(self._add_leaders, lost))
        return outcomes + self._take_outcomes(now)

    def connection(self, node_id: int) -> Connection | None:
        """A live connection to a broker; None while one is being opened. Raises, once, why it failed."""
        if (found := self._find_connection(node_id)) is not None:
            return found
        self.background.start(
            ("connection", node_id),
            lambda: self._connections.connection(node_id, self._deadline()),
            partial(self._dialled.__setitem__, node_id),
        )
        # If no thread could be started, it was opened at once.
        return self._find_connection(node_id)

    def forget_dialled(self) -> None:
        """The partitions of these connections were asked for in this round."""
        self._dialled.clear()

    def find_bounds(self, states: Collection[PartitionState], now: float) -> list[Outcome]:
        """Ask for the bounds of the ``states`` with refused offsets. Returns as `find_leaders`."""
        for state in states:
            if state.error is not None and (refused := unbounded(state)) is not None:
                self.background.start(
                    ("bounds", state.broker.node_id),
                    partial(self._ask_bounds, refused),
                    partial(self._add_bounds, state, refused),
                )
        return self._take_outcomes(now)

    def _take_outcomes(self, now: float) -> list[Outcome]:
        outcomes: list[Outcome] = [*self._bounds_found]
        for lost, leaders in self._leaders_found:
            found = _by_partition(lost, leaders)
            for state in lost:  # before: one that is refused is looked up with the others of its topic
                leader = found[state.topic_partition]
                if isinstance(leader, Leader) and (error := state.refuse_leader(leader, now)) is not None:
                    found[state.topic_partition] = error
            self._topics.learn(found, now)
            outcomes += [LeaderOutcome(state, found[state.topic_partition]) for state in lost]
        self._bounds_found, self._leaders_found = [], []
        return outcomes

    def _deadline(self) -> Deadline:
        return self.background.deadline(self._router.config.default_api_timeout_ms)

    def _is_known(self, state: PartitionState) -> bool:
        return not state.broker.leader_is_stale and self._router.knows((state.topic_partition.topic,))

    def _ask_leaders(self, lost: Collection[PartitionState]) -> _Leaders:
        topics = {state.topic_partition.topic for state in lost}
        if any(state.broker.leader_is_stale for state in lost):
            self._router.refresh(topics, self.background.deadline(self._router.config.request_timeout_ms))
        else:
            self._router.metadata(topics, deadline=self._deadline())
        return self._leaders(lost)

    def _leaders(self, states: Collection[PartitionState]) -> _Leaders:
        # From the metadata as they are: for a missing topic `leader` would ask again for each partition.
        return self._router.known_leaders([state.topic_partition for state in states])

    def _add_leaders(self, lost: Collection[PartitionState], leaders: _Leaders | KafkaError) -> None:
        self._leaders_found.append((lost, leaders))

    def _find_connection(self, node_id: int) -> Connection | None:
        dialled = self._dialled.pop(node_id, None)
        if isinstance(dialled, KafkaError):
            raise dialled
        # A connection that was just opened is used even if it is not ready any more: if the broker has hung
        # up, using it reports the failure. Opening another one at once would fare no better, and so on.
        return self._connections.ready(node_id) if dialled is None else dialled

    def _ask_bounds(self, refused: OffsetOutOfRangeError) -> KafkaError:
        return self._bounds(self._router, refused, self._deadline())

    def _add_bounds(self, state: PartitionState, refused: OffsetOutOfRangeError, error: KafkaError) -> None:
        self._bounds_found.append(BoundsOutcome(state, refused, error))


def unbounded(state: PartitionState) -> OffsetOutOfRangeError | None:
    """The error of ``state`` if it is to be raised with bounds that are not known yet."""
    error = state.error
    if state.paused or not isinstance(error, OffsetOutOfRangeError):
        return None
    return error if error.log_start_offset is None else None


def _by_partition(
    lost: Collection[PartitionState], leaders: _Leaders | KafkaError
) -> dict[TopicPartition, Leader | KafkaError]:
    if isinstance(leaders, KafkaError):
        return {state.topic_partition: leaders for state in lost}
    return dict(leaders)


def _is_missing(found: Leader | KafkaError) -> bool:
    return isinstance(found, BrokerError) and found.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
