"""A member that was away for longer than ``max.poll.interval.ms`` has left its group; its next poll joins."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup

from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.protocol.api.group_membership import (
    ConsumerGroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
)
from spark_kafka_native.kafka.protocol.message import Request
from spark_kafka_native.kafka.runtime.deadline import Deadline

WITHIN_S = 120


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_without_partitions_joins_with_its_next_poll(protocol: str) -> None:
    """Nothing was revoked that the caller would have to hear of: its poll alone wakes the member."""
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        ScriptedGroup(cluster, [])

        def requests(kind: type[Request[Any]]) -> list[Any]:
            return cluster[1].requests(kind)

        def joined() -> int:
            if protocol == "classic":
                return len(requests(JoinGroupRequest))
            return sum(one.member_epoch == 0 for one in requests(ConsumerGroupHeartbeatRequest))

        def has_left() -> bool:
            if protocol == "classic":
                return bool(requests(LeaveGroupRequest))
            return any(one.member_epoch < 0 for one in requests(ConsumerGroupHeartbeatRequest))

        with GroupConsumer(
            cluster.bootstrap_servers, "a", "g", group_protocol=protocol, max_poll_interval_ms=300
        ) as consumer:
            until = Deadline.after_ms(WITHIN_S * 1000)
            while not joined():  # a slow machine may take longer for that than the interval
                assert not until.expired
                consumer.fetch_record(0.01)
            while not has_left():
                assert not until.expired
                time.sleep(0.01)
            before = joined()
            time.sleep(0.1)  # by itself it does not come back
            assert joined() == before
            consumer.fetch_record(0.0)
            while joined() == before:
                assert not until.expired
                time.sleep(0.01)
