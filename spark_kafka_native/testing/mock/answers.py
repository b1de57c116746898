"""Which API a mock broker answers, and with what. All of them run with the cluster's lock held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from . import group_answers, record_answers, sasl_answers, topic_answers, transaction_answers
from .mock_cluster import Call, MockCluster
from .script import Fields

Answer = Callable[[MockCluster, Call], Fields | None]

_WHOLE: Final = (
    "DescribeCluster",
    "InitProducerId",
    "ListGroups",
    "AddOffsetsToTxn",
    "EndTxn",
    "SaslHandshake",
    "SaslAuthenticate",
)
"""They have one error code, for all of the answer: the script's refusal is seen to here."""

_OF_MEMBERS: Final = ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup")
"""They have one as well, and refuse invalid requests by themselves."""

ANSWERS: Final[Mapping[str, Answer]] = {
    "Produce": record_answers.produce,
    "Fetch": record_answers.fetch,
    "ListOffsets": record_answers.list_offsets,
    "OffsetForLeaderEpoch": record_answers.offset_for_leader_epoch,
    "DeleteRecords": record_answers.delete_records,
    "Metadata": topic_answers.metadata,
    "DescribeCluster": topic_answers.describe_cluster,
    "CreateTopics": topic_answers.create_topics,
    "DeleteTopics": topic_answers.delete_topics,
    "CreatePartitions": topic_answers.create_partitions,
    "DescribeConfigs": topic_answers.describe_configs,
    "FindCoordinator": group_answers.find_coordinator,
    "JoinGroup": group_answers.join_group,
    "SyncGroup": group_answers.sync_group,
    "Heartbeat": group_answers.heartbeat,
    "LeaveGroup": group_answers.leave_group,
    "ListGroups": group_answers.list_groups,
    "OffsetCommit": group_answers.offset_commit,
    "OffsetFetch": group_answers.offset_fetch,
    "InitProducerId": transaction_answers.init_producer_id,
    "AddPartitionsToTxn": transaction_answers.add_partitions,
    "AddOffsetsToTxn": transaction_answers.add_offsets,
    "TxnOffsetCommit": transaction_answers.txn_offset_commit,
    "EndTxn": transaction_answers.end_txn,
    "SaslHandshake": sasl_answers.sasl_handshake,
    "SaslAuthenticate": sasl_answers.sasl_authenticate,
}

HIGHEST: Final[Mapping[str, int]] = {"AddPartitionsToTxn": 3, "EndTxn": 4, "TxnOffsetCommit": 4}
"""Later ones are for brokers among themselves, or need KIP-890's transactions."""


def answer(cluster: MockCluster, call: Call) -> Fields | None:
    """What a broker answers; None for nothing. Raises `KeyError` for an API that the mock does not know."""
    api = call.request.api
    refusal = call.refusal()
    if api in _WHOLE and refusal is not None and not refusal.applied:
        return {"error_code": refusal.code}
    with cluster.changed:
        told = ANSWERS[api](cluster, call)
    if told is not None and refusal is not None and api in _WHOLE + _OF_MEMBERS:
        told["error_code"] = refusal.code
    return told
