"""Responses about records: written, read, looked up, deleted."""

from __future__ import annotations

import time
from functools import partial

from ...kafka.error_code import ErrorCode
from .mock_cluster import Call, MockCluster, Respond, each_partition
from .partition_log import PartitionLog
from .script import Effect, Fields
from .transactions import TransactionCoordinator

_READ_COMMITTED = 1
_LATEST = -1


def record_responders(cluster: MockCluster, transactions: TransactionCoordinator) -> dict[str, Respond]:
    """The functions for each API about records, to be called with the cluster's lock held."""
    return {
        "Produce": partial(produce, cluster, transactions),
        "Fetch": partial(fetch, cluster),
        "ListOffsets": partial(list_offsets, cluster),
        "OffsetForLeaderEpoch": partial(offset_for_leader_epoch, cluster),
        "DeleteRecords": partial(delete_records, cluster),
    }


def produce(cluster: MockCluster, transactions: TransactionCoordinator, call: Call) -> Fields | None:
    """Produce. With ``acks=0`` there is no response, and an error closes the connection."""

    def append(topic: str | None, part: Fields) -> Fields:
        code, log = cluster.led_log(call, topic, part["index"])
        if log is None:
            return {"error_code": code, "base_offset": -1}
        code, base_offset = transactions.batch_refusal(topic, part), -1
        if not code:
            code, base_offset = log.append(part["records"] or b"")
        return {"error_code": code, "base_offset": base_offset, "log_start_offset": log.log_start_offset}

    keys = ("partition_responses", "index")
    responses = each_partition(cluster, call, call.fields["topic_data"], keys, append)
    cluster.changed.notify_all()
    if call.fields["acks"]:
        return {"responses": responses}
    if any(part["error_code"] for topic in responses for part in topic["partition_responses"]):
        call.faults.append(Effect().hang_up())
    return None


def fetch(cluster: MockCluster, call: Call) -> Fields:
    """Fetch: waits until there is enough, or an error to tell, or ``max_wait_ms`` is over. No sessions."""
    asked = call.fields
    deadline = time.monotonic() + asked["max_wait_ms"] / 1000
    while True:
        responses, size, is_error = _read(cluster, call)
        left = deadline - time.monotonic()
        if size >= asked["min_bytes"] or is_error or left <= 0:
            return {"responses": responses}
        if call.request.node_id not in cluster.running:
            return {"responses": responses}
        cluster.changed.wait(left)


def _read(cluster: MockCluster, call: Call) -> tuple[list[Fields], int, bool]:
    """The response, the bytes of records in it, and whether it has an error."""
    left = [call.fields.get("max_bytes", 1 << 31)]
    committed = call.fields.get("isolation_level") == _READ_COMMITTED

    def read(topic: str | None, part: Fields) -> Fields:
        epoch = part.get("current_leader_epoch", -1)
        code, log = cluster.led_log(call, topic, part["partition"], epoch)
        if log is None:
            return {"error_code": code, "high_watermark": -1, "records": b""}
        offset = part["fetch_offset"]
        stable = log.last_stable_offset
        until = stable if committed else log.end_offset
        response: Fields = {
            "high_watermark": log.end_offset,
            "last_stable_offset": stable,
            "log_start_offset": log.log_start_offset,
            "aborted_transactions": log.aborted_from(offset, until) if committed else None,
            "records": b"",
        }
        if log.log_start_offset <= offset and (other := _divergence(log, offset, part)):
            return response | {"diverging_epoch": other}
        if not log.log_start_offset <= offset <= log.end_offset:
            return response | {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}
        if left[0] > 0:
            response["records"] = log.read(offset, min(left[0], part["partition_max_bytes"]), until)
            left[0] -= len(response["records"])
        return response

    responses = each_partition(cluster, call, call.fields["topics"], ("partitions", "partition_index"), read)
    parts = [part for topic in responses for part in topic["partitions"]]
    size = sum(len(part.get("records") or b"") for part in parts)
    return responses, size, any(part.get("error_code") or part.get("diverging_epoch") for part in parts)


def _divergence(log: PartitionLog, offset: int, part: Fields) -> Fields | None:
    """Where the log parts from the one that was read (KIP-320), if a leader has been elected since.
    A log that was cut in its epoch is that of a broker without epochs, which says nothing."""
    last = part.get("last_fetched_epoch", -1)
    if not 0 <= last < log.leader_epoch:
        return None
    epoch, end = log.end_of_epoch(last)
    return {"epoch": epoch, "end_offset": end} if epoch < last or end < offset else None


def list_offsets(cluster: MockCluster, call: Call) -> Fields:
    """ListOffsets."""
    committed = call.fields.get("isolation_level") == _READ_COMMITTED

    def look_up(topic: str | None, part: Fields) -> Fields:
        epoch = part.get("current_leader_epoch", -1)
        code, log = cluster.led_log(call, topic, part["partition_index"], epoch)
        if log is None:
            return {"error_code": code}
        if committed and part["timestamp"] == _LATEST:
            return {"offset": log.last_stable_offset, "timestamp": -1, "leader_epoch": log.leader_epoch}
        try:
            offset, timestamp = log.offset_at(part["timestamp"])
        except ValueError:  # a batch that the mock can't look into
            return {"error_code": ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}
        if committed and part["timestamp"] >= 0 and offset >= log.last_stable_offset:
            offset, timestamp = -1, -1  # as if no record were that late
        return {"offset": offset, "timestamp": timestamp, "leader_epoch": log.leader_epoch}

    keys = ("partitions", "partition_index")
    return {"topics": each_partition(cluster, call, call.fields["topics"], keys, look_up)}


def offset_for_leader_epoch(cluster: MockCluster, call: Call) -> Fields:
    """OffsetForLeaderEpoch."""

    def look_up(topic: str | None, part: Fields) -> Fields:
        code, log = cluster.led_log(call, topic, part["partition"], part["current_leader_epoch"])
        if log is None:
            return {"error_code": code}
        epoch, end = log.end_of_epoch(part["leader_epoch"])
        return {"leader_epoch": epoch, "end_offset": end}

    keys = ("partitions", "partition")
    return {"topics": each_partition(cluster, call, call.fields["topics"], keys, look_up)}


def delete_records(cluster: MockCluster, call: Call) -> Fields:
    """DeleteRecords."""

    def delete(topic: str | None, part: Fields) -> Fields:
        code, log = cluster.led_log(call, topic, part["partition_index"])
        if log is None:
            return {"error_code": code, "low_watermark": -1}
        before = log.end_offset if part["offset"] == -1 else part["offset"]
        if not 0 <= before <= log.end_offset:
            return {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE, "low_watermark": -1}
        log.delete_before(max(before, log.log_start_offset))
        return {"low_watermark": log.log_start_offset}

    keys = ("partitions", "partition_index")
    return {"topics": each_partition(cluster, call, call.fields["topics"], keys, delete)}
