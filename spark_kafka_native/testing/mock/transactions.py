"""Transactions by KIP-98 and without KIP-890: `TransactionMetadata` is the state of one transactional id,
`TransactionCoordinator` responds for all.

Transactions end at once: markers are in the logs before EndTxn is answered. None expires.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import Final

from ...kafka.error_code import ErrorCode
from .groups import GroupCoordinator
from .mock_cluster import Call, MockCluster, Respond, each_partition
from .partition_log import BatchHeader
from .script import Fields

_FIRST_FENCED = {
    "InitProducerId": 4,
    "AddPartitionsToTxn": 2,
    "AddOffsetsToTxn": 2,
    "EndTxn": 2,
    "TxnOffsetCommit": 99,
}
"""The first versions that know PRODUCER_FENCED (KIP-588); a group's coordinator never says it."""
_NO_PRODUCER: Final = -2
_LAST_EPOCH: Final = (1 << 15) - 2
"""The one above belongs to coordinators, which fence with it."""


@dataclass
class TransactionMetadata:
    """A producer id with its epoch, and the transaction that is open, if one is."""

    producer_id: int
    epoch: int = 0
    partitions: set[tuple[str, int]] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    committed: bool | None = None
    """How the last one ended."""

    @property
    def is_open(self) -> bool:
        """True if a partition or a group belongs to it."""
        return bool(self.partitions or self.groups)

    def check(self, producer_id: int, epoch: int) -> ErrorCode:
        """Check that this producer may write in it."""
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if epoch == self.epoch else ErrorCode.PRODUCER_FENCED

    def clear(self, *, committed: bool | None) -> None:
        """End it. None: a new producer has ended it; a retried end of the old producer does not count as its
        own."""
        self.partitions, self.groups, self.committed = set(), set(), committed


class TransactionCoordinator:
    """Responds for all transactional ids; each method of an API is called with the cluster's lock held."""

    def __init__(self, cluster: MockCluster, groups: GroupCoordinator) -> None:
        self._cluster, self._groups = cluster, groups
        self._producer_ids = itertools.count(1000)
        self.by_id: dict[str, TransactionMetadata] = {}

    def responders(self) -> dict[str, Respond]:
        """The methods for each API."""
        return {
            "InitProducerId": self.init_producer_id,
            "AddPartitionsToTxn": self.add_partitions,
            "AddOffsetsToTxn": self.add_offsets,
            "TxnOffsetCommit": self.txn_offset_commit,
            "EndTxn": self.end_txn,
        }

    def init_producer_id(self, call: Call) -> Fields:
        """InitProducerId: a new producer fences the last one with its transactional id and aborts its open
        transaction.
        """
        transactional_id = call.fields["transactional_id"]
        if transactional_id is None:
            return {"producer_id": next(self._producer_ids), "producer_epoch": 0}
        known, epoch = call.fields.get("producer_id", -1), call.fields.get("producer_epoch", -1)
        if call.request.node_id != self._cluster.coordinator:
            return {"error_code": ErrorCode.NOT_COORDINATOR, "producer_id": -1, "producer_epoch": -1}
        own = self.by_id.get(transactional_id)
        if own is None:
            own = self.by_id[transactional_id] = TransactionMetadata(next(self._producer_ids))
        elif known >= 0 and (known, epoch) == (own.producer_id, own.epoch - 1) and not own.is_open:
            pass  # asked again, as the answer was lost
        elif known >= 0 and own.check(known, epoch):
            code = _by_version(call, own.check(known, epoch))
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        else:
            self._renew(own)
        return {"producer_id": own.producer_id, "producer_epoch": own.epoch}

    def add_partitions(self, call: Call) -> Fields:
        """AddPartitionsToTxn, as clients ask: all of them, or none."""
        asked = {name.removeprefix("v3_and_below_"): value for name, value in call.fields.items()}
        code, own = self._check(call, asked)
        places = [(topic["name"], index) for topic in asked["topics"] for index in topic["partitions"]]
        refused: dict[tuple[str, int], ErrorCode] = {}
        for place in places:
            refusal = call.refusal(*place)
            if refusal is not None and refusal.code is not None and not refusal.applied:
                refused[place] = refusal.code
            elif self._cluster.log(*place) is None:
                refused[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not code and not refused:
            own.partitions.update(places)

        def code_of(place: tuple[str, int]) -> ErrorCode:
            refusal = call.refusal(*place)
            if refusal is not None and refusal.code is not None:
                return refusal.code
            otherwise = ErrorCode.OPERATION_NOT_ATTEMPTED if refused else ErrorCode.NONE
            return code or refused.get(place, otherwise)

        results = [
            {
                "name": topic["name"],
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": code_of((topic["name"], index))}
                    for index in topic["partitions"]
                ],
            }
            for topic in asked["topics"]
        ]
        return {"results_by_topic_v3_and_below": results}

    def add_offsets(self, call: Call) -> Fields:
        """AddOffsetsToTxn."""
        code, own = self._check(call, call.fields)
        if not code:
            own.groups.add(call.fields["group_id"])
        return {"error_code": code}

    def txn_offset_commit(self, call: Call) -> Fields:
        """TxnOffsetCommit: the offsets are the group's once the transaction is committed."""
        asked = call.fields
        code, own = self._check(call, asked)
        group_id = asked["group_id"]
        if not code and group_id not in own.groups:
            code = ErrorCode.INVALID_TXN_STATE
        group = self._groups.group(group_id)
        if asked.get("member_id") or asked.get("generation_id", -1) >= 0:
            code = code or group.check_commit(asked)

        def commit(topic: str | None, part: Fields) -> Fields:
            missing = topic is None or self._cluster.log(topic, part["partition_index"]) is None
            if code or topic is None or missing:
                return {"error_code": code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            group.commit_in_transaction(own.producer_id, (topic, part["partition_index"]), part)
            return {}

        keys = ("partitions", "partition_index")
        return {"topics": each_partition(self._cluster, call, asked["topics"], keys, commit)}

    def end_txn(self, call: Call) -> Fields:
        """EndTxn; asked again, it ends nothing more."""
        code, own = self._check(call, call.fields)
        committed = call.fields["committed"]
        if not code and own.is_open:
            self._end(own, committed=committed)
        elif not code and own.committed is not committed:
            code = ErrorCode.INVALID_TXN_STATE
        return {"error_code": code}

    def batch_refusal(self, topic: str | None, part: Fields) -> ErrorCode:
        """Why a leader does not take a batch: its transaction does not know the partition, or its producer is
        fenced.
        """
        try:
            header = BatchHeader.read(part["records"] or b"")
        except ValueError:
            return ErrorCode.NONE  # the log names the defect
        if not header.is_transactional:
            return ErrorCode.NONE
        owners = (one for one in self.by_id.values() if one.producer_id == header.producer_id)
        own = next(owners, None)
        if own is not None and header.producer_epoch != own.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if own is None or (topic, part["index"]) not in own.partitions:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    def _check(self, call: Call, asked: Fields) -> tuple[ErrorCode, TransactionMetadata]:
        """Why the producer may not go on, and its state."""
        own = self.by_id.get(asked["transactional_id"], TransactionMetadata(_NO_PRODUCER))
        code = own.check(asked["producer_id"], asked["producer_epoch"])
        if call.request.node_id != self._cluster.coordinator:
            code = ErrorCode.NOT_COORDINATOR
        return _by_version(call, code), own

    def _renew(self, own: TransactionMetadata) -> None:
        if own.is_open:
            own.epoch += 1  # of the markers: it fences, and no producer ever has it
            self._end(own, committed=False)
        own.epoch += 1
        own.clear(committed=None)
        if own.epoch > _LAST_EPOCH:
            own.producer_id, own.epoch = next(self._producer_ids), 0

    def _end(self, own: TransactionMetadata, *, committed: bool) -> None:
        now_ms = time.time_ns() // 1_000_000
        for topic, partition in sorted(own.partitions):
            log = self._cluster.log(topic, partition)
            if log is not None:  # deleted meanwhile
                log.end_transaction(own.producer_id, own.epoch, now_ms, committed=committed)
        for group in own.groups:
            self._groups.group(group).end_transaction(own.producer_id, committed=committed)
        own.clear(committed=committed)
        self._cluster.changed.notify_all()


def _by_version(call: Call, code: ErrorCode) -> ErrorCode:
    is_old = call.version < _FIRST_FENCED.get(call.request.api, 0)
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_old and code is ErrorCode.PRODUCER_FENCED else code
