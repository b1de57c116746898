"""`new_member`: the member that a `GroupConfig` describes."""

from __future__ import annotations

import time

from ..cluster.router import Router
from ..runtime.retry import Backoff
from .classic_membership import ClassicMembership
from .consumer_membership import ConsumerMembership
from .group_config import ASSIGNORS, GroupConfig, GroupProtocol
from .member import Member
from .membership import Membership, MembershipRules
from .subscription import Subscription


def new_member(router: Router, config: GroupConfig, subscription: Subscription) -> Member:
    """A member that joins its group at once, in its own thread."""
    client = router.config
    rules = MembershipRules(
        group_id=config.group_id,
        group_instance_id=config.group_instance_id,
        session_timeout_s=config.session_timeout_ms / 1000,
        heartbeat_interval_s=config.heartbeat_interval_ms / 1000,
        max_poll_interval_s=config.max_poll_interval_ms / 1000,
        backoff=Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms),
        rack=client.client_rack or None,
    )
    topics, now = subscription.among(()), time.monotonic()
    membership: Membership
    if config.group_protocol is GroupProtocol.CONSUMER:
        membership = ConsumerMembership(rules, topics, config.group_remote_assignor, now)
    else:
        assignors = [ASSIGNORS[name] for name in config.partition_assignment_strategy]
        membership = ClassicMembership(rules, topics, assignors, now)
    return Member(router, membership, subscription)
