"""`Flight`: a fetch request in flight, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ..errors import KafkaError, ProtocolError
from ..model import TopicPartition
from ..network.pending import Pending
from ..protocol.api.fetch import FetchResponse, PartitionData
from .partition_state import PartitionState


@dataclass(slots=True, kw_only=True, eq=False)
class Flight:
    """A fetch request in flight and what it asked for."""

    pending: Pending[FetchResponse]
    node_id: int
    asked: dict[TopicPartition, tuple[PartitionState, int]]
    """Each partition and the offset that it was asked from."""
    names: dict[UUID, str]
    since: float
    """On the run's clock."""
    sent_at: float
    """In seconds that always count."""


class Taken(NamedTuple):
    """Records of a partition that are to be decoded, unless it was moved meanwhile; none where it was proved
    that there are none up to where the state has taken them.
    """

    state: PartitionState
    data: PartitionData
    moves: int


def told_where(error: KafkaError, flight: Flight) -> KafkaError:
    """A response that can't be read (a frame over the cap, say), with what was asked for."""
    if type(error) is not ProtocolError or not flight.asked:
        return error
    (tp, (_, offset)), *more = flight.asked.items()
    others = f" and {len(more)} more partitions" if more else ""
    told = ProtocolError(f"fetching {tp} at offset {offset}{others} from broker {flight.node_id}: {error}")
    told.__cause__ = error
    return told
