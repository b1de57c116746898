"""Producer ids, epochs and sequence numbers (KIP-98, KIP-360): how brokers tell a retry from new records.

The sender's thread owns all of it. A partition's state is kept under (topic id, partition) for the
producer's whole life: a client that forgets it while a restarting broker denies the topic starts again at
0, and the broker drops its new records as duplicates of the old ones, with success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import numpy as np

from ..records.batch import HEADER
from ..records.encode import set_producer
from .batch import Batch

MOST_SEQUENCE = 2**31 - 1
MOST_EPOCH = 2**15 - 2
"""Java's last usable epoch is Short.MAX_VALUE - 1; beyond it a new producer id is asked for."""


class ProducerIdentity(NamedTuple):
    """What InitProducerId answered, with an epoch that this client may have raised since."""

    producer_id: int
    producer_epoch: int


def advance(sequence: int, records: int) -> int:
    """The sequence number ``records`` after ``sequence``; behind 2**31 - 1 comes 0."""
    return (sequence + records) & MOST_SEQUENCE


@dataclass
class PartitionSequence:
    """Where one partition's numbering is."""

    identity: ProducerIdentity
    next_sequence: int = 0
    confirmed: bool = False
    """Whether the broker confirmed a batch of this identity. Until then one batch at a time is in flight:
    a broker without any state of a producer accepts whatever sequence comes first, a second batch before a
    failed first too."""
    gap: bool = False
    """A batch with sequence numbers was given up: the ones behind it may be refused as out of order."""
    gap_after: tuple[int, ...] = ()
    """The place of the last one given up: a confirmed one from there on closes the gap."""


class Idempotence:
    """The numbering of one producer."""

    def __init__(self) -> None:
        self.identity: ProducerIdentity | None = None
        """None until InitProducerId was answered, and again once the epochs are used up."""
        self._sequences: dict[tuple[str, UUID | None, int], PartitionSequence] = {}
        self._partition_ids: dict[tuple[str, int], UUID | None] = {}

    def sequence(self, topic: str, topic_id: UUID | None, partition: int) -> PartitionSequence | None:
        """The numbering of a partition; None while there is no producer id.

        A partition whose topic id is new starts at 0 under a raised epoch: the broker of the recreated
        topic may have seen numbers of the old one.
        """
        if self.identity is None:
            return None
        key = (topic, topic_id, partition)
        found = self._sequences.get(key)
        if found is None:
            recreated = (topic, partition) in self._partition_ids and self._partition_ids[
                topic, partition
            ] != topic_id
            if recreated and not self._raise_epoch():
                return None
            found = self._sequences[key] = PartitionSequence(self.identity)
            self._partition_ids[topic, partition] = topic_id
        return found

    def number(self, batch: Batch, sequence: PartitionSequence) -> None:
        """Give ``batch`` its identity and sequence numbers, once: from now on its bytes never change."""
        batch.identity = sequence.identity
        batch.base_sequence = sequence.next_sequence
        sequence.next_sequence = advance(sequence.next_sequence, batch.records)
        set_producer(memoryview(batch.data), *batch.identity, batch.base_sequence)

    def restart(self, sequence: PartitionSequence) -> bool:
        """Number a partition from 0 again under a new epoch; False when a new producer id must be asked
        for first.

        Only for a partition with nothing in flight whose queued batches are known not to be in the log.
        """
        if not self._raise_epoch():
            return False
        assert self.identity is not None
        sequence.identity = self.identity
        sequence.next_sequence = 0
        sequence.confirmed = False
        sequence.gap = False
        sequence.gap_after = ()
        return True

    def _raise_epoch(self) -> bool:
        if self.identity is None:
            return False
        if self.identity.producer_epoch >= MOST_EPOCH:
            self.identity = None
            return False
        self.identity = ProducerIdentity(self.identity.producer_id, self.identity.producer_epoch + 1)
        return True


def read_numbering(data: bytes | bytearray | memoryview) -> tuple[ProducerIdentity | None, int]:
    """Who produced an encoded batch and its base sequence; None and -1 where it carries no numbers."""
    header = np.frombuffer(data, HEADER, 1)[0]
    if header["producer_id"] < 0:
        return None, -1
    identity = ProducerIdentity(int(header["producer_id"]), int(header["producer_epoch"]))
    return identity, int(header["base_sequence"])


def clear_numbering(data: bytearray | memoryview) -> None:
    """Make an encoded batch one of a producer without idempotence."""
    set_producer(data, -1, -1, -1)
