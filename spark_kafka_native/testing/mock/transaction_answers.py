"""Answers of a transaction coordinator, and which batches of transactions a leader takes.

Transactions end at once: markers are in the logs before EndTxn is answered. None expires.
"""

from __future__ import annotations

import time

from ...kafka.error_code import ErrorCode
from .mock_cluster import Call, MockCluster, each_partition
from .record_batches import BatchHeader
from .script import Fields
from .transaction import LAST_EPOCH, Transaction

_FIRST_FENCED = {
    "InitProducerId": 4,
    "AddPartitionsToTxn": 2,
    "AddOffsetsToTxn": 2,
    "EndTxn": 2,
    "TxnOffsetCommit": 99,
}
"""The first versions that know PRODUCER_FENCED (KIP-588); a group's coordinator never says it."""
_NOBODY = -2


def init_producer_id(cluster: MockCluster, call: Call) -> Fields:
    """InitProducerId: a new producer fences the last one with its transactional id, and its open transaction
    is aborted."""
    transactional_id = call.fields["transactional_id"]
    known, epoch = call.fields.get("producer_id", -1), call.fields.get("producer_epoch", -1)
    if transactional_id is None:
        if known >= 0 and epoch < LAST_EPOCH:
            return {"producer_id": known, "producer_epoch": epoch + 1}
        return {"producer_id": next(cluster.producer_ids), "producer_epoch": 0}
    if call.request.node_id != cluster.coordinator:
        return {"error_code": ErrorCode.NOT_COORDINATOR, "producer_id": -1, "producer_epoch": -1}
    own = cluster.transactions.get(transactional_id)
    if own is None:
        own = cluster.transactions[transactional_id] = Transaction(next(cluster.producer_ids))
    elif known >= 0 and (known, epoch) == (own.producer_id, own.epoch - 1) and not own.is_open:
        pass  # asked again, as the answer was lost
    elif known >= 0 and own.check(known, epoch):
        return {"error_code": _told(call, own.check(known, epoch)), "producer_id": -1, "producer_epoch": -1}
    else:
        _renew(cluster, own)
    return {"producer_id": own.producer_id, "producer_epoch": own.epoch}


def _renew(cluster: MockCluster, own: Transaction) -> None:
    if own.is_open:
        own.epoch += 1  # of the markers: it fences, and no producer ever has it
        _end(cluster, own, committed=False)
    own.epoch += 1
    own.clear(committed=None)
    if own.epoch > LAST_EPOCH:
        own.producer_id, own.epoch = next(cluster.producer_ids), 0


def _end(cluster: MockCluster, own: Transaction, *, committed: bool) -> None:
    now_ms = time.time_ns() // 1_000_000
    for topic, partition in sorted(own.partitions):
        log = cluster.log(topic, partition)
        if log is not None:  # deleted meanwhile
            log.end_transaction(own.producer_id, own.epoch, now_ms, committed=committed)
    for group, offsets in own.offsets.items() if committed else ():
        cluster.group(group).committed.update(offsets)
    own.clear(committed=committed)
    cluster.changed.notify_all()


def _check(cluster: MockCluster, call: Call, asked: Fields) -> tuple[ErrorCode, Transaction]:
    """Why the producer may not go on, and its state."""
    own = cluster.transactions.get(asked["transactional_id"], Transaction(_NOBODY))
    code = own.check(asked["producer_id"], asked["producer_epoch"])
    if call.request.node_id != cluster.coordinator:
        code = ErrorCode.NOT_COORDINATOR
    return _told(call, code), own


def _told(call: Call, code: ErrorCode) -> ErrorCode:
    is_old = call.version < _FIRST_FENCED.get(call.request.api, 0)
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_old and code is ErrorCode.PRODUCER_FENCED else code


def add_partitions(cluster: MockCluster, call: Call) -> Fields:
    """AddPartitionsToTxn, as clients ask: all of them, or none."""
    asked = {name.removeprefix("v3_and_below_"): value for name, value in call.fields.items()}
    code, own = _check(cluster, call, asked)
    places = [(topic["name"], index) for topic in asked["topics"] for index in topic["partitions"]]
    refused: dict[tuple[str, int], ErrorCode] = {}
    for place in places:
        refusal = call.refusal(*place)
        if refusal is not None and refusal.code is not None and not refusal.applied:
            refused[place] = refusal.code
        elif cluster.log(*place) is None:
            refused[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not code and not refused:
        own.partitions.update(places)

    def told(place: tuple[str, int]) -> ErrorCode:
        refusal = call.refusal(*place)
        if refusal is not None and refusal.code is not None:
            return refusal.code
        otherwise = ErrorCode.OPERATION_NOT_ATTEMPTED if refused else ErrorCode.NONE
        return code or refused.get(place, otherwise)

    results = [
        {
            "name": topic["name"],
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": told((topic["name"], index))}
                for index in topic["partitions"]
            ],
        }
        for topic in asked["topics"]
    ]
    return {"results_by_topic_v3_and_below": results}


def add_offsets(cluster: MockCluster, call: Call) -> Fields:
    """AddOffsetsToTxn."""
    code, own = _check(cluster, call, call.fields)
    if not code:
        own.groups.add(call.fields["group_id"])
    return {"error_code": code}


def txn_offset_commit(cluster: MockCluster, call: Call) -> Fields:
    """TxnOffsetCommit: the offsets are the group's once the transaction is committed."""
    asked = call.fields
    code, own = _check(cluster, call, asked)
    group_id = asked["group_id"]
    if not code and group_id not in own.groups:
        code = ErrorCode.INVALID_TXN_STATE
    if asked.get("member_id") or asked.get("generation_id", -1) >= 0:
        group = cluster.group(group_id)
        code = code or group.check_commit(asked["member_id"], asked["generation_id"])

    def commit(topic: str | None, part: Fields) -> Fields:
        missing = topic is None or cluster.log(topic, part["partition_index"]) is None
        if code or topic is None or missing:
            return {"error_code": code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        own.offsets.setdefault(group_id, {})[topic, part["partition_index"]] = part
        return {}

    keys = ("partitions", "partition_index")
    return {"topics": each_partition(cluster, call, asked["topics"], keys, commit)}


def end_txn(cluster: MockCluster, call: Call) -> Fields:
    """EndTxn; asked again, it ends nothing more."""
    code, own = _check(cluster, call, call.fields)
    committed = call.fields["committed"]
    if not code and own.is_open:
        _end(cluster, own, committed=committed)
    elif not code and own.committed is not committed:
        code = ErrorCode.INVALID_TXN_STATE
    return {"error_code": code}


def batch_refusal(cluster: MockCluster, topic: str | None, part: Fields) -> ErrorCode:
    """Why a leader does not take a batch: it is of a transaction that does not know of the partition, or of
    a producer that is fenced."""
    try:
        header = BatchHeader.read(part["records"] or b"")
    except ValueError:
        return ErrorCode.NONE  # the log names the defect
    if not header.is_transactional:
        return ErrorCode.NONE
    owners = (one for one in cluster.transactions.values() if one.producer_id == header.producer_id)
    own = next(owners, None)
    if own is not None and header.producer_epoch != own.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if own is None or (topic, part["index"]) not in own.partitions:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


def is_pending(cluster: MockCluster, group: str, topic: str | None, partition: int) -> bool:
    """True if an open transaction is going to commit this offset."""
    of_group = (own.offsets.get(group, {}) for own in cluster.transactions.values())
    return any((topic, partition) in offsets for offsets in of_group)
