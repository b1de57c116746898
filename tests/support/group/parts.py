"""The parts of a `GroupConsumer`, for tests that drive them without a group. The one place that knows where
the consumer keeps them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from spark_kafka_native.kafka.consumer.partition_reader import PartitionReader
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.group.commits import Commits
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.group.membership_thread import MembershipThread
from spark_kafka_native.kafka.group.rebalance import Rebalance
from spark_kafka_native.kafka.group.start_offsets import StartOffsets
from spark_kafka_native.kafka.protocol.api.group_membership import HeartbeatResponse


@dataclass(frozen=True)
class Parts:
    member: MembershipThread
    commits: Commits
    starts: StartOffsets
    rebalance: Rebalance
    reader: PartitionReader


def parts_of(consumer: GroupConsumer) -> Parts:
    return Parts(
        member=consumer._member,
        commits=consumer._commits,
        starts=consumer._starts,
        rebalance=consumer._rebalance,
        reader=consumer._reader,
    )


def heartbeat_refused(consumer: GroupConsumer, code: ErrorCode) -> None:
    """As if the coordinator of a classic group had answered a heartbeat with ``code``."""
    member = parts_of(consumer).member
    with member.changing() as membership:
        membership.answered(HeartbeatResponse(error_code=code), time.monotonic())


def lose(consumer: GroupConsumer) -> None:
    """As if the coordinator did not know the member any more."""
    heartbeat_refused(consumer, ErrorCode.UNKNOWN_MEMBER_ID)
