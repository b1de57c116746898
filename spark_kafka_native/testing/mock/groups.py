"""Consumer groups of the classic protocol: `ClassicGroup` is one, `GroupCoordinator` responds for all.

FindCoordinator is here, too: one broker coordinates all groups and transactions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from ...kafka.error_code import ErrorCode
from .mock_cluster import Call, MockCluster, Respond, each_partition
from .script import Fields, topic_of

EMPTY: Final = "Empty"
PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
STABLE: Final = "Stable"
_LOOK_EVERY_S: Final = 0.05
"""How soon a waiting request notices that a member's session is over."""
_FIRST_WITH_KEYS = 4  # of FindCoordinator
_FIRST_WITH_ID_FIRST = 4  # of JoinGroup (KIP-394)
_FIRST_WITH_SKIPPED = 9  # of JoinGroup: a leader that makes no assignment (KIP-814)
_FIRST_WITH_MEMBERS = 3  # of LeaveGroup
_FIRST_WITH_CODE = 2  # of OffsetFetch: one for the group
_FIRST_WITH_GROUPS = 8  # of OffsetFetch
_FIRST_WITH_IDS = 10  # of OffsetFetch


@dataclass
class ClassicGroupMember:
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
        self.members: dict[str, ClassicGroupMember] = {}
        self.generation = 0
        self.state = EMPTY
        self.leader = ""
        self.protocol_type = ""
        self.protocol = ""
        self.committed: dict[tuple[str, int], Fields] = {}
        self._pending: dict[int, dict[tuple[str, int], Fields]] = {}
        """Offsets of open transactions, by producer id."""
        self._promised: set[str] = set()
        """Member ids that were given out (KIP-394) and not used so far."""
        self._rebalance_ends = 0.0

    def join(self, fields: Fields, client_id: str, *, version: int) -> Fields:
        """JoinGroup: waits for the other members, unless the generation stays as it is."""
        self._drop_silent_members()
        own_id = fields["member_id"]
        member_id = own_id or f"{client_id}-{uuid4()}"
        former_id = own_id or self._holder(fields.get("group_instance_id"))
        code = self._join_refusal(fields, former_id, version)
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self._promised.add(member_id)
        if code:
            return {"error_code": code, "member_id": member_id}
        self._promised.discard(member_id)
        self.protocol_type = fields["protocol_type"]
        leader, former = self.leader, self._take_over(former_id, member_id)
        member = self.members[member_id] = _member(fields, self._now())
        if former is None or not self._keeps_generation(member_id, former, is_back=not own_id):
            member.waits = True
            self._begin_rebalance()
            return self._await_generation(member_id)
        member.assignment = former.assignment
        answer = self._current(member_id)
        if own_id:
            return answer
        if version < _FIRST_WITH_SKIPPED:  # as a follower: the assignment stays
            return answer | {"leader": leader, "members": []}
        return answer | {"skip_assignment": member_id == self.leader}

    def _join_refusal(self, fields: Fields, former_id: str, version: int) -> ErrorCode:
        """Why a member may not join; ``former_id`` is the one that it has, or had before."""
        own_id, instance_id = fields["member_id"], fields.get("group_instance_id")
        if not own_id and instance_id is None and version >= _FIRST_WITH_ID_FIRST:
            return ErrorCode.MEMBER_ID_REQUIRED
        if own_id and self._is_fenced(own_id, instance_id):
            return ErrorCode.FENCED_INSTANCE_ID
        if own_id and own_id not in self.members and own_id not in self._promised:
            return ErrorCode.UNKNOWN_MEMBER_ID
        others = [member.protocols for key, member in self.members.items() if key != former_id]
        if not {one["name"] for one in fields["protocols"]}.intersection(*others):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _holder(self, instance_id: str | None) -> str:
        """The id of the member that is this instance; empty if there is none."""
        held = (key for key, member in self.members.items() if member.instance_id == instance_id)
        return "" if instance_id is None else next(held, "")

    def _is_fenced(self, member_id: str, instance_id: str | None) -> bool:
        """True if another member has taken this one's place (KIP-345)."""
        return self._holder(instance_id) not in ("", member_id)

    def _take_over(self, former_id: str, member_id: str) -> ClassicGroupMember | None:
        """Give a member that is back its new id; it, if there is one."""
        if former_id and former_id != member_id:
            # In its place: which protocol is chosen depends on the order.
            self.members = {
                (member_id if key == former_id else key): one for key, one in self.members.items()
            }
            self.leader = member_id if self.leader == former_id else self.leader
        return self.members.get(member_id)

    def _keeps_generation(self, member_id: str, former: ClassicGroupMember, *, is_back: bool) -> bool:
        """True if nothing changes for the others: a static member ``is_back`` under a new id (KIP-345), a
        follower asks again, or a member does so that may have missed the answer.
        """
        if is_back:
            return self.state == STABLE and self._choose_protocol() == self.protocol
        is_same = list(self.members[member_id].protocols.items()) == list(former.protocols.items())
        follows = self.state == STABLE and member_id != self.leader
        return is_same and (follows or self.state == COMPLETING)

    def _choose_protocol(self) -> str:
        shared = set[str].intersection(*(set(member.protocols) for member in self.members.values()))
        first = next(iter(self.members.values()))
        return next(name for name in first.protocols if name in shared)

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
            fenced = self._is_fenced(member_id, me.instance_id)
            code = ErrorCode.FENCED_INSTANCE_ID if fenced else ErrorCode.UNKNOWN_MEMBER_ID
            return {"error_code": code, "member_id": member_id}
        return self._current(member_id)

    def _current(self, member_id: str) -> Fields:
        """The generation, as a member learns of it."""
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
        self.protocol = self._choose_protocol()
        self.leader = self.leader if self.leader in self.members else next(iter(self.members))
        self.generation += 1
        self.state = COMPLETING
        for member in self.members.values():
            member.waits, member.heard, member.assignment = False, self._now(), b""
        self._changed.notify_all()

    def sync(self, fields: Fields) -> Fields:
        """SyncGroup: waits for the leader's assignments."""
        code = self.check(fields)
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
        code = self.check(fields)
        if code:
            return {"error_code": code}
        return {
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": self.members[fields["member_id"]].assignment,
        }

    def check(self, fields: Fields, *, in_rebalance: bool = False) -> ErrorCode:
        """Check that a request is of a member of this generation, and (unless ``in_rebalance``) no rebalance
        waits for it. The request counts as a heartbeat.
        """
        self._drop_silent_members()
        member_id = fields["member_id"]
        if self._is_fenced(member_id, fields.get("group_instance_id")):
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if _generation(fields) != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.members[member_id].heard = self._now()
        if self.state == PREPARING and not in_rebalance:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Take a member out, by its id or, where it has none, its instance id."""
        if member_id and self._is_fenced(member_id, instance_id):
            return ErrorCode.FENCED_INSTANCE_ID
        for key, member in list(self.members.items()):
            if key == member_id or (not member_id and instance_id and member.instance_id == instance_id):
                self._remove(key)
                return ErrorCode.NONE
        return ErrorCode.UNKNOWN_MEMBER_ID

    def check_commit(self, fields: Fields) -> ErrorCode:
        """Check the right to commit: members of this generation have it, or any client while there is no
        member."""
        if not fields["member_id"] and _generation(fields) < 0:
            return ErrorCode.UNKNOWN_MEMBER_ID if self.members else ErrorCode.NONE
        code = self.check(fields, in_rebalance=True)
        return ErrorCode.REBALANCE_IN_PROGRESS if not code and self.state == COMPLETING else code

    def commit_in_transaction(self, producer_id: int, place: tuple[str, int], offset: Fields) -> None:
        """Keep an offset that counts once the transaction is committed."""
        self._pending.setdefault(producer_id, {})[place] = offset

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Commit or drop the offsets of a transaction."""
        offsets = self._pending.pop(producer_id, {})
        if committed:
            self.committed.update(offsets)

    def forget_topic(self, name: str) -> None:
        """Drop the offsets of a topic that is deleted."""
        for offsets in (self.committed, *self._pending.values()):
            for place in [place for place in offsets if place[0] == name]:
                del offsets[place]

    def is_pending(self, topic: str | None, partition: int) -> bool:
        """True if an open transaction is going to commit this offset."""
        return any((topic, partition) in offsets for offsets in self._pending.values())

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


def _member(fields: Fields, now: float) -> ClassicGroupMember:
    """As it joins."""
    session_s = fields["session_timeout_ms"] / 1000
    rebalance_s = fields.get("rebalance_timeout_ms", -1) / 1000
    return ClassicGroupMember(
        fields.get("group_instance_id"),
        session_s,
        rebalance_s if rebalance_s >= 0 else session_s,
        now,
        {one["name"]: one["metadata"] for one in fields["protocols"]},
    )


def _generation(fields: Fields) -> int:
    """OffsetCommit has a name of its own for it."""
    return int(fields["generation_id" if "generation_id" in fields else "generation_id_or_member_epoch"])


class GroupCoordinator:
    """Responds for all groups; each method of an API is called with the cluster's lock held."""

    def __init__(self, cluster: MockCluster) -> None:
        self._cluster = cluster
        self.by_id: dict[str, ClassicGroup] = {}
        cluster.when_deleted.append(self._forget_topic)

    def responders(self) -> dict[str, Respond]:
        """The methods for each API."""
        return {
            "FindCoordinator": self.find_coordinator,
            "JoinGroup": self.join_group,
            "SyncGroup": self.sync_group,
            "Heartbeat": self.heartbeat,
            "LeaveGroup": self.leave_group,
            "ListGroups": self.list_groups,
            "OffsetCommit": self.offset_commit,
            "OffsetFetch": self.offset_fetch,
        }

    def group(self, group_id: str) -> ClassicGroup:
        """A group; created on first use."""
        return self.by_id.setdefault(group_id, ClassicGroup(self._cluster.changed))

    def _forget_topic(self, name: str) -> None:
        for group in self.by_id.values():
            group.forget_topic(name)

    def disband(self) -> None:
        """Send the members of all groups away."""
        for group in self.by_id.values():
            group.disband()

    def find_coordinator(self, call: Call) -> Fields:
        """FindCoordinator."""
        node_id = self._cluster.coordinator
        host, port = self._cluster.addresses.get(node_id, ("", -1))
        refusal = call.refusal()
        found: Fields = {"node_id": node_id, "host": host, "port": port, "error_message": None}
        if refusal is not None:
            found = {"node_id": -1, "error_code": refusal.code, "error_message": None}
        if call.version < _FIRST_WITH_KEYS:
            return found
        return {"coordinators": [{"key": key, **found} for key in call.fields["coordinator_keys"]]}

    def join_group(self, call: Call) -> Fields:
        """JoinGroup."""
        code = self._not_here(call)
        if code is not None:
            return {"error_code": code, "member_id": call.fields["member_id"]}
        group = self.group(call.fields["group_id"])
        return group.join(call.fields, call.request.client_id or "member", version=call.version)

    def sync_group(self, call: Call) -> Fields:
        """SyncGroup."""
        code = self._not_here(call)
        if code is not None:
            return {"error_code": code}
        return self.group(call.fields["group_id"]).sync(call.fields)

    def heartbeat(self, call: Call) -> Fields:
        """Heartbeat."""
        code = self._not_here(call)
        if code is None:
            code = self.group(call.fields["group_id"]).check(call.fields)
        return {"error_code": code}

    def leave_group(self, call: Call) -> Fields:
        """LeaveGroup."""
        code = self._not_here(call)
        if code is not None:
            return {"error_code": code}
        group = self.group(call.fields["group_id"])
        if call.version < _FIRST_WITH_MEMBERS:
            return {"error_code": group.leave(call.fields["member_id"], None)}
        members = [
            {
                "member_id": one["member_id"],
                "group_instance_id": one["group_instance_id"],
                "error_code": group.leave(one["member_id"], one["group_instance_id"]),
            }
            for one in call.fields["members"]
        ]
        return {"members": members}

    def list_groups(self, call: Call) -> Fields:
        """ListGroups: those that the asked broker coordinates."""
        if call.request.node_id != self._cluster.coordinator:
            return {"groups": []}
        states = {one.lower() for one in call.fields.get("states_filter", ())}
        types = {one.lower() for one in call.fields.get("types_filter", ())}
        groups = [
            {
                "group_id": group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": "classic",
            }
            for group_id, group in self.by_id.items()
            if group.generation or group.committed  # not those that a request has only named
            if not states or group.state.lower() in states
            if not types or "classic" in types
        ]
        return {"groups": groups}

    def offset_commit(self, call: Call) -> Fields:
        """OffsetCommit."""
        asked = call.fields
        code = ErrorCode.NONE
        if call.request.node_id != self._cluster.coordinator:
            code = ErrorCode.NOT_COORDINATOR
        group = self.group(asked["group_id"])
        code = code or group.check_commit(asked)

        def commit(topic: str | None, part: Fields) -> Fields:
            if code or topic is None or self._cluster.log(topic, part["partition_index"]) is None:
                return {"error_code": code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            group.committed[topic, part["partition_index"]] = part
            return {}

        keys = ("partitions", "partition_index")
        return {"topics": each_partition(self._cluster, call, asked["topics"], keys, commit)}

    def offset_fetch(self, call: Call) -> Fields:
        """OffsetFetch."""
        if call.version < _FIRST_WITH_GROUPS:
            return self._committed(call, call.fields)
        groups = [
            {"group_id": one["group_id"], **self._committed(call, one)} for one in call.fields["groups"]
        ]
        return {"groups": groups}

    def _committed(self, call: Call, asked: Fields) -> Fields:
        refusal = call.refusal()
        code = ErrorCode.NONE if refusal is None or refusal.is_partial else refusal.code
        if call.request.node_id != self._cluster.coordinator:
            code = code or ErrorCode.NOT_COORDINATOR
        if code and call.version >= _FIRST_WITH_CODE:
            return {"topics": [], "error_code": code}
        group = self.group(asked["group_id"])
        stable = call.fields.get("require_stable", False)

        def offset_of(topic: str | None, partition: int) -> Fields:
            found = group.committed.get((topic or "", partition), {})
            refusal = call.refusal(topic or "", partition)
            refused = refusal.code if refusal is not None else code
            if stable and not refused and group.is_pending(topic, partition):
                refused = ErrorCode.UNSTABLE_OFFSET_COMMIT
            if refused or topic is None:
                refused = refused or ErrorCode.UNKNOWN_TOPIC_ID
                return {"partition_index": partition, "committed_offset": -1, "error_code": refused}
            return {
                "partition_index": partition,
                "committed_offset": found.get("committed_offset", -1),
                "committed_leader_epoch": found.get("committed_leader_epoch", -1),
                "metadata": found.get("committed_metadata", ""),
            }

        topics = []
        key = "name" if call.version < _FIRST_WITH_IDS else "topic_id"
        for one in self._topics_of(group.committed) if asked["topics"] is None else asked["topics"]:
            topic = topic_of(one, self._cluster.topic_name)
            topics.append(
                {key: one[key], "partitions": [offset_of(topic, index) for index in one["partition_indexes"]]}
            )
        return {"topics": topics}

    def _topics_of(self, committed: Iterable[tuple[str, int]]) -> list[Fields]:
        """As a request would name them."""
        by_name: dict[str, list[int]] = {}
        for name, partition in committed:
            by_name.setdefault(name, []).append(partition)
        return [
            {"name": name, "topic_id": self._cluster.topics[name].topic_id, "partition_indexes": partitions}
            for name, partitions in by_name.items()
            if name in self._cluster.topics
        ]

    def _not_here(self, call: Call) -> ErrorCode | None:
        """Why this broker does not answer for a group."""
        refusal = call.refusal()
        if refusal is not None and not refusal.applied:
            return refusal.code
        return ErrorCode.NOT_COORDINATOR if call.request.node_id != self._cluster.coordinator else None
