"""`PartitionState`: the fetch state of one partition, with its `FetchPosition`, `PartitionBroker` and
`FetchProgress`.

Each of the four is the only writer of its own attributes: others read them and call its methods. Used by the
thread that runs the fetch. It does no I/O and reads no clock; moments are seconds on the clock of that fetch.
"""

from __future__ import annotations

from uuid import UUID

from ..cluster import retry_policy
from ..cluster.router import Leader
from ..error_code import UNKNOWN_TOPIC, ErrorCode
from ..errors import BrokerError, KafkaError, LogTruncatedError
from ..model import TopicPartition
from ..records.batch import EpochRanges, RecordSetEnd, epoch_before

MIN_FETCH_BYTES = 64 * 1024
"""No fetch asks for less, however few records are left: an estimate that is too low costs a round trip."""
ENDLESS = (1 << 63) - 1
"""The ``until_offset`` of a partition that is read without an end."""
GONE = UNKNOWN_TOPIC | {ErrorCode.INCONSISTENT_TOPIC_ID}
"""The topic is deleted, or the broker that answers does not know it yet."""


class _FormerLeaderError(BrokerError):
    """The metadata name a leader of before: the error of this client, not that of a broker."""


class OtherTopicError(BrokerError):
    """The metadata give another id of the topic: the error of this client, not that of a broker."""


def _kind(error: KafkaError | None) -> object:
    """Equal for failures that have the same cause."""
    if type(error) is not BrokerError:
        return type(error)
    return GONE if error.error_code in GONE else error.error_code


class FetchPosition:
    """The offsets of one partition: handed to the caller, received, and to request next."""

    __slots__ = (
        "_offset_epoch",
        "_received_epoch",
        "accepted",
        "epoch_ranges",
        "fetch_offset",
        "last_fetched_epoch",
        "moves",
        "offset",
        "probe_until",
        "received_until",
        "topic_partition",
        "until_offset",
    )

    def __init__(
        self, topic_partition: TopicPartition, offset: int, until_offset: int, leader_epoch: int = -1
    ) -> None:
        self.topic_partition = topic_partition
        self.offset = offset
        """Everything before it was handed to the caller."""
        self.until_offset = until_offset
        self.fetch_offset = offset
        """Where the next request starts: ahead of ``offset`` while a response is being decoded."""
        self.last_fetched_epoch = leader_epoch
        """The leader epoch of the last batch before ``fetch_offset``, -1 if unknown: the broker reports if
        its log has another epoch there.
        """
        self.received_until = -1
        """The end of the records that were received last."""
        self.moves = 0
        """Counts calls of `seek` and `invalidate`: records received before one of them are not handed out."""
        self.probe_until: int | None = None
        """Set if the next request is to prove that there are no records before this offset: it is sent
        without isolation, so that the broker returns the next batch that exists.
        """
        self.accepted = False
        """True if a broker has answered a request at this offset, or one it was read on from, without an
        error: it lies within the log.
        """
        self.epoch_ranges: EpochRanges = ()
        """Of the records that were received last."""
        self._offset_epoch = leader_epoch
        self._received_epoch = -1

    @property
    def offset_epoch(self) -> int:
        """The leader epoch of the last batch before ``offset``, -1 if unknown."""
        return self._offset_epoch

    @property
    def finished(self) -> bool:
        """True if the caller has everything."""
        return self.offset >= self.until_offset

    @property
    def endless(self) -> bool:
        """True if it is read without an end: waiting at the log's end is then no failure."""
        return self.until_offset == ENDLESS

    @property
    def received(self) -> int:
        """Where ``offset`` is once everything received is decoded; the next request starts there."""
        return min(self.received_until, self.until_offset)

    def accept(self) -> None:
        """The broker's log contains the offset, or ends there."""
        self.accepted = True

    def receive(self, end: RecordSetEnd) -> None:
        """Records before ``end`` were received, and are decoded next."""
        self.received_until, self._received_epoch, self.epoch_ranges = end
        self.fetch_offset, self.last_fetched_epoch = end.next_offset, end.leader_epoch
        self.probe_until = None

    def advance(self, next_offset: int) -> None:
        """The caller gets everything before ``next_offset``."""
        is_last = next_offset == self.received_until
        self._offset_epoch = self._received_epoch if is_last else epoch_before(next_offset, self.epoch_ranges)
        self.offset = next_offset
        # A failure of the request that was sent ahead may have set it back to before these records.
        if self.fetch_offset <= next_offset:
            self.fetch_offset, self.last_fetched_epoch = next_offset, self._offset_epoch

    def rewind(self) -> None:
        """Request again from what the caller has; a response to an earlier request is dropped."""
        self.fetch_offset, self.last_fetched_epoch = self.offset, self._offset_epoch
        self.probe_until = None

    def probe(self, until: int) -> None:
        """Have the next request prove that there are no records before ``until``."""
        self.probe_until = until

    def forget_epoch(self) -> None:
        """The broker does not know the epoch of the last record: request without it."""
        self.rewind()
        self.last_fetched_epoch = -1

    def recall_epoch(self) -> None:
        """Another broker is asked: it may know the epoch of the last record."""
        if self.fetch_offset == self.offset:
            self.last_fetched_epoch = self._offset_epoch

    def cut_at(self, end_offset: int) -> int:
        """Where the records end that were read and that the log may still have: it lacks the one before
        `fetch_offset`. Its last epoch up to that of this record ends at ``end_offset``, perhaps behind it,
        with other records.
        """
        return max(0, min(end_offset, self.fetch_offset - 1))

    def seek(self, offset: int, until_offset: int, leader_epoch: int = -1) -> None:
        """Continue from ``offset``, as if nothing had been read before but the record before it, which has
        this ``leader_epoch`` if it is known."""
        self.offset, self.until_offset = offset, until_offset
        self._offset_epoch, self.accepted = leader_epoch, False
        self.invalidate()

    def invalidate(self) -> None:
        """Drop records that were received and not handed out."""
        self.moves += 1
        self.rewind()


class PartitionBroker:
    """The broker that serves one partition: its leader, or a follower in our rack (KIP-392)."""

    __slots__ = (
        "_leader_only_until",
        "_newest",
        "_refusals",
        "_replica_until",
        "epoch_checked",
        "leader",
        "leader_is_stale",
        "replica",
    )

    def __init__(self) -> None:
        self.leader: Leader | None = None
        self._newest: Leader | None = None
        """The leader of the newest epoch so far, of the topic as it is now."""
        self.leader_is_stale = False
        """True if the metadata that named the last leader has proved wrong."""
        self.replica: int | None = None
        """The follower that the leader has named."""
        self.epoch_checked = -1
        """The leader epoch under which the last fetched epoch was found in the leader's log."""
        self._replica_until = 0.0
        self._leader_only_until = 0.0
        self._refusals = 0

    @property
    def was_led(self) -> bool:
        """True if the partition has had a leader."""
        return self._newest is not None

    @property
    def node_id(self) -> int | None:
        """The broker to send requests to; None while it is not known."""
        if self.leader is None:
            return None
        return self.leader.node_id if self.replica is None else self.replica

    def leader_only(self, now: float) -> bool:
        """True if the leader is to serve the partition although a follower may be nearer."""
        return now < self._leader_only_until

    def newest_epoch(self, topic_id: UUID | None) -> int:
        """The newest epoch of a leader so far; -1 if that was of another topic of the name."""
        newest = self._newest
        if newest is None or (None not in (newest.topic_id, topic_id) and newest.topic_id != topic_id):
            return -1
        return newest.leader_epoch

    def led_by(self, leader: Leader, now: float) -> None:
        """The metadata names ``leader``."""
        self.leader, self.leader_is_stale = leader, False
        if leader.leader_epoch >= self.newest_epoch(leader.topic_id):
            self._newest = leader
        self.expire_replica(now)

    def lose_leader(self) -> None:
        """Look up again which broker to ask."""
        self.leader = self.replica = None
        self.leader_is_stale = True

    def served(self, now: float) -> None:
        """Records came: the log contains everything that was read so far."""
        if self.leader is not None:
            self.epoch_checked = self.leader.leader_epoch
        if self.replica is not None:
            self._refusals = 0
            self.expire_replica(now)

    def pass_epoch_check(self) -> None:
        """The leader's log contains everything that was read so far."""
        if self.leader is not None:
            self.epoch_checked = self.leader.leader_epoch

    def prefer(self, replica: int, until: float) -> None:
        """The leader names a follower to fetch from."""
        self.replica, self._replica_until = replica, until

    def leave_replica(self, now: float, max_s: float) -> None:
        """The follower cannot serve the partition: the leader does, each time for longer, up to ``max_s``."""
        pause_s = min(max_s, 2.0**self._refusals)
        self._refusals = min(self._refusals + 1, 30)
        self.replica, self._leader_only_until = None, now + pause_s

    def expire_replica(self, now: float) -> None:
        """Let the leader name a follower again from time to time."""
        if self.replica is not None and now > self._replica_until:
            self.replica = None


class FetchProgress:
    """For how long one partition has made no progress, and why: failures in a row, and time spent waiting."""

    __slots__ = (
        "_alike_since",
        "_failed_at",
        "_waited",
        "_waiting_since",
        "at_end_since",
        "failures",
        "last_failure",
        "refetched",
        "retry_at",
    )

    def __init__(self) -> None:
        self.failures = 0
        self._alike_since = self._failed_at = 0.0
        self.retry_at = 0.0
        self.last_failure: KafkaError | None = None
        self.at_end_since: float | None = None
        self.refetched = False
        """True if corrupt records were requested once more already."""
        self._waited = 0.0
        self._waiting_since: float | None = None

    def waited_s(self, now: float) -> float:
        """Seconds without progress while a request was in flight or could not be sent. Time in which others
        were served, or the broker was throttling, does not count.
        """
        return self._waited + (0.0 if self._waiting_since is None else now - self._waiting_since)

    def start_waiting(self, now: float) -> None:
        """Count the time from now on, unless it is counted already."""
        if self._waiting_since is None:
            self._waiting_since = now

    def stop_waiting(self, now: float) -> None:
        """Stop counting the time; the time counted so far is kept."""
        if self._waiting_since is not None:
            self._waited, self._waiting_since = self._waited + now - self._waiting_since, None

    def forget_waiting(self) -> None:
        """Reset the counted time to zero."""
        self._waited, self._waiting_since = 0.0, None

    def fail(self, error: KafkaError, now: float, delay_s: float) -> None:
        """Try again ``delay_s`` from now."""
        if self._like_since(error, now) is None:
            self._alike_since = now
        self._failed_at = now
        self.start_waiting(now)
        self.failures += 1
        self.retry_at = now + delay_s
        self.last_failure = error

    def seconds_like(self, error: KafkaError, now: float) -> float:
        """Seconds since the first of the failures in a row, up to the last one, that are like ``error``. An
        outage before them does not count: the brokers that come back may lag behind. Nor does a long time in
        which nothing was asked.
        """
        since = self._like_since(error, now)
        return 0.0 if since is None else now - since

    def _like_since(self, error: KafkaError, now: float) -> float | None:
        is_like = self.failures > 0 and _kind(self.last_failure) == _kind(error)
        is_soon = now - max(self._failed_at, self.retry_at) < retry_policy.KNOWN_TOPIC_WAIT_MS / 1000
        return self._alike_since if is_like and is_soon else None

    def pace(self, until: float) -> None:
        """Nothing is wrong, but a request before ``until`` would be pointless."""
        self.retry_at = until

    def receive(self, now: float) -> None:
        """Records came, and are decoded next."""
        self.failures = 0
        self.stop_waiting(now)

    def deliver(self, *, moved: bool) -> None:
        """The caller gets records, and the position ``moved``."""
        if moved:
            self._waited, self._waiting_since = 0.0, None
            self.at_end_since = self.last_failure = None
        self.failures = 0
        self.refetched = False

    def pass_over(self) -> None:
        """Other partitions filled the response: this one's turn comes."""
        self.failures = 0
        self.forget_waiting()

    def reach_end(self, now: float, error: KafkaError | None) -> float:
        """The log ends at the position. Return for how many seconds it has: 0 at first, and if ``error`` (an
        open transaction) explains why there will be more.
        """
        self.failures = 0
        if error is not None:
            self.last_failure, self.at_end_since = error, None
            return 0.0
        if self.at_end_since is None:
            self.at_end_since = now
        return now - self.at_end_since

    def refetch(self) -> bool:
        """Corrupt records are to be requested once more; False if they were already."""
        if self.refetched:
            return False
        self.refetched = True
        return True

    def reset(self) -> None:
        """Forget failures and waiting."""
        self.last_failure = self.at_end_since = None
        self.failures, self.refetched = 0, False
        self.forget_waiting()


class PartitionState:
    """One partition in a fetch: its parts, and the transitions that concern several of them."""

    __slots__ = (
        "_bytes_per_offset",
        "_other_ids",
        "broker",
        "error",
        "in_flight",
        "max_bytes",
        "paused",
        "position",
        "progress",
        "topic_id",
        "topic_partition",
        "turn",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        offset: int,
        until_offset: int,
        max_bytes: int,
        topic_id: UUID | None = None,
        leader_epoch: int = -1,
    ) -> None:
        self.topic_partition = topic_partition
        self.position = FetchPosition(topic_partition, offset, until_offset, leader_epoch)
        self.broker = PartitionBroker()
        self.progress = FetchProgress()
        self.topic_id = topic_id
        """The id that the offsets belong to; None until one is known."""
        self.error: KafkaError | None = None
        """The error that ended fetching, until `seek`."""
        self.paused = False
        self.in_flight = False
        self.turn = 0
        """When it was served last: partitions that have waited longest come first in a request."""
        self.max_bytes = max_bytes
        self._bytes_per_offset: float | None = None
        self._other_ids = 0

    def __repr__(self) -> str:
        return f"<PartitionState of {self.topic_partition} at {self.position.offset}>"

    @property
    def open(self) -> bool:
        """True if something is left to request."""
        position = self.position
        return position.fetch_offset < position.until_offset and not self.paused and self.error is None

    @property
    def where(self) -> str:
        """Partition and offset, for messages."""
        return f"{self.topic_partition} at offset {self.position.offset}"

    def wanted_bytes(self) -> int:
        """How much to request: no more than the rest of the range probably takes."""
        if self._bytes_per_offset is None or self.position.endless:
            return self.max_bytes
        left = int((self.position.until_offset - self.position.fetch_offset) * self._bytes_per_offset * 1.1)
        return min(self.max_bytes, left + MIN_FETCH_BYTES)

    # Transitions, in the order of a round: requested, answered, received, at the end, failed.

    def requested(self, now: float) -> None:
        """It is part of a request that was sent."""
        self.in_flight = True
        self.progress.start_waiting(now)

    def answered(self) -> None:
        """The request that it was part of has ended, with a response or without."""
        self.in_flight = False

    def hold(self, now: float) -> None:
        """It cannot be requested now, through no fault of the broker: time stops counting."""
        self.progress.stop_waiting(now)
        self.broker.expire_replica(now)

    def receive(self, end: RecordSetEnd, size: int, turn: int, now: float) -> None:
        """``size`` bytes of records came; the next request starts at their ``end``."""
        self._bytes_per_offset = size / (end.next_offset - self.position.offset)
        self.turn = turn
        self.position.receive(end)
        self.broker.served(now)
        self.progress.receive(now)

    def grow(self, limit: int) -> bool:
        """Request twice as much, first in line; False if that exceeds ``limit``."""
        if self.max_bytes >= limit:
            return False
        self.max_bytes = min(self.max_bytes * 2, limit)
        self._bytes_per_offset, self.turn = None, 0
        return True

    def learn_topic_id(self) -> None:
        """A response came: the offsets belong to the topic id of the leader, unless another is known."""
        if self.topic_id is None and self.broker.leader is not None:
            self.topic_id = self.broker.leader.topic_id

    def reach_end(self, now: float, error: KafkaError | None) -> float:
        """The log ends at the position. See `FetchProgress.reach_end`; without an end this is no failure."""
        if self.position.endless:
            self.progress.pass_over()
            return 0.0
        return self.progress.reach_end(now, error)

    def prefer(self, replica: int, until: float) -> None:
        """The leader names a follower to fetch from."""
        self.broker.prefer(replica, until)
        self.position.rewind()

    def leave_replica(self, now: float, max_s: float) -> None:
        """The follower cannot serve the partition: ask the leader."""
        self.broker.leave_replica(now, max_s)
        self.position.rewind()

    def stall(self, error: KafkaError, now: float, delay_s: float) -> None:
        """A useless answer: ask the same broker again, a little later."""
        self.progress.fail(error, now, delay_s)
        self.position.rewind()

    def led_by(self, leader: Leader, now: float) -> None:
        """Ask ``leader`` from now on. A new one may lag behind at first, as the last one did in its time."""
        if leader.leader_epoch > self.broker.newest_epoch(leader.topic_id):
            self.progress.at_end_since = None
        self.broker.led_by(leader, now)

    def move_to(self, leader: Leader, now: float) -> None:
        """Ask another leader, while the former one still answers."""
        self.led_by(leader, now)
        self.broker.replica = None
        self.position.recall_epoch()

    @property
    def existed(self) -> bool:
        """True if the partition has been seen here, or where its offsets come from."""
        return self.topic_id is not None or self.broker.was_led

    def other_ids(self, topic_id: UUID | None) -> int:
        """The number of answers in a row, with this one, that give another id of the topic than that of the
        offsets. Lost answers, and those of brokers that do not know the topic, are none of them.
        """
        is_other = None not in (self.topic_id, topic_id) and topic_id != self.topic_id
        self._other_ids = self._other_ids + 1 if is_other else 0
        return self._other_ids

    def refuse_leader(self, leader: Leader, now: float) -> KafkaError | None:
        """An error if records of a later leader than this one were read, as a broker that lags behind may
        name a former one; not if it is the only one that is named for long.
        """
        known = max(self.position.last_fetched_epoch, self.broker.newest_epoch(leader.topic_id))
        is_same = leader.topic_id is not None and self.topic_id in (None, leader.topic_id)
        if not is_same or not 0 <= leader.leader_epoch < known:
            return None
        where = f"fetching {self.where}: broker {leader.node_id} has led it in epoch {leader.leader_epoch}"
        said = f"records of epoch {known} are known"
        error = _FormerLeaderError(ErrorCode.LEADER_NOT_AVAILABLE, where, said)
        is_for_long = self.progress.seconds_like(error, now) > retry_policy.KNOWN_TOPIC_WAIT_MS / 1000
        return None if is_for_long else error

    def lose_leader(self, error: KafkaError, now: float, delay_s: float) -> None:
        """Look up which broker to ask, a little later."""
        if isinstance(error, BrokerError) and _kind(error) not in (GONE, OtherTopicError):
            self._other_ids = 0
        self.progress.fail(error, now, delay_s)
        self.broker.lose_leader()
        self.position.rewind()

    def find_corrupt(self, error: KafkaError, now: float, max_s: float) -> None:
        """The records that came are corrupt: request them once more, from the leader, as the bytes may have
        been damaged on the way.
        """
        if not self.progress.refetch():
            self.break_off(error)
            return
        if self.broker.replica is not None:
            self.broker.leave_replica(now, max_s)
        self.position.rewind()

    def break_off(self, error: KafkaError) -> None:
        """Nothing more can be read from it, unless the caller seeks elsewhere."""
        self.error = error
        self.position.rewind()

    def explain(self, error: KafkaError, better: KafkaError) -> None:
        """Replace ``error`` by one that says more, unless the partition was moved meanwhile."""
        if self.error is error:
            self.error = better

    # Requests of the caller.

    def seek(self, offset: int, until_offset: int, leader_epoch: int = -1) -> None:
        """Continue from ``offset``, as `FetchPosition.seek`."""
        self.try_again()
        self.position.seek(offset, until_offset, leader_epoch)

    def try_again(self) -> None:
        """Continue at the same position after an error; the epoch of the log before it stays known."""
        self.error = None
        self._other_ids = 0
        self.progress.reset()

    def pause(self, now: float) -> None:
        """Request nothing until `resume`; records that were received and not handed out are dropped."""
        self.paused = True
        self.hold(now)
        self.position.invalidate()
        if isinstance(self.error, LogTruncatedError) and self.position.offset <= self.error.end_offset:
            self.error = None  # it was about the dropped records

    def resume(self) -> None:
        """Continue where the caller is."""
        self.paused = False
        # A response to a request from before the pause may have failed during it.
        self.progress.forget_waiting()


def probes_first(states: list[PartitionState], now: float) -> list[PartitionState]:
    """The ``states`` that one request may contain: the probes if there are any; the others have to wait."""
    probes = [state for state in states if state.position.probe_until is not None]
    if not probes:
        return states
    for state in states:
        if state.position.probe_until is None:
            state.hold(now)
    return probes
