"""`ProducerId`: the id and epoch by which brokers know this producer (KIP-98), and who may raise the epoch
(KIP-360).

No I/O: InitProducerId is asked elsewhere. The sender's thread owns it.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_EPOCH = 2**15 - 2
"""Java's last usable epoch is Short.MAX_VALUE - 1; beyond it a new producer id is asked for."""


class ProducerIdentity(NamedTuple):
    """What InitProducerId answered, with an epoch that this client may have raised since."""

    producer_id: int
    producer_epoch: int


class ProducerId:
    """The identity of one producer, shared by all of its partitions."""

    def __init__(self, transactional_id: str | None = None) -> None:
        self.transactional_id = transactional_id
        self.current: ProducerIdentity | None = None
        """None until InitProducerId was answered, and again once the epochs are used up."""

    @property
    def may_bump_epoch(self) -> bool:
        """Whether this client may raise its epoch by itself.

        The epoch of a transactional producer is its coordinator's: raised in the middle of a transaction, it
        would leave out of the commit what was written before (librdkafka 1.8.2 lost records so).
        """
        return self.transactional_id is None

    def received(self, identity: ProducerIdentity) -> None:
        """InitProducerId was answered."""
        self.current = identity

    def bump_epoch(self) -> ProducerIdentity | None:
        """The identity under an epoch that no broker has seen; None where InitProducerId has to bring one."""
        if self.current is None or not self.may_bump_epoch:
            return None
        if self.current.producer_epoch >= MAX_EPOCH:
            self.current = None
            return None
        self.current = self.current._replace(producer_epoch=self.current.producer_epoch + 1)
        return self.current
