"""`find_leaders`: who is to be asked for partitions whose leader is unknown, or no longer the leader."""

from __future__ import annotations

from collections.abc import Collection

from ..cluster.router import Leader, Router
from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError, TopicRecreatedError
from .fetch_answers import FetchRules, fail
from .partition_state import PartitionState
from .run_clock import RunClock

RECREATED_AFTER = 3
"""So many metadata in a row must show another topic id: a broker that lags behind may show the former one."""


def find_leaders(
    router: Router, states: Collection[PartitionState], clock: RunClock, rules: FetchRules
) -> None:
    """Tell those of ``states`` that wait for a leader who it is, or what is wrong with them."""
    now = clock.now()
    lost = [s for s in states if s.leader is None and s.open and s.retry_at <= now]
    if not lost:
        return
    topics = {state.topic_partition.topic for state in lost}
    try:
        if any(state.leader_is_stale for state in lost):
            router.refresh(topics, router.deadline(router.config.request_timeout_ms))
        else:
            router.metadata(topics)
    except KafkaError as error:
        for state in lost:
            fail(state, error, clock.now(), rules)
        return
    for state in lost:
        try:
            state.led_by(_leader(router, state), now)
        except KafkaError as error:
            fail(state, error, clock.now(), rules)


def _leader(router: Router, state: PartitionState) -> Leader:
    tp = state.topic_partition
    leader = router.leader(tp)
    if None not in (state.topic_id, leader.topic_id) and leader.topic_id != state.topic_id:
        if state.failures < RECREATED_AFTER:
            raise BrokerError(ErrorCode.INCONSISTENT_TOPIC_ID, f"fetching {tp} at offset {state.position}")
        raise TopicRecreatedError(tp.topic, str(state.topic_id), str(leader.topic_id))
    return leader
