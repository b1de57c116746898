"""Answers of a coordinator: its address, members of groups, committed offsets."""

from __future__ import annotations

from collections.abc import Iterable

from ...kafka.error_code import ErrorCode
from .mock_cluster import Call, MockCluster, each_partition
from .mock_request import topic_of
from .script import Fields
from .transaction_answers import is_pending

_FIRST_WITH_KEYS = 4  # of FindCoordinator
_FIRST_WITH_ID_FIRST = 4  # of JoinGroup (KIP-394)
_FIRST_WITH_MEMBERS = 3  # of LeaveGroup
_FIRST_WITH_CODE = 2  # of OffsetFetch: one for the group
_FIRST_WITH_GROUPS = 8  # of OffsetFetch
_FIRST_WITH_IDS = 10  # of OffsetFetch


def find_coordinator(cluster: MockCluster, call: Call) -> Fields:
    """FindCoordinator."""
    host, port = cluster.addresses.get(cluster.coordinator, ("", -1))
    refusal = call.refusal()
    found: Fields = {"node_id": cluster.coordinator, "host": host, "port": port, "error_message": None}
    if refusal is not None:
        found = {"node_id": -1, "error_code": refusal.code, "error_message": None}
    if call.version < _FIRST_WITH_KEYS:
        return found
    return {"coordinators": [{"key": key, **found} for key in call.fields["coordinator_keys"]]}


def _not_here(cluster: MockCluster, call: Call) -> ErrorCode | None:
    """Why this broker does not answer for a group."""
    refusal = call.refusal()
    if refusal is not None and not refusal.applied:
        return refusal.code
    return ErrorCode.NOT_COORDINATOR if call.request.node_id != cluster.coordinator else None


def join_group(cluster: MockCluster, call: Call) -> Fields:
    """JoinGroup."""
    code = _not_here(cluster, call)
    if code is not None:
        return {"error_code": code, "member_id": call.fields["member_id"]}
    id_first = call.version >= _FIRST_WITH_ID_FIRST
    group = cluster.group(call.fields["group_id"])
    return group.join(call.fields, call.request.client_id or "member", id_first=id_first)


def sync_group(cluster: MockCluster, call: Call) -> Fields:
    """SyncGroup."""
    code = _not_here(cluster, call)
    if code is not None:
        return {"error_code": code}
    return cluster.group(call.fields["group_id"]).sync(call.fields)


def heartbeat(cluster: MockCluster, call: Call) -> Fields:
    """Heartbeat."""
    code = _not_here(cluster, call)
    if code is None:
        group = cluster.group(call.fields["group_id"])
        code = group.check(call.fields["member_id"], call.fields["generation_id"])
    return {"error_code": code}


def leave_group(cluster: MockCluster, call: Call) -> Fields:
    """LeaveGroup."""
    code = _not_here(cluster, call)
    if code is not None:
        return {"error_code": code}
    group = cluster.group(call.fields["group_id"])
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


def list_groups(cluster: MockCluster, _call: Call) -> Fields:
    """ListGroups."""
    groups = [
        {
            "group_id": group_id,
            "protocol_type": group.protocol_type,
            "group_state": group.state,
            "group_type": "classic",
        }
        for group_id, group in cluster.groups.items()
        if group.generation or group.committed  # not those that a request has only named
    ]
    return {"groups": groups}


def offset_commit(cluster: MockCluster, call: Call) -> Fields:
    """OffsetCommit."""
    asked = call.fields
    code = ErrorCode.NONE
    if call.request.node_id != cluster.coordinator:
        code = ErrorCode.NOT_COORDINATOR
    group = cluster.group(asked["group_id"])
    code = code or group.check_commit(asked["member_id"], asked["generation_id_or_member_epoch"])

    def commit(topic: str | None, part: Fields) -> Fields:
        if code or topic is None or cluster.log(topic, part["partition_index"]) is None:
            return {"error_code": code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        group.committed[topic, part["partition_index"]] = part
        return {}

    keys = ("partitions", "partition_index")
    return {"topics": each_partition(cluster, call, asked["topics"], keys, commit)}


def offset_fetch(cluster: MockCluster, call: Call) -> Fields:
    """OffsetFetch."""
    if call.version < _FIRST_WITH_GROUPS:
        return _committed(cluster, call, call.fields)
    groups = [
        {"group_id": one["group_id"], **_committed(cluster, call, one)} for one in call.fields["groups"]
    ]
    return {"groups": groups}


def _committed(cluster: MockCluster, call: Call, asked: Fields) -> Fields:
    refusal = call.refusal()
    code = ErrorCode.NONE if refusal is None or refusal.is_partial else refusal.code
    if call.request.node_id != cluster.coordinator:
        code = code or ErrorCode.NOT_COORDINATOR
    if code and call.version >= _FIRST_WITH_CODE:
        return {"topics": [], "error_code": code}
    committed = cluster.group(asked["group_id"]).committed
    stable = call.fields.get("require_stable", False)

    def told(topic: str | None, partition: int) -> Fields:
        found = committed.get((topic or "", partition), {})
        refusal = call.refusal(topic or "", partition)
        refused = refusal.code if refusal is not None else code
        if stable and not refused and is_pending(cluster, asked["group_id"], topic, partition):
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

    answers = []
    key = "name" if call.version < _FIRST_WITH_IDS else "topic_id"
    for one in _topics_of(cluster, committed) if asked["topics"] is None else asked["topics"]:
        topic = topic_of(one, cluster.topic_name)
        answers.append(
            {key: one[key], "partitions": [told(topic, index) for index in one["partition_indexes"]]}
        )
    return {"topics": answers}


def _topics_of(cluster: MockCluster, committed: Iterable[tuple[str, int]]) -> list[Fields]:
    """As a request would name them."""
    by_name: dict[str, list[int]] = {}
    for name, partition in committed:
        by_name.setdefault(name, []).append(partition)
    return [
        {"name": name, "topic_id": cluster.topics[name].topic_id, "partition_indexes": partitions}
        for name, partitions in by_name.items()
        if name in cluster.topics
    ]
