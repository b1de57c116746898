"""`BrokerConnection`: a connection to a broker and the produce requests in flight on it, as the sender sees
it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ...network.connection import Connection
from .produce_request import InFlightRequest


class ConnectionKey(NamedTuple):
    """Which connection to which broker: a partition always takes the same one, so that nothing overtakes."""

    node_id: int
    number: int


class BrokerConnection:
    """The sender's thread owns it. The connection may be replaced; what is in flight goes with it."""

    def __init__(self, node_id: int, number: int = 0) -> None:
        self.node_id = node_id
        self.number = number
        self.connection: Connection | None = None
        self.connecting = False
        self.not_before = 0.0
        self.failures = 0
        self.in_flight: deque[InFlightRequest] = deque()
        self.last_answer_at = 0.0

    def has_room(self, max_in_flight: int) -> bool:
        """Whether one more request may be sent while fewer than ``max_in_flight`` are unanswered.

        Not while one waits for room in the socket: a broker that does not read holds up its own records only,
        and one request at most is kept for it.
        """
        return (
            len(self.in_flight) < max_in_flight
            and self.connection is not None
            and not self.connection.has_unwritten
        )
