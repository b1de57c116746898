"""Idempotence: the producer's id and epoch (`ProducerId`), and the sequence numbers of each partition
(`PartitionSequence`), by which brokers tell a retry from new records (KIP-98, KIP-360).

No I/O: InitProducerId is asked elsewhere. The sender's thread owns all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from ...records.batch import HEADER
from ...records.encode import set_producer
from ..accumulating.batch import Batch, ProducerIdentity

MAX_EPOCH = 2**15 - 2
"""Java's last usable epoch is Short.MAX_VALUE - 1; beyond it a new producer id is asked for."""
MAX_SEQUENCE = 2**31 - 1


class ProducerId:
    """The identity of one producer, shared by all of its partitions."""

    def __init__(self, transactional_id: str | None = None) -> None:
        self.transactional_id = transactional_id
        self.current: ProducerIdentity | None = None
        """None until InitProducerId was answered, and again once the epochs are used up."""

    @property
    def may_bump_epoch(self) -> bool:
        """True if this client may raise its epoch by itself.

        The epoch of a transactional producer is its coordinator's: raised in the middle of a transaction, it
        would leave out of the commit the records written before (librdkafka 1.8.2 lost records so).
        """
        return self.transactional_id is None

    def received(self, identity: ProducerIdentity) -> None:
        """InitProducerId was answered."""
        self.current = identity

    def give_up(self) -> None:
        """InitProducerId has to bring another producer id. Batches with numbers of this one keep them."""
        self.current = None

    def bump_epoch(self) -> ProducerIdentity | None:
        """The identity under an epoch that no broker has seen; None where InitProducerId has to bring one."""
        if self.current is None or not self.may_bump_epoch:
            return None
        if self.current.producer_epoch >= MAX_EPOCH:
            self.give_up()
            return None
        self.current = self.current._replace(producer_epoch=self.current.producer_epoch + 1)
        return self.current


def advance(sequence: int, records: int) -> int:
    """The sequence number ``records`` after ``sequence``; after 2**31 - 1 comes 0."""
    return (sequence + records) & MAX_SEQUENCE


FORGOTTEN_AFTER_S = 300.0
"""A broker that has heard nothing of a producer for this time may have forgotten it. Much less than its
``producer.id.expiration.ms`` (a day): to be careful costs one round trip."""


class PartitionSequence:
    """The numbering of one partition (of one topic id)."""

    def __init__(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self.next_sequence = 0
        self.confirmed = False
        """True once the broker has confirmed a batch of this identity, and not long ago (`rest`). Until then
        one batch at a time is in flight: a broker without any state of a producer accepts any sequence as the
        first one, a second batch before a failed first too."""
        self._confirmed_at = 0.0
        self.gap = False
        """A numbered batch was given up: the ones behind it may be refused as out of order."""
        self._gap_after: tuple[int, ...] = ()
        self._continued = {identity}
        """Under which one that is given up leaves a gap: this one, and in a topic that was created again a
        former one, once the topic has a batch of it."""
        self._reached: tuple[int, ...] = ()
        """The last of the batches that have ended and are, or may be, in the log."""
        self.perhaps_recreated = False
        """Asked by name, a broker denied the topic while others were in flight, or confirmed a batch before
        an earlier one: the topic may have been created again and begun with one from behind, which only
        later metadata would show, if brokers name ids at all. By id a batch can't get into another topic."""

    def number(self, batch: Batch) -> None:
        """Give ``batch`` its identity and sequence numbers, once: from now on its bytes never change."""
        _number(batch, self.identity, self.next_sequence)
        self.next_sequence = advance(self.next_sequence, batch.records)

    def rest(self, now: float) -> None:
        """Nothing is in flight."""
        if now - self._confirmed_at > FORGOTTEN_AFTER_S:
            self.confirmed = False

    def confirm(self, batch: Batch, now: float) -> None:
        """The broker has ``batch``. One from the gap on closes it; one before it says nothing about those
        behind."""
        self._reached = max(self._reached, batch.order)
        identity = batch.sending.identity
        if identity is None or identity.producer_id != self.identity.producer_id:
            return
        self._continued.add(identity)
        if identity == self.identity:
            self.confirmed = True
            self._confirmed_at = now
        if batch.order >= self._gap_after:
            self.gap = False

    def leave_gap(self, batches: Collection[Batch]) -> None:
        """``batches`` were given up; where their numbers go on here, those behind them may not fit."""
        self._reached = max(self._reached, *(one.order for one in batches if one.sending.indefinite), ())
        orders = [batch.order for batch in batches if batch.sending.identity in self._continued]
        if orders:
            self.gap = True
            self._gap_after = max(self._gap_after, *orders)

    def may_have_passed(self, batch: Batch) -> bool:
        """True if a batch from behind ``batch`` is, or may be, in the log: to write this one now would change
        their order."""
        return batch.order < self._reached

    def restart(self, identity: ProducerIdentity) -> None:
        """Start at 0 again under a new epoch.

        Only for a partition with nothing in flight. Waiting batches that may be in the log keep their
        numbers.
        """
        self.identity = identity
        self.next_sequence = 0
        self.confirmed = False
        self.gap = False
        self._gap_after = ()
        self._continued = {identity}


def read_numbers(batch: Batch) -> None:
    """Read the numbers of ``batch`` from its bytes: another producer encoded and numbered it. One of our own
    knows them, and its bytes may be older."""
    sending = batch.sending
    if sending.identity is not None:
        _number(batch, sending.identity, sending.base_sequence)
        return
    header = np.frombuffer(batch.data, HEADER, 1)[0]
    if header["producer_id"] >= 0:
        sending.identity = ProducerIdentity(int(header["producer_id"]), int(header["producer_epoch"]))
        sending.base_sequence = int(header["base_sequence"])


def forget_numbers(batch: Batch) -> None:
    """``batch`` will be numbered anew."""
    batch.sending.identity = None


def clear_numbers(batch: Batch) -> None:
    """Make ``batch`` one of a producer without idempotence."""
    set_producer(memoryview(batch.data), -1, -1, -1)
    batch.sending.identity = None


def share_numbers(batch: Batch, halves: Iterable[Batch]) -> None:
    """Give ``halves`` the numbers of ``batch``, so that those of later batches stay right."""
    identity, sequence = batch.sending.identity, batch.sending.base_sequence
    if identity is None:
        return
    for half in halves:
        _number(half, identity, sequence)
        sequence = advance(sequence, half.records)


def _number(batch: Batch, identity: ProducerIdentity, base_sequence: int) -> None:
    batch.sending.identity, batch.sending.base_sequence = identity, base_sequence
    set_producer(memoryview(batch.data), *identity, base_sequence)
