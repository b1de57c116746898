"""`ClassicGroup`: a consumer group of the classic protocol, as its coordinator keeps it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from ...kafka.error_code import ErrorCode

EMPTY: Final = "Empty"
PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
STABLE: Final = "Stable"
_LOOK_EVERY_S: Final = 0.05
"""How soon a waiting request notices that a member's session is over."""

Fields = dict[str, Any]


@dataclass
class Member:
    """A member; ``waits`` while its JoinGroup waits for the others."""

    instance_id: str | None
    session_s: float
    rebalance_s: float
    heard: float
    protocols: dict[str, bytes] = field(default_factory=dict)
    waits: bool = False
    assignment: bytes = b""


class ClassicGroup:
    """Members, generation and committed offsets. All methods are called with the cluster's lock held."""

    def __init__(self, changed: threading.Condition, now: Callable[[], float] = time.monotonic) -> None:
        self._changed, self._now = changed, now
        self.members: dict[str, Member] = {}
        self.generation = 0
        self.state = EMPTY
        self.leader = ""
        self.protocol_type = ""
        self.protocol = ""
        self.committed: dict[tuple[str, int], Fields] = {}
        self._promised: set[str] = set()
        """Member ids that were given out (KIP-394) and not used so far."""
        self._rebalance_ends = 0.0

    def join(self, fields: Fields, client_id: str, *, id_first: bool) -> Fields:
        """JoinGroup: waits for the other members."""
        self._drop_silent_members()
        member_id, instance_id = fields["member_id"], fields.get("group_instance_id")
        if not member_id:
            member_id = f"{client_id}-{uuid4()}"
            if id_first and instance_id is None:
                self._promised.add(member_id)
                return {"error_code": ErrorCode.MEMBER_ID_REQUIRED, "member_id": member_id}
            self._replace(instance_id)
        elif member_id not in self.members and member_id not in self._promised:
            return {"error_code": ErrorCode.UNKNOWN_MEMBER_ID, "member_id": member_id}
        self._promised.discard(member_id)
        protocols = {one["name"]: one["metadata"] for one in fields["protocols"]}
        others = [member.protocols for key, member in self.members.items() if key != member_id]
        if not set(protocols).intersection(*others):
            return {"error_code": ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "member_id": member_id}
        self.protocol_type = fields["protocol_type"]
        session_s = fields["session_timeout_ms"] / 1000
        rebalance_s = fields.get("rebalance_timeout_ms", -1) / 1000
        self.members[member_id] = Member(
            instance_id,
            session_s,
            rebalance_s if rebalance_s >= 0 else session_s,
            self._now(),
            protocols,
            waits=True,
        )
        self._begin_rebalance()
        return self._await_generation(member_id)

    def _replace(self, instance_id: str | None) -> None:
        """A static member is back under a new id."""
        for key, member in list(self.members.items()):
            if instance_id is not None and member.instance_id == instance_id:
                del self.members[key]

    def _begin_rebalance(self) -> None:
        if self.state != PREPARING:
            self.state = PREPARING
            longest = max((member.rebalance_s for member in self.members.values()), default=0)
            self._rebalance_ends = self._now() + longest
        self._changed.notify_all()

    def _await_generation(self, member_id: str) -> Fields:
        me, before = self.members[member_id], self.generation
        while self.generation == before and self.members.get(member_id) is me:
            self._drop_silent_members()
            late = self._now() >= self._rebalance_ends
            if late or all(member.waits for member in self.members.values()):
                self._complete()
            else:
                self._changed.wait(_LOOK_EVERY_S)
        if self.members.get(member_id) is not me:
            return {"error_code": ErrorCode.UNKNOWN_MEMBER_ID, "member_id": member_id}
        members = [
            {
                "member_id": key,
                "group_instance_id": member.instance_id,
                "metadata": member.protocols[self.protocol],
            }
            for key, member in self.members.items()
        ]
        return {
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader,
            "member_id": member_id,
            "members": members if member_id == self.leader else [],
        }

    def _complete(self) -> None:
        """Start the next generation with all members that have joined; remove the others."""
        self.members = {key: member for key, member in self.members.items() if member.waits}
        shared = set[str].intersection(*(set(member.protocols) for member in self.members.values()))
        first = next(iter(self.members.values()))
        self.protocol = next(name for name in first.protocols if name in shared)
        self.leader = self.leader if self.leader in self.members else next(iter(self.members))
        self.generation += 1
        self.state = COMPLETING
        for member in self.members.values():
            member.waits, member.heard, member.assignment = False, self._now(), b""
        self._changed.notify_all()

    def sync(self, fields: Fields) -> Fields:
        """SyncGroup: waits for the leader's assignments."""
        code = self.check(fields["member_id"], fields["generation_id"])
        if code:
            return {"error_code": code}
        if fields["member_id"] == self.leader and self.state == COMPLETING:
            for one in fields["assignments"]:
                if one["member_id"] in self.members:
                    self.members[one["member_id"]].assignment = one["assignment"]
            self.state = STABLE
            self._changed.notify_all()
        while self.state == COMPLETING and self.generation == fields["generation_id"]:
            self._changed.wait(_LOOK_EVERY_S)
            self._drop_silent_members()
        code = self.check(fields["member_id"], fields["generation_id"])
        if code:
            return {"error_code": code}
        return {
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": self.members[fields["member_id"]].assignment,
        }

    def check(self, member_id: str, generation: int, *, in_rebalance: bool = False) -> ErrorCode:
        """Check that this is a member of this generation, and (unless ``in_rebalance``) no rebalance waits
        for it. The request counts as a heartbeat.
        """
        self._drop_silent_members()
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.members[member_id].heard = self._now()
        if self.state == PREPARING and not in_rebalance:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Take a member out, by its id or, where it has none, its instance id."""
        for key, member in list(self.members.items()):
            if key == member_id or (not member_id and instance_id and member.instance_id == instance_id):
                self._remove(key)
                return ErrorCode.NONE
        return ErrorCode.UNKNOWN_MEMBER_ID

    def check_commit(self, member_id: str, generation: int) -> ErrorCode:
        """Check the right to commit: members of this generation have it, or any client while there is no
        member."""
        if not member_id and generation < 0:
            return ErrorCode.UNKNOWN_MEMBER_ID if self.members else ErrorCode.NONE
        code = self.check(member_id, generation, in_rebalance=True)
        return ErrorCode.REBALANCE_IN_PROGRESS if not code and self.state == COMPLETING else code

    def disband(self) -> None:
        """Send all waiting members away: the coordinator ends."""
        self.members.clear()
        self.state = EMPTY
        self._changed.notify_all()

    def _drop_silent_members(self) -> None:
        for key, member in list(self.members.items()):
            if not member.waits and self._now() - member.heard > member.session_s:
                self._remove(key)

    def _remove(self, member_id: str) -> None:
        del self.members[member_id]
        if self.members:
            self._begin_rebalance()
        else:
            self.state = EMPTY
        self._changed.notify_all()
