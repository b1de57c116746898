"""FindCoordinator: the broker that coordinates a group or a transactional id."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from ...error_code import ErrorCode
from ...errors import UnsupportedVersionError
from ..message import Request, Response, Struct, field
from ..wire import Error, Int8, Int32, String

GROUP_KEY_TYPE = 0
TRANSACTION_KEY_TYPE = 1

_MANY_SINCE = 4  # KIP-699


class Coordinator(Struct):
    """The coordinator of one key."""

    key: String
    node_id: Int32
    host: String
    port: Int32
    error_code: Error
    error_message: String | None = field(nullable=4, ignorable=True)


class FindCoordinatorResponse(Response):
    """Read ``coordinators``: through `upgraded` it is filled at every version."""

    throttle_time_ms: Int32 = field(since=1, ignorable=True, default=0)
    error_code: Error = field(until=3, default=ErrorCode.NONE)
    error_message: String | None = field(since=1, until=3, nullable=1, ignorable=True, default="")
    node_id: Int32 = field(until=3, default=0)
    host: String = field(until=3, default="")
    port: Int32 = field(until=3, default=0)
    coordinators: list[Coordinator] = field(since=_MANY_SINCE, default_factory=list)

    def upgraded(self, version: int, request: Any) -> Self:
        """Return the single coordinator of an old version as a list of one."""
        if version >= _MANY_SINCE:
            return self
        found = Coordinator(
            key=request.coordinator_keys[0] if request.coordinator_keys else request.key,
            node_id=self.node_id,
            host=self.host,
            port=self.port,
            error_code=self.error_code,
            error_message=self.error_message,
        )
        return dataclasses.replace(self, coordinators=[found])


class FindCoordinatorRequest(Request[FindCoordinatorResponse], api_key=10, versions=(0, 6), flexible=3):
    """Fill ``coordinator_keys``; before version 4 it can hold only one."""

    key: String = field(until=3, default="")
    key_type: Int8 = field(since=1, default=GROUP_KEY_TYPE)
    coordinator_keys: list[String] = field(since=_MANY_SINCE, default_factory=list)

    def downgraded(self, version: int) -> Self:
        """Move the only key to the field that old versions have."""
        if version >= _MANY_SINCE or not self.coordinator_keys:
            return self
        if len(self.coordinator_keys) > 1:
            raise UnsupportedVersionError(
                f"FindCoordinator v{version} finds one coordinator, not {len(self.coordinator_keys)}: "
                f"it needs version {_MANY_SINCE} or later, or one request for each key"
            )
        return dataclasses.replace(self, key=self.coordinator_keys[0], coordinator_keys=[])
