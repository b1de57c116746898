"""`PartitionState`: how far the fetching of one partition has come, and what is to be asked for next.

It owns everything that is known about the partition: others look, and tell it what happened. It does no I/O
and reads no clock; moments are seconds on the clock of the fetch that it is part of.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from ..cluster.router import Leader
from ..errors import KafkaError
from ..model import TopicPartition

MIN_FETCH_BYTES = 64 * 1024
"""No fetch asks for less, however few records are left: an estimate that is too low costs a round trip."""
ENDLESS = (1 << 63) - 1
"""The ``until_offset`` of a partition that is read without an end."""


@dataclass(slots=True, kw_only=True, eq=False)
class PartitionState:
    """One partition between its ``position`` and ``until_offset``."""

    topic_partition: TopicPartition
    position: int
    """Everything before it was given to the caller."""
    until_offset: int
    max_bytes: int
    topic_id: UUID | None = None
    """The id that the offsets belong to; None until one is known."""
    ask_from: int = -1
    """Where the next request starts: ahead of ``position`` while a response is being decoded."""
    last_epoch: int = -1
    """The leader epoch of the last batch before ``ask_from`` (-1: not known): the broker tells if its log has
    another there.
    """
    moves: int = 0
    """Counts calls of `seek` and `pause`: what was fetched before one of them no longer goes to the
    caller."""
    error: KafkaError | None = None
    """The error that ended fetching it, until `seek`."""
    paused: bool = False
    leader: Leader | None = None
    leader_is_stale: bool = False
    """Whether the metadata that named the last leader has proved wrong."""
    replica: int | None = None
    """A follower in our rack that the leader sent us to (KIP-392)."""
    in_flight: bool = False
    turn: int = 0
    """When it was served last: those that waited longest come first in a request."""
    failures: int = 0
    failing_since: float = 0.0
    retry_at: float = 0.0
    last_failure: KafkaError | None = None
    at_end_since: float | None = None
    probe_until: int | None = None
    """Where the next request is to prove that there are no records before this offset: it is asked without
    isolation, so that the broker shows the next batch that it has.
    """
    refetched: bool = False
    """Whether corrupt records were asked for once more already."""
    epoch_checked: int = -1
    """The leader's epoch under which ``last_epoch`` was found to be in its log."""
    _replica_until: float = 0.0
    _no_replica_until: float = 0.0
    _refused_by_replica: int = 0
    _bytes_per_offset: float | None = None
    _position_epoch: int = -1
    _taken: tuple[int, int] = (-1, -1)
    _waited: float = 0.0
    _waiting_since: float | None = None

    def __post_init__(self) -> None:
        self.ask_from = self.position

    @property
    def finished(self) -> bool:
        """Whether the caller has everything."""
        return self.position >= self.until_offset

    @property
    def endless(self) -> bool:
        """Whether it is read without an end: waiting at the log's end is then no failure."""
        return self.until_offset == ENDLESS

    @property
    def open(self) -> bool:
        """Whether something is left to ask for."""
        return self.ask_from < self.until_offset and not self.paused and self.error is None

    @property
    def node_id(self) -> int | None:
        """The broker to ask; None while that is not known."""
        if self.leader is None:
            return None
        return self.leader.node_id if self.replica is None else self.replica

    @property
    def taken_until(self) -> int:
        """The end of the records that came last."""
        return self._taken[0]

    def wants_leader(self, now: float) -> bool:
        """Whether the leader is to serve it, whoever is nearer."""
        return now < self._no_replica_until

    def wanted_bytes(self) -> int:
        """How much to ask for: no more than what is left probably takes."""
        if self._bytes_per_offset is None or self.endless:
            return self.max_bytes
        left = int((self.until_offset - self.ask_from) * self._bytes_per_offset * 1.1)
        return min(self.max_bytes, left + MIN_FETCH_BYTES)

    def waited_s(self, now: float) -> float:
        """How long it has been waited for in vain: while it was asked for or could not be, not while it was
        others' turn or the broker was left alone as it had asked for.
        """
        return self._waited + (0.0 if self._waiting_since is None else now - self._waiting_since)

    # What happens to it, in the order of a round: found, asked for, answered (taken, passed over, at the end,
    # failed), given to the caller.

    def led_by(self, leader: Leader, now: float) -> None:
        """The metadata names ``leader``."""
        self.leader, self.leader_is_stale = leader, False
        self._expire_replica(now)

    def asked(self, now: float) -> None:
        """It is part of a request that was sent."""
        self.in_flight = True
        self._waiting_since = now if self._waiting_since is None else self._waiting_since

    def answered(self) -> None:
        """The request that it was part of has ended, one way or the other."""
        self.in_flight = False

    def hold(self, now: float) -> None:
        """It can't be asked for just now, through no fault of the broker: that does not count as waiting in
        vain."""
        self._waited, self._waiting_since = self.waited_s(now), None
        self._expire_replica(now)

    def passed_over(self) -> None:
        """Others filled the response: its turn comes."""
        self.failures = 0
        self._waited, self._waiting_since = 0.0, None

    def took(self, next_offset: int, epoch: int, size: int, turn: int, now: float) -> None:
        """``size`` bytes of records came; the next request starts at ``next_offset``."""
        self._bytes_per_offset = size / (next_offset - self.position)
        self._taken = next_offset, epoch
        self.ask_from, self.last_epoch, self.turn = next_offset, epoch, turn
        self.probe_until = None
        self.failures = 0
        self.passed_epoch_check()
        if self.replica is not None:
            self._refused_by_replica = 0
        self.hold(now)

    def advance(self, next_offset: int) -> None:
        """The caller has everything before ``next_offset``."""
        if next_offset > self.position:
            self._waited, self._waiting_since = 0.0, None
            self.at_end_since = None
            self.last_failure = None
        self._position_epoch = self._taken[1] if next_offset == self._taken[0] else -1
        self.position = next_offset
        # A failure meanwhile (of the request sent ahead) has set it back to before what is given out now.
        if self.ask_from <= next_offset:
            self.ask_from, self.last_epoch = next_offset, self._position_epoch
        self.failures = 0
        self.refetched = False

    def rewind(self) -> None:
        """Ask again from what the caller has; an answer that is on its way will not fit and is dropped."""
        self.ask_from, self.last_epoch = self.position, self._position_epoch
        self.probe_until = None

    def grow(self, limit: int) -> bool:
        """Ask for twice as much, first in line; False where that is as much as there may be."""
        if self.max_bytes >= limit:
            return False
        self.max_bytes = min(self.max_bytes * 2, limit)
        self._bytes_per_offset, self.turn = None, 0
        return True

    def forget_epoch(self) -> None:
        """The broker does not know the epoch of what was read last: ask without it."""
        self._position_epoch = -1
        self.rewind()

    def learn_topic_id(self) -> None:
        """An answer came: its topic's id is the one that the offsets belong to, unless another is known."""
        if self.topic_id is None and self.leader is not None:
            self.topic_id = self.leader.topic_id

    def at_end(self, now: float, error: KafkaError | None) -> float:
        """The log ends here. For how many seconds it has: 0 at first, and where ``error`` (an open
        transaction) says why it will go on one day.
        """
        self.failures = 0
        if self.endless:
            self._waited, self._waiting_since = 0.0, None
            return 0.0
        if error is not None:
            self.last_failure, self.at_end_since = error, None
            return 0.0
        self.at_end_since = now if self.at_end_since is None else self.at_end_since
        return now - self.at_end_since

    def pace(self, until: float) -> None:
        """Nothing is wrong, but asking before ``until`` would be pointless."""
        self.retry_at = until

    def prefer(self, replica: int, until: float) -> None:
        """The leader sends us to a follower."""
        self.replica, self._replica_until = replica, until
        self.rewind()

    def leave_replica(self, now: float, max_s: float) -> None:
        """The follower can't serve it: the leader is to do so, each time for longer (``max_s`` at most)."""
        pause_s = min(max_s, 2.0**self._refused_by_replica)
        self._refused_by_replica = min(self._refused_by_replica + 1, 30)
        self.replica, self._no_replica_until = None, now + pause_s
        self.rewind()

    def stall(self, error: KafkaError, now: float, delay_s: float) -> None:
        """A useless answer: ask the same broker again, a little later."""
        self._failed(error, now, delay_s)
        self.rewind()

    def lose_leader(self, error: KafkaError, now: float, delay_s: float) -> None:
        """Look up which broker to ask, a little later."""
        self._failed(error, now, delay_s)
        self.leader = self.replica = None
        self.leader_is_stale = True
        self.rewind()

    def found_corrupt(self, error: KafkaError, now: float, max_s: float) -> None:
        """The records that came are corrupt: once more, from the leader, as the bytes may have been damaged
        on the way.
        """
        if self.refetched:
            self.break_off(error)
            return
        self.refetched = True
        if self.replica is not None:
            self.leave_replica(now, max_s)
        self.rewind()

    def passed_epoch_check(self) -> None:
        """The leader's log has what was read so far."""
        if self.leader is not None:
            self.epoch_checked = self.leader.leader_epoch

    def break_off(self, error: KafkaError) -> None:
        """Nothing more can be read from it, unless the caller seeks elsewhere."""
        self.error = error
        self.rewind()

    # What the caller wants.

    def seek(self, offset: int, until_offset: int) -> None:
        """Go on from ``offset``, as if nothing had been read before."""
        self.position, self.until_offset = offset, until_offset
        self._position_epoch = -1
        self.try_again()
        self.moves += 1
        self.rewind()

    def try_again(self) -> None:
        """Go on at the same position after an error; what is known of the log before it stays known."""
        self.error = self.last_failure = self.at_end_since = None
        self.failures, self.refetched = 0, False
        self.count_waiting_anew()

    def count_waiting_anew(self) -> None:
        """What it has waited in vain so far counts no more."""
        self._waited, self._waiting_since = 0.0, None

    def pause(self, now: float) -> None:
        """Ask for nothing until `resume`; what was fetched and not given out is dropped."""
        self.paused = True
        self.moves += 1
        self.hold(now)
        self.rewind()

    def resume(self) -> None:
        """Go on where the caller is."""
        self.paused = False
        # An answer to what was asked before the pause may have failed during it.
        self._waited, self._waiting_since = 0.0, None

    def _failed(self, error: KafkaError, now: float, delay_s: float) -> None:
        if self.failures == 0:
            self.failing_since = now
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        self.failures += 1
        self.retry_at = now + delay_s
        self.last_failure = error

    def _expire_replica(self, now: float) -> None:
        if self.replica is not None and now > self._replica_until:
            self.replica = None  # the leader says again who is near


def probes_first(states: list[PartitionState], now: float) -> list[PartitionState]:
    """Those of ``states`` that one request may ask for: the probes, where there are any; the others have to
    wait.
    """
    probes = [state for state in states if state.probe_until is not None]
    if not probes:
        return states
    for state in states:
        if state.probe_until is None:
            state.hold(now)
    return probes
