"""`Coordinators`: which broker coordinates which group or transactional id, as far as a router knows.

Coordinators move as leaders do: with the partition of the internal topic that a key belongs to.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError, NetworkError
from ..protocol.api.find_coordinator import GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE

_MOVED = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,  # `Router.connection`'s word for a broker that is not in the metadata
    )
)


class CoordinatorKey(NamedTuple):
    """What has a coordinator; prints as in ``group orders-reader``."""

    key_type: int
    name: str

    @classmethod
    def group(cls, group_id: str) -> Self:
        """A consumer group."""
        return cls(GROUP_KEY_TYPE, group_id)

    @classmethod
    def transaction(cls, transactional_id: str) -> Self:
        """A transactional producer."""
        return cls(TRANSACTION_KEY_TYPE, transactional_id)

    def __str__(self) -> str:
        return f"{'group' if self.key_type == GROUP_KEY_TYPE else 'transactional id'} {self.name}"


class Coordinators:
    """The coordinators that a router knows, by node id. Any thread may use it."""

    def __init__(self) -> None:
        self._known: dict[CoordinatorKey, int] = {}

    def get(self, key: CoordinatorKey) -> int | None:
        """The node id; None while it is not known."""
        return self._known.get(key)

    def note(self, key: CoordinatorKey, node_id: int) -> None:
        """A broker has named ``node_id``."""
        self._known[key] = node_id

    def learn(self, key: CoordinatorKey, error: KafkaError) -> None:
        """Forget the coordinator of ``key`` if ``error`` may mean that it is another one by now."""
        moved = (
            error.error_code in _MOVED if isinstance(error, BrokerError) else isinstance(error, NetworkError)
        )
        if moved:
            self._known.pop(key, None)
