"""`PartitionQueue`: the batches of one partition, their order, and what may be sent next. Sans-IO.

No thread, clock, socket or lock: the sender's thread reports events (`sent`, `answered`, `lost`, `given_up`,
`refreshed` ...) and asks for the next batch (`next`); it acts on the values that these return. Only this
module writes to the state that is kept here, and to a batch's numbers, attempts, last error and whether it
may be in the log.

It lives as long as the producer: a client that forgets a partition's sequence numbers while a restarting
broker denies the topic starts again at 0, and the broker drops its new records as duplicates of the old
ones, with success (librdkafka 1.9.0).
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import assert_never
from uuid import UUID

from ...config.client_config import ClientConfig, ProducerConfig
from ...error_code import UNKNOWN_TOPIC, ErrorCode
from ...errors import BrokerError, KafkaError
from ...model import Acks, TopicPartition
from ...runtime.retry import Backoff
from ..accumulating.batch import Batch, ProducerIdentity
from .idempotence import (
    PartitionSequence,
    ProducerId,
    clear_numbers,
    forget_numbers,
    read_numbers,
    share_numbers,
)
from .transaction import Transaction
from .verdict import (
    EXHAUSTED,
    FATAL,
    GONE,
    REFRESH,
    Delivered,
    Failed,
    Retry,
    Split,
    Verdict,
    is_indefinite,
    judge,
)

TOPIC_PROPAGATION_S = 30.0
"""Java waits as long before it takes a topic that brokers deny for deleted."""


@dataclass(frozen=True, kw_only=True)
class SendingRules:
    """What all partitions of a producer have in common."""

    retries: int
    pipelined: bool
    """True if batches without sequence numbers may follow each other: only where no broker answers, as a
    retry, or the halves of one that was refused for its size, could be overtaken."""
    delay_s: Callable[[int], float]
    """How long to wait after this many failures in a row."""
    topic_propagation_s: float
    """How long a topic that was there may be unknown (a broker may be restarting) before it counts as
    deleted."""
    sets_apart: bool = False
    """True if a single record over a limit does not fail: it is looked for in every batch that is refused
    for its size."""

    @classmethod
    def of(cls, config: ProducerConfig, client: ClientConfig) -> SendingRules:
        """The rules that the configuration sets."""
        backoff = Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms)
        return cls(
            retries=config.retries,
            pipelined=config.acks is Acks.NONE,
            delay_s=lambda failures: backoff.delay_ms(failures) / 1000,
            topic_propagation_s=TOPIC_PROPAGATION_S,
            sets_apart=config.over_limit != "fail",
        )


@dataclass(frozen=True)
class Send:
    """Send this batch, and say so with `PartitionQueue.sent`."""

    batch: Batch
    numbered: bool
    """It has just been numbered."""


@dataclass(frozen=True)
class Load:
    """Read this spilled batch, pass it to `PartitionQueue.loaded`, and ask again."""

    batch: Batch


@dataclass(frozen=True)
class NeedProducerId:
    """Nothing can be numbered before InitProducerId has been answered."""


@dataclass(frozen=True)
class GiveUp:
    """Give up these batches of one partition, in order."""

    batches: list[Batch]
    reason: str
    cause: BaseException | None
    retriable: bool = True
    """Sending their records again may help."""


Step = Send | Load | NeedProducerId | None


class Phase(enum.Enum):
    """What a partition does with its waiting batches."""

    OPEN = "sent, one after the other"
    DRAINING = "not sent before all in flight have come back: one of them is to be sent again first"
    RENUMBERING = "as DRAINING, and then they get new numbers: the broker refuses the ones they have"


class QueueEvent(enum.Enum):
    """What moves a partition from one phase to another."""

    PUT_BACK = "a batch came back and is to be sent again"
    NUMBERS_REFUSED = "a batch came back as its numbers can't be accepted any more"
    DRAINED = "nothing is in flight any more"
    NUMBERED_ANEW = "the numbering was started again"
    SPILLED = "a batch went to the spill folder; what is refused as stale will be refused again"


TRANSITIONS = {
    (Phase.OPEN, QueueEvent.PUT_BACK): Phase.DRAINING,
    (Phase.OPEN, QueueEvent.NUMBERS_REFUSED): Phase.RENUMBERING,
    (Phase.OPEN, QueueEvent.DRAINED): Phase.OPEN,
    (Phase.OPEN, QueueEvent.NUMBERED_ANEW): Phase.OPEN,
    (Phase.OPEN, QueueEvent.SPILLED): Phase.OPEN,
    (Phase.DRAINING, QueueEvent.PUT_BACK): Phase.DRAINING,
    (Phase.DRAINING, QueueEvent.NUMBERS_REFUSED): Phase.RENUMBERING,
    (Phase.DRAINING, QueueEvent.DRAINED): Phase.OPEN,
    (Phase.DRAINING, QueueEvent.SPILLED): Phase.OPEN,
    (Phase.RENUMBERING, QueueEvent.PUT_BACK): Phase.RENUMBERING,
    (Phase.RENUMBERING, QueueEvent.NUMBERS_REFUSED): Phase.RENUMBERING,
    (Phase.RENUMBERING, QueueEvent.DRAINED): Phase.RENUMBERING,
    (Phase.RENUMBERING, QueueEvent.NUMBERED_ANEW): Phase.OPEN,
    (Phase.RENUMBERING, QueueEvent.SPILLED): Phase.OPEN,
}
"""Other transitions can't happen; a KeyError would be a bug, and would end the producer loudly."""


class PartitionQueue:
    """One partition, as the sender's thread sees it. ``producer_id`` is None without idempotence."""

    def __init__(
        self, topic_partition: TopicPartition, rules: SendingRules, producer_id: ProducerId | None
    ) -> None:
        self.topic_partition = topic_partition
        self._rules = rules
        self._producer_id = producer_id
        self._waiting: deque[Batch] = deque()
        self._in_flight: list[Batch] = []
        self._phase = Phase.OPEN
        self._spilling = False
        self._sent_to: int | None = None
        self._not_before = 0.0
        self._failures = 0
        self._unknown_since: float | None = None
        self._sequence: PartitionSequence | None = None
        self._refused: tuple[int, ...] = ()
        """The order of the last batch that a broker refused for its numbers: it is not in the log."""
        self._topic_id: UUID | None = None
        """Of the topic that `_sequence` is about."""

    # What it looks like.

    @property
    def waiting(self) -> Sequence[Batch]:
        """Batches to be sent, in order."""
        return self._waiting

    @property
    def in_flight(self) -> Sequence[Batch]:
        """Batches that were sent and have not come back, in the order of sending."""
        return self._in_flight

    @property
    def spilling(self) -> bool:
        """True if an earlier batch is in the spill folder: later batches must not overtake it.

        What waits then stands before all that was spilled later: batches that were in flight without numbers,
        and those of the folder that are sent again. Each goes alone.
        """
        return self._spilling

    @property
    def idle(self) -> bool:
        """True if there is nothing to send and nothing to wait for."""
        return not self._waiting and not self._in_flight

    def unended(self, but: Collection[Batch] = ()) -> list[Batch]:
        """The batches that have not ended, in order, except ``but``."""
        left = {*self._in_flight, *self._waiting} - set(but)
        return sorted((batch for batch in left if not batch.ended), key=lambda batch: batch.order)

    def spillable(self, but: Collection[Batch]) -> list[Batch]:
        """What goes to the spill folder together with ``but``, in order.

        One that is in flight may be in the log by now; it keeps its numbers, by which the broker recognises
        it when it is replayed. Without numbers nothing would: that one's answer is waited for.
        """
        unnumbered = self.in_flight_unnumbered
        return [batch for batch in self.unended(but) if batch not in unnumbered]

    @property
    def in_flight_unnumbered(self) -> set[Batch]:
        """Those in flight that no broker would recognise if they were sent again. Batches behind them are not
        given up before they have come back: in the spill folder they would stand before them."""
        return {batch for batch in self._in_flight if batch.sending.identity is None}

    def ready_at(self) -> float | None:
        """Monotonic seconds when the next batch may be sent; None if nothing waits or answers come first."""
        if not self._waiting or (self._in_flight and (self._spilling or self._phase is not Phase.OPEN)):
            return None
        return self._not_before

    # What the sender asks for.

    def add(self, batch: Batch) -> None:
        """A new batch, behind all others."""
        if self.idle:
            self._unknown_since = None  # how long the topic was denied to others says nothing of now
        self._waiting.append(batch)

    def next(self, now: float, leader: int, topic_id: UUID | None) -> Step:
        """What to do next, so that ``leader`` gets the next batch; None while nothing may be sent to it.

        A new leader gets nothing before all that its predecessor was sent has come back.
        """
        at = self.ready_at()
        if at is None or at > now or (self._in_flight and self._sent_to != leader):
            return None
        batch = self._waiting[0]
        if self._producer_id is None:
            if self._in_flight and not self._may_follow_unnumbered(batch):
                return None
            return Load(batch) if _not_read(batch) else self._send_unnumbered(batch)
        sequence = self._find_sequence(self._producer_id, topic_id)
        if not isinstance(sequence, PartitionSequence):
            return sequence
        if not self._in_flight:
            sequence.rest(now)
        elif not self._may_follow(batch, sequence):
            return None
        return Load(batch) if _not_read(batch) else self._send_numbered(batch, sequence, self._producer_id)

    def loaded(self, batch: Batch, data: bytes | bytearray | memoryview) -> None:
        """The bytes of a spilled batch, with the numbers that it had: if it is in the log after all, the
        broker will recognise it.
        """
        assert batch.spilled is not None
        batch.data = memoryview(data)
        if batch.spilled.possibly_persisted:
            batch.sending.note_unheard()
        if batch.sending.attempts == 0:
            read_numbers(batch)

    def unreadable(self, now: float) -> None:
        """The first batch can't be read from the spill folder, and will be given up."""
        self._begin_turn(now, place=1)

    def sent(self, batch: Batch, leader: int) -> None:
        """``batch``, the first one, is on its way to ``leader``."""
        if self._waiting[0] is not batch:
            raise AssertionError(f"{batch} was sent out of its turn")
        self._in_flight.append(batch)
        self._waiting.popleft()
        self._sent_to = leader
        batch.sending.attempts += 1

    def not_sent(self, batch: Batch) -> None:
        """Not a byte of ``batch`` was written after all: it is as if it had never been tried."""
        batch.sending.attempts -= 1
        self._came_back(batch)
        self._waiting.appendleft(batch)

    # What the sender reports.

    def written(self, batch: Batch, now: float) -> None:
        """With acks=0: ``batch`` was written; no more will be heard of it."""
        self._came_back(batch)
        self._begin_turn(now)

    def answered(
        self, batch: Batch, code: ErrorCode, cause: BrokerError, now: float, *, by_id: bool = False
    ) -> Verdict | None:
        """A broker answered ``code`` for ``batch`` of a request that named the topic ``by_id``, or by its
        name. Returns what that means, for the caller to act upon; None where nothing is to be done, as the
        batch was given up while it was under way."""
        head_of_line = self._is_head(batch)
        verdict = judge(
            code,
            records=batch.records,
            head_of_line=head_of_line,
            gap=self._sequence is not None and self._has_gap(self._sequence, batch),
            indefinite=batch.sending.indefinite,
            numbered=batch.sending.identity is not None,
            foreign=batch.spilled is not None,
            transactional=self._transactional,
            sets_apart=self._rules.sets_apart,
        )
        self._came_back(batch)
        self._begin_turn(now)
        if isinstance(verdict, Delivered):
            self._confirm(batch, now, head_of_line, by_id)
            return verdict
        self._note_refusal(batch, code, cause, by_id)
        if batch.ended:
            return None
        match verdict:
            case Retry(renumber=True) if not self._may_renumber(batch):
                self._put_back(batch, None)
                return FATAL
            case Retry(renumber=True):
                self._refused = batch.order
                self._put_back(batch, QueueEvent.NUMBERS_REFUSED)
            case Retry():
                return self._try_again(batch, code, now) or verdict
            case Split():
                self._put_back(batch, QueueEvent.PUT_BACK)
            case Failed():
                self._put_back(batch, None)  # its caller gives it up
            case _:
                assert_never(verdict)
        return verdict

    def lost(self, batch: Batch, cause: KafkaError, now: float) -> Retry | Failed | None:
        """No answer for ``batch`` will come, and it may be in the log: send the same bytes again."""
        self._came_back(batch)
        self._begin_turn(now)
        batch.sending.note_unheard()
        batch.sending.last_error = cause
        if batch.ended:
            return None
        return self._try_again(batch, None, now) or REFRESH

    def given_up(self, batches: Collection[Batch]) -> None:
        """``batches`` end undelivered. Those in flight may be in the log; their answers still count."""
        gone, waiting = set(batches), set(self._waiting)
        for batch in batches:
            if batch.sending.attempts > 0 and batch not in waiting:
                batch.sending.note_unheard()
        if self._sequence is not None:
            self._sequence.leave_gap(batches)
        self._waiting = deque(batch for batch in self._waiting if batch not in gone)

    def spilled(self) -> None:
        """Some that were given up went to the spill folder."""
        self._move(QueueEvent.SPILLED)
        self._spilling = True

    def resumed(self) -> None:
        """The spilled batches of this partition wait in the queue again, before all others."""
        self._spilling = False

    def take_over(self, batch: Batch, halves: Sequence[Batch]) -> None:
        """``halves`` are to be sent instead of ``batch``, with its numbers. A refusal for the
        size is no failure of theirs: each may be sent again as often as ``retries`` allows."""
        share_numbers(batch, halves)
        for half in halves:
            half.sending.again = batch.sending.again or batch.sending.attempts > 0
            half.sending.indefinite = batch.sending.indefinite
            half.sending.of_indefinite = batch.sending.of_indefinite or batch.sending.unheard

    def replace(self, batch: Batch, halves: Sequence[Batch]) -> None:
        """``halves`` wait in the place of ``batch``."""
        place = self._waiting.index(batch)
        self._waiting.remove(batch)
        for half in reversed(halves):
            self._waiting.insert(place, half)

    def without_leader(self, now: float) -> float:
        """No leader of the partition is known: wait a moment. Returns until when."""
        self._back_off(now)
        return self._not_before

    def denied(self, code: ErrorCode, now: float) -> bool:
        """Metadata or a broker said ``code`` of the topic. True once they have denied it, to those that wait,
        longer than a restarting broker does: it must be gone.
        """
        if code not in UNKNOWN_TOPIC:
            self._unknown_since = None
            return False
        if self._unknown_since is None:
            self._unknown_since = now
        return now - self._unknown_since > self._rules.topic_propagation_s

    def refreshed(self) -> None:
        """New metadata has the topic; it may be out of date if the leader has denied the topic since."""
        first = next((batch.sending.last_error for batch in [*self._in_flight, *self._waiting]), None)
        if not (isinstance(first, BrokerError) and first.error_code in UNKNOWN_TOPIC):
            self._unknown_since = None

    def restart_timeout(self, batch: Batch, now: float) -> None:
        """The delivery timeout of ``batch`` counts from ``now`` on."""
        batch.sending.since = now

    def held_up(self, cause: KafkaError) -> None:
        """Nothing can be sent for now; if the first batch is given up, its error says ``cause``."""
        if self._waiting:
            self._waiting[0].sending.last_error = cause

    # Helpers, in the order in which they are called.

    def _find_sequence(
        self, producer_id: ProducerId, topic_id: UUID | None
    ) -> PartitionSequence | NeedProducerId | None:
        """The numbering of the topic that has this id; None while answers come first.

        A recreated topic starts at 0 under a raised epoch: its broker may have seen numbers of the former
        one. A transaction has one epoch, and writes to one of the two only (`Transaction.may_write`).
        """
        identity = producer_id.current
        if identity is None:
            return NeedProducerId()
        sequence = self._sequence
        if sequence is None:
            self._sequence = sequence = PartitionSequence(identity)
        elif self._is_another(sequence, identity, topic_id):
            if self._in_flight:
                return None
            started = identity if self._transactional else producer_id.bump_epoch()
            if started is None:
                return NeedProducerId()
            self._forget_former_numbers(sequence)
            sequence.restart(started)
            # What the former topic refused says nothing of where one from behind is.
            sequence.perhaps_recreated = not self._transactional
        self._topic_id = topic_id or self._topic_id
        return sequence

    def _is_another(
        self, sequence: PartitionSequence, identity: ProducerIdentity, topic_id: UUID | None
    ) -> bool:
        """True for another transaction (its coordinator has waited for, or fenced, everything of the last),
        and for a topic that was created again."""
        if self._transactional:
            return sequence.identity != identity
        return None not in (topic_id, self._topic_id) and topic_id != self._topic_id

    def _forget_former_numbers(self, sequence: PartitionSequence) -> None:
        """Waiting batches are numbered anew, but only if it is certain that neither any of them nor one from
        behind them is in a topic that was created again, which takes the first number that comes. By its
        former numbers the broker recognises a batch, or refuses it.
        """
        numbered = [one for one in self._waiting if _has_own_numbers(one)]
        unsure = any(one.sending.indefinite or sequence.may_have_passed(one) for one in numbered)
        if not unsure and not self._transactional:
            for one in numbered:
                forget_numbers(one)

    def _may_follow_unnumbered(self, batch: Batch) -> bool:
        """Not with one from the spill folder: if that is refused, the other would overtake it."""
        from_folder = batch.spilled is not None or self._in_flight[0].spilled is not None
        return self._rules.pipelined and not from_folder

    def _may_follow(self, batch: Batch, sequence: PartitionSequence) -> bool:
        """True if ``batch`` may be sent while others are in flight.

        Not while one is sent again (and while one waits for that, nothing is: see `Phase`): a broker
        remembers the last five batches only, and if new ones got in front of one that it may have, it would
        take that one's next retry for out of order. Not behind a replayed one with the numbers of another
        producer either: if the broker refuses that one, the numbers of these hold it back from nothing.
        """
        first = self._in_flight[0].sending
        again = first.again or first.attempts > 1
        own = all(other.sending.identity == sequence.identity for other in self._in_flight)
        return own and sequence.confirmed and not again and batch.spilled is None

    def _send_unnumbered(self, batch: Batch) -> Send:
        if self._phase is Phase.RENUMBERING:
            clear_numbers(batch)
            self._move(QueueEvent.NUMBERED_ANEW)
        return Send(batch, numbered=False)

    def _send_numbered(self, batch: Batch, sequence: PartitionSequence, producer_id: ProducerId) -> Step:
        if self._starts_anew(batch, sequence):
            if _fences_others(batch, producer_id):
                producer_id.give_up()
            identity = producer_id.bump_epoch()
            if identity is None:
                return NeedProducerId()
            sequence.restart(identity)
            self._move(QueueEvent.NUMBERED_ANEW)
            for other in self._waiting:
                # Another spilled one may be in the log, and has to come with the numbers that it had.
                if other is batch or other.spilled is None:
                    forget_numbers(other)
        numbered = batch.sending.identity is None
        if numbered:
            sequence.number(batch)
        return Send(batch, numbered)

    def _starts_anew(self, batch: Batch, sequence: PartitionSequence) -> bool:
        """True if ``batch`` and those behind it get new numbers."""
        if self._phase is not Phase.RENUMBERING:
            return sequence.gap and self._all_unnumbered()
        if not self._may_be_overtaken(sequence, batch):
            return True
        # Since it was refused, answers have shown that it may be. Refused once more, it ends the producer,
        # and so does the next one if this one is given up.
        self._move(QueueEvent.NUMBERED_ANEW)
        return False

    def _all_unnumbered(self) -> bool:
        return not self._in_flight and all(batch.sending.identity is None for batch in self._waiting)

    def _is_head(self, batch: Batch) -> bool:
        """True if no earlier batch is unconfirmed."""
        return self._in_flight[0] is batch and not (self._waiting and self._waiting[0].order < batch.order)

    def _came_back(self, batch: Batch) -> None:
        self._in_flight.remove(batch)
        if not self._in_flight:
            self._move(QueueEvent.DRAINED)

    def _begin_turn(self, now: float, place: int = 0) -> None:
        """A batch has come back, and if it is not sent again, it is the turn of the next one: the time of one
        from the spill folder begins then, however long it has been in line."""
        if len(self._waiting) > place and self._waiting[place].spilled is not None:
            self.restart_timeout(self._waiting[place], now)

    def _has_gap(self, sequence: PartitionSequence, batch: Batch) -> bool:
        """True if ``batch``, the head of the line, is not in the log where it is out of order, and none from
        behind it is: one before it was given up, or its numbers are those of a former topic.

        A topic that was created again without our knowledge may have begun with one from behind, which new
        numbers would write twice, or overtake for good.
        """
        if batch.sending.of_indefinite:
            return False
        if batch.sending.identity != sequence.identity and not self._may_be_passed(sequence, batch):
            return True
        return sequence.gap and not self._may_be_overtaken(sequence, batch)

    def _may_be_overtaken(self, sequence: PartitionSequence, batch: Batch) -> bool:
        """True if by the answers one from behind ``batch``, which was not read from the spill folder, may be
        in a topic that was created again."""
        is_in_doubt = _has_own_numbers(batch) and sequence.perhaps_recreated
        return is_in_doubt and self._may_be_passed(sequence, batch)

    def _may_be_passed(self, sequence: PartitionSequence, batch: Batch) -> bool:
        """True if one from behind ``batch`` is, or may be, in a log."""
        return sequence.may_have_passed(batch) or any(
            one.sending.indefinite and one.order != self._refused
            for one in self._waiting
            if _has_own_numbers(one)
        )

    def _confirm(self, batch: Batch, now: float, head_of_line: bool, by_id: bool) -> None:
        self._failures = 0
        self._not_before = 0.0
        self._unknown_since = None
        if self._sequence is not None:
            self._sequence.confirm(batch, now)
            if head_of_line or not by_id:
                self._sequence.perhaps_recreated = not head_of_line
        if batch.sending.of_indefinite:
            # If the whole were there, too, this one would have been out of order.
            for one in self._waiting:
                if one.order[0] == batch.order[0]:
                    one.sending.of_indefinite = False

    def _note_refusal(self, batch: Batch, code: ErrorCode, cause: BrokerError, by_id: bool) -> None:
        if is_indefinite(code):
            batch.sending.note_unheard()
        batch.sending.last_error = cause
        # With none in flight, none from behind can begin another topic before this one is sent again.
        denied_others = self._in_flight and code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not by_id
        if self._sequence is not None and denied_others:
            self._sequence.perhaps_recreated = True

    @property
    def _transactional(self) -> bool:
        return self._producer_id is not None and self._producer_id.transactional_id is not None

    def _may_renumber(self, batch: Batch) -> bool:
        if self._producer_id is None or self._sequence is None:
            return True
        return self._producer_id.may_bump_epoch and not self._may_be_overtaken(self._sequence, batch)

    def _try_again(self, batch: Batch, code: ErrorCode | None, now: float) -> Failed | None:
        """Put ``batch`` back to be sent again; returns why that is pointless, if it is."""
        if batch.sending.attempts > self._rules.retries:
            self._put_back(batch, None)
            return EXHAUSTED
        if code is not None and self.denied(code, now):
            self._put_back(batch, None)
            return GONE
        self._put_back(batch, QueueEvent.PUT_BACK)
        if self._waiting[0] is batch:  # those behind it only come back because of it
            self._back_off(now)
        return None

    def _put_back(self, batch: Batch, event: QueueEvent | None) -> None:
        """``batch`` goes to its old place."""
        place = 0
        while place < len(self._waiting) and self._waiting[place].order < batch.order:
            place += 1
        self._waiting.insert(place, batch)
        if event is not None:
            self._move(event)
            if not self._in_flight:
                self._move(QueueEvent.DRAINED)

    def _back_off(self, now: float) -> None:
        self._not_before = now + self._rules.delay_s(self._failures)
        self._failures += 1

    def _move(self, event: QueueEvent) -> None:
        self._phase = TRANSITIONS[self._phase, event]


def _not_read(batch: Batch) -> bool:
    return batch.spilled is not None and not batch.data


def _fences_others(batch: Batch, producer_id: ProducerId) -> bool:
    """True if a raised epoch would fence the numbers of batches that are in the log, behind the one that
    ``batch`` is a half of, and come from the spill folder, too: the broker could not recognise them."""
    former, current = batch.sending.identity, producer_id.current
    if former is None or current is None:
        return False
    return batch.sending.of_indefinite and former.producer_id == current.producer_id


def _has_own_numbers(batch: Batch) -> bool:
    return batch.spilled is None and batch.sending.identity is not None


class PartitionQueues:
    """The queues of all partitions of one producer. The sender's thread owns them."""

    def __init__(
        self, rules: SendingRules, producer_id: ProducerId | None, transaction: Transaction | None = None
    ) -> None:
        self.producer_id = producer_id
        """Without idempotence None."""
        self._rules = rules
        self._transaction = transaction
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: dict[PartitionQueue, None] = {}

    @property
    def active(self) -> Collection[PartitionQueue]:
        """Those with batches waiting or in flight, in the order in which they got some. Another thread copies
        it, which is one step."""
        return self._active.keys()

    def of(self, topic_partition: TopicPartition) -> PartitionQueue:
        """The queue of a partition; made when it is first asked for, and kept for the producer's life."""
        found = self._queues.get(topic_partition)
        if found is None:
            found = PartitionQueue(topic_partition, self._rules, self.producer_id)
            self._queues[topic_partition] = found
        return found

    def find(self, topic_partition: TopicPartition) -> PartitionQueue | None:
        """The queue of a partition that was sent to before."""
        return self._queues.get(topic_partition)

    def add(self, batch: Batch) -> PartitionQueue:
        """A new batch, behind all others of its partition; returns that one's queue."""
        queue = self.of(batch.topic_partition)
        queue.add(batch)
        self._active[queue] = None
        return queue

    def may_write(self, topic: str, topic_id: UUID | None) -> bool:
        """False if the transaction has just failed, as it can't go on in the topic that has this id."""
        return self._transaction is None or self._transaction.may_write(topic, topic_id)

    def retire_idle(self) -> None:
        """Those that have nothing to send and nothing to wait for are not active any more."""
        for queue in [queue for queue in self._active if queue.idle]:
            del self._active[queue]

    def due(self, now: float) -> tuple[list[PartitionQueue], float]:
        """The queues with a first batch that may be sent now, and the time at which that of the next may be.

        In a transaction only its own partitions: those that have to be added to it first are noted there.
        """
        due: list[PartitionQueue] = []
        next_at = math.inf
        for queue in self._active:
            at = queue.ready_at()
            if at is None:
                continue
            if at > now:
                next_at = min(next_at, at)
            elif self._transaction is None or self._transaction.admits(queue.topic_partition):
                due.append(queue)
        return due, next_at

    def held_up(self, cause: KafkaError, topics: Collection[str] | None = None) -> None:
        """Nothing can be sent for now (to these ``topics``): a batch that is given up says ``cause``."""
        for queue in self._active:
            if topics is None or queue.topic_partition.topic in topics:
                queue.held_up(cause)
